//! Operands of the merge operator above, among and below what expires: who meets whom, and when,
//! must not show.

use crate::support::*;
use crate::tree_rules::{Driven, eager};
use gabion_engine::*;

fn add(driven: &mut Driven, name: &str, delta: i64) {
    let operand = Operand::add(delta, driven.replica.tree.now_ms());
    driven.write(|batch| _ = batch.merge(Keyspace::User, name.as_bytes(), operand).unwrap());
}

fn put_expiring(driven: &mut Driven, name: &str, value: &[u8], expires_ms: u64) {
    driven.write(|batch| {
        batch.put_expiring(Keyspace::User, name.as_bytes(), value, expires_ms).unwrap();
    });
}

/// Everything in files goes down as far as it can.
fn compact(driven: &mut Driven) -> Vec<JobKind> {
    driven.replica.tree.compact_range(&[], None);
    driven.settle()
}

fn text(driven: &Driven, name: &str) -> Option<String> {
    let found = driven.get(name).map(|value| String::from_utf8(value).unwrap());
    // Both ways lead to the same.
    let engine_key = key(name.as_bytes());
    let view = driven.replica.tree.view();
    for to in [Move::Seek(&engine_key), Move::SeekForPrev(&engine_key)] {
        let pair = step(&mut view.scan(&driven.replica.tables, &[], None), to);
        let pair = pair.filter(|(key, _)| key[..] == engine_key[..]);
        assert_eq!(pair.map(|(_, value)| value.to_vec()), found.clone().map(String::into_bytes));
    }
    found
}

/// docs/faults.md: P13
#[test]
fn what_was_added_to_a_value_is_gone_with_it_wherever_either_of_them_lies() {
    let mut driven = Driven::new(eager());
    put_expiring(&mut driven, "in memory", b"7", 50);
    put_expiring(&mut driven, "in a file", b"7", 50);
    put_expiring(&mut driven, "later", b"7", 50);
    driven.flush();
    driven.settle();
    driven.replica.tree.pass_time(20);
    add(&mut driven, "in a file", 1);
    driven.seal();
    let flush = driven.replica.tree.next_flush(&context()).unwrap();
    add(&mut driven, "in memory", 1);
    let edit = driven.edit(&flush);
    driven.replica.tree.apply_edit(&edit).unwrap();
    for name in ["in memory", "in a file"] {
        assert_eq!(text(&driven, name).as_deref(), Some("8"));
    }
    driven.replica.tree.pass_time(60);
    add(&mut driven, "later", 1);
    for _ in 0..3 {
        assert_eq!(text(&driven, "in memory"), None, "a compaction must not bring it back");
        assert_eq!(text(&driven, "in a file"), None);
        assert_eq!(text(&driven, "later").as_deref(), Some("1"));
        assert!(!compact(&mut driven).is_empty());
    }
    driven.flush();
    compact(&mut driven);
    assert_eq!(text(&driven, "in memory"), None);
    assert_eq!(text(&driven, "later").as_deref(), Some("1"));
    let entries: u64 = driven.replica.tree.version().files().map(|(_, file)| file.entries).sum();
    assert_eq!(entries, 1, "once they met, nothing is left of what expired");
}

/// docs/faults.md: P13
#[test]
fn operands_stay_apart_over_what_may_expire_between_them_and_become_one_elsewhere() {
    for (expires_ms, operands) in
        [(None, 1), (Some(30), 1), (Some(45), 2), (Some(60), 2), (Some(61), 1)]
    {
        let mut driven = Driven::new(eager());
        driven.put("counter", b"7");
        match expires_ms {
            Some(at) => put_expiring(&mut driven, "other", b"7", at),
            None => driven.put("other", b"7"),
        }
        driven.put("pad", &[1; 3_000]);
        driven.flush();
        driven.replica.tree.pass_time(40);
        add(&mut driven, "counter", 1);
        driven.replica.tree.pass_time(60);
        add(&mut driven, "counter", 10);
        let edit = driven.flush();
        let said = edit.added[0].1.operands;
        assert_eq!(said, Some(Operands { count: operands, first_ms: said.unwrap().first_ms }));
        assert_eq!(text(&driven, "counter").as_deref(), Some("18"), "{expires_ms:?}");
        compact(&mut driven);
        assert_eq!(text(&driven, "counter").as_deref(), Some("18"), "{expires_ms:?}");
        let left =
            driven.replica.tree.version().files().filter(|(_, file)| file.operands.is_some());
        assert_eq!(left.count(), 0, "they met the value");
    }
}

/// docs/faults.md: P13
#[test]
fn a_value_that_expires_between_two_operands_beneath_them_counts_for_the_first_alone() {
    let mut driven = Driven::new(eager());
    put_expiring(&mut driven, "counter", b"7", 50);
    driven.flush();
    driven.settle();
    driven.replica.tree.pass_time(40);
    add(&mut driven, "counter", 1);
    driven.replica.tree.pass_time(60);
    assert_eq!(text(&driven, "counter"), None);
    add(&mut driven, "counter", 10);
    add(&mut driven, "counter", 20);
    assert_eq!(text(&driven, "counter").as_deref(), Some("30"));
    driven.flush();
    assert_eq!(text(&driven, "counter").as_deref(), Some("30"));
    compact(&mut driven);
    assert_eq!(text(&driven, "counter").as_deref(), Some("30"));
}

/// docs/faults.md: P13
#[test]
fn a_file_is_not_written_anew_for_what_has_to_stay_for_older_operands() {
    let urgent = JobContext { urgent: true, ..context() };
    let mut driven = Driven::new(eager());
    put_expiring(&mut driven, "counter", b"7", 50);
    driven.put("pad", &[1; 3_000]);
    driven.flush();
    driven.settle();
    driven.replica.tree.pass_time(20);
    add(&mut driven, "counter", 1);
    driven.replica.tree.pass_time(60);
    // It goes down level by level. To write it anew there would free nothing, again and again.
    for _ in 0..driven.replica.tree.config().levels {
        let Some(job) = driven.replica.tree.next_compaction(&urgent) else { break };
        let edit = driven.edit(&job);
        driven.replica.tree.apply_edit(&edit).unwrap();
    }
    assert!(driven.replica.tree.next_compaction(&urgent).is_none());
    assert_eq!(text(&driven, "counter"), None);
    driven.flush();
    compact(&mut driven);
    assert_eq!(text(&driven, "counter"), None);
    let expiring = driven.replica.tree.version().files().any(|(_, file)| file.expiry.is_some());
    assert!(!expiring, "they met, and went");
}

/// docs/faults.md: P13
#[test]
fn a_counter_from_before_a_start_is_due_at_its_time_after_it_was_added_to_and_compacted() {
    let mut driven = Driven::new(eager());
    put_expiring(&mut driven, "counter", b"7", 500);
    driven.flush();
    let config = driven.replica.tree.config().clone();
    driven.replica.tree = Tree::open(config, GROUP, &driven.replica.tree.snapshot()).unwrap();
    driven.replica.tree.pass_time(20);
    add(&mut driven, "counter", 1);
    driven.flush();
    compact(&mut driven);
    let files: Vec<_> = driven.replica.tree.version().files().collect();
    assert_eq!((files.len(), files[0].1.entries, files[0].1.operands), (1, 1, None));
    assert_eq!(driven.replica.tree.time_due_ms(), Some(500));
    driven.replica.tree.pass_time(500);
    assert_eq!(text(&driven, "counter"), None);
}

/// docs/faults.md: P13
#[test]
fn a_counter_that_is_cleared_begins_anew_in_memory_and_in_files() {
    let mut driven = Driven::new(eager());
    driven.put("counter", b"7");
    driven.flush();
    add(&mut driven, "counter", 1);
    let view = driven.replica.tree.view();
    driven.clear();
    assert_eq!(text(&driven, "counter"), None);
    add(&mut driven, "counter", 2);
    for _ in 0..2 {
        assert_eq!(text(&driven, "counter").as_deref(), Some("2"));
        let before = block_on(view.get(&driven.replica.tables, &key(b"counter"))).unwrap();
        assert_eq!(before.as_deref(), Some(&b"8"[..]), "an earlier view sees what it saw");
        driven.flush();
    }
    drop(view);
    compact(&mut driven);
    assert_eq!(text(&driven, "counter").as_deref(), Some("2"));
}
