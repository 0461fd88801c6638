//! Every record that can be read, for tools that look at a log which may be damaged.
//!
//! [`crate::recovery`] stops at the first bad record, as it must; here the scan names what is bad
//! and goes on with the next whole record, wherever the log counts in between. Nothing is written.

use crate::LogConfig;
use crate::log::check_start;
use crate::record::{HEADER_LEN, Layout, Record, verify};
use crate::ring::Ring;
use crate::scan::{
    Look, SegmentSource, Wanted, Window, candidates, look_in_ring, look_in_segments,
};
use crate::span::{Anchor, Span, Spans};
use alloc::boxed::Box;
use alloc::format;
use alloc::vec;
use gabion_base::units::MIB;
use gabion_base::{Error, LogPosition, Result};
use gabion_media::MemoryRegion;

/// What stands at a place of the log.
#[derive(Debug)]
pub enum Seen {
    /// A whole record.
    Record {
        /// The record.
        record: Record,
        /// Whether a segment holds it whole.
        in_segment: bool,
        /// Whether the ring holds it whole.
        in_ring: bool,
    },
    /// No whole record that continues the log.
    Bad {
        /// Where one should begin.
        from: LogPosition,
        /// Where the next whole record begins; nothing when there is none.
        to: Option<LogPosition>,
        /// What is wrong.
        error: Error,
    },
}

/// Whether memory holds a whole record of a log where a ring has it: by that it is known for one of
/// the log's.
pub fn holds_record(region: &dyn MemoryRegion, config: &LogConfig) -> bool {
    let len = region.len();
    let mut chunk = vec![0; MIB as usize];
    (0..len).step_by(chunk.len()).any(|at| {
        let within = (len - at).min(MIB) as usize;
        let chunk = &mut chunk[..within];
        region.read(at, chunk);
        candidates(chunk).any(|offset| is_record(region, config, at + offset as u64))
    })
}

fn is_record(region: &dyn MemoryRegion, config: &LogConfig, at: u64) -> bool {
    let mut head = [0; HEADER_LEN];
    if at + HEADER_LEN as u64 > region.len() {
        return false;
    }
    region.read(at, &mut head);
    let Ok(layout) = Layout::read(&head) else { return false };
    let Ok(len) = layout.len(config.segment_len) else { return false };
    if layout.position.get() % region.len() != at || at + len as u64 > region.len() {
        return false;
    }
    let mut record = vec![0; len];
    region.read(at, &mut record);
    verify(&record, config).is_ok()
}

/// A walk over a log's records, in ring and segments or in segments alone.
pub struct RecordScan {
    config: LogConfig,
    spans: Spans,
    ring: Option<Ring>,
    window: Window,
    at: Anchor,
    /// Whether the next record has to continue the one before.
    is_continued: bool,
    ended: bool,
}

impl RecordScan {
    /// A scan from `start` on. Without a ring only what was drained is seen.
    ///
    /// # Errors
    /// Invalid input for a bad configuration or list of spans, or where no record can begin.
    pub fn new(
        config: LogConfig,
        spans: &[Span],
        start: Anchor,
        ring: Option<Box<dyn MemoryRegion>>,
    ) -> Result<Self> {
        config.check()?;
        check_start(&config, start.position.get())?;
        let ring = ring.map(|ring| Ring::new(ring, config.ring_len, start.position.get()));
        Ok(Self {
            config,
            spans: Spans::new(spans.to_vec())?,
            ring: ring.transpose()?,
            window: Window::new(&config),
            at: start,
            is_continued: true,
            ended: false,
        })
    }

    /// The next record or bad place; nothing at the end. A bad place without a record after it is
    /// where the log ends, torn or damaged: recovery tells which.
    ///
    /// # Errors
    /// None for what the log holds: a place that cannot be read is [`Seen::Bad`].
    pub async fn next(&mut self, source: &impl SegmentSource) -> Result<Option<Seen>> {
        let at = self.spans.hop(self.at.position.get());
        if self.ended || self.spans.at(at).is_none() {
            return Ok(None);
        }
        let after = self.is_continued.then_some(self.at);
        let (in_segment, in_ring) = self.look(source, at, after).await;
        let error = match (in_segment, in_ring) {
            (Look::Found(record), ring) => {
                let in_ring = matches!(ring, Look::Found(other) if other.bytes == record.bytes);
                return Ok(Some(self.found(record, true, in_ring)));
            }
            (_, Look::Found(record)) => return Ok(Some(self.found(record, false, true))),
            (Look::Bad(error), _) | (_, Look::Bad(error)) => Some(error),
            (Look::Absent, Look::Absent) => None,
        };
        let to = self.next_whole(source, at + 8).await;
        self.ended = to.is_none();
        self.is_continued = false;
        self.at.position = LogPosition(to.unwrap_or(at));
        let missing = || Error::corruption(format!("no log record at {}", LogPosition(at)));
        Ok(match (error, to) {
            (None, None) => None,
            (error, to) => Some(Seen::Bad {
                from: LogPosition(at),
                to: to.map(LogPosition),
                error: error.unwrap_or_else(missing),
            }),
        })
    }

    fn found(&mut self, record: Record, in_segment: bool, in_ring: bool) -> Seen {
        self.at = record.anchor();
        self.is_continued = true;
        Seen::Record { record, in_segment, in_ring }
    }

    async fn look(
        &mut self,
        source: &impl SegmentSource,
        at: u64,
        after: Option<Anchor>,
    ) -> (Look, Look) {
        let Some(span) = self.spans.at(at) else { return (Look::Absent, Look::Absent) };
        let wanted = Wanted { config: &self.config, at, span, after };
        let in_segment = look_in_segments(&mut self.window, source, &wanted).await;
        let in_ring = self.ring.as_ref().map_or(Ok(Look::Absent), |r| look_in_ring(r, &wanted));
        (in_segment.unwrap_or_else(Look::Bad), in_ring.unwrap_or_else(Look::Bad))
    }

    /// Where the first whole record at or after `from` begins. Ends one ring behind the last
    /// segment.
    async fn next_whole(&mut self, source: &impl SegmentSource, from: u64) -> Option<u64> {
        let mut start = from;
        let mut empty = 0;
        while empty < self.config.ring_len {
            let stop = (start / MIB + 1) * MIB;
            let stop = stop.min((start / self.config.segment_len + 1) * self.config.segment_len);
            let (places, segment_len) = self.candidates(source, start, stop).await;
            for at in places {
                let (in_segment, in_ring) = self.look(source, at, None).await;
                if matches!(in_segment, Look::Found(_)) || matches!(in_ring, Look::Found(_)) {
                    return Some(at);
                }
            }
            empty = if segment_len > 0 { 0 } else { empty + (stop - start) };
            start = stop;
        }
        None
    }

    /// Positions from `start` to `stop` at which a record claims to be, and how many bytes of the
    /// range are in a segment.
    async fn candidates(
        &self,
        source: &impl SegmentSource,
        start: u64,
        stop: u64,
    ) -> (vec::Vec<u64>, usize) {
        let from = crate::block_floor(start);
        // Bytes that cannot be read hold no record that could be shown.
        let segment = self.window.load(source, from, stop).await.unwrap_or_default();
        let mut places: vec::Vec<u64> = candidates_at(&segment, from, start);
        if let Some(ring) = &self.ring {
            let mut chunk = vec![0; (stop - from) as usize];
            ring.read(from, &mut chunk);
            places.extend(candidates_at(&chunk, from, start));
        }
        places.sort_unstable();
        places.dedup();
        (places, segment.len())
    }
}

/// Positions at or after `start` of headers in `chunk`, which lies at `from`, that name their own
/// place.
fn candidates_at(chunk: &[u8], from: u64, start: u64) -> vec::Vec<u64> {
    let claims = |offset: &usize| {
        let at = from + *offset as u64;
        let head = chunk.get(*offset..*offset + HEADER_LEN);
        // A header that reaches past the chunk is judged whole by whoever looks at the place.
        let is_here = head
            .is_none_or(|head| Layout::read(head).is_ok_and(|layout| layout.position.get() == at));
        at >= start && is_here
    };
    candidates(chunk).filter(claims).map(|offset| from + offset as u64).collect()
}
