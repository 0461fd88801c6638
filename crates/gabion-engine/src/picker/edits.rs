//! What one edit may name: a job whose edit would be too long is not picked.

use super::Picker;
use crate::file::FileMeta;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::units::{EDIT_KEY_BOUND_LEN_MAX, EDIT_LEN_MAX};

/// Files of which no edit comes near its limit.
const FILES_SURE: usize = 64;
/// What an edit takes besides its files and cuts.
const EDIT_OVERHEAD: usize = 4096;
/// What the edit and its recipe take for each file that a job reads: a level and a number each.
const INPUT_LEN: usize = 2 * 10;
/// What the recipe takes for each cut, a bound of a file.
const CUT_LEN: usize = EDIT_KEY_BOUND_LEN_MAX + 4;

impl Picker<'_> {
    /// Whether the edit of a job that merges `files` into `output_len` bytes will hold all that it has to name. A file
    /// of L0 that spans a level of thousands of files waits until that level has fewer: were it merged, nobody could be
    /// told.
    pub(super) fn edit_holds<'f>(
        &self,
        files: impl Iterator<Item = &'f Arc<FileMeta>> + Clone,
        output_len: u64,
        cuts: usize,
    ) -> bool {
        let inputs = files.clone().count();
        if inputs + cuts <= FILES_SURE {
            return true;
        }
        let mut described = Vec::new();
        files.for_each(|file| file.encode(&mut described));
        let by_len = usize::try_from(output_len / self.config.sst_len).unwrap_or(usize::MAX);
        let outputs = inputs.max(by_len.saturating_add(1)).saturating_add(cuts);
        // As long as those of the inputs, on average, with tag and level.
        let each = described.len() / inputs.max(1) + 9;
        let len = each.saturating_mul(outputs) + inputs * INPUT_LEN + cuts * CUT_LEN;
        // An eighth for what the outputs' descriptions have besides.
        len.saturating_add(EDIT_OVERHEAD) <= EDIT_LEN_MAX / 8 * 7
    }
}
