//! A whole cluster in one thread from one seed, running the *real* media, pool, log, engine,
//! replication and node cores.
//!
//! ```text
//!   seed ─► Random ─► World ─ step: who runs, what arrives, what breaks
//!                      ├─ Machine: SimulatedDisk, ring, Process (Node, executor, target, initiators)
//!                      ├─ links between members: FIFO, delayed, broken
//!                      ├─ byte pipes for NVMe/TCP: cut anywhere
//!                      └─ clients ─► history ─► linearizable?
//!   controllers, their store and their connections, in place of the world's own views
//!   at rest: replicas identical, no slot lost, none in quarantine
//! ```
//!
//! - [`world`]: the cluster and its steps. - [`process`]: the work of the server's loop and
//!   threads.
//! - [`client`]: the actions and observations of clients. - [`history`]: the linearizability
//!   checker.
//! - [`check`]: invariants at rest. - [`lost`]: disks that lose flushed data.
//! - [`seeds`]: many runs at once. - [`hostile`]: parsers of any room, fed with nearly valid bytes.
#![allow(clippy::disallowed_types, reason = "a test program; order never comes from hashing here")]

pub mod check;
pub mod client;
pub mod history;
pub mod hostile;
pub mod lost;
mod memory;
pub mod pipe;
pub mod process;
pub mod random;
pub mod seeds;
pub mod world;

pub use memory::SimulatedMemory;
pub use random::Random;
pub use world::{
    ControlFaults, ControlOptions, Faults, Image, Kept, Options, Outcome, Part, StoppedLog,
    Targets, World,
};
