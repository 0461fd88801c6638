//! How long processes waited for the store, counted where all of them reach it.
//!
//! ```text
//!   bucket    0         1         2     …    24        25
//!   up to     1.024 µs  2.048 µs  4.096 µs   17.2 s    for ever      2^(10 + bucket) ns
//! ```
//!
//! The buckets are those of all histograms of Gabion; a test of `gabion` compares them. They are
//! counted here once more, as the interposer is loaded into programs of others and knows nothing of
//! the rest.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets with an end, and one without.
pub const BUCKETS: usize = 26;
/// The first bucket ends at so many bits of nanoseconds.
const FIRST_BITS: u32 = 10;

/// Times in buckets, and their sum.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Times {
    buckets: [AtomicU64; BUCKETS],
    ns: AtomicU64,
}

impl Times {
    /// Counts a time: two additions.
    pub fn count(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bits = u64::BITS - ns.saturating_sub(1).leading_zeros();
        let bucket = (bits.saturating_sub(FIRST_BITS) as usize).min(BUCKETS - 1);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.ns.fetch_add(ns, Relaxed);
    }

    /// How many are in each bucket, from the shortest, and the sum of all in nanoseconds.
    #[must_use]
    pub fn read(&self) -> ([u64; BUCKETS], u64) {
        (self.buckets.each_ref().map(|bucket| bucket.load(Relaxed)), self.ns.load(Relaxed))
    }
}
