//! Every I/O call of a member of a group made to fail in turn (docs/faults.md E8 to E10). For head,
//! middle and tail of a chain under load a read or a write meets an I/O error, a write no space, a
//! flush fails. It is a call of the log, of a file that the member builds, of one that is being
//! shipped to it, of a client's read or of a start. The middle one also where every replica
//! compacts for itself. For a replica by itself: `io_failures`.
//!
//! The member goes on, or ends itself with an error that names the failed call, and is started
//! again with the mark of a failed flush, as `gabion up` does. Then one of two ways: the power is
//! cut as soon as it has ended (or a little later, if it goes on), or clients go on and the power
//! is cut when all is at rest. Either way everything acknowledged as durable is there, the same at
//! every replica, and no slot is lost.
//!
//! `cargo test` takes a sample, `GABION_CRASH_FULL=1` all.
//!
//! docs/faults.md: E8, E9, E10

use crate::io_failures::{FAULTS, calls};
use crate::member_crash_points::{SEED, STEPS, STEPS_AFTER, options, world};
use crate::{in_parts, is_full, times};
use gabion_media::simulated::{DiskStats, Fault, OperationClass};
use gabion_node::CompactionMode;
use gabion_sim::{Options, World};

/// Calls of a class that fail in a test without `GABION_CRASH_FULL` and `GABION_TIMES`, for each
/// kind of fault.
const CALLS_MAX: u64 = 2;

/// Steps after a failed call within which a member that goes on has met its consequences.
const STEPS_OF_FAULT: u64 = 40;

/// When the power is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Soon after the call has failed.
    Then,
    /// When all is at rest.
    AtRest,
}

/// A member, and its failing call.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    index: usize,
    compaction: CompactionMode,
    class: OperationClass,
    fault: Fault,
    nth: u64,
    cut: Cut,
}

impl Attempt {
    /// Returns whether the member ended itself.
    fn run(&self) -> Result<bool, String> {
        let mut world = world(self.compaction);
        world.fail_call(self.index, self.class, self.nth, self.fault);
        let mut left = load(&mut world, self.index, |world| world.is_call_to_fail(self.index))?;
        if world.is_call_to_fail(self.index) {
            return Err("the call that was to fail never came".into());
        }
        let mut patience = STEPS_OF_FAULT;
        while world.deaths() == 0 && patience > 0 {
            world.advance(1)?;
            (left, patience) = (left.saturating_sub(1), patience - 1);
        }
        if self.cut == Cut::Then {
            world.crash(self.index, Some(self.nth), self.nth);
        }
        world.advance(left + STEPS_AFTER)?;
        world.settle()?;
        // Slots that were given up after a failed write are known after a start.
        world.crash(self.index, Some(self.nth), self.nth);
        world.finish()?;
        Ok(world.deaths() > 0)
    }
}

/// Clients act, and half way the member is killed, while `go_on` says so. Returns the remaining
/// steps.
fn load(world: &mut World, index: usize, go_on: impl Fn(&World) -> bool) -> Result<u64, String> {
    for step in 0..STEPS {
        if !go_on(world) {
            return Ok(STEPS - step);
        }
        if step == STEPS / 2 {
            world.crash(index, None, step);
        }
        world.advance(1)?;
    }
    Ok(0)
}

/// Calls of a member in a run without a failure.
fn clean(index: usize, compaction: CompactionMode) -> DiskStats {
    let mut world = world(compaction);
    // Without those of the pool's making.
    let before = world.disk_stats(index);
    load(&mut world, index, |_| true).expect("nothing fails");
    let after = world.disk_stats(index);
    let (reads, writes) = (after.reads - before.reads, after.writes - before.writes);
    DiskStats { reads, writes, flushes: after.flushes - before.flushes, ..DiskStats::default() }
}

fn every_call_fails(index: usize, compaction: CompactionMode) {
    let clean = clean(index, compaction);
    let mut attempts = Vec::new();
    for (class, fault) in FAULTS {
        let all = calls(clean, class);
        assert!(all > 20, "{class:?}: {all}");
        let stride = if is_full() { 1 } else { all / (CALLS_MAX * times()) };
        // Members and faults take other calls.
        let first = (7 * index + attempts.len()) as u64 % stride;
        for nth in (1 + first..=all).step_by(stride as usize) {
            let cuts = if is_full() { &[Cut::Then, Cut::AtRest][..] } else { &[Cut::AtRest] };
            let cuts = if is_full() || nth.is_multiple_of(2) { cuts } else { &[Cut::Then] };
            let attempt = |cut| Attempt { index, compaction, class, fault, nth, cut };
            attempts.extend(cuts.iter().map(|cut| attempt(*cut)));
        }
    }
    let parts = in_parts(|part, parts| {
        let mine = attempts.iter().skip(part).step_by(parts);
        let outcome = |attempt: &Attempt| (*attempt, attempt.run());
        mine.map(outcome).collect::<Vec<_>>()
    });
    let outcomes = parts.concat();
    for (class, fault) in FAULTS {
        let of = |attempt: &Attempt| (attempt.class, attempt.fault) == (class, fault);
        let these = outcomes.iter().filter(|(attempt, _)| of(attempt));
        let ended = these.clone().filter(|(_, outcome)| *outcome == Ok(true)).count();
        eprintln!(
            "coverage: failing calls of replica {} of 3, {}: {} calls, {class:?} {fault:?}: {} runs, {ended} ended",
            index + 1,
            compaction.as_str(),
            calls(clean, class),
            these.count()
        );
    }
    let failed = |(attempt, outcome): &(Attempt, Result<bool, String>)| {
        outcome.as_ref().err().map(|error| format!("{attempt:?}: {error}"))
    };
    let failures: Vec<_> = outcomes.iter().filter_map(failed).collect();
    let few: Vec<_> = failures.iter().take(3).collect();
    assert!(
        failures.is_empty(),
        "{} of {} runs are wrong: {few:#?}",
        failures.len(),
        outcomes.len()
    );
}

#[test]
fn every_call_of_the_head_fails() {
    every_call_fails(0, CompactionMode::Primary);
}

#[test]
fn every_call_of_the_middle_fails() {
    every_call_fails(1, CompactionMode::Primary);
}

#[test]
fn every_call_of_the_tail_fails() {
    every_call_fails(2, CompactionMode::Primary);
}

#[test]
fn every_call_fails_of_a_member_where_every_replica_compacts() {
    every_call_fails(1, CompactionMode::EveryReplica);
}

/// A disk that always refuses writes into some slots (docs/faults.md E9): they are given up, and
/// their files lie elsewhere.
fn slots_that_refuse_writes_are_given_up(index: usize, compaction: CompactionMode) {
    let what = format!("replica {} of 3, {}", index + 1, compaction.as_str());
    // A load fails when a slot does, as only its caller can make its files anew, and the replica
    // ends.
    let mut world = World::new(SEED, Options { loads: 0, ..options(compaction) });
    let advance = |world: &mut World, steps| {
        world.advance(steps).unwrap_or_else(|error| panic!("{what}: {error}"));
    };
    advance(&mut world, STEPS / 3);
    world.refuse_writes(index, 2);
    advance(&mut world, STEPS);
    assert_eq!(world.deaths(), 0, "{what}");
    let refused = world.node(index).expect("it is up").counters().refused_slots;
    assert!(refused > 0, "{what}: nothing was written there");
    eprintln!("coverage: slots that refuse writes, {what}: {refused} given up");
    world.finish().unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// docs/faults.md: E9
#[test]
fn slots_that_refuse_writes_of_jobs_are_given_up() {
    slots_that_refuse_writes_are_given_up(0, CompactionMode::Primary);
    slots_that_refuse_writes_are_given_up(1, CompactionMode::EveryReplica);
}

/// docs/faults.md: E9
#[test]
fn slots_that_refuse_what_is_shipped_are_given_up() {
    slots_that_refuse_writes_are_given_up(1, CompactionMode::Primary);
    slots_that_refuse_writes_are_given_up(2, CompactionMode::Primary);
}

#[test]
fn a_fault_that_does_not_come_is_no_proof() {
    let (class, fault) = (OperationClass::Flush, Fault::Fail);
    let (index, compaction) = (1, CompactionMode::Primary);
    let attempt = Attempt { index, compaction, class, fault, nth: 1_000_000, cut: Cut::Then };
    assert_eq!(attempt.run().err().as_deref(), Some("the call that was to fail never came"));
}
