//! One job out of the files that were chosen for it: with what it overlaps a level below, as a move
//! where nothing is in the way, within the slots that are free.

use super::edits::long_bounds_len;
use super::pick::{NoPick, OutputLen, Pick, Picked};
use super::shape::Picker;
use crate::config::GRANDPARENT_OVERLAP_FILES;
use crate::file::FileMeta;
use crate::recipe::JobKind;
use crate::version::newest_first;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::units::EDIT_LEN_MAX;

/// Files that are moved by one edit, at most: a level that is ten times too full is so after a few.
const MOVES_MAX: usize = 64;
/// What the edit of moves may have of bounds that are longer than usual.
const LONG_BOUNDS_LEN_MAX: u64 = EDIT_LEN_MAX as u64 / 2;

impl Picker<'_> {
    /// The job that takes `chosen`, newest first or by key, one level down, as it is where
    /// `may_move` and nothing is in the way.
    pub(super) fn complete(
        &self,
        level: u8,
        mut chosen: Vec<Arc<FileMeta>>,
        may_move: bool,
        outputs: OutputLen,
    ) -> Picked {
        let output_level = self.below(level);
        assert!(output_level < self.version.level_count(), "level {level} has one below it");
        let (smallest, largest) = bounds(&chosen).ok_or(NoPick::NothingDue)?;
        let (smallest, largest) = (smallest.to_vec(), largest.to_vec());
        let below = self.version.overlapping(output_level, &smallest, &largest);
        if below.iter().any(|file| self.is_busy(file)) {
            return Err(NoPick::Busy);
        }
        if level == 0 {
            chosen.sort_by(|a, b| newest_first(a, b));
        }
        let movable =
            may_move && chosen.len() == 1 && self.is_movable(output_level, &chosen[0], outputs);
        let mut inputs: Vec<_> = chosen.into_iter().map(|file| (level, file)).collect();
        inputs.extend(below.iter().map(|file| (output_level, file.clone())));
        let all: Vec<_> = inputs.iter().map(|(_, file)| file.clone()).collect();
        let (smallest, largest) = bounds(&all).ok_or(NoPick::NothingDue)?;
        let mut cuts =
            if movable { Vec::new() } else { self.cuts(output_level, smallest, largest) };
        let codec = self.codec(output_level, smallest, largest);
        let usual = self.config.sst_len;
        let output_len = if movable { usual } else { self.fits(&all, codec, &mut cuts, outputs)? };
        Ok(Pick {
            kind: if movable { JobKind::TrivialMove } else { JobKind::Compaction },
            output_level,
            output_len,
            cuts,
            bottommost: !self.version.overlaps_from(output_level + 1, smallest, largest),
            inputs,
        })
    }

    /// Whether a file may go down to `level` as it is: nothing is in its way there, it overlaps no
    /// more of the level below than a job would be cut for, and it need not be written anew.
    fn is_movable(&self, level: u8, file: &Arc<FileMeta>, outputs: OutputLen) -> bool {
        let overlapping = |level| self.version.overlapping(level, &file.smallest, &file.largest);
        let below: u64 = overlapping(level + 1).iter().map(|file| file.len).sum();
        overlapping(level).is_empty()
            && below <= GRANDPARENT_OVERLAP_FILES * self.config.sst_len
            && !self.is_to_be_packed(level, file, outputs)
    }

    /// The move, one level down, of the first of `files`, which are disjoint and ascend by key, and
    /// of those behind it up to the first that cannot be moved, or to one that no more than
    /// `len_over` bytes come before. They go in one edit, since each takes its way through the log
    /// and the jobs behind it wait; fewer where their bounds are long. None if the first cannot be
    /// moved.
    pub(super) fn pick_moves(
        &self,
        level: u8,
        files: &[Arc<FileMeta>],
        len_over: u64,
        outputs: OutputLen,
    ) -> Option<Pick> {
        let output_level = self.below(level);
        let (mut len, mut bounds_len) = (0, 0);
        let goes = |file: &&Arc<FileMeta>| {
            bounds_len += long_bounds_len(file);
            let goes = len <= len_over
                && bounds_len <= LONG_BOUNDS_LEN_MAX
                && !self.is_busy(file)
                && self.is_movable(output_level, file, outputs);
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

    /// Whether a file that would come to rest at the bottom, at `level`, as it is, is written anew
    /// in its place: once in its life, as it then has the bottom's codec. Not without room for it:
    /// a move needs none.
    fn is_to_be_packed(&self, level: u8, file: &Arc<FileMeta>, outputs: OutputLen) -> bool {
        self.config.bottom_compression.is_some_and(|codec| file.compression != codec)
            && self.fits([file], self.config.codecs().at_bottom(), &mut Vec::new(), outputs).is_ok()
            && !self.version.overlaps_from(level + 1, &file.smallest, &file.largest)
    }

    /// Writes a file anew in its own level, without what nobody can see.
    pub(super) fn rewrite(&self, level: u8, file: &Arc<FileMeta>, outputs: OutputLen) -> Picked {
        assert!(level > 0, "{}: a file of L0 may be above others that are older", file.id);
        let codec = self.codec(level, &file.smallest, &file.largest);
        let mut cuts = Vec::new();
        let output_len = self.fits([file], codec, &mut cuts, outputs)?;
        Ok(Pick {
            kind: JobKind::Compaction,
            inputs: alloc::vec![(level, file.clone())],
            output_level: level,
            output_len,
            cuts,
            bottommost: !self.version.overlaps_from(level + 1, &file.smallest, &file.largest),
        })
    }
}

/// The keys that `files` span, if there are any files.
fn bounds(files: &[Arc<FileMeta>]) -> Option<(&[u8], &[u8])> {
    let smallest = files.iter().map(|file| &file.smallest[..]).min()?;
    let largest = files.iter().map(|file| &file.largest[..]).max()?;
    Some((smallest, largest))
}

/// So many of the oldest files, which are of one run, and, again and again, all that overlap what
/// has been taken: nothing older than a file that moves down may stay above it.
pub(super) fn overlapping_set(
    oldest_first: &[Arc<FileMeta>],
    together: usize,
) -> Vec<Arc<FileMeta>> {
    let (first, rest) = oldest_first.split_at(together.min(oldest_first.len()));
    let (mut chosen, mut rest) = (first.to_vec(), rest.to_vec());
    loop {
        let Some((smallest, largest)) = bounds(&chosen) else { return chosen };
        let (smallest, largest) = (smallest.to_vec(), largest.to_vec());
        let before = chosen.len();
        rest.retain(|file| {
            let outside = file.largest[..] < smallest[..] || file.smallest[..] > largest[..];
            if !outside {
                chosen.push(file.clone());
            }
            outside
        });
        if chosen.len() == before {
            return chosen;
        }
    }
}
