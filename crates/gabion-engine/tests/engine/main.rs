//! The engine through its public API, in one program: it is linked once, and its tests run side by side.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends at its first surprise")]

mod counters;
mod determinism;
mod each;
mod filters;
mod flips;
mod fork;
mod golden_edit;
mod golden_sst;
mod image;
mod jobs;
mod loads;
mod many;
mod ranges;
mod readers;
mod segments;
mod support;
mod tree_model;
mod tree_rules;
mod values;
mod values_ahead;
mod values_packed;
