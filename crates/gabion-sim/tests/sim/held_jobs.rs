//! Compactions of many files, each of which waits until secondaries have the one before: the bound
//! of unshipped bytes is less than one file. Despite all faults none waits for ever, and no job's
//! bytes exceed the bound, which the world checks at every step.

use crate::times;
use gabion_engine::{Compression, SstOptions, TreeConfig};
use gabion_node::{AckLevel, CompactionMode};
use gabion_sim::{Faults, Options, Outcome, World};

/// Every other seed has all faults often: machines, connections for the log and for files, slow
/// disks.
fn options(seed: u64) -> Options {
    let faults =
        Faults { kill: 900, power: 2_500, link: 900, pipe: 900, slow: 300, ..Faults::default() };
    let sst = SstOptions { compression: Compression::None, ..SstOptions::default() };
    let (memtable_len, sst_len, level1_len) = (19 * 1024, 4 * 1024, 32 * 1024);
    let tree = TreeConfig {
        sst,
        memtable_len,
        sst_len,
        level1_len,
        l0_trigger: 3,
        ..TreeConfig::default()
    };
    Options {
        replicas: 3,
        compaction: CompactionMode::Primary,
        ack: AckLevel::Replicated,
        faults: if seed.is_multiple_of(2) { faults } else { Faults::default() },
        tree: Some(tree),
        compactions_max: 1 + (seed % 3) as usize,
        ..Options::of_seed(seed)
    }
}

/// docs/faults.md: P8
#[test]
fn a_compaction_that_waits_for_secondaries_before_each_file_ends_whatever_breaks() {
    let mut all = Outcome::default();
    for seed in 1..=6 * times() {
        let outcome = World::run(seed, options(seed));
        all.add(&outcome.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
    }
    assert!(all.compactions > 20 && all.crashes > 0, "{all:?}");
    println!("coverage: {} compactions held back, {} crashes", all.compactions, all.crashes);
}
