//! The requests of a workload, shared out among threads, and the account of how they went.

use crate::args::WorkloadChoice;
use gabion_workload::{Chooser, Latencies, Random};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The version that the load writes.
pub(crate) const LOADED: u64 = 0;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Writes a record that was not there.
    Insert = 0,
    /// Reads a record.
    Read = 1,
    /// Writes a record anew.
    Update = 2,
}

impl Kind {
    /// Every kind, in the order of the report.
    pub(crate) const ALL: [Self; 3] = [Self::Insert, Self::Read, Self::Update];

    /// As it is named in reports.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Read => "read",
            Self::Update => "update",
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    pub(crate) record: u64,
    /// Of the value that is written.
    pub(crate) version: u64,
    /// When it was handed to the socket for the first time.
    pub(crate) sent: Option<Instant>,
}

/// What all threads of a workload take their requests from.
#[derive(Debug)]
pub(crate) struct Supply {
    workload: WorkloadChoice,
    total: u64,
    taken: AtomicU64,
    chooser: Chooser,
}

impl Supply {
    /// `total` requests of a workload over the records of `chooser`.
    pub(crate) fn new(workload: WorkloadChoice, total: u64, chooser: Chooser) -> Self {
        Self { workload, total, taken: AtomicU64::new(0), chooser }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }
}

/// One thread's hand in the supply.
#[derive(Debug)]
pub(crate) struct Hand<'a> {
    supply: &'a Supply,
    random: Random,
    /// Version of the next update: the thread in the upper bits, so that no other thread has it.
    version: u64,
}

impl<'a> Hand<'a> {
    /// Thread `thread`'s hand. `phase` counts the workloads of a run.
    pub(crate) fn new(supply: &'a Supply, seed: u64, phase: u64, thread: u64) -> Self {
        let version = (phase + 1) << 56 | thread << 40;
        Self { supply, random: Random::new(seed ^ version), version }
    }

    /// The next request, if one is left.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Op> {
        let number = self.supply.taken.fetch_add(1, Ordering::Relaxed);
        if number >= self.supply.total {
            return None;
        }
        let op = |kind, record, version| Some(Op { kind, record, version, sent: None });
        match self.supply.workload {
            WorkloadChoice::Load => op(Kind::Insert, number, LOADED),
            WorkloadChoice::C => op(Kind::Read, self.supply.chooser.next(&mut self.random), LOADED),
            WorkloadChoice::A => {
                let record = self.supply.chooser.next(&mut self.random);
                if self.random.next() & 1 == 0 {
                    return op(Kind::Read, record, LOADED);
                }
                self.version += 1;
                op(Kind::Update, record, self.version)
            }
        }
    }
}

/// Wrong reads that are kept in words.
const EXAMPLES_MAX: usize = 5;

/// How requests went.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    latencies: [Latencies; 3],
    /// Refusals that were tried again, by the code of the error.
    pub(crate) refusals: BTreeMap<String, u64>,
    /// Reads that returned what nobody had written, or nothing.
    pub(crate) wrong: u64,
    /// The first of them in words.
    pub(crate) examples: Vec<String>,
    /// Processor seconds of the threads that drove the clients.
    pub(crate) cpu_seconds: f64,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            latencies: [Latencies::new(), Latencies::new(), Latencies::new()],
            refusals: BTreeMap::new(),
            wrong: 0,
            examples: Vec::new(),
            cpu_seconds: 0.0,
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

    /// Adds what another thread counted.
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
    }

    /// Answered requests of a kind.
    pub(crate) fn count(&self, kind: Kind) -> u64 {
        self.latencies[kind as usize].count()
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
        Supply::new(workload, total, Chooser::new(Distribution::Zipfian, 100))
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
