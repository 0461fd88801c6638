//! The latencies of requests.

use hdrhistogram::Histogram;
use std::time::Duration;

/// Latencies are counted in nanoseconds up to this; longer ones count as this.
const NS_MAX: u64 = 3_600_000_000_000;

/// A histogram of latencies, three digits from a nanosecond to an hour.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// A histogram without requests.
    #[must_use]
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, NS_MAX, 3);
        Self(histogram.expect("one to an hour, three digits: bounds that the histogram accepts"))
    }

    /// Counts one.
    #[inline]
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(NS_MAX);
        self.0.saturating_record(ns.max(1));
    }

    /// Adds another thread's counts.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("histograms of the same bounds can be added");
    }

    /// The longest, in microseconds; 0 without requests.
    #[must_use]
    pub fn max_us(&self) -> f64 {
        self.0.max() as f64 / 1000.0
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency in microseconds below which this share of the requests stayed; 0 without
    /// requests.
    #[must_use]
    pub fn quantile_us(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1000.0
    }
}
