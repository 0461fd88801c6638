//! Promises about reads. The member that answers reads, and the one that takes writes, answer from
//! their own state alone only while every other full member has promised that no newer view takes
//! effect at it (docs/replication.md, "Leases").
//!
//! ```text
//!   holder                                                          every other full member
//!   asks at t ── Heartbeat(t, lasts) ─────────────────────────────►  promises until its now + lasts
//!   holds until t + lasts  ◄───────────────────── Ack(t, lasts) ──   or is silent, once it has
//!                                                                    taken a newer view
//! ```
//!
//! Each counts by its own clock, and the holder from its own time of asking, which is before the
//! other's time of promising. So the clocks need to run alike and not to agree.

use super::Chain;
use crate::message::{Lease, Message, Progress};
use crate::planted::Mutant;

/// A member's promises, and its clock.
#[derive(Default)]
pub(super) struct Leases {
    /// The clock as last told. None where the node has none: then nobody asks and nobody waits.
    now_ms: Option<u64>,
    /// The last promise that was given ends then.
    promised_until_ms: u64,
    /// A newer view is on its way here: no promise is given any more.
    has_ended: bool,
}

impl Leases {
    pub(super) fn pass(&mut self, lease_ms: u64) {
        self.now_ms = Some(self.now_ms.unwrap_or(0).max(lease_ms));
    }

    pub(super) const fn end(&mut self) {
        self.has_ended = true;
    }

    pub(super) const fn promised_until_ms(&self) -> u64 {
        self.promised_until_ms
    }
}

impl Chain {
    /// Whether this member answers from its own state, and so needs promises.
    fn is_holder(&self) -> bool {
        self.index == 0 || self.is_reader()
    }

    /// Whether every other full member has promised up to a later time than now.
    pub(super) fn has_all_promises(&self) -> bool {
        let without = self.planted.has(Mutant::ReadsWithoutLease);
        let Some(now_ms) = self.leases.now_ms.filter(|_| !without) else { return true };
        let mut full = self.peers.iter().filter(|peer| peer.is_full);
        self.is_holder() && full.all(|peer| peer.promised_until_ms > now_ms)
    }

    /// The promise to ask a member for with a heartbeat that is sent now; none when it is not due.
    pub(super) fn lease_due(&mut self, i: usize) -> Lease {
        let (is_holder, every_ms) = (self.is_holder(), self.config.heartbeat_ms);
        let lasts_ms = self.config.lease_ms;
        let peer = &mut self.peers[i];
        let said_hello = peer.link.as_ref().is_some_and(|link| link.hello.is_some());
        let Some(now_ms) = self.leases.now_ms.filter(|_| is_holder && peer.is_full && said_hello)
        else {
            return Lease::default();
        };
        if peer.asked_ms.is_some_and(|asked_ms| now_ms - asked_ms < every_ms) {
            return Lease::default();
        }
        peer.asked_ms = Some(now_ms);
        Lease { asked_ms: now_ms, lasts_ms }
    }

    /// A member asks for a promise.
    pub(super) fn promise(&mut self, i: usize, asked: Lease) {
        let id = self.peers[i].id;
        let may_ask = id == self.head() || id == self.reader();
        let Some(now_ms) = self.leases.now_ms.filter(|_| self.is_full() && may_ask) else { return };
        let has_ended = self.leases.has_ended && !self.planted.has(Mutant::PromiseAfterView);
        if asked.lasts_ms == 0 || has_ended {
            return;
        }
        let lasts_ms = asked.lasts_ms.min(self.config.lease_ms);
        let until_ms = now_ms.saturating_add(u64::from(lasts_ms));
        self.leases.promised_until_ms = self.leases.promised_until_ms.max(until_ms);
        self.push(id, Message::Ack(Progress::default(), Lease { lasts_ms, ..asked }));
    }

    /// A member has promised.
    pub(super) fn promised_by(&mut self, i: usize, given: Lease) {
        // Nothing was asked for at a time that is yet to come.
        if self.leases.now_ms.is_some_and(|now_ms| given.asked_ms <= now_ms) {
            let lasts_ms = u64::from(given.lasts_ms.min(self.config.lease_ms));
            let peer = &mut self.peers[i];
            peer.promised_until_ms = peer.promised_until_ms.max(given.asked_ms + lasts_ms);
        }
    }
}
