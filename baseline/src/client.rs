//! A client's connection: requests in, replies out in the order of requests.

use bytes::BytesMut;
use gabion_resp::Input;
use mio::net::TcpStream;
use std::collections::VecDeque;
use std::io::{self, Read, Write};

/// Requests of one connection that may be under way.
const UNDER_WAY_MAX: u64 = 1024;
/// Bytes of replies that wait for a client before its requests wait.
const UNREAD_MAX: usize = 1 << 20;
/// Bytes that one read takes from a socket.
pub(crate) const READ_LEN: usize = 64 << 10;

/// A place among the replies.
enum Slot {
    /// So many writes, which are shown when this batch is acknowledged.
    Written { batch: u64, count: u64 },
    /// A reply that comes later.
    Awaited,
    /// A reply that waits for others before it.
    Encoded(Vec<u8>),
}

/// One connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    /// Tells this connection from others that had its place.
    pub(crate) serial: u64,
    pub(crate) input: Input,
    slots: VecDeque<Slot>,
    /// Number of the first slot.
    first_slot: u64,
    under_way: u64,
    out: Vec<u8>,
    sent: usize,
    pub(crate) can_read: bool,
    pub(crate) can_write: bool,
    /// The client sends no more, though something may still be in the socket.
    pub(crate) is_read_closed: bool,
    /// No more requests; closed when every reply is sent.
    pub(crate) is_closing: bool,
    /// It was blocked when its requests were taken last.
    pub(crate) is_stalled: bool,
    /// In the list of those to look after.
    pub(crate) is_listed: bool,
    /// The batch for which it is in the list of those who wait.
    pub(crate) waits_for: u64,
}

impl Client {
    pub(crate) fn new(stream: TcpStream, serial: u64) -> Self {
        Self {
            stream,
            serial,
            input: Input::default(),
            slots: VecDeque::new(),
            first_slot: 0,
            under_way: 0,
            out: Vec::new(),
            sent: 0,
            can_read: true,
            can_write: true,
            is_read_closed: false,
            is_closing: false,
            is_stalled: false,
            is_listed: false,
            waits_for: 0,
        }
    }

    /// Whether no further request may be taken now.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_closing
            || self.under_way >= UNDER_WAY_MAX
            || self.out.len() - self.sent > UNREAD_MAX
    }

    /// Whether all replies are sent.
    pub(crate) fn is_done(&self) -> bool {
        self.slots.is_empty() && self.sent == self.out.len()
    }

    /// A write of this batch is to be answered.
    pub(crate) fn push_write(&mut self, batch: u64) {
        self.under_way += 1;
        match self.slots.back_mut() {
            Some(Slot::Written { batch: last, count }) if *last == batch => *count += 1,
            _ => self.slots.push_back(Slot::Written { batch, count: 1 }),
        }
    }

    /// A place for a reply that comes later.
    pub(crate) fn reserve(&mut self) -> u64 {
        self.under_way += 1;
        self.slots.push_back(Slot::Awaited);
        self.first_slot + self.slots.len() as u64 - 1
    }

    /// The reply for a place: it goes out at once when it is the next.
    pub(crate) fn fill(&mut self, slot: u64, encode: impl FnOnce(&mut Vec<u8>)) {
        if slot == self.first_slot {
            encode(&mut self.out);
            self.pop(1);
            return;
        }
        let index = usize::try_from(slot - self.first_slot).ok();
        if let Some(slot) = index.and_then(|index| self.slots.get_mut(index)) {
            let mut reply = Vec::new();
            encode(&mut reply);
            *slot = Slot::Encoded(reply);
        }
    }

    fn pop(&mut self, requests: u64) {
        self.slots.pop_front();
        self.first_slot += 1;
        self.under_way -= requests;
    }

    /// Puts the replies that may be shown behind those that are being sent.
    fn show(&mut self, acknowledged: u64) {
        while let Some(slot) = self.slots.front() {
            match slot {
                Slot::Written { batch, count } if *batch <= acknowledged => {
                    let count = *count;
                    for _ in 0..count {
                        self.out.extend_from_slice(b"+OK\r\n");
                    }
                    self.pop(count);
                }
                Slot::Encoded(reply) => {
                    self.out.extend_from_slice(reply);
                    self.pop(1);
                }
                Slot::Written { .. } | Slot::Awaited => return,
            }
        }
    }

    /// Sends what may be shown and the socket takes. Returns the number of bytes.
    ///
    /// # Errors
    /// The connection's.
    pub(crate) fn flush(&mut self, acknowledged: u64) -> io::Result<usize> {
        self.show(acknowledged);
        let mut count = 0;
        while self.can_write && self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => {
                    self.sent += len;
                    count += len;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.can_write = false,
                Err(error) => return Err(error),
            }
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        Ok(count)
    }

    /// Reads once, by way of the loop's `scratch` into memory that is cut off `shared`. Returns the
    /// number of bytes; `None` when there are none now.
    ///
    /// # Errors
    /// The connection's; the end of the stream is `UnexpectedEof`.
    pub(crate) fn read(
        &mut self,
        scratch: &mut [u8],
        shared: &mut BytesMut,
    ) -> io::Result<Option<usize>> {
        let result = loop {
            match self.stream.read(scratch) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        match result {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.input.append(&scratch[..count], shared);
                // A short read has emptied the socket, but the end may lie behind it.
                self.can_read = count == scratch.len() || self.is_read_closed;
                Ok(Some(count))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.can_read = false;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
