//! Replicas as processes of their own: this test binary, run again as a replica.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests"
)]

pub mod unprivileged;

use bytes::BytesMut;
use gabion_base::units::MIB;
use gabion_base::{GroupId, ReplicaId};
use gabion_engine::TreeConfig;
use gabion_engine::cache::OPEN_FILES_LEN;
use gabion_node::{AckLevel, CompactionMode, GroupConfig, NodeOptions};
use gabion_resp::{Protocol, Reply, ReplyParser, encode_request};
use gabion_server::{
    BackendChoice, ExitReason, Home, INPUT_BYTES, PeerAddress, SecurityConfig, ServerConfig,
    create_replica, exit_code, run,
};
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Set for the processes that are replicas: directory, id, ports.
const ROLE: &str = "GABION_TEST_REPLICA";
/// Set for those of them with another limit of requests that wait.
pub const INPUT_BYTES_OF: &str = "GABION_TEST_INPUT_BYTES";
/// The name of the test that becomes a replica.
const ENTRY: &str = "entry_of_a_replica";
/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Becomes a replica if this process is meant to be one.
pub fn become_replica() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split('|').collect();
    let [dir, id, ports] = words[..] else { panic!("{role}") };
    let ports: Vec<u16> = ports.split(',').map(|port| port.parse().unwrap()).collect();
    let result = run(config(Path::new(dir), id.parse().unwrap(), &ports));
    match &result {
        Ok(ExitReason::Signal) => {}
        Ok(ExitReason::Failed(error) | ExitReason::Damaged { error, .. }) | Err(error) => {
            eprintln!("{error}")
        }
    }
    std::process::exit(i32::from(exit_code(&result)));
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Three ports for each replica.
pub fn config(dir: &Path, id: u32, ports: &[u16]) -> ServerConfig {
    let port = |id: u32, door: usize| address(ports[(id as usize - 1) * 3 + door]);
    let count = ports.len() as u32 / 3;
    ServerConfig {
        spread: None,
        group: GroupId(7),
        replica: ReplicaId(id),
        data: dir.join(id.to_string()),
        resp: port(id, 0),
        peer_listen: port(id, 1),
        target_listen: port(id, 2),
        home: Home::default(),
        metrics: None,
        peers: (1..=count)
            .filter(|peer| *peer != id)
            .map(|peer| PeerAddress {
                replica: ReplicaId(peer),
                peer: port(peer, 1),
                target: port(peer, 2),
                resp: port(peer, 0),
            })
            .collect(),
        io: BackendChoice::Auto,
        block_cache_bytes: 4 << 20,
        open_files_bytes: OPEN_FILES_LEN,
        client_input_bytes: match std::env::var(INPUT_BYTES_OF) {
            Ok(bytes) => bytes.parse().unwrap(),
            Err(_) => INPUT_BYTES,
        },
        jobs_nice: 0,
        security: SecurityConfig::default(),
        node: NodeOptions { timeout_ms: 1_000, ..NodeOptions::default() },
    }
}

pub fn group_config(count: u32, ack: AckLevel) -> GroupConfig {
    GroupConfig {
        group: GroupId(7),
        founders: (1..=count).map(ReplicaId).collect(),
        compaction: CompactionMode::Primary,
        ack,
        ring_len: 64 * MIB,
        segment_len: 16 * MIB,
        tree: TreeConfig {
            memtable_len: MIB,
            sst_len: 2 * MIB,
            level1_len: 4 * MIB,
            ..TreeConfig::default()
        },
    }
}

/// Ports that nobody listens on, below those that the system gives to connections: a replica that
/// is down must find its own again.
fn free_ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 12_000 + (std::process::id() % 1000) as u16 * 20;
    let mut ports = Vec::new();
    while ports.len() < count {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed);
        if TcpListener::bind(address(port)).is_ok() {
            ports.push(port);
        }
    }
    ports
}

/// A group on this machine; killed and its files removed when it is dropped.
pub struct Group {
    pub dir: PathBuf,
    pub ports: Vec<u16>,
    children: Vec<Option<Child>>,
}

impl Group {
    /// Makes and starts a group.
    pub fn start(name: &str, count: u32, ack: AckLevel) -> Self {
        Self::start_as(name, &group_config(count, ack))
    }

    /// As [`Self::start`], with a configuration.
    pub fn start_as(name: &str, group: &GroupConfig) -> Self {
        let count = group.founders.len() as u32;
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&dir);
        let ports = free_ports(3 * count as usize);
        for id in 1..=count {
            create_replica(&dir.join(id.to_string()), 192 * MIB, group, ReplicaId(id)).unwrap();
        }
        let children = (0..count).map(|_| None).collect();
        let mut group = Self { dir, ports, children };
        (1..=count).for_each(|id| group.start_replica(id));
        group
    }

    pub fn start_replica(&mut self, id: u32) {
        let child = self.command(id).spawn().unwrap();
        self.children[id as usize - 1] = Some(child);
    }

    /// Ends a process with the group that somebody started as a replica.
    pub fn adopt(&mut self, id: u32, child: Child) {
        self.children[id as usize - 1] = Some(child);
    }

    /// The command that runs a replica.
    pub fn command(&self, id: u32) -> Command {
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", ENTRY, "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{}|{id}|{}", self.dir.display(), ports.join(",")))
            .stdout(Stdio::null())
            .stdin(Stdio::null());
        command
    }

    /// The process of a replica that runs.
    pub fn pid(&self, id: u32) -> u32 {
        self.children[id as usize - 1].as_ref().unwrap().id()
    }

    /// Kills a replica with SIGKILL.
    pub fn kill(&mut self, id: u32) {
        if let Some(mut child) = self.children[id as usize - 1].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Ends a replica with SIGTERM; returns its exit code.
    pub fn stop(&mut self, id: u32) -> i32 {
        let mut child = self.children[id as usize - 1].take().unwrap();
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        child.wait().unwrap().code().unwrap()
    }

    pub fn door(&self, id: u32) -> u16 {
        self.ports[(id as usize - 1) * 3]
    }

    /// A connection to a replica's door, once it listens.
    pub fn client(&self, id: u32) -> Client {
        let start = Instant::now();
        loop {
            match TcpStream::connect(address(self.door(id))) {
                Ok(stream) => return Client::new(stream),
                Err(error) => assert!(start.elapsed() < PATIENCE, "door of {id}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until every member says that it is ready.
    pub fn await_ready(&self) {
        let count = self.children.len() as u32;
        let start = Instant::now();
        loop {
            let statuses: Vec<Value> = (1..=count).map(|id| self.client(id).status()).collect();
            if statuses.iter().all(|status| status["ready"] == true) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{statuses:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// A client's connection.
pub struct Client {
    pub stream: TcpStream,
    parser: ReplyParser,
    buffer: BytesMut,
}

impl Client {
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, parser: ReplyParser::new(), buffer: BytesMut::new() }
    }

    pub fn send(&mut self, words: &[&str]) {
        let mut out = Vec::new();
        encode_request(words, &mut out);
        self.stream.write_all(&out).unwrap();
    }

    pub fn receive(&mut self) -> Reply {
        loop {
            if let Some(reply) = self.parser.parse(&mut self.buffer).unwrap() {
                return reply;
            }
            let mut chunk = vec![0; 1 << 16];
            let count = match self.stream.read(&mut chunk) {
                // Rings of this process interrupt system calls.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.unwrap(),
            };
            assert!(count > 0, "the server closed the connection");
            self.buffer.extend_from_slice(&chunk[..count]);
        }
    }

    pub fn call(&mut self, words: &[&str]) -> Reply {
        self.send(words);
        self.receive()
    }

    /// The reply as RESP2 writes it, which is easy to compare.
    pub fn text(&mut self, words: &[&str]) -> String {
        let mut out = Vec::new();
        self.call(words).encode(Protocol::Resp2, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Repeats a command until it gives no error.
    pub fn insist(&mut self, words: &[&str]) -> Reply {
        let start = Instant::now();
        loop {
            let reply = self.call(words);
            if !reply.is_error() {
                return reply;
            }
            assert!(start.elapsed() < PATIENCE, "{words:?}: {reply:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn json(&mut self, words: &[&str]) -> Value {
        match self.call(words) {
            Reply::Bulk(text) => serde_json::from_slice(&text).unwrap(),
            other => panic!("{words:?}: {other:?}"),
        }
    }

    pub fn status(&mut self) -> Value {
        self.json(&["GABION", "STATUS"])
    }
}
