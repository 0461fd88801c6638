//! Rings that hold a small part of the log that MemTables let grow, and disks that become slow. A
//! member that cannot write its log as fast as it comes holds the others back, and drops out of the
//! group for it no more than any other (docs/faults.md E15, R14).

use crate::times;
use gabion_engine::TreeConfig;
use gabion_node::{AckLevel, CompactionMode};
use gabion_sim::{Faults, Options, Outcome, World};

/// Nothing breaks for good except in every third seed. In every other seed each replica compacts
/// for itself, and then only the ring tells the head that another is slow.
fn options(seed: u64) -> Options {
    let calm = Faults { slow: 60, ..Faults::default() };
    let stormy = Faults { kill: 2_000, power: 4_000, link: 1_500, pipe: 1_500, ..calm };
    let tree = TreeConfig { memtable_len: 512 * 1024, ..TreeConfig::default() };
    let modes = [CompactionMode::Primary, CompactionMode::EveryReplica];
    Options {
        replicas: 3,
        compaction: modes[(seed % 2) as usize],
        ack: AckLevel::Replicated,
        faults: if seed.is_multiple_of(3) { stormy } else { calm },
        tree: Some(tree),
        segment_len: 16 * 1024,
        loads: 0,
        counters: false,
        ..Options::of_seed(seed)
    }
}

/// docs/faults.md: E15, R14, F13
#[test]
fn a_member_whose_disk_is_slow_for_its_ring_holds_the_others_back_and_stays() {
    let mut all = Outcome::default();
    for seed in 12..12 + 4 * times() {
        let outcome = World::run(seed, options(seed));
        all.add(&outcome.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
    }
    assert!(all.operations > 2_000, "{all:?}");
    println!("coverage: {} operations through rings of 64 KiB", all.operations);
}
