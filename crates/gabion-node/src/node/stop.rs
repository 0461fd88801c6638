//! The end of a process that was told to stop: its log is written out, then the pool is told so.
//!
//! ```text
//!   Runs ─► Draining ─► Marking ─► Stopped
//! ```

use gabion_log::Log;

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
    pub(super) fn is_draining(&self) -> bool {
        self.phase == Phase::Draining
    }

    /// Whether records have to wait for the note of how the ring was found: a crash after the first
    /// must find the pool without the marker.
    pub(super) const fn awaits_note(&self) -> bool {
        self.awaits_note
    }

    pub(super) fn state(&self, log: &Log) -> StopState {
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

    pub(super) fn await_note(&mut self) {
        self.awaits_note = true;
    }

    /// The pool says how the ring was found.
    pub(super) const fn noted(&mut self) {
        self.awaits_note = false;
    }

    /// The process is told to stop.
    pub(super) fn begin(&mut self) {
        self.phase = Phase::Draining;
    }

    /// The log is written out, and the pool is told so.
    pub(super) fn mark(&mut self) {
        assert!(self.is_draining(), "{:?}: the marker comes after the log, once", self.phase);
        (self.phase, self.is_stuck) = (Phase::Marking, false);
    }

    pub(super) fn note_stuck(&mut self, is_stuck: bool) {
        self.is_stuck = is_stuck && self.is_draining();
    }

    /// The marker is durable.
    pub(super) const fn stopped(&mut self) {
        self.phase = Phase::Stopped;
    }
}
