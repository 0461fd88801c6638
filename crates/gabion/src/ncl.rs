//! `gabion ncl`: near-compute logs (docs/near-compute-logs.md).
//!
//! - [`peer`]: lends memory of this machine; [`identity`]: which peer it is, and which run of it.
//! - [`status`]: what a peer holds and has done.
//! - [`mod@run`]: a program under the interposer.

mod identity;
mod peer;
mod run;
mod status;

use clap::{Args, Subcommand};
use gabion_base::Result;
use gabion_bench::parse_bytes;
use gabion_fabric::remote::LinkAddress;
use rustix::fs::Mode;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

#[derive(Subcommand, Debug)]
pub(crate) enum NclCommand {
    /// Lend memory of this machine to logs of programs. SIGTERM drains: nothing more is lent, and
    /// it ends once all regions are given back
    Peer(PeerOptions),
    /// Say what a peer holds and has done
    Status(StatusOptions),
    /// Run a program; files whose names match are mirrored, all others are as ever
    Run(RunOptions),
}

#[derive(Args, Debug)]
pub(crate) struct PeerOptions {
    /// Memory to lend at most, 1MiB or more
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) memory: u64,
    /// Directory of its identity; made if it is not there. One directory, one peer
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// TCP address for programs of other machines [default: none]. Other than loopback it takes
    /// --token-file
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// Unix socket, by which programs of this machine map the memory [default: DIR/socket]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// The machine or rack that it fails together with. Told to whoever spreads copies
    #[arg(long, value_name = "NAME", default_value = "")]
    pub(crate) failure_domain: String,
    /// A file with what clients have to show: 1 to 1,024 bytes, a last line feed aside
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Regions at a time, 1 to 65536. Each takes an open file
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) regions: u32,
    /// Memory to keep zeroed ahead of need, out of what is not lent; less delays new logs
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "64MiB")]
    pub(crate) ready: u64,
    /// Seconds that a drain waits for programs to give their regions back; then they are lost
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) drain_timeout: u64,
}

#[derive(Args, Debug)]
pub(crate) struct StatusOptions {
    #[command(flatten)]
    place: PeerPlace,
    /// A file with what the peer asks for
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct RunOptions {
    /// Files of an application belong to its name: letters, digits, '-', '_', '.' [default: the
    /// program's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) app: Option<String>,
    /// Names of files that are mirrored, as '*-wal,*-journal': with a '/' the path below the root
    #[arg(long = "match", value_name = "GLOB,...")]
    pub(crate) globs: String,
    /// Only files below this directory, and named by their paths from here [default: the working
    /// directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Keep the bytes in a directory of this machine, where nothing is replicated and nothing is
    /// synced to the disk: they survive the program, not the machine [default: log peers, which
    /// this version cannot use for it]
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// Each write waits until it is stored; else only syncs do, and writes of files opened with
    /// O_DSYNC
    #[arg(long)]
    pub(crate) every_write: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) program: Vec<OsString>,
}

/// The way to find a peer: one of three.
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
}

impl StatusOptions {
    fn address(&self) -> LinkAddress {
        let PeerPlace { directory, socket, connect } = &self.place;
        let path = directory.as_deref().map(default_socket).or_else(|| socket.clone());
        match (path, connect) {
            (Some(path), _) => LinkAddress::Unix(path),
            (None, Some(address)) => LinkAddress::Tcp(*address),
            (None, None) => unreachable!("one of three is required"),
        }
    }
}

fn default_socket(directory: &Path) -> PathBuf {
    directory.join("socket")
}

/// `mask` is the one that files of a program are made with.
pub(crate) fn run(command: &NclCommand, mask: Mode) -> Result<u8> {
    match command {
        NclCommand::Peer(options) => peer::run(options),
        NclCommand::Status(options) => status::run(options),
        NclCommand::Run(options) => run::run(options, mask),
    }
}
