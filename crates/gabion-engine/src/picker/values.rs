//! Picks what gives back the room of dead values: values files to be emptied, and SSTs to be
//! written anew for it.
//!
//! ```text
//!   live share of a values file = bytes that SSTs reference ÷ bytes of its values
//! ```
//!
//! Every compaction empties the files that it meets pointers to and whose live share is low: what
//! still lives goes to a new file, and the old one goes with the last SST that references it. That
//! alone keeps up with overwrites that compactions meet. Where nothing is to be compacted and more
//! than a quarter of all values are dead, SSTs are written anew where they lie, those first that
//! reference the file with the most garbage.
//!
//! A file is worth it when half of it is dead: then no more is written than is given back. When a
//! quarter of all values are dead, a quarter of a file is enough, as there is no other way to less.
//! When room is short, a twentieth.

use super::pick::{NoPick, OutputLen, Picked, first_pick, or_longer};
use super::shape::Picker;
use crate::file::FileMeta;
use crate::job::{EMPTIED_MAX, Outgoing};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Most of a file that may live when it is emptied, in thousandths.
const LIVE_USUAL: u64 = 500;
/// The same while [`GARBAGE_MAX`] is passed.
const LIVE_OF_GARBAGE: u64 = 750;
/// The same while room is short.
const LIVE_URGENT: u64 = 950;
/// From so many dead bytes of all values on, in thousandths, SSTs are written anew for their sake.
const GARBAGE_MAX: u64 = 250;
/// A job copies so many times the length of its outputs of values, at most, or one file's.
const MOVED_OUTPUTS: u64 = 4;

impl Picker<'_> {
    /// The values files that a compaction of `inputs` is to empty, ascending: those with the most
    /// garbage of the ones that it has pointers to.
    pub(crate) fn emptied(&self, inputs: &[(u8, Arc<FileMeta>)]) -> Vec<Arc<FileMeta>> {
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
        emptied.sort_by_key(|meta| meta.id);
        emptied
    }

    /// Bytes of a file's values that nothing leads to.
    fn dead_bytes(&self, file: &FileMeta) -> u64 {
        let live = self.version.referenced().get(&file.id).copied().unwrap_or_default();
        file.raw_value_bytes.saturating_sub(live)
    }

    fn is_worth_emptying(&self, file: &FileMeta) -> bool {
        let dead_least = u128::from(1000 - self.live_max());
        u128::from(self.dead_bytes(file)) * 1000 >= u128::from(file.raw_value_bytes) * dead_least
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
