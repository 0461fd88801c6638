//! Peers in this process and the store that they share with programs, for tests.

use gabion_base::Result;
use gabion_control::store::MemoryStore;
use gabion_control::{Store, Swapped, Version, Versioned};
use gabion_fabric::remote::{PeerServer, ServerOptions};
use gabion_media::remote::PeerConfig;
use gabion_ncl_driver::address::PeerAddress;
use gabion_ncl_driver::registry::Registrar;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A store that all parties share.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<MemoryStore>>);

impl Store for Shared {
    fn get(&mut self, name: &str) -> Result<Option<Versioned>> {
        self.0.lock().unwrap().get(name)
    }

    fn list(&mut self, prefix: &str) -> Result<Vec<(String, Versioned)>> {
        self.0.lock().unwrap().list(prefix)
    }

    fn swap(&mut self, name: &str, expected: Version, value: &[u8]) -> Result<Swapped> {
        self.0.lock().unwrap().swap(name, expected, value)
    }
}

/// How programs reach the peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Tcp,
    SharedMemory,
}

/// Starts a peer, which registers with all of its memory. Its Unix socket, if it has one, is made
/// at `path`.
pub(crate) fn start(
    store: &Shared,
    way: Way,
    path: &Path,
    config: PeerConfig,
) -> (PeerServer, Registrar) {
    let (mut tcp, mut unix) = (None, None);
    match way {
        Way::Tcp => tcp = Some(TcpListener::bind("127.0.0.1:0").unwrap()),
        Way::SharedMemory => unix = Some(UnixListener::bind(path).unwrap()),
    }
    let here = tcp.as_ref().map(|tcp| tcp.local_addr().unwrap());
    let address = PeerAddress::here(here, None, unix.is_some().then_some(path));
    let (of, limit_bytes) = ((config.peer, config.incarnation), config.limit_bytes);
    let options = ServerOptions { config, tcp, ciphers: None, unix, greeting_timeout_ms: 5_000 };
    let server = PeerServer::start(options).unwrap();
    let (store, renew) = (Box::new(store.clone()), Duration::from_secs(60));
    let mut registrar = Registrar::new(store, of, "", address, renew);
    registrar.register(limit_bytes).unwrap();
    (server, registrar)
}
