//! A pool that is full refuses puts and nothing else: deletes are taken, and give back what they
//! delete (docs/faults.md E10).

use crate::replica::Replica;
use gabion_base::units::{KIB, MIB};
use gabion_engine::{Keyspace, TreeConfig};
use gabion_node::WriteGate;

const POOL_LEN: u64 = 112 * MIB;
const VALUE: [u8; 16 * KIB as usize] = [7; 16 * KIB as usize];

fn start() -> Replica {
    let tree = TreeConfig {
        memtable_len: MIB,
        sst_len: 2 * MIB,
        level1_len: 4 * MIB,
        level_multiplier: 4,
        ..TreeConfig::default()
    };
    Replica::start(POOL_LEN, tree, MIB)
}

fn key(number: u64) -> Vec<u8> {
    // Scattered, so that files overlap.
    format!("key {:08}", number * 7919 % 100_003).into_bytes()
}

/// Waits until writes do not wait any more.
fn gate(replica: &mut Replica) -> WriteGate {
    for _ in 0..10_000 {
        replica.pass(10);
        replica.work();
        if replica.jobs.is_empty() && !matches!(replica.node.write_gate(), WriteGate::Wait(_)) {
            return replica.node.write_gate();
        }
    }
    panic!(
        "writes wait for ever: {:?}, {:?}",
        replica.node.write_gate(),
        replica.node.pool().counts()
    );
}

/// Puts keys from `first` on until the pool is full; returns the first that was not put, and the
/// reason.
fn fill(replica: &mut Replica, first: u64) -> (u64, String) {
    fill_by(replica, first, |replica, number| {
        replica.node.put(Keyspace::User, &key(number), &VALUE).unwrap();
    })
}

/// As [`fill`], with what is put.
fn fill_by(replica: &mut Replica, first: u64, put: impl Fn(&mut Replica, u64)) -> (u64, String) {
    for number in first..1_000_000 {
        match gate_now(replica) {
            WriteGate::Full { reason, .. } => return (number, reason),
            gate => assert_eq!(gate, WriteGate::Open),
        }
        put(replica, number);
        replica.node.end_turn().unwrap();
    }
    panic!("a pool without end");
}

fn gate_now(replica: &mut Replica) -> WriteGate {
    replica.pass(0);
    match replica.node.write_gate() {
        WriteGate::Wait(_) => gate(replica),
        gate => gate,
    }
}

fn delete(replica: &mut Replica, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        let gate = gate_now(replica);
        assert!(
            matches!(gate, WriteGate::Open | WriteGate::Full { takes_deletes: true, .. }),
            "{gate:?}"
        );
        replica.node.delete(Keyspace::User, &key(number)).unwrap();
        replica.node.end_turn().unwrap();
    }
}

fn live_len(replica: &Replica) -> u64 {
    replica.node.tree().level_stats().iter().map(|level| level.bytes).sum()
}

/// docs/faults.md: E10
#[test]
fn deletes_of_a_few_make_a_full_pool_take_puts_again_and_again() {
    let mut replica = start();
    let (mut end, reason) = fill(&mut replica, 0);
    assert!(reason.starts_with("the pool is full: "), "{reason}");
    assert!(live_len(&replica) > POOL_LEN / 4, "{} bytes are live", live_len(&replica));
    assert!(matches!(gate(&mut replica), WriteGate::Full { .. }), "waiting alone makes no room");
    for round in 0..3 {
        let tenth = end / 10;
        delete(&mut replica, round * tenth..(round + 1) * tenth);
        replica.pass(2_000);
        assert_eq!(
            gate(&mut replica),
            WriteGate::Open,
            "{round}, {:?}",
            replica.node.tree().level_stats()
        );
        let before = end;
        end = fill(&mut replica, end).0;
        assert!(end - before > tenth / 3, "room for {} of {tenth} in round {round}", end - before);
    }
}

/// docs/faults.md: E10
#[test]
fn a_full_pool_whose_keys_are_all_deleted_is_empty_soon() {
    let mut replica = start();
    let (end, _) = fill(&mut replica, 0);
    delete(&mut replica, 0..end);
    replica.pass(2_000);
    assert_eq!(gate(&mut replica), WriteGate::Open);
    let again = fill(&mut replica, 0).0;
    assert!(again > end / 4 * 3, "room for {again}, before for {end}");
}

/// docs/faults.md: E10
#[test]
fn a_full_pool_takes_puts_again_once_what_it_holds_has_expired() {
    full_until_it_expires(|_, _| {});
}

/// What has expired stays beneath additions that were made before, until these come down to it.
/// docs/faults.md: E10
#[test]
fn a_full_pool_takes_puts_again_once_what_it_holds_beneath_counters_has_expired() {
    full_until_it_expires(|replica, number| {
        if number.is_multiple_of(8) {
            let counter = [&key(number)[..], b" counted"].concat();
            replica.node.add(Keyspace::User, &counter, 1).unwrap();
        }
    });
}

fn full_until_it_expires(also: impl Fn(&mut Replica, u64)) {
    let mut replica = start();
    let expires_ms = replica.now_ms() + 1_000_000;
    let put = |replica: &mut Replica, number: u64| {
        let expires_ms = expires_ms + number % 1_000;
        replica.node.put_expiring(Keyspace::User, &key(number), &VALUE, expires_ms).unwrap();
        also(replica, number);
    };
    // What is in memory goes into files meanwhile, whose keys have expired by no flush then. That
    // leaves room for a few more, until it is full at rest.
    let is_full = |replica: &mut Replica| {
        replica.pass(2_000);
        matches!(gate(replica), WriteGate::Full { .. })
    };
    let mut end = 0;
    for round in 0.. {
        assert!(round < 5, "there is room after {end}");
        end = fill_by(&mut replica, end, put).0;
        if is_full(&mut replica) {
            break;
        }
    }
    (0..3).for_each(|_| {
        replica.pass(2_000);
        assert!(matches!(gate(&mut replica), WriteGate::Full { .. }), "nothing has expired yet");
    });
    assert!(replica.node.tree().active_is_empty());
    replica.pass(expires_ms + 1_000 - replica.now_ms());
    assert_eq!(gate(&mut replica), WriteGate::Open, "{:?}", replica.node.tree().level_stats());
    let again = fill(&mut replica, end).0 - end;
    assert!(again > end / 4 * 3, "room for {again}, before for {end}");
}

/// Deletes keys that were never written, in their order, at any gate that takes it: so many that
/// their tombstones would fill the pool twice.
fn delete_what_is_not_there(replica: &mut Replica) {
    let pad = "x".repeat(400);
    for number in 0..2 * POOL_LEN / 400 {
        let gate = gate_now(replica);
        let is_taken =
            matches!(gate, WriteGate::Open | WriteGate::Full { takes_deletes: true, .. });
        assert!(is_taken, "at {number}: {gate:?}, {:?}", replica.node.tree().level_stats());
        let key = format!("none {number:010}{pad}");
        replica.node.delete(Keyspace::User, key.as_bytes()).unwrap();
        replica.node.end_turn().unwrap();
    }
    replica.pass(2_000);
    assert_eq!(gate(replica), WriteGate::Open, "{:?}", replica.node.tree().level_stats());
}

#[test]
fn tombstones_of_keys_that_were_never_there_fill_no_pool() {
    let mut replica = start();
    replica.put("a pair");
    replica.node.end_turn().unwrap();
    delete_what_is_not_there(&mut replica);
    let files: u64 = replica.node.tree().level_stats().iter().map(|level| level.files).sum();
    assert!(files <= 2, "{:?}", replica.node.tree().level_stats());
    assert!(fill(&mut replica, 0).0 > 2_000);
}

/// Deletes go on in a pool that is full, and each MemTable of them comes to nothing before the next
/// is full.
#[test]
fn tombstones_of_keys_that_were_never_there_wedge_no_pool_that_is_full() {
    let mut replica = start();
    let (end, _) = fill(&mut replica, 0);
    let pad = "x".repeat(400);
    for number in 0..POOL_LEN / 400 {
        let gate = gate_now(&mut replica);
        let is_taken =
            matches!(gate, WriteGate::Open | WriteGate::Full { takes_deletes: true, .. });
        assert!(is_taken, "at {number}: {gate:?}, {:?}", replica.node.tree().level_stats());
        // Beyond all keys, before them, and among them.
        let key = format!("{} {number:010}{pad}", ["z", "a", "key 00050000"][number as usize % 3]);
        replica.node.delete(Keyspace::User, key.as_bytes()).unwrap();
        replica.node.end_turn().unwrap();
    }
    delete(&mut replica, 0..end);
    replica.pass(2_000);
    assert_eq!(gate(&mut replica), WriteGate::Open);
    assert!(fill(&mut replica, 0).0 > end / 4 * 3);
}

/// A reader keeps all files that compactions replace: what is deleted gives nothing back before it
/// goes.
#[test]
fn deletes_that_give_nothing_back_are_refused_after_a_while_and_clears_are_not() {
    let mut replica = start();
    let (end, _) = fill(&mut replica, 0);
    let reader = replica.node.tree().lasting_view();
    let mut refused = None;
    let pad = [b'x'; 400];
    for number in 0..POOL_LEN / 400 {
        match gate_now(&mut replica) {
            WriteGate::Open | WriteGate::Full { takes_deletes: true, .. } => {
                // Among those that are there.
                let beside = [&key(number % end)[..], &pad, &number.to_be_bytes()].concat();
                replica.node.delete(Keyspace::User, &beside).unwrap();
                replica.node.end_turn().unwrap();
            }
            _ if !replica.node.jobs_pause() => replica.pass(100),
            WriteGate::Full { reason, takes_clears, .. } => {
                refused = Some((reason, takes_clears));
                break;
            }
            gate => panic!("{gate:?}"),
        }
        replica.work();
    }
    let (reason, takes_clears) = refused.expect("there is no room for deletes without end");
    assert!(reason.contains("; deletes are refused, too, "), "{reason}");
    assert!(takes_clears, "{reason}");
    drop(reader);
    replica.pass(2_000);
    gate(&mut replica);
    assert!(!replica.node.jobs_pause());
    delete(&mut replica, 0..end);
    replica.pass(2_000);
    assert_eq!(gate(&mut replica), WriteGate::Open);
}

/// docs/faults.md: E10
#[test]
fn a_full_pool_is_cleared_at_once() {
    let mut replica = start();
    let (end, _) = fill(&mut replica, 0);
    replica.node.clear().unwrap();
    replica.node.end_turn().unwrap();
    assert_eq!(gate(&mut replica), WriteGate::Open);
    let again = fill(&mut replica, 0).0;
    assert!(again > end / 4 * 3, "room for {again}, before for {end}");
}

#[test]
fn overwriting_the_same_keys_never_fills_a_pool() {
    let mut replica = start();
    for number in 0..8_000 {
        assert_eq!(gate_now(&mut replica), WriteGate::Open, "at {number}");
        replica.node.put(Keyspace::User, &key(number % 1_000), &VALUE).unwrap();
        replica.node.end_turn().unwrap();
    }
}
