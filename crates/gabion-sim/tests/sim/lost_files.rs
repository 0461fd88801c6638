//! Disks that lose files which they had reported as durable: the replica asks the primary for the
//! needed ones, and does without those that a later edit has removed.

use crate::times;
use gabion_node::CompactionMode;
use gabion_sim::{Faults, Options, Outcome, World};

/// Three replicas that ship files, disks that forget often, and little else.
fn options(seed: u64) -> Options {
    let calm = Options::of_seed(seed);
    Options {
        replicas: 3,
        compaction: CompactionMode::Primary,
        faults: Faults { lost: 60, kill: 4_000, link: 3_000, ..Faults::default() },
        ..calm
    }
}

/// docs/faults.md: E7
#[test]
fn a_file_that_a_disk_lost_comes_back_and_one_that_is_gone_is_not_missed() {
    // Enough for everything to happen, and some more.
    let (mut total, seeds) = (Outcome::default(), 8 * times());
    for seed in 1..=seeds {
        let outcome = World::run(seed, options(seed)).unwrap_or_else(|error| panic!("{error}"));
        total.add(&outcome);
    }
    eprintln!("coverage: lost files, {seeds} seeds: {total:?}");
    assert!(total.lost_commits >= seeds, "disks lost too little");
    assert!(total.pulled_files > 0, "no file was asked for");
    assert!(total.skipped_files > 0, "no edits were applied as one");
}
