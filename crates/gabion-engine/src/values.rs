//! Values files: large values that left the tree. A flush, or a compaction that empties other such
//! files, writes them in key order. SSTs have pointers to them ([`crate::pointer`]).
//!
//! A file is a pure function of its records, group, term and number, as an SST is.
//!
//! ```text
//!  0             64                                            len − 64      len       rounded
//!  ┌────────────┬──────────┬───┬──────────┬───────────────────┬────────┬─────────────┐
//!  │ header     │ record 0 │ … │ record n │                   │ footer │ zeros       │
//!  └────────────┴──────────┴───┴──────────┘ adjoining          └────────┴─────────────┘
//! ```
//!
//! **Header** and **footer**, 64 bytes each, little-endian:
//!
//! ```text
//!   header   0 magic "GABIONVL"   8 version u16   10 zero u16, u32   16 group u64   24 term u64
//!           32 file number u64   40 zeros        60 crc u32 of bytes 0..60, lineage folded in
//!   footer   0 magic "GABIONVE"   8 records u64   16 key bytes u64   24 value bytes u64
//!           32 smallest and 40 largest sequence number u64   48 zeros   60 crc u32, likewise
//! ```
//!
//! **Record**: enough for a checker to go from one to the next, and to compare it with the tree. A
//! reader comes by a pointer, which leads to the value alone, and needs nothing else of it.
//!
//! ```text
//!  │ key length var │ value length var │ trailer u64 │ value crc u32 │ crc u32 │ key │ value │
//!  trailer: sequence number and kind of the entry that has the value beside it: Put, ExpiringPut,
//!  or one of their packed kinds, whose value is packed here too (see [`crate::packed`])
//!  crc = CRC32C(all before it, key), lineage (group, kind, file number, record offset) folded in
//! ```
//!
//! The value has a checksum of its own, so that it is passed over once, and its pointer has the
//! same. An expiry stands with the pointer, and not here.

use crate::entry::{ENGINE_KEY_LEN_MAX, EntryKind, Trailer};
use crate::file::{
    FILE_LEN_MAX, FileMeta, FinishedFile, combine_chunks, lower_bound_of, upper_bound_of,
};
use crate::packed;
pub use crate::pointer::LARGE_VALUES_MIN;
use crate::pointer::Pointer;
use crate::sst::{Area, Chunks};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::units::{VALUE_LEN_MAX, round_up_to_block};
use gabion_base::{Error, FileId, FileKind, GroupId, Result, SequenceNumber, Term, crc};
use gabion_media::{AlignedBuf, Buffers};

/// The format that this build writes and reads.
pub const FORMAT_VERSION: u16 = 1;
/// Bytes of the header, and of the footer.
pub const ENDS_LEN: usize = 64;
/// Bytes of a record besides key and value, at most.
pub const RECORD_OVERHEAD_MAX: usize = 3 + 4 + 8 + 4 + 4;

const HEADER_MAGIC: u64 = u64::from_le_bytes(*b"GABIONVL");
const FOOTER_MAGIC: u64 = u64::from_le_bytes(*b"GABIONVE");
const CRC_AT: usize = ENDS_LEN - 4;
const WHAT: &str = "values file";

// A counter has at most 20 digits, so no value that lies apart is one (`counter::Base::of`).
const _: () = assert!(LARGE_VALUES_MIN > 20);

/// The values file with this number.
#[must_use]
pub const fn values_file(number: u64) -> FileId {
    FileId { kind: FileKind::Values, number }
}

/// Builds one values file in one aligned buffer.
pub struct ValuesBuilder {
    group: GroupId,
    id: FileId,
    term: Term,
    area: Area,
    chunks: Chunks,
    head: Vec<u8>,
    records: u64,
    key_bytes: u64,
    value_bytes: u64,
    sequences: (SequenceNumber, SequenceNumber),
    smallest: Vec<u8>,
    largest: Vec<u8>,
}

impl ValuesBuilder {
    /// A builder of file `id` of `group`, whose number was assigned in `term`, in `buffer`,
    /// whatever that holds.
    ///
    /// # Panics
    /// When `id` is no values file's.
    #[must_use]
    pub fn in_buffer(group: GroupId, id: FileId, term: Term, buffer: AlignedBuf) -> Self {
        assert!(id.kind == FileKind::Values, "{id} is not the name of a values file");
        let mut area = Area::new(buffer);
        area.extend(&header(group, id, term));
        Self {
            group,
            id,
            term,
            area,
            chunks: Chunks::default(),
            head: Vec::with_capacity(RECORD_OVERHEAD_MAX),
            records: 0,
            key_bytes: 0,
            value_bytes: 0,
            sequences: (SequenceNumber::MAX, SequenceNumber::ZERO),
            smallest: Vec::new(),
            largest: Vec::new(),
        }
    }

    /// Adds the value of `key` that was written with this trailer, and returns what leads to it. It
    /// is packed where readers get more than its bytes, `raw_len`.
    ///
    /// # Panics
    /// When key or value are over their limits, the value is empty, or the file would reach 2 GiB:
    /// the callers' cut rules exclude all of these.
    pub fn add(&mut self, key: &[u8], trailer: Trailer, value: &[u8], raw_len: u32) -> Pointer {
        assert!(key.len() <= ENGINE_KEY_LEN_MAX, "{}: key of {} bytes", self.id, key.len());
        let is_value = !value.is_empty() && value.len() <= VALUE_LEN_MAX;
        assert!(is_value, "{}: value of {} bytes", self.id, value.len());
        let (at, crc) = (self.area.len() as u64, crc::crc32c(value));
        let trailer = as_put(trailer, raw_len as usize != value.len());
        self.head.clear();
        self.head.put_varint(key.len() as u64);
        self.head.put_varint(value.len() as u64);
        self.head.put_u64(trailer.raw());
        self.head.put_u32(crc);
        let record_crc = record_crc(&self.head, key, self.group, self.id, at);
        self.head.put_u32(record_crc);
        self.area.extend(&self.head);
        self.area.extend(key);
        let offset = self.area.len();
        self.area.extend(value);
        assert!(self.len() <= FILE_LEN_MAX, "{} is over 2 GiB", self.id);
        self.chunks.extend(self.area.bytes());
        self.count(key, trailer.sequence(), value.len());
        let (offset, len) = (offset as u32, value.len() as u32);
        Pointer { file: self.id, offset, len, raw_len, crc }
    }

    fn count(&mut self, key: &[u8], sequence: SequenceNumber, value_len: usize) {
        let bound = if self.records == 0 { &mut self.smallest } else { &mut self.largest };
        bound.clear();
        bound.extend_from_slice(key);
        self.records += 1;
        self.key_bytes += key.len() as u64;
        self.value_bytes += value_len as u64;
        self.sequences.0 = self.sequences.0.min(sequence);
        self.sequences.1 = self.sequences.1.max(sequence);
    }

    /// Bytes that the file would have if it were finished now.
    #[must_use]
    pub const fn len(&self) -> u64 {
        (self.area.len() + ENDS_LEN) as u64
    }

    /// Whether no value was added.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Kind and number of this file.
    #[must_use]
    pub const fn id(&self) -> FileId {
        self.id
    }

    /// Ends the file. Its description counts records as entries, and values as they lie there.
    ///
    /// # Panics
    /// When it has no value: a job makes no empty files.
    #[must_use]
    pub fn finish(mut self) -> FinishedFile {
        assert!(!self.is_empty(), "{}: a values file has at least one value", self.id);
        let footer_at = self.area.len() as u64;
        let footer = self.footer(footer_at);
        self.area.extend(&footer);
        let len = self.area.len() as u64;
        let rounded = round_up_to_block(len);
        let (bytes, memory) = Buffers::lend(self.area.finish(rounded as usize));
        let bytes = bytes.slice(..rounded as usize);
        self.chunks.extend(&bytes);
        let chunk_crcs = self.chunks.finish();
        let largest = if self.records > 1 { &self.largest } else { &self.smallest };
        let meta = FileMeta {
            len,
            checksum: combine_chunks(&chunk_crcs, rounded),
            chunk_crcs,
            smallest: lower_bound_of(&self.smallest),
            largest: upper_bound_of(largest),
            smallest_sequence: self.sequences.0,
            largest_sequence: self.sequences.1,
            entries: self.records,
            raw_key_bytes: self.key_bytes,
            raw_value_bytes: self.value_bytes,
            ..FileMeta::new(self.id, self.term)
        };
        assert!(meta.smallest <= meta.largest, "{}: values lie in the order of keys", meta.id);
        FinishedFile { meta, bytes, memory }
    }

    fn footer(&self, at: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(ENDS_LEN);
        out.put_u64(FOOTER_MAGIC);
        [self.records, self.key_bytes, self.value_bytes].iter().for_each(|&n| out.put_u64(n));
        out.put_u64(self.sequences.0.get());
        out.put_u64(self.sequences.1.get());
        seal_end(out, self.group, self.id, at)
    }
}

fn header(group: GroupId, id: FileId, term: Term) -> Vec<u8> {
    let mut out = Vec::with_capacity(ENDS_LEN);
    out.put_u64(HEADER_MAGIC);
    out.put_u16(FORMAT_VERSION);
    out.put_bytes(&[0; 6]);
    [group.get(), term.get(), id.number].iter().for_each(|&n| out.put_u64(n));
    seal_end(out, group, id, 0)
}

/// Zeros up to the checksum, and this.
fn seal_end(mut out: Vec<u8>, group: GroupId, id: FileId, at: u64) -> Vec<u8> {
    out.resize(CRC_AT, 0);
    let crc = crc::with_lineage(crc::crc32c(&out), group, id, at);
    out.put_u32(crc);
    out
}

/// The trailer of the entry that has the value beside it.
fn as_put(trailer: Trailer, is_packed: bool) -> Trailer {
    let kind = match (trailer.kind().is_expiring(), is_packed) {
        (true, false) => EntryKind::ExpiringPut,
        (false, false) => EntryKind::Put,
        (true, true) => EntryKind::ExpiringPackedPut,
        (false, true) => EntryKind::PackedPut,
    };
    Trailer::new(trailer.sequence(), kind)
}

fn record_crc(head: &[u8], key: &[u8], group: GroupId, id: FileId, at: u64) -> u32 {
    crc::with_lineage(crc::append(crc::crc32c(head), key), group, id, at)
}

/// A record of a values file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueRecord<'a> {
    /// Engine key.
    pub key: &'a [u8],
    /// Sequence number, and the kind that the entry has with its value beside it.
    pub trailer: Trailer,
    /// The value as it lies there, packed or not; of its checksum nothing is known here.
    pub value: &'a [u8],
    /// The pointer to the value.
    pub pointer: Pointer,
}

/// Goes through the records of a whole file in memory. Each is checked but for its value:
/// [`Pointer::check`] does that. After an error it is at its end.
pub struct ValueRecords<'a> {
    bytes: &'a [u8],
    group: GroupId,
    id: FileId,
    at: usize,
    records_end: usize,
    left: u64,
}

impl<'a> ValueRecords<'a> {
    /// Of the file that `meta` describes. `bytes` are its rounded bytes.
    ///
    /// # Errors
    /// Corruption when its ends are not this file's, or not what its edit says; unsupported for an
    /// unknown format version.
    pub fn new(bytes: &'a [u8], group: GroupId, meta: &FileMeta) -> Result<Self> {
        let id = meta.id;
        let whole = bytes.len() as u64 == meta.rounded_len() && meta.len >= 2 * ENDS_LEN as u64;
        if !whole {
            return Err(bad(id, format!("has {} bytes, expected {}", bytes.len(), meta.len)));
        }
        let records_end = meta.len as usize - ENDS_LEN;
        let header = check_end(&bytes[..ENDS_LEN], HEADER_MAGIC, group, id, 0)?;
        check_header(header, group, meta)?;
        let footer = &bytes[records_end..meta.len as usize];
        let mut footer = check_end(footer, FOOTER_MAGIC, group, id, records_end as u64)?;
        let found = [footer.u64()?, footer.u64()?, footer.u64()?, footer.u64()?, footer.u64()?];
        let (first, last) = (meta.smallest_sequence.get(), meta.largest_sequence.get());
        let said = [meta.entries, meta.raw_key_bytes, meta.raw_value_bytes, first, last];
        if found != said {
            return Err(bad(id, format!("its footer counts {found:?}, its edit {said:?}")));
        }
        if bytes[meta.len as usize..].iter().any(|byte| *byte != 0) {
            return Err(bad(id, "bytes behind the footer are not zero"));
        }
        Ok(Self { bytes, group, id, at: ENDS_LEN, records_end, left: meta.entries })
    }

    fn read(&mut self) -> Result<ValueRecord<'a>> {
        let at = self.at;
        let mut reader = Reader::new(&self.bytes[at..self.records_end], WHAT);
        let (key_len, value_len) = (reader.varint()?, reader.varint()?);
        if key_len > ENGINE_KEY_LEN_MAX as u64 || value_len > VALUE_LEN_MAX as u64 {
            let what = format!("record at {at}: {key_len} and {value_len} bytes");
            return Err(Error::corruption(what));
        }
        let trailer = Trailer::from_raw(reader.u64()?)?;
        let value_crc = reader.u32()?;
        let head_len = reader.offset();
        let expected = reader.u32()?;
        let key = reader.bytes(key_len as usize)?;
        let head = &self.bytes[at..at + head_len];
        let found = record_crc(head, key, self.group, self.id, at as u64);
        if found != expected {
            let what = format!("record at {at} has checksum {found:08x}, expected {expected:08x}");
            return Err(Error::corruption(what));
        }
        let offset = (at + reader.offset()) as u32;
        let value = reader.bytes(value_len as usize)?;
        self.at = at + reader.offset();
        let len = value.len() as u32;
        let raw_len = match trailer.kind().is_packed() {
            true => packed::raw_len(value)? as u32,
            false => len,
        };
        let pointer = Pointer { file: self.id, offset, len, raw_len, crc: value_crc };
        Ok(ValueRecord { key, trailer, value, pointer })
    }
}

impl<'a> Iterator for ValueRecords<'a> {
    type Item = Result<ValueRecord<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            if self.at == self.records_end {
                return None;
            }
            let over = self.records_end - core::mem::replace(&mut self.at, self.records_end);
            return Some(Err(bad(self.id, format!("{over} bytes follow its last record"))));
        }
        self.left -= 1;
        let record = self.read().map_err(|error| error.within(format!("{}", self.id)));
        if record.is_err() {
            (self.left, self.at) = (0, self.records_end);
        }
        Some(record)
    }
}

/// Checks an end of a file. Returns what follows its magic number.
fn check_end<'a>(
    bytes: &'a [u8],
    magic: u64,
    group: GroupId,
    id: FileId,
    at: u64,
) -> Result<Reader<'a>> {
    let mut reader = Reader::new(bytes, WHAT);
    if reader.u64()? != magic {
        return Err(bad(id, format!("no magic number at {at}")));
    }
    let mut stored = Reader::new(&bytes[CRC_AT..], WHAT);
    let (found, expected) =
        (crc::with_lineage(crc::crc32c(&bytes[..CRC_AT]), group, id, at), stored.u32()?);
    if found != expected {
        let what = format!("its end at {at} has checksum {found:08x}, expected {expected:08x}");
        return Err(bad(id, what));
    }
    Ok(reader)
}

fn check_header(mut header: Reader<'_>, group: GroupId, meta: &FileMeta) -> Result<()> {
    let version = header.u16()?;
    if version != FORMAT_VERSION {
        return Err(Error::unsupported(format!(
            "{}: format version {version}; this build knows {FORMAT_VERSION}",
            meta.id
        )));
    }
    let zeros = header.array::<6>()?;
    let found = (header.u64()?, header.u64()?, header.u64()?);
    if zeros != [0; 6] || found != (group.get(), meta.term.get(), meta.id.number) {
        return Err(bad(meta.id, "its header is another file's"));
    }
    Ok(())
}

#[cold]
fn bad(id: FileId, what: impl Into<String>) -> Error {
    Error::corruption(format!("{id}: {}", what.into()))
}
