//! The place of several that a thread reads in, so that threads that run at once seldom share one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Most places: publishing takes a lock and makes a view for each.
const PLACES_MAX: usize = 64;

/// Twice as many as threads run at once: threads take places in turn, whether they run or not.
pub(crate) fn places() -> usize {
    let running = thread::available_parallelism().map_or(1, usize::from);
    (2 * running).min(PLACES_MAX)
}

/// Threads that read, in the order in which they first do.
pub(crate) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    // In the destructor of another thread-local value there may be none any more: any place will
    // do.
    NUMBER.try_with(|number| *number).unwrap_or_default()
}
