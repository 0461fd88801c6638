//! A log against a model, through kills and power cuts (docs/faults.md E1, E2, E3, R10). A kill
//! loses nothing; a power cut loses nothing that was flushed; what is found is always a prefix.

use crate::common::*;
use gabion_base::{ErrorKind, Term};
use gabion_log::{Anchor, Drain, Log, LogConfig, LogKind, Record, RecordFlags, Resend, Span};
use gabion_media::Bytes;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// A batch of this many bytes.
    Append(usize, RecordFlags),
    /// As many appends of so many bytes.
    Many(usize, usize),
    /// Hands out drains; they end in reverse order.
    Drain(bool),
    Flush,
    /// A flush fails: everything since the last good one is handed out again.
    FlushFails,
    /// At what is durable; in a group of one at any record.
    Trim(prop::sample::Index),
    Resend(usize),
    Kill,
    /// What becomes of the ring, and of each sector that was not flushed.
    PowerCut(RingAfter, u64),
}

#[derive(Clone, Copy, Debug)]
enum RingAfter {
    Kept,
    Zero,
    Garbage,
    /// Every second kilobyte is lost.
    Holes,
}

const CONFIG: fn() -> LogConfig = || config(64 << 10, 3);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let flags = prop_oneof![
        6 => Just(RecordFlags::NONE),
        2 => Just(RecordFlags::BLOCK_END),
        1 => Just(RecordFlags::SEGMENT_END),
        2 => Just(RecordFlags::DURABLE_ACK),
    ];
    let len = prop_oneof![
        6 => 0usize..3000,
        2 => 3900usize..4200,
        2 => 10_000usize..60_000,
        1 => Just(65_536 - 88),
    ];
    let ring = prop_oneof![
        Just(RingAfter::Kept),
        Just(RingAfter::Zero),
        Just(RingAfter::Garbage),
        Just(RingAfter::Holes)
    ];
    let step = prop_oneof![
        12 => (len, flags).prop_map(|(len, flags)| Step::Append(len, flags)),
        3 => (1usize..60, prop_oneof![Just(40), Just(1000)]).prop_map(|(count, len)| Step::Many(count, len)),
        5 => any::<bool>().prop_map(Step::Drain),
        4 => Just(Step::Flush),
        1 => Just(Step::FlushFails),
        1 => any::<prop::sample::Index>().prop_map(Step::Trim),
        2 => (1usize..100_000).prop_map(Step::Resend),
        2 => Just(Step::Kill),
        3 => (ring, any::<u64>()).prop_map(|(ring, seed)| Step::PowerCut(ring, seed)),
    ];
    proptest::collection::vec(step, 1..40)
}

/// The system and what it must be.
struct World {
    config: LogConfig,
    ring: SharedRing,
    disk: Disk,
    log: Log,
    /// All records since `start`, in order.
    model: Vec<Record>,
    start: Anchor,
    spans: Vec<Span>,
    next: u64,
    noise: u64,
}

impl World {
    fn new(config: LogConfig) -> Self {
        let ring = SharedRing::new(config.ring_len);
        let log = new_log(config, &ring);
        let spans = log.spans().to_vec();
        let disk = Disk::new(config.segment_len);
        Self {
            config,
            ring,
            disk,
            log,
            model: vec![],
            start: Anchor::START,
            spans,
            next: 1,
            noise: 1,
        }
    }

    fn append(&mut self, len: usize, flags: RecordFlags) {
        self.next += 1;
        let appended = append(&mut self.log, &mut self.disk, self.next, len, flags);
        let durable = appended.record.header.flags.has(RecordFlags::DURABLE_ACK);
        let end = appended.record.end();
        self.model.extend(records(appended));
        if durable {
            drain_and_flush(&mut self.log, &mut self.disk);
            assert!(self.log.durable_end() >= end, "a forced drain reaches a durable record");
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Append(len, flags) => self.append(len, flags),
            Step::Many(count, len) => (0..count).for_each(|_| self.append(len, RecordFlags::NONE)),
            Step::Drain(force) => self.drain_in_reverse(force),
            Step::Flush => {
                let end = self.log.drained_end();
                self.disk.flush();
                self.log.flushed(end);
            }
            Step::FlushFails => {
                // What was written is gone; a log that cannot write it again says so.
                match self.log.rewind_drain() {
                    Ok(()) => {
                        self.disk.loose.clear();
                        self.disk.now = self.disk.safe.clone();
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
                }
            }
            Step::Trim(at) => self.trim(at),
            // Nobody asks a log that is sent to nobody.
            Step::Resend(_) if self.config.kind == LogKind::Private => {}
            Step::Resend(max) => self.resend(max),
            Step::Kill => self.restart(true),
            Step::PowerCut(ring, seed) => self.power_cut(ring, seed),
        }
        self.check();
    }

    fn drain_in_reverse(&mut self, force: bool) {
        let orders: Vec<Drain> = std::iter::from_fn(|| self.log.next_drain(force)).collect();
        for order in orders.iter().rev() {
            assert!(order.data.len().is_multiple_of(4096) && order.data.len() <= 1 << 20);
            self.disk.write(order);
            self.log.drained(order.end);
        }
    }

    fn trim(&mut self, at: prop::sample::Index) {
        let durable = self.log.durable_end();
        let last = match self.config.kind == LogKind::Private && !self.model.is_empty() {
            true => Some(at.index(self.model.len())),
            false => self.model.iter().rposition(|r| r.end() <= durable),
        };
        let Some(last) = last else { return };
        self.start = self.model[last].anchor();
        self.model.drain(..=last);
        for number in self.log.trim(self.start.position).unwrap() {
            self.disk.now.remove(&number);
            self.disk.safe.remove(&number);
            self.disk.loose.retain(|&(n, _)| n != number);
        }
        self.spans = self.log.spans().to_vec();
        assert!(self.log.durable_end() >= self.start.position);
    }

    fn resend(&mut self, max: usize) {
        let reader = self.log.segment_reader();
        let mut from = self.start.position;
        let mut got = Vec::new();
        for _ in 0..=self.model.len() {
            let bytes: Bytes = match self.log.read(from, max).unwrap() {
                Resend::Bytes(bytes) => bytes,
                Resend::InSegments(range) => {
                    now(reader.read(&self.disk, range.start, max)).unwrap()
                }
                Resend::TooOld => panic!("nothing above the trim position is too old"),
            };
            if bytes.is_empty() {
                break;
            }
            let first = gabion_log::decode_header(&bytes).unwrap();
            from = gabion_base::LogPosition(first.position.get() + bytes.len() as u64);
            got.extend_from_slice(&bytes);
        }
        let all: Vec<u8> = self.model.iter().flat_map(|r| r.bytes.to_vec()).collect();
        assert!(got == all, "resent {} bytes of {}", got.len(), all.len());
    }

    fn noise(&mut self) -> u64 {
        self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.noise >> 33
    }

    fn power_cut(&mut self, after: RingAfter, seed: u64) {
        self.noise = seed;
        let mut ring = std::mem::take(&mut *self.ring.bytes());
        match after {
            RingAfter::Kept => {}
            RingAfter::Zero => ring.fill(0),
            RingAfter::Garbage => ring.iter_mut().for_each(|b| *b = self.noise() as u8),
            RingAfter::Holes => ring.chunks_mut(2048).for_each(|c| c[..1024].fill(0)),
        }
        *self.ring.bytes() = ring;
        let mut disk = std::mem::take(&mut self.disk);
        disk.cut_power(|| self.noise().is_multiple_of(2));
        self.disk = disk;
        self.restart(matches!(after, RingAfter::Kept));
    }

    fn restart(&mut self, ring_kept: bool) {
        let durable = self.log.durable_end();
        let input = || input(&self.spans, self.start);
        // A first recovery that is cut short somewhere, on the same ring and disk.
        let first = open(self.config, &self.ring, &self.disk, input()).unwrap().1.end;
        let (mut log, report) = open(self.config, &self.ring, &self.disk, input()).unwrap();
        assert_eq!(report.end, first, "recovery again ends elsewhere");
        let promised = self.model.iter().rev().map(Record::end).find(|&end| end <= durable);
        assert!(promised.is_none_or(|end| report.end >= end), "{report:?} lost {promised:?}");
        if ring_kept {
            assert_eq!(report.end, self.end_of_model(), "a kill lost something: {report:?}");
        }
        let found = take_recovered(&mut log, &self.disk);
        assert_eq!(report.records, found.len() as u64);
        assert!(self.model.starts_with(&found), "recovery found what was never written");
        self.model.truncate(found.len());
        // Some restarts go on at once, some flush first.
        if self.noise().is_multiple_of(2) {
            let end = log.drained_end();
            self.disk.flush();
            log.flushed(end);
        }
        log.begin_term(Term(log.term().get() + 1)).unwrap();
        self.spans = log.spans().to_vec();
        self.log = log;
    }

    fn end_of_model(&self) -> gabion_base::LogPosition {
        self.model.last().map_or(self.start.position, Record::end)
    }

    fn check(&self) {
        let last = self.log.last();
        assert_eq!(last.end, self.end_of_model());
        assert!(self.log.durable_end() <= self.log.drained_end());
        assert!(self.log.drained_end() <= self.log.end());
        for pair in self.model.windows(2) {
            let (a, b) = (&pair[0].header, &pair[1].header);
            assert_eq!((a.index.next(), a.crc), (b.index, b.previous_crc));
            let says_nothing = b.is_short;
            assert!(says_nothing || b.durable >= a.durable || b.term > a.term);
        }
    }
}

proptest! {
    #![proptest_config(proptest_config(300))]

    /// docs/faults.md: E1, E2, E3, R10, F3, F4
    #[test]
    fn whatever_happens_the_log_is_a_prefix_and_keeps_what_it_promised(
        steps in steps(),
        is_private in any::<bool>(),
    ) {
        let mut world = World::new(if is_private { alone(CONFIG()) } else { CONFIG() });
        for step in &steps {
            world.run(step);
        }
        world.run(&Step::Kill);
    }
}
