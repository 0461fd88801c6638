//! Connections of commands to doors for clients: plain, or with TLS 1.3 where a command is told so
//! (docs/security.md).
//!
//! ```text
//!   --tls --cacert … ─► DoorOptions::take ─► TLS of this process
//!                                              ▼
//!   Client ─► begin(socket, address) ─► handshake: authority, and --host or the address
//! ```

use crate::options::WhereOptions;
use clap::Args;
use gabion_base::{Error, ErrorKind, Result};
use gabion_tls::{BlockingStream, ClientFiles, ClientTls};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// TLS of this process's connections to doors, from its start on.
static TLS: OnceLock<Tls> = OnceLock::new();

struct Tls {
    tls: ClientTls,
    /// The name that certificates have to be for; the address without it.
    host: Option<String>,
}

/// How a command connects to doors for clients; the names are redis-cli's.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "TLS")]
pub(crate) struct DoorOptions {
    /// Connect with TLS 1.3. --port is that of the first replica's TLS door; with --controller,
    /// which knows the doors, one that all nodes have in their place
    #[arg(long, requires = "cacert")]
    pub(crate) tls: bool,
    /// Authorities whose certificates of doors are taken, in PEM
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub(crate) cacert: Option<PathBuf>,
    /// Certificate that doors are shown, in PEM [default: none]
    #[arg(long, value_name = "FILE", requires_all = ["tls", "key"])]
    pub(crate) cert: Option<PathBuf>,
    /// Key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls", "cert"])]
    pub(crate) key: Option<PathBuf>,
    /// Name or address of the one machine whose door is meant, as its certificate has it [default:
    /// this machine, or those that the controller says]
    #[arg(long, value_name = "HOST", requires = "tls", conflicts_with = "controller")]
    pub(crate) host: Option<String>,
}

impl DoorOptions {
    /// Has this process connect as the options say.
    ///
    /// # Errors
    /// Invalid input: no port is named, or files cannot be used; I/O.
    pub(crate) fn take(&self, place: &WhereOptions) -> Result<()> {
        if !self.tls {
            check_port(place)?;
        }
        let (true, Some(authorities)) = (self.tls, &self.cacert) else { return Ok(()) };
        if place.port.is_none() && place.remote.controller.is_none() {
            return Err(Error::invalid(
                "--tls needs --port, as only plain doors are known without it: the port of the \
                 first replica's TLS door (`up --tls-port`)",
            ));
        }
        let own = self.cert.clone().zip(self.key.clone());
        let files = ClientFiles { authorities: authorities.clone(), own };
        let tls = ClientTls::open(files, |_| {}).map_err(|error| error.within("--tls"))?;
        TLS.get_or_init(|| Tls { tls, host: self.host.clone() });
        Ok(())
    }
}

/// Checks that a controller and a port are named together only where that means something.
///
/// # Errors
/// Invalid input.
pub(crate) fn check_port(place: &WhereOptions) -> Result<()> {
    if place.remote.controller.is_some() && place.port.is_some() && !is_tls() {
        return Err(Error::invalid(
            "--port is said, and --controller, which knows the ports: together they are for --tls",
        ));
    }
    Ok(())
}

/// Whether this process connects with TLS.
pub(crate) fn is_tls() -> bool {
    TLS.get().is_some()
}

/// The one machine whose door is meant, if it was named.
pub(crate) fn host() -> Option<&'static str> {
    TLS.get()?.host.as_deref()
}

/// Begins a connection on a socket, within a time.
///
/// # Errors
/// Invalid input: one of the ends does not let the other in; unavailable, naming the address.
pub(crate) fn begin(
    socket: TcpStream,
    address: SocketAddr,
    limit: Duration,
) -> Result<BlockingStream> {
    let Some(Tls { tls, host }) = TLS.get() else { return Ok(BlockingStream::plain(socket)) };
    let name = host.clone().unwrap_or_else(|| address.ip().to_string());
    let state = tls.connect(&name)?;
    BlockingStream::handshake_within(socket, state, limit).map_err(|error| {
        refusal(address, &error).unwrap_or_else(|| {
            let what = format!("{address}: no TLS");
            Error::with_source(ErrorKind::Unavailable, what, error)
        })
    })
}

/// The error of a connection that one of the ends does not let come about; none for any other.
pub(crate) fn refusal(address: SocketAddr, error: &io::Error) -> Option<Error> {
    let why = TLS.get()?.tls.refusal(error)?;
    Some(Error::invalid(format!("{address}: no TLS: {why}")))
}
