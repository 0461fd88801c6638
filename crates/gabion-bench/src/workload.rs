//! The requests of a workload, shared out among threads, and the account of their results.

use crate::args::WorkloadChoice;
use gabion_workload::{Chooser, Latencies, Random};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The version that the load and other inserts write.
pub(crate) const LOADED: u64 = 0;
/// Most records of a scan, as YCSB has it.
const SCAN_MAX: u64 = 100;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Writes a record that was not there.
    Insert = 0,
    /// Reads a record.
    Read = 1,
    /// Writes a record anew.
    Update = 2,
    /// Reads a record, and then writes it anew: two requests with one time for both.
    ReadModifyWrite = 3,
    /// Reads records that follow each other.
    Scan = 4,
}

impl Kind {
    /// Every kind, in the order of the report.
    pub(crate) const ALL: [Self; 5] =
        [Self::Insert, Self::Read, Self::Update, Self::ReadModifyWrite, Self::Scan];

    /// The name in reports.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Read => "read",
            Self::Update => "update",
            Self::ReadModifyWrite => "read-modify-write",
            Self::Scan => "scan",
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    /// The read of a read-modify-write is done.
    pub(crate) was_read: bool,
    /// Most records of a scan.
    pub(crate) count: u8,
    pub(crate) record: u64,
    /// The version of the written value.
    pub(crate) version: u64,
    /// When it was handed to the socket for the first time.
    pub(crate) sent: Option<Instant>,
}

impl Op {
    /// Whether it goes to the tail.
    pub(crate) const fn is_read(&self) -> bool {
        match self.kind {
            Kind::Read | Kind::Scan => true,
            Kind::Insert | Kind::Update => false,
            Kind::ReadModifyWrite => !self.was_read,
        }
    }
}

/// Records that are inserted beside reads. They are acknowledged in any order; reads may ask only
/// for records before which all are acknowledged.
#[derive(Debug)]
struct Inserts {
    /// Number of the next.
    next: AtomicU64,
    /// All records before this one are there.
    there: AtomicU64,
    /// Records that are there behind a missing one.
    early: Mutex<BTreeSet<u64>>,
}

/// The common source of requests of all threads of a workload.
#[derive(Debug)]
pub(crate) struct Supply {
    workload: WorkloadChoice,
    total: u64,
    taken: AtomicU64,
    chooser: Chooser,
    inserts: Inserts,
    /// The version that its first request writes if it is an update; the `n`-th writes the `n`-th
    /// after it. So no two requests write the same.
    versions_from: u64,
}

impl Supply {
    /// `total` requests of a workload over the records of `chooser`; `records` of them exist.
    pub(crate) fn new(
        workload: WorkloadChoice,
        total: u64,
        chooser: Chooser,
        records: u64,
    ) -> Self {
        let inserts = Inserts {
            next: AtomicU64::new(records),
            there: AtomicU64::new(records),
            early: Mutex::default(),
        };
        let taken = AtomicU64::new(0);
        Self { workload, total, taken, chooser, inserts, versions_from: LOADED + 1 }
    }

    /// The same after so many requests of other workloads.
    pub(crate) fn after(self, requests: u64) -> Self {
        Self { versions_from: LOADED + 1 + requests, ..self }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Gives out nothing more: the time of a run without a number of requests is over.
    pub(crate) fn end(&self) {
        self.taken.fetch_max(self.total, Ordering::Relaxed);
    }

    /// Existing records.
    pub(crate) fn records(&self) -> u64 {
        self.inserts.there.load(Ordering::Acquire)
    }

    /// An insert was acknowledged.
    pub(crate) fn inserted(&self, record: u64) {
        if self.workload == WorkloadChoice::Load {
            return;
        }
        let mut early = self.inserts.early.lock().unwrap_or_else(PoisonError::into_inner);
        early.insert(record);
        let mut there = self.inserts.there.load(Ordering::Relaxed);
        while early.remove(&there) {
            there += 1;
        }
        self.inserts.there.store(there, Ordering::Release);
    }
}

/// One thread's hand in the supply.
#[derive(Debug)]
pub(crate) struct Hand<'a> {
    pub(crate) supply: &'a Supply,
    random: Random,
}

impl<'a> Hand<'a> {
    /// Thread `thread`'s hand. `phase` counts the workloads of a run.
    pub(crate) fn new(supply: &'a Supply, seed: u64, phase: u64, thread: u64) -> Self {
        let own = (phase + 1) << 56 | thread << 40;
        Self { supply, random: Random::new(seed ^ own) }
    }

    /// The next request, if one is left.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Op> {
        let supply = self.supply;
        let number = supply.taken.fetch_add(1, Ordering::Relaxed);
        if number >= supply.total {
            return None;
        }
        let op = |kind, record| Op {
            kind,
            was_read: false,
            count: 0,
            record,
            version: LOADED,
            sent: None,
        };
        let Some(mix) = supply.workload.mix() else { return Some(op(Kind::Insert, number)) };
        let mut dice = self.random.below(100);
        let mut is = |share: u64| {
            let hit = dice < share;
            dice = dice.wrapping_sub(share);
            hit
        };
        if is(mix.inserts) {
            return Some(op(Kind::Insert, supply.inserts.next.fetch_add(1, Ordering::Relaxed)));
        }
        let record = supply.chooser.next_of(supply.records(), &mut self.random);
        let version = supply.versions_from + number;
        Some(if is(mix.updates) {
            Op { version, ..op(Kind::Update, record) }
        } else if is(mix.scans) {
            Op { count: 1 + self.random.below(SCAN_MAX) as u8, ..op(Kind::Scan, record) }
        } else if is(mix.read_modify_writes) {
            Op { version, ..op(Kind::ReadModifyWrite, record) }
        } else {
            op(Kind::Read, record)
        })
    }
}

/// Most wrong reads that are kept in words.
const EXAMPLES_MAX: usize = 5;

/// The results of requests.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    latencies: [Latencies; Kind::ALL.len()],
    /// Refusals that were tried again, by the code of the error.
    pub(crate) refusals: BTreeMap<String, u64>,
    /// Reads that returned something that nobody had written, or nothing.
    pub(crate) wrong: u64,
    /// The first of them in words.
    pub(crate) examples: Vec<String>,
    /// Processor seconds of the threads that drove the clients.
    pub(crate) cpu_seconds: f64,
    /// Bytes of keys and values that were written and acknowledged.
    pub(crate) written_bytes: u64,
    /// The same of those that were read.
    pub(crate) read_bytes: u64,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            latencies: std::array::from_fn(|_| Latencies::new()),
            refusals: BTreeMap::new(),
            wrong: 0,
            examples: Vec::new(),
            cpu_seconds: 0.0,
            written_bytes: 0,
            read_bytes: 0,
        }
    }

    /// A request that was answered.
    #[inline]
    pub(crate) fn record(&mut self, kind: Kind, latency: Duration) {
        self.latencies[kind as usize].record(latency);
    }

    /// A read that returned something wrong.
    pub(crate) fn mismatch(&mut self, what: String) {
        self.wrong += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(what);
        }
    }

    /// A request that was refused and will be tried again.
    pub(crate) fn refusal(&mut self, code: &str) {
        match self.refusals.get_mut(code) {
            Some(count) => *count += 1,
            None => {
                self.refusals.insert(code.to_owned(), 1);
            }
        }
    }

    /// Adds another thread's counts.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.latencies.iter_mut().zip(&other.latencies) {
            mine.merge(theirs);
        }
        for (code, count) in &other.refusals {
            *self.refusals.entry(code.clone()).or_default() += count;
        }
        self.wrong += other.wrong;
        let room = EXAMPLES_MAX - self.examples.len();
        self.examples.extend(other.examples.iter().take(room).cloned());
        self.cpu_seconds += other.cpu_seconds;
        self.written_bytes += other.written_bytes;
        self.read_bytes += other.read_bytes;
    }

    /// Answered requests of a kind.
    pub(crate) fn count(&self, kind: Kind) -> u64 {
        self.latencies[kind as usize].count()
    }

    /// The latencies of requests of all kinds.
    pub(crate) fn latencies(&self) -> Latencies {
        let mut all = Latencies::new();
        self.latencies.iter().for_each(|of_kind| all.merge(of_kind));
        all
    }

    /// Answered requests.
    pub(crate) fn total(&self) -> u64 {
        self.latencies.iter().map(Latencies::count).sum()
    }

    /// The latency in microseconds below which this share of the requests of a kind stayed.
    pub(crate) fn latency_us(&self, kind: Kind, share: f64) -> f64 {
        self.latencies[kind as usize].quantile_us(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_workload::Distribution;

    fn supply(workload: WorkloadChoice, total: u64) -> Supply {
        Supply::new(workload, total, Chooser::new(Distribution::Zipfian, 100), 100)
    }

    #[test]
    fn the_load_names_every_record_once_whoever_takes_it() {
        let supply = supply(WorkloadChoice::Load, 100);
        let mut hands = [Hand::new(&supply, 1, 0, 0), Hand::new(&supply, 1, 0, 1)];
        let mut records = Vec::new();
        while let Some(op) = hands[records.len() % 2].next() {
            assert_eq!((op.kind, op.version), (Kind::Insert, LOADED));
            records.push(op.record);
        }
        assert_eq!(records, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn workload_a_is_half_updates_each_with_a_version_of_its_own() {
        let supply = supply(WorkloadChoice::A, 10_000);
        let mut hands = [Hand::new(&supply, 1, 1, 0), Hand::new(&supply, 1, 1, 1)];
        let (mut versions, mut taken) = (Vec::new(), 0_usize);
        while let Some(op) = hands[taken % 2].next() {
            taken += 1;
            assert!(op.record < 100);
            if op.kind == Kind::Update {
                versions.push(op.version);
            }
        }
        assert_eq!(taken, 10_000);
        assert!((4_800..5_200).contains(&versions.len()), "{}", versions.len());
        let count = versions.len();
        versions.sort_unstable();
        versions.dedup();
        assert_eq!(versions.len(), count);
        assert!(!versions.contains(&LOADED));
        assert!(versions.last() <= Some(&10_000), "as few bits as the requests need");
        let later = self::supply(WorkloadChoice::G, 10).after(10_000);
        let first = Hand::new(&later, 1, 2, 0).next().unwrap();
        assert_eq!(first.version, 10_001, "none of an earlier workload");
    }

    #[test]
    fn workload_c_only_reads() {
        let supply = supply(WorkloadChoice::C, 1000);
        let mut hand = Hand::new(&supply, 1, 1, 0);
        let ops: Vec<_> = std::iter::from_fn(|| hand.next()).collect();
        assert_eq!(ops.len(), 1000);
        assert!(ops.iter().all(|op| op.kind == Kind::Read));
    }

    #[test]
    fn what_is_asked_for_while_others_insert_is_there_already() {
        let supply = supply(WorkloadChoice::D, 10_000);
        let mut hand = Hand::new(&supply, 1, 1, 0);
        let mut waiting = Vec::new();
        while let Some(op) = hand.next() {
            match op.kind {
                Kind::Insert => waiting.push(op.record),
                Kind::Read => assert!(!waiting.contains(&op.record), "{}", op.record),
                other => panic!("{other:?} in workload D"),
            }
            // Acknowledged in threes, the last first.
            if waiting.len() == 3 {
                waiting.drain(..).rev().for_each(|record| supply.inserted(record));
            }
        }
        let inserted = supply.records() - 100;
        assert!((400..600).contains(&inserted), "{inserted}");
    }

    #[test]
    fn every_workload_has_the_shares_that_its_mix_says() {
        use WorkloadChoice::{B, E, F, G};
        let shares = |workload| {
            let supply = supply(workload, 10_000);
            let mut hand = Hand::new(&supply, 1, 1, 0);
            let ops: Vec<Op> = std::iter::from_fn(|| hand.next()).collect();
            assert!(ops.iter().all(|op| (op.kind == Kind::Scan) == (1..=100).contains(&op.count)));
            let count = |kind| ops.iter().filter(|op| op.kind == kind).count();
            Kind::ALL.map(|kind| (count(kind) as f64 / 1_000.0).round() * 10.0)
        };
        // 5 % are half of the rounding unit.
        let [inserts, reads, updates, both, scans] = shares(F);
        assert_eq!([inserts, reads, updates, both, scans], [0.0, 50.0, 0.0, 50.0, 0.0]);
        assert_eq!(shares(G), [0.0, 0.0, 100.0, 0.0, 0.0]);
        assert!((90.0..=100.0).contains(&shares(B)[1]) && shares(B)[2] <= 10.0);
        assert!((90.0..=100.0).contains(&shares(E)[4]) && shares(E)[0] <= 10.0);
    }

    #[test]
    fn what_threads_counted_adds_up() {
        let (mut a, mut b) = (Tally::new(), Tally::new());
        for us in 1..=99 {
            a.record(Kind::Read, Duration::from_micros(us));
        }
        b.record(Kind::Read, Duration::from_micros(100));
        b.record(Kind::Update, Duration::from_secs(10_000));
        b.refusal("TRYAGAIN");
        for i in 0..7 {
            b.mismatch(format!("read {i}"));
        }
        a.merge(&b);
        assert_eq!((a.count(Kind::Read), a.count(Kind::Update)), (100, 1));
        assert!((a.latency_us(Kind::Read, 0.5) - 50.0).abs() < 0.1);
        assert!((a.latency_us(Kind::Read, 0.99) - 99.0).abs() < 0.1);
        assert_eq!((a.wrong, a.examples.len(), a.refusals["TRYAGAIN"]), (7, 5, 1));
    }
}
