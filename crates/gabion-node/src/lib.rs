//! A replica without its process: the glue between log, tree, pool and replication, as a state
//! machine.
//!
//! ```text
//!   messages, ticks, client writes, results of work          messages, work orders, what is acknowledged
//!            │                                                           ▲
//!            ▼ handle_*, put, delete, end_turn                           │ poll_output
//!   ┌─ Node ─────────────────────────────────────────────────────────────┴─────────┐
//!   │ write ─► Log.append ─► Chain ─► (members) ─► commit ─► acknowledged()         │
//!   │ record ─► Log.place ─► Tree (batch, seal) · pending edits                     │
//!   │ job done ─► ship ─► have ─► edit ─► placement commit ─► Tree.apply_edit       │
//!   └───────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! - [`Node`]: the state machine. One owner, one loop: hand in an event, call `advance`, take
//!   outputs.
//! - [`work`]: orders that leave it because they take long, and the functions that carry them out.
//! - [`open`]: creating a replica in an empty pool, and opening one from its pool and ring alone.
//! - [`checkpoint`]: a new pool that holds the state in a view of a replica; [`backup`]: that state
//!   in bytes.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod backup;
pub mod checkpoint;
mod config;
mod copied;
mod files;
pub mod message;
mod node;
pub mod open;
mod protocol;
pub mod ring;
mod state;
mod tlv;
mod view;
pub mod work;

pub use config::{AckLevel, CompactionMode, GroupConfig, NodeOptions, PoolLengths};
pub use files::{FileMap, LocalStore, Locate, PoolSegments, PoolSource, ReadMeter};
#[cfg(feature = "planted")]
pub use node::Mutant;
pub use node::{
    Captured, CapturedFile, Counters, DamagedFile, FillStatus, FillStep, LoadGate, LoadId,
    LoadState, LogEra, MarkId, Node, NodeMemory, Output, RangeState, RemoteCommand, RepairState,
    Replaced, StopState, StoppedMs, WriteFate, WriteGate, WriteStop, check_memtable_len,
    replica_of_host,
};
pub use state::{CopyMark, ReplicaState, Snapshot, opaque};
pub use view::{Duties, View};
