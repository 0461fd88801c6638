//! Processes on machines of their own: `gabion controller`, `gabion node`, and the commands that
//! ask a controller (docs/machines.md).
//!
//! ```text
//!   gabion group create … ─► controller: door ─► Registrar ─► Registry ─┐
//!                               ▲  │                                    ├─► store
//!          what it has, twice a │  │ orders                  Driver ────┘
//!                        second │  ▼                           │ views, reports
//!                              node: Hosted ─► gabion server ◄─┘
//! ```
//!
//! `gabion up` is the same controller and the same processes of replicas with members that are
//! fixed in `cluster.json`, all on one machine.
//!
//! - [`config`]: `controller.toml` and `node.toml`. [`trust`]: which addresses may be used.
//! - [`controller`]: the process; [`registrar`]: its answers; [`registry`]: what it remembers.
//! - [`node`]: the process; [`hosted`]: a replica that it holds.
//! - [`wire`]: questions and answers. [`commands`]: the commands that ask. [`shown`]: those that a
//!   group of `up` stands for.

pub(crate) mod commands;
mod config;
pub(crate) mod controller;
pub(crate) mod hosted;
pub(crate) mod node;
mod registrar;
mod registry;
pub(crate) mod shown;
mod trust;
mod wire;

pub(crate) use commands::ask;
pub(crate) use config::DoorAddresses;
pub(crate) use wire::accepted;
