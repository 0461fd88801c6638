//! Every crash point of a member of a group. For head, middle and tail of a chain under load the
//! process is killed, or the power cut, after each step in which its disk carried something out:
//! for its log, a file that it builds or one that is being shipped to it (docs/faults.md E1, H1).
//! It comes back, clients go on, and everything acknowledged as durable is there, the same at every
//! replica. The middle one also where every replica compacts for itself.
//!
//! `cargo test` takes a sample, `GABION_CRASH_FULL=1` all.
//!
//! docs/faults.md: E1, H1, H7

use crate::{in_parts, is_full, times};
use gabion_engine::TreeConfig;
use gabion_node::{AckLevel, CompactionMode};
use gabion_sim::{Faults, Options, World};

pub(crate) const SEED: u64 = 1;
/// Steps of clients until the last crash, and after each.
pub(crate) const STEPS: u64 = 1_500;
pub(crate) const STEPS_AFTER: u64 = 150;
/// Crashes of each member that are taken without `GABION_CRASH_FULL` and `GABION_TIMES`.
const CRASHES_MAX: u64 = 10;

/// Ways in which the machine may crash at a moment: a kill, or a power cut that leaves nothing,
/// all, or one of many mixtures of torn sectors of the unflushed writes.
const WAYS: u64 = 10;

/// The remains after a power cut; none for a kill.
fn way(number: u64, step: u64) -> Option<u64> {
    match number % WAYS {
        0 => None,
        mixed @ 3.. => Some(mixed + step * WAYS),
        whole => Some(whole - 1),
    }
}

/// A group whose members make all kinds of disk calls within a few steps.
pub(crate) fn options(compaction: CompactionMode) -> Options {
    // Files come and go within few steps.
    let tree = TreeConfig {
        memtable_len: 8 * 1024,
        l0_trigger: 2,
        sst_len: 32 * 1024,
        level1_len: 64 * 1024,
        ..TreeConfig::default()
    };
    Options {
        tree: Some(tree),
        ack: AckLevel::Durable,
        faults: Faults::default(),
        replicas: 3,
        compaction,
        ..Options::of_seed(SEED)
    }
}

pub(crate) fn world(compaction: CompactionMode) -> World {
    World::new(SEED, options(compaction))
}

/// The steps, counted from one, after which a member's disk has done more than before.
fn moments(index: usize, compaction: CompactionMode) -> Vec<u64> {
    let (mut world, mut before) = (world(compaction), 0);
    let mut moments = Vec::new();
    for step in 1..=STEPS {
        world.advance(1).expect("nothing breaks");
        let stats = world.disk_stats(index);
        let effects = stats.writes + stats.flushes;
        if effects > before {
            moments.push(step);
        }
        before = effects;
    }
    let counters = world.node(0).expect("it is up").counters();
    let ships = counters.shipped_files > 4;
    assert!(counters.compactions > 0, "{counters:?}");
    assert_eq!(ships, compaction == CompactionMode::Primary, "{counters:?}");
    moments
}

fn crash_at(
    index: usize,
    compaction: CompactionMode,
    step: u64,
    power: Option<u64>,
) -> Result<(), String> {
    let mut world = world(compaction);
    world.advance(step)?;
    assert!(world.crash(index, power, step), "it is up");
    world.advance(STEPS_AFTER)?;
    world.finish()
}

fn all(index: usize, compaction: CompactionMode) {
    let moments = moments(index, compaction);
    let taken: Vec<_> = if is_full() {
        let ways = |&step: &u64| (0..WAYS).map(move |number| (step, way(number, step)));
        moments.iter().flat_map(ways).collect()
    } else {
        let stride = moments.len().div_ceil((CRASHES_MAX * times()) as usize);
        // Each member meets other ways early and late.
        let numbers = 5 + 3 * index as u64..;
        numbers.zip(moments.iter().step_by(stride)).map(|(n, &step)| (step, way(n, step))).collect()
    };
    let failures = in_parts(|part, parts| {
        let mine = taken.iter().skip(part).step_by(parts);
        let failed = mine.filter_map(|&(step, power)| {
            let error = crash_at(index, compaction, step, power).err()?;
            Some(format!("after step {step}, power {power:?}: {error}"))
        });
        failed.collect::<Vec<_>>()
    })
    .concat();
    eprintln!(
        "coverage: crash points of replica {} of 3, {}: {} moments, {} crashes",
        index + 1,
        compaction.as_str(),
        moments.len(),
        taken.len()
    );
    let few: Vec<_> = failures.iter().take(3).collect();
    assert!(failures.is_empty(), "{} crashes of replica {}: {few:#?}", failures.len(), index + 1);
}

#[test]
fn the_head_survives_every_crash_point() {
    all(0, CompactionMode::Primary);
}

#[test]
fn the_middle_survives_every_crash_point() {
    all(1, CompactionMode::Primary);
}

/// docs/faults.md: H1
#[test]
fn the_tail_survives_every_crash_point() {
    all(2, CompactionMode::Primary);
}

#[test]
fn a_member_of_a_group_in_which_every_replica_compacts_survives_every_crash_point() {
    all(1, CompactionMode::EveryReplica);
}
