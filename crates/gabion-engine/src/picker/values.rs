//! Picks what gives back the room of dead values: values files to be emptied, and SSTs to be
//! written anew for it.
//!
//! ```text
//!   live share of a values file = bytes that SSTs reference ÷ bytes of its values
//!              of a log segment = bytes that SSTs reference ÷ its length
//! ```
//!
//! Every compaction empties the files that it meets pointers to and whose live share is low: what
//! still lives goes to a new file, and the old one goes with the last SST that references it. That
//! alone keeps up with overwrites that compactions meet. Where nothing is to be compacted and more
//! than a seventh of all values are dead, SSTs are written anew where they lie, those first that
//! reference the file with the most garbage.
//!
//! The caller sets a pace, and while it is passed nothing is copied: compactions leave
//! pointers as they are, and their garbage stays for later. Want of room knows no pace. Values
//! files of which nothing lives go unread at any time.
//!
//! A file is worth it when half of it is dead: then no more is written than is given back. When a
//! seventh of all values are dead, a quarter of a file is enough, as there is no other way to less.
//! When room is short, a twentieth.

use super::pick::{NoPick, OutputLen, Picked, first_pick, or_longer};
use super::shape::{CUTS_USUAL, Picker};
use crate::file::FileMeta;
use crate::job::{EMPTIED_MAX, Estimate, Outgoing};
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::units::SLOT_LEN;

/// Most of a file that may live when it is emptied, in thousandths.
const LIVE_USUAL: u64 = 500;
/// The same while [`GARBAGE_MAX`] is passed.
const LIVE_OF_GARBAGE: u64 = 750;
/// The same while room is short.
const LIVE_URGENT: u64 = 950;
/// From so many dead bytes of all values on, in thousandths, SSTs are written anew for their sake.
const GARBAGE_MAX: u64 = 150;
/// A job copies so many times the length of its outputs of values, at most, or one file's.
const MOVED_OUTPUTS: u64 = 4;
/// Slots are kept for so many outputs of values, at least.
const COLLECTED_OUTPUTS: u64 = 2;
/// And for so many slots of them: of a few that are emptied, what lives may take as many.
const COLLECTED_SLOTS: u64 = 4;

impl Picker<'_> {
    /// The values files that a compaction of `inputs` is to empty, ascending: those with the most
    /// garbage of the ones that it has pointers to.
    pub(crate) fn emptied(&self, inputs: &[(u8, Arc<FileMeta>)]) -> Vec<Arc<FileMeta>> {
        if !self.may_collect() {
            return Vec::new();
        }
        let references = inputs.iter().flat_map(|(_, file)| &file.references);
        let mut moved: Vec<(Arc<FileMeta>, u64)> = Vec::new();
        let mut by_file: Vec<_> = references.collect();
        by_file.sort_unstable_by_key(|reference| reference.file);
        for of_file in by_file.chunk_by(|a, b| a.file == b.file) {
            let meta = self.version.values_file(of_file[0].file);
            if let Some(meta) = meta.filter(|meta| self.is_worth_emptying(meta)) {
                let live = of_file.iter().map(|reference| reference.live_bytes).sum();
                moved.push((meta.clone(), live));
            }
        }
        moved.sort_by_key(|(meta, _)| (u64::MAX - self.dead_bytes(meta), meta.id));
        let limit = MOVED_OUTPUTS * self.config.sst_len;
        let mut len = 0;
        let within = moved.into_iter().take(EMPTIED_MAX).take_while(|(_, live)| {
            let is_first = len == 0;
            len += live;
            is_first || len <= limit
        });
        let mut emptied: Vec<_> = within.map(|(meta, _)| meta).collect();
        if self.urgent {
            self.keep_to_room(inputs, &mut emptied);
        }
        emptied.sort_by_key(|meta| meta.id);
        emptied
    }

    /// Leaves as many files, those with the most garbage, as can be emptied to the last value with
    /// the slots there are, by this job and others that follow: until then none gives back its
    /// slots. None where that gives back no more than it takes.
    fn keep_to_room(&self, inputs: &[(u8, Arc<FileMeta>)], emptied: &mut Vec<Arc<FileMeta>>) {
        let kept = self.room.kept.saturating_sub(self.room.for_collection);
        let room = self.room.free.saturating_sub(kept);
        let count = (1..=emptied.len()).rev().find(|&count| {
            let (taken, given_back) = self.slots_of_emptying(inputs, &emptied[..count]);
            taken <= room && taken < given_back
        });
        emptied.truncate(count.unwrap_or(0));
    }

    /// Slots that what lives of some files takes elsewhere, and those that come back when they are
    /// empty. Each job's last file has half of a slot to spare.
    fn slots_of_emptying(
        &self,
        inputs: &[(u8, Arc<FileMeta>)],
        emptied: &[Arc<FileMeta>],
    ) -> (u64, u64) {
        let references = |file: &FileMeta| {
            let is_one = |id| emptied.iter().any(|meta| meta.id == id);
            file.references.iter().any(|it| is_one(it.file))
        };
        let of_inputs = inputs.iter().filter(|(_, file)| references(file)).count() as u64;
        let all = self.version.files().filter(|(_, file)| references(file)).count() as u64;
        let live_of = |meta: &Arc<FileMeta>| self.version.referenced().get(&meta.id).copied();
        let live: u64 = emptied.iter().filter_map(live_of).sum();
        let per_slot = SLOT_LEN.min(self.config.sst_len);
        let taken = live.div_ceil(per_slot) + all.saturating_sub(of_inputs).div_ceil(2);
        let given_back = emptied.iter().map(|meta| meta.rounded_len().div_ceil(SLOT_LEN)).sum();
        (taken, given_back)
    }

    /// Slots that are kept so that values files with garbage can be emptied when no others are
    /// free: for an SST that is written anew with the values that it leads to, and for what the
    /// jobs that follow leave of their last slots.
    pub(crate) fn slots_for_collection(&self, estimate: Estimate) -> u64 {
        if self.version.values_stats().files == 0 {
            return 0;
        }
        let sst_len = self.config.sst_len;
        let outputs = COLLECTED_SLOTS.div_ceil(sst_len.div_ceil(SLOT_LEN)).max(COLLECTED_OUTPUTS);
        let moved = outputs * sst_len;
        let longest = self.version.files().map(|(_, file)| file.len).max().unwrap_or(0);
        let job = Outgoing::of_len(longest.min(sst_len)).and_values(moved, sst_len);
        let referrers = self.version.files().filter(|(_, file)| !file.references.is_empty());
        job.slots(sst_len, CUTS_USUAL, estimate) + (referrers.count() as u64).div_ceil(2)
    }

    /// Bytes of a file's values that nothing leads to, and of what else a segment holds.
    fn dead_bytes(&self, file: &FileMeta) -> u64 {
        let live = self.version.referenced().get(&file.id).copied().unwrap_or_default();
        file.held_value_bytes().saturating_sub(live)
    }

    fn is_worth_emptying(&self, file: &FileMeta) -> bool {
        let dead_least = u128::from(1000 - self.live_max());
        u128::from(self.dead_bytes(file)) * 1000 >= u128::from(file.held_value_bytes()) * dead_least
    }

    /// Most of a file that may live when it is emptied, in thousandths.
    fn live_max(&self) -> u64 {
        if self.urgent {
            LIVE_URGENT
        } else if self.has_much_garbage() {
            LIVE_OF_GARBAGE
        } else {
            LIVE_USUAL
        }
    }

    /// Whether values may be copied: at the pace that the node sets, but for want of room.
    const fn may_collect(&self) -> bool {
        self.collects || self.urgent
    }

    fn has_much_garbage(&self) -> bool {
        let stats = self.version.values_stats();
        u128::from(stats.dead_bytes()) * 1000
            > u128::from(stats.value_bytes) * u128::from(GARBAGE_MAX)
    }

    /// An SST to be written anew where it lies, so that the values file goes that has the most
    /// garbage.
    pub(super) fn pick_values(&self) -> Picked {
        if !self.urgent && !self.has_much_garbage() {
            return Err(NoPick::NothingDue);
        }
        if !self.may_collect() {
            return Err(NoPick::Paced);
        }
        if self.slows_writers() {
            return Err(NoPick::YieldsToL0);
        }
        let mut files: Vec<_> =
            self.version.values_files().filter(|file| self.is_worth_emptying(file)).collect();
        files.sort_by_key(|file| (u64::MAX - self.dead_bytes(file), file.id));
        first_pick(files.into_iter().map(|file| self.pick_referrer(file)))
    }

    /// A job that takes pointers to a values file.
    fn pick_referrer(&self, values: &FileMeta) -> Picked {
        let references = |file: &Arc<FileMeta>| {
            file.references.binary_search_by_key(&values.id, |it| it.file).is_ok()
        };
        let referrers = self.version.files().filter(|(_, file)| references(file));
        first_pick(referrers.map(|(level, file)| {
            if self.is_busy(file) {
                return Err(NoPick::Busy);
            }
            or_longer(|outputs| match level {
                0 => self.pick_l0(outputs),
                _ => self.empty_by(level, file, outputs),
            })
        }))
    }

    fn empty_by(&self, level: u8, file: &Arc<FileMeta>, outputs: OutputLen) -> Picked {
        let pick = self.rewrite(level, file, outputs)?;
        let moved = moved_len(&pick.inputs, &self.emptied(&pick.inputs));
        if moved == 0 {
            // For less than all of it there is no room.
            return Err(NoPick::NoRoom);
        }
        let codec = self.codec(level, &file.smallest, &file.largest);
        let outgoing = Outgoing::of_files([&**file], codec).and_values(moved, pick.output_len);
        match outgoing.fits(pick.output_len, pick.cuts.len() as u64, self.room) {
            true => Ok(pick),
            false => Err(NoPick::NoRoom),
        }
    }
}

/// Bytes of the values in `emptied` that pointers of `inputs` lead to.
fn moved_len(inputs: &[(u8, Arc<FileMeta>)], emptied: &[Arc<FileMeta>]) -> u64 {
    let is_emptied = |file| emptied.binary_search_by_key(&file, |meta| meta.id).is_ok();
    let references = inputs.iter().flat_map(|(_, file)| &file.references);
    references.filter(|it| is_emptied(it.file)).map(|it| it.live_bytes).sum()
}
