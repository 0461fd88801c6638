//! The model without a defect, explored whole.

use crate::world::{Budget, Limits};
use stateright::{Checker, Expectation, Model};

/// Three peers, a former instance and its successor, one record.
pub(crate) const SMALL: Limits = Limits {
    peers: 3,
    instances: 2,
    records: 1,
    budget: Budget { losses: 0, revocations: 0, cuts: 0, store_errors: 0 },
    is_shared: false,
    is_disaster: false,
    is_fine: false,
    from_nothing: false,
    defect: None,
};

/// Explores all states, and says how many there are.
fn explore(name: &str, limits: Limits, least: usize) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = limits.checker().threads(threads).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    eprintln!("coverage: {name}: {states} states, {depth} steps deep");
    for property in limits.properties() {
        let found = checker.discovery(property.name);
        match property.expectation {
            Expectation::Sometimes => assert!(found.is_some(), "{name}: never: {}", property.name),
            _ => {
                let steps = found.map(stateright::Path::into_actions);
                assert!(steps.is_none(), "{name}: not always: {}: {steps:#?}", property.name);
            }
        }
    }
    assert!(checker.is_done(), "{name}: all states were taken");
    assert!(states >= least, "{name}: {states} states, at least {least} are expected");
}

/// docs/faults.md: N7
#[test]
fn a_former_instance_and_its_successor_lose_nothing_in_any_order_of_their_steps() {
    explore("two instances", SMALL, 50_000);
}

/// docs/faults.md: N1, N2, N4, N8
#[test]
fn an_instance_that_loses_a_peer_goes_on_and_can_be_recovered_in_every_state() {
    let budget = Budget { losses: 1, cuts: 1, ..Budget::default() };
    explore("a loss", Limits { instances: 1, budget, ..SMALL }, 500);
}

/// The configuration of the soak: with two records.
///
/// docs/faults.md: N7
#[test]
#[ignore = "takes minutes: cargo xtask soak"]
fn two_records_of_two_instances_are_lost_in_no_state() {
    explore("two records", Limits { records: 2, ..SMALL }, 2_000_000);
}
