//! The records of this instance that some peer has not been sent yet.

use crate::command::Label;
use crate::layout::{CELL_LEN, Cell, OwnerCrc, Piece};
use crate::number::{FileNumber, Number};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::Term;

/// A region that a peer must have lent before it is sent a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) label: Label,
    /// Its length.
    pub(crate) bytes: u64,
}

/// The effect of a record at a peer beside its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// A region is needed first.
    Needs(Need),
    /// Regions of these files, from a part on, are free once the peer has the record.
    Frees(Vec<(FileNumber, u32)>),
}

/// A record.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) cell: Cell,
    pub(crate) data: Bytes,
    /// The places of the data: across one border of parts at most.
    pub(crate) pieces: [Option<Piece>; 2],
    pub(crate) effect: Effect,
}

impl Record {
    /// The bytes that it costs to keep.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len() + CELL_LEN
    }
}

/// The records.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) term: Term,
    pub(crate) owner: OwnerCrc,
    records: VecDeque<Record>,
    /// The number of the first one kept.
    first: Number,
    bytes: usize,
    /// The records of these that need a region. They are few, and asked for at each change.
    needs: VecDeque<(Number, Need)>,
    /// Records that free regions, of all that were issued.
    frees: u64,
}

impl Log {
    /// A log whose next record follows `last`.
    pub(crate) fn new(owner: OwnerCrc, term: Term, last: Number) -> Self {
        let (records, needs) = (VecDeque::new(), VecDeque::new());
        Self { term, owner, records, first: last.next(), bytes: 0, needs, frees: 0 }
    }

    /// The record that was issued last.
    pub(crate) fn issued(&self) -> Number {
        Number(self.first.0 + self.records.len() as u64 - 1)
    }

    /// Bytes of the records that are kept.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many of the records that were issued free regions.
    pub(crate) const fn frees(&self) -> u64 {
        self.frees
    }

    /// Issues the next record; its cell has that number.
    pub(crate) fn push(&mut self, record: Record) -> Number {
        let number = self.issued().next();
        assert_eq!(record.cell.number, number, "numbers go on without a gap");
        assert_eq!(record.cell.len as usize, record.data.len(), "a cell tells of its data");
        self.bytes += record.bytes();
        match record.effect {
            Effect::Needs(need) => self.needs.push_back((number, need)),
            Effect::Frees(_) => self.frees += 1,
            Effect::None => {}
        }
        self.records.push_back(record);
        number
    }

    /// A record that is kept.
    pub(crate) fn get(&self, number: Number) -> Option<&Record> {
        let at = number.0.checked_sub(self.first.0)?;
        self.records.get(usize::try_from(at).ok()?)
    }

    /// The regions that records from `number` on need.
    pub(crate) fn needs_from(&self, number: Number) -> impl Iterator<Item = Need> {
        let later = self.needs.iter().rev().take_while(move |(at, _)| *at >= number);
        later.map(|(_, need)| *need)
    }

    /// The records up to `last` are none of those that were issued here.
    pub(crate) fn pass(&mut self, last: Number) {
        assert!(self.records.is_empty() && self.issued() <= last, "records are at rest");
        self.first = last.next();
    }

    /// Every peer has been sent all up to `number`.
    pub(crate) fn trim(&mut self, number: Number) {
        while self.first <= number
            && let Some(record) = self.records.pop_front()
        {
            self.bytes -= record.bytes();
            self.first = self.first.next();
        }
        while self.needs.front().is_some_and(|(at, _)| *at < self.first) {
            self.needs.pop_front();
        }
    }
}
