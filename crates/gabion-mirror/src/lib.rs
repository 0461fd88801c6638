//! Mirrors of log files: programs that know nothing of Gabion write files whose bytes go to a store
//! of logs, and read them as if they were files.
//!
//! ```text
//!  processes of the application (gabion-preload)          `gabion ncl run` (owner)
//!  ┌──────────────────────────────┐   shared: lock, slots
//!  │ write ─► memory file (mirror)│   and ring of records   ┌──────────────────────┐
//!  │    └───► record ─────────────┼────────────────────────►│ ring ─► LogFiles     │
//!  │ fsync: waits until stored    │◄────────────────────────┤        (store)       │
//!  │ open, rename, unlink, stat ──┼── one request each ────►│ names ─► LogFiles    │
//!  └──────────────────────────────┘◄── descriptor of mirror ┴──────────────────────┘
//! ```
//!
//! - [`shared`]: the memory that processes and owner share: lock, slots of files, ring of records.
//! - [`direct`]: records that processes write to the log peers themselves.
//! - [`split`]: files whose small writes alone go to the store, by their [`journal`].
//! - [`times`]: how long processes waited until their changes were stored.
//! - [`wire`]: requests to the owner and its replies.
//! - [`pattern`]: the names of files that are mirrored.
//! - [`files`]: the trait of stores, [`LogFiles`](files::LogFiles); [`local`]: one in a directory.
//! - [`owner`]: mirrors, names, and the thread that hands records to the store.
//! - [`image`]: whether the calls of a program can be seen, by its file.
//! - [`program`]: which programs can be interposed; [`start`]: how one is started.
//!
//! `docs/ncl/interposer.md` is the page of this.
#![allow(
    clippy::disallowed_methods,
    reason = "a shell: files, sockets and threads are its business"
)]

pub mod direct;
#[cfg(feature = "owner")]
pub mod files;
#[cfg(feature = "owner")]
mod handle;
pub mod image;
pub mod journal;
#[cfg(feature = "owner")]
pub mod local;
mod looks;
#[cfg(feature = "owner")]
pub mod owner;
pub mod pattern;
#[cfg(feature = "owner")]
pub mod program;
pub mod shared;
pub mod split;
#[cfg(feature = "owner")]
pub mod start;
pub mod times;
mod told;
pub mod wire;
