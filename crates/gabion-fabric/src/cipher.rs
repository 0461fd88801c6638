//! Encryption under a [`crate::TcpTransport`], as whoever runs the process gives it: this crate
//! knows no certificates.

use gabion_base::Result;
use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::sync::Arc;

/// One end of a connection that is encrypted, over a socket that never blocks. A handshake goes on
/// with each call until it is over.
pub trait Cipher: Send {
    /// Encrypts a prefix of the parts, and sends what the socket takes. Returns how many bytes are
    /// sent or kept; 0 where none can be kept now.
    ///
    /// # Errors
    /// `WouldBlock` while kept bytes wait for the socket; the connection is broken.
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Reads until `into` is full, the socket is empty or the other end has sent all.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; the connection is broken, or the other end refused.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Sends what was kept. Returns whether all of it is sent.
    ///
    /// # Errors
    /// The connection is broken.
    fn flush(&mut self) -> io::Result<bool>;

    /// Whether bytes wait for the socket: kept ones, or those of a handshake.
    fn has_kept(&self) -> bool;

    /// Whether the other end has sent all.
    fn is_ended(&self) -> bool;

    /// Whether the other end may be the host, or speak for the application, of this name.
    ///
    /// # Errors
    /// Why not, with its name and the one that its certificate says.
    fn admits(&self, host: &str) -> Result<()>;
}

/// Begins to encrypt connections.
pub trait Ciphers: Send + Sync {
    /// The end of a connection that is here.
    ///
    /// # Errors
    /// There are no certificates, or nobody is known at the other end.
    fn begin(&self, socket: Arc<TcpStream>) -> Result<Box<dyn Cipher>>;
}
