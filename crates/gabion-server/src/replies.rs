//! Replies to the commands that a member forwards: what waits to be sent to it, and the reads that wait for that.
//!
//! ```text
//!   Forward ─► read ──────────────► under way ─► waits for its turn ─► queued on the connection ─► sent
//!               │                       ▲        └──────────── bytes ─────────────┘
//!               └─► waiting, in order ──┘ once less is under way and queued
//! ```
//!
//! Only reads wait: an answer to a write has to be given whatever the member has read, and other members' messages on
//! the connection wait for no more than is queued. The member reads whatever its own clients do, so that what waits
//! goes on by itself.

use crate::run::{Begun, Item};
use gabion_base::units::VALUE_LEN_MAX;
use gabion_resp::Reply;
use std::collections::VecDeque;

/// Bytes of replies to a member, queued or expected, before its reads wait. Frames of the chain are queued behind them.
const REPLIES_MAX: usize = 64 << 20;
/// Reads of a member that are under way at most: as many as a device does at a time, and some.
const UNDER_WAY_MAX: usize = 256;
/// The reply to a read under way is expected to take at least so many bytes.
const EXPECTED_MIN: usize = REPLIES_MAX / UNDER_WAY_MAX;
/// Bytes of reads of a member that wait; further ones are refused.
const WAITING_MAX: usize = 64 << 20;
/// Bytes of reads on their way to a member above which further ones are held back: it refuses none of as many.
pub(crate) const FORWARDED_MAX: usize = WAITING_MAX / 2;

const TOO_MANY_READS: Reply = Reply::error(
    "TRYAGAIN too many reads of this node wait until the tail of the chain has sent it the replies before them",
);

/// What is owed to a member on one connection.
///
/// How long the reply to a read under way will be is not known: it is expected to be as long as the longest of late, and
/// as the longest value at the beginning.
pub(crate) struct Replies {
    /// Bytes of replies that are made and not sent.
    bytes: usize,
    /// Reads that have begun and whose replies are not made.
    under_way: usize,
    expected: usize,
    waiting: VecDeque<Item>,
    waiting_bytes: usize,
}

impl Replies {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: 0,
            under_way: 0,
            expected: VALUE_LEN_MAX,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
        }
    }

    /// Bytes of replies that are made and not sent.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    const fn is_full(&self) -> bool {
        // With nothing queued and nothing under way, one may always begin, however long the last was.
        self.bytes + self.under_way * self.expected >= REPLIES_MAX
    }

    /// Takes a read that has come. It is to begin at once, or waits, or is refused when too much does.
    pub(crate) fn admit(&mut self, item: Item) -> Result<Item, Begun> {
        if self.waiting.is_empty() && !self.is_full() {
            return Ok(item);
        }
        let len = item.footprint();
        if !self.waiting.is_empty() && self.waiting_bytes + len > WAITING_MAX {
            return Err(Begun::Done(TOO_MANY_READS, 0));
        }
        self.waiting_bytes += len;
        self.waiting.push_back(item);
        Err(Begun::Later)
    }

    /// Whether a read that waits may begin.
    pub(crate) fn may_begin(&self) -> bool {
        !self.waiting.is_empty() && !self.is_full()
    }

    /// The next read that may begin.
    pub(crate) fn next(&mut self) -> Option<Item> {
        if self.is_full() {
            return None;
        }
        let item = self.waiting.pop_front()?;
        self.waiting_bytes -= item.footprint();
        Some(item)
    }

    /// A read goes on as a task.
    pub(crate) fn begin(&mut self) {
        self.under_way += 1;
    }

    /// One that did has ended.
    pub(crate) fn end(&mut self) {
        assert!(self.under_way > 0, "a read has ended that was not under way");
        self.under_way -= 1;
    }

    /// The reply to a read has as many bytes.
    pub(crate) fn expect(&mut self, bytes: usize) {
        let late = self.expected - self.expected / 8;
        self.expected = late.max(bytes).max(EXPECTED_MIN);
    }

    /// So many bytes of replies wait from now on.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// So many do not any more.
    pub(crate) fn remove(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes, "{bytes} bytes of {} are sent", self.bytes);
        self.bytes -= bytes;
    }
}

#[cfg(test)]
mod tests;
