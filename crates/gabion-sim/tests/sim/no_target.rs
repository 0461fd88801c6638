//! Files travel only through the target: without it nothing is shipped and no edit is applied, and
//! when it is back everything goes on.

use gabion_base::FileKind;
use gabion_engine::Compression;
use gabion_node::{CompactionMode, Node, WriteGate};
use gabion_sim::{Faults, Options, Outcome, Targets, World};

const SEEDS: u64 = 2;
/// Steps without a target; more than it takes until writes have to wait.
const STEPS: u64 = 3_000;

/// Three replicas that ship files; faults in every second seed. Files are as large as MemTables, so
/// that the second flush has to wait for the files of the first.
fn options(seed: u64) -> Options {
    let faults = Faults { kill: 900, link: 900, pipe: 900, slow: 900, ..Faults::default() };
    Options {
        replicas: 3,
        compaction: CompactionMode::Primary,
        compression: Compression::None,
        faults: if seed.is_multiple_of(2) { faults } else { Faults::default() },
        // Only flushes wait.
        loads: 0,
        ..Options::of_seed(seed)
    }
}

fn world(seed: u64, targets: Targets) -> World {
    let mut world = World::new(seed, options(seed));
    world.set_targets(targets);
    world.advance(STEPS).unwrap_or_else(|error| panic!("seed {seed}, {targets:?}: {error}"));
    world
}

fn ssts(node: &Node) -> usize {
    node.pool().files().filter(|placement| placement.file.kind == FileKind::Sst).count()
}

/// No part of a file or an edit is anywhere but where it was made.
fn check_nothing_moved(world: &World, what: &str) {
    let outcome = world.outcome();
    assert!(outcome.flushes > 0, "{what}: no flush ended, nothing was shown");
    assert!(outcome.operations > 100, "{what}: clients got {} answers", outcome.operations);
    let moved = (outcome.shipped_files, outcome.shipped_bytes, outcome.received_bytes);
    assert_eq!(moved, (0, 0, 0), "{what}: files, bytes shipped, bytes received");
    assert_eq!(outcome.edits, 0, "{what}: edits applied");
    for (index, node) in (0..world.len()).filter_map(|i| Some((i, world.node(i)?))) {
        let what = format!("{what}, replica {}", index + 1);
        assert_eq!(node.tree().last_edit(), 0, "{what}: an edit is in the tree");
        assert_eq!(node.tree().version().files().count(), 0, "{what}: a file is in the tree");
        assert_eq!(node.state().trimmed.position.get(), 0, "{what}: the log was trimmed");
        if index > 0 {
            assert_eq!(ssts(node), 0, "{what}: files in the pool of a secondary");
        }
    }
}

fn outage(seed: u64, targets: Targets) {
    let what = format!("seed {seed}, {targets:?}");
    let mut world = world(seed, targets);
    check_nothing_moved(&world, &what);
    if let Some(head) = world.node(0) {
        assert!(head.tree().sealed_count() > 0, "{what}: no MemTable waits for its flush");
        if targets == Targets::Silent && options(seed).faults.kill == 0 {
            let gate = head.write_gate();
            assert!(matches!(gate, WriteGate::Wait(_)), "{what}: writes go on, {gate:?}");
        }
    }
    let before = world.outcome();
    world.set_targets(Targets::Open);
    world.advance(STEPS).unwrap_or_else(|error| panic!("{what}: {error}"));
    world.finish().unwrap_or_else(|error| panic!("{what}: {error}"));
    let after = world.outcome();
    check_it_went_on(&before, &after, &what);
}

fn check_it_went_on(before: &Outcome, after: &Outcome, what: &str) {
    assert!(after.operations > before.operations, "{what}: no answers afterwards");
    assert!(after.shipped_files > 0, "{what}: no file was shipped afterwards");
    assert!(after.received_bytes > 0, "{what}: no file was received afterwards");
    assert!(after.edits > 0, "{what}: no edit was applied afterwards");
}

/// docs/faults.md: H6
#[test]
fn without_a_target_nothing_ships_and_no_edit_is_applied_and_with_it_all_goes_on() {
    for seed in 1..=SEEDS {
        outage(seed, Targets::Refused);
        outage(seed, Targets::Silent);
        // The same time with the target is enough to ship and to apply.
        let with = world(seed, Targets::Open).outcome();
        check_it_went_on(&Outcome::default(), &with, &format!("seed {seed} with the target"));
    }
}
