//! The newest view, which each thread finds without writing to memory that other threads write.
//!
//! ```text
//!   publish ──┬──► place 0: view ──► shape (count) ─┐
//!             ├──► place 1: view ──► shape (count) ─┼──► MemTables, version
//!             └──► place …          thread n mod places
//! ```
//!
//! A reader takes a reference to a view and gives it back. With one count for all threads its cache
//! line would move from one processor to the other with each read, four times with a lock beside
//! it. So there are twice as many places as processors, 64 at most, each with a lock and a count of
//! its own (RocksDB keeps a `SuperVersion` for each thread to the same end). A view is published
//! seldom, at a seal or an edit, and then in all places.

use crate::places::{places, thread_number};
use atomic::{AtomicU64, Ordering};
use gabion_engine::ReadView;
#[cfg(all(test, loom))]
use loom::sync::{RwLock, atomic};
use std::sync::PoisonError;
#[cfg(not(all(test, loom)))]
use std::sync::{RwLock, atomic};

/// A value that can be read in several places.
pub(crate) trait Apart {
    /// The same, with a count of its own.
    fn apart(&self) -> Self;
}

impl Apart for ReadView {
    fn apart(&self) -> Self {
        Self::apart(self)
    }
}

/// A place, apart from its neighbours: two cache lines, as processors fetch them in pairs.
#[repr(align(128))]
struct Place<V>(RwLock<V>);

/// The values that each write changes and each read reads. They have cache lines of their own, so
/// that a write invalidates nothing else.
#[repr(align(128))]
struct Shown {
    /// The last write that readers see.
    sequence: AtomicU64,
    /// The group time by which readers judge expiry. Stored after `sequence`, so that a reader of
    /// this time has all writes before it.
    now_ms: AtomicU64,
    /// When something may expire next, by the clock; `u64::MAX`: nothing will.
    due_ms: AtomicU64,
    /// The clock's recent time: at most a tick old.
    late_ms: AtomicU64,
}

/// The newest view, in several places, with the write and the time as of which it is read. One
/// thread at a time publishes and shows.
pub(crate) struct Views<V = ReadView> {
    places: Box<[Place<V>]>,
    shown: Shown,
}

impl Views {
    /// Places that all hold `view`.
    pub(crate) fn new(view: &ReadView, clock_ms: u64) -> Self {
        Self::in_places(places(), view, view.sequence().get(), view.now_ms(), clock_ms)
    }
}

impl<V: Apart> Views<V> {
    fn in_places(count: usize, view: &V, sequence: u64, now_ms: u64, clock_ms: u64) -> Self {
        Self {
            places: (0..count).map(|_| Place(RwLock::new(view.apart()))).collect(),
            shown: Shown {
                sequence: AtomicU64::new(sequence),
                now_ms: AtomicU64::new(now_ms),
                due_ms: AtomicU64::new(0),
                late_ms: AtomicU64::new(clock_ms),
            },
        }
    }

    /// Applies `take` to the newest view. No other is published meanwhile, so `take` must be quick.
    pub(crate) fn with<T>(&self, take: impl FnOnce(&V) -> T) -> T {
        self.with_in(thread_number(), take)
    }

    fn with_in<T>(&self, place: usize, take: impl FnOnce(&V) -> T) -> T {
        let Place(place) = &self.places[place % self.places.len()];
        take(&place.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Applies `take` to the newest view, the number of the last shown write, and the group time.
    ///
    /// A writer with a new shape publishes it before it shows its write. Publishing takes all
    /// places' locks, and one of them is held here for reading; so the number belongs to this
    /// shape, or to a part of it. The time is read first: a time before the write's shows what
    /// expired with it, a later one might hide what the write keeps.
    pub(crate) fn newest<T>(&self, take: impl FnOnce(&V, u64, u64) -> T) -> T {
        self.newest_in(thread_number(), take)
    }

    fn newest_in<T>(&self, place: usize, take: impl FnOnce(&V, u64, u64) -> T) -> T {
        self.with_in(place, |view| {
            let now_ms = self.shown.now_ms.load(Ordering::Acquire);
            take(view, self.shown.sequence.load(Ordering::Acquire), now_ms)
        })
    }

    /// Replaces the newest view in every place. A reader that comes after this returns takes this
    /// view, or a newer one.
    pub(crate) fn publish(&self, view: &V) {
        for Place(place) in &self.places {
            let view = view.apart();
            let old = std::mem::replace(
                &mut *place.write().unwrap_or_else(PoisonError::into_inner),
                view,
            );
            // Outside the lock: it may be the last to hold a MemTable.
            drop(old);
        }
    }

    /// Has readers see all up to a write, at a group time, until something may expire.
    pub(crate) fn show(&self, sequence: u64, now_ms: u64, due_ms: u64) {
        self.shown.sequence.store(sequence, Ordering::Release);
        self.shown.now_ms.store(now_ms, Ordering::Release);
        self.set_due_ms(due_ms);
    }

    /// The shown group time.
    pub(crate) fn now_ms(&self) -> u64 {
        self.shown.now_ms.load(Ordering::Acquire)
    }

    /// When something may expire next, by the clock; `u64::MAX`: nothing will.
    pub(crate) fn due_ms(&self) -> u64 {
        self.shown.due_ms.load(Ordering::Acquire)
    }

    pub(crate) fn set_due_ms(&self, due_ms: u64) {
        self.shown.due_ms.store(due_ms, Ordering::Release);
    }

    /// The clock's last kept time.
    pub(crate) fn late_ms(&self) -> u64 {
        self.shown.late_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn set_late_ms(&self, clock_ms: u64) {
        self.shown.late_ms.store(clock_ms, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use gabion_base::GroupId;
    use gabion_engine::{Tree, TreeConfig};
    use std::sync::Arc;
    use std::thread;

    fn tree() -> Tree {
        Tree::create(TreeConfig::default(), GroupId(1)).unwrap()
    }

    #[test]
    fn every_thread_finds_what_was_published_last_and_nothing_keeps_what_was_before() {
        let (trees, seen) = ([tree(), tree()], 40);
        let [first, second] = [trees[0].lasting_view(), trees[1].lasting_view()];
        let holders = Arc::strong_count(first.pin().unwrap().version());
        let views = Views::new(&first, 0);
        assert_eq!(Arc::strong_count(first.pin().unwrap().version()), holders + views.places.len());
        let finds = |view: &ReadView| {
            thread::scope(|scope| {
                let looks = (0..seen).map(|_| {
                    scope.spawn(|| (thread_number(), views.with(|found| found.is_same_shape(view))))
                });
                let looks: Vec<_> = looks.collect();
                let looks = looks.into_iter().map(|look| look.join().unwrap());
                looks.collect::<std::collections::BTreeMap<usize, bool>>()
            })
        };
        let before = finds(&first);
        assert!(before.len() == seen && before.values().all(|found| *found), "{before:?}");
        views.publish(&second);
        let after = finds(&second);
        assert!(after.len() == seen && after.values().all(|found| *found), "{after:?}");
        assert_eq!(Arc::strong_count(first.pin().unwrap().version()), holders);
        assert!(!first.is_same_shape(&second) && first.is_same_shape(&first.apart()));
    }
}

#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// The shape that a write made, by the write's number: each of these writes makes one.
    #[derive(Clone, Copy)]
    struct Shape(u64);

    impl Apart for Shape {
        fn apart(&self) -> Self {
            *self
        }
    }

    /// The writer's part, under the machine's lock.
    fn write(views: &Views<Shape>, number: u64) {
        views.publish(&Shape(number));
        views.show(number, 10 * number, u64::MAX);
    }

    fn read(views: &Views<Shape>, place: usize) -> u64 {
        views.newest_in(place, |&Shape(shape), sequence, now_ms| {
            // A shown write is in the shape; the shape may also hold the next write, and no more.
            assert!(shape == sequence || shape == sequence + 1, "{shape} at {sequence}");
            // A reader with a write's time has the write.
            assert!(now_ms <= 10 * sequence, "{now_ms} at {sequence}");
            sequence
        })
    }

    /// Two writes, and a reader in the place that is published last, which reads twice: every order
    /// of their steps.
    #[test]
    fn a_reader_finds_the_shape_of_the_write_that_it_is_shown_and_never_goes_back() {
        loom::model(|| {
            let views = Arc::new(Views::in_places(2, &Shape(0), 0, 0, 0));
            let reader = {
                let views = views.clone();
                thread::spawn(move || {
                    let first = read(&views, 1);
                    assert!(read(&views, 1) >= first, "what was shown once stays");
                })
            };
            write(&views, 1);
            write(&views, 2);
            reader.join().expect("it does not panic");
            assert_eq!((read(&views, 0), read(&views, 1)), (2, 2));
        });
    }
}
