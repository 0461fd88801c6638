//! One replica's LSM tree: single owner, no I/O of its own.
//!
//! ```text
//!   log: batch ─► apply_batch ─► active MemTable
//!        seal  ─► seal        ─► active becomes sealed, a new one begins
//!        edit  ─► apply_edit  ─► sealed MemTables leave, files come and go
//!
//!   next_flush / next_compaction ─► JobInputs ─(run_job, anywhere)─► JobOutput
//!                        └─► finish_job ─► Edit ─► appended to the log by the primary ─► apply_edit
//! ```
//!
//! Every replica that has applied the log up to the same position holds the same MemTables and the same
//! version. Only the primary asks for jobs; what it has reserved and marked busy is no part of that
//! state. A tree opens from a snapshot and the edits after it, then replays the log from
//! [`Tree::flushed`] on.
//!
//! Group time comes with the records ([`Tree::pass_time`]); views and recipes are judged by it. A fork begins at
//! 0, so that its flushes drop nothing that has expired: that is left to its own compactions.
//!
//! Clearing the user keyspace is a number, not entries: the *floor*. What is older is invisible and goes
//! at the next compaction, or at once where whole files are older. Range deletes go into the MemTable, which is another
//! handle then, and so another shape for readers ([`crate::range_delete`]).
//!
//! Snapshot bytes:
//!
//! ```text
//!  0 u16 version = 1 | 6 zero bytes    8 u64 group    16 u64 last edit    24 u64 next file
//! 32 u64 floor   40 u64 flushed MemTable   48 u64 flushed position   56 u64 flushed sequence number
//! 64 Version … | u32 CRC32C of all before
//! ```

mod deletes;
mod fork;
mod keys;
mod load;
mod merging;
mod range;

pub use keys::KeyEstimate;

use crate::batch::BatchReader;
use crate::config::{Codecs, TreeConfig, WriteLimits};
use crate::counter::Operand;
use crate::edit::{Edit, Flushed};
use crate::entry::{EntryKind, Keyspace};
use crate::expiry::{Due, EXPIRY_LEN};
use crate::file::FileMeta;
use crate::job::{Estimates, JobInputs, JobOutput, OUTPUT_LEN_MOST, Outgoing, Room, only_as_bytes};
use crate::memtable::{KeptTable, MemTable};
use crate::picker::{Pick, Picker};
use crate::range_delete::{RangeDelete, check_range};
use crate::read::{ReadPoint, ReadView, SharedView};
use crate::readers::{PinBudget, ReaderStats, Readers, Shape, State};
use crate::recipe::{JobKind, Recipe};
use crate::version::{Version, Versions};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::format;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::crc::crc32c;
use gabion_base::{Error, FileId, GroupId, LogPosition, MemTableId, Result, SequenceNumber, Term};

pub(crate) use deletes::PARTS;
pub use load::Loaded;

const SNAPSHOT_VERSION: u16 = 1;
const SNAPSHOT_HEADER_LEN: usize = 64;

/// A MemTable that is complete, and where the log goes on after it.
struct Sealed {
    table: Arc<MemTable>,
    position: LogPosition,
    last_sequence: SequenceNumber,
}

/// What a job may use, and what it must respect.
#[derive(Clone, Copy, Debug)]
pub struct JobContext<'a> {
    /// The primary's term.
    pub term: Term,
    /// Live snapshots, in any order.
    pub snapshots: &'a [SequenceNumber],
    /// Free slots at the replica that has the fewest: a job that may need more is not begun.
    pub slots_free: u64,
    /// Room is short: levels are compacted that are not over their aims.
    pub urgent: bool,
}

/// Whether writers may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteState {
    /// At full speed.
    Ok,
    /// Slower: compactions of L0 fall behind. How far L0 is on its way from `l0_slowdown` to `l0_stop` runs, in
    /// thousandths.
    Slow(u64),
    /// Not until something was flushed or compacted.
    Stop(Pressure),
}

/// What falls behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// So many sealed MemTables wait for their flush to be applied.
    SealedMemTables(u32),
    /// So many runs are in L0: flushes, and loads of any size.
    Level0Runs(u32),
}

/// Size of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelStats {
    /// Files.
    pub files: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Bytes of memory that a tree takes from the allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeMemory {
    /// The MemTable being filled.
    pub active: u64,
    /// MemTables that wait for their flush to be applied.
    pub sealed: u64,
    /// Flushed MemTables that views, iterators or jobs still have.
    pub kept: u64,
    /// Descriptions of the files of the current version, and of those that left it and may still be read.
    pub files: u64,
}

/// One replica's tree.
pub struct Tree {
    config: TreeConfig,
    group: GroupId,
    versions: Versions,
    active: Arc<MemTable>,
    /// Oldest first.
    sealed: VecDeque<Sealed>,
    /// What views share; made anew when a MemTable or the version changes.
    state: Rc<State>,
    shape_number: u64,
    readers: Readers,
    /// Flushed MemTables that somebody may still have.
    kept: Vec<KeptTable>,
    last_sequence: SequenceNumber,
    last_edit: u64,
    flushed: Flushed,
    /// As of the last edit: file numbers below are used up.
    next_file: u64,
    /// As of the last applied write.
    floor: SequenceNumber,
    /// As of the last edit.
    floor_in_edits: SequenceNumber,
    /// Group time.
    now_ms: u64,
    due: Due,
    /// Of the active MemTable.
    delete_runs: deletes::DeleteRuns,
    /// Nothing was replayed since it was opened: edits may run ahead of the log.
    opening: bool,
    jobs: Jobs,
}

/// What jobs under way have taken: known to the primary alone.
#[derive(Default)]
struct Jobs {
    /// Input files.
    busy: BTreeSet<FileId>,
    /// MemTables whose flush is under way.
    flushing: BTreeSet<MemTableId>,
    /// MemTables up to this one may be so long, as they were begun when [`WriteLimits`] were others.
    longer: Option<(MemTableId, u64)>,
    /// How slots are set aside.
    estimates: Estimates,
    /// What [`Tree::slots_needed`] says, since the last edit.
    needed: Option<u64>,
    /// File numbers below are reserved, as far as they are not used up anyway.
    reserved: u64,
    /// Ranges to be compacted on demand.
    ranges: range::Ranges,
    /// The compaction that began last was one of those.
    was_asked: bool,
    /// No compaction was found with this oldest snapshot, so many free slots and this urgency, and nothing
    /// has changed since.
    idle_at: Option<(SequenceNumber, u64, bool)>,
    /// What expires by then may change that.
    idle_until_ms: Option<u64>,
}

impl Tree {
    /// An empty tree.
    ///
    /// # Errors
    /// Invalid input for an option out of its range.
    pub fn create(config: TreeConfig, group: GroupId) -> Result<Self> {
        config.validate()?;
        let flushed = Flushed {
            memtable: MemTableId::ZERO,
            position: LogPosition::ZERO,
            sequence: SequenceNumber::ZERO,
        };
        let version = Version::new(config.levels);
        Ok(Self::with_state(config, group, version, flushed, (0, 1, SequenceNumber::ZERO)))
    }

    fn with_state(
        config: TreeConfig,
        group: GroupId,
        version: Version,
        flushed: Flushed,
        (last_edit, next_file, floor): (u64, u64, SequenceNumber),
    ) -> Self {
        let versions = Versions::new(version);
        let active = Arc::new(MemTable::new(flushed.memtable.next()));
        let state = state_of(&active, &VecDeque::new(), &versions);
        let mut due = Due::default();
        // What was loaded since the last flush is newer than that.
        let newest = versions.current().files().map(|(_, file)| file.largest_sequence).max();
        due.came_in_files(newest.map_or(flushed.sequence, |newest| newest.max(flushed.sequence)));
        due.look_at(versions.current(), 0);
        Self {
            config,
            group,
            versions,
            active,
            sealed: VecDeque::new(),
            state,
            shape_number: 0,
            readers: Readers::default(),
            kept: Vec::new(),
            last_sequence: flushed.sequence,
            last_edit,
            flushed,
            next_file,
            floor,
            floor_in_edits: floor,
            now_ms: 0,
            due,
            delete_runs: deletes::DeleteRuns::default(),
            opening: true,
            jobs: Jobs::default(),
        }
    }

    /// The tree of a snapshot. To follow: the edits after it, then the log from [`Tree::flushed`].
    ///
    /// # Errors
    /// Corruption, or a snapshot of another group or configuration.
    pub fn open(config: TreeConfig, group: GroupId, snapshot: &[u8]) -> Result<Self> {
        config.validate()?;
        let (body, crc) = snapshot
            .split_last_chunk::<4>()
            .filter(|(body, _)| body.len() >= SNAPSHOT_HEADER_LEN)
            .ok_or_else(|| Error::corruption("tree snapshot: shorter than its header"))?;
        if crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(Error::corruption("tree snapshot: bad checksum"));
        }
        let mut reader = Reader::new(body, "tree snapshot");
        let version = reader.u16()?;
        if version != SNAPSHOT_VERSION || reader.array::<6>()? != [0; 6] {
            return Err(Error::unsupported(format!(
                "tree snapshot has version {version}, this build knows {SNAPSHOT_VERSION}"
            )));
        }
        let of_group = GroupId(reader.u64()?);
        let (last_edit, next_file, floor) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let flushed = Flushed {
            memtable: MemTableId(reader.u64()?),
            position: LogPosition(reader.u64()?),
            sequence: SequenceNumber(reader.u64()?),
        };
        let version = Version::decode(&mut reader)?;
        reader.finish()?;
        let wrong = if of_group != group {
            format!("is of group {of_group}, not {group}")
        } else if version.level_count() != config.levels {
            format!("has {} levels, the group {}", version.level_count(), config.levels)
        } else if version.files().any(|(_, file)| file.id.number >= next_file) {
            format!("holds a file whose number is not below {next_file}")
        } else if flushed.sequence.max(SequenceNumber(floor)) > SequenceNumber::MAX
            || flushed.memtable.get() == u64::MAX
        {
            "has a number over its limit".into()
        } else {
            let counters = (last_edit, next_file, SequenceNumber(floor));
            return Ok(Self::with_state(config, group, version, flushed, counters));
        };
        Err(Error::corruption(format!("tree snapshot {wrong}")))
    }

    /// The state after the last applied edit: the same bytes at every replica. MemTables are no part of
    /// it; the log from [`Tree::flushed`] on brings them back.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u16(SNAPSHOT_VERSION);
        out.put_bytes(&[0; 6]);
        out.put_u64(self.group.get());
        out.put_u64(self.last_edit);
        out.put_u64(self.next_file);
        // Not the floor of the last write: its record may yet be cut off the log.
        out.put_u64(self.floor_in_edits.get());
        out.put_u64(self.flushed.memtable.get());
        out.put_u64(self.flushed.position.get());
        out.put_u64(self.flushed.sequence.get());
        self.versions.current().encode(&mut out);
        let crc = crc32c(&out);
        out.put_u32(crc);
        out
    }

    /// Counts up whenever readers are given another state: MemTables, their range deletes, files, or what was cleared
    /// have changed.
    #[must_use]
    pub const fn shape_number(&self) -> u64 {
        self.shape_number
    }

    fn reshape(&mut self) {
        self.shape_number += 1;
        let state = state_of(&self.active, &self.sealed, &self.versions);
        let earlier = core::mem::replace(&mut self.state, state);
        self.readers.replaced(&earlier);
    }

    /// Has files looked up anew whose readers were kept beside them, after the budget of open files changed. Who reads
    /// meanwhile keeps what it has.
    pub fn close_files(&mut self) {
        self.versions.close_files();
        self.reshape();
    }

    // ----- writes -------------------------------------------------------------------------------

    /// Applies the operations of a batch record, which take the sequence numbers from `first` on. All or
    /// nothing.
    ///
    /// # Errors
    /// Corruption when `first` does not follow the last write, or the payload is malformed;
    /// Unsupported for a reserved operation.
    pub fn apply_batch(&mut self, first: SequenceNumber, payload: &[u8]) -> Result<()> {
        self.check_next(first)?;
        let mut count = 0u64;
        for operation in BatchReader::new(payload) {
            let operation = operation?;
            check_operation(operation.kind, operation.key, operation.value)?;
            count += 1;
        }
        check_last(first, count)?;
        self.opening = false;
        let floor_before = self.floor;
        let mut writer = self.active.writer();
        let mut sequence = self.last_sequence;
        let mut ranges = Vec::new();
        for operation in BatchReader::new(payload) {
            let operation = operation?;
            sequence = sequence.next();
            match operation.kind {
                EntryKind::Clear => {
                    (self.floor, self.shape_number) = (sequence, self.shape_number + 1)
                }
                EntryKind::RangeDelete => {
                    let (start, end) = (operation.key.into(), operation.value.into());
                    ranges.push(RangeDelete { start, end, sequence });
                }
                kind => {
                    note_expiry(&mut self.due, kind, operation.value, self.now_ms);
                    writer.insert(operation.key, sequence, kind, operation.value);
                }
            }
        }
        drop(writer);
        self.last_sequence = sequence;
        self.delete_ranges(ranges);
        if self.floor > floor_before {
            self.jobs.idle_at = None;
        }
        Ok(())
    }

    /// Applies one operation: the head's path, which reads its own writes within a batch.
    ///
    /// # Errors
    /// As [`Tree::apply_batch`].
    pub fn apply_operation(
        &mut self,
        sequence: SequenceNumber,
        kind: EntryKind,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        self.check_next(sequence)?;
        check_operation(kind, key, value)?;
        check_last(sequence, 1)?;
        self.opening = false;
        match kind {
            EntryKind::Clear => {
                self.floor = sequence;
                self.shape_number += 1;
                self.jobs.idle_at = None;
            }
            EntryKind::RangeDelete => {
                let range = RangeDelete { start: key.into(), end: value.into(), sequence };
                self.delete_ranges(alloc::vec![range]);
            }
            kind => {
                note_expiry(&mut self.due, kind, value, self.now_ms);
                self.active.insert(key, sequence, kind, value);
                if kind == EntryKind::Delete {
                    self.note_delete(key);
                }
            }
        }
        self.last_sequence = sequence;
        Ok(())
    }

    /// Adds range deletes to the active MemTable. Who reads from now on reads another shape.
    fn delete_ranges(&mut self, ranges: Vec<RangeDelete>) {
        if ranges.is_empty() {
            return;
        }
        self.active = Arc::new(self.active.with_range_deletes(ranges));
        self.reshape();
    }

    /// A record of the log, of whatever kind, was applied that has this group time; it never goes back.
    pub fn pass_time(&mut self, now_ms: u64) {
        if now_ms > self.now_ms {
            self.now_ms = now_ms;
            self.due.pass(now_ms);
        }
    }

    /// Group time, in milliseconds since 1970: the largest of the records that were applied, 0 before the
    /// first.
    #[must_use]
    pub const fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// When, by the head's clock, a record is wanted so that group time passes and what expires by then is seen
    /// to. None while nothing may expire. See [`crate::expiry`].
    #[must_use]
    pub fn time_due_ms(&self) -> Option<u64> {
        self.due.next_ms(self.now_ms)
    }

    fn check_next(&self, first: SequenceNumber) -> Result<()> {
        if self.last_sequence.get().checked_add(1) == Some(first.get()) {
            return Ok(());
        }
        Err(Error::corruption(format!(
            "{}: writes from {first} on follow {}: a gap or a repetition",
            self.group, self.last_sequence
        )))
    }

    /// Whether the active MemTable is full, or holds enough that readers are better off without: the head appends a seal.
    #[must_use]
    pub fn needs_seal(&self) -> bool {
        self.active.memory_used() as u64 >= self.config.memtable_len
            || self.active.is_full_of_range_deletes()
            || self.delete_runs.wants_seal()
    }

    /// Seals the active MemTable, which must be `expected`; the log goes on at `at`. Returns the
    /// MemTable that begins.
    ///
    /// # Errors
    /// Corruption when another MemTable is active, or `at` lies before the last seal's.
    pub fn seal(&mut self, expected: MemTableId, at: LogPosition) -> Result<MemTableId> {
        let active = self.active.id();
        let previous = self.sealed.back().map_or(self.flushed.position, |last| last.position);
        if active != expected || at < previous {
            return Err(Error::corruption(format!(
                "{}: seal of {expected} at {at}, but {active} is active and the last seal at {previous}",
                self.group
            )));
        }
        self.opening = false;
        let next = Arc::new(self.active.successor());
        let table = core::mem::replace(&mut self.active, next);
        self.delete_runs = deletes::DeleteRuns::default();
        let last_sequence = self.last_sequence;
        self.sealed.push_back(Sealed { table, position: at, last_sequence });
        self.reshape();
        Ok(self.active.id())
    }

    // ----- jobs ---------------------------------------------------------------------------------

    /// The next job: a flush if one is due, else a compaction. See [`Tree::next_flush`].
    pub fn next_job(&mut self, context: &JobContext<'_>) -> Option<JobInputs> {
        self.next_flush(context).or_else(|| self.next_compaction(context))
    }

    /// Flushes the oldest sealed MemTable of which no flush is under way. Several may run at a time, so that one is
    /// built while the files of another are flushed, shipped and named in the log. Their edits must be appended in the
    /// order of the MemTables: see [`Tree::flush_position`].
    ///
    /// The job's file numbers are reserved and its inputs busy until its edit is applied, or
    /// [`Tree::job_failed`] is called.
    pub fn next_flush(&mut self, context: &JobContext<'_>) -> Option<JobInputs> {
        let is_free = |sealed: &Sealed| !self.jobs.flushing.contains(&sealed.table.id());
        let at = self.sealed.iter().position(is_free)?;
        let table = self.sealed[at].table.clone();
        let was_longer = self.jobs.longer.filter(|(upto, _)| table.id() <= *upto);
        let len = was_longer.map_or(0, |(_, len)| len).max(self.config.memtable_len);
        // A tombstone above nothing hides nothing: it need not be written. Where writers delete what was never there, or
        // in the order of its keys, a pool would fill up with them.
        let bottommost = at == 0 && self.is_beside_all(&table);
        let pick = Pick {
            kind: JobKind::Flush,
            inputs: Vec::new(),
            output_level: 0,
            // Each file of a flush is a run of L0, by which writers are slowed down: one, also of a large MemTable, and of
            // one that was filled when they might be longer.
            output_len: len.min(OUTPUT_LEN_MOST).max(self.config.sst_len),
            cuts: Vec::new(),
            bottommost,
        };
        let id = table.id();
        let inputs = self.begin(pick, alloc::vec![table], context)?;
        self.jobs.flushing.insert(id);
        Some(inputs)
    }

    /// Whether nothing of the range of a MemTable, of which none is older, lies in a file, as with keys that are written in
    /// their order.
    fn is_beside_all(&self, table: &MemTable) -> bool {
        let Some((first, last)) = table.bounds() else { return true };
        let is_among = |file: &FileMeta| file.largest >= first && file.smallest <= last;
        let version = self.version();
        !version.level(0).iter().any(|file| is_among(file))
            && !version.overlaps_from(1, &first, &last)
    }

    /// How many sealed MemTables are older than the one that a recipe flushes, if it flushes one that is here.
    #[must_use]
    pub fn flush_position(&self, recipe: &Recipe) -> Option<usize> {
        let flushed = *recipe.memtables.last()?;
        self.sealed.iter().position(|sealed| sealed.table.id() == flushed)
    }

    /// The next compaction, move or drop. Several may run at a time: their inputs are disjoint. See
    /// [`Tree::next_flush`].
    pub fn next_compaction(&mut self, context: &JobContext<'_>) -> Option<JobInputs> {
        // What is asked for goes first. While writers wait for L0, or all of the tree was cleared, every other job is
        // another: neither waits for a whole range, nor does the range wait for writers to pause.
        let yields = self.jobs.was_asked && (self.holds_writers() || self.has_drop(context));
        let mut next = if yields { None } else { self.next_asked(context) };
        self.jobs.was_asked = next.is_some();
        next = next.or_else(|| self.next_unasked(context));
        if next.is_none() && yields {
            next = self.next_asked(context);
            self.jobs.was_asked = next.is_some();
        }
        next
    }

    fn next_asked(&mut self, context: &JobContext<'_>) -> Option<JobInputs> {
        let pick = self.pick_asked(context)?;
        self.begin(pick, Vec::new(), context)
    }

    /// Whether writers wait for L0, or are slowed down by it.
    fn holds_writers(&self) -> bool {
        self.version().runs().len() >= self.config.l0_slowdown as usize
    }

    /// Whether files can go that are cleared as a whole.
    fn has_drop(&self, context: &JobContext<'_>) -> bool {
        let picker = Picker::new(&self.config, self.versions.current(), &self.jobs.busy);
        picker.pick_drop(self.floor, oldest_of(context)).is_some()
    }

    /// The next job that the shape of the tree asks for.
    fn next_unasked(&mut self, context: &JobContext<'_>) -> Option<JobInputs> {
        let oldest = oldest_of(context);
        let asked = (oldest, context.slots_free, context.urgent);
        let is_over = self.jobs.idle_until_ms.is_some_and(|until_ms| until_ms <= self.now_ms);
        if self.jobs.idle_at == Some(asked) && !is_over {
            return None;
        }
        let room = self.room(JobKind::Compaction, context.slots_free);
        let picker = Picker::new(&self.config, self.versions.current(), &self.jobs.busy)
            .within(room, context.snapshots.len())
            .below_operands(self.operands_in_memory_ms())
            .urgent(context.urgent);
        let dense = || match picker.slows_writers() {
            false => picker.pick_tombstones(oldest),
            true => None,
        };
        let pick = picker.pick_drop(self.floor, oldest).or_else(dense).or_else(|| picker.pick());
        let pick = pick.or_else(|| picker.pick_ranges(oldest));
        let Some(pick) = pick.or_else(|| picker.pick_expired(self.now_ms)) else {
            self.jobs.idle_until_ms = picker.more_expired_ms(self.now_ms);
            self.jobs.idle_at = Some(asked);
            return None;
        };
        self.begin(pick, Vec::new(), context)
    }

    /// Whether a flush, or a compaction by the shape of the tree, is due, with slots enough and of whatever files: those
    /// of jobs under way, too, and those that are set aside. What was asked for is not looked at, nor what is compacted
    /// only while room is short.
    #[must_use]
    pub fn is_job_due(&self) -> bool {
        let none_busy = BTreeSet::new();
        let picker = Picker::new(&self.config, self.versions.current(), &none_busy);
        !self.sealed.is_empty()
            || picker.pick_drop(self.floor, SequenceNumber::MAX).is_some()
            || picker.pick_tombstones(SequenceNumber::MAX).is_some()
            || picker.pick().is_some()
            || picker.pick_ranges(SequenceNumber::MAX).is_some()
    }

    fn begin(
        &mut self,
        pick: Pick,
        memtables: Vec<Arc<MemTable>>,
        context: &JobContext<'_>,
    ) -> Option<JobInputs> {
        let mut snapshots = context.snapshots.to_vec();
        snapshots.sort_unstable();
        snapshots.dedup();
        let merging = match memtables.first() {
            Some(table) => self.merging_of_flush(table),
            None => self.merging_of(&pick),
        };
        let mut inputs = JobInputs {
            recipe: Recipe {
                kind: pick.kind,
                term: context.term,
                memtables: memtables.iter().map(|table| table.id()).collect(),
                inputs: pick.inputs.iter().map(|(level, file)| (*level, file.id)).collect(),
                output_level: pick.output_level,
                output_first: self.files_reserved(),
                output_count: 0,
                output_len: pick.output_len,
                cuts: pick.cuts,
                bottommost: pick.bottommost,
                snapshots,
                now_ms: self.now_ms,
                floor: self.floor,
                sst: self.config.sst_of_job(pick.kind, pick.bottommost),
                merging,
                parted_from: 0,
            },
            memtables,
            files: pick.inputs,
        };
        if !inputs.fits(self.room(pick.kind, context.slots_free)) {
            return None;
        }
        if inputs.recipe.kind.makes_files() {
            let cuts = inputs.recipe.cuts.len() as u64 + self.part(&mut inputs, context.slots_free);
            let count = inputs.outgoing().files_max(inputs.recipe.output_len, cuts);
            inputs.recipe.output_count = u32::try_from(count).unwrap_or(u32::MAX);
        }
        self.jobs.reserved = inputs.recipe.output_end();
        self.jobs.busy.extend(inputs.recipe.inputs.iter().map(|(_, id)| *id));
        Some(inputs)
    }

    /// Has a flush give tombstones files of their own, if that is worth it and there are slots enough. Returns how many
    /// files more it may then have.
    fn part(&mut self, inputs: &mut JobInputs, slots_free: u64) -> u64 {
        let keeps_deletes = inputs.recipe.kind == JobKind::Flush && !inputs.recipe.bottommost;
        let deletes = inputs.memtables.iter().map(|table| table.deletes()).sum();
        let parted_from = self.parted_from(deletes);
        let room = self.room(JobKind::Flush, slots_free);
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
        let version = self.versions.current().clone();
        let file = |(level, id): &(u8, FileId)| {
            version.file(*level, *id).map(|f| (*level, f.clone())).ok_or_else(|| missing(id))
        };
        Ok(JobInputs {
            memtables: recipe.memtables.iter().map(table).collect::<Result<_>>()?,
            files: recipe.inputs.iter().map(file).collect::<Result<_>>()?,
            recipe: recipe.clone(),
        })
    }

    /// Slots that must stay free so that what is in memory can be flushed and then compacted, whatever a
    /// full pool is to give back.
    #[must_use]
    pub fn slots_needed(&self) -> u64 {
        let estimates = self.jobs.estimates;
        let picker = Picker::new(&self.config, self.version(), &self.jobs.busy);
        let flush = Outgoing::of_len(self.config.memtable_len);
        let flush = flush.slots(self.config.sst_len, 0, estimates.flush);
        flush.saturating_add(picker.slots_needed(estimates.compaction))
    }

    /// Memory of all MemTables that are not flushed, in bytes, and how many there are.
    #[must_use]
    pub fn unflushed(&self) -> (u64, u64) {
        (self.memtables_len(), self.sealed.len() as u64 + 1)
    }

    /// Slots to be set aside for the job's files where `slots_free` are there for it: as many as such jobs take
    /// usually, or more after [`Self::job_ran_out_of_slots`].
    #[must_use]
    pub fn job_slots(&mut self, inputs: &JobInputs, slots_free: u64) -> u64 {
        let room = self.room(inputs.recipe.kind, slots_free);
        inputs.slots(room)
    }

    /// What a job of this kind may take of so many slots.
    fn room(&mut self, kind: JobKind, free: u64) -> Room {
        let needed = self.jobs.needed.unwrap_or_else(|| self.slots_needed());
        self.jobs.needed = Some(needed);
        let (memory, tables) = self.unflushed();
        let flushes = Outgoing::of_len(memory).slots_usual(self.config.sst_len, tables);
        let kept = if kind == JobKind::Flush { 0 } else { needed.saturating_add(flushes) };
        Room { free, kept, estimate: self.jobs.estimates.of(kind) }
    }

    /// A job of this kind needed more slots than the `given`, fewer than [`JobInputs::slots_max`]: until the edit of
    /// another is applied, each is given as many as are free, up to those that it can take. None is begun with less
    /// than twice the usual, nor with hardly more than was not enough, unless that is all that it can take.
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
        self.jobs.idle_at = None;
    }

    /// File numbers below this one are taken: by an edit in the log that is not applied here yet.
    pub fn reserve_files(&mut self, next_file: u64) {
        self.jobs.reserved = self.jobs.reserved.max(next_file);
    }

    /// The next file number that a job would be given.
    #[must_use]
    pub fn files_reserved(&self) -> u64 {
        self.jobs.reserved.max(self.next_file)
    }

    /// The edit that installs a job's result. `number` follows that of the last edit *appended to the
    /// log*, which need not be applied here yet.
    ///
    /// # Errors
    /// Invalid input when the flush of the MemTable is not under way; what [`Edit::validate`] reports.
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
                    position: sealed.position,
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
            flushed,
            next_file: self.next_file.max(recipe.output_end()),
            floor: (recipe.floor > SequenceNumber::ZERO).then_some(recipe.floor),
            recipe: Some(recipe),
        };
        edit.validate()?;
        Ok(edit)
    }

    /// Applies an edit: installs its version, drops flushed MemTables, frees what its job had taken. On
    /// an error nothing changes.
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
            self.flushed = flushed;
            self.jobs.flushing.retain(|memtable| *memtable > flushed.memtable);
            if fast_forward {
                self.active = Arc::new(MemTable::new(flushed.memtable.next()));
                self.last_sequence = flushed.sequence;
                self.due.came_in_files(flushed.sequence);
            }
        }
        for (_, id) in &edit.removed {
            self.jobs.busy.remove(id);
        }
        self.jobs.idle_at = None;
        self.jobs.estimates.ended_well(edit.kind);
        self.jobs.needed = None;
        self.last_edit = edit.number;
        // Jobs end in another order than they began in: an edit may reserve fewer than one before it.
        self.next_file = self.next_file.max(edit.next_file);
        self.floor_in_edits = self.floor_in_edits.max(edit.floor.unwrap_or_default());
        self.floor = self.floor.max(self.floor_in_edits);
        // A recipe's time is that of a record before the edit's, which a replica that opens may not have read.
        self.pass_time(edit.recipe.as_ref().map_or(0, |recipe| recipe.now_ms));
        self.note_loaded(edit);
        self.due.look_at(self.versions.current(), self.now_ms);
        self.reshape();
        if !matches!(edit.kind, JobKind::TrivialMove | JobKind::Load) {
            self.readers.gave_up();
        }
        Ok(())
    }

    /// Checks what a flush claims to have flushed. Returns whether this tree has yet to replay it: it is
    /// being opened and nothing was written since.
    fn check_flushed(&self, number: u64, flushed: &Flushed) -> Result<bool> {
        let (known, fresh) = match self.sealed.front() {
            Some(oldest) => {
                let claimed = (flushed.memtable, flushed.position, flushed.sequence);
                ((oldest.table.id(), oldest.position, oldest.last_sequence) == claimed, false)
            }
            None => {
                let ahead = self.active.id() <= flushed.memtable
                    && flushed.sequence >= self.last_sequence
                    && flushed.position >= self.flushed.position
                    && flushed.memtable.get() < u64::MAX;
                (self.opening && ahead, true)
            }
        };
        if known {
            return Ok(fresh);
        }
        Err(Error::corruption(format!(
            "edit {number}: flushed {} up to {} and {}, but the oldest here was not sealed so",
            flushed.memtable, flushed.position, flushed.sequence
        )))
    }

    // ----- what there is ------------------------------------------------------------------------

    /// The tree as it is now, for reads.
    #[must_use]
    pub fn view(&self) -> ReadView {
        let point = self.read_point();
        ReadView { state: self.state.clone(), point }
    }

    /// The same for any thread, which no budget of readers ends: whoever takes one sees to it that it goes.
    ///
    /// # Panics
    /// Never: the state that the tree is in is not ended.
    #[must_use]
    pub fn shared_view(&self) -> SharedView {
        let point = self.read_point();
        let pin = self.state.pin().expect("the tree's own state is not ended");
        SharedView { pin, point, earlier_floor: point.floor }
    }

    const fn read_point(&self) -> ReadPoint {
        ReadPoint { sequence: self.last_sequence, floor: self.floor, now_ms: self.now_ms }
    }

    /// Ends the oldest views and iterators that keep what the tree gave up beyond `budget`. To be called
    /// after edits and now and then, before [`Tree::obsolete_files`]; ages count from the first call
    /// after the edit.
    pub fn limit_readers(&mut self, now_ms: u64, budget: PinBudget) {
        self.readers.limit(now_ms, budget);
    }

    /// Who reads, and what that costs.
    #[must_use]
    pub fn readers(&self, now_ms: u64) -> ReaderStats {
        self.readers.stats(&self.state, self.flushed.memtable, now_ms)
    }

    /// Its configuration, with the codecs and limits that it has now.
    #[must_use]
    pub const fn config(&self) -> &TreeConfig {
        &self.config
    }

    /// Takes other codecs, for jobs that begin from now on. Only who begins jobs has to; nothing remembers it beyond
    /// this tree's life.
    ///
    /// # Errors
    /// Invalid input for a level out of its limits; nothing has changed then.
    pub fn set_codecs(&mut self, codecs: Codecs) -> Result<()> {
        codecs.check()?;
        self.config.sst.compression = codecs.upper;
        self.config.bottom_compression = codecs.bottom;
        self.look_for_jobs_anew();
        Ok(())
    }

    /// Takes other limits, from the next write and the next job on: a MemTable that is too long for a smaller one is
    /// sealed with the next write to it. Only who seals MemTables and begins jobs has to; nothing remembers it beyond
    /// this tree's life.
    ///
    /// # Errors
    /// Invalid input that names the limit; nothing has changed then.
    pub fn set_write_limits(&mut self, limits: WriteLimits) -> Result<()> {
        limits.check()?;
        let WriteLimits { memtable_len, l0_trigger, l0_slowdown, l0_stop } = limits;
        if memtable_len < self.config.memtable_len {
            let before = self.jobs.longer.map_or(0, |(_, len)| len);
            self.jobs.longer = Some((self.active.id(), before.max(self.config.memtable_len)));
        }
        self.config =
            TreeConfig { memtable_len, l0_trigger, l0_slowdown, l0_stop, ..self.config.clone() };
        self.look_for_jobs_anew();
        Ok(())
    }

    /// What had no room, or had nothing to gain, may be begun now.
    const fn look_for_jobs_anew(&mut self) {
        (self.jobs.idle_at, self.jobs.needed) = (None, None);
    }

    /// The current version.
    #[must_use]
    pub const fn version(&self) -> &Arc<Version> {
        self.versions.current()
    }

    /// The MemTable being filled.
    #[must_use]
    pub fn active_id(&self) -> MemTableId {
        self.active.id()
    }

    /// Memory of the MemTable being filled, in bytes.
    #[must_use]
    pub fn active_len(&self) -> u64 {
        self.active.memory_used() as u64
    }

    /// Bytes charged for all MemTables, sealed ones included.
    #[must_use]
    pub fn memtables_len(&self) -> u64 {
        let sealed = self.sealed.iter().map(|sealed| sealed.table.memory_used() as u64);
        sealed.sum::<u64>() + self.active_len()
    }

    /// Bytes of memory that the tree takes, by what for.
    #[must_use]
    pub fn memory(&self) -> TreeMemory {
        let sealed = self.sealed.iter().map(|sealed| sealed.table.allocated() as u64);
        let leaving = self.leaving_files().iter().map(|file| file.memory_used() as u64);
        TreeMemory {
            active: self.active.allocated() as u64,
            sealed: sealed.sum(),
            kept: self.kept.iter().map(|table| table.bytes() as u64).sum(),
            files: self.version().memory_used() as u64 + leaving.sum::<u64>(),
        }
    }

    /// Whether the MemTable being filled holds nothing.
    #[must_use]
    pub fn active_is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Whether a seal and its flush would make something last that no flush or edit has yet: what the MemTable being
    /// filled holds, or a clear, which is no entry but a number in edits.
    #[must_use]
    pub fn has_unsealed(&self) -> bool {
        !self.active_is_empty() || self.floor > self.floor_in_edits.max(self.sealed_sequence())
    }

    /// MemTables that wait for their flush to be applied.
    #[must_use]
    pub fn sealed_count(&self) -> usize {
        self.sealed.len()
    }

    /// The last write before the last seal.
    #[must_use]
    pub fn sealed_sequence(&self) -> SequenceNumber {
        self.sealed.back().map_or(self.flushed.sequence, |sealed| sealed.last_sequence)
    }

    /// The last applied write.
    #[must_use]
    pub const fn last_sequence(&self) -> SequenceNumber {
        self.last_sequence
    }

    /// The number of the last applied edit.
    #[must_use]
    pub const fn last_edit(&self) -> u64 {
        self.last_edit
    }

    /// User entries with a smaller sequence number are invisible.
    #[must_use]
    pub const fn floor(&self) -> SequenceNumber {
        self.floor
    }

    /// What is in files; the log is needed from its position on.
    #[must_use]
    pub const fn flushed(&self) -> Flushed {
        self.flushed
    }

    /// Size of each level, from L0 on.
    #[must_use]
    pub fn level_stats(&self) -> Vec<LevelStats> {
        let version = self.version();
        let stats = |level| LevelStats {
            files: version.level(level).len() as u64,
            bytes: version.level_len(level),
        };
        (0..version.level_count()).map(stats).collect()
    }

    /// Bytes that compactions have yet to rewrite until every level is within its aim; those of jobs under way count
    /// until their edits are applied. Costs a look at the lengths of each level.
    #[must_use]
    pub fn compaction_debt(&self) -> u64 {
        Picker::new(&self.config, self.version(), &BTreeSet::new()).debt()
    }

    /// Files that left the tree and that no view, iterator or job can read any more; each is reported
    /// once. Their slots are free to be used again.
    pub fn obsolete_files(&mut self) -> Vec<FileId> {
        self.versions.obsolete_files()
    }

    /// Files that left the tree but are still being read.
    #[must_use]
    pub fn leaving_files(&self) -> &[Arc<FileMeta>] {
        self.versions.leaving()
    }

    /// Whether writers may go on.
    #[must_use]
    pub fn write_state(&self) -> WriteState {
        let sealed = self.sealed.len() as u32;
        let l0 = self.version().runs().len() as u32;
        let (sealed_max, config) = (self.config.sealed_max, &self.config);
        if sealed >= sealed_max {
            WriteState::Stop(Pressure::SealedMemTables(sealed))
        } else if l0 >= config.l0_stop {
            WriteState::Stop(Pressure::Level0Runs(l0))
        } else if let Some(over) = l0.checked_sub(config.l0_slowdown) {
            let way = config.l0_stop - config.l0_slowdown;
            WriteState::Slow(u64::from(over) * 1000 / u64::from(way.max(1)))
        } else {
            WriteState::Ok
        }
    }
}

/// The oldest snapshot of which jobs are to know.
fn oldest_of(context: &JobContext<'_>) -> SequenceNumber {
    context.snapshots.iter().min().copied().unwrap_or(SequenceNumber::MAX)
}

fn state_of(active: &Arc<MemTable>, sealed: &VecDeque<Sealed>, versions: &Versions) -> Rc<State> {
    let older = sealed.iter().rev().map(|sealed| sealed.table.clone());
    let memtables = core::iter::once(active.clone()).chain(older).collect();
    State::new(Shape { memtables, version: versions.current().clone() })
}

/// Refuses operations that the tree has no rule for.
fn check_operation(kind: EntryKind, key: &[u8], value: &[u8]) -> Result<()> {
    match kind {
        EntryKind::Put | EntryKind::Delete if !key.is_empty() => Ok(()),
        EntryKind::ExpiringPut if !key.is_empty() && value.len() >= EXPIRY_LEN => Ok(()),
        EntryKind::ExpiringPut if !key.is_empty() => Err(Error::invalid(format!(
            "expiring put of {} bytes, its expiry alone has {EXPIRY_LEN}",
            value.len()
        ))),
        EntryKind::Merge if !key.is_empty() => Operand::decode(value).map(|_| ()),
        EntryKind::Clear if key == [Keyspace::User as u8] => Ok(()),
        EntryKind::Clear => Err(Error::unsupported("only the user keyspace can be cleared")),
        EntryKind::RangeDelete => check_range(key, value),
        kind if key.is_empty() => {
            Err(Error::invalid(format!("operation {kind:?} has no key, not even a keyspace")))
        }
        kind => Err(Error::unsupported(format!("operation {kind:?} is reserved"))),
    }
}

/// Notes when an entry that is applied expires, if it does.
fn note_expiry(due: &mut Due, kind: EntryKind, value: &[u8], now_ms: u64) {
    if kind == EntryKind::ExpiringPut
        && let Some(expiry) = value.first_chunk::<EXPIRY_LEN>()
    {
        due.note(u64::from_le_bytes(*expiry), now_ms);
    }
}

fn check_last(first: SequenceNumber, count: u64) -> Result<()> {
    if first.get().saturating_add(count) <= SequenceNumber::MAX.get() {
        return Ok(());
    }
    Err(Error::limit(format!("{count} writes from {first} on pass {}", SequenceNumber::MAX)))
}
