//! The target thread: serves a region of the pool as namespace 1 of one subsystem at a time.
//!
//! ```text
//!   commands ─► ┌──────────────── thread gabion-target ───────────────────┐ ─► events
//!   listener ─► │ accept ─► TargetConnection … ─► Subsystem (grants)      │    Opened, Wrote, Refused,
//!   sockets  ─► │              │ poll_io   ▲ complete_io                  │    Closed, Ended
//!               │              ▼           │                              │
//!               └──────── FileMedium (the extents of the region)    ──────┘
//! ```
//!
//! [`TargetCommand::Open`] fences: the old subsystem is closed, the operations of its connections
//! in the medium end, and only then is the new one served and [`TargetEvent::Opened`] reported. A
//! write is reported before its host learns that it is complete. So anything that the host says
//! afterwards, by any way, arrives later than the report.

use crate::cipher::Ciphers;
use crate::file::FileMedium;
use crate::space::failed;
use crate::tcp::TcpTransport;
use gabion_base::{Error, ErrorKind, Result};
use gabion_media::nvme::{
    BackendKind, Backing, Subsystem, TargetCommand, TargetConfig, TargetConnection,
};
use gabion_media::{AlignedBuf, Bytes, Completion, Medium, Operation, OperationKind};
use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest sleep while something moves: all connections are checked that often.
const TURN_MAX: Duration = Duration::from_millis(100);
/// The same while nothing moves. Only hosts that were silent for their keep-alive time or did not
/// send Connect can fall due then, and those limits are seconds. Without connections nothing falls
/// due.
const IDLE_TURN_MAX: Duration = Duration::from_secs(1);
/// Most sockets at a time. For one more, the oldest without a Connect is closed, so that silent
/// strangers keep no host out. If all have sent Connect, the new one is closed at once. A host
/// needs two.
const CONNECTIONS_MAX: usize = 64;

const WAKER: Token = Token(usize::MAX);
const LISTENER: Token = Token(usize::MAX - 1);
const MEDIUM: Token = Token(usize::MAX - 2);

/// The region that a target serves, and its options.
pub struct TargetOptions {
    /// Its listening socket.
    pub listener: std::net::TcpListener,
    /// The medium it serves from, made with `notify`.
    pub medium: FileMedium,
    /// The place of the namespace on the medium.
    pub backing: Backing,
    /// All but the names, which [`TargetCommand::Open`] gives. The namespace has the bytes of
    /// `backing`.
    pub config: TargetConfig,
    /// Socket buffers of accepted connections, in bytes each way (0: the system's choice).
    pub buffer_len: usize,
    /// Encrypt its connections, if they are.
    pub ciphers: Option<Arc<dyn Ciphers>>,
    /// Steps of niceness by which its thread stands back ([`gabion_proc::stand_back`]).
    pub nice: u8,
}

/// Events of the target, reported on its own thread.
#[derive(Clone, Debug)]
pub enum TargetEvent {
    /// The subsystem of this session is served, and no write of an earlier one can land any more.
    Opened {
        /// From the command.
        session: u64,
    },
    /// Nothing is served and nothing is in flight.
    Closed,
    /// A host's write is in the medium, not yet durable.
    Wrote {
        /// The session under which it came.
        session: u64,
        /// First byte in the namespace.
        offset: u64,
        /// Bytes.
        len: u32,
        /// CRC32C of the bytes as they arrived.
        crc: u32,
    },
    /// The medium failed at a host's write, for another reason than lack of space. The host is
    /// told, too.
    Refused {
        /// The session under which it came.
        session: u64,
        /// First byte in the namespace.
        offset: u64,
        /// The medium's error.
        error: Error,
    },
    /// A connection is over.
    Ended {
        /// The other end.
        peer: SocketAddr,
        /// Why.
        error: Error,
    },
    /// The command cannot be carried out. Or, if the thread ends with it: readiness failed or the
    /// thread panicked.
    Failed(Error),
}

/// Bytes that crossed the target's sockets, updated while it runs.
#[derive(Debug, Default)]
pub struct WireBytes {
    /// From hosts.
    pub received: AtomicU64,
    /// To hosts.
    pub sent: AtomicU64,
}

enum Message {
    Command(TargetCommand),
    Stop,
}

/// A running target. Dropping it waits for what is in flight and ends the thread.
pub struct TargetServer {
    messages: Sender<Message>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
    wire_bytes: Arc<WireBytes>,
}

impl TargetServer {
    /// Starts the thread `gabion-target`, which serves nothing before the first `Open`. `report` is
    /// called on it and must not block.
    ///
    /// # Errors
    /// Invalid input when the namespace does not lie in the medium, or the medium has no readiness;
    /// I/O when the system refuses a thread or readiness.
    pub fn start(
        options: TargetOptions,
        report: impl FnMut(TargetEvent) + Send + 'static,
    ) -> Result<Self> {
        let refused = |e: io::Error| failed(Path::new("NVMe/TCP target"), "cannot start", e);
        check(&options)?;
        let address = options.listener.local_addr().map_err(refused)?;
        options.listener.set_nonblocking(true).map_err(refused)?;
        let poll = Poll::new().map_err(refused)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(refused)?);
        let (messages, inbox) = channel();
        let wire_bytes = Arc::new(WireBytes::default());
        let nice = options.nice;
        let server = Server::new(options, poll, inbox, Box::new(report), wire_bytes.clone())?;
        let thread = std::thread::Builder::new()
            .name("gabion-target".to_owned())
            .spawn(move || {
                gabion_proc::stand_back(nice);
                server.run_and_report();
            })
            .map_err(refused)?;
        Ok(Self { messages, waker, thread: Some(thread), address, wire_bytes })
    }

    /// The address that it listens on.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes on its sockets so far.
    #[must_use]
    pub fn wire_bytes(&self) -> &WireBytes {
        &self.wire_bytes
    }

    /// Hands in a command. Commands are carried out in order; those behind an `Open` wait for it.
    pub fn send(&self, command: TargetCommand) {
        self.tell(Message::Command(command));
    }

    fn tell(&self, message: Message) {
        // Both fail only when the thread is gone, and it has reported that.
        let _ = self.messages.send(message);
        let _ = self.waker.wake();
    }
}

impl Drop for TargetServer {
    fn drop(&mut self) {
        self.tell(Message::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed and reported there.
            let _ = thread.join();
        }
    }
}

fn check(options: &TargetOptions) -> Result<()> {
    let (len, end) = (options.config.namespace_len, options.backing.end());
    let medium_len = options.medium.properties().len;
    if end > medium_len || options.backing.len() != len {
        return Err(Error::invalid(format!(
            "a namespace of {len} bytes lies in {} bytes up to {end} of a medium of {medium_len}",
            options.backing.len()
        )));
    }
    if options.medium.readiness_fd().is_none() {
        return Err(Error::invalid("a target needs a medium with readiness"));
    }
    Ok(())
}

/// A subsystem and the connections to it.
struct Epoch {
    session: u64,
    subsystem: Subsystem,
    connections: BTreeMap<usize, TargetConnection<TcpTransport>>,
}

/// An operation of a connection in the medium.
struct Running {
    connection: usize,
    id: u64,
    write: Option<Write>,
}

/// Name, session and hosts of the next subsystem.
type Next = (String, u64, Vec<String>);

struct Server {
    poll: Poll,
    listener: TcpListener,
    medium: FileMedium,
    backing: Backing,
    config: TargetConfig,
    buffer_len: usize,
    ciphers: Option<Arc<dyn Ciphers>>,
    inbox: Receiver<Message>,
    report: Box<dyn FnMut(TargetEvent) + Send>,
    wire_bytes: Arc<WireBytes>,
    started: Instant,
    epoch: Option<Epoch>,
    /// The successor of the epoch that drains: another subsystem, or none (`Close`).
    next: Option<Option<Next>>,
    next_token: usize,
    next_tag: u64,
    running: BTreeMap<u64, Running>,
    /// Connections to look after in this turn.
    touched: BTreeSet<usize>,
    /// Whether anything came in the last turn.
    moved: bool,
    /// A connection could not be accepted, and the listener will not report it again.
    accept_again: bool,
    stopping: bool,
}

impl Server {
    fn new(
        options: TargetOptions,
        poll: Poll,
        inbox: Receiver<Message>,
        report: Box<dyn FnMut(TargetEvent) + Send>,
        wire_bytes: Arc<WireBytes>,
    ) -> Result<Self> {
        let refused = |e: io::Error| failed(Path::new("NVMe/TCP target"), "cannot start", e);
        let mut listener = TcpListener::from_std(options.listener);
        let registry = poll.registry();
        registry.register(&mut listener, LISTENER, Interest::READABLE).map_err(refused)?;
        if let Some(fd) = options.medium.readiness_fd() {
            registry
                .register(&mut SourceFd(&fd.as_raw_fd()), MEDIUM, Interest::READABLE)
                .map_err(refused)?;
        }
        Ok(Self {
            poll,
            listener,
            medium: options.medium,
            backing: options.backing,
            config: options.config,
            buffer_len: options.buffer_len,
            ciphers: options.ciphers,
            inbox,
            report,
            wire_bytes,
            started: Instant::now(),
            epoch: None,
            next: None,
            next_token: 0,
            next_tag: 0,
            running: BTreeMap::new(),
            touched: BTreeSet::new(),
            moved: false,
            accept_again: false,
            stopping: false,
        })
    }

    /// Serves until it is to stop. A panic ends the thread, but is reported: otherwise nobody would
    /// notice before the primary fails to ship.
    fn run_and_report(mut self) {
        let ran = std::panic::catch_unwind(AssertUnwindSafe(|| self.run()));
        if ran.is_err() {
            (self.report)(TargetEvent::Failed(Error::io("the thread gabion-target panicked")));
        }
    }

    fn run(&mut self) {
        let mut events = Events::with_capacity(256);
        let mut tick = Instant::now();
        while !(self.stopping && self.epoch.is_none()) {
            let turn = self.turn_max();
            match self.poll.poll(&mut events, turn) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let error = failed(Path::new("NVMe/TCP target"), "cannot wait", error);
                    return (self.report)(TargetEvent::Failed(error));
                }
            }
            self.moved = !events.is_empty();
            for event in &events {
                let Token(token) = event.token();
                let epoch = self.epoch.as_ref();
                if let Some(connection) = epoch.and_then(|epoch| epoch.connections.get(&token)) {
                    connection.transport().note_ready(event);
                }
                self.touched.insert(token);
            }
            let due = turn.is_some_and(|turn| tick.elapsed() >= turn);
            if due {
                tick = Instant::now();
                let all = self.epoch.iter().flat_map(|epoch| epoch.connections.keys());
                self.touched.extend(all);
            }
            self.take_messages();
            if self.touched.remove(&LISTENER.0) || (due && self.accept_again) {
                self.accept();
            }
            self.serve();
        }
    }

    /// How long it may sleep: without limit when nothing can fall due meanwhile.
    fn turn_max(&self) -> Option<Duration> {
        let works = self.moved || self.next.is_some() || !self.running.is_empty();
        if works || self.accept_again {
            return Some(TURN_MAX);
        }
        let epoch = self.epoch.as_ref().filter(|epoch| !epoch.connections.is_empty());
        epoch.map(|_| IDLE_TURN_MAX)
    }

    /// Commands in order; behind an `Open` or `Close` that drains, the rest waits in the inbox.
    fn take_messages(&mut self) {
        while self.next.is_none() && !self.stopping {
            match self.inbox.try_recv() {
                Ok(Message::Command(command)) => self.carry_out(command),
                Ok(Message::Stop) | Err(TryRecvError::Disconnected) => {
                    self.stopping = true;
                    self.succeed(None);
                }
                Err(TryRecvError::Empty) => return,
            }
        }
    }

    fn carry_out(&mut self, command: TargetCommand) {
        match command {
            TargetCommand::Open { subsystem, session, hosts } => {
                self.succeed(Some((subsystem, session, hosts)));
            }
            TargetCommand::Close => self.succeed(None),
            TargetCommand::Admit { host, ranges } => {
                if let Some(epoch) = &mut self.epoch {
                    ranges.into_iter().for_each(|range| epoch.subsystem.admit(&host, range));
                }
            }
            TargetCommand::Revoke(ranges) => {
                if let Some(epoch) = &mut self.epoch {
                    ranges.into_iter().for_each(|range| epoch.subsystem.revoke(range));
                }
            }
        }
    }

    /// Closes the served subsystem; [`Self::go_on`] does the rest once it is drained.
    fn succeed(&mut self, next: Option<Next>) {
        if let Some(epoch) = &mut self.epoch {
            epoch.subsystem.close();
            self.touched.extend(epoch.connections.keys());
        }
        self.next = Some(next);
        self.go_on();
    }

    /// Goes on to the successor when nothing of the old subsystem is in flight any more.
    fn go_on(&mut self) {
        if self.next.is_none() || self.epoch.as_ref().is_some_and(|e| e.subsystem.in_flight() > 0) {
            return;
        }
        // Connections that cannot send their last answers are cut with the epoch.
        self.epoch = None;
        let Some(next) = self.next.take() else { return };
        let Some((subsystem, session, hosts)) = next else {
            return (self.report)(TargetEvent::Closed);
        };
        let config =
            TargetConfig { subsystem_nqn: subsystem, allowed_hosts: hosts, ..self.config.clone() };
        match Subsystem::new(config) {
            Ok(subsystem) => {
                self.epoch = Some(Epoch { session, subsystem, connections: BTreeMap::new() });
                (self.report)(TargetEvent::Opened { session });
            }
            Err(error) => (self.report)(TargetEvent::Failed(error)),
        }
    }

    fn accept(&mut self) {
        self.accept_again = false;
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => self.admit(stream, peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Such as too many open files.
                Err(_) => return self.accept_again = true,
            }
        }
    }

    /// Whether one more connection has a place; another one may be closed for it.
    fn has_place(&mut self) -> bool {
        let Some(epoch) = &mut self.epoch else { return false };
        if epoch.subsystem.is_closed() {
            return false;
        }
        if epoch.connections.len() < CONNECTIONS_MAX {
            return true;
        }
        let mut all = epoch.connections.iter();
        // Tokens ascend.
        let oldest = all.find(|(_, connection)| connection.is_unconnected());
        let Some((&token, connection)) = oldest else { return false };
        let peer = connection.transport().peer();
        epoch.connections.remove(&token);
        let error = Error::unavailable("no Connect yet, and its place is needed");
        (self.report)(TargetEvent::Ended { peer, error });
        true
    }

    fn admit(&mut self, stream: mio::net::TcpStream, peer: SocketAddr) {
        if !self.has_place() {
            return;
        }
        let Some(epoch) = &mut self.epoch else { return };
        let token = self.next_token;
        self.next_token += 1;
        let made = TcpTransport::new(TcpStream::from(stream), self.buffer_len);
        let made = made.and_then(|mut transport| {
            transport.watch(self.poll.registry(), Token(token))?;
            if let Some(ciphers) = &self.ciphers {
                transport.encrypt(&**ciphers)?;
            }
            Ok(TargetConnection::new(transport))
        });
        match made {
            Ok(connection) => {
                epoch.connections.insert(token, connection);
                self.touched.insert(token);
            }
            Err(error) => (self.report)(TargetEvent::Ended { peer, error }),
        }
    }

    /// Serves until nothing moves any more by itself.
    fn serve(&mut self) {
        loop {
            self.move_all();
            let draining = self.next.is_some();
            self.go_on();
            if !draining || self.next.is_some() {
                return;
            }
            // Commands stayed in the inbox while the old subsystem drained.
            self.take_messages();
        }
    }

    fn move_all(&mut self) {
        let mut completed = Vec::new();
        loop {
            self.medium.poll(&mut completed);
            for completion in completed.drain(..) {
                self.complete(completion);
            }
            if self.touched.is_empty() {
                return;
            }
            let mut batch = Vec::new();
            for token in std::mem::take(&mut self.touched) {
                self.progress(token, &mut batch);
            }
            if !batch.is_empty() {
                self.medium.submit(batch);
            }
        }
    }

    fn progress(&mut self, token: usize, batch: &mut Vec<Operation>) {
        let now_ms = self.started.elapsed().as_millis() as u64;
        let Some(epoch) = &mut self.epoch else { return };
        let Some(connection) = epoch.connections.get_mut(&token) else { return };
        let before = (connection.bytes_received(), connection.bytes_sent());
        connection.progress(&mut epoch.subsystem, now_ms);
        let (received, sent) = (connection.bytes_received(), connection.bytes_sent());
        self.moved |= (received, sent) != before;
        self.wire_bytes.received.fetch_add(received - before.0, Ordering::Relaxed);
        self.wire_bytes.sent.fetch_add(sent - before.1, Ordering::Relaxed);
        while let Some(io) = connection.poll_io() {
            let (kind, write) = match operation(io.kind, &self.backing) {
                Ok(operation) => operation,
                Err(error) => {
                    connection.complete_io(&mut epoch.subsystem, io.id, Err(error));
                    self.touched.insert(token);
                    continue;
                }
            };
            let tag = self.next_tag;
            self.next_tag += 1;
            self.running.insert(tag, Running { connection: token, id: io.id, write });
            batch.push(Operation { tag, kind, then: false });
        }
        if connection.is_finished() {
            let peer = connection.transport().peer();
            let error = connection.error().cloned();
            epoch.connections.remove(&token);
            if let Some(error) = error {
                (self.report)(TargetEvent::Ended { peer, error });
            }
        }
    }

    fn complete(&mut self, completion: Completion) {
        let Some(running) = self.running.remove(&completion.tag) else { return };
        // The epoch outlives its operations, and so do their connections.
        let Some(epoch) = &mut self.epoch else { return };
        let Some(connection) = epoch.connections.get_mut(&running.connection) else { return };
        let result = completion.outcome.into_result();
        let session = epoch.session;
        match (&result, running.write) {
            (Ok(()), Some((offset, len, crc))) => {
                (self.report)(TargetEvent::Wrote { session, offset, len, crc });
            }
            (Err(error), Some((offset, ..))) if error.kind() == ErrorKind::Io => {
                (self.report)(TargetEvent::Refused { session, offset, error: error.clone() });
            }
            _ => {}
        }
        let bytes: Result<Option<Bytes>> =
            result.map(|()| completion.buffer.map(AlignedBuf::freeze));
        connection.complete_io(&mut epoch.subsystem, running.id, bytes);
        self.touched.insert(running.connection);
    }
}

/// Offset in the namespace, length and checksum of a write.
type Write = (u64, u32, u32);

/// The operation on the medium, and the report of a write.
fn operation(kind: BackendKind, backing: &Backing) -> Result<(OperationKind, Option<Write>)> {
    let locate = |offset: u64, len: usize| {
        backing.locate(offset, len as u64).ok_or_else(|| {
            Error::invalid(format!("{len} bytes at {offset} of the namespace lie in two extents"))
        })
    };
    Ok(match kind {
        BackendKind::Read { offset, len } => {
            let (offset, into) = (locate(offset, len)?, AlignedBuf::zeroed(len));
            (OperationKind::Read { offset, into }, None)
        }
        BackendKind::Write { offset, data, crc } => {
            let write = (offset, data.len() as u32, crc);
            let offset = locate(offset, data.len())?;
            (OperationKind::Write { offset, data }, Some(write))
        }
        BackendKind::Flush => (OperationKind::Flush, None),
    })
}
