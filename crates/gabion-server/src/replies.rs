//! Replies to the commands that a member forwards: what waits to be sent to it, and the reads that
//! wait for that.
//!
//! ```text
//!   Forward ─► in memory? ─ yes ─────────────────────► reply ─► waits for its turn ─► queued on the connection ─► sent
//!      │           │ no                                  ▲        └──────────── bytes ─────────────┘
//!      │           ├────────────────► under way ─────────┘
//!      ▼           ▼                      ▲
//!   unseen        cold ───────────────────┘ once less is under way and queued
//!    once less is queued
//! ```
//!
//! Only reads wait: an answer to a write has to be given whatever the member has read, and messages
//! of the chain on the connection wait for no more than is queued. The member reads whatever its
//! own clients do, so that what waits goes on by itself.
//!
//! Reads that find all in memory do not wait for those that are under way: a walk takes seconds.
//! And those that wait for room under way have half of the room for bytes to themselves, so that
//! the former cannot take it all.

use crate::run::{Begun, Item};
use gabion_base::units::VALUE_LEN_MAX;
use gabion_resp::Reply;
use std::collections::VecDeque;

/// Bytes of replies to a member, queued or expected, before further reads are under way. Frames of
/// the chain are queued behind them.
const REPLIES_MAX: usize = 64 << 20;
/// Bytes of replies to a member that are queued before its reads wait.
const QUEUED_MAX: usize = REPLIES_MAX / 2;
/// Reads of a member that are under way at most: as many as a device does at a time, and some.
const UNDER_WAY_MAX: usize = 256;
/// The reply to a read under way is expected to take at least so many bytes, and at most as many as
/// the longest value, so that a few reads may always be under way.
const EXPECTED_MIN: usize = REPLIES_MAX / UNDER_WAY_MAX;
/// Bytes of reads of a member that wait; further ones are refused.
const WAITING_MAX: usize = 64 << 20;
/// Bytes of reads on their way to a member above which further ones are held back: it refuses none
/// of as many.
pub(crate) const FORWARDED_MAX: usize = WAITING_MAX / 2;

const TOO_MANY_READS: Reply = Reply::error(
    "TRYAGAIN too many reads of this node wait until the tail of the chain has sent it the replies before them",
);

/// Replies owed to a member on one connection.
///
/// How long the reply to a read under way will be is not known: it is expected to be as long as the
/// longest of late, and as the longest value at the beginning.
pub(crate) struct Replies {
    /// Bytes of replies that are made and not sent.
    bytes: usize,
    /// Reads that have begun and whose replies are not made.
    under_way: usize,
    expected: usize,
    /// Reads that have not begun.
    unseen: VecDeque<Item>,
    /// Reads that found not all in memory and have to begin anew.
    cold: VecDeque<Item>,
    /// Bytes of both.
    waiting_bytes: usize,
    /// The number of the read that left `cold` last.
    called: Option<u64>,
}

impl Replies {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: 0,
            under_way: 0,
            expected: VALUE_LEN_MAX,
            unseen: VecDeque::new(),
            cold: VecDeque::new(),
            waiting_bytes: 0,
            called: None,
        }
    }

    /// Bytes of replies that are made and not sent.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.unseen.len() + self.cold.len()
    }

    /// Whether no read may be begun.
    const fn is_full(&self) -> bool {
        self.bytes >= QUEUED_MAX
    }

    /// Whether no read may be under way beside those that are.
    const fn is_busy(&self) -> bool {
        self.bytes + self.under_way * self.expected >= REPLIES_MAX
    }

    /// Takes a read that has come. It is to begin at once, or waits, or is refused when too much
    /// does.
    pub(crate) fn admit(&mut self, item: Item) -> Result<Item, Begun> {
        if self.unseen.is_empty() && !self.is_full() {
            return Ok(item);
        }
        Err(self.hold(item, |replies| &mut replies.unseen))
    }

    /// Takes a read that found not all in memory. It is under way from now on, or waits, or is
    /// refused.
    pub(crate) fn begin(&mut self, item: Item) -> Result<Item, Begun> {
        let is_next = self.cold.is_empty() || self.called == Some(item.number);
        if is_next && !self.is_busy() {
            self.under_way += 1;
            return Ok(item);
        }
        Err(self.hold(item, |replies| &mut replies.cold))
    }

    fn hold(&mut self, item: Item, queue: fn(&mut Self) -> &mut VecDeque<Item>) -> Begun {
        let bytes = self.waiting_bytes + item.footprint();
        // One may always wait, however long it is.
        if self.waiting_bytes > 0 && bytes > WAITING_MAX {
            return Begun::Refused(TOO_MANY_READS);
        }
        self.waiting_bytes = bytes;
        queue(self).push_back(item);
        Begun::Later
    }

    /// Whether a read that waits may go on.
    pub(crate) fn may_go_on(&self) -> bool {
        !self.cold.is_empty() && !self.is_busy() || !self.unseen.is_empty() && !self.is_full()
    }

    /// The next read that may go on: it begins anew.
    pub(crate) fn next(&mut self) -> Option<Item> {
        let cold = if self.is_busy() { None } else { self.cold.pop_front() };
        if let Some(item) = &cold {
            self.called = Some(item.number);
        }
        let item = match cold {
            None if !self.is_full() => self.unseen.pop_front()?,
            cold => cold?,
        };
        self.waiting_bytes -= item.footprint();
        Some(item)
    }

    /// A read that was under way has ended.
    pub(crate) fn end(&mut self) {
        assert!(self.under_way > 0, "a read has ended that was not under way");
        self.under_way -= 1;
    }

    /// The reply to a read has as many bytes.
    pub(crate) fn expect(&mut self, bytes: usize) {
        let late = self.expected - self.expected / 8;
        self.expected = late.max(bytes).clamp(EXPECTED_MIN, VALUE_LEN_MAX);
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
