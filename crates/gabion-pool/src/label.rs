//! The label: whose a file is, for files that do not say so themselves.
//!
//! ```text
//!   offset  bytes
//!        0      8  magic "GABLABL\0"
//!        8      4  format version
//!       12      4  purpose: 1 a pool that is being made, 2 a ring, 3 a checkpoint that is being made
//!       16     16  pool id; of a checkpoint zero
//!       32      8  bytes of the pool or the ring
//!       40      8  which of the rings that the pool has had, from 0 on
//!       48   4044  zero
//!     4092      4  CRC32C of the 4,092 bytes before
//! ```
//!
//! | of | where it stands | while |
//! | --- | --- | --- |
//! | a pool | block 2, which no pool uses | it is being made; a pool that is whole has its superblock, and zeros here |
//! | a ring | the block after its bytes | always |
//! | a checkpoint | a file of its own, all of it | the directory is being made |
//!
//! A file gets its label before it gets its name. So a file that has one of these names and no
//! label is somebody else's, whenever a crash came, and is neither written nor removed. The first
//! two blocks of a pool would not do: a power cut while the superblock is written over the label
//! would leave neither.

use crate::PoolId;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::crc::crc32c;
use gabion_base::units::BLOCK_LEN;

/// What a label starts with.
pub const LABEL_MAGIC: [u8; 8] = *b"GABLABL\0";
/// The format version that this build writes and the only one that it knows.
pub const LABEL_VERSION: u32 = 1;
/// Where the label of a pool that is being made stands: behind both copies of the superblock.
pub const POOL_LABEL_AT: u64 = 2 * BLOCK_LEN as u64;

const CRC_AT: usize = BLOCK_LEN - 4;

/// What a labelled file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A pool that is being made.
    NewPool,
    /// The ring of a pool's log.
    Ring,
    /// Says that a checkpoint is made in a directory.
    Checkpoint,
}

impl Purpose {
    const ALL: [Self; 3] = [Self::NewPool, Self::Ring, Self::Checkpoint];

    const fn number(self) -> u32 {
        match self {
            Self::NewPool => 1,
            Self::Ring => 2,
            Self::Checkpoint => 3,
        }
    }
}

/// Whose a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// What the file is for.
    pub purpose: Purpose,
    /// The pool that it is, or belongs to.
    pub pool_id: PoolId,
    /// Bytes of the pool or the ring.
    pub len: u64,
    /// Which of the rings that the pool has had: one more for each that is made in place of one
    /// that was lost.
    pub number: u64,
}

impl Label {
    /// The block to write.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK_LEN);
        out.put_bytes(&LABEL_MAGIC);
        out.put_u32(LABEL_VERSION);
        out.put_u32(self.purpose.number());
        out.put_bytes(&self.pool_id);
        out.put_u64(self.len);
        out.put_u64(self.number);
        out.resize(CRC_AT, 0);
        out.put_u32(crc32c(&out));
        out
    }

    /// The label that a block is; nothing where it is none that this build knows, and whole.
    #[must_use]
    pub fn decode(block: &[u8]) -> Option<Self> {
        let (body, stored) = block.split_at_checked(CRC_AT)?;
        if crc32c(body).to_le_bytes() != stored {
            return None;
        }
        let mut reader = Reader::new(body, "label");
        if reader.array::<8>().ok()? != LABEL_MAGIC || reader.u32().ok()? != LABEL_VERSION {
            return None;
        }
        let number = reader.u32().ok()?;
        let purpose = Purpose::ALL.into_iter().find(|purpose| purpose.number() == number)?;
        let (pool_id, len) = (reader.array().ok()?, reader.u64().ok()?);
        Some(Self { purpose, pool_id, len, number: reader.u64().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_read_as_written_and_no_bit_of_it_may_differ() {
        for purpose in Purpose::ALL {
            let label = Label { purpose, pool_id: [7; 16], len: 1 << 40, number: 1 << 33 };
            let block = label.encode();
            assert_eq!((block.len(), Label::decode(&block)), (BLOCK_LEN, Some(label)));
            for bit in 0..block.len() * 8 {
                let mut other = block.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Label::decode(&other), None, "bit {bit}");
            }
            assert_eq!(Label::decode(&block[..BLOCK_LEN - 1]), None);
        }
        assert_eq!(Label::decode(&[0; BLOCK_LEN]), None);
        assert_eq!(Label::decode(&[]), None);
    }
}
