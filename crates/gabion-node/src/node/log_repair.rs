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

use super::{After, Node, Output};
use alloc::format;
use gabion_base::LogPosition;
use gabion_log::{RecoveryReport, Rot};
use gabion_replication::Lost;

/// A log that is not durable as far as it once was.
pub(super) struct LogRepair {
    /// Up to here it was.
    to: LogPosition,
    /// What is gone, where the ring does not have it either.
    lost: Option<Lost>,
    /// The loss is durable: from now on the log may change.
    is_noted: bool,
    /// Who fills the log was told.
    is_told: bool,
}

impl LogRepair {
    /// What the log lost and has not got back.
    pub(super) const fn lost(&self) -> Option<Lost> {
        self.lost
    }
}

impl Node {
    /// The log was cut at a rotten record.
    pub(super) fn begin_repair(&mut self, rot: Rot, lost: Lost) {
        self.log_repair =
            Some(LogRepair { to: lost.to, lost: Some(lost), is_noted: false, is_told: false });
        self.stage_state(Some(After::LossNoted));
        self.outputs.push_back(Output::Notice(format!(
            "the log is rotten: the record at {} ({} at {}) is not whole and was durable, as all up to {} \
             was; the log ends there until it comes from another replica",
            rot.position, rot.segment, rot.offset, lost.to
        )));
    }

    /// The log is whole, if only because the ring holds what segments do not any more.
    pub(super) fn begin_drain_again(&mut self, report: &RecoveryReport) {
        let (from, to) = (report.in_segments, report.watermark);
        if from >= to {
            return;
        }
        self.log_repair = Some(LogRepair { to, lost: None, is_noted: true, is_told: true });
        self.outputs.push_back(Output::Notice(format!(
            "the log's segments are not whole from {from} on, which were durable up to {to}; its ring is, \
             and they are written again"
        )));
    }

    pub(super) fn loss_noted(&mut self) {
        if let Some(repair) = &mut self.log_repair {
            repair.is_noted = true;
        }
    }

    /// Whether records have to wait: what they overwrite may be the only sign of what was lost.
    pub(super) fn awaits_note(&self) -> bool {
        self.awaits_ring_note() || self.log_repair.as_ref().is_some_and(|repair| !repair.is_noted)
    }

    /// Records come: says once from whom.
    pub(super) fn tell_source(&mut self, from: LogPosition) {
        let Some(repair) = self.log_repair.as_mut().filter(|repair| !repair.is_told) else {
            return;
        };
        let Some(source) = self.protocol.source() else { return };
        repair.is_told = true;
        self.outputs.push_back(Output::Notice(format!(
            "the log is repaired from {from} on, from replica {}",
            source.get()
        )));
    }

    /// Up to where the log is to be durable again.
    pub(super) fn repair_end(&self) -> LogPosition {
        self.log_repair.as_ref().map_or(LogPosition::ZERO, |repair| repair.to)
    }

    pub(super) fn end_repair(&mut self) {
        let durable = self.log.durable_end();
        if let Some(repair) = self.log_repair.take_if(|repair| durable >= repair.to) {
            self.outputs.push_back(Output::Notice(format!(
                "the log is repaired: it is durable again up to {}",
                repair.to
            )));
        }
    }
}
