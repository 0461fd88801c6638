//! The durable state of a replica besides slots and files: its view, its session, the spans of its
//! log and where its log begins. It is an opaque entry in the pool's placement log. The snapshot of
//! each checkpoint has it too, with the group's configuration and the tree.
//!
//! ```text
//!   u16 version = 2 | fields (gabion_base::codec), each at most once:
//!      1 counters     u32 member, u64 incarnation, u64 session; critical
//!      2 shards       u16 count, then of each: Anchor where the log begins, u64 how far it was
//!                     durable, u32 vote (0, none), Span list; critical
//!      4 trimmed_ms   u64 group time where the log begins (absent: 0)
//!      5 ring         u64 number of the ring (absent: 0, the first); critical
//!      6 stopped      u64 log position at a clean stop (absent: none)
//!      7 ring loss    the records that may be gone with a ring (absent: none)
//!      8 view         the newest view that was taken (gabion_replication); critical
//!      9 view waits   the view may not have taken effect yet (absent: it has); critical
//!     10 copy         u64 position that the log of a full copy has yet to reach, 0 while the copy
//!                     is being made (absent: no copy); critical
//! ```
//!
//! A term is at most [`gabion_base::TERM_MAX`]: files are numbered by it.

use crate::GroupConfig;
use crate::ring::{RingLoss, RingState};
use crate::tlv::{Tlv, TlvReader};
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::frontier::SHARDS;
use gabion_base::{ConfigNumber, Error, LogPosition, ReplicaId, Result, TERM_MAX, Term};
use gabion_log::{Anchor, Span};
use gabion_replication::GroupView;

/// Kinds of opaque entries in the placement log.
pub mod opaque {
    /// An applied edit, encoded.
    pub const EDIT: u16 = 1;
    /// The whole [`ReplicaState`](super::ReplicaState), replacing the one before.
    pub const STATE: u16 = 2;
}

/// Durable counters of one replica.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaState {
    /// The member that this pool belongs to.
    pub me: ReplicaId,
    /// The newest view that was taken. Its term is the highest that was adopted here.
    pub view: GroupView,
    /// The view may not have taken effect: a start waits for what an earlier process promised.
    pub view_waits: bool,
    /// Raised at each start: tells two lives of this replica apart.
    pub incarnation: u64,
    /// Raised at each start, new connection with the primary, new term and new view: grants of
    /// older sessions are void.
    pub session: u64,
    /// The log's spans, oldest first.
    pub spans: Vec<Span>,
    /// The log is kept from here on.
    pub trimmed: Anchor,
    /// Group time in ms where the kept log begins, or of a later edit that no log has. So time does
    /// not go back when no record is left that tells it.
    pub trimmed_ms: u64,
    /// Up to this record end the log was once durable here, and committed. Each applied edit raises
    /// it, and each watermark in a rotten log; nothing lowers it. A start that finds less has lost
    /// records, and the group does not go on without them (docs/faults.md E4).
    pub durable: LogPosition,
    /// Its ring, and how the last process ended.
    pub ring: RingState,
    /// How far a full copy of the group's state is that was begun here.
    pub copy: CopyMark,
}

/// The durable mark of a full copy of the group's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMark {
    /// None was begun, or the log has reached all that the copy's files hold.
    #[default]
    None,
    /// It is being made. The replica has no tree and no log until it is whole, and the files of its
    /// pool are of use only as far as the copy has them.
    Begun,
    /// It is whole. The log has yet to reach this position, up to which its edits are applied.
    LogBehind(LogPosition),
}

const VERSION: u16 = 2;
const WHAT: &str = "replica state";
const TAG_COUNTERS: u16 = 1;
const TAG_SHARDS: u16 = 2;
const TAG_VIEW: u16 = 8;
/// A build that skips it may act in the view too early. Present only between a view's commit and
/// its effect.
const TAG_VIEW_WAITS: u16 = 9;
/// Stands for no vote (Raft): no protocol of today gives one.
const NO_VOTE: u32 = 0;
/// A build that skips it knows nothing of expiry. Missing in states of older builds, and while it
/// is 0.
const TAG_TRIMMED_MS: u16 = 4;
/// Critical, as a build that skips it takes any ring. Missing for the first ring of a pool.
const TAG_RING_NUMBER: u16 = 5;
/// Present after a clean stop and in a new pool, until the next start. A build that skips it writes
/// a state without it.
const TAG_STOPPED: u16 = 6;
/// Present after a ring was lost.
const TAG_RING_LOSS: u16 = 7;
/// Critical, as a build that skips it takes the replica for an empty one, and the log's for its
/// files. Present from the durable decision to be filled until the log is as far as the copy.
const TAG_COPY: u16 = 10;

impl ReplicaState {
    /// The highest term adopted.
    #[must_use]
    pub const fn term(&self) -> Term {
        self.view.term
    }

    /// Whether a full copy is being made, and the replica has nothing of its own.
    #[must_use]
    pub fn is_being_filled(&self) -> bool {
        self.copy == CopyMark::Begun
    }

    /// Whether the log, which ends at `end`, has yet to reach what copied files hold.
    pub(crate) fn is_log_behind(&self, end: LogPosition) -> bool {
        matches!(self.copy, CopyMark::LogBehind(to) if end < to)
    }

    /// The view to act in: none, under the number zero, while the newest one waits.
    #[must_use]
    pub fn view_in_effect(&self) -> GroupView {
        match self.view_waits {
            true => GroupView { config: ConfigNumber::ZERO, ..self.view.clone() },
            false => self.view.clone(),
        }
    }

    /// The state in bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut counters = Vec::new();
        counters.put_u32(self.me.get());
        counters.put_u64(self.incarnation);
        counters.put_u64(self.session);
        let mut shards = Vec::new();
        shards.put_u16(SHARDS as u16);
        self.trimmed.encode(&mut shards);
        shards.put_u64(self.durable.get());
        shards.put_u32(NO_VOTE);
        Span::encode_list(&self.spans, &mut shards);
        let mut out = Tlv::new();
        out.critical(TAG_COUNTERS, &counters);
        out.critical(TAG_SHARDS, &shards);
        out.critical(TAG_VIEW, &self.view.encode());
        if self.view_waits {
            out.critical(TAG_VIEW_WAITS, &[]);
        }
        if self.trimmed_ms > 0 {
            out.optional(TAG_TRIMMED_MS, &self.trimmed_ms.to_le_bytes());
        }
        if self.ring.number > 0 {
            out.critical(TAG_RING_NUMBER, &self.ring.number.to_le_bytes());
        }
        if let Some(stopped) = self.ring.stopped {
            out.optional(TAG_STOPPED, &stopped.get().to_le_bytes());
        }
        if let Some(loss) = &self.ring.loss {
            let mut bytes = Vec::new();
            loss.encode(&mut bytes);
            out.optional(TAG_RING_LOSS, &bytes);
        }
        match self.copy {
            CopyMark::None => {}
            CopyMark::Begun => out.critical(TAG_COPY, &0_u64.to_le_bytes()),
            CopyMark::LogBehind(to) => out.critical(TAG_COPY, &to.get().to_le_bytes()),
        }
        [&VERSION.to_le_bytes()[..], &out.finish()].concat()
    }

    /// Reads [`Self::encode`].
    ///
    /// # Errors
    /// Corruption; unsupported for a critical field of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let known = [
            TAG_COUNTERS,
            TAG_SHARDS,
            TAG_VIEW,
            TAG_VIEW_WAITS,
            TAG_TRIMMED_MS,
            TAG_RING_NUMBER,
            TAG_STOPPED,
            TAG_RING_LOSS,
            TAG_COPY,
        ];
        let fields = TlvReader::read(fields_of(bytes)?, WHAT, &known)?;
        let mut counters = fields.field(TAG_COUNTERS)?;
        let me = ReplicaId(counters.u32()?);
        let (incarnation, session) = (counters.u64()?, counters.u64()?);
        counters.finish()?;
        let (trimmed, durable, spans) = read_shards(&mut fields.field(TAG_SHARDS)?)?;
        let view = GroupView::decode(fields.bytes(TAG_VIEW)?)?;
        let view_waits = match fields.field_if_there(TAG_VIEW_WAITS) {
            Some(field) => field.finish().map(|()| true)?,
            None => false,
        };
        let latest = spans.last().map_or(view.term, |span| span.term.max(view.term));
        if latest > TERM_MAX {
            return Err(Error::corruption(format!("{WHAT}: {latest}, the limit is {TERM_MAX}")));
        }
        let number = |tag| match fields.field_if_there(tag) {
            None => Ok(None),
            Some(mut field) => {
                let number = field.u64()?;
                field.finish().map(|()| Some(number))
            }
        };
        let trimmed_ms = number(TAG_TRIMMED_MS)?.unwrap_or(0);
        let loss = fields.field_if_there(TAG_RING_LOSS).map(|mut field| {
            let loss = RingLoss::decode(&mut field)?;
            field.finish().map(|()| loss)
        });
        let ring = RingState {
            number: number(TAG_RING_NUMBER)?.unwrap_or(0),
            stopped: number(TAG_STOPPED)?.map(LogPosition),
            loss: loss.transpose()?,
        };
        let copy = match number(TAG_COPY)? {
            None => CopyMark::None,
            Some(0) => CopyMark::Begun,
            Some(to) => CopyMark::LogBehind(LogPosition(to)),
        };
        Ok(Self {
            me,
            view,
            view_waits,
            incarnation,
            session,
            spans,
            trimmed,
            trimmed_ms,
            durable,
            ring,
            copy,
        })
    }
}

/// The fields, which follow the version of a state.
fn fields_of(bytes: &[u8]) -> Result<&[u8]> {
    let (version, fields) = bytes
        .split_first_chunk()
        .ok_or_else(|| Error::corruption(format!("{WHAT}: shorter than its version")))?;
    match u16::from_le_bytes(*version) {
        VERSION => Ok(fields),
        version => Err(Error::unsupported(format!(
            "{WHAT} has version {version}, this build knows {VERSION}"
        ))),
    }
}

/// Reads the field of the shards.
fn read_shards(reader: &mut Reader<'_>) -> Result<(Anchor, LogPosition, Vec<Span>)> {
    const { assert!(SHARDS == 1, "the replica state has a list of shards in memory") }
    let shards = reader.u16()?;
    if usize::from(shards) != SHARDS {
        return Err(Error::unsupported(format!(
            "replica state of {shards} shards, this build has {SHARDS}"
        )));
    }
    let (trimmed, durable) = (Anchor::decode(reader)?, LogPosition(reader.u64()?));
    let vote = reader.u32()?;
    if vote != NO_VOTE {
        return Err(Error::unsupported(format!("replica state: a vote for replica {vote}")));
    }
    let spans = Span::decode_list(reader)?;
    Ok((trimmed, durable, spans))
}

/// The node's part of a checkpoint of the placement log.
pub struct Snapshot {
    /// The group's configuration.
    pub group: GroupConfig,
    /// The replica's counters.
    pub state: ReplicaState,
    /// The tree, as [`gabion_engine::Tree::snapshot`] encodes it.
    pub tree: Vec<u8>,
}

const TAG_GROUP: u16 = 1;
const TAG_STATE: u16 = 2;
const TAG_TREE: u16 = 3;

impl Snapshot {
    pub(crate) fn encode(group: &GroupConfig, state: &ReplicaState, tree: &[u8]) -> Vec<u8> {
        let mut out = Tlv::new();
        out.critical(TAG_GROUP, &group.encode());
        out.critical(TAG_STATE, &state.encode());
        out.critical(TAG_TREE, tree);
        out.finish()
    }

    /// Reads the node's part of a checkpoint.
    ///
    /// # Errors
    /// Corruption; unsupported for a critical field of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let known = [TAG_GROUP, TAG_STATE, TAG_TREE];
        let fields = TlvReader::read(bytes, "checkpoint of a replica", &known)?;
        Ok(Self {
            group: GroupConfig::decode(fields.bytes(TAG_GROUP)?)?,
            state: ReplicaState::decode(fields.bytes(TAG_STATE)?)?,
            tree: fields.bytes(TAG_TREE)?.to_vec(),
        })
    }
}
