//! Bulk loads in whole clusters. Their pairs are there at once, everywhere, and survive; they fit
//! one order with the values that they replace and that replace them; replicas hold the same files.

use crate::times;
use gabion_sim::{Faults, Options, World};

fn options(seed: u64, replicas: u32) -> Options {
    Options { replicas, loads: 20, steps: 7_000, ..Options::of_seed(seed * 5 + 1) }
}

/// docs/faults.md: P10
#[test]
fn loads_fit_one_order_with_writes_and_reads_while_all_else_breaks() {
    let (mut loads, mut crashes) = (0, 0);
    for seed in 0..6 * times() {
        let outcome = World::run(seed, options(seed, 1 + seed as u32 % 3)).unwrap();
        (loads, crashes) = (loads + outcome.loads, crashes + outcome.crashes);
    }
    assert!(loads > 20 * times() && crashes > 6 * times(), "{loads} loads, {crashes} crashes");
}

/// In peace every load comes to its end, and secondaries build nothing.
/// docs/faults.md: P10
#[test]
fn loads_come_to_their_end_at_every_member() {
    let options = Options { faults: Faults::default(), ..options(3, 3) };
    let mut world = World::new(5, options);
    world.advance(2_000).unwrap();
    world.finish().unwrap();
    let outcome = world.outcome();
    assert!(outcome.loads > 4, "{} loads", outcome.loads);
    let head = world.node(0).unwrap().counters();
    assert_eq!(head.loads, outcome.loads);
    for index in 1..3 {
        let counters = world.node(index).unwrap().counters();
        assert_eq!((counters.flushes, counters.compactions, counters.loads), (0, 0, 0));
        assert!(counters.received_bytes > head.loaded_bytes);
    }
}
