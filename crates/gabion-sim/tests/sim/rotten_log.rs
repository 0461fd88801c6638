//! Bits that flip in records that were durable (docs/faults.md E4). Other replicas fill the log
//! again; if none can, the group names who lost which records, and loses nothing silently.
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use gabion_base::LogPosition;
use gabion_node::{AckLevel, CompactionMode};
use gabion_sim::{Faults, Options, World};

fn options(seed: u64, replicas: u32) -> Options {
    let ack = if seed == 1 { AckLevel::Replicated } else { AckLevel::Durable };
    let compaction = if seed == 3 { CompactionMode::EveryReplica } else { CompactionMode::Primary };
    Options { replicas, ack, compaction, faults: Faults::default(), ..Options::of_seed(seed) }
}

/// A group at rest whose log has some records.
fn world(seed: u64, replicas: u32, steps: u64) -> World {
    let mut world = World::new(seed, options(seed, replicas));
    world.advance(steps).unwrap();
    world.settle().unwrap();
    world
}

/// Stops a replica, alone or with all others, once its log has durable records. Returns the first
/// of them, the last, and one between.
fn stop_with_log(world: &mut World, index: usize, alone: bool) -> Vec<LogPosition> {
    loop {
        if alone {
            world.stop(index, false);
        } else {
            stop_all(world);
        }
        let places: Vec<_> = world.log_of(index).durable().collect();
        if places.len() >= 3 {
            return vec![places[0], places[places.len() / 2], places[places.len() - 1]];
        }
        start_all(world);
        world.advance(200).unwrap();
        world.settle().unwrap();
    }
}

fn stop_all(world: &mut World) {
    (0..world.len()).for_each(|index| world.stop(index, false));
}

fn start_all(world: &mut World) {
    (0..world.len()).for_each(|index| world.start(index));
}

fn rest(world: &mut World, what: &str) {
    world.settle().unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// The record's place, as errors and notices name it.
fn place(world: &World, at: LogPosition) -> String {
    let len = world.group().segment_len;
    format!("{at} ({:06}.log at {})", at.get() / len, at.get() % len)
}

/// The exact notices of a replica about this record: where it was, who repairs it, and that it is
/// over.
fn check_notices(world: &World, index: usize, at: LogPosition, before: usize, what: &str) {
    let said = &world.notices(index)[before..];
    let wanted = [
        format!("the log is rotten: the record at {} is not whole", place(world, at)),
        "from replica".to_owned(),
        "the log is repaired: it is durable again up to".to_owned(),
    ];
    assert_eq!(said.len(), wanted.len(), "{what}: {said:?}");
    for (said, wanted) in said.iter().zip(wanted) {
        assert!(said.contains(&wanted), "{what}: {said}, wanted {wanted}");
    }
}

/// docs/faults.md: E4, R13
#[test]
fn a_rotten_record_comes_back_at_head_middle_and_tail() {
    for seed in 0..4 {
        let mut world = world(seed, 3, 2_500);
        for (i, (index, alone)) in (0..3).flat_map(|i| [(i, true), (i, false)]).enumerate() {
            let number = (i + seed as usize) % 3;
            let what = format!("seed {seed}, replica {}, record {number}", index + 1);
            let at = stop_with_log(&mut world, index, alone)[number];
            let before = world.notices(index).len();
            world.rot_record(index, at);
            start_all(&mut world);
            world.advance(100).unwrap_or_else(|error| panic!("{what}: {error}"));
            rest(&mut world, &what);
            check_notices(&world, index, at, before, &what);
        }
        world.finish().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// Killed, or without power, again and again while the log is filled.
/// docs/faults.md: E4, R13
#[test]
fn a_repair_that_is_cut_short_begins_again_and_ends() {
    for seed in 0..4 {
        let mut world = world(seed, 3, 2_500);
        for index in 0..3 {
            let at = stop_with_log(&mut world, index, true)[1];
            world.rot_record(index, at);
            for steps in (1..40).step_by(3) {
                world.start(index);
                world.advance(steps).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                world.stop(index, steps % 2 == 0);
            }
            world.start(index);
            rest(&mut world, &format!("seed {seed}, replica {}", index + 1));
            let said = world.notices(index).join("\n");
            assert!(said.contains("the log is repaired from"), "{said}");
            // Whichever process ended the repair: it is durable now.
            world.stop(index, true);
            world.start(index);
            rest(&mut world, &format!("seed {seed}, replica {}, once more", index + 1));
            assert_eq!(world.notices(index).join("\n"), said);
        }
        world.finish().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// docs/faults.md: E4, R13, F6
#[test]
fn two_rotten_logs_are_filled_by_the_third() {
    for seed in 0..4 {
        let mut world = world(seed, 3, 2_500);
        let records = [(1, 1), (0, 2), (2, 1), (0, 0), (1, 2), (2, 0)];
        for ((one, other), (first, second)) in
            [(0, 1), (1, 2), (0, 2)].repeat(2).into_iter().zip(records)
        {
            let what = format!("seed {seed}, replicas {} and {}", one + 1, other + 1);
            let places = stop_with_log(&mut world, one, false);
            world.rot_record(one, places[first]);
            world.rot_record(other, places[second]);
            start_all(&mut world);
            world.advance(50).unwrap_or_else(|error| panic!("{what}: {error}"));
            rest(&mut world, &what);
        }
        world.finish().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// docs/faults.md: E4, R13, F6
#[test]
fn each_record_of_a_log_comes_back() {
    let mut world = world(0, 3, 100);
    let mut number = 0;
    // Flushed log is trimmed away: until enough lies in the log.
    loop {
        stop_all(&mut world);
        let records = world.log_of(0).durable().count();
        start_all(&mut world);
        if records > 10 {
            break;
        }
        world.advance(100).unwrap();
        rest(&mut world, "the log is filled");
    }
    rest(&mut world, "before anything rots");
    loop {
        let index = number % 3;
        stop_all(&mut world);
        let at = world.log_of(index).durable().nth(number);
        let Some(at) = at else { break };
        let before = world.notices(index).len();
        world.rot_record(index, at);
        start_all(&mut world);
        let what = format!("record {number} of replica {}", index + 1);
        rest(&mut world, &what);
        check_notices(&world, index, at, before, &what);
        number += 1;
    }
    assert!(number > 10, "{number} durable records");
    start_all(&mut world);
    world.finish().unwrap();
}

/// docs/faults.md: E4, R13
#[test]
fn what_all_replicas_lost_is_named_and_no_term_begins_until_one_has_it_again() {
    for seed in 0..4 {
        let number = seed as usize % 3;
        let mut world = world(seed, 3, 2_500);
        let at = stop_with_log(&mut world, 0, false)[number];
        let term = world.log_of(0).term;
        (0..3).for_each(|index| world.rot_record(index, at));
        for _ in 0..2 {
            start_all(&mut world);
            world.advance(1_500).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            for index in 0..3 {
                let node = world.node(index).unwrap();
                let reason = node.protocol().not_ready_reason().unwrap_or("ready");
                assert!(reason.contains("no replica has all of it any more"), "{reason}");
                for replica in 1..=3 {
                    let who = format!("replica {replica} lost it from {}", place(&world, at));
                    assert!(reason.contains(&who), "{reason}, wanted {who}");
                }
                assert_eq!(node.state().term(), term, "a term began");
                assert!(!node.is_readable(), "a read would not see what is lost");
            }
            stop_all(&mut world);
        }
        // Its disk comes back from a copy.
        world.rot_record(seed as usize % 3, at);
        start_all(&mut world);
        rest(&mut world, &format!("seed {seed}, record {number}"));
        world.finish().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// docs/faults.md: E4, R13
#[test]
fn a_group_of_one_does_not_open_and_names_the_place() {
    let mut world = world(2, 1, 2_500);
    let at = stop_with_log(&mut world, 0, true)[1];
    world.rot_record(0, at);
    world.start(0);
    let error = world.advance(1_000).unwrap_err();
    let wanted = format!("the record at {} was durable", place(&world, at));
    assert!(error.contains(&wanted), "{error}, wanted {wanted}");
}

/// Only the segment's copy is damaged: nothing is lost, not even in a group of one, and it is
/// written again.
/// docs/faults.md: E4, R13
#[test]
fn a_record_that_the_ring_still_has_is_written_to_its_segment_again() {
    for replicas in [1, 3] {
        let mut world = world(0, replicas, 2_500);
        let at = stop_with_log(&mut world, 0, true)[1];
        let term = world.log_of(0).term;
        world.rot_segment(0, at);
        world.start(0);
        rest(&mut world, "after the start");
        let said = world.notices(0).join("\n");
        assert!(said.contains(&format!("not whole from {at} on")), "{said}");
        assert!(said.contains("it is durable again up to"), "{said}");
        assert_eq!(world.node(0).unwrap().state().term(), term.next());
        // Now the ring may go.
        world.stop(0, true);
        world.start(0);
        rest(&mut world, "after the power cut");
        assert_eq!(world.notices(0).join("\n"), said, "nothing was found any more");
        world.finish().unwrap();
    }
}
