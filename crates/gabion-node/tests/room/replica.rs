//! A replica alone, driven by hand: the test decides when each of its jobs is carried out.

use gabion_base::{Error, ErrorKind, FileId, GroupId, ReplicaId};
use gabion_engine::{JobKind, Keyspace, LocalCache, ReadView, Tables, TreeConfig};
use gabion_media::MediumHandle;
use gabion_media::simulated::{DiskOptions, Fault, OperationClass, SimulatedDisk};
use gabion_node::work::{self, Done, FetchOrder, Fetched, JobOrder, Work, WorkId};
use gabion_node::{
    AckLevel, Captured, CompactionMode, FileMap, GroupConfig, LocalStore, MarkId, Node,
    NodeOptions, Output, PoolSource, WriteGate, open,
};

use gabion_pool::Trust;
use std::rc::Rc;

fn group(compaction: CompactionMode, tree: TreeConfig, segment_len: u64) -> GroupConfig {
    GroupConfig {
        group: GroupId(1),
        founders: vec![ReplicaId(1)],
        compaction,
        ack: AckLevel::Replicated,
        ring_len: 4 * segment_len,
        segment_len,
        tree,
    }
}

pub(crate) struct Replica {
    pub(crate) disk: SimulatedDisk,
    handle: MediumHandle,
    pub(crate) store: LocalStore,
    pub(crate) node: Box<Node>,
    now_ms: u64,
    /// Jobs that were ordered and are not carried out.
    pub(crate) jobs: Vec<(WorkId, Box<JobOrder>)>,
    written: u64,
    said: Vec<String>,
    /// What became of marks.
    pub(crate) marked: Vec<(MarkId, Result<Captured, Error>)>,
}

impl Replica {
    pub(crate) fn start(pool_len: u64, tree: TreeConfig, segment_len: u64) -> Self {
        Self::start_in(CompactionMode::Primary, pool_len, tree, segment_len)
    }

    pub(crate) fn start_in(
        compaction: CompactionMode,
        pool_len: u64,
        tree: TreeConfig,
        segment_len: u64,
    ) -> Self {
        let disk = SimulatedDisk::new(DiskOptions::immediate(pool_len));
        let handle = disk.handle();
        let group = group(compaction, tree, segment_len);
        let ring = Box::new(vec![0; group.ring_len as usize]);
        let opened = async {
            open::create(&handle, &group, ReplicaId(1), [1; 16]).await?;
            let pool = open::open_pool(&handle, Trust::Readable).await?;
            let store = pool.store();
            let (node, _) = pool.open_node(ring, NodeOptions::default(), 0).await?;
            Ok::<_, Error>((store, Box::new(node)))
        };
        let (store, node) = disk.block_on(&handle, opened).unwrap();
        Self::of(disk, handle, store, node, 0)
    }

    fn of(
        disk: SimulatedDisk,
        handle: MediumHandle,
        store: LocalStore,
        node: Box<Node>,
        now_ms: u64,
    ) -> Self {
        let mut replica = Self {
            disk,
            handle,
            store,
            node,
            now_ms,
            jobs: Vec::new(),
            written: 0,
            said: Vec::new(),
            marked: Vec::new(),
        };
        while replica.node.write_gate() != WriteGate::Open {
            replica.pass(1);
        }
        replica
    }

    /// Another process on the same disk, with a ring that lost everything and a clock that says
    /// `now_ms`.
    pub(crate) fn restart(self, now_ms: u64) -> Self {
        let Self { disk, handle, node, .. } = self;
        let ring = Box::new(vec![0; node.config().ring_len as usize]);
        drop(node);
        let opened = async {
            let pool = open::open_pool(&handle, Trust::Readable).await?;
            let store = pool.store();
            let (node, _) = pool.open_node(ring, NodeOptions::default(), now_ms).await?;
            Ok::<_, Error>((store, Box::new(node)))
        };
        let (store, node) = disk.block_on(&handle, opened).unwrap();
        Self::of(disk, handle, store, node, now_ms)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Lets time pass up to a moment.
    pub(crate) fn pass_to(&mut self, now_ms: u64) {
        self.pass(now_ms - self.now_ms);
    }

    /// Lets time pass and carries out everything but jobs.
    pub(crate) fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.pass_until(|_| false);
    }

    /// Carries out everything but jobs, at one moment, and nothing any more once the replica is as
    /// it should be.
    pub(crate) fn pass_until(&mut self, is_enough: impl Fn(&Node) -> bool) {
        self.node.handle_tick(self.now_ms);
        loop {
            self.node.advance(self.now_ms);
            self.node.invariants();
            if is_enough(&self.node) {
                return;
            }
            let Some(output) = self.node.poll_output() else { return };
            match output {
                Output::Work(id, Work::Job(order)) => self.jobs.push((id, order)),
                Output::Work(id, work) => {
                    let done = self.disk.block_on(&self.handle, work::run_local(work, &self.store));
                    self.node.handle_done(id, done);
                }
                Output::Marked(mark, captured) => self.marked.push((mark, captured)),
                Output::Notice(text) => self.said.push(text),
                Output::Fatal(error) => panic!("the replica ended itself: {error}"),
                _ => {}
            }
        }
    }

    /// Writes until another MemTable is sealed.
    pub(crate) fn seal(&mut self) {
        self.seal_over(100);
    }

    /// The same with so many keys, one after the other.
    pub(crate) fn seal_over(&mut self, keys: u64) {
        let sealed = self.node.tree().sealed_count();
        while self.node.tree().sealed_count() == sealed {
            assert_eq!(self.node.write_gate(), WriteGate::Open);
            let key = format!("key {}", self.written % keys);
            self.written += 1;
            self.node.put(Keyspace::User, key.as_bytes(), &[7; 500]).unwrap();
            self.node.end_turn().unwrap();
            self.node.advance(self.now_ms);
        }
        self.pass(1);
    }

    /// Arms a mark so many bytes ahead.
    pub(crate) fn arm(&mut self, ahead: u64) -> Result<MarkId, Error> {
        self.node.arm_mark(self.node.log_end().ahead(ahead), self.now_ms)
    }

    /// Puts a key, in a turn that does not end.
    pub(crate) fn put(&mut self, key: &str) {
        self.node.put(Keyspace::User, key.as_bytes(), b"value").unwrap();
    }

    /// Whether a view has a user's key.
    pub(crate) fn has(&self, view: &ReadView, key: &str) -> bool {
        self.value(view, key).is_some()
    }

    /// What a view has of a user's key.
    pub(crate) fn value(&self, view: &ReadView, key: &str) -> Option<String> {
        let (store, locate) = (self.store.clone(), self.node.file_map().clone());
        let source: PoolSource<FileMap> = PoolSource { store, locate, meter: Rc::default() };
        let (source, cache) = (Rc::new(source), Rc::new(LocalCache::new(1 << 16)));
        let tables = Tables { source, cache, group: self.store.group };
        let key = [&[Keyspace::User as u8], key.as_bytes()].concat();
        let value = self.disk.block_on(&self.handle, view.get(&tables, &key)).unwrap();
        value.map(|value| String::from_utf8_lossy(&value).into_owned())
    }

    /// Where the first byte of a file lies on the disk.
    pub(crate) fn offset_of(&self, file: FileId) -> u64 {
        let placement = self.node.pool().placement(file).unwrap();
        let mut extents = gabion_pool::extents(&self.store.geometry, &placement, 0, 1);
        extents.next().unwrap().0
    }

    /// What it said in its log.
    pub(crate) fn said(&self) -> &[String] {
        &self.said
    }

    /// Reads a file as a primary does at a secondary.
    pub(crate) fn fetch(&self, order: &FetchOrder) -> Result<Fetched, Error> {
        self.disk.block_on(&self.handle, work::run_fetch(order, &self.handle))
    }

    /// Carries out all jobs.
    pub(crate) fn work(&mut self) {
        while let Some((_, order)) = self.jobs.first() {
            let kind = order.inputs.recipe.kind;
            self.succeed(kind);
            self.pass(0);
        }
    }

    pub(crate) fn kinds(&self) -> Vec<JobKind> {
        self.jobs.iter().map(|(_, order)| order.inputs.recipe.kind).collect()
    }

    /// Carries out the first job of a kind; returns its error. Nothing follows from its end yet.
    pub(crate) fn run(&mut self, kind: JobKind) -> Option<Error> {
        let is_it = |(_, order): &(WorkId, Box<JobOrder>)| order.inputs.recipe.kind == kind;
        let (id, order) = self.jobs.remove(self.jobs.iter().position(is_it).unwrap());
        let mut built = Vec::new();
        let running = work::run_job(*order, &self.store, |file| built.push(file), async || Ok(()));
        let result = self.disk.block_on(&self.handle, running);
        let error = result.as_ref().err().map(|failed| failed.error.clone());
        built.into_iter().for_each(|file| self.node.handle_job_file(id, file));
        self.node.handle_done(id, Done::Job(result));
        error
    }

    pub(crate) fn succeed(&mut self, kind: JobKind) {
        assert_eq!(self.run(kind).map(|error| error.to_string()), None);
    }

    pub(crate) fn find_no_room(&mut self, kind: JobKind) {
        self.disk.plan(OperationClass::Write, 1, Fault::NoSpace);
        assert_eq!(self.run(kind).map(|error| error.kind()), Some(ErrorKind::NoSpace));
    }

    pub(crate) fn refusal(&self) -> Option<String> {
        match self.node.write_gate() {
            WriteGate::Full { reason, .. } => Some(reason),
            _ => None,
        }
    }
}
