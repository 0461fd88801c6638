//! Room for files. A put is refused while enough slots are still free to flush what is in memory and to
//! compact the tree: deletes, which need that, go on and give back what they delete (FAULTS.md E10;
//! DESIGN.md, Pool: the reserve that keeps a full pool from deadlocking).
//!
//! ```text
//!   slots:  [ live files ······ | of jobs under way | free ··············· ]
//!                                └──── available ─────────────────────────┘
//!   needed: unflushed memory + one flush as it may turn out + the smallest compaction of any level
//!   short:  available < needed ─► levels are compacted below their aims, MemTables sealed early;
//!           with nothing left to do: puts are refused, deletes and FLUSHALL are not
//! ```

use super::Node;
use alloc::format;
use alloc::string::String;
use gabion_base::units::SLOT_LEN;

/// How often a MemTable that is not full is sealed while room is short, in ms: what is deleted bit by bit
/// is to be given back soon, not in a file each.
const SEAL_EVERY_MS: u64 = 1_000;
/// Slots that each MemTable's files may leave half empty.
const PARTIAL_SLOTS: u64 = 2;

/// What is known of the room, since the last turn.
#[derive(Default)]
pub(super) struct Room {
    /// Slots that the version which an edit left may need for its next jobs, and that edit.
    for_jobs: Option<(u64, u64)>,
    /// Slots that are available and that must be, while there are too few.
    short: Option<(u64, u64)>,
    sealed_ms: u64,
}

impl Room {
    pub(super) const fn is_short(&self) -> bool {
        self.short.is_some()
    }
}

impl Node {
    /// Judges how much room there is, once a turn.
    pub(super) fn judge_room(&mut self) {
        if !self.runs_jobs() {
            return;
        }
        let edit = self.tree.last_edit();
        let for_jobs = match self.room.for_jobs {
            Some((of, slots)) if of == edit => slots,
            _ => self.tree.slots_needed(),
        };
        self.room.for_jobs = Some((edit, for_jobs));
        let (memory, tables) = self.tree.unflushed();
        let needed = for_jobs + memory.div_ceil(SLOT_LEN) + PARTIAL_SLOTS * tables;
        // A compaction gives back at least what it takes; what a flush takes counts as memory above.
        let available = u64::from(self.pool.counts().free) + self.job_slots();
        self.room.short = (available < needed).then_some((available, needed));
        self.seal_for_room();
    }

    /// Seals a MemTable that is not full, so that the deletes in it take effect.
    fn seal_for_room(&mut self) {
        let is_due = self.now_ms.saturating_sub(self.room.sealed_ms) >= SEAL_EVERY_MS;
        let is_possible = self.is_head() && !self.is_in_turn() && self.not_writing().is_none();
        let is_useful = self.room.is_short() && !self.makes_room() && !self.tree.active_is_empty();
        if is_due && is_possible && is_useful {
            self.room.sealed_ms = self.now_ms;
            self.append_seal();
        }
    }

    /// Whether something is under way that may end with more room.
    pub(super) fn makes_room(&self) -> bool {
        self.jobs_running() > 0 || self.apply.waiting_count() > 0
    }

    /// Why puts are not taken, while room is short.
    pub(super) fn full(&self) -> Option<String> {
        let (available, needed) = self.room.short?;
        let total = self.pool.counts().total;
        Some(format!(
            "the pool is full: {available} slots of {total} are free, {needed} are kept for flushes and \
             compactions; deletes are taken"
        ))
    }
}
