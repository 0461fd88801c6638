//! Members that do not hear each other, though the controller hears both: one of them goes.
//!
//! ```text
//!   reports: 1 does not hear 2, 2 does not hear 1 ─► for long enough ─► most links cut? ─► CutOff
//!                                                       as many: not the writer, then the later
//! ```
//!
//! A chain needs each of its links, and nobody but the controller knows which end is the one to do
//! without: each end sees the other out. One member goes at a time, as its links may be all that is
//! cut. It comes back to be filled, and is full only once nobody misses it and it misses nobody.

use crate::controller::Group;
use crate::{Patience, Verdict};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use gabion_base::{ConfigNumber, ReplicaId};

/// The members that a replica does not hear: since when, and in which configuration.
#[derive(Default)]
pub(crate) struct Unheard(BTreeMap<ReplicaId, (ConfigNumber, u64)>);

impl Unheard {
    /// A report came. One of another configuration than the last begins anew: its members were just
    /// connected.
    pub(crate) fn hear(&mut self, config: ConfigNumber, unheard: &[ReplicaId], now_ms: u64) {
        self.0.retain(|id, (since, _)| *since == config && unheard.contains(id));
        for id in unheard {
            self.0.entry(*id).or_insert((config, now_ms));
        }
    }

    /// Those that were missing in every report of this configuration since `until_ms` or earlier.
    fn lasting(&self, config: ConfigNumber, until_ms: u64) -> impl Iterator<Item = ReplicaId> + '_ {
        let lasts = move |(_, (since, since_ms)): &(&ReplicaId, &(ConfigNumber, u64))| {
            *since == config && *since_ms <= until_ms
        };
        self.0.iter().filter(lasts).map(|(id, _)| *id)
    }
}

impl Group {
    /// Pairs of members of the newest view of which the first has not heard the second for so many
    /// ms. Both report from that view.
    fn cut_links(&self, least_ms: u64) -> Vec<(ReplicaId, ReplicaId)> {
        let newest = self.record.newest();
        let in_view = |id: ReplicaId| {
            let replica = self.replicas.get(&id).filter(|_| newest.place_of(id).is_some())?;
            let report = replica.report.as_ref()?;
            (report.config() == newest.config).then_some(replica)
        };
        let mut links = Vec::new();
        for id in newest.members.iter().map(|member| member.replica) {
            let Some(replica) = in_view(id) else { continue };
            let until_ms = replica.detector.heard_ms().saturating_sub(least_ms);
            let missed = replica.unheard.lasting(newest.config, until_ms);
            links.extend(missed.filter(|other| in_view(*other).is_some()).map(|other| (id, other)));
        }
        links
    }

    /// Whether a member misses another or is missed just now: then it is not made full.
    pub(crate) fn has_cut_link(&self, id: ReplicaId) -> bool {
        self.cut_links(0).iter().any(|(of, to)| *of == id || *to == id)
    }

    /// The verdicts, with that on a full member whose links are cut, if there is one among those
    /// that are well.
    pub(crate) fn with_cut_off(
        &self,
        mut verdicts: Vec<(ReplicaId, Verdict)>,
        patience: &Patience,
    ) -> Vec<(ReplicaId, Verdict)> {
        let newest = self.record.newest();
        let is_well =
            |id: &ReplicaId| newest.has_full(*id) && verdicts.contains(&(*id, Verdict::Well));
        // In passing anybody may be missed, as while a connection is made anew.
        let mut lasting = self.cut_links(3 * patience.report_ms);
        lasting.retain(|(of, to)| is_well(of) && is_well(to));
        if lasting.is_empty() {
            return verdicts;
        }
        let mut links = self.cut_links(0);
        links.retain(|(of, to)| is_well(of) && is_well(to));
        let cut = |id: &ReplicaId| links.iter().filter(|(of, to)| of == id || to == id).count();
        let candidates = newest.full().map(|member| member.replica).filter(|id| cut(id) > 0);
        let worst = candidates
            .max_by_key(|id| (cut(id), Reverse(*id == newest.writer()), newest.place_of(*id)));
        if let Some(worst) = worst
            && let Some((_, verdict)) = verdicts.iter_mut().find(|(id, _)| *id == worst)
        {
            *verdict = Verdict::CutOff;
        }
        verdicts
    }
}
