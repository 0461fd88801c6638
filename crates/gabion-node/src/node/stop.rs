//! The end of a process that was told to stop, and what the next one makes of how the last ended:
//! [`crate::ring`].
//!
//! Once told, the node does nothing more than to write its log out: no jobs, no messages, no
//! records. Whoever drives it carries out its orders until [`Node::stop_state`] says that it has
//! stopped, or cannot.

use super::planted::Mutant;
use super::{After, Node, Output};
use crate::ring::{Fate, RingFound, RingLoss, nothing_lost};
use alloc::string::ToString;
use gabion_base::LogPosition;
use gabion_log::Log;
use gabion_replication::Whole;

/// How far the node is with what a process that stops leaves behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopState {
    /// It was not told to stop.
    Runs,
    /// So many bytes of log are still to be written.
    Draining(u64),
    /// The pool is told that the process stopped cleanly.
    Marking,
    /// That is durable: whatever becomes of the ring, nothing is lost.
    Stopped,
    /// The log finds no room in the pool, for this reason: what is in the ring alone stays there,
    /// and the next start needs it.
    Stuck(&'static str),
}

/// The end of a process that was told to stop, and the note that its beginning waits for.
#[derive(Default)]
pub(super) struct Stopping {
    phase: Phase,
    /// Nothing is under way that could give the log room, or be waited for.
    is_stuck: bool,
    /// The pool does not yet say how this process found its ring: until it does, no record may come.
    awaits_note: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Runs,
    Draining,
    Marking,
    Stopped,
}

impl Stopping {
    // ---- questions

    /// Whether the process was told to stop.
    pub(super) fn is_begun(&self) -> bool {
        self.phase != Phase::Runs
    }

    /// Whether the log is being written out.
    fn is_draining(&self) -> bool {
        self.phase == Phase::Draining
    }

    /// Whether records have to wait for the note of how the ring was found: a crash after the first
    /// must find the pool without the marker.
    pub(super) const fn awaits_note(&self) -> bool {
        self.awaits_note
    }

    fn state(&self, log: &Log) -> StopState {
        match self.phase {
            Phase::Runs => StopState::Runs,
            Phase::Marking => StopState::Marking,
            Phase::Stopped => StopState::Stopped,
            Phase::Draining if self.is_stuck => {
                StopState::Stuck("no slot is free for the log's next segment")
            }
            Phase::Draining => {
                StopState::Draining(log.end().get().saturating_sub(log.durable_end().get()))
            }
        }
    }

    /// Checks what holds between steps.
    pub(super) fn invariants(&self) {
        assert!(!self.is_stuck || self.is_draining(), "{:?} is stuck", self.phase);
    }

    // ---- from begin to stopped

    fn await_note(&mut self) {
        self.awaits_note = true;
    }

    /// The pool says how the ring was found.
    pub(super) const fn noted(&mut self) {
        self.awaits_note = false;
    }

    /// The process is told to stop.
    fn begin(&mut self) {
        self.phase = Phase::Draining;
    }

    /// The log is written out, and the pool is told so.
    fn mark(&mut self) {
        assert!(self.is_draining(), "{:?}: the marker comes after the log, once", self.phase);
        (self.phase, self.is_stuck) = (Phase::Marking, false);
    }

    fn note_stuck(&mut self, is_stuck: bool) {
        self.is_stuck = is_stuck && self.is_draining();
    }

    /// The marker is durable.
    pub(super) const fn stopped(&mut self) {
        self.phase = Phase::Stopped;
    }
}

impl Node {
    /// What a start makes of the ring and of how the last process ended: the pool forgets the
    /// marker, and remembers the loss and the number of the ring, before any record comes.
    pub(crate) fn begin_ring(
        &mut self,
        ring: &RingFound,
        stopped: Option<LogPosition>,
        loss: Option<&RingLoss>,
    ) {
        let text = match (ring, stopped, loss) {
            (_, _, Some(loss)) => Some(loss.to_string()),
            (RingFound::Lost(why), Some(stopped), None) => Some(nothing_lost(why, stopped)),
            // The loss that an earlier process found, and that nobody was told who then stopped it.
            _ => self.ring_loss().map(ToString::to_string),
        };
        self.outputs.extend(text.map(Output::Notice));
        if self.has(Mutant::MarkerKept) {
            self.state.ring.stopped = stopped;
        }
        if *ring != RingFound::Whole || stopped.is_some() {
            self.stopping.await_note();
            self.stage_state(Some(After::RingNoted));
        }
    }

    /// What may be gone with a ring, unless a process that told it has stopped cleanly since.
    #[must_use]
    pub fn ring_loss(&self) -> Option<&RingLoss> {
        self.state.ring.loss.as_ref().filter(|loss| !loss.is_told)
    }

    /// Learns what became of what its ring held, once it has what the group has.
    pub(super) fn judge_ring_loss(&mut self) {
        let Some(loss) = self.state.ring.loss.as_ref().filter(|loss| loss.fate == Fate::Open)
        else {
            return;
        };
        if !self.protocol.has_caught_up() || self.stopping.awaits_note() {
            return;
        }
        let fate = match self.protocol.whole_member(loss.term) {
            Whole::Member(id) => Fate::TakenOver(id),
            Whole::Nobody => Fate::Gone(self.protocol.term()),
            Whole::Unknown => return,
        };
        let loss = RingLoss { fate, ..loss.clone() };
        self.protocol.set_gap(loss.gap());
        self.outputs.push_back(Output::Notice(loss.to_string()));
        self.state.ring.loss = Some(loss);
        self.stage_state(None);
    }

    /// Tells the node that its process is to end. The caller hands it no further messages and
    /// writes; the results of orders as before.
    ///
    /// # Durability
    /// Once [`Self::stop_state`] says so, the whole log of this replica is in its pool and survives
    /// a power cut and the loss of the ring; writes past the log are not.
    pub fn stop(&mut self) {
        if !self.is_stopping() {
            self.end_turn_before_event();
            self.stopping.begin();
        }
    }

    /// How far it is.
    #[must_use]
    pub fn stop_state(&self) -> StopState {
        self.stopping.state(&self.log)
    }

    /// All that a node does that was told to stop.
    pub(super) fn advance_stop(&mut self) {
        if self.stopping.is_draining() {
            self.schedule_drains();
            let is_written = self.log.durable_end() >= self.log.end() && !self.is_draining();
            if is_written || self.has(Mutant::MarkerBeforeLog) {
                self.stopping.mark();
                self.state.ring.stopped = Some(self.log.end());
                if let Some(loss) =
                    self.state.ring.loss.as_mut().filter(|loss| loss.fate != Fate::Open)
                {
                    loss.is_told = true;
                }
                self.stage_state(Some(After::Stopped));
            }
        }
        self.schedule_commit();
        let is_idle = !self.is_draining() && self.commits.in_flight.is_none();
        let lacks = self.log.durable_end() < self.log.end();
        self.stopping.note_stuck(is_idle && lacks);
    }
}
