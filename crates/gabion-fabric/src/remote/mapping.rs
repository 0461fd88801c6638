//! Mapped memory that another process writes at the same time. All `unsafe` of the memory fabric
//! stands here.
//!
//! # Why this is sound
//!
//! 1. A mapping is made from a memfd that is sealed against shrinking, and is never longer than it.
//!    So each of its bytes is backed for as long as the mapping lives, and no access faults.
//! 2. No reference to its bytes is ever made: they lie outside of every Rust allocation and are
//!    read and written volatile, by words and by bytes. Others change them meanwhile, also in this
//!    process through a mapping of their own, at another address. A read may so see a mixture of
//!    bytes; all readers check what they read.
//! 3. Words of gates are the exception: nothing but atomic words are there, in a memfd of their
//!    own, which no other module writes.
//! 4. Ranges are checked against the length before each access.

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::AtomicU64;

const WORD: usize = size_of::<u64>();
const PAGE: usize = 4096;

/// A sealed memfd, mapped.
pub(super) struct Mapping {
    map: MmapRaw,
}

impl Mapping {
    /// Maps the first `len` bytes.
    pub(super) fn new(file: impl AsFd, len: u64, writable: bool) -> io::Result<Self> {
        let file = file.as_fd();
        let seals = fcntl_get_seals(file)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("the memory is not sealed against shrinking"));
        }
        let found = fstat(file)?.st_size as u64;
        if len == 0 || len > found {
            let message = format!("{len} bytes of memory, {found} are there");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let mut options = MmapOptions::new();
        options.len(len);
        let file = file.as_raw_fd();
        let map = match writable {
            true => options.map_raw(file),
            false => options.map_raw_read_only(file),
        };
        Ok(Self { map: map? })
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    fn check(&self, offset: u64, len: usize) -> usize {
        let total = self.map.len();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        assert!(
            start.checked_add(len).is_some_and(|end| end <= total),
            "{len} bytes at {offset} reach past the end of {total} bytes of shared memory"
        );
        start
    }

    /// Copies `data` to `offset`. The mapping is writable.
    pub(super) fn write(&self, offset: u64, data: &[u8]) {
        let start = self.check(offset, data.len());
        let (head, rest) = data.split_at(head_len(start, data.len()));
        let (words, tail) = rest.as_chunks::<WORD>();
        // SAFETY: by 1 and 4 each byte of start..start + data.len() is mapped, writable (whoever
        // maps to read calls no write) and outside of Rust's allocations; by `head_len` the words
        // are aligned, as a mapping begins at a page.
        unsafe {
            let mut to = self.map.as_mut_ptr().add(start);
            for byte in head {
                to.write_volatile(*byte);
                to = to.add(1);
            }
            for word in words {
                to.cast::<u64>().write_volatile(u64::from_ne_bytes(*word));
                to = to.add(WORD);
            }
            for byte in tail {
                to.write_volatile(*byte);
                to = to.add(1);
            }
        }
    }

    /// Brings the pages of a range in, at once: one fault after the other takes twice as long. A
    /// system that cannot brings them in at their first access.
    pub(super) fn populate(&self, offset: u64, len: usize) {
        let start = self.check(offset, len);
        let first = start & !(PAGE - 1);
        // Nothing depends on it.
        let _ = self.map.advise_range(Advice::PopulateWrite, first, start + len - first);
    }

    /// Writes zeros. The mapping is writable.
    pub(super) fn zero(&self, offset: u64, len: u64) {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut at = offset;
        while at < offset + len {
            let some = (offset + len - at).min(ZEROS.len() as u64);
            self.write(at, &ZEROS[..some as usize]);
            at += some;
        }
    }

    /// Copies from `offset` into the whole of `into`.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        let start = self.check(offset, into.len());
        let (head, rest) = into.split_at_mut(head_len(start, into.len()));
        let (words, tail) = rest.as_chunks_mut::<WORD>();
        // SAFETY: as in `write`; `into` is the caller's alone.
        unsafe {
            let mut from = self.map.as_ptr().add(start);
            for byte in head {
                *byte = from.read_volatile();
                from = from.add(1);
            }
            for word in words {
                *word = from.cast::<u64>().read_volatile().to_ne_bytes();
                from = from.add(WORD);
            }
            for byte in tail {
                *byte = from.read_volatile();
                from = from.add(1);
            }
        }
    }

    /// The word of this index, in a mapping that holds nothing else.
    pub(super) fn word(&self, index: u32) -> &AtomicU64 {
        let start = self.check(u64::from(index) * WORD as u64, WORD);
        // SAFETY: by 4 the word is mapped for as long as `self` lives, and aligned, as a mapping
        // begins at a page. By 3 all accesses to it are atomic. If the mapping is read-only, its
        // owner calls nothing but `load`.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(start).cast()) }
    }
}

/// Bytes before the first whole word.
fn head_len(start: usize, len: usize) -> usize {
    (start.next_multiple_of(WORD) - start).min(len)
}

#[cfg(test)]
mod tests {
    use super::super::supply::sealed_memory;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_at_any_place_come_back_as_they_went_in_and_others_stay(
            start in 0usize..40,
            data in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let file = sealed_memory("test", 4096).unwrap();
            let map = Mapping::new(&file, 4096, true).unwrap();
            map.write(0, &[0xee; 128]);
            map.write(start as u64, &data);
            let mut expected = vec![0xee; 128];
            expected[start..][..data.len()].copy_from_slice(&data);
            let mut found = vec![0; 128];
            map.read(0, &mut found);
            prop_assert_eq!(&found, &expected);
            let mut part = vec![0; data.len()];
            map.read(start as u64, &mut part);
            prop_assert_eq!(part, data);
            map.zero(start as u64, 50);
            map.read(0, &mut found);
            expected[start..][..50].fill(0);
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn memory_that_could_shrink_or_is_shorter_is_not_mapped() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert!(Mapping::new(&file, 4096, true).is_err());
        let file = sealed_memory("test", 4096).unwrap();
        assert!(Mapping::new(&file, 4097, true).is_err());
        assert!(Mapping::new(&file, 0, true).is_err());
        assert!(rustix::fs::ftruncate(&file, 0).is_err(), "it is sealed");
    }

    #[test]
    #[should_panic(expected = "reach past the end")]
    fn an_access_past_the_end_is_refused() {
        let file = sealed_memory("test", 4096).unwrap();
        Mapping::new(&file, 4096, true).unwrap().write(4090, &[0; 7]);
    }
}
