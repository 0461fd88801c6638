//! `gabion destroy`.
//!
//! Data of another version is no reason to keep the disk full, but a reason to ask: `--yes` meant
//! data that this version knows. So without a prompt it takes `--force`. Files that are not
//! Gabion's by their own bytes stay, whatever their names, and are listed.

use crate::cluster::{self, Lock};
use crate::options::DestroyOptions;
use crate::screen::put;
use crate::units::{count, size};
use gabion_base::{Error, ErrorKind, Result};
use std::io;
use std::path::{Path, PathBuf};

pub(crate) fn run(options: &DestroyOptions) -> Result<u8> {
    let data = cluster::data_dir(&options.data)?;
    if cluster::is_unfinished(&data)? && clear(&data)? {
        return Ok(0);
    }
    let what = match cluster::load_existing(&data) {
        Ok(settings) => {
            cluster::check_whole(&settings, &data)?;
            let replicas = count(u64::from(settings.replicas * settings.groups), "replica");
            format!("{replicas}, {} of disk", size(settings.reserved()))
        }
        Err(error) => told_of_strange_data(error, options)?,
    };
    let _lock = Lock::take(&data)?;
    if !options.yes {
        put(&format!("Remove all data in {} ({what})? Type yes: ", data.display()));
        let mut answer = String::new();
        let _ = io::stdin().read_line(&mut answer);
        if answer.trim() != "yes" {
            put("nothing was removed\n");
            return Ok(2);
        }
    }
    let left = cluster::remove(&data)?;
    put(&format!("removed {}: {what}\n", data.display()));
    tell_left(&left);
    Ok(0)
}

/// Removes the remains of an interrupted creation or removal, without asking: they hold nothing, or
/// were to be removed. Returns false if that work was all but done, or is by now, so that data is
/// there.
fn clear(data: &Path) -> Result<bool> {
    let _lock = Lock::take(data)?;
    if !cluster::clear_leftovers(data)? {
        return Ok(false);
    }
    let left = cluster::remove_place(data)?;
    let place = data.display();
    put(&format!("removed what an interrupted creation or removal had left in {place}\n"));
    tell_left(&left);
    Ok(true)
}

/// Lists the remaining files.
fn tell_left(left: &[PathBuf]) {
    for path in left {
        put(&format!("left, as it is not Gabion's: {}\n", path.display()));
    }
}

/// The question about data whose `cluster.json` this version cannot read.
///
/// # Errors
/// The error itself, for `--yes` without `--force`, or if it is another error.
fn told_of_strange_data(error: Error, options: &DestroyOptions) -> Result<String> {
    let is_strange = matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Corruption);
    if !is_strange {
        return Err(error);
    }
    if options.yes && !options.force {
        let message = format!(
            "{}; nothing was removed: without --yes it is asked, with --yes --force not",
            error.message()
        );
        return Err(Error::new(error.kind(), message));
    }
    Ok(error.message().to_owned())
}
