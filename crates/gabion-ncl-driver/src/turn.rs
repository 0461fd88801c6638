//! The core with what is around it, one step: whoever holds its lock takes it.

use crate::address::PeerAddress;
use crate::images::Mirrors;
use crate::link::{Client, Link};
use crate::tls::connect;
use crate::waiters::Waiters;
use crate::windows::Windows;
use gabion_base::{Error, ErrorKind, Result};
use gabion_fabric::remote::PeerLink;
use gabion_media::remote::{ClientConfig, ConnectionGeneration, PeerId, RegionId, Reply};
use gabion_mirror::direct::Grant;
use gabion_mirror::shared::Shared;
use gabion_ncl::layout::room;
use gabion_ncl::{Application, Asker, Command, FileNumber, Output, StoreOperation};
use gabion_tls::MutualTls;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

/// Time is told to the core in steps of so many ms at least.
const STEP_MS: u64 = 5;
/// After so many ms without it this process did not run.
const PAUSE_MS: u64 = 200;

/// Work for the store's thread.
pub(crate) enum Job {
    /// An operation of the core.
    Core(Asker, StoreOperation),
    /// The last one of a core that ends.
    Last(Option<StoreOperation>),
    /// The report of the instance.
    Report(Vec<u8>),
}

/// A connection that is being made, or is there.
enum Peer {
    Connecting(u64),
    Up(u64, Box<Link>),
}

/// A connection to be made by a thread of its own.
pub(crate) struct Attempt {
    pub(crate) peer: PeerId,
    pub(crate) number: u64,
    address: String,
    may_share: bool,
    config: ClientConfig,
    boot: Arc<str>,
    tls: Option<Arc<MutualTls>>,
}

impl Attempt {
    /// Connects to the first place where that peer answers. It may sleep.
    pub(crate) fn run(&self) -> Result<PeerLink> {
        let address = PeerAddress::decode(&self.address)?;
        let mut last = Error::unavailable(format!("peer {}: no address is known", self.peer));
        for place in address.places(&self.boot) {
            match connect(place, self.config.clone(), self.tls.as_deref(), &address) {
                Ok(link) if link.peer() == self.peer => return Ok(link),
                Ok(link) => {
                    let (place, found) = (link.address(), link.peer());
                    let text = format!("peer {}: at {place} is peer {found}", self.peer);
                    last = Error::unavailable(text);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Times of losses and replacements.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses {
    /// Copies that were lost.
    pub(crate) count: u64,
    /// Whether a peer was lost since it was last looked.
    may_be: bool,
    /// Since when one is missing.
    since: Option<Instant>,
    /// How long one was missing last, in ms.
    pub(crate) last_ms: u64,
    /// Why peers were lost last.
    pub(crate) reasons: BTreeMap<PeerId, String>,
}

/// The core and its connections.
pub(crate) struct State {
    pub(crate) core: Application<Mirrors>,
    client: Client,
    peers: BTreeMap<PeerId, Peer>,
    tokens: BTreeMap<u64, PeerId>,
    waits_to_send: BTreeSet<PeerId>,
    /// Peers whose replies wait for the next turn, whatever their sockets have.
    has_replies: BTreeSet<PeerId>,
    unshared: BTreeSet<PeerId>,
    /// Connections of the client so far: each has the next number.
    attempts: u64,
    boot: Arc<str>,
    timeout_ms: u64,
    epoll: Arc<OwnedFd>,
    started: Instant,
    timed_ms: u64,
    pub(crate) to_connect: Vec<Attempt>,
    jobs: Sender<Job>,
    pub(crate) losses: Losses,
    /// Why the store did not answer its last question.
    pub(crate) store_failure: Option<String>,
    pub(crate) waiters: Waiters,
    pub(crate) windows: Windows,
    pub(crate) is_closed: bool,
}

/// A readiness queue.
pub(crate) fn readiness() -> Result<Arc<OwnedFd>> {
    let made = epoll::create(CreateFlags::CLOEXEC);
    made.map(Arc::new).map_err(|e| refused("readiness of sockets", e))
}

pub(crate) fn refused(what: &str, error: rustix::io::Errno) -> Error {
    let text = format!("{what}: the system refuses it");
    Error::with_source(ErrorKind::Io, text, std::io::Error::from(error))
}

impl State {
    pub(crate) fn new(
        core: Application<Mirrors>,
        client: Client,
        timeout_ms: u64,
        (epoll, started): (Arc<OwnedFd>, Instant),
        jobs: Sender<Job>,
    ) -> Self {
        Self {
            core,
            client,
            peers: BTreeMap::new(),
            tokens: BTreeMap::new(),
            waits_to_send: BTreeSet::new(),
            has_replies: BTreeSet::new(),
            unshared: BTreeSet::new(),
            attempts: 0,
            boot: crate::address::boot().into(),
            timeout_ms,
            epoll,
            started,
            timed_ms: 0,
            to_connect: Vec::new(),
            jobs,
            losses: Losses::default(),
            store_failure: None,
            waiters: Waiters::default(),
            windows: Windows::default(),
            is_closed: false,
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// How many of the connected peers share their memory, and how many there are.
    pub(crate) fn connected(&self) -> (usize, usize) {
        let up = self.peers.values().filter_map(|peer| match peer {
            Peer::Up(_, link) => Some(link.shares_memory()),
            Peer::Connecting(_) => None,
        });
        up.fold((0, 0), |(shared, all), shares| (shared + usize::from(shares), all + 1))
    }

    /// Does what the core wants, until it wants nothing more.
    pub(crate) fn drive(&mut self) {
        while let Some(output) = self.core.poll_output() {
            match output {
                Output::Send { peer, term, command } => {
                    // The connection greets by itself.
                    if command == Command::Hello {
                        continue;
                    }
                    let Some(Peer::Up(_, link)) = self.peers.get_mut(&peer) else { continue };
                    if let Command::Free { regions } = &command {
                        self.windows.freed(peer, regions);
                    }
                    match link.send(&self.client, term, &command) {
                        Ok(Some(reply)) => self.core.handle_reply(self.timed_ms, peer, reply),
                        Ok(None) => {
                            if link.is_dirty() {
                                self.waits_to_send.insert(peer);
                            }
                            if link.has_reply() {
                                self.has_replies.insert(peer);
                            }
                        }
                        Err(error) => self.lose(peer, error),
                    }
                }
                Output::Connect { peer, address } => self.connect(peer, address),
                Output::Disconnect { peer, error } => self.disconnect(peer, &error),
                Output::Store { asker, operation } => {
                    // Without its thread the store does not answer.
                    let _ = self.jobs.send(Job::Core(asker, operation));
                }
            }
        }
        self.note_losses();
        if !self.waits_to_send.is_empty() {
            self.flush(false);
        }
    }

    fn connect(&mut self, peer: PeerId, address: String) {
        self.attempts += 1;
        let generation = ConnectionGeneration(self.attempts);
        let mut config = ClientConfig::new(self.client.client, generation);
        config.token.clone_from(&self.client.token);
        // The core counts what is outstanding, and asks for less.
        (config.outstanding_max, config.outstanding_bytes_max) = (1 << 14, 64 << 20);
        config.reply_timeout_ms = self.timeout_ms;
        self.peers.insert(peer, Peer::Connecting(self.attempts));
        self.to_connect.push(Attempt {
            peer,
            number: self.attempts,
            address,
            may_share: !self.unshared.contains(&peer),
            config,
            boot: Arc::clone(&self.boot),
            tls: self.client.tls.clone(),
        });
    }

    /// A connection was made, or not.
    pub(crate) fn connected_to(&mut self, attempt: &Attempt, made: Result<PeerLink>) {
        let (peer, number) = (attempt.peer, attempt.number);
        let is_current = |peer: &Peer| matches!(peer, Peer::Connecting(at) if *at == number);
        if !self.peers.get(&peer).is_some_and(is_current) {
            return;
        }
        let added = made.and_then(|link| {
            let added = epoll::add(&*self.epoll, &link, EventData::new_u64(number), EventFlags::IN);
            added.map(|()| link).map_err(|e| refused("readiness of a socket", e))
        });
        match added {
            Ok(link) => {
                let welcome = Reply::Welcome {
                    peer,
                    incarnation: link.incarnation(),
                    free_bytes: link.free_bytes(),
                };
                let link = Box::new(Link::new(link, attempt.may_share));
                self.peers.insert(peer, Peer::Up(number, link));
                self.tokens.insert(number, peer);
                self.core.handle_reply(self.now_ms(), peer, welcome);
            }
            Err(error) => self.lose(peer, error),
        }
        self.drive();
    }

    /// The core hears that a peer is lost.
    fn lose(&mut self, peer: PeerId, error: Error) {
        if let Some(Peer::Up(_, link)) = self.peers.get(&peer)
            && error.kind() == ErrorKind::Unsupported
            && !link.shares_memory()
        {
            self.unshared.insert(peer);
        }
        self.disconnect(peer, &error);
        self.core.handle_disconnected(self.now_ms(), peer, error);
    }

    fn disconnect(&mut self, peer: PeerId, error: &Error) {
        let Some(found) = self.peers.remove(&peer) else { return };
        self.losses.reasons.insert(peer, error.to_string());
        self.losses.may_be = true;
        self.waits_to_send.remove(&peer);
        self.windows.lost(peer);
        if let Peer::Up(number, link) = found {
            self.tokens.remove(&number);
            // It goes with its socket, too.
            let _ = epoll::delete(&*self.epoll, link.connection());
            drop_aside(link);
        }
    }

    fn note_losses(&mut self) {
        if !self.losses.may_be && self.losses.since.is_none() {
            return;
        }
        self.losses.may_be = false;
        let is_running = self.core.is_ready().unwrap_or(false);
        let (copies, wanted) = self.core.copies();
        match self.losses.since {
            None if is_running && copies < wanted => {
                self.losses.count += 1;
                self.losses.since = Some(Instant::now());
            }
            Some(since) if copies >= wanted => {
                self.losses.last_ms = since.elapsed().as_millis() as u64;
                self.losses.since = None;
            }
            _ => {}
        }
    }

    /// Lets the program write records of a file itself, if the core and all peers can.
    pub(crate) fn grant(
        &mut self,
        file: FileNumber,
        (slot, generation): (u32, u32),
        changes: &Shared,
    ) {
        let Some(grant) = self.core.grant(file) else { return };
        let region = |peer: PeerId, region: RegionId| match self.peers.get(&peer) {
            Some(Peer::Up(_, link)) => link.region(region),
            _ => None,
        };
        if let Some(window) = self.windows.of(&grant, region) {
            let (capacity, near) = room(&grant.parts);
            changes.publish(&Grant {
                file: file.0,
                slot,
                generation,
                window,
                term: grant.term.0,
                owner: grant.owner.word(),
                last: grant.last.0,
                progress: grant.progress,
                capacity,
                near,
            });
        }
    }

    /// Sends what waits: all of it, or only where nothing is under way.
    pub(crate) fn flush(&mut self, all: bool) {
        let waiting: Vec<PeerId> = self.waits_to_send.iter().copied().collect();
        for peer in waiting {
            let Some(Peer::Up(number, link)) = self.peers.get_mut(&peer) else { continue };
            if !all && !link.is_idle() {
                continue;
            }
            self.waits_to_send.remove(&peer);
            let sent = link.flush();
            let sent = sent.and_then(|()| watch(&self.epoll, *number, link));
            if let Err(error) = sent {
                self.lose(peer, error);
                self.drive();
            }
        }
    }

    /// Whether the next turn has something to do whatever the sockets have.
    pub(crate) fn has_replies(&self) -> bool {
        !self.has_replies.is_empty()
    }

    /// Begins a turn with the replies that waited for it.
    pub(crate) fn begin_turn(&mut self) {
        for peer in self.peers.values_mut() {
            if let Peer::Up(_, link) = peer {
                link.begin_turn();
            }
        }
        for peer in std::mem::take(&mut self.has_replies) {
            let Some(Peer::Up(number, _)) = self.peers.get(&peer) else { continue };
            self.handle_ready(*number);
        }
    }

    /// A socket may move.
    pub(crate) fn handle_ready(&mut self, number: u64) {
        let Some(&peer) = self.tokens.get(&number) else { return };
        let now_ms = self.now_ms();
        let Some(Peer::Up(_, link)) = self.peers.get_mut(&peer) else { return };
        let moved = link.progress();
        let moved = moved.and_then(|()| watch(&self.epoll, number, link));
        if link.is_dirty() {
            self.waits_to_send.insert(peer);
        }
        if link.connection().has_more() {
            self.has_replies.insert(peer);
        }
        self.handle_replies(number, peer, now_ms);
        while let Some(Peer::Up(at, link)) = self.peers.get_mut(&peer)
            && *at == number
            && let Some(notice) = link.poll_notice()
        {
            self.core.handle_notice(now_ms, peer, &notice);
        }
        if let Err(error) = moved
            && self.tokens.contains_key(&number)
        {
            self.lose(peer, error);
        }
        self.drive();
    }

    /// The replies of a connection that are there, in their order.
    fn handle_replies(&mut self, number: u64, peer: PeerId, now_ms: u64) {
        while let Some(Peer::Up(at, link)) = self.peers.get_mut(&peer)
            && *at == number
            && let Some(reply) = link.poll_reply()
        {
            self.core.handle_reply(now_ms, peer, reply);
        }
    }

    /// Time went on; after what had come was taken, as a pause of this side is nobody's silence.
    pub(crate) fn handle_time(&mut self) {
        let now_ms = self.now_ms();
        if now_ms > self.timed_ms + PAUSE_MS {
            // This process stood still. Replies may have waited meanwhile.
            let connected: Vec<u64> = self.tokens.keys().copied().collect();
            connected.into_iter().for_each(|number| self.handle_ready(number));
        }
        if now_ms > self.timed_ms + STEP_MS {
            self.timed_ms = now_ms;
            self.core.handle_time(now_ms);
            self.drive();
        }
    }

    pub(crate) fn report(&self, report: Vec<u8>) {
        // Nobody hears it if the thread is gone.
        let _ = self.jobs.send(Job::Report(report));
    }

    /// Ends the instance, and says so in the store.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.core.close();
        let mut last = None;
        while let Some(output) = self.core.poll_output() {
            match output {
                Output::Store { operation, .. } => last = Some(operation),
                Output::Disconnect { peer, error } => self.disconnect(peer, &error),
                Output::Connect { .. } | Output::Send { .. } => {}
            }
        }
        // The thread is gone already.
        let _ = self.jobs.send(Job::Last(last));
    }

    /// Ends the threads without a word to the store or to peers.
    pub(crate) fn give_up(&mut self) {
        self.is_closed = true;
        let _ = self.jobs.send(Job::Last(None));
    }
}

/// Ends a connection on a thread of its own. If the peer has died, the last mappings of its memory
/// are here, and the system takes 0.2 ms a MiB to free it, for which no write has to wait.
fn drop_aside(link: Box<Link>) {
    // Without a thread it takes its time here.
    drop(std::thread::Builder::new().name("gabion-ncl-gone".into()).spawn(move || drop(link)));
}

/// Asks for the events that the link needs: to be told once more bytes can be sent, too.
fn watch(epoll: &OwnedFd, number: u64, link: &mut Link) -> Result<()> {
    let waits = link.connection().is_waiting();
    if core::mem::replace(&mut link.is_watched, waits) == waits {
        return Ok(());
    }
    let mut events = EventFlags::IN;
    events.set(EventFlags::OUT, waits);
    let changed = epoll::modify(epoll, link.connection(), EventData::new_u64(number), events);
    changed.map_err(|e| refused("readiness of a socket", e))
}
