//! Nodes for the tests of this module's parts.

use super::{Node, Output};
use crate::work::{BuiltFile, Done, DrainOrder, Work, WorkId, run_local};
use crate::{AckLevel, CompactionMode, GroupConfig, LocalStore, NodeOptions, open};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::units::MIB;
use gabion_base::{FileId, GroupId, LogPosition, ReplicaId, Term};
use gabion_engine::{FileMeta, TreeConfig};
use gabion_media::MemoryRegion;
use gabion_media::simulated::{DiskOptions, SimulatedDisk};
use gabion_pool::{FilePlacement, Placed, Trust};
use std::sync::Mutex;

/// Memory that outlives the node that writes it: a clone is the same.
#[derive(Clone)]
pub(crate) struct Ring(Arc<Mutex<Vec<u8>>>);

impl Ring {
    pub(crate) fn new(len: u64) -> Self {
        Self(Arc::new(Mutex::new(vec![0; len as usize])))
    }
}

impl MemoryRegion for Ring {
    fn len(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.0.lock().unwrap()[offset as usize..][..data.len()].copy_from_slice(data);
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..into.len()]);
    }
}

/// The head of [`one_of_two`]'s group.
pub(super) const HEAD: ReplicaId = ReplicaId(1);
/// The tail.
pub(super) const TAIL: ReplicaId = ReplicaId(2);

/// The first order that was given since the last look.
pub(super) fn ordered(node: &mut Node) -> Option<(WorkId, Work)> {
    core::iter::from_fn(|| node.poll_output()).find_map(|output| match output {
        Output::Work(id, work) => Some((id, work)),
        _ => None,
    })
}

/// Makes durable what the node has staged for its placement log.
pub(super) fn commit(node: &mut Node) {
    node.schedule_commit();
    let Some((id, Work::Commit(_))) = ordered(node) else { panic!("nothing is to be committed") };
    node.handle_done(id, Done::Commit(Ok(())));
}

/// A file of so many zeros that was built into slots.
pub(super) fn built(file: FileId, term: Term, slots: Vec<Placed>, len: usize) -> BuiltFile {
    let (of, checksum) = (len as u64, 0);
    let meta = FileMeta { len: of, chunk_crcs: vec![0], ..FileMeta::new(file, term) };
    let placement = FilePlacement { file, term, len: of, checksum, slots };
    let (meta, placement) = (Arc::new(meta), Arc::new(placement));
    BuiltFile { meta, bytes: Bytes::from(vec![0; len]), placement, memory: of }
}

/// Makes the place of a file durable that was built.
pub(super) fn placed(node: &mut Node, file: &BuiltFile) {
    node.files.add(&mut node.pool, FilePlacement::clone(&file.placement)).unwrap();
    commit(node);
    assert!(node.files.placed(&node.pool, file.meta.id));
}

/// Gives slots to the first segments of the log, durably.
pub(super) fn place_segments(node: &mut Node, count: u64) {
    for file in (0..count).map(|ordinal| node.log.config().segment(ordinal)) {
        let slots = node.pool.allocate(1).unwrap();
        let (term, len) = (Term(1), node.config.segment_len);
        let placement = FilePlacement { file, term, len, checksum: 0, slots };
        node.files.add(&mut node.pool, placement).unwrap();
    }
    commit(node);
    for file in (0..count).map(|ordinal| node.log.config().segment(ordinal)) {
        node.files.placed(&node.pool, file);
    }
}

/// The configuration of a group of two.
fn group_of_two() -> GroupConfig {
    GroupConfig {
        group: GroupId(1),
        founders: alloc::vec![HEAD, TAIL],
        compaction: CompactionMode::Primary,
        ack: AckLevel::Replicated,
        ring_len: MIB,
        segment_len: MIB / 4,
        tree: TreeConfig::default(),
    }
}

/// Disk and ring of a member of a group of two, which a restart leaves.
pub(super) struct Machine {
    disk: SimulatedDisk,
    ring: Ring,
}

impl Machine {
    pub(super) fn new(me: ReplicaId) -> Self {
        Self::of(&group_of_two(), me)
    }

    /// The only member of a group.
    pub(super) fn alone() -> Self {
        Self::of(&GroupConfig { founders: alloc::vec![HEAD], ..group_of_two() }, HEAD)
    }

    fn of(group: &GroupConfig, me: ReplicaId) -> Self {
        let disk = SimulatedDisk::new(DiskOptions::immediate(256 * MIB));
        let handle = disk.handle();
        disk.block_on(&handle, open::create(&handle, group, me, [1; 16])).unwrap();
        Self { disk, ring: Ring::new(group.ring_len) }
    }

    /// One that joins the group later.
    pub(super) fn joining(me: ReplicaId) -> Self {
        let disk = SimulatedDisk::new(DiskOptions::immediate(256 * MIB));
        let handle = disk.handle();
        let (group, pool_id) = (group_of_two(), [1; 16]);
        disk.block_on(&handle, open::create_joining(&handle, &group, me, pool_id)).unwrap();
        Self { disk, ring: Ring::new(group.ring_len) }
    }

    /// Carries out commits and nothing else, until none is due. Returns all other outputs.
    pub(super) fn run(&self, node: &mut Node, now_ms: u64) -> Vec<Output> {
        let (mut others, handle) = (Vec::new(), self.disk.handle());
        loop {
            node.advance(now_ms);
            let Some(output) = node.poll_output() else { return others };
            match output {
                Output::Work(id, Work::Commit(commit)) => {
                    self.disk
                        .block_on(&handle, gabion_pool::write_commit(&handle, commit))
                        .unwrap();
                    node.handle_done(id, Done::Commit(Ok(())));
                }
                other => others.push(other),
            }
        }
    }

    /// The member that was never connected with the other one.
    pub(super) fn open(&self, options: NodeOptions) -> Node {
        let handle = self.disk.handle();
        let opened = async {
            let pool = open::open_pool(&handle, Trust::Readable).await?;
            pool.open_node(Box::new(self.ring.clone()), options, 0).await
        };
        self.disk.block_on(&handle, opened).unwrap().0
    }

    /// Carries out an order that needs the pool alone.
    pub(super) fn carry_out(&self, node: &Node, work: Work) -> Done {
        let handle = self.disk.handle();
        let store = LocalStore::of(&handle, &node.pool);
        self.disk.block_on(&handle, run_local(work, &store))
    }

    /// Writes into the first slot of a file, from its beginning.
    pub(super) fn write(&self, node: &Node, placement: &Arc<FilePlacement>, data: Bytes) {
        let (end, keeps_behind) = (LogPosition(data.len() as u64), None);
        let writes = vec![(placement.clone(), 0, data)];
        let order = DrainOrder { writes, flush: true, end, keeps_behind };
        self.carry_out(node, Work::Drain(order));
    }

    /// Reads a file from its beginning.
    pub(super) fn read(&self, node: &Node, placement: &FilePlacement, len: usize) -> Bytes {
        let handle = self.disk.handle();
        let region = node.pool.region();
        let read = gabion_pool::read_file(&handle, region, placement, 0, len as u64);
        self.disk.block_on(&handle, read).unwrap()
    }

    /// Writes the commit that is due.
    pub(super) fn commit(&self, node: &mut Node) {
        node.schedule_commit();
        let Some((id, Work::Commit(commit))) = ordered(node) else { panic!("no commit is due") };
        let handle = self.disk.handle();
        self.disk.block_on(&handle, gabion_pool::write_commit(&handle, commit)).unwrap();
        node.handle_done(id, Done::Commit(Ok(())));
    }
}

/// A member of a group of two, on a disk of its own, that was never connected with the other one.
pub(super) fn one_of_two(me: ReplicaId, options: NodeOptions) -> Node {
    Machine::new(me).open(options)
}
