//! A non-blocking TCP socket as a [`Transport`].
//!
//! If the owner watches the socket for edges and hands each to `TcpTransport::note_ready`, the
//! socket makes no call with a known result: after a transfer that was cut short it would block
//! until the next edge.

use crate::cipher::{Cipher, Ciphers};
use gabion_base::{Error, ErrorKind, Result};
use gabion_media::transport::Transport;
use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::net::sockopt;
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// Most buffers that one system call sends; the rest waits for the next.
const PARTS_MAX: usize = 64;

/// One TCP connection. Never blocks and counts its bytes.
pub struct TcpTransport {
    stream: Arc<TcpStream>,
    /// Its end, where it is encrypted.
    cipher: Option<RefCell<Box<dyn Cipher>>>,
    peer: SocketAddr,
    sent_bytes: u64,
    received_bytes: u64,
    /// Whether the last receipt took as many bytes as it could.
    was_filled: bool,
    /// Whether edges are reported; without them the socket itself is asked each time.
    is_watched: Cell<bool>,
    readable: Cell<bool>,
    writable: Cell<bool>,
    /// One direction is over or broken; no further edge may tell of that.
    ending: Cell<bool>,
}

impl TcpTransport {
    /// Takes a connected socket: non-blocking, without Nagle's delay, and with socket buffers of
    /// `buffer_len` bytes each way (0 leaves the system's choice, which grows with the traffic).
    ///
    /// # Errors
    /// I/O when the socket is not connected or refuses an option.
    pub fn new(stream: TcpStream, buffer_len: usize) -> Result<Self> {
        let peer = stream.peer_addr().map_err(|e| broken("a socket", "is not connected", e))?;
        Self::with_peer(stream, peer, buffer_len)
    }

    /// Begins to connect without waiting. Until the peer has answered, sending and receiving would
    /// block; if it refuses they fail. `buffer_len` as for [`Self::new`].
    ///
    /// # Errors
    /// I/O when the system has no socket or no way to this address.
    pub fn connect(peer: SocketAddr, buffer_len: usize) -> Result<Self> {
        let stream = mio::net::TcpStream::connect(peer)
            .map_err(|e| broken(&peer.to_string(), "cannot be connected to", e))?;
        Self::with_peer(TcpStream::from(stream), peer, buffer_len)
    }

    fn with_peer(stream: TcpStream, peer: SocketAddr, buffer_len: usize) -> Result<Self> {
        let set = || -> io::Result<()> {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            if buffer_len > 0 {
                sockopt::set_socket_send_buffer_size(&stream, buffer_len)?;
                sockopt::set_socket_recv_buffer_size(&stream, buffer_len)?;
            }
            Ok(())
        };
        set().map_err(|e| broken(&peer.to_string(), "refuses a socket option", e))?;
        Ok(Self {
            stream: Arc::new(stream),
            cipher: None,
            peer,
            sent_bytes: 0,
            received_bytes: 0,
            was_filled: false,
            is_watched: Cell::new(false),
            readable: Cell::new(true),
            writable: Cell::new(true),
            ending: Cell::new(false),
        })
    }

    /// Encrypts all that passes. To be called before anything does. Kept bytes are sent at the
    /// edges of a socket that is watched; for others the owner calls [`Self::send_kept`] while
    /// [`Self::has_kept`].
    ///
    /// # Errors
    /// Of the ciphers.
    pub(crate) fn encrypt(&mut self, ciphers: &dyn Ciphers) -> Result<()> {
        assert!(self.sent_bytes + self.received_bytes == 0, "nothing passed in plain text");
        self.cipher = Some(RefCell::new(ciphers.begin(self.stream.clone())?));
        Ok(())
    }

    /// Watches the socket for edges in both directions. The caller hands each to
    /// [`Self::note_ready`].
    pub(crate) fn watch(&self, registry: &Registry, token: Token) -> Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry
            .register(&mut SourceFd(&self.as_raw_fd()), token, interest)
            .map_err(|e| broken(&self.peer.to_string(), "cannot be watched", e))?;
        self.is_watched.set(true);
        Ok(())
    }

    /// Takes an edge of the watched socket.
    pub(crate) fn note_ready(&self, event: &Event) {
        let ends = event.is_read_closed() || event.is_write_closed() || event.is_error();
        self.ending.set(self.ending.get() || ends);
        self.readable.set(self.readable.get() || ends || event.is_readable());
        self.writable.set(self.writable.get() || ends || event.is_writable());
        if event.is_writable() && self.cipher.is_some() {
            self.send_kept();
        }
    }

    /// Whether encrypted bytes wait for the socket.
    pub(crate) fn has_kept(&self) -> bool {
        self.cipher.as_ref().is_some_and(|cipher| cipher.borrow().has_kept())
    }

    /// Whether bytes may be there that no readiness of the socket tells of: they are decrypted
    /// already.
    pub(crate) fn may_hold_bytes(&self) -> bool {
        self.cipher.is_some() && self.was_filled
    }

    /// Sends encrypted bytes that were kept. Until all are sent the socket is full.
    pub(crate) fn send_kept(&self) {
        let Some(cipher) = &self.cipher else { return };
        match cipher.borrow_mut().flush() {
            Ok(true) => {}
            Ok(false) => self.exhaust(&self.writable),
            // The next transfer finds the connection broken.
            Err(_) => self.note_end(),
        }
    }

    /// No further edge may tell of what is left.
    fn note_end(&self) {
        self.ending.set(true);
        self.readable.set(true);
        self.writable.set(true);
    }

    /// Whether a call on the socket may bring anything, by the known state of this direction.
    fn may(&self, direction: &Cell<bool>) -> bool {
        !self.is_watched.get() || direction.get()
    }

    /// A transfer was cut short: the socket is empty, or full, until the next edge.
    fn exhaust(&self, direction: &Cell<bool>) {
        direction.set(self.ending.get());
    }

    /// Closes both directions at once: the next send or receive finds the connection broken.
    pub fn close(&self) {
        self.note_end();
        // It fails when the connection is gone already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// The other end.
    #[must_use]
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Bytes sent so far.
    #[must_use]
    pub const fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Bytes received so far.
    #[must_use]
    pub const fn received_bytes(&self) -> u64 {
        self.received_bytes
    }
}

/// Transfers by way of the cipher.
impl TcpTransport {
    fn send_encrypted(&mut self, parts: &[IoSlice<'_>]) -> Result<usize> {
        let Some(cipher) = &self.cipher else { return Ok(0) };
        let mut sent = 0;
        'all: for part in parts {
            let mut left = &part[..];
            while !left.is_empty() {
                let result = cipher.borrow_mut().send(&[IoSlice::new(left)]);
                match result {
                    // A handshake goes on before more is taken.
                    Ok(0) => break 'all,
                    Ok(n) => {
                        left = &left[n..];
                        sent += n;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 'all,
                    Err(error) => return Err(broken(&self.peer.to_string(), "is broken", error)),
                }
            }
        }
        self.sent_bytes += sent as u64;
        self.send_kept();
        Ok(sent)
    }

    fn receive_encrypted(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        let Some(cipher) = &self.cipher else { return Ok(None) };
        let (result, is_ended) = {
            let mut cipher = cipher.borrow_mut();
            (cipher.receive(into), cipher.is_ended())
        };
        if is_ended {
            self.note_end();
        }
        self.was_filled = matches!(result, Ok(n) if n == into.len());
        match result {
            Ok(n) => {
                self.received_bytes += n as u64;
                if n < into.len() {
                    self.exhaust(&self.readable);
                }
                Ok(Some(n))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.exhaust(&self.readable);
                Ok(None)
            }
            Err(error) => Err(broken(&self.peer.to_string(), "is not let in, or broken", error)),
        }
    }
}

impl AsRawFd for TcpTransport {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

impl AsFd for TcpTransport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Transport for TcpTransport {
    fn send(&mut self, parts: &[&[u8]]) -> Result<usize> {
        if !self.may(&self.writable) {
            return Ok(0);
        }
        let mut slices = [IoSlice::new(&[]); PARTS_MAX];
        let (mut count, mut offered) = (0, 0);
        for part in parts.iter().filter(|part| !part.is_empty()).take(PARTS_MAX) {
            slices[count] = IoSlice::new(part);
            count += 1;
            offered += part.len();
        }
        if count == 0 {
            return Ok(0);
        }
        if self.cipher.is_some() {
            return self.send_encrypted(&slices[..count]);
        }
        loop {
            match (&*self.stream).write_vectored(&slices[..count]) {
                Ok(n) => {
                    self.sent_bytes += n as u64;
                    if n < offered {
                        self.exhaust(&self.writable);
                    }
                    return Ok(n);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.exhaust(&self.writable);
                    return Ok(0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(&self.peer.to_string(), "sending failed", error)),
            }
        }
    }

    fn admits(&self, host: &str) -> Result<()> {
        self.cipher.as_ref().map_or(Ok(()), |cipher| cipher.borrow().admits(host))
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        if !self.may(&self.readable) {
            return Ok(None);
        }
        if self.cipher.is_some() {
            return self.receive_encrypted(into);
        }
        loop {
            match (&*self.stream).read(into) {
                Ok(n) => {
                    self.received_bytes += n as u64;
                    if n < into.len() {
                        self.exhaust(&self.readable);
                    }
                    return Ok(Some(n));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.exhaust(&self.readable);
                    return Ok(None);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(broken(&self.peer.to_string(), "receiving failed", error));
                }
            }
        }
    }
}

fn broken(peer: &str, what: &str, error: io::Error) -> Error {
    // A stranger, and not the network.
    let kind = match error.kind() {
        io::ErrorKind::InvalidData => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    };
    Error::with_source(kind, format!("{peer}: {what}"), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Events, Poll};
    use std::net::TcpListener;
    use std::time::Duration;

    /// A watched socket that was found empty, its poller, and its other end.
    fn watched() -> (TcpTransport, Poll, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut here = TcpTransport::new(listener.accept().unwrap().0, 64 << 10).unwrap();
        let poll = Poll::new().unwrap();
        here.watch(poll.registry(), Token(0)).unwrap();
        assert_eq!(here.receive(&mut [0; 16]).unwrap(), None);
        (here, poll, there)
    }

    /// Hands edges to the socket until `wanted` accepts one.
    fn edges(here: &TcpTransport, poll: &mut Poll, wanted: impl Fn(&Event) -> bool) {
        let mut events = Events::with_capacity(8);
        loop {
            poll.poll(&mut events, Some(Duration::from_secs(30))).unwrap();
            assert!(!events.is_empty(), "an edge in time");
            events.iter().for_each(|event| here.note_ready(event));
            if events.iter().any(&wanted) {
                return;
            }
        }
    }

    #[test]
    fn a_watched_socket_is_asked_again_after_an_edge_and_not_before() {
        let (mut here, mut poll, mut there) = watched();
        there.write_all(&[7; 16]).unwrap();
        let mut into = [0; 32];
        assert_eq!(here.receive(&mut into).unwrap(), None, "it is known to be empty");
        edges(&here, &mut poll, Event::is_readable);
        assert_eq!(here.receive(&mut into).unwrap(), Some(16));
        assert_eq!(here.receive(&mut into).unwrap(), None, "a short transfer emptied it");

        let bytes = vec![0; 4 << 20];
        let sent = here.send(&[&bytes]).unwrap();
        assert!((1..bytes.len()).contains(&sent), "{sent}");
        let mut drained = vec![0; sent];
        there.read_exact(&mut drained).unwrap();
        assert_eq!(here.send(&[&bytes]).unwrap(), 0, "it is known to be full");
        edges(&here, &mut poll, Event::is_writable);
        assert!(here.send(&[&bytes]).unwrap() > 0);
    }

    #[test]
    fn the_end_of_a_watched_socket_is_found_though_it_came_with_the_last_bytes() {
        let (mut here, mut poll, mut there) = watched();
        there.write_all(&[7; 16]).unwrap();
        there.shutdown(Shutdown::Write).unwrap();
        edges(&here, &mut poll, Event::is_read_closed);
        assert_eq!(here.receive(&mut [0; 32]).unwrap(), Some(16));
        assert_eq!(here.receive(&mut [0; 32]).unwrap(), Some(0), "no further edge tells of it");
    }

    #[test]
    fn a_socket_that_was_closed_here_is_broken_at_once() {
        let (mut here, ..) = watched();
        here.close();
        assert_eq!(here.receive(&mut [0; 32]).unwrap(), Some(0));
        assert!(here.send(&[&[1]]).is_err());
    }
}
