//! `gabion ncl ls|cat|stat|rm`: an application's files, as an operator sees them.

use super::opened::{FilesPlace, Right};
use super::run::failed;
use crate::screen;
use crate::units::{count, size};
use clap::Args;
use gabion_base::{Error, Result};
use gabion_bench::grouped;
use gabion_mirror::files::{Listed, NameChange};
use gabion_ncl_driver::escape;
use gabion_ncl_driver::report::InstanceReport;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;

#[derive(Args, Debug)]
pub(crate) struct LsOptions {
    #[command(flatten)]
    place: FilesPlace,
    /// For programs
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct CatOptions {
    #[command(flatten)]
    place: FilesPlace,
    /// Names as `ls` shows them
    #[arg(required = true, value_name = "NAME")]
    names: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct StatOptions {
    #[command(flatten)]
    place: FilesPlace,
    /// For programs
    #[arg(long)]
    json: bool,
    /// Names as `ls` shows them [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct RmOptions {
    #[command(flatten)]
    place: FilesPlace,
    /// End an instance that runs: it writes no more; names that it has not are refused before
    #[arg(long, requires = "controller")]
    take_over: bool,
    /// Names as `ls` shows them: all of them go, in one step, or none
    #[arg(required = true, value_name = "NAME")]
    names: Vec<OsString>,
}

pub(super) fn ls(options: &LsOptions) -> Result<u8> {
    if let Some((report, files)) = options.place.report()? {
        screen::put(&reported(options, &report, files));
        return Ok(0);
    }
    let opened = options.place.open(Right { is_idle: true, ..Right::default() })?;
    let text = match options.json {
        true => {
            let files = opened.listed.iter().map(|file| in_json(file, None));
            let files: Vec<Value> = files.collect();
            let application = &options.place.app;
            let value = json!({ "application": application, "running": false, "files": files });
            format!("{value:#}\n")
        }
        false => in_words(&opened.listed),
    };
    screen::put(&text);
    Ok(0)
}

/// The list of a running instance, which is seconds old.
fn reported(options: &LsOptions, report: &InstanceReport, files: u32) -> String {
    if options.json {
        let file = |name: &str, len: u64| json!({ "name": name, "bytes": len });
        let value = json!({
            "application": options.place.app,
            "running": true,
            "files_count": files,
            "files": report.files.iter().map(|it| file(&it.name, it.len)).collect::<Vec<_>>(),
        });
        return format!("{value:#}\n");
    }
    let mut out = String::new();
    for file in &report.files {
        // A string takes all.
        let _ = writeln!(out, "{:>13}  {}", grouped(file.len), file.name.escape_debug());
    }
    let more = u64::from(files).saturating_sub(report.files.len() as u64);
    if more > 0 {
        let _ = writeln!(out, "and {} more", count(more, "file"));
    }
    let _ = writeln!(
        out,
        "as process {} reported within the last seconds: the application runs",
        report.process
    );
    out
}

/// A name on a terminal: one that has odd bytes is told from all others.
fn shown(name: &[u8]) -> String {
    escape(name).escape_debug().to_string()
}

fn in_words(files: &[Listed]) -> String {
    let mut out = String::new();
    for file in files {
        let metadata = &file.metadata;
        for name in &file.names {
            let _ = writeln!(
                out,
                "{:04o} {:>5} {:>5} {:>13}  {}",
                metadata.mode & 0o7777,
                metadata.user,
                metadata.group,
                grouped(file.len),
                shown(name)
            );
        }
    }
    let bytes = files.iter().map(|file| file.len).sum();
    let _ = writeln!(out, "{}, {}", count(files.len() as u64, "file"), size(bytes));
    out
}

/// A file for programs: '%' and two digits stand for a byte that is no text, and for '%'.
pub(super) fn in_json(file: &Listed, sum: Option<u32>) -> Value {
    let mut value = json!({
        "name": file.names.first().map(|name| escape(name)),
        "names": file.names.iter().map(|name| escape(name)).collect::<Vec<_>>(),
        "file": file.file.0,
        "bytes": file.len,
        "mode": format!("{:o}", file.metadata.mode & 0o7777),
        "user": file.metadata.user,
        "group": file.metadata.group,
    });
    if let Some(sum) = sum {
        value["crc32c"] = json!(format!("{sum:08x}"));
    }
    value
}

pub(super) fn cat(options: &CatOptions) -> Result<u8> {
    let mut opened = options.place.open(Right::default())?;
    let files = opened.select(&options.names)?;
    let mut out = std::io::stdout().lock();
    for file in &files {
        opened.read(file, |bytes| out.write_all(bytes).map_err(|e| failed("output", e)))?;
    }
    out.flush().map_err(|error| failed("output", error))?;
    Ok(0)
}

pub(super) fn stat(options: &StatOptions) -> Result<u8> {
    let mut opened = options.place.open(Right::default())?;
    let files = opened.select(&options.names)?;
    let (mut values, mut text) = (Vec::new(), String::new());
    for file in &files {
        let sum = opened.read(file, |_| Ok(()))?;
        values.push(in_json(file, Some(sum)));
        let (metadata, names) = (&file.metadata, file.names.iter().map(|name| shown(name)));
        let _ = writeln!(
            text,
            "{}\n  {} bytes, CRC32C {sum:08x}\n  mode {:04o}, user {}, group {}; file {}",
            names.collect::<Vec<_>>().join("\n"),
            grouped(file.len),
            metadata.mode & 0o7777,
            metadata.user,
            metadata.group,
            file.file.0
        );
    }
    match options.json {
        true => screen::put(&format!("{:#}\n", Value::from(values))),
        false => screen::put(&text),
    }
    Ok(0)
}

pub(super) fn rm(options: &RmOptions) -> Result<u8> {
    let takes_over = options.take_over;
    if takes_over {
        check_reported(options)?;
    }
    let mut opened = options.place.open(Right { takes_over, ..Right::default() })?;
    opened.select(&options.names)?;
    let names: BTreeSet<&[u8]> = options.names.iter().map(|name| name.as_bytes()).collect();
    let changes: Vec<NameChange> =
        names.iter().map(|name| NameChange::Remove(name.to_vec())).collect();
    let removed = opened.store.edit_names(&changes).and_then(|()| opened.store.sync());
    removed.map_err(|error| failed("no name was removed", error))?;
    screen::put(&format!("{} removed\n", count(names.len() as u64, "name")));
    Ok(0)
}

/// A running instance is not ended for a name that it has not.
fn check_reported(options: &RmOptions) -> Result<()> {
    let Some(reported) = options.place.reported()? else { return Ok(()) };
    match reported.missing(options.names.iter().map(|name| name.as_bytes())) {
        None => Ok(()),
        Some(name) => Err(Error::not_found(format!(
            "there is no file '{}', as the running instance reported within the last seconds: it \
             was not ended, and no name was removed",
            String::from_utf8_lossy(name).escape_debug()
        ))),
    }
}

/// An error that names a path of the file system.
pub(super) fn at(path: &std::path::Path) -> impl Fn(std::io::Error) -> Error + '_ {
    |error| failed(&path.display().to_string(), error)
}
