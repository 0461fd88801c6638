//! Values of a flush that stay where the log has them ([`crate::places`]), and the segments that
//! keep them.
//!
//! ```text
//!   entry ─► place in a segment that the recipe keeps ─► pointer: segment, offset, length, CRC
//!                                                          │ noted
//!   at the end   segment ─► read once: chunks' checksums, each noted value has its CRC ─► FileMeta
//! ```
//!
//! A segment is read back because from now on its bytes are the only ones: what the edit says of it
//! must be what is there, and not what memory had.

use super::{JobInputs, JobOutput};
use crate::entry::Entry;
use crate::file::{FileMeta, FileSource, combine_chunks, lower_bound_of, upper_bound_of};
use crate::packed;
use crate::places::LogLayout;
use crate::pointer::Pointer;
use crate::recipe::Recipe;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::units::CHUNK_LEN;
use gabion_base::{Error, FileId, Result, SequenceNumber, Term, crc};

/// Values that stay in the log.
pub(super) struct Kept<'a> {
    inputs: &'a JobInputs,
    /// None where nothing stays.
    layout: Option<LogLayout>,
    segments: BTreeMap<FileId, Uses>,
}

/// The values that stay in one segment.
#[derive(Default)]
struct Uses {
    pointers: Vec<Pointer>,
    key_bytes: u64,
    value_bytes: u64,
    smallest: Vec<u8>,
    largest: Vec<u8>,
    sequences: Option<(SequenceNumber, SequenceNumber)>,
}

impl<'a> Kept<'a> {
    pub(super) fn new(inputs: &'a JobInputs) -> Result<Self> {
        let stays = !inputs.recipe.kept.is_empty();
        if stays && inputs.layout.is_none() {
            return Err(Error::invalid("values are to stay in a log that is not known"));
        }
        let layout = inputs.layout.filter(|_| stays);
        Ok(Self { inputs, layout, segments: BTreeMap::new() })
    }

    /// The pointer to the place of a value in the log, if it is to stay there. Readers get
    /// `raw_len` bytes of it.
    pub(super) fn place(
        &mut self,
        entry: &Entry<'_>,
        value: &[u8],
        raw_len: usize,
    ) -> Option<Pointer> {
        let (layout, recipe): (_, &Recipe) = (self.layout?, &self.inputs.recipe);
        if !packed::is_large(value, raw_len, recipe.kept_from) {
            return None;
        }
        let sequence = entry.trailer.sequence();
        let at = self.inputs.places.find(sequence)?;
        let file = layout.segment_at(at);
        recipe.kept.binary_search(&file).ok()?;
        let offset = (at % layout.segment_len) as u32;
        let (len, raw_len) = (value.len() as u32, raw_len as u32);
        let pointer = Pointer { file, offset, len, raw_len, crc: crc::crc32c(value) };
        self.segments.entry(file).or_default().add(entry.key, sequence, pointer);
        Some(pointer)
    }

    /// The segments as the edit describes them, by number.
    ///
    /// # Errors
    /// Corruption where a segment has not the bytes of a value; the source's.
    pub(super) async fn describe(
        self,
        term: Term,
        source: &impl FileSource,
        output: &mut JobOutput,
    ) -> Result<Vec<FileMeta>> {
        let mut described = Vec::with_capacity(self.segments.len());
        let Some(LogLayout { segment_len, .. }) = self.layout else { return Ok(described) };
        for (file, mut uses) in self.segments {
            uses.pointers.sort_unstable_by_key(|pointer| pointer.offset);
            let chunk_crcs = read_back(file, segment_len, &uses.pointers, source)
                .await
                // The flush's caller learns that the log alone is at fault: without it, the flush
                // can do.
                .inspect_err(|error| source.note_damage(file, error))?;
            output.stats.bytes_read += segment_len;
            described.push(uses.describe(file, term, segment_len, chunk_crcs));
        }
        Ok(described)
    }
}

impl Uses {
    /// Keys come in their order, the newest entry of each first.
    fn add(&mut self, key: &[u8], sequence: SequenceNumber, pointer: Pointer) {
        let bound = if self.pointers.is_empty() { &mut self.smallest } else { &mut self.largest };
        bound.clear();
        bound.extend_from_slice(key);
        let (first, last) = self.sequences.unwrap_or((sequence, sequence));
        self.sequences = Some((first.min(sequence), last.max(sequence)));
        self.key_bytes += key.len() as u64;
        self.value_bytes += u64::from(pointer.len);
        self.pointers.push(pointer);
    }

    fn describe(self, file: FileId, term: Term, len: u64, chunk_crcs: Vec<u32>) -> FileMeta {
        let entries = self.pointers.len() as u64;
        let largest = if entries > 1 { &self.largest } else { &self.smallest };
        let (first, last) = self.sequences.unwrap_or_default();
        FileMeta {
            len,
            checksum: combine_chunks(&chunk_crcs, len),
            chunk_crcs,
            smallest: lower_bound_of(&self.smallest),
            largest: upper_bound_of(largest),
            smallest_sequence: first,
            largest_sequence: last,
            entries,
            raw_key_bytes: self.key_bytes,
            raw_value_bytes: self.value_bytes,
            ..FileMeta::new(file, term)
        }
    }
}

/// Reads a segment of `len` bytes, and checks the values to which the pointers lead, which do not
/// overlap and ascend. Returns the checksums of its chunks.
async fn read_back(
    file: FileId,
    len: u64,
    pointers: &[Pointer],
    source: &impl FileSource,
) -> Result<Vec<u32>> {
    let mut chunk_crcs = Vec::new();
    let mut left = pointers.iter().peekable();
    // Checksum of the first part of a value that goes on in the next chunk.
    let mut begun = 0;
    let mut from = 0;
    while from < len {
        let chunk = source.read(file, from, CHUNK_LEN.min(len - from) as usize).await?;
        let end = from + chunk.len() as u64;
        while let Some(pointer) = left.peek() {
            let (start, stop) =
                (u64::from(pointer.offset), u64::from(pointer.offset + pointer.len));
            if start >= end {
                break;
            }
            let part = &chunk[(start.max(from) - from) as usize..(stop.min(end) - from) as usize];
            begun = if start < from { crc::append(begun, part) } else { crc::crc32c(part) };
            if stop > end {
                break;
            }
            check(pointer, begun)?;
            left.next();
        }
        chunk_crcs.push(crc::crc32c(&chunk));
        from = end;
    }
    match left.next() {
        None => Ok(chunk_crcs),
        Some(pointer) => Err(Error::corruption(format!(
            "a value of {} bytes at {} of {file} lies beyond its {len} bytes",
            pointer.len, pointer.offset
        ))),
    }
}

fn check(pointer: &Pointer, found: u32) -> Result<()> {
    let Pointer { file, offset, len, crc, .. } = *pointer;
    if found == crc {
        return Ok(());
    }
    Err(Error::corruption(format!(
        "{file} at offset {offset}: the log has a value of {len} bytes with checksum {found:08x}, \
         memory has {crc:08x}"
    )))
}
