//! The frame of all messages: of a controller ([`crate::wire`]) and of a store
//! ([`crate::store_wire`]).
//!
//! ```text
//!   u32 bytes that follow | u16 version | content | u32 CRC32C of all before
//! ```

use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::{Error, Result, crc};

/// Bytes of the length.
pub(crate) const LEN_LEN: usize = 4;
pub(crate) const CRC_LEN: usize = 4;

/// One kind of frame.
pub(crate) struct Frame {
    /// In errors.
    pub(crate) what: &'static str,
    pub(crate) version: u16,
    /// Least bytes of version and content.
    pub(crate) head_len: usize,
    /// Most bytes that follow the length.
    pub(crate) len_max: usize,
}

impl Frame {
    /// A message without its content.
    pub(crate) fn begin(&self, capacity: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(capacity);
        out.put_u32(0);
        out.put_u16(self.version);
        out
    }

    /// The message whose content is whole.
    pub(crate) fn end(mut out: Vec<u8>) -> Vec<u8> {
        let len = (out.len() - LEN_LEN + CRC_LEN) as u32;
        out[..LEN_LEN].copy_from_slice(&len.to_le_bytes());
        let sum = crc::crc32c(&out);
        out.put_u32(sum);
        out
    }

    /// The content of the first message of what was received so far, and its length in bytes;
    /// nothing while it is not whole.
    ///
    /// # Errors
    /// Limit exceeded for a length that no message has; corruption; unsupported for another
    /// version.
    pub(crate) fn open<'a>(&self, bytes: &'a [u8]) -> Result<Option<(Reader<'a>, usize)>> {
        let Self { what, len_max, .. } = *self;
        let Some(len) = bytes.first_chunk() else { return Ok(None) };
        let len = u32::from_le_bytes(*len) as usize;
        let least = self.head_len + CRC_LEN;
        if !(least..=len_max).contains(&len) {
            return Err(Error::limit(format!(
                "{what}: {len} bytes, {least} to {len_max} are possible"
            )));
        }
        let Some(whole) = bytes.get(..LEN_LEN + len) else { return Ok(None) };
        let (body, sum) = whole.split_at(LEN_LEN + len - CRC_LEN);
        if crc::crc32c(body).to_le_bytes() != sum {
            return Err(Error::corruption(format!("{what}: bad checksum")));
        }
        let mut r = Reader::new(&body[LEN_LEN..], what);
        match r.u16()? {
            version if version == self.version => Ok(Some((r, whole.len()))),
            version => Err(Error::unsupported(format!(
                "{what}: it has version {version}, this build speaks {}",
                self.version
            ))),
        }
    }
}
