//! Picks the jobs of a compaction on demand: everything in a range of keys goes, level after level,
//! to the level where it comes to rest, and nothing that is deleted or cleared is left there, nor a
//! file of another codec than the tree has for its bottom now.
//!
//! Each step follows from the version, the files that are busy and the position, and raises the
//! position: so it ends, also while writers add to the range. What they add after it began may stay
//! above.

use super::pick::{OutputLen, Pick};
use super::shape::Picker;
use crate::file::FileMeta;
use alloc::vec::Vec;
use gabion_base::{FileId, SequenceNumber};

/// How far a compaction on demand is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangePosition {
    /// First engine key of the range.
    from: Vec<u8>,
    /// Last engine key that is wanted: at most the last that there was.
    to: Vec<u8>,
    /// Files of L0 below this number were there when it began.
    l0_below: u64,
    /// Where everything goes.
    target: u8,
    /// The level whose files are being taken.
    level: u8,
    /// Of this level, files up to this key are done.
    done: Option<Vec<u8>>,
    /// The file that was picked last, and its last key: done once it has left its level.
    picked: Option<(FileId, Vec<u8>)>,
}

/// What is to be done next.
pub(crate) enum RangeStep {
    /// This job.
    Job(Pick),
    /// Nothing before jobs under way end, or slots become free.
    Wait,
    /// All is done.
    Done,
}

impl Picker<'_> {
    /// Where a compaction of `from..=to` begins; nothing if no file holds any of it. `next_file` is
    /// the next number that a file would be given.
    #[must_use]
    pub(crate) fn begin_range(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        next_file: u64,
    ) -> Option<RangePosition> {
        let touches = |file: &FileMeta| {
            file.largest[..] >= *from && to.is_none_or(|to| file.smallest[..] <= *to)
        };
        let in_range = || self.version.files().filter(|(_, file)| touches(file));
        let largest = in_range().map(|(_, file)| &file.largest[..]).max()?;
        let deepest = in_range().map(|(level, _)| level).max()?;
        Some(RangePosition {
            from: from.to_vec(),
            to: to.map_or(largest, |to| to.min(largest)).to_vec(),
            l0_below: next_file,
            target: self.resting_level().max(deepest),
            level: 0,
            done: None,
            picked: None,
        })
    }

    /// The first level whose aim is above all that the tree holds: what lies there is not compacted
    /// further for its size.
    fn resting_level(&self) -> u8 {
        let last = self.version.level_count() - 1;
        let len: u64 = self.version.files().map(|(_, file)| file.len).sum();
        (1..last).find(|&level| self.config.level_target(level) > len).unwrap_or(last)
    }

    /// The next job of a compaction on demand, of a tree in which `gone` is gone.
    pub(crate) fn pick_range(&self, position: &mut RangePosition, gone: Gone) -> RangeStep {
        if let Some((id, largest)) = &position.picked {
            if self.busy.contains(id) {
                return RangeStep::Wait;
            }
            // It is still there when its job failed: then it is taken again.
            if self.version.file(position.level, *id).is_none() {
                position.done = Some(largest.clone());
            }
            position.picked = None;
        }
        while position.level <= position.target {
            let pick = match position.level {
                0 => self.pick_range_of_l0(position),
                _ => self.pick_range_below_l0(position, gone),
            };
            match pick {
                Some(step) => return step,
                None => (position.level, position.done) = (position.level + 1, None),
            }
        }
        RangeStep::Done
    }

    fn pick_range_of_l0(&self, position: &RangePosition) -> Option<RangeStep> {
        let files = self.version.level(0).iter();
        files.clone().find(|file| {
            file.id.number < position.l0_below
                && file.largest >= position.from
                && file.smallest <= position.to
        })?;
        Some(self.pick_l0(OutputLen::Longer).map_or(RangeStep::Wait, RangeStep::Job))
    }

    fn pick_range_below_l0(&self, position: &mut RangePosition, gone: Gone) -> Option<RangeStep> {
        let level = position.level;
        assert!(level < self.version.level_count(), "a range is compacted where there are files");
        let is_last = level == position.target;
        let files = self.version.overlapping(level, &position.from, &position.to);
        let file = files.iter().find(|file| {
            let is_done = position.done.as_ref().is_some_and(|done| file.largest <= *done);
            !is_done && (!is_last || gone.is_in(file) || self.has_other_codec(level, file))
        })?;
        if self.is_busy(file) {
            return Some(RangeStep::Wait);
        }
        let pick = if is_last {
            self.rewrite(level, file, OutputLen::Longer)
        } else {
            // A move would leave in the last level what only a merge drops.
            let may_move = level + 1 < position.target || !gone.is_in(file);
            self.complete(level, alloc::vec![file.clone()], may_move, OutputLen::Longer)
        };
        let Ok(pick) = pick else { return Some(RangeStep::Wait) };
        position.picked = Some((file.id, file.largest.clone()));
        Some(RangeStep::Job(pick))
    }

    /// Whether a file at the bottom was made with another codec than it would be now.
    fn has_other_codec(&self, level: u8, file: &FileMeta) -> bool {
        file.compression != self.config.codecs().at_bottom()
            && !self.version.overlaps_from(level + 1, &file.smallest, &file.largest)
    }
}

/// What nobody sees any more, besides what was deleted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gone {
    /// Entries of users with a smaller sequence number were cleared.
    pub(crate) floor: SequenceNumber,
    /// What expires at or before this group time, in ms, is gone.
    pub(crate) now_ms: u64,
}

impl Gone {
    /// Whether a file holds what a merge into the last level drops.
    fn is_in(self, file: &FileMeta) -> bool {
        let has_expired = file.expiry.is_some_and(|span| span.first_ms <= self.now_ms);
        let has_deletes = file.deletes > 0 || file.ranges.is_some();
        has_deletes || file.smallest_sequence < self.floor || has_expired
    }
}

#[cfg(test)]
mod tests;
