//! Every I/O call of the workloads made to fail in turn (FAULTS.md E4, E6): a read or a write with an I/O
//! error, a write without room, a flush.
//!
//! Each run has one fault, at one call. The replica either goes on as if nothing had been, or ends with an
//! error that says what failed, and is started again on the same disk and ring. Then everything that was
//! acknowledged must be there, it must still work, and once it says that all is durable a power cut must
//! take nothing. Besides, the power is cut right after the replica has ended: what it had called durable
//! must be there.
//!
//! A flush that fails is the trap: what it should have covered may never reach the disk, though reads see
//! it and the next flush succeeds (Rebello et al., "Can Applications Recover from fsync Failures?", ATC 2020).
//!
//! Short transfers never reach a replica: a medium carries them to their end or fails (`gabion-fabric`,
//! `file/tests.rs`).
//!
//! `cargo test` takes a sample with a stride; `GABION_CRASH_FULL=1` takes every call.

use crate::rig::{Drive, Moment, Replica, Turn, new_disk};
use crate::workloads::{self, Workload};
use crate::{in_parts, is_full, times};
use gabion_media::MemoryRegion;
use gabion_media::simulated::{Fault, OperationClass, SimulatedDisk, SimulatedMemory};
use gabion_pool::Trust;
use gabion_sim::client::TWINS;

/// Calls that fail in a test without `GABION_CRASH_FULL` and `GABION_TIMES`, for each kind of fault.
const CALLS_MAX: u64 = 2;

const FAULTS: [(OperationClass, Fault); 4] = [
    (OperationClass::Read, Fault::Fail),
    (OperationClass::Write, Fault::Fail),
    (OperationClass::Write, Fault::NoSpace),
    (OperationClass::Flush, Fault::Fail),
];

/// What a fault led to.
#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    /// The replica ended itself.
    ended: u64,
    /// It went on.
    went_on: u64,
}

fn calls(disk: &SimulatedDisk, class: OperationClass) -> u64 {
    let stats = disk.stats();
    match class {
        OperationClass::Read => stats.reads,
        OperationClass::Write => stats.writes,
        OperationClass::Flush => stats.flushes,
    }
}

/// Written after the fault, when the replica works again.
fn afterwards() -> Vec<Turn> {
    let write = |n: u64| Turn::Write(vec![(n % 7, Some(n << 8)), (TWINS + n % 3, Some(n << 8))]);
    let mut turns: Vec<Turn> = (100_000..100_060).map(write).collect();
    turns.extend([Turn::Seal, Turn::Compact, Turn::Rest]);
    turns
}

/// One run with one fault.
struct Attempt<'a> {
    workload: &'a Workload,
    class: OperationClass,
    nth: u64,
    fault: Fault,
}

impl Attempt<'_> {
    /// Whether the replica ended itself.
    fn run(&self) -> Result<bool, String> {
        let ended = self.goes_on(&afterwards())?;
        // The log is needed as it was: nothing is flushed from it meanwhile.
        self.goes_on(&[])?;
        for seed in if ended { 0..3 } else { 0..0 } {
            self.loses_power(seed).map_err(|error| format!("power cut {seed}: {error}"))?;
        }
        Ok(ended)
    }

    /// The fault, a restart, more turns, a power cut.
    fn goes_on(&self, turns: &[Turn]) -> Result<bool, String> {
        let disk = new_disk(&self.workload.group);
        let memory = SimulatedMemory::new(self.workload.group.ring_len as usize);
        let ring = || Box::new(memory.clone()) as Box<dyn MemoryRegion>;
        let now = || Moment { effects: 0, ring_writes: 0 };
        let mut drive = Drive::start(&disk, &ring, &now, self.workload.group.ack, Trust::Readable);
        disk.plan(self.class, self.nth, self.fault);
        let ended = self.meet(drive.run(&self.workload.turns))?;
        disk.clear_faults();
        let (least, models) = (drive.replicated.len(), drive.models.clone());
        drop(drive);
        // As the mark beside a pool says whose process met a flush that failed.
        let trust = if ended { Trust::Flushed } else { Trust::Readable };
        let mut after = Drive::start(&disk, &ring, &now, self.workload.group.ack, trust);
        after.run(&[Turn::Rest]).map_err(|error| format!("restart: {error}"))?;
        let found = after.replica.records().map_err(|error| format!("restart: {error}"))?;
        let here = models.iter().rposition(|model| *model == found);
        if here.is_none_or(|here| here < least) {
            return Err(format!(
                "after a restart it holds what it held after {here:?} records, of {} that were begun and \
                 {least} that were acknowledged",
                models.len() - 1
            ));
        }
        after.replica.check_at_rest().map_err(|error| format!("restart: {error}"))?;
        after.models = vec![found];
        after.run(turns).map_err(|error| format!("afterwards: {error}"))?;
        let wanted = after.models.last().cloned().unwrap_or_default();
        after.replica.make_durable().map_err(|error| format!("afterwards: {error}"))?;
        drop(after);
        for seed in [0, self.nth] {
            // What no flush covered is lost, with the ring; the second cut finds what the first one left.
            disk.crash_power(seed);
            memory.crash_power(seed);
            let mut last = Replica::start(disk.clone(), ring(), Trust::Readable);
            last.settle().map_err(|error| format!("power cut at last: {error}"))?;
            if last.records()? != wanted {
                return Err("a power cut took what was durable".into());
            }
            last.check_at_rest()?;
        }
        Ok(ended)
    }

    /// The power is cut when the replica has ended itself.
    fn loses_power(&self, seed: u64) -> Result<(), String> {
        let disk = new_disk(&self.workload.group);
        let memory = SimulatedMemory::new(self.workload.group.ring_len as usize);
        let ring = || Box::new(memory.clone()) as Box<dyn MemoryRegion>;
        let now = || Moment { effects: 0, ring_writes: 0 };
        let mut drive = Drive::start(&disk, &ring, &now, self.workload.group.ack, Trust::Readable);
        disk.plan(self.class, self.nth, self.fault);
        self.meet(drive.run(&self.workload.turns))?;
        disk.clear_faults();
        let (least, models) = (drive.durable.len(), drive.models.clone());
        drop(drive);
        disk.crash_power(seed);
        memory.crash_power(seed);
        let mut after = Replica::start(disk, ring(), Trust::Readable);
        after.settle()?;
        let found = after.records()?;
        if !models[least..].contains(&found) {
            let here = models.iter().position(|model| *model == found);
            return Err(format!("{here:?} records are there, {least} were durable"));
        }
        after.check_at_rest()
    }

    /// A replica may end itself for the fault alone, and says so.
    fn meet(&self, outcome: Result<(), String>) -> Result<bool, String> {
        let expected = match self.fault {
            Fault::NoSpace => "without room",
            _ => "simulated I/O error",
        };
        match outcome {
            Ok(()) => Ok(false),
            Err(error) if error.contains(expected) => Ok(true),
            Err(error) => Err(format!("it ended itself for something else: {error}")),
        }
    }
}

fn every_call_fails(workload: &Workload) {
    let clean = new_disk(&workload.group);
    let before = FAULTS.map(|(class, _)| calls(&clean, class));
    let memory = SimulatedMemory::new(workload.group.ring_len as usize);
    let ring = || Box::new(memory.clone()) as Box<dyn MemoryRegion>;
    let now = || Moment { effects: 0, ring_writes: 0 };
    let mut drive = Drive::start(&clean, &ring, &now, workload.group.ack, Trust::Readable);
    drive.run(&workload.turns).expect("nothing fails");
    drop(drive);
    for ((class, fault), before) in FAULTS.into_iter().zip(before) {
        fail_each(workload, class, fault, calls(&clean, class) - before);
    }
}

/// Makes each of `all` calls of a class fail in turn, or a sample of them.
fn fail_each(workload: &Workload, class: OperationClass, fault: Fault, all: u64) {
    let name = workload.name;
    let stride = if is_full() { 1 } else { all.div_ceil(CALLS_MAX * times()).max(1) };
    // The stride's offset differs by workload, so that samples do not all begin alike.
    let first = 1 + workload.turns.len() as u64 % stride;
    let parts = in_parts(|part, parts| {
        let (mut tally, mut failures) = (Tally::default(), Vec::new());
        for nth in (first..=all).step_by(stride as usize).skip(part).step_by(parts) {
            tally.runs += 1;
            match (Attempt { workload, class, nth, fault }).run() {
                Ok(true) => tally.ended += 1,
                Ok(false) => tally.went_on += 1,
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
        sum.went_on += tally.went_on;
    }
    eprintln!("coverage: failing calls, {name}: {all} calls, {class:?} {fault:?}: {sum:?}");
    assert!(sum.runs > 0, "{name}: no {class:?} was made to fail");
    let failures: Vec<&String> = parts.iter().flat_map(|(_, failures)| failures).collect();
    let first: Vec<_> = failures.iter().take(5).collect();
    assert!(failures.is_empty(), "{} runs are wrong: {first:#?}", failures.len());
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
fn every_call_fails_amid_long_values() {
    every_call_fails(&workloads::long_values());
}

#[test]
fn every_call_fails_amid_seals_and_compactions_on_demand() {
    every_call_fails(&workloads::on_demand());
}
