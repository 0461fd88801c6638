//! The node as the key space that commands run on: reads of its newest state, writes into the
//! record of the turn. At the tail the same reads serve clients.

use crate::commands::{Op, Order, Page, PageBuilder, PageQuery, Store};
use crate::forward::WriteId;
use crate::run::WAIT_MAX_MS;
use bytes::Bytes;
use core::ops::Bound;
use gabion_base::units::RECORD_OPS_MAX;
use gabion_base::{ConfigNumber, Error, ErrorKind, FileId, Result};
use gabion_engine::{FileRange, FileSource, Found, FoundLen, Keyspace, Move, Tables};
use gabion_host::cache::SharedCache;
use gabion_host::clock::Clock;
use gabion_node::{Locate, Node, PoolSource, WriteGate};
use gabion_pool::FilePlacement;
use gabion_resp::{Protocol, Reply};
use std::cell::{Cell, RefCell};
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;

/// Entries that a page of a range passes at most, visible or not, before others get their turn:
/// what was deleted stays until a compaction drops it, and millions of such entries may lie in
/// memory in a row. At about 0.1 µs a step it takes 2 ms.
const PAGE_STEPS_MAX: u64 = 16_384;

/// A reply that takes more memory is longer than a record remembers.
const SHORT_REPLY_MEMORY: usize = 2048;

/// The node, shared by the loop and its tasks; borrowed for the length of a call, never across a
/// wait.
pub(crate) type SharedNode = Rc<RefCell<Box<Node>>>;
/// Where the node's files lie, for its readers.
#[derive(Clone)]
pub(crate) struct Places(pub(crate) SharedNode);

impl Locate for Places {
    fn locate(&self, file: FileId) -> Option<Arc<FilePlacement>> {
        self.0.borrow().file_map().get(file)
    }

    fn note_damage(&self, file: FileId, error: &Error) {
        self.0.borrow_mut().handle_damage(file, error);
    }
}

/// What reads of the loop's tasks need.
pub(crate) type DoorTables = Tables<Rc<ProbeSource>, Arc<SharedCache>>;

/// The pool's files, with a switch: while it probes, a read that needs the device waits for ever
/// and touches nothing. So a command can be polled once on the stack, and only when that did not
/// end it, is begun anew as a task of its own.
pub(crate) struct ProbeSource {
    pub(crate) pool: PoolSource<Places>,
    pub(crate) is_probing: Cell<bool>,
}

impl FileSource for ProbeSource {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        if self.is_probing.get() {
            return pending().await;
        }
        self.pool.read(file, offset, len).await
    }

    async fn read_many(&self, ranges: &[FileRange]) -> Vec<Result<Bytes>> {
        if self.is_probing.get() {
            return pending().await;
        }
        self.pool.read_many(ranges).await
    }

    fn note_damage(&self, file: FileId, error: &Error) {
        self.pool.note_damage(file, error);
    }
}

struct Inner {
    node: SharedNode,
    clock: Arc<Clock>,
    tables: DoorTables,
    /// Operations since the last record, or more.
    turn_ops: Cell<usize>,
    has_written: Cell<bool>,
    /// A write met a gate that is closed for now; nothing was done.
    hit_gate: Cell<bool>,
    /// The command that is being polled, and the first of those that wait for the gate, in the
    /// order in which they came.
    running: Cell<u64>,
    first_gated: Cell<u64>,
    /// Operations that the command that is being polled has written, all in one record.
    command_ops: Cell<usize>,
    /// Room for its reply in bytes.
    reply: RefCell<Vec<u8>>,
    /// The log took no record: what was written is nowhere.
    failure: RefCell<Option<Error>>,
    /// Writes that were refused for want of room.
    refused_full: Cell<u64>,
}

/// The node as a [`Store`]. A clone is the same.
#[derive(Clone)]
pub(crate) struct NodeStore(Rc<Inner>);

impl NodeStore {
    pub(crate) fn new(node: SharedNode, clock: Arc<Clock>, tables: DoorTables) -> Self {
        Self(Rc::new(Inner {
            node,
            clock,
            tables,
            turn_ops: Cell::new(0),
            has_written: Cell::new(false),
            hit_gate: Cell::new(false),
            running: Cell::new(0),
            first_gated: Cell::new(u64::MAX),
            command_ops: Cell::new(0),
            reply: RefCell::default(),
            failure: RefCell::new(None),
            refused_full: Cell::new(0),
        }))
    }

    pub(crate) fn tables(&self) -> &DoorTables {
        &self.0.tables
    }

    pub(crate) fn probe(&self, is_probing: bool) {
        self.0.tables.source.is_probing.set(is_probing);
    }

    /// Whether something was written since the last call.
    pub(crate) fn take_written(&self) -> bool {
        self.0.turn_ops.set(0);
        self.0.has_written.take()
    }

    /// Whether the command that just ended met a closed gate; its reply is void then, and it is to
    /// be run again.
    pub(crate) fn take_hit_gate(&self) -> bool {
        self.0.hit_gate.take()
    }

    /// Says which command is polled next.
    pub(crate) fn run_as(&self, command: u64) {
        self.0.running.set(command);
        self.0.command_ops.set(0);
    }

    /// The command that was polled has ended with this reply. The record of what it has written, if
    /// anything, says so, for whoever asks again: commands write last, so it is that of the turn.
    #[inline]
    pub(crate) fn end_command(&self, id: WriteId, reply: &Reply, protocol: Protocol) {
        let operations = self.0.command_ops.take();
        if operations == 0 {
            return;
        }
        let mut bytes = self.0.reply.borrow_mut();
        bytes.clear();
        // A longer one is not kept.
        if reply.memory() <= SHORT_REPLY_MEMORY {
            reply.encode(protocol, &mut bytes);
        }
        self.0.node.borrow_mut().end_command(id.session, id.number, operations, &bytes);
    }

    /// The configuration in which the group runs.
    pub(crate) fn config(&self) -> ConfigNumber {
        self.0.node.borrow().view().group().config
    }

    fn wrote(&self, operations: usize) {
        self.0.turn_ops.set(self.0.turn_ops.get() + operations);
        self.0.command_ops.set(self.0.command_ops.get() + operations);
        self.0.has_written.set(true);
    }

    /// Commands that came after this one, which waits for the gate, meet a closed gate too: one
    /// that waited for its keys would else write before it.
    pub(crate) fn hold_back_after(&self, first_gated: Option<u64>) {
        self.0.first_gated.set(first_gated.unwrap_or(u64::MAX));
    }

    /// What makes the state that reads see wrong for ever.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.0.failure.borrow_mut().take()
    }

    fn check_gate(&self, node: &Node, wish: Wish) -> Result<()> {
        let hit = |reason| {
            self.0.hit_gate.set(true);
            Err(Error::new(ErrorKind::Busy, reason))
        };
        match entry(write_gate(node), node.jobs_pause(), wish) {
            Entry::Open if self.0.running.get() > self.0.first_gated.get() => {
                hit("an earlier write waits")
            }
            Entry::Open => Ok(()),
            Entry::Wait(reason) => hit(reason),
            Entry::Refused(error) => {
                if error.kind() == ErrorKind::NoSpace {
                    self.0.refused_full.set(self.0.refused_full.get() + 1);
                }
                Err(error)
            }
        }
    }

    /// Writes that were refused for want of room.
    pub(crate) fn refused_full(&self) -> u64 {
        self.0.refused_full.get()
    }

    /// Notes an error after which the tree holds what the log does not.
    fn judge(&self, result: Result<()>) -> Result<()> {
        if let Err(error) = &result
            && !matches!(error.kind(), ErrorKind::LimitExceeded | ErrorKind::InvalidInput)
        {
            self.0.failure.borrow_mut().get_or_insert_with(|| error.clone());
        }
        result
    }
}

/// What a write meets at the gate.
pub(crate) enum Entry {
    Open,
    /// It is run again later, for this reason.
    Wait(&'static str),
    Refused(Error),
}

/// What a write does where there is little room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// It takes some.
    Put,
    /// It takes a little, and gives back more.
    Delete,
    /// It gives back everything.
    Clear,
}

impl Wish {
    fn of(ops: &[Op]) -> Self {
        match ops {
            ops if ops.iter().any(Op::is_put) => Self::Put,
            ops if ops.iter().all(|op| matches!(op, Op::Clear)) => Self::Clear,
            _ => Self::Delete,
        }
    }
}

/// The gate that a command meets: one that finds its group between two terms waits for the next,
/// which is begun within a second where nothing is wrong.
pub(crate) fn write_gate(node: &Node) -> WriteGate {
    match node.write_gate() {
        WriteGate::Refuse(_) if is_beginning(node) => WriteGate::Wait("a term begins"),
        gate => gate,
    }
}

fn is_beginning(node: &Node) -> bool {
    node.begins_term_for_ms().is_some_and(|waited_ms| waited_ms <= WAIT_MAX_MS)
}

/// What a write meets at this gate. It waits for nothing but what passes by itself: what lags
/// behind while jobs pause for want of room stays behind until somebody frees some.
pub(crate) fn entry(gate: WriteGate, jobs_pause: bool, wish: Wish) -> Entry {
    match gate {
        WriteGate::Open => Entry::Open,
        WriteGate::Full { takes_deletes: true, .. } if wish != Wish::Put => Entry::Open,
        WriteGate::Full { takes_clears: true, .. } if wish == Wish::Clear => Entry::Open,
        WriteGate::Full { .. } if wish != Wish::Put && !jobs_pause => {
            Entry::Wait("there is no room, and more is behind")
        }
        WriteGate::Full { reason, .. } => Entry::Refused(Error::no_space(reason)),
        WriteGate::Wait(reason) => Entry::Wait(reason),
        WriteGate::Refuse(reason) => Entry::Refused(Error::unavailable(reason)),
    }
}

/// The engine's key of a user's key.
pub(crate) fn engine_key(key: &[u8]) -> Vec<u8> {
    let mut engine_key = Vec::with_capacity(key.len() + 1);
    engine_key.push(Keyspace::User as u8);
    engine_key.extend_from_slice(key);
    engine_key
}

fn lower_bound(start: Bound<&[u8]>) -> Vec<u8> {
    match start {
        Bound::Unbounded => engine_key(&[]),
        Bound::Included(key) => engine_key(key),
        Bound::Excluded(key) => {
            let mut next = engine_key(key);
            next.push(0);
            next
        }
    }
}

fn upper_bound(end: Bound<&[u8]>) -> Vec<u8> {
    match end {
        Bound::Unbounded => vec![Keyspace::User as u8 + 1],
        Bound::Excluded(key) => engine_key(key),
        Bound::Included(key) => {
            let mut next = engine_key(key);
            next.push(0);
            next
        }
    }
}

impl Store for NodeStore {
    async fn look_up(&self, key: &[u8]) -> Result<Option<Found>> {
        let view = self.0.node.borrow().read_view();
        view.look_up(&self.0.tables, &engine_key(key)).await
    }

    async fn look_up_len(&self, key: &[u8]) -> Result<Option<FoundLen>> {
        let view = self.0.node.borrow().read_view();
        view.look_up_len(&self.0.tables, &engine_key(key)).await
    }

    fn now_ms(&self) -> u64 {
        self.0.node.borrow().now_ms()
    }

    fn system_ahead_ms(&self) -> i64 {
        self.0.clock.system_ahead_ms()
    }

    fn group_ms(&self) -> u64 {
        self.0.node.borrow().tree().now_ms()
    }

    fn set_probing(&self, is_probing: bool) -> bool {
        self.0.tables.source.is_probing.replace(is_probing)
    }

    fn term(&self) -> u64 {
        self.0.node.borrow().protocol().term().get()
    }

    async fn look_up_many(
        &self,
        keys: &[Bytes],
        mut give: impl FnMut(usize, Option<Found>) -> Result<()>,
    ) -> Result<()> {
        let view = self.0.node.borrow().read_view();
        if let [key] = keys {
            return give(0, view.look_up(&self.0.tables, &engine_key(key)).await?);
        }
        let keys: Vec<_> = keys.iter().map(|key| engine_key(key)).collect();
        view.look_up_many(&self.0.tables, &keys, |at, found| give(at, found?)).await
    }

    async fn look_up_len_many(
        &self,
        keys: &[Bytes],
        mut give: impl FnMut(usize, Option<FoundLen>) -> Result<()>,
    ) -> Result<()> {
        let view = self.0.node.borrow().read_view();
        if let [key] = keys {
            return give(0, view.look_up_len(&self.0.tables, &engine_key(key)).await?);
        }
        let keys: Vec<_> = keys.iter().map(|key| engine_key(key)).collect();
        view.look_up_len_many(&self.0.tables, &keys, |at, found| give(at, found?)).await
    }

    async fn range(&self, query: PageQuery<'_>) -> Result<Page> {
        let PageQuery { start, end, limit, bytes_max, with_values, order } = query;
        let mut page = PageBuilder::new(limit, bytes_max);
        if limit == 0 {
            return Ok(page.finish());
        }
        let (from, to) = (lower_bound(start), upper_bound(end));
        let scan = self.0.node.borrow().read_view().scan(&self.0.tables, &from, Some(&to));
        let mut scan = scan.limited(PAGE_STEPS_MAX).expecting(limit);
        if !with_values {
            scan = scan.of_keys();
        }
        let to = match order {
            Order::Ascending => Move::First,
            Order::Descending => Move::Last,
        };
        let is_cut = scan
            .each(to, |pair| {
                let value = if with_values { pair.value_bytes() } else { Bytes::new() };
                // Behind the keyspace byte.
                page.push(Bytes::copy_from_slice(&pair.key()[1..]), value, pair.expires_ms())
            })
            .await?;
        Ok(match scan.stopped_at() {
            Some(last) => page.cut_at(Bytes::copy_from_slice(&last[1..])),
            None if is_cut => page.cut(),
            None => page.finish(),
        })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut node = self.0.node.borrow_mut();
        self.check_gate(&node, Wish::Put)?;
        self.judge(node.put(Keyspace::User, key, value))?;
        self.wrote(1);
        Ok(())
    }

    fn write(&self, ops: &[Op]) -> Result<()> {
        let mut node = self.0.node.borrow_mut();
        self.check_gate(&node, Wish::of(ops))?;
        let len: usize = ops.iter().map(Op::len_max).sum();
        // All in one record: when the turn's has no room, it ends here.
        if len > node.turn_room() || self.0.turn_ops.get() + ops.len() > RECORD_OPS_MAX {
            self.judge(node.end_turn().map(|_| ()))?;
            self.0.turn_ops.set(0);
            self.0.has_written.set(true);
        }
        let room = node.turn_room();
        if len > room {
            return Err(Error::limit(format!(
                "the writes of one command or transaction take {len} bytes, over the limit of {room}"
            )));
        }
        for op in ops {
            let result = match op {
                Op::Put(key, value) => node.put(Keyspace::User, key, value),
                Op::PutExpiring(key, value, expires_ms) => {
                    node.put_expiring(Keyspace::User, key, value, *expires_ms)
                }
                Op::Delete(key) => node.delete(Keyspace::User, key),
                Op::Clear => node.clear(),
            };
            self.judge(result)?;
        }
        self.wrote(ops.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(gate: WriteGate, jobs_pause: bool, wish: Wish) -> String {
        match entry(gate, jobs_pause, wish) {
            Entry::Open => "goes on".into(),
            Entry::Wait(_) => "waits".into(),
            Entry::Refused(error) => format!("{error:?}"),
        }
    }

    /// docs/faults.md: E10
    #[test]
    fn nothing_waits_for_room_that_only_others_can_make() {
        let full = |takes_deletes, takes_clears| WriteGate::Full {
            reason: "full".into(),
            takes_deletes,
            takes_clears,
        };
        let (pause, oom) = (true, "[no space] full");
        for jobs_pause in [!pause, pause] {
            for (takes_deletes, takes_clears) in [(true, true), (false, true), (false, false)] {
                assert_eq!(met(full(takes_deletes, takes_clears), jobs_pause, Wish::Put), oom);
            }
            assert_eq!(met(full(true, true), jobs_pause, Wish::Delete), "goes on");
            assert_eq!(met(full(false, true), jobs_pause, Wish::Clear), "goes on");
            for wish in [Wish::Put, Wish::Delete, Wish::Clear] {
                assert_eq!(met(WriteGate::Wait("lag"), jobs_pause, wish), "waits");
                assert_eq!(met(WriteGate::Open, jobs_pause, wish), "goes on");
                let refused = met(WriteGate::Refuse("no".into()), jobs_pause, wish);
                assert_eq!(refused, "[unavailable] no");
            }
        }
        // What lags behind passes by itself, unless it is a flush that finds no room; so do deletes
        // that wait for others.
        assert_eq!(met(full(false, true), !pause, Wish::Delete), "waits");
        assert_eq!(met(full(false, true), pause, Wish::Delete), oom);
        for wish in [Wish::Delete, Wish::Clear] {
            assert_eq!(met(full(false, false), !pause, wish), "waits");
            assert_eq!(met(full(false, false), pause, wish), oom);
        }
    }
}
