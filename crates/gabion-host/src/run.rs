//! How a replica is run: what may change while it does.

use gabion_base::{Error, Result};
#[cfg(doc)]
use gabion_engine::TreeConfig;
use gabion_engine::cache::OPEN_FILES_LEN;
use gabion_engine::{Codecs, Compression, WriteLimits, check_large_values};
use gabion_node::NodeOptions;

/// Options that may change while a store is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Bytes of memory for decoded blocks of files; 0 keeps none. Default 64 MiB.
    pub block_cache_len: usize,
    /// Bytes of memory for indexes and filters of open files, which take about 2 % of a file. Files
    /// that are read while there is room stay open, but an eighth is for those that come later: of
    /// these the ones that were not used lately are dropped as a whole, 0.3 MiB of a file of 16
    /// MiB, and read again when they are needed. Default 1 GiB, enough for some 50 GB of files.
    /// With less than 2 % of the data that is read at random, most reads read an index first.
    pub open_files_len: usize,
    /// Compactions that may run at once, 1 to [`Self::COMPACTIONS_MAX`]; a flush has a thread of
    /// its own. Default 1.
    pub compactions_max: usize,
    /// The codecs of files that are made from now on. Default none: those of [`TreeConfig`] with
    /// which the store was made. Each file says its own, so those that are there are read as they
    /// are, and get these as compactions write them anew; compacting a range on demand has that
    /// done for the bottom, where most bytes lie.
    pub codecs: Option<Codecs>,
    /// When MemTables are sealed, and how many runs of L0 begin a compaction, slow writers down and
    /// stop them. Default none: those of [`TreeConfig`] with which the store was made. A MemTable
    /// may have a sixteenth of the pool. With longer ones, and more runs of L0, writers are held
    /// back later in a burst; reads look at more, a start replays more, and a pool is full sooner,
    /// as room is kept to flush and compact all that may be in memory. L1 stays as long as it was
    /// made, and as many bytes in L0 begin a compaction, however few runs they are. MemTables of
    /// which five are more than the ring has without two segments cost more: the log goes to the
    /// device then before their flush takes it off.
    pub limits: Option<WriteLimits>,
    /// Values of so many bytes, or more, go to values files apart from the tree from now on, 64 to
    /// 8 MiB; 0: none does. Default none: as [`TreeConfig::large_values`] says, with which the
    /// store was made. Values that are there stay in place, and are read there.
    pub large_values: Option<u32>,
    /// The codec of values from `large_values` on that are written from now on. Default none: as
    /// [`TreeConfig::value_compression`] says, with which the store was made. Each value says its
    /// own, so what is there is read as it is.
    pub value_compression: Option<Compression>,
    /// Bytes a second of large values that compactions copy at most out of files with much garbage,
    /// besides as many as are written, 1 MiB or more, while there is room; 0: as many as there are.
    /// Default 100,000,000. With less, more garbage stays; once room is short there is no limit.
    pub collection_bytes_per_s: u64,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            block_cache_len: 64 << 20,
            open_files_len: OPEN_FILES_LEN,
            compactions_max: 1,
            codecs: None,
            limits: None,
            large_values: None,
            value_compression: None,
            collection_bytes_per_s: NodeOptions::COLLECTION_RATE,
        }
    }
}

impl RunOptions {
    /// The most compactions at once.
    pub const COMPACTIONS_MAX: usize = 64;

    /// Refuses what is out of its limits.
    ///
    /// # Errors
    /// Invalid input, naming the option and its limit.
    pub fn check(&self) -> Result<()> {
        if let Some(codecs) = self.codecs {
            codecs.check()?;
        }
        if let Some(limits) = self.limits {
            limits.check()?;
        }
        if let Some(large_values) = self.large_values {
            check_large_values(large_values)?;
        }
        if let Some(codec) = self.value_compression {
            codec.check("value_compression")?;
        }
        NodeOptions::check_collection_rate(self.collection_bytes_per_s)?;
        if (1..=Self::COMPACTIONS_MAX).contains(&self.compactions_max) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "compactions_max is {}, 1 to {} are possible",
            self.compactions_max,
            Self::COMPACTIONS_MAX
        )))
    }
}
