//! The exclusive lock on a pool, held on the very descriptor that does the I/O.
//!
//! `flock` belongs to the open file, which lives as long as any operation on it is in the kernel. So
//! a process that gets the lock knows that nothing of a killed predecessor can land any more
//! (DESIGN.md, Fencing).

use gabion_base::{Error, ErrorKind, Result};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Takes the lock or fails at once.
///
/// # Errors
/// Busy, naming the path and, where `/proc/locks` tells, the process that holds it.
pub fn lock_exclusive(file: &File, path: &Path) -> Result<()> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            let holder = match holder(file) {
                Some(pid) => format!("process {pid}"),
                None => "another process".to_owned(),
            };
            Err(Error::new(ErrorKind::Busy, format!("{}: in use by {holder}", path.display())))
        }
        Err(errno) => Err(Error::with_source(
            ErrorKind::Io,
            format!("{}: cannot be locked", path.display()),
            io::Error::from(errno),
        )),
    }
}

/// The process that holds the lock, from a line such as
/// `1: FLOCK  ADVISORY  WRITE 4242 fe:00:1835055 0 EOF`.
fn holder(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|&word| word == place)?;
        (words.get(1) == Some(&"FLOCK")).then(|| words.get(at - 1)?.parse().ok()).flatten()
    })
}
