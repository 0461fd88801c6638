//! Records that machines ask for and the log takes when it can: the edits of jobs, and the steps
//! that take a load into the tree.

use super::facts::facts;
use super::load::{LoadFacts, LoadStep};
use super::{LoadId, Mutant, Node};
use gabion_base::{Ends, Failed, FileId, SequenceNumber};
use gabion_engine::load::Loaded;
use gabion_log::{RecordFlags, RecordKind};

impl Node {
    /// Appends the edit of each job whose files are safe everywhere.
    pub(super) fn append_edits(&mut self) {
        if self.jobs.running() == 0 {
            return;
        }
        let early = self.has(Mutant::EditBeforeFiles);
        let is_held = |file: FileId| early || self.ship.held_everywhere(file);
        for number in self.jobs.ready(&self.tree, is_held) {
            if !self.append_edit(number) {
                return;
            }
        }
    }

    fn append_edit(&mut self, number: u64) -> bool {
        let Some(output) = self.jobs.output_of(number) else { return true };
        let mut next = self.apply.last_appended(self.tree.last_edit()) + 1;
        if self.has(Mutant::GapInEdits) {
            next += 1;
        }
        let made = self.tree.finish_job(output, next);
        let (edit, encoded) = match made.and_then(|edit| edit.encode().map(|bytes| (edit, bytes))) {
            Ok(made) => made,
            Err(error) => {
                self.failed(Failed::Apply, error);
                return false;
            }
        };
        let end = if self.duties().log_edits {
            if self.refusal().is_some() {
                return false; // a member is out: the edit waits for it
            }
            let flags = RecordFlags::BLOCK_END;
            let sequence = self.tree.last_sequence();
            match self.append_record(RecordKind::Edit, &encoded, sequence, 0, flags) {
                Ok(end) => end,
                Err(_) => return false, // the ring is full: tried again when it drained
            }
        } else {
            self.apply.own_edit_end(&facts!(self), &edit)
        };
        if let Err(error) = self.queue_edit(edit, encoded, end) {
            self.failed(Failed::Apply, error);
            return false;
        }
        if self.duties().log_edits {
            self.pass_marks(self.log.end(), self.log.last().crc);
        }
        self.jobs.appended(number, next);
        true
    }

    /// Carries on with loads that have all their files: one stage after the other, as far as they
    /// go without waiting.
    pub(super) fn advance_loads(&mut self) {
        if self.loads.is_empty() {
            return;
        }
        for id in self.loads.ids() {
            while !self.ended && self.advance_load(id) {}
        }
    }

    /// Returns whether the log took the step that the load asked for.
    fn advance_load(&mut self, id: LoadId) -> bool {
        let may_write = self.refusal().is_none();
        let is_held = |file: FileId| self.ship.held_everywhere(file);
        let given = LoadFacts {
            flushed_below: self.tree.flushed().memtable.next(),
            no_compaction: self.jobs.compactions_open() == 0,
            is_idle: self.jobs.running() == 0 && self.apply.waiting_count() == 0,
            may_write,
            applied: self.protocol.edits_applied_min(),
            is_held: &is_held,
        };
        let (facts, pool) = (facts!(self), &mut self.pool);
        let step = self.loads.next_step(&facts, &mut self.effects, pool, &given, id);
        self.settle();
        match step {
            Some(LoadStep::Settle) => self.settle_before_load(id),
            Some(LoadStep::Number) => self.number_load(id),
            Some(LoadStep::Seal(sequence)) => self.seal_before_load(id, sequence),
            Some(LoadStep::Append(sequence)) => self.append_load(id, sequence),
            None => false,
        }
    }

    fn settle_before_load(&mut self, id: LoadId) -> bool {
        if self.view.has_too_few() || self.end_turn().is_err() {
            return false; // which is fatal, and told
        }
        if !self.tree.active_is_empty() {
            self.append_seal();
        }
        self.loads.settles(id, self.tree.active_id(), self.now_ms);
        true
    }

    fn number_load(&mut self, id: LoadId) -> bool {
        if self.refusal().is_some() || self.end_turn().is_err() {
            return false; // an error is fatal, and told
        }
        let sequence = self.tree.last_sequence().next();
        let appended = self.append_record(RecordKind::Batch, &[], sequence, 1, RecordFlags::NONE);
        let skipped = match appended {
            Ok(end) => {
                self.pass_marks(end, self.log.last().crc);
                self.tree.skip_sequences(sequence, 1)
            }
            Err(error) if Failed::Append.ends(&error) == Ends::Operation => return false,
            Err(error) => Err(error),
        };
        match skipped {
            Ok(()) => self.loads.numbered(id, sequence),
            Err(error) => self.failed(Failed::Append, error),
        }
        !self.ended
    }

    fn seal_before_load(&mut self, id: LoadId, sequence: SequenceNumber) -> bool {
        if !self.tree.active_is_empty() && self.tree.sealed_sequence() < sequence {
            if self.refusal().is_some() {
                return false;
            }
            self.append_seal();
            if self.tree.sealed_sequence() < sequence {
                return false; // the ring is full
            }
        }
        self.loads.sealed(id, sequence, self.tree.active_id(), self.now_ms);
        true
    }

    /// Whether the next edit may go into the log. A log that lacks the edits of jobs needs these
    /// kept in the placement log first, or a start would find the next edit without them.
    fn may_log_edit(&self) -> bool {
        self.duties().log_edits
            || self.protocol.edits_applied_min() == self.apply.last_appended(self.tree.last_edit())
    }

    fn append_load(&mut self, id: LoadId, sequence: SequenceNumber) -> bool {
        if self.refusal().is_some() || !self.may_log_edit() {
            return false;
        }
        let files = self.loads.files_of(id);
        let number = self.apply.last_appended(self.tree.last_edit()) + 1;
        let loaded = Loaded { term: self.protocol.term(), files, sequence };
        let made = self.apply.version_at_the_end(self.tree.version()).and_then(|version| {
            let edit = self.tree.finish_load(loaded, &version, number)?;
            edit.encode().map(|encoded| (edit, encoded))
        });
        let (edit, encoded) = match made {
            Ok(made) => made,
            Err(error) => {
                self.failed(Failed::Apply, error);
                return false;
            }
        };
        let at = self.tree.last_sequence();
        let flags = RecordFlags::BLOCK_END;
        let Ok(end) = self.append_record(RecordKind::Edit, &encoded, at, 0, flags) else {
            return false; // the ring is full: tried again when it drained
        };
        if let Err(error) = self.queue_edit(edit, encoded, end) {
            self.failed(Failed::Apply, error);
            return false;
        }
        self.pass_marks(self.log.end(), self.log.last().crc);
        self.loads.appended(id, number);
        true
    }
}
