//! An open SST: its index and filter in memory, its blocks through the cache.

use super::block::{BlockView, Found};
use super::codec::decompress;
use super::guide::Guide;
use super::{
    BLOCK_TRAILER_LEN, BlockCodec, Compression, FOOTER_LEN, Footer, Properties, block_crc, filter,
};
use crate::cache::ReadCache;
use crate::entry::{Entry, Trailer};
use crate::file::{FileMeta, FileSource};
use crate::range_delete::{Fragment, Fragments, ends_within};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use gabion_base::units::BLOCK_LEN;
use gabion_base::{Error, FileId, GroupId, Result, SequenceNumber};
use gabion_media::{Buf as _, Bytes};

/// An open file. Holds index, guide and filter (about 2 % of the file); shared between threads as
/// `Arc`.
pub struct SstReader {
    group: GroupId,
    id: FileId,
    /// Bytes of memory in which filter, index and properties were read.
    read_len: u32,
    data_len: u32,
    index: Bytes,
    guide: Guide,
    filter: Bytes,
    properties: Properties,
    /// The sequence number of every entry of a file that was loaded, as its edit has it; 0 for
    /// other files.
    loaded_at: SequenceNumber,
}

/// The hash by which filters know a key.
#[inline]
pub(crate) fn key_hash(key: &[u8]) -> u64 {
    filter::hash(key)
}

/// Where a data block lies in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHandle {
    pub(crate) offset: u32,
    /// With compression byte and checksum.
    pub(crate) stored_len: u32,
}

impl BlockHandle {
    pub(crate) const fn end(self) -> u32 {
        self.offset + self.stored_len
    }
}

impl SstReader {
    /// Opens a file: two reads at its end, every checksum of them checked.
    ///
    /// # Errors
    /// Corruption when footer, filter, index or properties are not those of this file, or not what
    /// its edit says; unsupported for an unknown format version; what the source reports.
    pub async fn open(source: &impl FileSource, group: GroupId, meta: &FileMeta) -> Result<Self> {
        let id = meta.id;
        let Some(footer_at) = meta.len.checked_sub(FOOTER_LEN as u64) else {
            return Err(corrupt(id, format!("{} bytes are too few for a footer", meta.len)));
        };
        let tail_at = footer_at - footer_at % BLOCK_LEN as u64;
        let tail_len = (meta.rounded_len() - tail_at) as usize;
        let tail = read_exactly(source, id, tail_at, tail_len).await?;
        let (footer_bytes, zeros) = tail[(footer_at - tail_at) as usize..]
            .split_first_chunk::<FOOTER_LEN>()
            .ok_or_else(|| corrupt(id, "footer is cut off"))?;
        let footer = Footer::decode(footer_bytes, group, id, footer_at)?;
        if footer.term != meta.term {
            return Err(corrupt(id, format!("made in {}, expected {}", footer.term, meta.term)));
        }
        if zeros.iter().any(|&byte| byte != 0) {
            return Err(corrupt(id, "bytes behind the footer are not zero"));
        }
        let parts_len = (footer.footer_at - footer.filter_at) as usize;
        let parts = read_exactly(source, id, u64::from(footer.filter_at), parts_len).await?;
        let part = |at: u32, end: u32| -> Result<Bytes> {
            let range = (at - footer.filter_at) as usize..(end - footer.filter_at) as usize;
            match check_block(&parts[range.clone()], group, id, at)? {
                BlockCodec::None => Ok(parts.slice(range.start..range.end - BLOCK_TRAILER_LEN)),
                _ => Err(corrupt(id, format!("part at {at} is compressed"))),
            }
        };
        let index = part(footer.index_at, footer.properties_at)?;
        if index.is_empty() != (footer.data_blocks == 0) {
            return Err(corrupt(id, format!("index of {} data blocks", footer.data_blocks)));
        }
        let guide = match footer.data_blocks {
            0 => Guide::default(),
            _ => Guide::of(&index, |value| handle(value, id, footer.filter_at))
                .map_err(|error| error.within(format!("{id}: index")))?,
        };
        if guide.len() != footer.data_blocks as usize {
            let (named, there) = (guide.len(), footer.data_blocks);
            return Err(corrupt(id, format!("index names {named} of {there} data blocks")));
        }
        let mut reader = Self {
            group,
            loaded_at: SequenceNumber::ZERO,
            id,
            read_len: footer.footer_at.next_multiple_of(BLOCK_LEN as u32)
                - footer.filter_at / BLOCK_LEN as u32 * BLOCK_LEN as u32,
            data_len: footer.filter_at,
            filter: part(footer.filter_at, footer.index_at)?,
            index,
            guide,
            properties: Properties::decode(&part(footer.properties_at, footer.footer_at)?)
                .map_err(|error| error.within(format!("{id}")))?,
        };
        reader.check_against(meta)?;
        if reader.properties.is_unnumbered() {
            reader.loaded_at = meta.largest_sequence;
        }
        Ok(reader)
    }

    /// The same number never names two files, and the edit says what is in this one.
    fn check_against(&self, meta: &FileMeta) -> Result<()> {
        let p = &self.properties;
        let sequences = match p.is_unnumbered() {
            true => meta.smallest_sequence == meta.largest_sequence,
            false => {
                (p.smallest_sequence, p.largest_sequence)
                    == (meta.smallest_sequence, meta.largest_sequence)
            }
        };
        let ends_there =
            |range: &Fragment| *range.end == *p.largest && ends_within(&range.end, &meta.largest);
        let is_within =
            p.largest <= meta.largest || p.ranges.as_slice().last().is_some_and(ends_there);
        let same = p.entries == meta.entries
            && p.deletes == meta.deletes
            && p.raw_key_bytes == meta.raw_key_bytes
            && p.raw_value_bytes == meta.raw_value_bytes
            && sequences
            && p.clears == meta.clears
            && p.ranges.described() == meta.ranges
            && (meta.compression == Compression::None || meta.compression == p.options.compression)
            && meta.smallest <= p.smallest
            && is_within;
        if same { Ok(()) } else { Err(corrupt(self.id, "properties are not what the edit says")) }
    }

    /// Which file this is.
    #[must_use]
    pub const fn id(&self) -> FileId {
        self.id
    }

    /// What the file says of itself.
    #[must_use]
    pub const fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Its range deletes.
    #[must_use]
    pub const fn ranges(&self) -> &Fragments {
        &self.properties.ranges
    }

    /// Whether a reader at `sequence` sees any entry of a file that was loaded; of other files each
    /// entry tells.
    #[inline]
    pub(super) fn is_loaded_by(&self, sequence: SequenceNumber) -> bool {
        self.loaded_at <= sequence
    }

    /// Bytes of memory held: the blocks of the device in which filter, index and properties lie,
    /// what guides through the index, and range deletes.
    #[must_use]
    pub fn memory_used(&self) -> usize {
        let ranges = self.properties.ranges.as_slice();
        let ranges: usize =
            ranges.iter().map(|range| range.stored_len() + size_of_val(range)).sum();
        self.read_len as usize + self.guide.memory_used() + ranges + size_of::<Self>()
    }

    /// Whether the file may hold an entry of `key`; `false` is certain.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, key: &[u8]) -> bool {
        self.may_contain_hash(key_hash(key))
    }

    /// The same for a key with this [`key_hash`].
    #[inline]
    pub(crate) fn may_contain_hash(&self, hash: u64) -> bool {
        filter::may_contain(&self.filter, hash)
    }

    /// Asks for what [`Self::may_contain_hash`] looks at.
    #[inline]
    pub(crate) fn prefetch_filter(&self, hash: u64) {
        filter::prefetch(&self.filter, hash);
    }

    /// The newest entry of exactly `key` that a reader at `read_sequence` sees. The value shares
    /// the memory of its block. Completes at the first poll when the block is cached or the filter
    /// says no.
    ///
    /// Range deletes are not looked for: see [`SstReader::ranges`].
    ///
    /// # Errors
    /// Corruption, naming file and offset; what the source reports.
    pub async fn get(
        &self,
        source: &impl FileSource,
        cache: &impl ReadCache,
        key: &[u8],
        read_sequence: SequenceNumber,
    ) -> Result<Option<(Trailer, Bytes)>> {
        self.get_hashed(source, cache, key, key_hash(key), read_sequence).await
    }

    /// The same for a key with this [`key_hash`].
    #[inline]
    pub(crate) async fn get_hashed(
        &self,
        source: &impl FileSource,
        cache: &impl ReadCache,
        key: &[u8],
        hash: u64,
        read_sequence: SequenceNumber,
    ) -> Result<Option<(Trailer, Bytes)>> {
        if !self.is_loaded_by(read_sequence) || !self.may_contain_hash(hash) {
            return Ok(None);
        }
        let target = Trailer::seek(read_sequence);
        let Some(handle) = self.find_block(key, target)? else { return Ok(None) };
        let block = match cache.block(self.id, u64::from(handle.offset)) {
            Some(block) => block,
            None => self.read_block(source, cache, handle).await?,
        };
        self.search_block(block, handle, key, target)
    }

    /// The first entry of exactly `key` at or after `target` in a block.
    pub(crate) fn search_block(
        &self,
        block: Bytes,
        handle: BlockHandle,
        key: &[u8],
        target: Trailer,
    ) -> Result<Option<(Trailer, Bytes)>> {
        let found = BlockView::parse(&block).and_then(|view| view.search(key, target));
        let Some(found) = found.map_err(|error| self.at(handle, error))? else { return Ok(None) };
        if !found.key_equal {
            return Ok(None);
        }
        let trailer = self.entry_trailer(found.trailer)?;
        // Cut down, not sliced: the count of those who share a block is memory that others write.
        let mut value = block;
        value.truncate(found.value.end);
        value.advance(found.value.start);
        Ok(Some((trailer, value)))
    }

    /// The block in which (key, trailer) or the first entry after it lies, if there is one.
    pub(crate) fn find_block(&self, key: &[u8], trailer: Trailer) -> Result<Option<BlockHandle>> {
        if let Some(found) = self.guide.find(key) {
            return Ok(found);
        }
        let found = BlockView::parse(&self.index).and_then(|index| index.search(key, trailer));
        match found.map_err(|error| self.in_index(error))? {
            Some(Found { value, .. }) => self.handle(value).map(Some),
            None => Ok(None),
        }
    }

    /// Data blocks.
    pub(super) const fn block_count(&self) -> usize {
        self.guide.len()
    }

    /// The place among the file's blocks of the one in which (key, trailer) or the first entry
    /// after it lies; their number if there is none.
    pub(super) fn place_of_block(&self, key: &[u8], trailer: Trailer) -> Result<usize> {
        if let Some(at) = self.guide.place(key) {
            return Ok(at);
        }
        let found = BlockView::parse(&self.index).and_then(|index| index.search(key, trailer));
        match found.map_err(|error| self.in_index(error))? {
            Some(Found { value, .. }) => self
                .guide
                .place_of(self.handle(value)?)
                .ok_or_else(|| corrupt(self.id, "index has a separator that its guide has not")),
            None => Ok(self.block_count()),
        }
    }

    /// The block at this place among the file's, if there are so many.
    #[inline]
    pub(super) fn block_at(&self, at: usize) -> Option<BlockHandle> {
        self.guide.handle(at)
    }

    /// The index, for who goes through its separators.
    pub(super) fn index(&self) -> &[u8] {
        &self.index
    }

    /// Where the block begins in which the first entry at or after every entry of `key` lies, if
    /// there is one. From the index alone.
    pub(crate) fn offset_of(&self, key: &[u8]) -> Result<Option<u64>> {
        let handle = self.find_block(key, Trailer::FIRST)?;
        Ok(handle.map(|handle| u64::from(handle.offset)))
    }

    /// The handle in an index entry's value, checked against the file.
    pub(super) fn handle(&self, value: Range<usize>) -> Result<BlockHandle> {
        handle(self.index.get(value).unwrap_or_default(), self.id, self.data_len)
    }

    /// An entry's trailer from what is stored, checked.
    #[inline]
    pub(super) fn entry_trailer(&self, stored: Trailer) -> Result<Trailer> {
        let trailer = Trailer::from_raw(stored.raw());
        let trailer = trailer.map_err(|error| error.within(format!("{}", self.id)))?;
        if self.loaded_at > SequenceNumber::ZERO && trailer.sequence() > SequenceNumber::ZERO {
            let sequence = trailer.sequence();
            return Err(corrupt(self.id, format!("entry {sequence} in a file that was loaded")));
        }
        Ok(self.numbered(trailer))
    }

    /// A stored trailer that was checked, with its sequence number.
    #[inline]
    fn numbered(&self, stored: Trailer) -> Trailer {
        Trailer::from_raw_unchecked(stored.raw() | self.loaded_at.get() << 8)
    }

    /// An entry whose stored trailer was checked, with its sequence number.
    #[inline]
    pub(super) fn as_read<'e>(&self, stored: Entry<'e>) -> Entry<'e> {
        Entry { trailer: self.numbered(stored.trailer), ..stored }
    }

    /// The block's decoded body, read past the cache and added to it.
    pub(crate) async fn read_block(
        &self,
        source: &impl FileSource,
        cache: &impl ReadCache,
        handle: BlockHandle,
    ) -> Result<Bytes> {
        let offset = u64::from(handle.offset);
        let stored = read_exactly(source, self.id, offset, handle.stored_len as usize).await?;
        self.keep_stored(cache, handle, &stored)
    }

    /// The decoded body of a block that was read, added to the cache.
    pub(crate) fn keep_stored(
        &self,
        cache: &impl ReadCache,
        handle: BlockHandle,
        stored: &[u8],
    ) -> Result<Bytes> {
        let body = self.decode_stored(handle, stored)?;
        cache.keep_block(self.id, u64::from(handle.offset), body.clone());
        Ok(body)
    }

    /// The decoded body of a block as it is stored, a copy in any case.
    pub(crate) fn decode_stored(&self, handle: BlockHandle, stored: &[u8]) -> Result<Bytes> {
        let mut raw = Vec::new();
        // A copy even if it was not compressed: the medium's buffer is larger than the block.
        match self.check_block(stored, handle)? {
            BlockCodec::None => {
                Ok(Bytes::copy_from_slice(&stored[..stored.len() - BLOCK_TRAILER_LEN]))
            }
            codec => {
                self.decompress(stored, handle, codec, &mut raw)?;
                Ok(Bytes::from(raw))
            }
        }
    }

    /// Checks a stored block, compression byte and checksum included.
    pub(super) fn check_block(&self, stored: &[u8], handle: BlockHandle) -> Result<BlockCodec> {
        check_block(stored, self.group, self.id, handle.offset)
    }

    /// Decompresses a stored block that was checked into `raw`, whose old content goes.
    pub(super) fn decompress(
        &self,
        stored: &[u8],
        handle: BlockHandle,
        codec: BlockCodec,
        raw: &mut Vec<u8>,
    ) -> Result<()> {
        decompress(self.id, stored, handle.offset, codec, raw)
    }

    #[cold]
    pub(super) fn at(&self, handle: BlockHandle, error: Error) -> Error {
        error.within(format!("{}: block at {}", self.id, handle.offset))
    }

    #[cold]
    pub(super) fn in_index(&self, error: Error) -> Error {
        error.within(format!("{}: index", self.id))
    }

    /// Bytes of data blocks, which lie at the front of the file.
    pub(super) const fn data_len(&self) -> u32 {
        self.data_len
    }
}

/// The handle in an index entry's value, checked against the bytes of the file's data.
fn handle(value: &[u8], id: FileId, data_len: u32) -> Result<BlockHandle> {
    let handle = <&[u8; 8]>::try_from(value).ok().map(|&[a, b, c, d, e, f, g, h]| BlockHandle {
        offset: u32::from_le_bytes([a, b, c, d]),
        stored_len: u32::from_le_bytes([e, f, g, h]),
    });
    let fits = |h: &BlockHandle| {
        h.stored_len as usize > BLOCK_TRAILER_LEN
            && h.offset.checked_add(h.stored_len).is_some_and(|end| end <= data_len)
    };
    handle.filter(fits).ok_or_else(|| corrupt(id, "index names a block outside the data"))
}

#[cold]
pub(super) fn corrupt(id: FileId, what: impl Into<String>) -> Error {
    Error::corruption(format!("{id}: {}", what.into()))
}

/// Checks the stored block at `offset`.
pub(super) fn check_block(
    stored: &[u8],
    group: GroupId,
    id: FileId,
    offset: u32,
) -> Result<BlockCodec> {
    let parts = stored.split_last_chunk::<4>();
    let Some((covered, crc, &byte)) =
        parts.and_then(|(covered, crc)| covered.last().map(|byte| (covered, crc, byte)))
    else {
        return Err(corrupt(id, format!("block at {offset} is cut off")));
    };
    let stored_crc = u32::from_le_bytes(*crc);
    let found = block_crc(covered, group, id, u64::from(offset));
    if found != stored_crc {
        return Err(corrupt(
            id,
            format!("block at {offset} has checksum {found:#010x}, expected {stored_crc:#010x}"),
        ));
    }
    BlockCodec::from_byte(byte).ok_or_else(|| {
        Error::unsupported(format!("{id}: block at {offset} has unknown compression {byte}"))
    })
}

/// A read that never returns less than was asked for.
pub(super) async fn read_exactly(
    source: &impl FileSource,
    id: FileId,
    offset: u64,
    len: usize,
) -> Result<Bytes> {
    let bytes = source.read(id, offset, len).await?;
    if bytes.len() != len {
        let found = bytes.len();
        return Err(corrupt(id, format!("read of {len} bytes at {offset} returned {found}")));
    }
    Ok(bytes)
}
