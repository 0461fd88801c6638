//! `gabion ncl`: near-compute logs (docs/near-compute-logs.md).
//!
//! - [`controller`]: the store that peers and programs meet in.
//! - [`peer`]: lends memory of this machine; [`identity`]: which peer it is, and which run of it.
//! - [`status`]: what a peer holds and has done; [`overview`]: all that a controller knows.
//! - [`mod@run`]: a program under the interposer.
//! - [`metrics`]: of peers, of their controller and of such programs, for Prometheus.
//! - [`files`]: an application's files, seen and removed; [`moves`]: to a directory and back;
//!   [`opened`]: how an operator opens them.
//! - [`demo`]: a machine that is lost under load.
//! - [`place`]: where a controller is; [`sockets`]: what these processes have in common.

mod controller;
mod demo;
mod files;
mod identity;
mod metrics;
mod moves;
mod opened;
mod overview;
mod peer;
mod place;
mod run;
mod sockets;
mod status;
mod waiting;

use crate::machines::trust;
use crate::units::exact_size;
use clap::{ArgGroup, Args, Subcommand};
use gabion_base::{Error, Result};
use gabion_bench::parse_bytes;
use gabion_fabric::remote::LinkAddress;
use gabion_mirror::journal::{FRAME_MAX, LEN as JOURNAL_LEN};
use gabion_ncl_driver::address::SOCKET;
use gabion_ncl_driver::store::RemoteStore;
use gabion_tls::{MutualTls, Role};
use place::parse_controller;
use rustix::fs::Mode;
use sockets::SocketMode;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Writes of split files below this many bytes are small, if nobody says otherwise.
const SPLIT_BELOW: u64 = 16 << 10;

#[derive(Subcommand, Debug)]
pub(crate) enum NclCommand {
    /// Keep what log peers and programs have to agree on: who has which memory of which program.
    /// Without it writes go on; programs start, and peers are replaced, with it alone
    Controller(ControllerOptions),
    /// Lend memory of this machine to logs of programs. SIGTERM drains: nothing more is lent, and
    /// it ends once all regions are given back
    Peer(PeerOptions),
    /// Say what a peer holds and has done, or what a controller knows of peers and programs
    Status(StatusOptions),
    /// Run a program; files whose names match are mirrored or split, all others are as ever
    Run(RunOptions),
    /// List an application's files. Of one that runs: as it reported them within the last seconds
    Ls(files::LsOptions),
    /// Print files of an application that does not run
    Cat(files::CatOptions),
    /// Say length, checksum and owner of files of an application that does not run
    Stat(files::StatOptions),
    /// Remove files of an application that does not run
    Rm(files::RmOptions),
    /// Write all files of an application that does not run to a directory
    Export(moves::ExportOptions),
    /// Take all files of a directory as an application's, which does not run
    Import(moves::ImportOptions),
    /// Show it: three peers, a program under load whose machine is lost, and its speed. It takes
    /// redis-server or sqlite3. Exit code 1 if a write that was acknowledged is lost
    Demo(demo::DemoOptions),
}

#[derive(Args, Debug)]
pub(crate) struct ControllerOptions {
    /// The process that it ends with, as at SIGTERM
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) parent: Option<i32>,
    /// Directory of its store; made if it is not there. It takes 68 MiB
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// TCP address for other machines [default: none]. Other than loopback it takes --identity or
    /// --token-file
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// Unix socket for this machine [default: DIR/socket]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Rights to open the Unix socket, in octal, as of a file: 660 lets a group in. All who are let
    /// in reach the logs of all applications
    #[arg(long, value_name = "MODE", value_parser = sockets::parse_mode, default_value = "600")]
    pub(crate) socket_mode: SocketMode,
    /// A file with what peers and programs have to show: 1 to 1,024 bytes, a last line feed aside
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificate of role controller, for TLS of TCP: PATH.pem, with PATH.key and the ca.pem
    /// beside them, as `gabion ca issue` makes them [default: none]
    #[arg(long, value_name = "PATH")]
    pub(crate) identity: Option<PathBuf>,
    /// Loopback address of numbers for Prometheus, at /metrics over HTTP: requests, refusals,
    /// flushes, values, peers [default: none]
    #[arg(long, value_name = "ADDR", value_parser = metrics::parse_address)]
    pub(crate) metrics: Option<SocketAddr>,
}

#[derive(Args, Debug)]
pub(crate) struct PeerOptions {
    /// The process that it ends with, as at SIGTERM
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) parent: Option<i32>,
    /// The controller at which it registers: ADDR, a Unix socket, or the directory of one [default:
    /// none, and nobody finds it]
    #[arg(long, value_name = "PLACE", value_parser = parse_controller)]
    pub(crate) controller: Option<LinkAddress>,
    /// Memory to lend at most, 1MiB or more
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) memory: u64,
    /// Directory of its identity; made if it is not there. One directory, one peer
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// TCP address for programs of other machines [default: none]. Other than loopback it takes
    /// --identity or --token-file
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// Unix socket, by which programs of this machine map the memory [default: DIR/socket]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Rights to open the Unix socket, in octal, as of a file: 660 lets a group in. All who are let
    /// in reach the logs of all applications
    #[arg(long, value_name = "MODE", value_parser = sockets::parse_mode, default_value = "600")]
    pub(crate) socket_mode: SocketMode,
    /// The machine or rack that it fails together with. Told to whoever spreads copies
    #[arg(long, value_name = "NAME", default_value = "")]
    pub(crate) failure_domain: String,
    /// A file with what clients have to show, and what this peer shows to the controller: 1 to
    /// 1,024 bytes, a last line feed aside
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificate of role node, for TLS of TCP: PATH.pem, with PATH.key and the ca.pem
    /// beside them, as `gabion ca issue` makes them [default: none]
    #[arg(long, value_name = "PATH")]
    pub(crate) identity: Option<PathBuf>,
    /// Regions at a time, 1 to 65536. Each takes an open file
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) regions: u32,
    /// Memory to keep zeroed ahead of need, out of what is not lent; less delays new logs and
    /// copies
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "192MiB")]
    pub(crate) ready: u64,
    /// Seconds that a drain waits for programs to give their regions back; then they are lost
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) drain_timeout: u64,
    /// Loopback address of numbers for Prometheus, at /metrics over HTTP: memory, regions,
    /// requests, connections [default: none]
    #[arg(long, value_name = "ADDR", value_parser = metrics::parse_address)]
    pub(crate) metrics: Option<SocketAddr>,
}

#[derive(Args, Debug)]
pub(crate) struct StatusOptions {
    #[command(flatten)]
    place: PeerPlace,
    /// A file with what the peer asks for
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificate of an operator, for TLS: PATH.pem, with PATH.key and the ca.pem
    /// beside them, as `gabion ca issue` makes them [default: $GABION_IDENTITY, or none]
    #[arg(long, value_name = "PATH")]
    pub(crate) identity: Option<PathBuf>,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("files").required(true).multiple(true).args(["globs", "splits"]))]
pub(crate) struct RunOptions {
    /// The process that it ends with, as at SIGTERM
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) parent: Option<i32>,
    /// Files of an application belong to its name: letters, digits, '-', '_', '.' [default: the
    /// program's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) app: Option<String>,
    /// Names of files that are mirrored, as '*-wal,*-journal': with a '/' the path below the root
    #[arg(long = "match", value_name = "GLOB,...")]
    pub(crate) globs: Option<String>,
    /// Names of files of which only writes below SIZE go to the store (16KiB, at most 64KiB), as
    /// '*.db,*.wal=4KiB'; the files stay in the file system, and --match counts first
    #[arg(long = "split", value_name = "GLOB[=SIZE],...", value_delimiter = ',',
        value_parser = parse_split)]
    pub(crate) splits: Vec<(String, u64)>,
    /// Room for writes of split files at the store, 1MiB to 1GiB: once it is full, a sync has these
    /// files synced by the file system
    #[arg(long, value_name = "SIZE", value_parser = parse_journal, default_value = "16MiB",
        requires = "splits")]
    pub(crate) journal: u64,
    /// Only files below this directory, and named by their paths from here [default: the working
    /// directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Keep the bytes at log peers that are registered at this controller: ADDR, a Unix socket, or
    /// the directory of one
    #[arg(long, value_name = "PLACE", value_parser = parse_controller)]
    pub(crate) controller: Option<LinkAddress>,
    /// Losses of peers at a time that lose nothing, 1 to 7: 2N+1 peers have the bytes
    #[arg(long, value_name = "N", default_value_t = 1, requires = "controller",
        value_parser = clap::value_parser!(u8).range(1..=7))]
    pub(crate) f: u8,
    /// Seconds that calls wait while more than f peers are lost; then they fail with EIO, for ever,
    /// and a start fails. 0: they wait until enough are back
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "controller")]
    pub(crate) peer_timeout: u64,
    /// A former run of the application is known to be dead: do not wait 3 s for its lease. One that
    /// lives after all writes no more
    #[arg(long, requires = "controller")]
    pub(crate) take_over: bool,
    /// A file with what controller and peers ask for
    #[arg(long, value_name = "FILE", requires = "controller")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificate of the application, of role client, for TLS: PATH.pem, with PATH.key and the
    /// ca.pem beside them, as `gabion ca issue` makes them [default: $GABION_IDENTITY, or none]
    #[arg(long, value_name = "PATH", requires = "controller")]
    pub(crate) identity: Option<PathBuf>,
    /// Instead of peers: keep the bytes in a directory of this machine, where nothing is replicated
    /// and nothing is synced to the disk: they survive the program, not the machine
    #[arg(long, value_name = "DIR", conflicts_with = "controller")]
    pub(crate) store: Option<PathBuf>,
    /// Each write waits until it is stored; else only syncs do, and writes of files opened with
    /// O_DSYNC
    #[arg(long)]
    pub(crate) every_write: bool,
    /// Loopback address of numbers for Prometheus, at /metrics over HTTP: copies, records, files,
    /// syncs and their times [default: none]
    #[arg(long, value_name = "ADDR", value_parser = metrics::parse_address)]
    pub(crate) metrics: Option<SocketAddr>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) program: Vec<OsString>,
}

/// The way to find a peer or a controller: one of four.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct PeerPlace {
    /// The peer of this directory
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// The peer on this Unix socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The peer at this TCP address
    #[arg(long, value_name = "ADDR")]
    connect: Option<SocketAddr>,
    /// Peers and programs of this controller: ADDR, a Unix socket, or the directory of one
    #[arg(long, value_name = "PLACE", value_parser = parse_controller)]
    controller: Option<LinkAddress>,
}

impl StatusOptions {
    fn address(&self) -> LinkAddress {
        let PeerPlace { directory, socket, connect, .. } = &self.place;
        let path = directory.as_deref().map(default_socket).or_else(|| socket.clone());
        match (path, connect) {
            (Some(path), _) => LinkAddress::Unix(path),
            (None, Some(address)) => LinkAddress::Tcp(*address),
            (None, None) => {
                unreachable!("one of four is required, and a controller is none of a peer")
            }
        }
    }
}

/// Of a split file: a glob, and below how many bytes a write is small.
fn parse_split(text: &str) -> std::result::Result<(String, u64), String> {
    let (glob, below) = match text.rsplit_once('=') {
        Some((glob, size)) => (glob, parse_bytes(size)?),
        None => (text, SPLIT_BELOW),
    };
    let max = FRAME_MAX;
    if glob.is_empty() || !(1..=max).contains(&below) {
        let size = exact_size(max);
        return Err(format!("'{glob}' below {below} bytes: a glob, and 1 to {size}"));
    }
    Ok((glob.to_owned(), below))
}

/// The length of the journal of split files.
fn parse_journal(text: &str) -> std::result::Result<u64, String> {
    let len = parse_bytes(text)?;
    let (least, most) = (exact_size(*JOURNAL_LEN.start()), exact_size(*JOURNAL_LEN.end()));
    match JOURNAL_LEN.contains(&len) {
        true => Ok(len),
        false => Err(format!("{len} bytes, of {least} to {most}")),
    }
}

/// Proofs that a process shows to others: a token, or certificates, or both.
#[derive(Clone, Default)]
struct Shown {
    token: Option<Vec<u8>>,
    tls: Option<Arc<MutualTls>>,
}

impl Shown {
    /// Reads the files of `--token-file` and `--identity`, or of the variable in its place.
    fn open(token: Option<&Path>, identity: Option<&Path>) -> Result<Self> {
        let token = token.map(sockets::read_token).transpose()?;
        Ok(Self { token, tls: trust::named(identity)? })
    }

    /// The same, of a process that listens: its certificate has this role, and no variable names
    /// it.
    fn of_role(token: Option<&Path>, identity: Option<&Path>, role: Role) -> Result<Self> {
        let token = token.map(sockets::read_token).transpose()?;
        let tls = identity.map(trust::at).transpose()?;
        let shown = Self { token, tls };
        match shown.tls.as_ref().map(|tls| tls.identity()) {
            Some(found) if found.role() != role => Err(Error::invalid(format!(
                "--identity: the certificate is of {found}: the role {role} is needed here"
            ))),
            _ => Ok(shown),
        }
    }

    /// Whether strangers are kept out.
    fn is_any(&self) -> bool {
        self.token.is_some() || self.tls.is_some()
    }

    fn token(&self) -> Vec<u8> {
        self.token.clone().unwrap_or_default()
    }

    /// The store of a controller. Nothing is asked yet.
    fn store(&self, controller: &LinkAddress) -> RemoteStore {
        RemoteStore::new(controller.clone(), self.token()).with_tls(self.tls.clone())
    }
}

fn default_socket(directory: &Path) -> PathBuf {
    directory.join(SOCKET)
}

/// `mask` is the one that files of a program are made with.
pub(crate) fn run(command: &NclCommand, mask: Mode) -> Result<u8> {
    let parent = match command {
        NclCommand::Controller(options) => options.parent,
        NclCommand::Peer(options) => options.parent,
        NclCommand::Run(options) => options.parent,
        _ => None,
    };
    parent.map_or(Ok(()), sockets::end_with)?;
    gabion_proc::keep_freed_transfers();
    raise_limits()?;
    match command {
        NclCommand::Controller(options) => controller::run(options),
        NclCommand::Peer(options) => peer::run(options),
        NclCommand::Status(options) => match &options.place.controller {
            Some(controller) => overview::run(options, controller),
            None => status::run(options),
        },
        NclCommand::Run(options) => run::run(options, mask),
        NclCommand::Ls(options) => files::ls(options),
        NclCommand::Cat(options) => files::cat(options),
        NclCommand::Stat(options) => files::stat(options),
        NclCommand::Rm(options) => files::rm(options),
        NclCommand::Export(options) => moves::export(options),
        NclCommand::Import(options) => moves::import(options),
        NclCommand::Demo(options) => demo::run(options),
    }
}

/// Regions and mirrors are open files, of which a shell's usual limit has too few.
fn raise_limits() -> Result<()> {
    gabion_mirror::start::raise_limits().map_err(|error| run::failed("limit of open files", error))
}
