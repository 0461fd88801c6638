//! What a reader may see of an insert (FAULTS.md E12): every order of the steps of two threads, with every
//! value that the memory model lets each load return. `cargo xtask interleavings` runs these; in other builds
//! they are not there.

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

/// What a thread does that reads: whether it sees the new entry.
type Read = fn(&Arc<SkipList>, &Entries) -> bool;

/// The entries before, which have even numbers, and the new one.
struct Entries {
    before: Vec<u64>,
    new: u64,
}

impl Entries {
    fn walked(&self, seen: &[u64]) -> bool {
        let mut with = self.before.clone();
        with.insert(with.partition_point(|n| *n < self.new), self.new);
        assert!(seen == with || seen == self.before, "{seen:?}");
        seen == with
    }
}

const READS: [Read; 3] = [
    |list, entries| entries.walked(&forwards(list)),
    |list, entries| entries.walked(&backwards(list)),
    |list, entries| {
        let next = |n| list.seek(&key(n), trailer()).map(number);
        let found = next(entries.new) == Some(entries.new);
        let neighbours = entries.before.iter().filter(|n| n.abs_diff(entries.new) == 1);
        neighbours.for_each(|n| assert_eq!(next(*n), Some(*n), "what was there stays there"));
        found
    },
];

/// A list with so many entries and towers as high as a seed makes them; one thread inserts `new` and then says
/// so, as a store does that shows the number of a write; another reads, one way or the other.
fn explore(before: usize, new: u64) {
    for (seed, read) in (1..=2).flat_map(|seed| READS.map(|read| (seed, read))) {
        let mut model = loom::model::Builder::new();
        model.max_branches = 100_000;
        model.check(move || {
            let entries = Entries { before: (0..before as u64).map(|n| 2 * n).collect(), new };
            let list = Arc::new(SkipList::new(seed, &[]));
            let said = Arc::new(AtomicU64::new(0));
            entries.before.iter().for_each(|n| insert(&list, *n));
            let writer = {
                let (list, said) = (list.clone(), said.clone());
                thread::spawn(move || {
                    insert(&list, new);
                    said.store(1, Ordering::Release);
                })
            };
            let must_be_there = said.load(Ordering::Acquire) == 1;
            let is_there = read(&list, &entries);
            assert!(is_there || !must_be_there, "what a reader was told of is there");
            writer.join().expect("the writer does not panic");
            assert!(read(&list, &entries), "it is there in the end");
        });
    }
}

#[test]
fn a_first_entry_is_there_whole_or_not_at_all() {
    explore(0, 1);
}

#[test]
fn an_entry_between_others_is_there_whole_or_not_at_all() {
    explore(2, 1);
}

#[test]
fn a_leaf_is_split_under_a_reader_and_nothing_is_missed_or_seen_twice() {
    explore(LEAF_LEN, LEAF_LEN as u64);
}

#[test]
fn a_leaf_is_put_behind_a_full_one_under_a_reader() {
    explore(LEAF_LEN, 2 * LEAF_LEN as u64 + 1);
}
