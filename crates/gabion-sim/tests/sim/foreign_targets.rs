//! Targets that do not report their received bytes (docs/faults.md H8): a secondary reads a file
//! shipped through one once, before it uses it, and counts the bytes.

use gabion_engine::Compression;
use gabion_node::CompactionMode;
use gabion_sim::{Faults, Options, World};

const SEEDS: core::ops::Range<u64> = 1..4;
const STEPS: u64 = 4_000;
/// One write of a file's bytes in so many is damaged.
const DAMAGE: u64 = 9;

/// Three replicas that ship files, and no faults but those of targets.
fn world(seed: u64, foreign_targets: Option<u64>) -> World {
    let options = Options {
        replicas: 3,
        steps: STEPS,
        compaction: CompactionMode::Primary,
        compression: Compression::None,
        faults: Faults::default(),
        foreign_targets,
        ..Options::of_seed(seed)
    };
    let mut world = World::new(seed, options);
    world.advance(STEPS).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    world.finish().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    world
}

/// docs/faults.md: H8
#[test]
fn behind_a_foreign_target_every_byte_is_read_once_before_it_is_used_and_behind_ours_none() {
    for seed in SEEDS {
        let ours = world(seed, None).outcome();
        assert!(ours.received_bytes > 0, "seed {seed}: nothing was shipped");
        assert_eq!(ours.verified_read_bytes, 0, "seed {seed}: the target has seen the checksums");
        let foreign = world(seed, Some(0)).outcome();
        assert!(foreign.received_bytes > 0, "seed {seed}: nothing was shipped");
        assert_eq!(foreign.verified_read_bytes, foreign.received_bytes, "seed {seed}");
    }
}

/// docs/faults.md: E17, H8
#[test]
fn what_a_foreign_target_damaged_is_shipped_again_and_never_used() {
    for seed in SEEDS {
        let world = world(seed, Some(DAMAGE));
        let outcome = world.outcome();
        assert!(outcome.damaged_writes > 0, "seed {seed}: nothing was damaged");
        for index in 0..world.len() {
            let node = world.node(index).expect("no replica is ever stopped");
            let what = format!("seed {seed}, replica {}", index + 1);
            assert_eq!(node.counters().damaged_files, 0, "{what}: a read met damage");
            for file in world.files(index) {
                assert!(world.is_whole(index, file), "{what}: {file}");
            }
        }
    }
}
