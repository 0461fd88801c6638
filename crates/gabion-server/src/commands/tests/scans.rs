//! SCAN, KEYS and RANGE over a key space that changes meanwhile.

use super::support::{Client, Node, request, request_of};
use crate::commands::cursors::CURSORS_MAX;
use crate::commands::{Call, Transaction, Work};
use bytes::Bytes;
use gabion_base::units::KEY_LEN_MAX;
use gabion_resp::Reply;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// One call of SCAN: the next cursor and the keys.
fn scan(client: &mut Client, line: &str) -> (String, Vec<String>) {
    scanned(&client.reply(request(line)))
}

/// What a reply of SCAN says: the next cursor and the keys.
fn scanned(reply: &Reply) -> (String, Vec<String>) {
    let Reply::Array(parts) = reply else { panic!("{reply:?}") };
    let [Reply::Bulk(cursor), Reply::Array(keys)] = &parts[..] else { panic!("{parts:?}") };
    let text = |data: &Bytes| String::from_utf8_lossy(data).into_owned();
    let keys = keys.iter().map(|key| match key {
        Reply::Bulk(key) => text(key),
        other => panic!("{other:?}"),
    });
    (text(cursor), keys.collect())
}

/// Every key of a whole scan; `between` runs after each call.
fn scan_all(
    client: &mut Client,
    options: &str,
    mut between: impl FnMut(&mut Client),
) -> Vec<String> {
    let mut all = Vec::new();
    let mut cursor = "0".to_string();
    for _ in 0..10_000 {
        let (next, keys) = scan(client, &format!("SCAN {cursor} {options}"));
        all.extend(keys);
        if next == "0" {
            return all;
        }
        cursor = next;
        between(client);
    }
    panic!("the scan does not end");
}

#[test]
fn a_scan_gives_every_key_once() {
    let node = Node::new();
    let mut client = node.client();
    for i in 0..500 {
        client.ask(&format!("SET key:{i:03} {i}"));
    }
    for count in [1, 7, 10, 500, 100_000] {
        let keys = scan_all(&mut client, &format!("COUNT {count}"), |_| {});
        assert_eq!(keys.len(), 500);
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 500);
    }
    assert_eq!(scan_all(&mut client, "MATCH key:1*", |_| {}).len(), 100);
    assert_eq!(scan_all(&mut client, "MATCH *9 COUNT 3", |_| {}).len(), 50);
    assert_eq!(scan_all(&mut client, "TYPE string", |_| {}).len(), 500);
    assert_eq!(scan_all(&mut client, "TYPE list", |_| {}).len(), 0);
    assert_eq!(scan_all(&mut client, "MATCH nosuch*", |_| {}).len(), 0);
}

#[test]
fn a_scan_ends_with_the_last_key_and_not_a_call_later() {
    let node = Node::new();
    let mut client = node.client();
    for count in 1..=30 {
        client.ask(&format!("SET key:{count:03} v"));
        let (cursor, keys) = scan(&mut client, &format!("SCAN 0 COUNT {count}"));
        assert_eq!((&cursor[..], keys.len()), ("0", count));
        let (cursor, keys) = scan(&mut client, &format!("SCAN 0 MATCH key:* COUNT {count}"));
        assert_eq!((&cursor[..], keys.len()), ("0", count));
    }
    let mut calls = 1;
    assert_eq!(scan_all(&mut client, "", |_| calls += 1).len(), 30);
    assert_eq!(calls, 3, "of ten keys each");
    // A page of 1 MiB, which its bytes end: with nothing behind it, then with what was deleted, then with a key.
    let node = Node::new();
    let mut client = node.client();
    (1..=16).for_each(|first| node.store.hold(vec![first; KEY_LEN_MAX].into(), Bytes::new()));
    let mut next = || scan(&mut client, "SCAN 0 COUNT 100").0;
    assert_eq!(next(), "0");
    node.store.deleted.borrow_mut().insert("y".into());
    assert_eq!(next(), "0");
    node.store.hold("z".into(), Bytes::new());
    assert_ne!(next(), "0");
}

#[test]
fn bad_scans_get_the_words_of_redis() {
    let node = Node::new();
    let mut client = node.client();
    client.script(&[
        ("SCAN x", "-ERR invalid cursor\r\n"),
        ("SCAN -1", "-ERR invalid cursor\r\n"),
        ("SCAN 0 COUNT", "-ERR syntax error\r\n"),
        ("SCAN 0 COUNT 0", "-ERR syntax error\r\n"),
        ("SCAN 0 COUNT -1", "-ERR syntax error\r\n"),
        ("SCAN 0 COUNT x", "-ERR value is not an integer or out of range\r\n"),
        ("SCAN 0 FOO x", "-ERR syntax error\r\n"),
        ("SCAN 0 MATCH", "-ERR syntax error\r\n"),
        ("SCAN 0 TYPE", "-ERR syntax error\r\n"),
        ("SCAN 0 TYPE nosuch", "*2\r\n$1\r\n0\r\n*0\r\n"),
        ("SCAN", "-ERR wrong number of arguments for 'scan' command\r\n"),
        ("SCAN 12345", "-ERR unknown or expired cursor 12345: begin again with 0\r\n"),
        ("SCAN 0", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ]);
}

#[test]
fn a_cursor_of_another_node_is_unknown() {
    let node = Node::new();
    let mut client = node.client();
    client.ask("MSET a 1 b 2 c 3");
    let (cursor, _) = scan(&mut client, "SCAN 0 COUNT 1");
    // The same store behind commands of another start.
    let other = Node {
        store: node.store.clone(),
        commands: std::rc::Rc::new(crate::commands::Commands::new(43)),
    };
    let reply = other.client().ask(&format!("SCAN {cursor}"));
    assert!(reply.starts_with("-ERR unknown or expired cursor"), "{reply}");
    assert_eq!(scan(&mut client, &format!("SCAN {cursor} COUNT 1")).1, ["b"]);
    // A repeated call gives the same again; another pattern moves on to where it can match.
    assert_eq!(scan(&mut client, &format!("SCAN {cursor} COUNT 1")).1, ["b"]);
    assert_eq!(scan(&mut client, &format!("SCAN {cursor} MATCH c*")).1, ["c"]);
    assert!(scan(&mut client, &format!("SCAN {cursor} MATCH a*")).1.is_empty());
}

#[test]
fn a_long_walk_of_one_client_leaves_the_cursor_of_another() {
    let node = Node::new();
    for i in 0..CURSORS_MAX + 100 {
        let key = Bytes::from(format!("{i:05}"));
        node.store.hold(key, Bytes::from_static(b"v"));
    }
    let (mut slow, mut quick) = (node.client(), node.client());
    let (cursor, _) = scan(&mut slow, "SCAN 0 COUNT 1");
    assert_eq!(scan_all(&mut quick, "COUNT 1", |_| {}).len(), CURSORS_MAX + 100);
    assert_eq!(scan(&mut slow, &format!("SCAN {cursor} COUNT 1")).1, ["00001"]);
}

#[test]
fn keys_come_in_order_and_by_pattern() {
    Node::new().client().script(&[
        ("MSET b 1 a 2 ab 3 \"\\xff\" 4 \"\\xff\\xff\" 5", "+OK\r\n"),
        ("KEYS a*", "*2\r\n$1\r\na\r\n$2\r\nab\r\n"),
        ("KEYS b", "*1\r\n$1\r\nb\r\n"),
        ("KEYS ?", "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\n\u{fffd}\r\n"),
        ("KEYS \"\\xff\\xff*\"", "*1\r\n$2\r\n\u{fffd}\u{fffd}\r\n"),
        ("KEYS [^a]", "*2\r\n$1\r\nb\r\n$1\r\n\u{fffd}\r\n"),
        ("KEYS nosuch", "*0\r\n"),
    ]);
}

/// docs/faults.md: P2
#[test]
fn a_range_has_its_start_and_not_its_end() {
    Node::new().client().script(&[
        ("MSET a 1 b 2 c 3 d 4", "+OK\r\n"),
        ("RANGE b d", "*4\r\n$1\r\nb\r\n$1\r\n2\r\n$1\r\nc\r\n$1\r\n3\r\n"),
        ("RANGE b d VALUES", "*4\r\n$1\r\nb\r\n$1\r\n2\r\n$1\r\nc\r\n$1\r\n3\r\n"),
        ("RANGE b d KEYS", "*2\r\n$1\r\nb\r\n$1\r\nc\r\n"),
        ("RANGE - b KEYS", "*1\r\n$1\r\na\r\n"),
        ("RANGE c + keys", "*2\r\n$1\r\nc\r\n$1\r\nd\r\n"),
        ("RANGE - + KEYS LIMIT 3", "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"),
        ("RANGE \"b\\x00\" + LIMIT 1 KEYS", "*1\r\n$1\r\nc\r\n"),
        ("RANGE - + LIMIT 0", "*0\r\n"),
        ("RANGE b d REV", "*4\r\n$1\r\nc\r\n$1\r\n3\r\n$1\r\nb\r\n$1\r\n2\r\n"),
        ("RANGE - + KEYS LIMIT 3 rev", "*3\r\n$1\r\nd\r\n$1\r\nc\r\n$1\r\nb\r\n"),
        ("RANGE - b REV LIMIT 3 KEYS", "*1\r\n$1\r\na\r\n"),
        ("RANGE d b REV", "*0\r\n"),
        ("RANGE + - REV", "*0\r\n"),
        ("RANGE d b", "*0\r\n"),
        ("RANGE b b", "*0\r\n"),
        ("RANGE + -", "*0\r\n"),
        ("RANGE - -", "*0\r\n"),
        ("RANGE + +", "*0\r\n"),
        ("RANGE - + LIMIT -1", "-ERR value is out of range, must be positive\r\n"),
        ("RANGE - + LIMIT x", "-ERR value is not an integer or out of range\r\n"),
        ("RANGE - + LIMIT", "-ERR syntax error\r\n"),
        ("RANGE - + FOO", "-ERR syntax error\r\n"),
        ("RANGE -", "-ERR wrong number of arguments for 'range' command\r\n"),
    ]);
    let mut client = Node::new().client();
    client.ask("HELLO 3");
    client.script(&[
        ("MSET a 1 b 2", "+OK\r\n"),
        ("RANGE - +", "*2\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n*2\r\n$1\r\nb\r\n$1\r\n2\r\n"),
    ]);
}

#[test]
fn a_bound_of_a_range_may_be_the_longest_key_with_a_byte_appended() {
    let mut client = Node::new().client();
    let bound = |len: usize| "k".repeat(len);
    // An inline request has a shorter limit.
    let mut range = |end: String| client.reply(request_of(&[b"RANGE", b"-", end.as_bytes()]));
    assert_eq!(range(bound(KEY_LEN_MAX + 1)), Reply::Pairs(Vec::new()));
    let error = "ERR bound of a range is 65538 bytes long, over the limit of 65537";
    assert_eq!(range(bound(KEY_LEN_MAX + 2)), Reply::error(error));
}

#[test]
fn a_reply_that_would_not_fit_is_refused_with_a_way_out() {
    let node = Node::new();
    let mut client = node.client();
    let value = Bytes::from(vec![b'v'; 8 << 20]);
    for i in 0..9 {
        node.store.hold(Bytes::from(format!("k{i}")), value.clone());
    }
    let refused = client.ask("RANGE - +");
    assert!(
        refused.contains("RANGE is over the limit of") && refused.contains("LIMIT"),
        "{refused}"
    );
    assert!(client.ask("RANGE - + LIMIT 7").len() > 7 << 23);
    assert_eq!(client.ask("RANGE - + KEYS LIMIT 1"), "*1\r\n$2\r\nk0\r\n");
    assert!(client.ask("MGET k0 k1 k2 k3 k4 k5 k6 k7 k8").contains("over the limit"));
    assert_eq!(client.ask("DBSIZE"), ":9\r\n");
}

/// docs/faults.md: P2
#[test]
fn many_keys_are_walked_page_by_page() {
    let node = Node::new();
    for i in 0..5000 {
        let key = Bytes::from(format!("{i:05}"));
        node.store.hold(key, Bytes::from_static(b"v"));
    }
    let mut client = node.client();
    assert_eq!(client.ask("DBSIZE"), ":5000\r\n");
    assert!(client.ask("KEYS *").starts_with("*5000\r\n"));
    assert!(client.ask("RANGE - + KEYS").starts_with("*5000\r\n"));
    assert!(client.ask("RANGE - + LIMIT 2500").starts_with("*5000\r\n"));
    assert!(client.ask("RANGE 01000 02000 KEYS").starts_with("*1000\r\n"));
    let backwards = client.ask("RANGE 01000 04000 KEYS REV LIMIT 2500");
    let keys = (1500..4000).rev().map(|i| format!("$5\r\n{i:05}\r\n"));
    assert_eq!(backwards, format!("*2500\r\n{}", keys.collect::<String>()));
}

/// A node with some keys among others that were deleted, whose pages pass so many of both at most.
fn node_among(keys: &BTreeSet<u32>, deleted: &BTreeSet<u32>, steps: Option<usize>) -> Node {
    let node = Node::new();
    let name = |n: &u32| Bytes::from(format!("{n:03}"));
    keys.iter().for_each(|n| node.store.hold(name(n), name(n)));
    node.store.deleted.borrow_mut().extend(deleted.iter().map(name));
    node.store.page_steps.set(steps);
    node
}

/// One key behind 99 that were deleted, in pages that pass ten.
fn one_behind_deleted() -> Node {
    node_among(&BTreeSet::from([99]), &(0..99).collect(), Some(10))
}

/// docs/faults.md: P3
#[test]
fn a_scan_over_deleted_keys_gives_cursors_without_keys_and_comes_to_the_end() {
    let mut client = one_behind_deleted().client();
    let (cursor, keys) = scan(&mut client, "SCAN 0 COUNT 100");
    assert!(cursor != "0" && keys.is_empty(), "{cursor} {keys:?}");
    let mut cursors = 0;
    assert_eq!(scan_all(&mut client, "COUNT 100", |_| cursors += 1), ["099"]);
    assert_eq!(cursors, 9);
    assert_eq!(scan(&mut client, "SCAN 0 MATCH 09*").1, ["099"], "its walk begins at 090");
}

/// docs/faults.md: P3
#[test]
fn others_come_between_the_pages_of_a_walk_over_deleted_keys() {
    let node = one_behind_deleted();
    let call = |line: &str| Call::new(request(line)).unwrap();
    for line in ["DBSIZE", "KEYS *", "RANGE - +", "RANGE - + REV"] {
        assert_eq!(node.polls(&Work::Call(call(line))), 10, "{line}");
    }
    let scans = Transaction::of(vec![call("SCAN 0"); 5]);
    assert_eq!(node.polls(&Work::Transaction(scans)), 4, "between the commands of a transaction");
}

/// What each way to walk over the keys finds, by itself and then in transactions that write.
fn walks(node: &Node) -> Vec<String> {
    const WALKS: [&str; 8] = [
        "DBSIZE",
        "KEYS *",
        "KEYS 1*",
        "RANGE - +",
        "RANGE - + REV",
        "RANGE 050 250 KEYS LIMIT 7",
        "RANGE 050 250 KEYS REV LIMIT 7",
        "RANGE 050 250 LIMIT 1",
    ];
    let mut client = node.client();
    let mut found: Vec<String> = WALKS.iter().map(|line| client.ask(line)).collect();
    for options in ["COUNT 3", "COUNT 1000", "MATCH 1*", "MATCH *7"] {
        found.push(scan_all(&mut client, options, |_| {}).join(" "));
    }
    let writes = ["MULTI", "SET 100 new", "DEL 101 102 200", "SET 299 new"];
    for line in writes.iter().chain(&WALKS).chain(&["EXEC"]) {
        found.push(client.ask(line));
    }
    found.push(scan_in_transactions(&mut client).join(" "));
    found
}

/// Every key of a scan of which each call is in a transaction that also sets a key and deletes another.
fn scan_in_transactions(client: &mut Client) -> Vec<String> {
    let (mut all, mut cursor) = (Vec::new(), "0".to_string());
    for _ in 0..10_000 {
        for line in ["MULTI", "SET 150 new", "DEL 151", &format!("SCAN {cursor} COUNT 4")] {
            client.ask(line);
        }
        let Reply::Array(replies) = client.reply(request("EXEC")) else { panic!("no replies") };
        let (next, keys) = scanned(&replies[2]);
        all.extend(keys);
        if next == "0" {
            return all;
        }
        cursor = next;
    }
    panic!("the scan does not end");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// What was deleted shows nowhere, also where a page ends amid it or has nothing else.
    /// docs/faults.md: P3
    #[test]
    fn pages_that_end_amid_deleted_keys_change_no_walk(
        keys in prop::collection::btree_set(0..300_u32, 0..40),
        deleted in prop::collection::btree_set(0..300_u32, 0..100),
        steps in 1..12_usize,
    ) {
        let whole = walks(&node_among(&keys, &BTreeSet::new(), None));
        let cut = walks(&node_among(&keys, &deleted, Some(steps)));
        prop_assert_eq!(cut, whole);
    }
}

proptest! {
    /// Redis's promise: what is there from the beginning to the end is returned, whatever else
    /// comes and goes; what is not there all the time may be.
    #[test]
    fn a_scan_under_changes_covers_every_key_that_stays(
        stays in prop::collection::btree_set(0..400_u32, 1..60),
        changes in prop::collection::vec((0..400_u32, any::<bool>()), 0..80),
        count in 1..20_u32,
    ) {
        let node = Node::new();
        let mut client = node.client();
        for key in &stays {
            client.ask(&format!("SET {key} v"));
        }
        let mut changes = changes.into_iter().filter(|(key, _)| !stays.contains(key));
        let keys = scan_all(&mut client, &format!("COUNT {count}"), |client| {
            for (key, is_set) in changes.by_ref().take(3) {
                client.ask(&if is_set { format!("SET {key} v") } else { format!("DEL {key}") });
            }
        });
        let found: BTreeSet<&String> = keys.iter().collect();
        prop_assert_eq!(found.len(), keys.len(), "a key came twice");
        for key in stays {
            prop_assert!(found.contains(&key.to_string()));
        }
    }
}
