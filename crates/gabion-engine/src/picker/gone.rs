//! Picks what is gone: files of which all is deleted, range deletes that hide nothing any more,
//! values that have expired.

use super::pick::{NoPick, OutputLen, Pick, Picked, first_pick, or_longer};
use super::shape::Picker;
use crate::file::FileMeta;
use crate::recipe::JobKind;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{FileId, SequenceNumber};

/// A file with range deletes that is no longer than this part of a whole one holds little besides.
const RANGES_FILE_PART: u64 = 4;

impl Picker<'_> {
    /// Files that can go without being read:
    ///
    /// - of which every entry is below `floor`, in the user keyspace;
    /// - of which all is deleted by a range delete in a file above them. What such a file hides of
    ///   deeper levels, the range delete hides too, and goes on to until nothing of it is left;
    /// - that hold nothing but tombstones, with nothing older of their range below them that stays.
    ///
    /// # Errors
    /// Why there are none.
    pub fn pick_drop(&self, floor: SequenceNumber) -> Picked {
        let user = [crate::entry::Keyspace::User as u8];
        let deleted = self.deleted();
        let is_gone = |file: &FileMeta| {
            let is_cleared = file.largest_sequence < floor && file.smallest[..] >= user[..];
            is_cleared || deleted.contains(&file.id)
        };
        let gone = self.gone_with_tombstones(is_gone);
        let inputs = self.version.files().filter(|(_, file)| gone.contains(&file.id));
        let inputs: Vec<_> = inputs.map(|(level, file)| (level, file.clone())).collect();
        if inputs.is_empty() {
            return Err(NoPick::NothingDue);
        }
        Ok(Pick {
            kind: JobKind::Drop,
            inputs,
            output_level: 0,
            output_len: self.config.sst_len,
            cuts: Vec::new(),
            bottommost: false,
        })
    }

    /// Files of which all is deleted by a range delete in a file above.
    fn deleted(&self) -> BTreeSet<FileId> {
        let mut gone = BTreeSet::new();
        for (level, file) in self.version.files() {
            for deleted in file.ranges.iter().flat_map(|ranges| &ranges.widest) {
                let older = self.version.level(0).iter().filter(|older| older.id < file.id);
                let beside = older.filter(|_| level == 0);
                let below = (level + 1..self.version.level_count()).flat_map(|below| {
                    self.version.overlapping(below, &deleted.start, &deleted.end)
                });
                let all_gone = beside.chain(below).filter(|file| deleted.hides_all_of(file));
                gone.extend(all_gone.map(|file| file.id));
            }
        }
        gone
    }

    /// When no level is over its target: a file with range deletes goes a level down, or, where
    /// nothing deeper is left of its range, is written anew without them. One that holds enough
    /// besides waits for its turn with its level, unless room is short.
    pub(crate) fn pick_ranges(&self) -> Picked {
        or_longer(|outputs| self.pick_due_ranges(outputs))
    }

    fn pick_due_ranges(&self, outputs: OutputLen) -> Picked {
        let is_due = |file: &FileMeta| {
            let is_slim = file.len <= self.config.sst_len / RANGES_FILE_PART;
            file.ranges.is_some() && (is_slim || self.urgent)
        };
        let is_due_in_l0 = self.version.level(0).iter().any(|file| is_due(file));
        let from_l0 = is_due_in_l0.then_some(()).into_iter().map(|()| self.pick_l0(outputs));
        let due = self.version.files().filter(|(level, file)| *level > 0 && is_due(file));
        let down = |(level, file)| self.take_ranges_down(level, file, outputs);
        first_pick(from_l0.chain(due.map(down)))
    }

    fn take_ranges_down(&self, level: u8, file: &Arc<FileMeta>, outputs: OutputLen) -> Picked {
        if self.is_busy(file) {
            return Err(NoPick::Busy);
        }
        if self.version.overlaps_from(level + 1, &file.smallest, &file.largest) {
            return self.complete(level, alloc::vec![file.clone()], true, outputs);
        }
        self.rewrite(level, file, outputs)
    }

    /// When room is short: a file to be written anew where it lies, without what has expired by
    /// `now_ms`. Below L0, and with nothing of its range deeper down, where nothing has to hide
    /// what is dropped. By then half of the time has passed in which its entries expire, so each is
    /// taken a few times at most.
    pub(crate) fn pick_expired(&self, now_ms: u64) -> Picked {
        let is_due = |level, file: &Arc<FileMeta>| {
            let half_ms = half_expired_ms(file);
            // What older operands must find gone would only be written once more.
            half_ms <= Some(now_ms)
                && self.operands_above(level, file).is_none_or(|from| half_ms <= Some(from))
        };
        or_longer(|outputs| {
            let due = self.expiring().filter(|(level, file)| is_due(*level, file));
            first_pick(due.map(|(level, file)| self.rewrite(level, file, outputs)))
        })
    }

    /// When [`Self::pick_expired`] may have more to pick.
    pub(crate) fn more_expired_ms(&self, now_ms: u64) -> Option<u64> {
        let times = self.expiring().filter_map(|(_, file)| half_expired_ms(file));
        times.filter(|time_ms| *time_ms > now_ms).min()
    }

    /// When the first of the operands above a file was written.
    fn operands_above(&self, level: u8, file: &FileMeta) -> Option<u64> {
        let levels = 0..level;
        let in_files =
            self.version.operands_from_ms(levels, &file.smallest, &file.largest, &|_| false);
        in_files.into_iter().chain(self.operands_in_memory_ms).min()
    }

    fn expiring(&self) -> impl Iterator<Item = (u8, &Arc<FileMeta>)> {
        let files = self.version.files().filter(|_| self.urgent);
        files.filter(|(level, file)| {
            let is_alone = || !self.version.overlaps_from(level + 1, &file.smallest, &file.largest);
            *level > 0 && file.expiry.is_some() && !self.is_busy(file) && is_alone()
        })
    }
}

/// In the middle between a file's first expiry and its last.
fn half_expired_ms(file: &FileMeta) -> Option<u64> {
    file.expiry.map(|span| span.first_ms + (span.last_ms - span.first_ms) / 2)
}
