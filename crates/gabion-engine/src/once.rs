//! A place for something shared that comes once and stays: found by readers on any thread without a lock and without
//! counting them.
//!
//! What makes its `unsafe` sound: the pointer is null until one [`OnceArc::keep`] stores what it made of an [`Arc`]
//! (release; whoever loads it acquires), never changes again, and its count is given back when the place itself goes,
//! which no reference that was handed out outlives.
#![expect(unsafe_code, reason = "readers follow a pointer that was stored once; see above")]

use alloc::sync::Arc;
use atomic::{AtomicPtr, Ordering};
use core::marker::PhantomData;
use core::ptr;
#[cfg(not(all(test, loom)))]
use core::sync::atomic;
/// Every order in which threads can see what others store: see `interleavings`.
#[cfg(all(test, loom))]
use loom::sync::atomic;

/// Nothing, and at some time one `Arc`.
pub(crate) struct OnceArc<T> {
    at: AtomicPtr<T>,
    /// `Send` and `Sync` where what it keeps is.
    kept: PhantomData<Arc<T>>,
}

impl<T> Default for OnceArc<T> {
    fn default() -> Self {
        Self { at: AtomicPtr::new(ptr::null_mut()), kept: PhantomData }
    }
}

impl<T> OnceArc<T> {
    /// What is kept here, if anything is.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        // SAFETY: null, or what `keep` stored, which lives as long as `self`.
        unsafe { self.at.load(Ordering::Acquire).as_ref() }
    }

    /// The same, counted, to be kept longer than this place lives.
    pub(crate) fn get_arc(&self) -> Option<Arc<T>> {
        let kept: *const T = self.get()?;
        // SAFETY: `keep` had it from an `Arc`, and left a count here that is not given back while `self` is borrowed;
        // so there is one more to be taken of something that lives.
        Some(unsafe {
            Arc::increment_strong_count(kept);
            Arc::from_raw(kept)
        })
    }

    /// Keeps `value`, unless something is kept already: returns what is.
    pub(crate) fn keep(&self, value: Arc<T>) -> &T {
        let new = Arc::into_raw(value).cast_mut();
        let (stored, seen) = (Ordering::AcqRel, Ordering::Acquire);
        let kept = match self.at.compare_exchange(ptr::null_mut(), new, stored, seen) {
            Ok(_) => new,
            Err(kept) => {
                // SAFETY: `new` came from an `Arc`, and nobody else was told of it.
                drop(unsafe { Arc::from_raw(new.cast_const()) });
                kept
            }
        };
        // SAFETY: as in `get`; it is not null.
        unsafe { &*kept }
    }
}

impl<T> Drop for OnceArc<T> {
    fn drop(&mut self) {
        let kept = self.at.load(Ordering::Acquire);
        if !kept.is_null() {
            // SAFETY: it came from an `Arc` whose count `keep` left here.
            drop(unsafe { Arc::from_raw(kept.cast_const()) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_stays_and_every_count_is_given_back() {
        let (first, second) = (Arc::new(1), Arc::new(2));
        let once = OnceArc::default();
        assert_eq!(once.get(), None);
        assert_eq!(once.keep(first.clone()), &1);
        assert_eq!(once.keep(second.clone()), &1);
        assert_eq!(once.get(), Some(&1));
        let shared = once.get_arc().expect("it is there");
        assert_eq!((*shared, Arc::strong_count(&first)), (1, 3));
        drop(shared);
        assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (2, 1));
        drop(once);
        assert_eq!(Arc::strong_count(&first), 1);
        assert_eq!(OnceArc::<u64>::default().get_arc(), None);
    }

    #[test]
    fn what_was_shared_outlives_the_place() {
        let once = OnceArc::default();
        once.keep(Arc::new(7));
        let shared = once.get_arc().expect("it is there");
        drop(once);
        assert_eq!((*shared, Arc::strong_count(&shared)), (7, 1));
    }
}

/// Every order of the steps of threads, as for the skip list: `cargo xtask interleavings`.
#[cfg(all(test, loom))]
mod interleavings {
    use super::*;

    #[test]
    fn who_shares_what_one_keeps_has_it_whole_also_when_the_place_is_gone() {
        loom::model(|| {
            // Whoever drops it last sees what others did to it: an order that the model has to know of.
            let once = loom::sync::Arc::new(OnceArc::default());
            let value = Arc::new([3, 3]);
            let keeper = {
                let (once, value) = (once.clone(), value.clone());
                loom::thread::spawn(move || drop(once.keep(value).first().copied()))
            };
            let sharers = [(); 2].map(|()| {
                let once = once.clone();
                loom::thread::spawn(move || {
                    let shared = once.get_arc();
                    drop(once);
                    assert!(shared.is_none_or(|shared| *shared == [3, 3]));
                })
            });
            drop(once);
            keeper.join().expect("it does not panic");
            for sharer in sharers {
                sharer.join().expect("it does not panic");
            }
            assert_eq!(Arc::strong_count(&value), 1);
        });
    }

    #[test]
    fn of_two_that_keep_something_both_find_the_same_and_a_reader_that_or_nothing() {
        loom::model(|| {
            let once = Arc::new(OnceArc::default());
            let values = [Arc::new([1, 1]), Arc::new([2, 2])];
            let keepers = values.clone().map(|value| {
                let once = once.clone();
                loom::thread::spawn(move || *once.keep(value))
            });
            let seen = once.get().copied();
            assert!(seen.is_none_or(|[a, b]| a == b), "it is seen whole");
            let kept = keepers.map(|keeper| keeper.join().expect("it does not panic"));
            assert_eq!(kept[0], kept[1]);
            assert!(seen.is_none_or(|seen| seen == kept[0]));
            drop(once);
            assert!(values.iter().all(|value| Arc::strong_count(value) == 1));
        });
    }
}
