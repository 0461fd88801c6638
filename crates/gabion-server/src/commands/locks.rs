//! Locks of keys at the head. A command that reads and then writes holds its keys while it waits for
//! the read; whoever wants one of them queues behind it, first come, first served.
//!
//! ```text
//!   key a:  #7 ◄ #9          #7 holds a; #9 holds b and waits for a; #12 waits for #9
//!   key b:  #9 ◄ #12         FLUSHALL (#13) waits for all before it, all after it wait for it
//! ```
//!
//! A command enters the queues of all its keys at once, under one ticket, and runs when it is first
//! in each. Tickets are a total order, so no circle of waiting can form.
//!
//! Most commands find everything cached and end at their first poll. As all runs on one thread,
//! nothing can come between, so such a command touches no table here: it enters the queues only when
//! it has to wait.

use bytes::Bytes;
use core::cell::RefCell;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use gabion_base::HashMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The keys that a command needs for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeySet {
    /// Every key.
    All,
    /// These, each once.
    Some(Vec<Bytes>),
}

impl KeySet {
    /// These keys, of which some may be given twice.
    pub(crate) fn of<'a>(keys: impl Iterator<Item = &'a Bytes>) -> Self {
        let mut keys: Vec<Bytes> = keys.cloned().collect();
        keys.sort_unstable();
        keys.dedup();
        Self::Some(keys)
    }
}

/// The locks of one node.
#[derive(Default)]
pub struct KeyLocks {
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    next_ticket: u64,
    /// Who holds or waits, by ticket.
    holders: BTreeMap<u64, Holder>,
    /// Tickets of each key; the first holds it if nothing else keeps it waiting.
    queues: HashMap<Bytes, VecDeque<u64>>,
    /// Those of the tickets that want every key.
    exclusives: BTreeSet<u64>,
}

struct Holder {
    keys: KeySet,
    waker: Option<Waker>,
}

impl KeyLocks {
    /// No locks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nobody holds or waits for a lock.
    #[inline]
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state.borrow().holders.is_empty()
    }

    /// Commands that hold or wait for locks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.borrow().holders.len()
    }

    /// The same as [`Self::is_idle`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.is_idle()
    }

    /// Runs `work` while its keys are locked, after everyone who came before. `keys` is called when
    /// a lock is really needed.
    pub(crate) async fn hold<F: Future>(&self, keys: impl Fn() -> KeySet, work: F) -> F::Output {
        let mut work = pin!(work);
        let mut entered: Option<Entered<'_>> = None;
        let mut is_running = false;
        poll_fn(|cx| {
            if entered.is_none() && !self.is_idle() {
                let keys = keys();
                if !self.state.borrow().is_free(&keys) {
                    entered = Some(self.enter(keys));
                }
            }
            if let Some(entered) = &entered
                && !is_running
            {
                if !self.state.borrow_mut().is_turn(entered.ticket, cx) {
                    return Poll::Pending;
                }
                is_running = true;
            }
            let outcome = work.as_mut().poll(cx);
            if outcome.is_pending() && entered.is_none() {
                // Nobody ran since the keys were found free, so the turn is ours at once.
                entered = Some(self.enter(keys()));
                is_running = true;
            }
            outcome
        })
        .await
    }

    fn enter(&self, keys: KeySet) -> Entered<'_> {
        let ticket = self.state.borrow_mut().enter(keys);
        Entered { locks: self, ticket }
    }
}

/// A place in the queues; leaves them when dropped, also when the command was cancelled.
struct Entered<'a> {
    locks: &'a KeyLocks,
    ticket: u64,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let woken = self.locks.state.borrow_mut().leave(self.ticket);
        // Outside of the borrow: a waker may do anything.
        woken.into_iter().for_each(Waker::wake);
    }
}

impl State {
    /// Whether a newcomer for these keys could run at once.
    fn is_free(&self, keys: &KeySet) -> bool {
        match keys {
            KeySet::All => self.holders.is_empty(),
            KeySet::Some(keys) => {
                self.exclusives.is_empty() && !keys.iter().any(|key| self.queues.contains_key(key))
            }
        }
    }

    fn enter(&mut self, keys: KeySet) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        match &keys {
            KeySet::All => {
                self.exclusives.insert(ticket);
            }
            KeySet::Some(keys) => {
                for key in keys {
                    self.queues.entry(key.clone()).or_default().push_back(ticket);
                }
            }
        }
        self.holders.insert(ticket, Holder { keys, waker: None });
        ticket
    }

    /// Whether the ticket may run; if not, `cx` is woken when that may have changed.
    fn is_turn(&mut self, ticket: u64, cx: &Context<'_>) -> bool {
        let first = self.holders.keys().next().copied();
        let exclusive_before = self.exclusives.range(..ticket).next().is_some();
        let queues = &self.queues;
        let Some(holder) = self.holders.get_mut(&ticket) else { return true };
        let is_turn = match &holder.keys {
            KeySet::All => first == Some(ticket),
            KeySet::Some(keys) => {
                let is_first =
                    |key: &Bytes| queues.get(key).and_then(|queue| queue.front()) == Some(&ticket);
                !exclusive_before && keys.iter().all(is_first)
            }
        };
        holder.waker = (!is_turn).then(|| cx.waker().clone());
        is_turn
    }

    /// Removes a ticket; returns the wakers of those who may run now.
    fn leave(&mut self, ticket: u64) -> Vec<Waker> {
        let Some(holder) = self.holders.remove(&ticket) else { return Vec::new() };
        let mut woken = Vec::new();
        match holder.keys {
            KeySet::All => {
                self.exclusives.remove(&ticket);
                // Rare, so everyone looks for himself.
                woken.extend(self.holders.values_mut().filter_map(|waiting| waiting.waker.take()));
            }
            KeySet::Some(keys) => {
                for key in &keys {
                    let Some(queue) = self.queues.get_mut(key) else { continue };
                    if queue.front() == Some(&ticket) {
                        queue.pop_front();
                    } else {
                        // Cancelled while it waited.
                        queue.retain(|&waiting| waiting != ticket);
                    }
                    match queue.front().copied() {
                        Some(next) => woken.extend(self.take_waker(next)),
                        None => {
                            self.queues.remove(key);
                        }
                    }
                }
            }
        }
        if let Some((&first, _)) = self.holders.first_key_value()
            && self.exclusives.contains(&first)
        {
            woken.extend(self.take_waker(first));
        }
        woken
    }

    fn take_waker(&mut self, ticket: u64) -> Option<Waker> {
        self.holders.get_mut(&ticket)?.waker.take()
    }
}
