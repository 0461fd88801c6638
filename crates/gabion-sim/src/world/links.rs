//! Links between members: frames in order, late, and broken.

use super::World;
use gabion_base::ReplicaId;
use gabion_replication::{Frame, Message};
use std::collections::VecDeque;

/// A connection between two members: frames in both directions.
pub(super) struct Link {
    pub(super) number: u64,
    /// From the lower index to the higher, and back.
    pub(super) queues: [VecDeque<Frame>; 2],
    pub(super) incarnations: [u64; 2],
}

/// A frame of the log that a member was sent.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Index of the receiver.
    pub to: usize,
    /// The frame.
    pub frame: Frame,
}

impl World {
    /// Keeps a copy of each frame with records that is delivered from now on.
    pub fn keep_frames(&mut self) {
        self.kept.get_or_insert_default();
    }

    /// The frames that were kept until now.
    pub fn take_kept(&mut self) -> Vec<Kept> {
        self.kept.take().unwrap_or_default()
    }

    /// Number of the connection over which a member hears another now, if there is one.
    #[must_use]
    pub fn connection(&self, from: ReplicaId, to: usize) -> Option<u64> {
        let link = self.links.get(&link_key(self.index_of(from)?, to).0)?;
        Some(link.number)
    }

    /// Delivers a frame over the connection that is there now, whatever the frame says of it.
    ///
    /// # Panics
    /// When there is no connection, or no replica to deliver to.
    pub fn deliver_now(&mut self, kept: Kept) {
        let Kept { to, frame } = kept;
        let (from, now_ms) = (frame.from, self.now_ms);
        let connection = self.connection(from, to).expect("members are connected at rest");
        let node = self.node_mut(to).expect("replicas are up at rest");
        node.handle_message(from, connection, frame, now_ms);
    }

    pub(super) fn connect_links(&mut self) {
        for a in 0..self.machines.len() {
            for b in a + 1..self.machines.len() {
                let up = self.node(a).is_some() && self.node(b).is_some();
                if !up || self.links.contains_key(&(a, b)) || !self.random.once_in(20) {
                    continue;
                }
                let number = self.next_link;
                self.next_link += 1;
                let incarnations = [self.machines[a].starts, self.machines[b].starts];
                self.links
                    .insert((a, b), Link { number, queues: Default::default(), incarnations });
                for (me, other) in [(a, b), (b, a)] {
                    let (peer, now_ms) = (self.group.members[other], self.now_ms);
                    if let Some(node) = self.node_mut(me) {
                        node.handle_connected(peer, number, now_ms);
                    }
                }
            }
        }
    }

    pub(super) fn deliver(&mut self, index: usize) {
        for other in 0..self.machines.len() {
            let count = self.random.below(4);
            for _ in 0..count {
                let (key, direction) = link_key(other, index);
                let Some(link) = self.links.get_mut(&key) else { break };
                let number = link.number;
                let Some(frame) = link.queues[direction].pop_front() else { break };
                let encoded = frame.encode().expect("a frame within its limits").concat();
                self.trace(&encoded);
                let frame = Frame::decode(&encoded).expect("what was encoded");
                if let (Some(kept), Message::Records { .. }) = (&mut self.kept, &frame.message) {
                    kept.push(Kept { to: index, frame: frame.clone() });
                }
                let (from, now_ms) = (self.group.members[other], self.now_ms);
                if let Some(node) = self.node_mut(index) {
                    node.handle_message(from, number, frame, now_ms);
                }
            }
        }
        let now_ms = self.now_ms;
        if let Some(node) = self.node_mut(index) {
            node.handle_tick(now_ms);
        }
    }

    pub(super) fn send(&mut self, from: usize, frame: Frame) {
        let Some(to) = self.index_of(frame.to) else { return };
        let (key, direction) = link_key(from, to);
        if let Some(link) = self.links.get_mut(&key)
            && link.number == frame.connection
        {
            link.queues[direction].push_back(frame);
        }
    }

    pub(super) fn break_link(&mut self, a: usize, b: usize) {
        let Some(link) = self.links.remove(&link_key(a, b).0) else { return };
        self.trace(b"link");
        let (low, high) = (a.min(b), a.max(b));
        for (me, other, side) in [(low, high, 0), (high, low, 1)] {
            let (peer, now_ms) = (self.group.members[other], self.now_ms);
            if self.machines[me].starts == link.incarnations[side]
                && let Some(node) = self.node_mut(me)
            {
                node.handle_disconnected(peer, link.number, now_ms);
            }
        }
    }

    pub(super) fn index_of(&self, member: ReplicaId) -> Option<usize> {
        self.group.members.iter().position(|other| *other == member)
    }
}

/// A link's key, and the queue that carries what `from` sends.
fn link_key(from: usize, to: usize) -> ((usize, usize), usize) {
    ((from.min(to), from.max(to)), usize::from(from > to))
}
