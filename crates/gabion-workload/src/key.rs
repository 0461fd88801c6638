//! The keys of records, and orders in which to go through records.
//!
//! ```text
//!  0 u64 number, big-endian         8 eight digits `0`
//! ```
//!
//! A key has 16 bytes and is made as in `db_bench` (`GenerateKeyFromInt`): a number, high byte
//! first, filled up with `0`, so that figures can be compared with published ones. The number is
//! the record's own, or, as YCSB wants it, a hash of it.

use crate::random::{Random, mix, unmix};

/// Bytes of a key.
pub const KEY_LEN: usize = 16;
/// A key.
pub type Key = [u8; KEY_LEN];

const FILL: [u8; 8] = *b"00000000";

/// The way from a record's number to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySpace {
    /// Successive records have successive keys.
    Ordered,
    /// Neighbours in time are strangers in the key space (YCSB's `insertorder=hashed`). No two
    /// records have the same key, as the hash can be undone.
    Hashed,
}

impl KeySpace {
    /// The key of a record.
    #[must_use]
    #[inline]
    pub fn key(self, record: u64) -> Key {
        let number = match self {
            Self::Ordered => record,
            Self::Hashed => mix(record),
        };
        let mut key = [0; KEY_LEN];
        key[..8].copy_from_slice(&number.to_be_bytes());
        key[8..].copy_from_slice(&FILL);
        key
    }

    /// The record of a key; `None` for bytes that are no record's key.
    #[must_use]
    #[inline]
    pub fn record(self, key: &[u8]) -> Option<u64> {
        let number = key.strip_suffix(&FILL)?.try_into().ok().map(u64::from_be_bytes)?;
        match self {
            Self::Ordered => Some(number),
            Self::Hashed => Some(unmix(number)),
        }
    }

    /// A key that no record has, directly behind that of `record`. It is inside the bounds of the
    /// same file, so that only a filter or the block itself can tell that it is absent.
    #[must_use]
    pub fn missing(self, record: u64) -> Key {
        let mut key = self.key(record);
        key[KEY_LEN - 1] = b'x';
        key
    }
}

/// Every number below `count` once, in an order that looks random and follows from a seed, without
/// memory: four rounds of a Feistel network over the next power of four, walked until the number is
/// below `count` (Black and Rogaway, CT-RSA 2002).
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    count: u64,
    half_bits: u32,
    rounds: [u64; 4],
}

impl Permutation {
    /// An order of the numbers below `count`.
    #[must_use]
    pub fn new(count: u64, seed: u64) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        let mut random = Random::new(seed);
        let rounds = [random.next(), random.next(), random.next(), random.next()];
        Self { count, half_bits: bits.div_ceil(2).max(1), rounds }
    }

    /// The number at a place, which is below `count`.
    #[must_use]
    #[inline]
    pub fn at(&self, place: u64) -> u64 {
        assert!(place < self.count, "place {place} of {}", self.count);
        let mut number = place;
        loop {
            number = self.round_trip(number);
            if number < self.count {
                return number;
            }
        }
    }

    fn round_trip(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for round in self.rounds {
            (left, right) = (right, left ^ (mix(right ^ round) & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_records_or_scattered() {
        let keys = |space: KeySpace| (0..10_000).map(|r| space.key(r)).collect::<Vec<_>>();
        assert!(keys(KeySpace::Ordered).is_sorted());
        let hashed = keys(KeySpace::Hashed);
        let ascents = hashed.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((4_500..5_500).contains(&ascents), "{ascents}");
    }

    #[test]
    fn a_key_names_its_record_and_a_missing_one_none() {
        for space in [KeySpace::Ordered, KeySpace::Hashed] {
            for record in [0, 1, 255, 256, 1 << 40] {
                let key = space.key(record);
                assert_eq!(space.record(&key), Some(record));
                let missing = space.missing(record);
                assert_eq!(space.record(&missing), None);
                assert!(key < missing);
            }
            assert_eq!(space.record(b"short"), None);
            assert_eq!(space.record(b"0000000000000000000"), None);
        }
        assert!(KeySpace::Ordered.missing(4) < KeySpace::Ordered.key(5));
    }

    #[test]
    fn a_permutation_has_every_number_once_in_no_order() {
        for count in [1, 2, 3, 4, 5, 1000, 1024, 1025] {
            let order = Permutation::new(count, 7);
            let mut numbers: Vec<u64> = (0..count).map(|place| order.at(place)).collect();
            let ascents = numbers.windows(2).filter(|pair| pair[0] < pair[1]).count() as u64;
            if count >= 1000 {
                assert!((count * 45 / 100..count * 55 / 100).contains(&ascents), "{ascents}");
            }
            numbers.sort_unstable();
            assert_eq!(numbers, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn seeds_give_other_orders() {
        let first = |seed| (0..8).map(|i| Permutation::new(1000, seed).at(i)).collect::<Vec<_>>();
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
    }
}
