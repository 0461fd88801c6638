//! Protocol core of replication: the chain. Nothing here does I/O, knows a clock or rolls dice.
//!
//! ```text
//!   connections ── handle_connected / handle_disconnected ─┐
//!   frames      ── Frame::decode ─► handle_message ────────┤          ┌─► Send(frame)
//!   own log     ── handle_appended / placed / durable ─────┼─► Chain ─┼─► SendLog, Place, Truncate, Follow
//!   own tree    ── handle_edit_applied, handle_trimmed ────┤  (poll)  ├─► AdoptTerm, VoidGrants
//!   time        ── handle_tick(now) ───────────────────────┘          └─► Ready / NotReady, Deliver
//!
//!        records ─────►          records ─────►
//!   head ─────────────── middle ─────────────── tail          (RubbleDB §4.1: chain replication)
//!     ◄──── acks ──────────┘                     │
//!     ◄──── acks ────────────────────────────────┘
//! ```
//!
//! - [`chain`]: the state machine; its module text is the protocol.
//! - [`message`] and [`frame`]: what members say, and how it lies in bytes.
//! - [`spans`]: which term wrote which part of a log; where two logs part.
//!
//! Log records are opaque here: positions, lengths and the checksum of the last one. Files are
//! numbers. The glue that owns log, tree and pool is `gabion-node`.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod action;
pub mod chain;
pub mod frame;
pub mod message;
mod planted;
pub mod spans;
#[cfg(test)]
mod tests;

pub use action::{Action, LocalState, MemberStatus, Role, Whole};
pub use chain::{Chain, ChainConfig};
pub use frame::{Encoded, Frame};
pub use message::{ANY_TERM, Lost, MemberState, Message, Progress, Watermarks};
pub use spans::{OPEN, Span, Spans};
