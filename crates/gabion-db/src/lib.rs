//! The embedded store: a replica without a server, in the caller's process.
//!
//! ```text
//!   put, write ─► core (a lock) ─► Node ─► ring, MemTable        get, iter ─► view ─► MemTables
//!                     ▲              │                                          └──► caches ─► files
//!                     │              ▼
//!                 results ◄── gabion-flush, gabion-compact, gabion-io
//! ```
//!
//! Who waits for a write to be durable writes and flushes the log itself, if nobody else does just then (`drain`).
//!
//! A [`Db`] is the head of a group of one, so everything that holds for a replica holds for it: the same
//! log, pool, files, recovery and formats. A directory that it made can be looked at with `gabion db`.
//!
//! - [`Db`]: opening, writing, reading. [`Options`]: what is fixed when a store is made, and what is not.
//! - [`checkpoint`]: a copy of a store while it is in use, or of a replica at rest.
//! - [`BulkLoad`]: sorted pairs that become files at once.
//! - [`Snapshot`]: the store at one moment. [`Cursor`] and [`Range`]: its pairs in order, either way.
//! - [`memory`]: what a store takes of it, by what for.
//! - [`replica`], [`jobs`] and [`cache`]: opening a replica, the threads that work for one, what its readers have in
//!   memory; shared with the server.
//!
//! ```
//! use gabion_db::{Db, Durability, Options, WriteBatch};
//!
//! # let dir = std::env::temp_dir().join(format!("gabion-db-doc-{}", std::process::id()));
//! # let _ = std::fs::remove_dir_all(&dir);
//! let options = Options { pool_len: 128 << 20, ..Options::default() };
//! let db = Db::open_or_create(&dir, &options)?;
//! db.put(b"stone", b"grey")?;
//! let mut batch = WriteBatch::new();
//! batch.put(b"cage", b"steel");
//! batch.delete(b"stone");
//! db.write(&batch, Durability::Flushed)?;
//! assert_eq!(db.get(b"cage")?.as_deref(), Some(&b"steel"[..]));
//! assert_eq!(db.get(b"stone")?, None);
//! for pair in db.snapshot().range(b"a", Some(b"d")) {
//!     let (key, value) = pair?;
//!     assert_eq!((&key[..], &value[..]), (&b"cage"[..], &b"steel"[..]));
//! }
//! db.delete_range("a".."d")?;
//! assert_eq!(db.get(b"cage")?, None);
//! drop(db);
//! # std::fs::remove_dir_all(&dir).unwrap();
//! # Ok::<(), gabion_base::Error>(())
//! ```
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a shell: clocks, threads and files are its business"
)]

mod batch;
pub mod cache;
pub mod checkpoint;
pub mod clock;
mod compact;
mod core;
mod db;
mod drain;
mod iter;
pub mod jobs;
mod load;
pub mod memory;
mod moments;
mod options;
mod owned;
mod places;
mod ranges;
mod read;
pub mod replica;
mod views;

pub use batch::{Expiry, WriteBatch};
pub use db::{Db, DbStats, Held, StoreTime};
pub use gabion_engine::{Found, RangeSize};
pub use gabion_pool::Counts as SlotCounts;
pub use iter::{Bounds, Cursor, Range};
pub use load::{BulkLoad, Loaded};
pub use options::{Durability, Options, RunOptions};
pub use read::Snapshot;
