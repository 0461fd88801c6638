//! Many seeds at once: each is a world of its own, so as many threads as there are cores share
//! them.

use crate::Outcome;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that the environment gives, or the default.
#[must_use]
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs seeds `GABION_FIRST_SEED` (1) to `GABION_SEEDS` (`default`) beyond it. `run` has a seed's
/// outcome, and why its run does not count, if so. Returns how many ran, and the sum of what
/// happened.
///
/// # Panics
/// When one fails. Its report is printed before.
#[expect(clippy::disallowed_methods, reason = "each world has one thread, and they share nothing")]
pub fn run_seeds(
    default: u64,
    run: impl Fn(u64) -> (Option<Outcome>, Option<String>) + Sync,
) -> (u64, Outcome) {
    let (first, count) = (number("GABION_FIRST_SEED", 1), number("GABION_SEEDS", default));
    let (next, ended) = (AtomicU64::new(first), Mutex::new((Outcome::default(), BTreeMap::new())));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let (outcome, failure) = run(seed);
                    let (total, failures) = &mut *ended.lock().expect("no thread panicked");
                    outcome.iter().for_each(|outcome| total.add(outcome));
                    if let Some(failure) = failure {
                        eprintln!("{failure}");
                        failures.insert(seed, failure);
                    }
                }
            });
        }
    });
    let (total, failures) = ended.into_inner().expect("no thread panicked");
    let failed: Vec<u64> = failures.into_keys().collect();
    assert!(failed.is_empty(), "{} of {count} seeds failed: {failed:?}", failed.len());
    eprintln!("coverage: {count} seeds: {total:?}");
    (count, total)
}
