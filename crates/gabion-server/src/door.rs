//! The door for clients: accepting, taking requests in order, giving replies in order.
//!
//! Commands of one connection may overlap, but never so that it shows: a read begins when the
//! positions of all its earlier writes are known, a write when all its earlier reads have been
//! made.

use crate::admin::{self, Question, Scrub};
use crate::client::{AHEAD_MAX_MS, Client, HeldWork, INPUT_MAX, Kind, READ_LEN};
use crate::commands::gather::{Gather, PARTS_IN};
use crate::commands::{Route, Step, Work, errors};
use crate::connections;
use crate::descriptors::are_used_up;
use crate::forward::{Origin, Outcome};
use crate::listen::GroupDoor;
use crate::run::{Begun, Ended, GATED_BYTES_HIGH, Owed};
use crate::server::{self, CLIENTS};
use crate::service::Service;
use crate::spread;
use crate::status;
use crate::stream::{ClientEnd, Stream};
use crate::tls::Tls;
use gabion_resp::{Incoming, Protocol, Reply, Request};
use mio::Interest;
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;

/// Clients that are accepted in one turn, as in Redis, so that others have their turn too.
const ACCEPTS_MAX: usize = 1_000;
/// Shortest time between two notes that clients cannot be accepted, in ms.
const FULL_NOTE_MS: u64 = 60_000;
/// Bytes that a connection may bring in one turn.
const TURN_BYTES_MAX: usize = 512 << 10;
/// Bytes of a request in the middle of a client that has yet to say who it is.
const STRANGER_LEN_MAX: usize = 16 << 10;
/// How long a client that is closed amid its requests is read on after the last reply, in ms.
const LINGER_MS: u64 = 5_000;
/// Shortest time between two notes that somebody spoke HTTP, in ms.
const HTTP_NOTE_MS: u64 = 60_000;
/// Bytes on their way to a member above which commands for it are held back.
const BACKLOG_MAX: usize = 32 << 20;

/// More has come than may wait for its replies to be read.
fn too_far_ahead(client: &Client) -> Reply {
    Reply::error_from(format!(
        "ERR {} bytes of requests wait for the replies before them to be read, over the limit of \
         {INPUT_MAX}: none of them was run",
        client.input.len()
    ))
}

/// Whether a call for the next client failed for that one alone: it is gone, for example.
fn is_of_one_client(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted)
}

/// Through which door a client came.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    Plain,
    Tls,
    /// Of this group alone, where there are several.
    Group,
    /// The same, with TLS.
    GroupTls,
}

impl Door {
    const fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::GroupTls)
    }

    const fn is_of_group(self) -> bool {
        matches!(self, Self::Group | Self::GroupTls)
    }
}

/// The listener of a door.
fn listener_of<'a>(
    door: Door,
    resp: &'a TcpListener,
    tls: Option<&'a Tls>,
    group: Option<&'a GroupDoor>,
) -> &'a TcpListener {
    let tls_group = tls.and_then(|tls| tls.group.as_ref());
    let found = match door {
        Door::Plain => None,
        Door::Tls => tls.map(|tls| &tls.listener),
        Door::Group => group.map(|door| &door.listener),
        Door::GroupTls => tls_group.map(|door| &door.listener),
    };
    found.unwrap_or(resp)
}

/// Tells a client that it is one too many, and closes its connection. What it has sent by then is
/// read, as the system would send a reset otherwise, which may come before the words. One that
/// would have to shake hands first is told nothing.
fn refuse(door: Door, mut stream: TcpStream) {
    if door.is_tls() {
        return;
    }
    let _ = stream.write(b"-ERR max number of clients reached\r\n");
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read(&mut [0; 1024]);
}

/// A client that has sent as much ahead as it may.
pub(crate) struct Ahead {
    token: usize,
    serial: u64,
    /// What it had taken of its replies.
    taken: u64,
    until_ms: u64,
}

impl Service {
    /// Accepts whoever waits at the door.
    pub(crate) fn accept_clients(&mut self) {
        self.accept_at(Door::Plain);
        if self.tls.is_some() {
            self.accept_at(Door::Tls);
        }
        if self.group_door.is_some() {
            self.accept_at(Door::Group);
        }
        if self.tls.as_ref().is_some_and(|tls| tls.group.is_some()) {
            self.accept_at(Door::GroupTls);
        }
    }

    fn listener(&self, door: Door) -> &TcpListener {
        listener_of(door, &self.resp, self.tls.as_ref(), self.group_door.as_ref())
    }

    fn accept_at(&mut self, door: Door) {
        if !self.is_open() {
            return self.door_has_more = true;
        }
        for _ in 0..ACCEPTS_MAX {
            match self.listener(door).accept() {
                Ok((stream, address)) => self.admit(door, stream, address),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_of_one_client(&error) => {}
                Err(error) if are_used_up(&error) => match self.turn_one_away(door, &error) {
                    Some(Ok(())) => {}
                    Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => return,
                    Some(Err(_)) | None => return self.door_is_stuck = true,
                },
                Err(error) => {
                    self.note_full(&error.to_string());
                    return self.door_is_stuck = true;
                }
            }
        }
        self.door_has_more = true;
    }

    /// Tells the next client that there is no descriptor for it, with the one that is kept back for
    /// that.
    fn turn_one_away(&mut self, door: Door, error: &io::Error) -> Option<io::Result<()>> {
        let listener = listener_of(door, &self.resp, self.tls.as_ref(), self.group_door.as_ref());
        let outcome = self.spare.lend(|| listener.accept().map(|(stream, _)| refuse(door, stream)));
        if let Some(Ok(())) = outcome {
            self.count_rejected(&error.to_string());
        }
        outcome
    }

    fn count_rejected(&mut self, why: &str) {
        let traffic = &self.host.traffic;
        traffic.rejected.set(traffic.rejected.get() + 1);
        self.note_full(why);
    }

    /// Says that clients are not accepted; those that try again and again fill no log.
    fn note_full(&mut self, why: &str) {
        if self.full_noted_ms.is_some_and(|then| self.now_ms - then < FULL_NOTE_MS) {
            return;
        }
        self.full_noted_ms = Some(self.now_ms);
        let connected = self.host.seats.taken();
        note!("door for clients: {connected} are connected and no more are accepted: {why}");
    }

    fn admit(&mut self, door: Door, mut socket: TcpStream, address: SocketAddr) {
        let most = self.host.seats.most();
        if self.host.seats.taken() >= most {
            refuse(door, socket);
            return self.count_rejected(&format!("maxclients is {most}"));
        }
        connections::keep_alive(&socket, self.host.door.get().keepalive_s);
        let token = self.free_clients.pop().unwrap_or_else(|| {
            self.clients.push(None);
            self.clients.len() - 1
        });
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self.registry.register(
            &mut socket,
            server::token(self.place, CLIENTS + token),
            interest,
        );
        if let Err(error) = registered {
            note!("door for clients: {error}");
            return self.free_clients.push(token);
        }
        let descriptor = socket.as_raw_fd();
        // A door listens on one address of the machine.
        let (local, stream) = match (door, &self.tls) {
            (Door::Tls, Some(tls)) => (tls.address, tls.begin(socket)),
            (Door::GroupTls, Some(tls)) => {
                let address = tls.group.as_ref().map_or(tls.address, |door| door.address);
                (address, tls.begin(socket))
            }
            (Door::Group, _) => {
                let address = self.group_door.as_ref().map_or(self.host.resp, |door| door.address);
                (address, Some(Stream::Plain(socket)))
            }
            _ => (self.host.resp, Some(Stream::Plain(socket))),
        };
        let Some(stream) = stream else { return self.free_clients.push(token) };
        let session = self.commands.connect(address.to_string(), local.to_string(), &self.host);
        session.set_descriptor(descriptor);
        // Of another group than the first, this is the only door.
        if door.is_of_group() || self.spread().is_some_and(|spread| spread.own() > 0) {
            session.set_of_group();
        }
        // By its number SLOWLOG finds the connection again.
        let serial = session.id();
        let traffic = &self.host.traffic;
        traffic.accepted.set(traffic.accepted.get() + 1);
        if let Some(tls) = self.tls.as_mut().filter(|_| door.is_tls()) {
            session.set_tls();
            tls.expect(self.now_ms, token, serial);
        }
        let mut client = Client::new(ClientEnd::Stream(stream), session, serial, &self.sums);
        client.seat = Some(self.host.seats.take());
        self.clients[token] = Some(Box::new(client));
    }

    pub(crate) fn wake_client(&mut self, token: usize, event: &Event) {
        let Some(Some(client)) = self.clients.get_mut(token) else { return };
        client.is_read_closed |= event.is_read_closed() || event.is_error();
        let can_read = event.is_readable() || client.is_read_closed;
        client.can_read |= can_read;
        if event.is_writable() && !client.can_write {
            client.can_write = true;
            self.list_client(token);
        }
        if can_read {
            self.serve_client(token);
        }
    }

    /// Puts a connection on the list of those to look after in this turn.
    pub(crate) fn list_client(&mut self, token: usize) {
        if let Some(Some(client)) = self.clients.get_mut(token)
            && !client.is_listed
        {
            client.is_listed = true;
            self.listed.push(token);
        }
    }

    /// Takes requests of a connection, as many as may be taken now.
    pub(crate) fn serve_client(&mut self, token: usize) {
        if !self.is_open() {
            return self.eager.push(token);
        }
        let Some(mut client) = self.clients.get_mut(token).and_then(Option::take) else { return };
        let is_alive = self.serve(token, &mut client);
        self.put_back(token, client, is_alive);
    }

    pub(crate) fn put_back(&mut self, token: usize, mut client: Box<Client>, is_alive: bool) {
        if is_alive {
            client.count_input();
            self.clients[token] = Some(client);
            if self.sums.input.get() > self.input_sum_max {
                self.close_largest();
            }
            return;
        }
        if client.groups != 0 {
            self.tell_gone(token, &client);
        }
        if let Some(socket) = client.stream.socket_mut() {
            let _ = self.registry.deregister(socket);
        }
        self.free_clients.push(token);
    }

    /// Returns false when the connection is over.
    fn serve(&mut self, token: usize, client: &mut Client) -> bool {
        if client.within.is_some() {
            self.serve_within(token, client);
            return true;
        }
        let mut budget = TURN_BYTES_MAX;
        loop {
            if !client.is_discarding() && !self.take_requests(token, client) {
                return false;
            }
            if client.is_discarding() {
                return self.discard(token, client);
            }
            if client.input.len() > STRANGER_LEN_MAX && self.commands.is_stranger(&client.session) {
                let reply = Reply::error("ERR Protocol error: unauthenticated bulk length");
                self.close_amid_requests(token, client, reply);
                continue;
            }
            let is_blocked = client.is_blocked();
            if !client.can_read || is_blocked && !client.may_send_ahead() {
                break;
            }
            if budget == 0 {
                self.eager.push(token);
                break;
            }
            match client.read(&mut self.scratch, &mut self.shared_input, is_blocked) {
                Ok(Some(count)) => {
                    client.session.note_activity(self.host.now_us.get());
                    budget = budget.saturating_sub(count);
                    let traffic = &self.host.traffic;
                    traffic.client_received.set(traffic.client_received.get() + count as u64);
                    self.pass_lease_time();
                }
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    // It may still want to hear the answers.
                    client.finish();
                }
                Err(_) => return false,
            }
        }
        client.is_stalled = client.is_blocked();
        if client.is_stalled && client.is_too_far_ahead() {
            self.watch_ahead(token, client);
        }
        client.input.settle(READ_LEN);
        true
    }

    /// Returns false when the connection is over.
    fn take_requests(&mut self, token: usize, client: &mut Client) -> bool {
        self.commands.begin_batch(&self.host);
        while !client.is_blocked() {
            match client.input.next_request() {
                Ok(Some(Incoming::Request(request))) => {
                    if !self.take_request(token, client, request) {
                        return false;
                    }
                }
                Ok(Some(Incoming::TooLarge(large))) => {
                    let step =
                        self.commands.handle_too_large(&mut client.session, &large, &self.host);
                    if !self.take_step(token, client, step) {
                        return false;
                    }
                }
                Ok(None) if client.is_finished => {
                    client.is_closing = true;
                    self.mark(token, client);
                }
                Ok(None) => break,
                Err(error) => {
                    let reply = Reply::error_from(format!("ERR {error}"));
                    self.close_amid_requests(token, client, reply);
                }
            }
        }
        true
    }

    /// Returns false when the connection is over.
    fn take_request(&mut self, token: usize, client: &mut Client, request: Request) -> bool {
        let step = self.commands.handle(&mut client.session, request, &self.host);
        self.take_step(token, client, step)
    }

    /// Returns false when the connection is over.
    fn take_step(&mut self, token: usize, client: &mut Client, step: Step) -> bool {
        let protocol = client.session.protocol();
        match step {
            Step::Reply(reply) => {
                client.push(protocol, reply, 0);
                self.mark(token, client);
            }
            Step::Await(_) if client.groups != 0 => {
                client.push(protocol, spread::CANNOT_WAIT, 0);
                self.mark(token, client);
            }
            Step::Await(wait) => self.begin_wait(token, client, wait),
            Step::Wait(reply) => {
                let reply = self.wait_over_groups(client, reply);
                client.push_wait(protocol, reply);
                self.mark(token, client);
            }
            // What it sends behind QUIT is for nobody, and yet it must come to read its replies.
            Step::Close(reply) if client.can_read || !client.input.is_empty() => {
                self.close_amid_requests(token, client, reply);
            }
            Step::Close(reply) => {
                client.push(protocol, reply, 0);
                client.is_closing = true;
                self.mark(token, client);
            }
            Step::Run(work) => {
                self.offer(token, client, work, protocol);
                if client.session.is_killed() {
                    // An EXEC that killed its own connection is its last command.
                    client.take_no_more();
                    self.mark(token, client);
                }
            }
            Step::Ask(call) => self.ask(token, client, admin::question(call.args())),
            Step::Drop => {
                self.note_http(client);
                return false;
            }
        }
        true
    }

    /// Says that a connection spoke HTTP; a page that tries it again and again fills no log.
    fn note_http(&mut self, client: &Client) {
        if self.http_noted_ms.is_some_and(|then| self.now_ms - then < HTTP_NOTE_MS) {
            return;
        }
        self.http_noted_ms = Some(self.now_ms);
        let from = client.stream.socket().and_then(|socket| socket.peer_addr().ok());
        let from = from.map_or_else(String::new, |address| address.to_string());
        note!(
            "door for clients: {from} sent HTTP, perhaps for a page that means harm; \
             its connection was closed"
        );
    }

    /// Lists a connection that is not in its place at the moment.
    pub(crate) fn mark(&mut self, token: usize, client: &mut Client) {
        if !client.is_listed {
            client.is_listed = true;
            self.listed.push(token);
        }
    }

    /// Begins a command of a connection, or holds it back with all that follow.
    fn offer(&mut self, token: usize, client: &mut Client, work: Work, protocol: Protocol) {
        match self.spread().filter(|_| client.within.is_none()) {
            Some(spread) => self.offer_spread(token, client, work, protocol, spread),
            None => self.offer_here(token, client, work, protocol, None),
        }
    }

    /// The same in this group, where a reply may be made of those of others and its own.
    pub(crate) fn offer_here(
        &mut self,
        token: usize,
        client: &mut Client,
        work: Work,
        protocol: Protocol,
        gather: Option<Gather>,
    ) {
        let is_read = work.route() == Route::Read;
        if !self.may_begin(client, is_read) {
            return self.hold(token, client, HeldWork { work, protocol, gather, group: None });
        }
        if is_read && client.write_turn != 0 {
            client.frontier = client.frontier.join(self.replica.turns.last_end);
            client.write_turn = 0;
        }
        let kind = Kind::of(&work);
        let slot = client.reserve(protocol, kind, work.route() != Route::Write, work.memory());
        let is_part = gather.is_some();
        if let Some(gather) = gather {
            self.hand_to_others(token, client, slot, &work, gather);
        }
        let protocol = if is_part { PARTS_IN } else { protocol };
        let origin = Origin::Client { token, serial: client.serial, slot };
        let item = self.item(origin, work, protocol, client.frontier);
        let (reply, turn) = match self.begin_in_view(item) {
            Begun::Done(reply, turn) => (reply, turn),
            Begun::Refused(reply) => (reply, 0),
            // A write that has just come needs no retry.
            Begun::Forgotten(reply) => {
                client.fill_in_doubt(slot, reply);
                return self.mark(token, client);
            }
            Begun::Later if is_read => return client.reads_out += 1,
            Begun::Later => return client.writes_out += 1,
        };
        client.fill(slot, reply, turn);
        if !is_read {
            client.write_turn = client.write_turn.max(turn);
        }
        self.await_turn(token, client, turn);
    }

    pub(crate) fn hold(&mut self, token: usize, client: &mut Client, held: HeldWork) {
        client.held = Some(held);
        self.held.push(token);
    }

    fn may_begin(&self, client: &Client, is_read: bool) -> bool {
        let place = if is_read { self.reader() } else { self.writer() };
        if place != self.me && self.backlog(place) > BACKLOG_MAX {
            return false;
        }
        if is_read {
            if place != self.me && self.forwarded.is_full() {
                return false;
            }
            // In a group of one, reads see the writes of the same turn.
            let is_known =
                client.write_turn != self.replica.turns.current || self.reader() == self.writer();
            return client.writes_out == 0 && is_known;
        }
        let waiting = self.gated_bytes + self.unsent.writes.bytes() + self.retries.bytes();
        client.reads_out == 0 && waiting <= GATED_BYTES_HIGH
    }

    /// Sees to it that a connection is looked after when a turn is acknowledged.
    fn await_turn(&mut self, token: usize, client: &mut Client, turn: u64) {
        if turn <= self.replica.turns.acknowledged {
            return self.mark(token, client);
        }
        if client.waits_for < turn {
            client.waits_for = turn;
            self.waiting_clients.push_back((turn, token));
        }
    }

    /// Begins what was held back, where that is possible now. Returns how many.
    pub(crate) fn retry_held(&mut self) -> usize {
        let mut count = 0;
        self.awaited = 0;
        for token in std::mem::take(&mut self.held) {
            let Some(mut client) = self.clients.get_mut(token).and_then(Option::take) else {
                continue;
            };
            if let Some(held) = client.held.take() {
                self.commands.begin_batch(&self.host);
                self.offer_held(token, &mut client, held);
            }
            let begun = client.held.is_none();
            if let Some(within) = client.within.as_mut().filter(|_| begun) {
                within.end_hold();
            }
            count += usize::from(begun);
            let is_alive = !begun || self.serve(token, &mut client);
            self.put_back(token, client, is_alive);
        }
        count
    }

    /// The reply to a command of a connection that may be gone.
    pub(crate) fn complete_client(
        &mut self,
        token: usize,
        serial: u64,
        slot: u64,
        is_read: bool,
        ended: Ended,
    ) {
        let Ended { reply, outcome, turn, frontier } = ended;
        let Some(mut client) = self.clients.get_mut(token).and_then(Option::take) else { return };
        if client.serial == serial {
            match outcome {
                Outcome::Made | Outcome::NotMade => client.fill(slot, reply, turn),
                Outcome::Unknown | Outcome::Forgotten => client.fill_in_doubt(slot, reply),
            }
            if is_read {
                client.reads_out -= 1;
            } else {
                client.writes_out -= 1;
                client.write_turn = client.write_turn.max(turn);
            }
            client.frontier = client.frontier.join(frontier);
            self.await_turn(token, &mut client, turn);
        }
        self.clients[token] = Some(client);
    }

    /// Sends what can be sent to the connections on the list, and lets those go on that were
    /// blocked.
    pub(crate) fn flush_clients(&mut self) {
        let mut encoded = std::mem::take(&mut self.encoded);
        for token in std::mem::take(&mut self.listed) {
            let Some(mut client) = self.clients.get_mut(token).and_then(Option::take) else {
                continue;
            };
            client.is_listed = false;
            if client.within.is_some() {
                self.hand_back(&mut client);
                self.clients[token] = Some(client);
                continue;
            }
            let result = client.flush(self.replica.turns.acknowledged, &mut encoded);
            let traffic = &self.host.traffic;
            let count = result.as_ref().copied().unwrap_or(0) as u64;
            traffic.client_sent.set(traffic.client_sent.get() + count);
            if count > 0 {
                client.session.note_activity(self.host.now_us.get());
            }
            let is_done = client.is_closing && client.is_done() && !client.is_lingering();
            let is_over = result.is_err() || is_done && !self.linger(token, &mut client);
            if !is_over {
                if client.has_reply(self.replica.turns.acknowledged) && client.can_write {
                    self.mark(token, &mut client);
                }
                if client.is_stalled && (client.may_send_ahead() || !client.is_blocked()) {
                    client.is_stalled = false;
                    self.eager.push(token);
                }
            }
            self.put_back(token, client, !is_over);
        }
        if encoded.capacity() > 4 << 20 {
            encoded = Vec::new();
        }
        self.encoded = encoded;
    }

    // ---- clients that are closed amid their requests

    /// Ends a connection with a reply behind those to what has begun. What it has sent beyond that
    /// is not run.
    fn close_amid_requests(&mut self, token: usize, client: &mut Client, reply: Reply) {
        client.push(client.session.protocol(), reply, 0);
        client.close_amid_requests();
        self.mark(token, client);
    }

    /// Waits for a client to read replies that is too far ahead with its requests.
    fn watch_ahead(&mut self, token: usize, client: &mut Client) {
        if !std::mem::replace(&mut client.is_ahead, true) {
            let (serial, taken) = (client.serial, client.taken);
            let until_ms = self.now_ms + AHEAD_MAX_MS;
            self.ahead.push_back(Ahead { token, serial, taken, until_ms });
        }
    }

    /// Ends connections that are too far ahead and have not read anything since they were looked at
    /// last.
    pub(crate) fn tick_ahead(&mut self) {
        while self.ahead.front().is_some_and(|ahead| ahead.until_ms <= self.now_ms) {
            let Some(Ahead { token, serial, taken, .. }) = self.ahead.pop_front() else { return };
            let place = self.clients.get_mut(token);
            let is_it = |client: &mut Box<Client>| client.serial == serial;
            let Some(mut client) = place.and_then(|client| client.take_if(is_it)) else { continue };
            client.is_ahead = false;
            if client.is_too_far_ahead() && client.taken == taken {
                let reply = too_far_ahead(&client);
                self.close_amid_requests(token, &mut client, reply);
                self.eager.push(token);
            } else if client.is_too_far_ahead() {
                self.watch_ahead(token, &mut client);
            }
            self.put_back(token, client, true);
        }
    }

    /// Ends the connection of which most requests wait: together they are more than may wait.
    fn close_largest(&mut self) {
        let bytes = |client: &Option<Box<Client>>| client.as_ref().map_or(0, |c| c.input_bytes());
        let largest = self.clients.iter().enumerate().max_by_key(|(_, client)| bytes(client));
        let Some((token, _)) = largest else { return };
        let Some(mut client) = self.clients[token].take() else { return };
        let reply = Reply::error_from(format!(
            "ERR {} bytes of requests wait of all connections, over the limit of {}; most are of \
             this one, {} bytes: none of them was run",
            self.sums.input.get(),
            self.input_sum_max,
            client.input_bytes()
        ));
        self.close_amid_requests(token, &mut client, reply);
        self.eager.push(token);
        self.put_back(token, client, true);
    }

    /// Lets a client read why it is closed before it is. Returns false when it can be closed now.
    fn linger(&mut self, token: usize, client: &mut Client) -> bool {
        if !client.linger() {
            return false;
        }
        self.lingering.push_back((self.now_ms + LINGER_MS, token, client.serial));
        self.eager.push(token);
        true
    }

    /// Throws away what the client sends. Returns false when the connection is over.
    fn discard(&mut self, token: usize, client: &mut Client) -> bool {
        let Some(count) = client.discard(&mut self.scratch, TURN_BYTES_MAX) else { return false };
        let traffic = &self.host.traffic;
        traffic.client_received.set(traffic.client_received.get() + count as u64);
        if client.can_read {
            self.eager.push(token);
        }
        true
    }

    /// Closes those that have been waited for long enough.
    pub(crate) fn tick_lingering(&mut self) {
        while let Some(&(until_ms, token, serial)) = self.lingering.front()
            && until_ms <= self.now_ms
        {
            self.lingering.pop_front();
            let is_it = |client: &mut Box<Client>| client.serial == serial;
            let place = self.clients.get_mut(token);
            if let Some(client) = place.and_then(|client| client.take_if(is_it)) {
                self.put_back(token, client, false);
            }
        }
    }

    // ---- GABION

    fn ask(&mut self, token: usize, client: &mut Client, question: Result<Question, Reply>) {
        let protocol = client.session.protocol();
        let origin = |client: &mut Client| Origin::Client {
            token,
            serial: client.serial,
            slot: client.reserve(protocol, Kind::Other, true, 0),
        };
        let reply = match question {
            Err(error) => error,
            Ok(Question::Status) => admin::reply(&status::status(self)),
            Ok(Question::Files) => admin::reply(&admin::files(&self.replica.node.borrow())),
            Ok(Question::Time) => {
                admin::reply(&admin::time(&self.replica.node.borrow(), &self.clock))
            }
            Ok(Question::AdoptTime) => admin::adopt_time(&self.replica.node.borrow(), &self.clock),
            Ok(Question::Scrub(only)) => {
                let scrub = Scrub::of(&self.replica.node, only.as_ref());
                let store = self.replica.local.clone();
                let owed = Owed::answer(&self.finished, origin(client));
                let presence = client.presence();
                self.replica.executor.spawn(async move {
                    let reply = admin::reply_to(scrub.run(&store, &presence).await);
                    owed.pay(reply, false);
                });
                return;
            }
            Ok(Question::DigestAt(frontier)) => {
                match self.begin_digest_at(frontier, || origin(client)) {
                    Ok(()) => return,
                    Err(error) => errors::from_store(&error),
                }
            }
            Ok(Question::FailOver(wanted)) => {
                match self.begin_fail_over(&wanted, || origin(client)) {
                    Ok(()) => return,
                    Err(error) => error,
                }
            }
            Ok(Question::Backup(ask)) => match self.ask_backup(&ask, || origin(client)) {
                None => return,
                Some(reply) => reply,
            },
            Ok(Question::ChangeUsers(words)) => {
                let asker = client.serial;
                match self.begin_user_change(words, asker, || origin(client)) {
                    Ok(()) => return,
                    Err(error) => error,
                }
            }
            Ok(Question::Digest) => {
                let (view, end) = self.replica.node.borrow_mut().digest_point();
                let tables = self.replica.store.tables().clone();
                let owed = Owed::answer(&self.finished, origin(client));
                self.replica.executor.spawn(async move {
                    let reply = admin::reply_to(admin::digest(view, end, &tables).await);
                    owed.pay(reply, false);
                });
                return;
            }
        };
        client.push(protocol, reply, 0);
        self.mark(token, client);
    }

    /// The answer to a question.
    pub(crate) fn answer(&mut self, origin: &Origin, reply: Reply) {
        if let Origin::Client { token, serial, slot } = origin
            && let Some(Some(client)) = self.clients.get_mut(*token)
            && client.serial == *serial
        {
            client.fill(*slot, reply, 0);
            self.list_client(*token);
        }
    }
}
