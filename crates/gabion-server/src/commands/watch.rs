//! WATCH: EXEC does nothing when a watched key has changed.
//!
//! ```text
//!   client's node: WATCH a b ─► id 7, keys a b ──────────► head: a: {7, 3}   b: {7}
//!                                              SET b ────►       a: {7, 3}
//!                  EXEC ─► commands, id 7, keys a b ─────► 7 does not watch b any more: nil
//! ```
//!
//! The head remembers who watches which key. Every write to a key makes it forget all who watch that key, so EXEC has
//! only to ask whether it still knows of each. So it is safe to forget: an EXEC too many fails, and none succeeds that
//! must not. The head forgets the oldest keys where they are too many, and all of them when its tenure ends, as others
//! may have written since; a new process knows of none.
//!
//! The node of the client chooses the id, one for all that is watched until the next EXEC, DISCARD or UNWATCH. EXEC may
//! follow WATCH at once: both go to the head in order and lock the keys. What is watched no longer is not said to the head.

use super::errors;
use super::store::Op;
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use gabion_base::HashMap;
use gabion_resp::Reply;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Most keys that a connection watches.
pub(crate) const KEYS_MAX: usize = 4096;
/// Most bytes of them.
pub(crate) const KEY_BYTES_MAX: usize = 1 << 20;
/// Most memory that the keys take which all connections of a node watch.
const SUM_MAX: usize = 64 << 20;
/// What a key takes at the node of its connection beside its bytes.
const SUM_KEY_OVERHEAD: usize = 128;
/// Most pairs of a key and who watches it that the head remembers.
const WATCHERS_MAX: usize = 65_536;
/// Most memory that they take.
const MEMORY_MAX: usize = 16 << 20;
/// What a key takes beside its bytes, and each who watches it.
const KEY_OVERHEAD: usize = 256;
const WATCHER_OVERHEAD: usize = 48;

/// Tells what one connection watches from one EXEC to the next from all else that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WatchId {
    /// A random number of the start of the client's node.
    pub(crate) node: u64,
    /// That node's own.
    pub(crate) number: u64,
}

/// Keys that are watched under an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    pub(crate) id: WatchId,
    pub(crate) keys: Vec<Bytes>,
}

impl Watch {
    /// The memory that it takes, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.keys.iter().map(|key| key.len() + size_of::<Bytes>()).sum()
    }
}

/// The memory of the keys that one connection watches, counted also in the sum over all connections of its node.
pub(crate) struct KeyMemory {
    bytes: usize,
    sum: Rc<Cell<usize>>,
}

impl KeyMemory {
    pub(crate) const fn new(sum: Rc<Cell<usize>>) -> Self {
        Self { bytes: 0, sum }
    }

    /// Counts these keys, unless they are too many.
    pub(crate) fn add(&mut self, keys: &[Bytes]) -> Result<(), Reply> {
        let bytes = keys.iter().map(|key| key.len() + SUM_KEY_OVERHEAD).sum::<usize>();
        let sum = self.sum.get() + bytes;
        if sum > SUM_MAX {
            return Err(errors::too_much_watched_by_all(sum, SUM_MAX));
        }
        self.sum.set(sum);
        self.bytes += bytes;
        Ok(())
    }

    /// They are watched no longer.
    pub(crate) fn clear(&mut self) {
        self.sum.set(self.sum.get() - self.bytes);
        self.bytes = 0;
    }
}

impl Drop for KeyMemory {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What the head knows of watched keys.
#[derive(Default)]
pub(crate) struct Watches {
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// The term in which all of it was noted.
    term: u64,
    keys: HashMap<Bytes, Watched>,
    /// The keys by their places, oldest first.
    order: BTreeMap<u64, Bytes>,
    next_place: u64,
    watchers: usize,
    memory: usize,
}

/// A key that nobody has written to since these began to watch it.
struct Watched {
    /// Whether it was there, and until when.
    is_there: bool,
    expires_ms: Option<u64>,
    ids: BTreeSet<WatchId>,
    place: u64,
}

impl Watched {
    /// Whether it was there and its time has passed.
    fn is_expired(&self, group_ms: u64) -> bool {
        self.expires_ms.is_some_and(|at| at <= group_ms)
    }
}

/// What a look-up says of a key that is to be watched.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) is_there: bool,
    pub(crate) expires_ms: Option<u64>,
}

/// When something is asked: the head's term, and the group's time.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) term: u64,
    pub(crate) group_ms: u64,
}

impl Watches {
    /// Watches a key, which is locked and as it was seen.
    pub(crate) fn add(&self, id: WatchId, key: &Bytes, seen: Seen, now: Moment) {
        let state = &mut *self.state.borrow_mut();
        state.enter(now.term);
        if state.keys.get(key).is_some_and(|watched| watched.is_expired(now.group_ms)) {
            // For them it has changed, for the newcomer it is not there.
            state.forget(key);
        }
        state.add(id, key, seen);
        while state.watchers > WATCHERS_MAX || state.memory > MEMORY_MAX {
            let Some((_, oldest)) = state.order.first_key_value() else { break };
            let oldest = oldest.clone();
            state.forget(&oldest);
        }
    }

    /// Whether none of the keys was written to or has expired since they were watched, as far as is known.
    pub(crate) fn are_unchanged(&self, watch: &Watch, now: Moment) -> bool {
        let state = self.state.borrow();
        let is_unchanged = |key| {
            let watched = state.keys.get(key);
            watched.is_some_and(|it| it.ids.contains(&watch.id) && !it.is_expired(now.group_ms))
        };
        watch.keys.is_empty() || state.term == now.term && watch.keys.iter().all(is_unchanged)
    }

    /// A key was set.
    #[inline]
    pub(crate) fn note_put(&self, key: &[u8]) {
        if !self.is_empty() {
            self.state.borrow_mut().forget(key);
        }
    }

    /// These writes were made.
    pub(crate) fn note(&self, ops: &[Op]) {
        if self.is_empty() {
            return;
        }
        let mut state = self.state.borrow_mut();
        for op in ops {
            match op {
                Op::Put(key, _) | Op::PutExpiring(key, _, _) | Op::Delete(key) => state.forget(key),
                Op::Clear => state.clear_what_is_there(),
            }
        }
    }

    /// Whether nothing is watched.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.state.borrow().keys.is_empty()
    }
}

impl State {
    /// What was noted in another term counts no longer.
    fn enter(&mut self, term: u64) {
        if self.term != term {
            *self = Self { term, ..Self::default() };
        }
    }

    fn add(&mut self, id: WatchId, key: &Bytes, seen: Seen) {
        let place = self.next_place;
        self.next_place += 1;
        if !self.keys.contains_key(key) {
            // A copy: a view would keep what the request came in.
            let key = Bytes::copy_from_slice(key);
            self.memory += key.len() + KEY_OVERHEAD;
            let Seen { is_there, expires_ms } = seen;
            let watched = Watched { is_there, expires_ms, ids: BTreeSet::new(), place };
            self.keys.insert(key, watched);
        }
        let Some(watched) = self.keys.get_mut(key) else { return };
        if watched.ids.insert(id) {
            self.watchers += 1;
            self.memory += WATCHER_OVERHEAD;
        }
        let before = std::mem::replace(&mut watched.place, place);
        let key = self.order.remove(&before).unwrap_or_else(|| Bytes::copy_from_slice(key));
        self.order.insert(place, key);
    }

    fn forget(&mut self, key: &[u8]) {
        let Some(watched) = self.keys.remove(key) else { return };
        self.order.remove(&watched.place);
        self.watchers -= watched.ids.len();
        self.memory -= key.len() + KEY_OVERHEAD + watched.ids.len() * WATCHER_OVERHEAD;
    }

    /// Every key was deleted, which changes those that were there.
    fn clear_what_is_there(&mut self) {
        let there = self.keys.iter().filter(|(_, watched)| watched.is_there);
        let there: Vec<Bytes> = there.map(|(key, _)| key.clone()).collect();
        there.iter().for_each(|key| self.forget(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment { term: 4, group_ms: 1000 };

    fn id(number: u64) -> WatchId {
        WatchId { node: 1, number }
    }

    fn key(n: usize) -> Bytes {
        Bytes::from(format!("key{n}"))
    }

    fn watch(number: u64, keys: &[usize]) -> Watch {
        Watch { id: id(number), keys: keys.iter().map(|&n| key(n)).collect() }
    }

    #[test]
    fn another_term_forgets_all_that_was_watched() {
        let watches = Watches::default();
        watches.add(id(1), &key(1), Seen::default(), NOW);
        assert!(watches.are_unchanged(&watch(1, &[1]), NOW));
        let later = Moment { term: 6, ..NOW };
        assert!(!watches.are_unchanged(&watch(1, &[1]), later));
        // The same node is the head again, and who watches anew does not bring the old back.
        watches.add(id(2), &key(2), Seen::default(), later);
        assert!(watches.are_unchanged(&watch(2, &[2]), later));
        assert!(!watches.are_unchanged(&watch(1, &[1]), later));
        assert!(!watches.are_unchanged(&watch(1, &[1]), NOW));
    }

    #[test]
    fn only_the_id_that_watches_a_key_finds_it_unchanged() {
        let watches = Watches::default();
        watches.add(id(1), &key(1), Seen::default(), NOW);
        watches.add(id(2), &key(1), Seen::default(), NOW);
        assert!(watches.are_unchanged(&watch(1, &[1]), NOW));
        assert!(!watches.are_unchanged(&watch(1, &[1, 2]), NOW));
        assert!(!watches.are_unchanged(&watch(3, &[1]), NOW));
        let other_node = WatchId { node: 2, number: 1 };
        assert!(!watches.are_unchanged(&Watch { id: other_node, keys: vec![key(1)] }, NOW));
        watches.note_put(&key(1));
        assert!(!watches.are_unchanged(&watch(1, &[1]), NOW));
        assert!(!watches.are_unchanged(&watch(2, &[1]), NOW));
        assert!(watches.is_empty());
    }

    #[test]
    fn the_oldest_are_forgotten_and_all_is_counted() {
        let watches = Watches::default();
        for n in 0..WATCHERS_MAX {
            watches.add(id(n as u64), &key(n % 100), Seen::default(), NOW);
        }
        assert!(watches.are_unchanged(&watch(0, &[0]), NOW));
        // Of all keys, this one was watched last.
        watches.add(id(7), &key(0), Seen::default(), NOW);
        assert!(watches.are_unchanged(&watch(0, &[0]), NOW));
        assert!(!watches.are_unchanged(&watch(36, &[36]), NOW));
        assert!(watches.are_unchanged(&watch(37, &[37]), NOW));
        let long = |n: u8| Bytes::from(vec![n; 64 << 10]);
        (0..255).for_each(|n| watches.add(id(1), &long(n), Seen::default(), NOW));
        assert!(watches.state.borrow().memory <= MEMORY_MAX);
        assert!(watches.are_unchanged(&Watch { id: id(1), keys: vec![long(254)] }, NOW));
        let keys: Vec<Bytes> = watches.state.borrow().keys.keys().cloned().collect();
        let ops: Vec<Op> = keys.into_iter().map(Op::Delete).collect();
        watches.note(&ops);
        let state = watches.state.borrow();
        assert_eq!((state.watchers, state.memory, state.order.len()), (0, 0, 0));
    }
}
