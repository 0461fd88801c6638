//! The cluster: machines, the links between them, clients, and the seed that decides who goes next and
//! what breaks.

use crate::Random;
use crate::check;
use crate::client::{Client, Locks, TWINS, twins_agree};
use crate::history::{self, Operation};
use crate::lost::Moments;
use crate::pipe::Pipe;
use crate::process::{Process, Wish};
use gabion_base::units::{MIB, SLOT_LEN};
use gabion_base::{ConfigNumber, GroupId, ReplicaId, SlotIndex, crc};
use gabion_engine::{Compression, Keyspace, SstOptions, TreeConfig};
use gabion_media::simulated::{DiskOptions, Fault, OperationClass, SimulatedDisk, SimulatedMemory};
use gabion_node::{AckLevel, CompactionMode, GroupConfig, Node, NodeOptions, open};
use gabion_pool::SlotState;
use gabion_replication::{Frame, Message};
use std::collections::{BTreeMap, VecDeque};

/// What may go wrong, each about once in so many steps; 0 is never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Kill of one process.
    pub kill: u64,
    /// Kill of every process at once.
    pub kill_all: u64,
    /// Power cut of one machine. Its ring is lost: with the level `replicated`, a member that comes
    /// back shorter pulls what it lacks.
    pub power: u64,
    /// Break of the connection between two members.
    pub link: u64,
    /// Break of the NVMe/TCP connections of one process.
    pub pipe: u64,
    /// One disk becomes some twenty times slower, for a while.
    pub slow: u64,
    /// One of the next writes to a disk is held back, for up to half a second (FAULTS.md H5).
    pub hold: u64,
    /// The disk of a secondary turns out to have lost the last commits of its placement log, files and
    /// applied edits with them (FAULTS.md E7), at a kill of its process.
    pub lost: u64,
    /// One disk has no room for files, for up to two seconds (FAULTS.md E10).
    pub full: u64,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Members of the group.
    pub replicas: u32,
    /// Steps with clients and faults.
    pub steps: u64,
    /// Clients.
    pub clients: usize,
    /// Keys.
    pub keys: u64,
    /// Faults.
    pub faults: Faults,
    /// Who compacts.
    pub compaction: CompactionMode,
    /// What an acknowledgement means.
    pub ack: AckLevel,
    /// How files are compressed.
    pub compression: Compression,
    /// Pairs of keys that are always written together.
    pub twins: u64,
    /// Whether half of the keys are counters, which only increments and deletes touch.
    pub counters: bool,
    /// The step at which every machine loses power at once (FAULTS.md R10). At level `replicated`
    /// clients end there.
    pub power_all_at: Option<u64>,
    /// A defect that the run has to show.
    #[cfg(feature = "planted")]
    pub planted: Option<gabion_node::Mutant>,
}

impl Options {
    /// What varies with the seed besides chance itself.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let compaction =
            if seed % 5 == 4 { CompactionMode::EveryReplica } else { CompactionMode::Primary };
        let ack = if seed % 3 == 2 { AckLevel::Durable } else { AckLevel::Replicated };
        let replicas = [3, 3, 2, 3, 1, 3, 4][(seed % 7) as usize];
        let compression = if seed % 4 == 1 { Compression::Lz4 } else { Compression::None };
        let mut options = Self { replicas, compaction, ack, compression, ..Self::default() };
        if seed % 4 == 3 {
            // A calm seed: trees grow deeper between crashes.
            options.faults.kill *= 5;
            options.faults.power *= 5;
            options.faults.kill_all *= 5;
        }
        if seed % 4 == 2 {
            options.faults.lost = 300;
        }
        if seed.is_multiple_of(4) {
            options.faults.hold = 200;
        }
        if seed % 6 == 5 {
            options.faults.full = 1_000;
        }
        options
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            replicas: 3,
            steps: 6_000,
            clients: 4,
            keys: 40,
            faults: Faults {
                kill: 900,
                kill_all: 5_000,
                power: 2_500,
                link: 1_500,
                pipe: 1_500,
                slow: 1_500,
                hold: 0,
                lost: 0,
                full: 0,
            },
            compaction: CompactionMode::Primary,
            ack: AckLevel::Replicated,
            compression: Compression::None,
            twins: 8,
            counters: true,
            power_all_at: None,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }
}

/// What meets a primary that connects to the NVMe/TCP target of a secondary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets {
    /// The target.
    Open,
    /// Nobody: the connection ends at once.
    Refused,
    /// Nobody as yet: what is sent lies there until targets are open.
    Silent,
}

/// What a run did, and a checksum over all that happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Operations of clients in the history.
    pub operations: u64,
    /// Checksum over every frame, kill, and break, in order.
    pub trace: u32,
    /// Kills and power cuts.
    pub crashes: u64,
    /// Flushes, over all processes.
    pub flushes: u64,
    /// Compactions.
    pub compactions: u64,
    /// Edits applied.
    pub edits: u64,
    /// Files shipped.
    pub shipped_files: u64,
    /// File bytes shipped.
    pub shipped_bytes: u64,
    /// File bytes that secondaries took as theirs.
    pub received_bytes: u64,
    /// Files that a member asked for.
    pub pulled_files: u64,
    /// Files that a member did not ask for, though an edit added them and they were not there.
    pub skipped_files: u64,
    /// Commits of placement logs that a disk lost, several at once counted as one.
    pub lost_commits: u64,
    /// Flushes and compactions that found no room on the disk.
    pub jobs_without_space: u64,
}

impl Outcome {
    /// Adds what another run did; the checksum stays.
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.crashes += other.crashes;
        self.flushes += other.flushes;
        self.compactions += other.compactions;
        self.edits += other.edits;
        self.shipped_files += other.shipped_files;
        self.shipped_bytes += other.shipped_bytes;
        self.received_bytes += other.received_bytes;
        self.pulled_files += other.pulled_files;
        self.skipped_files += other.skipped_files;
        self.lost_commits += other.lost_commits;
        self.jobs_without_space += other.jobs_without_space;
    }
}

struct Machine {
    disk: SimulatedDisk,
    ring: SimulatedMemory,
    process: Option<Process>,
    starts: u64,
    down_until_ms: u64,
    /// When writes that are held back go on.
    held_until_ms: u64,
    /// Until when there is no room for files.
    full_until_ms: u64,
    moments: Moments,
}

impl Machine {
    /// Keeps what it takes to lose the last commits of the placement log.
    fn remember(&mut self) {
        let Some(process) = &mut self.process else { return };
        for (offset, len) in process.take_commit_writes() {
            self.moments.overwritten(offset, &self.disk.peek(offset, len));
        }
        if let Some(node) = process.node.as_ref().filter(|_| process.is_quiet()) {
            self.moments.quiet(node);
        }
    }

    /// Takes the room from slots that hold nothing yet, as a thin file system does that is full. What the
    /// log writes gets its room, and what others ship here: a disk that refuses those ends the process or
    /// the connection, which are other faults.
    fn fill_up(&self, now_ms: u64) {
        let node = self.process.as_ref().and_then(|process| process.node.as_ref());
        let mut ranges = Vec::new();
        if let Some(node) = node.filter(|_| now_ms < self.full_until_ms) {
            let region = node.pool().region();
            for slot in (0..node.pool().counts().total).map(SlotIndex) {
                let state = node.pool().slot_state(slot);
                if matches!(state, Some(SlotState::Free | SlotState::Allocated { .. })) {
                    ranges.push((region.slot_offset(slot), SLOT_LEN));
                }
            }
        }
        self.disk.fill_up(ranges);
    }
}

/// A connection between two members: frames in both directions.
struct Link {
    number: u64,
    /// From the lower index to the higher, and back.
    queues: [VecDeque<Frame>; 2],
    incarnations: [u64; 2],
}

/// A frame of the log that a member was sent.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Index of the receiver.
    pub to: usize,
    /// The frame.
    pub frame: Frame,
}

/// A cluster in one thread.
pub struct World {
    seed: u64,
    random: Random,
    options: Options,
    group: GroupConfig,
    machines: Vec<Machine>,
    links: BTreeMap<(usize, usize), Link>,
    next_link: u64,
    /// Frames with records, when a test keeps them.
    kept: Option<Vec<Kept>>,
    targets: Targets,
    /// Connections that no target took yet: to which machine, at which of its starts.
    untaken: Vec<(usize, u64, [Pipe; 2])>,
    clients: Vec<Client>,
    locks: Locks,
    history: Vec<Operation>,
    next_value: u64,
    moment: u64,
    now_ms: u64,
    outcome: Outcome,
    /// Kills and power cuts, for reports of failure.
    events: Vec<String>,
    deaths: Vec<String>,
    /// What a client saw that cannot be.
    violation: Option<String>,
}

const POOL_LEN: u64 = 320 * MIB;
const SEGMENT_LEN: u64 = 256 * 1024;
/// Less than most files have: the bound is met in every run.
const UNSHIPPED_BYTES_MAX: u64 = 4 * 1024;

impl World {
    /// A cluster of empty pools.
    ///
    /// # Panics
    /// When the options cannot work.
    #[must_use]
    pub fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
        let sst = SstOptions { compression: options.compression, ..SstOptions::default() };
        let tree = TreeConfig {
            sst,
            memtable_len: 24 * 1024,
            l0_trigger: 2 + (seed % 3) as u32,
            sst_len: 64 * 1024,
            level1_len: 256 * 1024,
            ..TreeConfig::default()
        };
        let group = GroupConfig {
            group: GroupId(1),
            config: ConfigNumber(1),
            members: (1..=options.replicas).map(ReplicaId).collect(),
            compaction: options.compaction,
            ack: options.ack,
            ring_len: 4 * SEGMENT_LEN,
            segment_len: SEGMENT_LEN,
            tree,
        };
        let mut machines = Vec::new();
        for member in &group.members {
            let delay = random.below(6) as u32;
            let disk = SimulatedDisk::new(DiskOptions::delayed(POOL_LEN, random.number(), delay));
            let handle = disk.handle();
            let pool_id = [member.get() as u8; 16];
            disk.block_on(&handle, open::create(&handle, &group, *member, pool_id))
                .expect("the pool is large enough");
            let ring = SimulatedMemory::new(group.ring_len as usize);
            let moments = Moments::default();
            machines.push(Machine {
                disk,
                ring,
                process: None,
                starts: 0,
                down_until_ms: 0,
                held_until_ms: 0,
                full_until_ms: 0,
                moments,
            });
        }
        let clients = (0..options.clients).map(|_| Client::default()).collect();
        Self {
            seed,
            random,
            options,
            group,
            machines,
            links: BTreeMap::new(),
            next_link: 1,
            kept: None,
            targets: Targets::Open,
            untaken: Vec::new(),
            clients,
            locks: Locks::new(),
            history: Vec::new(),
            next_value: 1,
            moment: 0,
            now_ms: 1,
            outcome: Outcome::default(),
            events: Vec::new(),
            deaths: Vec::new(),
            violation: None,
        }
    }

    /// Runs a seed: faults and clients, then peace, then the checks.
    ///
    /// # Errors
    /// What did not hold, with the seed.
    pub fn run(seed: u64, options: Options) -> Result<Outcome, String> {
        let mut world = Self::new(seed, options);
        let result = world.run_all();
        result.map(|()| world.outcome()).map_err(|error| {
            let events = world.events.join("\n  ");
            format!("seed {seed}: {error}\nwhat happened:\n  {events}\nrepeat: GABION_FIRST_SEED={seed} GABION_SEEDS=1 cargo test -p gabion-sim --test seeds")
        })
    }

    /// Steps with clients and faults, for a test that looks at the cluster in between. After the last
    /// comes [`Self::finish`].
    ///
    /// # Errors
    /// What did not hold.
    pub fn advance(&mut self, steps: u64) -> Result<(), String> {
        for _ in 0..steps {
            self.inject_faults();
            self.clients_act();
            self.step();
            self.look_for_violation()?;
        }
        Ok(())
    }

    /// Peace, then the checks.
    ///
    /// # Errors
    /// What did not hold.
    pub fn finish(&mut self) -> Result<(), String> {
        self.settle()?;
        self.final_reads()?;
        history::check(&self.history)?;
        check::at_rest(self)
    }

    /// Keeps a copy of each frame with records that is delivered from now on.
    pub fn keep_frames(&mut self) {
        self.kept.get_or_insert_default();
    }

    /// The frames that were kept until now.
    pub fn take_kept(&mut self) -> Vec<Kept> {
        self.kept.take().unwrap_or_default()
    }

    /// Number of the connection over which a member hears another now, if there is one.
    #[must_use]
    pub fn connection(&self, from: ReplicaId, to: usize) -> Option<u64> {
        let link = self.links.get(&link_key(self.index_of(from)?, to).0)?;
        Some(link.number)
    }

    /// Delivers a frame over the connection that is there now, whatever the frame says of it.
    ///
    /// # Panics
    /// When there is no connection, or no replica to deliver to.
    pub fn deliver_now(&mut self, kept: Kept) {
        let Kept { to, frame } = kept;
        let (from, now_ms) = (frame.from, self.now_ms);
        let connection = self.connection(from, to).expect("members are connected at rest");
        let node = self.node_mut(to).expect("replicas are up at rest");
        node.handle_message(from, connection, frame, now_ms);
    }

    /// Changes what meets a primary that connects to a target from now on.
    pub fn set_targets(&mut self, targets: Targets) {
        self.targets = targets;
        if targets == Targets::Silent {
            return;
        }
        for (to, start, pipes) in std::mem::take(&mut self.untaken) {
            self.reach_target(to, start, pipes);
        }
    }

    /// From now on, for so long or until the cluster is to come to rest, a disk has no room for files.
    pub fn fill_disk(&mut self, index: usize, full_ms: u64) {
        self.trace(b"full");
        self.machines[index].full_until_ms = self.now_ms.saturating_add(full_ms);
    }

    fn run_all(&mut self) -> Result<(), String> {
        for step in 0..self.options.steps {
            if self.options.power_all_at == Some(step) {
                (0..self.machines.len()).for_each(|index| self.kill(index, true));
                if self.options.ack == AckLevel::Replicated {
                    return self.check_prefix();
                }
            }
            self.advance(1)?;
        }
        self.finish()
    }

    /// Rings are lost everywhere: what is left must be what a whole number of records made.
    fn check_prefix(&mut self) -> Result<(), String> {
        self.settle()?;
        check::at_rest(self)?;
        let records = self.scan(0)?;
        check::prefix(&self.history, &records)
    }

    fn look_for_violation(&mut self) -> Result<(), String> {
        self.violation.take().map_or(Ok(()), Err)
    }

    /// The group's configuration.
    #[must_use]
    pub fn group(&self) -> &GroupConfig {
        &self.group
    }

    /// Machines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.machines.len()
    }

    /// Whether there is no machine.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.machines.is_empty()
    }

    /// A machine's replica, when it is up.
    #[must_use]
    pub fn node(&self, index: usize) -> Option<&Node> {
        self.machines[index].process.as_ref()?.node.as_deref()
    }

    // ---- one step

    fn step(&mut self) {
        self.now_ms += self.random.below(3);
        self.moment += 1;
        self.start_processes();
        self.connect_links();
        for index in 0..self.machines.len() {
            for _ in 0..self.random.below(3) {
                self.machines[index].disk.tick();
            }
            self.deliver(index);
            self.pump(index);
        }
        self.poll_clients();
    }

    fn start_processes(&mut self) {
        let (now_ms, options) = (self.now_ms, node_options(&self.options));
        for machine in &mut self.machines {
            if machine.process.is_none() && now_ms >= machine.down_until_ms {
                machine.starts += 1;
                let ring = Box::new(machine.ring.clone());
                let random = self.random.fork();
                let handle = machine.disk.handle();
                let starts = machine.starts;
                let options = options.clone();
                machine.process =
                    Some(Process::start(starts, handle, ring, options, now_ms, random));
            }
        }
    }

    fn connect_links(&mut self) {
        for a in 0..self.machines.len() {
            for b in a + 1..self.machines.len() {
                let up = self.node(a).is_some() && self.node(b).is_some();
                if !up || self.links.contains_key(&(a, b)) || !self.random.once_in(20) {
                    continue;
                }
                let number = self.next_link;
                self.next_link += 1;
                let incarnations = [self.machines[a].starts, self.machines[b].starts];
                self.links
                    .insert((a, b), Link { number, queues: Default::default(), incarnations });
                for (me, other) in [(a, b), (b, a)] {
                    let (peer, now_ms) = (self.group.members[other], self.now_ms);
                    if let Some(node) = self.node_mut(me) {
                        node.handle_connected(peer, number, now_ms);
                    }
                }
            }
        }
    }

    fn node_mut(&mut self, index: usize) -> Option<&mut Node> {
        self.machines[index].process.as_mut()?.node.as_deref_mut()
    }

    fn deliver(&mut self, index: usize) {
        for other in 0..self.machines.len() {
            let count = self.random.below(4);
            for _ in 0..count {
                let (key, direction) = link_key(other, index);
                let Some(link) = self.links.get_mut(&key) else { break };
                let number = link.number;
                let Some(frame) = link.queues[direction].pop_front() else { break };
                let encoded = frame.encode().expect("a frame within its limits").concat();
                self.trace(&encoded);
                let frame = Frame::decode(&encoded).expect("what was encoded");
                if let (Some(kept), Message::Records { .. }) = (&mut self.kept, &frame.message) {
                    kept.push(Kept { to: index, frame: frame.clone() });
                }
                let (from, now_ms) = (self.group.members[other], self.now_ms);
                if let Some(node) = self.node_mut(index) {
                    node.handle_message(from, number, frame, now_ms);
                }
            }
        }
        let now_ms = self.now_ms;
        if let Some(node) = self.node_mut(index) {
            node.handle_tick(now_ms);
        }
    }

    fn pump(&mut self, index: usize) {
        let now_ms = self.now_ms;
        let Some(process) = &mut self.machines[index].process else { return };
        let wishes = process.pump(now_ms);
        self.machines[index].fill_up(now_ms);
        self.check_unshipped(index);
        if self.options.faults.lost > 0 {
            self.machines[index].remember();
        }
        for wish in wishes {
            match wish {
                Wish::Send(frame) => self.send(index, frame),
                Wish::Disconnect(peer, _, _) => {
                    if let Some(other) = self.index_of(peer) {
                        self.break_link(index, other);
                    }
                }
                Wish::ConnectTarget(to, admin, io) => {
                    let Some(to) = self.index_of(to) else { continue };
                    self.reach_target(to, self.machines[to].starts, [admin, io]);
                }
                Wish::Report(violation) => {
                    let text = format!("replica {}: {violation}", index + 1);
                    self.violation.get_or_insert(text);
                }
                Wish::Die(error) => {
                    self.deaths.push(format!("replica {}: {error}", index + 1));
                    let death = format!("replica {} ended itself: {error}", index + 1);
                    self.violation.get_or_insert(death);
                    self.kill(index, false);
                }
            }
        }
    }

    /// A connection arrives at a machine that had started so many times when it was made.
    fn reach_target(&mut self, to: usize, start: u64, pipes: [Pipe; 2]) {
        let machine = &mut self.machines[to];
        let process = machine.process.as_mut().filter(|_| machine.starts == start);
        match (process, self.targets) {
            (Some(process), Targets::Open) => {
                pipes.into_iter().for_each(|pipe| process.accept_target(pipe));
            }
            (Some(_), Targets::Silent) => self.untaken.push((to, start, pipes)),
            _ => pipes.iter().for_each(Pipe::cut),
        }
    }

    /// No job is begun while too much of what others built waits in memory.
    fn check_unshipped(&mut self, index: usize) {
        let Some(counters) = self.node(index).map(Node::counters) else { return };
        let unshipped = counters.unshipped_bytes_at_job_max;
        if unshipped > UNSHIPPED_BYTES_MAX {
            let what = format!("a job was begun while {unshipped} bytes were not shipped");
            self.violation.get_or_insert(what);
        }
    }

    fn send(&mut self, from: usize, frame: Frame) {
        let Some(to) = self.index_of(frame.to) else { return };
        let (key, direction) = link_key(from, to);
        if let Some(link) = self.links.get_mut(&key)
            && link.number == frame.connection
        {
            link.queues[direction].push_back(frame);
        }
    }

    fn index_of(&self, member: ReplicaId) -> Option<usize> {
        self.group.members.iter().position(|other| *other == member)
    }

    // ---- faults

    fn inject_faults(&mut self) {
        let faults = self.options.faults;
        let count = self.machines.len() as u64;
        let happens = |random: &mut Random, rate: u64| rate > 0 && random.once_in(rate);
        if happens(&mut self.random, faults.kill) {
            let index = self.random.below(count) as usize;
            self.kill(index, false);
        }
        if happens(&mut self.random, faults.power) {
            let index = self.random.below(count) as usize;
            if self.may_lose_power() {
                self.kill(index, true);
            }
        }
        if happens(&mut self.random, faults.kill_all) {
            (0..self.machines.len()).for_each(|index| self.kill(index, false));
        }
        if happens(&mut self.random, faults.link) {
            let (a, b) = (self.random.below(count) as usize, self.random.below(count) as usize);
            self.break_link(a, b);
        }
        if happens(&mut self.random, faults.pipe) {
            let index = self.random.below(count) as usize;
            self.trace(b"pipe");
            if let Some(process) = &self.machines[index].process {
                process.cut_remotes();
            }
        }
        if happens(&mut self.random, faults.lost) {
            let index = self.random.below(count) as usize;
            self.lose_commits(index);
        }
        for machine in &self.machines {
            if machine.held_until_ms <= self.now_ms {
                machine.disk.release_held();
            }
        }
        if happens(&mut self.random, faults.hold) {
            let index = self.random.below(count) as usize;
            let (nth, held_ms) = (1 + self.random.below(8), self.random.below(500));
            let machine = &mut self.machines[index];
            machine.disk.plan(OperationClass::Write, nth, Fault::Hold);
            machine.held_until_ms = self.now_ms + held_ms;
        }
        if happens(&mut self.random, faults.full) {
            let index = self.random.below(count) as usize;
            let full_ms = self.random.below(2_000);
            self.fill_disk(index, full_ms);
        }
        if happens(&mut self.random, faults.slow) {
            let index = self.random.below(count) as usize;
            let factor = [1, 1, 20][self.random.below(3) as usize];
            self.machines[index].disk.slow_down(factor);
        }
    }

    /// At level `replicated` a power cut everywhere loses what only rings held, and so does one after
    /// another faster than members catch up: then a machine may lose power only while others hold all.
    fn may_lose_power(&self) -> bool {
        if self.options.ack == AckLevel::Durable {
            return true;
        }
        if self.machines.len() == 1 {
            return false;
        }
        let Some(head) = self.node(0).filter(|head| head.chain().is_ready()) else { return false };
        let whole = |index: usize| self.node(index).is_some_and(|n| n.log_end() >= head.log_end());
        (0..self.machines.len()).all(whole)
    }

    fn kill(&mut self, index: usize, power: bool) {
        self.trace(&[u8::from(power), index as u8]);
        for other in 0..self.machines.len() {
            self.break_link(index, other);
        }
        let (seed, wait) = (self.random.number(), self.random.below(400));
        let mut outcome = std::mem::take(&mut self.outcome);
        self.count_work(index, &mut outcome);
        self.outcome = outcome;
        let machine = &mut self.machines[index];
        if machine.process.take().is_none() {
            return;
        }
        self.outcome.crashes += 1;
        let what = if power { "power cut" } else { "kill" };
        self.events.push(format!(
            "{what} of replica {} at {} ({} ms)",
            index + 1,
            self.moment,
            self.now_ms
        ));
        machine.down_until_ms = self.now_ms + wait;
        machine.moments = Moments::default();
        if power {
            machine.disk.crash_power(seed);
            machine.ring.crash_power(seed);
        } else {
            machine.disk.crash_process(seed);
        }
    }

    /// Kills a secondary whose disk lost what its placement log said last, if it may lose that.
    fn lose_commits(&mut self, index: usize) {
        let machine = &self.machines[index];
        let Some(process) = machine.process.as_ref().filter(|it| index > 0 && it.is_quiet()) else {
            return;
        };
        let Some(node) = &process.node else { return };
        let Some(writes) = machine.moments.going_back(node) else { return };
        self.events.push(format!("replica {} loses its last commits", index + 1));
        self.outcome.lost_commits += 1;
        self.kill(index, false);
        let disk = &self.machines[index].disk;
        writes.iter().for_each(|(offset, before)| disk.poke(*offset, before));
    }

    fn break_link(&mut self, a: usize, b: usize) {
        let Some(link) = self.links.remove(&link_key(a, b).0) else { return };
        self.trace(b"link");
        let (low, high) = (a.min(b), a.max(b));
        for (me, other, side) in [(low, high, 0), (high, low, 1)] {
            let (peer, now_ms) = (self.group.members[other], self.now_ms);
            if self.machines[me].starts == link.incarnations[side]
                && let Some(node) = self.node_mut(me)
            {
                node.handle_disconnected(peer, link.number, now_ms);
            }
        }
    }

    fn trace(&mut self, bytes: &[u8]) {
        self.outcome.trace = crc::append(self.outcome.trace, bytes);
    }

    // ---- clients

    fn clients_act(&mut self) {
        for i in 0..self.clients.len() {
            if self.clients[i].is_idle() && self.random.once_in(3) {
                self.moment += 1;
                self.client_acts(i);
            }
        }
    }

    fn client_acts(&mut self, i: usize) {
        let now = self.moment;
        let key = self.random.below(self.options.keys);
        let twins = TWINS + self.random.below(self.options.twins);
        let kind = self.random.below(40);
        let tail = self.machines.len() - 1;
        let random = self.random.fork();
        let client = &mut self.clients[i];
        if kind < 16 {
            let Some(process) = &mut self.machines[tail].process else { return };
            match kind {
                0 => client.scan(process, vec![key, twins, key / 2, key / 3], random, now),
                1..4 => client.read(process, twins, random, now),
                _ => client.read(process, key, random, now),
            }
            return;
        }
        let Some(process) = &mut self.machines[0].process else { return };
        self.next_value += 1;
        let value = Some(self.next_value << 20);
        match kind {
            16 if self.random.once_in(30) => {
                let (keys, twins) = (0..self.options.keys, TWINS..TWINS + self.options.twins);
                client.clear(process, &self.locks, keys.chain(twins), now);
            }
            16..19 => client.write(process, &self.locks, &[(key, None)], now),
            19 => client.write(process, &self.locks, &[(twins, None)], now),
            20..24 => {
                let other = (key / 2 * 2 + 2) % (self.options.keys / 2 * 2);
                let writes = [(twins, value), (key / 2 * 2, value), (other, value)];
                client.write(process, &self.locks, &writes, now);
            }
            _ if key.is_multiple_of(2) || !self.options.counters => {
                client.write(process, &self.locks, &[(key, value)], now)
            }
            _ => client.increment(process, &mut self.locks, key, random, now),
        }
    }

    fn poll_clients(&mut self) {
        let tail = self.machines.len() - 1;
        for client in &mut self.clients {
            self.moment += 1;
            let index = if client.waits_for_tail() { tail } else { 0 };
            let process = self.machines[index].process.as_mut();
            let polled = client.poll(process, &mut self.locks, &mut self.history, self.moment);
            if let Err(error) = polled {
                self.violation.get_or_insert(error);
            }
        }
    }

    // ---- the end

    /// Lets everything come to rest: no faults, no new operations.
    ///
    /// # Errors
    /// What did not hold, or that there is no rest.
    pub fn settle(&mut self) -> Result<(), String> {
        for Machine { disk, full_until_ms, .. } in &mut self.machines {
            *full_until_ms = 0;
            disk.slow_down(1);
            disk.clear_faults();
            disk.release_held();
        }
        let mut calm = 0;
        for _ in 0..30_000 {
            self.step();
            self.look_for_violation()?;
            let busy = !self.clients.iter().all(Client::is_idle) || !self.rests();
            calm = if busy { 0 } else { calm + 1 };
            if calm > 300 {
                return Ok(());
            }
        }
        Err(format!("the cluster does not come to rest: {}", self.describe()))
    }

    fn rests(&self) -> bool {
        let Some(head) = self.node(0) else { return false };
        let edit = head.tree().last_edit();
        let same = |index: usize| {
            let Some(process) = self.machines[index].process.as_ref() else { return false };
            let Some(node) = process.node.as_ref() else { return false };
            let local = self.group.compaction == CompactionMode::EveryReplica;
            process.is_idle()
                && node.edits_waiting() == 0
                && node.jobs_running() == 0
                && node.tree().sealed_count() == 0
                && (local || node.tree().last_edit() == edit)
                && node.log_end() == head.log_end()
        };
        head.chain().is_ready() && (0..self.machines.len()).all(same)
    }

    /// Reads every key once more at the tail, as the last operations of the history.
    fn final_reads(&mut self) -> Result<(), String> {
        let tail = self.machines.len() - 1;
        for key in (0..self.options.keys).chain(TWINS..TWINS + self.options.twins) {
            for _ in 0..100_000 {
                self.moment += 1;
                let now = self.moment;
                if self.clients[0].is_idle() {
                    let Some(process) = &mut self.machines[tail].process else {
                        return Err("the tail is gone".into());
                    };
                    self.clients[0].read(process, key, self.random.fork(), now);
                    if self.clients[0].is_idle() {
                        return Err("the tail does not answer reads at rest".into());
                    }
                }
                self.step();
                self.look_for_violation()?;
                if self.clients[0].is_idle() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// All records of a replica.
    ///
    /// # Errors
    /// When it is down or a read fails.
    pub fn scan(&mut self, index: usize) -> Result<BTreeMap<Vec<u8>, u64>, String> {
        let process = self.machines[index].process.as_mut();
        let process = process.ok_or_else(|| format!("replica {index} is down"))?;
        let (Some(tables), Some(node)) = (process.tables(), process.node.as_ref()) else {
            return Err(format!("replica {index} is not open"));
        };
        let view = node.view();
        let out = std::rc::Rc::new(std::cell::RefCell::new(None));
        let slot = out.clone();
        process.executor.spawn(async move {
            let mut records = Vec::new();
            let mut iterator = view.scan(&tables, &[Keyspace::User as u8], None);
            let result = loop {
                match iterator.next().await {
                    Ok(Some((key, value))) => records.push((key.to_vec(), value.to_vec())),
                    Ok(None) => break Ok(records),
                    Err(error) => break Err(error.to_string()),
                }
            };
            *slot.borrow_mut() = Some(result);
        });
        for _ in 0..1_000_000 {
            self.step();
            if let Some(result) = out.borrow_mut().take() {
                let records = check::numbers(result?)?;
                return twins_agree(&records).map(|()| records);
            }
        }
        Err(format!("the scan of replica {index} does not end"))
    }

    /// What happened until now.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let mut outcome = self.outcome.clone();
        outcome.operations = self.history.len() as u64;
        (0..self.machines.len()).for_each(|index| self.count_work(index, &mut outcome));
        outcome
    }

    /// Adds what a living process did until now.
    fn count_work(&self, index: usize, outcome: &mut Outcome) {
        let Some(counters) = self.node(index).map(Node::counters) else { return };
        outcome.flushes += counters.flushes;
        outcome.compactions += counters.compactions;
        outcome.edits += counters.edits;
        outcome.shipped_files += counters.shipped_files;
        outcome.shipped_bytes += counters.shipped_bytes;
        outcome.received_bytes += counters.received_bytes;
        outcome.pulled_files += counters.pulled_files;
        outcome.skipped_files += counters.skipped_files;
        outcome.jobs_without_space += counters.jobs_without_space;
    }

    fn describe(&self) -> String {
        let mut text = format!("time {} ms, links {:?}", self.now_ms, self.links.keys());
        for (i, machine) in self.machines.iter().enumerate() {
            let node = machine.process.as_ref().and_then(|process| process.node.as_ref());
            text += &match node {
                Some(node) => format!(
                    "\n  replica {}: drain {} ships {:?} session {} log {} commit {} durable {} edit {} waiting {} jobs {} sealed {} orders {} ready {:?} gate {:?} pool {:?}",
                    i + 1,
                    node.drain_status(),
                    self.group.members.iter().map(|m| node.shipping_to(*m)).collect::<Vec<_>>(),
                    node.state().session,
                    node.log_end(),
                    node.chain().commit(),
                    node.durable_everywhere(),
                    node.tree().last_edit(),
                    node.edits_waiting(),
                    node.jobs_running(),
                    node.tree().sealed_count(),
                    node.orders_in_flight(),
                    node.chain().not_ready_reason(),
                    node.write_gate(),
                    node.pool().counts()
                ),
                None => format!("\n  replica {}: not open", i + 1),
            };
        }
        for death in self.deaths.iter().rev().take(5) {
            text += &format!("\n  died: {death}");
        }
        text + &format!("\n  seed {}", self.seed)
    }
}

#[cfg_attr(not(feature = "planted"), expect(unused_variables, reason = "only what is planted"))]
fn node_options(options: &Options) -> NodeOptions {
    NodeOptions {
        #[cfg(feature = "planted")]
        planted: options.planted,
        heartbeat_ms: 20,
        timeout_ms: 200,
        granted_slots: 12,
        placement_wait_ms: 100,
        unshipped_bytes_max: UNSHIPPED_BYTES_MAX,
        window_bytes: 256 * 1024,
        ..NodeOptions::default()
    }
}

/// A link's key, and the queue that carries what `from` sends.
fn link_key(from: usize, to: usize) -> ((usize, usize), usize) {
    ((from.min(to), from.max(to)), usize::from(from > to))
}
