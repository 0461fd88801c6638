//! The memory protocol on sockets and in shared memory: drivers of the cores in
//! `gabion_media::remote`.
//!
//! ```text
//!   PeerServer, thread gabion-peer          Peer ── regions: sealed memfds, mapped here
//!     ├─ TCP ◄──────── PeerLink             requests, replies
//!     └─ Unix socket ◄ PeerLink             the same, and descriptors of regions (SCM_RIGHTS)
//!                        └─ SharedRegion ── copies into the memfd, reads the gate
//! ```
//!
//! - [`server`]: the peer's thread; [`figures`]: its numbers. [`link`]: a client's connection.
//! - [`shared`]: regions that a client writes by itself, and why such a write counts.
//! - [`supply`]: the peer's memory: sealed memfds and gates. `mapping`: raw memory, all `unsafe`
//!   of this.
//! - `unix`: a socket that carries descriptors.

pub mod figures;
pub mod link;
mod mapping;
pub mod server;
pub mod shared;
pub mod supply;
mod unix;

#[cfg(test)]
mod tests;

pub use figures::{PeerFigures, Sockets, Traffic};
pub use link::{LinkAddress, PeerLink};
pub use server::{PeerServer, ServerOptions};
pub use shared::{SharedRegion, write_chain};
pub use supply::MemorySupply;
