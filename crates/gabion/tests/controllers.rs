//! Two controllers over a real etcd, and nodes that ask whichever leads: `cargo xtask etcd` builds
//! one and runs this.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test with real processes: it waits, and fails where it stands"
)]

#[path = "support/logged.rs"]
mod logged;

use logged::{Logged, has_all};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const GABION: &str = env!("CARGO_BIN_EXE_gabion");
const PATIENCE: Duration = Duration::from_secs(60);
const NODES: [&str; 3] = ["d", "e", "f"];

/// An etcd of one member, controllers `a` and `b`, nodes; all are gone at the end.
struct Place {
    dir: PathBuf,
    running: BTreeMap<String, Child>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.running.values_mut().for_each(|child| drop(child.kill()));
        self.running.values_mut().for_each(|child| drop(child.wait()));
        if std::thread::panicking() {
            for name in self.running.keys() {
                eprintln!("── {name}\n{}", self.log(name));
            }
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Place {
    fn new() -> Self {
        let pid = std::process::id();
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("controllers-{pid}"));
        std::fs::create_dir_all(&dir).unwrap();
        let mut place = Self { dir, running: BTreeMap::new() };
        let program = std::env::var("GABION_ETCD").expect("GABION_ETCD names etcd's program");
        let url = |port: u16| format!("http://{}", place.address("etcd", port));
        let (client, peer) = (url(2379), url(2380));
        let data = place.dir.join("etcd-data");
        let args = [
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--log-level=error".to_owned(),
        ];
        place.start("etcd", Command::new(program).args(args));
        for name in ["a", "b"] {
            let data = place.dir.join(format!("data-{name}"));
            place.write(
                name,
                &format!(
                    "data = \"{}\"\nlisten = \"{}\"\nstore = \"etcd://{}/test\"\n",
                    data.display(),
                    place.address(name, 7400),
                    place.address("etcd", 2379)
                ),
            );
        }
        for name in NODES {
            let data = place.dir.join(format!("data-{name}"));
            let at = |port| place.address(name, port);
            place.write(
                name,
                &format!(
                    "name = \"{name}\"\ndata = \"{}\"\ncontrollers = [\"{}\", \"{}\"]\n\
                     pool_size = \"256MiB\"\nclients.listen = \"{}\"\nmembers.listen = \"{}\"\n\
                     targets.listen = \"{}\"\n",
                    data.display(),
                    place.address("a", 7400),
                    place.address("b", 7400),
                    at(6379),
                    at(6479),
                    at(6579)
                ),
            );
        }
        place
    }

    /// Each process has an address of its own, and each run others than those at the same time.
    fn address(&self, name: &str, port: u16) -> SocketAddr {
        let host = name.as_bytes()[0] + name.len() as u8;
        ([127, 32 + (std::process::id() % 192) as u8, 201, host], port).into()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.join(format!("{name}.toml")), text).unwrap();
    }

    fn start(&mut self, name: &str, command: &mut Command) {
        let log = self.dir.join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let command = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.running.insert(name.to_owned(), command.spawn().unwrap());
    }

    fn gabion(&mut self, role: &str, name: &str) {
        let config = self.dir.join(format!("{name}.toml"));
        self.start(name, Command::new(GABION).arg(role).arg("--config").arg(config));
    }

    fn kill(&mut self, name: &str) {
        let mut child = self.running.remove(name).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn signal(&self, name: &str, signal: Signal) {
        let pid = Pid::from_raw(self.running[name].id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.join(format!("{name}.log"))).unwrap_or_default()
    }

    /// A command to a controller, and its answer.
    fn ask(&self, controller: &str, words: &[&str]) -> Output {
        let address = self.address(controller, 7400).to_string();
        let mut command = Command::new(GABION);
        command.args(words).args(["--controller", &address]).stdin(Stdio::null());
        command.output().unwrap()
    }

    fn json(&self, controller: &str, words: &[&str]) -> Value {
        let output = self.ask(controller, &[words, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// How many nodes a controller hears.
    fn nodes_here(&self, controller: &str) -> usize {
        let listed = self.json(controller, &["node", "list"])["nodes"].take();
        let listed = listed.as_array().cloned().unwrap_or_default();
        listed.iter().filter(|node| node["here"] == true).count()
    }

    /// The full members of the group, by a controller.
    fn full(&self, controller: &str) -> usize {
        let listed = self.json(controller, &["group", "list"])["groups"].take();
        listed[0]["full"].as_array().map_or(0, Vec::len)
    }

    /// How often a controller has said this.
    fn said(&self, name: &str, text: &str) -> usize {
        self.log(name).matches(text).count()
    }
}

fn wait(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    begun.elapsed()
}

/// docs/faults.md: R8, R9
#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn of_two_controllers_on_etcd_one_leads_through_the_loss_of_either() {
    let mut place = Place::new();
    place.gabion("controller", "a");
    wait("a leads", || place.said("a", "ready: leads") == 1);
    place.gabion("controller", "b");
    wait("b stands by", || place.said("b", "stands by") == 1);
    assert_eq!(place.ask("b", &["node", "list"]).status.code(), Some(2), "its door is closed");
    NODES.iter().for_each(|node| place.gabion("node", node));
    wait("the nodes are here", || place.nodes_here("a") == NODES.len());
    let made = place.ask("a", &["group", "create", "orders", "--nodes", "d,e,f"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let load = Logged::start(place.address("e", 6379));
    load.goes_on();

    // The leader stands still for longer than its lease; meanwhile a node is lost.
    place.signal("a", Signal::STOP);
    let after = wait("b leads", || place.said("b", "ready: leads") == 1);
    assert!(after < Duration::from_secs(6), "after {after:?}");
    wait("the nodes have found b", || place.nodes_here("b") == NODES.len());
    place.kill("f");
    wait("b leaves it out", || place.full("b") == 2);
    load.goes_on();
    place.signal("a", Signal::CONT);
    wait("a knows that it leads no more", || place.said("a", "leads no more") == 1);
    wait("a stands by", || place.said("a", "stands by") == 1);
    place.gabion("node", "f");
    wait("the node is filled", || place.full("b") == 3);

    // The leader is killed, then the other one is told to end.
    place.kill("b");
    let after = wait("a leads again", || place.said("a", "ready: leads") == 2);
    assert!(after < Duration::from_secs(6), "after {after:?}");
    place.gabion("controller", "b");
    wait("b stands by again", || place.said("b", "stands by") == 2);
    place.signal("a", Signal::TERM);
    let after = wait("b leads at once", || place.said("b", "ready: leads") == 2);
    assert!(after < Duration::from_millis(2_500), "after {after:?}");
    wait("the group is whole", || place.full("b") == 3);
    load.goes_on();

    // etcd is gone for longer than a lease: nobody leads, and clients do not care.
    place.signal("etcd", Signal::STOP);
    wait("b leads no more", || place.said("b", "leads no more") == 1);
    load.goes_on();
    place.signal("etcd", Signal::CONT);
    wait("b leads again", || place.said("b", "ready: leads") == 3);
    wait("the group is looked after", || place.full("b") == 3);
    load.goes_on();
    has_all(place.address("d", 6379), &load.end());
}
