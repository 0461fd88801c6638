//! The owners of files in a data directory: a file that is not Gabion's by its own bytes is neither
//! written nor removed.
//!
//! | name | is ours by |
//! | --- | --- |
//! | `cluster.json`, `cluster.json.unfinished` | its fields `format` and `made_by`, of whatever version |
//! | `lock` | its words, or a number alone (earlier versions) |
//! | `unfinished` | its words |
//! | `replica-N/log`, `log.old` | its first line, or a line that each start writes |
//! | `replica-N/users`, `users.new` | the magic of a record of users |
//! | `control/socket` | being a socket on which nobody listens |
//! | `replica-N/pool`, `control/pool` and the like | their own marks: `gabion_host::replica` |
//!
//! Each file is made whole before it has its name.

use crate::cluster::failed;
use gabion_base::{Error, Result};
use gabion_fabric::fresh::{Named, NewFile, named};
use gabion_host::replica::remove_replica;
use serde_json::Value;
use std::fs::{File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Bytes of a file that decide its owner.
const LOOKED_AT: u64 = 64 << 10;
/// The text of the mark of unfinished work.
pub(crate) const UNFINISHED: &str = "gabion: data is made or removed here\n";
const LOCK: &str = "gabion lock of process ";
const LOG: &str = "gabion log of replica ";

/// The owner of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Nobody,
    Gabion,
    /// A description of the file.
    Other(String),
}

/// The owner of a file, by its first bytes.
///
/// # Errors
/// The system's.
pub(crate) fn owner(path: &Path, is_ours: impl Fn(&[u8]) -> bool) -> Result<Owner> {
    let file = match named(path)? {
        Named::Nothing => return Ok(Owner::Nobody),
        Named::Other(what) => return Ok(Owner::Other(what.to_owned())),
        Named::File(file) => file,
    };
    let mut bytes = Vec::new();
    file.take(LOOKED_AT).read_to_end(&mut bytes).map_err(|e| failed(path, "cannot be read", e))?;
    if is_ours(&bytes) {
        return Ok(Owner::Gabion);
    }
    let what = match bytes.is_empty() {
        true => "an empty file",
        false => "a file that does not begin as Gabion's",
    };
    Ok(Owner::Other(what.to_owned()))
}

/// The error when something is in the way.
pub(crate) fn in_the_way(path: &Path, what: &str) -> Error {
    Error::invalid(format!(
        "{}: is in the way, and is not Gabion's ({what}); nothing was changed: move it away, or take another \
         directory",
        path.display()
    ))
}

/// Whether a file of that name is ours; false where there is none.
///
/// # Errors
/// Invalid input when it is somebody else's; the system's.
pub(crate) fn is_there(path: &Path, is_ours: impl Fn(&[u8]) -> bool) -> Result<bool> {
    match owner(path, is_ours)? {
        Owner::Nobody => Ok(false),
        Owner::Gabion => Ok(true),
        Owner::Other(what) => Err(in_the_way(path, &what)),
    }
}

/// Makes a file that names its owner, unless one of ours is there.
///
/// # Errors
/// Invalid input when something else has the name; I/O.
pub(crate) fn ensure(path: &Path, text: &str, is_ours: impl Fn(&[u8]) -> bool) -> Result<()> {
    if is_there(path, &is_ours)? {
        return Ok(());
    }
    match NewFile::write(path, text.as_bytes()) {
        // Another process was as quick.
        Err(_) if is_there(path, is_ours)? => Ok(()),
        made => made.map(drop),
    }
}

/// Removes a file if it is ours.
///
/// # Errors
/// I/O.
pub(crate) fn remove_ours(path: &Path, is_ours: impl Fn(&[u8]) -> bool) -> Result<()> {
    if owner(path, is_ours)? == Owner::Gabion {
        std::fs::remove_file(path).map_err(|e| failed(path, "cannot be removed", e))?;
    }
    Ok(())
}

pub(crate) fn is_settings(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Value>(bytes)
        .is_ok_and(|value| value["format"].is_u64() && value["made_by"].is_string())
}

pub(crate) fn is_mark(bytes: &[u8]) -> bool {
    bytes == UNFINISHED.as_bytes()
}

/// The text of a process's lock; its length is constant.
pub(crate) fn lock_text(process: u32) -> String {
    format!("{LOCK}{process:010}\n")
}

pub(crate) fn is_lock(bytes: &[u8]) -> bool {
    holder(bytes).is_some()
}

/// The process that a lock names.
pub(crate) fn holder(bytes: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.strip_prefix(LOCK).unwrap_or(text).trim().parse().ok()
}

/// The first line of a replica's log.
pub(crate) fn log_text(number: u32) -> String {
    format!("{LOG}{number}\n")
}

/// Whether a file is a replica's log. Its first line may come late: the process writes on while its
/// log is put aside.
pub(crate) fn is_log(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let is_start = |line: &str| line.starts_with("replica ") && line.contains(" of group ");
    text.lines().any(|line| line.starts_with(LOG) || is_start(line))
}

/// Removes our files in a replica's directory, and the directory unless it holds others.
///
/// # Errors
/// I/O.
pub(crate) fn remove_replica_dir(dir: &Path) -> Result<()> {
    remove_replica(dir)?;
    for name in ["log", "log.old"] {
        remove_ours(&dir.join(name), is_log)?;
    }
    // One that was begun may be empty yet.
    let is_users = |bytes: &[u8]| bytes.is_empty() || bytes.starts_with(b"GUSR");
    for name in ["users", "users.new"] {
        remove_ours(&dir.join(name), is_users)?;
    }
    // If it is not empty, or a link, the owner is told.
    let _ = std::fs::remove_dir(dir);
    Ok(())
}

/// Removes our files in the controller's directory, and the directory unless it holds others.
///
/// # Errors
/// I/O.
pub(crate) fn remove_control_dir(dir: &Path) -> Result<()> {
    if !dir.is_dir() || dir.is_symlink() {
        return Ok(());
    }
    remove_replica(dir)?;
    let socket = crate::control::socket_path(dir);
    remove_socket(&socket)?;
    let _ = std::fs::remove_dir(dir);
    Ok(())
}

/// Removes a socket on which nobody listens; returns whether the name is free now.
///
/// # Errors
/// I/O.
fn remove_socket(path: &Path) -> Result<bool> {
    let Ok(found) = path.symlink_metadata() else { return Ok(true) };
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if !found.file_type().is_socket() || !UnixStream::connect(path).is_err_and(refused) {
        return Ok(false);
    }
    std::fs::remove_file(path).map_err(|e| failed(path, "cannot be removed", e))?;
    Ok(true)
}

/// Listens on a socket that its owner alone may open, in the place of one on which nobody listens.
/// The system is given `short`, another name of the same file.
///
/// # Errors
/// Invalid input when something else has the name; I/O.
pub(crate) fn listen(path: &Path, short: &Path) -> Result<UnixListener> {
    if !remove_socket(path)? {
        return Err(in_the_way(path, "no socket, or one on which somebody listens"));
    }
    let listener =
        UnixListener::bind(short).map_err(|e| failed(path, "cannot be listened on", e))?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))
        .map_err(|e| failed(path, "cannot be kept for its owner", e))?;
    Ok(listener)
}

/// The content of a data directory after all of ours was removed, in order.
///
/// # Errors
/// I/O.
pub(crate) fn left_in(data: &Path) -> Result<Vec<PathBuf>> {
    let list = match std::fs::read_dir(data) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        list => list.map_err(|e| failed(data, "cannot be listed", e))?,
    };
    let mut left = Vec::new();
    for entry in list {
        left.push(entry.map_err(|e| failed(data, "cannot be listed", e))?.path());
    }
    left.sort();
    Ok(left)
}

/// Opens a replica's log to append to it.
///
/// # Errors
/// Invalid input when the file is not Gabion's; I/O.
pub(crate) fn open_log(path: &Path, number: u32) -> Result<File> {
    ensure(path, &log_text(number), is_log)?;
    let opened = File::options().append(true).open(path);
    opened.map_err(|e| failed(path, "cannot be opened", e))
}
