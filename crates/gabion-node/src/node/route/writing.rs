//! Writes of clients at the head: the operations, and the end of the turn.

use crate::AckLevel;
use crate::node::Node;
use crate::node::facts::facts;
use crate::node::planted::Mutant;
use crate::node::sessions::WriteFate;
use crate::node::writes::Turn;
use gabion_base::{Failed, Frontier, Result};
use gabion_engine::counter::OPERAND_LEN;
use gabion_engine::{Keyspace, Operand};
use gabion_log::{RecordFlags, RecordKind};

impl Node {
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
        self.writing.put(&mut self.tree, keyspace, key, value)
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
        self.writing.put_expiring(&mut self.tree, keyspace, key, value, expires_ms)
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
        self.writing.merge(&mut self.tree, keyspace, key, operand)
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
        self.writing.delete(&mut self.tree, keyspace, key)
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
        if self.writing.has_all_ranges() {
            self.end_turn()?;
            self.make_room(0)?;
        }
        self.writing.delete_range(&mut self.tree, keyspace, from, to)
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
        self.writing.clear(&mut self.tree, Keyspace::User)
    }

    /// Ends the record early when the operation does not fit any more.
    #[inline]
    fn make_room(&mut self, len: usize) -> Result<()> {
        assert!(self.duties().append, "writes go to the head");
        if self.writing.is_full(&self.config, len) {
            self.end_turn()?;
        }
        if !self.writing.is_in_turn() {
            self.writing.check()?;
            self.held_writes.release();
            self.writing.begin(len);
        }
        Ok(())
    }

    /// Bytes that this turn's record can still take; a group of operations that must stay in one
    /// record asks first.
    #[must_use]
    pub fn turn_room(&self) -> usize {
        self.writing.room_left(&self.config)
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
        if !self.writing.is_in_turn() {
            return self.writing.check().map(|()| self.log_end());
        }
        self.pace.wrote(self.writing.pending());
        let (flags, turn) = (self.turn_flags(level), self.writing.end_turn(&self.tree));
        let append =
            |Turn { builder, first, count }| self.append_built(builder, first, count, flags);
        if let Err(error) = turn.and_then(append) {
            self.writing.fail(error.clone());
            self.failed(Failed::Apply, error.clone());
            return Err(error);
        }
        self.note_claims();
        self.apply.note_clear(&self.tree, self.log.end());
        self.pass_marks(self.log.end(), self.log.last().crc);
        if level == AckLevel::Durable {
            self.want_durable(self.log.end());
        }
        self.seal_if_due();
        Ok(self.log_end())
    }

    /// The last `operations` of this turn are all that a command has written. It has `number` in
    /// the session of the door at which it came, and this reply: the record says so. One that is
    /// longer than a record remembers is not kept. A group of one records no sessions: no other
    /// head can be asked.
    ///
    /// # Durability
    /// As [`Self::put`].
    ///
    /// # Panics
    /// When the turn has fewer operations.
    #[inline]
    pub fn end_command(&mut self, session: u64, number: u64, operations: usize, reply: &[u8]) {
        if !self.view.log_is_private() {
            self.writing.claim(session, number, operations, reply);
        }
    }

    /// The fate of a write that a door has numbered, by the log up to the end of this turn, which
    /// ends here.
    ///
    /// # Errors
    /// As [`Self::end_turn`].
    pub fn fate_of_write(&mut self, session: u64, number: u64) -> Result<WriteFate> {
        self.end_turn()?;
        Ok(self.sessions.look_up(session, number))
    }

    /// The log has the commands that ended in the turn.
    fn note_claims(&mut self) {
        let at = self.log.last().index;
        for write in self.writing.claims() {
            self.sessions.note(write.session, write.number, write.reply, at);
        }
        self.writing.forget_claims();
    }

    /// The flags of the record of a turn that is to be acknowledged at `level`.
    fn turn_flags(&self, level: AckLevel) -> RecordFlags {
        match (self.config.ack, level) {
            (AckLevel::Durable, _) => RecordFlags::BLOCK_END,
            (_, AckLevel::Durable) => RecordFlags::DURABLE_ACK,
            (AckLevel::Replicated, AckLevel::Replicated) => {
                match self.apply.clear_is_awaited(&facts!(self), &self.tree) {
                    true => RecordFlags::BLOCK_END,
                    false => RecordFlags::NONE,
                }
            }
        }
    }

    /// Goes on behind the last clear that an edit has kept: of one past the log, and of the writes
    /// before it, the log may not tell, and what got their numbers would count as cleared.
    ///
    /// # Errors
    /// As [`gabion_engine::Tree::skip_sequences`].
    pub(in crate::node) fn skip_cleared(&mut self) -> Result<()> {
        match self.view.log_is_private() {
            true => self.writing.skip_cleared(&mut self.tree),
            false => Ok(()),
        }
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
        if !self.writing.is_in_turn() {
            return Ok(());
        }
        self.pace.wrote(self.writing.pending());
        self.writing.skip_batch();
        // What was seen gone by this time stays gone after a restart: the log has the time, or it
        // does not pass.
        self.carry_time();
        if self.time_due_ms().is_none_or(|due_ms| due_ms > self.now_ms()) {
            self.tree.pass_time(self.now_ms());
        }
        self.seal_if_due();
        Ok(())
    }

    /// Whether a write past the log would go with the process: it is in memory alone, or in a file
    /// of which the placement log does not have the edit yet.
    #[must_use]
    pub fn has_unlogged(&self) -> bool {
        self.writing.has_unlogged()
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
    pub(in crate::node) fn end_turn_before_event(&mut self) {
        // An error has been reported as fatal.
        let _ = self.end_turn();
    }

    /// Has everything that is in the log by now flushed by every member, whatever the group's
    /// level. Returns the frontier that [`Node::durable_everywhere`] then covers.
    ///
    /// # Errors
    /// As [`Node::end_turn`].
    ///
    /// # Panics
    /// When called at another member than the head.
    pub fn make_durable(&mut self) -> Result<Frontier> {
        let frontier = self.end_turn_at(AckLevel::Durable)?;
        let end = frontier.only();
        if self.is_wanted_durable(end) {
            return Ok(frontier);
        }
        // The block in which the log ends is drained when it is whole: this record makes it so.
        let (sequence, flags) = (self.tree.last_sequence(), RecordFlags::DURABLE_ACK);
        let end = self.append_record(RecordKind::Pad, &[], sequence, 0, flags)?;
        self.pass_marks(end, self.log.last().crc);
        self.want_durable(end);
        Ok(Frontier::of(end))
    }

    /// In a group of one: has what has been in the log for a while made durable.
    pub(in crate::node) fn age_log(&mut self) {
        if !self.view.log_is_private() {
            return;
        }
        let Some(aged) = self.drain.aged(&self.log, self.now_ms) else { return };
        // Where a turn is under way its record may come first.
        if self.writing.is_in_turn() || self.refusal().is_some() {
            return;
        }
        // A record that fills the last block is needed where nothing came behind.
        let wanted = if aged.is_whole {
            self.want_durable(aged.end);
            Ok(())
        } else {
            self.make_durable().map(drop)
        };
        match wanted {
            Ok(()) => self.drain.note_aged(),
            Err(error) => self.failed(Failed::Append, error),
        }
    }

    /// The frontier up to which writes are acknowledged at the group's level.
    #[must_use]
    pub fn acknowledged(&self) -> Frontier {
        if self.has(Mutant::AckWithoutMembers) {
            return self.log_end();
        }
        if self.is_reopening() {
            // Positions are those of another log than the one that was written.
            return Frontier::ZERO;
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
