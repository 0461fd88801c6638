//! The facts of a replica that a sub-machine may read: never another machine, and nothing that can
//! be changed through them. Tree and pool are no facts: a machine that changes one is handed just
//! that, for the time of one call.
//!
//! ```text
//!   Node ── Facts, and values of other machines ──► machine ── Effects ──► Node (route.rs)
//! ```

use super::file_table::FileTable;
use super::planted::{Mutant, is_planted};
use crate::state::ReplicaState;
use crate::view::View;
use crate::{GroupConfig, NodeOptions};
use alloc::sync::Arc;
use gabion_base::{FileId, ReplicaId, Term};
use gabion_engine::FileMeta;
use gabion_log::Log;
use gabion_pool::FilePlacement;
use gabion_replication::Protocol;

/// References and small values alone, so that making one costs next to nothing.
pub(super) struct Facts<'a> {
    pub(super) config: &'a GroupConfig,
    pub(super) options: &'a NodeOptions,
    pub(super) view: &'a View,
    /// The durable counters; their last changes may not be durable yet.
    pub(super) state: &'a ReplicaState,
    pub(super) me: ReplicaId,
    pub(super) now_ms: u64,
    pub(super) log: &'a Log,
    pub(super) files: &'a FileTable,
    pub(super) protocol: &'a dyn Protocol,
}

/// The description of a file by the tree, or by an edit on its way there. It costs a look at each
/// file of the tree.
pub(super) type MetaOf<'a> = &'a dyn Fn(FileId) -> Option<Arc<FileMeta>>;

/// Bytes of memory of files that are kept until every secondary that is to have them does.
pub(super) struct Unshipped {
    pub(super) all: u64,
    pub(super) of_flushes: u64,
    /// Above this many, work that would add to them is held back.
    pub(super) most: u64,
}

impl Unshipped {
    /// Whether too many files wait in memory for a secondary that is slow or short of slots: the
    /// next file of a compaction or load would only wait behind them.
    pub(super) const fn is_too_much(&self) -> bool {
        self.all > self.most
    }

    /// Whether too many files of flushes wait. A flush waits for these only, so that writers never
    /// wait for files of compactions.
    pub(super) const fn flushes_are_too_much(&self) -> bool {
        self.of_flushes > self.most
    }
}

impl Facts<'_> {
    /// The place of a file that is readable here.
    pub(super) fn place(&self, file: FileId) -> Option<Arc<FilePlacement>> {
        self.files.get(file)
    }

    /// The term that the group is in, as far as it is known here.
    pub(super) fn group_term(&self) -> Term {
        self.protocol.term()
    }

    /// Whether this member takes part in the group.
    pub(super) fn is_joined(&self) -> bool {
        self.protocol.is_joined()
    }

    pub(super) fn has(&self, mutant: Mutant) -> bool {
        is_planted(self.options, mutant)
    }

    /// Whether a member is connected, so that messages reach it.
    pub(super) fn can_reach(&self, member: ReplicaId) -> bool {
        self.protocol.is_connected(member)
    }

    /// The member that takes writes and ships files.
    pub(super) fn writer(&self) -> ReplicaId {
        self.view.writer()
    }
}

/// The facts of a node. It borrows field by field, so that the other fields stay free to be
/// changed.
macro_rules! facts {
    ($node:expr) => {
        $crate::node::facts::Facts {
            config: &$node.config,
            options: &$node.options,
            view: &$node.view,
            state: &$node.state,
            me: $node.me,
            now_ms: $node.now_ms,
            log: &$node.log,
            files: &$node.files,
            protocol: &*$node.protocol,
        }
    };
}
pub(super) use facts;
