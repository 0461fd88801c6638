//! The payload of a seal record: a MemTable is complete, known and not guessed.
//!
//! ```text
//!   MemTable id u64 | shards u16 | shards × ( shard u16 | last position u64 | last sequence u64 )
//! ```
//!
//! "Last" is the position at which the shard's last record of the MemTable ends, and the highest
//! sequence number in it.

use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::{Error, LogPosition, MemTableId, Result, SequenceNumber, ShardId};

const SHARD_LEN: usize = 18;

/// Up to where one shard's records belong to a MemTable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardEnd {
    /// The shard.
    pub shard: ShardId,
    /// The end of its last record in the MemTable.
    pub position: LogPosition,
    /// The highest sequence number of its records in the MemTable.
    pub sequence: SequenceNumber,
}

/// A MemTable is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Which one; the next record opens the next.
    pub memtable: MemTableId,
    /// Where each shard's part of it ends.
    pub shards: Vec<ShardEnd>,
}

impl Seal {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.memtable.get());
        out.put_u16(self.shards.len() as u16);
        for end in &self.shards {
            out.put_u16(end.shard.get());
            out.put_u64(end.position.get());
            out.put_u64(end.sequence.get());
        }
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// Corruption when it is not exactly a seal.
    pub fn decode(payload: &[u8]) -> Result<Self> {
        let mut r = Reader::new(payload, "seal record");
        let memtable = MemTableId(r.u64()?);
        let count = usize::from(r.u16()?);
        if r.remaining() != count * SHARD_LEN {
            return Err(Error::corruption(format!(
                "seal record: {} bytes left for {count} shards",
                r.remaining()
            )));
        }
        let mut shards = Vec::with_capacity(count);
        for _ in 0..count {
            shards.push(ShardEnd {
                shard: ShardId(r.u16()?),
                position: LogPosition(r.u64()?),
                sequence: SequenceNumber(r.u64()?),
            });
        }
        r.finish()?;
        Ok(Self { memtable, shards })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_seal_survives_its_encoding_and_nothing_shorter_or_longer_is_one() {
        let seal = Seal {
            memtable: MemTableId(7),
            shards: vec![ShardEnd {
                shard: ShardId(0),
                position: LogPosition(4096),
                sequence: SequenceNumber(99),
            }],
        };
        let mut bytes = Vec::new();
        seal.encode(&mut bytes);
        assert_eq!(Seal::decode(&bytes).unwrap(), seal);
        for len in 0..bytes.len() {
            assert!(Seal::decode(&bytes[..len]).is_err(), "{len}");
        }
        bytes.push(0);
        assert!(Seal::decode(&bytes).is_err());
        assert!(Seal::decode(&[0xff; 10]).is_err());
    }
}
