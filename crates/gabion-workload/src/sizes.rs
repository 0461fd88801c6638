//! Sizes of values: one for all records, or several, each for its share of them.
//!
//! A record keeps its size, whichever version of it is written, so that what a store must hold does
//! not depend on the order of writes.

use crate::random::{STEP, mix};

/// Shares that make up all records.
const WHOLE: u64 = 100;

/// The sizes of a run's values, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Percent of the records, and bytes of their values.
    parts: Vec<(u64, usize)>,
}

impl Sizes {
    /// One for all records.
    #[must_use]
    pub fn one(len: usize) -> Self {
        Self { parts: vec![(WHOLE, len)] }
    }

    /// Several, each with the percent of records that have it: 100 together.
    #[must_use]
    pub fn mixed(parts: &[(u64, usize)]) -> Self {
        let shares: u64 = parts.iter().map(|(share, _)| share).sum();
        assert_eq!(shares, WHOLE, "shares of all records in {parts:?}");
        let parts = parts.iter().copied().filter(|(share, _)| *share > 0);
        Self { parts: parts.collect() }
    }

    /// That of a record.
    #[inline]
    #[must_use]
    pub fn of(&self, record: u64) -> usize {
        let [(_, first), rest @ ..] = &self.parts[..] else { return 0 };
        if rest.is_empty() {
            return *first;
        }
        let mut place = mix(record ^ STEP) % WHOLE;
        for (share, len) in &self.parts {
            if place < *share {
                return *len;
            }
            place -= share;
        }
        *first
    }

    /// The least.
    #[must_use]
    pub fn min(&self) -> usize {
        self.parts.iter().map(|(_, len)| *len).min().unwrap_or(0)
    }

    /// The largest.
    #[must_use]
    pub fn max(&self) -> usize {
        self.parts.iter().map(|(_, len)| *len).max().unwrap_or(0)
    }

    /// The mean of all records, in whole bytes.
    #[must_use]
    pub fn mean(&self) -> usize {
        let sum: u64 = self.parts.iter().map(|(share, len)| share * *len as u64).sum();
        sum.div_ceil(WHOLE) as usize
    }

    /// Percent of the records whose values have so many bytes or more.
    #[must_use]
    pub fn percent_from(&self, len: usize) -> u64 {
        self.parts.iter().filter(|part| part.1 >= len).map(|(share, _)| share).sum()
    }

    /// Bytes of the values of records 0 to `records`, the last not included.
    #[must_use]
    pub fn sum(&self, records: u64) -> u64 {
        match &self.parts[..] {
            [(_, len)] => records * *len as u64,
            _ => (0..records).map(|record| self.of(record) as u64).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_its_share_of_the_records() {
        let sizes = Sizes::mixed(&[(60, 10), (20, 125), (0, 500), (20, 1205)]);
        let count = |len| (0..100_000).filter(|record| sizes.of(*record) == len).count();
        for (len, expected) in [(10, 60_000), (125, 20_000), (500, 0), (1205, 20_000)] {
            let found = count(len);
            assert!(found.abs_diff(expected) <= 500, "{len} bytes: {found} of {expected}");
        }
        assert_eq!((sizes.min(), sizes.max(), sizes.mean()), (10, 1205, 272));
        assert_eq!([11, 125, 1206].map(|len| sizes.percent_from(len)), [40, 40, 0]);
        let sum = sizes.sum(100_000) as f64 / 100_000.0;
        assert!((sum - 272.0).abs() < 3.0, "{sum}");
    }

    #[test]
    fn one_size_is_that_of_all() {
        let sizes = Sizes::one(1000);
        assert!((0..1000).all(|record| sizes.of(record) == 1000));
        assert_eq!(
            (sizes.min(), sizes.max(), sizes.mean(), sizes.sum(7)),
            (1000, 1000, 1000, 7000)
        );
    }
}
