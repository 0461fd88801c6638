//! Probe writes: a block that is written to the replica's directory, and made durable, again and
//! again. A device that hangs shows in them, while the loop, which waits for no device, goes on.
//!
//! ```text
//!   gabion-probe: write, durable ─► pause ─► write …
//!        │ begun at, refused (atomics)
//!        ▼
//!   loop: state ─► the report to the controller
//! ```
//!
//! The block is in a file of its own, reserved when it is made, so that no write waits for anything
//! but the device (and, where a file system has no direct writes, for its cache to be written out).

use gabion_base::units::BLOCK_LEN;
use gabion_base::{Error, ErrorKind, Result};
use gabion_control::Probe;
use gabion_fabric::space::{Mark, preallocate_marked};
use gabion_host::jobs::thread;
use gabion_host::owned::{PROBE_WORDS, is_probe};
use gabion_host::replica::probe_path;
use gabion_media::AlignedBuf;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The pause between two probe writes.
const PAUSE: Duration = Duration::from_millis(250);
/// Writes whose times are kept.
const RECENT: usize = 8;
/// No write is under way.
const IDLE: u64 = u64::MAX;

/// The news of the thread.
struct Shared {
    /// Times are in ms since then, by a clock that stands still with the machine: a write that
    /// slept with it did not hang.
    origin: Instant,
    /// When the write that is under way began.
    begun_ms: AtomicU64,
    is_refused: AtomicBool,
    is_over: AtomicBool,
    /// How long the last writes took, in µs, in no order.
    recent_us: [AtomicU64; RECENT],
    /// Writes that ended.
    ended: AtomicU64,
}

impl Shared {
    fn new() -> Self {
        Self {
            origin: Instant::now(),
            begun_ms: AtomicU64::new(IDLE),
            is_refused: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            recent_us: Default::default(),
            ended: AtomicU64::new(0),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(IDLE - 1)
    }

    fn state(&self) -> Probe {
        // In this order: a write that ends in between is one that ended well or not.
        let begun_ms = self.begun_ms.load(Ordering::Acquire);
        if self.is_refused.load(Ordering::Acquire) {
            return Probe::Refused;
        }
        match begun_ms {
            IDLE => Probe::Well,
            begun_ms => Probe::Running(self.now_ms().saturating_sub(begun_ms)),
        }
    }

    /// The shortest of the last writes: a disk is slow where all of them are, and one that waited
    /// for another's flush is no sign. 0 before there were so many.
    fn least_us(&self) -> u64 {
        self.recent_us.iter().map(|us| us.load(Ordering::Relaxed)).min().unwrap_or(0)
    }

    /// Carries out a probe write.
    fn watch<T>(&self, write: impl FnOnce() -> Result<T>) -> Result<T> {
        self.begun_ms.store(self.now_ms(), Ordering::Release);
        let begun = Instant::now();
        let outcome = write();
        let us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let place = self.ended.fetch_add(1, Ordering::Relaxed) % RECENT as u64;
        self.recent_us[place as usize].store(us, Ordering::Relaxed);
        self.is_refused.store(outcome.is_err(), Ordering::Release);
        self.begun_ms.store(IDLE, Ordering::Release);
        outcome
    }
}

/// The thread `gabion-probe` of a replica. It outlives the replica's node, which may be opened
/// again.
pub(crate) struct ProbeThread {
    shared: Arc<Shared>,
    thread: Thread,
}

impl ProbeThread {
    /// Begins to write to the directory of a replica.
    ///
    /// # Errors
    /// Invalid input where the name of its file is somebody else's; the system's, when it gives no
    /// thread. A file that cannot be made is a write that is refused.
    pub(crate) fn start(dir: &Path) -> Result<Self> {
        let path = probe_path(dir);
        is_probe(&path)?;
        let shared = Arc::new(Shared::new());
        let of_thread = shared.clone();
        let handle = thread("gabion-probe", 0, move || run(path, &of_thread))?;
        Ok(Self { shared, thread: handle.thread().clone() })
    }

    /// How the writes are doing.
    pub(crate) fn state(&self) -> Probe {
        self.shared.state()
    }

    /// The shortest of the last writes, in µs; 0 before there were enough.
    pub(crate) fn least_us(&self) -> u64 {
        self.shared.least_us()
    }
}

impl Drop for ProbeThread {
    /// Does not wait: the device may hang.
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

fn run(path: PathBuf, shared: &Shared) {
    let mut target = None;
    let (mut block, mut count) = (AlignedBuf::zeroed(BLOCK_LEN), 0_u64);
    block[..PROBE_WORDS.len()].copy_from_slice(PROBE_WORDS);
    let mut told = String::new();
    while !shared.is_over.load(Ordering::Acquire) {
        count += 1;
        block[PROBE_WORDS.len()..][..8].copy_from_slice(&count.to_le_bytes());
        let written = shared.watch(|| {
            let target = match &mut target {
                Some(target) => target,
                none => none.insert(Target::open(&path)?),
            };
            target.write(&path, &block)
        });
        if let Err(error) = written {
            // By its name again: it may lie on a device that is back.
            target = None;
            let text = error.to_string();
            if text != told {
                note!("probe writes are refused: {text}");
                told = text;
            }
        }
        std::thread::park_timeout(PAUSE);
    }
}

/// The file, open.
struct Target {
    file: File,
    /// Each write is durable when it returns.
    is_synced: bool,
}

impl Target {
    /// Opens the file, and makes it where it is not there.
    fn open(path: &Path) -> Result<Self> {
        if !is_probe(path)? {
            let mark = Mark { at: 0, bytes: PROBE_WORDS };
            preallocate_marked(path, BLOCK_LEN as u64, mark)?;
        }
        let open = |flags: OFlags| {
            let flags = flags | OFlags::NOFOLLOW;
            OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(path)
        };
        match open(OFlags::DIRECT | OFlags::DSYNC) {
            Ok(file) => Ok(Self { file, is_synced: true }),
            // The file system has no direct writes.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let file = open(OFlags::empty()).map_err(|error| refused(path, error))?;
                Ok(Self { file, is_synced: false })
            }
            Err(error) => Err(refused(path, error)),
        }
    }

    fn write(&mut self, path: &Path, block: &[u8]) -> Result<()> {
        let mut written = self.file.write_all_at(block, 0);
        if !self.is_synced {
            written = written.and_then(|()| self.file.sync_data());
        }
        written.map_err(|error| refused(path, error))
    }
}

fn refused(path: &Path, error: io::Error) -> Error {
    let what = format!("{}: cannot be written", path.display());
    Error::with_source(ErrorKind::Io, what, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn directory(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("gabion-probe-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// docs/faults.md: E15
    #[test]
    fn a_write_that_hangs_shows_for_as_long_as_it_does_and_one_that_is_refused_until_one_is_not() {
        let shared = Arc::new(Shared::new());
        assert_eq!(shared.state(), Probe::Well);
        let (end, ends) = channel();
        let of_thread = shared.clone();
        let device = std::thread::spawn(move || {
            while let Ok(outcome) = ends.recv() {
                let _: Result<()> = of_thread.watch(|| {
                    ends.recv().unwrap();
                    if outcome { Ok(()) } else { Err(Error::io("no")) }
                });
            }
        });
        let running = || matches!(shared.state(), Probe::Running(_));
        end.send(false).unwrap();
        until("it runs", running);
        until("its age grows", || matches!(shared.state(), Probe::Running(ms) if ms > 20));
        end.send(false).unwrap();
        until("it was refused", || shared.state() == Probe::Refused);
        end.send(true).unwrap();
        until("the next runs", || shared.begun_ms.load(Ordering::Acquire) != IDLE);
        assert_eq!(shared.state(), Probe::Refused, "nobody knows better yet");
        end.send(true).unwrap();
        until("it ended well", || shared.state() == Probe::Well);
        drop(end);
        device.join().unwrap();
    }

    #[test]
    fn a_disk_is_as_slow_as_the_shortest_of_the_last_writes() {
        let shared = Shared::new();
        let write = |ms| {
            shared.watch(|| -> Result<()> {
                std::thread::sleep(Duration::from_millis(ms));
                Ok(())
            })
        };
        for _ in 1..RECENT {
            write(3).unwrap();
            assert_eq!(shared.least_us(), 0, "too few");
        }
        write(3).unwrap();
        let slow = shared.least_us();
        assert!(slow >= 3_000, "{slow}");
        write(0).unwrap();
        assert!(shared.least_us() < slow, "one was faster");
    }

    #[test]
    fn the_file_is_written_again_and_again_and_a_file_of_others_is_not() {
        let dir = directory("writes");
        let path = probe_path(&dir);
        let probe = ProbeThread::start(&dir).unwrap();
        // It may be read in the middle of its first write.
        let is_whole = |block: &Vec<u8>| block.len() == BLOCK_LEN && block[PROBE_WORDS.len()] > 0;
        let block = || std::fs::read(&path).ok().filter(is_whole);
        until("it is written", || block().is_some());
        let first = block().unwrap();
        assert!(first.len() == BLOCK_LEN && first.starts_with(PROBE_WORDS), "{first:?}");
        until("it is written again", || block() != Some(first.clone()));
        assert_ne!(probe.state(), Probe::Refused);
        drop(probe);
        gabion_host::replica::remove_replica(&dir).unwrap();
        assert!(!path.exists(), "it is known as a replica's");
        for words in [&b"somebody's words"[..], b"", &[7; 2 * BLOCK_LEN]] {
            std::fs::write(&path, words).unwrap();
            let error = ProbeThread::start(&dir).err().unwrap().to_string();
            assert!(error.contains("probe: is in the way"), "{error}");
            gabion_host::replica::remove_replica(&dir).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), words);
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_directory_that_is_gone_is_a_device_that_refuses() {
        let dir = directory("gone");
        std::fs::remove_dir(&dir).unwrap();
        let probe = ProbeThread::start(&dir).unwrap();
        until("it is refused", || probe.state() == Probe::Refused);
        std::fs::create_dir(&dir).unwrap();
        until("it is back", || probe.state() == Probe::Well);
        drop(probe);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
