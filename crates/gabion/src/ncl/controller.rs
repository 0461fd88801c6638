//! `gabion ncl controller`: the store that log peers and programs meet in, served until it is told
//! to end.
//!
//! It is an embedded store of Gabion's behind a socket. Nothing here decides anything: leases, maps
//! and registrations are values that their holders compare and set.

use super::metrics::{self, of_controller};
use super::sockets::{SocketFile, check_listen, listen_tcp, say, signals};
use super::{ControllerOptions, Shown, default_socket};
use crate::cluster::failed;
use crate::control::store::DbStore;
use gabion_base::Result;
use gabion_ncl_driver::store::{StoreServer, StoreSockets};
use gabion_tls::Role;
use std::sync::Arc;

pub(super) fn run(options: &ControllerOptions) -> Result<u8> {
    let (token, identity) = (options.token_file.as_deref(), options.identity.as_deref());
    let shown = Shown::of_role(token, identity, Role::Controller)?;
    check_listen(options.listen, shown.is_any())?;
    let directory = &options.directory;
    std::fs::create_dir_all(directory).map_err(|e| failed(directory, "cannot be made", e))?;
    // It is locked from here on, so that the socket is nobody else's.
    let store = DbStore::open(&directory.join("store"))?;
    let path = options.socket.clone().unwrap_or_else(|| default_socket(directory));
    let socket = SocketFile::listen(path, options.socket_mode)?;
    let tcp = listen_tcp(options.listen)?;
    let address = tcp.as_ref().and_then(|tcp| tcp.local_addr().ok());
    let unix = socket.listener.try_clone().map_err(|e| failed(&socket.path, "is lost", e))?;
    let signals = signals()?;
    let is_sealed = shown.tls.is_some();
    let sockets = StoreSockets { tcp, unix: Some(unix), token: shown.token, tls: shown.tls };
    let server = Arc::new(StoreServer::start(Box::new(store), sockets)?);
    let of_server = Arc::clone(&server);
    let page = move || Ok(of_controller::page(&of_server.figures()));
    let door = metrics::serve(options.metrics, page, |line| say(&format!("  {line}")))?;
    say(&format!("controller of near-compute logs: store {}", directory.display()));
    say(&format!("  Unix socket {}", socket.path.display()));
    if let Some(address) = address {
        say(&format!("  {} {address}", if is_sealed { "TLS" } else { "TCP" }));
    }
    if let Some(address) = options.metrics {
        say(&format!("  metrics http://{address}/metrics"));
    }
    // The sender is gone once the thread of signals is, which is never.
    let _ = signals.recv();
    drop((door, server));
    Ok(0)
}
