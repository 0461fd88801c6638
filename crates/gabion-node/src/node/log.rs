//! The node's side of the log: draining the ring into segments, trimming.

use super::orders::DrainInFlight;
use super::planted::Mutant;
use super::{After, Node, Order};
use crate::AckLevel;
use crate::work::{DrainOrder, Work};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use gabion_base::{Error, Failed, FileId, Frontier, LogPosition, Result};
use gabion_log::Drain;
use gabion_pool::FilePlacement;

/// Drains that one order may carry.
const DRAINS_MAX: usize = 4;

/// Segments, and what is on its way into them.
#[derive(Default)]
pub(super) struct Draining {
    /// Segments that have slots, by ordinal, and whether that is durable.
    pub(super) segments: BTreeMap<u64, bool>,
    in_flight: bool,
    /// There were too few free slots for the next segment when it was last tried.
    lacks_slots: bool,
    /// Somebody waits until the log is durable here up to this.
    wanted: LogPosition,
    /// Drained and flushed up to here, but a segment's place may not be durable yet.
    flushed: LogPosition,
    /// Where the log begins by its durable state, until no drain is under way below.
    trimmed: Option<LogPosition>,
    /// In a group of one: where the log ended then, in ms.
    pub(super) aging: Option<(LogPosition, u64)>,
    /// The ordinals of the segments that may be under the reads for members, by ticket.
    reads: BTreeMap<u64, RangeInclusive<u64>>,
    /// Segments that the log does not have any more, but a read does.
    leaving: BTreeSet<u64>,
}

impl Node {
    /// Somebody waits until the log is durable up to `position`, here and elsewhere.
    pub(super) fn want_durable(&mut self, position: LogPosition) {
        self.drain.wanted = self.drain.wanted.max(position);
    }

    /// Whether the log is durable here up to `end`, or will be as somebody waits for it.
    pub(super) fn is_wanted_durable(&self, end: LogPosition) -> bool {
        self.drain.wanted >= end || self.log.durable_end() >= end
    }

    /// How far the log must be flushed, at least, for something that waits.
    fn durable_wanted(&self) -> LogPosition {
        if self.is_stopping() {
            return self.log.end();
        }
        let edit = self.apply.wants_durable().unwrap_or_default();
        let acks = match self.config.ack {
            AckLevel::Durable => self.log.end(),
            AckLevel::Replicated => LogPosition::ZERO,
        };
        edit.max(acks).max(self.repair_end().max(self.drain.wanted).min(self.log.end()))
    }

    /// Orders the ring's next blocks to be written, and flushed when something waits for it or half
    /// of the ring is not safe to overwrite.
    pub(super) fn schedule_drains(&mut self) {
        // What the chain wants done to the log at the end is left to the next start.
        if self.drain.in_flight || (self.held.is_some() && !self.is_stopping()) {
            return;
        }
        let durable = self.log.durable_end();
        let wanted_end = self.durable_wanted();
        let (wanted, pressure) = (wanted_end > durable, self.ring_room() < self.drain_below());
        // What the log is about to begin behind needs not be written, and its segments must not be
        // placed again.
        let is_trimmed = self.state.trimmed.position > durable;
        if is_trimmed || (self.drains_late() && !wanted && !pressure) {
            return;
        }
        if !self.place_segments() {
            return; // no slot for the next segment: tried again when some are free
        }
        let (mut writes, mut ends) = (Vec::new(), Vec::new());
        while ends.len() < DRAINS_MAX {
            let Some(drain) = self.next_drain(wanted) else { break };
            let Some(placement) = self.pool.placement(drain.segment) else {
                let error = Error::not_found(alloc::format!("{} has no place", drain.segment));
                return self.failed(Failed::Accounts, error);
            };
            self.counters.log_written_bytes += drain.data.len() as u64;
            writes.push((placement, drain.offset_in_segment, drain.data));
            ends.push(drain.end);
        }
        // Of a series of orders that somebody waits for the last one flushes.
        let goes_on = ends.len() == DRAINS_MAX && ends.last().is_some_and(|end| *end < wanted_end);
        let flush = (wanted && !goes_on) || pressure;
        let unflushed = self.log.drained_end() > self.log.durable_end();
        if writes.is_empty() && !(flush && unflushed && self.drain.flushed < self.log.drained_end())
        {
            return;
        }
        let end = ends.last().copied().unwrap_or(self.log.drained_end());
        self.drain.in_flight = true;
        let covered = if flush { self.log.drained_end().max(end) } else { LogPosition::ZERO };
        let order = DrainOrder { writes, flush, end };
        self.order(Order::Drain(DrainInFlight { ends, covered }), Work::Drain(order));
    }

    fn next_drain(&mut self, wanted: bool) -> Option<Drain> {
        let drain = self.log.next_drain(wanted);
        drain.or_else(|| self.is_stopping().then(|| self.log.next_last_drain()).flatten())
    }

    /// Room in the ring below which what is drained is flushed; where that is done late, nothing is
    /// drained before.
    fn drain_below(&self) -> u64 {
        let (ring_len, stops_below) = (self.config.ring_len, self.ring_reserve());
        match self.drains_late() {
            true => stops_below + (ring_len - stops_below) / 4,
            false => ring_len / 4 * 3,
        }
    }

    /// Whether the log stays in the ring until somebody wants it durable: in a group of one as a
    /// rule a flush takes it off before, where the ring is long enough for all MemTables that may
    /// wait for theirs.
    fn drains_late(&self) -> bool {
        let tables = self.options.sealed_max as u64 + 1;
        let in_ring = self.config.ring_len - self.ring_reserve();
        self.view.log_is_private() && in_ring >= tables * self.tree.config().memtable_len
    }

    /// Room in the ring below which writes wait: the last is for edits and seals, which make room
    /// in it.
    pub(super) fn ring_reserve(&self) -> u64 {
        2 * self.config.segment_len
    }

    /// Bytes that can be appended before the ring has to overwrite what is not flushed.
    pub(super) fn ring_room(&self) -> u64 {
        let kept = self.log.end().get() - self.log.durable_end().get().min(self.log.end().get());
        self.config.ring_len.saturating_sub(kept)
    }

    /// Gives slots to every segment that the ring may be drained into. Returns whether all have
    /// some.
    fn place_segments(&mut self) -> bool {
        self.drain.lacks_slots = false;
        let segment_len = self.config.segment_len;
        let first = self.log.durable_end().get() / segment_len;
        let last = self.log.end().get() / segment_len;
        (first..=last).all(|ordinal| self.place_segment(ordinal))
    }

    /// The segment of this log with that ordinal.
    fn segment(&self, ordinal: u64) -> FileId {
        self.log.config().segment(ordinal)
    }

    fn place_segment(&mut self, ordinal: u64) -> bool {
        if self.drain.segments.contains_key(&ordinal) {
            return true;
        }
        let len = self.config.segment_len;
        let count = len.div_ceil(gabion_base::units::SLOT_LEN) as u32;
        let allocated = self.pool.allocate(count);
        self.drain.lacks_slots = allocated.is_err() && self.pool.counts().free < count;
        let Ok(slots) = allocated else { return false };
        let (file, term) = (self.segment(ordinal), self.state.term());
        let placement = FilePlacement { file, term, len, checksum: 0, slots };
        if let Err(error) = self.pool.add_file(placement) {
            self.failed(Failed::Accounts, error);
            return false;
        }
        self.drain.segments.insert(ordinal, false);
        self.commits.staged.push(After::SegmentPlaced(ordinal));
        true
    }

    /// What keeps the log from becoming durable, if nothing that is under way will change that: its
    /// next segment has no slots.
    #[must_use]
    pub fn log_waits_in_vain(&self) -> Option<Error> {
        let rests = self.orders.is_empty() && self.apply.waiting_count() == 0;
        let counts = self.pool.counts();
        (self.drain.lacks_slots && rests).then(|| {
            Error::no_space(alloc::format!(
                "the log needs slots for its next {} bytes, {} of {} are free",
                self.config.segment_len,
                counts.free,
                counts.total
            ))
        })
    }

    pub(super) fn is_draining(&self) -> bool {
        self.drain.in_flight
    }

    /// How far the ring is drained, in words, for reports.
    #[must_use]
    pub fn drain_status(&self) -> alloc::string::String {
        alloc::format!(
            "durable {} drained {} flushed {} in flight {} segments {:?}",
            self.log.durable_end(),
            self.log.drained_end(),
            self.drain.flushed,
            self.drain.in_flight,
            self.drain.segments
        )
    }

    pub(super) fn segment_placed(&mut self, segment: u64) {
        // Unless the log begins behind it by now.
        if let Some(is_durable) = self.drain.segments.get_mut(&segment) {
            *is_durable = true;
        }
        self.count_flushed();
    }

    pub(super) fn drain_done(&mut self, drain: DrainInFlight, result: Result<()>) {
        self.drain.in_flight = false;
        if let Err(error) = result {
            return self.failed(Failed::Log, error.within("draining the log"));
        }
        for end in drain.ends {
            self.log.drained(end);
        }
        if let Some(at) = self.drain.trimmed.take() {
            self.trimmed(at);
        }
        self.drain.flushed = self.drain.flushed.max(drain.covered.min(self.log.drained_end()));
        self.count_flushed();
    }

    /// Flushed bytes count once the place of their segment is durable too.
    fn count_flushed(&mut self) {
        let segment_len = self.config.segment_len;
        let missing = self.drain.segments.iter().find(|(_, durable)| !**durable);
        let limit = missing.map_or(u64::MAX, |(segment, _)| *segment * segment_len);
        let end = LogPosition(self.drain.flushed.get().min(limit));
        if end > self.log.durable_end() {
            self.log.flushed(end);
            self.protocol.handle_durable(Frontier::of(self.log.durable_end()));
            self.end_repair();
        }
    }

    /// Forgets log that every member has flushed into files, a segment at a time: first the new
    /// beginning is made durable, then the log and its segments go.
    pub(super) fn trim_log(&mut self) {
        self.log.set_members_durable(self.protocol.durable_commit().only());
        // What was lost and has come back is in files, and not durable in the log as yet.
        let durable = self.log.durable_end();
        let flushed = self.tree.flushed().frontier.meet(self.protocol.flushed_min());
        let limit = flushed.only().min(durable);
        self.trim_to(limit);
    }

    /// Has the log begin behind the last seal up to `limit`, with the next commit.
    pub(super) fn trim_to(&mut self, limit: LogPosition) {
        let Some((anchor, now_ms)) = self.apply.pass_seals(limit) else { return };
        if anchor.position <= self.state.trimmed.position {
            return;
        }
        self.state.trimmed = anchor;
        self.state.trimmed_ms = now_ms.max(self.state.trimmed_ms);
        self.stage_state(Some(After::Trimmed(anchor.position)));
    }

    /// The log's new beginning is durable.
    pub(super) fn trimmed(&mut self, at: LogPosition) {
        if self.drain.in_flight && at > self.log.durable_end() {
            // What is under way must not land in slots that are given back.
            self.drain.trimmed = Some(at);
            return;
        }
        let gone = match self.log.trim(at) {
            Ok(gone) => gone,
            Err(error) => return self.failed(Failed::Log, error),
        };
        self.drain.flushed = self.drain.flushed.max(at);
        self.protocol.handle_durable(Frontier::of(self.log.durable_end()));
        self.end_repair();
        self.protocol.handle_trimmed(Frontier::of(at));
        // Those of terms that wrote nothing behind it are not to be read, and added to, by each
        // start from here on.
        if self.log.spans().len() < self.state.spans.len() {
            self.state.spans = self.log.spans().to_vec();
            self.stage_state(None);
        }
        if let Err(error) = self.let_go(gone) {
            self.failed(Failed::Accounts, error);
        }
    }

    /// Takes segments from the log. Their slots are not to be written again under a read.
    fn let_go(&mut self, gone: impl IntoIterator<Item = u64>) -> Result<()> {
        for ordinal in gone {
            if self.drain.segments.remove(&ordinal).is_some() {
                self.drain.leaving.insert(ordinal);
                self.pool.retire_file(self.segment(ordinal))?;
            }
        }
        self.free_segments()
    }

    /// A read for a member is under way, of records that begin at `from`.
    pub(super) fn pin_segments(&mut self, ticket: u64, from: LogPosition, bytes_max: usize) {
        let segment_len = self.config.segment_len;
        // One record is read also where it is longer, and has a segment at most; a gap before it
        // has a block.
        let most = segment_len.max(bytes_max as u64) + segment_len;
        let to = from.get().saturating_add(most);
        self.drain.reads.insert(ticket, from.get() / segment_len..=to / segment_len);
    }

    pub(super) fn unpin_segments(&mut self, ticket: u64) {
        self.drain.reads.remove(&ticket);
        if let Err(error) = self.free_segments() {
            self.failed(Failed::Accounts, error);
        }
    }

    /// Gives back the segments that neither the log nor a read has.
    fn free_segments(&mut self) -> Result<()> {
        let reads = &self.drain.reads;
        let is_read = |ordinal: &u64| reads.values().any(|segments| segments.contains(ordinal));
        let (kept, gone) = core::mem::take(&mut self.drain.leaving).into_iter().partition(is_read);
        self.drain.leaving = kept;
        let gone: BTreeSet<u64> = gone;
        gone.into_iter().try_for_each(|ordinal| self.pool.free_file(self.segment(ordinal)))
    }

    fn give_back_segment(&mut self, ordinal: u64) -> Result<()> {
        let file = self.segment(ordinal);
        self.pool.retire_file(file)?;
        self.pool.free_file(file)
    }

    /// Takes over the segments that the pool holds, at start. Those below the log's beginning go:
    /// the process ended between the commit with that beginning and the one that would have retired
    /// them, and no later trim comes to them. Those beyond its end, which a power cut may leave,
    /// stay, as the log comes to them again.
    ///
    /// # Errors
    /// Not found when a segment is not live in the pool.
    pub(super) fn adopt_segments(&mut self) -> Result<()> {
        let first = self.state.trimmed.position.get() / self.config.segment_len;
        let files = self.pool.files().map(|placement| placement.file);
        let segments = files.filter(|file| file.kind == gabion_base::FileKind::LogSegment);
        let mut old: BTreeMap<u64, bool> = segments.map(|file| (file.ordinal(), true)).collect();
        self.drain.segments = old.split_off(&first);
        if self.has(Mutant::SegmentsKept) {
            old.clear();
        }
        for ordinal in old.into_keys() {
            self.give_back_segment(ordinal)?;
        }
        self.drain.flushed = self.log.durable_end();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{HEAD, commit, one_of_two};
    use crate::NodeOptions;
    use gabion_base::units::MIB;
    use gabion_base::{Error, LogPosition};

    /// Slots of a segment that is read for a member are not written again under the read.
    /// docs/faults.md: E12
    #[test]
    fn segments_that_are_read_for_a_member_keep_their_slots_until_the_read_ends() {
        let segment_len = MIB / 4;
        let mut node = one_of_two(HEAD, NodeOptions::default());
        let free = node.pool.counts().free;
        assert!((0..3).all(|ordinal| node.place_segment(ordinal)));
        commit(&mut node);
        let placed = node.pool.counts().free;
        assert!(placed < free);
        // One that begins in the second, whose last record may end in the third.
        node.pin_segments(7, LogPosition(segment_len + 8), 1_000);
        node.let_go([0, 1, 2]).unwrap();
        commit(&mut node);
        assert!(node.pool.counts().free > placed, "the first is read by nobody");
        assert!(node.pool.counts().free < free, "the second may be under the read");
        node.log_read(7, Err(Error::unavailable("the device fails the read")));
        assert_eq!(node.pool.counts().free, free);
        node.invariants();
    }
}
