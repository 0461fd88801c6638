//! The end of a process that was told to stop, and what the next one makes of how the last ended:
//! [`crate::ring`].
//!
//! Once told, the node does nothing more than to write its log out: no jobs, no messages, no
//! records. Whoever drives it carries out its orders until [`Node::stop_state`] says that it has
//! stopped, or cannot.

use crate::node::orders::After;
use crate::node::planted::Mutant;
use crate::node::stop::StopState;
use crate::node::{Node, Output};
use crate::ring::{Fate, RingFound, RingLoss, nothing_lost};
use alloc::string::ToString;
use gabion_base::LogPosition;
use gabion_replication::Whole;

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
    pub(in crate::node) fn judge_ring_loss(&mut self) {
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
    pub(in crate::node) fn advance_stop(&mut self) {
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
