//! A device that has no room for what a job writes, as a thin file system or one that copies on write may
//! not: jobs pause, and what is done already goes on (FAULTS.md E10). A replica alone, driven by hand:
//! the test decides when each of its jobs is carried out.
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use gabion_base::units::MIB;
use gabion_base::{ConfigNumber, Error, ErrorKind, GroupId, ReplicaId};
use gabion_engine::{JobKind, Keyspace, TreeConfig};
use gabion_media::simulated::{
    DiskOptions, Fault, OperationClass, SimulatedDisk, SimulatedMedium, SimulatedMemory,
};
use gabion_media::{
    Completion, Medium, MediumHandle, MediumProperties, Operation, OperationKind, Outcome,
};
use gabion_node::work::{self, Done, JobOrder, Work, WorkId};
use gabion_node::{
    AckLevel, CompactionMode, GroupConfig, LocalStore, Node, NodeOptions, Output, WriteGate, open,
};

const POOL_LEN: u64 = 64 * MIB;
const SEGMENT_LEN: u64 = 64 * 1024;

fn group() -> GroupConfig {
    let tree = TreeConfig {
        memtable_len: 16 * 1024,
        sst_len: 32 * 1024,
        level1_len: 64 * 1024,
        l0_trigger: 2,
        ..TreeConfig::default()
    };
    GroupConfig {
        group: GroupId(1),
        config: ConfigNumber(1),
        members: vec![ReplicaId(1)],
        compaction: CompactionMode::Primary,
        ack: AckLevel::Replicated,
        ring_len: 4 * SEGMENT_LEN,
        segment_len: SEGMENT_LEN,
        tree,
    }
}

struct Replica {
    disk: SimulatedDisk,
    handle: MediumHandle,
    store: LocalStore,
    node: Box<Node>,
    now_ms: u64,
    /// Jobs that were ordered and are not carried out.
    jobs: Vec<(WorkId, Box<JobOrder>)>,
    written: u64,
}

impl Replica {
    fn start() -> Self {
        let disk = SimulatedDisk::new(DiskOptions::immediate(POOL_LEN));
        let handle = disk.handle();
        let ring = Box::new(SimulatedMemory::new(group().ring_len as usize));
        let opened = async {
            open::create(&handle, &group(), ReplicaId(1), [1; 16]).await?;
            let pool = open::open_pool(&handle).await?;
            let store = pool.store();
            let (node, _) = pool.open_node(ring, NodeOptions::default(), 0).await?;
            Ok::<_, Error>((store, Box::new(node)))
        };
        let (store, node) = disk.block_on(&handle, opened).unwrap();
        let mut replica =
            Self { disk, handle, store, node, now_ms: 0, jobs: Vec::new(), written: 0 };
        while replica.node.write_gate() != WriteGate::Open {
            replica.pass(1);
        }
        replica
    }

    /// Lets time pass and carries out everything but jobs.
    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.node.handle_tick(self.now_ms);
        loop {
            self.node.advance(self.now_ms);
            self.node.invariants();
            let Some(output) = self.node.poll_output() else { return };
            match output {
                Output::Work(id, Work::Job(order)) => self.jobs.push((id, order)),
                Output::Work(id, work) => {
                    let done = self.disk.block_on(&self.handle, work::run_local(work, &self.store));
                    self.node.handle_done(id, done);
                }
                Output::Fatal(error) => panic!("the replica ended itself: {error}"),
                _ => {}
            }
        }
    }

    /// Writes until another MemTable is sealed.
    fn seal(&mut self) {
        let sealed = self.node.tree().sealed_count();
        while self.node.tree().sealed_count() == sealed {
            assert_eq!(self.node.write_gate(), WriteGate::Open);
            let key = format!("key {}", self.written % 100);
            self.written += 1;
            self.node.put(Keyspace::User, key.as_bytes(), &[7; 500]).unwrap();
            self.node.end_turn().unwrap();
            self.node.advance(self.now_ms);
        }
        self.pass(1);
    }

    fn kinds(&self) -> Vec<JobKind> {
        self.jobs.iter().map(|(_, order)| order.inputs.recipe.kind).collect()
    }

    /// Carries out the first job of a kind; returns its error. Nothing follows from its end yet.
    fn run(&mut self, kind: JobKind) -> Option<Error> {
        let is_it = |(_, order): &(WorkId, Box<JobOrder>)| order.inputs.recipe.kind == kind;
        let (id, order) = self.jobs.remove(self.jobs.iter().position(is_it).unwrap());
        let mut built = Vec::new();
        let running = work::run_job(*order, &self.store, |file| built.push(file));
        let result = self.disk.block_on(&self.handle, running);
        let error = result.as_ref().err().cloned();
        built.into_iter().for_each(|file| self.node.handle_job_file(id, file));
        self.node.handle_done(id, Done::Job(result));
        error
    }

    fn succeed(&mut self, kind: JobKind) {
        assert_eq!(self.run(kind).map(|error| error.to_string()), None);
    }

    fn find_no_room(&mut self, kind: JobKind) {
        self.disk.plan(OperationClass::Write, 1, Fault::NoSpace);
        assert_eq!(self.run(kind).map(|error| error.kind()), Some(ErrorKind::NoSpace));
    }

    fn refusal(&self) -> Option<String> {
        match self.node.write_gate() {
            WriteGate::Full(reason) => Some(reason),
            _ => None,
        }
    }
}

#[test]
fn a_job_without_room_is_tried_again_after_a_pause_that_doubles_and_writes_are_refused_until_then()
{
    let mut replica = Replica::start();
    replica.seal();
    for (tries, pause_ms) in [100, 200, 400, 800].into_iter().enumerate() {
        assert_eq!(replica.kinds(), [JobKind::Flush]);
        replica.find_no_room(JobKind::Flush);
        replica.pass(0);
        assert_eq!(replica.node.counters().jobs_without_space, tries as u64 + 1);
        assert_eq!(replica.node.pool().counts().allocated, 0, "slots are given back");
        assert_eq!(replica.node.unshipped_bytes(), 0, "nothing is kept to be shipped");
        let reason = replica.refusal().expect("writes are refused");
        assert!(reason.starts_with("the pool is full: "), "{reason}");
        assert!(reason.contains("write of"), "{reason}");
        assert!(reason.ends_with(&format!("tried again after {pause_ms} ms")), "{reason}");
        replica.pass(pause_ms - 1);
        assert_eq!(replica.kinds(), [], "not before the pause has passed");
        replica.pass(1);
        assert!(replica.refusal().is_some(), "a try is no success");
    }
    replica.succeed(JobKind::Flush);
    replica.pass(0);
    assert_eq!(replica.refusal(), None);
    assert_eq!((replica.node.counters().flushes, replica.node.tree().last_edit()), (1, 1));
    replica.seal();
    replica.find_no_room(JobKind::Flush);
    assert!(replica.refusal().unwrap().ends_with("after 100 ms"), "it begins anew");
}

#[test]
fn the_edit_of_a_job_that_was_done_before_goes_into_the_log_while_another_finds_no_room() {
    let mut replica = Replica::start();
    while replica.kinds() != [JobKind::Compaction] {
        replica.seal();
        replica.succeed(JobKind::Flush);
        replica.pass(0);
    }
    replica.seal();
    let edits = replica.node.tree().last_edit();
    replica.succeed(JobKind::Compaction);
    replica.find_no_room(JobKind::Flush);
    replica.pass(0);
    assert_eq!(replica.node.tree().last_edit(), edits + 1);
    assert!(replica.refusal().is_some());
    assert_eq!(replica.node.pool().counts().allocated, 0, "slots are given back");
}

/// A device whose flushes say that there is no room.
struct NoRoomAtFlush {
    medium: SimulatedMedium,
    flushes: Vec<u64>,
}

impl Medium for NoRoomAtFlush {
    fn properties(&self) -> MediumProperties {
        self.medium.properties()
    }
    fn submit(&mut self, batch: Vec<Operation>) {
        let flushes = batch.iter().filter(|it| matches!(it.kind, OperationKind::Flush));
        self.flushes.extend(flushes.map(|it| it.tag));
        self.medium.submit(batch);
    }
    fn poll(&mut self, completed: &mut Vec<Completion>) {
        self.medium.poll(completed);
        for ended in completed.iter_mut().filter(|it| self.flushes.contains(&it.tag)) {
            ended.outcome = Outcome::Failed(Error::no_space("no room"));
        }
    }
    fn in_flight(&self) -> usize {
        self.medium.in_flight()
    }
}

#[test]
fn a_job_whose_flush_finds_no_room_is_not_tried_again() {
    let mut replica = Replica::start();
    replica.seal();
    let (id, order) = replica.jobs.remove(0);
    let medium = NoRoomAtFlush { medium: replica.disk.medium(), flushes: Vec::new() };
    let medium = MediumHandle::new(medium);
    let store = LocalStore { medium: medium.clone(), ..replica.store.clone() };
    let result = replica.disk.block_on(&medium, work::run_job(*order, &store, |_| {}));
    let error = result.as_ref().err().expect("the flush fails");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().ends_with("no room"), "{error}");
    replica.node.handle_done(id, Done::Job(result));
    let mut outputs = std::iter::from_fn(|| replica.node.poll_output());
    assert!(outputs.any(|output| matches!(output, Output::Fatal(_))));
}
