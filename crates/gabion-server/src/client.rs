//! A client's connection: bytes in, requests, replies in the order of requests, bytes out.
//!
//! ```text
//!   socket ─► input ─► parser ─► session ─► work ──► slots (one per request, in order)
//!   socket ◄─ output ◄───────────── front slots whose reply may be shown ◄──┘
//! ```
//!
//! An idle connection holds no buffers: what is read goes through one buffer of the loop, and stays
//! here only while a request or a reply is in the middle, or while its requests wait.
//!
//! Many clients send all of a pipeline before they read a reply. So requests are read on while
//! replies wait to be read, up to a limit, and are begun as replies leave. Otherwise both ends
//! would wait for each other.

use crate::commands::gather::Gather;
use crate::commands::{Route, Session, Work, held_by_nobody};
use crate::connections::Seat;
use crate::spread::Within;
use crate::stream::ClientEnd;
use bytes::BytesMut;
use gabion_base::Frontier;
use gabion_base::units::VALUE_LEN_MAX;
use gabion_resp::limits::{ELEMENTS_MAX, HEADER_LEN_MAX, REQUEST_LEN_MAX};
use gabion_resp::{Input, Protocol, Reply};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::rc::{Rc, Weak};

/// Requests of one connection that may be under way.
const SLOTS_MAX: usize = 1024;
/// Bytes of replies that are encoded at a time.
const OUTPUT_MAX: usize = 1 << 20;
/// Bytes of replies that wait for a client, or are on their way to it, before its requests wait.
const UNREAD_MAX: usize = 64 << 20;
/// Bytes of replies that wait for all clients, or are expected, before those that have not read
/// theirs have to wait, and those of which replies of [`SHORT_MAX`] or more are expected.
const UNREAD_SUM_MAX: usize = 1 << 30;
/// Bytes that the replies to commands under way of a connection may be expected to take however
/// much all take.
const SHORT_MAX: usize = 1 << 20;
/// Bytes of the words of requests under way before further ones wait.
const WORDS_MAX: usize = 64 << 20;
/// Bytes of requests of one connection that are read ahead, while they wait for replies before them
/// to be read. With as many no more is read, and the connection ends with an error when its client
/// takes no reply then for [`AHEAD_MAX_MS`]: it sends on, and reads nothing before it has. The
/// longest request is shorter.
pub(crate) const INPUT_MAX: usize = 64 << 20;
/// How long a client is waited for that has sent as much ahead as it may and reads nothing, in ms.
pub(crate) const AHEAD_MAX_MS: u64 = 5_000;
const _: () = assert!(
    INPUT_MAX > REQUEST_LEN_MAX + ELEMENTS_MAX * (HEADER_LEN_MAX + 4) + READ_LEN,
    "a request in the middle is within the limit"
);
/// What the reply to a command under way is expected to take at least, in bytes: so that all slots
/// can be under way.
const EXPECTED_MIN: usize = UNREAD_MAX / SLOTS_MAX;
/// Bytes that are read of a client that broke the protocol or sent too much ahead, so that it comes
/// to read why: as much as the longest value that Redis takes.
const DISCARD_MAX: usize = 512 << 20;
/// Bytes that one read takes from a socket.
pub(crate) const READ_LEN: usize = 64 << 10;

/// What a request has to do with the writes of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It writes, or might.
    Write,
    /// It notes keys, for EXEC to depend on.
    Watch,
    /// It asks who holds what was written before it.
    Wait,
    Other,
}

impl Kind {
    pub(crate) fn of(work: &Work) -> Self {
        match work {
            Work::Watch(_) => Self::Watch,
            _ if work.route() == Route::Read => Self::Other,
            _ => Self::Write,
        }
    }
}

/// A command that is held back, as earlier ones of its connection have yet to end or too much waits
/// where it goes. The groups that answer it are chosen already.
pub(crate) struct HeldWork {
    pub(crate) work: Work,
    pub(crate) protocol: Protocol,
    /// The reply is made of those of several groups.
    pub(crate) gather: Option<Gather>,
    /// The other group to which it is handed.
    pub(crate) group: Option<usize>,
}

/// A request's place among the replies.
struct Slot {
    kind: Kind,
    protocol: Protocol,
    /// The reply, and the turn whose writes must be acknowledged before it is shown.
    reply: Option<(Reply, u64)>,
    /// A write may have been made or not; the reply says so.
    is_in_doubt: bool,
    /// What the reply takes.
    bytes: usize,
    /// The reply comes later and may be long.
    may_be_long: bool,
    /// What the words of the request take while it is under way.
    words: usize,
    /// The client asked for no reply.
    is_muted: bool,
    /// The replies of other groups, of which and of this one the reply is made.
    gather: Option<Box<Gather>>,
}

impl Slot {
    /// Whether its reply may be shown when turns up to `acknowledged` are.
    fn may_be_shown(&self, acknowledged: u64) -> bool {
        self.reply.as_ref().is_some_and(|(_, turn)| *turn <= acknowledged)
            && self.gather.as_ref().is_none_or(|gather| gather.is_complete())
    }
}

/// The bytes of replies that one connection has not read or is expected to get, counted also in the
/// sum over all.
///
/// What the replies to commands under way will take is not known, and may be the length of the
/// longest value each: it is expected to be that of the longest of late. A connection begins with
/// few commands under way, and short replies soon allow as many as there are slots.
struct Unread {
    bytes: usize,
    /// Commands under way whose replies may be long, and what each of these is expected to take.
    under_way: usize,
    expected: usize,
    /// The bytes of all of these, as counted in the sum.
    due: usize,
    sum: Rc<Cell<usize>>,
}

impl Unread {
    const fn new(sum: Rc<Cell<usize>>) -> Self {
        Self { bytes: 0, under_way: 0, expected: VALUE_LEN_MAX, due: 0, sum }
    }

    /// A command is under way whose reply may be long.
    fn begin(&mut self) {
        self.under_way += 1;
        self.count_due();
    }

    fn count_due(&mut self) {
        let due = self.under_way * self.expected;
        self.sum.set(self.sum.get() - self.due + due);
        self.due = due;
    }

    /// A reply waits for the client from now on.
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.sum.set(self.sum.get() + bytes);
    }

    /// The reply to a command that was under way has come.
    fn end(&mut self, bytes: usize) {
        self.under_way -= 1;
        let late = self.expected - self.expected / 8;
        self.expected = late.max(bytes).max(EXPECTED_MIN);
        self.count_due();
    }

    /// So much waits no longer.
    fn remove(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes, "{bytes} bytes of {} are read", self.bytes);
        self.bytes -= bytes;
        self.sum.set(self.sum.get() - bytes);
    }

    /// Whether nothing more may be begun.
    fn is_full(&self) -> bool {
        // With nothing unread and nothing under way, one may always begin, however long the last
        // was.
        let is_much = self.bytes > 0 || self.due >= SHORT_MAX;
        self.bytes + self.due >= UNREAD_MAX || is_much && self.sum.get() >= UNREAD_SUM_MAX
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.sum.set(self.sum.get() - self.bytes - self.due);
    }
}

/// The bytes that one connection has sent and that were not asked for yet, counted also in the sum
/// over all.
struct Sent {
    bytes: usize,
    sum: Rc<Cell<usize>>,
}

impl Sent {
    /// So many there are now. Most connections have none most of the time.
    fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            self.sum.set(self.sum.get() - self.bytes + bytes);
            self.bytes = bytes;
        }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// What all connections together may make the process hold.
#[derive(Clone, Default)]
pub(crate) struct Sums {
    /// Bytes of replies that wait for their clients or are expected.
    pub(crate) unread: Rc<Cell<usize>>,
    /// Bytes of requests that wait.
    pub(crate) input: Rc<Cell<usize>>,
}

/// Whether a connection is there and its other end may send something: one whose process has ended
/// sends nothing any more. What takes long should be wanted by somebody.
pub(crate) struct Presence(Weak<()>);

impl Presence {
    pub(crate) fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// One connection.
pub(crate) struct Client {
    pub(crate) stream: ClientEnd,
    pub(crate) session: Session,
    /// Tells this connection from others that had its place.
    pub(crate) serial: u64,
    pub(crate) input: Input,
    waiting: Sent,
    output: Vec<u8>,
    sent: usize,
    unread: Unread,
    /// What is counted there of the output.
    output_bytes: usize,
    /// Bytes of the words of all requests under way.
    words_out: usize,
    slots: VecDeque<Slot>,
    /// Number of the first slot.
    first_slot: u64,
    /// A command that may not begin yet.
    pub(crate) held: Option<HeldWork>,
    /// Reads of this connection must show at least the log up to here.
    pub(crate) frontier: Frontier,
    /// What became of its last write whose reply was sent is not known.
    is_in_doubt: bool,
    /// The turn of its last write that ended here, until its frontier is known.
    pub(crate) write_turn: u64,
    /// Reads and writes that have begun and not ended.
    pub(crate) reads_out: u32,
    pub(crate) writes_out: u32,
    pub(crate) can_read: bool,
    pub(crate) can_write: bool,
    /// The client sends no more, though something may still be in the socket.
    pub(crate) is_read_closed: bool,
    /// All that it sent was read; it is still answered.
    pub(crate) is_finished: bool,
    /// There until then.
    presence: Option<Rc<()>>,
    /// No more requests; closed when every reply is sent.
    pub(crate) is_closing: bool,
    /// Bytes that are still read and thrown away before it is closed, where it may be in the middle
    /// of what it sends. With that unread it would not come to read its replies, or the system
    /// would send a reset, which takes them away.
    discards: Option<usize>,
    /// It was told that nothing more comes.
    is_lingering: bool,
    /// Bytes of replies that it has taken.
    pub(crate) taken: u64,
    /// It is in the list of those that are too far ahead.
    pub(crate) is_ahead: bool,
    /// It was blocked when its requests were taken last.
    pub(crate) is_stalled: bool,
    /// In the list of those to look after.
    pub(crate) is_listed: bool,
    /// A WAIT of it goes on: no further request begins.
    pub(crate) is_waiting: bool,
    /// The turn for which it is in the list of those who wait.
    pub(crate) waits_for: u64,
    /// Other groups that it has had work done in, by their bits.
    pub(crate) groups: u32,
    /// It stands for a connection at another service.
    pub(crate) within: Option<Box<Within>>,
    /// Counts it among those of the process; one within has none.
    pub(crate) seat: Option<Seat>,
}

impl Client {
    /// `sums` are over all connections.
    pub(crate) fn new(stream: ClientEnd, session: Session, serial: u64, sums: &Sums) -> Self {
        Self {
            stream,
            session,
            serial,
            input: Input::default(),
            waiting: Sent { bytes: 0, sum: sums.input.clone() },
            output: Vec::new(),
            sent: 0,
            unread: Unread::new(sums.unread.clone()),
            output_bytes: 0,
            words_out: 0,
            slots: VecDeque::new(),
            first_slot: 0,
            held: None,
            frontier: Frontier::ZERO,
            is_in_doubt: false,
            write_turn: 0,
            reads_out: 0,
            writes_out: 0,
            can_read: true,
            can_write: true,
            is_read_closed: false,
            is_finished: false,
            presence: Some(Rc::new(())),
            is_closing: false,
            discards: None,
            is_lingering: false,
            taken: 0,
            is_ahead: false,
            is_stalled: false,
            is_listed: false,
            is_waiting: false,
            waits_for: 0,
            groups: 0,
            within: None,
            seat: None,
        }
    }

    /// Whether no further request may be taken now.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_closing
            || self.is_waiting
            || self.held.is_some()
            || self.slots.len() >= SLOTS_MAX
            || self.output.len() - self.sent > OUTPUT_MAX
            || self.unread.is_full()
            // With nothing under way, one may always begin, however long it is.
            || self.words_out >= WORDS_MAX
    }

    /// The end of what it sends was read. Its process may have ended.
    pub(crate) fn finish(&mut self) {
        self.is_read_closed = true;
        self.can_read = false;
        self.is_finished = true;
        self.presence = None;
    }

    /// Whether it waits for an answer, to be looked at by whoever works on that for long.
    pub(crate) fn presence(&self) -> Presence {
        Presence(self.presence.as_ref().map_or_else(Weak::new, Rc::downgrade))
    }

    /// Counts what it holds of what its client has sent.
    pub(crate) fn count_input(&mut self) {
        self.waiting.set(self.input.len());
    }

    /// What was counted.
    pub(crate) const fn input_bytes(&self) -> usize {
        self.waiting.bytes
    }

    /// Whether its requests wait until it has read replies, so that it must be able to send on: it
    /// may read none before it has sent all. What waits for anything else goes on by itself, and
    /// the socket holds what it sends meanwhile.
    pub(crate) fn is_unread(&self) -> bool {
        !self.can_write && !self.is_closing && self.is_blocked()
    }

    /// Whether what it sends is read though no request may be taken.
    pub(crate) fn may_send_ahead(&self) -> bool {
        self.can_read && self.is_unread() && self.input.len() < INPUT_MAX
    }

    /// Whether it sends on, though it has sent as much ahead as it may.
    pub(crate) fn is_too_far_ahead(&self) -> bool {
        self.can_read && self.is_unread() && self.input.len() >= INPUT_MAX
    }

    /// Takes no more requests. The client may be in the middle of sending some, which are thrown
    /// away.
    pub(crate) fn close_amid_requests(&mut self) {
        self.held = None;
        self.take_no_more();
    }

    /// The same, and what was taken is run and answered, also where it is held back.
    pub(crate) fn take_no_more(&mut self) {
        self.is_closing = true;
        self.input = Input::default();
        self.count_input();
        if !self.is_finished {
            self.discards = Some(DISCARD_MAX);
        }
    }

    /// Whether what it still sends is thrown away.
    pub(crate) const fn is_discarding(&self) -> bool {
        self.discards.is_some()
    }

    /// Whether only what it still sends is waited for.
    pub(crate) const fn is_lingering(&self) -> bool {
        self.is_lingering
    }

    /// Tells the client that nothing more comes, so that it ends too; until then what it sends is
    /// thrown away. Returns whether there is anything to wait for.
    pub(crate) fn linger(&mut self) -> bool {
        self.is_lingering = self.is_discarding() && self.stream.shutdown_write().is_ok();
        self.is_lingering
    }

    /// Throws away what a closing client sends, up to `budget` bytes. Returns how many; `None` when
    /// the connection is over: it broke, it has been told all there is, or it sends without an end.
    pub(crate) fn discard(&mut self, scratch: &mut [u8], budget: usize) -> Option<usize> {
        let mut count = 0;
        while count < budget {
            match self.stream.read(scratch) {
                Ok(0) if self.is_lingering => return None,
                Ok(0) => {
                    // It may still want to hear the answers.
                    self.finish();
                    self.discards = None;
                    break;
                }
                Ok(n) => {
                    count += n;
                    self.discards = Some(self.discards?.checked_sub(n)?);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.can_read = false;
                    break;
                }
                Err(_) => return None,
            }
        }
        Some(count)
    }

    /// Whether everything that was asked is answered and sent.
    pub(crate) fn is_done(&self) -> bool {
        self.slots.is_empty()
            && self.held.is_none()
            && self.output.is_empty()
            && !self.stream.has_pending()
    }

    /// A place for a reply that comes later, to a request whose words take `words` bytes until
    /// then. What writes without reading has a short one.
    pub(crate) fn reserve(
        &mut self,
        protocol: Protocol,
        kind: Kind,
        may_be_long: bool,
        words: usize,
    ) -> u64 {
        if may_be_long {
            self.unread.begin();
        }
        self.words_out += words;
        let is_muted = self.session.is_muted();
        self.slots.push_back(Slot {
            kind,
            protocol,
            reply: None,
            is_in_doubt: false,
            bytes: 0,
            may_be_long,
            words,
            is_muted,
            gather: None,
        });
        self.first_slot + self.slots.len() as u64 - 1
    }

    /// Whether every reply before this place's is on its way.
    pub(crate) fn is_front(&self, number: u64) -> bool {
        self.first_slot == number
    }

    /// A reply that is there at once.
    pub(crate) fn push(&mut self, protocol: Protocol, reply: Reply, turn: u64) {
        self.push_kind(protocol, Kind::Other, reply, turn);
    }

    /// How many other replicas hold the writes before, which is none when the last of them is in
    /// doubt by the time of this reply.
    pub(crate) fn push_wait(&mut self, protocol: Protocol, reply: Reply) {
        self.push_kind(protocol, Kind::Wait, reply, 0);
    }

    fn push_kind(&mut self, protocol: Protocol, kind: Kind, reply: Reply, turn: u64) {
        let bytes = reply.memory();
        self.unread.add(bytes);
        self.slots.push_back(Slot {
            kind,
            protocol,
            reply: Some((reply, turn)),
            is_in_doubt: false,
            bytes,
            may_be_long: false,
            words: 0,
            is_muted: self.session.is_muted(),
            gather: None,
        });
    }

    /// The reply for a place. Nothing happens when the place is gone or filled.
    pub(crate) fn fill(&mut self, number: u64, reply: Reply, turn: u64) {
        let index = number.checked_sub(self.first_slot).map(|index| index as usize);
        if let Some(slot) = index.and_then(|index| self.slots.get_mut(index))
            && slot.reply.is_none()
        {
            slot.bytes = reply.memory();
            slot.reply = Some((reply, turn));
            self.words_out -= std::mem::take(&mut slot.words);
            self.unread.add(slot.bytes);
            if slot.may_be_long {
                self.unread.end(slot.bytes);
            }
        }
    }

    /// Takes back the reply for a place, which was not shown: another one comes. Returns whether
    /// there was one.
    pub(crate) fn recall(&mut self, number: u64) -> bool {
        let index = number.checked_sub(self.first_slot).map(|index| index as usize);
        let slot = index.and_then(|index| self.slots.get_mut(index));
        let Some(slot) = slot.filter(|slot| slot.reply.is_some()) else { return false };
        slot.reply = None;
        self.unread.remove(std::mem::take(&mut slot.bytes));
        if slot.may_be_long {
            self.unread.begin();
        }
        true
    }

    /// As [`Self::fill`], with the error of a write that may have been made or not.
    pub(crate) fn fill_in_doubt(&mut self, number: u64, error: Reply) {
        self.fill(number, error, 0);
        let index = number.checked_sub(self.first_slot).map(|index| index as usize);
        if let Some(slot) = index.and_then(|index| self.slots.get_mut(index)) {
            slot.is_in_doubt = true;
        }
    }

    fn slot_mut(&mut self, number: u64) -> Option<&mut Slot> {
        let index = number.checked_sub(self.first_slot).map(|index| index as usize);
        index.and_then(|index| self.slots.get_mut(index))
    }

    /// The reply for a place is made of those of several groups.
    pub(crate) fn gather(&mut self, number: u64, gather: Gather) {
        if let Some(slot) = self.slot_mut(number) {
            slot.gather = Some(Box::new(gather));
        }
    }

    /// The reply of another group, or its part of one.
    pub(crate) fn take_handed(&mut self, number: u64, reply: Reply, is_in_doubt: bool) {
        let Some(slot) = self.slot_mut(number) else { return };
        slot.is_in_doubt |= is_in_doubt;
        let reply = match &mut slot.gather {
            Some(gather) => gather.take(reply),
            None => Some(reply),
        };
        if let Some(reply) = reply {
            self.fill(number, reply, 0);
        }
    }

    /// Takes off the front reply, of a client within, if it may be shown; and whether it is of a
    /// write that is in doubt.
    pub(crate) fn pop_shown(&mut self, acknowledged: u64) -> Option<(Reply, bool)> {
        self.slots.front().filter(|slot| slot.may_be_shown(acknowledged))?;
        let slot = self.slots.pop_front()?;
        self.first_slot += 1;
        self.unread.remove(slot.bytes);
        slot.reply.map(|(reply, _)| (reply, slot.is_in_doubt))
    }

    /// Replaces replies that wait for turns after `acknowledged` and up to `last`.
    pub(crate) fn give_up(&mut self, acknowledged: u64, last: u64, error: &Reply) {
        for slot in &mut self.slots {
            if let Some((reply, turn)) = &mut slot.reply
                && *turn > acknowledged
                && *turn <= last
            {
                (*reply, *turn) = (error.clone(), 0);
                slot.is_in_doubt = true;
                self.unread.remove(slot.bytes);
                slot.bytes = error.memory();
                self.unread.add(slot.bytes);
            }
        }
    }

    /// Reads once, by way of the loop's `scratch` into memory that is cut off `shared`, or to wait
    /// where no request may be taken now (`is_blocked`). Returns the number of bytes; `None` when
    /// there are none now.
    ///
    /// # Errors
    /// The connection's; the end of the stream is `UnexpectedEof`.
    pub(crate) fn read(
        &mut self,
        scratch: &mut [u8],
        shared: &mut BytesMut,
        is_blocked: bool,
    ) -> io::Result<Option<usize>> {
        let result = loop {
            match self.stream.read(scratch) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        // A handshake may have bytes for a socket that takes nothing now.
        self.can_write &= !self.stream.has_pending();
        match result {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                match is_blocked {
                    true => self.input.wait(&scratch[..count]),
                    false => self.input.append(&scratch[..count], shared),
                }
                // A short read has emptied the socket, but the end may lie behind it.
                self.can_read =
                    count == scratch.len() || self.is_read_closed || self.stream.is_ended();
                Ok(Some(count))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.can_read = false;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Encodes the replies that may be shown into `scratch` and sends as much as the socket takes.
    /// Returns the number of bytes sent.
    ///
    /// # Errors
    /// The connection's.
    pub(crate) fn flush(&mut self, acknowledged: u64, scratch: &mut Vec<u8>) -> io::Result<usize> {
        let result = self.send(acknowledged, scratch);
        self.taken += result.as_ref().copied().unwrap_or(0) as u64;
        let waiting = self.output.len() - self.sent;
        self.unread.add(waiting);
        self.unread.remove(std::mem::replace(&mut self.output_bytes, waiting));
        self.session.set_output(self.unread.bytes);
        result
    }

    fn send(&mut self, acknowledged: u64, scratch: &mut Vec<u8>) -> io::Result<usize> {
        scratch.clear();
        let out = if self.output.is_empty() { &mut *scratch } else { &mut self.output };
        while out.len() < OUTPUT_MAX
            && merge_front(&mut self.slots, &mut self.unread, acknowledged)
            && let Some(Slot {
                kind,
                protocol,
                reply: Some((reply, _)),
                is_in_doubt,
                bytes,
                is_muted,
                ..
            }) = self.slots.front()
        {
            // Here all before it are known, and none after it.
            match kind {
                Kind::Write if *is_in_doubt => self.is_in_doubt = true,
                Kind::Write if !is_error(reply) => self.is_in_doubt = false,
                Kind::Watch if is_error(reply) => self.session.lose_watch(),
                _ => {}
            }
            if *is_muted {
                // It was read as if it were sent.
            } else if self.is_in_doubt && *kind == Kind::Wait {
                held_by_nobody(reply.clone()).encode(*protocol, out);
            } else {
                reply.encode(*protocol, out);
            }
            self.unread.remove(*bytes);
            self.slots.pop_front();
            self.first_slot += 1;
        }
        if self.slots.is_empty() && self.slots.capacity() > 64 {
            self.slots = VecDeque::new();
        }
        self.write_out(scratch)
    }

    /// Sends the replies that wait, else those in `scratch`, and keeps what the socket does not
    /// take.
    fn write_out(&mut self, scratch: &mut Vec<u8>) -> io::Result<usize> {
        if !self.can_write {
            self.output.append(scratch);
            return Ok(0);
        }
        let is_direct = self.output.is_empty();
        let mut count = 0;
        loop {
            let rest = if is_direct { &scratch[count..] } else { &self.output[self.sent..] };
            if rest.is_empty() {
                self.output = Vec::new();
                self.sent = 0;
                self.can_write = self.stream.send_pending()?;
                return Ok(count);
            }
            match self.stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    count += n;
                    if !is_direct {
                        self.sent += n;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.can_write = false;
                    if is_direct {
                        self.output = scratch[count..].to_vec();
                        self.sent = 0;
                    } else if self.sent > OUTPUT_MAX {
                        self.output.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(count);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether its front reply may be shown when turns up to `acknowledged` are.
    pub(crate) fn has_reply(&self, acknowledged: u64) -> bool {
        self.slots.front().is_some_and(|slot| slot.may_be_shown(acknowledged))
    }
}

/// Whether the front reply may be shown; it is made then, where it is of several groups.
fn merge_front(slots: &mut VecDeque<Slot>, unread: &mut Unread, acknowledged: u64) -> bool {
    let Some(slot) = slots.front_mut().filter(|slot| slot.may_be_shown(acknowledged)) else {
        return false;
    };
    if let Some(gather) = slot.gather.take()
        && let Some((own, turn)) = slot.reply.take()
    {
        let reply = gather.merge(own);
        unread.remove(slot.bytes);
        slot.bytes = reply.memory();
        unread.add(slot.bytes);
        slot.reply = Some((reply, turn));
    }
    true
}

/// Whether a reply, which another node may have encoded, is an error.
fn is_error(reply: &Reply) -> bool {
    reply.is_error() || matches!(reply, Reply::Encoded(bytes) if bytes.starts_with(b"-"))
}

#[cfg(test)]
mod tests;
