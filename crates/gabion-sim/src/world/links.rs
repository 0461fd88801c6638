//! Links between members: frames in order, late, and broken.

use super::World;
use super::net::Part;
use bytes::Bytes;
use gabion_base::ReplicaId;
use gabion_replication::{Frame, Message};
use std::collections::VecDeque;

/// A connection between two members: frames in both directions.
pub(super) struct Link {
    pub(super) number: u64,
    /// From the lower index to the higher, and back.
    pub(super) queues: [VecDeque<Frame>; 2],
    /// Bytes behind a damaged length that has arrived, in the same order.
    inputs: [Vec<u8>; 2],
    pub(super) incarnations: [u64; 2],
    /// Whether the lower index knows of the connection, and the higher.
    is_told: [bool; 2],
}

/// A connection that one end has left, while the other does not know that yet.
pub(super) struct Ended {
    number: u64,
    /// Bytes that still arrive before the end.
    queue: VecDeque<Frame>,
    input: Vec<u8>,
    /// Whether the end that has to learn of this knows of the connection.
    is_told: bool,
}

/// A frame of the log that was sent to a member.
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

    /// The frames kept until now.
    pub fn take_kept(&mut self) -> Vec<Kept> {
        self.kept.take().unwrap_or_default()
    }

    /// Number of the connection over which a member hears another now, if there is one.
    #[must_use]
    pub fn connection(&self, from: ReplicaId, to: usize) -> Option<u64> {
        let link = self.links.get(&link_key(self.index_of(from)?, to).0)?;
        Some(link.number)
    }

    /// Delivers a frame over the current connection, whatever the frame says of it.
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

    /// Of two members the one with the higher number connects, as in the server, once its own end
    /// of the last connection has ended. The other may be paused: then the connection waits at its
    /// door.
    pub(super) fn connect_links(&mut self) {
        for a in 0..self.machines.len() {
            for b in a + 1..self.machines.len() {
                let up = self.node(a).is_some() && self.node(b).is_some();
                if !up || self.links.contains_key(&(a, b)) || !self.random.once_in(20) {
                    continue;
                }
                let is_stuck = self.is_paused(b) || self.has_ended(b, a);
                if is_stuck || self.is_cut(a, b) || self.is_cut(b, a) {
                    continue;
                }
                if !self.knows(a, b) || !self.knows(b, a) {
                    continue;
                }
                let number = self.next_link;
                self.next_link += 1;
                let waits = self.is_paused(a) || self.has_ended(a, b);
                let link = Link {
                    number,
                    queues: Default::default(),
                    inputs: Default::default(),
                    incarnations: [self.machines[a].starts, self.machines[b].starts],
                    is_told: [!waits, true],
                };
                self.links.insert((a, b), link);
                if !waits {
                    self.tell_connected(a, b, number);
                } else if !self.is_paused(a) && self.net.random.once_in(2) {
                    // The door is checked before the rest of the last connection.
                    let ended = self.ended.entry((a, b)).or_default();
                    ended.iter_mut().for_each(|ended| ended.queue.clear());
                }
                self.tell_connected(b, a, number);
            }
        }
    }

    /// Whether a machine's replica knows another as a member. Without controllers all do.
    fn knows(&self, me: usize, other: usize) -> bool {
        let views = self.node(me).map(|node| node.view().group());
        let has = |id| views.is_some_and(|view| view.place_of(id).is_some());
        self.control.is_none() || (has(self.id_of(me)) && has(self.id_of(other)))
    }

    fn tell_connected(&mut self, me: usize, other: usize, number: u64) {
        let (peer, now_ms) = (self.id_of(other), self.now_ms);
        if let Some(node) = self.node_mut(me) {
            node.handle_connected(peer, number, now_ms);
        }
    }

    fn tell_disconnected(&mut self, me: usize, other: usize, number: u64) {
        let (peer, now_ms) = (self.id_of(other), self.now_ms);
        if let Some(node) = self.node_mut(me) {
            node.handle_disconnected(peer, number, now_ms);
        }
    }

    fn has_ended(&self, me: usize, other: usize) -> bool {
        self.ended.get(&(me, other)).is_some_and(|ended| !ended.is_empty())
    }

    /// A process is gone, and with it the ends that it has not learnt of.
    pub(super) fn forget_ended(&mut self, me: usize) {
        self.ended.retain(|(who, _), _| *who != me);
    }

    pub(super) fn deliver(&mut self, index: usize) {
        if self.is_paused(index) {
            return;
        }
        if std::mem::take(&mut self.machines[index].wakes) && self.net.random.once_in(2) {
            self.tick(index);
        }
        for other in 0..self.machines.len() {
            let count = self.random.below(4);
            for _ in 0..count {
                if !self.may_arrive(other, index) || !self.deliver_next(other, index) {
                    break;
                }
            }
        }
        self.tick(index);
    }

    /// Tells a replica the time by which promises count, as the server does: it reads the clock
    /// behind the bytes that came. Without controllers nobody promises anything: views are made by
    /// hand there, and keep whoever answers reads.
    pub(super) fn pass_lease_time(&mut self, index: usize) {
        if self.control.is_none() {
            return;
        }
        let lease_ms = self.machines[index].clock.ms(self.now_ms);
        if let Some(node) = self.node_mut(index) {
            node.pass_lease_time(lease_ms);
        }
    }

    fn tick(&mut self, index: usize) {
        let now_ms = self.now_ms;
        self.pass_lease_time(index);
        if let Some(node) = self.node_mut(index) {
            node.handle_tick(now_ms);
        }
    }

    /// The next event from another member: an end, a connection, or a frame. Returns whether there
    /// was one.
    fn deliver_next(&mut self, other: usize, index: usize) -> bool {
        let ended = self.ended.get_mut(&(index, other));
        if let Some(ended) = ended.and_then(VecDeque::front_mut) {
            let number = ended.number;
            if !std::mem::replace(&mut ended.is_told, true) {
                self.tell_connected(index, other, number);
            } else if let Some(frame) = ended.queue.pop_front() {
                self.arrive(other, index, number, &frame);
            } else {
                self.ended.entry((index, other)).or_default().pop_front();
                self.tell_disconnected(index, other, number);
            }
            return true;
        }
        let (key, direction) = link_key(other, index);
        let Some(link) = self.links.get_mut(&key) else { return false };
        let number = link.number;
        if !std::mem::replace(&mut link.is_told[1 - direction], true) {
            self.tell_connected(index, other, number);
            return true;
        }
        let Some(frame) = link.queues[direction].pop_front() else { return false };
        self.arrive(other, index, number, &frame);
        true
    }

    fn arrive(&mut self, other: usize, index: usize, number: u64, frame: &Frame) {
        let encoded = frame.encode().expect("a frame within its limits").concat();
        self.trace(&encoded);
        let (flipped, part) = self.flip_on_the_way(other, index, frame, &encoded);
        let input = self.input_of(other, index, number);
        if part.is_some_and(|part| part != Part::Records) || !input.is_empty() {
            input.extend_from_slice(&flipped);
            return self.find_flip(other, index, number);
        }
        let frame = match Frame::decode(&flipped) {
            Ok(frame) => frame,
            Err(error) => {
                let what = format!("a frame whose records alone are damaged is refused: {error}");
                self.violation.get_or_insert(what);
                return;
            }
        };
        if let (Some(kept), Message::Records { .. }) = (&mut self.kept, &frame.message) {
            kept.push(Kept { to: index, frame: frame.clone() });
        }
        let (from, now_ms) = (self.id_of(other), self.now_ms);
        self.pass_lease_time(index);
        if let Some(node) = self.node_mut(index) {
            node.handle_message(from, number, frame, now_ms);
        }
    }

    /// The bytes that a member has of a frame that is not whole. There are some only behind a
    /// damaged length.
    fn input_of(&mut self, other: usize, index: usize, number: u64) -> &mut Vec<u8> {
        let ended = self.ended.get_mut(&(index, other)).and_then(VecDeque::front_mut);
        if let Some(ended) = ended.filter(|ended| ended.number == number) {
            return &mut ended.input;
        }
        let (key, direction) = link_key(other, index);
        &mut self.links.get_mut(&key).expect("a frame came over it").inputs[direction]
    }

    /// Looks for a frame as the server does. The bytes are damaged: no good frame is among them.
    fn find_flip(&mut self, other: usize, index: usize, number: u64) {
        let input = self.input_of(other, index, number);
        let decoded = match Frame::len_of(input) {
            Ok(Some(len)) if len <= input.len() => {
                Frame::decode(&Bytes::copy_from_slice(&input[..len]))
            }
            Ok(_) => return,
            Err(error) => Err(error),
        };
        match decoded {
            Ok(frame) => {
                let what = format!("a frame with a flipped bit is taken for {frame:?}");
                self.violation.get_or_insert(what);
            }
            Err(_) => self.leave(index, other, Some(number)),
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

    /// The connection breaks under both ends. They learn of it at once unless they are paused.
    pub(super) fn break_link(&mut self, a: usize, b: usize) {
        self.end_link(a, b, None);
    }

    /// A member's process ends: the others learn of it as of any end that it leaves.
    pub(super) fn end_links_of(&mut self, index: usize) {
        for other in 0..self.machines.len() {
            self.end_link(index, other, Some(index));
        }
        self.forget_ended(index);
    }

    /// A member leaves a connection: the current one if none is named.
    pub(super) fn leave(&mut self, me: usize, other: usize, connection: Option<u64>) {
        let is_meant = |number: u64| connection.is_none_or(|named| named == number);
        if let Some(all) = self.ended.get_mut(&(me, other))
            && let Some(number) = all.front().filter(|it| it.is_told).map(|it| it.number)
            && is_meant(number)
        {
            all.pop_front();
            return self.tell_disconnected(me, other, number);
        }
        let (key, direction) = link_key(me, other);
        let link = self.links.get(&key);
        if link.is_some_and(|link| link.is_told[direction] && is_meant(link.number)) {
            self.end_link(me, other, Some(me));
        }
    }

    /// Ends a connection that one of its ends leaves, or that breaks. An end that cannot learn of
    /// it now does so later, behind the bytes sent to it before.
    fn end_link(&mut self, a: usize, b: usize, by: Option<usize>) {
        let Some(mut link) = self.links.remove(&link_key(a, b).0) else { return };
        self.trace(b"link");
        let (low, high) = (a.min(b), a.max(b));
        for (me, other, side) in [(low, high, 0), (high, low, 1)] {
            if self.machines[me].starts != link.incarnations[side] {
                continue;
            }
            let is_unheard = by == Some(other) && self.is_cut(other, me);
            if by != Some(me) && (self.is_paused(me) || is_unheard) {
                let mut queue = std::mem::take(&mut link.queues[1 - side]);
                if by.is_none() {
                    let arrived = self.net.random.below(1 + queue.len() as u64);
                    queue.truncate(arrived as usize);
                }
                let input = std::mem::take(&mut link.inputs[1 - side]);
                let (number, is_told) = (link.number, link.is_told[side]);
                let ended = Ended { number, queue, input, is_told };
                self.ended.entry((me, other)).or_default().push_back(ended);
            } else if link.is_told[side] {
                self.tell_disconnected(me, other, link.number);
            }
        }
    }

    /// The replica of a machine.
    #[expect(clippy::unused_self, reason = "the inverse of `index_of`, which needs it")]
    pub(super) const fn id_of(&self, index: usize) -> ReplicaId {
        ReplicaId(index as u32 + 1)
    }

    pub(super) fn index_of(&self, member: ReplicaId) -> Option<usize> {
        let index = (member.get() as usize).checked_sub(1)?;
        (index < self.machines.len()).then_some(index)
    }
}

/// A link's key, and the queue for `from`'s frames.
fn link_key(from: usize, to: usize) -> ((usize, usize), usize) {
    ((from.min(to), from.max(to)), usize::from(from > to))
}
