//! The memory protocol: regions of a peer's memory that are lent, written, read, published, fenced
//! and taken back. Both ends are state machines; the same bytes go over TCP, a Unix socket and the
//! pipe of the simulator.
//!
//! ```text
//!   client                                                              peer
//!   ClientConnection ── frames ──► Transport ──► PeerConnection ──► Peer ──► regions
//!     submit, poll   ◄── replies, in order, one `Written` for many ──┘      Stock: zeroed ahead
//!        │                                                                    ▲
//!        └── shared memory: copies into the region itself, reads its gate ────┘
//! ```
//!
//! - [`message`]: requests, replies and notices; [`codec`]: their bodies in bytes.
//! - [`frame`]: the header of each, drawn there; [`stream`]: frames out of any split of the bytes.
//! - [`peer`]: who holds which region; [`stock`]: memory that is zeroed ahead of need.
//! - [`serve`]: one connection at the peer; [`client`]: one at the client.
//! - [`simulated`]: memory and keys for tests and simulations.
//!
//! # Owners, terms and keys
//!
//! An *owner* is an application by name. Its *term* counts its instances and comes from the
//! controller. [`Request::Fence`] raises the term: from its reply on each access of a lower term
//! fails, all keys of the owner are new, and only then are numbers read. A region takes writes in
//! the term in which it was lent and in no other, so a new instance copies what it recovers into
//! regions of its own. A fence of the same term changes the keys alone: a client that connects
//! again fences first, and what its old connection left in the network carries dead keys.
//!
//! # Order
//!
//! A peer takes the requests of a connection in their order and replies in that order. The parts of
//! a write take effect in their order, all or none. `Written` answers every write up to its number
//! that has no reply yet.

pub mod client;
pub mod codec;
pub mod frame;
pub mod message;
pub mod peer;
pub mod serve;
pub mod simulated;
pub mod stock;
pub mod stream;

#[cfg(test)]
mod tests;

pub use client::{ClientConfig, ClientConnection, Completed};
pub use message::{
    ClientId, ConnectionGeneration, Incarnation, Key, Notice, OwnerUsage, Part, PeerId, Refusal,
    RefusalReason, RegionEntry, RegionId, Reply, Request, RequestNumber, Usage,
};
pub use peer::{Entry, Gate, LentMemory, Peer, PeerConfig, Supply};
pub use serve::{ConnectionConfig, PeerConnection};
