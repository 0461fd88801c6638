//! WATCH and EXEC at the doors of a group.

use crate::support::{Client, Group};
use gabion_node::AckLevel;
use gabion_resp::{Reply, encode_request};
use std::io::Write;
use std::net::TcpStream;

const INCREMENTS: usize = 40;

fn send_all(client: &mut Client, lines: &[&str]) {
    let mut out = Vec::new();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        encode_request(&words, &mut out);
    }
    client.stream.write_all(&out).unwrap();
}

/// Adds one by WATCH, GET, SET; returns whether nobody came between.
fn increment(client: &mut Client) -> bool {
    assert_eq!(client.text(&["WATCH", "n"]), "+OK\r\n");
    let n = match client.call(&["GET", "n"]) {
        Reply::Bulk(text) => String::from_utf8_lossy(&text).parse().unwrap(),
        Reply::Null => 0_u32,
        other => panic!("{other:?}"),
    };
    client.text(&["MULTI"]);
    client.text(&["SET", "n", &(n + 1).to_string()]);
    match client.call(&["EXEC"]) {
        Reply::Array(replies) => replies == [Reply::OK],
        Reply::Null | Reply::NullArray => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn increments_under_watch_at_every_door_lose_none() {
    let group = Group::start("watch", 3, AckLevel::Replicated);
    group.await_ready();
    std::thread::scope(|scope| {
        for id in [1, 1, 2, 2, 3, 3] {
            let mut client = group.client(id);
            scope.spawn(move || (0..INCREMENTS).for_each(|_| while !increment(&mut client) {}));
        }
    });
    let total = (6 * INCREMENTS).to_string();
    assert_eq!(group.client(2).call(&["GET", "n"]), Reply::Bulk(total.into()));
    for id in 1..=3 {
        all_at_once(&mut group.client(id), &mut group.client(id % 3 + 1));
    }
}

/// Nobody has to wait for the reply of one before sending the next.
fn all_at_once(client: &mut Client, other: &mut Client) {
    let text = |client: &mut Client| {
        let mut out = Vec::new();
        client.receive().encode(gabion_resp::Protocol::Resp2, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    };
    other.text(&["SET", "a", "1"]);
    let lines = ["SET b 1", "WATCH a b", "GET b", "MULTI", "INCR b", "PING", "EXEC", "GET b"];
    send_all(client, &lines);
    for expected in
        ["+OK", "+OK", "$1\r\n1", "+OK", "+QUEUED", "+QUEUED", "*2\r\n:2\r\n+PONG", "$1\r\n2"]
    {
        assert_eq!(text(client), format!("{expected}\r\n"));
    }
    // Without a command on data too.
    send_all(client, &["WATCH a", "MULTI", "PING", "EXEC", "WATCH a b"]);
    for expected in ["+OK", "+OK", "+QUEUED", "*1\r\n+PONG", "+OK"] {
        assert_eq!(text(client), format!("{expected}\r\n"));
    }
    other.text(&["SET", "a", "1"]);
    send_all(client, &["MULTI", "PING", "EXEC", "MULTI", "INCR b", "PING", "EXEC"]);
    for expected in ["+OK", "+QUEUED", "*-1", "+OK", "+QUEUED", "+QUEUED", "*2\r\n:3\r\n+PONG"] {
        assert_eq!(text(client), format!("{expected}\r\n"));
    }
}

#[test]
fn exec_fails_when_the_head_has_forgotten_what_was_watched() {
    let mut group = Group::start("watch-head", 3, AckLevel::Replicated);
    group.await_ready();
    let mut client = group.client(2);
    assert_eq!(client.text(&["SET", "k", "1"]), "+OK\r\n");
    assert_eq!(client.text(&["WATCH", "k"]), "+OK\r\n");
    group.kill(1);
    // It is not watched at all where no head could be asked.
    let mut lost: Client = Client::new(TcpStream::connect(("127.0.0.1", group.door(3))).unwrap());
    while !matches!(lost.call(&["WATCH", "k"]), Reply::Error(_)) {}
    group.start_replica(1);
    group.await_ready();
    for client in [&mut client, &mut lost] {
        client.text(&["MULTI"]);
        client.text(&["SET", "k", "2"]);
        assert_eq!(client.text(&["EXEC"]), "*-1\r\n");
        assert_eq!(client.text(&["GET", "k"]), "$1\r\n1\r\n");
    }
    assert_eq!(client.text(&["WATCH", "k"]), "+OK\r\n");
    client.text(&["MULTI"]);
    client.text(&["SET", "k", "2"]);
    assert_eq!(client.text(&["EXEC"]), "*1\r\n+OK\r\n");
}
