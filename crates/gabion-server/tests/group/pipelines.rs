//! Clients that send a whole pipeline before they read a reply, and what is too large in it.

use super::support::{Client, Group, INPUT_BYTES_OF, PATIENCE};
use gabion_node::AckLevel;
use gabion_resp::{Reply, encode_request};
use std::io::{Read, Write};
use std::net::Shutdown;

/// Bytes of replies of one connection that wait for it before its requests do.
const UNREAD_MAX: usize = 64 << 20;
/// Bytes of requests that may wait then.
const INPUT_MAX: usize = 64 << 20;
const VALUE_LEN: usize = 2_000;
/// Long, so that the requests of a pipeline are more than sockets take.
const KEY_LEN: usize = 1_000;

/// A connection that takes its time, but not for ever.
fn client(group: &Group, id: u32) -> Client {
    let client = group.client(id);
    client.stream.set_write_timeout(Some(PATIENCE)).unwrap();
    client
}

fn long_key() -> String {
    "k".repeat(KEY_LEN)
}

/// So many requests, one INCR among each hundred.
fn pipeline(count: usize, counter: &str) -> Vec<u8> {
    let (mut wire, key) = (Vec::new(), long_key());
    for n in 0..count {
        match n % 100 {
            0 => encode_request(&["INCR", counter], &mut wire),
            _ => encode_request(&["GET", &key], &mut wire),
        }
    }
    wire
}

/// What a pipeline has beside reads: a transaction, and a read that has to wait for the write before it.
fn others(id: u32) -> Vec<u8> {
    let (number, once) = (format!("number-{id}"), format!("once-{id}"));
    let mut wire = Vec::new();
    for words in [
        &["MULTI"][..],
        &["INCR", &once],
        &["SET", &number, "7"],
        &["EXEC"],
        &["INCR", &number],
        &["GET", &number],
    ] {
        encode_request(words, &mut wire);
    }
    wire
}

fn reads_others(client: &mut Client) {
    let (ok, queued) = (Reply::OK, Reply::simple("QUEUED"));
    let run = Reply::Array(vec![Reply::Integer(1), Reply::OK]);
    let expected = [ok, queued.clone(), queued, run, Reply::Integer(8), Reply::Bulk("8".into())];
    expected.iter().for_each(|reply| assert_eq!(client.receive(), *reply));
}

/// Asked at the head, at a node that runs nothing of it, and at the tail, which is also told that no more comes.
/// docs/faults.md: E14
#[test]
fn a_pipeline_that_is_sent_before_anything_is_read_runs_once_and_to_its_end() {
    let group = Group::start("pipelines", 3, AckLevel::Replicated);
    group.await_ready();
    let value = "v".repeat(VALUE_LEN);
    client(&group, 1).insist(&["SET", &long_key(), &value]);
    let count = (UNREAD_MAX + (16 << 20)) / VALUE_LEN;
    for id in 1..=3 {
        let counter = format!("counter-{id}");
        let mut patient = client(&group, id);
        let wire = [&pipeline(count, &counter)[..], &others(id)].concat();
        assert!(wire.len() > 32 << 20 && wire.len() < INPUT_MAX, "{}", wire.len());
        patient.stream.write_all(&wire).unwrap();
        if id == 3 {
            patient.stream.shutdown(Shutdown::Write).unwrap();
        }
        // Others are served meanwhile.
        assert_eq!(
            client(&group, id).call(&["GET", &long_key()]),
            Reply::Bulk(value.clone().into())
        );
        for n in 0..count {
            match (n % 100, patient.receive()) {
                (0, Reply::Integer(now)) => assert_eq!(now as usize, n / 100 + 1),
                (1.., Reply::Bulk(read)) => assert_eq!(read.len(), VALUE_LEN),
                other => panic!("{n}: {other:?}"),
            }
        }
        reads_others(&mut patient);
        let incremented = Reply::Bulk(count.div_ceil(100).to_string().into());
        assert_eq!(client(&group, id).call(&["GET", &counter]), incremented);
        if id == 3 {
            assert_eq!(
                patient.stream.read(&mut [0; 1]).unwrap(),
                0,
                "it is closed when all is said"
            );
        }
    }
}

/// How many replies come before an error that names `limit`, and how many of them are of INCR. Nothing follows.
fn replies_until_closed(client: &mut Client, limit: usize) -> (usize, i64) {
    let (mut count, mut incremented) = (0, 0);
    loop {
        match client.receive() {
            Reply::Bulk(_) => count += 1,
            Reply::Integer(now) => (count, incremented) = (count + 1, now),
            error => {
                let text = format!("{error:?}");
                assert!(error.is_error() && text.contains(&limit.to_string()), "{text}");
                assert_eq!(client.stream.read(&mut [0; 1]).unwrap(), 0, "closed without a reset");
                return (count, incremented);
            }
        }
    }
}

/// docs/faults.md: E14, R16
#[test]
fn more_than_may_wait_ends_the_connection_with_an_error_and_what_was_not_answered_was_not_run() {
    let group = Group::start("ahead", 1, AckLevel::Replicated);
    group.await_ready();
    client(&group, 1).insist(&["SET", &long_key(), &"v".repeat(VALUE_LEN)]);
    let mut hasty = client(&group, 1);
    let wire = pipeline((INPUT_MAX + UNREAD_MAX) / KEY_LEN, "counter");
    hasty.stream.write_all(&wire).unwrap();
    let (count, incremented) = replies_until_closed(&mut hasty, INPUT_MAX);
    assert_eq!(incremented as usize, count.div_ceil(100));
    assert_eq!(
        client(&group, 1).call(&["GET", "counter"]),
        Reply::Bulk(incremented.to_string().into())
    );
}

/// docs/faults.md: E14
#[test]
fn what_is_too_large_costs_its_command_alone() {
    let group = Group::start("long", 3, AckLevel::Replicated);
    group.await_ready();
    for id in 1..=3 {
        let (counter, mut client) = (format!("counter-{id}"), client(&group, id));
        let lens = [9_000_000, 64 << 20];
        // All of it is sent before anything is read.
        client.send(&["INCR", &counter]);
        for len in lens {
            client.send(&["SET", "key", &"x".repeat(len)]);
            client.send(&["INCR", &counter]);
        }
        let half = "x".repeat(6 << 20);
        client.send(&["MSET", "key", &half, "b", &half, "c", &half]);
        client.send(&["INCR", &counter]);
        assert_eq!(client.receive(), Reply::Integer(1));
        let texts = lens.map(|len| format!("value is {len} bytes long, over the limit of 8388608"));
        let sum = "the arguments of one command or transaction take 18874377 bytes, over the \
                   limit of 16777216";
        for (n, text) in texts.iter().map(String::as_str).chain([sum]).enumerate() {
            assert_eq!(client.receive(), Reply::error_from(format!("ERR {text}")));
            assert_eq!(client.receive(), Reply::Integer(n as i64 + 2));
        }
    }
    assert_eq!(client(&group, 1).call(&["EXISTS", "key", "b", "c"]), Reply::Integer(0));
}

/// docs/faults.md: E14
#[test]
fn what_is_longer_than_redis_takes_ends_the_connection_with_its_words() {
    let group = Group::start("longer", 1, AckLevel::Replicated);
    group.await_ready();
    let mut client = client(&group, 1);
    client.send(&["SET", "key", "value"]);
    client.stream.write_all(b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$536870913\r\n").unwrap();
    (0..64).for_each(|_| client.stream.write_all(&[b'x'; 1 << 20]).unwrap());
    assert_eq!(client.receive(), Reply::OK);
    let text =
        "ERR Protocol error: invalid bulk length: 536870913 bytes are over the limit of 536870912";
    assert_eq!(client.receive(), Reply::error_from(text.to_owned()));
    assert_eq!(client.stream.read(&mut [0; 1]).unwrap(), 0, "closed without a reset");
}

/// A client that asks to be closed is, whatever it sends behind that, and reads all replies before.
#[test]
fn replies_before_quit_are_read_though_more_is_sent_behind_it() {
    let group = Group::start("quit", 1, AckLevel::Replicated);
    group.await_ready();
    client(&group, 1).insist(&["SET", &long_key(), &"v".repeat(VALUE_LEN)]);
    let (mut client, count) = (client(&group, 1), 20_000);
    let wire = pipeline(count, "counter");
    client.stream.write_all(&[&wire[..], b"QUIT\r\n", &wire].concat()).unwrap();
    for _ in 0..count {
        assert!(!client.receive().is_error());
    }
    assert_eq!(client.receive(), Reply::OK);
    assert_eq!(client.stream.read(&mut [0; 1]).unwrap(), 0, "closed without a reset");
}

/// docs/faults.md: E14, R16
#[test]
fn too_much_that_waits_of_all_connections_ends_the_one_with_most() {
    let mut group = Group::start("input-sum", 1, AckLevel::Replicated);
    group.await_ready();
    group.stop(1);
    let limit = 8 << 20;
    let replica = group.command(1).env(INPUT_BYTES_OF, limit.to_string()).spawn().unwrap();
    group.adopt(1, replica);
    group.await_ready();
    let parts = [(6 << 20, "a"), (1 << 20, "b"), (3 << 20, "c")];
    // Each in the middle of a request.
    let mut clients = parts.map(|(len, key)| {
        let (mut client, mut wire) = (client(&group, 1), Vec::new());
        encode_request(&["SET", key, &"v".repeat(len + 1)], &mut wire);
        client.stream.write_all(&wire[..len]).unwrap();
        (client, wire.split_off(len))
    });
    let (largest, _) = &mut clients[0];
    assert_eq!(replies_until_closed(largest, limit), (0, 0));
    for (client, rest) in &mut clients[1..] {
        client.stream.write_all(rest).unwrap();
        assert_eq!(client.receive(), Reply::OK);
    }
    assert_eq!(clients[1].0.call(&["EXISTS", "a", "b", "c"]), Reply::Integer(2));
}
