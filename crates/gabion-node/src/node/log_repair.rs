//! A log that ends at a rotten record, until others have filled it again (docs/faults.md E4).
//!
//! ```text
//!   open ──► noted ──────► filled by others ──────────► durable again
//!     └ what was lost is    └ from the predecessor, or    └ up to where it once was; over
//!       made durable first    at the head from the winner
//! ```
//!
//! A kill anywhere here starts over: the note is never taken back, and a start that finds less than
//! it says finds the same loss, or what is left of it; or nothing, where the ring holds all that
//! came: then only the segments are written again. The tree may be ahead of the log meanwhile, so
//! the first edits that come may be applied already.

use super::effects::Effects;
use super::orders::After;
use alloc::format;
use gabion_base::{LogPosition, ReplicaId};
use gabion_log::{RecoveryReport, Rot};
use gabion_replication::Lost;

/// The log's repair, while it is not durable as far as it once was.
#[derive(Default)]
pub(super) struct LogRepair(Option<Repair>);

struct Repair {
    /// Up to here it was durable.
    to: LogPosition,
    /// What is gone, where the ring does not have it either.
    lost: Option<Lost>,
    /// The loss is durable: from now on the log may change.
    is_noted: bool,
    /// Who fills the log was told.
    is_told: bool,
}

impl LogRepair {
    // ---- questions

    /// What the log lost and has not got back.
    pub(super) fn lost(&self) -> Option<Lost> {
        self.0.as_ref().and_then(|repair| repair.lost)
    }

    /// Whether records have to wait: what they overwrite may be the only sign of what was lost.
    pub(super) fn awaits_note(&self) -> bool {
        self.0.as_ref().is_some_and(|repair| !repair.is_noted)
    }

    /// Up to where the log is to be durable again.
    pub(super) fn end(&self) -> LogPosition {
        self.0.as_ref().map_or(LogPosition::ZERO, |repair| repair.to)
    }

    /// Checks what holds between steps.
    pub(super) fn invariants(&self) {
        let Some(Repair { to, lost, .. }) = &self.0 else { return };
        assert!(lost.is_none_or(|lost| lost.from < *to), "what was lost lies below {to}");
    }

    // ---- from cut to durable

    /// The log was cut at a rotten record.
    pub(super) fn begin(&mut self, effects: &mut Effects, rot: &Rot, lost: Lost) {
        let (to, lost) = (lost.to, Some(lost));
        self.0 = Some(Repair { to, lost, is_noted: false, is_told: false });
        effects.stage_state(Some(After::LossNoted));
        effects.notice(format!(
            "the log is rotten: the record at {} ({} at {}) is not whole and was durable, as all \
             up to {to} was; the log ends there until it comes from another replica",
            rot.position, rot.segment, rot.offset
        ));
    }

    /// The log is whole, if only because the ring holds what segments do not any more.
    pub(super) fn begin_drain_again(&mut self, effects: &mut Effects, report: &RecoveryReport) {
        let (from, to) = (report.in_segments, report.watermark);
        if from >= to {
            return;
        }
        self.0 = Some(Repair { to, lost: None, is_noted: true, is_told: true });
        effects.notice(format!(
            "the log's segments are not whole from {from} on, which were durable up to {to}; its \
             ring is, and they are written again"
        ));
    }

    pub(super) fn noted(&mut self) {
        if let Some(repair) = &mut self.0 {
            repair.is_noted = true;
        }
    }

    /// Records come from a member: says so once.
    pub(super) fn filled(
        &mut self,
        effects: &mut Effects,
        from: LogPosition,
        source: Option<ReplicaId>,
    ) {
        let Some(repair) = self.0.as_mut().filter(|repair| !repair.is_told) else { return };
        let Some(source) = source else { return };
        repair.is_told = true;
        let source = source.get();
        effects.notice(format!("the log is repaired from {from} on, from replica {source}"));
    }

    /// The log is durable up to `end`.
    pub(super) fn durable(&mut self, effects: &mut Effects, end: LogPosition) {
        if let Some(repair) = self.0.take_if(|repair| end >= repair.to) {
            let to = repair.to;
            effects.notice(format!("the log is repaired: it is durable again up to {to}"));
        }
    }
}
