//! What a replica alone does when its disk is too small or damaged: devices without space, pools without
//! slots, files that are not what was written; where its state is captured; how its keys expire; how it goes on behind
//! a bulk load; for how long its writers wait; what clears last by;
//! when its log is written to the device; and what comes of a record that its log does not take.
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod alone;
mod clears;
mod collection;
mod damage;
mod expiry;
mod failed_turn;
mod full_pool;
mod held;
mod loads;
mod marks;
mod no_space;
mod pins;
mod replica;
mod tombstones;
