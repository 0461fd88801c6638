//! A non-blocking TCP socket as a [`Transport`].

use gabion_base::{Error, ErrorKind, Result};
use gabion_media::transport::Transport;
use rustix::net::sockopt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};

/// Most buffers that one system call sends; the rest waits for the next.
const PARTS_MAX: usize = 64;

/// One TCP connection. Never blocks and counts its bytes.
pub struct TcpTransport {
    stream: TcpStream,
    peer: SocketAddr,
    sent_bytes: u64,
    received_bytes: u64,
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

    /// Begins to connect and does not wait for it: until the peer answered, sending and receiving
    /// would block; if it refuses they fail. `buffer_len` as for [`Self::new`].
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
        Ok(Self { stream, peer, sent_bytes: 0, received_bytes: 0 })
    }

    /// Closes both directions at once: the next send or receive finds the connection broken.
    pub fn close(&self) {
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

impl AsRawFd for TcpTransport {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

impl Transport for TcpTransport {
    fn send(&mut self, parts: &[&[u8]]) -> Result<usize> {
        let mut slices = [IoSlice::new(&[]); PARTS_MAX];
        let mut count = 0;
        for part in parts.iter().filter(|part| !part.is_empty()).take(PARTS_MAX) {
            slices[count] = IoSlice::new(part);
            count += 1;
        }
        if count == 0 {
            return Ok(0);
        }
        loop {
            match self.stream.write_vectored(&slices[..count]) {
                Ok(n) => {
                    self.sent_bytes += n as u64;
                    return Ok(n);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(&self.peer.to_string(), "sending failed", error)),
            }
        }
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        loop {
            match self.stream.read(into) {
                Ok(n) => {
                    self.received_bytes += n as u64;
                    return Ok(Some(n));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(broken(&self.peer.to_string(), "receiving failed", error));
                }
            }
        }
    }
}

fn broken(peer: &str, what: &str, error: io::Error) -> Error {
    Error::with_source(ErrorKind::Io, format!("{peer}: {what}"), error)
}
