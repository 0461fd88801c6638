//! A connection of threads, encrypted or not: one thread may read while another writes.
//!
//! A read waits for the socket without the lock, so that a writer is never held up by it. It takes
//! no bytes from the socket meanwhile: what rustls has no room for stays there.

use crate::Identity;
use crate::stream::{HANDSHAKE_LEN_MAX, invalid};
use rustls::Connection;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// A connection; its clones are the same one.
#[derive(Clone)]
pub struct BlockingStream(Arc<Inner>);

struct Inner {
    socket: TcpStream,
    /// None where nothing is encrypted.
    tls: Option<Mutex<Connection>>,
}

impl BlockingStream {
    /// A connection that is not encrypted.
    #[must_use]
    pub fn plain(socket: TcpStream) -> Self {
        Self(Arc::new(Inner { socket, tls: None }))
    }

    /// Shakes hands. Times of the socket are changed meanwhile, and are without limit then.
    ///
    /// # Errors
    /// The socket's; `InvalidData` for what is no TLS, or not let in, which the other end is told;
    /// timed out.
    pub fn handshake(socket: TcpStream, tls: impl Into<Connection>) -> io::Result<Self> {
        Self::handshake_within(socket, tls, HANDSHAKE_MAX)
    }

    /// The same, within another time.
    ///
    /// # Errors
    /// As [`Self::handshake`].
    pub fn handshake_within(
        socket: TcpStream,
        tls: impl Into<Connection>,
        limit: Duration,
    ) -> io::Result<Self> {
        let begun = Instant::now();
        let mut tls = tls.into();
        let mut came = 0;
        while tls.is_handshaking() || tls.wants_write() {
            let left = limit.checked_sub(begun.elapsed()).filter(|left| !left.is_zero());
            let left = Some(left.ok_or(io::ErrorKind::TimedOut)?);
            socket.set_read_timeout(left)?;
            socket.set_write_timeout(left)?;
            // A signal ends neither: the loop looks at the time again.
            let count = match tls.wants_write() {
                true => tls.write_tls(&mut &socket).map(|_| 0),
                false => take(&mut tls, &socket),
            };
            came += match count {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count?,
            };
            if tls.is_handshaking() && came > HANDSHAKE_LEN_MAX {
                let text =
                    format!("more than {HANDSHAKE_LEN_MAX} bytes before the handshake ended");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
        socket.set_read_timeout(None)?;
        socket.set_write_timeout(None)?;
        Ok(Self(Arc::new(Inner { socket, tls: Some(Mutex::new(tls)) })))
    }

    /// The socket, whose times may be limited.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.0.socket
    }

    /// The identity in the other end's certificate, which has been checked. None where nothing is
    /// encrypted, or the certificate names none.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        let tls = self.tls()?;
        let certificate = tls.peer_certificates().and_then(<[_]>::first)?;
        Identity::of(certificate).ok().flatten()
    }

    /// Whether all is encrypted.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.0.tls.is_some()
    }

    /// Takes bytes, which `flush` sends; it may take fewer than all. Where the socket's time is
    /// over, `flush` is called again, and sends the rest. A `write` that was cut off cannot be
    /// repeated: nobody knows which of its bytes are sent.
    ///
    /// # Errors
    /// The socket's, where nothing is encrypted: it takes them at once.
    pub fn put(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.tls() {
            Some(mut tls) => tls.writer().write(bytes),
            None => self.socket().write(bytes),
        }
    }

    /// Ends the connection, for reads and writes under way too.
    pub fn shutdown(&self) {
        // It fails when the connection is gone already.
        let _ = self.socket().shutdown(Shutdown::Both);
    }

    fn tls(&self) -> Option<MutexGuard<'_, Connection>> {
        self.0.tls.as_ref().map(|tls| tls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Takes records that come, and sends what they ask for. Returns how many bytes came.
fn take(tls: &mut Connection, mut socket: &TcpStream) -> io::Result<usize> {
    let count = tls.read_tls(&mut socket)?;
    if count == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if let Err(error) = tls.process_new_packets() {
        // The alert that says why, if the socket takes it.
        let _ = tls.write_tls(&mut socket);
        return Err(invalid(error));
    }
    send(tls, &mut socket)?;
    Ok(count)
}

/// Sends what rustls has. It goes on after a signal: rustls has the caller's bytes already, and
/// would get them again from one that is told `Interrupted`.
fn send(tls: &mut Connection, socket: &mut impl Write) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(socket) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => drop(result?),
        }
    }
    Ok(())
}

impl Read for &BlockingStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut socket = self.socket();
        loop {
            let Some(mut tls) = self.tls() else { return socket.read(out) };
            match tls.reader().read(out) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // It ended without saying so. Messages here say their length.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                result => return result,
            }
            drop(tls);
            if socket.peek(&mut [0])? == 0 {
                return Ok(0);
            }
            if let Some(mut tls) = self.tls() {
                take(&mut tls, socket)?;
            }
        }
    }
}

impl Write for &BlockingStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut socket = self.socket();
        let Some(mut tls) = self.tls() else { return socket.write(bytes) };
        let count = tls.writer().write(bytes)?;
        send(&mut tls, &mut socket)?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tls().map_or(Ok(()), |mut tls| send(&mut tls, &mut self.socket()))
    }
}

impl Read for BlockingStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        (&*self).read(out)
    }
}

impl Write for BlockingStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    /// Takes a byte at a time, and is interrupted before each.
    #[derive(Default)]
    struct Interrupted {
        taken: Vec<u8>,
        is_next: bool,
    }

    impl Write for Interrupted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.is_next = !self.is_next;
            if self.is_next {
                return Err(io::ErrorKind::Interrupted.into());
            }
            self.taken.extend(&bytes[..1]);
            Ok(1)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn bytes_that_rustls_has_are_sent_once_whatever_interrupts_them() {
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from("gabion").unwrap();
        let mut tls = Connection::from(ClientConnection::new(config.into(), name).unwrap());
        let mut socket = Interrupted::default();
        send(&mut tls, &mut socket).unwrap();
        assert!(!tls.wants_write());
        // One record, of the length that its head says.
        let len = usize::from(u16::from_be_bytes([socket.taken[3], socket.taken[4]]));
        assert_eq!((socket.taken[0], socket.taken.len()), (22, 5 + len));
    }
}
