//! Tombstones that hide nothing, or little besides what they delete: files of nothing else are dropped, others are merged
//! with what they delete before their level is over its aim.
//!
//! ```text
//!   L0   [† † † † †]───────────────┐ merged down, level by level        †  tombstone
//!   L1         [† †]               │ nothing below: dropped unread      ·  other entry
//!   L6   [· · · · · · · · ·]◄──────┘    [· † · † †] written anew
//! ```

use super::Picker;
use crate::file::FileMeta;
use alloc::collections::BTreeSet;
use gabion_base::FileId;

/// Most files of one drop: keeps its edit far below the limit.
const DROP_FILES_MAX: usize = 10_000;

impl Picker<'_> {
    /// The files that `is_gone` tells, and those that hold nothing but tombstones above nothing that stays, but for those
    /// of jobs under way. From old to new, so that what a file hides goes no later than the file, however few one edit takes.
    pub(super) fn gone_with_tombstones(
        &self,
        is_gone: impl Fn(&FileMeta) -> bool,
    ) -> BTreeSet<FileId> {
        let mut gone = BTreeSet::new();
        for level in (0..self.version.level_count()).rev() {
            for (at, file) in self.version.level(level).iter().enumerate().rev() {
                if gone.len() == DROP_FILES_MAX {
                    return gone;
                }
                let hides_nothing = || is_of_tombstones(file) && self.is_lowest(level, at, &gone);
                if !self.is_busy(file) && (is_gone(file) || hides_nothing()) {
                    gone.insert(file.id);
                }
            }
        }
        gone
    }

    /// Whether nothing older than a level's file `at` this place holds anything of its range, those `but` left out.
    fn is_lowest(&self, level: u8, at: usize, but: &BTreeSet<FileId>) -> bool {
        let file = &self.version.level(level)[at];
        let stays = |older: &FileMeta| !but.contains(&older.id);
        // L0 is sorted from new to old.
        let beside = self.version.level(level).iter().skip(at + 1).filter(|_| level == 0);
        let mut beside = beside.filter(|older| touches(older, file));
        let mut below = self.version.files_within(
            level + 1..self.version.level_count(),
            &file.smallest,
            &file.largest,
        );
        !beside.any(|older| stays(older)) && !below.any(|older| stays(older))
    }
}

/// Whether a file holds nothing but tombstones, of keys or of ranges.
fn is_of_tombstones(file: &FileMeta) -> bool {
    file.deletes == file.entries && (file.deletes > 0 || file.ranges.is_some())
}

/// Whether the ranges of two files have a key in common.
fn touches(a: &FileMeta, b: &FileMeta) -> bool {
    a.smallest <= b.largest && b.smallest <= a.largest
}

#[cfg(test)]
mod tests;
