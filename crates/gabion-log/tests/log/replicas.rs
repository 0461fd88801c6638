//! Several logs that follow one head at a time: reordering, duplicates, old terms (docs/faults.md
//! R7), fail-over with and without loss of rings (R1–R3), everything dark at once (R10).

use crate::common::*;
use gabion_base::{ErrorKind, LogPosition, Term};
use gabion_log::{
    Anchor, Log, LogConfig, Record, RecordFlags, RecoveryInput, Resend, Span, decode_header,
};
use gabion_media::Bytes;
use proptest::prelude::*;

const CONFIG: fn() -> LogConfig = || config(16 << 10, 4);

struct Member {
    ring: SharedRing,
    disk: Disk,
    log: Log,
    /// What the durable state holds.
    spans: Vec<Span>,
}

impl Member {
    fn new() -> Self {
        let ring = SharedRing::new(CONFIG().ring_len);
        let log = new_log(CONFIG(), &ring);
        let spans = log.spans().to_vec();
        Self { ring, disk: Disk::new(CONFIG().segment_len), log, spans }
    }

    /// Places, draining when the ring is full, and takes what became contiguous.
    fn place(&mut self, bytes: Bytes) -> gabion_base::Result<()> {
        let mut result = self.log.place(bytes.clone());
        while self.log.next_record().is_some() {}
        if result.as_ref().is_err_and(|e| e.kind() == ErrorKind::NoSpace) {
            drain_and_flush(&mut self.log, &mut self.disk);
            result = self.log.place(bytes);
            while self.log.next_record().is_some() {}
        }
        result
    }

    /// About `max` bytes of whole records from `from`.
    fn send(&self, from: LogPosition, max: usize) -> Bytes {
        match self.log.read(from, max).unwrap() {
            Resend::Bytes(bytes) => bytes,
            Resend::InSegments(range) => {
                now(self.log.segment_reader().read(&self.disk, range.start, max)).unwrap()
            }
            Resend::TooOld => panic!("nothing is trimmed"),
        }
    }

    fn all(&self) -> Vec<u8> {
        let (mut whole, mut from) = (Vec::new(), LogPosition(0));
        loop {
            let bytes = self.send(from, 50_000);
            if bytes.is_empty() {
                return whole;
            }
            let first = decode_header(&bytes).unwrap().position;
            from = LogPosition(first.get() + bytes.len() as u64);
            whole.extend_from_slice(&bytes);
        }
    }

    fn follow(&mut self, spans: &[Span]) {
        let planned = self.log.following(spans).unwrap();
        let end = self.log.adopt_spans(spans).unwrap();
        self.spans = self.log.spans().to_vec();
        assert_eq!(planned.spans, self.spans);
        assert!(planned.common <= end);
    }

    /// Restarts; returns whether a rotten middle was found.
    fn restart(&mut self) -> bool {
        let repair = RecoveryInput { repair: true, ..input(&self.spans, Anchor::START) };
        let (mut log, report) = open(CONFIG(), &self.ring, &self.disk, repair).unwrap();
        take_recovered(&mut log, &self.disk);
        let end = log.drained_end();
        self.disk.flush();
        log.flushed(end);
        self.log = log;
        report.rotten.is_some()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append(usize, bool),
    /// To a member, in an order and with duplicates that the seed says.
    Deliver(usize, u64),
    Drain(usize),
    Flush(usize),
    /// An old record arrives once more.
    Replay(usize, usize),
    Kill(usize),
    PowerCut(usize, u64),
    AllDark(u64),
    /// The head is cut off and another takes over; it comes back as a follower.
    Depose,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        10 => (0usize..5000, any::<bool>()).prop_map(|(len, end)| Step::Append(len, end)),
        8 => (0usize..3, any::<u64>()).prop_map(|(m, seed)| Step::Deliver(m, seed)),
        4 => (0usize..3).prop_map(Step::Drain),
        3 => (0usize..3).prop_map(Step::Flush),
        3 => (0usize..3, any::<usize>()).prop_map(|(m, r)| Step::Replay(m, r)),
        1 => (0usize..3).prop_map(Step::Kill),
        1 => (0usize..3, any::<u64>()).prop_map(|(m, seed)| Step::PowerCut(m, seed)),
        1 => any::<u64>().prop_map(Step::AllDark),
        1 => Just(Step::Depose),
    ];
    proptest::collection::vec(step, 1..80)
}

struct Cluster {
    members: Vec<Member>,
    head: usize,
    /// The head's log.
    history: Vec<Record>,
    /// Records that every member has.
    acked: usize,
    /// Every record ever, for replays.
    old: Vec<Record>,
    next: u64,
}

impl Cluster {
    fn new() -> Self {
        let members = (0..3).map(|_| Member::new()).collect();
        let mut cluster =
            Self { members, head: 0, history: vec![], acked: 0, old: vec![], next: 0 };
        cluster.members[0].log.set_members_durable(LogPosition(0));
        cluster
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Append(len, end) => self.append(len, end),
            Step::Deliver(member, seed) => self.deliver(member, seed),
            Step::Drain(member) => {
                let Member { log, disk, .. } = &mut self.members[member];
                drain(log, disk, true);
            }
            Step::Flush(member) => {
                let Member { log, disk, .. } = &mut self.members[member];
                let end = log.drained_end();
                disk.flush();
                log.flushed(end);
            }
            Step::Replay(member, record) => self.replay(member, record),
            Step::Kill(member) => {
                assert!(!self.members[member].restart(), "a kill leaves no rot");
                self.rejoin(member);
            }
            Step::PowerCut(member, seed) => {
                self.power_cut(member, seed);
                self.rejoin(member);
                // It counts as a member only when it has again what it had acknowledged.
                (0..3).for_each(|i| self.catch_up(i));
            }
            Step::AllDark(seed) => self.all_dark(seed),
            Step::Depose => self.depose(),
        }
        self.check();
    }

    fn append(&mut self, len: usize, end: bool) {
        self.next += 1;
        let flags = if end { RecordFlags::BLOCK_END } else { RecordFlags::NONE };
        let head = self.head;
        let durable = self.members.iter().filter(|m| m.log.term() == self.members[head].log.term());
        let durable = durable.map(|m| m.log.durable_end()).min().unwrap();
        let Member { log, disk, .. } = &mut self.members[head];
        log.set_members_durable(durable);
        for record in records(append(log, disk, self.next, len, flags)) {
            self.history.push(record.clone());
            self.old.push(record);
        }
    }

    fn deliver(&mut self, to: usize, seed: u64) {
        if to == self.head {
            return;
        }
        let mut noise = seed | 1;
        let end = self.members[to].log.end();
        let missing = self.history.iter().filter(|r| r.header.position >= end);
        let mut window: Vec<Record> = missing.take(12).cloned().collect();
        window
            .extend(window.iter().filter(|_| seed.is_multiple_of(3)).cloned().collect::<Vec<_>>());
        for i in (1..window.len()).rev() {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            window.swap(i, (noise >> 33) as usize % (i + 1));
        }
        for record in window {
            match self.members[to].place(record.bytes) {
                Ok(()) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
            }
        }
    }

    /// R7: nothing that was replaced comes back, nothing that is here changes.
    fn replay(&mut self, to: usize, record: usize) {
        if self.old.is_empty() || to == self.head {
            return;
        }
        let record = self.old[record % self.old.len()].clone();
        let current = self.history.contains(&record);
        match self.members[to].place(record.bytes) {
            Ok(()) => assert!(current, "{:?} was replaced, and taken", record.header),
            Err(error) if current => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Fenced, "{error}"),
        }
    }

    fn power_cut(&mut self, member: usize, mut seed: u64) {
        let member = &mut self.members[member];
        member.ring.fill(if seed.is_multiple_of(2) { 0 } else { 0x5A });
        let promised = member.log.durable_end();
        member.disk.cut_power(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 40).is_multiple_of(2)
        });
        assert!(!member.restart(), "a power cut leaves no rot");
        let whole = self.history.iter().take_while(|r| r.end() <= promised).last();
        let kept = member.log.end();
        assert!(whole.is_none_or(|r| kept >= r.end() || kept.get() < 4096), "lost {promised}");
    }

    fn rejoin(&mut self, member: usize) {
        if member == self.head {
            self.elect(|_| true);
        } else {
            let spans = self.members[self.head].log.spans().to_vec();
            self.members[member].follow(&spans);
        }
    }

    /// Pulls what a member lacks, wherever the head has it.
    fn catch_up(&mut self, to: usize) {
        while self.members[to].log.end() < self.members[self.head].log.end() {
            let from = self.members[to].log.end();
            let bytes = self.members[self.head].send(from, 10_000);
            assert!(!bytes.is_empty(), "nothing to send from {from}");
            self.members[to].place(bytes).unwrap();
        }
    }

    /// The longest log of the highest term among `eligible` leads; all others follow it.
    fn elect(&mut self, eligible: impl Fn(usize) -> bool) {
        let best = |&i: &usize| (self.members[i].log.last().term, self.members[i].log.last().end);
        let head = (0..3).filter(|&i| eligible(i)).max_by_key(best).unwrap();
        let term = self.members.iter().map(|m| m.log.term()).max().unwrap();
        self.head = head;
        self.members[head].log.set_members_durable(LogPosition(0));
        self.members[head].log.begin_term(Term(term.get() + 1)).unwrap();
        self.members[head].spans = self.members[head].log.spans().to_vec();
        let (spans, last) = (self.members[head].spans.clone(), self.members[head].log.last());
        self.history.truncate(self.history.partition_point(|r| r.end() <= last.end));
        for i in (0..3).filter(|&i| i != head) {
            self.members[i].follow(&spans);
        }
    }

    fn depose(&mut self) {
        let old = self.head;
        // A log is cut within its ring and no further back (`adopt_spans` says so): who lags more
        // pulls first.
        let end = self.members[old].log.end().get();
        for i in (0..3).filter(|&i| i != old) {
            if end - self.members[i].log.end().get() > CONFIG().ring_len / 2 {
                self.catch_up(i);
            }
        }
        // Nobody's drains may be under way while logs are cut; none are here.
        self.elect(|i| i != old);
        assert!(self.history.len() >= self.acked, "an acknowledged record was lost");
    }

    fn all_dark(&mut self, seed: u64) {
        let durable = self.members.iter().map(|m| m.log.durable_end()).min().unwrap();
        let promised = self.history.iter().take_while(|r| r.end() <= durable).count();
        let promised = promised.min(self.acked);
        for i in 0..3 {
            self.power_cut(i, seed.rotate_left(i as u32 * 7));
        }
        self.elect(|_| true);
        assert!(self.history.len() >= promised, "what all had flushed was lost");
        self.acked = self.acked.min(self.history.len());
        (0..3).for_each(|i| self.catch_up(i));
    }

    fn check(&mut self) {
        let whole: Vec<u8> = self.history.iter().flat_map(|r| r.bytes.to_vec()).collect();
        let lens: Vec<usize> = (0..3)
            .map(|i| {
                let all = self.members[i].all();
                assert!(whole.starts_with(&all), "member {i} is no prefix of the head");
                all.len()
            })
            .collect();
        assert_eq!(lens[self.head], whole.len());
        let least = *lens.iter().min().unwrap();
        let mut len = 0;
        let everywhere = self.history.iter().take_while(|r| {
            len += r.bytes.len();
            len <= least
        });
        self.acked = self.acked.max(everywhere.count()).min(self.history.len());
    }
}

proptest! {
    #![proptest_config(proptest_config(250))]

    /// docs/faults.md: R1, R2, R3, R7
    #[test]
    fn every_member_is_a_prefix_of_the_head_through_any_fail_over(steps in steps()) {
        let mut cluster = Cluster::new();
        for step in &steps {
            cluster.run(step);
        }
        (0..3).for_each(|i| cluster.catch_up(i));
        cluster.check();
        prop_assert_eq!(cluster.acked, cluster.history.len());
    }
}

#[test]
fn a_head_that_was_a_ring_ahead_of_all_is_deposed() {
    let mut cluster = Cluster::new();
    (0..14).for_each(|_| cluster.run(&Step::Append(4_009, true)));
    cluster.run(&Step::Depose);
    (0..3).for_each(|i| cluster.catch_up(i));
    cluster.check();
}

/// docs/faults.md: H3, R7
#[test]
fn a_record_of_another_term_is_refused_and_says_why() {
    let (ring, other) = (SharedRing::new(CONFIG().ring_len), SharedRing::new(CONFIG().ring_len));
    let (mut head, mut replica) = (new_log(CONFIG(), &ring), new_log(CONFIG(), &other));
    let mut disk = Disk::new(CONFIG().segment_len);
    let one = append(&mut head, &mut disk, 1, 100, RecordFlags::NONE).record;
    let lost = append(&mut head, &mut disk, 2, 100, RecordFlags::NONE).record;
    replica.place(one.bytes.clone()).unwrap();
    let error = replica.append(gabion_log::RecordKind::Batch, b"", stamp(1, RecordFlags::NONE));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidInput);

    head.truncate(one.end()).unwrap();
    let span = head.begin_term(Term(2)).unwrap();
    assert_eq!((span.start, head.end()), (LogPosition(4096), LogPosition(4096)));
    let new = append(&mut head, &mut disk, 3, 100, RecordFlags::NONE).record;
    assert_eq!(new.header.previous_crc, one.header.crc);
    assert_eq!(replica.place(new.bytes.clone()).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(replica.adopt_spans(head.spans()).unwrap(), LogPosition(4096));
    assert_eq!(replica.place(lost.bytes).unwrap_err().kind(), ErrorKind::Fenced);
    replica.place(one.bytes).unwrap();
    replica.place(new.bytes).unwrap();
    assert_eq!(replica.last(), head.last());
    assert_eq!(replica.begin_term(Term(2)).unwrap_err().kind(), ErrorKind::Fenced);
    let stranger = [Span { term: Term(9), start: LogPosition(8192), end: None }];
    assert_eq!(replica.adopt_spans(&stranger).unwrap_err().kind(), ErrorKind::NotFound);
}

/// A term began here and wrote nothing, all before it is trimmed, and the next head knows nothing
/// of that term: the logs are the same up to where the last record ends.
#[test]
fn a_trimmed_log_still_knows_the_term_of_its_last_record() {
    let (ring, other) = (SharedRing::new(CONFIG().ring_len), SharedRing::new(CONFIG().ring_len));
    let (mut head, mut replica) = (new_log(CONFIG(), &ring), new_log(CONFIG(), &other));
    let (mut disk, mut own) = (Disk::new(CONFIG().segment_len), Disk::new(CONFIG().segment_len));
    let one = append(&mut head, &mut disk, 1, 100, RecordFlags::NONE).record;
    replica.place(one.bytes.clone()).unwrap();
    while replica.next_record().is_some() {}
    let mut lost = head.spans().to_vec();
    lost[0].end = Some(one.end());
    lost.push(Span { term: Term(2), start: LogPosition(4096), end: None });
    assert_eq!(replica.adopt_spans(&lost).unwrap(), LogPosition(4096));
    drain_and_flush(&mut replica, &mut own);
    replica.trim(one.end()).unwrap();
    assert_eq!(replica.spans(), lost, "the only record is of the first span");

    head.begin_term(Term(3)).unwrap();
    let new = append(&mut head, &mut disk, 2, 100, RecordFlags::BLOCK_END).record;
    assert_eq!(replica.adopt_spans(head.spans()).unwrap(), LogPosition(4096));
    replica.place(new.bytes).unwrap();
    assert_eq!(replica.last(), head.last());
    while replica.next_record().is_some() {}
    replica.trim(one.end()).unwrap();
    assert_eq!(replica.spans(), head.spans(), "all that is kept may be rotten");
    drain_and_flush(&mut replica, &mut own);
    replica.trim(replica.end()).unwrap();
    assert_eq!(replica.spans(), &head.spans()[1..]);
}

/// The head has trimmed past a term, of which it says nothing any more when it begins anew; a
/// member that follows has not.
#[test]
fn a_member_that_has_trimmed_less_than_the_head_whose_spans_it_takes_is_found_again_after_a_kill() {
    let (ring, other) = (SharedRing::new(CONFIG().ring_len), SharedRing::new(CONFIG().ring_len));
    let (mut head, mut member) = (new_log(CONFIG(), &ring), new_log(CONFIG(), &other));
    let (mut disk, mut own) = (Disk::new(CONFIG().segment_len), Disk::new(CONFIG().segment_len));
    let first = append(&mut head, &mut disk, 1, 6_000, RecordFlags::BLOCK_END).record;
    let of_first_term = head.spans().to_vec();
    head.begin_term(Term(2)).unwrap();
    let second = append(&mut head, &mut disk, 2, 6_000, RecordFlags::BLOCK_END).record;
    for record in [&first, &second] {
        member.adopt_spans(head.spans()).unwrap();
        member.place(record.bytes.clone()).unwrap();
        while member.next_record().is_some() {}
    }
    drain_and_flush(&mut member, &mut own);
    let both = member.spans().to_vec();
    assert_eq!((both[0].term, both[0].start), (of_first_term[0].term, LogPosition(0)));
    drain_and_flush(&mut head, &mut disk);
    head.trim(second.end()).unwrap();
    assert_eq!(head.spans().len(), 1);
    head.begin_term(Term(3)).unwrap();
    member.adopt_spans(head.spans()).unwrap();
    assert_eq!(member.spans(), [&both[..1], head.spans()].concat());
    let (mut log, _) = open(CONFIG(), &other, &own, input(member.spans(), Anchor::START)).unwrap();
    assert_eq!(take_recovered(&mut log, &own), [first, second.clone()]);
    // They go once it has trimmed as much.
    drain_and_flush(&mut log, &mut own);
    log.trim(second.end()).unwrap();
    assert_eq!(log.spans(), head.spans());
}

/// A head that nobody has heard wrote the first records, and the others began without it: all logs
/// of a group have its beginning in common.
#[test]
fn a_log_that_nobody_else_had_any_of_is_cut_to_nothing_by_one_that_begins_where_the_group_does() {
    let (ring, other) = (SharedRing::new(CONFIG().ring_len), SharedRing::new(CONFIG().ring_len));
    let (mut first, mut disk) = (new_log(CONFIG(), &ring), Disk::new(CONFIG().segment_len));
    append(&mut first, &mut disk, 1, 100, RecordFlags::NONE);
    let mut head = Log::create(CONFIG(), other.boxed(), Term(3), Anchor::START).unwrap();
    let record = append(&mut head, &mut disk, 1, 100, RecordFlags::NONE).record;
    assert_eq!(first.adopt_spans(head.spans()).unwrap(), LogPosition(0));
    first.place(record.bytes).unwrap();
    assert_eq!(first.last(), head.last());
}

#[test]
fn an_empty_log_follows_any_that_begins_where_it_does_and_no_other() {
    let (ring, other) = (SharedRing::new(CONFIG().ring_len), SharedRing::new(CONFIG().ring_len));
    let mut head = Log::create(CONFIG(), ring.boxed(), Term(3), Anchor::START).unwrap();
    let mut disk = Disk::new(CONFIG().segment_len);
    let first = append(&mut head, &mut disk, 1, 100, RecordFlags::NONE).record;
    let mut empty = new_log(CONFIG(), &other);
    let elsewhere = [Span { term: Term(3), start: LogPosition(4096), end: None }];
    assert_eq!(empty.adopt_spans(&elsewhere).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(empty.adopt_spans(head.spans()).unwrap(), LogPosition(0));
    empty.place(first.bytes).unwrap();
    assert_eq!(empty.last(), head.last());
}

#[test]
fn a_replica_that_joins_at_an_anchor_continues_the_chain() {
    let (ring, other) = (SharedRing::new(CONFIG().ring_len), SharedRing::new(CONFIG().ring_len));
    let mut head = new_log(CONFIG(), &ring);
    let mut disk = Disk::new(CONFIG().segment_len);
    let all: Vec<Record> = (0..9)
        .flat_map(|n| records(append(&mut head, &mut disk, n, 300, RecordFlags::NONE)))
        .collect();
    let anchor = all[4].anchor();
    let mut joined = Log::create(CONFIG(), other.boxed(), Term(1), anchor).unwrap();
    joined.adopt_spans(head.spans()).unwrap();
    assert!(joined.place(all[6].bytes.clone()).is_ok(), "it waits for the gap");
    assert_eq!(joined.end(), anchor.position);
    for record in &all[3..] {
        joined.place(record.bytes.clone()).unwrap();
    }
    assert_eq!(joined.last(), head.last());
    assert!(matches!(joined.read(LogPosition(0), 100), Ok(Resend::TooOld)));
    // Its own restart begins there too.
    let mut own = Disk::new(CONFIG().segment_len);
    drain_and_flush(&mut joined, &mut own);
    let (mut log, _) = open(CONFIG(), &other, &own, input(joined.spans(), anchor)).unwrap();
    assert_eq!(take_recovered(&mut log, &own), all[5..]);
    // A record with another past does not fit.
    let wrong = Anchor { crc: anchor.crc ^ 1, ..anchor };
    let ring = SharedRing::new(CONFIG().ring_len);
    let mut log = Log::create(CONFIG(), ring.boxed(), Term(1), wrong).unwrap();
    assert_eq!(log.place(all[5].bytes.clone()).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn what_waits_beyond_a_gap_is_bounded() {
    let (ring, other) = (SharedRing::new(64 << 10), SharedRing::new(64 << 10));
    let (mut head, mut replica) = (new_log(CONFIG(), &ring), new_log(CONFIG(), &other));
    let mut disk = Disk::new(CONFIG().segment_len);
    let first = append(&mut head, &mut disk, 0, 100, RecordFlags::NONE).record;
    let mut refused = 0;
    for n in 1..30 {
        for record in records(append(&mut head, &mut disk, n, 1000, RecordFlags::NONE)) {
            if let Err(error) = replica.place(record.bytes) {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                refused += 1;
            }
        }
    }
    assert!(refused > 10, "{refused}");
    replica.place(first.bytes).unwrap();
    assert!(replica.end().get() > 10_000);
}
