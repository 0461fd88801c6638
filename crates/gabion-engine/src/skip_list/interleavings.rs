//! A reader's view of an insert (docs/faults.md E12): every order of the steps of two threads, with
//! every value that the memory model lets each load return. `cargo xtask interleavings` runs these;
//! in other builds they are not there.

use super::*;
use crate::entry::EntryKind;
use alloc::vec::Vec;
use gabion_base::SequenceNumber;
use loom::thread;

fn trailer() -> Trailer {
    Trailer::new(SequenceNumber(1), EntryKind::Put)
}

fn key(n: u64) -> [u8; 9] {
    let mut key = [1; 9];
    key[1..].copy_from_slice(&n.to_be_bytes());
    key
}

fn number(entry: Entry<'_>) -> u64 {
    let number = u64::from_be_bytes(entry.key[1..].try_into().expect("keys are 9 bytes long"));
    assert_eq!(entry.value, &entry.key[1..], "an entry is seen whole");
    number
}

fn insert(list: &SkipList, n: u64) {
    list.writer().insert(&key(n), trailer(), &n.to_be_bytes());
}

fn forwards(list: &Arc<SkipList>) -> Vec<u64> {
    let (mut cursor, mut seen) = (Cursor::new(list.clone()), Vec::new());
    cursor.seek_to_first();
    while let Some(entry) = cursor.entry() {
        seen.push(number(entry));
        cursor.advance();
    }
    seen
}

fn backwards(list: &Arc<SkipList>) -> Vec<u64> {
    let (mut cursor, mut seen) = (Cursor::new(list.clone()), Vec::new());
    cursor.seek_to_last();
    while let Some(entry) = cursor.entry() {
        seen.push(number(entry));
        cursor.retreat();
    }
    seen.reverse();
    seen
}

/// What a thread does that reads: which of the entries that are looked for it sees.
type Read = fn(&Arc<SkipList>, &Entries) -> Vec<u64>;

/// The entries before, which have even numbers, and new ones, which have odd ones, in the order of their arrival.
struct Entries {
    before: Vec<u64>,
    new: Vec<u64>,
}

impl Entries {
    /// What was there before is seen once and in order, and of what is new nothing that is not.
    fn walked(&self, seen: Vec<u64>) -> Vec<u64> {
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
        assert!(self.before.iter().all(|n| seen.contains(n)), "{seen:?}");
        assert!(seen.iter().all(|n| self.before.contains(n) || self.new.contains(n)), "{seen:?}");
        seen
    }
}

const READS: [Read; 3] = [
    |list, entries| entries.walked(forwards(list)),
    |list, entries| entries.walked(backwards(list)),
    |list, entries| {
        let next = |n| list.seek(&key(n), trailer()).map(number);
        let is_near = |n: &&u64| entries.new.iter().any(|new| new.abs_diff(**n) == 1);
        for n in entries.before.iter().filter(is_near) {
            assert_eq!(next(*n), Some(*n), "what was there stays there");
        }
        entries.new.iter().copied().filter(|n| next(*n) == Some(*n)).collect()
    },
];

/// A list with so many entries and towers as high as a seed makes them; one thread inserts `new` and says after each that
/// it is there, as a store does that shows the number of a write; another reads, one way or the other. In every order of
/// their steps, or in all those in which a thread is interrupted at most `interruptions` times.
fn explore(before: usize, new: &'static [u64], reads: &[Read], interruptions: Option<usize>) {
    for (seed, &read) in (1..=2).flat_map(|seed| reads.iter().map(move |read| (seed, read))) {
        let mut model = loom::model::Builder::new();
        model.max_branches = 100_000;
        model.preemption_bound = interruptions;
        model.check(move || {
            let before = (0..before as u64).map(|n| 2 * n).collect();
            let entries = Entries { before, new: new.to_vec() };
            let list = Arc::new(SkipList::new(seed, &[]));
            let said = Arc::new(AtomicU64::new(0));
            entries.before.iter().for_each(|n| insert(&list, *n));
            let writer = {
                let (list, said) = (list.clone(), said.clone());
                thread::spawn(move || {
                    for (count, n) in (1..).zip(new) {
                        insert(&list, *n);
                        said.store(count, Ordering::Release);
                    }
                })
            };
            let told = said.load(Ordering::Acquire) as usize;
            let seen = read(&list, &entries);
            let all_there = |new: &[u64], seen: &[u64]| new.iter().all(|n| seen.contains(n));
            assert!(all_there(&new[..told], &seen), "what a reader was told of is there");
            writer.join().expect("the writer does not panic");
            assert!(all_there(new, &read(&list, &entries)), "it is there in the end");
        });
    }
}

const FULL: u64 = LEAF_LEN as u64;

/// docs/faults.md: E12
#[test]
fn a_first_entry_is_there_whole_or_not_at_all() {
    explore(0, &[1], &READS, None);
}

/// docs/faults.md: E12
#[test]
fn an_entry_between_others_is_there_whole_or_not_at_all() {
    explore(2, &[1], &READS, None);
}

/// docs/faults.md: E12
#[test]
fn a_leaf_is_split_under_a_reader_and_nothing_is_missed_or_seen_twice() {
    explore(LEAF_LEN, &[FULL], &READS, Some(5));
}

/// docs/faults.md: E12
#[test]
fn a_leaf_is_put_behind_a_full_one_under_a_reader() {
    explore(LEAF_LEN, &[2 * FULL + 1], &READS, None);
}

/// Reads of the first leaf, from its first entry to its last and the other way round.
const READS_OF_A_LEAF: [Read; 2] = [
    |list, entries| {
        let mut cursor = Cursor::new(list.clone());
        cursor.seek(&key(2), trailer());
        assert_eq!(cursor.entry().map(number), Some(2));
        cursor.advance();
        assert_eq!(cursor.entry().map(number), Some(4));
        entries.new.clone()
    },
    |list, entries| {
        let mut cursor = Cursor::new(list.clone());
        cursor.seek(&key(4), trailer());
        assert_eq!(cursor.entry().map(number), Some(4));
        cursor.retreat();
        assert_eq!(cursor.entry().map(number), Some(2));
        entries.new.clone()
    },
];

/// Of two full leaves the first is split, and goes behind the second: under a reader who may be in it.
/// docs/faults.md: E12
#[test]
fn a_leaf_that_was_split_goes_to_others_under_a_reader() {
    explore(2 * LEAF_LEN, &[1, 4 * FULL - 1], &READS_OF_A_LEAF, Some(4));
}
