//! From log records to the tree: batches and seals at once, edits when they are ready.
//!
//! ```text
//!   record ──► apply_record ─┬─► tree: a batch, a seal
//!                            └─► queue ──► edits_ready ──► next_ready ──► committed by the node
//!   edit decided here ───────────► ▲            ▲                         (route/apply.rs)
//!                                               └ files that come, log that is durable
//! ```
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

use super::counters::Counters;
use super::effects::{Effects, Signal};
use super::facts::Facts;
use super::planted::Mutant;
use super::steps::Step;
use crate::message::NodeMessage;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{Error, FileId, FileKind, Frontier, LogPosition, Result, SequenceNumber};
use gabion_engine::{BatchReader, Edit, FileMeta, JobKind, Tree, Version};
use gabion_log::{Anchor, Header, Record, RecordFlags, RecordKind, Seal};
use gabion_replication::GroupView;

/// How long a file that was asked for may be on none of its ways, in ms: the question or its answer
/// is lost with a connection that only the other end saw break. The primary has a file once in its
/// queue, however often it is asked.
const ASK_AGAIN_MS: u64 = 2_000;

/// An edit on its way into the tree.
struct Waiting {
    edit: Edit,
    encoded: Vec<u8>,
    /// The log must be durable here up to this position first.
    end: LogPosition,
    /// When it came to be first in line, in ms; for asking for missing files.
    since_ms: Option<u64>,
}

/// An edit that is out of the line, to be committed.
pub(super) struct Ready {
    pub(super) edit: Edit,
    pub(super) encoded: Vec<u8>,
    /// The log is durable up to here at least.
    pub(super) end: LogPosition,
    /// Files that are here and that it takes out of the tree.
    pub(super) gone: Vec<FileId>,
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
    seals: VecDeque<(Anchor, u64)>,
    /// Set while the log is replayed: edits in it may have been applied before the restart.
    replay: Option<Replay>,
    /// The newest floor whose clear is known to be in the log, and the end of that record. Before
    /// the first clear since the start: the floor that the tree had then.
    cleared: (SequenceNumber, LogPosition),
    /// Edits that were applied.
    applied: u64,
    /// As [`Counters::skipped_files`], [`Counters::pulled_files`], [`Counters::kept_segments`].
    skipped_files: u64,
    pulled_files: u64,
    kept_segments: u64,
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

    // ---- questions

    /// Number of the last edit that waits, or else of the last that was applied.
    pub(super) fn last_appended(&self, applied: u64) -> u64 {
        self.waiting.back().map_or(applied, |waiting| waiting.edit.number)
    }

    /// The tree's files once every edit in line is applied: those of the log as far as it is here.
    pub(super) fn version_at_the_end(&self, current: &Arc<Version>) -> Result<Arc<Version>> {
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

    /// The description of a file by the waiting edit that adds it.
    pub(super) fn added(&self, file: FileId) -> Option<Arc<FileMeta>> {
        let mut added = self.waiting.iter().flat_map(|waiting| waiting.edit.made());
        added.find(|meta| meta.id == file).map(|meta| Arc::new(meta.clone()))
    }

    /// Whether every file is here that the edits in line leave in the tree.
    pub(super) fn has_files(&self, facts: &Facts, version: &Version) -> bool {
        let mut missing = Missing::default();
        (0..self.waiting.len()).for_each(|at| missing.count(facts, version, &self.waiting, at));
        missing.is_empty()
    }

    /// Whether a waiting edit adds the file.
    pub(super) fn names(&self, file: FileId) -> bool {
        self.waiting.iter().any(|w| w.edit.made().any(|meta| meta.id == file))
    }

    /// Position up to which the log must be durable for the edits in line: all of them, as the
    /// first may have to be applied together with others. Edits decided here, which no log has, may
    /// need less than earlier ones.
    pub(super) fn wants_durable(&self) -> Option<LogPosition> {
        self.waiting.iter().map(|waiting| waiting.end).max()
    }

    /// Whether edits decided here wait until a clear in the record under way is durable.
    pub(super) fn clear_is_awaited(&self, facts: &Facts, tree: &Tree) -> bool {
        !facts.view.duties().log_edits && tree.floor() > self.cleared.0
    }

    /// Position up to which the log must be durable for an edit that was decided here and that no
    /// log has. The edit carries the floor of the last clear. If a power cut left the floor and
    /// took the clear, later writes would get numbers below the floor and count as cleared.
    ///
    /// In a group of one nobody needs records that a flush has put into files. The edit takes them
    /// off the log, which then begins behind them; a clear among them needs no record.
    pub(super) fn own_edit_end(&self, facts: &Facts, edit: &Edit) -> LogPosition {
        let flushed =
            edit.flushed.as_ref().map_or(LogPosition::ZERO, |flushed| flushed.frontier.only());
        let cleared = edit.floor.map_or(LogPosition::ZERO, |_| self.cleared.1);
        let kept = kept_end(facts, edit);
        let needed = flushed.max(cleared).max(kept);
        let begin = match facts.view.log_is_private() && self.is_seal(flushed) {
            true => flushed.max(facts.state.trimmed.position),
            false => facts.state.trimmed.position,
        };
        // The bytes of values that stay in the log are nowhere else.
        if needed > begin { needed } else { kept }
    }

    /// Whether the log may begin here: behind the seal of a MemTable.
    pub(super) fn is_seal(&self, at: LogPosition) -> bool {
        self.seals.iter().any(|(seal, _)| seal.position == at)
    }

    /// The last seal of the log that is kept up to a position, with its time.
    pub(super) fn last_seal_by(&self, at: LogPosition) -> Option<(Anchor, u64)> {
        self.seals.iter().rev().find(|(seal, _)| seal.position <= at).copied()
    }

    /// Where the last seal of the log that is kept lies.
    pub(super) fn last_seal(&self) -> Option<LogPosition> {
        self.seals.back().map(|(seal, _)| seal.position)
    }

    pub(super) fn count_into(&self, counters: &mut Counters) {
        counters.edits += self.applied;
        counters.skipped_files += self.skipped_files;
        counters.pulled_files += self.pulled_files;
        counters.kept_segments += self.kept_segments;
    }

    /// Checks what holds between steps, in a tree whose last edit is `applied`.
    pub(super) fn invariants(&self, applied: u64) {
        assert!(self.skipped.is_empty(), "a file is in the tree and not here: {:?}", self.skipped);
        if let (Some(first), Some(last)) = (self.waiting.front(), self.waiting.back()) {
            assert_eq!(first.edit.number, applied + 1, "the first edit in line is the next");
            let between = last.edit.number - first.edit.number;
            assert_eq!(between + 1, self.waiting.len() as u64, "edits in line have no gap");
        }
        if cfg!(debug_assertions) {
            let numbers = self.waiting.iter().map(|waiting| waiting.edit.number);
            let pairs = numbers.clone().zip(numbers.skip(1));
            assert!(pairs.into_iter().all(|(a, b)| a + 1 == b), "edits wait in their order");
            let seals = self.seals.iter().map(|(seal, _)| seal.position);
            let pairs = seals.clone().zip(seals.skip(1));
            assert!(pairs.into_iter().all(|(a, b)| a < b), "seals lie in the log's order");
        }
    }

    // ---- records

    /// Applies a record of the log: at a secondary when it arrives, everywhere when it is replayed.
    ///
    /// # Errors
    /// Corruption, with the record's place, for one that the log of this tree cannot have.
    pub(super) fn apply_record(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        tree: &mut Tree,
        record: &Record,
    ) -> Result<()> {
        let at =
            |error: Error| error.within(alloc::format!("log record at {}", record.header.position));
        self.apply_content(facts, effects, tree, record).map_err(at)?;
        tree.pass_time(record.header.now_ms);
        Ok(())
    }

    fn apply_content(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        tree: &mut Tree,
        record: &Record,
    ) -> Result<()> {
        let header = &record.header;
        if header.flags.has(RecordFlags::DURABLE_ACK) {
            effects.signal(Signal::DurableWanted(record.end()));
        }
        match header.kind {
            RecordKind::Batch if is_flushed(tree, header) => Ok(()),
            // It carries time alone, with the sequence number of the next record.
            RecordKind::Batch if header.count == 0 && record.payload().is_empty() => Ok(()),
            // Sequence numbers of a load, whose edit comes later, or of writes past the log.
            RecordKind::Batch if record.payload().is_empty() => {
                tree.skip_sequences(header.first_sequence, header.count)
            }
            RecordKind::Batch if facts.has(Mutant::HalfBatchReplayed) => {
                self.apply_half_batch(tree, record)
            }
            RecordKind::Batch => {
                tree.apply_batch(header.first_sequence, &record.payload())?;
                note_places(tree, record);
                self.note_clear(tree, record.end());
                Ok(())
            }
            RecordKind::Seal => {
                let seal = Seal::decode(&record.payload())?;
                self.note_seal(record.anchor(), header.now_ms);
                if seal.memtable <= tree.flushed().memtable {
                    return Ok(()); // replayed, and already in files
                }
                apply_seal(tree, &seal, record)
            }
            RecordKind::Edit => {
                let encoded = record.payload();
                let edit = Edit::decode(&encoded)?;
                if self.was_applied(facts, tree, &edit, &encoded, record.end())? {
                    return Ok(());
                }
                self.queue(facts, effects, tree, edit, encoded.to_vec(), record.end())
            }
            RecordKind::TermStart => {
                if !facts.has(Mutant::GapsKept) {
                    tree.note_gap();
                }
                check_term_start(facts, record)
            }
            // The table of sessions is not of the tree.
            RecordKind::Pad | RecordKind::Sessions => Ok(()),
        }
    }

    /// The planted half of a batch: all but the last operation.
    fn apply_half_batch(&mut self, tree: &mut Tree, record: &Record) -> Result<()> {
        let (payload, first) = (record.payload(), record.header.first_sequence);
        let is_whole = |len: &usize| BatchReader::new(&payload[..*len]).all(|part| part.is_ok());
        let half = (0..payload.len()).rev().find(is_whole).unwrap_or_default();
        if half > 0 {
            tree.apply_batch(first, &payload[..half])?;
        }
        tree.skip_sequences(tree.last_sequence().next(), 1)?;
        self.note_clear(tree, record.end());
        Ok(())
    }

    /// Notes where the log has the last clear of everything, if the record that ends there had one.
    #[inline]
    pub(super) fn note_clear(&mut self, tree: &Tree, end: LogPosition) {
        if tree.floor() > self.cleared.0 {
            self.cleared = (tree.floor(), end);
        }
    }

    /// The log has a seal, with its group time.
    pub(super) fn note_seal(&mut self, seal: Anchor, now_ms: u64) {
        let last = self.last_seal();
        assert!(
            last.is_none_or(|last| last < seal.position),
            "{}",
            alloc::format!("a seal at {} behind one at {last:?}", seal.position)
        );
        self.seals.push_back((seal, now_ms));
    }

    /// Forgets the seals up to `limit`, as the log is to begin behind the last of them. Returns
    /// that one, with its time.
    pub(super) fn pass_seals(&mut self, limit: LogPosition) -> Option<(Anchor, u64)> {
        let count = self.seals.iter().take_while(|(seal, _)| seal.position <= limit).count();
        self.seals.drain(..count).next_back()
    }

    // ---- replay

    /// From here to [`Self::end_replay`] the log is replayed. Its edits may be among those that
    /// were applied, which the placement log has by number.
    pub(super) fn begin_replay(&mut self, applied: BTreeMap<u64, Vec<u8>>) {
        self.replay = Some(Replay { applied, until: None, last: None });
    }

    /// All that recovery found is replayed. Where the log was cut at a rotten record, or has yet to
    /// reach the files of a full copy, edits beyond its end are applied. They come again from
    /// others.
    pub(super) fn end_replay(&mut self, tree: &Tree, is_cut: bool) {
        let applied = tree.last_edit();
        let seen = self.replay.as_ref().and_then(|replay| replay.last).map_or(0, |it| it.0);
        match &mut self.replay {
            Some(replay) if is_cut && seen < applied => replay.until = Some(applied),
            replay => *replay = None,
        }
    }

    /// Whether an edit is a replayed one that was applied before the restart; its record ends at
    /// `end`. The log has each number once and in order. So a number out of order, or another edit
    /// of the same number, is no repetition: a primary miscounted, or the log is not this tree's.
    fn was_applied(
        &mut self,
        facts: &Facts,
        tree: &Tree,
        edit: &Edit,
        encoded: &[u8],
        end: LogPosition,
    ) -> Result<bool> {
        let number = edit.number;
        // A log without edits of jobs has those of loads; the placement log has those in between.
        let may_skip = !facts.view.duties().log_edits;
        let Some(replay) = &mut self.replay else { return Ok(false) };
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
            self.replay = None;
        }
        Ok(number <= tree.last_edit())
    }

    // ---- edits

    /// Puts an edit in line. Numbers have no gaps: a gap would be an edit lost.
    ///
    /// # Errors
    /// Corruption for another number than the next, and as [`check_segments`].
    pub(super) fn queue(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        tree: &mut Tree,
        edit: Edit,
        encoded: Vec<u8>,
        end: LogPosition,
    ) -> Result<()> {
        let last = self.last_appended(tree.last_edit());
        if edit.number != last + 1 {
            let rule = if edit.number > last { "have a gap" } else { "come twice" };
            return Err(Error::corruption(alloc::format!(
                "edit {} at {end} follows edit {last}: the numbers must not {rule}",
                edit.number
            )));
        }
        check_segments(facts, &edit)?;
        tree.reserve_files(edit.next_file);
        effects.due(&Step::QUEUED);
        self.waiting.push_back(Waiting { edit, encoded, end, since_ms: None });
        Ok(())
    }

    /// The number of edits in line to apply now to a tree of this `version`: the first alone, or,
    /// if a file of it is missing for good, all up to the one that removes the last such file. They
    /// are staged together and so become durable in one commit, and nothing reads the tree between
    /// them. A file `is_coming` that was shipped here and has no durable place yet.
    pub(super) fn edits_ready(
        &mut self,
        facts: &Facts,
        version: &Version,
        is_coming: impl Fn(FileId) -> bool,
    ) -> Option<usize> {
        self.waiting.front_mut()?.since_ms.get_or_insert(facts.now_ms);
        let planted = facts.has(Mutant::EditBeforeFiles);
        let end = facts.protocol.commit().only().min(durable_for_edits(facts));
        let mut missing = Missing::default();
        for (i, waiting) in self.waiting.iter().enumerate() {
            if waiting.end > end {
                return None;
            }
            missing.count(facts, version, &self.waiting, i);
            if planted || missing.is_empty() {
                return Some(i + 1);
            }
            if missing.files().any(&is_coming) {
                return None;
            }
        }
        None
    }

    /// So many edits in line, the first ones.
    pub(super) fn first(&self, count: usize) -> impl Iterator<Item = &Edit> {
        self.waiting.iter().take(count).map(|waiting| &waiting.edit)
    }

    /// Takes the first edit out of the line, which the node commits.
    ///
    /// # Errors
    /// Corruption when a file that it adds lies here with other bytes.
    pub(super) fn next_ready(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
    ) -> Result<Option<Ready>> {
        let Some(first) = self.waiting.pop_front() else { return Ok(None) };
        let Waiting { edit, encoded, end, .. } = first;
        assert!(end <= durable_for_edits(facts), "an edit is applied whose record may be lost");
        check_added(facts, &edit)?;
        check_kept(facts, &edit)?;
        self.kept_segments += edit.segments().count() as u64;
        let mut gone = Vec::new();
        for (_, file) in &edit.removed {
            let moved = edit.added.iter().any(|(_, meta)| meta.id == *file);
            if moved {
                continue;
            }
            if self.skipped.remove(file) {
                // The primary may be shipping it, asked or not: no edit will ever remove it again.
                effects.signal(Signal::Unneeded(*file));
                continue;
            }
            gone.push(*file);
        }
        self.skip_missing(facts, effects, &edit);
        self.applied += 1;
        Ok(Some(Ready { edit, encoded, end, gone }))
    }

    /// Remembers which files an edit adds that are not here, until an edit of the same group
    /// removes them.
    fn skip_missing(&mut self, facts: &Facts, effects: &mut Effects, edit: &Edit) {
        if facts.has(Mutant::EditBeforeFiles) {
            return;
        }
        for (_, meta) in &edit.added {
            if facts.files.get(meta.id).is_none() && self.skipped.insert(meta.id) {
                self.skipped_files += 1;
            }
        }
        for meta in edit.values.iter().filter(|meta| facts.files.get(meta.id).is_none()) {
            // An edit of the same group takes the last file out of the tree that references it.
            self.skipped_files += 1;
            effects.signal(Signal::Unneeded(meta.id));
        }
    }

    /// Edits that are applied as one are. Files that were asked for and that no waiting edit adds
    /// any more are not taken when they come.
    pub(super) fn end_group(&mut self, facts: &Facts, effects: &mut Effects) {
        for (file, since_ms) in core::mem::take(&mut self.asked) {
            if self.names(file) {
                self.asked.insert(file, since_ms);
            } else if facts.files.get(file).is_none() {
                effects.signal(Signal::Unneeded(file));
            }
        }
        assert!(self.skipped.is_empty(), "a file is in the tree and not here");
    }

    // ---- missing files

    /// Has files asked for that the edits in line need and that have not come for a while: of the
    /// primary, or, at the primary, of the others.
    pub(super) fn ask_for_missing_files(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        version: &Version,
        is_coming: impl Fn(FileId) -> bool,
    ) {
        let (receives, ships) = (facts.view.duties().receive, facts.view.duties().ship);
        if !(receives || ships) || facts.has(Mutant::MissingFilesNotAsked) {
            return;
        }
        let (Some(first), now_ms) = (self.waiting.front(), facts.now_ms) else { return };
        let waited = first.since_ms.map_or(0, |since| now_ms.saturating_sub(since));
        if waited < facts.options.placement_wait_ms {
            return;
        }
        let mut counted = Missing::default();
        (0..self.waiting.len()).for_each(|at| counted.count(facts, version, &self.waiting, at));
        let mut missing: BTreeSet<FileId> = counted.files().collect();
        // An answer may be lost with a connection that only the primary saw break.
        let is_asked = |since_ms: &u64| now_ms.saturating_sub(*since_ms) < ASK_AGAIN_MS;
        missing.retain(|file| !self.asked.get(file).is_some_and(is_asked) && !is_coming(*file));
        for file in missing {
            self.pulled_files += 1;
            self.asked.insert(file, now_ms);
            match receives {
                true => effects.tell_member(facts.writer(), NodeMessage::NeedFile { file }),
                false => effects.signal(Signal::Missing(file)),
            }
        }
    }

    /// The primary has no whole copy of a file that it was asked for, as yet.
    pub(super) fn ask_later(&mut self, file: FileId, now_ms: u64) {
        if self.asked.remove(&file).is_some()
            && let Some(first) = self.waiting.front_mut()
        {
            first.since_ms = Some(now_ms);
        }
    }

    /// A new connection with the primary: files asked for on the old one are asked for again.
    pub(super) fn ask_again(&mut self) {
        self.asked.clear();
        if let Some(first) = self.waiting.front_mut() {
            first.since_ms = None;
        }
    }
}

/// Whether a replayed batch is in files already: the log is kept from before the last flush.
#[inline]
fn is_flushed(tree: &Tree, header: &Header) -> bool {
    let last = header.first_sequence.get() + u64::from(header.count);
    last <= tree.flushed().sequence.get() + 1 && header.count > 0
}

/// Tells the tree where the log has the values of a batch.
pub(super) fn note_places(tree: &mut Tree, record: &Record) {
    let Header { position, first_sequence, .. } = record.header;
    let at = LogPosition(position.get() + record.header.len() as u64);
    tree.note_places(first_sequence, &record.payload(), at);
}

/// Seals the MemTable that the seal in `record` names: its entries all lie before the seal.
fn apply_seal(tree: &mut Tree, seal: &Seal, record: &Record) -> Result<()> {
    if !Frontier::of(record.header.position).covers(&seal.frontier) {
        return Err(Error::corruption(alloc::format!(
            "the seal of {} at {} says that its records end at {}",
            seal.memtable,
            record.header.position,
            seal.frontier
        )));
    }
    tree.seal(seal.memtable, Frontier::of(record.end())).map(|_| ())
}

/// A term begins in the log: corruption for a record that is no view of this group.
fn check_term_start(facts: &Facts, record: &Record) -> Result<()> {
    let view = GroupView::decode(&record.payload())?;
    if view.group != facts.config.group || view.term != record.header.term {
        return Err(Error::corruption(alloc::format!(
            "the log of {} in {} begins with a view of {} in {}",
            facts.config.group,
            record.header.term,
            view.group,
            view.term
        )));
    }
    Ok(())
}

/// Files that must be here after the first edits in line and are not.
#[derive(Default)]
struct Missing {
    ssts: BTreeSet<FileId>,
    values: BTreeSet<FileId>,
    /// The version after these edits, from where a values file was missing: that says when nothing
    /// references it any more.
    version: Option<Version>,
}

impl Missing {
    fn is_empty(&self) -> bool {
        self.ssts.is_empty() && self.values.is_empty()
    }

    fn files(&self) -> impl Iterator<Item = FileId> {
        self.ssts.iter().chain(&self.values).copied()
    }

    /// Counts the edit at a place of the line; those before it were. `current` is the version
    /// before the first.
    fn count(&mut self, facts: &Facts, current: &Version, line: &VecDeque<Waiting>, at: usize) {
        let edit = &line[at].edit;
        for (_, file) in &edit.removed {
            self.ssts.remove(file);
        }
        let is_missing = |file: &FileId| facts.files.get(*file).is_none();
        self.ssts.extend(edit.added.iter().map(|(_, meta)| meta.id).filter(is_missing));
        self.values.extend(edit.values.iter().map(|meta| meta.id).filter(is_missing));
        if self.values.is_empty() && self.version.is_none() {
            return;
        }
        let from = if self.version.is_some() { at } else { 0 };
        let before = self.version.take().unwrap_or_else(|| current.clone());
        let after = line.range(from..=at).try_fold(before, |version, it| version.apply(&it.edit));
        // An edit that does not fit is refused when it is applied.
        let Ok(after) = after else { return };
        self.values.retain(|file| after.values_file(*file).is_some());
        self.version = Some(after);
    }
}

/// The segments in which an edit keeps values are whole ones of this log. Others could only come of
/// another log, or of a defect, and the last would have no end.
fn check_segments(facts: &Facts, edit: &Edit) -> Result<()> {
    let len = facts.config.segment_len;
    for meta in edit.segments() {
        let in_edit = |error: Error| error.within(alloc::format!("edit {}", edit.number));
        facts.log.config().check_segment(meta.id).map_err(in_edit)?;
        if meta.len != len {
            return Err(in_edit(Error::corruption(alloc::format!(
                "{} has {} bytes, a segment of this log has {len}",
                meta.id,
                meta.len
            ))));
        }
        let last = u64::MAX / len - 1;
        if meta.id.ordinal() > last {
            return Err(in_edit(Error::corruption(alloc::format!(
                "{} is number {} of the log, whose last possible one is number {last}",
                meta.id,
                meta.id.ordinal()
            ))));
        }
    }
    Ok(())
}

/// The end of the last segment in which an edit keeps values; zero where it keeps none. It is one
/// of this log ([`check_segments`]).
fn kept_end(facts: &Facts, edit: &Edit) -> LogPosition {
    let ends = edit.segments().map(|meta| (meta.id.ordinal() + 1) * facts.config.segment_len);
    LogPosition(ends.max().unwrap_or_default())
}

/// Up to where the log is durable here.
fn durable_for_edits(facts: &Facts) -> LogPosition {
    let is_enough_in_ring = facts.has(Mutant::KeptInRing);
    if is_enough_in_ring { facts.log.end() } else { facts.log.durable_end() }
}

/// No pointer without its bytes: a segment that keeps values is whole in this pool, durably, before
/// an edit says that they are there.
fn check_kept(facts: &Facts, edit: &Edit) -> Result<()> {
    let (end, durable) = (kept_end(facts, edit), durable_for_edits(facts));
    if end <= durable {
        return Ok(());
    }
    Err(Error::corruption(alloc::format!(
        "edit {} leaves values in the log up to {end}, which is durable here up to {durable}",
        edit.number
    )))
}

/// Repair and acceptance trust the checksum in the edit: the file that lies here must have it.
fn check_added(facts: &Facts, edit: &Edit) -> Result<()> {
    // The place of a segment tells no checksum: it was made before its bytes came.
    for meta in edit.made().filter(|meta| meta.id.kind != FileKind::LogSegment) {
        let Some(placement) = facts.files.get(meta.id) else { continue };
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

#[cfg(test)]
mod tests;
