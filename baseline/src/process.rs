//! What the system says of this process, by role of work.

/// Names of this crate's threads. A name has at most 15 bytes in the kernel.
pub(crate) const LOOP: &str = "replica-loop";
pub(crate) const WRITER: &str = "replica-write";
pub(crate) const READER: &str = "replica-read";

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
        for (name, seconds) in gabion_proc::threads() {
            sum += seconds;
            match name.as_str() {
                LOOP | WRITER | READER => cpu.requests += seconds,
                name if threads[0].contains(&name) => cpu.flush += seconds,
                name if threads[1].contains(&name) => cpu.compaction += seconds,
                _ => {}
            }
        }
        // Threads that ended are in the whole only.
        cpu.total = gabion_proc::processor_seconds().iter().sum::<f64>().max(sum);
        cpu
    }

    /// What is left of the total.
    pub(crate) fn other(&self) -> f64 {
        (self.total - self.requests - self.flush - self.compaction).max(0.0)
    }
}
