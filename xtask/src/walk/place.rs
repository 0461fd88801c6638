//! The processes of the walk-through, their files of options, and an operator's commands.

use super::network::{Network, address};
use super::write;
use crate::cluster::{Client, Reply, output, said};
use crate::steps::Step;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(super) const NODES: [&str; 5] = ["a", "b", "c", "d", "e"];
const CONTROLLERS: [&str; 2] = ["ctl-1", "ctl-2"];
const ETCD: [&str; 3] = ["etcd-1", "etcd-2", "etcd-3"];
/// Replicas of each group.
const REPLICAS: usize = 3;
/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
/// Files that are longer hold data and say nothing of a failure.
const LARGE: u64 = 8 << 20;

const CONTROLLER_PORT: u16 = 7400;
const CLIENTS_PORT: u16 = 6379;
const CLIENTS_TLS_PORT: u16 = 6380;
const MEMBERS_PORT: u16 = 6479;
const TARGETS_PORT: u16 = 6579;
/// The doors of the first group for cluster clients.
const GROUPS_PORT: u16 = 7000;
const GROUPS_TLS_PORT: u16 = 7100;
const ETCD_PORT: u16 = 2379;
const ETCD_PEERS_PORT: u16 = 2380;

/// Authorities: that of Gabion's processes, and etcd's own, as each of its certificates opens etcd.
const AUTHORITY: &str = "ca";
const ETCD_AUTHORITY: &str = "etcd-ca";

/// The password of an operator, and the user of clients.
const PASSWORD: &str = "the-operators-long-password";
pub(super) const USER: &str = "app";
pub(super) const USER_PASSWORD: &str = "the-clients-long-password";
/// The keys that this user may use.
pub(super) const PREFIX: &str = "walk:";

pub(super) struct Place {
    dir: PathBuf,
    program: String,
    etcd: String,
    groups: Vec<String>,
    pub(super) network: Network,
    running: BTreeMap<String, Child>,
}

/// A group by the word of its controllers.
struct Group {
    name: String,
    /// The nodes of its full members.
    full: Vec<String>,
    is_complete: bool,
}

impl Place {
    pub(super) fn new(dir: &Path, setup: &Value, network: Network) -> Result<Self, String> {
        let text = |name: &str| setup[name].as_str().map(str::to_owned).ok_or("setup.json");
        let groups = match setup["groups"].as_u64() {
            Some(1) => vec!["orders".to_owned()],
            Some(count) => (1..=count).map(|number| format!("orders-{number}")).collect(),
            None => return Err("setup.json".into()),
        };
        let (program, etcd) = (text("program")?, text("etcd")?);
        let (dir, running) = (dir.to_owned(), BTreeMap::new());
        Ok(Self { dir, program, etcd, groups, network, running })
    }

    pub(super) fn groups(&self) -> &[String] {
        &self.groups
    }

    /// The authority of the doors for clients.
    pub(super) fn authority(&self) -> String {
        self.issued(AUTHORITY, "ca.pem")
    }

    fn issued(&self, authority: &str, file: &str) -> String {
        self.dir.join(authority).join(file).display().to_string()
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// `gabion ca init`, then one certificate for each process and one for an operator.
    pub(super) fn issue_certificates(&self) -> Step {
        let [ca, etcd_ca] = [AUTHORITY, ETCD_AUTHORITY].map(|name| self.file(name));
        let [ca, etcd_ca] = [ca, etcd_ca].map(|path| path.display().to_string());
        self.gabion(&["ca", "init", &ca])?;
        self.gabion(&["ca", "init", &etcd_ca])?;
        let issue = |ca: &str, host: &str, role: &str| {
            let at = address(host).to_string();
            let words = ["ca", "issue", ca, "--name", host, "--role", role, "--address", &at];
            self.gabion(&words).map(drop)
        };
        NODES.iter().try_for_each(|host| issue(&ca, host, "node"))?;
        CONTROLLERS.iter().try_for_each(|host| issue(&ca, host, "controller"))?;
        ETCD.iter().try_for_each(|host| issue(&etcd_ca, host, "node"))?;
        CONTROLLERS.iter().try_for_each(|host| issue(&etcd_ca, host, "client"))?;
        self.gabion(&["ca", "issue", &ca, "--name", "alice", "--role", "operator"]).map(drop)
    }

    /// Writes all files of options and starts all processes: etcd, then controllers, then nodes.
    pub(super) fn start_all(&mut self) -> Step {
        write(&self.file("password"), PASSWORD)?;
        for host in CONTROLLERS {
            write(&self.file(&format!("{host}.toml")), &self.controller_file(host))?;
        }
        for host in NODES {
            write(&self.file(&format!("{host}.toml")), &self.node_file(host))?;
        }
        for host in ETCD.iter().chain(&CONTROLLERS).chain(&NODES) {
            self.start(host)?;
        }
        let all_here = |place: &Self| {
            let nodes = place.ask(&["node", "list", "--json"])?["nodes"].take();
            let nodes = nodes.as_array().cloned().unwrap_or_default();
            Ok(nodes.iter().filter(|node| node["here"] == true).count() == NODES.len())
        };
        self.wait("all nodes have registered", all_here)
    }

    /// A section of a file of options that names a host's certificate.
    fn tls(&self, section: &str, authority: &str, host: &str) -> String {
        let (certificate, key) = (format!("{host}.pem"), format!("{host}.key"));
        let [certificate, key, ca] =
            [&certificate[..], &key, "ca.pem"].map(|file| self.issued(authority, file));
        format!("[{section}]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\nca = \"{ca}\"\n")
    }

    fn controller_file(&self, host: &str) -> String {
        let data = self.file(&format!("data-{host}"));
        let etcd = ETCD.map(|host| format!("{}:{ETCD_PORT}", address(host))).join(",");
        format!(
            "data = \"{}\"\nstore = \"etcd+tls://{etcd}/walk\"\n\
             listen = \"{}:{CONTROLLER_PORT}\"\n{}{}",
            data.display(),
            address(host),
            self.tls("tls", AUTHORITY, host),
            self.tls("store_tls", ETCD_AUTHORITY, host),
        )
    }

    fn node_file(&self, host: &str) -> String {
        let at = address(host);
        let controllers = CONTROLLERS.map(|host| format!("{}:{CONTROLLER_PORT}", address(host)));
        let [certificate, key] =
            ["pem", "key"].map(|kind| self.issued(AUTHORITY, &format!("{host}.{kind}")));
        let mut text = format!(
            "name = \"{host}\"\ndata = \"{}\"\ncontrollers = {controllers:?}\n\
             pool_size = \"256MiB\"\n\
             [clients]\nlisten = \"{at}:{CLIENTS_PORT}\"\nrequirepass_file = \"{}\"\n\
             tls_listen = \"{at}:{CLIENTS_TLS_PORT}\"\ntls_cert = \"{certificate}\"\n\
             tls_key = \"{key}\"\ntls_auth_clients = \"no\"\n\
             [members]\nlisten = \"{at}:{MEMBERS_PORT}\"\n\
             [targets]\nlisten = \"{at}:{TARGETS_PORT}\"\n{}",
            self.file(&format!("data-{host}")).display(),
            self.file("password").display(),
            self.tls("tls", AUTHORITY, host),
        );
        if self.groups.len() > 1 {
            let max = self.groups.len();
            let _ = write!(
                text,
                "[groups]\nmax = {max}\nlisten = \"{at}:{GROUPS_PORT}\"\n\
                 tls_listen = \"{at}:{GROUPS_TLS_PORT}\"\n"
            );
        }
        text
    }

    /// Starts the process of a host.
    pub(super) fn start(&mut self, host: &str) -> Step {
        let command = if ETCD.contains(&host) {
            let mut command = self.network.command(host, &self.etcd);
            command.args(self.etcd_options(host));
            command
        } else {
            let role = if NODES.contains(&host) { "node" } else { "controller" };
            let mut command = self.network.command(host, &self.program);
            command.args([role, "--config"]).arg(self.file(&format!("{host}.toml")));
            command
        };
        let child = self.logged(host, command)?;
        self.running.insert(host.to_owned(), child);
        Ok(())
    }

    /// Starts a command whose output goes to a file of its own.
    fn logged(&self, name: &str, mut command: Command) -> Result<Child, String> {
        let failed = |error: std::io::Error| format!("{name}: {error}");
        let log = self.file(&format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log).map_err(failed)?;
        let errors = log.try_clone().map_err(failed)?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().map_err(failed)
    }

    fn etcd_options(&self, host: &str) -> Vec<String> {
        let url = |host: &str, port: u16| format!("https://{}:{port}", address(host));
        let (clients, peers) = (url(host, ETCD_PORT), url(host, ETCD_PEERS_PORT));
        let all = ETCD.map(|host| format!("{host}={}", url(host, ETCD_PEERS_PORT))).join(",");
        let mut options = vec![
            format!("--name={host}"),
            format!("--data-dir={}", self.file(&format!("data-{host}")).display()),
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster={all}"),
            "--log-level=error".to_owned(),
        ];
        let [certificate, key, ca] = [&format!("{host}.pem"), &format!("{host}.key"), "ca.pem"]
            .map(|file| self.issued(ETCD_AUTHORITY, file));
        for side in ["", "peer-"] {
            options.extend([
                format!("--{side}cert-file={certificate}"),
                format!("--{side}key-file={key}"),
                format!("--{side}trusted-ca-file={ca}"),
                format!("--{side}client-cert-auth"),
            ]);
        }
        options
    }

    /// `kill -9` of all processes of some hosts at once.
    pub(super) fn kill(&mut self, hosts: &[String]) -> Step {
        let pids = hosts.iter().map(|host| self.network.processes(host));
        let pids = pids.collect::<Result<Vec<_>, _>>()?.concat();
        output(Command::new("kill").arg("-9").args(pids))?;
        for host in hosts {
            let child = self.running.remove(host);
            let mut child = child.ok_or_else(|| format!("{host} does not run"))?;
            child.wait().map_err(|error| format!("{host}: {error}"))?;
        }
        Ok(())
    }

    /// `gabion group create`, as the documents have it. One group has two spares.
    pub(super) fn create_groups(&self) -> Step {
        let count = self.groups.len().to_string();
        let words = match self.groups.len() {
            1 => vec!["orders", "--nodes", "a,b,c", "--spares", "d,e"],
            _ => vec!["orders", "--groups", &count, "--replicas", "3", "--nodes", "a,b,c,d,e"],
        };
        print!("{}", self.command(&[&["group", "create"], &words[..]].concat())?);
        self.wait_whole()
    }

    /// The user of the clients, who may use keys with one beginning.
    pub(super) fn add_user(&self) -> Step {
        let (password, keys) = (format!(">{USER_PASSWORD}"), format!("~{PREFIX}*"));
        let acl = ["ACL", "SETUSER", USER, "on", &password, &keys, "+@all"];
        self.command(&[&["cli"][..], &acl].concat()).map(drop)
    }

    /// A command that asks no controller.
    fn gabion(&self, words: &[&str]) -> Result<String, String> {
        output(Command::new(&self.program).args(words))
    }

    /// A command to whichever controller leads. The other ones have closed their doors.
    fn ran(&self, words: &[&str]) -> Result<Output, String> {
        let mut refused = Vec::new();
        for host in CONTROLLERS {
            let controller = format!("{}:{CONTROLLER_PORT}", address(host));
            let identity = self.issued(AUTHORITY, "alice");
            let place = ["--controller", &controller, "--identity", &identity];
            let mut command = Command::new(&self.program);
            // Behind the words of a Redis command there are no options.
            match words {
                ["cli", rest @ ..] => command.arg("cli").args(place).args(rest),
                _ => command.args(words).args(place),
            };
            command.env("GABION_AUTH", PASSWORD).stdin(Stdio::null());
            let output = command.output().map_err(|error| format!("{words:?}: {error}"))?;
            let text = said(&output);
            if !text.contains("no controller answers") {
                return Ok(output);
            }
            refused.push(text);
        }
        Err(refused.concat())
    }

    /// The output of a command that is to succeed.
    fn command(&self, words: &[&str]) -> Result<String, String> {
        let output = self.ran(words)?;
        let text = said(&output);
        if output.status.success() { Ok(text) } else { Err(format!("{words:?}: {text}")) }
    }

    /// The answer of a command with `--json`.
    fn ask(&self, words: &[&str]) -> Result<Value, String> {
        let output = self.ran(words)?;
        serde_json::from_slice(&output.stdout).map_err(|_| format!("{words:?}: {}", said(&output)))
    }

    fn wait(&self, what: &str, holds: impl Fn(&Self) -> Result<bool, String>) -> Step {
        let begun = Instant::now();
        loop {
            let said = holds(self);
            if said == Ok(true) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                let why = said.err().unwrap_or_default();
                return Err(format!("never, in {} s: {what}; {why}", PATIENCE.as_secs()));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn states(&self) -> Result<Vec<Group>, String> {
        let listed = self.ask(&["group", "list", "--json"])?["groups"].take();
        let listed = listed.as_array().ok_or("group list --json")?;
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let group = |group: &Value| {
            let full = list(&group["full"]);
            let seats = list(&group["seats"]);
            let seats = seats.iter().filter(|seat| full.contains(&seat["replica"]));
            let node = |seat: &Value| seat["node"].as_str().unwrap_or("?").to_owned();
            Group {
                name: group["name"].as_str().unwrap_or("?").to_owned(),
                full: seats.map(node).collect(),
                is_complete: group["complete"] == true,
            }
        };
        Ok(listed.iter().map(group).collect())
    }

    /// Waits until each group has all its members.
    pub(super) fn wait_whole(&self) -> Step {
        self.wait("each group is whole", |place| {
            let states = place.states()?;
            let is_whole = |group: &Group| group.full.len() == REPLICAS && group.is_complete;
            let wrong = states.iter().find(|group| !is_whole(group));
            match wrong {
                Some(group) => Err(format!("{}: full on {:?}", group.name, group.full)),
                None => Ok(states.len() == place.groups.len()),
            }
        })
    }

    /// Waits until no group counts on a node.
    pub(super) fn wait_without(&self, node: &str) -> Step {
        self.wait(&format!("the groups go on without {node}"), |place| {
            let states = place.states()?;
            let counts = |group: &Group| group.full.iter().any(|it| it == node);
            Ok(!states.iter().any(|group| counts(group) || !group.is_complete))
        })
    }

    /// The groups, by their places, that have a member on a node.
    pub(super) fn groups_on(&self, node: &str) -> Result<Vec<usize>, String> {
        let states = self.states()?;
        let is_on = |group: &&Group| group.full.iter().any(|it| it == node);
        let places = states.iter().filter(is_on).map(|group| {
            let place = self.groups.iter().position(|name| *name == group.name);
            place.ok_or_else(|| format!("a group {} is there", group.name))
        });
        places.collect()
    }

    /// The node whose replica takes a group's writes.
    pub(super) fn writer_of(&self, group: usize) -> Result<String, String> {
        let told = self.ask(&["status", "--json", "--group", &self.groups[group]])?;
        let group = &told["group"];
        let seats = group["seats"].as_array().cloned().unwrap_or_default();
        let writer = seats.iter().find(|seat| seat["replica"] == group["writer"]);
        let node = writer.and_then(|seat| seat["node"].as_str());
        node.map(str::to_owned).ok_or_else(|| format!("status says no writer: {group}"))
    }

    /// The controller that answers, once one does.
    pub(super) fn leading_controller(&self) -> Result<String, String> {
        let leads = |host: &&&str| {
            let controller = format!("{}:{CONTROLLER_PORT}", address(host));
            let mut list = Command::new(&self.program);
            list.args(["node", "list", "--controller", &controller]);
            list.args(["--identity", &self.issued(AUTHORITY, "alice")]).stdin(Stdio::null());
            list.output().is_ok_and(|output| output.status.success())
        };
        let begun = Instant::now();
        loop {
            if let Some(host) = CONTROLLERS.iter().find(leads) {
                return Ok((*host).to_owned());
            }
            if begun.elapsed() > PATIENCE {
                return Err("no controller leads".into());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The member of etcd that leads.
    pub(super) fn leading_etcd(&self) -> Result<String, String> {
        let [ca, certificate, key] =
            ["ca.pem", "ctl-1.pem", "ctl-1.key"].map(|file| self.issued(ETCD_AUTHORITY, file));
        for host in ETCD {
            let url = format!("https://{}:{ETCD_PORT}/v3/maintenance/status", address(host));
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--show-error", "--max-time", "5", "--data", "{}", &url]);
            curl.args(["--cacert", &ca, "--cert", &certificate, "--key", &key]);
            let told = output(&mut curl)?;
            let told: Value = serde_json::from_str(&told).map_err(|_| format!("{url}: {told}"))?;
            if told["leader"] == told["header"]["member_id"] {
                return Ok(host.to_owned());
            }
        }
        Err("no member of etcd leads".into())
    }

    /// `gabion verify` of each group.
    pub(super) fn verify(&self) -> Step {
        for group in &self.groups {
            self.command(&["verify", "--group", group])?;
        }
        println!("── gabion verify finds the replicas of each group the same");
        Ok(())
    }

    /// The doors that clients are given, with TLS: of the one group, or of the first of several,
    /// where they learn of the others.
    pub(super) fn doors(&self) -> Vec<SocketAddr> {
        let port = if self.groups.len() == 1 { CLIENTS_TLS_PORT } else { GROUPS_TLS_PORT };
        NODES[..REPLICAS].iter().map(|node| (address(node), port).into()).collect()
    }

    /// The plain doors of a group, counted from 0, at the nodes of its members.
    pub(super) fn plain_doors(&self, group: usize) -> Result<Vec<SocketAddr>, String> {
        let is_one = self.groups.len() == 1;
        let port = if is_one { CLIENTS_PORT } else { GROUPS_PORT + group as u16 };
        let states = self.states()?;
        let name = &self.groups[group];
        let found = states.iter().find(|state| state.name == *name);
        let nodes = &found.ok_or_else(|| format!("there is no group {name}"))?.full;
        Ok(nodes.iter().map(|node| (address(node), port).into()).collect())
    }

    /// A connection of the operator to a door.
    pub(super) fn connect(&self, door: SocketAddr) -> Result<Client, String> {
        let mut client = Client::connect_to(door, PATIENCE)?;
        match client.call(&[b"AUTH", PASSWORD.as_bytes()])? {
            Reply::Simple(_) => Ok(client),
            other => Err(format!("AUTH at {door}: {other:?}")),
        }
    }

    /// The ends of all logs.
    pub(super) fn logs(&self) -> String {
        let mut text = String::new();
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "log"));
        paths.sort();
        for path in paths {
            let log = std::fs::read(&path).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(12)..].join("\n");
            let _ = write!(text, "── {}\n{tail}\n", path.display());
        }
        text
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for child in self.running.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Removes pools, rings and what etcd holds; files of options and logs of processes stay.
pub(super) fn remove_large(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => remove_large(&entry.path()),
            Ok(metadata) if metadata.len() > LARGE => drop(std::fs::remove_file(entry.path())),
            _ => {}
        }
    }
}
