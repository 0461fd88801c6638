//! RocksDB as a server: `replica-rocksdb` of `peers/`, alone in its chain.
//!
//! The paper built a server for it, too. This one makes one batch, and so one write of the log, of
//! all requests that are ready in a turn.

use super::super::house::Process;
use super::{Server, served};
use gabion_base::{Error, Result};
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub(super) const PROGRAM: &str = "replica-rocksdb";
/// The word before its addresses.
const READY: &str = "ready ";

pub(super) fn start(
    mut command: Command,
    log: PathBuf,
    is_synced: bool,
    records: u64,
) -> Result<Box<dyn Server>> {
    // Files beside the log go through the page cache, as by default, and as those of the others do.
    command.args(["--place", "1", "--of", "1", "--dir", ".", "--buffered"]);
    command.args(["--log", if is_synced { "synced" } else { "on" }]).stdout(Stdio::piped());
    let mut process = Process::start(&mut command, log)?;
    let lines = process.until(READY)?;
    let told = lines.last().and_then(|line| line.strip_prefix(READY)?.split(' ').next());
    let address = told.and_then(|clients| clients.parse().ok());
    let bad = || Error::corruption(format!("{PROGRAM}: it says {lines:?}, which is no address"));
    Ok(served::serve(PROGRAM, process, address.ok_or_else(bad)?, records))
}
