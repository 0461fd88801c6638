//! Sockets, signals and tokens, for all processes of near-compute logs.

use crate::cluster::failed;
use crate::owned;
use gabion_base::{Error, ErrorKind, Result};
use gabion_media::remote::message::TOKEN_LEN_MAX;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::Permissions;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};

/// Longest path of a Unix socket in bytes: the kernel's.
pub(super) const SOCKET_PATH_MAX: usize = 107;

/// A line that a program which started this one may wait for.
pub(super) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody listens if it fails.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Has this process get SIGTERM when its starter ends, however that happens.
pub(super) fn end_with(parent: i32) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|e| Error::io(format!("the parent's end cannot be watched: {e}")))?;
    // The starter may have ended before the call.
    if rustix::process::getppid() == Pid::from_raw(parent) {
        return Ok(());
    }
    Err(Error::invalid(format!("process {parent}, which started this one, is gone")))
}

/// SIGINT and SIGTERM, one message each.
pub(super) fn signals() -> Result<Receiver<()>> {
    let failed = |e| Error::with_source(ErrorKind::Io, "signals cannot be waited for", e);
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let (told, tells) = channel();
    let watch = move || {
        for _ in signals.forever() {
            if told.send(()).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("gabion-signals".into()).spawn(watch).map_err(failed)?;
    Ok(tells)
}

/// The content of a file of `--token-file`.
pub(super) fn read_token(path: &Path) -> Result<Vec<u8>> {
    let mut token = std::fs::read(path).map_err(|e| failed(path, "cannot be read", e))?;
    if token.last() == Some(&b'\n') {
        token.pop();
    }
    if token.is_empty() || token.len() > TOKEN_LEN_MAX {
        return Err(Error::invalid(format!(
            "{}: a token of {} bytes, 1 to {TOKEN_LEN_MAX} are valid",
            path.display(),
            token.len()
        )));
    }
    Ok(token)
}

/// A TCP socket. Other machines reach it unless it is loopback, so it takes certificates or a token
/// then.
pub(super) fn listen_tcp(address: Option<SocketAddr>) -> Result<Option<TcpListener>> {
    let listen = |address| {
        TcpListener::bind(address).map_err(|e| {
            let message = format!("--listen {address}: cannot be listened on");
            Error::with_source(ErrorKind::Io, message, e)
        })
    };
    address.map(listen).transpose()
}

/// Permission bits of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketMode(u32);

/// Permission bits in octal. The socket's owner may open it in any case: 600 to 777.
pub(super) fn parse_mode(text: &str) -> std::result::Result<SocketMode, String> {
    let bits = u32::from_str_radix(text, 8).ok().filter(|bits| (0o600..=0o777).contains(bits));
    bits.map(SocketMode).ok_or_else(|| format!("'{text}': octal digits, 600 to 777, are valid"))
}

/// Whether an address may be listened on: beyond loopback with certificates or a token alone.
pub(super) fn check_listen(address: Option<SocketAddr>, is_closed: bool) -> Result<()> {
    match address {
        Some(address) if !address.ip().is_loopback() && !is_closed => Err(Error::invalid(format!(
            "--listen {address}: other machines reach it, so it takes --identity or --token-file; \
             without one only loopback is valid"
        ))),
        _ => Ok(()),
    }
}

/// The Unix socket. Its file is removed when this is dropped, unless another process has its own
/// there by then.
pub(super) struct SocketFile {
    pub(super) path: PathBuf,
    pub(super) listener: UnixListener,
    inode: Option<(u64, u64)>,
}

impl SocketFile {
    pub(super) fn listen(path: PathBuf, mode: SocketMode) -> Result<Self> {
        let len = path.as_os_str().len();
        if len > SOCKET_PATH_MAX {
            return Err(Error::invalid(format!(
                "{}: the path of a socket has {len} bytes, {SOCKET_PATH_MAX} or less are valid: \
                 give a shorter one to --socket",
                path.display()
            )));
        }
        let listener = owned::listen(&path, &path)?;
        let inode = inode(&path);
        let socket = Self { path, listener, inode };
        // It was made for its owner alone.
        std::fs::set_permissions(&socket.path, Permissions::from_mode(mode.0))
            .map_err(|e| failed(&socket.path, "cannot be opened for others", e))?;
        Ok(socket)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.inode == inode(&self.path) {
            // The next process here removes one that stays.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Device and inode of a file; none of one that cannot be looked at.
fn inode(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|status| (status.dev(), status.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_its_owners_alone_unless_others_are_let_in() {
        for wrong in ["", "888", "-600", "0", "577", "1600", "rw"] {
            assert!(parse_mode(wrong).unwrap_err().contains("600 to 777"), "{wrong}");
        }
        let path = std::env::temp_dir().join(format!("gabion-mode-{}", std::process::id()));
        for (text, mode) in [("600", 0o600), ("0660", 0o660)] {
            let socket = SocketFile::listen(path.clone(), parse_mode(text).unwrap()).unwrap();
            let bits = std::fs::metadata(&socket.path).unwrap().permissions().mode();
            assert_eq!(bits & 0o7777, mode, "{text}");
        }
        assert!(!path.exists(), "it goes with its value");
    }
}
