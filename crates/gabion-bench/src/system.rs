//! What the machine and this process used.

use rustix::time::{ClockId, clock_gettime};

/// Processor seconds of this thread.
pub(crate) fn thread_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Processor seconds of the whole machine since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MachineTime {
    /// It worked.
    pub(crate) busy: f64,
    /// It had work, and the host ran others. The kernel of a guest counts much of that as the time of whichever
    /// thread was to run.
    pub(crate) stolen: f64,
}

impl MachineTime {
    /// As of now; `None` where the kernel does not say.
    pub(crate) fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
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
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self { busy: self.busy - earlier.busy, stolen: self.stolen - earlier.stolen }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_thread_that_works_uses_its_processor() {
        let before = thread_cpu_seconds();
        let mut work = 1_u64;
        while thread_cpu_seconds() == before {
            work = work.wrapping_mul(3);
        }
        assert!(thread_cpu_seconds() > before, "{work}");
    }
}
