//! Where the log is when a state is captured, and what ends the waiting for it.

use crate::no_space::start;
use crate::replica::Replica;
use gabion_engine::JobKind;
use gabion_node::Captured;

/// The only state that was captured since the last call.
fn captured(replica: &mut Replica) -> Captured {
    replica.pass(0);
    let (_, captured) = replica.marked.pop().expect("a mark was reached");
    assert!(replica.marked.is_empty(), "one mark was armed");
    captured.unwrap()
}

#[test]
fn a_state_is_captured_where_a_record_ends_and_has_nothing_of_the_next() {
    let mut replica = start();
    replica.put("before");
    replica.node.end_turn().unwrap();
    replica.arm(1).unwrap();
    replica.pass(0);
    assert!(replica.marked.is_empty(), "no record ends there yet");
    replica.put("at");
    replica.node.end_turn().unwrap();
    let end = replica.node.log_end();
    replica.put("behind");
    replica.node.end_turn().unwrap();
    let state = captured(&mut replica);
    assert_eq!(state.log_end, end);
    let has = |key| replica.has(&state.view, key);
    assert_eq!(["before", "at", "behind"].map(has), [true, true, false]);
}

#[test]
fn where_the_log_ends_already_the_state_is_captured_at_once() {
    let mut replica = start();
    replica.put("before");
    // The turn ends first: what is in the tree and in no record has no position.
    let end = replica.node.log_end();
    assert!(replica.arm(0).is_err(), "its record is behind {end}");
    assert!(!end.covers(&replica.node.log_end()));
    replica.arm(0).unwrap();
    let state = captured(&mut replica);
    assert_eq!(state.log_end, replica.node.log_end());
    assert!(replica.has(&state.view, "before"));
}

#[test]
fn a_pad_that_makes_records_durable_is_a_place_like_any_other() {
    let mut replica = start();
    replica.put("before");
    let last = replica.node.end_turn().unwrap();
    replica.arm(1).unwrap();
    let pad = replica.node.make_durable().unwrap();
    assert!(!last.covers(&pad), "the block was not whole");
    replica.put("behind");
    replica.node.end_turn().unwrap();
    let state = captured(&mut replica);
    assert_eq!(state.log_end, pad);
    assert!(replica.has(&state.view, "before") && !replica.has(&state.view, "behind"));
}

#[test]
fn a_state_is_captured_at_a_seal_as_at_any_record() {
    let mut replica = start();
    replica.put("before");
    replica.node.end_turn().unwrap();
    replica.arm(1).unwrap();
    replica.node.seal_memtable().unwrap();
    let end = replica.node.log_end();
    replica.put("behind");
    replica.node.end_turn().unwrap();
    let state = captured(&mut replica);
    assert_eq!(state.log_end, end);
    assert!(replica.has(&state.view, "before") && !replica.has(&state.view, "behind"));
}

#[test]
fn files_are_those_of_the_edits_in_the_log_and_of_none_that_stands_amid_a_turn() {
    let mut replica = start();
    while !replica.kinds().contains(&JobKind::Flush) {
        replica.seal();
    }
    replica.succeed(JobKind::Flush);
    replica.arm(1).unwrap();
    replica.put("in the turn");
    // Its edit goes into the log, and the tree has what is in no record.
    replica.pass(0);
    assert!(replica.marked.is_empty(), "the turn has not ended");
    let end = replica.node.end_turn().unwrap();
    let state = captured(&mut replica);
    assert_eq!((state.log_end, state.edit, state.files.len()), (end, 1, 1));
    assert!(replica.has(&state.view, "in the turn"));
}

#[test]
fn a_mark_that_is_not_reached_ends_and_tells_both_positions() {
    let mut replica = start();
    let end = replica.node.log_end();
    let mark = replica.arm(500).unwrap();
    replica.pass(3_000);
    assert_eq!((replica.marked.len(), replica.node.marks_armed()), (0, 1));
    replica.pass(1);
    let (ended, result) = replica.marked.pop().unwrap();
    assert_eq!((ended, replica.node.marks_armed()), (mark, 0));
    let text = result.err().unwrap().to_string();
    let expected = format!("the log did not reach {}", end.ahead(500));
    assert!(text.contains(&expected) && text.contains(&format!("it ends at {end}")), "{text}");
}

#[test]
fn marks_are_bounded_and_one_that_is_withdrawn_makes_room() {
    let mut replica = start();
    let marks: Vec<_> = (0..16).map(|_| replica.arm(1).unwrap()).collect();
    let error = replica.arm(1).unwrap_err().to_string();
    assert!(error.contains("16 positions of the log are waited for already"), "{error}");
    replica.node.withdraw_mark(marks[7]);
    replica.arm(1).unwrap();
    replica.put("at");
    replica.node.end_turn().unwrap();
    replica.pass(0);
    assert_eq!(replica.marked.len(), 16);
    assert!(replica.marked.iter().all(|(mark, _)| *mark != marks[7]), "nobody waits for it");
}
