//! What a replica alone does when its disk is too small or damaged: devices without space, pools without
//! slots, files that are not what was written; where its state is captured; how its keys expire; and how it goes on behind
//! a bulk load.
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod damage;
mod expiry;
mod full_pool;
mod loads;
mod marks;
mod no_space;
mod pins;
mod replica;
