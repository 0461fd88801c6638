//! A disk that reported a flush and had not made it (docs/faults.md E7): the last commits of a
//! placement log are gone, and the process that relied on them is killed.
//!
//! ```text
//!   moments:   quiet ──── commit ── commit ── quiet ──── commit ── quiet (now)
//!                │  bytes before each commit are kept       │
//!                └───────────── put back ◄──────────────────┘   files placed since then are lost
//! ```
//!
//! So a replica may lose its record of files and of applied edits. It may not lose its counters
//! (term, session, spans, trim), segments of its log, or slots that have other content by now. A
//! disk that lost those has to be treated as blank, which is another fault.

use gabion_base::FileKind;
use gabion_node::{Node, ReplicaState};
use gabion_pool::{FilePlacement, SlotState};
use std::collections::VecDeque;
use std::sync::Arc;

/// Quiet moments that are kept.
const MOMENTS_MAX: usize = 6;

/// A durable state without a commit on its way, and the way back to it.
struct Moment {
    state: ReplicaState,
    files: Vec<Arc<FilePlacement>>,
    /// Offset and former content of later writes, oldest first.
    undo: Vec<(u64, Vec<u8>)>,
}

impl Moment {
    fn of(node: &Node) -> Self {
        let files = node.pool().files().cloned().collect();
        Self { state: node.state().clone(), files, undo: Vec::new() }
    }

    fn is_same(&self, other: &Self) -> bool {
        self.state == other.state && self.files == other.files
    }

    fn segments(&self) -> impl Iterator<Item = &Arc<FilePlacement>> {
        self.files.iter().filter(|file| file.file.kind == FileKind::LogSegment)
    }

    /// Whether the files of this moment can all be read at a later one, at their former places.
    fn survives(&self, later: &Node) -> bool {
        let holds = |placement: &FilePlacement| {
            placement.slots.iter().all(|placed| match later.pool().slot_state(placed.slot) {
                Some(SlotState::Live { file, .. } | SlotState::Retired { file, .. }) => {
                    file == placement.file
                }
                state => state == Some(SlotState::Free),
            })
        };
        self.files.iter().all(|placement| holds(placement))
    }
}

/// The last quiet moments of one process.
#[derive(Default)]
pub struct Moments(VecDeque<Moment>);

impl Moments {
    /// A commit is on its way: it overwrites these bytes.
    pub fn overwritten(&mut self, offset: u64, before: &[u8]) {
        for moment in &mut self.0 {
            moment.undo.push((offset, before.to_vec()));
        }
    }

    /// No commit is on its way.
    pub fn quiet(&mut self, node: &Node) {
        self.0.retain(|moment| moment.survives(node));
        let now = Moment::of(node);
        if self.0.back().is_some_and(|last| last.is_same(&now)) {
            return;
        }
        self.0.push_back(now);
        if self.0.len() > MOMENTS_MAX {
            self.0.pop_front();
        }
    }

    /// The writes, in order, that go back as far as possible from a quiet moment; nothing when they
    /// would lose no file.
    #[must_use]
    pub fn going_back(&self, node: &Node) -> Option<Vec<(u64, Vec<u8>)>> {
        let now = Moment::of(node);
        let is_allowed = |moment: &&Moment| {
            // The known end of the log may be forgotten: the replica asks for it when the log is
            // found short.
            let state = ReplicaState { durable: now.state.durable, ..moment.state.clone() };
            state == now.state
                && moment.segments().eq(now.segments())
                && now.files.iter().any(|file| !moment.files.contains(file))
        };
        let moment = self.0.iter().find(is_allowed)?;
        Some(moment.undo.iter().rev().cloned().collect())
    }
}
