//! What readers see in the middle of an insert.

use super::*;
use crate::entry::EntryKind;
use alloc::vec::Vec;
use gabion_base::SequenceNumber;
use proptest::prelude::*;

fn trailer(n: u64) -> Trailer {
    Trailer::new(SequenceNumber(n), EntryKind::Put)
}

fn key(n: u64) -> [u8; 9] {
    let mut key = [1; 9];
    key[1..].copy_from_slice(&n.to_be_bytes());
    key
}

fn keys_of(cursor: &mut Cursor) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    while let Some(entry) = cursor.entry() {
        keys.push(entry.key.to_vec());
        cursor.advance();
    }
    keys
}

#[test]
fn with_the_right_half_linked_and_the_left_leaf_still_whole_each_entry_is_there_once() {
    let list = Arc::new(SkipList::new(1, &[]));
    let count = LEAF_LEN as u64;
    let mut writer = list.writer();
    (0..count).rev().for_each(|n| writer.insert(&key(n), trailer(1), b"v"));
    let all: Vec<Vec<u8>> = (0..count).map(|n| key(n).to_vec()).collect();
    let mut before = Cursor::new(list.clone());
    before.seek_to_first();

    // The first half of what `split` does.
    let mut left: Left = [const { ptr::null() }; HEIGHT_MAX];
    list.find(&list.target(&key(0), trailer(1)), |level, at| left[level] = at);
    let place = list.first_place();
    let sorted: Vec<(u64, *mut Cell)> = (HALF..LEAF_LEN)
        .map(|index| {
            // SAFETY: the place is one of the list.
            let (cell, found) = unsafe {
                let cell = (*place.leaf).cell(place.slots, index);
                (cell.cast_mut(), entry(cell))
            };
            (list.rank(found.key), cell)
        })
        .collect();
    writer.add_tower(&left, &sorted);

    assert_eq!(keys_of(&mut before), all);
    let mut cursor = Cursor::new(list.clone());
    cursor.seek_to_first();
    assert_eq!(keys_of(&mut cursor), all);
    for n in 0..count {
        assert_eq!(list.seek(&key(n), trailer(1)).map(|e| e.key), Some(&key(n)[..]));
        cursor.seek(&key(n), trailer(1));
        assert_eq!(keys_of(&mut cursor), all[n as usize..]);
        cursor.seek_before(&key(n));
        assert_eq!(
            cursor.entry().map(|e| e.key),
            n.checked_sub(1).map(key).as_ref().map(|k| &k[..])
        );
    }
    cursor.seek_to_last();
    let mut back = Vec::new();
    while let Some(entry) = cursor.entry() {
        back.push(entry.key.to_vec());
        cursor.retreat();
    }
    back.reverse();
    assert_eq!(back, all);
}

/// Entries of four leaves, with cursors at each; then each leaf is split and goes to other entries, again and again.
/// docs/faults.md: E12
#[test]
fn a_cursor_whose_leaf_went_to_other_entries_goes_on_from_the_entry_where_it_is() {
    let list = Arc::new(SkipList::new(7, &[]));
    let mut writer = list.writer();
    let old: Vec<u64> = (0..4 * LEAF_LEN as u64).map(|n| 1000 * n).collect();
    old.iter().for_each(|n| writer.insert(&key(*n), trailer(1), b"v"));
    let cursors = old.iter().map(|n| {
        let mut cursor = Cursor::new(list.clone());
        cursor.seek(&key(*n), trailer(1));
        cursor
    });
    let cursors: Vec<Cursor> = cursors.collect();
    let lives = cursors.iter().map(|cursor| cursor.place.life);
    assert!(lives.clone().all(|life| life == 0));
    // Far from most of them, so that their leaves come to lie elsewhere; in the end between all.
    let mut all = old.clone();
    for n in (1..400).flat_map(|n| [n % 1000, 1000 * (n % 60) + n]) {
        if !all.contains(&n) {
            writer.insert(&key(n), trailer(1), b"v");
            all.push(n);
        }
    }
    all.sort_unstable();
    // SAFETY: leaves of places are as old as the list.
    let reused = cursors.iter().filter(|it| unsafe { !(*it.place.leaf).is_in(it.place.life) });
    assert_eq!(reused.count(), cursors.len(), "each leaf has gone to others");
    for (cursor, n) in cursors.iter().zip(&old) {
        assert_eq!(cursor.entry().map(|e| e.key), Some(&key(*n)[..]));
        let at = all.binary_search(n).unwrap();
        let mut forwards = cursor.clone();
        let behind: Vec<_> = all[at..].iter().map(|n| key(*n).to_vec()).collect();
        assert_eq!(keys_of(&mut forwards), behind);
        let mut backwards = cursor.clone();
        for n in all[..at].iter().rev() {
            backwards.retreat();
            assert_eq!(backwards.entry().map(|e| e.key), Some(&key(*n)[..]));
        }
        backwards.retreat();
        assert!(backwards.entry().is_none());
    }
}

proptest! {
    #[test]
    fn slots_are_the_order_in_which_they_were_inserted(at in prop::collection::vec(0..100usize, 0..=LEAF_LEN)) {
        let (mut slots, mut model) = (Slots::NONE, Vec::new());
        for (slot, at) in at.into_iter().enumerate() {
            let index = at % (slot + 1);
            slots = slots.insert(index);
            model.insert(index, slot);
            prop_assert_eq!((0..slots.len()).map(|i| slots.slot(i)).collect::<Vec<_>>(), &model[..]);
        }
    }
}
