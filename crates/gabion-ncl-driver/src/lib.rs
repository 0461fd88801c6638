//! Near-compute logs as files that programs use: the core of `gabion-ncl` over real peers, with a
//! store of another process. Calls block, and any thread may make them.
//!
//! ```text
//!   threads of a program ──► Logs ── lock ──► Application (core) ─┬─► Link: mapped regions, or
//!     write, sync, rename       ▲                                 │         a socket ──► log peers
//!                               │ turns of the sockets            └─► Job ─► gabion-ncl-store
//!   gabion-ncl-logs ────────────┘ (or whoever waits takes them)                ──► controller
//! ```
//!
//! - [`Logs`]: files of an application. [`PeerFiles`]: the same as the interposer's owner calls it.
//! - `turn`: the core and its links, one step. `link`: one peer's connection and mapped regions.
//! - [`store`]: the controller's store over a socket, both ends. [`address`]: where a peer listens.
//! - [`registry`]: how a peer registers, and finds what has leaked. [`report`]: what an instance
//!   tells of itself.
//!
//! Over shared memory a write is made by the thread that calls: data, cell, gate, at each peer. So
//! it is acknowledged when the call returns, and no thread is woken. Over sockets a request is sent
//! at once while nothing is under way, else with the next turn; a thread that waits takes the turns
//! itself.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a shell crate: it does the I/O that the cores do not"
)]

pub mod address;
mod files;
mod images;
mod link;
mod logs;
pub mod registry;
pub mod report;
pub mod store;
pub mod tls;
mod turn;
mod waiters;
mod windows;

pub use files::{PeerFiles, escape};
pub use logs::{Counts, Logs, LogsOptions};
