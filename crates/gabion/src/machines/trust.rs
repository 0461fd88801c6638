//! The trust between processes on machines of their own, and so the addresses that they may use.
//!
//! ```text
//!   [tls] of a file, --identity ─► Certificates ─┬─► listen, accept ─► Caller: may it ask that?
//!                                                └─► connect: to that node, or a controller
//! ```
//!
//! With certificates all connections between Gabion's processes are TLS 1.3, and both ends show
//! who they are. Without them whoever reaches a port may use it, so every address is one of this
//! machine, 127.0.0.0/8 or ::1, and anything else is refused before a socket is opened. This is
//! the one place that decides it, and through which connections between a node or a command and a
//! controller are made.

use crate::options::NodeProcess;
use gabion_base::{Error, ErrorKind, Result};
use gabion_tls::{BlockingStream, ClientFiles, ClientTls, Expected, Identity, Role};
use gabion_tls::{MutualFiles, MutualTls};
use serde::Deserialize;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a connection may be in the making.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// The variable of the environment with what `--identity` says.
const IDENTITY_OF: &str = "GABION_IDENTITY";

/// Certificates of this process; none where it keeps to loopback.
pub(crate) type Certificates = Option<Arc<MutualTls>>;

/// `[tls]` of `node.toml` and `controller.toml`.
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsConfig {
    /// The process's certificate, and those between it and the authority.
    pub(crate) certificate: PathBuf,
    /// Its key.
    pub(crate) key: PathBuf,
    /// The authority whose certificates are taken.
    pub(crate) ca: PathBuf,
}

impl TlsConfig {
    /// The files, with their options.
    pub(crate) fn each(&self) -> [(&'static str, &Path); 3] {
        [("tls.certificate", &self.certificate), ("tls.key", &self.key), ("tls.ca", &self.ca)]
    }

    /// The same for the process of a replica.
    pub(crate) fn of_replica(&self) -> NodeProcess {
        let Self { certificate, key, ca } = self.clone();
        NodeProcess {
            members_cert: Some(certificate),
            members_key: Some(key),
            members_ca: Some(ca),
            ..NodeProcess::default()
        }
    }

    /// The same for `gabion-tls`.
    pub(crate) fn files(&self) -> MutualFiles {
        let Self { certificate, key, ca } = self.clone();
        MutualFiles { certificate, key, authority: ca }
    }

    /// Reads the files of a process of this role, and of this name if it has to be one.
    ///
    /// # Errors
    /// I/O; invalid input for files that are none, or another's.
    pub(crate) fn open(&self, role: Role, name: Option<&str>) -> Result<Arc<MutualTls>> {
        let tls = open(self.files())?;
        let found = tls.identity();
        let path = self.certificate.display();
        if found.role() != role {
            return Err(Error::invalid(format!(
                "tls.certificate is {path}, which is of {found}: the role {role} is needed here"
            )));
        }
        match name {
            Some(name) if found.name() != name => Err(Error::invalid(format!(
                "tls.certificate is {path}, which is of {found}, and name is {name}"
            ))),
            _ => Ok(tls),
        }
    }
}

/// `[store_tls]` of `controller.toml`: for connections to etcd.
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoreTlsConfig {
    /// The authority of etcd's certificates.
    ca: PathBuf,
    /// The certificate that etcd is shown, and its key.
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl StoreTlsConfig {
    /// The files, with their options.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let [certificate, key] = [self.certificate.as_deref(), self.key.as_deref()];
        let all = [("store_tls.certificate", certificate), ("store_tls.key", key)];
        let given = all.into_iter().filter_map(|(what, path)| Some((what, path?)));
        std::iter::once(("store_tls.ca", &*self.ca)).chain(given)
    }

    /// Checks that a certificate has its key.
    ///
    /// # Errors
    /// Invalid input.
    pub(crate) fn check(&self) -> Result<()> {
        if self.certificate.is_some() == self.key.is_some() {
            return Ok(());
        }
        Err(Error::invalid("store_tls.certificate and store_tls.key: both are needed, or neither"))
    }

    /// Reads the files.
    ///
    /// # Errors
    /// I/O; invalid input for files that are none.
    pub(crate) fn open(&self) -> Result<Arc<ClientTls>> {
        let own = self.certificate.clone().zip(self.key.clone());
        let files = ClientFiles { authorities: self.ca.clone(), own };
        let opened = ClientTls::open(files, super::say).map(Arc::new);
        opened.map_err(|error| error.within("store_tls"))
    }
}

fn open(files: MutualFiles) -> Result<Arc<MutualTls>> {
    MutualTls::open(files, super::say).map(Arc::new).map_err(|error| error.within("certificates"))
}

/// The files that a command's `--identity` named.
static SHOWN: OnceLock<PathBuf> = OnceLock::new();

/// Has commands of this process show PATH.pem, with PATH.key and the ca.pem beside them, if a path
/// is named.
pub(crate) fn show(identity: Option<&PathBuf>) {
    if let Some(path) = identity {
        SHOWN.get_or_init(|| path.clone());
    }
}

/// Certificates that a command shows: those of `--identity`, or else of the variable.
///
/// # Errors
/// I/O; invalid input for files that are none.
pub(crate) fn shown() -> Result<Certificates> {
    named(SHOWN.get().map(PathBuf::as_path))
}

/// Certificates at a path: PATH.pem, with PATH.key and the ca.pem beside them; without one, those
/// of the variable, if it is set.
///
/// # Errors
/// I/O; invalid input for files that are none.
pub(crate) fn named(path: Option<&Path>) -> Result<Certificates> {
    let of_variable = || std::env::var_os(IDENTITY_OF).filter(|it| !it.is_empty());
    let path = path.map(Path::to_path_buf).or_else(|| of_variable().map(PathBuf::from));
    path.as_deref().map(at).transpose()
}

/// Certificates at a path: PATH.pem, with PATH.key and the ca.pem beside them.
///
/// # Errors
/// I/O; invalid input for files that are none.
pub(crate) fn at(path: &Path) -> Result<Arc<MutualTls>> {
    let with = |ending: &str| {
        let mut file = path.as_os_str().to_owned();
        file.push(ending);
        PathBuf::from(file)
    };
    let (certificate, key) = (with(".pem"), with(".key"));
    open(MutualFiles { certificate, key, authority: path.with_file_name("ca.pem") })
}

/// Refuses an address that other machines may reach, or that is on another machine, unless there
/// are certificates. `what` names the option.
///
/// # Errors
/// Invalid input, with option, address and limit.
pub(crate) fn check(what: &str, address: SocketAddr, has_certificates: bool) -> Result<()> {
    if address.ip().is_loopback() || has_certificates {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{what} is {address}: without certificates ([tls] of a file, --identity of a command) only \
         loopback addresses are possible, 127.0.0.1 to 127.255.255.254 or ::1"
    )))
}

/// Listens for nodes and commands.
///
/// # Errors
/// As [`check`]; busy, naming the address; I/O.
pub(crate) fn listen(
    what: &str,
    address: SocketAddr,
    certificates: &Certificates,
) -> Result<TcpListener> {
    check(what, address, certificates.is_some())?;
    TcpListener::bind(address).map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::AddrInUse => ErrorKind::Busy,
            _ => ErrorKind::Io,
        };
        Error::with_source(kind, format!("{what} is {address}, which cannot be listened on"), error)
    })
}

/// Connects with a controller.
///
/// # Errors
/// As [`check`]; unavailable, naming the address.
pub(crate) fn connect(
    what: &str,
    address: SocketAddr,
    certificates: &Certificates,
) -> Result<BlockingStream> {
    check(what, address, certificates.is_some())?;
    let connect = || {
        let socket = TcpStream::connect_timeout(&address, CONNECT_MAX)?;
        socket.set_nodelay(true)?;
        Ok(socket)
    };
    let socket = connect().map_err(|error: io::Error| {
        let what = format!("no controller answers on {address}");
        Error::with_source(ErrorKind::Unavailable, what, error)
    })?;
    let Some(tls) = certificates else { return Ok(BlockingStream::plain(socket)) };
    BlockingStream::handshake(socket, tls.connect(Expected::Controller)?).map_err(|error| {
        let what =
            format!("controller {address}: no TLS with the certificate of {}", { tls.identity() });
        Error::with_source(ErrorKind::Unavailable, what, error)
    })
}

/// The process or person that has connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Somebody on this machine: there are no certificates.
    Anyone,
    /// The holder of a certificate.
    Known(Identity),
}

/// The connection of whoever was accepted.
///
/// # Errors
/// The socket's; invalid data for one that shows no certificate of the authority's, or one that
/// names nobody.
pub(crate) fn accept(
    socket: TcpStream,
    certificates: &Certificates,
) -> io::Result<(BlockingStream, Caller)> {
    let Some(tls) = certificates else {
        return Ok((BlockingStream::plain(socket), Caller::Anyone));
    };
    let stream = BlockingStream::handshake(socket, tls.accept().map_err(io::Error::other)?)?;
    let nobody = || io::Error::new(io::ErrorKind::InvalidData, "its certificate names nobody");
    let identity = stream.identity().ok_or_else(nobody)?;
    Ok((stream, Caller::Known(identity)))
}

impl Caller {
    /// Refuses to hear a node by another's certificate.
    ///
    /// # Errors
    /// Invalid input, with the certificate's name and role, and what it asks.
    pub(crate) fn check_node(&self, name: &str) -> Result<()> {
        match self {
            Self::Anyone => Ok(()),
            Self::Known(identity) if Expected::Node(name.to_owned()).is(identity) => Ok(()),
            Self::Known(identity) => Err(Error::invalid(format!(
                "the certificate is of {identity}, and it speaks as node {name}: refused"
            ))),
        }
    }

    /// Refuses a command of whoever is no operator.
    ///
    /// # Errors
    /// Invalid input, with the certificate's name and role, and what it asks.
    pub(crate) fn check_operator(&self, what: &str) -> Result<()> {
        match self {
            Self::Known(identity) if identity.role() != Role::Operator => {
                Err(Error::invalid(format!(
                    "the certificate is of {identity}, and it asks `{what}`, which takes the role \
                     operator: refused"
                )))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_beyond_this_machine_is_refused_with_option_value_and_limit() {
        for text in ["127.0.0.1:1", "127.0.0.2:1", "127.255.255.254:1", "[::1]:1"] {
            check("listen", text.parse().unwrap(), false).unwrap();
        }
        for text in ["0.0.0.0:7400", "10.0.0.1:7400", "[::]:7400", "128.0.0.1:7400"] {
            let error = check("clients.listen", text.parse().unwrap(), false).unwrap_err();
            let expected = format!("clients.listen is {text}: without certificates");
            assert!(error.message().starts_with(&expected), "{error}");
            assert!(listen("listen", text.parse().unwrap(), &None).is_err());
            check("clients.listen", text.parse().unwrap(), true).unwrap();
        }
    }

    #[test]
    fn a_certificate_is_for_its_own_node_or_for_commands_and_for_nothing_else() {
        let of = |role, name| Caller::Known(Identity::new(role, name).unwrap());
        Caller::Anyone.check_node("a").unwrap();
        Caller::Anyone.check_operator("drain").unwrap();
        of(Role::Node, "a").check_node("a").unwrap();
        of(Role::Operator, "a").check_operator("drain").unwrap();
        let line = of(Role::Node, "b").check_node("a").unwrap_err();
        assert!(line.message().contains("of node b, and it speaks as node a"), "{line}");
        for role in [Role::Controller, Role::Operator, Role::Client] {
            of(role, "a").check_node("a").unwrap_err();
        }
        for role in [Role::Node, Role::Controller, Role::Client] {
            let line = of(role, "b").check_operator("drain").unwrap_err();
            let said = format!("of {role} b, and it asks `drain`, which takes the role operator");
            assert!(line.message().contains(&said), "{line}");
        }
    }
}
