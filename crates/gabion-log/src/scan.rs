//! Reading records back: from the ring, from segments, and past a bad place.

use crate::record::{HEADER_LEN, Layout, MAGIC, Record, verify};
use crate::ring::Ring;
use crate::short::{Place, SHORT_LEN};
use crate::span::{Anchor, Span, Spans};
use crate::{LogConfig, block_ceil, block_floor};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::future::Future;
use core::iter;
use gabion_base::units::{MIB, TRANSFER_LEN_MAX};
use gabion_base::{Error, ErrorKind, FileId, LogPosition, Result};
use gabion_media::Bytes;

/// Where the segments of a log can be read: the pool of this replica.
pub trait SegmentSource {
    /// `len` bytes at `offset` of a segment; both are multiples of 4 KiB and `len` is at most one
    /// transfer (1 MiB). `None` when there is no such segment; fewer bytes than asked when it is
    /// shorter.
    ///
    /// # Errors
    /// The medium's.
    fn read(
        &self,
        segment: FileId,
        offset: u64,
        len: usize,
    ) -> impl Future<Output = Result<Option<Bytes>>>;
}

/// What a place holds.
pub(crate) enum Look {
    /// The record that belongs there.
    Found(Record),
    /// Nothing that claims to belong there.
    Absent,
    /// Something that claims to, and is not whole or does not continue the log.
    Bad(Error),
}

/// What the record at a place must be.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) config: &'a LogConfig,
    pub(crate) at: u64,
    pub(crate) span: &'a Span,
    /// What it continues; `None` when that is not known.
    pub(crate) after: Option<Anchor>,
}

impl Wanted<'_> {
    /// The place as short headers see it: without what a record continues none is known for one.
    fn place(&self) -> Option<Place<'_>> {
        let (config, at, term) = (self.config, self.at, self.span.term);
        self.after.map(|after| Place { config, at, term, after })
    }

    /// The length of the record whose header `head` begins with, when it claims this place.
    fn claims(&self, head: &[u8]) -> Option<Result<usize>> {
        self.long_layout(head)
            .or_else(|| {
                let place = self.place()?;
                place.short_body(head).map(|body| Layout::of_short(&place, body))
            })
            .map(|layout| layout.len(self.config.segment_len))
    }

    /// What a long header says that claims this place.
    fn long_layout(&self, head: &[u8]) -> Option<Layout> {
        Layout::read(head).ok().filter(|layout| {
            layout.position.get() == self.at
                && (layout.group, layout.shard) == (self.config.group, self.config.shard)
                && layout.term == self.span.term
        })
    }

    /// Judges whole bytes that claim this place. The outer error is for a whole record that this
    /// build cannot read.
    fn judge(&self, bytes: &Bytes) -> Result<Look> {
        let short = self.place().filter(|_| self.long_layout(bytes).is_none());
        let header = match short {
            Some(place) => place.verify_short(bytes),
            None => verify(bytes, self.config),
        };
        let header = match header {
            Ok(header) => header,
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
            Err(error) => return Ok(Look::Bad(error)),
        };
        let record = Record::checked(header, bytes.clone());
        match self.fits(&record) {
            Ok(()) => Ok(Look::Found(record)),
            Err(error) => Ok(Look::Bad(error)),
        }
    }

    /// Refuses a record that does not continue the log or leaves its span.
    pub(crate) fn fits(&self, record: &Record) -> Result<()> {
        let (header, at) = (&record.header, record.header.position);
        if let Some(after) = self.after {
            let (index, crc) = (after.next_index(), after.crc);
            if header.index != index || header.previous_crc != crc {
                return Err(Error::corruption(format!(
                    "log record at {at} has index {} after checksum {:#010x}; \
                     the log goes on with {index} after {crc:#010x}",
                    header.index, header.previous_crc
                )));
            }
        }
        match self.span.end {
            Some(end) if record.end() > end => Err(Error::corruption(format!(
                "log record at {at} ends at {}, its span {:?} before that",
                record.end(),
                self.span
            ))),
            _ => Ok(()),
        }
    }
}

/// What the ring holds at a place.
pub(crate) fn look_in_ring(ring: &Ring, wanted: &Wanted<'_>) -> Result<Look> {
    // No record begins where less than a header is left of a segment, and with one of them the ring
    // ends.
    if ring.len() - wanted.at % ring.len() < HEADER_LEN as u64 {
        return Ok(Look::Absent);
    }
    let mut head = [0; HEADER_LEN];
    ring.read(wanted.at, &mut head);
    match wanted.claims(&head) {
        None => Ok(Look::Absent),
        Some(Err(error)) => Ok(Look::Bad(error)),
        Some(Ok(len)) => {
            let mut bytes = vec![0; len];
            ring.read(wanted.at, &mut bytes);
            wanted.judge(&Bytes::from(bytes))
        }
    }
}

/// What the segments hold at a place.
pub(crate) async fn look_in_segments(
    window: &mut Window,
    source: &impl SegmentSource,
    wanted: &Wanted<'_>,
) -> Result<Look> {
    // A record with a short header may be the last of what is there, and be shorter than a long
    // header.
    let head = window.get(source, wanted.at, HEADER_LEN).await?;
    let Some(head) = head.or_else(|| window.cached(wanted.at, SHORT_LEN)) else {
        return Ok(Look::Absent);
    };
    match wanted.claims(&head) {
        None => Ok(Look::Absent),
        Some(Err(error)) => Ok(Look::Bad(error)),
        Some(Ok(len)) => match window.get(source, wanted.at, len).await? {
            Some(bytes) => wanted.judge(&bytes),
            None => Ok(Look::Bad(Error::corruption(format!(
                "log record at {} of {len} bytes: its segment is shorter",
                LogPosition(wanted.at)
            )))),
        },
    }
}

/// A piece of the segments in memory, so that records that follow each other are read together.
pub(crate) struct Window {
    config: LogConfig,
    start: u64,
    bytes: Bytes,
}

impl Window {
    pub(crate) fn new(config: &LogConfig) -> Self {
        Self { config: *config, start: 0, bytes: Bytes::new() }
    }

    /// `len` bytes at `position`, which do not cross a segment; `None` when they are not all there.
    pub(crate) async fn get(
        &mut self,
        source: &impl SegmentSource,
        position: u64,
        len: usize,
    ) -> Result<Option<Bytes>> {
        if let Some(bytes) = self.cached(position, len) {
            return Ok(Some(bytes));
        }
        let start = block_floor(position);
        let segment_len = self.config.segment_len;
        let segment_end = (position / segment_len + 1) * segment_len;
        let need = block_ceil(position + len as u64);
        let stop = need.max((start + MIB).min(segment_end));
        self.start = start;
        self.bytes = self.load(source, start, stop).await?;
        Ok(self.cached(position, len))
    }

    fn cached(&self, position: u64, len: usize) -> Option<Bytes> {
        let from = usize::try_from(position.checked_sub(self.start)?).ok()?;
        let to = from.checked_add(len)?;
        (to <= self.bytes.len()).then(|| self.bytes.slice(from..to))
    }

    pub(crate) async fn load(
        &self,
        source: &impl SegmentSource,
        start: u64,
        stop: u64,
    ) -> Result<Bytes> {
        let (segment, segment_len) = (self.config.segment_at(start), self.config.segment_len);
        let mut whole = Vec::new();
        let mut at = start;
        while at < stop {
            let len = ((stop - at) as usize).min(TRANSFER_LEN_MAX);
            let read = source.read(segment, at % segment_len, len).await;
            let read = read.map_err(|e| e.within(format!("{segment} at {}", at % segment_len)))?;
            let Some(bytes) = read else { break };
            at += bytes.len() as u64;
            if at == stop && whole.is_empty() {
                return Ok(bytes);
            }
            whole.extend_from_slice(&bytes);
            if bytes.len() != len {
                break;
            }
        }
        Ok(Bytes::from(whole))
    }
}

/// The highest durable watermark in any whole record of the log after a bad place.
pub(crate) struct After<'a> {
    pub(crate) config: &'a LogConfig,
    pub(crate) spans: &'a Spans,
    /// The bad place.
    pub(crate) bad: u64,
    /// The highest watermark so far.
    pub(crate) watermark: u64,
}

impl After<'_> {
    /// Scans the ring.
    pub(crate) fn ring(&mut self, ring: &Ring) {
        let step = self.config.segment_len.min(MIB);
        let mut chunk = vec![0; step as usize];
        for start in (0..ring.len()).step_by(step as usize) {
            let len = step.min(ring.len() - start) as usize;
            ring.read(start, &mut chunk[..len]);
            for offset in candidates(&chunk[..len]) {
                let at = start + offset as u64;
                let mut head = [0; HEADER_LEN];
                if at + HEADER_LEN as u64 > ring.len() {
                    continue;
                }
                ring.read(at, &mut head);
                let Some((position, len)) = self.plausible(&head) else { continue };
                if position % ring.len() == at {
                    let mut bytes = vec![0; len];
                    ring.read(at, &mut bytes);
                    self.weigh(&bytes);
                }
            }
        }
    }

    /// Scans the segments from the bad place on, until `absent_max` segments in a row do not exist.
    pub(crate) async fn segments(
        &mut self,
        source: &impl SegmentSource,
        absent_max: u64,
    ) -> Result<()> {
        let segment_len = self.config.segment_len;
        let mut window = Window::new(self.config);
        let mut ordinal = self.bad / segment_len;
        let mut absent = 0;
        while absent < absent_max {
            let file = self.config.segment(ordinal);
            let start = ordinal * segment_len;
            ordinal += 1;
            if source.read(file, 0, gabion_base::units::BLOCK_LEN).await?.is_none() {
                absent += 1;
                continue;
            }
            absent = 0;
            self.segment(&mut window, source, start).await?;
        }
        Ok(())
    }

    async fn segment(
        &mut self,
        window: &mut Window,
        source: &impl SegmentSource,
        start: u64,
    ) -> Result<()> {
        let end = start + self.config.segment_len;
        let mut at = start.max(block_floor(self.bad));
        while at < end {
            let stop = (at + MIB).min(end);
            let chunk = window.load(source, at, stop).await?;
            for offset in candidates(&chunk) {
                let here = at + offset as u64;
                let Some(head) = window.get(source, here, HEADER_LEN).await? else { continue };
                let Some((position, len)) = self.plausible(&head) else { continue };
                if position != here {
                    continue;
                }
                if let Some(bytes) = window.get(source, here, len).await? {
                    self.weigh(&bytes);
                }
            }
            at = stop;
        }
        Ok(())
    }

    /// Position and length of what could be a record of this log after the bad place.
    fn plausible(&self, head: &[u8]) -> Option<(u64, usize)> {
        let layout = Layout::read(head).ok()?;
        let position = layout.position.get();
        let ours = (layout.group, layout.shard) == (self.config.group, self.config.shard)
            && position > self.bad
            && self.spans.at(position).is_some_and(|span| span.term == layout.term);
        if !ours {
            return None;
        }
        Some((position, layout.len(self.config.segment_len).ok()?))
    }

    fn weigh(&mut self, bytes: &[u8]) {
        if let Ok(header) = verify(bytes, self.config) {
            self.watermark = self.watermark.max(header.durable.get());
        }
    }
}

/// Offsets at which a record's magic stands. By index, not by slices of eight bytes: every opening
/// looks through a whole ring, and checks of each slice are half the time of a test that restarts
/// replicas.
pub(crate) fn candidates(chunk: &[u8]) -> impl Iterator<Item = usize> {
    let (words, _) = chunk.as_chunks::<8>();
    let mut next = 0;
    iter::from_fn(move || {
        while next < words.len() {
            let word = u64::from_le_bytes(words[next]);
            next += 1;
            if word as u32 == MAGIC {
                return Some((next - 1) * 8);
            }
        }
        None
    })
}

/// Reads records that left the ring, for a replica that is far behind. Detached from the log, so
/// that appending goes on meanwhile.
#[derive(Clone, Debug)]
pub struct SegmentReader {
    pub(crate) config: LogConfig,
    pub(crate) spans: Spans,
}

impl SegmentReader {
    /// Whole records from `from` (where a record begins), one or more, about `bytes_max` in all.
    /// They end at the end of a span. Empty when no whole record begins there.
    ///
    /// # Errors
    /// The source's; corruption when a record claims the place and is not whole.
    pub async fn read(
        &self,
        source: &impl SegmentSource,
        from: LogPosition,
        bytes_max: usize,
    ) -> Result<Bytes> {
        let mut at = self.spans.hop(from.get());
        let Some(span) = self.spans.at(at) else { return Ok(Bytes::new()) };
        let mut window = Window::new(&self.config);
        let (mut parts, mut len) = (Vec::new(), 0);
        while span.end.is_none_or(|end| at < end.get()) {
            let wanted = Wanted { config: &self.config, at, span, after: None };
            let record = match look_in_segments(&mut window, source, &wanted).await? {
                Look::Found(record) => record,
                Look::Bad(error) if parts.is_empty() => return Err(error),
                Look::Bad(_) | Look::Absent => break,
            };
            if !parts.is_empty() && len + record.bytes.len() > bytes_max {
                break;
            }
            len += record.bytes.len();
            at = record.end().get();
            parts.push(record.bytes);
        }
        Ok(match parts.as_slice() {
            [one] => one.clone(),
            _ => Bytes::from(parts.concat()),
        })
    }
}
