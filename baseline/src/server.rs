//! The loop of a replica: one thread, one turn after the other.
//!
//! ```text
//!  wait ─► clients, neighbours, threads ─► the turn's batch: to the next replica, into the store
//!    ▲                                     the turn's reads: from the store, all at once
//!    └──── one send per socket ◄── replies whose batch is acknowledged, acknowledgements ◄──┘
//! ```

use crate::client::{Client, READ_LEN};
use crate::commands::Read;
use crate::link::Link;
use crate::store::{Batch, Found, Store, Written};
use crate::threads::{Done, Mailbox, ReadJob, Threads, put_found, range};
use crate::wire::{self, HEAD_LEN, HELLO_LEN};
use bytes::{Bytes, BytesMut};
use gabion_base::{Error, ErrorKind, Result};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

pub(crate) const DOOR: Token = Token(0);
const CHAIN: Token = Token(1);
const WAKER: Token = Token(2);
const PREVIOUS: Token = Token(3);
const NEXT: Token = Token(4);
/// Tokens of clients.
pub(crate) const CLIENTS: usize = 8;

/// How long a replica may take to connect to the next.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Longest sleep, after which the loop looks whether it is to end.
const TICK: Duration = Duration::from_millis(100);
/// Bytes of batches that are not acknowledged above which the head reads no further requests.
const UNACKNOWLEDGED_MAX: usize = 64 << 20;

/// A replica's place in its chain.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// 1 is the head, `replicas` the tail.
    pub number: u32,
    /// Replicas of the chain: at least 1, which is head and tail and serves clients alone.
    pub replicas: u32,
    /// Where clients come in.
    pub clients: SocketAddr,
    /// Where the one before it comes in; the head has none.
    pub previous: SocketAddr,
    /// Where the next one takes it in; the tail has none.
    pub next: Option<SocketAddr>,
    /// Threads for reads that the device has to answer: at least 1.
    pub readers: u32,
}

impl Place {
    pub(crate) const fn is_head(&self) -> bool {
        self.number == 1
    }

    pub(crate) const fn is_tail(&self) -> bool {
        self.number == self.replicas
    }

    fn check(&self) -> Result<()> {
        let Self { number, replicas, next, readers, .. } = self;
        if *readers == 0 {
            return Err(Error::invalid("a replica with 0 readers: at least 1 is needed"));
        }
        if !(1..=*replicas).contains(number) {
            return Err(Error::invalid(format!(
                "replica {number} of {replicas}: replicas are numbered from 1"
            )));
        }
        if next.is_some() == self.is_tail() {
            return Err(Error::invalid(format!(
                "replica {number} of {replicas}: all but the last need the address of the next"
            )));
        }
        Ok(())
    }
}

/// Bytes on sockets since the start: sent, received.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) clients: [u64; 2],
    pub(crate) chain: [u64; 2],
}

/// A replica.
pub struct Server<S: Store> {
    pub(crate) place: Place,
    pub(crate) store: Arc<S>,
    pub(crate) poll: Poll,
    pub(crate) door: TcpListener,
    chain: TcpListener,
    pub(crate) previous: Option<Link>,
    pub(crate) next: Option<Link>,
    threads: Threads<S::Batch>,
    inbox: Receiver<Done>,
    pub(crate) traffic: Traffic,

    // Clients.
    pub(crate) clients: Vec<Option<Box<Client>>>,
    pub(crate) free_clients: Vec<usize>,
    pub(crate) next_serial: u64,
    /// Connections whose replies or sockets want looking after in this turn.
    pub(crate) listed: Vec<usize>,
    /// Connections that can read on without a new event.
    pub(crate) eager: Vec<usize>,
    /// Connections that are not read because too much is not acknowledged.
    pub(crate) held: Vec<usize>,
    /// Connections that wait for a batch to be acknowledged, in the order of batches.
    pub(crate) waiting: VecDeque<(u64, usize)>,
    pub(crate) scratch: Vec<u8>,
    pub(crate) shared_input: BytesMut,

    // The turn.
    pub(crate) batch: S::Batch,
    pub(crate) batch_len: usize,
    pub(crate) reads: Vec<ReadJob>,
    keys: Vec<Bytes>,

    // Batches.
    /// The last that the head made, or that came from the previous replica.
    pub(crate) last: u64,
    /// The last that is in the store.
    applied: u64,
    /// The last that all behind this replica have applied.
    behind: u64,
    /// The last that was acknowledged to the previous replica; at the head, to clients.
    pub(crate) acknowledged: u64,
    /// Of the head: batches that are not acknowledged, with their bytes.
    under_way: VecDeque<(u64, usize)>,
    pub(crate) under_way_len: usize,
    /// More may lie in the socket of the previous replica.
    has_more: bool,
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::with_source(ErrorKind::Io, what, error)
}

impl<S: Store> Server<S> {
    /// Opens the doors, and connects to the next replica, which has opened its own.
    ///
    /// # Errors
    /// A place that no chain has; an address that cannot be had; no connection.
    pub fn new(place: Place, store: Arc<S>) -> Result<Self> {
        place.check()?;
        let poll = Poll::new().map_err(failed("the loop"))?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(failed("the loop's waker"))?;
        let (sender, inbox) = mpsc::channel();
        let threads = Threads::start(&store, place.readers, &Mailbox::new(sender, waker.into()))?;
        let mut door = TcpListener::bind(place.clients).map_err(failed("the door for clients"))?;
        let mut chain = TcpListener::bind(place.previous).map_err(failed("the chain's door"))?;
        for (listener, token) in [(&mut door, DOOR), (&mut chain, CHAIN)] {
            let registered = poll.registry().register(listener, token, Interest::READABLE);
            registered.map_err(failed("a door cannot be watched"))?;
        }
        let mut server = Self {
            behind: if place.is_tail() { u64::MAX } else { 0 },
            place,
            store,
            poll,
            door,
            chain,
            previous: None,
            next: None,
            threads,
            inbox,
            traffic: Traffic::default(),
            clients: Vec::new(),
            free_clients: Vec::new(),
            next_serial: 0,
            listed: Vec::new(),
            eager: Vec::new(),
            held: Vec::new(),
            waiting: VecDeque::new(),
            scratch: vec![0; READ_LEN],
            shared_input: BytesMut::new(),
            batch: S::Batch::default(),
            batch_len: 0,
            reads: Vec::new(),
            keys: Vec::new(),
            last: 0,
            applied: 0,
            acknowledged: 0,
            under_way: VecDeque::new(),
            under_way_len: 0,
            has_more: false,
        };
        if let Some(next) = place.next {
            server.connect(next)?;
        }
        Ok(server)
    }

    fn connect(&mut self, next: SocketAddr) -> Result<()> {
        let what = "the next replica cannot be connected to";
        let stream =
            std::net::TcpStream::connect_timeout(&next, CONNECT_MAX).map_err(failed(what))?;
        stream.set_nodelay(true).map_err(failed(what))?;
        stream.set_nonblocking(true).map_err(failed(what))?;
        let mut link = self.watch(TcpStream::from_std(stream), NEXT)?;
        link.send(&wire::hello(self.place.number, self.place.replicas), &[])?;
        self.next = Some(link);
        Ok(())
    }

    fn watch(&self, mut stream: TcpStream, token: Token) -> Result<Link> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self.poll.registry().register(&mut stream, token, interest);
        registered.map_err(failed("a neighbour cannot be watched"))?;
        Ok(Link::new(stream))
    }

    /// Where clients come in, and where the previous replica does.
    ///
    /// # Errors
    /// The system's.
    pub fn addresses(&self) -> Result<[SocketAddr; 2]> {
        let address = |door: &TcpListener| door.local_addr().map_err(failed("a door's address"));
        Ok([address(&self.door)?, address(&self.chain)?])
    }

    /// Whether it has its neighbours.
    pub(crate) fn is_ready(&self) -> bool {
        let has_previous = self.previous.as_ref().is_some_and(|link| link.is_greeted);
        has_previous || self.place.is_head()
    }

    /// Runs until `stop` is set.
    ///
    /// # Errors
    /// A neighbour that is gone or says what none may, unless all are to end; what the store does not
    /// survive.
    pub fn run(mut self, stop: &AtomicBool) -> Result<()> {
        let outcome = self.turns(stop);
        if stop.load(Ordering::Relaxed) { Ok(()) } else { outcome }
    }

    fn turns(&mut self, stop: &AtomicBool) -> Result<()> {
        let mut events = Events::with_capacity(1024);
        while !stop.load(Ordering::Relaxed) {
            let is_busy = self.has_more || !self.eager.is_empty() || !self.listed.is_empty();
            let timeout = if is_busy { Duration::ZERO } else { TICK };
            match self.poll.poll(&mut events, Some(timeout)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => events.clear(),
                Err(error) => return Err(failed("the loop cannot wait")(error)),
            }
            self.has_more |= events.iter().any(|event| event.token() == PREVIOUS);
            for event in &events {
                match event.token() {
                    DOOR => self.accept_clients(),
                    CHAIN => self.accept_previous()?,
                    WAKER => {}
                    PREVIOUS if event.is_writable() => {
                        resume(&mut self.previous, &mut self.traffic)?
                    }
                    PREVIOUS => {}
                    NEXT => {
                        if event.is_writable() {
                            resume(&mut self.next, &mut self.traffic)?;
                        }
                        self.hear_next()?;
                    }
                    Token(n) => self.wake_client(n - CLIENTS, event)?,
                }
            }
            self.take_turn()?;
        }
        Ok(())
    }

    fn take_turn(&mut self) -> Result<()> {
        while let Ok(done) = self.inbox.try_recv() {
            self.take_done(done)?;
        }
        if std::mem::take(&mut self.has_more) {
            self.hear_previous()?;
        }
        for token in std::mem::take(&mut self.eager) {
            self.serve_client(token)?;
        }
        self.end_batch()?;
        self.run_reads()?;
        self.acknowledge()?;
        self.flush_clients();
        Ok(())
    }

    fn take_done(&mut self, done: Done) -> Result<()> {
        match done {
            Done::Written(number) => self.applied = number,
            Done::Failed(error) => return Err(error),
            Done::Read(job, reply) => {
                let client = self.clients.get_mut(job.token).and_then(Option::as_mut);
                if let Some(client) = client.filter(|client| client.serial == job.serial) {
                    client.fill(job.slot, |out| out.extend_from_slice(&reply));
                    self.list_client(job.token);
                }
            }
        }
        Ok(())
    }

    // ---- batches

    /// Ends the head's batch: it is on its way to the others before it goes into the store here.
    pub(crate) fn end_batch(&mut self) -> Result<()> {
        if self.batch_len == 0 {
            return Ok(());
        }
        self.last += 1;
        self.batch_len = 0;
        let batch = std::mem::take(&mut self.batch);
        let len = batch.bytes().len();
        if let Some(next) = &mut self.next {
            let sent = next.send(&wire::head(len, self.last), batch.bytes())?;
            self.traffic.chain[0] += sent as u64;
        }
        self.under_way.push_back((self.last, len));
        self.under_way_len += len;
        if let Some(mut batch) = self.apply(self.last, batch)? {
            batch.clear();
            self.batch = batch;
        }
        Ok(())
    }

    /// Whether the head has to wait for the others before it takes more.
    pub(crate) const fn is_full(&self) -> bool {
        self.under_way_len > UNACKNOWLEDGED_MAX
    }

    /// Writes what the batches from `first` up to [`Self::last`] became, or has it written when the store
    /// would have to wait. Returns it when it is written.
    fn apply(&mut self, first: u64, batch: S::Batch) -> Result<Option<S::Batch>> {
        // While the writer has some, others go behind them.
        if self.applied + 1 == first && self.store.write(&batch, false)? == Written::Done {
            self.applied = self.last;
            return Ok(Some(batch));
        }
        let is_taken = self.threads.writes.send((self.last, batch)).is_ok();
        if is_taken { Ok(None) } else { Err(Error::unavailable("the writer is gone")) }
    }

    fn accept_previous(&mut self) -> Result<()> {
        while let Ok((stream, from)) = self.chain.accept() {
            if self.place.is_head() || self.previous.is_some() {
                eprintln!("the chain's door: {from} came, and nobody was waited for");
                continue;
            }
            let _ = stream.set_nodelay(true);
            self.previous = Some(self.watch(stream, PREVIOUS)?);
            self.has_more = true;
        }
        Ok(())
    }

    /// Takes what the previous replica sent: passes it on as it is, and writes it as one batch.
    fn hear_previous(&mut self) -> Result<()> {
        let Some(mut link) = self.previous.take() else { return Ok(()) };
        let (count, has_more) = link.read()?;
        self.traffic.chain[1] += count as u64;
        self.has_more = has_more;
        if !link.is_greeted {
            self.greet(&mut link)?;
        }
        let bytes = link.input.bytes();
        let (mut len, mut parts) = (0, Vec::new());
        while let Some((number, batch)) = wire::batch(&bytes[len..])? {
            if number != self.last + 1 {
                let last = self.last;
                return Err(Error::corruption(format!("batch {number} came behind batch {last}")));
            }
            self.last = number;
            len += HEAD_LEN + batch.len();
            parts.push(batch);
        }
        if len > 0 {
            if let Some(next) = &mut self.next {
                self.traffic.chain[0] += next.send(&bytes[..len], &[])? as u64;
            }
            let batch = self.store.batch(&parts)?;
            self.apply(self.last + 1 - parts.len() as u64, batch)?;
        }
        link.input.take(len);
        self.previous = Some(link);
        Ok(())
    }

    fn greet(&self, link: &mut Link) -> Result<()> {
        let Some(hello) = link.input.bytes().get(..HELLO_LEN) else { return Ok(()) };
        let Place { number, replicas, .. } = self.place;
        if hello != wire::hello(number - 1, replicas) {
            return Err(Error::corruption(format!(
                "who connected to replica {number} of {replicas} is not the one before it"
            )));
        }
        link.input.take(HELLO_LEN);
        link.is_greeted = true;
        Ok(())
    }

    // ---- acknowledgements

    fn hear_next(&mut self) -> Result<()> {
        let Some(link) = &mut self.next else { return Ok(()) };
        loop {
            let (count, has_more) = link.read()?;
            self.traffic.chain[1] += count as u64;
            if let Some((number, len)) = wire::last_ack(link.input.bytes()) {
                if number < self.behind || number > self.last {
                    return Err(Error::corruption(format!(
                        "batch {number} is acknowledged behind {}; the last is {}",
                        self.behind, self.last
                    )));
                }
                self.behind = number;
                link.input.take(len);
            }
            if !has_more {
                return Ok(());
            }
        }
    }

    /// Passes on what this replica and all behind it have applied.
    fn acknowledge(&mut self) -> Result<()> {
        let number = self.applied.min(self.behind);
        if number == self.acknowledged {
            return Ok(());
        }
        self.acknowledged = number;
        if let Some(previous) = &mut self.previous {
            self.traffic.chain[0] += previous.send(&number.to_le_bytes(), &[])? as u64;
        }
        while let Some(&(_, len)) = self.under_way.front().filter(|(batch, _)| *batch <= number) {
            self.under_way.pop_front();
            self.under_way_len -= len;
        }
        while let Some(&(_, token)) = self.waiting.front().filter(|(batch, _)| *batch <= number) {
            self.waiting.pop_front();
            self.list_client(token);
        }
        if !self.is_full() {
            self.eager.append(&mut self.held);
        }
        Ok(())
    }

    // ---- reads

    /// Makes the reads of the turn, behind its writes: all GETs as one. What the device has to answer
    /// goes to the readers.
    fn run_reads(&mut self) -> Result<()> {
        if self.reads.is_empty() {
            return Ok(());
        }
        let reads = std::mem::take(&mut self.reads);
        let (mut gets, mut missed) = (Vec::with_capacity(reads.len()), Vec::new());
        self.keys.clear();
        for (i, job) in reads.iter().enumerate() {
            match &job.read {
                Read::Get(key) => {
                    gets.push(i);
                    self.keys.push(key.clone());
                }
                Read::Range(from, limit) => {
                    let mut reply = Vec::new();
                    if range(&*self.store, from, *limit, false, &mut reply)? {
                        answer(&mut self.clients, job, |out| out.extend_from_slice(&reply));
                    } else {
                        missed.push(i);
                    }
                }
            }
        }
        let clients = &mut self.clients;
        self.store.get(&self.keys, false, &mut |i, found| match found {
            Found::WouldWait => missed.push(gets[i]),
            found => answer(clients, &reads[gets[i]], |out| put_found(found, out)),
        })?;
        self.keys.clear();
        missed.sort_unstable();
        let mut missed = missed.into_iter().peekable();
        for (i, job) in reads.into_iter().enumerate() {
            self.list_client(job.token);
            if missed.next_if_eq(&i).is_some() && self.threads.reads.send(job).is_err() {
                return Err(Error::unavailable("the readers are gone"));
            }
        }
        Ok(())
    }
}

fn answer(clients: &mut [Option<Box<Client>>], job: &ReadJob, encode: impl FnOnce(&mut Vec<u8>)) {
    let client = clients.get_mut(job.token).and_then(Option::as_mut);
    if let Some(client) = client.filter(|client| client.serial == job.serial) {
        client.fill(job.slot, encode);
    }
}

fn resume(link: &mut Option<Link>, traffic: &mut Traffic) -> Result<()> {
    if let Some(link) = link {
        traffic.chain[0] += link.resume()? as u64;
    }
    Ok(())
}
