//! Near-compute logs: files of a program whose bytes lie in the memory of 2f+1 log peers (SplitFT
//! §4). This is the library as a state machine: it does no I/O and knows no clock.
//!
//! ```text
//!   program ── write, rename, … ──► Application ── Output::Send ──────► peers (memory protocol)
//!           ◄── check(number) ─────      │   ◄──── handle_reply ──────
//!                                        ├──────── Output::Store ─────► store: lease, map, peers
//!                                        │   ◄──── handle_store ──────
//!                    files: mirrors ◄────┴───────► links: one for each peer
//! ```
//!
//! - [`Application`]: the machine; its text is the protocol. `turn`: what happened, and what
//!   follows. `control`: map and peers. `program`: what programs do. `files`: mirrors, records.
//! - `memory`: what peers lend before a record needs it. `room`: which of them have room.
//!   `places`: the regions of one. `health`: whether files can be used, and why not.
//! - `link`: one peer, from its greeting to a copy that counts. `recover`: what a former copy has.
//! - `direct`: records that the program writes to the peers itself.
//! - `lease`: one instance at a time. [`map`]: what the store holds.
//! - [`layout`]: the bytes of a file at a peer. [`names`]: the table of names, a file itself.
//!
//! How it survives what is in docs/near-compute-logs.md.
#![no_std]

extern crate alloc;

mod application;
mod command;
mod control;
mod direct;
mod files;
mod health;
pub mod layout;
mod lease;
mod link;
mod log;
pub mod map;
mod memory;
pub mod names;
mod number;
mod places;
mod planted;
mod program;
mod recover;
mod room;
mod turn;

pub use application::{Application, OnLoss, Options, Status};
pub use command::{Asker, ChainPart, Command, Label, Output, StoreOperation, StoreReply};
pub use direct::Grant;
pub use files::{FILE_LEN_MAX, Image, Images, Progress, RECORD_LEN_MAX, Recalled, Sizes, Stat};
pub use names::{Metadata, NameEdit};
pub use number::{FileNumber, Number};
#[cfg(feature = "planted")]
pub use planted::Mutant;
