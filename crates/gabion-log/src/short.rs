//! The short header: what a record of a batch begins with where its place says the rest.
//!
//! ```text
//!   0        4      5     6     8             10      12            18       24
//!   ┌────────┬──────┬─────┬─────┬─────────────┬───────┬─────────────┬────────┬─────────
//!   │ CRC32C │ 0x67 │ ver │ tag │ payload len │ count │ first seq.  │ now_ms │ payload …
//!   └────────┴──────┴─────┴─────┴─────────────┴───────┴─────────────┴────────┴─────────
//!     u32      u8     u8    u16   u16           u16     u48           u48
//! ```
//!
//! One put of a hundred bytes is a record by itself where its writer waits for nobody, and with the
//! long header of [`crate::record`] the log is twice as long as what is written to it. In a log
//! that is sent to nobody ([`crate::LogKind::Private`]) whoever reads a record knows its place and
//! what it continues, so group, shard, term, position, index and the checksum before it need not be
//! said. They go into the checksum, in front of the record's bytes, so that nothing which another
//! lap, term or life of the log left there is taken for the record; 16 bits of what the place alone
//! says are the tag, by which most of that is seen to claim nothing.
//!
//! The record that is the first to begin in a block of 4 KiB has a long header: it stops a build
//! that does not know short ones (`RecordFlags::SHORT_AFTER`), says how far the log was durable (so
//! that is told a block later than it might be), and is where a scan past a bad place goes on. An
//! older build meets it first, as what a log is trimmed at ends a block. Only batches without
//! extensions, flags or large numbers have a short header.

use crate::LogConfig;
use crate::block_floor;
use crate::record::{Header, RecordFlags, RecordKind};
use crate::span::Anchor;
use alloc::format;
use gabion_base::{Error, LogPosition, Result, SequenceNumber, Term, crc};

/// Bytes of a short header.
pub const SHORT_LEN: usize = 24;
const MAGIC: u8 = 0x67;
const VERSION: u8 = 1;
const CRC_LEN: usize = 4;
/// The most that a field of 48 bits holds.
const U48_MAX: u64 = (1 << 48) - 1;

/// Where a record is to be, and what it then is without saying so.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) config: &'a LogConfig,
    pub(crate) at: u64,
    pub(crate) term: Term,
    /// What it continues.
    pub(crate) after: Anchor,
}

impl Place<'_> {
    /// The checksum of what the place says.
    fn sum(&self) -> u32 {
        let mut said = [0; 32];
        said[..8].copy_from_slice(&self.config.group.get().to_le_bytes());
        said[8..16].copy_from_slice(&self.term.get().to_le_bytes());
        said[16..24].copy_from_slice(&self.at.to_le_bytes());
        said[24..26].copy_from_slice(&self.config.shard.get().to_le_bytes());
        crc::crc32c(&said)
    }

    /// CRC32C of what the place says, of what the record continues, and of the record behind the
    /// field for it.
    fn checksum(&self, record: &[u8]) -> u32 {
        let mut before = [0; 12];
        before[..8].copy_from_slice(&self.after.index.get().to_le_bytes());
        before[8..].copy_from_slice(&self.after.crc.to_le_bytes());
        crc::append(crc::append(self.sum(), &before), &record[CRC_LEN..])
    }

    /// Bytes of header and payload of the record at the front of `bytes`, if it claims this place
    /// with a short header of any version.
    pub(crate) fn short_body(&self, bytes: &[u8]) -> Option<u64> {
        let head: &[u8; SHORT_LEN] = bytes.first_chunk()?;
        let claims = head[4] == MAGIC && head[6..8] == tag(self.sum());
        claims.then(|| SHORT_LEN as u64 + u64::from(u16::from_le_bytes([head[8], head[9]])))
    }

    /// Checks the record that `bytes` are, to its end, with the padding; it claims this place.
    ///
    /// # Errors
    /// Corruption when it is not what was written; unsupported for a whole record of another build.
    pub(crate) fn verify_short(&self, bytes: &[u8]) -> Result<Header> {
        let at = LogPosition(self.at);
        let Some(head) = bytes.first_chunk::<SHORT_LEN>() else {
            return Err(Error::corruption(format!(
                "log record at {at}: {} bytes, its header has {SHORT_LEN}",
                bytes.len()
            )));
        };
        let stored = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let found = self.checksum(bytes);
        if found != stored {
            return Err(Error::corruption(format!(
                "log record at {at} has checksum {found:#010x}, {stored:#010x} is stored"
            )));
        }
        if head[5] != VERSION {
            return Err(Error::unsupported(format!(
                "log record at {at} has a short header of version {}; this build reads version {VERSION}",
                head[5]
            )));
        }
        Ok(Header {
            kind: RecordKind::Batch,
            is_short: true,
            flags: RecordFlags::NONE,
            payload_len: u32::from(u16::from_le_bytes([head[8], head[9]])),
            crc: stored,
            group: self.config.group,
            term: self.term,
            shard: self.config.shard,
            extension_len: 0,
            previous_crc: self.after.crc,
            index: self.after.next_index(),
            position: at,
            first_sequence: SequenceNumber(u48(&head[12..18])),
            count: u32::from(u16::from_le_bytes([head[10], head[11]])),
            durable: LogPosition::ZERO,
            now_ms: u48(&head[18..24]),
        })
    }

    /// Writes the short header of a record to the front of `record`, which is payload and padding
    /// behind it, and returns its checksum.
    pub(crate) fn encode_short(&self, header: &Header, record: &mut [u8]) -> u32 {
        record[4] = MAGIC;
        record[5] = VERSION;
        record[6..8].copy_from_slice(&tag(self.sum()));
        record[8..10].copy_from_slice(&(header.payload_len as u16).to_le_bytes());
        record[10..12].copy_from_slice(&(header.count as u16).to_le_bytes());
        record[12..18].copy_from_slice(&header.first_sequence.get().to_le_bytes()[..6]);
        record[18..24].copy_from_slice(&header.now_ms.to_le_bytes()[..6]);
        let crc = self.checksum(record);
        record[..CRC_LEN].copy_from_slice(&crc.to_le_bytes());
        crc
    }
}

/// Whether a record with this header, no extensions and so much payload may have a short one
/// instead, when the last long one that was written begins at `long_at`.
pub(crate) fn may_be_short(header: &Header, payload_len: usize, long_at: Option<u64>) -> bool {
    header.kind == RecordKind::Batch
        && header.flags == RecordFlags::NONE
        && u16::try_from(payload_len).is_ok()
        && u16::try_from(header.count).is_ok()
        && header.first_sequence.get() <= U48_MAX
        && header.now_ms <= U48_MAX
        && long_at.is_some_and(|at| block_floor(at) == block_floor(header.position.get()))
}

fn tag(sum: u32) -> [u8; 2] {
    ((sum ^ (sum >> 16)) as u16).to_le_bytes()
}

fn u48(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
