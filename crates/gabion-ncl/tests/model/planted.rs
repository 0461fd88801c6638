//! Planted defects: each breaks a property within a number of states, and the states without it
//! break none (`explored`).

use crate::explored::SMALL;
use crate::world::{Budget, Defect, Limits};
use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// States within which a defect must show.
const STATES_MAX: usize = 3_000_000;

/// Explores until a property is broken, and says by how many steps.
fn is_caught(defect: Defect, limits: Limits, expected: &[&str]) {
    let limits = Limits { defect: Some(defect), ..limits };
    let always: Vec<&str> = limits
        .properties()
        .iter()
        .filter(|it| it.expectation == Expectation::Always)
        .map(|it| it.name)
        .collect();
    let broken = HasDiscoveries::AnyFailures;
    let builder = limits.checker().finish_when(broken).target_state_count(STATES_MAX);
    let checker = builder.spawn_bfs().join();
    let found = checker.discoveries();
    let broken = found.iter().find(|(name, _)| always.contains(*name));
    let states = checker.unique_state_count();
    let (name, path) = broken.unwrap_or_else(|| panic!("{defect:?}: not in {states} states"));
    let steps = path.clone().into_actions();
    eprintln!("{defect:?}: '{name}' is broken after {} steps, {states} states", steps.len());
    assert!(expected.contains(name), "{defect:?} breaks '{name}': {steps:#?}");
}

const EMPTY: &str = "no empty log is shown";
const SHORTENED: &str = "no log is shortened by recovery";
const CHANGED: &str = "recovery changes nothing";
const FORMER: &str = "no former instance gets a write acknowledged";
const UNFENCED: &str = "keys change before numbers are read";
const RECOVERS: &str = "a new instance can always recover";
const PROCEEDS: &str = "the instance that runs can always go on";

fn lost(records: u8) -> Limits {
    Limits { records, ..SMALL }
}

/// docs/faults.md: A1
#[test]
fn an_acknowledgement_without_a_quorum_breaks_a_property() {
    let budget = Budget { cuts: 2, ..Budget::default() };
    is_caught(Defect::AckWithoutQuorum, Limits { budget, ..SMALL }, &[EMPTY, FORMER, RECOVERS]);
}

/// docs/faults.md: A2
#[test]
fn the_smallest_number_breaks_a_property() {
    is_caught(Defect::SmallestNumber, lost(1), &[EMPTY, SHORTENED, RECOVERS]);
}

/// docs/faults.md: A3
#[test]
fn a_first_number_that_means_no_copy_breaks_a_property() {
    is_caught(Defect::FirstNumberIsNone, lost(1), &[EMPTY, RECOVERS]);
}

/// docs/faults.md: A4
#[test]
fn a_catch_up_in_place_breaks_a_property() {
    is_caught(Defect::CatchUpInPlace, lost(1), &[RECOVERS, EMPTY]);
}

/// docs/faults.md: A5
#[test]
fn numbers_that_begin_again_break_a_property() {
    let limits = Limits { records: 2, ..SMALL };
    is_caught(Defect::NumbersRestart, limits, &[EMPTY, SHORTENED, CHANGED, RECOVERS]);
}

/// docs/faults.md: A6
#[test]
fn a_length_by_content_breaks_a_property() {
    is_caught(Defect::LengthByContent, lost(2), &[SHORTENED, RECOVERS]);
}

/// docs/faults.md: A7
#[test]
fn keys_that_stay_break_a_property() {
    is_caught(Defect::KeysStay, lost(1), &[FORMER, EMPTY, SHORTENED, RECOVERS]);
}

/// docs/faults.md: A9
#[test]
fn a_term_by_the_clock_breaks_a_property() {
    let broken = [EMPTY, SHORTENED, CHANGED, FORMER, RECOVERS];
    let limits = Limits { records: 1, ..SMALL };
    is_caught(Defect::EpochIsClock, limits, &broken);
}

/// docs/faults.md: N3
#[test]
fn a_number_before_its_data_breaks_a_property() {
    let limits = Limits { is_fine: true, ..SMALL };
    is_caught(Defect::NumberBeforeData, limits, &[CHANGED, RECOVERS]);
}

/// docs/faults.md: N4
#[test]
fn a_map_before_the_catch_up_breaks_a_property() {
    let budget = Budget { losses: 1, cuts: 1, ..Budget::default() };
    let limits = Limits { peers: 4, budget, ..SMALL };
    is_caught(Defect::MapBeforeCatchUp, limits, &[EMPTY, SHORTENED, RECOVERS]);
}

/// docs/faults.md: N5
#[test]
fn lagging_peers_that_are_left_behind_break_a_property() {
    let budget = Budget { losses: 1, ..Budget::default() };
    let limits = Limits { budget, ..SMALL };
    is_caught(Defect::LaggingNotCaughtUp, limits, &[EMPTY, SHORTENED, RECOVERS, PROCEEDS]);
}

/// docs/faults.md: N2
#[test]
fn a_refusal_that_counts_breaks_a_property() {
    let budget = Budget { revocations: 1, ..Budget::default() };
    let limits = Limits { budget, ..SMALL };
    is_caught(Defect::ErrorCounts, limits, &[FORMER, EMPTY, SHORTENED, RECOVERS]);
}

/// docs/faults.md: N7
#[test]
fn numbers_that_are_read_before_the_keys_change_break_a_property() {
    is_caught(Defect::ReadBeforeFence, lost(1), &[UNFENCED, FORMER]);
}
