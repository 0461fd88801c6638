//! A disk as a machine leaves it that loses its power: what was synced is there, and nothing else.
//!
//! ```text
//!  program ── fsync of a file ──────► shadow/KEY          its bytes by then
//!          ── fsync of a directory ─► shadow/KEY.names    its entries by then: `KEY d|f NAME`
//! ```
//!
//! `examples/disk.rs` notes the syncs of a program, the test makes a directory of what was noted.
//! A file has a key, which its renames and links do not change. A name that was synced before the
//! file's bytes were is one of an empty file; one whose removal was not synced is there again.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Variables that `examples/disk.rs` has its shadow and the root from.
pub(crate) const SHADOW: &str = "GABION_TEST_SHADOW";
pub(crate) const ROOT: &str = "GABION_TEST_ROOT";

/// A file's number is given again when it is gone; with the time of its birth it is not.
fn key(status: &Metadata) -> io::Result<String> {
    let birth = status.created()?.duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    Ok(format!("{}-{}", status.ino(), birth.as_nanos()))
}

fn names_of(shadow: &Path, key: &str) -> PathBuf {
    shadow.join(format!("{key}.names"))
}

/// A file's bytes are on the disk. `file` leads to it, by whatever name.
pub(crate) fn file_synced(shadow: &Path, file: &Path) -> io::Result<()> {
    let kept = shadow.join(key(&fs::metadata(file)?)?);
    let new = kept.with_extension("new");
    fs::copy(file, &new)?;
    fs::rename(new, kept)
}

/// A directory's entries are on the disk.
pub(crate) fn directory_synced(shadow: &Path, directory: &Path) -> io::Result<()> {
    let mut text = String::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // Others of the program's threads remove files meanwhile.
        let Ok(status) = fs::symlink_metadata(entry.path()) else { continue };
        let kind = if status.is_dir() { 'd' } else { 'f' };
        let name = entry.file_name().into_string().map_err(|_| io::ErrorKind::InvalidData)?;
        text.push_str(&format!("{} {kind} {name}\n", key(&status)?));
    }
    let kept = names_of(shadow, &key(&fs::metadata(directory)?)?);
    let new = kept.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, kept)
}

/// All that is there now is on the disk.
#[allow(dead_code, reason = "the program that notes syncs does not call it")]
pub(crate) fn all_synced(shadow: &Path, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(shadow)?;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_directory = path.is_dir();
        let one = if is_directory { all_synced } else { file_synced };
        one(shadow, &path)?;
    }
    directory_synced(shadow, directory)
}

/// Makes a directory of what is on the disk of another one, which is still there.
#[allow(dead_code, reason = "as above")]
pub(crate) fn after_a_loss(shadow: &Path, directory: &Path, to: &Path) -> io::Result<()> {
    make(shadow, &key(&fs::metadata(directory)?)?, to)
}

#[allow(dead_code, reason = "as above")]
fn make(shadow: &Path, key: &str, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let names = match fs::read_to_string(names_of(shadow, key)) {
        Ok(names) => names,
        // Nothing of it was ever synced.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for line in names.lines() {
        let mut words = line.splitn(3, ' ');
        let (Some(key), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, line.to_owned()));
        };
        let (kept, path) = (shadow.join(key), to.join(name));
        match kind {
            "d" => make(shadow, key, &path)?,
            _ if kept.exists() => fs::copy(kept, path).map(drop)?,
            _ => fs::write(path, [])?,
        }
    }
    Ok(())
}
