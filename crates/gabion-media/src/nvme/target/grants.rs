//! A set of byte ranges: where writes are admitted.

use alloc::collections::BTreeMap;
use core::ops::Range;

/// Disjoint, non-adjacent ranges: start → end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range; an empty one adds nothing.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        // Every range that overlaps or touches the new one becomes part of it.
        while let Some((&other_start, &other_end)) = self.0.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            start = start.min(other_start);
            end = end.max(other_end);
            self.0.remove(&other_start);
        }
        self.0.insert(start, end);
    }

    /// Takes a range out.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&start, &end)) = self.0.range(..range.end).next_back() {
            if end <= range.start {
                break;
            }
            self.0.remove(&start);
            if end > range.end {
                self.0.insert(range.end, end);
            }
            if start < range.start {
                self.0.insert(start, range.start);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether all of a range is in the set.
    pub(super) fn contains(&self, range: &Range<u64>) -> bool {
        let found = self.0.range(..=range.start).next_back();
        range.is_empty() || found.is_some_and(|(_, &end)| range.end <= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_behave_like_a_set_of_numbers(
            steps in prop::collection::vec((any::<bool>(), 0u64..40, 0u64..12), 0..40)
        ) {
            let mut model = [false; 64];
            let mut ranges = Ranges::default();
            for (add, start, len) in steps {
                let range = start..start + len;
                model[start as usize..(start + len) as usize].fill(add);
                if add { ranges.insert(range) } else { ranges.remove(range) }
                let entries: Vec<_> = ranges.0.iter().collect();
                prop_assert!(entries.windows(2).all(|w| w[0].1 < w[1].0));
                prop_assert!(entries.iter().all(|(s, e)| s < e));
            }
            for start in 0..52u64 {
                for len in 1..12u64 {
                    let all = model[start as usize..(start + len) as usize].iter().all(|&x| x);
                    prop_assert_eq!(ranges.contains(&(start..start + len)), all);
                }
            }
        }
    }
}
