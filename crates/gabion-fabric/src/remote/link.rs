//! A client's connection to a peer, over TCP or a Unix socket.
//!
//! Nothing here has a thread: the owner submits, and calls [`PeerLink::progress`] when the socket
//! may move or [`PeerLink::wait`] says so. Only [`PeerLink::connect`], [`PeerLink::call`] and
//! [`PeerLink::wait`] sleep.

use super::shared::{ReadGates, SharedRegion};
use super::unix::UnixTransport;
use crate::cipher::Ciphers;
use crate::tcp::TcpTransport;
use gabion_base::{Error, ErrorKind, Result, Term};
use gabion_media::remote::{
    ClientConfig, ClientConnection, Completed, Incarnation, Key, Notice, PeerId, RegionId, Reply,
    Request, RequestNumber,
};
use gabion_media::transport::Transport;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Receipts of one [`PeerLink::progress`]: a peer that never stops sending holds nobody up.
const ROUNDS_MAX: usize = 16;

/// The address of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkAddress {
    /// On any machine.
    Tcp(SocketAddr),
    /// On this machine: its regions can be mapped.
    Unix(PathBuf),
}

impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A socket of either kind.
pub(super) enum Socket {
    Tcp(TcpTransport),
    Unix(UnixTransport),
}

impl Socket {
    fn has_kept(&self) -> bool {
        matches!(self, Self::Tcp(socket) if socket.has_kept())
    }

    fn may_hold_bytes(&self) -> bool {
        matches!(self, Self::Tcp(socket) if socket.may_hold_bytes())
    }

    fn send_kept(&self) {
        if let Self::Tcp(socket) = self {
            socket.send_kept();
        }
    }
}

impl Transport for Socket {
    fn admits(&self, owner: &str) -> Result<()> {
        match self {
            Self::Tcp(socket) => socket.admits(owner),
            // Its file says who may open it.
            Self::Unix(_) => Ok(()),
        }
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<usize> {
        match self {
            Self::Tcp(socket) => socket.send(parts),
            Self::Unix(socket) => socket.send(parts),
        }
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        match self {
            Self::Tcp(socket) => socket.receive(into),
            Self::Unix(socket) => socket.receive(into),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

/// A connection to a peer that has taken the greeting.
pub struct PeerLink {
    address: LinkAddress,
    connection: ClientConnection<Socket>,
    started: Instant,
    peer: PeerId,
    incarnation: Incarnation,
    free_bytes: u64,
    gates: Option<Arc<ReadGates>>,
}

impl PeerLink {
    /// Connects, greets and waits to be welcome, each for the configuration's timeout at most.
    ///
    /// # Errors
    /// Unavailable when nobody answers in time; I/O; the peer's refusal.
    pub fn connect(address: LinkAddress, config: ClientConfig) -> Result<Self> {
        Self::connect_by(address, config, None)
    }

    /// The same, and TCP is encrypted, if there is something to encrypt with.
    ///
    /// # Errors
    /// As [`Self::connect`]; the other end is not let in.
    pub fn connect_by(
        address: LinkAddress,
        config: ClientConfig,
        ciphers: Option<&dyn Ciphers>,
    ) -> Result<Self> {
        let timeout = Duration::from_millis(config.reply_timeout_ms);
        let failed = |e| {
            let message = format!("peer {address}: cannot be connected to");
            Error::with_source(ErrorKind::Unavailable, message, e)
        };
        let socket = match &address {
            LinkAddress::Tcp(to) => {
                let stream = TcpStream::connect_timeout(to, timeout).map_err(failed)?;
                let mut transport = TcpTransport::new(stream, 0)?;
                if let Some(ciphers) = ciphers {
                    transport.encrypt(ciphers)?;
                }
                Socket::Tcp(transport)
            }
            LinkAddress::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(failed)?;
                Socket::Unix(UnixTransport::new(stream, true)?)
            }
        };
        let mut link = Self {
            address,
            connection: ClientConnection::connect(socket, config, 0)?,
            started: Instant::now(),
            peer: PeerId(0),
            incarnation: Incarnation(0),
            free_bytes: 0,
            gates: None,
        };
        match link.next_reply()? {
            Reply::Welcome { peer, incarnation, free_bytes } => {
                (link.peer, link.incarnation, link.free_bytes) = (peer, incarnation, free_bytes);
                Ok(link)
            }
            Reply::Refused(refusal) => {
                Err(refusal.error().within(format!("peer {}", link.address)))
            }
            other => Err(unexpected(&link.address, &other)),
        }
    }

    /// The address of the peer.
    #[must_use]
    pub const fn address(&self) -> &LinkAddress {
        &self.address
    }

    /// The peer.
    #[must_use]
    pub const fn peer(&self) -> PeerId {
        self.peer
    }

    /// Its run. Regions of another run are gone.
    #[must_use]
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Bytes that it could lend when it was connected to.
    #[must_use]
    pub const fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Whether regions can be mapped.
    #[must_use]
    pub const fn shares_memory(&self) -> bool {
        matches!(self.address, LinkAddress::Unix(_))
    }

    /// See [`ClientConnection::submit`].
    ///
    /// # Errors
    /// As there.
    pub fn submit(&mut self, request: &Request<'_>) -> Result<Option<RequestNumber>> {
        let now_ms = self.now_ms();
        self.connection.submit(request, now_ms)
    }

    /// Sends once and receives once; some times where bytes are decrypted ahead. It never sleeps.
    ///
    /// # Errors
    /// Why the connection is broken.
    pub fn progress(&mut self) -> Result<()> {
        let now_ms = self.now_ms();
        for _ in 0..ROUNDS_MAX {
            self.connection.transport().send_kept();
            self.connection.progress(now_ms)?;
            if !self.has_more() {
                break;
            }
        }
        Ok(())
    }

    /// Whether bytes may be there that no readiness of the socket tells of, as they are decrypted:
    /// [`Self::progress`] is called again then.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.connection.transport().may_hold_bytes()
    }

    /// Sends what was submitted, once. It never sleeps.
    ///
    /// # Errors
    /// Why the connection is broken.
    pub fn flush(&mut self) -> Result<()> {
        self.connection.flush()
    }

    /// See [`ClientConnection::poll_completed`]. For a `Mapped`, [`Self::take_mapped`] is next.
    pub fn poll_completed(&mut self) -> Option<Completed> {
        self.connection.poll_completed()
    }

    /// See [`ClientConnection::poll_notice`].
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.connection.poll_notice()
    }

    /// Requests without a reply.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.connection.outstanding()
    }

    /// Whether bytes wait for the socket.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.connection.is_waiting() || self.connection.transport().has_kept()
    }

    /// Why it is broken, if it is known to be.
    #[must_use]
    pub const fn error(&self) -> Option<&Error> {
        self.connection.error()
    }

    /// Sleeps until the socket may move, or for `timeout`; then progresses.
    ///
    /// # Errors
    /// Why the connection is broken.
    pub fn wait(&mut self, timeout: Duration) -> Result<()> {
        if self.has_more() {
            return self.progress();
        }
        let mut interest = PollFlags::IN;
        interest.set(PollFlags::OUT, self.is_waiting());
        let fd = self.connection.transport().as_fd();
        let timeout = Timespec::try_from(timeout)
            .map_err(|_| Error::invalid(format!("a timeout of {timeout:?} is too long")))?;
        match poll(&mut [PollFd::from_borrowed_fd(fd, interest)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => self.progress(),
            Err(error) => Err(Error::with_source(
                ErrorKind::Io,
                format!("peer {}: cannot be waited for", self.address),
                std::io::Error::from(error),
            )),
        }
    }

    /// Submits, sends and sleeps until the reply is here. For connections that have nothing else
    /// under way.
    ///
    /// # Errors
    /// Invalid input while other requests are outstanding; why the connection is broken. A refusal
    /// is no error, but a reply.
    pub fn call(&mut self, request: &Request<'_>) -> Result<Reply> {
        if self.outstanding() > 0 {
            return Err(Error::invalid(format!(
                "peer {}: {} requests are outstanding, a call needs none",
                self.address,
                self.outstanding()
            )));
        }
        self.submit(request)?;
        self.flush()?;
        self.next_reply()
    }

    /// Maps a region. Its memory can be written from then on without the peer.
    ///
    /// # Errors
    /// As [`Self::call`]; the peer's refusal.
    pub fn map(&mut self, region: RegionId, key: Key, term: Term) -> Result<SharedRegion> {
        match self.call(&Request::Map { region, key, term })? {
            reply @ Reply::Mapped { .. } => self.take_mapped(region, &reply),
            Reply::Refused(refusal) => Err(refusal.error()),
            other => Err(unexpected(&self.address, &other)),
        }
    }

    /// The region of a `Mapped` that has just completed.
    ///
    /// # Errors
    /// Corruption when its descriptors did not come; I/O when it cannot be mapped.
    pub fn take_mapped(&mut self, region: RegionId, reply: &Reply) -> Result<SharedRegion> {
        let Reply::Mapped { bytes, gate, gates_bytes } = reply else {
            return Err(unexpected(&self.address, reply));
        };
        let Socket::Unix(socket) = self.connection.transport_mut() else {
            return Err(unexpected(&self.address, reply));
        };
        let (Some(memory), Some(words)) = (socket.take_descriptor(), socket.take_descriptor())
        else {
            return Err(Error::corruption(format!(
                "peer {}: the descriptors of region {region} did not come",
                self.address
            )));
        };
        let known = self.gates.take().filter(|gates| gates.bytes() == *gates_bytes);
        let gates = match known {
            Some(gates) => gates,
            None => Arc::new(ReadGates::map(words, *gates_bytes)?),
        };
        self.gates = Some(Arc::clone(&gates));
        SharedRegion::map(region, memory, *bytes, (gates, *gate))
    }

    fn next_reply(&mut self) -> Result<Reply> {
        let mut waited = Ok(());
        loop {
            // A peer that refuses says why and then closes: the reply comes first.
            if let Some(completed) = self.poll_completed() {
                return Ok(completed.reply);
            }
            waited?;
            let left = self.connection.deadline_ms().unwrap_or(0).saturating_sub(self.now_ms());
            waited = self.wait(Duration::from_millis(left + 1));
        }
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

impl AsFd for PeerLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.transport().as_fd()
    }
}

fn unexpected(address: &LinkAddress, reply: &Reply) -> Error {
    Error::corruption(format!("peer {address}: {reply:?} answers another question"))
}
