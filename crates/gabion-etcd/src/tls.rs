//! TLS below HTTP: each connection begins with the files of that moment.
//!
//! ```text
//!   ureq: call ─► TcpConnector ─► TlsConnector: handshake, authority, name ─► TlsTransport
//! ```
//!
//! `ureq` has a TLS of its own, which reads certificates once and panics for a key of another one.

use gabion_tls::ClientTls;
use gabion_tls::rustls::{ClientConnection, StreamOwned};
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use ureq::unversioned::transport::time::{Duration, Instant};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};

/// Makes an encrypted connection of a plain one.
#[derive(Debug)]
pub(crate) struct TlsConnector(pub(crate) Arc<ClientTls>);

/// A connection that one end did not let come about: nothing that was to be asked was taken.
#[derive(Debug)]
pub(crate) struct NotLetIn(String);

impl fmt::Display for NotLetIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no TLS: {}", self.0)
    }
}

impl std::error::Error for NotLetIn {}

impl NotLetIn {
    /// The one that is in an error of a call.
    pub(crate) fn within(error: &ureq::Error) -> Option<&Self> {
        match error {
            ureq::Error::Io(error) => error.get_ref()?.downcast_ref(),
            _ => None,
        }
    }

    fn error(why: String) -> ureq::Error {
        // Of this kind, as one that was refused: the call did not reach etcd.
        io::Error::new(io::ErrorKind::ConnectionRefused, Self(why)).into()
    }
}

impl<In: Transport> Connector<In> for TlsConnector {
    type Out = TlsTransport<In>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(chained) = chained else { return Ok(None) };
        let host = details.uri.host().unwrap_or_default();
        let mut tls = self.0.connect(host).map_err(|error| NotLetIn::error(error.to_string()))?;
        let mut socket = TransportAdapter::new(chained, details.current_time.clone());
        socket.set_timeout(left_of(details));
        tls.complete_io(&mut socket).map_err(|error| match self.0.refusal(&error) {
            Some(why) => NotLetIn::error(why),
            None => match ureq::Error::from(error) {
                ureq::Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    let why = "the other end has closed the connection, as if it spoke none";
                    NotLetIn::error(why.to_owned())
                }
                ureq::Error::Io(error) => NotLetIn::error(error.to_string()),
                other => other,
            },
        })?;
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        let stream = StreamOwned::new(tls, socket);
        Ok(Some(TlsTransport { tls: self.0.clone(), buffers, stream }))
    }
}

/// The time that is left for a connection in the making.
fn left_of(details: &ConnectionDetails<'_>) -> NextTimeout {
    let mut timeout = details.timeout;
    if let (Duration::Exact(all), Instant::Exact(begun)) = (timeout.after, details.now) {
        timeout.after = Duration::Exact(all.saturating_sub(begun.elapsed()));
    }
    timeout
}

/// A connection whose handshake is over.
pub(crate) struct TlsTransport<In: Transport> {
    tls: Arc<ClientTls>,
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter<In>>,
}

impl<In: Transport> fmt::Debug for TlsTransport<In> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsTransport").finish_non_exhaustive()
    }
}

impl<In: Transport> TlsTransport<In> {
    /// The error of a read or a write. An end that does not take our certificate says so and
    /// closes. If the closing is noticed first, by what is to be sent, that word is still to be
    /// read.
    fn failed(&mut self, error: io::Error) -> ureq::Error {
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        let StreamOwned { conn, sock } = &mut self.stream;
        let mut error = error;
        if matches!(error.kind(), BrokenPipe | ConnectionReset)
            && conn.read_tls(sock).is_ok()
            && let Err(said) = conn.process_new_packets()
        {
            error = io::Error::new(io::ErrorKind::InvalidData, said);
        }
        self.tls.refusal(&error).map_or_else(|| error.into(), NotLetIn::error)
    }
}

impl<In: Transport> Transport for TlsTransport<In> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, len: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.sock.set_timeout(timeout);
        let sent = self.stream.write_all(&self.buffers.output()[..len]);
        sent.map_err(|error| self.failed(error))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.sock.set_timeout(timeout);
        let read = self.stream.read(self.buffers.input_append_buf());
        let len = read.map_err(|error| self.failed(error))?;
        self.buffers.input_appended(len);
        Ok(len > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
