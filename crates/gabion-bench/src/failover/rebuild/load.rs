//! The clients: threads with one request under way, as fast as they are answered or so many a
//! second. A paced request counts from when it was due, so that one that is answered late makes
//! those behind it late as well.

use super::args::RebuildArgs;
use crate::failover::door::{Door, Doors, Failure};
use crate::failover::samples::{Answer, Kind, Samples, merged};
use crate::keys::{KEY_LEN, key};
use gabion_base::{Error, ErrorKind, Result};
use gabion_resp::{Reply, encode_request};
use gabion_workload::{Random, Sizes, Values};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Requests under way of a connection that loads.
const PIPELINE: u64 = 256;
const PATIENCE: Duration = Duration::from_secs(30);

/// How fast clients ask.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// As fast as they are answered.
    Full,
    /// So many requests a second, all clients together.
    PerSecond(f64),
}

/// The values, doors and numbers that all clients share.
pub(super) struct Load {
    addresses: Vec<SocketAddr>,
    values: Arc<Values>,
    records: u64,
    clients: usize,
}

impl Load {
    pub(super) fn new(args: &RebuildArgs, addresses: Vec<SocketAddr>) -> Self {
        let record_len = args.value_size + KEY_LEN as u64;
        Self {
            addresses,
            values: Arc::new(Values::new(Sizes::one(args.value_size as usize), 0.0, 1)),
            records: (args.bytes / record_len).max(1),
            clients: args.clients as usize,
        }
    }

    /// Writes every record once, by as many threads as there are clients.
    pub(super) fn fill(&self, interrupted: &AtomicBool) -> Result<()> {
        let share = self.records.div_ceil(self.clients as u64);
        std::thread::scope(|scope| {
            let parts = (0..self.clients as u64).map(|n| {
                let (from, to) = (n * share, ((n + 1) * share).min(self.records));
                scope.spawn(move || self.fill_part(from, to, interrupted))
            });
            let parts: Vec<_> = parts.collect();
            let failed = |_| Error::invalid("a thread that loads panicked");
            parts.into_iter().try_for_each(|part| part.join().map_err(failed)?)
        })
    }

    fn fill_part(&self, from: u64, to: u64, interrupted: &AtomicBool) -> Result<()> {
        let address = self.addresses[0];
        let failed = |why: &str| Error::unavailable(format!("{address}: the load: {why}"));
        let broken = |failure: Failure| failed(failure.as_str());
        let mut door = Door::open(address, PATIENCE).map_err(broken)?;
        let mut at = from;
        while at < to {
            let end = to.min(at + PIPELINE);
            let mut requests = Vec::new();
            (at..end).for_each(|record| put_set(&self.values, record, 0, &mut requests));
            door.send(&requests).map_err(broken)?;
            for _ in at..end {
                match door.receive(PATIENCE).map_err(broken)? {
                    Reply::Simple(_) => {}
                    other => return Err(failed(&format!("{other:?}"))),
                }
            }
            if interrupted.load(Relaxed) {
                return Err(Error::unavailable("interrupted"));
            }
            at = end;
        }
        Ok(())
    }

    /// Starts the clients: every other one writes.
    pub(super) fn start(&self, pace: Pace) -> Result<Clients> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            epoch: Instant::now(),
            samples: (0..self.clients).map(|_| Samples::default()).collect(),
        });
        let since = Mutex::new(Instant::now());
        let mut clients = Clients { shared, since, threads: Vec::new() };
        for number in 0..self.clients {
            let mut client = Client {
                doors: Doors::new(&self.addresses, number / 2, PATIENCE),
                values: self.values.clone(),
                records: self.records,
                random: Random::new(number as u64 + 1),
                kind: if number % 2 == 0 { Kind::Write } else { Kind::Read },
                pause: match pace {
                    Pace::Full => None,
                    Pace::PerSecond(rate) => {
                        Some(Duration::from_secs_f64(self.clients as f64 / rate.max(1.0)))
                    }
                },
            };
            let shared = clients.shared.clone();
            let thread = std::thread::Builder::new().name("gabion-client".to_owned());
            let thread = thread.spawn(move || client.run(&shared, number));
            clients.threads.push(thread.map_err(|error| {
                Error::with_source(ErrorKind::Io, "a client's thread cannot start", error)
            })?);
        }
        Ok(clients)
    }
}

fn put_set(values: &Values, record: u64, version: u64, out: &mut Vec<u8>) {
    let mut value = Vec::with_capacity(values.len_of(record));
    values.put(record, version, &mut value);
    encode_request(&[&b"SET"[..], &key(record), &value], out);
}

struct Shared {
    stop: AtomicBool,
    epoch: Instant,
    samples: Vec<Samples>,
}

/// The answers that clients had in a period.
pub(super) struct SeenAll {
    writes: Vec<Answer>,
    reads: Vec<Answer>,
    pub(super) failed: u64,
    time: Duration,
}

impl SeenAll {
    /// Answers a second.
    pub(super) fn rate(&self) -> f64 {
        (self.writes.len() + self.reads.len()) as f64 / self.time.as_secs_f64().max(1e-9)
    }

    pub(super) fn kinds(&self) -> [&[Answer]; 2] {
        [&self.writes, &self.reads]
    }
}

/// The threads of all clients. They stop when this is dropped, too.
pub(super) struct Clients {
    shared: Arc<Shared>,
    since: Mutex<Instant>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    /// The answers since the last call.
    pub(super) fn take(&self) -> SeenAll {
        let now = Instant::now();
        let mut since = crate::failover::client::locked(&self.since);
        let time = now.saturating_duration_since(std::mem::replace(&mut since, now));
        let of = |kind: Kind| {
            let samples = self.shared.samples.iter().skip(kind as usize).step_by(2);
            merged(samples.map(Samples::take))
        };
        let (writes, reads) = (of(Kind::Write), of(Kind::Read));
        let failed = writes.failures.values().chain(reads.failures.values()).sum();
        SeenAll { writes: writes.answers, reads: reads.answers, failed, time }
    }

    /// Stops all, and returns what was seen since [`Self::take`] was called last.
    pub(super) fn stop(mut self) -> Result<SeenAll> {
        let seen = self.take();
        self.shared.stop.store(true, Relaxed);
        let ends = self.threads.drain(..).map(JoinHandle::join).collect::<Vec<_>>();
        match ends.iter().any(std::thread::Result::is_err) {
            true => Err(Error::invalid("a client's thread panicked")),
            false => Ok(seen),
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

struct Client {
    doors: Doors,
    values: Arc<Values>,
    records: u64,
    random: Random,
    kind: Kind,
    /// From one request to the next; none: at once.
    pause: Option<Duration>,
}

impl Client {
    fn run(&mut self, shared: &Shared, number: usize) {
        let samples = &shared.samples[number];
        let mut request = Vec::new();
        // Clients do not all ask at once.
        let first = self.pause.map(|pause| pause.mul_f64(self.random.below(1_000) as f64 / 1e3));
        let mut due = shared.epoch.elapsed() + first.unwrap_or_default();
        while !shared.stop.load(Relaxed) {
            let record = self.random.below(self.records);
            request.clear();
            match self.kind {
                Kind::Write => put_set(&self.values, record, 1, &mut request),
                Kind::Read => encode_request(&[&b"GET"[..], &key(record)], &mut request),
            }
            let begun = match self.pause {
                None => shared.epoch.elapsed(),
                Some(pause) => {
                    std::thread::sleep(due.saturating_sub(shared.epoch.elapsed()));
                    let begun = due;
                    due += pause;
                    begun
                }
            };
            match self.doors.call(&request) {
                Ok(_) => samples.answered(begun, shared.epoch.elapsed()),
                Err(failure) => samples.failed(failure),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::args;
    use super::*;
    use crate::fake::{FakeCluster, Faults};
    use crate::launch::RunningCluster;

    #[test]
    fn clients_ask_so_many_times_a_second_and_count_from_when_a_request_was_due() {
        let cluster = FakeCluster::start(3, "primary", Faults::default());
        let args = args(&["--bytes", "1MiB", "--clients", "4"]);
        let load = Load::new(&args, cluster.addresses());
        load.fill(&AtomicBool::new(false)).unwrap();
        assert_eq!(cluster.keys() as u64, load.records);
        let clients = load.start(Pace::PerSecond(200.0)).unwrap();
        std::thread::sleep(Duration::from_millis(1_000));
        let seen = clients.stop().unwrap();
        let [writes, reads] = seen.kinds();
        assert!(writes.len() > 20 && writes.len() <= 110, "{} writes", writes.len());
        assert!(reads.len() > 20 && reads.len() <= 110, "{} reads", reads.len());
        assert_eq!(seen.failed, 0);
        let full = load.start(Pace::Full).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(full.stop().unwrap().rate() > 220.0, "nothing is held back");
    }
}
