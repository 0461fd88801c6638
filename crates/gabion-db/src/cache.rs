//! Caches that all threads read through: shards of the engine's block cache, each behind a lock of its
//! own, and the open files behind one that look-ups share.

use bytes::Bytes;
use gabion_base::{FileId, GroupId, Result};
use gabion_engine::cache::{CacheStats, OpenFiles, WarmCache, warm, warm_new};
use gabion_engine::{BlockCache, FileMeta, ReadCache, SstReader};
use gabion_node::work::BuiltFile;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Two threads meet in one of them seldom enough, and each is still large against a block.
const SHARDS: usize = 16;

/// Blocks that begin in the same 64 KiB of a file are in one shard, so that who goes through them takes its lock once
/// for several; two threads seldom read there at the same time.
const STRETCH_BITS: u32 = 16;

/// The blocks of a flush are kept where they are no more than such a part of the cache: that of its small queue,
/// through which they go.
const NEW_PART: usize = 10;

/// Bytes of built files that are looked at for warming for each block that was looked for: sixteen blocks of usual
/// length.
const LEN_PER_LOOK: u64 = 64 << 10;

/// The part of the cache in bytes of built files that are looked at, at most, after the last look-up.
const CREDIT_PART: u64 = 4;

/// What may be warmed: whoever only writes would pay for it, all the more with a large cache that was filled before.
#[derive(Default)]
struct Credit {
    /// Look-ups of blocks that were counted.
    looked: u64,
    /// Bytes of files.
    bytes: u64,
}

impl Credit {
    /// Takes the bytes of a file, if so many look-ups of late allow for it. With a small cache they save up for one file.
    fn take(&mut self, looked: u64, len: u64, bytes_max: u64) -> bool {
        let since = looked.saturating_sub(self.looked);
        self.looked = looked;
        let bytes = self.bytes.saturating_add(since.saturating_mul(LEN_PER_LOOK));
        let bytes = bytes.min(bytes_max.max(len));
        let left = bytes.checked_sub(len);
        self.bytes = left.unwrap_or(bytes);
        left.is_some()
    }
}

/// Blocks and open files, shared by threads.
pub(crate) struct SharedCache {
    shards: Vec<Mutex<BlockCache>>,
    open: RwLock<OpenFiles>,
    /// What may be warmed.
    credit: Mutex<Credit>,
}

impl SharedCache {
    pub(crate) fn new(capacity: usize, open_len: usize) -> Self {
        let shard = || Mutex::new(BlockCache::new(capacity / SHARDS));
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            open: RwLock::new(OpenFiles::new(open_len)),
            credit: Mutex::default(),
        }
    }

    /// Changes the bytes that all blocks together may take, and those of open files: as [`OpenFiles::set_capacity`].
    pub(crate) fn set_capacity(&self, capacity: usize, open_len: usize) -> bool {
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).set_capacity(capacity / SHARDS);
        }
        self.open.write().unwrap_or_else(PoisonError::into_inner).set_capacity(open_len)
    }

    /// The bytes that all blocks together may take.
    fn capacity(&self) -> usize {
        SHARDS * self.shards[0].lock().unwrap_or_else(PoisonError::into_inner).capacity()
    }

    fn shard(&self, file: FileId, offset: u64) -> MutexGuard<'_, BlockCache> {
        // Fibonacci hashing of what differs between neighbouring stretches.
        let mixed = (file.number ^ (offset >> STRETCH_BITS)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (mixed >> 60) as usize % SHARDS;
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a file that a job has built, and keeps of its blocks what readers will want, where they had of the job's
    /// inputs. Of a flush, whose inputs are MemTables, they will want the newest there is. Nothing is done where
    /// little was looked for of late.
    ///
    /// # Errors
    /// Corruption when the bytes are not those of the file.
    pub(crate) fn warm(
        &self,
        group: GroupId,
        inputs: &[(u8, Arc<FileMeta>)],
        file: &BuiltFile,
    ) -> Result<()> {
        let is_open = |(_, input): &(u8, Arc<FileMeta>)| self.reader(input.id).is_some();
        if !inputs.is_empty() && !inputs.iter().any(is_open) {
            return Ok(()); // nobody reads there
        }
        let CacheStats { hits, misses, .. } = self.stats();
        let (len, most) = (file.bytes.len() as u64, self.capacity() as u64 / CREDIT_PART);
        let mut credit = self.credit.lock().unwrap_or_else(PoisonError::into_inner);
        let may_warm = credit.take(hits + misses, len, most);
        drop(credit);
        if !may_warm {
            return Ok(());
        }
        if !inputs.is_empty() {
            return warm(self, group, inputs, &file.meta, &file.bytes).map(|_| ());
        }
        warm_new(self, group, &file.meta, &file.bytes, self.capacity() / NEW_PART).map(|_| ())
    }

    /// Forgets a file that is no longer live.
    pub(crate) fn evict_file(&self, file: FileId) {
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).evict_file(file);
        }
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(file);
    }

    /// Sums over the shards.
    pub(crate) fn stats(&self) -> CacheStats {
        let mut sum = CacheStats::default();
        for shard in &self.shards {
            let stats = shard.lock().unwrap_or_else(PoisonError::into_inner).stats();
            sum.hits += stats.hits;
            sum.misses += stats.misses;
            sum.evictions += stats.evictions;
            sum.bytes += stats.bytes;
            sum.blocks += stats.blocks;
        }
        sum
    }

    /// Bytes of the index and filter of open files.
    pub(crate) fn open_bytes(&self) -> usize {
        self.open.read().unwrap_or_else(PoisonError::into_inner).memory_used()
    }
}

impl WarmCache for SharedCache {
    fn blocks_here(&self, file: FileId) -> Vec<u64> {
        let mut offsets = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.blocks_of(file, &mut offsets);
        }
        offsets.sort_unstable();
        offsets
    }

    fn warm_block(&self, file: FileId, offset: u64, block: Bytes) {
        self.shard(file, offset).insert_warm(file, offset, block);
    }
}

impl ReadCache for SharedCache {
    fn block(&self, file: FileId, offset: u64) -> Option<Bytes> {
        self.shard(file, offset).get(file, offset)
    }

    fn blocks(&self, file: FileId, offsets: &[u64], found: &mut Vec<Bytes>) {
        for run in offsets.chunk_by(|a, b| a >> STRETCH_BITS == b >> STRETCH_BITS) {
            let before = found.len();
            self.shard(file, run[0]).get_run(file, run, found);
            if found.len() - before < run.len() {
                return;
            }
        }
    }

    fn keep_block(&self, file: FileId, offset: u64, block: Bytes) {
        self.shard(file, offset).insert(file, offset, block);
    }

    fn reader(&self, file: FileId) -> Option<Arc<SstReader>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(file)
    }

    fn keep_reader(&self, file: FileId, reader: Arc<SstReader>) -> Arc<SstReader> {
        self.open.write().unwrap_or_else(PoisonError::into_inner).keep(file, reader)
    }

    fn pin_reader(&self, file: FileId) -> bool {
        // Past the budget every read of a file asks.
        let can_pin = self.open.read().unwrap_or_else(PoisonError::into_inner).can_pin(file);
        can_pin && self.open.write().unwrap_or_else(PoisonError::into_inner).pin(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_warmed_as_far_as_look_ups_of_late_allow_for_it() {
        let (mut credit, mib) = (Credit::default(), 1 << 20);
        assert!(!credit.take(0, 1, 16 * mib), "nobody reads");
        assert!(credit.take(16, mib, 16 * mib));
        assert!(!credit.take(16, 1, 16 * mib));
        // However much was read, no more than this after the last of it.
        let warmed = (0..100).filter(|_| credit.take(1_000_000, mib, 16 * mib)).count();
        assert_eq!(warmed, 16);
        // Where a block is looked for now and then, part of the files.
        let warmed = (0..100).filter(|n| credit.take(1_000_000 + n, mib, 16 * mib)).count();
        assert_eq!(warmed, 6);
        // With a cache that is small against files, one of them.
        let mut credit = Credit::default();
        assert!(!credit.take(128, 16 * mib, 8 * mib), "half of what it takes");
        assert!(credit.take(1_000_000, 16 * mib, 8 * mib));
        assert!(!credit.take(1_000_000, 16 * mib, 8 * mib));
    }
}
