//! Positions of a MemTable's large values in the log, and the segments of it that keep them.
//!
//! ```text
//!   range of a MemTable    seal of the one before ─┐                                   ┌─ its seal
//!   log                 ──[ segment 4    │ begin   │ segment 5      │ segment 6        │ ]──
//!                                         └ not whole: others' too   └── kept where half is large
//! ```
//!
//! A flush leaves large values where they were logged: in segments that lie wholly in the range of
//! its MemTable, from the seal of the one before to its own. So a segment is of one MemTable, and
//! the edit of its flush describes it whole. All is a function of the log, and the recipe says it.
//!
//! Nothing is kept of a range in which a term begins: before the term's first record there is a
//! gap, whose bytes may differ between replicas.
//!
//! Half of a segment must be values that the MemTable still has when it is sealed: of a few keys
//! that are written again and again most of the log is replaced before its flush.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use gabion_base::{FileId, SequenceNumber, ShardId};

/// A segment is kept where values that may stay have such a part of it, or more: one in two. The
/// rest of it (small entries, headers, values that the MemTable has replaced) costs room until the
/// segment is emptied, and counts as dead from the beginning.
const LARGE_PART: u64 = 2;

/// How the log of a tree is cut into files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLayout {
    /// The log's shard.
    pub shard: ShardId,
    /// Bytes of a segment.
    pub segment_len: u64,
}

impl LogLayout {
    /// The segment in which a position lies.
    pub(crate) const fn segment_at(&self, at: u64) -> FileId {
        FileId::log_segment(self.shard, at / self.segment_len)
    }

    /// The end of a segment.
    pub(crate) const fn end_of(&self, segment: FileId) -> u64 {
        (segment.ordinal() + 1) * self.segment_len
    }
}

/// The places of a MemTable's large values in the log.
#[derive(Debug, Default)]
pub struct Places {
    /// The log had a seal that ends here when the MemTable began.
    begin: u64,
    /// A term began since.
    has_gap: bool,
    /// The begin of each value, by the sequence number of its entry, ascending.
    list: Vec<(SequenceNumber, u64)>,
    /// Bytes of these values in each segment.
    bytes: BTreeMap<u64, u64>,
}

impl Places {
    pub(crate) fn beginning_at(begin: u64) -> Self {
        Self { begin, ..Self::default() }
    }

    pub(crate) fn note(&mut self, sequence: SequenceNumber, at: u64, len: usize, segment_len: u64) {
        let last = self.list.last().map(|(last, _)| *last);
        assert!(last < Some(sequence), "places are noted in the order of the log");
        self.list.push((sequence, at));
        *self.bytes.entry(at / segment_len).or_default() += len as u64;
    }

    pub(crate) const fn note_gap(&mut self) {
        self.has_gap = true;
    }

    /// The position of the value of the entry with this number, if it is known.
    pub(crate) fn find(&self, sequence: SequenceNumber) -> Option<u64> {
        let at = self.list.binary_search_by_key(&sequence, |(sequence, _)| *sequence).ok()?;
        Some(self.list[at].1)
    }

    /// The segments that keep the values of a MemTable whose seal ends at `end`, and the bytes that
    /// were logged of these. `newest` are the numbers of the entries that nothing in the MemTable
    /// replaces; it costs a look at each of them where a segment may be kept.
    pub(crate) fn kept<I: Iterator<Item = (SequenceNumber, usize)>>(
        &self,
        end: u64,
        layout: LogLayout,
        newest: impl FnOnce() -> I,
    ) -> KeptSegments {
        let len = layout.segment_len;
        let (first, behind) = (self.begin.div_ceil(len), end / len);
        if self.has_gap || first >= behind {
            return KeptSegments::default();
        }
        let is_half = |bytes: u64| bytes * LARGE_PART >= len;
        let logged = self.bytes.range(first..behind).filter(|(_, bytes)| is_half(**bytes));
        let logged: BTreeMap<u64, u64> =
            logged.map(|(ordinal, bytes)| (*ordinal, *bytes)).collect();
        if logged.is_empty() {
            return KeptSegments::default();
        }
        let mut alive = BTreeMap::<u64, u64>::new();
        for (sequence, len_of_value) in newest() {
            if let Some(at) = self.find(sequence) {
                *alive.entry(at / len).or_default() += len_of_value as u64;
            }
        }
        let is_alive = |ordinal: &u64| alive.get(ordinal).is_some_and(|bytes| is_half(*bytes));
        let mut kept = KeptSegments::default();
        for (ordinal, bytes) in logged.iter().filter(|(ordinal, _)| is_alive(ordinal)) {
            kept.files.push(FileId::log_segment(layout.shard, *ordinal));
            kept.logged_bytes += bytes;
        }
        kept
    }

    /// Whether the segment in which the log ends is mostly large values as far as it is of this
    /// MemTable, and whether it began in it.
    pub(crate) fn last_segment(&self, end: u64, layout: LogLayout) -> LastSegment {
        let len = layout.segment_len;
        let start = end / len * len;
        let passed = end - self.begin.max(start).min(end);
        let large = self.bytes.get(&(end / len)).copied().unwrap_or_default();
        LastSegment {
            is_large: large * LARGE_PART >= passed && passed >= len / PASSED_PART,
            is_whole: self.begin <= start && !self.has_gap,
            memtable_log: end - self.begin.min(end),
        }
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory_used(&self) -> usize {
        self.list.capacity() * size_of::<(SequenceNumber, u64)>()
    }
}

/// Segments that keep the values of a MemTable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptSegments {
    /// By number.
    pub(crate) files: Vec<FileId>,
    /// Bytes of its large values that were logged there, those included that it replaced.
    pub(crate) logged_bytes: u64,
}

/// Less of a segment than this part says nothing of the rest.
const PASSED_PART: u64 = 16;

/// The segment in which the log ends, as far as it is of the MemTable that is being filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastSegment {
    /// Half of it, or more, is large values.
    pub is_large: bool,
    /// The MemTable has it from its beginning.
    pub is_whole: bool,
    /// Bytes of the log since the MemTable began.
    pub memtable_log: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 1_000;
    const LAYOUT: LogLayout = LogLayout { shard: ShardId(0), segment_len: LEN };

    fn segment(ordinal: u64) -> FileId {
        FileId::log_segment(ShardId(0), ordinal)
    }

    /// Values of 100 bytes, 10 to a segment, from a position on.
    fn filled(begin: u64, count: u64) -> Places {
        let mut places = Places::beginning_at(begin);
        for i in 0..count {
            places.note(SequenceNumber(i + 1), begin + i * 100, 100, LEN);
        }
        places
    }

    /// The segments kept where all that was logged is alive, but for the first `dead` values.
    fn kept(places: &Places, end: u64, dead: usize) -> (Vec<FileId>, u64) {
        let alive = || places.list.iter().skip(dead).map(|(sequence, _)| (*sequence, 100));
        let kept = places.kept(end, LAYOUT, alive);
        (kept.files, kept.logged_bytes)
    }

    #[test]
    fn segments_are_kept_that_lie_wholly_in_the_range_and_are_large_by_half() {
        let places = filled(500, 30);
        assert_eq!(kept(&places, 3_500, 0), (alloc::vec![segment(1), segment(2)], 2_000));
        assert_eq!(kept(&places, 2_999, 0), (alloc::vec![segment(1)], 1_000));
        assert_eq!(kept(&places, 1_999, 0).0, []);
        assert_eq!(kept(&filled(1_000, 5), 2_000, 0), (alloc::vec![segment(1)], 500));
        assert_eq!(kept(&filled(1_000, 4), 2_000, 0).0, [], "too little of it is large");
    }

    #[test]
    fn a_segment_of_which_less_than_half_is_alive_at_the_seal_is_not_kept() {
        let places = filled(1_000, 20);
        assert_eq!(kept(&places, 3_000, 5).0, [segment(1), segment(2)]);
        assert_eq!(kept(&places, 3_000, 6), (alloc::vec![segment(2)], 1_000));
        assert_eq!(kept(&places, 3_000, 16).0, []);
    }

    #[test]
    fn a_term_that_begins_in_the_range_keeps_nothing_of_it() {
        let mut places = filled(0, 30);
        assert_eq!(kept(&places, 3_000, 0).0.len(), 3);
        places.note_gap();
        assert_eq!(kept(&places, 3_000, 0).0, []);
    }

    #[test]
    fn the_place_of_an_entry_is_found_by_its_number() {
        let places = filled(500, 3);
        assert_eq!(places.find(SequenceNumber(2)), Some(600));
        assert_eq!(places.find(SequenceNumber(4)), None);
    }

    #[test]
    fn the_last_segment_counts_as_far_as_it_is_of_the_memtable() {
        let last = filled(1_000, 5).last_segment(1_600, LAYOUT);
        assert_eq!(last, LastSegment { is_large: true, is_whole: true, memtable_log: 600 });
        let last = filled(1_400, 3).last_segment(1_700, LAYOUT);
        assert_eq!(last, LastSegment { is_large: true, is_whole: false, memtable_log: 300 });
        let last = filled(1_000, 1).last_segment(1_900, LAYOUT);
        assert_eq!(last, LastSegment { is_large: false, is_whole: true, memtable_log: 900 });
        let last = filled(1_000, 10).last_segment(2_050, LAYOUT);
        assert!(!last.is_large, "it has hardly begun");
    }
}
