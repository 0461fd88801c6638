//! The controller's store in etcd, for controllers on several machines (docs/etcd.md).
//!
//! ```text
//!   thread of the store ─► EtcdStore: get, list, swap ──┐
//!                             │ swaps need the lead     ├─► Client ─► endpoints in turn
//!   gabion-lease ─► confirms it; Leadership: is it lost? ┤     JSON over HTTP, or over HTTPS
//!   gabion-watch ─► reads, then follows; Watch: changes ─┘
//! ```
//!
//! Names are keys, versions are modification revisions. A value carries a tag, by which a write
//! whose answer was lost is told from somebody else's.
//!
//! ```text
//!   PREFIX/values/NAME     u8 format = 1 | u64 handle | u64 count of its writes | the bytes
//!   PREFIX/leader          the leader's name, under its lease
//! ```
//!
//! - `url`: how a store is named. `client`: a call, its deadline, and the endpoints in turn.
//!   `tls`: connections that are encrypted.
//! - `wire`: messages of the gateway. `store`: the store. `lease`: who leads. `watch`: changes,
//!   without a gap.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a shell crate: it does the I/O that the cores do not"
)]

mod client;
mod lease;
mod store;
#[cfg(test)]
mod tests;
mod tls;
mod url;
mod watch;
mod wire;

pub use lease::{LEASE, Leadership, Led};
pub use store::{EtcdStore, NAME_LEN_MAX, VALUE_LEN_MAX};
pub use url::EtcdUrl;
pub use watch::{Change, Watch};
