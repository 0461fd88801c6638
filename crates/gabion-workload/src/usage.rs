//! The use of the process, by the kernel's counters, and the bytes on the disk.

use gabion_base::{Error, ErrorKind, Result};
use gabion_proc::MachineTime;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::num::NonZero;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

/// Use of the process up to a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    at: Instant,
    cpu_seconds: f64,
    /// Bytes from and to storage, not the page cache. Bytes that never reached it, as their file
    /// was removed before, are subtracted (`/proc/self/io`).
    read_bytes: u64,
    write_bytes: u64,
    /// The same for the whole machine; none if the kernel does not tell.
    machine: Option<MachineTime>,
}

/// Use of the process between two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Used {
    pub(crate) wall_seconds: f64,
    /// All threads, including those that ended.
    pub(crate) cpu_seconds: f64,
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
    /// The others' use of the machine meanwhile; none if the kernel does not tell.
    pub(crate) others: Option<Others>,
}

/// The others' use of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Others {
    /// Processor seconds of other processes and of the kernel's own threads, which write back the
    /// page cache.
    pub(crate) cpu_seconds: f64,
    /// Processor seconds that a virtual machine's host took for others while there was work here.
    pub(crate) stolen_seconds: f64,
    /// The available processor seconds: all processors, whether or not they worked.
    pub(crate) of_seconds: f64,
}

impl Others {
    /// The machine's work that was not this process's.
    fn of(machine: MachineTime, own_seconds: f64, wall_seconds: f64) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            // The machine's are counted in hundredths of a second, the process's in billionths.
            cpu_seconds: (machine.busy - own_seconds).max(0.0),
            stolen_seconds: machine.stolen,
            of_seconds: wall_seconds * cores as f64,
        }
    }

    /// The fields in rows: seconds, and shares of all that were available.
    pub(crate) fn json(&self) -> Value {
        let share = |seconds: f64| seconds / self.of_seconds.max(f64::MIN_POSITIVE);
        json!({
            "cpu_seconds": self.cpu_seconds,
            "cpu_share": share(self.cpu_seconds),
            "stolen_seconds": self.stolen_seconds,
            "stolen_share": share(self.stolen_seconds),
        })
    }
}

impl Usage {
    /// The use up to now.
    pub(crate) fn now() -> Result<Self> {
        let (read_bytes, write_bytes) = gabion_proc::device_bytes().ok_or_else(|| {
            Error::unsupported(
                "/proc/self/io has no read_bytes, write_bytes or cancelled_write_bytes",
            )
        })?;
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let cpu_seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
        let machine = MachineTime::now();
        Ok(Self { at: Instant::now(), cpu_seconds, read_bytes, write_bytes, machine })
    }

    /// The use from `before` until this moment.
    pub(crate) fn since(&self, before: &Self) -> Used {
        let wall_seconds = (self.at - before.at).as_secs_f64();
        let cpu_seconds = self.cpu_seconds - before.cpu_seconds;
        let machine = self.machine.zip(before.machine).map(|(now, then)| now.since(then));
        Used {
            wall_seconds,
            cpu_seconds,
            others: machine.map(|machine| Others::of(machine, cpu_seconds, wall_seconds)),
            read_bytes: self.read_bytes - before.read_bytes,
            // Negative when more earlier writes were removed than were written since.
            write_bytes: self.write_bytes.saturating_sub(before.write_bytes),
        }
    }
}

/// The peak of the process's memory so far, in bytes.
pub(crate) fn peak_memory() -> Result<u64> {
    gabion_proc::peak_memory_bytes()
        .ok_or_else(|| Error::unsupported("/proc/self/status has no VmHWM"))
}

/// Bytes that the system's allocator holds: those in use, and freed ones that it keeps; none if it
/// is not the GNU C library's, which alone tells them.
pub(crate) fn allocator() -> Option<[u64; 2]> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes nothing and only reads the allocator's own counters, under its locks.
        let info = unsafe { libc::mallinfo2() };
        // Large allocations are mapped by themselves and returned when they are freed.
        Some([(info.uordblks + info.hblkhd) as u64, info.fordblks as u64])
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Bytes that a directory takes on its file system: blocks, not lengths.
///
/// # Errors
/// It cannot be read.
pub fn directory_len(directory: &Path) -> Result<u64> {
    files_len(directory, &|_| true)
}

/// The same for the files at and below a directory whose paths `is_meant` accepts.
///
/// # Errors
/// It cannot be read.
pub fn files_len(directory: &Path, is_meant: &dyn Fn(&Path) -> bool) -> Result<u64> {
    let failed = |error| {
        Error::with_source(ErrorKind::Io, format!("look into {}", directory.display()), error)
    };
    let mut len = 0;
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => len += files_len(&entry.path(), is_meant)?,
            Ok(metadata) if is_meant(&entry.path()) => len += metadata.blocks() * 512,
            Ok(_) => {}
            // An engine may remove a file at any time.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(len)
}

/// Free bytes of the file system on which a path is, or will be.
///
/// # Errors
/// The file system does not say.
pub fn free_len(path: &Path) -> Result<u64> {
    let existing = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let status = rustix::fs::statvfs(existing).map_err(|error| {
        let message = format!("ask for the free space of {}", existing.display());
        Error::with_source(ErrorKind::Io, message, io::Error::from(error))
    })?;
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_in_the_use_of_the_process() {
        let before = Usage::now().unwrap();
        let mut sum = 1_u64;
        while Usage::now().unwrap().since(&before).cpu_seconds < 0.001 {
            sum = sum.wrapping_mul(3);
        }
        let used = Usage::now().unwrap().since(&before);
        assert!(used.wall_seconds > 0.0 && sum != 0, "{used:?}");
        assert!(peak_memory().unwrap() > 1 << 20);
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn what_is_allocated_is_in_use_and_what_is_freed_may_be_kept() {
        let before = allocator().unwrap();
        let large = vec![1_u8; 64 << 20];
        let after = allocator().unwrap();
        assert!(after[0] - before[0] > 60 << 20, "{before:?} {after:?} {}", large[9]);
    }

    #[test]
    fn what_is_not_this_process_s_is_that_of_others() {
        let machine = MachineTime { busy: 3.0, stolen: 0.5 };
        let others = Others::of(machine, 2.5, 10.0);
        assert_eq!((others.cpu_seconds, others.stolen_seconds), (0.5, 0.5));
        let row = Others { of_seconds: 20.0, ..others }.json();
        assert_eq!((&row["cpu_share"], &row["stolen_share"]), (&json!(0.025), &json!(0.025)));
        assert_eq!(Others::of(machine, 3.5, 10.0).cpu_seconds, 0.0, "a tick too many is nobody's");
        assert!(Usage::now().unwrap().since(&Usage::now().unwrap()).others.is_some());
    }

    #[test]
    fn a_directory_takes_the_blocks_of_all_its_files() {
        let directory = std::env::temp_dir().join(format!("gabion-usage-{}", std::process::id()));
        let inner = directory.join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("file"), vec![1; 10_000]).unwrap();
        fs::write(directory.join("file"), vec![1; 5_000]).unwrap();
        fs::File::open(inner.join("file")).unwrap().sync_all().unwrap();
        fs::File::open(directory.join("file")).unwrap().sync_all().unwrap();
        let len = directory_len(&directory);
        let inner_len = files_len(&directory, &|path| path.ends_with("b/file")).unwrap();
        fs::remove_dir_all(&directory).unwrap();
        let len = len.unwrap();
        assert!((15_000..200_000).contains(&len));
        assert!((10_000..len - 4_999).contains(&inner_len), "{inner_len} of {len}");
        assert!(directory_len(&directory).is_err());
        assert!(free_len(&directory).unwrap() > 0);
    }
}
