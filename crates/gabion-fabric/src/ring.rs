//! A shared mapping of a file as memory that survives `kill -9` of every process: the ring of a
//! log.

use crate::space::failed;
use gabion_base::{Error, Result};
use gabion_media::MemoryRegion;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::path::Path;

/// A mapped file. The bytes live in the page cache: the kill of this process leaves them, a power
/// cut does not.
pub struct MappedRing {
    map: MmapRaw,
}

impl MappedRing {
    /// Maps the first `len` bytes of a file. They must be reserved (a store to a mapping of a full
    /// file system would kill the process), and nobody else may change them. `path` is for
    /// messages.
    ///
    /// # Errors
    /// Invalid input when the file is shorter, or for no bytes; I/O.
    pub fn map(file: &File, path: &Path, len: u64) -> Result<Self> {
        let len = mapped_len(file, path, len)?;
        let map = MmapOptions::new()
            .len(len)
            .map_raw(file)
            .map_err(|e| failed(path, "cannot be mapped", e))?;
        Ok(Self { map })
    }

    /// Maps a file as [`Self::map`] does, but writes stay in this process and never change the
    /// file. For tools that recover a log without leaving a trace.
    ///
    /// # Errors
    /// As [`Self::map`].
    pub fn map_private(file: &File, path: &Path, len: u64) -> Result<Self> {
        let len = mapped_len(file, path, len)?;
        // SAFETY: the bytes are only ever copied, through raw pointers, never borrowed, so a change
        // of the file under the mapping could tear a copy and no more; the pool's lock excludes
        // even that.
        let map = unsafe { MmapOptions::new().len(len).map_copy(file) }
            .map_err(|e| failed(path, "cannot be mapped", e))?;
        Ok(Self { map: map.into() })
    }

    /// Memory of zeros, for tools that look at a replica whose ring is lost.
    ///
    /// # Errors
    /// The system's, when it has none.
    pub fn blank(len: u64) -> Result<Self> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let map = MmapOptions::new().len(len).map_anon();
        let map = map.map_err(|e| failed(Path::new("ring"), "has no memory in its place", e))?;
        Ok(Self { map: map.into() })
    }

    fn check(&self, offset: u64, len: usize) -> usize {
        let total = self.map.len();
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= total),
            "{len} bytes at {offset} reach past the end of a ring of {total} bytes"
        );
        offset
    }
}

fn mapped_len(file: &File, path: &Path, len: u64) -> Result<usize> {
    let found = file.metadata().map_err(|e| failed(path, "has no length", e))?.len();
    match usize::try_from(len) {
        Ok(len) if len > 0 && len as u64 <= found => Ok(len),
        _ => Err(Error::invalid(format!(
            "{}: holds a ring of {found} bytes, {len} wanted",
            path.display()
        ))),
    }
}

impl MemoryRegion for MappedRing {
    fn len(&self) -> u64 {
        self.map.len() as u64
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let offset = self.check(offset, data.len());
        // SAFETY: the mapping is `map.len()` bytes long and writable, and the range was checked to
        // lie inside. `data` cannot overlap it: no reference to mapped bytes is ever made. The file
        // is not truncated by us; its space is reserved, so the store cannot fault for lack of it.
        unsafe {
            std::ptr::copy_nonoverlapping(
                data.as_ptr(),
                self.map.as_mut_ptr().add(offset),
                data.len(),
            );
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let offset = self.check(offset, into.len());
        // SAFETY: the range was checked to lie inside the mapping, which is readable for as long as
        // `self` lives; `into` is exclusive memory of the caller and cannot overlap it. Another
        // process that writes meanwhile is excluded by the pool's lock.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.map.as_ptr().add(offset),
                into.as_mut_ptr(),
                into.len(),
            );
        }
    }
}
