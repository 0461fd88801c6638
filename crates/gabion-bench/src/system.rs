//! The processor time of a thread of this process.

pub(crate) use gabion_workload::MachineTime;
use rustix::time::{ClockId, clock_gettime};

/// Processor seconds of this thread.
pub(crate) fn thread_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

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
