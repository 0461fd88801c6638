//! Recovery: the longest valid prefix of ring and segments, and why it ends there.
//!
//! ```text
//!   start (durable anchor)                            end
//!     ├──[record][record] … [record][record]──────────┤ ✗ bad ── [record, watermark w] ──►
//!     │   from segments              │ from the ring  │
//!     └──────────────────────────────┴ in_segments    └ w > bad: rotten middle, refused
//!                                                       w ≤ bad: torn tail, the log ends here
//! ```
//!
//! Either place may hold a record: after the kill of a process the ring is intact, after a power
//! cut it holds zeros or anything. Nothing is written to segments, so recovery that is itself cut
//! short starts over with the same result (docs/faults.md E2); what the ring lacks of the undrained
//! part is copied there, with the same bytes. That part fits the ring, unless what a segment lost
//! is whole in an older lap of the ring alone: then the log ends where it would not fit any more,
//! as at a bad record.
//!
//! A bad record below the highest durable watermark of any record, or below what the caller knows
//! to be durable, is corruption: every member had flushed it. Above it the log ends there, whatever
//! follows, as positioned writes may legally leave a whole record after a torn one (docs/faults.md
//! E4).

use crate::log::marks::Marks;
use crate::log::{Log, Parts, check_start};
use crate::ring::Ring;
use crate::scan::{After, Look, SegmentSource, Wanted, Window, look_in_ring, look_in_segments};
use crate::span::{Anchor, Span, Spans};
use crate::{LogConfig, block_floor};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use gabion_base::units::BLOCK_LEN;
use gabion_base::{Error, ErrorKind, FileId, LogPosition, Result, Term};
use gabion_media::MemoryRegion;

/// What the durable state of the replica says about its log.
#[derive(Clone, Debug)]
pub struct RecoveryInput {
    /// The spans.
    pub spans: Vec<Span>,
    /// From here the log is applied; what lies below may be gone.
    pub start: Anchor,
    /// The log is known to have been durable here, and committed, up to this record end, for
    /// instance by the last edit that was applied; zero when nothing is known.
    pub durable: LogPosition,
    /// With a rotten middle: end the log there, so that the rest is pulled from a replica, and say
    /// so in [`RecoveryReport::rotten`]; otherwise recovery is refused, as it must be where there
    /// is no other replica, and for those who only look.
    pub repair: bool,
}

/// Why the log ends where it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nothing claims to follow.
    Clean,
    /// Something claims to follow and is not whole; the text says what is wrong.
    Torn(String),
}

/// The place of a record that was durable and is not whole any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rot {
    /// Where it begins.
    pub position: LogPosition,
    /// The segment that holds it.
    pub segment: FileId,
    /// Where in the segment.
    pub offset: u64,
}

/// What recovery found.
#[derive(Clone, Debug)]
pub struct RecoveryReport {
    /// Where the log ends.
    pub end: LogPosition,
    /// Why.
    pub ending: Ending,
    /// The highest durable watermark found, or given.
    pub watermark: LogPosition,
    /// Up to here segments hold the log; what follows came from the ring.
    pub in_segments: LogPosition,
    /// Records found.
    pub records: u64,
    /// The head's clock when it wrote the last of them, in ms; 0 without any.
    pub last_ms: u64,
    /// A rotten middle that the log was cut at, on demand. The caller makes `watermark` durable and
    /// sees to it that the log goes on only with what it had up to there.
    pub rotten: Option<Rot>,
}

/// Finds the longest valid prefix of the log from `input.start` on. The records are then taken by
/// [`Log::next_recovered`]. The log goes on with [`Log::begin_term`] at a head, or with
/// [`Log::adopt_spans`] and [`Log::place`].
///
/// # Durability
/// [`Log::durable_end`] starts at what is known; one flush of the medium makes everything below
/// [`Log::drained_end`] durable.
///
/// # Errors
/// Corruption with the exact place for a rotten middle (unless `input.repair`); unsupported for a
/// whole record of another build; the source's errors; corruption for spans that begin a block or
/// more behind the start; invalid input for a bad configuration or list.
pub async fn recover(
    config: LogConfig,
    ring: Box<dyn MemoryRegion>,
    input: RecoveryInput,
    source: &impl SegmentSource,
) -> Result<(Log, RecoveryReport)> {
    config.check()?;
    let start = input.start;
    check_start(&config, start.position.get())?;
    let spans = Spans::new(input.spans)?;
    let first = spans.hop(start.position.get());
    if first - start.position.get() >= BLOCK_LEN as u64 {
        return Err(Error::corruption(format!(
            "log of {}: it begins at {}, its spans at {}",
            config.group,
            start.position,
            LogPosition(first)
        )));
    }
    let ring = Ring::new(ring, config.ring_len, start.position.get())?;
    let mut walk = Walk {
        config,
        ring,
        last_term: spans.term_at(start.position.get().saturating_sub(1)),
        spans,
        tail: start,
        in_segments: None,
        watermark: input.durable.get(),
        marks: Marks::new(start),
        window: Window::new(&config),
        records: 0,
        last_ms: 0,
    };
    let ending = walk.walk(source).await?;
    let rotten = walk.judge_end(source, &ending, input.repair).await?;
    walk.complete_last_block(source).await?;
    let end = walk.tail.position;
    let in_segments = walk.in_segments.unwrap_or(end.get());
    let report = RecoveryReport {
        end,
        ending,
        watermark: LogPosition(walk.watermark),
        in_segments: LogPosition(in_segments),
        records: walk.records,
        last_ms: walk.last_ms,
        rotten,
    };
    let durable = input.durable.max(start.position).get();
    Ok((walk.into_log(start, in_segments, durable), report))
}

struct Walk {
    config: LogConfig,
    ring: Ring,
    spans: Spans,
    tail: Anchor,
    last_term: Term,
    /// The first record that no segment holds.
    in_segments: Option<u64>,
    watermark: u64,
    marks: Marks,
    window: Window,
    records: u64,
    last_ms: u64,
}

impl Walk {
    async fn walk(&mut self, source: &impl SegmentSource) -> Result<Ending> {
        loop {
            let at = self.spans.hop(self.tail.position.get());
            let Some(&span) = self.spans.at(at) else { return Ok(Ending::Clean) };
            let wanted = Wanted { config: &self.config, at, span: &span, after: Some(self.tail) };
            let in_ring = look_in_ring(&self.ring, &wanted)?;
            let in_segment = look_in_segments(&mut self.window, source, &wanted).await?;
            let drained = matches!(in_segment, Look::Found(_));
            let (record, whole_in_ring) = match (in_segment, in_ring) {
                // Of two that are whole and differ, that of the segment counts, here and whenever
                // it is read.
                (Look::Found(record), ring) => {
                    let is_same = matches!(ring, Look::Found(other) if other.bytes == record.bytes);
                    (record, is_same)
                }
                (_, Look::Found(record)) => (record, true),
                (Look::Bad(error), _) | (_, Look::Bad(error)) => {
                    return Ok(Ending::Torn(format!("{error}")));
                }
                (Look::Absent, Look::Absent) => return Ok(Ending::Clean),
            };
            if !drained {
                self.in_segments.get_or_insert(at);
            }
            if let Some(why) = self.outgrows_ring(record.end().get()) {
                return Ok(Ending::Torn(why));
            }
            if self.in_segments.is_some() && self.tail.position.get() >= self.ring.from() {
                self.ring.zero(self.tail.position.get(), at);
            }
            if self.in_segments.is_some() && !whole_in_ring {
                // A later drain will need it: the drain order is whole again from here on.
                self.ring.write(at, &record.bytes);
            } else if whole_in_ring {
                self.ring.note_written(record.end().get());
            } else {
                self.ring.set_from(record.end().get());
            }
            self.tail = record.anchor();
            self.last_term = record.header.term;
            self.watermark = self.watermark.max(record.header.durable.get());
            self.records += 1;
            self.last_ms = record.header.now_ms;
            self.marks.push(self.tail, self.config.ring_len);
        }
    }

    /// Why the log cannot go on up to `end`, if what has to be drained would not fit the ring.
    fn outgrows_ring(&self, end: u64) -> Option<String> {
        let (from, ring_len) = (self.in_segments?, self.config.ring_len);
        (end - block_floor(from) > ring_len).then(|| {
            format!(
                "the record at {} is in no segment, and a ring of {ring_len} bytes has no room for \
                 what lies from there to {}",
                LogPosition(from),
                LogPosition(end)
            )
        })
    }

    /// Torn tail or rotten middle?
    async fn judge_end(
        &mut self,
        source: &impl SegmentSource,
        ending: &Ending,
        repair: bool,
    ) -> Result<Option<Rot>> {
        let bad = self.spans.hop(self.tail.position.get());
        let mut after =
            After { config: &self.config, spans: &self.spans, bad, watermark: self.watermark };
        after.ring(&self.ring);
        after.segments(source, self.config.ring_len / self.config.segment_len + 1).await?;
        self.watermark = after.watermark;
        if self.watermark <= bad {
            return Ok(None);
        }
        let rot = Rot {
            position: LogPosition(bad),
            segment: self.config.segment_at(bad),
            offset: bad % self.config.segment_len,
        };
        if repair {
            return Ok(Some(rot));
        }
        let why = match ending {
            Ending::Clean => "no record is there",
            Ending::Torn(why) => why,
        };
        Err(Error::new(
            ErrorKind::Corruption,
            format!(
                "log of {}: the record at {} ({} at {}) was durable, as all up to {} was: {why}",
                self.config.group,
                rot.position,
                rot.segment,
                rot.offset,
                LogPosition(self.watermark)
            ),
        ))
    }

    /// The block in which the log ends is drained from the ring, so the ring must hold all of it.
    async fn complete_last_block(&mut self, source: &impl SegmentSource) -> Result<()> {
        let end = self.tail.position.get();
        let first = block_floor(self.in_segments.unwrap_or(end).min(end));
        let from = self.ring.from();
        if from <= first {
            return Ok(());
        }
        let len = (from.min(end) - first) as usize;
        if let Some(bytes) = self.window.get(source, first, len).await? {
            self.ring.write(first, &bytes);
        }
        self.ring.set_from(first);
        Ok(())
    }

    fn into_log(mut self, start: Anchor, in_segments: u64, durable: u64) -> Log {
        // As the log before did when it was trimmed: each start adds one.
        self.spans.prune(start.position.get(), self.tail.position.get());
        Log::from_parts(Parts {
            config: self.config,
            ring: self.ring,
            spans: self.spans,
            start,
            tail: self.tail,
            last_term: self.last_term,
            in_segments,
            durable,
            watermark: self.watermark,
            marks: self.marks,
        })
    }
}
