//! Picks the next compaction: leveled, by file, with moves in place of merges where nothing overlaps
//! (LevelDB's scheme, as RocksDB refined it; RubbleDB runs on it).
//!
//! Each level gets a score: L0 its runs ÷ trigger (or bytes ÷ the most that L1 aims at, if larger), others bytes ÷
//! aim. From the highest score over 1 downwards, the first level with work that collides with no job
//! under way gives the job:
//!
//! - **L0**: the oldest files and all that overlap them; one such job at a time, since files of L0
//!   overlap. They go to the first level that is in use, or is worth it. Where the oldest is of a load, those of the load
//!   that come behind it go too, as many as a job takes: each for itself would be merged with the same files below.
//! - **others**: the file with the least overlap per byte one level below, ties by key; the next where that has too
//!   many cuts.
//!
//! Bytes are those of files and, where more of a file's entries are tombstones than not, of the values that those which
//! are more may delete: deletes go down the levels as overwrites of the same records would, and give back what they delete
//! (RocksDB's compensated sizes, at half of their weight). While writers are slowed down for L0 such levels come last.
//!
//! A file that overlaps nothing one level below is moved there as it is, and with it those behind it of which that is
//! true, as many as the level has too much. Where nothing at all lies below it and the
//! tree has a codec of its own for that ([`crate::config::Codecs`]), it is written anew with that, unless it has it.
//!
//! A job that may need more slots than are free, or name more files than one edit can, is not picked; a smaller one may
//! be. Where there is none, the second is, with files of twice the length or more, of which there will be fewer: a file
//! that spans all of a level with thousands would otherwise never go down. If cuts alone are too many, as of a small
//! file over hundreds of GB two levels deeper, as many are left out as it takes. When room is short
//! ([`Picker::urgent`]), levels are compacted that are not over their aims, from L0 downwards: that is how deletes give
//! back what they delete. Then files are written anew in which much has expired.
//!
//! Before all that, unless writers are slowed down for L0, goes what tombstones hide that are dense (`tombstones`), so that
//! nobody has to pass them for long.
//!
//! Files of which all is deleted by one range delete above them are dropped unread, as those below the floor are, and those
//! that hold nothing but tombstones above nothing. A file
//! that holds little but range deletes (`Picker::pick_ranges`) would never be picked for its length: when no level is
//! over its aim it sinks, level by level, and at the last that has anything of its range it vanishes.
//!
//! Two jobs never share an input. That suffices for outputs not to overlap either: a job's key range at
//! its output level is covered by its own inputs. Picking depends on the version, the files that are
//! busy and, for what has expired, group time, on nothing else.
//!
//! While writers wait for L0 it goes first, whatever the scores: a level that a bulk load has filled, or the deepest
//! when it is full and its aim falls to a tenth, may be a hundred times over its aim, and would keep them waiting for
//! as many jobs.

use crate::config::{COMPACTION_INPUT_FILES, GRANDPARENT_OVERLAP_FILES, TreeConfig};
use crate::file::{FileMeta, lower_bound_of};
use crate::job::{Estimate, Outgoing, Room};
use crate::recipe::JobKind;
use crate::sst::Compression;
use crate::version::{Version, newest_first};
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::ops::Range;
use gabion_base::{FileId, SequenceNumber};

/// A job that was picked: what becomes a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Compaction, trivial move or drop.
    pub kind: JobKind,
    /// Files with their level: levels ascending, L0 newest first, others by key.
    pub inputs: Vec<(u8, Arc<FileMeta>)>,
    /// Where the outputs go.
    pub output_level: u8,
    /// Longest output in bytes: `sst_len` of the configuration, but where an edit could not name all that there would
    /// be.
    pub output_len: u64,
    /// Keys before which an output ends.
    pub cuts: Vec<Vec<u8>>,
    /// No deeper level holds keys of the inputs' range.
    pub bottommost: bool,
}

/// What picking looks at.
pub struct Picker<'a> {
    config: &'a TreeConfig,
    version: &'a Version,
    busy: &'a BTreeSet<FileId>,
    room: Room,
    snapshots: usize,
    urgent: bool,
    /// Whether outputs may be longer than usual.
    longer: bool,
    /// Whether a job was passed over for the length of its edit.
    edit_too_long: Cell<bool>,
    /// When the first of the operands was written that no file holds.
    operands_in_memory_ms: Option<u64>,
}

/// Cuts of a job out of a level whose files overlap as they usually do.
const CUTS_USUAL: u64 = 2;
/// Files of a level, those with the least overlap, of which one is picked, at most: each that cannot go down may have
/// thousands below it to look at, and one that only an edit's length keeps back goes when cuts are thinned out.
const CANDIDATES_TRIED_MAX: usize = 64;

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
            room: Room { free: u64::MAX, kept: 0, estimate: Estimate::Usual },
            snapshots: 0,
            urgent: false,
            longer: false,
            edit_too_long: Cell::new(false),
            operands_in_memory_ms: None,
        }
    }

    /// Picks only jobs for which there is room, while so many snapshots are alive.
    #[must_use]
    pub(crate) const fn within(self, room: Room, snapshots: usize) -> Self {
        Self { room, snapshots, ..self }
    }

    /// Whether room is short: then also levels are compacted that are not over their aims.
    #[must_use]
    pub const fn urgent(self, urgent: bool) -> Self {
        Self { urgent, ..self }
    }

    /// Picks jobs also whose edits can name their files only if these are longer than usual.
    #[must_use]
    pub(crate) const fn longer(self) -> Self {
        Self { longer: true, ..self }
    }

    /// MemTables hold operands, the first of them written at this group time.
    #[must_use]
    pub(crate) const fn below_operands(self, operands_in_memory_ms: Option<u64>) -> Self {
        Self { operands_in_memory_ms, ..self }
    }

    /// How long the outputs are to be of a job that writes `files` anew with `codec`, if there are slots for it and its
    /// edit can name all that it has to: perhaps with fewer `cuts`.
    fn fits<'f>(
        &self,
        files: impl IntoIterator<Item = &'f Arc<FileMeta>, IntoIter: Clone>,
        codec: Compression,
        cuts: &mut Vec<Vec<u8>>,
    ) -> Option<u64> {
        let files = files.into_iter();
        let outgoing = Outgoing::of_files(files.clone().map(|file| &**file), codec, self.snapshots);
        let has_room = |len: u64, cuts: usize| outgoing.fits(len, cuts as u64, self.room);
        Some(self.config.sst_len)
            .filter(|len| has_room(*len, 0))
            .and_then(|_| self.output_len(files, outgoing.usual_len(), cuts))
            .filter(|len| has_room(*len, cuts.len()))
    }

    /// The codec of what lies between these bounds when it is compacted to `level`.
    fn codec(&self, level: u8, smallest: &[u8], largest: &[u8]) -> Compression {
        let codecs = self.config.codecs();
        let is_bottom = || !self.version.overlaps_from(level + 1, smallest, largest);
        if codecs.at_bottom() == codecs.upper || is_bottom() {
            return codecs.at_bottom();
        }
        codecs.upper
    }

    /// Slots with which no level is ever stuck, whatever shape the tree takes: a file and what it overlaps
    /// one level below, which the cuts keep within bounds, or a MemTable's file and L1, or all there is. All of them as
    /// long as they become where codecs are undone.
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

    /// Bytes that all levels come to when they are written anew, and what that makes of those of the level that grows
    /// most.
    fn grown(&self) -> (u64, Growth) {
        let codecs = self.config.codecs();
        let (mut all, mut growth) = (0_u64, Growth::default());
        for level in 0..self.version.level_count() {
            let written = |codec| {
                let files = self.version.level(level).iter().map(|file| &**file);
                Outgoing::of_files(files, codec, 0).usual_len()
            };
            let at_bottom = written(codecs.at_bottom());
            let is_one = self.len_below(level) == 0 || codecs.at_bottom() == codecs.upper;
            let len = if is_one { at_bottom } else { at_bottom.max(written(codecs.upper)) };
            all = all.saturating_add(len);
            growth = growth.max(Growth { from: self.version.level_len(level), to: len });
        }
        (all, growth)
    }

    fn is_busy(&self, file: &FileMeta) -> bool {
        self.busy.contains(&file.id)
    }

    /// Bytes that a level below L0 aims at: what the options say, or less, so that each level aims at no more than
    /// its part of all that the tree holds, the multiplier to the next level down. What was replaced and lies deeper
    /// is then about a ninth of the tree, however much of the deepest level is in use (RocksDB's dynamic level sizes,
    /// Dong et al., CIDR 2017, section 3.1). There the deepest level is always the last; here it is the deepest that
    /// was ever reached, and when it is full its files are moved on, as they are, and it becomes a level between.
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

    /// The level below: the next, but for L0 the first that is in use or whose part of the tree is worth a level of
    /// its own, so that nothing is written anew for levels that will be empty again. No less than a step of levels
    /// below what L1 may hold is.
    fn below(&self, level: u8) -> u8 {
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

    /// Bytes of what a file's tombstones may delete below its level: as many as values have on average, for each that is
    /// more than the file's other entries. Where as many are deleted as are put it is nothing, or the levels above the
    /// deepest would hold less.
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
    fn weight(&self, level: u8, file: &FileMeta) -> u64 {
        file.len.saturating_add(self.deleted_len(level, file))
    }

    /// A level's files but those of jobs under way: they are being taken care of.
    fn idle(&self, level: u8) -> impl Iterator<Item = &Arc<FileMeta>> {
        self.version.level(level).iter().filter(|file| !self.is_busy(file))
    }

    /// Bytes of a level's idle files.
    fn idle_len(&self, level: u8) -> u64 {
        self.idle(level).map(|file| file.len).fold(0, u64::saturating_add)
    }

    /// What `files` of a level count for together: their bytes and those of what they may delete.
    fn weight_of<'f>(&self, level: u8, files: impl Iterator<Item = &'f Arc<FileMeta>>) -> u64 {
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
    fn score_at(&self, level: u8, weight: u64) -> Score {
        if level > 0 {
            return per_mille(weight, self.level_target(level));
        }
        let is_idle = |run: &&Range<usize>| {
            let files = &self.version.level(0)[(*run).clone()];
            files.iter().any(|file| !self.is_busy(file))
        };
        let runs = self.version.runs().iter().filter(is_idle).count() as u64;
        per_mille(weight, self.config.level1_len)
            .max(per_mille(runs, u64::from(self.config.l0_trigger)))
    }

    /// Bytes that compactions have yet to rewrite to bring every level to its aim: for each level
    /// the excess over its aim, passed on to the next. By what tombstones count for a level may be further over its aim
    /// than it is long.
    #[must_use]
    pub fn debt(&self) -> u64 {
        let runs = self.version.runs().len() as u64;
        let l0_len = self.version.level_len(0);
        let l0_weight = self.weight_of(0, self.version.level(0).iter());
        let is_over =
            runs >= u64::from(self.config.l0_trigger) || l0_weight >= self.config.level1_len;
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

    /// The next job, if a level is over its aim and the job collides with none under way.
    #[must_use]
    pub fn pick(&self) -> Option<Pick> {
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
        // Highest score first; of equal ones the upper level, which readers feel more.
        levels.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        if self.stops_writers() {
            let below = self.below(0);
            let is_below_full = || self.score_at(below, self.idle_len(below)) >= 1000;
            // Where the level below is too full, what goes down from there makes the job shorter.
            let longer = || self.pick_longer(Self::pick_l0).filter(|_| !is_below_full());
            if let Some(pick) = self.pick_l0().or_else(longer) {
                return Some(pick);
            }
            let kept = self.kept_for_l0();
            levels.retain(|(_, level)| Some(*level) != kept);
        }
        let over = || levels.iter().find_map(|&(_, level)| self.pick_level(level));
        let urgent = || self.urgent.then(|| (0..last).find_map(|l| self.pick_level(l))).flatten();
        over().or_else(urgent).or_else(|| self.pick_longer(Self::pick))
    }

    /// Where jobs were passed over whose edits would name too many files, perhaps by another way of picking: what `pick`
    /// finds if files are longer.
    fn pick_longer(&self, pick: impl Fn(&Self) -> Option<Pick>) -> Option<Pick> {
        let may_be_longer = self.edit_too_long.get() && !self.longer;
        let longer = Picker { edit_too_long: Cell::new(false), ..*self };
        may_be_longer.then(|| pick(&longer.longer())).flatten()
    }

    /// Whether writers are slowed down for L0.
    pub(crate) fn slows_writers(&self) -> bool {
        self.version.runs().len() as u64 >= u64::from(self.config.l0_slowdown)
    }

    /// Whether writers wait for L0.
    fn stops_writers(&self) -> bool {
        self.version.runs().len() as u64 >= u64::from(self.config.l0_stop)
    }

    /// The level out of which no job is to begin, as one out of L0 waits for those that use its files to end.
    fn kept_for_l0(&self) -> Option<u8> {
        let nothing = BTreeSet::new();
        let is_under_way = self.version.level(0).iter().any(|file| self.is_busy(file));
        let idle = Picker { busy: &nothing, edit_too_long: Cell::new(false), ..*self };
        let waits = !is_under_way && idle.pick_l0().is_some();
        waits.then(|| self.below(0))
    }

    fn pick_level(&self, level: u8) -> Option<Pick> {
        if level == 0 { self.pick_l0() } else { self.pick_below_l0(level) }
    }

    fn pick_l0(&self) -> Option<Pick> {
        let files = self.version.level(0);
        if files.iter().any(|file| self.is_busy(file)) {
            return None;
        }
        let runs = self.version.runs();
        let oldest_run = &files[runs.last()?.clone()];
        if oldest_run.len() > 1
            && let Some(moves) = self.pick_moves(0, oldest_run, u64::MAX)
        {
            return Some(moves);
        }
        // Of a run by key.
        let oldest_first = runs.iter().rev().flat_map(|run| &files[run.clone()]);
        let oldest_first: Vec<_> = oldest_first.cloned().collect();
        let limit = COMPACTION_INPUT_FILES * self.config.sst_len;
        let mut len = 0;
        let within = oldest_first.iter().take_while(|file| {
            len += file.len;
            len <= limit
        });
        let mut count = within.count().clamp(1, oldest_first.len());
        // With fewer files the range is smaller, and L1 may then be free of other jobs there.
        let output_level = self.below(0);
        let merges = |file: &&Arc<FileMeta>| {
            !self.version.overlapping(output_level, &file.smallest, &file.largest).is_empty()
        };
        let together = oldest_run.iter().take_while(merges).count().max(1);
        while count > 0 {
            let chosen = overlapping_set(&oldest_first[..count], together);
            if let Some(pick) = self.complete(0, chosen, true) {
                return Some(pick);
            }
            count /= 2;
        }
        None
    }

    fn pick_below_l0(&self, level: u8) -> Option<Pick> {
        let mut candidates: Vec<(u64, &Arc<FileMeta>)> = Vec::new();
        for file in self.version.level(level).iter().filter(|file| !self.is_busy(file)) {
            let below = self.version.overlapping(level + 1, &file.smallest, &file.largest);
            if below.iter().any(|file| self.is_busy(file)) {
                continue;
            }
            let overlap: u64 = below.iter().map(|file| file.len).sum();
            let smallest =
                below.first().map_or(&file.smallest, |b| (&b.smallest).min(&file.smallest));
            let largest = below.last().map_or(&file.largest, |b| (&b.largest).max(&file.largest));
            let codec = self.codec(level + 1, smallest, largest);
            if self.fits(below.iter().chain([file]), codec, &mut Vec::new()).is_some() {
                candidates.push((per_mille(overlap, self.weight(level, file)), file));
            }
        }
        // Levels are sorted by key, and so are equals, as the sort is stable.
        candidates.sort_by_key(|(overlap, _)| *overlap);
        // One may have too many cuts for an edit, or for the slots that are free.
        let mut first = candidates.into_iter().take(CANDIDATES_TRIED_MAX);
        first.find_map(|(overlap, file)| self.pick_file(level, file, overlap))
    }

    /// The job that takes a file one level down, of which it overlaps `overlap` thousandths of what it counts for: with those
    /// behind it where they can move.
    fn pick_file(&self, level: u8, file: &Arc<FileMeta>, overlap: u64) -> Option<Pick> {
        let files = self.version.level(level);
        let over = self.weight_of(level, self.idle(level));
        let over = over.saturating_sub(self.level_target(level));
        let from = files.iter().position(|other| other.id == file.id).filter(|_| overlap == 0);
        let moves = from.and_then(|from| self.pick_moves(level, &files[from..], over));
        moves.or_else(|| self.complete(level, alloc::vec![file.clone()], true))
    }

    /// The job that takes `chosen`, newest first or by key, one level down, as it is where `may_move` and
    /// nothing is in the way; none if it collides.
    fn complete(&self, level: u8, mut chosen: Vec<Arc<FileMeta>>, may_move: bool) -> Option<Pick> {
        let output_level = self.below(level);
        let (smallest, largest) = bounds(&chosen)?;
        let (smallest, largest) = (smallest.to_vec(), largest.to_vec());
        let below = self.version.overlapping(output_level, &smallest, &largest);
        if below.iter().any(|file| self.is_busy(file)) {
            return None;
        }
        if level == 0 {
            chosen.sort_by(|a, b| newest_first(a, b));
        }
        let movable = may_move && chosen.len() == 1 && self.is_movable(output_level, &chosen[0]);
        let mut inputs: Vec<_> = chosen.into_iter().map(|file| (level, file)).collect();
        inputs.extend(below.iter().map(|file| (output_level, file.clone())));
        let all: Vec<_> = inputs.iter().map(|(_, file)| file.clone()).collect();
        let (smallest, largest) = bounds(&all)?;
        let mut cuts =
            if movable { Vec::new() } else { self.cuts(output_level, smallest, largest) };
        let codec = self.codec(output_level, smallest, largest);
        let usual = self.config.sst_len;
        let output_len = if movable { usual } else { self.fits(&all, codec, &mut cuts)? };
        Some(Pick {
            kind: if movable { JobKind::TrivialMove } else { JobKind::Compaction },
            output_level,
            output_len,
            cuts,
            bottommost: !self.version.overlaps_from(output_level + 1, smallest, largest),
            inputs,
        })
    }

    /// Whether a file that would come to rest at the bottom, at `level`, as it is, is written anew in its place: once
    /// in its life, as it then has the bottom's codec. Not without room for it: a move needs none.
    fn is_to_be_packed(&self, level: u8, file: &Arc<FileMeta>) -> bool {
        self.config.bottom_compression.is_some_and(|codec| file.compression != codec)
            && self.fits([file], self.config.codecs().at_bottom(), &mut Vec::new()).is_some()
            && !self.version.overlaps_from(level + 1, &file.smallest, &file.largest)
    }

    /// Where outputs at `level` must end so that none overlaps too much of the level below it.
    fn cuts(&self, level: u8, smallest: &[u8], largest: &[u8]) -> Vec<Vec<u8>> {
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

    /// When no level is over its aim: a file with range deletes goes a level down, or, where nothing deeper is left of
    /// its range, is written anew without them. One that holds enough besides waits for its turn with its level,
    /// unless room is short; one of which a snapshot, the oldest of all, keeps all range deletes waits for that.
    pub(crate) fn pick_ranges(&self, oldest_snapshot: SequenceNumber) -> Option<Pick> {
        let is_due = |file: &FileMeta| {
            let is_slim = file.len <= self.config.sst_len / RANGES_FILE_PART;
            file.ranges.is_some() && (is_slim || self.urgent)
        };
        let is_due_in_l0 = self.version.level(0).iter().any(|file| is_due(file));
        let from_l0 = || is_due_in_l0.then(|| self.pick_l0()).flatten();
        let files = self.version.files().filter(|(level, _)| *level > 0);
        let mut due = files.filter(|(_, file)| is_due(file) && !self.is_busy(file));
        let down = |(level, file): (u8, &Arc<FileMeta>)| {
            let first = file.ranges.as_ref().map(|ranges| ranges.first_sequence);
            if self.version.overlaps_from(level + 1, &file.smallest, &file.largest) {
                return self.complete(level, alloc::vec![file.clone()], true);
            }
            let can_go = first.is_some_and(|first| first <= oldest_snapshot);
            if can_go { self.rewrite(level, file) } else { None }
        };
        from_l0()
            .or_else(|| due.find_map(down))
            .or_else(|| self.pick_longer(|longer| longer.pick_ranges(oldest_snapshot)))
    }

    /// When room is short: a file to be written anew where it lies, without what has expired by `now_ms`. Below
    /// L0, and with nothing of its range deeper down, where nothing has to hide what is dropped. By then half of
    /// the time has passed in which its entries expire, so each is taken a few times at most.
    pub(crate) fn pick_expired(&self, now_ms: u64) -> Option<Pick> {
        let mut due = self.expiring().filter(|(level, file)| {
            let half_ms = half_expired_ms(file);
            // What older operands must find gone would only be written once more.
            half_ms <= Some(now_ms)
                && self.operands_above(*level, file).is_none_or(|from| half_ms <= Some(from))
        });
        due.find_map(|(level, file)| self.rewrite(level, file))
            .or_else(|| self.pick_longer(|longer| longer.pick_expired(now_ms)))
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

    /// Files of which all is deleted for all readers, by a range delete in a file above.
    fn deleted(&self, oldest_snapshot: SequenceNumber) -> BTreeSet<FileId> {
        let mut gone = BTreeSet::new();
        for (level, file) in self.version.files() {
            let widest = file.ranges.iter().flat_map(|ranges| &ranges.widest);
            for deleted in widest.filter(|deleted| deleted.seen_from <= oldest_snapshot) {
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

    /// Files that can go without being read:
    ///
    /// - of which every entry is below `floor`, in the user keyspace, and seen by no snapshot;
    /// - of which all is deleted by a range delete in a file above them, and seen by no snapshot. What such a file hides of
    ///   deeper levels, the range delete hides too, and goes on to until nothing of it is left;
    /// - that hold nothing but tombstones, with nothing older of their range below them that stays.
    #[must_use]
    pub fn pick_drop(
        &self,
        floor: SequenceNumber,
        oldest_snapshot: SequenceNumber,
    ) -> Option<Pick> {
        let user = [crate::entry::Keyspace::User as u8];
        let deleted = self.deleted(oldest_snapshot);
        let is_gone = |file: &FileMeta| {
            let is_cleared = file.largest_sequence < floor
                && oldest_snapshot >= floor
                && file.smallest[..] >= user[..];
            is_cleared || deleted.contains(&file.id)
        };
        let gone = self.gone_with_tombstones(is_gone);
        let inputs = self.version.files().filter(|(_, file)| gone.contains(&file.id));
        let inputs: Vec<_> = inputs.map(|(level, file)| (level, file.clone())).collect();
        let kind = JobKind::Drop;
        (!inputs.is_empty()).then(|| Pick {
            kind,
            inputs,
            output_level: 0,
            output_len: self.config.sst_len,
            cuts: Vec::new(),
            bottommost: false,
        })
    }
}

/// A file with range deletes that is no longer than this part of a whole one holds little besides.
const RANGES_FILE_PART: u64 = 4;

/// In the middle between a file's first expiry and its last.
fn half_expired_ms(file: &FileMeta) -> Option<u64> {
    file.expiry.map(|span| span.first_ms + (span.last_ms - span.first_ms) / 2)
}

fn per_mille(value: u64, of: u64) -> u64 {
    (u128::from(value) * 1000 / u128::from(of.max(1))).min(u128::from(u64::MAX)) as u64
}

/// The keys that `files` span, if there are any files.
fn bounds(files: &[Arc<FileMeta>]) -> Option<(&[u8], &[u8])> {
    let smallest = files.iter().map(|file| &file.smallest[..]).min()?;
    let largest = files.iter().map(|file| &file.largest[..]).max()?;
    Some((smallest, largest))
}

/// So many of the oldest files, which are of one run, and, again and again, all that overlap what has been taken:
/// nothing older than a file that moves down may stay above it.
fn overlapping_set(oldest_first: &[Arc<FileMeta>], together: usize) -> Vec<Arc<FileMeta>> {
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

mod edits;
mod range;
mod tombstones;
pub(crate) use range::{Gone, RangePosition, RangeStep};
pub(crate) use tombstones::tombstones_worth;

#[cfg(test)]
pub(crate) mod tests;
