//! Backups of several groups over which keys are spread: a directory of backups for each.
//!
//! ```text
//!   DIR/gabion-groups     how many groups there are, and the number of the first; written first
//!       group-1/          backups of the first group, as those of one
//!       group-2/          …
//! ```
//!
//! Groups are copied one after the other, each at a moment of its own: what a client wrote to two
//! groups is in the copy of one, of both, or of none.

use super::look::Seen;
use super::place::Place;
use crate::cluster::{failed, flush_dir};
use crate::machines::Groups;
use crate::options::WhereOptions;
use crate::screen::put;
use gabion_base::{Error, ErrorKind, GroupId, Result};
use gabion_fabric::fresh::NewFile;
use gabion_server::commands::slots::GROUPS_MAX;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::ErrorKind as IoKind;
use std::path::{Path, PathBuf};

const IDENTITY: &str = "gabion-groups";
const FORMAT: u32 = 1;

/// `gabion-groups`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Identity {
    format: u32,
    groups: u32,
    first: u64,
}

/// The groups with their directories in this one, which is made for them if it is not there.
///
/// # Errors
/// Invalid input for a directory of other groups, or of one; I/O.
pub(super) fn places(groups: Groups, dir: &Path) -> Result<Vec<(WhereOptions, PathBuf)>> {
    let count = groups.each.len() as u32;
    let wanted = Identity { format: FORMAT, groups: count, first: groups.first.get() };
    match load(dir)? {
        Some(found) if found == wanted => {}
        Some(found) => {
            return Err(Error::invalid(format!(
                "{}: has backups of {} groups from {} on, these are {} from {} on; take another \
                 directory",
                dir.display(),
                found.groups,
                found.first,
                wanted.groups,
                wanted.first
            )));
        }
        None => make(dir, wanted)?,
    }
    let dirs = (1..=count).map(|number| of_group(dir, number));
    Ok(groups.each.into_iter().zip(dirs).collect())
}

fn of_group(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("group-{number}"))
}

fn make(dir: &Path, identity: Identity) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|e| failed(dir, "cannot be made", e))?;
    let mut list = std::fs::read_dir(dir).map_err(|e| failed(dir, "cannot be listed", e))?;
    if let Some(other) = list.next() {
        let other = other.map_err(|e| failed(dir, "cannot be listed", e))?;
        return Err(Error::invalid(format!(
            "{}: is no directory of backups of several groups, and is not empty ({}): take \
             another one",
            dir.display(),
            other.file_name().to_string_lossy()
        )));
    }
    let path = dir.join(IDENTITY);
    let text = format!("{:#}\n", json!(identity));
    NewFile::write(&path, text.as_bytes())?;
    flush_dir(dir)
}

fn load(dir: &Path) -> Result<Option<Identity>> {
    let path = dir.join(IDENTITY);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), IoKind::NotFound | IoKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(&path, "cannot be read", error)),
    };
    let damaged = |error| Error::corruption(format!("{}: {error}", path.display()));
    let found: Identity = serde_json::from_slice(&bytes).map_err(damaged)?;
    if found.format != FORMAT {
        return Err(Error::unsupported(format!(
            "{}: has format {}, this build knows {FORMAT}",
            path.display(),
            found.format
        )));
    }
    if !(2..=GROUPS_MAX).contains(&found.groups) {
        return Err(Error::corruption(format!(
            "{}: names {} groups, 2 to {GROUPS_MAX} are possible",
            path.display(),
            found.groups
        )));
    }
    Ok(Some(found))
}

/// The directories of backups in this one, one for each group; itself where it is of one group.
///
/// # Errors
/// Corruption; unsupported; I/O.
pub(super) fn directories(dir: &Path) -> Result<Vec<PathBuf>> {
    Ok(match load(dir)? {
        None => vec![dir.to_owned()],
        Some(found) => (1..=found.groups).map(|number| of_group(dir, number)).collect(),
    })
}

/// The number of the last backup of a group; 0 where there is none.
///
/// # Errors
/// As [`Place::open`].
pub(super) fn last_of(dir: &Path) -> Result<u64> {
    match Place::open(dir) {
        Ok(place) => Ok(place.numbers()?.last().copied().unwrap_or(0)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// The number of the last backup that each group has.
///
/// # Errors
/// Not found where there is none; as [`Place::open`].
pub(super) fn last_of_all(dirs: &[PathBuf], named: &Path) -> Result<u64> {
    let numbers = |dir: &PathBuf| -> Result<BTreeSet<u64>> {
        Ok(Place::open(dir)?.numbers()?.into_iter().collect())
    };
    let each = dirs.iter().map(numbers).collect::<Result<Vec<_>>>()?;
    let common = each.into_iter().reduce(|a, b| &a & &b).unwrap_or_default();
    common.last().copied().ok_or_else(|| {
        let of_all = if dirs.len() > 1 { " that all groups have" } else { "" };
        Error::not_found(format!("{}: no backup yet{of_all}", named.display()))
    })
}

/// The first group whose backups are in this directory, if they are of several.
///
/// # Errors
/// As [`directories`].
pub(super) fn first_of(dir: &Path) -> Result<Option<GroupId>> {
    Ok(load(dir)?.map(|found| GroupId(found.first)))
}

/// Looks at the backups of each group, and says it. Returns the greatest exit code.
///
/// # Errors
/// As [`directories`]; those of `look`.
pub(super) fn say(dir: &Path, json: bool, look: impl Fn(&Path) -> Result<Seen>) -> Result<u8> {
    let dirs = directories(dir)?;
    let seen = dirs.iter().map(|dir| look(dir)).collect::<Result<Vec<_>>>()?;
    say_all(&seen, json);
    Ok(seen.iter().map(|seen| seen.code).max().unwrap_or(0))
}

/// Prints what was seen of one group, or of several.
pub(super) fn say_all(seen: &[Seen], json: bool) {
    match (seen, json) {
        ([one], true) => put(&format!("{:#}\n", one.json)),
        (several, true) => {
            let groups: Vec<&Value> = several.iter().map(|seen| &seen.json).collect();
            put(&format!("{:#}\n", json!({ "groups": groups })));
        }
        (all, false) => all.iter().for_each(|seen| put(&seen.text)),
    }
}
