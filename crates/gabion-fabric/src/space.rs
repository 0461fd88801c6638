//! Space on a file system: how much is free, and a pool file that owns all of its own from the
//! start.

use crate::fresh::{NewFile, directory_of, sync_directory};
use gabion_base::{Error, ErrorKind, Result};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes that an unprivileged writer can still use on the file system of `path` (or, when it does
/// not exist, of the directory that would hold it).
///
/// # Errors
/// I/O, naming the path.
pub fn free_space(path: &Path) -> Result<u64> {
    let there = if path.exists() { path } else { directory_of(path) };
    let stat = rustix::fs::statvfs(there).map_err(|e| failed(path, "has no file system", e))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Bytes that a file holds before it has a name. They identify its maker, whenever a crash comes.
#[derive(Clone, Copy, Debug)]
pub struct Mark<'a> {
    /// Their start in the file.
    pub at: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// Creates a file of `len` bytes, all of them reserved: a later write never meets a full file
/// system.
///
/// # Durability
/// File, length and name survive a power cut when it returns.
///
/// # Errors
/// Invalid input when the file exists; no space, with path, wanted and free bytes; I/O.
pub fn preallocate(path: &Path, len: u64) -> Result<()> {
    preallocate_marked(path, len, Mark { at: 0, bytes: &[] }).map(drop)
}

/// Creates a file as [`preallocate`] does; it has its mark, flushed, before it has its name. A file
/// that already has the name stays as it is.
///
/// # Durability
/// As [`preallocate`]; after a crash before it returns there is no file of that name, or one that
/// has the mark.
///
/// # Errors
/// As [`preallocate`]; the file is removed then, unless it was there before.
pub fn preallocate_marked(path: &Path, len: u64, mark: Mark<'_>) -> Result<File> {
    let free = free_space(path)?;
    if len > free {
        return Err(no_space(path, len, free));
    }
    let new = NewFile::begin(path)?;
    new.file().write_all_at(mark.bytes, mark.at).map_err(|e| cannot_be_written(path, len, e))?;
    new.file().sync_all().map_err(|e| failed(path, "cannot be flushed", e))?;
    let file = new.appear()?;
    let reserved = reserve(&file, path, len, mark)
        .and_then(|()| file.sync_all().map_err(|e| failed(path, "cannot be flushed", e)))
        .and_then(|()| sync_directory(directory_of(path)));
    if let Err(error) = reserved {
        // The file would keep its space.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(file)
}

/// Reserves the bytes of a file that holds only its mark; writes zeros where the file system has no
/// reservation.
fn reserve(file: &File, path: &Path, len: u64, mark: Mark<'_>) -> Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC) => Err(no_space(path, len, free_space(path).unwrap_or(0))),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            write_zeros(file, path, 0, mark.at.min(len))?;
            write_zeros(file, path, mark.at + mark.bytes.len() as u64, len)
        }
        Err(errno) => Err(failed(path, "cannot be extended", errno)),
    }
}

fn write_zeros(file: &File, path: &Path, mut at: u64, end: u64) -> Result<()> {
    let zeros = vec![0; 1 << 20];
    while at < end {
        let part = zeros.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        file.write_all_at(&zeros[..part], at).map_err(|e| cannot_be_written(path, end, e))?;
        at += part as u64;
    }
    Ok(())
}

fn cannot_be_written(path: &Path, wanted: u64, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull => no_space(path, wanted, free_space(path).unwrap_or(0)),
        _ => failed(path, "cannot be written", error),
    }
}

fn no_space(path: &Path, wanted: u64, free: u64) -> Error {
    let message = format!("{}: {wanted} bytes wanted, {free} bytes free", path.display());
    Error::new(ErrorKind::NoSpace, message)
}

pub(crate) fn failed(path: &Path, what: &str, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    Error::with_source(kind, format!("{}: {what}", path.display()), error)
}
