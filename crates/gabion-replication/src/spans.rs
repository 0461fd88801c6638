//! The term that wrote each part of a log, and the point where two logs part.
//!
//! A log is a list of spans, each the work of one term. The first record of a term begins at the
//! next 4 KiB boundary after the end of the log that the term took over (docs/replication.md,
//! "Spans").
//!
//! ```text
//!   term 1            gap    term 3                       term 4 (open)
//!   [0 ─────── 5000)  ....   [8192 ──────────── 20000) .. [20480 ───────►
//! ```
//!
//! Two rules make term and position enough to compare logs, as in Raft's log matching. Within a
//! term there is one writer, and every other member's log is a prefix of its log. And no member
//! places a record of a term before its log up to that term's start equals the head's.

use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::units::{BLOCK_LEN, round_up_to_block};
use gabion_base::{Error, LogPosition, Result, TERM_MAX, Term};

/// The end of a span that is still being written.
pub const OPEN: LogPosition = LogPosition(u64::MAX);
/// Highest position in a log: no arithmetic on positions below it overflows.
pub const POSITION_MAX: LogPosition = LogPosition(1 << 62);
/// Most spans in one list. A list shrinks as the log is trimmed.
pub const SPANS_MAX: usize = 16_384;
/// Terms that can be. The highest term whose files have numbers is excluded: it has no successor.
pub(crate) const TERMS: core::ops::Range<u64> = 1..TERM_MAX.get();
/// Bytes of an encoded span.
const SPAN_LEN: usize = 24;

/// The part of a log that one term wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The term of every record in it.
    pub term: Term,
    /// Position of its first record; a multiple of 4 KiB.
    pub start: LogPosition,
    /// Position after its last record; [`OPEN`] while its term runs.
    pub end: LogPosition,
}

/// The spans of a log, oldest first: terms rise, positions do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans(Vec<Span>);

impl Spans {
    /// A list of spans.
    ///
    /// # Errors
    /// Corruption when terms do not rise, or a span does not begin at the first block boundary
    /// after the one before; limit exceeded over [`SPANS_MAX`].
    pub fn new(spans: Vec<Span>) -> Result<Self> {
        if spans.len() > SPANS_MAX {
            return Err(Error::limit(format!(
                "{} spans in a log, the limit is {SPANS_MAX}",
                spans.len()
            )));
        }
        for (i, span) in spans.iter().enumerate() {
            let before = i.checked_sub(1).map(|i| spans[i]);
            let begins_well = match before {
                None => span.start.get().is_multiple_of(BLOCK_LEN as u64),
                Some(before) => {
                    before.end <= POSITION_MAX
                        && span.term > before.term
                        && span.start.get() == round_up_to_block(before.end.get())
                }
            };
            let ends_well = span.end <= POSITION_MAX || span.end == OPEN;
            let is_forward = span.start <= span.end.min(POSITION_MAX);
            if !begins_well || !ends_well || !is_forward || !TERMS.contains(&span.term.get()) {
                return Err(Error::corruption(format!(
                    "span of {} from {} to {} cannot follow {before:?}",
                    span.term, span.start, span.end
                )));
            }
        }
        Ok(Self(spans))
    }

    /// The spans, oldest first.
    #[must_use]
    pub fn as_slice(&self) -> &[Span] {
        &self.0
    }

    /// Term of the last record and the position after it; zeros for an empty log. Of two logs the
    /// one with the greater pair holds at least every committed record of the other.
    #[must_use]
    pub fn tip(&self) -> (Term, LogPosition) {
        self.0.last().map_or((Term::ZERO, LogPosition::ZERO), |s| (s.term, s.end))
    }

    /// The part below `end`: only spans with records, the last one cut.
    #[must_use]
    pub fn clipped(&self, end: LogPosition) -> Self {
        let below = self.0.iter().filter(|s| s.start < end && s.start < s.end);
        Self(below.map(|s| Span { end: s.end.min(end), ..*s }).collect())
    }

    /// This log up to `end`, taken over by `term`: the list with a new open span, and its start.
    #[must_use]
    pub fn with_term(&self, term: Term, end: LogPosition) -> (Self, LogPosition) {
        let mut spans = self.clipped(end);
        let start = LogPosition(round_up_to_block(spans.tip().1.get()));
        debug_assert!(spans.tip().0 < term, "{term} cannot follow {}", spans.tip().0);
        spans.0.push(Span { term, start, end: OPEN });
        (spans, start)
    }

    /// The span that a record at `position` belongs to.
    #[must_use]
    pub fn at(&self, position: LogPosition) -> Option<Span> {
        self.0.iter().rev().find(|s| s.start <= position && position < s.end).copied()
    }

    /// The start of the record after `position`: the end of a span is the start of the next.
    #[must_use]
    pub fn after(&self, position: LogPosition) -> LogPosition {
        if self.at(position).is_some() {
            return position;
        }
        self.0.iter().find(|s| s.start >= position).map_or(position, |s| s.start)
    }

    /// How far this log, which is clipped, is the same as `other`. Log that `other` has trimmed
    /// counts as the same: every member had flushed it. A log that goes on beyond the beginning of
    /// what `other` has parts before that.
    #[must_use]
    pub fn common_end(&self, other: &Self) -> LogPosition {
        let mut common = LogPosition::ZERO;
        let mut expected = None;
        for span in &self.0 {
            let Some(i) = other.0.iter().position(|s| s.term == span.term) else {
                let is_trimmed = |first: &Span| {
                    first.term > span.term && round_up_to_block(span.end.get()) <= first.start.get()
                };
                if other.0.first().is_some_and(is_trimmed) {
                    common = span.end;
                    continue;
                }
                break;
            };
            if other.0[i].start != span.start || expected.is_some_and(|e| e != i) {
                break;
            }
            common = span.end.min(other.0[i].end);
            if span.end != other.0[i].end {
                break;
            }
            expected = Some(i + 1);
        }
        common
    }

    /// The spans of a log that follows this list, is the same up to `common`, and had the spans
    /// `had`. If this list has forgotten the span in which that log ends, that span stays in front:
    /// its term identifies the log in comparisons until it has records of a later one.
    #[must_use]
    pub fn followed_from(&self, had: &Self, common: LogPosition) -> Self {
        let mut spans = self.clone();
        if let (Some(last), Some(first)) = (had.clipped(common).0.last(), self.0.first())
            && last.term < first.term
            && round_up_to_block(last.end.get()) == first.start.get()
        {
            spans.0.insert(0, *last);
        }
        spans
    }

    /// Whether a log that is the same as this one up to `common` misses records of spans forgotten
    /// here, when the log here begins at `oldest`.
    #[must_use]
    pub fn forgot_after(&self, common: LogPosition, oldest: LogPosition) -> bool {
        common < oldest && self.0.first().is_none_or(|first| first.start > common)
    }

    /// Forgets spans that end before the log's last record before `oldest`. The last span that
    /// holds records of a log that ends at `end` always stays, as its term identifies the log in
    /// comparisons. That holds even when all is trimmed, or when all kept log turns out to be
    /// rotten, here or at the member compared with.
    pub fn trim(&mut self, oldest: LogPosition, end: LogPosition) {
        let has_records = |s: &Span| s.start < end && s.start < s.end;
        let last = self.0.iter().rposition(has_records).unwrap_or(0);
        // Between the end of a span and `oldest` there may be only the gap to the next span.
        let is_needed = |s: &Span| round_up_to_block(s.end.get()) >= oldest.get();
        let keep = self.0.iter().take(last).position(is_needed).unwrap_or(last);
        self.0.drain(..keep);
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_u32(self.0.len() as u32);
        for span in &self.0 {
            out.put_u64(span.term.get());
            out.put_u64(span.start.get());
            out.put_u64(span.end.get());
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let count = reader.u32()? as usize;
        if count > SPANS_MAX || count * SPAN_LEN > reader.remaining() {
            return Err(Error::corruption(format!(
                "{count} spans announced, {} bytes follow, the limit is {SPANS_MAX}",
                reader.remaining()
            )));
        }
        let mut spans = Vec::with_capacity(count);
        for _ in 0..count {
            spans.push(Span {
                term: Term(reader.u64()?),
                start: LogPosition(reader.u64()?),
                end: LogPosition(reader.u64()?),
            });
        }
        Self::new(spans)
    }
}

const _: () = assert!(SPANS_MAX * SPAN_LEN < gabion_base::units::CONTROL_FRAME_LEN_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn spans(list: &[(u64, u64, u64)]) -> Spans {
        let span = |&(term, start, end): &(u64, u64, u64)| Span {
            term: Term(term),
            start: LogPosition(start),
            end: LogPosition(end),
        };
        Spans::new(list.iter().map(span).collect()).unwrap()
    }

    #[test]
    fn logs_part_at_the_end_of_the_last_term_that_they_share() {
        let log = spans(&[(1, 0, 5000), (3, 8192, 20000)]);
        for (other, common) in [
            (&[][..], 0),
            (&[(1, 0, 5000), (3, 8192, 20000)], 20000),
            (&[(1, 0, 5000), (3, 8192, u64::MAX)], 20000),
            (&[(1, 0, 5000), (3, 8192, 9000)], 9000),
            (&[(1, 0, 4000)], 4000),
            (&[(1, 0, 4000), (2, 4096, 30000)], 4000),
            (&[(1, 0, 5000), (2, 8192, 8200), (3, 12288, 30000)], 5000),
            (&[(3, 8192, 30000)], 20000),
            (&[(4, 32768, 40000)], 20000),
            (&[(4, 16384, 40000)], 5000),
            (&[(1, 0, 5000), (2, 8192, 8200), (4, 12288, 30000)], 5000),
        ] {
            assert_eq!(log.common_end(&spans(other)), LogPosition(common), "{other:?}");
        }
    }

    #[test]
    fn a_new_term_begins_at_the_next_block_and_drops_terms_without_records() {
        let (next, start) =
            spans(&[(1, 0, 5000), (2, 8192, u64::MAX)]).with_term(Term(3), LogPosition(8192));
        assert_eq!(start, LogPosition(8192));
        assert_eq!(next, spans(&[(1, 0, 5000), (3, 8192, u64::MAX)]));
        assert_eq!(next.after(LogPosition(5000)), LogPosition(8192));
        assert_eq!(next.after(LogPosition(4992)), LogPosition(4992));
        assert_eq!(next.after(LogPosition(8200)), LogPosition(8200));
    }

    #[test]
    fn trimming_keeps_the_last_term_with_records() {
        let mut log = spans(&[(1, 0, 5000), (2, 8192, 9000), (3, 12288, 12288)]);
        assert!(spans(&[(2, 8192, 9000)]).forgot_after(LogPosition(100), LogPosition(5000)));
        assert!(!spans(&[(2, 8192, 9000)]).forgot_after(LogPosition(5000), LogPosition(5000)));
        let mut behind = log.clone();
        behind.trim(LogPosition(5000), LogPosition(8192));
        assert_eq!(behind, log, "the log ends before the second span's first record");
        log.trim(LogPosition(5000), LogPosition(9000));
        assert_eq!(log, behind, "should all after it be rotten, the log ends in the first span");
        log.trim(LogPosition(8192), LogPosition(9000));
        assert_eq!(log, behind, "another member's log may end where the second span begins");
        log.trim(LogPosition(8200), LogPosition(9000));
        assert_eq!(log, spans(&[(2, 8192, 9000), (3, 12288, 12288)]));
        log.trim(LogPosition(12288), LogPosition(12288));
        assert_eq!(log, spans(&[(2, 8192, 9000), (3, 12288, 12288)]));
    }

    #[test]
    fn a_log_that_follows_keeps_the_span_in_which_it_ends() {
        let had = spans(&[(1, 0, 5000), (2, 8192, 9000)]);
        let head = spans(&[(2, 8192, 9000), (3, 12288, u64::MAX)]);
        let at = |position| head.followed_from(&had, LogPosition(position));
        assert_eq!(at(5000), spans(&[(1, 0, 5000), (2, 8192, 9000), (3, 12288, u64::MAX)]));
        assert_eq!(at(5000).clipped(LogPosition(8192)).tip(), (Term(1), LogPosition(5000)));
        assert_eq!(at(9000), head, "the last span is there");
        assert_eq!(at(0), head, "an empty log has none");
        assert_eq!(at(100), head, "one that ends far before the list is no part of it");
    }

    #[test]
    fn overlapping_unaligned_or_falling_spans_are_refused() {
        for bad in [
            vec![(2, 0, 10), (1, 4096, 5000)],
            vec![(1, 0, 5000), (2, 4096, 5000)],
            vec![(1, 8, 16)],
            vec![(1, 8192, 4096)],
            vec![(1, 0, u64::MAX), (2, 4096, 5000)],
            vec![(1, 0, 100), (2, 8192, 9000)],
            vec![(1, 0, u64::MAX - 1)],
            vec![(0, 0, 100)],
            vec![(u64::MAX, 0, 100)],
            vec![(TERM_MAX.get(), 0, 100)],
        ] {
            let list = bad.iter().map(|&(term, start, end)| Span {
                term: Term(term),
                start: LogPosition(start),
                end: LogPosition(end),
            });
            assert!(Spans::new(list.collect()).is_err(), "{bad:?}");
        }
    }
}
