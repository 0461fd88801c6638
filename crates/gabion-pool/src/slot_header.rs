//! The header block of a slot: whose bytes the slot holds. It stands outside the file and is
//! written after the file's bytes, so what a replica is sent never needs rewriting.
//!
//! ```text
//!   offset  bytes
//!        0      8  magic "GABSLOT\0"
//!        8      2  version
//!       10      1  file kind
//!       11      1  zero
//!       12      4  slot index
//!       16     16  pool id
//!       32      8  generation
//!       40      8  group
//!       48      8  term
//!       56      8  file number
//!       64      4  index of this slot within the file
//!       68      4  bytes of the file in this slot
//!       72      4  CRC32C of those bytes
//!       76      4  CRC32C of the 76 bytes before
//!       80   4016  zero, checked
//! ```

use crate::{FilePlacement, PoolId};
use alloc::format;
use alloc::vec::Vec;
use core::fmt::Debug;
use gabion_base::codec::{Put, Reader};
use gabion_base::crc::crc32c;
use gabion_base::units::{BLOCK_LEN, SLOT_LEN};
use gabion_base::{Error, FileId, FileKind, Generation, GroupId, Result, SlotIndex, Term};

/// What a slot header starts with.
pub const SLOT_HEADER_MAGIC: [u8; 8] = *b"GABSLOT\0";
/// The version that this build writes and the only one that it reads.
pub const SLOT_HEADER_VERSION: u16 = 1;

const CRC_AT: usize = 76;
const LEN: usize = CRC_AT + 4;
const _: () = assert!(LEN <= BLOCK_LEN);

/// A decoded slot header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotHeader {
    /// The pool that the slot belongs to.
    pub pool_id: PoolId,
    /// The slot.
    pub slot: SlotIndex,
    /// Which use of the slot this is.
    pub generation: Generation,
    /// The group that the file belongs to.
    pub group: GroupId,
    /// The term in which the file was made.
    pub term: Term,
    /// The file.
    pub file: FileId,
    /// Which of the file's slots this is, from 0.
    pub index: u32,
    /// Bytes of the file in this slot.
    pub len: u32,
    /// CRC32C of those bytes.
    pub checksum: u32,
}

impl SlotHeader {
    /// The header of the `index`-th slot of a file, whose bytes there have CRC32C `checksum`.
    ///
    /// # Panics
    /// When the file has no such slot.
    #[must_use]
    pub fn of(
        pool_id: PoolId,
        group: GroupId,
        placement: &FilePlacement,
        index: usize,
        checksum: u32,
    ) -> Self {
        let placed = placement.slots[index];
        let start = index as u64 * SLOT_LEN;
        Self {
            pool_id,
            slot: placed.slot,
            generation: placed.generation,
            group,
            term: placement.term,
            file: placement.file,
            index: index as u32,
            len: placement.len.saturating_sub(start).min(SLOT_LEN) as u32,
            checksum,
        }
    }

    /// The block to write.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK_LEN);
        out.put_bytes(&SLOT_HEADER_MAGIC);
        out.put_u16(SLOT_HEADER_VERSION);
        out.put_u8(self.file.kind as u8);
        out.put_u8(0);
        out.put_u32(self.slot.get());
        out.put_bytes(&self.pool_id);
        out.put_u64(self.generation.get());
        out.put_u64(self.group.get());
        out.put_u64(self.term.get());
        out.put_u64(self.file.number);
        out.put_u32(self.index);
        out.put_u32(self.len);
        out.put_u32(self.checksum);
        out.put_u32(crc32c(&out));
        debug_assert_eq!(out.len(), LEN);
        out.resize(BLOCK_LEN, 0);
        out
    }

    /// The header in `block`.
    ///
    /// # Errors
    /// Not found when the block is blank; corruption when it is no whole header; unsupported, with
    /// both versions, when it is of another version.
    pub fn decode(block: &[u8]) -> Result<Self> {
        let Some((head, rest)) = block.split_at_checked(LEN) else {
            return Err(Error::corruption(format!("slot header of {} bytes", block.len())));
        };
        if block.iter().all(|&byte| byte == 0) {
            return Err(Error::not_found("the slot header is blank"));
        }
        let mut reader = Reader::new(head, "slot header");
        if reader.array::<8>()? != SLOT_HEADER_MAGIC {
            return Err(Error::corruption("slot header: wrong magic"));
        }
        let actual = crc32c(&head[..CRC_AT]);
        if actual.to_le_bytes() != head[CRC_AT..] || block.len() != BLOCK_LEN {
            return Err(Error::corruption(format!(
                "slot header: checksum {actual:#010x} is not the one stored"
            )));
        }
        let version = reader.u16()?;
        if version != SLOT_HEADER_VERSION {
            return Err(Error::unsupported(format!(
                "slot header has version {version}, this build knows {SLOT_HEADER_VERSION}"
            )));
        }
        let (kind, zero) = (reader.u8()?, reader.u8()?);
        if zero != 0 || rest.iter().any(|&byte| byte != 0) {
            return Err(Error::corruption("slot header: padding is not zero"));
        }
        let kind = FileKind::from_byte(kind)
            .ok_or_else(|| Error::corruption(format!("slot header: file kind {kind}")))?;
        Self::decode_fields(&mut reader, kind)
    }

    fn decode_fields(reader: &mut Reader<'_>, kind: FileKind) -> Result<Self> {
        Ok(Self {
            slot: SlotIndex(reader.u32()?),
            pool_id: reader.array()?,
            generation: Generation(reader.u64()?),
            group: GroupId(reader.u64()?),
            term: Term(reader.u64()?),
            file: FileId { kind, number: reader.u64()? },
            index: reader.u32()?,
            len: reader.u32()?,
            checksum: reader.u32()?,
        })
    }

    /// Whether this header says what the placement says it should. A difference means a write
    /// that went astray, a swapped namespace or another pool's disk (docs/faults.md H9): stop the
    /// group.
    ///
    /// # Errors
    /// Corruption that names the first field that differs, with both values.
    pub fn check(&self, expected: &Self) -> Result<()> {
        self.differs("pool", &expected.pool_id, &self.pool_id)?;
        self.differs("slot", &expected.slot, &self.slot)?;
        self.differs("generation", &expected.generation, &self.generation)?;
        self.differs("group", &expected.group, &self.group)?;
        self.differs("term", &expected.term, &self.term)?;
        self.differs("file", &expected.file, &self.file)?;
        self.differs("index in the file", &expected.index, &self.index)?;
        self.differs("length", &expected.len, &self.len)?;
        self.differs("checksum", &expected.checksum, &self.checksum)
    }

    fn differs<T: PartialEq + Debug>(&self, name: &str, expected: &T, found: &T) -> Result<()> {
        if expected == found {
            return Ok(());
        }
        Err(Error::corruption(format!(
            "header of {}: {name} is {found:?}, expected {expected:?}",
            self.slot
        )))
    }
}
