//! The range deletes of a MemTable at one moment: never changed, shared, cheap to add to.
//!
//! ```text
//!   runs     [ 8 range deletes ][ 4 ][ 1 ]   + 1  ─►  [ 8 ][ 4 ][ 2 ]       each with its fragments
//! ```
//!
//! As with the sorted runs of a log-structured tree, a run takes in those behind it that are no
//! larger: each range delete is cut into fragments anew once for each doubling, and a look-up
//! searches a run for each.

use super::RangeDelete;
use super::fragments::{Fragments, Stretch};
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::SequenceNumber;

/// The range deletes of a MemTable.
#[derive(Clone, Default)]
pub(crate) struct TableRanges {
    /// Largest first.
    runs: Vec<Arc<Run>>,
    count: usize,
}

struct Run {
    ranges: Vec<RangeDelete>,
    fragments: Fragments,
}

impl TableRanges {
    /// These and `added`.
    pub(crate) fn with(&self, added: Vec<RangeDelete>) -> Self {
        let (mut runs, mut ranges) = (self.runs.clone(), added);
        let count = self.count + ranges.len();
        while let Some(last) = runs.pop_if(|last| last.ranges.len() <= ranges.len()) {
            ranges.extend(last.ranges.iter().cloned());
        }
        let fragments = Fragments::of(&ranges);
        runs.push(Arc::new(Run { ranges, fragments }));
        let lens = runs.iter().map(|run| run.ranges.len());
        assert_eq!(lens.clone().sum::<usize>(), count, "no range delete is lost");
        assert!(lens.is_sorted_by(|a, b| a > b), "a look-up searches few runs");
        Self { runs, count }
    }

    /// How many there are.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All of them, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RangeDelete> {
        self.runs.iter().flat_map(|run| &run.ranges)
    }

    /// The newest at or below `read_sequence` that covers `key`.
    pub(crate) fn newest(
        &self,
        key: &[u8],
        read_sequence: SequenceNumber,
    ) -> Option<SequenceNumber> {
        self.runs.iter().filter_map(|run| run.fragments.newest(key, read_sequence)).max()
    }

    /// What is true of `key`, and of which keys around it besides.
    pub(crate) fn stretch(&self, key: &[u8], read_sequence: SequenceNumber) -> Stretch {
        let stretches = self.runs.iter().map(|run| run.fragments.stretch(key, read_sequence));
        stretches.fold(Stretch::EVERYWHERE, Stretch::and)
    }
}
