//! The door where all is encrypted: its certificate, and those who have not finished shaking hands.
//!
//! A stranger holds a connection of `maxclients`, for [`HANDSHAKE_MS`] at most, and
//! [`gabion_tls::HANDSHAKE_LEN_MAX`] bytes. Nothing is answered before the handshake is over, not
//! even that there are too many.

use crate::config::TlsDoor;
use crate::listen::{GroupDoor, listen_to_clients};
use crate::service::Service;
use crate::stream::Stream;
use gabion_base::{Error, ErrorKind, Result};
use gabion_tls::{ServerTls, TlsStream};
use mio::net::{TcpListener, TcpStream};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// How long a handshake may take, in ms.
const HANDSHAKE_MS: u64 = 10_000;
/// Shortest time between two notes that files cannot be read again, in ms.
const NOTE_MS: u64 = 60_000;

/// The door, and what connections begin with.
pub(crate) struct Tls {
    pub(crate) listener: TcpListener,
    pub(crate) address: SocketAddr,
    /// The door of this group alone, where the other one is for all groups.
    pub(crate) group: Option<GroupDoor>,
    pub(crate) server: ServerTls,
    /// Until when they may shake hands: place, serial.
    pub(crate) handshakes: VecDeque<(u64, usize, u64)>,
    noted_ms: Option<u64>,
}

impl Tls {
    /// `group` is where the group's own door listens, if it has one besides.
    pub(crate) fn open(door: &TlsDoor, group: Option<SocketAddr>) -> Result<Self> {
        let server =
            ServerTls::open(door.files.clone()).map_err(|error| error.within("TLS of the door"))?;
        let listener = listen_to_clients(door.address)?;
        let address = listener.local_addr().map_err(|error| {
            Error::with_source(ErrorKind::Io, "door for clients that use TLS", error)
        })?;
        let group = group.map(GroupDoor::open).transpose()?;
        Ok(Self { listener, address, group, server, handshakes: VecDeque::new(), noted_ms: None })
    }

    /// The connection of a client that was accepted. None when there is none for it.
    pub(crate) fn begin(&self, socket: TcpStream) -> Option<Stream> {
        match self.server.accept() {
            Ok(tls) => Some(Stream::Tls(Box::new(TlsStream::new(socket, tls)))),
            Err(error) => {
                note!("door for clients that use TLS: {error}");
                None
            }
        }
    }

    /// A handshake begins.
    pub(crate) fn expect(&mut self, now_ms: u64, token: usize, serial: u64) {
        self.handshakes.push_back((now_ms + HANDSHAKE_MS, token, serial));
    }

    /// Reads the files again if they changed.
    fn refresh(&mut self, now_ms: u64) {
        match self.server.refresh() {
            Ok(false) => {}
            Ok(true) => {
                self.noted_ms = None;
                note!("door for clients that use TLS: certificates were read again");
            }
            Err(error) => {
                if self.noted_ms.is_none_or(|then| now_ms - then >= NOTE_MS) {
                    self.noted_ms = Some(now_ms);
                    note!(
                        "door for clients that use TLS: connections begin with the certificates \
                         of before, as those that are there cannot be used: {error}"
                    );
                }
            }
        }
    }
}

impl Service {
    /// Closes those that have taken too long to shake hands.
    pub(crate) fn tick_handshakes(&mut self) {
        let now_ms = self.now_ms;
        while let Some(tls) = &mut self.tls
            && let Some(&(until_ms, token, serial)) = tls.handshakes.front()
            && until_ms <= now_ms
        {
            tls.handshakes.pop_front();
            let place = self.clients.get_mut(token);
            let is_it = |client: &mut Box<crate::client::Client>| {
                client.serial == serial && client.stream.is_handshaking()
            };
            if let Some(client) = place.and_then(|client| client.take_if(is_it)) {
                self.put_back(token, client, false);
            }
        }
    }

    /// Looks whether certificates were renewed; called once a second.
    pub(crate) fn refresh_tls(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.refresh(self.now_ms);
        }
    }
}

#[cfg(test)]
mod tests;
