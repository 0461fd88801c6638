//! A group's log: one infinite string of records, in three places at once.
//!
//! ```text
//!            append (head)                       place (replica)
//!                 │ encoded and checksummed once      │ checked, never re-encoded
//!                 ▼                                   ▼
//!   ring    ──[…]──[record][record][record]──►  byte-addressable, survives the kill of a process
//!                 │ next_drain: whole blocks, 128 KiB – 1 MiB, never across a segment
//!                 ▼
//!   segments ─[000006.log][000007.log]──────►  files of the pool, survive a power cut once flushed
//!                 │ trim: below what every member needs
//!                 ▼
//!   recover: longest valid prefix of ring ∪ segments; torn tail or rotten middle (docs/faults.md E4)
//! ```
//!
//! - [`record`]: the format, in bytes, and its checks.
//! - [`short`]: the header of records that say less, and why they may.
//! - [`seal`]: the payload of a seal record.
//! - [`session`]: the writes of client sessions that a batch carries.
//! - [`span`]: which term wrote which positions; what makes stale bytes stale.
//! - [`log`]: appending, placing, resending, trimming.
//! - [`drain`]: the way from ring to segments as work orders.
//! - [`recovery`]: finding the end, and why it is there.
//! - [`inspect`]: every record that can be read, past bad places, for tools.
//!
//! A *batch* and an *edit* are opaque here; the engine owns them. Sources: Cyclone §2.2 (ring
//! draining into flash), Tebis §3.6, §3.8 (positions assigned by the primary, torn writes detected
//! by checksum). The code of Tebis, SplitFT's NCL and RubbleDB infers from the contents of memory
//! what was written, without a CRC. Hence length, CRC, term and index in every record, or in its
//! checksum.
#![no_std]

extern crate alloc;

pub mod drain;
pub mod inspect;
pub mod log;
pub mod record;
pub mod recovery;
pub mod seal;
pub mod session;
pub mod short;
pub mod span;

mod ring;
mod scan;

/// Whether steps end with costly checks of what must hold: in tests and the simulator. A build with
/// optimisations for users or measurements has none, whatever features its workspace turns on.
const CHECKED: bool = cfg!(all(feature = "invariants", debug_assertions));

pub use drain::Drain;
pub use inspect::{RecordScan, Seen};
pub use log::{Appended, Following, Last, Log, Resend, Stamp};
pub use record::{Header, Record, RecordBuilder, RecordFlags, RecordKind, decode_header, verify};
pub use recovery::{Ending, RecoveryInput, RecoveryReport, Rot, recover};
pub use scan::{SegmentReader, SegmentSource};
pub use seal::Seal;
pub use session::{REPLY_LEN_MAX, SessionWrite, SessionWrites, WRITE_LEN_MAX};
pub use span::{Anchor, Span};

pub use gabion_base::LogKind;

use alloc::format;
use gabion_base::units::{BLOCK_LEN, RECORD_LEN_MAX};
use gabion_base::{Error, FileId, FileKind, GroupId, Result, ShardId};

/// What makes one log different from another. Constant for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The group whose log it is.
    pub group: GroupId,
    /// Which of the group's logs.
    pub shard: ShardId,
    /// Bytes of the ring: a multiple of `segment_len`, two segments or more.
    pub ring_len: u64,
    /// Bytes of a segment, 16 MiB in production: a multiple of 4 KiB, and the longest record.
    pub segment_len: u64,
    /// The readers of it.
    pub kind: LogKind,
}

impl LogConfig {
    /// Bytes of a segment in production.
    pub const SEGMENT_LEN: u64 = RECORD_LEN_MAX as u64;

    /// The segment with this ordinal: the one that begins at so many segment lengths.
    #[must_use]
    pub const fn segment(&self, ordinal: u64) -> FileId {
        FileId::log_segment(self.shard, ordinal)
    }

    /// The segment that holds the byte at `position`.
    #[must_use]
    pub const fn segment_at(&self, position: u64) -> FileId {
        self.segment(position / self.segment_len)
    }

    /// Refuses a segment of another log.
    ///
    /// # Errors
    /// Corruption that names the segment and the log.
    pub fn check_segment(&self, segment: FileId) -> Result<()> {
        debug_assert_eq!(segment.kind, FileKind::LogSegment, "{segment} is of no log");
        if segment.shard() == self.shard {
            return Ok(());
        }
        Err(Error::corruption(format!(
            "{segment} is a log segment of shard {}; {} has a log of shard {} alone",
            segment.shard().get(),
            self.group,
            self.shard.get()
        )))
    }

    /// Refuses lengths that break the rules of the fields.
    ///
    /// # Errors
    /// Invalid input that names the length and its rule.
    pub fn check(&self) -> Result<()> {
        let (ring, segment) = (self.ring_len, self.segment_len);
        if segment == 0 || !segment.is_multiple_of(BLOCK_LEN as u64) || segment > Self::SEGMENT_LEN
        {
            return Err(Error::invalid(format!(
                "log segment of {segment} bytes: it must be a multiple of {BLOCK_LEN} up to {}",
                Self::SEGMENT_LEN
            )));
        }
        if !ring.is_multiple_of(segment) || ring / segment < 2 {
            return Err(Error::invalid(format!(
                "ring of {ring} bytes: it must be two or more whole segments of {segment}"
            )));
        }
        Ok(())
    }
}

/// `position` rounded down to a block.
pub(crate) const fn block_floor(position: u64) -> u64 {
    position - position % BLOCK_LEN as u64
}

/// `position` rounded up to a block.
pub(crate) const fn block_ceil(position: u64) -> u64 {
    position.next_multiple_of(BLOCK_LEN as u64)
}
