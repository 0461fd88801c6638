//! The driver's commands to the node that concern several machines and the log.

use super::facts::facts;
use super::route::state_at_end;
use super::{LoadGate, LoadId, MarkId, Node, WriteGate};
use crate::CompactionMode;
use alloc::format;
use alloc::string::ToString;
use gabion_base::units::SLOT_LEN;
use gabion_base::{Error, FileId, Frontier, Result};
use gabion_engine::FinishedFile;

impl Node {
    // ---- marks

    /// Has the state captured at the end of the first record, not the pad of a segment, with which
    /// the log covers `frontier`. That is at once if the log ends right there, and not with such a
    /// pad. [`super::Output::Marked`] brings it, or says why it does not come: 3 s have passed, a
    /// new term began, the log was cut.
    ///
    /// # Errors
    /// Unavailable for a frontier that the log has passed, naming both; while the log is being
    /// repaired; and when 16 marks wait already.
    pub fn arm_mark(&mut self, frontier: Frontier, now_ms: u64) -> Result<MarkId> {
        let position = frontier.only(); // a mark waits for a record of one log
        self.end_turn_before_event();
        self.set_now(now_ms);
        // Records that waited beyond a gap may have made the log longer.
        self.apply_records();
        let is_ahead = self.is_tree_ahead();
        let at_end = || state_at_end(&self.tree, &self.apply, self.me, &self.options);
        let facts = facts!(self);
        let mark = self.marks.arm(&facts, &mut self.effects, &at_end, is_ahead, position);
        self.settle();
        mark
    }

    /// Whether files are ahead of the log: it ended at a rotten record when the replica started,
    /// and others have not yet filled it up to the files.
    fn is_tree_ahead(&self) -> bool {
        let edits_come_again =
            self.config.compaction == CompactionMode::Primary && self.apply.is_replaying();
        edits_come_again || !Frontier::of(self.log.end()).covers(&self.tree.flushed().frontier)
    }

    /// Nobody waits for the mark any more. No output follows, unless it has come already.
    pub fn withdraw_mark(&mut self, mark: MarkId) {
        self.marks.withdraw(mark);
    }

    // ---- loads

    /// Begins a load, which takes files until [`Self::end_load`]. Several may be under way.
    ///
    /// # Errors
    /// Unavailable where writes are refused; unsupported in a group whose replicas compact for
    /// themselves, as each would have to make the load's files.
    ///
    /// # Panics
    /// When called at another member than the head.
    pub fn begin_load(&mut self) -> Result<LoadId> {
        assert!(self.duties().append, "loads go to the head");
        if !self.view.has_one_tree() {
            return Err(Error::unsupported(
                "a group whose replicas compact for themselves takes no bulk load: they would have to make its \
                 files too",
            ));
        }
        if let Some(reason) = self.refusal() {
            return Err(Error::unavailable(reason.to_string()));
        }
        Ok(self.loads.begin(self.protocol.term()))
    }

    /// The number for a load's next file.
    ///
    /// # Errors
    /// As [`Self::load_gate`]; unavailable when a term began since the load did; limit exceeded
    /// when the term has no number left.
    pub fn load_number(&mut self, id: LoadId) -> Result<FileId> {
        let (term, of_load) = (self.protocol.term(), self.loads.term_of(id)?);
        if term != of_load {
            return Err(Error::unavailable(format!(
                "the load began in {of_load}, now it is {term}: its files would not be of one term"
            )));
        }
        self.tree.number_file(term)
    }

    /// Whether a load takes a file of `len` bytes now; to be asked again after [`Self::advance`]
    /// when it does not.
    ///
    /// # Errors
    /// No space when the pool of a member has no room for it beside the needs of flushes,
    /// compactions and the log, and nothing is under way that may make room; the error that made
    /// the load fail; invalid input for a load that takes no files any more.
    pub fn load_gate(&mut self, id: LoadId, len: u64) -> Result<LoadGate> {
        let is_busy = self.loads.is_busy(id)?;
        if let Some(reason) = self.jobs.out_of_space() {
            return Err(Error::no_space(format!("the pool is full: {reason}")));
        }
        if self.refusal().is_some() {
            return Ok(LoadGate::Wait("a member is away"));
        }
        if is_busy {
            return Ok(LoadGate::Wait("files are being written"));
        }
        if self.unshipped().is_too_much() {
            return Ok(LoadGate::Wait("secondaries have yet to take files"));
        }
        let slots = (self.loads.slots(), len.div_ceil(SLOT_LEN));
        let (facts, tree, pool) = (facts!(self), &self.tree, &self.pool);
        match self.room.has_room_for_load(&facts, tree, pool, slots) {
            Ok(()) => Ok(LoadGate::Open),
            Err(_) if self.makes_room() => Ok(LoadGate::Wait("compaction makes room")),
            Err(error) => Err(error),
        }
    }

    /// Takes the next file of a load; its keys follow those of the file before. It is written and
    /// shipped at once. False, and to be tried again, when free slots wait for a commit on its way.
    ///
    /// # Errors
    /// Limit exceeded when one edit cannot name so many files; as [`Self::load_gate`], which is
    /// asked first.
    pub fn add_to_load(&mut self, id: LoadId, file: &FinishedFile) -> Result<bool> {
        debug_assert!(file.meta.term <= self.protocol.term());
        let added = self.loads.add(&mut self.effects, &mut self.pool, id, file);
        self.settle();
        added
    }

    /// No more files come. [`Self::advance`] does the rest; [`Self::load_state`] tells when.
    ///
    /// # Errors
    /// As [`Self::load_gate`].
    pub fn end_load(&mut self, id: LoadId) -> Result<()> {
        self.loads.end(id)
    }

    /// Nobody asks for the load any more. It is given up if its edit is not in the log; else it
    /// comes to its end.
    pub fn forget_load(&mut self, id: LoadId) {
        self.loads.forget(&mut self.effects, &mut self.pool, id);
        self.settle();
    }

    // ---- jobs

    /// Whether no flush and no compaction is under way or due; to be asked after [`Self::advance`].
    ///
    /// # Errors
    /// The reason that keeps a due job from beginning while nothing is under way: no space while
    /// jobs pause or where too few slots are free; corruption where it needs a file that is
    /// damaged.
    pub fn is_quiet(&self) -> Result<bool> {
        let is_busy = !self.orders.is_empty() || self.jobs.running() > 0;
        if is_busy || self.apply.waiting_count() > 0 {
            return Ok(false);
        }
        if let (true, WriteGate::Full { reason, .. }) = (self.jobs_pause(), self.write_gate()) {
            return Err(Error::no_space(reason));
        }
        if !self.tree.is_job_due(true) {
            return Ok(true);
        }
        // A job that only waits for the pace of collection begins by itself when that allows it.
        let is_paced = !self.jobs.may_collect() && !self.tree.is_job_due(false);
        if self.loads.hold_compactions() || self.refusal().is_some() || is_paced {
            return Ok(false);
        }
        // A flush needs no file.
        let is_flush = self.tree.sealed_count() > 0;
        Err(if is_flush { self.too_few_slots() } else { self.stuck() })
    }
}
