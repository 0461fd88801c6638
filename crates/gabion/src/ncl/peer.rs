//! `gabion ncl peer`: lends memory until it is told to end.

use super::identity::Identity;
use super::{PeerOptions, default_socket};
use crate::cluster::failed;
use crate::owned::{in_the_way, remove_socket};
use crate::units::{count, size};
use gabion_base::units::MIB;
use gabion_base::{Error, ErrorKind, Result};
use gabion_fabric::remote::{PeerServer, ServerOptions};
use gabion_media::remote::PeerConfig;
use gabion_media::remote::message::{DOMAIN_LEN_MAX, TOKEN_LEN_MAX};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const MEMORY_MIN: u64 = MIB;
/// Open files beside those of regions: connections, sockets, the terminal.
const OTHER_FILES: u64 = 512;
/// Longest path of a Unix socket in bytes: the kernel's.
const SOCKET_PATH_MAX: usize = 107;
/// How long a client that connects may be silent.
const GREETING_TIMEOUT_MS: u64 = 5_000;
/// How often a peer that drains, or might have failed, is looked at.
const TICK: Duration = Duration::from_millis(100);

pub(super) fn run(options: &PeerOptions) -> Result<u8> {
    check(options)?;
    let token = options.token_file.as_deref().map(read_token).transpose()?;
    raise_open_files(options.regions)?;
    let identity = Identity::begin(&options.directory)?;
    let socket = SocketFile::listen(options)?;
    let tcp = match options.listen {
        Some(address) => Some(TcpListener::bind(address).map_err(|e| {
            let message = format!("--listen {address}: cannot be listened on");
            Error::with_source(ErrorKind::Io, message, e)
        })?),
        None => None,
    };
    let address = tcp.as_ref().and_then(|tcp| tcp.local_addr().ok());
    let mut config = PeerConfig::new(identity.id, identity.incarnation, options.memory);
    (config.regions_max, config.ready_bytes) = (options.regions, options.ready);
    config.failure_domain.clone_from(&options.failure_domain);
    config.token = token;
    let unix = socket.listener.try_clone().map_err(|e| failed(&socket.path, "is lost", e))?;
    let signals = signals()?;
    let server = PeerServer::start(ServerOptions {
        config,
        tcp,
        unix: Some(unix),
        greeting_timeout_ms: GREETING_TIMEOUT_MS,
    })?;

    let domain = match options.failure_domain.as_str() {
        "" => String::new(),
        name => format!(", failure domain {name}"),
    };
    say(&format!(
        "peer {}, run {}: lends {}{domain}",
        identity.id,
        identity.incarnation,
        size(options.memory)
    ));
    say(&format!("  Unix socket {}", socket.path.display()));
    if let Some(address) = address {
        say(&format!("  TCP {address}"));
    }
    serve(&server, &signals, Duration::from_secs(options.drain_timeout))
}

/// A line that a program which started this one may wait for.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody listens if it fails.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn serve(server: &PeerServer, signals: &Receiver<()>, drain_timeout: Duration) -> Result<u8> {
    while signals.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        if !server.is_running() {
            return Err(Error::io("the thread gabion-peer ended: its message stands above"));
        }
    }
    let until = Instant::now() + drain_timeout;
    let mut held = server.with(|peer| {
        peer.drain();
        peer.usage()
    })?;
    if held.regions > 0 {
        say(&format!(
            "draining: {} of {}; a second signal ends it at once",
            count(held.regions, "region"),
            count(held.owners_count, "owner")
        ));
    }
    while held.regions > 0 && Instant::now() < until {
        if signals.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        held = server.with(|peer| peer.usage())?;
    }
    match held.regions {
        0 => say("all regions were given back"),
        lost => say(&format!("{} with {}: lost", count(lost, "region"), size(held.lent_bytes))),
    }
    Ok(0)
}

fn signals() -> Result<Receiver<()>> {
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

fn check(options: &PeerOptions) -> Result<()> {
    if options.memory < MEMORY_MIN {
        return Err(Error::invalid(format!("--memory {}: 1MiB or more is valid", options.memory)));
    }
    if let Some(total) = machine_memory()
        && options.memory > total
    {
        return Err(Error::invalid(format!(
            "--memory {}: this machine has {}",
            size(options.memory),
            size(total)
        )));
    }
    if options.failure_domain.len() > DOMAIN_LEN_MAX {
        return Err(Error::invalid(format!(
            "--failure-domain of {} bytes: {DOMAIN_LEN_MAX} or less are valid",
            options.failure_domain.len()
        )));
    }
    match options.listen {
        Some(address) if !address.ip().is_loopback() && options.token_file.is_none() => {
            Err(Error::invalid(format!(
                "--listen {address}: other machines reach it, so it takes --token-file; \
                 without one only loopback is valid"
            )))
        }
        _ => Ok(()),
    }
}

/// Bytes of memory of this machine, where the kernel tells.
fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
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

/// Each region is an open file, and most shells allow a thousand.
fn raise_open_files(regions: u32) -> Result<()> {
    let needed = u64::from(regions) + OTHER_FILES;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if let Some(maximum) = maximum.filter(|maximum| *maximum < needed) {
        return Err(Error::limit(format!(
            "--regions {regions}: they take {needed} open files, this process may have {maximum}"
        )));
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }).map_err(|e| {
        let message = format!("--regions {regions}: {needed} open files are refused");
        Error::with_source(ErrorKind::Io, message, std::io::Error::from(e))
    })
}

/// The Unix socket; its file is removed when this is dropped.
struct SocketFile {
    path: PathBuf,
    listener: UnixListener,
}

impl SocketFile {
    fn listen(options: &PeerOptions) -> Result<Self> {
        let path = options.socket.clone().unwrap_or_else(|| default_socket(&options.directory));
        let len = path.as_os_str().len();
        if len > SOCKET_PATH_MAX {
            return Err(Error::invalid(format!(
                "{}: the path of a socket has {len} bytes, {SOCKET_PATH_MAX} or less are valid: \
                 give a shorter one to --socket",
                path.display()
            )));
        }
        if !remove_socket(&path)? {
            return Err(in_the_way(&path, "no socket, or one on which somebody listens"));
        }
        let listener =
            UnixListener::bind(&path).map_err(|e| failed(&path, "cannot be listened on", e))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
            .map_err(|e| failed(&path, "cannot be kept for its owner", e))?;
        Ok(Self { path, listener })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
