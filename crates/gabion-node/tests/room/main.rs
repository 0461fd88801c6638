//! What a replica alone does when its disk is too small or damaged: devices without space, pools without
//! slots, files that are not what was written; where its state is captured; how its keys expire; how it goes on behind
//! a bulk load; for how long its writers wait; and what clears last by.
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod clears;
mod damage;
mod expiry;
mod full_pool;
mod held;
mod loads;
mod marks;
mod no_space;
mod pins;
mod replica;
