//! One member's knowledge of another.

use super::lease::Promised;
use crate::Action;
use crate::message::{MemberState, Progress, Watermarks};
use alloc::string::String;
use gabion_base::{LogPosition, ReplicaId, ShardId, Term};

/// Another member.
pub(super) struct Peer {
    pub(super) id: ReplicaId,
    /// It counts: for the start of a term, for marks, for readiness.
    pub(super) is_full: bool,
    pub(super) last_heard_ms: u64,
    /// Head's view: when it was last in place: joined, with the head's log.
    pub(super) in_place_ms: u64,
    /// Head's view: when it last acknowledged something, or had nothing to acknowledge.
    pub(super) acked_ms: u64,
    /// Its promise to this member.
    pub(super) promised: Promised,
    /// Its last report of itself, on any connection: for status only, nothing counts on it.
    pub(super) progress: Option<Progress>,
    pub(super) link: Option<Link>,
}

impl Peer {
    pub(super) fn new(id: ReplicaId, is_full: bool, now_ms: u64) -> Self {
        Self {
            id,
            is_full,
            last_heard_ms: now_ms,
            in_place_ms: now_ms,
            acked_ms: now_ms,
            promised: Promised::default(),
            progress: None,
            link: None,
        }
    }

    /// Whether no term begins before it says what it has.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_full && self.link.as_ref().is_none_or(|l| l.hello.is_none())
    }
}

/// The current connection to it, and all state that is forgotten when it breaks.
pub(super) struct Link {
    /// This side's number.
    pub(super) connection: u64,
    /// The other side's number, from its Hello.
    pub(super) remote: Option<u64>,
    pub(super) is_closing: bool,
    /// The term of the last answer that told it the view that runs here.
    pub(super) told_view: Option<Term>,
    pub(super) last_sent_ms: u64,
    pub(super) told: Watermarks,
    pub(super) hello: Option<(Term, MemberState)>,
    /// Head's view: the term that it accepted on this connection.
    pub(super) joined: Option<Term>,
    /// Head's view: its acknowledged progress in that term.
    pub(super) acked: Progress,
    /// Head's view: the member has caught up when it has acknowledged this.
    pub(super) target: LogPosition,
    pub(super) refused: Option<String>,
    /// Head's view: it was told that no member has the lost records.
    pub(super) knows_of_loss: bool,
    /// Secondary's view of the head: NewTerm came on this connection, for this term.
    pub(super) welcomed: Option<Term>,
    /// Secondary's view of head and predecessor: the term for which it sent them TermAccepted.
    pub(super) accepted: Option<Term>,
    /// Secondary's view of head and predecessor: the end of the log in the last Ack to them, and
    /// how far that was durable.
    pub(super) told_end: LogPosition,
    pub(super) told_durable: LogPosition,
    /// Secondary's view of the head: a full copy was asked for.
    pub(super) asked_for_copy: bool,
    /// To a receiver of this member's log: the live stream.
    pub(super) stream: Option<Stream>,
    /// To a head that pulls: its last request.
    pub(super) pull: Option<Pull>,
}

impl Link {
    pub(super) fn new(connection: u64) -> Self {
        Self {
            connection,
            remote: None,
            is_closing: false,
            told_view: None,
            last_sent_ms: 0,
            told: Watermarks::default(),
            hello: None,
            joined: None,
            acked: Progress::default(),
            target: LogPosition::ZERO,
            refused: None,
            knows_of_loss: false,
            welcomed: None,
            accepted: None,
            told_end: LogPosition::ZERO,
            told_durable: LogPosition::ZERO,
            asked_for_copy: false,
            stream: None,
            pull: None,
        }
    }
}

/// Records on their way to a receiver.
pub(super) struct Stream {
    /// The term in which the receiver asked for it.
    pub(super) term: Term,
    /// Position of the next record to send.
    pub(super) next: LogPosition,
    pub(super) acked: LogPosition,
    /// How far the receiver's log is durable there.
    pub(super) durable: LogPosition,
    /// Log was read and checked for it: the rest is sent as it is.
    pub(super) is_sound: bool,
    /// The read that is under way.
    pub(super) reading: Option<Read>,
}

/// A head's request for log.
pub(super) struct Pull {
    pub(super) from: LogPosition,
    pub(super) bytes_max: usize,
    pub(super) reading: Option<Read>,
}

/// A read that the node was asked for.
#[derive(Clone, Copy)]
pub(super) struct Read {
    pub(super) ticket: u64,
    pub(super) from: LogPosition,
    pub(super) until: LogPosition,
    pub(super) term: Term,
}

impl Read {
    /// Asks the node for it, on behalf of `to`.
    pub(super) const fn order(self, to: ReplicaId, bytes_max: usize, check: bool) -> Action {
        let Self { ticket, from, until, term: _ } = self;
        Action::SendLog { shard: ShardId::ZERO, to, ticket, from, until, bytes_max, check }
    }
}
