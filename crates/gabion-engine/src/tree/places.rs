//! Values that a flush leaves where the log has them: see [`crate::places`].

use super::{Sealed, Tree};
use crate::batch::BatchReader;
use crate::entry::EntryKind;
use crate::expiry::EXPIRY_LEN;
use crate::packed;
use crate::places::{LastSegment, LogLayout};
use crate::pointer::LARGE_VALUES_MIN;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{FileId, LogPosition, MemTableId, SequenceNumber};

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
        let (kept, _) = self.kept_by(self.next_to_flush()?);
        kept.last().map(|segment| LogPosition(layout.end_of(*segment)))
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
        }
    }

    pub(super) fn next_to_flush(&self) -> Option<&Sealed> {
        self.sealed.iter().find(|sealed| !self.jobs.flushing.contains(&sealed.table.id()))
    }

    /// The segments that keep values of a sealed MemTable, and the bytes of these.
    pub(super) fn kept_by(&self, sealed: &Sealed) -> (Vec<FileId>, u64) {
        let Some(layout) = self.layout.filter(|_| self.config.large_values > 0) else {
            return (Vec::new(), 0);
        };
        sealed.places.kept(sealed.frontier.only().get(), layout)
    }
}
