//! What a sample of a skip list tells: what its keys begin with, and how much a range holds.

use super::atomic::Ordering;
use super::leaf::entry;
use super::{HEIGHT_MAX, Left, SkipList, link};
use crate::entry::Trailer;
use alloc::vec::Vec;
use core::ptr;

/// Leaves from which [`SkipList::estimate`] makes its estimate, at least.
const SAMPLE: u64 = 256;

impl SkipList {
    /// What most keys begin with: the common prefix of a sample without its outermost keys.
    pub(crate) fn common_prefix(&self) -> &[u8] {
        let sample = self.sample();
        let strays = sample.len() / 8;
        let inner = &sample[strays..sample.len() - strays];
        let (Some(first), Some(last)) = (inner.first(), inner.last()) else { return &[] };
        let common = first.iter().zip(*last).take_while(|(a, b)| a == b).count();
        &first[..common]
    }

    /// Some keys, in order: the anchors of a level that has enough, or all.
    fn sample(&self) -> Vec<&[u8]> {
        const ENOUGH: usize = 16;
        let mut sample = Vec::new();
        for level in (0..self.height.load(Ordering::Relaxed)).rev() {
            sample.clear();
            let mut tower = self.head[level].load().1;
            while !tower.is_null() {
                // SAFETY: links lead to published towers of this list, which `&self` keeps alive; one that
                // was reached at this level has a link there.
                unsafe {
                    sample.push(entry((*tower).anchor).key);
                    tower = (*link(tower, level)).load().1;
                }
            }
            if sample.len() >= ENOUGH {
                return sample;
            }
        }
        sample.clear();
        let mut place = self.first_place();
        // SAFETY: the place is one of this list.
        while let Some(found) = unsafe { place.entry() } {
            sample.push(found.key);
            self.step(&mut place);
        }
        sample
    }

    /// Entries of `from..to` and the bytes of their keys and values: counted where they are few, otherwise
    /// estimated from leaves whose towers reach a level of the list, of which about one in 4 reaches the
    /// next.
    ///
    /// With n such leaves the standard error of the count is 1 / sqrt(n); n is [`SAMPLE`] or more, and four
    /// times as many or so at most. The bytes of a leaf's entries are taken to be those of its first.
    pub(crate) fn estimate(&self, from: &[u8], to: Option<&[u8]>) -> (u64, u64) {
        let is_within = |key: &[u8]| to.is_none_or(|to| key < to);
        let mut left: Left = [const { ptr::null() }; HEIGHT_MAX];
        self.find(&self.target(from, Trailer::FIRST), |level, at| left[level] = at);
        let searched = left.iter().enumerate().rev().filter(|(_, at)| !at.is_null());
        for (level, &at) in searched {
            let (mut leaves, mut count, mut bytes) = (0, 0, 0);
            // SAFETY: `left` holds links of the head or of published towers.
            let mut tower = unsafe { (*at).load().1 };
            while !tower.is_null() {
                // SAFETY: links lead to published towers, which have a link at the level at which they
                // were reached, a published anchor and a leaf.
                let (anchor, next) =
                    unsafe { (entry((*tower).anchor), (*link(tower, level)).load().1) };
                if !is_within(anchor.key) {
                    break;
                }
                // Beside a writer the search may have ended a little before the range.
                if anchor.key >= from {
                    // SAFETY: as above.
                    let entries = unsafe { (*self.leaf_of(tower)).slots().len() } as u64;
                    leaves += 1;
                    count += entries;
                    bytes += entries * (anchor.key.len() + anchor.value.len()) as u64;
                }
                tower = next;
            }
            if leaves >= SAMPLE {
                return (count << (2 * level), bytes << (2 * level));
            }
        }
        let (mut count, mut bytes) = (0, 0);
        let mut place = self.place_of(from, Trailer::FIRST);
        // SAFETY: the place is one of this list.
        while let Some(found) = unsafe { place.entry() }.filter(|found| is_within(found.key)) {
            count += 1;
            bytes += (found.key.len() + found.value.len()) as u64;
            self.step(&mut place);
        }
        (count, bytes)
    }
}
