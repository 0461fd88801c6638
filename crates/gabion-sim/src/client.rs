//! Clients: each has one operation under way, writes at the head, reads at the tail, and remembers
//! the times of its call and of the answer.
//!
//! Besides registers (one key each) there are *twins*: pairs of keys at the two ends of the
//! keyspace that one record always writes together, with one value. A scan that dawdles over many
//! steps, and two reads of one view far apart in time, must never see them differ (docs/faults.md
//! E1: no half batch; E12: no slot is used again under a reader). The results of a scan also enter
//! the history, key by key.

use crate::Random;
use crate::history::{Action, Operation};
use crate::process::Process;
use gabion_base::{ConfigNumber, Error, ErrorKind, Frontier};
use gabion_engine::{FinishedFile, JobKind, Keyspace, LoadBuilder};
use gabion_node::{AckLevel, LoadId, Node, WriteGate};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

/// The first number of a pair of twins; smaller ones are registers.
pub const TWINS: u64 = 1 << 32;

/// The first number of a register with a long key. Long keys below a thousand from here differ at
/// about 256 bytes, where bounds of files are usually cut.
pub const LONG_KEYS: u64 = 1 << 40;

/// A bit in the number of a value that is long: most of a log of such values is values.
pub const LONG_VALUE: u64 = 1 << 61;

/// The bytes of a value: its number, and filler whose length follows from it (up to 3 KB for one in
/// 16, and for [`LONG_VALUE`]).
#[must_use]
pub fn encode_value(value: u64) -> Vec<u8> {
    let mixed = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let is_long = mixed >> 60 == 0 || value & LONG_VALUE != 0;
    let limit = if is_long { 3_000 } else { 600 };
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.resize(8 + ((mixed >> 20) % limit) as usize, value as u8);
    bytes
}

/// The number of a value's bytes. A counter has its number in decimal, and a negative one counts in
/// two's complement.
///
/// # Errors
/// When they are neither a value of [`encode_value`] nor a counter's.
pub fn decode_value(bytes: &[u8]) -> Result<u64, String> {
    let text = std::str::from_utf8(bytes).ok();
    if let Some(number) = text.and_then(|text| text.parse::<i64>().ok()) {
        return Ok(number as u64);
    }
    let number = bytes.first_chunk::<8>().ok_or("a value is too short")?;
    let value = u64::from_le_bytes(*number);
    if bytes == encode_value(value) {
        return Ok(value);
    }
    Err(format!("a value was damaged: {} bytes that begin with number {value}", bytes.len()))
}

/// The user keys of a register or of both twins.
fn user_keys(key: u64) -> Vec<Vec<u8>> {
    if let Some(long) = key.checked_sub(LONG_KEYS) {
        return vec![format!("long-{:k<246}{long:06}{:k<30}", "", "").into_bytes()];
    }
    match key.checked_sub(TWINS) {
        None => vec![format!("key-{key:06}").into_bytes()],
        Some(twin) => {
            ["!", "~"].iter().map(|side| format!("{side}twin-{twin:06}").into_bytes()).collect()
        }
    }
}

/// The engine keys of a register or of both twins.
#[must_use]
pub fn engine_keys(key: u64) -> Vec<Vec<u8>> {
    let with_space = |user: Vec<u8>| [vec![Keyspace::User as u8], user].concat();
    user_keys(key).into_iter().map(with_space).collect()
}

/// Puts (or deletes) keys as one turn's record.
///
/// # Panics
/// When the node takes no writes.
pub fn write_turn(node: &mut Node, writes: &[(u64, Option<u64>)]) -> Frontier {
    write_expiring(node, writes, None)
}

fn write_expiring(
    node: &mut Node,
    writes: &[(u64, Option<u64>)],
    expires_ms: Option<u64>,
) -> Frontier {
    put_and_delete(node, writes, expires_ms);
    node.end_turn().expect("the ring has room for small records beyond the gate")
}

/// As [`write_turn`], with values that expire at `expires_ms`.
///
/// # Panics
/// When the node takes no writes.
pub fn write_turn_expiring(
    node: &mut Node,
    writes: &[(u64, Option<u64>)],
    expires_ms: impl Fn(u64) -> Option<u64>,
) -> Frontier {
    for write in writes {
        put_and_delete(node, &[*write], write.1.and_then(&expires_ms));
    }
    node.end_turn().expect("the ring has room for small records beyond the gate")
}

/// Puts (or deletes) keys past the log.
///
/// # Panics
/// When the node takes no writes, or is one of several.
pub fn write_unlogged(node: &mut Node, writes: &[(u64, Option<u64>)]) {
    put_and_delete(node, writes, None);
    node.end_turn_unlogged().expect("the ring has room for small records beyond the gate");
}

fn put_and_delete(node: &mut Node, writes: &[(u64, Option<u64>)], expires_ms: Option<u64>) {
    for (key, value) in writes {
        for user_key in user_keys(*key) {
            let value = value.map(encode_value);
            let result = match (&value, expires_ms) {
                (Some(value), None) => node.put(Keyspace::User, &user_key, value),
                (Some(value), Some(at)) => node.put_expiring(Keyspace::User, &user_key, value, at),
                (None, _) => node.delete(Keyspace::User, &user_key),
            };
            result.expect("keys and values are within their limits");
            claim(node);
        }
    }
}

/// The record says that the last operation is a write of the head's door, as a server has it say.
/// All members make one table of these, and compare it at each seal.
fn claim(node: &mut Node) {
    let start = node.state().incarnation & u64::from(u32::MAX);
    let session = u64::from(node.id().get()) << 32 | start;
    let number = node.tree().last_sequence().get();
    node.end_command(session, number, 1, b"+OK\r\n");
}

/// Adds to counters as one turn's record.
///
/// # Panics
/// When the node takes no writes, or a number is over 63 bits.
pub fn add_turn(node: &mut Node, additions: &[(u64, u64)]) -> Frontier {
    for (key, delta) in additions {
        for user_key in user_keys(*key) {
            let delta = i64::try_from(*delta).expect("what is added is small");
            let result = node.add(Keyspace::User, &user_key, delta);
            result.expect("keys are within their limits");
        }
    }
    node.end_turn().expect("the ring has room for small records beyond the gate")
}

/// Deletes the range of these registers, or of twins on both sides, as one turn's record.
///
/// # Panics
/// When the node takes no writes, or there are none in the range.
pub fn delete_range_turn(node: &mut Node, keys: Range<u64>) -> Frontier {
    for (from, to) in user_keys(keys.start).iter().zip(&user_keys(keys.end)) {
        let result = node.delete_range(Keyspace::User, from, Some(to));
        result.expect("keys are within their limits");
    }
    node.end_turn().expect("the ring has room for small records beyond the gate")
}

/// Puts a counter, in decimal, as one turn's record.
fn write_counter(node: &mut Node, key: u64, number: u64) -> Frontier {
    for user_key in user_keys(key) {
        let text = number.to_string();
        let result = node.put(Keyspace::User, &user_key, text.as_bytes());
        result.expect("keys and values are within their limits");
    }
    node.end_turn().expect("the ring has room for small records beyond the gate")
}

/// The files of a load of registers and twins, by number, each with a value. They are so short that
/// most loads have several.
///
/// # Panics
/// When the node has no such load.
#[must_use]
pub fn load_files(node: &mut Node, id: LoadId, writes: &[(u64, Option<u64>)]) -> Vec<FinishedFile> {
    let mut pairs = BTreeMap::new();
    for (key, value) in writes {
        let value = encode_value(value.expect("a load deletes nothing"));
        pairs.extend(user_keys(*key).into_iter().map(|name| (name, value.clone())));
    }
    let sst = node.tree().config().sst_of_job(JobKind::Load, false);
    let mut builder = LoadBuilder::new(node.config().group, node.state().term(), sst, 1_500);
    let mut files = Vec::new();
    for (name, value) in pairs {
        let ended = builder.put(&name, &value, None, || node.load_number(id));
        files.extend(ended.expect("keys ascend, and the load takes files"));
    }
    files.extend(builder.finish());
    files
}

/// Why a read has no result.
#[derive(Clone, Debug)]
pub enum ReadFailure {
    /// It met corrupt bytes, and reported them.
    Damage(String),
    /// It was past its pin budget.
    TooOld(String),
    /// It saw an impossible result.
    Wrong(String),
}

impl ReadFailure {
    /// The failure of a read that ended with an error.
    #[must_use]
    pub fn of(what: &str, error: &Error) -> Self {
        let text = format!("{what}: {error}");
        match error.kind() {
            // The damage may have hit a version or a kind.
            ErrorKind::SnapshotTooOld => Self::TooOld(text),
            ErrorKind::Corruption | ErrorKind::Unsupported => Self::Damage(text),
            _ => Self::Wrong(text),
        }
    }
}

impl From<String> for ReadFailure {
    fn from(what: String) -> Self {
        Self::Wrong(what)
    }
}

impl std::fmt::Display for ReadFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Damage(text) | Self::TooOld(text) | Self::Wrong(text)) = self;
        f.write_str(text)
    }
}

/// The keys and values that a read saw.
type Values = Vec<(u64, Option<u64>)>;
/// A read's result: nothing if it was past its pin budget, or the cause of its failure.
type Seen = Result<Option<Values>, ReadFailure>;
type Slot = Rc<RefCell<Option<Seen>>>;

fn seen(result: Result<Values, ReadFailure>) -> Seen {
    match result {
        Ok(values) => Ok(Some(values)),
        Err(ReadFailure::TooOld(_)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The event that an operation waits for.
enum Waits {
    /// A task reads; its result appears here.
    Read(Slot),
    /// The read's result is shown once the log is acknowledged up to here.
    Seen(Frontier, Vec<(u64, Action)>),
    /// As `Read`, and then the counter is written.
    Increment(Slot, u64),
    /// The log must be acknowledged up to here.
    Acknowledged(Frontier, Vec<(u64, Action)>),
}

struct Pending {
    called: u64,
    incarnation: u64,
    /// The view in which it was asked for.
    config: Option<ConfigNumber>,
    waits: Waits,
}

impl Pending {
    /// The configuration in which it writes, if it does.
    fn written_in(&self) -> Option<ConfigNumber> {
        self.config.filter(|_| matches!(self.waits, Waits::Acknowledged(..)))
    }

    /// The configuration in which it reads, if that is all that it does.
    fn read_in(&self) -> Option<ConfigNumber> {
        self.config.filter(|_| matches!(self.waits, Waits::Read(_) | Waits::Seen(..)))
    }

    /// The configurations in which it wrote, and in which it read, if that began late.
    fn ended_in(&self, is_late: bool) -> (Option<ConfigNumber>, Option<ConfigNumber>) {
        (self.written_in(), self.read_in().filter(|_| is_late))
    }

    /// Whether the server lives, in the same view: in the log of another one the positions of this
    /// one may be other records.
    fn is_of(&self, process: &Process) -> bool {
        process.incarnation == self.incarnation && config_of(process) == self.config
    }
}

/// One client.
#[derive(Default)]
pub struct Client {
    /// The machine that it asked last.
    pub at: usize,
    /// The configuration in which a write was acknowledged to it since this was taken.
    pub acknowledged_in: Option<ConfigNumber>,
    /// The configuration in which a read was answered that began late, since this was taken.
    pub answered_late_in: Option<ConfigNumber>,
    /// A read was answered in a view that waits for members, since this was taken.
    pub answered_alone: bool,
    /// The read under way began when writes of a newer configuration had been acknowledged.
    pub reads_late: bool,
    pending: Option<Pending>,
}

/// Keys with a read-modify-write under way: other writers wait, as the server's key locks do.
pub type Locks = BTreeSet<u64>;

impl Client {
    /// Whether it has nothing under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.pending.is_none()
    }

    /// The configuration in which it reads.
    #[must_use]
    pub fn reads_in(&self) -> Option<ConfigNumber> {
        self.pending.as_ref()?.read_in()
    }

    /// Sets or deletes keys in one record; set values expire at `expires_ms`, if at all. Does
    /// nothing when the head does not take writes: false.
    pub fn write(
        &mut self,
        head: &mut Process,
        locks: &Locks,
        writes: &[(u64, Option<u64>)],
        expires_ms: Option<u64>,
        now: u64,
    ) -> bool {
        let Some(node) = open_head(head) else { return false };
        if writes.iter().any(|(key, _)| locks.contains(key)) {
            return false;
        }
        let frontier = write_expiring(node, writes, expires_ms);
        let actions = writes.iter().map(|(key, value)| (*key, Action::Write(*value))).collect();
        self.begin(head, now, Waits::Acknowledged(frontier, actions));
        true
    }

    /// Deletes everything; `keys` are all possible keys.
    pub fn clear(
        &mut self,
        head: &mut Process,
        locks: &Locks,
        keys: impl Iterator<Item = u64>,
        now: u64,
    ) {
        let Some(node) = open_head(head).filter(|_| locks.is_empty()) else { return };
        node.clear().expect("the gate was open");
        let frontier = node.end_turn().expect("the gate was open");
        let actions = keys.map(|key| (key, Action::Write(None))).collect();
        self.begin(head, now, Waits::Acknowledged(frontier, actions));
    }

    /// Deletes a range of registers, or of twins. Does nothing while a read-modify-write of one of
    /// them is under way.
    pub fn delete_range(&mut self, head: &mut Process, locks: &Locks, keys: Range<u64>, now: u64) {
        let is_free = locks.range(keys.clone()).next().is_none();
        let Some(node) = open_head(head).filter(|_| is_free) else { return };
        let frontier = delete_range_turn(node, keys.clone());
        let actions = keys.map(|key| (key, Action::Write(None))).collect();
        self.begin(head, now, Waits::Acknowledged(frontier, actions));
    }

    /// Adds to a counter blindly. Does nothing while a read-modify-write of it is under way.
    pub fn add(&mut self, head: &mut Process, locks: &Locks, key: u64, delta: u64, now: u64) {
        let Some(node) = open_head(head).filter(|_| !locks.contains(&key)) else { return };
        let frontier = add_turn(node, &[(key, delta)]);
        let actions = vec![(key, Action::Add(delta))];
        self.begin(head, now, Waits::Acknowledged(frontier, actions));
    }

    /// Reads a register, or both twins at one view, far apart in time.
    pub fn read(&mut self, tail: &mut Process, key: u64, random: Random, now: u64) {
        if tail.node.as_ref().is_some_and(|node| may_answer(node)) {
            let slot = spawn_get(tail, key, random);
            self.begin(tail, now, Waits::Read(slot));
        }
    }

    /// Scans everything, slowly; the history gets the results for `keys`.
    pub fn scan(&mut self, tail: &mut Process, keys: Vec<u64>, random: Random, now: u64) {
        if tail.node.as_ref().is_some_and(|node| may_answer(node)) {
            let slot = spawn_scan(tail, keys, random);
            self.begin(tail, now, Waits::Read(slot));
        }
    }

    /// Reads a register at the head, as a command does that finds nothing to write. The reply rests
    /// on no record, so the head must know that no other view is in effect.
    pub fn look(&mut self, head: &mut Process, key: u64, random: Random, now: u64) {
        if open_head(head).is_some_and(|node| node.holds_lease()) {
            let slot = spawn_get(head, key, random);
            self.begin(head, now, Waits::Read(slot));
        }
    }

    /// Adds one to a counter: reads the head's newest state, then writes.
    pub fn increment(
        &mut self,
        head: &mut Process,
        locks: &mut Locks,
        key: u64,
        random: Random,
        now: u64,
    ) {
        if open_head(head).is_none() || !locks.insert(key) {
            return;
        }
        let slot = spawn_get(head, key, random);
        self.begin(head, now, Waits::Increment(slot, key));
    }

    fn begin(&mut self, process: &Process, called: u64, waits: Waits) {
        let (incarnation, config) = (process.incarnation, config_of(process));
        self.pending = Some(Pending { called, incarnation, config, waits });
    }

    /// Checks whether the operation, which waits for `process`, ended.
    ///
    /// # Errors
    /// An impossible result of a read, or its damage; the operation has ended then.
    pub fn poll(
        &mut self,
        process: Option<&mut Process>,
        locks: &mut Locks,
        history: &mut Vec<Operation>,
        now: u64,
    ) -> Result<(), ReadFailure> {
        let is_alone = process.as_deref().is_some_and(waits_for_others);
        let reads_alone =
            is_alone && self.pending.as_ref().is_some_and(|it| it.read_in().is_some());
        let before = history.len();
        let ended = self.poll_pending(process, locks, history, now);
        // Of a read that was not answered there is nothing.
        self.answered_alone = reads_alone && history.len() > before;
        if ended.is_err()
            && let Some(Pending { waits: Waits::Increment(_, key), .. }) = self.pending.take()
        {
            locks.remove(&key);
        }
        ended
    }

    fn poll_pending(
        &mut self,
        process: Option<&mut Process>,
        locks: &mut Locks,
        history: &mut Vec<Operation>,
        now: u64,
    ) -> Result<(), ReadFailure> {
        let Some(pending) = &mut self.pending else { return Ok(()) };
        let Some(process) = process.filter(|process| pending.is_of(process)) else {
            // A write may have happened, a read has no result.
            match &pending.waits {
                Waits::Acknowledged(_, actions) => {
                    history.extend(ended(pending.called, actions.clone(), None));
                }
                Waits::Increment(_, key) => _ = locks.remove(key),
                Waits::Read(_) | Waits::Seen(..) => {}
            }
            self.pending = None;
            return Ok(());
        };
        let done = match &pending.waits {
            Waits::Read(slot) => {
                let seen = slot.borrow_mut().take();
                if let Some(seen) = seen {
                    // A read that was ended has no result.
                    let values = seen?.unwrap_or_default().into_iter();
                    let actions = values.map(|(key, value)| (key, Action::Read(value)));
                    let node = process.node.as_ref().expect("the process is open");
                    pending.waits = Waits::Seen(shown_at(node), actions.collect());
                }
                None
            }
            Waits::Increment(slot, key) => {
                let (key, seen) = (*key, slot.borrow_mut().take());
                if let Some(seen) = seen {
                    let Some(values) = seen? else {
                        locks.remove(&key);
                        self.pending = None;
                        return Ok(());
                    };
                    let value = values.first().and_then(|(_, value)| *value);
                    let next = value.unwrap_or(0) + 1;
                    let node = process.node.as_mut().expect("the process is open");
                    // Does not wait for a gate that closed meanwhile: the key is locked. If writes
                    // are refused the operation has no effect.
                    if matches!(node.write_gate(), WriteGate::Refuse(_)) {
                        locks.remove(&key);
                        self.pending = None;
                        return Ok(());
                    }
                    let frontier = write_counter(node, key, next);
                    let actions = vec![(key, Action::Increment(next))];
                    pending.waits = Waits::Acknowledged(frontier, actions);
                    locks.remove(&key);
                }
                None
            }
            Waits::Acknowledged(frontier, actions) | Waits::Seen(frontier, actions) => {
                let node = process.node.as_ref();
                let acknowledged = node.is_some_and(|node| node.acknowledged().covers(frontier));
                acknowledged.then(|| actions.clone())
            }
        };
        if let Some(actions) = done {
            (self.acknowledged_in, self.answered_late_in) = pending.ended_in(self.reads_late);
            history.extend(ended(pending.called, actions, Some(now)));
            self.pending = None;
        }
        Ok(())
    }
}

/// The log must be acknowledged up to here before a read that has just ended may be answered, as in
/// the server: every member has in its ring all that the tail of a chain has applied.
fn shown_at(node: &Node) -> Frontier {
    match node.config().ack {
        AckLevel::Replicated if !node.duties().append => Frontier::ZERO,
        _ => node.log_end(),
    }
}

/// Whether a replica may answer reads now, by the time that was passed to it last.
fn may_answer(node: &Node) -> bool {
    node.is_readable() && node.holds_lease()
}

/// Whether a process acts in a view that waits for members that it keeps.
fn waits_for_others(process: &Process) -> bool {
    process.node.as_ref().is_some_and(|node| node.view().group().waits())
}

/// The view in which a process acts.
fn config_of(process: &Process) -> Option<ConfigNumber> {
    process.node.as_ref().map(|node| node.view().group().config)
}

/// The head's node when it takes writes.
fn open_head(head: &mut Process) -> Option<&mut Node> {
    let node = head.node.as_deref_mut()?;
    (node.write_gate() == WriteGate::Open).then_some(node)
}

fn ended(
    called: u64,
    actions: Vec<(u64, Action)>,
    returned: Option<u64>,
) -> impl Iterator<Item = Operation> {
    actions.into_iter().map(move |(key, action)| Operation { key, action, called, returned })
}

/// Lets up to `limit` turns of the executor pass.
async fn dawdle(random: &mut Random, limit: u64) {
    for _ in 0..random.below(limit + 1) {
        let mut passed = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut passed, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

fn spawn_get(process: &mut Process, key: u64, mut random: Random) -> Slot {
    let slot = Slot::default();
    let (Some(tables), Some(node)) = (process.tables(), process.node.as_ref()) else {
        return slot;
    };
    let (view, out) = (node.read_view(), slot.clone());
    process.executor.spawn(async move {
        let read = async {
            let mut values = Vec::new();
            for engine_key in engine_keys(key) {
                if !values.is_empty() {
                    dawdle(&mut random, 200).await;
                }
                let value = view.get(&tables, &engine_key).await;
                let value = value
                    .map_err(|error| ReadFailure::of(&format!("read of key {key}"), &error))?;
                values.push(value.map(|bytes| decode_value(&bytes)).transpose()?);
            }
            if values.windows(2).any(|pair| pair[0] != pair[1]) {
                return Err(format!("twins {key} differ at one view: {values:?}").into());
            }
            Ok(vec![(key, values[0])])
        };
        let seen = seen(read.await);
        *out.borrow_mut() = Some(seen);
    });
    slot
}

fn spawn_scan(process: &mut Process, keys: Vec<u64>, mut random: Random) -> Slot {
    let slot = Slot::default();
    let (Some(tables), Some(node)) = (process.tables(), process.node.as_ref()) else {
        return slot;
    };
    let (view, out) = (node.read_view(), slot.clone());
    process.executor.spawn(async move {
        let read = async {
            let mut records = BTreeMap::new();
            let mut iterator = view.scan(&tables, &[Keyspace::User as u8], None);
            drop(view);
            dawdle(&mut random, 300).await;
            while let Some((key, value)) =
                iterator.next().await.map_err(|error| ReadFailure::of("scan", &error))?
            {
                let value = decode_value(&value)?;
                if records.last_key_value().is_some_and(|(last, _)| *last >= key) {
                    return Err(format!("a scan went back to key {key:?}").into());
                }
                records.insert(key, value);
                dawdle(&mut random, 6).await;
            }
            let records = records.into_iter().map(|(key, value)| (key.to_vec(), value));
            Ok(seen_by_scan(&keys, &records.collect())?)
        };
        let seen = seen(read.await);
        *out.borrow_mut() = Some(seen);
    });
    slot
}

fn seen_by_scan(keys: &[u64], records: &BTreeMap<Vec<u8>, u64>) -> Result<Values, String> {
    twins_agree(records)?;
    let first = |key: u64| records.get(&engine_keys(key)[0]).copied();
    Ok(keys.iter().map(|key| (*key, first(*key))).collect())
}

/// Whether both twins of each pair have the same value, or none.
///
/// # Errors
/// Names a pair that does not.
pub fn twins_agree(records: &BTreeMap<Vec<u8>, u64>) -> Result<(), String> {
    for (key, value) in records {
        let other = match key.get(1) {
            Some(b'!') => b'~',
            Some(b'~') => b'!',
            _ => continue,
        };
        let mut twin = key.clone();
        twin[1] = other;
        let found = records.get(&twin);
        if found != Some(value) {
            let name = String::from_utf8_lossy(&key[1..]).into_owned();
            return Err(format!("{name} is {value}, its twin {found:?}: half of a record"));
        }
    }
    Ok(())
}
