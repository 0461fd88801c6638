//! Builds one SST in one aligned buffer, from which it is written, shipped and resent.
//!
//! The bytes depend on the arguments alone. A value is copied once, into its place; nothing is
//! reserved for an entry but the hash of its key.

use super::block::{Area, BlockWriter, common_prefix_len};
use super::codec::Compressor;
use super::{
    BLOCK_TRAILER_LEN, BlockCodec, FOOTER_LEN, Footer, Properties, SstOptions, block_crc, filter,
};
use crate::counter::Operand;
use crate::entry::{ENGINE_KEY_LEN_MAX, EntryKind, Keyspace, Trailer, compare};
use crate::expiry::{ExpirySpan, STORED_LEN_MAX, expiry_of};
use crate::file::{
    FILE_LEN_MAX, FileMeta, FileReference, FinishedFile, Operands, combine_chunks, lower_bound_of,
    upper_bound_of,
};
use crate::pointer::Pointer;
use crate::range_delete::{Fragment, Fragments};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;
use gabion_base::units::{CHUNK_LEN, round_up_to_block};
use gabion_base::{FileId, FileKind, GroupId, SequenceNumber, Term, crc};
use gabion_media::{AlignedBuf, Buffers};

/// Bytes that a builder starts with when nobody says more.
const CAPACITY_FIRST: usize = 256 * 1024;
/// What properties take at most, besides two keys and the clears.
const PROPERTIES_LEN_MAX: usize = 256;
/// What an index entry takes at most, besides its key: lengths, trailer, handle, a restart point.
const INDEX_ENTRY_LEN_MAX: usize = 3 + 3 + 1 + 8 + 8 + 4;

/// Builds one file from entries in tree order.
pub struct SstBuilder {
    group: GroupId,
    id: FileId,
    term: Term,
    area: Area,
    data: BlockWriter,
    index: BlockWriter,
    index_area: Area,
    /// Offset and stored length of the block that ended and is not in the index yet.
    pending: Option<(u32, u32)>,
    data_blocks: u32,
    last_trailer: Trailer,
    hashes: Vec<u64>,
    separator: Vec<u8>,
    compressor: Option<Compressor>,
    chunks: Chunks,
    properties: Properties,
    expiry: Option<ExpirySpan>,
    operands: Option<Operands>,
    /// Bytes of values that lie in other files, by file.
    references: BTreeMap<FileId, u64>,
    /// Most bytes that the range deletes take.
    ranges_len: usize,
}

/// Checksums of the file's chunks, taken of each block while it is in the processor's cache: a pass
/// over the finished file would fetch it from memory once more.
#[derive(Default)]
pub(crate) struct Chunks {
    /// Of the chunks that are whole.
    crcs: Vec<u32>,
    /// Of the chunk that is not.
    open: u32,
    /// Bytes of the file that are in these.
    len: usize,
}

impl Chunks {
    /// Takes what was added to `file` since the last call.
    pub(crate) fn extend(&mut self, file: &[u8]) {
        const CHUNK: usize = CHUNK_LEN as usize;
        while self.len < file.len() {
            let end = file.len().min(self.len / CHUNK * CHUNK + CHUNK);
            self.open = crc::append(self.open, &file[self.len..end]);
            self.len = end;
            if end.is_multiple_of(CHUNK) {
                self.crcs.push(core::mem::take(&mut self.open));
            }
        }
    }

    /// All, the last chunk as long as it is.
    pub(crate) fn finish(mut self) -> Vec<u32> {
        if !self.len.is_multiple_of(CHUNK_LEN as usize) {
            self.crcs.push(self.open);
        }
        self.crcs
    }
}

impl SstBuilder {
    /// A builder of file `id` of `group`, whose number was assigned in `term`.
    ///
    /// # Panics
    /// When the options break their limits ([`SstOptions::check`] first) or `id` is no SST's.
    #[must_use]
    pub fn new(options: &SstOptions, group: GroupId, id: FileId, term: Term) -> Self {
        let buffer = AlignedBuf::with_capacity(CAPACITY_FIRST);
        Self::in_buffer(options, group, id, term, buffer)
    }

    /// The same in `buffer`, whatever it holds: one with room for the whole file need not be copied
    /// as it grows, and one that was used before costs no page faults.
    ///
    /// # Panics
    /// As [`SstBuilder::new`].
    #[must_use]
    pub fn in_buffer(
        options: &SstOptions,
        group: GroupId,
        id: FileId,
        term: Term,
        buffer: AlignedBuf,
    ) -> Self {
        options.check().expect("options were checked");
        assert!(id.kind == FileKind::Sst, "{id} is not the name of an SST");
        Self {
            group,
            id,
            term,
            area: Area::new(buffer),
            data: BlockWriter::new(options.restart_interval),
            index: BlockWriter::new(options.index_restart_interval),
            index_area: Area::new(AlignedBuf::with_capacity(0)),
            pending: None,
            data_blocks: 0,
            last_trailer: Trailer::FIRST,
            hashes: Vec::new(),
            separator: Vec::new(),
            compressor: Compressor::of(options.compression),
            chunks: Chunks::default(),
            properties: Properties {
                entries: 0,
                deletes: 0,
                raw_key_bytes: 0,
                raw_value_bytes: 0,
                smallest_sequence: SequenceNumber::MAX,
                largest_sequence: SequenceNumber::ZERO,
                smallest: Vec::new(),
                largest: Vec::new(),
                options: options.clone(),
                clears: Vec::new(),
                ranges: Fragments::default(),
            },
            expiry: None,
            operands: None,
            references: BTreeMap::new(),
            ranges_len: 0,
        }
    }

    /// Adds the next fragment of range deletes, which begins behind the one before; how it lies to
    /// the entries does not matter.
    ///
    /// # Panics
    /// When it is none, or not behind the one before: the callers' cut rules exclude that.
    pub fn add_range(&mut self, fragment: Fragment) {
        let last = self.properties.ranges.as_slice().last();
        let is_next = last.is_none_or(|last| last.end <= fragment.start);
        assert!(is_next && fragment.start < fragment.end, "{}: a bad range delete", self.id);
        let (newest, oldest) = (fragment.sequences.first(), fragment.sequences.last());
        let (Some(&newest), Some(&oldest)) = (newest, oldest) else {
            panic!("{}: a range delete without a number", self.id)
        };
        let properties = &mut self.properties;
        assert!(oldest <= newest, "{}: the newest range delete comes first", self.id);
        properties.smallest_sequence = properties.smallest_sequence.min(oldest);
        properties.largest_sequence = properties.largest_sequence.max(newest);
        self.ranges_len += fragment.stored_len();
        properties.ranges.append(fragment);
    }

    /// Most bytes that the range deletes take so far.
    pub(crate) const fn ranges_len(&self) -> u64 {
        self.ranges_len as u64
    }

    /// The last fragment.
    pub(crate) fn last_range(&self) -> Option<&Fragment> {
        self.properties.ranges.as_slice().last()
    }

    /// Ends the last fragment at `end`, before its own end.
    pub(crate) fn cut_last_range(&mut self, end: &Arc<[u8]>) {
        self.ranges_len += end.len();
        self.properties.ranges.cut_last(end);
    }

    /// Adds the next entry in tree order: keys ascending, versions of a key from new to old.
    ///
    /// # Panics
    /// When the entry is not after the last one, a key or value is over its limit, an expiring put
    /// is shorter than its expiry, an operand than its head, or the file would reach 2 GiB: the
    /// callers' merge and cut rules exclude all of these.
    pub fn add(&mut self, key: &[u8], trailer: Trailer, value: &[u8]) {
        assert!(key.len() <= ENGINE_KEY_LEN_MAX, "{}: key of {} bytes", self.id, key.len());
        assert!(value.len() <= STORED_LEN_MAX, "{}: value of {} bytes", self.id, value.len());
        let first = self.properties.entries == 0;
        let order = match first {
            true => Ordering::Less,
            false => compare(self.data.last_key(), self.last_trailer, key, trailer),
        };
        assert!(order == Ordering::Less, "{}: an entry is not after the one before it", self.id);
        let block_len = self.properties.options.block_len as usize;
        if !self.data.is_empty() && key.len() + value.len() >= block_len {
            self.end_block();
        }
        if let Some(block) = self.pending.take() {
            self.index_block(block, Some(key));
        }
        if first {
            self.properties.smallest.extend_from_slice(key);
        }
        if self.properties.options.filter_bits_per_key > 0 && (first || key != self.data.last_key())
        {
            self.hashes.push(filter::hash(key));
        }
        self.data.add(&mut self.area, key, trailer, value);
        self.last_trailer = trailer;
        self.count(key, trailer, value);
        if self.data.body_len(&self.area) >= block_len {
            self.end_block();
        }
    }

    #[inline]
    fn count(&mut self, key: &[u8], trailer: Trailer, value: &[u8]) {
        let properties = &mut self.properties;
        properties.entries += 1;
        properties.raw_key_bytes += key.len() as u64;
        properties.raw_value_bytes += value.len() as u64;
        let sequence = trailer.sequence();
        properties.smallest_sequence = properties.smallest_sequence.min(sequence);
        properties.largest_sequence = properties.largest_sequence.max(sequence);
        let kind = trailer.kind();
        if kind == EntryKind::Put {
            return;
        }
        properties.deletes += u64::from(kind.is_delete());
        self.count_others(key, trailer, value);
    }

    /// Counts an entry that is no plain put.
    fn count_others(&mut self, key: &[u8], trailer: Trailer, value: &[u8]) {
        let kind = trailer.kind();
        let (expiry, _) = expiry_of(trailer, value).expect("checked where it was read");
        if let Some(expires_ms) = expiry {
            ExpirySpan::add(&mut self.expiry, ExpirySpan::at(expires_ms));
        }
        if kind == EntryKind::Merge {
            let at_ms = Operand::at_ms_of(value).expect("checked where it was read");
            let Operands { count, first_ms } =
                self.operands.unwrap_or(Operands { count: 0, first_ms: at_ms });
            self.operands = Some(Operands { count: count + 1, first_ms: first_ms.min(at_ms) });
        }
        if kind.is_pointer() {
            let (pointer, _) =
                Pointer::of_entry(trailer, value).expect("checked where it was read");
            *self.references.entry(pointer.file).or_default() += u64::from(pointer.len);
        }
        if kind == EntryKind::Clear {
            let keyspace = key.first().and_then(|&byte| Keyspace::from_byte(byte));
            let keyspace = keyspace.filter(|_| key.len() == 1).expect("a clear names a keyspace");
            self.properties.clears.push((keyspace, trailer.sequence()));
        }
    }

    /// Files in which values lie that it has pointers to.
    pub(crate) fn references(&self) -> usize {
        self.references.len()
    }

    /// Bytes that the file would have if it were finished now, or a few hundred more: never fewer.
    /// A function of the entries and options alone, so that a cut rule may rest on it.
    #[must_use]
    pub fn estimated_len(&self) -> u64 {
        let properties = &self.properties;
        let key_len = self.data.last_key().len();
        let open =
            if self.data.is_empty() { 0 } else { self.data.restarts_len() + BLOCK_TRAILER_LEN };
        let filter = filter::body_len(self.hashes.len(), properties.options.filter_bits_per_key);
        // The block that is open or waits for its index entry: one separator, at most the last key.
        let index =
            self.index_area.len() + self.index.restarts_len() + key_len + INDEX_ENTRY_LEN_MAX;
        let bounds = properties.smallest.len() + key_len + 9 * properties.clears.len();
        let parts = self.area.len() + open + filter + index + bounds + self.range_parts_len();
        (parts + PROPERTIES_LEN_MAX + 3 * BLOCK_TRAILER_LEN + FOOTER_LEN) as u64
    }

    /// Bytes of range deletes, and of bounds that they may be.
    fn range_parts_len(&self) -> usize {
        let ranges = self.properties.ranges.as_slice();
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return 0 };
        self.ranges_len + first.start.len() + last.end.len()
    }

    /// Entries so far.
    #[must_use]
    pub const fn entries(&self) -> u64 {
        self.properties.entries
    }

    /// Whether no entry and no range delete was added.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.properties.entries == 0 && self.properties.ranges.is_empty()
    }

    /// Which file this is.
    #[must_use]
    pub const fn id(&self) -> FileId {
        self.id
    }

    /// The key of the last entry; empty before the first.
    #[must_use]
    pub fn last_key(&self) -> &[u8] {
        self.data.last_key()
    }

    /// Ends the file.
    ///
    /// # Panics
    /// When it has no entry and no range delete: a job names no empty files.
    #[must_use]
    pub fn finish(mut self) -> FinishedFile {
        assert!(!self.is_empty(), "{}: a file has at least one entry or range delete", self.id);
        if !self.data.is_empty() {
            self.end_block();
        }
        if let Some(block) = self.pending.take() {
            self.index_block(block, None);
        }
        self.properties.largest = self.data.last_key().to_vec();
        self.enclose_ranges();
        let filter_at = self.area.len() as u32;
        let filter = filter::build(&self.hashes, self.properties.options.filter_bits_per_key);
        self.whole_block(&filter);
        let index_at = self.area.len() as u32;
        if self.data_blocks > 0 {
            self.index.finish(&mut self.index_area);
        }
        let index_area =
            core::mem::replace(&mut self.index_area, Area::new(AlignedBuf::with_capacity(0)));
        self.whole_block(index_area.bytes());
        let properties_at = self.area.len() as u32;
        let properties = self.properties.encode();
        self.whole_block(&properties);
        let footer = Footer {
            filter_at,
            index_at,
            properties_at,
            footer_at: self.area.len() as u32,
            data_blocks: self.data_blocks,
            group: self.group,
            term: self.term,
            id: self.id,
        };
        self.area.extend(&footer.encode());
        self.describe()
    }

    /// Widens the bounds to what range deletes cover.
    fn enclose_ranges(&mut self) {
        let properties = &mut self.properties;
        let Some((first, last)) = properties.ranges.bounds() else { return };
        if properties.entries == 0 || *first < *properties.smallest {
            properties.smallest = first.to_vec();
        }
        if properties.entries == 0 || *last > *properties.largest {
            properties.largest = last.to_vec();
        }
    }

    fn describe(mut self) -> FinishedFile {
        let len = self.area.len() as u64;
        assert!(len <= FILE_LEN_MAX, "{}: {len} bytes are over the limit", self.id);
        let rounded = round_up_to_block(len);
        let (bytes, memory) = Buffers::lend(self.area.finish(rounded as usize));
        let bytes = bytes.slice(..rounded as usize);
        self.chunks.extend(&bytes);
        let chunk_crcs = self.chunks.finish();
        let properties = self.properties;
        let references = self.references.into_iter();
        let references =
            references.map(|(file, live_bytes)| FileReference { file, live_bytes }).collect();
        let meta = FileMeta {
            id: self.id,
            term: self.term,
            len,
            checksum: combine_chunks(&chunk_crcs, rounded),
            chunk_crcs,
            smallest: lower_bound_of(&properties.smallest),
            largest: upper_bound_of(&properties.largest),
            smallest_sequence: properties.smallest_sequence,
            largest_sequence: properties.largest_sequence,
            entries: properties.entries,
            deletes: properties.deletes,
            raw_key_bytes: properties.raw_key_bytes,
            raw_value_bytes: properties.raw_value_bytes,
            clears: properties.clears,
            expiry: self.expiry,
            operands: self.operands,
            ranges: properties.ranges.described(),
            compression: properties.options.compression,
            references,
        };
        assert!(meta.smallest <= meta.largest, "{}: bounds are in order", meta.id);
        assert!(meta.smallest_sequence <= meta.largest_sequence, "{}: numbers too", meta.id);
        assert!(meta.deletes <= meta.entries, "{}: tombstones are entries", meta.id);
        FinishedFile { meta, bytes, memory }
    }

    /// Ends the data block: compression, checksum. Its index entry waits for the next key.
    fn end_block(&mut self) {
        let start = self.data.finish(&mut self.area);
        let mut stored_as = BlockCodec::None;
        if let Some(compressor) = &mut self.compressor
            && let Some((compressed, codec)) = compressor.compress(&self.area.bytes()[start..])
        {
            self.area.replace_from(start, compressed);
            stored_as = codec;
        }
        let stored_len = self.seal(start, stored_as);
        assert!(self.pending.is_none(), "{}: each block has its place in the index", self.id);
        self.pending = Some((start as u32, stored_len));
        self.data_blocks += 1;
    }

    /// Writes a block that is not compressed.
    fn whole_block(&mut self, body: &[u8]) {
        let start = self.area.len();
        self.area.extend(body);
        self.seal(start, BlockCodec::None);
    }

    /// Appends a block's trailer; returns its length with it.
    fn seal(&mut self, start: usize, codec: BlockCodec) -> u32 {
        self.area.extend(&[codec as u8]);
        let crc = block_crc(&self.area.bytes()[start..], self.group, self.id, start as u64);
        self.area.extend(&crc.to_le_bytes());
        assert!(self.area.len() as u64 <= FILE_LEN_MAX, "{} is over 2 GiB", self.id);
        self.chunks.extend(self.area.bytes());
        (self.area.len() - start) as u32
    }

    /// Adds the index entry of a block that ended before `next` (or at the end).
    fn index_block(&mut self, (offset, stored_len): (u32, u32), next: Option<&[u8]>) {
        let last = self.data.last_key();
        let shortened = next.is_some_and(|next| shorten(&mut self.separator, last, next));
        let (key, trailer) = if shortened {
            (&self.separator[..], Trailer::FIRST)
        } else {
            (last, self.last_trailer)
        };
        assert!(last <= key, "{}: a separator is behind its block", self.id);
        assert!(next.is_none_or(|next| key <= next), "{}: and not behind the next", self.id);
        let mut value = [0; 8];
        value[..4].copy_from_slice(&offset.to_le_bytes());
        value[4..].copy_from_slice(&stored_len.to_le_bytes());
        self.index.add(&mut self.index_area, key, trailer, &value);
    }
}

/// Makes `out` a key after `last` and before `next` that is shorter than `last`; false if none is
/// easily had.
fn shorten(out: &mut Vec<u8>, last: &[u8], next: &[u8]) -> bool {
    let common = common_prefix_len(last, next);
    // last < next: either `last` ends here, or its byte is smaller.
    let Some((&low, &high)) = last.get(common).zip(next.get(common)) else { return false };
    out.clear();
    out.extend_from_slice(&last[..common]);
    if high - low > 1 {
        out.push(low + 1);
    } else if next.len() > common + 1 {
        // `next` goes on behind this byte, so its prefix is before it.
        out.push(high);
    } else {
        return false;
    }
    out.len() < last.len()
}
