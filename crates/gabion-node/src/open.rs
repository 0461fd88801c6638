//! Creating a replica in an empty pool, and opening one from its pool and ring alone.
//!
//! ```text
//!   superblock ─► placement log ─► group, counters, files, tree ─┐
//!   ring ∪ segments ─► records from the last trim on ────────────┴─► Node
//! ```

use crate::files::{LocalStore, PoolSegments};
use crate::protocol::{begin_protocol, local_state};
use crate::ring::{Fate, RingFound, RingLoss, RingState};
use crate::state::{CopyMark, ReplicaState, Snapshot, opaque};
use crate::{GroupConfig, Node, NodeOptions};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use gabion_base::{ConfigNumber, Error, FileId, FileKind, LogPosition, ReplicaId, Result, Term};
use gabion_engine::{Edit, Tree};
use gabion_log::{Anchor, Log, LogConfig, RecoveryInput, RecoveryReport, Rot, Span};
use gabion_media::{MediumHandle, MemoryRegion};
use gabion_pool::{Drained, Pool, PoolConfig, Recovered, Trust};
use gabion_replication::{GroupView, LocalState, LogKind, Lost};

/// Makes the pool of a new replica, whole or not at all: opening refuses an interrupted creation.
///
/// # Durability
/// Survives a power cut when it returns.
///
/// # Errors
/// Invalid input for a configuration that cannot work or a medium that is too small; the medium's.
pub async fn create(
    medium: &MediumHandle,
    group: &GroupConfig,
    me: ReplicaId,
    pool_id: [u8; 16],
) -> Result<()> {
    check_founder(group, me)?;
    create_with(medium, group, group.founding_view(), me, pool_id).await
}

/// As [`create`], for a replica that joins a group which others have begun: it knows of no view and
/// takes part in nothing before it is told one that has it. It need be none of the founders.
///
/// # Durability
/// As [`create`].
///
/// # Errors
/// As [`create`].
pub async fn create_joining(
    medium: &MediumHandle,
    group: &GroupConfig,
    me: ReplicaId,
    pool_id: [u8; 16],
) -> Result<()> {
    let (config, log) = (ConfigNumber::ZERO, LogKind::Shared);
    let view = GroupView { config, log, ..group.founding_view() };
    create_with(medium, group, view, me, pool_id).await
}

/// As [`create`], for a group that takes writes with `members_min` full members.
///
/// # Durability
/// As [`create`].
///
/// # Errors
/// As [`create`]; also for fewer than one member, and for more than there are.
pub async fn create_founder(
    medium: &MediumHandle,
    group: &GroupConfig,
    members_min: u8,
    me: ReplicaId,
    pool_id: [u8; 16],
) -> Result<()> {
    let count = group.founders.len();
    if members_min == 0 || usize::from(members_min) > count {
        return Err(Error::invalid(format!(
            "{members_min} members take writes in a group of {count}: 1 to {count} are possible"
        )));
    }
    check_founder(group, me)?;
    let view = GroupView { members_min, ..group.founding_view() };
    create_with(medium, group, view, me, pool_id).await
}

fn check_founder(group: &GroupConfig, me: ReplicaId) -> Result<()> {
    if group.founders.contains(&me) {
        return Ok(());
    }
    Err(Error::invalid(format!("{me} is no member of {}", group.group)))
}

pub(crate) async fn create_with(
    medium: &MediumHandle,
    group: &GroupConfig,
    view: GroupView,
    me: ReplicaId,
    pool_id: [u8; 16],
) -> Result<()> {
    group.validate()?;
    let state = ReplicaState {
        me,
        view,
        view_waits: false,
        incarnation: 0,
        session: 0,
        spans: alloc::vec![Span { term: Term::ZERO, start: LogPosition::ZERO, end: None }],
        trimmed: Anchor::START,
        trimmed_ms: 0,
        durable: LogPosition::ZERO,
        ring: RingState::new(),
        copy: CopyMark::None,
    };
    let tree = Tree::create(group.tree.clone(), group.group)?;
    let snapshot = Snapshot::encode(group, &state, &tree.snapshot());
    let len = medium.properties().len;
    let config = PoolConfig { pool_id, group: group.group, len, region_id: 1 };
    gabion_pool::create(medium, &config, &snapshot).await
}

/// A replica's pool after opening, before its log is looked at.
pub struct OpenedPool {
    /// The group's configuration: says how long the ring must be.
    pub group: GroupConfig,
    /// The replica's counters.
    pub state: ReplicaState,
    pub(crate) pool: Pool,
    pub(crate) tree: Tree,
    /// Edits that were applied since the placement log's last checkpoint, encoded.
    edits: BTreeMap<u64, Vec<u8>>,
    store: LocalStore,
    /// Whether the pool's ring was found.
    ring: RingFound,
    /// Whether a replica is made of it; else it is only looked at.
    is_to_run: bool,
    trust: Trust,
}

/// Opens a pool: superblock, placement log, tree.
///
/// # Errors
/// Corruption with its place; unsupported for another format version; the medium's.
pub async fn open_pool(medium: &MediumHandle, trust: Trust) -> Result<OpenedPool> {
    let mut pool = opened(medium, gabion_pool::open(medium, trust).await?)?;
    (pool.is_to_run, pool.trust) = (true, trust);
    Ok(pool)
}

/// Opens a pool as [`open_pool`] does, but writes nothing: for tools that look at a replica which
/// no process runs. A node made of it must not be driven. A rotten log is refused, even if another
/// member could repair it.
///
/// # Errors
/// As [`open_pool`].
pub async fn read_pool(medium: &MediumHandle) -> Result<OpenedPool> {
    opened(medium, gabion_pool::read(medium).await?.recovered)
}

fn opened(medium: &MediumHandle, recovered: Recovered) -> Result<OpenedPool> {
    let pool = recovered.pool;
    let snapshot = Snapshot::decode(&recovered.opaque_snapshot)?;
    let (group, mut state) = (snapshot.group, snapshot.state);
    check_segments(&pool, &group.log_config(state.view.log))?;
    let mut tree = Tree::open(group.tree.clone(), group.group, &snapshot.tree)?;
    let mut edits = BTreeMap::new();
    for (kind, bytes) in recovered.opaque {
        match kind {
            opaque::EDIT => {
                let edit = Edit::decode(&bytes)?;
                tree.apply_edit(&edit)?;
                edits.insert(edit.number, bytes);
            }
            opaque::STATE => state = ReplicaState::decode(&bytes)?,
            kind => {
                return Err(Error::unsupported(format!("placement log: entry of kind {kind}")));
            }
        }
    }
    tree.pass_time(state.trimmed_ms);
    let _ = tree.obsolete_files();
    for meta in tree.version().described() {
        let lies = pool.placement(meta.id).map(|placement| (placement.len, placement.checksum));
        let is_same = |(len, checksum): (u64, u32)| {
            // A segment got its place before its bytes, and a repaired one after.
            let is_segment = meta.id.kind == FileKind::LogSegment;
            len == meta.rounded_len() && (checksum == meta.checksum || is_segment)
        };
        if !lies.is_some_and(is_same) {
            return Err(Error::corruption(format!(
                "{} is in the tree with {} bytes and checksum {:08x}, the pool has {lies:?}",
                meta.id,
                meta.rounded_len(),
                meta.checksum
            )));
        }
    }
    let next = FileId::sst(tree.next_file());
    if next.term() > state.term() {
        return Err(Error::corruption(format!(
            "the tree's next file is {next}, of a later term than {}, the replica's",
            state.term()
        )));
    }
    let store = LocalStore::of(medium, &pool);
    Ok(OpenedPool {
        group,
        state,
        pool,
        tree,
        edits,
        store,
        ring: RingFound::Whole,
        is_to_run: false,
        trust: Trust::Readable,
    })
}

/// Refuses a segment of a shard that the group does not have: no log would ever reach it.
fn check_segments(pool: &Pool, log: &LogConfig) -> Result<()> {
    let segments = pool.files().map(|placement| placement.file);
    let mut segments = segments.filter(|file| file.kind == FileKind::LogSegment);
    segments.try_for_each(|segment| log.check_segment(segment))
}

impl OpenedPool {
    /// The pool as a place to read and write files.
    #[must_use]
    pub fn store(&self) -> LocalStore {
        self.store.clone()
    }

    /// Notes that the ring was lost, and the number of the new one. `why` follows the words "its
    /// ring". Without a call the ring is the pool's.
    pub fn replace_ring(&mut self, why: String, number: u64) {
        self.ring = RingFound::Lost(why);
        self.state.ring.number = number;
    }

    /// Whether the pool's ring was found, as [`Self::replace_ring`] was told.
    #[must_use]
    pub const fn ring_found(&self) -> &RingFound {
        &self.ring
    }

    /// The records that may be missing if a replica is made of the pool with `ring`. None are after
    /// a clean stop, or if the ring is the pool's. It writes to `ring`.
    ///
    /// # Errors
    /// As [`Self::open_node`].
    pub async fn ring_loss(&self, ring: Box<dyn MemoryRegion>) -> Result<Option<RingLoss>> {
        let (_, report) = self.recover_log(ring, &self.segments()).await?;
        Ok(self.judge_ring(&report))
    }

    /// The one judgement of a ring, for starting a replica and for looking at one.
    fn judge_ring(&self, report: &RecoveryReport) -> Option<RingLoss> {
        let RingFound::Lost(why) = &self.ring else { return None };
        if self.state.ring.stopped.is_some() {
            return None;
        }
        let is_private = self.state.view.log == LogKind::Private;
        Some(RingLoss {
            why: why.clone(),
            from: report.end,
            len_max: self.group.ring_len,
            since_ms: report.last_ms.max(self.state.trimmed_ms),
            term: self.state.term(),
            fate: if is_private { Fate::Gone(self.state.term().next()) } else { Fate::Open },
            is_told: false,
        })
    }

    /// Recovers the log and replays it. The result is a replica that has everything that it had,
    /// and takes part in nothing yet. The log ends at a record that was durable and is not whole
    /// (docs/faults.md E4). The replica then takes part once it durably remembers its loss; others
    /// fill the log again.
    ///
    /// # Errors
    /// Corruption with its place for such a record in a group of one, and in a pool of
    /// [`read_pool`]; the medium's.
    pub async fn open_node(
        mut self,
        ring: Box<dyn MemoryRegion>,
        options: NodeOptions,
        now_ms: u64,
    ) -> Result<(Node, RecoveryReport)> {
        // The lock was taken before the pool was opened: nothing local of an earlier process is
        // under way any more.
        self.pool.release_quarantined(Drained::Local);
        let segments = self.segments();
        let (log, report) = self.recover_log(ring, &segments).await?;
        if self.trust == Trust::Flushed {
            segments.write_again(&self.log_config(), report.watermark, report.in_segments).await?;
        }
        if self.is_to_run {
            // The segments count as durable as far as they once were. That includes rotten blocks
            // that an earlier process wrote again and did not flush.
            self.store.medium.flush().await?;
        }
        let loss = self.judge_ring(&report);
        let stopped = self.state.ring.stopped.take();
        if let Some(loss) = &loss {
            self.state.ring.loss = Some(loss.clone());
        }
        let lost = report.rotten.map(|rot| what_was_lost(&self.state, rot, report.watermark));
        if let Some(lost) = lost {
            self.state.durable = self.state.durable.max(lost.to);
        }
        let gap = self.state.ring.loss.as_ref().and_then(RingLoss::gap);
        self.begin_life().await?;
        let protocol = begin_protocol(
            (&self.group, &options),
            LocalState { lost, gap, ..local_state(&self.state, &self.tree, &log)? },
            &self.state,
            now_ms,
        )?;
        let (group, state) = (self.group, self.state);
        let large_values = options.large_values;
        let value_compression = options.value_compression;
        let mut node =
            Node::assemble(group, options, state, log, self.tree, self.pool, protocol, now_ms);
        node.set_large_values(large_values)?;
        node.set_value_compression(value_compression)?;
        node.replay(&segments, self.edits, &report, lost).await?;
        node.begin_ring(&self.ring, stopped, loss.as_ref());
        Ok((node, report))
    }

    /// Makes the number of this life durable before anybody hears of it. With it goes the judgement
    /// of ring and log: a start that is cut short must not forget that.
    async fn begin_life(&mut self) -> Result<()> {
        if !self.is_to_run {
            return Ok(());
        }
        self.state.incarnation += 1;
        let commit = if self.pool.needs_checkpoint() {
            let snapshot = Snapshot::encode(&self.group, &self.state, &self.tree.snapshot());
            Some(self.pool.checkpoint(&snapshot)?)
        } else {
            self.pool.stage_opaque(opaque::STATE, self.state.encode());
            self.pool.take_commit()
        };
        let Some(commit) = commit else { return Ok(()) };
        let number = commit.number;
        gabion_pool::write_commit(&self.store.medium, commit).await?;
        self.pool.committed(number);
        Ok(())
    }

    /// The pool's slots and files.
    #[must_use]
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The tree as of the last applied edit, before the log is replayed.
    #[must_use]
    pub const fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The log's segments.
    #[must_use]
    pub fn segments(&self) -> PoolSegments {
        PoolSegments::of(self.store.clone(), &self.pool)
    }

    /// The configuration of the group's log.
    #[must_use]
    pub const fn log_config(&self) -> LogConfig {
        self.group.log_config(self.state.view.log)
    }

    /// Whether memory holds a record of this group's log: nothing else tells whose an earlier
    /// version's ring is.
    #[must_use]
    pub fn knows_ring(&self, ring: &dyn MemoryRegion) -> bool {
        gabion_log::inspect::holds_record(ring, &self.log_config())
    }

    /// Finds the end of the log. It writes to `ring`.
    ///
    /// # Errors
    /// As [`Self::open_node`].
    pub async fn recover_log(
        &self,
        ring: Box<dyn MemoryRegion>,
        segments: &PoolSegments,
    ) -> Result<(Log, RecoveryReport)> {
        // A shared log may hold records that are not the group's, however durable they are here.
        let is_private = self.state.view.log == LogKind::Private;
        let stopped = self.state.ring.stopped.filter(|_| is_private).unwrap_or_default();
        // The log of a copy has yet to come here up to where its files end.
        let flushed = match self.state.copy {
            CopyMark::LogBehind(_) => LogPosition::ZERO,
            CopyMark::None | CopyMark::Begun => self.tree.flushed().frontier.only(),
        };
        let input = RecoveryInput {
            spans: self.state.spans.clone(),
            start: self.state.trimmed,
            durable: self.state.durable.max(flushed).max(stopped),
            repair: self.is_to_run && !is_private,
        };
        gabion_log::recover(self.log_config(), ring, input, segments).await
    }
}

/// The lost records: from a rotten one to the end of the last durable one.
fn what_was_lost(state: &ReplicaState, rot: Rot, to: LogPosition) -> Lost {
    let below = |span: &&Span| span.start < to;
    let term = state.spans.iter().rev().find(below).map_or(Term::ZERO, |span| span.term);
    Lost { from: rot.position, to, term }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::Ring;
    use crate::{AckLevel, CompactionMode};
    use gabion_base::units::MIB;
    use gabion_base::{ErrorKind, FileId, GroupId, ShardId};
    use gabion_engine::TreeConfig;
    use gabion_media::simulated::{DiskOptions, SimulatedDisk};
    use gabion_pool::FilePlacement;

    fn alone() -> GroupConfig {
        GroupConfig {
            group: GroupId(1),

            founders: alloc::vec![ReplicaId(1)],
            compaction: CompactionMode::Primary,
            ack: AckLevel::Replicated,
            ring_len: MIB,
            segment_len: MIB / 4,
            tree: TreeConfig::default(),
        }
    }

    /// A group that has shrunk to one member has a shared log, as others may join it again.
    #[test]
    fn a_log_keeps_its_kind_whatever_the_number_of_members() {
        let group = alone();
        for kind in [LogKind::Private, LogKind::Shared] {
            let disk = SimulatedDisk::new(DiskOptions::immediate(64 * MIB));
            let handle = disk.handle();
            let view = GroupView { log: kind, ..group.founding_view() };
            let made = create_with(&handle, &group, view, ReplicaId(1), [1; 16]);
            disk.block_on(&handle, made).unwrap();
            let opened = disk.block_on(&handle, open_pool(&handle, Trust::Readable)).unwrap();
            assert_eq!(opened.log_config().kind, kind);
            let ring = Box::new(Ring::new(group.ring_len));
            let node = opened.open_node(ring, NodeOptions::default(), 0);
            let (node, _) = disk.block_on(&handle, node).unwrap();
            assert_eq!(node.view().log_is_private(), kind == LogKind::Private);
        }
    }

    #[test]
    fn a_pool_with_a_segment_of_a_shard_that_the_group_has_not_is_refused() {
        let disk = SimulatedDisk::new(DiskOptions::immediate(64 * MIB));
        let handle = disk.handle();
        disk.block_on(&handle, create(&handle, &alone(), ReplicaId(1), [1; 16])).unwrap();
        let opened = |trust| disk.block_on(&handle, gabion_pool::open(&handle, trust)).unwrap();
        let mut pool = opened(Trust::Readable).pool;
        let (file, term) = (FileId::log_segment(ShardId(3), 6), Term(1));
        let slots = pool.allocate(1).unwrap();
        pool.add_file(FilePlacement { file, term, len: MIB / 4, checksum: 0, slots }).unwrap();
        let commit = pool.take_commit().unwrap();
        disk.block_on(&handle, gabion_pool::write_commit(&handle, commit)).unwrap();
        let refused = disk.block_on(&handle, open_pool(&handle, Trust::Readable)).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Corruption);
        assert_eq!(
            refused.message(),
            "3-000006.log is a log segment of shard 3; g1 has a log of shard 0 alone"
        );
    }
}
