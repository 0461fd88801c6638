//! Where the bytes of a namespace lie on the medium behind it.

use alloc::vec::Vec;
use core::ops::Range;

/// Ranges of the medium that are the namespace, one behind the other. Almost always one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing(Vec<Range<u64>>);

impl Backing {
    /// The namespace of these ranges.
    #[must_use]
    pub const fn new(ranges: Vec<Range<u64>>) -> Self {
        Self(ranges)
    }

    /// Bytes of the namespace.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.iter().map(|range| range.end.saturating_sub(range.start)).sum()
    }

    /// Whether the namespace has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The byte of the medium behind the last range on it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.0.iter().map(|range| range.end).max().unwrap_or(0)
    }

    /// Where `len` bytes at `offset` of the namespace lie. Nothing when they do not lie together:
    /// a host that knows the ranges never asks for such.
    #[must_use]
    pub fn locate(&self, mut offset: u64, len: u64) -> Option<u64> {
        for range in &self.0 {
            let range_len = range.end.saturating_sub(range.start);
            if offset < range_len {
                let fits = len <= range_len - offset;
                return fits.then(|| range.start + offset);
            }
            offset -= range_len;
        }
        None
    }
}

impl From<Range<u64>> for Backing {
    fn from(range: Range<u64>) -> Self {
        Self(core::iter::once(range).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_in_the_range_that_has_them_all() {
        let backing = Backing::new(alloc::vec![100..150, 400..410, 20..30]);
        assert_eq!((backing.len(), backing.end(), backing.is_empty()), (70, 410, false));
        assert_eq!(backing.locate(0, 50), Some(100));
        assert_eq!(backing.locate(49, 1), Some(149));
        assert_eq!(backing.locate(49, 2), None, "it ends in another range");
        assert_eq!(backing.locate(50, 10), Some(400));
        assert_eq!(backing.locate(69, 1), Some(29));
        assert_eq!(backing.locate(70, 1), None);
        assert_eq!(backing.locate(u64::MAX, u64::MAX), None);
        assert!(Backing::new(Vec::new()).is_empty());
    }
}
