//! A store in memory whose reads can be made to wait, a host with fixed numbers, and a client.

use crate::commands::scripts::Scripts;
use crate::commands::{
    Commands, Host, MemberInfo, NotSet, Op, Order, Page, PageBuilder, PageQuery, ServerInfo,
    Session, SlowlogLimits, Step, Store, Work,
};
use bytes::{Bytes, BytesMut};
use core::cell::{Cell, RefCell};
use core::future::Future;
use core::ops::Bound;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use gabion_base::{Error, Result};
use gabion_engine::{Found, FoundLen};
use gabion_resp::{Incoming, Reply, Request, RequestParser};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// A store in memory. While it is slow, each read first waits until it is released.
#[derive(Default)]
pub(super) struct MemoryStore {
    pub(super) keys: RefCell<BTreeMap<Bytes, Found>>,
    /// Keys that were deleted and still lie there: a page passes them and does not show them.
    pub(super) deleted: RefCell<BTreeSet<Bytes>>,
    /// How many keys, there or deleted, a page passes at most.
    pub(super) page_steps: Cell<Option<usize>>,
    /// The clock, in ms, and by which time keys are judged.
    pub(super) clock_ms: Cell<u64>,
    pub(super) group_ms: Cell<u64>,
    /// By how much the system's clock is ahead of the clock.
    pub(super) system_ahead_ms: Cell<i64>,
    pub(super) term: Cell<u64>,
    /// Every record, in order.
    pub(super) records: RefCell<Vec<Vec<Op>>>,
    pub(super) is_slow: Cell<bool>,
    waiting: RefCell<Vec<(u64, Waker)>>,
    released: RefCell<Vec<u64>>,
    next_read: Cell<u64>,
    /// Reads of one key.
    pub(super) look_ups: Cell<u64>,
    /// Values that were read, and not only their lengths.
    pub(super) values_read: Cell<u64>,
    /// The error of every write from now on.
    pub(super) refuses_writes: RefCell<Option<Error>>,
}

impl MemoryStore {
    /// Reads that wait.
    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Lets one of the waiting reads go on.
    pub(super) fn release(&self, choice: usize) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            return;
        }
        let index = choice % waiting.len();
        let (read, waker) = waiting.remove(index);
        self.released.borrow_mut().push(read);
        waker.wake();
    }

    async fn wait(&self) {
        if !self.is_slow.get() {
            return;
        }
        let read = self.next_read.replace(self.next_read.get() + 1);
        core::future::poll_fn(|cx| {
            if self.released.borrow().contains(&read) {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            waiting.retain(|(other, _)| *other != read);
            waiting.push((read, cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

impl MemoryStore {
    /// Holds a key from the beginning.
    pub(super) fn hold(&self, key: Bytes, value: Bytes) {
        self.keys.borrow_mut().insert(key, Found { value, expires_ms: None });
    }

    /// Time passes, by the clock and in the group.
    pub(super) fn pass(&self, ms: u64) {
        self.clock_ms.set(self.clock_ms.get() + ms);
        self.group_ms.set(self.clock_ms.get());
    }

    /// What there is by now.
    fn state(&self) -> BTreeMap<Bytes, Found> {
        let mut state = self.keys.borrow().clone();
        state.retain(|_, found| found.expires_ms.is_none_or(|at| at > self.group_ms.get()));
        state
    }

    /// One page of what there is by now, among what was deleted.
    fn page(
        &self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        mut page: PageBuilder,
        with_values: bool,
        order: Order,
    ) -> Page {
        let (keys, deleted) = (self.keys.borrow(), self.deleted.borrow());
        let is_there = |found: &Found| found.expires_ms.is_none_or(|at| at > self.group_ms.get());
        let there = keys.range::<[u8], _>(bounds).filter(|(_, found)| is_there(found));
        let gone = deleted.range::<[u8], _>(bounds);
        let gone = gone.filter(|key| !keys.get(*key).is_some_and(is_there));
        // References: a walk in small pages would otherwise copy the whole store for each.
        let mut entries: Vec<(&Bytes, Option<&Found>)> = there
            .map(|(key, found)| (key, Some(found)))
            .chain(gone.map(|key| (key, None)))
            .collect();
        entries.sort_by_key(|(key, _)| *key);
        if order == Order::Descending {
            entries.reverse();
        }
        let mut rest = entries.into_iter().peekable();
        let mut left = self.page_steps.get().unwrap_or(usize::MAX);
        loop {
            let Some((key, found)) = rest.next() else { return page.finish() };
            let has_room = found.is_none_or(|found| {
                let value = if with_values { found.value.clone() } else { Bytes::new() };
                page.push(key.clone(), value, found.expires_ms)
            });
            if !has_room && rest.peek().is_some() {
                return page.cut();
            }
            left -= 1;
            // Also behind the last of all, which the real one may not know to be the last.
            if left == 0 {
                return page.cut_at(key.clone());
            }
        }
    }
}

impl Store for MemoryStore {
    async fn look_up(&self, key: &[u8]) -> Result<Option<Found>> {
        self.look_ups.set(self.look_ups.get() + 1);
        self.values_read.set(self.values_read.get() + 1);
        let found = self.keys.borrow().get(key).cloned();
        let now_ms = self.group_ms.get();
        let found = found.filter(|found| found.expires_ms.is_none_or(|at| at > now_ms));
        self.wait().await;
        // What the read saw when it began: a newer value must not hide a missing lock.
        Ok(found)
    }

    async fn look_up_len(&self, key: &[u8]) -> Result<Option<FoundLen>> {
        let found = self.state().remove(key);
        self.wait().await;
        Ok(found.map(|Found { value, expires_ms }| FoundLen { len: value.len(), expires_ms }))
    }

    fn now_ms(&self) -> u64 {
        self.clock_ms.get()
    }

    fn system_ahead_ms(&self) -> i64 {
        self.system_ahead_ms.get()
    }

    fn group_ms(&self) -> u64 {
        self.group_ms.get()
    }

    fn term(&self) -> u64 {
        self.term.get()
    }

    async fn look_up_many(
        &self,
        keys: &[Bytes],
        mut give: impl FnMut(usize, Option<Found>) -> Result<()>,
    ) -> Result<()> {
        let state = self.state();
        self.values_read.set(self.values_read.get() + keys.len() as u64);
        self.wait().await;
        // In no order, as the real one.
        keys.iter().enumerate().rev().try_for_each(|(at, key)| give(at, state.get(key).cloned()))
    }

    async fn look_up_len_many(
        &self,
        keys: &[Bytes],
        mut give: impl FnMut(usize, Option<FoundLen>) -> Result<()>,
    ) -> Result<()> {
        let state = self.state();
        self.wait().await;
        let len_of = |Found { value, expires_ms }: &Found| FoundLen {
            len: value.len(),
            expires_ms: *expires_ms,
        };
        let found = |key| state.get(key).map(len_of);
        keys.iter().enumerate().rev().try_for_each(|(at, key)| give(at, found(key)))
    }

    async fn range(&self, query: PageQuery<'_>) -> Result<Page> {
        let PageQuery { start, end, limit, bytes_max, with_values, order } = query;
        assert!(limit > 0 && bytes_max > 0);
        let page = PageBuilder::new(limit, bytes_max);
        let page = self.page((start, end), page, with_values, order);
        if with_values {
            self.values_read.set(self.values_read.get() + page.pairs.len() as u64);
        }
        self.wait().await;
        Ok(page)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(&[Op::Put(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value))])
    }

    fn write(&self, ops: &[Op]) -> Result<()> {
        if let Some(error) = &*self.refuses_writes.borrow() {
            return Err(error.clone());
        }
        for op in ops {
            match op.clone() {
                Op::Put(key, value) => {
                    self.keys.borrow_mut().insert(key, Found { value, expires_ms: None });
                }
                Op::PutExpiring(key, value, at) => {
                    let found = Found { value, expires_ms: Some(at) };
                    self.keys.borrow_mut().insert(key, found);
                }
                Op::Delete(key) => drop(self.keys.borrow_mut().remove(&key)),
                Op::Clear => self.keys.borrow_mut().clear(),
            }
        }
        self.records.borrow_mut().push(ops.to_vec());
        Ok(())
    }
}

thread_local! {
    /// The clock by which commands are timed, and by how much a reading of it sets it forward.
    static CLOCK_NS: Cell<u64> = const { Cell::new(0) };
    pub(super) static CLOCK_STEP_NS: Cell<u64> = const { Cell::new(0) };
}

/// A host at a fixed time with three replicas.
pub(crate) struct FixedHost;

impl Host for FixedHost {
    fn system_time_us(&self) -> u64 {
        self.unix_time_us()
    }

    fn unix_time_us(&self) -> u64 {
        1_700_000_000_123_456
    }

    fn replicas(&self) -> u32 {
        3
    }

    fn is_head(&self) -> bool {
        true
    }

    fn acknowledges_durable(&self) -> bool {
        false
    }

    fn clock_ns(&self) -> u64 {
        CLOCK_NS.set(CLOCK_NS.get() + CLOCK_STEP_NS.get());
        CLOCK_NS.get()
    }

    fn slowlog(&self) -> SlowlogLimits {
        SlowlogLimits::default()
    }

    fn options(&self) -> Vec<(String, String)> {
        [("save", ""), ("appendonly", "yes"), ("maxmemory", "0"), ("databases", "1")]
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .to_vec()
    }

    fn set_options(&self, options: &[(Bytes, Bytes)]) -> Result<(), NotSet> {
        match options.iter().find(|(name, _)| name != "maxmemory") {
            None => Ok(()),
            Some((name, _)) if name == "Save" => {
                Err(NotSet::Refused { name: name.clone(), why: "can't set immutable config" })
            }
            Some((name, _)) => Err(NotSet::Unknown(name.clone())),
        }
    }

    fn info(&self) -> ServerInfo {
        ServerInfo {
            version: "0.1.0".to_string(),
            tcp_port: 6380,
            replicas: [6381, 6382].map(replica).to_vec(),
            log_position: 5000,
            cpu_user_us: 1_500_000,
            memory_used: 3 << 19,
            group: 7,
            keys: 3,
            expiring_keys: 1,
            gabion: vec![("term", "4".to_string())],
            ..ServerInfo::default()
        }
    }
}

fn replica(port: u16) -> MemberInfo {
    let address = ([127, 0, 0, 1], port).into();
    MemberInfo { address, is_up: true, is_full: true, log_position: 4096, silent_s: 1 }
}

/// A node of one store and its commands.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) store: Rc<MemoryStore>,
    pub(super) commands: Rc<Commands>,
}

impl Node {
    pub(super) fn new() -> Self {
        // A clock that goes on by being asked: whatever runs long comes to its end, and as late on any machine.
        let asked = Cell::new(0);
        let clock = Rc::new(move || asked.replace(asked.get() + 10));
        let commands = Commands::with_scripts(42, Scripts::with_clock(clock));
        Self { store: Rc::default(), commands: Rc::new(commands) }
    }

    pub(super) fn client(&self) -> Client {
        let address = "127.0.0.1:5000".to_string();
        let session = self.commands.connect(address, "127.0.0.1:6380".to_string(), &FixedHost);
        Client { node: self.clone(), session, is_closed: false }
    }

    /// How often others come between while this runs.
    pub(super) fn polls(&self, work: &Work) -> usize {
        let mut run = pin!(self.commands.execute(&*self.store, work));
        let mut cx = Context::from_waker(Waker::noop());
        (0..).take_while(|_| run.as_mut().poll(&mut cx).is_pending()).count()
    }
}

/// A connection to a node.
pub(super) struct Client {
    pub(super) node: Node,
    pub(super) session: Session,
    pub(super) is_closed: bool,
}

impl Client {
    /// The reply to a request.
    pub(super) fn reply(&mut self, request: Request) -> Reply {
        match self.node.commands.handle(&mut self.session, request, &FixedHost) {
            Step::Reply(reply) | Step::Wait(reply) => reply,
            Step::Ask(_) | Step::Await(_) => Reply::Null,
            Step::Drop => {
                self.is_closed = true;
                Reply::Null
            }
            Step::Close(reply) => {
                self.is_closed = true;
                reply
            }
            Step::Run(work) => {
                let begun_ns = self.node.commands.next_begins_ns();
                let reply = self.run(&work);
                let asker = || self.node.commands.asker(self.session.id());
                self.node.commands.note_work(&work, begun_ns, asker, &FixedHost);
                reply
            }
        }
    }

    fn run(&self, work: &Work) -> Reply {
        block_on(self.node.commands.execute(&*self.node.store, work))
    }

    /// The reply, as bytes, to a request in the words of an inline request.
    pub(super) fn ask(&mut self, line: &str) -> String {
        let reply = self.reply(request(line));
        let mut out = Vec::new();
        reply.encode(self.session.protocol(), &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Asks each line and compares its reply.
    pub(super) fn script(&mut self, script: &[(&str, &str)]) {
        for (line, expected) in script {
            assert_eq!(self.ask(line), *expected, "{line}");
        }
    }
}

/// A request in the words of an inline request.
pub(super) fn request(line: &str) -> Request {
    let mut buffer = BytesMut::from(format!("{line}\r\n").as_bytes());
    match RequestParser::new().parse(&mut buffer).unwrap().unwrap() {
        Incoming::Request(request) => request,
        Incoming::TooLarge(large) => panic!("{large:?}"),
    }
}

/// A request of these words.
pub(super) fn request_of(words: &[&[u8]]) -> Request {
    Request { args: words.iter().map(|word| Bytes::copy_from_slice(word)).collect() }
}

/// Runs a future that only ever waits for its turn.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..1_000_000 {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
    panic!("the future waits for something that never comes");
}
