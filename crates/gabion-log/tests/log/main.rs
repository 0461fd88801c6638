//! The log through its public API, in one program: it is linked once, and its tests run side by
//! side.
#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod common;
mod faults;
mod flips;
mod golden;
mod inspect;
mod model;
mod replicas;
mod smoke;
