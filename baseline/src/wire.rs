//! What replicas say to each other. Numbers are little-endian.
//!
//! ```text
//!  hello, from who connects:   0 u32 "GBBL"   4 u32 from   8 u32 replicas of the chain
//!  batch, down the chain:      0 u32 bytes of the batch    4 u32 0   8 u64 number   16 the batch
//!  acknowledgement, up it:     0 u64 number: this batch and all before it are applied from here on
//! ```
//!
//! Batches are numbered 1, 2, 3 …, without gaps. There are no checksums and no versions: all replicas
//! are processes of one program, started for one measurement on one machine.

use gabion_base::{Error, Result};

/// Bytes of a hello.
pub(crate) const HELLO_LEN: usize = 12;
/// Bytes before a batch.
pub(crate) const HEAD_LEN: usize = 16;
/// Bytes of an acknowledgement.
pub(crate) const ACK_LEN: usize = 8;
/// Longest batch: the writes of a turn, which ends early at [`TURN_LEN`], and one request of the largest size.
pub(crate) const BATCH_LEN_MAX: usize = 64 << 20;
/// Bytes of a batch at which a turn ends early.
pub(crate) const TURN_LEN: usize = 4 << 20;

const MAGIC: [u8; 4] = *b"GBBL";

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// A hello of the replica `from` of a chain of `replicas`.
pub(crate) fn hello(from: u32, replicas: u32) -> [u8; HELLO_LEN] {
    let mut bytes = [0; HELLO_LEN];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&from.to_le_bytes());
    bytes[8..].copy_from_slice(&replicas.to_le_bytes());
    bytes
}

/// What stands before a batch.
pub(crate) fn head(len: usize, number: u64) -> [u8; HEAD_LEN] {
    let mut bytes = [0; HEAD_LEN];
    bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// The first batch of some bytes: its number and where it lies; `None` when it is not whole.
///
/// # Errors
/// Corruption: it is longer than any may be.
pub(crate) fn batch(bytes: &[u8]) -> Result<Option<(u64, &[u8])>> {
    let (Some(len), Some(number)) = (u32_at(bytes, 0), u64_at(bytes, 8)) else { return Ok(None) };
    let len = len as usize;
    if len > BATCH_LEN_MAX {
        return Err(Error::corruption(format!(
            "batch {number} has {len} bytes, at most {BATCH_LEN_MAX} are possible"
        )));
    }
    Ok(bytes.get(HEAD_LEN..HEAD_LEN + len).map(|batch| (number, batch)))
}

/// The last acknowledgement among some bytes, and how many of them are whole ones.
pub(crate) fn last_ack(bytes: &[u8]) -> Option<(u64, usize)> {
    let whole = bytes.len() / ACK_LEN * ACK_LEN;
    Some((u64_at(bytes, whole.checked_sub(ACK_LEN)?)?, whole))
}
