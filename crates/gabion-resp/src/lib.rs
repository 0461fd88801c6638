//! The Redis serialization protocol, versions 2 and 3, shared by the server's door, the command
//! line and the benchmark client.
//!
//! ```text
//!   client ── bytes ──► RequestParser ──► Request (arguments are views of the read buffer), or
//!                                         TooLarge (it was over a limit, and was not kept)
//!   client ◄── bytes ── Reply::encode ◄── Reply
//!             bytes ──► ReplyParser   ──► Reply    (the other end: CLI, benchmark)
//!             bytes ◄── encode_request
//! ```
//!
//! Both parsers work on a buffer that grows: they take whole elements, remember their position and
//! return `None` when more must be read. Nothing is allocated before a length has passed its cap
//! (see [`limits`]). Nothing here does I/O.
//!
//! Source: the RESP specification and the wording of Redis 7's protocol errors.
#![no_std]

extern crate alloc;

pub mod args;
pub mod client;
pub mod error;
pub mod glob;
pub mod input;
#[cfg(test)]
mod mangle;
pub mod reply;
pub mod request;

pub use args::Args;
pub use client::{ReplyParser, encode_request};
pub use error::ProtocolError;
pub use glob::{glob_match, glob_prefix};
pub use input::Input;
pub use reply::{Protocol, Reply, put_bulk};
pub use request::{Excess, Incoming, Request, RequestParser, TooLarge};

/// Caps on what a peer may send. Each is checked before memory is reserved for it.
pub mod limits {
    use gabion_base::units::{KIB, MIB, RECORD_LEN_MAX, VALUE_LEN_MAX};

    /// Most elements of one array, map, set or request.
    pub const ELEMENTS_MAX: usize = 1 << 20;
    /// Longest bulk string of a request that is kept: the longest value. A request with a longer
    /// one is read and dropped, and becomes a [`TooLarge`](crate::TooLarge).
    pub const BULK_LEN_MAX: usize = VALUE_LEN_MAX;
    /// Longest bulk string of a request that is read, as in Redis (`proto-max-bulk-len`).
    pub const BULK_LEN_DROPPED_MAX: usize = 512 * MIB as usize;
    /// Most argument bytes of one request that is kept: those of one log record.
    pub const REQUEST_LEN_MAX: usize = RECORD_LEN_MAX;
    /// Longest inline request, as in Redis.
    pub const INLINE_LEN_MAX: usize = 64 * KIB as usize;
    /// Longest line that announces a count or a length: 20 digits, and some more.
    pub const HEADER_LEN_MAX: usize = 32;
    /// Longest simple string, error or big number in a reply.
    pub const REPLY_LINE_LEN_MAX: usize = 64 * KIB as usize;
    /// Longest bulk string of a reply, as in Redis.
    pub const REPLY_BULK_LEN_MAX: usize = 512 << 20;
    /// Deepest nesting of a reply.
    pub const REPLY_DEPTH_MAX: usize = 8;
}
