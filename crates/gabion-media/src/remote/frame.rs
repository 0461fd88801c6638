//! The header of every message, both ways. All numbers are little-endian.
//!
//! ```text
//!   0 magic "GMEM" │ 4 version u8 │ 5 kind u8 │ 6 zero u16 │ 8 generation u64 │ 16 number u64
//!  24 body length u32 │ 28 CRC32C of the body u32 │ 32 CRC32C of bytes 0..32 u32 │ 36 body
//! ```
//!
//! The header has a checksum of its own, so a flipped length is found before anything is reserved
//! or waited for. It covers that of the body: a body under another header is found too.
//! The *generation* is that of the connection: bytes of another connection are told from its own.
//! The *number* is the request's; a reply repeats it, a notice has 0.

use super::message::{ConnectionGeneration, OWNER_LEN_MAX, RequestNumber, TRANSFER_LEN_MAX};
use alloc::format;
use alloc::vec::Vec;
use gabion_base::{Error, Result, crc};

/// Bytes of a header.
pub const HEADER_LEN: usize = 36;
/// Longest body in bytes: the longest transfer with the heads of its parts, or the longest page.
pub const BODY_LEN_MAX: usize = TRANSFER_LEN_MAX + 16 * 1024;
/// Longest body before the greeting is taken.
pub const GREETING_LEN_MAX: usize = 2 * 1024;

const MAGIC: [u8; 4] = *b"GMEM";
const VERSION: u8 = 1;
const WHAT: &str = "memory frame";
const BODY_LEN_AT: usize = 24;
const BODY_CRC_AT: usize = 28;
const HEADER_CRC_AT: usize = 32;

const _: () = assert!(GREETING_LEN_MAX > super::message::TOKEN_LEN_MAX + 64);
const _: () = assert!(BODY_LEN_MAX > 4 * OWNER_LEN_MAX);

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of message in the body.
    pub kind: u8,
    /// The connection.
    pub generation: ConnectionGeneration,
    /// The request.
    pub number: RequestNumber,
    /// Bytes of the body.
    pub body_len: usize,
    body_crc: u32,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// Corruption; unsupported for another version; limit exceeded for a longer body than
    /// `body_len_max`. The connection is of no use then.
    pub fn decode(bytes: &[u8; HEADER_LEN], body_len_max: usize) -> Result<Self> {
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if bytes[..4] != MAGIC {
            return Err(Error::corruption(format!("{WHAT}: it does not begin as one")));
        }
        let (found, expected) = (u32_at(HEADER_CRC_AT), crc::crc32c(&bytes[..HEADER_CRC_AT]));
        if found != expected {
            return Err(Error::corruption(format!(
                "{WHAT}: header checksum {found:#010x}, its bytes have {expected:#010x}"
            )));
        }
        let version = bytes[4];
        if version != VERSION || bytes[6..8] != [0; 2] {
            return Err(Error::unsupported(format!(
                "{WHAT}: it has version {version}, this build speaks {VERSION}"
            )));
        }
        let body_len = u32_at(BODY_LEN_AT) as usize;
        if body_len > body_len_max {
            return Err(Error::limit(format!(
                "{WHAT}: a body of {body_len} bytes, {body_len_max} are possible"
            )));
        }
        Ok(Self {
            kind: bytes[5],
            generation: ConnectionGeneration(u64_at(8)),
            number: RequestNumber(u64_at(16)),
            body_len,
            body_crc: u32_at(BODY_CRC_AT),
        })
    }

    /// Whether `body` is the one that was sent under this header.
    ///
    /// # Errors
    /// Corruption.
    pub fn check_body(&self, body: &[u8]) -> Result<()> {
        assert_eq!(body.len(), self.body_len, "the body is whole");
        let expected = crc::crc32c(body);
        if self.body_crc == expected {
            return Ok(());
        }
        Err(Error::corruption(format!(
            "{WHAT} {}: body checksum {:#010x}, its bytes have {expected:#010x}",
            self.number, self.body_crc
        )))
    }
}

/// A frame that is written into a buffer: its header has a place, its body follows.
pub struct FrameStart(usize);

/// Begins a frame at the end of `out`.
pub fn begin(out: &mut Vec<u8>) -> FrameStart {
    let start = FrameStart(out.len());
    out.extend_from_slice(&[0; HEADER_LEN]);
    start
}

/// Ends the frame: all that was appended since [`begin`] is its body.
///
/// # Panics
/// When the body is longer than [`BODY_LEN_MAX`]: callers check what they are given.
pub fn end(
    out: &mut [u8],
    FrameStart(start): FrameStart,
    kind: u8,
    generation: ConnectionGeneration,
    number: RequestNumber,
) {
    let (head, body) = out[start..].split_at_mut(HEADER_LEN);
    assert!(body.len() <= BODY_LEN_MAX, "a body of {} bytes is too long", body.len());
    head[..4].copy_from_slice(&MAGIC);
    head[4] = VERSION;
    head[5] = kind;
    head[8..16].copy_from_slice(&generation.0.to_le_bytes());
    head[16..24].copy_from_slice(&number.0.to_le_bytes());
    head[BODY_LEN_AT..][..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[BODY_CRC_AT..][..4].copy_from_slice(&crc::crc32c(body).to_le_bytes());
    let sum = crc::crc32c(&head[..HEADER_CRC_AT]);
    head[HEADER_CRC_AT..].copy_from_slice(&sum.to_le_bytes());
}
