//! The interposer: a shared library that `LD_PRELOAD` puts in front of the C library. Calls that
//! change files whose names match go to a store of logs too; all others go to the kernel as ever.
//!
//! ```text
//!  program ── open, write, fsync, rename, stat, … ──► entries ─┬─ not mirrored ─► kernel
//!                                                              │
//!                 descriptors: one atomic word each ◄──────────┤ mirrored
//!                                                              ▼
//!    names, attributes ─► ask ─► owner        bytes ─► kernel (memory file) and ring of records
//! ```
//!
//! - `entries`: the functions that take the place of the C library's. They hold nothing but calls.
//! - `state`: whether this process is interposed, and which descriptors are mirrored.
//! - `ask`: one request to the owner. `raw`: system calls by number.
//! - `direct`: records that this process writes to the log peers itself.
//! - `split`: files that stay in the file system, whose small writes are frames of the journal.
//! - `exec`: programs that are started.
//! - `bytes`, `names`, `attributes`, `descriptors`, `streams`: what the calls do.
//!
//! Rules of all of it, as it runs inside of any function of any program, signal handlers and the
//! loader's constructors included:
//!
//! - The kernel is called by number, never through a function of the C library that this library
//!   stands in front of. Nothing is looked up but the functions of streams.
//! - Nothing is allocated. There are no locks but that of the shared memory, under which signals
//!   are held back.
//! - A call that has nothing to do with mirrored files costs one look at a word, or at a name; once
//!   any file is mirrored, an open also asks for the number of what it opened.
//! - Without [`ENVIRONMENT`](gabion_mirror::wire::ENVIRONMENT) the library does nothing. With it,
//!   and without an owner, it ends the program: never is it half there.
//!
//! `unsafe` is in `raw`, `state`, `direct`, `streams`, `exec`, `entries`, and `planted`, which only
//! tests have.
#![allow(clippy::disallowed_methods, reason = "a shell: it stands between programs and the kernel")]

mod ask;
mod attributes;
mod bytes;
mod descriptors;
mod direct;
mod entries;
mod exec;
mod names;
#[cfg(feature = "planted")]
mod planted;
mod raw;
mod split;
mod state;
mod streams;
