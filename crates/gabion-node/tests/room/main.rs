//! What a replica alone does when its disk is too small or damaged: devices without space, pools without
//! slots, files that are not what was written; where its state is captured; and how its keys expire.
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod damage;
mod expiry;
mod full_pool;
mod marks;
mod no_space;
mod pins;
mod replica;
