//! Services of one process whose loop is a test's own, and their clients and controllers.
#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use crate::commands::Spread;
use crate::commands::locks::KeySet;
use crate::config::INPUT_BYTES;
use crate::descriptors::Descriptors;
use crate::peers::Preamble;
use crate::server::Server;
use crate::service::Service;
use crate::start::prepare;
use crate::{
    BackendChoice, Home, NodeDoors, PeerAddress, SecurityConfig, ServerConfig, SpreadConfig,
};
use bytes::{Bytes, BytesMut};
use gabion_base::units::MIB;
use gabion_base::{GroupId, ReplicaId};
use gabion_control::wire::{CONTROLLER, ControlMessage};
use gabion_control::{Epoch, Report};
use gabion_engine::TreeConfig;
use gabion_host::replica::create_replica;
use gabion_node::{AckLevel, CompactionMode, GroupConfig, NodeOptions};
use gabion_replication::GroupView;
use gabion_resp::{Protocol, Reply, ReplyParser, encode_request};
use mio::Events;
use std::collections::BTreeMap;
use std::future::pending;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server whose turns are taken when the test says so.
pub(crate) struct Rig {
    pub(crate) dir: PathBuf,
    configs: Vec<ServerConfig>,
    pub(crate) server: Server,
    pub(crate) events: Events,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.server.services.clear();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub(crate) fn group(number: u64, members: u32, ack: AckLevel) -> GroupConfig {
    GroupConfig {
        group: GroupId(number),
        founders: (1..=members).map(ReplicaId).collect(),
        compaction: CompactionMode::Primary,
        ack,
        ring_len: 16 * MIB,
        segment_len: 4 * MIB,
        tree: TreeConfig { memtable_len: MIB, sst_len: 2 * MIB, ..TreeConfig::default() },
    }
}

/// Ports that nobody listens on, each given once: none of those that the system gives to whoever
/// connects or binds to any.
pub(crate) fn addresses<const N: usize>() -> [SocketAddr; N] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + std::process::id() as u16 % 20 * 500;
    [(); N].map(|()| {
        loop {
            let port = first + NEXT.fetch_add(1, Ordering::Relaxed) % 10_000;
            if let Ok(door) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                return door.local_addr().unwrap();
            }
        }
    })
}

impl Rig {
    /// Runs all members of these groups in one process, in their order.
    pub(crate) fn new(name: &str, groups: &[GroupConfig]) -> Self {
        let (dir, configs) = Self::configs(name, groups);
        Self::of(dir, configs)
    }

    /// Runs the members of a group in one process, each with this done to its configuration.
    pub(crate) fn with(name: &str, group: GroupConfig, change: impl Fn(&mut ServerConfig)) -> Self {
        let (dir, mut configs) = Self::configs(name, &[group]);
        configs.iter_mut().for_each(change);
        Self::of(dir, configs)
    }

    /// Runs the only members of several groups, over which keys are spread, in one process.
    pub(crate) fn spread(name: &str, count: u32) -> Self {
        Self::spread_with(name, count, |_| {})
    }

    /// The same, each with this done to its configuration.
    pub(crate) fn spread_with(name: &str, count: u32, change: impl Fn(&mut ServerConfig)) -> Self {
        let groups: Vec<_> =
            (1..=count).map(|it| group(it.into(), 1, AckLevel::Replicated)).collect();
        let (dir, mut configs) = Self::configs(name, &groups);
        for (own, config) in (0..).zip(&mut configs) {
            let door = if own == 0 { addresses::<1>()[0] } else { config.resp };
            let spread = Spread::new(count, own).unwrap();
            let doors = NodeDoors { plain: door, tls: None };
            let others = BTreeMap::new();
            config.spread = Some(SpreadConfig { spread, listen: doors, doors, others });
        }
        configs.iter_mut().for_each(change);
        configs.iter().for_each(|config| config.check().unwrap());
        Self::of(dir, configs)
    }

    /// Runs a member of a group, by its place, in a process of its own, which takes no turns while
    /// the test gives it none, and the others in another.
    pub(crate) fn apart(name: &str, group: GroupConfig, place: usize) -> [Self; 2] {
        let (dir, mut others) = Self::configs(name, &[group]);
        let alone = others.remove(place);
        [Self::of(dir.clone(), vec![alone]), Self::of(dir, others)]
    }

    fn of(dir: PathBuf, configs: Vec<ServerConfig>) -> Self {
        let server = Self::start(&configs);
        Self { dir, configs, server, events: Events::with_capacity(64) }
    }

    fn start(configs: &[ServerConfig]) -> Server {
        let descriptors = Descriptors::take(configs).unwrap();
        prepare(configs.to_vec(), descriptors).unwrap()
    }

    /// Another process finds what this one leaves.
    pub(crate) fn restart(&mut self) {
        self.server.services.clear();
        self.server = Self::start(&self.configs);
    }

    /// Makes the members of these groups.
    fn configs(name: &str, groups: &[GroupConfig]) -> (PathBuf, Vec<ServerConfig>) {
        let dir = std::env::temp_dir().join(format!("gabion-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let mut configs = Vec::new();
        for group in groups {
            let members: Vec<PeerAddress> = group
                .founders
                .iter()
                .map(|&replica| {
                    let [peer, target, resp] = addresses();
                    PeerAddress { replica, peer, target, resp }
                })
                .collect();
            for me in &members {
                let data = dir.join(format!("{}-{}", group.group.get(), me.replica.get()));
                create_replica(&data, 128 * MIB, group, me.replica).unwrap();
                let others = members.iter().filter(|member| member.replica != me.replica);
                configs.push(ServerConfig {
                    group: group.group,
                    replica: me.replica,
                    data,
                    resp: me.resp,
                    peer_listen: me.peer,
                    target_listen: me.target,
                    home: Home::default(),
                    metrics: None,
                    peers: others.copied().collect(),
                    spread: None,
                    io: BackendChoice::Auto,
                    // Reads go to the device.
                    block_cache_bytes: 0,
                    open_files_bytes: MIB as usize,
                    client_input_bytes: INPUT_BYTES,
                    jobs_nice: 0,
                    security: SecurityConfig::default(),
                    node: NodeOptions { timeout_ms: 5_000, ..NodeOptions::default() },
                });
            }
        }
        (dir, configs)
    }

    pub(crate) fn service(&mut self, place: usize) -> &mut Service {
        &mut self.server.services[place]
    }

    /// One turn of every service, none of which fails.
    pub(crate) fn turn(&mut self) {
        let ends = self.server.turn(&mut self.events).unwrap();
        assert!(ends.is_none(), "{ends:?}");
    }

    /// Takes turns until this is so.
    pub(crate) fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}");
            self.turn();
        }
    }

    pub(crate) fn client(&self, place: usize) -> Client {
        Self::client_at(self.server.services[place].host.resp)
    }

    /// A client at the door of a group, where there are several.
    pub(crate) fn client_of_group(&self, place: usize) -> Client {
        Self::client_at(self.server.services[place].spread.as_ref().unwrap().listen.plain)
    }

    fn client_at(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        Client { stream, parser: ReplyParser::new(), buffer: BytesMut::new() }
    }

    pub(crate) fn receive(&mut self, client: &mut Client) -> Reply {
        let begun = Instant::now();
        loop {
            if let Some(reply) = client.poll() {
                return reply;
            }
            assert!(begun.elapsed() < PATIENCE, "no reply");
            self.turn();
        }
    }

    /// The reply to a command as RESP2 writes it.
    pub(crate) fn text(&mut self, client: &mut Client, words: &[&str]) -> String {
        client.send(words);
        text(&self.receive(client))
    }

    /// Repeats a command until it gives no error.
    pub(crate) fn insist(&mut self, client: &mut Client, words: &[&str]) -> String {
        let begun = Instant::now();
        loop {
            let text = self.text(client, words);
            if !text.starts_with('-') {
                return text;
            }
            assert!(begun.elapsed() < PATIENCE, "{words:?}: {text}");
        }
    }

    /// Writes more than a MemTable holds, so that there are files, and jobs under way.
    pub(crate) fn fill(&mut self, client: &mut Client) {
        for number in 0..48 {
            let value = "v".repeat(64 << 10);
            assert_eq!(self.insist(client, &["SET", &format!("key-{number}"), &value]), "+OK\r\n");
        }
    }

    /// A task of the first service takes the lock of a key, and does not end.
    pub(crate) fn lock_for_ever(&mut self, key: &'static str) {
        let service = self.service(0);
        let commands = service.commands.clone();
        service.replica.executor.spawn(async move {
            let keys = [Bytes::from_static(key.as_bytes())];
            commands.locks.hold(|| KeySet::of(keys.iter()), pending::<()>()).await;
        });
    }

    pub(crate) fn reopen(&mut self, place: usize) {
        self.service(place).reopen("a test wants it".to_owned());
        self.turn();
        assert!(!self.service(place).is_open());
    }

    pub(crate) fn await_open(&mut self, place: usize) {
        self.until("it is open", |rig| rig.service(place).is_open());
    }
}

pub(crate) fn text(reply: &Reply) -> String {
    let mut out = Vec::new();
    reply.encode(Protocol::Resp2, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// A client whose reads never wait: the server is on the same thread.
pub(crate) struct Client {
    stream: TcpStream,
    parser: ReplyParser,
    buffer: BytesMut,
}

impl Client {
    /// Sends as much as the socket takes now, and leaves the rest.
    pub(crate) fn send_some(&mut self, bytes: &mut Vec<u8>) {
        match self.stream.write(bytes) {
            Ok(count) => drop(bytes.drain(..count)),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
        }
    }

    pub(crate) fn send(&mut self, words: &[&str]) {
        let mut out = Vec::new();
        encode_request(words, &mut out);
        self.stream.write_all(&out).unwrap();
    }

    /// The next reply, if it is there.
    pub(crate) fn poll(&mut self) -> Option<Reply> {
        loop {
            if let Some(reply) = self.parser.parse(&mut self.buffer).unwrap() {
                return Some(reply);
            }
            let mut chunk = vec![0; 64 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) => panic!("the connection was closed"),
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A controller's end of its connection to a replica.
pub(crate) struct ControllerEnd {
    stream: TcpStream,
    input: Vec<u8>,
    /// The last report that came.
    pub(crate) last: Option<Report>,
    /// How many came.
    pub(crate) count: usize,
    /// The replica ended the connection.
    pub(crate) is_over: bool,
}

impl ControllerEnd {
    /// Sends bytes that may be no message.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn tell(&mut self, epoch: Epoch, view: &GroupView) {
        self.send(&ControlMessage::Tell { epoch, view: view.clone() }.encode());
    }

    /// Takes the reports that are there.
    pub(crate) fn poll(&mut self) {
        let mut chunk = vec![0; 64 << 10];
        while !self.is_over {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.is_over = true,
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => self.is_over = true,
                Err(error) => panic!("{error}"),
            }
        }
        while let Some((message, len)) = ControlMessage::decode(&self.input).unwrap() {
            self.input.drain(..len);
            let ControlMessage::Report(report) = message else { panic!("{message:?}") };
            self.last = Some(report);
            self.count += 1;
        }
    }
}

impl Rig {
    /// Connects to a replica as its controller.
    pub(crate) fn controller(&self, place: usize) -> ControllerEnd {
        let service = &self.server.services[place];
        let mut stream = TcpStream::connect(service.peer_door.local_addr().unwrap()).unwrap();
        let preamble =
            Preamble { group: service.group, from: CONTROLLER, to: service.me, is_guest: false };
        stream.write_all(&preamble.encode()).unwrap();
        stream.set_nonblocking(true).unwrap();
        ControllerEnd { stream, input: Vec::new(), last: None, count: 0, is_over: false }
    }

    /// Takes turns until a report is as this says.
    pub(crate) fn until_reported(
        &mut self,
        controller: &mut ControllerEnd,
        what: &str,
        is_so: impl Fn(&Report) -> bool,
    ) {
        let begun = Instant::now();
        loop {
            controller.poll();
            let last = controller.last.as_ref();
            if last.is_some_and(&is_so) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}: {last:#?}");
            self.turn();
        }
    }
}
