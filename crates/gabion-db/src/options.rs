//! The options with which a store is made and run.

use gabion_base::{Error, GroupId, ReplicaId, Result};
use gabion_engine::TreeConfig;
use gabion_fabric::BackendChoice;
use gabion_host::RunOptions;
use gabion_host::replica::pool_path;
use gabion_node::{
    AckLevel, CompactionMode, GroupConfig, NodeOptions, PoolLengths, check_memtable_len,
};
use gabion_pool::{PoolConfig, Superblock};
use std::path::Path;

/// The shortest pool that holds more than its reserve.
const POOL_LEN_MIN: u64 = 64 << 20;

/// The failures that a returned write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// None, until it was flushed to a file: the write is in a MemTable, past the log. Costs
    /// neither log nor its bytes on the device; for data that can be made again.
    /// [`crate::Db::flush`] writes it to a file, and so does dropping the last handle, which cannot
    /// report an error. An earlier kill loses it, whatever was logged later.
    MemTable,
    /// The kill of the process: the write is in the log's ring, a mapped file. While the store is
    /// open the device gets it with the flush of its MemTable, or after some ten seconds; at the
    /// latest when the store is closed.
    #[default]
    Ring,
    /// A power cut: the log is flushed up to it. Writes of several threads share a flush.
    Flushed,
}

/// How a store is made and run: `Options { pool_len: 1 << 30, ..Options::default() }`. Later
/// versions may have more options, so name the ones that differ and leave the others to
/// [`Options::default`].
///
/// Opening a store cannot change its fixed options: an option that is neither the default nor the
/// store's own is refused, with both values. A default asks for nothing: it opens a store made in
/// any way.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of disk for all that the store keeps, 64 MiB at least, reserved when it is made and
    /// fixed then: [`Db::checkpoint_sized`](crate::Db::checkpoint_sized) copies a store into a pool
    /// of another length. Default 4 GiB. In a pool below 2 GiB the default lengths below shrink
    /// ([`PoolLengths`]), so that more of it is left for data: a batch has a 32nd of the pool at
    /// most.
    pub pool_len: u64,
    /// The shape of the tree, fixed when the store is made. Its codecs and limits, and what lies
    /// apart from it, can be overridden while it runs ([`RunOptions::codecs`],
    /// [`RunOptions::limits`], [`RunOptions::large_values`]). Values from
    /// [`PoolLengths::LARGE_VALUES`] bytes on lie apart in a pool of 1 GiB and more, if this does
    /// not say otherwise; `large_values: Some(0)` in `run` has none apart.
    pub tree: TreeConfig,
    /// Bytes of a log segment, and of the longest record (a whole batch); fixed. Default 16 MiB.
    pub segment_len: u64,
    /// Bytes of the log's ring, a multiple of `segment_len`, at least four; fixed. Writes wait
    /// while all but two segments of it are neither durable nor in files; from three quarters of
    /// that on writes go to the device, too. The ring should hold five MemTables and two segments.
    /// Default 128 MiB.
    pub ring_len: u64,
    /// The options that may change while the store is open; see [`crate::Db::set_run_options`].
    pub run: RunOptions,
    /// The I/O backend. Default: io_uring where the kernel has it.
    pub io: BackendChoice,
    /// Whether to open a store whose ring is lost, although the last process did not close it.
    /// Writes at [`Durability::Ring`] that were acknowledged in its last seconds may be missing
    /// then, and a notice says from when on ([`crate::Db::take_notices`]). Default no:
    /// [`crate::Db::open`] refuses with the same words, so that the ring can be brought back. After
    /// a clean close neither the ring nor this option is needed.
    pub accept_lost_ring: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pool_len: 4 << 30,
            tree: TreeConfig::default(),
            segment_len: 16 << 20,
            ring_len: 128 << 20,
            run: RunOptions::default(),
            io: BackendChoice::Auto,
            accept_lost_ring: false,
        }
    }
}

#[cfg(test)]
impl Options {
    /// A store for a test within this crate.
    pub(crate) fn small() -> Self {
        Self { pool_len: 512 << 20, ring_len: 4 << 20, segment_len: 1 << 20, ..Self::default() }
    }
}

impl Options {
    /// These options with `fit` in place of every length left at its default.
    fn with_lengths(&self, fit: PoolLengths) -> Self {
        let default = Self::default();
        let of = |said: u64, default, fit| if said == default { fit } else { said };
        let segment_len = of(self.segment_len, default.segment_len, fit.segment_len);
        let ring_fit = fit.ring_len.max(segment_len.saturating_mul(8));
        let (said, usual) = (&self.tree, &default.tree);
        let sst_len = of(said.sst_len, usual.sst_len, fit.sst_len);
        let tree = TreeConfig {
            memtable_len: of(said.memtable_len, usual.memtable_len, fit.memtable_len),
            sst_len,
            level1_len: of(said.level1_len, usual.level1_len, fit.level1_len.max(sst_len)),
            large_values: match said.large_values == usual.large_values {
                true => fit.large_values,
                false => said.large_values,
            },
            ..said.clone()
        };
        let ring_len = of(self.ring_len, default.ring_len, ring_fit);
        Self { tree, segment_len, ring_len, ..self.clone() }
    }

    /// The configuration of a group of one in a pool of so many bytes. Lengths that are left at
    /// their default fit the pool.
    pub(crate) fn group(&self, group: GroupId, pool_len: u64) -> Result<GroupConfig> {
        let Self { tree, segment_len, ring_len, .. } = self.with_lengths(PoolLengths::of(pool_len));
        if !ring_len.is_multiple_of(segment_len.max(1)) {
            return Err(Error::invalid(format!(
                "ring_len is {ring_len}, which is no multiple of segment_len, {segment_len}"
            )));
        }
        Ok(GroupConfig {
            group,
            founders: vec![ReplicaId(1)],
            compaction: CompactionMode::Primary,
            ack: AckLevel::Replicated,
            ring_len,
            segment_len,
            tree,
        })
    }

    /// Refuses a fixed option that differs from the one that the store in `dir` was made with: a
    /// caller that names it believes that it holds.
    pub(crate) fn check_fixed(&self, dir: &Path, made: &GroupConfig) -> Result<()> {
        let default = Self::default();
        self.check_pool_len(dir)?;
        check_same(dir, "ring_len", self.ring_len, default.ring_len, made.ring_len)?;
        check_same(dir, "segment_len", self.segment_len, default.segment_len, made.segment_len)?;
        let asked = self.with_lengths(PoolLengths::of_group(made)).tree;
        if self.tree == default.tree || asked == made.tree {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "tree is {asked:?}: {} was made with {:?}, and that is fixed; RunOptions change codecs and limits",
            dir.display(),
            made.tree
        )))
    }

    /// Refuses a pool length other than that of the store in `dir`.
    fn check_pool_len(&self, dir: &Path) -> Result<()> {
        match pool_path(dir).metadata() {
            Ok(pool) if pool.is_file() => {
                check_same(dir, "pool_len", self.pool_len, Self::default().pool_len, pool.len())
            }
            // A device gives all that it has; opening reports a missing file.
            _ => Ok(()),
        }
    }

    /// Checks that a new store can be made and run with these options.
    pub(crate) fn check(&self) -> Result<()> {
        let config =
            PoolConfig { pool_id: [0; 16], group: GroupId(1), len: self.pool_len, region_id: 1 };
        Superblock::plan(&config)
            .map_err(|error| error.within(format!("pool_len is {}", self.pool_len)))?;
        if self.pool_len < POOL_LEN_MIN {
            return Err(Error::limit(format!(
                "pool_len is {}: a store has {POOL_LEN_MIN} at least, of which some 14 MiB are for data",
                self.pool_len
            )));
        }
        self.check_lengths()?;
        self.run.check()?;
        match self.run.limits {
            Some(limits) => check_memtable_len(limits, self.pool_len, &self.tree),
            None => Ok(()),
        }
    }

    /// Refuses lengths for which a full pool would be all reserve. Default lengths fit.
    fn check_lengths(&self) -> Result<()> {
        let made = self.group(GroupId(1), self.pool_len)?;
        let (tree, segment) = (&made.tree, made.segment_len);
        for (name, len, part) in [
            ("tree.memtable_len", tree.memtable_len, 16),
            ("tree.sst_len", tree.sst_len, 16),
            ("segment_len", segment, 6),
        ] {
            let most = self.pool_len / part;
            if len > most {
                return Err(Error::limit(format!(
                    "{name} is {len}: a pool of {} bytes would have no room for data, {most} is the most",
                    self.pool_len
                )));
            }
        }
        Ok(())
    }

    pub(crate) fn node(&self) -> NodeOptions {
        NodeOptions { compactions_max: self.run.compactions_max, ..NodeOptions::default() }
    }
}

fn check_same(dir: &Path, name: &str, asked: u64, default: u64, made: u64) -> Result<()> {
    if asked == made || asked == default {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{name} is {asked}: {} was made with {made}, and that is fixed",
        dir.display()
    )))
}
