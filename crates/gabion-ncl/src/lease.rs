//! The record of the instance that may run. It keeps a second instance from starting while the
//! first lives; that two never write is the work of terms at the peers and in the ap-map.
//!
//! The holder makes its record grow. Another instance takes it once it has watched it stand still
//! for a whole lease, by its own clock. So no two clocks are compared, and a term is a count.

use crate::command::{StoreOperation, StoreReply};
use crate::map::{InstanceRecord, instance_name};
use crate::planted::{Mutant, Planted};
use alloc::string::String;
use gabion_base::{Result, Term};
use gabion_control::{Swapped, Version, Versioned};

/// A change of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing.
    None,
    /// This instance may run, in this term.
    Held(Term),
    /// Another one has a later term.
    Lost(Term),
    /// The store has an older record than this instance stored: it was set back.
    SetBack,
}

/// The lease of one instance.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    name: String,
    instance: u64,
    lease_ms: u64,
    /// Whether a record that stands still for no time is taken.
    takes_over: bool,
    planted: Planted,
    term: Option<Term>,
    /// The last term that it held, or zero.
    held: Term,
    /// Terms up to this one are used.
    above: Term,
    wants: Option<InstanceRecord>,
    version: Version,
    beat: u64,
    seen: Option<(Version, u64)>,
    next_ms: u64,
    is_waiting: bool,
    is_read: bool,
}

impl Lease {
    pub(crate) fn new(
        owner: &str,
        instance: u64,
        lease_ms: u64,
        takes_over: bool,
        planted: Planted,
    ) -> Self {
        Self {
            name: instance_name(owner),
            instance,
            lease_ms,
            takes_over,
            planted,
            term: None,
            held: Term::ZERO,
            above: Term::ZERO,
            wants: None,
            version: Version::NONE,
            beat: 0,
            seen: None,
            next_ms: 0,
            is_waiting: false,
            is_read: false,
        }
    }

    /// A term above this one is wanted: peers know it.
    pub(crate) fn raise(&mut self, above: Term) {
        self.above = self.above.max(above);
        self.term = None;
        self.next_ms = 0;
    }

    /// Whether another instance has been found to have it, and this one watches that.
    pub(crate) const fn is_watched(&self) -> bool {
        self.term.is_none() && self.seen.is_some()
    }

    /// The next request to the store, if it is due now.
    pub(crate) fn poll(&mut self, now_ms: u64) -> Option<StoreOperation> {
        if self.is_waiting || now_ms < self.next_ms {
            return None;
        }
        self.is_waiting = true;
        self.next_ms = now_ms + self.lease_ms / 4;
        if !self.is_read {
            return Some(StoreOperation::Get(self.name.clone()));
        }
        let record = self.record(now_ms, true);
        self.wants = Some(record);
        Some(StoreOperation::Swap(self.name.clone(), self.version, record.encode()))
    }

    /// The record that says that this instance has ended, to be stored without waiting for it.
    pub(crate) fn release(&mut self, now_ms: u64) -> Option<StoreOperation> {
        self.term?;
        let record = self.record(now_ms, false);
        Some(StoreOperation::Swap(self.name.clone(), self.version, record.encode()))
    }

    fn record(&self, now_ms: u64, is_held: bool) -> InstanceRecord {
        let next =
            if self.planted.has(Mutant::EpochIsClock) { Term(now_ms) } else { self.above.next() };
        let term = self.term.unwrap_or(next);
        InstanceRecord { term, instance: self.instance, beat: self.beat + 1, is_held }
    }

    /// An answer of the store.
    pub(crate) fn handle(&mut self, now_ms: u64, reply: Result<StoreReply>) -> Result<Change> {
        self.is_waiting = false;
        match reply {
            // Nobody knows whether it was stored.
            Err(_) => self.is_read = false,
            Ok(StoreReply::Got(found)) => return self.found(now_ms, found),
            Ok(StoreReply::Swapped(Swapped::Stored(version))) => {
                self.version = version;
                self.beat += 1;
                let stored = self.wants.take().map_or(Term::ZERO, |record| record.term);
                if self.term.is_none() {
                    return Ok(self.hold(stored));
                }
            }
            Ok(StoreReply::Swapped(Swapped::Lost(found))) => return self.found(now_ms, found),
            Ok(StoreReply::Listed(_)) => debug_assert!(false, "nothing was listed"),
        }
        Ok(Change::None)
    }

    fn hold(&mut self, term: Term) -> Change {
        (self.term, self.held) = (Some(term), term);
        self.above = self.above.max(term);
        Change::Held(term)
    }

    /// The record as somebody left it.
    fn found(&mut self, now_ms: u64, found: Option<Versioned>) -> Result<Change> {
        let Some(found) = found else {
            // A new application, or a store that was set back.
            (self.version, self.is_read, self.next_ms) = (Version::NONE, true, 0);
            return Ok(if self.term.is_some() { Change::SetBack } else { Change::None });
        };
        let record = InstanceRecord::decode(&found.value)?;
        if record.instance == self.instance && record.term > self.above {
            // It was stored, though the answer was an error.
            (self.version, self.beat, self.is_read) = (found.version, record.beat, true);
            return Ok(self.hold(record.term));
        }
        let compares = !self.planted.has(Mutant::MapWithoutCompare);
        if compares
            && self.held > Term::ZERO
            && record.term > self.held
            && record.instance != self.instance
        {
            return Ok(Change::Lost(record.term));
        }
        if self.term.is_some() {
            // Ours, or an older one: the store was set back. It is told again.
            (self.version, self.is_read, self.next_ms) = (found.version, true, 0);
            return Ok(Change::SetBack);
        }
        if self.seen.is_none_or(|(version, _)| version != found.version) {
            self.seen = Some((found.version, now_ms));
        }
        let since_ms = self.seen.map_or(now_ms, |(_, since_ms)| since_ms);
        let stood_still = now_ms >= since_ms + self.lease_ms;
        let is_ours = record.instance == self.instance;
        if !record.is_held || is_ours || stood_still || self.takes_over {
            self.above = self.above.max(record.term);
            (self.version, self.is_read, self.next_ms) = (found.version, true, 0);
        } else {
            self.is_read = false;
        }
        Ok(Change::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::Error;
    use gabion_control::store::MemoryStore;

    fn lease(instance: u64) -> Lease {
        Lease::new("app", instance, 1000, false, Planted::default())
    }

    /// Runs until the store is asked for nothing more at this time.
    fn run(lease: &mut Lease, store: &mut MemoryStore, now_ms: u64) -> Change {
        let mut last = Change::None;
        while let Some(operation) = lease.poll(now_ms) {
            let change = lease.handle(now_ms, operation.run(store)).expect("records are whole");
            if change != Change::None {
                last = change;
            }
        }
        last
    }

    /// docs/faults.md: N7, A9
    #[test]
    fn one_instance_holds_it_and_another_takes_it_after_it_stood_still_for_a_lease() {
        let (mut store, mut first, mut second) = (MemoryStore::default(), lease(1), lease(2));
        assert_eq!(run(&mut first, &mut store, 0), Change::Held(Term(1)));
        for now_ms in (0..10_000).step_by(100) {
            assert_eq!(run(&mut first, &mut store, now_ms), Change::None);
            assert_eq!(run(&mut second, &mut store, now_ms), Change::None, "{now_ms}");
        }
        let ends =
            (10_000..).step_by(100).find(|now| run(&mut second, &mut store, *now) != Change::None);
        assert!(ends.is_some_and(|now| (10_900..11_500).contains(&now)), "{ends:?}");
        assert_eq!(run(&mut first, &mut store, 12_000), Change::Lost(Term(2)));
    }

    #[test]
    fn an_instance_that_ended_by_itself_is_not_waited_for() {
        let (mut store, mut first, mut second) = (MemoryStore::default(), lease(1), lease(2));
        assert_eq!(run(&mut first, &mut store, 0), Change::Held(Term(1)));
        first.release(1).expect("it is held").run(&mut store).expect("the store answers");
        assert_eq!(run(&mut second, &mut store, 2), Change::Held(Term(2)));
    }

    #[test]
    fn an_answer_that_was_lost_is_found_and_a_store_that_was_set_back_is_told_again() {
        let (mut store, mut first) = (MemoryStore::default(), lease(1));
        let before = store.clone();
        let lost = |operation: StoreOperation, store: &mut MemoryStore| {
            operation.run(store).expect("the store answers");
            Err::<StoreReply, _>(Error::unavailable("no answer"))
        };
        let asked = first.poll(0).expect("it reads");
        first.handle(0, asked.run(&mut store)).expect("whole");
        let asked = first.poll(0).expect("it stores");
        assert_eq!(first.handle(0, lost(asked, &mut store)).expect("whole"), Change::None);
        assert_eq!(run(&mut first, &mut store, 300), Change::Held(Term(1)));
        store = before;
        assert_eq!(run(&mut first, &mut store, 600), Change::SetBack, "it holds it as before");
        assert_eq!(run(&mut lease(2), &mut store, 700), Change::None, "and it is there again");
    }

    #[test]
    fn an_instance_that_was_replaced_does_not_take_the_lease_back() {
        let (mut store, mut first) = (MemoryStore::default(), lease(1));
        let mut second = Lease::new("app", 2, 1000, true, Planted::default());
        first.takes_over = true;
        assert_eq!(run(&mut first, &mut store, 0), Change::Held(Term(1)));
        assert_eq!(run(&mut second, &mut store, 1), Change::Held(Term(2)));
        first.raise(Term(2));
        assert_eq!(run(&mut first, &mut store, 2), Change::Lost(Term(2)));
    }

    #[test]
    fn a_term_that_peers_know_is_passed() {
        let (mut store, mut first) = (MemoryStore::default(), lease(1));
        assert_eq!(run(&mut first, &mut store, 0), Change::Held(Term(1)));
        first.raise(Term(7));
        assert_eq!(run(&mut first, &mut store, 1), Change::Held(Term(8)));
    }
}
