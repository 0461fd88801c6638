//! Spans: which term wrote which positions.
//!
//! ```text
//!   term 1            term 2                 term 5
//!   [0 ─────── 9_304) [12_288 ─── 40_960)    [40_960 ─────────►
//!              └ end   └ next 4 KiB boundary
//! ```
//!
//! Each replica keeps its list of spans in its durable state. A record counts only inside the span
//! of its own term, so bytes that a cut or an older lap of the ring left behind are never taken for
//! records, however whole they are (docs/faults.md E6, R7). Comparing two lists finds where two
//! logs part.

use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::{Error, LogIndex, LogPosition, Result, Term};

use crate::block_ceil;

/// Most spans in one list: one per change of primary since the last trim.
pub const SPANS_MAX: usize = 65_536;
const SPAN_LEN: usize = 24;
const OPEN: u64 = u64::MAX;

/// The positions that one term wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The tenure.
    pub term: Term,
    /// Where its first record begins, or the log does.
    pub start: LogPosition,
    /// Where its last record ends; `None` while it may grow.
    pub end: Option<LogPosition>,
}

impl Span {
    /// Appends a list of spans: `count u32`, then `term, start, end` (u64 each, an open end is all
    /// ones).
    pub fn encode_list(spans: &[Self], out: &mut Vec<u8>) {
        out.put_u32(spans.len() as u32);
        for span in spans {
            out.put_u64(span.term.get());
            out.put_u64(span.start.get());
            out.put_u64(span.end.map_or(OPEN, LogPosition::get));
        }
    }

    /// Reads a list of spans off the front of `r`.
    ///
    /// # Errors
    /// Corruption when it is cut off or breaks the rules of [`Self::check_list`].
    pub fn decode_list(r: &mut Reader<'_>) -> Result<Vec<Self>> {
        let count = r.u32()? as usize;
        if count > SPANS_MAX || r.remaining() < count * SPAN_LEN {
            return Err(Error::corruption(format!(
                "span list of {count} in {} bytes; the limit is {SPANS_MAX}",
                r.remaining()
            )));
        }
        let mut spans = Vec::with_capacity(count);
        for _ in 0..count {
            let (term, start, end) = (Term(r.u64()?), LogPosition(r.u64()?), r.u64()?);
            spans.push(Self { term, start, end: (end != OPEN).then_some(LogPosition(end)) });
        }
        Self::check_list(&spans).map_err(|e| Error::corruption(format!("{e}")))?;
        Ok(spans)
    }

    /// Refuses a list that is empty, or whose terms or positions do not ascend, or in which a span
    /// begins elsewhere than on the first block boundary after the one before.
    ///
    /// # Errors
    /// Invalid input that names the span.
    pub fn check_list(spans: &[Self]) -> Result<()> {
        let bad = |span: &Self| Err(Error::invalid(format!("span list breaks at {span:?}")));
        let Some(first) = spans.first() else {
            return Err(Error::invalid("span list is empty"));
        };
        if first.end.is_some_and(|end| end < first.start) || first.start.get() > MAX {
            return bad(first);
        }
        for pair in spans.windows(2) {
            let [before, span] = pair else { continue };
            let Some(before_end) = before.end.filter(|end| end.get() <= MAX) else {
                return bad(before);
            };
            let begins_well = span.start.get() == block_ceil(before_end.get());
            let ends_well = span.end.is_none_or(|end| end >= span.start);
            if span.term <= before.term || !begins_well || !ends_well {
                return bad(span);
            }
        }
        Ok(())
    }

    fn end_or_max(&self) -> u64 {
        self.end.map_or(u64::MAX, LogPosition::get)
    }
}

const MAX: u64 = crate::record::POSITION_MAX;

/// A place between two records: everything that the next record must continue. Kept in the durable
/// state as the place from which a restart applies the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anchor {
    /// Where the record before ends.
    pub position: LogPosition,
    /// Its index; 0 at the beginning of a log.
    pub index: LogIndex,
    /// Its checksum; 0 at the beginning of a log.
    pub crc: u32,
}

impl Anchor {
    /// The beginning of a new log.
    pub const START: Self = Self { position: LogPosition::ZERO, index: LogIndex::ZERO, crc: 0 };

    /// The index of the record that continues here. Behind the greatest, which nothing but damage
    /// has, that is zero, which no record has.
    pub(crate) fn next_index(&self) -> LogIndex {
        LogIndex(self.index.get().wrapping_add(1))
    }

    /// Appends `position u64, index u64, crc u32`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.position.get());
        out.put_u64(self.index.get());
        out.put_u32(self.crc);
    }

    /// Reads an anchor off the front of `r`.
    ///
    /// # Errors
    /// Corruption when it is cut off.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self> {
        Ok(Self { position: LogPosition(r.u64()?), index: LogIndex(r.u64()?), crc: r.u32()? })
    }
}

/// A checked list of spans.
#[derive(Clone, Debug)]
pub(crate) struct Spans(Vec<Span>);

impl Spans {
    pub(crate) fn new(spans: Vec<Span>) -> Result<Self> {
        Span::check_list(&spans)?;
        Ok(Self(spans))
    }

    pub(crate) fn list(&self) -> &[Span] {
        &self.0
    }

    /// The newest span's term.
    pub(crate) fn term(&self) -> Term {
        self.0.last().map_or(Term::ZERO, |span| span.term)
    }

    fn index_from(&self, position: u64) -> Option<usize> {
        self.0.partition_point(|span| span.start.get() <= position).checked_sub(1)
    }

    /// The span that a record at `position` would belong to.
    pub(crate) fn at(&self, position: u64) -> Option<&Span> {
        self.0.get(self.index_from(position)?).filter(|span| position < span.end_or_max())
    }

    /// The term that was in office at `position`, which may lie at the end of its span.
    pub(crate) fn term_at(&self, position: u64) -> Term {
        self.index_from(position).map_or(Term::ZERO, |i| self.0[i].term)
    }

    /// `position`, or the start of the next span when it lies at the end of one.
    pub(crate) fn hop(&self, position: u64) -> u64 {
        let Some(i) = self.index_from(position) else {
            // The span that ended here was pruned.
            return self.0.first().map_or(position, |span| span.start.get());
        };
        match self.0.get(i + 1) {
            Some(next) if position >= self.0[i].end_or_max() => next.start.get(),
            _ => position,
        }
    }

    /// Ends the list at `position`: later spans go, the one that it lies in is closed there.
    pub(crate) fn cut(&mut self, position: u64) {
        // A span that begins at the cut holds nothing; it goes too unless it is the first, whose
        // start is where the log begins.
        let keep = self.0.partition_point(|span| span.start.get() < position).max(1);
        self.0.truncate(keep);
        if let Some(last) = self.0.last_mut() {
            let end = last.end_or_max().min(position).max(last.start.get());
            last.end = Some(LogPosition(end));
        }
    }

    /// Opens a span for `term` at `start`.
    pub(crate) fn open(&mut self, term: Term, start: u64) {
        self.0.push(Span { term, start: LogPosition(start), end: None });
    }

    /// These, behind those of `older` that end before the first of them, and of which something is
    /// kept from `position` on: who has trimmed more no longer names them.
    pub(crate) fn behind(self, older: &Self, position: u64) -> Self {
        let Some(first) = self.0.first().copied() else { return self };
        let is_needed = |s: &&Span| {
            let end = s.end_or_max();
            s.term < first.term && end <= first.start.get() && block_ceil(end) >= position
        };
        let mut all: Vec<Span> = older.0.iter().filter(is_needed).copied().collect();
        let too_many = (all.len() + self.0.len()).saturating_sub(SPANS_MAX);
        all.drain(..too_many.min(all.len()));
        all.extend(self.0);
        Self(all)
    }

    /// Forgets the oldest spans that end at or below `position` and that `other` does not have, but
    /// never the newest.
    pub(crate) fn forget(&mut self, position: u64, other: &Self) {
        let known = |span: &Span| other.0.iter().any(|theirs| theirs.term == span.term);
        let keep = self.0.iter().position(|s| s.end_or_max() > position || known(s));
        self.0.drain(..keep.unwrap_or(self.0.len().saturating_sub(1)));
    }

    /// Forgets spans that end before the last record before `position`, but never the one that
    /// holds the last record of a log whose tail is at `tail`: its term is what the log is compared
    /// by, also when all is trimmed and the newest term has written nothing yet, or when all that
    /// is kept turns out to be rotten.
    pub(crate) fn prune(&mut self, position: u64, tail: u64) {
        let last = self.0.partition_point(|s| s.start.get() < tail).saturating_sub(1);
        // A span may end before `position` with nothing but the gap to the next one between them: a
        // member whose log ends there is compared by it.
        let is_needed = |s: &Span| block_ceil(s.end_or_max().min(MAX)) >= position;
        let keep = self.0[..last].iter().position(is_needed).unwrap_or(last);
        self.0.drain(..keep);
    }

    /// Where a log with these spans that ends at `end` parts from one with `other`, if they have
    /// anything in common.
    pub(crate) fn common_end(&self, end: u64, other: &Self) -> Option<u64> {
        let mut common = None;
        for (i, mine) in self.0.iter().enumerate() {
            let theirs = other.0.iter().position(|span| span.term == mine.term);
            let Some(j) = theirs.filter(|_| mine.start.get() <= end) else { break };
            let theirs = &other.0[j];
            let starts_differ = mine.start != theirs.start;
            let my_end = mine.end_or_max().min(end);
            if (starts_differ && i > 0 && j > 0) || my_end < theirs.start.get() {
                break;
            }
            common = Some(my_end.min(theirs.end_or_max()));
            if my_end != theirs.end_or_max() {
                break;
            }
        }
        common
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn span(term: u64, start: u64, end: impl Into<Option<u64>>) -> Span {
        Span { term: Term(term), start: LogPosition(start), end: end.into().map(LogPosition) }
    }

    fn spans(list: &[Span]) -> Spans {
        Spans::new(list.to_vec()).unwrap()
    }

    #[test]
    fn a_list_survives_its_encoding_and_a_broken_one_is_refused() {
        let list = vec![span(1, 0, 9304), span(2, 12_288, 40_960), span(5, 40_960, None)];
        let mut bytes = Vec::new();
        Span::encode_list(&list, &mut bytes);
        assert_eq!(Span::decode_list(&mut Reader::new(&bytes, "test")).unwrap(), list);
        for broken in [
            vec![],
            vec![span(1, 8, 0)],
            vec![span(1, 0, None), span(2, 4096, None)],
            vec![span(1, 0, 8), span(2, 8, None)],
            vec![span(2, 0, 8), span(2, 4096, None)],
        ] {
            assert!(Span::check_list(&broken).is_err(), "{broken:?}");
        }
        assert!(Span::decode_list(&mut Reader::new(&[0xff; 8], "test")).is_err());
    }

    #[test]
    fn a_position_has_the_term_of_its_span_and_the_gap_after_a_span_belongs_to_nobody() {
        let s = spans(&[span(1, 0, 9304), span(2, 12_288, None)]);
        assert_eq!(s.at(9296).unwrap().term, Term(1));
        assert!(s.at(9304).is_none());
        assert_eq!((s.hop(9296), s.hop(9304), s.hop(12_288)), (9296, 12_288, 12_288));
        assert_eq!(s.at(1 << 40).unwrap().term, Term(2));
    }

    #[test]
    fn two_logs_part_where_their_spans_do() {
        let mine = spans(&[span(1, 0, 100), span(2, 4096, None)]);
        let at = |end, list: &[Span]| mine.common_end(end, &spans(list));
        // The same, and ahead of it.
        assert_eq!(at(5000, &[span(1, 0, 100), span(2, 4096, None)]), Some(5000));
        assert_eq!(
            at(5000, &[span(1, 0, 100), span(2, 4096, 4200), span(3, 8192, None)]),
            Some(4200)
        );
        // Another term took over after the first.
        assert_eq!(at(5000, &[span(1, 0, 100), span(3, 4096, None)]), Some(100));
        assert_eq!(at(5000, &[span(1, 0, 80), span(3, 4096, None)]), Some(80));
        assert_eq!(at(50, &[span(1, 0, 80), span(3, 4096, None)]), Some(50));
        // The other list begins later, or nothing is shared.
        assert_eq!(at(5000, &[span(2, 4096, None)]), None);
        assert_eq!(at(5000, &[span(7, 0, None)]), None);
    }

    #[test]
    fn a_cut_closes_the_span_and_drops_what_follows() {
        let mut s = spans(&[span(1, 0, 100), span(2, 4096, None)]);
        s.cut(4096);
        assert_eq!(s.list(), [span(1, 0, 100)]);
        s.cut(40);
        s.open(Term(9), 4096);
        assert_eq!(s.list(), [span(1, 0, 40), span(9, 4096, None)]);
        s.prune(40, 40);
        assert_eq!(s.list(), [span(1, 0, 40), span(9, 4096, None)], "term 9 has no record yet");
        s.prune(40, 4104);
        assert_eq!(s.list(), [span(1, 0, 40), span(9, 4096, None)], "the log may be cut at 40");
        s.prune(4096, 4104);
        assert_eq!(s.list(), [span(1, 0, 40), span(9, 4096, None)], "another log may end at 40");
        s.prune(4100, 4104);
        assert_eq!(s.list(), [span(9, 4096, None)]);
    }
}
