//! What the machine and this process used.

use rustix::time::{ClockId, clock_gettime};

/// Processor seconds of this thread.
pub(crate) fn thread_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Processor seconds that the whole machine has worked; `None` where the kernel does not say.
pub(crate) fn machine_cpu_seconds() -> Option<f64> {
    busy_seconds(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// The first line of `/proc/stat` in hundredths of a second: user, nice, system, idle, waiting for
/// I/O, interrupts, soft interrupts, stolen. Guests are in user already; idle, waiting and stolen are no
/// work.
fn busy_seconds(stat: &str) -> Option<f64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let busy = ticks.get(..3)?.iter().sum::<u64>() + ticks.get(5..7)?.iter().sum::<u64>();
    Some(busy as f64 / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_are_no_work() {
        let stat = "cpu  100 20 30 4000 500 6 7 8 90 10\ncpu0 1 2 3\n";
        assert_eq!(busy_seconds(stat), Some(1.63));
        assert_eq!(busy_seconds("intr 1"), None);
        assert!(machine_cpu_seconds().is_some());
    }

    #[test]
    fn a_thread_that_works_uses_its_processor() {
        let before = thread_cpu_seconds();
        let mut work = 1_u64;
        while thread_cpu_seconds() == before {
            work = work.wrapping_mul(3);
        }
        assert!(thread_cpu_seconds() > before, "{work}");
    }
}
