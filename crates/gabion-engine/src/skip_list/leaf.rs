//! The leaves of a skip list, the entries in them, and how one is found there.

use super::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
use super::chunks::LINE_LEN;
use crate::entry::{Entry, Trailer, compare};
use core::cmp::Ordering as Order;
use core::ptr;

/// Entries of a leaf: as many as one word can put in order.
#[cfg(not(all(test, loom)))]
pub(super) const LEAF_LEN: usize = 15;
/// Few, so that leaves are split, and given to other entries, within what can be explored.
#[cfg(all(test, loom))]
pub(super) const LEAF_LEN: usize = 3;

/// An entry: this, then its key, then its value. Never changes.
#[repr(C)]
pub(super) struct Cell {
    pub(super) trailer: u64,
    pub(super) key_len: u32,
    pub(super) value_len: u32,
}

/// Up to [`LEAF_LEN`] entries, and others in its next life.
#[repr(C, align(64))]
pub(super) struct Leaf {
    order: AtomicU64,
    life: AtomicU64,
    pub(super) ranks: [AtomicU64; LEAF_LEN],
    pub(super) cells: [AtomicPtr<Cell>; LEAF_LEN],
}

pub(super) const CELL_LEN: usize = size_of::<Cell>();
#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Leaf>() == 256);

/// The entry in `cell`.
///
/// # Safety
/// `cell` is a published cell of a list that lives at least for `'a`.
#[inline]
pub(super) unsafe fn entry<'a>(cell: *const Cell) -> Entry<'a> {
    // SAFETY: it was written before the cell was published, and never changes.
    let header = unsafe { &*cell };
    let (key_len, value_len) = (header.key_len as usize, header.value_len as usize);
    // SAFETY: key and value follow within the same allocation; both were written before the cell was
    // published, and never change.
    let (key, value) = unsafe {
        let key = cell.cast::<u8>().add(CELL_LEN);
        (
            core::slice::from_raw_parts(key, key_len),
            core::slice::from_raw_parts(key.add(key_len), value_len),
        )
    };
    Entry { key, trailer: Trailer::from_raw_unchecked(header.trailer), value }
}

/// Which slots of a leaf are in use, in the order of their entries: their number in the lowest four bits, then
/// four bits for each.
#[derive(Clone, Copy)]
pub(super) struct Slots(u64);

impl Slots {
    pub(super) const NONE: Self = Self(0);

    #[inline]
    pub(super) const fn len(self) -> usize {
        (self.0 & 0xf) as usize
    }

    /// The slot of the entry at `index`.
    #[inline]
    pub(super) const fn slot(self, index: usize) -> usize {
        debug_assert!(index < self.len());
        (self.0 >> (4 * (index + 1)) & 0xf) as usize
    }

    /// With the next free slot at `index`.
    #[inline]
    pub(super) const fn insert(self, index: usize) -> Self {
        debug_assert!(self.len() < LEAF_LEN && index <= self.len());
        let below = (1 << (4 * (index + 1))) - 1;
        let slot = (self.0 & 0xf) << (4 * (index + 1));
        // The topmost place is free: `above` loses nothing.
        let above = (self.0 & !below) << 4;
        Self((self.0 & below | slot | above) + 1)
    }

    /// The first `len` slots as they come.
    #[inline]
    const fn filled(len: usize) -> Self {
        const ALL: u64 = 0xedcb_a987_6543_2100;
        debug_assert!(len < LEAF_LEN);
        Self(ALL & ((1 << (4 * (len + 1))) - 1) | len as u64)
    }
}

/// Asks for a line of memory that is soon read; a hint, for any address.
#[inline]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction never faults.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

impl Leaf {
    /// A leaf whose first `len` slots are in use, in their order, and not written yet.
    #[inline]
    pub(super) fn with_first(len: usize) -> Self {
        Self {
            order: AtomicU64::new(Slots::filled(len).0),
            life: AtomicU64::new(0),
            ranks: core::array::from_fn(|_| AtomicU64::new(0)),
            cells: core::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
        }
    }

    /// Ends this life: from now on it may get other entries, as nothing leads to it any more. A reader who still
    /// has it learns of that before it takes any of them for those that were here ([`Leaf::is_in`]).
    pub(super) fn end_life(&self) {
        // After what led here was stored; before what comes into the slots, and into the order.
        self.life.store(self.life.load(Ordering::Relaxed) + 1, Ordering::Release);
        fence(Ordering::Release);
    }

    /// Has the first `len` slots in use, in their order, in a life that has begun; to be written before anything leads
    /// here.
    pub(super) fn begin_with_first(&self, len: usize) {
        self.order.store(Slots::filled(len).0, Ordering::Relaxed);
    }

    /// Which life this is.
    #[inline]
    pub(super) fn life(&self) -> u64 {
        self.life.load(Ordering::Acquire)
    }

    /// Whether it was in this life all along until now, so that what was read of it since then is true.
    #[inline]
    pub(super) fn is_in(&self, life: u64) -> bool {
        fence(Ordering::Acquire);
        self.life.load(Ordering::Relaxed) == life
    }

    /// Shows readers what `slots` names.
    #[inline]
    pub(super) fn publish(&self, slots: Slots) {
        self.order.store(slots.0, Ordering::Release);
    }

    /// Asks for all of the leaf at `at`, whose lines would be waited for one after the other.
    #[inline]
    pub(super) fn prefetch(at: *const Self) {
        for line in 0..size_of::<Self>() / LINE_LEN {
            prefetch(at.cast::<u8>().wrapping_add(line * LINE_LEN));
        }
    }

    /// Asks for the beginnings of all entries, which somebody is going to read in order.
    pub(super) fn prefetch_cells(&self, slots: Slots) {
        for cell in self.cells.iter().take(slots.len()) {
            let at = cell.load(Ordering::Relaxed).cast_const().cast::<u8>();
            prefetch(at);
            prefetch(at.wrapping_add(LINE_LEN));
        }
    }

    #[inline]
    pub(super) fn slots(&self) -> Slots {
        Slots(self.order.load(Ordering::Acquire))
    }

    /// The cell at `index`: a published one even where the leaf has meanwhile gone to other entries.
    #[inline]
    pub(super) fn cell(&self, slots: Slots, index: usize) -> *const Cell {
        self.cells[slots.slot(index)].load(Ordering::Acquire)
    }

    /// Writes a slot that no order of this life names yet.
    #[inline]
    pub(super) fn write(&self, slot: usize, rank: u64, cell: *mut Cell) {
        self.ranks[slot].store(rank, Ordering::Relaxed);
        // Release: a reader of the life before may come upon it.
        self.cells[slot].store(cell, Ordering::Release);
    }

    /// How many of `slots` are before `target`.
    ///
    /// # Safety
    /// The leaf belongs to a live list, and `slots` came from it.
    #[inline]
    pub(super) unsafe fn before(&self, slots: Slots, target: &Target<'_>) -> usize {
        // Slots in use are the first ones, in any order: as many as have a smaller rank come first.
        let ranks = self.ranks.iter().take(slots.len());
        let is_less = |rank: &AtomicU64| usize::from(rank.load(Ordering::Relaxed) < target.rank);
        let mut index = ranks.map(is_less).sum();
        while index < slots.len() {
            let slot = slots.slot(index);
            if self.ranks[slot].load(Ordering::Relaxed) != target.rank {
                break;
            }
            // SAFETY: slots that an order names lead to published cells, in each life.
            if unsafe { target.order_of(self.cells[slot].load(Ordering::Acquire)) } != Order::Less {
                break;
            }
            index += 1;
        }
        index
    }
}

/// What is searched for.
pub(super) struct Target<'a> {
    pub(super) rank: u64,
    pub(super) key: &'a [u8],
    pub(super) trailer: Trailer,
}

impl Target<'_> {
    /// How the entry in `cell` compares with this.
    ///
    /// # Safety
    /// `cell` is a published cell of a live list.
    #[inline]
    pub(super) unsafe fn order_of(&self, cell: *const Cell) -> Order {
        // SAFETY: as promised by the caller.
        let found = unsafe { entry(cell) };
        compare(found.key, found.trailer, self.key, self.trailer)
    }
}
