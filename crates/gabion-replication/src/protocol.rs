//! The seam between node and replication: one vocabulary of inputs and actions for the chain, for a
//! group of one, and for the protocols to come (Raft per shard, passive backups).
//!
//! ```text
//!   node ── handle_connected, handle_message, handle_tick ────►┐
//!        ── handle_appended, handle_placed, handle_durable ───►│ Protocol ── poll ──► Action ──► node
//!        ── handle_term_adopted, handle_edit_applied ─────────►│    └─ commit(), durable(), is_ready() …
//!        ── handle_log_read, handle_rejected, send ───────────►┘
//! ```
//!
//! A protocol lives for one view. When another view has become durable, the node drops the protocol
//! and [`begin`]s the next one with the state that its log and tree are in: as after a start, but
//! with everything in memory. So a change of view is no state of a protocol.
//!
//! Order of calls: any `handle_*`; after each, or after a few, `poll` until it returns nothing.

use crate::{
    Action, Alone, Chain, Config, Frame, LeftOut, LocalState, MemberStatus, Message, Progress,
    Spans, Watermarks, Whole,
};
use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::{Error, Frontier, LogPosition, ReplicaId, Result, ShardId, Term};

/// Why no term begins while [`Protocol::hear_word`] is awaited.
pub(crate) const AWAITS_WORD: &str =
    "the group is starting: waiting for a controller's word, as no other full member is there";

/// The protocol for the view of `config`: the chain, a group of one, or that of a replica which is
/// no member. A view with the number zero stands for none.
///
/// # Errors
/// Invalid input for a configuration that cannot work, corruption for a state that contradicts
/// itself.
pub fn begin(config: Config, state: LocalState, now_ms: u64) -> Result<Box<dyn Protocol>> {
    Ok(match config.view.members.len() {
        _ if !config.is_member() => Box::new(LeftOut::new(config, state, now_ms)?),
        1 => Box::new(Alone::new(config, state, now_ms)?),
        _ => Box::new(Chain::new(config, state, now_ms)?),
    })
}

/// One member's side of a protocol, for the life of one view.
pub trait Protocol: Send {
    // ---- inputs

    /// Sets the clock to `now_ms`, which may be before the time of the start. Only before any
    /// event.
    fn begin_at(&mut self, now_ms: u64);

    /// There is a new connection to `peer`, which this side calls `connection` (a number that it
    /// never uses again in the life of this process). It replaces an older one.
    fn handle_connected(&mut self, peer: ReplicaId, connection: u64, now_ms: u64);

    /// The connection is gone. Ignored if it has been replaced meanwhile.
    fn handle_disconnected(&mut self, peer: ReplicaId, connection: u64, now_ms: u64);

    /// A frame arrived over `connection` of `peer`. Group, configuration and term are checked
    /// before its content counts.
    ///
    /// # Errors
    /// When the frame cannot be meant for this replica or breaks the protocol; the node closes the
    /// connection, and the next one begins anew.
    fn handle_message(
        &mut self,
        peer: ReplicaId,
        connection: u64,
        frame: Frame,
        now_ms: u64,
    ) -> Result<()>;

    /// Time has passed. To be called a few times per heartbeat.
    fn handle_tick(&mut self, now_ms: u64);

    /// The clock by which promises about reads are counted: milliseconds that pass also while the
    /// machine is suspended, and go by no other clock. To be read, and told, after the bytes of a
    /// message were received and before the message is handed in (or a read is judged): a process
    /// that was stopped in between must not count from before. A node that never tells it has no
    /// such clock: its members promise nothing, ask for nothing and need nothing.
    fn pass_lease_time(&mut self, lease_ms: u64);

    /// A newer view is about to take effect here: no further promises about reads are given.
    fn stop_promising(&mut self);

    /// No term begins here, and no reads are answered, before [`Self::hear_word`]: no other member
    /// would tell this one that the group goes on without it. Only before the first poll.
    fn await_word(&mut self) {}

    /// A controller has told that this view is the newest.
    fn hear_word(&mut self) {}

    /// The node made the term of [`Action::AdoptTerm`] durable, and had carried out every earlier
    /// [`Action::Place`]. Ignored for a term that a later one replaced.
    fn handle_term_adopted(&mut self, shard: ShardId, term: Term);

    /// The own log grew by these whole records, the last of which has this checksum.
    ///
    /// # Panics
    /// At a member that does not take writes, and while not [`Self::is_joined`].
    fn handle_appended(&mut self, shard: ShardId, records: &[Bytes], last_crc: u32);

    /// The node placed the records of [`Action::Place`] up to `end`. At a member that answers reads
    /// it has applied them, too.
    fn handle_placed(&mut self, shard: ShardId, end: LogPosition, last_crc: u32);

    /// The records of an [`Action::Place`] do not continue the log, which ends at `end` with a
    /// record of this checksum.
    fn handle_rejected(&mut self, shard: ShardId, end: LogPosition, last_crc: u32, reason: &Error);

    /// The log here survives a power cut below `durable`.
    fn handle_durable(&mut self, durable: Frontier);

    /// The tree applied edits up to `edit` and needs no log below `flushed`.
    fn handle_edit_applied(&mut self, edit: u64, flushed: Frontier);

    /// The log below `oldest` is gone.
    fn handle_trimmed(&mut self, oldest: Frontier);

    /// The node's answer to [`Action::SendLog`]: whole records from its `from` on. The kind of an
    /// error decides what ends: *not found* (trimmed) the peer, which needs a full copy;
    /// *corruption* the process; any other the connection.
    fn handle_log_read(&mut self, ticket: u64, records: Result<Vec<Bytes>>);

    /// Sends one of the node's own kinds, behind everything that was sent to this member before.
    ///
    /// # Errors
    /// Unavailable when there is no connection to it; invalid input for a kind of the protocol's
    /// own.
    fn send(&mut self, to: ReplicaId, message: Message) -> Result<()>;

    /// Changes the report on a lost ring in the next greeting.
    fn set_gap(&mut self, gap: Option<Term>);

    /// The next order; nothing when all is done for now.
    fn poll(&mut self, now_ms: u64) -> Option<Action>;

    // ---- facts

    /// The highest term durable here.
    fn term(&self) -> Term;

    /// Whether the current term runs here.
    fn is_joined(&self) -> bool;

    /// Whether the current term runs here, and the log has all that the group had when this replica
    /// was told of the term.
    fn has_caught_up(&self) -> bool;

    /// Whether the group accepts writes, as last announced and not overtaken since.
    fn is_ready(&self) -> bool;

    /// Whether the writer may append, if only the first record of the term. The log of a full
    /// member that has yet to join may still be the one that goes on.
    fn may_append(&self) -> bool;

    /// The sentence for a refused write.
    fn not_ready_reason(&self) -> Option<&str>;

    /// Whether this replica may answer reads.
    fn is_readable(&self) -> bool;

    /// Whether the view waits for members that it keeps, and every full member, this one too, is in
    /// it: no earlier view has a reader any more.
    fn waits_with_all(&self) -> bool {
        false
    }

    /// Whether no other view can be in effect anywhere at the time that was passed last, as every
    /// other full member has promised so. Only then may this member answer from its state alone.
    fn holds_lease(&self) -> bool;

    /// Until when, by the clock of [`Self::pass_lease_time`], this member has promised another that
    /// no newer view takes effect here; 0 where it has promised nothing. The promise binds it
    /// towards views in which the other is no full member: in all others nothing counts before the
    /// other has said Hello, and so has given up the view before.
    fn promised_until_ms(&self, to: ReplicaId) -> u64;

    /// Whether `send` to this member would find a connection.
    fn is_connected(&self, id: ReplicaId) -> bool;

    /// The least that every member has reached, as far as is known here. None of it ever falls.
    fn watermarks(&self) -> &Watermarks;

    /// Every member has the log below this.
    fn commit(&self) -> Frontier {
        self.watermarks().commit
    }

    /// The same as the writer said last, also where the current term does not run here: a member
    /// that is being filled sees by it whether the group writes.
    fn heard_commit(&self) -> Frontier {
        self.commit()
    }

    /// Every member has made the log below this durable.
    fn durable_commit(&self) -> Frontier {
        self.watermarks().durable
    }

    /// Every member has applied this edit.
    fn edits_applied_min(&self) -> u64 {
        self.watermarks().edit
    }

    /// No member needs the log below this: the bound for trimming.
    fn flushed_min(&self) -> Frontier {
        self.watermarks().flushed
    }

    /// How far this replica is.
    fn progress(&self) -> Progress;

    /// The spans of the log, as last adopted.
    fn spans(&self) -> &Spans;

    /// The member that sends this replica its log.
    fn source(&self) -> Option<ReplicaId>;

    /// Whether another member, with its ring intact, has all records up to this term that this one
    /// ever acknowledged.
    fn whole_member(&self, term: Term) -> Whole;

    /// The first ticket that no [`Action::SendLog`] had, for the protocol of the next view.
    fn next_ticket(&self) -> u64;

    /// Every member as last known, in the order of the view.
    fn members(&self) -> Vec<MemberStatus>;
}
