//! Disks without space for the files of flushes and compactions, like a thin file system. Jobs are
//! tried again after pauses and reads go on. With space everything goes on; nothing is lost, no
//! slot either.
//!
//! docs/faults.md: E10

use crate::times;
use gabion_base::FileId;
use gabion_engine::Compression;
use gabion_node::{CompactionMode, Node, WriteGate};
use gabion_sim::{Faults, Options, World};

/// Steps without space, some 3,000 ms; far more than it takes until a MemTable is full.
const STEPS: u64 = 3_000;
/// Pauses of 100, 200, 400, 800 and 1,600 ms end within that time. A flush and a compaction may
/// fail after each.
const FAILURES_MAX: u64 = 2 * 6;

/// Files as large as MemTables; no fault but the full disk.
fn options(seed: u64, replicas: u32, compaction: CompactionMode) -> Options {
    let compression = Compression::None;
    let faults = Faults::default();
    Options { replicas, compaction, compression, faults, ..Options::of_seed(seed) }
}

fn node(world: &World, index: usize) -> &Node {
    world.node(index).expect("nothing kills it")
}

/// A disk fills up, stays so, and has space again.
fn outage(seed: u64, replicas: u32, compaction: CompactionMode, index: usize) {
    let what = format!("seed {seed}, {replicas} replicas, {compaction:?}, disk {}", index + 1);
    let check =
        |result: Result<(), String>| result.unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut world = World::new(seed, options(seed, replicas, compaction));
    check(world.advance(1_500));
    world.fill_disk(index, u64::MAX);
    // Written files go on to their edit.
    check(world.advance(300));
    let before = world.outcome();
    let files = world.files(index);
    check(world.advance(STEPS));

    let counters = node(&world, index).counters();
    // A flush of deleted entries only makes no file, and needs no space.
    let is_new = |file: &FileId| !files.contains(file);
    assert_eq!(world.files(index).into_iter().find(is_new), None, "{what}: files without room");
    let flushes = counters.flushes;
    let failures = counters.jobs_without_space;
    assert!((1..=FAILURES_MAX).contains(&failures), "{what}: {failures} jobs failed");
    assert!(world.outcome().operations > before.operations, "{what}: reads do not go on");
    if index == 0 {
        let WriteGate::Full { reason, .. } = node(&world, 0).write_gate() else {
            panic!("{what}: writes are not refused");
        };
        assert!(reason.starts_with("the pool is full: "), "{what}: {reason}");
        assert!(reason.contains("without room; tried again after"), "{what}: {reason}");
    }

    world.fill_disk(index, 0);
    let log_end = node(&world, 0).log_end();
    check(world.advance(STEPS + 2_000));
    assert!(node(&world, index).counters().flushes > flushes, "{what}: no flush with room");
    assert!(!log_end.covers(&node(&world, 0).log_end()), "{what}: no writes with room");
    check(world.finish());
}

/// docs/faults.md: P17
#[test]
fn without_room_for_files_jobs_pause_and_with_room_all_goes_on() {
    use CompactionMode::{EveryReplica, Primary};
    for seed in 1..=2 * times() {
        outage(seed, 3, Primary, 0);
        outage(seed, 1, Primary, 0);
        outage(seed, 3, EveryReplica, 0);
        outage(seed, 3, EveryReplica, 1);
    }
}

#[test]
fn disks_that_fill_up_now_and_then_while_all_else_breaks_lose_nothing() {
    let mut failures = 0;
    for seed in 1..=6 * times() {
        let mut options = Options::of_seed(seed);
        options.faults = Faults { full: 300, link: 100, ..options.faults };
        let outcome = World::run(seed, options).unwrap_or_else(|error| panic!("{error}"));
        failures += outcome.jobs_without_space;
    }
    assert!(failures > 6 * times(), "{failures} jobs found no room");
}
