//! Pointers: where a value lies that is not beside its key.
//!
//! ```text
//!   EntryKind::Pointer, in files:           pointer
//!   EntryKind::ExpiringPointer, in files:   expiry_ms u64 | pointer
//!
//!   pointer:  kind u8 │ high var │ low var │ offset var │ length var │ raw length var │ crc u32
//!             bits 0–3: kind of the file                           only where bit 7 of kind is
//!                       high and low half of its number            set: the value is packed
//!                                                                  there ([`crate::packed`])
//! ```
//!
//! 15 bytes usually, at most [`POINTER_LEN_MAX`]. The file is named in full, so a compaction that
//! leaves a value where it is copies its pointer as it is. A pointer is enough to read the value:
//! one positioned read of `length` bytes, whose CRC32C it has. It is the same for a value in a
//! values file ([`crate::values`]) and for one in a segment of the log.

use crate::entry::Trailer;
use crate::expiry::expiry_of;
use crate::file::{FILE_LEN_MAX, FileRange};
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::crc::crc32c;
use gabion_base::units::VALUE_LEN_MAX;
use gabion_base::{Error, FileId, FileKind, Result};

/// The least length from which on values may lie apart: a pointer takes a quarter of it.
pub const LARGE_VALUES_MIN: u32 = 64;
/// Longest pointer. Lengths and offsets have 32 bits at most.
pub const POINTER_LEN_MAX: usize = 1 + 5 * 5 + 4;

/// The value is packed: its raw length follows its length.
const PACKED: u8 = 0x80;
const WHAT: &str = "pointer";

/// The place of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// A values file, or a segment of the log.
    pub file: FileId,
    /// Offset of its first byte in the file.
    pub offset: u32,
    /// Its length there, in bytes.
    pub len: u32,
    /// The length of the value as readers get it, in bytes.
    pub raw_len: u32,
    /// CRC32C of its bytes in the file.
    pub crc: u32,
}

impl Pointer {
    /// Appends the pointer as it is stored.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        let is_packed = self.raw_len != self.len;
        out.put_u8(self.file.kind as u8 | if is_packed { PACKED } else { 0 });
        out.put_varint(self.file.number >> 32);
        out.put_varint(self.file.number & u64::from(u32::MAX));
        out.put_varint(self.offset.into());
        out.put_varint(self.len.into());
        if is_packed {
            out.put_varint(self.raw_len.into());
        }
        out.put_u32(self.crc);
    }

    /// The pointer that `stored` is.
    ///
    /// # Errors
    /// Corruption when it is none, or leads to where no value can be; unsupported for a value that
    /// in a kind of file that this build does not know.
    pub fn decode(stored: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(stored, WHAT);
        let head = reader.u8()?;
        let (is_packed, head) = (head & PACKED != 0, head & !PACKED);
        let kind = FileKind::from_byte(head).filter(|kind| *kind != FileKind::Sst);
        let kind =
            kind.ok_or_else(|| Error::unsupported(format!("pointer into a file of kind {head}")))?;
        let (high, low) = (half(&mut reader)?, half(&mut reader)?);
        let number = u64::from(high) << 32 | u64::from(low);
        let (offset, len) = (half(&mut reader)?, half(&mut reader)?);
        let raw_len = if is_packed { half(&mut reader)? } else { len };
        let crc = reader.u32()?;
        reader.finish()?;
        let file = FileId { kind, number };
        let end = u64::from(offset) + u64::from(len);
        if len == 0 || len as usize > VALUE_LEN_MAX || end > FILE_LEN_MAX {
            return Err(Error::corruption(format!("pointer to {len} bytes at {offset} of {file}")));
        }
        if raw_len as usize > VALUE_LEN_MAX || is_packed && raw_len <= len {
            return Err(Error::corruption(format!(
                "pointer to {len} bytes at {offset} of {file}, said to be {raw_len} unpacked"
            )));
        }
        Ok(Self { file, offset, len, raw_len, crc })
    }

    /// The pointer of an entry, which is one, and when its value expires.
    ///
    /// # Errors
    /// As [`Self::decode`]; corruption when it is shorter than its expiry.
    pub(crate) fn of_entry(trailer: Trailer, stored: &[u8]) -> Result<(Self, Option<u64>)> {
        debug_assert!(trailer.kind().is_pointer(), "{trailer:?} has its value beside it");
        let (expires_ms, at) = expiry_of(trailer, stored)?;
        let pointer = Self::decode(&stored[at..])
            .map_err(|error| error.within(format!("entry {}", trailer.sequence())))?;
        Ok((pointer, expires_ms))
    }

    /// Whether the value is packed where it lies.
    #[must_use]
    pub const fn is_packed(&self) -> bool {
        self.raw_len != self.len
    }

    /// The range to be read.
    #[must_use]
    pub const fn range(&self) -> FileRange {
        FileRange { file: self.file, offset: self.offset as u64, len: self.len as usize }
    }

    /// Checks that `value` is what the pointer leads to.
    ///
    /// # Errors
    /// Corruption that names the file, the place and both checksums.
    pub fn check(&self, value: &[u8]) -> Result<()> {
        let Self { file, offset, len, crc, .. } = *self;
        let found = crc32c(value);
        if value.len() == len as usize && found == crc {
            return Ok(());
        }
        let found_len = value.len();
        Err(Error::corruption(format!(
            "{file} at offset {offset}: a value of {found_len} bytes has checksum {found:08x}, \
             expected {len} bytes and {crc:08x}"
        )))
    }
}

fn half(reader: &mut Reader<'_>) -> Result<u32> {
    let number = reader.varint()?;
    u32::try_from(number)
        .map_err(|_| Error::corruption(format!("pointer: {number} is over the limit of 32 bits")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::{ErrorKind, ShardId, Term};
    use proptest::prelude::*;

    fn values(number: u64) -> FileId {
        FileId { kind: FileKind::Values, number }
    }

    fn encoded(pointer: &Pointer) -> Vec<u8> {
        let mut out = Vec::new();
        pointer.encode_to(&mut out);
        out
    }

    #[test]
    fn a_pointer_has_its_bytes_and_is_short() {
        let file = values(FileId::first_number(Term(3)) + 7_000);
        let pointer =
            Pointer { file, offset: 0x00a1_b2c3, len: 1_000, raw_len: 1_000, crc: 0xdead_beef };
        let bytes = encoded(&pointer);
        let expected =
            [3, 3, 0xd8, 0x36, 0xc3, 0xe5, 0x86, 0x05, 0xe8, 0x07, 0xef, 0xbe, 0xad, 0xde];
        assert_eq!(bytes, expected);
        assert_eq!(Pointer::decode(&bytes).unwrap(), pointer);
        let packed = Pointer { raw_len: 4_000, ..pointer };
        let expected = [&[0x83][..], &expected[1..10], &[0xa0, 0x1f], &expected[10..]].concat();
        assert_eq!(encoded(&packed), expected);
        assert_eq!(Pointer::decode(&expected).unwrap(), packed);
        let segment = FileId::log_segment(ShardId(0), 70_000);
        let pointer = Pointer { file: segment, ..pointer };
        assert_eq!(Pointer::decode(&encoded(&pointer)).unwrap(), pointer);
        let most =
            Pointer { file: values(u64::MAX), offset: u32::MAX, len: u32::MAX, raw_len: 1, crc: 0 };
        assert!(encoded(&most).len() <= POINTER_LEN_MAX);
    }

    #[test]
    fn pointers_that_lead_to_no_value_are_refused() {
        let good = Pointer { file: values(9), offset: 64, len: 100, raw_len: 100, crc: 1 };
        let long = VALUE_LEN_MAX as u32 + 1;
        let broken = [
            (Pointer { len: 0, raw_len: 0, ..good }, ErrorKind::Corruption),
            (Pointer { len: long, raw_len: long, ..good }, ErrorKind::Corruption),
            (Pointer { offset: FILE_LEN_MAX as u32 - 99, ..good }, ErrorKind::Corruption),
            (Pointer { file: FileId::sst(9), ..good }, ErrorKind::Unsupported),
            (Pointer { raw_len: 99, ..good }, ErrorKind::Corruption),
            (Pointer { raw_len: long, ..good }, ErrorKind::Corruption),
        ];
        for (pointer, kind) in broken {
            assert_eq!(
                Pointer::decode(&encoded(&pointer)).unwrap_err().kind(),
                kind,
                "{pointer:?}"
            );
        }
        let whole = encoded(&good);
        for len in 0..whole.len() {
            assert!(Pointer::decode(&whole[..len]).is_err(), "cut to {len} bytes");
        }
        assert!(Pointer::decode(&[&whole[..], &[0]].concat()).is_err());
    }

    #[test]
    fn another_value_is_told_with_its_place_and_both_checksums() {
        let pointer =
            Pointer { file: values(9), offset: 64, len: 9, raw_len: 9, crc: crc32c(b"123456789") };
        pointer.check(b"123456789").unwrap();
        let error = pointer.check(b"123456780").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert!(error.message().contains("000009.val at offset 64"), "{error}");
        assert!(error.message().contains("expected 9 bytes and e3069283"), "{error}");
        assert!(pointer.check(b"12345678").is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_a_pointer_has_one_form(bytes: Vec<u8>) {
            if let Ok(pointer) = Pointer::decode(&bytes) {
                prop_assert_eq!(encoded(&pointer), bytes);
            }
        }
    }
}
