//! What one edit names: several moves at once, and no more than it can hold. A job whose edit would be too long is not
//! picked, as long as there is another; then it is, with files that are longer, and so fewer, and if that does not do
//! either, with fewer cuts: each costs a key and a file, however long files are.

use super::{Pick, Picker, bounds};
use crate::config::GRANDPARENT_OVERLAP_FILES;
use crate::edit::Edit;
use crate::file::FileMeta;
use crate::job::{FILE_PER_BOUND, OUTPUT_LEN_MOST};
use crate::recipe::{JobKind, RECIPE_ITEMS_MAX, file_id_len};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::iter::successors;
use gabion_base::units::{CHUNK_LEN, EDIT_KEY_BOUND_LEN_MAX, EDIT_LEN_MAX};

/// Files that are moved by one edit, at most: a level that is ten times too full is so after a few.
const MOVES_MAX: usize = 64;
/// What the edit of moves may have of bounds that are longer than usual.
const LONG_BOUNDS_LEN_MAX: u64 = EDIT_LEN_MAX as u64 / 2;
/// What an edit takes besides its files, cuts and snapshots.
const EDIT_OVERHEAD: u64 = 4096;
/// What the recipe takes for each cut, a bound of a file.
const CUT_LEN: u64 = EDIT_KEY_BOUND_LEN_MAX as u64 + 4;

impl Picker<'_> {
    /// Whether a file may go down to `level` as it is: nothing is in its way there, it overlaps no more of the level
    /// below than a job would be cut for, and it need not be written anew.
    pub(super) fn is_movable(&self, level: u8, file: &Arc<FileMeta>) -> bool {
        let overlapping = |level| self.version.overlapping(level, &file.smallest, &file.largest);
        let below: u64 = overlapping(level + 1).iter().map(|file| file.len).sum();
        overlapping(level).is_empty()
            && below <= GRANDPARENT_OVERLAP_FILES * self.config.sst_len
            && !self.is_to_be_packed(level, file)
    }

    /// The move, one level down, of the first of `files`, which are disjoint and ascend by key, and of those behind it
    /// up to the first that cannot be moved, or to one that no more than `len_over` bytes come before: in one edit,
    /// since each takes its way through the log and the jobs behind it wait; fewer where their bounds are long. None if
    /// the first cannot be moved.
    pub(super) fn pick_moves(
        &self,
        level: u8,
        files: &[Arc<FileMeta>],
        len_over: u64,
    ) -> Option<Pick> {
        let output_level = self.below(level);
        let (mut len, mut bounds_len) = (0, 0);
        let goes = |file: &&Arc<FileMeta>| {
            bounds_len += long_bounds_len(file);
            let goes = len <= len_over
                && bounds_len <= LONG_BOUNDS_LEN_MAX
                && !self.is_busy(file)
                && self.is_movable(output_level, file);
            len = len.saturating_add(self.weight(level, file));
            goes
        };
        let moved: Vec<_> = files.iter().take(MOVES_MAX).take_while(goes).cloned().collect();
        let (smallest, largest) = bounds(&moved)?;
        Some(Pick {
            kind: JobKind::TrivialMove,
            output_level,
            output_len: self.config.sst_len,
            cuts: Vec::new(),
            bottommost: !self.version.overlaps_from(output_level + 1, smallest, largest),
            inputs: moved.into_iter().map(|file| (level, file)).collect(),
        })
    }

    /// How long the outputs of a job are to be at most that merges `files` into `usual_len` bytes, so that its edit
    /// holds all that it has to name: as long as files usually are, or, where `longer`, twice that, four times, and so
    /// on. Where no such length will do, every second of `cuts` goes, again and again: without them outputs overlap more
    /// of the level below, and are merged with more of it. None if the edit would be too long without any: were the
    /// files merged, nobody could be told.
    ///
    /// What is merged may pack worse than is reckoned here. Then files become longer as they are written
    /// (`job::outputs`), so an edit that does not fit is not made.
    pub(super) fn output_len<'f>(
        &self,
        files: impl Iterator<Item = &'f Arc<FileMeta>>,
        usual_len: u64,
        cuts: &mut Vec<Vec<u8>>,
    ) -> Option<u64> {
        let inputs = Named::of(files);
        loop {
            let found = self.length_with(&inputs, usual_len, cuts.len() as u64);
            if found.is_some() {
                return found;
            }
            if !self.longer || cuts.is_empty() {
                self.edit_too_long.set(true);
                return None;
            }
            thin_out(cuts);
        }
    }

    /// The least length of outputs at which an edit holds all that a job with so many cuts has to name.
    fn length_with(&self, inputs: &Named, usual_len: u64, cuts: u64) -> Option<u64> {
        let besides = EDIT_OVERHEAD + self.snapshots as u64 * 8 + cuts * CUT_LEN;
        let usual = self.config.sst_len;
        let longest = if self.longer { OUTPUT_LEN_MOST.max(usual) } else { usual };
        let next = |len: &u64| (*len < longest).then(|| (2 * *len).min(longest));
        let holds = |len: &u64| {
            let len = inputs.edit_len(usual_len, *len, cuts);
            len.saturating_add(besides) <= EDIT_LEN_MAX as u64 / 8 * 7
        };
        let is_named = inputs.count.max(cuts) <= RECIPE_ITEMS_MAX as u64;
        successors(Some(usual), next).find(holds).filter(|_| is_named)
    }
}

/// What the edit of a job takes for the files that it reads, and what these took themselves.
#[derive(Default)]
struct Named {
    count: u64,
    /// A level and a file id each, in the edit and in its recipe.
    removed_len: u64,
    /// Descriptions with tag and level, but for checksums of chunks and what is long of bounds.
    described_len: u64,
    /// Bytes of the longest two bounds of a file, where they are longer than usual, and of all such files.
    long_most: u64,
    long_files_len: u64,
    /// Bytes of the first and the last key of all.
    hull_len: u64,
}

impl Named {
    fn of<'f>(files: impl Iterator<Item = &'f Arc<FileMeta>>) -> Self {
        let mut all = Self::default();
        let mut hull: Option<(&[u8], &[u8])> = None;
        for file in files {
            let long_len = long_bounds_len(file);
            // In a field of its own besides what is cut.
            let in_full = if long_len > 0 { file.smallest.len() + file.largest.len() } else { 0 };
            let crcs_len = file.chunk_crcs.len() * size_of::<u32>();
            let len = file.encoded_len().saturating_sub(crcs_len + in_full);
            all.count += 1;
            all.removed_len += 2 * (1 + file_id_len(file.id) as u64);
            all.described_len += (len + Edit::ADDED_OVERHEAD_LEN) as u64;
            all.long_most = all.long_most.max(in_full as u64);
            all.long_files_len += if long_len > 0 { file.len } else { 0 };
            let (smallest, largest) = (&file.smallest[..], &file.largest[..]);
            hull =
                Some(hull.map_or((smallest, largest), |hull| {
                    (hull.0.min(smallest), hull.1.max(largest))
                }));
        }
        all.hull_len = hull.map_or(0, |(first, last)| (first.len() + last.len()) as u64);
        all
    }

    /// What of the edit is for files, if they come to `usual_len` bytes in outputs of `output_len`.
    fn edit_len(&self, usual_len: u64, output_len: u64, cuts: u64) -> u64 {
        let full = usual_len / output_len;
        // An eighth for those that are not full.
        let outputs = full.saturating_add(full / 8 + 2).saturating_add(cuts);
        let each = self.described_len / self.count.max(1) + size_of::<u32>() as u64;
        let crcs_len = (usual_len / CHUNK_LEN).saturating_mul(size_of::<u32>() as u64);
        // As long as those of the inputs, and between the same keys; each has its price, but for the ends.
        let parted = self.long_files_len.div_ceil(output_len).saturating_mul(self.long_most);
        let bounds_len = parted.min(self.long_files_len / FILE_PER_BOUND);
        let bounds_len = bounds_len.saturating_add(self.hull_len);
        each.saturating_mul(outputs)
            .saturating_add(crcs_len)
            .saturating_add(bounds_len)
            .saturating_add(self.removed_len)
    }
}

/// Bytes of a file's bounds over the usual most.
fn long_bounds_len(file: &FileMeta) -> u64 {
    let over = |bound: &[u8]| bound.len().saturating_sub(EDIT_KEY_BOUND_LEN_MAX) as u64;
    over(&file.smallest) + over(&file.largest)
}

/// Leaves every second of a job's cuts, so that about two pieces each become one.
fn thin_out(cuts: &mut Vec<Vec<u8>>) {
    let mut is_kept = true;
    cuts.retain(|_| {
        is_kept = !is_kept;
        is_kept
    });
}

#[cfg(test)]
mod tests;
