//! Threads that wait for records, each of which is woken once it can go on.
//!
//! Waking all of them at each reply would cost more than the records do: of 64 threads one has what
//! it waits for, and 63 look and sleep again.

use gabion_ncl::Number;
use std::collections::BTreeMap;
use std::thread::Thread;

/// A thread's place among those that wait.
pub(crate) type Place = (Number, u64);

/// The threads that sleep, by the record that each waits for.
#[derive(Default)]
pub(crate) struct Waiters {
    added: u64,
    threads: BTreeMap<Place, Thread>,
}

impl Waiters {
    /// A thread is about to park until this record is acknowledged; until anything happens for
    /// [`Number::ZERO`].
    pub(crate) fn add(&mut self, number: Number, thread: Thread) -> Place {
        self.added += 1;
        let place = (number, self.added);
        self.threads.insert(place, thread);
        place
    }

    /// A thread is awake again, woken or not.
    pub(crate) fn remove(&mut self, place: Place) {
        self.threads.remove(&place);
    }

    /// The threads that wait for records up to this one.
    pub(crate) fn take(&mut self, acknowledged: Number) -> BTreeMap<Place, Thread> {
        let later = self.threads.split_off(&(acknowledged.next(), 0));
        std::mem::replace(&mut self.threads, later)
    }

    /// All of them.
    pub(crate) fn take_all(&mut self) -> BTreeMap<Place, Thread> {
        std::mem::take(&mut self.threads)
    }

    /// Whichever waits longest from here on.
    pub(crate) fn take_last(&mut self) -> Option<Thread> {
        self.threads.pop_last().map(|(_, thread)| thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_are_taken_whose_records_are_acknowledged_and_the_last_one_for_the_turns() {
        let mut waiters = Waiters::default();
        let me = std::thread::current();
        let places = [0, 7, 5, 6, 7].map(|number| waiters.add(Number(number), me.clone()));
        let taken: Vec<Place> = waiters.take(Number(6)).into_keys().collect();
        assert_eq!(taken, [places[0], places[2], places[3]]);
        waiters.remove(places[0]);
        assert!(waiters.take_last().is_some());
        let left: Vec<Place> = waiters.take_all().into_keys().collect();
        assert_eq!(left, [places[1]]);
        assert!(waiters.take_last().is_none());
    }
}
