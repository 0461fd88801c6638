//! What the system says of this process, by role of work; and how soon its threads run.
//!
//! A store starts threads by itself and when it likes, so what Gabion's threads say of themselves when they begin
//! (`gabion_proc::stand_back`) is said of them here, again and again ([`Standing::watch`]).

use rustix::process::{Pid, getpriority_process, setpriority_process};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often it is looked for threads that are new: a load takes minutes, a look some 0.1 ms.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How soon the watch ends when it is told to.
const TICK: Duration = Duration::from_millis(50);

/// Names of this crate's threads. A name has at most 15 bytes in the kernel.
pub(crate) const LOOP: &str = "replica-loop";
pub(crate) const WRITER: &str = "replica-write";
pub(crate) const READER: &str = "replica-read";
pub(crate) const NICE: &str = "replica-nice";

/// How far threads of a store stand back behind all others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// The names of those that flush, and of those that compact.
    threads: [&'static [&'static str]; 2],
    /// The nice(2) of each of both.
    nice: [i32; 2],
}

impl Standing {
    /// Those that compact stand back by `steps` of nice(2) behind the calling thread, those that flush by half as many, as
    /// in Gabion: writers wait for them sooner.
    pub(crate) fn new(threads: [&'static [&'static str]; 2], steps: u8) -> Self {
        let own = getpriority_process(None).unwrap_or_default();
        let most = i32::from(gabion_proc::STEPS_MAX);
        Self { threads, nice: [steps / 2, steps].map(|steps| (own + i32::from(steps)).min(most)) }
    }

    /// Sets it for the threads that there are now. Where a sandbox refuses it, a thread stays as it is.
    pub(crate) fn set(&self) {
        for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            let role = self.threads.iter().position(|names| names.contains(&name.trim()));
            let number = task.file_name().to_str().and_then(|number| number.parse().ok());
            // On Linux the priority is the thread's, and its number will do as a process's (setpriority(2)).
            if let Some((role, thread)) = role.zip(number.and_then(Pid::from_raw)) {
                // Nothing but speed depends on it.
                let _ = setpriority_process(Some(thread), self.nice[role]);
            }
        }
    }

    /// Sets it once a second until `stop` is set.
    pub(crate) fn watch(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.set();
            let ticks = LOOK_EVERY.as_millis() / TICK.as_millis();
            for _ in 0..ticks {
                if !stop.load(Ordering::Relaxed) {
                    thread::sleep(TICK);
                }
            }
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// The nice(2) of a thread of this name, asked by itself once `ask` was sent to.
    fn named(name: &str) -> (mpsc::Sender<()>, thread::JoinHandle<i32>) {
        let (ask, asked) = mpsc::channel();
        let own = move || {
            asked.recv().unwrap();
            getpriority_process(None).unwrap()
        };
        (ask, thread::Builder::new().name(name.to_owned()).spawn(own).unwrap())
    }

    #[test]
    fn threads_of_a_store_stand_back_by_what_they_do_and_no_others() {
        let before = getpriority_process(None).unwrap();
        let standing = Standing::new([&["a-flush"], &["a-merge", "a-bottom"]], 7);
        let threads = ["a-flush", "a-merge", "a-bottom", "a-reader"].map(named);
        // A thread takes its name when it begins.
        let begun = |name: &str| gabion_proc::threads().iter().any(|(other, _)| other == name);
        while !["a-flush", "a-merge", "a-bottom", "a-reader"].iter().all(|name| begun(name)) {
            thread::sleep(Duration::from_millis(1));
        }
        standing.set();
        standing.set();
        let nice = threads.map(|(ask, thread)| {
            ask.send(()).unwrap();
            thread.join().unwrap() - before
        });
        let most = i32::from(gabion_proc::STEPS_MAX) - before;
        assert_eq!(nice, [3, 7, 7, 0].map(|steps: i32| steps.min(most)), "twice is as once");
        assert_eq!(getpriority_process(None).unwrap(), before);
    }

    #[test]
    fn a_watch_finds_threads_that_are_started_later_and_ends_when_it_is_told_to() {
        let before = getpriority_process(None).unwrap();
        let standing = Standing::new([&[], &["b-merge"]], 2);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let watch = scope.spawn(|| standing.watch(&stop));
            thread::sleep(2 * TICK);
            let (ask, late) = named("b-merge");
            thread::sleep(LOOK_EVERY + 4 * TICK);
            ask.send(()).unwrap();
            assert_eq!(late.join().unwrap(), (before + 2).min(gabion_proc::STEPS_MAX.into()));
            stop.store(true, Ordering::Relaxed);
            watch.join().unwrap();
        });
    }
}
