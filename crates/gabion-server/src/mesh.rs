//! The other members, as the loop sees them: connections, frames, commands that are forwarded.

use crate::commands::{Route, Transaction, Work};
use crate::forward::{self, Origin};
use crate::peers::{Link, Preamble, Stranger};
use crate::run::{Begun, Item};
use crate::server::{PEERS, STRANGERS, STRANGERS_MAX, Server};
use bytes::{Bytes, BytesMut};
use gabion_base::{LogPosition, ReplicaId, ShardId};
use gabion_replication::{Frame, Message};
use gabion_resp::{Reply, ReplyParser};
use mio::event::Event;
use mio::net::TcpStream;
use mio::{Interest, Token};
use std::io;

/// How long somebody may take to say who he is, in ms.
const STRANGER_MAX_MS: u64 = 2_000;
/// Commands of members that may be in the middle of their parts.
const INCOMING_MAX: usize = 1024;

const READ_LOST: Reply = Reply::error(
    "TRYAGAIN the connection to the tail of the chain was lost: the read was not made",
);
const WRITE_LOST: Reply = Reply::error(
    "UNKNOWN the connection to the head of the chain was lost: the write may have been made or not",
);

/// A command that another member runs for us.
pub(crate) struct Forwarded {
    to: ReplicaId,
    connection: u64,
    origin: Origin,
    is_read: bool,
    /// Of a transaction, where replies that were made here are to be put in.
    transaction: Option<Transaction>,
    reply: Vec<u8>,
}

impl Server {
    fn peer_place(&self, id: ReplicaId) -> Option<usize> {
        self.peers.iter().position(|peer| peer.id == id)
    }

    // ---- connections

    /// Makes the connections that are ours to make and are due.
    pub(crate) fn tick_peers(&mut self) {
        for place in 0..self.peers.len() {
            let peer = &self.peers[place];
            if peer.is_ours_to_make && peer.link.is_none() && peer.retry_at_ms <= self.now_ms {
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
            self.poll.registry().register(&mut stream, Token(PEERS + place), interest)?;
            Ok(stream)
        });
        match result {
            Ok(stream) => {
                let connection = self.number_connection();
                self.peers[place].link = Some(Link::new(stream, connection, false));
            }
            Err(error) => {
                self.complain(place, &format!("cannot be connected to: {error}"));
                self.peers[place].back_off(self.now_ms);
            }
        }
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
            eprintln!("replica {} ({}): {complaint}", peer.id.get(), peer.address);
        }
    }

    pub(crate) fn wake_peer(&mut self, place: usize, event: &Event) {
        let Some(link) = self.peers.get_mut(place).and_then(|peer| peer.link.as_mut()) else {
            return;
        };
        link.is_read_closed |= event.is_read_closed() || event.is_error();
        if event.is_writable() {
            link.can_write = true;
            if !link.is_up && !self.finish_connecting(place) {
                return;
            }
        }
        if event.is_readable() || event.is_read_closed() {
            self.read_peer(place);
        }
    }

    /// Returns whether the connection stands.
    fn finish_connecting(&mut self, place: usize) -> bool {
        let (me, group) = (self.me, self.parts.group);
        let peer = &mut self.peers[place];
        let Some(link) = &mut peer.link else { return false };
        let error = match link.stream.take_error() {
            Ok(None) => link.stream.peer_addr().err(),
            Ok(error) => error,
            Err(error) => Some(error),
        };
        match error {
            None => {
                let _ = link.stream.set_nodelay(true);
                link.is_up = true;
                let connection = link.connection;
                link.queue(Bytes::from(Preamble { group, from: me, to: peer.id }.encode()));
                peer.made();
                let id = peer.id;
                self.node.borrow_mut().handle_connected(id, connection, self.now_ms);
                true
            }
            // Still under way: a spurious event.
            Some(error) if error.kind() == io::ErrorKind::NotConnected => false,
            Some(error) => {
                self.complain(place, &format!("cannot be connected to: {error}"));
                self.peers[place].link = None;
                self.peers[place].back_off(self.now_ms);
                false
            }
        }
    }

    fn read_peer(&mut self, place: usize) {
        let mut scratch = std::mem::take(&mut self.scratch);
        loop {
            let peer = &mut self.peers[place];
            let Some(link) = peer.link.as_mut().filter(|link| link.is_up) else { break };
            let (id, connection) = (peer.id, link.connection);
            let result = link.read(&mut scratch);
            if let Ok((count, _)) = &result {
                let traffic = &self.host.traffic;
                traffic.peer_received.set(traffic.peer_received.get() + *count as u64);
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
            match link.next_frame() {
                Ok(Some(frame)) => {
                    let mut node = self.node.borrow_mut();
                    node.handle_message(id, connection, frame, self.now_ms);
                }
                Ok(None) => return true,
                Err(error) => {
                    self.disconnect(id, Some(connection), &error.to_string());
                    return false;
                }
            }
        }
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

    fn drop_link(&mut self, place: usize) {
        let peer = &mut self.peers[place];
        let Some(mut link) = peer.link.take() else { return };
        peer.back_off(self.now_ms);
        let id = peer.id;
        let _ = self.poll.registry().deregister(&mut link.stream);
        if link.is_up {
            self.node.borrow_mut().handle_disconnected(id, link.connection, self.now_ms);
        }
        self.incoming.retain(|(from, _), _| *from != id);
        let lost: Vec<u64> = self
            .forwarded
            .iter()
            .filter(|(_, f)| f.to == id && f.connection == link.connection)
            .map(|(number, _)| *number)
            .collect();
        for number in lost {
            self.lost.extend(self.forwarded.remove(&number));
        }
    }

    /// Answers commands whose connection to the member that was to run them is gone.
    pub(crate) fn answer_lost(&mut self) {
        for forwarded in std::mem::take(&mut self.lost) {
            let reply = if forwarded.is_read { READ_LOST } else { WRITE_LOST };
            self.end_forwarded(&forwarded, reply, None);
        }
    }

    // ---- those who connect to us

    pub(crate) fn accept_strangers(&mut self) {
        while let Ok((mut stream, _)) = self.peer_door.accept() {
            let free = self.strangers.iter().position(Option::is_none);
            let Some(place) = free.or_else(|| {
                (self.strangers.len() < STRANGERS_MAX).then(|| {
                    self.strangers.push(None);
                    self.strangers.len() - 1
                })
            }) else {
                continue;
            };
            let token = Token(STRANGERS + place);
            if self.poll.registry().register(&mut stream, token, Interest::READABLE).is_ok() {
                self.strangers[place] = Some(Stranger::new(stream, self.now_ms));
                self.hear_stranger(place);
            }
        }
    }

    pub(crate) fn hear_stranger(&mut self, place: usize) {
        let Some(Some(stranger)) = self.strangers.get_mut(place) else { return };
        let preamble = match stranger.read() {
            Ok(None) => return,
            Ok(Some(preamble)) => preamble,
            Err(error) => {
                eprintln!("door for members: {error}");
                self.strangers[place] = None;
                return;
            }
        };
        let Some(stranger) = self.strangers[place].take() else { return };
        let is_ours = preamble.group == self.parts.group && preamble.to == self.me;
        let member = self.peer_place(preamble.from).filter(|_| is_ours);
        let Some(peer) = member.filter(|&peer| !self.peers[peer].is_ours_to_make) else {
            let Preamble { group, from, to } = preamble;
            eprintln!("door for members: {from} of {group} connected for {to}: refused");
            return;
        };
        self.welcome(peer, stranger.stream);
    }

    fn welcome(&mut self, place: usize, mut stream: TcpStream) {
        self.drop_link(place);
        let registry = self.poll.registry();
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = registry.reregister(&mut stream, Token(PEERS + place), interest) {
            return self.complain(place, &format!("its connection cannot be watched: {error}"));
        }
        let _ = stream.set_nodelay(true);
        let connection = self.number_connection();
        let peer = &mut self.peers[place];
        peer.link = Some(Link::new(stream, connection, true));
        peer.made();
        let id = peer.id;
        self.node.borrow_mut().handle_connected(id, connection, self.now_ms);
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

    /// Queues a message of our own, behind the chain's. Returns false when there is no connection.
    fn send_message(&mut self, to: ReplicaId, message: Message) -> bool {
        let (config, term) = {
            let node = self.node.borrow();
            (node.config().config, node.chain().term())
        };
        let (group, from) = (self.parts.group, self.me);
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

    /// Bytes that wait on the connection with a member.
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

    // ---- forwarded commands

    /// Has another member run a command.
    pub(crate) fn forward(&mut self, to: ReplicaId, item: Item) -> Begun {
        let is_read = item.work.route() == Route::Read;
        let link = self.peer_place(to).and_then(|place| self.peers[place].link.as_ref());
        let Some(connection) = link.filter(|l| l.has_greeted).map(|link| link.connection) else {
            return Begun::Done(unreachable_member(to, is_read), 0);
        };
        let body = forward::encode(&item.work, item.protocol, item.position);
        if body.len() > forward::COMMAND_LEN_MAX {
            return Begun::Done(
                Reply::error_from(format!(
                    "ERR the command takes {} bytes, the limit between members is {}",
                    body.len(),
                    forward::COMMAND_LEN_MAX
                )),
                0,
            );
        }
        let number = self.next_forward;
        self.next_forward += 1;
        for bytes in forward::parts(&body) {
            if !self.send_message(to, Message::Forward { id: number, bytes }) {
                return Begun::Done(unreachable_member(to, is_read), 0);
            }
        }
        let transaction = match item.work {
            Work::Transaction(transaction) => Some(transaction),
            Work::Call(_) => None,
        };
        let (origin, reply) = (item.origin, Vec::new());
        let forwarded = Forwarded { to, connection, origin, is_read, transaction, reply };
        self.forwarded.insert(number, forwarded);
        Begun::Later
    }

    /// A message from a member that the chain only carried.
    pub(crate) fn take_message(&mut self, from: ReplicaId, message: Message) {
        let result = match message {
            Message::Forward { id, bytes } => self.take_forward(from, id, &bytes),
            Message::ForwardReply { id, position, bytes } => {
                self.take_forward_reply(id, position, &bytes)
            }
            _ => Ok(()),
        };
        if let Err(error) = result {
            self.disconnect(from, None, &error.to_string());
        }
    }

    fn take_forward(&mut self, from: ReplicaId, id: u64, part: &Bytes) -> gabion_base::Result<()> {
        let link = self.peer_place(from).and_then(|place| self.peers[place].link.as_ref());
        let Some(connection) = link.map(|link| link.connection) else { return Ok(()) };
        if self.incoming.len() > INCOMING_MAX {
            return Err(gabion_base::Error::limit(
                "too many commands in the middle of their parts",
            ));
        }
        let mut joined = self.incoming.remove(&(from, id)).unwrap_or_default();
        let Some(body) = forward::join(&mut joined, part, forward::COMMAND_LEN_MAX)? else {
            self.incoming.insert((from, id), joined);
            return Ok(());
        };
        let command = forward::decode(&body)?;
        let origin = Origin::Peer { replica: from, connection, id };
        let is_read = command.work.route() == Route::Read;
        let place = if is_read { self.tail } else { self.head };
        let protocol = command.protocol;
        let item = self.item(origin.clone(), command.work, protocol, command.position);
        let begun = if place == self.me {
            self.begin(item)
        } else {
            Begun::Done(Reply::error("TRYAGAIN the member that was asked does not run this"), 0)
        };
        if let Begun::Done(reply, turn) = begun {
            self.complete(&origin, protocol, is_read, reply, turn);
        }
        Ok(())
    }

    /// Sends a reply to the member that asked, if the connection is the one on which it did.
    pub(crate) fn send_reply(&mut self, origin: &Origin, position: LogPosition, reply: &[u8]) {
        let Origin::Peer { replica, connection, id } = origin else { return };
        let link = self.peer_place(*replica).and_then(|place| self.peers[place].link.as_ref());
        if link.is_none_or(|link| link.connection != *connection) {
            return;
        }
        for bytes in forward::parts(reply) {
            self.send_message(*replica, Message::ForwardReply { id: *id, position, bytes });
        }
    }

    fn take_forward_reply(
        &mut self,
        id: u64,
        position: LogPosition,
        part: &Bytes,
    ) -> gabion_base::Result<()> {
        // Of an earlier connection, perhaps: nobody waits for it any more.
        let Some(forwarded) = self.forwarded.get_mut(&id) else { return Ok(()) };
        let joined = &mut forwarded.reply;
        let Some(reply) = forward::join(joined, part, forward::REPLY_LEN_MAX)? else {
            return Ok(());
        };
        let Some(forwarded) = self.forwarded.remove(&id) else { return Ok(()) };
        let reply = match &forwarded.transaction {
            Some(transaction) => merge(transaction, &reply)?,
            None => Reply::Encoded(reply),
        };
        self.end_forwarded(&forwarded, reply, Some(position));
        Ok(())
    }

    fn end_forwarded(
        &mut self,
        forwarded: &Forwarded,
        reply: Reply,
        position: Option<LogPosition>,
    ) {
        if let Origin::Client { token, serial, slot } = forwarded.origin {
            let is_read = forwarded.is_read;
            self.complete_client(token, serial, slot, is_read, reply, 0, position);
        }
    }
}

/// Puts the replies that were made here among those of the head.
fn merge(transaction: &Transaction, reply: &Bytes) -> gabion_base::Result<Reply> {
    let mut buffer = BytesMut::from(&reply[..]);
    let parsed = ReplyParser::new().parse(&mut buffer)?;
    Ok(match parsed {
        Some(Reply::Array(replies)) if replies.len() == transaction.calls().len() => {
            transaction.merge(replies)
        }
        Some(_) => Reply::Encoded(reply.clone()),
        None => return Err(gabion_base::Error::corruption("the reply to a transaction is cut")),
    })
}

fn unreachable_member(to: ReplicaId, is_read: bool) -> Reply {
    let place = if is_read { "tail" } else { "head" };
    Reply::error_from(format!(
        "TRYAGAIN the {place} of the chain, replica {}, is not connected: the command was not run",
        to.get()
    ))
}
