//! Things that are costly to make and wanted by any thread for a moment: those that are idle wait in slots, without a
//! lock, for whoever comes next.
//!
//! What makes its `unsafe` sound: a pointer in a slot that is not null is a `Box` that belongs to the slot. Taking it out
//! and putting one in are one atomic step each, so it belongs to one place at a time; who takes it out acquires what was
//! released with it.
#![expect(unsafe_code, reason = "boxes are handed on as pointers; see above")]

use alloc::boxed::Box;
use atomic::{AtomicPtr, Ordering};
use core::marker::PhantomData;
use core::ptr::null_mut;
#[cfg(not(all(test, loom)))]
use core::sync::atomic;
/// Every order in which threads can see what others store: see `interleavings`.
#[cfg(all(test, loom))]
use loom::sync::atomic;

/// At most `N` things that nobody uses.
pub(crate) struct Idle<T, const N: usize> {
    slots: [AtomicPtr<T>; N],
    /// `Send` and `Sync` are said below.
    kept: PhantomData<*mut T>,
}

// SAFETY: it owns what it keeps.
unsafe impl<T: Send, const N: usize> Send for Idle<T, N> {}
// SAFETY: what it keeps goes from thread to thread and is never shared.
unsafe impl<T: Send, const N: usize> Sync for Idle<T, N> {}

impl<T, const N: usize> Idle<T, N> {
    /// With nothing in it.
    #[cfg(not(all(test, loom)))]
    pub(crate) const fn new() -> Self {
        Self { slots: [const { AtomicPtr::new(null_mut()) }; N], kept: PhantomData }
    }

    #[cfg(all(test, loom))]
    pub(crate) fn new() -> Self {
        Self { slots: core::array::from_fn(|_| AtomicPtr::new(null_mut())), kept: PhantomData }
    }

    /// One that is idle, if there is any.
    pub(crate) fn take(&self) -> Option<Box<T>> {
        for slot in self.slots.iter().filter(|slot| !slot.load(Ordering::Relaxed).is_null()) {
            let idle = slot.swap(null_mut(), Ordering::Acquire);
            if !idle.is_null() {
                // SAFETY: what is in a slot came from `Box::into_raw`, and since the swap it is in none.
                return Some(unsafe { Box::from_raw(idle) });
            }
        }
        None
    }

    /// Keeps one for whoever comes next, unless enough are kept.
    pub(crate) fn give_back(&self, one: Box<T>) {
        let idle = Box::into_raw(one);
        let has_taken = |slot: &AtomicPtr<_>| {
            slot.compare_exchange(null_mut(), idle, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        if !self.slots.iter().any(has_taken) {
            // SAFETY: it came from `Box::into_raw` above, and no slot has taken it.
            drop(unsafe { Box::from_raw(idle) });
        }
    }
}

impl<T, const N: usize> Drop for Idle<T, N> {
    fn drop(&mut self) {
        while let Some(one) = self.take() {
            drop(one);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::sync::Arc;

    #[test]
    fn as_many_as_there_are_slots_are_kept_and_all_are_freed() {
        let (idle, one) = (Idle::<_, 2>::new(), Arc::new(7));
        assert!(idle.take().is_none());
        (0..3).for_each(|_| idle.give_back(Box::new(one.clone())));
        assert_eq!(Arc::strong_count(&one), 3, "one had no slot");
        assert_eq!(idle.take().as_deref(), Some(&one));
        assert_eq!(Arc::strong_count(&one), 2);
        drop(idle);
        assert_eq!(Arc::strong_count(&one), 1);
    }
}

/// Every order of the steps of threads, as for the skip list: `cargo xtask interleavings`.
#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// How often it was used; two uses that are not one after the other are found.
    type Used = (UnsafeCell<u32>, Arc<()>);

    fn use_one<const N: usize>(idle: &Idle<Used, N>, made: &Arc<()>) {
        let one = idle.take().unwrap_or_else(|| Box::new((UnsafeCell::new(0), made.clone())));
        // SAFETY: it is this thread's alone, which is what is checked here.
        one.0.with_mut(|count| unsafe { *count += 1 });
        idle.give_back(one);
    }

    /// Threads that use one each, of which there is one at first; returns how often those were used that are left.
    fn explore<const N: usize>(may_be_left: fn(u32) -> bool) {
        loom::model(move || {
            let (idle, made) = (Arc::new(Idle::<Used, N>::new()), Arc::new(()));
            use_one(&idle, &made);
            let other = {
                let (idle, made) = (idle.clone(), made.clone());
                thread::spawn(move || use_one(&idle, &made))
            };
            use_one(&idle, &made);
            other.join().expect("it does not panic");
            let mut left = 0;
            while let Some(one) = idle.take() {
                // SAFETY: as in `use_one`.
                left += one.0.with(|count| unsafe { *count });
            }
            assert!(may_be_left(left), "{left} uses are left");
            assert_eq!(Arc::strong_count(&made), 1, "all are freed");
        });
    }

    /// docs/faults.md: P12
    #[test]
    fn each_is_used_by_one_thread_at_a_time_and_none_is_lost() {
        explore::<2>(|left| left == 3);
    }

    /// docs/faults.md: P12
    #[test]
    fn what_finds_no_slot_is_freed_once() {
        // One after the other, or the first and either use of both at once.
        explore::<1>(|left| (1..=3).contains(&left));
    }
}
