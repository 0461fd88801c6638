//! All replicas lose power at once, at any step (FAULTS.md R10): with the level `durable` nothing that
//! was acknowledged is lost; with `replicated` the group goes on with what a whole number of records
//! made, the same at every replica.

use gabion_node::AckLevel;
use gabion_sim::{Faults, Options, World};

/// Steps between one power cut that is tried and the next; `GABION_CRASH_FULL=1` takes more.
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

#[test]
fn a_power_cut_everywhere_loses_nothing_acknowledged_as_durable() {
    for step in (40..1_600).step_by(stride()) {
        run(step, AckLevel::Durable, step);
    }
}

#[test]
fn a_power_cut_everywhere_leaves_a_prefix_of_what_was_acknowledged_as_replicated() {
    for step in (40..1_600).step_by(stride()) {
        run(step, AckLevel::Replicated, step);
    }
}
