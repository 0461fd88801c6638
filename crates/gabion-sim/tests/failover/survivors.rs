//! Below the minimum: too few full members are left to take writes, and a survivor answers reads.
//!
//! docs/faults.md: R2, R5

use crate::options::calm;
use gabion_node::AckLevel;
use gabion_sim::{Options, World};

/// Longer than a lease, a silence and the time until the next view takes effect.
const UNTIL_ALONE_MS: u64 = 1_500;
/// A machine is away for so long.
const AWAY_MS: u64 = 6_000;

/// A group with load and without faults.
fn world(seed: u64, replicas: u32, members_min: u8) -> World {
    let mut world = begin(calm(seed), seed, replicas, members_min);
    pass(&mut world, 2_000);
    assert!(world.outcome().operations > 50, "seed {seed} has load");
    world
}

fn begin(options: Options, seed: u64, replicas: u32, members_min: u8) -> World {
    let mut control = options.control.clone().expect("the options have controllers");
    (control.members_min, control.spares) = (members_min, 0);
    // Else nobody may be left out. This one never happens.
    control.faults.away = u64::MAX;
    let ack = AckLevel::Replicated;
    World::new(seed, Options { replicas, ack, control: Some(control), ..options })
}

fn pass(world: &mut World, ms: u64) {
    let until_ms = world.now_ms() + ms;
    while world.now_ms() < until_ms {
        world.advance(1).unwrap_or_else(|error| panic!("{error}"));
    }
}

fn finish(world: &mut World, seed: u64) {
    world.finish().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
}

fn shape(world: &mut World) -> (Vec<u32>, Vec<u32>) {
    let view = world.record().expect("a group with a controller").newest().clone();
    let ids = |members: Vec<&gabion_replication::Member>| {
        members.into_iter().map(|member| member.replica.get()).collect()
    };
    (ids(view.full().collect()), ids(view.kept().collect()))
}

fn has_event(world: &mut World, part: &str) -> bool {
    world.control_events().iter().any(|event| event.contains(part))
}

/// The ways in which a machine goes.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Kill,
    Power,
    Pause,
}

fn lose(world: &mut World, index: usize, loss: Loss) {
    match loss {
        Loss::Kill => world.stop(index, false),
        Loss::Power => world.stop(index, true),
        Loss::Pause => world.pause(index, AWAY_MS),
    }
}

#[test]
fn a_tail_that_is_left_alone_answers_reads_until_the_others_are_back() {
    for (seed, loss) in (1..).zip([Loss::Kill, Loss::Power, Loss::Pause, Loss::Kill]) {
        let mut world = world(seed, 3, 2);
        (0..2).for_each(|index| lose(&mut world, index, loss));
        pass(&mut world, UNTIL_ALONE_MS);
        let before = world.outcome().reads_alone;
        pass(&mut world, 3_000);
        let alone = world.outcome().reads_alone - before;
        assert!(alone > 100, "seed {seed}, {loss:?}: {alone} reads in three seconds");
        // One of the others may have been missed first, and was left out then.
        let (full, kept) = shape(&mut world);
        assert!(full == [3] && !kept.is_empty(), "seed {seed}: full {full:?}, kept {kept:?}");
        assert!(has_event(&mut world, "too few are left to take writes: waits for replica"));
        (0..2).for_each(|index| world.start(index));
        finish(&mut world, seed);
        assert!(has_event(&mut world, "back"), "seed {seed}");
    }
}

/// The others may go on without it, once they are back, only if it is gone for good.
#[test]
fn a_survivor_that_is_paused_is_waited_for_and_answers_nothing_from_the_past() {
    for seed in 1..=4 {
        let mut world = world(seed, 3, 2);
        (0..2).for_each(|index| world.stop(index, false));
        pass(&mut world, UNTIL_ALONE_MS);
        world.pause(2, 2 * AWAY_MS);
        pass(&mut world, 800);
        (0..2).for_each(|index| world.start(index));
        pass(&mut world, AWAY_MS);
        let (full, kept) = shape(&mut world);
        assert_eq!(full, [3], "seed {seed}");
        // One of the others may have been missed first, and was left out: it does not count.
        let text = "writes wait for replica 3, which may still answer reads";
        assert_eq!(has_event(&mut world, text), kept.len() == 2, "seed {seed}: kept {kept:?}");
        pass(&mut world, AWAY_MS);
        finish(&mut world, seed);
    }
}

#[test]
fn members_that_are_kept_go_on_once_the_disk_of_the_survivor_is_gone() {
    for seed in [1, 5] {
        let mut world = world(seed, 3, 2);
        (0..2).for_each(|index| world.stop(index, false));
        pass(&mut world, UNTIL_ALONE_MS);
        assert!(!shape(&mut world).1.is_empty(), "seed {seed}: they are kept");
        world.replace_machine(2, seed);
        (0..2).for_each(|index| world.start(index));
        pass(&mut world, AWAY_MS);
        finish(&mut world, seed);
    }
}

#[test]
fn two_survivors_of_five_answer_reads_under_each_others_promise() {
    for (seed, first) in [(1, 3), (2, 3), (3, 0)] {
        let mut world = world(seed, 5, 3);
        let lost: Vec<usize> = (0..5).filter(|index| ![first, 4].contains(index)).collect();
        lost.iter().for_each(|index| world.stop(*index, false));
        pass(&mut world, UNTIL_ALONE_MS);
        let before = world.outcome().reads_alone;
        pass(&mut world, 2_000);
        assert!(world.outcome().reads_alone > before + 50, "seed {seed}: the tail answers");
        // Without the other one it answers nothing until it is full alone.
        world.pause(first, AWAY_MS);
        pass(&mut world, UNTIL_ALONE_MS);
        assert_eq!(shape(&mut world).0, [5], "seed {seed}");
        let before = world.outcome().reads_alone;
        pass(&mut world, 2_000);
        assert!(world.outcome().reads_alone > before + 50, "seed {seed}: the tail alone does");
        lost.iter().for_each(|index| world.start(*index));
        finish(&mut world, seed);
    }
}

/// The disk of a member that was once the only full one is put back as it was then. No other member
/// of its view tells it that there are newer ones.
///
/// docs/faults.md: R11
#[test]
fn a_disk_of_a_former_survivor_that_is_put_back_answers_nothing_from_the_past() {
    // Seeds where its disk rests now and then: no other one can be copied.
    for seed in [1, 3, 4, 8] {
        let mut world = world(seed, 3, 1);
        put_back(&mut world).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(has_event(&mut world, "its disk is empty, foreign or older"), "seed {seed}");
    }
}

fn put_back(world: &mut World) -> Result<(), String> {
    (0..2).for_each(|index| world.stop(index, false));
    pass(world, UNTIL_ALONE_MS);
    let image = (0..1_000).find_map(|_| {
        pass(world, 1);
        world.image(2)
    });
    let image = image.ok_or("its disk never rests")?;
    (0..2).for_each(|index| world.start(index));
    pass(world, AWAY_MS);
    if shape(world).0.len() < 3 {
        return Err("the others are not full".into());
    }
    // The others are away, too: whoever asks finds this one alone.
    (0..2).for_each(|index| world.pause(index, 400));
    world.put_back(2, &image);
    let until_ms = world.now_ms() + AWAY_MS;
    while world.now_ms() < until_ms {
        world.advance(1)?;
    }
    world.finish()
}

/// Planted defects of groups below their minimum (docs/faults.md, "Seeded mutants").
#[cfg(feature = "planted")]
mod planted {
    use super::{AWAY_MS, UNTIL_ALONE_MS, begin, put_back};
    use crate::options::calm;
    use gabion_control::Mutant as Control;
    use gabion_node::Mutant;
    use gabion_sim::{Options, World};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const SEEDS_MAX: u64 = 20;

    fn pass(world: &mut World, ms: u64) -> Result<(), String> {
        let until_ms = world.now_ms() + ms;
        while world.now_ms() < until_ms {
            world.advance(1)?;
        }
        Ok(())
    }

    /// A head that is left alone loses its power, and with it what nobody else has.
    fn loses_power(world: &mut World) -> Result<(), String> {
        pass(world, 2_000)?;
        (1..3).for_each(|index| world.stop(index, false));
        pass(world, UNTIL_ALONE_MS)?;
        world.crash(0, Some(7), 7);
        (1..3).for_each(|index| world.start(index));
        pass(world, AWAY_MS)?;
        world.finish()
    }

    /// A survivor is paused while the others come back.
    fn wakes_late(world: &mut World) -> Result<(), String> {
        pass(world, 2_000)?;
        (0..2).for_each(|index| world.stop(index, false));
        pass(world, UNTIL_ALONE_MS)?;
        world.pause(2, AWAY_MS);
        (0..2).for_each(|index| world.start(index));
        pass(world, 2 * AWAY_MS)?;
        world.finish()
    }

    /// A tail that is left alone loses its disk, and the others have everything.
    fn loses_its_disk(world: &mut World) -> Result<(), String> {
        pass(world, 2_000)?;
        (0..2).for_each(|index| world.stop(index, false));
        pass(world, UNTIL_ALONE_MS)?;
        world.replace_machine(2, 7);
        (0..2).for_each(|index| world.start(index));
        pass(world, AWAY_MS)?;
        world.finish()
    }

    type Run = fn(&mut World) -> Result<(), String>;

    /// Runs seeds until the defect shows in one of the ways that fit it; without it that seed
    /// passes.
    fn is_caught(plant: fn(&mut Options), (replicas, min): (u32, u8), run: Run, ways: &[&str]) {
        let outcome = |seed, is_planted| {
            let mut options = calm(seed);
            if is_planted {
                plant(&mut options);
            }
            let run = || run(&mut begin(options, seed, replicas, min));
            catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                Err(format!("panic: {text}"))
            })
        };
        for seed in 1..=SEEDS_MAX {
            let Err(message) = outcome(seed, true) else { continue };
            let first = message.lines().next().unwrap_or_default();
            eprintln!("seed {seed} of at most {SEEDS_MAX}: {first}");
            let is_known = ways.iter().any(|way| message.contains(way));
            assert!(is_known, "it was caught by something else: {message}");
            assert_eq!(outcome(seed, false), Ok(()), "seed {seed} fails without the defect");
            return;
        }
        panic!("it was not caught in {SEEDS_MAX} seeds");
    }

    /// docs/faults.md: A1, R2
    #[test]
    fn a_survivor_that_commits_below_the_minimum_is_caught() {
        let plant = |options: &mut Options| options.planted = Some(Mutant::CommitBelowMinimum);
        is_caught(plant, (3, 2), loses_power, &["no linearizable order"]);
    }

    /// docs/faults.md: R5
    #[test]
    fn a_group_that_goes_on_without_its_survivor_is_caught() {
        let plant =
            |options: &mut Options| options.planted_control = Some(Control::SurvivorNotWaitedFor);
        let ways = ["a newer one had acknowledged writes before", "no linearizable order"];
        is_caught(plant, (3, 2), wakes_late, &ways);
    }

    /// docs/faults.md: R11
    #[test]
    fn a_survivor_that_starts_without_a_controllers_word_is_caught() {
        let plant = |options: &mut Options| options.planted = Some(Mutant::NoWordAwaited);
        let ways = ["a newer one had acknowledged writes before", "no linearizable order"];
        let run = |world: &mut World| {
            pass(world, 2_000)?;
            put_back(world)
        };
        is_caught(plant, (3, 1), run, &ways);
    }

    /// docs/faults.md: R11
    #[test]
    fn a_kept_member_that_gives_up_what_it_has_is_caught() {
        let plant = |options: &mut Options| options.planted = Some(Mutant::KeptIsEmptied);
        is_caught(plant, (3, 2), loses_its_disk, &["is not whole"]);
    }
}
