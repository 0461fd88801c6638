//! CRC32C (Castagnoli), the one checksum of every format.
//!
//! A block's checksum covers its bytes *and where they belong*: [`with_lineage`] folds the owner's
//! identity into the checksum, so that a whole, valid block in the wrong place is not taken for the
//! right one (FAULTS.md E6). Checksums of adjacent parts [`combine`] into the checksum of the whole,
//! so one pass over a file serves wire digests, chunks and the file.

use crate::{FileId, GroupId};

/// CRC32C of `bytes`.
#[inline]
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC32C of what `crc` is the checksum of, followed by `bytes`.
#[inline]
#[must_use]
pub fn append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// CRC32C of two adjacent parts from the CRC of each and the second's length in bytes.
#[must_use]
pub fn combine(first: u32, second: u32, second_len: u64) -> u32 {
    crc32c::crc32c_combine(first, second, second_len as usize)
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
        assert_ne!(base, with_lineage(7, GroupId(1), FileId::log_segment(2), 3));
        assert_ne!(base, with_lineage(7, GroupId(1), FileId::sst(3), 3));
        assert_ne!(base, with_lineage(7, GroupId(1), FileId::sst(2), 4));
    }

    proptest! {
        #[test]
        fn parts_combine_into_the_whole(bytes: Vec<u8>, cut: usize) {
            let (a, b) = bytes.split_at(if bytes.is_empty() { 0 } else { cut % bytes.len() });
            prop_assert_eq!(combine(crc32c(a), crc32c(b), b.len() as u64), crc32c(&bytes));
            prop_assert_eq!(append(crc32c(a), b), crc32c(&bytes));
        }
    }
}
