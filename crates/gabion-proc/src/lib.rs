//! What Linux says of this process: processor time by thread, memory, bytes read and written; and of the whole machine,
//! how long it worked. For reports, so what the kernel does not say is 0, or none where a measurement would be wrong by
//! it.
//!
//! The kernel counts for everybody in the same way, so this is what Gabion and what it is measured against report of
//! themselves. Source: proc(5).
//!
//! And what a process that moves data tells its allocator ([`keep_freed_memory`]), and a thread that may wait the
//! kernel ([`stand_back`]).
#![allow(clippy::disallowed_methods, reason = "a shell: its files are the kernel's answers")]

mod allocator;
mod priority;

pub use allocator::{keep_freed_memory, keep_freed_transfers};
pub use priority::{STEPS_MAX, stand_back};

use std::fs;
use std::path::Path;

/// Clock ticks per second in `/proc`; the kernel's interface fixes it at 100 on every platform that
/// Rust's Linux targets name.
const TICKS_PER_SECOND: f64 = 100.0;

/// The threads there are now, each by name with its processor seconds. A name has at most 15 bytes in the kernel.
#[must_use]
pub fn threads() -> Vec<(String, f64)> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let thread = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        (name.trim().to_owned(), task_seconds(&task.path()))
    };
    tasks.map(thread).collect()
}

/// The first number of `schedstat` is nanoseconds on a processor; where the kernel has none, `stat`
/// gives hundredths.
fn task_seconds(task: &Path) -> f64 {
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    match text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()) {
        Some(ns) => ns as f64 / 1e9,
        None => stat_seconds(&task.join("stat")).iter().sum(),
    }
}

/// Processor seconds of the process in user mode and in the kernel, in ticks of 10 ms, threads that ended included.
#[must_use]
pub fn processor_seconds() -> [f64; 2] {
    stat_seconds(Path::new("/proc/self/stat"))
}

fn stat_seconds(path: &Path) -> [f64; 2] {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The name in parentheses may hold blanks; the times are the 12th and 13th words after it.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut words = rest.split_whitespace().skip(11);
    [(); 2].map(|()| {
        let ticks = words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        ticks as f64 / TICKS_PER_SECOND
    })
}

/// Resident memory in bytes.
#[must_use]
pub fn memory_bytes() -> u64 {
    status("VmRSS:").unwrap_or(0)
}

/// Most bytes of memory that the process had so far (resident, the page cache not counted); none where the kernel does
/// not say.
#[must_use]
pub fn peak_memory_bytes() -> Option<u64> {
    status("VmHWM:")
}

/// Bytes of memory of the machine; none where the kernel does not say.
#[must_use]
pub fn machine_memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    field(&text, "MemTotal:").map(|kib| kib * 1024)
}

/// A number of kibibytes, in bytes.
fn status(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&text, name).map(|kib| kib * 1024)
}

/// Bytes that this process made the devices read and write, not the page cache; none where the kernel does not say.
///
/// The kernel counts a write through the page cache when the page becomes dirty, and what never reaches a device, as its
/// file was cut off or removed before that, as cancelled: it is taken off here. So bytes written may fall, and what they
/// grew by between two calls may be less than nothing.
#[must_use]
pub fn device_bytes() -> Option<(u64, u64)> {
    device_bytes_of(&fs::read_to_string("/proc/self/io").unwrap_or_default())
}

fn device_bytes_of(io: &str) -> Option<(u64, u64)> {
    let written = field(io, "write_bytes:")?;
    let cancelled = field(io, "cancelled_write_bytes:")?;
    // Whoever cuts a file off is charged for it, though another may have written.
    Some((field(io, "read_bytes:")?, written.saturating_sub(cancelled)))
}

/// Processor seconds of the whole machine since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineTime {
    /// It worked.
    pub busy: f64,
    /// It had work, and the host ran others. The kernel of a guest counts much of that as the time of whichever
    /// thread was to run.
    pub stolen: f64,
}

impl MachineTime {
    /// As of now; `None` where the kernel does not say.
    #[must_use]
    pub fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line of `/proc/stat` in hundredths of a second: user, nice, system, idle, waiting for
    /// I/O, interrupts, soft interrupts, stolen. Guests are in user already.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let busy = ticks.get(..3)?.iter().sum::<u64>() + ticks.get(5..7)?.iter().sum::<u64>();
        Some(Self { busy: busy as f64 / 100.0, stolen: *ticks.get(7)? as f64 / 100.0 })
    }

    /// What came after an earlier time.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { busy: self.busy - earlier.busy, stolen: self.stolen - earlier.stolen }
    }
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_by_thread_and_in_the_whole() {
        let worker = std::thread::Builder::new().name("a worker".into()).spawn(|| {
            let mut work = 0_u64;
            while processor_seconds()[0] < 0.03 {
                work = work.wrapping_mul(31).wrapping_add(1);
            }
            let own = threads().into_iter().find(|(name, _)| name == "a worker");
            (own, work)
        });
        let ((own, _), all) = (worker.unwrap().join().unwrap(), processor_seconds());
        let (_, seconds) = own.unwrap();
        assert!(seconds > 0.0 && seconds <= all[0] + all[1] + 0.02, "{seconds} of {all:?}");
        assert!(memory_bytes() > 1 << 20);
        assert!(machine_memory_bytes().unwrap() > memory_bytes());
        assert!(peak_memory_bytes().unwrap() >= 1 << 20 && device_bytes().is_some());
    }

    #[test]
    fn idle_and_waiting_are_no_work_and_what_was_stolen_stands_by_itself() {
        let stat = "cpu  100 20 30 4000 500 20 30 50 90 10\ncpu0 1 2 3\n";
        let time = MachineTime::parse(stat).unwrap();
        assert_eq!(time, MachineTime { busy: 2.0, stolen: 0.5 });
        let later = MachineTime { busy: 3.5, stolen: 0.75 };
        assert_eq!(later.since(time), MachineTime { busy: 1.5, stolen: 0.25 });
        assert_eq!(MachineTime::parse("intr 1"), None);
        assert!(MachineTime::now().is_some());
    }

    #[test]
    fn counters_are_read_by_their_whole_name() {
        let text = "rchar: 1\nread_bytes: 30\nwrite_bytes: 400\ncancelled_write_bytes: 5\n";
        assert_eq!(
            ["read_bytes:", "write_bytes:", "bytes:"].map(|name| field(text, name)),
            [Some(30), Some(400), None]
        );
        assert_eq!(device_bytes_of(text), Some((30, 395)), "what was cancelled is not written");
        let others = "read_bytes: 1\nwrite_bytes: 2\ncancelled_write_bytes: 3\n";
        assert_eq!(device_bytes_of(others), Some((1, 0)));
        assert_eq!(device_bytes_of("read_bytes: 1\nwrite_bytes: 2\n"), None);
        assert_eq!(field("VmRSS:\t    1234 kB\n", "VmRSS:"), Some(1234));
        assert_eq!(field("MemTotal: much\n", "MemTotal:"), None);
    }
}
