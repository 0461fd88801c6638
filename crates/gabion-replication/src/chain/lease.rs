//! Promises about reads. The member that answers reads, and the one that takes writes, answer from
//! their own state alone only while every other full member has promised that no newer view takes
//! effect at it (docs/replication.md, "Leases").
//!
//! ```text
//!   holder                                                         every other full member
//!   asks at t ── Heartbeat(t, lasts) ────────────────────────────►  promises until its now + lasts
//!   holds until t + lasts  ◄──────────────────── Ack(t, lasts) ──   or is silent, once it has
//!                                                                   taken a newer view
//! ```
//!
//! Each counts by its own clock, and the holder from its own time of asking, which is before the
//! other's time of promising. So the clocks need to run alike and not to agree.

use crate::message::Lease;
use alloc::collections::BTreeMap;
use gabion_base::ReplicaId;

/// A member's promises to others, and its clock.
#[derive(Default)]
pub(super) struct Leases {
    /// The clock as last told. None where the node has none: then nobody asks and nobody waits.
    now_ms: Option<u64>,
    /// The end of the last promise to each member that asked.
    promised: BTreeMap<ReplicaId, u64>,
    /// A newer view is on its way here: no promise is given any more.
    has_ended: bool,
}

impl Leases {
    pub(super) fn pass(&mut self, lease_ms: u64) {
        self.now_ms = Some(self.now_ms.unwrap_or(0).max(lease_ms));
    }

    pub(super) const fn now_ms(&self) -> Option<u64> {
        self.now_ms
    }

    pub(super) const fn end(&mut self) {
        self.has_ended = true;
    }

    pub(super) fn promised_until_ms(&self, to: ReplicaId) -> u64 {
        self.promised.get(&to).copied().unwrap_or(0)
    }

    /// Promises a member what it asked for, up to so many ms. `goes_on` is a planted defect.
    pub(super) fn promise(
        &mut self,
        to: ReplicaId,
        asked: Lease,
        most_ms: u32,
        goes_on: bool,
    ) -> Option<Lease> {
        let now_ms = self.now_ms.filter(|_| !self.has_ended || goes_on)?;
        if asked.lasts_ms == 0 {
            return None;
        }
        let lasts_ms = asked.lasts_ms.min(most_ms);
        let until_ms = now_ms.saturating_add(u64::from(lasts_ms));
        let promised_ms = self.promised.entry(to).or_insert(0);
        *promised_ms = until_ms.max(*promised_ms);
        Some(Lease { lasts_ms, ..asked })
    }
}

/// The promise of another member to this one.
#[derive(Default)]
pub(super) struct Promised {
    /// When it was last asked for on this connection.
    asked_ms: Option<u64>,
    until_ms: u64,
}

impl Promised {
    /// There is a new connection.
    pub(super) const fn reconnect(&mut self) {
        self.asked_ms = None;
    }

    /// The promise to ask for now, if the last time was so long ago.
    pub(super) fn ask(&mut self, now_ms: u64, every_ms: u64, lasts_ms: u32) -> Option<Lease> {
        if self.asked_ms.is_some_and(|asked_ms| now_ms - asked_ms < every_ms) {
            return None;
        }
        self.asked_ms = Some(now_ms);
        Some(Lease { asked_ms: now_ms, lasts_ms })
    }

    /// It is given. Nothing was asked for at a time that is yet to come, or for longer.
    pub(super) fn take(&mut self, given: Lease, now_ms: u64, most_ms: u32) {
        if given.asked_ms <= now_ms {
            let until_ms = given.asked_ms + u64::from(given.lasts_ms.min(most_ms));
            self.until_ms = self.until_ms.max(until_ms);
        }
    }

    pub(super) const fn holds_at(&self, now_ms: u64) -> bool {
        now_ms < self.until_ms
    }
}
