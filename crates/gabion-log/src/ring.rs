//! The ring: a [`MemoryRegion`] addressed by log position.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec;
use gabion_base::units::BLOCK_LEN;
use gabion_base::{Error, Result};
use gabion_media::MemoryRegion;

/// Bytes at `position mod length`. A record never wraps, as the length is a multiple of the
/// segment.
pub(crate) struct Ring {
    region: Box<dyn MemoryRegion>,
    len: u64,
    /// The highest position ever written up to.
    written: u64,
    /// From here on the ring holds what the log says.
    from: u64,
}

impl Ring {
    pub(crate) fn new(region: Box<dyn MemoryRegion>, len: u64, from: u64) -> Result<Self> {
        if region.len() != len {
            return Err(Error::invalid(format!(
                "ring region has {} bytes, the log wants {len}",
                region.len()
            )));
        }
        Ok(Self { region, len, written: from, from })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The lowest position whose bytes are still here.
    pub(crate) fn from(&self) -> u64 {
        self.from
    }

    /// Says that the bytes from `position` on are in place, up to what was written or found.
    pub(crate) fn set_from(&mut self, position: u64) {
        self.from = position;
    }

    /// Says that the log ends at `position`: what follows there is in place once it is written.
    pub(crate) fn cut(&mut self, position: u64) {
        self.from = self.from.min(position);
    }

    /// Says that bytes up to `position` were found in place.
    pub(crate) fn note_written(&mut self, position: u64) {
        self.written = self.written.max(position);
        self.from = self.from.max(self.written.saturating_sub(self.len));
    }

    pub(crate) fn write(&mut self, position: u64, bytes: &[u8]) {
        assert!(position % self.len + bytes.len() as u64 <= self.len, "a record never wraps");
        self.region.write(position % self.len, bytes);
        self.note_written(position + bytes.len() as u64);
    }

    /// Zeros from `start` to `end`, less than a block apart.
    pub(crate) fn zero(&mut self, start: u64, end: u64) {
        let len = (end - start) as usize;
        assert!(len < BLOCK_LEN, "only the rest of a block is zeroed");
        if len > 0 {
            self.write(start, &vec![0; len]);
        }
    }

    /// Copies from `position`; the caller knows that the range does not wrap.
    pub(crate) fn read(&self, position: u64, into: &mut [u8]) {
        assert!(position % self.len + into.len() as u64 <= self.len, "a read never wraps");
        self.region.read(position % self.len, into);
    }
}
