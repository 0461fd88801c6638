//! The state behind all handles of one simulated disk.

use super::crash::{SECTOR_LEN, Written, persist, tear};
use super::faults::{Fault, Faults, OperationClass};
use super::pages::Pages;
use super::random::Random;
use super::recording::{Recorded, Recording, settle};
use super::{DiskOptions, DiskStats, aligned_copy, properties};
use crate::medium::{
    Completion, MediumProperties, Operation, OperationKind, Outcome, chains, check_operation,
};
use crate::{AlignedBuf, Bytes};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use gabion_base::Error;

const HELD: u64 = u64::MAX;
/// Ticks within which a write of unknown outcome lands when operations otherwise take none.
const LATE_TICKS: u64 = 8;

struct InFlight {
    /// Nobody when the completion was already reported (unknown outcome).
    medium: Option<u64>,
    tag: u64,
    kind: OperationKind,
    fault: Option<Fault>,
    due: u64,
    /// For a flush: the last write that had ended when it started.
    covers: u64,
    /// What waits for it.
    chain: VecDeque<Operation>,
}

#[derive(Default)]
struct Attached {
    ended: Vec<Completion>,
    in_flight: usize,
    /// None of its flushes counts any more.
    flush_failed: bool,
}

pub(super) struct State {
    pub(super) options: DiskOptions,
    /// What reads see.
    pub(super) visible: Pages,
    /// What a power cut leaves for certain.
    durable: Pages,
    /// Writes that ended and are not durable, in the order of their effect.
    unsynced: Vec<Written>,
    /// Writes of a killed process that land before the next medium is made.
    late: Vec<(u64, Bytes)>,
    last_serial: u64,
    queue: Vec<InFlight>,
    media: BTreeMap<u64, Attached>,
    next_medium: u64,
    now: u64,
    pub(super) slow_factor: u32,
    random: Random,
    pub(super) faults: Faults,
    /// A flush failed since the power was cut, and nobody said since that it does no harm any more.
    pub(super) flush_had_failed: bool,
    pub(super) recording: Option<Recording>,
    pub(super) stats: DiskStats,
    /// As [`super::SimulatedDisk::effects`].
    pub(super) effects: Arc<AtomicU64>,
}

impl State {
    pub(super) fn new(options: DiskOptions, pages: Pages) -> Self {
        Self {
            options,
            visible: pages.clone(),
            durable: pages,
            unsynced: Vec::new(),
            late: Vec::new(),
            last_serial: 0,
            queue: Vec::new(),
            media: BTreeMap::new(),
            next_medium: 0,
            now: 0,
            slow_factor: 1,
            random: Random::new(options.seed),
            faults: Faults::default(),
            flush_had_failed: false,
            recording: None,
            stats: DiskStats::default(),
            effects: Arc::default(),
        }
    }

    pub(super) fn attach(&mut self) -> (u64, MediumProperties) {
        for (offset, data) in core::mem::take(&mut self.late) {
            self.take_effect(offset, data);
        }
        self.next_medium += 1;
        self.media.insert(self.next_medium, Attached::default());
        (self.next_medium, properties(self.options.len))
    }

    pub(super) fn detach(&mut self, medium: u64) {
        self.media.remove(&medium);
    }

    pub(super) fn in_flight(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn in_flight_of(&self, medium: u64) -> usize {
        self.media.get(&medium).map_or(0, |attached| attached.in_flight)
    }

    pub(super) fn collect(&mut self, medium: u64, completed: &mut Vec<Completion>) {
        if let Some(attached) = self.media.get_mut(&medium) {
            assert!(attached.ended.len() <= attached.in_flight, "what ended was submitted");
            attached.in_flight -= attached.ended.len();
            completed.append(&mut attached.ended);
        }
    }

    pub(super) fn submit(&mut self, medium: u64, batch: Vec<Operation>) {
        // The process that submits this was killed: nothing that it does reaches the disk.
        let Some(attached) = self.media.get_mut(&medium) else { return };
        attached.in_flight += batch.len();
        for chain in chains(batch) {
            self.start_chain(medium, chain);
        }
        if self.options.delay_ticks_max == 0 {
            self.run_due();
        }
    }

    fn start_chain(&mut self, medium: u64, mut chain: VecDeque<Operation>) {
        let Some(Operation { tag, kind, .. }) = chain.pop_front() else { return };
        if let Err(error) = check_operation(&kind, &properties(self.options.len)) {
            self.report(Some(medium), tag, kind, Outcome::Failed(error));
            self.fail_chain(medium, chain);
            return;
        }
        let fault = self.faults.strike(OperationClass::of(&kind));
        let due = if fault == Some(Fault::Hold) { HELD } else { self.due() };
        let covers = self.last_serial;
        self.queue.push(InFlight { medium: Some(medium), tag, kind, fault, due, covers, chain });
    }

    fn due(&mut self) -> u64 {
        match self.options.delay_ticks_max {
            0 => self.now,
            max => {
                let ticks = 1 + self.random.below(u64::from(max));
                self.now + ticks * u64::from(self.slow_factor)
            }
        }
    }

    pub(super) fn tick(&mut self) -> usize {
        self.now += 1;
        self.run_due()
    }

    /// Ends what is due: in the order of submission in immediate mode, else in a random one.
    fn run_due(&mut self) -> usize {
        let mut ended = 0;
        loop {
            let due = |i: &usize| self.queue[*i].due <= self.now;
            let due: Vec<usize> = (0..self.queue.len()).filter(due).collect();
            if due.is_empty() {
                return ended;
            }
            let pick = match self.options.delay_ticks_max {
                0 => 0,
                _ => self.random.below(due.len() as u64) as usize,
            };
            let operation = self.queue.remove(due[pick]);
            self.execute(operation);
            ended += 1;
        }
    }

    fn execute(&mut self, mut operation: InFlight) {
        assert!(operation.due <= self.now, "{} ends when it is due", operation.tag);
        let fault = operation.fault;
        let outcome = match &mut operation.kind {
            OperationKind::Read { offset, into } => self.read(*offset, into, fault),
            OperationKind::Write { offset, data } => self.write(*offset, data, fault),
            OperationKind::Flush => self.flush(operation.medium, operation.covers, fault),
        };
        let done = matches!(outcome, Outcome::Done);
        self.report(operation.medium, operation.tag, operation.kind, outcome);
        let Some(medium) = operation.medium else { return };
        if done {
            self.start_chain(medium, operation.chain);
        } else {
            self.fail_chain(medium, operation.chain);
        }
    }

    fn fail_chain(&mut self, medium: u64, chain: VecDeque<Operation>) {
        for Operation { tag, kind, .. } in chain {
            let error = Error::io("not started: an operation before it in its chain was not done");
            self.report(Some(medium), tag, kind, Outcome::Failed(error));
        }
    }

    fn report(&mut self, medium: Option<u64>, tag: u64, kind: OperationKind, outcome: Outcome) {
        if !matches!(kind, OperationKind::Read { .. }) {
            self.effects.fetch_add(1, Ordering::Relaxed);
        }
        let (count, bytes, len, buffer) = match kind {
            OperationKind::Read { into, .. } => {
                (&mut self.stats.reads, &mut self.stats.read_bytes, into.len(), Some(into))
            }
            OperationKind::Write { data, .. } => {
                (&mut self.stats.writes, &mut self.stats.written_bytes, data.len(), None)
            }
            OperationKind::Flush => {
                (&mut self.stats.flushes, &mut self.stats.written_bytes, 0, None)
            }
        };
        *count += 1;
        *bytes += len as u64;
        if let Some(attached) = medium.and_then(|medium| self.media.get_mut(&medium)) {
            attached.ended.push(Completion { tag, outcome, buffer });
            assert!(attached.ended.len() <= attached.in_flight, "{tag} ends once");
        }
    }

    fn read(&self, offset: u64, into: &mut AlignedBuf, fault: Option<Fault>) -> Outcome {
        let len = into.len();
        if fault == Some(Fault::Fail) || self.faults.is_bad(offset, len as u64) {
            return failed("read", offset, len);
        }
        let from = match fault {
            Some(Fault::Misdirected { to }) => to,
            _ => offset,
        };
        self.visible.read(from, into);
        Outcome::Done
    }

    fn write(&mut self, offset: u64, data: &Bytes, fault: Option<Fault>) -> Outcome {
        if self.faults.is_full(offset, data.len() as u64) {
            return self.find_no_room(offset, data);
        }
        let refuses = self.faults.refuses(offset, data.len() as u64);
        match fault.or(refuses.then_some(Fault::Fail)) {
            Some(Fault::Fail) => {
                self.take_partial_effect(offset, data);
                failed("write", offset, data.len())
            }
            Some(Fault::NoSpace) => self.find_no_room(offset, data),
            Some(Fault::Lost) => Outcome::Done,
            Some(Fault::Misdirected { to }) => {
                let room = self.options.len.saturating_sub(to).min(data.len() as u64);
                self.take_effect(to, data.slice(..room as usize));
                Outcome::Done
            }
            Some(Fault::Unknown) => {
                self.land_later(offset, data.clone());
                Outcome::Unknown(Error::io(format!(
                    "write of {} bytes at {offset}: simulated loss of the connection",
                    data.len()
                )))
            }
            Some(Fault::Hold) | None => {
                self.take_effect(offset, data.clone());
                Outcome::Done
            }
        }
    }

    fn flush(&mut self, medium: Option<u64>, covers: u64, fault: Option<Fault>) -> Outcome {
        let medium = medium.and_then(|medium| self.media.get_mut(&medium));
        if medium.as_ref().is_some_and(|medium| medium.flush_failed) {
            return Outcome::Failed(Error::io(
                "flush: simulated I/O error of an earlier one; nothing since counts",
            ));
        }
        match fault {
            Some(Fault::Fail) => {
                if let Some(medium) = medium {
                    medium.flush_failed = true;
                }
                self.flush_had_failed = true;
                let variant = self.random.next();
                let variant = self.recording.as_ref().map_or(variant, |r| r.failure_variant());
                persist(&mut self.durable, &self.unsynced, variant);
                self.unsynced.clear();
                self.record(Recorded::FlushFailed);
                Outcome::Failed(Error::io("flush: simulated I/O error"))
            }
            Some(Fault::Lost) => Outcome::Done,
            _ => {
                settle(&mut self.durable, &mut self.unsynced, covers);
                self.record(Recorded::Flush { covers });
                Outcome::Done
            }
        }
    }

    fn take_effect(&mut self, offset: u64, data: Bytes) {
        let end = offset + data.len() as u64;
        assert!(data.is_empty() || end <= self.options.len, "a write to {end} is on the disk");
        self.last_serial += 1;
        let serial = self.last_serial;
        self.visible.write(offset, &data);
        self.record(Recorded::Write { serial, offset, data: data.clone() });
        self.unsynced.push(Written { serial, offset, data });
    }

    fn take_partial_effect(&mut self, offset: u64, data: &Bytes) {
        let mut after = self.visible.clone();
        tear(&mut after, offset, data, &mut self.random);
        let mut bytes = vec![0; data.len()];
        after.read(offset, &mut bytes);
        self.take_effect(offset, aligned_copy(&bytes));
    }

    fn find_no_room(&mut self, offset: u64, data: &Bytes) -> Outcome {
        let sectors = (data.len() / SECTOR_LEN) as u64;
        let len = self.random.below(sectors) as usize * SECTOR_LEN;
        if len > 0 {
            self.take_effect(offset, data.slice(..len));
        }
        Outcome::Failed(Error::no_space(format!(
            "write of {} bytes at {offset}: simulated file system without room",
            data.len()
        )))
    }

    fn land_later(&mut self, offset: u64, data: Bytes) {
        let due = self.now + 1 + self.random.below(LATE_TICKS);
        self.queue.push(InFlight {
            medium: None,
            tag: 0,
            kind: OperationKind::Write { offset, data },
            fault: None,
            due,
            covers: 0,
            chain: VecDeque::new(),
        });
    }

    fn record(&mut self, effect: Recorded) {
        if let Some(recording) = &mut self.recording {
            recording.effects.push(effect);
        }
    }

    pub(super) fn start_recording(&mut self) {
        let as_effect = |write: &Written| Recorded::Write {
            serial: write.serial,
            offset: write.offset,
            data: write.data.clone(),
        };
        self.recording = Some(Recording {
            len: self.options.len,
            base: self.durable.clone(),
            effects: self.unsynced.iter().map(as_effect).collect(),
        });
    }

    pub(super) fn release_held(&mut self) {
        for i in 0..self.queue.len() {
            if self.queue[i].due == HELD {
                self.queue[i].due = self.due();
            }
        }
        if self.options.delay_ticks_max == 0 {
            self.run_due();
        }
    }

    pub(super) fn poke(&mut self, offset: u64, data: &[u8]) {
        assert!(offset + data.len() as u64 <= self.options.len, "poke past the end");
        self.visible.write(offset, data);
        self.durable.write(offset, data);
    }

    /// The writes in flight, in random order: nothing orders them.
    fn take_writes_in_flight(&mut self, random: &mut Random) -> Vec<(u64, Bytes)> {
        let mut queue = core::mem::take(&mut self.queue);
        let mut writes = Vec::new();
        while !queue.is_empty() {
            let pick = random.below(queue.len() as u64) as usize;
            if let OperationKind::Write { offset, data } = queue.remove(pick).kind {
                writes.push((offset, data));
            }
        }
        writes
    }

    pub(super) fn crash_power(&mut self, seed: u64) {
        let mut random = Random::new(seed ^ 0x0070_6f77_6572);
        let in_flight = self.take_writes_in_flight(&mut random);
        for (offset, data) in core::mem::take(&mut self.late).into_iter().chain(in_flight) {
            self.last_serial += 1;
            self.unsynced.push(Written { serial: self.last_serial, offset, data });
        }
        persist(&mut self.durable, &self.unsynced, seed);
        self.unsynced.clear();
        self.visible = self.durable.clone();
        self.flush_had_failed = false;
        self.after_crash();
    }

    pub(super) fn crash_process(&mut self, seed: u64) {
        let mut random = Random::new(seed);
        for (offset, data) in self.take_writes_in_flight(&mut random) {
            match random.below(4) {
                0 => {}
                1 => self.take_effect(offset, data),
                2 => self.take_partial_effect(offset, &data),
                _ => self.late.push((offset, data)),
            }
        }
        self.after_crash();
    }

    fn after_crash(&mut self) {
        self.media.clear();
        if self.recording.is_some() {
            self.start_recording();
        }
    }
}

fn failed(name: &str, offset: u64, len: usize) -> Outcome {
    Outcome::Failed(Error::io(format!("{name} of {len} bytes at {offset}: simulated I/O error")))
}
