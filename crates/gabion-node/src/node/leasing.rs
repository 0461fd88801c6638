//! When a newer view may take effect here: once nobody can hold a promise any more that none does.
//!
//! ```text
//!   handle_view ─► no more promises ─► durable ─► the last promise has run out ─► in effect
//!                    the view before goes on ──────────────────────────────────►│
//! ```
//!
//! A member promises the one that answers reads, and the one that takes writes, for a short time
//! that no newer view takes effect at it (`gabion_replication`, `chain/lease.rs`). A process that
//! has just started does not know what the one before it has promised. So a view that is newer than
//! the one in effect at its start waits for one whole lease, also where it was durable already.

use super::Mutant;
use super::planted::is_planted;
use crate::NodeOptions;
use crate::state::ReplicaState;
use alloc::collections::BTreeMap;
use gabion_base::{ConfigNumber, ReplicaId};
use gabion_replication::GroupView;

/// Clocks of two members go apart by so many parts in a million at most.
const DRIFT_PPM: u64 = 500;

/// The clock of promises, and what an earlier process may have promised.
#[derive(Default)]
pub(super) struct Leasing {
    now_ms: Option<u64>,
    first_ms: u64,
    /// The process before this one may have promised something.
    may_have_promised: bool,
    /// The end of the last promise to each member, given in this process.
    promised: BTreeMap<ReplicaId, u64>,
    /// The newest view that is durable here.
    kept: ConfigNumber,
}

impl Leasing {
    /// At the start of a process, or of a node that is opened anew in it. `is_full` tells whether
    /// the view in effect has this replica as a full member.
    pub(super) fn begin(state: &ReplicaState, is_full: bool, options: &NodeOptions) -> Self {
        let forgets = is_planted(options, Mutant::RestartForgetsPromise);
        let may_have_promised = (is_full || state.view_waits) && !forgets;
        Self { may_have_promised, kept: state.view.config, ..Self::default() }
    }

    pub(super) fn pass(&mut self, lease_ms: u64) {
        if self.now_ms.is_none() {
            self.first_ms = lease_ms;
        }
        self.now_ms = Some(self.now_ms.unwrap_or(0).max(lease_ms));
    }

    /// The clock as last told.
    pub(super) const fn now_ms(&self) -> Option<u64> {
        self.now_ms
    }

    /// The protocol gives no more promises; the last one to this member ends then.
    pub(super) fn end(&mut self, holder: ReplicaId, until_ms: u64) {
        if until_ms > 0 {
            let promised_ms = self.promised.entry(holder).or_insert(0);
            *promised_ms = until_ms.max(*promised_ms);
        }
    }

    /// A view of this number is durable.
    pub(super) fn keep(&mut self, config: ConfigNumber) {
        assert!(config >= self.kept, "{config} is durable after {}", self.kept);
        self.kept = config;
    }

    /// Whether the view of this number is durable.
    pub(super) fn is_kept(&self, config: ConfigNumber) -> bool {
        self.kept == config
    }

    /// Whether this view may take effect: no promise of this member that speaks against it holds
    /// any more, nor one of the process before. A node that is told no such clock has promised
    /// nothing.
    ///
    /// A promise to a full member of the view does not speak against it. Nothing counts in a view,
    /// neither a write nor a read, before all its full members have said Hello in it, and whoever
    /// has answers no more by the view before.
    pub(super) fn is_free(&self, view: &GroupView, options: &NodeOptions) -> bool {
        let lease_ms = u64::from(options.lease_ms);
        let before_ms = if self.may_have_promised { self.first_ms + lease_ms } else { 0 };
        let bind = self.promised.iter().filter(|(holder, _)| !view.has_full(**holder));
        let until_ms = bind.map(|(_, until_ms)| *until_ms).max().unwrap_or(0).max(before_ms);
        // Another one counts the same time by a clock that may be slow; and a clock is read in
        // whole ms.
        let margin_ms = (lease_ms * DRIFT_PPM).div_ceil(1_000_000) + 1;
        let has_passed = |now_ms| until_ms == 0 || now_ms > until_ms + margin_ms;
        let is_early = is_planted(options, Mutant::LeaseNotWaitedFor);
        is_early || self.now_ms.is_none_or(has_passed)
    }
}
