//! The bytes of a description in an edit and in a tree's snapshot, whose versions are its version.
//! It is a sequence of typed fields (`gabion_base::codec`), all critical but field 13:
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
//!   16   { kind u8, number u64, live bytes u64 }…     values files and log segments of which it has pointers, at
//!                                                     most 4,096, ascending, and how much of each (absent: none)
//! ```
//!
//! Key bounds and sequence numbers enclose range deletes as they do entries, of which there may be
//! none then.

use super::{
    FILE_LEN_MAX, FILE_REFERENCES_MAX, FileMeta, FileReference, Operands, combine_chunks,
    lower_bound_of, upper_bound_of,
};
use crate::entry::{ENGINE_KEY_LEN_MAX, Keyspace};
use crate::expiry::ExpirySpan;
use crate::range_delete::{Deleted, RangeDeletes, WIDEST_MAX, ends_within};
use crate::sst::Compression;
use alloc::format;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use gabion_base::codec::{FIELD_CRITICAL, Fields, Put, Reader, put_field};
use gabion_base::units::{CHUNK_LEN, EDIT_KEY_BOUND_LEN_MAX, EDIT_LEN_MAX};
use gabion_base::{Error, FileId, FileKind, Result, SequenceNumber, TERM_MAX, Term};

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
    pub(super) const REFERENCES: u16 = 16;
}

const WHAT: &str = "file description";

/// Bytes of a [`FileReference`].
pub(crate) const REFERENCE_LEN: usize = 1 + 8 + 8;
const _: () = assert!(FILE_REFERENCES_MAX * REFERENCE_LEN <= EDIT_LEN_MAX / 8);

impl FileMeta {
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
        if !self.references.is_empty() {
            payload.clear();
            encode_references(&self.references, &mut payload);
            put_field(out, tag::REFERENCES, FIELD_CRITICAL, &payload);
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
            if field.tag > tag::REFERENCES {
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
                self.id = file_id(&mut payload)?;
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
            tag::REFERENCES => self.references = decode_references(&mut payload)?,
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
        if self.term > TERM_MAX {
            return Err(bad(format!("{id} is of {}, the limit is {TERM_MAX}", self.term)));
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
        self.check_references()
    }

    /// Checks what the file says of others, before an edit with it is in the log and after.
    pub(crate) fn check_references(&self) -> Result<()> {
        let (id, count) = (self.id, self.references.len());
        if count > FILE_REFERENCES_MAX {
            return Err(bad(format!(
                "{id} references {count} files, the limit is {FILE_REFERENCES_MAX}"
            )));
        }
        if !self.references.is_sorted_by(|a, b| a.file < b.file) {
            return Err(bad(format!("{id} references files that do not ascend")));
        }
        let has_values = |kind| matches!(kind, FileKind::Values | FileKind::LogSegment);
        let fits = |it: &&FileReference| {
            has_values(it.file.kind) && it.live_bytes > 0 && it.live_bytes <= FILE_LEN_MAX
        };
        match self.references.iter().find(|it| !fits(it)) {
            None => Ok(()),
            Some(FileReference { file, live_bytes }) => {
                Err(bad(format!("{id} references {live_bytes} bytes of {file}")))
            }
        }
    }

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

fn file_id(payload: &mut Reader<'_>) -> Result<FileId> {
    let kind = payload.u8()?;
    let kind = FileKind::from_byte(kind).ok_or_else(|| bad(format!("unknown file kind {kind}")))?;
    Ok(FileId { kind, number: payload.u64()? })
}

fn encode_references(references: &[FileReference], out: &mut Vec<u8>) {
    for &FileReference { file, live_bytes } in references {
        out.put_u8(file.kind as u8);
        out.put_u64(file.number);
        out.put_u64(live_bytes);
    }
}

/// Reads what [`encode_references`] wrote, to the end; there is at least one.
fn decode_references(payload: &mut Reader<'_>) -> Result<Vec<FileReference>> {
    let count = payload.remaining() / REFERENCE_LEN;
    if count == 0 || count > FILE_REFERENCES_MAX {
        return Err(bad(format!(
            "references to {count} files, expected 1 to {FILE_REFERENCES_MAX}"
        )));
    }
    let mut references = Vec::with_capacity(count);
    for _ in 0..count {
        references.push(FileReference { file: file_id(payload)?, live_bytes: payload.u64()? });
    }
    Ok(references)
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
