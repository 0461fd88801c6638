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
}

impl Stream {
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.socket(),
        }
    }

    pub(crate) fn socket_mut(&mut self) -> &mut TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.socket_mut(),
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
            Self::Plain(_) => Ok(true),
            Self::Tls(stream) => stream.flush(),
        }
    }

    #[inline]
    pub(crate) fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(out),
            Self::Tls(stream) => stream.read(out),
        }
    }

    #[inline]
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
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
        self.socket().shutdown(Shutdown::Write)
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

/// The other end of a client.
pub(crate) enum ClientEnd {
    Stream(Stream),
    /// Another service of the process: it gives commands and takes replies as they are, so nothing
    /// is read or written.
    Within,
}

impl ClientEnd {
    fn stream(&self) -> Option<&Stream> {
        match self {
            Self::Stream(stream) => Some(stream),
            Self::Within => None,
        }
    }

    fn stream_mut(&mut self) -> io::Result<&mut Stream> {
        match self {
            Self::Stream(stream) => Ok(stream),
            Self::Within => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        self.stream().map(Stream::socket)
    }

    pub(crate) fn socket_mut(&mut self) -> Option<&mut TcpStream> {
        self.stream_mut().ok().map(Stream::socket_mut)
    }

    /// As [`Stream::is_handshaking`].
    pub(crate) fn is_handshaking(&self) -> bool {
        self.stream().is_some_and(Stream::is_handshaking)
    }

    /// As [`Stream::is_ended`].
    #[inline]
    pub(crate) fn is_ended(&self) -> bool {
        self.stream().is_some_and(Stream::is_ended)
    }

    /// As [`Stream::has_pending`].
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        self.stream().is_some_and(Stream::has_pending)
    }

    /// As [`Stream::send_pending`].
    pub(crate) fn send_pending(&mut self) -> io::Result<bool> {
        self.stream_mut().map_or(Ok(true), Stream::send_pending)
    }

    #[inline]
    pub(crate) fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.stream_mut()?.read(out)
    }

    #[inline]
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream_mut()?.write(bytes)
    }

    /// As [`Stream::shutdown_write`].
    pub(crate) fn shutdown_write(&mut self) -> io::Result<()> {
        self.stream_mut().map_or(Ok(()), Stream::shutdown_write)
    }
}
