//! The order of L0's files, and which of them are one run.

use crate::file::FileMeta;
use core::cmp::Ordering;

/// The order of L0. Sequence numbers rise from flush to flush, and a load comes between two; files
/// of one load, which all have its number, ascend by key.
pub(crate) fn newest_first(a: &FileMeta, b: &FileMeta) -> Ordering {
    let by_age = b.largest_sequence.cmp(&a.largest_sequence);
    by_age.then_with(|| (&a.smallest, a.id).cmp(&(&b.smallest, b.id)))
}

/// Whether a file of L0 goes on with the run of the one before it in that order. No two flushes or
/// loads have a sequence number in common, and files of one of them do not overlap; that is looked
/// at all the same, as readers go by it.
pub(crate) fn is_of_run(before: &FileMeta, file: &FileMeta) -> bool {
    before.largest_sequence == file.largest_sequence && before.largest < file.smallest
}
