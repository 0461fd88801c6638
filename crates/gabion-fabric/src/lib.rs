//! Drivers that make media real on Linux.
//!
//! ```text
//!   cores ── Medium ──► FileMedium ─┬─ io_uring        ─┐
//!                                   └─ threads, pread   ├─► one locked descriptor of the pool (PoolFile)
//!   jobs ── block_on ─► BlockingMedium ─► FileMedium ───┘
//!   log  ── MemoryRegion ─► MappedRing ─► a MAP_SHARED file
//!   NVMe/TCP protocol ── Transport ──► TcpTransport ─► a socket
//!   memory protocol ──── Transport ──► a socket; or none: a region that both ends have mapped
//! ```
//!
//! - [`mod@file`]: pool files and block devices; [`blocking`]: the same for threads that may sleep.
//! - [`space`]: free space and pool files that own all of theirs; [`fresh`]: names that replace
//!   nobody's file; [`lock`]: one process per pool.
//! - [`ring`]: mapped memory that survives the kill of the process.
//! - [`tcp`]: sockets; [`nvme`]: the threads that serve a region and ship into others.
//! - [`remote`]: a log peer's thread, connections to it, and memory that processes share.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a shell crate: it does the I/O that the cores do not"
)]

pub mod blocking;
pub mod cipher;
mod engine;
pub mod file;
pub mod fork;
pub mod fresh;
mod ledger;
pub mod lock;
pub mod nvme;
mod pool_io;
pub mod remote;
pub mod ring;
pub mod space;
pub mod tcp;
mod uring;

pub use blocking::BlockingMedium;
pub use cipher::{Cipher, Ciphers};
pub use file::{Backend, BackendChoice, DirectIo, FileMedium, MediumOptions, PoolFile};
pub use ring::MappedRing;
pub use space::{free_space, preallocate};
pub use tcp::TcpTransport;

#[cfg(test)]
mod tests;
