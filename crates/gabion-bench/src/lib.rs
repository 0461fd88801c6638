//! Benchmarks of Gabion: clusters with each way of compacting, beside each other and beside
//! RubbleDB's baseline; the engine alone, beside others.
//!
//! ```text
//!   options ─► plan ─► launcher ─► cluster ──────────────────────────┐
//!                │                   ▲ RESP                          │ GABION STATUS
//!                └─► client threads ─┘                               ▼ before and after
//!                       └─► latencies ─► report ◄─ what each replica used, by role of work
//!                                          └─► ratio, formula, tables
//! ```
//!
//! - [`ycsb`]: load and A to G of YCSB; their cost to each replica, and the part of it that
//!   RubbleDB's way of compacting saves.
//! - [`replication()`]: the same on RubbleDB's baseline, a chain of replicas with a RocksDB each,
//!   and on Gabion in both ways of compacting, in one run.
//! - [`placement()`]: Tebis's evaluation, mixes of small, medium and large values: with shipping
//!   and without, values in the tree and apart, RocksDB with and without BlobDB.
//! - [`engines()`]: workloads on this engine alone and on others, each in a process of its own.
//! - [`failover()`]: faults of a real `gabion up` under load, every answer checked.
//! - [`rebuild()`]: a replica of one that loses its disk, idle and under load.
//! - [`fabric()`]: records on their way into a log peer's memory, by each path.
//! - [`ncl()`]: near-compute logs in the form of SplitFT's evaluation.
//! - [`report()`]: the JSON of runs as one page with plots, and as Markdown.
//! - [`Launcher`]: the start of a cluster of its own; the command line implements it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a shell: clocks, threads, files and sockets are its business"
)]

mod admin;
mod args;
mod client;
mod cluster;
mod connection;
mod engines;
mod fabric;
mod failover;
#[cfg(test)]
mod fake;
mod figures;
mod keys;
mod launch;
mod ncl;
mod page;
mod placement;
mod provenance;
mod replication;
mod report;
mod run;
mod sink;
mod status;
mod system;
mod text;
mod workload;

pub use args::{
    AckChoice, ClientArgs, ClusterArgs, CompactionChoice, LoadArgs, WorkloadChoice, YcsbArgs,
    parse_codec,
};
pub use engines::{EngineArgs, Peer, Program, engines};
pub use fabric::{FabricArgs, fabric};
pub use failover::rebuild::{LoadKind, RebuildArgs, rebuild};
pub use failover::{FailoverArgs, Fault, Role, UpProgram, failover};
pub use gabion_workload::parse_bytes;
pub use launch::{ClusterSpec, Launcher, RunningCluster};
pub use ncl::programs::ProgramChoice;
pub use ncl::{CallsArgs, NclArgs, Part, calls, ncl};
pub use page::{ReportArgs, report};
pub use placement::{MixChoice, PlacementArgs, Side, placement};
pub use replication::memory::{BLOCK_CACHE_LEN, indexes_len};
pub use replication::{ReplicationArgs, System, replication};
pub use run::ycsb;
pub use text::grouped;
