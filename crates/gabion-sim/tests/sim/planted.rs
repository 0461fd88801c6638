//! Defects in a replica's start and in its jobs: the crash points must find each, and the same
//! states without it are right (docs/faults.md, "Seeded mutants").

use crate::crash_points::first_failure;
use crate::rig::{PLANTED, Run};
use crate::workloads::{self, Workload};
use gabion_node::Mutant;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Boundaries between two whose states are checked: no multiple of anything in a workload.
const STRIDE: usize = 7;

/// Checks states after crashes of a run without the defect until one is wrong with it, in one of
/// these ways.
fn is_caught(mutant: Mutant, workload: &Workload, ways: &[&str]) {
    let run = Run::record(&workload.group, &workload.turns);
    PLANTED.set(Some(mutant));
    let found = catch_unwind(AssertUnwindSafe(|| first_failure(workload, &run, STRIDE, u64::MAX)));
    PLANTED.set(None);
    let (states, failure) = found.expect("a checker reports it, no assertion");
    let message = failure.unwrap_or_else(|| panic!("{mutant:?} is in none of {states} states"));
    eprintln!("{mutant:?}: state {states}: {message}");
    let fits = ways.iter().any(|way| message.contains(way));
    assert!(fits, "{mutant:?} was caught by something else: {message}");
    let (again, failure) = first_failure(workload, &run, STRIDE, states);
    assert_eq!(failure, None, "one of {again} states is wrong without the defect");
}

/// docs/faults.md: E1
#[test]
fn segments_that_are_kept_below_the_logs_beginning_are_caught() {
    is_caught(
        Mutant::SegmentsKept,
        &workloads::durable_batches(),
        &["lies in slots, the log begins at"],
    );
}

/// docs/faults.md: E1
#[test]
fn half_a_batch_that_is_replayed_is_caught() {
    is_caught(
        Mutant::HalfBatchReplayed,
        &workloads::deletes(),
        &["half of a record", "recovered the state after", "first difference: wanted"],
    );
}

/// docs/faults.md: E1
#[test]
fn tombstones_that_are_dropped_early_are_caught() {
    is_caught(
        Mutant::TombstonesDropped,
        &workloads::fill_and_empty(),
        &["recovered the state after", "going on: first difference"],
    );
}

/// The writer has this defect, not the reader.
/// docs/faults.md: E1
#[test]
fn a_log_that_does_not_begin_behind_what_a_flush_has_taken_off_it_is_caught() {
    let workload = workloads::deletes();
    let mutant = Mutant::LogBeginsBeforeFlush;
    PLANTED.set(Some(mutant));
    let run = catch_unwind(AssertUnwindSafe(|| Run::record(&workload.group, &workload.turns)));
    PLANTED.set(None);
    let run = run.expect("nothing is wrong before a crash");
    let (states, failure) = first_failure(&workload, &run, STRIDE, u64::MAX);
    let message = failure.unwrap_or_else(|| panic!("{mutant:?} is in none of {states} states"));
    eprintln!("{mutant:?}: state {states}: {message}");
    assert!(message.contains("was durable, as all up to"), "{message}");
}
