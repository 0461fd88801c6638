//! Fragments against their definition, key by key, and where they may be cut.

use super::*;
use crate::file::{lower_bound_of, upper_bound_of};
use alloc::borrow::ToOwned;
use gabion_base::codec::Reader;
use gabion_base::units::EDIT_KEY_BOUND_LEN_MAX;
use proptest::prelude::*;

const NEWEST: SequenceNumber = SequenceNumber(u64::MAX);

fn key_of(n: u8) -> Vec<u8> {
    // Some are the next key after another.
    if n.is_multiple_of(3) { alloc::vec![1, n / 3] } else { alloc::vec![1, n / 3, n % 3 - 1] }
}

fn range(from: u8, to: u8, sequence: u64) -> RangeDelete {
    let (from, to) = (from.min(to), from.max(to) + u8::from(from == to));
    RangeDelete {
        start: key_of(from).into(),
        end: key_of(to).into(),
        sequence: SequenceNumber(sequence),
    }
}

/// By the definition.
fn newest(ranges: &[RangeDelete], key: &[u8], at: SequenceNumber) -> Option<SequenceNumber> {
    let covers = |range: &&RangeDelete| *range.start <= *key && *key < *range.end;
    let seen = ranges.iter().filter(covers).map(|range| range.sequence);
    seen.filter(|sequence| *sequence <= at).max()
}

fn ranges(ends: &[(u8, u8)]) -> Vec<RangeDelete> {
    ends.iter().zip(1..).map(|(&(from, to), n)| range(from, to, n)).collect()
}

fn ends() -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec((0..60u8, 0..60u8), 0..24)
}

proptest! {
    /// docs/faults.md: P16
    #[test]
    fn each_key_is_covered_by_what_covers_it_and_stretches_are_of_one_answer(ends in ends()) {
        let ranges = ranges(&ends);
        let fragments = Fragments::of(&ranges);
        let mut table = TableRanges::default();
        for some in ranges.chunks(3) {
            let before = table.clone();
            table = table.with(some.to_vec());
            prop_assert_eq!(before.len() + some.len(), table.len(), "what was there stays as it was");
        }
        for at in [0, 1, 5, 12, 30].map(SequenceNumber) {
            for n in 0..64 {
                let key = key_of(n);
                let expected = newest(&ranges, &key, at);
                prop_assert_eq!(fragments.newest(&key, at), expected);
                prop_assert_eq!(table.newest(&key, at), expected);
                for stretch in [fragments.stretch(&key, at), table.stretch(&key, at)] {
                    prop_assert!(stretch.holds(&key));
                    prop_assert_eq!(stretch.newest, expected);
                    for other in (0..64).map(key_of).filter(|key| stretch.holds(key)) {
                        prop_assert_eq!(newest(&ranges, &other, at), expected);
                    }
                }
            }
        }
        let described = fragments.described();
        prop_assert_eq!(described.is_none(), ranges.is_empty());
        prop_assert!(described.is_none_or(|all| all.first_sequence >= SequenceNumber(1)));
    }

    /// docs/faults.md: P16
    #[test]
    fn of_those_that_cover_a_key_the_newest_is_kept_and_hides_what_all_of_them_hide(
        ends in ends(),
        parts in 1..4usize,
    ) {
        let ranges = ranges(&ends);
        // As files of several levels would hold them.
        let files: Vec<_> = (0..parts).map(|part| {
            let some: Vec<_> = ranges.iter().skip(part).step_by(parts).cloned().collect();
            Fragments::of(&some)
        }).collect();
        let merged = Fragments::merged(files.iter().flat_map(Fragments::as_slice));
        for n in 0..64 {
            let key = key_of(n);
            prop_assert_eq!(merged.newest(&key, NEWEST), newest(&ranges, &key, NEWEST));
        }
        for pair in merged.as_slice().windows(2) {
            prop_assert!(pair[0].end <= pair[1].start);
            let says_more = pair[0].end < pair[1].start || pair[0].sequences != pair[1].sequences;
            prop_assert!(says_more, "neighbours that say the same are one");
        }
        for fragment in merged.as_slice() {
            prop_assert_eq!(fragment.sequences.len(), 1);
        }
        let mut inputs = RangeDeletes::default();
        for file in files.iter().filter_map(Fragments::described) {
            inputs.fragments += file.fragments;
            inputs.key_bytes += file.key_bytes;
        }
        let stored: usize = merged.as_slice().iter().map(Fragment::stored_len).sum();
        prop_assert!(stored as u64 <= inputs.output_len_max());
    }

    #[test]
    fn fragments_survive_encoding_and_take_what_was_reckoned(ends in ends()) {
        let fragments = Fragments::of(&ranges(&ends));
        let mut bytes = Vec::new();
        fragments.encode(&mut bytes);
        let reckoned: usize = fragments.as_slice().iter().map(Fragment::stored_len).sum();
        prop_assert!(bytes.len() <= reckoned);
        if !ends.is_empty() {
            let mut reader = Reader::new(&bytes, "test");
            prop_assert_eq!(Fragments::decode(&mut reader).unwrap(), fragments);
        }
    }

    /// docs/faults.md: P16
    #[test]
    fn no_bytes_panic_and_what_is_read_is_written_the_same(
        bytes: Vec<u8>,
        ends in ends(),
        flip in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let _ = Fragments::decode(&mut Reader::new(&bytes, "test"));
        let mut written = Vec::new();
        Fragments::of(&ranges(&ends)).encode(&mut written);
        if !written.is_empty() {
            let at = flip.index(written.len());
            written[at] ^= 1 << bit;
            if let Ok(read) = Fragments::decode(&mut Reader::new(&written, "test")) {
                let mut again = Vec::new();
                read.encode(&mut again);
                prop_assert_eq!(again, written);
            }
        }
    }

    /// docs/faults.md: P16
    #[test]
    fn a_cut_lies_between_two_keys_and_both_sides_have_bounds_that_do_not_touch(
        common in 0..300usize,
        last in prop::collection::vec(prop_oneof![Just(0u8), Just(0xff), 0..4u8], 0..12),
        next in prop::collection::vec(prop_oneof![Just(0u8), Just(0xff), 0..4u8], 0..12),
    ) {
        let full = |tail: &[u8]| [&[1u8][..], &alloc::vec![7; common], tail].concat();
        let (last, next) = (full(&last), full(&next));
        prop_assume!(last < next);
        match cut_before(&last, &next) {
            Some(cut) => {
                prop_assert!(last < cut && cut <= next);
                prop_assert_eq!(cut.last(), Some(&0));
                prop_assert!(cut.len() <= EDIT_KEY_BOUND_LEN_MAX);
                let before = last_before(&cut);
                prop_assert!(upper_bound_of(before) == before && *upper_bound_of(&last) <= *before);
                prop_assert!(lower_bound_of(&next) >= cut);
            }
            None => prop_assert!(last.len() >= EDIT_KEY_BOUND_LEN_MAX, "short keys can be cut"),
        }
    }
}

#[test]
fn what_is_no_range_is_refused_and_says_why() {
    let why = |start: &[u8], end: &[u8]| check_range(start, end).unwrap_err().message().to_owned();
    assert!(check_range(b"\x01", b"\x02").is_ok());
    assert!(check_range(b"\x00a", b"\x01").is_ok());
    assert_eq!(why(b"", b"\x01"), "range delete: it begins in no keyspace");
    assert_eq!(why(b"\x02", b"\x03"), "range delete: it begins in no keyspace");
    assert_eq!(why(b"\x01k", b"\x01k"), "range delete: its end is not after its start");
    assert_eq!(why(b"\x00k", b"\x01a"), "range delete: it leaves its keyspace");
    let long = alloc::vec![1; ENGINE_KEY_LEN_MAX + 1];
    let expected = "range delete: from a key of 1 bytes to one of 65538, the limit is 65537";
    assert_eq!(why(b"\x01", &long), expected);
}

/// docs/faults.md: P16
#[test]
fn what_ends_within_a_bound_covers_no_key_behind_it() {
    let long = |tail: &[u8]| [&alloc::vec![1; ENGINE_KEY_LEN_MAX - tail.len()][..], tail].concat();
    assert_eq!(next_key(b"\x01k"), Some(b"\x01k\0".to_vec()));
    assert_eq!(next_key(&long(&[7])), Some(long(&[8])));
    assert_eq!(next_key(&long(&[7, 0xff])), Some(long(&[8, 0])[..ENGINE_KEY_LEN_MAX - 1].to_vec()));
    assert_eq!(next_key(&alloc::vec![0xff; ENGINE_KEY_LEN_MAX]), None, "on a wire there may be");
    for bound in [b"\x01k".to_vec(), long(&[7]), long(&[7, 0xff])] {
        let next = next_key(&bound).unwrap();
        assert!(ends_within(&bound, &bound) && ends_within(&next, &bound), "{}", bound.len());
        let behind = next_key(&next).unwrap();
        assert!(!ends_within(&behind, &bound), "{}", bound.len());
    }
    assert!(!ends_within(b"\x01l", b"\x01k"));
    assert!(!ends_within(&[0xff; 3], &[0xfe; ENGINE_KEY_LEN_MAX]));
}

/// docs/faults.md: P16
#[test]
fn range_deletes_within_each_other_stay_within_a_few_megabytes() {
    let count = MEMTABLE_RANGES_MAX as u64;
    let key = |n: u64| -> Arc<[u8]> { [&[1][..], &n.to_be_bytes()].concat().into() };
    let mut table = TableRanges::default();
    for n in 0..count {
        let (start, end) = (key(n), key(4 * count - n));
        table =
            table.with(alloc::vec![RangeDelete { start, end, sequence: SequenceNumber(n + 1) }]);
    }
    assert_eq!(table.newest(&key(2 * count), NEWEST), Some(SequenceNumber(count)));
    assert_eq!(table.newest(&key(2 * count), SequenceNumber(9)), Some(SequenceNumber(9)));
    assert_eq!(table.newest(&key(5), NEWEST), Some(SequenceNumber(6)));
    let ranges: Vec<_> = table.iter().cloned().collect();
    assert_eq!(ranges.len(), MEMTABLE_RANGES_MAX);
    let numbers = Fragments::of(&ranges).described().unwrap().sequences;
    assert!(numbers <= count * count, "{numbers}");
}
