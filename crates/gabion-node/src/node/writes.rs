//! The writer: operations of clients at the head, until they are a record. They go into the
//! MemTable at once, so that the next command of the same turn sees them, and into one record at
//! the end of the turn: all ready connections of a turn become one record and one send.
//!
//! ```text
//!   put, delete ─┬─► MemTable
//!                └─► batch ── end of the turn ──┬─► a record, which the node appends
//!                    encoded where the record   │   (route/logging.rs)
//!                    will be                    └─► past the log: its sequence numbers alone,
//!                                                   with the next record
//! ```
//!
//! A record that the log does not take leaves the MemTable ahead of the log. Nothing is written
//! here any more then: the process ends, and the next one has what the log has.

use crate::GroupConfig;
use alloc::vec::Vec;
use gabion_base::units::RECORD_OPS_MAX;
use gabion_base::{Error, Result, SequenceNumber};
use gabion_engine::batch::{BATCH_LEN_MAX, OPERATION_OVERHEAD_MAX};
use gabion_engine::range_delete::MEMTABLE_RANGES_MAX;
use gabion_engine::{BatchBuilder, EntryKind, Keyspace, Operand, Tree, TreeConfig};
use gabion_log::{REPLY_LEN_MAX, RecordBuilder, RecordKind, SessionWrite, WRITE_LEN_MAX};

/// Room kept in a segment that is shorter than the longest record, for a record's header,
/// extensions and padding.
const RECORD_OVERHEAD: usize = 8192;

/// Bytes of session writes above which a record takes no further one: all extensions together have
/// 64 KiB.
const CLAIMS_LEN_MAX: usize = 63 << 10;
const _: () = assert!(CLAIMS_LEN_MAX + WRITE_LEN_MAX + 64 < u16::MAX as usize);

/// A longer buffer is not kept for the next batch.
const SPARE_LEN_MAX: usize = 1 << 20;

/// The record of this turn.
#[derive(Default)]
pub(super) struct Writing {
    batch: BatchBuilder,
    /// Bytes of the record before: about as many will be in the next.
    room: usize,
    /// The session writes of the batch.
    claims: Claims,
    /// The sequence number of the batch's first operation.
    first: SequenceNumber,
    /// The key being written, with its keyspace.
    key: Vec<u8>,
    /// The buffer of the last batch that no record was made of.
    spare: Vec<u8>,
    /// Writes past the log, since its last record.
    unlogged: Option<Unlogged>,
    /// The last write past the log.
    unlogged_last: SequenceNumber,
    /// The last write that is in files of which the placement log has the edits.
    kept: SequenceNumber,
    /// Why writes were refused for good in this term (the log took no record).
    failed: Option<Error>,
    /// A term began here whose log has no record yet: the first one says its view.
    awaits_term_start: bool,
    packing: Packing,
}

/// The session writes of the batch, and the operations of each.
#[derive(Default)]
struct Claims {
    list: Vec<Claim>,
    replies: Vec<u8>,
    /// Bytes that they take in the record.
    len: usize,
}

struct Claim {
    session: u64,
    number: u64,
    first: u32,
    count: u32,
    reply_len: usize,
}

impl Claims {
    fn memory_used(&self) -> usize {
        self.list.capacity() * size_of::<Claim>() + self.replies.capacity()
    }

    /// Whether the record may have no room for another one.
    #[inline]
    const fn is_full(&self) -> bool {
        self.len > CLAIMS_LEN_MAX
    }

    #[inline]
    fn push(&mut self, write: &SessionWrite<'_>) {
        let SessionWrite { session, number, first, count, reply } = *write;
        let reply_len = reply.len();
        self.list.push(Claim { session, number, first, count, reply_len });
        self.replies.extend_from_slice(reply);
        self.len += WRITE_LEN_MAX - REPLY_LEN_MAX + reply_len;
    }

    fn iter(&self) -> impl Iterator<Item = SessionWrite<'_>> {
        let mut at = 0;
        self.list.iter().map(move |&Claim { session, number, first, count, reply_len }| {
            let reply = &self.replies[at..at + reply_len];
            at += reply_len;
            SessionWrite { session, number, first, count, reply }
        })
    }

    fn clear(&mut self) {
        self.list.clear();
        self.replies.clear();
        self.len = 0;
    }
}

/// Sequence numbers of writes past the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unlogged {
    pub(super) first: SequenceNumber,
    pub(super) count: u32,
}

/// A turn that ended, to be appended to the log.
pub(super) struct Turn {
    pub(super) builder: RecordBuilder,
    pub(super) first: SequenceNumber,
    pub(super) count: u32,
}

/// Bytes of operations that one record takes.
fn batch_len_max(config: &GroupConfig) -> usize {
    BATCH_LEN_MAX.min((config.segment_len as usize).saturating_sub(RECORD_OVERHEAD))
}

/// The key as the engine has it, in a buffer that is used again.
#[inline]
fn engine_key<'a>(buffer: &'a mut Vec<u8>, keyspace: Keyspace, key: &[u8]) -> &'a [u8] {
    buffer.clear();
    buffer.push(keyspace as u8);
    buffer.extend_from_slice(key);
    buffer
}

impl Writing {
    // ---- questions

    /// Bytes of memory that the record under way takes.
    pub(super) fn memory_used(&self) -> usize {
        let claims = self.claims.memory_used();
        let buffers = self.key.capacity() + self.spare.capacity() + self.packing.memory_used();
        self.batch.memory_used() + buffers + claims
    }

    /// Whether operations wait for the end of the turn to become a record.
    #[inline]
    pub(super) const fn is_in_turn(&self) -> bool {
        !self.batch.is_empty()
    }

    /// Bytes of operations of this turn.
    #[inline]
    pub(super) const fn pending(&self) -> usize {
        self.batch.len()
    }

    /// Bytes of the record before.
    pub(super) const fn last_len(&self) -> u64 {
        self.room as u64
    }

    /// Bytes that this turn's record can still take.
    pub(super) fn room_left(&self, config: &GroupConfig) -> usize {
        match self.claims.is_full() {
            true => 0,
            false => batch_len_max(config).saturating_sub(self.batch.len() + self.claims.len),
        }
    }

    /// Whether the turn is to end before another operation of so many bytes.
    #[inline]
    pub(super) fn is_full(&self, config: &GroupConfig, len: usize) -> bool {
        let len = self.batch.len() + self.claims.len + len + OPERATION_OVERHEAD_MAX;
        let is_too_long = len > batch_len_max(config) || self.claims.is_full();
        (is_too_long || self.batch.count() + 1 > RECORD_OPS_MAX) && self.is_in_turn()
    }

    /// Whether the turn is to end before another range delete.
    pub(super) const fn has_all_ranges(&self) -> bool {
        self.batch.range_deletes() == MEMTABLE_RANGES_MAX
    }

    /// Why nothing is written in this term any more, if so.
    #[inline]
    pub(super) const fn refusal(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Whether the log has what the MemTable has. Else a later record would leave out what the log
    /// did not take, and a reply would tell of it.
    ///
    /// # Errors
    /// As [`Self::refusal`].
    #[inline]
    pub(super) fn check(&self) -> Result<()> {
        self.failed.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Whether the term that began here is still to begin in the log.
    #[inline]
    pub(super) const fn awaits_term_start(&self) -> bool {
        self.awaits_term_start
    }

    /// Whether a write past the log would go with the process.
    pub(super) fn has_unlogged(&self) -> bool {
        self.unlogged_last > self.kept
    }

    /// Checks what holds between steps: MemTable and record have the same operations.
    pub(super) fn invariants(&self, tree: &Tree) {
        let last = tree.last_sequence();
        assert!(
            !self.is_in_turn() || last.get() + 1 == self.first.get() + self.batch.count() as u64,
            "the MemTable has the operations of the turn"
        );
        assert!(self.unlogged_last <= last, "what is past the log is in the MemTable");
        let unlogged = self.unlogged.as_ref();
        assert!(
            unlogged.is_none_or(|it| it.first.get() + u64::from(it.count) <= last.get() + 1),
            "the numbers past the log are of writes"
        );
    }

    // ---- the term

    /// A term is adopted here. `begins`: its log is to begin with a record of this replica's.
    pub(super) const fn adopt_term(&mut self, begins: bool) {
        self.awaits_term_start = begins;
    }

    /// The log has the record with which the term begins.
    pub(super) fn term_started(&mut self) {
        assert!(self.awaits_term_start, "a term begins in the log once");
        self.awaits_term_start = false;
    }

    // ---- operations

    /// Packs the values that come as these options say.
    pub(super) fn pack_as(&mut self, config: &TreeConfig) {
        self.packing.set(config);
    }

    /// Begins a batch with room for about `len` bytes, or as many as the one before had.
    pub(super) fn begin(&mut self, len: usize) {
        assert!(self.batch.is_empty(), "a turn ends before the next one begins");
        // Encoded where it becomes the record, with the header in front.
        let mut bytes = core::mem::take(&mut self.spare);
        bytes.clear();
        bytes.reserve(RecordBuilder::ROOM + self.room.max(len) + 64);
        bytes.resize(RecordBuilder::ROOM, 0);
        self.batch = BatchBuilder::append_to(bytes);
    }

    /// The number of the operation that comes. One that the batch refuses leaves no trace.
    #[inline]
    fn number(&mut self, tree: &Tree) -> SequenceNumber {
        let sequence = tree.last_sequence().next();
        if self.batch.is_empty() {
            self.first = sequence;
        }
        sequence
    }

    #[inline]
    pub(super) fn put(
        &mut self,
        tree: &mut Tree,
        keyspace: Keyspace,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let sequence = self.number(tree);
        if let Some(packed) = self.packing.pack(value) {
            let (kind, stored) = self.batch.put_packed(keyspace, key, packed, None)?;
            let key = engine_key(&mut self.key, keyspace, key);
            return tree.apply_operation(sequence, kind, key, stored);
        }
        self.batch.put(keyspace, key, value)?;
        let key = engine_key(&mut self.key, keyspace, key);
        tree.apply_operation(sequence, EntryKind::Put, key, value)
    }

    pub(super) fn put_expiring(
        &mut self,
        tree: &mut Tree,
        keyspace: Keyspace,
        key: &[u8],
        value: &[u8],
        expires_ms: u64,
    ) -> Result<()> {
        let sequence = self.number(tree);
        if let Some(packed) = self.packing.pack(value) {
            let (kind, stored) = self.batch.put_packed(keyspace, key, packed, Some(expires_ms))?;
            let key = engine_key(&mut self.key, keyspace, key);
            return tree.apply_operation(sequence, kind, key, stored);
        }
        let stored = self.batch.put_expiring(keyspace, key, value, expires_ms)?;
        let key = engine_key(&mut self.key, keyspace, key);
        tree.apply_operation(sequence, EntryKind::ExpiringPut, key, stored)
    }

    pub(super) fn merge(
        &mut self,
        tree: &mut Tree,
        keyspace: Keyspace,
        key: &[u8],
        operand: Operand,
    ) -> Result<()> {
        let sequence = self.number(tree);
        let stored = self.batch.merge(keyspace, key, operand)?;
        let key = engine_key(&mut self.key, keyspace, key);
        tree.apply_operation(sequence, EntryKind::Merge, key, stored)
    }

    #[inline]
    pub(super) fn delete(&mut self, tree: &mut Tree, keyspace: Keyspace, key: &[u8]) -> Result<()> {
        let sequence = self.number(tree);
        self.batch.delete(keyspace, key)?;
        let key = engine_key(&mut self.key, keyspace, key);
        tree.apply_operation(sequence, EntryKind::Delete, key, &[])
    }

    pub(super) fn delete_range(
        &mut self,
        tree: &mut Tree,
        keyspace: Keyspace,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<()> {
        let sequence = self.number(tree);
        let end = self.batch.delete_range(keyspace, from, to)?;
        let from = engine_key(&mut self.key, keyspace, from);
        tree.apply_operation(sequence, EntryKind::RangeDelete, from, end)
    }

    pub(super) fn clear(&mut self, tree: &mut Tree, keyspace: Keyspace) -> Result<()> {
        let sequence = self.number(tree);
        self.batch.clear(keyspace)?;
        let key = engine_key(&mut self.key, keyspace, &[]);
        tree.apply_operation(sequence, EntryKind::Clear, key, &[])
    }

    // ---- the end of a turn

    /// Makes a record of the turn, which has operations.
    ///
    /// # Errors
    /// As [`RecordBuilder::of_payload`].
    #[inline]
    pub(super) fn end_turn(&mut self, tree: &Tree) -> Result<Turn> {
        let (batch, first) = (core::mem::take(&mut self.batch), self.first);
        assert_eq!(
            first.get() + batch.count() as u64,
            tree.last_sequence().get() + 1,
            "the record has what the MemTable has"
        );
        self.room = batch.len() + self.claims.len;
        let count = batch.count() as u32;
        let mut builder = RecordBuilder::of_payload(RecordKind::Batch, batch.finish())?;
        builder.sessions(self.claims.iter())?;
        Ok(Turn { builder, first, count })
    }

    /// The log did not take a record of what the MemTable has: only a restart makes them equal
    /// again. The first reason stays.
    pub(super) fn fail(&mut self, error: Error) {
        assert!(self.batch.is_empty(), "a turn fails as it ends");
        self.failed.get_or_insert(error);
    }

    // ---- whose operations they are

    /// The last `operations` of the batch are the write of a session.
    #[inline]
    pub(super) fn claim(&mut self, session: u64, number: u64, operations: usize, reply: &[u8]) {
        let count = self.batch.count();
        assert!(
            operations > 0 && operations <= count,
            "a command has {operations} operations of {count}"
        );
        let (first, count) = ((count - operations) as u32, operations as u32);
        let reply = if reply.len() > REPLY_LEN_MAX { &[] } else { reply };
        self.claims.push(&SessionWrite { session, number, first, count, reply });
    }

    /// The writes of sessions of the turn that has become a record.
    pub(super) fn claims(&self) -> impl Iterator<Item = SessionWrite<'_>> {
        self.claims.iter()
    }

    /// Forgets the claims, which the table has noted.
    pub(super) fn forget_claims(&mut self) {
        self.claims.clear();
    }

    // ---- writes past the log

    /// Makes nothing of the batch but its sequence numbers.
    pub(super) fn skip_batch(&mut self) {
        assert!(self.claims.list.is_empty(), "who writes past the log has no session");
        let batch = core::mem::take(&mut self.batch);
        let (first, count) = (self.first, batch.count() as u32);
        self.room = batch.len();
        let unlogged = self.unlogged.get_or_insert(Unlogged { first, count: 0 });
        assert_eq!(
            unlogged.first.get() + u64::from(unlogged.count),
            first.get(),
            "one record says all numbers that the log does not have"
        );
        unlogged.count += count;
        self.unlogged_last = SequenceNumber(first.get() + u64::from(count) - 1);
        self.spare = batch.finish();
        if self.spare.capacity() > SPARE_LEN_MAX {
            self.spare = Vec::new();
        }
    }

    /// Leaves out the numbers up to the last clear that an edit has kept.
    ///
    /// # Errors
    /// As [`gabion_engine::Tree::skip_sequences`].
    pub(super) fn skip_cleared(&mut self, tree: &mut Tree) -> Result<()> {
        let (first, floor) = (tree.last_sequence().next(), tree.floor());
        if floor < first {
            return Ok(());
        }
        // A MemTable has fewer entries, and the seal of one has the numbers before it logged.
        let count = u32::try_from(floor.get() - first.get() + 1).unwrap_or(u32::MAX);
        tree.skip_sequences(first, count)?;
        self.unlogged = Some(Unlogged { first, count });
        Ok(())
    }

    /// The numbers that the log is to be told before its next record.
    #[inline]
    pub(super) const fn take_unlogged(&mut self) -> Option<Unlogged> {
        self.unlogged.take()
    }

    /// The log was not told these numbers.
    pub(super) fn keep_unlogged(&mut self, unlogged: Unlogged) {
        assert!(self.unlogged.is_none(), "numbers are told in their order");
        self.unlogged = Some(unlogged);
    }

    /// What was flushed up to here is found again by the next process.
    pub(super) const fn keep_flushed(&mut self, sequence: SequenceNumber) {
        self.kept = sequence;
    }
}

mod packing;
use packing::Packing;

#[cfg(test)]
mod tests;
