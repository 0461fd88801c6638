//! What the system says of this process: processor time by thread, memory, bytes read and written.

use std::fs;

/// Threads by the role that the CPU report gives them (docs/architecture.md).
const ROLES: [(&str, &str); 5] = [
    ("gabion-loop", "requests"),
    ("gabion-flush", "flush"),
    ("gabion-compact", "compaction"),
    ("gabion-ship", "shipping"),
    ("gabion-target", "target"),
];

/// Processor time in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cpu {
    /// Of the process, threads that ended included.
    pub(crate) total: f64,
    /// In user mode.
    pub(crate) user: f64,
    /// In the kernel.
    pub(crate) system: f64,
    /// By role, in the order of the report; `other` is what is left of the total.
    pub(crate) by_role: Vec<(&'static str, f64)>,
}

/// Clock ticks per second in `/proc`; the kernel's interface fixes it at 100 on every platform that
/// Rust's Linux targets name.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time now.
pub(crate) fn cpu() -> Cpu {
    let mut by_role: Vec<(&'static str, f64)> = ROLES.map(|(_, role)| (role, 0.0)).to_vec();
    let mut known = 0.0;
    let mut sum = 0.0;
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let seconds = task_seconds(&task.path());
        sum += seconds;
        if let Some(i) = ROLES.iter().position(|(thread, _)| *thread == name.trim()) {
            by_role[i].1 += seconds;
            known += seconds;
        }
    }
    let (user, system) = stat_times("/proc/self/stat");
    let total = (user + system).max(sum);
    by_role.push(("other", (total - known).max(0.0)));
    Cpu { total, user, system, by_role }
}

/// The first number of `schedstat` is nanoseconds on a processor; where the kernel has none, `stat`
/// gives hundredths.
fn task_seconds(task: &std::path::Path) -> f64 {
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    match text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()) {
        Some(ns) => ns as f64 / 1e9,
        None => {
            let (user, system) = stat_times(&task.join("stat").to_string_lossy());
            user + system
        }
    }
}

fn stat_times(path: &str) -> (f64, f64) {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The name in parentheses may hold blanks; the times are the 12th and 13th words after it.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut words = rest.split_whitespace().skip(11);
    let mut next = || {
        let ticks = words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        ticks as f64 / TICKS_PER_SECOND
    };
    let user = next();
    (user, next())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roles_add_up_to_the_whole() {
        let mut work = 0_u64;
        while cpu().total == 0.0 {
            work = work.wrapping_mul(31).wrapping_add(1);
        }
        let cpu = cpu();
        let sum: f64 = cpu.by_role.iter().map(|(_, seconds)| seconds).sum();
        assert!((sum - cpu.total).abs() < 1e-6, "{cpu:?} {work}");
        assert_eq!(cpu.by_role.len(), 6);
        assert!(memory_bytes() > 0);
    }
}
