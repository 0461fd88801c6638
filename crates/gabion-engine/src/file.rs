//! What an edit says of a file, and the two traits through which the engine meets files: it reads
//! them by number and offset, and hands over finished ones. Where their bytes lie is the pool's
//! business (docs/architecture.md, "Files").
//!
//! A [`FileMeta`] is a sequence of typed fields (`gabion_base::codec`), all critical but field 13:
//!
//! ```text
//!   tag  payload
//!    1   kind u8, number u64                          the file's identity
//!    2   term u64                                     the term that made it
//!    3   length u64                                   exact bytes; on disk rounded up to 4 KiB
//!    4   checksum u32, then u32 per chunk             CRC32C of the rounded bytes; of each 1 MiB of them
//!    5   bytes                                        lower key bound, at most 256 bytes
//!    6   bytes                                        upper key bound, at most 256 bytes
//!    7   smallest u64, largest u64                    sequence numbers
//!    8   entries u64, deletes u64, key bytes u64, value bytes u64
//!    9   { keyspace u8, sequence u64 }…               clears of whole keyspaces, newest first (absent: none)
//!   10   first u64, last u64                          expiries of its expiring puts, in ms (absent: none)
//!   11   count u64, first u64                         operands, and when the first was written, in ms
//!                                                     (absent: none)
//!   12   fragments u64, numbers u64, key bytes u64, first u64,
//!        { start prefixed, end prefixed, sequence u64, seen from u64 }…
//!                                                     range deletes: fragments, their sequence numbers, bytes of
//!                                                     starts and ends, smallest number; then up to 4 stretches of
//!                                                     which nothing older is seen, ascending (absent: none)
//!   13   version u16, level u16, name                 codec of its data blocks, as in a recipe; not critical (absent:
//!                                                     stored as they are, or made by a build that did not tell)
//!   14   bytes                                        lower key bound, in place of field 5, where more than 256 bytes
//!                                                     tell the file from the one before it; at most 65,537 (absent: 5)
//!   15   bytes                                        upper key bound, in place of field 6, likewise (absent: 6)
//! ```
//!
//! Key bounds and sequence numbers enclose range deletes as they do entries, of which there may be none then.

mod encoded_len;

use crate::entry::{ENGINE_KEY_LEN_MAX, Keyspace};
use crate::expiry::ExpirySpan;
use crate::range_delete::{Deleted, RangeDeletes, WIDEST_MAX, ends_within};
use crate::sst::Compression;
use alloc::format;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::ops::RangeInclusive;
use gabion_base::codec::{FIELD_CRITICAL, Fields, Put, Reader, put_field};
use gabion_base::units::{CHUNK_LEN, EDIT_KEY_BOUND_LEN_MAX, round_up_to_block};
use gabion_base::{Error, ErrorKind, FileId, FileKind, Result, SequenceNumber, Term, crc};
use gabion_media::{AlignedBuf, Bytes};

/// Longest file: offsets within an SST have 32 bits. Targets are far below (16 MiB).
pub const FILE_LEN_MAX: u64 = 1 << 31;

/// What an edit says of a file. The same at every replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMeta {
    /// Which file.
    pub id: FileId,
    /// The term in which its number was assigned.
    pub term: Term,
    /// Exact length in bytes.
    pub len: u64,
    /// CRC32C of the rounded bytes: the chunks' combined.
    pub checksum: u32,
    /// CRC32C of each 1 MiB of the rounded bytes; the last chunk may be shorter.
    pub chunk_crcs: Vec<u32>,
    /// An engine key at or before every key of the file, and every key that it deletes in a range; at most 256 bytes,
    /// but where more tell it from the file before it at its level.
    pub smallest: Vec<u8>,
    /// An engine key at or after every key of the file, and every key that it deletes in a range; at most 256 bytes,
    /// but where more tell it from the file after it at its level.
    pub largest: Vec<u8>,
    /// Smallest sequence number in the file.
    pub smallest_sequence: SequenceNumber,
    /// Largest sequence number in the file.
    pub largest_sequence: SequenceNumber,
    /// Entries, deletes included, range deletes not.
    pub entries: u64,
    /// Deletes among them.
    pub deletes: u64,
    /// Sum of the engine keys' lengths.
    pub raw_key_bytes: u64,
    /// Sum of the values' lengths.
    pub raw_value_bytes: u64,
    /// Clears of whole keyspaces that the file holds, newest first. A tree keeps clears as its floor, so it makes no file
    /// with any, and an edit that adds one is refused.
    pub clears: Vec<(Keyspace, SequenceNumber)>,
    /// When what it holds expires, if any of it does.
    pub expiry: Option<ExpirySpan>,
    /// Its operands of the merge operator, if it has any.
    pub operands: Option<Operands>,
    /// Its range deletes, if it has any.
    pub ranges: Option<RangeDeletes>,
    /// The codec that it was made with, by which it is decided whether it may rest at the bottom as it is. None also
    /// where it is not told: the file itself always says.
    pub compression: Compression,
}

/// The operands in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands {
    /// How many.
    pub count: u64,
    /// When the first was written, in group time in milliseconds: a value that expired by then counts for none.
    pub first_ms: u64,
}

/// Tags of the fields, as drawn above.
mod tag {
    pub(super) const IDENTITY: u16 = 1;
    pub(super) const TERM: u16 = 2;
    pub(super) const LEN: u16 = 3;
    pub(super) const CHECKSUMS: u16 = 4;
    pub(super) const SMALLEST: u16 = 5;
    pub(super) const LARGEST: u16 = 6;
    pub(super) const SEQUENCES: u16 = 7;
    pub(super) const COUNTS: u16 = 8;
    pub(super) const CLEARS: u16 = 9;
    pub(super) const EXPIRY: u16 = 10;
    pub(super) const OPERANDS: u16 = 11;
    pub(super) const RANGES: u16 = 12;
    pub(super) const CODEC: u16 = 13;
    pub(super) const SMALLEST_LONG: u16 = 14;
    pub(super) const LARGEST_LONG: u16 = 15;
}

const WHAT: &str = "file description";

impl FileMeta {
    /// Of a file of which nothing else is told yet: no bytes, no entries, no bounds.
    #[must_use]
    pub const fn new(id: FileId, term: Term) -> Self {
        Self {
            id,
            term,
            len: 0,
            checksum: 0,
            chunk_crcs: Vec::new(),
            smallest: Vec::new(),
            largest: Vec::new(),
            smallest_sequence: SequenceNumber::ZERO,
            largest_sequence: SequenceNumber::ZERO,
            entries: 0,
            deletes: 0,
            raw_key_bytes: 0,
            raw_value_bytes: 0,
            clears: Vec::new(),
            expiry: None,
            operands: None,
            ranges: None,
            compression: Compression::None,
        }
    }

    /// Bytes on disk and wire: the length rounded up to whole 4 KiB blocks.
    #[must_use]
    pub const fn rounded_len(&self) -> u64 {
        round_up_to_block(self.len)
    }

    /// Bytes of memory that the description takes, shared as an `Arc`.
    #[must_use]
    pub fn memory_used(&self) -> usize {
        let ranges = self.ranges.as_ref().map_or(0, |ranges| {
            let ends = ranges.widest.iter().map(|it| it.start.capacity() + it.end.capacity());
            ranges.widest.capacity() * size_of::<Deleted>() + ends.sum::<usize>()
        });
        // The counts of an `Arc` stand before what it holds.
        2 * size_of::<usize>()
            + size_of::<Self>()
            + self.chunk_crcs.capacity() * size_of::<u32>()
            + self.smallest.capacity()
            + self.largest.capacity()
            + self.clears.capacity() * size_of::<(Keyspace, SequenceNumber)>()
            + ranges
    }

    /// Whether `key` lies within the file's bounds. A key that does may still not be in the file.
    #[must_use]
    pub fn may_hold(&self, key: &[u8]) -> bool {
        &self.smallest[..] <= key && key <= &self.largest[..]
    }

    /// Checks the whole file's rounded bytes against the checksums.
    ///
    /// # Errors
    /// Corruption, naming the first chunk that differs.
    pub fn verify(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 != self.rounded_len() {
            return Err(Error::corruption(format!(
                "{}: {} bytes, expected {}",
                self.id,
                bytes.len(),
                self.rounded_len()
            )));
        }
        let chunks = bytes.chunks(CHUNK_LEN as usize).enumerate();
        for (index, chunk) in chunks {
            self.verify_chunk(index, chunk)?;
        }
        Ok(())
    }

    /// Checks chunk `index` (1 MiB of the rounded bytes, the last one shorter).
    ///
    /// # Errors
    /// Corruption when it differs; invalid input when the file has no such chunk.
    pub fn verify_chunk(&self, index: usize, chunk: &[u8]) -> Result<()> {
        let Some(&expected) = self.chunk_crcs.get(index) else {
            return Err(Error::invalid(format!("{} has no chunk {index}", self.id)));
        };
        let found = crc::crc32c(chunk);
        if found == expected {
            return Ok(());
        }
        Err(Error::corruption(format!(
            "{}: chunk {index} has checksum {found:#010x}, expected {expected:#010x}",
            self.id
        )))
    }

    /// Appends the encoded description.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut payload = Vec::new();
        let mut field = |tag: u16, fill: &mut dyn FnMut(&mut Vec<u8>)| {
            payload.clear();
            fill(&mut payload);
            put_field(out, tag, FIELD_CRITICAL, &payload);
        };
        field(tag::IDENTITY, &mut |p| {
            p.put_u8(self.id.kind as u8);
            p.put_u64(self.id.number);
        });
        field(tag::TERM, &mut |p| p.put_u64(self.term.get()));
        field(tag::LEN, &mut |p| p.put_u64(self.len));
        field(tag::CHECKSUMS, &mut |p| {
            p.put_u32(self.checksum);
            self.chunk_crcs.iter().for_each(|&crc| p.put_u32(crc));
        });
        field(tag::SMALLEST, &mut |p| p.put_bytes(&lower_bound_of(&self.smallest)));
        field(tag::LARGEST, &mut |p| p.put_bytes(&upper_bound_of(&self.largest)));
        field(tag::SEQUENCES, &mut |p| {
            p.put_u64(self.smallest_sequence.get());
            p.put_u64(self.largest_sequence.get());
        });
        field(tag::COUNTS, &mut |p| {
            [self.entries, self.deletes, self.raw_key_bytes, self.raw_value_bytes]
                .iter()
                .for_each(|&n| p.put_u64(n));
        });
        if !self.clears.is_empty() {
            field(tag::CLEARS, &mut |p| encode_clears(&self.clears, p));
        }
        if let Some(ExpirySpan { first_ms, last_ms }) = self.expiry {
            field(tag::EXPIRY, &mut |p| {
                p.put_u64(first_ms);
                p.put_u64(last_ms);
            });
        }
        if let Some(Operands { count, first_ms }) = self.operands {
            field(tag::OPERANDS, &mut |p| {
                p.put_u64(count);
                p.put_u64(first_ms);
            });
        }
        if let Some(ranges) = &self.ranges {
            field(tag::RANGES, &mut |p| encode_ranges(ranges, p));
        }
        if self.compression != Compression::None {
            put_field(out, tag::CODEC, 0, &self.compression.encode());
        }
        for (tag, bound) in
            [(tag::SMALLEST_LONG, &self.smallest), (tag::LARGEST_LONG, &self.largest)]
        {
            if bound.len() > EDIT_KEY_BOUND_LEN_MAX {
                put_field(out, tag, FIELD_CRITICAL, bound);
            }
        }
    }

    /// Decodes what [`FileMeta::encode`] made, and checks that it makes sense.
    ///
    /// # Errors
    /// Corruption; unsupported for an unknown critical field.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut meta = Self::new(FileId::sst(0), Term::ZERO);
        let mut fields = Fields::new(bytes, WHAT);
        let mut last_tag = 0;
        let mut known = 0u32;
        while let Some(field) = fields.next_field()? {
            if field.tag <= last_tag {
                return Err(bad(format!("field {} is out of order", field.tag)));
            }
            last_tag = field.tag;
            if field.tag > tag::LARGEST_LONG {
                field.skip_unknown(WHAT)?;
                continue;
            }
            meta.decode_field(field.tag, Reader::new(field.payload, WHAT))?;
            known += u32::from(field.tag < tag::CLEARS);
        }
        if known != u32::from(tag::COUNTS) {
            return Err(bad(format!("{known} of {} fields are there", tag::COUNTS)));
        }
        meta.check()?;
        Ok(meta)
    }

    fn decode_field(&mut self, tag: u16, mut payload: Reader<'_>) -> Result<()> {
        match tag {
            tag::IDENTITY => {
                let kind = payload.u8()?;
                let kind = FileKind::from_byte(kind)
                    .ok_or_else(|| bad(format!("unknown file kind {kind}")))?;
                self.id = FileId { kind, number: payload.u64()? };
            }
            tag::TERM => self.term = Term(payload.u64()?),
            tag::LEN => self.len = payload.u64()?,
            tag::CHECKSUMS => {
                self.checksum = payload.u32()?;
                self.chunk_crcs.reserve_exact(payload.remaining() / 4);
                while !payload.is_empty() {
                    self.chunk_crcs.push(payload.u32()?);
                }
            }
            tag::SMALLEST => self.smallest = bound(&mut payload, SHORT)?,
            tag::LARGEST => self.largest = bound(&mut payload, SHORT)?,
            tag::SMALLEST_LONG => self.smallest = bound(&mut payload, LONG)?,
            tag::LARGEST_LONG => self.largest = bound(&mut payload, LONG)?,
            tag::SEQUENCES => {
                self.smallest_sequence = SequenceNumber(payload.u64()?);
                self.largest_sequence = SequenceNumber(payload.u64()?);
            }
            tag::COUNTS => {
                self.entries = payload.u64()?;
                self.deletes = payload.u64()?;
                self.raw_key_bytes = payload.u64()?;
                self.raw_value_bytes = payload.u64()?;
            }
            tag::CLEARS => self.clears = decode_clears(&mut payload)?,
            tag::EXPIRY => {
                let (first_ms, last_ms) = (payload.u64()?, payload.u64()?);
                self.expiry = Some(ExpirySpan { first_ms, last_ms });
            }
            tag::OPERANDS => {
                let (count, first_ms) = (payload.u64()?, payload.u64()?);
                self.operands = Some(Operands { count, first_ms });
            }
            tag::RANGES => self.ranges = Some(decode_ranges(&mut payload)?),
            _ => {
                self.compression = Compression::decode(payload, WHAT)?;
                if self.compression == Compression::None {
                    return Err(bad(format!("{}: a codec that is none", self.id)));
                }
                return Ok(());
            }
        }
        payload.finish()
    }

    fn check(&self) -> Result<()> {
        let id = self.id;
        if self.len == 0 || self.len > FILE_LEN_MAX {
            return Err(bad(format!(
                "{id} is {} bytes long, the limit is {FILE_LEN_MAX}",
                self.len
            )));
        }
        let chunks = self.rounded_len().div_ceil(CHUNK_LEN);
        if self.chunk_crcs.len() as u64 != chunks {
            let found = self.chunk_crcs.len();
            return Err(bad(format!("{id} has {found} chunk checksums, expected {chunks}")));
        }
        if combine_chunks(&self.chunk_crcs, self.rounded_len()) != self.checksum {
            return Err(bad(format!("{id}: the chunks' checksums do not make up the file's")));
        }
        if self.smallest > self.largest {
            return Err(bad(format!("{id} has its key bounds the wrong way round")));
        }
        // One that is shortened becomes the next number up from its first bytes.
        let has_next = |bound: &[u8]| {
            bound.len() <= EDIT_KEY_BOUND_LEN_MAX
                || bound[..EDIT_KEY_BOUND_LEN_MAX].iter().any(|&byte| byte < 0xff)
        };
        if !has_next(&self.smallest) || !has_next(&self.largest) {
            return Err(bad(format!("{id} has a key bound that begins with no keyspace")));
        }
        let sequences = (self.smallest_sequence, self.largest_sequence);
        if sequences.0 > sequences.1 || sequences.1 > SequenceNumber::MAX {
            return Err(bad(format!(
                "{id} has sequence numbers {} to {}",
                sequences.0, sequences.1
            )));
        }
        if let Some(ExpirySpan { first_ms, last_ms }) = self.expiry
            && first_ms > last_ms
        {
            return Err(bad(format!("{id} has expiries from {first_ms} to {last_ms} ms")));
        }
        if let Some(Operands { count, .. }) = self.operands
            && (count == 0 || count > self.entries)
        {
            let entries = self.entries;
            return Err(bad(format!("{id} has {count} operands among {entries} entries")));
        }
        if let Some(ranges) = &self.ranges {
            self.check_ranges(ranges)?;
        }
        if self.deletes > self.entries {
            let (deletes, entries) = (self.deletes, self.entries);
            return Err(bad(format!("{id} has {deletes} deletes among {entries} entries")));
        }
        Ok(())
    }
}

impl FileMeta {
    /// Each fragment has two keys and a number at least, and all of them are in the file.
    fn check_ranges(&self, ranges: &RangeDeletes) -> Result<()> {
        let &RangeDeletes { fragments, sequences, key_bytes, first_sequence, .. } = ranges;
        let fits = fragments > 0
            && sequences >= fragments
            && key_bytes / 2 >= fragments
            && sequences <= self.len / 8
            && key_bytes <= self.len;
        let numbers = self.smallest_sequence..=self.largest_sequence;
        let within = |deleted: &Deleted| {
            self.smallest <= deleted.start
                && deleted.start < deleted.end
                && ends_within(&deleted.end, &self.largest)
                && numbers.contains(&deleted.sequence)
                && numbers.contains(&deleted.seen_from)
                && deleted.sequence <= deleted.seen_from
        };
        let widest = &ranges.widest;
        let is_sorted = widest.is_sorted_by(|a, b| a.end <= b.start);
        if fits && numbers.contains(&first_sequence) && is_sorted && widest.iter().all(within) {
            return Ok(());
        }
        Err(bad(format!(
            "{} has range deletes in {fragments} fragments of {key_bytes} bytes, with {sequences} \
             sequence numbers from {first_sequence} on",
            self.id
        )))
    }
}

fn bad(message: alloc::string::String) -> Error {
    Error::corruption(format!("{WHAT}: {message}"))
}

/// How many bytes a bound has.
const SHORT: RangeInclusive<usize> = 0..=EDIT_KEY_BOUND_LEN_MAX;
/// How many bytes one has that stands in a field of its own.
const LONG: RangeInclusive<usize> = EDIT_KEY_BOUND_LEN_MAX + 1..=ENGINE_KEY_LEN_MAX;

fn bound(payload: &mut Reader<'_>, lens: RangeInclusive<usize>) -> Result<Vec<u8>> {
    let len = payload.remaining();
    if !lens.contains(&len) {
        let (least, most) = lens.into_inner();
        return Err(bad(format!("key bound of {len} bytes, expected {least} to {most}")));
    }
    Ok(payload.bytes(len)?.to_vec())
}

fn encode_ranges(ranges: &RangeDeletes, out: &mut Vec<u8>) {
    [ranges.fragments, ranges.sequences, ranges.key_bytes, ranges.first_sequence.get()]
        .iter()
        .for_each(|&n| out.put_u64(n));
    for Deleted { start, end, sequence, seen_from } in &ranges.widest {
        out.put_prefixed(start);
        out.put_prefixed(end);
        out.put_u64(sequence.get());
        out.put_u64(seen_from.get());
    }
}

fn decode_ranges(payload: &mut Reader<'_>) -> Result<RangeDeletes> {
    let mut ranges = RangeDeletes {
        fragments: payload.u64()?,
        sequences: payload.u64()?,
        key_bytes: payload.u64()?,
        first_sequence: SequenceNumber(payload.u64()?),
        widest: Vec::new(),
    };
    while !payload.is_empty() {
        if ranges.widest.len() == WIDEST_MAX {
            return Err(bad(format!("more than {WIDEST_MAX} stretches that are deleted")));
        }
        ranges.widest.push(Deleted {
            start: payload.prefixed(EDIT_KEY_BOUND_LEN_MAX)?.to_vec(),
            end: payload.prefixed(EDIT_KEY_BOUND_LEN_MAX)?.to_vec(),
            sequence: SequenceNumber(payload.u64()?),
            seen_from: SequenceNumber(payload.u64()?),
        });
    }
    Ok(ranges)
}

/// Appends clears as the last field's payload.
pub(crate) fn encode_clears(clears: &[(Keyspace, SequenceNumber)], out: &mut Vec<u8>) {
    for &(keyspace, sequence) in clears {
        out.put_u8(keyspace as u8);
        out.put_u64(sequence.get());
    }
}

/// Reads what [`encode_clears`] wrote, to the end.
pub(crate) fn decode_clears(payload: &mut Reader<'_>) -> Result<Vec<(Keyspace, SequenceNumber)>> {
    let mut clears = Vec::with_capacity(payload.remaining() / 9);
    while !payload.is_empty() {
        let byte = payload.u8()?;
        let keyspace =
            Keyspace::from_byte(byte).ok_or_else(|| bad(format!("unknown keyspace {byte}")))?;
        clears.push((keyspace, SequenceNumber(payload.u64()?)));
    }
    Ok(clears)
}

/// The file's checksum from those of its 1 MiB chunks.
pub(crate) fn combine_chunks(chunk_crcs: &[u32], rounded_len: u64) -> u32 {
    let mut left = rounded_len;
    chunk_crcs.iter().fold(0, |whole, &chunk| {
        let len = left.min(CHUNK_LEN);
        left -= len;
        crc::combine(whole, chunk, len)
    })
}

/// The longest bound of at most 256 bytes at or before `key`.
pub(crate) fn lower_bound_of(key: &[u8]) -> Vec<u8> {
    key[..key.len().min(EDIT_KEY_BOUND_LEN_MAX)].to_vec()
}

/// A bound of at most 256 bytes at or after `key`: the key, or the next number up from its first 256
/// bytes. (All of those `0xff` would have none; an engine key begins with 0 or 1.)
pub(crate) fn upper_bound_of(key: &[u8]) -> Vec<u8> {
    if key.len() <= EDIT_KEY_BOUND_LEN_MAX {
        return key.to_vec();
    }
    let mut bound = key[..EDIT_KEY_BOUND_LEN_MAX].to_vec();
    while bound.last() == Some(&0xff) {
        bound.pop();
    }
    let last = bound.last_mut().expect("an engine key begins with its keyspace, not with 0xff");
    *last += 1;
    bound
}

/// A file that a job built, and everything that an edit will say of it.
#[derive(Clone, Debug)]
pub struct FinishedFile {
    /// What the edit says.
    pub meta: FileMeta,
    /// The rounded bytes in memory aligned to 4 KiB: written, shipped and resent from here.
    pub bytes: Bytes,
    /// The memory of `bytes`, for who wants to use it again once nobody has these any more.
    pub memory: Arc<AlignedBuf>,
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// Which file.
    pub file: FileId,
    /// Where they begin.
    pub offset: u64,
    /// How many.
    pub len: usize,
}

/// Where live files are read from: the pool, a cache of shipped bytes, memory in tests.
pub trait FileSource {
    /// The `len` bytes of `file` from `offset`, neither of which need be aligned.
    ///
    /// # Errors
    /// Not found for a file that is not live; invalid input for a range beyond its rounded end; what
    /// the medium reports.
    fn read(&self, file: FileId, offset: u64, len: usize) -> impl Future<Output = Result<Bytes>>;

    /// What [`Self::read`] gives for each of `ranges`, in their order. A source that waits for a device has all of them
    /// under way at once; without anything to wait for, one after the other is as good.
    fn read_many(&self, ranges: &[FileRange]) -> impl Future<Output = Vec<Result<Bytes>>> {
        async move {
            let mut results = Vec::with_capacity(ranges.len());
            for &FileRange { file, offset, len } in ranges {
                results.push(self.read(file, offset, len).await);
            }
            results
        }
    }

    /// Bytes of `file` may not be what was written: a reader met `error`, which it returns. For whoever can
    /// have the file repaired; a source without such a one has nothing to do.
    fn note_damage(&self, _file: FileId, _error: &Error) {}
}

/// A result of reading `file`. Damage is told to the source: bytes that are not what was written, of which
/// some look like another version's format, or that the device does not give back.
#[inline]
pub(crate) fn noted<T>(source: &impl FileSource, file: FileId, result: Result<T>) -> Result<T> {
    if let Err(error) = &result
        && matches!(error.kind(), ErrorKind::Corruption | ErrorKind::Unsupported | ErrorKind::Io)
    {
        source.note_damage(file, error);
    }
    result
}

macro_rules! forward_source {
    ($($pointer:ty),*) => {$(
        impl<S: FileSource + ?Sized> FileSource for $pointer {
            fn read(
                &self,
                file: FileId,
                offset: u64,
                len: usize,
            ) -> impl Future<Output = Result<Bytes>> {
                (**self).read(file, offset, len)
            }

            fn read_many(&self, ranges: &[FileRange]) -> impl Future<Output = Vec<Result<Bytes>>> {
                (**self).read_many(ranges)
            }

            fn note_damage(&self, file: FileId, error: &Error) {
                (**self).note_damage(file, error);
            }
        }
    )*};
}

forward_source!(&S, Rc<S>, Arc<S>);

/// Where a job's files go as they are finished.
pub trait FileSink {
    /// Takes a finished file; resolves when the job may go on (back-pressure), not when the file is
    /// durable.
    ///
    /// # Errors
    /// What ends the job: no space, fenced, a failed write.
    fn finished(&mut self, file: FinishedFile) -> impl Future<Output = Result<()>>;

    /// Memory in which the next file is built, of any content, with room for about `capacity` bytes.
    fn buffer(&mut self, capacity: usize) -> AlignedBuf {
        AlignedBuf::with_capacity(capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    pub(crate) fn example() -> FileMeta {
        let len = 2 * CHUNK_LEN + 5000;
        let chunk_crcs = vec![1, 2, 3];
        FileMeta {
            id: FileId::sst(7),
            term: Term(3),
            len,
            checksum: combine_chunks(&chunk_crcs, round_up_to_block(len)),
            chunk_crcs,
            smallest: b"\x01a".to_vec(),
            largest: b"\x01b".to_vec(),
            smallest_sequence: SequenceNumber(4),
            largest_sequence: SequenceNumber(9),
            entries: 6,
            deletes: 2,
            raw_key_bytes: 12,
            raw_value_bytes: 40,
            clears: vec![(Keyspace::User, SequenceNumber(8)), (Keyspace::User, SequenceNumber(5))],
            expiry: Some(ExpirySpan { first_ms: 5, last_ms: 7 }),
            operands: Some(Operands { count: 6, first_ms: 3 }),
            ranges: Some(RangeDeletes {
                fragments: 2,
                sequences: 3,
                key_bytes: 40,
                first_sequence: SequenceNumber(7),
                widest: alloc::vec![Deleted {
                    start: b"\x01a".to_vec(),
                    end: b"\x01b".to_vec(),
                    sequence: SequenceNumber(7),
                    seen_from: SequenceNumber(8),
                }],
            }),
            compression: Compression::ZSTD,
        }
    }

    #[test]
    fn a_description_survives_encoding() {
        let mut meta = example();
        let mut out = Vec::new();
        meta.encode(&mut out);
        assert_eq!(FileMeta::decode(&out).unwrap(), meta);
        meta.clears.clear();
        (meta.expiry, meta.operands) = (None, None);
        out.clear();
        meta.encode(&mut out);
        assert_eq!(FileMeta::decode(&out).unwrap(), meta);
        meta.compression = Compression::None;
        let with_codec = core::mem::take(&mut out);
        meta.encode(&mut out);
        assert_eq!(FileMeta::decode(&out).unwrap(), meta);
        // The last field, which a build that does not know it may skip.
        assert_eq!(with_codec[..out.len()], out);
        assert_eq!(with_codec[out.len()..][..4], [13, 0, 0, 0]);
        let mut none = out.clone();
        put_field(&mut none, 13, 0, &Compression::None.encode());
        assert_eq!(FileMeta::decode(&none).unwrap_err().kind(), ErrorKind::Corruption);
        let mut newer = out;
        put_field(&mut newer, 13, 0, b"\x01\0\0\0brotli");
        assert_eq!(FileMeta::decode(&newer).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(meta.rounded_len(), 2 * CHUNK_LEN + 8192);
    }

    #[test]
    fn long_bounds_have_fields_of_their_own_which_other_builds_refuse() {
        let mut meta = example();
        let mut short = Vec::new();
        meta.encode(&mut short);
        let long = |tail: &[u8]| [&[1u8; 256][..], tail].concat();
        (meta.ranges, meta.smallest, meta.largest) = (None, long(b"ab"), long(b"b"));
        let mut out = Vec::new();
        meta.encode(&mut out);
        assert_eq!(FileMeta::decode(&out).unwrap(), meta);
        // Tag, flags (critical), length, as every field has them.
        let fields = [
            &[14, 0, 1, 0, 2, 1, 0, 0][..],
            &[1; 256],
            b"ab",
            &[15, 0, 1, 0, 1, 1, 0, 0],
            &[1; 256],
            b"b",
        ]
        .concat();
        assert!(out.ends_with(&fields), "{:?}", &out[out.len() - fields.len()..]);
        // What stands in the fields that all builds know is 256 bytes long, and no bound for its own sake.
        let known = out.len() - fields.len();
        let cut = FileMeta::decode(&out[..known]).unwrap();
        assert_eq!(cut.smallest, long(b""));
        assert_eq!(cut.largest, [&[1u8; 255][..], &[2]].concat());
        for (tag, len) in [(14, 256), (15, 256), (14, ENGINE_KEY_LEN_MAX + 1)] {
            let mut refused = short.clone();
            put_field(&mut refused, tag, FIELD_CRITICAL, &vec![1; len]);
            assert_eq!(FileMeta::decode(&refused).unwrap_err().kind(), ErrorKind::Corruption);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let refuse = |change: &dyn Fn(&mut FileMeta)| {
            let mut meta = example();
            change(&mut meta);
            let mut out = Vec::new();
            meta.encode(&mut out);
            FileMeta::decode(&out).unwrap_err()
        };
        for error in [
            refuse(&|m| m.len = 0),
            refuse(&|m| m.len = FILE_LEN_MAX + 1),
            refuse(&|m| m.checksum ^= 1),
            refuse(&|m| m.chunk_crcs.push(1)),
            refuse(&|m| m.smallest = b"\x01c".to_vec()),
            refuse(&|m| m.largest = vec![2; ENGINE_KEY_LEN_MAX + 1]),
            refuse(&|m| m.smallest_sequence = SequenceNumber(10)),
            refuse(&|m| m.largest_sequence = SequenceNumber(1 << 56)),
            refuse(&|m| m.deletes = 7),
            refuse(&|m| m.expiry = Some(ExpirySpan { first_ms: 2, last_ms: 1 })),
            refuse(&|m| m.operands = Some(Operands { count: 7, first_ms: 1 })),
        ] {
            assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        }
    }

    #[test]
    fn changed_bytes_are_found_with_their_chunk() {
        let mut bytes = vec![5u8; CHUNK_LEN as usize + 4096];
        let mut meta = example();
        meta.len = bytes.len() as u64 - 7;
        meta.chunk_crcs = bytes.chunks(CHUNK_LEN as usize).map(crc::crc32c).collect();
        meta.checksum = combine_chunks(&meta.chunk_crcs, bytes.len() as u64);
        assert_eq!(meta.checksum, crc::crc32c(&bytes));
        meta.verify(&bytes).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        assert!(meta.verify(&bytes).unwrap_err().message().starts_with("000007.sst: chunk 1 has"));
        assert!(meta.verify(&bytes[1..]).is_err());
    }

    proptest! {
        #[test]
        fn bounds_enclose_their_key(tail in prop::collection::vec(prop_oneof![Just(0xffu8), any::<u8>()], 0..600)) {
            let key = [&[1u8][..], &tail].concat();
            let (lower, upper) = (lower_bound_of(&key), upper_bound_of(&key));
            prop_assert!(lower <= key && key <= upper);
            prop_assert!(lower.len() <= EDIT_KEY_BOUND_LEN_MAX && upper.len() <= EDIT_KEY_BOUND_LEN_MAX);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>, flip in any::<prop::sample::Index>(), bit in 0u8..8) {
            let _ = FileMeta::decode(&bytes);
            let mut out = Vec::new();
            example().encode(&mut out);
            let at = flip.index(out.len());
            out[at] ^= 1 << bit;
            let _ = FileMeta::decode(&out);
            let _ = FileMeta::decode(&out[..at]);
        }
    }

    #[test]
    fn an_upper_bound_of_ff_bytes_carries_into_the_keyspace() {
        let mut key = vec![0xff; 300];
        key[0] = 1;
        assert_eq!(upper_bound_of(&key), b"\x02");
    }
}
