//! Everything over TLS, as between machines: the sockets by which memory is shared are taken away.

use super::{GABION, Process, text};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory with an authority, and what it issued.
struct Authority(PathBuf);

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Authority {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("gabion-sealed-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let authority = Self(dir);
        authority.ca(&["init"], &[]);
        let issued = [("c", "controller"), ("test", "client"), ("other", "client")];
        let nodes = [("n0", "node"), ("n1", "node"), ("n2", "node"), ("alice", "operator")];
        for (name, role) in issued.into_iter().chain(nodes) {
            authority.ca(&["issue"], &["--name", name, "--role", role]);
        }
        authority
    }

    fn ca(&self, words: &[&str], options: &[&str]) {
        let mut command = Command::new(GABION);
        let made = command.arg("ca").args(words).arg(self.0.join("ca")).args(options).output();
        let made = made.unwrap();
        assert!(made.status.success(), "{}", text(&made.stderr));
    }

    fn identity(&self, name: &str) -> String {
        format!("--identity={}", self.0.join("ca").join(name).display())
    }

    /// A process that listens, and its address.
    fn serve(&self, words: &[&str], name: &str) -> (Process, String) {
        let directory = self.0.join(name);
        let mut command = Command::new(GABION);
        command.arg("ncl").args(words).args(["--listen", "127.0.0.1:0"]).arg(self.identity(name));
        let mut process = Process::start(command.arg("--directory").arg(&directory));
        let address = loop {
            let line = process.line();
            assert!(!line.is_empty(), "{name} ended before it listened");
            if let Some(address) = line.trim().strip_prefix("TLS ") {
                break address.to_owned();
            }
        };
        (process, address)
    }
}

fn ask(words: &[&str], controller: &str, identity: &str) -> Output {
    let command = &mut Command::new(GABION);
    command.arg("ncl").args(words).args(["--controller", controller, identity]).output().unwrap()
}

/// A program at peers that it reaches by TLS alone; its exit code and what it said.
fn run(place: &Path, controller: &str, identity: &str, script: &str) -> Output {
    let mut command = Command::new(GABION);
    command.args(["ncl", "run", "--app", "test", "--match", "*.log", "--take-over"]);
    command.args(["--controller", controller, identity, "--", "sh", "-c", script]);
    command.current_dir(place).output().unwrap()
}

/// docs/faults.md: N13
#[test]
fn a_program_whose_machine_is_lost_goes_on_elsewhere_over_tls_and_no_other_has_its_files() {
    let authority = Authority::new();
    let (_controller, at) = authority.serve(&["controller"], "c");
    let mut peers = Vec::new();
    for name in ["n0", "n1", "n2"] {
        let words = ["peer", "--memory", "64MiB", "--ready", "4MiB", "--controller", &at];
        let (mut peer, address) = authority.serve(&words, name);
        peer.until("registered");
        std::fs::remove_file(authority.0.join(name).join("socket")).unwrap();
        peers.push((peer, address));
    }
    let places = ["one", "two"].map(|name| authority.0.join(name));
    places.iter().for_each(|place| std::fs::create_dir(place).unwrap());

    let own = authority.identity("test");
    let script = "for i in 1 2 3 4 5; do echo $i >> a.log; done; sync; kill -9 $$";
    let first = run(&places[0], &at, &own, script);
    assert_eq!(first.status.code(), Some(137), "{}", text(&first.stderr));
    let second = run(&places[1], &at, &own, "cat a.log");
    assert_eq!(text(&second.stdout), "1\n2\n3\n4\n5\n", "{}", text(&second.stderr));
    assert!(text(&second.stderr).contains("0 of them on this machine"), "{}", text(&second.stderr));

    // Others by certificate: an operator may, another application may not, nobody may not.
    let cat = ["cat", "--app", "test", "a.log"];
    let operator = authority.identity("alice");
    assert_eq!(text(&ask(&cat, &at, &operator).stdout), "1\n2\n3\n4\n5\n");
    let refused = ask(&cat, &at, &authority.identity("other"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("client other"), "{}", text(&refused.stderr));
    let mut unknown = Command::new(GABION);
    unknown.args(["ncl", "ls", "--app", "test", "--controller", &at]);
    assert_eq!(unknown.env_remove("GABION_IDENTITY").output().unwrap().status.code(), Some(2));

    let status = ask(&["status", "--json"], &at, &operator);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let reached = status["peers"].as_array().unwrap().iter();
    assert_eq!(reached.filter(|peer| peer["reachable"] == true).count(), 3, "{status}");
    let report = Command::new(GABION)
        .args(["ncl", "status", "--json", "--connect", &peers[0].1, &operator])
        .output()
        .unwrap();
    assert!(text(&report.stdout).contains("\"owner\": \"test\""), "{}", text(&report.stderr));
}
