//! What the tail has in memory after flushes and compactions at the primary.

use super::fill;
use super::support::{Client, Group, PATIENCE};
use gabion_node::AckLevel;
use gabion_resp::Reply;
use std::time::{Duration, Instant};

/// Records of the test that reads them again: two MemTables of them.
const HOT: u32 = 2_000;

/// Reads every record at the tail's door and compares it.
fn read_hot(client: &mut Client, value: &str) {
    for start in (0..HOT).step_by(100) {
        (start..start + 100).for_each(|i| client.send(&["GET", &format!("key-{:08}", i * 7919)]));
        let wanted = Reply::Bulk(value.to_owned().into());
        (0..100).for_each(|_| assert_eq!(client.receive(), wanted));
    }
}

/// The statuses of all replicas once all have the same edits, nobody flushes, compacts or warms, and that for a while.
fn at_rest(group: &Group) -> Vec<serde_json::Value> {
    let (start, mut quiet, mut before) = (Instant::now(), 0, Vec::new());
    while quiet < 10 {
        assert!(start.elapsed() < PATIENCE, "{before:?}");
        std::thread::sleep(Duration::from_millis(20));
        let statuses: Vec<_> = (1..=3).map(|id| group.client(id).status()).collect();
        let edits: Vec<u64> = statuses.iter().map(|status| counter(status, "edits")).collect();
        let rests = statuses.iter().all(|status| {
            let left = counter(status, "warmings_left");
            status["memtable"]["sealed"] == 0 && left == 0 && counter(status, "edits") == edits[0]
        });
        quiet = if rests && before == edits { quiet + 1 } else { 0 };
        before = edits;
        if quiet == 10 {
            return statuses;
        }
    }
    unreachable!("it returns before")
}

fn counter(status: &serde_json::Value, name: &str) -> u64 {
    status["counters"][name].as_u64().unwrap_or_else(|| panic!("{name}: {status}"))
}

/// Counters alone are looked at, and how long anything takes is not.
/// docs/faults.md: P5
#[test]
fn after_compactions_the_tail_has_in_memory_what_was_read_there_and_nothing_is_warmed_for_writers()
{
    let group = Group::start("warm", 3, AckLevel::Replicated);
    group.await_ready();
    let (mut head, mut tail) = (group.client(1), group.client(3));
    assert_eq!(tail.text(&["CONFIG", "SET", "gabion-block-cache-bytes", "256mb"]), "+OK\r\n");
    let mut value = "0".repeat(1000);
    // Enough for compactions.
    let write = |head: &mut Client, value: &str| (0..4).for_each(|_| fill(head, value, HOT));
    write(&mut head, &value);
    let statuses = at_rest(&group);
    assert!(counter(&statuses[0], "compactions") > 0, "{}", statuses[0]);
    for status in &statuses {
        for name in ["warmed_blocks", "warmed_bytes", "warm_read_bytes", "client_read_bytes"] {
            assert_eq!(counter(status, name), 0, "{name} of a load: {status}");
        }
    }
    read_hot(&mut tail, &value);
    assert!(counter(&tail.status(), "client_read_bytes") > 1 << 20, "it was not in memory");
    let start = Instant::now();
    for round in 1_u8.. {
        let before = at_rest(&group);
        value = char::from(b'0' + round % 10).to_string().repeat(1000);
        write(&mut head, &value);
        let after = at_rest(&group);
        let compactions = |statuses: &[_]| counter(&statuses[0], "compactions");
        assert!(compactions(&after) > compactions(&before), "{}", after[0]);
        read_hot(&mut tail, &value);
        let read = tail.status();
        let grown = |name: &str| counter(&read, name) - counter(&before[2], name);
        assert!(grown("warmed_blocks") > 100 && grown("warm_read_bytes") > 0, "{read}");
        // A machine that is busy elsewhere may have files leave before they were warmed.
        if grown("warmings_given_up") == 0 {
            assert_eq!(
                counter(&read, "block_cache_misses"),
                counter(&after[2], "block_cache_misses")
            );
            assert_eq!(
                counter(&read, "client_read_bytes"),
                counter(&after[2], "client_read_bytes")
            );
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{read}");
    }
    for status in &at_rest(&group)[1..] {
        assert_eq!((counter(status, "flushes"), counter(status, "compactions")), (0, 0));
    }
    // Nobody reads in the middle.
    assert_eq!(counter(&group.client(2).status(), "warm_read_bytes"), 0);
}
