//! Where a cache's slots are found by what they hold: one array of words, searched from a word on that a hash names.
//!
//! ```text
//!   word     tag u32 (the hash) │ slot + 1 u32      0: free
//!   home     tag × words >> 32: what is sought lies there or behind it, before the next free word
//! ```
//!
//! At most half of the words are in use, so nearly always the first that is looked at decides, and a look-up waits
//! for memory twice: for the word, and for the slot that it names. A word that is given back is filled from behind,
//! so there are no graves.

use alloc::vec::Vec;

/// Fewest words, when there are any.
const WORDS_MIN: usize = 16;

/// Slots by hash. Whether a slot holds what is sought its owner knows.
#[derive(Default)]
pub(super) struct Table {
    words: Vec<u64>,
    used: usize,
}

const fn tag_of(word: u64) -> u32 {
    (word >> 32) as u32
}

/// The slot that a word names; it is in use.
const fn slot_of(word: u64) -> u32 {
    word as u32 - 1
}

impl Table {
    /// Slots named.
    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.used
    }

    /// Bytes of its words.
    #[cfg(test)]
    pub(super) const fn memory_used(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    #[inline]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.words.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.words.len() { 0 } else { at + 1 }
    }

    /// Where the word of the slot with this tag lies that `is_sought`.
    #[inline]
    fn place(&self, tag: u32, is_sought: impl Fn(u32) -> bool) -> Option<usize> {
        let mut at = self.home(tag);
        loop {
            let word = *self.words.get(at)?;
            if word == 0 {
                return None;
            }
            if tag_of(word) == tag && is_sought(slot_of(word)) {
                return Some(at);
            }
            at = self.after(at);
        }
    }

    /// The slot with this tag that `is_sought`.
    #[inline]
    pub(super) fn find(&self, tag: u32, is_sought: impl Fn(u32) -> bool) -> Option<u32> {
        self.place(tag, is_sought).map(|at| slot_of(self.words[at]))
    }

    /// Names a slot that is not named.
    pub(super) fn insert(&mut self, tag: u32, slot: u32) {
        assert!(slot < u32::MAX, "so many blocks are not in memory");
        if 2 * (self.used + 1) > self.words.len() {
            let len = (2 * self.words.len()).max(WORDS_MIN);
            let old = core::mem::replace(&mut self.words, alloc::vec![0; len]);
            old.into_iter().filter(|word| *word != 0).for_each(|word| self.put(word));
        }
        self.put(u64::from(tag) << 32 | u64::from(slot + 1));
        self.used += 1;
        assert!(2 * self.used <= self.words.len(), "each search comes to a free word");
    }

    fn put(&mut self, word: u64) {
        let mut at = self.home(tag_of(word));
        while self.words[at] != 0 {
            at = self.after(at);
        }
        self.words[at] = word;
    }

    /// Forgets a slot with this tag, if it is named.
    pub(super) fn remove(&mut self, tag: u32, slot: u32) {
        let Some(mut free) = self.place(tag, |named| named == slot) else { return };
        assert!(self.used > 0, "what is named is counted");
        self.used -= 1;
        let len = self.words.len();
        let mut at = free;
        loop {
            self.words[free] = 0;
            // The next that may lie here: one whose home is not behind this place.
            loop {
                at = self.after(at);
                let word = self.words[at];
                if word == 0 {
                    return;
                }
                let from_home = (at + len - self.home(tag_of(word))) % len;
                if from_home >= (at + len - free) % len {
                    break;
                }
            }
            self.words[free] = self.words[at];
            free = at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_table_names_what_was_put_in_and_not_taken_out(
            // Few tags, the first and the last among them, so that what is named lies in each other's way and
            // around the end.
            ops in prop::collection::vec((any::<bool>(), 0u32..12, 0u32..40), 0..300),
        ) {
            let (mut table, mut model) = (Table::default(), BTreeMap::new());
            for (is_insert, tag, slot) in ops {
                let tag = if tag < 6 { tag } else { u32::MAX - tag };
                match (is_insert, model.get(&slot)) {
                    (true, None) => {
                        table.insert(tag, slot);
                        model.insert(slot, tag);
                    }
                    (true, Some(_)) => {}
                    (false, there) => {
                        let tag = there.copied().unwrap_or(tag);
                        table.remove(tag, slot);
                        model.remove(&slot);
                    }
                }
                prop_assert_eq!(table.len(), model.len());
                prop_assert!(2 * table.len() <= table.words.len());
                for slot in 0..40 {
                    let found = model.get(&slot).map(|tag| table.find(*tag, |named| named == slot));
                    prop_assert_eq!(found.flatten(), found.map(|_| slot));
                }
                let in_words = table.words.iter().filter(|word| **word != 0).count();
                prop_assert_eq!(in_words, model.len());
            }
        }
    }
}
