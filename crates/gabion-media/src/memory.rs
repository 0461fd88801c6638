//! Byte-addressable memory that outlives a process: the ring of a log.

use alloc::vec::Vec;

/// A region of memory that another process, or the next run of this one, sees as it was left.
///
/// Writes are plain copies: they survive the kill of the process at once, and a power cut never
/// (unless the region is non-volatile). A crash may leave any prefix-free mixture of the bytes of
/// the last writes, so everything stored here carries its own checksum.
pub trait MemoryRegion: Send {
    /// Bytes in the region. Constant for its life.
    fn len(&self) -> u64;

    /// Whether the region has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `data` to `offset`.
    ///
    /// # Panics
    /// When the range reaches past the end.
    fn write(&mut self, offset: u64, data: &[u8]);

    /// Copies from `offset` into the whole of `into`.
    ///
    /// # Panics
    /// When the range reaches past the end.
    fn read(&self, offset: u64, into: &mut [u8]);
}

/// Memory that nobody sees but its owner: lost with it.
impl MemoryRegion for Vec<u8> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self[offset as usize..][..data.len()].copy_from_slice(data);
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self[offset as usize..][..into.len()]);
    }
}
