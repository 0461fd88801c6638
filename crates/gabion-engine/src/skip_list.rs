//! The skip list under a MemTable.
//!
//! One writer at a time, any number of readers without locks. Memory is only ever appended and is
//! freed all at once, so an address is valid for the life of the list. This module, those in it and `once`
//! are the only ones of the crate with `unsafe`; what makes it sound:
//!
//! 1. A cell (an entry's bytes), a leaf and a tower are written completely before what leads to them is
//!    stored (release), and reached only through that (acquire). Cells and anchors never change. All that changes is
//!    an atomic.
//! 2. No entry is removed. A slot of a leaf is written before the order that names it, and not again in the same
//!    *life* of the leaf; in a later one it has another published cell.
//! 3. [`SkipList::writer`] hands out one [`ListWriter`] at a time, so that the writer's state has one
//!    user.
//!
//! ```text
//!  towers:  head ──────────────────────────────────────────────► m ──────────► …      links with ranks
//!           head ──────────────────► f ────────────────────────► m ──────► q ► …
//!            │                       │                           │         │
//!  leaves:  [c a b]                 [h f i g]                   [m n]     [q …]       up to 15 slots each
//!            │ │ │
//!  cells:   │ trailer u64 │ key length u32 │ value length u32 │ key │ value │ …
//! ```
//!
//! A search is made of cache misses, and this shape makes them few: the list is one of leaves, not of entries, so
//! that the towers of 16 MiB of small entries fit the second cache, and the last step is within the four
//! lines of one leaf. Links and leaves carry *ranks*, the bytes of a key behind what most keys begin
//! with, so that a cell is touched only when ranks are equal.
//!
//! A leaf's slots are filled in the order of arrival; which is first, second, … is one word, as in Masstree's
//! border nodes (EuroSys 2012, section 4.6.2), so that one store publishes an insert. A
//! full leaf is split into two others: first the right one is linked, then the left one takes the old one's
//! place. A reader who still has the old leaf finds in it all that was there when it began, until the writer needs
//! a leaf and takes that one: half of all leaves would be such old ones. Before its slots are written again its number
//! of lives is raised, as in a sequence lock; a reader looks at that number before and after what it reads, and where
//! it was raised searches again from the tower, which has had its new leaf since before. So nobody waits for anybody.
#![expect(unsafe_code, reason = "readers follow links while the writer appends; see above")]

mod chunks;
mod leaf;
mod sample;

use crate::entry::{Entry, Trailer};
use alloc::boxed::Box;
use alloc::sync::Arc;
use atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use chunks::Chunks;
use core::cell::UnsafeCell;
use core::cmp::Ordering as Order;
use core::ptr;
#[cfg(not(all(test, loom)))]
use core::sync::atomic;
pub(crate) use leaf::prefetch;
use leaf::{CELL_LEN, Cell, LEAF_LEN, Leaf, Slots, Target, entry};
/// Every order in which threads can see what others store: see `interleavings`.
#[cfg(all(test, loom))]
use loom::sync::atomic;

/// Levels of the list: with one tower in four reaching the next, enough for 100 million entries.
const HEIGHT_MAX: usize = 12;
/// Entries that the left half of a full leaf and a new one gets.
const HALF: usize = LEAF_LEN.div_ceil(2);
const KEY_LEN_LIMIT: usize = 1 << 24;

/// Where a leaf is found: its smallest entry when it began, the leaf that holds the range from there to the
/// next tower now, and as many links as it is high.
#[repr(C)]
struct Tower {
    anchor: *const Cell,
    leaf: AtomicPtr<Leaf>,
}

/// Where a tower's successor at a level is, and the rank of its anchor.
///
/// The writer stores `tower` before `rank`, readers load `rank` before `tower`. The rank that a reader has
/// is therefore that of its tower or of an older, later one, so it never goes too far; see
/// [`SkipList::enter`] for not going far enough.
#[repr(C)]
struct Link {
    tower: AtomicPtr<Tower>,
    rank: AtomicU64,
}

const TOWER_LEN: usize = size_of::<Tower>();
const _: () = assert!(TOWER_LEN.is_multiple_of(align_of::<Link>()));
const _: () =
    assert!(align_of::<Link>() <= 8 && align_of::<Tower>() <= 8 && align_of::<Cell>() <= 8);

impl Link {
    /// To no tower.
    fn end() -> Self {
        Self { tower: AtomicPtr::new(ptr::null_mut()), rank: AtomicU64::new(RANK_END) }
    }

    #[inline]
    fn load(&self) -> (u64, *const Tower) {
        (self.rank.load(Ordering::Acquire), self.tower.load(Ordering::Acquire))
    }
}

/// The rank that stands for no tower: after every other.
const RANK_END: u64 = u64::MAX;
/// Most bytes of a common prefix that ranks leave out.
const PREFIX_LEN_MAX: usize = 64;

/// The link of `tower` at `level`.
///
/// # Safety
/// `tower` is a published tower of a live list, or one that its writer makes, and `level` is below its height.
#[inline]
unsafe fn link(tower: *const Tower, level: usize) -> *const Link {
    // SAFETY: a tower's links follow it, within the same allocation.
    unsafe { tower.cast::<u8>().add(TOWER_LEN).cast::<Link>().add(level) }
}

/// Sorted entries; see the module.
pub(crate) struct SkipList {
    /// What most keys are expected to begin with.
    prefix: Box<[u8]>,
    head: [Link; HEIGHT_MAX],
    /// What is before the first tower; null before the first insert.
    first: AtomicPtr<Leaf>,
    height: AtomicUsize,
    writing: AtomicBool,
    state: UnsafeCell<WriterState>,
}

struct WriterState {
    towers: Chunks,
    leaves: Chunks,
    cells: Chunks,
    /// The last leaf that was split, which nothing leads to any more; null if there is none.
    spare: *mut Leaf,
    random: u64,
}

// SAFETY: chunks are plain memory owned by the list; entries are bytes. Readers touch atomics and published
// cells and anchors (never changed); `state` is touched by the one writer and by `drop`.
unsafe impl Send for SkipList {}
// SAFETY: as above.
unsafe impl Sync for SkipList {}

/// A place between entries, or at one: a leaf as it was in one of its lives, an index there, and the cell at that,
/// which stays true whatever becomes of the leaf. A null tower is the head, a null cell the end.
#[derive(Clone, Copy)]
struct Place {
    tower: *const Tower,
    leaf: *const Leaf,
    life: u64,
    slots: Slots,
    index: usize,
    cell: *const Cell,
}

impl Place {
    const NONE: Self = Self {
        tower: ptr::null(),
        leaf: ptr::null(),
        life: 0,
        slots: Slots::NONE,
        index: 0,
        cell: ptr::null(),
    };

    /// The entry here, if there is one.
    ///
    /// # Safety
    /// The place is one of a list that lives at least for `'a`.
    #[inline]
    unsafe fn entry<'a>(&self) -> Option<Entry<'a>> {
        // SAFETY: cells of places are published ones.
        (!self.cell.is_null()).then(|| unsafe { entry(self.cell) })
    }

    /// The place at `index` of the same leaf, at most its end; none where that has gone to other entries.
    ///
    /// # Safety
    /// The place is one of a live list, and has a leaf.
    #[inline]
    unsafe fn at(&self, index: usize) -> Option<Self> {
        // SAFETY: as promised by the caller; leaves are as old as the list.
        let leaf = unsafe { &*self.leaf };
        let cell =
            if index < self.slots.len() { leaf.cell(self.slots, index) } else { ptr::null() };
        leaf.is_in(self.life).then_some(Self { index, cell, ..*self })
    }

    /// The place of `target` in the same leaf, or its end; none where that has gone to other entries.
    ///
    /// # Safety
    /// As for [`Place::at`].
    #[inline]
    unsafe fn search(&self, target: &Target<'_>) -> Option<Self> {
        // SAFETY: as promised by the caller; the slots are the leaf's.
        unsafe { self.at((*self.leaf).before(self.slots, target)) }
    }

    /// Asks for the entries of the leaf, which somebody is going to read in order.
    ///
    /// # Safety
    /// As for [`Place::at`].
    #[inline]
    unsafe fn prefetch_cells(&self) {
        // SAFETY: as promised by the caller. For any address.
        unsafe { (*self.leaf).prefetch_cells(self.slots) };
    }
}

impl SkipList {
    /// An empty list. `seed` decides the shape and `prefix`, what keys are expected to begin with, the
    /// speed; never the content.
    pub(crate) fn new(seed: u64, prefix: &[u8]) -> Self {
        Self {
            prefix: prefix[..prefix.len().min(PREFIX_LEN_MAX)].into(),
            head: core::array::from_fn(|_| Link::end()),
            first: AtomicPtr::new(ptr::null_mut()),
            height: AtomicUsize::new(1),
            writing: AtomicBool::new(false),
            state: UnsafeCell::new(WriterState {
                towers: Chunks::new(),
                leaves: Chunks::new(),
                cells: Chunks::new(),
                spare: ptr::null_mut(),
                random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            }),
        }
    }

    /// Claims the right to insert.
    ///
    /// # Panics
    /// While another writer holds it: a MemTable has one owner that applies the log.
    pub(crate) fn writer(&self) -> ListWriter<'_> {
        let was = self.writing.swap(true, Ordering::Acquire);
        assert!(!was, "a MemTable has one writer at a time");
        ListWriter { list: self }
    }

    /// Orders keys as far as it can: a smaller rank is a smaller key, of equal ranks nothing follows.
    /// Keys with the prefix have its successors in the middle; all others are before or after them.
    #[inline]
    fn rank(&self, key: &[u8]) -> u64 {
        const WITH_PREFIX: u64 = 1 << 62;
        match key.strip_prefix(&*self.prefix) {
            Some(rest) => {
                let bytes = match rest.first_chunk::<8>() {
                    Some(bytes) => *bytes,
                    None => {
                        let mut bytes = [0; 8];
                        bytes[..rest.len()].copy_from_slice(rest);
                        bytes
                    }
                };
                WITH_PREFIX | u64::from_be_bytes(bytes) >> 2
            }
            None if *key < *self.prefix => 0,
            None => 2 * WITH_PREFIX,
        }
    }

    #[inline]
    fn target<'a>(&self, key: &'a [u8], trailer: Trailer) -> Target<'a> {
        Target { rank: self.rank(key), key, trailer }
    }

    /// The first entry at or after (key, trailer).
    pub(crate) fn seek(&self, key: &[u8], trailer: Trailer) -> Option<Entry<'_>> {
        // SAFETY: the place is one of this list, which `&self` keeps alive.
        unsafe { self.place_of(key, trailer).entry() }
    }

    /// Where the first entry at or after (key, trailer) is, or behind the last.
    fn place_of(&self, key: &[u8], trailer: Trailer) -> Place {
        let target = self.target(key, trailer);
        let mut place = self.enter(self.find(&target, |_, _| {}), &target);
        while place.index == place.slots.len() {
            let Some(next) = self.tower_after(place.tower) else { break };
            place = self.enter_at(next, &target);
        }
        place
    }

    /// Where the first entry is, if there is one.
    fn first_place(&self) -> Place {
        // SAFETY: `read` has places of this list, with a leaf.
        self.read(ptr::null(), |place| unsafe { place.at(0) })
    }

    /// Behind the entry here.
    #[inline]
    fn step(&self, place: &mut Place) {
        let has_next = place.index + 1 < place.slots.len();
        // SAFETY: a place with slots is one of this list with a leaf.
        match has_next.then(|| unsafe { place.at(place.index + 1) }).flatten() {
            Some(next) => *place = next,
            None => self.step_over(place, has_next),
        }
    }

    /// From an entry to the first one after it in the list, where its leaf does not tell: as it was the last one there,
    /// or, when the leaf `went` to other entries, whichever it was.
    fn step_over(&self, place: &mut Place, went: bool) {
        // SAFETY: the place is one of this list.
        let Some(here) = (unsafe { place.entry() }) else { return };
        let target = self.target(here.key, here.trailer);
        let (mut tower, mut is_at_tower) = (place.tower, went);
        let at = loop {
            let at = if is_at_tower {
                self.enter(tower, &target)
            } else {
                let Some(next) = self.tower_after(tower) else {
                    break Place { index: place.slots.len(), cell: ptr::null(), ..*place };
                };
                // If the leaf was split since, its last entries are here, and this one may be among them.
                self.enter_at(next, &target)
            };
            tower = at.tower;
            let behind = if at.cell == place.cell {
                // SAFETY: as above, with a leaf that holds the cell.
                unsafe { at.at(at.index + 1) }
            } else {
                Some(at)
            };
            match behind {
                Some(at) if !at.cell.is_null() => {
                    // SAFETY: as above.
                    unsafe { at.prefetch_cells() };
                    break at;
                }
                Some(_) => is_at_tower = false,
                None => is_at_tower = true,
            }
        };
        *place = at;
    }

    /// Where the last entry before (key, trailer) is, if there is one. The trailer is no entry's of the key.
    fn place_before(&self, key: &[u8], trailer: Trailer) -> Place {
        let target = self.target(key, trailer);
        let mut tower = self.find(&target, |_, _| {});
        loop {
            let place = self.enter(tower, &target);
            // A tower's anchor is before what is searched there and never equal to it, and stays in its leaf.
            debug_assert!(place.index > 0 || place.tower.is_null(), "a leaf without its anchor");
            let Some(index) = place.index.checked_sub(1) else { return Place::NONE };
            // SAFETY: the place is one of this list, with entries before it.
            if let Some(before) = unsafe { place.at(index) } {
                return before;
            }
            tower = place.tower;
        }
    }

    /// Where the last entry is, if there is one.
    fn last_place(&self) -> Place {
        let mut tower: *const Tower = ptr::null();
        for level in (0..self.height.load(Ordering::Relaxed)).rev() {
            // SAFETY: `tower` was reached at this level or a higher one, and links are live.
            while let (_, next) = unsafe { (*self.link_of(tower, level)).load() }
                && !next.is_null()
            {
                tower = next;
            }
        }
        loop {
            let mut behind = None;
            let place = self.read(tower, |place| {
                // Whoever sees a leaf that lost its right half sees the tower of that half.
                behind = self.tower_after(tower);
                // SAFETY: leaves of this list have an entry at least.
                unsafe { place.at(place.slots.len() - 1) }
            });
            match behind {
                Some(next) => tower = next,
                None => return place,
            }
        }
    }

    /// To the entry before the one here, if there is one; stays at no entry.
    #[inline]
    fn step_back(&self, place: &mut Place) {
        // SAFETY: the place is one of this list.
        let Some(here) = (unsafe { place.entry() }) else { return };
        // SAFETY: as above, with a leaf, as it has an entry.
        let before = place.index.checked_sub(1).and_then(|index| unsafe { place.at(index) });
        if let Some(before) = before {
            *place = before;
            return;
        }
        // Right before it: no entry has a trailer in between, nor this one.
        let trailer = Trailer::from_raw_unchecked(here.trailer.raw() + 1);
        *place = self.place_before(here.key, trailer);
        if !place.leaf.is_null() {
            // SAFETY: as above.
            unsafe { place.prefetch_cells() };
        }
    }

    /// The link of a tower (null: the head) at a level.
    ///
    /// # Safety
    /// `tower` is null or a published one of this list that was reached at `level` or a higher one.
    #[inline]
    unsafe fn link_of(&self, tower: *const Tower, level: usize) -> *const Link {
        if tower.is_null() {
            &self.head[level]
        } else {
            // SAFETY: as promised by the caller.
            unsafe { link(tower, level) }
        }
    }

    #[inline]
    fn tower_after(&self, tower: *const Tower) -> Option<*const Tower> {
        // SAFETY: every tower has a link at level 0, and links are live.
        let next = unsafe { (*self.link_of(tower, 0)).load().1 };
        (!next.is_null()).then_some(next)
    }

    /// The place of `target` in the leaf of `tower` or, if that was split since the tower was found, in that
    /// of a tower behind it.
    fn enter(&self, tower: *const Tower, target: &Target<'_>) -> Place {
        let mut tower = tower;
        loop {
            let mut behind = None;
            let place = self.read(tower, |place| {
                // Whoever sees a leaf that lost its right half sees the tower of that half.
                behind = self.tower_after(tower).filter(|next| {
                    // SAFETY: the link is live, and anchors are published cells.
                    unsafe {
                        let rank = (*self.link_of(tower, 0)).rank.load(Ordering::Acquire);
                        rank <= target.rank && target.order_of((**next).anchor) != Order::Greater
                    }
                });
                // SAFETY: `read` has places of this list, with a leaf.
                if behind.is_some() { Some(Place::NONE) } else { unsafe { place.search(target) } }
            });
            match behind {
                Some(next) => tower = next,
                None => return place,
            }
        }
    }

    /// The place of `target` in the leaf of `tower`, wherever the target is.
    fn enter_at(&self, tower: *const Tower, target: &Target<'_>) -> Place {
        // SAFETY: `read` has places of this list, with a leaf.
        self.read(tower, |place| unsafe { place.search(target) })
    }

    /// What `find` finds in the leaf of `tower`, from the place that it gets; when it finds nothing, as the leaf went to
    /// other entries meanwhile, it gets the one that has taken its place. No place where there is no leaf.
    #[inline]
    fn read(&self, tower: *const Tower, mut find: impl FnMut(&Place) -> Option<Place>) -> Place {
        loop {
            let leaf = self.leaf_of(tower);
            if leaf.is_null() {
                return Place::NONE;
            }
            // SAFETY: leaves that towers led to are as old as the list, and published.
            let (life, is_its_leaf, slots) = unsafe {
                let life = (*leaf).life();
                // Between the two loads it may have gone elsewhere; from here on its life tells.
                (
                    life,
                    self.place_of_leaf(tower).load(Ordering::Acquire) == leaf.cast_mut(),
                    (*leaf).slots(),
                )
            };
            let place = Place { tower, leaf, life, slots, index: 0, cell: ptr::null() };
            if is_its_leaf && let Some(found) = find(&place) {
                return found;
            }
        }
    }

    /// Where the leaf of a tower (null: the head) stands.
    #[inline]
    fn place_of_leaf(&self, tower: *const Tower) -> &AtomicPtr<Leaf> {
        if tower.is_null() {
            &self.first
        } else {
            // SAFETY: towers that links lead to are published.
            unsafe { &(*tower).leaf }
        }
    }

    #[inline]
    fn leaf_of(&self, tower: *const Tower) -> *const Leaf {
        let leaf = self.place_of_leaf(tower).load(Ordering::Acquire);
        Leaf::prefetch(leaf);
        leaf
    }

    /// The last tower whose anchor is at or before `target`, or null for the head; or, beside a writer,
    /// one a little before it. Calls `left` with each level, from the highest, and the link through which
    /// the next tower is reached there.
    #[inline]
    fn find(&self, target: &Target<'_>, mut left: impl FnMut(usize, *const Link)) -> *const Tower {
        let mut level = self.height.load(Ordering::Relaxed) - 1;
        let mut before: *const Tower = ptr::null();
        let mut known_after: *const Tower = ptr::null();
        loop {
            // SAFETY: `before` was reached at this level or a higher one, so it has this link.
            let at = unsafe { self.link_of(before, level) };
            // SAFETY: `at` points to a link of the head or of a published tower.
            let (rank, next) = unsafe { (*at).load() };
            let goes_on = match rank.cmp(&target.rank) {
                Order::Less => true,
                Order::Greater => false,
                Order::Equal if next == known_after => false,
                Order::Equal => {
                    known_after = next;
                    // SAFETY: only the end has no tower, and its rank is no key's; a tower read from a
                    // link is published, and its anchor with it.
                    unsafe { target.order_of((*next).anchor) != Order::Greater }
                }
            };
            if goes_on {
                before = next;
                continue;
            }
            left(level, at);
            if level == 0 {
                return before;
            }
            level -= 1;
        }
    }
}

/// The right to insert into a list; given back when dropped.
pub(crate) struct ListWriter<'a> {
    list: &'a SkipList,
}

impl Drop for ListWriter<'_> {
    fn drop(&mut self) {
        self.list.writing.store(false, Ordering::Release);
    }
}

/// Links of the head or of published towers through which the next tower is reached at each level.
type Left = [*const Link; HEIGHT_MAX];

impl ListWriter<'_> {
    /// Adds an entry, visible to readers from when this returns.
    ///
    /// # Panics
    /// When the key is 16 MiB or more, or the value 4 GiB; batches limit both far below.
    pub(crate) fn insert(&mut self, key: &[u8], trailer: Trailer, value: &[u8]) {
        let list = self.list;
        let target = list.target(key, trailer);
        let cell = self.new_cell(key, trailer, value);
        let mut left: Left = [const { ptr::null() }; HEIGHT_MAX];
        let tower = list.find(&target, |level, at| left[level] = at);
        let leaf = list.leaf_of(tower);
        if leaf.is_null() {
            let leaf = self.new_leaf(&[(target.rank, cell)]);
            list.first.store(leaf, Ordering::Release);
            return;
        }
        // SAFETY: towers lead to published leaves, whose slots in use lead to published cells.
        let (leaf, slots, index) = unsafe {
            let slots = (*leaf).slots();
            (&*leaf, slots, (*leaf).before(slots, &target))
        };
        // SAFETY: as above.
        let is_new = index == slots.len()
            || unsafe { target.order_of(leaf.cell(slots, index)) } != Order::Equal;
        debug_assert!(is_new, "an entry was inserted twice");
        if slots.len() < LEAF_LEN {
            leaf.write(slots.len(), target.rank, cell);
            leaf.publish(slots.insert(index));
        } else if index == LEAF_LEN && !self.is_before_a_small_leaf(tower) {
            // Keys that come in order leave full leaves behind; others do not leave leaves of one entry.
            self.add_tower(&left, &[(target.rank, cell)]);
        } else {
            self.split(tower, leaf, index, (target.rank, cell), &left);
        }
    }

    /// Whether the leaf after that of `tower` is less than half full.
    fn is_before_a_small_leaf(&self, tower: *const Tower) -> bool {
        let next = self.list.tower_after(tower);
        // SAFETY: towers that links lead to are published, with a leaf.
        next.is_some_and(|next| unsafe { (*self.list.leaf_of(next)).slots().len() } < HALF)
    }

    /// Puts two leaves in the place of a full one, with one more entry at `index`.
    fn split(
        &mut self,
        tower: *const Tower,
        leaf: &Leaf,
        index: usize,
        new: (u64, *mut Cell),
        left: &Left,
    ) {
        let slots = leaf.slots();
        let sorted: [(u64, *mut Cell); LEAF_LEN + 1] = core::array::from_fn(|i| {
            if i == index {
                return new;
            }
            let slot = slots.slot(i - usize::from(i > index));
            let load = |cell: &AtomicPtr<Cell>| cell.load(Ordering::Relaxed);
            (leaf.ranks[slot].load(Ordering::Relaxed), load(&leaf.cells[slot]))
        });
        self.add_tower(left, &sorted[HALF..]);
        let rest = self.new_leaf(&sorted[..HALF]);
        self.list.place_of_leaf(tower).store(rest, Ordering::Release);
        leaf.end_life();
        self.state().spare = ptr::from_ref(leaf).cast_mut();
    }

    /// Links a tower with a leaf of these entries behind what `left` holds.
    fn add_tower(&mut self, left: &Left, sorted: &[(u64, *mut Cell)]) {
        let list = self.list;
        let height = self.random_height();
        let old_height = list.height.load(Ordering::Relaxed);
        let leaf = self.new_leaf(sorted);
        let (rank, anchor) = sorted[0];
        let tower = self.new_tower(height, anchor, leaf);
        for (level, &at) in left.iter().enumerate().take(height) {
            let at = if level < old_height { at } else { &raw const list.head[level] };
            // SAFETY: `left` holds links of the head or of published towers for every level of the list;
            // the new tower has `height` links. Only this writer stores links.
            unsafe {
                let (at, new) = (&*at, &*link(tower, level));
                new.tower.store(at.tower.load(Ordering::Relaxed), Ordering::Relaxed);
                new.rank.store(at.rank.load(Ordering::Relaxed), Ordering::Relaxed);
                at.tower.store(tower, Ordering::Release);
                at.rank.store(rank, Ordering::Release);
            }
        }
        if height > old_height {
            list.height.store(height, Ordering::Relaxed);
        }
    }

    /// Bytes of memory taken so far.
    pub(crate) fn allocated(&mut self) -> usize {
        let state = self.state();
        state.towers.allocated + state.leaves.allocated + state.cells.allocated
    }

    fn state(&mut self) -> &mut WriterState {
        // SAFETY: `writing` admits one `ListWriter` at a time, borrowed exclusively here.
        unsafe { &mut *self.list.state.get() }
    }

    fn random_height(&mut self) -> usize {
        // xorshift64*: the shape depends on the seed and the inserts alone.
        let state = self.state();
        state.random ^= state.random >> 12;
        state.random ^= state.random << 25;
        state.random ^= state.random >> 27;
        let bits = state.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        (1 + bits.trailing_zeros() as usize / 2).min(HEIGHT_MAX)
    }

    /// A complete entry that nothing leads to yet.
    fn new_cell(&mut self, key: &[u8], trailer: Trailer, value: &[u8]) -> *mut Cell {
        assert!(key.len() < KEY_LEN_LIMIT, "a key of {} bytes in a MemTable", key.len());
        let value_len = u32::try_from(value.len()).expect("values are limited to 8 MiB");
        let header = Cell { trailer: trailer.raw(), key_len: key.len() as u32, value_len };
        let cell = self.state().cells.allocate(CELL_LEN + key.len() + value.len()).cast::<Cell>();
        // SAFETY: `cell` is aligned to 8 and has room for header, key and value one behind the other;
        // nobody else knows of it.
        unsafe {
            cell.write(header);
            let key_at = cell.cast::<u8>().add(CELL_LEN);
            ptr::copy_nonoverlapping(key.as_ptr(), key_at, key.len());
            ptr::copy_nonoverlapping(value.as_ptr(), key_at.add(key.len()), value.len());
        }
        cell
    }

    /// A complete leaf that nothing leads to yet.
    fn new_leaf(&mut self, sorted: &[(u64, *mut Cell)]) -> *mut Leaf {
        let state = self.state();
        let spare = core::mem::replace(&mut state.spare, ptr::null_mut());
        let (leaf, made) = if spare.is_null() {
            let leaf = state.leaves.allocate(size_of::<Leaf>()).cast::<Leaf>();
            // SAFETY: these chunks hold leaves only, so that each is aligned as the chunk is.
            unsafe {
                leaf.write(Leaf::with_first(sorted.len()));
                (leaf, &*leaf)
            }
        } else {
            // SAFETY: a leaf of this list, of which readers may still have a reference: only its atomics are touched.
            let made = unsafe { &*spare };
            made.begin_with_first(sorted.len());
            (spare, made)
        };
        for (slot, &(rank, cell)) in sorted.iter().enumerate() {
            made.write(slot, rank, cell);
        }
        leaf
    }

    /// A complete tower that no link reaches yet.
    fn new_tower(&mut self, height: usize, anchor: *const Cell, leaf: *mut Leaf) -> *mut Tower {
        let len = TOWER_LEN + height * size_of::<Link>();
        let tower = self.state().towers.allocate(len).cast::<Tower>();
        // SAFETY: `tower` is aligned to 8 and has room for itself and its links; nobody else knows of it.
        unsafe {
            tower.write(Tower { anchor, leaf: AtomicPtr::new(leaf) });
            for level in 0..height {
                link(tower, level).cast_mut().write(Link::end());
            }
        }
        tower
    }
}

/// A position in a list that it keeps alive. Sees what is inserted meanwhile in leaves that it has not yet come to.
#[derive(Clone)]
pub(crate) struct Cursor {
    list: Arc<SkipList>,
    place: Place,
}

// SAFETY: the place belongs to the list, which is Send and Sync and outlives the cursor.
unsafe impl Send for Cursor {}
// SAFETY: as above; `&Cursor` only reads.
unsafe impl Sync for Cursor {}

impl Cursor {
    /// A cursor at no entry.
    pub(crate) const fn new(list: Arc<SkipList>) -> Self {
        Self { list, place: Place::NONE }
    }

    /// To the first entry, if there is one.
    pub(crate) fn seek_to_first(&mut self) {
        self.place = self.list.first_place();
    }

    /// To the first entry at or after (key, trailer), if there is one.
    pub(crate) fn seek(&mut self, key: &[u8], trailer: Trailer) {
        self.place = self.list.place_of(key, trailer);
    }

    /// To the next entry, if there is one; stays at no entry.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.list.step(&mut self.place);
    }

    /// To the last entry, if there is one.
    pub(crate) fn seek_to_last(&mut self) {
        self.place = self.list.last_place();
    }

    /// To the last entry before every entry of `key`, if there is one.
    pub(crate) fn seek_before(&mut self, key: &[u8]) {
        self.place = self.list.place_before(key, Trailer::FIRST);
    }

    /// To the entry before, if there is one; stays at no entry. A search from leaf to leaf: links lead
    /// forwards only.
    #[inline]
    pub(crate) fn retreat(&mut self) {
        self.list.step_back(&mut self.place);
    }

    /// The entry here.
    #[inline]
    pub(crate) fn entry(&self) -> Option<Entry<'_>> {
        // SAFETY: the place is one of the list; the entry borrows the cursor, which keeps the list alive.
        unsafe { self.place.entry() }
    }
}

#[cfg(all(test, loom))]
mod interleavings;
#[cfg(test)]
mod tests;
