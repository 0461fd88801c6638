//! Commands that reach doors for clients over TLS, and doors that they refuse.

use super::{Place, said};
use gabion_tls::ca::{AUTHORITY_DAYS, Authority, DAYS};
use gabion_tls::{Identity, Role};
use std::path::{Path, PathBuf};
use std::process::Output;

fn authority(dir: &Path) -> Authority {
    Authority::init(dir, AUTHORITY_DAYS).unwrap();
    Authority::open(dir).unwrap()
}

fn issue(authority: &Authority, role: Role, name: &str, addresses: &[&str]) {
    let addresses: Vec<String> = addresses.iter().map(|it| (*it).to_owned()).collect();
    authority.issue(&Identity::new(role, name).unwrap(), &addresses, DAYS).unwrap();
}

/// A group whose first TLS door is 300 above its first plain one, and its authority.
struct Doors {
    place: Place,
    ca: PathBuf,
}

impl Doors {
    fn file(&self, name: &str) -> String {
        self.ca.join(name).display().to_string()
    }

    fn port(&self) -> String {
        (self.place.port + 300).to_string()
    }

    /// A command with these options, by the port of the first TLS door.
    fn run(&self, command: &[&str], options: &[&str], words: &[&str]) -> Output {
        self.run_at(&self.port(), command, options, words)
    }

    fn run_at(&self, port: &str, command: &[&str], options: &[&str], words: &[&str]) -> Output {
        let words = [command, options, &["--port", port], words].concat();
        std::process::Command::new(super::GABION).args(words).output().unwrap()
    }
}

impl Drop for Doors {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.ca);
    }
}

#[test]
fn commands_reach_doors_with_tls_and_take_no_others() {
    let place = Place::new("tls");
    let ca = place.data.with_extension("ca");
    let _ = std::fs::remove_dir_all(&ca);
    let doors = Doors { ca, place };
    let own = authority(&doors.ca);
    issue(&own, Role::Node, "doors", &["127.0.0.1"]);
    issue(&own, Role::Client, "ann", &[]);
    let file = |name: &str| doors.file(name);
    let up = doors.place.up(&[
        "--tls-port",
        &doors.port(),
        "--tls-cert",
        &file("doors.pem"),
        "--tls-key",
        &file("doors.key"),
        "--tls-ca",
        &file("ca.pem"),
    ]);
    let (cacert, cert, key) = (file("ca.pem"), file("ann.pem"), file("ann.key"));
    let tls = ["--tls", "--cacert", &*cacert, "--cert", &*cert, "--key", &*key];

    let output = doors.run(&["cli"], &tls, &["set", "k", "v"]);
    assert_eq!((output.status.code(), &*said(&output)), (Some(0), "OK\n"));
    assert_eq!(said(&doors.run(&["cli"], &tls, &["get", "k"])), "v\n");
    // More than rustls takes at once.
    let long = "x".repeat(100_000);
    assert_eq!(said(&doors.run(&["cli"], &tls, &["set", "long", &long])), "OK\n");
    assert_eq!(said(&doors.run(&["cli"], &tls, &["get", "long"])), format!("{long}\n"));
    let here = ["--host", "127.0.0.1"];
    assert_eq!(said(&doors.run(&["cli"], &[&tls[..], &here].concat(), &["get", "k"])), "v\n");

    let output = doors.run(&["status"], &tls, &[]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let rows = text.lines().filter(|line| line.starts_with(['1', '2', '3']));
    assert_eq!(rows.count(), 3, "{text}");
    let output = doors.run(&["status"], &[&tls[..], &here].concat(), &["--json"]);
    let one: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(one["replicas"].as_array().unwrap().len(), 1, "{one}");
    assert!(doors.run(&["top"], &tls, &["--once"]).status.success());
    let output = doors.run(&["verify"], &tls, &[]);
    assert!(output.status.success(), "{}", said(&output));
    let copies = doors.ca.join("copies").display().to_string();
    let output = doors.run(&["backup", &copies], &tls, &[]);
    assert!(output.status.success(), "{}", said(&output));

    refuses_others(&doors, &tls);
    drop(up);
}

/// Each wrong option, file or port ends a command with a sentence.
fn refuses_others(doors: &Doors, tls: &[&str]) {
    let others = doors.ca.join("others");
    issue(&authority(&others), Role::Client, "eve", &[]);
    let their = |name: &str| others.join(name).display().to_string();
    let (ca, eve, eves) = (their("ca.pem"), their("eve.pem"), their("eve.key"));
    let ann = &tls[3..];
    let get = ["get", "k"];
    let refused = |options: &[&str], parts: &[&str]| {
        let output = doors.run(&["cli"], options, &get);
        let line = said(&output);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert_eq!(line.trim_end().lines().count(), 1, "{line}");
        parts.iter().for_each(|part| assert!(line.contains(part), "{line}: {part}"));
    };
    refused(
        &[&["--tls", "--cacert", &ca], ann].concat(),
        &["no TLS: the certificate there is of no authority in", &ca],
    );
    let output = doors.run(&["status"], &[&["--tls", "--cacert", &ca], ann].concat(), &[]);
    assert!(said(&output).contains("of no authority in"), "{}", said(&output));
    refused(&tls[..3], &["a certificate is wanted there, and none is configured here"]);
    refused(
        &[&tls[..3], &["--cert", &eve, "--key", &eves]].concat(),
        &["eve.pem is not taken there"],
    );
    refused(
        &[tls, &["--host", "localhost"]].concat(),
        &["the certificate there is not for localhost, but for"],
    );
    let missing = their("none.pem");
    refused(&[&["--tls", "--cacert", &missing], ann].concat(), &["--tls: cannot open", &missing]);
    refused(&tls[..1], &["--cacert"]);
    refused(&tls[..5], &["--key"]);
    refused(&["--host", "127.0.0.1"], &["--tls"]);

    // The plain door, and no door at all.
    let plain = doors.place.port.to_string();
    let output = doors.run_at(&plain, &["cli"], tls, &get);
    assert!(said(&output).contains("no TLS is spoken there"), "{}", said(&output));
    let output = std::process::Command::new(super::GABION)
        .args([&["cli"], tls, &get[..]].concat())
        .output()
        .unwrap();
    assert!(said(&output).contains("--tls needs --port"), "{}", said(&output));
    let controller = ["--controller", "127.0.0.1:1"];
    let output = doors.run_at(&plain, &["cli"], &controller, &get);
    assert!(said(&output).contains("together they are for --tls"), "{}", said(&output));
}
