//! Services of one process whose loop is the test's own: replicas that are opened again while
//! others go on, and what becomes of the commands that wait meanwhile.

use crate::commands::locks::KeySet;
use crate::config::INPUT_BYTES;
use crate::descriptors::Descriptors;
use crate::server::Server;
use crate::service::Service;
use crate::start::prepare;
use crate::{BackendChoice, ExitReason, PeerAddress, ServerConfig};
use bytes::{Bytes, BytesMut};
use gabion_base::units::MIB;
use gabion_base::{ErrorKind, GroupId, ReplicaId};
use gabion_engine::TreeConfig;
use gabion_host::replica::{ReplicaFiles, create_replica};
use gabion_node::{AckLevel, CompactionMode, GroupConfig, NodeOptions};
use gabion_resp::{Protocol, Reply, ReplyParser, encode_request};
use mio::Events;
use std::future::pending;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// A server whose turns are taken when the test says so.
struct Rig {
    dir: PathBuf,
    server: Server,
    events: Events,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.server.services.clear();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn group(number: u64, members: u32, ack: AckLevel) -> GroupConfig {
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

/// Ports that nobody listens on.
fn addresses<const N: usize>() -> [SocketAddr; N] {
    let doors = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    doors.map(|door| door.local_addr().unwrap())
}

impl Rig {
    /// Runs all members of these groups in one process, in their order.
    fn new(name: &str, groups: &[GroupConfig]) -> Self {
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
                    peers: others.copied().collect(),
                    io: BackendChoice::Auto,
                    // Reads go to the device.
                    block_cache_bytes: 0,
                    open_files_bytes: MIB as usize,
                    client_input_bytes: INPUT_BYTES,
                    jobs_nice: 0,
                    node: NodeOptions { timeout_ms: 5_000, ..NodeOptions::default() },
                });
            }
        }
        let descriptors = Descriptors::take(&configs[0]).unwrap();
        let server = prepare(configs, descriptors).unwrap();
        Self { dir, server, events: Events::with_capacity(64) }
    }

    fn service(&mut self, place: usize) -> &mut Service {
        &mut self.server.services[place]
    }

    /// One turn of every service, none of which fails.
    fn turn(&mut self) {
        let ends = self.server.turn(&mut self.events).unwrap();
        assert!(ends.is_none(), "{ends:?}");
    }

    /// Takes turns until this is so.
    fn until(&mut self, what: &str, is_so: impl Fn(&mut Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}");
            self.turn();
        }
    }

    fn client(&self, place: usize) -> Client {
        let stream = TcpStream::connect(self.server.services[place].host.resp).unwrap();
        stream.set_nonblocking(true).unwrap();
        Client { stream, parser: ReplyParser::new(), buffer: BytesMut::new() }
    }

    fn receive(&mut self, client: &mut Client) -> Reply {
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
    fn text(&mut self, client: &mut Client, words: &[&str]) -> String {
        client.send(words);
        text(&self.receive(client))
    }

    /// Repeats a command until it gives no error.
    fn insist(&mut self, client: &mut Client, words: &[&str]) -> String {
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
    fn fill(&mut self, client: &mut Client) {
        for number in 0..48 {
            let value = "v".repeat(64 << 10);
            assert_eq!(self.insist(client, &["SET", &format!("key-{number}"), &value]), "+OK\r\n");
        }
    }

    /// A task of the first service takes the lock of a key, and does not end.
    fn lock_for_ever(&mut self, key: &'static str) {
        let service = self.service(0);
        let commands = service.commands.clone();
        service.replica.executor.spawn(async move {
            let keys = [Bytes::from_static(key.as_bytes())];
            commands.locks.hold(|| KeySet::of(keys.iter()), pending::<()>()).await;
        });
    }

    fn reopen(&mut self, place: usize) {
        self.service(place).reopen("a test wants it".to_owned());
        self.turn();
        assert!(!self.service(place).is_open());
    }

    fn await_open(&mut self, place: usize) {
        self.until("it is open", |rig| rig.service(place).is_open());
    }
}

fn text(reply: &Reply) -> String {
    let mut out = Vec::new();
    reply.encode(Protocol::Resp2, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// A client whose reads never wait: the server is on the same thread.
struct Client {
    stream: TcpStream,
    parser: ReplyParser,
    buffer: BytesMut,
}

impl Client {
    fn send(&mut self, words: &[&str]) {
        let mut out = Vec::new();
        encode_request(words, &mut out);
        self.stream.write_all(&out).unwrap();
    }

    /// The next reply, if it is there.
    fn poll(&mut self) -> Option<Reply> {
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

#[test]
fn one_replica_of_a_process_is_opened_again_while_another_goes_on_answering() {
    let groups = [7, 8].map(|number| group(number, 1, AckLevel::Replicated));
    let mut rig = Rig::new("reopen-two", &groups);
    let (mut first, mut second) = (rig.client(0), rig.client(1));
    rig.fill(&mut first);
    assert_eq!(rig.text(&mut first, &["SET", "key", "of the first"]), "+OK\r\n");
    assert_eq!(rig.insist(&mut second, &["SET", "key", "of the second"]), "+OK\r\n");
    assert_eq!(rig.text(&mut first, &["CONFIG", "SET", "gabion-compactions-max", "3"]), "+OK\r\n");
    let size = rig.text(&mut first, &["DBSIZE"]);
    // It comes in the turn in which the first closes.
    second.send(&["GET", "key"]);
    rig.reopen(0);
    assert_eq!(second.poll().as_ref().map(text).as_deref(), Some("$13\r\nof the second\r\n"));
    let held = ReplicaFiles::lock(&rig.dir.join("7-1"), BackendChoice::Auto).err().unwrap();
    assert_eq!(held.kind(), ErrorKind::Busy, "the lock stays: {held}");
    // A request and a connection that come while it is closed wait for it.
    first.send(&["GET", "key"]);
    let mut late = rig.client(0);
    late.send(&["GET", "key"]);
    while !rig.service(0).is_open() {
        assert_eq!(rig.text(&mut second, &["INCR", "counter"]).chars().next(), Some(':'));
    }
    for client in [&mut first, &mut late] {
        assert_eq!(text(&rig.receive(client)), "$12\r\nof the first\r\n");
    }
    assert_eq!(rig.text(&mut first, &["DBSIZE"]), size);
    let settings = rig.text(&mut first, &["CONFIG", "GET", "gabion-compactions-max"]);
    assert!(settings.ends_with("$1\r\n3\r\n"), "what was set stays: {settings}");
    // And again, with what was written since.
    assert_eq!(rig.insist(&mut first, &["SET", "key", "again"]), "+OK\r\n");
    rig.reopen(0);
    rig.await_open(0);
    assert_eq!(rig.text(&mut late, &["GET", "key"]), "$5\r\nagain\r\n");
}

#[test]
fn a_write_that_waits_when_the_view_changes_is_told_that_nobody_knows() {
    let mut rig = Rig::new("reopen-view", &[group(7, 1, AckLevel::Durable)]);
    let mut client = rig.client(0);
    assert_eq!(rig.insist(&mut client, &["SET", "key", "old"]), "+OK\r\n");
    client.send(&["SET", "key", "new"]);
    rig.until("the write is in the log", |rig| !rig.service(0).replica.turns.open.is_empty());
    assert!(client.poll().is_none(), "it is not durable");
    rig.service(0).give_up_view();
    let reply = text(&rig.receive(&mut client));
    assert!(reply.starts_with("-UNKNOWN another configuration began"), "{reply}");
    assert_eq!(rig.text(&mut client, &["GET", "key"]), "$3\r\nnew\r\n");
    assert_eq!(rig.text(&mut client, &["SET", "key", "newer"]), "+OK\r\n");
}

#[test]
fn what_waits_when_its_replica_is_opened_again_is_unknown_in_the_log_and_else_begins_anew() {
    let mut rig = Rig::new("reopen-waits", &[group(7, 1, AckLevel::Durable)]);
    let (mut writer, mut watcher, mut getter) = (rig.client(0), rig.client(0), rig.client(0));
    rig.fill(&mut writer);
    rig.until("all is flushed", |rig| {
        rig.service(0).replica.node.borrow().tree().sealed_count() == 0
    });
    assert_eq!(rig.text(&mut watcher, &["WATCH", "key"]), "+OK\r\n");
    // One that has begun and waits for its key, one that reads the device, one that is in the log.
    rig.lock_for_ever("key-3");
    let mut reader = rig.client(0);
    reader.send(&["APPEND", "key-3", "x"]);
    getter.send(&["STRLEN", "key-4"]);
    writer.send(&["SET", "key", "new"]);
    rig.until("the write is in the log", |rig| !rig.service(0).replica.turns.open.is_empty());
    rig.reopen(0);
    let reply = text(&rig.receive(&mut writer));
    assert!(reply.starts_with("-UNKNOWN another configuration began"), "{reply}");
    assert_eq!(rig.text(&mut writer, &["GET", "key"]), "$3\r\nnew\r\n", "the ring has it");
    assert_eq!(text(&rig.receive(&mut getter)), ":65536\r\n");
    let appended = text(&rig.receive(&mut reader));
    // It has done nothing, and begins anew: at a replica that is still starting it is refused.
    match appended.starts_with("-TRYAGAIN") {
        true => assert_eq!(rig.text(&mut reader, &["STRLEN", "key-3"]), ":65536\r\n"),
        false => assert_eq!(appended, ":65537\r\n"),
    }
    assert_eq!(rig.text(&mut watcher, &["MULTI"]), "+OK\r\n");
    assert_eq!(rig.text(&mut watcher, &["PING"]), "+QUEUED\r\n");
    assert_eq!(rig.text(&mut watcher, &["EXEC"]), "*-1\r\n", "it may have changed");
}

#[test]
fn members_that_forward_to_a_replica_that_is_opened_again_are_answered_and_join_it_anew() {
    let mut rig = Rig::new("reopen-group", &[group(7, 2, AckLevel::Durable)]);
    let (mut at_head, mut at_tail) = (rig.client(0), rig.client(1));
    assert_eq!(rig.insist(&mut at_tail, &["SET", "key", "old"]), "+OK\r\n");
    assert_eq!(rig.insist(&mut at_head, &["GET", "key"]), "$3\r\nold\r\n");
    at_tail.send(&["SET", "key", "new"]);
    rig.until("the head has logged it", |rig| !rig.service(0).peer_replies.is_empty());
    rig.reopen(0);
    let reply = text(&rig.receive(&mut at_tail));
    assert!(reply.starts_with("-UNKNOWN "), "{reply}");
    rig.await_open(0);
    assert_eq!(rig.insist(&mut at_tail, &["GET", "key"]), "$3\r\nnew\r\n");
    assert_eq!(rig.insist(&mut at_tail, &["SET", "key", "newer"]), "+OK\r\n");
    // A read on its way to the tail waits until that is back.
    rig.reopen(1);
    at_head.send(&["GET", "key"]);
    assert_eq!(text(&rig.receive(&mut at_head)), "$5\r\nnewer\r\n");
    assert_eq!(rig.insist(&mut at_head, &["SET", "key", "newest"]), "+OK\r\n");
    assert_eq!(rig.insist(&mut at_tail, &["GET", "key"]), "$6\r\nnewest\r\n");
}

#[test]
fn a_replica_that_cannot_be_opened_again_ends_the_process_and_says_why() {
    let mut rig = Rig::new("reopen-lost", &[group(7, 1, AckLevel::Replicated)]);
    let mut client = rig.client(0);
    assert_eq!(rig.insist(&mut client, &["SET", "key", "value"]), "+OK\r\n");
    std::fs::remove_file(rig.dir.join("7-1/ring")).unwrap();
    rig.reopen(0);
    let begun = Instant::now();
    let ends = loop {
        if let Some(reason) = rig.server.turn(&mut rig.events).unwrap() {
            break reason;
        }
        assert!(begun.elapsed() < PATIENCE, "it goes on");
    };
    let ExitReason::Failed(error) = ends else { panic!("{ends:?}") };
    let text = error.to_string();
    assert!(text.contains("cannot be opened again") && text.contains("ring"), "{text}");
}
