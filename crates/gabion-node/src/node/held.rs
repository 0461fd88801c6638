//! For how long writes were held back, and by what.
//!
//! ```text
//!   driver: a write met the gate ─► hold_write ─► held ──────────────────────────────────► no more
//!                                                  │  ▲ time that the node is told       ▲
//!                                                  └──┘ counts for what holds by then    └ the gate is open, or refuses;
//!                                                                                          a write was taken
//! ```
//!
//! Counted is time in which a write waited, not time in which one would have had to: a gate that is closed while nobody
//! writes costs nobody anything. It is one stretch of time however many wait, so what it comes to in a second says which
//! part of it writers stood still (RocksDB's `stall.micros` adds up the time of every writer).

use super::{Node, WriteGate};

/// What stops writers: they wait until it has passed. `GABION STATUS` and the like name these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStop {
    /// As many MemTables as may wait for their flush, here or at another member.
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

    /// As it is named in statistics.
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

/// Milliseconds in which writers were stopped, by what stopped them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoppedMs([u64; WriteStop::ALL.len()]);

impl StoppedMs {
    /// By all together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// By one.
    #[must_use]
    pub const fn by(&self, stop: WriteStop) -> u64 {
        self.0[stop as usize]
    }

    /// By each, by its name.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        WriteStop::ALL.into_iter().map(|stop| (stop.as_str(), self.by(stop)))
    }
}

/// What holds writes back.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Held {
    /// None: they are slowed down.
    stop: Option<WriteStop>,
    /// Others give up here, and are told why: puts where there is no room, whoever would wait in vain.
    others_give_up: bool,
}

/// Whether a write waits, and since when that is not counted yet.
#[derive(Default)]
pub(super) struct HeldWrites(Option<(Held, u64)>);

impl Node {
    /// A write met the gate at `now_ms`, in milliseconds since 1970, and waits for it: to be said each time that one does,
    /// also by one that has waited already. Without effect when the gate holds nothing back.
    pub fn hold_write(&mut self, now_ms: u64) {
        if self.held_writes.0.is_none() {
            self.held_writes.0 = self.holding().map(|held| (held, now_ms));
        }
    }

    /// What holds back a write that meets the gate now.
    fn holding(&self) -> Option<Held> {
        let lagging = || self.lag().map(|(stop, _)| stop);
        match self.write_gate() {
            WriteGate::Wait(_) => {
                let stop = lagging().or_else(|| self.full().map(|_| WriteStop::Room));
                Some(Held { stop, others_give_up: self.writes_wait_in_vain().is_some() })
            }
            WriteGate::Full { takes_deletes: false, .. } if !self.jobs_pause() => {
                Some(Held { stop: lagging(), others_give_up: true })
            }
            WriteGate::Open | WriteGate::Full { .. } | WriteGate::Refuse(_) => None,
        }
    }

    /// Time passed: it counts for who waits.
    pub(super) fn count_held(&mut self, now_ms: u64) {
        let Some((held, since_ms)) = &mut self.held_writes.0 else { return };
        let passed_ms = now_ms.saturating_sub(*since_ms);
        *since_ms += passed_ms;
        match held.stop {
            None => self.counters.writes_slowed_ms += passed_ms,
            Some(stop) => self.counters.writes_stopped_ms.0[stop as usize] += passed_ms,
        }
    }

    /// Looks at what holds back who waits, once everything that was possible was done.
    pub(super) fn judge_held(&mut self) {
        let Some((before, since_ms)) = self.held_writes.0 else { return };
        // Where who waited may have given up, it says again that it has not.
        let held = self.holding().filter(|held| before.others_give_up || !held.others_give_up);
        self.held_writes.0 = held.map(|held| (held, since_ms));
    }

    /// A write was taken: who still waits says so again.
    pub(super) fn release_writes(&mut self) {
        self.held_writes.0 = None;
    }
}
