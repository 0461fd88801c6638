//! The vocabulary that all rooms of Gabion share: identifiers, units and limits, the error type,
//! checked byte codecs and CRC32C.
//!
//! ```text
//!   ids ──► "which"     group, term, replica, file, slot, sequence number, log position
//!   frontier ─► "how far"  a log position in each shard
//!   units ─► "how much"  sizes of blocks and slots, every limit on untrusted input
//!   error ─► "what went wrong"  one small kind, one message that names thing, value and limit
//!   failure ─► "what it ends"  one table: the operation, a connection or the process
//!   codec ─► "how it lies in bytes"  little-endian, length-checked before memory is reserved
//!   number ─► "how it reads" decimal integers, as Redis reads and writes them
//!   crc ──► "is it whole"  CRC32C with lineage, and combination of parts
//! ```
//!
//! Nothing here does I/O, knows a clock or allocates in proportion to untrusted lengths.
#![no_std]

extern crate alloc;

pub mod codec;
pub mod crc;
pub mod error;
pub mod failure;
pub mod frontier;
pub mod ids;
pub mod number;
pub mod units;

pub use error::{Error, ErrorKind, Result};
pub use failure::{Ends, Failed};
pub use frontier::Frontier;
pub use ids::{
    ConfigNumber, FileId, FileKind, Generation, GroupId, LogIndex, LogKind, LogPosition,
    MemTableId, ReplicaId, SEGMENT_ORDINAL_MAX, SequenceNumber, ShardId, SlotIndex, TERM_MAX, Term,
};

/// A hash map whose order is the same in every run of the same program; iteration order must still
/// never show in bytes, messages or decisions.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, foldhash::fast::FixedState>;
/// A hash set with the guarantees of [`HashMap`].
pub type HashSet<K> = hashbrown::HashSet<K, foldhash::fast::FixedState>;
