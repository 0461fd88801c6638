//! Bytes that are not what was written (docs/faults.md E5, E9, R13): a compaction that meets them
//! is given up and not tried again before they are repaired, and all else goes on.

use crate::no_space::start;
use crate::replica::Replica;
use gabion_base::units::{KIB, MIB};
use gabion_base::{ErrorKind, FileId};
use gabion_engine::{Compression, JobKind, TreeConfig};
use gabion_media::simulated::{Fault, OperationClass};
use gabion_node::work::{FetchOrder, Fetched};
use gabion_node::{RepairState, WriteGate, WriteStop};

/// A replica alone whose next job is a compaction, and one of its inputs.
fn before_a_compaction() -> (Replica, FileId) {
    before_a_compaction_of(start())
}

fn before_a_compaction_of(mut replica: Replica) -> (Replica, FileId) {
    while replica.kinds() != [JobKind::Compaction] {
        replica.seal();
        replica.succeed(JobKind::Flush);
        replica.pass(0);
    }
    let file = replica.node.tree().version().level(0).last().unwrap().id;
    (replica, file)
}

fn states(replica: &Replica) -> Vec<(FileId, RepairState)> {
    replica.node.damaged_files().map(|damaged| (damaged.file, damaged.state)).collect()
}

/// docs/faults.md: E9
#[test]
fn a_compaction_that_meets_damage_is_given_up_once_and_writes_go_on() {
    let (mut replica, file) = before_a_compaction();
    let at = replica.offset_of(file);
    replica.disk.flip_bit(at + 100, 3);
    let error = replica.run(JobKind::Compaction).expect("it meets the damage");
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    replica.pass(0);
    assert_eq!(replica.node.damage().map(ToString::to_string), Some(error.to_string()));
    assert!(error.to_string().contains(&file.to_string()), "{error}");
    assert_eq!(replica.node.pool().counts().allocated, 0, "slots are given back");
    for _ in 0..5 {
        assert_eq!(replica.kinds(), [], "it is not tried again");
        assert_eq!(replica.node.write_gate(), WriteGate::Open);
        replica.seal();
        replica.succeed(JobKind::Flush);
        replica.pass(0);
    }
    assert_eq!(replica.node.counters().jobs_set_aside, 1);
    assert_eq!(states(&replica), [(file, RepairState::NoGoodCopy)], "nobody else has it");
    assert_eq!(replica.node.counters().damaged_files, 1);
}

/// docs/faults.md: E9
#[test]
fn a_compaction_whose_read_failed_once_begins_anew_as_its_input_is_whole() {
    let (mut replica, _) = before_a_compaction();
    replica.disk.plan(OperationClass::Read, 1, Fault::Fail);
    let error = replica.run(JobKind::Compaction).expect("a read fails");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    replica.pass(0);
    let states = states(&replica);
    assert!(matches!(states[..], [(_, RepairState::Whole)]), "{states:?}");
    replica.pass(0);
    assert_eq!(replica.kinds(), [JobKind::Compaction], "the error may have passed");
    replica.succeed(JobKind::Compaction);
    replica.pass(0);
    assert_eq!(replica.node.damaged_files().count(), 0);
}

/// A sector of the log cannot be read, and memory has what lies there.
///
/// docs/faults.md: E5, E9
#[test]
fn a_flush_that_cannot_read_the_log_has_its_values_in_a_file_and_not_there() {
    let tree = TreeConfig {
        memtable_len: 192 * KIB,
        large_values: 100,
        value_compression: Compression::None,
        ..TreeConfig::default()
    };
    let mut replica = Replica::start(128 * MIB, tree, 128 * KIB);
    let is_kept = |replica: &Replica| {
        let recipes = replica.jobs.iter().map(|(_, order)| &order.inputs.recipe);
        recipes.map(|recipe| recipe.kept.is_empty()).eq([false])
    };
    for _ in 0..8 {
        // No value is replaced: half of a segment has to be alive.
        replica.seal_over(u64::MAX);
        if is_kept(&replica) {
            break;
        }
        replica.succeed(JobKind::Flush);
        replica.pass(0);
    }
    assert!(is_kept(&replica), "no values stay in the log");
    let before = replica.node.tree().version().values_stats();
    replica.disk.plan(OperationClass::Read, 1, Fault::Fail);
    let error = replica.run(JobKind::Flush).expect("the read fails");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    replica.pass(0);
    let said = replica.said().last().cloned().unwrap_or_default();
    assert!(said.starts_with("large values do not stay in the log: "), "{said}");
    assert_eq!(replica.kinds(), [JobKind::Flush], "it begins anew");
    assert!(!is_kept(&replica));
    replica.succeed(JobKind::Flush);
    replica.pass(0);
    let after = replica.node.tree().version().values_stats();
    assert_eq!(after.segments, before.segments);
    assert!(after.files > before.files, "{after:?}");
}

/// docs/faults.md: E9
#[test]
fn a_compaction_whose_input_is_whole_and_cannot_be_read_is_tried_twice_a_minute() {
    let (mut replica, _) = before_a_compaction();
    for minute in 1..=3 {
        for again in [true, false] {
            replica.disk.plan(OperationClass::Read, 1, Fault::Fail);
            replica.run(JobKind::Compaction).expect("a read fails");
            replica.pass(0);
            let expected: &[JobKind] = if again { &[JobKind::Compaction] } else { &[] };
            assert_eq!(replica.kinds(), expected, "in minute {minute}");
        }
        replica.pass(59_999);
        assert_eq!(replica.kinds(), [], "not before minute {minute} is over");
        replica.pass(1);
        assert_eq!(replica.kinds(), [JobKind::Compaction]);
        assert_eq!(replica.node.damaged_files().count(), 0);
    }
    assert_eq!(replica.node.counters().jobs_set_aside, 6);
    replica.succeed(JobKind::Compaction);
    replica.pass(0);
}

/// The same with an L0 that is full with five files.
fn before_a_compaction_of_a_small_level0() -> (Replica, FileId) {
    let tree = TreeConfig {
        memtable_len: 16 * KIB,
        l0_trigger: 2,
        l0_slowdown: 5,
        l0_stop: 5,
        ..TreeConfig::default()
    };
    before_a_compaction_of(Replica::start(512 * MIB, tree, 64 * KIB))
}

/// Writes until L0 is full.
fn fill_level0(replica: &mut Replica) {
    while replica.node.write_gate() == WriteGate::Open {
        assert!(replica.node.writes_wait_in_vain().is_none(), "they do not wait");
        replica.seal();
        replica.succeed(JobKind::Flush);
        replica.pass(0);
    }
}

/// docs/faults.md: E9
#[test]
fn writes_that_wait_for_a_compaction_of_what_is_damaged_for_good_are_told_by_what() {
    let (mut replica, file) = before_a_compaction_of_a_small_level0();
    fill_level0(&mut replica);
    assert_eq!(replica.kinds(), [JobKind::Compaction]);
    assert_eq!(replica.node.write_gate(), WriteGate::Wait("compaction is behind"));
    assert!(replica.node.writes_wait_in_vain().is_none(), "a compaction is under way");
    let stopped = |replica: &Replica| {
        let stopped = replica.node.counters().writes_stopped_ms;
        (stopped.by(WriteStop::Compaction), stopped.total())
    };
    replica.node.hold_write(replica.now_ms());
    replica.pass(5);
    assert_eq!(stopped(&replica), (5, 5));
    let at = replica.offset_of(file);
    replica.disk.flip_bit(at + 100, 3);
    let error = replica.run(JobKind::Compaction).expect("it meets the damage");
    assert!(replica.node.writes_wait_in_vain().is_none(), "the file is to be compared first");
    replica.pass(0);
    let gate = WriteGate::Wait("compaction is behind, as files are damaged");
    assert_eq!(replica.node.write_gate(), gate);
    let damage = replica.node.writes_wait_in_vain().expect("nothing is under way");
    assert_eq!(damage.to_string(), error.to_string());
    assert!(damage.to_string().contains(&file.to_string()), "{damage}");
    replica.pass(50);
    assert_eq!(stopped(&replica), (5, 5), "who was told waits no longer");
    replica.node.hold_write(replica.now_ms());
    replica.pass(7);
    replica.pass(7);
    assert_eq!(stopped(&replica), (19, 19), "but for who wants to wait");
}

/// docs/faults.md: E9
#[test]
fn writes_wait_for_a_file_that_is_whole_to_be_read_again() {
    let (mut replica, _) = before_a_compaction_of_a_small_level0();
    for _ in 0..2 {
        replica.disk.plan(OperationClass::Read, 1, Fault::Fail);
        replica.run(JobKind::Compaction).expect("a read fails");
        replica.pass(0);
    }
    fill_level0(&mut replica);
    assert!(replica.node.writes_wait_in_vain().is_none());
    replica.pass(60_000);
    replica.work();
    assert_eq!(replica.node.write_gate(), WriteGate::Open);
}

/// docs/faults.md: E5
#[test]
fn a_file_is_noted_once_however_many_reads_meet_its_damage() {
    let (mut replica, file) = before_a_compaction();
    let at = replica.offset_of(file);
    replica.disk.flip_bit(at + 100, 3);
    let error = gabion_base::Error::corruption("the damage");
    for _ in 0..3 {
        replica.node.handle_damage(file, &error);
        replica.node.handle_damage(file, &error);
        replica.pass(1);
    }
    replica.node.handle_damage(FileId::sst(1 << 40), &error);
    replica.pass(1);
    assert_eq!(
        states(&replica),
        [(file, RepairState::NoGoodCopy)],
        "and no file that is not there"
    );
    assert_eq!(replica.node.counters().damaged_files, 1);
    assert_eq!(
        replica.said(),
        [
            format!("{file} is damaged: the damage"),
            format!("{file} is damaged, and reads that need what is damaged fail")
        ]
    );
}

/// docs/faults.md: E5
#[test]
fn what_is_fetched_counts_only_with_the_files_checksums() {
    let (replica, file) = before_a_compaction();
    let version = replica.node.tree().version().clone();
    let meta = version.level(0).iter().find(|meta| meta.id == file).unwrap();
    let order = FetchOrder {
        from: replica.node.id(),
        session: 1,
        geometry: replica.store.geometry.clone(),
        chunk_crcs: meta.chunk_crcs.clone(),
        placement: (*replica.node.pool().placement(file).unwrap()).clone(),
    };
    let Fetched::Whole(bytes) = replica.fetch(&order).unwrap() else { panic!("{file} is whole") };
    meta.verify(&bytes).unwrap();
    replica.disk.flip_bit(replica.offset_of(file) + meta.rounded_len() - 1, 7);
    let Fetched::Other(error) = replica.fetch(&order).unwrap() else { panic!("{file} rotted") };
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    assert!(error.to_string().starts_with(&format!("{file} at offset 0")), "{error}");
}
