//! Creating a replica in an empty pool, and opening one from its pool and ring alone.
//!
//! ```text
//!   superblock ─► placement log ─► group, counters, files, tree ─┐
//!   ring ∪ segments ─► records from the last trim on ────────────┴─► Node
//! ```

use crate::files::{LocalStore, PoolSegments};
use crate::state::{ReplicaState, Snapshot, opaque};
use crate::{GroupConfig, Node, NodeOptions};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::{Error, FileId, FileKind, LogPosition, ReplicaId, Result, ShardId, Term};
use gabion_engine::{Edit, Tree};
use gabion_log::{Anchor, LogConfig, RecoveryInput, RecoveryReport, Span};
use gabion_media::{MediumHandle, MemoryRegion};
use gabion_pool::{Drained, Pool, PoolConfig};
use gabion_replication::{Chain, ChainConfig, LocalState, Progress, Spans};

/// Makes the pool of a new replica. Whole or not at all: an interrupted creation is refused when the
/// pool is opened.
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
    group.validate()?;
    log_config(group).check()?;
    if !group.members.contains(&me) {
        return Err(Error::invalid(format!("{me} is no member of {}", group.group)));
    }
    let state = ReplicaState {
        me,
        term: Term::ZERO,
        session: 0,
        files_reserved: 0,
        spans: alloc::vec![Span { term: Term::ZERO, start: LogPosition::ZERO, end: None }],
        trimmed: Anchor::START,
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
}

/// Opens a pool: superblock, placement log, tree.
///
/// # Errors
/// Corruption with its place; unsupported for another format version; the medium's.
pub async fn open_pool(medium: &MediumHandle) -> Result<OpenedPool> {
    let recovered = gabion_pool::open(medium).await?;
    let pool = recovered.pool;
    let snapshot = Snapshot::decode(&recovered.opaque_snapshot)?;
    let (group, mut state) = (snapshot.group, snapshot.state);
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
    let _ = tree.obsolete_files();
    for (_, meta) in tree.version().files() {
        let lies = pool.placement(meta.id).map(|placement| (placement.len, placement.checksum));
        if lies != Some((meta.rounded_len(), meta.checksum)) {
            return Err(Error::corruption(format!(
                "{} is in the tree with {} bytes and checksum {:08x}, the pool has {lies:?}",
                meta.id,
                meta.rounded_len(),
                meta.checksum
            )));
        }
    }
    let store = LocalStore {
        medium: medium.clone(),
        geometry: pool.region(),
        pool_id: pool.pool_id(),
        group: group.group,
    };
    Ok(OpenedPool { group, state, pool, tree, edits, store })
}

impl OpenedPool {
    /// The pool as a place to read and write files.
    #[must_use]
    pub fn store(&self) -> LocalStore {
        self.store.clone()
    }

    /// Recovers the log and replays it. The result is a replica that has everything that it had, and
    /// takes part in nothing yet.
    ///
    /// # Errors
    /// Corruption with its place when a record that was durable is not whole (FAULTS.md E4); the
    /// medium's.
    pub async fn open_node(
        mut self,
        ring: Box<dyn MemoryRegion>,
        options: NodeOptions,
        now_ms: u64,
    ) -> Result<(Node, RecoveryReport)> {
        // The lock was taken before the pool was opened: nothing local of an earlier process is
        // under way any more.
        self.pool.release_quarantined(Drained::Local);
        let files = self.pool.files().filter(|file| file.file.kind == FileKind::LogSegment);
        let files: BTreeMap<FileId, _> =
            files.map(|placement| (placement.file, placement.clone())).collect();
        let segments = PoolSegments { store: &self.store, files: &files };
        let input = RecoveryInput {
            spans: self.state.spans.clone(),
            start: self.state.trimmed,
            durable: self.tree.flushed().position,
            repair: false,
        };
        let config = log_config(&self.group);
        let (log, report) = gabion_log::recover(config, ring, input, &segments).await?;
        let chain = Chain::new(
            chain_config(&self.group, self.state.me, &options),
            local_state(&self.state, &self.tree, &log)?,
            now_ms,
        )?;
        let (group, state) = (self.group, self.state);
        let mut node =
            Node::assemble(group, options, state, log, self.tree, self.pool, chain, now_ms);
        node.replay(&segments, self.edits).await?;
        Ok((node, report))
    }
}

fn log_config(group: &GroupConfig) -> LogConfig {
    LogConfig {
        group: group.group,
        shard: ShardId::ZERO,
        ring_len: group.ring_len,
        segment_len: group.segment_len,
    }
}

fn chain_config(group: &GroupConfig, me: ReplicaId, options: &NodeOptions) -> ChainConfig {
    ChainConfig {
        group: group.group,
        config: group.config,
        members: group.members.clone(),
        me,
        heartbeat_ms: options.heartbeat_ms,
        timeout_ms: options.timeout_ms,
        window_bytes: options.window_bytes,
    }
}

fn local_state(state: &ReplicaState, tree: &Tree, log: &gabion_log::Log) -> Result<LocalState> {
    let last = log.last();
    let spans: Vec<gabion_replication::Span> = log
        .spans()
        .iter()
        .filter(|span| span.term > Term::ZERO)
        .map(|span| gabion_replication::Span {
            term: span.term,
            start: span.start,
            end: span.end.unwrap_or(gabion_replication::OPEN),
        })
        .collect();
    Ok(LocalState {
        term: state.term,
        session: state.session,
        spans: Spans::new(spans)?,
        oldest: state.trimmed.position,
        last_crc: last.crc,
        progress: Progress {
            end: last.end,
            durable: log.durable_end(),
            flushed: tree.flushed().position,
            edit: tree.last_edit(),
        },
    })
}
