//! Commits of the placement log: their staging, and the steps that follow when one is durable. Also
//! the slots and log that are given back, which commits carry.

use super::orders::After;
use super::steps::Step;
use super::{Mutant, Node, Order, Output};
use crate::state::Snapshot;
use crate::work::Work;
use alloc::vec::Vec;
use gabion_base::Failed;

/// The steps that follow when placement commits are durable: the staged one, and the one that is
/// being written.
#[derive(Default)]
pub(super) struct Commits {
    pub(super) staged: Vec<After>,
    pub(super) in_flight: Option<(u64, Vec<After>)>,
}

impl Node {
    /// Writes the staged changes, one commit at a time: a commit carries all that gathered
    /// meanwhile.
    pub(super) fn schedule_commit(&mut self) {
        if self.commits.in_flight.is_some() {
            return;
        }
        let commit = if let Some(tree) = self.tree_to_install() {
            // Whole or not at all: what was staged before is a part of it.
            let snapshot = Snapshot::encode(&self.config, &self.state, tree);
            match self.pool.checkpoint(&snapshot) {
                Ok(commit) => Some(commit),
                Err(error) => {
                    return self.failed(Failed::Placement, error.within("the copied state"));
                }
            }
        } else if self.pool.needs_checkpoint() {
            let snapshot = Snapshot::encode(&self.config, &self.state, &self.tree.snapshot());
            match self.pool.checkpoint(&snapshot) {
                Ok(commit) => Some(commit),
                Err(error) => {
                    return self
                        .failed(Failed::Placement, error.within("placement log checkpoint"));
                }
            }
        } else {
            self.pool.take_commit()
        };
        match commit {
            Some(commit) => {
                let after = core::mem::take(&mut self.commits.staged);
                self.commits.in_flight = Some((commit.number, after));
                self.order(Order::Commit, Work::Commit(commit));
            }
            None => debug_assert!(self.commits.staged.is_empty()),
        }
    }

    /// Gives back slots and log that nobody needs anymore.
    pub(super) fn reclaim(&mut self) {
        self.tree.limit_readers(self.now_ms, self.options.pin_budget);
        let mut unread = self.tree.obsolete_files();
        if self.has(Mutant::ReadUnderWayNotWaitedFor) {
            unread.extend(self.tree.leaving_files().iter().map(|file| file.id));
        }
        let gone = self.files.unread(unread, |file| self.ship.is_to_be_read(file));
        if !gone.is_empty() {
            self.due.mark_all(&Step::FREED);
            for file in &gone {
                if let Err(error) = self.files.free_unread(&mut self.pool, *file)
                    && !self.has(Mutant::SlotFreedUnderReader)
                {
                    return self.failed(Failed::Accounts, error);
                }
            }
            self.outputs.push_back(Output::FilesGone(gone));
        }
        let freed = self.files.take_freed();
        if !freed.is_empty() {
            self.due.mark_all(&Step::FREED);
            self.outputs.push_back(Output::FilesGone(freed));
        }
        self.trim_log();
    }
}
