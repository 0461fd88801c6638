//! Records of the log come into the MemTables.

use super::deletes::DeleteRuns;
use super::{Sealed, Tree};
use crate::batch::BatchReader;
use crate::counter::Operand;
use crate::entry::{EntryKind, Keyspace};
use crate::expiry::{Due, EXPIRY_LEN};
use crate::packed;
use crate::places::Places;
use crate::range_delete::{RangeDelete, check_range};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::OnceCell;
use gabion_base::{Error, Frontier, MemTableId, Result, SequenceNumber};

impl Tree {
    /// Applies the operations of a batch record, which take the sequence numbers from `first` on.
    /// All or nothing.
    ///
    /// # Errors
    /// Corruption when `first` does not follow the last write, or the payload is malformed;
    /// Unsupported for a reserved operation.
    pub fn apply_batch(&mut self, first: SequenceNumber, payload: &[u8]) -> Result<()> {
        self.check_next(first)?;
        let mut count = 0u64;
        for operation in BatchReader::new(payload) {
            let operation = operation?;
            check_operation(operation.kind, operation.key, operation.value)?;
            count += 1;
        }
        check_last(first, count)?;
        self.opening = false;
        let floor_before = self.floor;
        let mut writer = self.active.writer();
        let mut sequence = self.last_sequence;
        let mut ranges = Vec::new();
        for operation in BatchReader::new(payload) {
            let operation = operation?;
            sequence = sequence.next();
            match operation.kind {
                EntryKind::Clear => {
                    // An edit that ran ahead of the log may have told of a later one.
                    self.floor = self.floor.max(sequence);
                    self.shape_number += 1;
                }
                EntryKind::RangeDelete => {
                    let (start, end) = (operation.key.into(), operation.value.into());
                    ranges.push(RangeDelete { start, end, sequence });
                }
                kind => {
                    note_expiry(&mut self.due, kind, operation.value, self.now_ms);
                    writer.insert(operation.key, sequence, kind, operation.value);
                }
            }
        }
        drop(writer);
        let given = sequence.get() - self.last_sequence.get();
        assert_eq!(given, count, "{}: each write has a number of its own", self.group);
        self.last_sequence = sequence;
        self.delete_ranges(ranges);
        if self.floor > floor_before {
            self.jobs.idle = None;
        }
        self.end_step();
        Ok(())
    }

    /// Applies one operation: the head's path, which reads its own writes within a batch.
    ///
    /// # Errors
    /// As [`Tree::apply_batch`].
    pub fn apply_operation(
        &mut self,
        sequence: SequenceNumber,
        kind: EntryKind,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        self.check_next(sequence)?;
        check_operation(kind, key, value)?;
        check_last(sequence, 1)?;
        self.opening = false;
        match kind {
            EntryKind::Clear => {
                self.floor = self.floor.max(sequence);
                self.shape_number += 1;
                self.jobs.idle = None;
            }
            EntryKind::RangeDelete => {
                let range = RangeDelete { start: key.into(), end: value.into(), sequence };
                self.delete_ranges(alloc::vec![range]);
            }
            kind => {
                note_expiry(&mut self.due, kind, value, self.now_ms);
                self.active.insert(key, sequence, kind, value);
                if kind == EntryKind::Delete {
                    self.note_delete(key);
                }
            }
        }
        self.last_sequence = sequence;
        Ok(())
    }

    /// Adds range deletes to the active MemTable. Readers from now on read another shape.
    fn delete_ranges(&mut self, ranges: Vec<RangeDelete>) {
        if ranges.is_empty() {
            return;
        }
        self.active = Arc::new(self.active.with_range_deletes(ranges));
        self.reshape();
    }

    /// A record of the log, of whatever kind, was applied that has this group time; it never goes
    /// back.
    pub fn pass_time(&mut self, now_ms: u64) {
        if now_ms > self.now_ms {
            self.now_ms = now_ms;
            self.due.pass(now_ms);
        }
    }

    /// Group time, in milliseconds since 1970: the largest of the records that were applied, 0
    /// before the first.
    #[must_use]
    pub const fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// When, by the head's clock, a record is wanted so that group time passes and what expires by
    /// then is seen to. None while nothing may expire. See [`crate::expiry`].
    #[must_use]
    pub fn time_due_ms(&self) -> Option<u64> {
        self.due.next_ms(self.now_ms)
    }

    pub(super) fn check_next(&self, first: SequenceNumber) -> Result<()> {
        if self.last_sequence.get().checked_add(1) == Some(first.get()) {
            return Ok(());
        }
        Err(Error::corruption(format!(
            "{}: writes from {first} on follow {}: a gap or a repetition",
            self.group, self.last_sequence
        )))
    }

    /// Whether the active MemTable is full, or holds enough that readers are better off without:
    /// the head appends a seal.
    #[must_use]
    pub fn needs_seal(&self) -> bool {
        self.needs_seal_over(self.config.memtable_len)
    }

    /// As [`Self::needs_seal`], of a MemTable that is full with this length.
    #[must_use]
    pub fn needs_seal_over(&self, memtable_len: u64) -> bool {
        self.active.memory_used() as u64 >= memtable_len
            || self.active.is_full_of_range_deletes()
            || self.delete_runs.wants_seal()
    }

    /// Seals the active MemTable, which must be `expected`; the log goes on at `at`. Returns the
    /// MemTable that begins.
    ///
    /// # Errors
    /// Corruption when another MemTable is active, or `at` does not cover the last seal's frontier.
    pub fn seal(&mut self, expected: MemTableId, at: Frontier) -> Result<MemTableId> {
        let active = self.active.id();
        let previous = self.sealed.back().map_or(self.flushed.frontier, |last| last.frontier);
        if active != expected || !at.covers(&previous) {
            return Err(Error::corruption(format!(
                "{}: seal of {expected} at {at}, but {active} is active and the last seal at {previous}",
                self.group
            )));
        }
        self.opening = false;
        let next = Arc::new(self.active.successor());
        let table = core::mem::replace(&mut self.active, next);
        self.delete_runs = DeleteRuns::default();
        let last_sequence = self.last_sequence;
        let next = Places::beginning_at(at.only().get());
        let places = Arc::new(core::mem::replace(&mut self.places, next));
        if crate::CHECKED {
            table.invariants();
        }
        let kept = OnceCell::new();
        self.sealed.push_back(Sealed { table, frontier: at, last_sequence, places, kept });
        self.reshape();
        self.end_step();
        Ok(self.active.id())
    }
}

/// Refuses operations that the tree has no rule for.
fn check_operation(kind: EntryKind, key: &[u8], value: &[u8]) -> Result<()> {
    match kind {
        EntryKind::Put | EntryKind::Delete if !key.is_empty() => Ok(()),
        EntryKind::ExpiringPut if !key.is_empty() && value.len() >= EXPIRY_LEN => Ok(()),
        EntryKind::ExpiringPut if !key.is_empty() => Err(Error::invalid(format!(
            "expiring put of {} bytes, its expiry alone has {EXPIRY_LEN}",
            value.len()
        ))),
        EntryKind::PackedPut | EntryKind::ExpiringPackedPut if !key.is_empty() => {
            let value_at = if kind.is_expiring() { EXPIRY_LEN } else { 0 };
            packed::raw_len(value.get(value_at..).unwrap_or_default()).map(drop)
        }
        EntryKind::Merge if !key.is_empty() => Operand::decode(value).map(|_| ()),
        EntryKind::Clear if key == [Keyspace::User as u8] => Ok(()),
        EntryKind::Clear => Err(Error::unsupported("only the user keyspace can be cleared")),
        EntryKind::RangeDelete => check_range(key, value),
        kind if key.is_empty() => {
            Err(Error::invalid(format!("operation {kind:?} has no key, not even a keyspace")))
        }
        kind => Err(Error::unsupported(format!("operation {kind:?} is reserved"))),
    }
}

/// Notes when an entry that is applied expires, if it does.
fn note_expiry(due: &mut Due, kind: EntryKind, value: &[u8], now_ms: u64) {
    if kind.is_expiring()
        && let Some(expiry) = value.first_chunk::<EXPIRY_LEN>()
    {
        due.note(u64::from_le_bytes(*expiry), now_ms);
    }
}

pub(super) fn check_last(first: SequenceNumber, count: u64) -> Result<()> {
    if first.get().saturating_add(count) <= SequenceNumber::MAX.get() {
        return Ok(());
    }
    Err(Error::limit(format!("{count} writes from {first} on pass {}", SequenceNumber::MAX)))
}
