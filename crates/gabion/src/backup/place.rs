//! The directory of the backups of one group.
//!
//! ```text
//!   DIR/gabion-backups      whose it is: the group; locked by whoever changes the directory
//!       files/NAME          files of pools, by their content: backups share them
//!       000001.state        a moment, and
//!       000001.memory         what had no file then: u32 length and bytes of each page
//!       000001.manifest     both, the files, and their checksums; written last
//! ```
//!
//! Everything is written under another name (`….part`), flushed and renamed. So a file that has its
//! name is whole, and what an interrupted backup has copied serves the next one. A file goes when
//! no manifest names it; where one cannot be read, none goes.

use super::manifest::{Manifest, PART, Part, StoredFile, is_name};
use crate::cluster::{failed, flush_dir};
use gabion_base::units::CHUNK_LEN;
use gabion_base::{Error, ErrorKind, GroupId, Result, crc};
use gabion_fabric::fresh::NewFile;
use gabion_fabric::lock::lock_exclusive;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind as IoKind, Read, Write};
use std::path::{Path, PathBuf};

const IDENTITY: &str = "gabion-backups";
const IDENTITY_FORMAT: u64 = 1;
/// A longer one is none of ours.
const IDENTITY_LEN_MAX: u64 = 256;
/// Manifests of a pool of 8 TiB with files of 2 MiB have some 600 MB.
const MANIFEST_LEN_MAX: u64 = 1 << 30;

/// A directory of backups.
pub(super) struct Place {
    dir: PathBuf,
    group: GroupId,
    /// Locks it as long as it is there.
    _lock: Option<File>,
}

impl Place {
    /// The directory, to be changed: for backups of a group, made if it is not there.
    ///
    /// # Errors
    /// Invalid input when it is another group's or no directory of backups; busy while somebody
    /// else changes it; I/O.
    pub(super) fn take(dir: &Path, group: Option<GroupId>) -> Result<Self> {
        let identity = dir.join(IDENTITY);
        if let Some(group) = group
            && !identity.exists()
        {
            make(dir, group)?;
        }
        let mut place = Self::open(dir)?;
        if let Some(group) = group
            && place.group != group
        {
            return Err(Error::invalid(format!(
                "{}: has backups of group {}, this is group {}; take another directory",
                dir.display(),
                place.group.get(),
                group.get()
            )));
        }
        let lock = File::open(&identity).map_err(|e| failed(&identity, "cannot be opened", e))?;
        lock_exclusive(&lock, dir)?;
        place._lock = Some(lock);
        Ok(place)
    }

    /// The directory, to be read.
    ///
    /// # Errors
    /// Not found or invalid input when it is no directory of backups; I/O.
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(IDENTITY);
        let file = File::open(&path).map_err(|error| match error.kind() {
            IoKind::NotFound => Error::not_found(format!("{}: has no backups", dir.display())),
            _ => failed(&path, "cannot be read", error),
        })?;
        let mut text = String::new();
        let read = file.take(IDENTITY_LEN_MAX).read_to_string(&mut text);
        read.map_err(|e| failed(&path, "cannot be read", e))?;
        let words: Vec<&str> = text.trim_end().split(' ').collect();
        let group = match words[..] {
            [IDENTITY, format, "group", group] if format == IDENTITY_FORMAT.to_string() => {
                group.parse().ok()
            }
            [IDENTITY, format, ..] => {
                return Err(Error::unsupported(format!(
                    "{}: has format {format}, this build knows {IDENTITY_FORMAT}",
                    path.display()
                )));
            }
            _ => None,
        };
        let group = group
            .ok_or_else(|| Error::corruption(format!("{}: names no group", path.display())))?;
        Ok(Self { dir: dir.to_owned(), group: GroupId(group), _lock: None })
    }

    pub(super) fn path(&self) -> &Path {
        &self.dir
    }

    fn files(&self) -> PathBuf {
        self.dir.join("files")
    }

    pub(super) fn file(&self, file: &StoredFile) -> PathBuf {
        self.files().join(file.name())
    }

    fn of_backup(&self, number: u64, what: &str) -> PathBuf {
        self.dir.join(format!("{number:06}.{what}"))
    }

    /// The numbers of the backups whose manifest is there, ascending.
    ///
    /// # Errors
    /// I/O.
    pub(super) fn numbers(&self) -> Result<Vec<u64>> {
        let of = |name: &str| name.strip_suffix(".manifest").and_then(|stem| stem.parse().ok());
        let mut numbers: Vec<u64> = names(&self.dir)?.iter().filter_map(|name| of(name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// One backup.
    ///
    /// # Errors
    /// Not found; corruption, naming the file; I/O.
    pub(super) fn manifest(&self, number: u64) -> Result<Manifest> {
        let path = self.of_backup(number, "manifest");
        let bytes = read(&path, MANIFEST_LEN_MAX).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                Error::not_found(format!("{}: has no backup {number}", self.dir.display()))
            }
            _ => error,
        })?;
        let manifest =
            Manifest::decode(&bytes).map_err(|error| error.within(path.display().to_string()))?;
        match (manifest.number, manifest.group) == (number, self.group.get()) {
            true => Ok(manifest),
            false => Err(Error::corruption(format!(
                "{}: is of backup {} of group {}",
                path.display(),
                manifest.number,
                manifest.group
            ))),
        }
    }

    /// The state of a backup, and what was in memory, compared with the manifest.
    ///
    /// # Errors
    /// Corruption, naming the file; I/O.
    pub(super) fn parts(&self, manifest: &Manifest) -> Result<(Vec<u8>, Vec<u8>)> {
        let part = |what: &str, expected: Part| {
            let path = self.of_backup(manifest.number, what);
            let bytes = read(&path, expected.len)?;
            match Part::of(&bytes) == expected {
                true => Ok(bytes),
                false => Err(Error::corruption(format!(
                    "{}: {} bytes with checksum {:08x}, the manifest says {} and {:08x}",
                    path.display(),
                    bytes.len(),
                    Part::of(&bytes).crc,
                    expected.len,
                    expected.crc
                ))),
            }
        };
        Ok((part("state", manifest.state)?, part("memory", manifest.memory)?))
    }

    /// Whether a file is there with its length.
    pub(super) fn has(&self, file: &StoredFile) -> bool {
        self.file(file).metadata().is_ok_and(|data| data.is_file() && data.len() == file.len)
    }

    /// Compares a file with its checksums.
    ///
    /// # Errors
    /// Corruption, naming the file and the offset; not found; I/O.
    pub(super) fn check(&self, file: &StoredFile) -> Result<()> {
        let path = self.file(file);
        let mut open = File::open(&path).map_err(|e| failed(&path, "cannot be opened", e))?;
        let len = open.metadata().map_err(|e| failed(&path, "cannot be read", e))?.len();
        if len != file.len {
            let text = format!("{}: has {len} bytes, expected {}", path.display(), file.len);
            return Err(Error::corruption(text));
        }
        let mut chunk = vec![0; CHUNK_LEN as usize];
        for (i, expected) in file.chunks.iter().enumerate() {
            let offset = i as u64 * CHUNK_LEN;
            let bytes = &mut chunk[..CHUNK_LEN.min(len.saturating_sub(offset)) as usize];
            open.read_exact(bytes).map_err(|e| failed(&path, "cannot be read", e))?;
            let found = crc::crc32c(bytes);
            if found != *expected {
                return Err(Error::corruption(format!(
                    "{}: the 1 MiB from {offset} on has checksum {found:08x}, expected \
                     {expected:08x}",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// Begins a file.
    ///
    /// # Errors
    /// I/O.
    pub(super) fn begin(&self, file: &StoredFile) -> Result<Unfinished> {
        Unfinished::begin(self.file(file))
    }

    /// Writes what a backup has besides files, the manifest last.
    ///
    /// # Durability
    /// The backup survives a power cut when this returns; before, it is not there.
    ///
    /// # Errors
    /// No space; I/O.
    pub(super) fn finish(&self, manifest: &Manifest, state: &[u8], memory: &[u8]) -> Result<()> {
        flush_dir(&self.files())?;
        let text = manifest.encode();
        for (what, bytes) in [("state", state), ("memory", memory), ("manifest", &text)] {
            let mut part = Unfinished::begin(self.of_backup(manifest.number, what))?;
            part.write(bytes)?;
            if what == "manifest" {
                flush_dir(&self.dir)?;
            }
            part.keep()?;
        }
        flush_dir(&self.dir)
    }

    /// Removes a backup; its files stay.
    ///
    /// # Errors
    /// I/O.
    pub(super) fn remove(&self, number: u64) -> Result<()> {
        remove(&self.of_backup(number, "manifest"))?;
        flush_dir(&self.dir)
    }

    /// Removes what belongs to no backup: files, and the remains of an interrupted one. Returns how
    /// many files, and their bytes.
    ///
    /// # Errors
    /// Corruption when a manifest cannot be read, and no file is removed then; I/O.
    pub(super) fn sweep(&self) -> Result<(u64, u64)> {
        let numbers = self.numbers()?;
        let mut named = BTreeSet::new();
        for number in &numbers {
            let manifest = self.manifest(*number);
            let manifest = manifest.map_err(|e| e.within("no file is removed"))?;
            named.extend(manifest.files.iter().map(StoredFile::name));
        }
        self.sweep_parts(&numbers)?;
        let (mut count, mut bytes) = (0, 0);
        for name in names(&self.files())? {
            if is_name(&name) && !named.contains(&name) {
                let path = self.files().join(&name);
                bytes += path.metadata().map_or(0, |data| data.len());
                remove(&path)?;
                count += 1;
            }
        }
        Ok((count, bytes))
    }

    /// Removes states and pages of backups that have no manifest, and what never got its name.
    ///
    /// # Errors
    /// I/O.
    pub(super) fn sweep_parts(&self, numbers: &[u64]) -> Result<()> {
        for name in names(&self.dir)? {
            let (stem, end) = name.split_once('.').unwrap_or((&name, ""));
            let Ok(number) = stem.parse::<u64>() else { continue };
            let whole = end.strip_suffix(PART).unwrap_or(end);
            let is_ours = matches!(whole, "state" | "memory" | "manifest");
            if is_ours && (end.ends_with(PART) || !numbers.contains(&number)) {
                remove(&self.dir.join(&name))?;
            }
        }
        for name in names(&self.files())? {
            if name.ends_with(PART) && is_name(&name) {
                remove(&self.files().join(&name))?;
            }
        }
        Ok(())
    }
}

/// Makes a directory of backups of a group, in nothing or in an empty directory.
fn make(dir: &Path, group: GroupId) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|e| failed(dir, "cannot be made", e))?;
    let files = dir.join("files");
    if let Some(name) = names(dir)?.iter().find(|name| *name != "files") {
        return Err(Error::invalid(format!(
            "{}: is no directory of backups, and not empty: it has {name}",
            dir.display()
        )));
    }
    std::fs::create_dir_all(&files).map_err(|e| failed(&files, "cannot be made", e))?;
    let text = format!("{IDENTITY} {IDENTITY_FORMAT} group {}\n", group.get());
    NewFile::write(&dir.join(IDENTITY), text.as_bytes())?;
    flush_dir(dir)
}

/// A file on its way; removed when it is given up.
pub(super) struct Unfinished {
    file: File,
    path: PathBuf,
    part: PathBuf,
    is_kept: bool,
}

impl Unfinished {
    fn begin(path: PathBuf) -> Result<Self> {
        let mut part = path.clone().into_os_string();
        part.push(PART);
        let part = PathBuf::from(part);
        let file = File::create(&part).map_err(|e| failed(&part, "cannot be made", e))?;
        Ok(Self { file, path, part, is_kept: false })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes);
        written.map_err(|e| failed(&self.part, "cannot be written", e))
    }

    /// Gives it its name, once it is flushed.
    pub(super) fn keep(mut self) -> Result<()> {
        self.file.sync_all().map_err(|e| failed(&self.part, "cannot be flushed", e))?;
        let renamed = std::fs::rename(&self.part, &self.path);
        renamed.map_err(|e| failed(&self.part, "cannot be renamed", e))?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = std::fs::remove_file(&self.part);
        }
    }
}

/// Pages in one file.
pub(super) fn join_pages(pages: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for page in pages {
        out.extend_from_slice(&(page.len() as u32).to_le_bytes());
        out.extend_from_slice(page);
    }
    out
}

/// The pages of [`join_pages`].
pub(super) fn split_pages(mut bytes: &[u8]) -> impl Iterator<Item = Result<Vec<u8>>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let page = bytes
            .split_first_chunk::<4>()
            .and_then(|(len, rest)| rest.split_at_checked(u32::from_le_bytes(*len) as usize));
        let Some((page, rest)) = page else {
            bytes = &[];
            return Some(Err(Error::corruption("a page of memory is cut short")));
        };
        bytes = rest;
        Some(Ok(page.to_vec()))
    })
}

/// The content of a file of at most `len_max` bytes, and one byte of a longer one.
fn read(path: &Path, len_max: u64) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(|e| failed(path, "cannot be opened", e))?;
    let mut bytes = Vec::new();
    let read = file.take(len_max + 1).read_to_end(&mut bytes);
    read.map_err(|e| failed(path, "cannot be read", e)).map(|_| bytes)
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let io = |e| failed(dir, "cannot be listed", e);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        names.extend(entry.map_err(io)?.file_name().into_string());
    }
    Ok(names)
}

fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).map_err(|e| failed(path, "cannot be removed", e))
}
