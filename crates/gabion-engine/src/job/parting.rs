//! Where one file ends and the next begins among keys that are alike for longer than bounds of
//! files usually are.
//!
//! Bounds of files stand in edits, in the memory of every replica and in recipes, so they are cut
//! to 256 bytes. Files could then not be told apart that end and begin within keys of which the
//! first 256 bytes are the same, and would grow until they are too long. So such bounds get as many
//! bytes as it takes, and the file that ends pays for them:
//!
//! ```text
//!   … P a x x x │ P c y y y …        P: the common prefix
//!     upper: P a y │ lower: P c      at or after the one key; after that, and at or before the other
//! ```
//!
//! A range delete that goes on behind the file is cut at the next key that there can be, so that it
//! covers whatever lies deeper down between the two parts: `upper` and a zero byte. What has a key
//! longer than keys may be cannot be read again, so where `upper` is as long as that it is the next
//! number up of the same bytes or fewer: every key in between is longer still. That is the one
//! place where a range delete ends behind its file's bound (`range_delete::ends_within`).
//!
//! For each byte of bounds over the 256 a file must have 4 KiB. So files end where they should for
//! keys of 2 KiB, and at 510 MiB at most for the longest; the bounds in an edit have a 4,096th of
//! the bytes that its job writes.

use crate::entry::ENGINE_KEY_LEN_MAX;
use crate::file::{FILE_LEN_MAX, FileMeta, lower_bound_of, upper_bound_of};
use crate::range_delete::next_key;
use alloc::vec::Vec;
use gabion_base::units::EDIT_KEY_BOUND_LEN_MAX;

/// Bytes that a file has for each byte of bounds over the usual most.
pub(crate) const FILE_PER_BOUND: u64 = 4096;

// The longest bounds are within what a file may have.
const _: () = assert!(2 * ENGINE_KEY_LEN_MAX as u64 * FILE_PER_BOUND < FILE_LEN_MAX / 2);

/// Whether the bounds of a file that ends with `last` and of one that begins with `first` would
/// touch, as bounds are cut to 256 bytes.
pub(crate) fn bounds_touch(last: &[u8], first: &[u8]) -> bool {
    let cut = last.len() > EDIT_KEY_BOUND_LEN_MAX || first.len() > EDIT_KEY_BOUND_LEN_MAX;
    cut && upper_bound_of(last) >= lower_bound_of(first)
}

/// Bounds between two keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parting {
    /// At or after the last key of the file that ends, and before the first of the next.
    pub(crate) upper: Vec<u8>,
    /// So much of the next file's first key is after `upper`.
    pub(crate) lower_len: usize,
}

impl Parting {
    /// How a file of so many bytes can be parted between `last` and `first`; none where it is not
    /// worth bounds so long.
    pub(crate) fn of_file(last: &[u8], first: &[u8], file_len: u64) -> Option<Self> {
        Self::between(last, first).filter(|it| it.is_worth(file_len))
    }

    /// Where the other half of a range delete begins that is cut after `upper`: the next key, which
    /// is at or before the first of the next file.
    pub(crate) fn next_to(&self) -> Vec<u8> {
        next_key(&self.upper).expect("an engine key begins with its keyspace, not with 0xff")
    }

    /// Bounds for a file that ends with `last` and one that begins with `first`, as short as they
    /// can be; none where `first` is not after `last`.
    fn between(last: &[u8], first: &[u8]) -> Option<Self> {
        if last >= first {
            return None;
        }
        let upper = raised_after(last, common_len(last, first));
        let lower_len = common_len(&upper, first) + 1;
        assert!(last <= &upper[..], "the upper bound is no smaller than the last key");
        assert!(upper[..] < first[..lower_len], "bounds of neighbours do not touch");
        Some(Self { upper, lower_len })
    }

    /// Whether a file of so many bytes is worth bounds so long.
    fn is_worth(&self, file_len: u64) -> bool {
        let over = |len: usize| len.saturating_sub(EDIT_KEY_BOUND_LEN_MAX) as u64;
        file_len >= (over(self.upper.len()) + over(self.lower_len)) * FILE_PER_BOUND
    }
}

fn common_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The shortest key at or after `key` that is equal to it up to and with the byte at `common`.
fn raised_after(key: &[u8], common: usize) -> Vec<u8> {
    let rest = key.get(common + 1..).unwrap_or_default();
    let Some(at) = rest.iter().position(|byte| *byte != 0xff) else { return key.to_vec() };
    if at + 1 == rest.len() {
        return key.to_vec();
    }
    let mut raised = key[..=common + 1 + at].to_vec();
    raised[common + 1 + at] += 1;
    raised
}

/// Bounds of a file that are not those which its own keys give.
#[derive(Debug, Default)]
pub(crate) struct OwnBounds {
    /// The lower one; empty where there is none.
    pub(crate) lower: Vec<u8>,
    pub(crate) upper: Option<Vec<u8>>,
}

impl OwnBounds {
    /// Narrows what is said of a file to these.
    pub(crate) fn narrow(self, meta: &mut FileMeta) {
        if self.lower > meta.smallest {
            meta.smallest = self.lower;
        }
        if let Some(upper) = self.upper.filter(|upper| *upper < meta.largest) {
            meta.largest = upper;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn bounds_that_are_cut_touch_where_keys_are_alike() {
        let long = |tail: &[u8]| [&[1u8][..], &[7; 255], tail].concat();
        assert!(bounds_touch(&long(b"a"), &long(b"b")), "the first 256 bytes are equal");
        assert!(bounds_touch(&long(b""), &long(b"b")));
        assert!(!bounds_touch(b"\x01a", b"\x01b"));
        assert!(!bounds_touch(b"\x01\x06", &long(b"b")));
        assert!(!bounds_touch(&long(b"a"), b"\x01\x09"));
        let mut next = long(b"");
        next[255] = 8;
        assert!(bounds_touch(&long(b"a"), &next), "the bound rounded up is the next key");
        assert!(!bounds_touch(&long(b""), &next), "a key of 256 bytes is its own bound");
    }

    #[test]
    fn a_parting_is_as_short_as_it_can_be_and_has_its_price() {
        let key = |tail: &[u8]| [&[1u8; 300][..], tail].concat();
        let parting = Parting::between(&key(b"axyz"), &key(b"cxyz")).unwrap();
        assert_eq!((&parting.upper[300..], parting.lower_len), (&b"ay"[..], 301));
        assert!(!parting.is_worth((46 + 45) * 4096 - 1));
        assert!(parting.is_worth((46 + 45) * 4096));
        let prefix = Parting::between(&key(b""), &key(b"\0\0")).unwrap();
        assert_eq!((prefix.upper.len(), prefix.lower_len), (300, 301));
        let full = Parting::between(&key(b"a\xff\xff"), &key(b"b")).unwrap();
        assert_eq!((&full.upper[300..], full.lower_len), (&b"a\xff\xff"[..], 301));
        assert_eq!(Parting::between(&key(b"a"), &key(b"a")), None);
        assert_eq!(Parting::between(&key(b"b"), &key(b"a")), None);
    }

    #[test]
    fn a_range_delete_is_cut_at_the_next_key_that_there_can_be() {
        let key = |len: usize, tail: &[u8]| [&vec![1; len - tail.len()][..], tail].concat();
        let longest = ENGINE_KEY_LEN_MAX;
        let next_to = |last: &[u8], first: &[u8]| {
            let next_to = Parting::between(last, first).unwrap().next_to();
            assert!(last < &next_to[..] && next_to[..] <= *first && next_to.len() <= longest);
            next_to
        };
        assert_eq!(
            next_to(&key(longest - 1, &[7]), &key(longest - 1, &[8])),
            key(longest, &[7, 0])
        );
        assert_eq!(next_to(&key(longest, &[7]), &key(longest, &[8])), key(longest, &[8]));
        assert_eq!(next_to(&key(longest, &[7]), &key(longest, &[9])), key(longest, &[8]));
        let full = key(longest, &[7, 0xff, 0xff]);
        assert_eq!(next_to(&full, &key(longest, &[8, 0, 0])), key(longest - 2, &[8]));
        assert_eq!(next_to(&full, &key(longest - 2, &[8])), key(longest - 2, &[8]));
    }

    proptest! {
        #[test]
        fn bounds_lie_between_the_keys_and_are_no_longer_than_these(
            common in 0usize..4,
            a in prop::collection::vec(prop::sample::select(vec![0u8, 1, 0xfe, 0xff]), 0..6),
            b in prop::collection::vec(prop::sample::select(vec![0u8, 1, 0xfe, 0xff]), 0..6),
        ) {
            let key = |tail: &[u8]| [&[1u8][..], &vec![9; common], tail].concat();
            let (last, first) = (key(&a).min(key(&b)), key(&a).max(key(&b)));
            match Parting::between(&last, &first) {
                None => prop_assert_eq!(last, first),
                Some(Parting { upper, lower_len }) => {
                    prop_assert!(last <= upper && upper.len() <= last.len());
                    prop_assert!(upper[..] < first[..lower_len]);
                }
            }
        }
    }
}
