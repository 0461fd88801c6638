//! Values that a flush leaves where the log has them: see [`crate::places`].

use super::{Sealed, Tree};
use crate::batch::BatchReader;
use crate::entry::EntryKind;
use crate::expiry::EXPIRY_LEN;
use crate::job::is_below_floor;
use crate::memtable::MemTable;
use crate::packed;
use crate::places::{KeptSegments, LastSegment, LogLayout};
use crate::pointer::LARGE_VALUES_MIN;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::OnceCell;
use gabion_base::{LogPosition, MemTableId, SequenceNumber};

impl Tree {
    /// From here on values may stay in segments of the log that this tree is of. To be called
    /// before anything is replayed.
    pub fn keep_values_in(&mut self, layout: LogLayout) {
        self.layout = Some(layout);
    }

    /// A batch that was applied, the operations of which have the numbers from `first` on, has its
    /// payload at this position of the log.
    pub fn note_places(&mut self, first: SequenceNumber, payload: &[u8], at: LogPosition) {
        let (Some(layout), large_from) = (self.layout, self.config.large_values) else { return };
        if large_from == 0 || payload.len() < LARGE_VALUES_MIN as usize {
            return;
        }
        let mut sequence = first;
        for operation in BatchReader::new(payload).map_while(Result::ok) {
            let value_at = match operation.kind {
                EntryKind::Put | EntryKind::PackedPut => Some(0),
                EntryKind::ExpiringPut | EntryKind::ExpiringPackedPut => Some(EXPIRY_LEN),
                _ => None,
            };
            if let Some(value) = value_at.and_then(|at| operation.value.get(at..))
                && let Ok(raw_len) = packed::len_of(operation.kind, value)
                && packed::is_large(value, raw_len, large_from)
            {
                let offset = value.as_ptr().addr() - payload.as_ptr().addr();
                let position = at.get() + offset as u64;
                self.places.note(sequence, position, value.len(), layout.segment_len);
            }
            sequence = sequence.next();
        }
    }

    /// The log goes on with another term: before it there may be a gap.
    pub const fn note_gap(&mut self) {
        self.places.note_gap();
    }

    /// The segment in which the log ends now, at `end`, as far as it is of the active MemTable;
    /// none where no values stay in the log.
    #[must_use]
    pub fn last_segment(&self, end: LogPosition) -> Option<LastSegment> {
        let layout = self.layout.filter(|_| self.config.large_values > 0)?;
        Some(self.places.last_segment(end.get(), layout))
    }

    /// Up to where the log must be in segments before the next flush begins, as that leaves values
    /// there; none where it leaves none, or nothing is to be flushed.
    #[must_use]
    pub fn next_flush_awaits(&self) -> Option<LogPosition> {
        let layout = self.layout?;
        let kept = self.kept_by(self.next_to_flush()?)?;
        kept.files.last().map(|segment| LogPosition(layout.end_of(*segment)))
    }

    /// Has the next flush leave no values in the log, as that has no room for its segments.
    pub fn keep_none_at_next_flush(&mut self) {
        if let Some(id) = self.next_to_flush().map(|sealed| sealed.table.id()) {
            self.keep_none_of(id);
        }
    }

    /// Has the flush of a MemTable leave no values in the log.
    pub fn keep_none_of(&mut self, memtable: MemTableId) {
        let sealed = self.sealed.iter_mut().find(|sealed| sealed.table.id() == memtable);
        if let Some(sealed) = sealed {
            sealed.places = Arc::default();
            sealed.kept = OnceCell::new();
        }
    }

    pub(super) fn next_to_flush(&self) -> Option<&Sealed> {
        self.sealed.iter().find(|sealed| !self.jobs.flushing.contains(&sealed.table.id()))
    }

    /// The segments that keep values of a sealed MemTable; none where values never stay. The first
    /// answer holds: what waits for the log and what makes the recipe must have the same.
    pub(super) fn kept_by<'a>(&self, sealed: &'a Sealed) -> Option<&'a KeptSegments> {
        let layout = self.layout.filter(|_| self.config.large_values > 0)?;
        let end = sealed.frontier.only().get();
        let newest = || newest_values(&sealed.table, self.floor);
        Some(sealed.kept.get_or_init(|| sealed.places.kept(end, layout, newest)))
    }
}

/// Number and length in the log of the newest entry of each key, as far as it has a value and no
/// range delete or clear covers it.
fn newest_values(
    table: &MemTable,
    floor: SequenceNumber,
) -> impl Iterator<Item = (SequenceNumber, usize)> {
    let mut iter = table.iter();
    iter.seek_to_first();
    let mut key: Option<Vec<u8>> = None;
    core::iter::from_fn(move || {
        loop {
            let entry = iter.entry()?;
            // Older versions of a key come after the newest.
            let is_newest = key.as_deref() != Some(entry.key);
            let (sequence, kind) = (entry.trailer.sequence(), entry.trailer.kind());
            let mut found = None;
            if is_newest {
                let key = key.get_or_insert_default();
                key.clear();
                key.extend_from_slice(entry.key);
                let value_at = if kind.is_expiring() { EXPIRY_LEN } else { 0 };
                let is_covered = is_below_floor(entry.key, sequence, floor)
                    || table.range_delete_of(entry.key, SequenceNumber::MAX) > Some(sequence);
                let len = entry.value.len().saturating_sub(value_at);
                found = (!is_covered).then_some((sequence, len));
            }
            iter.advance();
            if found.is_some() {
                return found;
            }
        }
    })
}
