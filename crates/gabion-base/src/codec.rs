//! Little-endian byte codecs. [`Reader`] never reads past its input and never reserves memory for
//! a length that the input does not hold.
//!
//! Extensible structures use typed fields: `tag u16 | flags u16 | length u32 | bytes`. Flag bit 0
//! marks a field as *critical*: a reader that does not know it must refuse the whole structure. It
//! skips an unknown field without the flag, so an older build can read a newer one's bytes. See
//! [`put_field`] and [`Fields`].

use crate::{Error, Result};
use alloc::format;
use alloc::vec::Vec;

/// Field flag: a reader that does not know the tag must refuse the structure.
pub const FIELD_CRITICAL: u16 = 1;
/// Bytes before a field's payload.
pub const FIELD_HEADER_LEN: usize = 8;

/// Appends little-endian values to a byte vector.
pub trait Put {
    /// Appends one byte.
    fn put_u8(&mut self, value: u8);
    /// Appends 2 bytes.
    fn put_u16(&mut self, value: u16);
    /// Appends 4 bytes.
    fn put_u32(&mut self, value: u32);
    /// Appends 8 bytes.
    fn put_u64(&mut self, value: u64);
    /// Appends an unsigned LEB128 number: 1 to 10 bytes, always the shortest form.
    fn put_varint(&mut self, value: u64);
    /// Appends raw bytes.
    fn put_bytes(&mut self, bytes: &[u8]);
    /// Appends a varint length and the bytes.
    fn put_prefixed(&mut self, bytes: &[u8]);
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
    fn put_prefixed(&mut self, bytes: &[u8]) {
        self.put_varint(bytes.len() as u64);
        self.extend_from_slice(bytes);
    }
}

/// The bytes that [`Put::put_varint`] takes for `value`.
#[must_use]
pub const fn varint_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Appends a typed field.
///
/// # Panics
/// When `payload` is 4 GiB or more: callers keep far below.
pub fn put_field(out: &mut Vec<u8>, tag: u16, flags: u16, payload: &[u8]) {
    out.put_u16(tag);
    out.put_u16(flags);
    out.put_u32(u32::try_from(payload.len()).expect("a field is far below 4 GiB"));
    out.put_bytes(payload);
}

/// Reads values off the front of a byte slice. Errors name `what` (the structure) and the place.
#[derive(Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    start_len: usize,
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// A reader over `bytes`, which are a `what` (used in error messages).
    #[must_use]
    pub const fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { bytes, start_len: bytes.len(), what }
    }

    /// Bytes not read yet.
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes read so far.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.start_len - self.bytes.len()
    }

    /// Whether everything has been read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The rest, without reading it.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// Corruption when fewer are left.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        match self.bytes.split_at_checked(len) {
            Some((head, tail)) => {
                self.bytes = tail;
                Ok(head)
            }
            None => Err(self.short(len)),
        }
    }

    /// The next `N` bytes as an array.
    ///
    /// # Errors
    /// Corruption when fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.bytes.split_first_chunk::<N>() {
            Some((head, tail)) => {
                self.bytes = tail;
                Ok(*head)
            }
            None => Err(self.short(N)),
        }
    }

    /// The next byte.
    ///
    /// # Errors
    /// Corruption at the end of the input.
    pub fn u8(&mut self) -> Result<u8> {
        self.array::<1>().map(|[b]| b)
    }

    /// The next 2 bytes as a number.
    ///
    /// # Errors
    /// Corruption when fewer are left.
    pub fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next 4 bytes as a number.
    ///
    /// # Errors
    /// Corruption when fewer are left.
    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next 8 bytes as a number.
    ///
    /// # Errors
    /// Corruption when fewer are left.
    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// An unsigned LEB128 number in its shortest form.
    ///
    /// # Errors
    /// Corruption when it is cut off, over 64 bits or longer than it need be. A value has exactly
    /// one encoding, so that equal structures have equal bytes.
    #[inline]
    pub fn varint(&mut self) -> Result<u64> {
        if let Some((&first, tail)) = self.bytes.split_first()
            && first < 0x80
        {
            self.bytes = tail;
            return Ok(u64::from(first));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for (i, &byte) in self.bytes.iter().take(10).enumerate() {
            if i == 9 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                if byte == 0 {
                    break;
                }
                self.bytes = self.bytes.get(i + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        Err(Error::corruption(format!("{}: bad number at byte {}", self.what, self.offset())))
    }

    /// A varint length of at most `len_max` and that many bytes.
    ///
    /// # Errors
    /// Corruption when the length is over the limit or over what is left.
    pub fn prefixed(&mut self, len_max: usize) -> Result<&'a [u8]> {
        let len = self.varint()?;
        if len > len_max as u64 {
            return Err(Error::corruption(format!(
                "{}: length {len} at byte {} is over the limit of {len_max}",
                self.what,
                self.offset()
            )));
        }
        self.bytes(len as usize)
    }

    /// Succeeds when everything has been read.
    ///
    /// # Errors
    /// Corruption when bytes are left over.
    pub fn finish(self) -> Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        Err(Error::corruption(format!(
            "{}: {} bytes left over after byte {}",
            self.what,
            self.bytes.len(),
            self.offset()
        )))
    }

    fn short(&self, wanted: usize) -> Error {
        Error::corruption(format!(
            "{}: {wanted} bytes wanted at byte {}, {} left",
            self.what,
            self.offset(),
            self.bytes.len()
        ))
    }
}

/// One typed field of an extensible structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its meaning.
    pub tag: u16,
    /// Whether a reader that does not know the tag must refuse the structure.
    pub critical: bool,
    /// Its payload.
    pub payload: &'a [u8],
}

impl Field<'_> {
    /// Skips a tag that this build does not know, or refuses it.
    ///
    /// # Errors
    /// Unsupported when the field is critical.
    pub fn skip_unknown(&self, what: &str) -> Result<()> {
        if !self.critical {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "{what}: field {} is unknown to this version and marked as critical",
            self.tag
        )))
    }
}

/// The typed fields of a structure, in order.
pub struct Fields<'a>(Reader<'a>);

impl<'a> Fields<'a> {
    /// The fields in `bytes`, which are a `what`.
    #[must_use]
    pub const fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self(Reader::new(bytes, what))
    }

    /// The next field, or nothing at the end.
    ///
    /// # Errors
    /// Corruption when a field is cut off or has an unknown flag.
    pub fn next_field(&mut self) -> Result<Option<Field<'a>>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.0.u16()?;
        let flags = self.0.u16()?;
        if flags & !FIELD_CRITICAL != 0 {
            return Err(Error::corruption(format!(
                "{}: field {tag} has unknown flags {flags:#06x}",
                self.0.what
            )));
        }
        let len = self.0.u32()? as usize;
        let payload = self.0.bytes(len)?;
        Ok(Some(Field { tag, critical: flags & FIELD_CRITICAL != 0, payload }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_survive_encoding_in_the_length_foretold(value: u64) {
            let mut out = Vec::new();
            out.put_varint(value);
            prop_assert_eq!(out.len(), varint_len(value));
            let mut reader = Reader::new(&out, "test");
            prop_assert_eq!(reader.varint().unwrap(), value);
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes, "test");
            while reader.varint().is_ok() {}
            let mut fields = Fields::new(&bytes, "test");
            while let Ok(Some(_)) = fields.next_field() {}
            let _ = Reader::new(&bytes, "test").prefixed(10);
        }
    }

    #[test]
    fn a_number_has_one_encoding_only() {
        for bytes in [&[0x80, 0x00][..], &[0xff; 11], &[0x80]] {
            assert!(Reader::new(bytes, "test").varint().is_err(), "{bytes:?}");
        }
        let mut max = vec![0xff; 9];
        max.push(1);
        assert_eq!(Reader::new(&max, "test").varint().unwrap(), u64::MAX);
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_any_byte_is_taken() {
        let mut out = Vec::new();
        out.put_varint(u64::MAX);
        let error = Reader::new(&out, "edit").prefixed(256).unwrap_err();
        assert_eq!(
            error.message(),
            "edit: length 18446744073709551615 at byte 10 is over the limit of 256"
        );
    }

    #[test]
    fn an_unknown_field_is_skipped_unless_it_is_critical() {
        let mut out = Vec::new();
        put_field(&mut out, 900, 0, b"may be ignored");
        put_field(&mut out, 901, FIELD_CRITICAL, b"must be known");
        let mut fields = Fields::new(&out, "edit");
        fields.next_field().unwrap().unwrap().skip_unknown("edit").unwrap();
        let error = fields.next_field().unwrap().unwrap().skip_unknown("edit").unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Unsupported);
        assert!(fields.next_field().unwrap().is_none());
    }
}
