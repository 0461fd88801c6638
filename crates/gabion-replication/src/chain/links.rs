//! Connections with the other members: the first message on each, the neighbours in the chain, and
//! the known state of each member.

use super::{Chain, Phase};
use crate::frame::{VERSION, VERSION_MIN};
use crate::message::{Lease, Lost, MemberState, Message, Progress};
use crate::planted::Mutant;
use crate::{Action, Frame, MemberStatus};
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cmp::Ordering;
use gabion_base::{Frontier, LogPosition, ReplicaId, ShardId, Term};

impl Chain {
    pub(super) fn hello(&self) -> Message {
        let spans = self.spans.clipped(self.received);
        let end = spans.tip().1;
        let last_crc = if self.received == self.end() { self.last_crc } else { 0 };
        Message::Hello(MemberState {
            versions: (VERSION_MIN, VERSION),
            incarnation: self.incarnation,
            session: self.session,
            oldest: self.oldest,
            last_crc,
            progress: Progress {
                end: Frontier::of(end),
                durable: self.progress.durable.meet(Frontier::of(end)),
                ..self.told()
            },
            lost: self.still_lost(),
            gap: self.gap,
            spans,
        })
    }

    /// This member's progress as it tells it. While lost log is not durable here again, the member
    /// may need that log once more, whatever its files hold: nobody may trim it.
    pub(super) fn told(&self) -> Progress {
        Progress { flushed: self.progress.flushed.meet(self.progress.durable), ..self.progress }
    }

    /// The records that the log lost and does not have yet.
    pub(super) fn still_lost(&self) -> Option<Lost> {
        let lost = self.lost.filter(|lost| self.tip() < lost.tip())?;
        Some(Lost { from: lost.from.max(self.received.min(lost.to)), ..lost })
    }

    /// Queues a message on the current connection; false when there is none.
    pub(super) fn push(&mut self, to: ReplicaId, message: Message) -> bool {
        let Some(i) = self.peer_index(to) else { return false };
        let term = match &message {
            // Also one that is not on disk yet: a head whose disk is blank must not choose it
            // again.
            Message::Hello(_) => self.latest_term(),
            _ => self.term,
        };
        let (now_ms, group, config) = (self.now_ms, self.group(), self.config_number());
        let Some(link) = self.peers[i].link.as_mut().filter(|l| !l.is_closing) else {
            return false;
        };
        link.last_sent_ms = now_ms;
        match &message {
            Message::Heartbeat(marks, _)
            | Message::Records { marks, .. }
            | Message::NewTerm { marks, .. } => link.told = *marks,
            _ => {}
        }
        let frame = Frame {
            group,
            shard: ShardId::ZERO,
            config,
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
    pub(super) fn close_link(&mut self, i: usize, reason: String) {
        let peer = self.peers[i].id;
        let Some(link) = self.peers[i].link.as_mut().filter(|link| !link.is_closing) else {
            return;
        };
        link.is_closing = true;
        let connection = link.connection;
        self.actions.push_back(Action::Disconnect { peer, connection, reason });
    }

    pub(super) fn drop_link(&mut self, i: usize) {
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

    /// The log has these records next, and a receiver is to get them as they are.
    pub(super) fn pass_on(&mut self, from: LogPosition, term: Term, records: Vec<Bytes>) {
        if self.receives_recent().is_some() {
            self.recent.push(from, term, records);
        }
    }

    /// The primary, where writes go.
    pub(super) fn head(&self) -> ReplicaId {
        self.order[0]
    }

    /// The member that answers reads.
    pub(super) fn reader(&self) -> ReplicaId {
        self.order[self.full - 1]
    }

    /// Whether this member counts.
    pub(super) const fn is_full(&self) -> bool {
        self.index < self.full
    }

    /// Whether this member answers reads. It sends the log to those that are not full.
    pub(super) const fn is_reader(&self) -> bool {
        self.index + 1 == self.full
    }

    /// The member that sends this one its log: the one before it in the chain, and the reader to
    /// those that are not full. So these hold nothing up but the reader's device.
    pub(super) fn predecessor(&self) -> Option<ReplicaId> {
        let before = if self.is_full() { self.index.checked_sub(1) } else { Some(self.full - 1) };
        before.map(|i| self.order[i])
    }

    /// Whether this member sends its log to that one.
    pub(super) fn sends_to(&self, id: ReplicaId) -> bool {
        self.receivers().contains(&id)
    }

    /// The members that this one sends its log to: the next full one, or all that are not full.
    fn receivers(&self) -> &[ReplicaId] {
        let next = self.index + 1;
        match next.cmp(&self.full) {
            Ordering::Less => &self.order[next..=next],
            Ordering::Equal => &self.order[next..],
            Ordering::Greater => &[],
        }
    }

    /// The only receiver of this member's log: the newest records go to it as they are. Where there
    /// are several, each reads them when its turn comes.
    pub(super) fn receives_recent(&self) -> Option<ReplicaId> {
        match self.receivers() {
            [only] => Some(*only),
            _ => None,
        }
    }

    // ---- promises about reads

    /// Whether this member answers from its own state, and so needs promises.
    fn is_holder(&self) -> bool {
        self.index == 0 || self.is_reader()
    }

    /// Whether every other full member has promised up to a later time than now.
    pub(super) fn has_all_promises(&self) -> bool {
        let without = self.planted.has(Mutant::ReadsWithoutLease);
        let Some(now_ms) = self.leases.now_ms().filter(|_| !without) else { return true };
        let mut full = self.peers.iter().filter(|peer| peer.is_full);
        self.is_holder() && full.all(|peer| peer.promised.holds_at(now_ms))
    }

    /// The promise to ask a member for with a heartbeat that is sent now, if it is due.
    pub(super) fn lease_due(&mut self, i: usize) -> Option<Lease> {
        let now_ms = self.leases.now_ms().filter(|_| self.is_holder())?;
        let (every_ms, lasts_ms) = (self.config.heartbeat_ms, self.config.lease_ms);
        let peer = &mut self.peers[i];
        let said_hello = peer.link.as_ref().is_some_and(|link| link.hello.is_some());
        let may_ask = peer.is_full && said_hello;
        may_ask.then(|| peer.promised.ask(now_ms, every_ms, lasts_ms)).flatten()
    }

    /// A member asks for a promise: one that answers from its own state.
    pub(super) fn promise(&mut self, i: usize, asked: Lease) {
        let (id, goes_on) = (self.peers[i].id, self.planted.has(Mutant::PromiseAfterView));
        if !self.is_full() || (id != self.head() && id != self.reader()) {
            return;
        }
        if let Some(given) = self.leases.promise(id, asked, self.config.lease_ms, goes_on) {
            self.push(id, Message::Ack(Progress::default(), given));
        }
    }

    /// A member has promised.
    pub(super) fn promised_by(&mut self, i: usize, given: Lease) {
        if let Some(now_ms) = self.leases.now_ms() {
            let is_late = self.planted.has(Mutant::LeaseFromReceipt);
            let asked_ms = if is_late { now_ms } else { given.asked_ms };
            let given = Lease { asked_ms, ..given };
            self.peers[i].promised.take(given, now_ms, self.config.lease_ms);
        }
    }

    pub(super) fn peer_index(&self, id: ReplicaId) -> Option<usize> {
        self.peers.iter().position(|p| p.id == id)
    }

    /// The term that this member is in or about to be in.
    pub(super) fn latest_term(&self) -> Term {
        match self.phase {
            Phase::Adopting { term, .. } => term,
            _ => self.term.max(self.followed),
        }
    }

    /// A member's state as far as it is known here, its own included.
    pub(super) fn status_of(&self, id: ReplicaId) -> MemberStatus {
        let Some(i) = self.peer_index(id) else {
            return MemberStatus {
                id,
                is_connected: true,
                is_joined: self.phase == Phase::Joined,
                last_heard_ms: self.now_ms,
                progress: Some(self.progress),
                lag_bytes: 0,
                refused: self.blocked.clone(),
            };
        };
        let peer = &self.peers[i];
        let end = peer.progress.map_or(0, |p| p.end.only().get());
        MemberStatus {
            id,
            is_connected: peer.link.is_some(),
            is_joined: peer.link.as_ref().is_some_and(|l| l.joined == Some(self.term)),
            last_heard_ms: peer.last_heard_ms,
            progress: peer.progress,
            lag_bytes: self.end().get().saturating_sub(end),
            refused: peer.link.as_ref().and_then(|l| l.refused.clone()),
        }
    }
}
