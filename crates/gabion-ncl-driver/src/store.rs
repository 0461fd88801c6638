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

use crate::tls::{check_change, check_question};
use gabion_base::{Error, ErrorKind, Result};
use gabion_control::store_wire::{Answer, MESSAGE_LEN_MAX, NAME_LEN_MAX, Question};
use gabion_control::{Store, Swapped, Version, Versioned};
use gabion_fabric::remote::LinkAddress;
use gabion_tls::{BlockingStream, Expected, Identity, MutualTls};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a client waits for a connection or an answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a client that connects may be silent.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may be silent later. Every one of ours asks more often.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Most connections at a time.
const CONNECTIONS_MAX: usize = 256;

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
    /// The store at an address. It is connected to when it is asked.
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

/// Sockets of a store. Clients of TCP are those that have the token, if there is one.
#[derive(Default)]
pub struct StoreSockets {
    /// The TCP socket.
    pub tcp: Option<TcpListener>,
    /// The Unix socket.
    pub unix: Option<UnixListener>,
    /// Token that clients have to show.
    pub token: Option<Vec<u8>>,
    /// Certificates, which each end of TCP shows then.
    pub tls: Option<Arc<MutualTls>>,
}

struct Served {
    store: Mutex<Box<dyn Store + Send>>,
    token: Option<Vec<u8>>,
    tls: Option<Arc<MutualTls>>,
    stopping: AtomicBool,
    connections: Mutex<BTreeMap<u64, Stream>>,
}

/// A store that is served until this is dropped.
pub struct StoreServer {
    served: Arc<Served>,
    /// Threads that accept, and their sockets.
    accepting: Vec<(JoinHandle<()>, OwnedFd)>,
}

impl StoreServer {
    /// Serves a store on these sockets, each by a thread `gabion-accept`.
    ///
    /// # Errors
    /// I/O when the system refuses a thread.
    pub fn start(store: Box<dyn Store + Send>, sockets: StoreSockets) -> Result<Self> {
        let failed = |e| Error::with_source(ErrorKind::Io, "the store cannot be served", e);
        let served = Arc::new(Served {
            store: Mutex::new(store),
            token: sockets.token,
            tls: sockets.tls,
            stopping: AtomicBool::new(false),
            connections: Mutex::new(BTreeMap::new()),
        });
        let mut server = Self { served, accepting: Vec::new() };
        if let Some(tcp) = sockets.tcp {
            let socket = tcp.try_clone().map_err(failed)?.into();
            let accept = move || {
                let (stream, _) = tcp.accept()?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(BlockingStream::plain(stream)))
            };
            server.accept(socket, accept).map_err(failed)?;
        }
        if let Some(unix) = sockets.unix {
            let socket = unix.try_clone().map_err(failed)?.into();
            let accept = move || Ok(Stream::Unix(unix.accept()?.0));
            server.accept(socket, accept).map_err(failed)?;
        }
        Ok(server)
    }

    fn accept(
        &mut self,
        socket: OwnedFd,
        accept: impl Fn() -> io::Result<Stream> + Send + 'static,
    ) -> io::Result<()> {
        let served = Arc::clone(&self.served);
        let body = move || {
            for number in 0u64.. {
                let accepted = accept();
                if served.stopping.load(Ordering::Acquire) {
                    return;
                }
                match accepted.and_then(|stream| serve(&served, number, stream)) {
                    Ok(()) => {}
                    // No descriptor, or no thread: others end theirs.
                    Err(_) => std::thread::sleep(Duration::from_millis(50)),
                }
            }
        };
        let thread = std::thread::Builder::new().name("gabion-accept".into()).spawn(body)?;
        self.accepting.push((thread, socket));
        Ok(())
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.served.stopping.store(true, Ordering::Release);
        for (thread, socket) in self.accepting.drain(..) {
            // The thread is woken, as nobody can be accepted any more.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
            // A panic was printed there.
            let _ = thread.join();
        }
        for stream in connections(&self.served).values() {
            stream.shut_down();
        }
    }
}

fn connections(served: &Served) -> std::sync::MutexGuard<'_, BTreeMap<u64, Stream>> {
    served.connections.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to serve a connection; one too many is closed.
fn serve(served: &Arc<Served>, number: u64, stream: Stream) -> io::Result<()> {
    // Numbers of the two sockets differ in their last bit.
    let number = number << 1 | u64::from(matches!(stream, Stream::Unix(_)));
    {
        let mut open = connections(served);
        if open.len() >= CONNECTIONS_MAX {
            return Ok(());
        }
        open.insert(number, stream.try_clone()?);
    }
    let served = Arc::clone(served);
    let body = move || {
        // A connection that breaks is its client's business.
        let _ = welcome(&served, stream).and_then(|stream| answer_all(&served, stream));
        connections(&served).remove(&number);
    };
    std::thread::Builder::new().name("gabion-store".into()).spawn(body).map(|_| ())
}

/// Shakes hands, where certificates are shown.
fn welcome(served: &Served, stream: Stream) -> Result<Stream> {
    let (Stream::Tcp(stream), Some(tls)) = (&stream, &served.tls) else { return Ok(stream) };
    let socket = stream.socket().try_clone().map_err(broken)?;
    let sealed = BlockingStream::handshake_within(socket, tls.accept()?, GREETING_TIMEOUT);
    sealed.map(Stream::Tcp).map_err(broken)
}

fn answer_all(served: &Served, stream: Stream) -> Result<()> {
    let found = match &stream {
        Stream::Tcp(stream) if stream.is_tls() => Some(stream.identity()),
        Stream::Tcp(_) | Stream::Unix(_) => None,
    };
    let mut connection = Connection::new(stream);
    let mut is_welcome = false;
    loop {
        let timeout = if is_welcome { IDLE_TIMEOUT } else { GREETING_TIMEOUT };
        let decode = |bytes: &[u8]| {
            let Some((question, number, len)) = Question::decode(bytes)? else { return Ok(None) };
            let answer = match question {
                Question::Greet { token } => greet(served, token),
                _ if !is_welcome => Err(Error::invalid("the first question is a greeting")),
                question => answer(served, &question, found.as_ref()),
            };
            Ok(Some(((answer, number), len)))
        };
        let (answer, number) = connection.receive(timeout, decode)?;
        let is_refused = !is_welcome && answer.is_err();
        is_welcome = true;
        let answer = answer.unwrap_or_else(|error| Answer::failed(&error));
        let bytes = answer.encode(number).or_else(|e| Answer::failed(&e).encode(number))?;
        connection.stream.set_timeout(GREETING_TIMEOUT).map_err(broken)?;
        connection.stream.write_all(&bytes).map_err(broken)?;
        if is_refused {
            return Ok(());
        }
    }
}

fn greet(served: &Served, token: &[u8]) -> Result<Answer> {
    if let Some(wanted) = &served.token {
        // All bytes are looked at: the time does not tell where they differ.
        let differs = wanted.iter().zip(token).fold(0, |sum, (a, b)| sum | (a ^ b)) != 0;
        if differs || wanted.len() != token.len() {
            return Err(Error::invalid("the token is not the controller's"));
        }
    }
    Ok(Answer::Welcome)
}

/// `found` is what the certificate says, where certificates are shown.
fn answer(
    served: &Served,
    question: &Question<'_>,
    found: Option<&Option<Identity>>,
) -> Result<Answer> {
    if let Some(found) = found {
        check_question(found.as_ref(), question)?;
    }
    let mut store = served.store.lock().map_err(|_| Error::io("the store panicked"))?;
    if let (Some(found), Question::Swap { name, .. }) = (found, question)
        && let Some(there) = store.get(name)?
    {
        check_change(found.as_ref(), name, &there.value)?;
    }
    match *question {
        Question::Get { name } => Ok(Answer::Got(store.get(name)?)),
        Question::List { prefix, after } => {
            let all = store.list(prefix)?.into_iter();
            Ok(Answer::page(all.filter(|(name, _)| name.as_str() > after)))
        }
        Question::Swap { name, expected, value } => {
            if name.is_empty() || name.len() > NAME_LEN_MAX {
                let len = name.len();
                let text = format!("a name of {len} bytes; 1 to {NAME_LEN_MAX} are valid");
                return Err(Error::invalid(text));
            }
            Ok(Answer::Swapped(store.swap(name, expected, value)?))
        }
        Question::Greet { .. } => Ok(Answer::Welcome),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_control::store::{MemoryStore, contract};

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
        let path = dir.join("socket");
        let start = || {
            let _ = std::fs::remove_file(&path);
            let unix = Some(UnixListener::bind(&path).unwrap());
            let sockets = StoreSockets { unix, ..StoreSockets::default() };
            StoreServer::start(Box::<MemoryStore>::default(), sockets).unwrap()
        };
        let server = start();
        let mut store = RemoteStore::new(LinkAddress::Unix(path.clone()), Vec::new());
        assert_eq!(store.get("a").unwrap(), None);
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
