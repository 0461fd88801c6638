//! A member that was left out of a view comes back with records that the group's log lacks: it cuts
//! them, with all that it applied of them, and its process goes on.
//!
//! docs/faults.md: R1, R4
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use crate::{calm_world, is_full, times};
use gabion_base::ReplicaId;
use gabion_sim::World;

fn order(ids: &[u32]) -> Vec<ReplicaId> {
    ids.iter().map(|id| ReplicaId(*id)).collect()
}

/// Crashes during a reopening that are taken without `GABION_CRASH_FULL` and `GABION_TIMES`.
const CRASHES_MAX: u64 = 12;

/// The head is left out while others go on without it, and writes on for a while. Then a view has
/// it again. Returns whether it has written anything that they lack.
fn part(seed: u64, stay: &[u32], back: &[u32]) -> (World, bool) {
    let mut world = calm_world(seed);
    world.leave_out(&order(stay), u64::MAX);
    // Their term begins: until then they take what the head writes, and its log may win.
    let config =
        |world: &World, id: u32| world.node(id as usize - 1).map(|node| node.view().group().config);
    let before = config(&world, 1);
    let runs = |world: &World, id: u32| {
        let is_joined = world.node(id as usize - 1).is_some_and(|it| it.protocol().is_joined());
        is_joined && config(world, id) > before
    };
    while !stay.iter().all(|id| runs(&world, *id)) {
        world.advance(1).unwrap();
    }
    let end =
        |world: &World, id: u32| world.node(id as usize - 1).map(|node| node.log_end().only());
    let theirs = end(&world, stay[0]);
    world.advance(150).unwrap();
    // It is back by itself where they are about to flush.
    let new_head = world.node(stay[0] as usize - 1);
    let is_out = new_head.is_some_and(|it| it.view().group().place_of(ReplicaId(1)).is_none());
    let has_more = is_out && end(&world, 1) > theirs;
    world.take_back(&order(back), |_| true);
    (world, has_more)
}

#[test]
fn a_head_that_was_left_out_cuts_what_it_alone_has_and_goes_on() {
    let (mut cut, mut all) = (0, 0);
    for seed in 2..2 + 2 * times() {
        for (stay, back) in [
            (&[2, 3][..], &[2, 3, 1][..]),
            (&[2, 3], &[2, 1, 3]),
            (&[3, 2], &[3, 1, 2]),
            (&[3], &[3, 2, 1]),
            (&[2, 3], &[1, 2, 3]),
        ] {
            let what = format!("seed {seed}, {stay:?}, then {back:?}");
            let (mut world, has_more) = part(seed, stay, back);
            world.advance(2_000).unwrap_or_else(|error| panic!("{what}: {error}"));
            world.finish().unwrap_or_else(|error| panic!("{what}: {error}"));
            let outcome = world.outcome();
            assert_eq!((outcome.crashes, world.deaths()), (0, 0), "{what}");
            let is_cut = outcome.reopenings > 0;
            assert!(is_cut || !has_more, "{what}: nothing was cut");
            (cut, all) = (cut + u64::from(is_cut), all + 1);
        }
    }
    eprintln!("coverage: {cut} of {all} heads that were left out cut their logs");
    assert!(cut * 2 > all, "{cut} of {all} heads had something that is to be cut");
}

fn is_reopening(world: &World) -> bool {
    world.node(0).is_none_or(|node| node.is_reopening())
}

/// A world in which the head of before is about to be opened anew.
fn cut(seed: u64) -> World {
    let (mut world, _) = part(seed, &[2, 3], &[2, 3, 1]);
    for _ in 0..1_000 {
        if is_reopening(&world) {
            return world;
        }
        world.advance(1).unwrap();
    }
    panic!("seed {seed}: nothing was cut");
}

/// A kill, or a power cut that leaves of unflushed writes nothing, all, or a mixture, after every
/// step from the decision to cut until the replica is open: it starts over to the same end.
///
/// docs/faults.md: E1, E2, R1
#[test]
fn a_crash_at_any_step_of_a_reopening_starts_over_to_the_same_end() {
    for seed in [0, 2] {
        let (mut world, mut steps) = (cut(seed), 0);
        while is_reopening(&world) {
            world.advance(1).unwrap();
            steps += 1;
        }
        assert_eq!(world.outcome().reopenings, 1);
        let ways = [None, Some(0), Some(1), Some(3 + seed)];
        let all: Vec<_> = (0..steps).flat_map(|step| ways.map(|power| (step, power))).collect();
        let stride = match is_full() {
            true => 1,
            // No multiple of the ways, so that each is met.
            false => (all.len() as u64 / (CRASHES_MAX / 2 * times())) as usize | 1,
        };
        for &(step, power) in all.iter().step_by(stride) {
            let what = format!("seed {seed}, after {step} of {steps} steps, power {power:?}");
            let mut world = cut(seed);
            world.advance(step).unwrap();
            assert!(world.crash(0, power, step), "{what}: it is up");
            world.advance(150).unwrap_or_else(|error| panic!("{what}: {error}"));
            world.finish().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        eprintln!("coverage: {steps} steps of a reopening, one crash in {stride} taken");
    }
}
