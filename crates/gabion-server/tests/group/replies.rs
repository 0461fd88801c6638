//! Long replies that pass through a node: what they take there and at the node that reads.

use super::support::{Client, Group};
use gabion_node::AckLevel;
use gabion_resp::Reply;

/// The longest value.
const VALUE_LEN: usize = 8 << 20;
/// Reads of one connection that are under way.
const READS: usize = 8;
const CONNECTIONS: usize = 6;
/// Bytes of replies that may wait at the tail for one member.
const REPLIES_MAX: u64 = 64 << 20;

/// The most memory that a process has had so far, in bytes.
fn peak_bytes(pid: u64) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// Where processors are scarce, members take each other for lost, and a command is not run.
fn is_for_later(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with(b"TRYAGAIN "))
}

/// Reads come to 384 MiB, from all connections at once.
#[test]
fn replies_of_the_tail_to_one_member_take_a_bounded_amount_of_memory() {
    let group = Group::start("replies", 3, AckLevel::Replicated);
    group.await_ready();
    let values: Vec<String> = ["a", "b"].map(|letter| letter.repeat(VALUE_LEN)).into();
    let mut writer = group.client(1);
    for (key, value) in ["a", "b"].iter().zip(&values) {
        assert_eq!(writer.insist(&["SET", key, value]), Reply::OK);
    }
    let mut tail = group.client(3);
    for key in ["a", "b"] {
        assert_eq!(tail.call(&["STRLEN", key]), Reply::Integer(VALUE_LEN as i64));
    }
    let pid = tail.status()["pid"].as_u64().unwrap();
    let before = peak_bytes(pid);
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| group.client(1)).collect();
    for client in &mut clients {
        for n in 0..READS {
            client.send(&["GET", ["a", "b"][n % 2]]);
        }
        client.send(&["INCR", "counter"]);
    }
    let mut counted = 0;
    for client in &mut clients {
        for n in 0..READS {
            match client.receive() {
                Reply::Bulk(read) => assert!(read == values[n % 2].as_bytes(), "read {n}"),
                other => assert!(is_for_later(&other), "read {n}: {other:?}"),
            }
        }
        match client.receive() {
            Reply::Integer(count) => counted = counted.max(count),
            other => assert!(is_for_later(&other), "{other:?}"),
        }
    }
    let grown = peak_bytes(pid) - before;
    // Beside what waits there are the reads under way, their blocks, and what is being encoded.
    assert!(grown < 3 * REPLIES_MAX, "the tail took {} MiB more", grown >> 20);
    assert_eq!(writer.insist(&["INCR", "counter"]), Reply::Integer(counted + 1));
}
