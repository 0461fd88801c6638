//! The threads that make the requests of a workload and check the answers.

use crate::args::Plan;
use crate::choose::Chooser;
use crate::engine::Engine;
use crate::key::{KEY_LEN, Key, KeySpace, Permutation};
use crate::latencies::Latencies;
use crate::ledger::{FIRST, Ledger, wrong_read};
use crate::random::Random;
use crate::workload::{Mix, Workload};
use gabion_base::Result;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Records that one request of `multireadrandom` asks for.
const BATCH: usize = 10;
/// Records that one request of `seekrandom` goes through: the seek and 50 nexts.
const SEEK_RECORDS: u64 = 51;
/// Most records of a scan of YCSB.
const SCAN_MAX: u64 = 100;
/// Bytes of keys and values that the writer of `readwhilewriting` writes in a second.
const WRITER_BYTES_PER_SECOND: f64 = 10e6;
/// Seconds of a slice of a run, whose rate and latencies are told by themselves.
pub(crate) const SLICE_SECONDS: u64 = 10;
/// How long that writer sleeps when it is ahead.
const WRITER_PAUSE: Duration = Duration::from_millis(1);

/// The state that the threads of a workload share.
pub(crate) struct Shared<'a, E> {
    pub(crate) engine: &'a E,
    pub(crate) plan: &'a Plan,
    pub(crate) ledger: &'a Ledger,
    chooser: Chooser,
    order: Permutation,
    /// Records that exist, including those being inserted.
    records: AtomicU64,
    /// Set when the others need not go on.
    stop: AtomicBool,
}

/// The requests, and their results.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Those of requests that ended in the same slice of the run, in order of time.
    pub(crate) slices: Vec<Latencies>,
    pub(crate) operations: u64,
    /// Bytes of keys and values that were written, and that were returned.
    pub(crate) written_len: u64,
    pub(crate) read_len: u64,
    /// The rate of the writer of `readwhilewriting`, in bytes a second; `None` without one.
    pub(crate) writer_len_per_second: Option<f64>,
}

impl Tally {
    fn merge(&mut self, other: &Self) {
        let slices = self.slices.len().max(other.slices.len());
        self.slices.resize_with(slices, Latencies::new);
        for (slice, others) in self.slices.iter_mut().zip(&other.slices) {
            slice.merge(others);
        }
        self.operations += other.operations;
        self.written_len += other.written_len;
        self.read_len += other.read_len;
    }

    /// Those of the whole run.
    pub(crate) fn latencies(&self) -> Latencies {
        let mut all = Latencies::new();
        self.slices.iter().for_each(|slice| all.merge(slice));
        all
    }

    /// Counts a request that ended so long after the run began.
    fn record(&mut self, ended: Duration, latency: Duration) {
        let slice = (ended.as_secs() / SLICE_SECONDS) as usize;
        if slice >= self.slices.len() {
            self.slices.resize_with(slice + 1, Latencies::new);
        }
        self.slices[slice].record(latency);
    }
}

impl<'a, E: Engine> Shared<'a, E> {
    pub(crate) fn new(engine: &'a E, plan: &'a Plan, ledger: &'a Ledger) -> Self {
        Self {
            engine,
            plan,
            ledger,
            chooser: Chooser::new(plan.workload.distribution(), plan.records),
            order: Permutation::new(plan.records, plan.seed),
            records: AtomicU64::new(plan.records),
            stop: AtomicBool::new(false),
        }
    }

    /// Puts every record, in no order of keys, at the first version.
    pub(crate) fn load(&self) -> Result<()> {
        let mut worker = Worker::new(self, 0, 0);
        (0..self.plan.records).try_for_each(|place| worker.write(self.order.at(place), FIRST))
    }

    /// Makes up to `operations` requests of the workload in up to `limit`, and waits for the last
    /// of them. `round` tells the requests of a warm-up from the measured ones.
    pub(crate) fn drive(
        &self,
        operations: u64,
        limit: Option<Duration>,
        round: u64,
    ) -> Result<Tally> {
        let threads = self.plan.workload.threads();
        let end = limit.map(|limit| Instant::now() + limit);
        self.stop.store(false, Ordering::Relaxed);
        let has_writer = self.plan.workload == Workload::Readwhilewriting && round > 0;
        thread::scope(|scope| {
            let writer = has_writer.then(|| scope.spawn(|| self.write_beside(threads, round)));
            let workers: Vec<_> = (0..threads)
                .map(|number| {
                    let share = operations / threads + u64::from(number < operations % threads);
                    scope.spawn(move || self.stop_if_failed(self.work(number, round, share, end)))
                })
                .collect();
            let mut total = Tally::default();
            let mut outcome = Ok(());
            for worker in workers {
                match worker.join().expect("a worker does not panic") {
                    Ok(tally) => total.merge(&tally),
                    Err(error) => outcome = outcome.and(Err(error)),
                }
            }
            self.stop.store(true, Ordering::Relaxed);
            if let Some(writer) = writer {
                let written = writer.join().expect("the writer does not panic")?;
                total.written_len += written.written_len;
                total.writer_len_per_second = written.writer_len_per_second;
            }
            outcome.map(|()| total)
        })
    }

    fn stop_if_failed<T>(&self, outcome: Result<T>) -> Result<T> {
        self.stop.fetch_or(outcome.is_err(), Ordering::Relaxed);
        outcome
    }

    fn work(&self, number: u64, round: u64, share: u64, end: Option<Instant>) -> Result<Tally> {
        let mut worker = Worker::new(self, number, round);
        while worker.tally.operations < share && !self.stop.load(Ordering::Relaxed) {
            worker.step()?;
            if end.is_some_and(|end| worker.last >= end) {
                break;
            }
        }
        Ok(worker.tally)
    }

    /// Writes records anew at a fixed rate until it is stopped.
    fn write_beside(&self, number: u64, round: u64) -> Result<Tally> {
        let mut worker = Worker::new(self, number, round);
        let start = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let due = start.elapsed().as_secs_f64() * WRITER_BYTES_PER_SECOND;
            if worker.tally.written_len as f64 > due {
                thread::sleep(WRITER_PAUSE);
                continue;
            }
            let record = self.chooser.next(&mut worker.random);
            // Its requests are not the counted ones, and it is the only thread that writes.
            self.stop_if_failed(worker.update(record, 0))?;
        }
        let per_second = worker.tally.written_len as f64 / start.elapsed().as_secs_f64();
        Ok(Tally { writer_len_per_second: Some(per_second), ..worker.tally })
    }
}

/// One thread's part of the requests.
struct Worker<'a, E> {
    shared: &'a Shared<'a, E>,
    number: u64,
    keys: KeySpace,
    random: Random,
    value: Vec<u8>,
    tally: Tally,
    begun: Instant,
    /// When the last request returned.
    last: Instant,
}

impl<'a, E: Engine> Worker<'a, E> {
    fn new(shared: &'a Shared<'a, E>, number: u64, round: u64) -> Self {
        Self {
            shared,
            number,
            keys: shared.plan.workload.key_space(),
            random: Random::new(shared.plan.seed ^ (round << 32 | number) << 16),
            value: Vec::new(),
            tally: Tally::default(),
            begun: Instant::now(),
            last: Instant::now(),
        }
    }

    /// Makes a request and measures its time.
    fn timed<T>(&mut self, request: impl FnOnce(&E) -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let outcome = request(self.shared.engine);
        self.last = Instant::now();
        self.tally.record(self.last - self.begun, self.last - start);
        outcome
    }

    /// The next request of the workload.
    fn step(&mut self) -> Result<()> {
        let place = self.tally.operations;
        self.tally.operations += 1;
        match self.shared.plan.workload {
            Workload::Fillseq => self.write(place, FIRST),
            Workload::Fillrandom => self.write(self.shared.order.at(place), FIRST),
            Workload::Deleterandom => self.delete(self.shared.order.at(place)),
            Workload::Overwrite => {
                let record = self.choose();
                self.update(record, self.number)
            }
            Workload::Readrandom | Workload::ReadrandomUncached | Workload::Readwhilewriting => {
                let record = self.choose();
                self.read(record)
            }
            Workload::Readmissing => {
                let record = self.choose();
                self.read_missing(record)
            }
            Workload::Multireadrandom => {
                self.tally.operations += BATCH as u64 - 1;
                self.read_many()
            }
            Workload::Seekrandom => {
                let record = self.random.below(self.shared.plan.records - SEEK_RECORDS + 1);
                self.seek(record)
            }
            workload => self.ycsb(workload.mix().expect("all others are YCSB's")),
        }
    }

    fn ycsb(&mut self, mix: Mix) -> Result<()> {
        let mut dice = self.random.below(100);
        let mut is = |share: u64| {
            let hit = dice < share;
            dice = dice.wrapping_sub(share);
            hit
        };
        if is(mix.inserts) && self.insert()? {
            return Ok(());
        }
        let record = self.choose();
        if is(mix.updates) {
            self.update(record, self.number)
        } else if is(mix.scans) {
            let count = 1 + self.random.below(SCAN_MAX);
            self.scan(record, count as usize)
        } else if is(mix.read_modify_writes) {
            // The record that it may write, so that it reads the same.
            let records = self.shared.records.load(Ordering::Acquire);
            let record = self.shared.ledger.own(record, self.number, records);
            self.read(record)?;
            self.update(record, self.number)
        } else {
            self.read(record)
        }
    }

    fn choose(&mut self) -> u64 {
        let records = self.shared.records.load(Ordering::Acquire);
        self.shared.chooser.next_of(records, &mut self.random)
    }

    fn record_len(&self) -> u64 {
        (KEY_LEN + self.shared.plan.value_len) as u64
    }

    fn write(&mut self, record: u64, version: u32) -> Result<()> {
        let key = self.keys.key(record);
        let mut value = std::mem::take(&mut self.value);
        value.clear();
        self.shared.ledger.values().put(record, u64::from(version), &mut value);
        self.timed(|engine| engine.put(&key, &value))?;
        self.value = value;
        self.shared.ledger.enter(record, version);
        self.tally.written_len += self.record_len();
        Ok(())
    }

    /// Writes the next record at or after `record` that belongs to writer `writer`, at a new
    /// version.
    fn update(&mut self, record: u64, writer: u64) -> Result<()> {
        let records = self.shared.plan.records;
        // Records inserted while the workload runs have one version only.
        let own = self.shared.ledger.own(record.min(records - 1), writer, records);
        let version = self.shared.ledger.announce(writer);
        self.write(own, version)
    }

    /// Inserts a record; false if there is no space to remember more.
    fn insert(&mut self) -> Result<bool> {
        let room = self.shared.ledger.room();
        let next = |records: u64| (records < room).then_some(records + 1);
        let (ordering, records) = (Ordering::AcqRel, &self.shared.records);
        match records.fetch_update(ordering, Ordering::Acquire, next) {
            Ok(record) => self.write(record, FIRST).map(|()| true),
            Err(_) => Ok(false),
        }
    }

    fn delete(&mut self, record: u64) -> Result<()> {
        let key = self.keys.key(record);
        self.timed(|engine| engine.delete(&key))?;
        self.shared.ledger.remove(record);
        self.tally.written_len += KEY_LEN as u64;
        Ok(())
    }

    fn read(&mut self, record: u64) -> Result<()> {
        let key = self.keys.key(record);
        let ledger = self.shared.ledger;
        let floor = ledger.floor(record);
        let mut checked = Ok(());
        let is_there = self.timed(|engine| {
            engine.get(&key, &mut |value| checked = ledger.check(record, floor, value))
        })?;
        if is_there {
            self.tally.read_len += self.record_len();
            return checked;
        }
        Ledger::check_absent(record, floor)
    }

    fn read_missing(&mut self, record: u64) -> Result<()> {
        let key = self.keys.missing(record);
        if self.timed(|engine| engine.get(&key, &mut |_| {}))? {
            return Err(wrong_read(record, "a key behind it, that nobody wrote, is there"));
        }
        Ok(())
    }

    fn read_many(&mut self) -> Result<()> {
        let records: [u64; BATCH] = std::array::from_fn(|_| self.choose());
        let keys: [Key; BATCH] = records.map(|record| self.keys.key(record));
        let ledger = self.shared.ledger;
        let floors = records.map(|record| ledger.floor(record));
        let mut checked = Ok(());
        let mut is_there = [false; BATCH];
        self.timed(|engine| {
            engine.multi_get(&keys, &mut |i, value| {
                is_there[i] = true;
                if checked.is_ok() {
                    checked = ledger.check(records[i], floors[i], value);
                }
            })
        })?;
        for i in 0..BATCH {
            if is_there[i] {
                self.tally.read_len += self.record_len();
            } else {
                Ledger::check_absent(records[i], floors[i])?;
            }
        }
        checked
    }

    /// Goes through existing, successive records, from `record` on.
    fn seek(&mut self, record: u64) -> Result<()> {
        let (keys, ledger) = (self.keys, self.shared.ledger);
        let mut checked = Ok(());
        let mut next = record;
        self.timed(|engine| {
            engine.scan(&keys.key(record), SEEK_RECORDS as usize, &mut |key, value| {
                if checked.is_ok() {
                    checked = if keys.record(key) == Some(next) {
                        ledger.check(next, ledger.floor(next), value)
                    } else {
                        Err(wrong_read(
                            next,
                            &format!("a scan has the key {key:02x?} in its place"),
                        ))
                    };
                }
                next += 1;
            })
        })?;
        self.tally.read_len += (next - record) * self.record_len();
        checked?;
        if next - record == SEEK_RECORDS {
            return Ok(());
        }
        Err(wrong_read(next, "a scan ended before it"))
    }

    /// Goes through up to `count` records from `record` on whose keys are hashes. A left-out record
    /// is not seen here, but when all records are checked after the workload.
    fn scan(&mut self, record: u64, count: usize) -> Result<()> {
        let (keys, ledger) = (self.keys, self.shared.ledger);
        let from = keys.key(record);
        let floor = ledger.floor(record);
        let mut checked = Ok(());
        let mut last: Option<Key> = None;
        let mut seen = 0;
        self.timed(|engine| {
            engine.scan(&from, count, &mut |key, value| {
                if checked.is_ok() {
                    checked = check_scanned(ledger, keys, (&from, floor), &mut last, (key, value));
                }
                seen += 1;
            })
        })?;
        self.tally.read_len += seen as u64 * self.record_len();
        checked?;
        match seen {
            0 => Ledger::check_absent(record, floor),
            _ if seen > count => Err(wrong_read(record, "a scan from it has more than it may")),
            _ => Ok(()),
        }
    }
}

/// Whether an entry of a scan is a record's, after the one before it, with a possible value; and
/// whether the first is the one looked for, if that had been entered.
fn check_scanned(
    ledger: &Ledger,
    keys: KeySpace,
    (from, floor): (&Key, u32),
    last: &mut Option<Key>,
    (key, value): (&[u8], &[u8]),
) -> Result<()> {
    let record = keys.record(key).filter(|record| *record < ledger.room());
    let Some(record) = record else {
        return Err(wrong_read(0, &format!("a scan has the key {key:02x?}, which no record has")));
    };
    let key = keys.key(record);
    match last.replace(key) {
        None if key != *from && floor != 0 => {
            return Err(wrong_read(record, "a scan begins behind the record that it begins with"));
        }
        None if key < *from => return Err(wrong_read(record, "a scan begins before its key")),
        Some(last) if key <= last => return Err(wrong_read(record, "a scan goes backwards")),
        _ => {}
    }
    // Entered before now, not before the scan began: a possibly older value passes.
    ledger.check(record, FIRST, value)
}
