//! A chain's word on itself and on the others.

use super::{Chain, Phase};
use crate::MemberStatus;
use gabion_base::ReplicaId;

impl Chain {
    /// The primary, where writes go.
    pub(super) fn head(&self) -> ReplicaId {
        self.order[0]
    }

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
