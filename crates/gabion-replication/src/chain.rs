//! The chain: one member's state machine (RubbleDB §4.1, §4.2).
//!
//! Members stand in a fixed order: the first is the head and primary, the last the tail. Every pair
//! has one connection. Records flow from each member to the next; each member acknowledges
//! cumulatively to the head, and to its predecessor, whose window it opens. What every member has
//! is committed.
//!
//! # A term
//!
//! A term is the tenure of one run of the head. The head starts one when it starts:
//!
//! ```text
//!   head                                            every other member
//!   Waiting   ◄─ Hello(term, spans, end) ───────────  on each connection
//!      │ all are here
//!   Pulling   ── PullLog ─► the member with the greatest (last term, end), if that is another;
//!      │ ◄────── Records ──  first cut what it does not have
//!   Adopting   term = highest + 1, durable; the log goes on at the next 4 KiB boundary
//!      │ ─────── NewTerm(spans, end) ──────────────►  Adopting: cut the log where the head's parts
//!      │                                              from it; durable
//!   Joined    ◄─ TermAccepted(end) ─────────────────  Joined; the predecessor streams from `end`
//! ```
//!
//! Any other member that starts or reconnects says Hello, and gets NewTerm with the term that runs.
//! Every committed record is in the winner's log: some member still holds it, and its (last term, end)
//! is at most the winner's. If that member's last term is the winner's, it is a prefix of the winner's
//! log (a term has one writer, logs are placed without gaps). If it is lower, the winner holds a
//! record of a later term, which was written after all members had joined it with the head's log as
//! theirs, committed records included.
//!
//! Such a member is there only while disks keep what they made durable. A member whose segments are
//! rotten (docs/faults.md E4) has a log that ends at the first bad record, and that may be every
//! member. So a member remembers, durably, up to which record its log was durable and committed,
//! and until its log reaches that record again its Hello says so ([`Lost`]: term and end of the
//! record). The head begins no term with a winner whose (last term, end) is below any of these; it
//! says who lost what, to all.
//!
//! The argument then holds with the log that the member had in place of the one that it has: cut at the
//! end of that record it is a log as any other, all of it committed, and the winner's (last term, end)
//! is at least its own. The position alone would not do, as a log of an older term may be longer, with
//! records that never committed. Nor does a rotten log win by what it lost: (last term, end) is of the
//! records that are there, and no record is placed before all that precede it.
//!
//! Until what was lost is durable again here, the member says that it needs the log from its durable
//! end on, whatever its files hold: it may lose its ring and need the same once more, so nobody may trim
//! it. A group of one has nobody to ask; its node refuses to open such a log.
//!
//! A member that got more log after its Hello (its predecessor still streams in the old term) answers
//! NewTerm with a new Hello, and the head starts over; so nothing that a tail may have shown is cut.
//!
//! # Rules
//!
//! - Messages count on the current connection of their sender only; progress counts only in the
//!   receiver's term. An error from `handle_message` means: close that connection.
//! - Records that do not continue the log (a bit flipped on the way) end the connection that
//!   brought
//!   them; the stream begins again at the end of the log. So does a read of log that the device
//!   failed. Log that is rotten at its sender ends the sender's process, whose next start repairs it.
//! - The head accepts writes when every member has joined and has its log. It goes on through a short
//!   absence; a member that is out, behind, or acknowledges nothing for `timeout_ms` stops writes,
//!   with a sentence that names it, until it is in place again.
//! - Log is trimmed only below what every member has flushed (`flushed_min`), so that whoever returns
//!   finds the rest at its predecessor. One that does not is told that it needs a full copy.
//! - The tail answers reads once it has what the head had when it joined, and from then on for the
//!   life of its process: nothing commits without it.
//!
//! # Order of calls
//!
//! `new`, then any `handle_*`; after each, or after a few, `poll` until it returns nothing.

mod config;
mod head;
mod member;
mod peer;
mod recent;
mod status;
mod stream;

use crate::message::{Lost, MemberState, Message, Progress, Watermarks};
use crate::planted::{Mutant, Planted};
use crate::{Action, Frame, LocalState, Spans};
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
pub use config::ChainConfig;
use gabion_base::{Error, LogPosition, ReplicaId, Result, ShardId, Term};
use peer::{Link, Peer};
use recent::Recent;

/// Where a member stands in the start of a term.
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
    /// The node makes `term` durable.
    Adopting { term: Term },
    /// The term runs here.
    Joined,
}

/// What was last announced to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Announced {
    Nothing,
    Ready,
    NotReady(String),
}

/// One member of a group in chain replication. See the module for the protocol.
pub struct Chain {
    config: ChainConfig,
    /// This member's place in `config.members`.
    index: usize,
    now_ms: u64,
    /// The highest term durable here, but for one that is followed.
    term: Term,
    /// Head: the highest term of the logs that it began to fetch; nobody starts it anew.
    followed: Term,
    session: u64,
    /// The spans of the log; while a term runs the last is open.
    spans: Spans,
    oldest: LogPosition,
    /// The last record's checksum, 0 when unknown.
    last_crc: u32,
    progress: Progress,
    /// Records that go on to the successor as they are.
    recent: Recent,
    /// What the log had lost at the start.
    lost: Option<Lost>,
    /// What is said of a ring that was lost.
    gap: Option<Term>,
    /// The log ends here once the node has carried out every `Place`.
    received: LogPosition,
    phase: Phase,
    peers: Vec<Peer>,
    marks: Watermarks,
    announced: Announced,
    is_readable: bool,
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
    pub fn new(config: ChainConfig, state: LocalState, now_ms: u64) -> Result<Self> {
        let index = config.validate()?;
        let spans = state.spans.clipped(state.progress.end);
        let (last_term, end) = spans.tip();
        if last_term > state.term || state.progress.durable > state.progress.end {
            return Err(Error::corruption(format!(
                "a log with records of {last_term} that is durable up to {} and ends at {}, at a \
                 replica in {}",
                state.progress.durable, state.progress.end, state.term
            )));
        }
        if end == LogPosition::ZERO && state.progress.end > end {
            return Err(Error::corruption(format!(
                "a log that ends at {} without the span of its last record",
                state.progress.end
            )));
        }
        let others = config.members.iter().filter(|&&m| m != config.me);
        let peers = others.map(|&id| Peer::new(id, now_ms)).collect();
        Ok(Self {
            index,
            now_ms,
            term: state.term,
            followed: Term::ZERO,
            session: state.session,
            spans,
            oldest: state.oldest,
            last_crc: state.last_crc,
            progress: Progress { end, durable: state.progress.durable.min(end), ..state.progress },
            recent: Recent::new(config.window_bytes),
            lost: state.lost,
            gap: state.gap,
            received: end,
            phase: Phase::Waiting,
            peers,
            marks: Watermarks::default(),
            announced: Announced::Nothing,
            is_readable: false,
            read_target: None,
            blocked: None,
            ack_due: false,
            next_ticket: 1,
            actions: VecDeque::new(),
            config,
            planted: Planted::default(),
        })
    }

    /// There is a new connection to `peer`, which this side calls `connection` (a number that it
    /// never uses again in the life of this process). It replaces an older one.
    pub fn handle_connected(&mut self, peer: ReplicaId, connection: u64, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let Some(i) = self.peer_index(peer) else { return };
        self.drop_link(i);
        self.peers[i].link = Some(Link::new(connection));
        self.peers[i].last_heard_ms = self.now_ms;
        let hello = self.hello();
        self.push(peer, hello);
    }

    /// The connection is gone. One that has been replaced meanwhile is ignored.
    pub fn handle_disconnected(&mut self, peer: ReplicaId, connection: u64, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let Some(i) = self.peer_index(peer) else { return };
        if self.peers[i].link.as_ref().is_some_and(|l| l.connection == connection) {
            self.drop_link(i);
        }
    }

    /// A frame arrived over `connection` of `peer`.
    ///
    /// # Errors
    /// When the frame cannot be meant for this replica or breaks the protocol; the node closes the
    /// connection, and the next one starts from a Hello.
    pub fn handle_message(
        &mut self,
        peer: ReplicaId,
        connection: u64,
        frame: Frame,
        now_ms: u64,
    ) -> Result<()> {
        self.now_ms = self.now_ms.max(now_ms);
        self.check_address(peer, &frame)?;
        let Some(i) = self.peer_index(peer) else { return Ok(()) };
        let now_ms = self.now_ms;
        let is_hello = matches!(frame.message, Message::Hello(_));
        let known = &mut self.peers[i];
        let takes_any = self.planted.has(Mutant::OldConnectionCounts);
        let is_current = |l: &&mut Link| l.connection == connection || takes_any;
        let Some(link) = known.link.as_mut().filter(is_current) else {
            return Ok(());
        };
        match link.remote {
            None if is_hello => link.remote = Some(frame.connection),
            Some(remote) if remote == frame.connection || takes_any => {}
            _ => {
                return Err(Error::invalid(format!(
                    "{} from replica {} names connection {}, which did not begin with its Hello",
                    frame.message.kind(),
                    peer.get(),
                    frame.connection
                )));
            }
        }
        known.last_heard_ms = now_ms;
        let result = self.dispatch(i, frame);
        self.invariants();
        result
    }

    /// The clock begins at `now_ms`, which may be before the time of [`Self::new`]. Only before any event.
    ///
    /// # Panics
    /// When a member has been heard of already.
    pub fn begin_at(&mut self, now_ms: u64) {
        assert!(
            self.peers.iter().all(|peer| peer.link.is_none()),
            "the clock begins before any event"
        );
        self.now_ms = now_ms;
        self.peers.iter_mut().for_each(|peer| peer.last_heard_ms = now_ms);
    }

    /// Time has passed. Call this a few times per heartbeat.
    pub fn handle_tick(&mut self, now_ms: u64) {
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
            if has_news || now_ms - link.last_sent_ms >= self.config.heartbeat_ms {
                self.push(id, Message::Heartbeat(self.marks));
            }
        }
    }

    /// The node made the term durable that `AdoptTerm` named, and had carried out every earlier
    /// `Place`. A term that a later `AdoptTerm` replaced is ignored.
    pub fn handle_term_adopted(&mut self, term: Term) {
        if self.phase != (Phase::Adopting { term }) {
            return;
        }
        debug_assert!(term > self.term, "{term} adopted after {}", self.term);
        self.term = term;
        self.phase = Phase::Joined;
        self.ack_due = false;
        if self.index == 0 {
            self.welcome_all();
        }
        self.invariants();
    }

    /// Head: the own log grew by these whole records, the last of which has this checksum. They are
    /// sent on as they are.
    ///
    /// # Panics
    /// At another member, and while not `is_joined`: whoever appends asks first, in the same turn.
    pub fn handle_appended(&mut self, records: Vec<Bytes>, last_crc: u32) {
        assert!(self.index == 0, "only the head appends");
        assert!(self.phase == Phase::Joined, "appended before the term runs");
        let len = records.iter().map(|record| record.len() as u64).sum::<u64>();
        let from = self.progress.end;
        let end = LogPosition(from.get() + len);
        self.pass_on(from, self.term, records);
        self.progress.end = end;
        self.received = end;
        self.last_crc = last_crc;
    }

    /// The node placed (the tail: and applied) what `Place` brought, up to `end`.
    pub fn handle_placed(&mut self, end: LogPosition, last_crc: u32) {
        let end = self.spans.after(end);
        if matches!(self.phase, Phase::Adopting { .. }) {
            // The log is where it was when the adoption was asked for: nothing to count yet.
            if end == self.progress.end {
                self.last_crc = last_crc;
            }
            return;
        }
        debug_assert!(end <= self.received, "placed {end}, received {}", self.received);
        if end > self.progress.end && end <= self.received {
            self.progress.end = end;
            self.last_crc = last_crc;
            self.ack_due = true;
            self.after_placed();
        }
    }

    /// The log here survives a power cut below `durable`.
    pub fn handle_durable(&mut self, durable: LogPosition) {
        let durable = durable.min(self.progress.end);
        if durable > self.progress.durable {
            self.progress.durable = durable;
            self.ack_due = true;
            self.pull_more();
        }
    }

    /// The tree applied edits up to `edit` and needs no log below `flushed`.
    pub fn handle_edit_applied(&mut self, edit: u64, flushed: LogPosition) {
        if edit > self.progress.edit || flushed > self.progress.flushed {
            self.progress.edit = self.progress.edit.max(edit);
            self.progress.flushed = self.progress.flushed.max(flushed);
            self.ack_due = true;
        }
    }

    /// The log below `oldest` is gone.
    pub fn handle_trimmed(&mut self, oldest: LogPosition) {
        self.oldest = self.oldest.max(oldest);
        self.spans.trim(self.oldest, self.received);
    }

    /// The records of a `Place` do not continue the log, which ends at `end` with a record of this
    /// checksum. A bit flipped on the way, or at the sender: the connection ends, and the next one
    /// begins from a Hello. Later changes of the log are forgotten, here and by the node where it
    /// has polled some and not carried them out.
    pub fn handle_rejected(&mut self, end: LogPosition, last_crc: u32, reason: &Error) {
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
        self.progress.end = end;
        self.progress.durable = self.progress.durable.min(end);
        self.last_crc = last_crc;
        if self.phase != Phase::Joined {
            // The adoption begins again with a Hello.
            self.phase = Phase::Waiting;
        }
        if let Some(i) = source.and_then(|id| self.peer_index(id)) {
            self.close_link(i, format!("{reason}"));
        }
        self.invariants();
    }

    /// Sends one of the node's own kinds, behind everything that was sent to this member before.
    ///
    /// # Errors
    /// Unavailable when there is no connection to it; invalid input for a kind of the chain's own.
    pub fn send(&mut self, to: ReplicaId, message: Message) -> Result<()> {
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

    /// What to do next; nothing when everything is done for now.
    pub fn poll(&mut self, now_ms: u64) -> Option<Action> {
        self.now_ms = self.now_ms.max(now_ms);
        if self.actions.is_empty() {
            self.pump();
            self.invariants();
        }
        self.actions.pop_front()
    }

    fn check_address(&self, peer: ReplicaId, frame: &Frame) -> Result<()> {
        let is_ours = frame.group == self.config.group && frame.shard == ShardId::ZERO;
        if !is_ours || frame.from != peer || frame.to != self.config.me {
            return Err(Error::invalid(format!(
                "frame for {} {} from {} to {} arrived at {} of {} from {peer}",
                frame.group, frame.shard, frame.from, frame.to, self.config.me, self.config.group
            )));
        }
        if frame.config != self.config.config {
            return Err(Error::invalid(format!(
                "replica {} has configuration {}, replica {} has {}",
                peer.get(),
                frame.config,
                self.config.me.get(),
                self.config.config
            )));
        }
        Ok(())
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
                self.records_from(i, term, marks, Action::Place { from, term: records_term, bytes })
            }
            Message::Ack(progress) => self.ack_from(i, term, progress),
            Message::Heartbeat(marks) => {
                self.learn_marks(i, term, marks);
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
        self.accept_term();
        self.send_acks();
        self.read_streams();
        self.read_pulls();
        self.raise_marks();
        self.note_places();
        self.become_readable();
        self.announce();
    }

    fn hello(&self) -> Message {
        let spans = self.spans.clipped(self.received);
        let end = spans.tip().1;
        let last_crc = if self.received == self.progress.end { self.last_crc } else { 0 };
        Message::Hello(MemberState {
            session: self.session,
            oldest: self.oldest,
            last_crc,
            progress: Progress { end, durable: self.progress.durable.min(end), ..self.told() },
            lost: self.still_lost(),
            gap: self.gap,
            spans,
        })
    }

    /// How far this member says that it is. While what its log lost is not durable here again, it may need
    /// that log once more, whatever is in its files: nobody may trim it.
    fn told(&self) -> Progress {
        Progress { flushed: self.progress.flushed.min(self.progress.durable), ..self.progress }
    }

    /// What the log lost and does not have yet.
    fn still_lost(&self) -> Option<Lost> {
        let lost = self.lost.filter(|lost| self.tip() < lost.tip())?;
        Some(Lost { from: lost.from.max(self.received.min(lost.to)), ..lost })
    }

    /// Queues a message on the current connection; false when there is none.
    fn push(&mut self, to: ReplicaId, message: Message) -> bool {
        let Some(i) = self.peer_index(to) else { return false };
        let term = match &message {
            // Also one that is not on disk yet: a head whose disk is blank must not choose it again.
            Message::Hello(_) => self.latest_term(),
            _ => self.term,
        };
        let now_ms = self.now_ms;
        let Some(link) = self.peers[i].link.as_mut().filter(|l| !l.is_closing) else {
            return false;
        };
        link.last_sent_ms = now_ms;
        match &message {
            Message::Heartbeat(marks)
            | Message::Records { marks, .. }
            | Message::NewTerm { marks, .. } => link.told = *marks,
            _ => {}
        }
        let frame = Frame {
            group: self.config.group,
            shard: ShardId::ZERO,
            config: self.config.config,
            term,
            from: self.config.me,
            to,
            connection: link.connection,
            message,
        };
        self.actions.push_back(Action::Send { frame });
        true
    }

    /// Has the node close the current connection with a member, unless it is about to.
    fn close_link(&mut self, i: usize, reason: String) {
        let peer = self.peers[i].id;
        let Some(link) = self.peers[i].link.as_mut().filter(|link| !link.is_closing) else {
            return;
        };
        link.is_closing = true;
        let connection = link.connection;
        self.actions.push_back(Action::Disconnect { peer, connection, reason });
    }

    fn drop_link(&mut self, i: usize) {
        if self.peers[i].link.take().is_none() {
            return;
        }
        let peer = self.peers[i].id;
        if self.index == 0 || peer == self.head() {
            self.actions.push_back(Action::VoidGrants { peer });
        }
        if matches!(self.phase, Phase::Pulling { winner, .. } if winner == peer) {
            self.phase = Phase::Waiting;
        }
    }

    /// The log has these records next, and the successor is to get them as they are.
    fn pass_on(&mut self, from: LogPosition, term: Term, records: Vec<Bytes>) {
        if self.successor().is_some() {
            self.recent.push(from, term, records);
        }
    }

    fn predecessor(&self) -> Option<ReplicaId> {
        self.index.checked_sub(1).map(|i| self.config.members[i])
    }

    fn successor(&self) -> Option<ReplicaId> {
        self.config.members.get(self.index + 1).copied()
    }

    fn peer_index(&self, id: ReplicaId) -> Option<usize> {
        self.peers.iter().position(|p| p.id == id)
    }

    /// The term that this member is in or about to be in.
    fn latest_term(&self) -> Term {
        match self.phase {
            Phase::Adopting { term } => term,
            _ => self.term.max(self.followed),
        }
    }

    /// What must hold between any two calls.
    fn invariants(&self) {
        assert!(self.progress.end <= self.received, "placed more than was received");
        assert!(self.progress.durable <= self.progress.end, "durable beyond the end");
        if self.phase == Phase::Joined {
            assert!(self.tip().0 <= self.term, "records of a later term");
        }
        if self.index == 0 {
            assert!(self.marks.commit <= self.progress.end, "committed more than there is");
        }
        let is_head = self.index == 0;
        assert!(is_head || !matches!(self.phase, Phase::Pulling { .. }), "only heads pull");
    }
}
