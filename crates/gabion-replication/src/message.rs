//! Messages between the members of a group. Bodies are little-endian; the frame around them, with
//! the sender's term, stands in [`crate::frame`].
//!
//! ```text
//!  kind  name          body (after it: typed fields, see gabion_base::codec)      payload
//!     1  Hello         versions u16, u16 | incarnation, session, oldest u64 | last_crc u32
//!                      | progress | spans
//!     2  NewTerm       oldest, end u64 | last_crc u32 | watermarks | spans
//!     3  TermAccepted  last_crc u32 | progress
//!     4  Records       from, term u64 | watermarks                                records
//!     5  Ack           progress | lease
//!     6  Heartbeat     watermarks | lease
//!     7  PullLog       from u64 | bytes_max u32
//!     8  Refused       reason
//!     9  View          view (crate::view)
//!    16  Node                                                                     bytes
//!    17  Forward       id u64                                                     command
//!    18  ForwardReply  id u64 | frontier                                           reply
//!
//!  progress    end, durable, flushed frontier | edit u64
//!  watermarks  commit, durable, flushed frontier | edit u64
//!  frontier    count u16 | u64 position of each shard (gabion_base::frontier)
//!  lease       asked u64 | lasts u32: when the asker sent its request, by its own clock in ms, and
//!              for how many ms it asks (Heartbeat) or is promised (Ack); 0 and 0 for none
//!  versions    lowest and highest version of frames that the sender speaks
//!  spans       count u32 | (term, start, end u64)…
//!  reason: varint length and UTF-8
//!
//!  field of Hello, critical, only from a member whose log lost records that were durable:
//!     1  Lost       from, to, term u64
//!
//!  field of Hello, skipped by those who do not know it, only from a member whose ring was lost:
//!     2  Gap        below u64
//! ```

use crate::{GroupView, Spans};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::codec::{FIELD_CRITICAL, Fields, Put, Reader, put_field};
use gabion_base::{Error, Frontier, LogPosition, Result, Term};

/// Longest sentence in a message, in bytes.
pub const TEXT_LEN_MAX: usize = 4096;

/// In [`MemberState::gap`]: any term.
pub const ANY_TERM: Term = Term(u64::MAX);

/// How far a member is. Every value only rises while its process lives, except where a log is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Its log is contiguous, in its ring (and at the tail applied) below this.
    pub end: Frontier,
    /// Below this its log survives a power cut.
    pub durable: Frontier,
    /// It needs no log below this: everything there is in files that are durable.
    pub flushed: Frontier,
    /// The last edit that it applied.
    pub edit: u64,
}

impl Progress {
    /// The progress that both have reached.
    #[must_use]
    pub fn meet(self, other: Self) -> Self {
        Self {
            end: self.end.meet(other.end),
            durable: self.durable.meet(other.durable),
            flushed: self.flushed.meet(other.flushed),
            edit: self.edit.min(other.edit),
        }
    }

    /// The progress that either has reached.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        Self {
            end: self.end.join(other.end),
            durable: self.durable.join(other.durable),
            flushed: self.flushed.join(other.flushed),
            edit: self.edit.max(other.edit),
        }
    }
}

/// The marks that hold at every member: the least of their [`Progress`]. They never fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Every member has acknowledged the log below this.
    pub commit: Frontier,
    /// Every member has flushed the log below this to its disk.
    pub durable: Frontier,
    /// No member needs the log below this.
    pub flushed: Frontier,
    /// Every member has applied this edit.
    pub edit: u64,
}

impl Watermarks {
    /// The marks when every member has come so far.
    #[must_use]
    pub const fn of(least: Progress) -> Self {
        let Progress { end, durable, flushed, edit } = least;
        Self { commit: end, durable, flushed, edit }
    }

    /// The higher of each.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        Self {
            commit: self.commit.join(other.commit),
            durable: self.durable.join(other.durable),
            flushed: self.flushed.join(other.flushed),
            edit: self.edit.max(other.edit),
        }
    }
}

/// A promise about reads, as it is asked for and given. The holder counts from its own time of
/// asking, so clocks need not agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// When the asker sent its request, by its own clock in ms.
    pub asked_ms: u64,
    /// How long the promise is to last, in ms.
    pub lasts_ms: u32,
}

/// Committed records that were durable in a log and are not in it any more: its segments are rotten
/// (docs/faults.md E4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The start of the first of them.
    pub from: LogPosition,
    /// The end of the last of them.
    pub to: LogPosition,
    /// The term of the last.
    pub term: Term,
}

impl Lost {
    /// The log's tip must reach this to hold them all; compared like [`Spans::tip`].
    #[must_use]
    pub const fn tip(&self) -> (Term, LogPosition) {
        (self.term, self.to)
    }
}

/// A member's account of itself at the start of a connection. Its term is the frame's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberState {
    /// The lowest and the highest version of frames that it speaks.
    pub versions: (u16, u16),
    /// Its durable counter of starts: tells two lives of one replica apart.
    pub incarnation: u64,
    /// Its durable counter of starts and connections, as at its start.
    pub session: u64,
    /// The first position that it can send to others.
    pub oldest: LogPosition,
    /// The checksum of its last record; 0 for an empty log.
    pub last_crc: u32,
    /// How far it is; `progress.end` is the end of the last span.
    pub progress: Progress,
    /// Its spans up to its end; only such as hold records.
    pub spans: Spans,
    /// The records that its log lost and has not got back.
    pub lost: Option<Lost>,
    /// Its ring was lost: it may lack records that it acknowledged, of terms below this one.
    /// [`ANY_TERM`] until it has heard whether others have them.
    pub gap: Option<Term>,
}

impl MemberState {
    /// The tip that a group's log must reach before this member follows it: its own, or that of its
    /// lost records.
    #[must_use]
    pub fn known_tip(&self) -> (Term, LogPosition) {
        let tip = self.spans.tip();
        self.lost.map_or(tip, |lost| lost.tip().max(tip))
    }
}

/// A message. The kinds from `Node` on are carried for the node.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// The first message on a connection, both ways.
    Hello(MemberState),
    /// From the head: the frame's term runs, or still runs, with this log.
    NewTerm {
        /// The head's log begins here; spans wholly below may be missing.
        oldest: LogPosition,
        /// The head's log ends here.
        end: LogPosition,
        /// The checksum of the head's last record.
        last_crc: u32,
        /// The marks that hold at every member.
        marks: Watermarks,
        /// The spans of the log; the last is open.
        spans: Spans,
    },
    /// To the head: the term is durable here and the log is a prefix of the head's. To the
    /// predecessor in the chain: stream from `progress.end`.
    TermAccepted {
        /// The checksum of the last record.
        last_crc: u32,
        /// How far this member is.
        progress: Progress,
    },
    /// Whole records, as they lie in the sender's log.
    Records {
        /// Position of the first.
        from: LogPosition,
        /// Term of all of them.
        term: Term,
        /// The marks that hold at every member, as far as the sender knows.
        marks: Watermarks,
        /// The records, back to back.
        bytes: Vec<Bytes>,
    },
    /// To the head and to the predecessor: how far this member is. With a promise, which may go to
    /// any member, it says nothing of progress.
    Ack(Progress, Lease),
    /// A sign of life. The head's also tells what holds everywhere; its and the reader's may ask
    /// for a promise.
    Heartbeat(Watermarks, Lease),
    /// From a head whose log is shorter: answer with `Records` from here.
    PullLog {
        /// Position of the first record wanted.
        from: LogPosition,
        /// Bytes to send at most, unless one record is longer.
        bytes_max: u32,
    },
    /// The sender cannot go on with the receiver (or, told to the head, with a third).
    Refused {
        /// One clear sentence.
        reason: String,
    },
    /// The answer to a frame of an older view: the view that runs at the sender.
    View(GroupView),
    /// Messages between nodes about slots and files (grants, placements, missing files).
    Node {
        /// The node's own encoding.
        bytes: Bytes,
    },
    /// A client's command, for the head or the tail to run.
    Forward {
        /// The sender's number for it.
        id: u64,
        /// The command.
        bytes: Bytes,
    },
    /// The answer to a forwarded command.
    ForwardReply {
        /// The number in `Forward`.
        id: u64,
        /// The answer stands for the log up to here.
        frontier: Frontier,
        /// The reply.
        bytes: Bytes,
    },
    /// A kind that this build does not know and may ignore.
    Unknown {
        /// Its number.
        kind: u8,
    },
}

pub(crate) const KIND_RECORDS: u8 = 4;
const KIND_NODE: u8 = 16;
/// The field of a Hello that an older build must not skip: it would go on without the lost records.
const TAG_LOST: u16 = 1;
const TAG_GAP: u16 = 2;
pub(crate) const KIND_FORWARD: u8 = 17;
pub(crate) const KIND_FORWARD_REPLY: u8 = 18;

impl Message {
    /// Whether it is carried for the node, and the chain only delivers it.
    #[must_use]
    pub fn is_for_node(&self) -> bool {
        matches!(self, Self::Node { .. } | Self::Forward { .. } | Self::ForwardReply { .. })
    }

    /// The kind's number on the wire.
    #[must_use]
    pub fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::NewTerm { .. } => 2,
            Self::TermAccepted { .. } => 3,
            Self::Records { .. } => KIND_RECORDS,
            Self::Ack(..) => 5,
            Self::Heartbeat(..) => 6,
            Self::PullLog { .. } => 7,
            Self::Refused { .. } => 8,
            Self::View(_) => 9,
            Self::Node { .. } => KIND_NODE,
            Self::Forward { .. } => KIND_FORWARD,
            Self::ForwardReply { .. } => KIND_FORWARD_REPLY,
            Self::Unknown { kind } => *kind,
        }
    }

    /// Appends the body to `out` and returns the payload, which follows it on the wire.
    pub(crate) fn put_body(&self, out: &mut Vec<u8>) -> Vec<Bytes> {
        match self {
            Self::Hello(state) => {
                out.put_u16(state.versions.0);
                out.put_u16(state.versions.1);
                out.put_u64(state.incarnation);
                out.put_u64(state.session);
                out.put_u64(state.oldest.get());
                out.put_u32(state.last_crc);
                put_progress(out, &state.progress);
                state.spans.put(out);
                if let Some(lost) = &state.lost {
                    put_lost(out, lost);
                }
                if let Some(gap) = state.gap {
                    put_field(out, TAG_GAP, 0, &gap.get().to_le_bytes());
                }
            }
            Self::NewTerm { oldest, end, last_crc, marks, spans } => {
                out.put_u64(oldest.get());
                out.put_u64(end.get());
                out.put_u32(*last_crc);
                put_marks(out, marks);
                spans.put(out);
            }
            Self::TermAccepted { last_crc, progress } => {
                out.put_u32(*last_crc);
                put_progress(out, progress);
            }
            Self::Records { from, term, marks, bytes } => {
                out.put_u64(from.get());
                out.put_u64(term.get());
                put_marks(out, marks);
                return bytes.clone();
            }
            Self::Ack(progress, lease) => {
                put_progress(out, progress);
                put_lease(out, lease);
            }
            Self::Heartbeat(marks, lease) => {
                put_marks(out, marks);
                put_lease(out, lease);
            }
            Self::PullLog { from, bytes_max } => {
                out.put_u64(from.get());
                out.put_u32(*bytes_max);
            }
            Self::Refused { reason } => put_text(out, reason),
            Self::View(view) => out.put_bytes(&view.encode()),
            Self::Node { bytes } => return vec![bytes.clone()],
            Self::Forward { id, bytes } => {
                out.put_u64(*id);
                return vec![bytes.clone()];
            }
            Self::ForwardReply { id, frontier, bytes } => {
                out.put_u64(*id);
                frontier.encode(out);
                return vec![bytes.clone()];
            }
            Self::Unknown { .. } => {}
        }
        Vec::new()
    }

    /// The message of this kind with this body and payload; nothing when the kind is unknown.
    pub(crate) fn read(kind: u8, body: &[u8], payload: Bytes) -> Result<Option<Self>> {
        let mut reader = Reader::new(body, "message");
        let r = &mut reader;
        let carries_payload =
            matches!(kind, KIND_RECORDS | KIND_FORWARD | KIND_FORWARD_REPLY | KIND_NODE);
        if !carries_payload && !payload.is_empty() {
            return Err(Error::corruption(format!(
                "message of kind {kind} with {} bytes of payload",
                payload.len()
            )));
        }
        let mut message = match kind {
            1 => Self::Hello(MemberState {
                versions: (r.u16()?, r.u16()?),
                incarnation: r.u64()?,
                session: r.u64()?,
                oldest: LogPosition(r.u64()?),
                last_crc: r.u32()?,
                progress: read_progress(r)?,
                spans: Spans::read(r)?,
                lost: None,
                gap: None,
            }),
            2 => Self::NewTerm {
                oldest: LogPosition(r.u64()?),
                end: LogPosition(r.u64()?),
                last_crc: r.u32()?,
                marks: read_marks(r)?,
                spans: Spans::read(r)?,
            },
            3 => Self::TermAccepted { last_crc: r.u32()?, progress: read_progress(r)? },
            KIND_RECORDS => Self::Records {
                from: LogPosition(r.u64()?),
                term: Term(r.u64()?),
                marks: read_marks(r)?,
                bytes: vec![payload],
            },
            5 => Self::Ack(read_progress(r)?, read_lease(r)?),
            6 => Self::Heartbeat(read_marks(r)?, read_lease(r)?),
            7 => Self::PullLog { from: LogPosition(r.u64()?), bytes_max: r.u32()? },
            8 => Self::Refused { reason: read_text(r)? },
            9 => Self::View(GroupView::decode(r.bytes(r.remaining())?)?),
            KIND_NODE => Self::Node { bytes: payload },
            KIND_FORWARD => Self::Forward { id: r.u64()?, bytes: payload },
            KIND_FORWARD_REPLY => {
                let (id, frontier) = (r.u64()?, Frontier::decode(r, "answer")?);
                Self::ForwardReply { id, frontier, bytes: payload }
            }
            _ => return Ok(None),
        };
        let mut fields = Fields::new(reader.rest(), "message");
        while let Some(field) = fields.next_field()? {
            match &mut message {
                Self::Hello(state) if field.tag == TAG_LOST && state.lost.is_none() => {
                    state.lost = Some(read_lost(field.payload)?);
                }
                Self::Hello(state) if field.tag == TAG_GAP && state.gap.is_none() => {
                    let mut r = Reader::new(field.payload, "what a ring held");
                    state.gap = Some(Term(r.u64()?));
                    r.finish()?;
                }
                _ => field.skip_unknown("message")?,
            }
        }
        Ok(Some(message))
    }
}

fn put_lost(out: &mut Vec<u8>, lost: &Lost) {
    let mut payload = Vec::with_capacity(24);
    payload.put_u64(lost.from.get());
    payload.put_u64(lost.to.get());
    payload.put_u64(lost.term.get());
    put_field(out, TAG_LOST, FIELD_CRITICAL, &payload);
}

fn read_lost(payload: &[u8]) -> Result<Lost> {
    let mut r = Reader::new(payload, "what a log lost");
    let lost =
        Lost { from: LogPosition(r.u64()?), to: LogPosition(r.u64()?), term: Term(r.u64()?) };
    r.finish()?;
    Ok(lost)
}

fn put_progress(out: &mut Vec<u8>, progress: &Progress) {
    let Progress { end, durable, flushed, edit } = progress;
    [end, durable, flushed].iter().for_each(|frontier| frontier.encode(out));
    out.put_u64(*edit);
}

fn read_progress(r: &mut Reader<'_>) -> Result<Progress> {
    let mut frontier = || Frontier::decode(r, "progress");
    let (end, durable, flushed) = (frontier()?, frontier()?, frontier()?);
    Ok(Progress { end, durable, flushed, edit: r.u64()? })
}

fn put_marks(out: &mut Vec<u8>, marks: &Watermarks) {
    let Watermarks { commit, durable, flushed, edit } = marks;
    [commit, durable, flushed].iter().for_each(|frontier| frontier.encode(out));
    out.put_u64(*edit);
}

fn read_marks(r: &mut Reader<'_>) -> Result<Watermarks> {
    read_progress(r).map(Watermarks::of)
}

fn put_lease(out: &mut Vec<u8>, lease: &Lease) {
    out.put_u64(lease.asked_ms);
    out.put_u32(lease.lasts_ms);
}

fn read_lease(r: &mut Reader<'_>) -> Result<Lease> {
    Ok(Lease { asked_ms: r.u64()?, lasts_ms: r.u32()? })
}

/// A sentence over the limit is cut, at a character: it explains, nothing depends on its end.
fn put_text(out: &mut Vec<u8>, text: &str) {
    let len = (0..=text.len().min(TEXT_LEN_MAX)).rev().find(|&i| text.is_char_boundary(i));
    out.put_prefixed(&text.as_bytes()[..len.unwrap_or(0)]);
}

fn read_text(r: &mut Reader<'_>) -> Result<String> {
    let bytes = r.prefixed(TEXT_LEN_MAX)?;
    match core::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_string()),
        Err(_) => Err(Error::corruption("message: text is not UTF-8")),
    }
}
