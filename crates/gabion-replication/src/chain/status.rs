//! A chain's word on itself and on the others.

use super::{Announced, Chain, Phase};
use crate::message::Progress;
use crate::{MemberStatus, Role, Spans, Whole};
use gabion_base::{LogPosition, ReplicaId, Term};

impl Chain {
    /// This member's place in the chain.
    #[must_use]
    pub fn role(&self) -> Role {
        match self.index {
            0 => Role::Head,
            i if i + 1 == self.config.members.len() => Role::Tail,
            _ => Role::Middle,
        }
    }

    /// The highest term durable here.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    /// Whether the current term runs here.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.phase == Phase::Joined
    }

    /// Whether the group accepts writes, as last announced and not overtaken since.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.announced == Announced::Ready && self.phase == Phase::Joined
    }

    /// The primary, where writes go.
    #[must_use]
    pub fn head(&self) -> ReplicaId {
        self.config.members[0]
    }

    /// Where reads go; the head itself in a group of one.
    #[must_use]
    pub fn tail(&self) -> ReplicaId {
        self.config.members[self.config.members.len() - 1]
    }

    /// Whether `send` to this member would find a connection.
    #[must_use]
    pub fn is_connected(&self, id: ReplicaId) -> bool {
        let link = self.peer_index(id).and_then(|i| self.peers[i].link.as_ref());
        link.is_some_and(|l| !l.is_closing)
    }

    /// Whether this replica is the tail and may answer reads.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.is_readable
    }

    /// The sentence for a refused write.
    #[must_use]
    pub fn not_ready_reason(&self) -> Option<&str> {
        match &self.announced {
            Announced::NotReady(reason) => Some(reason),
            Announced::Nothing => Some("the replica is starting"),
            Announced::Ready => None,
        }
    }

    /// Every member has the log below this position, as far as is known here. Never falls.
    #[must_use]
    pub fn commit(&self) -> LogPosition {
        self.marks.commit
    }

    /// Every member has made the log below this position durable. Never falls.
    #[must_use]
    pub fn durable_commit(&self) -> LogPosition {
        self.marks.durable
    }

    /// Every member has applied this edit. Never falls.
    #[must_use]
    pub fn edits_applied_min(&self) -> u64 {
        self.marks.edit
    }

    /// No member needs the log below this position: the bound for trimming. Never falls.
    #[must_use]
    pub fn flushed_min(&self) -> LogPosition {
        self.marks.flushed
    }

    /// Where the log that comes to this replica comes from: its predecessor, or at the head the
    /// member whose log it fetches.
    #[must_use]
    pub fn source(&self) -> Option<ReplicaId> {
        match self.phase {
            Phase::Pulling { winner, .. } => Some(winner),
            _ => self.predecessor(),
        }
    }

    /// Whether another member has all the records up to this term that this one ever acknowledged,
    /// and did not lose its ring as well.
    #[must_use]
    pub fn whole_member(&self, term: Term) -> Whole {
        let mut is_known = true;
        for peer in &self.peers {
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

    /// Changes what the next Hello says of a ring that was lost.
    pub fn set_gap(&mut self, gap: Option<Term>) {
        self.gap = gap;
    }

    /// Whether the current term runs here, and the log has all that the group had when it told this
    /// replica of the term.
    #[must_use]
    pub fn has_caught_up(&self) -> bool {
        self.is_joined() && self.read_target.is_none_or(|target| self.progress.end >= target)
    }

    /// How far this replica is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// The spans of the log, as last adopted.
    #[must_use]
    pub fn spans(&self) -> &Spans {
        &self.spans
    }

    /// Every member as last known, in the order of the chain.
    pub fn members(&self) -> impl Iterator<Item = MemberStatus> + '_ {
        self.config.members.iter().map(|&id| self.status_of(id))
    }

    fn status_of(&self, id: ReplicaId) -> MemberStatus {
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
        let end = peer.progress.map_or(0, |p| p.end.get());
        MemberStatus {
            id,
            is_connected: peer.link.is_some(),
            is_joined: peer.link.as_ref().is_some_and(|l| l.joined == Some(self.term)),
            last_heard_ms: peer.last_heard_ms,
            progress: peer.progress,
            lag_bytes: self.progress.end.get().saturating_sub(end),
            refused: peer.link.as_ref().and_then(|l| l.refused.clone()),
        }
    }
}
