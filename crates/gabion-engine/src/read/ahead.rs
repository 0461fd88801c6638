//! Values of other files, several at once: those that lie near each other in one read, all reads
//! under way together.

use super::tables::{COPIED_LEN_MAX, Tables};
use crate::cache::ReadCache;
use crate::file::{FileRange, FileSource};
use crate::pointer::Pointer;
use crate::runs::runs;
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

impl<S: FileSource, C: ReadCache> Tables<S, C> {
    /// The values that pointers lead to, in their order, read from the device at once. They go to
    /// the cache too.
    pub(super) async fn read_values(&self, pointers: &[Pointer]) -> Vec<Result<Bytes>> {
        let mut order: Vec<usize> = (0..pointers.len()).collect();
        order.sort_unstable_by_key(|&at| (pointers[at].file, pointers[at].offset));
        // Long ones keep the memory that they were read into.
        let sorted = order.iter().map(|&at| &pointers[at]);
        let runs = runs(sorted, GAP_MAX, COPIED_LEN_MAX);
        let ranges: Vec<FileRange> = runs.iter().map(|run| run.range).collect();
        let read = self.source.read_many(&ranges).await;
        assert_eq!(read.len(), ranges.len(), "each range is read once");
        let mut values: Vec<Result<Bytes>> = Vec::new();
        values.resize_with(pointers.len(), || Err(Error::io("a value was not read")));
        let mut places = order.into_iter();
        for (run, read) in runs.iter().zip(read) {
            for at in places.by_ref().take(run.count) {
                let pointer = &pointers[at];
                values[at] = match &read {
                    // Another of several values may be to blame.
                    Err(_) if run.count > 1 => self.read_value(pointer).await,
                    Err(error) => self.keep_value(pointer, Err(error.clone())),
                    Ok(read) => self.keep_value(pointer, Ok(run.part(read, pointer))),
                };
            }
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::values_file;

    fn at(file: u64, offset: u32, len: u32) -> Pointer {
        Pointer { file: values_file(file), offset, len, raw_len: len, crc: 0 }
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
