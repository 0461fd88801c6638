//! Expiry: values with a time from which on their keys are gone.
//!
//! ```text
//!   EntryKind::ExpiringPut, in batches, MemTables and files:   expiry_ms u64 | value
//!   EntryKind::ExpiringPackedPut, likewise:                    expiry_ms u64 | value, packed
//!   EntryKind::ExpiringPointer, in files:                      expiry_ms u64 | pointer to it
//! ```
//!
//! **Group time** judges, never a clock: the largest `now_ms` of the records that were applied
//! ([`Tree::now_ms`](crate::Tree::now_ms)). So replicas at the same record hide the same keys, and
//! a job, which judges by the group time in its recipe, makes the same bytes everywhere. A key is
//! gone when its expiry is at or below that time. A view keeps the time at which it was made, as it
//! keeps its read point: whatever is read through it, and how often, is judged alike.
//!
//! Group time passes with records alone. When nobody writes, the head appends one that carries
//! nothing but time as soon as something may expire by its clock: `Due` says when. What `Due` knows
//! is no part of the replicated state: it is a hint, and one too many costs a record.
//!
//! ```text
//!   written since the start   ► each expiry, in order       ─► a record at that millisecond
//!   in files before it, or    ► the span of their expiries  ─► a record every CARRY_EVERY_MS within it
//!   more than DUE_TIMES_MAX
//! ```

use crate::entry::Trailer;
use crate::version::Version;
use alloc::collections::BTreeSet;
use alloc::format;
use gabion_base::units::VALUE_LEN_MAX;
use gabion_base::{Error, Result, SequenceNumber};

/// Bytes of the expiry before the value.
pub const EXPIRY_LEN: usize = 8;
/// Longest value as it is stored: that of an expiring put.
pub const STORED_LEN_MAX: usize = EXPIRY_LEN + VALUE_LEN_MAX;

/// How often group time passes, in ms, while something may expire and it is not known when.
pub(crate) const CARRY_EVERY_MS: u64 = 100;
/// Most times that are remembered one by one: about 1 MiB.
const DUE_TIMES_MAX: usize = 65_536;

/// When the key of a stored value is gone, if it ever is, and where the value begins in it.
///
/// # Errors
/// Corruption when an entry that expires is shorter than its expiry.
#[inline]
pub(crate) fn expiry_of(trailer: Trailer, stored: &[u8]) -> Result<(Option<u64>, usize)> {
    if !trailer.kind().is_expiring() {
        return Ok((None, 0));
    }
    match stored.first_chunk::<EXPIRY_LEN>() {
        Some(expiry) => Ok((Some(u64::from_le_bytes(*expiry)), EXPIRY_LEN)),
        None => Err(too_short(trailer.sequence(), stored.len())),
    }
}

#[cold]
fn too_short(sequence: SequenceNumber, len: usize) -> Error {
    Error::corruption(format!(
        "expiring put {sequence} has {len} bytes, its expiry alone has {EXPIRY_LEN}"
    ))
}

/// From when to when something may expire, in ms; both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpirySpan {
    /// The first expiry.
    pub first_ms: u64,
    /// The last expiry.
    pub last_ms: u64,
}

impl ExpirySpan {
    /// Of one expiry.
    #[must_use]
    pub const fn at(expires_ms: u64) -> Self {
        Self { first_ms: expires_ms, last_ms: expires_ms }
    }

    /// Of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            first_ms: self.first_ms.min(other.first_ms),
            last_ms: self.last_ms.max(other.last_ms),
        }
    }

    /// Adds `other` to a span that may be none.
    pub(crate) fn add(span: &mut Option<Self>, other: Self) {
        *span = Some(span.map_or(other, |span| span.with(other)));
    }
}

/// When group time should pass next so that what expires is seen to. See the module's text.
#[derive(Default)]
pub(crate) struct Due {
    /// Expiries that lie ahead, of entries that were applied since the start.
    times: BTreeSet<u64>,
    /// Expiries that had no room among them.
    crowded: Option<ExpirySpan>,
    /// Entries up to this one came before the start, in files.
    before: SequenceNumber,
    /// The expiries of files that may hold such entries.
    in_files: Option<ExpirySpan>,
}

impl Due {
    /// An entry with this expiry was applied.
    pub(crate) fn note(&mut self, expires_ms: u64, now_ms: u64) {
        if expires_ms <= now_ms {
            return;
        }
        self.times.insert(expires_ms);
        if self.times.len() > DUE_TIMES_MAX
            && let Some(last) = self.times.pop_last()
        {
            ExpirySpan::add(&mut self.crowded, ExpirySpan::at(last));
        }
        assert!(self.times.len() <= DUE_TIMES_MAX, "memory for times is bounded");
    }

    /// Group time is `now_ms`: what lies behind it needs nothing any more.
    pub(crate) fn pass(&mut self, now_ms: u64) {
        while self.times.first().is_some_and(|first| *first <= now_ms) {
            self.times.pop_first();
        }
        for span in [&mut self.crowded, &mut self.in_files] {
            *span = span.filter(|span| span.last_ms > now_ms);
        }
    }

    /// Entries up to `sequence` came in files, and were not noted.
    pub(crate) fn came_in_files(&mut self, sequence: SequenceNumber) {
        self.before = self.before.max(sequence);
    }

    /// The files are these now.
    pub(crate) fn look_at(&mut self, version: &Version, now_ms: u64) {
        let unknown = version.files().filter(|(_, file)| file.smallest_sequence <= self.before);
        let spans = unknown.filter_map(|(_, file)| file.expiry);
        self.in_files = spans.reduce(ExpirySpan::with).filter(|span| span.last_ms > now_ms);
    }

    /// When a record that carries time is wanted, if group time is `now_ms`.
    pub(crate) fn next_ms(&self, now_ms: u64) -> Option<u64> {
        let spans = [self.crowded, self.in_files].into_iter().flatten();
        let coarse = spans.map(|span| span.first_ms.max(now_ms.saturating_add(CARRY_EVERY_MS)));
        coarse.chain(self.times.first().copied()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::EntryKind;

    #[test]
    fn each_expiry_that_lies_ahead_is_due_at_its_time_and_once() {
        let mut due = Due::default();
        assert_eq!(due.next_ms(100), None);
        for expires_ms in [300, 200, 300, 90] {
            due.note(expires_ms, 100);
        }
        assert_eq!(due.next_ms(100), Some(200));
        due.pass(200);
        assert_eq!(due.next_ms(200), Some(300));
        due.pass(1000);
        assert_eq!(due.next_ms(1000), None);
    }

    #[test]
    fn more_expiries_than_are_remembered_make_time_pass_all_through_them() {
        let mut due = Due::default();
        let count = DUE_TIMES_MAX as u64 + 500;
        (0..count).for_each(|n| due.note(1_000 + n, 0));
        assert_eq!(due.times.len(), DUE_TIMES_MAX);
        let (first_ms, last_ms) = (1_000 + DUE_TIMES_MAX as u64, 999 + count);
        assert_eq!(due.crowded, Some(ExpirySpan { first_ms, last_ms }));
        due.pass(first_ms - 1);
        assert_eq!(due.next_ms(first_ms - 1), Some(first_ms - 1 + CARRY_EVERY_MS));
        due.pass(last_ms - 1);
        assert!(due.next_ms(last_ms - 1).is_some());
        due.pass(last_ms);
        assert_eq!(due.next_ms(last_ms), None);
    }

    #[test]
    fn an_expiring_put_without_a_whole_expiry_is_corruption() {
        let trailer = Trailer::new(SequenceNumber(9), EntryKind::ExpiringPut);
        assert_eq!(expiry_of(trailer, &[1, 0, 0, 0, 0, 0, 0, 0, 7]).unwrap(), (Some(1), 8));
        let error = expiry_of(trailer, &[0; 7]).unwrap_err();
        assert_eq!(error.message(), "expiring put #9 has 7 bytes, its expiry alone has 8");
    }
}
