//! Client writes at the head. Operations go into the MemTable at once, so that the next command of
//! the same turn sees them, and into one record at the end of the turn: all ready connections of a
//! turn become one record and one send.

use super::facts::facts;
use super::{Mutant, Node, WriteGate, WriteStop};
use crate::AckLevel;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_base::units::RECORD_OPS_MAX;
use gabion_base::{Error, Failed, Frontier, Result, SequenceNumber};
use gabion_engine::batch::{BATCH_LEN_MAX, OPERATION_OVERHEAD_MAX};
use gabion_engine::counter::OPERAND_LEN;
use gabion_engine::range_delete::MEMTABLE_RANGES_MAX;
use gabion_engine::{BatchBuilder, EntryKind, Keyspace, Operand, Pressure, WriteState};
use gabion_log::{RecordBuilder, RecordFlags, RecordKind};

/// Room kept in a segment that is shorter than the longest record, for a record's header,
/// extensions and padding.
const RECORD_OVERHEAD: usize = 8192;

/// A longer buffer is not kept for the next batch.
const SPARE_LEN_MAX: usize = 1 << 20;

/// The record of this turn.
#[derive(Default)]
pub(super) struct Writing {
    batch: BatchBuilder,
    /// Bytes of the record before: about as many will be in the next.
    room: usize,
    first: SequenceNumber,
    /// The key being written, with its keyspace.
    key: Vec<u8>,
    /// The buffer of the last batch that no record was made of.
    spare: Vec<u8>,
    /// Writes past the log, since its last record.
    pub(super) unlogged: Option<Unlogged>,
    /// The last write past the log.
    unlogged_last: SequenceNumber,
    /// The last write that is in files of which the placement log has the edits.
    kept: SequenceNumber,
    /// Why writes were refused for good in this term (the log took no record).
    failed: Option<Error>,
    /// A term began here whose log has no record yet: the first one says its view.
    pub(super) awaits_term_start: bool,
}

/// Sequence numbers of writes past the log.
pub(super) struct Unlogged {
    pub(super) first: SequenceNumber,
    pub(super) count: u32,
}

impl Writing {
    /// Bytes of memory that the record under way takes.
    pub(super) fn memory_used(&self) -> usize {
        self.batch.memory_used() + self.key.capacity() + self.spare.capacity()
    }

    /// An empty batch with room for about `len` bytes, or as many as the one before had.
    fn begin(&mut self, len: usize) {
        // Encoded where it becomes the record, with the header in front.
        let mut bytes = core::mem::take(&mut self.spare);
        bytes.clear();
        bytes.reserve(RecordBuilder::ROOM + self.room.max(len) + 64);
        bytes.resize(RecordBuilder::ROOM, 0);
        self.batch = BatchBuilder::append_to(bytes);
    }

    /// What was flushed up to here is found again by the next process.
    pub(super) const fn keep_flushed(&mut self, sequence: SequenceNumber) {
        self.kept = sequence;
    }

    /// Makes nothing of the batch.
    fn skip_batch(&mut self) {
        let batch = core::mem::take(&mut self.batch);
        let count = batch.count() as u32;
        self.room = batch.len();
        let unlogged = self.unlogged.get_or_insert(Unlogged { first: self.first, count: 0 });
        unlogged.count += count;
        self.unlogged_last = SequenceNumber(self.first.get() + u64::from(count) - 1);
        self.spare = batch.finish();
        if self.spare.capacity() > SPARE_LEN_MAX {
            self.spare = Vec::new();
        }
    }
}

impl Node {
    /// Whether a write can be taken now. Whoever has one wait says so with [`Self::hold_write`].
    #[must_use]
    pub fn write_gate(&self) -> WriteGate {
        if !self.duties().append {
            return WriteGate::Refuse(format!("{} takes writes", self.view.writer()));
        }
        if let Some(reason) = self.not_writing() {
            return WriteGate::Refuse(reason);
        }
        if let Some(reason) = self.jobs.out_of_space() {
            let lag = self.lag().map(|(_, reason)| reason);
            let deletes = lag.map(|lag| format!("; deletes are refused, too, as {lag}"));
            let reason = format!("the pool is full: {reason}{}", deletes.unwrap_or_default());
            return WriteGate::Full {
                reason,
                takes_deletes: lag.is_none(),
                takes_clears: lag.is_none(),
            };
        }
        match (self.full(), self.lag().map(|(_, reason)| reason)) {
            (None, None) if self.writes_due_ms().is_some() => {
                WriteGate::Wait("compaction is behind, writers are slowed down")
            }
            (None, None) => WriteGate::Open,
            (None, Some(lag)) => WriteGate::Wait(lag),
            (Some(_), lag) if self.makes_room() => {
                WriteGate::Wait(lag.unwrap_or("the pool is almost full, compaction makes room"))
            }
            (Some(reason), lag) => self.full_gate(&reason, lag),
        }
    }

    /// The gate where there is no room and nothing makes any.
    fn full_gate(&self, reason: &str, lag: Option<&str>) -> WriteGate {
        let in_vain = self.waits_in_vain_for_room();
        let what_of_deletes = match lag {
            None => "deletes are taken".into(),
            Some(lag) if !in_vain => format!("deletes wait, as {lag}"),
            Some(lag) => format!("deletes are refused, too, as {lag} and nothing gives slots back"),
        };
        let log_goes_on =
            self.load_lag().is_none() && self.ring_lag().is_none() && !self.is_log_long();
        WriteGate::Full {
            reason: format!("{reason}; {what_of_deletes}"),
            takes_deletes: lag.is_none(),
            takes_clears: lag.is_none() || (in_vain && log_goes_on),
        }
    }

    /// Whether [`Self::make_durable`] can be called now: the log takes a record. Flushes and
    /// compactions that are behind, and a pool that is full, hold nobody back who writes nothing.
    #[must_use]
    pub fn durable_gate(&self) -> WriteGate {
        match (self.not_writing(), self.load_lag().or_else(|| self.ring_lag())) {
            (Some(reason), _) => WriteGate::Refuse(reason),
            (None, Some((_, lag))) => WriteGate::Wait(lag),
            (None, None) => WriteGate::Open,
        }
    }

    /// The load that any record waits for.
    fn load_lag(&self) -> Option<(WriteStop, &'static str)> {
        let holds = self.loads.hold_writes() || self.apply.last_load().is_some();
        holds.then_some((WriteStop::Load, "a bulk load takes effect"))
    }

    /// The drain that any record waits for.
    fn ring_lag(&self) -> Option<(WriteStop, &'static str)> {
        let is_full = self.ring_room() < self.ring_reserve();
        is_full.then_some((WriteStop::Ring, "the log's ring is full"))
    }

    /// While writers are slowed down: when, by the clock that the node is told, they may go on.
    /// Whoever drives a head calls [`Self::pass_time`] or [`Self::advance`] then.
    #[must_use]
    pub fn writes_due_ms(&self) -> Option<u64> {
        self.pace.wait_until_ms(self.writing.batch.len())
    }

    /// What lags behind so far that any write waits for it, and the words for it.
    pub(super) fn lag(&self) -> Option<(WriteStop, &'static str)> {
        if let Some(load) = self.load_lag() {
            Some(load)
        } else if let WriteState::Stop(pressure) = self.tree.write_state() {
            Some(match (pressure, self.damage()) {
                (Pressure::SealedMemTables(_), _) => (WriteStop::Flush, "flush is behind"),
                (_, Some(_)) => {
                    (WriteStop::Compaction, "compaction is behind, as files are damaged")
                }
                (_, None) => (WriteStop::Compaction, "compaction is behind"),
            })
        } else if self.tree.sealed_count() > self.options.sealed_max {
            Some((WriteStop::Flush, "flush is behind"))
        } else if self.edits_not_applied_everywhere() > self.options.sealed_max as u64 * 4 {
            let who = match self.duties().log_edits {
                false => "edits are applied late",
                true => "a replica applies edits late",
            };
            Some((WriteStop::Edits, who))
        } else if let Some(ring) = self.ring_lag() {
            Some(ring)
        } else {
            self.is_log_long().then_some((WriteStop::Log, "the log waits for flushes"))
        }
    }

    /// Whether operations wait for the end of the turn to become a record.
    pub(super) fn is_in_turn(&self) -> bool {
        !self.writing.batch.is_empty()
    }

    /// Why nothing may go into the log, if so. A pool that is full is no such reason: an edit that
    /// waits to be appended may be what gives slots back.
    pub(super) fn not_writing(&self) -> Option<String> {
        if let Some(error) = &self.writing.failed {
            return Some(error.to_string());
        }
        if self.is_stopping() {
            return Some("the replica stops".into());
        }
        if let Some(reason) = self.protocol.not_ready_reason().or(self.refused.as_deref()) {
            return Some(reason.into());
        }
        let is_starting = !self.protocol.is_joined() || self.writing.awaits_term_start;
        is_starting.then(|| "the group is starting".into())
    }

    /// Whether every member has an edit in its placement log, so that none starts without it.
    /// Members that compact for themselves do not tell.
    #[must_use]
    pub fn is_edit_kept(&self, edit: u64) -> bool {
        !self.view.has_one_tree() || self.protocol.edits_applied_min() >= edit
    }

    fn edits_not_applied_everywhere(&self) -> u64 {
        if !self.view.has_one_tree() {
            return 0;
        }
        self.apply.last_appended(self.tree.last_edit()) - self.protocol.edits_applied_min()
    }

    /// Sets a key, as part of this turn's record.
    ///
    /// # Durability
    /// None before [`Self::acknowledged`] has reached the position that [`Self::end_turn`] returns.
    ///
    /// # Errors
    /// Limit exceeded for a key or value that is too long; nothing is written then.
    ///
    /// # Panics
    /// When called at another member than the head, or while [`Self::write_gate`] is not open.
    pub fn put(&mut self, keyspace: Keyspace, key: &[u8], value: &[u8]) -> Result<()> {
        self.make_room(key.len() + value.len())?;
        self.writing.batch.put(keyspace, key, value)?;
        self.insert(EntryKind::Put, keyspace, key, value)
    }

    /// Sets a key until group time is `expires_ms`, in milliseconds since 1970, as part of this
    /// turn's record. One in the past is a write as well: of a value that nobody sees once the
    /// record is applied.
    ///
    /// # Durability
    /// As [`Self::put`].
    ///
    /// # Errors
    /// As [`Self::put`].
    ///
    /// # Panics
    /// As [`Self::put`].
    pub fn put_expiring(
        &mut self,
        keyspace: Keyspace,
        key: &[u8],
        value: &[u8],
        expires_ms: u64,
    ) -> Result<()> {
        self.make_room(key.len() + value.len())?;
        let mut batch = core::mem::take(&mut self.writing.batch);
        let is_first = batch.is_empty();
        let inserted = match batch.put_expiring(keyspace, key, value, expires_ms) {
            Ok(stored) => self.insert_as(is_first, EntryKind::ExpiringPut, keyspace, key, stored),
            Err(error) => Err(error),
        };
        self.writing.batch = batch;
        inserted
    }

    /// Adds to a counter, as part of this turn's record, without a look at what it has: see
    /// [`gabion_engine::counter`] for what adding means. What expires by the clock that the node
    /// was told counts as 0.
    ///
    /// # Durability
    /// As [`Self::put`].
    ///
    /// # Errors
    /// As [`Self::put`].
    ///
    /// # Panics
    /// As [`Self::put`].
    pub fn add(&mut self, keyspace: Keyspace, key: &[u8], delta: i64) -> Result<()> {
        self.make_room(key.len() + OPERAND_LEN)?;
        // At this time or later by the record that carries it: whoever reads the sum judges so too.
        let operand = Operand::add(delta, self.now_ms());
        let mut batch = core::mem::take(&mut self.writing.batch);
        let is_first = batch.is_empty();
        let inserted = match batch.merge(keyspace, key, operand) {
            Ok(stored) => self.insert_as(is_first, EntryKind::Merge, keyspace, key, stored),
            Err(error) => Err(error),
        };
        self.writing.batch = batch;
        inserted
    }

    /// Deletes a key, as part of this turn's record. Deleting what is not there is a write as well.
    ///
    /// # Durability
    /// As [`Self::put`].
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn delete(&mut self, keyspace: Keyspace, key: &[u8]) -> Result<()> {
        self.make_room(key.len())?;
        self.writing.batch.delete(keyspace, key)?;
        self.insert(EntryKind::Delete, keyspace, key, &[])
    }

    /// Deletes every key of `from..to`, or from `from` to the end of the keyspace, as part of this
    /// turn's record: one entry, whatever it deletes. See [`gabion_engine::range_delete`] for what
    /// it costs who reads.
    ///
    /// # Durability
    /// As [`Self::put`].
    ///
    /// # Errors
    /// As [`Self::put`]; invalid input when `to` is not after `from`.
    ///
    /// # Panics
    /// As [`Self::put`].
    pub fn delete_range(
        &mut self,
        keyspace: Keyspace,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<()> {
        self.make_room(from.len() + to.map_or(0, <[u8]>::len))?;
        if self.writing.batch.range_deletes() == MEMTABLE_RANGES_MAX {
            self.end_turn()?;
            self.make_room(0)?;
        }
        let mut batch = core::mem::take(&mut self.writing.batch);
        let is_first = batch.is_empty();
        let inserted = match batch.delete_range(keyspace, from, to) {
            Ok(end) => self.insert_as(is_first, EntryKind::RangeDelete, keyspace, from, end),
            Err(error) => Err(error),
        };
        self.writing.batch = batch;
        inserted
    }

    /// Deletes all of the user keyspace, as part of this turn's record, in constant time.
    ///
    /// # Durability
    /// As [`Self::put`].
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn clear(&mut self) -> Result<()> {
        self.make_room(0)?;
        self.writing.batch.clear(Keyspace::User)?;
        self.insert(EntryKind::Clear, Keyspace::User, &[], &[])
    }

    fn insert(
        &mut self,
        kind: EntryKind,
        keyspace: Keyspace,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        self.insert_as(self.writing.batch.count() == 1, kind, keyspace, key, value)
    }

    fn insert_as(
        &mut self,
        is_first: bool,
        kind: EntryKind,
        keyspace: Keyspace,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let sequence = self.tree.last_sequence().next();
        if is_first {
            self.writing.first = sequence;
        }
        let engine_key = &mut self.writing.key;
        engine_key.clear();
        engine_key.push(keyspace as u8);
        engine_key.extend_from_slice(key);
        self.tree.apply_operation(sequence, kind, engine_key, value)
    }

    /// Ends the record early when the operation does not fit any more.
    fn make_room(&mut self, len: usize) -> Result<()> {
        assert!(self.duties().append, "writes go to the head");
        let batch = &self.writing.batch;
        let full = batch.len() + len + OPERATION_OVERHEAD_MAX > self.batch_len_max()
            || batch.count() + 1 > RECORD_OPS_MAX;
        if full && batch.count() > 0 {
            self.end_turn()?;
        }
        if self.writing.batch.is_empty() {
            self.held_writes.release();
            self.writing.begin(len);
        }
        Ok(())
    }

    /// Bytes of operations that one record takes.
    fn batch_len_max(&self) -> usize {
        BATCH_LEN_MAX.min((self.config.segment_len as usize).saturating_sub(RECORD_OVERHEAD))
    }

    /// Bytes that this turn's record can still take; a group of operations that must stay in one
    /// record asks first.
    #[must_use]
    pub fn turn_room(&self) -> usize {
        self.batch_len_max().saturating_sub(self.writing.batch.len())
    }

    /// Ends the turn: its operations become one record in the log and on the wire. Returns the
    /// log's end, which is the frontier to wait for also when nothing was written: a reply waits
    /// until the state that it saw is acknowledged.
    ///
    /// # Errors
    /// The log's error. Writes are refused from then on, as the MemTable holds what the log does
    /// not.
    pub fn end_turn(&mut self) -> Result<Frontier> {
        self.end_turn_at(self.config.ack)
    }

    /// As [`Self::end_turn`], at another level than the group's for this record: with
    /// [`AckLevel::Durable`] every member flushes up to it, and [`Self::durable_everywhere`] is
    /// what to wait for. The group's own level, where it is the higher one, holds all the same.
    ///
    /// # Errors
    /// As [`Self::end_turn`].
    pub fn end_turn_at(&mut self, level: AckLevel) -> Result<Frontier> {
        if self.writing.batch.is_empty() {
            return Ok(self.log_end());
        }
        let batch = core::mem::take(&mut self.writing.batch);
        self.pace.wrote(batch.len());
        let flags = match (self.config.ack, level) {
            (AckLevel::Durable, _) => RecordFlags::BLOCK_END,
            (_, AckLevel::Durable) => RecordFlags::DURABLE_ACK,
            (AckLevel::Replicated, AckLevel::Replicated)
                if self.apply.clear_is_awaited(&facts!(self), &self.tree) =>
            {
                RecordFlags::BLOCK_END
            }
            (AckLevel::Replicated, AckLevel::Replicated) => RecordFlags::NONE,
        };
        let count = batch.count() as u32;
        let first = self.writing.first;
        self.writing.room = batch.len();
        let builder = RecordBuilder::of_payload(RecordKind::Batch, batch.finish());
        let result = builder.and_then(|builder| self.append_built(builder, first, count, flags));
        if let Err(error) = result {
            // The MemTable holds what the log does not: only a restart makes them equal again.
            self.writing.failed = Some(error.clone());
            self.failed(Failed::Apply, error.clone());
            return Err(error);
        }
        self.apply.note_clear(&self.tree, self.log.end());
        self.pass_marks(self.log.end(), self.log.last().crc);
        if level == AckLevel::Durable {
            self.want_durable(self.log.end());
        }
        if self.tree.needs_seal() {
            self.append_seal();
        }
        Ok(self.log_end())
    }

    /// Goes on behind the last clear that an edit has kept: of one past the log, and of the writes
    /// before it, the log may not tell, and what got their numbers would count as cleared.
    ///
    /// # Errors
    /// As [`gabion_engine::Tree::skip_sequences`].
    pub(super) fn skip_cleared(&mut self) -> Result<()> {
        let (first, floor) = (self.tree.last_sequence().next(), self.tree.floor());
        if !self.view.log_is_private() || floor < first {
            return Ok(());
        }
        // A MemTable has fewer entries, and the seal of one has the numbers before it logged.
        let count = u32::try_from(floor.get() - first.get() + 1).unwrap_or(u32::MAX);
        self.tree.skip_sequences(first, count)?;
        self.writing.unlogged = Some(Unlogged { first, count });
        Ok(())
    }

    /// Ends the turn without a record: what was written is in the MemTable alone. The process takes
    /// it along when it ends, unless it was flushed to a file before; of what came later, what went
    /// into the log is found again all the same. Only the sequence numbers go into the log, with
    /// the next record.
    ///
    /// # Errors
    /// The log's error, as [`Self::end_turn`]: of the records by which time passes and a MemTable
    /// is completed.
    ///
    /// # Panics
    /// In a group of several, whose members have nothing but the log.
    pub fn end_turn_unlogged(&mut self) -> Result<()> {
        assert!(self.view.log_is_private(), "members of a group have writes from its log");
        if self.writing.batch.is_empty() {
            return Ok(());
        }
        self.pace.wrote(self.writing.batch.len());
        self.writing.skip_batch();
        // What was seen gone by this time stays gone after a restart: the log has the time, or it
        // does not pass.
        self.carry_time();
        if self.time_due_ms().is_none_or(|due_ms| due_ms > self.now_ms()) {
            self.tree.pass_time(self.now_ms());
        }
        if self.tree.needs_seal() {
            self.append_seal();
        }
        Ok(())
    }

    /// Whether a write past the log would go with the process: it is in memory alone, or in a file
    /// of which the placement log does not have the edit yet.
    #[must_use]
    pub fn has_unlogged(&self) -> bool {
        self.writing.unlogged_last > self.writing.kept
    }

    /// Completes the active MemTable, so that it is flushed to a file however small it is; an empty
    /// one only after a clear that no edit has, as the edit of its flush has it then.
    ///
    /// # Errors
    /// As [`Self::end_turn`].
    ///
    /// # Panics
    /// When called at another member than the head.
    pub fn seal_memtable(&mut self) -> Result<()> {
        assert!(self.duties().append, "the head seals");
        self.end_turn()?;
        if self.tree.has_unsealed() {
            self.append_seal();
        }
        Ok(())
    }

    /// Ends the turn before an event that may change who takes writes: what was written before it
    /// belongs before it in the log.
    pub(super) fn end_turn_before_event(&mut self) {
        // An error has been reported as fatal.
        let _ = self.end_turn();
    }

    /// The frontier up to which writes are acknowledged at the group's level.
    #[must_use]
    pub fn acknowledged(&self) -> Frontier {
        if self.has(Mutant::AckWithoutMembers) {
            return self.log_end();
        }
        match self.config.ack {
            AckLevel::Replicated => self.protocol.commit(),
            AckLevel::Durable => self.protocol.durable_commit(),
        }
    }

    /// The frontier that every member has flushed: what `WAITAOF` waits for.
    #[must_use]
    pub fn durable_everywhere(&self) -> Frontier {
        self.protocol.durable_commit()
    }
}
