//! The process of a replica.
//!
//! ```text
//!   connections ─► door ─► commands ─► NodeStore ─┐
//!   members     ─► mesh ─────────────────────────►├─► Node ─► work ─► loop's tasks, job threads,
//!   threads     ─► events ───────────────────────►┘                   ship thread, target thread
//! ```
//!
//! - [`run()`]: a replica from its directory until a signal; [`create_replica`]: such a directory.
//! - [`commands`]: what a Redis client may ask, from the words of a request to its reply.
//! - `server`: the loop and its turns; `door` and `client`: connections of clients; `mesh` and `peers`:
//!   connections of members, commands that they forward (`forward`); `run`: commands at this node;
//!   `store`: the node as what commands run on; `shipping` and `warm`: threads (those of jobs: `gabion-db`); `admin` and
//!   `status`: `GABION …`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a shell: clocks, threads, files and sockets are its business"
)]

mod admin;
mod client;
pub mod commands;
mod config;
mod door;
mod events;
mod forward;
mod host;
#[cfg(test)]
mod hostile;
mod marks;
mod mesh;
mod peers;
mod process;
mod routing;
mod run;
mod server;
mod settings;
mod shipping;
mod start;
mod status;
mod store;
mod warm;

pub use admin::RecordDigest;
pub use config::{ExitReason, PeerAddress, ServerConfig, exit_code};
pub use gabion_db::replica::{create_replica, random_id};
pub use gabion_fabric::BackendChoice;
pub use start::run;
pub use status::memory_json;
