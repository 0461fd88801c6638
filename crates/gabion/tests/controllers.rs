//! Two controllers over a real etcd, and nodes that ask whichever leads: `cargo xtask etcd` builds
//! one and runs this.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test with real processes: it waits, and fails where it stands"
)]

#[path = "support/logged.rs"]
mod logged;
#[path = "support/processes.rs"]
mod processes;

use gabion_tls::ca::{AUTHORITY_DAYS, Authority, DAYS};
use gabion_tls::{Identity, Role};
use logged::{Logged, has_all};
use processes::{Processes, node_file};
use rustix::process::{Pid, Signal, kill_process};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const NODES: [&str; 3] = ["d", "e", "f"];

/// An etcd of one member, controllers `a` and `b`, nodes.
struct Place {
    processes: Processes,
    /// Whether connections to etcd are encrypted.
    is_tls: bool,
}

impl Place {
    fn new(is_tls: bool) -> Self {
        let pid = std::process::id();
        let dir = format!("controllers-{pid}-{is_tls}");
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(dir);
        let mut place = Self { processes: Processes::new(dir), is_tls };
        let program = std::env::var("GABION_ETCD").expect("GABION_ETCD names etcd's program");
        let url = |port: u16| format!("http://{}", place.address("etcd", port));
        let (mut client, peer) = (url(2379), url(2380));
        let ca = place.processes.dir.join("ca");
        let mut of_tls = Vec::new();
        let (mut scheme, mut store_tls) = ("etcd", String::new());
        if is_tls {
            let file = |file: &str| ca.join(file).display().to_string();
            Authority::init(&ca, AUTHORITY_DAYS).unwrap();
            let authority = Authority::open(&ca).unwrap();
            let issue = |role, name, addresses: &[String]| {
                authority.issue(&Identity::new(role, name).unwrap(), addresses, DAYS).unwrap()
            };
            issue(Role::Node, "etcd", &[place.address("etcd", 0).ip().to_string()]);
            issue(Role::Controller, "ctl", &[]);
            client = client.replace("http", "https");
            of_tls = vec![
                format!("--cert-file={}", file("etcd.pem")),
                format!("--key-file={}", file("etcd.key")),
                format!("--trusted-ca-file={}", file("ca.pem")),
                "--client-cert-auth=true".to_owned(),
            ];
            scheme = "etcd+tls";
            store_tls = format!(
                "[store_tls]\nca = \"{}\"\ncertificate = \"{}\"\nkey = \"{}\"\n",
                file("ca.pem"),
                file("ctl.pem"),
                file("ctl.key")
            );
        }
        let data = place.processes.dir.join("etcd-data");
        let args = [
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--log-level=error".to_owned(),
        ];
        place.processes.start("etcd", Command::new(program).args(args).args(of_tls));
        for name in ["a", "b"] {
            let data = place.processes.dir.join(format!("data-{name}"));
            let text = format!(
                "data = \"{}\"\nlisten = \"{}\"\nstore = \"{scheme}://{}/test\"\n{store_tls}",
                data.display(),
                place.address(name, 7400),
                place.address("etcd", 2379)
            );
            place.processes.write(&format!("{name}.toml"), &text);
        }
        for name in NODES {
            let data = place.processes.dir.join(format!("data-{name}"));
            let controllers = ["a", "b"].map(|name| place.address(name, 7400));
            let text = node_file(name, &data, &controllers, place.address(name, 0).ip());
            place.processes.write(&format!("{name}.toml"), &text);
        }
        place
    }

    /// Each process has an address of its own, and each run others than those at the same time.
    fn address(&self, name: &str, port: u16) -> SocketAddr {
        let host = name.as_bytes()[0] + name.len() as u8;
        let third = 201 + u8::from(self.is_tls);
        ([127, 32 + (std::process::id() % 192) as u8, third, host], port).into()
    }

    fn gabion(&mut self, role: &str, name: &str) {
        self.processes.gabion(role, name);
    }

    fn kill(&mut self, name: &str) {
        self.processes.kill(name);
    }

    fn signal(&self, name: &str, signal: Signal) {
        let pid = Pid::from_child(&self.processes.running[name]);
        kill_process(pid, signal).unwrap();
    }

    /// A command to a controller, and its answer.
    fn ask(&self, controller: &str, words: &[&str]) -> Output {
        processes::ask(self.address(controller, 7400), words)
    }

    fn nodes_here(&self, controller: &str) -> usize {
        processes::nodes_here(self.address(controller, 7400))
    }

    /// The full members of the group, by a controller.
    fn full(&self, controller: &str) -> usize {
        let controller = self.address(controller, 7400);
        let listed = processes::json(controller, &["group", "list"])["groups"].take();
        listed[0]["full"].as_array().map_or(0, Vec::len)
    }

    /// How often a controller has said this.
    fn said(&self, name: &str, text: &str) -> usize {
        self.processes.log(name).matches(text).count()
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
    let mut place = Place::new(false);
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

/// docs/faults.md: R9
#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn controllers_reach_etcd_over_tls_with_certificates() {
    let mut place = Place::new(true);
    let config = place.processes.dir.join("a.toml");
    let check = || {
        let mut gabion = Command::new(processes::GABION);
        gabion.args(["controller", "--check", "--config"]).arg(&config).output().unwrap()
    };
    assert!(check().status.success(), "{}", String::from_utf8_lossy(&check().stderr));
    let key = place.processes.dir.join("ca").join("ctl.key");
    std::fs::rename(&key, key.with_extension("away")).unwrap();
    let refused = check();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said.contains("store_tls: cannot open") && said.contains("ctl.key"), "{said}");
    std::fs::rename(key.with_extension("away"), &key).unwrap();

    place.gabion("controller", "a");
    wait("a leads", || place.said("a", "ready: leads") == 1);
    place.gabion("controller", "b");
    wait("b stands by", || place.said("b", "stands by") == 1);
    NODES.iter().for_each(|node| place.gabion("node", node));
    wait("the nodes are here", || place.nodes_here("a") == NODES.len());
    place.kill("a");
    let after = wait("b leads", || place.said("b", "ready: leads") == 1);
    assert!(after < Duration::from_secs(6), "after {after:?}");
    wait("the nodes have found b", || place.nodes_here("b") == NODES.len());
}
