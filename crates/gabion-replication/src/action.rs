//! The state that a [`Protocol`](crate::Protocol) begins with, and the actions that it asks of the
//! node.

use crate::message::{Lost, Message, Progress, Watermarks};
use crate::{Frame, GroupView, Spans};
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::{Error, LogPosition, ReplicaId, ShardId, Term};

/// The state of a replica when a protocol begins: found on its disk and in its ring at a start, or
/// taken over from the protocol of the view before.
#[derive(Clone, Debug, Default)]
pub struct LocalState {
    /// The highest term that it made durable; zero for a new replica.
    pub term: Term,
    /// Its durable counter of starts.
    pub incarnation: u64,
    /// Its durable counter of starts and connections, as at this start.
    pub session: u64,
    /// Its spans as last adopted. Anything in them beyond `progress.end` is ignored.
    pub spans: Spans,
    /// The first position that it can still send to others.
    pub oldest: LogPosition,
    /// The checksum that the last record's header states; 0 for an empty log.
    pub last_crc: u32,
    /// The end of its log, and how much of it is durable, applied and flushed. A log that lost
    /// records may end before its flushed mark.
    pub progress: Progress,
    /// The records that the log lost, remembered durably until the log reaches them again.
    pub lost: Option<Lost>,
    /// See [`MemberState::gap`](crate::MemberState::gap).
    pub gap: Option<Term>,
    /// The watermarks of all members known here: they do not fall with a new view.
    pub marks: Watermarks,
    /// The log has all that was acknowledged, and nothing that may yet be cut: reads may be
    /// answered from it in a view that waits for others.
    pub is_whole: bool,
    /// No [`Action::SendLog`] with this ticket, or a later one, was ever polled in this process.
    pub next_ticket: u64,
}

/// Whether some member of a group has all records of another member's lost ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// This member has them.
    Member(ReplicaId),
    /// Each other member lost its own ring as well.
    Nobody,
    /// Not all members have said.
    Unknown,
}

/// The last known state of a member, for status pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member's number.
    pub id: ReplicaId,
    /// Whether there is a connection to it (for this replica itself: always).
    pub is_connected: bool,
    /// Whether it takes part in the current term, as far as is known here.
    pub is_joined: bool,
    /// When this replica last heard from it, in the milliseconds of `now_ms`.
    pub last_heard_ms: u64,
    /// Its last report of itself; nothing before the first one.
    pub progress: Option<Progress>,
    /// Bytes of this replica's log that it has not acknowledged (span gaps included).
    pub lag_bytes: u64,
    /// Why it cannot take part, if it cannot.
    pub refused: Option<String>,
}

/// Orders to the node. It carries them out in the order in which they come. One that takes long
/// (`SendLog`, `AdoptTerm`) may be answered later, but a later `Place`, `Truncate`, `Follow` or
/// `AdoptTerm` never overtakes an earlier one.
#[derive(Clone, Debug)]
pub enum Action {
    /// Send `frame` to its receiver over the connection `frame.connection`. When that connection is
    /// gone, drop it.
    Send {
        /// The frame; [`Frame::encode`] makes bytes of it without copying record bytes.
        frame: Frame,
    },
    /// Close this connection (and call `handle_disconnected`).
    Disconnect {
        /// The other end of the connection.
        peer: ReplicaId,
        /// Its number at this side.
        connection: u64,
        /// Why, for the log.
        reason: String,
    },
    /// Read whole records from `from`, at least one, else at most `bytes_max` bytes and not
    /// beyond `until`, and hand them to `handle_log_read` with `ticket`.
    SendLog {
        /// The log that is meant.
        shard: ShardId,
        /// The member that will get them.
        to: ReplicaId,
        /// Names this read.
        ticket: u64,
        /// Position of the first record.
        from: LogPosition,
        /// Position that no record read may pass.
        until: LogPosition,
        /// Bytes to read at most, unless the first record is longer.
        bytes_max: usize,
        /// Whether to check each record against its CRC. A stream begins here, maybe because the
        /// receiver found the last bytes bad.
        check: bool,
    },
    /// Put these whole records in the log at `from`, then call `handle_placed` (the tail: after it
    /// applied them). The log checks each record: CRC, position, `term`, CRC of its predecessor.
    /// When that fails, call `handle_rejected`.
    Place {
        /// The log that is meant.
        shard: ShardId,
        /// Position of the first record.
        from: LogPosition,
        /// Term of every record.
        term: Term,
        /// The records, back to back.
        bytes: Vec<Bytes>,
    },
    /// The log ends at `at`; what lies beyond never counted. Need not be durable.
    Truncate {
        /// The log that is meant.
        shard: ShardId,
        /// The new end.
        at: LogPosition,
    },
    /// The records before the next `AdoptTerm` are of terms that this head never knew (it lost its
    /// disk). They lie in `spans`, which become durable with the last of these terms. Nobody waits
    /// for that: until then a restart finds less.
    Follow {
        /// The log that is meant.
        shard: ShardId,
        /// The spans of the member whose log is fetched.
        spans: Spans,
    },
    /// Make term and spans durable in one commit that also voids every grant, cut the log at `end`
    /// (its next record begins there), then call `handle_term_adopted` with the term.
    AdoptTerm {
        /// The log that is meant.
        shard: ShardId,
        /// The new term.
        term: Term,
        /// All spans of the log; the last one is open.
        spans: Spans,
        /// The start of this replica's next record.
        end: LogPosition,
    },
    /// Grants between this replica and `peer` are void: the connection that carried them is gone.
    /// A secondary voids its grants (durably, with a new session) before it grants anew; the head
    /// forgets the grants that it got.
    VoidGrants {
        /// The other side.
        peer: ReplicaId,
    },
    /// The group accepts writes, as far as is known here.
    Ready,
    /// Writes are refused with this sentence.
    NotReady {
        /// One clear sentence for clients.
        reason: String,
    },
    /// This replica is the tail and may answer reads from now on, for the life of its view.
    Readable,
    /// This member is not full, and its log cannot be followed by any other's: only a full copy of
    /// the group's state makes it a member. Asked for once in each connection with the head.
    NeedsCopy {
        /// The finding, one clear sentence.
        reason: String,
    },
    /// A member answered with a view that is newer than this protocol's. Once it is durable another
    /// protocol begins with it.
    View {
        /// The newer view.
        view: GroupView,
    },
    /// The log here is rotten: end the process, whose next start repairs it from the others.
    Fatal {
        /// The finding, with its place.
        error: Error,
    },
    /// A message for the node, in the order in which `from` sent it.
    Deliver {
        /// The sender.
        from: ReplicaId,
        /// The sender's term when it sent.
        term: Term,
        /// One of the kinds that [`Message::is_for_node`] tells.
        message: Message,
    },
}
