//! Who reads which state of the tree, and for how long readers keep what the tree has given up.
//!
//! ```text
//!   Tree ────► now     ─┐
//!   Readers ─► earlier ─┴┬─► Shape: MemTables, version ─► files ─► slots
//!                        └─► State ◄─── views, iterators
//!                              └··► Shape                      ··► weak
//! ```
//!
//! Readers that began between two changes of the tree share a `State`: they keep the same, and
//! nothing comes back before the last of them is done. So the pin budget counts states, not
//! readers: a thousand reads of one state are no more harm than one.
//!
//! The tree owns the shape, the views only name it: so the tree takes it from them whatever thread
//! they are on, without a lock. Once the last view of an earlier state is gone, the tree forgets
//! the shape at its next step.
//!
//! A state costs nothing until an edit follows it that is no mere move: till then the tree has all
//! of it. The first such edit takes from the tree what the state has. For it flushes the oldest
//! MemTable or removes files, and what came into the tree since the state, MemTables aside, came by
//! such an edit. From then on its age is counted, and only such states are ended. (PostgreSQL's
//! `old_snapshot_threshold` likewise ended a reader only when what it needs could go.)
//!
//! Ending drops the `Shape` of the state: MemTables' memory and files come back at once. A read
//! that is under way keeps a [`Pin`], so that no slot is used again under it (docs/faults.md E12);
//! it comes to its end, and the next step finds the state ended. An iterator between two steps lets
//! go at the second.

use crate::memtable::MemTable;
use crate::once::OnceArc;
use crate::version::Version;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use gabion_base::{Error, ErrorKind, MemTableId, Result};

/// What readers may keep of what the tree has given up. Past it the oldest end with
/// [`ErrorKind::SnapshotTooOld`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinBudget {
    /// How long they may keep it, in ms. Default 300,000 (5 minutes): a thousand times what a page
    /// of a read takes, so that only a walk over a whole large store at one moment is ever ended; a
    /// compaction that frees 100 MB a second has given up 30 GB by then. With 0 every read ends
    /// that an edit overtakes.
    pub age_ms_max: u64,
    /// How many states of the tree they may keep so. Default 64: each may have a MemTable that no
    /// other has, and as many more as waited for their flush, so with MemTables of 16 MiB they keep
    /// 1 GiB of memory, at worst 5. With 0 as for the age.
    pub states_max: usize,
}

impl Default for PinBudget {
    fn default() -> Self {
        Self { age_ms_max: 300_000, states_max: 64 }
    }
}

/// The readers, and what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Views and iterators, those that were ended not counted.
    pub open: usize,
    /// States that are read and of which the tree has given up a part.
    pub states_kept: usize,
    /// How long the oldest of them has been kept so, in ms.
    pub oldest_ms: u64,
    /// Memory of flushed MemTables that they keep, in bytes.
    pub memtable_bytes: u64,
    /// Views and iterators that were ended as they were past their budget.
    pub ended: u64,
}

/// What a tree consists of between two seals, range deletes or edits.
pub(crate) struct Shape {
    /// Active first, then sealed ones from new to old.
    pub(crate) memtables: Vec<Arc<MemTable>>,
    pub(crate) version: Arc<Version>,
}

impl Shape {
    /// Whether both are of the same MemTables and the same version.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.version, &other.version)
            && self.memtables.len() == other.memtables.len()
            && self.memtables.iter().zip(&other.memtables).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

/// What a view sees, kept for the length of one read whatever becomes of the view meanwhile. To be
/// dropped right after it: no budget ends it.
#[derive(Clone)]
pub struct Pin(pub(crate) Arc<Shape>);

impl Pin {
    /// The files.
    #[must_use]
    pub fn version(&self) -> &Arc<Version> {
        &self.0.version
    }

    /// The same, counted by itself.
    pub(crate) fn apart(&self) -> Self {
        let Shape { memtables, version } = &*self.0;
        Self(Arc::new(Shape { memtables: memtables.clone(), version: version.clone() }))
    }
}

/// A shape as the tree keeps it for its readers.
pub(crate) struct Kept {
    pub(crate) shape: Arc<Shape>,
    pub(crate) state: Arc<State>,
}

impl Kept {
    pub(crate) fn new(shape: Shape) -> Self {
        let shape = Arc::new(shape);
        let state = Arc::new(State { shape: Arc::downgrade(&shape), ended: OnceArc::default() });
        Self { shape, state }
    }

    /// Views and iterators that share it.
    fn readers(&self) -> usize {
        Arc::strong_count(&self.state) - 1
    }
}

/// A shape as its readers share it, until it is taken from them.
pub(crate) struct State {
    shape: Weak<Shape>,
    ended: OnceArc<TooOld>,
}

impl State {
    /// Keeps the shape for a read.
    pub(crate) fn pin(&self) -> Result<Pin> {
        // Also where a lasting view has the shape still.
        self.check()?;
        let closed = || Error::unavailable("the tree that is read was closed");
        self.shape.upgrade().map(Pin).ok_or_else(closed)
    }

    /// An error once the shape was taken away.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        self.ended.get().map_or(Ok(()), |why| Err(why.error()))
    }
}

/// Why a state was ended.
struct TooOld {
    age_ms: u64,
    states: usize,
    budget: PinBudget,
}

impl TooOld {
    #[cold]
    fn error(&self) -> Error {
        let &Self { age_ms, states, budget } = self;
        let limit = if age_ms > budget.age_ms_max {
            format!("readers may keep it for {} ms", budget.age_ms_max)
        } else {
            let limit = budget.states_max;
            format!(
                "it was the oldest of {states} such states of the tree, readers may keep {limit}"
            )
        };
        Error::new(
            ErrorKind::SnapshotTooOld,
            format!("the read was ended {age_ms} ms after an edit replaced what it reads: {limit}"),
        )
    }
}

/// Earlier states that are still read.
#[derive(Default)]
pub(crate) struct Readers {
    /// Oldest first. Those that keep what the tree gave up come before those that do not.
    earlier: VecDeque<Earlier>,
    ended: u64,
}

struct Earlier {
    kept: Kept,
    /// The tree has given up a part of it.
    is_costly: bool,
    /// When that was first seen.
    since_ms: Option<u64>,
}

impl Readers {
    /// The tree goes on to another state.
    pub(crate) fn replaced(&mut self, kept: Kept) {
        self.earlier.push_back(Earlier { kept, is_costly: false, since_ms: None });
        self.forget_unread();
    }

    /// The tree gave up a MemTable or files of every earlier state.
    pub(crate) fn gave_up(&mut self) {
        self.earlier.iter_mut().for_each(|earlier| earlier.is_costly = true);
    }

    /// Ends the oldest readers that are past their budget.
    pub(crate) fn limit(&mut self, now_ms: u64, budget: PinBudget) {
        self.forget_unread();
        let is_costly = self.earlier.iter().map(|earlier| !earlier.is_costly);
        assert!(is_costly.is_sorted(), "states that keep what was given up are the oldest");
        let mut states = 0;
        for earlier in self.earlier.iter_mut().take_while(|earlier| earlier.is_costly) {
            earlier.since_ms.get_or_insert(now_ms);
            states += 1;
        }
        while states > 0
            && let Some(since_ms) = self.earlier.front().and_then(|oldest| oldest.since_ms)
        {
            let age_ms = now_ms.saturating_sub(since_ms);
            if age_ms <= budget.age_ms_max && states <= budget.states_max {
                return;
            }
            if let Some(Earlier { kept, is_costly, .. }) = self.earlier.pop_front() {
                assert!(is_costly, "a state that costs nothing is not ended");
                self.ended += kept.readers() as u64;
                kept.state.ended.keep(Arc::new(TooOld { age_ms, states, budget }));
            }
            states -= 1;
        }
    }

    /// Gives up what nobody reads any more.
    pub(crate) fn forget_unread(&mut self) {
        self.earlier.retain(|earlier| earlier.kept.readers() > 0);
    }

    /// Who reads these states and `now`. MemTables up to `flushed` are no part of the tree any
    /// more.
    pub(crate) fn stats(&self, now: &Kept, flushed: MemTableId, now_ms: u64) -> ReaderStats {
        let mut memtables = BTreeMap::new();
        let mut stats =
            ReaderStats { open: now.readers(), ended: self.ended, ..ReaderStats::default() };
        for earlier in self.earlier.iter().filter(|earlier| earlier.kept.readers() > 0) {
            stats.open += earlier.kept.readers();
            stats.states_kept += usize::from(earlier.is_costly);
            let age_ms = earlier.since_ms.map_or(0, |since_ms| now_ms.saturating_sub(since_ms));
            stats.oldest_ms = stats.oldest_ms.max(age_ms);
            for table in earlier.kept.shape.memtables.iter().filter(|table| table.id() <= flushed) {
                memtables.insert(table.id(), table.memory_used() as u64);
            }
        }
        stats.memtable_bytes = memtables.values().sum();
        stats
    }
}

#[cfg(test)]
mod tests;
