//! The peer's thread: all connections, all regions, one loop.
//!
//! ```text
//!   TCP, Unix socket ─► accept ─► PeerConnection … ◄─► Peer ◄── closures of the handle (with)
//!                                     one receive and one send each, then
//!                       nothing to do: zero memory ahead, a step at a time
//! ```

use super::figures::{PeerFigures, Sockets};
use super::link::Socket;
use super::supply::MemorySupply;
use super::unix::{DESCRIPTORS_MAX, UnixTransport};
use crate::cipher::Ciphers;
use crate::space::failed;
use crate::tcp::TcpTransport;
use gabion_base::{Error, Result};
use gabion_media::remote::{ConnectionConfig, Peer, PeerConfig, PeerConnection};
use mio::net::{TcpListener, UnixListener};
use mio::{Events, Interest, Poll, Token, Waker};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest sleep while there are connections: those that do not greet are looked for that often.
const TURN_MAX: Duration = Duration::from_secs(1);
/// Bytes zeroed between two looks at the sockets, some 50 µs.
const ZERO_STEP: u64 = 256 * 1024;
/// Most connections at a time. For one more, the oldest that has not greeted is closed; if all
/// have, the new one is.
const CONNECTIONS_MAX: usize = 256;
/// Turns of one connection before others have theirs.
const TURNS_IN_A_ROW: usize = 4;

const WAKER: Token = Token(usize::MAX);
const TCP: Token = Token(usize::MAX - 1);
const UNIX: Token = Token(usize::MAX - 2);

/// A region maps to two descriptors.
const _: () = assert!(gabion_media::remote::serve::MAPPED_MAX * 2 <= DESCRIPTORS_MAX);

/// The memory that a peer serves, and the sockets at which it does.
pub struct ServerOptions {
    /// Names and limits.
    pub config: PeerConfig,
    /// Its TCP socket, if it has one.
    pub tcp: Option<std::net::TcpListener>,
    /// Encryption of TCP, and whom it lets in. Without it TCP is plain.
    pub ciphers: Option<Arc<dyn Ciphers>>,
    /// Its Unix socket, if it has one.
    pub unix: Option<std::os::unix::net::UnixListener>,
    /// When a connection that does not greet ends.
    pub greeting_timeout_ms: u64,
}

type Work = Box<dyn FnOnce(&mut Peer<MemorySupply>) + Send>;

enum Message {
    Work(Work),
    Figures(Sender<PeerFigures>),
    Stop,
}

/// A running peer. Dropping it ends its connections, its regions and its thread.
pub struct PeerServer {
    messages: Sender<Message>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl PeerServer {
    /// Starts the thread `gabion-peer`.
    ///
    /// # Errors
    /// Invalid input for limits that make no sense, or no socket; I/O when the system refuses a
    /// thread, memory or readiness.
    pub fn start(options: ServerOptions) -> Result<Self> {
        let refused = |e: io::Error| failed(Path::new("memory peer"), "cannot start", e);
        if options.tcp.is_none() && options.unix.is_none() {
            return Err(Error::invalid("memory peer: it has 0 sockets, at least 1 is needed"));
        }
        let poll = Poll::new().map_err(refused)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(refused)?);
        let (messages, inbox) = channel();
        let server = Server::new(options, poll, inbox)?;
        let thread = std::thread::Builder::new()
            .name("gabion-peer".to_owned())
            .spawn(move || server.run())
            .map_err(refused)?;
        Ok(Self { messages, waker, thread: Some(thread) })
    }

    /// Has the peer's thread call `body`, and waits for its result.
    ///
    /// # Errors
    /// Unavailable when the thread is gone.
    pub fn with<T: Send + 'static>(
        &self,
        body: impl FnOnce(&mut Peer<MemorySupply>) -> T + Send + 'static,
    ) -> Result<T> {
        let (reply, result) = channel();
        let work: Work = Box::new(move |peer| {
            // Nobody waits any more if it fails.
            let _ = reply.send(body(peer));
        });
        self.ask(Message::Work(work), &result)
    }

    /// Numbers for the peer's operator.
    ///
    /// # Errors
    /// Unavailable when the thread is gone.
    pub fn figures(&self) -> Result<PeerFigures> {
        let (reply, result) = channel();
        self.ask(Message::Figures(reply), &result)
    }

    /// Sends a message, and waits for the answer.
    fn ask<T>(&self, message: Message, answer: &Receiver<T>) -> Result<T> {
        let gone = || Error::unavailable("the thread gabion-peer is gone");
        self.messages.send(message).map_err(|_| gone())?;
        let _ = self.waker.wake();
        answer.recv().map_err(|_| gone())
    }

    /// Whether its thread runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        // Both fail only when the thread is gone.
        let _ = self.messages.send(Message::Stop);
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed there.
            let _ = thread.join();
        }
    }
}

struct Server {
    poll: Poll,
    tcp: Option<TcpListener>,
    ciphers: Option<Arc<dyn Ciphers>>,
    unix: Option<UnixListener>,
    greeting_timeout_ms: u64,
    inbox: Receiver<Message>,
    peer: Peer<MemorySupply>,
    connections: BTreeMap<usize, PeerConnection<Socket>>,
    next_token: usize,
    started: Instant,
    /// Connections to look after in this turn.
    touched: BTreeSet<usize>,
    stopping: bool,
    /// Of connections that are over.
    sockets: Sockets,
    readying: Duration,
}

impl Server {
    fn new(options: ServerOptions, poll: Poll, inbox: Receiver<Message>) -> Result<Self> {
        let refused = |e: io::Error| failed(Path::new("memory peer"), "cannot listen", e);
        let supply = MemorySupply::new(options.config.regions_max)?;
        let peer = Peer::new(options.config, supply)?;
        let registry = poll.registry();
        let mut tcp = None;
        if let Some(listener) = options.tcp {
            listener.set_nonblocking(true).map_err(refused)?;
            let listener = tcp.insert(TcpListener::from_std(listener));
            registry.register(listener, TCP, Interest::READABLE).map_err(refused)?;
        }
        let mut unix = None;
        if let Some(listener) = options.unix {
            listener.set_nonblocking(true).map_err(refused)?;
            let listener = unix.insert(UnixListener::from_std(listener));
            registry.register(listener, UNIX, Interest::READABLE).map_err(refused)?;
        }
        Ok(Self {
            poll,
            tcp,
            ciphers: options.ciphers,
            unix,
            greeting_timeout_ms: options.greeting_timeout_ms,
            inbox,
            peer,
            connections: BTreeMap::new(),
            next_token: 0,
            started: Instant::now(),
            touched: BTreeSet::new(),
            stopping: false,
            sockets: Sockets::default(),
            readying: Duration::ZERO,
        })
    }

    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut looked = Instant::now();
        let mut zeroes = false;
        while !self.stopping {
            let busy = zeroes || !self.touched.is_empty();
            let timeout = if busy { Duration::ZERO } else { TURN_MAX };
            match self.poll.poll(&mut events, Some(timeout)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Its clients find their connections closed.
                Err(_) => return,
            }
            for event in &events {
                match event.token() {
                    WAKER => self.take_messages(),
                    TCP | UNIX => self.accept(event.token()),
                    Token(token) => {
                        if let Some(connection) = self.connections.get_mut(&token) {
                            match connection.transport_mut() {
                                Socket::Tcp(socket) => socket.note_ready(event),
                                Socket::Unix(socket) => socket.note_ready(event),
                            }
                            self.touched.insert(token);
                        }
                    }
                }
            }
            if looked.elapsed() >= TURN_MAX {
                looked = Instant::now();
                self.touched.extend(self.connections.keys());
                // Descriptors may be free again for connections that wait to be accepted.
                [TCP, UNIX].into_iter().for_each(|listener| self.accept(listener));
            }
            let had_work = !self.touched.is_empty();
            self.serve();
            zeroes = match had_work {
                true => self.peer.has_step(),
                false => self.step(),
            };
        }
    }

    /// Makes memory ready, a little. Returns whether there may be more to do.
    fn step(&mut self) -> bool {
        let begun = Instant::now();
        let has_more = self.peer.step(ZERO_STEP) > 0;
        if has_more {
            self.readying += begun.elapsed();
        }
        has_more
    }

    fn figures(&self) -> PeerFigures {
        PeerFigures {
            usage: self.peer.usage(),
            tally: self.peer.tally(),
            mapped: self.peer.mapped(),
            sockets: self.sockets.with(self.connections.values()),
            readying: self.readying,
        }
    }

    fn take_messages(&mut self) {
        loop {
            match self.inbox.try_recv() {
                Ok(Message::Work(work)) => {
                    work(&mut self.peer);
                    // It may bring notices.
                    self.touched.extend(self.connections.keys());
                }
                Ok(Message::Figures(reply)) => {
                    // Nobody waits any more if it fails.
                    let _ = reply.send(self.figures());
                }
                Ok(Message::Stop) | Err(TryRecvError::Disconnected) => {
                    self.stopping = true;
                    return;
                }
                Err(TryRecvError::Empty) => return,
            }
        }
    }

    fn serve(&mut self) {
        let now_ms = self.now_ms();
        for token in std::mem::take(&mut self.touched) {
            let Some(connection) = self.connections.get_mut(&token) else { continue };
            let mut moved = true;
            for _ in 0..TURNS_IN_A_ROW {
                moved = turn(connection, &mut self.peer, now_ms);
                if !moved {
                    break;
                }
            }
            if moved {
                self.touched.insert(token);
            }
            if let Some(error) = connection.error().cloned() {
                connection.end(&mut self.peer, error);
                self.sockets.end(connection);
                self.connections.remove(&token);
                self.touched.remove(&token);
            }
        }
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn accept(&mut self, listener: Token) {
        loop {
            let accepted = match (listener, &self.tcp, &self.unix) {
                (TCP, Some(tcp), _) => tcp.accept().map(|(stream, _)| Accepted::Tcp(stream)),
                (UNIX, _, Some(unix)) => unix.accept().map(|(stream, _)| Accepted::Unix(stream)),
                _ => return,
            };
            // Would block, or too many open files: the next look tries again.
            let Ok(accepted) = accepted else { return };
            // A socket that refuses an option is closed by this.
            let admitted = self.admit(accepted).is_ok_and(|is_admitted| is_admitted);
            let traffic = self.sockets.of(listener == TCP);
            match admitted {
                true => traffic.accepted += 1,
                false => traffic.rejected += 1,
            }
        }
    }

    /// Returns whether there was a place for it.
    fn admit(&mut self, accepted: Accepted) -> Result<bool> {
        if self.connections.len() >= CONNECTIONS_MAX {
            // Tokens ascend.
            let oldest = self.connections.iter().find(|(_, connection)| !connection.is_greeted());
            let Some((&token, _)) = oldest else { return Ok(false) };
            if let Some(connection) = self.connections.remove(&token) {
                self.sockets.end(&connection);
            }
        }
        let token = self.next_token;
        self.next_token += 1;
        let (socket, shares_memory) = match accepted {
            Accepted::Tcp(stream) => {
                let mut socket = TcpTransport::new(TcpStream::from(stream), 0)?;
                if let Some(ciphers) = &self.ciphers {
                    socket.encrypt(&**ciphers)?;
                }
                socket.watch(self.poll.registry(), Token(token))?;
                (Socket::Tcp(socket), false)
            }
            Accepted::Unix(stream) => {
                let mut socket = UnixTransport::new(UnixStream::from(stream), false)?;
                socket.watch(self.poll.registry(), Token(token))?;
                (Socket::Unix(socket), true)
            }
        };
        let greeting_timeout_ms = self.greeting_timeout_ms;
        let config = ConnectionConfig { greeting_timeout_ms, shares_memory };
        let connection = PeerConnection::new(socket, config, self.now_ms());
        self.connections.insert(token, connection);
        self.touched.insert(token);
        Ok(true)
    }
}

enum Accepted {
    Tcp(mio::net::TcpStream),
    Unix(mio::net::UnixStream),
}

/// One receive and one send. Returns whether another turn may bring more.
fn turn(
    connection: &mut PeerConnection<Socket>,
    peer: &mut Peer<MemorySupply>,
    now_ms: u64,
) -> bool {
    // Descriptors that wait leave before others are queued.
    let waits = matches!(connection.transport(), Socket::Unix(socket) if socket.has_queued());
    let moved = !waits && connection.receive(peer, now_ms);
    while let Some(region) = connection.poll_mapped() {
        let Some(memory) = peer.memory(region) else { continue };
        let copies: io::Result<Vec<_>> =
            memory.descriptors().iter().map(|fd| fd.as_fd().try_clone_to_owned()).collect();
        match (copies, connection.transport_mut()) {
            (Ok(copies), Socket::Unix(socket)) => socket.queue(copies),
            (Err(error), _) => {
                let error = failed(Path::new("region"), "has no descriptor to be sent", error);
                connection.end(peer, error);
            }
            (Ok(_), Socket::Tcp(_)) => {}
        }
    }
    connection.flush();
    moved || connection.can_go_on()
}
