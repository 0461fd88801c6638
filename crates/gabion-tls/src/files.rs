//! Reading and writing the files of certificates and keys.

use gabion_base::{Error, ErrorKind, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Longest file that is read: a chain of certificates is a few kilobytes.
pub(crate) const LEN_MAX: u64 = 1 << 20;
const OWNER_ALONE: u32 = 0o600;

pub(crate) fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let text = format!("{what} {}", path.display());
    move |error| Error::with_source(ErrorKind::Io, text, error)
}

/// The text of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed("cannot open", path))?;
    file.take(LEN_MAX + 1).read_to_end(&mut bytes).map_err(failed("cannot read", path))?;
    if bytes.len() as u64 > LEN_MAX {
        return Err(Error::limit(format!("{}: longer than {LEN_MAX} bytes", path.display())));
    }
    Ok(bytes)
}

/// A file that was not there, for its owner alone, and on the disk when this returns.
pub(crate) fn create(path: &Path, bytes: &[u8]) -> Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(OWNER_ALONE).open(path);
    let mut file = file.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Error::invalid(format!("{} is there already, and is never overwritten", path.display()))
        }
        _ => failed("cannot make", path)(error),
    })?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.map_err(|error| {
        let _ = fs::remove_file(path);
        failed("cannot write", path)(error)
    })
}

/// Puts another file in the place of one, at once for whoever reads it.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    // Of a start that ended in between.
    let _ = fs::remove_file(&new);
    create(&new, bytes)?;
    fs::rename(&new, path).map_err(failed("cannot replace", path))?;
    sync_directory(path)
}

/// Adds a line to a file.
pub(crate) fn append(path: &Path, line: &str) -> Result<()> {
    let file = OpenOptions::new().append(true).create(true).mode(OWNER_ALONE).open(path);
    let mut file = file.map_err(failed("cannot open", path))?;
    let written = file.write_all(line.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(failed("cannot write", path))
}

/// The names in the directory of a file are on the disk when this returns.
pub(crate) fn sync_directory(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or_else(|| Path::new("."));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(failed("cannot flush", directory))
}
