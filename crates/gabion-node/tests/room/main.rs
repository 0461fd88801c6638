//! Rooms that are too small: devices without space, pools without slots.
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod full_pool;
mod no_space;
mod replica;
