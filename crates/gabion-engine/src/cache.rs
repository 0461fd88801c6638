//! Caches.
use crate::file::{FileMeta, FileSource};
use crate::sst::SstReader;
use alloc::sync::Arc;
use gabion_base::{FileId, GroupId, Result};
use gabion_media::Bytes;

/// Decoded blocks by (file, offset). One thread (`RefCell` inside), share as `Rc<BlockCache>`.
pub struct BlockCache {
    capacity: usize,
}
impl BlockCache {
    /// A cache of `capacity` bytes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity }
    }
    /// The block, if cached.
    pub fn get(&self, _file: FileId, _offset: u64) -> Option<Bytes> {
        None
    }
    /// Adds a block.
    pub fn insert(&self, _file: FileId, _offset: u64, _block: Bytes) {}
    /// Forgets a file's blocks.
    pub fn evict_file(&self, _file: FileId) {}
    /// Hits, misses, bytes.
    pub fn stats(&self) -> CacheStats {
        CacheStats { hits: 0, misses: 0, evictions: 0, bytes: self.capacity, blocks: 0 }
    }
}

/// What a cache did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Look-ups that found their block.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Blocks that made room for others.
    pub evictions: u64,
    /// Bytes held.
    pub bytes: usize,
    /// Blocks held.
    pub blocks: usize,
}

/// Open readers of live files.
#[derive(Default)]
pub struct TableCache {}
impl TableCache {
    /// Empty.
    #[must_use]
    pub fn new() -> Self {
        Self {}
    }
    /// The open reader.
    pub fn get(&self, _file: FileId) -> Option<Arc<SstReader>> {
        None
    }
    /// The reader, opened if need be.
    ///
    /// # Errors
    /// As [`SstReader::open`].
    pub async fn get_or_open(
        &self,
        source: &impl FileSource,
        group: GroupId,
        meta: &FileMeta,
    ) -> Result<Arc<SstReader>> {
        Ok(Arc::new(SstReader::open(source, group, meta).await?))
    }
    /// Forgets a retired file; readers that hold it keep it.
    pub fn remove(&self, _file: FileId) {}
}
