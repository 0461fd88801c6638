//! What the process used, by the kernel's counters, and what is on the disk.

use gabion_base::{Error, ErrorKind, Result};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

/// Use of the process up to a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    at: Instant,
    cpu_seconds: f64,
    /// Bytes that came from and went to storage, not the page cache; what never reached it, as its file was removed
    /// before, is taken off (`/proc/self/io`).
    read_bytes: u64,
    write_bytes: u64,
}

/// Use of the process between two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Used {
    pub(crate) wall_seconds: f64,
    /// Of all threads, also those that ended.
    pub(crate) cpu_seconds: f64,
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
}

impl Usage {
    /// Up to now.
    pub(crate) fn now() -> Result<Self> {
        let (read_bytes, write_bytes) = gabion_proc::device_bytes().ok_or_else(|| {
            Error::unsupported(
                "/proc/self/io has no read_bytes, write_bytes or cancelled_write_bytes",
            )
        })?;
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let cpu_seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
        Ok(Self { at: Instant::now(), cpu_seconds, read_bytes, write_bytes })
    }

    /// From `before` until this moment.
    pub(crate) fn since(&self, before: &Self) -> Used {
        Used {
            wall_seconds: (self.at - before.at).as_secs_f64(),
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            read_bytes: self.read_bytes - before.read_bytes,
            // Less than nothing when more of what was written before was removed than was written since.
            write_bytes: self.write_bytes.saturating_sub(before.write_bytes),
        }
    }
}

/// Most bytes of memory that the process had so far.
pub(crate) fn peak_memory() -> Result<u64> {
    gabion_proc::peak_memory_bytes()
        .ok_or_else(|| Error::unsupported("/proc/self/status has no VmHWM"))
}

/// Bytes that a directory takes on its file system: blocks, not lengths.
///
/// # Errors
/// It cannot be read.
pub fn directory_len(directory: &Path) -> Result<u64> {
    let failed = |error| {
        Error::with_source(ErrorKind::Io, format!("look into {}", directory.display()), error)
    };
    let mut len = 0;
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => len += directory_len(&entry.path())?,
            Ok(metadata) => len += metadata.blocks() * 512,
            // An engine may remove a file that it has no more use for at any time.
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
    fn a_directory_takes_the_blocks_of_all_its_files() {
        let directory = std::env::temp_dir().join(format!("gabion-usage-{}", std::process::id()));
        let inner = directory.join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("file"), vec![1; 10_000]).unwrap();
        fs::write(directory.join("file"), vec![1; 5_000]).unwrap();
        fs::File::open(inner.join("file")).unwrap().sync_all().unwrap();
        fs::File::open(directory.join("file")).unwrap().sync_all().unwrap();
        let len = directory_len(&directory);
        fs::remove_dir_all(&directory).unwrap();
        assert!((15_000..200_000).contains(&len.unwrap()));
        assert!(directory_len(&directory).is_err());
        assert!(free_len(&directory).unwrap() > 0);
    }
}
