//! The embedded store: a replica without a server, in the caller's process.
//!
//! ```text
//!   put, write ─► core (a lock) ─► Node ─► ring, MemTable        get, iter ─► view ─► MemTables
//!                     ▲              │                                          └──► caches ─► files
//!                     │              ▼
//!                 results ◄── gabion-flush, gabion-compact, gabion-io
//! ```
//!
//! A write that waits for durability writes and flushes the log itself, if no other thread does
//! just then (`drain`).
//!
//! A [`Db`] is the head of a group of one, so all facts about a replica hold for it: the same log,
//! pool, files, recovery and formats. `gabion db` shows a directory that it made.
//!
//! - [`Db`]: opening, writing, reading. [`Options`]: the fixed options of a store, and the
//!   changeable ones.
//! - [`checkpoint`]: a copy of a store while it is in use, or of a replica at rest.
//! - [`BulkLoad`]: sorted pairs that become files at once.
//! - [`Snapshot`]: the store at one moment. [`Range`]: its pairs in order, as an iterator;
//!   [`Cursor`]: lent, and sought in.
//! - [`Memory`]: the memory of a store, by purpose.
//!
//! [`gabion_host`] opens the replica and has its threads and caches; a server uses it likewise.
//!
//! A store of events: appended, read by prefix, the latest first, kept for a while, copied while in
//! use.
//!
//! ```
//! use gabion_db::{Db, Durability, Expiry, Options, WriteBatch};
//! use std::time::Duration;
//!
//! # fn main() -> gabion_db::Result<()> {
//! # let dir = std::env::temp_dir().join(format!("gabion-db-doc-{}", std::process::id()));
//! # let _ = std::fs::remove_dir_all(&dir);
//! let options = Options { pool_len: 512 << 20, ..Options::default() };
//! let db = Db::open_or_create(&dir, &options)?;
//!
//! // Appended: keys in the order of their time, an index and a counter beside them, all or nothing.
//! for (at, who, what) in [(1_000, "ada", "login"), (1_002, "bob", "login"), (1_007, "ada", "post")] {
//!     let event = format!("event:{who}:{at:012}");
//!     let mut batch = WriteBatch::new();
//!     batch.put(&event, what);
//!     batch.put(format!("latest:{who}"), &event);
//!     batch.add("events", 1);
//!     db.write(&batch, Durability::Flushed)?; // survives a power cut from here on
//! }
//! assert_eq!(db.get("events")?.as_deref(), Some(&b"3"[..]));
//!
//! // By prefix, in order; the latest is the first from behind.
//! for pair in db.prefix("event:ada:") {
//!     let (key, what) = pair?;
//!     println!("{key:?} {what:?}");
//! }
//! let (_, what) = db.prefix("event:ada:").next_back().transpose()?.expect("there are some");
//! assert_eq!(what, "post");
//! assert_eq!(db.iter("event:ada:000000001000".."event:ada:000000001007").count(), 1);
//!
//! // What nobody needs tomorrow.
//! db.put_expiring("session:ada", "open", Expiry::In(Duration::from_secs(86_400)))?;
//!
//! // One moment, whatever is written meanwhile; and that moment as a store of its own.
//! let before = db.snapshot();
//! db.delete_prefix("event:bob:")?;
//! assert_eq!((before.prefix("event:").count(), db.prefix("event:").count()), (3, 2));
//! db.checkpoint(dir.join("copy"))?;
//! let copy = Db::open(dir.join("copy"), &options)?;
//! assert_eq!(copy.prefix("event:").count(), 2);
//! # drop((before, copy, db));
//! # std::fs::remove_dir_all(&dir).unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! Every error is an [`Error`]: a [kind](ErrorKind) to act on, a message that names the thing and
//! its limit, and the error that caused it as its source. All that signatures mention has a name in
//! this crate.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a shell: clocks, threads and files are its business"
)]

mod batch;
pub mod checkpoint;
#[cfg(test)]
mod clock_set;
mod compact;
mod core;
mod db;
mod drain;
mod iter;
mod load;
mod moments;
mod options;
mod places;
mod ranges;
mod read;
mod views;

pub use batch::{Expiry, WriteBatch};
pub use bytes::Bytes;
pub use checkpoint::Copied;
pub use db::{Db, DbStats, Held, StoreTime};
pub use gabion_base::{Error, ErrorKind, Result, SequenceNumber};
pub use gabion_engine::sst::SstOptions;
pub use gabion_engine::{
    Codecs, Compression, Found, LevelStats, RangeSize, TreeConfig, ValuesStats, WriteLimits,
};
pub use gabion_fabric::{Backend, BackendChoice};
pub use gabion_host::RunOptions;
pub use gabion_host::cache::WarmStats;
pub use gabion_host::memory::{Memory, MemoryKind};
pub use gabion_node::{Counters, StoppedMs};
pub use gabion_pool::Counts as SlotCounts;
pub use iter::{Bounds, Cursor, Keys, Range};
pub use load::{BulkLoad, Loaded};
pub use options::{Durability, Options};
pub use read::Snapshot;
