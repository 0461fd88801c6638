//! A pool that is nearly full of large values, of which a part is garbage, goes on taking
//! overwrites; and deletes give back what they delete.

use crate::replica::Replica;
use gabion_base::units::MIB;
use gabion_engine::{Keyspace, TreeConfig, ValuesStats};
use gabion_node::WriteGate;

const POOL_LEN: u64 = 256 * MIB;
const VALUE_LEN: u64 = 6_000;

fn start() -> Replica {
    let tree = TreeConfig {
        memtable_len: 2 * MIB,
        sst_len: 2 * MIB,
        level1_len: 4 * MIB,
        large_values: 1024,
        ..TreeConfig::default()
    };
    Replica::start(POOL_LEN, tree, 2 * MIB)
}

fn key(number: u64) -> Vec<u8> {
    // Scattered, so that each values file has keys of everywhere.
    format!("key {:08}", number * 7919 % 100_003).into_bytes()
}

fn value(number: u64, round: u64) -> Vec<u8> {
    format!("{number} in {round} ").into_bytes().repeat(VALUE_LEN as usize / 4)
        [..VALUE_LEN as usize]
        .to_vec()
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
    panic!("writes wait for ever: {:?}", replica.node.write_gate());
}

fn put(replica: &mut Replica, number: u64, round: u64) -> WriteGate {
    replica.pass(0);
    let met = match replica.node.write_gate() {
        WriteGate::Open => WriteGate::Open,
        _ => gate(replica),
    };
    if met == WriteGate::Open {
        replica.node.put(Keyspace::User, &key(number), &value(number, round)).unwrap();
        replica.node.end_turn().unwrap();
    }
    met
}

fn used(replica: &Replica) -> u64 {
    let counts = replica.node.pool().counts();
    u64::from(counts.total - counts.free)
}

fn stats(replica: &Replica) -> ValuesStats {
    replica.node.tree().version().values_stats()
}

fn delete(replica: &mut Replica, number: u64) {
    replica.pass(0);
    let met = match replica.node.write_gate() {
        WriteGate::Wait(_) => gate(replica),
        met => met,
    };
    let is_taken = matches!(met, WriteGate::Open | WriteGate::Full { takes_deletes: true, .. });
    assert!(is_taken, "{met:?}");
    replica.node.delete(Keyspace::User, &key(number)).unwrap();
    replica.node.end_turn().unwrap();
}

/// Puts keys until the pool is full. Returns how many, and how many slots are used then.
fn fill(replica: &mut Replica) -> (u64, u64) {
    let mut number = 0;
    loop {
        match put(replica, number, 0) {
            WriteGate::Open => number += 1,
            WriteGate::Full { .. } => return (number, used(replica)),
            other => panic!("{other:?}"),
        }
    }
}

/// A third of each values file is garbage, and no file as a whole.
/// docs/faults.md: E10
#[test]
fn a_pool_of_which_two_thirds_live_takes_overwrites_for_ever() {
    let mut replica = start();
    let (end, full) = fill(&mut replica);
    let lives = |number: &u64| number % 20 < 13;
    (0..end).filter(|number| !lives(number)).for_each(|number| delete(&mut replica, number));
    replica.pass(2_000);
    assert_eq!(gate(&mut replica), WriteGate::Open, "deletes gave space back");
    let live: Vec<u64> = (0..end).filter(lives).collect();
    let (mut most, mut random) = (0, 1_u64);
    for n in 0..2 * live.len() as u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let number = live[(random >> 33) as usize % live.len()];
        let met = put(&mut replica, number, n);
        assert_eq!(met, WriteGate::Open, "overwrite {n} of {}, {:?}", live.len(), stats(&replica));
        most = most.max(used(&replica));
    }
    assert!(most * 100 >= full * 95, "{most} of {full} slots were used");
}
