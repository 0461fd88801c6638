//! One replica's process: the work of the server's loop and threads, step by step.

use crate::pipe::Pipe;
use crate::{Random, check};
use gabion_base::{Error, ErrorKind, FileId, ReplicaId, Result};
use gabion_engine::{JobKind, LocalCache, Tables};
use gabion_media::nvme::initiator::{Initiator, InitiatorConfig};
use gabion_media::nvme::target::{
    BackendKind, Backing, Subsystem, TargetCommand, TargetConfig, TargetConnection,
};
use gabion_media::task::Executor;
use gabion_media::{
    AlignedBuf, Bytes, Completion, Medium, MediumHandle, MediumProperties, MemoryRegion, Operation,
};
use gabion_node::open::OpenedPool;
use gabion_node::work::{self, BuildCredit, BuiltFile, Done, Work, WorkId};
use gabion_node::{
    Captured, FileMap, LocalStore, Locate, MarkId, Node, NodeOptions, Output, PoolSource,
    ReadMeter, RemoteCommand, open,
};
use gabion_pool::{FilePlacement, Trust};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Arc, Once};
use std::task::{Poll, Waker};

/// The reports of a process's tasks.
#[expect(clippy::large_enum_variant, reason = "few exist, and each is moved twice")]
pub enum Event {
    /// The replica was opened, or could not be.
    Opened(Result<(Box<Node>, LocalStore)>),
    /// A job built a file.
    JobFile(WorkId, BuiltFile),
    /// A work order ended.
    Done(WorkId, Done),
    /// The target's operation ended.
    TargetIo {
        /// The connection.
        connection: u64,
        /// The operation's number on it.
        id: u64,
        /// The session in which it came.
        session: u64,
        /// Its end.
        result: Result<Option<Bytes>>,
        /// For a write: offset in the namespace, length, checksum.
        write: Option<(u64, u32, u32)>,
    },
}

/// Queue of events that tasks fill.
pub type Events = Rc<RefCell<VecDeque<Event>>>;

/// An initiator that is a medium and is also driven from outside.
struct SharedInitiator(Rc<RefCell<Initiator<Pipe>>>);

impl Medium for SharedInitiator {
    fn properties(&self) -> MediumProperties {
        self.0.borrow().properties()
    }
    fn submit(&mut self, batch: Vec<Operation>) {
        self.0.borrow_mut().submit(batch);
    }
    fn poll(&mut self, completed: &mut Vec<Completion>) {
        self.0.borrow_mut().poll(completed);
    }
    fn in_flight(&self) -> usize {
        self.0.borrow().in_flight()
    }
}

/// How much jobs may build, and the jobs that wait until it is more.
#[derive(Clone, Default)]
struct Credit(Rc<RefCell<(BuildCredit, Vec<Waker>)>>);

impl Credit {
    fn may_build(&self, until: u64) {
        let (credit, waiting) = &mut *self.0.borrow_mut();
        credit.may_build(until);
        waiting.drain(..).for_each(Waker::wake);
    }

    /// Waits until the next file may be begun.
    async fn wait(&self) -> Result<()> {
        let may_go_on = poll_fn(|context| {
            let (credit, waiting) = &mut *self.0.borrow_mut();
            if credit.may_go_on() {
                return Poll::Ready(());
            }
            waiting.push(context.waker().clone());
            Poll::Pending
        });
        may_go_on.await;
        Ok(())
    }
}

/// A bit that flips in memory, in a file that a job builds, after its checksums were taken.
#[derive(Clone, Copy, Debug)]
pub struct Flip {
    /// In a file of a compaction, not of a flush.
    pub of_compaction: bool,
    /// On the disk, too, as if it had been written there from the same memory.
    pub is_written: bool,
}

/// A file in which a bit flipped.
struct Flipped {
    placement: Arc<FilePlacement>,
    /// The byte in it.
    at: u64,
    /// Its flip on the disk is still to come.
    is_due: bool,
}

/// Bits that flip in memory.
#[derive(Default)]
struct Flips {
    next: Option<Flip>,
    flipped: Vec<Flipped>,
}

impl Flips {
    /// Takes the node's copy of a file, and damages it when it is that file's turn: the node's copy
    /// alone.
    fn pass(&mut self, mut file: BuiltFile, of_compaction: bool) -> BuiltFile {
        let Some(flip) = self.next.take_if(|flip| flip.of_compaction == of_compaction) else {
            return file;
        };
        let mut bytes = file.bytes.to_vec();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        file.bytes = AlignedBuf::copy_of(&bytes).freeze();
        let (placement, at, is_due) = (file.placement.clone(), at as u64, flip.is_written);
        self.flipped.push(Flipped { placement, at, is_due });
        file
    }
}

/// A connection to a secondary's namespace.
struct Remote {
    initiator: Rc<RefCell<Initiator<Pipe>>>,
    handle: MediumHandle,
    pipes: [Pipe; 2],
}

/// The embedded target.
#[derive(Default)]
struct Target {
    subsystem: Option<Subsystem>,
    /// The session that it serves.
    session: u64,
    connections: BTreeMap<u64, TargetConnection<Pipe>>,
    next: u64,
    /// The session to open when everything before is drained.
    opening: Option<(String, u64, Vec<String>)>,
    /// Set for a target of another make; see [`crate::Options::foreign_targets`].
    foreign: Option<Foreign>,
    /// The planted defect: nothing is drained first.
    #[cfg(feature = "planted")]
    is_hasty: bool,
}

/// A target that does not report its received bytes.
struct Foreign {
    /// One in so many writes of a file's bytes is damaged; 0 is none.
    damage: u64,
    writes: u64,
    damaged: u64,
}

impl Foreign {
    /// Takes a write of a file's bytes, and damages it when its turn has come.
    fn receive(&mut self, data: &mut Bytes) {
        self.writes += 1;
        if self.damage > 0 && self.writes.is_multiple_of(self.damage) {
            let mut bytes = data.to_vec();
            let at = self.writes as usize % bytes.len();
            bytes[at] ^= 1 << (self.writes % 8);
            *data = AlignedBuf::copy_of(&bytes).freeze();
            self.damaged += 1;
        }
    }
}

impl Target {
    /// Whether no write of an earlier host can still change the namespace.
    fn is_drained(&self) -> bool {
        let Some(subsystem) = &self.subsystem else { return true };
        #[cfg(feature = "planted")]
        if self.is_hasty {
            return true;
        }
        let has_ended = self.connections.values().all(TargetConnection::is_finished);
        subsystem.is_closed() && subsystem.in_flight() == 0 && has_ended
    }

    fn open(&mut self, subsystem: Subsystem, session: u64) {
        (self.subsystem, self.session) = (Some(subsystem), session);
        #[cfg(feature = "planted")]
        if self.is_hasty {
            self.connections.clear();
        }
    }
}

/// The places of the node's files, for tasks: as of their start. And the damage that they met,
/// until they stop.
#[derive(Clone, Default)]
pub struct Places(Rc<Placed>);

#[derive(Default)]
struct Placed {
    now: RefCell<FileMap>,
    damaged: RefCell<Vec<(FileId, Error)>>,
}

impl Places {
    fn follow(&self, node: &Node) {
        self.0.now.replace(node.file_map().clone());
    }
}

impl Locate for Places {
    fn locate(&self, file: FileId) -> Option<Arc<FilePlacement>> {
        self.0.now.borrow().get(file)
    }

    fn note_damage(&self, file: FileId, error: &Error) {
        self.0.damaged.borrow_mut().push((file, error.clone()));
    }
}

/// The sources for reads of a replica's files.
pub type ReplicaTables = Tables<Rc<PoolSource<Places>>>;

/// One process.
pub struct Process {
    /// The number of the machine's start.
    pub incarnation: u64,
    /// The replica, once it is open.
    pub node: Option<Box<Node>>,
    places: Places,
    cache: Rc<LocalCache>,
    meter: Rc<ReadMeter>,
    handle: MediumHandle,
    store: Option<LocalStore>,
    /// Tasks of the process; they end with it.
    pub executor: Executor,
    events: Events,
    awaits_word: bool,
    target: Target,
    remotes: BTreeMap<ReplicaId, Remote>,
    /// The outcomes of marks.
    marked: BTreeMap<MarkId, Result<Captured>>,
    /// Marks that nobody waits for any more, even if they are still captured.
    withdrawn: BTreeSet<MarkId>,
    /// Ordered commits of the placement log that have not ended.
    commits: BTreeSet<WorkId>,
    /// The places of commits ordered since the last look: offset and length.
    commit_writes: Vec<(u64, usize)>,
    /// How much jobs may build.
    credit: Credit,
    flips: Rc<RefCell<Flips>>,
    /// Most bytes of one compaction's files that waited to be shipped when it came with a further
    /// one.
    pub unshipped_of_job_max: u64,
    /// Replaced remotes, with operations that still have to end.
    replaced: Vec<Remote>,
    random: Random,
}

/// The number in the label of a machine's ring; none while there is no ring.
#[derive(Clone, Debug)]
pub struct RingLabel(Rc<Cell<Option<u64>>>);

impl RingLabel {
    /// The label of a ring with this number, or of none.
    #[must_use]
    pub fn new(number: Option<u64>) -> Self {
        Self(Rc::new(Cell::new(number)))
    }

    /// The ring is gone: the next start makes one in its place.
    pub fn lose(&self) {
        self.0.set(None);
    }

    /// Does with the file as `gabion-db` does.
    fn find(&self, pool: &mut OpenedPool) {
        let known = pool.state.ring.number;
        let why = match self.0.get() {
            Some(number) if number == known => return,
            Some(_) => "was lost before a start that was interrupted",
            None => "is missing",
        };
        self.0.set(Some(known + 1));
        pool.replace_ring(why.to_owned(), known + 1);
    }
}

/// A process's orders to the world.
pub enum Wish {
    /// Send a frame.
    Send(gabion_replication::Frame),
    /// Break the connection with a member.
    Disconnect(ReplicaId, Option<u64>, Error),
    /// Connect to a member's target: the client ends are kept, the server ends go there.
    ConnectTarget(ReplicaId, Pipe, Pipe),
    /// The replica is to be opened anew.
    Reopen(Error),
    /// Nothing works any more.
    Die(Error),
    /// Something forbidden happened.
    Report(String),
    /// A notice for the operator.
    Tell(String),
}

/// Each opening reads through mebibytes, and a test makes thousands. Returning that memory each
/// time would cost a quarter of the time of all crash points, in page faults.
static KEEPS_FREED_MEMORY: Once = Once::new();

impl Process {
    /// Starts a process on a machine: opens the pool, with this much trust in it, and its ring.
    #[must_use]
    pub fn start(
        incarnation: u64,
        handle: MediumHandle,
        ring: Box<dyn MemoryRegion>,
        options: NodeOptions,
        trust: Trust,
        now_ms: u64,
        random: Random,
    ) -> Self {
        Self::start_on(incarnation, handle, (ring, None), options, trust, now_ms, random)
    }

    /// As [`Self::start`], on a ring that may have been lost, as its label says.
    #[must_use]
    pub fn start_on(
        incarnation: u64,
        handle: MediumHandle,
        (ring, label): (Box<dyn MemoryRegion>, Option<RingLabel>),
        options: NodeOptions,
        trust: Trust,
        now_ms: u64,
        random: Random,
    ) -> Self {
        KEEPS_FREED_MEMORY.call_once(|| {
            gabion_proc::keep_freed_memory();
        });
        let target = Target {
            #[cfg(feature = "planted")]
            is_hasty: options.planted == Some(gabion_node::Mutant::DrainNotWaitedFor),
            ..Target::default()
        };
        let events = Events::default();
        let mut executor = Executor::new();
        let (out, medium) = (events.clone(), handle.clone());
        executor.spawn(async move {
            let opened = async {
                drained(&medium).await;
                let mut pool = open::open_pool(&medium, trust).await?;
                if let Some(label) = label {
                    label.find(&mut pool);
                }
                let store = pool.store();
                let (node, _) = pool.open_node(ring, options, now_ms).await?;
                Ok((Box::new(node), store))
            };
            let opened = opened.await;
            out.borrow_mut().push_back(Event::Opened(opened));
        });
        Self {
            incarnation,
            node: None,
            places: Places::default(),
            cache: Rc::new(LocalCache::new(1 << 16)),
            meter: Rc::default(),
            handle,
            store: None,
            executor,
            events,
            awaits_word: false,
            target,
            remotes: BTreeMap::new(),
            marked: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            commits: BTreeSet::new(),
            commit_writes: Vec::new(),
            credit: Credit::default(),
            flips: Rc::default(),
            unshipped_of_job_max: 0,
            replaced: Vec::new(),
            random,
        }
    }

    /// Controllers keep its group, and none has told this process a view.
    pub fn await_word(&mut self) {
        self.awaits_word = true;
    }

    /// Ends everything but the operations that the disk was given: the next start on this medium
    /// waits for them.
    #[must_use]
    pub fn into_medium(self) -> MediumHandle {
        self.handle
    }

    /// The sources for clients' reads.
    #[must_use]
    pub fn tables(&self) -> Option<ReplicaTables> {
        let (store, node) = (self.store.clone()?, self.node.as_ref()?);
        let group = store.group;
        self.places.follow(node);
        let source = PoolSource { store, locate: self.places.clone(), meter: self.meter.clone() };
        Some(Tables { source: Rc::new(source), cache: self.cache.clone(), group })
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let node_rests = self.node.as_ref().is_some_and(|node| node.orders_in_flight() == 0);
        node_rests && self.executor.is_empty() && self.events.borrow().is_empty()
    }

    /// A host connects to the embedded target.
    pub fn accept_target(&mut self, pipe: Pipe) {
        let id = self.target.next;
        self.target.next += 1;
        self.target.connections.insert(id, TargetConnection::new(pipe));
    }

    /// Gives the replica another cache of blocks, of at most so many bytes, for all later reads.
    pub fn replace_cache(&mut self, len: usize) {
        self.cache = Rc::new(LocalCache::new(len));
    }

    /// Changes the budgets of the replica's caches while they are in use: the bytes of blocks, and
    /// the bytes that open files keep in memory.
    pub fn set_cache(&mut self, blocks_len: usize, open_len: usize) {
        self.cache.blocks.set_capacity(blocks_len);
        let is_less = self.cache.open.borrow_mut().set_capacity(open_len);
        if let Some(node) = self.node.as_mut().filter(|_| is_less) {
            node.close_files();
        }
    }

    /// Makes the embedded target behave like one of another make.
    pub fn serve_foreign(&mut self, damage: u64) {
        self.target.foreign = Some(Foreign { damage, writes: 0, damaged: 0 });
    }

    /// Writes that the target damaged.
    #[must_use]
    pub fn damaged_writes(&self) -> u64 {
        self.target.foreign.as_ref().map_or(0, |foreign| foreign.damaged)
    }

    /// A bit flips in the next file of the kind that a job builds.
    pub fn flip_next(&mut self, flip: Flip) {
        self.flips.borrow_mut().next = Some(flip);
    }

    /// Files in which bits flipped in memory, in the order in which they were built.
    #[must_use]
    pub fn flipped(&self) -> Vec<FileId> {
        self.flips.borrow().flipped.iter().map(|flipped| flipped.placement.file).collect()
    }

    /// The places on the disk where the lowest bit flips, too, now that the file is written there.
    /// Each is returned once.
    pub fn take_flips_on_disk(&mut self) -> Vec<u64> {
        let Some(node) = &self.node else { return Vec::new() };
        let (pool, geometry) = (node.pool(), node.pool().region());
        let mut offsets = Vec::new();
        for flipped in self.flips.borrow_mut().flipped.iter_mut().filter(|flipped| flipped.is_due) {
            let placement = &flipped.placement;
            if pool.placement(placement.file).is_some() {
                let mut extents = gabion_pool::extents(geometry, placement, flipped.at, 1);
                offsets.extend(extents.next().map(|(offset, _)| offset));
                flipped.is_due = false;
            }
        }
        offsets
    }

    /// Nobody waits for a mark any more. Its state may be captured already, and would keep files.
    pub fn withdraw_mark(&mut self, mark: MarkId) {
        if let Some(node) = &mut self.node {
            node.withdraw_mark(mark);
        }
        self.marked.remove(&mark);
        self.withdrawn.insert(mark);
    }

    /// The outcome of a mark, once it is known.
    pub fn take_marked(&mut self, mark: MarkId) -> Option<Result<Captured>> {
        self.marked.remove(&mark)
    }

    /// The places where commits of the placement log ordered since the last call will write.
    pub fn take_commit_writes(&mut self) -> Vec<(u64, usize)> {
        std::mem::take(&mut self.commit_writes)
    }

    /// Whether the replica is open and its placement log has all of its state.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.node.is_some() && self.commits.is_empty()
    }

    /// Cuts every NVMe/TCP connection that this process made.
    pub fn cut_remotes(&self) {
        for remote in self.remotes.values() {
            remote.pipes.iter().for_each(Pipe::cut);
        }
    }

    /// Runs some of the ready work. Returns orders to the world.
    pub fn pump(&mut self, now_ms: u64) -> Vec<Wish> {
        let mut wishes = Vec::new();
        self.handle.drive();
        self.run_some_tasks();
        self.take_events(&mut wishes);
        self.drive_remotes(now_ms);
        self.drive_target(now_ms);
        let Some(node) = &mut self.node else { return wishes };
        node.advance(now_ms);
        node.invariants();
        while let Some(output) = self.node.as_mut().and_then(|node| node.poll_output()) {
            self.carry_out(output, &mut wishes);
        }
        wishes
    }

    fn run_some_tasks(&mut self) {
        if let Some(node) = &self.node {
            self.places.follow(node);
        }
        self.run_tasks();
        if let Some(node) = &mut self.node {
            let damaged = self.places.0.damaged.take();
            damaged.iter().for_each(|(file, error)| node.handle_damage(*file, error));
        }
    }

    fn run_tasks(&mut self) {
        for _ in 0..1 + self.random.below(4) {
            let ready = self.executor.ready();
            if ready.is_empty() {
                return;
            }
            let next = ready[self.random.below(ready.len() as u64) as usize];
            self.executor.run_one(next);
        }
    }

    fn take_events(&mut self, wishes: &mut Vec<Wish>) {
        let events: Vec<Event> = self.events.borrow_mut().drain(..).collect();
        for event in events {
            match event {
                Event::Opened(Ok((mut node, store))) => {
                    if self.awaits_word {
                        node.await_word();
                    }
                    self.node = Some(node);
                    self.store = Some(store);
                }
                Event::Opened(Err(error)) => wishes.push(Wish::Die(error)),
                Event::JobFile(id, file) => {
                    if let Some(node) = &mut self.node {
                        let most = &mut self.unshipped_of_job_max;
                        *most = node.unshipped_bytes_of(id).max(*most);
                        node.handle_job_file(id, file);
                    }
                }
                Event::Done(id, done) => {
                    self.commits.remove(&id);
                    if let Some(node) = &mut self.node {
                        node.handle_done(id, done);
                    }
                }
                Event::TargetIo { connection, id, session, result, write } => {
                    if let (Some((offset, ..)), Some(node)) = (write, &self.node) {
                        wishes
                            .extend(check::landing(node, session, offset).err().map(Wish::Report));
                    }
                    let ended_well = result.is_ok();
                    if let (Some((offset, ..)), Err(error), Some(node)) =
                        (write, &result, &mut self.node)
                        && error.kind() == ErrorKind::Io
                    {
                        node.handle_target_write_failed(offset, error);
                    }
                    if let (Some(connection), Some(subsystem)) = (
                        self.target.connections.get_mut(&connection),
                        self.target.subsystem.as_mut(),
                    ) {
                        connection.complete_io(subsystem, id, result);
                    }
                    if let (Some((offset, len, crc)), Some(node), true, None) =
                        (write, &mut self.node, ended_well, &self.target.foreign)
                    {
                        node.handle_target_write(offset, len, crc);
                    }
                }
            }
        }
    }

    fn carry_out(&mut self, output: Output, wishes: &mut Vec<Wish>) {
        match output {
            Output::Send { frame } => wishes.push(Wish::Send(frame)),
            Output::Disconnect { peer, connection, reason } => {
                wishes.push(Wish::Disconnect(peer, connection, reason));
            }
            Output::Work(id, work) => self.begin(id, work),
            Output::Deliver { .. } => {}
            Output::Target(command) => self.change_target(command),
            Output::JobsMayBuild(until) => self.credit.may_build(until),
            Output::Remote(RemoteCommand::Connect { to, subsystem, host, .. }) => {
                let (admin, admin_server) = Pipe::pair(self.random.fork());
                let (io, io_server) = Pipe::pair(self.random.fork());
                let config = InitiatorConfig::new(host, [7; 16], subsystem);
                let initiator = Initiator::connect(config, admin.clone(), io.clone());
                let initiator = Rc::new(RefCell::new(initiator));
                let handle = MediumHandle::new(SharedInitiator(initiator.clone()));
                let remote = Remote { initiator, handle, pipes: [admin, io] };
                if let Some(old) = self.remotes.insert(to, remote) {
                    old.pipes.iter().for_each(Pipe::cut);
                    self.replaced.push(old);
                }
                wishes.push(Wish::ConnectTarget(to, admin_server, io_server));
            }
            Output::Remote(RemoteCommand::Drop { to }) => {
                if let Some(remote) = self.remotes.get(&to) {
                    remote.pipes.iter().for_each(Pipe::cut);
                }
            }
            // A process reads these into its memory, which is not simulated. They must be there.
            Output::Replaced(replaced) => {
                for (meta, place) in replaced.added {
                    let (named, there) = (meta.checksum, place.checksum);
                    assert_eq!((meta.id, named), (place.file, there), "an edit's file");
                    assert!(!replaced.removed.contains(&meta.id), "{} comes and goes", meta.id);
                }
            }
            Output::FilesGone(files) => {
                for file in files {
                    self.cache.evict_file(file);
                }
            }
            Output::Marked(mark, _) if self.withdrawn.remove(&mark) => {}
            Output::Marked(mark, captured) => _ = self.marked.insert(mark, captured),
            // Members reach each other by their numbers here.
            Output::View(_) => {}
            Output::Notice(text) => wishes.push(Wish::Tell(text)),
            Output::Reopen(reason) => wishes.push(Wish::Reopen(reason)),
            Output::Fatal(error) => wishes.push(Wish::Die(error)),
        }
    }

    /// Begins a work order as a task.
    fn begin(&mut self, id: WorkId, work: Work) {
        let Some(store) = self.store.clone() else { return };
        let events = self.events.clone();
        if let Work::Commit(commit) = &work {
            self.commits.insert(id);
            let writes = commit.stages.iter().map(|stage| (stage.offset, stage.data.len()));
            self.commit_writes.extend(writes);
        }
        match work {
            Work::Job(order) => {
                let (credit, flips) = (self.credit.clone(), self.flips.clone());
                self.executor.spawn(async move {
                    let is_bounded = order.is_bounded;
                    let of_compaction = order.inputs.recipe.kind == JobKind::Compaction;
                    let built = |file: BuiltFile| {
                        if is_bounded {
                            credit.0.borrow_mut().0.built(file.memory);
                        }
                        let file = flips.borrow_mut().pass(file, of_compaction);
                        events.borrow_mut().push_back(Event::JobFile(id, file));
                    };
                    let wait = async || match is_bounded {
                        true => credit.wait().await,
                        false => Ok(()),
                    };
                    let done = Done::Job(work::run_job(*order, &store, built, wait).await);
                    events.borrow_mut().push_back(Event::Done(id, done));
                });
            }
            Work::Ship(order) => {
                let remote = self.connection(order.to);
                self.executor.spawn(async move {
                    let result = match remote.await {
                        Ok(handle) => work::run_ship(&order, &handle).await,
                        Err(error) => Err(error),
                    };
                    events.borrow_mut().push_back(Event::Done(id, Done::Ship(result)));
                });
            }
            Work::Fetch(order) => {
                let remote = self.connection(order.from);
                self.executor.spawn(async move {
                    let result = match remote.await {
                        Ok(handle) => work::run_fetch(&order, &handle).await,
                        Err(error) => Err(error),
                    };
                    events.borrow_mut().push_back(Event::Done(id, Done::Fetch(result)));
                });
            }
            work => {
                self.executor.spawn(async move {
                    let done = work::run_local(work, &store).await;
                    events.borrow_mut().push_back(Event::Done(id, done));
                });
            }
        }
    }

    /// The namespace of a secondary, as soon as its connection has shaken hands.
    fn connection(&self, with: ReplicaId) -> impl Future<Output = Result<MediumHandle>> + use<> {
        let remote = self.remotes.get(&with);
        let remote = remote.map(|remote| (remote.initiator.clone(), remote.handle.clone()));
        async move {
            let none = || Error::unavailable("no connection to the secondary's target");
            let (initiator, handle) = remote.ok_or_else(none)?;
            ready(&initiator).await.map(|()| handle)
        }
    }

    fn drive_remotes(&mut self, now_ms: u64) {
        for remote in self.remotes.values().chain(&self.replaced) {
            remote.initiator.borrow_mut().progress(now_ms);
            remote.handle.drive();
        }
        // A task that still waits for one holds its handle.
        self.replaced.retain(|remote| remote.handle.is_shared());
    }

    fn change_target(&mut self, command: TargetCommand) {
        match command {
            TargetCommand::Open { subsystem, session, hosts } => {
                if let Some(open) = &mut self.target.subsystem {
                    open.close();
                }
                self.target.opening = Some((subsystem, session, hosts));
            }
            TargetCommand::Admit { host, ranges } => {
                if let Some(subsystem) = &mut self.target.subsystem {
                    ranges.into_iter().for_each(|range| subsystem.admit(&host, range));
                }
            }
            TargetCommand::Close => {
                if let Some(open) = &mut self.target.subsystem {
                    open.close();
                }
            }
            TargetCommand::Revoke(ranges) => {
                if let Some(subsystem) = &mut self.target.subsystem {
                    ranges.into_iter().for_each(|range| subsystem.revoke(range));
                }
            }
        }
    }

    fn drive_target(&mut self, now_ms: u64) {
        let Some(store) = self.store.clone() else { return };
        let target = &mut self.target;
        if let Some(subsystem) = &mut target.subsystem {
            for (number, connection) in &mut target.connections {
                connection.progress(subsystem, now_ms);
                while let Some(mut io) = connection.poll_io() {
                    if let (Some(foreign), BackendKind::Write { offset, data, .. }) =
                        (&mut target.foreign, &mut io.kind)
                        && store
                            .geometry
                            .namespace()
                            .slot_at(*offset)
                            .is_some_and(|at| at.1.is_some())
                    {
                        foreign.receive(data);
                    }
                    let (events, store, number) = (self.events.clone(), store.clone(), *number);
                    let session = target.session;
                    self.executor.spawn(async move {
                        let (result, write) = run_io(io.kind, &store).await;
                        events.borrow_mut().push_back(Event::TargetIo {
                            connection: number,
                            id: io.id,
                            session,
                            result,
                            write,
                        });
                    });
                }
            }
            target.connections.retain(|_, connection| !connection.is_finished());
        }
        if !target.is_drained() {
            return;
        }
        let Some((name, session, hosts)) = target.opening.take() else { return };
        let len = store.geometry.len();
        let config = TargetConfig::new(name, hosts, len, store.pool_id);
        match Subsystem::new(config) {
            Ok(subsystem) => target.open(subsystem, session),
            Err(error) => unreachable!("the target's configuration is sound: {error}"),
        }
        if let Some(node) = &mut self.node {
            node.handle_target_open(session, 4420);
        }
    }
}

async fn run_io(
    kind: BackendKind,
    store: &LocalStore,
) -> (Result<Option<Bytes>>, Option<(u64, u32, u32)>) {
    let backing = Backing::new(store.geometry.extents().map(|extent| extent.range()).collect());
    let locate = |offset: u64, len: usize| {
        let apart = || Error::invalid(format!("{len} bytes at {offset} do not lie together"));
        backing.locate(offset, len as u64).ok_or_else(apart)
    };
    match kind {
        BackendKind::Read { offset, len } => {
            let read = match locate(offset, len) {
                Ok(at) => store.medium.read(at, len).await,
                Err(error) => Err(error),
            };
            (read.map(|bytes| Some(bytes.freeze())), None)
        }
        BackendKind::Write { offset, data, crc } => {
            let write = Some((offset, data.len() as u32, crc));
            let written = match locate(offset, data.len()) {
                Ok(at) => store.medium.write(at, data).await,
                Err(error) => Err(error),
            };
            (written.map(|()| None), write)
        }
        BackendKind::Flush => (store.medium.flush().await.map(|()| None), None),
    }
}

/// Waits until a medium has nothing under way: a late write would land in slots used again.
async fn drained(medium: &MediumHandle) {
    poll_fn(|cx| match medium.in_flight() {
        0 => Poll::Ready(()),
        _ => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

/// Waits until an initiator has shaken hands or failed.
async fn ready(initiator: &Rc<RefCell<Initiator<Pipe>>>) -> Result<()> {
    use gabion_media::nvme::initiator::InitiatorState;
    poll_fn(|cx| match initiator.borrow().state() {
        InitiatorState::Connecting => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        InitiatorState::Ready => Poll::Ready(Ok(())),
        InitiatorState::Failed(error) => Poll::Ready(Err(error)),
    })
    .await
}
