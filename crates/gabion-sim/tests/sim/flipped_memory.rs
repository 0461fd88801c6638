//! Bits that flip in memory, in a file that the primary has built, after its checksums were taken
//! (docs/faults.md E17). No secondary takes it, and none gets the same bytes again and again. A
//! file that is whole on the primary's disk is read back from there; any other is made anew.

use crate::times;
use gabion_base::FileId;
use gabion_engine::{Compression, SstOptions, TreeConfig};
use gabion_node::{CompactionMode, Counters, Node};
use gabion_sim::process::Flip;
use gabion_sim::{Faults, Options, World};

/// Steps by which a flush and a compaction have begun, many times over.
const STEPS_MAX: u64 = 20_000;

/// Three replicas, no faults but the test's own, and compactions of several files, each of which
/// waits until the one before is shipped.
fn options(seed: u64) -> Options {
    let sst = SstOptions { compression: Compression::None, ..SstOptions::default() };
    let tree = TreeConfig {
        sst,
        memtable_len: 19 * 1024,
        sst_len: 4 * 1024,
        level1_len: 32 * 1024,
        l0_trigger: 3,
        ..TreeConfig::default()
    };
    Options {
        replicas: 3,
        compaction: CompactionMode::Primary,
        faults: Faults::default(),
        tree: Some(tree),
        loads: 0,
        ..Options::of_seed(seed)
    }
}

fn node(world: &World, index: usize) -> &Node {
    world.node(index).expect("no replica is ever stopped")
}

/// Sessions that secondaries have begun.
fn sessions(world: &World) -> u64 {
    (1..world.len()).map(|index| node(world, index).state().session).sum()
}

/// The fate of a file in which a bit flipped.
struct Seen {
    file: FileId,
    counters: Counters,
    notices: String,
    /// Whether a replica has the file in slots once all is at rest.
    is_anywhere: bool,
}

/// A bit flips in one file; the group comes to rest with few sessions more, and whole.
fn flip(what: &str, seed: u64, flip: Flip) -> Seen {
    let check = |result: Result<(), String>| {
        result.unwrap_or_else(|error| panic!("{what}, seed {seed}: {error}"));
    };
    let mut world = World::new(seed, options(seed));
    check(world.advance(500));
    check(world.settle());
    let before = sessions(&world);
    world.flip_next_built(0, flip);
    let mut steps = 0;
    while world.flipped(0).is_empty() {
        check(world.advance(100));
        steps += 100;
        assert!(steps < STEPS_MAX, "{what}, seed {seed}: no such file is built");
    }
    check(world.settle());
    // One for each secondary that refused it, and some to spare.
    let more = sessions(&world) - before;
    assert!((1..=4).contains(&more), "{what}, seed {seed}: {more} sessions more");
    for index in 0..world.len() {
        for file in world.files(index) {
            assert!(world.is_whole(index, file), "{what}, seed {seed}: {file} at {index}");
        }
    }
    let file = world.flipped(0)[0];
    let has = |index: usize| node(&world, index).pool().placement(file).is_some();
    let seen = Seen {
        file,
        counters: node(&world, 0).counters(),
        notices: world.notices(0).join("\n"),
        is_anywhere: (0..world.len()).any(has),
    };
    // All goes on.
    check(world.advance(1_000));
    check(world.finish());
    assert_eq!(node(&world, 0).counters().rotten_buffers, seen.counters.rotten_buffers);
    seen
}

/// Flips in flushes, and in compactions.
fn flips(what: &str, is_written: bool, look: impl Fn(&str, &Seen)) {
    for seed in 1..=3 * times() {
        for of_compaction in [false, true] {
            let what = format!("{what}, of a compaction: {of_compaction}");
            let seen = flip(&what, seed, Flip { of_compaction, is_written });
            let what = format!("{what}, seed {seed}: {}", seen.notices);
            // Both secondaries may be about to get it again.
            assert!((1..=2).contains(&seen.counters.rotten_buffers), "{what}");
            let rotten = format!("{} rotted in memory", seen.file);
            assert!(seen.notices.contains(&rotten), "{what}");
            look(&what, &seen);
        }
    }
}

/// docs/faults.md: E17
#[test]
fn a_file_that_rotted_in_memory_is_read_back_from_the_disk_and_shipped() {
    flips("in memory", false, |what, seen| {
        assert!(seen.counters.reship_read_bytes > 0, "{what}");
        assert!(!seen.notices.contains("made anew"), "{what}");
    });
}

/// docs/faults.md: E17
#[test]
fn a_file_that_rotted_before_it_was_written_is_made_anew_by_its_job() {
    flips("in memory and on the disk", true, |what, seen| {
        let anew = format!("{} is whole neither in memory nor here, and is made anew", seen.file);
        assert_eq!(seen.notices.matches(&anew).count(), 1, "{what}");
        assert!(!seen.is_anywhere, "{what}: its slots are not free");
        assert_eq!(seen.counters.damaged_files, 0, "{what}");
    });
}
