//! Room on a file system: how much there is, and a pool file that owns all of its own from the start.

use gabion_base::{Error, ErrorKind, Result};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

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

/// Creates a file of `len` bytes, all of them reserved: a later write never meets a full file system.
/// It appears under its name only when it is whole.
///
/// # Durability
/// File, length and name survive a power cut when it returns.
///
/// # Errors
/// Invalid input when the file exists; no space, with path, wanted and free bytes; I/O.
pub fn preallocate(path: &Path, len: u64) -> Result<()> {
    if path.exists() {
        return Err(Error::invalid(format!("{}: exists already", path.display())));
    }
    let free = free_space(path)?;
    if len > free {
        return Err(no_space(path, len, free));
    }
    let unfinished = unfinished_name(path);
    let result = create(&unfinished, path, len);
    if result.is_err() {
        // What is left of the attempt would keep its space; it was never the pool.
        let _ = std::fs::remove_file(&unfinished);
    }
    result
}

fn create(unfinished: &Path, path: &Path, len: u64) -> Result<()> {
    let io = |what: &'static str| move |error: io::Error| failed(path, what, error);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(unfinished)
        .map_err(io("cannot be created"))?;
    reserve(&file, path, len)?;
    file.sync_all().map_err(io("cannot be flushed"))?;
    std::fs::rename(unfinished, path).map_err(io("cannot be renamed"))?;
    let directory = File::open(directory_of(path)).map_err(io("has no directory"))?;
    directory.sync_all().map_err(io("is in a directory that cannot be flushed"))
}

/// Reserves the bytes of an empty file; zeros are written where the file system has no reservation.
fn reserve(file: &File, path: &Path, len: u64) -> Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC) => Err(no_space(path, len, free_space(path).unwrap_or(0))),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(file, path, len),
        Err(errno) => Err(failed(path, "cannot be extended", errno)),
    }
}

fn write_zeros(file: &File, path: &Path, len: u64) -> Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    while at < len {
        let part = zeros.len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
        match file.write_all_at(&zeros[..part], at) {
            Ok(()) => at += part as u64,
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                return Err(no_space(path, len, free_space(path).unwrap_or(0)));
            }
            Err(error) => return Err(failed(path, "cannot be filled with zeros", error)),
        }
    }
    Ok(())
}

fn unfinished_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".unfinished");
    path.with_file_name(name)
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
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
