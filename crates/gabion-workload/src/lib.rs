//! Workloads for key-value engines, and their measurement: the same for every engine.
//!
//! ```text
//!   options ─► plan ─► run ─► Engine (Gabion's, RocksDB's, fjall's)
//!                       │  load, open again, warm up     │ put, get, scan …
//!                       ├─► workers: records, keys, values ┘
//!                       │      └─► latencies; every value that is read is checked
//!                       ├─► ledger: which version of which record must be there
//!                       └─► use of the process, by the kernel's counters ─► row (JSON)
//! ```
//!
//! - [`Engine`]: the interface of an engine; one implementation for each, in a program of its own.
//! - [`Workload`], [`RunArgs`]: the possible runs; [`run()`] runs one and gives its [`Row`].
//! - [`program()`]: the `main` of an engine's program; [`Build`] tells its sources.
//! - [`Values`], [`Sizes`], [`Chooser`], [`KeySpace`]: values that prove themselves and their
//!   sizes, the choice of records, and their keys. The benchmark of clusters takes them from here
//!   too.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a shell: clocks, threads and files are its business"
)]

mod args;
mod build;
mod check;
mod choose;
mod engine;
mod key;
mod latencies;
mod ledger;
#[cfg(test)]
mod memory;
mod program;
mod random;
mod row;
mod run;
mod sizes;
mod usage;
mod values;
mod work;
mod workload;

pub use args::{CommonArgs, OwnArgs, Plan, RunArgs, parse_bytes};
pub use build::Build;
pub use choose::{Chooser, Distribution, fnv_hash};
pub use engine::{Codec, Engine, EngineOptions, Log, Reads};
pub use gabion_proc::{MachineTime, STEPS_MAX};
pub use key::{KEY_LEN, Key, KeySpace, Permutation};
pub use latencies::Latencies;
pub use program::{locked_version, program, run_and_print};
pub use random::Random;
pub use row::{REVISION, Row};
pub use run::run;
pub use sizes::Sizes;
pub use usage::{directory_len, files_len, free_len};
pub use values::{Values, Wrong};
pub use workload::{Mix, Workload};
