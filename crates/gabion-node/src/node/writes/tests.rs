//! The writer alone, in front of a tree.

use super::*;
use crate::NodeOptions;
use crate::node::Node;
use crate::node::testing::{HEAD, one_of_two};
use gabion_base::ErrorKind;
use gabion_base::units::KEY_LEN_MAX;

fn start() -> (Writing, Node) {
    let mut writing = Writing::default();
    writing.begin(10);
    (writing, one_of_two(HEAD, NodeOptions::default()))
}

fn put(writing: &mut Writing, tree: &mut Tree, key: &[u8]) {
    writing.put(tree, Keyspace::User, key, b"value").unwrap();
    writing.invariants(tree);
}

#[test]
fn a_turn_is_one_record_of_what_the_memtable_has_and_what_is_refused_leaves_no_trace() {
    let (mut writing, mut node) = start();
    let tree = &mut node.tree;
    assert!(!writing.is_in_turn(), "nothing was written");
    put(&mut writing, tree, b"one");
    let long = alloc::vec![0; KEY_LEN_MAX + 1];
    let refused = writing.put(tree, Keyspace::User, &long, b"value").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
    writing.delete(tree, Keyspace::User, b"two").unwrap();
    let left = writing.room_left(&node.config);
    assert!(writing.is_full(&node.config, left) && !writing.is_full(&node.config, left / 2));
    let turn = writing.end_turn(tree).unwrap();
    assert_eq!((turn.first, turn.count), (SequenceNumber(1), 2));
    assert!(!writing.is_in_turn());
    writing.begin(10);
    put(&mut writing, tree, b"three");
    let turn = writing.end_turn(tree).unwrap();
    assert_eq!((turn.first, turn.count), (SequenceNumber(3), 1));
}

/// docs/faults.md: E8
#[test]
fn a_writer_whose_record_the_log_does_not_take_refuses_what_comes_for_the_first_reason() {
    let (mut writing, mut node) = start();
    put(&mut writing, &mut node.tree, b"one");
    assert!(writing.refusal().is_none());
    assert!(writing.end_turn(&node.tree).is_ok());
    writing.fail(Error::no_space("the ring is full"));
    writing.fail(Error::unavailable("the replica stops"));
    let reason = writing.refusal().expect("the MemTable has what the log has not");
    assert_eq!(reason.kind(), ErrorKind::NoSpace);
    writing.invariants(&node.tree);
    writing.adopt_term(true);
    assert!(writing.awaits_term_start() && writing.refusal().is_some(), "a term mends nothing");
}

#[test]
#[should_panic(expected = "the record has what the MemTable has")]
fn a_record_that_lacks_what_the_memtable_has_is_never_made() {
    let (mut writing, mut node) = start();
    put(&mut writing, &mut node.tree, b"one");
    let next = node.tree.last_sequence().next();
    node.tree.apply_operation(next, EntryKind::Put, b"\x01two", b"value").unwrap();
    let _ = writing.end_turn(&node.tree);
}

/// Turns that go past the log: their sequence numbers are left out.
fn skip(writing: &mut Writing, tree: &mut Tree, keys: &[&[u8]]) {
    writing.begin(10);
    keys.iter().for_each(|key| put(writing, tree, key));
    writing.skip_batch();
    writing.invariants(tree);
}

/// docs/faults.md: P26
#[test]
fn numbers_past_the_log_are_told_at_once_and_kept_until_the_log_takes_them() {
    let (mut writing, mut node) = start();
    skip(&mut writing, &mut node.tree, &[b"one"]);
    skip(&mut writing, &mut node.tree, &[b"two", b"three"]);
    let told = writing.take_unlogged().expect("three are not in the log");
    assert_eq!(told, Unlogged { first: SequenceNumber(1), count: 3 });
    assert_eq!(writing.take_unlogged(), None, "they are told once");
    writing.keep_unlogged(told);
    assert!(writing.has_unlogged());
    writing.keep_flushed(SequenceNumber(2));
    assert!(writing.has_unlogged(), "the third is in memory alone");
    writing.keep_flushed(SequenceNumber(3));
    assert!(!writing.has_unlogged());
    skip(&mut writing, &mut node.tree, &[b"four"]);
    assert!(writing.has_unlogged());
    assert_eq!(writing.take_unlogged().map(|told| told.count), Some(4));
}

/// docs/faults.md: P26
#[test]
#[should_panic(expected = "one record says all numbers that the log does not have")]
fn a_hole_between_numbers_past_the_log_is_a_defect() {
    let (mut writing, mut node) = start();
    skip(&mut writing, &mut node.tree, &[b"one"]);
    let next = node.tree.last_sequence().next();
    node.tree.skip_sequences(next, 1).unwrap();
    skip(&mut writing, &mut node.tree, &[b"three"]);
}
