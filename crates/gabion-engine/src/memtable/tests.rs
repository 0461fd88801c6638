//! MemTables against a sorted map, and readers beside a writer.

use super::*;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use proptest::prelude::*;
use std::thread;

type Model = BTreeMap<(Vec<u8>, Reverse<u64>), (EntryKind, Vec<u8>)>;

fn seq(n: u64) -> SequenceNumber {
    SequenceNumber(n)
}

/// What a reader at `at` finds for `key`, by the definition.
fn model_get(model: &Model, key: &[u8], at: u64) -> Option<(EntryKind, u64, Vec<u8>)> {
    let newest = model.range((key.to_vec(), Reverse(at))..).next();
    newest
        .filter(|((k, _), _)| k == key)
        .map(|((_, Reverse(s)), (kind, value))| (*kind, *s, value.clone()))
}

fn build(prefix: &[u8], operations: &[(u8, u8, Vec<u8>)]) -> (MemTable, Model) {
    let table = MemTable::with_prefix(MemTableId(7), prefix);
    let mut model = Model::new();
    for (i, (kind, key, value)) in operations.iter().enumerate() {
        let sequence = 10 + i as u64;
        let keyspace = kind >> 7;
        let (kind, key, value) = match kind % 16 {
            0 => (EntryKind::Delete, vec![keyspace], Vec::new()),
            1..=4 => (EntryKind::Delete, vec![keyspace, *key % 8], Vec::new()),
            5 => (EntryKind::Put, vec![keyspace], value.clone()),
            // Longer than what a rank holds, and equal as far as it goes.
            6 => (EntryKind::Put, [&[keyspace, 3][..], &[0; 9], &[*key % 4]].concat(), vec![]),
            _ => (EntryKind::Put, vec![keyspace, *key % 8], value.clone()),
        };
        table.insert(&key, seq(sequence), kind, &value);
        model.insert((key, Reverse(sequence)), (kind, value));
    }
    (table, model)
}

proptest! {
    /// docs/faults.md: P2
    #[test]
    fn a_memtable_answers_like_a_sorted_map(
        operations in prop::collection::vec(any::<(u8, u8, Vec<u8>)>(), 0..200),
        prefix in prop::collection::vec(0..6u8, 0..4),
    ) {
        let (table, model) = build(&prefix, &operations);
        prop_assert_eq!(table.len(), model.len());
        let charge: usize =
            model.iter().map(|((k, _), (_, v))| k.len() + v.len() + ENTRY_OVERHEAD).sum();
        prop_assert_eq!(table.memory_used(), charge);

        let mut iter = table.iter();
        prop_assert!(iter.entry().is_none());
        iter.seek_to_first();
        for ((key, Reverse(sequence)), (kind, value)) in &model {
            let entry = iter.entry().unwrap();
            prop_assert_eq!(entry.key, &key[..]);
            prop_assert_eq!(entry.trailer, Trailer::new(seq(*sequence), *kind));
            prop_assert_eq!(entry.value, &value[..]);
            iter.advance();
        }
        prop_assert!(iter.entry().is_none());
        iter.seek_to_last();
        for ((key, Reverse(sequence)), _) in model.iter().rev() {
            let entry = iter.entry().unwrap();
            prop_assert_eq!((entry.key, entry.trailer.sequence()), (&key[..], seq(*sequence)));
            iter.retreat();
        }
        prop_assert!(iter.entry().is_none());
        iter.retreat();
        prop_assert!(iter.entry().is_none());
        for (from, to) in [(vec![0, 2], Some(vec![0, 5])), (vec![0, 3], None), (vec![1, 5], Some(vec![1]))] {
            let within = |key: &[u8]| *key >= *from && to.as_ref().is_none_or(|to| *key < **to);
            let entries = model.iter().filter(|((key, _), _)| within(key));
            let charges = entries.map(|((k, _), (_, v))| (k.len() + v.len() + ENTRY_OVERHEAD) as u64);
            let (count, bytes) = charges.fold((0, 0), |(n, sum), len| (n + 1, sum + len));
            prop_assert_eq!(table.estimate(&from, to.as_deref()), (count, bytes), "few are counted");
        }

        for keyspace in 0..2u8 {
            let long = [&[keyspace, 3][..], &[0; 9], &[2]].concat();
            let keys = [vec![keyspace], long].into_iter();
            for key in keys.chain((0..8).map(|k| vec![keyspace, k])) {
                for at in (0..operations.len() as u64 + 12).step_by(3) {
                    let found = table.get(&key, seq(at)).map(|(k, s, v)| (k, s.0, v.to_vec()));
                    prop_assert_eq!(found, model_get(&model, &key, at), "{:?} at {}", key, at);
                    iter.seek_before(&key);
                    let before = model.range(..(key.clone(), Reverse(u64::MAX))).next_back();
                    prop_assert_eq!(
                        iter.entry().map(|e| (e.key.to_vec(), e.trailer.sequence().0)),
                        before.map(|((k, Reverse(s)), _)| (k.clone(), *s))
                    );
                    iter.seek(&key, seq(at));
                    let expected = model.range((key.clone(), Reverse(at))..).next();
                    prop_assert_eq!(
                        iter.entry().map(|e| (e.key.to_vec(), e.trailer.sequence().0)),
                        expected.map(|((k, Reverse(s)), _)| (k.clone(), *s))
                    );
                }
            }
        }
    }
}

#[test]
fn the_next_table_is_made_for_what_most_keys_begin_with() {
    let table = MemTable::new(MemTableId(1));
    assert_eq!(table.successor().list.common_prefix(), b"");
    let mut sequence = 0;
    let mut insert = |key: &[u8]| {
        sequence += 1;
        table.insert(key, seq(sequence), EntryKind::Put, b"v");
    };
    insert(b"\x01user7");
    assert_eq!(table.list.common_prefix(), b"\x01user7");
    (0..500u64).for_each(|n| insert(format!("\x01user{n}").as_bytes()));
    assert_eq!(table.list.common_prefix(), b"\x01user");
    // A few others, and a bare keyspace, do not count.
    insert(b"\x01counter");
    insert(b"\x01z");
    insert(b"\x01");
    assert_eq!(table.list.common_prefix(), b"\x01user");
    assert_eq!(table.successor().id(), MemTableId(2));
}

#[test]
fn an_empty_table_has_nothing_and_the_first_and_last_sequence_numbers_are_kept() {
    let table = MemTable::new(MemTableId(1));
    assert!(table.is_empty());
    assert_eq!((table.smallest_sequence(), table.largest_sequence()), (None, None));
    assert_eq!(table.get(b"\x01k", SequenceNumber::MAX), None);
    table.insert(b"\x01k", seq(5), EntryKind::Put, b"v");
    table.insert(b"\x01a", seq(6), EntryKind::Put, b"");
    assert_eq!((table.smallest_sequence(), table.largest_sequence()), (Some(seq(5)), Some(seq(6))));
    assert_eq!(table.get(b"\x01k", seq(5)), Some((EntryKind::Put, seq(5), &b"v"[..])));
    assert_eq!(table.get(b"\x01k", seq(4)), None);
}

#[test]
fn the_largest_keys_and_values_fit() {
    let table = MemTable::new(MemTableId(1));
    let key = vec![1; crate::entry::ENGINE_KEY_LEN_MAX];
    let value = vec![9; gabion_base::units::VALUE_LEN_MAX];
    table.insert(&key, seq(1), EntryKind::Put, &value);
    table.insert(b"\x01", seq(2), EntryKind::Put, b"small");
    assert_eq!(table.get(&key, seq(9)).unwrap().2, &value[..]);
    assert_eq!(table.get(b"\x01", seq(9)).unwrap().2, b"small");
    assert!(table.allocated() < key.len() + value.len() + 2 * 1024 * 1024);
}

#[test]
#[should_panic(expected = "one writer at a time")]
fn a_second_writer_is_refused() {
    let table = MemTable::new(MemTableId(1));
    let _first = table.writer();
    let _second = table.writer();
}

#[test]
#[should_panic(expected = "range deletes and clears are no entries")]
fn a_clear_is_no_entry() {
    MemTable::new(MemTableId(1)).insert(b"\x01", seq(1), EntryKind::Clear, b"");
}

/// Entries that come while a cursor stands among others, so many that the leaf under it is split
/// again and again.
#[test]
fn a_cursor_whose_leaf_is_split_meets_each_entry_once_and_in_order() {
    for stop in 0..40u64 {
        let table = MemTable::new(MemTableId(1));
        let key = |n: u64| [&[1][..], &n.to_be_bytes()].concat();
        let mut sequence = 0;
        let mut insert = |n: u64| {
            sequence += 1;
            table.insert(&key(n), seq(sequence), EntryKind::Put, &n.to_le_bytes());
        };
        (0..40).for_each(|n| insert(n * 100));
        let mut iter = table.iter();
        iter.seek(&key(stop * 100), seq(u64::MAX >> 8));
        let mut seen = vec![iter.entry().unwrap().key.to_vec()];
        (0..4000).filter(|n| n % 100 != 0).for_each(&mut insert);
        iter.advance();
        while let Some(entry) = iter.entry() {
            seen.push(entry.key.to_vec());
            iter.advance();
        }
        assert!(seen.is_sorted_by(|a, b| a < b));
        let old = |n: &u64| seen.binary_search(&key(n * 100)).is_ok();
        assert_eq!((0..40).filter(old).collect::<Vec<_>>(), (stop..40).collect::<Vec<_>>());
    }
}

/// Tables of small entries take about what is charged, however the entries come.
#[test]
fn the_charge_for_an_entry_is_what_its_memory_takes() {
    const COUNT: u64 = 100_000;
    let fill = |key_of: &dyn Fn(u64) -> u64| {
        let table = MemTable::new(MemTableId(1));
        for n in 0..COUNT {
            let key = [&[1][..], &key_of(n).to_be_bytes(), &[7; 8]].concat();
            table.insert(&key, seq(n + 1), EntryKind::Put, &[3; 100]);
        }
        let taken = table.allocated();
        taken as f64 / table.memory_used() as f64
    };
    let in_no_order = fill(&|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    assert!((0.9..1.1).contains(&in_no_order), "{in_no_order}");
    let ways: [(&str, &dyn Fn(u64) -> u64); 5] = [
        ("upwards", &|n| n),
        ("downwards", &|n| COUNT - n),
        ("a few upwards, the others downwards", &|n| if n < 15 { n } else { COUNT - n }),
        ("upwards, then each fifteenth again and again", &|n| match n.checked_sub(COUNT / 2) {
            None => n,
            Some(n) => n / 20 * 15,
        }),
        ("upwards in many places by turns", &|n| n % 100 * COUNT + n / 100),
    ];
    for (way, key_of) in ways {
        let share = fill(key_of);
        assert!(share < 1.2, "{way}: {share}");
    }
}

#[test]
fn a_cursor_outlives_the_table_that_it_came_from() {
    let table = MemTable::new(MemTableId(1));
    table.insert(b"\x01k", seq(1), EntryKind::Put, b"v");
    let mut iter = table.iter();
    drop(table);
    iter.seek_to_first();
    assert_eq!(iter.entry().unwrap().value, b"v");
}

/// The value that entry `n` has: readers can tell a torn or foreign one.
fn value_of(n: u64) -> Vec<u8> {
    let len = 8 + (n % 50) as usize;
    n.to_le_bytes().iter().copied().cycle().take(len).collect()
}

fn key_of(n: u64) -> Vec<u8> {
    let mut key = vec![1];
    key.extend((n.wrapping_mul(0x9e37_79b9) % 997).to_be_bytes());
    key
}

/// docs/faults.md: P2
#[expect(
    clippy::disallowed_methods,
    reason = "the table is read by other threads than its writer's"
)]
#[test]
fn readers_on_other_threads_see_every_entry_that_was_published_to_them() {
    let count = 20_000u64;
    // Ranks tell most of these keys apart, and some not.
    let table = Arc::new(MemTable::with_prefix(MemTableId(3), b"\x01\0\0\0"));
    let published = Arc::new(AtomicU64::new(0));
    let reader = |step: u64| {
        let (table, published) = (table.clone(), published.clone());
        thread::spawn(move || {
            let mut rounds = 0u64;
            loop {
                let at = published.load(Ordering::Acquire);
                let n = (rounds * step) % (at + 1);
                if n > 0 {
                    let (kind, sequence, value) = table.get(&key_of(n), seq(n)).unwrap();
                    assert_eq!((kind, sequence, value), (EntryKind::Put, seq(n), &value_of(n)[..]));
                }
                if rounds.is_multiple_of(512) {
                    check_order(&table, at);
                }
                rounds += 1;
                if at == count && rounds > 2_000 {
                    return;
                }
            }
        })
    };
    let readers = [reader(7_919), reader(104_729)];
    let mut writer = table.writer();
    for n in 1..=count {
        writer.insert(&key_of(n), seq(n), EntryKind::Put, &value_of(n));
        published.store(n, Ordering::Release);
    }
    drop(writer);
    for reader in readers {
        reader.join().unwrap();
    }
}

/// Everything up to `at` is there once and in order; newer entries may be.
fn check_order(table: &MemTable, at: u64) {
    let mut iter = table.iter();
    iter.seek_to_first();
    let mut seen = 0;
    let mut last: Option<(Vec<u8>, Trailer)> = None;
    while let Some(entry) = iter.entry() {
        if let Some((key, trailer)) = &last {
            let order = compare(key, *trailer, entry.key, entry.trailer);
            assert_eq!(order, core::cmp::Ordering::Less);
        }
        let n = entry.trailer.sequence().0;
        assert_eq!(entry.value, value_of(n));
        seen += u64::from(n <= at);
        last = Some((entry.key.to_vec(), entry.trailer));
        iter.advance();
    }
    assert_eq!(seen, at);
    check_order_backwards(table, at);
}

/// The same from the end: what is inserted meanwhile hides nothing.
fn check_order_backwards(table: &MemTable, at: u64) {
    let mut iter = table.iter();
    iter.seek_to_last();
    let mut seen = 0;
    let mut last: Option<(Vec<u8>, Trailer)> = None;
    while let Some(entry) = iter.entry() {
        if let Some((key, trailer)) = &last {
            let order = compare(key, *trailer, entry.key, entry.trailer);
            assert_eq!(order, core::cmp::Ordering::Greater);
        }
        let n = entry.trailer.sequence().0;
        assert_eq!(entry.value, value_of(n));
        seen += u64::from(n <= at);
        last = Some((entry.key.to_vec(), entry.trailer));
        iter.retreat();
    }
    assert_eq!(seen, at);
}

/// docs/faults.md: P6
#[test]
fn an_estimate_of_many_entries_is_near_their_number_and_bytes() {
    let table = MemTable::new(MemTableId(1));
    let key = |n: u64| [&[1][..], &n.to_be_bytes()].concat();
    // A multiplier that is odd meets every number once.
    for n in 0..1u64 << 16 {
        let n = n.wrapping_mul(0x9e37_79b9) & 0xffff;
        table.insert(&key(n), seq(n + 1), EntryKind::Put, &value_of(n));
    }
    for (from, to) in [(0, 1 << 16), (1_000, 3_000), (40_000, 65_000), (7, 20_007)] {
        let exact: u64 = (from..to).map(|n| (9 + value_of(n).len() + ENTRY_OVERHEAD) as u64).sum();
        let (count, bytes) = table.estimate(&key(from), Some(&key(to)));
        // Four standard errors.
        assert!(count.abs_diff(to - from) <= (to - from) / 4, "{from}..{to}: {count}");
        assert!(bytes.abs_diff(exact) <= exact * 3 / 10, "{from}..{to}: {bytes} of {exact}");
    }
    let all = table.estimate(&[], None);
    assert_eq!(all, table.estimate(&key(0), Some(&[2])));
    assert_eq!(table.estimate(&key(50), Some(&key(50))), (0, 0));
    assert_eq!(table.estimate(&key(50), Some(&key(40))), (0, 0));
}
