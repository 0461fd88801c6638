//! What an edit says of a file, and the two traits through which the engine meets files: it reads
//! them by number and offset, and hands over finished ones. Where their bytes lie is the pool's
//! business (docs/pool-and-shipping.md, "Files").

mod codec;
mod encoded_len;

use crate::entry::Keyspace;
use crate::expiry::ExpirySpan;
use crate::range_delete::{Deleted, RangeDeletes};
use crate::sst::Compression;
use alloc::format;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use gabion_base::units::{CHUNK_LEN, EDIT_KEY_BOUND_LEN_MAX, round_up_to_block};
use gabion_base::{Error, ErrorKind, FileId, FileKind, Result, SequenceNumber, Term, crc};
use gabion_media::{AlignedBuf, Bytes};

pub(crate) use codec::{REFERENCE_LEN, decode_clears, encode_clears};

/// Longest file: offsets within an SST have 32 bits. Targets are far below (16 MiB).
pub const FILE_LEN_MAX: u64 = 1 << 31;
/// Most values files and log segments that one SST may reference: 68 KiB of its description.
pub const FILE_REFERENCES_MAX: usize = 4096;

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
    /// An engine key at or before every key of the file, and every key that it deletes in a range;
    /// at most 256 bytes, but where more tell it from the file before it at its level.
    pub smallest: Vec<u8>,
    /// An engine key at or after every key of the file, and every key that it deletes in a range;
    /// at most 256 bytes, but where more tell it from the file after it at its level.
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
    /// Clears of whole keyspaces that the file holds, newest first. A tree keeps clears as its
    /// floor, so it makes no file with any, and an edit that adds one is refused.
    pub clears: Vec<(Keyspace, SequenceNumber)>,
    /// When what it holds expires, if any of it does.
    pub expiry: Option<ExpirySpan>,
    /// Its operands of the merge operator, if it has any.
    pub operands: Option<Operands>,
    /// Its range deletes, if it has any.
    pub ranges: Option<RangeDeletes>,
    /// The codec that it was made with, by which it is decided whether it may rest at the bottom as
    /// it is. None also where it is not told: the file itself always says.
    pub compression: Compression,
    /// Values files and log segments that its pointers lead to, ascending.
    pub references: Vec<FileReference>,
}

/// How much of a values file or log segment an SST needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileReference {
    /// Where the values lie.
    pub file: FileId,
    /// Bytes of the values that the SST's pointers lead to.
    pub live_bytes: u64,
}

/// The operands in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands {
    /// How many.
    pub count: u64,
    /// When the first was written, in group time in milliseconds: a value that expired by then
    /// counts for none.
    pub first_ms: u64,
}

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
            references: Vec::new(),
        }
    }

    /// Bytes on disk and wire: the length rounded up to whole 4 KiB blocks.
    #[must_use]
    pub const fn rounded_len(&self) -> u64 {
        round_up_to_block(self.len)
    }

    /// Bytes that a file of values takes room for: those of its values, and of a segment of the log
    /// all, as the rest of it goes with the last value only.
    pub(crate) fn held_value_bytes(&self) -> u64 {
        match self.id.kind {
            FileKind::LogSegment => self.len.max(self.raw_value_bytes),
            _ => self.raw_value_bytes,
        }
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
            + self.references.capacity() * size_of::<FileReference>()
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

/// A bound of at most 256 bytes at or after `key`: the key, or the next number up from its first
/// 256 bytes. (All of those `0xff` would have none; an engine key begins with 0 or 1.)
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
    /// Not found for a file that is not live; invalid input for a range beyond its rounded end;
    /// what the medium reports.
    fn read(&self, file: FileId, offset: u64, len: usize) -> impl Future<Output = Result<Bytes>>;

    /// What [`Self::read`] gives for each of `ranges`, in their order. A source that waits for a
    /// device has all of them under way at once; without anything to wait for, one after the other
    /// is as good.
    fn read_many(&self, ranges: &[FileRange]) -> impl Future<Output = Vec<Result<Bytes>>> {
        async move {
            let mut results = Vec::with_capacity(ranges.len());
            for &FileRange { file, offset, len } in ranges {
                results.push(self.read(file, offset, len).await);
            }
            results
        }
    }

    /// Bytes of `file` may not be what was written: a reader met `error`, which it returns. For
    /// whoever can have the file repaired; a source without such a one has nothing to do.
    fn note_damage(&self, _file: FileId, _error: &Error) {}
}

/// A result of reading `file`. Damage is told to the source: bytes that are not what was written,
/// of which some look like another version's format, or that the device does not give back.
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

    /// Memory in which the next file is built, of any content, with room for about `capacity`
    /// bytes.
    fn buffer(&mut self, capacity: usize) -> AlignedBuf {
        AlignedBuf::with_capacity(capacity)
    }
}

#[cfg(test)]
mod tests;
