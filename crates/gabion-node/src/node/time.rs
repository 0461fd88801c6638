//! Group time while nobody writes.
//!
//! Every record carries the head's clock, and what has expired is judged by it (see
//! [`gabion_engine::expiry`]). So that a key goes when its time comes, and not with the next write,
//! the head appends a record that carries nothing else: an empty batch. It does so once for each
//! millisecond in which something expires that it knows of; and, for what files held when it
//! started, ten times a second from the first of their expiries to the last. A group without
//! expiring keys gets none.
//!
//! Readers judge by what they have applied, so a key is gone everywhere at one position of the log:
//! who has seen it gone never meets it again, at whatever replica, and the head decides by the same
//! time as its secondaries will. What it costs is lateness: the head's tick and the way of one
//! record.

use super::Node;
use gabion_engine::WriteState;

/// How far garbage slows writers down at most, in thousandths of the way to nothing: to a tenth of
/// the pace of compactions.
const GARBAGE_FILL_MAX: u64 = 950;

impl Node {
    /// When, by the clock that the node is told, a record is wanted that carries time. Whoever
    /// drives a head calls [`Self::pass_time`] or [`Self::advance`] then.
    #[must_use]
    pub fn time_due_ms(&self) -> Option<u64> {
        self.tree.time_due_ms().filter(|_| self.duties().append)
    }

    /// The clock as the node was last told, in milliseconds since 1970, or the group's time where
    /// that is ahead.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_ms.max(self.tree.now_ms())
    }

    /// The clock begins at `now_ms`: a driver may choose it by the group's time
    /// ([`gabion_engine::Tree::now_ms`]), which is known when the log has been replayed. Only
    /// before any event.
    pub fn begin_at(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.protocol.begin_at(now_ms);
    }

    /// The clock goes on, for all that counts time.
    pub(super) fn set_now(&mut self, now_ms: u64) {
        self.held_writes.pass(now_ms);
        self.now_ms = now_ms;
        let l0 = match self.tree.write_state() {
            WriteState::Slow(fill) => Some(fill),
            WriteState::Ok | WriteState::Stop(_) => None,
        };
        // Garbage that the pace of collection leaves is meant to be there, and what damaged files
        // lead to cannot be collected.
        let is_behind = |_: &u64| self.jobs.may_collect() && self.damage().is_none();
        let garbage = self.tree.garbage_fill().filter(is_behind);
        self.pace.pass(now_ms, l0.max(garbage.map(|fill| fill.min(GARBAGE_FILL_MAX))));
    }
}
