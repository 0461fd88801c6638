//! A replica's side of the log: placing what a head sent, taking what is contiguous, and taking
//! what recovery found.

use super::Log;
use crate::record::{Header, Record, verify};
use crate::scan::{Look, SegmentSource, Wanted, Window, look_in_ring, look_in_segments};
use alloc::format;
use gabion_base::{Error, ErrorKind, LogPosition, Result};
use gabion_media::Bytes;

impl Log {
    /// Takes whole records as they were received: one or more. Those that are here already are
    /// skipped, those beyond a gap wait for it to fill. On an error the records before the bad one
    /// are placed; placing the same bytes again is harmless.
    ///
    /// # Durability
    /// What is contiguous ([`Self::end`]) survives the kill of the process.
    ///
    /// # Errors
    /// Fenced for a record of an older term than its place has; unavailable for one of a newer
    /// term, until [`Self::adopt_spans`]; corruption when a record is not whole or does not
    /// continue the log; no space when the ring would overwrite what is not flushed, or too much
    /// waits beyond a gap.
    pub fn place(&mut self, mut bytes: Bytes) -> Result<()> {
        while !bytes.is_empty() {
            let header = verify(&bytes, &self.config)?;
            let len = (header.end(self.config.segment_len).get() - header.position.get()) as usize;
            let rest = bytes.split_off(len);
            self.place_one(Record::checked(header, bytes))?;
            bytes = rest;
        }
        let placed = self.place_early();
        self.end_step();
        placed
    }

    /// Checks that these are whole records, as a replica does that they are sent to.
    ///
    /// # Errors
    /// Corruption, with the place of the first that is not.
    pub fn check(&self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let header = verify(bytes, &self.config)?;
            let end = header.end(self.config.segment_len).get();
            bytes = &bytes[(end - header.position.get()) as usize..];
        }
        Ok(())
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
        assert!(self.early_len <= self.config.segment_len, "what waits beyond a gap is bounded");
        Ok(())
    }

    /// Places what waited beyond a gap that is filled, as far as the ring has room.
    pub(super) fn place_early(&mut self) -> Result<()> {
        while let Some((&at, record)) = self.early.first_key_value() {
            let end = record.end().get();
            if at > self.end || self.check_room(end).is_err() {
                break;
            }
            let Some((_, record)) = self.early.pop_first() else { break };
            self.early_len -= record.bytes.len() as u64;
            if at == self.end {
                self.check_fit(&record)?;
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
}
