//! Waits that begin with looks.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Waits without sleep: looks again and again, and lets others have the processor between. To be
/// put to sleep and woken costs two processes more time than most waits last, above all where the
/// processors are virtual ones. Where looking leads to nothing it is left out: after each wait that
/// failed for twice as many waits, after each that did not for half as many.
pub(crate) struct Looks {
    /// Waits that sleep at once.
    skipped: AtomicU32,
    /// So many are skipped after the next one that fails.
    next: AtomicU32,
}

/// Longer than a record takes to be stored, and than a program that is busy with its log takes for
/// the next one.
const LOOKS_LAST: Duration = Duration::from_micros(30);
/// Looks between two times that others have the processor.
const LOOKS_AT_ONCE: u32 = 8;
/// Waits at most that sleep at once, after one that failed.
const SKIPPED_MAX: u32 = 256;

impl Looks {
    pub(crate) const fn new() -> Self {
        Self { skipped: AtomicU32::new(0), next: AtomicU32::new(1) }
    }

    /// Looks whether the wait is over, for a while. The counts are of all threads that do this; if
    /// two of them miss each other's a few waits more or less are skipped.
    pub(crate) fn wait(&self, is_over: &dyn Fn() -> bool) {
        let skipped = self.skipped.load(Relaxed);
        if is_over() {
            return;
        }
        if skipped > 0 {
            return self.skipped.store(skipped - 1, Relaxed);
        }
        let begun = Instant::now();
        while begun.elapsed() < LOOKS_LAST {
            for _ in 0..LOOKS_AT_ONCE {
                if is_over() {
                    let next = self.next.load(Relaxed);
                    return self.next.store((next / 2).max(1), Relaxed);
                }
                std::hint::spin_loop();
            }
            std::thread::yield_now();
        }
        let next = self.next.load(Relaxed);
        self.skipped.store(next, Relaxed);
        self.next.store((2 * next).min(SKIPPED_MAX), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_that_fail_are_left_out_more_and_more_until_one_succeeds() {
        let looks = Looks::new();
        let mut looked = Vec::new();
        for wait in 0..30 {
            let seen = AtomicU32::new(0);
            looks.wait(&|| seen.fetch_add(1, Relaxed) == u32::MAX);
            if seen.load(Relaxed) > 1 {
                looked.push(wait);
            }
        }
        assert_eq!(looked, [0, 2, 5, 10, 19], "1, 2, 4 and 8 lie between");
        looks.skipped.store(0, Relaxed);
        let seen = AtomicU32::new(0);
        looks.wait(&|| seen.fetch_add(1, Relaxed) == 3);
        assert_eq!((seen.load(Relaxed), looks.next.load(Relaxed)), (4, 16));
    }
}
