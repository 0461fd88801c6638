//! TLS between Gabion's own processes: both ends show certificates, and each says which identity
//! it expects of the other.
//!
//! The end that connects checks name and role within the handshake, and so sends nothing to
//! another one. The end that listens learns the identity with the handshake's end, and checks it
//! against what is asked. Addresses in certificates mean nothing here.
//!
//! The files are looked at when a connection begins, at most once a second.

use crate::identity::{Identity, Role};
use crate::server::{Stamp, certificates, key, refused, roots, stamps};
use crate::{ClientCertificates, ServerFiles, ServerTls, provider};
use gabion_base::{Error, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore};
use rustls::{ServerConnection, SignatureScheme};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often it is looked whether files have changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Shortest time between two notes that files cannot be read again.
const NOTE_EVERY: Duration = Duration::from_secs(60);

/// Files of PEM of a process of Gabion's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MutualFiles {
    /// The certificate, and those between it and the authority, if any.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority whose certificates are taken.
    pub authority: PathBuf,
}

/// The identity that the other end is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// This node.
    Node(String),
    /// Any node.
    AnyNode,
    /// Any controller.
    Controller,
}

impl Expected {
    /// Whether an identity is the one that is expected.
    #[must_use]
    pub fn is(&self, identity: &Identity) -> bool {
        match self {
            Self::Node(name) => identity.role() == Role::Node && identity.name() == name,
            Self::AnyNode => identity.role() == Role::Node,
            Self::Controller => identity.role() == Role::Controller,
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node {name}"),
            Self::AnyNode => f.write_str("a node"),
            Self::Controller => f.write_str("a controller"),
        }
    }
}

/// Both ends of new connections of this process, with the newest files.
pub struct MutualTls {
    files: MutualFiles,
    identity: Identity,
    note: fn(&str),
    state: Mutex<State>,
}

struct State {
    server: ServerTls,
    client: Client,
    stamps: Vec<Option<Stamp>>,
    looked: Instant,
    noted: Option<Instant>,
}

/// The end that connects.
#[derive(Clone)]
struct Client {
    config: ClientConfig,
    roots: Arc<RootCertStore>,
}

impl fmt::Debug for MutualTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutualTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl MutualTls {
    /// Reads the files. `note` gets a line when they were read again, or cannot be.
    ///
    /// # Errors
    /// I/O; invalid input: a file holds no certificate or key, the two do not belong together, or
    /// the certificate names no identity.
    pub fn open(files: MutualFiles, note: fn(&str)) -> Result<Self> {
        let stamps = stamps_of(&files);
        let (identity, server, client) = load(&files)?;
        let state = State { server, client, stamps, looked: Instant::now(), noted: None };
        Ok(Self { files, identity, note, state: Mutex::new(state) })
    }

    /// The identity in this process's certificate. It stays when the files are read again.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The files.
    #[must_use]
    pub const fn files(&self) -> &MutualFiles {
        &self.files
    }

    /// When the certificate of new connections ends, in seconds since 1970.
    #[must_use]
    pub fn until_s(&self) -> Option<i64> {
        self.fresh().server.until_s()
    }

    /// The state of a connection that was accepted.
    ///
    /// # Errors
    /// Invalid input: what was configured cannot be.
    pub fn accept(&self) -> Result<ServerConnection> {
        self.fresh().server.accept()
    }

    /// The state of a connection that begins here.
    ///
    /// # Errors
    /// Invalid input: what was configured cannot be.
    pub fn connect(&self, expected: Expected) -> Result<ClientConnection> {
        let Client { mut config, roots } = self.fresh().client.clone();
        let algorithms = provider().signature_verification_algorithms;
        let verifier = Verifier { roots, expected, algorithms };
        config.dangerous().set_certificate_verifier(Arc::new(verifier));
        // It is neither sent nor compared.
        let name = ServerName::try_from("gabion").map_err(|_| Error::invalid("no name"))?;
        ClientConnection::new(config.into(), name).map_err(refused("TLS"))
    }

    /// The settings that connections begin with, of files that are at most a second old.
    fn fresh(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= LOOK_EVERY {
            state.looked = Instant::now();
            self.refresh(&mut state);
        }
        state
    }

    fn refresh(&self, state: &mut State) {
        let stamps = stamps_of(&self.files);
        if stamps == state.stamps {
            return;
        }
        let loaded = load(&self.files).and_then(|(identity, server, client)| {
            if identity == self.identity {
                return Ok((server, client));
            }
            let path = self.files.certificate.display();
            Err(Error::invalid(format!("{path} is of {identity}, and was of {}", self.identity)))
        });
        match loaded {
            Ok((server, client)) => {
                (state.server, state.client, state.stamps) = (server, client, stamps);
                state.noted = None;
                (self.note)("certificates between Gabion's processes were read again");
            }
            Err(error) if state.noted.is_none_or(|then| then.elapsed() >= NOTE_EVERY) => {
                state.noted = Some(Instant::now());
                (self.note)(&format!(
                    "connections between Gabion's processes begin with the certificates of \
                     before, as those that are there cannot be used: {error}"
                ));
            }
            Err(_) => {}
        }
    }
}

fn stamps_of(files: &MutualFiles) -> Vec<Option<Stamp>> {
    stamps([&files.certificate, &files.key, &files.authority])
}

fn load(files: &MutualFiles) -> Result<(Identity, ServerTls, Client)> {
    let MutualFiles { certificate, key: own, authority } = files;
    let chain = certificates(certificate)?;
    let identity = chain.first().map(Identity::of).transpose()?.flatten().ok_or_else(|| {
        let path = certificate.display();
        Error::invalid(format!("{path}: names no role and name of Gabion's, as `gabion ca` does"))
    })?;
    let server = ServerTls::open(ServerFiles {
        certificate: certificate.clone(),
        key: own.clone(),
        authorities: Some(authority.clone()),
        clients: ClientCertificates::Required,
    })?;
    let pair = format!("{} and {}", certificate.display(), own.display());
    let roots = Arc::new(roots(authority)?);
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(refused("TLS 1.3"))?
        .with_root_certificates(roots.clone())
        .with_client_auth_cert(chain, key(own)?)
        .map_err(refused(pair))?;
    // As at the end that listens: a resumed session would be let in by an older certificate.
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok((identity, server, Client { config, roots }))
}

/// Checks the certificate of the end that listens: authority, times, use, and then who it is.
#[derive(Debug)]
struct Verifier {
    roots: Arc<RootCertStore>,
    expected: Expected,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            self.algorithms.all,
        )?;
        let expected = &self.expected;
        let found = Identity::of(end_entity)
            .map_err(|error| rustls::Error::General(error.message().to_owned()))?;
        match found {
            Some(found) if expected.is(&found) => Ok(ServerCertVerified::assertion()),
            Some(found) => Err(rustls::Error::General(format!(
                "the certificate there is of {found}, and that of {expected} is expected"
            ))),
            None => Err(rustls::Error::General(format!(
                "the certificate there names nobody, and that of {expected} is expected"
            ))),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
