//! The node's side of the log: the drainer's and the log repairer's calls, trimming.

use super::Node;
use super::drain::{DrainGiven, RingRules};
use super::file_table::{FileTable, LAST_SEGMENT, SegmentOrder};
use super::orders::{After, DrainInFlight};
use super::planted::Mutant;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use gabion_base::{Error, Failed, FileId, LogPosition, Result};
use gabion_pool::FilePlacement;

impl Node {
    /// Whether the log is durable here up to `end`, or will be as somebody waits for it.
    pub(super) fn is_wanted_durable(&self, end: LogPosition) -> bool {
        self.drain.is_wanted(end) || self.log.durable_end() >= end
    }

    // ---- the drainer

    fn ring_rules(&self) -> RingRules {
        let (len, reserve) = (self.config.ring_len, 2 * self.config.segment_len);
        let tables = self.options.sealed_max as u64 + 1;
        let has_room = len - reserve >= tables * self.tree.config().memtable_len;
        let stays = self.view.log_is_private() && has_room;
        RingRules { len, reserve, drains_late: stays || self.has(Mutant::KeptInRing) }
    }

    /// Whether writes wait for room in the ring.
    pub(super) fn ring_is_full(&self) -> bool {
        let rules = self.ring_rules();
        // The table of sessions comes before the next record.
        let awaits_table = self.sessions.is_due() && !self.view.log_is_private();
        let table = if awaits_table { self.config.segment_len / 2 } else { 0 };
        rules.room(&self.log) < rules.len.min(rules.reserve + table)
    }

    pub(super) fn schedule_drains(&mut self) {
        // What the protocol wants done to the log at the end is left to the next start.
        let is_held = self.held.is_some() && !self.is_stopping();
        if self.drain.is_under_way() || is_held || self.state.is_being_filled() {
            return;
        }
        let given = DrainGiven {
            ring: self.ring_rules(),
            ack: self.config.ack,
            term: self.state.term(),
            begin: self.state.trimmed.position,
            edits: match self.has(Mutant::KeptInRing) {
                true => LogPosition::ZERO,
                false => self.apply.wants_durable().unwrap_or_default(),
            },
            repair: self.log_repair.end(),
            is_stopping: self.is_stopping(),
        };
        let (effects, log) = (&mut self.effects, &mut self.log);
        self.drain.schedule(effects, &given, log, &mut self.pool, &mut self.files);
        self.settle();
    }

    pub(super) fn drain_done(&mut self, drain: DrainInFlight, result: Result<()>) {
        let (effects, log) = (&mut self.effects, &mut self.log);
        self.drain.done(effects, log, &mut self.pool, &mut self.files, (drain, result));
        self.settle();
    }

    pub(super) fn segment_placed(&mut self, segment: FileId) {
        let (effects, log) = (&mut self.effects, &mut self.log);
        self.drain.segment_placed(effects, log, &self.pool, &mut self.files, segment);
        self.settle();
    }

    /// The log's new beginning is durable.
    pub(super) fn trimmed(&mut self, at: LogPosition) {
        let (effects, log) = (&mut self.effects, &mut self.log);
        self.drain.begins(effects, log, &mut self.pool, &mut self.files, at);
        self.settle();
    }

    /// What keeps the log from becoming durable, if nothing that is under way will change that: its
    /// next segment has no slots.
    #[must_use]
    pub fn log_waits_in_vain(&self) -> Option<Error> {
        let rests = self.orders.is_empty() && self.apply.waiting_count() == 0;
        self.drain.lacks_slots(&self.log, &self.pool).filter(|_| rests)
    }

    pub(super) const fn is_draining(&self) -> bool {
        self.drain.is_under_way()
    }

    /// How far the ring is drained, in words, for reports.
    #[must_use]
    pub fn drain_status(&self) -> String {
        self.drain.status(&self.log, &self.files)
    }

    // ---- the log's repairer

    /// Whether records have to wait for what a start noted to be durable.
    pub(super) fn awaits_note(&self) -> bool {
        self.stopping.awaits_note() || self.log_repair.awaits_note()
    }

    /// Records come from a member.
    pub(super) fn log_filled(&mut self, from: LogPosition) {
        self.log_repair.filled(&mut self.effects, from, self.protocol.source());
        self.settle();
    }

    // ---- trimming

    /// Forgets log that every member has flushed into files, a segment at a time: first the new
    /// beginning is made durable, then the log and its segments go.
    pub(super) fn trim_log(&mut self) {
        if !self.view.is_member() {
            return;
        }
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

    // ---- reads for members

    /// A read for a member begins, of records from `from` on. Returns where the segments lie that
    /// may be under it.
    pub(super) fn begin_log_read(
        &mut self,
        ticket: u64,
        from: LogPosition,
        bytes_max: usize,
    ) -> BTreeMap<FileId, Arc<FilePlacement>> {
        let config = self.log.config();
        // One record is read also where it is longer, and has a segment at most; a gap before it
        // has a block.
        let most = config.segment_len.max(bytes_max as u64) + config.segment_len;
        let to = from.get().saturating_add(most);
        let segments = config.segment_at(from.get())..=config.segment_at(to);
        self.files.begin_order(&self.pool, SegmentOrder::Read(ticket), segments)
    }

    pub(super) fn end_log_read(&mut self, ticket: u64) {
        let order = SegmentOrder::Read(ticket);
        if let Err(error) = self.files.end_order(&mut self.pool, order) {
            self.failed(Failed::Accounts, error);
        }
    }

    /// Takes over the files that the pool holds, at start.
    ///
    /// # Errors
    /// As [`FileTable::open`].
    pub(super) fn adopt_files(&mut self) -> Result<()> {
        let is_filled = self.state.is_being_filled();
        let first = match is_filled {
            true => LAST_SEGMENT,
            false => self.log.config().segment_at(self.state.trimmed.position.get()),
        };
        let how = (self.has(Mutant::SegmentsKept), is_filled);
        self.files = FileTable::open(&mut self.pool, self.tree.version(), first, how)?;
        let trims = self.has(Mutant::KeptSegmentsTrimmed);
        self.files.plant(self.has(Mutant::ValuesFreedUnderReader), trims);
        self.drain.found(&self.log);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeOptions;
    use crate::node::file_table::Segments;
    use crate::node::testing::{HEAD, Machine, built, commit, one_of_two, place_segments};
    use alloc::vec::Vec;
    use gabion_base::SequenceNumber;
    use gabion_base::{Frontier, Term};
    use gabion_engine::{Edit, EntryKind, FileMeta, FileReference, Flushed, JobKind};
    use gabion_log::{Anchor, RecordFlags, RecordKind, Span, Stamp};

    /// Slots of a segment that is read for a member are not written again under the read.
    /// docs/faults.md: E12
    #[test]
    fn segments_that_are_read_for_a_member_keep_their_slots_until_the_read_ends() {
        let mut node = one_of_two(HEAD, NodeOptions::default());
        let free = node.pool.counts().free;
        place_segments(&mut node, 3);
        let placed = node.pool.counts().free;
        assert!(placed < free);
        // One that begins in the second, whose last record may end in the third.
        let second = LogPosition(node.config.segment_len + 8);
        let read = node.begin_log_read(7, second, 1_000);
        assert_eq!(read.len(), 2);
        let behind = node.log.config().segment(3);
        node.files.begin_log(&mut node.pool, behind).unwrap();
        commit(&mut node);
        assert!(node.pool.counts().free > placed, "the first is read by nobody");
        assert!(node.pool.counts().free < free, "the second may be under the read");
        node.log_read(7, Err(Error::unavailable("the device fails the read")));
        assert_eq!(node.pool.counts().free, free);
        node.invariants();
    }

    /// Applies the edit of a flush whose file references a segment.
    fn flush_with_reference(machine: &Machine, node: &mut Node, segment: FileId) {
        node.tree.apply_operation(SequenceNumber(1), EntryKind::Put, b"\x01k", b"v").unwrap();
        let memtable = node.tree.active_id();
        let frontier = Frontier::of(LogPosition(8));
        node.tree.seal(memtable, frontier).unwrap();
        let slots = node.pool.allocate(1).unwrap();
        let file = built(FileId::sst(1), Term(0), slots, 4_096);
        node.files.add(&mut node.pool, FilePlacement::clone(&file.placement)).unwrap();
        machine.commit(node);
        node.files.placed(&node.pool, file.meta.id);
        let sequence = SequenceNumber(1);
        let meta = FileMeta {
            smallest: b"\x01k".to_vec(),
            largest: b"\x01k".to_vec(),
            smallest_sequence: sequence,
            largest_sequence: sequence,
            entries: 1,
            references: alloc::vec![FileReference { file: segment, live_bytes: 100 }],
            ..FileMeta::clone(&file.meta)
        };
        let kept = FileMeta {
            len: node.config.segment_len,
            raw_value_bytes: 100,
            references: Vec::new(),
            ..FileMeta { id: segment, ..meta.clone() }
        };
        let edit = Edit {
            number: 1,
            kind: JobKind::Flush,
            term: Term(0),
            removed: Vec::new(),
            added: alloc::vec![(0, meta)],
            values: alloc::vec![kept],
            flushed: Some(Flushed { memtable, frontier, sequence }),
            next_file: 2,
            floor: None,
            recipe: None,
        };
        let encoded = edit.encode().unwrap();
        node.queue_edit(edit, encoded, LogPosition::ZERO).unwrap();
        node.apply_edits();
        assert_eq!(node.tree.last_edit(), 1);
        machine.commit(node);
    }

    /// The log begins behind two segments, durably, and the process ends before it lets go of them.
    /// docs/faults.md: E1
    #[test]
    fn a_start_keeps_of_the_segments_below_the_log_the_one_that_a_file_references() {
        let machine = Machine::new(HEAD);
        let mut node = machine.open(NodeOptions::default());
        let segments: Vec<FileId> = (0..3).map(|it| node.log.config().segment(it)).collect();
        for file in &segments {
            let slots = node.pool.allocate(1).unwrap();
            let (term, len) = (Term(0), node.config.segment_len);
            let placement = FilePlacement { file: *file, term, len, checksum: 0, slots };
            node.files.add(&mut node.pool, placement).unwrap();
        }
        machine.commit(&mut node);
        segments.iter().for_each(|file| assert!(node.files.placed(&node.pool, *file)));
        let behind = LogPosition(2 * node.config.segment_len);
        node.log.begin_term(Term(1)).unwrap();
        while node.log.durable_end() < behind {
            let stamp = Stamp { flags: RecordFlags::BLOCK_END, ..Stamp::default() };
            node.log.append(RecordKind::Batch, &[0; 4_000], stamp).unwrap();
            while let Some(drain) = node.log.next_drain(true) {
                node.log.drained(drain.end);
            }
            node.log.flushed(node.log.drained_end());
        }
        flush_with_reference(&machine, &mut node, segments[1]);
        node.state.trimmed = Anchor { position: behind, ..Anchor::START };
        node.state.view.term = Term(1);
        node.state.spans = alloc::vec![Span { term: Term(1), start: LogPosition::ZERO, end: None }];
        node.stage_state(None);
        machine.commit(&mut node);
        drop(node);
        let mut node = machine.open(NodeOptions::default());
        assert_eq!(node.files.segments(), Segments { of_log: 1, referenced: 1 });
        machine.commit(&mut node);
        let here = segments.iter().map(|file| node.pool.placement(*file).is_some());
        assert!(here.eq([false, true, true]));
        let live: Vec<_> = node.tree.version().referenced().iter().collect();
        assert_eq!(live, [(&segments[1], &100)]);
        node.invariants();
    }
}
