//! The process of a replica.
//!
//! ```text
//!   connections ─► RESP door ─► commands ─► Store (the node)
//! ```
//!
//! - [`commands`]: what a Redis client may ask, from the words of a request to its reply.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a shell: clocks, threads, files and sockets are its business"
)]

pub mod commands;
