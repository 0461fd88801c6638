//! Tombstones that readers would pass one by one: they are sealed, flushed and merged with what they delete before a
//! MemTable or a level is full, where that is most of what lies there, and nowhere else.

use crate::replica::Replica;
use gabion_base::units::MIB;
use gabion_engine::{FileMeta, Keyspace, TreeConfig};
use gabion_node::WriteGate;

/// As many tombstones in a row as are worth a compaction, with MemTables of 1 MiB.
const WORTH: u64 = 64;

fn start() -> Replica {
    let tree = TreeConfig {
        memtable_len: MIB,
        sst_len: 2 * MIB,
        level1_len: 4 * MIB,
        ..TreeConfig::default()
    };
    Replica::start(512 * MIB, tree, MIB)
}

fn key(number: u64) -> Vec<u8> {
    format!("q:{number:08}").into_bytes()
}

fn put(replica: &mut Replica, number: u64) {
    replica.node.put(Keyspace::User, &key(number), &[7; 50]).unwrap();
    turn(replica);
}

fn delete(replica: &mut Replica, number: u64) {
    replica.node.delete(Keyspace::User, &key(number)).unwrap();
    turn(replica);
}

fn turn(replica: &mut Replica) {
    replica.node.end_turn().unwrap();
    replica.pass(0);
    while replica.node.write_gate() != WriteGate::Open {
        replica.work();
        replica.pass(1);
    }
    replica.work();
}

fn rest(replica: &mut Replica) {
    for _ in 0..40 {
        replica.pass(100);
        replica.work();
    }
}

fn in_files(replica: &Replica, of: impl Fn(&FileMeta) -> u64) -> u64 {
    replica.node.tree().version().files().map(|(_, file)| of(file)).sum()
}

/// Tombstones that there are.
fn tombstones(replica: &Replica) -> u64 {
    replica.node.tree().active_deletes() + in_files(replica, |file| file.deletes)
}

#[test]
fn a_queue_that_is_emptied_but_for_its_end_leaves_nothing_to_pass_when_it_rests() {
    const COUNT: u64 = 30_000;
    let mut replica = start();
    (0..COUNT).for_each(|number| put(&mut replica, number));
    (0..COUNT - 10).for_each(|number| delete(&mut replica, number));
    rest(&mut replica);
    let left = (tombstones(&replica), in_files(&replica, |file| file.entries));
    assert!(left.0 < WORTH && left.1 < 2 * WORTH + 10, "{left:?}");
    let view = replica.node.read_view();
    assert!(replica.has(&view, "q:00029990") && !replica.has(&view, "q:00029989"));
}

#[test]
fn deletes_in_any_order_of_all_that_is_there_leave_nothing_to_pass_when_they_rest() {
    const COUNT: u64 = 20_011;
    let mut replica = start();
    (0..COUNT).for_each(|number| put(&mut replica, number));
    (0..COUNT).for_each(|number| delete(&mut replica, number * 7_919 % COUNT));
    rest(&mut replica);
    let left = (tombstones(&replica), in_files(&replica, |file| file.entries));
    assert!(left.0 < WORTH && left.1 < 4 * WORTH, "{left:?}");
}

/// Pushes at the end and pops at the front, for ever, with so many in the queue.
fn push_and_pop(backlog: u64) {
    const MOVES: u64 = 40_000;
    let mut replica = start();
    (0..backlog).for_each(|number| put(&mut replica, number));
    let before = replica.node.counters();
    let mut most = 0;
    for number in 0..MOVES {
        put(&mut replica, backlog + number);
        delete(&mut replica, number);
        most = most.max(tombstones(&replica));
    }
    // A MemTable of them is sealed, and one may be on its way.
    assert!(most <= 3 * 8 * WORTH, "backlog {backlog}: {most} tombstones to pass");
    let counters = replica.node.counters();
    let (wrote, logged) = (
        counters.job_written_bytes - before.job_written_bytes,
        counters.logged_bytes - before.logged_bytes,
    );
    assert!(wrote <= 6 * logged, "backlog {backlog}: wrote {wrote} for {logged}");
}

#[test]
fn a_short_queue_that_moves_for_ever_has_few_tombstones_at_its_front() {
    push_and_pop(100);
}

#[test]
fn a_long_queue_that_moves_for_ever_has_few_tombstones_at_its_front_and_is_not_written_again_and_again()
 {
    push_and_pop(100_000);
}

/// To merge each MemTable of them would be to write everything anew for each.
#[test]
fn deletes_here_and_there_wait_until_their_memtable_and_their_level_are_full() {
    const COUNT: u64 = 100_003;
    let mut replica = start();
    (0..COUNT).for_each(|number| put(&mut replica, number));
    rest(&mut replica);
    let flushes = replica.node.counters().flushes;
    (0..5_000).for_each(|number| delete(&mut replica, number * 7_919 % COUNT));
    rest(&mut replica);
    assert_eq!(replica.node.counters().flushes, flushes, "5,000 of them fill no MemTable");
    assert_eq!(replica.node.tree().active_deletes(), 5_000);
}
