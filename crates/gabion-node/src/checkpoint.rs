//! A checkpoint: a new pool that holds the state in a view of a replica. Its log begins anew. Of a
//! backup, the same is made once for each member of a group.
//!
//! ```text
//!   view ─┬─ files ──── read, compared with the edit's checksums ─► slots of the new pool ─┐
//!         └─ MemTables ─ flushed by recipes of the new tree ──────► its L0 ────────────────┤
//!                                       superblock, last ◄── first checkpoint: state, tree ┘
//! ```
//!
//! Nothing of the source changes and nobody waits. The view keeps its files, and ordinary flushes
//! write its MemTables into the *new* pool. Sealing and flushing the source first would use up log
//! and slots and hold up writers, which a full or failed store cannot afford. Copying its log would
//! bring its positions, terms and watermarks along.
//!
//! The copy is a group of one, or one of the founders of a new group, under the same group number:
//! that is the lineage in every block of its files, and blocks are never rewritten. Its pool has a
//! name of its own, and its log begins at 0 in a later term, or behind segments that keep values:
//! these are files, and copied as such. Among several members it begins behind a segment that none
//! has, so that whoever comes with nothing copies the files.
//! Files keep number, term and checksums. Values files are copied as SSTs are;
//! what is in memory goes to files with its values in place.

use crate::files::LocalStore;
use crate::ring::RingState;
use crate::state::{CopyMark, ReplicaState, Snapshot};
use crate::work::{self, JobOrder};
use crate::{CompactionMode, GroupConfig};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::units::SLOT_LEN;
use gabion_base::{Error, ErrorKind, FileKind, Frontier, LogPosition, ReplicaId, Result, Term};
use gabion_engine::{FileMeta, FileSource, JobContext, JobInputs, ReadView, Tree};
use gabion_log::{Anchor, Span};
use gabion_media::MediumHandle;
use gabion_pool::{Creation, FilePlacement, PoolConfig};
use gabion_replication::GroupView;

/// The only member of a copy that is a group of one.
const ME: ReplicaId = ReplicaId(1);

/// The source of a checkpoint.
pub struct Origin {
    /// The replica at one moment.
    pub view: ReadView,
    /// The group that it belongs to.
    pub group: GroupConfig,
    /// Its view then. The copy begins in a later term, so that nothing of it is taken for the
    /// source's.
    pub view_then: GroupView,
}

/// The replica that a checkpoint becomes.
#[derive(Clone, Debug)]
pub struct Member {
    group: GroupConfig,
    view: GroupView,
    me: ReplicaId,
}

impl Member {
    /// The configuration of its group.
    #[must_use]
    pub const fn group(&self) -> &GroupConfig {
        &self.group
    }
}

/// The contents of a checkpoint, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Files that were copied.
    pub files: u64,
    /// Their bytes, in whole blocks.
    pub file_bytes: u64,
    /// Files that were made of MemTables.
    pub flushed_files: u64,
    /// Their bytes, in whole blocks.
    pub flushed_bytes: u64,
    /// The last write that it holds.
    pub sequence: u64,
}

impl Origin {
    /// The configuration of the copy: that of the source, for one replica.
    #[must_use]
    pub fn copied_group(&self) -> GroupConfig {
        let (founders, compaction) = (alloc::vec![ME], CompactionMode::Primary);
        GroupConfig { founders, compaction, ..self.group.clone() }
    }

    /// The first view of the copy: the source's term, and a later configuration if it had others.
    fn copied_view(&self) -> GroupView {
        let mut view = self.copied_group().founding_view();
        view.term = self.view_then.term;
        view.config = match self.view_then.others(ME).next() {
            Some(_) => self.view_then.config.next(),
            None => self.view_then.config,
        };
        view
    }

    /// A copy that is a group of one.
    fn alone(&self) -> Member {
        Member { group: self.copied_group(), view: self.copied_view(), me: ME }
    }

    /// A copy that founds a group again, as `me`. All founders have the same, and their group
    /// begins as one does that never had a controller, in a later term than the origin's.
    ///
    /// # Errors
    /// Invalid input for a configuration under which the origin's files or log could not be read,
    /// a member that is no founder, or a number of members that no group of those can need.
    pub fn founder(&self, group: GroupConfig, members_min: u8, me: ReplicaId) -> Result<Member> {
        let same = (self.group.group, self.group.segment_len, self.group.tree.levels);
        let wanted = (group.group, group.segment_len, group.tree.levels);
        if same != wanted {
            return Err(Error::invalid(format!(
                "a group {} with segments of {} bytes and {} levels is made of {} with {} and {}",
                wanted.0, wanted.1, wanted.2, same.0, same.1, same.2
            )));
        }
        let count = group.founders.len();
        if !group.founders.contains(&me) || !(1..=count).contains(&usize::from(members_min)) {
            return Err(Error::invalid(format!(
                "{me} of {count} founders, of whom {members_min} take writes"
            )));
        }
        let view = GroupView { members_min, term: self.view_then.term, ..group.founding_view() };
        Ok(Member { group, view, me })
    }

    /// Bytes of the files that are to be copied.
    ///
    /// # Errors
    /// Snapshot too old, of a view that was ended.
    pub fn file_bytes(&self) -> Result<u64> {
        let pin = self.view.pin()?;
        Ok(pin.version().described().map(|file| file.rounded_len()).sum())
    }
}

/// Writes a checkpoint into an empty medium and takes all of its length. `source` has the files of
/// the view; it must wait for nothing but `medium`. `progress` gets the bytes of each copied file.
///
/// # Durability
/// Survives a power cut when it returns. Before that, the medium holds no pool, or the whole one
/// once all else is flushed. The whole one may also be there after an error.
///
/// # Errors
/// Corruption, naming file and chunk, when a file is not what its edit says; no space when the view
/// needs more slots than the medium has; invalid input when the medium holds a pool; the media's.
pub async fn write(
    medium: &MediumHandle,
    pool_id: [u8; 16],
    origin: &Origin,
    source: &impl FileSource,
    progress: &mut dyn FnMut(u64),
) -> Result<Copied> {
    write_member(medium, pool_id, origin, &origin.alone(), source, progress).await
}

/// As [`write()`], of a replica of a group of several.
///
/// # Durability
/// As [`write()`].
///
/// # Errors
/// As [`write()`].
pub async fn write_member(
    medium: &MediumHandle,
    pool_id: [u8; 16],
    origin: &Origin,
    member: &Member,
    source: &impl FileSource,
    progress: &mut dyn FnMut(u64),
) -> Result<Copied> {
    let group = &member.group;
    group.validate()?;
    let (number, len) = (group.group, medium.properties().len);
    let config = PoolConfig { pool_id, group: number, len, region_id: 1 };
    let mut tree = Tree::fork(&origin.view, group.tree.clone(), number)?;
    let creation = Creation::begin(medium, &config).await?;
    let geometry = creation.pool().region().clone();
    let store = LocalStore { medium: medium.clone(), geometry, pool_id, group: number };
    let mut target = Target { creation, store };
    target.check_room(&tree)?;
    let mut copied = Copied { sequence: tree.last_sequence().get(), ..Copied::default() };
    let files: Vec<_> = tree.version().described().cloned().collect();
    for meta in &files {
        target.copy(meta, source).await?;
        copied.files += 1;
        copied.file_bytes += meta.rounded_len();
        progress(meta.rounded_len());
    }
    target.flush_memtables(&mut tree, origin, &mut copied).await?;
    target.read_back(&tree).await?;
    let begin = log_begin(group, &tree);
    tree.begin_log(Frontier::of(begin));
    let state = first_state(origin, member, begin);
    let snapshot = Snapshot::encode(group, &state, &tree.snapshot());
    target.creation.finish(medium, &snapshot).await?;
    Ok(copied)
}

/// The begin of the copy's log: 0, or behind the segments of the source's log that keep values,
/// whose numbers no segment of its own may have. That of a group of several which has writes begins
/// behind a segment that nobody has: a member that comes with nothing has to copy the files, which
/// a log from 0 on would have it take for empty.
fn log_begin(group: &GroupConfig, tree: &Tree) -> LogPosition {
    let files = tree.version().values_files().map(|meta| meta.id);
    let segments = files.filter(|file| file.kind == FileKind::LogSegment);
    let behind = segments.map(|file| (file.ordinal() + 1) * group.segment_len).max();
    let has_writes = group.founders.len() > 1 && tree.last_sequence().get() > 0;
    let least = if has_writes { group.segment_len } else { 0 };
    LogPosition(behind.unwrap_or(least))
}

/// The durable state of the copy before its first start.
fn first_state(origin: &Origin, member: &Member, begin: LogPosition) -> ReplicaState {
    // A log that begins elsewhere than at 0 is trimmed up to there, of records of some term.
    let term = match begin {
        LogPosition::ZERO => Term::ZERO,
        _ => origin.view_then.term,
    };
    ReplicaState {
        me: member.me,
        view: member.view.clone(),
        view_waits: false,
        incarnation: 0,
        session: 0,
        spans: alloc::vec![Span { term, start: LogPosition::ZERO, end: None }],
        trimmed: Anchor { position: begin, ..Anchor::START },
        // Expired values stay gone, whatever clock the copy meets.
        trimmed_ms: origin.view.now_ms(),
        durable: begin,
        ring: RingState::new(),
        copy: CopyMark::None,
    }
}

/// The pool that is being made.
struct Target {
    creation: Creation,
    store: LocalStore,
}

impl Target {
    /// Checks that all fits, before anything is written.
    fn check_room(&self, tree: &Tree) -> Result<()> {
        let files = tree.version().slots();
        let memory = tree.memtables_len().div_ceil(SLOT_LEN);
        let total = u64::from(self.creation.pool().counts().free);
        if files + memory <= total {
            return Ok(());
        }
        Err(Error::no_space(format!(
            "the copy takes {} slots of 2 MiB, its pool has {total}",
            files + memory
        )))
    }

    async fn copy(&mut self, meta: &FileMeta, source: &impl FileSource) -> Result<()> {
        let bytes = source.read(meta.id, 0, meta.rounded_len() as usize).await?;
        meta.verify(&bytes).inspect_err(|error| source.note_damage(meta.id, error))?;
        let slots = self.creation.allocate(meta.rounded_len().div_ceil(SLOT_LEN) as u32)?;
        let placement = FilePlacement {
            file: meta.id,
            term: meta.term,
            len: meta.rounded_len(),
            checksum: meta.checksum,
            slots,
        };
        let store = &self.store;
        let (geometry, crcs) = (&store.geometry, &meta.chunk_crcs);
        gabion_pool::write_file(
            &store.medium,
            geometry,
            store.pool_id,
            store.group,
            &placement,
            &bytes,
            crcs,
        )
        .await?;
        self.creation.add_file(placement)
    }

    async fn flush_memtables(
        &mut self,
        tree: &mut Tree,
        origin: &Origin,
        copied: &mut Copied,
    ) -> Result<()> {
        while tree.sealed_count() > 0 {
            let slots_free = u64::from(self.creation.pool().counts().free);
            let term = origin.view_then.term;
            let context = JobContext { term, slots_free, urgent: false, collects: false };
            let Some(inputs) = tree.next_flush(&context) else {
                return Err(Error::no_space(format!(
                    "what is in memory finds no room: {slots_free} slots of 2 MiB are left"
                )));
            };
            let placements = self.run_flush(tree, inputs).await?;
            copied.flushed_files += placements.len() as u64;
            copied.flushed_bytes += placements.iter().map(|placement| placement.len).sum::<u64>();
            for placement in placements {
                self.creation.add_file(placement)?;
            }
        }
        Ok(())
    }

    /// Flushes the oldest MemTable and applies the edit of it. Returns where its files lie.
    async fn run_flush(
        &mut self,
        tree: &mut Tree,
        inputs: JobInputs,
    ) -> Result<Vec<FilePlacement>> {
        let free = self.creation.pool().counts().free;
        let wanted = inputs.slots_max().min(u64::from(free)) as u32;
        let slots = self.creation.allocate(wanted)?;
        let group = self.store.group;
        let order = JobOrder { inputs, group, slots, files: BTreeMap::new(), is_bounded: false };
        let mut placements = Vec::new();
        let built = |file: work::BuiltFile| placements.push((*file.placement).clone());
        let done =
            work::run_job(order, &self.store, built, async || Ok(())).await.map_err(|failed| {
                let error = failed.error;
                match error.kind() {
                    ErrorKind::LimitExceeded => Error::no_space(error.message()),
                    _ => error,
                }
            })?;
        self.creation.release(&done.unused)?;
        let edit = tree.finish_job(done.output, tree.last_edit() + 1)?;
        tree.apply_edit(&edit)?;
        Ok(placements)
    }

    /// Compares the written files with headers and checksums, before the copy counts.
    async fn read_back(&self, tree: &Tree) -> Result<()> {
        let store = &self.store;
        store.medium.flush().await?;
        for meta in tree.version().described() {
            let placement = self.creation.pool().placement(meta.id);
            let placement = placement
                .ok_or_else(|| Error::not_found(format!("{} has no place in the copy", meta.id)))?;
            let (medium, geometry) = (&store.medium, &store.geometry);
            let read =
                gabion_pool::verify_file(medium, geometry, store.pool_id, store.group, &placement);
            read.await.map_err(|error| error.within("the copy, read back"))?;
        }
        Ok(())
    }
}
