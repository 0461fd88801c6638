//! Frames out of a byte stream, however it is split, and frames into it.
//!
//! Both buffers are reserved once and used again: no write reserves memory. The inbox grows to a
//! longer frame only when its header is whole and its length was checked, and shrinks afterwards.

use super::frame::{BODY_LEN_MAX, HEADER_LEN, Header};
use crate::transport::Transport;
use alloc::vec;
use alloc::vec::Vec;
use gabion_base::{Error, Result};

/// Bytes received at once, and kept between longer frames.
const INBOX_LEN: usize = 64 * 1024;
/// Bytes that the outbox keeps reserved.
const OUTBOX_LEN: usize = 64 * 1024;
/// A longer buffer is given back after so many turns without need of it: long frames come in rows.
const SHORT_TURNS: u32 = 64;

const _: () = assert!(INBOX_LEN > HEADER_LEN);

/// Bytes that arrived and were not taken.
pub struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    received: u64,
    short_turns: u32,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { bytes: vec![0; INBOX_LEN], start: 0, end: 0, received: 0, short_turns: 0 }
    }
}

impl Inbox {
    /// Bytes received so far.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Receives once. `Some(0)`: nothing more will come; nothing: the transport would block.
    ///
    /// # Errors
    /// The transport's.
    pub fn fill(&mut self, transport: &mut impl Transport) -> Result<Option<usize>> {
        let len = transport.receive(&mut self.bytes[self.end..])?;
        let received = len.unwrap_or(0);
        if received > self.bytes.len() - self.end {
            return Err(Error::io("a transport received more bytes than fit"));
        }
        self.end += received;
        self.received += received as u64;
        Ok(len)
    }

    /// The next frame, if it is whole: its header, and the place of its body for
    /// [`Self::body`]. Otherwise there is room for more bytes.
    ///
    /// # Errors
    /// As [`Header::decode`] and [`Header::check_body`].
    pub fn next_frame(&mut self, body_len_max: usize) -> Result<Option<(Header, Body)>> {
        let staged = &self.bytes[self.start..self.end];
        let Some(head) = staged.first_chunk() else {
            self.make_room(HEADER_LEN);
            return Ok(None);
        };
        let header = Header::decode(head, body_len_max.min(BODY_LEN_MAX))?;
        let len = HEADER_LEN + header.body_len;
        if staged.len() < len {
            self.make_room(len);
            return Ok(None);
        }
        let body = Body(self.start + HEADER_LEN, header.body_len);
        header.check_body(self.body(body))?;
        self.start += len;
        Ok(Some((header, body)))
    }

    /// The body of the frame that came last. It stands until the next call of another method.
    #[must_use]
    pub fn body(&self, Body(start, len): Body) -> &[u8] {
        &self.bytes[start..][..len]
    }

    /// Moves what is left to the front, and makes the buffer as long as a frame of `len` bytes
    /// needs.
    fn make_room(&mut self, len: usize) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.short_turns = if len > INBOX_LEN { 0 } else { self.short_turns.saturating_add(1) };
        if len > self.bytes.len() {
            self.bytes.resize(len, 0);
        } else if self.short_turns > SHORT_TURNS && self.end < INBOX_LEN {
            self.bytes.truncate(INBOX_LEN);
            self.bytes.shrink_to(INBOX_LEN);
        }
        assert!(self.end < self.bytes.len(), "there is room for more");
    }
}

/// The place of a body in the inbox.
#[derive(Clone, Copy)]
pub struct Body(usize, usize);

/// Frames on their way out.
pub struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    sent_total: u64,
    short_turns: u32,
}

impl Default for Outbox {
    fn default() -> Self {
        Self { bytes: Vec::with_capacity(OUTBOX_LEN), sent: 0, sent_total: 0, short_turns: 0 }
    }
}

impl Outbox {
    /// The buffer at whose end frames are appended.
    pub const fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Bytes that wait.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Bytes sent so far.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent_total
    }

    /// Sends once; what the transport does not take waits.
    ///
    /// # Errors
    /// The transport's.
    pub fn flush(&mut self, transport: &mut impl Transport) -> Result<()> {
        if self.waiting() == 0 {
            return Ok(());
        }
        let taken = transport.send(&[&self.bytes[self.sent..]])?;
        if taken > self.waiting() {
            return Err(Error::io("a transport sent more bytes than it was given"));
        }
        self.sent += taken;
        self.sent_total += taken as u64;
        if self.waiting() == 0 {
            let is_long = self.bytes.len() > OUTBOX_LEN;
            self.short_turns = if is_long { 0 } else { self.short_turns.saturating_add(1) };
            self.bytes.clear();
            self.sent = 0;
            if self.short_turns > SHORT_TURNS {
                self.bytes.shrink_to(OUTBOX_LEN);
            }
        } else if self.sent >= OUTBOX_LEN {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }
}
