//! Keys that expire while nobody writes, over restarts, and under clocks that go back.

use crate::no_space::start;
use crate::replica::Replica;
use gabion_base::units::{KIB, MIB};
use gabion_engine::{JobKind, Keyspace, TreeConfig};
use gabion_node::CompactionMode;

fn put(replica: &mut Replica, key: &str, expires_ms: u64) {
    replica.node.put_expiring(Keyspace::User, key.as_bytes(), b"value", expires_ms).unwrap();
    replica.node.end_turn().unwrap();
    replica.pass(0);
}

fn has(replica: &Replica, key: &str) -> bool {
    replica.has(&replica.node.read_view(), key)
}

/// Seals, flushes and applies; all that is written is in files then.
fn flush(replica: &mut Replica) {
    replica.node.seal_memtable().unwrap();
    replica.pass(1);
    replica.succeed(JobKind::Flush);
    replica.pass(1);
    replica.work();
    assert_eq!(replica.node.edits_waiting(), 0);
}

/// docs/faults.md: P11
#[test]
fn a_key_goes_at_its_time_though_nobody_writes_and_costs_one_record() {
    let mut replica = start();
    let now_ms = replica.now_ms();
    put(&mut replica, "a", now_ms + 50);
    put(&mut replica, "b", now_ms + 70);
    put(&mut replica, "stays", u64::MAX);
    let end = replica.node.log_end();
    replica.pass(49);
    assert!(has(&replica, "a"));
    assert_eq!(replica.node.log_end(), end, "nothing is due");
    let view = replica.node.read_view();
    replica.pass(1);
    assert!(!has(&replica, "a") && has(&replica, "b"));
    assert!(replica.has(&view, "a"), "an earlier view stays as it is");
    replica.pass(100);
    assert!(!has(&replica, "b") && has(&replica, "stays"));
    let record_len = replica.node.log_end().bytes_since(&end) / 2;
    assert!(record_len <= 96, "{record_len} bytes for each of two records of time");
    // What has been in the log for long is made durable, by a record that fills the last block.
    replica.pass(10_000);
    let end = replica.node.log_end();
    (0..50).for_each(|_| replica.pass(1_000));
    assert_eq!(replica.node.log_end(), end, "an idle group logs nothing");
}

/// docs/faults.md: P11
#[test]
fn a_turn_under_way_carries_time_by_its_own_record() {
    let mut replica = start();
    let now_ms = replica.now_ms();
    put(&mut replica, "a", now_ms + 10);
    replica.put("b");
    replica.pass(20);
    assert!(has(&replica, "a"), "what the turn's commands saw, they see to its end");
    replica.node.end_turn().unwrap();
    assert!(!has(&replica, "a"));
}

/// docs/faults.md: R6, P11
#[test]
fn what_was_gone_stays_gone_after_a_restart_with_a_clock_that_is_behind() {
    let mut replica = start();
    let now_ms = replica.now_ms();
    put(&mut replica, "gone", now_ms + 1_000);
    put(&mut replica, "there", now_ms + 9_000);
    replica.pass(2_000);
    assert!(!has(&replica, "gone") && has(&replica, "there"));
    let group_ms = replica.node.tree().now_ms();
    let end = replica.node.make_durable().unwrap();
    replica.pass(0);
    assert_eq!(replica.node.durable_everywhere(), end);
    let mut replica = replica.restart(now_ms);
    assert!(!has(&replica, "gone") && has(&replica, "there"));
    // Time stands still until the clock is where it was.
    replica.put("b");
    replica.node.end_turn().unwrap();
    replica.pass(500);
    assert_eq!(replica.node.tree().now_ms(), group_ms);
    replica.pass(10_000);
    assert!(!has(&replica, "there"));
}

/// Every replica compacts for itself: no edit is in the log, which is trimmed to its end. Only the
/// replica's state tells the time then.
/// docs/faults.md: P11
#[test]
fn group_time_is_remembered_when_the_records_that_told_it_are_trimmed() {
    let tree = TreeConfig { l0_trigger: 10, ..TreeConfig::default() };
    let mut replica = Replica::start_in(CompactionMode::EveryReplica, 128 * MIB, tree, 64 * KIB);
    let now_ms = replica.now_ms();
    put(&mut replica, "gone", now_ms + 1_000);
    put(&mut replica, "there", now_ms + 90_000);
    flush(&mut replica);
    replica.pass(2_000);
    replica.put("b");
    replica.node.end_turn().unwrap();
    flush(&mut replica);
    let trimmed_ms = replica.node.state().trimmed_ms;
    assert_eq!(trimmed_ms, now_ms + 2_002, "the time of the seal");
    let replica = replica.restart(0);
    assert!(replica.node.tree().now_ms() >= trimmed_ms);
    assert!(!has(&replica, "gone") && has(&replica, "there"));
}

/// docs/faults.md: P11
#[test]
fn what_files_held_at_the_start_goes_within_a_tenth_of_a_second() {
    let mut replica = start();
    let now_ms = replica.now_ms();
    put(&mut replica, "a", now_ms + 5_000);
    put(&mut replica, "b", now_ms + 9_000);
    flush(&mut replica);
    let mut replica = replica.restart(now_ms + 100);
    let end = replica.node.log_end();
    replica.pass_to(now_ms + 4_999);
    assert_eq!(replica.node.log_end(), end, "nothing is due before the first expiry");
    replica.pass_to(now_ms + 5_000);
    assert!(!has(&replica, "a"));
    for _ in 0..100 {
        replica.pass(50);
        assert_eq!(has(&replica, "b"), replica.node.tree().now_ms() < now_ms + 9_000);
    }
    assert!(!has(&replica, "b"));
    let end = replica.node.log_end();
    replica.pass(10_000);
    assert_eq!(replica.node.log_end(), end, "all of it is behind");
}

/// Records of time fill no MemTable: the log is trimmed all the same.
/// docs/faults.md: P11
#[test]
fn the_log_of_a_group_that_only_waits_for_keys_to_expire_stays_short() {
    let mut replica = start();
    let now_ms = replica.now_ms();
    put(&mut replica, "first", now_ms + 1_000);
    put(&mut replica, "last", now_ms + 100_000_000);
    flush(&mut replica);
    let mut replica = replica.restart(now_ms + 2_000);
    let segment_len = replica.node.config().segment_len;
    let begin = replica.node.log_end();
    while !replica.node.log_end().covers(&begin.ahead(12 * segment_len)) {
        replica.pass(100);
        replica.work();
    }
    let kept = replica.node.log_end().only().get() - replica.node.state().trimmed.position.get();
    assert!(kept <= 5 * segment_len, "{kept} bytes of log are kept");
    assert!(has(&replica, "last"));
    assert!(replica.said().is_empty(), "{:?}", replica.said());
}

/// docs/faults.md: P13
#[test]
fn what_is_added_after_a_counters_time_begins_anew_and_what_was_added_before_is_gone() {
    let mut replica = start();
    let now_ms = replica.now_ms();
    replica.node.put_expiring(Keyspace::User, b"n", b"40", now_ms + 50).unwrap();
    replica.node.end_turn().unwrap();
    flush(&mut replica);
    let add = |replica: &mut Replica, delta| {
        replica.node.add(Keyspace::User, b"n", delta).unwrap();
        replica.node.end_turn().unwrap();
    };
    add(&mut replica, 2);
    let value = |replica: &Replica| replica.value(&replica.node.read_view(), "n");
    assert_eq!(value(&replica).as_deref(), Some("42"));
    replica.pass(100);
    assert_eq!(value(&replica), None, "nobody wrote since");
    add(&mut replica, 3);
    add(&mut replica, 4);
    assert_eq!(value(&replica).as_deref(), Some("7"));
    flush(&mut replica);
    assert_eq!(value(&replica).as_deref(), Some("7"));
    let end = replica.node.make_durable().unwrap();
    replica.pass(0);
    assert_eq!(replica.node.durable_everywhere(), end);
    let replica = replica.restart(now_ms);
    assert_eq!(value(&replica).as_deref(), Some("7"));
}
