//! What the system says of this process, by role of work.

use std::fs;
use std::path::Path;

/// Names of this crate's threads. A name has at most 15 bytes in the kernel.
pub(crate) const LOOP: &str = "replica-loop";
pub(crate) const WRITER: &str = "replica-write";
pub(crate) const READER: &str = "replica-read";

/// Clock ticks per second in `/proc`; the kernel's interface fixes it at 100 on every platform that
/// Rust's Linux targets name.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor seconds of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cpu {
    pub(crate) total: f64,
    /// Threads of this crate.
    pub(crate) requests: f64,
    pub(crate) flush: f64,
    pub(crate) compaction: f64,
}

impl Cpu {
    /// Up to now; `threads` are the names of those that flush and of those that compact.
    pub(crate) fn now(threads: [&[&str]; 2]) -> Self {
        let mut cpu = Self::default();
        let mut sum = 0.0;
        for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            let seconds = task_seconds(&task.path());
            sum += seconds;
            match name.trim() {
                LOOP | WRITER | READER => cpu.requests += seconds,
                name if threads[0].contains(&name) => cpu.flush += seconds,
                name if threads[1].contains(&name) => cpu.compaction += seconds,
                _ => {}
            }
        }
        // Threads that ended are in the whole only.
        cpu.total = process_seconds().max(sum);
        cpu
    }

    /// What is left of the total.
    pub(crate) fn other(&self) -> f64 {
        (self.total - self.requests - self.flush - self.compaction).max(0.0)
    }
}

/// The first number of `schedstat` is nanoseconds on a processor.
fn task_seconds(task: &Path) -> f64 {
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    let ns = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    ns.unwrap_or(0) as f64 / 1e9
}

fn process_seconds() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may hold blanks; the times are the 12th and 13th words after it.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let words = rest.split_whitespace().skip(11).take(2);
    words.filter_map(|word| word.parse::<u64>().ok()).sum::<u64>() as f64 / TICKS_PER_SECOND
}

/// Resident memory in bytes.
pub(crate) fn memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&text, "VmRSS:") * 1024
}

/// Bytes that this process made the devices read and write.
pub(crate) fn device_bytes() -> (u64, u64) {
    let text = fs::read_to_string("/proc/self/io").unwrap_or_default();
    (field(&text, "read_bytes:"), field(&text, "write_bytes:"))
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
