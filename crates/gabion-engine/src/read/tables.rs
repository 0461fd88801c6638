//! The files of a version as readers: opened once, kept beside the file or in a cache.

use crate::cache::{LocalCache, ReadCache};
use crate::entry::{EntryKind, Trailer};
use crate::file::{FileMeta, FileRange, FileSource, noted};
use crate::packed;
use crate::pointer::Pointer;
use crate::sst::SstReader;
use crate::version::FileRef;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use core::ops::Deref;
use gabion_base::{GroupId, Result, SequenceNumber};
use gabion_media::Bytes;

/// Values up to this long are copied out of the blocks of the device that they were read with: of
/// longer ones these have an eighth more at most.
pub(super) const COPIED_LEN_MAX: usize = 64 * 1024;

/// Through what files are read: where their bytes lie, and what reads leave for each other. Cheap
/// to clone.
#[derive(Clone)]
pub struct Tables<S, C = Rc<LocalCache>> {
    /// Where bytes come from.
    pub source: S,
    /// Open files and decoded blocks.
    pub cache: C,
    /// Whose files these are: part of every block's checksum.
    pub group: GroupId,
}

impl<S: FileSource, C: ReadCache> Tables<S, C> {
    pub(super) async fn reader(&self, meta: &FileMeta) -> Result<Arc<SstReader>> {
        if let Some(reader) = self.cache.reader(meta.id) {
            return Ok(reader);
        }
        let opened = SstReader::open(&self.source, self.group, meta).await;
        let reader = Arc::new(noted(&self.source, meta.id, opened)?);
        Ok(self.cache.keep_reader(meta.id, reader))
    }

    /// The reader of a file of a version, which is found there from then on if it is pinned.
    #[inline]
    pub(super) async fn reader_at<'a>(&self, file: FileRef<'a>) -> Result<OpenedFile<'a>> {
        match file.opened.get() {
            Some(reader) => Ok(OpenedFile::Pinned(reader)),
            None => self.open_at(file).await,
        }
    }

    #[cold]
    async fn open_at<'a>(&self, file: FileRef<'a>) -> Result<OpenedFile<'a>> {
        let reader = self.reader(file.meta).await?;
        Ok(match self.cache.pin_reader(file.meta.id) {
            true => OpenedFile::Pinned(file.opened.keep(reader)),
            false => OpenedFile::Shared(reader),
        })
    }

    /// As [`Self::reader_at`], for whoever keeps it beyond the version.
    pub(super) async fn shared_reader_at(&self, file: FileRef<'_>) -> Result<Arc<SstReader>> {
        if let Some(reader) = file.opened.get_arc() {
            return Ok(reader);
        }
        let reader = self.reader(file.meta).await?;
        if self.cache.pin_reader(file.meta.id) {
            file.opened.keep(reader.clone());
        }
        Ok(reader)
    }

    /// The value that a pointer leads to, if it is in memory.
    pub(super) fn cached_value(&self, pointer: &Pointer) -> Option<Bytes> {
        let value = self.cache.block(pointer.file, u64::from(pointer.offset));
        value.filter(|value| value.len() == pointer.raw_len as usize)
    }

    /// The value that a pointer leads to.
    pub(super) async fn value(&self, pointer: &Pointer) -> Result<Bytes> {
        match self.cached_value(pointer) {
            Some(value) => Ok(value),
            // Apart, so that other reads carry no room for it.
            None => Box::pin(self.read_value(pointer)).await,
        }
    }

    /// The same, past the cache, which gets it.
    pub(super) async fn read_value(&self, pointer: &Pointer) -> Result<Bytes> {
        let FileRange { file, offset, len } = pointer.range();
        let read = self.source.read(file, offset, len).await;
        self.keep_value(pointer, read)
    }

    /// The value in what was read where a pointer leads, which goes to the cache too.
    pub(super) fn keep_value(&self, pointer: &Pointer, read: Result<Bytes>) -> Result<Bytes> {
        let checked = read.and_then(|stored| {
            pointer.check(&stored)?;
            packed::unpack_at(pointer, stored)
        });
        let mut value = noted(&self.source, pointer.file, checked)?;
        if value.len() <= COPIED_LEN_MAX && !pointer.is_packed() {
            // It shares the memory of all that was read for it: whole blocks of the device.
            value = Bytes::copy_from_slice(&value);
        }
        self.cache.keep_block(pointer.file, u64::from(pointer.offset), value.clone());
        Ok(value)
    }

    /// The newest of a key's entries in a file, or of the range deletes that cover it there. The
    /// key has this [`key_hash`](crate::sst::key_hash).
    #[inline]
    pub(super) async fn get(
        &self,
        file: FileRef<'_>,
        key: &[u8],
        hash: u64,
        at: SequenceNumber,
    ) -> Result<Option<(Trailer, Bytes)>> {
        let FileRef { meta, .. } = file;
        if meta.smallest_sequence > at {
            return Ok(None);
        }
        let reader = self.reader_at(file).await?;
        let found = reader.get_hashed(&self.source, &self.cache, key, hash, at).await;
        if meta.ranges.is_none() {
            return noted(&self.source, meta.id, found);
        }
        let found = noted(&self.source, meta.id, found)?;
        Ok(newer_of(found, reader.ranges().newest(key, at)))
    }
}

/// The reader of a file of a version.
#[derive(Clone)]
pub(super) enum OpenedFile<'a> {
    /// Kept beside the file.
    Pinned(&'a SstReader),
    /// Kept by the cache, for as long as there is room.
    Shared(Arc<SstReader>),
}

impl Deref for OpenedFile<'_> {
    type Target = SstReader;

    #[inline]
    fn deref(&self) -> &SstReader {
        match self {
            Self::Pinned(reader) => reader,
            Self::Shared(reader) => reader,
        }
    }
}

/// What a file says of a key that has an entry there and a range delete that covers it, or one of
/// them.
pub(super) fn newer_of(
    entry: Option<(Trailer, Bytes)>,
    range: Option<SequenceNumber>,
) -> Option<(Trailer, Bytes)> {
    match (entry, range) {
        (entry, None) => entry,
        (Some((trailer, value)), Some(range)) if trailer.sequence() > range => {
            Some((trailer, value))
        }
        (_, Some(range)) => Some((Trailer::new(range, EntryKind::RangeDelete), Bytes::new())),
    }
}
