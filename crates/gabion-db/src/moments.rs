//! The moments of a store that are read, and their ages: a forgotten snapshot keeps MemTables and
//! slots, and must be easy to find.
//!
//! ```text
//!   snapshot ─┐
//!   clone    ─┼─► (place, entry) ─► place n: [ holders 3, since … ] [ free ] …
//!   cursor   ─┘                     place n + 1: …
//! ```
//!
//! The thread that makes a moment enters it in that thread's place, chosen as for views
//! ([`crate::views`]). So the lock that a new cursor takes is hardly ever shared. Clones of the
//! moment, on whatever thread, raise its count there.

use crate::places::{places, thread_number};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Apart from its neighbours: two lines of memory, as processors fetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Place(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    /// Entries without holders are free.
    all: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Entry {
    holders: u32,
    since_ms: u64,
}

/// The entry of a moment. Its owner gives it back.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    place: u32,
    entry: u32,
}

/// All moments that are read.
pub(crate) struct Moments(Box<[Place]>);

impl Moments {
    pub(crate) fn new() -> Self {
        Self((0..places()).map(|_| Place::default()).collect())
    }

    fn place(&self, place: u32) -> MutexGuard<'_, Entries> {
        self.0[place as usize].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a moment with one holder.
    pub(crate) fn enter(&self, since_ms: u64) -> Moment {
        let place = (thread_number() % self.0.len()) as u32;
        let mut entries = self.place(place);
        let new = Entry { holders: 1, since_ms };
        let entry = match entries.free.pop() {
            Some(entry) => {
                entries.all[entry as usize] = new;
                entry
            }
            None => {
                entries.all.push(new);
                entries.all.len() as u32 - 1
            }
        };
        Moment { place, entry }
    }

    /// One more holder.
    pub(crate) fn hold(&self, moment: Moment) {
        self.place(moment.place).all[moment.entry as usize].holders += 1;
    }

    /// One holder less.
    pub(crate) fn let_go(&self, Moment { place, entry }: Moment) {
        let mut entries = self.place(place);
        let holders = &mut entries.all[entry as usize].holders;
        *holders -= 1;
        if *holders == 0 {
            entries.free.push(entry);
        }
    }

    /// The number of held moments, and the time of the oldest.
    pub(crate) fn held(&self) -> (usize, Option<u64>) {
        let (mut count, mut oldest_ms) = (0, None);
        for place in 0..self.0.len() as u32 {
            let entries = self.place(place);
            for entry in entries.all.iter().filter(|entry| entry.holders > 0) {
                count += 1;
                oldest_ms =
                    Some(oldest_ms.map_or(entry.since_ms, |ms: u64| ms.min(entry.since_ms)));
            }
        }
        (count, oldest_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/faults.md: P22
    #[test]
    fn a_moment_is_held_until_its_last_holder_lets_go_on_whatever_thread() {
        let moments = Moments::new();
        assert_eq!(moments.held(), (0, None));
        let first = moments.enter(5);
        let others: Vec<_> = std::thread::scope(|scope| {
            let enter = |n| {
                scope.spawn({
                    let moments = &moments;
                    move || moments.enter(n)
                })
            };
            let entered: Vec<_> = (6..40).map(enter).collect();
            entered.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(moments.held(), (35, Some(5)));
        std::thread::scope(|scope| scope.spawn(|| moments.hold(first)).join().unwrap());
        moments.let_go(first);
        assert_eq!(moments.held(), (35, Some(5)));
        moments.let_go(first);
        assert_eq!(moments.held(), (34, Some(6)));
        others.into_iter().for_each(|moment| moments.let_go(moment));
        assert_eq!(moments.held(), (0, None));
    }

    /// docs/faults.md: P22
    #[test]
    fn what_was_let_go_is_entered_anew() {
        let moments = Moments::new();
        for n in 0..10_000 {
            moments.let_go(moments.enter(n));
        }
        let entries: usize =
            (0..moments.0.len() as u32).map(|it| moments.place(it).all.len()).sum();
        assert_eq!(entries, 1);
    }
}
