//! A tree's contents, for readers, status and limits.

use super::{LevelStats, Pressure, Sealed, Tree, TreeMemory, WriteState};
use crate::config::{Codecs, TreeConfig, WriteLimits, check_large_values};
use crate::edit::Flushed;
use crate::file::FileMeta;
#[cfg(doc)]
use crate::picker::Strategy;
use crate::picker::{Picker, WhyIdle};
use crate::read::{ReadPoint, ReadView};
use crate::readers::{Pin, PinBudget, ReaderStats};
use crate::sst::Compression;
use crate::version::Version;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{FileId, MemTableId, Result, SequenceNumber};

/// Garbage of so many files at their full length is no reason to slow writers down.
const GARBAGE_FILES: u64 = 8;

impl Tree {
    /// The tree as it is now, for reads. It ends when it is past the pin budget, and with the tree.
    #[must_use]
    pub fn view(&self) -> ReadView {
        ReadView::budgeted(self.now.state.clone(), self.read_point())
    }

    /// The same, which no budget ends and which outlives the tree: whoever takes one sees to it
    /// that it goes.
    #[must_use]
    pub fn lasting_view(&self) -> ReadView {
        ReadView::lasting(Pin(self.now.shape.clone()), self.read_point())
    }

    const fn read_point(&self) -> ReadPoint {
        ReadPoint { sequence: self.last_sequence, floor: self.floor, now_ms: self.now_ms }
    }

    /// Ends the oldest views and iterators that keep what the tree gave up beyond `budget`. To be
    /// called after edits and now and then, before [`Tree::obsolete_files`]; ages count from the
    /// first call after the edit.
    pub fn limit_readers(&mut self, now_ms: u64, budget: PinBudget) {
        self.readers.limit(now_ms, budget);
    }

    /// The readers, and what they cost.
    #[must_use]
    pub fn readers(&self, now_ms: u64) -> ReaderStats {
        self.readers.stats(&self.now, self.flushed.memtable, now_ms)
    }

    /// Its configuration, with the codecs and limits that it has now.
    #[must_use]
    pub const fn config(&self) -> &TreeConfig {
        &self.config
    }

    /// Takes other codecs, for jobs that begin from now on. Only who begins jobs has to; nothing
    /// remembers it beyond this tree's life.
    ///
    /// # Errors
    /// Invalid input for a level out of its limits; nothing has changed then.
    pub fn set_codecs(&mut self, codecs: Codecs) -> Result<()> {
        codecs.check()?;
        self.config.sst.compression = codecs.upper;
        self.config.bottom_compression = codecs.bottom;
        self.look_for_jobs_anew();
        Ok(())
    }

    /// Takes another length from which on values go to values files, for flushes that begin from
    /// now on; 0 for none. Values that are there stay in place. Only the member that begins jobs
    /// needs it; nothing remembers it beyond this tree's life.
    ///
    /// # Errors
    /// Invalid input for a length out of its limits; nothing has changed then.
    pub fn set_large_values(&mut self, large_values: u32) -> Result<()> {
        check_large_values(large_values)?;
        self.config.large_values = large_values;
        self.active.count_large_from(large_values);
        Ok(())
    }

    /// Takes another codec of values, for those that are written from now on. Only the member that
    /// takes writes needs it; nothing remembers it beyond this tree's life.
    ///
    /// # Errors
    /// Invalid input for a level out of its limits; nothing has changed then.
    pub fn set_value_compression(&mut self, codec: Compression) -> Result<()> {
        codec.check("value_compression")?;
        self.config.value_compression = codec;
        Ok(())
    }

    /// Takes other limits, from the next write and the next job on: a MemTable that is too long for
    /// a smaller one is sealed with the next write to it. Only who seals MemTables and begins jobs
    /// has to; nothing remembers it beyond this tree's life.
    ///
    /// # Errors
    /// Invalid input that names the limit; nothing has changed then.
    pub fn set_write_limits(&mut self, limits: WriteLimits) -> Result<()> {
        limits.check()?;
        let WriteLimits { memtable_len, l0_trigger, l0_slowdown, l0_stop } = limits;
        if memtable_len < self.config.memtable_len {
            let before = self.jobs.longer.map_or(0, |(_, len)| len);
            self.jobs.longer = Some((self.active.id(), before.max(self.config.memtable_len)));
        }
        self.config =
            TreeConfig { memtable_len, l0_trigger, l0_slowdown, l0_stop, ..self.config.clone() };
        self.look_for_jobs_anew();
        Ok(())
    }

    /// Jobs that had no room, or nothing to gain, may begin now.
    fn look_for_jobs_anew(&mut self) {
        (self.jobs.idle, self.jobs.needed) = (None, None);
    }

    /// The current version.
    #[must_use]
    pub const fn version(&self) -> &Arc<Version> {
        self.versions.current()
    }

    /// The MemTable being filled.
    #[must_use]
    pub fn active_id(&self) -> MemTableId {
        self.active.id()
    }

    /// Memory of the MemTable being filled, in bytes.
    #[must_use]
    pub fn active_len(&self) -> u64 {
        self.active.memory_used() as u64
    }

    /// Bytes charged for all MemTables, sealed ones included.
    #[must_use]
    pub fn memtables_len(&self) -> u64 {
        let sealed = self.sealed.iter().map(|sealed| sealed.table.memory_used() as u64);
        sealed.sum::<u64>() + self.active_len()
    }

    /// Bytes of memory that the tree takes, by what for.
    #[must_use]
    pub fn memory(&self) -> TreeMemory {
        let of = |sealed: &Sealed| sealed.table.allocated() + sealed.places.memory_used();
        let sealed = self.sealed.iter().map(|sealed| of(sealed) as u64);
        let leaving = self.leaving_files().iter().map(|file| file.memory_used() as u64);
        TreeMemory {
            active: (self.active.allocated() + self.places.memory_used()) as u64,
            sealed: sealed.sum(),
            kept: self.kept.iter().map(|table| table.bytes() as u64).sum(),
            files: self.version().memory_used() as u64 + leaving.sum::<u64>(),
        }
    }

    /// Whether the MemTable being filled holds nothing.
    #[must_use]
    pub fn active_is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Whether a seal and its flush would make something last that no flush or edit has yet: what
    /// the MemTable being filled holds, or a clear, which is no entry but a number in edits.
    #[must_use]
    pub fn has_unsealed(&self) -> bool {
        !self.active_is_empty() || self.floor > self.floor_in_edits.max(self.sealed_sequence())
    }

    /// MemTables that wait for their flush to be applied.
    #[must_use]
    pub fn sealed_count(&self) -> usize {
        self.sealed.len()
    }

    /// The last write before the last seal.
    #[must_use]
    pub fn sealed_sequence(&self) -> SequenceNumber {
        self.sealed.back().map_or(self.flushed.sequence, |sealed| sealed.last_sequence)
    }

    /// The last applied write.
    #[must_use]
    pub const fn last_sequence(&self) -> SequenceNumber {
        self.last_sequence
    }

    /// The number of the last applied edit.
    #[must_use]
    pub const fn last_edit(&self) -> u64 {
        self.last_edit
    }

    /// User entries with a smaller sequence number are invisible.
    #[must_use]
    pub const fn floor(&self) -> SequenceNumber {
        self.floor
    }

    /// The part that files hold; the log is needed from its position on.
    #[must_use]
    pub const fn flushed(&self) -> Flushed {
        self.flushed
    }

    /// Size of each level, from L0 on.
    #[must_use]
    pub fn level_stats(&self) -> Vec<LevelStats> {
        let version = self.version();
        let stats = |level| LevelStats {
            files: version.level(level).len() as u64,
            bytes: version.level_len(level),
        };
        (0..version.level_count()).map(stats).collect()
    }

    /// Bytes that compactions have yet to rewrite until every level is within its aim; those of
    /// jobs under way count until their edits are applied. Costs a look at the lengths of each
    /// level.
    #[must_use]
    pub fn compaction_debt(&self) -> u64 {
        Picker::new(&self.config, self.version(), &BTreeSet::new()).debt()
    }

    /// Why no compaction was begun when one was last looked for, by [`Strategy::ORDER`]; none while
    /// one may be found. Only who begins jobs knows.
    #[must_use]
    pub fn why_idle(&self) -> Option<WhyIdle> {
        self.jobs.idle.as_ref().map(|idle| idle.why)
    }

    /// Files that left the tree and that no view, iterator or job can read any more; each is
    /// reported once. Their slots are free to be used again.
    pub fn obsolete_files(&mut self) -> Vec<FileId> {
        self.readers.forget_unread();
        self.versions.obsolete_files()
    }

    /// Files that left the tree but are still being read.
    #[must_use]
    pub fn leaving_files(&self) -> &[Arc<FileMeta>] {
        self.versions.leaving()
    }

    /// How far garbage among large values is on its way from where writers are to be slowed down to
    /// twice as much, in thousandths; none below that: half of what lives, and eight files.
    /// Compactions that could keep up leave far less.
    #[must_use]
    pub fn garbage_fill(&self) -> Option<u64> {
        let stats = self.version().values_stats();
        let from = stats.live_bytes / 2 + GARBAGE_FILES * self.config.sst_len;
        // Headers and small entries in segments were never values.
        let over = u128::from(stats.replaced_bytes.checked_sub(from)?);
        u64::try_from(over * 1000 / u128::from(from.max(1))).ok()
    }

    /// Whether writers may go on.
    #[must_use]
    pub fn write_state(&self) -> WriteState {
        let sealed = self.sealed.len() as u32;
        let l0 = self.version().runs().len() as u32;
        let (sealed_max, config) = (self.config.sealed_max, &self.config);
        if sealed >= sealed_max {
            WriteState::Stop(Pressure::SealedMemTables(sealed))
        } else if l0 >= config.l0_stop {
            WriteState::Stop(Pressure::Level0Runs(l0))
        } else if let Some(over) = l0.checked_sub(config.l0_slowdown) {
            let way = config.l0_stop - config.l0_slowdown;
            WriteState::Slow(u64::from(over) * 1000 / u64::from(way.max(1)))
        } else {
            WriteState::Ok
        }
    }
}
