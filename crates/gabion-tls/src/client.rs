//! The end that connects to a server by its name or address: doors for clients, etcd.
//!
//! The other end's certificate is checked against authorities and against the name or the address
//! that was connected to. An own certificate is shown where there is one.
//!
//! The files are looked at whenever a connection begins.

use crate::provider;
use crate::server::{Stamp, certificates, key, refused, roots, stamps};
use gabion_base::{Error, Result};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shortest time between two notes that files cannot be read again.
const NOTE_EVERY: Duration = Duration::from_secs(60);

/// Files of PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// The authorities whose certificates of servers are taken.
    pub authorities: PathBuf,
    /// The certificate that is shown, and its key; none is shown without them.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// TLS of new connections to servers, with the newest files.
pub struct ClientTls {
    files: ClientFiles,
    note: fn(&str),
    state: Mutex<State>,
}

struct State {
    config: Arc<ClientConfig>,
    stamps: Vec<Option<Stamp>>,
    noted: Option<Instant>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ClientTls {
    /// Reads the files. `note` gets a line when they were read again, or cannot be.
    ///
    /// # Errors
    /// I/O; invalid input: a file holds no certificate or key, or the two do not belong together.
    pub fn open(files: ClientFiles, note: fn(&str)) -> Result<Self> {
        let stamps = stamps_of(&files);
        let state = State { config: load(&files)?, stamps, noted: None };
        Ok(Self { files, note, state: Mutex::new(state) })
    }

    /// The state of a connection that begins here, to a host: a name, or an address with or without
    /// brackets. It is what the other end's certificate has to be for.
    ///
    /// # Errors
    /// Invalid input: the host cannot be one.
    pub fn connect(&self, host: &str) -> Result<ClientConnection> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(bare.to_owned()).map_err(|_| {
            Error::invalid(format!("'{}' is no name or address of a host", host.escape_debug()))
        })?;
        ClientConnection::new(self.fresh(), name).map_err(refused("TLS"))
    }

    /// The sentence for a connection that one of the two ends did not let come about; none for any
    /// other failure. In TLS 1.3 the other end refuses a certificate after the handshake, at the
    /// first read here. It has taken no other byte then.
    #[must_use]
    pub fn refusal(&self, error: &io::Error) -> Option<String> {
        use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
        match error.get_ref()?.downcast_ref::<rustls::Error>()? {
            InvalidCertificate(why) => Some(self.not_taken(why)),
            AlertReceived(alert) => self.not_let_in(*alert),
            InvalidMessage(_) => Some("no TLS is spoken there".to_owned()),
            _ => None,
        }
    }

    /// The other end's certificate is not taken.
    fn not_taken(&self, why: &CertificateError) -> String {
        use CertificateError::{
            BadSignature, Expired, ExpiredContext, NotValidForNameContext, UnknownIssuer,
        };
        match why {
            UnknownIssuer | BadSignature => {
                let authorities = self.files.authorities.display();
                format!("the certificate there is of no authority in {authorities}")
            }
            NotValidForNameContext { expected, presented } => {
                let expected = expected.to_str();
                match presented.is_empty() {
                    true => format!("the certificate there names no host, so not {expected}"),
                    false => format!(
                        "the certificate there is not for {expected}, but for {}",
                        presented.join(", ")
                    ),
                }
            }
            Expired | ExpiredContext { .. } => "the certificate there has expired".to_owned(),
            other => format!("the certificate there is not taken: {other}"),
        }
    }

    /// The other end does not take the own certificate, or does not speak TLS 1.3.
    fn not_let_in(&self, alert: AlertDescription) -> Option<String> {
        use AlertDescription as Alert;
        match alert {
            Alert::ProtocolVersion => Some("TLS 1.3 is not spoken there".to_owned()),
            Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied => Some(match &self.files.own {
                None => "a certificate is wanted there, and none is configured here".to_owned(),
                Some((own, _)) => format!("{} is not taken there: {alert:?}", own.display()),
            }),
            _ => None,
        }
    }

    /// Settings of the files as they are now.
    fn fresh(&self) -> Arc<ClientConfig> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = stamps_of(&self.files);
        if stamps == state.stamps {
            return state.config.clone();
        }
        match load(&self.files) {
            Ok(config) => {
                *state = State { config, stamps, noted: None };
                (self.note)("certificates for connections to servers were read again");
            }
            Err(error) if state.noted.is_none_or(|then| then.elapsed() >= NOTE_EVERY) => {
                state.noted = Some(Instant::now());
                (self.note)(&format!(
                    "connections to servers begin with the certificates of before, as those that \
                     are there cannot be used: {error}"
                ));
            }
            Err(_) => {}
        }
        state.config.clone()
    }
}

fn stamps_of(files: &ClientFiles) -> Vec<Option<Stamp>> {
    let own = files.own.iter().flat_map(|(certificate, key)| [certificate, key]);
    stamps(std::iter::once(&files.authorities).chain(own))
}

fn load(files: &ClientFiles) -> Result<Arc<ClientConfig>> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(refused("TLS 1.3"))?
        .with_root_certificates(roots(&files.authorities)?);
    let mut config = match &files.own {
        None => builder.with_no_client_auth(),
        Some((certificate, own)) => {
            let pair = format!("{} and {}", certificate.display(), own.display());
            builder
                .with_client_auth_cert(certificates(certificate)?, key(own)?)
                .map_err(refused(pair))?
        }
    };
    // A resumed session would go on with certificates of before.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests;
