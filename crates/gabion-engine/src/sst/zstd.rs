//! Zstandard, with contexts that are used again: with a new one a block of 4 KiB takes 13 µs to
//! decompress, else 4.
//!
//! A frame depends on its content and the level alone, whatever the context did before (the
//! library's one hash that is salted with it permutes rows and changes no choice); `codec/tests.rs`
//! holds it to that.
//!
//! An encoder is one file's. Decoders are wanted by any thread for one block at a time, so those
//! that are idle wait in [`IDLE`], which is neither a clock nor a source of chance: a decoder
//! forgets each block.

use crate::idle::Idle;
use alloc::boxed::Box;
use alloc::vec::Vec;
use gabion_base::{Error, Result};
use zstd_safe::{CCtx, CParameter, DCtx};

/// Most decoders that are kept while nobody uses them: one for each thread that reads at once. Each
/// takes 94 KiB.
const IDLE_MAX: usize = 16;

#[cfg(not(all(test, loom)))]
static IDLE: Idle<DCtx<'static>, IDLE_MAX> = Idle::new();
// What the permutation checker follows exists while it does.
#[cfg(all(test, loom))]
loom::lazy_static! {
    static ref IDLE: Idle<DCtx<'static>, IDLE_MAX> = Idle::new();
}

/// A decoder that is idle, or a new one; none when there is no memory for it.
fn take() -> Option<Box<DCtx<'static>>> {
    IDLE.take().or_else(|| DCtx::try_create().map(Box::new))
}

/// Decompresses a frame into the capacity of `raw`, whose old content goes: nothing is reserved,
/// whatever the frame says. Returns the length; none when it is no whole frame, or longer than that
/// capacity.
///
/// # Errors
/// Limit exceeded when there is no memory for a decoder.
pub(super) fn decode(frame: &[u8], raw: &mut Vec<u8>) -> Result<Option<usize>> {
    let mut decoder = take().ok_or_else(|| Error::limit("no memory for a zstd decoder"))?;
    let len = decoder.decompress(raw, frame).ok();
    IDLE.give_back(decoder);
    Ok(len)
}

/// Longest frame of so many bytes.
pub(super) fn output_len_max(raw_len: usize) -> usize {
    zstd_safe::compress_bound(raw_len)
}

/// Compresses blocks, each into a frame of its own.
pub(super) struct Encoder(CCtx<'static>);

impl Encoder {
    /// An encoder for a level that was checked. Frames have the length of their content and no
    /// checksum, as blocks have theirs: these are the library's defaults.
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
