//! Values of other files that are read together: those that lie near each other in one read.

use crate::file::FileRange;
use crate::pointer::Pointer;
use alloc::vec::Vec;
use gabion_base::units::KIB;
use gabion_media::Bytes;

/// Bytes of a read of several values, at most.
const RUN_LEN_MAX: u64 = 256 * KIB;

/// A read of several values.
pub(crate) struct Run {
    pub(crate) range: FileRange,
    /// How many values.
    pub(crate) count: usize,
}

/// The reads of values, given in the order of their places. Two are read together if no more than
/// `gap_max` bytes lie between them; those of more than `len_max` bytes are read by themselves.
pub(crate) fn runs<'p>(
    pointers: impl IntoIterator<Item = &'p Pointer>,
    gap_max: u64,
    len_max: usize,
) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut is_long_before = true;
    for pointer in pointers {
        let FileRange { file, offset, len } = pointer.range();
        let (end, is_long) = (offset + len as u64, len > len_max);
        let near = |run: &&mut Run| {
            let run_end = run.range.offset + run.range.len as u64;
            let is_near = run.range.file == file && offset <= run_end.saturating_add(gap_max);
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

impl Run {
    /// The bytes of a value in those of its read. Of too few the checksum tells.
    pub(crate) fn part(&self, read: &Bytes, pointer: &Pointer) -> Bytes {
        let from = (u64::from(pointer.offset) - self.range.offset) as usize;
        let end = (from + pointer.len as usize).min(read.len());
        read.slice(from.min(end)..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::values_file;

    const GAP: u32 = 4096;
    const LONG: u32 = 16 * 1024;

    fn at(file: u64, offset: u32, len: u32) -> Pointer {
        Pointer { file: values_file(file), offset, len, raw_len: len, crc: 0 }
    }

    fn said(pointers: &[Pointer]) -> Vec<(u64, u64, usize, usize)> {
        let said = |run: &Run| (run.range.file.number, run.range.offset, run.range.len, run.count);
        runs(pointers, GAP.into(), LONG as usize).iter().map(said).collect()
    }

    #[test]
    fn values_near_each_other_are_one_read_and_long_ones_one_each() {
        let near = [at(1, 64, 100), at(1, 164 + GAP, 100), at(1, 264 + GAP, 50)];
        assert_eq!(said(&near), [(1, 64, 250 + GAP as usize, 3)]);
        let far = [at(1, 64, 100), at(1, 165 + GAP, 100), at(2, 264 + GAP, 50)];
        assert_eq!(said(&far).len(), 3);
        let long = LONG + 1;
        let beside = [at(1, 64, 100), at(1, 164, long), at(1, 164 + long, 100)];
        assert_eq!(said(&beside).len(), 3);
        let many: Vec<_> = (0..100).map(|n| at(1, n * 10_000, 10_000)).collect();
        let said_many = said(&many);
        assert!(said_many.iter().all(|(_, _, len, _)| *len as u64 <= RUN_LEN_MAX), "{said_many:?}");
        assert_eq!(said_many.len(), 4);
        // Two keys that lead to one value, and pointers that lie.
        let odd = [at(1, 0, 100), at(1, 0, 100), at(1, 10, 20), at(1, 50, 100)];
        assert_eq!(said(&odd), [(1, 0, 150, 4)]);
    }
}
