//! The time in which writes were held back, by reason.
//!
//! ```text
//!   driver: a write met the gate ─► hold_write ─► held ──────────────────────────────────► no more
//!                                                  │  ▲ time that the node is told       ▲
//!                                                  └──┘ counts for the current reason    └ the gate is open, or refuses;
//!                                                                                          a write was taken
//! ```
//!
//! Only time in which a write waited counts: a gate that is closed while nobody writes costs nobody
//! anything. The time counts once however many wait. So the count per second is the part of it in
//! which writers stood still (RocksDB's `stall.micros` adds up the time of every writer).

use super::Counters;

/// The reasons that stop writers until they have passed. `GABION STATUS` and the like name these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStop {
    /// As many MemTables as may wait here for their flush.
    Flush,
    /// L0 has as many runs as it may (`l0_stop`).
    Compaction,
    /// A member applies edits late.
    Edits,
    /// The log's ring is full: the device takes the log more slowly than it is written.
    Ring,
    /// The log is as long as it may be, and is trimmed once what it holds is flushed.
    Log,
    /// There is no room, and compaction makes some.
    Room,
    /// A bulk load takes effect.
    Load,
}

impl WriteStop {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Flush, Self::Compaction, Self::Edits, Self::Ring, Self::Log, Self::Room, Self::Load];

    /// Its name in statistics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Flush => "flush",
            Self::Compaction => "compaction",
            Self::Edits => "edits",
            Self::Ring => "ring",
            Self::Log => "log",
            Self::Room => "room",
            Self::Load => "load",
        }
    }
}

/// Milliseconds in which writers were stopped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoppedMs([u64; WriteStop::ALL.len()]);

impl StoppedMs {
    /// The sum over all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The time of one reason.
    #[must_use]
    pub const fn by(&self, stop: WriteStop) -> u64 {
        self.0[stop as usize]
    }

    /// The time of each reason, by its name.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        WriteStop::ALL.into_iter().map(|stop| (stop.as_str(), self.by(stop)))
    }
}

/// The reason that holds writes back, as the gate judges it ([`super::gate`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// None: they are slowed down.
    pub(super) stop: Option<WriteStop>,
    /// Other writers give up here, and are told why: puts where there is no room, all where they
    /// would wait in vain.
    pub(super) others_give_up: bool,
}

/// Whether a write waits, and for how long any did.
#[derive(Default)]
pub(super) struct HeldWrites {
    /// The reason that holds it, and the time since when that is not counted yet.
    held: Option<(Held, u64)>,
    slowed_ms: u64,
    stopped_ms: StoppedMs,
}

impl HeldWrites {
    pub(super) const fn is_held(&self) -> bool {
        self.held.is_some()
    }

    pub(super) fn count_into(&self, counters: &mut Counters) {
        counters.writes_slowed_ms += self.slowed_ms;
        counters.writes_stopped_ms = self.stopped_ms;
    }

    /// A write waits from `now_ms` on, if something holds it.
    pub(super) fn hold(&mut self, held: Option<Held>, now_ms: u64) {
        assert!(self.held.is_none(), "it is one stretch of time however many wait");
        self.held = held.map(|held| (held, now_ms));
    }

    /// Time passed: it counts while a write waits.
    pub(super) fn pass(&mut self, now_ms: u64) {
        let Some((held, since_ms)) = &mut self.held else { return };
        let passed_ms = now_ms.saturating_sub(*since_ms);
        *since_ms += passed_ms;
        match held.stop {
            None => self.slowed_ms += passed_ms,
            Some(stop) => self.stopped_ms.0[stop as usize] += passed_ms,
        }
    }

    /// The turn has done all that was possible; `held` is the reason now.
    pub(super) fn judge(&mut self, held: Option<Held>) {
        let Some((before, since_ms)) = self.held else { return };
        // A writer that may have given up calls `hold` again if it has not.
        let held = held.filter(|held| before.others_give_up || !held.others_give_up);
        self.held = held.map(|held| (held, since_ms));
    }

    /// A write was taken: one that still waits calls `hold` again.
    pub(super) const fn release(&mut self) {
        self.held = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(stop: Option<WriteStop>, others_give_up: bool) -> Option<Held> {
        Some(Held { stop, others_give_up })
    }

    #[test]
    fn time_counts_once_for_what_holds_a_write_until_one_is_taken() {
        let flush = || held(Some(WriteStop::Flush), false);
        let mut writes = HeldWrites::default();
        writes.pass(10);
        writes.hold(flush(), 10);
        writes.pass(13);
        writes.pass(12);
        writes.judge(held(None, false));
        writes.pass(20);
        assert_eq!((writes.stopped_ms.by(WriteStop::Flush), writes.slowed_ms), (3, 7));
        writes.release();
        writes.pass(100);
        writes.hold(None, 100);
        assert!(!writes.is_held(), "the gate is open");
        // A write that would wait in vain is told so, and says again that it waits.
        writes.hold(flush(), 100);
        writes.judge(held(Some(WriteStop::Room), true));
        writes.pass(200);
        assert_eq!((writes.stopped_ms.total(), writes.slowed_ms), (3, 7));
    }
}
