//! The chain: one member's state machine (RubbleDB §4.1, §4.2).
//!
//! Members stand in a fixed order: the first is the head and primary, the last the tail. Every pair
//! has one connection. Records flow from each member to the next; each member acknowledges
//! cumulatively to the head, and to its predecessor, whose window it opens. A record is committed
//! once every member has it.
//!
//! # A term
//!
//! A term is the tenure of one run of the head. The head starts one when its process or its view
//! begins:
//!
//! ```text
//!   head                                            every other member
//!   Waiting   ◄─ Hello(term, spans, end) ───────────  on each connection
//!      │ all are here
//!   Pulling   ── PullLog ─► the member with the greatest (last term, end), if that is another;
//!      │ ◄────── Records ──  first cut what it does not have
//!   Adopting   a term above all, durable; the log goes on at the next 4 KiB boundary
//!      │ ─────── NewTerm(spans, end) ──────────────►  Adopting: cut the log where the head's parts
//!      │                                              from it; durable
//!   Joined    ◄─ TermAccepted(end) ─────────────────  Joined; the predecessor streams from `end`
//! ```
//!
//! Any other member that starts or reconnects says Hello, and gets NewTerm with the term that runs.
//! Every committed record is in the winner's log: some member still holds it, and its (last term,
//! end) is at most the winner's. If that member's last term is the winner's, it is a prefix of the
//! winner's log (a term has one writer, logs are placed without gaps). If it is lower, the winner
//! holds a record of a later term, which was written after all members had joined it with the
//! head's log as theirs, committed records included. Therefore the head appends nothing, not even
//! the first record of its term, before every full member has joined
//! ([`Protocol::may_append`]).
//!
//! Such a member is there only while disks keep what they made durable. A member whose segments are
//! rotten (docs/faults.md E4) has a log that ends at the first bad record, and that may be every
//! member. So a member remembers, durably, up to which record its log was durable and committed.
//! Until its log reaches that record again, its Hello says so ([`Lost`]: term and end of the
//! record). The head begins no term with a winner whose (last term, end) is below any of these; it
//! tells all members who lost which records.
//!
//! The argument then holds with the log that the member had before. Cut at the end of that record,
//! it is a log as any other, all of it committed, and the winner's (last term, end) is at least its
//! own. The position alone would not do: a log of an older term may be longer, with records that
//! never committed. Nor can a rotten log win by its lost records: its (last term, end) counts only
//! records that are there, and no record is placed before all that precede it.
//!
//! Until the lost records are durable again here, the member says that it needs the log from its
//! durable end on, whatever its files hold. It may lose its ring and need the same log once more,
//! so nobody may trim it. A group of one has nobody to ask; its node refuses to open such a log.
//!
//! A member that got more log after its Hello (its predecessor still streams in the old term)
//! answers NewTerm with a new Hello, and the head starts over; so nothing that a tail may have
//! shown is cut. With a record of its term the head's log would be the greater one, whatever that
//! member has: there is none, as that member has yet to join.
//!
//! # A view that waits
//!
//! A view with too few full members keeps those that are out ([`GroupView::waits`]). They have all
//! that was acknowledged, and may found the next term without whoever is full here. So no term
//! begins, and nothing is appended, sent or committed: a record that committed here would be known
//! here alone. The reader answers reads if its log is whole as the view begins
//! ([`LocalState::is_whole`]), once every full member is in the view, under their promises. No
//! member that is kept cuts or discards anything, as that follows from a term alone.
//!
//! # Rules
//!
//! - Messages count on the current connection of their sender only; progress counts only in the
//!   receiver's term. So do marks: those of a NewTerm count once the term is adopted. Until then
//!   the log may have records that the group never committed.
//! - An error from `handle_message` means: close that connection.
//! - Records that do not continue the log (a bit flipped on the way) end the connection that
//!   brought them; the stream begins again at the end of the log. So does a read of log that the
//!   device failed. Log that is rotten at its sender ends the sender's process, whose next start
//!   repairs it.
//! - The head accepts writes when every member has joined and has its log. It goes on through a
//!   short absence; a member that is out, behind, or acknowledges nothing for `timeout_ms` stops
//!   writes, with a sentence that names it, until it is in place again.
//! - Log is trimmed only below what every member has flushed (`flushed_min`), so a member that
//!   returns finds the rest at its predecessor. Otherwise it is told that it needs a full copy.
//! - A member that is not full is being filled. It counts nowhere: no term waits for its Hello, its
//!   log wins nothing, its acknowledgements raise no mark, and writes do not wait for it. It is
//!   welcomed into a term that runs whenever it says Hello, and the reader sends it the log. Once
//!   it has joined, it keeps log from being trimmed for as long as it acknowledges. One whose log
//!   cannot be followed asks its node for a full copy ([`Action::NeedsCopy`]).
//! - The tail may answer reads once it has all that the head had when the tail joined, and from
//!   then on for the life of its view: nothing commits without the tail.
//!
//! - Who answers from its own state alone, the tail and the head, does so only under promises of
//!   every other full member (`lease.rs`).
//!
//! # Order of calls
//!
//! `new`, then any `handle_*`; after each, or after a few, `poll` until it returns nothing.

mod head;
mod lease;
mod links;
mod member;
mod peer;
mod recent;
mod stream;

use crate::message::{Lost, Message, Progress, Watermarks};
use crate::planted::{Mutant, Planted};
use crate::protocol::Protocol;
use crate::{Action, Config, Frame, GroupView, LocalState, MemberStatus, Spans, Whole};
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::{
    ConfigNumber, Error, Frontier, GroupId, LogPosition, ReplicaId, Result, ShardId, Term,
};
use lease::Leases;
use peer::{Link, Peer};
use recent::Recent;

/// A member's phase in the start of a term.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Head: not every member said Hello. Others: no NewTerm in the life of this process.
    Waiting,
    /// Head only: fetching log from `winner` up to `end`.
    Pulling {
        winner: ReplicaId,
        end: LogPosition,
        /// An answer is awaited, or being placed.
        is_asked: bool,
    },
    /// The node makes `term` durable. The marks that came with it count from then on: before, the
    /// log may have records that are yet to be cut.
    Adopting { term: Term, marks: Watermarks },
    /// The term runs here.
    Joined,
}

/// The last announcement to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Announced {
    Nothing,
    Ready,
    NotReady(String),
}

/// One member of a group in chain replication. See the module for the protocol.
pub struct Chain {
    config: Config,
    /// The members: the head first, the tail last of those that are full, then the others.
    order: Vec<ReplicaId>,
    /// How many of them are full.
    full: usize,
    /// This member's place in the order.
    index: usize,
    now_ms: u64,
    /// The highest term durable here, but for one that is followed.
    term: Term,
    /// Head: the highest term of the logs that it began to fetch; it is never started anew.
    followed: Term,
    /// Head: the last term in which every full member was at one time.
    begun: Term,
    incarnation: u64,
    session: u64,
    /// The spans of the log; while a term runs the last is open.
    spans: Spans,
    oldest: LogPosition,
    /// The last record's checksum, 0 when unknown.
    last_crc: u32,
    progress: Progress,
    /// Records that go on to the only receiver as they are.
    recent: Recent,
    /// The records that the log lacked at the start.
    lost: Option<Lost>,
    /// The report on a lost ring in the next Hello.
    gap: Option<Term>,
    /// As the view began: see [`LocalState::is_whole`].
    is_whole: bool,
    /// The log ends here once the node has carried out every `Place`.
    received: LogPosition,
    phase: Phase,
    peers: Vec<Peer>,
    leases: Leases,
    marks: Watermarks,
    /// As the head said last, in whatever term.
    heard_commit: Frontier,
    announced: Announced,
    is_readable: bool,
    /// See [`Protocol::await_word`].
    awaits_word: bool,
    /// The tail may answer reads when its log reaches this.
    read_target: Option<LogPosition>,
    /// Why this member cannot take part, until a NewTerm says that it can.
    blocked: Option<String>,
    ack_due: bool,
    next_ticket: u64,
    actions: VecDeque<Action>,
    pub(crate) planted: Planted,
}

impl Chain {
    /// A member that just started, with what it found.
    ///
    /// # Errors
    /// Invalid input for a configuration that cannot work, corruption for a state that contradicts
    /// itself.
    pub fn new(config: Config, state: LocalState, now_ms: u64) -> Result<Self> {
        let index = config.validate()?;
        let spans = state.spans.clipped(state.progress.end.only());
        let (last_term, end) = spans.tip();
        if last_term > state.term || state.progress.durable.only() > state.progress.end.only() {
            return Err(Error::corruption(format!(
                "a log with records of {last_term} that is durable up to {} and ends at {}, at a \
                 replica in {}",
                state.progress.durable.only(),
                state.progress.end.only(),
                state.term
            )));
        }
        if end == LogPosition::ZERO && state.progress.end.only() > end {
            return Err(Error::corruption(format!(
                "a log that ends at {} without the span of its last record",
                state.progress.end.only()
            )));
        }
        let others = config.view.members.iter().filter(|member| member.replica != config.me);
        let peers = others.map(|member| Peer::new(member.replica, member.is_full, now_ms));
        let peers = peers.collect();
        let order = config.view.members.iter().map(|member| member.replica).collect();
        Ok(Self {
            order,
            full: config.view.full().count(),
            index,
            now_ms,
            term: state.term,
            followed: Term::ZERO,
            begun: Term::ZERO,
            incarnation: state.incarnation,
            session: state.session,
            spans,
            oldest: state.oldest,
            last_crc: state.last_crc,
            progress: Progress {
                end: Frontier::of(end),
                durable: state.progress.durable.meet(Frontier::of(end)),
                ..state.progress
            },
            recent: Recent::new(config.window_bytes),
            lost: state.lost,
            gap: state.gap,
            is_whole: state.is_whole,
            received: end,
            phase: Phase::Waiting,
            peers,
            leases: Leases::default(),
            marks: state.marks,
            heard_commit: Frontier::ZERO,
            announced: Announced::Nothing,
            is_readable: false,
            awaits_word: false,
            read_target: None,
            blocked: None,
            ack_due: false,
            next_ticket: state.next_ticket.max(1),
            actions: VecDeque::new(),
            config,
            planted: Planted::default(),
        })
    }
}

impl Protocol for Chain {
    fn begin_at(&mut self, now_ms: u64) {
        assert!(
            self.peers.iter().all(|peer| peer.link.is_none()),
            "the clock begins before any event"
        );
        self.now_ms = now_ms;
        self.peers.iter_mut().for_each(|peer| peer.last_heard_ms = now_ms);
    }

    fn handle_connected(&mut self, peer: ReplicaId, connection: u64, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let Some(i) = self.peer_index(peer) else { return };
        self.drop_link(i);
        self.peers[i].link = Some(Link::new(connection));
        self.peers[i].last_heard_ms = self.now_ms;
        self.peers[i].promised.reconnect();
        let hello = self.hello();
        self.push(peer, hello);
    }

    fn handle_disconnected(&mut self, peer: ReplicaId, connection: u64, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let Some(i) = self.peer_index(peer) else { return };
        if self.peers[i].link.as_ref().is_some_and(|l| l.connection == connection) {
            self.drop_link(i);
        }
    }

    fn handle_message(
        &mut self,
        peer: ReplicaId,
        connection: u64,
        frame: Frame,
        now_ms: u64,
    ) -> Result<()> {
        self.now_ms = self.now_ms.max(now_ms);
        self.check_address(peer, &frame)?;
        let Some(i) = self.peer_index(peer) else { return Ok(()) };
        let takes_any = self.planted.has(Mutant::OldConnectionCounts);
        let is_current = |l: &Link| l.connection == connection || takes_any;
        if !self.peers[i].link.as_ref().is_some_and(is_current) {
            return Ok(());
        }
        if !self.check_view(i, &frame)? {
            return Ok(());
        }
        self.check_connection(i, &frame, takes_any)?;
        self.peers[i].last_heard_ms = self.now_ms;
        let result = self.dispatch(i, frame);
        self.invariants();
        result
    }

    fn handle_tick(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let now_ms = self.now_ms;
        for i in 0..self.peers.len() {
            let peer = &mut self.peers[i];
            let id = peer.id;
            let silent_ms = now_ms - peer.last_heard_ms;
            let Some(link) = peer.link.as_mut().filter(|l| !l.is_closing) else { continue };
            if silent_ms >= self.config.timeout_ms {
                let reason = format!("replica {} has not been heard for {silent_ms} ms", id.get());
                self.close_link(i, reason);
                continue;
            }
            let has_news = self.index == 0 && link.told != self.marks;
            let is_due = has_news || now_ms - link.last_sent_ms >= self.config.heartbeat_ms;
            let lease = self.lease_due(i);
            if is_due || lease.is_some() {
                self.push(id, Message::Heartbeat(self.marks, lease.unwrap_or_default()));
            }
        }
    }

    fn pass_lease_time(&mut self, lease_ms: u64) {
        self.leases.pass(lease_ms);
    }

    fn stop_promising(&mut self) {
        self.leases.end();
    }

    fn await_word(&mut self) {
        self.awaits_word = true;
    }

    fn hear_word(&mut self) {
        self.awaits_word = false;
    }

    fn handle_term_adopted(&mut self, _: ShardId, term: Term) {
        let marks = match self.phase {
            Phase::Adopting { term: asked, marks } if asked == term => marks,
            _ => return,
        };
        debug_assert!(term > self.term, "{term} adopted after {}", self.term);
        self.term = term;
        self.marks = self.marks.join(marks);
        self.phase = Phase::Joined;
        self.ack_due = false;
        if self.index == 0 {
            self.welcome_all();
        }
        self.invariants();
    }

    fn handle_appended(&mut self, _: ShardId, records: &[Bytes], last_crc: u32) {
        assert!(self.index == 0, "only the head appends");
        assert!(self.may_append(), "appended before every full member is in the term");
        let len = records.iter().map(|record| record.len() as u64).sum::<u64>();
        let from = self.end();
        let end = LogPosition(from.get() + len);
        self.pass_on(from, self.term, records.to_vec());
        self.progress.end = Frontier::of(end);
        self.received = end;
        self.last_crc = last_crc;
    }

    fn handle_placed(&mut self, _: ShardId, end: LogPosition, last_crc: u32) {
        let end = self.spans.after(end);
        if matches!(self.phase, Phase::Adopting { .. }) {
            // The log is where it was when the adoption was asked for: nothing to count yet.
            if end == self.end() {
                self.last_crc = last_crc;
            }
            return;
        }
        debug_assert!(end <= self.received, "placed {end}, received {}", self.received);
        if end > self.end() && end <= self.received {
            self.progress.end = Frontier::of(end);
            self.last_crc = last_crc;
            self.ack_due = true;
            self.after_placed();
        }
    }

    fn handle_rejected(&mut self, _: ShardId, end: LogPosition, last_crc: u32, reason: &Error) {
        let is_of_log = |action: &Action| {
            matches!(
                action,
                Action::Place { .. }
                    | Action::Truncate { .. }
                    | Action::Follow { .. }
                    | Action::AdoptTerm { .. }
            )
        };
        self.actions.retain(|action| !is_of_log(action));
        self.recent.clear();
        let source = self.source();
        let end = self.spans.after(end);
        self.received = end;
        self.progress.end = Frontier::of(end);
        self.progress.durable = Frontier::of(self.durable().min(end));
        self.last_crc = last_crc;
        if self.phase != Phase::Joined {
            self.phase = Phase::Waiting;
        }
        if let Some(i) = source.and_then(|id| self.peer_index(id)) {
            self.close_link(i, format!("{reason}"));
        }
        self.correct_hello();
        self.invariants();
    }

    fn handle_durable(&mut self, durable: Frontier) {
        let durable = durable.meet(self.progress.end);
        if !self.progress.durable.covers(&durable) {
            self.progress.durable = durable;
            self.ack_due = true;
            self.pull_more();
        }
    }

    fn handle_edit_applied(&mut self, edit: u64, flushed: Frontier) {
        if edit > self.progress.edit || !self.progress.flushed.covers(&flushed) {
            self.progress.edit = self.progress.edit.max(edit);
            self.progress.flushed = self.progress.flushed.join(flushed);
            self.ack_due = true;
        }
    }

    fn handle_trimmed(&mut self, oldest: Frontier) {
        self.oldest = self.oldest.max(oldest.only());
        self.spans.trim(self.oldest, self.received);
    }

    fn handle_log_read(&mut self, ticket: u64, records: Result<Vec<Bytes>>) {
        self.log_read(ticket, records);
    }

    fn send(&mut self, to: ReplicaId, message: Message) -> Result<()> {
        if !message.is_for_node() {
            return Err(Error::invalid(format!(
                "message of kind {} is not the node's to send",
                message.kind()
            )));
        }
        if self.push(to, message) {
            return Ok(());
        }
        Err(Error::unavailable(format!("replica {} is not connected", to.get())))
    }

    fn set_gap(&mut self, gap: Option<Term>) {
        self.gap = gap;
    }

    fn poll(&mut self, now_ms: u64) -> Option<Action> {
        self.now_ms = self.now_ms.max(now_ms);
        if self.actions.is_empty() {
            self.pump();
            self.invariants();
        }
        self.actions.pop_front()
    }

    fn term(&self) -> Term {
        self.term
    }

    fn is_joined(&self) -> bool {
        self.phase == Phase::Joined
    }

    fn has_caught_up(&self) -> bool {
        self.is_joined() && self.read_target.is_none_or(|target| self.end() >= target)
    }

    fn is_ready(&self) -> bool {
        self.announced == Announced::Ready && self.phase == Phase::Joined
    }

    fn may_append(&self) -> bool {
        let is_begun = self.begun == self.term;
        self.is_joined() && (is_begun || self.planted.has(Mutant::AppendsBeforeAllJoined))
    }

    fn not_ready_reason(&self) -> Option<&str> {
        match &self.announced {
            Announced::NotReady(reason) => Some(reason),
            Announced::Nothing => Some("the replica is starting"),
            Announced::Ready => None,
        }
    }

    fn is_readable(&self) -> bool {
        self.is_readable
    }

    fn waits_with_all(&self) -> bool {
        self.config.view.waits() && self.is_full() && self.peers.iter().all(|p| !p.is_awaited())
    }

    fn holds_lease(&self) -> bool {
        self.has_all_promises()
    }

    fn promised_until_ms(&self, to: ReplicaId) -> u64 {
        self.leases.promised_until_ms(to)
    }

    fn is_connected(&self, id: ReplicaId) -> bool {
        let link = self.peer_index(id).and_then(|i| self.peers[i].link.as_ref());
        link.is_some_and(|l| !l.is_closing)
    }

    fn heard_commit(&self) -> Frontier {
        self.heard_commit.join(self.marks.commit)
    }

    fn watermarks(&self) -> &Watermarks {
        &self.marks
    }

    fn progress(&self) -> Progress {
        self.progress
    }

    fn spans(&self) -> &Spans {
        &self.spans
    }

    fn source(&self) -> Option<ReplicaId> {
        match self.phase {
            Phase::Pulling { winner, .. } => Some(winner),
            _ => self.predecessor(),
        }
    }

    fn whole_member(&self, term: Term) -> Whole {
        let mut is_known = true;
        for peer in self.peers.iter().filter(|peer| peer.is_full) {
            match peer.link.as_ref().and_then(|link| link.hello.as_ref()) {
                Some((_, state)) if state.gap.is_none_or(|below| below <= term) => {
                    return Whole::Member(peer.id);
                }
                Some(_) => {}
                None => is_known = false,
            }
        }
        if is_known { Whole::Nobody } else { Whole::Unknown }
    }

    fn members(&self) -> Vec<MemberStatus> {
        self.order.iter().map(|&id| self.status_of(id)).collect()
    }

    fn next_ticket(&self) -> u64 {
        self.next_ticket
    }
}

impl Chain {
    fn group(&self) -> GroupId {
        self.config.view.group
    }

    fn config_number(&self) -> ConfigNumber {
        self.config.view.config
    }

    fn check_address(&self, peer: ReplicaId, frame: &Frame) -> Result<()> {
        let is_ours = frame.group == self.group() && Frontier::has(frame.shard);
        if !is_ours || frame.from != peer || frame.to != self.config.me {
            return Err(Error::invalid(format!(
                "frame for {} {} from {} to {} arrived at {} of {} from {peer}",
                frame.group,
                frame.shard,
                frame.from,
                frame.to,
                self.config.me,
                self.group()
            )));
        }
        Ok(())
    }

    /// Whether a frame is of the view that runs here, before anything looks inside. One of an older
    /// view is answered with this one. One of a newer view is of no use before that view is here:
    /// its sender tells it in answer to the Hello.
    fn check_view(&mut self, i: usize, frame: &Frame) -> Result<bool> {
        if let Message::View(view) = &frame.message {
            return self.view_from(i, view).map(|()| false);
        }
        let is_of_node = matches!(frame.message, Message::Node { .. });
        // A member that is being filled is in no term before it has a log.
        let is_behind = frame.term < self.term && self.peers[i].is_full;
        let is_old = frame.config < self.config_number() || (is_of_node && is_behind);
        if is_old {
            self.tell_view(i);
        }
        Ok(!is_old && frame.config == self.config_number())
    }

    /// Answers with the view that runs here, once for each view of a connection.
    fn tell_view(&mut self, i: usize) {
        let (peer, term) = (self.peers[i].id, self.term);
        let Some(link) = &mut self.peers[i].link else { return };
        if link.told_view.replace(term) != Some(term) {
            let view = GroupView { term, ..self.config.view.clone() };
            self.push(peer, Message::View(view));
        }
    }

    /// A member told the view that runs at it.
    fn view_from(&mut self, i: usize, view: &GroupView) -> Result<()> {
        let mine = &self.config.view;
        let is_other = view.members != mine.members || view.founders != mine.founders;
        if view.group != mine.group || (view.config == mine.config && is_other) {
            return Err(Error::invalid(format!(
                "replica {} tells configuration {} of {} with other members than are known here",
                self.peers[i].id.get(),
                view.config,
                view.group
            )));
        }
        if view.config > mine.config {
            self.actions.push_back(Action::View { view: view.clone() });
        }
        Ok(())
    }

    /// Whether a frame belongs to the connection that its sender began with a Hello.
    fn check_connection(&mut self, i: usize, frame: &Frame, takes_any: bool) -> Result<()> {
        let Some(link) = self.peers[i].link.as_mut() else { return Ok(()) };
        match link.remote {
            None if matches!(frame.message, Message::Hello(_)) => {
                link.remote = Some(frame.connection);
                Ok(())
            }
            Some(remote) if remote == frame.connection || takes_any => Ok(()),
            _ => Err(Error::invalid(format!(
                "{} from replica {} names connection {}, which did not begin with its Hello",
                frame.message.kind(),
                frame.from.get(),
                frame.connection
            ))),
        }
    }

    fn dispatch(&mut self, i: usize, frame: Frame) -> Result<()> {
        let (from, term) = (frame.from, frame.term);
        if frame.message.is_for_node() {
            let message = frame.message;
            self.actions.push_back(Action::Deliver { from, term, message });
            return Ok(());
        }
        match frame.message {
            Message::Hello(state) => self.hello_from(i, term, state),
            Message::NewTerm { oldest, end, last_crc, marks, spans } => {
                if spans.forgot_after(self.common_with(&spans), oldest) {
                    self.lacks_trimmed_log(oldest);
                    return Ok(());
                }
                self.new_term_from(i, term, end, last_crc, marks, spans)
            }
            Message::TermAccepted { last_crc, progress } => {
                self.term_accepted_by(i, term, last_crc, progress)
            }
            Message::Records { from, term: records_term, marks, bytes } => {
                if self.index == 0 {
                    return self.pulled_records(i, from, records_term, bytes);
                }
                self.records_from(
                    i,
                    term,
                    marks,
                    Action::Place { shard: ShardId::ZERO, from, term: records_term, bytes },
                )
            }
            // It answers a question about reads, and says nothing else.
            Message::Ack(_, lease) if lease.lasts_ms > 0 => {
                self.promised_by(i, lease);
                Ok(())
            }
            Message::Ack(progress, _) => self.ack_from(i, term, progress),
            Message::Heartbeat(marks, lease) => {
                self.learn_marks(i, term, marks);
                self.promise(i, lease);
                Ok(())
            }
            Message::PullLog { from, bytes_max } => {
                self.pull_wanted(i, from, bytes_max);
                Ok(())
            }
            Message::Refused { reason } => {
                self.refused_by(i, reason);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Everything that follows from what happened since the last poll.
    fn pump(&mut self) {
        self.begin_term();
        self.note_begun();
        self.accept_term();
        self.send_acks();
        self.read_streams();
        self.read_pulls();
        self.raise_marks();
        self.note_places();
        self.become_readable();
        self.announce();
    }

    /// The end of the log here.
    fn end(&self) -> LogPosition {
        self.progress.end.only()
    }

    /// The log here survives a power cut up to this.
    fn durable(&self) -> LogPosition {
        self.progress.durable.only()
    }

    /// Invariants between any two calls.
    fn invariants(&self) {
        assert!(self.end() <= self.received, "placed more than was received");
        assert!(self.durable() <= self.end(), "durable beyond the end");
        if self.phase == Phase::Joined {
            assert!(self.tip().0 <= self.term, "records of a later term");
        }
        // A head that has yet to fetch its log may know of more.
        if self.index == 0 && self.phase == Phase::Joined {
            assert!(self.marks.commit.only() <= self.end(), "committed more than there is");
        }
        if self.config.view.waits() {
            assert_eq!(self.phase, Phase::Waiting, "no term runs in a view that waits");
        }
        let is_head = self.index == 0;
        assert!(!self.is_readable || self.is_reader(), "one member answers reads");
        let sends = |peer: &&Peer| peer.link.as_ref().is_some_and(|link| link.stream.is_some());
        let mut receivers = self.peers.iter().filter(sends);
        assert!(receivers.all(|peer| self.sends_to(peer.id)), "the log goes to whom it is to go");
        assert!(is_head || !matches!(self.phase, Phase::Pulling { .. }), "only heads pull");
    }
}
