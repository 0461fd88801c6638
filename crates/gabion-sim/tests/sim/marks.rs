//! States captured at one position of the log at every replica, while clients write and everything
//! else breaks.
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use gabion_base::{ErrorKind, Frontier, LogPosition};
use gabion_node::{Captured, CompactionMode, MarkId};
use gabion_sim::{Faults, Options, World};

/// No faults, and nobody asks but the test.
fn options(compaction: CompactionMode) -> Options {
    let faults = Faults::default();
    Options { replicas: 3, compaction, faults, marks: 0, ..Options::of_seed(2) }
}

/// Arms a mark everywhere, a little ahead of the longest log.
fn arm_everywhere(world: &mut World, ahead: u64) -> Vec<MarkId> {
    let frontier = longest(world).ahead(ahead);
    (0..world.len()).map(|index| world.arm_mark(index, frontier).unwrap()).collect()
}

fn longest(world: &World) -> Frontier {
    let ends = (0..world.len()).map(|index| world.node(index).unwrap().log_end());
    ends.reduce(Frontier::join).unwrap()
}

/// Goes on until a replica has captured its state.
fn captured(world: &mut World, index: usize, mark: MarkId) -> Captured {
    for _ in 0..20_000 {
        if let Some(captured) = world.take_marked(index, mark) {
            return captured.unwrap();
        }
        world.advance(1).unwrap();
    }
    panic!("replica {index} does not come to its mark");
}

/// The checker in every run compares records and files; this test sees that it had enough to
/// compare.
/// docs/faults.md: P7
#[test]
fn at_a_mark_all_replicas_hold_the_same_while_writes_go_on() {
    for compaction in [CompactionMode::Primary, CompactionMode::EveryReplica] {
        let mut world = World::new(2, Options { marks: 1, ..options(compaction) });
        world.advance(6_000).unwrap();
        world.finish().unwrap();
        let outcome = world.outcome();
        assert!(outcome.marks_under_load > 80, "{compaction:?}: {outcome:?}");
        assert_eq!(outcome.marks_apart, 0, "{compaction:?}: of {}", outcome.marks);
        assert!(outcome.edits > 20, "{compaction:?}: {outcome:?}");
    }
}

/// Edits are applied at different times; their places in the log are the same.
/// docs/faults.md: P7
#[test]
fn edits_at_a_mark_are_those_of_the_log_whether_they_are_applied_or_not() {
    let mut world = World::new(2, options(CompactionMode::Primary));
    world.advance(500).unwrap();
    let mut not_applied = 0;
    for _ in 0..150 {
        let marks = arm_everywhere(&mut world, 1);
        let mut states = Vec::new();
        for (index, mark) in marks.into_iter().enumerate() {
            let state = captured(&mut world, index, mark);
            let waiting = world.node(index).unwrap().edits_waiting();
            not_applied += usize::from(waiting > 0);
            states.push((state.log_end, state.log_crc, state.edit, state.files));
        }
        assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
    }
    assert!(not_applied > 10, "edits waited at {not_applied} of 450 captures");
    world.finish().unwrap();
}

/// The head never stands between a pad and the record behind it; others do.
/// docs/faults.md: P7
#[test]
fn the_end_of_a_segment_is_captured_behind_its_pad_everywhere() {
    let mut world = World::new(2, options(CompactionMode::Primary));
    world.advance(500).unwrap();
    let segment_len = world.group().segment_len;
    for _ in 0..4 {
        // Most marks would end before they are reached that far ahead.
        while segment_len - longest(&world).only().get() % segment_len > 20_000 {
            world.advance(1).unwrap();
        }
        let ahead = segment_len - longest(&world).only().get() % segment_len;
        let marks = arm_everywhere(&mut world, ahead);
        let mut places = Vec::new();
        for (index, mark) in marks.into_iter().enumerate() {
            let state = captured(&mut world, index, mark);
            places.push((state.log_end, state.log_crc));
        }
        assert!(places.iter().all(|place| *place == places[0]), "{places:?}");
    }
    world.finish().unwrap();
}

#[test]
fn a_position_that_the_log_has_passed_is_refused() {
    let mut world = World::new(2, options(CompactionMode::Primary));
    world.advance(500).unwrap();
    for index in 0..3 {
        let end = world.node(index).unwrap().log_end();
        let passed = Frontier::of(LogPosition(end.only().get() - 1));
        let error = world.arm_mark(index, passed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let text = error.to_string();
        assert!(text.contains(&format!("log position {passed} is passed")), "{text}");
        assert!(text.contains(&format!("ends at {end}")), "{text}");
    }
    world.finish().unwrap();
}

/// docs/faults.md: P7
#[test]
fn a_new_term_ends_marks_and_voids_what_was_captured() {
    let mut world = World::new(2, options(CompactionMode::Primary));
    world.advance(500).unwrap();
    let marks = arm_everywhere(&mut world, 1);
    let eras: Vec<_> =
        marks.iter().enumerate().map(|(i, mark)| captured(&mut world, i, *mark).era).collect();
    for (index, era) in eras.iter().enumerate() {
        world.node(index).unwrap().check_era(*era).unwrap();
    }
    // Beyond the writes while the head is away.
    let marks = arm_everywhere(&mut world, 1 << 20);
    world.stop(0, false);
    world.start(0);
    let ready = |world: &World| world.node(0).is_some_and(|head| head.protocol().is_ready());
    while !ready(&world) {
        world.advance(1).unwrap();
    }
    for index in 1..3 {
        let node = world.node(index).unwrap();
        let error = node.check_era(eras[index]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("may not be in the log"), "{error}");
        assert_eq!(node.marks_armed(), 0);
        let error = world.take_marked(index, marks[index]).expect("it ended").err().unwrap();
        assert!(error.message().contains("a term began or the log was cut"), "{error}");
    }
    world.finish().unwrap();
}

/// A replica whose log was cut at a rotten record has files of the cut part.
/// docs/faults.md: P7
#[test]
fn no_state_is_captured_while_files_are_ahead_of_a_log_that_is_repaired() {
    for compaction in [CompactionMode::Primary, CompactionMode::EveryReplica] {
        let mut world = World::new(2, options(compaction));
        let mut refused = 0;
        for _ in 0..10 {
            // The log of all keeps what one member cannot flush; those that flush for themselves
            // flush it.
            world.fill_disk(2, 1_000);
            world.advance(300).unwrap();
            (0..3).for_each(|index| world.stop(index, false));
            // A record that the others have not trimmed: else the replica needs a full copy.
            let begins = (0..3).filter_map(|index| world.log_of(index).durable().next());
            let begin = begins.max().unwrap_or_default();
            let first = world.log_of(1).durable().find(|at| *at >= begin);
            first.into_iter().for_each(|first| world.rot_record(1, first));
            world.start(1);
            while world.node(1).is_none() {
                world.advance(1).unwrap();
            }
            let (edit, end) =
                world.node(1).map(|it| (it.tree().last_edit(), it.log_end())).unwrap();
            match world.arm_mark(1, end) {
                Ok(mark) => assert!(captured(&mut world, 1, mark).edit >= edit),
                Err(error) => {
                    assert!(error.message().contains("is being repaired"), "{error}");
                    refused += 1;
                }
            }
            (0..3).for_each(|index| world.start(index));
            world.settle().unwrap();
            let end = world.node(1).unwrap().log_end();
            let mark = world.arm_mark(1, end).unwrap();
            assert_eq!(captured(&mut world, 1, mark).log_end, end, "{compaction:?}");
        }
        assert!(refused > 0, "{compaction:?}: files were never ahead of the log");
        world.finish().unwrap();
    }
}
