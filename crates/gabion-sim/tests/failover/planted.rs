//! Planted defects of controllers, of leases and of full copies: the checkers must be able to fail.
//! Each defect runs seeds until something reports it, and the same seed without it passes
//! (docs/faults.md, "Seeded mutants").

use crate::options::options;
use gabion_control::Mutant as Control;
use gabion_node::Mutant;
use gabion_sim::{ControlFaults, Faults, Options, World};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds within which a defect must show.
const SEEDS_MAX: u64 = 100;

/// A defect, of a controller or of a replica.
#[derive(Clone, Copy, Debug)]
enum Planted {
    Control(Control),
    Node(Mutant),
}

/// Faults among which a defect shows often.
type Change = fn(&mut Options, &mut ControlFaults);

fn run(seed: u64, change: Change, planted: Option<Planted>) -> Option<String> {
    let mut options = options(seed);
    let mut control = options.control.clone().expect("the options have controllers");
    change(&mut options, &mut control.faults);
    options.control = Some(control);
    match planted {
        Some(Planted::Control(mutant)) => options.planted_control = Some(mutant),
        Some(Planted::Node(mutant)) => options.planted = Some(mutant),
        None => {}
    }
    let run = AssertUnwindSafe(|| World::run(seed, options));
    match catch_unwind(run) {
        Ok(outcome) => outcome.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Some(format!("panic: {}", text.unwrap_or_default()))
        }
    }
}

/// Runs seeds until the defect shows in one of the ways that fit it.
fn is_caught(planted: Planted, change: Change, ways: &[&str]) {
    for seed in 1..=SEEDS_MAX {
        let Some(message) = run(seed, change, Some(planted)) else { continue };
        let first = message.lines().next().unwrap_or_default();
        eprintln!("{planted:?}: seed {seed} of at most {SEEDS_MAX}: {first}");
        assert!(
            ways.iter().any(|way| message.contains(way)),
            "{planted:?} was caught by something else: {message}"
        );
        assert_eq!(run(seed, change, None), None, "seed {seed} fails without the defect");
        return;
    }
    panic!("{planted:?} was not caught in {SEEDS_MAX} seeds");
}

/// docs/faults.md: R8
#[test]
fn a_view_that_is_told_before_it_is_stored_is_caught() {
    let planted = Planted::Control(Control::ToldBeforeStored);
    is_caught(planted, |_, _| {}, &["which nobody stored"]);
}

/// docs/faults.md: R8
#[test]
fn a_view_that_is_complete_before_all_have_founded_it_is_caught() {
    let planted = Planted::Control(Control::CompleteWithFirst);
    is_caught(planted, |_, _| {}, &["has founded it"]);
}

/// docs/faults.md: R8
#[test]
fn a_paused_controller_that_judges_at_once_is_caught() {
    let planted = Planted::Control(Control::PauseIsSilence);
    let change: Change = |options, faults| {
        options.faults = Faults::default();
        *faults = ControlFaults { pause: 400, ..ControlFaults::default() };
    };
    is_caught(planted, change, &["left out for nothing"]);
}

/// docs/faults.md: R8
#[test]
fn a_store_that_was_set_back_and_is_believed_is_caught() {
    let planted = Planted::Control(Control::OldStoreBelieved);
    let change: Change = |options, faults| {
        (faults.set_back, faults.away, faults.wipe, faults.older) = (200, 800, 0, 0);
        (options.faults.power, options.faults.power_some) = (0, 0);
    };
    is_caught(planted, change, &["is not whole", "acknowledge writes in", "no linearizable"]);
}

/// docs/faults.md: R11
#[test]
fn a_member_whose_disk_is_another_one_and_that_stays_is_caught() {
    let planted = Planted::Control(Control::OtherDiskStays);
    let change: Change = |_, faults| (faults.set_back, faults.wipe) = (0, 400);
    is_caught(planted, change, &["is not whole", "no linearizable order"]);
}

/// docs/faults.md: H5, A13
#[test]
fn a_target_that_is_answered_for_before_it_is_drained_is_caught_amid_changes_of_members() {
    let planted = Planted::Node(Mutant::DrainNotWaitedFor);
    let change: Change = |options, faults| {
        (options.faults.hold, options.faults.link) = (60, 300);
        (faults.freeze, faults.set_back) = (800, 0);
    };
    is_caught(planted, change, &["landed in"]);
}

/// A controller does not hear members that are well, and they hear of the next view late: promises
/// count then.
fn hasty(options: &mut Options, faults: &mut ControlFaults) {
    options.faults = Faults::default();
    *faults = ControlFaults { deaf: 150, ..ControlFaults::default() };
}

/// Heads sleep, and have records in memory by then that nobody else has.
fn sleepy(options: &mut Options, faults: &mut ControlFaults) {
    options.faults = Faults::default();
    *faults = ControlFaults { freeze: 500, deaf: 500, ..ControlFaults::default() };
}

/// Ways in which a read shows that came from the past.
const STALE: [&str; 2] = ["a newer one had acknowledged writes before", "no linearizable order"];

/// docs/faults.md: R5
#[test]
fn a_view_that_takes_effect_under_a_promise_is_caught() {
    is_caught(Planted::Node(Mutant::LeaseNotWaitedFor), hasty, &STALE);
}

/// docs/faults.md: R5
#[test]
fn a_promise_that_is_given_after_a_newer_view_was_taken_is_caught() {
    is_caught(Planted::Node(Mutant::PromiseAfterView), hasty, &STALE);
}

/// docs/faults.md: R5
#[test]
fn reads_without_a_promise_are_caught() {
    is_caught(Planted::Node(Mutant::ReadsWithoutPromise), hasty, &STALE);
}

/// docs/faults.md: R1
#[test]
fn phantoms_that_a_former_head_keeps_in_its_memtables_are_caught() {
    let ways = ["no linearizable order", "has other records", "a gap or a repetition"];
    is_caught(Planted::Node(Mutant::PhantomsKept), sleepy, &ways);
}

/// docs/faults.md: R8
#[test]
fn a_view_that_takes_effect_before_it_is_durable_is_caught() {
    is_caught(Planted::Node(Mutant::ViewNotDurable), |_, _| {}, &["and did in"]);
}

/// docs/faults.md: R12
#[test]
fn edits_of_a_copy_that_are_applied_again_with_the_log_are_caught() {
    let change: Change = |_, faults| (faults.set_back, faults.wipe) = (0, 400);
    is_caught(Planted::Node(Mutant::CopiedEditsAgain), change, &["must not", "is not whole"]);
}

/// docs/faults.md: R8
#[test]
fn a_newcomer_that_counts_before_it_is_filled_is_caught() {
    let planted = Planted::Control(Control::NewcomerIsFull);
    is_caught(planted, |_, _| {}, &["no linearizable order", "ended itself", "is not whole"]);
}

/// The defect also makes members full that are kept: views that no controller could read once they
/// were stored. This seed ended in a panic of whoever read one.
#[test]
fn a_view_that_no_controller_could_read_is_not_stored() {
    let planted = Planted::Control(Control::NewcomerIsFull);
    let message = run(411, |_, _| {}, Some(planted));
    assert!(message.is_none_or(|message| message.contains("is not whole")));
    assert_eq!(run(411, |_, _| {}, None), None);
}

/// docs/faults.md: A1, R2
#[test]
fn an_acknowledgement_that_not_every_full_member_has_is_caught_amid_changes_of_members() {
    let planted = Planted::Node(Mutant::AckWithoutMembers);
    is_caught(planted, |_, _| {}, &["no linearizable order"]);
}
