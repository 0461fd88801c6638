//! The socket of a client, member or controller, encrypted or not.

use gabion_tls::{Identity, TlsStream};
use mio::net::TcpStream;
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;

/// Both kinds are read and written alike: `WouldBlock` says that an event will come, and a read of
/// fewer bytes than there is room for that the socket is empty or at its end.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    /// None: another service of the process is the other end, and gets replies as they are.
    Within,
}

impl Stream {
    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Plain(socket) => Some(socket),
            Self::Tls(stream) => Some(stream.socket()),
            Self::Within => None,
        }
    }

    pub(crate) fn socket_mut(&mut self) -> Option<&mut TcpStream> {
        match self {
            Self::Plain(socket) => Some(socket),
            Self::Tls(stream) => Some(stream.socket_mut()),
            Self::Within => None,
        }
    }

    /// Whether it is not known yet who is there, and with what keys.
    pub(crate) fn is_handshaking(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.is_handshaking())
    }

    /// Whether the end of what the client sends was read though no event will say so.
    #[inline]
    pub(crate) fn is_ended(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.is_ended())
    }

    /// Whether bytes that were written wait for the socket.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.has_pending())
    }

    /// Sends bytes that wait. Returns false when some still do.
    pub(crate) fn send_pending(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain(_) | Self::Within => Ok(true),
            Self::Tls(stream) => stream.flush(),
        }
    }

    #[inline]
    pub(crate) fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(out),
            Self::Within => Err(io::ErrorKind::WouldBlock.into()),
            Self::Tls(stream) => stream.read(out),
        }
    }

    #[inline]
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Within => Err(io::ErrorKind::WouldBlock.into()),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    #[inline]
    pub(crate) fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write_vectored(parts),
            Self::Tls(stream) => stream.write_vectored(parts),
        }
    }

    /// Goes on with the handshake, if there is one. Returns whether it is over.
    pub(crate) fn handshake(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain(_) => Ok(true),
            Self::Tls(stream) => stream.handshake(),
        }
    }

    /// The identity in the other end's certificate.
    pub(crate) fn identity(&self) -> Option<Identity> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.identity(),
        }
    }

    /// Tells the other end that nothing more comes.
    pub(crate) fn shutdown_write(&mut self) -> io::Result<()> {
        if let Self::Tls(stream) = self {
            stream.close();
        }
        self.socket().map_or(Ok(()), |socket| socket.shutdown(Shutdown::Write))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // So that the other end knows that nothing was cut off.
        if let Self::Tls(stream) = self {
            stream.close();
        }
    }
}
