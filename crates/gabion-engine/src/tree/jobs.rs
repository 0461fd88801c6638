//! Flushes and compactions: which is next, what it reads, and the edit that it makes.

use super::deletes::PARTS;
use super::{Idle, JobContext, Tree};
use crate::edit::{Edit, Flushed};
use crate::file::FileMeta;
use crate::job::{JobInputs, JobOutput, OUTPUT_LEN_MOST, Outgoing, Room, only_as_bytes};
use crate::memtable::MemTable;
use crate::picker::{Moment, Pick, Picker};
use crate::places::Places;
use crate::recipe::{JobKind, Recipe};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{Error, FileId, MemTableId, Result, SequenceNumber, Term};

/// A values file is worth its slot when a flush has such a part of a whole MemTable for it, or
/// more: 1 MiB by default. Fewer values stay where they are.
const LARGE_PART: u64 = 16;

/// Places in which the large values of a MemTable are to stay.
#[derive(Default)]
struct Stay {
    /// In these segments of the log.
    kept: Vec<FileId>,
    /// The others from this length on in values files; 0: at their keys, as there are too few.
    large_from: u32,
    places: Arc<Places>,
}

impl Tree {
    /// The next job: a flush if one is due, else a compaction. See [`Tree::next_flush`].
    pub fn next_job(&mut self, context: &JobContext) -> Option<JobInputs> {
        self.next_flush(context).or_else(|| self.next_compaction(context))
    }

    /// Flushes the oldest sealed MemTable of which no flush is under way. Several may run at a
    /// time, so that one is built while the files of another are flushed, shipped and named in the
    /// log. Their edits must be appended in the order of the MemTables: see
    /// [`Tree::flush_position`].
    ///
    /// The job's file numbers are reserved and its inputs busy until its edit is applied, or
    /// [`Tree::job_failed`] is called.
    pub fn next_flush(&mut self, context: &JobContext) -> Option<JobInputs> {
        let id = self.next_to_flush()?.table.id();
        let at = self.sealed.iter().position(|sealed| sealed.table.id() == id)?;
        let table = self.sealed[at].table.clone();
        let was_longer = self.jobs.longer.filter(|(upto, _)| table.id() <= *upto);
        let len = was_longer.map_or(0, |(_, len)| len).max(self.config.memtable_len);
        // A tombstone above nothing hides nothing: it need not be written. Where writers delete
        // what was never there, or in the order of its keys, a pool would fill up with them.
        let bottommost = at == 0 && self.is_beside_all(&table);
        let pick = Pick {
            kind: JobKind::Flush,
            inputs: Vec::new(),
            output_level: 0,
            // Each file of a flush is a run of L0, by which writers are slowed down: one, also of a
            // large MemTable, and of one that was filled when they might be longer.
            output_len: len.min(OUTPUT_LEN_MOST).max(self.config.sst_len),
            cuts: Vec::new(),
            bottommost,
        };
        let inputs = self.begin(pick, alloc::vec![table], context)?;
        assert!(self.jobs.flushing.insert(id), "{id} is flushed once");
        self.end_step();
        Some(inputs)
    }

    /// Whether nothing of the range of a MemTable, of which none is older, lies in a file, as with
    /// keys that are written in their order.
    fn is_beside_all(&self, table: &MemTable) -> bool {
        let Some((first, last)) = table.bounds() else { return true };
        let is_among = |file: &FileMeta| file.largest >= first && file.smallest <= last;
        let version = self.version();
        !version.level(0).iter().any(|file| is_among(file))
            && !version.overlaps_from(1, &first, &last)
    }

    /// How many sealed MemTables are older than the one that a recipe flushes, if it flushes one
    /// that is here.
    #[must_use]
    pub fn flush_position(&self, recipe: &Recipe) -> Option<usize> {
        let flushed = *recipe.memtables.last()?;
        self.sealed.iter().position(|sealed| sealed.table.id() == flushed)
    }

    /// The next compaction, move or drop. Several may run at a time: their inputs are disjoint. See
    /// [`Tree::next_flush`].
    pub fn next_compaction(&mut self, context: &JobContext) -> Option<JobInputs> {
        // Requested jobs go first. While writers wait for L0, or all of the tree was cleared, every
        // other job is another: neither waits for a whole range, nor does the range wait for
        // writers to pause.
        let yields = self.jobs.was_asked && (self.holds_writers() || self.has_drop());
        let mut next = if yields { None } else { self.next_asked(context) };
        self.jobs.was_asked = next.is_some();
        next = next.or_else(|| self.next_unasked(context));
        if next.is_none() && yields {
            next = self.next_asked(context);
            self.jobs.was_asked = next.is_some();
        }
        next
    }

    fn next_asked(&mut self, context: &JobContext) -> Option<JobInputs> {
        let pick = self.pick_asked(context)?;
        self.begin(pick, Vec::new(), context)
    }

    /// Whether writers wait for L0, or are slowed down by it.
    fn holds_writers(&self) -> bool {
        self.version().runs().len() >= self.config.l0_slowdown as usize
    }

    /// Whether files can go that are cleared as a whole.
    fn has_drop(&self) -> bool {
        let picker = Picker::new(&self.config, self.versions.current(), &self.jobs.busy);
        picker.pick_drop(self.floor).is_ok()
    }

    /// The next job that the shape of the tree asks for.
    fn next_unasked(&mut self, context: &JobContext) -> Option<JobInputs> {
        let asked = (context.slots_free, context.urgent, context.collects);
        let is_over = |idle: &Idle| idle.until_ms.is_some_and(|until_ms| until_ms <= self.now_ms);
        if self.jobs.idle.as_ref().is_some_and(|idle| idle.asked == asked && !is_over(idle)) {
            return None;
        }
        let room = self.room(JobKind::Compaction, context);
        let picker = Picker::new(&self.config, self.versions.current(), &self.jobs.busy)
            .within(room)
            .below_operands(self.operands_in_memory_ms())
            .urgent(context.urgent)
            .collecting(context.collects);
        let moment = Moment { floor: self.floor, now_ms: self.now_ms };
        match picker.pick_by_order(moment) {
            Ok(pick) => self.begin(pick, Vec::new(), context),
            Err(why) => {
                let until_ms = picker.more_expired_ms(self.now_ms);
                self.jobs.idle = Some(Idle { asked, until_ms, why });
                None
            }
        }
    }

    /// Whether a flush, or a compaction by the shape of the tree, is due, with slots enough and of
    /// whatever files: those of jobs under way, too, and those that are set aside. Requests are not
    /// looked at, nor what is compacted only while room is short. Where it does not `collect`, what
    /// is due for values with garbage alone is not.
    #[must_use]
    pub fn is_job_due(&self, collects: bool) -> bool {
        let none_busy = BTreeSet::new();
        let version = self.versions.current();
        let picker = Picker::new(&self.config, version, &none_busy).collecting(collects);
        let moment = Moment { floor: self.floor, now_ms: self.now_ms };
        !self.sealed.is_empty() || picker.pick_by_order(moment).is_ok()
    }

    fn begin(
        &mut self,
        pick: Pick,
        memtables: Vec<Arc<MemTable>>,
        context: &JobContext,
    ) -> Option<JobInputs> {
        let merging = match memtables.first() {
            Some(table) => self.merging_of_flush(table),
            None => self.merging_of(&pick),
        };
        let stay = memtables.first().map_or_else(Stay::default, |table| self.stay(table));
        let emptied = self.emptied(&pick, context);
        let mut inputs = JobInputs {
            recipe: Recipe {
                kind: pick.kind,
                term: context.term,
                memtables: memtables.iter().map(|table| table.id()).collect(),
                inputs: pick.inputs.iter().map(|(level, file)| (*level, file.id)).collect(),
                output_level: pick.output_level,
                output_first: self.next_number(context.term),
                output_count: 0,
                output_len: pick.output_len,
                cuts: pick.cuts,
                bottommost: pick.bottommost,
                now_ms: self.now_ms,
                floor: self.floor,
                sst: self.config.sst_of_job(pick.kind, pick.bottommost),
                merging,
                parted_from: 0,
                large_from: stay.large_from,
                emptied: emptied.iter().map(|file| file.id).collect(),
                kept_from: if stay.kept.is_empty() { 0 } else { self.config.large_values },
                kept: stay.kept,
            },
            places: stay.places,
            layout: self.layout,
            memtables,
            files: pick.inputs,
            emptied,
        };
        let room = self.room(pick.kind, context);
        if !inputs.emptied.is_empty() && !inputs.fits(room) {
            inputs.emptied.clear();
            inputs.recipe.emptied.clear();
        }
        if !inputs.fits(room) {
            return None;
        }
        if inputs.recipe.kind.makes_files() {
            let cuts = inputs.recipe.cuts.len() as u64 + self.part(&mut inputs, context.slots_free);
            let count = inputs.outgoing().files_max(inputs.recipe.output_len, cuts);
            let kinds = if inputs.recipe.writes_values() { 2 } else { 1 };
            let count = count.saturating_mul(kinds);
            let left = FileId::numbers_left(inputs.recipe.output_first, context.term);
            inputs.recipe.output_count =
                u32::try_from(count.min(left.saturating_sub(1))).unwrap_or(u32::MAX);
            if u64::from(inputs.recipe.output_count) < kinds {
                return None;
            }
        }
        assert!(inputs.recipe.numbers_are_of_its_term(), "a job's numbers are its primary's");
        self.jobs.reserved = inputs.recipe.output_end();
        for (_, id) in &inputs.recipe.inputs {
            assert!(self.jobs.busy.insert(*id), "{id} is read by one job");
        }
        assert!(inputs.recipe.cuts.is_sorted(), "outputs end at cuts in their order");
        Some(inputs)
    }

    /// Places in which the values of a MemTable are to stay.
    fn stay(&self, table: &MemTable) -> Stay {
        let sealed = self.sealed.iter().find(|sealed| sealed.table.id() == table.id());
        let kept = sealed.and_then(|it| self.kept_by(it)).cloned().unwrap_or_default();
        let least = self.config.memtable_len / LARGE_PART;
        let rest = (table.large_bytes() as u64).saturating_sub(kept.logged_bytes);
        let large_from = if rest >= least.max(1) { self.config.large_values } else { 0 };
        let places = sealed.filter(|_| !kept.files.is_empty()).map(|sealed| sealed.places.clone());
        Stay { kept: kept.files, large_from, places: places.unwrap_or_default() }
    }

    /// The values files that a job is to empty, if it is a compaction.
    fn emptied(&mut self, pick: &Pick, context: &JobContext) -> Vec<Arc<FileMeta>> {
        if pick.kind != JobKind::Compaction {
            return Vec::new();
        }
        let room = self.room(pick.kind, context);
        let picker = Picker::new(&self.config, self.versions.current(), &self.jobs.busy);
        picker
            .within(room)
            .urgent(context.urgent)
            .collecting(context.collects)
            .emptied(&pick.inputs)
    }

    /// Has a flush give tombstones files of their own, if that is worth it and there are slots
    /// enough. Returns how many files more it may then have.
    fn part(&mut self, inputs: &mut JobInputs, slots_free: u64) -> u64 {
        let keeps_deletes = inputs.recipe.kind == JobKind::Flush && !inputs.recipe.bottommost;
        let deletes = inputs.memtables.iter().map(|table| table.deletes()).sum();
        let parted_from = self.parted_from(deletes);
        let room = self.slots_in(JobKind::Flush, slots_free, false);
        let len = inputs.recipe.output_len;
        if !keeps_deletes || parted_from == 0 || !inputs.outgoing().fits(len, PARTS, room) {
            return 0;
        }
        inputs.recipe.parted_from = parted_from;
        PARTS
    }

    /// The inputs of a recipe as this replica holds them, to make its files here. They are the same
    /// everywhere until the recipe's edit is applied.
    ///
    /// # Errors
    /// Not found when a MemTable or file that it names is not here; unsupported for a load's.
    pub fn inputs_of(&self, recipe: &Recipe) -> Result<JobInputs> {
        recipe.validate()?;
        if recipe.kind == JobKind::Load {
            return Err(only_as_bytes());
        }
        let missing = |what: &dyn core::fmt::Display| {
            Error::not_found(format!("{}: the recipe's input {what} is not here", self.group))
        };
        let table = |id: &MemTableId| {
            let mut sealed = self.sealed.iter().map(|sealed| &sealed.table);
            sealed.find(|table| table.id() == *id).cloned().ok_or_else(|| missing(id))
        };
        let of_flush = recipe.memtables.last();
        let of_flush = of_flush.and_then(|id| self.sealed.iter().find(|it| it.table.id() == *id));
        let version = self.versions.current().clone();
        let file = |(level, id): &(u8, FileId)| {
            version.file(*level, *id).map(|f| (*level, f.clone())).ok_or_else(|| missing(id))
        };
        let values = |id: &FileId| version.values_file(*id).cloned().ok_or_else(|| missing(id));
        Ok(JobInputs {
            emptied: recipe.emptied.iter().map(values).collect::<Result<_>>()?,
            memtables: recipe.memtables.iter().map(table).collect::<Result<_>>()?,
            files: recipe.inputs.iter().map(file).collect::<Result<_>>()?,
            recipe: recipe.clone(),
            places: of_flush.map_or_else(Arc::default, |sealed| sealed.places.clone()),
            layout: self.layout,
        })
    }

    /// Slots that must stay free so that what is in memory can be flushed and then compacted,
    /// whatever a full pool is to give back.
    #[must_use]
    pub fn slots_needed(&self) -> u64 {
        let estimates = self.jobs.estimates;
        let picker = Picker::new(&self.config, self.version(), &self.jobs.busy);
        let flush = Outgoing::of_len(self.config.memtable_len);
        let flush = flush.slots(self.config.sst_len, 0, estimates.flush);
        let collection = picker.slots_for_collection(estimates.compaction);
        flush.saturating_add(picker.slots_needed(estimates.compaction)).saturating_add(collection)
    }

    /// Those among them that are kept so that values files with garbage can be emptied.
    fn slots_for_collection(&self) -> u64 {
        let picker = Picker::new(&self.config, self.version(), &self.jobs.busy);
        picker.slots_for_collection(self.jobs.estimates.compaction)
    }

    /// Memory of all MemTables that are not flushed, in bytes, and how many there are.
    #[must_use]
    pub fn unflushed(&self) -> (u64, u64) {
        (self.memtables_len(), self.sealed.len() as u64 + 1)
    }

    /// Slots to be set aside for the job's files where `slots_free` are there for it: as many as
    /// such jobs take usually, or more after [`Self::job_ran_out_of_slots`].
    #[must_use]
    pub fn job_slots(&mut self, inputs: &JobInputs, slots_free: u64) -> u64 {
        let room = self.slots_in(inputs.recipe.kind, slots_free, true);
        inputs.slots(room)
    }

    /// The slots that a job of this kind may take.
    pub(super) fn room(&mut self, kind: JobKind, context: &JobContext) -> Room {
        self.slots_in(kind, context.slots_free, context.urgent)
    }

    /// The same of so many, with those that are kept for collection where it is `urgent`.
    fn slots_in(&mut self, kind: JobKind, free: u64, urgent: bool) -> Room {
        let needed = self.jobs.needed.unwrap_or_else(|| self.slots_needed());
        self.jobs.needed = Some(needed);
        let (memory, tables) = self.unflushed();
        let flushes = Outgoing::of_len(memory).slots_usual(self.config.sst_len, tables);
        let kept = if kind == JobKind::Flush { 0 } else { needed.saturating_add(flushes) };
        let estimate = self.jobs.estimates.of(kind);
        let for_collection = if urgent { self.slots_for_collection() } else { 0 };
        Room { free, kept, for_collection, estimate }
    }

    /// A job of this kind needed more slots than the `given`, fewer than [`JobInputs::slots_max`]:
    /// until the edit of another is applied, each is given as many as are free, up to those that it
    /// can take. None is begun with less than twice the usual, nor with hardly more than was not
    /// enough, unless that is all that it can take.
    pub fn job_ran_out_of_slots(&mut self, kind: JobKind, given: u64) {
        self.jobs.estimates.ran_out(kind, given);
        self.jobs.needed = None;
    }

    /// Gives up a job: its inputs may be picked again. Its file numbers stay unused.
    pub fn job_failed(&mut self, recipe: &Recipe) {
        for (_, id) in &recipe.inputs {
            self.jobs.busy.remove(id);
        }
        for id in &recipe.memtables {
            self.jobs.flushing.remove(id);
        }
        self.jobs.idle = None;
    }

    /// File numbers below this one are taken: by an edit in the log that is not applied here yet,
    /// or by a file that no edit names.
    pub fn reserve_files(&mut self, next_file: u64) {
        self.jobs.reserved = self.jobs.reserved.max(next_file);
    }

    /// The number of the next file that is made in `term`: behind all that were given, and not
    /// before the term's own.
    pub(super) fn next_number(&self, term: Term) -> u64 {
        self.jobs.reserved.max(self.next_file).max(FileId::first_number(term))
    }

    /// Gives a number to a file of no job, in the primary's term.
    ///
    /// # Errors
    /// Limit exceeded when the term has none left.
    pub fn number_file(&mut self, term: Term) -> Result<FileId> {
        let number = self.next_number(term);
        if FileId::numbers_left(number, term) < 2 {
            return Err(Error::limit(format!("{term} has no number left for a file")));
        }
        assert!(FileId::sst(number).term() == term, "{number} is a number of {term}");
        self.reserve_files(number + 1);
        Ok(FileId::sst(number))
    }

    /// File numbers below this one are used up, as of the last edit.
    #[must_use]
    pub const fn next_file(&self) -> u64 {
        self.next_file
    }

    /// The edit that installs a job's result. `number` follows that of the last edit *appended to
    /// the log*, which need not be applied here yet.
    ///
    /// # Errors
    /// Invalid input when the flush of the MemTable is not under way; what [`Edit::validate`]
    /// reports.
    pub fn finish_job(&self, output: JobOutput, number: u64) -> Result<Edit> {
        let recipe = output.recipe;
        let flushed = match recipe.memtables.last() {
            None => None,
            Some(&id) => {
                let at = self.flush_position(&recipe).filter(|_| self.jobs.flushing.contains(&id));
                let sealed = at.map(|at| &self.sealed[at]).ok_or_else(|| {
                    Error::invalid(format!("{}: no flush of {id} is under way", self.group))
                })?;
                Some(Flushed {
                    memtable: id,
                    frontier: sealed.frontier,
                    sequence: sealed.last_sequence,
                })
            }
        };
        let edit = Edit {
            number,
            kind: recipe.kind,
            term: recipe.term,
            removed: recipe.inputs.clone(),
            added: output.added,
            values: output.values,
            flushed,
            next_file: recipe.output_end(),
            floor: (recipe.floor > SequenceNumber::ZERO).then_some(recipe.floor),
            recipe: Some(recipe),
        };
        edit.validate()?;
        Ok(edit)
    }

    /// Applies an edit: installs its version, drops flushed MemTables, frees what its job had
    /// taken. On an error nothing changes.
    ///
    /// # Errors
    /// Corruption when its number does not follow the last, or it does not fit the tree.
    pub fn apply_edit(&mut self, edit: &Edit) -> Result<()> {
        if self.last_edit.checked_add(1) != Some(edit.number) {
            return Err(Error::corruption(format!(
                "{}: edit {} follows edit {}: a gap or a repetition",
                self.group, edit.number, self.last_edit
            )));
        }
        let fast_forward = match &edit.flushed {
            Some(flushed) => self.check_flushed(edit.number, flushed)?,
            None => false,
        };
        self.versions.apply(edit)?;
        if let Some(flushed) = edit.flushed {
            self.kept.retain(|table| table.bytes() > 0);
            let gone = self.sealed.iter().filter(|sealed| sealed.table.id() <= flushed.memtable);
            self.kept.extend(gone.map(|sealed| sealed.table.kept()));
            self.sealed.retain(|sealed| sealed.table.id() > flushed.memtable);
            assert!(self.flushed.memtable < flushed.memtable, "a MemTable is flushed once");
            assert!(flushed.frontier.covers(&self.flushed.frontier), "flushes follow the log");
            self.flushed = flushed;
            self.jobs.flushing.retain(|memtable| *memtable > flushed.memtable);
            if fast_forward {
                self.active = Arc::new(MemTable::new(flushed.memtable.next()));
                self.active.count_large_from(self.config.large_values);
                self.places = Places::beginning_at(flushed.frontier.only().get());
                self.last_sequence = flushed.sequence;
                self.due.came_in_files(flushed.sequence);
            }
        }
        for (_, id) in &edit.removed {
            self.jobs.busy.remove(id);
        }
        self.jobs.idle = None;
        self.jobs.estimates.ended_well(edit.kind);
        self.jobs.needed = None;
        assert!(edit.number > self.last_edit, "edits are applied in their order");
        self.last_edit = edit.number;
        // Jobs end in another order than they began in: an edit may reserve fewer than one before
        // it.
        self.next_file = self.next_file.max(edit.next_file);
        self.floor_in_edits = self.floor_in_edits.max(edit.floor.unwrap_or_default());
        self.floor = self.floor.max(self.floor_in_edits);
        // A recipe's time is that of a record before the edit's, which a replica that opens may not
        // have read.
        self.pass_time(edit.recipe.as_ref().map_or(0, |recipe| recipe.now_ms));
        self.note_loaded(edit);
        self.due.look_at(self.versions.current(), self.now_ms);
        self.reshape();
        if !matches!(edit.kind, JobKind::TrivialMove | JobKind::Load) {
            self.readers.gave_up();
        }
        self.end_step();
        Ok(())
    }

    /// Checks what a flush claims to have flushed. Returns whether this tree has yet to replay it:
    /// it is being opened and nothing was written since.
    fn check_flushed(&self, number: u64, flushed: &Flushed) -> Result<bool> {
        let (known, fresh) = match self.sealed.front() {
            Some(oldest) => {
                let claimed = (flushed.memtable, flushed.frontier, flushed.sequence);
                ((oldest.table.id(), oldest.frontier, oldest.last_sequence) == claimed, false)
            }
            None => {
                let ahead = self.active.id() <= flushed.memtable
                    && flushed.sequence >= self.last_sequence
                    && flushed.frontier.covers(&self.flushed.frontier)
                    && flushed.memtable.get() < u64::MAX;
                (self.opening && ahead, true)
            }
        };
        if known {
            return Ok(fresh);
        }
        Err(Error::corruption(format!(
            "edit {number}: flushed {} up to {} and {}, but the oldest here was not sealed so",
            flushed.memtable, flushed.frontier, flushed.sequence
        )))
    }
}
