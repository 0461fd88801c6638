//! What a job may write and its edit name: no more than there are slots for, and no more than an
//! edit can hold. A job whose edit would be too long is not picked, as long as there is another.
//! Then it is, with files that are longer, and so fewer. If that does not do either, it has fewer
//! cuts: each costs a key and a file, however long files are.

use super::pick::{NoPick, OutputLen};
use super::shape::Picker;
use crate::config::GRANDPARENT_OVERLAP_FILES;
use crate::edit::Edit;
use crate::file::{FileMeta, lower_bound_of};
use crate::job::{FILE_PER_BOUND, OUTPUT_LEN_MOST, Outgoing};
use crate::recipe::{RECIPE_ITEMS_MAX, file_id_len};
use crate::sst::Compression;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::iter::successors;
use gabion_base::units::{CHUNK_LEN, EDIT_KEY_BOUND_LEN_MAX, EDIT_LEN_MAX};

/// What an edit takes besides its files and cuts.
const EDIT_OVERHEAD: u64 = 4096;
/// What the recipe takes for each cut, a bound of a file.
const CUT_LEN: u64 = EDIT_KEY_BOUND_LEN_MAX as u64 + 4;

impl Picker<'_> {
    /// How long the outputs are to be of a job that writes `files` anew with `codec`, if there are
    /// slots for it and its edit can name all that it has to: perhaps with fewer `cuts`.
    pub(super) fn fits<'f>(
        &self,
        files: impl IntoIterator<Item = &'f Arc<FileMeta>, IntoIter: Clone>,
        codec: Compression,
        cuts: &mut Vec<Vec<u8>>,
        outputs: OutputLen,
    ) -> Result<u64, NoPick> {
        let files = files.into_iter();
        let outgoing = Outgoing::of_files(files.clone().map(|file| &**file), codec);
        let has_room = |len: u64, cuts: usize| outgoing.fits(len, cuts as u64, self.room);
        if !has_room(self.config.sst_len, 0) {
            return Err(NoPick::NoRoom);
        }
        let len = self.output_len(files, outgoing.usual_len(), cuts, outputs);
        let len = len.ok_or(NoPick::EditTooLong)?;
        assert!(len >= self.config.sst_len, "files are no shorter for their edit's sake");
        if has_room(len, cuts.len()) { Ok(len) } else { Err(NoPick::NoRoom) }
    }

    /// How long the outputs of a job are to be at most that merges `files` into `usual_len` bytes,
    /// so that its edit holds all that it has to name: as long as files usually are, or, where they
    /// may be longer, twice that, four times, and so on. Where no such length will do, every second
    /// of `cuts` goes, again and again: without them outputs overlap more of the level below, and
    /// are merged with more of it. None if the edit would be too long without any: were the files
    /// merged, nobody could be told.
    ///
    /// What is merged may pack worse than is reckoned here. Then files become longer as they are
    /// written (`job::outputs`), so an edit that does not fit is not made.
    pub(super) fn output_len<'f>(
        &self,
        files: impl Iterator<Item = &'f Arc<FileMeta>>,
        usual_len: u64,
        cuts: &mut Vec<Vec<u8>>,
        outputs: OutputLen,
    ) -> Option<u64> {
        let inputs = Named::of(files);
        loop {
            let found = self.length_with(&inputs, usual_len, cuts.len() as u64, outputs);
            if found.is_some() {
                return found;
            }
            if outputs == OutputLen::Usual || cuts.is_empty() {
                return None;
            }
            thin_out(cuts);
        }
    }

    /// Where outputs at `level` must end so that none overlaps too much of the level below it.
    pub(super) fn cuts(&self, level: u8, smallest: &[u8], largest: &[u8]) -> Vec<Vec<u8>> {
        let limit = GRANDPARENT_OVERLAP_FILES * self.config.sst_len;
        let mut cuts = Vec::new();
        let mut len = 0;
        for file in self.version.overlapping(level + 1, smallest, largest) {
            if len > 0 && len + file.len > limit {
                // As short as bounds usually are, or recipes would be too long for edits.
                let cut = lower_bound_of(&file.smallest);
                if cuts.last() != Some(&cut) {
                    cuts.push(cut);
                }
                len = 0;
            }
            len += file.len;
        }
        cuts
    }

    /// The least length of outputs at which an edit holds all that a job with so many cuts has to
    /// name.
    fn length_with(
        &self,
        inputs: &Named,
        usual_len: u64,
        cuts: u64,
        outputs: OutputLen,
    ) -> Option<u64> {
        let besides = EDIT_OVERHEAD + cuts * CUT_LEN;
        let usual = self.config.sst_len;
        let longest = match outputs {
            OutputLen::Usual => usual,
            OutputLen::Longer => OUTPUT_LEN_MOST.max(usual),
        };
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
    /// Bytes of the longest two bounds of a file, where they are longer than usual, and of all such
    /// files.
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
        // As long as those of the inputs, and between the same keys; each has its price, but for
        // the ends.
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
pub(super) fn long_bounds_len(file: &FileMeta) -> u64 {
    let over = |bound: &[u8]| bound.len().saturating_sub(EDIT_KEY_BOUND_LEN_MAX) as u64;
    over(&file.smallest) + over(&file.largest)
}

/// Leaves every second of a job's cuts, so that about two pieces each become one.
fn thin_out(cuts: &mut Vec<Vec<u8>>) {
    let (before, mut is_kept) = (cuts.len(), true);
    cuts.retain(|_| {
        is_kept = !is_kept;
        is_kept
    });
    assert!(cuts.len() < before, "cuts become fewer until the edit holds them");
}

#[cfg(test)]
mod tests;
