//! What an edit says of a file, and the two traits through which the engine meets files: it reads
//! them by number and offset, and hands over finished ones. Where their bytes lie is the pool's
//! business (DESIGN.md: "Edits name files, never slots").
//!
//! A [`FileMeta`] is a sequence of typed fields (`gabion_base::codec`), all critical:
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
//! ```

use crate::entry::Keyspace;
use alloc::format;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use gabion_base::codec::{FIELD_CRITICAL, Fields, Put, Reader, put_field};
use gabion_base::units::{CHUNK_LEN, EDIT_KEY_BOUND_LEN_MAX, round_up_to_block};
use gabion_base::{Error, FileId, FileKind, Result, SequenceNumber, Term, crc};
use gabion_media::Bytes;

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
    /// An engine key at or before every key of the file, at most 256 bytes.
    pub smallest: Vec<u8>,
    /// An engine key at or after every key of the file, at most 256 bytes unless every prefix of that
    /// length is `0xff` bytes, which no engine key is.
    pub largest: Vec<u8>,
    /// Smallest sequence number in the file.
    pub smallest_sequence: SequenceNumber,
    /// Largest sequence number in the file.
    pub largest_sequence: SequenceNumber,
    /// Entries, deletes included.
    pub entries: u64,
    /// Deletes of every kind.
    pub deletes: u64,
    /// Sum of the engine keys' lengths.
    pub raw_key_bytes: u64,
    /// Sum of the values' lengths.
    pub raw_value_bytes: u64,
    /// Clears of whole keyspaces that the file holds, newest first: they reach beyond its key bounds.
    pub clears: Vec<(Keyspace, SequenceNumber)>,
}

impl FileMeta {
    /// Bytes on disk and wire: the length rounded up to whole 4 KiB blocks.
    #[must_use]
    pub const fn rounded_len(&self) -> u64 {
        round_up_to_block(self.len)
    }
}

/// A file that a job built, and everything that an edit will say of it.
#[derive(Clone, Debug)]
pub struct FinishedFile {
    /// What the edit says.
    pub meta: FileMeta,
    /// The rounded bytes in memory aligned to 4 KiB: written, shipped and resent from here.
    pub bytes: Bytes,
}

/// Where live files are read from: the pool, a cache of shipped bytes, memory in tests.
pub trait FileSource {
    /// The `len` bytes of `file` from `offset`, neither of which need be aligned.
    ///
    /// # Errors
    /// Not found for a file that is not live; invalid input for a range beyond its rounded end; what
    /// the medium reports.
    fn read(&self, file: FileId, offset: u64, len: usize) -> impl Future<Output = Result<Bytes>>;
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
}
