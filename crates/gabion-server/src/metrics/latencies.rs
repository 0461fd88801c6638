//! How long things took, in buckets that double.
//!
//! ```text
//!   bucket    0         1         2     …    24        25
//!   up to     1.024 µs  2.048 µs  4.096 µs   17.2 s    for ever      2^(10 + bucket) ns
//! ```
//!
//! A time is counted with one shift and one addition: no search, no lock, no memory. A quantile
//! that is read off them is right within a factor of two, and less where it lies between others.

use std::cell::Cell;

/// The first bucket ends at so many bits of nanoseconds.
const FIRST_BITS: u32 = 10;
/// Buckets with an end, and one without.
pub const BUCKETS: usize = 26;

/// How many times fell into each bucket.
#[derive(Default)]
pub(crate) struct Buckets([Cell<u64>; BUCKETS]);

impl Buckets {
    #[inline]
    pub(crate) fn count(&self, ns: u64) {
        let bucket = &self.0[bucket_of(ns)];
        bucket.set(bucket.get() + 1);
    }

    /// How many are in each, from the shortest.
    pub(crate) fn counts(&self) -> [u64; BUCKETS] {
        self.0.each_ref().map(Cell::get)
    }

    pub(crate) fn reset(&self) {
        self.0.iter().for_each(|bucket| bucket.set(0));
    }
}

/// The bucket of a time; its end belongs to it.
#[inline]
fn bucket_of(ns: u64) -> usize {
    let bits = u64::BITS - ns.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(FIRST_BITS) as usize).min(BUCKETS - 1)
}

/// The ends of the buckets that have one, in seconds.
pub fn bounds() -> impl Iterator<Item = f64> {
    (0..BUCKETS as u32 - 1).map(|bucket| (1_u64 << (FIRST_BITS + bucket)) as f64 / 1e9)
}

/// Times with their sum.
#[derive(Default)]
pub(crate) struct Latencies {
    pub(crate) buckets: Buckets,
    ns: Cell<u64>,
}

impl Latencies {
    #[inline]
    pub(crate) fn count(&self, ns: u64) {
        self.buckets.count(ns);
        self.ns.set(self.ns.get().saturating_add(ns));
    }

    pub(crate) const fn sum_ns(&self) -> u64 {
        self.ns.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_does_not_end_before_it() {
        let ends: Vec<u64> = bounds().map(|seconds| (seconds * 1e9).round() as u64).collect();
        assert_eq!((ends.len(), ends[0], ends[24]), (BUCKETS - 1, 1_024, 1 << 34));
        let around = ends.iter().flat_map(|end| [end - 1, *end, end + 1]);
        for ns in around.chain([0, 1, 7, 1_000_000, u64::MAX]) {
            let wanted = ends.iter().position(|end| ns <= *end).unwrap_or(BUCKETS - 1);
            assert_eq!(bucket_of(ns), wanted, "{ns}");
        }
    }

    #[test]
    fn what_is_counted_is_in_one_bucket_and_in_the_sum() {
        let latencies = Latencies::default();
        for ns in [0, 5_000, 5_001, u64::MAX] {
            latencies.count(ns);
        }
        let counts = latencies.buckets.counts();
        assert_eq!((counts[0], counts[3], counts[25]), (1, 2, 1), "{counts:?}");
        assert_eq!(latencies.sum_ns(), u64::MAX, "it does not run over");
        latencies.buckets.reset();
        assert_eq!(latencies.buckets.counts(), [0; BUCKETS]);
    }
}
