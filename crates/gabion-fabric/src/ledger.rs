//! The flushes of all media of one pool file, while their results are not known.
//!
//! ```text
//!   begin ─► number ─► system call ─► judged ─┬─ failed: so do all that are held, and all later ones
//!                                             └─ done: held while one that had a number then still has it
//! ```
//!
//! The system reports a failed write-back once per descriptor: if a device lost data, one of two
//! flushes may find nothing wrong any more. So a finished flush proves nothing while another, which
//! ran when it ended, may turn out to have failed. A held flush has given its number back: it waits
//! for others, and none waits for it.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The flushes of a pool file.
#[derive(Default)]
pub(crate) struct Ledger {
    entries: Mutex<Entries>,
    judged: Condvar,
}

#[derive(Default)]
struct Entries {
    /// The number of the next flush.
    next: u64,
    /// Flushes that are not judged.
    running: BTreeSet<u64>,
    /// Set once one failed: the text that errors must add.
    failure: Option<String>,
    /// The number before which all must be judged, and the event counter of the medium that waits
    /// for it.
    held: Vec<(u64, Arc<OwnedFd>)>,
}

impl Entries {
    /// All flushes before this number are judged.
    fn first(&self) -> u64 {
        self.running.first().copied().unwrap_or(self.next)
    }

    fn wake(&mut self) {
        let first = self.first();
        self.held.retain(|(before, counter)| {
            let stays = first < *before;
            if !stays {
                // It fails only when the counter is at its maximum, and then the reader is awake
                // anyway.
                let _ = rustix::io::write(counter, &1u64.to_ne_bytes());
            }
            stays
        });
    }
}

impl Ledger {
    /// The entries; a thread that panicked while it held them left them whole.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a flush its number, before its system call. The number must be given back, however the
    /// flush ends: others wait for that.
    pub(crate) fn begin(&self) -> u64 {
        let entries = &mut *self.lock();
        let number = entries.next;
        entries.next += 1;
        entries.running.insert(number);
        number
    }

    /// A flush failed. No held flush counts, nor any later one, and their errors add `besides`.
    pub(crate) fn fail(&self, number: u64, besides: String) {
        let entries = &mut *self.lock();
        entries.failure = Some(besides);
        self.give_back(number, entries);
    }

    /// A flush is done. It counts once all before the returned number are judged. If it has to wait
    /// for that, the counter is written to then.
    pub(crate) fn hold(&self, number: u64, counter: Option<&Arc<OwnedFd>>) -> u64 {
        let entries = &mut *self.lock();
        self.give_back(number, entries);
        let before = entries.next;
        if entries.first() < before {
            entries.held.extend(counter.map(|counter| (before, counter.clone())));
        }
        before
    }

    fn give_back(&self, number: u64, entries: &mut Entries) {
        entries.running.remove(&number);
        entries.wake();
        self.judged.notify_all();
    }

    /// Whether some flush before this number is not judged.
    pub(crate) fn is_held(&self, before: u64) -> bool {
        self.lock().first() < before
    }

    /// Sleeps until all before this number are judged.
    pub(crate) fn wait(&self, before: u64) {
        let is_held = |entries: &mut Entries| entries.first() < before;
        let judged = self.judged.wait_while(self.lock(), is_held);
        drop(judged.unwrap_or_else(PoisonError::into_inner));
    }

    /// The text that errors of flushes must add, if one failed.
    pub(crate) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }
}
