//! Records that a program writes to the peers itself: one step at a time, so that anything may
//! happen between two of them, and memory takes a part of what is written.
//!
//! ```text
//!   world: grant at rest ─► Shared ◄─ recall (the library, at any time)
//!                             │
//!   Record: claim ─► of each peer: data, cell, in parts ─► gates ─► count ─► acknowledged
//!             └── recalled ──┴─────────────── closed ────┴─ recalled ─► issued as any change
//! ```

use crate::check::Operation;
use crate::peers::{Memory, Random};
use crate::world::World;
use gabion_base::crc::crc32c;
use gabion_media::MemoryRegion;
use gabion_ncl::layout::room;
use gabion_ncl::layout::{Cell, Kind, pieces};
use gabion_ncl::{FileNumber, Grant, Number, Progress, Recalled};
use std::cell::{Cell as Shown, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// How often things happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) grants: u64,
    /// Records that counted.
    pub(crate) records: u64,
    /// Those that found a gate closed.
    pub(crate) closed: u64,
    /// Recalls while a record was claimed.
    pub(crate) claimed: u64,
    /// Instances that died amid a record.
    pub(crate) died: u64,
    /// Records that counted while the library was not running, though its program was.
    pub(crate) alone: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.grants += other.grants;
        self.records += other.records;
        self.closed += other.closed;
        self.claimed += other.claimed;
        self.died += other.died;
        self.alone += other.alone;
    }
}

/// Planted defects of the program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slips {
    /// It does not look at the gates.
    pub(crate) gates: bool,
    /// A record counts though the grant was recalled.
    pub(crate) recall: bool,
}

/// A grant, the memory that it is about, and how far the program came.
#[derive(Clone, Debug)]
struct Granted {
    grant: Grant,
    /// The regions of each peer, by part.
    memory: Vec<Vec<Memory>>,
    /// This grant, and the records that count.
    word: (u64, u64),
    progress: Progress,
    is_claimed: bool,
    is_revoked: bool,
}

/// The memory that the library and its program share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared {
    granted: Rc<RefCell<Option<Granted>>>,
    grants: Rc<Shown<u64>>,
    claimed: Rc<Shown<u64>>,
}

impl Shared {
    fn publish(&self, grant: Grant, memory: Vec<Vec<Memory>>) {
        self.grants.set(self.grants.get() + 1);
        let (word, progress) = ((self.grants.get(), 0), grant.progress);
        let (is_claimed, is_revoked) = (false, false);
        let granted = Granted { grant, memory, word, progress, is_claimed, is_revoked };
        let before = self.granted.borrow_mut().replace(granted);
        assert!(before.is_none(), "the grant before was recalled");
    }

    /// Recalls while a record was claimed.
    pub(crate) fn claimed(&self) -> u64 {
        self.claimed.get()
    }

    pub(crate) fn is_granted(&self) -> bool {
        self.granted.borrow().is_some()
    }

    /// The library ends the grant.
    pub(crate) fn recall(&self) -> Option<Recalled> {
        let Granted { grant, word, progress, is_claimed, .. } = self.granted.borrow_mut().take()?;
        self.claimed.set(self.claimed.get() + u64::from(is_claimed));
        Some(Recalled { file: grant.file, written: word.1, is_claimed, progress })
    }

    /// The program has a record issued: no more count under this grant.
    pub(crate) fn revoke(&self) {
        if let Some(granted) = &mut *self.granted.borrow_mut() {
            granted.is_revoked = true;
        }
    }

    /// The file of which records can be written now, and how long it is.
    pub(crate) fn open(&self) -> Option<(FileNumber, u64)> {
        let granted = self.granted.borrow();
        let granted = granted.as_ref().filter(|granted| !granted.is_revoked)?;
        Some((granted.grant.file, granted.progress.len))
    }

    /// A record of the operation, if it can be written.
    pub(crate) fn turn(&self, operation: &Operation, random: &mut Random) -> Option<Record> {
        let Operation::Write(file, offset, data) = operation else { return None };
        let granted = self.granted.borrow();
        let granted = granted.as_ref().filter(|granted| !granted.is_revoked)?;
        let is_its = granted.grant.file == *file;
        let fits = granted.fits(*offset, data.len() as u64);
        (is_its && fits).then(|| granted.record(operation, random))
    }

    fn claim(&self, word: (u64, u64)) -> bool {
        match &mut *self.granted.borrow_mut() {
            Some(granted) if granted.word == word => {
                granted.is_claimed = true;
                true
            }
            _ => false,
        }
    }

    fn count(&self, word: (u64, u64), after: Progress) -> bool {
        match &mut *self.granted.borrow_mut() {
            Some(granted) if granted.word == word && !granted.is_revoked => {
                (granted.word.1, granted.is_claimed, granted.progress) = (word.1 + 1, false, after);
                true
            }
            _ => false,
        }
    }
}

impl Granted {
    fn fits(&self, offset: u64, len: u64) -> bool {
        let (capacity, near) = room(&self.grant.parts);
        let (end, before) = (offset + len, self.progress.len);
        let grows_too_far = end > before && end > near;
        let record_max = World::options(0, false).sizes.record_max as u64;
        offset <= before && end <= capacity && !grows_too_far && len <= record_max
    }

    fn record(&self, operation: &Operation, random: &mut Random) -> Record {
        let Operation::Write(file, offset, data) = operation else { unreachable!("it fits") };
        let (grant, before) = (&self.grant, self.progress);
        let len = before.len.max(offset + data.len() as u64);
        let (dirty, ordinal) = (before.dirty.max(len), before.ordinal.wrapping_add(1));
        let number = Number(grant.last.0 + self.word.1 + 1);
        let cell = Cell {
            kind: Kind::Write,
            file: *file,
            term: grant.term,
            number,
            offset: *offset,
            len: data.len() as u32,
            data_crc: crc32c(data),
            file_len: len,
            ordinal,
        };
        let mut steps = VecDeque::from([Step::Claim]);
        let mut looks = Vec::new();
        let found = pieces(&grant.parts, *offset, data.len() as u64).expect("it fits");
        for memory in &self.memory {
            let mut rest = &data[..];
            for piece in &found {
                let (now, later) = rest.split_at(piece.len as usize);
                put(&mut steps, &memory[piece.part as usize], piece.offset, now, random);
                looks.push(Step::Look(memory[piece.part as usize].clone()));
                rest = later;
            }
            put(&mut steps, &memory[0], cell.place(), &cell.encode(grant.owner), random);
            looks.push(Step::Look(memory[0].clone()));
        }
        steps.extend(looks);
        steps.push_back(Step::Count);
        let after = Progress { len, dirty, ordinal };
        Record { operation: operation.clone(), number, word: self.word, after, steps }
    }
}

/// Bytes are written at once, or in two steps.
fn put(steps: &mut VecDeque<Step>, memory: &Memory, at: u64, data: &[u8], random: &mut Random) {
    let cut = if random.once_in(2) { random.below(data.len() as u64) as usize } else { 0 };
    let (first, second) = data.split_at(cut);
    for (at, data) in [(at, first), (at + cut as u64, second)] {
        if !data.is_empty() {
            steps.push_back(Step::Put(memory.clone(), at, data.to_vec()));
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Claim,
    Put(Memory, u64, Vec<u8>),
    /// At a gate.
    Look(Memory),
    Count,
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Went {
    On,
    /// The record may be at peers from now on.
    Claimed,
    Counted,
    /// The grant was recalled, or a peer takes no writes any more.
    Recalled,
    Closed,
}

/// A record that is being written.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) operation: Operation,
    pub(crate) number: Number,
    word: (u64, u64),
    after: Progress,
    steps: VecDeque<Step>,
}

impl Record {
    /// Steps that are left.
    pub(crate) fn left(&self) -> usize {
        self.steps.len()
    }

    /// Does the next step.
    pub(crate) fn step(&mut self, shared: &Shared, slips: Slips) -> Went {
        match self.steps.pop_front().expect("the last step ends it") {
            Step::Claim if shared.claim(self.word) => Went::Claimed,
            Step::Claim => Went::Recalled,
            Step::Put(mut memory, at, data) => {
                memory.write(at, &data);
                Went::On
            }
            Step::Look(memory) if memory.is_open() || slips.gates => Went::On,
            Step::Look(_) => Went::Closed,
            Step::Count if shared.count(self.word, self.after) || slips.recall => Went::Counted,
            Step::Count => Went::Recalled,
        }
    }
}

impl World {
    /// The peers are on the machine of the programs, which write to them themselves.
    pub(crate) fn share_memory(&mut self) {
        self.is_shared = true;
        self.machines.values_mut().for_each(crate::peers::Machine::share_memory);
    }

    /// The library gives its program a grant, if it can and there is none.
    pub(crate) fn grant(&mut self, id: usize) {
        if !self.is_shared {
            return;
        }
        let Some(instance) = self.instances.get(&id) else { return };
        let shared = &instance.images.shared;
        let wanted = instance.program.as_ref().filter(|_| instance.images.is_at_rest());
        let wanted = wanted.filter(|_| !shared.is_granted());
        let file = wanted.and_then(|program| program.wanted(&mut self.random));
        let Some(grant) = file.and_then(|file| instance.application.grant(file)) else { return };
        let memory = grant.peers.iter().map(|(peer, regions)| {
            let machine = &self.machines[peer];
            let mapped = |region| machine.mapped(region).expect("clients map regions").clone();
            regions.iter().copied().map(mapped).collect()
        });
        shared.publish(grant.clone(), memory.collect());
        self.outcome.direct.grants += 1;
    }
}
