//! Where the slots of a region and their headers lie.
//!
//! ```text
//!   region  0            headers_len                        len
//!           ┌─┬─┬─┬─┬────┬──────────┬──────────┬─────┐
//!           │h│h│h│…│zero│  slot 0  │  slot 1  │  …  │
//!           └─┴─┴─┴─┴────┴──────────┴──────────┴─────┘
//!           4 KiB each,   2 MiB each
//!           padded to 2 MiB
//! ```
//!
//! Headers stand together and outside the slots, so that adjacent slots are adjacent bytes and one
//! transfer may span them. A remote host sees the region as a namespace that begins at 0:
//! [`Geometry::namespace`] is the same arithmetic there.

use alloc::format;
use gabion_base::units::{BLOCK_LEN, SLOT_LEN};
use gabion_base::{Error, Result, SlotIndex};

/// The place and size of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    offset: u64,
    slots: u32,
}

impl Geometry {
    /// The region of `slots` slots at `offset` bytes from the start of its medium.
    #[must_use]
    pub const fn new(offset: u64, slots: u32) -> Self {
        Self { offset, slots }
    }

    /// The most slots that a region of `len` bytes has room for, headers included.
    #[must_use]
    pub fn slots_in(len: u64) -> u32 {
        let per_slot = SLOT_LEN + BLOCK_LEN as u64;
        let mut slots = u32::try_from(len / per_slot).unwrap_or(u32::MAX);
        while slots > 0 && Self::new(0, slots).len() > len {
            slots -= 1;
        }
        slots
    }

    /// First byte of the region on its medium.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Slots in the region.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of the headers with their padding.
    #[must_use]
    pub const fn headers_len(&self) -> u64 {
        (self.slots as u64 * BLOCK_LEN as u64).div_ceil(SLOT_LEN) * SLOT_LEN
    }

    /// Bytes of the region.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.headers_len() + self.slots as u64 * SLOT_LEN
    }

    /// Whether the region has no slot.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.slots == 0
    }

    /// The same region as a namespace, whose first byte has offset 0.
    #[must_use]
    pub const fn namespace(&self) -> Self {
        Self { offset: 0, slots: self.slots }
    }

    /// First byte of a slot's data on the medium.
    #[must_use]
    pub const fn slot_offset(&self, slot: SlotIndex) -> u64 {
        self.offset + self.headers_len() + slot.0 as u64 * SLOT_LEN
    }

    /// First byte of a slot's header block on the medium.
    #[must_use]
    pub const fn header_offset(&self, slot: SlotIndex) -> u64 {
        self.offset + slot.0 as u64 * BLOCK_LEN as u64
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_come_first_and_slots_follow_on_slot_boundaries() {
        let geometry = Geometry::new(10 << 20, 513);
        assert_eq!(geometry.headers_len(), 2 * SLOT_LEN);
        assert_eq!(geometry.header_offset(SlotIndex(1)), (10 << 20) + 4096);
        assert_eq!(geometry.slot_offset(SlotIndex(0)), (10 << 20) + 2 * SLOT_LEN);
        assert_eq!(geometry.namespace().slot_offset(SlotIndex(2)), 4 * SLOT_LEN);
        assert!(geometry.check(SlotIndex(512)).is_ok());
        assert!(geometry.check(SlotIndex(513)).is_err());
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
