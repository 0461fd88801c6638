//! Commands that another member runs: writes go to the head, reads to the tail.
//!
//! ```text
//!   client ─► forward ──(Forward)──► the member ──(ForwardReply)──► client
//!               │  ▲
//!               ▼  │ a connection with the member is made, or another view runs
//!             unsent ◄── reads whose connection was lost
//! ```
//!
//! A command that finds no connection with the member waits for the next one, for as long as a
//! group that recovers takes. So does a read whose connection is lost: it changes nothing and may
//! be made again. A write may have been made when its connection is lost: it is asked for again
//! ([`crate::retries`]).

use crate::commands::{Call, Transaction, Work};
use crate::forward::{self, Origin, Outcome};
use crate::peers::{Peer, Reads};
use crate::replies::FORWARDED_MAX;
use crate::retries::{KEPT_MAX, WRITE_LOST};
use crate::run::{Begun, Ended, Item, NOT_HERE, WAIT_MAX_MS, Waiting};
use crate::service::Service;
use bytes::{Bytes, BytesMut};
use gabion_base::{Error, ErrorKind, Frontier, ReplicaId, Result};
use gabion_replication::Message;
use gabion_resp::{Args, Protocol, Reply, ReplyParser, Request};
use std::collections::BTreeMap;

/// Commands of members that may be in the middle of their parts.
const INCOMING_MAX: usize = 1024;

/// A command that another member runs for us.
pub(crate) struct Forwarded {
    to: ReplicaId,
    connection: u64,
    command: Kept,
    reply: Vec<u8>,
}

/// What is kept of a command until its reply comes.
enum Kept {
    /// All of it, to make it again.
    Read(Item),
    /// All of it, to ask for it again.
    Write(Item),
    /// Too much is kept: only the asker of a write, and the replies of a transaction that were
    /// made here.
    Rest(Origin, Option<Transaction>),
}

/// Commands that other members run for us, by our numbers for them.
#[derive(Default)]
pub(crate) struct ForwardedList {
    all: BTreeMap<u64, Forwarded>,
    /// Bytes of the reads among them, and of writes that are kept.
    read_bytes: usize,
    write_bytes: usize,
    /// Writes by the member that is to run them.
    writes: BTreeMap<ReplicaId, usize>,
}

impl ForwardedList {
    fn insert(&mut self, number: u64, forwarded: Forwarded) {
        self.read_bytes += forwarded.command.read_bytes();
        self.write_bytes += forwarded.command.write_bytes();
        if forwarded.command.is_write() {
            *self.writes.entry(forwarded.to).or_default() += 1;
        }
        self.all.insert(number, forwarded);
    }

    fn remove(&mut self, number: u64) -> Option<Forwarded> {
        let forwarded = self.all.remove(&number)?;
        self.count_out(&forwarded);
        Some(forwarded)
    }

    fn count_out(&mut self, forwarded: &Forwarded) {
        self.read_bytes -= forwarded.command.read_bytes();
        self.write_bytes -= forwarded.command.write_bytes();
        if forwarded.command.is_write()
            && let Some(count) = self.writes.get_mut(&forwarded.to)
        {
            *count -= 1;
        }
    }

    /// Whether writes are on their way to another member than the one that takes them.
    #[inline]
    pub(crate) fn has_writes_beside(&self, writer: ReplicaId) -> bool {
        self.writes.iter().any(|(to, count)| *to != writer && *count > 0)
    }

    /// Takes off those of a connection.
    fn lose(&mut self, to: ReplicaId, connection: u64) -> Vec<Forwarded> {
        let is_lost = |it: &Forwarded| it.to == to && it.connection == connection;
        let all = std::mem::take(&mut self.all);
        let (lost, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, it)| is_lost(it));
        self.all = kept.into_iter().collect();
        let lost: Vec<_> = lost.into_iter().map(|(_, forwarded)| forwarded).collect();
        lost.iter().for_each(|forwarded| self.count_out(forwarded));
        lost
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether as many reads are on their way as a member takes at a time.
    pub(crate) const fn is_full(&self) -> bool {
        self.read_bytes >= FORWARDED_MAX
    }
}

impl Kept {
    const fn is_write(&self) -> bool {
        matches!(self, Self::Write(_) | Self::Rest(..))
    }

    /// Bytes of a read; none of a write.
    fn read_bytes(&self) -> usize {
        match self {
            Self::Read(item) => item.footprint(),
            Self::Write(_) | Self::Rest(..) => 0,
        }
    }

    /// Bytes of a write that is kept.
    fn write_bytes(&self) -> usize {
        match self {
            Self::Write(item) => item.footprint(),
            Self::Read(_) | Self::Rest(..) => 0,
        }
    }

    /// With room for so many bytes of writes.
    fn of(item: Item, room: usize) -> Self {
        if item.is_read() {
            return Self::Read(item);
        }
        if item.footprint() <= room {
            return Self::Write(item);
        }
        Self::Rest(
            item.origin,
            match item.work {
                // One without such replies needs nothing put in.
                Work::Transaction(transaction) => {
                    Some(transaction).filter(|transaction| !transaction.ready.is_empty())
                }
                Work::Call(_) | Work::Watch(_) => None,
            },
        )
    }
}

/// Commands that wait for a connection with the member that is to run them.
#[derive(Default)]
pub(crate) struct Unsent {
    pub(crate) reads: Waiting,
    /// In the order in which they came, which they keep.
    pub(crate) writes: Waiting,
}

impl Unsent {
    pub(crate) fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    fn push(&mut self, item: Item) -> Begun {
        if item.is_read() { self.reads.push(item) } else { self.writes.push(item) }
    }

    /// All of them; those that are to go on waiting are pushed again.
    pub(crate) fn take(&mut self) -> Vec<Item> {
        let mut items = self.reads.take();
        items.append(&mut self.writes.take());
        items
    }
}

impl Service {
    /// Has another member run a command.
    pub(crate) fn forward(&mut self, to: ReplicaId, item: Item) -> Begun {
        // Behind the writes before it.
        if !item.is_read() && !item.is_again && !self.unsent.writes.is_empty() {
            return self.await_connection(to, item);
        }
        let link = self.peer(to).and_then(Peer::greeted);
        let Some(connection) = link.map(|link| link.connection) else {
            return self.await_connection(to, item);
        };
        let (frontier, is_again) = (item.frontier, item.is_again);
        let body = forward::encode(&item.work, item.protocol, frontier, item.id, is_again);
        if body.len() > forward::COMMAND_LEN_MAX {
            return Begun::Refused(Reply::error_from(format!(
                "ERR the command takes {} bytes, the limit between members is {}",
                body.len(),
                forward::COMMAND_LEN_MAX
            )));
        }
        let number = self.next_forward;
        self.next_forward += 1;
        for bytes in forward::parts(&body) {
            if !self.send_message(to, Message::Forward { id: number, bytes }) {
                return self.await_connection(to, item);
            }
        }
        let room = KEPT_MAX.saturating_sub(self.forwarded.write_bytes + self.retries.bytes());
        let (command, reply) = (Kept::of(item, room), Vec::new());
        self.forwarded.insert(number, Forwarded { to, connection, command, reply });
        Begun::Later
    }

    // ---- commands that wait for a connection

    /// A command waits for a connection that is likely to come soon; otherwise it is refused. A
    /// write that may have been made is asked for later.
    fn await_connection(&mut self, to: ReplicaId, item: Item) -> Begun {
        if item.is_again {
            self.ask_again(item);
            return Begun::Later;
        }
        if self.is_hopeless(to, &item) {
            return Begun::Refused(unreachable_member(to, item.is_read()));
        }
        self.unsent.push(item)
    }

    /// Whether a command is not to wait for this member any longer.
    fn is_hopeless(&self, to: ReplicaId, item: &Item) -> bool {
        let Some(peer) = self.peer(to) else { return true };
        let waited_ms = |since_ms: u64| self.now_ms.saturating_sub(since_ms);
        peer.greeted().is_none() && waited_ms(item.since_ms.min(peer.down_since_ms)) > WAIT_MAX_MS
    }

    /// The member that is to run a command.
    fn runner_of(&self, item: &Item) -> ReplicaId {
        if item.is_read() { self.reader() } else { self.writer() }
    }

    /// Begins commands that waited for a connection that is there now. Returns how many.
    pub(crate) fn retry_unsent(&mut self) -> usize {
        let mut count = 0;
        for is_read in [true, false] {
            let to = if is_read { self.reader() } else { self.writer() };
            let is_elsewhere = !self.knows_no_member() && to != self.me;
            if is_elsewhere && self.peer(to).and_then(Peer::greeted).is_none() {
                continue;
            }
            let waiting = if is_read { &mut self.unsent.reads } else { &mut self.unsent.writes };
            for item in waiting.take() {
                count += 1;
                let (origin, protocol) = (item.origin.clone(), item.protocol);
                let begun = self.begin_in_view(item);
                self.complete(&origin, protocol, is_read, begun);
            }
        }
        count
    }

    /// Ends commands that have waited too long for a connection.
    pub(crate) fn tick_unsent(&mut self) {
        for item in self.unsent.take() {
            let (to, is_read) = (self.runner_of(&item), item.is_read());
            if to != self.me && self.is_hopeless(to, &item) {
                let reply = unreachable_member(to, is_read);
                self.complete(&item.origin, item.protocol, is_read, Begun::Refused(reply));
            } else {
                // There was room for it before.
                let _ = self.unsent.push(item);
            }
        }
    }

    // ---- whether commands that come here can be run

    /// Asks the tail for a read that nobody wants, once per connection, to know that it answers.
    pub(crate) fn probe_tail(&mut self) {
        let reads = self.peer(self.reader()).and_then(Peer::greeted).map(|link| link.reads);
        if reads != Some(Reads::NotAsked) {
            return;
        }
        let args: Args = [Bytes::from_static(b"EXISTS"), Bytes::new()].into_iter().collect();
        let Ok(call) = Call::new(Request { args }) else { return };
        self.commands.begin_batch(&self.host);
        let item = self.item(Origin::Probe, Work::Call(call), Protocol::Resp2, Frontier::ZERO);
        self.note_reads(Reads::Asked);
        let _ = self.forward(self.reader(), item);
    }

    fn note_reads(&mut self, reads: Reads) {
        let Some(place) = self.peer_place(self.reader()) else { return };
        if let Some(link) = &mut self.peers[place].link {
            link.reads = reads;
        }
    }

    /// Why commands that come here would not reach who runs them, if anything is in the way. A view
    /// is known.
    pub(crate) fn obstacle_to_forwarding(&self) -> Option<String> {
        let unconnected = |to: ReplicaId, place: &str| {
            let why = self.peers.iter().find(|peer| peer.id == to).map(|peer| &peer.complaint);
            let why = why.filter(|why| !why.is_empty());
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            Some(format!("the {place} of the chain, replica {}, is not connected{why}", to.get()))
        };
        if self.writer() != self.me && self.peer(self.writer()).and_then(Peer::greeted).is_none() {
            return unconnected(self.writer(), "head");
        }
        if self.reader() == self.me {
            return self.why_unreadable().map(str::to_owned);
        }
        match self.peer(self.reader()).and_then(Peer::greeted) {
            None => unconnected(self.reader(), "tail"),
            Some(link) if link.reads != Reads::Answered => Some(format!(
                "replica {}, the tail, has not answered a read yet",
                self.reader().get()
            )),
            Some(_) => None,
        }
    }

    fn peer(&self, id: ReplicaId) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.id == id)
    }

    // ---- commands that members forward to us

    /// A message from a member that the chain only carried.
    pub(crate) fn take_message(&mut self, from: ReplicaId, message: Message) {
        let result = match message {
            Message::Forward { id, bytes } => self.take_forward(from, id, &bytes),
            Message::ForwardReply { id, frontier, bytes } => {
                self.take_forward_reply(id, frontier, &bytes)
            }
            _ => Ok(()),
        };
        if let Err(error) = result {
            self.disconnect(from, None, &error.to_string());
        }
    }

    fn take_forward(&mut self, from: ReplicaId, id: u64, part: &Bytes) -> Result<()> {
        let link = self.peer(from).and_then(|peer| peer.link.as_ref());
        let Some(connection) = link.map(|link| link.connection) else { return Ok(()) };
        if self.incoming.len() > INCOMING_MAX {
            return Err(Error::limit("too many commands in the middle of their parts"));
        }
        let mut joined = self.incoming.remove(&(from, id)).unwrap_or_default();
        let Some(body) = forward::join(&mut joined, part, forward::COMMAND_LEN_MAX)? else {
            self.incoming.insert((from, id), joined);
            return Ok(());
        };
        let command = forward::decode(&body)?;
        let origin = Origin::Peer { replica: from, connection, id };
        let protocol = command.protocol;
        self.commands.begin_batch(&self.host);
        let item = self.item(origin.clone(), command.work, protocol, command.frontier);
        let item = Item { id: command.id, is_again: command.is_again, ..item };
        let is_read = item.is_read();
        let place = if is_read { self.reader() } else { self.writer() };
        let begun = match place == self.me && self.is_member() {
            true => self.begin(item),
            false => Begun::Refused(NOT_HERE),
        };
        self.complete(&origin, protocol, is_read, begun);
        Ok(())
    }

    /// Sends a reply to the member that asked, if the connection is the one on which it did.
    pub(crate) fn send_reply(&mut self, origin: &Origin, frontier: Frontier, reply: &[u8]) {
        let Origin::Peer { replica, connection, id } = origin else { return };
        let link = self.peer(*replica).and_then(|peer| peer.link.as_ref());
        if link.is_none_or(|link| link.connection != *connection) {
            return;
        }
        for bytes in forward::parts(reply) {
            self.send_message(*replica, Message::ForwardReply { id: *id, frontier, bytes });
        }
    }

    // ---- replies to what we forwarded

    fn take_forward_reply(&mut self, id: u64, frontier: Frontier, part: &Bytes) -> Result<()> {
        let Some((command, outcome, reply)) = join_reply(&mut self.forwarded, id, part)? else {
            return Ok(());
        };
        if let Kept::Read(Item { origin: Origin::Probe, .. }) = &command {
            let is_answer = !reply.starts_with(b"-");
            self.note_reads(if is_answer { Reads::Answered } else { Reads::NotAsked });
        }
        self.end_forwarded(command, outcome, reply, frontier);
        Ok(())
    }

    fn end_forwarded(&mut self, command: Kept, outcome: Outcome, reply: Bytes, frontier: Frontier) {
        let (origin, is_read, (outcome, reply)) = match command {
            Kept::Read(item) => (item.origin, true, (outcome, Reply::Encoded(reply))),
            Kept::Write(item) if outcome == Outcome::Unknown => return self.ask_later(item),
            // This head has not made it, and does not say whether another one has.
            Kept::Write(item) if outcome == Outcome::NotMade && item.is_again => {
                return self.ask_later(item);
            }
            Kept::Write(Item { origin, work: Work::Transaction(transaction), .. })
                if !transaction.ready.is_empty() =>
            {
                (origin, false, reply_to_write(Some(&transaction), outcome, reply))
            }
            Kept::Write(item) => (item.origin, false, reply_to_write(None, outcome, reply)),
            Kept::Rest(origin, transaction) => {
                (origin, false, reply_to_write(transaction.as_ref(), outcome, reply))
            }
        };
        if let Origin::Client { token, serial, slot } = origin {
            let ended = Ended { reply, outcome, turn: 0, frontier };
            self.complete_client(token, serial, slot, is_read, ended);
        }
    }

    /// A connection is gone, and with it the commands on their way on it, in both directions.
    pub(crate) fn lose_forwarded(&mut self, id: ReplicaId, connection: u64) {
        self.incoming.retain(|(from, _), _| *from != id);
        self.peer_replies.retain(|(_, origin, _)| {
            !matches!(*origin, Origin::Peer { connection: other, .. } if other == connection)
        });
        self.lost.append(&mut self.forwarded.lose(id, connection));
    }

    /// Sees to commands whose connection to the member that was to run them is gone.
    pub(crate) fn answer_lost(&mut self) {
        for forwarded in std::mem::take(&mut self.lost) {
            match forwarded.command {
                // The next connection has a probe of its own.
                Kept::Read(item) if matches!(item.origin, Origin::Probe) => {}
                // Another view may run by now, with another tail.
                Kept::Read(item) => {
                    let (origin, protocol) = (item.origin.clone(), item.protocol);
                    let begun = self.unsent.push(item);
                    self.complete(&origin, protocol, true, begun);
                }
                Kept::Write(item) => self.ask_again(item),
                rest @ Kept::Rest(..) => {
                    let reply = encoded(&WRITE_LOST);
                    self.end_forwarded(rest, Outcome::Forgotten, reply, Frontier::ZERO);
                }
            }
        }
    }
}

/// Adds a part to the reply to a command, and takes the command off the list with its last part.
/// One whose reply is longer than any may be leaves with an error in its place: it costs its client
/// that reply, and the group nothing, as the end of the connection would. Parts that nobody waits
/// for are dropped: those after that, and those of an earlier connection.
///
/// # Errors
/// The member breaks the protocol.
fn join_reply(
    forwarded: &mut ForwardedList,
    id: u64,
    part: &Bytes,
) -> Result<Option<(Kept, Outcome, Bytes)>> {
    let Some(waiting) = forwarded.all.get_mut(&id) else { return Ok(None) };
    let (outcome, reply) = match forward::join(&mut waiting.reply, part, forward::REPLY_LEN_MAX) {
        Ok(None) => return Ok(None),
        // With an outcome that nobody knows the command is lost with the connection.
        Ok(Some(body)) => forward::decode_reply(&body)?,
        Err(error) if error.kind() == ErrorKind::LimitExceeded => {
            let is_read = matches!(waiting.command, Kept::Read(_));
            (Outcome::Forgotten, encoded(&unusable_reply(is_read, &error)))
        }
        Err(error) => return Err(error),
    };
    Ok(forwarded.remove(id).map(|forwarded| (forwarded.command, outcome, reply)))
}

/// An error as a member sends it: the same in both versions of the protocol.
fn encoded(error: &Reply) -> Bytes {
    let mut bytes = Vec::new();
    error.encode(Protocol::Resp2, &mut bytes);
    Bytes::from(bytes)
}

/// The client's reply to a write, with the replies of its transaction that were made here.
fn reply_to_write(
    transaction: Option<&Transaction>,
    outcome: Outcome,
    reply: Bytes,
) -> (Outcome, Reply) {
    match transaction.filter(|_| outcome == Outcome::Made) {
        None => (outcome, Reply::Encoded(reply)),
        Some(transaction) => match merge(transaction, &reply) {
            Ok(reply) => (outcome, reply),
            Err(error) => (Outcome::Forgotten, unusable_reply(false, &error)),
        },
    }
}

/// Puts the replies that were made here among those of the head.
///
/// # Errors
/// Those of a reply that is no reply, or too long a list.
fn merge(transaction: &Transaction, reply: &Bytes) -> Result<Reply> {
    let mut buffer = BytesMut::from(&reply[..]);
    match ReplyParser::new().parse(&mut buffer) {
        Ok(Some(Reply::Array(replies))) if replies.len() == transaction.calls().len() => {
            Ok(transaction.merge(replies))
        }
        Ok(Some(_)) => Ok(Reply::Encoded(reply.clone())),
        Ok(None) => Err(Error::corruption("it is cut")),
        // A flat list of pairs may have more elements than a client takes.
        Err(error) => Err(error.into()),
    }
}

/// What the client gets when the reply of another member cannot be handed on.
fn unusable_reply(is_read: bool, error: &Error) -> Reply {
    let outcome = if is_read {
        "ERR the reply cannot be given"
    } else {
        "UNKNOWN the reply cannot be given, and the write may have been made or not"
    };
    Reply::error_from(format!("{outcome}: {error}"))
}

fn unreachable_member(to: ReplicaId, is_read: bool) -> Reply {
    let place = if is_read { "tail" } else { "head" };
    Reply::error_from(format!(
        "TRYAGAIN the {place} of the chain, replica {}, is not connected: the command was not run",
        to.get()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::WriteId;

    fn call(words: &[&str]) -> Call {
        let args = words.iter().map(|word| Bytes::from(word.to_string())).collect();
        Call::new(Request { args }).unwrap()
    }

    fn kept(work: Work, room: usize) -> Kept {
        let (protocol, frontier) = (Protocol::Resp2, Frontier::ZERO);
        let origin = Origin::Probe;
        let (since_ms, begun_ns, len) = (0, 0, 0);
        let (id, is_again) = (WriteId { session: 1, number: 0 }, false);
        let item = Item {
            number: 0,
            origin,
            work,
            protocol,
            frontier,
            since_ms,
            begun_ns,
            len,
            id,
            is_again,
        };
        Kept::of(item, room)
    }

    fn forwarded(work: Work) -> Forwarded {
        let command = kept(work, KEPT_MAX);
        Forwarded { to: ReplicaId(1), connection: 1, command, reply: Vec::new() }
    }

    #[test]
    fn a_reply_over_the_limit_ends_its_command_and_no_other() {
        let get = || Work::Call(call(&["GET", "k"]));
        let incr = || Work::Transaction(Transaction::of(vec![call(&["INCR", "k"])]));
        for (work, code) in [(get(), "-ERR "), (incr(), "-UNKNOWN ")] {
            let mut list = ForwardedList::default();
            list.insert(1, forwarded(work));
            list.insert(2, forwarded(get()));
            let part = forward::parts(&vec![b'v'; 5 << 20]).next().unwrap();
            assert_eq!(part[0], 1, "more follow");
            let mut take = |id, part: &Bytes| join_reply(&mut list, id, part).unwrap();
            let (count, reply) =
                (1..).find_map(|count| take(1, &part).map(|(_, _, reply)| (count, reply))).unwrap();
            assert_eq!(count, forward::REPLY_LEN_MAX / (part.len() - 1) + 1);
            let reply = String::from_utf8(reply.to_vec()).unwrap();
            assert!(reply.starts_with(code) && reply.contains("the limit is 134217728"), "{reply}");
            // What is still on its way, and the next reply.
            assert!(take(1, &part).is_none());
            let (_, outcome, reply) = take(2, &Bytes::from("\0\x01$1\r\nv\r\n")).unwrap();
            assert_eq!((outcome, &reply[..]), (Outcome::Made, &b"$1\r\nv\r\n"[..]));
            assert!(list.all.is_empty());
            assert_eq!(list.read_bytes, 0);
        }
    }

    #[test]
    fn as_many_reads_are_on_their_way_as_a_member_lets_wait_and_writes_are_not_counted() {
        let mut list = ForwardedList::default();
        let incr = || Work::Transaction(Transaction::of(vec![call(&["INCR", "k"])]));
        for number in 0.. {
            let work = if number % 2 == 0 { Work::Call(call(&["GET", "k"])) } else { incr() };
            list.insert(number, forwarded(work));
            if list.is_full() {
                break;
            }
        }
        assert!(list.read_bytes < FORWARDED_MAX + 1024, "{}", list.read_bytes);
        list.remove(0);
        assert!(!list.is_full(), "one is answered");
        assert!(list.lose(ReplicaId(1), 2).is_empty(), "of another connection");
        let count = list.all.len();
        assert_eq!(list.lose(ReplicaId(1), 1).len(), count);
        assert_eq!((list.read_bytes, list.write_bytes, list.all.len()), (0, 0, 0));
    }

    #[test]
    fn an_outcome_that_nobody_knows_ends_the_connection_and_its_writes_are_in_doubt() {
        let mut list = ForwardedList::default();
        let incr = || Work::Transaction(Transaction::of(vec![call(&["INCR", "k"])]));
        list.insert(1, forwarded(incr()));
        let error = join_reply(&mut list, 1, &Bytes::from("\0\x07:1\r\n")).err().unwrap();
        assert!(error.to_string().contains("outcome 7"), "{error}");
        let lost = list.lose(ReplicaId(1), 1);
        assert!(matches!(lost[..], [Forwarded { command: Kept::Write(..), .. }]));
    }

    #[test]
    fn replies_made_here_stand_in_no_error_of_the_head() {
        let mut transaction = Transaction::of(vec![call(&["INCR", "k"])]);
        transaction.ready.push((0, Reply::simple("PONG")));
        for outcome in [Outcome::NotMade, Outcome::Unknown, Outcome::Forgotten] {
            let error = Bytes::from_static(b"-UNKNOWN x\r\n");
            let ended = reply_to_write(Some(&transaction), outcome, error.clone());
            assert_eq!(ended, (outcome, Reply::Encoded(error)));
        }
    }

    /// 600,000 pairs, say, are a flat list of more elements than a request may have.
    #[test]
    fn a_long_list_in_a_transaction_is_handed_on_or_costs_that_transaction_alone() {
        let mut transaction = Transaction::of(vec![call(&["RANGE", "-", "+"])]);
        let of_data = kept(Work::Transaction(transaction.clone()), 0);
        assert!(matches!(of_data, Kept::Rest(_, None)), "handed on as it is");
        transaction.ready.push((0, Reply::simple("PONG")));
        let mixed = kept(Work::Transaction(transaction.clone()), 0);
        assert!(matches!(mixed, Kept::Rest(_, Some(_))));
        let ended = |reply: &'static [u8]| {
            reply_to_write(Some(&transaction), Outcome::Made, Bytes::from_static(reply))
        };
        let (outcome, reply) = ended(b"*1\r\n*1200000\r\n");
        let Reply::Error(text) = reply else { panic!("{reply:?}") };
        assert_eq!(outcome, Outcome::Forgotten);
        let text = String::from_utf8_lossy(&text);
        assert!(text.starts_with("UNKNOWN ") && text.contains("1200000 elements"), "{text}");
        let merged = Reply::Array(vec![Reply::simple("PONG"), Reply::Array(Vec::new())]);
        assert_eq!(ended(b"*1\r\n*0\r\n"), (Outcome::Made, merged));
    }
}
