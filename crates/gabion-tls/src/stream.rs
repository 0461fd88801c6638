//! A connection that is encrypted, over a socket that never waits.
//!
//! ```text
//!   read:   socket ─► (records) ─► rustls ─► caller        handshake: both, until it is over
//!   write:  caller ─► rustls ─► (records) ─► socket        records that the socket does not take
//!                                                          are kept, and nothing more is encrypted
//! ```
//!
//! The caller gets no byte before the handshake is over. Until then the other end may send
//! [`HANDSHAKE_LEN_MAX`] bytes, so that a stranger makes the process hold no more.

use crate::Identity;
use rustls::Connection;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// Bytes that the other end may send before the handshake is over: a hello and a chain of
/// certificates take a few kilobytes.
pub const HANDSHAKE_LEN_MAX: usize = 16 << 10;
/// Bytes that are encrypted at a time. So many, and what the records add, wait for a socket.
const WRITE_LEN: usize = 64 << 10;

/// A socket that others watch and close while its [`TlsStream`] reads and writes.
pub struct SharedSocket(pub Arc<TcpStream>);

impl Read for SharedSocket {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(out)
    }
}

impl Write for SharedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.0).write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self.0).write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One end of a connection.
pub struct TlsStream<S> {
    socket: S,
    tls: Connection,
    /// Bytes that came during the handshake.
    handshake_len: usize,
    /// The other end sends nothing more.
    is_ended: bool,
}

impl<S: Read + Write> TlsStream<S> {
    /// Begins a handshake, which goes on whenever something is read.
    pub fn new(socket: S, tls: impl Into<Connection>) -> Self {
        let mut tls = tls.into();
        tls.set_buffer_limit(Some(WRITE_LEN));
        Self { socket, tls, handshake_len: 0, is_ended: false }
    }

    /// The socket.
    pub const fn socket(&self) -> &S {
        &self.socket
    }

    /// The socket, to be watched or shut down.
    pub const fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    /// Whether the handshake goes on.
    pub fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Whether the other end has said that it sends nothing more, or has closed.
    pub const fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether records wait for the socket.
    pub fn has_pending(&self) -> bool {
        self.tls.wants_write()
    }

    /// The identity in the other end's certificate, which has been checked. None where it showed
    /// none, or one without such a name.
    pub fn identity(&self) -> Option<Identity> {
        let certificate = self.tls.peer_certificates().and_then(<[_]>::first)?;
        Identity::of(certificate).ok().flatten()
    }

    /// Goes on with the handshake. Returns whether it is over.
    ///
    /// # Errors
    /// `InvalidData` for what is no TLS, or not let in; the socket's.
    pub fn handshake(&mut self) -> io::Result<bool> {
        self.flush()?;
        while self.is_handshaking() {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.take_records(count)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads until `out` is full, the socket is empty or the other end has sent all: fewer bytes
    /// than `out` takes mean one of the latter two.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; `InvalidData` for what is no TLS, or not let in. The
    /// other end is told why.
    pub fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        loop {
            filled += self.take_plain(&mut out[filled..])?;
            if filled == out.len() || self.is_ended {
                return Ok(filled);
            }
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => self.is_ended = true,
                Ok(count) => self.take_records(count)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && filled > 0 => {
                    return Ok(filled);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes bytes that are decrypted.
    fn take_plain(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < out.len() {
            match self.tls.reader().read(&mut out[filled..]) {
                // It said so in a record.
                Ok(0) => {
                    self.is_ended = true;
                    break;
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // It closed without saying so. Requests say their lengths, so a part that is
                // missing is known.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    self.is_ended = true;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn take_records(&mut self, count: usize) -> io::Result<()> {
        let was_handshaking = self.is_handshaking();
        if let Err(error) = self.tls.process_new_packets() {
            // The alert that says why, if the socket takes it.
            let _ = self.flush();
            return Err(invalid(error));
        }
        if was_handshaking {
            self.handshake_len += count;
            if self.is_handshaking() && self.handshake_len > HANDSHAKE_LEN_MAX {
                let text =
                    format!("more than {HANDSHAKE_LEN_MAX} bytes before the handshake ended");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
        self.flush().map(drop)
    }

    /// Encrypts and sends what the socket takes; up to `WRITE_LEN` bytes that it does not take
    /// are kept. Returns how many bytes of `bytes` are sent or kept.
    ///
    /// # Errors
    /// `WouldBlock` while what was kept waits.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.flush()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = self.tls.writer().write(&bytes[..bytes.len().min(WRITE_LEN)])?;
        self.flush()?;
        Ok(count)
    }

    /// As [`Self::write`], from several buffers.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.flush()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut count = 0;
        for part in parts {
            // Past its limit rustls takes a part of it, or nothing.
            let taken = self.tls.writer().write(part)?;
            count += taken;
            if taken < part.len() {
                break;
            }
        }
        self.flush()?;
        Ok(count)
    }

    /// Sends what was kept. Returns false when the socket does not take all of it now.
    ///
    /// # Errors
    /// The socket's.
    pub fn flush(&mut self) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Tells the other end that nothing more comes.
    pub fn close(&mut self) {
        if !self.is_handshaking() {
            self.tls.send_close_notify();
            let _ = self.flush();
        }
    }
}

/// The error of a connection that was not let in, or is no TLS.
pub(crate) fn invalid(error: rustls::Error) -> io::Error {
    let kind = io::ErrorKind::InvalidData;
    match error {
        // A sentence of our own: see `mutual`.
        rustls::Error::General(text) => io::Error::new(kind, text),
        error => io::Error::new(kind, error),
    }
}

#[cfg(test)]
mod tests;
