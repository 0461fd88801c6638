//! A group of processes, as clients see it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails where it stands")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests")]

#[path = "group/connections.rs"]
mod connections;
#[path = "group/descriptors.rs"]
mod descriptors;
#[path = "group/outcomes.rs"]
mod outcomes;
#[path = "group/pipelines.rs"]
mod pipelines;
#[path = "group/replies.rs"]
mod replies;
#[path = "group/scripts.rs"]
mod scripts;
mod support;
#[path = "group/warm.rs"]
mod warm;
#[path = "group/watch.rs"]
mod watch;

use gabion_base::units::KIB;
use gabion_engine::TreeConfig;
use gabion_node::{AckLevel, GroupConfig};
use gabion_resp::{Reply, encode_request};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use support::{Client, Group, PATIENCE};

/// Not a test: where the processes of the other tests begin.
#[test]
fn entry_of_a_replica() {
    support::become_replica();
}

/// docs/faults.md: P2, P3
#[test]
fn every_door_serves_the_whole_group() {
    let mut group = Group::start("doors", 3, AckLevel::Replicated);
    group.await_ready();
    for id in 1..=3 {
        let mut client = group.client(id);
        let key = format!("key-{id}");
        assert_eq!(client.text(&["SET", &key, "value"]), "+OK\r\n");
        assert_eq!(client.text(&["GET", &key]), "$5\r\nvalue\r\n");
        assert_eq!(client.text(&["INCR", "counter"]), format!(":{id}\r\n"));
        assert_eq!(client.text(&["SET", &key, "other", "NX"]), "$-1\r\n");
        assert_eq!(client.text(&["GET", "nothing"]), "$-1\r\n");
        assert_eq!(client.text(&["MULTI"]), "+OK\r\n");
        for words in [&["INCR", "counter"][..], &["PING"], &["DECR", "counter"], &["GET", &key]] {
            assert_eq!(client.text(words), "+QUEUED\r\n");
        }
        let (up, down) = (id + 1, id);
        let expected = format!("*4\r\n:{up}\r\n+PONG\r\n:{down}\r\n$5\r\nvalue\r\n");
        assert_eq!(client.text(&["EXEC"]), expected);
        pipeline(&mut client, id);
        large(&mut client);
    }
    let mut first = group.client(1);
    assert_eq!(first.text(&["DBSIZE"]), ":5\r\n");
    ranges(&mut first);
    long_walks(&mut first);
    status_is_complete(&group);
    roles_agree(&group);
    assert_eq!(group.stop(3), 0);
    group.kill(1);
    group.kill(2);
    for id in 1..=3 {
        group.start_replica(id);
    }
    group.await_ready();
    assert_eq!(group.client(2).call(&["GET", "counter"]), Reply::Bulk("3".into()));
}

/// Keys expire at every door while nobody writes, and after a restart of all.
/// docs/faults.md: P11
#[test]
fn keys_expire_at_every_door_and_over_a_restart() {
    let mut group = Group::start("expiry", 3, AckLevel::Replicated);
    group.await_ready();
    let mut first = group.client(1);
    let is_gone =
        |client: &mut Client, key: &str| client.call(&["EXISTS", key]) == Reply::Integer(0);
    for id in 1..=3 {
        let mut client = group.client(id);
        let key = format!("key-{id}");
        assert_eq!(client.text(&["SET", &key, "1", "PX", "150"]), "+OK\r\n");
        assert_eq!(client.text(&["SETEX", "far", "1000", "1"]), "+OK\r\n");
        while !is_gone(&mut client, &key) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Gone here, so gone for whoever asks later, and for the head that decides.
        assert_eq!(client.text(&["SET", &key, "2", "NX"]), "+OK\r\n");
        assert_eq!(first.text(&["TTL", &key]), ":-1\r\n");
        assert_eq!(client.text(&["DEL", &key]), ":1\r\n");
    }
    let Reply::Integer(expires_ms) = first.call(&["PEXPIRETIME", "far"]) else { panic!() };
    assert_eq!(first.text(&["SET", "near", "1", "PX", "300"]), "+OK\r\n");
    (1..=3).for_each(|id| group.kill(id));
    (1..=3).for_each(|id| group.start_replica(id));
    group.await_ready();
    for id in 1..=3 {
        let mut client = group.client(id);
        while !is_gone(&mut client, "near") {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(client.call(&["PEXPIRETIME", "far"]), Reply::Integer(expires_ms));
        assert_eq!(client.text(&["DBSIZE"]), ":1\r\n");
    }
}

/// The same keys either way, also from where a page before ended.
fn ranges(client: &mut Client) {
    let bulk = |key: &str| Reply::Bulk(key.to_owned().into());
    let keys =
        |ids: &[u32]| Reply::Array(ids.iter().map(|id| bulk(&format!("key-{id}"))).collect());
    assert_eq!(client.call(&["RANGE", "key-", "key-9", "KEYS"]), keys(&[1, 2, 3]));
    assert_eq!(client.call(&["RANGE", "key-", "key-9", "KEYS", "REV"]), keys(&[3, 2, 1]));
    assert_eq!(client.call(&["RANGE", "key-", "key-3", "KEYS", "REV", "LIMIT", "1"]), keys(&[2]));
    assert_eq!(client.call(&["RANGE", "-", "key-2", "KEYS", "REV", "LIMIT", "1"]), keys(&[1]));
}

/// Walks over more keys than a page passes: none is missed while they are there, and none shows
/// when they are deleted.
fn long_walks(client: &mut Client) {
    let keys: Vec<String> = (0..20_000).map(|n| format!("walk-{n:05}")).collect();
    let pairs = keys.iter().flat_map(|key| [key.as_str(), "v"]);
    let set: Vec<&str> = std::iter::once("MSET").chain(pairs).collect();
    assert_eq!(client.insist(&set), Reply::OK);
    let mut all: Vec<Reply> = keys.iter().map(|key| Reply::Bulk(key.clone().into())).collect();
    let (found, pages) = scan_walk(client);
    assert!(found == all && pages > 1, "{} keys in {pages} pages", found.len());
    all.reverse();
    let backwards = ["RANGE", "walk-", "walk.", "KEYS", "REV"];
    assert!(client.call(&backwards) == Reply::Array(all), "all of them, backwards");
    let delete: Vec<&str> = std::iter::once("DEL").chain(keys.iter().map(String::as_str)).collect();
    assert_eq!(client.call(&delete), Reply::Integer(20_000));
    assert!(scan_walk(client).0.is_empty(), "what was deleted does not show");
    for words in [&backwards[..], &backwards[..4], &["KEYS", "walk-*"]] {
        assert_eq!(client.text(words), "*0\r\n");
    }
    assert_eq!(client.text(&["DBSIZE"]), ":5\r\n");
}

/// The keys of [`long_walks`] as SCAN gives them, and in how many calls.
fn scan_walk(client: &mut Client) -> (Vec<Reply>, usize) {
    let (mut all, mut cursor) = (Vec::new(), "0".to_owned());
    for calls in 1.. {
        let reply = client.call(&["SCAN", &cursor, "MATCH", "walk-*", "COUNT", "65536"]);
        let Reply::Array(parts) = &reply else { panic!("{reply:?}") };
        let [Reply::Bulk(next), Reply::Array(keys)] = &parts[..] else { panic!("{parts:?}") };
        all.extend_from_slice(keys);
        if next == "0" {
            return (all, calls);
        }
        cursor = String::from_utf8_lossy(next).into_owned();
    }
    panic!("the scan does not end");
}

/// Commands that are sent together behave as if each had waited for the one before.
fn pipeline(client: &mut Client, id: u32) {
    let counter = format!("pipeline-{id}");
    for round in 0..50 {
        let text = round.to_string();
        client.send(&["SET", &counter, &text]);
        client.send(&["GET", &counter]);
        client.send(&["INCR", &counter]);
        client.send(&["GET", &counter]);
        client.send(&["DEL", &counter]);
        client.send(&["GET", &counter]);
    }
    for round in 0..50_i64 {
        let bulk = |number: i64| Reply::Bulk(number.to_string().into());
        assert_eq!(client.receive(), Reply::OK);
        assert_eq!(client.receive(), bulk(round));
        assert_eq!(client.receive(), Reply::Integer(round + 1));
        assert_eq!(client.receive(), bulk(round + 1));
        assert_eq!(client.receive(), Reply::Integer(1));
        assert_eq!(client.receive(), Reply::Null);
    }
}

/// The first command of each key has to read a file before it can write; what was sent after it
/// must not be done before it.
#[test]
fn commands_keep_their_order_when_the_first_of_them_reads_the_disk() {
    let mut group = Group::start("order", 3, AckLevel::Replicated);
    group.await_ready();
    let value = "v".repeat(1000);
    fill(&mut group.client(1), &value, 4000);
    (1..=3).for_each(|id| group.kill(id));
    (1..=3).for_each(|id| group.start_replica(id));
    group.await_ready();
    let keys: Vec<String> = (0..300).map(|i| format!("key-{:08}", i * 7919)).collect();
    for (id, keys) in (1..=3).zip(keys.chunks(100)) {
        let mut client = group.client(id);
        for key in keys {
            client.send(&["APPEND", key, "x"]);
            client.send(&["SET", key, "1"]);
            client.send(&["INCR", key]);
            client.send(&["GETDEL", key]);
            client.send(&["SET", key, "2"]);
            client.send(&["GET", key]);
        }
        for key in keys {
            let replies: Vec<Reply> = (0..6).map(|_| client.receive()).collect();
            let (one, two) = (Reply::Integer(1001), Reply::Integer(2));
            let bulk = || Reply::Bulk("2".into());
            assert_eq!(replies, [one, Reply::OK, two, bulk(), Reply::OK, bulk()], "{key}, {id}");
        }
    }
}

/// Values and replies that take several messages between members.
fn large(client: &mut Client) {
    let value = "x".repeat(6 << 20);
    for key in ["large-1", "large-2", "large-3"] {
        assert_eq!(client.call(&["SET", key, &value]), Reply::OK);
    }
    let value = Reply::Bulk(value.into());
    let values = Reply::Array(vec![value.clone(); 3]);
    assert_eq!(client.call(&["MGET", "large-1", "large-2", "large-3"]), values);
    // More than may wait for one client.
    (0..30).for_each(|_| client.send(&["GET", "large-1"]));
    (0..30).for_each(|_| assert!(client.receive() == value));
    assert_eq!(client.call(&["DEL", "large-1", "large-2"]), Reply::Integer(2));
    assert_eq!(client.call(&["SET", "large-3", "small"]), Reply::OK);
}

/// What INFO and HELLO say of a node is the same, and true of the group.
fn roles_agree(group: &Group) {
    let start = Instant::now();
    for id in 1..=3 {
        let mut client = group.client(id);
        let (info_role, hello_role) =
            if id == 1 { ("master", "master") } else { ("slave", "replica") };
        let hello = client.text(&["HELLO"]);
        assert!(
            hello.contains(&format!("role\r\n${}\r\n{hello_role}", hello_role.len())),
            "{hello}"
        );
        let mut lines = vec![format!("role:{info_role}\r\n")];
        if id == 1 {
            lines.push("connected_slaves:2\r\n".to_owned());
            lines.push(format!("slave0:ip=127.0.0.1,port={},state=online,", group.door(2)));
            lines.push(format!("slave1:ip=127.0.0.1,port={},state=online,", group.door(3)));
        } else {
            let port = group.door(1);
            lines.push(format!("master_host:127.0.0.1\r\nmaster_port:{port}\r\n"));
            lines.push("master_link_status:up\r\n".to_owned());
            lines.push("connected_slaves:0\r\n".to_owned());
        }
        loop {
            let info = client.text(&["INFO", "replication"]);
            if lines.iter().all(|line| info.contains(line)) {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{lines:?}\n{info}");
        }
    }
}

fn status_is_complete(group: &Group) {
    for (id, role) in [(1, "primary"), (2, "middle"), (3, "tail")] {
        let status = group.client(id).status();
        for field in [
            "version",
            "pid",
            "replica",
            "role",
            "group",
            "members",
            "term",
            "config",
            "ready",
            "reason",
            "readable",
            "compaction",
            "ack",
            "uptime_ms",
            "ports",
            "log",
            "memtable",
            "levels",
            "compaction_debt_bytes",
            "compactions_idle",
            "live_files",
            "live_bytes",
            "slots",
            "readers",
            "counters",
            "replies",
            "cpu_seconds",
            "cpu_seconds_by_role",
            "memory_bytes",
            "read_bytes",
            "write_bytes",
            "net",
        ] {
            assert!(status.get(field).is_some(), "{field}");
        }
        assert_eq!((&status["role"], &status["replica"]), (&role.into(), &id.into()));
        assert_eq!(status["ports"]["resp"], group.door(id));
        for counter in [
            "flushes",
            "compactions",
            "shipped_bytes",
            "client_read_bytes",
            "edits",
            "flushed_bytes",
            "logged_bytes",
            "log_written_bytes",
            "writes_slowed_ms",
            "writes_stopped_ms",
            "block_cache_hits",
            "block_cache_misses",
            "warmed_blocks",
            "warmed_bytes",
            "warmings_left",
            "warmings_given_up",
            "warm_read_bytes",
        ] {
            assert!(status["counters"][counter].is_u64(), "{counter}");
        }
        let stops = status["counters"]["writes_stopped_ms_by"].as_object().unwrap();
        let names: Vec<&str> = stops.keys().map(String::as_str).collect();
        assert_eq!(names, ["flush", "compaction", "edits", "ring", "log", "room", "load"]);
        for role in ["requests", "flush", "compaction", "shipping", "target", "other"] {
            assert!(status["cpu_seconds_by_role"][role].is_f64(), "{role}");
        }
        assert!(status["net"]["sent"]["peer"].as_u64().unwrap() > 0);
        status_is_described(&status);
    }
}

/// Each field has a word in the page of the command, and each counter, and nothing else, a row of a
/// table for operators.
fn status_is_described(status: &serde_json::Value) {
    let redis = include_str!("../../../docs/redis.md");
    for field in status.as_object().unwrap().keys() {
        assert!(redis.contains(&format!("`{field}`")), "docs/redis.md does not name {field}");
    }
    let tables =
        include_str!("../../../docs/operations.md").split("\n| counter | what |\n").skip(1);
    let rows = tables.flat_map(|table| table.lines().take_while(|line| line.starts_with('|')));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let described: BTreeSet<&str> =
        cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let counted = status["counters"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(described, counted, "the tables of docs/operations.md beside `counters`");
}

#[test]
fn a_replica_that_is_out_stops_writes_and_comes_back_equal() {
    let mut group = Group::start("kills", 3, AckLevel::Replicated);
    group.await_ready();
    let value = "v".repeat(1000);
    let mut client = group.client(1);
    fill(&mut client, &value, 2500);
    for id in [2, 3, 1] {
        group.kill(id);
        if id != 1 {
            let mut client = group.client(1);
            let refused = await_refusal(&mut client);
            assert!(refused.contains(&format!("replica {id}")), "{refused}");
        }
        group.start_replica(id);
        group.await_ready();
        let key = format!("after-{id}");
        let mut client = group.client(1);
        assert_eq!(client.call(&["SET", &key, "1"]), Reply::OK);
        assert_eq!(client.call(&["WAIT", "1", "0"]), Reply::Integer(2));
        assert_eq!(group.client(2).call(&["GET", &key]), Reply::Bulk("1".into()));
    }
    fill(&mut group.client(2), &value, 1500);
    replicas_are_equal(&group);
    for id in 1..=3 {
        let scrub = group.client(id).json(&["GABION", "SCRUB"]);
        assert_eq!(scrub["errors"], serde_json::json!([]), "replica {id}");
        assert!(scrub["bytes"].as_u64().unwrap() > 0);
    }
}

#[test]
fn whoever_is_ready_after_a_restart_answers_reads_and_takes_writes() {
    let mut group = Group::start("ready", 3, AckLevel::Replicated);
    group.await_ready();
    for round in 0..8_u32 {
        let value = round.to_string();
        assert_eq!(group.client(round % 3 + 1).call(&["SET", "key", &value]), Reply::OK);
        let restarted: &[u32] = [&[1, 2, 3][..], &[3], &[2], &[1]][round as usize % 4];
        restarted.iter().for_each(|&id| group.kill(id));
        restarted.iter().for_each(|&id| group.start_replica(id));
        group.await_ready();
        for id in 1..=3 {
            let found = group.client(id).call(&["GET", "key"]);
            assert_eq!(found, Reply::Bulk(value.clone().into()), "round {round}, replica {id}");
        }
    }
}

/// Packets that are silently lost, as a full queue loses them: the system alone would try after 1,
/// 3, 7 … 63 s.
#[test]
fn a_member_that_does_not_answer_is_tried_again_soon() {
    let mut group = Group::start("unanswered", 2, AckLevel::Replicated);
    group.await_ready();
    (1..=2).for_each(|id| group.kill(id));
    let listener = TcpListener::bind(("127.0.0.1", group.ports[1])).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let filler = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let begun = Instant::now();
    let mut second = group.command(2).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(second.stderr.take().unwrap()).lines().map(Result::unwrap);
    group.adopt(2, second);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || lines.for_each(|line| drop(sender.send(line))));
    loop {
        let line = receiver.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())).unwrap();
        if line.contains("cannot be connected to: no answer for 1000 ms") {
            break;
        }
    }
    // The next attempts find it.
    drop((filler, listener));
    group.start_replica(1);
    group.await_ready();
}

/// A read that meets the restart of the tail waits for it, as long as the server says that reads
/// wait.
#[test]
fn a_read_waits_while_the_tail_restarts() {
    const READ_WAIT: Duration = Duration::from_secs(5);
    let mut group = Group::start("waits", 3, AckLevel::Replicated);
    group.await_ready();
    assert_eq!(group.client(1).call(&["SET", "key", "value"]), Reply::OK);
    let mut clients: Vec<Client> = (1..=2).map(|id| group.client(id)).collect();
    let killed = Instant::now();
    group.kill(3);
    clients.iter_mut().for_each(|client| client.send(&["GET", "key"]));
    group.start_replica(3);
    for client in &mut clients {
        let reply = client.receive();
        let is_late = reply.is_error() && killed.elapsed() > READ_WAIT;
        assert!(is_late || reply == Reply::Bulk("value".into()), "{reply:?}");
    }
    // A tail that stays away is not waited for for ever.
    group.kill(3);
    let mut client = group.client(1);
    let refused = loop {
        match client.call(&["GET", "key"]) {
            Reply::Error(text) => break String::from_utf8_lossy(&text).into_owned(),
            reply => assert_eq!(reply, Reply::Bulk("value".into())),
        }
    };
    assert!(refused.starts_with("TRYAGAIN the tail of the chain, replica 3"), "{refused}");
}

/// Sets keys in a pipeline; what a broken connection between members made uncertain is set again.
fn fill(client: &mut Client, value: &str, count: u32) {
    let key = |i: u32| format!("key-{:08}", i * 7919);
    for start in (0..count).step_by(100) {
        (start..start + 100).for_each(|i| client.send(&["SET", &key(i), value]));
        let replies: Vec<Reply> = (0..100).map(|_| client.receive()).collect();
        for (i, reply) in (start..).zip(replies) {
            if reply != Reply::OK {
                assert!(reply.is_error(), "{reply:?}");
                client.insist(&["SET", &key(i), value]);
            }
        }
    }
}

fn await_refusal(client: &mut Client) -> String {
    let start = Instant::now();
    loop {
        if let Reply::Error(text) = client.call(&["SET", "during", "1"]) {
            let text = String::from_utf8_lossy(&text).into_owned();
            if text.starts_with("TRYAGAIN writes are refused") {
                return text;
            }
            if text.starts_with("UNKNOWN") {
                assert_eq!(client.call(&["WAIT", "1", "0"]), Reply::Integer(0), "{text}");
            }
        }
        assert!(start.elapsed() < PATIENCE, "writes are still taken");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// At rest all replicas hold the same records in the same files.
fn replicas_are_equal(group: &Group) {
    let start = Instant::now();
    loop {
        let at = |id, question| group.client(id).json(&["GABION", question]);
        let files: Vec<_> = (1..=3).map(|id| at(id, "FILES")).collect();
        let digests: Vec<_> = (1..=3).map(|id| at(id, "DIGEST")).collect();
        let rests =
            files.iter().all(|f| f == &files[0]) && digests.iter().all(|d| d == &digests[0]);
        if rests && files[0]["files"].as_array().is_some_and(|files| files.len() > 1) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{files:?} {digests:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// docs/faults.md: P7
#[test]
fn a_digest_at_a_position_is_of_one_state_at_every_replica_and_says_why_it_is_not_given() {
    let group = Group::start("marks", 3, AckLevel::Replicated);
    group.await_ready();
    fill(&mut group.client(1), "value", 500);
    let error = |words: &[&str]| match group.client(2).call(words) {
        Reply::Error(text) => String::from_utf8_lossy(&text).into_owned(),
        reply => panic!("{words:?}: {reply:?}"),
    };
    let text = error(&["GABION", "DIGEST", "-1"]);
    assert!(text.starts_with("ERR log position '-1' is no number"), "{text}");
    let text = error(&["GABION", "SCRUB", "1", "x"]);
    assert!(text.starts_with("ERR file number 'x' is no number"), "{text}");
    let text = error(&["GABION", "DIGEST", "1"]);
    assert!(text.starts_with("TRYAGAIN unavailable: log position @1 is passed"), "{text}");
    let end = group.client(1).json(&["GABION", "STATUS"])["log"]["end"].as_u64().unwrap();
    let text = error(&["GABION", "DIGEST", &(end + (1 << 30)).to_string()]);
    assert!(text.contains("the log did not reach"), "{text}");

    // What is written behind the position is in no answer.
    let position = (end + 1).to_string();
    let mut askers: Vec<Client> = (1..=3).map(|id| group.client(id)).collect();
    askers.iter_mut().for_each(|asker| asker.send(&["GABION", "DIGEST", &position]));
    let begun = Instant::now();
    while (1..=3).any(|id| group.client(id).json(&["GABION", "STATUS"])["marks"] != 1) {
        assert!(begun.elapsed() < PATIENCE, "not all replicas wait for {position}");
    }
    fill(&mut group.client(1), "another value", 500);
    let answers: Vec<Reply> = askers.iter_mut().map(Client::receive).collect();
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    let Reply::Bulk(text) = &answers[0] else { panic!("{answers:?}") };
    let state: serde_json::Value = serde_json::from_slice(text).unwrap();
    assert_eq!(state["records"], 500, "{state}");
    let all = group.client(1).json(&["GABION", "STATUS"])["log"]["end"].as_u64().unwrap();
    assert!((end + 1..all).contains(&state["log_end"].as_u64().unwrap()), "{state}");
}

/// Writes that came in the same packet are in the MemTable of the head before they are in its log.
#[test]
fn a_digest_tells_the_end_of_the_log_that_it_is_of() {
    let group = Group::start("digests", 2, AckLevel::Replicated);
    group.await_ready();
    let (mut head, mut tail) = (group.client(1), group.client(2));
    for round in 0..20 {
        let mut packet = Vec::new();
        encode_request(&["SET", &format!("key-{round}"), "value"], &mut packet);
        encode_request(&["GABION", "DIGEST"], &mut packet);
        head.stream.write_all(&packet).unwrap();
        assert_eq!(head.receive(), Reply::OK);
        let Reply::Bulk(digest) = head.receive() else { panic!("no digest") };
        let digest: serde_json::Value = serde_json::from_slice(&digest).unwrap();
        assert_eq!(digest["records"], round + 1);
        // Acknowledged, so it is at the tail, and nobody writes.
        assert_eq!(tail.json(&["GABION", "DIGEST"]), digest);
    }
}

/// docs/faults.md: P7
#[test]
fn a_position_that_nobody_waits_for_any_more_is_forgotten() {
    let group = Group::start("gone", 1, AckLevel::Replicated);
    group.await_ready();
    let mut stream = TcpStream::connect(("127.0.0.1", group.ports[0])).unwrap();
    stream.write_all(b"GABION DIGEST 99999999999\r\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.contains("closed at its other end"), "{reply}");
}

#[test]
fn a_transaction_that_copies_long_values_again_and_again_keeps_nobody_waiting() {
    let group = Group::start("copies", 1, AckLevel::Replicated);
    group.await_ready();
    let (mut writer, mut reader) = (group.client(1), group.client(1));
    assert_eq!(writer.call(&["SET", "long", &"v".repeat(8 << 20)]), Reply::OK);
    let mut packet = Vec::new();
    encode_request(&["MULTI"], &mut packet);
    (0..300).for_each(|_| encode_request(&["SETRANGE", "long", "7", "w"], &mut packet));
    encode_request(&["SET", "done", "1"], &mut packet);
    encode_request(&["EXEC"], &mut packet);
    writer.stream.write_all(&packet).unwrap();
    let (mut before, mut longest) = (0, Duration::ZERO);
    loop {
        let begun = Instant::now();
        let is_done = reader.call(&["GET", "done"]) != Reply::Null;
        let part = reader.text(&["GETRANGE", "long", "0", "9"]);
        longest = longest.max(begun.elapsed());
        if part.contains("vvvvvvvwvv") {
            break;
        }
        assert!(!is_done, "all of it or nothing");
        before += 1;
    }
    assert!(before > 5, "{before} reads were answered while it ran, the last after {longest:?}");
    assert_eq!(reader.text(&["GET", "done"]), "$1\r\n1\r\n");
    (0..302).for_each(|_| drop(writer.receive()));
    assert!(matches!(writer.receive(), Reply::Array(replies) if replies.len() == 301));
}

#[test]
fn a_scrub_that_nobody_waits_for_any_more_ends_before_its_next_file() {
    let group = Group::start("unscrubbed", 1, AckLevel::Replicated);
    group.await_ready();
    let mut client = group.client(1);
    let begun = Instant::now();
    while client.status()["live_files"].as_u64().unwrap() < 4 {
        fill(&mut client, &"v".repeat(1000), 4_000);
        assert!(begun.elapsed() < PATIENCE, "no four files");
    }
    let mut stream = TcpStream::connect(("127.0.0.1", group.ports[0])).unwrap();
    // So many at once that none comes to its last file before the end is seen.
    stream.write_all(&b"GABION SCRUB\r\n".repeat(30)).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    let abandoned = "-TRYAGAIN unavailable: the connection was closed at its other end";
    assert!(replies.lines().last().is_some_and(|line| line == abandoned), "{replies}");
}

/// Threads of a replica that compact.
fn compacting_threads(client: &mut Client) -> usize {
    let tasks = format!("/proc/{}/task", client.status()["pid"]);
    let tasks = std::fs::read_dir(tasks).unwrap().map(|task| task.unwrap().path().join("comm"));
    let names = tasks.filter_map(|comm| std::fs::read_to_string(comm).ok());
    names.filter(|name| name.trim() == "gabion-compact").count()
}

/// From now on a reader ends as soon as an edit overtakes it; the cache grows and shrinks; more
/// compactions run at once.
fn options_change(client: &mut Client) {
    let most = "gabion-compactions-max";
    assert!(client.text(&["CONFIG", "GET", most]).ends_with("\r\n1\r\n"));
    assert_eq!(compacting_threads(client), 1);
    let refused = client.text(&["CONFIG", "SET", most, "65"]);
    assert!(refused.contains("argument must be between 1 and 64 inclusive"), "{refused}");
    // A thread names itself when it begins.
    for (count, threads) in [("3", 3), ("2", 3)] {
        assert_eq!(client.text(&["CONFIG", "SET", most, count]), "+OK\r\n");
        let begun = Instant::now();
        while compacting_threads(client) < threads {
            assert!(begun.elapsed() < PATIENCE, "{count} compactions at once");
        }
        assert_eq!(compacting_threads(client), threads, "those that are there stay");
        let now = client.text(&["CONFIG", "GET", most]);
        assert!(now.ends_with(&format!("\r\n{count}\r\n")), "{now}");
    }
    let cache = "gabion-block-cache-bytes";
    let is =
        |len: &str| format!("*2\r\n${}\r\n{cache}\r\n${}\r\n{len}\r\n", cache.len(), len.len());
    assert_eq!(client.text(&["CONFIG", "GET", cache]), is("4194304"));
    let refused = client.text(&["CONFIG", "SET", cache, "8mb", "port", "1"]);
    assert!(refused.contains("argument 'port') - can't set immutable config"), "{refused}");
    assert_eq!(client.text(&["CONFIG", "GET", cache]), is("4194304"), "all or none");
    assert_eq!(client.text(&["CONFIG", "SET", cache, "8mb"]), "+OK\r\n");
    assert_eq!(client.text(&["CONFIG", "GET", cache]), is("8388608"));
    assert_eq!(client.text(&["CONFIG", "SET", cache, "1mb"]), "+OK\r\n");
    assert_eq!(client.text(&["CONFIG", "GET", cache]), is("1048576"));
    let mut codec =
        |name: &str| client.text(&["CONFIG", "GET", &format!("gabion-{name}compression")]);
    assert!(codec("").ends_with("\r\nnone\r\n"));
    assert!(codec("bottom-").ends_with("\r\nsame\r\n"));
    let lz4 = ["CONFIG", "SET", "gabion-compression", "lz4", "gabion-bottom-compression", "zstd"];
    assert_eq!(client.text(&lz4), "+OK\r\n");
    let mut codec =
        |name: &str| client.text(&["CONFIG", "GET", &format!("gabion-{name}compression")]);
    assert!(codec("").ends_with("\r\nlz4\r\n"));
    assert!(codec("bottom-").ends_with("\r\nzstd:3\r\n"));
    let age = ["CONFIG", "SET", "gabion-reader-age-ms", "0", "gabion-reader-states", "0"];
    assert_eq!(client.text(&age), "+OK\r\n");
    let limits = |client: &mut Client| {
        ["gabion-l0-trigger", "gabion-l0-slowdown", "gabion-l0-stop", "gabion-memtable-bytes"]
            .map(|name| client.text(&["CONFIG", "GET", name]).lines().last().map(str::to_owned))
    };
    let before = limits(client);
    let longer = ["CONFIG", "SET", "gabion-l0-trigger", "1", "gabion-memtable-bytes", "1gb"];
    let refused = client.text(&longer);
    assert!(refused.contains("a sixteenth of the pool"), "{refused}");
    let refused = client.text(&["CONFIG", "SET", "gabion-l0-slowdown", "1"]);
    assert!(refused.contains("must not descend, from 1 to 1000"), "{refused}");
    assert_eq!(limits(client), before, "all or none");
    let set = ["CONFIG", "SET", "gabion-l0-trigger", "1", "gabion-memtable-bytes", "64kb"];
    assert_eq!(client.text(&set), "+OK\r\n");
    let [trigger, slowdown, stop, memtable] = limits(client);
    assert_eq!((trigger.as_deref(), memtable.as_deref()), (Some("1"), Some("65536")));
    assert_eq!([&slowdown, &stop], [&before[1], &before[2]]);
}

/// Nothing but the digest lasts so long in practice; here the budget is nothing at all.
/// docs/faults.md: P1, P15
#[test]
fn a_read_past_the_pin_budget_is_told_so_and_a_scrub_needs_none() {
    let group = Group::start("impatient", 1, AckLevel::Replicated);
    group.await_ready();
    let (mut reader, mut writer) = (group.client(1), group.client(1));
    options_change(&mut reader);
    fill(&mut writer, "a value of a record", 60_000);
    let start = Instant::now();
    let text = loop {
        reader.send(&["GABION", "DIGEST"]);
        fill(&mut writer, &"v".repeat(1000), 2_000);
        if let Reply::Error(text) = reader.receive() {
            break String::from_utf8_lossy(&text).into_owned();
        }
        assert!(start.elapsed() < PATIENCE, "no digest was overtaken by an edit");
    };
    assert!(text.starts_with("TRYAGAIN snapshot too old: the read was ended "), "{text}");
    assert!(text.contains("ms after an edit replaced what it reads: "), "{text}");
    assert!(writer.status()["readers"]["ended"].as_u64().unwrap() > 0);
    let info = writer.text(&["INFO", "gabion"]);
    assert!(info.contains("readers_ended:") && !info.contains("readers_ended:0\r"), "{info}");

    for _ in 0..3 {
        reader.send(&["GABION", "SCRUB"]);
        fill(&mut writer, &"w".repeat(1000), 4_000);
        let Reply::Bulk(scrub) = reader.receive() else { panic!("a scrub outlives edits") };
        let scrub: serde_json::Value = serde_json::from_slice(&scrub).unwrap();
        assert_eq!(scrub["errors"], serde_json::json!([]), "{scrub}");
        assert!(scrub["files"].as_u64().unwrap() > 0, "{scrub}");
    }
    let digest = reader.insist(&["GABION", "DIGEST"]);
    assert!(matches!(digest, Reply::Bulk(_)), "at rest: {digest:?}");
}

/// With a MemTable that waits for its flush writers are stopped.
/// docs/faults.md: P28
#[test]
fn writes_that_wait_are_counted() {
    let tree = TreeConfig { memtable_len: 64 * KIB, sealed_max: 1, ..TreeConfig::default() };
    let config = GroupConfig { tree, ..support::group_config(1, AckLevel::Replicated) };
    let group = Group::start_as("stopped", &config);
    group.await_ready();
    let mut client = group.client(1);
    let stopped = |client: &mut Client| {
        let counters = client.status()["counters"].clone();
        let by_flush = counters["writes_stopped_ms_by"]["flush"].as_u64().unwrap();
        assert!(counters["writes_stopped_ms"].as_u64() >= Some(by_flush), "{counters}");
        by_flush
    };
    assert_eq!(stopped(&mut client), 0);
    fill(&mut client, &"v".repeat(1000), 4_000);
    assert!(stopped(&mut client) > 0, "of sixty flushes");
    let info = client.text(&["INFO", "gabion"]);
    assert!(info.contains("\r\nwrites_slowed_ms:"), "{info}");
    assert!(info.contains("\r\nwrites_stopped_ms:"), "{info}");
    assert!(!info.contains("\r\nwrites_stopped_ms:0\r"), "{info}");
    assert!(info.contains("\r\nwrites_stopped_ms_by:flush="), "{info}");
}

#[test]
fn one_durable_replica_keeps_what_it_said_and_its_lock() {
    let mut group = Group::start("alone", 1, AckLevel::Durable);
    group.await_ready();
    let mut client = group.client(1);
    assert_eq!(client.status()["role"], "primary");
    for i in 0..200 {
        client.send(&["SET", &format!("key-{i}"), "value"]);
        client.send(&["GET", &format!("key-{i}")]);
        client.send(&["INCR", "counter"]);
    }
    for i in 1..=200 {
        assert_eq!(client.receive(), Reply::OK);
        assert_eq!(client.receive(), Reply::Bulk("value".into()));
        assert_eq!(client.receive(), Reply::Integer(i));
    }
    let second = group.command(1).output().unwrap();
    assert_eq!(second.status.code(), Some(75));
    let message = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(message.contains("in use by process"), "{message}");
    group.kill(1);
    group.start_replica(1);
    group.await_ready();
    let mut client = group.client(1);
    assert_eq!(client.text(&["GET", "counter"]), "$3\r\n200\r\n");
    assert_eq!(client.text(&["DBSIZE"]), ":201\r\n");
    let info = client.text(&["INFO"]);
    assert!(info.contains("role:master") && info.contains("used_cpu_user"), "{info}");
    assert!(client.text(&["GABION", "NONSENSE"]).starts_with("-ERR unknown question"));
}

#[test]
fn a_page_on_the_web_cannot_have_commands_run() {
    let group = Group::start("http", 1, AckLevel::Replicated);
    group.await_ready();
    let mut client = group.client(1);
    assert_eq!(client.call(&["SET", "key", "value"]), Reply::OK);
    for head in ["POST / HTTP/1.1\r\n", "PUT / HTTP/1.1\r\nHost: localhost\r\n"] {
        let mut page = group.client(1).stream;
        let request = format!("{head}Content-Length: 12\r\n\r\nFLUSHALL\r\n\r\n");
        page.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // The end of the stream or a reset, as the rest of what was sent is not read.
        let _ = page.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"+OK"), "{}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(client.call(&["GET", "key"]), Reply::Bulk("value".into()));
}

#[test]
fn a_command_with_values_that_fit_no_record_does_nothing() {
    let group = Group::start("record", 1, AckLevel::Replicated);
    group.await_ready();
    let mut client = group.client(1);
    let long = "x".repeat(8 << 20);
    // From a length that fits to one that is the longest request.
    for (less, fits) in [(80 << 10, true), (48 << 10, false), (6 << 10, false), (3 << 10, false)] {
        let reply = client.call(&["MSET", "a", &long, "b", &long[less..]]);
        assert_eq!(reply.is_error(), !fits, "{less} bytes less: {reply:?}");
        assert_eq!(client.call(&["EXISTS", "a", "b"]), Reply::Integer(if fits { 2 } else { 0 }));
        client.call(&["DEL", "a", "b"]);
    }
}

/// docs/faults.md: H9
#[test]
fn a_configuration_that_cannot_work_is_refused_with_a_sentence() {
    let dir = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("refused");
    let _ = std::fs::remove_dir_all(&dir);
    let group = support::group_config(3, AckLevel::Replicated);
    let replica = gabion_base::ReplicaId(1);
    gabion_server::create_replica(&dir.join("1"), 64 << 20, &group, replica).unwrap();
    let again = gabion_server::create_replica(&dir.join("1"), 64 << 20, &group, replica);
    assert!(again.unwrap_err().to_string().ends_with("holds a replica already"));
    let refusal = |change: &dyn Fn(&mut gabion_server::ServerConfig)| {
        let mut config = support::config(&dir, 1, &[0; 9]);
        change(&mut config);
        gabion_server::run(config).unwrap_err().to_string()
    };
    let text = refusal(&|config| config.resp = "0.0.0.0:0".parse().unwrap());
    assert!(text.contains("other than loopback addresses take a user with a password"), "{text}");
    let text = refusal(&|config| config.metrics = Some("0.0.0.0:0".parse().unwrap()));
    assert!(text.contains("the door for metrics is to listen on 0.0.0.0:0"), "{text}");
    let text = refusal(&|config| config.replica = gabion_base::ReplicaId(2));
    assert!(
        text.ends_with("belongs to replica 1 of group g7, not to replica 2 of group g7"),
        "{text}"
    );
    let text = refusal(&|config| config.group = gabion_base::GroupId(8));
    assert!(
        text.ends_with("belongs to replica 1 of group g7, not to replica 1 of group g8"),
        "{text}"
    );
    let text = refusal(&|config| config.node.compactions_max = 0);
    assert!(text.ends_with("0 compactions at once: 1 to 64 are possible"), "{text}");
    let text = refusal(&|config| config.jobs_nice = 20);
    assert!(text.ends_with("jobs that stand back by 20 steps: 0 to 19 are possible"), "{text}");
    let text = refusal(&|config| config.peers.truncate(1));
    assert!(text.contains("no address is given for replica 3"), "{text}");
    std::fs::remove_dir_all(&dir).unwrap();
}
