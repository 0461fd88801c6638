//! The slots of a region: each in exactly one state, and the only place where a state changes.
//!
//! ```text
//!                 allocate          add_file          retire        last reader left,
//!            ┌──────────► allocated ────────┐                       retirement durable
//!            │                 │            ▼                            │
//!    free ───┤         unknown │          live ──────► retired ──────────┴──► free
//!            │         outcome ▼            ▲             │ its bytes rotted: replaced
//!            │            quarantined ◄─────┼─────────────┘
//!            │                 ▲   └────────┼───────── drained ─────────────► free
//!            └──────────► granted ──────────┘
//!                 grant     new session     add_file
//! ```
//!
//! RubbleDB §4.2.1 keeps a file map on both sides; here each replica owns its own map and the
//! primary only ever holds grants, so nobody can reuse a slot that its owner has not freed.

use crate::{Placed, QuarantineOrigin};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::{Error, FileId, Generation, ReplicaId, Result, SlotIndex, Term};

/// What a slot is in use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// For nothing.
    Free,
    /// A local job writes into it; forgotten at a restart.
    Allocated {
        /// Which use of the slot.
        generation: Generation,
    },
    /// A peer may write into it.
    Granted {
        /// Which use of the slot.
        generation: Generation,
        /// The term of the grant.
        term: Term,
        /// The session of the peer connection.
        session: u64,
        /// The peer.
        to: ReplicaId,
    },
    /// It holds a part of a file.
    Live {
        /// Which use of the slot.
        generation: Generation,
        /// The file.
        file: FileId,
    },
    /// It holds a part of a file that is gone but may still be read.
    Retired {
        /// Which use of the slot.
        generation: Generation,
        /// The file.
        file: FileId,
    },
    /// A late write may still land in it.
    Quarantined {
        /// What has to be drained.
        origin: QuarantineOrigin,
    },
}

impl SlotState {
    /// Which use of the slot this is, where there is one.
    #[must_use]
    pub const fn generation(self) -> Option<Generation> {
        match self {
            Self::Free | Self::Quarantined { .. } => None,
            Self::Allocated { generation }
            | Self::Granted { generation, .. }
            | Self::Live { generation, .. }
            | Self::Retired { generation, .. } => Some(generation),
        }
    }

    /// Whether a slot in this state may go into `next`: the arrows of the drawing above.
    fn may_become(self, next: Self) -> bool {
        match (self, next) {
            (Self::Free, Self::Allocated { .. } | Self::Granted { .. })
            | (
                Self::Allocated { .. } | Self::Retired { .. } | Self::Quarantined { .. },
                Self::Free,
            )
            | (
                Self::Allocated { .. } | Self::Granted { .. } | Self::Retired { .. },
                Self::Quarantined { .. },
            ) => true,
            (
                Self::Allocated { generation: a } | Self::Granted { generation: a, .. },
                Self::Live { generation: b, .. },
            ) => a == b,
            (Self::Live { generation: a, file: f }, Self::Retired { generation: b, file: g }) => {
                a == b && f == g
            }
            _ => false,
        }
    }
}

/// How many slots are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All.
    pub total: u32,
    /// For nothing.
    pub free: u32,
    /// Written by a local job.
    pub allocated: u32,
    /// Written by a peer.
    pub granted: u32,
    /// Part of a file.
    pub live: u32,
    /// Part of a file that is gone but may still be read.
    pub retired: u32,
    /// A late write may still land.
    pub quarantined: u32,
}

impl Counts {
    fn of(&mut self, state: SlotState) -> &mut u32 {
        match state {
            SlotState::Free => &mut self.free,
            SlotState::Allocated { .. } => &mut self.allocated,
            SlotState::Granted { .. } => &mut self.granted,
            SlotState::Live { .. } => &mut self.live,
            SlotState::Retired { .. } => &mut self.retired,
            SlotState::Quarantined { .. } => &mut self.quarantined,
        }
    }
}

/// Free slots as runs of neighbours.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
struct FreeRuns(BTreeMap<u32, u32>);

impl FreeRuns {
    fn insert(&mut self, slot: u32) {
        let (mut start, mut len) = (slot, 1);
        if let Some((&before, &before_len)) = self.0.range(..slot).next_back() {
            assert!(before + before_len <= slot, "slot {slot} is in use before it is free");
            if before + before_len == slot {
                (start, len) = (before, before_len + 1);
            }
        }
        if let Some(after_len) = self.0.remove(&(slot + 1)) {
            len += after_len;
        }
        self.0.insert(start, len);
    }

    fn remove(&mut self, slot: u32) {
        let Some((&start, &len)) = self.0.range(..=slot).next_back() else {
            panic!("free slot {slot} is in no run")
        };
        assert!(slot - start < len, "free slot {slot} is in no run");
        self.0.remove(&start);
        if slot > start {
            self.0.insert(start, slot - start);
        }
        if start + len > slot + 1 {
            self.0.insert(slot + 1, start + len - slot - 1);
        }
    }

    /// `count` slots, adjacent where a run is long enough, else from the longest runs. The caller
    /// knows that there are as many.
    fn choose(&self, count: u32) -> Vec<SlotIndex> {
        if let Some((&start, _)) = self.0.iter().find(|&(_, &len)| len >= count) {
            return (start..start + count).map(SlotIndex).collect();
        }
        let mut runs: Vec<(u32, u32)> = self.0.iter().map(|(&start, &len)| (start, len)).collect();
        runs.sort_by_key(|&(start, len)| (core::cmp::Reverse(len), start));
        let slots = runs.into_iter().flat_map(|(start, len)| start..start + len);
        slots.take(count as usize).map(SlotIndex).collect()
    }
}

/// The states of all slots of a region.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct SlotTable {
    states: Vec<SlotState>,
    counts: Counts,
    free: FreeRuns,
}

impl SlotTable {
    pub(crate) fn new(slots: u32) -> Self {
        let mut free = FreeRuns::default();
        free.0.insert(0, slots);
        Self {
            states: alloc::vec![SlotState::Free; slots as usize],
            counts: Counts { total: slots, free: slots, ..Counts::default() },
            free,
        }
    }

    pub(crate) const fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes of memory that the table takes; of the free runs their numbers.
    pub(crate) fn memory_used(&self) -> usize {
        self.states.capacity() * size_of::<SlotState>() + self.free.0.len() * 2 * size_of::<u32>()
    }

    pub(crate) fn state(&self, slot: SlotIndex) -> Option<SlotState> {
        self.states.get(slot.0 as usize).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlotIndex, SlotState)> + '_ {
        (0..).map(SlotIndex).zip(self.states.iter().copied())
    }

    /// `count` free slots; the caller knows that there are as many.
    pub(crate) fn choose_free(&self, count: u32) -> Vec<SlotIndex> {
        self.free.choose(count)
    }

    /// Whether the slot exists and may go into `next`.
    pub(crate) fn check(&self, slot: SlotIndex, next: SlotState) -> Result<()> {
        match self.state(slot) {
            Some(state) if state.may_become(next) => Ok(()),
            Some(state) => {
                Err(Error::invalid(format!("{slot} is {state:?} and cannot become {next:?}")))
            }
            None => Err(Error::invalid(format!(
                "{slot} is outside the region of {} slots",
                self.counts.total
            ))),
        }
    }

    /// The one place where a slot changes its state.
    pub(crate) fn change(&mut self, slot: SlotIndex, next: SlotState) -> Result<()> {
        self.check(slot, next)?;
        let state = core::mem::replace(&mut self.states[slot.0 as usize], next);
        assert!(*self.counts.of(state) > 0, "{slot} was {state:?}, as it is counted");
        *self.counts.of(state) -= 1;
        *self.counts.of(next) += 1;
        if state == SlotState::Free {
            self.free.remove(slot.0);
        } else if next == SlotState::Free {
            self.free.insert(slot.0);
        }
        Ok(())
    }

    /// Whether the slot is held, by a local job or a grant, in this very use (docs/faults.md H4).
    pub(crate) fn check_held(&self, placed: Placed) -> Result<()> {
        match self.state(placed.slot) {
            Some(SlotState::Allocated { generation } | SlotState::Granted { generation, .. })
                if generation == placed.generation =>
            {
                Ok(())
            }
            Some(state) => Err(Error::fenced(format!(
                "{} {} is not held for writing: it is {state:?}",
                placed.slot, placed.generation
            ))),
            None => Err(Error::invalid(format!(
                "{} is outside the region of {} slots",
                placed.slot, self.counts.total
            ))),
        }
    }

    /// # Panics
    /// When counts and free runs do not agree with the states.
    pub(crate) fn invariants(&self) {
        let mut counts = Counts { total: self.states.len() as u32, ..Counts::default() };
        for &state in &self.states {
            *counts.of(state) += 1;
        }
        assert_eq!(counts, self.counts, "the counts follow the states");
        let mut last_end = None;
        let mut free = 0;
        for (&start, &len) in &self.free.0 {
            assert!(len > 0, "a free run has slots");
            assert!(last_end < Some(start), "free runs do not touch");
            last_end = Some(start + len);
            for slot in start..start + len {
                assert_eq!(self.states[slot as usize], SlotState::Free, "slot {slot}");
            }
            free += len;
        }
        assert_eq!(free, self.counts.free, "every free slot is in a run");
    }
}
