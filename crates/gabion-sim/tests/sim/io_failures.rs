//! Every I/O call of eighteen workloads made to fail in turn (docs/faults.md E8 to E11): a read or
//! a write with an I/O error, a write without space, a flush.
//!
//! Each run has one fault, at one call, and checks that it came. The replica either goes on as if
//! nothing had happened, or ends with an error that names the failed call, and is started again on
//! the same disk and ring. Then everything acknowledged must be there, the replica must still work,
//! and once it calls everything durable a power cut must take nothing. In another run the power is
//! cut right after the replica has ended: everything that it had called durable must be there.
//!
//! Calls of a start on a pool with content (reads of the placement log and of segments, rewrites,
//! flushes) are among them, as some workloads restart on the way. Each of these runs once more as
//! if an earlier process had met a failed flush, so that its starts trust nothing that was not
//! flushed. A replica that cannot start names the failed call, and the next one finds everything.
//!
//! A failed flush is the trap: the bytes that it should have covered may never reach the disk,
//! though reads see them and the next flush succeeds (Rebello et al., "Can Applications Recover
//! from fsync Failures?", ATC 2020). A mark tells the next process, as it does for `gabion`. It
//! lasts until the process has rewritten all that counts.
//!
//! Short transfers never reach a replica: a medium completes them or fails (`gabion-fabric`,
//! `file/tests.rs`, where each call of a batch is cut short in turn). The replica's view of an
//! incomplete one is here: a failed write leaves any of its sectors, one without space some
//! beginning of itself.
//!
//! `cargo test` takes a sample: some calls with a stride, and some of those of starts.
//! `GABION_CRASH_FULL=1` takes every call.
//!
//! docs/faults.md: E8, E9, E10

use crate::rig::{Bounds, Drive, Moment, NOT_OPENED, Records, Replica, Turn, new_disk, trust_of};
use crate::workloads::{self, Workload};
use crate::{in_parts, is_full, times};
use gabion_media::MemoryRegion;
use gabion_media::simulated::{DiskStats, Fault, OperationClass, SimulatedDisk};
use gabion_node::GroupConfig;
use gabion_sim::SimulatedMemory;
use gabion_sim::client::TWINS;

/// Calls that fail in a test without `GABION_CRASH_FULL` and `GABION_TIMES`, for each kind of
/// fault; and as many again among the calls of starts.
const CALLS_MAX: u64 = 1;

pub(crate) const FAULTS: [(OperationClass, Fault); 4] = [
    (OperationClass::Read, Fault::Fail),
    (OperationClass::Write, Fault::Fail),
    (OperationClass::Write, Fault::NoSpace),
    (OperationClass::Flush, Fault::Fail),
];

/// The outcomes of a fault.
#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    /// The replica ended itself.
    ended: u64,
    /// It could not be opened.
    not_opened: u64,
    /// It went on.
    went_on: u64,
}

/// The outcome of the replica whose call failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Ended,
    NotOpened,
    WentOn,
}

pub(crate) fn calls(stats: DiskStats, class: OperationClass) -> u64 {
    match class {
        OperationClass::Read => stats.reads,
        OperationClass::Write => stats.writes,
        OperationClass::Flush => stats.flushes,
    }
}

/// Checks that an error names the failed call, and its object.
pub(crate) fn check_names(error: &str, class: OperationClass, fault: Fault) -> Result<(), String> {
    let call = match class {
        OperationClass::Read => "read of ",
        OperationClass::Write => "write of ",
        OperationClass::Flush => "flush: ",
    };
    let cause = match fault {
        Fault::NoSpace => "without room",
        _ => "simulated I/O error",
    };
    if !error.contains(cause) {
        return Err(format!("it ended for something else: {error}"));
    }
    if !error.contains(call) {
        return Err(format!("it does not say that a {call}failed: {error}"));
    }
    Ok(())
}

/// Writes after the fault, when the replica works again.
pub(crate) fn afterwards() -> Vec<Turn> {
    let write = |n: u64| Turn::Write(vec![(n % 7, Some(n << 8)), (TWINS + n % 3, Some(n << 8))]);
    let mut turns: Vec<Turn> = (100_000..100_060).map(write).collect();
    turns.extend([Turn::Seal, Turn::Compact, Turn::Rest]);
    turns
}

/// A machine for a replica that will be broken.
pub(crate) struct Machine {
    pub(crate) disk: SimulatedDisk,
    memory: SimulatedMemory,
}

impl Machine {
    pub(crate) fn new(workload: &Workload) -> Self {
        Self::with(new_disk(&workload.group), &workload.group)
    }

    /// A machine with such a disk, and memory for the ring of such a group.
    pub(crate) fn with(disk: SimulatedDisk, group: &GroupConfig) -> Self {
        Self { disk, memory: SimulatedMemory::new(group.ring_len as usize) }
    }

    pub(crate) fn ring(&self) -> Box<dyn MemoryRegion> {
        Box::new(self.memory.clone())
    }

    pub(crate) fn start(&self) -> Replica {
        Replica::start(self.disk.clone(), self.ring(), trust_of(&self.disk))
    }

    pub(crate) fn lose_power(&self, seed: u64) {
        self.disk.crash_power(seed);
        self.memory.crash_power(seed);
    }
}

/// No moment is needed.
pub(crate) fn now() -> Moment {
    Moment { effects: 0, ring_writes: 0 }
}

/// One run with one fault.
struct Attempt<'a> {
    workload: &'a Workload,
    /// Whether each restart finds the mark of a failed flush.
    marked: bool,
    class: OperationClass,
    nth: u64,
    fault: Fault,
}

impl Attempt<'_> {
    fn run(&self) -> Result<End, String> {
        let end = self.goes_on(&afterwards())?;
        // The log is needed as it was: nothing is flushed from it meanwhile.
        self.goes_on(&[])?;
        for seed in if end == End::WentOn { 0..0 } else { 0..3 } {
            self.loses_power(seed).map_err(|error| format!("power cut {seed}: {error}"))?;
        }
        Ok(end)
    }

    /// Carries the workload out with its fault. Returns the replica's outcome, the bounds for a
    /// kill and for a power cut, and the states after each record.
    fn meets_its_fault(
        &self,
        machine: &Machine,
    ) -> Result<(End, [Bounds; 2], Vec<Records>), String> {
        let (disk, ring) = (&machine.disk, || machine.ring());
        let ack = self.workload.group.ack;
        let mut drive = Drive::start(disk, &ring, &now, ack, trust_of(disk));
        drive.marks_restarts = self.marked;
        disk.plan(self.class, self.nth, self.fault);
        let end = self.end_of(drive.run(&self.workload.turns))?;
        if disk.faults_to_come() > 0 {
            return Err("the call that was to fail never came".into());
        }
        Ok((end, [true, false].map(|kill| drive.bounds(kill)), drive.models))
    }

    /// The fault, a restart, more turns, a power cut.
    fn goes_on(&self, turns: &[Turn]) -> Result<End, String> {
        let machine = Machine::new(self.workload);
        let (end, [bounds, _], models) = self.meets_its_fault(&machine)?;
        let (disk, ring) = (&machine.disk, || machine.ring());
        let ack = self.workload.group.ack;
        let mut after = Drive::start(disk, &ring, &now, ack, trust_of(disk));
        after.run(&[Turn::Rest]).map_err(|error| format!("restart: {error}"))?;
        let found = after.replica.records().map_err(|error| format!("restart: {error}"))?;
        is_allowed(&models, &found, bounds).map_err(|error| format!("restart: {error}"))?;
        after.replica.check_at_rest().map_err(|error| format!("restart: {error}"))?;
        after.models = vec![found];
        after.run(turns).map_err(|error| format!("afterwards: {error}"))?;
        let wanted = after.models.last().cloned().unwrap_or_default();
        after.replica.make_durable().map_err(|error| format!("afterwards: {error}"))?;
        drop(after);
        for seed in [0, self.nth] {
            // Unflushed data is lost, with the ring; the second cut meets the result of the first.
            machine.lose_power(seed);
            let mut last = machine.start();
            last.settle().map_err(|error| format!("power cut at last: {error}"))?;
            if last.records()? != wanted {
                return Err("a power cut took what was durable".into());
            }
            last.check_at_rest()?;
        }
        Ok(end)
    }

    /// The power is cut when the replica has ended itself.
    fn loses_power(&self, seed: u64) -> Result<(), String> {
        let machine = Machine::new(self.workload);
        let (_, [_, bounds], models) = self.meets_its_fault(&machine)?;
        machine.lose_power(seed);
        let mut after = machine.start();
        after.settle()?;
        is_allowed(&models, &after.records()?, bounds)?;
        after.check_at_rest()
    }

    /// A replica may end itself for the fault alone, and must name the call.
    fn end_of(&self, outcome: Result<(), String>) -> Result<End, String> {
        let Err(error) = outcome else { return Ok(End::WentOn) };
        check_names(&error, self.class, self.fault)?;
        Ok(if error.starts_with(NOT_OPENED) { End::NotOpened } else { End::Ended })
    }
}

/// Whether the found records are a possible state.
fn is_allowed(models: &[Records], found: &Records, bounds: Bounds) -> Result<(), String> {
    if bounds.is_cleared(found)? {
        return Ok(());
    }
    let found = bounds.check_unlogged(found)?;
    if models[bounds.least..=bounds.most].contains(&found) {
        return Ok(());
    }
    let here = models.iter().rposition(|model| *model == found);
    Err(format!("it holds what it held after {here:?} records, allowed is {bounds:?}"))
}

/// Calls of a workload without a failure.
struct Calls {
    /// The disk's counts at its start and at its end.
    all: [DiskStats; 2],
    /// The same of each restart until the replica was open.
    openings: Vec<[DiskStats; 2]>,
}

impl Calls {
    fn of(workload: &Workload, marked: bool) -> Self {
        let machine = Machine::new(workload);
        let (disk, ring) = (&machine.disk, || machine.ring());
        let before = disk.stats();
        let mut drive = Drive::start(disk, &ring, &now, workload.group.ack, trust_of(disk));
        drive.marks_restarts = marked;
        drive.run(&workload.turns).expect("nothing fails");
        let opening = |(begun, open): &(_, Option<_>)| [*begun, open.expect("nothing fails")];
        Self { all: [before, disk.stats()], openings: drive.openings.iter().map(opening).collect() }
    }

    /// The number of calls of a class, and which of them belong to restarts, counted from 1.
    fn of_class(&self, class: OperationClass) -> (u64, Vec<u64>) {
        let [before, after] = self.all.map(|stats| calls(stats, class));
        let opening = |ends: &[DiskStats; 2]| {
            let [begun, open] = ends.map(|stats| calls(stats, class) - before);
            begun + 1..=open
        };
        (after - before, self.openings.iter().flat_map(opening).collect())
    }
}

fn every_call_fails(workload: &Workload) {
    each_call_fails(workload, false);
}

/// Also as if an earlier process had met a failed flush, before each restart.
fn every_call_fails_also_of_marked_starts(workload: &Workload) {
    each_call_fails(workload, false);
    each_call_fails(workload, true);
}

fn each_call_fails(workload: &Workload, marked: bool) {
    let clean = Calls::of(workload, marked);
    assert!(!marked || !clean.openings.is_empty(), "{} starts once", workload.name);
    for (class, fault) in FAULTS {
        let (all, starts) = clean.of_class(class);
        let attempt = Attempt { workload, marked, class, nth: 0, fault };
        fail_each(&attempt, all, &starts);
    }
}

/// The failing calls out of `all`; `starts` are those of restarts.
fn chosen(workload: &Workload, all: u64, starts: &[u64]) -> Vec<u64> {
    if is_full() {
        return (1..=all).collect();
    }
    let count = CALLS_MAX * times();
    let stride = all.div_ceil(count).max(1);
    // The stride's offset differs by workload, so that samples do not all begin alike.
    let first = 1 + workload.turns.len() as u64 % stride;
    let mut chosen: Vec<u64> = (first..=all).step_by(stride as usize).collect();
    let stride = starts.len().div_ceil(count as usize).max(1);
    let first = workload.turns.len() % stride;
    chosen.extend(starts.iter().skip(first).step_by(stride));
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

/// Makes each of `all` calls of a class fail in turn, or a sample of them.
fn fail_each(like: &Attempt<'_>, all: u64, starts: &[u64]) {
    let Attempt { workload, marked, class, fault, .. } = *like;
    let name = if marked { format!("{}, marked", workload.name) } else { workload.name.into() };
    let chosen = chosen(workload, all, starts);
    let parts = in_parts(|part, parts| {
        let (mut tally, mut failures) = (Tally::default(), Vec::new());
        for nth in chosen.iter().copied().skip(part).step_by(parts) {
            tally.runs += 1;
            match (Attempt { nth, ..*like }).run() {
                Ok(End::Ended) => tally.ended += 1,
                Ok(End::NotOpened) => tally.not_opened += 1,
                Ok(End::WentOn) => tally.went_on += 1,
                Err(error) => {
                    failures.push(format!("{name}, {class:?} {nth} of {all}, {fault:?}: {error}"));
                }
            }
        }
        (tally, failures)
    });
    let mut sum = Tally::default();
    for (tally, _) in &parts {
        sum.runs += tally.runs;
        sum.ended += tally.ended;
        sum.not_opened += tally.not_opened;
        sum.went_on += tally.went_on;
    }
    eprintln!(
        "coverage: failing calls, {name}: {all} calls, {} of them of starts, {class:?} {fault:?}: {sum:?}",
        starts.len()
    );
    assert!(sum.runs > 0, "{name}: no {class:?} was made to fail");
    let failures: Vec<&String> = parts.iter().flat_map(|(_, failures)| failures).collect();
    let first: Vec<_> = failures.iter().take(5).collect();
    assert!(failures.is_empty(), "{} runs are wrong: {first:#?}", failures.len());
    // Only the kill of the process may come before it knows; the mark tells the next one.
    let may_go_on = class != OperationClass::Flush || !starts.is_empty();
    assert!(may_go_on || sum.went_on == 0, "{name}: a flush failed and it went on: {sum:?}");
    if is_full() && !starts.is_empty() {
        assert!(sum.not_opened > 0, "{name}: no start met a {class:?} that failed");
    }
}

#[test]
fn every_call_fails_amid_puts_flushes_and_compactions() {
    every_call_fails(&workloads::puts());
}

#[test]
fn every_call_fails_amid_deletes_and_clears() {
    every_call_fails(&workloads::deletes());
}

#[test]
fn every_call_fails_amid_durable_batches() {
    every_call_fails(&workloads::durable_batches());
}

#[test]
fn every_call_fails_amid_syncs() {
    every_call_fails(&workloads::syncs());
}

#[test]
fn every_call_fails_amid_long_values() {
    every_call_fails(&workloads::long_values());
}

#[test]
fn every_call_fails_amid_seals_and_compactions_on_demand() {
    every_call_fails(&workloads::on_demand());
}

#[test]
fn every_call_fails_of_a_little_of_everything_and_a_restart() {
    every_call_fails_also_of_marked_starts(&workloads::little());
}

#[test]
fn every_call_fails_amid_restarts() {
    every_call_fails_also_of_marked_starts(&workloads::restarts());
}

#[test]
fn every_call_fails_amid_counters_and_restarts() {
    every_call_fails_also_of_marked_starts(&workloads::counters());
}

#[test]
fn every_call_fails_amid_deleted_ranges_and_restarts() {
    every_call_fails_also_of_marked_starts(&workloads::range_deletes());
}

#[test]
fn every_call_fails_amid_loads_and_restarts() {
    every_call_fails_also_of_marked_starts(&workloads::loads());
}

#[test]
fn every_call_fails_amid_writes_past_the_log() {
    every_call_fails(&workloads::past_the_log());
}

#[test]
fn every_call_fails_amid_pauses() {
    every_call_fails(&workloads::pauses());
}

#[test]
fn every_call_fails_amid_files_that_are_moved() {
    every_call_fails(&workloads::ascending());
}

#[test]
fn every_call_fails_amid_descending_keys() {
    every_call_fails(&workloads::descending());
}

#[test]
fn every_call_fails_amid_a_few_hot_keys() {
    every_call_fails(&workloads::hot());
}

#[test]
fn every_call_fails_amid_tombstones_alone() {
    every_call_fails_also_of_marked_starts(&workloads::tombstones());
}

#[test]
fn every_call_fails_amid_a_range_that_is_filled_and_emptied() {
    every_call_fails(&workloads::fill_and_empty());
}

#[test]
fn every_call_fails_amid_clears_between_puts() {
    every_call_fails(&workloads::clears());
}

#[test]
fn a_fault_that_does_not_come_is_no_proof() {
    let (class, fault) = (OperationClass::Flush, Fault::Fail);
    let workload = &workloads::little();
    let error = Attempt { workload, marked: false, class, nth: 10_000, fault }.run().err();
    assert_eq!(error.as_deref(), Some("the call that was to fail never came"));
}
