//! Things that the kernel calls by number: names of files below the backing directory, and open
//! files.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Paths of inodes that the kernel was told of. A file with several names has the last one.
pub(crate) struct Paths(Mutex<BTreeMap<u64, PathBuf>>);

/// Open files by number.
#[derive(Default)]
pub(crate) struct Opened {
    next: AtomicU64,
    files: Mutex<BTreeMap<u64, Arc<File>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one insertion or removal.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_found() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl Paths {
    pub(crate) fn new(root: u64, backing: PathBuf) -> Self {
        Self(Mutex::new(BTreeMap::from([(root, backing)])))
    }

    pub(crate) fn get(&self, inode: u64) -> io::Result<PathBuf> {
        locked(&self.0).get(&inode).cloned().ok_or_else(not_found)
    }

    pub(crate) fn child(&self, parent: u64, name: &OsStr) -> io::Result<PathBuf> {
        Ok(self.get(parent)?.join(name))
    }

    pub(crate) fn set(&self, inode: u64, path: PathBuf) {
        locked(&self.0).insert(inode, path);
    }

    /// All paths at and below a name that has changed.
    pub(crate) fn rename(&self, from: &Path, to: &Path) {
        for path in locked(&self.0).values_mut() {
            if let Ok(below) = path.strip_prefix(from) {
                *path = if below.as_os_str().is_empty() { to.into() } else { to.join(below) };
            }
        }
    }
}

impl Opened {
    pub(crate) fn add(&self, file: File) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        locked(&self.files).insert(number, Arc::new(file));
        number
    }

    pub(crate) fn get(&self, number: u64) -> io::Result<Arc<File>> {
        locked(&self.files).get(&number).cloned().ok_or_else(not_found)
    }

    pub(crate) fn remove(&self, number: u64) {
        locked(&self.files).remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_renamed_takes_along_what_is_below_and_nothing_else() {
        let paths = Paths::new(1, "/back".into());
        for (inode, path) in [(2, "/back/a"), (3, "/back/a/b"), (4, "/back/ab")] {
            paths.set(inode, path.into());
        }
        paths.rename(Path::new("/back/a"), Path::new("/back/c"));
        let found = [2, 3, 4].map(|inode| paths.get(inode).unwrap());
        assert_eq!(found, ["/back/c", "/back/c/b", "/back/ab"].map(PathBuf::from));
        assert!(paths.get(5).is_err());
    }
}
