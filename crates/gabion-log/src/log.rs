//! The log of one replica: appending at the head, placing elsewhere, taking what is contiguous,
//! sending again, and the bookkeeping of terms.
//!
//! Order of calls. *Head*: [`Log::begin_term`], persist [`Log::spans`], then [`Log::append`].
//! *Replica*: [`Log::adopt_spans`] with the head's list, persist, then [`Log::place`] and
//! [`Log::next_record`]. *Both*, all the time: [`Log::next_drain`] → write → [`Log::drained`] → flush
//! the medium → [`Log::flushed`]. After [`crate::recover`]: [`Log::next_recovered`] until it is empty.

use crate::drain::{Drain, Drains};
use crate::record::{
    HEADER_LEN, Header, Layout, POSITION_MAX, Record, RecordBuilder, RecordFlags, RecordKind,
    record_end, verify,
};
use crate::ring::Ring;
use crate::scan::{
    Look, SegmentReader, SegmentSource, Wanted, Window, look_in_ring, look_in_segments,
};
use crate::span::{Anchor, SPANS_MAX, Span, Spans};
use crate::{LogConfig, block_ceil, block_floor};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::vec;
use core::ops::Range;
use gabion_base::{Error, ErrorKind, LogIndex, LogPosition, Result, SequenceNumber, Term};
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
    marks: VecDeque<Anchor>,
    members_durable: u64,
    watermark: u64,
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
    pub(crate) marks: VecDeque<Anchor>,
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
            marks: VecDeque::new(),
        };
        let mut log = Self::from_parts(parts);
        log.may_append = true;
        Ok(log)
    }

    pub(crate) fn from_parts(parts: Parts) -> Self {
        let Parts { config, ring, spans, start, tail, mut marks, .. } = parts;
        if marks.is_empty() {
            marks.push_back(start);
        }
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
            members_durable: u64::MAX,
            watermark: parts.watermark.min(tail.position.get()),
            replay: Replay { next: start, end: tail.position.get(), window: Window::new(&config) },
            spans,
        };
        log.hop();
        log
    }

    /// What makes this log different from others.
    #[must_use]
    pub fn config(&self) -> &LogConfig {
        &self.config
    }

    /// Where the next record begins: everything before it is here.
    #[must_use]
    pub fn end(&self) -> LogPosition {
        LogPosition(self.end)
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

    /// Gives the ring back.
    #[must_use]
    pub fn into_ring(self) -> Box<dyn MemoryRegion> {
        self.ring.into_region()
    }

    // ---- head -------------------------------------------------------------------------------

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
    /// In the ring when it returns: survives the kill of the process. Survives a power cut here once
    /// [`Self::durable_end`] has passed the record's end.
    ///
    /// # Errors
    /// Nothing has changed after one. No space when the ring would overwrite what is not flushed yet;
    /// limit exceeded for a record longer than a segment; invalid input when no term was begun here.
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
        let flags = flags_of(builder.kind(), stamp.flags);
        let segment_end = (self.end / segment_len + 1) * segment_len;
        let fits = record_end(self.end, body, flags, segment_len) <= segment_end;
        let at = if fits { self.end } else { segment_end };
        self.check_room(record_end(at, body, flags, segment_len))?;
        let pad = if fits { None } else { Some(self.write_pad(segment_end, stamp)) };
        let record = self.write(builder, Stamp { flags, ..stamp });
        Ok(Appended { pad, record })
    }

    fn write_pad(&mut self, segment_end: u64, stamp: Stamp) -> Record {
        let payload = (segment_end - self.end) as usize - HEADER_LEN;
        let mut pad = RecordBuilder::new(RecordKind::Pad, payload);
        pad.payload().resize(HEADER_LEN + payload, 0);
        self.write(pad, Stamp { count: 0, flags: RecordFlags::NONE, ..stamp })
    }

    fn write(&mut self, builder: RecordBuilder, stamp: Stamp) -> Record {
        let at = self.end;
        let end = record_end(at, builder.body_len() as u64, stamp.flags, self.config.segment_len);
        let header = Header {
            kind: builder.kind(),
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
        let record = builder.finish(header, end);
        self.ring.write(at, &record.bytes);
        self.advance_over(&record);
        record
    }

    /// Tells up to where every member has flushed. Records carry it (rounded down to the end of a
    /// record), so that recovery anywhere can tell a torn tail from a rotten middle: it must not
    /// pass what some member may still lose. A log that was never told takes its own flushes for
    /// everyone's, so a head with secondaries calls this before [`Self::begin_term`], with zero while
    /// it knows nothing.
    pub fn set_members_durable(&mut self, end: LogPosition) {
        self.members_durable = end.get();
        self.settle_watermark();
    }

    // ---- replica ----------------------------------------------------------------------------

    /// Takes whole records as they were received: one or more. Those that are here already are
    /// skipped, those beyond a gap wait for it to fill. On an error the records before the bad one
    /// are placed; placing the same bytes again is harmless.
    ///
    /// # Durability
    /// What is contiguous ([`Self::end`]) survives the kill of the process.
    ///
    /// # Errors
    /// Fenced for a record of an older term than its place has; unavailable for one of a newer term,
    /// until [`Self::adopt_spans`]; corruption when a record is not whole or does not continue the log;
    /// no space when the ring would overwrite what is not flushed, or too much waits beyond a gap.
    pub fn place(&mut self, mut bytes: Bytes) -> Result<()> {
        while !bytes.is_empty() {
            let header = verify(&bytes, &self.config)?;
            let len = (header.end(self.config.segment_len).get() - header.position.get()) as usize;
            let rest = bytes.split_off(len);
            self.place_one(Record::checked(header, bytes))?;
            bytes = rest;
        }
        self.place_early()
    }

    fn place_one(&mut self, record: Record) -> Result<()> {
        let at = record.header.position.get();
        if at < self.trimmed {
            return Ok(());
        }
        self.check_term(&record.header)?;
        if at < self.end {
            return Ok(());
        }
        self.check_window(record.end().get())?;
        if at > self.end {
            return self.keep_early(record);
        }
        self.check_fit(&record)?;
        self.check_room(record.end().get())?;
        self.accept(record);
        Ok(())
    }

    fn check_term(&self, header: &Header) -> Result<()> {
        let (at, term) = (header.position, header.term);
        let span = self.spans.at(at.get());
        match span {
            Some(span) if span.term == term => Ok(()),
            _ if term > self.spans.term() => Err(Error::unavailable(format!(
                "log record at {at} of {term}: the log of {} is still in {}",
                self.config.group,
                self.spans.term()
            ))),
            _ => Err(Error::new(
                ErrorKind::Fenced,
                format!(
                    "log record at {at} of {term}: the log of {} has {span:?} there",
                    self.config.group
                ),
            )),
        }
    }

    /// Bounds what waits: beyond a gap, and for the caller to take.
    fn check_window(&self, end: u64) -> Result<()> {
        let taken = self.ready.front().map_or(self.end, |r| r.header.position.get());
        if end <= taken + self.config.ring_len {
            return Ok(());
        }
        Err(Error::no_space(format!(
            "log record up to {}: {} is not taken yet and the ring has {} bytes",
            LogPosition(end),
            LogPosition(taken),
            self.config.ring_len
        )))
    }

    fn check_fit(&self, record: &Record) -> Result<()> {
        let Some(span) = self.spans.at(self.end) else {
            return Err(Error::unavailable(format!(
                "the log's last span is closed at {}",
                self.end()
            )));
        };
        let after = Some(self.tail);
        Wanted { config: &self.config, at: self.end, span, after }.fits(record)
    }

    fn keep_early(&mut self, record: Record) -> Result<()> {
        let (at, len) = (record.header.position.get(), record.bytes.len() as u64);
        if self.early.contains_key(&at) {
            return Ok(());
        }
        if self.early_len + len > self.config.segment_len {
            return Err(Error::no_space(format!(
                "{} bytes wait for the gap at {}; the limit is {}",
                self.early_len + len,
                self.end(),
                self.config.segment_len
            )));
        }
        self.early_len += len;
        self.early.insert(at, record);
        Ok(())
    }

    /// Places what waited beyond a gap that is filled, as far as the ring has room.
    fn place_early(&mut self) -> Result<()> {
        while let Some((&at, record)) = self.early.first_key_value() {
            if at > self.end || self.check_room(record.end().get()).is_err() {
                break;
            }
            let fit = if at == self.end { self.check_fit(record) } else { Ok(()) };
            let Some((_, record)) = self.early.pop_first() else { break };
            self.early_len -= record.bytes.len() as u64;
            fit?;
            if at == self.end {
                self.accept(record);
            }
        }
        Ok(())
    }

    fn accept(&mut self, record: Record) {
        self.may_append = false;
        self.ring.write(self.end, &record.bytes);
        self.watermark = self.watermark.max(record.header.durable.get());
        self.advance_over(&record);
        self.ready.push_back(record);
    }

    /// The next contiguous record that was placed and not taken yet. Records that recovery found
    /// come first, by [`Self::next_recovered`].
    pub fn next_record(&mut self) -> Option<Record> {
        if self.replay.next.position.get() < self.replay.end {
            return None;
        }
        self.ready.pop_front()
    }

    /// The next record that recovery found and that was not taken yet, from the ring or a segment.
    ///
    /// # Errors
    /// The source's; corruption when the record changed since recovery.
    pub async fn next_recovered(&mut self, source: &impl SegmentSource) -> Result<Option<Record>> {
        let at = self.spans.hop(self.replay.next.position.get());
        if at >= self.replay.end {
            self.replay.window = Window::new(&self.config);
            return Ok(None);
        }
        let Some(span) = self.spans.at(at) else {
            return Err(Error::corruption(format!("no span at {}", LogPosition(at))));
        };
        let wanted = Wanted { config: &self.config, at, span, after: Some(self.replay.next) };
        let in_ring = at >= self.ring.from();
        let mut look = if in_ring { look_in_ring(&self.ring, &wanted)? } else { Look::Absent };
        if !matches!(look, Look::Found(_)) {
            look = look_in_segments(&mut self.replay.window, source, &wanted).await?;
        }
        match look {
            Look::Found(record) => {
                self.replay.next = record.anchor();
                Ok(Some(record))
            }
            Look::Bad(error) => Err(error),
            Look::Absent => {
                Err(Error::corruption(format!("log record at {} is gone", LogPosition(at))))
            }
        }
    }

    // ---- resend -----------------------------------------------------------------------------

    /// Whole records from `from`, where a record begins: one or more, about `bytes_max` in all.
    ///
    /// # Errors
    /// Invalid input beyond the end or where no record begins.
    pub fn read(&self, from: LogPosition, bytes_max: usize) -> Result<Resend> {
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

    // ---- drain ------------------------------------------------------------------------------

    /// The next whole blocks to write into a segment: 128 KiB to 1 MiB, or up to the end of a segment;
    /// with `force` whatever is whole, which is everything when the last record has `BLOCK_END`.
    /// Several may be under way.
    pub fn next_drain(&mut self, force: bool) -> Option<Drain> {
        self.drains.next(&self.ring, self.end, self.config.segment_len, force)
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
    }

    /// Up to here the log survives a power cut. Lags what is on disk after recovery, until the
    /// first flush.
    #[must_use]
    pub fn durable_end(&self) -> LogPosition {
        LogPosition(self.drains.durable())
    }

    /// After a failed write or flush, once no drain is under way: hands out again everything since
    /// the last good flush (FAULTS.md E8), to be written to fresh blocks or a fresh device.
    ///
    /// # Errors
    /// Unavailable when the ring no longer holds all of it, which happens only between a restart and
    /// the first flush: what a broken disk then holds cannot be written again from here.
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

    // ---- spans ------------------------------------------------------------------------------

    /// Closes the current span where the log ends and opens one for `term` at the next block. The
    /// caller keeps [`Self::spans`] in its durable state before it appends.
    ///
    /// # Errors
    /// Fenced when `term` is not newer than the newest; limit exceeded for too many spans.
    pub fn begin_term(&mut self, term: Term) -> Result<Span> {
        if term <= self.spans.term() {
            return Err(Error::new(
                ErrorKind::Fenced,
                format!("log of {}: {term} is not newer than {}", self.config.group, self.term()),
            ));
        }
        if self.spans.list().len() >= SPANS_MAX {
            return Err(Error::limit(format!("{SPANS_MAX} spans: the log must be trimmed first")));
        }
        self.forget_early();
        // A span that was begun and never written gives its place to the new one.
        let at = self.tail.position.get();
        self.spans.cut(at);
        self.spans.open(term, block_ceil(at));
        self.hop();
        self.may_append = true;
        self.settle_watermark();
        Ok(Span { term, start: LogPosition(self.end), end: None })
    }

    /// Cuts a divergent tail: the log ends at `at`, where a record ended. The caller must not have
    /// applied anything beyond, and keeps [`Self::spans`] in its durable state.
    ///
    /// # Errors
    /// Invalid input when no record ends at `at`; unavailable while drains are under way, or when the
    /// place is no longer in the ring: then cut the durable spans and recover.
    pub fn truncate(&mut self, at: LogPosition) -> Result<()> {
        let tail = self.tail_at(at.get())?;
        self.spans.cut(at.get());
        self.cut_to(tail);
        Ok(())
    }

    /// Makes this log a follower of one with the spans `list`: cuts what that one does not have, and
    /// takes over its spans, also those that lie ahead. Returns where this log now ends and is to be
    /// sent from. The caller must not have applied anything beyond, and keeps [`Self::spans`] in its
    /// durable state before it acknowledges anything.
    ///
    /// # Errors
    /// Fenced when the list's newest term is older than this log's; not found when the logs have
    /// nothing in common that is still here: a full copy is needed; otherwise as for
    /// [`Self::truncate`].
    pub fn adopt_spans(&mut self, list: &[Span]) -> Result<LogPosition> {
        let theirs = Spans::new(list.to_vec())?;
        if theirs.term() < self.spans.term() {
            return Err(Error::new(
                ErrorKind::Fenced,
                format!("spans up to {}: this log is in {}", theirs.term(), self.term()),
            ));
        }
        let common = self.spans.common_end(self.end, &theirs).filter(|&at| at >= self.trimmed);
        let Some(common) = common else {
            return Err(Error::not_found(format!(
                "log of {}: nothing in common with spans {list:?} after {}",
                self.config.group,
                LogPosition(self.trimmed)
            )));
        };
        let tail = self.tail_at(common)?;
        let goes_on = theirs.at(common).is_some_and(|span| span.start.get() < common);
        if goes_on && common < self.end && self.ring.from() > block_floor(common) {
            return Err(Error::unavailable(format!(
                "span goes on at {}: the ring begins at {}",
                LogPosition(common),
                LogPosition(self.ring.from())
            )));
        }
        self.spans = theirs;
        self.may_append = false;
        if common < self.end {
            self.cut_to(tail);
        } else {
            self.forget_early();
            self.hop();
        }
        Ok(self.end())
    }

    /// The anchor of the record that ends at `at`, when the log can be cut there now.
    fn tail_at(&self, at: u64) -> Result<Anchor> {
        if at == self.end {
            return Ok(self.tail);
        }
        if !self.drains.is_idle() {
            return Err(Error::unavailable("the log cannot be cut while drains are under way"));
        }
        if at >= self.tail.position.get() && at < self.end {
            return Ok(self.tail);
        }
        let mark = self.mark_at(at);
        let reach = |m: &Anchor| m.position.get() == at || m.position.get() >= self.ring.from();
        let Some(mut place) = mark.filter(reach) else {
            return Err(Error::unavailable(format!(
                "cut at {}: the ring begins at {}",
                LogPosition(at),
                LogPosition(self.ring.from())
            )));
        };
        while place.position.get() < at {
            let here = self.spans.hop(place.position.get());
            let span = self.spans.at(here).filter(|_| here < at);
            let Some(span) = span else { break };
            let wanted = Wanted { config: &self.config, at: here, span, after: Some(place) };
            let Look::Found(record) = look_in_ring(&self.ring, &wanted)? else { break };
            place = record.anchor();
        }
        if place.position.get() == at || self.spans.hop(place.position.get()) == at {
            return Ok(place);
        }
        Err(Error::invalid(format!("cut at {}: no log record ends there", LogPosition(at))))
    }

    fn cut_to(&mut self, tail: Anchor) {
        let at = tail.position.get();
        self.forget_early();
        while self.ready.back().is_some_and(|record| record.end().get() > at) {
            self.ready.pop_back();
        }
        while self.marks.back().is_some_and(|mark| mark.position.get() > at) {
            self.marks.pop_back();
        }
        self.replay.end = self.replay.end.min(at);
        self.last_term = self.spans.term_at(at.saturating_sub(1));
        self.tail = tail;
        self.end = at;
        self.watermark = self.watermark.min(at);
        if self.spans.at(at).is_some_and(|span| span.start.get() < at) {
            self.drains.reopen(at);
        } else {
            self.drains.cut(at);
        }
        self.hop();
    }

    fn forget_early(&mut self) {
        self.early.clear();
        self.early_len = 0;
    }

    /// Says that nothing below `below` is needed any more by any member, and returns the numbers of
    /// the segments that can go. The caller has made the anchor there durable before; after a restart
    /// from that anchor it also drops what older segments a crash may have left.
    ///
    /// # Errors
    /// Invalid input when `below` is not durable here or not taken yet.
    pub fn trim(&mut self, below: LogPosition) -> Result<Range<u64>> {
        let (at, durable) = (below.get(), self.drains.durable());
        let untaken = self.ready.front().map_or(self.end, |r| r.header.position.get());
        let replayed = self.replay.next.position.get() >= self.replay.end.min(at);
        if at > durable || at > untaken || !replayed {
            return Err(Error::invalid(format!(
                "trim below {below}: durable up to {}, taken up to {}",
                self.durable_end(),
                LogPosition(if replayed { untaken } else { self.replay.next.position.get() })
            )));
        }
        let segment_len = self.config.segment_len;
        let before = self.trimmed / segment_len;
        self.trimmed = self.trimmed.max(at);
        self.spans.prune(self.trimmed);
        Ok(before..self.trimmed / segment_len)
    }

    // ---- bookkeeping ------------------------------------------------------------------------

    /// Ring bytes from here on are still needed: what is not flushed, and all of a record that is
    /// flushed only in part, so that each record is whole in one place or the other.
    fn floor(&self) -> u64 {
        let floor = self.drains.floor();
        self.mark_at(floor).map_or(floor, |mark| mark.position.get())
    }

    /// The last remembered end of a record at or below `position`.
    fn mark_at(&self, position: u64) -> Option<Anchor> {
        let after = self.marks.partition_point(|mark| mark.position.get() <= position);
        after.checked_sub(1).map(|i| self.marks[i])
    }

    fn check_room(&self, end: u64) -> Result<()> {
        let limit = self.floor() + self.config.ring_len;
        if end <= limit && end <= POSITION_MAX {
            return Ok(());
        }
        Err(Error::no_space(format!(
            "ring full: a record up to {} needs what lies below {} flushed; {} is",
            LogPosition(end),
            LogPosition(end.saturating_sub(self.config.ring_len)),
            LogPosition(self.floor())
        )))
    }

    fn advance_over(&mut self, record: &Record) {
        self.tail = record.anchor();
        self.last_term = record.header.term;
        self.end = self.tail.position.get();
        push_mark(&mut self.marks, self.tail, self.config.ring_len);
        self.hop();
    }

    /// Steps over the gap after a closed span.
    fn hop(&mut self) {
        let next = self.spans.hop(self.end);
        if next == self.end {
            return;
        }
        if next >= self.ring.from() {
            self.ring.zero(self.end, next);
        }
        self.drains.cut(self.end);
        self.end = next;
    }

    /// The watermark is always the end of a record: one that lies across the durable end of a member
    /// may legally be torn there.
    fn settle_watermark(&mut self) {
        if !self.may_append {
            return;
        }
        let limit = self.members_durable.min(self.drains.durable());
        if let Some(mark) = self.mark_at(limit) {
            self.watermark = self.watermark.max(mark.position.get());
        }
    }
}

/// Remembers where records end, one per 4 KiB of log: enough for watermarks, cuts and the ring's
/// floor, few enough to keep for a whole ring. One mark below the ring's reach stays. The start of a
/// segment is always a mark, so a ring of two segments always has room for the next record once all
/// that can be drained is flushed.
pub(crate) fn push_mark(marks: &mut VecDeque<Anchor>, tail: Anchor, ring_len: u64) {
    let block = block_floor(tail.position.get());
    if marks.back().is_some_and(|mark| block_floor(mark.position.get()) == block) {
        return;
    }
    marks.push_back(tail);
    while marks.len() > 1 && marks[1].position.get() + ring_len <= tail.position.get() {
        marks.pop_front();
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
