//! Terms: beginning one, following one, cutting what another log does not have, and trimming.

use super::Log;
use crate::scan::{Look, Wanted, look_in_ring};
use crate::span::{Anchor, SPANS_MAX, Span, Spans};
use crate::{LogKind, block_ceil, block_floor};
use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;
use gabion_base::{Error, ErrorKind, LogIndex, LogPosition, Result, Term};

/// The log that one with other spans makes of this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Following {
    /// Where the two part: this log loses all that it has from here on.
    pub common: LogPosition,
    /// Its spans then.
    pub spans: Vec<Span>,
}

impl Log {
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
        self.end_step();
        Ok(Span { term, start: LogPosition(self.end), end: None })
    }

    /// Cuts a divergent tail: the log ends at `at`, where a record ended. The caller must not have
    /// applied anything beyond, and keeps [`Self::spans`] in its durable state.
    ///
    /// # Errors
    /// Invalid input when no record ends at `at`; unavailable while drains are under way, or when
    /// the place is no longer in the ring: then cut the durable spans and recover.
    pub fn truncate(&mut self, at: LogPosition) -> Result<()> {
        let tail = self.tail_at(at.get())?;
        self.spans.cut(at.get());
        self.cut_to(tail);
        self.end_step();
        Ok(())
    }

    /// The spans of this log if it ends at `at`.
    #[must_use]
    pub fn spans_until(&self, at: LogPosition) -> Vec<Span> {
        let mut spans = self.spans.clone();
        spans.cut(at.get());
        spans.list().to_vec()
    }

    /// The log that [`Self::adopt_spans`] would make of this one: for a caller who has applied what
    /// is to be cut. It makes these spans durable and recovers the log by them.
    ///
    /// # Errors
    /// As [`Self::adopt_spans`], but for drains that are under way and where the ring begins.
    pub fn following(&self, list: &[Span]) -> Result<Following> {
        let (theirs, common) = self.part_from(list)?;
        let spans = theirs.behind(&self.spans, self.trimmed).list().to_vec();
        Ok(Following { common: LogPosition(common), spans })
    }

    /// Makes this log a follower of one with the spans `list`: cuts what that one does not have,
    /// and takes over its spans, also those that lie ahead. Its own are kept of what that one has
    /// trimmed and this one has not: a restart begins there. Returns where this log now ends and is
    /// to be sent from. The caller must not have applied anything beyond, and keeps [`Self::spans`]
    /// in its durable state before it acknowledges anything.
    ///
    /// # Errors
    /// Fenced when the list's newest term is older than this log's; not found when the logs have
    /// nothing in common that is still here: a full copy is needed; otherwise as for
    /// [`Self::truncate`].
    pub fn adopt_spans(&mut self, list: &[Span]) -> Result<LogPosition> {
        let (theirs, common) = self.part_from(list)?;
        let tail = self.tail_at(common)?;
        let goes_on = theirs.at(common).is_some_and(|span| span.start.get() < common);
        if goes_on && common < self.end && self.ring.from() > block_floor(common) {
            return Err(Error::unavailable(format!(
                "span goes on at {}: the ring begins at {}",
                LogPosition(common),
                LogPosition(self.ring.from())
            )));
        }
        self.spans = theirs.behind(&self.spans, self.trimmed);
        self.may_append = false;
        if common < self.end {
            self.cut_to(tail);
        } else {
            self.forget_early();
            self.hop();
        }
        self.end_step();
        Ok(self.end())
    }

    /// A log with the spans `list`, and the position at which this one parts from it.
    fn part_from(&self, list: &[Span]) -> Result<(Spans, u64)> {
        let theirs = Spans::new(list.to_vec())?;
        // What either side has trimmed cannot be compared, and need not be.
        let mut mine = self.spans.clone();
        mine.forget(self.trimmed.max(list[0].start.get()), &theirs);
        if theirs.term() < self.spans.term() {
            return Err(Error::new(
                ErrorKind::Fenced,
                format!("spans up to {}: this log is in {}", theirs.term(), self.term()),
            ));
        }
        // A log without a record is a prefix of every log that begins where it does.
        let start = self.tail.position;
        let is_empty = self.tail.index == LogIndex::ZERO && theirs.list()[0].start == start;
        // So is the beginning of the group's log: what was never committed there may be cut.
        let begins_both = theirs.list()[0].start == LogPosition::ZERO && self.trimmed == 0;
        let common = match mine.common_end(self.end, &theirs) {
            None if is_empty => Some(start.get()),
            None if begins_both => Some(0),
            common => common.filter(|&at| at >= self.trimmed),
        };
        let Some(common) = common else {
            return Err(Error::not_found(format!(
                "log of {}: {:?} has nothing in common with {list:?} after {}",
                self.config.group,
                self.spans(),
                LogPosition(self.trimmed)
            )));
        };
        Ok((theirs, common))
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
        let mark = self.marks.at(at);
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
        assert!(at <= self.end, "a log is cut where it has something");
        self.forget_early();
        while self.ready.back().is_some_and(|record| record.end().get() > at) {
            self.ready.pop_back();
        }
        self.marks.cut(at);
        self.replay.end = self.replay.end.min(at);
        self.last_term = self.spans.term_at(at.saturating_sub(1));
        self.tail = tail;
        self.end = at;
        self.floor_seen = 0;
        self.long_at = None;
        self.settled_at = 0;
        self.watermark = self.watermark.min(at);
        if self.spans.at(at).is_some_and(|span| span.start.get() < at) {
            self.drains.reopen(at);
        } else {
            self.drains.cut(at);
        }
        self.hop();
        self.ring.cut(self.end);
    }

    fn forget_early(&mut self) {
        self.early.clear();
        self.early_len = 0;
    }

    /// Says that nothing below `below` is needed any more by any member, and returns the ordinals
    /// of the segments that can go. The caller has made the anchor there durable before; after a
    /// restart from that anchor it also drops what older segments a crash may have left.
    ///
    /// In a group of one it need not have been drained: it never will be, and the log counts as
    /// durable up to there.
    ///
    /// # Errors
    /// Invalid input when `below` is not taken yet, or not durable here; in a group of one, when it
    /// is not and a drain is under way.
    pub fn trim(&mut self, below: LogPosition) -> Result<Range<u64>> {
        let at = below.get();
        let may_skip = self.config.kind == LogKind::Private && self.drains.is_idle();
        let durable = if may_skip { at } else { self.drains.durable() };
        let untaken = self.ready.front().map_or(self.end, |r| r.header.position.get());
        let replayed = self.replay.next.position.get() >= self.replay.end.min(at);
        if at > durable || at > untaken || !replayed {
            return Err(Error::invalid(format!(
                "trim below {below}: durable up to {}, taken up to {}",
                self.durable_end(),
                LogPosition(if replayed { untaken } else { self.replay.next.position.get() })
            )));
        }
        if may_skip {
            self.drains.skip(at);
            self.settle_watermark();
        }
        let segment_len = self.config.segment_len;
        let before = self.trimmed / segment_len;
        self.trimmed = self.trimmed.max(at);
        self.spans.prune(self.trimmed, self.tail.position.get());
        self.end_step();
        Ok(before..self.trimmed / segment_len)
    }
}
