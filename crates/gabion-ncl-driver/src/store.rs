//! The controller's store over a socket: a server for any store, and a client that is one.
//!
//! ```text
//!   RemoteStore ── question ──► StoreServer: a thread each connection ── lock ──► Store
//!               ◄── answer ───
//! ```
//!
//! The bytes are those of `gabion_control::store_wire`. A client asks one question at a time, and
//! connects again after a failure. Leases and registrations are values that their holders renew by
//! compare-and-set; whoever waits for a change reads again.
//!
//! The client is here; `server` is the other end, and `figures` are numbers of it for its operator.

mod figures;
mod server;

pub use figures::{Kept, KeptPeer, StoreFigures, Traffic};
pub use server::{StoreServer, StoreSockets};

use crate::address::SOCKET;
use gabion_base::{Error, ErrorKind, Result};
use gabion_control::store_wire::{Answer, MESSAGE_LEN_MAX, Question};
use gabion_control::{Store, Swapped, Version, Versioned};
use gabion_fabric::remote::LinkAddress;
use gabion_tls::{BlockingStream, Expected, MutualTls};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a client waits for a connection or an answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A stream of either kind.
enum Stream {
    Tcp(BlockingStream),
    Unix(UnixStream),
}

impl Stream {
    fn connect(
        address: &LinkAddress,
        tls: Option<&MutualTls>,
        timeout: Duration,
    ) -> io::Result<Self> {
        match address {
            LinkAddress::Tcp(to) => {
                let stream = TcpStream::connect_timeout(to, timeout)?;
                stream.set_nodelay(true)?;
                let Some(tls) = tls else { return Ok(Self::Tcp(BlockingStream::plain(stream))) };
                let tls = tls.connect(Expected::Controller).map_err(io::Error::other)?;
                BlockingStream::handshake_within(stream, tls, timeout).map(Self::Tcp)
            }
            // A directory that a controller has made since its place was told.
            LinkAddress::Unix(path) if path.is_dir() => {
                UnixStream::connect(path.join(SOCKET)).map(Self::Unix)
            }
            LinkAddress::Unix(path) => UnixStream::connect(path).map(Self::Unix),
        }
    }

    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout.max(Duration::from_millis(1)));
        match self {
            Self::Tcp(stream) => {
                stream.socket().set_read_timeout(timeout)?;
                stream.socket().set_write_timeout(timeout)
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }

    fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => Ok(Self::Tcp(stream.clone())),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    fn shut_down(&self) {
        // It may be closed already.
        let _ = match self {
            Self::Tcp(stream) => {
                stream.shutdown();
                Ok(())
            }
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Unix(stream) => stream.write_all(bytes),
        }
    }
}

/// A stream and what came over it.
struct Connection {
    stream: Stream,
    received: Vec<u8>,
}

impl Connection {
    const fn new(stream: Stream) -> Self {
        Self { stream, received: Vec::new() }
    }

    /// Waits until a whole message is there: `decode` says so.
    fn receive<T>(
        &mut self,
        timeout: Duration,
        decode: impl Fn(&[u8]) -> Result<Option<(T, usize)>>,
    ) -> Result<T> {
        let until = Instant::now() + timeout;
        let mut piece = [0; 16 << 10];
        loop {
            if let Some((message, len)) = decode(&self.received)? {
                self.received.drain(..len);
                return Ok(message);
            }
            assert!(self.received.len() <= MESSAGE_LEN_MAX + 4, "a longer message is refused");
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::unavailable(format!("no message came within {timeout:?}")));
            }
            self.stream.set_timeout(left).map_err(broken)?;
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(Error::unavailable("the connection was closed")),
                Ok(len) => self.received.extend_from_slice(&piece[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(broken(error)),
            }
        }
    }
}

fn broken(error: io::Error) -> Error {
    Error::with_source(ErrorKind::Unavailable, "the connection broke", error)
}

/// The store of another process.
pub struct RemoteStore {
    address: LinkAddress,
    token: Vec<u8>,
    tls: Option<Arc<MutualTls>>,
    timeout: Duration,
    connection: Option<Connection>,
    last: u64,
}

impl RemoteStore {
    /// The store at an address, or at the Unix socket of a directory. It is connected to when it is
    /// asked.
    #[must_use]
    pub const fn new(address: LinkAddress, token: Vec<u8>) -> Self {
        Self { address, token, tls: None, timeout: ANSWER_TIMEOUT, connection: None, last: 0 }
    }

    /// The same over TLS, where the address is one of TCP.
    #[must_use]
    pub fn with_tls(self, tls: Option<Arc<MutualTls>>) -> Self {
        Self { tls, ..self }
    }

    fn ask(&mut self, question: Question<'_>) -> Result<Answer> {
        let within = |error: Error| error.within(format!("controller {}", self.address));
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let tls = self.tls.as_deref();
                let stream = Stream::connect(&self.address, tls, self.timeout);
                let stream = stream.map_err(|error| {
                    let text = format!("controller {}: cannot be connected to", self.address);
                    Error::with_source(ErrorKind::Unavailable, text, error)
                })?;
                let mut connection = Connection::new(stream);
                let greeting = Question::Greet { token: &self.token };
                self.last += 1;
                match exchange(&mut connection, greeting, self.last, self.timeout) {
                    Ok(Answer::Welcome) => connection,
                    Ok(other) => return Err(within(unexpected(&other))),
                    Err(error) => return Err(within(error)),
                }
            }
        };
        self.last += 1;
        let answer = exchange(&mut connection, question, self.last, self.timeout);
        let answer = answer.map_err(within)?;
        self.connection = Some(connection);
        match answer {
            Answer::Failed { .. } => Err(within(unexpected(&answer))),
            answer => Ok(answer),
        }
    }
}

/// A question and the answer to it.
fn exchange(
    connection: &mut Connection,
    question: Question<'_>,
    number: u64,
    timeout: Duration,
) -> Result<Answer> {
    connection.stream.set_timeout(timeout).map_err(broken)?;
    connection.stream.write_all(&question.encode(number)?).map_err(broken)?;
    let decode = |bytes: &[u8]| {
        Ok(Answer::decode(bytes)?.map(|(answer, number, len)| ((answer, number), len)))
    };
    let (answer, answered) = connection.receive(timeout, decode)?;
    if answered != number {
        return Err(Error::corruption(format!("answer {answered} to question {number}")));
    }
    Ok(answer)
}

fn unexpected(answer: &Answer) -> Error {
    match answer {
        Answer::Failed { is_refused: true, text } => Error::invalid(text.clone()),
        Answer::Failed { is_refused: false, text } => Error::unavailable(text.clone()),
        _ => Error::corruption("an answer to another question"),
    }
}

impl Store for RemoteStore {
    fn get(&mut self, name: &str) -> Result<Option<Versioned>> {
        match self.ask(Question::Get { name })? {
            Answer::Got(found) => Ok(found),
            other => Err(unexpected(&other)),
        }
    }

    fn list(&mut self, prefix: &str) -> Result<Vec<(String, Versioned)>> {
        let mut all: Vec<(String, Versioned)> = Vec::new();
        loop {
            let after = all.last().map(|(name, _)| name.clone()).unwrap_or_default();
            match self.ask(Question::List { prefix, after: &after })? {
                Answer::Listed(page, more) => {
                    let goes_on = page.first().is_none_or(|(name, _)| *name > after);
                    let is_over = !more || page.is_empty();
                    if !goes_on {
                        return Err(Error::corruption("a list that does not go on"));
                    }
                    all.extend(page);
                    if is_over {
                        return Ok(all);
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    fn swap(&mut self, name: &str, expected: Version, value: &[u8]) -> Result<Swapped> {
        match self.ask(Question::Swap { name, expected, value })? {
            Answer::Swapped(swapped) => Ok(swapped),
            other => Err(unexpected(&other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_control::store::{MemoryStore, contract};
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    fn served(token: Option<&[u8]>) -> (StoreServer, LinkAddress) {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = LinkAddress::Tcp(tcp.local_addr().unwrap());
        let token = token.map(<[u8]>::to_vec);
        let sockets = StoreSockets { tcp: Some(tcp), unix: None, token, tls: None };
        (StoreServer::start(Box::<MemoryStore>::default(), sockets).unwrap(), address)
    }

    #[test]
    fn a_store_of_another_process_keeps_the_contract_and_its_lists_come_in_pages() {
        let (_server, address) = served(None);
        let mut store = RemoteStore::new(address, Vec::new());
        contract(&mut store);
        let value = vec![7; 60_000];
        for at in 0..20 {
            let name = format!("long/{at:02}");
            store.swap(&name, Version::NONE, &value).unwrap();
        }
        let listed = store.list("long/").unwrap();
        assert_eq!(listed.len(), 20);
        assert!(listed.iter().all(|(_, found)| found.value == value));
    }

    #[test]
    fn a_client_without_the_token_is_told_and_one_with_it_is_served() {
        let (_server, address) = served(Some(b"secret"));
        for token in [&b""[..], b"secre", b"secrets", b"Secret"] {
            let error = RemoteStore::new(address.clone(), token.to_vec()).get("a").unwrap_err();
            assert!(error.to_string().contains("the token is not the controller's"), "{error}");
        }
        assert_eq!(RemoteStore::new(address, b"secret".to_vec()).get("a").unwrap(), None);
    }

    #[test]
    fn a_client_connects_again_to_a_store_that_was_away() {
        let dir = std::env::temp_dir().join(format!("gabion-store-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(SOCKET);
        let start = || {
            let _ = std::fs::remove_file(&path);
            let unix = Some(UnixListener::bind(&path).unwrap());
            let sockets = StoreSockets { unix, ..StoreSockets::default() };
            StoreServer::start(Box::<MemoryStore>::default(), sockets).unwrap()
        };
        let server = start();
        let mut store = RemoteStore::new(LinkAddress::Unix(path.clone()), Vec::new());
        assert_eq!(store.get("a").unwrap(), None);
        // By its directory it is the same.
        let mut by_directory = RemoteStore::new(LinkAddress::Unix(dir.clone()), Vec::new());
        assert_eq!(by_directory.get("a").unwrap(), None);
        drop(server);
        assert_eq!(store.get("a").unwrap_err().kind(), ErrorKind::Unavailable);
        let _server = start();
        assert_eq!(store.get("a").unwrap(), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn bytes_that_are_no_question_end_the_connection() {
        let (_server, address) = served(None);
        let mut stream = Stream::connect(&address, None, ANSWER_TIMEOUT).unwrap();
        stream.write_all(&[0xff; 64]).unwrap();
        stream.set_timeout(Duration::from_secs(10)).unwrap();
        assert!(matches!(stream.read(&mut [0; 16]), Ok(0) | Err(_)));
        assert_eq!(RemoteStore::new(address, Vec::new()).get("a").unwrap(), None);
    }
}
