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
//!
//! A sync that failed leaves `shadow/KEY.lost`: the kernel takes the bytes for clean from then on,
//! and no later sync puts them on the disk.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Variables that `examples/disk.rs` has its shadow and the root from.
pub(crate) const SHADOW: &str = "GABION_TEST_SHADOW";
pub(crate) const ROOT: &str = "GABION_TEST_ROOT";
/// A directory in which files of these names make the disk worse.
#[allow(dead_code, reason = "not all tests have one")]
pub(crate) const MARKS: &str = "GABION_TEST_MARKS";
/// No file gets longer.
#[allow(dead_code, reason = "as above")]
pub(crate) const FULL: &str = "full";
/// The next sync of a program's fails, and of the owner's. The one that sees the file removes it.
#[allow(dead_code, reason = "as above")]
pub(crate) const BROKEN: &str = "broken";
#[allow(dead_code, reason = "as above")]
pub(crate) const OWNER_BROKEN: &str = "owner-broken";
/// The program ends behind its next `rename` or `link`.
#[allow(dead_code, reason = "as above")]
pub(crate) const ENDS: &str = "ends";

/// While it is there, the owner's syncs wait; it tells of that by the other one.
#[allow(dead_code, reason = "as above")]
pub(crate) const OWNER_WAITS: [&str; 2] = ["owner-waits", "owner-is-waiting"];

/// Whether a file marks something, which happens once.
#[allow(dead_code, reason = "as above")]
pub(crate) fn is_marked(marks: &Path, name: &str) -> io::Result<bool> {
    match fs::remove_file(marks.join(name)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A file's number is given again when it is gone; with the time of its birth it is not.
fn key(status: &Metadata) -> io::Result<String> {
    let birth = status.created()?.duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    Ok(format!("{}-{}", status.ino(), birth.as_nanos()))
}

fn names_of(shadow: &Path, key: &str) -> PathBuf {
    shadow.join(format!("{key}.names"))
}

/// Of two syncs, by whatever process, the later one counts.
fn lock(shadow: &Path) -> io::Result<File> {
    let lock = File::create(shadow.join("lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// A file's bytes are on the disk.
pub(crate) fn file_synced(shadow: &Path, mut file: File) -> io::Result<()> {
    let status = file.metadata()?;
    let kept = shadow.join(key(&status)?);
    let new = kept.with_extension("new");
    let _lock = lock(shadow)?;
    io::copy(&mut file, &mut File::create(&new)?)?;
    fs::set_permissions(&new, status.permissions())?;
    let lost = kept.with_extension("lost");
    if lost.exists() {
        fs::write(&new, without(fs::read(&new)?, &fs::read(lost)?, &fs::read(&kept)?))?;
    }
    fs::rename(new, kept)
}

/// The bytes of a file, but those of the disk where nothing was written since a sync failed.
fn without(mut bytes: Vec<u8>, lost: &[u8], disk: &[u8]) -> Vec<u8> {
    for (at, (byte, lost)) in bytes.iter_mut().zip(lost).enumerate() {
        if byte == lost {
            *byte = disk.get(at).copied().unwrap_or(0);
        }
    }
    bytes
}

/// A sync of a file has failed, which was synced before.
#[allow(dead_code, reason = "tests' own processes plan no failure of it")]
pub(crate) fn sync_failed(shadow: &Path, mut file: File) -> io::Result<()> {
    let kept = shadow.join(key(&file.metadata()?)?);
    io::copy(&mut file, &mut File::create(kept.with_extension("lost"))?).map(drop)
}

/// A directory's entries are on the disk.
pub(crate) fn directory_synced(shadow: &Path, directory: &Path) -> io::Result<()> {
    let _lock = lock(shadow)?;
    let text = loop {
        // Names that change meanwhile are listed once more: each file has one at any time.
        if let Some(text) = entries(directory)? {
            break text;
        }
    };
    let kept = names_of(shadow, &key(&fs::metadata(directory)?)?);
    let new = kept.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, kept)
}

fn entries(directory: &Path) -> io::Result<Option<String>> {
    let mut text = String::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let status = fs::symlink_metadata(entry.path()).ok();
        let Some(status) = status.filter(|status| status.ino() == entry.ino()) else {
            return Ok(None);
        };
        let kind = if status.is_dir() { 'd' } else { 'f' };
        let name = entry.file_name().into_string().map_err(|_| io::ErrorKind::InvalidData)?;
        text.push_str(&format!("{} {kind} {name}\n", key(&status)?));
    }
    Ok(Some(text))
}

/// All that is there now is on the disk.
#[allow(dead_code, reason = "the program that notes syncs does not call it")]
pub(crate) fn all_synced(shadow: &Path, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(shadow)?;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        match path.is_dir() {
            true => all_synced(shadow, &path)?,
            false => file_synced(shadow, File::open(&path)?)?,
        }
    }
    directory_synced(shadow, directory)
}

/// Makes a directory of what is on the disk of another one, which is still there.
#[allow(dead_code, reason = "as above")]
pub(crate) fn after_a_loss(shadow: &Path, directory: &Path, to: &Path) -> io::Result<()> {
    make(shadow, &key(&fs::metadata(directory)?)?, to, &mut BTreeMap::new())
}

/// `made` has the files that are there already, which other names are links of.
#[allow(dead_code, reason = "as above")]
fn make(
    shadow: &Path,
    key: &str,
    to: &Path,
    made: &mut BTreeMap<String, PathBuf>,
) -> io::Result<()> {
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
            "d" => make(shadow, key, &path, made)?,
            _ if made.contains_key(key) => fs::hard_link(&made[key], path)?,
            _ => make_file(&kept, &path).map(|()| drop(made.insert(key.to_owned(), path)))?,
        }
    }
    Ok(())
}

#[allow(dead_code, reason = "as above")]
fn make_file(kept: &Path, path: &Path) -> io::Result<()> {
    match kept.exists() {
        true => fs::copy(kept, path).map(drop),
        false => fs::write(path, []),
    }
}
