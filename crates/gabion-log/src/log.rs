//! The log of one replica: appending at the head, placing elsewhere, taking what is contiguous,
//! sending again, and the bookkeeping of terms.
//!
//! Order of calls. *Head*: [`Log::begin_term`], persist [`Log::spans`], then [`Log::append`].
//! *Replica*: [`Log::adopt_spans`] with the head's list, persist, then [`Log::place`] and
//! [`Log::next_record`]. *Both*, all the time: [`Log::next_drain`] → write → [`Log::drained`] →
//! flush the medium → [`Log::flushed`]. After [`crate::recover`]: [`Log::next_recovered`] until it
//! is empty.

pub(crate) mod marks;

mod follow;
mod terms;

use self::marks::Marks;
pub use self::terms::Following;
use crate::drain::{Drain, Drains};
use crate::record::{
    HEADER_LEN, Header, Layout, POSITION_MAX, Record, RecordBuilder, RecordFlags, RecordKind,
    record_end,
};
use crate::ring::Ring;
use crate::scan::{SegmentReader, Window};
use crate::short::{Place, may_be_short};
use crate::span::{Anchor, Span, Spans};
use crate::{LogConfig, LogKind, block_floor};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::vec;
use core::ops::Range;
use gabion_base::{Error, LogIndex, LogPosition, Result, SequenceNumber, Term};
use gabion_media::{Bytes, MemoryRegion};

/// What the head says about a record beside its payload.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamp {
    /// Sequence number of the first entry.
    pub first_sequence: SequenceNumber,
    /// Sequence numbers that the record takes.
    pub count: u32,
    /// The head's monotone clock, in milliseconds.
    pub now_ms: u64,
    /// Flags. An edit, and a record with `DURABLE_ACK`, gets `BLOCK_END` in any case.
    pub flags: RecordFlags,
}

/// What an append made, in the order in which it is sent.
#[derive(Clone, Debug)]
pub struct Appended {
    /// The pad that filled the segment first, where one was needed.
    pub pad: Option<Record>,
    /// The record.
    pub record: Record,
}

/// The last record of a log, for comparing logs at a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Last {
    /// The term that wrote it.
    pub term: Term,
    /// Where it ends.
    pub end: LogPosition,
    /// Its index.
    pub index: LogIndex,
    /// Its checksum.
    pub crc: u32,
}

/// Where the bytes from a position on are.
#[derive(Clone, Debug)]
pub enum Resend {
    /// Whole records; empty at the end of the log.
    Bytes(Bytes),
    /// No longer in the ring: a [`SegmentReader`] finds them.
    InSegments(Range<LogPosition>),
    /// Trimmed: the replica needs a full copy.
    TooOld,
}

/// The log of one replica.
pub struct Log {
    pub(crate) config: LogConfig,
    pub(crate) ring: Ring,
    pub(crate) spans: Spans,
    pub(crate) drains: Drains,
    may_append: bool,
    trimmed: u64,
    /// The place after the last record.
    tail: Anchor,
    last_term: Term,
    /// Where the next record begins: `tail`, or the start of the next span.
    end: u64,
    ready: VecDeque<Record>,
    early: BTreeMap<u64, Record>,
    early_len: u64,
    marks: Marks,
    /// Where the last record with a long header begins that was written here.
    long_at: Option<u64>,
    /// [`Self::floor`] when it last mattered; it falls only when the log is cut.
    floor_seen: u64,
    members_durable: u64,
    watermark: u64,
    /// How far everyone was durable when the watermark was last looked for.
    settled_at: u64,
    replay: Replay,
}

/// The part of the log that recovery found and the caller has not taken yet.
struct Replay {
    next: Anchor,
    end: u64,
    window: Window,
}

/// What recovery knows about a log, to make one from.
pub(crate) struct Parts {
    pub(crate) config: LogConfig,
    pub(crate) ring: Ring,
    pub(crate) spans: Spans,
    pub(crate) start: Anchor,
    pub(crate) tail: Anchor,
    pub(crate) last_term: Term,
    pub(crate) in_segments: u64,
    pub(crate) durable: u64,
    pub(crate) watermark: u64,
    pub(crate) marks: Marks,
}

impl Log {
    /// An empty log that begins at `start` in `term`: [`Anchor::START`] for a new group, the anchor
    /// of a full copy for a replica that joins. Nothing in the ring is read or believed.
    ///
    /// # Errors
    /// Invalid input when the configuration or the region's length breaks a rule.
    pub fn create(
        config: LogConfig,
        ring: Box<dyn MemoryRegion>,
        term: Term,
        start: Anchor,
    ) -> Result<Self> {
        config.check()?;
        let at = start.position.get();
        check_start(&config, at)?;
        let spans = Spans::new(vec![Span { term, start: start.position, end: None }])?;
        let mut ring = Ring::new(ring, config.ring_len, at)?;
        let floor = block_floor(at);
        ring.zero(floor, at);
        let parts = Parts {
            config,
            ring,
            spans,
            start,
            tail: start,
            last_term: term,
            in_segments: at,
            durable: at,
            watermark: at,
            marks: Marks::new(start),
        };
        let mut log = Self::from_parts(parts);
        log.may_append = true;
        Ok(log)
    }

    pub(crate) fn from_parts(parts: Parts) -> Self {
        let Parts { config, ring, spans, start, tail, marks, .. } = parts;
        let mut log = Self {
            config,
            ring,
            drains: Drains::new(parts.in_segments, parts.durable),
            may_append: false,
            trimmed: start.position.get(),
            end: tail.position.get(),
            tail,
            last_term: parts.last_term,
            ready: VecDeque::new(),
            early: BTreeMap::new(),
            early_len: 0,
            marks,
            long_at: None,
            floor_seen: 0,
            members_durable: u64::MAX,
            settled_at: 0,
            watermark: parts.watermark.min(tail.position.get()),
            replay: Replay { next: start, end: tail.position.get(), window: Window::new(&config) },
            spans,
        };
        log.hop();
        log
    }

    /// Bytes of memory that it takes beside the ring: buffers of drains, records that came before
    /// others, and where records end. Those that are being sent or applied are counted by nobody:
    /// the window of each member bounds them.
    #[must_use]
    pub fn memory_used(&self) -> usize {
        self.drains.memory_used() + self.early_len as usize + self.marks.memory_used()
    }

    /// What makes this log different from others.
    #[must_use]
    pub const fn config(&self) -> &LogConfig {
        &self.config
    }

    /// Where the next record begins: everything before it is here.
    #[must_use]
    pub fn end(&self) -> LogPosition {
        LogPosition(self.end)
    }

    /// Bytes from its end to the end of the segment in which it lies.
    #[must_use]
    pub const fn segment_rest(&self) -> u64 {
        self.config.segment_len - self.end % self.config.segment_len
    }

    /// The last record, or what the log began after.
    #[must_use]
    pub fn last(&self) -> Last {
        let Anchor { position, index, crc } = self.tail;
        Last { term: self.last_term, end: position, index, crc }
    }

    /// The newest term.
    #[must_use]
    pub fn term(&self) -> Term {
        self.spans.term()
    }

    /// The spans, to be kept in the durable state whenever they change.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        self.spans.list()
    }

    /// `position`, or the start of the next span where it is the end of one: a mark at either
    /// means the same records.
    #[must_use]
    pub fn after(&self, position: LogPosition) -> LogPosition {
        LogPosition(self.spans.hop(position.get()))
    }

    /// Appends a record with a payload that is copied. [`Self::append_built`] avoids the copy.
    ///
    /// # Durability
    /// As for [`Self::append_built`].
    ///
    /// # Errors
    /// As for [`Self::append_built`].
    pub fn append(&mut self, kind: RecordKind, payload: &[u8], stamp: Stamp) -> Result<Appended> {
        let mut builder = RecordBuilder::new(kind, payload.len());
        builder.payload().extend_from_slice(payload);
        self.append_built(builder, stamp)
    }

    /// Appends a record in the buffer that it was encoded in: one pass for the checksum, one copy
    /// into the ring. The record counts as taken: [`Self::next_record`] does not return it.
    ///
    /// # Durability
    /// In the ring when it returns: survives the kill of the process. Survives a power cut here
    /// once [`Self::durable_end`] has passed the record's end.
    ///
    /// # Errors
    /// Nothing has changed after one. No space when the ring would overwrite what is not flushed
    /// yet; limit exceeded for a record longer than a segment; invalid input when no term was begun
    /// here, or when sessions have entries that the record has not.
    pub fn append_built(&mut self, builder: RecordBuilder, stamp: Stamp) -> Result<Appended> {
        if !self.may_append {
            return Err(Error::invalid(format!(
                "append to the log of {}: no term was begun here; the newest is {}",
                self.config.group,
                self.term()
            )));
        }
        let segment_len = self.config.segment_len;
        let body = builder.body_len() as u64;
        if body > segment_len || !builder.is_sound() {
            return Err(Error::limit(format!(
                "log record of {body} bytes; the limit is {segment_len}, the least its header"
            )));
        }
        if builder.sessions_end() > stamp.count {
            return Err(Error::invalid(format!(
                "log record of {} entries with session writes up to entry {}",
                stamp.count,
                builder.sessions_end()
            )));
        }
        let flags = flags_of(builder.kind(), stamp.flags);
        let stamp = Stamp { flags, ..stamp };
        let segment_end = (self.end / segment_len + 1) * segment_len;
        let header = self.header_at(self.end, &builder, stamp);
        let end = self.end_of(&header, &builder);
        if end <= segment_end {
            self.check_room(end)?;
            return Ok(Appended { pad: None, record: self.write(builder, header, end) });
        }
        self.check_room(record_end(segment_end, body, flags, segment_len))?;
        let pad = self.write_pad(segment_end, stamp);
        let header = self.header_at(segment_end, &builder, stamp);
        let end = self.end_of(&header, &builder);
        Ok(Appended { pad: Some(pad), record: self.write(builder, header, end) })
    }

    fn write_pad(&mut self, segment_end: u64, stamp: Stamp) -> Record {
        let payload = (segment_end - self.end) as usize - HEADER_LEN;
        let mut pad = RecordBuilder::new(RecordKind::Pad, payload);
        pad.payload().resize(HEADER_LEN + payload, 0);
        let stamp = Stamp { count: 0, flags: RecordFlags::NONE, ..stamp };
        let header = self.header_at(self.end, &pad, stamp);
        self.write(pad, header, segment_end)
    }

    /// The header of a record at `at`, without its lengths and checksum.
    fn header_at(&self, at: u64, builder: &RecordBuilder, stamp: Stamp) -> Header {
        let mut header = Header {
            kind: builder.kind(),
            is_short: false,
            flags: stamp.flags,
            payload_len: 0,
            crc: 0,
            group: self.config.group,
            term: self.spans.term(),
            shard: self.config.shard,
            extension_len: 0,
            previous_crc: self.tail.crc,
            index: self.tail.index.next(),
            position: LogPosition(at),
            first_sequence: stamp.first_sequence,
            count: stamp.count,
            durable: LogPosition(self.watermark),
            now_ms: stamp.now_ms,
        };
        if self.config.kind == LogKind::Private {
            header.is_short = builder.extension_len() == 0
                && may_be_short(&header, builder.payload_len(), self.long_at);
            if !header.is_short {
                header.flags = header.flags.with(RecordFlags::SHORT_AFTER);
            }
        }
        header
    }

    /// Where a record with this header ends.
    fn end_of(&self, header: &Header, builder: &RecordBuilder) -> u64 {
        let body = (builder.body_len() - HEADER_LEN + header.len()) as u64;
        record_end(header.position.get(), body, header.flags, self.config.segment_len)
    }

    fn write(&mut self, builder: RecordBuilder, header: Header, end: u64) -> Record {
        let at = header.position.get();
        let record = if header.is_short {
            let place = Place { config: &self.config, at, term: header.term, after: self.tail };
            builder.finish_short(header, end, &place)
        } else {
            self.long_at = Some(at);
            builder.finish(header, end)
        };
        assert_eq!(record.end().get(), end, "a record ends where there is room for it");
        self.ring.write(at, &record.bytes);
        self.advance_over(&record);
        self.end_step();
        record
    }

    /// Tells up to where every member has flushed. Records carry it (rounded down to the end of a
    /// record), so that recovery anywhere can tell a torn tail from a rotten middle: it must not
    /// pass what some member may still lose. A log that was never told takes its own flushes for
    /// everyone's, so a head with secondaries calls this before [`Self::begin_term`], with zero
    /// while it knows nothing.
    pub fn set_members_durable(&mut self, end: LogPosition) {
        self.members_durable = end.get();
        self.settle_watermark();
    }

    /// Whole records from `from`, where a record begins: one or more, about `bytes_max` in all.
    ///
    /// # Errors
    /// Invalid input beyond the end, where no record begins, or of a log that is sent to nobody:
    /// what its records do not say of themselves nobody else would know.
    pub fn read(&self, from: LogPosition, bytes_max: usize) -> Result<Resend> {
        if self.config.kind == LogKind::Private {
            return Err(Error::invalid(format!(
                "resend from {from}: the log of {} is that of a group of one",
                self.config.group
            )));
        }
        if from.get() < self.trimmed {
            return Ok(Resend::TooOld);
        }
        let start = self.spans.hop(from.get());
        if start > self.end {
            return Err(Error::invalid(format!(
                "resend from {from}: the log ends at {}",
                self.end()
            )));
        }
        if start < self.ring.from() {
            return Ok(Resend::InSegments(LogPosition(start)..LogPosition(self.ring.from())));
        }
        let mut len = 0;
        while start + (len as u64) < self.end {
            let at = start + len as u64;
            let Some(next) = self.len_at(at)? else { break };
            let wraps = start % self.config.ring_len + (len + next) as u64 > self.config.ring_len;
            if len > 0 && (len + next > bytes_max || wraps) {
                break;
            }
            len += next;
        }
        let mut bytes = vec![0; len];
        if len > 0 {
            self.ring.read(start, &mut bytes);
        }
        Ok(Resend::Bytes(Bytes::from(bytes)))
    }

    /// Length of the record in the ring at `at`; `None` in the gap after a span.
    fn len_at(&self, at: u64) -> Result<Option<usize>> {
        if self.spans.at(at).is_none() {
            return Ok(None);
        }
        let mut head = [0; HEADER_LEN];
        self.ring.read(at, &mut head);
        match Layout::read(&head) {
            Ok(layout) if layout.position.get() == at => {
                layout.len(self.config.segment_len).map(Some)
            }
            _ => Err(Error::invalid(format!("no log record begins at {}", LogPosition(at)))),
        }
    }

    /// A reader of what left the ring.
    #[must_use]
    pub fn segment_reader(&self) -> SegmentReader {
        SegmentReader { config: self.config, spans: self.spans.clone() }
    }

    /// The next whole blocks to write into a segment: 128 KiB to 1 MiB, or up to the end of a
    /// segment; with `force` whatever is whole, which is everything when the last record has
    /// `BLOCK_END`. Several may be under way.
    pub fn next_drain(&mut self, force: bool) -> Option<Drain> {
        self.drains.next(&self.ring, self.end, &self.config, force)
    }

    /// The rest of the log, less than a block, as a whole block; once [`Self::next_drain`] with
    /// `force` has nothing more. For a process that stops: whatever is appended later has the block
    /// written again.
    pub fn next_last_drain(&mut self) -> Option<Drain> {
        self.drains.last(&self.ring, self.end, &self.config)
    }

    /// A drain has been written, not flushed.
    pub fn drained(&mut self, end: LogPosition) {
        self.drains.done(end.get());
    }

    /// Up to here everything is written to segments: what a flush that is submitted now covers.
    #[must_use]
    pub fn drained_end(&self) -> LogPosition {
        LogPosition(self.drains.drained())
    }

    /// A flush has ended well that was submitted when [`Self::drained_end`] was `end`.
    pub fn flushed(&mut self, end: LogPosition) {
        self.drains.flushed(end.get());
        self.settle_watermark();
        // A record that waited and does not fit is gone; the gap that stays asks for it again.
        let _ = self.place_early();
        self.end_step();
    }

    /// Up to here the log survives a power cut. Lags what is on disk after recovery, until the
    /// first flush.
    #[must_use]
    pub fn durable_end(&self) -> LogPosition {
        LogPosition(self.drains.durable())
    }

    /// After a failed write or flush, once no drain is under way: hands out again everything since
    /// the last good flush (docs/faults.md E8), to be written to fresh blocks or a fresh device.
    ///
    /// # Errors
    /// Unavailable when the ring no longer holds all of it, which happens only between a restart
    /// and the first flush: what a broken disk then holds cannot be written again from here.
    pub fn rewind_drain(&mut self) -> Result<()> {
        if self.ring.from() > block_floor(self.drains.durable()) {
            return Err(Error::unavailable(format!(
                "drain from {}: the ring begins at {}",
                self.durable_end(),
                LogPosition(self.ring.from())
            )));
        }
        self.drains.rewind();
        Ok(())
    }

    /// Ring bytes from here on are still needed: what is not flushed, and all of a record that is
    /// flushed only in part, so that each record is whole in one place or the other. Also the
    /// beginning of the block in which such a record begins: after a kill it is drained from there.
    fn floor(&self) -> u64 {
        let floor = self.drains.floor();
        self.marks.at(floor).map_or(floor, |mark| block_floor(mark.position.get()))
    }

    fn check_room(&mut self, end: u64) -> Result<()> {
        if end > self.floor_seen + self.config.ring_len {
            self.floor_seen = self.floor();
        }
        let limit = self.floor_seen + self.config.ring_len;
        if end <= limit && end <= POSITION_MAX {
            return Ok(());
        }
        Err(Error::no_space(format!(
            "ring full: a record up to {} needs what lies below {} flushed; {} is",
            LogPosition(end),
            LogPosition(end.saturating_sub(self.config.ring_len)),
            LogPosition(self.floor_seen)
        )))
    }

    fn advance_over(&mut self, record: &Record) {
        let (before, after) = (self.tail, record.anchor());
        assert_eq!(after.index, before.next_index(), "records are numbered without a gap");
        assert_eq!(record.header.position.get(), self.end, "a record begins where the log ends");
        assert!(after.position > before.position, "a record has a length");
        self.tail = after;
        self.last_term = record.header.term;
        self.end = self.tail.position.get();
        self.marks.push(self.tail, self.config.ring_len);
        self.hop();
    }

    /// Steps over the gap after a closed span.
    fn hop(&mut self) {
        let next = self.spans.hop(self.end);
        if next == self.end {
            return;
        }
        assert!(next > self.end, "spans ascend");
        if next >= self.ring.from() {
            self.ring.zero(self.end, next);
        }
        self.drains.cut(self.end);
        self.end = next;
    }

    /// Ends each call that changes the log.
    fn end_step(&self) {
        let tail = self.tail.position.get();
        assert!(tail <= self.end, "the log goes on behind its last record");
        assert!(self.watermark <= tail, "only what is here is durable everywhere");
        assert!(self.ring.from() <= self.end, "the ring holds what comes last");
        assert_eq!(self.early.is_empty(), self.early_len == 0, "what waits is counted");
        if crate::CHECKED {
            self.invariants();
        }
    }

    /// Checks that spans, marks, and the records that wait or are to be taken are in order, and
    /// that counts agree.
    ///
    /// # Panics
    /// When one of them does not hold.
    pub fn invariants(&self) {
        assert!(Span::check_list(self.spans.list()).is_ok(), "{:?}", self.spans);
        assert!(self.trimmed <= self.end, "no more is trimmed than there is");
        self.marks.invariants(self.tail);
        let early_len: u64 = self.early.values().map(|record| record.bytes.len() as u64).sum();
        assert_eq!(self.early_len, early_len, "what waits is counted");
        for (before, next) in self.ready.iter().zip(self.ready.iter().skip(1)) {
            let end = before.end();
            assert!(end <= next.header.position, "records are taken in order");
            if self.spans.hop(end.get()) == next.header.position.get() {
                assert_eq!(before.header.crc, next.header.previous_crc, "the chain holds at {end}");
            }
        }
        let last = self.ready.back().map_or(0, |record| record.end().get());
        assert!(last <= self.tail.position.get(), "the log has what is to be taken");
    }

    /// The watermark is always the end of a record: one that lies across the durable end of a
    /// member may legally be torn there.
    fn settle_watermark(&mut self) {
        if !self.may_append {
            return;
        }
        let limit = self.members_durable.min(self.drains.durable());
        // Records that are appended meanwhile lie beyond the limit.
        if limit == self.settled_at {
            return;
        }
        self.settled_at = limit;
        if let Some(mark) = self.marks.at(limit) {
            self.watermark = self.watermark.max(mark.position.get());
        }
    }
}

fn flags_of(kind: RecordKind, flags: RecordFlags) -> RecordFlags {
    if kind == RecordKind::Edit || flags.has(RecordFlags::DURABLE_ACK) {
        return flags.with(RecordFlags::BLOCK_END);
    }
    flags
}

/// A log begins where a record may: on a multiple of 8 with room for a header in the segment.
pub(crate) fn check_start(config: &LogConfig, at: u64) -> Result<()> {
    let room = config.segment_len - at % config.segment_len;
    if at.is_multiple_of(8) && at <= POSITION_MAX && room >= HEADER_LEN as u64 {
        return Ok(());
    }
    Err(Error::invalid(format!("a log cannot begin at {}", LogPosition(at))))
}
