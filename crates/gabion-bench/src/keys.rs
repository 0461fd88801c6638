//! The keys of the clusters' records, as in YCSB, so that figures can be compared with others'.
//!
//! Record `n` (0, 1, 2 … in the order of insertion) has the key `user` and 19 digits: the 64-bit
//! FNV hash of `n`, without its sign. Neighbours in time are therefore strangers in the key space.

use gabion_workload::fnv_hash;

/// Bytes of a key.
pub(crate) const KEY_LEN: usize = 23;

/// The key of a record.
#[inline]
pub(crate) fn key(record: u64) -> [u8; KEY_LEN] {
    let mut key = *b"user0000000000000000000";
    let mut rest = fnv_hash(record);
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// The group, of so many, that holds a record: by the number in its key.
#[inline]
pub(crate) fn group_of(record: u64, groups: usize) -> usize {
    (fnv_hash(record) % groups as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_are_those_of_ycsb() {
        // From YCSB's Utils.fnvhash64.
        assert_eq!(&key(0), b"user6284781860667377211");
        assert_eq!(&key(1), b"user8517097267634966620");
    }

    #[test]
    fn groups_have_as_many_records_as_each_other() {
        for groups in 1..=8 {
            let mut counts = vec![0; groups];
            (0..100_000).for_each(|record| counts[group_of(record, groups)] += 1);
            let even = 100_000 / groups;
            assert!(counts.iter().all(|count| even.abs_diff(*count) < even / 50), "{counts:?}");
        }
        // The key's last digit is that of its number.
        assert_eq!([0, 1].map(|record| group_of(record, 2)), [1, 0]);
    }

    #[test]
    fn records_have_keys_of_their_own_in_no_order() {
        let keys: Vec<_> = (0..100_000).map(key).collect();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
        let ascents = keys.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((40_000..60_000).contains(&ascents), "{ascents}");
    }
}
