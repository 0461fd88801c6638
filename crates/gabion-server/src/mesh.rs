//! The other members, as the loop sees them: connections and frames.

use crate::PeerAddress;
use crate::connections::end_when_cut;
use crate::control::is_controller;
use crate::peers::{CONNECT_MAX_MS, Link, Peer, Preamble, Stranger, Tie};
use crate::server::{self, PEERS, STRANGERS, STRANGERS_MAX};
use crate::service::Service;
use crate::spread::NodeDoors;
use crate::stream::Stream;
use crate::trust::check_controller;
use bytes::Bytes;
use gabion_base::{ConfigNumber, Error, ReplicaId, Result, ShardId};
use gabion_replication::{Addresses, Frame, GroupView, Member, Message};
use mio::Interest;
use mio::event::Event;
use mio::net::TcpStream;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;

/// How long somebody may take to say who he is, in ms.
const STRANGER_MAX_MS: u64 = 2_000;
/// Shortest time between two notes on strangers who were refused, in ms.
const STRANGER_NOTE_MS: u64 = 1_000;
/// How long what is sent between a member and a guest may not arrive, in ms. Between members the
/// protocol of the group ends connections.
const GUEST_CUT_MS: u32 = 2_000;
/// Bytes that a member may bring in one turn, before others are heard: it may send long replies as
/// fast as they are read.
const TURN_BYTES_MAX: usize = 8 << 20;

/// Takes the addresses of members from the view that runs. Where it says nothing, that of this
/// process's settings stays.
pub(crate) fn follow_addresses(peers: &mut [Peer], view: &GroupView) {
    for peer in peers {
        let Some(member) = view.members.iter().find(|member| member.replica == peer.id) else {
            continue;
        };
        let Addresses { members, nvme, .. } = &member.addresses;
        for (text, known) in [(members, &mut peer.address), (nvme, &mut peer.target)] {
            match text.parse() {
                Ok(address) => *known = address,
                Err(_) if text.is_empty() => {}
                Err(error) => note!("{}: address {text:?}: {error}", peer.id),
            }
        }
    }
}

/// Addresses of a member, if the view has them.
pub(crate) fn address_of(member: &Member) -> Option<PeerAddress> {
    let Addresses { members, clients, nvme, .. } = &member.addresses;
    let (peer, target) = (members.parse().ok()?, nvme.parse().ok()?);
    let doors: NodeDoors = clients.parse().ok()?;
    Some(PeerAddress { replica: member.replica, peer, target, resp: doors.plain })
}

/// A free place for a stranger. The oldest one's, if all are taken: a member says who it is
/// at once.
fn make_place<T>(strangers: &mut Vec<Option<T>>, since_ms: impl Fn(&T) -> u64) -> usize {
    if let Some(free) = strangers.iter().position(Option::is_none) {
        return free;
    }
    if strangers.len() < STRANGERS_MAX {
        strangers.push(None);
        return strangers.len() - 1;
    }
    let since = |place: &usize| strangers[*place].as_ref().map(&since_ms);
    let oldest = (0..strangers.len()).min_by_key(since).unwrap_or(0);
    strangers[oldest] = None;
    oldest
}

impl Service {
    /// Whether this replica is a member in the view that runs.
    pub(crate) fn is_member(&self) -> bool {
        self.replica.node.borrow().view().is_member()
    }

    /// Whether this replica is none, and knows who is: it has members run its clients' commands.
    pub(crate) fn is_guest(&self) -> bool {
        let node = self.replica.node.borrow();
        !node.view().is_member() && node.view().group().config > ConfigNumber::ZERO
    }

    /// Whether it can run no command of a client, nor have one run.
    pub(crate) fn knows_no_member(&self) -> bool {
        !self.is_member() && !self.is_guest()
    }

    pub(crate) fn peer_place(&self, id: ReplicaId) -> Option<usize> {
        self.peers.iter().position(|peer| peer.id == id)
    }

    // ---- connections

    /// Makes the connections that are ours to make and are due.
    pub(crate) fn tick_peers(&mut self) {
        let (is_here, is_guest) = (self.is_member(), self.is_guest());
        for place in 0..self.peers.len() {
            if self.peers[place].is_stuck(self.now_ms) {
                self.give_up_connecting(place);
            }
            let peer = &self.peers[place];
            let is_ours = is_here && peer.is_ours_to_make || is_guest;
            let is_wanted = peer.is_member && is_ours && peer.link.is_none();
            if is_wanted && peer.retry_at_ms <= self.now_ms {
                self.connect_peer(place);
            }
        }
        for place in 0..self.strangers.len() {
            let since = self.strangers[place].as_ref().map(|stranger| stranger.since_ms);
            if since.is_some_and(|since| self.now_ms - since > STRANGER_MAX_MS) {
                self.strangers[place] = None;
            }
        }
    }

    fn connect_peer(&mut self, place: usize) {
        let result = TcpStream::connect(self.peers[place].address).and_then(|mut stream| {
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.registry.register(
                &mut stream,
                server::token(self.place, PEERS + place),
                interest,
            )?;
            Ok(stream)
        });
        match result {
            Ok(stream) => self.begin_link(place, stream),
            Err(error) => self.fail_connecting(place, &error.to_string()),
        }
    }

    fn begin_link(&mut self, place: usize, socket: TcpStream) {
        let stream = match &self.members_tls {
            None => Stream::Plain(socket),
            Some(tls) => match tls.connect(socket, self.peers[place].id) {
                Ok(stream) => stream,
                Err(error) => return self.fail_connecting(place, &error.to_string()),
            },
        };
        let connection = self.number_connection();
        let tie = if self.is_member() { Tie::Members } else { Tie::ToMember };
        self.peers[place].link = Some(Link::new(stream, tie, connection, false, self.now_ms));
    }

    fn fail_connecting(&mut self, place: usize, why: &str) {
        self.complain(place, &format!("cannot be connected to: {why}"));
        self.peers[place].link = None;
        self.peers[place].back_off(self.now_ms);
    }

    /// Ends an attempt that nobody answers; the next begins after a pause.
    fn give_up_connecting(&mut self, place: usize) {
        let text = format!("cannot be connected to: no answer for {CONNECT_MAX_MS} ms");
        self.complain(place, &text);
        self.drop_link(place);
    }

    fn number_connection(&mut self) -> u64 {
        self.next_connection += 1;
        self.next_connection
    }

    /// Logs what is wrong with a member, once.
    fn complain(&mut self, place: usize, complaint: &str) {
        let peer = &mut self.peers[place];
        if peer.complaint != complaint {
            peer.complaint = complaint.to_owned();
            note!("replica {} ({}): {complaint}", peer.id.get(), peer.address);
        }
    }

    pub(crate) fn wake_peer(&mut self, place: usize, event: &Event) {
        let Some(link) = self.peers.get_mut(place).and_then(|peer| peer.link.as_mut()) else {
            return;
        };
        link.is_read_closed |= event.is_read_closed() || event.is_error();
        if event.is_writable() {
            link.can_write = true;
        }
        // A handshake goes on by what comes, too.
        if !link.is_up && !self.finish_connecting(place) {
            return;
        }
        if event.is_readable() || event.is_read_closed() {
            self.read_peer(place);
        }
    }

    /// Returns whether the connection stands.
    fn finish_connecting(&mut self, place: usize) -> bool {
        let (me, group) = (self.me, self.group);
        let peer = &mut self.peers[place];
        let Some(link) = &mut peer.link else { return false };
        let socket = link.stream.socket();
        let error = match socket.take_error() {
            Ok(None) => socket.peer_addr().err(),
            Ok(error) => error,
            Err(error) => Some(error),
        };
        let error = match error {
            None => match link.stream.handshake() {
                Ok(true) => None,
                Ok(false) => return false,
                Err(error) => Some(error),
            },
            error => error,
        };
        match error {
            None => {
                let _ = link.stream.socket().set_nodelay(true);
                link.is_up = true;
                // Bytes that came with the handshake give no further event.
                link.has_more = !link.is_heard;
                let (connection, is_guest) = (link.connection, link.tie == Tie::ToMember);
                let preamble = Preamble { group, from: me, to: peer.id, is_guest };
                link.queue(Bytes::from(preamble.encode()));
                // No message of the chain comes first from a guest.
                link.has_greeted = is_guest;
                if is_guest {
                    end_when_cut(link.stream.socket(), GUEST_CUT_MS);
                }
                if link.is_heard {
                    peer.made();
                }
                let id = peer.id;
                if !is_guest {
                    let mut node = self.replica.node.borrow_mut();
                    node.handle_connected(id, connection, self.now_ms);
                }
                true
            }
            // Still under way: a spurious event.
            Some(error) if error.kind() == io::ErrorKind::NotConnected => false,
            Some(error) => {
                self.fail_connecting(place, &error.to_string());
                false
            }
        }
    }

    /// Reads on where a member has sent more than it may bring in one turn.
    pub(crate) fn read_peers_on(&mut self) {
        for place in 0..self.peers.len() {
            let link = self.peers[place].link.as_mut();
            if link.is_some_and(|link| std::mem::take(&mut link.has_more)) {
                self.read_peer(place);
            }
        }
    }

    fn read_peer(&mut self, place: usize) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut budget = TURN_BYTES_MAX;
        loop {
            let peer = &mut self.peers[place];
            let Some(link) = peer.link.as_mut().filter(|link| link.is_up) else { break };
            let (id, connection) = (peer.id, link.connection);
            if budget == 0 {
                link.has_more = true;
                break;
            }
            let result = link.read(&mut scratch);
            let has_come = matches!(result, Ok((count, _)) if count > 0);
            if has_come && !std::mem::replace(&mut link.is_heard, true) {
                peer.made();
            }
            if let Ok((count, _)) = &result {
                budget = budget.saturating_sub(*count);
                let traffic = &self.host.traffic;
                traffic.peer_received.set(traffic.peer_received.get() + *count as u64);
                self.pass_lease_time();
            }
            if !self.take_frames(place, id, connection) {
                break;
            }
            match result {
                Ok((_, true)) => {}
                Ok((_, false)) => break,
                Err(error) => {
                    self.disconnect(id, Some(connection), &format!("connection lost: {error}"));
                    break;
                }
            }
        }
        self.scratch = scratch;
    }

    /// Hands whole frames to the node. Returns whether the connection stands.
    fn take_frames(&mut self, place: usize, id: ReplicaId, connection: u64) -> bool {
        loop {
            let link = self.peers[place].link.as_mut();
            let Some(link) = link.filter(|link| link.connection == connection) else {
                return false;
            };
            let tie = link.tie;
            match link.next_frame() {
                Ok(Some(frame)) if tie == Tie::Members => {
                    let mut node = self.replica.node.borrow_mut();
                    node.handle_message(id, connection, frame, self.now_ms);
                }
                Ok(Some(frame)) => {
                    if let Err(error) = self.take_frame_of_guest(id, tie, frame) {
                        self.disconnect(id, Some(connection), &error.to_string());
                        return false;
                    }
                }
                Ok(None) => return true,
                Err(error) => {
                    self.disconnect(id, Some(connection), &error.to_string());
                    return false;
                }
            }
        }
    }

    /// A command of a guest, or a member's reply to one.
    fn take_frame_of_guest(&mut self, id: ReplicaId, tie: Tie, frame: Frame) -> Result<()> {
        let is_expected = match frame.message {
            Message::Forward { .. } => tie == Tie::OfGuest,
            Message::ForwardReply { .. } => tie == Tie::ToMember,
            _ => false,
        };
        let is_ours = frame.group == self.group && frame.from == id && frame.to == self.me;
        // A write that was on its way through another view may have been asked for again since, and
        // been made there.
        let config = self.replica.node.borrow().view().group().config;
        if !is_expected || !is_ours || frame.config != config {
            return Err(Error::invalid(format!(
                "{} for {} from {} to {} of configuration {} came between a member and a guest in \
                 configuration {config}",
                frame.message.kind(),
                frame.group,
                frame.from,
                frame.to,
                frame.config
            )));
        }
        self.take_message(id, frame.message);
        Ok(())
    }

    /// Ends the connection with a member, the current one if none is named.
    pub(crate) fn disconnect(&mut self, id: ReplicaId, connection: Option<u64>, reason: &str) {
        let Some(place) = self.peer_place(id) else { return };
        let link = &self.peers[place].link;
        let is_meant = |link: &Link| connection.is_none_or(|number| number == link.connection);
        if !link.as_ref().is_some_and(is_meant) {
            return;
        }
        self.complain(place, reason);
        self.drop_link(place);
    }

    pub(crate) fn drop_link(&mut self, place: usize) {
        let peer = &mut self.peers[place];
        let Some(mut link) = peer.link.take() else { return };
        peer.back_off(self.now_ms);
        let id = peer.id;
        let _ = self.registry.deregister(link.stream.socket_mut());
        if link.is_up {
            peer.down_since_ms = self.now_ms;
            if link.tie == Tie::Members {
                let mut node = self.replica.node.borrow_mut();
                node.handle_disconnected(id, link.connection, self.now_ms);
            }
        }
        self.lose_forwarded(id, link.connection);
    }

    // ---- those who connect to us

    pub(crate) fn accept_strangers(&mut self) {
        while let Ok((mut stream, _)) = self.peer_door.accept() {
            let place = make_place(&mut self.strangers, |stranger| stranger.since_ms);
            let token = server::token(self.place, STRANGERS + place);
            if self.registry.register(&mut stream, token, Interest::READABLE).is_err() {
                continue;
            }
            let stream = match &self.members_tls {
                None => Ok(Stream::Plain(stream)),
                Some(tls) => tls.accept(stream),
            };
            match stream {
                Ok(stream) => {
                    self.strangers[place] = Some(Stranger::new(stream, self.now_ms));
                    self.hear_stranger(place);
                }
                Err(error) => self.note_stranger(&error),
            }
        }
    }

    /// Says why somebody was refused, now and then: anybody can try as often as he likes.
    fn note_stranger(&mut self, why: &dyn Display) {
        let is_due = |then| self.now_ms - then >= STRANGER_NOTE_MS;
        if self.stranger_noted_ms.is_none_or(is_due) {
            self.stranger_noted_ms = Some(self.now_ms);
            note!("door for members: {why}");
        }
    }

    /// Hears again those who have said who they are while the replica was closed.
    pub(crate) fn hear_strangers(&mut self) {
        (0..self.strangers.len()).for_each(|place| self.hear_stranger(place));
    }

    pub(crate) fn hear_stranger(&mut self, place: usize) {
        let Some(Some(stranger)) = self.strangers.get_mut(place) else { return };
        let preamble = match stranger.read() {
            Ok(None) => return,
            Ok(Some(preamble)) => preamble,
            Err(error) => {
                self.strangers[place] = None;
                self.note_stranger(&error);
                return;
            }
        };
        let is_ours = preamble.group == self.group && preamble.to == self.me;
        let is_controller = is_ours && is_controller(preamble.from);
        // A member waits until the replica is open.
        if !is_controller && !self.is_open() {
            return;
        }
        let Some(stranger) = self.strangers[place].take() else { return };
        if is_ours && let Err(error) = self.check_certificate(&stranger, preamble.from) {
            self.note_stranger(&error);
            return;
        }
        if is_controller {
            return self.welcome_controller(stranger.stream);
        }
        if is_ours && preamble.is_guest {
            return self.welcome_guest(preamble.from, stranger.stream);
        }
        let member = self.peer_place(preamble.from).filter(|_| is_ours);
        let Some(peer) = member.filter(|&peer| !self.peers[peer].is_ours_to_make) else {
            let Preamble { group, from, to, .. } = preamble;
            self.note_stranger(&format!("{from} of {group} connected for {to}: refused"));
            return;
        };
        if !self.peers[peer].is_member {
            // It tries again and again until it knows.
            return self
                .complain(peer, "it connected, and is no member in the view that runs here");
        }
        self.welcome(peer, Tie::Members, stranger.stream);
    }

    /// A replica that is no member will have commands run here.
    fn welcome_guest(&mut self, from: ReplicaId, stream: Stream) {
        // Nobody connects to a guest.
        let nowhere = SocketAddr::from(([0; 4], 0));
        // As a member it would be the one of the two with the lower number that is connected to.
        let unknown = Peer::new(from, nowhere, nowhere, self.me > from, self.now_ms);
        let known = self.peer_place(from);
        let place = known.or_else(|| self.place_for(unknown)).filter(|_| from != self.me);
        let Some(place) = place else {
            return self.note_stranger(&format!("{from} connected as a guest: no place is free"));
        };
        if self.peers[place].is_member || !self.is_member() {
            // It tries again and again until both know the view.
            return self.complain(place, "it connected as a guest, and is none in the view here");
        }
        self.welcome(place, Tie::OfGuest, stream);
    }

    /// Refuses whoever speaks for a replica that another node holds, or falsely as a controller.
    fn check_certificate(&self, stranger: &Stranger, from: ReplicaId) -> Result<()> {
        let Some(tls) = &self.members_tls else { return Ok(()) };
        let found = stranger.stream.identity();
        match is_controller(from) {
            true => check_controller(found.as_ref()),
            false => tls.check_member(found.as_ref(), from, "connects"),
        }
    }

    fn welcome(&mut self, place: usize, tie: Tie, mut stream: Stream) {
        self.drop_link(place);
        let registry = &self.registry;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let token = server::token(self.place, PEERS + place);
        if let Err(error) = registry.reregister(stream.socket_mut(), token, interest) {
            return self.complain(place, &format!("its connection cannot be watched: {error}"));
        }
        let _ = stream.socket().set_nodelay(true);
        let connection = self.number_connection();
        let peer = &mut self.peers[place];
        if tie == Tie::OfGuest {
            end_when_cut(stream.socket(), GUEST_CUT_MS);
        }
        let mut link = Link::new(stream, tie, connection, true, self.now_ms);
        // No message of the chain comes first.
        link.has_greeted = tie == Tie::OfGuest;
        peer.link = Some(link);
        peer.made();
        let id = peer.id;
        if tie == Tie::Members {
            self.replica.node.borrow_mut().handle_connected(id, connection, self.now_ms);
        }
        // What came with the preamble gives no further event.
        self.read_peer(place);
    }

    // ---- frames

    /// Queues a frame of the chain.
    pub(crate) fn send_frame(&mut self, frame: &Frame) {
        let Some(place) = self.peer_place(frame.to) else { return };
        let link = self.peers[place].link.as_mut();
        let is_current = |link: &&mut Link| link.connection == frame.connection;
        let Some(link) = link.filter(is_current) else { return };
        link.has_greeted = true;
        if let Err(error) = link.queue_frame(frame) {
            self.disconnect(frame.to, Some(frame.connection), &error.to_string());
        }
    }

    /// A view runs: members are reached where it says, and those who are none any more are not.
    /// Commands that have not begun do so where it says. Writes that wait are given up, unless the
    /// writer stays: their positions are waited for.
    pub(crate) fn follow_view(&mut self, view: &GroupView) {
        match self.is_member() {
            true => note!("configuration {} runs, {} takes writes", view.config, view.writer()),
            false => note!("configuration {} runs, and leaves this replica out", view.config),
        }
        // A writer that stays one loses nothing that it logged, or else it is opened again.
        if !self.replica.node.borrow().keeps_turns() {
            self.give_up_view();
        }
        if self.is_guest() {
            // Reads that members answer do not wait for what this log alone has.
            let turns = &mut self.replica.turns;
            turns.last_end = turns.last_end.meet(turns.acknowledged_at);
        }
        self.follow_members(view);
        self.begin_waiting_anew();
    }

    /// Reaches the members of a view and nobody else.
    pub(crate) fn follow_members(&mut self, view: &GroupView) {
        let is_here = self.is_member();
        view.members.iter().for_each(|member| self.get_to_know(member));
        follow_addresses(&mut self.peers, view);
        for place in 0..self.peers.len() {
            let (peer, now_ms) = (&mut self.peers[place], self.now_ms);
            let is_member = view.place_of(peer.id).is_some();
            if is_member && !peer.is_member {
                (peer.down_since_ms, peer.retry_at_ms) = (now_ms, now_ms);
            }
            peer.is_member = is_member;
            // A guest connects anew in each view.
            let stays = |link: &Link| link.tie == Tie::Members && is_here && is_member;
            let left = peer.link.as_ref().filter(|link| !stays(link)).map(|link| link.tie);
            if let Some(tie) = left {
                if tie == Tie::Members {
                    self.complain(place, "is no member any more");
                }
                self.drop_link(place);
                self.peers[place].retry_at_ms = now_ms;
            }
        }
        for member in view.others(self.me).filter(|_| is_here) {
            if self.peer_place(member).is_none() {
                note!("replica {}: no address of this member is known", member.get());
            }
        }
    }

    /// A member that came after this process started.
    fn get_to_know(&mut self, member: &Member) {
        let Some(found) = address_of(member) else { return };
        let PeerAddress { replica, peer, target, .. } = found;
        if replica == self.me {
            return;
        }
        // It may have come as a guest before.
        let is_known = self.peer_place(replica).is_some() || {
            let new = Peer::new(replica, peer, target, self.me > replica, self.now_ms);
            self.place_for(new).is_some()
        };
        if is_known && !self.host.peers.iter().any(|peer| peer.replica == replica) {
            self.host.peers.push(found);
        }
    }

    /// Takes a replica that was not known into the list, in the place of one that is no member if
    /// it is full. Returns its place.
    fn place_for(&mut self, new: Peer) -> Option<usize> {
        if self.peers.len() < STRANGERS - PEERS {
            self.peers.push(new);
            return Some(self.peers.len() - 1);
        }
        let place = self.peers.iter().position(|peer| !peer.is_member && peer.link.is_none())?;
        self.host.peers.retain(|peer| peer.replica != self.peers[place].id);
        self.peers[place] = new;
        Some(place)
    }

    /// Queues a message of our own, behind the chain's. Returns false when there is no connection.
    pub(crate) fn send_message(&mut self, to: ReplicaId, message: Message) -> bool {
        let (config, term) = {
            let node = self.replica.node.borrow();
            (node.view().group().config, node.protocol().term())
        };
        let (group, from) = (self.group, self.me);
        let Some(place) = self.peer_place(to) else { return false };
        let link = self.peers[place].link.as_mut();
        let Some(link) = link.filter(|link| link.has_greeted) else { return false };
        let connection = link.connection;
        let shard = ShardId::ZERO;
        let frame = Frame { group, shard, config, term, from, to, connection, message };
        match link.queue_frame(&frame) {
            Ok(()) => true,
            Err(error) => {
                self.disconnect(to, Some(connection), &error.to_string());
                false
            }
        }
    }

    /// Bytes that wait on the connection with a member, replies aside.
    pub(crate) fn backlog(&self, id: ReplicaId) -> usize {
        let link = self.peer_place(id).and_then(|place| self.peers[place].link.as_ref());
        link.map_or(0, Link::backlog)
    }

    /// Sends what is queued for members.
    pub(crate) fn flush_peers(&mut self) {
        for place in 0..self.peers.len() {
            let peer = &mut self.peers[place];
            let Some(link) = &mut peer.link else { continue };
            let (id, connection) = (peer.id, link.connection);
            match link.flush() {
                Ok(count) => {
                    let traffic = &self.host.traffic;
                    traffic.peer_sent.set(traffic.peer_sent.get() + count as u64);
                }
                Err(error) => {
                    self.disconnect(id, Some(connection), &format!("connection lost: {error}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::{GroupId, LogKind};

    fn member(replica: u32, members: &str, nvme: &str) -> Member {
        let addresses = Addresses {
            members: members.to_owned(),
            nvme: nvme.to_owned(),
            ..Addresses::default()
        };
        Member { addresses, ..Member::new(ReplicaId(replica)) }
    }

    /// Also at a start: the view on disk may be newer than the settings.
    #[test]
    fn a_member_is_reached_where_the_view_says_and_else_where_it_was() {
        let known = |port| ([127, 0, 0, 1], port).into();
        let peer = |id| Peer::new(ReplicaId(id), known(1), known(2), true, 0);
        let mut peers = [peer(2), peer(3), peer(9)];
        let members = vec![
            member(1, "", ""),
            member(2, "127.0.0.1:11", ""),
            member(3, "a-name:11", "[::1]:12"),
        ];
        let mut view = GroupView::founding(GroupId(1), &[], LogKind::Shared);
        view.members = members;
        follow_addresses(&mut peers, &view);
        let now = peers.map(|peer| (peer.address, peer.target));
        let elsewhere = ([0, 0, 0, 0, 0, 0, 0, 1], 12).into();
        assert_eq!(now[0], (known(11), known(2)));
        assert_eq!(now[1], (known(1), elsewhere), "a name is told, and not resolved");
        assert_eq!(now[2], (known(1), known(2)), "the view has no such member");
    }

    #[test]
    fn a_member_with_all_its_addresses_is_known_by_the_view_alone() {
        let mut known = member(4, "127.0.0.4:7600", "127.0.0.4:7700");
        assert_eq!(address_of(&known), None, "nobody knows where its clients go");
        known.addresses.clients = "127.0.0.4:6379".to_owned();
        let found = PeerAddress {
            replica: ReplicaId(4),
            peer: ([127, 0, 0, 4], 7600).into(),
            target: ([127, 0, 0, 4], 7700).into(),
            resp: ([127, 0, 0, 4], 6379).into(),
        };
        assert_eq!(address_of(&known), Some(found));
        known.addresses.clients = "127.0.0.4:6379,tls:127.0.0.4:6380".to_owned();
        assert_eq!(address_of(&known), Some(found), "its door with TLS changes nothing");
    }

    #[test]
    fn the_oldest_stranger_makes_way_once_all_places_are_taken() {
        let mut strangers: Vec<Option<u64>> = Vec::new();
        for place in 0..STRANGERS_MAX {
            assert_eq!(make_place(&mut strangers, |since| *since), place);
            strangers[place] = Some(if place == 7 { 1 } else { 100 + place as u64 });
        }
        assert_eq!(make_place(&mut strangers, |since| *since), 7);
        assert_eq!((strangers.len(), strangers[7]), (STRANGERS_MAX, None));
        assert_eq!(make_place(&mut strangers, |since| *since), 7, "it is free now");
        strangers[7] = Some(200);
        assert_eq!(make_place(&mut strangers, |since| *since), 0);
    }
}
