//! Protocol cores of replication. Nothing here does I/O, knows a clock or rolls dice.
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
//! - [`Protocol`]: the seam; [`begin`] gives a view its protocol. [`chain`]: the chain, whose
//!   module text is the protocol. [`Alone`]: a group of one. [`LeftOut`]: of a replica that is no
//!   member.
//! - [`GroupView`]: term, configuration and members.
//! - [`message`] and [`frame`]: the messages between members, and their bytes.
//! - [`spans`]: the term that wrote each part of a log; the point where two logs part.
//!
//! Log records are opaque here: positions, lengths and the checksum of the last one. Files do
//! not occur here, and edits are numbers. The glue that owns log, tree and pool is `gabion-node`.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod action;
mod alone;
pub mod chain;
mod config;
pub mod frame;
mod left_out;
pub mod message;
mod planted;
mod protocol;
pub mod spans;
#[cfg(test)]
mod tests;
mod view;

pub use action::{Action, LocalState, MemberStatus, Whole};
pub use alone::Alone;
pub use chain::Chain;
pub use config::Config;
pub use frame::{Encoded, Frame};
pub use gabion_base::LogKind;
pub use left_out::LeftOut;
pub use message::{ANY_TERM, Lease, Lost, MemberState, Message, Progress, Watermarks};
pub use protocol::{Protocol, begin};
pub use spans::{OPEN, Span, Spans};
pub use view::{Addresses, GroupView, Member};
