//! What runs a node: its threads, caches and clock, and the opening of the pool and ring that it
//! lies in.
//!
//! ```text
//!   directory ─ lock, pool, ring ─► replica ─► Node, StoreParts
//!                                               │       │
//!        Output::Work ◄─────────────────────────┘       ▼
//!             └────► jobs: gabion-flush, gabion-compact, gabion-io ─► JobSink ─► Node
//!   clock ─► Node     cache: blocks and open files of all readers     memory: what all takes
//! ```
//!
//! Whoever has a node owns its loop: the server's event loop, or the lock of the embedded store.
//! Both use the same parts.
//!
//! - [`replica`]: making and opening a replica's directory. [`owned`]: whose a file in it is.
//! - [`jobs`]: the threads that flush, compact and write. [`RunOptions`]: what may change
//!   meanwhile.
//! - [`cache`]: what readers have in memory. [`memory`]: what a replica takes of it. [`clock`]: the
//!   time it goes by.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a shell: clocks, threads and files are its business"
)]

pub mod cache;
pub mod clock;
pub mod jobs;
pub mod memory;
pub mod owned;
pub mod replica;
mod run;

pub use run::RunOptions;
