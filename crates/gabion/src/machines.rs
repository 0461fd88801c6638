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
//! - [`config`]: `controller.toml` and `node.toml`. [`trust`]: certificates,
//!   and which addresses may be used.
//! - [`controller`]: the process; [`registrar`]: its answers; [`registry`]: what it remembers.
//! - [`node`]: the process; [`hosted`]: a replica that it holds.
//! - [`wire`]: questions and answers. [`commands`]: the commands that ask. [`shown`]: those that a
//!   group of `up` stands for.

pub(crate) mod commands;
pub(crate) mod config;
pub(crate) mod controller;
pub(crate) mod hosted;
pub(crate) mod node;
mod registrar;
mod registry;
pub(crate) mod shown;
pub(crate) mod trust;
mod wire;

pub(crate) use commands::{Groups, ask, groups};
pub(crate) use config::DoorAddresses;
pub(crate) use trust::show;
pub(crate) use wire::accepted;

use crate::cluster::{failed, write_settings};
use crate::control::unix_ms;
use crate::screen::put;
use crate::units::utc;
use gabion_base::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::Path;

/// A line with its time.
fn say(line: &str) {
    put(&format!("{}  {line}\n", utc(unix_ms())));
}

/// Reads a JSON file of this version; none where there is none.
///
/// # Errors
/// Corruption for another file; unsupported for another version; I/O.
fn load_file<T: DeserializeOwned>(
    path: &Path,
    known: u32,
    format: impl Fn(&T) -> u32,
) -> Result<Option<T>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path, "cannot be read", error)),
    };
    let found: T = serde_json::from_slice(&bytes).map_err(|error| {
        Error::corruption(format!("{}: cannot be read: {error}", path.display()))
    })?;
    match format(&found) {
        format if format == known => Ok(Some(found)),
        format => Err(Error::unsupported(format!(
            "{}: has format {format}, this build knows {known}",
            path.display()
        ))),
    }
}

/// Writes a JSON file, whole or not at all.
fn save_file(directory: &Path, name: &str, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::invalid(format!("{name} cannot be written: {error}")))?;
    let new = directory.join(format!("{name}.unfinished"));
    write_settings(&directory.join(name), &new, &format!("{text}\n"))
}
