//! The LSM tree: what a replica knows, in memory and in files.
//!
//! ```text
//!   log records ─► batch ─► memtable ──► flush ─┐
//!                              │                ▼
//!                              │      sst::SstBuilder ─► FinishedFile ─► slots here, shipped there
//!                              │                ▲               │
//!                              │           compaction ◄── SstScan ◄┘
//!                              ▼
//!                 get / iterate ◄── SstReader ◄── BlockCache ◄── FileSource (pool)
//! ```
//!
//! Lower half: [`entry`] (kinds, order), [`batch`] (payload of a log record), [`memtable`],
//! [`file`](mod@file) (what an edit says of a file), [`sst`] (format, builder, readers), [`cache`].
//! [`expiry`]: values that are gone from a time on. [`counter`]: the merge operator.
//! [`range_delete`]: keys from one up to another that are gone. [`values`] and [`mod@pointer`]:
//! large values apart from the tree. Upper half: [`tree`] (one replica's state, driven by its log),
//! [`version`] and [`edit`] (which files count), [`recipe`], [`picker`]
//! and [`job`] (how they come to be), [`read`] (what a reader sees), [`readers`] (for how long),
//! [`config`].
//!
//! To change what a compaction drops, look in [`job`]; when and what is compacted, in [`picker`];
//! what travels in the log, in [`edit`] and [`recipe`].
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod batch;
pub mod cache;
pub mod config;
pub mod counter;
pub mod edit;
pub mod entry;
pub mod expiry;
pub mod file;
mod idle;
pub mod job;
pub mod load;
pub mod memtable;
mod merge;
mod once;
pub mod packed;
pub mod picker;
pub mod places;
pub mod pointer;
pub mod range_delete;
mod rank;
pub mod read;
pub mod readers;
pub mod recipe;
mod runs;
mod skip_list;
pub mod sst;
pub mod tree;
pub mod values;
pub mod version;

/// Whether steps end with costly checks of what must hold: in tests and the simulator. A build with
/// optimisations for users or measurements has none, whatever features its workspace turns on.
const CHECKED: bool = cfg!(all(feature = "invariants", debug_assertions));

pub use batch::{BatchBuilder, BatchReader, Operation};
pub use cache::{BlockCache, LocalCache, ReadCache};
pub use config::{Codecs, LEVEL1_MEMTABLES, TreeConfig, WriteLimits, check_large_values};
pub use counter::Operand;
pub use edit::{Edit, Flushed};
pub use entry::{Entry, EntryKind, Keyspace, Trailer};
pub use expiry::ExpirySpan;
pub use file::{FileMeta, FileRange, FileReference, FileSink, FileSource, FinishedFile, Operands};
pub use job::{JobInputs, JobOutput, JobStats, run_job};
pub use load::LoadBuilder;
pub use memtable::{MemTable, MemTableIter, MemTableWriter};
pub use packed::{Packed, Packer};
pub use places::{LastSegment, LogLayout, Places};
pub use pointer::Pointer;
pub use range_delete::{RangeDelete, RangeDeletes};
pub use read::{
    Found, FoundLen, Lent, Move, PageCursor, RangeSize, ReadIterator, ReadView, Tables,
};
pub use readers::{Pin, PinBudget, ReaderStats};
pub use recipe::{JobKind, Merging, Recipe};
pub use sst::{BlockCodec, Compression, SstBuilder, SstIter, SstOptions, SstReader, SstScan};
pub use tree::{JobContext, KeyEstimate, LevelStats, Pressure, Tree, TreeMemory, WriteState};
pub use values::{ValueRecord, ValueRecords, ValuesBuilder};
pub use version::{ValuesStats, Version, Versions};
