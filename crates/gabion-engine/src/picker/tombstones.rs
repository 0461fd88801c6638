//! Tombstones that hide nothing, or little besides what they delete: files of nothing else are
//! dropped, others are merged with what they delete before their level is over its aim.
//!
//! ```text
//!   L0   [† † † † †]───────────────┐ merged down, level by level        †  tombstone
//!   L1         [† †]               │ nothing below: dropped unread      ·  other entry
//!   L6   [· · · · · · · · ·]◄──────┘    [· † · † †] written anew
//! ```
//!
//! Whoever looks for the first key of a range passes the tombstones before it, and what they hide,
//! one by one. Where a file has many, at least about as many as there are other entries below it in
//! its range, they hide most of that, and a merge writes less than it drops. What random deletes of
//! a large tree leave is not like that and waits for its level's turn: to merge it would be to
//! write the tree anew for each MemTable. (RocksDB's CompactOnDeletionCollector and Pebble's
//! tombstone-dense compactions look at the file alone.)
//!
//! How many entries a file has within a part of its range is guessed from the first bytes in which
//! its bounds differ. What such a merge writes goes into short files, so that the next, of a queue
//! from which ever more is taken at its front, need not write them all anew.

use super::down::overlapping_set;
use super::pick::{NoPick, OutputLen, Pick, Picked, first_pick};
use super::shape::Picker;
use crate::config::TreeConfig;
use crate::file::FileMeta;
use crate::job::Outgoing;
use crate::recipe::JobKind;
use crate::version::newest_first;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::FileId;
use gabion_base::units::{KIB, SLOT_LEN};

/// A file is looked at if it has one tombstone for so many bytes of a MemTable: 1,024 for 16 MiB.
const TOMBSTONE_PER: u64 = 16 * KIB;
/// And if this part of its entries are tombstones.
const DENSE_PART: u64 = 4;
/// Or, where nothing lies below it and room is short, this part.
const DENSE_PART_URGENT: u64 = 16;
/// Bytes that may be written anew for each tombstone: what a reader passes in some 20 ns each is
/// not worth more.
const BYTES_PER_TOMBSTONE: u64 = 4 * KIB;
/// What is left is written into files of this part of the usual length.
const SHORT_PART: u64 = 8;
/// Unless it comes to more usual lengths than this.
const SHORT_INPUTS: u64 = 16;

/// Tombstones that make it worth while to do something about them, where they are dense: see
/// [`TOMBSTONE_PER`].
pub(crate) const fn tombstones_worth(config: &TreeConfig) -> u64 {
    let count = config.memtable_len / TOMBSTONE_PER;
    if count == 0 { 1 } else { count }
}

/// Most files of one drop: keeps its edit far below the limit.
const DROP_FILES_MAX: usize = 10_000;

impl Picker<'_> {
    /// The files that `is_gone` tells, and those that hold nothing but tombstones above nothing
    /// that stays, but for those of jobs under way. From old to new, so that what a file hides goes
    /// no later than the file, however few one edit takes.
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

    /// The merge of a file that is dense in tombstones with what it deletes, one level down, or,
    /// where nothing lies below it, with itself.
    pub(crate) fn pick_tombstones(&self) -> Picked {
        let nothing = BTreeSet::new();
        let pick = |level, at, file: &Arc<FileMeta>| {
            if self.is_busy(file) {
                Err(NoPick::Busy)
            } else if !self.is_lowest(level, at, &nothing) {
                self.pick_with_deleted(level, file)
            } else {
                self.pick_at_bottom(level, file)
            }
        };
        first_pick((0..self.version.level_count()).rev().flat_map(|level| {
            let files = self.version.level(level).iter().enumerate().rev();
            let dense = files.filter(|(_, file)| self.is_dense(file));
            dense.map(move |(at, file)| pick(level, at, file))
        }))
    }

    fn is_dense(&self, file: &FileMeta) -> bool {
        let (least, part) = match self.urgent {
            true => (1, DENSE_PART_URGENT),
            false => (tombstones_worth(self.config), DENSE_PART),
        };
        file.deletes >= least && file.deletes.saturating_mul(part) >= file.entries
    }

    /// A file with nothing older of its range: without its tombstones.
    fn pick_at_bottom(&self, level: u8, file: &Arc<FileMeta>) -> Picked {
        match level {
            0 if self.is_l0_busy() => Err(NoPick::Busy),
            0 => self.complete(0, alloc::vec![file.clone()], false, OutputLen::Usual),
            _ => self.rewrite(level, file, OutputLen::Usual),
        }
    }

    /// A file with what it hides, if that is most of what lies there.
    fn pick_with_deleted(&self, level: u8, file: &Arc<FileMeta>) -> Picked {
        let chosen = match level {
            0 if self.is_l0_busy() => return Err(NoPick::Busy),
            0 => self.with_older(file),
            _ => alloc::vec![file.clone()],
        };
        let mut within = self.counts_below(level, &file.smallest, &file.largest);
        for older in chosen.iter().filter(|older| older.id != file.id) {
            within.add(older, &file.smallest, &file.largest);
        }
        if !within.are_deleted_by(file.deletes) {
            return Err(NoPick::NothingDue);
        }
        let pick = self.complete(level, chosen, true, OutputLen::Usual)?;
        let len = pick.inputs.iter().map(|(_, file)| file.len).fold(0, u64::saturating_add);
        let most = (file.deletes + within.tombstones).saturating_mul(BYTES_PER_TOMBSTONE);
        let is_worth = pick.kind == JobKind::TrivialMove || len <= most || self.urgent;
        if is_worth { Ok(self.in_short_files(pick, len)) } else { Err(NoPick::NothingDue) }
    }

    /// A file of L0, newest first, with all older ones that it has to take along.
    fn with_older(&self, file: &Arc<FileMeta>) -> Vec<Arc<FileMeta>> {
        let older = self.version.level(0).iter().filter(|other| newest_first(file, other).is_lt());
        let all: Vec<_> = core::iter::once(file).chain(older).cloned().collect();
        overlapping_set(&all, 1)
    }

    /// The same job with outputs that are shorter, if there are slots for them.
    fn in_short_files(&self, pick: Pick, len: u64) -> Pick {
        let usual = self.config.sst_len;
        let short = (usual / SHORT_PART).max(usual.min(SLOT_LEN));
        assert!((1..=usual).contains(&short), "short files of {short} bytes, usual are {usual}");
        let files = pick.inputs.iter().map(|(_, file)| &**file);
        let codec = self.config.codecs().of_job(pick.kind, pick.bottommost);
        let fits = || {
            let outgoing = Outgoing::of_files(files, codec);
            outgoing.fits(short, pick.cuts.len() as u64, self.room)
        };
        let is_plain = pick.kind == JobKind::Compaction && pick.output_len == usual;
        if is_plain && len <= SHORT_INPUTS.saturating_mul(usual) && fits() {
            return Pick { output_len: short, ..pick };
        }
        pick
    }

    /// About how many entries the levels below one have between two keys.
    fn counts_below(&self, level: u8, first: &[u8], last: &[u8]) -> Within {
        let mut within = Within::default();
        for file in self.version.files_within(level + 1..self.version.level_count(), first, last) {
            within.add(file, first, last);
        }
        within
    }

    /// Whether so many tombstones between two keys, newer than all files, hide most of what these
    /// have there.
    pub(crate) fn are_worth(&self, tombstones: u64, first: &[u8], last: &[u8]) -> bool {
        let mut within = self.counts_below(0, first, last);
        for file in self.version.level(0) {
            within.add(file, first, last);
        }
        within.are_deleted_by(tombstones)
    }

    /// Whether nothing older than a level's file `at` this place holds anything of its range, those
    /// `but` left out.
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

/// About how many entries files have between two keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Within {
    tombstones: u64,
    others: u64,
}

impl Within {
    /// Adds those of a file.
    fn add(&mut self, file: &FileMeta, first: &[u8], last: &[u8]) {
        let part = per_mille_within(file, first, last);
        let of = |count: u64| (u128::from(count) * u128::from(part)).div_ceil(1000) as u64;
        let tombstones = of(file.deletes);
        self.tombstones = self.tombstones.saturating_add(tombstones);
        self.others = self.others.saturating_add(of(file.entries.saturating_sub(file.deletes)));
    }

    /// Whether so many more tombstones, and those that are there, may be of most of the others.
    const fn are_deleted_by(self, tombstones: u64) -> bool {
        let tombstones = tombstones.saturating_add(self.tombstones);
        tombstones.saturating_mul(5) >= self.others.saturating_mul(4)
    }
}

/// Which part of a file's range lies between two keys, in thousandths, if keys are spread evenly
/// over it.
fn per_mille_within(file: &FileMeta, first: &[u8], last: &[u8]) -> u64 {
    let (smallest, largest) = (&file.smallest[..], &file.largest[..]);
    if first > largest || last < smallest {
        return 0;
    }
    let scale = Scale::between(smallest, largest);
    let (from, to) = (scale.place(first.max(smallest)), scale.place(last.min(largest)));
    let (low, high) = (scale.place(smallest), scale.place(largest));
    let part = to.saturating_sub(from).saturating_mul(1000) / high.saturating_sub(low).max(1);
    // Of one that touches the range something is in it.
    u64::try_from(part).map_or(1000, |part| part.clamp(1, 1000))
}

/// Keys of a range as numbers.
struct Scale<'a> {
    smallest: &'a [u8],
    largest: &'a [u8],
    /// Bytes that all keys between the two begin with.
    common: usize,
}

/// Bytes of a key, after those that all have, that tell its place.
const SCALE_LEN: usize = 10;

impl<'a> Scale<'a> {
    fn between(smallest: &'a [u8], largest: &'a [u8]) -> Self {
        let pairs = smallest.iter().zip(largest);
        Self { smallest, largest, common: pairs.take_while(|(a, b)| a == b).count() }
    }

    /// A place that rises with the key. Digits, where both ends have them, are those of a decimal
    /// number.
    fn place(&self, key: &[u8]) -> u128 {
        let mut place = 0_u128;
        for at in self.common..self.common + SCALE_LEN {
            let digit = |key: &[u8]| key.get(at).is_some_and(u8::is_ascii_digit);
            let byte = u128::from(key.get(at).copied().unwrap_or(0));
            place = match digit(self.smallest) && digit(self.largest) {
                true => place * 10 + byte.clamp(48, 57) - 48,
                false => place * 256 + byte,
            };
        }
        place
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
