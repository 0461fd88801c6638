//! What an open file's index is searched by: eight bytes of each separator, side by side.
//!
//! A binary search through an index block touches a line of memory for its restart point and one
//! for its key at every step. Nearly always eight bytes behind what all separators begin with
//! decide, and those of a whole file are a few kilobytes in one piece.

use super::block::{BlockCursor, common_prefix_len};
use super::reader::BlockHandle;
use crate::rank::rank;
use alloc::boxed::Box;
use alloc::vec::Vec;
use gabion_base::{Error, Result};

/// The separators of an index, as far as eight bytes tell them apart.
#[derive(Default)]
pub(super) struct Guide {
    /// What all separators begin with.
    prefix: Box<[u8]>,
    /// The next eight bytes of each as a number, zeros behind its end. Ascending; a smaller rank is
    /// a smaller separator, of equal ranks nothing follows.
    ranks: Vec<u64>,
    /// Where the block of each lies, behind the one before.
    handles: Vec<BlockHandle>,
}

impl Guide {
    /// `handle` makes one of a separator's value.
    ///
    /// # Errors
    /// Corruption when the index is not one, its separators are seen to be out of order, or a block
    /// does not lie behind the one before; that of `handle`.
    pub(super) fn of(index: &[u8], handle: impl Fn(&[u8]) -> Result<BlockHandle>) -> Result<Self> {
        let prefix = common_prefix(index)?;
        let (mut ranks, mut handles) = (Vec::new(), Vec::new());
        let mut walk = BlockCursor::new();
        walk.enter(index)?;
        while walk.advance(index)? {
            let rank = walk.key().strip_prefix(&*prefix).map(rank);
            let rank = rank.filter(|rank| ranks.last().is_none_or(|last| last <= rank));
            ranks.push(rank.ok_or_else(|| Error::corruption("separators are out of order"))?);
            let next = handle(&index[walk.value_range()])?;
            if handles.last().is_some_and(|last: &BlockHandle| last.end() > next.offset) {
                return Err(Error::corruption("blocks are out of order"));
            }
            handles.push(next);
        }
        ranks.shrink_to_fit();
        handles.shrink_to_fit();
        Ok(Self { prefix, ranks, handles })
    }

    /// Bytes of memory held.
    pub(super) fn memory_used(&self) -> usize {
        self.prefix.len() + size_of_val(&*self.ranks) + size_of_val(&*self.handles)
    }

    /// Separators, of which each block has one.
    pub(super) const fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Where the block of a separator lies, if there are so many.
    #[inline]
    pub(super) fn handle(&self, at: usize) -> Option<BlockHandle> {
        self.handles.get(at).copied()
    }

    /// The place of a block, of which each begins behind the one before.
    pub(super) fn place_of(&self, block: BlockHandle) -> Option<usize> {
        self.handles.binary_search_by_key(&block.offset, |handle| handle.offset).ok()
    }

    /// Where the block of the first separator at or after any entry of `key` lies, or that there is
    /// none; nothing if eight bytes do not tell.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<Option<BlockHandle>> {
        self.place(key).map(|at| self.handle(at))
    }

    /// Which is the first separator at or after any entry of `key`, their number if there is none;
    /// nothing if eight bytes do not tell.
    #[inline]
    pub(super) fn place(&self, key: &[u8]) -> Option<usize> {
        Some(match key.strip_prefix(&*self.prefix) {
            Some(rest) => {
                let rank = rank(rest);
                let at = self.ranks.partition_point(|&r| r < rank);
                if self.ranks.get(at) == Some(&rank) {
                    return None;
                }
                at
            }
            None if *key < *self.prefix => 0,
            None => self.ranks.len(),
        })
    }
}

/// What all separators of an index begin with, if they are in order: what the first and the last
/// have in common.
fn common_prefix(index: &[u8]) -> Result<Box<[u8]>> {
    let mut walk = BlockCursor::new();
    walk.enter(index)?;
    walk.advance(index)?;
    let first = walk.key().to_vec();
    while walk.advance(index)? {}
    let len = common_prefix_len(&first, walk.key());
    Ok(first[..len].into())
}

#[cfg(test)]
mod tests {
    use super::super::block::{Area, BlockView, BlockWriter};
    use super::*;
    use crate::entry::Trailer;
    use alloc::collections::BTreeSet;
    use alloc::format;
    use gabion_media::AlignedBuf;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_guide_finds_what_a_search_through_the_index_finds_or_does_not_tell(
            prefix in prop::collection::vec(0..3u8, 0..12),
            keys in prop::collection::btree_set(prop::collection::vec(0..3u8, 0..12), 1..60),
            sought in prop::collection::vec(prop::collection::vec(0..3u8, 0..24), 0..60),
        ) {
            let keys: BTreeSet<Vec<u8>> = keys.into_iter().map(|k| [&prefix[..], &k].concat()).collect();
            let area = index_of(keys.iter().map(|key| &key[..]));
            let (guide, view) =
                (guide_of(area.bytes()).unwrap(), BlockView::parse(area.bytes()).unwrap());
            prop_assert_eq!(guide.ranks.len(), keys.len());
            let with_prefix = sought.iter().map(|k| [&prefix[..], k].concat());
            for key in sought.iter().cloned().chain(with_prefix).chain(keys.iter().cloned()) {
                let expected = view.search(&key, Trailer::FIRST).unwrap();
                let expected = expected.map(|found| handle(&area.bytes()[found.value]).unwrap());
                if let Some(found) = guide.find(&key) {
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }

    #[test]
    fn keys_that_differ_from_every_separator_within_eight_bytes_are_found_by_ranks() {
        let key = |n: u64| format!("\u{1}user{n:09}");
        let keys: Vec<_> = (0..4000).map(|n| key(10 * n)).collect();
        let area = index_of(keys.iter().map(|key| key.as_bytes()));
        let guide = guide_of(area.bytes()).unwrap();
        for n in 0..40_000u64 {
            let found = guide.find(key(n).as_bytes());
            assert_eq!(found.is_none(), n.is_multiple_of(10), "{n}");
            let Some(found) = found else { continue };
            let number = found.map(|handle| u64::from(handle.offset));
            assert_eq!(number, (n < 39_990).then_some(n / 10 + 1), "{n}");
        }
    }

    #[test]
    fn separators_out_of_order_are_refused() {
        for keys in [[&b"a1"[..], b"b", b"a2"], [b"ab", b"aa", b"ac"], [b"b", b"a", b""]] {
            let area = index_of(keys.into_iter());
            let error = format!("{}", guide_of(area.bytes()).err().expect("refused"));
            assert!(error.contains("out of order"), "{error}");
        }
        let area = index_of([&b""[..], b"\x02\x02\x01", b"\x02\x02\x02"].into_iter());
        let guide = guide_of(area.bytes()).unwrap();
        assert_eq!(guide.find(b"\x02\x01").map(|found| found.map(|at| at.offset)), Some(Some(1)));
    }

    #[test]
    fn blocks_out_of_order_are_refused() {
        let block = |offset, stored_len| move |_: &[u8]| Ok(BlockHandle { offset, stored_len });
        let area = index_of([&b"a"[..], b"b"].into_iter());
        // Both in one place.
        let error = format!("{}", Guide::of(area.bytes(), block(7, 1)).err().expect("refused"));
        assert!(error.contains("blocks are out of order"), "{error}");
        let overlapping =
            |value: &[u8]| handle(value).map(|it| BlockHandle { stored_len: 2, ..it });
        assert!(Guide::of(area.bytes(), overlapping).is_err());
        let falling =
            |value: &[u8]| handle(value).map(|it| BlockHandle { offset: 9 - it.offset, ..it });
        assert!(Guide::of(area.bytes(), falling).is_err());
        guide_of(area.bytes()).unwrap();
    }

    /// Blocks that have their numbers for offsets.
    fn handle(value: &[u8]) -> Result<BlockHandle> {
        let number = u64::from_le_bytes(value.try_into().unwrap());
        Ok(BlockHandle { offset: number as u32, stored_len: 1 })
    }

    fn guide_of(index: &[u8]) -> Result<Guide> {
        Guide::of(index, handle)
    }

    fn index_of<'a>(keys: impl Iterator<Item = &'a [u8]>) -> Area {
        let (mut area, mut writer) =
            (Area::new(AlignedBuf::with_capacity(4096)), BlockWriter::new(4));
        for (n, key) in keys.enumerate() {
            writer.add(&mut area, key, Trailer::FIRST, &(n as u64).to_le_bytes());
        }
        writer.finish(&mut area);
        area
    }
}
