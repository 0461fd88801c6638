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
//! Every replica that has applied the log up to the same position holds the same MemTables and the
//! same version. Only the primary asks for jobs; what it has reserved and marked busy is no part of
//! that state. A tree opens from a snapshot and the edits after it, then replays the log from
//! [`Tree::flushed`] on.
//!
//! Group time comes with the records ([`Tree::pass_time`]); views and recipes are judged by it. A
//! fork begins at 0, so that its flushes drop nothing that has expired: that is left to its own
//! compactions.
//!
//! Clearing the user keyspace is a number, not entries: the *floor*. What is older is invisible and
//! goes at the next compaction, or at once where whole files are older. Range deletes go into the
//! MemTable, which is another handle then, and so another shape for readers
//! ([`crate::range_delete`]).
//!
//! Snapshot bytes:
//!
//! ```text
//!  0 u16 version = 2, 3 with values files | 6 zero bytes
//!  8 u64 group    16 u64 last edit    24 u64 next file
//! 32 u64 floor   40 u64 flushed MemTable   48 u64 flushed sequence number
//! 56 flushed Frontier | Version … | u32 CRC32C of all before
//! ```

mod deletes;
mod fork;
mod invariants;
mod jobs;
mod keys;
mod load;
mod merging;
mod places;
mod range;
mod status;
mod writes;

pub use keys::KeyEstimate;

use crate::config::TreeConfig;
use crate::edit::Flushed;
use crate::expiry::Due;
use crate::job::Estimates;
use crate::memtable::{KeptTable, MemTable};
use crate::picker::WhyIdle;
use crate::places::{KeptSegments, LogLayout, Places};
use crate::readers::{Kept, Readers, Shape};
use crate::version::{Version, Versions};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::OnceCell;
use gabion_base::codec::{Put, Reader};
use gabion_base::crc::crc32c;
use gabion_base::{Error, FileId, Frontier, GroupId, MemTableId, Result, SequenceNumber, Term};

pub(crate) use deletes::PARTS;
pub use load::Loaded;

const SNAPSHOT_VERSION: u16 = 2;
/// Of a tree that has values files.
const SNAPSHOT_VERSION_VALUES: u16 = 3;
const SNAPSHOT_HEADER_LEN: usize = 56 + Frontier::ENCODED_LEN;

/// A MemTable that is complete, and where the log goes on after it.
struct Sealed {
    table: Arc<MemTable>,
    frontier: Frontier,
    last_sequence: SequenceNumber,
    places: Arc<Places>,
    /// The segments that keep values of it, once that was asked.
    kept: OnceCell<KeptSegments>,
}

/// What a job may use, and what it must respect.
#[derive(Clone, Copy, Debug)]
pub struct JobContext {
    /// The primary's term.
    pub term: Term,
    /// Free slots at the replica that has the fewest: a job that may need more is not begun.
    pub slots_free: u64,
    /// Room is short: levels are compacted that are not over their aims.
    pub urgent: bool,
    /// Whether values may be copied out of values files with much garbage. They always may while
    /// room is short.
    pub collects: bool,
}

/// Whether writers may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteState {
    /// At full speed.
    Ok,
    /// Slower: compactions of L0 fall behind. How far L0 is on its way from `l0_slowdown` to
    /// `l0_stop` runs, in thousandths.
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
    /// Descriptions of the files of the current version, and of those that left it and may still be
    /// read.
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
    now: Kept,
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
    /// How its log is cut into files, where it has one that may keep values.
    layout: Option<LogLayout>,
    /// Of the active MemTable.
    places: Places,
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
    /// MemTables up to this one may be so long, as they were begun when [`crate::WriteLimits`] were
    /// others.
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
    /// No compaction was found, and nothing has changed since.
    idle: Option<Idle>,
}

/// That no compaction was found.
struct Idle {
    /// The free slots and the urgency with which it was looked for, and whether values might be
    /// copied.
    asked: (u64, bool, bool),
    /// What expires by then may change that.
    until_ms: Option<u64>,
    why: WhyIdle,
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
            frontier: Frontier::ZERO,
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
        active.count_large_from(config.large_values);
        let now = kept_of(&active, &VecDeque::new(), &versions);
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
            now,
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
            layout: None,
            places: Places::beginning_at(flushed.frontier.only().get()),
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
        let is_known = (SNAPSHOT_VERSION..=SNAPSHOT_VERSION_VALUES).contains(&version);
        if !is_known || reader.array::<6>()? != [0; 6] {
            return Err(Error::unsupported(format!(
                "tree snapshot has version {version}, this build knows {SNAPSHOT_VERSION} and \
                 {SNAPSHOT_VERSION_VALUES}"
            )));
        }
        let is_with_values = version == SNAPSHOT_VERSION_VALUES;
        let of_group = GroupId(reader.u64()?);
        let (last_edit, next_file, floor) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let flushed = Flushed {
            memtable: MemTableId(reader.u64()?),
            sequence: SequenceNumber(reader.u64()?),
            frontier: Frontier::decode(&mut reader, "tree snapshot")?,
        };
        let version = Version::decode(&mut reader)?;
        reader.finish()?;
        let wrong = if is_with_values != (version.values_stats().files > 0) {
            "of another version than its values files ask for".into()
        } else if of_group != group {
            format!("is of group {of_group}, not {group}")
        } else if version.level_count() != config.levels {
            format!("has {} levels, the group {}", version.level_count(), config.levels)
        } else if version.files_end() > next_file {
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

    /// The state after the last applied edit: the same bytes at every replica. MemTables are no
    /// part of it; the log from [`Tree::flushed`] on brings them back.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u16(match self.version().values_stats().files {
            0 => SNAPSHOT_VERSION,
            _ => SNAPSHOT_VERSION_VALUES,
        });
        out.put_bytes(&[0; 6]);
        out.put_u64(self.group.get());
        out.put_u64(self.last_edit);
        out.put_u64(self.next_file);
        // Not the floor of the last write: its record may yet be cut off the log.
        out.put_u64(self.floor_in_edits.get());
        out.put_u64(self.flushed.memtable.get());
        out.put_u64(self.flushed.sequence.get());
        self.flushed.frontier.encode(&mut out);
        self.versions.current().encode(&mut out);
        let crc = crc32c(&out);
        out.put_u32(crc);
        out
    }

    /// Counts up whenever readers are given another state: MemTables, their range deletes, files,
    /// or what was cleared have changed.
    #[must_use]
    pub const fn shape_number(&self) -> u64 {
        self.shape_number
    }

    fn reshape(&mut self) {
        self.shape_number += 1;
        let now = kept_of(&self.active, &self.sealed, &self.versions);
        self.readers.replaced(core::mem::replace(&mut self.now, now));
    }

    /// Has files looked up anew whose readers were kept beside them, after the budget of open files
    /// changed. Who reads meanwhile keeps what it has.
    pub fn close_files(&mut self) {
        self.versions.close_files();
        self.reshape();
    }
}

fn kept_of(active: &Arc<MemTable>, sealed: &VecDeque<Sealed>, versions: &Versions) -> Kept {
    let older = sealed.iter().rev().map(|sealed| sealed.table.clone());
    let memtables = core::iter::once(active.clone()).chain(older).collect();
    Kept::new(Shape { memtables, version: versions.current().clone() })
}
