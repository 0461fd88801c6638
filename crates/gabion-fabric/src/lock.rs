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
use std::time::{Duration, Instant};

/// How long the kernel may take to end what a killed process had under way.
const DYING_MAX: Duration = Duration::from_secs(10);
const BETWEEN_TRIES: Duration = Duration::from_millis(5);

/// Takes the lock, or fails at once when a process that lives holds it. One that was killed holds it
/// until its last operation in the kernel has ended; that is waited for, for up to 10 s.
///
/// # Errors
/// Busy, naming the path and, where `/proc/locks` tells, the process that holds it.
pub fn lock_exclusive(file: &File, path: &Path) -> Result<()> {
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                let holder = holder(file);
                if holder.is_some_and(lives) || begun.elapsed() > DYING_MAX {
                    return Err(busy(path, holder));
                }
                std::thread::sleep(BETWEEN_TRIES);
            }
            Err(errno) => {
                return Err(Error::with_source(
                    ErrorKind::Io,
                    format!("{}: cannot be locked", path.display()),
                    io::Error::from(errno),
                ));
            }
        }
    }
}

fn busy(path: &Path, holder: Option<u32>) -> Error {
    let holder = match holder {
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    };
    Error::new(ErrorKind::Busy, format!("{}: in use by {holder}", path.display()))
}

/// Whether a process runs; one that ended and was not waited for does not.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn a_lock_whose_owner_is_dead_is_waited_for_and_one_of_a_living_process_is_not() {
        let path = std::env::temp_dir().join(format!("gabion-lock-{}", std::process::id()));
        let open = || File::options().create(true).append(true).open(&path).unwrap();
        // The lock is taken by a process that ends at once; its parent keeps the open file, as the
        // kernel does for operations under way.
        let mut keeper = Command::new("sh")
            .args(["-c", "exec 9>>\"$0\"; flock -x 9 && echo held && read -r line"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        let file = open();
        std::thread::scope(|scope| {
            let locked = scope.spawn(|| lock_exclusive(&file, &path));
            drop(keeper.stdin.take());
            keeper.wait().unwrap();
            locked.join().unwrap().unwrap();
        });
        let error = lock_exclusive(&open(), &path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let owner = format!("in use by process {}", std::process::id());
        assert!(error.to_string().contains(&owner), "{error}");
        std::fs::remove_file(&path).unwrap();
    }
}
