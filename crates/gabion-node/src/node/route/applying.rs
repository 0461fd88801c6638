//! Records and edits as they are applied: the applier is handed what it needs, and the edits that
//! it takes out of the line are committed.

use crate::node::apply::Ready;
use crate::node::facts::facts;
use crate::node::orders::After;
use crate::node::planted::Mutant;
use crate::node::steps::Step;
use crate::node::{Node, Output, Replaced};
use crate::state::opaque;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use gabion_base::{Failed, FileId, LogPosition, Result, SequenceNumber, ShardId};
use gabion_engine::{Edit, FileMeta, JobKind, Version};
use gabion_log::{Record, RecordFlags, RecordKind};

impl Node {
    // ---- records

    /// Applies placed records that have become contiguous. The head applies its own records when it
    /// writes.
    pub(in crate::node) fn apply_records(&mut self) {
        let mut moved = false;
        while let Some(record) = self.log.next_record() {
            moved = true;
            if self.has(Mutant::RecordsOutOfOrder) && self.apply_next_before(&record) {
                continue;
            }
            if let Err(error) = self.apply_record(&record) {
                return self.failed(Failed::Apply, error);
            }
            let is_of_segment = record.header.kind == RecordKind::Pad
                && !record.header.flags.has(RecordFlags::DURABLE_ACK);
            if is_of_segment {
                self.marks.pass_pad();
            } else {
                self.pass_marks(record.end(), record.header.crc);
            }
        }
        if moved {
            self.due.mark_all(&Step::PLACED);
            let last = self.log.last();
            self.protocol.handle_placed(ShardId::ZERO, last.end, last.crc);
        }
    }

    /// The planted disorder: a batch is applied after the batch that follows it.
    fn apply_next_before(&mut self, record: &Record) -> bool {
        let is_batch = |record: &Record| record.header.kind == RecordKind::Batch;
        if !is_batch(record) {
            return false;
        }
        let first = record.header.first_sequence;
        let Some(next) = self.log.next_record() else { return false };
        if !is_batch(&next) {
            let _ = self.apply_record(record);
            let _ = self.apply_record(&next);
            return true;
        }
        let second = SequenceNumber(first.get() + u64::from(next.header.count));
        let _ = self.tree.apply_batch(first, &next.payload());
        let _ = self.tree.apply_batch(second, &record.payload());
        true
    }

    /// Applies a record of the log: at a secondary when it arrives, everywhere when it is replayed.
    pub(crate) fn apply_record(&mut self, record: &Record) -> Result<()> {
        let (facts, tree) = (facts!(self), &mut self.tree);
        let applied = self.apply.apply_record(&facts, &mut self.effects, tree, record);
        self.settle();
        applied.and_then(|()| match self.view.log_is_private() {
            true => Ok(()),
            false => self.sessions.apply(record),
        })
    }

    // ---- edits

    /// Puts an edit in line whose record ends at `end`.
    pub(in crate::node) fn queue_edit(
        &mut self,
        edit: Edit,
        encoded: Vec<u8>,
        end: LogPosition,
    ) -> Result<()> {
        let facts = facts!(self);
        let queued =
            self.apply.queue(&facts, &mut self.effects, &mut self.tree, edit, encoded, end);
        self.settle();
        queued
    }

    /// Applies the edits in line that are ready. The tree follows at once; members are told, and
    /// slots of removed files are used again, when the placement commit is durable.
    pub(in crate::node) fn apply_edits(&mut self) {
        loop {
            let (grants, pool) = (&self.grants, &self.pool);
            // It was shipped here, and its place is not durable yet.
            let is_coming = |file| grants.is_arriving(file) || pool.placement(file).is_some();
            let Some(count) = self.apply.edits_ready(&facts!(self), self.tree.version(), is_coming)
            else {
                return;
            };
            if let Err(error) = self.enter_files(count) {
                return self.failed(Failed::Apply, error);
            }
            for _ in 0..count {
                if let Err(error) = self.apply_next_edit() {
                    return self.failed(Failed::Apply, error);
                }
            }
            self.apply.end_group(&facts!(self), &mut self.effects);
            self.settle();
        }
    }

    /// Has files enter the tree that the first edits in line add. All of them do before any leaves:
    /// what a file references that the last of these edits adds must not go with an earlier one.
    fn enter_files(&mut self, edits: usize) -> Result<()> {
        let values = self.apply.first(edits).flat_map(|edit| &edit.values);
        let left_out = values.map(|meta| meta.id).filter(|file| self.files.get(*file).is_none());
        let left_out: BTreeSet<FileId> = left_out.collect();
        let mut added = self.apply.first(edits).flat_map(|edit| &edit.added);
        let is_left_out = |file| left_out.contains(&file);
        added.try_for_each(|(_, meta)| self.files.enter_tree(meta, &is_left_out))
    }

    fn apply_next_edit(&mut self) -> Result<()> {
        let ready = self.apply.next_ready(&facts!(self), &mut self.effects);
        self.settle();
        ready?.map_or(Ok(()), |ready| self.commit_edit(ready))
    }

    fn commit_edit(&mut self, ready: Ready) -> Result<()> {
        let Ready { edit, encoded, end, gone } = ready;
        for file in gone {
            self.files.leave_tree(&mut self.pool, file)?;
            if self.repairs.may_come(file) {
                self.grants.note_unneeded(file);
            }
            self.repairs.forget(file);
            if self.has(Mutant::SlotFreedUnderReader) {
                self.pool.free_file(file)?;
            }
        }
        self.pool.stage_opaque(opaque::EDIT, encoded);
        // Committed and durable here: a log that is found shorter later is not whole.
        if end > self.state.durable {
            self.state.durable = end;
            self.stage_state(None);
        }
        self.keep_time(&edit);
        let before = self.tree.version().clone();
        self.tree.apply_edit(&edit)?;
        self.forget_values(&edit, &before)?;
        assert_eq!(self.tree.last_edit(), edit.number, "edits are applied one by one");
        self.tell_replaced(&edit);
        self.due.mark_all(&Step::APPLIED);
        self.jobs_edit_applied(&edit);
        let flushed = self.tree.flushed();
        self.commits.staged.push(After::EditApplied { edit: edit.number, flushed });
        let begin = flushed.frontier.only();
        let begins_behind = edit.flushed.is_some() && self.apply.is_seal(begin);
        if self.view.log_is_private() && begins_behind && !self.has(Mutant::LogBeginsBeforeFlush) {
            self.trim_to(begin);
        }
        Ok(())
    }

    /// Sees to values files that nothing references after an edit.
    fn forget_values(&mut self, edit: &Edit, before: &Version) -> Result<()> {
        let gone: Vec<FileId> = before.values_gone_in(self.tree.version()).collect();
        for file in gone {
            if self.repairs.may_come(file) {
                self.grants.note_unneeded(file);
            }
            self.repairs.forget(file);
        }
        for file in edit.values.iter().map(|meta| meta.id) {
            // The files that reference it are not here: a later edit of the group removes them.
            if self.files.is_unnamed(file) {
                self.files.forget(&mut self.pool, file)?;
            }
        }
        Ok(())
    }

    /// Keeps the time of an edit that is in no log: values that expired by then stay so, even if
    /// the records that told the time are lost.
    fn keep_time(&mut self, edit: &Edit) {
        let now_ms = edit.recipe.as_ref().map_or(0, |recipe| recipe.now_ms);
        if !self.duties().log_edits && now_ms > self.state.trimmed_ms {
            self.state.trimmed_ms = now_ms;
            self.stage_state(None);
        }
    }

    /// Tells the driver of a flush or compaction whose files were made elsewhere, and of files that
    /// are dropped. A member that makes files has seen them.
    fn tell_replaced(&mut self, edit: &Edit) {
        let kinds = [JobKind::Flush, JobKind::Compaction, JobKind::Drop];
        if !kinds.contains(&edit.kind) || !self.duties().receive {
            return;
        }
        let version = self.tree.version();
        let here = |(level, meta): &(u8, FileMeta)| {
            Some((version.file(*level, meta.id)?.clone(), self.files.get(meta.id)?))
        };
        let added = edit.added.iter().filter_map(here).collect();
        let removed = edit.removed.iter().map(|(_, file)| *file).collect();
        self.outputs.push_back(Output::Replaced(Replaced { removed, added }));
    }

    // ---- files

    pub(in crate::node) fn ask_for_missing_files(&mut self) {
        let (grants, pool) = (&self.grants, &self.pool);
        let is_coming = |file| grants.is_arriving(file) || pool.placement(file).is_some();
        let version = self.tree.version().clone();
        let (facts, effects) = (facts!(self), &mut self.effects);
        self.apply.ask_for_missing_files(&facts, effects, &version, is_coming);
        self.settle();
    }
}
