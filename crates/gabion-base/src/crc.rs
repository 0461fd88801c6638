//! CRC32C (Castagnoli), the one checksum of every format.
//!
//! A block's checksum covers its bytes *and their place*: [`with_lineage`] folds the owner's
//! identity into the checksum, so that a whole, valid block in the wrong place is not taken for the
//! right one (docs/faults.md E6). Checksums of adjacent parts [`combine`] into the checksum of the
//! whole, so one pass over a file serves wire digests, chunks and the file.

use crate::{FileId, GroupId};
use crc_fast::{CrcAlgorithm, Digest};

/// CRC32C of `bytes`.
#[inline]
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC32C of the bytes behind the checksum `crc`, followed by `bytes`.
#[inline]
#[must_use]
pub fn append(crc: u32, bytes: &[u8]) -> u32 {
    // A digest starts from a register, which is the complement of a checksum.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// CRC32C of two adjacent parts from the CRC of each and the second's length in bytes.
///
/// Cheap (about 0.1 µs when the length is a power of two, 2 µs at worst): edits name files by chunk
/// checksums that are combined at every decoding.
#[must_use]
pub const fn combine(first: u32, second: u32, second_len: u64) -> u32 {
    // Appending n zero bytes multiplies the checksum's polynomial by x^(8n).
    let mut shift = ONE;
    let mut len = second_len;
    let mut power = 3;
    while len != 0 {
        if len & 1 == 1 {
            shift = multiply(X_POWERS[power], shift);
        }
        len >>= 1;
        power += 1;
    }
    multiply(shift, first) ^ second
}

/// Castagnoli's polynomial; as in all of these numbers the highest bit is the coefficient of x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// x^(2^n) for every n that a length in bits can have.
const X_POWERS: [u32; 67] = {
    let mut powers = [ONE >> 1; 67];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = multiply(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
};

/// The product of two polynomials, modulo Castagnoli's.
const fn multiply(a: u32, b: u32) -> u32 {
    let mut product = 0;
    let mut shifted = b;
    let mut n = 0;
    while n < 32 {
        product ^= shifted & 0u32.wrapping_sub(a >> (31 - n) & 1);
        shifted = shifted >> 1 ^ (POLYNOMIAL & 0u32.wrapping_sub(shifted & 1));
        n += 1;
    }
    product
}

/// The stored checksum of a block: its CRC32C with the CRC32C of its lineage folded in.
///
/// `crc` is the CRC32C of the block's bytes, `offset` its first byte's offset in the file.
#[must_use]
pub fn with_lineage(crc: u32, group: GroupId, file: FileId, offset: u64) -> u32 {
    let mut lineage = [0u8; 25];
    lineage[0..8].copy_from_slice(&group.get().to_le_bytes());
    lineage[8] = file.kind as u8;
    lineage[9..17].copy_from_slice(&file.number.to_le_bytes());
    lineage[17..25].copy_from_slice(&offset.to_le_bytes());
    crc ^ crc32c(&lineage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardId;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn the_standard_check_value_holds() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn lineage_tells_group_kind_number_and_offset_apart() {
        let base = with_lineage(7, GroupId(1), FileId::sst(2), 3);
        assert_ne!(base, with_lineage(7, GroupId(2), FileId::sst(2), 3));
        assert_ne!(base, with_lineage(7, GroupId(1), FileId::log_segment(ShardId::ZERO, 2), 3));
        assert_ne!(base, with_lineage(7, GroupId(1), FileId::sst(3), 3));
        assert_ne!(base, with_lineage(7, GroupId(1), FileId::sst(2), 4));
    }

    #[test]
    fn long_parts_combine_as_the_library_says() {
        for len in [1, 4096, 1 << 20, (1 << 31) + 12_345, u64::MAX >> 8] {
            let expected = crc32c::crc32c_combine(0x1234_5678, 0x9abc_def0, len as usize);
            assert_eq!(combine(0x1234_5678, 0x9abc_def0, len), expected, "{len}");
        }
    }

    /// At every length around those where the library changes its method.
    #[test]
    fn another_implementation_agrees() {
        let bytes: Vec<u8> =
            (0u32..1 << 20).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        for len in (0..3000).chain([65_536, 1 << 20]) {
            let start = len % 17 % (bytes.len() - len + 1);
            let part = &bytes[start..start + len];
            assert_eq!(crc32c(part), crc32c::crc32c(part), "{len} bytes");
            let before = len as u32 * 7;
            assert_eq!(append(before, part), crc32c::crc32c_append(before, part), "{len} bytes");
        }
    }

    /// The register after one more byte, by the definition.
    fn portable(crc: u32, byte: u8) -> u32 {
        let shift = |crc: u32| crc >> 1 ^ (POLYNOMIAL & 0u32.wrapping_sub(crc & 1));
        (0..8).fold(crc ^ u32::from(byte), |crc, _| shift(crc))
    }

    /// A checksum is the same whatever instructions the processor has, wherever the bytes lie.
    /// docs/faults.md: E13
    #[test]
    fn a_portable_implementation_agrees_at_every_length_and_alignment() {
        const LINE: usize = 64;
        let bytes: Vec<u8> =
            (0u32..4 << 10).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        for start in 0..LINE {
            let part = &bytes[start..bytes.len() - LINE];
            let mut register = !0;
            for (len, byte) in part.iter().enumerate() {
                assert_eq!(crc32c(&part[..len]), !register, "{len} bytes from {start} on");
                register = portable(register, *byte);
            }
        }
    }

    proptest! {
        /// docs/faults.md: E13
        #[test]
        fn a_portable_implementation_agrees_on_any_bytes_in_two_parts(
            bytes in prop::collection::vec(any::<u8>(), 0..20_000),
            cut: usize,
        ) {
            let expected = !bytes.iter().fold(!0, |crc, byte| portable(crc, *byte));
            let (a, b) = bytes.split_at(cut % (bytes.len() + 1));
            prop_assert_eq!(append(crc32c(a), b), expected);
            prop_assert_eq!(combine(crc32c(a), crc32c(b), b.len() as u64), expected);
        }

        #[test]
        fn parts_combine_into_the_whole(bytes: Vec<u8>, cut: usize) {
            let (a, b) = bytes.split_at(if bytes.is_empty() { 0 } else { cut % bytes.len() });
            prop_assert_eq!(combine(crc32c(a), crc32c(b), b.len() as u64), crc32c(&bytes));
            prop_assert_eq!(append(crc32c(a), b), crc32c(&bytes));
        }
    }
}
