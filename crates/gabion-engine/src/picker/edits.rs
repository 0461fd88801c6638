//! What one edit names: several moves at once, and no more than it can hold. A job whose edit would be too long is not
//! picked.

use super::{Pick, Picker, bounds};
use crate::config::GRANDPARENT_OVERLAP_FILES;
use crate::file::{FileMeta, lower_bound_of, upper_bound_of};
use crate::job::FILE_PER_BOUND;
use crate::recipe::JobKind;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::units::{EDIT_KEY_BOUND_LEN_MAX, EDIT_LEN_MAX};

/// Files that are moved by one edit, at most: a level that is ten times too full is so after a few.
const MOVES_MAX: usize = FILES_SURE;
/// Files of which no edit comes near its limit, but for bounds that are longer than usual.
const FILES_SURE: usize = 64;
/// What an edit may have of such bounds.
const LONG_BOUNDS_LEN_MAX: u64 = EDIT_LEN_MAX as u64 / 2;
/// What an edit takes besides its files and cuts.
const EDIT_OVERHEAD: usize = 4096;
/// What the edit and its recipe take for each file that a job reads: a level and a number each.
const INPUT_LEN: usize = 2 * 10;
/// What the recipe takes for each cut, a bound of a file.
const CUT_LEN: usize = EDIT_KEY_BOUND_LEN_MAX + 4;

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
            len += file.len;
            goes
        };
        let moved: Vec<_> = files.iter().take(MOVES_MAX).take_while(goes).cloned().collect();
        let (smallest, largest) = bounds(&moved)?;
        Some(Pick {
            kind: JobKind::TrivialMove,
            output_level,
            cuts: Vec::new(),
            bottommost: !self.version.overlaps_from(output_level + 1, smallest, largest),
            inputs: moved.into_iter().map(|file| (level, file)).collect(),
        })
    }

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
        // Of what a job writes, however long the bounds of what it reads.
        let bounds_len = output_len / FILE_PER_BOUND;
        if inputs + cuts <= FILES_SURE && bounds_len <= LONG_BOUNDS_LEN_MAX {
            return true;
        }
        let is_long = files.clone().any(|file| long_bounds_len(file) > 0);
        let bounds_len = if is_long { bounds_len } else { 0 };
        let mut described = Vec::new();
        for file in files {
            let (smallest, largest) =
                (lower_bound_of(&file.smallest), upper_bound_of(&file.largest));
            let file = if is_long {
                &FileMeta { smallest, largest, ..FileMeta::clone(file) }
            } else {
                &**file
            };
            file.encode(&mut described);
        }
        let by_len = usize::try_from(output_len / self.config.sst_len).unwrap_or(usize::MAX);
        let outputs = inputs.max(by_len.saturating_add(1)).saturating_add(cuts);
        // As long as those of the inputs, on average, with tag and level.
        let each = described.len() / inputs.max(1) + 9;
        let len = each.saturating_mul(outputs) + inputs * INPUT_LEN + cuts * CUT_LEN;
        // An eighth for what the outputs' descriptions have besides.
        let bounds_len = usize::try_from(bounds_len).unwrap_or(usize::MAX);
        len.saturating_add(EDIT_OVERHEAD).saturating_add(bounds_len) <= EDIT_LEN_MAX / 8 * 7
    }
}

/// Bytes of a file's bounds over the usual most.
fn long_bounds_len(file: &FileMeta) -> u64 {
    let over = |bound: &[u8]| bound.len().saturating_sub(EDIT_KEY_BOUND_LEN_MAX) as u64;
    over(&file.smallest) + over(&file.largest)
}
