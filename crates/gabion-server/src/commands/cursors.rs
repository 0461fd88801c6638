//! The cursors of SCAN. Redis's cursor is a number; the place in an ordered key space is a key. A
//! node remembers the keys of the cursors that it gave out last.
//!
//! A walk holds three of them at most, however long it is: the one that was given out last, the one
//! that it was asked with, which a client repeats when the reply was lost, and the one before.
//!
//! Cursors are spread over 53 bits by a seed of the node: one of another node, or of this one before
//! a restart, is very likely unknown rather than a wrong place, and a client that keeps numbers as
//! doubles does not lose digits.

use bytes::Bytes;
use gabion_base::HashMap;
use std::collections::BTreeMap;

/// Most cursors that a node remembers.
pub const CURSORS_MAX: usize = 4096;
/// Most key bytes that remembered cursors hold.
pub const CURSOR_KEY_BYTES_MAX: usize = 16 << 20;

/// Bits of a cursor.
const CURSOR_MASK: u64 = (1 << 53) - 1;

/// Cursor → the last key that its scan has seen. The least recently used go first.
pub(crate) struct CursorTable {
    state: u64,
    places: HashMap<u64, Place>,
    /// Use → cursor; the smallest use is the oldest.
    uses: BTreeMap<u64, u64>,
    next_use: u64,
    key_bytes: usize,
}

struct Place {
    last_key: Bytes,
    last_use: u64,
    /// The cursor of the walk's step before; 0 at its beginning.
    before: u64,
    /// The cursor of its next step, once it has been made.
    after: u64,
}

impl CursorTable {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            state: seed,
            places: HashMap::default(),
            uses: BTreeMap::new(),
            next_use: 0,
            key_bytes: 0,
        }
    }

    /// A cursor for a scan that has come to `last_key` from the cursor `before` (0: from the
    /// beginning). A step that is repeated gives the same cursor again.
    pub(crate) fn remember(&mut self, last_key: &[u8], before: u64) -> u64 {
        if let Some(cursor) = self.repeated(last_key, before) {
            self.touch(cursor);
            return cursor;
        }
        let cursor = loop {
            let cursor = self.next_number();
            if cursor != 0 && !self.places.contains_key(&cursor) {
                break cursor;
            }
        };
        if let Some(place) = self.places.get_mut(&before) {
            place.after = cursor;
        }
        self.key_bytes += last_key.len();
        let last_key = Bytes::copy_from_slice(last_key);
        let place = Place { last_key, last_use: self.next_use, before, after: 0 };
        self.uses.insert(self.next_use, cursor);
        self.next_use += 1;
        self.places.insert(cursor, place);
        while self.places.len() > CURSORS_MAX || self.key_bytes > CURSOR_KEY_BYTES_MAX {
            self.forget_oldest();
        }
        cursor
    }

    /// The cursor that this step gave when it was made before.
    fn repeated(&self, last_key: &[u8], before: u64) -> Option<u64> {
        let cursor = self.places.get(&before)?.after;
        let place = self.places.get(&cursor)?;
        (place.before == before && place.last_key == last_key).then_some(cursor)
    }

    /// The key after which this cursor goes on. The cursor stays valid: a client may repeat a call.
    /// Who uses it has the reply of the step before, so what came before that is not needed any more.
    pub(crate) fn place(&mut self, cursor: u64) -> Option<Bytes> {
        let place = self.places.get(&cursor)?;
        let (last_key, before) = (place.last_key.clone(), place.before);
        self.touch(cursor);
        if let Some(place) = self.places.get(&before) {
            self.forget(place.before);
        }
        Some(last_key)
    }

    /// Makes a cursor the one that was used last.
    fn touch(&mut self, cursor: u64) {
        if let Some(place) = self.places.get_mut(&cursor) {
            self.uses.remove(&place.last_use);
            place.last_use = self.next_use;
            self.uses.insert(self.next_use, cursor);
            self.next_use += 1;
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, &cursor)) = self.uses.first_key_value() {
            self.forget(cursor);
        }
    }

    fn forget(&mut self, cursor: u64) {
        if let Some(place) = self.places.remove(&cursor) {
            self.uses.remove(&place.last_use);
            self.key_bytes -= place.last_key.len();
        }
    }

    /// SplitMix64, cut to the bits of a cursor.
    fn next_number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) & CURSOR_MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_can_be_used_twice_and_the_least_used_is_forgotten_first() {
        let mut table = CursorTable::new(7);
        let first = table.remember(b"a", 0);
        let second = table.remember(b"b", 0);
        for _ in 2..CURSORS_MAX {
            table.remember(b"x", 0);
        }
        assert_eq!(table.place(first), Some(Bytes::from_static(b"a")));
        table.remember(b"y", 0);
        assert_eq!(table.place(first), Some(Bytes::from_static(b"a")));
        assert_eq!(table.place(second), None);
        assert_eq!((table.places.len(), table.uses.len()), (CURSORS_MAX, CURSORS_MAX));
    }

    #[test]
    fn a_long_walk_holds_three_places_and_leaves_those_of_others() {
        let mut table = CursorTable::new(7);
        let others = table.remember(b"other", 0);
        let mut cursor = table.remember(b"first", 0);
        for step in 0..3 * CURSORS_MAX as u32 {
            let before = cursor;
            assert!(table.place(before).is_some());
            cursor = table.remember(&step.to_be_bytes(), before);
            // The reply was lost: the step is made again.
            assert!(table.place(before).is_some());
            assert_eq!(table.remember(&step.to_be_bytes(), before), cursor, "step {step}");
            assert!(table.places.len() <= 4, "{}", table.places.len());
        }
        assert_eq!(table.place(others), Some(Bytes::from_static(b"other")));
    }

    #[test]
    fn a_step_that_is_repeated_with_another_count_gives_a_cursor_of_its_own() {
        let mut table = CursorTable::new(7);
        let first = table.remember(b"a", 0);
        let (short, long) = (table.remember(b"b", first), table.remember(b"c", first));
        assert_ne!(short, long);
        assert_eq!(table.place(short), Some(Bytes::from_static(b"b")));
        assert_eq!(table.place(long), Some(Bytes::from_static(b"c")));
    }

    #[test]
    fn long_keys_push_out_older_cursors_by_their_bytes() {
        let mut table = CursorTable::new(7);
        let long = vec![b'k'; 64 * 1024];
        let cursors: Vec<u64> = (0..300).map(|_| table.remember(&long, 0)).collect();
        assert!(table.key_bytes <= CURSOR_KEY_BYTES_MAX);
        assert_eq!(table.place(cursors[0]), None);
        assert!(table.place(cursors[299]).is_some());
    }

    #[test]
    fn cursors_are_never_zero_and_exact_as_doubles() {
        let mut table = CursorTable::new(0);
        for _ in 0..10_000 {
            let cursor = table.remember(b"", 0);
            assert!(cursor != 0 && cursor <= CURSOR_MASK);
        }
    }
}
