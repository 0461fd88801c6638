//! Entries whose values a compaction copies out of the files that it empties. The values lie there
//! in the order in which they were written, and are needed in that of keys; so entries wait until
//! theirs come to [`batch_len`] bytes, which are then read in the order in which they lie, near
//! ones together.
//!
//! ```text
//!   merge ─► [entries that wait, by key] ───────────────► placed, written, by key
//!                 │ pointers, by file and offset            ▲
//!                 └─► [runs of values] ─► read at once ─► [values]
//! ```
//!
//! One read for each value takes more time than all else that a compaction does. An entry that
//! needs no value waits only behind others that do.

use super::JobStats;
use crate::entry::{Entry, EntryKind, Trailer};
use crate::file::{FileRange, FileSink, FileSource, noted};
use crate::pointer::Pointer;
use crate::recipe::Recipe;
use crate::runs::{Run, runs};
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
/// Bytes of all reads that are under way at once, or one.
const READS_LEN_MAX: u64 = 8 * MIB;
/// And their number: readers wait behind them.
const READS_MAX: usize = 128;

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
    /// Those of the source; corruption where a value is not the one of its pointer.
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
        let runs = runs(self.wanted.iter().map(|it| &it.pointer), GAP_LEN_MAX, usize::MAX);
        let (mut runs, mut left) = (&runs[..], &self.wanted[..]);
        while !runs.is_empty() {
            let (wave, behind) = runs.split_at(wave_of_reads(runs));
            let ranges: Vec<FileRange> = wave.iter().map(|run| run.range).collect();
            let read = source.read_many(&ranges).await;
            for (run, read) in wave.iter().zip(read) {
                stats.bytes_read += run.range.len as u64;
                let (here, rest) = left.split_at(run.count);
                copy(here, run, read, source, &mut self.values).await?;
                left = rest;
            }
            runs = behind;
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

/// How many of the first reads are under way at once: one at least.
fn wave_of_reads(runs: &[Run]) -> usize {
    let mut len = 0;
    let fits = |run: &&Run| {
        len += run.range.len as u64;
        len <= READS_LEN_MAX
    };
    runs.iter().take(READS_MAX).take_while(fits).count().max(1)
}

/// Copies the values of a read to their places.
async fn copy(
    wanted: &[Wanted],
    run: &Run,
    read: Result<Bytes>,
    source: &impl FileSource,
    values: &mut [u8],
) -> Result<()> {
    for Wanted { pointer, at } in wanted {
        let value = match &read {
            Ok(bytes) => Ok(run.part(bytes, pointer)),
            // The bytes between values may be to blame, which nobody wants.
            Err(_) if run.count > 1 => {
                let FileRange { file, offset, len } = pointer.range();
                source.read(file, offset, len).await
            }
            Err(error) => Err(error.clone()),
        };
        let value = noted(source, pointer.file, value)?;
        noted(source, pointer.file, pointer.check(&value))?;
        values[*at..*at + value.len()].copy_from_slice(&value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::ShardId;

    #[test]
    fn no_more_is_read_at_once_than_memory_is_for_and_readers_wait_for() {
        let file = FileId::log_segment(ShardId(0), 1);
        let wave = |count: u64, len: usize| {
            let range = |n| FileRange { file, offset: n * MIB, len };
            let runs: Vec<Run> = (0..count).map(|n| Run { range: range(n), count: 1 }).collect();
            wave_of_reads(&runs)
        };
        assert_eq!(wave(20, MIB as usize), 8);
        assert_eq!(wave(2, 4 * READS_LEN_MAX as usize), 1);
        assert_eq!(wave(300, 10), READS_MAX);
    }
}
