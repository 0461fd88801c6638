//! The table of sessions: which of the writes that doors have numbered the log has, and how they
//! were answered. A write whose answer was lost is told by it from one that was not made.
//!
//! ```text
//!   end of a turn (head) ─► session extension ─► record ─► note ─► table, alike at every member
//!                                                                    │
//!   door: was this number made? ◄──────────── look_up ◄──────────────┤
//!   behind each seal: a record of the whole table ◄── encode ────────┘
//! ```
//!
//! A *session* is one start of one replica's door: the replica's number above, a random number
//! below. A replica has one session at a time, so the table has a place for each replica, and the
//! first write of a new session empties it.
//!
//! **Bounds.** The writes of all sessions together take [`BYTES_MAX`] at most. Beyond that the
//! session with most of them forgets its oldest, and notes the greatest number that it forgot. A
//! number that is not here and is above that one was never made. [`SESSIONS_MAX`] replicas have a
//! place; when another one writes, the place that was longest without a write goes.
//!
//! **A log that begins later.** A log begins behind a seal. The head appends a record of the table
//! there before any other record, so what is trimmed is in the log once more: after a restart and
//! for a replica that got a full copy. Only a head that finds nothing at all behind the first seal
//! cannot know, and says so in the record (`has_forgotten`).
//!
//! ```text
//!   table   0 u8 version, 1   1 u8  1: something was forgotten for which no number stands
//!           2 u32 sessions, then for each
//!               0 u64 session   8 u64 greatest number forgotten   16 u64 record of its last write
//!              24 u8 sessions before it, u64 each, oldest first
//!               … u32 writes, then for each: u64 number, u8 length, the reply
//! ```
//!
//! A length of 0 stands for a reply that was longer than a record remembers.
//!
//! A write of a door may still run at the head when the door has started anew, and end behind the
//! first write of the new session. It is of a session whose place is taken, and is not noted:
//! nobody asks for it any more.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::{Error, LogIndex, Result};
use gabion_log::{REPLY_LEN_MAX, Record, RecordKind};

const VERSION: u8 = 1;
/// Bytes of all writes in the table, as they are encoded: 18,000 with the reply `+OK`.
const BYTES_MAX: usize = 256 << 10;
/// Replicas that have a place in the table.
const SESSIONS_MAX: usize = 64;
/// Bytes of a write without its reply.
const WRITE_LEN: usize = 9;
/// The first number in a table without a past may be behind others of its session by this much:
/// more than writes of one door are under way.
const NUMBERS_UNDER_WAY: u64 = 1 << 20;
/// Sessions of a replica that are known to be over: a door that starts as often while one write
/// runs is none.
const BEFORE_MAX: usize = 4;

/// The fate of a write that a door has numbered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteFate {
    /// It is in the log. The reply as it was encoded; `None` where that was too long to be kept.
    Made(Option<Vec<u8>>),
    /// It is not in the log.
    NotMade,
    /// The table does not reach back that far.
    Unknown,
}

/// The writes of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Session {
    id: u64,
    /// The greatest number that was forgotten, or may have been.
    forgotten: u64,
    /// The record of its last write.
    last: LogIndex,
    /// Sessions of the same replica that had the place before, the oldest first.
    before: Vec<u64>,
    /// Number and length of the reply, in the order of the log.
    writes: VecDeque<(u64, u8)>,
    /// The replies, one behind the other.
    replies: VecDeque<u8>,
}

impl Session {
    fn new(id: u64, forgotten: u64) -> Self {
        let (writes, replies) = (VecDeque::new(), VecDeque::new());
        Self { id, forgotten, last: LogIndex(0), before: Vec::new(), writes, replies }
    }

    /// The replica whose door it is.
    const fn replica(&self) -> u64 {
        self.id >> 32
    }

    fn bytes(&self) -> usize {
        self.writes.len() * WRITE_LEN + self.replies.len()
    }

    fn push(&mut self, number: u64, reply: &[u8]) {
        self.writes.push_back((number, reply.len() as u8));
        self.replies.extend(reply);
    }

    /// Forgets its oldest write.
    fn pop(&mut self) {
        let Some((number, len)) = self.writes.pop_front() else { return };
        self.replies.drain(..usize::from(len));
        self.forgotten = self.forgotten.max(number);
    }

    fn look_up(&self, number: u64) -> WriteFate {
        let mut at = 0;
        for (made, len) in &self.writes {
            let end = at + usize::from(*len);
            if *made == number {
                let reply = self.replies.range(at..end).copied().collect();
                return WriteFate::Made(Some(reply).filter(|_| *len > 0));
            }
            at = end;
        }
        match number <= self.forgotten {
            true => WriteFate::Unknown,
            false => WriteFate::NotMade,
        }
    }
}

/// The table.
pub(super) struct Sessions {
    list: Vec<Session>,
    /// Bytes of all writes, and how many they may be.
    bytes: usize,
    bytes_max: usize,
    /// The log has told what was before it.
    is_begun: bool,
    /// Sessions may have been forgotten.
    has_forgotten: bool,
    /// The log has no record of the table behind its last seal.
    is_due: bool,
}

impl Sessions {
    /// For a log of such segments; `has_all`: from its very beginning.
    pub(super) fn new(segment_len: u64, has_all: bool) -> Self {
        let bytes_max = BYTES_MAX.min(segment_len as usize / 4);
        Self {
            list: Vec::new(),
            bytes: 0,
            bytes_max,
            is_begun: has_all,
            has_forgotten: false,
            is_due: !has_all,
        }
    }

    // ---- questions

    /// The fate of a write.
    pub(super) fn look_up(&self, session: u64, number: u64) -> WriteFate {
        match self.list.iter().find(|it| it.id == session) {
            Some(session) => session.look_up(number),
            None if self.has_forgotten || !self.is_begun => WriteFate::Unknown,
            None if self.list.iter().any(|it| it.before.contains(&session)) => WriteFate::Unknown,
            None => WriteFate::NotMade,
        }
    }

    /// Whether a record of the table is to be the next record.
    pub(super) const fn is_due(&self) -> bool {
        self.is_due
    }

    /// How many sessions it has.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn memory_used(&self) -> usize {
        let of =
            |it: &Session| it.replies.capacity() + it.writes.capacity() * size_of::<(u64, u8)>();
        self.list.iter().map(of).sum()
    }

    /// Checks what holds between steps.
    pub(super) fn invariants(&self) {
        assert!(self.bytes <= self.bytes_max, "the table is bounded: {} bytes", self.bytes);
        assert!(self.list.len() <= SESSIONS_MAX, "the table is bounded: {}", self.list.len());
        if cfg!(debug_assertions) {
            assert_eq!(self.bytes, self.list.iter().map(Session::bytes).sum::<usize>());
        }
    }

    // ---- the log

    /// Notes what a record says that was appended here or came.
    ///
    /// # Errors
    /// Corruption, for a record that the log of this table cannot have.
    pub(super) fn apply(&mut self, record: &Record) -> Result<()> {
        match record.header.kind {
            RecordKind::Sessions => return self.take(&record.payload()),
            RecordKind::TermStart | RecordKind::Pad => return Ok(()),
            RecordKind::Seal => self.is_due = true,
            RecordKind::Batch | RecordKind::Edit => {}
        }
        // A record of a build without sessions tells nothing of them.
        self.is_begun = true;
        for write in record.sessions()? {
            self.note(write.session, write.number, write.reply, record.header.index);
        }
        Ok(())
    }

    /// The log has a write of a session, in this record.
    pub(super) fn note(&mut self, session: u64, number: u64, reply: &[u8], at: LogIndex) {
        debug_assert!(reply.len() <= REPLY_LEN_MAX, "a record remembers short replies");
        let Some(place) = self.place_of(session, number) else { return };
        let session = &mut self.list[place];
        session.last = at;
        session.push(number, reply);
        self.bytes += WRITE_LEN + reply.len();
        while self.bytes > self.bytes_max {
            self.forget_oldest();
        }
    }

    /// The place of a session, emptied of an older one of the same replica; none if the session is
    /// over, as a newer one has the place.
    fn place_of(&mut self, id: u64, number: u64) -> Option<usize> {
        let is_of_replica = |it: &Session| it.replica() == id >> 32;
        let found = self.list.iter().position(is_of_replica);
        let mut before = Vec::new();
        if let Some(place) = found {
            let there = &self.list[place];
            if there.id == id {
                return found;
            }
            if there.before.contains(&id) {
                return None;
            }
            let kept = (there.before.len() + 1).saturating_sub(BEFORE_MAX);
            before.extend_from_slice(&there.before[kept..]);
            before.push(there.id);
        }
        let under_way = number.saturating_add(NUMBERS_UNDER_WAY);
        let forgotten = if self.has_forgotten { under_way } else { 0 };
        let place = found.unwrap_or_else(|| self.make_place());
        self.bytes -= self.list[place].bytes();
        self.list[place] = Session { before, ..Session::new(id, forgotten) };
        Some(place)
    }

    /// A place for another replica: a new one, or that which was longest without a write.
    fn make_place(&mut self) -> usize {
        if self.list.len() < SESSIONS_MAX {
            self.list.push(Session::new(0, 0));
            return self.list.len() - 1;
        }
        self.has_forgotten = true;
        let oldest = (0..self.list.len()).min_by_key(|place| self.list[*place].last);
        oldest.unwrap_or_default()
    }

    fn forget_oldest(&mut self) {
        let Some(most) = self.list.iter_mut().max_by_key(|it| it.bytes()) else { return };
        let before = most.bytes();
        most.pop();
        self.bytes -= before - most.bytes();
    }

    /// The log has a seal of this head's.
    pub(super) const fn sealed(&mut self) {
        self.is_due = true;
    }

    // ---- the record of the table

    /// The payload of the record that comes behind a seal.
    pub(super) fn begin_record(&mut self) -> Vec<u8> {
        if !self.is_begun {
            // The log begins behind a seal, and has nothing there that tells.
            (self.is_begun, self.has_forgotten) = (true, true);
        }
        self.encode()
    }

    /// The log has that record.
    pub(super) const fn recorded(&mut self) {
        self.is_due = false;
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(8 + self.list.len() * 29 + self.bytes);
        out.put_u8(VERSION);
        out.put_u8(u8::from(self.has_forgotten));
        out.put_u32(self.list.len() as u32);
        for Session { id, forgotten, last, before, writes, replies } in &self.list {
            out.put_u64(*id);
            out.put_u64(*forgotten);
            out.put_u64(last.get());
            out.put_u8(before.len() as u8);
            before.iter().for_each(|id| out.put_u64(*id));
            out.put_u32(writes.len() as u32);
            let mut at = 0;
            for (number, len) in writes {
                let end = at + usize::from(*len);
                out.put_u64(*number);
                out.put_u8(*len);
                out.extend(replies.range(at..end));
                at = end;
            }
        }
        out
    }

    /// Takes the table that the log has, which is this one if this one was begun.
    fn take(&mut self, payload: &[u8]) -> Result<()> {
        let (list, has_forgotten) = decode(payload)?;
        let bytes = list.iter().map(Session::bytes).sum();
        if bytes > self.bytes_max {
            return Err(Error::corruption(format!(
                "a table of sessions with {bytes} bytes of writes; the limit is {}",
                self.bytes_max
            )));
        }
        // A head that cannot know has the last word, since all others follow its log.
        let knows_less = has_forgotten && list.is_empty();
        if self.is_begun && !knows_less && list != self.list {
            return Err(Error::corruption(format!(
                "the log has a table of {} sessions with {bytes} bytes of writes, and its records \
                 make one of {} with {}",
                list.len(),
                self.list.len(),
                self.bytes
            )));
        }
        (self.list, self.bytes, self.has_forgotten) = (list, bytes, has_forgotten);
        (self.is_begun, self.is_due) = (true, false);
        Ok(())
    }
}

/// Reads what [`Sessions::encode`] writes.
fn decode(bytes: &[u8]) -> Result<(Vec<Session>, bool)> {
    let mut r = Reader::new(bytes, "table of sessions");
    let (version, flag, count) = (r.u8()?, r.u8()?, r.u32()? as usize);
    if version != VERSION {
        return Err(Error::unsupported(format!(
            "table of sessions of version {version}; this build knows version {VERSION}"
        )));
    }
    if flag > 1 || count > SESSIONS_MAX {
        return Err(Error::corruption(format!(
            "table of {count} sessions with flag {flag}; the limits are {SESSIONS_MAX} and 1"
        )));
    }
    let mut list: Vec<Session> = Vec::with_capacity(count);
    for _ in 0..count {
        let mut session = Session::new(r.u64()?, r.u64()?);
        session.last = LogIndex(r.u64()?);
        let before = usize::from(r.u8()?);
        if before > BEFORE_MAX {
            return Err(Error::corruption(format!(
                "table of sessions: {before} before one; the limit is {BEFORE_MAX}"
            )));
        }
        for _ in 0..before {
            session.before.push(r.u64()?);
        }
        for _ in 0..r.u32()? {
            let (number, len) = (r.u64()?, usize::from(r.u8()?));
            if len > REPLY_LEN_MAX {
                return Err(Error::corruption(format!(
                    "table of sessions: a reply of {len} bytes; the limit is {REPLY_LEN_MAX}"
                )));
            }
            session.push(number, r.bytes(len)?);
        }
        if list.iter().any(|it| it.replica() == session.replica()) {
            return Err(Error::corruption(format!(
                "table of sessions: two of replica {}",
                session.replica()
            )));
        }
        list.push(session);
    }
    r.finish()?;
    Ok((list, flag == 1))
}

#[cfg(test)]
mod tests;
