//! The clients: pairs of a writer and a reader with keys of their own, each a thread.
//!
//! ```text
//!   writer ─► SET ─► door ─► acknowledged, refused or unknown ─┐
//!                                                              ├─► ledger of the pair ─► violation
//!   reader ─► GET ─► door ─► value ─────────────────────────── ┘
//! ```
//!
//! The two are threads of their own: a read that had to wait for a stalled write would make the
//! gaps of reads those of writes.

use super::door::{Door, Doors, Failure};
use super::ledger::Ledger;
use super::samples::{Kind, Samples};
use crate::keys::key;
use gabion_base::{Error, ErrorKind, Result};
use gabion_resp::{Reply, encode_request};
use gabion_workload::{Random, Values};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Requests under way of a connection that loads or reads back.
const PIPELINE: usize = 128;
/// How long such a connection waits for a reply.
const PATIENCE: Duration = Duration::from_secs(30);
/// Keys that the reader prefers, as a stale read would show there: those written last.
const RECENT_MAX: usize = 32;

/// The state that all clients share.
pub(super) struct Shared {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) values: Values,
    pub(super) patience: Duration,
    /// All times count from here.
    pub(super) epoch: Instant,
    pub(super) stop: AtomicBool,
    /// Counts rounds: in each, every client begins at its own door.
    pub(super) round: AtomicU64,
    /// The last fault, in words.
    pub(super) injected: Mutex<String>,
    violation: Mutex<Option<String>>,
}

impl Shared {
    pub(super) fn new(addresses: Vec<SocketAddr>, values: Values, patience: Duration) -> Self {
        Self {
            addresses,
            values,
            patience,
            epoch: Instant::now(),
            stop: AtomicBool::new(false),
            round: AtomicU64::new(0),
            injected: Mutex::new("nothing".to_owned()),
            violation: Mutex::new(None),
        }
    }

    /// The first violation.
    pub(super) fn violation(&self) -> Option<String> {
        locked(&self.violation).clone()
    }

    /// Notes that the replicas differ from each other.
    pub(super) fn violated_by_all(&self, what: &str) {
        let sentence = format!("`gabion verify`: {what}; injected: {}", locked(&self.injected));
        locked(&self.violation).get_or_insert(sentence);
    }

    /// Notes a violation, and ends all clients.
    fn violated(&self, record: u64, door: usize, what: &str) {
        let sentence = format!(
            "key {}: {what}, through the door of replica {}, at {:.3} s; injected: {}",
            String::from_utf8_lossy(&key(record)),
            door + 1,
            self.epoch.elapsed().as_secs_f64(),
            locked(&self.injected)
        );
        locked(&self.violation).get_or_insert(sentence);
        self.stop.store(true, Relaxed);
    }
}

/// A lock whose holders do not panic half-way.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A writer and a reader.
pub(super) struct Pair {
    /// From 0.
    number: usize,
    pairs: usize,
    ledger: Mutex<Ledger>,
    recent: Mutex<VecDeque<usize>>,
    pub(super) writes: Samples,
    pub(super) reads: Samples,
}

impl Pair {
    /// The pair of this number of so many, which share the records.
    pub(super) fn new(number: usize, pairs: usize, records: u64) -> Self {
        let keys = (records as usize - number).div_ceil(pairs);
        Self {
            number,
            pairs,
            ledger: Mutex::new(Ledger::new(keys)),
            recent: Mutex::new(VecDeque::new()),
            writes: Samples::default(),
            reads: Samples::default(),
        }
    }

    fn record(&self, key: usize) -> u64 {
        (key * self.pairs + self.number) as u64
    }

    pub(super) fn samples(&self, kind: Kind) -> &Samples {
        match kind {
            Kind::Write => &self.writes,
            Kind::Read => &self.reads,
        }
    }

    /// Loads the records of this pair at version 0.
    pub(super) fn load(&self, shared: &Shared) -> Result<()> {
        let address = shared.addresses[0];
        let failed = |why: &str| Error::unavailable(format!("{address}: the load: {why}"));
        let broken = |failure: Failure| failed(failure.as_str());
        let mut door = Door::open(address, PATIENCE).map_err(broken)?;
        let keys = locked(&self.ledger).len();
        for first in (0..keys).step_by(PIPELINE) {
            let batch = first..keys.min(first + PIPELINE);
            let mut requests = Vec::new();
            batch.clone().for_each(|key| self.put_set(shared, key, 0, &mut requests));
            door.send(&requests).map_err(broken)?;
            for _ in batch {
                match door.receive(PATIENCE).map_err(broken)? {
                    Reply::Simple(_) => {}
                    other => return Err(failed(&format!("{other:?}"))),
                }
            }
            if shared.stop.load(Relaxed) {
                return Err(Error::unavailable("interrupted"));
            }
        }
        Ok(())
    }

    fn put_set(&self, shared: &Shared, number: usize, version: u64, out: &mut Vec<u8>) {
        let record = self.record(number);
        let mut value = Vec::with_capacity(shared.values.len_of(record));
        shared.values.put(record, version, &mut value);
        encode_request(&[&b"SET"[..], &key(record), &value], out);
    }

    /// The writer, until it is told to stop.
    fn write(&self, shared: &Shared) {
        let mut client = Client::new(shared, self.number);
        let mut random = Random::new(self.number as u64 * 2 + 1);
        let mut request = Vec::new();
        while !shared.stop.load(Relaxed) {
            client.follow_round(shared);
            let (number, version) = {
                let mut ledger = locked(&self.ledger);
                if ledger.retired().len() * 2 > ledger.len() {
                    drop(ledger);
                    shared.violated(self.record(0), client.doors.at(), TOO_FEW_KEYS);
                    return;
                }
                let number = loop {
                    let number = random.below(ledger.len() as u64) as usize;
                    if !ledger.is_retired(number) {
                        break number;
                    }
                };
                (number, ledger.begin_write(number))
            };
            request.clear();
            self.put_set(shared, number, version, &mut request);
            let (door, begun) = (client.doors.at(), shared.epoch.elapsed());
            let reply = client.doors.call(&request);
            let at = shared.epoch.elapsed();
            let mut ledger = locked(&self.ledger);
            let judged = match reply {
                Ok(_) => {
                    ledger.acknowledge(number, version, at);
                    self.writes.answered(begun, at);
                    Ok(())
                }
                Err(failure) => {
                    self.writes.failed(failure);
                    match failure.may_be_made() {
                        true => {
                            ledger.retire(number);
                            Ok(())
                        }
                        false => ledger.refuse(number, version),
                    }
                }
            };
            drop(ledger);
            if let Err(what) = judged {
                shared.violated(self.record(number), door, &what);
            }
            let mut recent = locked(&self.recent);
            recent.push_back(number);
            if recent.len() > RECENT_MAX {
                recent.pop_front();
            }
        }
    }

    /// The reader, until it is told to stop.
    fn read(&self, shared: &Shared) {
        // Another door than the writer's, so that both kinds use all of them.
        let mut client = Client::new(shared, self.number + 1);
        let mut random = Random::new(self.number as u64 * 2 + 2);
        let mut request = Vec::new();
        while !shared.stop.load(Relaxed) {
            client.follow_round(shared);
            let number = self.next_read(&mut random);
            let record = self.record(number);
            let reading = locked(&self.ledger).begin_read(number);
            request.clear();
            encode_request(&[&b"GET"[..], &key(record)], &mut request);
            let (door, begun) = (client.doors.at(), shared.epoch.elapsed());
            match client.doors.call(&request) {
                Err(failure) => self.reads.failed(failure),
                Ok(reply) => {
                    self.reads.answered(begun, shared.epoch.elapsed());
                    let found = version_in(&shared.values, record, &reply);
                    let judged =
                        found.and_then(|found| locked(&self.ledger).end_read(reading, found));
                    if let Err(what) = judged {
                        shared.violated(record, door, &what);
                    }
                }
            }
        }
    }

    /// Half of the reads are of keys that were written last, a quarter of retired ones.
    fn next_read(&self, random: &mut Random) -> usize {
        let choice = random.below(4);
        if choice < 2 {
            let recent = locked(&self.recent);
            if !recent.is_empty() {
                return recent[random.below(recent.len() as u64) as usize];
            }
        }
        let ledger = locked(&self.ledger);
        let retired = ledger.retired();
        match choice {
            2 if !retired.is_empty() => retired[random.below(retired.len() as u64) as usize],
            _ => random.below(ledger.len() as u64) as usize,
        }
    }

    /// Reads every key through a door, while nobody writes. Returns how many.
    ///
    /// # Errors
    /// The door fails; a violation is noted in `shared`.
    pub(super) fn read_back(&self, shared: &Shared, door: usize) -> Result<usize> {
        let address = shared.addresses[door];
        let failed = |why: &str| Error::unavailable(format!("{address}: reading back: {why}"));
        let broken = |failure: Failure| failed(failure.as_str());
        let mut open = Door::open(address, PATIENCE).map_err(broken)?;
        let mut ledger = locked(&self.ledger);
        for first in (0..ledger.len()).step_by(PIPELINE) {
            let batch = first..ledger.len().min(first + PIPELINE);
            let mut requests = Vec::new();
            for number in batch.clone() {
                encode_request(&[&b"GET"[..], &key(self.record(number))], &mut requests);
            }
            open.send(&requests).map_err(broken)?;
            for number in batch {
                let reply = open.receive(PATIENCE).map_err(broken)?;
                if let Reply::Error(error) = &reply {
                    return Err(failed(&String::from_utf8_lossy(error)));
                }
                let (record, reading) = (self.record(number), ledger.begin_read(number));
                let found = version_in(&shared.values, record, &reply);
                if let Err(what) = found.and_then(|found| ledger.end_read(reading, found)) {
                    shared.violated(record, door, &format!("at the end: {what}"));
                    return Ok(number);
                }
            }
        }
        Ok(ledger.len())
    }

    /// How many keys have a write of which nobody knows whether it was made.
    pub(super) fn retired(&self) -> usize {
        locked(&self.ledger).retired().len()
    }
}

/// The end of a run whose clients lost too many writes to go on: a larger --records helps.
const TOO_FEW_KEYS: &str = "of more than half of the keys of a client nobody knows the last write";

/// The version that a reply of GET shows.
fn version_in(values: &Values, record: u64, reply: &Reply) -> Result<Option<u64>, String> {
    match reply {
        Reply::Null => Ok(None),
        Reply::Bulk(value) => match values.check(record, value) {
            Ok(version) => Ok(Some(version)),
            Err(wrong) => Err(format!("expected a value that was written, found one that {wrong}")),
        },
        other => Err(format!("expected a value, found {other:?}")),
    }
}

/// A thread's way to the doors, which begins anew in each round.
struct Client {
    doors: Doors,
    own: usize,
    round: u64,
}

impl Client {
    fn new(shared: &Shared, own: usize) -> Self {
        let doors = Doors::new(&shared.addresses, own, shared.patience);
        Self { doors, own, round: shared.round.load(Relaxed) }
    }

    fn follow_round(&mut self, shared: &Shared) {
        let round = shared.round.load(Relaxed);
        if round != self.round {
            self.round = round;
            self.doors.restart(self.own);
        }
    }
}

/// The threads of all pairs. They stop when this is dropped, too.
pub(super) struct Clients {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    pub(super) fn start(shared: &Arc<Shared>, pairs: &[Arc<Pair>]) -> Result<Self> {
        let mut clients = Self { shared: Arc::clone(shared), threads: Vec::new() };
        for pair in pairs {
            for body in [Pair::write, Pair::read] {
                let (pair, shared) = (Arc::clone(pair), Arc::clone(shared));
                let thread = std::thread::Builder::new().name("gabion-client".to_owned());
                let thread = thread.spawn(move || body(&pair, &shared));
                clients.threads.push(thread.map_err(|error| {
                    Error::with_source(ErrorKind::Io, "a client's thread cannot start", error)
                })?);
            }
        }
        Ok(clients)
    }

    /// Stops all and waits for their end.
    pub(super) fn stop(mut self) -> Result<()> {
        self.shared.stop.store(true, Relaxed);
        let ends = self.threads.drain(..).map(JoinHandle::join).collect::<Vec<_>>();
        match ends.iter().any(std::thread::Result::is_err) {
            true => Err(Error::invalid("a client's thread panicked")),
            false => Ok(()),
        }
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeCluster, Faults};
    use crate::launch::RunningCluster;
    use gabion_workload::Sizes;

    const LEN: usize = 100;

    /// Loads records, and has clients at work for this long or until there is a violation.
    fn run(faults: Faults, time: Duration) -> (Arc<Shared>, Vec<Arc<Pair>>, FakeCluster) {
        let cluster = FakeCluster::start(3, "primary", Faults::default());
        let values = Values::new(Sizes::one(LEN), 0.0, 1);
        let patience = Duration::from_secs(5);
        let shared = Arc::new(Shared::new(cluster.addresses(), values, patience));
        let pairs: Vec<_> = (0..2).map(|n| Arc::new(Pair::new(n, 2, 1001))).collect();
        pairs.iter().for_each(|pair| pair.load(&shared).unwrap());
        assert_eq!(cluster.keys(), 1001);
        cluster.set(faults);
        let clients = Clients::start(&shared, &pairs).unwrap();
        let begun = Instant::now();
        while begun.elapsed() < time && shared.violation().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        clients.stop().unwrap();
        (shared, pairs, cluster)
    }

    /// The sentence about the violation that a fault of a server makes.
    fn violation_of(faults: Faults) -> String {
        run(faults, Duration::from_secs(60)).0.violation().expect("nobody noticed")
    }

    #[test]
    fn refused_and_unknown_writes_are_no_violation_and_what_is_unknown_retires_its_key() {
        let faults = Faults { refuse_every: 20, ..Faults::default() };
        let (shared, pairs, cluster) = run(faults, Duration::from_millis(500));
        assert_eq!(shared.violation(), None);
        let seen = pairs[0].writes.take();
        assert!(!seen.answers.is_empty());
        let count = |failure| seen.failures.get(&failure).copied().unwrap_or(0);
        let (refused, unknown) = (count(Failure::TryAgain), count(Failure::Unknown));
        assert!(refused > 0 && unknown > 0, "{refused} {unknown}");
        assert_eq!(pairs[0].retired() as u64, unknown);
        cluster.set(Faults::default());
        for door in 0..3 {
            let read: usize = pairs.iter().map(|pair| pair.read_back(&shared, door).unwrap()).sum();
            assert_eq!((read, shared.violation()), (1001, None));
        }
        cluster.forget_one();
        for pair in &pairs {
            pair.read_back(&shared, 0).unwrap();
        }
        assert!(shared.violation().unwrap().contains("at the end: "), "one key is lost");
    }

    #[test]
    fn a_server_that_loses_changes_or_takes_back_writes_is_found_out() {
        let lost = violation_of(Faults { loses: true, ..Faults::default() });
        assert!(lost.contains("found no value, through the door of replica "), "{lost}");
        assert!(lost.ends_with("; injected: nothing"), "{lost}");
        let changed = violation_of(Faults { corrupt_every: 50, ..Faults::default() });
        assert!(changed.contains("differs at byte 99"), "{changed}");
        // Each write is acknowledged and not made.
        let dropped = violation_of(Faults { drops: true, ..Faults::default() });
        assert!(dropped.contains("was acknowledged at "), "{dropped}");
        // Each write is refused and made.
        let faults = Faults { error: Some("TRYAGAIN not now"), makes: true, ..Faults::default() };
        let made = violation_of(faults);
        assert!(made.contains("refused as not made"), "{made}");
    }
}
