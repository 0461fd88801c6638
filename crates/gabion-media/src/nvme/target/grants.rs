//! Grants: where each host may write.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

/// The admitted hosts, each with the ranges that were granted to it. A byte has one writer at most.
#[derive(Debug)]
pub(super) struct Grants(Vec<(String, Ranges)>);

impl Grants {
    /// No range is granted to any of these hosts.
    pub(super) fn of(hosts: &[String]) -> Self {
        Self(hosts.iter().map(|host| (host.clone(), Ranges::default())).collect())
    }

    /// Which of the admitted hosts this is.
    pub(super) fn find(&self, host: &str) -> Option<usize> {
        self.0.iter().position(|(admitted, _)| admitted == host)
    }

    /// Grants a range to a host, and to no other any more. The host is admitted, if it was not.
    pub(super) fn insert(&mut self, host: &str, range: Range<u64>) {
        self.remove(range.clone());
        let index = self.find(host).unwrap_or_else(|| {
            self.0.push((host.into(), Ranges::default()));
            self.0.len() - 1
        });
        self.0[index].1.insert(range);
    }

    /// Takes a range from whoever has it.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        self.0.iter_mut().for_each(|(_, ranges)| ranges.remove(range.clone()));
    }

    /// Takes every range back. Hosts stay admitted.
    pub(super) fn clear(&mut self) {
        self.0.iter_mut().for_each(|(_, ranges)| ranges.clear());
    }

    /// Whether all of a range is granted to a host.
    pub(super) fn covers(&self, host: usize, range: &Range<u64>) -> bool {
        self.0.get(host).is_some_and(|(_, ranges)| ranges.contains(range))
    }
}

/// Disjoint, non-adjacent ranges: start → end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range; an empty one adds nothing.
    fn insert(&mut self, range: Range<u64>) {
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
        assert!(self.0.range(start..=end).next().is_none(), "ranges do not touch each other");
        self.0.insert(start, end);
    }

    /// Takes a range out.
    fn remove(&mut self, range: Range<u64>) {
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

    fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether all of a range is in the set.
    fn contains(&self, range: &Range<u64>) -> bool {
        let found = self.0.range(..=range.start).next_back();
        range.is_empty() || found.is_some_and(|(_, &end)| range.end <= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_range_is_granted_to_one_host_at_a_time() {
        let mut grants = Grants::of(&["a".into()]);
        grants.insert("a", 0..100);
        grants.insert("b", 40..60);
        let (a, b) = (grants.find("a").unwrap(), grants.find("b").unwrap());
        assert_eq!(grants.find("c"), None);
        assert!(grants.covers(a, &(0..40)));
        assert!(grants.covers(a, &(60..100)));
        assert!(!grants.covers(a, &(39..41)));
        assert!(grants.covers(b, &(40..60)));
        assert!(!grants.covers(b, &(39..60)));
        assert!(!grants.covers(7, &(0..1)));
        grants.remove(30..50);
        assert!(!grants.covers(a, &(30..31)));
        assert!(!grants.covers(b, &(49..50)));
        assert!(grants.covers(b, &(50..60)));
        grants.clear();
        assert_eq!((grants.find("b"), grants.covers(b, &(50..60))), (Some(b), false));
    }

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
