//! Entries whose values a compaction copies out of the files that it empties. The values lie there
//! in the order in which they were written, and are needed in that of keys; so entries wait until
//! theirs come to [`batch_len`] bytes, which are then read in the order in which they lie, near
//! ones together.
//!
//! ```text
//!   merge ─► [entries that wait, by key] ───────────────► placed, written, by key
//!                 │ pointers, by file and offset            ▲
//!                 └─► [spans of files] ─► read at once ─► [values]
//! ```
//!
//! One read for each value takes more time than all else that a compaction does. An entry that
//! needs no value waits only behind others that do.

use super::JobStats;
use crate::entry::{Entry, EntryKind, Trailer};
use crate::file::{FileRange, FileSink, FileSource, noted};
use crate::pointer::Pointer;
use crate::recipe::Recipe;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::units::{KIB, MIB};
use gabion_base::{Error, FileId, Result};
use gabion_media::{AlignedBuf, Bytes};

/// Values that are read together, at most: or one.
const BATCH_LEN_MAX: u64 = 32 * MIB;
/// The same in lengths of an output.
const BATCH_OUTPUTS: u64 = 2;
/// As much between two values is read with them: it costs less than a read.
const GAP_LEN_MAX: u64 = 8 * KIB;
/// Bytes of one read, or a value.
const SPAN_LEN_MAX: u64 = 256 * KIB;
/// Bytes of all reads that are under way at once, or one.
const SPANS_LEN_MAX: u64 = 8 * MIB;
/// And their number: readers wait behind them.
const SPANS_MAX: usize = 128;

/// Entries in key order, from the first on whose value is not read yet.
#[derive(Default)]
pub(super) struct Waiting {
    /// Each key and the value or pointer beside it, one behind the other.
    bytes: Vec<u8>,
    entries: Vec<Waits>,
    wanted: Vec<Wanted>,
    /// Bytes of the values that are wanted.
    wanted_len: u64,
    /// Those values, each where [`Wanted::at`] says.
    values: AlignedBuf,
}

/// An entry that waits. Its key begins where the entry before it ends. No more bytes than
/// [`BATCH_LEN_MAX`] and an entry wait, so 32 bits suffice.
struct Waits {
    trailer: Trailer,
    key_end: u32,
    end: u32,
    /// Which of the wanted values is its; [`NONE`]: it has its own, or its pointer stays.
    value: u32,
}

/// No value is wanted for an entry.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Wanted {
    pointer: Pointer,
    at: usize,
}

/// A value out of a file that is emptied.
pub(super) struct Moved<'a> {
    pub(super) value: &'a [u8],
    pub(super) raw_len: u32,
}

impl Waiting {
    /// Takes an entry, if its value lies in a file that `recipe` empties or others wait before it.
    /// `lengths` are those of the emptied files.
    ///
    /// # Errors
    /// Corruption where a pointer is none or leads beyond its file.
    #[inline]
    pub(super) fn take(
        &mut self,
        entry: &Entry<'_>,
        recipe: &Recipe,
        lengths: &BTreeMap<FileId, u64>,
    ) -> Result<bool> {
        if recipe.emptied.is_empty() {
            return Ok(false);
        }
        let pointer = moved_pointer(entry, recipe)?;
        if self.entries.is_empty() && pointer.is_none() {
            return Ok(false);
        }
        if let Some(pointer) = &pointer {
            check_end(pointer, lengths)?;
        }
        self.bytes.extend_from_slice(entry.key);
        let key_end = self.bytes.len() as u32;
        self.bytes.extend_from_slice(entry.value);
        let value = pointer.map_or(NONE, |pointer| self.want(pointer));
        let end = self.bytes.len() as u32;
        self.entries.push(Waits { trailer: entry.trailer, key_end, end, value });
        Ok(true)
    }

    fn want(&mut self, pointer: Pointer) -> u32 {
        self.wanted.push(Wanted { pointer, at: self.wanted_len as usize });
        self.wanted_len += u64::from(pointer.len);
        self.wanted.len() as u32 - 1
    }

    /// Whether enough wait that their values are to be read.
    pub(super) fn is_full(&self, recipe: &Recipe) -> bool {
        let len = batch_len(recipe);
        let entries = self.bytes.len() + self.entries.len() * size_of::<Waits>();
        self.wanted_len >= len || entries as u64 >= len
    }

    /// Reads what is wanted.
    ///
    /// # Errors
    /// What the source reports; corruption where a value is not the one of its pointer.
    pub(super) async fn read(
        &mut self,
        source: &impl FileSource,
        sink: &mut impl FileSink,
        stats: &mut JobStats,
    ) -> Result<()> {
        let len = self.wanted_len as usize;
        if self.values.capacity() < len {
            self.values = sink.buffer(len);
        }
        self.values.pad_to(len);
        self.wanted.sort_unstable_by_key(|wanted| (wanted.pointer.file, wanted.pointer.offset));
        let mut left = &self.wanted[..];
        while !left.is_empty() {
            let spans = Spans::of(left);
            stats.bytes_read += spans.len;
            let read = source.read_many(&spans.ranges).await;
            for (range, bytes) in spans.ranges.iter().zip(read) {
                let bytes = noted(source, range.file, bytes)?;
                let (here, behind) = left.split_at(count_within(left, range));
                copy(here, range, &bytes, &mut self.values)
                    .or_else(|error| noted(source, range.file, Err(error)))?;
                left = behind;
            }
        }
        // As entries name them.
        self.wanted.sort_unstable_by_key(|wanted| wanted.at);
        Ok(())
    }

    /// The entries, each with the value that it leads to if it is one that moves: what was wanted
    /// is read.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Entry<'_>, Option<Moved<'_>>)> {
        let mut start = 0;
        self.entries.iter().map(move |waits| {
            let (key_end, end) = (waits.key_end as usize, waits.end as usize);
            let (key, value) = (&self.bytes[start..key_end], &self.bytes[key_end..end]);
            start = end;
            let wanted = (waits.value != NONE).then(|| &self.wanted[waits.value as usize]);
            let entry = Entry { key, trailer: waits.trailer, value };
            (entry, wanted.map(|wanted| self.moved(wanted)))
        })
    }

    fn moved(&self, wanted: &Wanted) -> Moved<'_> {
        let Pointer { len, raw_len, .. } = wanted.pointer;
        Moved { value: &self.values[wanted.at..wanted.at + len as usize], raw_len }
    }

    /// Nothing waits any more; memory is kept for the next.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.wanted.clear();
        self.wanted_len = 0;
    }
}

/// Bytes of values, and of entries, that wait at most.
fn batch_len(recipe: &Recipe) -> u64 {
    recipe.output_len.saturating_mul(BATCH_OUTPUTS).min(BATCH_LEN_MAX)
}

/// The pointer of an entry into a file that is emptied.
fn moved_pointer(entry: &Entry<'_>, recipe: &Recipe) -> Result<Option<Pointer>> {
    if !matches!(entry.trailer.kind(), EntryKind::Pointer | EntryKind::ExpiringPointer) {
        return Ok(None);
    }
    let (pointer, _) = Pointer::of_entry(entry.trailer, entry.value)?;
    Ok(recipe.emptied.binary_search(&pointer.file).is_ok().then_some(pointer))
}

fn check_end(pointer: &Pointer, lengths: &BTreeMap<FileId, u64>) -> Result<()> {
    let (file, from) = (pointer.file, u64::from(pointer.offset));
    let end = from + u64::from(pointer.len);
    match lengths.get(&file) {
        Some(file_len) if end > *file_len => Err(Error::corruption(format!(
            "a pointer leads to bytes {from} to {end} of {file}, which has {file_len}"
        ))),
        _ => Ok(()),
    }
}

/// Ranges that are read at once, with the values that are wanted next.
struct Spans {
    ranges: Vec<FileRange>,
    len: u64,
}

impl Spans {
    /// Of values that ascend by file and offset, as many as are read at once.
    fn of(wanted: &[Wanted]) -> Self {
        let mut spans = Self { ranges: Vec::new(), len: 0 };
        for Wanted { pointer, .. } in wanted {
            let next = pointer.range();
            let end = next.offset + next.len as u64;
            let is_full = spans.len >= SPANS_LEN_MAX || spans.ranges.len() == SPANS_MAX;
            match spans.ranges.last_mut().filter(|last| is_near(last, &next)) {
                Some(last) => {
                    // Two keys may lead to one value.
                    let grown = end.saturating_sub(last.offset + last.len as u64);
                    last.len += grown as usize;
                    spans.len += grown;
                }
                None if is_full => break,
                None => {
                    spans.len += next.len as u64;
                    spans.ranges.push(next);
                }
            }
        }
        spans
    }
}

/// Whether a range that begins no earlier is read together with one.
fn is_near(range: &FileRange, next: &FileRange) -> bool {
    let end = range.offset + range.len as u64;
    range.file == next.file
        && next.offset <= end + GAP_LEN_MAX
        && next.offset + next.len as u64 <= range.offset + SPAN_LEN_MAX.max(range.len as u64)
}

/// How many of the values that ascend lie within `range`, from the first on.
fn count_within(wanted: &[Wanted], range: &FileRange) -> usize {
    let end = range.offset + range.len as u64;
    let is_within = |wanted: &Wanted| {
        let pointer = &wanted.pointer;
        pointer.file == range.file && u64::from(pointer.offset) + u64::from(pointer.len) <= end
    };
    wanted.iter().take_while(|wanted| is_within(wanted)).count()
}

/// Copies values out of the bytes of `range` to their places.
fn copy(wanted: &[Wanted], range: &FileRange, bytes: &Bytes, values: &mut [u8]) -> Result<()> {
    for Wanted { pointer, at } in wanted {
        let (from, len) =
            ((u64::from(pointer.offset) - range.offset) as usize, pointer.len as usize);
        let value = bytes.get(from..from + len).ok_or_else(|| {
            Error::corruption(format!(
                "{} at {}: {} bytes instead of {}",
                range.file,
                range.offset,
                bytes.len(),
                range.len
            ))
        })?;
        pointer.check(value)?;
        values[*at..*at + len].copy_from_slice(value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use gabion_base::ShardId;

    const SEGMENT: FileId = FileId::log_segment(ShardId(0), 1);

    fn wanted(file: FileId, offset: u64, len: u64) -> Wanted {
        let (offset, len) = (offset as u32, len as u32);
        Wanted { pointer: Pointer { file, offset, len, raw_len: len, crc: 0 }, at: 0 }
    }

    /// Ranges that are read for values of these offsets and lengths, and how many values each has.
    fn spans(values: &[(u64, u64)]) -> Vec<(u64, u64, usize)> {
        let wanted: Vec<_> = values.iter().map(|&(at, len)| wanted(SEGMENT, at, len)).collect();
        let (mut left, mut told) = (&wanted[..], Vec::new());
        while !left.is_empty() {
            let spans = Spans::of(left);
            assert_eq!(spans.len, spans.ranges.iter().map(|range| range.len as u64).sum::<u64>());
            for range in &spans.ranges {
                let count = count_within(left, range);
                told.push((range.offset, range.len as u64, count));
                left = &left[count..];
            }
        }
        told
    }

    #[test]
    fn values_near_one_another_are_read_together() {
        let far = 100 + GAP_LEN_MAX;
        assert_eq!(spans(&[(0, 100), (far, 50)]), [(0, far + 50, 2)]);
        assert_eq!(spans(&[(0, 100), (far + 1, 50)]), [(0, 100, 1), (far + 1, 50, 1)]);
        // Two keys that lead to one value, and pointers that lie.
        assert_eq!(spans(&[(0, 100), (0, 100), (10, 20), (50, 100)]), [(0, 150, 4)]);
        // A value is never cut, and a read is no longer than it must be.
        assert_eq!(spans(&[(0, MIB), (10, 20), (MIB, 10)]), [(0, MIB, 2), (MIB, 10, 1)]);
        let dense: Vec<_> = (0..1024).map(|n| (n * KIB, KIB)).collect();
        let of_dense = [0, 1, 2, 3].map(|n| (n * SPAN_LEN_MAX, SPAN_LEN_MAX, 256));
        assert_eq!(spans(&dense), of_dense);
    }

    #[test]
    fn files_are_read_apart_and_no_more_at_once_than_memory_is_for() {
        let two = [wanted(SEGMENT, 0, 10), wanted(FileId::log_segment(ShardId(0), 2), 10, 10)];
        assert_eq!(Spans::of(&two).ranges.len(), 2);
        let long: Vec<_> = (0..20).map(|n| wanted(SEGMENT, n * MIB, MIB)).collect();
        assert_eq!(Spans::of(&long).len, SPANS_LEN_MAX);
        let longest = vec![wanted(SEGMENT, 0, 4 * SPANS_LEN_MAX), long[19]];
        assert_eq!(Spans::of(&longest).ranges.len(), 1);
        let sparse: Vec<_> = (0..300).map(|n| wanted(SEGMENT, n * 16 * KIB, 10)).collect();
        assert_eq!(Spans::of(&sparse).ranges.len(), SPANS_MAX);
    }
}
