//! Names for new files that replace nobody's file: a file is made without its name, and gets the
//! name once it holds its owner's mark.
//!
//! ```text
//!   begin ─► O_TMPFILE, no name ─────────────┐ write ─► appear ─► NAME, or an error where NAME is there
//!        └─► NAME.PID-N.new, which is new ───┘                    (linked, or renamed with RENAME_NOREPLACE)
//! ```
//!
//! On a file system without nameless files, a crash before `appear` leaves a file of the second
//! kind. It disturbs nobody: no other attempt has its name.

use crate::space::failed;
use gabion_base::{Error, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The thing that has a name.
#[derive(Debug)]
pub enum Named {
    /// Nothing.
    Nothing,
    /// A file, open for reading.
    File(File),
    /// Something else, in words.
    Other(&'static str),
}

/// The thing that has this name. Follows no link and waits for nothing, unlike the open of a FIFO.
///
/// # Errors
/// The system's, when it does not say or does not let the file be read.
pub fn named(path: &Path) -> Result<Named> {
    let kind = match path.symlink_metadata() {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Named::Nothing),
        Err(error) => return Err(failed(path, "cannot be looked at", error)),
    };
    if !kind.is_file() {
        return Ok(Named::Other(match kind {
            kind if kind.is_dir() => "a directory",
            kind if kind.is_symlink() && path.exists() => "a symbolic link",
            kind if kind.is_symlink() => "a symbolic link that leads nowhere",
            kind if kind.is_fifo() => "a FIFO",
            kind if kind.is_socket() => "a socket",
            _ => "a device",
        }));
    }
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    opened.map(Named::File).map_err(|e| failed(path, "cannot be opened", e))
}

/// A file on its way to its name.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    path: PathBuf,
    /// Its name until then, if it has one.
    temporary: Option<PathBuf>,
}

impl NewFile {
    /// Makes an empty file, to be called `path` later.
    ///
    /// # Errors
    /// I/O, naming `path`: its directory is not there, or not writable.
    pub fn begin(path: &Path) -> Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        // The file gets its name through this.
        if !Path::new("/proc/self/fd").exists() {
            return Self::begin_named(path);
        }
        match rustix::fs::open(directory_of(path), flags, Mode::from_raw_mode(0o666)) {
            Ok(file) => Ok(Self { file: File::from(file), path: path.to_owned(), temporary: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => {
                Self::begin_named(path)
            }
            Err(errno) => Err(failed(path, "cannot be created", errno)),
        }
    }

    fn begin_named(path: &Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let (temporary, file) = new_name(path, |name| options.open(name))?;
        Ok(Self { file, path: path.to_owned(), temporary: Some(temporary) })
    }

    /// The file, to write into.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Gives it its name.
    ///
    /// # Errors
    /// Invalid input when something has that name; I/O. The file is gone then.
    pub fn appear(mut self) -> Result<File> {
        if let Some(temporary) = &self.temporary {
            rename_new(temporary, &self.path)?;
            self.temporary = None;
        } else {
            let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            rustix::fs::linkat(CWD, own, CWD, &self.path, AtFlags::SYMLINK_FOLLOW)
                .map_err(|errno| taken(&self.path, errno))?;
        }
        self.file.try_clone().map_err(|e| failed(&self.path, "has no further descriptor", e))
    }

    /// Makes a file with this content that is called `path` once it holds all of it.
    ///
    /// # Durability
    /// The content is flushed before the name is there; the name survives once its directory is
    /// flushed.
    ///
    /// # Errors
    /// As [`Self::begin`] and [`Self::appear`].
    pub fn write(path: &Path, content: &[u8]) -> Result<File> {
        let new = Self::begin(path)?;
        io::Write::write_all(&mut new.file(), content)
            .and_then(|()| new.file().sync_all())
            .map_err(|e| failed(path, "cannot be written", e))?;
        new.appear()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

/// Makes something under an unused name beside `path`.
fn new_name<T>(path: &Path, make: impl Fn(&Path) -> io::Result<T>) -> Result<(PathBuf, T)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}-{number}.new", std::process::id()));
        let name = path.with_file_name(name);
        match make(&name) {
            Ok(made) => return Ok((name, made)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(path, "cannot be created", error)),
        }
    }
}

/// Makes a directory, to be called `path` later, under an unused name.
///
/// # Errors
/// I/O, naming `path`.
pub fn new_directory(path: &Path) -> Result<PathBuf> {
    new_name(path, |name| std::fs::create_dir(name)).map(|(name, ())| name)
}

/// Renames a file or directory to an unused name: not even an empty directory is replaced.
///
/// # Errors
/// Invalid input when something has that name; I/O. It keeps its former name then.
pub fn rename_new(from: &Path, to: &Path) -> Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => rename_by_steps(from, to),
        Err(errno) => Err(taken(to, errno)),
    }
}

/// The same where the file system cannot rename without replacing. A crash between the steps leaves
/// both names, or `to` as an empty directory.
fn rename_by_steps(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        rustix::fs::link(from, to).map_err(|errno| taken(to, errno))?;
        return std::fs::remove_file(from).map_err(|e| failed(from, "cannot be removed", e));
    }
    rustix::fs::mkdir(to, Mode::from_raw_mode(0o777)).map_err(|errno| taken(to, errno))?;
    // The rename replaces an empty directory, and this one is our own.
    std::fs::rename(from, to).map_err(|error| {
        let _ = std::fs::remove_dir(to);
        failed(to, "cannot be made", error)
    })
}

fn taken(path: &Path, errno: Errno) -> Error {
    match errno {
        Errno::EXIST => Error::invalid(format!("{}: exists already", path.display())),
        errno => failed(path, "cannot be given its name", errno),
    }
}

/// The directory that a path lies in.
#[must_use]
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Flushes a directory, so that the names in it last.
///
/// # Errors
/// The system's.
pub fn sync_directory(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| failed(dir, "cannot be flushed", e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn directory(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("gabion-fresh-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    fn count(dir: &Path) -> usize {
        std::fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all_and_replaces_nothing() {
        let dir = directory("file");
        let path = dir.join("pool");
        for begin in [NewFile::begin, NewFile::begin_named] {
            let new = begin(&path).unwrap();
            new.file().write_all(b"ours").unwrap();
            assert!(!path.exists());
            drop(new);
            assert_eq!(count(&dir), 0, "what never appeared is gone");
            let new = begin(&path).unwrap();
            new.file().write_all(b"ours").unwrap();
            new.appear().unwrap();
            assert_eq!((std::fs::read(&path).unwrap(), count(&dir)), (b"ours".to_vec(), 1));
            let error = begin(&path).unwrap().appear().unwrap_err();
            assert!(error.message().contains("pool: exists already"), "{error}");
            assert_eq!((std::fs::read(&path).unwrap(), count(&dir)), (b"ours".to_vec(), 1));
            std::fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink("nowhere", &path).unwrap();
            assert!(begin(&path).unwrap().appear().is_err());
            std::fs::remove_file(&path).unwrap();
        }
        std::fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn a_rename_replaces_neither_a_file_nor_a_link_nor_an_empty_directory() {
        let dir = directory("rename");
        let (from, to) = (dir.join("from"), dir.join("to"));
        for rename in [rename_new, rename_by_steps] {
            for is_dir in [false, true] {
                let make = || match is_dir {
                    true => std::fs::create_dir(&from),
                    false => std::fs::write(&from, b"ours"),
                };
                make().unwrap();
                std::fs::create_dir(&to).unwrap();
                assert!(rename(&from, &to).unwrap_err().message().contains("exists already"));
                std::fs::remove_dir(&to).unwrap();
                std::fs::write(&to, b"theirs").unwrap();
                assert!(rename(&from, &to).is_err());
                assert_eq!(std::fs::read(&to).unwrap(), b"theirs");
                std::fs::remove_file(&to).unwrap();
                std::os::unix::fs::symlink("nowhere", &to).unwrap();
                assert!(rename(&from, &to).is_err());
                std::fs::remove_file(&to).unwrap();
                rename(&from, &to).unwrap();
                assert_eq!((from.exists(), to.is_dir()), (false, is_dir));
                let _ = std::fs::remove_file(&to);
                let _ = std::fs::remove_dir(&to);
            }
        }
        std::fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn what_has_a_name_is_told_without_waiting_for_anybody() {
        let dir = directory("named");
        let path = dir.join("it");
        assert!(matches!(named(&path).unwrap(), Named::Nothing));
        rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(matches!(named(&path).unwrap(), Named::Other("a FIFO")));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"x").unwrap();
        assert!(matches!(named(&path).unwrap(), Named::File(_)));
        assert!(matches!(named(&dir).unwrap(), Named::Other("a directory")));
        assert!(matches!(named(Path::new("/dev/null")).unwrap(), Named::Other("a device")));
        std::os::unix::fs::symlink(&path, dir.join("link")).unwrap();
        assert!(matches!(named(&dir.join("link")).unwrap(), Named::Other("a symbolic link")));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
