//! The tree's shape as picking sees it: targets, scores, debt, and the files that jobs under way
//! leave.
//!
//! ```text
//!   config, version ─► level_target ─► score ─► which level is compacted
//!   busy            ─► idle         ─┘
//! ```

use crate::config::{GRANDPARENT_OVERLAP_FILES, TreeConfig};
use crate::file::FileMeta;
use crate::job::{Estimate, Outgoing, Room};
use crate::sst::Compression;
use crate::version::Version;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use core::ops::Range;
use gabion_base::FileId;

/// What picking looks at.
#[derive(Clone, Copy)]
pub struct Picker<'a> {
    pub(super) config: &'a TreeConfig,
    pub(super) version: &'a Version,
    pub(super) busy: &'a BTreeSet<FileId>,
    pub(super) room: Room,
    pub(super) urgent: bool,
    /// Values may be copied out of values files.
    pub(super) collects: bool,
    /// When the first of the operands was written that no file holds.
    pub(super) operands_in_memory_ms: Option<u64>,
}

/// A run shorter than this part of a MemTable is short: most of its values lie apart.
const SHORT_PART: u64 = 8;
/// Short runs wait where together they are less than this part of the level below, all of which a
/// job out of L0 rewrites.
const L0_PART: u64 = 4;
/// And less than this part of all values is behind their pointers: of those that they replace
/// nobody knows before they are merged.
const L0_VALUES_PART: u64 = 4;
/// Short runs wait for so many times as many.
const SHORT_RUNS: u32 = 3;

/// Cuts of a job out of a level whose files overlap as they usually do.
pub(super) const CUTS_USUAL: u64 = 2;

/// What bytes become when they are written anew.
#[derive(Clone, Copy, Default)]
struct Growth {
    from: u64,
    to: u64,
}

impl Growth {
    /// What so many become, if they grow.
    fn of(self, len: u64) -> u64 {
        if self.to <= self.from {
            return len;
        }
        let grown = u128::from(len) * u128::from(self.to) / u128::from(self.from.max(1));
        u64::try_from(grown).unwrap_or(u64::MAX)
    }

    /// The one by which bytes become more.
    fn max(self, other: Self) -> Self {
        let is_more = u128::from(other.to) * u128::from(self.from.max(1))
            > u128::from(self.to) * u128::from(other.from.max(1));
        if is_more { other } else { self }
    }
}

/// How far a level is over its aim, in thousandths: 1000 is at the aim.
pub type Score = u64;

impl<'a> Picker<'a> {
    /// A picker for `version`, in which the files `busy` belong to jobs under way.
    #[must_use]
    pub const fn new(
        config: &'a TreeConfig,
        version: &'a Version,
        busy: &'a BTreeSet<FileId>,
    ) -> Self {
        Self {
            config,
            version,
            busy,
            room: Room { free: u64::MAX, kept: 0, for_collection: 0, estimate: Estimate::Usual },
            urgent: false,
            collects: true,
            operands_in_memory_ms: None,
        }
    }

    /// Picks only jobs for which there is room.
    #[must_use]
    pub(crate) const fn within(self, room: Room) -> Self {
        Self { room, ..self }
    }

    /// Whether room is short: then also levels are compacted that are not over their aims.
    #[must_use]
    pub const fn urgent(self, urgent: bool) -> Self {
        Self { urgent, ..self }
    }

    /// Whether values may be copied out of values files with garbage now, if room is not short:
    /// else what was copied of late is enough.
    #[must_use]
    pub(crate) const fn collecting(self, collects: bool) -> Self {
        Self { collects, ..self }
    }

    /// MemTables hold operands, the first of them written at this group time.
    #[must_use]
    pub(crate) const fn below_operands(self, operands_in_memory_ms: Option<u64>) -> Self {
        Self { operands_in_memory_ms, ..self }
    }

    /// The codec of what lies between these bounds when it is compacted to `level`.
    pub(super) fn codec(&self, level: u8, smallest: &[u8], largest: &[u8]) -> Compression {
        let codecs = self.config.codecs();
        let is_bottom = || !self.version.overlaps_from(level + 1, smallest, largest);
        if codecs.at_bottom() == codecs.upper || is_bottom() {
            return codecs.at_bottom();
        }
        codecs.upper
    }

    /// Slots with which no level is ever stuck, whatever shape the tree takes: a file and what it
    /// overlaps one level below, which the cuts keep within bounds, or a MemTable's file and L1, or
    /// all there is. All of them as long as they become where codecs are undone.
    #[must_use]
    pub(crate) fn slots_needed(&self, estimate: Estimate) -> u64 {
        let below = (GRANDPARENT_OVERLAP_FILES + 2) * self.config.sst_len;
        let (all, growth) = self.grown();
        // What was flushed when MemTables might be longer may lie there.
        let longest = self.version.level(0).iter().map(|file| file.len).max().unwrap_or(0);
        let of_l0 = self.config.memtable_len.max(growth.of(longest));
        let from_l0 = of_l0.saturating_add(growth.of(self.config.level1_len));
        let all = all.saturating_add(self.config.memtable_len);
        let outgoing = Outgoing::of_len(growth.of(below).max(from_l0).min(all));
        outgoing.slots(self.config.sst_len, CUTS_USUAL, estimate)
    }

    /// Bytes that all levels come to when they are written anew, and what that makes of those of
    /// the level that grows most.
    fn grown(&self) -> (u64, Growth) {
        let codecs = self.config.codecs();
        let (mut all, mut growth) = (0_u64, Growth::default());
        for level in 0..self.version.level_count() {
            let written = |codec| {
                let files = self.version.level(level).iter().map(|file| &**file);
                Outgoing::of_files(files, codec).usual_len()
            };
            let at_bottom = written(codecs.at_bottom());
            let is_one = self.len_below(level) == 0 || codecs.at_bottom() == codecs.upper;
            let len = if is_one { at_bottom } else { at_bottom.max(written(codecs.upper)) };
            all = all.saturating_add(len);
            growth = growth.max(Growth { from: self.version.level_len(level), to: len });
        }
        (all, growth)
    }

    pub(super) fn is_busy(&self, file: &FileMeta) -> bool {
        self.busy.contains(&file.id)
    }

    /// Bytes that a level below L0 aims at: what the options say, or less, so that each level aims
    /// at no more than its part of all that the tree holds, the multiplier to the next level down.
    /// What was replaced and lies deeper is then about a ninth of the tree, however much of the
    /// deepest level is in use (RocksDB's dynamic level sizes, Dong et al., CIDR 2017, section
    /// 3.1). There the deepest level is always the last; here it is the deepest that was ever
    /// reached, and when it is full its files are moved on, as they are, and it becomes a level
    /// between.
    #[must_use]
    pub fn level_target(&self, level: u8) -> u64 {
        let part = self.part(level).map_or(u64::MAX, |part| part.max(self.config.sst_len));
        self.config.level_target(level).min(part)
    }

    /// A level's part of all that the tree holds, in bytes; none for the deepest.
    fn part(&self, level: u8) -> Option<u64> {
        let levels = 1..self.version.level_count();
        let deepest = levels.clone().rev().find(|&level| !self.version.level(level).is_empty())?;
        let steps = deepest.checked_sub(level).filter(|steps| *steps > 0)?;
        let all: u64 = levels.map(|level| self.version.level_len(level)).sum();
        Some(all / u64::from(self.config.level_multiplier).saturating_pow(u32::from(steps)))
    }

    /// The level below: the next, but for L0 the first that is in use or whose part of the tree is
    /// worth a level of its own, so that nothing is written anew for levels that will be empty
    /// again. No less than a step of levels below what L1 may hold is.
    pub(super) fn below(&self, level: u8) -> u8 {
        if level > 0 {
            return level + 1;
        }
        let least = self.config.level1_len / u64::from(self.config.level_multiplier);
        let is_used = |level: &u8| {
            !self.version.level(*level).is_empty()
                || self.part(*level).is_none_or(|part| part > least)
        };
        (1..self.version.level_count()).find(is_used).unwrap_or(1)
    }

    /// Bytes of what a file's tombstones may delete below its level: as many as values have on
    /// average, for each that is more than the file's other entries. Where as many are deleted as
    /// are put it is nothing, or the levels above the deepest would hold less.
    fn deleted_len(&self, level: u8, file: &FileMeta) -> u64 {
        let surplus = file.deletes.saturating_sub(file.entries.saturating_sub(file.deletes));
        if surplus == 0 {
            return 0;
        }
        surplus.saturating_mul(self.version.value_len()).min(self.len_below(level))
    }

    /// Bytes of the levels below.
    fn len_below(&self, level: u8) -> u64 {
        let below = level + 1..self.version.level_count();
        below.map(|below| self.version.level_len(below)).fold(0, u64::saturating_add)
    }

    /// What a file of a level counts for when one is chosen.
    pub(super) fn weight(&self, level: u8, file: &FileMeta) -> u64 {
        file.len.saturating_add(self.deleted_len(level, file))
    }

    /// A level's files but those of jobs under way: they are being taken care of.
    pub(super) fn idle(&self, level: u8) -> impl Iterator<Item = &Arc<FileMeta>> {
        self.version.level(level).iter().filter(|file| !self.is_busy(file))
    }

    /// Bytes of a level's idle files.
    pub(super) fn idle_len(&self, level: u8) -> u64 {
        self.idle(level).map(|file| file.len).fold(0, u64::saturating_add)
    }

    /// What `files` of a level count for together: their bytes and those of what they may delete.
    pub(super) fn weight_of<'f>(
        &self,
        level: u8,
        files: impl Iterator<Item = &'f Arc<FileMeta>>,
    ) -> u64 {
        let sums = files.fold((0_u64, 0_u64), |(len, deleted), file| {
            let more = self.deleted_len(level, file);
            (len.saturating_add(file.len), deleted.saturating_add(more))
        });
        sums.0.saturating_add(sums.1.min(self.len_below(level)))
    }

    /// A level's score.
    #[must_use]
    pub fn score(&self, level: u8) -> Score {
        self.score_at(level, self.weight_of(level, self.idle(level)))
    }

    /// A level's score if its files count for so much.
    pub(super) fn score_at(&self, level: u8, weight: u64) -> Score {
        if level > 0 {
            return per_mille(weight, self.level_target(level));
        }
        let is_idle = |run: &&Range<usize>| {
            let files = &self.version.level(0)[(*run).clone()];
            files.iter().any(|file| !self.is_busy(file))
        };
        let runs = self.version.runs().iter().filter(is_idle).count() as u64;
        per_mille(weight, self.config.level1_len).max(per_mille(runs, self.l0_trigger()))
    }

    /// Runs of L0 from which on they are compacted: as many as the options say, or more of them if
    /// they are short. Those of a tree of pointers are a 30th of the MemTables that they were, and
    /// the usual number would have all of the level below rewritten for a few bytes. It stays
    /// half-way to where writers are slowed down.
    fn l0_trigger(&self) -> u64 {
        let (usual, slowdown) = (self.config.l0_trigger, self.config.l0_slowdown);
        let (runs, len) = (self.version.runs().len() as u64, self.version.level_len(0));
        let is_short = len < runs * (self.config.memtable_len / SHORT_PART);
        if !is_short || len >= self.version.level_len(self.below(0)) / L0_PART {
            return u64::from(usual);
        }
        let references = self.version.level(0).iter().flat_map(|file| &file.references);
        let values = references.map(|it| it.live_bytes).fold(0, u64::saturating_add);
        if values == 0 || values >= self.version.values_stats().live_bytes / L0_VALUES_PART {
            return u64::from(usual);
        }
        u64::from(usual.saturating_mul(SHORT_RUNS).min(usual.midpoint(slowdown)))
    }

    /// Bytes that compactions have yet to rewrite to bring every level to its aim: for each level
    /// the excess over its aim, passed on to the next. By what tombstones count for a level may be
    /// further over its aim than it is long.
    #[must_use]
    pub fn debt(&self) -> u64 {
        let runs = self.version.runs().len() as u64;
        let l0_len = self.version.level_len(0);
        let l0_weight = self.weight_of(0, self.version.level(0).iter());
        let is_over = runs >= self.l0_trigger() || l0_weight >= self.config.level1_len;
        let mut arriving = if is_over { l0_len } else { 0 };
        let mut debt = arriving;
        for level in self.below(0)..self.version.level_count() - 1 {
            let len = self.version.level_len(level) + arriving;
            let weight = self.weight_of(level, self.version.level(level).iter());
            let over = weight.saturating_add(arriving).saturating_sub(self.level_target(level));
            arriving = over.min(len);
            debt += arriving;
        }
        debt
    }

    /// Whether writers are slowed down for L0.
    pub(super) fn slows_writers(&self) -> bool {
        self.version.runs().len() as u64 >= u64::from(self.config.l0_slowdown)
    }

    /// Whether writers wait for L0.
    pub(super) fn stops_writers(&self) -> bool {
        self.version.runs().len() as u64 >= u64::from(self.config.l0_stop)
    }

    /// Whether jobs under way read files of L0. One job at a time does.
    pub(super) fn is_l0_busy(&self) -> bool {
        self.version.level(0).iter().any(|file| self.is_busy(file))
    }
}

pub(super) fn per_mille(value: u64, of: u64) -> u64 {
    (u128::from(value) * 1000 / u128::from(of.max(1))).min(u128::from(u64::MAX)) as u64
}
