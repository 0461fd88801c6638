//! Certificates: a private authority, identity and role in what it issues, and TLS from files that
//! may be renewed while a process runs.
//!
//! ```text
//!   ca: init ─► ca.pem, ca.key      issue, renew ─► NAME.pem, NAME.key, a line in `issued`
//!                  │                                   │
//!                  ▼ who may come                      ▼ who we are
//!   server: ServerTls (files ─► rustls, read again when they change)
//!                  │ one for each connection
//!                  ▼
//!   socket ◄──► stream: TlsStream ◄──► bytes of the client, its identity
//!                  ▲ one for each connection, of either end
//!   mutual: MutualTls (files ─► both ends between Gabion's own processes)
//!   client: ClientTls (files ─► the end that connects, to a name or an address)
//!                  ▼ one for each connection
//!   socket ◄──► blocking: BlockingStream ◄──► bytes, the other end's identity
//! ```
//!
//! A [`TlsStream`] never waits: it is for a loop that is told when its socket is ready. A
//! [`BlockingStream`] is for threads: one may read while another writes.
#![allow(clippy::disallowed_methods, reason = "a shell: files and the clock are its business")]

mod blocking;
pub mod ca;
mod client;
mod files;
mod identity;
mod mutual;
mod server;
mod stream;
mod validity;

pub use blocking::BlockingStream;
pub use client::{ClientFiles, ClientTls};
pub use identity::{Identity, NAME_LEN_MAX, Role};
pub use mutual::{Expected, MutualFiles, MutualTls};
pub use rustls;
pub use server::{ClientCertificates, ServerFiles, ServerTls};
pub use stream::{HANDSHAKE_LEN_MAX, SharedSocket, TlsStream};
pub use validity::{certificate_until_s, is_expired};

use std::sync::Arc;

/// The cryptography of all connections and of the authority.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Random bytes from the system.
///
/// # Errors
/// I/O: the system has none.
pub fn random<const N: usize>() -> gabion_base::Result<[u8; N]> {
    let mut bytes = [0; N];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| gabion_base::Error::io("the system has no random numbers"))?;
    Ok(bytes)
}
