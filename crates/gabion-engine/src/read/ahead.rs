//! Values of other files, several at once: those that lie near each other in one read, all reads
//! under way together.

use super::tables::{COPIED_LEN_MAX, Tables};
use crate::cache::ReadCache;
use crate::file::{FileRange, FileSource};
use crate::pointer::Pointer;
use alloc::vec::Vec;
use gabion_base::units::{BLOCK_LEN, MIB};
use gabion_base::{Error, Result};
use gabion_media::Bytes;

/// Values that an iterator reads at once, at most, and bytes of them: what it takes of memory
/// besides its blocks. A longer value is read by itself.
pub(super) const AHEAD_MAX: usize = 64;
/// See [`AHEAD_MAX`].
pub(super) const AHEAD_LEN_MAX: usize = MIB as usize;
/// Entries that an iterator passes on its look for further values, at most: nobody may want them.
pub(super) const AHEAD_STEPS_MAX: u64 = 1024;

/// Values between which no more lies are read together: a read has whole blocks of the device.
const GAP_MAX: u64 = BLOCK_LEN as u64;
/// Bytes of such a read.
const RUN_LEN_MAX: u64 = 256 * 1024;

/// How many of the first `pointers` have `count_max` values and `len_max` bytes at most, packed or
/// unpacked, as both are in memory; one at least.
pub(super) fn wave_of_values(pointers: &[Pointer], count_max: usize, len_max: usize) -> usize {
    let mut len = 0;
    let fits = |pointer: &&Pointer| {
        len += pointer.len.max(pointer.raw_len) as usize;
        len <= len_max
    };
    pointers.iter().take(count_max).take_while(fits).count().max(1)
}

/// A read of several values.
struct Run {
    range: FileRange,
    /// How many values.
    count: usize,
}

/// The reads of values in the order of their places. Long ones are read by themselves, as they
/// keep the memory that they were read into.
fn runs(pointers: &[&Pointer]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut is_long_before = true;
    for pointer in pointers {
        let FileRange { file, offset, len } = pointer.range();
        let (end, is_long) = (offset + len as u64, len > COPIED_LEN_MAX);
        let near = |run: &&mut Run| {
            let run_end = run.range.offset + run.range.len as u64;
            let is_near = run.range.file == file && offset <= run_end.saturating_add(GAP_MAX);
            is_near && !is_long && !is_long_before && end - run.range.offset <= RUN_LEN_MAX
        };
        match runs.last_mut().filter(near) {
            Some(run) => {
                run.range.len = run.range.len.max((end - run.range.offset) as usize);
                run.count += 1;
            }
            None => runs.push(Run { range: pointer.range(), count: 1 }),
        }
        is_long_before = is_long;
    }
    runs
}

impl<S: FileSource, C: ReadCache> Tables<S, C> {
    /// The values that pointers lead to, in their order, read from the device at once. They go to
    /// the cache too.
    pub(super) async fn read_values(&self, pointers: &[Pointer]) -> Vec<Result<Bytes>> {
        let mut order: Vec<usize> = (0..pointers.len()).collect();
        order.sort_unstable_by_key(|&at| (pointers[at].file, pointers[at].offset));
        let sorted: Vec<&Pointer> = order.iter().map(|&at| &pointers[at]).collect();
        let runs = runs(&sorted);
        let ranges: Vec<FileRange> = runs.iter().map(|run| run.range).collect();
        let read = self.source.read_many(&ranges).await;
        assert_eq!(read.len(), ranges.len(), "each range is read once");
        let mut values: Vec<Result<Bytes>> = Vec::new();
        values.resize_with(pointers.len(), || Err(Error::io("a value was not read")));
        let mut places = order.into_iter();
        for (Run { range, count }, read) in runs.iter().zip(read) {
            for at in places.by_ref().take(*count) {
                let pointer = &pointers[at];
                values[at] = match &read {
                    // Another of several values may be to blame.
                    Err(_) if *count > 1 => self.read_value(pointer).await,
                    read => self.keep_value(pointer, part(read, range, pointer)),
                };
            }
        }
        values
    }
}

/// The bytes of a value in those of its read. Of too few the checksum tells.
fn part(read: &Result<Bytes>, range: &FileRange, pointer: &Pointer) -> Result<Bytes> {
    let bytes = read.as_ref().map_err(Clone::clone)?;
    let from = (u64::from(pointer.offset) - range.offset) as usize;
    let end = (from + pointer.len as usize).min(bytes.len());
    Ok(bytes.slice(from.min(end)..end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::values_file;

    fn at(file: u64, offset: u32, len: u32) -> Pointer {
        Pointer { file: values_file(file), offset, len, raw_len: len, crc: 0 }
    }

    fn said(pointers: &[Pointer]) -> Vec<(u64, u64, usize, usize)> {
        let pointers: Vec<_> = pointers.iter().collect();
        let said = |run: &Run| (run.range.file.number, run.range.offset, run.range.len, run.count);
        runs(&pointers).iter().map(said).collect()
    }

    #[test]
    fn values_near_each_other_are_one_read_and_long_ones_one_each() {
        let gap = GAP_MAX as u32;
        let near = [at(1, 64, 100), at(1, 164 + gap, 100), at(1, 264 + gap, 50)];
        assert_eq!(said(&near), [(1, 64, 250 + gap as usize, 3)]);
        let far = [at(1, 64, 100), at(1, 165 + gap, 100), at(2, 264 + gap, 50)];
        assert_eq!(said(&far).len(), 3);
        let long = COPIED_LEN_MAX as u32 + 1;
        let beside = [at(1, 64, 100), at(1, 164, long), at(1, 164 + long, 100)];
        assert_eq!(said(&beside).len(), 3);
        let many: Vec<_> = (0..100).map(|n| at(1, n * 10_000, 10_000)).collect();
        let said = said(&many);
        assert!(said.iter().all(|(_, _, len, _)| *len as u64 <= RUN_LEN_MAX), "{said:?}");
        assert_eq!(said.len(), 4);
    }

    #[test]
    fn a_wave_keeps_to_both_limits_and_has_one_value_at_least() {
        let many: Vec<_> = (0..10).map(|n| at(1, n * 1000, 1000)).collect();
        assert_eq!(wave_of_values(&many, 100, 1_000_000), 10);
        assert_eq!(wave_of_values(&many, 3, 1_000_000), 3);
        assert_eq!(wave_of_values(&many, 100, 2_999), 2);
        assert_eq!(wave_of_values(&many, 100, 10), 1);
        let packed = |pointer: &Pointer| Pointer { raw_len: 50_000, ..*pointer };
        let packed: Vec<_> = many.iter().map(packed).collect();
        assert_eq!(
            wave_of_values(&packed, 100, 149_999),
            2,
            "they are unpacked when they are here"
        );
    }
}
