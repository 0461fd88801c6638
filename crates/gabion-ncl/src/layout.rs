//! The bytes of a file at a peer.
//!
//! ```text
//!   part 0 of a file: one region            part 1: another region      …
//!   ┌ ring: 64 cells of 64 bytes ┬ data ┐   ┌ data ──────────────────┐
//!   │ cell of record i at i % 64 │ image│   │ the image goes on here │
//!   └────────────────────────────┴──────┘   └────────────────────────┘
//!
//!   cell, little-endian
//!    0 magic u32     4 version u8 = 1   5 kind u8    6 zero u16
//!    8 file u64     16 term u64        24 number u64
//!   32 offset u64   40 length u32      44 CRC32C of the data u32
//!   48 length of the file after it u64
//!   56 ordinal of the record in its file u32
//!   60 CRC32C of the owner's name and bytes 0 to 59
//! ```
//!
//! The image has each byte at its own offset, so that a write anywhere is a write anywhere there.
//! A record is a chain: its data, then its cell. A cell that is whole proves that the data before
//! it landed, and says how long the file is; nothing is ever inferred from the image.
//!
//! Numbers count the records of an application, over all its files and instances, from 1. A peer
//! takes records in their order, so its highest number says which it has. The term is that of the
//! instance that wrote the cell: (term, number) orders copies.

use crate::number::{FileNumber, Number};
use gabion_base::{Term, crc};

/// Bytes of a cell.
pub const CELL_LEN: usize = 64;
/// Cells of a ring.
pub const RING_CELLS: u32 = 64;
/// Bytes of a ring, which part 0 begins with.
pub const RING_LEN: u64 = CELL_LEN as u64 * RING_CELLS as u64;

const MAGIC: u32 = 0x6c63_6e67;
const VERSION: u8 = 1;

/// A kind of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Bytes at an offset.
    Write = 1,
    /// Another length.
    Truncate = 2,
    /// Nothing: a copy was made, up to this number.
    Copy = 3,
}

/// The cell of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// The kind of record.
    pub kind: Kind,
    /// The file.
    pub file: FileNumber,
    /// The term of the instance that wrote this cell.
    pub term: Term,
    /// The record.
    pub number: Number,
    /// First byte of the data in the file.
    pub offset: u64,
    /// Bytes of the data.
    pub len: u32,
    /// Their CRC32C.
    pub data_crc: u32,
    /// Bytes of the file after the record.
    pub file_len: u64,
    /// Ordinal of the record in its file.
    pub ordinal: u32,
}

/// A seed of checksums of cells: no cell of one owner is one of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerCrc(u32);

impl OwnerCrc {
    /// Of an owner's name.
    #[must_use]
    pub fn new(owner: &str) -> Self {
        Self(crc::crc32c(owner.as_bytes()))
    }

    /// Of its word.
    #[must_use]
    pub const fn of_word(word: u32) -> Self {
        Self(word)
    }

    /// The seed as a word.
    #[must_use]
    pub const fn word(self) -> u32 {
        self.0
    }
}

impl Cell {
    /// Offset of the cell in part 0.
    #[must_use]
    pub const fn place(&self) -> u64 {
        (self.ordinal % RING_CELLS) as u64 * CELL_LEN as u64
    }

    /// The cell in bytes.
    #[must_use]
    pub fn encode(&self, owner: OwnerCrc) -> [u8; CELL_LEN] {
        let mut out = [0; CELL_LEN];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4] = VERSION;
        out[5] = self.kind as u8;
        out[8..16].copy_from_slice(&self.file.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.term.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.number.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.offset.to_le_bytes());
        out[40..44].copy_from_slice(&self.len.to_le_bytes());
        out[44..48].copy_from_slice(&self.data_crc.to_le_bytes());
        out[48..56].copy_from_slice(&self.file_len.to_le_bytes());
        out[56..60].copy_from_slice(&self.ordinal.to_le_bytes());
        let sum = crc::append(owner.0, &out[..60]);
        out[60..64].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// The cell at `place` of the ring of `file`, if it is whole, of this owner and belongs there.
    #[must_use]
    pub fn decode(
        bytes: &[u8; CELL_LEN],
        owner: OwnerCrc,
        file: FileNumber,
        place: u64,
    ) -> Option<Self> {
        let u32_at = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let is_whole = u32_at(60) == crc::append(owner.0, &bytes[..60]);
        if !is_whole || u32_at(0) != MAGIC || bytes[4] != VERSION {
            return None;
        }
        let kind = match bytes[5] {
            1 => Kind::Write,
            2 => Kind::Truncate,
            3 => Kind::Copy,
            _ => return None,
        };
        let cell = Self {
            kind,
            file: FileNumber(u64_at(8)),
            term: Term(u64_at(16)),
            number: Number(u64_at(24)),
            offset: u64_at(32),
            len: u32_at(40),
            data_crc: u32_at(44),
            file_len: u64_at(48),
            ordinal: u32_at(56),
        };
        (cell.file == file && cell.place() == place).then_some(cell)
    }
}

/// The whole cells of a ring, the newest first.
#[must_use]
pub fn cells(ring: &[u8], owner: OwnerCrc, file: FileNumber) -> alloc::vec::Vec<Cell> {
    let (all, _) = ring.as_chunks::<CELL_LEN>();
    let places = (0u64..).step_by(CELL_LEN);
    let whole =
        all.iter().zip(places).filter_map(|(bytes, at)| Cell::decode(bytes, owner, file, at));
    let mut cells: alloc::vec::Vec<Cell> = whole.collect();
    cells.sort_unstable_by_key(|cell| core::cmp::Reverse((cell.term, cell.number)));
    cells
}

/// A piece of a range of a file: where it lies at every peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The part.
    pub part: u32,
    /// First byte in the part's region.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Cuts `len` bytes from `offset` at the borders of parts, which have `parts` bytes of data each.
/// None when the range reaches past the last.
#[must_use]
pub fn pieces(parts: &[u64], offset: u64, len: u64) -> Option<alloc::vec::Vec<Piece>> {
    let end = offset.checked_add(len)?;
    let (mut found, mut begin) = (alloc::vec::Vec::new(), 0u64);
    for (part, &bytes) in (0u32..).zip(parts) {
        let (from, to) = (offset.max(begin), end.min(begin + bytes));
        if from < to {
            let ring = if part == 0 { RING_LEN } else { 0 };
            found.push(Piece { part, offset: from - begin + ring, len: to - from });
        }
        begin += bytes;
    }
    (end <= begin).then_some(found)
}

/// The offset up to which a file with these parts can be written, and that up to which it can grow
/// without another part: the next one is asked for before the last one is full.
#[must_use]
pub fn room(parts: &[u64]) -> (u64, u64) {
    let (capacity, last) = (parts.iter().sum(), parts.last().copied().unwrap_or(0));
    (capacity, capacity - last / 4)
}

/// The first parts that have `len` bytes: one at least.
pub(crate) fn parts_of(parts: &[u64], len: u64) -> usize {
    let ends = parts.iter().scan(0u64, |end, part| {
        *end += part;
        Some(*end)
    });
    (ends.take_while(|end| *end < len).count() + 1).min(parts.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn cell() -> Cell {
        Cell {
            kind: Kind::Write,
            file: FileNumber(3),
            term: Term(5),
            number: Number(9),
            offset: 1 << 33,
            len: 7,
            data_crc: 0xdead_beef,
            file_len: (1 << 33) + 7,
            ordinal: 70,
        }
    }

    /// docs/faults.md: N10
    #[test]
    fn a_cell_is_whole_only_with_every_bit_its_owner_its_file_and_its_place() {
        let owner = OwnerCrc::new("app");
        let bytes = cell().encode(owner);
        let decode =
            |bytes: &[u8; CELL_LEN], owner| Cell::decode(bytes, owner, FileNumber(3), 6 * 64);
        assert_eq!(decode(&bytes, owner), Some(cell()));
        assert_eq!(decode(&bytes, OwnerCrc::new("other")), None);
        assert_eq!(Cell::decode(&bytes, owner, FileNumber(4), 6 * 64), None);
        assert_eq!(Cell::decode(&bytes, owner, FileNumber(3), 7 * 64), None);
        for bit in 0..CELL_LEN * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&flipped, owner), None, "bit {bit}");
        }
    }

    #[test]
    fn a_cell_has_the_bytes_that_are_drawn() {
        let bytes = cell().encode(OwnerCrc::new("app"));
        let drawn = "676e636c01010000030000000000000005000000000000000900000000000000\
                     000000000200000007000000efbeadde070000000200000046000000";
        let hex: alloc::string::String =
            bytes[..60].iter().map(|b| alloc::format!("{b:02x}")).collect();
        assert_eq!(hex, drawn.replace(' ', ""));
    }

    #[test]
    fn a_range_is_cut_at_the_borders_of_parts() {
        let parts = [100, 50, 1000];
        assert_eq!(pieces(&parts, 0, 10), Some(vec![Piece { part: 0, offset: RING_LEN, len: 10 }]));
        let expected = vec![
            Piece { part: 0, offset: RING_LEN + 90, len: 10 },
            Piece { part: 1, offset: 0, len: 50 },
            Piece { part: 2, offset: 0, len: 5 },
        ];
        assert_eq!(pieces(&parts, 90, 65), Some(expected));
        assert_eq!(pieces(&parts, 1150, 1), None);
        assert_eq!(pieces(&parts, u64::MAX, 2), None);
        assert_eq!(pieces(&parts, 1150, 0), Some(vec![]));
    }

    proptest! {
        #[test]
        fn pieces_are_the_range_without_a_gap(
            parts in prop::collection::vec(1u64..50, 1..6), offset in 0u64..200, len in 0u64..200,
        ) {
            let total: u64 = parts.iter().sum();
            match pieces(&parts, offset, len) {
                None => prop_assert!(offset + len > total),
                Some(found) => {
                    prop_assert_eq!(found.iter().map(|piece| piece.len).sum::<u64>(), len);
                    for piece in found {
                        let ring = if piece.part == 0 { RING_LEN } else { 0 };
                        prop_assert!(piece.offset + piece.len - ring <= parts[piece.part as usize]);
                    }
                }
            }
        }
    }
}
