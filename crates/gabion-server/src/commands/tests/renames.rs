//! Keys that are renamed, copied, drawn by chance and told about.

use super::support::{Node, request};
use crate::commands::{Call, Op, Work};
use bytes::Bytes;
use gabion_resp::Reply;
use std::collections::{BTreeMap, BTreeSet};

const NO_SUCH_KEY: &str = "-ERR no such key\r\n";
const SYNTAX: &str = "-ERR syntax error\r\n";

#[test]
fn a_key_is_renamed_with_its_expiry_in_one_record() {
    let node = Node::new();
    node.store.pass(1_000_000);
    let mut client = node.client();
    client.script(&[
        ("SET a 1 EX 100", "+OK\r\n"),
        ("SET b 2", "+OK\r\n"),
        ("RENAME a b", "+OK\r\n"),
    ]);
    let renamed = vec![Op::Delete("a".into()), Op::PutExpiring("b".into(), "1".into(), 1_100_000)];
    assert_eq!(node.store.records.borrow().last(), Some(&renamed));
    client.script(&[
        ("EXISTS a", ":0\r\n"),
        ("GET b", "$1\r\n1\r\n"),
        ("TTL b", ":100\r\n"),
        ("SET c 3", "+OK\r\n"),
        // What has an expiry loses it to a key that has none.
        ("RENAME c b", "+OK\r\n"),
        ("TTL b", ":-1\r\n"),
        ("RENAME none b", NO_SUCH_KEY),
        ("RENAME none none", NO_SUCH_KEY),
        ("GET b", "$1\r\n3\r\n"),
    ]);
    let records = node.store.records.borrow().len();
    client.script(&[("RENAME b b", "+OK\r\n"), ("RENAMENX b b", ":0\r\n")]);
    assert_eq!(node.store.records.borrow().len(), records);
    client.script(&[
        ("SET d 4 PX 500", "+OK\r\n"),
        ("RENAMENX d b", ":0\r\n"),
        ("RENAMENX d e", ":1\r\n"),
        ("EXISTS d", ":0\r\n"),
        ("PTTL e", ":500\r\n"),
        ("RENAMENX none b", NO_SUCH_KEY),
        ("RENAMENX none none", NO_SUCH_KEY),
    ]);
}

#[test]
fn a_copy_has_the_value_and_the_expiry_and_the_source_stays() {
    let same = "-ERR source and destination objects are the same\r\n";
    let out_of_range = "-ERR DB index is out of range\r\n";
    let not_an_integer = "-ERR value is not an integer or out of range\r\n";
    let node = Node::new();
    node.store.pass(1_000_000);
    node.client().script(&[
        ("SET a 1 EX 100", "+OK\r\n"),
        ("COPY a b", ":1\r\n"),
        ("MGET a b", "*2\r\n$1\r\n1\r\n$1\r\n1\r\n"),
        ("TTL b", ":100\r\n"),
        ("SET a 2", "+OK\r\n"),
        ("COPY a b", ":0\r\n"),
        ("GET b", "$1\r\n1\r\n"),
        ("COPY a b replace", ":1\r\n"),
        ("GET b", "$1\r\n2\r\n"),
        ("TTL b", ":-1\r\n"),
        ("COPY a c DB 0", ":1\r\n"),
        ("COPY a c DB 0 REPLACE", ":1\r\n"),
        ("COPY none d", ":0\r\n"),
        ("COPY none a REPLACE", ":0\r\n"),
        ("COPY a a", same),
        ("COPY none none REPLACE", same),
        ("COPY a d DB 1", out_of_range),
        ("COPY a d DB -1", out_of_range),
        ("COPY a d DB x", not_an_integer),
        (
            "COPY a d DB 2147483648",
            "-ERR value is out of range, value must between -2147483648 and 2147483647\r\n",
        ),
        ("COPY a d DB", SYNTAX),
        ("COPY a d foo", SYNTAX),
        ("COPY a", "-ERR wrong number of arguments for 'copy' command\r\n"),
        ("EXISTS d", ":0\r\n"),
    ]);
}

/// Both keys are its own while it waits for the read: else a write in between would be lost.
#[test]
fn who_renames_holds_both_keys() {
    let call = |line: &str| Call::new(request(line)).unwrap();
    for line in ["RENAME b a", "RENAMENX b a", "COPY b a", "BITOP NOT b a"] {
        let keys = ["a", "b"].map(Bytes::from).to_vec();
        assert_eq!(call(line).key_set(), crate::commands::locks::KeySet::Some(keys), "{line}");
    }
    Node::new().client().script(&[
        ("COMMAND GETKEYS RENAME a b", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("COMMAND GETKEYS COPY a b REPLACE", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("COMMAND GETKEYS BITOP AND t a b", "*3\r\n$1\r\nt\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("COMMAND GETKEYS OBJECT ENCODING a", "*1\r\n$1\r\na\r\n"),
        ("COMMAND GETKEYS MEMORY USAGE a", "*1\r\n$1\r\na\r\n"),
    ]);
}

#[test]
fn renames_and_copies_see_the_writes_before_them_in_a_transaction() {
    let node = Node::new();
    node.client().script(&[
        ("SET a 1", "+OK\r\n"),
        ("MULTI", "+OK\r\n"),
        ("SET a 2", "+QUEUED\r\n"),
        ("RENAME a b", "+QUEUED\r\n"),
        ("RENAME a d", "+QUEUED\r\n"),
        ("RANDOMKEY", "+QUEUED\r\n"),
        ("COPY b c", "+QUEUED\r\n"),
        ("DEL b c", "+QUEUED\r\n"),
        ("RANDOMKEY", "+QUEUED\r\n"),
        ("EXEC", "*7\r\n+OK\r\n+OK\r\n-ERR no such key\r\n$1\r\nb\r\n:1\r\n:2\r\n$-1\r\n"),
        ("DBSIZE", ":0\r\n"),
    ]);
}

/// How often each key came up.
fn drawn(node: &Node, times: usize) -> BTreeMap<Bytes, usize> {
    let mut client = node.client();
    let mut counts = BTreeMap::new();
    for _ in 0..times {
        match client.reply(request("RANDOMKEY")) {
            Reply::Bulk(key) => *counts.entry(key).or_default() += 1,
            reply => panic!("{reply:?}"),
        }
    }
    counts
}

fn node_of(keys: impl Iterator<Item = String>) -> Node {
    let node = Node::new();
    keys.for_each(|key| node.store.hold(Bytes::from(key), Bytes::from_static(b"v")));
    node
}

#[test]
fn numbered_keys_are_drawn_equally_often() {
    let counts = drawn(&node_of((0..200).map(|i| format!("user:{i:03}"))), 4_000);
    assert_eq!(counts.len(), 200, "each came up");
    // 20 are expected; with even chances one of 10^11 keys would have 60.
    assert!(counts.values().all(|&count| count < 60), "{:?}", counts.values().max());
}

#[test]
fn each_key_may_be_drawn_however_keys_lie() {
    let nested = ["a", "user", "user:1", "user:10", "user:2", &"z:".repeat(500)];
    let kinds: [Vec<String>; 5] = [
        vec!["only".into()],
        vec![String::new(), "\u{0}".into(), "a".into()],
        (0..10).map(|len| "a".repeat(len)).collect(),
        nested.map(String::from).to_vec(),
        // So many levels that the last choice is among a page of keys.
        (0..40).map(|len| "z".repeat(len) + "\u{0}").collect(),
    ];
    for keys in kinds {
        let counts = drawn(&node_of(keys.iter().cloned()), 100 * keys.len());
        let expected: BTreeSet<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        assert!(counts.keys().map(|key| &key[..]).eq(expected), "{counts:?}");
    }
}

#[test]
fn a_key_is_drawn_behind_what_was_deleted_and_only_an_empty_store_has_none() {
    Node::new().client().script(&[("RANDOMKEY", "$-1\r\n")]);
    // One key, before, amid or behind more deleted ones than a draw passes.
    for place in [0, 500, 999] {
        let node = Node::new();
        let name = |i: u32| Bytes::from(format!("{i:03}"));
        node.store.hold(name(place), Bytes::new());
        node.store.deleted.borrow_mut().extend((0..1000).map(name));
        node.store.page_steps.set(Some(10));
        for _ in 0..20 {
            assert_eq!(node.client().reply(request("RANDOMKEY")), Reply::Bulk(name(place)));
        }
        let work = Work::Call(Call::new(request("RANDOMKEY")).unwrap());
        let pages = node.polls(&work);
        assert!(pages <= 105, "{pages} pages at {place}");
        node.client().ask(&format!("DEL {place:03}"));
        assert_eq!(node.client().reply(request("RANDOMKEY")), Reply::Null);
    }
}

#[test]
fn touch_counts_and_object_and_memory_tell_what_they_know() {
    let freq = "-ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please \
                note that when switching between policies at runtime LRU and LFU data will take \
                some time to adjust.\r\n";
    let digits = "9".repeat(19);
    Node::new().client().script(&[
        ("MSET a 1 b hello", "+OK\r\n"),
        ("TOUCH a b none a", ":3\r\n"),
        ("OBJECT ENCODING a", "$3\r\nint\r\n"),
        ("object encoding b", "$6\r\nembstr\r\n"),
        (&format!("SET c {digits}"), "+OK\r\n"),
        ("OBJECT ENCODING c", "$6\r\nembstr\r\n"),
        (&format!("SET c {}", "x".repeat(44)), "+OK\r\n"),
        ("OBJECT ENCODING c", "$6\r\nembstr\r\n"),
        ("APPEND c x", ":45\r\n"),
        ("OBJECT ENCODING c", "$3\r\nraw\r\n"),
        ("OBJECT ENCODING none", "$-1\r\n"),
        ("OBJECT REFCOUNT b", ":1\r\n"),
        ("OBJECT FREQ b", freq),
        ("OBJECT FREQ none", "$-1\r\n"),
        ("OBJECT IDLETIME b", "-ERR idle time not tracked\r\n"),
        ("OBJECT IDLETIME none", "$-1\r\n"),
        ("OBJECT FOO b", "-ERR unknown subcommand 'FOO'. Try OBJECT HELP.\r\n"),
        ("OBJECT ENCODING", "-ERR wrong number of arguments for 'object|encoding' command\r\n"),
        ("OBJECT", "-ERR wrong number of arguments for 'object' command\r\n"),
        ("MEMORY USAGE b", ":66\r\n"),
        ("MEMORY USAGE b SAMPLES 0", ":66\r\n"),
        ("MEMORY USAGE none", "$-1\r\n"),
        ("MEMORY USAGE b SAMPLES", SYNTAX),
        ("MEMORY USAGE b SAMPLES -1", SYNTAX),
        ("MEMORY USAGE b foo 1", SYNTAX),
        ("MEMORY USAGE b SAMPLES x", "-ERR value is not an integer or out of range\r\n"),
        ("MEMORY USAGE", "-ERR wrong number of arguments for 'memory|usage' command\r\n"),
        ("MEMORY DOCTOR", "-ERR unknown subcommand 'DOCTOR'. Try MEMORY HELP.\r\n"),
    ]);
    let mut client = Node::new().client();
    assert!(client.ask("OBJECT HELP").contains("+ENCODING <key>\r\n"));
    assert!(client.ask("MEMORY HELP").contains("+USAGE <key> [SAMPLES <count>]\r\n"));
}
