//! Seeds of everything at once.

use crate::direct::Tally;
use crate::memory::fill_at_random;
use crate::peers::Random;
use crate::world::{Faults, Outcome, World};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A number that the environment gives, or the default.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// One seed: faults, then everything heals.
pub(crate) fn run(world: &mut World) -> Result<(), String> {
    let ms = 1_500 + world.random.below(1_500);
    world.run(ms)?;
    world.settle()
}

/// Why a run failed, also when an assertion did.
pub(crate) fn failure(
    world: &mut World,
    run: impl FnOnce(&mut World) -> Result<(), String>,
) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(|| run(world))) {
        Ok(Ok(())) => None,
        Ok(Err(failure)) => Some(failure),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Some(text.unwrap_or_else(|| "it panicked".to_owned()))
        }
    }
}

fn world(seed: u64) -> World {
    let mut random = Random(seed);
    let machines = 4 + random.below(3);
    World::new(seed, machines, Faults::of_seed(&mut random))
}

/// The same, where programs of half of the seeds share memory with the peers.
fn any_world(seed: u64) -> World {
    let mut world = world(seed);
    if Random(seed ^ 0xf011).once_in(3) {
        world.lack_memory();
    }
    if Random(seed ^ 0xd12ec7).once_in(2) {
        world.share_memory();
    }
    world
}

/// docs/faults.md: N1, N2, N3, N4, N5, N6, N7, N9, N10, N12
#[test]
fn whatever_happens_all_that_was_acknowledged_is_there_and_nothing_that_nobody_wrote() {
    let (first, count) = (number("GABION_FIRST_SEED", 1), number("GABION_SEEDS", 300));
    let (mut failed, mut total) = (Vec::new(), Outcome::default());
    for seed in first..first + count {
        let mut world = any_world(seed);
        if let Some(failure) = failure(&mut world, run) {
            eprintln!("GABION_FIRST_SEED={seed} GABION_SEEDS=1: {failure}");
            failed.push(seed);
        }
        total.add(&world.outcome);
    }
    eprintln!("coverage: {count} seeds: {total:?}");
    assert!(failed.is_empty(), "{} of {count} seeds failed: {failed:?}", failed.len());
    if count >= 300 {
        assert!(total.acknowledged > count * 20, "records are acknowledged");
        assert!(total.recoveries > 2 * count, "instances recover");
        assert!(
            total.losses.min(total.revocations).min(total.takeovers) > count / 3,
            "faults come"
        );
        assert!(total.set_backs > 0, "the store is set back");
        assert!(total.refused > count, "peers have no room");
        // A few seeds have most of them: 12 to 307 in 300 seeds.
        assert!(total.denied > 0, "there is no memory for a change");
        assert!(total.trimmed > count / 20, "files give up memory");
        assert_direct(&total.direct, count);
    }
}

/// docs/faults.md: N15
#[test]
fn peers_of_any_size_are_filled_and_none_that_is_needed_is_lost_and_no_room_is_true() {
    let (first, count) = (number("GABION_FIRST_SEED", 1), number("GABION_SEEDS", 300));
    let denied: u64 = (first..first + count)
        .map(|seed| {
            eprintln!("GABION_FIRST_SEED={seed} GABION_SEEDS=1");
            fill_at_random(seed)
        })
        .sum();
    assert!(denied >= count, "peers say that they have no room");
}

/// Programs of half of the seeds write to the peers themselves.
fn assert_direct(total: &Tally, count: u64) {
    let Tally { grants, records, closed, claimed, died, alone } = *total;
    assert!(records > count * 3 && grants > count, "records are written to peers directly");
    assert!(claimed > count / 3, "grants are recalled while a record is claimed");
    assert!(died > count / 20, "instances die amid a record");
    assert!(closed.min(alone) > 0, "gates are found closed, and libraries stopped");
}

/// Seeds that failed once, and why.
///
/// 102709: the store was set back, and the map told again before the lease; the instance that
/// started between got the term of the one that ran.
///
/// 159598991022: the store was set back by less than a beat of the lease, so its lease was right
/// and its map older, which nobody read again.
///
/// 701008: the fault was the simulator's. The store was set back beyond a change of the map whose
/// answer was lost, a peer that the change replaced had given its copy back, another one was dead,
/// and the instance ended before it told a later map. `World::is_told` has the limit.
const ONCE_FAILED: [u64; 3] = [102_709, 159_598_991_022, 701_008];

/// docs/faults.md: N7
#[test]
fn seeds_that_failed_once_pass() {
    for seed in ONCE_FAILED {
        for world in [world, any_world] {
            assert_eq!(failure(&mut world(seed), run), None, "seed {seed}");
        }
    }
}

#[test]
fn a_seed_is_the_same_run_each_time() {
    let outcome = |is_shared: bool| {
        let mut world = world(7);
        if is_shared {
            world.share_memory();
        }
        let failure = failure(&mut world, run);
        (failure, format!("{:?}", world.outcome))
    };
    assert_eq!(outcome(false), outcome(false));
    assert_eq!(outcome(true), outcome(true));
}
