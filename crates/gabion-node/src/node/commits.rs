//! Commits of the placement log: their staging, and the steps that follow when one is durable. Also
//! the slots and log that are given back, which commits carry.

use super::orders::After;
use super::steps::Step;
use super::{Mutant, Node, Order, Output};
use crate::state::{Snapshot, opaque};
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
    /// Stages the replica's counters; `after` follows when they are durable.
    pub(super) fn stage_state(&mut self, after: Option<After>) {
        self.pool.stage_opaque(opaque::STATE, self.state.encode());
        self.commits.staged.extend(after);
    }

    /// Writes the staged changes, one commit at a time: a commit carries all that gathered
    /// meanwhile.
    pub(super) fn schedule_commit(&mut self) {
        if self.commits.in_flight.is_some() {
            return;
        }
        let commit = if self.pool.needs_checkpoint() {
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

    pub(super) fn commit_done(&mut self, result: gabion_base::Result<()>) {
        if let Err(error) = result {
            return self.failed(Failed::Placement, error.within("placement log"));
        }
        let Some((number, after)) = self.commits.in_flight.take() else { return };
        self.pool.committed(number);
        for step in after {
            match step {
                After::EditApplied { edit, flushed } => {
                    self.protocol.handle_edit_applied(edit, flushed.frontier);
                    self.writing.keep_flushed(flushed.sequence);
                }
                After::FilePlaced { file, tell } => self.file_placed(file, tell),
                After::SegmentPlaced(segment) => self.segment_placed(segment),
                After::TermAdopted(term) => self.term_adopted(term),
                After::ViewKept(config) => self.view_kept(config),
                After::Trimmed(at) => self.trimmed(at),
                After::SessionRaised => self.session_raised(),
                After::LossNoted => self.log_repair.noted(),
                After::RingNoted => self.stopping.noted(),
                After::Stopped => self.stopping.stopped(),
                After::Granted(slots) => self.granted(slots),
                After::BuiltPlaced(job) => self.built_placed(job),
                After::LoadPlaced(load) => self.load_placed(load),
                After::FileRepaired(file) => self.file_repaired(file),
            }
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
        self.trim_log();
    }
}
