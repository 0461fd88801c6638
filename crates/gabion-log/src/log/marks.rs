//! Where records end, remembered sparsely.

use crate::block_floor;
use crate::span::Anchor;
use alloc::collections::VecDeque;

/// Ends of records in ascending order, one per 4 KiB of log: enough for watermarks, cuts and the
/// ring's floor, few enough to keep for a whole ring. One mark below the ring's reach stays. The
/// start of a segment is always a mark, so a ring of two segments always has room for the next
/// record once all that can be drained is flushed.
pub(crate) struct Marks(VecDeque<Anchor>);

impl Marks {
    pub(crate) fn new(start: Anchor) -> Self {
        Self(VecDeque::from([start]))
    }

    /// Bytes of memory that they take.
    pub(crate) fn memory_used(&self) -> usize {
        self.0.capacity() * size_of::<Anchor>()
    }

    /// Remembers the end of the newest record, and forgets what a ring of `ring_len` does not
    /// reach.
    pub(crate) fn push(&mut self, tail: Anchor, ring_len: u64) {
        let block = block_floor(tail.position.get());
        if self.0.back().is_some_and(|mark| block_floor(mark.position.get()) == block) {
            return;
        }
        self.0.push_back(tail);
        while self.0.get(1).is_some_and(|m| m.position.get() + ring_len <= tail.position.get()) {
            self.0.pop_front();
        }
    }

    /// The last remembered end at or below `position`.
    pub(crate) fn at(&self, position: u64) -> Option<Anchor> {
        let after = self.0.partition_point(|mark| mark.position.get() <= position);
        after.checked_sub(1).map(|i| self.0[i])
    }

    /// # Panics
    /// When marks do not ascend, or lie beyond the `tail` of the log.
    pub(crate) fn invariants(&self, tail: Anchor) {
        let ascend = |a: &Anchor, b: &Anchor| a.position < b.position && a.index < b.index;
        assert!(self.0.iter().is_sorted_by(|a, b| ascend(a, b)), "marks ascend");
        let last = self.0.back().map(|mark| mark.position);
        assert!(last <= Some(tail.position), "the last mark is no further than the log");
    }

    /// Forgets what lies above `position`.
    pub(crate) fn cut(&mut self, position: u64) {
        self.0.truncate(self.0.partition_point(|mark| mark.position.get() <= position));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::{LogIndex, LogPosition};

    #[test]
    fn one_mark_per_block_is_kept_and_one_below_the_reach_of_the_ring() {
        let anchor =
            |at| Anchor { position: LogPosition(at), index: LogIndex(at / 8), crc: at as u32 };
        let mut marks = Marks::new(anchor(0));
        for at in (1000..40_000).step_by(1000) {
            marks.push(anchor(at), 8192);
        }
        assert_eq!(marks.at(39_999), Some(anchor(37_000)));
        assert_eq!(marks.at(31_000), Some(anchor(29_000)));
        // The reach of the ring is 28,808: of what lies below it the last mark is kept.
        assert_eq!(marks.at(28_999), Some(anchor(25_000)));
        assert_eq!(marks.at(24_999), None);
        marks.cut(33_000);
        assert_eq!(marks.at(40_000), Some(anchor(33_000)));
    }
}
