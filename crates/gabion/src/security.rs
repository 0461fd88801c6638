//! Options of `gabion up` that say who may connect and do what (docs/security.md).

use clap::Args;
use gabion_base::{Error, Result};
use gabion_server::{ClientCertificates, SecurityConfig, ServerFiles, TlsDoor};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

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
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some((name, value?)));
        given.flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    /// What the process of a replica is told.
    ///
    /// # Errors
    /// Invalid input: there is no such port.
    pub(crate) fn of_replica(&self, number: u32) -> Result<SecurityConfig> {
        let (Some(first), Some(certificate), Some(key)) =
            (self.tls_port, &self.tls_cert, &self.tls_key)
        else {
            return Ok(SecurityConfig::default());
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
        Ok(SecurityConfig { tls: Some(TlsDoor { address, files }) })
    }

    /// Checks what the processes of replicas would meet, before anything is made.
    ///
    /// # Errors
    /// I/O or invalid input for files that cannot be used, or whose paths are no text.
    pub(crate) fn check(&self) -> Result<()> {
        let paths = [&self.tls_cert, &self.tls_key, &self.tls_ca];
        paths.into_iter().flatten().try_for_each(|path| check_path(path))?;
        if let Some(TlsDoor { files, .. }) = self.of_replica(1)?.tls {
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
