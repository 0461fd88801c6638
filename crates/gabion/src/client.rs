//! A connection to a replica's RESP door that waits for each reply.

use crate::{door, security};
use bytes::BytesMut;
use gabion_base::{Error, ErrorKind, Result};
use gabion_resp::{Reply, ReplyParser, encode_request};
use gabion_tls::BlockingStream;
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a connection may take. Replicas are on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Successive STATUS requests that a replica may leave without an answer before it counts as hung.
const MISSES_MAX: u32 = 3;

pub(crate) struct Client {
    address: SocketAddr,
    stream: BlockingStream,
    parser: ReplyParser,
    buffer: BytesMut,
    /// Time to wait before another action.
    limit: Duration,
    /// Whether a reply may take longer, as long as the replica answers STATUS meanwhile.
    waits_for_the_living: bool,
}

impl Client {
    /// Connects. A reply may take `limit`.
    ///
    /// # Errors
    /// Unavailable, naming the address; invalid input where it does not let this command in.
    pub(crate) fn connect(address: SocketAddr, limit: Duration) -> Result<Self> {
        let unreached = |error: io::Error| {
            Error::with_source(
                ErrorKind::Unavailable,
                format!("no replica answers on {address}"),
                error,
            )
        };
        let connect = || {
            let socket = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
            socket.set_nodelay(true)?;
            Ok(socket)
        };
        let stream = door::begin(connect().map_err(unreached)?, address, limit)?;
        let socket = stream.socket();
        socket.set_read_timeout(Some(limit)).map_err(unreached)?;
        socket.set_write_timeout(Some(limit)).map_err(unreached)?;
        let mut client = Self {
            address,
            stream,
            parser: ReplyParser::new(),
            buffer: BytesMut::new(),
            limit,
            waits_for_the_living: false,
        };
        if let Some(words) = security::greeting()
            && let Reply::Error(why) = client.call(&words)?
        {
            let why = String::from_utf8_lossy(&why);
            return Err(Error::invalid(format!("{address} does not let this command in: {why}")));
        }
        Ok(client)
    }

    /// Connects to a replica that answers STATUS within `limit`. A reply may take as long as it
    /// needs while the replica answers STATUS on other connections. A scrub may last for hours; but
    /// a stopped process still accepts connections, and a wait for it would never end.
    ///
    /// # Errors
    /// Unavailable, naming the address.
    pub(crate) fn connect_living(address: SocketAddr, limit: Duration) -> Result<Self> {
        let mut client = Self::connect(address, limit)?;
        client.ask("STATUS")?;
        client.waits_for_the_living = true;
        Ok(client)
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a command and waits for its reply, which may be an error reply.
    ///
    /// # Errors
    /// Unavailable when the connection is lost; the connection is of no more use then.
    pub(crate) fn call<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Result<Reply> {
        let mut request = Vec::new();
        encode_request(words, &mut request);
        self.send(&request)?;
        let mut chunk = vec![0; 64 << 10];
        loop {
            match self.parser.parse(&mut self.buffer) {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => {}
                Err(error) => return Err(self.lost(io::Error::other(error.to_string()))),
            }
            match self.patiently(|stream| stream.read(&mut chunk))? {
                0 => return Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
                n => self.buffer.extend_from_slice(&chunk[..n]),
            }
        }
    }

    fn send(&mut self, mut request: &[u8]) -> Result<()> {
        while !request.is_empty() {
            let taken = self.patiently(|stream| stream.put(request))?;
            request = &request[taken..];
            self.patiently(|stream| stream.flush().map(|()| 0))?;
        }
        Ok(())
    }

    /// Repeats an action that may meet the limit, after each limit at which the replica proves
    /// alive.
    fn patiently(
        &mut self,
        mut step: impl FnMut(&mut BlockingStream) -> io::Result<usize>,
    ) -> Result<usize> {
        loop {
            match step(&mut self.stream) {
                Ok(n) => return Ok(n),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) && self.waits_for_the_living => {
                    self.look_alive()?
                }
                Err(error) => return Err(self.lost(error)),
            }
        }
    }

    /// Succeeds when the replica answers STATUS on a connection of its own.
    fn look_alive(&self) -> Result<()> {
        let ask = || Self::connect(self.address, self.limit)?.ask("STATUS");
        let mut misses = 0;
        while let Err(error) = ask() {
            misses += 1;
            if misses == MISSES_MAX {
                return Err(error);
            }
        }
        Ok(())
    }

    /// A replica's answer to `GABION question`; one space separates the words of a question.
    ///
    /// # Errors
    /// Unavailable for a lost connection and for an error that says to try again; snapshot too old;
    /// I/O for any other error; corruption for an answer that is no JSON.
    pub(crate) fn ask(&mut self, question: &str) -> Result<Value> {
        let address = self.address;
        let words: Vec<&str> = std::iter::once("GABION").chain(question.split(' ')).collect();
        // The rest of the question may be long.
        let question = words[1];
        match self.call(&words)? {
            Reply::Bulk(text) => serde_json::from_slice(&text).map_err(|e| {
                Error::corruption(format!("{address}: GABION {question} is no JSON: {e}"))
            }),
            Reply::Error(text) => {
                let kind = match &text[..] {
                    text if text.starts_with(b"TRYAGAIN snapshot too old") => {
                        ErrorKind::SnapshotTooOld
                    }
                    text if text.starts_with(b"TRYAGAIN") => ErrorKind::Unavailable,
                    _ => ErrorKind::Io,
                };
                let text = String::from_utf8_lossy(&text);
                Err(Error::new(kind, format!("{address}: GABION {question}: {text}")))
            }
            _ => Err(Error::corruption(format!("{address}: GABION {question} is no text"))),
        }
    }

    fn lost(&self, error: io::Error) -> Error {
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        // A door that does not take a certificate says so and closes, and that is still to be read.
        let is_cut_off = matches!(error.kind(), BrokenPipe | ConnectionReset);
        let said = is_cut_off.then(|| (&self.stream).read(&mut [0]).err()).flatten();
        if let Some(error) = door::refusal(self.address, said.as_ref().unwrap_or(&error)) {
            return error;
        }
        if is_timeout(&error) {
            return Error::unavailable(format!("{} does not answer", self.address));
        }
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Error::unavailable(format!("{} closed the connection", self.address));
        }
        let message = format!("the connection to {} was lost", self.address);
        Error::with_source(ErrorKind::Unavailable, message, error)
    }
}

/// Whether a socket reports that its time limit is over.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
pub(crate) mod tests;
