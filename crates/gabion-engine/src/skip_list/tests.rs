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
