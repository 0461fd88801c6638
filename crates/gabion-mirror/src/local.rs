//! A store in a directory of this machine, for tests and for want of peers.
//!
//! Nothing is synced to the device: the bytes are the kernel's when a call returns. So they survive
//! the program and its owner, killed or not, and do not survive the machine. Nor is anything
//! replicated. `gabion ncl run` says so.
//!
//! ```text
//!  DIR/lock         held by the owner
//!  DIR/bytes-7      the bytes of file 7
//!  DIR/names        gabion-ncl-names 1
//!                   next 8
//!                   file 7 644 0 0           number, mode, user, group
//!                   name 7 dir/a.aof         number, path below the root; %20 for a blank
//!                   end
//! ```
//!
//! `names` is written anew and renamed at each change, so it is whole whenever the owner dies. A
//! file of bytes that it does not name is the rest of a removal, or of a creation that nobody was
//! told of; it is removed at the start.

use crate::files::{FileId, Listed, LogFiles, Metadata, NameChange};
use crate::shared::Shared;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const HEAD: &str = "gabion-ncl-names 1";

/// The store.
#[derive(Debug)]
pub struct LocalFiles {
    directory: PathBuf,
    lock: File,
    next: u64,
    files: BTreeMap<FileId, (Metadata, File)>,
    names: BTreeMap<Vec<u8>, FileId>,
}

impl LocalFiles {
    /// Opens the store of a directory, which is made if it is missing.
    ///
    /// # Errors
    /// `WouldBlock` if another process has it open; `InvalidData` if it is damaged.
    pub fn open(directory: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let lock = File::create(directory.join("lock"))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        let (files, names) = (BTreeMap::new(), BTreeMap::new());
        let directory = directory.to_path_buf();
        let mut store = Self { directory, lock, next: 1, files, names };
        match std::fs::read_to_string(store.directory.join("names")) {
            Ok(text) => store.parse(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        store.remove_leftovers()?;
        Ok(store)
    }

    fn parse(&mut self, text: &str) -> io::Result<()> {
        let mut lines = text.lines().enumerate();
        let path = self.directory.join("names");
        let bad = |at: usize, line: &str| {
            let text = format!("{}:{}: '{line}' is no line of it", path.display(), at + 1);
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        };
        if lines.next().is_none_or(|(_, line)| line != HEAD) {
            return bad(0, text.lines().next().unwrap_or_default());
        }
        let mut ended = false;
        for (at, line) in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let parsed = match &words[..] {
                ["next", next] => next.parse().ok().map(|next| self.next = next),
                ["file", file, rest @ ..] => self.parse_file(file, rest)?,
                ["name", file, name] => self.parse_name(file, name),
                ["end"] => {
                    ended = true;
                    Some(())
                }
                _ => None,
            };
            if parsed.is_none() {
                return bad(at, line);
            }
        }
        if ended { Ok(()) } else { bad(text.lines().count(), "") }
    }

    fn parse_file(&mut self, file: &str, words: &[&str]) -> io::Result<Option<()>> {
        let (Ok(file), [mode, user, group]) = (file.parse().map(FileId), words) else {
            return Ok(None);
        };
        let (mode, user, group) = (u32::from_str_radix(mode, 8), user.parse(), group.parse());
        let (Ok(mode), Ok(user), Ok(group)) = (mode, user, group) else {
            return Ok(None);
        };
        let bytes = File::options().read(true).write(true).open(self.path(file))?;
        self.files.insert(file, (Metadata { mode, user, group }, bytes));
        Ok(Some(()))
    }

    fn parse_name(&mut self, file: &str, name: &str) -> Option<()> {
        let file = FileId(file.parse().ok()?);
        self.files.get(&file)?;
        self.names.insert(unescape(name)?, file);
        Some(())
    }

    fn remove_leftovers(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("bytes-"));
            let file = number.and_then(|number| number.parse().ok()).map(FileId);
            if file.is_some_and(|file| !self.files.contains_key(&file)) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn path(&self, file: FileId) -> PathBuf {
        self.directory.join(format!("bytes-{}", file.0))
    }

    fn file(&self, file: FileId) -> io::Result<&File> {
        let found = self.files.get(&file).map(|(_, bytes)| bytes);
        found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    fn save(&self) -> io::Result<()> {
        let mut text = format!("{HEAD}\nnext {}\n", self.next);
        for (FileId(file), (metadata, _)) in &self.files {
            let Metadata { mode, user, group } = metadata;
            let _ = writeln!(text, "file {file} {mode:o} {user} {group}");
        }
        for (name, FileId(file)) in &self.names {
            let _ = writeln!(text, "name {file} {}", escape(name));
        }
        text.push_str("end\n");
        let new = self.directory.join("names.new");
        std::fs::write(&new, text)?;
        std::fs::rename(&new, self.directory.join("names"))
    }
}

impl Drop for LocalFiles {
    fn drop(&mut self) {
        // Closing is not enough: a process that another thread starts just now has a copy.
        let _ = rustix::fs::flock(&self.lock, rustix::fs::FlockOperation::Unlock);
    }
}

impl LogFiles for LocalFiles {
    fn recover(&mut self) -> io::Result<Vec<Listed>> {
        let mut listed = Vec::new();
        for (file, (metadata, bytes)) in &self.files {
            let names = self.names.iter().filter(|(_, of)| *of == file);
            let names = names.map(|(name, _)| name.clone()).collect();
            let (file, len, metadata) = (*file, bytes.metadata()?.len(), *metadata);
            listed.push(Listed { file, names, len, metadata });
        }
        Ok(listed)
    }

    fn attach(&mut self, _: Shared) {}

    fn memory(&mut self, _: FileId) -> io::Result<Option<File>> {
        Ok(None)
    }

    fn create(&mut self, name: &[u8], metadata: Metadata) -> io::Result<FileId> {
        if self.names.contains_key(name) {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        let file = FileId(self.next);
        self.next += 1;
        let options = File::options().read(true).write(true).create_new(true).to_owned();
        let bytes = options.open(self.path(file))?;
        self.files.insert(file, (metadata, bytes));
        self.names.insert(name.to_vec(), file);
        self.save()?;
        Ok(file)
    }

    fn read(&mut self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let (bytes, mut read) = (self.file(file)?, 0);
        while read < into.len() {
            match bytes.read_at(&mut into[read..], offset + read as u64)? {
                0 => break,
                more => read += more,
            }
        }
        Ok(read)
    }

    fn pwrite(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(file)?.write_all_at(bytes, offset)
    }

    fn truncate(&mut self, file: FileId, len: u64) -> io::Result<()> {
        self.file(file)?.set_len(len)
    }

    /// Nothing waits: see the module's text.
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn edit_names(&mut self, changes: &[NameChange]) -> io::Result<()> {
        for change in changes {
            match change {
                NameChange::Set(name, file) => {
                    self.file(*file)?;
                    self.names.insert(name.clone(), *file);
                }
                NameChange::Remove(name) => drop(self.names.remove(name)),
            }
        }
        let nameless = |file: &FileId| !self.names.values().any(|of| of == file);
        let removed: Vec<FileId> = self.files.keys().copied().filter(nameless).collect();
        for file in &removed {
            self.files.remove(file);
        }
        self.save()?;
        // After the names: a crash between leaves bytes without a name, never a name without bytes.
        removed.into_iter().try_for_each(|file| std::fs::remove_file(self.path(file)))
    }

    fn set_metadata(&mut self, file: FileId, metadata: Metadata) -> io::Result<()> {
        match self.files.get_mut(&file) {
            Some(found) => found.0 = metadata,
            None => return Err(io::Error::from(io::ErrorKind::NotFound)),
        }
        self.save()
    }
}

/// Bytes of a name as one word of ASCII.
fn escape(name: &[u8]) -> String {
    let mut text = String::new();
    for byte in name {
        if byte.is_ascii_graphic() && *byte != b'%' {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

/// The bytes of a text in which '%' and two digits stand for a byte.
#[must_use]
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut name = parts.next()?.as_bytes().to_vec();
    for part in parts {
        name.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        name.extend_from_slice(&part.as_bytes()[2..]);
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: Metadata = Metadata { mode: 0o640, user: 0, group: 7 };

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("gabion-local-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn a_store_that_is_opened_again_has_names_lengths_bytes_and_modes() {
        let directory = directory("again");
        let mut store = LocalFiles::open(&directory).unwrap();
        let one = store.create(b"a dir/100%\n\xff", METADATA).unwrap();
        let two = store.create(b"two", METADATA).unwrap();
        store.pwrite(one, 5, b"\0\0").unwrap();
        let set = |name: &[u8], file| NameChange::Set(name.to_vec(), file);
        store.edit_names(&[set(b"three", one), NameChange::Remove(b"two".to_vec())]).unwrap();
        assert_eq!(store.pwrite(two, 0, b"x").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(LocalFiles::open(&directory).is_err(), "it is open");
        drop(store);
        let mut store = LocalFiles::open(&directory).unwrap();
        let names = vec![b"a dir/100%\n\xff".to_vec(), b"three".to_vec()];
        let listed = Listed { file: one, names, len: 7, metadata: METADATA };
        assert_eq!(store.recover().unwrap(), [listed]);
        let mut bytes = [1; 9];
        assert_eq!(store.read(one, 0, &mut bytes).unwrap(), 7);
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 1, 1]);
        let three = store.create(b"two", METADATA).unwrap();
        assert!(three > two, "a number is given once");
        drop(store);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_list_of_names_that_is_cut_or_odd_is_refused() {
        let directory = directory("odd");
        let mut store = LocalFiles::open(&directory).unwrap();
        store.create(b"a", METADATA).unwrap();
        drop(store);
        let path = directory.join("names");
        let text = std::fs::read_to_string(&path).unwrap();
        for bad in [&text[..text.len() - 4], &text.replace("name 1", "name 2"), "", "x\nend\n"] {
            std::fs::write(&path, bad).unwrap();
            let error = LocalFiles::open(&directory).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bad}: {error}");
        }
        std::fs::remove_dir_all(directory).unwrap();
    }
}
