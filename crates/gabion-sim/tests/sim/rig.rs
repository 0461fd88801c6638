//! One replica, all its effects on its disk and its ring, and the models after each of its records.
#![expect(clippy::unwrap_used, reason = "a test: whatever fails here is the test's failure")]

use gabion_base::units::MIB;
use gabion_base::{ErrorKind, Frontier, GroupId, ReplicaId, SequenceNumber};
use gabion_engine::{Compression, FileMeta, FinishedFile, Keyspace, SstOptions, TreeConfig};
use gabion_media::simulated::{DiskOptions, DiskStats, Recording, SimulatedDisk};
use gabion_media::{MediumHandle, MemoryRegion};
#[cfg(feature = "planted")]
use gabion_node::Mutant;
use gabion_node::{
    AckLevel, CompactionMode, GroupConfig, LoadGate, LoadId, LoadState, Node, NodeOptions,
    StopState, WriteGate, open,
};
use gabion_pool::Trust;
use gabion_sim::client::{
    add_turn, delete_range_turn, engine_keys, load_files, twins_agree, write_turn_expiring,
    write_unlogged,
};
use gabion_sim::process::{Process, ReplicaTables, RingLabel, Wish};
use gabion_sim::{Random, SimulatedMemory, check};
#[cfg(feature = "planted")]
use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::iter::Peekable;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const POOL_LEN: u64 = 128 * MIB;
const SEGMENT_LEN: u64 = 64 * 1024;

/// Engine keys and the number in each value.
pub(crate) type Records = BTreeMap<Vec<u8>, u64>;

/// The bit of a number that expires; the time stands in the 31 bits below.
const EXPIRES: u64 = 1 << 63;

/// A number that expires at a time of the group.
pub(crate) const fn expiring(value: u64, at_ms: u64) -> u64 {
    EXPIRES | at_ms << 32 | value
}

/// When a number expires, by the group's time, if at all.
fn expires_ms(value: u64) -> Option<u64> {
    (value & EXPIRES != 0).then_some((value & !EXPIRES) >> 32)
}

/// Whether the records found at a time of the group are all of a state but the expired ones.
pub(crate) fn is_state(model: &Records, found: &Records, now_ms: u64) -> bool {
    let is_due = |value: &u64| expires_ms(*value).is_some_and(|at_ms| at_ms <= now_ms);
    model.iter().filter(|(_, value)| !is_due(value)).eq(found)
}

/// The first of the registers that are written past the log.
const UNLOGGED: u64 = 1_000_000;

/// The start of the error of a replica that could not be opened.
pub(crate) const NOT_OPENED: &str = "the replica was not opened";
/// Steps after which a replica that still takes no write counts as stuck.
const WAIT_STEPS_MAX: u32 = 100_000;
/// Loads in a row that may fail for want of space.
const LOADS_MAX: u32 = 3;

/// The trust in a disk of a process that starts on it, as the mark beside a pool says.
pub(crate) fn trust_of(disk: &SimulatedDisk) -> Trust {
    if disk.flush_had_failed() { Trust::Flushed } else { Trust::Readable }
}

/// One step of a workload.
pub(crate) enum Turn {
    /// Sets a register that no other turn sets, past the log: the first such turn the first, and so
    /// on. For workloads without restarts and other clears than [`Turn::ClearUnlogged`].
    Unlogged,
    /// Deletes everything, past the log; no write follows.
    ClearUnlogged,
    /// Sets (or deletes) registers and twins, by number, in one record. An [`expiring`] number
    /// expires.
    Write(Vec<(u64, Option<u64>)>),
    /// Adds to counters, by number, in one record.
    Add(Vec<(u64, u64)>),
    /// Deletes a range of registers or of twins, by number, in one record.
    DeleteRange(Range<u64>),
    /// Deletes everything, in one record.
    Clear,
    /// Loads registers and twins, by number, and waits for it.
    Load(Vec<(u64, Option<u64>)>),
    /// Has the log so far made durable, beside later turns.
    Sync,
    /// Ends the MemTable.
    Seal,
    /// Has everything compacted, beside later turns.
    Compact,
    /// Lets the replica come to rest.
    Rest,
    /// The process is killed, and another one started on its disk and ring.
    Restart,
    /// The process is told to stop, and another one started once it has.
    Stop,
}

impl Turn {
    pub(crate) fn apply(&self, records: &mut Records) {
        match self {
            Self::Unlogged
            | Self::ClearUnlogged
            | Self::Sync
            | Self::Seal
            | Self::Compact
            | Self::Rest
            | Self::Restart
            | Self::Stop => {}
            Self::Clear => records.clear(),
            Self::DeleteRange(keys) => {
                for engine_key in keys.clone().flat_map(engine_keys) {
                    records.remove(&engine_key);
                }
            }
            Self::Add(additions) => {
                for (key, delta) in additions {
                    for engine_key in engine_keys(*key) {
                        *records.entry(engine_key).or_default() += delta;
                    }
                }
            }
            Self::Write(writes) | Self::Load(writes) => {
                for (key, value) in writes {
                    for engine_key in engine_keys(*key) {
                        match value {
                            Some(value) => records.insert(engine_key, *value),
                            None => records.remove(&engine_key),
                        };
                    }
                }
            }
        }
    }
}

/// A group of one.
pub(crate) fn group(ack: AckLevel, compression: Compression) -> GroupConfig {
    let tree = TreeConfig {
        memtable_len: 16 * 1024,
        sst_len: 32 * 1024,
        level1_len: 64 * 1024,
        l0_trigger: 2,
        sst: SstOptions { compression, ..SstOptions::default() },
        ..TreeConfig::default()
    };
    GroupConfig {
        group: GroupId(1),
        founders: vec![ReplicaId(1)],
        compaction: CompactionMode::Primary,
        ack,
        ring_len: 4 * SEGMENT_LEN,
        segment_len: SEGMENT_LEN,
        tree,
    }
}

#[cfg(feature = "planted")]
std::thread_local! {
    /// The defect of every replica that is started on this thread.
    pub(crate) static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// A process on a disk in immediate mode.
pub(crate) struct Replica {
    pub(crate) disk: SimulatedDisk,
    process: Process,
    now_ms: u64,
}

impl Replica {
    pub(crate) fn start(disk: SimulatedDisk, ring: Box<dyn MemoryRegion>, trust: Trust) -> Self {
        let handle = disk.handle();
        let options = NodeOptions {
            #[cfg(feature = "planted")]
            planted: PLANTED.get(),
            ..NodeOptions::default()
        };
        let process = Process::start(1, handle, ring, options, trust, 0, Random::new(1));
        Self { disk, process, now_ms: 0 }
    }

    /// As [`Self::start`], on a ring that may have been lost, as its label says.
    pub(crate) fn start_on(
        disk: SimulatedDisk,
        ring: Box<dyn MemoryRegion>,
        label: RingLabel,
    ) -> Self {
        let handle = disk.handle();
        let options = NodeOptions {
            #[cfg(feature = "planted")]
            planted: PLANTED.get(),
            ..NodeOptions::default()
        };
        let ring = (ring, Some(label));
        let (trust, random) = (Trust::Readable, Random::new(1));
        let process = Process::start_on(1, handle, ring, options, trust, 0, random);
        Self { disk, process, now_ms: 0 }
    }

    /// Tells it to stop, and waits until it has.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        self.node().ok_or("the replica is not open")?.stop();
        for _ in 0..20_000 {
            match self.node().map(|node| node.stop_state()) {
                Some(StopState::Stopped) => return Ok(()),
                Some(StopState::Stuck(why)) => return Err(why.into()),
                _ => self.pump()?,
            }
        }
        Err("the replica does not stop".into())
    }

    pub(crate) fn node(&mut self) -> Option<&mut Node> {
        self.process.node.as_deref_mut()
    }

    /// The sources for reads of its files.
    pub(crate) fn tables(&self) -> Option<ReplicaTables> {
        self.process.tables()
    }

    /// One turn of the loop.
    pub(crate) fn pump(&mut self) -> Result<(), String> {
        self.now_ms += 1;
        let now_ms = self.now_ms;
        let was_open = self.process.node.is_some();
        if let Some(node) = self.node() {
            node.handle_tick(now_ms);
        }
        for wish in self.process.pump(now_ms) {
            if let Wish::Die(error) = wish {
                let what = if was_open { "the replica ended itself" } else { NOT_OPENED };
                return Err(format!("{what}: {error}"));
            }
        }
        if !was_open && self.process.node.is_some() {
            self.disk.forget_failed_flush();
        }
        Ok(())
    }

    pub(crate) fn is_writable(&mut self) -> bool {
        self.node().is_some_and(|node| node.write_gate() == WriteGate::Open)
    }

    fn rests(&mut self) -> bool {
        let idle = self.process.is_idle();
        self.node().is_some_and(|node| {
            idle && node.protocol().is_ready()
                && node.edits_waiting() == 0
                && node.jobs_running() == 0
                && node.tree().sealed_count() == 0
        })
    }

    /// Until nothing is left to do.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        let mut calm = 0;
        for _ in 0..20_000 {
            self.pump()?;
            calm = if self.rests() { calm + 1 } else { 0 };
            if calm > 3 {
                return Ok(());
            }
        }
        Err("the replica does not come to rest".into())
    }

    /// Until everything in the log is durable.
    pub(crate) fn make_durable(&mut self) -> Result<(), String> {
        let end = self.node().ok_or("the replica is not open")?.make_durable();
        let end = end.map_err(|error| error.to_string())?;
        for _ in 0..20_000 {
            self.pump()?;
            if self.node().is_some_and(|node| node.durable_everywhere().covers(&end)) {
                return Ok(());
            }
        }
        Err("the log does not become durable".into())
    }

    /// The time by which it judges expiry.
    pub(crate) fn group_ms(&self) -> u64 {
        self.process.node.as_ref().map_or(0, |node| node.read_view().now_ms())
    }

    /// Its clock jumps ahead by so much.
    pub(crate) fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    /// The longest bound of a file of its tree, in bytes.
    pub(crate) fn longest_bound(&mut self) -> usize {
        let Some(node) = self.node() else { return 0 };
        let version = node.tree().version();
        let len = |meta: &FileMeta| meta.smallest.len().max(meta.largest.len());
        version.files().map(|(_, meta)| len(meta)).max().unwrap_or_default()
    }

    /// All its records.
    pub(crate) fn records(&mut self) -> Result<Records, String> {
        let (Some(tables), Some(node)) = (self.tables(), self.process.node.as_ref()) else {
            return Err("the replica is not open".into());
        };
        let (view, handle) = (node.read_view(), tables.source.store.medium.clone());
        let records = self.disk.block_on(&handle, async {
            let mut iterator = view.scan(&tables, &[Keyspace::User as u8], None);
            let mut records = Vec::new();
            while let Some((key, value)) = iterator.next().await.map_err(|e| e.to_string())? {
                records.push((key.to_vec(), value.to_vec()));
            }
            check::numbers(records)
        })?;
        twins_agree(&records)?;
        Ok(records)
    }

    /// No slot is lost, and the parts agree.
    pub(crate) fn check_at_rest(&mut self) -> Result<(), String> {
        let node = self.node().ok_or("the replica is not open")?;
        node.invariants();
        check::slots(node)
    }
}

/// The effects so far: on the disk, and writes to the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) effects: usize,
    pub(crate) ring_writes: usize,
}

impl Moment {
    fn is_by(self, other: Self) -> bool {
        self.effects <= other.effects && self.ring_writes <= other.ring_writes
    }
}

pub(crate) struct RingWrite {
    /// Effects on the disk before it.
    effects: usize,
    offset: u64,
    bytes: Vec<u8>,
}

/// A ring that remembers every write.
#[derive(Clone)]
struct RecordedRing {
    memory: SimulatedMemory,
    effects: Arc<AtomicU64>,
    before: usize,
    writes: Arc<Mutex<Vec<RingWrite>>>,
}

impl RecordedRing {
    /// A ring that records from now on.
    fn of(memory: SimulatedMemory, disk: &SimulatedDisk) -> Self {
        let effects = disk.effects();
        let before = effects.load(Ordering::Relaxed) as usize;
        Self { memory, effects, before, writes: Arc::default() }
    }

    fn now(&self) -> Moment {
        let effects = self.effects.load(Ordering::Relaxed) as usize - self.before;
        Moment { effects, ring_writes: self.writes.lock().unwrap().len() }
    }

    fn take(&self) -> Vec<RingWrite> {
        std::mem::take(&mut self.writes.lock().unwrap())
    }
}

impl MemoryRegion for RecordedRing {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let Moment { effects, .. } = self.now();
        let write = RingWrite { effects, offset, bytes: data.to_vec() };
        self.writes.lock().unwrap().push(write);
        self.memory.write(offset, data);
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.memory.read(offset, into);
    }
}

/// The record of a workload, so that any moment of it can be made again.
pub(crate) struct Run {
    pub(crate) recording: Recording,
    ring_len: usize,
    ring: Vec<RingWrite>,
    /// The state before the first record and after each.
    pub(crate) models: Vec<Records>,
    /// For each record: when it began, when the ring was reported to have it, when the disk was.
    began: Vec<Moment>,
    replicated: Vec<Moment>,
    durable: Vec<Moment>,
    /// For each write past the log: when it began, when a file that every start finds had it.
    unlogged: Vec<Moment>,
    in_files: Vec<Moment>,
    /// The same for a clear past the log.
    cleared: Option<Moment>,
    cleared_in_files: Option<Moment>,
    /// When each stop had ended.
    pub(crate) stops: Vec<Moment>,
    pub(crate) counters: String,
    /// The longest bound of a file at the end, in bytes.
    pub(crate) longest_bound: usize,
}

/// The possible states after a crash: those after `least` to `most` records, and the first few
/// writes past the log; or nothing, if all was cleared past it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) least: usize,
    pub(crate) most: usize,
    pub(crate) unlogged: (usize, usize),
    /// Whether a clear past the log must have happened, and whether it may have.
    pub(crate) cleared: (bool, bool),
}

impl Bounds {
    /// Whether the findings are those after a clear past the log: nothing.
    ///
    /// # Errors
    /// When a cleared record is there.
    pub(crate) fn is_cleared(self, found: &Records) -> Result<bool, String> {
        let (must, may) = self.cleared;
        match found.first_key_value() {
            Some((key, _)) if must => Err(format!("{key:?} was cleared past the log and is back")),
            first => Ok(may && first.is_none()),
        }
    }

    /// Takes the writes past the log out of the findings.
    ///
    /// # Errors
    /// When these are not the possible ones.
    pub(crate) fn check_unlogged(self, found: &Records) -> Result<Records, String> {
        let ((least, most), mut logged) = (self.unlogged, found.clone());
        let keys = (0..most as u64).flat_map(|n| engine_keys(UNLOGGED + n));
        let is_there: Vec<bool> = keys.map(|key| logged.remove(&key).is_some()).collect();
        let count = is_there.iter().take_while(|is_there| **is_there).count();
        if count >= least && !is_there[count..].contains(&true) {
            return Ok(logged);
        }
        Err(format!("of writes past the log {least} to {most} are to be there: {is_there:?}"))
    }
}

/// A replica that is made to go through a workload, and its reports on each record.
pub(crate) struct Drive<'a> {
    pub(crate) replica: Replica,
    ring: &'a dyn Fn() -> Box<dyn MemoryRegion>,
    now: &'a dyn Fn() -> Moment,
    ack: AckLevel,
    /// The state before the first record and after each.
    pub(crate) models: Vec<Records>,
    /// The end of each record in the log.
    ends: Vec<Frontier>,
    /// For each record: when it began, when the ring was reported to have it, when the disk was.
    pub(crate) began: Vec<Moment>,
    pub(crate) replicated: Vec<Moment>,
    pub(crate) durable: Vec<Moment>,
    /// The numbers of writes past the log.
    unlogged: Vec<SequenceNumber>,
    /// For each of them: when it began, when a file that every start finds had it.
    unlogged_began: Vec<Moment>,
    in_files: Vec<Moment>,
    /// The number of the clear past the log, when it began, and when an edit that every start finds
    /// had it.
    cleared: Option<(SequenceNumber, Moment)>,
    cleared_in_files: Option<Moment>,
    /// Whether each restart finds the mark of a failed flush.
    pub(crate) marks_restarts: bool,
    /// The disk's counts at each restart, and when the replica was open.
    pub(crate) openings: Vec<(DiskStats, Option<DiskStats>)>,
    /// When each stop had ended.
    stops: Vec<Moment>,
}

impl<'a> Drive<'a> {
    /// Starts a process on a disk that holds a replica.
    pub(crate) fn start(
        disk: &SimulatedDisk,
        ring: &'a dyn Fn() -> Box<dyn MemoryRegion>,
        now: &'a dyn Fn() -> Moment,
        ack: AckLevel,
        trust: Trust,
    ) -> Self {
        Self {
            replica: Replica::start(disk.clone(), ring(), trust),
            ring,
            now,
            ack,
            models: vec![Records::new()],
            ends: Vec::new(),
            began: Vec::new(),
            replicated: Vec::new(),
            durable: Vec::new(),
            unlogged: Vec::new(),
            unlogged_began: Vec::new(),
            in_files: Vec::new(),
            cleared: None,
            cleared_in_files: None,
            marks_restarts: false,
            openings: Vec::new(),
            stops: Vec::new(),
        }
    }

    /// Carries out the turns, with up to three records under way if each has to be durable, and
    /// lets the replica come to rest.
    pub(crate) fn run(&mut self, turns: &[Turn]) -> Result<(), String> {
        for turn in turns {
            let mut steps = 0;
            while !self.takes(turn) {
                self.step()?;
                steps += 1;
                if steps > WAIT_STEPS_MAX {
                    return Err("the replica takes no writes any more".into());
                }
            }
            self.carry_out(turn)?;
            self.step()?;
        }
        while self.ack == AckLevel::Durable && self.durable.len() < self.began.len() {
            self.step()?;
        }
        self.settle()
    }

    /// The bounds if the process is killed now (`kill`), or the power is cut.
    pub(crate) fn bounds(&self, kill: bool) -> Bounds {
        let durable = self.durable.len();
        Bounds {
            least: if kill { durable.max(self.replicated.len()) } else { durable },
            most: self.began.len(),
            unlogged: (self.in_files.len(), self.unlogged.len()),
            cleared: (self.cleared_in_files.is_some(), self.cleared.is_some()),
        }
    }

    fn takes(&mut self, turn: &Turn) -> bool {
        let under_way = self.began.len() - self.durable.len();
        let has_room = self.ack == AckLevel::Replicated || under_way < 3;
        match turn {
            Turn::Restart => true,
            Turn::Stop => self.replica.node().is_some(),
            _ => has_room && self.replica.is_writable(),
        }
    }

    fn carry_out(&mut self, turn: &Turn) -> Result<(), String> {
        let now = (self.now)();
        if matches!(turn, Turn::Stop) {
            self.replica.stop()?;
            self.note();
            self.stops.push((self.now)());
        }
        match turn {
            Turn::Restart | Turn::Stop => {
                let disk = self.replica.disk.clone();
                if self.marks_restarts {
                    disk.note_failed_flush();
                }
                self.openings.push((disk.stats(), None));
                let trust = trust_of(&disk);
                self.replica = Replica::start(disk, (self.ring)(), trust);
                return Ok(());
            }
            Turn::Rest => return self.settle(),
            Turn::Load(writes) => {
                self.note_begun(now, turn);
                let end = self.load(writes)?;
                self.ends.push(end);
                return Ok(());
            }
            _ => {}
        }
        let node = self.replica.node().unwrap();
        let end = match turn {
            Turn::Unlogged => {
                let key = UNLOGGED + self.unlogged.len() as u64;
                self.unlogged_began.push(now);
                write_unlogged(node, &[(key, Some(key << 8))]);
                self.unlogged.push(node.tree().last_sequence());
                return Ok(());
            }
            Turn::ClearUnlogged => {
                node.clear().unwrap();
                node.end_turn_unlogged().unwrap();
                self.cleared = Some((node.tree().last_sequence(), now));
                return Ok(());
            }
            Turn::Write(writes) => write_turn_expiring(node, writes, expires_ms),
            Turn::Add(additions) => add_turn(node, additions),
            Turn::DeleteRange(keys) => delete_range_turn(node, keys.clone()),
            Turn::Clear => {
                node.clear().unwrap();
                node.end_turn().unwrap()
            }
            Turn::Sync => {
                return node.make_durable().map(drop).map_err(|error| error.to_string());
            }
            Turn::Seal => return node.seal_memtable().map_err(|error| error.to_string()),
            _ => {
                node.compact_range(&[], None);
                return Ok(());
            }
        };
        self.note_begun(now, turn);
        self.ends.push(end);
        Ok(())
    }

    fn note_begun(&mut self, now: Moment, turn: &Turn) {
        self.began.push(now);
        let mut model = self.models.last().unwrap().clone();
        turn.apply(&mut model);
        self.models.push(model);
    }

    /// Returns the end of the log with the load. One that fails for want of space is begun again.
    fn load(&mut self, writes: &[(u64, Option<u64>)]) -> Result<Frontier, String> {
        let mut last = None;
        for _ in 0..LOADS_MAX {
            let node = self.replica.node().ok_or("the replica is not open")?;
            let id = node.begin_load().map_err(|error| format!("a load: {error}"))?;
            let outcome = self.try_load(id, writes)?;
            self.replica.node().ok_or("the replica is not open")?.forget_load(id);
            match outcome {
                Ok(end) => return Ok(end),
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    last = Some(error);
                    self.settle()?;
                }
                Err(error) => return Err(format!("a load: {error}")),
            }
        }
        Err(format!("a load failed {LOADS_MAX} times: {last:?}"))
    }

    fn try_load(
        &mut self,
        id: LoadId,
        writes: &[(u64, Option<u64>)],
    ) -> Result<gabion_base::Result<Frontier>, String> {
        let node = self.replica.node().ok_or("the replica is not open")?;
        let mut files = load_files(node, id, writes).into_iter().peekable();
        for _ in 0..20_000 {
            let node = self.replica.node().ok_or("the replica is not open")?;
            match node.load_state(id) {
                LoadState::Done => return Ok(Ok(node.log_end())),
                LoadState::Failed(error) if error.kind() == ErrorKind::NoSpace => {
                    return Ok(Err(error));
                }
                // For any other cause the replica ends itself, and reports it.
                LoadState::Failed(_) => {}
                LoadState::Working => {
                    if let Err(error) = feed(node, id, &mut files) {
                        return Ok(Err(error));
                    }
                }
            }
            self.step()?;
        }
        Err("a load does not come to its end".into())
    }

    fn settle(&mut self) -> Result<(), String> {
        self.replica.settle()?;
        self.note();
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        self.replica.pump()?;
        self.note();
        Ok(())
    }

    /// Notes acknowledgements since the last call.
    fn note(&mut self) {
        let stats = self.replica.disk.stats();
        let Some(node) = self.replica.node() else { return };
        if let Some((_, is_open)) = self.openings.last_mut() {
            is_open.get_or_insert(stats);
        }
        let (commit, durable) = (node.protocol().commit(), node.durable_everywhere());
        let now = (self.now)();
        for (list, reached) in [(&mut self.replicated, commit), (&mut self.durable, durable)] {
            while self.ends.get(list.len()).is_some_and(|end| reached.covers(end)) {
                list.push(now);
            }
        }
        if node.is_edit_kept(node.tree().last_edit()) {
            let flushed = node.tree().flushed().sequence;
            while self.unlogged.get(self.in_files.len()).is_some_and(|last| *last <= flushed) {
                self.in_files.push(now);
            }
            if self.cleared.is_some_and(|(number, _)| number <= flushed) {
                self.cleared_in_files.get_or_insert(now);
            }
        }
    }
}

/// Gives a load the files that it takes now, and ends it when it has all. Does nothing if it has.
fn feed(
    node: &mut Node,
    id: LoadId,
    files: &mut Peekable<impl Iterator<Item = FinishedFile>>,
) -> gabion_base::Result<()> {
    if files.peek().is_none() {
        return Ok(());
    }
    while let Some(file) = files.peek()
        && node.load_gate(id, file.bytes.len() as u64)? == LoadGate::Open
        && node.add_to_load(id, file)?
    {
        files.next();
    }
    match files.peek() {
        Some(_) => Ok(()),
        None => node.end_load(id),
    }
}

/// A disk that holds nothing.
pub(crate) fn empty_disk() -> SimulatedDisk {
    SimulatedDisk::new(DiskOptions::immediate(POOL_LEN))
}

/// Makes a new replica on a disk.
pub(crate) fn create(disk: &SimulatedDisk, group: &GroupConfig) -> gabion_base::Result<()> {
    let handle = disk.handle();
    disk.block_on(&handle, open::create(&handle, group, ReplicaId(1), [1; 16]))
}

/// A disk that holds a new replica.
pub(crate) fn new_disk(group: &GroupConfig) -> SimulatedDisk {
    let disk = empty_disk();
    create(&disk, group).unwrap();
    disk
}

/// Work on a disk besides the one whose handle is driven already.
pub(crate) async fn driven<T>(handle: &MediumHandle, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        handle.drive();
        context.waker().wake_by_ref();
        work.as_mut().poll(context)
    })
    .await
}

impl Run {
    /// Goes through a workload and records it.
    pub(crate) fn record(group: &GroupConfig, turns: &[Turn]) -> Self {
        let disk = new_disk(group);
        disk.start_recording();
        let memory = SimulatedMemory::new(group.ring_len as usize);
        let ring = RecordedRing::of(memory, &disk);
        let now = || ring.now();
        let boxed = || Box::new(ring.clone()) as Box<dyn MemoryRegion>;
        let mut drive = Drive::start(&disk, &boxed, &now, group.ack, Trust::Readable);
        drive.run(turns).unwrap();
        let Drive { mut replica, models, began, replicated, durable, .. } = drive;
        let (unlogged, in_files) = (drive.unlogged_began, drive.in_files);
        let cleared = drive.cleared.map(|(_, began)| began);
        let is_cleared = drive.cleared_in_files.is_some();
        assert_eq!(is_cleared, cleared.is_some(), "the clear is sealed, and lasts");
        let (all, last) = ((unlogged.len(), unlogged.len()), models.len() - 1);
        let bounds =
            Bounds { least: last, most: last, unlogged: all, cleared: (is_cleared, is_cleared) };
        let found = replica.records().unwrap();
        if !bounds.is_cleared(&found).unwrap() {
            let found = bounds.check_unlogged(&found).unwrap();
            assert!(is_state(&models[last], &found, replica.group_ms()), "the workload itself");
        }
        let counters = format!("{:?}", replica.node().unwrap().counters());
        let longest_bound = replica.longest_bound();
        let recording = disk.recording().expect("no crash ended it");
        assert_eq!(recording.effects().len(), now().effects);
        drop(replica);
        let ring = ring.take();
        let ring_len = group.ring_len as usize;
        Self {
            recording,
            ring_len,
            ring,
            models,
            began,
            replicated,
            durable,
            unlogged,
            in_files,
            cleared,
            cleared_in_files: drive.cleared_in_files,
            stops: drive.stops,
            counters,
            longest_bound,
        }
    }

    /// Every moment after an effect on the disk or a write to the ring.
    pub(crate) fn moments(&self) -> Vec<Moment> {
        moments(&self.recording, &self.ring)
    }

    /// The bounds after the kill of the process (`kill`) or a power cut.
    pub(crate) fn bounds(&self, moment: Moment, kill: bool) -> Bounds {
        let count = |list: &[Moment]| list.iter().take_while(|m| m.is_by(moment)).count();
        let is_by = |noted: Option<Moment>| noted.is_some_and(|noted| noted.is_by(moment));
        let least = if kill { count(&self.replicated) } else { count(&self.durable) };
        Bounds {
            least: least.max(count(&self.durable)),
            most: count(&self.began),
            unlogged: (count(&self.in_files), count(&self.unlogged)),
            cleared: (is_by(self.cleared_in_files), is_by(self.cleared)),
        }
    }
}

fn moments(recording: &Recording, ring: &[RingWrite]) -> Vec<Moment> {
    let mut moments = vec![Moment { effects: 0, ring_writes: 0 }];
    let mut ring_writes = 0;
    for effects in 0..=recording.effects().len() {
        moments.push(Moment { effects, ring_writes });
        while ring.get(ring_writes).is_some_and(|write| write.effects <= effects) {
            ring_writes += 1;
            moments.push(Moment { effects, ring_writes });
        }
    }
    moments.dedup();
    moments
}

/// A replica's effects on the disk and the ring that a crash left it, until it came to rest.
pub(crate) struct Recovery {
    pub(crate) recording: Recording,
    /// The ring as it was found.
    before: SimulatedMemory,
    ring: Vec<RingWrite>,
    pub(crate) found: Records,
    /// The group's time when it was found.
    pub(crate) found_ms: u64,
}

impl Recovery {
    /// Starts a replica on a disk and a ring, which stay as they are.
    pub(crate) fn record(left: &SimulatedDisk, before: SimulatedMemory) -> Result<Self, String> {
        Self::record_on(left, before, RingLabel::new(Some(0)))
    }

    /// The same with a ring that may have been lost, as its label says.
    pub(crate) fn record_on(
        left: &SimulatedDisk,
        before: SimulatedMemory,
        label: RingLabel,
    ) -> Result<Self, String> {
        let disk = left.fork();
        disk.start_recording();
        let ring = RecordedRing::of(copy_of(&before), &disk);
        let mut replica = Replica::start_on(disk.clone(), Box::new(ring.clone()), label);
        replica.settle()?;
        let (found, found_ms) = (replica.records()?, replica.group_ms());
        replica.check_at_rest()?;
        drop(replica);
        let recording = disk.recording().ok_or("no recording")?;
        Ok(Self { recording, before, ring: ring.take(), found, found_ms })
    }

    /// Every moment after an effect on the disk or a write to the ring.
    pub(crate) fn moments(&self) -> Vec<Moment> {
        moments(&self.recording, &self.ring)
    }
}

fn copy_of(memory: &SimulatedMemory) -> SimulatedMemory {
    let mut bytes = vec![0; memory.len() as usize];
    memory.read(0, &mut bytes);
    let mut copy = SimulatedMemory::new(bytes.len());
    copy.write(0, &bytes);
    copy
}

/// Goes through the ring's writes beside the disk's replay.
pub(crate) struct RingReplay<'a> {
    writes: &'a [RingWrite],
    memory: SimulatedMemory,
    done: usize,
    /// The bytes that the last write replaced.
    replaced: Vec<u8>,
}

impl<'a> RingReplay<'a> {
    pub(crate) fn new(run: &'a Run) -> Self {
        let memory = SimulatedMemory::new(run.ring_len);
        Self { writes: &run.ring, memory, done: 0, replaced: Vec::new() }
    }

    pub(crate) fn of_recovery(recovery: &'a Recovery) -> Self {
        let memory = copy_of(&recovery.before);
        Self { writes: &recovery.ring, memory, done: 0, replaced: Vec::new() }
    }

    /// A copy of the ring after `writes` writes; a seed tears the last one.
    pub(crate) fn image(&mut self, writes: usize, tear: Option<u64>) -> SimulatedMemory {
        while self.done < writes {
            let write = &self.writes[self.done];
            self.replaced.resize(write.bytes.len(), 0);
            self.memory.read(write.offset, &mut self.replaced);
            self.memory.write(write.offset, &write.bytes);
            self.done += 1;
        }
        let mut image = copy_of(&self.memory);
        if let (Some(seed), Some(last)) = (tear, writes.checked_sub(1)) {
            let last = &self.writes[last];
            image.write(last.offset, &self.replaced);
            image.write(last.offset, &last.bytes);
            image.tear_last_write(seed);
        }
        image
    }

    /// Whether the write before `moment` was the last thing that happened.
    pub(crate) fn ends_with_write(&self, moment: Moment) -> bool {
        let last = moment.ring_writes.checked_sub(1).map(|last| &self.writes[last]);
        last.is_some_and(|write| write.effects == moment.effects)
    }
}
