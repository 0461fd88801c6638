//! An allocator that counts, for each thread separately.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counted.
#[derive(Clone, Copy, Debug)]
pub struct Counting;

fn count(change: isize) {
    // A thread that ends has no counters any more.
    let _ = NOW.try_with(|now| {
        now.set(now.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
}

// SAFETY: every call is the system allocator's with the same arguments; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `at` came from `System` with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // Both allocations may be there at once.
        count(len as isize);
        // SAFETY: `at` came from `System` with this layout, and `len` is the caller's.
        let moved = unsafe { System.realloc(at, layout, len) };
        count(-(layout.size() as isize));
        moved
    }
}

/// The result of `act`, and the most bytes that were allocated at once meanwhile.
pub(super) fn peak_of<T>(act: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let result = act();
    (result, (PEAK.get() - before) as usize)
}
