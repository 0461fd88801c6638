//! Connections with the other members: one each, made by the member with the higher number. And
//! those of *guests*, replicas that are no members: they connect to each member, and have it run
//! the commands of their clients. The protocol of the group knows nothing of them.
//!
//! ```text
//!  preamble, from who connects:   0 u32 "GBPH"   4 u16 version, 1   6 u16 flags: 1 a guest
//!                                 8 u64 group   16 u32 from        20 u32 to
//!                                24 u32 CRC32C of the bytes before
//!  then, both ways: frames (gabion_replication::frame); of a guest Forward and ForwardReply alone
//! ```

use crate::replies::Replies;
use crate::stream::Stream;
use bytes::{Bytes, BytesMut};
use gabion_base::codec::{Put, Reader};
use gabion_base::{Error, GroupId, ReplicaId, Result, crc};
use gabion_replication::{Frame, Message};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;

/// Bytes of the preamble.
pub(crate) const PREAMBLE_LEN: usize = 28;
const MAGIC: u32 = u32::from_le_bytes(*b"GBPH");
const VERSION: u16 = 1;
/// The flag of a guest. A build that knows none refuses it as no member.
const GUEST: u16 = 1;
/// Shortest and longest time between two attempts to connect, in ms.
const BACKOFF_MS: (u64, u64) = (50, 500);
/// How long a connection may be in the making, in ms. Between members a packet takes far less; without a limit the
/// system's pauses between attempts decide, which double from 1 s to minutes when packets are silently lost.
pub(crate) const CONNECT_MAX_MS: u64 = 1_000;
/// Room for input that is made at a time, in bytes.
const READ_LEN: usize = 64 << 10;
/// Buffers of one system call.
const SLICES_MAX: usize = 64;

/// What who connects says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) group: GroupId,
    pub(crate) from: ReplicaId,
    pub(crate) to: ReplicaId,
    pub(crate) is_guest: bool,
}

/// The bytes with which `from`, a member, opens a connection to the door for members of `to`.
#[must_use]
pub fn preamble(group: GroupId, from: ReplicaId, to: ReplicaId) -> Vec<u8> {
    Preamble { group, from, to, is_guest: false }.encode()
}

impl Preamble {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PREAMBLE_LEN);
        out.put_u32(MAGIC);
        out.put_u16(VERSION);
        out.put_u16(if self.is_guest { GUEST } else { 0 });
        out.put_u64(self.group.get());
        out.put_u32(self.from.get());
        out.put_u32(self.to.get());
        let crc = crc::crc32c(&out);
        out.put_u32(crc);
        out
    }

    /// Reads [`Self::encode`].
    pub(crate) fn decode(bytes: &[u8; PREAMBLE_LEN]) -> Result<Self> {
        let mut r = Reader::new(bytes, "preamble of a member");
        if r.u32()? != MAGIC {
            return Err(Error::corruption("a connection does not begin as that of a member"));
        }
        let version = r.u16()?;
        if version != VERSION {
            return Err(Error::unsupported(format!(
                "a member speaks version {version}, this build speaks {VERSION}"
            )));
        }
        let is_guest = r.u16()? & GUEST != 0;
        let (group, from, to) = (GroupId(r.u64()?), ReplicaId(r.u32()?), ReplicaId(r.u32()?));
        if r.u32()? != crc::crc32c(&bytes[..PREAMBLE_LEN - 4]) {
            return Err(Error::corruption("preamble of a member: bad checksum"));
        }
        Ok(Self { group, from, to, is_guest })
    }
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tie {
    /// Members both, which follow the protocol of the group.
    Members,
    /// A member at the other end, and a guest here.
    ToMember,
    /// A guest at the other end, and a member here.
    OfGuest,
}

/// What is known of reads at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Nothing.
    NotAsked,
    /// One is on its way, to find out.
    Asked,
    /// They are answered, as long as the connection stands.
    Answered,
}

/// Bytes that wait to be sent.
struct Part {
    bytes: Bytes,
    /// Of a reply to a command of the member.
    is_reply: bool,
}

/// A connection with a member.
pub(crate) struct Link {
    pub(crate) stream: Stream,
    pub(crate) tie: Tie,
    /// Our number for it.
    pub(crate) connection: u64,
    /// When it was begun.
    since_ms: u64,
    /// The socket is connected and who we are is known.
    pub(crate) is_up: bool,
    /// Something came on it. Only then is it known that a certificate of ours is taken.
    pub(crate) is_heard: bool,
    /// The chain's first message is on its way: others may follow.
    pub(crate) has_greeted: bool,
    pub(crate) can_write: bool,
    /// The other end sends no more.
    pub(crate) is_read_closed: bool,
    /// It has sent more than was read in one turn.
    pub(crate) has_more: bool,
    /// Whether reads that are forwarded on it are answered.
    pub(crate) reads: Reads,
    /// Replies owed on it for the commands that the member forwards.
    pub(crate) replies: Replies,
    input: BytesMut,
    out: VecDeque<Part>,
    /// Bytes of the first part that are sent.
    sent: usize,
    /// Bytes of those that are no replies.
    backlog: usize,
}

impl Link {
    pub(crate) fn new(stream: Stream, tie: Tie, connection: u64, is_up: bool, now_ms: u64) -> Self {
        let is_heard = is_up || matches!(stream, Stream::Plain(_));
        Self {
            stream,
            tie,
            is_heard,
            connection,
            since_ms: now_ms,
            is_up,
            has_greeted: false,
            can_write: is_up,
            is_read_closed: false,
            has_more: false,
            reads: Reads::NotAsked,
            replies: Replies::new(),
            input: BytesMut::new(),
            out: VecDeque::new(),
            sent: 0,
            backlog: 0,
        }
    }

    /// Whether there is more to do without a new event: to read on, or to go on with a read of the
    /// member that waits.
    pub(crate) fn is_busy(&self) -> bool {
        self.has_more || self.replies.may_go_on()
    }

    /// Bytes that wait to be sent, replies aside: of these there are about as many as may be for as
    /// long as reads wait.
    pub(crate) const fn backlog(&self) -> usize {
        self.backlog
    }

    pub(crate) fn queue(&mut self, bytes: Bytes) {
        self.queue_part(bytes, false);
    }

    fn queue_part(&mut self, bytes: Bytes, is_reply: bool) {
        if bytes.is_empty() {
            return;
        }
        match is_reply {
            true => self.replies.add(bytes.len()),
            false => self.backlog += bytes.len(),
        }
        self.out.push_back(Part { bytes, is_reply });
    }

    /// Queues a frame; payloads are not copied.
    pub(crate) fn queue_frame(&mut self, frame: &Frame) -> Result<()> {
        let encoded = frame.encode()?;
        let is_reply = matches!(frame.message, Message::ForwardReply { .. });
        self.queue_part(Bytes::from(encoded.head), is_reply);
        encoded.payload.into_iter().for_each(|part| self.queue_part(part, is_reply));
        Ok(())
    }

    /// Sends what the socket takes. Returns the number of bytes.
    pub(crate) fn flush(&mut self) -> io::Result<usize> {
        let mut count = 0;
        self.flush_pending()?;
        while self.is_up && self.can_write && !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut used = 0;
            for (slice, part) in slices.iter_mut().zip(&self.out) {
                let from = if used == 0 { self.sent } else { 0 };
                *slice = IoSlice::new(&part.bytes[from..]);
                used += 1;
            }
            match self.stream.write_vectored(&slices[..used]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    count += n;
                    self.take_sent(n);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.can_write = false,
                Err(error) => return Err(error),
            }
        }
        self.flush_pending()?;
        Ok(count)
    }

    /// Sends what was encrypted and is not sent: an edge of the socket is due where some is left.
    #[inline]
    fn flush_pending(&mut self) -> io::Result<()> {
        if self.is_up && self.can_write && self.stream.has_pending() {
            self.can_write = self.stream.send_pending()?;
        }
        Ok(())
    }

    fn take_sent(&mut self, mut n: usize) {
        while let Some(front) = self.out.front() {
            let rest = front.bytes.len() - self.sent;
            match front.is_reply {
                true => self.replies.remove(rest.min(n)),
                false => self.backlog -= rest.min(n),
            }
            if n < rest {
                self.sent += n;
                return;
            }
            n -= rest;
            self.sent = 0;
            self.out.pop_front();
        }
    }

    /// Reads what is there by way of `scratch`, up to a few times its length. Returns bytes read and
    /// whether more may be there.
    pub(crate) fn read(&mut self, scratch: &mut [u8]) -> io::Result<(usize, bool)> {
        let mut count = 0;
        while count < 4 * scratch.len() {
            match self.stream.read(scratch) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    count += n;
                    if self.input.is_empty() {
                        self.input.reserve(READ_LEN);
                    }
                    self.input.extend_from_slice(&scratch[..n]);
                    // A short read has emptied the socket, but the end may lie behind it.
                    if n < scratch.len() && !self.is_read_closed && !self.stream.is_ended() {
                        return Ok((count, false));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok((count, false));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((count, true))
    }

    /// The next whole frame of what was read.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame>> {
        match Frame::len_of(&self.input)? {
            Some(len) if len <= self.input.len() => {
                let bytes = self.input.split_to(len).freeze();
                Frame::decode(&bytes).map(Some)
            }
            Some(len) => {
                self.input.reserve(len - self.input.len());
                Ok(None)
            }
            None => Ok(None),
        }
    }
}

/// Another replica of the group, member or not.
pub(crate) struct Peer {
    pub(crate) id: ReplicaId,
    /// Whether the view that runs has it. Members connect; so does this replica as a guest to each
    /// member, where the view leaves it out.
    pub(crate) is_member: bool,
    pub(crate) address: SocketAddr,
    pub(crate) target: SocketAddr,
    /// Whether we connect to it, or it to us.
    pub(crate) is_ours_to_make: bool,
    pub(crate) link: Option<Link>,
    pub(crate) retry_at_ms: u64,
    /// When the last connection was lost, or else when it became a member.
    pub(crate) down_since_ms: u64,
    backoff_ms: u64,
    /// The last complaint, so that it is logged once.
    pub(crate) complaint: String,
}

impl Peer {
    pub(crate) const fn new(
        id: ReplicaId,
        address: SocketAddr,
        target: SocketAddr,
        is_ours_to_make: bool,
        now_ms: u64,
    ) -> Self {
        Self {
            id,
            is_member: false,
            address,
            target,
            is_ours_to_make,
            link: None,
            retry_at_ms: 0,
            down_since_ms: now_ms,
            backoff_ms: BACKOFF_MS.0,
            complaint: String::new(),
        }
    }

    /// The connection on which messages may be sent.
    pub(crate) fn greeted(&self) -> Option<&Link> {
        self.link.as_ref().filter(|link| link.has_greeted)
    }

    /// Whether a connection has been in the making for too long.
    pub(crate) fn is_stuck(&self, now_ms: u64) -> bool {
        let is_late = |link: &Link| now_ms.saturating_sub(link.since_ms) > CONNECT_MAX_MS;
        self.link.as_ref().is_some_and(|link| !link.is_up && is_late(link))
    }

    /// The connection was lost, or was not made.
    pub(crate) fn back_off(&mut self, now_ms: u64) {
        self.retry_at_ms = now_ms + self.backoff_ms;
        self.backoff_ms = (self.backoff_ms * 2).min(BACKOFF_MS.1);
    }

    /// The connection is made.
    pub(crate) fn made(&mut self) {
        self.backoff_ms = BACKOFF_MS.0;
        self.complaint.clear();
    }
}

/// Somebody who has connected and not said who he is.
pub(crate) struct Stranger {
    pub(crate) stream: Stream,
    pub(crate) since_ms: u64,
    buffer: [u8; PREAMBLE_LEN],
    len: usize,
}

impl Stranger {
    pub(crate) const fn new(stream: Stream, since_ms: u64) -> Self {
        Self { stream, since_ms, buffer: [0; PREAMBLE_LEN], len: 0 }
    }

    /// Reads on; returns the preamble when it is whole.
    pub(crate) fn read(&mut self) -> Result<Option<Preamble>> {
        while self.len < PREAMBLE_LEN {
            match self.stream.read(&mut self.buffer[self.len..]) {
                Ok(0) => return Err(Error::io("a connection ended before it said whose it is")),
                Ok(n) => self.len += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => {
                    let kind = gabion_base::ErrorKind::Io;
                    return Err(Error::with_source(kind, "a connection broke", error));
                }
            }
        }
        Preamble::decode(&self.buffer).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preamble_survives_the_way_and_a_changed_one_is_refused() {
        let preamble =
            Preamble { group: GroupId(9), from: ReplicaId(3), to: ReplicaId(1), is_guest: false };
        let bytes: [u8; PREAMBLE_LEN] = preamble.encode().try_into().unwrap();
        assert_eq!(Preamble::decode(&bytes).unwrap(), preamble);
        for at in 0..PREAMBLE_LEN {
            let mut changed = bytes;
            changed[at] ^= 4;
            assert!(Preamble::decode(&changed).is_err(), "byte {at}");
        }
    }
}
