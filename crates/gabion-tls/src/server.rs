//! The end that listens: its certificate, and whose certificates it takes, from files that are
//! read again when they change.

use crate::{files, provider, validity};
use gabion_base::{Error, ErrorKind, Result};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Whether clients show certificates; the words are those of Redis's `tls-auth-clients`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// `yes`: a client without one is refused.
    #[default]
    Required,
    /// `optional`: one that is shown must be valid.
    Optional,
    /// `no`: none is asked for.
    Ignored,
}

impl ClientCertificates {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "yes",
            Self::Optional => "optional",
            Self::Ignored => "no",
        }
    }
}

impl FromStr for ClientCertificates {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let all = [Self::Required, Self::Optional, Self::Ignored];
        all.into_iter().find(|it| it.as_str() == text).ok_or_else(|| {
            Error::invalid(format!("'{}': yes, no or optional are possible", text.escape_debug()))
        })
    }
}

/// Files of PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate, and those between it and the authority, if any.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Authorities whose certificates of clients are taken.
    pub authorities: Option<PathBuf>,
    /// Whether clients show them.
    pub clients: ClientCertificates,
}

/// Tells one state of a file from another: renamed over, written to, or touched.
pub(crate) type Stamp = (u64, i64, i64, u64);

/// TLS of new connections, with the newest files.
pub struct ServerTls {
    files: ServerFiles,
    stamps: Vec<Option<Stamp>>,
    config: Arc<ServerConfig>,
    /// The end of its certificate, in seconds since 1970, if it can be read.
    until_s: Option<i64>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// I/O; invalid input: a file holds no certificate or key, the two do not belong together, or
    /// certificates of clients are wanted and no authority is named.
    pub fn open(files: ServerFiles) -> Result<Self> {
        let stamps = stamps_of(&files);
        let (config, until_s) = load(&files)?;
        Ok(Self { files, stamps, config, until_s })
    }

    /// The files.
    #[must_use]
    pub const fn files(&self) -> &ServerFiles {
        &self.files
    }

    /// Reads the files again if they have changed; connections that are there go on as they began.
    /// Returns whether they had.
    ///
    /// # Errors
    /// As [`Self::open`]: new connections begin with what there was, and the next call tries again.
    pub fn refresh(&mut self) -> Result<bool> {
        let stamps = stamps_of(&self.files);
        if stamps == self.stamps {
            return Ok(false);
        }
        (self.config, self.until_s) = load(&self.files)?;
        self.stamps = stamps;
        Ok(true)
    }

    /// The end of the certificate that clients are shown, in seconds since 1970; none where its
    /// bytes do not say it.
    #[must_use]
    pub const fn until_s(&self) -> Option<i64> {
        self.until_s
    }

    /// The state of a connection that was accepted.
    ///
    /// # Errors
    /// Invalid input: what was configured cannot be.
    pub fn accept(&self) -> Result<ServerConnection> {
        ServerConnection::new(self.config.clone()).map_err(refused("TLS"))
    }
}

pub(crate) fn refused(what: impl Into<String>) -> impl FnOnce(rustls::Error) -> Error {
    let what = what.into();
    move |error| Error::with_source(ErrorKind::InvalidInput, what, error)
}

fn stamps_of(files: &ServerFiles) -> Vec<Option<Stamp>> {
    let paths = [Some(&files.certificate), Some(&files.key), files.authorities.as_ref()];
    stamps(paths.into_iter().flatten())
}

pub(crate) fn stamps<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Vec<Option<Stamp>> {
    let stamp = |path: &PathBuf| {
        let data = fs::metadata(path).ok()?;
        Some((data.ino(), data.mtime(), data.mtime_nsec(), data.len()))
    };
    paths.into_iter().map(stamp).collect()
}

/// TLS from these files, and the end of their certificate.
fn load(of: &ServerFiles) -> Result<(Arc<ServerConfig>, Option<i64>)> {
    let provider = provider();
    let chain = certificates(&of.certificate)?;
    let until_s = chain.first().and_then(validity::until_s);
    let key = key(&of.key)?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(refused("TLS 1.3"))?;
    let builder = match (of.clients, &of.authorities) {
        (ClientCertificates::Ignored, _) => builder.with_no_client_auth(),
        (clients, Some(path)) => {
            builder.with_client_cert_verifier(verifier(clients, path, provider)?)
        }
        (clients, None) => {
            return Err(Error::invalid(format!(
                "certificates of clients are '{}', and no file names the authority that makes them",
                clients.as_str()
            )));
        }
    };
    let pair = format!("{} and {}", of.certificate.display(), of.key.display());
    let mut config = builder.with_single_cert(chain, key).map_err(refused(pair))?;
    // A session that is resumed would be let in by the certificate of the first one, which may have
    // expired since.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok((Arc::new(config), until_s))
}

fn verifier(
    clients: ClientCertificates,
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>> {
    let roots = roots(path)?;
    let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
    let builder = match clients {
        ClientCertificates::Optional => builder.allow_unauthenticated(),
        ClientCertificates::Required | ClientCertificates::Ignored => builder,
    };
    builder.build().map_err(|error| {
        Error::with_source(ErrorKind::InvalidInput, path.display().to_string(), error)
    })
}

pub(crate) fn roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(refused(path.display().to_string()))?;
    }
    Ok(roots)
}

pub(crate) fn key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(&files::read(path)?)
        .map_err(|error| Error::invalid(format!("{}: no key in PEM: {error}", path.display())))
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let text = files::read(path)?;
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| {
        Error::invalid(format!("{}: no certificate in PEM: {error}", path.display()))
    })?;
    if all.is_empty() {
        return Err(Error::invalid(format!("{}: holds no certificate", path.display())));
    }
    Ok(all)
}
