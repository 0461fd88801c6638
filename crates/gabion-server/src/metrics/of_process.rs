//! The page of a process, under the names that Prometheus's own clients give.

use super::text::{Kind, Page};
use crate::process;
use std::time::{SystemTime, UNIX_EPOCH};

/// Ticks of the kernel's interface in a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// The page of a replica's process. Read off the loop: the kernel may take its time.
pub(super) fn page() -> String {
    let mut page = Page::new(&[]);
    write(&mut page);
    let help = "Processor time by what for, in seconds: threads that serve requests, flush, \
                compact, ship, receive, and others.";
    // It is a difference, and may be told a little less than before.
    let mut family = page.family("gabion_cpu_seconds", Kind::Gauge, help);
    for (role, seconds) in process::cpu().by_role {
        family.sample(&[("role", role)], seconds);
    }
    page.finish()
}

/// Metrics of any process: version, processor time, memory, descriptors, its start.
pub fn write(page: &mut Page) {
    let version = env!("CARGO_PKG_VERSION");
    page.family("gabion_build_info", Kind::Gauge, "The version of this process.")
        .sample(&[("version", version)], 1_u64);
    let [user, system] = gabion_proc::processor_seconds();
    page.counter(
        "process_cpu_seconds_total",
        "Processor time in user mode and in the kernel, in seconds.",
        user + system,
    );
    page.gauge(
        "process_resident_memory_bytes",
        "Resident memory in bytes.",
        gabion_proc::memory_bytes(),
    );
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        page.gauge("process_open_fds", "Open descriptors.", open.count());
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    page.gauge(
        "process_max_fds",
        "Descriptors that the process may have.",
        limit.map_or(f64::INFINITY, |limit| limit as f64),
    );
    if let Some(since) = start_seconds() {
        page.gauge(
            "process_start_time_seconds",
            "When the process began, in seconds since 1970.",
            since,
        );
    }
}

/// When the process began: its age by the clock that runs since the machine's start.
fn start_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    // The 22nd word, of which the second may hold blanks.
    let began: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let up: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
    Some(now - up + began / TICKS_PER_SECOND)
}
