//! The thread that ships files, and fetches those that are damaged here: the NVMe/TCP initiators of
//! this replica, one per secondary.
//!
//! ```text
//!   loop ─ Connect, Drop, Ship, Fetch ─► channel + waker ─► orders that wait for their connection
//!                                                    └─► one task each ─► Remotes ─► secondaries
//! ```

use crate::events::{Event, Mailbox};
use crate::trust::{MembersTls, Outgoing};
use gabion_base::units::CHUNK_LEN;
use gabion_base::{Error, ReplicaId, Result};
use gabion_fabric::Ciphers;
use gabion_fabric::nvme::{Readiness, Remote, Remotes};
use gabion_host::jobs::{Alarm, thread};
use gabion_media::MediumHandle;
use gabion_media::nvme::{InitiatorConfig, InitiatorState};
use gabion_media::task::Executor;
use gabion_node::work::{self, Done, FetchOrder, ShipOrder, WorkId};
use mio::Waker;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Socket buffers of the connections that carry files: one transfer each way. Measured against the
/// system's choice, which grows to many times that: fewer wake-ups, and what is in flight stays
/// near.
pub(crate) const SOCKET_LEN: usize = gabion_base::units::TRANSFER_LEN_MAX;

/// How often the thread looks at orders that wait for their connection, which may fail without a
/// word.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Its longest sleep without such orders: commands and sockets wake it.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// What the thread is to do.
pub(crate) enum ShipCommand {
    /// Connect to a secondary's namespace; replaces an older connection.
    Connect { to: ReplicaId, session: u64, address: SocketAddr, config: InitiatorConfig },
    /// Drop the connection.
    Drop { to: ReplicaId },
    /// Ship a file.
    Ship(WorkId, Box<ShipOrder>),
    /// Read a file at a secondary.
    Fetch(WorkId, Box<FetchOrder>),
}

/// What goes over a connection.
enum Order {
    Ship(Box<ShipOrder>),
    Fetch(Box<FetchOrder>),
}

impl Order {
    /// With which secondary, and in which session of it.
    const fn remote(&self) -> (ReplicaId, u64) {
        match self {
            Self::Ship(order) => (order.to, order.session),
            Self::Fetch(order) => (order.from, order.session),
        }
    }

    fn failed(&self, error: Error) -> Done {
        match self {
            Self::Ship(_) => Done::Ship(Err(error)),
            Self::Fetch(_) => Done::Fetch(Err(error)),
        }
    }

    /// Carries it out.
    async fn run(self, remote: &MediumHandle) -> Done {
        match self {
            Self::Ship(order) => Done::Ship(work::run_ship(&order, remote).await),
            Self::Fetch(order) => Done::Fetch(work::run_fetch(&order, remote).await),
        }
    }
}

/// Bytes on the initiators' sockets so far.
#[derive(Default)]
pub(crate) struct ShipBytes {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

/// The thread `gabion-ship`.
pub(crate) struct ShipThread {
    commands: Option<Sender<ShipCommand>>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
    bytes: Arc<ShipBytes>,
}

impl ShipThread {
    pub(crate) fn start(nice: u8, tls: Option<MembersTls>, mailbox: &Mailbox) -> Result<Self> {
        let readiness = Readiness::new()?;
        let waker = readiness.waker();
        let (commands, inbox) = channel();
        let bytes = Arc::new(ShipBytes::default());
        let (mailbox, counted) = (mailbox.clone(), bytes.clone());
        let thread = thread("gabion-ship", nice, move || {
            let _alarm = Alarm { sink: mailbox.clone(), thread: "gabion-ship" };
            let shipper = Shipper {
                tls,
                remotes: Remotes::new(readiness),
                sessions: BTreeMap::new(),
                counted: BTreeMap::new(),
                waiting: Vec::new(),
                executor: Executor::new(),
                inbox,
                mailbox,
                bytes: counted,
            };
            shipper.run();
        })?;
        Ok(Self { commands: Some(commands), waker, thread: Some(thread), bytes })
    }

    pub(crate) fn send(&self, command: ShipCommand) {
        // Both fail only when the thread is gone, which its alarm has told.
        if let Some(commands) = &self.commands {
            let _ = commands.send(command);
        }
        let _ = self.waker.wake();
    }

    pub(crate) fn bytes(&self) -> &ShipBytes {
        &self.bytes
    }
}

impl Drop for ShipThread {
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Shipper {
    /// Certificates; none where all are on this machine.
    tls: Option<MembersTls>,
    remotes: Remotes<ReplicaId>,
    sessions: BTreeMap<ReplicaId, u64>,
    /// What of each connection's traffic is in `bytes`.
    counted: BTreeMap<ReplicaId, (u64, u64)>,
    /// Orders whose connection still shakes hands.
    waiting: Vec<(WorkId, Order)>,
    executor: Executor,
    inbox: Receiver<ShipCommand>,
    mailbox: Mailbox,
    bytes: Arc<ShipBytes>,
}

impl Shipper {
    fn run(mut self) {
        loop {
            if !self.take_commands() {
                return;
            }
            self.begin_waiting();
            while self.executor.run_ready() > 0 {}
            let sleep = if self.waiting.is_empty() { SLEEP_MAX } else { LOOK_EVERY };
            if let Err(error) = self.remotes.turn(sleep) {
                note!("gabion-ship: {error}");
                return self.mailbox.tell(Event::Died("gabion-ship"));
            }
            self.count();
            while self.executor.run_ready() > 0 {}
        }
    }

    /// Returns whether the thread is still wanted.
    fn take_commands(&mut self) -> bool {
        loop {
            match self.inbox.try_recv() {
                Ok(ShipCommand::Connect { to, session, address, config }) => {
                    self.forget(to);
                    self.sessions.insert(to, session);
                    let ciphers = self.tls.as_ref().map(|tls| Outgoing { tls, to });
                    let ciphers = ciphers.as_ref().map(|ciphers| ciphers as &dyn Ciphers);
                    let remotes = &mut self.remotes;
                    let made = remotes.connect_by(to, address, config, SOCKET_LEN, ciphers);
                    if let Err(error) = made {
                        note!("shipping to {to} at {address}: {error}");
                    }
                }
                Ok(ShipCommand::Drop { to }) => self.forget(to),
                Ok(ShipCommand::Ship(id, order)) => self.waiting.push((id, Order::Ship(order))),
                Ok(ShipCommand::Fetch(id, order)) => self.waiting.push((id, Order::Fetch(order))),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn forget(&mut self, to: ReplicaId) {
        self.count();
        self.counted.remove(&to);
        self.sessions.remove(&to);
        self.remotes.remove(&to);
    }

    fn begin_waiting(&mut self) {
        for (id, order) in std::mem::take(&mut self.waiting) {
            let (with, session) = order.remote();
            let same_session = self.sessions.get(&with) == Some(&session);
            let remote = self.remotes.get(&with).filter(|_| same_session);
            let error = match remote.map(|remote| (remote, remote.state())) {
                Some((_, InitiatorState::Connecting)) => {
                    self.waiting.push((id, order));
                    continue;
                }
                Some((remote, InitiatorState::Ready)) => {
                    if let Order::Ship(order) = &order {
                        note_checksums(remote, order);
                    }
                    let (handle, mailbox) = (remote.handle().clone(), self.mailbox.clone());
                    self.executor.spawn(async move {
                        let done = order.run(&handle).await;
                        mailbox.tell(Event::Done(id, done));
                    });
                    continue;
                }
                Some((_, InitiatorState::Failed(error))) => error,
                None => Error::unavailable("no connection to the secondary's target"),
            };
            self.mailbox.tell(Event::Done(id, order.failed(error)));
        }
    }

    /// Adds what crossed the sockets since the last call.
    fn count(&mut self) {
        for (to, remote) in self.remotes.iter() {
            let now = remote.wire_bytes();
            let before = self.counted.insert(*to, now).unwrap_or_default();
            self.bytes.sent.fetch_add(now.0.saturating_sub(before.0), Ordering::Relaxed);
            self.bytes.received.fetch_add(now.1.saturating_sub(before.1), Ordering::Relaxed);
        }
    }
}

/// Tells the connection the checksums of the chunks that will be written, which are the data
/// digests of its commands: so the bytes are not read once more. Where nothing is written as they
/// rotted, they stand until those of the file that is written there take their place.
fn note_checksums(remote: &Remote, order: &ShipOrder) {
    let len = order.bytes.len() as u64;
    for (i, crc) in order.chunk_crcs.iter().enumerate() {
        let at = i as u64 * CHUNK_LEN;
        let chunk = CHUNK_LEN.min(len.saturating_sub(at));
        let mut extents = gabion_pool::extents(&order.geometry, &order.placement, at, chunk);
        if let (Some((offset, found)), None) = (extents.next(), extents.next())
            && found == chunk
        {
            remote.note_crc(offset, chunk as usize, *crc);
        }
    }
}
