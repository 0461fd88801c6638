//! A controller with a status page and three nodes with certificates, on this machine alone.

use crate::cluster::{Client, Random, Reply, output, said};
use crate::steps::Step;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const NODES: [&str; 3] = ["a", "b", "c"];
const CONTROLLER_PORT: u16 = 7400;
pub(super) const PAGE_PORT: u16 = 7480;
/// Doors of the first node.
const CLIENTS_PORT: u16 = 6379;
const MEMBERS_PORT: u16 = 6479;
const TARGETS_PORT: u16 = 6579;
/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Place {
    dir: PathBuf,
    program: String,
    running: BTreeMap<String, Child>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.running.values_mut().for_each(|child| drop(child.kill()));
        self.running.values_mut().for_each(|child| drop(child.wait()));
    }
}

impl Place {
    /// Starts all, and makes a group.
    pub(super) fn make(dir: &Path, program: &str) -> Result<Self, String> {
        let mut place =
            Self { dir: dir.to_owned(), program: program.to_owned(), running: BTreeMap::new() };
        place.issue_certificates()?;
        place.write("controller", &place.controller_file())?;
        place.start("controller")?;
        for (node, number) in NODES.iter().zip(0..) {
            place.write(node, &place.node_file(node, number))?;
            place.start(node)?;
        }
        place.wait("all nodes are here", |place| {
            let listed = place.ask(&["node", "list"])?["nodes"].take();
            let nodes = listed.as_array().cloned().unwrap_or_default();
            Ok(nodes.iter().filter(|node| node["here"] == true).count() == NODES.len())
        })?;
        place.command(&["group", "create", "orders", "--nodes", "a,b,c"])?;
        place.wait_well()?;
        Ok(place)
    }

    fn issue_certificates(&self) -> Step {
        let ca = self.ca("");
        let gabion = |words: &[&str]| output(Command::new(&self.program).args(words)).map(drop);
        gabion(&["ca", "init", &ca])?;
        let issue =
            |name: &str, role: &str| gabion(&["ca", "issue", &ca, "--name", name, "--role", role]);
        issue("controller", "controller")?;
        issue("alice", "operator")?;
        NODES.iter().try_for_each(|node| issue(node, "node"))
    }

    /// A file of the authority.
    fn ca(&self, file: &str) -> String {
        self.dir.join("ca").join(file).display().to_string()
    }

    fn tls(&self, name: &str) -> String {
        let [certificate, key, ca] =
            [&format!("{name}.pem"), &format!("{name}.key"), "ca.pem"].map(|file| self.ca(file));
        format!("[tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\nca = \"{ca}\"\n")
    }

    pub(super) fn data(&self, name: &str) -> PathBuf {
        self.dir.join(format!("data-{name}"))
    }

    fn config(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.toml"))
    }

    fn write(&self, name: &str, text: &str) -> Step {
        let path = self.config(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn controller_file(&self) -> String {
        format!(
            "data = \"{}\"\nlisten = \"127.0.0.1:{CONTROLLER_PORT}\"\n\
             page.listen = \"127.0.0.1:{PAGE_PORT}\"\n{}",
            self.data("controller").display(),
            self.tls("controller")
        )
    }

    fn node_file(&self, node: &str, number: u16) -> String {
        let door = |port: u16| format!("127.0.0.1:{}", port + number);
        format!(
            "name = \"{node}\"\ndata = \"{}\"\ncontrollers = [\"127.0.0.1:{CONTROLLER_PORT}\"]\n\
             pool_size = \"256MiB\"\nclients.listen = \"{}\"\nmembers.listen = \"{}\"\n\
             targets.listen = \"{}\"\n{}",
            self.data(node).display(),
            door(CLIENTS_PORT),
            door(MEMBERS_PORT),
            door(TARGETS_PORT),
            self.tls(node)
        )
    }

    /// Starts the controller or a node.
    pub(super) fn start(&mut self, name: &str) -> Step {
        let failed = |error: std::io::Error| format!("{name}: {error}");
        let log = self.dir.join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log).map_err(failed)?;
        let errors = log.try_clone().map_err(failed)?;
        let role = if name == "controller" { "controller" } else { "node" };
        let mut command = Command::new(&self.program);
        command.args([role, "--config"]).arg(self.config(name)).stdin(Stdio::null());
        let child = command.stdout(log).stderr(errors).spawn().map_err(failed)?;
        self.running.insert(name.to_owned(), child);
        Ok(())
    }

    /// `kill -9` of a node; its replica's process ends with it.
    pub(super) fn kill(&mut self, name: &str) -> Step {
        let child = self.running.remove(name);
        let mut child = child.ok_or_else(|| format!("{name} does not run"))?;
        let ended = child.kill().and_then(|()| child.wait());
        ended.map(drop).map_err(|error| format!("{name}: {error}"))
    }

    /// Makes the certificate of a node anew, where it is read: one for a year, or one that ended
    /// yesterday.
    pub(super) fn renew(&self, node: &str, is_expired: bool) -> Step {
        let ca = self.ca("");
        let renew = ["ca", "renew", &ca, "--name", node];
        let mut command = match is_expired {
            true => Command::new("faketime"),
            false => Command::new(&self.program),
        };
        if is_expired {
            command.args(["-f", "-31d", &self.program]);
        }
        command.args(renew);
        if is_expired {
            command.args(["--days", "30"]);
        }
        output(&mut command).map(drop)
    }

    /// The process of a node's replica.
    pub(super) fn pid_of(&self, node: &str) -> Result<String, String> {
        let status = self.ask(&["status"])?;
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let seats = list(&status["group"]["seats"]);
        let seat = seats.iter().find(|seat| seat["node"] == node);
        let replica = seat.ok_or_else(|| format!("no replica on {node}"))?["replica"].clone();
        let replicas = list(&status["replicas"]);
        let found = replicas.iter().find(|it| it["replica"] == replica).map(|it| &it["pid"]);
        found.map(Value::to_string).ok_or_else(|| format!("{node}: {status}"))
    }

    /// Writes until the group refuses them for lack of room.
    pub(super) fn fill(&self, len: usize, most: u64) -> Step {
        let mut client = Client::connect(CLIENTS_PORT, PATIENCE)?;
        let mut random = Random(7);
        for number in 0..most {
            let value: Vec<u8> = (0..len / 8).flat_map(|_| random.next().to_le_bytes()).collect();
            let key = format!("large:{number}");
            if let Reply::Error(refused) = client.call(&[b"SET", key.as_bytes(), &value])? {
                println!("   {number} values of {len} bytes: {refused}");
                return Ok(());
            }
        }
        Err(format!("{most} values of {len} bytes were taken"))
    }

    /// Removes all keys.
    pub(super) fn empty(&self) -> Step {
        let mut client = Client::connect(CLIENTS_PORT, PATIENCE)?;
        match client.call(&[b"FLUSHALL"])? {
            Reply::Error(refused) => Err(format!("FLUSHALL: {refused}")),
            _ => Ok(()),
        }
    }

    fn ran(&self, words: &[&str]) -> Result<Output, String> {
        let controller = format!("127.0.0.1:{CONTROLLER_PORT}");
        let mut command = Command::new(&self.program);
        command.args(words).args(["--controller", &controller, "--identity", &self.ca("alice")]);
        let output = command.stdin(Stdio::null()).output();
        output.map_err(|error| format!("{words:?}: {error}"))
    }

    fn command(&self, words: &[&str]) -> Step {
        let output = self.ran(words)?;
        if output.status.success() { Ok(()) } else { Err(format!("{words:?}: {}", said(&output))) }
    }

    /// The answer with `--json`.
    fn ask(&self, words: &[&str]) -> Result<Value, String> {
        let output = self.ran(&[words, &["--json"]].concat())?;
        serde_json::from_slice(&output.stdout).map_err(|_| format!("{words:?}: {}", said(&output)))
    }

    fn wait(&self, what: &str, holds: impl Fn(&Self) -> Result<bool, String>) -> Step {
        let begun = Instant::now();
        loop {
            let found = holds(self);
            if found == Ok(true) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                let why = found.err().unwrap_or_default();
                return Err(format!("never, in {} s: {what}; {why}", PATIENCE.as_secs()));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until the page's first sentence has these words. Returns that, and its advice.
    pub(super) fn wait_told(&self, words: &[&str]) -> Result<(String, String), String> {
        let has_all = |text: &str| words.iter().all(|word| text.contains(word));
        let first = || {
            let problems = problems()?;
            let text = |name: &str| {
                let first = problems.first().map(|it| it[name].as_str().unwrap_or_default());
                first.unwrap_or_default().to_owned()
            };
            Ok::<_, String>((text("text"), text("advice")))
        };
        self.wait(&format!("the page says {words:?}"), |_| {
            let (text, _) = first()?;
            if has_all(&text) { Ok(true) } else { Err(format!("it says '{text}'")) }
        })?;
        first()
    }

    /// Waits until the page says that all is well, and `status` says it with its exit code.
    pub(super) fn wait_well(&self) -> Step {
        self.wait("all is well", |place| match problems()?.first() {
            Some(problem) => Err(problem["text"].to_string()),
            None => {
                let output = place.ran(&["status"])?;
                if output.status.success() { Ok(true) } else { Err(said(&output)) }
            }
        })
    }

    /// Checks that `status` and `top` begin their sentences with this one, times aside.
    pub(super) fn agree(&self, text: &str) -> Step {
        let without_times = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
        let wanted = without_times(&format!("! {text}"));
        for words in [&["status"][..], &["top", "--once"]] {
            let said = said(&self.ran(words)?);
            let first = said.lines().find(|line| line.starts_with("! "));
            if first.map(without_times).as_ref() != Some(&wanted) {
                return Err(format!("{words:?} does not say first '{text}':\n{said}"));
            }
        }
        Ok(())
    }

    /// Checks a line of `gabion doctor` on a node.
    pub(super) fn doctor_says(&self, node: &str, start: &str, words: &str) -> Step {
        let mut command = Command::new(&self.program);
        let output = command.args(["doctor", "--config"]).arg(self.config(node)).output();
        let said = said(&output.map_err(|error| format!("doctor: {error}"))?);
        let is_told = |line: &str| line.starts_with(start) && line.contains(words);
        match said.lines().any(is_told) {
            true => Ok(()),
            false => Err(format!("doctor does not say '{start} … {words}':\n{said}")),
        }
    }

    /// The ends of all logs.
    pub(super) fn logs(&self) -> String {
        let names = NODES.iter().chain(&["controller"]);
        let log = |name: &&str| {
            let path = self.dir.join(format!("{name}.log"));
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("── {name}\n{}\n", lines[lines.len().saturating_sub(20)..].join("\n"))
        };
        names.map(log).collect()
    }
}

/// The problems on the status page, in its order.
fn problems() -> Result<Vec<Value>, String> {
    let failed = |error: std::io::Error| format!("the status page: {error}");
    let mut stream = TcpStream::connect(("127.0.0.1", PAGE_PORT)).map_err(failed)?;
    let request = format!("GET /status.json HTTP/1.1\r\nHost: 127.0.0.1:{PAGE_PORT}\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(failed)?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let told: Value = serde_json::from_str(body).map_err(|error| format!("{error}: {text}"))?;
    let groups = told["groups"].as_array().map_or(&[][..], Vec::as_slice);
    let lists = groups.iter().map(|group| &group["problems"]).chain([&told["problems"]]);
    Ok(lists.filter_map(Value::as_array).flatten().cloned().collect())
}
