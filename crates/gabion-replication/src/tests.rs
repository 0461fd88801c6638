//! Tests of the protocol: `interaction` replays written exchanges, `simulation` runs random ones
//! under `checkers`, `golden` pins the bytes. `cluster` is the fake world that they share.

mod checkers;
mod cluster;
mod golden;
mod interaction;
mod lease;
mod left_out;
mod protocol;
mod simulation;
mod term_start;
