//! The memory of a skip list: chunks that are only ever appended to, and freed all at once.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use core::ptr;

const CHUNK_LEN_FIRST: usize = 16 * 1024;
const CHUNK_LEN_MAX: usize = 1024 * 1024;

/// Memory that is only ever appended.
pub(super) struct Chunks {
    all: Vec<*mut [MaybeUninit<Line>]>,
    at: *mut u8,
    left: usize,
    /// Bytes taken so far.
    pub(super) allocated: usize,
}

/// What chunks are made of: lines of the processor's cache, so that a leaf has four.
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "memory, never read as this")] [u8; LINE_LEN]);

pub(super) const LINE_LEN: usize = 64;

impl Chunks {
    pub(super) const fn new() -> Self {
        Self { all: Vec::new(), at: ptr::without_provenance_mut(8), left: 0, allocated: 0 }
    }

    /// At least `len` fresh bytes, aligned to 8.
    pub(super) fn allocate(&mut self, len: usize) -> *mut u8 {
        let len = len.next_multiple_of(align_of::<u64>());
        if len > self.left {
            let chunk_len = self.allocated.clamp(CHUNK_LEN_FIRST, CHUNK_LEN_MAX);
            if len > chunk_len / 4 {
                // A chunk of its own, so that the rest of the current one is not lost.
                return self.new_chunk(len);
            }
            let chunk_len = chunk_len.next_multiple_of(LINE_LEN);
            self.at = self.new_chunk(chunk_len);
            self.left = chunk_len;
        }
        let at = self.at;
        // SAFETY: `left` bytes remain in the chunk behind `at`, and `len` is at most that.
        self.at = unsafe { at.add(len) };
        self.left -= len;
        at
    }

    fn new_chunk(&mut self, len: usize) -> *mut u8 {
        let lines = len.div_ceil(LINE_LEN);
        let chunk = Box::into_raw(Box::<[Line]>::new_uninit_slice(lines));
        self.all.push(chunk);
        self.allocated += lines * LINE_LEN;
        chunk.cast::<u8>()
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        for &chunk in &self.all {
            // SAFETY: each chunk came from `Box::into_raw` and is freed here only; nothing of the list
            // is used after its chunks.
            drop(unsafe { Box::from_raw(chunk) });
        }
    }
}
