//! Records that this replica appends: of a turn, of writes past the log, of seals, of terms and of
//! time. The log has them, the protocol sends the same bytes.

use crate::AckLevel;
use crate::node::Node;
use crate::node::apply::note_places;
use crate::node::planted::Mutant;
use crate::node::steps::Step;
use crate::node::writes::Unlogged;
use alloc::vec::Vec;
use gabion_base::{Error, Failed, Frontier, LogPosition, Result, SequenceNumber, ShardId};
use gabion_log::{Appended, RecordBuilder, RecordFlags, RecordKind, Seal, Stamp};
use gabion_replication::GroupView;

/// A seal has no more bytes than these.
const SEAL_LEN_MAX: u64 = 512;
/// A seal fills its segment where less than this is left of it, and [`SEAL_MARGIN_PART`] at most.
const SEAL_MARGIN_MIN: u64 = 4_096;
/// The filled rest is written, and sent, for nothing: at most such a part of a segment.
const SEAL_MARGIN_PART: u64 = 16;

/// Bytes of a MemTable whose values are to stay in the log, at most, where others have `usual`.
const fn longest_memtable(usual: u64) -> u64 {
    usual / 4 * 5
}

impl Node {
    /// Appends a record at the head and tells the protocol.
    pub(in crate::node) fn append_record(
        &mut self,
        kind: RecordKind,
        payload: &[u8],
        first: SequenceNumber,
        count: u32,
        flags: RecordFlags,
    ) -> Result<LogPosition> {
        let mut builder = RecordBuilder::new(kind, payload.len());
        builder.payload().extend_from_slice(payload);
        self.append_built(builder, first, count, flags)
    }

    /// As [`Self::append_record`], in the buffer that the record was encoded in. Writes past the
    /// log come before it.
    pub(in crate::node) fn append_built(
        &mut self,
        builder: RecordBuilder,
        first: SequenceNumber,
        count: u32,
        flags: RecordFlags,
    ) -> Result<LogPosition> {
        if self.is_stopping() {
            return Err(Error::unavailable("the replica stops: its log takes no more records"));
        }
        if self.view.has_too_few() {
            let reason = self.view.group().too_few().unwrap_or_default();
            return Err(Error::unavailable(reason));
        }
        self.writing.check()?;
        self.append_unlogged()?;
        let kind = builder.kind();
        if !matches!(kind, RecordKind::TermStart | RecordKind::Sessions) {
            // The tree has the operations of this record already, the log has not.
            let last = match count {
                0 => self.tree.last_sequence(),
                _ => SequenceNumber(first.get() - 1),
            };
            self.append_sessions(last)?;
        }
        // A clock that is behind the group's time, after a change of head say, makes time stand
        // still.
        let now_ms = self.now_ms.max(self.tree.now_ms());
        let stamp = Stamp { first_sequence: first, count, now_ms, flags };
        self.log.set_members_durable(self.protocol.durable_commit().only());
        let Appended { pad, record } = self.log.append_built(builder, stamp)?;
        let last = self.log.last();
        match pad {
            None => self.protocol.handle_appended(
                ShardId::ZERO,
                core::slice::from_ref(&record.bytes),
                last.crc,
            ),
            Some(pad) => {
                let records = [pad.bytes, record.bytes.clone()];
                self.protocol.handle_appended(ShardId::ZERO, &records, last.crc);
            }
        }
        assert_eq!(
            self.protocol.progress().end.only(),
            last.end,
            "what is sent is what the log has"
        );
        match kind {
            RecordKind::Batch => note_places(&mut self.tree, &record),
            RecordKind::TermStart if !self.has(Mutant::GapsKept) => self.tree.note_gap(),
            RecordKind::Seal => {
                self.apply.note_seal(record.anchor(), now_ms);
                self.sessions.sealed();
            }
            _ => {}
        }
        self.tree.pass_time(now_ms);
        self.due.mark_all(&Step::APPENDED);
        Ok(record.end())
    }

    /// Says in the log which sequence numbers are of writes that it does not have: a batch of so
    /// many that holds none.
    fn append_unlogged(&mut self) -> Result<()> {
        let Some(Unlogged { first, count }) = self.writing.take_unlogged() else { return Ok(()) };
        let appended = self.append_record(RecordKind::Batch, &[], first, count, RecordFlags::NONE);
        if appended.is_err() {
            self.writing.keep_unlogged(Unlogged { first, count });
        }
        let end = appended?;
        self.pass_marks(end, self.log.last().crc);
        Ok(())
    }

    /// Says behind a seal what the log up to there has of sessions, as it may begin there. The last
    /// operation of the log has the number `last`.
    fn append_sessions(&mut self, last: SequenceNumber) -> Result<()> {
        if !self.sessions.is_due() || self.view.log_is_private() {
            return Ok(());
        }
        let (table, flags) = (self.sessions.begin_record(), self.own_flags());
        let end = self.append_record(RecordKind::Sessions, &table, last, 0, flags)?;
        self.sessions.recorded();
        if last == self.tree.last_sequence() {
            self.pass_marks(end, self.log.last().crc);
        }
        Ok(())
    }

    /// Completes the active MemTable, here and by the record at every member.
    pub(in crate::node) fn append_seal(&mut self) {
        // All that comes before the seal is appended before the seal's frontier is taken.
        let sequence = self.tree.last_sequence();
        match self.append_unlogged().and_then(|()| self.append_sessions(sequence)) {
            Ok(()) => {}
            Err(error) => return self.failed(Failed::Append, error),
        }
        let memtable = self.tree.active_id();
        let mut payload = Vec::new();
        let frontier = Frontier::of(self.log.end());
        Seal { memtable, sequence, frontier }.encode(&mut payload);
        let result = self
            .append_record(RecordKind::Seal, &payload, sequence, 0, self.seal_flags())
            .and_then(|end| self.tree.seal(memtable, Frontier::of(end)).map(|_| ()));
        match result {
            Ok(()) => {
                self.due.mark(Step::Jobs);
                self.pass_marks(self.log.end(), self.log.last().crc);
                // Without room for it, it comes before the next record.
                if let Err(error) = self.append_sessions(sequence) {
                    self.failed(Failed::Append, error);
                }
            }
            // Without room for it the MemTable grows a little more.
            Err(error) => self.failed(Failed::Append, error),
        }
    }

    /// Completes the active MemTable where it is full; one whose values are to stay where its
    /// segment is, if it would be too long at the end of the next.
    pub(in crate::node) fn seal_if_due(&mut self) {
        if self.ends_last_segment() || self.tree.needs_seal_over(self.memtable_limit()) {
            self.append_seal();
        }
    }

    /// Bytes of the active MemTable at which it is full. One whose values are to stay may be a
    /// quarter longer, up to the segment's end.
    fn memtable_limit(&self) -> u64 {
        let usual = self.tree.config().memtable_len;
        let last = self.tree.last_segment(self.log.end());
        let is_near = self.covers_segments() && self.log.segment_rest() <= usual / 4;
        match last.is_some_and(|last| last.is_large && last.is_whole && is_near) {
            true => longest_memtable(usual),
            false => usual,
        }
    }

    /// Whether the segment that ends is the last one that the active MemTable can have whole: at
    /// the end of the next one it would be too long, if that fills it as the log did up to here.
    fn ends_last_segment(&self) -> bool {
        let Some(last) = self.tree.last_segment(self.log.end()) else { return false };
        let next = self.log.segment_rest() + self.log.config().segment_len;
        let (log, memory) = (last.memtable_log.max(1), self.tree.active_len());
        let then = u128::from(memory) * u128::from(log + next) / u128::from(log);
        self.ends_segment() && then > u128::from(longest_memtable(self.tree.config().memtable_len))
    }

    /// Bytes at which a MemTable is full, at most, when a record was applied.
    #[must_use]
    pub fn memtable_len_max(&self) -> u64 {
        let config = self.tree.config();
        match config.large_values > 0 && self.covers_segments() {
            true => longest_memtable(config.memtable_len),
            false => config.memtable_len,
        }
    }

    /// Whether a MemTable can have a segment from its beginning to its end: else none keeps values.
    fn covers_segments(&self) -> bool {
        longest_memtable(self.tree.config().memtable_len) >= self.log.config().segment_len
    }

    /// Whether a seal would fill the log's segment, of which little is left.
    fn ends_segment(&self) -> bool {
        let len = self.log.config().segment_len;
        // The next turn is most likely as long as the last: it is to begin in this segment or the
        // next, not to lie in both.
        let margin = (2 * self.writing.last_len()).max(SEAL_MARGIN_MIN).min(len / SEAL_MARGIN_PART);
        let rest = self.log.segment_rest();
        let last = self.tree.last_segment(self.log.end());
        let is_large = last.is_some_and(|last| last.is_large);
        is_large && self.covers_segments() && (SEAL_LEN_MAX..=margin).contains(&rest)
    }

    /// The next MemTable begins with a segment where the values of this one stay in its own.
    fn seal_flags(&self) -> RecordFlags {
        match self.ends_segment() {
            true => RecordFlags::BLOCK_END.with(RecordFlags::SEGMENT_END),
            false => RecordFlags::BLOCK_END,
        }
    }

    // ---- terms and time

    /// Begins the log of a term with the view in which it runs, so that the log tells by itself
    /// whose it is. A log that nobody else reads needs no such record. It waits until every full
    /// member is in the term, however long: nothing is acknowledged before that anyway.
    pub(in crate::node) fn append_term_start(&mut self) {
        let is_due = self.writing.awaits_term_start() && self.protocol.may_append();
        if !is_due || self.view.has_too_few() {
            return;
        }
        // A newer view may be on its way.
        let view = GroupView { term: self.state.term(), ..self.view.group().clone() };
        let (view, sequence) = (view.encode(), self.tree.last_sequence());
        let kind = RecordKind::TermStart;
        match self.append_record(kind, &view, sequence, 0, self.own_flags()) {
            Ok(end) => {
                self.writing.term_started();
                self.pass_marks(end, self.log.last().crc);
            }
            Err(error) => self.failed(Failed::Append, error),
        }
    }

    /// Tells the time before commands are run, so that they meet nothing that has expired by now.
    pub fn pass_time(&mut self, now_ms: u64) {
        self.set_now(now_ms);
        self.carry_time();
    }

    /// Appends a record that carries time, if one is due. The record of a turn under way carries it
    /// too.
    pub(in crate::node) fn carry_time(&mut self) {
        let is_due = self.time_due_ms().is_some_and(|due_ms| due_ms <= self.now_ms);
        if !is_due || self.writing.is_in_turn() || self.refusal().is_some() {
            return;
        }
        if self.ring_is_full() {
            return;
        }
        match self.append_time() {
            Ok(()) => {}
            Err(error) => self.failed(Failed::Append, error),
        }
    }

    /// The flags of a record that no client asked for: at the level `durable` readers wait for it
    /// all the same, and so its block has to be whole.
    pub(in crate::node) fn own_flags(&self) -> RecordFlags {
        match self.config.ack {
            AckLevel::Durable => RecordFlags::BLOCK_END,
            AckLevel::Replicated => RecordFlags::NONE,
        }
    }

    fn append_time(&mut self) -> Result<()> {
        let first = self.tree.last_sequence().next();
        // Who reads what has expired waits for this record like for any other.
        let flags = self.own_flags();
        let end = self.append_record(RecordKind::Batch, &[], first, 0, flags)?;
        self.pass_marks(end, self.log.last().crc);
        Ok(())
    }
}
