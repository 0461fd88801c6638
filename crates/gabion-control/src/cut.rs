//! Members that do not hear each other, though the controller hears both: one of them goes.
//!
//! ```text
//!   reports: 1 does not hear 2, 2 does not hear 1 ─► for long enough ─► most links cut? ─► CutOff
//!                                                       as many: not the writer, then the later
//! ```
//!
//! A chain needs each of its links, and nobody but the controller knows which end is the one to do
//! without: each end sees the other out. Both have to report after the link was cut: one that is
//! dead is missed by the others before it has been silent for long enough. One member goes at a
//! time, as its links may be all that is cut. It comes back to be filled, and is full only once
//! nobody misses it and it misses nobody.

use crate::detector::Patience;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use gabion_base::{ConfigNumber, ReplicaId};
use gabion_replication::GroupView;

/// How long a replica that began may take to be connected with all others, in ms: these try every
/// half second, and report every tenth of one.
const SETTLING_MS: u64 = 700;

/// The members that a replica does not hear: since when, and in which configuration.
#[derive(Default)]
pub(crate) struct Unheard {
    missed: BTreeMap<ReplicaId, (ConfigNumber, u64)>,
    /// The incarnation of the replica itself, and when that reported first.
    begun: Option<(u64, u64)>,
}

impl Unheard {
    /// A report came. One of another configuration than the last begins anew: its members were just
    /// connected.
    pub(crate) fn hear(
        &mut self,
        config: ConfigNumber,
        unheard: &[ReplicaId],
        incarnation: u64,
        now_ms: u64,
    ) {
        self.missed.retain(|id, (since, _)| *since == config && unheard.contains(id));
        for id in unheard {
            self.missed.entry(*id).or_insert((config, now_ms));
        }
        if self.begun.is_none_or(|(before, _)| before != incarnation) {
            self.begun = Some((incarnation, now_ms));
        }
    }

    /// Nobody was heard for so many ms.
    pub(crate) fn skip(&mut self, ms: u64) {
        if let Some((_, begun_ms)) = &mut self.begun {
            *begun_ms = begun_ms.saturating_add(ms);
        }
    }

    /// Whether the replica has been there for long enough to be connected with all others.
    pub(crate) fn is_settled(&self, now_ms: u64) -> bool {
        self.begun.is_some_and(|(_, at_ms)| now_ms.saturating_sub(at_ms) >= SETTLING_MS)
    }

    /// Those that were missing in every report of this configuration since `until_ms` or earlier,
    /// and since when.
    fn lasting(
        &self,
        config: ConfigNumber,
        until_ms: u64,
    ) -> impl Iterator<Item = (ReplicaId, u64)> + '_ {
        let lasts = move |(_, (since, since_ms)): &(&ReplicaId, &(ConfigNumber, u64))| {
            *since == config && *since_ms <= until_ms
        };
        self.missed.iter().filter(lasts).map(|(id, (_, since_ms))| (*id, *since_ms))
    }
}

/// A replica's latest report, as far as it tells whom it hears.
pub(crate) struct Hearing<'a> {
    /// The replica.
    pub(crate) id: ReplicaId,
    /// The configuration in which it acts.
    pub(crate) acts_in: ConfigNumber,
    /// The members that it misses.
    pub(crate) unheard: &'a Unheard,
    /// When the report came.
    pub(crate) at_ms: u64,
}

/// A member that does not hear another one: the first, the second, and since when, in ms.
type CutLink = (ReplicaId, ReplicaId, u64);

/// Pairs of members of a view of which the first has not heard the second for so many ms. Both
/// report from that view.
fn cut_links(view: &GroupView, all: &[Hearing<'_>], least_ms: u64) -> Vec<CutLink> {
    let acts = |of: &Hearing<'_>| of.acts_in == view.config && view.place_of(of.id).is_some();
    let acts_as = |id: ReplicaId| all.iter().any(|of| of.id == id && acts(of));
    let mut links = Vec::new();
    for of in all.iter().filter(|of| acts(of)) {
        let missed = of.unheard.lasting(view.config, of.at_ms.saturating_sub(least_ms));
        let missed = missed.filter(|(to, _)| acts_as(*to));
        links.extend(missed.map(|(to, since_ms)| (of.id, to, since_ms)));
    }
    links
}

/// Whether a member misses another or is missed just now: then it is not made full.
pub(crate) fn has_cut_link(view: &GroupView, all: &[Hearing<'_>], id: ReplicaId) -> bool {
    cut_links(view, all, 0).iter().any(|(of, to, _)| *of == id || *to == id)
}

/// The full member that goes, if links between some that are well are cut.
pub(crate) fn cut_off(
    view: &GroupView,
    all: &[Hearing<'_>],
    is_well: impl Fn(&ReplicaId) -> bool,
    patience: &Patience,
) -> Option<ReplicaId> {
    let counts = |id: &ReplicaId| view.has_full(*id) && is_well(id);
    let is_heard_at =
        |id: &ReplicaId, at_ms: u64| all.iter().any(|of| of.id == *id && of.at_ms >= at_ms);
    let among = |least_ms: u64| -> Vec<CutLink> {
        let mut links = cut_links(view, all, least_ms);
        links.retain(|(of, to, since_ms)| {
            counts(of) && counts(to) && is_heard_at(to, since_ms + least_ms)
        });
        links
    };
    // In passing anybody may be missed, as while a connection is made anew.
    if among(2 * patience.report_ms).is_empty() {
        return None;
    }
    let links = among(0);
    let cut = |id: &ReplicaId| links.iter().filter(|(of, to, _)| of == id || to == id).count();
    let candidates = view.full().map(|member| member.replica).filter(|id| cut(id) > 0);
    candidates.max_by_key(|id| (cut(id), Reverse(*id == view.writer()), view.place_of(*id)))
}
