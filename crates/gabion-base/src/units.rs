//! Sizes and limits. Every cap on input that comes from a wire or a disk stands here, in bytes
//! unless the name says otherwise.

/// 1,024 bytes.
pub const KIB: u64 = 1 << 10;
/// 1,024 KiB.
pub const MIB: u64 = 1 << 20;
/// 1,024 MiB.
pub const GIB: u64 = 1 << 30;

/// The unit of device I/O: files, placement records and log drains are rounded up to it.
pub const BLOCK_LEN: usize = 4096;
/// Bytes of file data in one slot of a pool.
pub const SLOT_LEN: u64 = 2 * MIB;
/// Unit of file checksums and of shipping: each chunk has a CRC32C of its own.
pub const CHUNK_LEN: u64 = MIB;
/// Largest transfer of one command to a medium or a target.
pub const TRANSFER_LEN_MAX: usize = MIB as usize;

/// Largest user key.
pub const KEY_LEN_MAX: usize = 64 * 1024;
/// Largest value.
pub const VALUE_LEN_MAX: usize = 8 * MIB as usize;
/// Largest log record, header and extensions included; equals the length of a log segment.
pub const RECORD_LEN_MAX: usize = 16 * MIB as usize;
/// Most operations in one log record.
pub const RECORD_OPS_MAX: usize = 65_536;
/// Key bounds in edits are cut to this many bytes (a lower bound down, an upper bound up), unless
/// the cut bounds would not tell a file from the next.
pub const EDIT_KEY_BOUND_LEN_MAX: usize = 256;
/// Largest encoded edit.
pub const EDIT_LEN_MAX: usize = MIB as usize;
/// Largest SST block after decompression.
pub const SST_BLOCK_LEN_MAX: usize = 4 * MIB as usize;
/// Largest ratio of an SST block's length to its compressed length.
pub const COMPRESSION_RATIO_MAX: usize = 64;
/// Largest control frame between nodes that carries no log record.
pub const CONTROL_FRAME_LEN_MAX: usize = MIB as usize;

/// `len` rounded up to whole blocks of [`BLOCK_LEN`].
#[inline]
#[must_use]
pub const fn round_up_to_block(len: u64) -> u64 {
    len.div_ceil(BLOCK_LEN as u64) * BLOCK_LEN as u64
}

const _: () = assert!(SLOT_LEN.is_multiple_of(CHUNK_LEN));
const _: () = assert!(CHUNK_LEN.is_multiple_of(BLOCK_LEN as u64));
const _: () = assert!((RECORD_LEN_MAX as u64).is_multiple_of(SLOT_LEN));
