//! The controller: it knows the members of each group, notices which have failed, and makes the
//! next view (RubbleDB §4.1: the replicator detects and recovers from failed replicas). Nothing
//! here does I/O, knows a clock or rolls dice.
//!
//! ```text
//!   replicas ── Report ──► Detector ──► verdicts ─┐
//!   store ───── GroupRecord ──────────────────────┴─► plan::next ──► Swap (intended) ──► stored
//!                                                                                          │
//!   replicas ◄── View ─────────────────────────────────────────────────────────────────────┤
//!   replicas ── Report: all have it, its term has begun ──► Swap (complete)  ◄─────────────┘
//! ```
//!
//! - [`Controller`]: the machine; its text is the protocol. [`Command`]: an operator's wish.
//! - [`Report`], [`Output`]: everything that it hears and says; [`wire`]: the same in bytes.
//! - [`detector`]: who has failed. [`plan`]: what follows. [`record`]: what is remembered.
//! - [`users`]: the users of a cluster, and who changes them.
//! - [`store`]: where, and the contract of every store; [`store_wire`]: for other processes;
//!   [`tally`]: what they asked.
//!
//! The data path needs no controller: members go on in their view while it is away.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod command;
mod controller;
mod cut;
pub mod detector;
mod filling;
mod frame;
pub mod plan;
mod planted;
pub mod record;
mod spoken;
pub mod store;
pub mod store_wire;
pub mod tally;
#[cfg(test)]
mod tests;
pub mod users;
mod vitals;
pub mod wire;

pub use command::Command;
pub use controller::Controller;
pub use detector::{Patience, Probe, Verdict};
pub use filling::{Filling, FillingStep};
#[cfg(feature = "planted")]
pub use planted::Mutant;
pub use record::{Event, GroupRecord};
pub use spoken::{Epoch, GroupStatus, Moment, Output, ReplicaStatus, Report};
pub use store::{Store, Swapped, Version, Versioned};
pub use vitals::{BUCKETS, Lag, Times, Vitals};
