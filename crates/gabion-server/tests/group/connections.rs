//! What is done to connections: closed by name or for idling, answered or not; and what a group's roles are.

use super::support::{Client, Group, PATIENCE};
use gabion_node::AckLevel;
use gabion_resp::Reply;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// The connection ends, and nothing more comes of it.
fn ends(client: &mut Client) {
    match client.stream.read(&mut [0]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        // Also that nothing came for as long as a read waits.
        other => panic!("it goes on: {other:?}"),
    }
}

fn id_of(client: &mut Client) -> String {
    let Reply::Integer(id) = client.call(&["CLIENT", "ID"]) else { panic!() };
    id.to_string()
}

#[test]
fn a_killed_connection_ends_and_who_kills_itself_is_told_first() {
    let group = Group::start("killed", 1, AckLevel::Replicated);
    group.await_ready();
    let (mut me, mut other, mut third) = (group.client(1), group.client(1), group.client(1));
    let (mine, others) = (id_of(&mut me), id_of(&mut other));
    id_of(&mut third);
    assert_eq!(me.call(&["CLIENT", "KILL", "ID", &others]), Reply::Integer(1));
    ends(&mut other);
    assert_eq!(me.call(&["CLIENT", "KILL", "ID", &others]), Reply::Integer(0));
    // In a transaction with data, which is run all the same.
    for words in [&["MULTI"][..], &["SET", "a", "1"]] {
        me.call(words);
    }
    me.call(&["CLIENT", "KILL", "ID", &mine, "SKIPME", "no"]);
    let expected = Reply::Array(vec![Reply::OK, Reply::Integer(1)]);
    assert_eq!(me.call(&["EXEC"]), expected);
    ends(&mut me);
    assert_eq!(third.call(&["GET", "a"]), Reply::Bulk("1".into()));
    let address = third.stream.local_addr().unwrap().to_string();
    assert_eq!(third.call(&["CLIENT", "KILL", &address]), Reply::OK);
    ends(&mut third);
    assert_eq!(group.client(1).text(&["PING"]), "+PONG\r\n");
}

#[test]
fn what_a_connection_sends_behind_its_end_is_not_run() {
    let group = Group::start("behind", 1, AckLevel::Replicated);
    group.await_ready();
    let (mut me, mut other) = (group.client(1), group.client(1));
    let mine = id_of(&mut me);
    // In one piece, so that it is all there when EXEC is run.
    let lines = format!(
        "MULTI\r\nSET a 1\r\nCLIENT KILL ID {mine} SKIPME no\r\nEXEC\r\nSET a 2\r\nPING\r\n"
    );
    me.stream.write_all(lines.as_bytes()).unwrap();
    for expected in [Reply::OK, Reply::simple("QUEUED"), Reply::simple("QUEUED")] {
        assert_eq!(me.receive(), expected);
    }
    assert_eq!(me.receive(), Reply::Array(vec![Reply::OK, Reply::Integer(1)]));
    ends(&mut me);
    assert_eq!(other.call(&["GET", "a"]), Reply::Bulk("1".into()));
}

/// How long a connection has idled, in seconds, as another sees it.
fn idle_s(other: &mut Client, id: &str) -> u64 {
    let list = other.text(&["CLIENT", "LIST", "ID", id]);
    let idle = list.split_once(" idle=").and_then(|(_, rest)| rest.split(' ').next());
    idle.unwrap_or_else(|| panic!("{list}")).parse().unwrap()
}

/// Waits until a connection has idled for a second, and then until it does no more, as `stir` is called.
fn stirs(other: &mut Client, id: &str, mut stir: impl FnMut()) {
    let until = Instant::now() + PATIENCE;
    while idle_s(other, id) == 0 {
        assert!(Instant::now() < until, "it does not idle");
        std::thread::sleep(Duration::from_millis(50));
    }
    while idle_s(other, id) > 0 {
        assert!(Instant::now() < until, "it still counts as idle");
        stir();
    }
}

#[test]
fn a_connection_does_not_idle_while_it_sends_a_request_or_takes_a_reply() {
    let group = Group::start("stirring", 1, AckLevel::Replicated);
    group.await_ready();
    let (mut me, mut other) = (group.client(1), group.client(1));
    let id = id_of(&mut me);
    me.stream.write_all(b"*2\r\n$4\r\nECHO\r\n$1000\r\n").unwrap();
    let mut sent = 0;
    stirs(&mut other, &id, || {
        me.stream.write_all(b"x").unwrap();
        sent += 1;
        std::thread::sleep(Duration::from_millis(50));
    });
    me.stream.write_all(format!("{}\r\n", "x".repeat(1000 - sent)).as_bytes()).unwrap();
    assert_eq!(me.receive(), Reply::Bulk("x".repeat(1000).into()));
    // More than the buffers of both ends hold.
    assert_eq!(other.call(&["SETRANGE", "a", "8000000", "x"]), Reply::Integer(8_000_001));
    (0..6).for_each(|_| me.send(&["GET", "a"]));
    let mut bytes = vec![0; 1 << 20];
    stirs(&mut other, &id, || {
        me.stream.read_exact(&mut bytes).unwrap();
    });
}

/// Also replies that come from another node, or later.
#[test]
fn a_connection_that_wants_no_replies_gets_none_and_its_commands_are_run() {
    let group = Group::start("muted", 2, AckLevel::Replicated);
    group.await_ready();
    for id in 1..=2 {
        let mut client = group.client(id);
        for words in [
            &["CLIENT", "REPLY", "OFF"][..],
            &["SET", "a", "1"],
            &["GET", "a"],
            &["INCR", "a"],
            &["NOPE"],
            &["GABION", "STATUS"],
            &["CLIENT", "REPLY", "ON"],
            &["GET", "a"],
            &["CLIENT", "REPLY", "SKIP"],
            &["GET", "a"],
            &["PING"],
        ] {
            client.send(words);
        }
        let replies = [Reply::OK, Reply::Bulk("2".into()), Reply::simple("PONG")];
        replies.iter().for_each(|reply| assert_eq!(client.receive(), *reply, "at node {id}"));
    }
}

#[test]
fn a_connection_that_idles_for_longer_than_the_option_says_is_closed() {
    let group = Group::start("idle", 1, AckLevel::Replicated);
    group.await_ready();
    let (mut idle, mut busy) = (group.client(1), group.client(1));
    assert_eq!(idle.text(&["PING"]), "+PONG\r\n");
    assert_eq!(busy.call(&["CONFIG", "SET", "timeout", "1"]), Reply::OK);
    let id = id_of(&mut busy);
    let until = Instant::now() + PATIENCE;
    // One that asks stays.
    while busy.text(&["CLIENT", "LIST"]).matches(" laddr=").count() > 1 {
        assert!(Instant::now() < until, "it idles, and is not closed");
        std::thread::sleep(Duration::from_millis(50));
    }
    ends(&mut idle);
    // One more than there may be is told so.
    for (most, is_taken) in [("0", false), ("1000000", false), ("1", true)] {
        let reply = busy.call(&["CONFIG", "SET", "maxclients", most]);
        assert_eq!(reply == Reply::OK, is_taken, "{most}: {reply:?}");
    }
    assert!(busy.text(&["INFO", "clients"]).contains("maxclients:1\r\n"));
    let refused = Reply::error("ERR max number of clients reached");
    assert_eq!(group.client(1).receive(), refused);
    assert!(busy.text(&["CLIENT", "LIST"]).contains(&format!("id={id} ")));
}

#[test]
fn roles_and_slow_commands_are_told_at_each_node() {
    let group = Group::start("roles", 2, AckLevel::Durable);
    group.await_ready();
    let (mut head, mut tail) = (group.client(1), group.client(2));
    for client in [&mut head, &mut tail] {
        client.insist(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    }
    head.call(&["CLIENT", "SETNAME", "me"]);
    assert_eq!(head.call(&["SET", "a", "1"]), Reply::OK);
    assert_eq!(head.call(&["WAITAOF", "1", "1", "0"]), Reply::Array(vec![Reply::Integer(1); 2]));
    assert_eq!(head.call(&["GET", "a"]), Reply::Bulk("1".into()));
    // What was passed on stands where it was run.
    let here = head.text(&["SLOWLOG", "GET"]);
    assert!(here.contains("$3\r\nSET\r\n") && here.contains("$2\r\nme\r\n"), "{here}");
    assert!(!here.contains("$3\r\nGET\r\n$1\r\na\r\n"), "{here}");
    let there = tail.text(&["SLOWLOG", "GET"]);
    assert!(there.contains("$3\r\nGET\r\n$1\r\na\r\n$9\r\nreplica 1\r\n"), "{there}");
    let door = |id| group.door(id).to_string();
    let role = head.text(&["ROLE"]);
    assert!(role.starts_with("*3\r\n$6\r\nmaster\r\n:"), "{role}");
    assert!(role.contains(&format!("$9\r\n127.0.0.1\r\n$5\r\n{}\r\n", door(2))), "{role}");
    let role = tail.text(&["ROLE"]);
    let master =
        format!("*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:{}\r\n$9\r\nconnected\r\n", door(1));
    assert!(role.starts_with(&master), "{role}");
    let replica_of = tail.text(&["CONFIG", "GET", "replicaof"]);
    assert!(replica_of.contains(&format!("127.0.0.1 {}", door(1))), "{replica_of}");
    assert!(tail.text(&["REPLICAOF", "NO", "ONE"]).starts_with("-ERR "));
}
