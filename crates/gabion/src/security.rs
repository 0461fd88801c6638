//! Options of `gabion up` that say who may connect and do what (docs/security.md).

use clap::Args;
use gabion_base::{Error, Result};
use gabion_server::{ClientCertificates, SecurityConfig, ServerFiles, TlsDoor};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The variable of the environment with what `up` shows its replicas as the password of the user
/// `gabion:operator`. Only this user of the machine and root can read it.
pub(crate) const OPERATOR_OF: &str = "GABION_OPERATOR";
/// The variable with what commands show to replicas: `password`, or `user:password`.
const AUTH_OF: &str = "GABION_AUTH";
/// The user that `up` is.
const OPERATOR: &str = "gabion:operator";

/// Password that `up` shows its replicas, from its start on.
static SHOWN: OnceLock<String> = OnceLock::new();

/// Chooses the password that this process shows the replicas that it starts.
///
/// # Errors
/// I/O: the system has no random numbers.
pub(crate) fn be_operator() -> Result<()> {
    let bytes: [u8; 32] = gabion_tls::random()?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    // A second start in one process shows what the first one does.
    SHOWN.get_or_init(|| text);
    Ok(())
}

/// Password that this process shows the replicas that it starts, if it is `up`.
pub(crate) fn operator() -> Option<&'static str> {
    SHOWN.get().map(String::as_str)
}

/// The words that a connection to a replica begins with, if any: what this process is told to show,
/// or it is `up`.
pub(crate) fn greeting() -> Option<Vec<String>> {
    let words =
        |user: &str, password: &str| Some(["AUTH", user, password].map(str::to_owned).to_vec());
    if let Some(password) = operator() {
        return words(OPERATOR, password);
    }
    let given = std::env::var(AUTH_OF).ok()?;
    match given.split_once(':') {
        Some((user, password)) => words(user, password),
        None => words("default", &given),
    }
}

#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
#[command(next_help_heading = "Who may connect")]
pub(crate) struct SecurityOptions {
    /// Port of the first replica for clients that use TLS 1.3; the others have the next ones
    /// [default: none]
    #[arg(long, value_name = "PORT", requires_all = ["tls_cert", "tls_key"],
        value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) tls_port: Option<u16>,
    /// Certificate of that port, and those between it and its authority, in PEM. A renewed one
    /// counts within a second, and so does a key
    #[arg(long, value_name = "FILE", requires = "tls_port")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_port")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Authorities whose certificates of clients are taken, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_port")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Whether clients of that port show certificates: yes, optional or no [default: yes]
    #[arg(long, value_name = "WHETHER", requires = "tls_port")]
    pub(crate) tls_auth_clients: Option<ClientCertificates>,
    /// File of users in the format of Redis's, one for all replicas: read at the start, when it
    /// changes and by ACL LOAD, written by ACL SAVE [default: the controller keeps
    /// users]
    #[arg(long, value_name = "FILE")]
    pub(crate) aclfile: Option<PathBuf>,
    /// File with the password of the user `default` [default: none, unless the file of users says
    /// so]
    #[arg(long, value_name = "FILE")]
    pub(crate) requirepass_file: Option<PathBuf>,
}

impl SecurityOptions {
    /// As words of a command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let options = [
            ("--tls-port", self.tls_port.map(|port| port.to_string())),
            ("--tls-cert", path(&self.tls_cert)),
            ("--tls-key", path(&self.tls_key)),
            ("--tls-ca", path(&self.tls_ca)),
            ("--tls-auth-clients", self.tls_auth_clients.map(|it| it.as_str().to_owned())),
            ("--aclfile", path(&self.aclfile)),
            ("--requirepass-file", path(&self.requirepass_file)),
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some((name, value?)));
        given.flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    /// Configuration of a replica's process.
    ///
    /// # Errors
    /// Invalid input: there is no such port.
    pub(crate) fn of_replica(&self, number: u32) -> Result<SecurityConfig> {
        let config = SecurityConfig {
            tls: None,
            aclfile: self.aclfile.clone(),
            users_kept: None,
            requirepass_file: self.requirepass_file.clone(),
            operator: std::env::var(OPERATOR_OF).ok(),
            members: None,
        };
        let (Some(first), Some(certificate), Some(key)) =
            (self.tls_port, &self.tls_cert, &self.tls_key)
        else {
            return Ok(config);
        };
        let port = u32::from(first) + number - 1;
        let port = u16::try_from(port).map_err(|_| {
            Error::invalid(format!(
                "--tls-port {first}: that of replica {number} would be {port}, over 65535"
            ))
        })?;
        let files = ServerFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            authorities: self.tls_ca.clone(),
            clients: self.tls_auth_clients.unwrap_or_default(),
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(SecurityConfig { tls: Some(TlsDoor { address, files }), ..config })
    }

    /// Checks what the processes of replicas would meet, before anything is made.
    ///
    /// # Errors
    /// I/O or invalid input for files that cannot be used, or whose paths are no text.
    pub(crate) fn check(&self) -> Result<()> {
        let paths =
            [&self.tls_cert, &self.tls_key, &self.tls_ca, &self.aclfile, &self.requirepass_file];
        paths.into_iter().flatten().try_for_each(|path| check_path(path))?;
        let config = self.of_replica(1)?;
        config.check_users()?;
        if let Some(TlsDoor { files, .. }) = config.tls {
            gabion_tls::ServerTls::open(files)?;
        }
        Ok(())
    }
}

/// A path is given to other processes as a word.
fn check_path(path: &Path) -> Result<()> {
    if path.to_str().is_some() {
        return Ok(());
    }
    Err(Error::invalid(format!("{}: the path is no text in UTF-8", path.display())))
}
