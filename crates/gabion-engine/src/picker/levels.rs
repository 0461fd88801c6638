//! Picks by the levels' scores: from the level that is furthest over its target downwards.
//!
//! While writers wait for L0 it goes first, whatever the scores. A level that a bulk load has
//! filled may be a hundred times over its target, and would keep them waiting for as many jobs. So
//! may the deepest, when it is full and its target falls to a tenth.

use super::down::overlapping_set;
use super::pick::{NoPick, OutputLen, Picked, first_pick, or_longer};
use super::shape::{Picker, Score, per_mille};
use crate::config::COMPACTION_INPUT_FILES;
use crate::file::FileMeta;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::iter::successors;

/// Files of a level, those with the least overlap, of which one is picked, at most: each that
/// cannot go down may have thousands below it to look at, and one that only an edit's length keeps
/// back goes when cuts are thinned out.
const CANDIDATES_TRIED_MAX: usize = 64;

impl Picker<'_> {
    /// The next job, if a level is over its target and the job collides with none under way.
    ///
    /// # Errors
    /// Why there is none.
    pub fn pick(&self) -> Picked {
        or_longer(|outputs| self.pick_levels(outputs))
    }

    fn pick_levels(&self, outputs: OutputLen) -> Picked {
        let mut levels = self.levels_over_target();
        let mut why_not_l0 = NoPick::NothingDue;
        if self.stops_writers() {
            match self.pick_l0_first(outputs) {
                Err(why) => why_not_l0 = why,
                pick => return pick,
            }
            let kept = self.kept_for_l0(outputs);
            levels.retain(|level| Some(*level) != kept);
        }
        let urgent = (0..self.version.level_count() - 1).filter(|_| self.urgent);
        let levels = levels.into_iter().chain(urgent);
        first_pick(levels.map(|level| self.pick_level(level, outputs)))
            .map_err(|why| why.max(why_not_l0))
    }

    /// The levels that are over their targets, the one first that is furthest.
    fn levels_over_target(&self) -> Vec<u8> {
        let last = self.version.level_count() - 1;
        let mut levels: Vec<(Score, u8)> =
            (0..last).map(|level| (self.score(level), level)).collect();
        levels.retain(|(score, _)| *score >= 1000);
        if self.slows_writers() {
            // What deletes give back can wait.
            for (score, level) in &mut levels {
                *score = self.score_at(*level, self.idle_len(*level));
            }
        }
        // Of equal ones the upper level, which readers feel more.
        levels.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        levels.into_iter().map(|(_, level)| level).collect()
    }

    /// The job out of L0 while writers wait for it: with longer outputs before any other level's.
    fn pick_l0_first(&self, outputs: OutputLen) -> Picked {
        let picked = self.pick_l0(outputs);
        let below = self.below(0);
        // Where the level below is too full, what goes down from there makes the job shorter.
        let is_below_full = || self.score_at(below, self.idle_len(below)) >= 1000;
        match picked {
            Err(why @ NoPick::EditTooLong) if outputs == OutputLen::Usual && !is_below_full() => {
                self.pick_l0(OutputLen::Longer).map_err(|longer| longer.max(why))
            }
            picked => picked,
        }
    }

    /// The level out of which no job is to begin, as one out of L0 waits for those that use its
    /// files to end.
    fn kept_for_l0(&self, outputs: OutputLen) -> Option<u8> {
        let nothing = BTreeSet::new();
        let idle = Picker { busy: &nothing, ..*self };
        let waits = !self.is_l0_busy() && idle.pick_l0(outputs).is_ok();
        waits.then(|| self.below(0))
    }

    fn pick_level(&self, level: u8, outputs: OutputLen) -> Picked {
        if level == 0 { self.pick_l0(outputs) } else { self.pick_below_l0(level, outputs) }
    }

    /// The job that takes the oldest run of L0, or as much of L0 as one job takes, to the level
    /// below.
    pub(super) fn pick_l0(&self, outputs: OutputLen) -> Picked {
        let files = self.version.level(0);
        if self.is_l0_busy() {
            return Err(NoPick::Busy);
        }
        let runs = self.version.runs();
        let oldest_run = &files[runs.last().ok_or(NoPick::NothingDue)?.clone()];
        if oldest_run.len() > 1
            && let Some(moves) = self.pick_moves(0, oldest_run, u64::MAX, outputs)
        {
            return Ok(moves);
        }
        let oldest_first = self.oldest_of_l0();
        // With fewer files the range is smaller, and L1 may then be free of other jobs there.
        let output_level = self.below(0);
        let merges = |file: &&Arc<FileMeta>| {
            !self.version.overlapping(output_level, &file.smallest, &file.largest).is_empty()
        };
        let together = oldest_run.iter().take_while(merges).count().max(1);
        let counts = successors(Some(oldest_first.len()), |count| Some(count / 2));
        first_pick(counts.take_while(|count| *count > 0).map(|count| {
            let chosen = overlapping_set(&oldest_first[..count], together);
            self.complete(0, chosen, true, outputs)
        }))
    }

    /// The oldest files of L0, those of a run by key: as many as a job takes, and one at least.
    fn oldest_of_l0(&self) -> Vec<Arc<FileMeta>> {
        let files = self.version.level(0);
        let runs = self.version.runs();
        let oldest_first = runs.iter().rev().flat_map(|run| &files[run.clone()]);
        let mut oldest_first: Vec<_> = oldest_first.cloned().collect();
        let limit = COMPACTION_INPUT_FILES * self.config.sst_len;
        let mut len = 0;
        let within = oldest_first.iter().take_while(|file| {
            len += file.len;
            len <= limit
        });
        let count = within.count().max(1);
        oldest_first.truncate(count);
        oldest_first
    }

    fn pick_below_l0(&self, level: u8, outputs: OutputLen) -> Picked {
        let mut why = NoPick::NothingDue;
        let mut candidates: Vec<(u64, &Arc<FileMeta>)> = Vec::new();
        for file in self.version.level(level) {
            match self.overlap(level, file, outputs) {
                Ok(overlap) => candidates.push((overlap, file)),
                Err(reason) => why = why.max(reason),
            }
        }
        // Levels are sorted by key, and so are equals, as the sort is stable.
        candidates.sort_by_key(|(overlap, _)| *overlap);
        // One may have too many cuts for an edit, or for the slots that are free.
        let first = candidates.into_iter().take(CANDIDATES_TRIED_MAX);
        first_pick(first.map(|(overlap, file)| self.pick_file(level, file, overlap, outputs)))
            .map_err(|reason| reason.max(why))
    }

    /// How many thousandths of what a file counts for it overlaps one level below, if it may go
    /// there.
    fn overlap(&self, level: u8, file: &Arc<FileMeta>, outputs: OutputLen) -> Result<u64, NoPick> {
        let below = self.version.overlapping(level + 1, &file.smallest, &file.largest);
        if self.is_busy(file) || below.iter().any(|file| self.is_busy(file)) {
            return Err(NoPick::Busy);
        }
        let overlap: u64 = below.iter().map(|file| file.len).sum();
        let smallest = below.first().map_or(&file.smallest, |b| (&b.smallest).min(&file.smallest));
        let largest = below.last().map_or(&file.largest, |b| (&b.largest).max(&file.largest));
        let codec = self.codec(level + 1, smallest, largest);
        self.fits(below.iter().chain([file]), codec, &mut Vec::new(), outputs)?;
        Ok(per_mille(overlap, self.weight(level, file)))
    }

    /// The job that takes a file one level down, of which it overlaps `overlap` thousandths of what
    /// it counts for: with those behind it where they can move.
    fn pick_file(
        &self,
        level: u8,
        file: &Arc<FileMeta>,
        overlap: u64,
        outputs: OutputLen,
    ) -> Picked {
        let files = self.version.level(level);
        let over = self.weight_of(level, self.idle(level));
        let over = over.saturating_sub(self.level_target(level));
        let from = files.iter().position(|other| other.id == file.id).filter(|_| overlap == 0);
        let moves = from.and_then(|from| self.pick_moves(level, &files[from..], over, outputs));
        match moves {
            Some(moves) => Ok(moves),
            None => self.complete(level, alloc::vec![file.clone()], true, outputs),
        }
    }
}
