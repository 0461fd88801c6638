//! Fake nodes and a fake network around real chains, driven step by step.
//!
//! A node's *disk* holds term, spans, session, edit, flushed and trim positions; its *ring* holds
//! the records. A kill keeps both. A power cut keeps the disk and the records below `durable`. Rot
//! takes records that were durable, and all that follow them.

use crate::planted::Mutant;
use crate::spans::Span;
use crate::{
    Action, Chain, Config, Frame, GroupView, LocalState, LogKind, Lost, Member, Message, Progress,
    Protocol, Spans, Watermarks,
};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::codec::{Put, Reader};
use gabion_base::{
    ConfigNumber, Error, Frontier, GroupId, LogPosition, ReplicaId, ShardId, Term, crc,
};

pub(crate) const HEARTBEAT_MS: u64 = 100;
pub(crate) const TIMEOUT_MS: u64 = 1000;
pub(crate) const LEASE_MS: u32 = 150;
/// A node waits so much longer for what it has promised.
const LEASE_MARGIN_MS: u64 = 2;
/// Bytes of a segment and of the ring, unless the test says otherwise: more than any test writes.
const LENGTHS: (u64, u64) = (16_384, 1 << 40);
const HEADER_LEN: u64 = 40;

/// A record of a fake log: position, term, length, value, predecessor's checksum, checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) position: u64,
    pub(crate) term: u64,
    pub(crate) len: u64,
    pub(crate) value: u64,
    pub(crate) previous_crc: u32,
    crc: u32,
}

impl Record {
    fn new(position: u64, term: u64, len: u64, value: u64, previous_crc: u32) -> Self {
        let mut record = Self { position, term, len, value, previous_crc, crc: 0 };
        record.crc = crc::crc32c(&record.header());
        record
    }

    fn header(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN as usize);
        out.put_u64(self.position);
        out.put_u64(self.term);
        out.put_u64(self.len);
        out.put_u64(self.value);
        out.put_u32(self.previous_crc);
        out
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = self.header();
        out.put_u32(self.crc);
        out.resize(self.len as usize, 0);
        Bytes::from(out)
    }

    pub(crate) fn crc(&self) -> u32 {
        self.crc
    }

    pub(crate) fn end(&self) -> u64 {
        self.position + self.len
    }

    fn decode(r: &mut Reader<'_>) -> gabion_base::Result<Self> {
        let (position, term, len, value) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
        let record = Self::new(position, term, len, value, r.u32()?);
        if r.u32()? != record.crc {
            return Err(Error::corruption("record with a bad checksum"));
        }
        r.bytes(record.len.saturating_sub(HEADER_LEN) as usize)?;
        Ok(record)
    }
}

/// One replica: its durable state, its volatile state, and the work the chain asked for.
pub(crate) struct Node {
    pub(crate) id: u32,
    pub(crate) term: Term,
    pub(crate) session: u64,
    pub(crate) spans: Spans,
    pub(crate) records: BTreeMap<u64, Record>,
    pub(crate) oldest: u64,
    /// Checksum of the record before `oldest`.
    oldest_crc: u32,
    pub(crate) durable: u64,
    pub(crate) edit: u64,
    pub(crate) flushed: u64,
    /// On the disk: the log was durable here and committed up to this position.
    pub(crate) known: u64,
    /// On the disk: the view in which it acts.
    pub(crate) view: GroupView,
    /// On the disk: a newer view, which waits for the end of what was promised.
    pending: Option<GroupView>,
    /// Gone with the process: a newer view waits until then, by the clock of promises.
    waits_until_ms: u64,
    /// The end of the last promise to each member, in this life.
    promised: BTreeMap<ReplicaId, u64>,
    /// Its log cannot be followed.
    pub(crate) wants_copy: bool,
    /// The term that began here is still to begin in the log.
    awaits_term_start: bool,
    /// Gone with the process.
    pub(crate) chain: Option<Box<dyn Protocol>>,
    /// The watermarks that the protocol of the view before knew.
    marks: Watermarks,
    next_ticket: u64,
    /// Place, Truncate and AdoptTerm, in order.
    pub(crate) work: VecDeque<Action>,
    /// SendLog.
    pub(crate) reads: VecDeque<Action>,
    /// Every (position, checksum) that was ever in the log, for the checkers.
    pub(crate) ever_held: BTreeSet<(u64, u32)>,
    pub(crate) delivered: Vec<(u32, Message)>,
}

impl Node {
    fn new(id: u32, view: GroupView) -> Self {
        Self {
            id,
            view,
            pending: None,
            waits_until_ms: 0,
            promised: BTreeMap::new(),
            wants_copy: false,
            awaits_term_start: false,
            marks: Watermarks::default(),
            next_ticket: 0,
            term: Term::ZERO,
            session: 0,
            spans: Spans::default(),
            records: BTreeMap::new(),
            oldest: 0,
            oldest_crc: 0,
            durable: 0,
            edit: 0,
            flushed: 0,
            known: 0,
            chain: None,
            work: VecDeque::new(),
            reads: VecDeque::new(),
            ever_held: BTreeSet::new(),
            delivered: Vec::new(),
        }
    }

    /// The view to act in: none while a newer one waits since before the start.
    fn view_in_effect(&self) -> GroupView {
        match self.pending {
            Some(_) => GroupView { config: ConfigNumber::ZERO, ..self.view.clone() },
            None => self.view.clone(),
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.records.last_key_value().map_or(self.oldest, |(_, r)| r.end())
    }

    fn last_crc(&self) -> u32 {
        self.records.last_key_value().map_or(self.oldest_crc, |(_, r)| r.crc())
    }

    /// A start's findings: the spans decide which records count.
    fn recover(&mut self) -> LocalState {
        let mut end = self.oldest;
        for span in self.spans.as_slice() {
            if span.end.get() <= self.oldest {
                continue;
            }
            let mut next = span.start.get().max(self.oldest);
            while let Some(r) = self.records.get(&next)
                && r.term == span.term.get()
                && r.end() <= span.end.get()
            {
                next = r.end();
                end = next;
            }
            if next != span.end.get() {
                break;
            }
        }
        self.cut(end);
        let first = self.spans.after(LogPosition(end));
        let lost = self.is_lost(end).then(|| Lost {
            from: first,
            to: LogPosition(self.known),
            term: self.known_term(),
        });
        LocalState {
            term: self.term,
            session: self.session,
            spans: self.spans.clone(),
            oldest: LogPosition(self.oldest),
            last_crc: self.last_crc(),
            progress: Progress {
                end: at(end),
                durable: at(self.durable),
                flushed: at(self.flushed),
                edit: self.edit,
            },
            lost,
            gap: None,
            incarnation: self.session,
            marks: self.marks,
            is_whole: false,
            next_ticket: self.next_ticket,
        }
    }

    /// Whether a log that ends at `end` lacks records that it once had.
    pub(crate) fn is_lost(&self, end: u64) -> bool {
        self.spans.after(LogPosition(end)).get() < self.known
    }

    fn known_term(&self) -> Term {
        let below = |s: &&Span| s.start.get() < self.known;
        self.spans.as_slice().iter().rev().find(below).map_or(Term::ZERO, |s| s.term)
    }

    /// Records that were durable at every member, or that this one needs no more: the end of the
    /// log without them, and their start.
    pub(crate) fn can_rot(&self) -> Vec<(u64, u64)> {
        let ends = self.records.values().map(Record::end);
        let before = core::iter::once(self.oldest).chain(ends);
        let records = before.zip(self.records.values());
        records.filter(|(_, r)| r.end() <= self.known).map(|(end, r)| (end, r.position)).collect()
    }

    /// All lost power: the log never had what is not in it any more, but for what was trimmed.
    pub(crate) fn forget_volatile(&mut self) {
        let (oldest, records) = (self.oldest, &self.records);
        let is_here = |at: &u64, crc: u32| records.get(at).is_some_and(|r| r.crc() == crc);
        self.ever_held.retain(|(at, crc)| *at < oldest || is_here(at, *crc));
    }

    fn cut(&mut self, end: u64) {
        self.records.retain(|_, r| r.end() <= end);
        self.durable = self.durable.min(end);
    }

    /// Records beyond the end of their term's span never counted.
    fn cut_to_spans(&mut self) {
        let spans = &self.spans;
        let first = spans.as_slice().first().map_or(0, |span| span.start.get());
        let fits = |r: &Record| {
            spans.at(LogPosition(r.position)).map(|s| (s.term.get(), r.end() <= s.end.get()))
        };
        self.records.retain(|at, r| *at < first || fits(r) == Some((r.term, true)));
        self.durable = self.durable.min(self.end());
    }

    /// Bytes of the ring that are not on the disk.
    fn unflushed(&self) -> u64 {
        self.end() - self.durable.min(self.end())
    }

    /// In a ring of so many bytes.
    fn place(
        &mut self,
        from: LogPosition,
        term: Term,
        bytes: &[Bytes],
        ring_len: u64,
    ) -> Result<(), String> {
        let all = bytes.concat();
        let mut reader = Reader::new(&all, "records");
        let mut position = from.get();
        while !reader.is_empty() {
            let record = Record::decode(&mut reader).map_err(|e| e.to_string())?;
            let previous = self.last_crc();
            let is_next = record.previous_crc == previous;
            if record.position != position || record.term != term.get() || !is_next {
                return Err(format!("record {} does not fit at {position}", describe(&record)));
            }
            position = record.end();
            if position > self.durable + ring_len {
                return Err(format!("record {}: the ring is full", describe(&record)));
            }
            self.ever_held.insert((record.position, record.crc()));
            self.records.insert(record.position, record);
        }
        Ok(())
    }

    pub(crate) fn read(&self, from: u64, until: u64, bytes_max: usize) -> Vec<Bytes> {
        let mut out = Vec::new();
        let mut len = 0;
        for record in self.records.range(from..).map(|(_, r)| r) {
            len += record.len;
            if record.end() > until || (!out.is_empty() && len > bytes_max as u64) {
                break;
            }
            out.push(record.encode());
        }
        out
    }
}

/// A position as a frontier.
fn at(position: u64) -> Frontier {
    Frontier::of(LogPosition(position))
}

/// A connection: frames on their way each way, and whether each end still holds it.
pub(crate) struct Connection {
    pub(crate) ends: [(u32, u64); 2],
    /// `queues[i]` flows from `ends[i]` to the other; `None` marks the close.
    pub(crate) queues: [VecDeque<Option<Bytes>>; 2],
    pub(crate) is_broken: bool,
}

fn founding(count: u32) -> GroupView {
    let founders: Vec<_> = (1..=count).map(ReplicaId).collect();
    let log = if count == 1 { LogKind::Private } else { LogKind::Shared };
    GroupView::founding(GroupId(7), &founders, log)
}

/// A planted defect of the fake nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// A newer view takes effect while promises stand.
    LeaseNotWaitedFor,
    /// A start waits for no promise of the process before.
    RestartForgetsPromise,
}

/// Clocks of promises run alike and do not agree.
fn lease_ms(id: u32, now_ms: u64) -> u64 {
    now_ms + 10_000 * u64::from(id)
}

/// The cluster.
pub(crate) struct Cluster {
    pub(crate) now_ms: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) window_bytes: u64,
    /// Bytes of a segment and of a ring.
    pub(crate) lengths: (u64, u64),
    pub(crate) mutant: Option<Mutant>,
    /// A defect of the fake nodes.
    pub(crate) defect: Option<Defect>,
    /// Whether each term begins with a record.
    pub(crate) has_term_starts: bool,
    /// Whether nodes are told the clock of promises. Without it there are none.
    pub(crate) has_leases: bool,
    /// The newest view.
    newest: GroupView,
    pub(crate) next_value: u64,
    next_connection: u64,
    /// Everything that nodes did, for the text tests.
    pub(crate) trace: Vec<String>,
    pub(crate) is_tracing: bool,
    /// Frames delivered, as (receiver, connection of the receiver, frame), for the checkers.
    pub(crate) heard: Vec<(u32, u64, Frame)>,
}

impl Cluster {
    pub(crate) fn new(count: u32) -> Self {
        Self {
            now_ms: 0,
            nodes: (1..=count).map(|id| Node::new(id, founding(count))).collect(),
            connections: Vec::new(),
            window_bytes: 1000,
            lengths: LENGTHS,
            mutant: None,
            defect: None,
            has_term_starts: false,
            has_leases: true,
            newest: founding(count),
            next_value: 1,
            next_connection: 1,
            trace: Vec::new(),
            is_tracing: false,
            heard: Vec::new(),
        }
    }

    pub(crate) fn node(&mut self, id: u32) -> &mut Node {
        &mut self.nodes[id as usize - 1]
    }

    pub(crate) fn chain(&mut self, id: u32) -> Option<&mut (dyn Protocol + 'static)> {
        self.node(id).chain.as_deref_mut()
    }

    pub(crate) fn start(&mut self, id: u32) {
        let forgets = !self.has_leases || self.defect == Some(Defect::RestartForgetsPromise);
        let now_ms = self.now_ms;
        let node = self.node(id);
        node.session += 1;
        (node.marks, node.next_ticket) = (Watermarks::default(), 0);
        (node.wants_copy, node.awaits_term_start) = (false, false);
        // Nobody ran before the first start.
        let is_full = node.session > 1 && node.view.has_full(ReplicaId(id));
        let may_have_promised = node.pending.is_some() || is_full;
        node.promised.clear();
        node.waits_until_ms = match may_have_promised && !forgets {
            true => lease_ms(id, now_ms) + u64::from(LEASE_MS) + LEASE_MARGIN_MS,
            false => 0,
        };
        if forgets {
            node.view = node.pending.take().unwrap_or(node.view.clone());
        }
        let view = node.view_in_effect();
        self.begin(id, view);
    }

    /// Begins the protocol of a view with what the node has.
    fn begin(&mut self, id: u32, view: GroupView) {
        let config = Config {
            view,
            me: ReplicaId(id),
            heartbeat_ms: HEARTBEAT_MS,
            timeout_ms: TIMEOUT_MS,
            lease_ms: LEASE_MS,
            window_bytes: self.window_bytes,
            segment_len: self.lengths.0,
            ring_len: self.lengths.1,
        };
        let (now_ms, mutant) = (self.now_ms, self.mutant);
        let node = self.node(id);
        let state = node.recover();
        let is_chain = config.is_member() && config.view.members.len() > 1;
        node.chain = Some(match is_chain {
            false => crate::begin(config, state, now_ms).unwrap(),
            true => {
                let mut chain = Chain::new(config, state, now_ms).unwrap();
                chain.planted.mutant = mutant;
                Box::new(chain)
            }
        });
        self.pass_lease_time();
        self.drain(id);
    }

    /// A newer view becomes durable at a node that runs, and takes effect once what the node has
    /// promised has run out.
    pub(crate) fn take_view(&mut self, id: u32, view: GroupView) {
        let node = self.node(id);
        let Some(chain) = &mut node.chain else { return };
        let known = node.pending.as_ref().unwrap_or(&node.view).config;
        if view.config <= known {
            return;
        }
        chain.stop_promising();
        if node.pending.is_none() {
            for holder in node.view.members.iter().map(|member| member.replica) {
                let until_ms = chain.promised_until_ms(holder);
                let known_ms = node.promised.entry(holder).or_insert(0);
                *known_ms = until_ms.max(*known_ms);
            }
        }
        node.pending = Some(view);
        self.take_effect(id);
    }

    /// The newest view of a node takes effect, if it may: the node's connections end, and the
    /// protocol begins anew with all that is in memory.
    fn take_effect(&mut self, id: u32) {
        let is_early = self.defect == Some(Defect::LeaseNotWaitedFor);
        let now_ms = lease_ms(id, self.now_ms);
        let node = self.node(id);
        let Some(view) = &node.pending else { return };
        // One that stays full gives up the view before by itself, before anything counts.
        let promised = node.promised.iter().filter(|(holder, _)| !view.has_full(**holder));
        let promised_ms = promised.map(|(_, until_ms)| until_ms + LEASE_MARGIN_MS).max();
        let until_ms = node.waits_until_ms.max(promised_ms.unwrap_or(0));
        if node.chain.is_none() || (now_ms <= until_ms && !is_early) {
            return;
        }
        let Some(view) = node.pending.take() else { return };
        node.view = view.clone();
        (node.wants_copy, node.awaits_term_start) = (false, false);
        let Some(chain) = node.chain.take() else { return };
        node.marks = Watermarks {
            commit: chain.commit(),
            durable: chain.durable_commit(),
            flushed: chain.flushed_min(),
            edit: chain.edits_applied_min(),
        };
        node.next_ticket = chain.next_ticket();
        node.work.clear();
        for i in 0..self.connections.len() {
            if self.connections[i].ends.iter().any(|e| e.0 == id) {
                self.break_connection(i, 0);
            }
        }
        self.begin(id, view);
    }

    /// The newest view.
    pub(crate) const fn newest(&self) -> &GroupView {
        &self.newest
    }

    /// The next configuration: these full members, and these that are being filled.
    pub(crate) fn next_view(&mut self, full: &[u32], filled: &[u32]) -> GroupView {
        let mut view = self.newest.clone();
        view.config = view.config.next();
        let member = |id: &u32, is_full| Member { is_full, ..Member::new(ReplicaId(*id)) };
        let full = full.iter().map(|id| member(id, true));
        view.members = full.chain(filled.iter().map(|id| member(id, false))).collect();
        view.members_min = 1;
        self.newest = view.clone();
        view
    }

    /// Whether the log of a member has a record of the term that runs in the newest view.
    pub(crate) fn has_founded(&self, id: u32) -> bool {
        let node = &self.nodes[id as usize - 1];
        let last = node.records.last_key_value().map(|(_, record)| record.term);
        node.view.config == self.newest.config
            && node.chain.as_ref().is_some_and(|c| c.is_joined() && last == Some(c.term().get()))
    }

    /// A node gets the state of another: files, and the log that the other has.
    pub(crate) fn copy(&mut self, from: u32, to: u32) {
        self.kill(to, true);
        let of = self.node(from);
        let (term, spans, records) = (of.term, of.spans.clone(), of.records.clone());
        let (oldest, oldest_crc) = (of.oldest, of.oldest_crc);
        let (edit, flushed, known) = (of.edit, of.flushed, of.known);
        let node = self.node(to);
        node.ever_held.extend(records.values().map(|record| (record.position, record.crc())));
        (node.term, node.spans, node.records) = (term, spans, records);
        (node.oldest, node.oldest_crc) = (oldest, oldest_crc);
        (node.edit, node.flushed, node.known) = (edit, flushed, known);
        node.durable = node.end();
        self.start(to);
    }

    /// Tells each node the time by which promises count.
    pub(crate) fn pass_lease_time(&mut self) {
        let now_ms = self.now_ms;
        for id in (1..=self.nodes.len() as u32).filter(|_| self.has_leases) {
            if let Some(chain) = self.nodes[id as usize - 1].chain.as_deref_mut() {
                chain.pass_lease_time(lease_ms(id, now_ms));
            }
        }
    }

    /// The node that takes writes, by the newest view.
    pub(crate) fn writer(&self) -> u32 {
        self.newest().writer().get()
    }

    /// The node that answers reads, by the newest view.
    pub(crate) fn reader(&self) -> u32 {
        self.newest().reader().get()
    }

    /// Ends the process; `has_power` tells whether the ring survives.
    pub(crate) fn kill(&mut self, id: u32, has_power: bool) {
        let node = self.node(id);
        if let Some(chain) = &node.chain {
            // The durable mark that the records state.
            let durable = chain.durable_commit().only().get();
            let ends = node.records.values().map(Record::end).filter(|end| *end <= durable);
            node.known = node.known.max(ends.max().unwrap_or(0));
        }
        node.chain = None;
        node.work.clear();
        node.reads.clear();
        if !has_power {
            let durable = node.durable;
            node.cut(durable);
        }
        for i in 0..self.connections.len() {
            if self.connections[i].ends.iter().any(|e| e.0 == id) {
                self.break_connection(i, usize::MAX);
            }
        }
    }

    /// The node, which is stopped, gets an empty disk and ring.
    pub(crate) fn wipe(&mut self, id: u32) {
        let node = self.node(id);
        let session = node.session;
        let ever_held = core::mem::take(&mut node.ever_held);
        let (view, pending) = (node.view.clone(), node.pending.take());
        *node = Node { session, ever_held, pending, ..Node::new(id, view) };
    }

    /// The record at `position` of a stopped node is no longer whole, and the log ends there.
    pub(crate) fn rot(&mut self, id: u32, position: u64) {
        let node = self.node(id);
        assert!(node.chain.is_none(), "what runs has its log in memory");
        node.records.retain(|_, r| r.position < position);
        let end = node.end();
        node.durable = node.durable.min(end);
    }

    /// Everything that is still on its way from or to a stopped node arrives.
    pub(crate) fn deliver_rest_of(&mut self, id: u32) {
        for i in 0..self.connections.len() {
            if self.connections[i].ends.iter().any(|e| e.0 == id) {
                for side in 0..2 {
                    while self.deliver(i, side) {}
                }
            }
        }
    }

    pub(crate) fn connect(&mut self, a: u32, b: u32) {
        let is_up = |c: &Connection| !c.is_broken && c.ends.iter().all(|e| e.0 == a || e.0 == b);
        if self.connections.iter().any(is_up) {
            return;
        }
        let (numbers, now_ms) = ((self.next_connection, self.next_connection + 100), self.now_ms);
        self.next_connection += 1;
        self.connections.push(Connection {
            ends: [(a, numbers.0), (b, numbers.1)],
            queues: [VecDeque::new(), VecDeque::new()],
            is_broken: false,
        });
        for (me, peer, number) in [(a, b, numbers.0), (b, a, numbers.1)] {
            if let Some(chain) = self.chain(me) {
                chain.handle_connected(ReplicaId(peer), number, now_ms);
            }
            self.drain(me);
        }
    }

    /// Breaks a connection: each end hears at most `keep` more frames, then of the close.
    pub(crate) fn break_connection(&mut self, i: usize, keep: usize) {
        let connection = &mut self.connections[i];
        if connection.is_broken {
            return;
        }
        connection.is_broken = true;
        for queue in &mut connection.queues {
            queue.truncate(keep);
            queue.push_back(None);
        }
    }

    /// Delivers the next frame on its way from `ends[side]` of a connection; false if there is
    /// none.
    pub(crate) fn deliver(&mut self, i: usize, side: usize) -> bool {
        let (to, number) = self.connections[i].ends[1 - side];
        let from = ReplicaId(self.connections[i].ends[side].0);
        let Some(frame) = self.connections[i].queues[side].pop_front() else { return false };
        let now_ms = self.now_ms;
        if self.node(to).chain.is_none() {
            return true;
        }
        match frame {
            None => {
                self.note(to, || format!("connection to {} is gone", from.get()));
                self.chain(to).unwrap().handle_disconnected(from, number, now_ms);
            }
            Some(bytes) => {
                let frame = Frame::decode(&bytes).unwrap();
                self.note(to, || format!("hears {}: {}", from.get(), describe_frame(&frame)));
                self.heard.push((to, number, frame.clone()));
                self.hand_in(to, i, number, frame);
            }
        }
        self.drain(to);
        true
    }

    /// Hands a frame to a chain; a refusal closes the connection.
    pub(crate) fn hand_in(&mut self, to: u32, i: usize, number: u64, frame: Frame) {
        let (from, now_ms) = (frame.from, self.now_ms);
        let Some(chain) = self.chain(to) else { return };
        if let Err(e) = chain.handle_message(from, number, frame, now_ms) {
            self.note(to, || format!("refuses: {e}"));
            self.break_connection(i, 0);
            self.chain(to).unwrap().handle_disconnected(from, number, now_ms);
        }
        self.drain(to);
    }

    /// Carries out the next Place, Truncate or AdoptTerm; false if there is none.
    pub(crate) fn work(&mut self, id: u32) -> bool {
        let ring_len = self.lengths.1;
        let node = self.node(id);
        let Some(action) = node.work.pop_front() else { return false };
        match action {
            Action::Place { from, term, bytes, .. } => match node
                .place(from, term, &bytes, ring_len)
            {
                Ok(()) => {
                    let (end, crc) = (LogPosition(node.end()), node.last_crc());
                    node.chain.as_mut().unwrap().handle_placed(ShardId::ZERO, end, crc);
                }
                Err(reason) => {
                    let (end, crc) = (LogPosition(node.end()), node.last_crc());
                    let reason = Error::corruption(reason);
                    node.work.clear();
                    node.chain.as_mut().unwrap().handle_rejected(ShardId::ZERO, end, crc, &reason);
                }
            },
            Action::Truncate { at, .. } => node.cut(at.get()),
            Action::Follow { spans, .. } => {
                node.term = node.term.max(spans.tip().0);
                node.spans = spans;
            }
            Action::AdoptTerm { term, spans, end, .. } => {
                node.term = term;
                node.spans = spans;
                node.cut(end.get());
                node.cut_to_spans();
                node.chain.as_mut().unwrap().handle_term_adopted(ShardId::ZERO, term);
                self.node(id).awaits_term_start = true;
            }
            other => panic!("{other:?} is no work"),
        }
        self.drain(id);
        true
    }

    /// Answers the next read; false if there is none.
    pub(crate) fn answer_read(&mut self, id: u32) -> bool {
        let node = self.node(id);
        let Some(action) = node.reads.pop_front() else { return false };
        let Action::SendLog { ticket, from, until, bytes_max, .. } = action else {
            panic!("{action:?} is no read");
        };
        let records = node.read(from.get(), until.get(), bytes_max);
        node.chain.as_mut().unwrap().handle_log_read(ticket, Ok(records));
        self.drain(id);
        true
    }

    /// The device fails the next read; false if there is none.
    pub(crate) fn fail_read(&mut self, id: u32, error: Error) -> bool {
        let node = self.node(id);
        let Some(Action::SendLog { ticket, .. }) = node.reads.pop_front() else { return false };
        node.chain.as_mut().unwrap().handle_log_read(ticket, Err(error));
        self.drain(id);
        true
    }

    /// A bit of the first records on their way from `ends[side]` of a connection flips; false if
    /// there are none.
    pub(crate) fn flip(&mut self, i: usize, side: usize, bit: u64) -> bool {
        for bytes in self.connections[i].queues[side].iter_mut().flatten() {
            let mut frame = Frame::decode(bytes).unwrap();
            let Message::Records { bytes: records, .. } = &mut frame.message else { continue };
            let mut flipped = records.concat();
            let bit = (bit % (8 * HEADER_LEN)) as usize;
            flipped[bit / 8] ^= 1 << (bit % 8);
            *records = vec![Bytes::from(flipped)];
            *bytes = frame.encode().unwrap().concat();
            return true;
        }
        false
    }

    /// The first record of a term says whose it is, as soon as the term may have one, whether
    /// anybody hears of it or not.
    fn append_term_start(&mut self, id: u32) {
        let has_term_starts = self.has_term_starts;
        let node = self.node(id);
        let is_writer = node.view.writer() == ReplicaId(id);
        let may_append = node.chain.as_ref().is_some_and(|chain| chain.may_append());
        if has_term_starts && is_writer && may_append && node.awaits_term_start {
            node.awaits_term_start = false;
            self.append_at(id, HEADER_LEN);
        }
    }

    /// The head appends one record; false when the group does not accept writes.
    pub(crate) fn append(&mut self, len: u64) -> bool {
        let writer = self.writer();
        let (segment_len, ring_len) = self.lengths;
        let node = self.node(writer);
        let is_full = node.unflushed() >= ring_len - 2 * segment_len;
        let is_ready = node.chain.as_ref().is_some_and(|chain| chain.is_ready());
        if node.view.writer() != ReplicaId(writer) || is_full || !is_ready {
            return false;
        }
        self.append_at(writer, len);
        true
    }

    fn append_at(&mut self, writer: u32, len: u64) {
        let value = self.next_value;
        let node = self.node(writer);
        let Some(chain) = node.chain.as_mut() else { return };
        let position = chain.progress().end.only().get();
        let previous_crc = node.last_crc();
        let node = self.node(writer);
        let term = node.term.get();
        let record = Record::new(position, term, len.max(HEADER_LEN), value, previous_crc);
        let (bytes, crc) = (record.encode(), record.crc());
        node.ever_held.insert((position, crc));
        node.records.insert(position, record);
        node.chain.as_mut().unwrap().handle_appended(ShardId::ZERO, &[bytes], crc);
        self.next_value += 1;
        self.drain(writer);
    }

    /// The node's log is on its disk.
    pub(crate) fn make_durable(&mut self, id: u32) {
        let node = self.node(id);
        node.durable = node.end();
        let durable = at(node.durable);
        if let Some(chain) = self.chain(id) {
            chain.handle_durable(durable);
        }
        self.drain(id);
    }

    /// The node's tree flushes all that is durable and committed, with one more edit.
    pub(crate) fn flush(&mut self, id: u32) {
        let node = self.node(id);
        let Some(chain) = &mut node.chain else { return };
        let flushed = node.durable.min(chain.commit().only().get());
        if flushed <= node.flushed {
            return;
        }
        node.flushed = flushed;
        let ends = node.records.values().map(Record::end).filter(|end| *end <= flushed);
        node.known = node.known.max(ends.max().unwrap_or(0));
        node.edit += 1;
        chain.handle_edit_applied(node.edit, at(flushed));
        self.drain(id);
    }

    /// The node drops the log that nobody needs.
    pub(crate) fn trim(&mut self, id: u32) {
        let node = self.node(id);
        let Some(chain) = &mut node.chain else { return };
        let end = node.records.last_key_value().map_or(node.oldest, |(_, r)| r.end());
        let bound = chain.flushed_min().only().get().min(node.flushed).min(end);
        if bound <= node.oldest {
            return;
        }
        let last = node.records.values().rfind(|r| r.end() <= bound);
        node.oldest_crc = last.map_or(node.oldest_crc, Record::crc);
        node.oldest = bound;
        node.records.retain(|_, r| r.end() > bound);
        chain.handle_trimmed(at(bound));
    }

    pub(crate) fn tick(&mut self, ms: u64) {
        self.now_ms += ms;
        self.pass_lease_time();
        let now_ms = self.now_ms;
        for id in 1..=self.nodes.len() as u32 {
            self.take_effect(id);
            if let Some(chain) = self.chain(id) {
                chain.handle_tick(now_ms);
            }
            self.drain(id);
        }
    }

    /// Takes everything out of a chain.
    pub(crate) fn drain(&mut self, id: u32) {
        let now_ms = self.now_ms;
        while let Some(action) = self.chain(id).and_then(|c| c.poll(now_ms)) {
            self.note(id, || describe_action(&action));
            match action {
                Action::Send { frame } => self.send(id, &frame),
                Action::Disconnect { peer, connection, .. } => {
                    let end = (id, connection);
                    let i = self.connections.iter().position(|c| c.ends.contains(&end)).unwrap();
                    self.break_connection(i, 0);
                    self.chain(id).unwrap().handle_disconnected(peer, connection, now_ms);
                }
                Action::SendLog { .. } => self.node(id).reads.push_back(action),
                Action::Place { .. }
                | Action::Truncate { .. }
                | Action::Follow { .. }
                | Action::AdoptTerm { .. } => {
                    self.node(id).work.push_back(action);
                }
                // The process ends, and its records with it: recovery cuts rotten ones.
                Action::Fatal { .. } => {
                    self.kill(id, true);
                    return;
                }
                Action::View { view } => {
                    self.take_view(id, view);
                    return;
                }
                Action::NeedsCopy { .. } => self.node(id).wants_copy = true,
                Action::Deliver { from, message, .. } => {
                    self.node(id).delivered.push((from.get(), message));
                }
                _ => {}
            }
        }
        self.append_term_start(id);
    }

    fn send(&mut self, id: u32, frame: &Frame) {
        let end = (id, frame.connection);
        for connection in &mut self.connections {
            if let Some(side) = connection.ends.iter().position(|e| *e == end)
                && !connection.is_broken
            {
                connection.queues[side].push_back(Some(frame.encode().unwrap().concat()));
            }
        }
    }

    /// Runs deliveries, work and reads until nothing is left; false when that takes too long.
    pub(crate) fn settle(&mut self) -> bool {
        for _ in 0..2_000 {
            let mut is_busy = false;
            for i in 0..self.connections.len() {
                for side in 0..2 {
                    is_busy |= self.deliver(i, side);
                }
            }
            for id in 1..=self.nodes.len() as u32 {
                is_busy |= self.work(id);
                is_busy |= self.answer_read(id);
            }
            let is_over = |c: &Connection| c.is_broken && c.queues.iter().all(VecDeque::is_empty);
            self.connections.retain(|c| !is_over(c));
            if !is_busy && !self.relieve_rings() {
                return true;
            }
        }
        false
    }

    /// Every node with over a quarter of its ring unflushed flushes it, as a real one does. Returns
    /// whether there was one.
    fn relieve_rings(&mut self) -> bool {
        let is_due = |n: &&Node| n.chain.is_some() && n.unflushed() > self.lengths.1 / 4;
        let due: Vec<_> = self.nodes.iter().filter(is_due).map(|node| node.id).collect();
        due.iter().for_each(|&id| self.make_durable(id));
        !due.is_empty()
    }

    /// Connects every pair of nodes that run.
    pub(crate) fn connect_all(&mut self) {
        let up: Vec<_> = self.nodes.iter().filter(|n| n.chain.is_some()).map(|n| n.id).collect();
        for (i, &a) in up.iter().enumerate() {
            for &b in &up[i + 1..] {
                self.connect(a, b);
            }
        }
    }

    fn note(&mut self, id: u32, text: impl FnOnce() -> String) {
        if self.is_tracing {
            self.trace.push(format!("{id} {}", text()));
        }
    }
}

pub(crate) fn describe(record: &Record) -> String {
    format!("{}+{} t{} v{}", record.position, record.len, record.term, record.value)
}

fn describe_view(view: &GroupView) -> String {
    let order: Vec<_> = view.members.iter().map(|member| member.replica.get()).collect();
    format!("{} of {} members {order:?}", view.config, view.term)
}

fn describe_spans(spans: &Spans) -> String {
    let one = |s: &Span| match s.end.get() {
        u64::MAX => format!("{}:{}..", s.term, s.start.get()),
        end => format!("{}:{}..{end}", s.term, s.start.get()),
    };
    let all: Vec<_> = spans.as_slice().iter().map(one).collect();
    format!("[{}]", all.join(" "))
}

fn describe_progress(p: &Progress) -> String {
    format!("end {} durable {} flushed {} edit {}", p.end, p.durable, p.flushed, p.edit)
}

fn describe_bytes(bytes: &[Bytes]) -> String {
    let all = bytes.concat();
    let mut reader = Reader::new(&all, "records");
    let mut list = vec![];
    while !reader.is_empty() {
        match Record::decode(&mut reader) {
            Ok(record) => list.push(describe(&record)),
            Err(e) => return e.to_string(),
        }
    }
    list.join(", ")
}

pub(crate) fn describe_frame(frame: &Frame) -> String {
    let text = match &frame.message {
        Message::Hello(s) => format!(
            "Hello session {} oldest {} {} {}{}",
            s.session,
            s.oldest,
            describe_progress(&s.progress),
            describe_spans(&s.spans),
            s.lost.map_or(String::new(), |l| format!(" lost {} to {} of {}", l.from, l.to, l.term))
        ),
        Message::NewTerm { end, marks, spans, .. } => {
            format!("NewTerm end {end} commit {} {}", marks.commit, describe_spans(spans))
        }
        Message::TermAccepted { progress, .. } => {
            format!("TermAccepted {}", describe_progress(progress))
        }
        Message::Records { from, term, marks, bytes } => format!(
            "Records from {from} of {term} commit {}: {}",
            marks.commit,
            describe_bytes(bytes)
        ),
        Message::Ack(_, lease) if lease.lasts_ms > 0 => {
            format!("Ack promises {} ms from {}", lease.lasts_ms, lease.asked_ms)
        }
        Message::Ack(progress, _) => format!("Ack {}", describe_progress(progress)),
        Message::Heartbeat(m, lease) => format!(
            "Heartbeat commit {} durable {} flushed {} edit {}{}",
            m.commit,
            m.durable,
            m.flushed,
            m.edit,
            match lease.lasts_ms {
                0 => String::new(),
                lasts_ms => format!(" asks for {lasts_ms} ms from {}", lease.asked_ms),
            }
        ),
        Message::PullLog { from, .. } => format!("PullLog from {from}"),
        Message::Refused { reason } => format!("Refused: {reason}"),
        Message::View(view) => format!("View {}", describe_view(view)),
        other => format!("{other:?}"),
    };
    format!("{} {text}", frame.term)
}

fn describe_action(action: &Action) -> String {
    match action {
        Action::Send { frame } => format!("sends {}: {}", frame.to.get(), describe_frame(frame)),
        Action::Disconnect { peer, reason, .. } => {
            format!("closes the connection to {}: {reason}", peer.get())
        }
        Action::SendLog { to, from, until, bytes_max, .. } => {
            format!("reads log for {}: {from} to {until}, {bytes_max} bytes", to.get())
        }
        Action::Place { from, term, bytes, .. } => {
            format!("places from {from} of {term}: {}", describe_bytes(bytes))
        }
        Action::View { view } => format!("hears of view {}", describe_view(view)),
        Action::Truncate { at, .. } => format!("truncates at {at}"),
        Action::Follow { spans, .. } => format!("follows {}", describe_spans(spans)),
        Action::AdoptTerm { term, spans, end, .. } => {
            format!("adopts {term} at {end} {}", describe_spans(spans))
        }
        Action::VoidGrants { peer } => format!("voids grants with {}", peer.get()),
        Action::Ready => "is ready".into(),
        Action::NotReady { reason } => format!("is not ready: {reason}"),
        Action::Readable => "is readable".into(),
        Action::NeedsCopy { reason } => format!("needs a copy: {reason}"),
        Action::Fatal { error } => format!("ends: {error}"),
        Action::Deliver { from, message, .. } => {
            format!("delivers from {}: {message:?}", from.get())
        }
    }
}
