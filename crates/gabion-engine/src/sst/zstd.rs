//! Zstandard, with contexts that are used again: with a new one a block of 4 KiB takes 13 µs to decompress, else 4.
//!
//! A frame depends on its content and the level alone, whatever the context did before (the library's one hash that
//! is salted with it permutes rows and changes no choice); `codec/tests.rs` holds it to that.
//!
//! An encoder is one file's. Decoders are wanted by any thread for one block at a time, so those that are idle wait in
//! [`IDLE`], which is neither a clock nor a source of chance: a decoder forgets each block.
#![expect(unsafe_code, reason = "idle decoders are handed on as pointers; see `IDLE`")]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use gabion_base::{Error, Result};
use zstd_safe::{CCtx, CParameter, DCtx};

/// Most decoders that are kept while nobody uses them: one for each thread that reads at once. Each takes 94 KiB.
const IDLE_MAX: usize = 16;

/// Idle decoders. A pointer that is not null is a `Box` that belongs to the slot; taking it out and putting one in are
/// one atomic step each, so it belongs to one place at a time.
static IDLE: [AtomicPtr<DCtx<'static>>; IDLE_MAX] =
    [const { AtomicPtr::new(null_mut()) }; IDLE_MAX];

/// A decoder that is idle, or a new one; none when there is no memory for it.
fn take() -> Option<Box<DCtx<'static>>> {
    for slot in IDLE.iter().filter(|slot| !slot.load(Ordering::Relaxed).is_null()) {
        let idle = slot.swap(null_mut(), Ordering::Acquire);
        if !idle.is_null() {
            // SAFETY: what is in a slot came from `Box::into_raw`, and since the swap it is in none.
            return Some(unsafe { Box::from_raw(idle) });
        }
    }
    DCtx::try_create().map(Box::new)
}

/// Keeps a decoder for whoever comes next, unless enough are kept.
fn give_back(decoder: Box<DCtx<'static>>) {
    let idle = Box::into_raw(decoder);
    let has_taken = |slot: &AtomicPtr<_>| {
        slot.compare_exchange(null_mut(), idle, Ordering::Release, Ordering::Relaxed).is_ok()
    };
    if !IDLE.iter().any(has_taken) {
        // SAFETY: it came from `Box::into_raw` above, and no slot has taken it.
        drop(unsafe { Box::from_raw(idle) });
    }
}

/// Decompresses a frame into the capacity of `raw`, whose old content goes: nothing is reserved, whatever the frame
/// says. Returns the length; none when it is no whole frame, or longer than that capacity.
///
/// # Errors
/// Limit exceeded when there is no memory for a decoder.
pub(super) fn decode(frame: &[u8], raw: &mut Vec<u8>) -> Result<Option<usize>> {
    let mut decoder = take().ok_or_else(|| Error::limit("no memory for a zstd decoder"))?;
    let len = decoder.decompress(raw, frame).ok();
    give_back(decoder);
    Ok(len)
}

/// Longest frame of so many bytes.
pub(super) fn output_len_max(raw_len: usize) -> usize {
    zstd_safe::compress_bound(raw_len)
}

/// Compresses blocks, each into a frame of its own.
pub(super) struct Encoder(CCtx<'static>);

impl Encoder {
    /// An encoder for a level that was checked. Frames have the length of their content and no checksum, as blocks have
    /// theirs: these are the library's defaults.
    pub(super) fn new(level: u8) -> Self {
        let mut context = CCtx::create();
        let level = CParameter::CompressionLevel(i32::from(level));
        context.set_parameter(level).expect("the library has this level");
        Self(context)
    }

    /// Compresses `raw` into `out`, which has [`output_len_max`] bytes of it.
    ///
    /// # Panics
    /// When there is no memory for its tables, as where any other allocation fails.
    pub(super) fn encode(&mut self, raw: &[u8], out: &mut [u8]) -> usize {
        self.0
            .compress2(out, raw)
            .expect("the output has room for any input, and tables have memory")
    }
}
