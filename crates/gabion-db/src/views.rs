//! The newest view, where each thread finds one without writing to memory that other threads write.
//!
//! ```text
//!   publish ──┬──► place 0: view ──► shape (count) ─┐
//!             ├──► place 1: view ──► shape (count) ─┼──► MemTables, version
//!             └──► place …          thread n mod places
//! ```
//!
//! Who reads takes a reference to a view and gives it back: with one count for all threads its line of memory would go from
//! one processor to the other with each read, four times with a lock beside it. So there are twice as many places as
//! processors, 64 at most, each with a lock and a count of its own (RocksDB keeps a `SuperVersion` for each thread to the
//! same end). A view is published seldom, at a seal or an edit, and then in all places.

use gabion_engine::SharedView;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};
use std::thread;

/// Most places: publishing takes a lock and makes a view for each.
const PLACES_MAX: usize = 64;

/// A place, apart from its neighbours: two lines of memory, as processors fetch them in pairs.
#[repr(align(128))]
struct Place(RwLock<SharedView>);

/// The newest view, in several places.
pub(crate) struct Views(Box<[Place]>);

impl Views {
    pub(crate) fn new(view: &SharedView) -> Self {
        Self((0..places()).map(|_| Place(RwLock::new(view.apart()))).collect())
    }

    /// What `take` makes of the newest view. Meanwhile no other is published, so it does next to nothing.
    pub(crate) fn with<T>(&self, take: impl FnOnce(&SharedView) -> T) -> T {
        let Place(place) = &self.0[thread_number() % self.0.len()];
        take(&place.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the newest view in every place. Whoever takes one after this returns takes this one, or a newer one.
    pub(crate) fn publish(&self, view: &SharedView) {
        for Place(place) in &self.0 {
            let view = view.apart();
            let old = std::mem::replace(
                &mut *place.write().unwrap_or_else(PoisonError::into_inner),
                view,
            );
            // Not under the lock: it may be the last to hold a MemTable.
            drop(old);
        }
    }
}

/// Twice as many as run at once: threads come to places in turn, not those that run.
pub(crate) fn places() -> usize {
    let running = thread::available_parallelism().map_or(1, usize::from);
    (2 * running).min(PLACES_MAX)
}

/// Threads that read, in the order in which they first do.
pub(crate) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    // In the destructor of another thread-local value there may be none any more: any place will do.
    NUMBER.try_with(|number| *number).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::GroupId;
    use gabion_engine::{Tree, TreeConfig};
    use std::sync::Arc;

    fn tree() -> Tree {
        Tree::create(TreeConfig::default(), GroupId(1)).unwrap()
    }

    #[test]
    fn every_thread_finds_what_was_published_last_and_nothing_keeps_what_was_before() {
        let (trees, seen) = ([tree(), tree()], 40);
        let [first, second] = [trees[0].shared_view(), trees[1].shared_view()];
        let holders = Arc::strong_count(first.version());
        let views = Views::new(&first);
        assert_eq!(Arc::strong_count(first.version()), holders + views.0.len());
        let finds = |view: &SharedView| {
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
        assert_eq!(Arc::strong_count(first.version()), holders);
        assert!(!first.is_same_shape(&second) && first.is_same_shape(&first.apart()));
    }
}
