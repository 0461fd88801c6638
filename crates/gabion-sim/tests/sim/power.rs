//! All replicas lose power at once, at any step (docs/faults.md R10). With the level `durable`
//! nothing acknowledged is lost. With `replicated` the group goes on with the result of a whole
//! number of records, the same at every replica. While one replica keeps its ring, nothing is lost,
//! even if others are out.

use super::times;
use gabion_node::AckLevel;
use gabion_sim::{Faults, Options, World};

/// Steps between two power cuts; `GABION_CRASH_FULL=1` takes more.
fn stride() -> usize {
    if std::env::var_os("GABION_CRASH_FULL").is_some() { 7 } else { 97 }
}

fn run(seed: u64, ack: AckLevel, step: u64) {
    let options = Options {
        steps: step + 400,
        ack,
        faults: Faults::default(),
        counters: ack == AckLevel::Durable,
        // A load that a cut of the log leaves behind is no write of a client's record.
        loads: 0,
        power_all_at: Some(step),
        replicas: 3,
        ..Options::of_seed(seed)
    };
    if let Err(error) = World::run(seed, options) {
        panic!("power cut at step {step}, level {}: {error}", ack.as_str());
    }
}

/// docs/faults.md: R10
#[test]
fn a_power_cut_everywhere_loses_nothing_acknowledged_as_durable() {
    for step in (40..1_600).step_by(stride()) {
        run(step, AckLevel::Durable, step);
    }
}

/// docs/faults.md: R10
#[test]
fn a_power_cut_everywhere_leaves_a_prefix_of_what_was_acknowledged_as_replicated() {
    for step in (40..1_600).step_by(stride()) {
        run(step, AckLevel::Replicated, step);
    }
}

/// Some lose power; one whose process is killed or goes on keeps its ring.
fn survive_by(seed: u64, survivor: usize, is_killed: bool) {
    let options = Options {
        replicas: 3,
        ack: AckLevel::Replicated,
        faults: Faults::default(),
        ..Options::of_seed(seed)
    };
    let mut world = World::new(seed, options);
    let what = format!("seed {seed}, by replica {}, killed {is_killed}", survivor + 1);
    let check =
        |result: Result<(), String>| result.unwrap_or_else(|error| panic!("{what}: {error}"));
    check(world.advance(700 + 97 * seed));
    for others in [[1, 2], [2, 1]] {
        for other in others {
            // One after the other, the second while the first is out.
            world.stop((survivor + other) % 3, true);
            check(world.advance(50));
        }
        if is_killed {
            world.stop(survivor, false);
            check(world.advance(20));
        }
        (0..3).for_each(|index| world.start(index));
        check(world.advance(1_500));
    }
    check(world.finish());
    assert!(world.outcome().crashes >= 4, "{what}");
}

/// docs/faults.md: R12
#[test]
fn one_replica_that_keeps_its_ring_is_enough_whoever_else_loses_power() {
    for seed in 0..times() {
        for survivor in 0..3 {
            survive_by(seed, survivor, false);
            survive_by(seed, survivor, true);
        }
    }
}
