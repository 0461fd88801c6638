//! Sorted string tables.
use crate::cache::BlockCache;
use crate::entry::{Entry, Trailer};
use crate::file::{FileMeta, FileSource, FinishedFile};
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{FileId, GroupId, Result, SequenceNumber, Term};
use gabion_media::Bytes;

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Compression {
    /// As they are.
    None = 0,
    /// LZ4 blocks.
    Lz4 = 1,
}

/// Everything that decides an SST's bytes besides its entries; part of the recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SstOptions {
    /// Target bytes of a data block.
    pub block_len: u32,
    /// Entries between restart points of a data block.
    pub restart_interval: u32,
    /// Entries between restart points of the index.
    pub index_restart_interval: u32,
    /// Compression of data blocks.
    pub compression: Compression,
    /// Bits of the Bloom filter for each key; 0: no filter.
    pub filter_bits_per_key: u32,
    /// Version of the file format.
    pub format_version: u16,
}
impl Default for SstOptions {
    fn default() -> Self {
        Self {
            block_len: 4096,
            restart_interval: 16,
            index_restart_interval: 4,
            compression: Compression::None,
            filter_bits_per_key: 10,
            format_version: 1,
        }
    }
}
impl SstOptions {
    /// Refuses options that make no sense.
    ///
    /// # Errors
    /// Invalid input, naming the option.
    pub fn check(&self) -> Result<()> {
        Ok(())
    }
    /// Appends the encoded options.
    pub fn encode(&self, _out: &mut Vec<u8>) {}
    /// Decodes what `encode` made; refuses unknown versions and codecs as unsupported.
    ///
    /// # Errors
    /// Corruption, unsupported.
    pub fn decode(_bytes: &[u8]) -> Result<Self> {
        Ok(Self::default())
    }
}

/// Builds one file.
pub struct SstBuilder {}
impl SstBuilder {
    /// A builder of file `id`.
    #[must_use]
    pub fn new(_options: &SstOptions, _group: GroupId, _id: FileId, _term: Term) -> Self {
        Self {}
    }
    /// Adds an entry; keys ascending (asserted).
    pub fn add(&mut self, _key: &[u8], _trailer: Trailer, _value: &[u8]) {}
    /// Bytes the file would have if finished now (estimate, deterministic).
    pub fn estimated_len(&self) -> u64 {
        0
    }
    /// Entries so far.
    pub fn entries(&self) -> u64 {
        0
    }
    /// No entries so far.
    pub fn is_empty(&self) -> bool {
        true
    }
    /// The file. Panics when empty.
    pub fn finish(self) -> FinishedFile {
        panic!("skeleton")
    }
}

/// An open file: index and filter in memory.
pub struct SstReader {}
impl SstReader {
    /// Opens and checks footer, index, filter, properties.
    ///
    /// # Errors
    /// Corruption, unsupported, what the source reports.
    pub async fn open(
        _source: &impl FileSource,
        _group: GroupId,
        _meta: &FileMeta,
    ) -> Result<Self> {
        Ok(Self {})
    }
    /// The file.
    pub fn id(&self) -> FileId {
        panic!("skeleton")
    }
    /// False: no version of the key is here.
    pub fn may_contain(&self, _key: &[u8]) -> bool {
        true
    }
    /// Newest version of exactly `key` at or below `read_sequence`. Clears of the keyspace are not looked at (FileMeta::clears).
    ///
    /// # Errors
    /// Corruption, what the source reports.
    pub async fn get(
        &self,
        _source: &impl FileSource,
        _cache: &BlockCache,
        _key: &[u8],
        _read_sequence: SequenceNumber,
    ) -> Result<Option<(Trailer, Bytes)>> {
        Ok(None)
    }
    /// Bytes of memory held.
    pub fn memory_used(&self) -> usize {
        0
    }
}

/// Cursor through the block cache. Owns what it reads from; `S` may be `&Source`, `Rc<Source>`…
pub struct SstIter<S: FileSource> {
    _reader: Arc<SstReader>,
    _source: S,
    _cache: Rc<BlockCache>,
}
impl<S: FileSource> SstIter<S> {
    /// A cursor at no entry; seek first.
    pub fn new(reader: Arc<SstReader>, source: S, cache: Rc<BlockCache>) -> Self {
        Self { _reader: reader, _source: source, _cache: cache }
    }
    /// To the first entry.
    ///
    /// # Errors
    /// Corruption, what the source reports.
    pub async fn seek_to_first(&mut self) -> Result<()> {
        Ok(())
    }
    /// To the first entry at or after (key, sequence).
    ///
    /// # Errors
    /// Corruption, what the source reports.
    pub async fn seek(&mut self, _key: &[u8], _sequence: SequenceNumber) -> Result<()> {
        Ok(())
    }
    /// To the next entry; nothing at the end.
    ///
    /// # Errors
    /// Corruption, what the source reports.
    pub async fn advance(&mut self) -> Result<()> {
        Ok(())
    }
    /// The entry under the cursor.
    pub fn entry(&self) -> Option<Entry<'_>> {
        None
    }
    /// Its value without a copy.
    pub fn value_bytes(&self) -> Option<Bytes> {
        None
    }
}

/// Sequential scan for jobs: large reads that bypass the cache.
pub struct SstScan<S: FileSource> {
    _reader: Arc<SstReader>,
    _source: S,
}
impl<S: FileSource> SstScan<S> {
    /// A scan of the engine keys in `from..to` (`to` none: to the end), reading `read_len` bytes at a time; at no entry until `advance`.
    pub fn new(
        reader: Arc<SstReader>,
        source: S,
        _from: &[u8],
        _to: Option<&[u8]>,
        _read_len: usize,
    ) -> Self {
        Self { _reader: reader, _source: source }
    }
    /// To the first or next entry; false at the end.
    ///
    /// # Errors
    /// Corruption, what the source reports.
    pub async fn advance(&mut self) -> Result<bool> {
        Ok(false)
    }
    /// The entry under the cursor.
    pub fn entry(&self) -> Option<Entry<'_>> {
        None
    }
}
