//! The drainer: what the ring has goes into segments, whole blocks at a time, and the log begins
//! behind what files have.
//!
//! ```text
//!   room, or somebody waits ─► segments placed ─► order: write, flush ─► flushed ─┐
//!                                    └─► place durable ──────────────────────────┴─► durable
//!   the log's beginning is durable ─► nothing under way beyond ─► trimmed, its segments let go
//! ```
//!
//! One order is under way at a time. Flushed bytes count once the place of their segment is durable
//! too.

use super::Counters;
use super::effects::{Effects, Signal};
use super::file_table::{FileTable, SegmentOrder};
use super::orders::{After, DrainInFlight, Order};
use crate::AckLevel;
use crate::work::{DrainOrder, Work};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::units::{BLOCK_LEN, SLOT_LEN};
use gabion_base::{Error, Failed, FileId, LogKind, LogPosition, Result, Term};
use gabion_log::{Drain, Log};
use gabion_pool::{FilePlacement, Pool};

/// Drains that one order may carry.
const DRAINS_MAX: usize = 4;
/// In a group of one, what the log has is in files or durable after twice this, in ms: a flush
/// comes first where much is written, and Linux keeps what others write to their logs in its page
/// cache for as long.
const LOG_AGE_MS: u64 = 5_000;

/// What is on its way into segments.
#[derive(Default)]
pub(super) struct Draining {
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
    aging: Option<(LogPosition, u64)>,
    written_bytes: u64,
}

/// How much of a ring may be in use, and when it is drained.
#[derive(Clone, Copy)]
pub(super) struct RingRules {
    pub(super) len: u64,
    /// Room below which writes wait: the last is for edits and seals, which make room in it.
    pub(super) reserve: u64,
    /// The log stays in the ring until somebody wants it durable: in a group of one as a rule a
    /// flush takes it off before, where the ring is long enough for all MemTables that may wait for
    /// theirs.
    pub(super) drains_late: bool,
}

impl RingRules {
    /// Bytes that can be appended before the ring has to overwrite what is not flushed.
    pub(super) fn room(&self, log: &Log) -> u64 {
        let kept = log.end().get() - log.durable_end().get().min(log.end().get());
        self.len.saturating_sub(kept)
    }

    /// Room in the ring below which what is drained is flushed; where that is done late, nothing is
    /// drained before.
    const fn drain_below(&self) -> u64 {
        match self.drains_late {
            true => self.reserve + (self.len - self.reserve) / 4,
            false => self.len / 4 * 3,
        }
    }
}

/// The state of the replica, as far as the log is drained by it.
pub(super) struct DrainGiven {
    pub(super) ring: RingRules,
    pub(super) ack: AckLevel,
    pub(super) term: Term,
    /// Where the log begins by what is staged.
    pub(super) begin: LogPosition,
    /// Up to here edits in line want the log durable.
    pub(super) edits: LogPosition,
    /// Up to here a log that was cut at rot is to be durable again.
    pub(super) repair: LogPosition,
    pub(super) is_stopping: bool,
}

/// What has been in the log of a group of one for a while.
pub(super) struct Aged {
    pub(super) end: LogPosition,
    /// It ends in a block that is whole, and can be drained as it is.
    pub(super) is_whole: bool,
}

impl Draining {
    // ---- questions

    pub(super) const fn is_under_way(&self) -> bool {
        self.in_flight
    }

    /// Whether somebody waits until the log is durable up to `end`.
    pub(super) fn is_wanted(&self, end: LogPosition) -> bool {
        self.wanted >= end
    }

    /// The error that keeps the log from going on, where its next segment found no slots and would
    /// find none now: nobody may have tried since others gave some back.
    pub(super) fn lacks_slots(&self, log: &Log, pool: &Pool) -> Option<Error> {
        let counts = pool.counts();
        let count = log.config().segment_len.div_ceil(SLOT_LEN) as u32;
        (self.lacks_slots && counts.free < count).then(|| {
            Error::no_space(format!(
                "the log needs slots for its next {} bytes, {} of {} are free",
                log.config().segment_len,
                counts.free,
                counts.total
            ))
        })
    }

    /// How far the ring is drained, in words, for reports.
    pub(super) fn status(&self, log: &Log, files: &FileTable) -> String {
        format!(
            "durable {} drained {} flushed {} in flight {} {:?}",
            log.durable_end(),
            log.drained_end(),
            self.flushed,
            self.in_flight,
            files.segments()
        )
    }

    pub(super) const fn count_into(&self, counters: &mut Counters) {
        counters.log_written_bytes += self.written_bytes;
    }

    /// Checks what holds between steps.
    pub(super) fn invariants(&self) {
        assert!(self.in_flight || self.trimmed.is_none(), "a trim waits, and for no drain");
    }

    // ---- wanted

    /// Somebody waits until the log is durable up to `position`, here and elsewhere.
    pub(super) fn want(&mut self, position: LogPosition) {
        self.wanted = self.wanted.max(position);
    }

    /// In a group of one: what has been in the log for a while and is not durable.
    pub(super) fn aged(&mut self, log: &Log, now_ms: u64) -> Option<Aged> {
        let (durable, end) = (log.durable_end(), log.end());
        match self.aging {
            Some((_, since_ms)) if now_ms < since_ms.saturating_add(LOG_AGE_MS) => None,
            Some((aged, _)) if aged > durable => {
                // Only whole blocks are drained.
                let is_whole = end.get() - end.get() % BLOCK_LEN as u64 >= aged.get();
                Some(Aged { end: aged, is_whole })
            }
            _ => {
                self.aging = (end > durable).then_some((end, now_ms));
                None
            }
        }
    }

    /// What was told as aged is wanted durable.
    pub(super) const fn note_aged(&mut self) {
        self.aging = None;
    }

    /// How far the log must be flushed, at least, for something that waits.
    fn durable_wanted(&self, given: &DrainGiven, log: &Log) -> LogPosition {
        let end = log.end();
        if given.is_stopping {
            return end;
        }
        let acks = match given.ack {
            AckLevel::Durable => end,
            AckLevel::Replicated => LogPosition::ZERO,
        };
        given.edits.max(acks).max(given.repair.max(self.wanted).min(end))
    }

    // ---- drains

    /// Orders the ring's next blocks to be written, and flushed when something waits for it or half
    /// of the ring is not safe to overwrite.
    pub(super) fn schedule(
        &mut self,
        effects: &mut Effects,
        given: &DrainGiven,
        log: &mut Log,
        pool: &mut Pool,
        files: &mut FileTable,
    ) {
        if self.in_flight {
            return;
        }
        let durable = log.durable_end();
        let wanted_end = self.durable_wanted(given, log);
        let wanted = wanted_end > durable;
        let pressure = given.ring.room(log) < given.ring.drain_below();
        // What the log is about to begin behind needs not be written, and its segments must not be
        // placed again.
        let is_trimmed = given.begin > durable;
        if is_trimmed || (given.ring.drains_late && !wanted && !pressure) {
            return;
        }
        if !self.place_segments(effects, given.term, log, pool, files) {
            return; // no slot for the next segment: tried again when some are free
        }
        let (writes, ends) = match take_drains(log, pool, wanted, given.is_stopping) {
            Ok(drains) => drains,
            Err(error) => return effects.failed(Failed::Accounts, error),
        };
        // Of a series of orders that somebody waits for the last one flushes.
        let goes_on = ends.len() == DRAINS_MAX && ends.last().is_some_and(|end| *end < wanted_end);
        let flush = (wanted && !goes_on) || pressure;
        let unflushed = log.drained_end() > durable && self.flushed < log.drained_end();
        if writes.is_empty() && !(flush && unflushed) {
            return;
        }
        if let (Some((first, ..)), Some((last, ..))) = (writes.first(), writes.last()) {
            files.begin_order(pool, SegmentOrder::Drain, first.file..=last.file);
        }
        // A shared log that lost records gets them again, with the bytes that the segment had.
        let is_private = log.config().kind == LogKind::Private;
        let is_kept = writes.iter().any(|(place, ..)| files.is_referenced(place.file));
        assert!(!(is_private && is_kept), "a segment that keeps values is written again");
        self.in_flight = true;
        self.written_bytes += writes.iter().map(|(_, _, data)| data.len() as u64).sum::<u64>();
        let end = ends.last().copied().unwrap_or(log.drained_end());
        let covered = if flush { log.drained_end().max(end) } else { LogPosition::ZERO };
        let keeps_behind = keeps_behind(files, &writes, end);
        let order = DrainOrder { writes, flush, end, keeps_behind };
        effects.begin(Order::Drain(DrainInFlight { ends, covered }), Work::Drain(order));
    }

    /// Gives slots to every segment that the ring may be drained into. Returns whether all have
    /// some.
    fn place_segments(
        &mut self,
        effects: &mut Effects,
        term: Term,
        log: &Log,
        pool: &mut Pool,
        files: &mut FileTable,
    ) -> bool {
        self.lacks_slots = false;
        let (config, len) = (log.config(), log.config().segment_len);
        let first = config.segment_at(log.durable_end().get());
        let last = config.segment_at(log.end().get());
        // A log that was cut goes on at the next block, which may be the next segment's first.
        if first > last || files.has_all(first..=last) {
            return true;
        }
        for file in (first.ordinal()..=last.ordinal()).map(|ordinal| config.segment(ordinal)) {
            if files.has_all(file..=file) {
                continue;
            }
            let count = len.div_ceil(SLOT_LEN) as u32;
            let Ok(slots) = pool.allocate(count) else {
                self.lacks_slots = pool.counts().free < count;
                return false;
            };
            assert!(files.is_of_log(file), "{file} is placed, and the log is past it");
            let placement = FilePlacement { file, term, len, checksum: 0, slots };
            if let Err(error) = files.add(pool, placement) {
                effects.failed(Failed::Accounts, error);
                return false;
            }
            effects.stage(After::SegmentPlaced(file));
        }
        true
    }

    /// The place of a segment is durable.
    pub(super) fn segment_placed(
        &mut self,
        effects: &mut Effects,
        log: &mut Log,
        pool: &Pool,
        files: &mut FileTable,
        segment: FileId,
    ) {
        // It may have left by now, as the log begins behind it.
        files.placed(pool, segment);
        self.count_flushed(effects, log, files);
    }

    /// The order under way ended.
    pub(super) fn done(
        &mut self,
        effects: &mut Effects,
        log: &mut Log,
        pool: &mut Pool,
        files: &mut FileTable,
        (drain, result): (DrainInFlight, Result<()>),
    ) {
        self.in_flight = false;
        if let Err(error) = files.end_order(pool, SegmentOrder::Drain) {
            return effects.failed(Failed::Accounts, error);
        }
        if let Err(error) = result {
            return effects.failed(Failed::Log, error.within("draining the log"));
        }
        // Where the log was cut since, other bytes are written behind the cut, and the flush of
        // those before says nothing of them.
        self.flushed = self.flushed.min(log.drained_end());
        for end in drain.ends {
            log.drained(end);
        }
        if let Some(at) = self.trimmed.take() {
            self.trim(effects, log, pool, files, at);
        }
        self.flushed = self.flushed.max(drain.covered.min(log.drained_end()));
        self.count_flushed(effects, log, files);
    }

    fn count_flushed(&mut self, effects: &mut Effects, log: &mut Log, files: &FileTable) {
        let missing = files.first_not_durable();
        let limit = missing.map_or(u64::MAX, |it| it.ordinal() * log.config().segment_len);
        let end = LogPosition(self.flushed.get().min(limit));
        if end > log.durable_end() {
            log.flushed(end);
            effects.signal(Signal::LogDurable);
        }
    }

    // ---- the log's beginning

    /// The log's new beginning is durable: it goes up to there, and so do its segments.
    pub(super) fn begins(
        &mut self,
        effects: &mut Effects,
        log: &mut Log,
        pool: &mut Pool,
        files: &mut FileTable,
        at: LogPosition,
    ) {
        if self.in_flight && at > log.durable_end() {
            // What is under way must not land in slots that are given back.
            self.trimmed = Some(at);
            return;
        }
        self.trim(effects, log, pool, files, at);
    }

    fn trim(
        &mut self,
        effects: &mut Effects,
        log: &mut Log,
        pool: &mut Pool,
        files: &mut FileTable,
        at: LogPosition,
    ) {
        if let Err(error) = log.trim(at) {
            return effects.failed(Failed::Log, error);
        }
        self.flushed = self.flushed.max(at);
        effects.signal(Signal::LogDurable);
        effects.signal(Signal::LogTrimmed(at));
        if let Err(error) = files.begin_log(pool, log.config().segment_at(at.get())) {
            effects.failed(Failed::Accounts, error);
        }
    }

    /// The log was found at a start, and is durable as far as it says.
    pub(super) fn found(&mut self, log: &Log) {
        self.flushed = log.durable_end();
    }
}

/// Blocks to write: segment, offset in it, data.
type Writes = Vec<(Arc<FilePlacement>, u64, Bytes)>;

/// As [`DrainOrder::keeps_behind`]. A log that was cut, or a member that is behind its files, may
/// end in a segment that has become a file of the tree.
fn keeps_behind(files: &FileTable, writes: &Writes, end: LogPosition) -> Option<usize> {
    let (last, ..) = writes.last()?;
    // All other drains end with a block.
    let len = (end.get() % BLOCK_LEN as u64) as usize;
    (len > 0 && files.is_referenced(last.file)).then_some(len)
}

/// Takes the ring's next blocks, for one order.
fn take_drains(
    log: &mut Log,
    pool: &Pool,
    wanted: bool,
    is_stopping: bool,
) -> Result<(Writes, Vec<LogPosition>)> {
    let (mut writes, mut ends) = (Vec::new(), Vec::new());
    while ends.len() < DRAINS_MAX {
        let next = log.next_drain(wanted);
        let next = next.or_else(|| is_stopping.then(|| log.next_last_drain()).flatten());
        let Some(Drain { segment, offset_in_segment, data, end }) = next else { break };
        let Some(placement) = pool.placement(segment) else {
            return Err(Error::not_found(format!("{segment} has no place")));
        };
        writes.push((placement, offset_in_segment, data));
        ends.push(end);
    }
    Ok((writes, ends))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeOptions;
    use crate::node::Node;
    use crate::node::effects::Effect;
    use crate::node::testing::{
        HEAD, Machine, Ring, built, commit, one_of_two, place_segments, placed,
    };
    use alloc::boxed::Box;
    use alloc::vec;
    use gabion_base::units::KIB;
    use gabion_base::{ErrorKind, SequenceNumber};
    use gabion_engine::{FileMeta, FileReference};
    use gabion_log::{Anchor, LogConfig, RecordFlags, RecordKind, Stamp};
    use gabion_media::AlignedBuf;

    const SEGMENT_LEN: u64 = 256 * KIB;

    /// A drainer beside a node whose log takes records.
    struct Rig {
        node: Node,
        drain: Draining,
        asked: Effects,
        given: DrainGiven,
    }

    impl Rig {
        fn new() -> Self {
            let mut node = one_of_two(HEAD, NodeOptions::default());
            node.log.begin_term(Term(2)).unwrap();
            let given = DrainGiven {
                // Far more than is written here, so that room alone asks for no flush.
                ring: RingRules { len: 64 * SEGMENT_LEN, reserve: SEGMENT_LEN, drains_late: false },
                ack: AckLevel::Replicated,
                term: Term(2),
                begin: LogPosition::ZERO,
                edits: LogPosition::ZERO,
                repair: LogPosition::ZERO,
                is_stopping: false,
            };
            Self { node, drain: Draining::default(), asked: Effects::default(), given }
        }

        /// Appends records of 16 KiB until the log ends at `end` or behind.
        fn append_to(&mut self, end: u64) {
            while self.node.log.end().get() < end {
                let flags = RecordFlags::BLOCK_END;
                let first_sequence = SequenceNumber(1);
                let stamp = Stamp { first_sequence, count: 1, now_ms: 1, flags };
                let payload = vec![7; 15 * 1024];
                self.node.log.append(RecordKind::Batch, &payload, stamp).unwrap();
            }
        }

        /// The order that is due now.
        fn schedule(&mut self) -> Option<(DrainInFlight, DrainOrder)> {
            let Node { log, pool, files, .. } = &mut self.node;
            self.drain.schedule(&mut self.asked, &self.given, log, pool, files);
            self.drain.invariants();
            let effects: Vec<Effect> = core::iter::from_fn(|| self.asked.next_effect()).collect();
            effects.into_iter().find_map(|effect| match effect {
                Effect::Order(Order::Drain(drain), Work::Drain(order)) => Some((drain, order)),
                _ => None,
            })
        }

        /// Returns what other machines are told.
        fn done(&mut self, drain: DrainInFlight) -> Vec<Effect> {
            let Node { log, pool, files, .. } = &mut self.node;
            self.drain.done(&mut self.asked, log, pool, files, (drain, Ok(())));
            self.drain.invariants();
            core::iter::from_fn(|| self.asked.next_effect()).collect()
        }

        fn segment_placed(&mut self, ordinal: u64) {
            let Node { log, pool, files, .. } = &mut self.node;
            let segment = log.config().segment(ordinal);
            self.drain.segment_placed(&mut self.asked, log, pool, files, segment);
        }

        fn begins(&mut self, at: LogPosition) {
            let Node { log, pool, files, .. } = &mut self.node;
            self.drain.begins(&mut self.asked, log, pool, files, at);
            self.drain.invariants();
        }

        fn durable(&self) -> LogPosition {
            self.node.log.durable_end()
        }
    }

    /// docs/faults.md: E12
    #[test]
    fn a_stop_within_a_segment_that_keeps_values_leaves_what_lies_behind_the_logs_end() {
        for is_referenced in [false, true] {
            let machine = Machine::new(HEAD);
            let mut rig = Rig { node: machine.open(NodeOptions::default()), ..Rig::new() };
            rig.node.log.begin_term(Term(2)).unwrap();
            place_segments(&mut rig.node, 1);
            let segment = rig.node.log.config().segment(0);
            if is_referenced {
                let slots = rig.node.pool.allocate(1).unwrap();
                let file = built(FileId::sst(1), Term(1), slots, 4_096);
                placed(&mut rig.node, &file);
                let references = vec![FileReference { file: segment, live_bytes: 100 }];
                let meta = FileMeta { references, ..FileMeta::clone(&file.meta) };
                rig.node.files.enter_tree(&meta, &|_| false).unwrap();
            }
            let mut before = AlignedBuf::zeroed(BLOCK_LEN);
            before.fill(9);
            let placement = rig.node.pool.placement(segment).unwrap();
            machine.write(&rig.node, &placement, before.freeze());
            let stamp = Stamp {
                first_sequence: SequenceNumber(1),
                count: 1,
                now_ms: 1,
                ..Stamp::default()
            };
            rig.node.log.append(RecordKind::Batch, &[7; 1_000], stamp).unwrap();
            let end = rig.node.log.end().get() as usize;
            assert!(end > 1_000 && end < BLOCK_LEN, "{end}");
            rig.given.is_stopping = true;
            let (_, order) = rig.schedule().expect("the process stops");
            machine.carry_out(&rig.node, Work::Drain(order));
            let after = machine.read(&rig.node, &placement, BLOCK_LEN);
            assert!(after[..end].windows(1_000).any(|part| part == [7; 1_000]), "it is written");
            let kept = if is_referenced { 9 } else { 0 };
            assert!(after[end..].iter().all(|byte| *byte == kept), "{is_referenced}");
        }
    }

    /// docs/faults.md: E1
    #[test]
    fn what_is_flushed_is_durable_once_the_place_of_its_segment_is() {
        let mut rig = Rig::new();
        rig.append_to(32 * KIB);
        let end = rig.node.log.end();
        assert!(rig.schedule().is_none(), "nobody waits, and there is room");
        rig.drain.want(end);
        let (drain, order) = rig.schedule().expect("somebody waits");
        assert!(order.flush);
        assert!(rig.schedule().is_none(), "one order at a time");
        assert!(rig.done(drain).is_empty());
        assert_eq!(rig.durable(), LogPosition::ZERO, "a crash would lose the segment");
        commit(&mut rig.node);
        rig.segment_placed(0);
        assert_eq!(rig.durable(), end);
        assert!(matches!(rig.asked.next_effect(), Some(Effect::Signal(Signal::LogDurable))));
        assert!(rig.schedule().is_none(), "all is durable");
    }

    /// Other bytes are written behind the cut, and no flush covers them yet.
    /// docs/faults.md: E8
    #[test]
    fn a_flush_before_the_log_was_cut_makes_nothing_durable_that_is_written_behind_the_cut() {
        let mut rig = Rig::new();
        place_segments(&mut rig.node, 2);
        rig.append_to(16 * KIB);
        let cut = rig.node.log.end();
        rig.append_to(SEGMENT_LEN / 2);
        let end = rig.node.log.end();
        rig.drain.want(end);
        let (drain, order) = rig.schedule().expect("somebody waits");
        assert!(order.flush);
        rig.done(drain);
        assert_eq!(rig.durable(), end);
        rig.node.log.truncate(cut).unwrap();
        rig.node.log.begin_term(Term(3)).unwrap();
        rig.drain.wanted = LogPosition::ZERO;
        rig.append_to(SEGMENT_LEN + 16 * KIB);
        let (drain, order) = rig.schedule().expect("a segment is full");
        assert!(!order.flush, "nobody waits");
        assert!(rig.done(drain).is_empty());
        assert!(rig.node.log.drained_end() > end);
        assert!(rig.durable() <= cut, "{} of {cut}", rig.durable());
    }

    /// The log goes on in the next segment, once a term says that it does.
    /// docs/faults.md: R1
    #[test]
    fn a_log_that_is_cut_in_the_last_block_of_a_segment_drains_nothing_until_it_goes_on() {
        let mut rig = Rig::new();
        place_segments(&mut rig.node, 1);
        rig.append_to(SEGMENT_LEN - 16 * KIB);
        let rest = rig.node.log.segment_rest();
        assert!(rest > 8 * KIB);
        let stamp = Stamp { first_sequence: SequenceNumber(1), count: 1, ..Stamp::default() };
        let payload = vec![7; (rest - 1_000) as usize];
        rig.node.log.append(RecordKind::Batch, &payload, stamp).unwrap();
        let cut = rig.node.log.end();
        assert!((SEGMENT_LEN - BLOCK_LEN as u64 + 1..SEGMENT_LEN).contains(&cut.get()), "{cut}");
        rig.append_to(SEGMENT_LEN + 16 * KIB);
        rig.drain.want(rig.node.log.end());
        let (drain, _) = rig.schedule().expect("somebody waits");
        rig.done(drain);
        commit(&mut rig.node);
        rig.segment_placed(1);
        rig.node.log.truncate(cut).unwrap();
        assert_eq!((rig.durable(), rig.node.log.end()), (LogPosition(SEGMENT_LEN), cut));
        rig.drain.want(LogPosition(SEGMENT_LEN + 1));
        assert!(rig.schedule().is_none(), "all that is there is durable");
        rig.node.log.begin_term(Term(3)).unwrap();
        rig.append_to(SEGMENT_LEN + 16 * KIB);
        assert!(rig.schedule().is_some());
    }

    /// docs/faults.md: E12
    #[test]
    fn a_beginning_beyond_what_is_being_drained_waits_for_the_drain() {
        let mut rig = Rig::new();
        let config = LogConfig { kind: LogKind::Private, ..*rig.node.log.config() };
        let ring = Box::new(Ring::new(config.ring_len));
        rig.node.log = Log::create(config, ring, Term(2), Anchor::START).unwrap();
        place_segments(&mut rig.node, 2);
        rig.append_to(SEGMENT_LEN + 16 * KIB);
        let end = rig.node.log.end();
        rig.drain.want(end);
        let (drain, _) = rig.schedule().expect("somebody waits");
        let behind = LogPosition(SEGMENT_LEN);
        rig.begins(behind);
        assert_eq!(rig.node.files.segments().of_log, 2, "the first is written to");
        let told = rig.done(drain);
        let trims = |effect: &Effect| match effect {
            Effect::Signal(Signal::LogTrimmed(at)) => *at == behind,
            _ => false,
        };
        assert!(!told.iter().any(|effect| matches!(effect, Effect::Fatal(_))));
        assert!(told.iter().any(trims));
        assert_eq!(rig.node.files.segments().of_log, 1);
        rig.node.invariants();
    }

    /// docs/faults.md: E10
    #[test]
    fn without_slots_for_the_next_segment_nothing_is_drained_and_the_reason_has_counts() {
        let mut rig = Rig::new();
        let free = rig.node.pool.counts().free;
        let taken = rig.node.pool.allocate(free).unwrap();
        rig.append_to(16 * KIB);
        rig.drain.want(rig.node.log.end());
        assert!(rig.schedule().is_none());
        let error = rig.drain.lacks_slots(&rig.node.log, &rig.node.pool).expect("it says so");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        let total = rig.node.pool.counts().total;
        let wanted =
            format!("the log needs slots for its next 262144 bytes, 0 of {total} are free");
        assert_eq!(error.message(), wanted);
        rig.node.pool.release(&taken).unwrap();
        // A log that is drained late may not try for long.
        assert!(rig.drain.lacks_slots(&rig.node.log, &rig.node.pool).is_none(), "there are some");
        assert!(rig.schedule().is_some());
        assert!(rig.drain.lacks_slots(&rig.node.log, &rig.node.pool).is_none());
    }
}
