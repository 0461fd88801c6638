//! Memory that operations own: aligned for direct I/O while it is written, then frozen into
//! reference-counted [`Bytes`], so that one buffer serves the local write, every shipment and the
//! resend without a copy.

use alloc::sync::Arc;
use alloc::vec::Vec;
use bytemuck::{Pod, Zeroable};
use bytes::Bytes;
use core::sync::atomic::{AtomicUsize, Ordering};
use gabion_base::units::BLOCK_LEN;

#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(4096))]
struct Page([u8; BLOCK_LEN]);

const _: () = assert!(size_of::<Page>() == BLOCK_LEN);
const _: () = assert!(align_of::<Page>() == BLOCK_LEN);

/// Counts the memory of buffers for as long as they live, wherever they are: being filled, written,
/// shipped by several threads, kept to be used again. Shared by those who make buffers for one
/// purpose.
#[derive(Debug, Default)]
pub struct BufferMeter {
    held: AtomicUsize,
}

impl BufferMeter {
    /// Bytes that the buffers take now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

/// What a buffer has on its meter.
#[derive(Default)]
struct Charge {
    meter: Option<Arc<BufferMeter>>,
    bytes: usize,
}

impl Charge {
    fn set(&mut self, bytes: usize) {
        let Some(meter) = &self.meter else { return };
        if bytes > self.bytes {
            meter.held.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            let before = meter.held.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
            assert!(before >= self.bytes - bytes, "what a buffer gives back was counted");
        }
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A byte buffer whose first byte lies on a 4 KiB boundary. Grows by appending; everything beyond
/// what was written is zero.
#[derive(Default)]
pub struct AlignedBuf {
    pages: Vec<Page>,
    len: usize,
    charge: Charge,
}

impl AlignedBuf {
    /// An empty buffer with room for `capacity` bytes before it grows.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let pages = Vec::with_capacity(capacity.div_ceil(BLOCK_LEN));
        Self { pages, len: 0, charge: Charge::default() }
    }

    /// `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let pages = bytemuck::zeroed_vec(len.div_ceil(BLOCK_LEN));
        Self { pages, len, charge: Charge::default() }
    }

    /// A copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::with_capacity(bytes.len());
        buf.extend(bytes);
        buf
    }

    /// Has the buffer's memory counted by `meter`, and by no other, until it is freed.
    pub fn count_by(&mut self, meter: &Arc<BufferMeter>) {
        let is_counted = |by: &Arc<BufferMeter>| Arc::ptr_eq(by, meter);
        if !self.charge.meter.as_ref().is_some_and(is_counted) {
            self.charge = Charge { meter: Some(meter.clone()), bytes: 0 };
            self.charge.set(self.capacity());
        }
    }

    /// Bytes in use.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it takes before it grows.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.pages.capacity() * BLOCK_LEN
    }

    /// Whether nothing was written.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `bytes`.
    pub fn extend(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.reserve_pages(end);
        let start = self.len;
        self.len = end;
        self[start..].copy_from_slice(bytes);
    }

    /// Appends zeros up to `len`; a shorter buffer never results.
    pub fn pad_to(&mut self, len: usize) {
        if len > self.len {
            self.reserve_pages(len);
            self.len = len;
        }
    }

    /// Appends zeros up to a whole number of blocks.
    pub fn pad_to_block(&mut self) {
        self.len = self.pages.len() * BLOCK_LEN;
    }

    /// Shared, immutable bytes without a copy.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    fn reserve_pages(&mut self, len: usize) {
        let pages = len.div_ceil(BLOCK_LEN);
        if pages > self.pages.len() {
            self.pages.resize(pages, Page([0; BLOCK_LEN]));
            if self.capacity() != self.charge.bytes {
                self.charge.set(self.capacity());
            }
        }
    }
}

impl core::ops::Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.pages)[..self.len]
    }
}

impl core::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.pages)[..self.len]
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl core::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_grows_and_pads_with_zeros() {
        let mut buf = AlignedBuf::with_capacity(10);
        buf.extend(&[1; 5000]);
        buf.extend(b"end");
        assert_eq!(buf.as_ptr() as usize % BLOCK_LEN, 0);
        assert_eq!(&buf[4999..], b"\x01end");
        buf.pad_to_block();
        assert_eq!(buf.len(), 8192);
        assert!(buf[5003..].iter().all(|&b| b == 0));
        let frozen = buf.freeze();
        assert_eq!(frozen.as_ptr() as usize % BLOCK_LEN, 0);
        assert_eq!(frozen.len(), 8192);
    }

    #[test]
    fn a_meter_counts_a_buffer_as_long_as_it_lives_and_as_it_grows() {
        let (meter, other) = (Arc::new(BufferMeter::default()), Arc::new(BufferMeter::default()));
        let mut buf = AlignedBuf::with_capacity(5000);
        buf.count_by(&meter);
        buf.count_by(&meter);
        assert_eq!(meter.held(), buf.capacity());
        buf.extend(&[1; 50_000]);
        assert_eq!(meter.held(), buf.capacity());
        assert!(meter.held() >= 50_000);
        buf.count_by(&other);
        assert_eq!((meter.held(), other.held()), (0, buf.capacity()));
        let frozen = buf.freeze();
        let part = frozen.slice(10..20);
        drop(frozen);
        assert!(other.held() > 0, "somebody has a part of it");
        drop(part);
        assert_eq!(other.held(), 0);
    }

    #[test]
    fn padding_never_shortens() {
        let mut buf = AlignedBuf::zeroed(100);
        buf.pad_to(50);
        assert_eq!(buf.len(), 100);
        buf.pad_to(5000);
        assert_eq!((buf.len(), buf[4999]), (5000, 0));
    }
}
