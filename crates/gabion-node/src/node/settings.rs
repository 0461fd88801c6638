//! Settings that may change while a replica runs.

use super::Node;
use crate::NodeOptions;
use alloc::format;
use gabion_base::Error;
use gabion_base::units::MIB;
use gabion_engine::{Codecs, Compression, PinBudget, TreeConfig, WriteLimits};

/// How many MemTables, each as long as may be set while a replica runs, a pool has room for; as
/// many as `gabion up` asks for.
const MEMTABLES_OF_POOL: u64 = 16;

/// Checks that MemTables are no longer than a sixteenth of a pool of so many bytes, unless `made`
/// has them so.
///
/// # Errors
/// Invalid input that names length and limit.
pub fn check_memtable_len(
    limits: WriteLimits,
    pool_len: u64,
    made: &TreeConfig,
) -> gabion_base::Result<()> {
    let most = (pool_len / MEMTABLES_OF_POOL).max(made.memtable_len);
    if limits.memtable_len <= most {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "memtable_len is {}, of a pool of {pool_len} bytes it may be {most}",
        limits.memtable_len
    )))
}

impl Node {
    /// Changes how many compactions may run at once. Those under way go on.
    pub fn set_compactions_max(&mut self, compactions_max: usize) {
        self.options.compactions_max = compactions_max;
    }

    /// How many compactions may run at once.
    #[must_use]
    pub const fn compactions_max(&self) -> usize {
        self.options.compactions_max
    }

    /// Changes how many bytes a second this member fetches while it is being filled and the group's
    /// log grows.
    ///
    /// # Errors
    /// Invalid input for a rate out of its limits; nothing has changed then.
    pub fn set_rebuild_rate(&mut self, bytes_per_s: u64) -> gabion_base::Result<()> {
        NodeOptions::check_rebuild_rate(bytes_per_s)?;
        self.options.rebuild_bytes_per_s = bytes_per_s;
        Ok(())
    }

    /// The rate of [`Self::set_rebuild_rate`].
    #[must_use]
    pub const fn rebuild_rate(&self) -> u64 {
        self.options.rebuild_bytes_per_s
    }

    /// Changes how many bytes a second of large values jobs of this member's copy at most out of
    /// files with much garbage, while there is room; 0: as many as there are.
    ///
    /// # Errors
    /// Invalid input for a rate out of its limits; nothing has changed then.
    pub fn set_collection_rate(&mut self, bytes_per_s: u64) -> gabion_base::Result<()> {
        NodeOptions::check_collection_rate(bytes_per_s)?;
        self.options.collection_bytes_per_s = bytes_per_s;
        Ok(())
    }

    /// The rate of [`Self::set_collection_rate`].
    #[must_use]
    pub const fn collection_rate(&self) -> u64 {
        self.options.collection_bytes_per_s
    }

    /// Bytes of large values that jobs here have copied out of files with garbage since the start,
    /// and how many a second, lately.
    #[must_use]
    pub fn collected(&self) -> (u64, u64) {
        self.jobs.collected()
    }

    /// Changes the codecs of files that are made from now on by jobs of this member's; none: those
    /// of the group. Other members need not know: each recipe names its own.
    ///
    /// # Errors
    /// Invalid input for a level out of its limits; nothing has changed then.
    pub fn set_codecs(&mut self, codecs: Option<Codecs>) -> gabion_base::Result<()> {
        self.tree.set_codecs(codecs.unwrap_or_else(|| self.config.tree.codecs()))?;
        self.room.forget_jobs();
        Ok(())
    }

    /// Changes from which length on values go to values files, when this member flushes; 0: none
    /// does. None: as the group says. Other members need not know: each recipe tells.
    ///
    /// # Errors
    /// Invalid input for a length out of its limits; nothing has changed then.
    pub fn set_large_values(&mut self, large_values: Option<u32>) -> gabion_base::Result<()> {
        let large_values = large_values.unwrap_or(self.config.tree.large_values);
        self.tree.set_large_values(large_values)?;
        self.options.large_values = Some(large_values);
        self.writing.pack_as(self.tree.config());
        Ok(())
    }

    /// Changes the codec with which this member packs large values, when it takes writes: values
    /// that are there stay as they are. None: as the group says. Other members need not know: each
    /// value tells.
    ///
    /// # Errors
    /// Invalid input for a level out of its limits; nothing has changed then.
    pub fn set_value_compression(&mut self, codec: Option<Compression>) -> gabion_base::Result<()> {
        let codec = codec.unwrap_or(self.config.tree.value_compression);
        self.tree.set_value_compression(codec)?;
        self.options.value_compression = Some(codec);
        self.writing.pack_as(self.tree.config());
        Ok(())
    }

    /// Changes when MemTables are sealed and how many runs L0 may have, where this member decides
    /// that: it has the first as the head, the others where it compacts. None: as the group says.
    ///
    /// # Errors
    /// Invalid input for a limit out of its own limits, and for MemTables longer than a sixteenth
    /// of the pool and than the group's: flushes of them would leave compactions no room. Nothing
    /// has changed then.
    pub fn set_write_limits(&mut self, limits: Option<WriteLimits>) -> gabion_base::Result<()> {
        self.check_write_limits(limits)?;
        let limits = limits.unwrap_or_else(|| self.config.tree.write_limits());
        self.tree.set_write_limits(limits)?;
        self.room.forget_jobs();
        Ok(())
    }

    /// Whether [`Self::set_write_limits`] would take these.
    ///
    /// # Errors
    /// As there.
    pub fn check_write_limits(&self, limits: Option<WriteLimits>) -> gabion_base::Result<()> {
        let Some(limits) = limits else { return Ok(()) };
        limits.check()?;
        // Less than a slot of the pool lies behind the region.
        let pool_len = self.pool.region().end().next_multiple_of(MEMTABLES_OF_POOL * MIB);
        check_memtable_len(limits, pool_len, &self.config.tree)
    }

    /// To be called after the budget of open files changed: see
    /// [`Tree::close_files`](gabion_engine::Tree::close_files).
    pub fn close_files(&mut self) {
        self.tree.close_files();
    }

    /// Changes what readers may keep. Those past a smaller budget end with the next event.
    pub fn set_pin_budget(&mut self, pin_budget: PinBudget) {
        self.options.pin_budget = pin_budget;
    }

    /// The budget of readers.
    #[must_use]
    pub const fn pin_budget(&self) -> PinBudget {
        self.options.pin_budget
    }
}
