//! `gabion ncl peer` and `gabion ncl status`: a log peer as a process of its own.

use super::scrape::{free_port, scrape, sum};
use super::{GABION, PATIENCE};
use gabion_base::{ErrorKind, Term};
use gabion_fabric::remote::{LinkAddress, PeerLink, write_chain};
use gabion_media::remote::message::{Parts, Regions};
use gabion_media::remote::{
    ClientConfig, ClientId, ConnectionGeneration, Incarnation, Key, Notice, Part, RegionId, Reply,
    Request,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

const TERM: Term = Term(1);

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("gabion-ncl-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }

    fn socket(&self) -> LinkAddress {
        LinkAddress::Unix(self.0.join("socket"))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A peer's process, past its first lines.
struct Peer {
    child: Child,
    out: BufReader<ChildStdout>,
    tcp: LinkAddress,
}

impl Peer {
    fn start(dir: &Dir, words: &[&str]) -> Self {
        let mut child = peer(&dir.0, words).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut lines = [(); 3].map(|()| String::new());
        for line in &mut lines {
            out.read_line(line).unwrap();
        }
        let tcp = lines[2].trim().strip_prefix("TCP ").unwrap_or_else(|| panic!("{lines:?}"));
        Self { child, out, tcp: LinkAddress::Tcp(tcp.parse().unwrap()) }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its last words, and its exit code.
    fn end(mut self) -> (String, Option<i32>) {
        let mut text = String::new();
        self.out.read_to_string(&mut text).unwrap();
        (text, self.child.wait().unwrap().code())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn peer(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(GABION);
    command.args(["ncl", "peer", "--directory"]).arg(dir).args(words).stdin(Stdio::null());
    command
}

fn refused(dir: &Dir, words: &[&str]) -> String {
    let Output { status, stderr, .. } = peer(&dir.0, words).output().unwrap();
    assert_eq!(status.code(), Some(2), "{words:?}");
    String::from_utf8(stderr).unwrap()
}

fn link(address: &LinkAddress, client: u64) -> PeerLink {
    let config = ClientConfig::new(ClientId(client), ConnectionGeneration(1));
    PeerLink::connect(address.clone(), config).unwrap()
}

fn lend(link: &mut PeerLink) -> (RegionId, Key) {
    let request =
        Request::Lend { owner: "app", label: b"log", epoch: 1, term: TERM, bytes: 1 << 20 };
    match link.call(&request).unwrap() {
        Reply::Lent { region, key, .. } => (region, key),
        other => panic!("{other:?} is no region"),
    }
}

fn status(words: &[&str], dir: &Dir) -> String {
    let mut command = Command::new(GABION);
    command.args(["ncl", "status", "--directory"]).arg(&dir.0).args(words);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

const SERVED: [&str; 6] =
    ["--memory", "64MiB", "--listen", "127.0.0.1:0", "--failure-domain", "rack1"];

/// docs/faults.md: N1
#[test]
fn a_peer_lends_its_memory_and_after_a_kill_is_another_run_without_regions() {
    let dir = Dir::new("runs");
    let port = free_port();
    let metrics = format!("127.0.0.1:{port}");
    let peer = Peer::start(&dir, &[&SERVED[..], &["--metrics", &metrics]].concat());
    let mut unix = link(&dir.socket(), 1);
    let (region, key) = lend(&mut unix);
    let shared = unix.map(region, key, TERM).unwrap();
    write_chain(&[(&shared, 4096, b"data"), (&shared, 0, &1u64.to_le_bytes())]).unwrap();
    let mut tcp = link(&peer.tcp, 2);
    assert_eq!((tcp.peer(), tcp.incarnation()), (unix.peer(), Incarnation(1)));
    let read = Request::Read { region, key, term: TERM, offset: 4096, len: 4 };
    assert_eq!(tcp.call(&read).unwrap(), Reply::Bytes(b"data".to_vec()));
    let parts = [Part { region, key, offset: 0, data: b"late" }];
    let late = Request::Write { term: Term(0), parts: Parts::Given(&parts) };
    assert!(matches!(tcp.call(&late).unwrap(), Reply::Refused(_)), "a term of before");
    let page = scrape(port);
    for (name, labels, wanted) in [
        ("gabion_ncl_peer_requests_total", &["request=\"read\""][..], 1.0),
        ("gabion_ncl_peer_data_bytes_total", &["request=\"read\""], 4.0),
        ("gabion_ncl_peer_refusals_total", &["request=\"write\"", "reason=\"old_term\""], 1.0),
        ("gabion_ncl_peer_refusals_total", &[], 1.0),
        ("gabion_ncl_peer_connections", &["over=\"tcp\""], 1.0),
        ("gabion_ncl_peer_regions", &["state=\"unpublished\""], 1.0),
        ("gabion_ncl_peer_regions_mapped", &[], 1.0),
        ("gabion_ncl_peer_incarnation", &[], 1.0),
        ("gabion_ncl_peer_info", &["failure_domain=\"rack1\""], 1.0),
    ] {
        assert_eq!(sum(&page, name, labels), wanted, "{name} with {labels:?} in\n{page}");
    }

    let value: Value = serde_json::from_str(&status(&["--json"], &dir)).unwrap();
    assert_eq!(value["peer"], unix.peer().to_string());
    assert_eq!(value["failure_domain"], "rack1");
    assert_eq!(value["memory"]["lent"], 1 << 20);
    assert_eq!(value["owners"][0]["owner"], "app");
    assert!(status(&[], &dir).contains("app: term 1, 1 region (0 published), 1.0 MiB"));
    assert!(refused(&dir, &["--memory", "1MiB"]).contains("lock"), "one process, one peer");

    peer.signal(Signal::KILL);
    drop(peer);
    let error = unix.call(&Request::Usage).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Io), "{error}");
    let _again = Peer::start(&dir, &SERVED);
    let mut again = link(&dir.socket(), 1);
    assert_eq!((again.peer(), again.incarnation()), (unix.peer(), Incarnation(2)));
    let fence = Request::Fence { owner: "app", term: Term(2) };
    let Reply::Regions { regions, .. } = again.call(&fence).unwrap() else { panic!("no list") };
    assert_eq!(regions, []);
    assert!(matches!(again.call(&read).unwrap(), Reply::Refused(_)), "its regions are gone");
}

#[test]
fn sigterm_drains_a_peer_which_ends_once_its_regions_are_given_back() {
    let dir = Dir::new("drain");
    let peer = Peer::start(&dir, &SERVED);
    let mut link = link(&peer.tcp, 1);
    let (region, _) = lend(&mut link);
    peer.signal(Signal::TERM);
    let until = Instant::now() + PATIENCE;
    while link.poll_notice() != Some(Notice::Draining) {
        assert!(Instant::now() < until, "the peer tells that it drains");
        link.wait(Duration::from_millis(100)).unwrap();
    }
    let lend = Request::Lend { owner: "app", label: b"", epoch: 1, term: TERM, bytes: 1 };
    assert!(matches!(link.call(&lend).unwrap(), Reply::Refused(_)), "it lends no more");
    let regions = [region];
    let free = Request::Free { owner: "app", term: TERM, regions: Regions::Given(&regions) };
    assert_eq!(link.call(&free).unwrap(), Reply::Freed { bytes: 1 << 20 });
    let (text, code) = peer.end();
    assert!(text.ends_with("all regions were given back\n"), "{text}");
    assert_eq!(code, Some(0));
    assert!(!dir.0.join("socket").exists(), "its socket is gone");
}

#[test]
fn a_second_signal_ends_a_drain_and_says_what_is_lost() {
    let dir = Dir::new("second");
    let peer = Peer::start(&dir, &SERVED);
    let mut link = link(&peer.tcp, 1);
    lend(&mut link);
    peer.signal(Signal::TERM);
    let until = Instant::now() + PATIENCE;
    while link.poll_notice() != Some(Notice::Draining) {
        assert!(Instant::now() < until, "the peer tells that it drains");
        link.wait(Duration::from_millis(100)).unwrap();
    }
    peer.signal(Signal::TERM);
    let (text, code) = peer.end();
    assert!(text.ends_with("1 region with 1.0 MiB: lost\n"), "{text}");
    assert_eq!(code, Some(0));
}

#[test]
fn options_that_cannot_be_are_refused_with_name_value_and_limit() {
    let dir = Dir::new("options");
    for (words, message) in [
        (&["--memory", "4096"][..], "--memory 4096: 1MiB or more is valid"),
        (&["--memory", "1MiB", "--listen", "0.0.0.0:0"], "it takes --identity or --token-file"),
        (&["--memory", "900TiB"], "this machine has"),
        (&["--memory", "1MiB", "--regions", "0"], "--regions"),
        (&["--memory", "1MiB", "--metrics", "0.0.0.0:6690"], "an address of loopback"),
        (&["--memory", "1MiB", "--token-file", "/dev/null"], "a token of 0 bytes, 1 to 1024"),
    ] {
        let error = refused(&dir, words);
        assert!(error.contains(message), "{words:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    assert!(!dir.0.exists(), "nothing is made for options that are refused");
}
