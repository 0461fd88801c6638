//! Flushes and compactions: from the tree's choice to the edit in the log.
//!
//! ```text
//!   Tree.next_job ─► slots set aside ─► work order ─► files built (each shipped at once)
//!      ─► all flushed here ─► places durable here ─► every secondary has them ─► edit appended
//! ```

use super::Counters;
use super::Mutant;
use super::Output;
use super::back_off::BackOff;
use super::collection::Collection;
use super::effects::{Effects, Signal};
use super::facts::{Facts, Unshipped};
use super::orders::{After, Order};
use crate::CompactionMode;
use crate::work::{BuiltFile, JobDone, JobFailed, JobOrder, Work};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{Error, ErrorKind, Failed, FileId, SlotIndex};
use gabion_engine::{JobContext, JobInputs, JobKind, JobOutput, Recipe, Tree};
use gabion_pool::{FilePlacement, Placed, Pool};

/// Jobs in a row whose slots the device did not write to, of which each takes others then. One
/// more, and it is no matter of slots: the replica ends.
const REFUSED_JOBS_MAX: u32 = 8;

/// Jobs under way, by number.
#[derive(Default)]
pub(super) struct Jobs {
    running: BTreeMap<u64, Job>,
    next: u64,
    /// Slots there are, and the device has no room for what is written into them: a pool file whose
    /// file system is thin, or copies on write.
    back_off: BackOff,
    /// Compactions whose inputs are not what was written, until these are.
    set_aside: Vec<SetAside>,
    /// Jobs that ended since one ended well because the device did not write into their slots.
    refused: u32,
    /// Why the last compaction was given up that met damage in no file by name. Its inputs stay in
    /// the tree and are not compacted again by this process.
    damage: Option<Error>,
    /// Bytes of memory of all files that bounded jobs have come with.
    taken: u64,
    /// Until when jobs may build, as was said last.
    told: Option<u64>,
    collection: Collection,
    /// Its part of the replica's counters.
    counted: Counters,
}

/// The state of the other machines, as far as jobs begin by it.
pub(super) struct JobsGiven {
    /// Files can be shipped, if there is whom to ship them to.
    pub(super) may_begin: bool,
    /// Edits that are in the log and not applied here.
    pub(super) edits_waiting: usize,
    /// The place of a load in the tree is being decided.
    pub(super) holds_compactions: bool,
    /// Room is short.
    pub(super) is_short: bool,
    pub(super) slots: SlotsForJobs,
    pub(super) unshipped: Unshipped,
    /// Files are shipped from here.
    pub(super) ships: bool,
}

/// Slots that jobs may take.
pub(super) struct SlotsForJobs {
    /// Those that are kept for the log here.
    pub(super) for_log: u64,
    /// The least that another member has, if files are to fit there.
    pub(super) elsewhere: Option<u64>,
    /// Those that loads have taken and no edit names.
    pub(super) of_loads: u64,
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
    /// Bytes that it takes out of L0, with their values.
    level0_len: u64,
    /// It waits before a further file while too much is not shipped.
    is_bounded: bool,
}

impl Job {
    fn files_built(&self) -> Vec<FileId> {
        self.built.iter().map(|placement| placement.file).collect()
    }
}

impl Jobs {
    // ---- questions

    /// Whether a job under way built the file.
    pub(super) fn build(&self, file: FileId) -> bool {
        self.running.values().any(|job| job.built.iter().any(|built| built.file == file))
    }

    /// While the device takes no files, one job after each pause finds out whether it does again;
    /// bounded ones that are held back find out nothing.
    fn may_write(&self, now_ms: u64, is_held: bool) -> bool {
        let tries = |job: &Job| job.output.is_none() && !(job.is_bounded && is_held);
        let is_tried = || self.running.values().any(tries);
        !self.back_off.is_pausing(now_ms) && (self.out_of_space().is_none() || !is_tried())
    }

    /// Whether it is not too early to begin a job.
    pub(super) fn may_try(&self, now_ms: u64) -> bool {
        !self.back_off.is_pausing(now_ms)
    }

    /// Why the device takes no files, if it does not.
    pub(super) fn out_of_space(&self) -> Option<String> {
        self.back_off.reason()
    }

    /// Damage that a compaction met in no file by name.
    pub(super) const fn unnamed_damage(&self) -> Option<&Error> {
        self.damage.as_ref()
    }

    /// Damaged files for which compactions are set aside.
    pub(super) fn awaited_repairs(&self) -> impl Iterator<Item = FileId> + '_ {
        self.set_aside.iter().flat_map(|aside| &aside.files).copied()
    }

    /// Jobs under way.
    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    /// Compactions, moves and drops under way whose edits are not in the log.
    pub(super) fn compactions_open(&self) -> usize {
        let is_open = |job: &&Job| job.recipe.kind != JobKind::Flush && job.edit.is_none();
        self.running.values().filter(is_open).count()
    }

    /// Slots that jobs have taken and whose edits are not applied.
    fn slots_taken(&self) -> u64 {
        let of_job = |job: &Job| job.built_slots + job.slots.len();
        self.running.values().map(of_job).sum::<usize>() as u64
    }

    /// Slots that the next job may take: as many as all members have, but for the log.
    fn slots_free(&self, pool: &Pool, slots: &SlotsForJobs) -> u64 {
        let own = u64::from(pool.counts().free).saturating_sub(slots.for_log);
        let under_way = self.slots_taken() + slots.of_loads;
        slots.elsewhere.map_or(own, |least| own.min(least.saturating_sub(under_way)))
    }

    /// The files that a job built which is held back by what is not shipped.
    pub(super) fn built_by_bounded(&self, number: u64) -> &[Arc<FilePlacement>] {
        let bounded = self.running.get(&number).filter(|job| job.is_bounded);
        bounded.map_or(&[], |job| &job.built)
    }

    /// The files that a job built.
    pub(super) fn files_of(&self, number: u64) -> Vec<FileId> {
        self.running.get(&number).map_or(Vec::new(), Job::files_built)
    }

    /// Bytes of values that were copied out of values files with garbage since the start, and how
    /// many a second, lately.
    pub(super) fn collected(&self) -> (u64, u64) {
        (self.collection.moved(), self.collection.bytes_per_s())
    }

    /// Whether values of files with garbage may be copied now, at the pace that is set.
    pub(super) const fn may_collect(&self) -> bool {
        self.collection.may_begin()
    }

    /// File bytes written by jobs.
    pub(super) const fn written_bytes(&self) -> u64 {
        self.counted.job_written_bytes
    }

    pub(super) fn count_into(&self, counters: &mut Counters) {
        let mine = &self.counted;
        counters.flushes += mine.flushes;
        counters.compactions += mine.compactions;
        counters.flush_ms += mine.flush_ms;
        counters.compaction_ms += mine.compaction_ms;
        counters.trivial_moves += mine.trivial_moves;
        counters.jobs_without_space += mine.jobs_without_space;
        counters.jobs_set_aside += mine.jobs_set_aside;
        counters.refused_slots += mine.refused_slots;
        counters.job_read_bytes += mine.job_read_bytes;
        counters.job_written_bytes += mine.job_written_bytes;
        counters.flushed_bytes += mine.flushed_bytes;
        counters.unshipped_bytes_at_job_max = mine.unshipped_bytes_at_job_max;
    }

    /// Checks what holds between steps: a job's files come first, then their places, then its edit.
    pub(super) fn invariants(&self) {
        for (number, job) in &self.running {
            assert!(job.output.is_some() || !job.placed, "job {number} is placed and not done");
            assert!(job.placed || job.edit.is_none(), "job {number} has an edit and no place");
            if cfg!(debug_assertions) {
                let built: usize = job.built.iter().map(|file| file.slots.len()).sum();
                assert_eq!(job.built_slots, built, "job {number} miscounts its slots");
            }
        }
        assert!(self.refused <= REFUSED_JOBS_MAX + 1, "{} jobs were refused", self.refused);
    }

    // ---- begun

    /// Starts what the tree wants done.
    pub(super) fn schedule(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        tree: &mut Tree,
        pool: &mut Pool,
        given: &JobsGiven,
    ) {
        self.collection.pass(facts.now_ms, facts.options.collection_bytes_per_s);
        while self.may_start(facts, given) {
            let is_held = given.unshipped.is_too_much();
            let Some(inputs) = self.next_inputs(facts, tree, pool, given) else {
                if self.running.is_empty() && !is_held {
                    // What had no room is not wanted any more.
                    self.back_off.ended_well();
                }
                return;
            };
            if !self.start(facts, effects, tree, pool, given, inputs) {
                return;
            }
        }
    }

    /// Files can only be shipped while every member is there. And an edit that was replayed from
    /// the log and waits has no job here that would keep what it flushes or removes from being
    /// taken again.
    fn may_start(&self, facts: &Facts, given: &JobsGiven) -> bool {
        let own = self.running.values().filter(|job| job.edit.is_some()).count();
        let may_write = self.may_write(facts.now_ms, given.unshipped.is_too_much());
        given.may_begin && may_write && given.edits_waiting == own
    }

    /// The next flush, or else the next compaction.
    fn next_inputs(
        &self,
        facts: &Facts,
        tree: &mut Tree,
        pool: &Pool,
        given: &JobsGiven,
    ) -> Option<JobInputs> {
        let is_compaction = |job: &&Job| job.recipe.kind != JobKind::Flush;
        let compacting = self.running.values().filter(is_compaction).count();
        let allow_compaction = compacting < facts.options.compactions_max
            && !given.holds_compactions
            && !given.unshipped.is_too_much();
        let context = JobContext {
            term: facts.state.term(),
            slots_free: self.slots_free(pool, &given.slots),
            urgent: given.is_short,
            collects: self.collection.may_begin(),
        };
        let awaits_log = tree.next_flush_awaits() > Some(facts.log.durable_end());
        let flush = match given.unshipped.flushes_are_too_much() || awaits_log {
            true => None,
            false => tree.next_flush(&context),
        };
        match flush {
            None if allow_compaction => tree.next_compaction(&context),
            flush => flush,
        }
    }

    /// Sets slots aside and orders the job. All or nothing: a job never waits for slots half-way.
    fn start(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        tree: &mut Tree,
        pool: &mut Pool,
        given: &JobsGiven,
        mut inputs: JobInputs,
    ) -> bool {
        let wanted = tree.job_slots(&inputs, self.slots_free(pool, &given.slots));
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let Ok(slots) = pool.allocate(wanted) else {
            // As many are free, but their generations wait for a commit, which is on its way.
            tree.job_failed(&inputs.recipe);
            return false;
        };
        let is_flush = inputs.recipe.kind == JobKind::Flush;
        let unshipped = if is_flush { given.unshipped.of_flushes } else { given.unshipped.all };
        let most = &mut self.counted.unshipped_bytes_at_job_max;
        *most = unshipped.max(*most);
        let read = inputs.recipe.inputs.iter().map(|(_, file)| *file);
        let read = read.chain(inputs.recipe.emptied.iter().chain(&inputs.recipe.kept).copied());
        let files: BTreeMap<_, _> =
            read.filter_map(|file| Some((file, facts.place(file)?))).collect();
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
            begun_ms: facts.now_ms,
            level0_len: inputs.level0_len(),
            // A flush has the length of its MemTable at most, and only so many of these may wait.
            is_bounded: !is_flush && given.ships,
        };
        inputs.recipe.bottommost |= facts.has(Mutant::TombstonesDropped);
        if facts.has(Mutant::CollectedOverNewer) && !inputs.recipe.emptied.is_empty() {
            // It stays below what it merges: only what is written anew in its own level goes up.
            let level = inputs.recipe.output_level;
            if inputs.files.iter().all(|(of, _)| *of == level) {
                inputs.recipe.output_level = 0;
            }
        }
        let (group, is_bounded) = (facts.config.group, job.is_bounded);
        let number = self.next;
        self.next += 1;
        self.running.insert(number, job);
        self.collection.begin(inputs.moved_len(), !given.is_short);
        self.collection.add(inputs.large_len());
        let order = JobOrder { inputs, group, slots, files, is_bounded };
        effects.begin(Order::Job(number), Work::Job(Box::new(order)));
        true
    }

    /// Says how much jobs that have begun may build: so much that what is not shipped then, what
    /// they have built and this node has not heard of included, is at most the bound when one
    /// begins a file. It changes with all that the bytes in memory follow from: a secondary has a
    /// file, a job failed, a term began. So no job waits for an event that does not come.
    pub(super) fn let_build(&mut self, facts: &Facts, effects: &mut Effects, unshipped: u64) {
        let builds = |job: &Job| job.is_bounded && job.output.is_none();
        if !self.running.values().any(builds) {
            return;
        }
        let most = self.taken.saturating_add(facts.options.unshipped_bytes_max);
        let mut until = most.saturating_sub(unshipped);
        if facts.has(Mutant::JobsWithoutBound) || facts.has(Mutant::JobsNotHeldBack) {
            until = u64::MAX;
        }
        if self.told.replace(until) != Some(until) {
            effects.put_out(Output::JobsMayBuild(until));
        }
    }

    // ---- under way

    /// A running job built a file and writes it into its slots.
    pub(super) fn file_built(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        number: u64,
        file: BuiltFile,
    ) {
        let Some(job) = self.running.get_mut(&number) else { return };
        job.slots.retain(|placed| !file.placement.slots.contains(placed));
        let is_flush = job.recipe.kind == JobKind::Flush;
        if job.is_bounded {
            self.taken += file.memory;
        }
        job.built_slots += file.placement.slots.len();
        job.built.push(file.placement.clone());
        self.counted.job_written_bytes += file.placement.len;
        if is_flush {
            self.counted.flushed_bytes += file.placement.len;
        }
        // Nobody holds a file of an older term, and a job that is held back would wait for that.
        if facts.config.compaction == CompactionMode::Primary && !is_stale(facts, job) {
            effects.signal(Signal::FileBuilt { file, is_flush });
        }
    }

    /// A job ended: the places of its files are made durable.
    pub(super) fn done(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        tree: &mut Tree,
        pool: &mut Pool,
        number: u64,
        result: Result<JobDone, JobFailed>,
    ) {
        let Some(mut job) = self.running.remove(&number) else { return };
        let done = match result {
            result if is_stale(facts, &job) => {
                let refused = result.err().map_or_else(Vec::new, |failed| failed.refused);
                let fenced = JobFailed::from(Error::fenced("its term is over"));
                let failed = JobFailed { refused, ..fenced };
                return self.failed(facts, effects, tree, pool, job, failed);
            }
            Ok(done) => done,
            Err(failed) => return self.failed(facts, effects, tree, pool, job, failed),
        };
        if !job.built.is_empty() {
            self.back_off.ended_well();
            self.refused = 0;
        }
        if let Err(error) = pool.release(&core::mem::take(&mut job.slots)) {
            return effects.failed(Failed::Accounts, error);
        }
        self.counted.job_read_bytes += done.read_bytes;
        match job.recipe.kind {
            JobKind::Flush => self.counted.flushes += 1,
            JobKind::Compaction => self.counted.compactions += 1,
            _ => self.counted.trivial_moves += 1,
        }
        job.output = Some(done.output);
        if job.built.is_empty() {
            job.placed = true;
        } else {
            effects.place(job.built.clone(), After::BuiltPlaced(number));
        }
        self.running.insert(number, job);
    }

    /// The places of a job's files are durable.
    pub(super) fn placed(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        tree: &mut Tree,
        number: u64,
    ) {
        let Some(job) = self.running.get_mut(&number) else { return };
        job.placed = true;
        if is_stale(facts, job) {
            self.give_up(effects, tree);
        }
    }

    /// Another term begins, or another member compacts from now on. Jobs whose edits are in the log
    /// come to their end; of the others nothing is left, at once or when what is under way has
    /// ended.
    pub(super) fn give_up(&mut self, effects: &mut Effects, tree: &mut Tree) {
        let is_kept = |job: &Job| !job.placed || job.edit.is_some();
        let (kept, gone) =
            core::mem::take(&mut self.running).into_iter().partition(|(_, job)| is_kept(job));
        self.running = kept;
        let gone: BTreeMap<u64, Job> = gone;
        gone.values().for_each(|job| drop_built(effects, tree, job));
        // The others' files go nowhere, so nothing of them holds these jobs back: they end.
        for job in self.running.values().filter(|job| job.edit.is_none()) {
            effects.signal(Signal::Discard(job.files_built()));
        }
        for aside in core::mem::take(&mut self.set_aside) {
            tree.job_failed(&aside.recipe);
        }
        self.back_off = BackOff::default();
    }

    // ---- failed

    /// A job that failed leaves nothing behind; its inputs are free for the next try, which comes
    /// after a pause: else a device without room would be written to as fast as it refuses.
    fn failed(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        tree: &mut Tree,
        pool: &mut Pool,
        job: Job,
        failed: JobFailed,
    ) {
        let JobFailed { error, damaged, refused } = failed;
        let mut slots = job.slots.clone();
        slots.extend(job.built.iter().flat_map(|placement| placement.slots.iter().copied()));
        slots.retain(|placed| !refused.contains(placed));
        let given_back = pool.release(&slots);
        if let Err(error) = given_back.and_then(|()| pool.quarantine(&refused)) {
            return effects.failed(Failed::Accounts, error);
        }
        if !refused.is_empty() {
            self.refused += 1;
            self.counted.refused_slots += refused.len() as u64;
            let slots: Vec<SlotIndex> = refused.iter().map(|placed| placed.slot).collect();
            effects.notice_refused(&slots, &error);
        }
        let files = job.files_built();
        effects.signal(Signal::Discard(files.clone()));
        if !files.is_empty() {
            // Whoever keeps blocks of what was built for readers to come need not.
            effects.put_out(Output::FilesGone(files));
        }
        let is_damage = error.kind() == ErrorKind::Corruption || !damaged.is_empty();
        if is_damage && job.recipe.kind == JobKind::Compaction {
            return self.set_aside(facts, effects, tree, job, damaged, error);
        }
        tree.job_failed(&job.recipe);
        if is_damage && !job.recipe.kept.is_empty() {
            // The log has rotted or cannot be read there, and memory has the values: they go to a
            // file of their own.
            job.recipe.memtables.iter().for_each(|memtable| tree.keep_none_of(*memtable));
            return effects.notice(format!("large values do not stay in the log: {error}"));
        }
        match error.kind() {
            ErrorKind::NoSpace => {
                self.counted.jobs_without_space += 1;
                self.back_off.failed(error, facts.now_ms);
            }
            ErrorKind::LimitExceeded if !job.has_all_slots => {
                tree.job_ran_out_of_slots(job.recipe.kind, job.given.into());
                effects.signal(Signal::JobsNeedMore);
            }
            // Other slots may be better; a device that takes none is told by as many failures in a
            // row.
            ErrorKind::Io if !refused.is_empty() && self.refused <= REFUSED_JOBS_MAX => {}
            _ => effects.failed(Failed::Job, error),
        }
    }

    /// A file of no edit cannot be shipped: its bytes rotted in memory, and so did what was written
    /// here, perhaps from there. What it was made of is whole, so its job is made anew, with other
    /// files. Returns whether a job built it whose edit is not in the log.
    pub(super) fn make_anew(
        &mut self,
        effects: &mut Effects,
        tree: &mut Tree,
        file: FileId,
        error: &Error,
    ) -> bool {
        let is_of = |job: &Job| {
            let built = || job.built.iter().any(|placement| placement.file == file);
            job.placed && job.edit.is_none() && built()
        };
        let found = self.running.iter().find(|(_, job)| is_of(job));
        let Some(number) = found.map(|(number, _)| *number) else { return false };
        let Some(job) = self.running.remove(&number) else { return false };
        effects.notice(format!(
            "{file} is whole neither in memory nor here, and is made anew: {error}"
        ));
        drop_built(effects, tree, &job);
        true
    }

    /// Keeps a compaction from being tried again, as it would fail again, until what it read is
    /// repaired. Reads of what is whole go on, and so do other jobs.
    fn set_aside(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        tree: &mut Tree,
        job: Job,
        damaged: BTreeMap<FileId, Error>,
        error: Error,
    ) {
        self.counted.jobs_set_aside += 1;
        if damaged.is_empty() {
            self.damage = Some(error);
            return;
        }
        // What was repaired while the job ran is whole.
        let is_there = |file: &FileId| facts.place(*file).as_ref() == job.files.get(file);
        let damaged = damaged.into_iter().filter(|(file, _)| is_there(file));
        let damaged: BTreeMap<FileId, Error> = damaged.collect();
        let files = damaged.keys().copied().collect();
        for (file, error) in damaged {
            effects.signal(Signal::Damaged { file, error });
        }
        self.set_aside.push(SetAside { recipe: job.recipe, files });
        self.free_inputs(tree);
    }

    /// A file is whole again, or may be: compactions that were set aside for it alone may begin
    /// anew.
    pub(super) fn resume(&mut self, tree: &mut Tree, file: FileId) {
        for aside in &mut self.set_aside {
            aside.files.remove(&file);
        }
        self.free_inputs(tree);
    }

    fn free_inputs(&mut self, tree: &mut Tree) {
        let (free, kept) = core::mem::take(&mut self.set_aside)
            .into_iter()
            .partition::<Vec<_>, _>(|aside| aside.files.is_empty());
        self.set_aside = kept;
        for aside in free {
            tree.job_failed(&aside.recipe);
        }
    }

    // ---- edits

    /// The jobs whose files are safe everywhere and whose edits are next, in the order of the jobs.
    /// The edit of a flush waits for those of the flushes before it.
    pub(super) fn ready(&self, tree: &Tree, is_held: impl Fn(FileId) -> bool) -> Vec<u64> {
        let is_safe = |job: &Job| {
            // Who holds its files is asked last, as it may have built thousands.
            let held = || job.built.iter().all(|file| is_held(file.file));
            job.output.is_some() && job.placed && held()
        };
        let (mut ready, mut flushes, mut flushes_logged) = (Vec::new(), Vec::new(), 0);
        for (number, job) in &self.running {
            match (tree.flush_position(&job.recipe), job.edit) {
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
        ready
    }

    /// What the edit of a job will say.
    pub(super) fn output_of(&self, number: u64) -> Option<JobOutput> {
        self.running.get(&number)?.output.clone()
    }

    /// The edit of a job is in line.
    pub(super) fn appended(&mut self, number: u64, edit: u64) {
        if let Some(job) = self.running.get_mut(&number) {
            job.edit = Some(edit);
        }
    }

    /// An edit is applied here: its job is over.
    pub(super) fn edit_applied(&mut self, facts: &Facts, effects: &mut Effects, edit: u64) {
        let is_over = |job: &Job| job.edit == Some(edit);
        for job in self.running.values().filter(|job| is_over(job)) {
            let took_ms = facts.now_ms.saturating_sub(job.begun_ms);
            match job.recipe.kind {
                JobKind::Flush => self.counted.flush_ms += took_ms,
                JobKind::Compaction => {
                    self.counted.compaction_ms += took_ms;
                    effects.signal(Signal::Compacted { bytes: job.level0_len, took_ms });
                }
                _ => {}
            }
        }
        self.running.retain(|_, job| !is_over(job));
    }
}

/// Whether a job began in another term than this, or before another member came to compact. Files
/// that no edit names are forgotten with their term, wherever they arrived.
fn is_stale(facts: &Facts, job: &Job) -> bool {
    let is_old = facts.view.has_one_tree() && job.recipe.term != facts.state.term();
    is_old || !facts.view.duties().compact
}

/// Forgets the files that a job has built and placed, so that its inputs are free for another.
fn drop_built(effects: &mut Effects, tree: &mut Tree, job: &Job) {
    let files = job.files_built();
    effects.signal(Signal::Discard(files.clone()));
    files.iter().for_each(|file| effects.signal(Signal::Orphan(*file)));
    effects.put_out(Output::FilesGone(files));
    tree.job_failed(&job.recipe);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeOptions;
    use crate::node::Node;
    use crate::node::effects::Effect;
    use crate::node::facts::facts;
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
        let term = node.protocol.term();
        let context = JobContext { term, slots_free: 8, urgent: false, collects: true };
        node.tree.next_flush(&context)
    }

    fn start(node: &mut Node, inputs: JobInputs) -> bool {
        let given = node.jobs_given();
        let (facts, tree, pool) = (facts!(node), &mut node.tree, &mut node.pool);
        let is_begun = node.jobs.start(&facts, &mut node.effects, tree, pool, &given, inputs);
        node.settle();
        is_begun
    }

    /// docs/faults.md: E17
    #[test]
    fn a_job_whose_file_is_whole_nowhere_is_made_anew_with_other_files() {
        let mut node = with_a_sealed_memtable();
        let before = node.pool.counts();
        let inputs = next_flush(&mut node).unwrap();
        let recipe = inputs.recipe.clone();
        assert!(start(&mut node, inputs));
        let Some((id, Work::Job(order))) = ordered(&mut node) else { panic!("no job is ordered") };
        let file = FileId::sst(recipe.output_first);
        let built = built(file, recipe.term, order.slots[..1].to_vec(), 4_096);
        let (meta, placement) = ((*built.meta).clone(), built.placement.clone());
        node.handle_job_file(id, built);
        let stats = JobStats::default();
        let output = JobOutput {
            recipe: recipe.clone(),
            added: alloc::vec![(0, meta)],
            values: Vec::new(),
            stats,
        };
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

    /// Nobody takes what it has built in a later term, and it would wait for that for ever.
    #[test]
    fn a_job_that_is_held_back_when_a_term_begins_comes_to_its_end() {
        let mut node = with_a_sealed_memtable();
        node.options.unshipped_bytes_max = 1;
        let inputs = next_flush(&mut node).unwrap();
        let recipe = inputs.recipe.clone();
        assert!(start(&mut node, inputs));
        node.jobs.running.values_mut().for_each(|job| job.is_bounded = true);
        let Some((id, Work::Job(order))) = ordered(&mut node) else { panic!("no job is ordered") };
        let told = |node: &mut Node| {
            node.let_jobs_build();
            let (taken, until) = (node.jobs.taken, node.jobs.told.unwrap());
            (until < taken, node.unshipped_bytes())
        };
        let file = FileId::sst(recipe.output_first);
        node.handle_job_file(id, built(file, recipe.term, order.slots[..1].to_vec(), 4_096));
        assert_eq!(told(&mut node), (true, 4_096));
        node.give_up_work();
        assert_eq!(told(&mut node), (false, 0));
    }

    #[test]
    fn a_job_that_is_held_back_keeps_no_other_from_finding_out_whether_there_is_room() {
        let mut node = with_a_sealed_memtable();
        let inputs = next_flush(&mut node).unwrap();
        assert!(start(&mut node, inputs));
        node.jobs.back_off.failed(Error::no_space("full"), 0);
        for (is_bounded, is_held, may_write) in
            [(false, false, false), (false, true, false), (true, false, false), (true, true, true)]
        {
            node.jobs.running.values_mut().for_each(|job| job.is_bounded = is_bounded);
            assert_eq!(node.jobs.may_write(100, is_held), may_write, "{is_bounded} {is_held}");
        }
        assert!(!node.jobs.may_write(99, true), "the pause has not passed");
    }

    #[test]
    fn a_job_without_room_leaves_nothing_and_is_tried_again_after_a_pause() {
        let mut node = with_a_sealed_memtable();
        let before = node.pool.counts();
        let (mut jobs, mut asked) = (Jobs::default(), Effects::default());
        let given = JobsGiven {
            may_begin: true,
            edits_waiting: 0,
            holds_compactions: false,
            is_short: false,
            slots: SlotsForJobs { for_log: 0, elsewhere: None, of_loads: 0 },
            unshipped: Unshipped { all: 101, of_flushes: 100, most: 100 },
            ships: true,
        };
        let mut turn = |jobs: &mut Jobs, node: &mut Node| {
            let (facts, tree, pool) = (facts!(node), &mut node.tree, &mut node.pool);
            jobs.schedule(&facts, &mut asked, tree, pool, &given);
            jobs.invariants();
            let orders = core::iter::from_fn(|| asked.next_effect());
            orders.filter(|effect| matches!(effect, Effect::Order(Order::Job(_), _))).count()
        };
        assert_eq!(turn(&mut jobs, &mut node), 1, "compactions are held back, and flushes not");
        let mut ended = Effects::default();
        let (facts, tree, pool) = (facts!(node), &mut node.tree, &mut node.pool);
        let full = Err(Error::no_space("full").into());
        jobs.done(&facts, &mut ended, tree, pool, 0, full);
        assert!(matches!(ended.next_effect(), Some(Effect::Signal(Signal::Discard(_)))));
        assert!(ended.next_effect().is_none() && jobs.out_of_space().is_some());
        assert_eq!((jobs.running(), node.pool.counts().free), (0, before.free));
        assert_eq!(turn(&mut jobs, &mut node), 0, "it is too early");
        node.now_ms += 100;
        assert_eq!(turn(&mut jobs, &mut node), 1);
    }
}
