//! `gabion db`: the pool of one replica, looked into while nothing runs on it.
//!
//! ```text
//!   AtRest (locked, read-only) ─┬─► get, scan     the replica as after a start: tree and recovered log
//!                               ├─► stats         what is where, how much of it
//!                               ├─► dump …        each part for itself, in the order of its bytes
//!                               └─► scrub         every live file and segment against its checksums
//!                                      └─► Out: `thing key=value …` lines, or JSON
//! ```
//!
//! - [`out`]: how things are told, as text and as JSON, and what counts as damage.
//! - [`records`]: `get`, `scan`; [`stats`]; [`scrub`].
//! - [`pool`], [`log`], [`edits`], [`file`](mod@file): the parts of `dump`.
//!
//! A part that is damaged hides no other: what cannot be read is named, the rest is shown, and the
//! exit code is 1.

mod edits;
mod file;
mod log;
mod out;
mod pool;
mod records;
mod scrub;
mod stats;

use crate::at_rest::AtRest;
use crate::cluster::{self, replica_dir};
use crate::options::{DataOption, DbCommand, DbOptions, DbPlace, DumpCommand};
use gabion_base::{Error, ErrorKind, Result};
use out::{Out, Told};
use std::path::PathBuf;

pub(crate) fn run(options: &DbOptions) -> Result<u8> {
    let pool = open(&options.place)?;
    let mut out = Out::new(std::io::stdout(), options.place.json);
    let told = look(pool, &options.command, &mut out);
    out.end(told)
}

fn look(pool: AtRest, command: &DbCommand, out: &mut Out) -> Told {
    match command {
        DbCommand::Get { key } => records::get(pool, key, out),
        DbCommand::Scan(range) => records::scan(pool, range, out),
        DbCommand::Stats => stats::show(&pool, out),
        DbCommand::Scrub => scrub::run(&pool, out),
        DbCommand::Dump(what) => match what {
            DumpCommand::Superblock => pool::superblock(&pool, out),
            DumpCommand::Slots => pool::slots(&pool, out),
            DumpCommand::Placements => pool::placements(&pool, out),
            DumpCommand::Log { entries } => log::dump(&pool, *entries, out),
            DumpCommand::Edits => edits::dump(&pool, out),
            DumpCommand::File { number, entries } => file::dump(&pool, *number, *entries, out),
        },
    }
}

fn open(place: &DbPlace) -> Result<AtRest> {
    AtRest::open(&pool_path(place)?).map_err(|error| match error.kind() {
        ErrorKind::Busy => error.within("the replica must not be running"),
        _ => error,
    })
}

fn pool_path(place: &DbPlace) -> Result<PathBuf> {
    if let Some(pool) = &place.pool {
        return Ok(pool.clone());
    }
    let data = cluster::data_dir(&DataOption { data: place.data.clone() })?;
    let number = place.replica.unwrap_or(1);
    let pool = replica_dir(&data, number).join("pool");
    if !pool.exists() {
        let settings = cluster::load_existing(&data)?;
        if number > settings.replicas {
            return Err(Error::not_found(format!(
                "--replica {number}: {} has replicas 1 to {}",
                data.display(),
                settings.replicas
            )));
        }
    }
    Ok(pool)
}
