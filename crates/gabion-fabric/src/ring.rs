//! A shared mapping of a file as memory that survives `kill -9` of every process: the ring of a log.

use crate::space::{failed, preallocate};
use gabion_base::{Error, Result};
use gabion_media::MemoryRegion;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::{File, OpenOptions};
use std::path::Path;

/// A mapped file. The bytes live in the page cache: the kill of this process leaves them, a power cut
/// does not.
pub struct MappedRing {
    map: MmapRaw,
    created: bool,
}

impl MappedRing {
    /// Maps the file at `path`, or creates it with `len` zero bytes, all reserved (a store to a
    /// mapping of a full file system would kill the process).
    ///
    /// # Errors
    /// Invalid input when the file has another length; no space; I/O.
    pub fn open(path: &Path, len: usize) -> Result<Self> {
        if len == 0 {
            return Err(Error::invalid(format!("{}: a ring of 0 bytes", path.display())));
        }
        let created = !path.exists();
        if created {
            preallocate(path, len as u64)?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|e| failed(path, "cannot be opened", e))?;
        check_len(&file, path, len)?;
        let map = MmapOptions::new()
            .len(len)
            .map_raw(&file)
            .map_err(|e| failed(path, "cannot be mapped", e))?;
        Ok(Self { map, created })
    }

    /// Maps the file at `path` so that writes stay with this process: the file is never changed. For
    /// tools that recover a log without leaving a trace.
    ///
    /// # Errors
    /// Not found; invalid input when the file has another length; I/O.
    pub fn open_private(path: &Path, len: usize) -> Result<Self> {
        let file = File::open(path).map_err(|e| failed(path, "cannot be opened", e))?;
        check_len(&file, path, len)?;
        // SAFETY: the bytes are only ever copied, through raw pointers, never borrowed, so a change of
        // the file under the mapping could tear a copy and no more; the pool's lock excludes even that.
        let map = unsafe { MmapOptions::new().len(len).map_copy(&file) }
            .map_err(|e| failed(path, "cannot be mapped", e))?;
        Ok(Self { map: map.into(), created: false })
    }

    /// Whether this call to [`Self::open`] made the file: then its bytes are zeros and whatever the
    /// ring held before is lost.
    #[must_use]
    pub const fn was_created(&self) -> bool {
        self.created
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

fn check_len(file: &File, path: &Path, len: usize) -> Result<()> {
    let found = file.metadata().map_err(|e| failed(path, "has no length", e))?.len();
    if found == len as u64 {
        return Ok(());
    }
    Err(Error::invalid(format!("{}: holds a ring of {found} bytes, {len} wanted", path.display())))
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
