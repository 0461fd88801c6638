//! How long writers were held back, and by what: as long as one waits, in the node's own time.

use crate::no_space::start;
use crate::replica::Replica;
use gabion_base::units::{KIB, MIB};
use gabion_engine::{JobKind, Keyspace, TreeConfig, WriteState};
use gabion_node::{WriteGate, WriteStop};

const SLOWED: WriteGate = WriteGate::Wait("compaction is behind, writers are slowed down");

/// Milliseconds in which writers were stopped by flushes, and by anything.
fn stopped(replica: &Replica) -> (u64, u64) {
    let stopped = replica.node.counters().writes_stopped_ms;
    assert_eq!(stopped.each().map(|(_, ms)| ms).sum::<u64>(), stopped.total());
    (stopped.by(WriteStop::Flush), stopped.total())
}

fn slowed(replica: &Replica) -> u64 {
    replica.node.counters().writes_slowed_ms
}

fn stop(replica: &mut Replica) {
    (0..TreeConfig::default().sealed_max).for_each(|_| replica.seal());
    assert_eq!(replica.node.write_gate(), WriteGate::Wait("flush is behind"));
}

/// docs/faults.md: P28
#[test]
fn a_stop_counts_from_the_first_write_that_waits_until_the_gate_is_open_however_many_wait() {
    let mut replica = start();
    stop(&mut replica);
    replica.pass(50);
    assert_eq!(stopped(&replica), (0, 0), "nobody writes");
    replica.node.hold_write(replica.now_ms() + 5);
    replica.pass(10);
    assert_eq!(stopped(&replica), (5, 5));
    replica.node.hold_write(replica.now_ms());
    replica.pass(20);
    assert_eq!(stopped(&replica), (25, 25));
    replica.work();
    assert_eq!(replica.node.write_gate(), WriteGate::Open);
    replica.pass(100);
    replica.node.hold_write(replica.now_ms());
    replica.pass(100);
    assert_eq!((stopped(&replica), slowed(&replica)), ((25, 25), 0), "the gate was open");
}

/// Who writes nothing, and wants what was written to be durable, waits for no flush and no
/// compaction.
/// docs/faults.md: P33
#[test]
fn what_is_in_the_log_can_be_made_durable_while_writers_wait() {
    let mut replica = start();
    stop(&mut replica);
    assert_eq!(replica.node.durable_gate(), WriteGate::Open);
    let end = replica.node.make_durable().unwrap();
    replica.pass(0);
    assert!(replica.node.durable_everywhere().covers(&end));
    // Nor where the device has no room for files.
    replica.find_no_room(JobKind::Flush);
    replica.pass(0);
    assert!(replica.refusal().is_some());
    assert_eq!(replica.node.durable_gate(), WriteGate::Open);
}

/// docs/faults.md: P28
#[test]
fn who_waited_and_is_refused_waits_no_longer() {
    let mut replica = start();
    stop(&mut replica);
    replica.node.hold_write(replica.now_ms());
    replica.pass(3);
    replica.find_no_room(JobKind::Flush);
    replica.pass(0);
    assert!(replica.refusal().is_some() && replica.node.jobs_pause());
    replica.node.hold_write(replica.now_ms());
    replica.pass(50);
    assert_eq!(stopped(&replica), (3, 3));
}

/// Slows writers down to a mebibyte a second, the least there is.
fn start_slow() -> Replica {
    let tree = TreeConfig {
        memtable_len: 16 * KIB,
        sst_len: 32 * KIB,
        level1_len: 64 * KIB,
        l0_trigger: 2,
        l0_slowdown: 3,
        l0_stop: 1000,
        ..TreeConfig::default()
    };
    let mut replica = Replica::start(128 * MIB, tree, 64 * KIB);
    let flush = |replica: &mut Replica| {
        replica.seal();
        replica.succeed(JobKind::Flush);
        replica.pass(0);
    };
    while replica.kinds() != [JobKind::Compaction] {
        flush(&mut replica);
    }
    replica.pass(1_000);
    replica.succeed(JobKind::Compaction);
    replica.pass(0);
    while !matches!(replica.node.tree().write_state(), WriteState::Slow(_)) {
        flush(&mut replica);
    }
    replica.pass(1);
    assert_eq!(slowed(&replica), 0);
    replica
}

/// Writes as much as writers are given in some ten milliseconds.
fn overdraw(replica: &mut Replica) {
    assert_eq!(replica.node.write_gate(), WriteGate::Open);
    replica.node.put(Keyspace::User, b"key", &[7; 12_000]).unwrap();
    replica.node.end_turn().unwrap();
    assert_eq!(replica.node.write_gate(), SLOWED);
}

/// docs/faults.md: P28
#[test]
fn writers_count_as_slowed_down_only_while_one_waits() {
    let mut replica = start_slow();
    overdraw(&mut replica);
    replica.pass(2);
    assert_eq!(replica.node.write_gate(), SLOWED);
    assert_eq!(slowed(&replica), 0, "nobody waits");
    replica.node.hold_write(replica.now_ms());
    replica.pass(1);
    replica.pass(1);
    assert_eq!(slowed(&replica), 2);
    replica.pass(30);
    assert_eq!(replica.node.write_gate(), WriteGate::Open);
    replica.pass(100);
    assert_eq!(slowed(&replica), 32, "up to where the gate was found open");

    // One waits, and writes as soon as it may; nobody waits for what it has overdrawn.
    overdraw(&mut replica);
    let now_ms = replica.now_ms();
    replica.node.hold_write(now_ms);
    replica.node.pass_time(now_ms + 30);
    overdraw(&mut replica);
    replica.pass(33);
    assert_eq!(replica.node.write_gate(), SLOWED);
    assert_eq!((slowed(&replica), stopped(&replica)), (62, (0, 0)));
}

/// A synced write of a few bytes takes a block of the log, which is as long as it may be long
/// before a MemTable is full.
#[test]
fn synced_writes_of_a_few_bytes_wait_for_no_pause_between_seals() {
    let mut replica = Replica::start(512 * MIB, TreeConfig::default(), MIB);
    for n in 0..10_000_u64 {
        assert_eq!(replica.node.write_gate(), WriteGate::Open, "write {n}");
        replica.node.put(Keyspace::User, &n.to_be_bytes(), b"value").unwrap();
        let end = replica.node.end_turn().unwrap();
        replica.node.make_durable().unwrap();
        replica.pass(0);
        assert!(replica.node.durable_everywhere().covers(&end), "write {n}");
        replica.work();
    }
    assert!(replica.node.counters().flushes > 1);
}
