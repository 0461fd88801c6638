//! Large values that stay in segments of the log. Segments are files of the tree then: past the
//! trim, a restart, a power cut, a change of head and the filling of a member, repaired where they
//! rot, and at every replica with the same bytes.

use crate::times;
use gabion_node::{AckLevel, CompactionMode};
use gabion_sim::{Faults, Options, Outcome, World};

/// Each seed has faults of its own; in every fourth each replica compacts for itself.
fn options(seed: u64) -> Options {
    let faults = match seed % 3 {
        0 => Faults { kill: 1_500, kill_all: 4_000, power: 2_000, ..Faults::default() },
        1 => Faults { absences: 800, moves: 1_500, link: 2_000, ..Faults::default() },
        _ => Faults { rot: 400, log_rot: 700, ..Faults::default() },
    };
    let each = seed % 4 == 3;
    let mut options = Options {
        replicas: [3, 2, 1][(seed / 3 % 3) as usize],
        compaction: if each { CompactionMode::EveryReplica } else { CompactionMode::Primary },
        ack: AckLevel::Replicated,
        faults,
        loads: 0,
        steps: 9_000,
        ..Options::of_seed(seed)
    };
    options.keep_in_log(1 + seed / 2 % 3);
    options
}

/// docs/faults.md: E1, E12, R13
#[test]
fn values_stay_in_the_log_through_crashes_changes_of_head_and_fillings() {
    let mut all = Outcome::default();
    for seed in 1..=9 * times() {
        let outcome = World::run(seed, options(seed));
        let outcome = outcome.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        all.add(&outcome);
    }
    assert!(all.kept_segments > 20 * times(), "{all:?}");
    println!("coverage: values stay in {} segments, over all replicas", all.kept_segments);
}
