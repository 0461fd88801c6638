//! Folding the operands of one key, as a job meets them: from new to old.
//!
//! What they are added to comes last, if it comes at all. Two become one at once unless something
//! may expire between the times at which they were written; then both are kept, up to
//! [`APART_MAX`], beyond which the newest are written as they are. So a job's memory does not grow
//! with the operands, and nothing is lost: what is written apart is folded by a later job.

use crate::counter::{Base, Operand};
use crate::entry::{Entry, EntryKind, Trailer};
use crate::expiry::ExpirySpan;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use gabion_base::SequenceNumber;

/// Most operands of a key that are kept apart in memory: 64 KiB.
const APART_MAX: usize = 1024;

/// An entry that came of folding.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) trailer: Trailer,
    pub(super) stored: Vec<u8>,
}

impl Made {
    pub(super) fn entry<'a>(&'a self, key: &'a [u8]) -> Entry<'a> {
        Entry { key, trailer: self.trailer, value: &self.stored }
    }
}

/// The operands of a key that were met and not written.
pub(super) struct Fold {
    expiries: Option<ExpirySpan>,
    /// Newest first; each with the sequence number of its newest part.
    operands: VecDeque<(SequenceNumber, Operand)>,
    /// Newer ones were written apart.
    is_cut: bool,
}

impl Fold {
    /// Of operands over values that may expire within `expiries`.
    pub(super) const fn new(expiries: Option<ExpirySpan>) -> Self {
        Self { expiries, operands: VecDeque::new(), is_cut: false }
    }

    /// Whether newer operands were written apart, and count on finding what is beneath.
    pub(super) const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether a value may be there for an operand written at `older_ms` and gone for one written
    /// at `newer_ms`.
    fn may_expire_between(&self, older_ms: u64, newer_ms: u64) -> bool {
        older_ms < newer_ms
            && self
                .expiries
                .is_some_and(|span| span.first_ms <= newer_ms && span.last_ms > older_ms)
    }

    /// The next older operand. Returns one that is to be written, when there are too many.
    pub(super) fn push_older(
        &mut self,
        sequence: SequenceNumber,
        operand: Operand,
    ) -> Option<Made> {
        let apart = self
            .operands
            .back()
            .is_none_or(|(_, newer)| self.may_expire_between(operand.at_ms, newer.at_ms));
        match self.operands.back_mut() {
            Some((_, newer)) if !apart => {
                newer.step = operand.step.then(newer.step);
                newer.at_ms = newer.at_ms.max(operand.at_ms);
            }
            _ => self.operands.push_back((sequence, operand)),
        }
        if self.operands.len() <= APART_MAX {
            return None;
        }
        assert_eq!(self.operands.len(), APART_MAX + 1, "one too many is written at once");
        self.is_cut = true;
        self.operands.pop_front().map(as_operand)
    }

    /// What the key has once they are added to `base`, and the sequence number of the newest.
    pub(super) fn onto(&self, base: Base) -> (SequenceNumber, Base) {
        let newest = self.operands.front().map_or(SequenceNumber::ZERO, |(sequence, _)| *sequence);
        let oldest_first = self.operands.iter().rev();
        (newest, oldest_first.fold(base, |base, (_, operand)| base.with(*operand)))
    }

    /// The operands, newest first, where what they are added to is out of reach.
    pub(super) fn into_operands(self) -> impl Iterator<Item = Made> {
        self.operands.into_iter().map(as_operand)
    }
}

fn as_operand((sequence, operand): (SequenceNumber, Operand)) -> Made {
    Made { trailer: Trailer::new(sequence, EntryKind::Merge), stored: operand.encode() }
}
