//! A member whose log cannot be followed is filled with a copy of the group's state while the group
//! serves, and is the same as the others in the end.
//!
//! docs/faults.md: R11
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use crate::{is_full, times};
use gabion_base::{FileId, FileKind, ReplicaId};
use gabion_node::{CompactionMode, FillStatus, FillStep, Node};
use gabion_sim::{Faults, Options, World};

/// The index of the member that is filled, of two or three.
const FILLED: usize = 1;
/// Most steps that a copy may take.
const STEPS_MAX: u64 = 60_000;

fn ids(ids: &[u32]) -> Vec<ReplicaId> {
    ids.iter().map(|id| ReplicaId(*id)).collect()
}

fn options(seed: u64) -> Options {
    let compaction = CompactionMode::Primary;
    let options = Options { replicas: 3, compaction, ..Options::of_seed(seed) };
    Options { faults: Faults::default(), counters: false, ..options }
}

/// The members but the one that is filled.
fn others(world: &World) -> Vec<ReplicaId> {
    let all = world.group().founders.iter().copied();
    all.filter(|id| *id != world.group().founders[FILLED]).collect()
}

fn node(world: &World, index: usize) -> Option<&Node> {
    world.node(index)
}

fn status(world: &World) -> Option<FillStatus> {
    node(world, FILLED)?.fill_status()
}

/// A group with files that goes on without its second member, until it has trimmed the log that
/// this one would need.
fn without_one(mut world: World) -> World {
    world.advance(3_000).unwrap();
    if world.reader() == FILLED {
        // Nothing here passes time for its promises: whoever answers reads stays.
        let first = world.group().founders[FILLED];
        let rest = others(&world);
        world.make_view(&[&[first], &rest[..]].concat(), &[], |_| true);
        world.advance(500).unwrap();
    }
    let end = node(&world, FILLED).unwrap().log_end().only();
    let others = others(&world);
    world.make_view(&others, &[], |index| index != FILLED);
    // Else clients wait for writes at it that nobody takes any more.
    world.crash(FILLED, None, 1);
    for _ in 0..200 {
        world.advance(100).unwrap();
        let trimmed = |index| node(&world, index).unwrap().state().trimmed.position;
        let mut indexes = (0..world.len()).filter(|index| *index != FILLED);
        if indexes.all(|index| trimmed(index) > end) && !world.files(0).is_empty() {
            return world;
        }
    }
    panic!("the log is not trimmed beyond {end}: {}", world.describe());
}

/// The view has the member again, to be filled.
fn begin_filling(world: &mut World) {
    let others = others(world);
    world.make_view(&others, &ids(&[2]), |_| true);
}

/// Tells the member the view, if it does not know it: nobody is to be heard by a replica that was
/// left out, or whose machine was replaced.
fn tell_if_older(world: &mut World) {
    let newest = world.view().config;
    if node(world, FILLED).is_some_and(|node| node.state().view.config < newest) {
        world.tell_view(FILLED);
    }
}

/// Goes on until the member is filled. Returns the counts of the last copy, as far as it was seen.
fn fill(world: &mut World, what: &str) -> FillStatus {
    let mut last = FillStatus::default();
    for _ in 0..STEPS_MAX {
        world.advance(1).unwrap_or_else(|error| panic!("{what}: {error}"));
        tell_if_older(world);
        if let Some(status) = status(world).filter(|status| status.step != FillStep::FollowingLog) {
            last = status;
        }
        if node(world, FILLED).is_some_and(Node::is_filled) {
            return last;
        }
    }
    panic!("{what}: it is not filled: {last:?}");
}

/// Makes it a full member, and compares all replicas in the end.
fn end(world: &mut World, what: &str) {
    let all = world.group().founders.clone();
    world.make_view(&all, &[], |_| true);
    world.advance(1_000).unwrap_or_else(|error| panic!("{what}: {error}"));
    world.finish().unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// One with an older state, which is about to be filled.
fn with_older_state(seed: u64) -> World {
    older_state(seed, options(seed))
}

fn older_state(seed: u64, options: Options) -> World {
    let mut world = without_one(World::new(seed, options));
    begin_filling(&mut world);
    world
}

/// One with an empty pool, which is about to be filled.
fn with_nothing(seed: u64, options: Options) -> World {
    let mut world = without_one(World::new(seed, options));
    world.replace_machine(FILLED, seed);
    begin_filling(&mut world);
    world
}

#[test]
fn a_member_with_an_empty_pool_is_filled_while_clients_write() {
    for seed in 0..2 * times() {
        let what = format!("seed {seed}");
        let mut world = with_nothing(seed, options(seed));
        let copied = fill(&mut world, &what);
        assert!(copied.bytes > 0 && copied.bytes_reused == 0, "{what}: {copied:?}");
        // For the mark and for the state, and again where the log had not been held long enough.
        assert!(world.outcome().reopenings >= 2, "{what}");
        end(&mut world, &what);
        assert_eq!(world.outcome().crashes, 2, "{what}: the one that was replaced");
    }
}

/// New files are shipped to it once it follows the log, though nobody else gets any.
#[test]
fn the_second_of_two_is_filled_by_a_head_that_is_alone() {
    for seed in 0..2 * times() {
        let what = format!("seed {seed}");
        let mut world = with_nothing(seed, Options { replicas: 2, ..options(seed) });
        fill(&mut world, &what);
        let shipped = world.outcome().shipped_files;
        world.advance(1_500).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(world.outcome().shipped_files > shipped, "{what}: nothing is shipped");
        end(&mut world, &what);
    }
}

#[test]
fn a_member_with_an_older_state_keeps_the_files_that_are_those_of_the_new_one() {
    let mut reused = 0;
    for seed in 0..4 * times() {
        let what = format!("seed {seed}");
        let mut world = with_older_state(seed);
        let here: Vec<_> = world.files(FILLED);
        let kept = world.files(0).iter().filter(|file| here.contains(file)).count();
        let copied = fill(&mut world, &what);
        assert!(world.outcome().reopenings >= 2, "{what}");
        assert!(kept > 0 || copied.bytes_reused == 0, "{what}: {copied:?}");
        reused += copied.bytes_reused;
        end(&mut world, &what);
    }
    assert!(reused > 0, "no file was of any use");
}

/// Fills a member all whose files rotted that the head has, too. Returns how many did.
fn fill_with_rotten_files(seed: u64, options: Options) -> Result<usize, String> {
    let what = format!("seed {seed}");
    let mut world = older_state(seed, options);
    let here = world.files(FILLED);
    let kept: Vec<_> = world.files(0).into_iter().filter(|file| here.contains(file)).collect();
    kept.iter().for_each(|file| world.rot(FILLED, *file));
    fill(&mut world, &what);
    let left = world.files(FILLED);
    if let Some(file) = kept.iter().find(|it| left.contains(it) && !world.is_whole(FILLED, **it)) {
        return Err(format!("{what}: {file} is in the tree and is not whole"));
    }
    end(&mut world, &what);
    Ok(kept.len())
}

/// docs/faults.md: E5, R13
#[test]
fn a_file_of_before_that_rotted_is_fetched() {
    let rotten = (0..4 * times()).map(|seed| fill_with_rotten_files(seed, options(seed)).unwrap());
    assert!(rotten.sum::<usize>() > 0, "nothing rotted");
}

/// The head is killed, or another one takes its place: the copy goes on with the files that are
/// here.
///
/// docs/faults.md: R1, R12
#[test]
fn a_copy_goes_on_when_its_head_is_killed_or_another_one_takes_its_place() {
    for seed in 0..2 * times() {
        for (moves, at) in [(false, 20), (false, 60), (true, 20), (true, 150)] {
            let what = format!("seed {seed}, after {at} steps, moves {moves}");
            let slow = Options { rebuild_bytes_per_s: Some(1_000_000), ..options(seed) };
            let mut world = with_nothing(seed, slow);
            while status(&world).is_none_or(|status| status.step != FillStep::Copying) {
                world.advance(1).unwrap();
                tell_if_older(&mut world);
            }
            world.advance(at).unwrap();
            if moves {
                world.make_view(&ids(&[3, 1]), &ids(&[2]), |_| true);
            } else {
                world.crash(0, None, at);
            }
            fill(&mut world, &what);
            end(&mut world, &what);
        }
    }
}

/// Files come so slowly that the group compacts them away meanwhile, and trims the log.
#[test]
fn a_slow_copy_ends_though_the_group_compacts_and_trims_its_log_meanwhile() {
    let mut trims = 0;
    for seed in 1..=2 * times() {
        let what = format!("seed {seed}");
        // Values files would be as long as all that the rate lets through while a state is held.
        let rebuild_bytes_per_s = Some(4_000);
        let slow = Options { rebuild_bytes_per_s, large_values: 0, ..options(seed) };
        let mut world = with_nothing(seed, slow);
        let (edits, trimmed) = {
            let head = node(&world, 0).unwrap();
            (head.tree().last_edit(), head.state().trimmed.position)
        };
        fill(&mut world, &what);
        let head = node(&world, 0).unwrap();
        assert!(head.tree().last_edit() > edits, "{what}: nothing was compacted");
        trims += u64::from(head.state().trimmed.position > trimmed);
        end(&mut world, &what);
    }
    // The log is held for a while: a copy may end before.
    assert!(trims > times(), "trimmed in {trims} of {} seeds", 2 * times());
}

/// Crashes that are taken without `GABION_CRASH_FULL` and `GABION_TIMES`.
const CRASHES_MAX: u64 = 12;

/// A kill of the member, or a power cut there that leaves of unflushed writes nothing, all, or a
/// mixture, after every step of its copy: it finds the old state or the mark, and is filled.
///
/// docs/faults.md: E1, E2, R12
#[test]
fn a_crash_at_any_step_of_a_copy_ends_with_the_same_state() {
    for seed in [0, 3] {
        let what = format!("seed {seed}");
        let (mut world, mut steps) = (with_older_state(seed), 0);
        while !node(&world, FILLED).is_some_and(Node::is_filled) {
            world.advance(1).unwrap_or_else(|error| panic!("{what}: {error}"));
            tell_if_older(&mut world);
            steps += 1;
        }
        let ways = [None, Some(0), Some(1), Some(3 + seed)];
        let all: Vec<_> = (0..steps).flat_map(|step| ways.map(|power| (step, power))).collect();
        let stride = match is_full() {
            true => 1,
            // No multiple of the ways, so that each is met.
            false => (all.len() as u64 / (CRASHES_MAX / 2 * times())) as usize | 1,
        };
        for &(step, power) in all.iter().step_by(stride) {
            let what = format!("seed {seed}, after {step} of {steps} steps, power {power:?}");
            let mut world = with_older_state(seed);
            world.advance(step).unwrap();
            assert!(world.crash(FILLED, power, step), "{what}: it is up");
            fill(&mut world, &what);
            end(&mut world, &what);
        }
        eprintln!("coverage: {steps} steps of a copy, one crash in {stride} taken");
    }
}

/// A group in which large values stay in the log.
fn kept_options(seed: u64, replicas: u32) -> Options {
    let mut options = Options { replicas, loads: 0, ..options(seed) };
    options.keep_in_log(1);
    options
}

/// The segments that keep values of a replica's tree.
fn segments(world: &World, index: usize) -> Vec<FileId> {
    let mut files = world.files(index);
    files.retain(|file| file.kind == FileKind::LogSegment);
    files
}

/// The place of a segment was made before its bytes came, and tells no checksum of them: the head
/// ships by that of the edit, and the member takes its own copies by it.
///
/// docs/faults.md: R11, R13
#[test]
fn the_second_of_two_is_filled_with_segments_that_keep_values() {
    let (mut kept, mut reused) = (0, 0);
    for seed in 0..4 * times() {
        for is_empty in [true, false] {
            let what = format!("seed {seed}, empty {is_empty}");
            let options = kept_options(seed, 2);
            let mut world = match is_empty {
                true => with_nothing(seed, options),
                false => older_state(seed, options),
            };
            kept += segments(&world, 0).len();
            reused += fill(&mut world, &what).bytes_reused;
            let damaged: Vec<_> = node(&world, 0).unwrap().damaged_files().collect();
            assert!(damaged.is_empty(), "{what}: {damaged:?}");
            end(&mut world, &what);
        }
    }
    assert!(kept > 0, "no values stay in the log");
    println!("coverage: {kept} segments kept values, {reused} bytes were here");
}

/// Either of two gives the other a segment that keeps values, into a place with a checksum, and no
/// process ends.
///
/// docs/faults.md: E5, R13
#[test]
fn a_segment_that_keeps_values_and_rots_is_repaired_from_the_other_of_two() {
    let mut repaired = [0, 0];
    // Before these seeds compactions empty the segment before anybody reads it.
    for seed in 3..3 + 3 * times() {
        for rotten in [0, 1] {
            let what = format!("seed {seed}, replica {}", rotten + 1);
            let mut world = World::new(seed, kept_options(seed, 2));
            let is_whole = |world: &World| {
                // A start takes some steps.
                (0..2).try_for_each(|index| node(world, index).map(|_| ()))?;
                let segments = segments(world, 1 - rotten);
                segments.into_iter().find(|it| (0..2).all(|index| world.is_whole(index, *it)))
            };
            let file = (0..200).find_map(|_| {
                world.advance(20).unwrap_or_else(|error| panic!("{what}: {error}"));
                is_whole(&world)
            });
            // Not every seed has values that stay there.
            let Some(file) = file else { continue };
            world.rot(rotten, file);
            world.finish().unwrap_or_else(|error| panic!("{what}: {error}"));
            repaired[rotten] += world.outcome().repaired_files;
        }
    }
    assert!(repaired.iter().all(|count| *count > 0), "{repaired:?}");
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use gabion_node::Mutant;

    fn with(mutant: Mutant, seed: u64) -> Options {
        Options { planted: Some(mutant), ..options(seed) }
    }

    /// docs/faults.md: E5
    #[test]
    fn files_that_count_for_a_copy_without_a_look_at_their_bytes_are_caught() {
        let mut run = (0..8).map(|seed| (seed, with(Mutant::FilledWithoutCheck, seed)));
        let caught = run.find_map(|(seed, options)| fill_with_rotten_files(seed, options).err());
        let message = caught.expect("files of before are of use in one of the seeds");
        assert!(message.contains("is in the tree and is not whole"), "{message}");
    }

    /// docs/faults.md: E1, R12
    #[test]
    fn an_old_state_whose_slots_go_before_the_mark_is_durable_is_caught() {
        let marks = || older_state(0, with(Mutant::OldStateOverwritten, 0));
        let (mut world, mut steps) = (marks(), 0);
        while world.outcome().reopenings == 0 {
            world.advance(1).unwrap();
            steps += 1;
        }
        let caught = (0..steps).rev().find_map(|step| {
            let mut world = marks();
            world.advance(step).unwrap();
            world.crash(FILLED, None, step);
            world.advance(150).err()
        });
        let message = caught.expect("a crash before the mark shows it");
        assert!(message.contains("is in the tree with"), "{message}");
    }
}
