//! `gabion db`: one replica's pool, inspected while nothing runs on it.
//!
//! ```text
//!   AtRest (locked, read-only) ─┬─► get, scan     the replica as after a start: tree and recovered log
//!                               ├─► size          what a range of it takes, by its indexes
//!                               ├─► stats         what is where, how much of it
//!                               ├─► dump …        each part for itself, in the order of its bytes
//!                               ├─► scrub         every live file and segment against its checksums
//!                               ├─► verify        scrub, and the rules that checksums do not show
//!                               └─► checkpoint    a copy that is a store of its own
//!   Db (locked, runs) ──────────┬─► compact       of a group of one
//!                               ├─► load          sorted records
//!                               └─► open          a prompt
//!                                      └─► Out: `thing key=value …` lines, or JSON
//! ```
//!
//! - [`out`]: the output, as text and as JSON, and the count of damage.
//! - [`records`]: `get`, `scan`, `size`; [`stats`]; [`scrub`]; [`verify`], with [`order`] for a
//!   file's entries.
//! - [`copy`]: `checkpoint`; [`compact`]; [`load`]; [`prompt`]: `open`.
//! - [`pool`], [`log`], [`edits`], [`file`](mod@file): the parts of `dump`.
//!
//! Damage in one part hides no other part: an unreadable part is named, the rest is shown, and the
//! exit code is 1.

mod compact;
mod copy;
mod edits;
mod file;
mod load;
mod log;
mod memory;
mod order;
mod out;
mod pool;
mod prompt;
mod records;
mod scrub;
mod stats;
mod verify;

pub(crate) use records::value_at_rest;

use crate::at_rest::AtRest;
use crate::cluster::{self, replica_dir};
use crate::options::{CodecOptions, DataOption, DbCommand, DbOptions, DbPlace, DumpCommand};
use gabion_base::{Error, ErrorKind, Result};
use gabion_db::{Db, RunOptions};
use out::{Out, Told};
use std::path::PathBuf;

pub(crate) fn run(options: &DbOptions) -> Result<u8> {
    match &options.command {
        DbCommand::Compact { from, to, codecs } => {
            return compact::run(&options.place, codecs, from, to);
        }
        DbCommand::Load { file, codecs } => {
            return load::run(&options.place, codecs, file.as_deref());
        }
        DbCommand::Open { words, codecs } => return prompt::run(&options.place, codecs, words),
        _ => {}
    }
    let pool = open(&options.place)?;
    let mut out = Out::new(std::io::stdout(), options.place.json);
    // The command itself reports why the pool or its log cannot be read.
    if let Ok(Some((may_miss, note))) = pool.ring_note() {
        eprintln!("gabion: {note}");
        if may_miss {
            out.count_damage();
        }
    }
    let told = look(pool, &options.command, &mut out);
    out.end(told)
}

fn look(pool: AtRest, command: &DbCommand, out: &mut Out) -> Told {
    match command {
        DbCommand::Get { key } => records::get(pool, key, out),
        DbCommand::Scan(range) => records::scan(pool, range, out),
        DbCommand::Size(range) => records::size(pool, range, out),
        DbCommand::Stats => stats::show(&pool, out),
        DbCommand::Scrub => scrub::run(&pool, out),
        DbCommand::Verify => verify::run(&pool, out),
        DbCommand::Checkpoint { target, pool_size } => copy::run(pool, target, *pool_size, out),
        DbCommand::Compact { .. } | DbCommand::Load { .. } | DbCommand::Open { .. } => {
            unreachable!("these run the store and do not look at it")
        }
        DbCommand::Dump(what) => match what {
            DumpCommand::Superblock => pool::superblock(&pool, out),
            DumpCommand::Slots => pool::slots(&pool, out),
            DumpCommand::Placements => pool::placements(&pool, out),
            DumpCommand::Log { entries } => log::dump(&pool, *entries, out),
            DumpCommand::Edits => edits::dump(&pool, out),
            DumpCommand::File { file, entries } => file::dump(&pool, *file, *entries, out),
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
        return Ok(if pool.is_dir() { pool.join("pool") } else { pool.clone() });
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

/// Opens a store to run it, which only a group of one allows, with other codecs if they are given.
fn open_store(place: &DbPlace, wanted: &CodecOptions, what: &str) -> Result<(Db, PathBuf)> {
    let path = pool_path(place)?;
    let members = open(place)?.pool()?.state.view.members.len();
    if members > 1 {
        return Err(Error::invalid(format!(
            "{}: belongs to a group of {members} replicas, which hold the same log and files, byte for byte; \
             {what} one alone would make it differ: that is for `gabion up` and its primary",
            path.display()
        )));
    }
    let named_pool = path.file_name().is_some_and(|name| name == "pool");
    let dir = path.parent().filter(|_| named_pool).ok_or_else(|| {
        Error::invalid(format!("{}: is not the `pool` of a directory", path.display()))
    })?;
    let db = Db::open(dir, &gabion_db::Options::default())?;
    let mut codecs = db.codecs();
    codecs.upper = wanted.compression.unwrap_or(codecs.upper);
    codecs.bottom = wanted.bottom_compression.or(codecs.bottom);
    db.set_run_options(RunOptions { codecs: Some(codecs), ..db.run_options() })?;
    for notice in db.take_notices() {
        eprintln!("gabion: {notice}");
    }
    Ok((db, dir.to_owned()))
}
