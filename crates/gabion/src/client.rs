//! A connection to a replica's RESP door that waits for each reply.

use bytes::BytesMut;
use gabion_base::{Error, ErrorKind, Result};
use gabion_resp::{Reply, ReplyParser, encode_request};
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a connection may take. Replicas are on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct Client {
    address: SocketAddr,
    stream: TcpStream,
    parser: ReplyParser,
    buffer: BytesMut,
}

impl Client {
    /// Connects. A reply may take `timeout`, or for ever.
    ///
    /// # Errors
    /// Unavailable, naming the address.
    pub(crate) fn connect(address: SocketAddr, timeout: Option<Duration>) -> Result<Self> {
        let connect = || {
            let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(timeout)?;
            stream.set_write_timeout(timeout)?;
            Ok(stream)
        };
        let stream = connect().map_err(|error: io::Error| {
            Error::with_source(
                ErrorKind::Unavailable,
                format!("no replica answers on {address}"),
                error,
            )
        })?;
        Ok(Self { address, stream, parser: ReplyParser::new(), buffer: BytesMut::new() })
    }

    /// Sends a command and waits for its reply, which may be an error reply.
    ///
    /// # Errors
    /// Unavailable when the connection is lost; the connection is of no more use then.
    pub(crate) fn call<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Result<Reply> {
        let mut request = Vec::new();
        encode_request(words, &mut request);
        self.stream.write_all(&request).map_err(|e| self.lost(e))?;
        let mut chunk = vec![0; 64 << 10];
        loop {
            match self.parser.parse(&mut self.buffer) {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => {}
                Err(error) => return Err(self.lost(io::Error::other(error.to_string()))),
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(error) => return Err(self.lost(error)),
            }
        }
    }

    /// What a replica answers to `GABION question`.
    ///
    /// # Errors
    /// Unavailable for a lost connection or an error reply; corruption for what is no JSON.
    pub(crate) fn ask(&mut self, question: &str) -> Result<Value> {
        let address = self.address;
        match self.call(&["GABION", question])? {
            Reply::Bulk(text) => serde_json::from_slice(&text).map_err(|e| {
                Error::corruption(format!("{address}: GABION {question} is no JSON: {e}"))
            }),
            Reply::Error(text) => Err(Error::unavailable(format!(
                "{address}: GABION {question}: {}",
                String::from_utf8_lossy(&text)
            ))),
            _ => Err(Error::corruption(format!("{address}: GABION {question} is no text"))),
        }
    }

    fn lost(&self, error: io::Error) -> Error {
        let message = match error.kind() {
            io::ErrorKind::UnexpectedEof => format!("{} closed the connection", self.address),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("{} does not answer", self.address)
            }
            _ => {
                let message = format!("the connection to {} was lost", self.address);
                return Error::with_source(ErrorKind::Unavailable, message, error);
            }
        };
        Error::unavailable(message)
    }
}
