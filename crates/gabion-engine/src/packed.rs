//! Packed values: large ones that the head compresses once, in the log record. MemTable, values
//! file, wire and every replica have them as they are there; a reader unpacks.
//!
//! ```text
//!   EntryKind::PackedPut, in batches, MemTables and files:               packed
//!   EntryKind::ExpiringPackedPut, likewise:                expiry_ms u64 │ packed
//!
//!   packed:  codec u8 │ raw length u32 │ what the codec made of the value
//!            1: an LZ4 block; 2: a Zstandard frame ([`BlockCodec`])
//! ```
//!
//! The length of the value is known without unpacking it, so STRLEN reads no more of a value that
//! lies apart than of one that is not packed: its pointer has both lengths. A value that its codec
//! makes less than an eighth shorter stays as it is. A packed value has at least
//! [`LARGE_VALUES_MIN`] bytes, so none is a counter.

use crate::entry::EntryKind;
use crate::pointer::{LARGE_VALUES_MIN, Pointer};
use crate::sst::{BlockCodec, Compression, Compressor, decompress_value};
use alloc::format;
use gabion_base::codec::Reader;
use gabion_base::units::VALUE_LEN_MAX;
use gabion_base::{Error, Result};
use gabion_media::Bytes;

/// Bytes before the raw length: the codec.
const CODEC_LEN: usize = 1;
/// Bytes before what the codec made.
pub const PACKED_HEAD_LEN: usize = CODEC_LEN + 4;
const WHAT: &str = "packed value";

/// A value as it is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed<'a> {
    codec: BlockCodec,
    /// The raw length and what follows it.
    rest: &'a [u8],
}

impl Packed<'_> {
    /// The codec.
    #[must_use]
    pub const fn codec(&self) -> BlockCodec {
        self.codec
    }

    /// The bytes behind that of the codec.
    #[must_use]
    pub const fn rest(&self) -> &[u8] {
        self.rest
    }

    /// Bytes of all of it.
    #[must_use]
    pub const fn len(&self) -> usize {
        CODEC_LEN + self.rest.len()
    }

    /// Never.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// Packs values, with tables that are used again.
pub struct Packer(Compressor);

impl Packer {
    /// A packer, where the codec is one; its level was checked.
    #[must_use]
    pub fn of(codec: Compression) -> Option<Self> {
        Compressor::of(codec).map(Self)
    }

    /// The packed value, if packing is worth it.
    pub fn pack(&mut self, value: &[u8]) -> Option<Packed<'_>> {
        if !(LARGE_VALUES_MIN as usize..=VALUE_LEN_MAX).contains(&value.len()) {
            return None;
        }
        let (rest, codec) = self.0.compress_value(value)?;
        assert!(CODEC_LEN + rest.len() < value.len(), "a packed value is shorter");
        Some(Packed { codec, rest })
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub const fn memory_used(&self) -> usize {
        self.0.memory_used()
    }
}

/// The length of a value as readers get it, of an entry of this kind that has `stored` for it.
///
/// # Errors
/// As [`raw_len`].
pub(crate) fn len_of(kind: EntryKind, stored: &[u8]) -> Result<usize> {
    match kind {
        EntryKind::PackedPut | EntryKind::ExpiringPackedPut => raw_len(stored),
        _ => Ok(stored.len()),
    }
}

/// Whether a value of `raw_len` bytes that is stored as this lies apart from the tree, where values
/// from `large_from` on do: a pointer would be about as long as a packed one that is very short.
pub(crate) const fn is_large(stored: &[u8], raw_len: usize, large_from: u32) -> bool {
    raw_len >= large_from as usize && stored.len() >= LARGE_VALUES_MIN as usize
}

/// The length of the value that is packed in `stored`.
///
/// # Errors
/// Corruption when it cannot be one; unsupported for a codec that this build does not know.
pub fn raw_len(stored: &[u8]) -> Result<usize> {
    read(stored).map(|(_, raw_len, _)| raw_len)
}

fn read(stored: &[u8]) -> Result<(BlockCodec, usize, &[u8])> {
    let mut reader = Reader::new(stored, WHAT);
    let codec = reader.u8()?;
    let codec = BlockCodec::from_byte(codec)
        .filter(|codec| *codec != BlockCodec::None)
        .ok_or_else(|| Error::unsupported(format!("{WHAT}: its codec is {codec}")))?;
    let raw_len = reader.u32()? as usize;
    let least = (LARGE_VALUES_MIN as usize).max(stored.len() + 1);
    if !(least..=VALUE_LEN_MAX).contains(&raw_len) {
        return Err(Error::corruption(format!(
            "{WHAT}: {} bytes are said to be {raw_len}, possible are {least} to {VALUE_LEN_MAX}",
            stored.len()
        )));
    }
    Ok((codec, raw_len, &stored[PACKED_HEAD_LEN..]))
}

/// The value that is packed in `stored`.
///
/// # Errors
/// As [`raw_len`]; corruption when the codec does not find a value of its length.
pub fn unpack(stored: &[u8]) -> Result<Bytes> {
    let (codec, raw_len, compressed) = read(stored)?;
    match decompress_value(codec, compressed, raw_len)? {
        Some(value) => Ok(Bytes::from(value)),
        None => Err(Error::corruption(format!(
            "{WHAT}: {} bytes of {} are no value of {raw_len} bytes",
            compressed.len(),
            codec.as_str()
        ))),
    }
}

/// The value in the bytes to which a pointer leads, which were checked.
///
/// # Errors
/// Corruption that names file and place when they are packed and no value of its length.
pub fn unpack_at(pointer: &Pointer, stored: Bytes) -> Result<Bytes> {
    if !pointer.is_packed() {
        return Ok(stored);
    }
    let &Pointer { file, offset, raw_len, .. } = pointer;
    let unpacked = unpack(&stored).and_then(|value| match value.len() {
        len if len == raw_len as usize => Ok(value),
        len => Err(Error::corruption(format!("{len} bytes unpacked, expected {raw_len}"))),
    });
    unpacked.map_err(|error| error.within(format!("{file} at offset {offset}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;
    use gabion_base::ErrorKind;
    use proptest::prelude::*;

    const CODECS: [Compression; 2] = [Compression::Lz4, Compression::ZSTD];

    fn packed(codec: Compression, value: &[u8]) -> Option<Vec<u8>> {
        let mut packer = Packer::of(codec).unwrap();
        let packed = packer.pack(value)?;
        let mut stored = vec![packed.codec() as u8];
        stored.extend_from_slice(packed.rest());
        assert_eq!(stored.len(), packed.len());
        Some(stored)
    }

    #[test]
    fn a_packed_value_has_its_bytes() {
        let stored = packed(Compression::Lz4, &[b'a'; 100]).unwrap();
        assert_eq!(stored, b"\x01\x64\0\0\0\x1fa\x01\0\x4a\x60aaaaaa");
        assert_eq!(unpack(&stored).unwrap(), [b'a'; 100][..]);
        let zstd = packed(Compression::ZSTD, &[b'a'; 100]).unwrap();
        assert_eq!(zstd[..5], *b"\x02\x64\0\0\0");
        assert_eq!(raw_len(&zstd).unwrap(), 100);
    }

    #[test]
    fn values_of_every_length_come_back_and_those_that_do_not_shrink_stay() {
        let noise: Vec<u8> = (0..4_000_u64)
            .flat_map(|n| gabion_base::crc::crc32c(&n.to_le_bytes()).to_le_bytes())
            .collect();
        for codec in CODECS {
            assert!(packed(codec, &noise).is_none(), "{codec}");
            assert!(packed(codec, &[7; 63]).is_none(), "too short");
            assert!(packed(codec, &vec![7; VALUE_LEN_MAX + 1]).is_none(), "too long");
            for len in [64, 100, 65_535, 65_536, 100_000, 5 << 20, VALUE_LEN_MAX] {
                let value: Vec<u8> = (0..len).map(|n| (n / 7 % 251) as u8).collect();
                if let Some(stored) = packed(codec, &value) {
                    assert!(unpack(&stored).unwrap() == value, "{codec}, {len} bytes");
                    assert_eq!(raw_len(&stored).unwrap(), len);
                } else {
                    assert!(len < 1000, "{codec}, {len} bytes");
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_no_packed_value_are_told() {
        for codec in CODECS {
            let whole = packed(codec, &[b'a'; 1000]).unwrap();
            for len in 0..whole.len() {
                assert!(unpack(&whole[..len]).is_err(), "{codec} cut to {len}");
            }
            let with = |at: usize, byte: u8| {
                let mut other = whole.clone();
                other[at] = byte;
                unpack(&other).unwrap_err()
            };
            assert_eq!(with(0, 0).kind(), ErrorKind::Unsupported);
            assert_eq!(with(0, 9).message(), "packed value: its codec is 9");
            assert_eq!(with(1, 0xe7).kind(), ErrorKind::Corruption, "one byte less");
            assert!(with(4, 1).message().contains("possible are"), "over the limit");
            assert!(with(2, 0).message().contains("no value of 232 bytes"));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = unpack(&bytes);
        }

        #[test]
        fn any_value_comes_back(value in proptest::collection::vec(0..4_u8, 64..3000)) {
            for codec in CODECS {
                if let Some(stored) = packed(codec, &value) {
                    prop_assert_eq!(&unpack(&stored).unwrap()[..], &value[..]);
                }
            }
        }
    }
}
