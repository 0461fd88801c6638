//! Rings that are lost, at each kind of stop. A replica writes, stops cleanly, starts, is killed.
//! At every boundary between two effects on its disk or its ring the machine is made anew as a
//! crash there would have left it, without its ring (docs/faults.md F5).
//!
//! The findings must agree with the replica's report. If it says that nothing is lost, everything
//! acknowledged is there; if it says that something may be, everything durable. Just after a clean
//! stop it must say the former. Then the start that found a loss is itself interrupted at every
//! boundary, and the next one may not have forgotten it.
//!
//! `cargo test` takes a sample, `GABION_CRASH_FULL=1` every boundary.

use crate::crash_points::is_allowed;
use crate::rig::{Moment, Records, Recovery, Replica, Run, Turn, group, is_state};
use crate::{is_full, times};
use gabion_engine::Compression;
use gabion_media::simulated::SimulatedDisk;
use gabion_node::ring::Fate;
use gabion_node::{AckLevel, GroupConfig};
use gabion_sim::process::RingLabel;
use gabion_sim::{Faults, Options, Random, SimulatedMemory, World};

/// Moments of a run that are taken without `GABION_CRASH_FULL` and `GABION_TIMES`, besides those of
/// stops.
const MOMENTS_MAX: usize = 40;
/// Starts that are themselves interrupted.
const INTERRUPTED_EVERY: usize = 12;

/// Writes with stops, kills and rests among them: some stops follow a write at once, some another
/// stop.
fn turns(count: u64) -> Vec<Turn> {
    let mut random = Random::new(7);
    let mut turns = Vec::new();
    for n in 1..count {
        turns.push(match random.below(24) {
            0 => Turn::Seal,
            1 => Turn::Sync,
            2 => Turn::Rest,
            3 => Turn::Restart,
            4..7 => Turn::Stop,
            _ => Turn::Write(vec![(random.below(40), Some(n << 8)), (random.below(40), None)]),
        });
    }
    turns.push(Turn::Stop);
    turns
}

fn run(ack: AckLevel, count: u64) -> (GroupConfig, Run) {
    let group = group(ack, Compression::None);
    let run = Run::record(&group, &turns(count));
    assert!(run.stops.len() > 5, "{} stops", run.stops.len());
    (group, run)
}

/// Opens an image without its ring. Returns its records, and whether the replica says that
/// something may be missing.
fn without_ring(
    disk: &SimulatedDisk,
    label: &RingLabel,
    ring_len: u64,
) -> Result<(Replica, Records, bool), String> {
    let ring = Box::new(SimulatedMemory::new(ring_len as usize));
    let mut replica = Replica::start_on(disk.clone(), ring, label.clone());
    replica.settle()?;
    let found = replica.records()?;
    replica.check_at_rest()?;
    let node = replica.node().ok_or("it is not open")?;
    let loss = node.ring_loss().cloned();
    if let Some(loss) = &loss
        && !matches!(loss.fate, Fate::Gone(_))
    {
        return Err(format!("alone, it knows the fate of what it lost: {loss}"));
    }
    Ok((replica, found, loss.is_some()))
}

/// The counts of each report.
#[derive(Default)]
struct Tally {
    whole: u64,
    lost: u64,
    interrupted: u64,
}

/// One image, opened without its ring: the records agree with the report.
fn is_honest(
    run: &Run,
    moment: Moment,
    disk: &SimulatedDisk,
    group: &GroupConfig,
) -> Result<bool, String> {
    let label = RingLabel::new(None);
    let (mut replica, found, is_lost) = without_ring(disk, &label, group.ring_len)?;
    let said = if is_lost { "something may be missing" } else { "nothing is lost" };
    let bounds = run.bounds(moment, !is_lost);
    is_allowed(run, &found, replica.group_ms(), bounds).map_err(|e| format!("{said}: {e}"))?;
    if run.stops.contains(&moment) && is_lost {
        return Err("it had stopped cleanly and says that something may be missing".into());
    }
    // A clean stop forgets the loss, and loses nothing more.
    replica.stop()?;
    drop(replica);
    label.lose();
    let (again, now, is_lost) = without_ring(disk, &label, group.ring_len)?;
    match is_state(&found, &now, again.group_ms()) {
        true if !is_lost => Ok(said == "something may be missing"),
        true => Err("a clean stop did not end the loss".into()),
        false => Err("after a clean stop without a ring something else is there".into()),
    }
}

/// The start that finds the loss is cut short at its boundaries: every later start reports the
/// same.
fn is_not_forgotten(disk: &SimulatedDisk, ring_len: u64) -> Result<u64, String> {
    let before = SimulatedMemory::new(ring_len as usize);
    let recovery = Recovery::record_on(disk, before, RingLabel::new(None))?;
    let moments = recovery.moments();
    let stride = if is_full() { 1 } else { moments.len().div_ceil(6) };
    let mut replay = recovery.recording.replay();
    let mut count = 0;
    for moment in moments.iter().step_by(stride) {
        while replay.boundary() < moment.effects {
            replay.advance();
        }
        for variant in [0, 1, 5] {
            // The ring that it made is there, and holds nothing: it may have been cut off before
            // the first record.
            let label = RingLabel::new(Some(1));
            let (_, _, is_lost) = without_ring(&replay.image(variant), &label, ring_len)?;
            if !is_lost {
                return Err(format!("a start cut short at {moment:?}, variant {variant}, forgets"));
            }
            count += 1;
        }
    }
    Ok(count)
}

/// Takes every `stride`th moment of a run, and those of its stops.
fn look_at(run: &Run, group: &GroupConfig, stride: usize) -> Result<Tally, String> {
    let mut tally = Tally::default();
    let mut replay = run.recording.replay();
    for (i, moment) in run.moments().into_iter().enumerate() {
        while replay.boundary() < moment.effects {
            replay.advance();
        }
        if i % stride != 0 && !run.stops.contains(&moment) {
            continue;
        }
        for variant in [0, 1, 3 + i as u64] {
            let at = |error| format!("{moment:?}, variant {variant}: {error}");
            let is_lost = is_honest(run, moment, &replay.image(variant), group).map_err(at)?;
            *if is_lost { &mut tally.lost } else { &mut tally.whole } += 1;
            let count = tally.lost as usize;
            if is_lost && count % INTERRUPTED_EVERY == 1 {
                let image = replay.image(variant);
                tally.interrupted += is_not_forgotten(&image, group.ring_len).map_err(at)?;
            }
        }
    }
    Ok(tally)
}

fn stride_of(run: &Run) -> usize {
    let most = MOMENTS_MAX * times() as usize;
    if is_full() { 1 } else { run.moments().len().div_ceil(most) }
}

fn all(name: &str, ack: AckLevel) {
    let (group, run) = run(ack, 260);
    let tally = look_at(&run, &group, stride_of(&run)).unwrap_or_else(|error| panic!("{error}"));
    eprintln!(
        "coverage: rings lost, {name}: {} moments, {} stops; {} states without a loss, {} with one, {} of starts",
        run.moments().len(),
        run.stops.len(),
        tally.whole,
        tally.lost,
        tally.interrupted
    );
    assert!(tally.whole > 20 && tally.lost > 20, "{} {}", tally.whole, tally.lost);
    assert!(tally.interrupted > 0);
}

/// docs/faults.md: F5, P25
#[test]
fn a_replica_alone_that_lost_its_ring_says_what_is_so() {
    all("replicated", AckLevel::Replicated);
}

/// docs/faults.md: F5, P25
#[test]
fn a_replica_alone_whose_writes_are_durable_loses_none_with_its_ring() {
    all("durable", AckLevel::Durable);
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use crate::rig::PLANTED;
    use gabion_node::Mutant;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn is_caught(mutant: Mutant, way: &str) {
        PLANTED.set(Some(mutant));
        let looked = catch_unwind(AssertUnwindSafe(|| {
            let (group, run) = run(AckLevel::Replicated, 120);
            look_at(&run, &group, 1).err()
        }));
        PLANTED.set(None);
        let error = looked.expect("a checker reports it, no assertion");
        let error = error.unwrap_or_else(|| panic!("{mutant:?} is not caught"));
        assert!(error.contains(way), "{mutant:?} was caught by something else: {error}");
    }

    /// docs/faults.md: F5, P25
    #[test]
    fn a_marker_that_a_start_keeps_is_caught() {
        is_caught(Mutant::MarkerKept, "nothing is lost: ");
    }

    /// docs/faults.md: F5, P25
    #[test]
    fn a_marker_that_is_there_before_the_log_is_caught() {
        is_caught(Mutant::MarkerBeforeLog, "was durable, as all up to");
    }
}

fn world(seed: u64) -> World {
    let options = Options {
        ack: AckLevel::Replicated,
        faults: Faults::default(),
        replicas: 3,
        ..Options::of_seed(seed)
    };
    World::new(seed, options)
}

fn seeds() -> std::ops::Range<u64> {
    0..4 * times()
}

/// Each replica's report on the fate of its ring's content.
fn fates(world: &World) -> Vec<Option<Fate>> {
    let fate = |index| world.node(index).and_then(|node| Some(node.ring_loss()?.fate));
    (0..world.len()).map(fate).collect()
}

/// docs/faults.md: F5, P25
#[test]
fn a_group_that_was_stopped_cleanly_loses_nothing_with_all_its_rings() {
    for seed in seeds() {
        let mut world = world(seed);
        for round in 0..3 {
            world.advance(400).unwrap();
            for index in 0..3 {
                let is_open = world.stop_cleanly(index, seed).unwrap();
                assert!(is_open || round == 0, "seed {seed}: replica {index} was not open");
                if is_open {
                    world.lose_ring(index);
                }
            }
        }
        world.finish().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(fates(&world), [None; 3], "seed {seed}");
    }
}

/// docs/faults.md: F5, P25
#[test]
fn what_one_ring_held_or_two_is_taken_over_from_the_others() {
    for seed in seeds() {
        for lost in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2]] {
            let mut world = world(seed);
            world.advance(600).unwrap();
            for index in 0..3 {
                assert!(world.crash(index, None, seed + 1));
            }
            lost.iter().for_each(|&index| world.lose_ring(index));
            world.advance(300).unwrap();
            world.finish().unwrap_or_else(|error| panic!("seed {seed}, {lost:?}: {error}"));
            for (index, fate) in fates(&world).into_iter().enumerate() {
                match fate {
                    None => assert!(!lost.contains(&index), "seed {seed}: {index} of {lost:?}"),
                    Some(Fate::TakenOver(from)) => {
                        let from = from.get() as usize - 1;
                        assert!(lost.contains(&index) && !lost.contains(&from), "{index} {lost:?}");
                    }
                    Some(fate) => panic!("seed {seed}: {index} of {lost:?}: {fate:?}"),
                }
            }
        }
    }
}

/// No replica has the lost records, and each reports that, through further kills too, until it has
/// stopped cleanly.
/// docs/faults.md: F5, P25
#[test]
fn a_group_that_lost_all_its_rings_says_so_until_it_was_stopped_cleanly() {
    for seed in seeds() {
        let mut world = world(seed);
        world.advance(600).unwrap();
        for index in 0..3 {
            assert!(world.crash(index, None, seed + 1));
            world.lose_ring(index);
        }
        let is_gone = |fate: &Option<Fate>| matches!(fate, Some(Fate::Gone(_)));
        for _ in 0..2 {
            world.settle().unwrap();
            let fates = fates(&world);
            assert!(fates.iter().all(is_gone), "seed {seed}: {fates:?}");
            (0..3).for_each(|index| assert!(world.crash(index, None, seed + 2)));
        }
        world.settle().unwrap();
        // A replica that loses its ring later finds the newer records at the others.
        assert!(world.crash(1, None, seed + 3));
        world.lose_ring(1);
        world.settle().unwrap();
        let now = fates(&world);
        assert!(is_gone(&now[0]) && is_gone(&now[2]), "seed {seed}: {now:?}");
        assert!(matches!(now[1], Some(Fate::TakenOver(_))), "seed {seed}: {now:?}");
        for index in 0..3 {
            assert!(world.stop_cleanly(index, seed).unwrap());
            world.lose_ring(index);
        }
        world.settle().unwrap();
        assert_eq!(fates(&world), [None; 3], "seed {seed}");
    }
}
