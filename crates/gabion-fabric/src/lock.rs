//! The exclusive lock on a pool, held on the very descriptor that does the I/O.
//!
//! `flock` belongs to the open file, which lives as long as any operation on it is in the kernel.
//! So a process that gets the lock knows that nothing of a killed predecessor can land any more.

use gabion_base::{Error, ErrorKind, Result};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The time that the kernel may take to end a killed process's operations.
const DYING_MAX: Duration = Duration::from_secs(10);
/// How long to wait for a holder that seems to live: its parent may have been killed, and its own
/// kill may follow in a moment.
const LIVING_MAX: Duration = Duration::from_secs(1);
const BETWEEN_TRIES: Duration = Duration::from_millis(5);
/// A flag of a process that is in `do_exit` (`PF_EXITING`).
const EXITING: u32 = 4;
/// The bit in a signal set, in which the first signal is bit 0.
const SIGKILL: u64 = 1 << 8;

/// Takes the lock of a pool. A killed process holds it until its last operation in the kernel has
/// ended; the call waits for that, up to 10 s. For a live holder it waits 1 s at most.
///
/// # Errors
/// Busy, naming the path and, where `/proc/locks` tells, the process that holds it.
pub fn lock_exclusive(file: &File, path: &Path) -> Result<()> {
    lock_held_by(file, path, || holder(file))
}

/// [`lock_exclusive`] for a file whose holder `holder` knows.
///
/// # Errors
/// Busy, naming the path and the holder.
pub fn lock_held_by(file: &File, path: &Path, holder: impl Fn() -> Option<u32>) -> Result<()> {
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                let holder = holder();
                if begun.elapsed() >= patience(holder) {
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
    Error::new(ErrorKind::Busy, format!("{} is in use by {holder}", path.display()))
}

/// How long to wait for a process to let go.
fn patience(holder: Option<u32>) -> Duration {
    let Some(pid) = holder else { return DYING_MAX };
    let read = |what| std::fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default();
    match lives(&read("stat"), &read("status")) {
        true if pid == std::process::id() => Duration::ZERO,
        true => LIVING_MAX,
        false => DYING_MAX,
    }
}

/// Whether a process lives. One does not if it has ended and was not reaped, is ending, or will end
/// without a further step of its own. Read from `/proc/PID/stat` and `status`, which are empty
/// where there is no process.
fn lives(stat: &str, status: &str) -> bool {
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let mut fields = fields.split(' ');
    let (state, flags) = (fields.next().unwrap_or(""), fields.nth(5));
    let is_exiting = flags.and_then(|flags| flags.parse::<u32>().ok()).unwrap_or(0) & EXITING != 0;
    let is_killed = status.lines().any(|line| {
        let pending = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"));
        let pending = pending.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        pending.is_some_and(|set| set & SIGKILL != 0)
    });
    !matches!(state, "" | "Z" | "X") && !is_exiting && !is_killed
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
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    const STAT: &str = "4242 (a (b) c) S 1 4242 4242 0 -1 4194560 100 0 0 0";
    const STATUS: &str = "Name:\ta (b) c\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n";

    #[test]
    fn a_process_lives_unless_it_is_gone_a_zombie_exiting_or_killed() {
        assert!(lives(STAT, STATUS));
        assert!(lives(&STAT.replace(" S ", " D "), STATUS));
        assert!(lives(STAT, &STATUS.replace("0\n", "1\n")), "another signal is pending");
        assert!(!lives("", ""));
        assert!(!lives(&STAT.replace(" S ", " Z "), STATUS));
        assert!(!lives(&STAT.replace(" S ", " X "), STATUS));
        assert!(!lives(&STAT.replace("4194560", "4194564"), STATUS), "it is exiting");
        let (own, shared) = STATUS.split_once("ShdPnd").unwrap();
        let killed = |part: &str| part.replace("0000000000000000", "0000000000004100");
        assert!(!lives(STAT, &format!("{}ShdPnd{shared}", killed(own))));
        assert!(!lives(STAT, &format!("{own}ShdPnd{}", killed(shared))));
        let own = |what| std::fs::read_to_string(format!("/proc/self/{what}")).unwrap();
        assert!(lives(&own("stat"), &own("status")), "this very process");
    }

    #[test]
    fn a_lock_whose_owner_is_being_killed_is_waited_for() {
        let path =
            std::env::temp_dir().join(format!("gabion-lock-of-killed-{}", std::process::id()));
        let file = File::options().create(true).append(true).open(&path).unwrap();
        // It keeps its input: so much memory that its end takes a while.
        let mut owner = Command::new("flock")
            .args(["--no-fork", "-x"])
            .arg(&path)
            .arg("tail")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        owner.stdin.as_mut().unwrap().write_all(&vec![0; 256 << 20]).unwrap();
        assert_eq!(holder(&file), Some(owner.id()));
        owner.kill().unwrap();
        let locked = lock_exclusive(&file, &path);
        owner.wait().unwrap();
        locked.unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_lock_whose_owner_is_dead_is_waited_for_and_one_of_a_living_process_is_not() {
        let path = std::env::temp_dir().join(format!("gabion-lock-{}", std::process::id()));
        let open = || File::options().create(true).append(true).open(&path).unwrap();
        // A process that ends at once takes the lock; its parent keeps the open file, as the kernel
        // does for operations under way.
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
