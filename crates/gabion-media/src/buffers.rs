//! Data buffers that are used again. A fresh mebibyte costs its page faults and its zeros, and
//! finds none of itself in the processor's cache: measured, a third of all the CPU that shipping
//! takes at both ends together, and a fifth of a compaction's.

use crate::{AlignedBuf, Bytes};
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::units::TRANSFER_LEN_MAX;

/// A buffer that somebody reads while the pool waits for its return.
struct Lent(Arc<AlignedBuf>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Buffers in which files were built that are kept: one that is written to, one that is being
/// written, and one that is still being shipped.
const FILES_MAX: usize = 3;

/// Idle buffers: all of the longest transfer, what shipping and jobs consist of, and a few of whole
/// files.
#[derive(Debug, Default)]
pub struct Buffers {
    idle: Vec<Arc<AlignedBuf>>,
    /// Oldest first.
    files: Vec<Arc<AlignedBuf>>,
}

impl Buffers {
    /// Bytes of the longest buffer of a file that is used again.
    pub const FILE_LEN_MAX: usize = 32 << 20;

    /// A buffer of `len` bytes with any content, as a rule one that was used before.
    #[must_use]
    pub fn take(&mut self, len: usize) -> AlignedBuf {
        if len == TRANSFER_LEN_MAX
            && let Some(at) = self.idle.iter().rposition(|idle| Arc::strong_count(idle) == 1)
            && let Some(buffer) = Arc::into_inner(self.idle.swap_remove(at))
        {
            assert_eq!(buffer.len(), len, "idle buffers are as long as a transfer");
            return buffer;
        }
        AlignedBuf::zeroed(len)
    }

    /// The bytes of a full buffer, and what to give to [`Self::put`] so that it is used again.
    #[must_use]
    pub fn lend(buffer: AlignedBuf) -> (Bytes, Arc<AlignedBuf>) {
        let shared = Arc::new(buffer);
        (Bytes::from_owner(Lent(shared.clone())), shared)
    }

    /// Takes a buffer back; it is used again once nobody has its bytes any more. Kept are at most
    /// `len_max` bytes.
    pub fn put(&mut self, buffer: Arc<AlignedBuf>, len_max: usize) {
        if buffer.len() == TRANSFER_LEN_MAX {
            self.idle.push(buffer);
        }
        self.limit(len_max);
    }

    /// A buffer of any content and length that takes `capacity` bytes before it grows; as a rule
    /// one in which a file was built before.
    #[must_use]
    pub fn take_for_file(&mut self, capacity: usize) -> AlignedBuf {
        let is_free =
            |idle: &Arc<AlignedBuf>| Arc::strong_count(idle) == 1 && idle.capacity() >= capacity;
        let at = self.files.iter().position(is_free);
        let taken = at.and_then(|at| Arc::into_inner(self.files.remove(at)));
        taken.unwrap_or_else(|| AlignedBuf::with_capacity(capacity))
    }

    /// Takes back the buffer of a file; it is used again once nobody has its bytes any more. The
    /// last three are kept, of up to 32 MiB each.
    pub fn put_of_file(&mut self, buffer: Arc<AlignedBuf>) {
        if buffer.capacity() > Self::FILE_LEN_MAX {
            return;
        }
        if self.files.len() == FILES_MAX {
            self.files.remove(0);
        }
        self.files.push(buffer);
        assert!(self.files.len() <= FILES_MAX, "few buffers of files are kept");
    }

    /// Bytes of memory of all buffers that it has, those included that are lent.
    #[must_use]
    pub fn memory_used(&self) -> usize {
        self.idle.iter().chain(&self.files).map(|buffer| buffer.capacity()).sum()
    }

    /// Lets go of buffers until they have at most `len_max` bytes.
    pub fn limit(&mut self, len_max: usize) {
        self.idle.truncate(len_max / TRANSFER_LEN_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_only_when_nobody_reads_it_any_more() {
        let mut buffers = Buffers::default();
        let first = buffers.take(TRANSFER_LEN_MAX);
        let address = first.as_ptr();
        let (bytes, shared) = Buffers::lend(first);
        buffers.put(shared, 2 * TRANSFER_LEN_MAX);
        assert_ne!(buffers.take(TRANSFER_LEN_MAX).as_ptr(), address);
        drop(bytes);
        assert_ne!(buffers.take(4096).as_ptr(), address);
        assert_eq!(buffers.take(TRANSFER_LEN_MAX).as_ptr(), address);
    }

    /// docs/faults.md: P20
    #[test]
    fn the_last_few_buffers_of_files_are_used_again_when_they_are_large_enough() {
        let mut buffers = Buffers::default();
        let files: Vec<_> = (0..=FILES_MAX)
            .map(|_| {
                let (bytes, shared) = Buffers::lend(buffers.take_for_file(3 * 4096));
                buffers.put_of_file(shared.clone());
                (bytes, Arc::downgrade(&shared))
            })
            .collect();
        assert_eq!(buffers.files.len(), FILES_MAX);
        let is_known = |buffer: &AlignedBuf| buffers_of(&files).contains(&buffer.as_ptr());
        assert!(!is_known(&buffers.take_for_file(4096)), "somebody reads all of them");
        let addresses = buffers_of(&files);
        drop(files);
        assert!(!addresses.contains(&buffers.take_for_file(5 * 4096).as_ptr()), "too short");
        assert_eq!(buffers.take_for_file(2 * 4096).as_ptr(), addresses[1], "the first is gone");
    }

    fn buffers_of(files: &[(Bytes, alloc::sync::Weak<AlignedBuf>)]) -> Vec<*const u8> {
        files.iter().filter_map(|(_, shared)| Some(shared.upgrade()?.as_ptr())).collect()
    }

    #[test]
    fn idle_buffers_stay_within_their_limit() {
        let mut buffers = Buffers::default();
        for _ in 0..4 {
            let buffer = AlignedBuf::zeroed(TRANSFER_LEN_MAX);
            buffers.put(Buffers::lend(buffer).1, 2 * TRANSFER_LEN_MAX);
        }
        buffers.put(Buffers::lend(AlignedBuf::zeroed(4096)).1, 2 * TRANSFER_LEN_MAX);
        assert_eq!(buffers.idle.len(), 2);
        buffers.limit(TRANSFER_LEN_MAX - 1);
        assert!(buffers.idle.is_empty());
    }
}
