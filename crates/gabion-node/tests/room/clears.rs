//! Clears of everything, which are no entries of a MemTable: what makes them last.

use crate::no_space::start;
use crate::replica::Replica;
use gabion_base::units::{KIB, MIB};
use gabion_engine::{JobKind, TreeConfig};
use gabion_node::CompactionMode;

/// A replica that has a key in a file, and nothing in memory.
fn with_a_file() -> Replica {
    let mut replica = start();
    replica.put("k");
    replica.node.end_turn().unwrap();
    flush(&mut replica);
    assert!(replica.has(&replica.node.read_view(), "k"));
    assert_eq!(replica.node.tree().level_stats()[0].files, 1);
    replica
}

/// Seals, and flushes what is sealed by that; other jobs do not begin.
fn flush(replica: &mut Replica) {
    replica.node.seal_memtable().unwrap();
    replica.pass(1);
    replica.succeed(JobKind::Flush);
    replica.pass(1);
    let node = &replica.node;
    assert_eq!((node.tree().sealed_count(), node.edits_waiting()), (0, 0));
    assert!(node.is_edit_kept(node.tree().last_edit()));
}

/// Whether the key is there after a power cut.
fn comes_back(replica: Replica) -> bool {
    let replica = replica.restart(0);
    replica.has(&replica.node.read_view(), "k")
}

/// Neither the drop of the file, which an edit tells of, nor a record of the log is there to say so.
/// docs/faults.md: P26
#[test]
fn what_was_cleared_past_the_log_stays_gone_once_that_was_flushed() {
    for drops in [false, true] {
        let mut replica = with_a_file();
        replica.node.clear().unwrap();
        replica.node.end_turn_unlogged().unwrap();
        assert!(replica.node.has_unlogged() && replica.node.tree().active_is_empty());
        flush(&mut replica);
        assert!(!replica.node.has_unlogged());
        assert_eq!(replica.node.tree().level_stats()[0].files, 1);
        if drops {
            replica.work();
            assert_eq!(replica.node.tree().level_stats()[0].files, 0);
        }
        assert!(!comes_back(replica), "the drop was carried out: {drops}");
    }
}

/// docs/faults.md: P26
#[test]
fn what_was_cleared_in_the_ring_stays_gone_after_a_power_cut_once_that_was_flushed() {
    let mut replica = with_a_file();
    replica.node.clear().unwrap();
    replica.node.end_turn().unwrap();
    flush(&mut replica);
    assert!(!comes_back(replica));
}

/// Of an edit that was applied the commit may be under way: a process that starts then finds the edit in its log and the
/// write with it, but reads before it has come so far do without.
/// docs/faults.md: P26
#[test]
fn a_write_past_the_log_stays_unlogged_until_the_edit_of_its_flush_is_kept() {
    let mut replica = with_a_file();
    replica.put("past");
    replica.node.end_turn_unlogged().unwrap();
    replica.node.seal_memtable().unwrap();
    replica.pass(1);
    let flushed = replica.node.tree().flushed();
    replica.succeed(JobKind::Flush);
    replica.pass_until(|node| !node.has_unlogged());
    assert_ne!(replica.node.tree().flushed(), flushed);
    assert!(replica.node.is_edit_kept(replica.node.tree().last_edit()));
    let replica = replica.restart(0);
    assert!(replica.has(&replica.node.read_view(), "past"));
}

/// docs/faults.md: P26
#[test]
fn a_clear_that_was_not_flushed_is_sealed_once() {
    let mut replica = with_a_file();
    replica.node.clear().unwrap();
    replica.node.end_turn_unlogged().unwrap();
    for _ in 0..2 {
        replica.node.seal_memtable().unwrap();
        assert_eq!(replica.node.tree().sealed_count(), 1, "an edit is on its way that has it");
    }
    replica.pass(1);
    replica.work();
    replica.node.seal_memtable().unwrap();
    assert_eq!(replica.node.tree().sealed_count(), 0, "an edit has it");
}

fn write(replica: &mut Replica, key: &str) {
    replica.put(key);
    replica.node.end_turn().unwrap();
    replica.pass(1);
}

/// Each replica compacts for itself here, so no record of the log carries the edit that drops what was cleared. It has the
/// number of the clear, and numbers up to that must not be given to other writes.
/// docs/faults.md: P24
#[test]
fn a_clear_that_a_power_cut_took_hides_nothing_of_what_is_written_then() {
    let tree = TreeConfig { l0_trigger: 10, ..TreeConfig::default() };
    for is_flush in [false, true] {
        let every = CompactionMode::EveryReplica;
        let mut replica = Replica::start_in(every, 128 * MIB, tree.clone(), 64 * KIB);
        write(&mut replica, "k");
        match is_flush {
            false => flush(&mut replica),
            // Its flush begins after the clear.
            true => replica.node.seal_memtable().unwrap(),
        }
        for _ in 0..10 {
            replica.put("other");
            replica.node.end_turn().unwrap();
        }
        replica.node.clear().unwrap();
        replica.node.end_turn().unwrap();
        replica.pass(1);
        let kind = if is_flush { JobKind::Flush } else { JobKind::Drop };
        assert_eq!(replica.kinds(), [kind]);
        replica.work();
        replica.pass(1);
        assert_eq!(replica.node.edits_waiting(), 0);
        let mut replica = replica.restart(0);
        write(&mut replica, "new");
        assert!(replica.has(&replica.node.read_view(), "new"), "{kind:?}");
    }
}

/// The edit that drops what was cleared has the clear's number, and the log nothing of it.
#[test]
fn a_clear_past_the_log_that_an_edit_kept_hides_nothing_of_what_is_written_after_a_kill() {
    let mut replica = with_a_file();
    for _ in 0..10 {
        replica.put("past");
        replica.node.end_turn_unlogged().unwrap();
    }
    replica.node.clear().unwrap();
    replica.node.end_turn_unlogged().unwrap();
    replica.pass(1);
    assert_eq!(replica.kinds(), [JobKind::Drop]);
    replica.work();
    replica.pass(1);
    let floor = replica.node.tree().floor();
    let mut replica = replica.restart(0);
    assert_eq!(replica.node.tree().last_sequence(), floor);
    for written in ["new", "newer"] {
        write(&mut replica, written);
        assert!(replica.has(&replica.node.read_view(), written));
        assert!(replica.node.tree().last_sequence() > floor);
        // The log says of the numbers that they are nobody's.
        replica.node.make_durable().unwrap();
        replica.pass(1);
        replica = replica.restart(0);
        assert!(replica.has(&replica.node.read_view(), written));
    }
}
