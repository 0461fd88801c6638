//! The shipping side: namespaces of other machines as media, several on one thread.
//!
//! ```text
//!   run_ship ─► MediumHandle ─► Remote (initiator, two sockets) ═══► target of secondary 1
//!   run_ship ─► MediumHandle ─► Remote                          ═══► target of secondary 2
//!                                  ▲
//!                              Remotes::turn: sends, sleeps until a socket or the waker, receives
//! ```

use crate::cipher::Ciphers;
use crate::space::failed;
use crate::tcp::TcpTransport;
use gabion_base::Result;
use gabion_media::nvme::{Initiator, InitiatorConfig, InitiatorState};
use gabion_media::{Completion, Medium, MediumHandle, MediumProperties, Operation, OperationKind};
use mio::event::Event;
use mio::{Events, Poll, Token, Waker};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest sleep of a turn while an answer is awaited: deadlines are checked that often.
const TURN_MAX: Duration = Duration::from_millis(50);
/// Turns in the keep-alive time of a connection with nothing in flight. Its host speaks when half
/// of that time is over.
const TURNS_PER_KEEP_ALIVE: u32 = 8;
const WAKER: Token = Token(usize::MAX);

/// A connection to a remote namespace, owned by its [`Remotes`].
pub struct Remote {
    namespace: Rc<RefCell<Namespace>>,
    handle: MediumHandle,
    /// The token of the admin connection; the I/O connection has the next one.
    first_token: usize,
}

impl Remote {
    /// The namespace, to be used once [`Self::state`] is ready; before that and after a failure
    /// every operation fails.
    #[must_use]
    pub const fn handle(&self) -> &MediumHandle {
        &self.handle
    }

    /// The state of the connection.
    #[must_use]
    pub fn state(&self) -> InitiatorState {
        self.namespace.borrow().initiator.state()
    }

    /// The bytes to be written at `offset` with length `len` have this CRC32C, so they are not read
    /// once more for the data digest. Used for one write.
    pub fn note_crc(&self, offset: u64, len: usize, crc: u32) {
        self.namespace.borrow_mut().crcs.insert(offset, (len, crc));
    }

    /// Bytes (sent, received) on the wire.
    #[must_use]
    pub fn wire_bytes(&self) -> (u64, u64) {
        let namespace = self.namespace.borrow();
        (namespace.initiator.bytes_sent(), namespace.initiator.bytes_received())
    }

    /// How long it may be left alone while nothing comes; without limit after a failure, or when
    /// nothing is in flight and there is no keep-alive.
    fn sleep_max(&self) -> Option<Duration> {
        let namespace = self.namespace.borrow();
        match namespace.initiator.state() {
            InitiatorState::Failed(_) => None,
            InitiatorState::Ready if namespace.initiator.in_flight() == 0 => {
                let keep_alive = Some(namespace.keep_alive).filter(|time| !time.is_zero())?;
                Some(keep_alive / TURNS_PER_KEEP_ALIVE)
            }
            InitiatorState::Ready | InitiatorState::Connecting => Some(TURN_MAX),
        }
    }

    /// Takes an edge of a socket. Returns whether that socket is one of its own.
    fn note_ready(&self, event: &Event) -> bool {
        let namespace = self.namespace.borrow();
        let sockets = <[_; 2]>::from(namespace.initiator.transports());
        let place = event.token().0.wrapping_sub(self.first_token);
        sockets.get(place).map(|socket| socket.note_ready(event)).is_some()
    }

    fn progress(&self, now_ms: u64) -> usize {
        self.namespace.borrow_mut().initiator.progress(now_ms);
        let ended = self.handle.drive();
        if matches!(self.state(), InitiatorState::Failed(_)) {
            self.namespace.borrow_mut().crcs.clear();
        }
        ended
    }
}

/// The state behind the handle: the initiator, and checksums by place for writes to come.
struct Namespace {
    initiator: Initiator<TcpTransport>,
    crcs: BTreeMap<u64, (usize, u32)>,
    keep_alive: Duration,
}

impl Medium for Namespace {
    fn properties(&self) -> MediumProperties {
        self.initiator.properties()
    }

    fn submit(&mut self, batch: Vec<Operation>) {
        for operation in &batch {
            if let OperationKind::Write { offset, data } = &operation.kind
                && let Some((len, crc)) = self.crcs.remove(offset)
                && len == data.len()
            {
                self.initiator.note_crc(operation.tag, crc);
            }
        }
        self.initiator.submit(batch);
    }

    fn poll(&mut self, completed: &mut Vec<Completion>) {
        self.initiator.poll(completed);
    }

    fn in_flight(&self) -> usize {
        self.initiator.in_flight()
    }
}

/// The poller that a shipping thread sleeps on. Made before the thread, so that its starter keeps a
/// waker.
pub struct Readiness {
    poll: Poll,
    waker: Arc<Waker>,
}

impl Readiness {
    /// Nothing to wait for yet.
    ///
    /// # Errors
    /// I/O when the system refuses what readiness needs.
    pub fn new() -> Result<Self> {
        let refused = |e: io::Error| failed(Path::new("shipping"), "gets no readiness", e);
        let poll = Poll::new().map_err(refused)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(refused)?);
        Ok(Self { poll, waker })
    }

    /// Ends the sleep of [`Remotes::turn`], from any thread.
    #[must_use]
    pub fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }
}

/// The connections of one thread, by a key that the thread chooses (the secondary).
///
/// The thread's loop: take orders, start their futures in an executor, run what is ready,
/// [`Self::turn`].
pub struct Remotes<K> {
    readiness: Readiness,
    events: Events,
    remotes: BTreeMap<K, Remote>,
    /// Dropped connections whose handle is still in use; their operations must still fail.
    retired: Vec<Remote>,
    next_token: usize,
    started: Instant,
}

impl<K: Ord + Clone> Remotes<K> {
    /// No connection yet.
    #[must_use]
    pub fn new(readiness: Readiness) -> Self {
        Self {
            readiness,
            events: Events::with_capacity(64),
            remotes: BTreeMap::new(),
            retired: Vec::new(),
            next_token: 0,
            started: Instant::now(),
        }
    }

    /// Begins to connect; a connection with the same key is dropped first. Socket buffers are
    /// `buffer_len` bytes each way (0: the system's choice).
    ///
    /// # Errors
    /// I/O when there is no socket or no way to the address. A refusal by the peer shows in
    /// [`Remote::state`].
    pub fn connect(
        &mut self,
        key: K,
        address: SocketAddr,
        config: InitiatorConfig,
        buffer_len: usize,
    ) -> Result<&Remote> {
        self.connect_by(key, address, config, buffer_len, None)
    }

    /// As [`Self::connect`]; with ciphers all that passes is encrypted.
    ///
    /// # Errors
    /// As [`Self::connect`]; of the ciphers.
    pub fn connect_by(
        &mut self,
        key: K,
        address: SocketAddr,
        config: InitiatorConfig,
        buffer_len: usize,
        ciphers: Option<&dyn Ciphers>,
    ) -> Result<&Remote> {
        self.remove(&key);
        let mut admin = TcpTransport::connect(address, 0)?;
        let mut io = TcpTransport::connect(address, buffer_len)?;
        let first_token = self.next_token;
        self.next_token += 2;
        for (transport, token) in [&mut admin, &mut io].into_iter().zip(first_token..) {
            transport.watch(self.readiness.poll.registry(), Token(token))?;
            ciphers.map_or(Ok(()), |ciphers| transport.encrypt(ciphers))?;
        }
        let keep_alive = Duration::from_millis(u64::from(config.keep_alive_ms));
        let initiator = Initiator::connect(config, admin, io);
        let namespace = Namespace { initiator, crcs: BTreeMap::new(), keep_alive };
        let namespace = Rc::new(RefCell::new(namespace));
        let handle = MediumHandle::new(namespace.clone());
        Ok(self.remotes.entry(key).or_insert(Remote { namespace, handle, first_token }))
    }

    /// The connection of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&Remote> {
        self.remotes.get(key)
    }

    /// All connections.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &Remote)> {
        self.remotes.iter()
    }

    /// Drops a connection: its sockets close, every operation under way ends at once, writes as
    /// unknown, and every later one on its handle fails.
    pub fn remove(&mut self, key: &K) {
        if let Some(remote) = self.remotes.remove(key) {
            for socket in <[_; 2]>::from(remote.namespace.borrow().initiator.transports()) {
                socket.close();
            }
            remote.progress(self.now_ms());
            self.retired.push(remote);
        }
    }

    /// Sends submitted operations. Unless that ended one, sleeps until a socket is ready, the waker
    /// is called or `sleep_max` is over; then receives. Returns how many operations ended.
    ///
    /// # Errors
    /// I/O when the system cannot tell readiness.
    pub fn turn(&mut self, sleep_max: Duration) -> Result<usize> {
        let ended = self.progress();
        if ended > 0 {
            return Ok(ended);
        }
        let sleep =
            self.remotes.values().filter_map(Remote::sleep_max).fold(sleep_max, Duration::min);
        match self.readiness.poll.poll(&mut self.events, Some(sleep)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(Path::new("shipping"), "cannot wait", error)),
        }
        for event in &self.events {
            // A connection dropped meanwhile was told that its sockets are closed.
            let told = |remote: &Remote| remote.note_ready(event);
            let _ = self.remotes.values().any(told);
        }
        Ok(self.progress())
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn progress(&mut self) -> usize {
        let now_ms = self.now_ms();
        self.retired.retain(|remote| remote.handle.is_shared());
        let all = self.remotes.values().chain(&self.retired);
        all.map(|remote| remote.progress(now_ms)).sum()
    }
}
