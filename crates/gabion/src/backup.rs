//! `gabion backup` and `gabion restore`: a running group, copied to a directory and made again from
//! it (docs/backup.md).
//!
//! ```text
//!   replica that answers reads ── GABION BACKUP ──► fetch ──► DIR ──► restore ──► new data for up
//!                                                              └─► list, verify, prune
//! ```
//!
//! - [`fetch`]: the moment, its entries in memory and its files, by the replica's door for clients.
//! - [`place`]: the directory: what lies where, whose it is, what is whole.
//! - [`manifest`]: the description of one backup, written last.
//! - [`look`]: `list`, `verify`, `prune`; [`restore`]: data made of a backup.
//! - [`several`]: a directory for each of several groups over which keys are spread.

mod fetch;
mod look;
mod manifest;
mod place;
pub(crate) mod restore;
mod several;
#[cfg(test)]
mod tests;

use crate::door::DoorOptions;
use crate::options::WhereOptions;
use clap::{Args, Subcommand};
use gabion_base::Result;
use gabion_bench::parse_bytes;
use std::path::PathBuf;

/// A backup that is made, or a question about those that were.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(arg_required_else_help = true)]
pub(crate) struct BackupOptions {
    #[command(subcommand)]
    command: Option<BackupCommand>,
    #[command(flatten)]
    make: MakeOptions,
}

#[derive(Args, Debug)]
pub(crate) struct MakeOptions {
    /// Directory of backups of this group, or of all groups over which keys are spread; made if it
    /// is not there. Only files that it lacks are copied
    #[arg(value_name = "DIR", required = true)]
    directory: Option<PathBuf>,
    #[command(flatten)]
    place: WhereOptions,
    #[command(flatten)]
    door: DoorOptions,
    /// Bytes a second that are fetched at most, 1MiB or more [default: as fast as it goes]
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    rate: Option<u64>,
    /// Read the files that are there already, too, and fetch those anew that are damaged
    #[arg(long)]
    check: bool,
    /// The result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand, Debug)]
enum BackupCommand {
    /// The backups of a directory, the oldest first
    List {
        /// Directory of backups
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Compare every byte of backups with its checksum. Exit code 1 when something is damaged
    Verify {
        /// Directory of backups
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Number of a backup [default: all of them]
        #[arg(value_name = "BACKUP")]
        number: Option<u64>,
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Remove the oldest backups, and the files that no other needs
    Prune {
        /// Directory of backups
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// How many of the newest stay
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        keep: u64,
    },
}

/// The least rate: with less, a large file would not come within a reader's time.
const RATE_MIN: u64 = 1 << 20;

fn parse_rate(text: &str) -> Result<u64, String> {
    let rate = parse_bytes(text)?;
    match rate {
        RATE_MIN.. => Ok(rate),
        _ => Err(format!("{rate} bytes a second, the limit is {RATE_MIN} or more")),
    }
}

pub(crate) fn run(options: &BackupOptions) -> Result<u8> {
    match &options.command {
        None => fetch::run(&options.make),
        Some(BackupCommand::List { directory, json }) => several::say(directory, *json, look::list),
        Some(BackupCommand::Verify { directory, number, json }) => {
            several::say(directory, *json, |dir| look::verify(dir, *number))
        }
        Some(BackupCommand::Prune { directory, keep }) => {
            several::say(directory, false, |dir| look::prune(dir, *keep))
        }
    }
}
