//! The payload of a seal record: a MemTable is complete, known and not guessed.
//!
//! ```text
//!   MemTable id u64 | last sequence number u64 | Frontier (gabion_base)
//! ```
//!
//! The frontier says of each shard where its last record of the MemTable ends: the seal itself lies
//! behind it. The last sequence number is the highest of the MemTable, over all shards.

use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::{Frontier, MemTableId, Result, SequenceNumber};

/// A MemTable is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Which one; the next record opens the next.
    pub memtable: MemTableId,
    /// The highest sequence number of its records.
    pub sequence: SequenceNumber,
    /// Where each shard's part of it ends.
    pub frontier: Frontier,
}

impl Seal {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.memtable.get());
        out.put_u64(self.sequence.get());
        self.frontier.encode(out);
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// Corruption when it is not exactly a seal; Unsupported for another number of shards.
    pub fn decode(payload: &[u8]) -> Result<Self> {
        let mut r = Reader::new(payload, "seal record");
        let (memtable, sequence) = (MemTableId(r.u64()?), SequenceNumber(r.u64()?));
        let frontier = Frontier::decode(&mut r, "seal record")?;
        r.finish()?;
        Ok(Self { memtable, sequence, frontier })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::LogPosition;

    #[test]
    fn a_seal_survives_its_encoding_and_nothing_shorter_or_longer_is_one() {
        let seal = Seal {
            memtable: MemTableId(7),
            sequence: SequenceNumber(99),
            frontier: Frontier::of(LogPosition(4096)),
        };
        let mut bytes = Vec::new();
        seal.encode(&mut bytes);
        assert_eq!(Seal::decode(&bytes).unwrap(), seal);
        for len in 0..bytes.len() {
            assert!(Seal::decode(&bytes[..len]).is_err(), "{len}");
        }
        bytes.push(0);
        assert!(Seal::decode(&bytes).is_err());
        assert!(Seal::decode(&[0xff; 26]).is_err());
    }
}
