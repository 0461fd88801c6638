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
//!
//! # Pages
//!
//! The first access to each page of a mapping costs ten times what a copy into it does (1.4 µs
//! where the copy takes 0.1). Two things spare it:
//!
//! - *Huge pages*, where the system grants them to shared memory
//!   (`/sys/kernel/mm/transparent_hugepage/shmem_enabled` is `advise` or more): one fault brings in
//!   2 MiB, and the system frees 60 MiB in a fraction of a millisecond.
//! - Where it does not, *writes past the mapping*: the kernel copies into the memfd (`pwrite`),
//!   which needs no entry for this process. A page that is written again is worth its entry.

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_get_seals, fstat};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();
const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;
/// Shorter writes are cheaper through the mapping, also those that bring a page in.
const PAST_LEN: usize = 2 << 10;
/// Whether the system grants huge pages to shared memory.
const HUGE_SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// A sealed memfd, mapped.
pub(super) struct Mapping {
    map: MmapRaw,
    file: OwnedFd,
    /// A bit a page: it was written past the mapping. None: it has huge pages.
    written: Option<Box<[AtomicU64]>>,
}

/// Whether a mapping of this length gets huge pages.
fn has_huge_pages(len: usize) -> bool {
    static ARE_GRANTED: OnceLock<bool> = OnceLock::new();
    let are_granted = || {
        // A system without the setting has none.
        let setting = std::fs::read_to_string(HUGE_SETTING).unwrap_or_default();
        ["[advise]", "[always]", "[within_size]", "[force]"].iter().any(|it| setting.contains(it))
    };
    len >= HUGE_PAGE && *ARE_GRANTED.get_or_init(are_granted)
}

impl Mapping {
    /// Maps the first `len` bytes.
    pub(super) fn new(file: OwnedFd, len: u64, writable: bool) -> io::Result<Self> {
        let seals = fcntl_get_seals(&file)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("the memory is not sealed against shrinking"));
        }
        let found = fstat(&file)?.st_size as u64;
        if len == 0 || len > found {
            let message = format!("{len} bytes of memory, {found} are there");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let mut options = MmapOptions::new();
        options.len(len);
        let map = match writable {
            true => options.map_raw(file.as_raw_fd()),
            false => options.map_raw_read_only(file.as_raw_fd()),
        }?;
        let is_huge = has_huge_pages(len);
        // Without it the pages are small ones, and nothing depends on it.
        let is_huge = is_huge && map.advise(Advice::HugePage).is_ok();
        let words = || (0..len.div_ceil(PAGE * 64)).map(|_| AtomicU64::new(0)).collect();
        let written = (writable && !is_huge).then(words);
        Ok(Self { map, file, written })
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
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
        let past = match self.is_fresh(start, data.len()) {
            true => self.write_past(offset, data),
            false => 0,
        };
        self.write_mapped(start + past, &data[past..]);
    }

    /// Whether a write belongs past the mapping; the next one to the same page does not. That of
    /// the last byte decides: a log begins its writes on pages that it wrote before.
    fn is_fresh(&self, start: usize, len: usize) -> bool {
        let Some(written) = self.written.as_ref().filter(|_| len >= PAST_LEN) else {
            return false;
        };
        let page = (start + len - 1) / PAGE;
        let bit = 1 << (page % 64);
        written[page / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Has the kernel copy into the memory. Returns how many bytes it took; the others are left to
    /// the mapping.
    fn write_past(&self, offset: u64, data: &[u8]) -> usize {
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&self.file, &data[done..], offset + done as u64) {
                Ok(0) | Err(_) => break,
                Ok(some) => done += some,
            }
        }
        done
    }

    fn write_mapped(&self, start: usize, data: &[u8]) {
        let (head, rest) = data.split_at(head_len(start, data.len()));
        let (words, tail) = rest.as_chunks::<WORD>();
        // SAFETY: by 1 and 4, which the callers check, each byte of start..start + data.len() is
        // mapped, writable (whoever maps to read calls no write) and outside of Rust's allocations;
        // by `head_len` the words are aligned, as a mapping begins at a page.
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

    /// Has the system give memory to a range that nobody wrote. One that cannot gives it at the
    /// first access.
    pub(super) fn bring_in(&self, offset: u64, len: usize) {
        let start = self.check(offset, len);
        // Nothing depends on either.
        if self.written.is_some() {
            let _ = fallocate(&self.file, FallocateFlags::empty(), offset, len as u64);
        } else {
            let first = start & !(PAGE - 1);
            let _ = self.map.advise_range(Advice::PopulateWrite, first, start + len - first);
        }
    }

    /// Writes zeros. The mapping is writable.
    pub(super) fn zero(&self, offset: u64, len: u64) {
        const ZEROS: [u8; 16 << 10] = [0; 16 << 10];
        let mut at = offset;
        while at < offset + len {
            let some = (offset + len - at).min(ZEROS.len() as u64) as usize;
            let start = self.check(at, some);
            let past = match self.written {
                Some(_) => self.write_past(at, &ZEROS[..some]),
                None => 0,
            };
            self.write_mapped(start + past, &ZEROS[past..some]);
            at += some as u64;
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
            let map = Mapping::new(file, 4096, true).unwrap();
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

    proptest! {
        #[test]
        fn writes_through_the_mapping_and_past_it_are_one_memory(
            writes in proptest::collection::vec((0u64..50_000, 1usize..9_000), 1..20),
        ) {
            let map = Mapping::new(sealed_memory("test", 1 << 16).unwrap(), 1 << 16, true).unwrap();
            let (mut expected, mut found) = (vec![0; 1 << 16], vec![0; 1 << 16]);
            for (number, (at, len)) in (1u8..).zip(writes) {
                map.write(at, &vec![number; len]);
                expected[at as usize..][..len].fill(number);
            }
            map.read(0, &mut found);
            prop_assert_eq!(&found, &expected);
            map.zero(5, 40_000);
            expected[5..][..40_000].fill(0);
            map.read(0, &mut found);
            prop_assert_eq!(&found, &expected);
        }
    }

    #[test]
    fn long_memory_is_one_memory_too_whatever_pages_the_system_gives() {
        let len = 2 * HUGE_PAGE as u64 + 4096;
        let map = Mapping::new(sealed_memory("test", len).unwrap(), len, true).unwrap();
        map.bring_in(0, len as usize);
        let data: Vec<u8> = (0..len - 100).map(|at| (at % 251) as u8).collect();
        map.write(50, &data);
        let mut found = vec![1; len as usize];
        map.read(0, &mut found);
        assert!(found[50..][..data.len()] == data && found[..50] == [0; 50]);
    }

    #[test]
    fn memory_that_could_shrink_or_is_shorter_is_not_mapped() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert!(Mapping::new(file, 4096, true).is_err());
        let file = || sealed_memory("test", 4096).unwrap();
        assert!(Mapping::new(file(), 4097, true).is_err());
        assert!(Mapping::new(file(), 0, true).is_err());
        assert!(rustix::fs::ftruncate(file(), 0).is_err(), "it is sealed");
    }

    #[test]
    #[should_panic(expected = "reach past the end")]
    fn an_access_past_the_end_is_refused() {
        let file = sealed_memory("test", 4096).unwrap();
        Mapping::new(file, 4096, true).unwrap().write(4090, &[0; 7]);
    }
}
