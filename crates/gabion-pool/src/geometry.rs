//! Where the slots of a region and their headers lie.
//!
//! ```text
//!   extent  0            headers_len                        len
//!           ┌─┬─┬─┬─┬────┬──────────┬──────────┬─────┐
//!           │h│h│h│…│zero│  slot 0  │  slot 1  │  …  │
//!           └─┴─┴─┴─┴────┴──────────┴──────────┴─────┘
//!           4 KiB each,   2 MiB each
//!           padded to 2 MiB
//!
//!   device     ───[ extent 0: slots 0..n ]──────────[ extent 1: slots n..m ]──
//!   namespace  [ extent 0 ][ extent 1 ]
//! ```
//!
//! A region is a list of extents, so that a pool can grow while it runs: the slots of another
//! extent are numbered on, and no slot ever moves. Headers stand together and outside the slots, so
//! that adjacent slots are adjacent bytes and one transfer may span them. A remote host sees the
//! region as a namespace in which the extents stand one behind the other: [`Geometry::namespace`]
//! is the same arithmetic there.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::iter;
use core::ops::Range;
use gabion_base::units::{BLOCK_LEN, SLOT_LEN};
use gabion_base::{Error, Result, SlotIndex};

/// Most extents of all regions of one pool: the superblock has room for as many.
pub const EXTENTS_MAX: usize = 128;

/// Slots that lie one behind the other, and their headers in front of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte on the medium.
    pub offset: u64,
    /// Slots.
    pub slots: u32,
}

impl Extent {
    /// Bytes of the headers with their padding.
    #[must_use]
    pub const fn headers_len(&self) -> u64 {
        (self.slots as u64 * BLOCK_LEN as u64).div_ceil(SLOT_LEN) * SLOT_LEN
    }

    /// Bytes of headers and slots.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.headers_len() + self.slots as u64 * SLOT_LEN
    }

    /// Whether it has no slot.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.slots == 0
    }

    /// Its bytes on the medium.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.len())
    }
}

/// The places and the size of one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Slots of it are found without another look at memory. Most regions have no other extent.
    first: Extent,
    /// The other extents, in the order of their slots; never an empty list.
    more: Option<Arc<[Extent]>>,
    slots: u32,
}

impl Geometry {
    /// The region of `slots` slots at `offset` bytes from the start of its medium.
    #[must_use]
    pub const fn new(offset: u64, slots: u32) -> Self {
        Self { first: Extent { offset, slots }, more: None, slots }
    }

    /// The region of these extents, in the order of their slots.
    ///
    /// # Errors
    /// Corruption for no extent, for more than [`EXTENTS_MAX`], for an empty one, for one that
    /// begins before the end of the one before it, and for more slots than can be numbered.
    pub fn of_extents(extents: &[Extent]) -> Result<Self> {
        let (Some((&first, more)), 1..=EXTENTS_MAX) = (extents.split_first(), extents.len()) else {
            return Err(Error::corruption(format!(
                "a region of {} extents: 1 to {EXTENTS_MAX} are possible",
                extents.len()
            )));
        };
        let (mut slots, mut end) = (0_u32, 0);
        for extent in extents {
            let total = slots.checked_add(extent.slots).filter(|total| *total > slots);
            let Some(total) = total.filter(|_| extent.offset >= end) else {
                return Err(Error::corruption(format!(
                    "a region with an extent of {} slots at {}, behind {slots} slots up to {end}",
                    extent.slots, extent.offset
                )));
            };
            (slots, end) = (total, extent.range().end);
        }
        Ok(Self { first, more: (!more.is_empty()).then(|| Arc::from(more)), slots })
    }

    /// The namespace of a region whose extents have so many slots.
    ///
    /// # Errors
    /// As [`Self::of_extents`].
    pub fn namespace_of(slots: impl IntoIterator<Item = u32>) -> Result<Self> {
        let mut offset = 0_u64;
        let extents = slots.into_iter().take(EXTENTS_MAX + 1).map(|slots| {
            let extent = Extent { offset, slots };
            offset = extent.range().end;
            extent
        });
        Self::of_extents(&extents.collect::<Vec<_>>())
    }

    /// The most slots that an extent of `len` bytes has room for, headers included.
    #[must_use]
    pub fn slots_in(len: u64) -> u32 {
        let per_slot = SLOT_LEN + BLOCK_LEN as u64;
        let mut slots = u32::try_from(len / per_slot).unwrap_or(u32::MAX);
        while slots > 0 && (Extent { offset: 0, slots }).len() > len {
            slots -= 1;
        }
        slots
    }

    /// The extents, in the order of their slots.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        iter::once(self.first).chain(self.more.iter().flat_map(|more| more.iter().copied()))
    }

    /// Slots in the region.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of the region: those of its namespace.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.extents().map(|extent| extent.len()).sum()
    }

    /// The byte of the medium behind the last extent.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.extents().last().map_or(0, |extent| extent.range().end)
    }

    /// Whether the region has no slot.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.slots == 0
    }

    /// The same region as a namespace, whose first byte has offset 0 and in which no byte lies
    /// between extents.
    #[must_use]
    pub fn namespace(&self) -> Self {
        let mut offset = 0;
        let mut moved = |extent: &Extent| {
            let extent = Extent { offset, slots: extent.slots };
            offset = extent.range().end;
            extent
        };
        let first = moved(&self.first);
        let more = self.more.as_ref().map(|more| more.iter().map(moved).collect());
        Self { first, more, slots: self.slots }
    }

    /// First byte of a slot's data on the medium.
    #[must_use]
    pub fn slot_offset(&self, slot: SlotIndex) -> u64 {
        let (extent, index) = self.find(slot);
        extent.offset + extent.headers_len() + index * SLOT_LEN
    }

    /// First byte of a slot's header block on the medium.
    #[must_use]
    pub fn header_offset(&self, slot: SlotIndex) -> u64 {
        let (extent, index) = self.find(slot);
        extent.offset + index * BLOCK_LEN as u64
    }

    /// The slot whose header block or data have the byte at `offset` of the medium; for data, how
    /// far in the slot that is.
    #[must_use]
    pub fn slot_at(&self, offset: u64) -> Option<(SlotIndex, Option<u64>)> {
        let mut before = 0;
        for extent in self.extents() {
            if let Some(at) = offset.checked_sub(extent.offset).filter(|at| *at < extent.len()) {
                let data = at.checked_sub(extent.headers_len());
                let index = data.map_or(at / BLOCK_LEN as u64, |at| at / SLOT_LEN);
                let is_slot = index < u64::from(extent.slots);
                let slot = SlotIndex(before + index as u32);
                return is_slot.then_some((slot, data.map(|at| at % SLOT_LEN)));
            }
            before += extent.slots;
        }
        None
    }

    /// The extent that has a slot, and its place there. A slot that the region has not, which
    /// [`Self::check`] tells, would stand behind the last extent.
    fn find(&self, slot: SlotIndex) -> (Extent, u64) {
        match &self.more {
            Some(more) if slot.0 >= self.first.slots => find_in(more, slot.0 - self.first.slots),
            _ => (self.first, u64::from(slot.0)),
        }
    }

    /// Whether the region has this slot.
    ///
    /// # Errors
    /// Invalid input that names the slot and the region's count.
    pub fn check(&self, slot: SlotIndex) -> Result<()> {
        if slot.0 < self.slots {
            return Ok(());
        }
        Err(Error::invalid(format!("{slot} is outside the region of {} slots", self.slots)))
    }
}

#[cold]
fn find_in(extents: &[Extent], mut slot: u32) -> (Extent, u64) {
    let mut found = extents[0];
    for extent in &extents[1..] {
        if slot < found.slots {
            break;
        }
        slot -= found.slots;
        found = *extent;
    }
    (found, u64::from(slot))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::ErrorKind;
    use gabion_base::units::MIB;
    use proptest::prelude::*;

    #[test]
    fn headers_come_first_and_slots_follow_on_slot_boundaries() {
        let geometry = Geometry::new(10 << 20, 513);
        assert_eq!(geometry.first.headers_len(), 2 * SLOT_LEN);
        assert_eq!(geometry.header_offset(SlotIndex(1)), (10 << 20) + 4096);
        assert_eq!(geometry.slot_offset(SlotIndex(0)), (10 << 20) + 2 * SLOT_LEN);
        assert_eq!(geometry.namespace().slot_offset(SlotIndex(2)), 4 * SLOT_LEN);
        assert!(geometry.check(SlotIndex(512)).is_ok());
        assert!(geometry.check(SlotIndex(513)).is_err());
    }

    #[test]
    fn slots_are_numbered_on_from_extent_to_extent() {
        let extents = [(10 * MIB, 3), (40 * MIB, 1), (46 * MIB, 600)];
        let extents = extents.map(|(offset, slots)| Extent { offset, slots });
        let geometry = Geometry::of_extents(&extents).unwrap();
        assert_eq!((geometry.slots(), geometry.end()), (604, 46 * MIB + 602 * SLOT_LEN));
        let place = |slot| (geometry.header_offset(slot), geometry.slot_offset(slot));
        assert_eq!(place(SlotIndex(2)), (10 * MIB + 8192, 16 * MIB));
        assert_eq!(place(SlotIndex(3)), (40 * MIB, 42 * MIB));
        assert_eq!(place(SlotIndex(4)), (46 * MIB, 50 * MIB));
        assert_eq!(place(SlotIndex(603)), (46 * MIB + 599 * 4096, 50 * MIB + 599 * SLOT_LEN));
        let namespace = geometry.namespace();
        assert_eq!(namespace, Geometry::namespace_of([3, 1, 600]).unwrap());
        assert_eq!(namespace.len(), geometry.len());
        assert_eq!(namespace.slot_offset(SlotIndex(3)), 5 * SLOT_LEN);
        for geometry in [geometry, namespace] {
            for slot in (0..604).map(SlotIndex) {
                let (header, data) = (geometry.header_offset(slot), geometry.slot_offset(slot));
                assert_eq!(geometry.slot_at(header + 4095), Some((slot, None)));
                assert_eq!(geometry.slot_at(data + 77), Some((slot, Some(77))));
            }
            assert_eq!(geometry.slot_at(geometry.first.offset + 3 * 4096), None, "padding");
            assert_eq!(geometry.slot_at(geometry.end()), None);
        }
    }

    #[test]
    fn lists_of_extents_that_cannot_be_are_refused() {
        let refused = |extents: &[(u64, u32)]| {
            let extents = extents.iter().map(|&(offset, slots)| Extent { offset, slots });
            let error = Geometry::of_extents(&extents.collect::<Vec<_>>()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption);
            alloc::string::ToString::to_string(&error)
        };
        assert!(refused(&[]).contains("a region of 0 extents: 1 to 128 are possible"));
        assert!(refused(&[(0, 1); 129]).contains("a region of 129 extents"));
        let error = refused(&[(0, 1), (4 * MIB - 4096, 1)]);
        assert!(error.contains("an extent of 1 slots at 4190208, behind 1 slots up to 4194304"));
        assert!(refused(&[(8 * MIB, 1), (0, 1)]).contains("behind 1 slots up to 12582912"));
        assert!(refused(&[(0, 0)]).contains("an extent of 0 slots"));
        assert!(refused(&[(0, u32::MAX), (1 << 60, 1)]).contains("an extent of 1 slots"));
        assert!(refused(&[(u64::MAX - 1, 2), (u64::MAX - 1, 1)]).contains("behind 2 slots"));
    }

    proptest! {
        #[test]
        fn a_region_holds_as_many_slots_as_fit_and_no_more(len in 0u64..1 << 45) {
            let slots = Geometry::slots_in(len);
            prop_assert!(Geometry::new(0, slots).len() <= len);
            prop_assert!(Geometry::new(0, slots + 1).len() > len);
        }
    }
}
