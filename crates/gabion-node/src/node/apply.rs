//! From log records to the tree: batches and seals at once, edits when they are ready.
//!
//! An edit is applied by one placement commit, after (1) the log is here up to it and every earlier
//! edit is applied, (2) every member has its record, (3) the log is durable here up to its end, or,
//! in a group of one, that commit has the log begin behind what it flushes, (4) the added files are
//! here, verified. Nothing that is installed may have to be taken back (RubbleDB §4.2.2 has (1) and
//! (4) only).
//!
//! Files are here before the edit that names them is in the log. A device may lose one all the
//! same, and its replica then asks the primary for it. It asks only for files that its edits leave
//! in the tree. The primary may have dropped one that a later edit removes, and both edits are
//! applied as one.

use super::steps::Step;
use super::{After, Mutant, Node};
use crate::message::NodeMessage;
use crate::state::opaque;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{Error, Failed, FileId, Frontier, LogPosition, SequenceNumber, ShardId};
use gabion_engine::{BatchReader, Edit, FileMeta, JobKind, Version};
use gabion_log::{Anchor, Header, Record, RecordFlags, RecordKind, Seal};

/// An edit on its way into the tree.
struct Waiting {
    edit: Edit,
    encoded: Vec<u8>,
    /// The log must be durable here up to this position first.
    end: LogPosition,
    /// When it came to be first in line, in ms; for asking for missing files.
    since_ms: Option<u64>,
}

/// Edits that are in the log (or, in every-replica mode, decided here) and not applied.
#[derive(Default)]
pub(super) struct Applying {
    waiting: VecDeque<Waiting>,
    /// Files that the primary was asked for, and when, in ms.
    asked: BTreeMap<FileId, u64>,
    /// Files that are not here, added and then removed by edits that are being applied as one.
    skipped: BTreeSet<FileId>,
    /// The seals of the log that is kept, with their times: the places at which it may be trimmed.
    pub(super) seals: VecDeque<(Anchor, u64)>,
    /// Set while the log is replayed: edits in it may have been applied before the restart.
    replay: Option<Replay>,
    /// The newest floor whose clear is known to be in the log, and the end of that record. Before
    /// the first clear since the start: the floor that the tree had then.
    cleared: (SequenceNumber, LogPosition),
}

/// The past that replayed edits must fit.
struct Replay {
    /// Edits that were applied, encoded: those since the placement log's last checkpoint.
    applied: BTreeMap<u64, Vec<u8>>,
    /// Set once all that recovery found is replayed and others send the rest. Up to this edit their
    /// records were in the log before.
    until: Option<u64>,
    /// Number of the last edit that was replayed, and where its record ends.
    last: Option<(u64, LogPosition)>,
}

impl Applying {
    /// For a tree with this floor.
    pub(super) fn new(floor: SequenceNumber) -> Self {
        Self { cleared: (floor, LogPosition::ZERO), ..Self::default() }
    }

    /// Number of the last edit that waits, or else of the last that was applied.
    pub(super) fn last_appended(&self, applied: u64) -> u64 {
        self.waiting.back().map_or(applied, |waiting| waiting.edit.number)
    }

    /// The tree's files once every edit in line is applied: those of the log as far as it is here.
    pub(super) fn version_at_the_end(
        &self,
        current: &Arc<Version>,
    ) -> gabion_base::Result<Arc<Version>> {
        let mut version = current.clone();
        for waiting in &self.waiting {
            version = Arc::new(version.apply(&waiting.edit)?);
        }
        Ok(version)
    }

    /// Whether edits that come may have been applied before the restart.
    pub(super) const fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Number of the last load's edit in line. The log has it, but reads here do not show it yet.
    pub(super) fn last_load(&self) -> Option<u64> {
        let loads = self.waiting.iter().filter(|waiting| waiting.edit.kind == JobKind::Load);
        loads.map(|waiting| waiting.edit.number).max()
    }

    pub(super) fn pending_in_order(&self) -> bool {
        let numbers = self.waiting.iter().map(|waiting| waiting.edit.number);
        numbers.clone().zip(numbers.skip(1)).all(|(a, b)| a + 1 == b)
    }

    /// The description of a file by the waiting edit that adds it.
    pub(super) fn added(&self, file: FileId) -> Option<Arc<FileMeta>> {
        let mut added = self.waiting.iter().flat_map(|waiting| &waiting.edit.added);
        added.find(|(_, meta)| meta.id == file).map(|(_, meta)| Arc::new(meta.clone()))
    }

    /// Whether a waiting edit adds the file.
    pub(super) fn names(&self, file: FileId) -> bool {
        self.waiting.iter().any(|w| w.edit.added.iter().any(|(_, meta)| meta.id == file))
    }

    /// Position up to which the log must be durable for the edits in line: all of them, as the
    /// first may have to be applied together with others. Edits decided here, which no log has, may
    /// need less than earlier ones.
    pub(super) fn wants_durable(&self) -> Option<LogPosition> {
        self.waiting.iter().map(|waiting| waiting.end).max()
    }
}

impl Node {
    /// Applies placed records that have become contiguous. The head applies its own records when it
    /// writes.
    pub(super) fn apply_records(&mut self) {
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
    pub(crate) fn apply_record(&mut self, record: &Record) -> gabion_base::Result<()> {
        self.apply_content(record)?;
        self.tree.pass_time(record.header.now_ms);
        Ok(())
    }

    fn apply_content(&mut self, record: &Record) -> gabion_base::Result<()> {
        let header = &record.header;
        let at = |error: Error| error.within(alloc::format!("log record at {}", header.position));
        if header.flags.has(RecordFlags::DURABLE_ACK) {
            self.want_durable(record.end());
        }
        match header.kind {
            RecordKind::Batch if self.is_flushed(header) => Ok(()),
            // It carries time alone, with the sequence number of the next record.
            RecordKind::Batch if header.count == 0 && record.payload().is_empty() => Ok(()),
            // Sequence numbers of a load, whose edit comes later, or of writes past the log.
            RecordKind::Batch if record.payload().is_empty() => {
                self.tree.skip_sequences(header.first_sequence, header.count).map_err(at)
            }
            RecordKind::Batch if self.has(Mutant::HalfBatchReplayed) => {
                self.apply_half_batch(record).map_err(at)
            }
            RecordKind::Batch => {
                self.tree.apply_batch(header.first_sequence, &record.payload()).map_err(at)?;
                self.note_clear(record.end());
                Ok(())
            }
            RecordKind::Seal => {
                let seal = Seal::decode(&record.payload()).map_err(at)?;
                self.apply.seals.push_back((record.anchor(), header.now_ms));
                if seal.memtable <= self.tree.flushed().memtable {
                    return Ok(()); // replayed, and already in files
                }
                self.apply_seal(&seal, record).map_err(at)
            }
            RecordKind::Edit => {
                let encoded = record.payload();
                let edit = Edit::decode(&encoded).map_err(at)?;
                if self.was_applied(&edit, &encoded, record.end()).map_err(at)? {
                    return Ok(());
                }
                self.queue_edit(edit, encoded.to_vec(), record.end()).map_err(at)
            }
            RecordKind::TermStart => self.apply_term_start(record).map_err(at),
            RecordKind::Pad => Ok(()),
        }
    }

    /// Seals the MemTable that the seal in `record` names: its entries all lie before the seal.
    fn apply_seal(&mut self, seal: &Seal, record: &Record) -> gabion_base::Result<()> {
        if !Frontier::of(record.header.position).covers(&seal.frontier) {
            return Err(Error::corruption(alloc::format!(
                "the seal of {} at {} says that its records end at {}",
                seal.memtable,
                record.header.position,
                seal.frontier
            )));
        }
        self.tree.seal(seal.memtable, Frontier::of(record.end())).map(|_| ())
    }

    /// The planted half of a batch: all but the last operation.
    fn apply_half_batch(&mut self, record: &Record) -> gabion_base::Result<()> {
        let (payload, first) = (record.payload(), record.header.first_sequence);
        let is_whole = |len: &usize| BatchReader::new(&payload[..*len]).all(|part| part.is_ok());
        let half = (0..payload.len()).rev().find(is_whole).unwrap_or_default();
        if half > 0 {
            self.tree.apply_batch(first, &payload[..half])?;
        }
        self.tree.skip_sequences(self.tree.last_sequence().next(), 1)?;
        self.note_clear(record.end());
        Ok(())
    }

    /// Notes where the log has the last clear of everything, if the record that ends there had one.
    pub(super) fn note_clear(&mut self, end: LogPosition) {
        if self.tree.floor() > self.apply.cleared.0 {
            self.apply.cleared = (self.tree.floor(), end);
        }
    }

    /// Whether edits decided here wait until a clear in the record under way is durable.
    pub(super) fn clear_is_awaited(&self) -> bool {
        !self.duties().log_edits && self.tree.floor() > self.apply.cleared.0
    }

    /// Position up to which the log must be durable for an edit that was decided here and that no
    /// log has. The edit carries the floor of the last clear. If a power cut left the floor and
    /// took the clear, later writes would get numbers below the floor and count as cleared.
    ///
    /// In a group of one nobody needs records that a flush has put into files. The edit takes them
    /// off the log, which then begins behind them ([`Self::trim_to`]); a clear among them needs no
    /// record.
    pub(super) fn own_edit_end(&self, edit: &Edit) -> LogPosition {
        let flushed =
            edit.flushed.as_ref().map_or(LogPosition::ZERO, |flushed| flushed.frontier.only());
        let cleared = edit.floor.map_or(LogPosition::ZERO, |_| self.apply.cleared.1);
        let needed = flushed.max(cleared);
        let begin = match self.view.log_is_private() && self.is_seal(flushed) {
            true => flushed.max(self.state.trimmed.position),
            false => self.state.trimmed.position,
        };
        if needed > begin { needed } else { LogPosition::ZERO }
    }

    /// Whether the log may begin here: behind the seal of a MemTable.
    fn is_seal(&self, at: LogPosition) -> bool {
        self.apply.seals.iter().any(|(seal, _)| seal.position == at)
    }

    /// Whether a replayed batch is in files already: the log is kept from before the last flush.
    fn is_flushed(&self, header: &Header) -> bool {
        let last = header.first_sequence.get() + u64::from(header.count);
        last <= self.tree.flushed().sequence.get() + 1 && header.count > 0
    }

    /// From here to [`Self::end_replay`] the log is replayed. Its edits may be among those that
    /// were applied, which the placement log has by number.
    pub(super) fn begin_replay(&mut self, applied: BTreeMap<u64, Vec<u8>>) {
        self.apply.replay = Some(Replay { applied, until: None, last: None });
    }

    /// All that recovery found is replayed. Where the log was cut at a rotten record, edits beyond
    /// it may have been applied, and come again from others.
    pub(super) fn end_replay(&mut self, is_cut: bool) {
        let applied = self.tree.last_edit();
        let seen = self.apply.replay.as_ref().and_then(|replay| replay.last).map_or(0, |it| it.0);
        match &mut self.apply.replay {
            Some(replay) if is_cut && seen < applied => replay.until = Some(applied),
            replay => *replay = None,
        }
    }

    /// Whether an edit is a replayed one that was applied before the restart; its record ends at
    /// `end`. The log has each number once and in order. So a number out of order, or another edit
    /// of the same number, is no repetition: a primary miscounted, or the log is not this tree's.
    fn was_applied(
        &mut self,
        edit: &Edit,
        encoded: &[u8],
        end: LogPosition,
    ) -> gabion_base::Result<bool> {
        let number = edit.number;
        // A log without edits of jobs has those of loads; the placement log has those in between.
        let may_skip = !self.duties().log_edits;
        let Some(replay) = &mut self.apply.replay else { return Ok(false) };
        if let Some((before, before_end)) = replay.last.replace((number, end))
            && !(number == before + 1 || may_skip && number > before)
        {
            return Err(Error::corruption(alloc::format!(
                "edit {number} at {end} follows edit {before} at {before_end}: the log has each \
                 number once and in order"
            )));
        }
        if replay.applied.get(&number).is_some_and(|applied| applied != encoded) {
            return Err(Error::corruption(alloc::format!(
                "edit {number} at {end} is not the edit {number} that was applied"
            )));
        }
        if replay.until.is_some_and(|until| number >= until) {
            self.apply.replay = None;
        }
        Ok(number <= self.tree.last_edit())
    }

    /// Puts an edit in line. Numbers have no gaps: a gap would be an edit lost.
    pub(super) fn queue_edit(
        &mut self,
        edit: Edit,
        encoded: Vec<u8>,
        end: LogPosition,
    ) -> gabion_base::Result<()> {
        let last = self.apply.last_appended(self.tree.last_edit());
        if edit.number != last + 1 {
            let rule = if edit.number > last { "have a gap" } else { "come twice" };
            return Err(Error::corruption(alloc::format!(
                "edit {} at {end} follows edit {last}: the numbers must not {rule}",
                edit.number
            )));
        }
        self.tree.reserve_files(edit.next_file);
        self.due.mark_all(&Step::QUEUED);
        self.apply.waiting.push_back(Waiting { edit, encoded, end, since_ms: None });
        Ok(())
    }

    /// Applies the edits in line that are ready. The tree follows at once; members are told, and
    /// slots of removed files are used again, when the placement commit is durable.
    pub(super) fn apply_edits(&mut self) {
        while let Some(count) = self.edits_ready() {
            if let Err(error) = self.enter_files(count) {
                return self.failed(Failed::Apply, error);
            }
            for _ in 0..count {
                let Some(first) = self.apply.waiting.pop_front() else { return };
                if let Err(error) = self.apply_edit(first) {
                    return self.failed(Failed::Apply, error);
                }
            }
            self.give_up_asked();
            assert!(self.apply.skipped.is_empty(), "a file is in the tree and not here");
        }
    }

    /// The number of edits in line to apply now: the first alone, or, if a file of it is missing
    /// for good, all up to the one that removes the last such file. They are staged together and so
    /// become durable in one commit, and nothing reads the tree between them.
    fn edits_ready(&mut self) -> Option<usize> {
        let (now_ms, planted) = (self.now_ms, self.has(Mutant::EditBeforeFiles));
        self.apply.waiting.front_mut()?.since_ms.get_or_insert(now_ms);
        let end = self.protocol.commit().only().min(self.log.durable_end());
        let mut missing = BTreeSet::new();
        for (i, waiting) in self.apply.waiting.iter().enumerate() {
            if waiting.end > end {
                return None;
            }
            self.count_missing(&waiting.edit, &mut missing);
            if planted || missing.is_empty() {
                return Some(i + 1);
            }
            if missing.iter().any(|file| self.is_coming(*file)) {
                return None;
            }
        }
        None
    }

    /// Adds files that must be here after this edit and are not; takes out those that it removes.
    fn count_missing(&self, edit: &Edit, missing: &mut BTreeSet<FileId>) {
        for (_, file) in &edit.removed {
            missing.remove(file);
        }
        let added = edit.added.iter().map(|(_, meta)| meta.id);
        missing.extend(added.filter(|file| self.files.get(*file).is_none()));
    }

    /// Whether a file was shipped here and its place is not durable yet.
    fn is_coming(&self, file: FileId) -> bool {
        self.grants.is_arriving(file) || self.pool.placement(file).is_some()
    }

    /// Has files enter the tree that the first edits in line add. All of them do before any leaves:
    /// what a file references that the last of these edits adds must not go with an earlier one.
    fn enter_files(&mut self, edits: usize) -> gabion_base::Result<()> {
        let edits = self.apply.waiting.iter().take(edits).map(|waiting| &waiting.edit);
        let mut added = edits.flat_map(|edit| &edit.added);
        added.try_for_each(|(_, meta)| self.files.enter_tree(meta))
    }

    fn apply_edit(&mut self, waiting: Waiting) -> gabion_base::Result<()> {
        let edit = waiting.edit;
        self.check_added(&edit)?;
        for (_, file) in &edit.removed {
            let moved = edit.added.iter().any(|(_, meta)| meta.id == *file);
            if moved {
                continue;
            }
            if self.apply.skipped.remove(file) {
                // The primary may be shipping it, asked or not: no edit will ever remove it again.
                self.grants.note_unneeded(*file);
                continue;
            }
            self.files.leave_tree(&mut self.pool, *file)?;
            if self.repairs.may_come(*file) {
                self.grants.note_unneeded(*file);
            }
            self.repairs.forget(*file);
            if self.has(Mutant::SlotFreedUnderReader) {
                self.pool.free_file(*file)?;
            }
        }
        self.skip_missing(&edit);
        self.pool.stage_opaque(opaque::EDIT, waiting.encoded);
        // Committed and durable here: a log that is found shorter later is not whole.
        if waiting.end > self.state.durable {
            self.state.durable = waiting.end;
            self.stage_state(None);
        }
        self.keep_time(&edit);
        self.tree.apply_edit(&edit)?;
        self.tell_replaced(&edit);
        self.counters.edits += 1;
        self.due.mark_all(&Step::APPLIED);
        self.jobs_edit_applied(&edit);
        let flushed = self.tree.flushed();
        self.commits.staged.push(After::EditApplied { edit: edit.number, flushed });
        let begin = flushed.frontier.only();
        let begins_behind = edit.flushed.is_some() && self.is_seal(begin);
        if self.view.log_is_private() && begins_behind && !self.has(Mutant::LogBeginsBeforeFlush) {
            self.trim_to(begin);
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
        self.outputs.push_back(super::Output::Replaced(super::Replaced { removed, added }));
    }

    /// Remembers which files an edit adds that are not here, until an edit of the same group
    /// removes them.
    fn skip_missing(&mut self, edit: &Edit) {
        if self.has(Mutant::EditBeforeFiles) {
            return;
        }
        for (_, meta) in &edit.added {
            if self.files.get(meta.id).is_none() && self.apply.skipped.insert(meta.id) {
                self.counters.skipped_files += 1;
            }
        }
    }

    /// Files that were asked for and that no waiting edit adds any more are not taken when they
    /// come.
    fn give_up_asked(&mut self) {
        for (file, since_ms) in core::mem::take(&mut self.apply.asked) {
            if self.apply.names(file) {
                self.apply.asked.insert(file, since_ms);
            } else if self.files.get(file).is_none() {
                self.grants.note_unneeded(file);
            }
        }
    }

    /// Repair and acceptance trust the checksum in the edit: the file that lies here must have it.
    fn check_added(&self, edit: &Edit) -> gabion_base::Result<()> {
        for (_, meta) in &edit.added {
            let Some(placement) = self.files.get(meta.id) else { continue };
            if (placement.checksum, placement.len) != (meta.checksum, meta.rounded_len()) {
                return Err(Error::corruption(alloc::format!(
                    "{} lies here with {} bytes and checksum {:08x}, edit {} names {} bytes and {:08x}",
                    meta.id,
                    placement.len,
                    placement.checksum,
                    edit.number,
                    meta.rounded_len(),
                    meta.checksum
                )));
            }
        }
        Ok(())
    }

    /// Asks the primary for files that the edits in line need and that have not come for a while.
    pub(super) fn ask_for_missing_files(&mut self) {
        if !self.duties().receive || self.has(Mutant::MissingFilesNotAsked) {
            return;
        }
        let Some(first) = self.apply.waiting.front() else { return };
        let waited = first.since_ms.map_or(0, |since| self.now_ms.saturating_sub(since));
        if waited < self.options.placement_wait_ms {
            return;
        }
        let mut missing = BTreeSet::new();
        for waiting in &self.apply.waiting {
            self.count_missing(&waiting.edit, &mut missing);
        }
        // An answer may be lost with a connection that only the primary saw break.
        let now_ms = self.now_ms;
        let is_asked =
            |since_ms: &u64| now_ms.saturating_sub(*since_ms) < super::repair::ANSWER_MS_MAX;
        missing.retain(|file| {
            !self.apply.asked.get(file).is_some_and(is_asked) && !self.is_coming(*file)
        });
        let head = self.view.writer();
        for file in missing {
            self.counters.pulled_files += 1;
            self.apply.asked.insert(file, now_ms);
            self.tell(head, &NodeMessage::NeedFile { file });
        }
    }

    /// The primary has no whole copy of a file that it was asked for, as yet.
    pub(super) fn ask_later(&mut self, file: FileId) {
        if self.apply.asked.remove(&file).is_some()
            && let Some(first) = self.apply.waiting.front_mut()
        {
            first.since_ms = Some(self.now_ms);
        }
    }

    /// A new connection with the primary: files asked for on the old one are asked for again.
    pub(super) fn ask_again(&mut self) {
        self.apply.asked.clear();
        if let Some(first) = self.apply.waiting.front_mut() {
            first.since_ms = None;
        }
    }

    /// A file that was shipped here has its place: an edit may now name it.
    pub(super) fn file_placed(&mut self, file: FileId, tell: bool) {
        if self.files.placed(&self.pool, file) && tell {
            let head = self.view.writer();
            self.tell(head, &NodeMessage::Have { file });
        }
    }
}

#[cfg(test)]
mod tests;
