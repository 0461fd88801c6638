//! The threads that drive the clients. Each polls its connections and takes the answers. Then it
//! sends, in one write, as many new requests as were answered (a closed loop), or the due ones (an
//! open loop).
//!
//! In the open loop requests fall due in groups, once a millisecond, at a rate that does not depend
//! on answers. A client may have many more requests under way than in the closed loop. If every
//! client is full, a due request waits for one that is not. Latencies count from the time when a
//! request was due. So a late answer shows in the figures of all requests that came meanwhile (no
//! coordinated omission).
//!
//! Groups that run side by side share the records, and each client asks the group that holds the
//! record. So there is one population of clients, with as many requests under way as with one
//! group, and only the placement of the records differs.

use crate::connection::Connection;
use crate::keys::{KEY_LEN, group_of, key};
use crate::system::thread_cpu_seconds;
use crate::workload::{Hand, Kind, LOADED, Op, Tally};
use gabion_base::{Error, ErrorKind, Result};
use gabion_resp::Reply;
use gabion_workload::{Values, Wrong};
use mio::{Events, Interest, Poll, Token};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Error codes that a later attempt may not meet. After `UNKNOWN` the write may be there already;
/// the second attempt writes the same value, so it does no harm.
const TRANSIENT: [&str; 6] =
    ["TRYAGAIN", "UNKNOWN", "LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN"];
/// First and longest pause before a refused request is tried again.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(128);
/// A workload fails when no request succeeds for this long.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a thread without events looks up.
const TURN_MAX: Duration = Duration::from_millis(100);
/// Bytes of one read from a socket.
const SCRATCH_LEN: usize = 256 * 1024;

/// The state that the threads of a workload share.
pub(crate) struct Shared<'a> {
    pub(crate) values: Values,
    /// Only this run's load has written, so reads must return exactly that.
    pub(crate) is_only_loaded: bool,
    /// Requests that each client has under way, at most.
    pub(crate) pipeline: usize,
    /// Requests that fall due in each thread; `None` for a closed loop.
    pub(crate) per_second: Option<f64>,
    /// Answered requests, for the progress bar.
    pub(crate) done: AtomicU64,
    /// Set when the run is interrupted.
    pub(crate) stop: &'a AtomicBool,
    /// Set when another thread failed: going on is pointless then.
    pub(crate) has_failed: AtomicBool,
}

/// The destination of a group's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The head of the chain.
    pub(crate) writes: SocketAddr,
    /// The tail of the chain.
    pub(crate) reads: SocketAddr,
}

/// A client: two connections to each group, or one where head and tail are the same, and a number
/// of requests under way.
pub(crate) struct Client {
    connections: Vec<Connection>,
    /// For each group the connections for writes and for reads.
    lanes: Vec<[usize; 2]>,
    under_way: usize,
    /// Refused requests, with the time of the next attempt.
    refused: Vec<(Instant, Op)>,
    pause: Duration,
}

impl Client {
    /// Connects a client to each group.
    pub(crate) fn connect(groups: &[Route]) -> Result<Self> {
        let (mut connections, mut lanes) = (Vec::new(), Vec::new());
        for route in groups {
            let writes = connections.len();
            connections.push(Connection::open(route.writes)?);
            if route.reads != route.writes {
                connections.push(Connection::open(route.reads)?);
            }
            lanes.push([writes, connections.len() - 1]);
        }
        Ok(Self { connections, lanes, under_way: 0, refused: Vec::new(), pause: PAUSE_MIN })
    }

    fn push(&mut self, op: Op, values: &Values) {
        let group = group_of(op.record, self.lanes.len());
        let lane = self.lanes[group][usize::from(op.is_read())];
        self.connections[lane].push(op, values);
    }

    /// Sends the refused requests that are due again, then new ones, until the pipeline is full.
    fn fill(&mut self, source: &mut Source<'_>, shared: &Shared<'_>) -> Result<()> {
        if !self.refused.is_empty() {
            let now = Instant::now();
            let due: Vec<Op> =
                self.refused.extract_if(.., |(due, _)| *due <= now).map(|(_, op)| op).collect();
            for op in due {
                self.push(op, &shared.values);
            }
        }
        while self.under_way < shared.pipeline {
            let Some(op) = source.next() else { break };
            self.under_way += 1;
            self.push(op, &shared.values);
        }
        self.connections.iter_mut().try_for_each(Connection::flush)
    }
}

/// How often requests fall due in an open loop.
const GROUP: Duration = Duration::from_millis(1);

/// The source of a thread's requests.
struct Source<'a> {
    hand: Hand<'a>,
    open: Option<Open>,
}

/// An open loop's clock.
struct Open {
    begun: Instant,
    per_second: f64,
    /// Requests that have fallen due.
    count: u64,
    /// Due requests that no client has taken.
    due: VecDeque<Op>,
    is_over: bool,
}

impl Source<'_> {
    /// The next request that may be sent.
    fn next(&mut self) -> Option<Op> {
        match &mut self.open {
            Some(open) => open.due.pop_front(),
            None => self.hand.next(),
        }
    }

    /// Whether requests will come, though none is under way.
    fn has_more(&self) -> bool {
        self.open.as_ref().is_some_and(|open| !open.is_over || !open.due.is_empty())
    }

    /// Makes requests due whose time has come. Returns whether there are any.
    fn pass_time(&mut self, now: Instant) -> bool {
        let Some(open) = &mut self.open else { return false };
        let groups = (now - open.begun).as_millis() as u64;
        let until = (groups as f64 * GROUP.as_secs_f64() * open.per_second) as u64;
        while open.count < until && !open.is_over {
            open.count += 1;
            let group = (open.count as f64 / open.per_second / GROUP.as_secs_f64()).ceil();
            let since = open.begun + GROUP.mul_f64(group);
            match self.hand.next() {
                Some(op) => open.due.push_back(Op { sent: Some(since.min(now)), ..op }),
                None => open.is_over = true,
            }
        }
        !open.due.is_empty()
    }
}

/// Drives clients until the supply is empty and every request is answered. Returns the account and
/// the time of the last answer.
pub(crate) fn drive(
    mut clients: Vec<Client>,
    hand: Hand<'_>,
    shared: &Shared<'_>,
) -> Result<(Tally, Instant)> {
    let failed =
        |error| Error::with_source(ErrorKind::Io, "the connections cannot be watched", error);
    let cpu_before = thread_cpu_seconds();
    let mut poll = Poll::new().map_err(failed)?;
    let lanes = clients.iter().map(|client| client.connections.len()).max().unwrap_or(1);
    for (i, client) in clients.iter_mut().enumerate() {
        for (lane, connection) in client.connections.iter_mut().enumerate() {
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry()
                .register(&mut connection.stream, Token(lanes * i + lane), interest)
                .map_err(failed)?;
        }
    }
    let open = shared.per_second.map(|per_second| Open {
        begun: Instant::now(),
        per_second,
        count: 0,
        due: VecDeque::new(),
        is_over: false,
    });
    let mut driver = Driver {
        source: Source { hand, open },
        shared,
        tally: Tally::new(),
        last_answer: Instant::now(),
        last_refusal: String::new(),
    };
    let mut scratch = vec![0; SCRATCH_LEN];
    let mut events = Events::with_capacity(1024);
    for client in &mut clients {
        client.fill(&mut driver.source, shared)?;
    }
    while (driver.source.has_more() || clients.iter().any(|client| client.under_way > 0))
        && !shared.has_failed.load(Ordering::Relaxed)
    {
        driver.check_patience()?;
        match poll.poll(&mut events, Some(driver.turn(&clients))) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                return Err(failed(error));
            }
            _ => {}
        }
        for event in &events {
            let Token(token) = event.token();
            let client = &mut clients[token / lanes];
            driver.receive(client, token % lanes, &mut scratch)?;
            client.fill(&mut driver.source, shared)?;
        }
        if driver.source.pass_time(Instant::now()) {
            for client in &mut clients {
                client.fill(&mut driver.source, shared)?;
            }
        }
        for client in clients.iter_mut().filter(|client| !client.refused.is_empty()) {
            client.fill(&mut driver.source, shared)?;
        }
    }
    driver.tally.cpu_seconds = thread_cpu_seconds() - cpu_before;
    Ok((driver.tally, driver.last_answer))
}

struct Driver<'a> {
    source: Source<'a>,
    shared: &'a Shared<'a>,
    tally: Tally,
    last_answer: Instant,
    last_refusal: String,
}

impl Driver<'_> {
    fn check_patience(&self) -> Result<()> {
        if self.shared.stop.load(Ordering::Relaxed) {
            return Err(Error::unavailable("interrupted"));
        }
        if self.last_answer.elapsed() < PATIENCE {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "no request was carried out for {} s; the last refusal was: {}",
            PATIENCE.as_secs(),
            if self.last_refusal.is_empty() { "none" } else { &self.last_refusal }
        )))
    }

    /// How long the next poll may take.
    fn turn(&self, clients: &[Client]) -> Duration {
        let now = Instant::now();
        let refused = clients.iter().flat_map(|client| &client.refused);
        let due = refused.map(|(due, _)| due.saturating_duration_since(now));
        let group = self.source.has_more().then_some(GROUP);
        due.chain(group).min().unwrap_or(TURN_MAX).min(TURN_MAX)
    }

    /// Takes the replies on one connection of a client.
    fn receive(&mut self, client: &mut Client, lane: usize, scratch: &mut [u8]) -> Result<()> {
        let connection = &mut client.connections[lane];
        connection.receive(scratch)?;
        let now = Instant::now();
        let (mut done, mut refused) = (0, 0);
        let mut again = Vec::new();
        while let Some((op, reply)) = connection.next_reply()? {
            if let Reply::Error(text) = &reply {
                self.refusal(&op, text)?;
                client.refused.push((now + client.pause, op));
                refused += 1;
                continue;
            }
            self.check(&op, &reply)?;
            if op.kind == Kind::ReadModifyWrite && !op.was_read {
                again.push(Op { was_read: true, ..op });
                continue;
            }
            if op.kind == Kind::Insert {
                self.source.hand.supply.inserted(op.record);
            }
            let sent = op.sent.expect("a request that was answered was handed to a socket");
            self.tally.record(op.kind, now.duration_since(sent));
            client.under_way -= 1;
            done += 1;
        }
        // Sent with the new ones.
        for op in again {
            self.last_answer = now;
            client.push(op, &self.shared.values);
        }
        if done > 0 {
            self.last_answer = now;
            client.pause = PAUSE_MIN;
            self.shared.done.fetch_add(done, Ordering::Relaxed);
        } else if refused > 0 {
            client.pause = (2 * client.pause).min(PAUSE_MAX);
        }
        Ok(())
    }

    /// Counts a refusal that may pass; any other ends the run.
    fn refusal(&mut self, op: &Op, text: &[u8]) -> Result<()> {
        let text = String::from_utf8_lossy(text);
        let code = text.split(' ').next().unwrap_or_default();
        if !TRANSIENT.contains(&code) {
            return Err(Error::unavailable(format!(
                "the {} of record {} was refused: {text}",
                op.kind.as_str(),
                op.record
            )));
        }
        self.tally.refusal(code);
        self.last_refusal = text.into_owned();
        Ok(())
    }

    /// Whether the reply is what the request must have.
    fn check(&mut self, op: &Op, reply: &Reply) -> Result<()> {
        match (op.is_read(), reply) {
            (false, Reply::Simple(text)) if text == "OK" => {
                self.tally.written_bytes += (KEY_LEN + self.shared.values.len_of(op.record)) as u64;
            }
            (true, Reply::Bulk(value)) if op.kind != Kind::Scan => {
                self.tally.read_bytes += (KEY_LEN + value.len()) as u64;
                self.check_value(op.record, value);
            }
            (true, Reply::Null) if op.kind != Kind::Scan => {
                self.tally.mismatch(format!("record {}: it is not there", op.record));
            }
            (true, Reply::Array(pairs)) if op.kind == Kind::Scan => self.check_scan(op, pairs),
            (_, reply) => {
                return Err(Error::invalid(format!(
                    "the {} of record {} was answered with {reply:?}",
                    op.kind.as_str(),
                    op.record
                )));
            }
        }
        Ok(())
    }

    fn check_value(&mut self, record: u64, value: &[u8]) {
        let found = match self.shared.values.check(record, value) {
            Ok(version) if self.shared.is_only_loaded && version != LOADED => {
                Err(Wrong::Version(version))
            }
            found => found,
        };
        if let Err(wrong) = found {
            self.tally.mismatch(format!("record {record}: its value {wrong}"));
        }
    }

    /// A scan begins with the record asked for and goes on in the order of keys, and each value is
    /// that of its key.
    fn check_scan(&mut self, op: &Op, reply: &[Reply]) {
        let from = op.record;
        let mut last: Option<&[u8]> = None;
        for pair in reply.chunks(2) {
            let [Reply::Bulk(found), Reply::Bulk(value)] = pair else {
                return self.tally.mismatch(format!("a scan from record {from}: {pair:?}"));
            };
            // The value names its record, and the record its key.
            let named = Values::record_in(value);
            let is_next = last.map_or(found[..] == key(from), |last| last < &found[..]);
            let record = named.filter(|&record| is_next && found[..] == key(record));
            let Some(record) = record else {
                return self.tally.mismatch(format!(
                    "a scan from record {from}: key {} is not the next one of a record",
                    String::from_utf8_lossy(found)
                ));
            };
            self.tally.read_bytes += (found.len() + value.len()) as u64;
            self.check_value(record, value);
            last = Some(found);
        }
        if last.is_none() || reply.len() > 2 * usize::from(op.count) {
            let pairs = reply.len() / 2;
            self.tally
                .mismatch(format!("a scan of {} records from record {from} has {pairs}", op.count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::WorkloadChoice;
    use crate::workload::Supply;
    use gabion_workload::{Chooser, Distribution};

    #[test]
    fn requests_become_due_in_their_time_whether_or_not_somebody_takes_them() {
        let chooser = Chooser::new(Distribution::Uniform, 10);
        let supply = Supply::new(WorkloadChoice::C, 25, chooser, 10);
        let begun = Instant::now();
        let open =
            Open { begun, per_second: 2000.0, count: 0, due: VecDeque::new(), is_over: false };
        let mut source = Source { hand: Hand::new(&supply, 1, 1, 0), open: Some(open) };
        assert!(!source.pass_time(begun + GROUP / 2) && source.next().is_none());
        // Nobody looked for ten milliseconds.
        assert!(source.pass_time(begun + 10 * GROUP + GROUP / 3));
        let due: Vec<u32> = std::iter::from_fn(|| source.next())
            .map(|op| {
                ((op.sent.unwrap() - begun).as_secs_f64() / GROUP.as_secs_f64()).round() as u32
            })
            .collect();
        assert_eq!(due, (1..=10).flat_map(|group| [group, group]).collect::<Vec<_>>());
        assert!(source.has_more());
        assert!(source.pass_time(begun + 100 * GROUP));
        assert_eq!(std::iter::from_fn(|| source.next()).count(), 5);
        assert!(!source.has_more(), "the supply is empty");
    }
}
