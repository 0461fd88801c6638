//! Caches that all threads read through: shards of the engine's block cache, each behind a lock of
//! its own, and the open files behind one that look-ups share. Shared with the server.
//!
//! Here it is decided what is warmed after an edit, how much of it, and what it came to: of a file
//! that a job has built ([`SharedCache::warm`]), and of one that was sent here
//! ([`SharedCache::begin_warming`]).

use bytes::Bytes;
use gabion_base::{FileId, FileKind, GroupId, Result};
use gabion_engine::cache::{
    CacheStats, Had, OpenFiles, WarmCache, Warmed, Warming, warm, warm_new,
};
use gabion_engine::{BlockCache, FileMeta, FileSource, ReadCache, SstReader};
use gabion_node::work::BuiltFile;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Two threads meet in one of them seldom enough, and each is still large against a block.
const SHARDS: usize = 16;

/// Blocks that begin in the same 64 KiB of a file are in one shard, so that who goes through them
/// takes its lock once for several; two threads seldom read there at the same time.
const STRETCH_BITS: u32 = 16;

/// The blocks of a flush are kept where they are no more than such a part of the cache: that of its
/// small queue, through which they go.
const NEW_PART: usize = 10;

/// Bytes of built files that are looked at for warming for each block that was looked for: sixteen
/// blocks of usual length.
const LEN_PER_LOOK: u64 = 64 << 10;

/// The part of the cache in bytes of built files that are looked at, at most, after the last
/// look-up.
const CREDIT_PART: u64 = 4;

/// What may be warmed: whoever only writes would pay for it, all the more with a large cache that
/// was filled before.
#[derive(Default)]
struct Credit {
    /// Look-ups of blocks that were counted.
    looked: u64,
    /// Bytes of files.
    bytes: u64,
}

impl Credit {
    /// Takes the bytes of a file, if so many look-ups of late allow for it. With a small cache they
    /// save up for one file.
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

/// What was warmed since the cache was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmStats {
    /// Blocks that were put into the cache before anybody asked for them.
    pub blocks: u64,
    /// Their bytes, decoded.
    pub bytes: u64,
    /// Files that were not warmed although readers had of what they were made of: a read failed, or
    /// they left the tree before their turn.
    pub given_up: u64,
}

#[derive(Default)]
struct WarmCounters {
    blocks: AtomicU64,
    bytes: AtomicU64,
    given_up: AtomicU64,
}

/// Blocks and open files, shared by threads.
///
/// A block takes a sixteenth of the budget at most: one that is larger, as with values of megabytes
/// in a small cache, is not kept.
pub struct SharedCache {
    shards: Vec<Mutex<BlockCache>>,
    capacity: AtomicUsize,
    open: RwLock<OpenFiles>,
    /// What may be warmed.
    credit: Mutex<Credit>,
    counters: WarmCounters,
}

impl SharedCache {
    /// Empty caches: of blocks at most `capacity` bytes, of indexes and filters of open files
    /// `open_len`.
    #[must_use]
    pub fn new(capacity: usize, open_len: usize) -> Self {
        let shard = || Mutex::new(BlockCache::new(capacity / SHARDS));
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            capacity: AtomicUsize::new(capacity),
            open: RwLock::new(OpenFiles::new(open_len)),
            credit: Mutex::default(),
            counters: WarmCounters::default(),
        }
    }

    /// Changes the bytes that all blocks together may take, and those of open files: as
    /// [`OpenFiles::set_capacity`].
    pub fn set_capacity(&self, capacity: usize, open_len: usize) -> bool {
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).set_capacity(capacity / SHARDS);
        }
        self.capacity.store(capacity, Ordering::Relaxed);
        self.open.write().unwrap_or_else(PoisonError::into_inner).set_capacity(open_len)
    }

    /// The bytes that all blocks together may take.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    /// The bytes that indexes and filters of open files may take.
    #[must_use]
    pub fn open_capacity(&self) -> usize {
        self.open.read().unwrap_or_else(PoisonError::into_inner).capacity()
    }

    fn shard(&self, file: FileId, offset: u64) -> MutexGuard<'_, BlockCache> {
        // Fibonacci hashing of what differs between neighbouring stretches.
        let mixed = (file.number ^ (offset >> STRETCH_BITS)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (mixed >> 60) as usize % SHARDS;
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a file that a job has built, and keeps of its blocks what readers will want, where
    /// they had of the job's inputs. Of a flush, whose inputs are MemTables, they will want the
    /// newest there is. Nothing is done where little was looked for of late.
    ///
    /// # Errors
    /// Corruption when the bytes are not those of the file. The store can do without; who reads the
    /// file later meets the same.
    pub fn warm(
        &self,
        group: GroupId,
        inputs: &[(u8, Arc<FileMeta>)],
        file: &BuiltFile,
    ) -> Result<()> {
        if file.meta.id.kind != FileKind::Sst {
            return Ok(()); // its values come as they are read
        }
        let is_open = |(_, input): &(u8, Arc<FileMeta>)| self.reader(input.id).is_some();
        if !inputs.is_empty() && !inputs.iter().any(is_open) {
            return Ok(()); // nobody reads there
        }
        if !self.may_warm(file.bytes.len() as u64) {
            return Ok(());
        }
        let warmed = match inputs.is_empty() {
            true => warm_new(self, group, &file.meta, &file.bytes, self.new_len_max()),
            false => warm(self, group, inputs, &file.meta, &file.bytes),
        };
        self.count(warmed).map(|_| ())
    }

    /// The same for a file that was sent here and lies on the device, whose edit is applied: opens
    /// it and says what is to be read of it, by [`Self::step_warming`]. `had` is what readers had
    /// of the inputs before these left the cache; none for a flush. None where there is nothing to
    /// do.
    ///
    /// # Errors
    /// As [`Warming::of_inputs`].
    pub async fn begin_warming(
        &self,
        source: &impl FileSource,
        group: GroupId,
        had: Option<&Had>,
        file: &FileMeta,
    ) -> Result<Option<Warming>> {
        if had.is_some_and(|had| !had.is_near(file)) || !self.may_warm(file.rounded_len()) {
            return Ok(None);
        }
        let begun = match had {
            Some(had) => Warming::of_inputs(self, source, group, had, file).await,
            None => Warming::of_flush(self, source, group, file, self.new_len_max()).await,
        };
        begun.inspect_err(|_| self.given_up(1))
    }

    /// Reads a mebibyte of what is to be warmed. Says whether there is more.
    ///
    /// # Errors
    /// As [`Warming::step`].
    pub async fn step_warming(
        &self,
        source: &impl FileSource,
        warming: &mut Warming,
    ) -> Result<bool> {
        let step = warming.step(self, source).await;
        let more = step.as_ref().is_ok_and(|(_, more)| *more);
        self.count(step.map(|(warmed, _)| warmed)).map(|_| more)
    }

    fn count(&self, warmed: Result<Warmed>) -> Result<Warmed> {
        match &warmed {
            Ok(warmed) => {
                self.counters.blocks.fetch_add(warmed.blocks, Ordering::Relaxed);
                self.counters.bytes.fetch_add(warmed.bytes, Ordering::Relaxed);
            }
            Err(_) => self.given_up(1),
        }
        warmed
    }

    /// So many files are not warmed, or not to their end.
    pub fn given_up(&self, files: u64) {
        self.counters.given_up.fetch_add(files, Ordering::Relaxed);
    }

    /// What was warmed.
    pub fn warmed(&self) -> WarmStats {
        WarmStats {
            blocks: self.counters.blocks.load(Ordering::Relaxed),
            bytes: self.counters.bytes.load(Ordering::Relaxed),
            given_up: self.counters.given_up.load(Ordering::Relaxed),
        }
    }

    /// What all shards add, ascending.
    fn offsets(&self, add: impl Fn(&BlockCache, &mut Vec<u64>)) -> Vec<u64> {
        let mut offsets = Vec::new();
        for shard in &self.shards {
            add(&shard.lock().unwrap_or_else(PoisonError::into_inner), &mut offsets);
        }
        offsets.sort_unstable();
        offsets
    }

    /// Whether a file of so many bytes may be looked at, by what was looked for of late.
    fn may_warm(&self, len: u64) -> bool {
        let CacheStats { hits, misses, .. } = self.stats();
        let most = self.capacity() as u64 / CREDIT_PART;
        let mut credit = self.credit.lock().unwrap_or_else(PoisonError::into_inner);
        credit.take(hits + misses, len, most)
    }

    fn new_len_max(&self) -> usize {
        self.capacity() / NEW_PART
    }

    /// Forgets a file that is no longer live.
    pub fn evict_file(&self, file: FileId) {
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).evict_file(file);
        }
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(file);
    }

    /// Sums over the shards.
    pub fn stats(&self) -> CacheStats {
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
    pub fn open_bytes(&self) -> usize {
        self.open.read().unwrap_or_else(PoisonError::into_inner).memory_used()
    }
}

impl WarmCache for SharedCache {
    fn blocks_here(&self, file: FileId) -> Vec<u64> {
        self.offsets(|shard, offsets| shard.blocks_of(file, offsets))
    }

    fn blocks_in_use(&self, file: FileId) -> Vec<u64> {
        self.offsets(|shard, offsets| shard.blocks_in_use(file, offsets))
    }

    fn warm_block(&self, file: FileId, offset: u64, block: Bytes) -> bool {
        self.shard(file, offset).insert_warm(file, offset, block)
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
