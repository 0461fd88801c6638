//! The baseline of RubbleDB's evaluation: a chain of replicas, each with a store of its own that flushes
//! and compacts for itself. A program of `peers/` puts RocksDB into it, `gabion bench replication`
//! measures it beside Gabion.
//!
//! ```text
//!   clients ── SET ──► head ── batches ──► middle ── batches ──► tail ◄── GET, RANGE ── clients
//!              ◄─ OK ───┘ ◄────── acks ──────┘ ◄────── acks ──────┘
//!
//!   a replica:  sockets ─► loop ─┬─► store, where it need not wait        flushes and compactions:
//!                                ├─► writer thread, while writes stall    threads of the store
//!                                └─► reader threads, for what has to come from the device
//! ```
//!
//! What decides about speed is done as in `gabion-server`, so that stores and replication are compared
//! and not servers: one loop without a task per request; all connections that are ready in a turn make
//! one batch and one send; acknowledgements are cumulative; the same codec of RESP. Besides:
//!
//! - A batch is encoded once, by the store of the head, and its bytes are the message ([`Batch::bytes`]).
//! - A replica passes batches on before it applies them, so replicas work at the same time. What it
//!   acknowledges to its predecessor it has applied, and so have all behind it.
//! - The loop never waits for the store: a write that stalls and a read that misses the cache go to threads,
//!   and while there are none, no thread is woken.
//!
//! It is made to be measured: a replica whose neighbour is gone ends, nothing is sent again or recovered,
//! messages between replicas have no checksums. All of that is work that Gabion does and this does not.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a shell: clocks, threads, files and sockets are its business"
)]

mod client;
mod commands;
mod door;
mod link;
mod process;
mod program;
mod server;
mod status;
mod store;
#[cfg(test)]
mod tests;
mod threads;
mod wire;

pub use program::{ReplicaArgs, program};
pub use server::{Place, Server};
pub use store::{Batch, Counters, Found, State, Store, Written};
