//! A peer's holdings and work: [`Usage`] goes over the wire, [`Tally`] is for its operator's
//! metrics alone. Each count is an addition where the thing happens.

use super::{LentMemory, Peer, Supply};
use crate::MemoryRegion;
use crate::remote::message::{
    OWNERS_SHOWN_MAX, OwnerUsage, Refusal, RefusalReason, RegionId, Request, Usage,
};

/// Refusals by reason, in the order of [`RefusalReason::ALL`].
pub type Refusals = [u64; RefusalReason::ALL.len()];

/// Work of a peer since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests that were handed in, those that were refused included, in the order of
    /// [`Request::KINDS`].
    pub requests: [u64; Request::KINDS.len()],
    /// Refused chains of writes.
    pub refused_writes: Refusals,
    /// All other refused requests.
    pub refused_others: Refusals,
    /// Regions that were lent out of memory which lay ready.
    pub lent_ready: u64,
    /// Regions that were lent out of memory which was made for them.
    pub lent_made: u64,
    /// Regions that came back: given back, or replaced by a later one of their label.
    pub given_back: u64,
    /// Bytes that were zeroed, or brought in, ahead of need.
    pub readied_bytes: u64,
}

impl Tally {
    /// A request was refused.
    pub(super) const fn refuse(&mut self, is_write: bool, refusal: Refusal) {
        // Reasons are numbered from 1.
        let at = refusal.reason as usize - 1;
        match is_write {
            true => self.refused_writes[at] += 1,
            false => self.refused_others[at] += 1,
        }
    }
}

impl<S: Supply> Peer<S> {
    /// Its holdings and work. Connections are those that were greeted.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let with_regions = self.owners.values().filter(|owner| !owner.regions.is_empty());
        let mut usage = Usage {
            peer: self.config.peer,
            incarnation: self.config.incarnation,
            limit_bytes: self.config.limit_bytes,
            lent_bytes: self.lent_bytes,
            ready_bytes: self.stock.ready_bytes(),
            regions: self.regions.len() as u64,
            published: self.owners.values().map(|owner| owner.published.len() as u64).sum(),
            connections: self.clients.len() as u64,
            is_draining: self.is_draining,
            failure_domain: self.config.failure_domain.clone(),
            owners_count: with_regions.count() as u64,
            ..self.counts.clone()
        };
        let by_name = self.names.values().filter_map(|index| self.owners.get(index));
        let shown = by_name.filter(|owner| !owner.regions.is_empty()).take(OWNERS_SHOWN_MAX);
        usage.owners = shown
            .map(|owner| OwnerUsage {
                owner: owner.name.clone(),
                term: owner.term,
                regions: owner.regions.len() as u64,
                published: owner.published.len() as u64,
                bytes: self.lens(&owner.regions),
            })
            .collect();
        usage
    }

    /// Bytes of these regions.
    pub(super) fn lens<'a>(&self, regions: impl IntoIterator<Item = &'a RegionId>) -> u64 {
        let found = regions.into_iter().filter_map(|id| self.regions.get(id));
        found.map(|region| region.memory.len()).sum()
    }

    /// Counts that the usage has not.
    #[must_use]
    pub fn tally(&self) -> Tally {
        Tally { readied_bytes: self.stock.readied_bytes(), ..self.tally }
    }

    /// How many regions other processes have mapped.
    #[must_use]
    pub fn mapped(&self) -> u64 {
        self.regions.values().filter(|region| region.memory.is_shared()).count() as u64
    }

    /// Counts a refusal, and returns it: a connection may refuse a request by itself.
    pub fn refuse(&mut self, request: &Request<'_>, refusal: Refusal) -> Refusal {
        self.counts.refusals += 1;
        self.tally.refuse(matches!(request, Request::Write { .. }), refusal);
        refusal
    }
}
