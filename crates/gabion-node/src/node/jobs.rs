//! Flushes and compactions: from the tree's choice to the edit in the log.
//!
//! ```text
//!   Tree.next_job ─► slots set aside ─► work order ─► files built (each shipped at once)
//!      ─► all flushed here ─► places durable here ─► every secondary has them ─► edit appended
//! ```

use super::back_off::BackOff;
use super::{After, Mutant, Node, Order, Output, WriteGate};
use crate::CompactionMode;
use crate::work::{BuiltFile, JobDone, JobFailed, JobOrder, Work};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{Error, ErrorKind, FileId, SlotIndex};
use gabion_engine::{
    Edit, JobContext, JobInputs, JobKind, JobOutput, Pressure, Recipe, WriteState,
};
use gabion_log::{RecordFlags, RecordKind};
use gabion_pool::{FilePlacement, Placed};

/// Jobs in a row whose slots the device did not write to, of which each takes others then. One more, and it is no matter of
/// slots: the replica ends.
const REFUSED_JOBS_MAX: u32 = 8;

/// Jobs under way, by number.
#[derive(Default)]
pub(super) struct Jobs {
    running: BTreeMap<u64, Job>,
    next: u64,
    /// Slots there are, and the device has no room for what is written into them: a pool file whose file
    /// system is thin, or copies on write.
    back_off: BackOff,
    /// Compactions whose inputs are not what was written, until these are.
    set_aside: Vec<SetAside>,
    /// Jobs that ended since one ended well because the device did not write into their slots.
    refused: u32,
    /// Why the last compaction was given up that met damage in no file by name. Its inputs stay in the tree
    /// and are not compacted again by this process.
    damage: Option<Error>,
    /// Bytes of memory of all files that bounded jobs have come with.
    taken: u64,
    /// Until when jobs may build, as was said last.
    told: Option<u64>,
}

struct SetAside {
    recipe: Recipe,
    /// Inputs that are damaged.
    files: BTreeSet<FileId>,
}

struct Job {
    recipe: Recipe,
    /// Where its inputs lie that it reads.
    files: BTreeMap<FileId, Arc<FilePlacement>>,
    /// Slots set aside and not yet part of a built file.
    slots: Vec<Placed>,
    /// How many it was given, and whether it can take no more.
    given: u32,
    has_all_slots: bool,
    built: Vec<Arc<FilePlacement>>,
    /// Slots of these.
    built_slots: usize,
    output: Option<JobOutput>,
    /// Whether the places of its files are durable here.
    placed: bool,
    /// Number of the edit that names its files, once it is in the log.
    edit: Option<u64>,
    begun_ms: u64,
    /// It waits before a further file while too much is not shipped.
    is_bounded: bool,
}

impl Job {
    /// Bytes of its inputs in L0.
    fn level0_len(&self) -> u64 {
        let inputs = self.recipe.inputs.iter().filter(|(level, _)| *level == 0);
        inputs.filter_map(|(_, file)| self.files.get(file)).map(|placement| placement.len).sum()
    }
}

impl Jobs {
    /// Whether a job under way built the file.
    pub(super) fn build(&self, file: FileId) -> bool {
        self.running.values().any(|job| job.built.iter().any(|built| built.file == file))
    }

    /// While the device takes no files, one job after each pause finds out whether it does again; bounded ones that are
    /// held back find out nothing.
    fn may_write(&self, now_ms: u64, is_held: bool) -> bool {
        let tries = |job: &Job| job.output.is_none() && !(job.is_bounded && is_held);
        let is_tried = || self.running.values().any(tries);
        !self.back_off.is_pausing(now_ms) && (self.out_of_space().is_none() || !is_tried())
    }

    /// Why the device takes no files, if it does not.
    pub(super) fn out_of_space(&self) -> Option<String> {
        self.back_off.reason()
    }
}

impl Node {
    /// Starts what the tree wants done.
    pub(super) fn schedule_jobs(&mut self) {
        while self.duties().compact && self.may_start_jobs() {
            let compacting =
                self.jobs.running.values().filter(|job| job.recipe.kind != JobKind::Flush).count();
            let allow_compaction =
                compacting < self.options.compactions_max && !self.loads.hold_compactions();
            let is_held = self.too_much_is_unshipped();
            let allow_compaction = allow_compaction && !is_held;
            let term = self.state.term();
            let (slots_free, urgent) = (self.slots_for_job(), self.room.is_short());
            let context = JobContext { term, snapshots: &[], slots_free, urgent };
            let flush = match self.too_many_flushes_are_unshipped() {
                true => None,
                false => self.tree.next_flush(&context),
            };
            let next = match flush {
                None if allow_compaction => self.tree.next_compaction(&context),
                flush => flush,
            };
            let Some(inputs) = next else {
                if self.jobs.running.is_empty() && !is_held {
                    // What had no room is not wanted any more.
                    self.jobs.back_off.ended_well();
                }
                return;
            };
            if !self.start_job(inputs) {
                return;
            }
        }
    }

    /// Files can only be shipped while every member is there. And an edit that was replayed from the log
    /// and waits has no job here that would keep what it flushes or removes from being taken again.
    fn may_start_jobs(&self) -> bool {
        let own = self.jobs.running.values().filter(|job| job.edit.is_some()).count();
        let here = !self.view.has_one_tree() || self.refused.is_none();
        let may_write = self.jobs.may_write(self.now_ms, self.too_much_is_unshipped());
        here && may_write && self.apply.waiting_count() == own
    }

    /// Files wait in memory for a secondary that is slow or short of slots, and what a compaction or a load builds next
    /// would wait behind them.
    pub(super) fn too_much_is_unshipped(&self) -> bool {
        let is_over = self.unshipped_bytes() > self.options.unshipped_bytes_max;
        is_over && !self.has(Mutant::JobsWithoutBound)
    }

    /// The file of a flush waits behind those of flushes only, so that writers never wait for what compactions have built.
    pub(super) fn too_many_flushes_are_unshipped(&self) -> bool {
        let is_over = self.unshipped_bytes_of_flushes() > self.options.unshipped_bytes_max;
        is_over && !self.has(Mutant::JobsWithoutBound)
    }

    /// Says how much jobs that have begun may build: so much that what is not shipped then, what they have built and
    /// this node has not heard of included, is at most the bound when one begins a file. It changes with all that the
    /// bytes in memory follow from: a secondary has a file, a job failed, a term began. So no job waits for an event that
    /// does not come.
    pub(super) fn let_jobs_build(&mut self) {
        let builds = |job: &Job| job.is_bounded && job.output.is_none();
        if !self.jobs.running.values().any(builds) {
            return;
        }
        let most = self.jobs.taken.saturating_add(self.options.unshipped_bytes_max);
        let mut until = most.saturating_sub(self.unshipped_bytes());
        if self.has(Mutant::JobsWithoutBound) || self.has(Mutant::JobsNotHeldBack) {
            until = u64::MAX;
        }
        if self.jobs.told.replace(until) != Some(until) {
            self.outputs.push_back(Output::JobsMayBuild(until));
        }
    }

    /// Sets slots aside and orders the job. All or nothing: a job never waits for slots half-way.
    fn start_job(&mut self, mut inputs: JobInputs) -> bool {
        let wanted = self.tree.job_slots(&inputs, self.slots_for_job());
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let Ok(slots) = self.pool.allocate(wanted) else {
            // As many are free, but their generations wait for a commit, which is on its way.
            self.tree.job_failed(&inputs.recipe);
            return false;
        };
        let is_flush = inputs.recipe.kind == JobKind::Flush;
        let unshipped =
            if is_flush { self.unshipped_bytes_of_flushes() } else { self.unshipped_bytes() };
        let most = &mut self.counters.unshipped_bytes_at_job_max;
        *most = unshipped.max(*most);
        // A flush has the length of its MemTable at most, and only so many of these may wait.
        let is_bounded = !is_flush && self.ships();
        let number = self.jobs.next;
        self.jobs.next += 1;
        let files: BTreeMap<_, _> = inputs
            .recipe
            .inputs
            .iter()
            .filter_map(|(_, file)| self.files.get(*file).map(|placement| (*file, placement)))
            .collect();
        let job = Job {
            recipe: inputs.recipe.clone(),
            files: files.clone(),
            slots: slots.clone(),
            given: wanted,
            has_all_slots: u64::from(wanted) >= inputs.slots_max(),
            built: Vec::new(),
            built_slots: 0,
            output: None,
            placed: false,
            edit: None,
            begun_ms: self.now_ms,
            is_bounded,
        };
        self.jobs.running.insert(number, job);
        inputs.recipe.bottommost |= self.has(Mutant::TombstonesDropped);
        let group = self.config.group;
        let order = JobOrder { inputs, group, slots, files, is_bounded };
        self.order(Order::Job(number), Work::Job(Box::new(order)));
        true
    }

    /// Bytes of memory of files that a running job has built and that wait to be shipped, if it is held back by them, for
    /// whoever checks that it was: looks at each.
    #[must_use]
    pub fn unshipped_bytes_of(&self, id: crate::work::WorkId) -> u64 {
        let Some(Order::Job(number)) = self.orders.get(&id) else { return 0 };
        let bounded = self.jobs.running.get(number).filter(|job| job.is_bounded);
        bounded.map_or(0, |job| self.ship.kept_of(&job.built))
    }

    /// A running job built a file and writes it into its slots.
    pub fn handle_job_file(&mut self, id: crate::work::WorkId, file: BuiltFile) {
        let Some(Order::Job(number)) = self.orders.get(&id) else { return };
        let number = *number;
        let Some(job) = self.jobs.running.get_mut(&number) else { return };
        job.slots.retain(|placed| !file.placement.slots.contains(placed));
        let is_flush = job.recipe.kind == JobKind::Flush;
        if job.is_bounded {
            self.jobs.taken += file.memory;
        }
        job.built_slots += file.placement.slots.len();
        job.built.push(file.placement.clone());
        self.counters.job_written_bytes += file.placement.len;
        if is_flush {
            self.counters.flushed_bytes += file.placement.len;
        }
        if self.config.compaction == CompactionMode::Primary {
            self.ship_built(&file, is_flush);
        }
    }

    pub(super) fn job_done(&mut self, number: u64, result: Result<JobDone, JobFailed>) {
        let Some(mut job) = self.jobs.running.remove(&number) else { return };
        let done = match result {
            result if self.is_stale(&job) => {
                let refused = result.err().map_or_else(Vec::new, |failed| failed.refused);
                let fenced = JobFailed::from(Error::fenced("its term is over"));
                return self.job_failed(job, JobFailed { refused, ..fenced });
            }
            Ok(done) => done,
            Err(failed) => return self.job_failed(job, failed),
        };
        if !job.built.is_empty() {
            self.jobs.back_off.ended_well();
            self.jobs.refused = 0;
        }
        if let Err(error) = self.pool.release(&core::mem::take(&mut job.slots)) {
            return self.fatal(error);
        }
        self.counters.job_read_bytes += done.read_bytes;
        match job.recipe.kind {
            JobKind::Flush => self.counters.flushes += 1,
            JobKind::Compaction => self.counters.compactions += 1,
            _ => self.counters.trivial_moves += 1,
        }
        for placement in &job.built {
            if let Err(error) = self.pool.add_file((**placement).clone()) {
                return self.fatal(error);
            }
        }
        job.output = Some(done.output);
        if job.built.is_empty() {
            job.placed = true;
        } else {
            self.commits.staged.push(After::BuiltPlaced(number));
        }
        self.jobs.running.insert(number, job);
    }

    /// A job that failed leaves nothing behind; its inputs are free for the next try, which comes after a
    /// pause: else a device without room would be written to as fast as it refuses.
    fn job_failed(&mut self, job: Job, failed: JobFailed) {
        let JobFailed { error, damaged, refused } = failed;
        let mut slots = job.slots;
        slots.extend(job.built.iter().flat_map(|placement| placement.slots.iter().copied()));
        slots.retain(|placed| !refused.contains(placed));
        let given_back = self.pool.release(&slots);
        if let Err(error) = given_back.and_then(|()| self.pool.quarantine(&refused)) {
            return self.fatal(error);
        }
        if !refused.is_empty() {
            self.jobs.refused += 1;
            let slots: Vec<SlotIndex> = refused.iter().map(|placed| placed.slot).collect();
            self.note_refused(&slots, &error);
        }
        let files: Vec<FileId> = job.built.iter().map(|placement| placement.file).collect();
        self.discard_built(&files);
        if !files.is_empty() {
            // Whoever keeps blocks of what was built for readers to come need not.
            self.outputs.push_back(Output::FilesGone(files));
        }
        let is_damage = error.kind() == ErrorKind::Corruption || !damaged.is_empty();
        if is_damage && job.recipe.kind == JobKind::Compaction {
            return self.set_aside(job.recipe, &job.files, damaged, error);
        }
        self.tree.job_failed(&job.recipe);
        match error.kind() {
            ErrorKind::NoSpace => {
                self.counters.jobs_without_space += 1;
                self.jobs.back_off.failed(error, self.now_ms);
            }
            ErrorKind::LimitExceeded if !job.has_all_slots => {
                self.tree.job_ran_out_of_slots(job.recipe.kind, job.given.into());
                self.room.forget_jobs();
            }
            ErrorKind::Fenced => {}
            // Other slots may be better; a device that takes none is told by as many failures in a row.
            ErrorKind::Io if !refused.is_empty() && self.jobs.refused <= REFUSED_JOBS_MAX => {}
            // Bytes that are not what was written must not be compacted into new ones.
            _ => self.fatal(error),
        }
    }

    /// The device did not write into slots, which are in quarantine until the next start.
    pub(super) fn note_refused(&mut self, slots: &[SlotIndex], error: &Error) {
        self.counters.refused_slots += slots.len() as u64;
        let names: Vec<String> = slots.iter().map(SlotIndex::to_string).collect();
        self.say(format!(
            "{}: not used until the next start, as the device did not take what was written there: {error}",
            names.join(", ")
        ));
    }

    /// A file of no edit cannot be shipped: its bytes rotted in memory, and so did what was written here, perhaps from there.
    /// What it was made of is whole, so its job is made anew, with other files; a load fails, as only its caller can make
    /// it anew. Returns whether one built it whose edit is not in the log.
    pub(super) fn give_up_built(&mut self, file: FileId, error: &Error) -> bool {
        if self.give_up_load_of(file, error) {
            return true;
        }
        let is_of = |job: &Job| {
            let built = || job.built.iter().any(|placement| placement.file == file);
            job.placed && job.edit.is_none() && built()
        };
        let found = self.jobs.running.iter().find(|(_, job)| is_of(job));
        let Some(number) = found.map(|(number, _)| *number) else { return false };
        let Some(job) = self.jobs.running.remove(&number) else { return false };
        self.say(format!("{file} is whole neither in memory nor here, and is made anew: {error}"));
        self.drop_built(&job);
        true
    }

    /// Keeps a compaction from being tried again, as it would fail again, until what it read is repaired.
    /// Reads of what is whole go on, and so do other jobs.
    fn set_aside(
        &mut self,
        recipe: Recipe,
        read: &BTreeMap<FileId, Arc<FilePlacement>>,
        damaged: BTreeMap<FileId, Error>,
        error: Error,
    ) {
        self.counters.jobs_set_aside += 1;
        if damaged.is_empty() {
            self.jobs.damage = Some(error);
            return;
        }
        // What was repaired while the job ran is whole.
        let is_there = |file: &FileId| self.files.get(*file).as_ref() == read.get(file);
        let damaged = damaged.into_iter().filter(|(file, _)| is_there(file));
        let damaged: BTreeMap<FileId, Error> = damaged.collect();
        let files = damaged.keys().copied().collect();
        for (file, error) in damaged {
            self.note_damage(file, error, false);
        }
        self.jobs.set_aside.push(SetAside { recipe, files });
        self.free_inputs();
    }

    /// A file is whole again, or may be: compactions that were set aside for it alone may begin anew.
    pub(super) fn resume_jobs(&mut self, file: FileId) {
        for aside in &mut self.jobs.set_aside {
            aside.files.remove(&file);
        }
        self.free_inputs();
    }

    fn free_inputs(&mut self) {
        let (free, kept) = core::mem::take(&mut self.jobs.set_aside)
            .into_iter()
            .partition::<Vec<_>, _>(|aside| aside.files.is_empty());
        self.jobs.set_aside = kept;
        for aside in free {
            self.tree.job_failed(&aside.recipe);
        }
    }

    /// Another term begins, or another member compacts from now on. Jobs whose edits are in the log
    /// come to their end; of the others nothing is left, at once or when what is under way has ended.
    pub(super) fn give_up_jobs(&mut self) {
        let placed = |job: &Job| job.placed && job.edit.is_none();
        let found = self.jobs.running.iter().filter(|(_, job)| placed(job));
        let numbers: Vec<u64> = found.map(|(number, _)| *number).collect();
        for job in
            numbers.iter().filter_map(|number| self.jobs.running.remove(number)).collect::<Vec<_>>()
        {
            self.drop_built(&job);
        }
        for aside in core::mem::take(&mut self.jobs.set_aside) {
            self.tree.job_failed(&aside.recipe);
        }
        self.jobs.back_off = BackOff::default();
    }

    /// Forgets what a job has built and placed, so that its inputs are free for another.
    fn drop_built(&mut self, job: &Job) {
        let files: Vec<FileId> = job.built.iter().map(|placement| placement.file).collect();
        self.discard_built(&files);
        files.iter().for_each(|file| self.drop_orphan(*file));
        self.outputs.push_back(Output::FilesGone(files));
        self.tree.job_failed(&job.recipe);
    }

    pub(super) fn built_placed(&mut self, number: u64) {
        let Some(job) = self.jobs.running.get_mut(&number) else { return };
        job.placed = true;
        let files: Vec<FileId> = job.built.iter().map(|placement| placement.file).collect();
        for file in files {
            self.file_placed(file, false);
        }
        if self.jobs.running.get(&number).is_some_and(|job| self.is_stale(job)) {
            self.give_up_jobs();
        }
    }

    /// Whether a job began in another term than this, or before another member came to compact. Files
    /// that no edit names are forgotten with their term, wherever they arrived.
    fn is_stale(&self, job: &Job) -> bool {
        let is_old = self.view.has_one_tree() && job.recipe.term != self.state.term();
        is_old || !self.duties().compact
    }

    /// Appends the edit of each job whose files are safe everywhere, in the order of the jobs. That of a flush waits for
    /// those of the flushes before it.
    pub(super) fn append_edits(&mut self) {
        let is_safe = |job: &Job| {
            // Who holds its files is asked last, as it may have built thousands.
            let held = || job.built.iter().all(|file| self.held_everywhere(file.file));
            job.output.is_some() && job.placed && (self.has(Mutant::EditBeforeFiles) || held())
        };
        let (mut ready, mut flushes, mut flushes_logged) = (Vec::new(), Vec::new(), 0);
        for (number, job) in &self.jobs.running {
            match (self.tree.flush_position(&job.recipe), job.edit) {
                (Some(_), Some(_)) => flushes_logged += 1,
                (None, Some(_)) => {}
                (Some(at), None) => flushes.push((at, *number, is_safe(job))),
                (None, None) if is_safe(job) => ready.push(*number),
                (None, None) => {}
            }
        }
        flushes.sort_unstable();
        let next = flushes.into_iter().zip(flushes_logged..);
        let next = next.take_while(|((at, _, is_safe), place)| at == place && *is_safe);
        ready.extend(next.map(|((_, number, _), _)| number));
        for number in ready {
            if !self.append_edit(number) {
                return;
            }
        }
    }

    fn append_edit(&mut self, number: u64) -> bool {
        let Some(job) = self.jobs.running.get(&number) else { return true };
        let Some(output) = job.output.clone() else { return true };
        let mut next = self.apply.last_appended(self.tree.last_edit()) + 1;
        if self.has(Mutant::GapInEdits) {
            next += 1;
        }
        let made = self.tree.finish_job(output, next);
        let (edit, encoded) = match made.and_then(|edit| edit.encode().map(|bytes| (edit, bytes))) {
            Ok(made) => made,
            Err(error) => {
                self.fatal(error);
                return false;
            }
        };
        let end = if self.duties().log_edits {
            if self.not_writing().is_some() {
                return false; // a member is out: the edit waits for it
            }
            let flags = RecordFlags::BLOCK_END;
            let sequence = self.tree.last_sequence();
            match self.append_record(RecordKind::Edit, &encoded, sequence, 0, flags) {
                Ok(end) => end,
                Err(_) => return false, // the ring is full: tried again when it drained
            }
        } else {
            self.own_edit_end(&edit)
        };
        if let Err(error) = self.queue_edit(edit, encoded, end) {
            self.fatal(error);
            return false;
        }
        if self.duties().log_edits {
            self.pass_marks(self.log.end(), self.log.last().crc);
        }
        if let Some(job) = self.jobs.running.get_mut(&number) {
            job.edit = Some(next);
        }
        true
    }

    /// An edit is applied here: its job is over.
    pub(super) fn jobs_edit_applied(&mut self, edit: &Edit) {
        let is_over = |job: &Job| job.edit == Some(edit.number);
        for job in self.jobs.running.values().filter(|job| is_over(job)) {
            if job.recipe.kind == JobKind::Compaction {
                self.pace.compacted(job.level0_len(), self.now_ms.saturating_sub(job.begun_ms));
            }
        }
        self.jobs.running.retain(|_, job| !is_over(job));
        self.loads_edit_applied(edit);
        self.forget_built(edit);
    }

    /// What reads and compactions met in a file that is not what was written and not repaired, if there is
    /// one (docs/faults.md E5, E9); [`Self::damaged_files`] has them all.
    #[must_use]
    pub fn damage(&self) -> Option<&Error> {
        self.first_damage().or(self.jobs.damage.as_ref())
    }

    /// What keeps from ending the compactions that writes wait for, if nothing will change that: L0 is full, what they
    /// read is damaged, nothing else is under way, and a replica alone has nobody to have it from. None for a file whose
    /// bytes are those of its edit: it is read again.
    #[must_use]
    pub fn writes_wait_in_vain(&self) -> Option<&Error> {
        let is_full = matches!(self.tree.write_state(), WriteState::Stop(Pressure::Level0Runs(_)));
        let rests = self.orders.is_empty() && self.apply.waiting_count() == 0;
        if !is_full || !rests || !self.view.copies_at().is_empty() {
            return None;
        }
        let read = self.jobs.set_aside.iter().flat_map(|aside| &aside.files);
        let lost = read.filter_map(|file| self.repairs.lost(*file)).next();
        lost.or(self.jobs.damage.as_ref())
    }

    /// Slots that jobs have taken and whose edits are not applied.
    pub(super) fn job_slots(&self) -> u64 {
        let of_job = |job: &Job| job.built_slots + job.slots.len();
        self.jobs.running.values().map(of_job).sum::<usize>() as u64 + self.loads.slots()
    }

    /// Compactions, moves and drops under way whose edits are not in the log.
    pub(super) fn compactions_open(&self) -> usize {
        let is_open = |job: &&Job| job.recipe.kind != JobKind::Flush && job.edit.is_none();
        self.jobs.running.values().filter(is_open).count()
    }

    /// Whether jobs wait for room that nothing under way gives them: for a pause to end, as the device had no room for the
    /// files of one, or for slots. Who is behind them waits for as long.
    #[must_use]
    pub fn jobs_pause(&self) -> bool {
        self.jobs.out_of_space().is_some() || self.waits_in_vain_for_room()
    }

    /// Whether no flush and no compaction is under way or due; to be asked after [`Self::advance`].
    ///
    /// # Errors
    /// What keeps one that is due from being begun, when nothing is under way: no space while jobs pause or where too few
    /// slots are free; corruption where it needs a file that is damaged.
    pub fn is_quiet(&self) -> Result<bool, Error> {
        let is_busy = !self.orders.is_empty() || self.jobs_running() > 0;
        if is_busy || self.apply.waiting_count() > 0 {
            return Ok(false);
        }
        if let (true, WriteGate::Full { reason, .. }) = (self.jobs_pause(), self.write_gate()) {
            return Err(Error::no_space(reason));
        }
        if !self.tree.is_job_due() {
            return Ok(true);
        }
        if self.loads.hold_compactions() || self.not_writing().is_some() {
            return Ok(false);
        }
        // A flush needs no file.
        let is_flush = self.tree.sealed_count() > 0;
        Err(if is_flush { self.too_few_slots() } else { self.stuck() })
    }

    /// Jobs under way, for status.
    #[must_use]
    pub fn jobs_running(&self) -> usize {
        self.jobs.running.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeOptions;
    use crate::node::testing::{HEAD, built, commit, one_of_two, ordered};
    use crate::work::Done;
    use gabion_base::{Frontier, LogPosition, SequenceNumber};
    use gabion_engine::{EntryKind, JobStats};

    /// A head with a MemTable to be flushed.
    fn with_a_sealed_memtable() -> Node {
        let mut node = one_of_two(HEAD, NodeOptions::default());
        node.tree.apply_operation(SequenceNumber(1), EntryKind::Put, b"\x01k", b"v").unwrap();
        node.tree.seal(node.tree.active_id(), Frontier::of(LogPosition(8))).unwrap();
        node
    }

    fn next_flush(node: &mut Node) -> Option<JobInputs> {
        let term = node.chain.term();
        node.tree.next_flush(&JobContext { term, snapshots: &[], slots_free: 8, urgent: false })
    }

    /// docs/faults.md: E17
    #[test]
    fn a_job_whose_file_is_whole_nowhere_is_made_anew_with_other_files() {
        let mut node = with_a_sealed_memtable();
        let before = node.pool.counts();
        let inputs = next_flush(&mut node).unwrap();
        let recipe = inputs.recipe.clone();
        assert!(node.start_job(inputs));
        let Some((id, Work::Job(order))) = ordered(&mut node) else { panic!("no job is ordered") };
        let file = FileId::sst(recipe.output_first);
        let built = built(file, recipe.term, order.slots[..1].to_vec(), 4_096);
        let (meta, placement) = ((*built.meta).clone(), built.placement.clone());
        node.handle_job_file(id, built);
        let stats = JobStats::default();
        let output = JobOutput { recipe: recipe.clone(), added: alloc::vec![(0, meta)], stats };
        let done = JobDone { output, unused: Vec::new(), read_bytes: 0 };
        node.handle_done(id, Done::Job(Ok(done)));
        let error = || Error::corruption("a bit flipped");
        assert!(!node.give_up_built(file, &error()), "its place is not durable");
        commit(&mut node);
        assert!(node.files.get(file).is_some());
        assert!(next_flush(&mut node).is_none(), "its flush is under way");
        node.reread_done(&placement, Err(error()));
        assert_eq!((node.jobs_running(), node.unshipped_bytes()), (0, 0));
        assert!(node.files.get(file).is_none());
        commit(&mut node);
        assert_eq!(node.pool.counts(), before, "its slots are free");
        let again = next_flush(&mut node).expect("its MemTable is to be flushed").recipe;
        assert_eq!(again.memtables, recipe.memtables);
        assert!(again.output_first >= recipe.output_end(), "a number is used again");
    }

    #[test]
    fn a_job_that_is_held_back_keeps_no_other_from_finding_out_whether_there_is_room() {
        let mut node = with_a_sealed_memtable();
        let inputs = next_flush(&mut node).unwrap();
        assert!(node.start_job(inputs));
        node.jobs.back_off.failed(Error::no_space("full"), 0);
        for (is_bounded, is_held, may_write) in
            [(false, false, false), (false, true, false), (true, false, false), (true, true, true)]
        {
            node.jobs.running.values_mut().for_each(|job| job.is_bounded = is_bounded);
            assert_eq!(node.jobs.may_write(100, is_held), may_write, "{is_bounded} {is_held}");
        }
        assert!(!node.jobs.may_write(99, true), "the pause has not passed");
    }
}
