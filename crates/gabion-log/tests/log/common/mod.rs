//! A replica's worth of surroundings for a log: a ring that outlives it, a disk of segments that
//! forgets what was not flushed, and a loop that drains.
#![allow(unreachable_pub, reason = "helpers of the tests of this program")]

use gabion_base::{FileId, GroupId, LogPosition, Result, SequenceNumber, ShardId, Term};
use gabion_log::{
    Anchor, Appended, Drain, Log, LogConfig, LogKind, Record, RecordFlags, RecordKind,
    RecoveryInput, RecoveryReport, SegmentSource, Span, Stamp, recover,
};
use gabion_media::{Bytes, MemoryRegion};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

pub const SECTOR: usize = 512;

/// Runs a future that never waits.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("nothing here waits"),
    }
}

pub fn config(segment_len: u64, segments: u64) -> LogConfig {
    LogConfig {
        group: GroupId(7),
        shard: ShardId(0),
        ring_len: segment_len * segments,
        segment_len,
        kind: LogKind::Shared,
    }
}

/// That of a group of one, whose log has short headers.
pub fn alone(config: LogConfig) -> LogConfig {
    LogConfig { kind: LogKind::Private, ..config }
}

/// Memory that is still there after the log that used it is gone.
#[derive(Clone)]
pub struct SharedRing(Arc<Mutex<Vec<u8>>>);

impl SharedRing {
    pub fn new(len: u64) -> Self {
        Self(Arc::new(Mutex::new(vec![0; len as usize])))
    }

    pub fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap()
    }

    pub fn boxed(&self) -> Box<dyn MemoryRegion> {
        Box::new(self.clone())
    }

    /// A copy with a life of its own.
    pub fn fork(&self) -> Self {
        Self(Arc::new(Mutex::new(self.bytes().clone())))
    }

    pub fn fill(&self, byte: u8) {
        self.bytes().fill(byte);
    }
}

impl MemoryRegion for SharedRing {
    fn len(&self) -> u64 {
        self.bytes().len() as u64
    }
    fn write(&mut self, offset: u64, data: &[u8]) {
        self.bytes()[offset as usize..][..data.len()].copy_from_slice(data);
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes()[offset as usize..][..into.len()]);
    }
}

/// Segments: `now` is what reads see, `safe` what a power cut leaves.
#[derive(Clone, Default)]
pub struct Disk {
    pub segment_len: usize,
    pub now: BTreeMap<u64, Vec<u8>>,
    pub safe: BTreeMap<u64, Vec<u8>>,
    /// Sectors written since the last flush: (segment, offset).
    pub loose: Vec<(u64, usize)>,
}

impl Disk {
    pub fn new(segment_len: u64) -> Self {
        Self { segment_len: segment_len as usize, ..Self::default() }
    }

    pub fn write(&mut self, drain: &Drain) {
        let (number, offset) = (drain.segment.number, drain.offset_in_segment as usize);
        let segment = self.now.entry(number).or_insert_with(|| vec![0; self.segment_len]);
        segment[offset..offset + drain.data.len()].copy_from_slice(&drain.data);
        self.loose.extend((0..drain.data.len()).step_by(SECTOR).map(|o| (number, offset + o)));
    }

    pub fn flush(&mut self) {
        self.safe = self.now.clone();
        self.loose.clear();
    }

    /// Of the sectors that were not flushed, those survive for which `keep` says so.
    pub fn cut_power(&mut self, mut keep: impl FnMut() -> bool) {
        let mut after = self.safe.clone();
        for (number, offset) in std::mem::take(&mut self.loose) {
            if keep() {
                let segment = after.entry(number).or_insert_with(|| vec![0; self.segment_len]);
                segment[offset..offset + SECTOR]
                    .copy_from_slice(&self.now[&number][offset..offset + SECTOR]);
            }
        }
        self.now = after.clone();
        self.safe = after;
    }

    /// The byte of the log at a position, to break it.
    pub fn byte(&mut self, position: u64) -> &mut u8 {
        let (number, offset) =
            (position / self.segment_len as u64, position as usize % self.segment_len);
        &mut self.now.get_mut(&number).unwrap()[offset]
    }
}

impl SegmentSource for Disk {
    async fn read(&self, segment: FileId, offset: u64, len: usize) -> Result<Option<Bytes>> {
        let Some(bytes) = self.now.get(&segment.number) else { return Ok(None) };
        let offset = offset as usize;
        let end = (offset + len).min(bytes.len());
        Ok(Some(Bytes::copy_from_slice(&bytes[offset.min(end)..end])))
    }
}

/// Drains what can be drained, without a flush.
pub fn drain(log: &mut Log, disk: &mut Disk, force: bool) {
    while let Some(order) = log.next_drain(force) {
        disk.write(&order);
        log.drained(order.end);
    }
}

pub fn drain_and_flush(log: &mut Log, disk: &mut Disk) {
    drain(log, disk, true);
    let end = log.drained_end();
    disk.flush();
    log.flushed(end);
}

pub fn stamp(n: u64, flags: RecordFlags) -> Stamp {
    Stamp { first_sequence: SequenceNumber(n), count: 1, now_ms: n, flags }
}

/// Appends a batch of `len` bytes that tell `n`, draining when the ring is full.
pub fn append(log: &mut Log, disk: &mut Disk, n: u64, len: usize, flags: RecordFlags) -> Appended {
    let payload: Vec<u8> = (0..len).map(|i| (n as usize * 31 + i) as u8).collect();
    match log.append(RecordKind::Batch, &payload, stamp(n, flags)) {
        Ok(appended) => appended,
        Err(error) => {
            assert_eq!(error.kind(), gabion_base::ErrorKind::NoSpace, "{error}");
            drain_and_flush(log, disk);
            log.append(RecordKind::Batch, &payload, stamp(n, flags)).unwrap()
        }
    }
}

pub fn input(spans: &[Span], start: Anchor) -> RecoveryInput {
    RecoveryInput { spans: spans.to_vec(), start, durable: LogPosition::ZERO, repair: false }
}

pub fn open(
    config: LogConfig,
    ring: &SharedRing,
    disk: &Disk,
    input: RecoveryInput,
) -> Result<(Log, RecoveryReport)> {
    now(recover(config, ring.boxed(), input, disk))
}

/// Everything that recovery found, in order.
pub fn take_recovered(log: &mut Log, disk: &Disk) -> Vec<Record> {
    let mut records = Vec::new();
    while let Some(record) = now(log.next_recovered(disk)).unwrap() {
        records.push(record);
    }
    records
}

pub fn new_log(config: LogConfig, ring: &SharedRing) -> Log {
    Log::create(config, ring.boxed(), Term(1), Anchor::START).unwrap()
}

pub fn records(appended: Appended) -> impl Iterator<Item = Record> {
    appended.pad.into_iter().chain([appended.record])
}

/// `cases` runs, or what PROPTEST_CASES says; no files are left behind.
pub fn proptest_config(cases: u32) -> proptest::prelude::ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(cases);
    proptest::prelude::ProptestConfig { cases, failure_persistence: None, ..Default::default() }
}
