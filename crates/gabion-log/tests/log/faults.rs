//! Broken bytes: bit rot, torn tails, records of other builds, hostile input.

use crate::common::*;
use gabion_base::{Error, ErrorKind, FileId, LogIndex, LogPosition, Result, ShardId, Term, crc};
use gabion_log::{
    Anchor, Ending, Log, LogConfig, LogKind, Record, RecordBuilder, RecordFlags, RecordKind,
    RecoveryInput, Resend, SegmentSource, SessionWrite, decode_header, verify,
};
use gabion_media::Bytes;
use proptest::prelude::*;

const DURABLE: usize = 6;
const CONFIG: fn() -> LogConfig = || config(8 << 10, 2);

/// Six durable records, then six that were written and never flushed and carry the watermark.
struct Written {
    log: Log,
    disk: Disk,
    records: Vec<Record>,
}

fn written(ring: &SharedRing) -> Written {
    written_to(CONFIG(), ring)
}

fn written_to(config: LogConfig, ring: &SharedRing) -> Written {
    let mut log = new_log(config, ring);
    let mut disk = Disk::new(CONFIG().segment_len);
    let mut all = Vec::new();
    for n in 0..2 * DURABLE {
        let last = n == DURABLE - 1 || n == 2 * DURABLE - 1;
        let flags = if last { RecordFlags::BLOCK_END } else { RecordFlags::NONE };
        all.extend(records(append(&mut log, &mut disk, n as u64, 20 + n, flags)));
        if n == DURABLE - 1 {
            drain_and_flush(&mut log, &mut disk);
        }
    }
    drain(&mut log, &mut disk, true);
    assert_eq!(all[2 * DURABLE - 1].header.durable, all[DURABLE - 1].end());
    Written { log, disk, records: all }
}

fn spans() -> Vec<gabion_log::Span> {
    vec![gabion_log::Span { term: Term(1), start: LogPosition(0), end: None }]
}

/// E4: the verdict for every single bit of every record.
/// docs/faults.md: E4
#[test]
fn a_flipped_bit_below_the_watermark_is_corruption_and_above_it_the_end() {
    flip_every_bit(CONFIG());
}

#[test]
fn so_it_is_with_short_headers() {
    flip_every_bit(alone(CONFIG()));
}

fn flip_every_bit(config: LogConfig) {
    let ring = SharedRing::new(config.ring_len);
    let Written { mut disk, records, .. } = written_to(config, &ring);
    let short = records.iter().filter(|record| record.header.is_short);
    assert_eq!(short.count(), if config.kind == LogKind::Private { 2 * (DURABLE - 2) } else { 0 });
    ring.fill(0);
    for (i, record) in records.iter().enumerate() {
        let at = record.header.position;
        let content = record.header.len() + record.header.payload_len as usize;
        // Every bit of header and payload, and some of the padding.
        let bytes = (0..content).chain((content..record.bytes.len()).step_by(97));
        for (byte, bit) in bytes.flat_map(|byte| (0..8).map(move |bit| (byte, bit))) {
            *disk.byte(at.get() + byte as u64) ^= 1 << bit;
            let found = open(config, &ring, &disk, input(&spans(), Anchor::START));
            *disk.byte(at.get() + byte as u64) ^= 1 << bit;
            if i < DURABLE {
                assert_place(&found.err().expect("below the watermark"), at, &disk);
            } else {
                let (mut log, report) = found.expect("above the watermark");
                assert_eq!(report.end, at, "record {i} byte {byte} bit {bit}");
                assert_eq!(take_recovered(&mut log, &disk), records[..i]);
            }
        }
    }
}

fn assert_place(error: &Error, at: LogPosition, disk: &Disk) {
    let segment = FileId::log_segment(ShardId::ZERO, at.get() / disk.segment_len as u64);
    let place = format!("record at {at} ({segment} at {}) was", at.get() % disk.segment_len as u64);
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().contains(&place), "{error}");
}

#[test]
fn a_rotten_segment_is_no_loss_while_the_ring_holds_the_record() {
    let ring = SharedRing::new(CONFIG().ring_len);
    let Written { mut disk, records, log } = written(&ring);
    *disk.byte(records[2].header.position.get() + 90) ^= 1;
    // Of a later record only the segment's copy is whole: the drain to come must not spoil it.
    ring.bytes()[records[4].header.position.get() as usize + 90] ^= 1;
    drop(log);
    let (mut log, report) = open(CONFIG(), &ring, &disk, input(&spans(), Anchor::START)).unwrap();
    assert_eq!(report.in_segments, records[2].header.position);
    assert_eq!(take_recovered(&mut log, &disk), records);
    // And draining again heals the segment.
    drain_and_flush(&mut log, &mut disk);
    ring.fill(0);
    let (mut log, _) = open(CONFIG(), &ring, &disk, input(&spans(), Anchor::START)).unwrap();
    assert_eq!(take_recovered(&mut log, &disk), records);
}

#[test]
fn what_the_caller_knows_to_be_durable_counts_as_a_watermark() {
    let ring = SharedRing::new(CONFIG().ring_len);
    let Written { mut disk, records, .. } = written(&ring);
    ring.fill(0);
    let known = |durable| RecoveryInput { durable, ..input(&spans(), Anchor::START) };
    let last = records.last().unwrap();
    *disk.byte(last.header.position.get() + 3) ^= 1;
    let (_, report) = open(CONFIG(), &ring, &disk, known(last.header.position)).unwrap();
    assert_eq!(report.end, last.header.position);
    assert!(matches!(report.ending, Ending::Clean), "a broken magic claims nothing");
    let error = open(CONFIG(), &ring, &disk, known(last.end())).err().unwrap();
    assert_place(&error, last.header.position, &disk);
}

/// The ring is lost, so that it holds the last block alone, and the log is cut before that.
/// docs/faults.md: R7
#[test]
fn what_follows_a_cut_below_all_that_the_ring_holds_is_sent_from_the_ring() {
    let ring = SharedRing::new(CONFIG().ring_len);
    let (mut log, mut disk) = (new_log(CONFIG(), &ring), Disk::new(CONFIG().segment_len));
    for n in 0..8 {
        append(&mut log, &mut disk, n, 1500, RecordFlags::BLOCK_END);
    }
    drain_and_flush(&mut log, &mut disk);
    drop(log);
    ring.fill(0);
    let (mut log, _) = open(CONFIG(), &ring, &disk, input(&spans(), Anchor::START)).unwrap();
    let found = take_recovered(&mut log, &disk);
    let before = &found[found.len() - 5];
    log.truncate(before.end()).unwrap();
    let cut = log.read(before.end(), 1 << 20).unwrap();
    assert!(matches!(&cut, Resend::Bytes(bytes) if bytes.is_empty()), "{cut:?}");
    log.begin_term(Term(2)).unwrap();
    let new = append(&mut log, &mut disk, 9, 100, RecordFlags::BLOCK_END).record;
    let sent = log.read(new.header.position, 1 << 20).unwrap();
    assert!(matches!(&sent, Resend::Bytes(bytes) if *bytes == new.bytes), "{sent:?}");
    drain_and_flush(&mut log, &mut disk);
    assert_eq!(log.durable_end(), log.end());
}

/// docs/faults.md: E4
#[test]
fn a_rotten_middle_is_repaired_from_a_replica_on_demand() {
    let ring = SharedRing::new(CONFIG().ring_len);
    let Written { mut disk, records, log: good } = written(&ring);
    let bad = records[3].header.position;
    *disk.byte(bad.get() + 88) ^= 0x10;
    let broken = SharedRing::new(CONFIG().ring_len);
    let repair = RecoveryInput { repair: true, ..input(&spans(), Anchor::START) };
    let (mut log, report) = open(CONFIG(), &broken, &disk, repair).unwrap();
    let rot = report.rotten.unwrap();
    assert_eq!((rot.position, report.end), (bad, bad));
    assert_eq!((rot.segment, rot.offset), (FileId::log_segment(ShardId::ZERO, 0), bad.get()));
    assert_eq!(take_recovered(&mut log, &disk), records[..3]);
    let Resend::Bytes(rest) = good.read(bad, 1 << 20).unwrap() else { panic!() };
    log.place(rest).unwrap();
    drain_and_flush(&mut log, &mut disk);
    broken.fill(0);
    let (mut log, report) = open(CONFIG(), &broken, &disk, input(&spans(), Anchor::START)).unwrap();
    assert_eq!((report.rotten, report.in_segments), (None, records.last().unwrap().end()));
    assert_eq!(take_recovered(&mut log, &disk), records);
}

/// E3: the last drain is torn at each sector, or lacks one, or holds what was there before.
/// docs/faults.md: E3, F4
#[test]
fn a_torn_tail_drops_exactly_the_records_that_are_not_whole() {
    let ring = SharedRing::new(CONFIG().ring_len);
    let Written { disk, records, .. } = written(&ring);
    ring.fill(0xA5);
    let sectors = disk.loose.len();
    assert!(sectors >= 8);
    let tear = |lost: &dyn Fn(usize) -> bool, rest: u8| {
        let ring = ring.fork();
        let mut disk = disk.clone();
        for (i, (segment, offset)) in disk.loose.clone().into_iter().enumerate() {
            if lost(i) {
                disk.now.get_mut(&segment).unwrap()[offset..offset + SECTOR].fill(rest);
            }
        }
        let first_lost = (0..sectors).find(|&i| lost(i));
        let whole = first_lost.map_or(u64::MAX, |i| {
            let (segment, offset) = disk.loose[i];
            segment * CONFIG().segment_len + offset as u64
        });
        let (mut log, report) =
            open(CONFIG(), &ring, &disk, input(&spans(), Anchor::START)).unwrap();
        // Sectors of zeros that were zero before are not lost: then more is whole.
        let least = records.iter().filter(|r| r.end().get() <= whole).count();
        let found = take_recovered(&mut log, &disk);
        assert!(found.len() >= least && found.len() >= DURABLE);
        assert!(rest == 0 || found.len() == least);
        assert_eq!(found, records[..found.len()]);
        assert_eq!(report.end, found.last().unwrap().end());
    };
    for rest in [0, 0xff] {
        for cut in 0..=sectors {
            tear(&|i| i >= cut, rest);
            tear(&|i| i == cut, rest);
        }
    }
}

/// The record with `edit` applied to its bytes and its checksum made good again.
fn forge(record: &Record, edit: impl Fn(&mut Vec<u8>)) -> Bytes {
    let mut bytes = record.bytes.to_vec();
    edit(&mut bytes);
    bytes[12..16].fill(0);
    let sum = crc::crc32c(&bytes);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    Bytes::from(bytes)
}

/// R15: a whole record of another build is refused, not taken for the end.
#[test]
fn a_whole_record_that_this_build_does_not_know_is_refused_by_every_reader() {
    let ring = SharedRing::new(CONFIG().ring_len);
    let Written { mut disk, records, .. } = written(&ring);
    let last = records.last().unwrap();
    for (byte, value) in [(4, 1), (4, 3), (5, 9), (7, 0x80), (68, 1)] {
        let bytes = forge(last, |b| b[byte] = value);
        let at = last.header.position.get();
        for (i, &byte) in bytes.iter().enumerate() {
            *disk.byte(at + i as u64) = byte;
        }
        ring.fill(0);
        let error = open(CONFIG(), &ring, &disk, input(&spans(), Anchor::START)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let other = SharedRing::new(CONFIG().ring_len);
        let error = new_log(CONFIG(), &other).place(bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

/// R15: what a log of the other kind holds is not taken for the end of this one.
#[test]
fn a_log_of_the_other_kind_is_refused_with_a_word_on_what_each_kind_is() {
    for (mine, other, said) in [
        (CONFIG(), alone(CONFIG()), "is not of a shared log, as that of g7 is: a private log is "),
        (alone(CONFIG()), CONFIG(), "is not of a private log, as that of g7 is: a private log is "),
    ] {
        let (ring, mut disk) = (SharedRing::new(other.ring_len), Disk::new(other.segment_len));
        let mut log = new_log(other, &ring);
        let appended = append(&mut log, &mut disk, 0, 100, RecordFlags::NONE);
        let placed = SharedRing::new(mine.ring_len);
        for error in [
            open(mine, &ring, &disk, input(&spans(), Anchor::START)).err().unwrap(),
            new_log(mine, &placed).place(appended.record.bytes).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.message().contains(said), "{error}");
        }
    }
}

/// The same of a short header, and of the long one before it in a build that does not know short
/// ones.
#[test]
fn a_short_header_of_another_version_is_refused_and_one_of_another_place_is_none() {
    let config = alone(CONFIG());
    let ring = SharedRing::new(config.ring_len);
    let mut log = new_log(config, &ring);
    let mut disk = Disk::new(config.segment_len);
    let all: Vec<Record> = (0..3)
        .flat_map(|n| records(append(&mut log, &mut disk, n, 100, RecordFlags::NONE)))
        .collect();
    assert!(all[0].header.flags.has(RecordFlags::SHORT_AFTER));
    let at = all[1].header.position.get() as usize;
    let whole = ring.bytes().clone();
    let reseal = |version: u8, term: u64, position: u64, after: Anchor| {
        let len = all[1].bytes.len();
        let mut bytes = whole.clone();
        // All that a short header does not say is in its checksum, in front of what it says.
        let numbers = [config.group.get(), term, position, u64::from(config.shard.get())];
        let said: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let place = crc::crc32c(&said);
        bytes[at + 5] = version;
        bytes[at + 6..at + 8].copy_from_slice(&((place ^ (place >> 16)) as u16).to_le_bytes());
        let before = crc::append(place, &after.index.get().to_le_bytes());
        let before = crc::append(before, &after.crc.to_le_bytes());
        let sum = crc::append(before, &bytes[at + 4..at + len]);
        bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        *ring.bytes() = bytes;
        open(config, &ring, &disk, input(&spans(), Anchor::START))
    };
    let (here, before) = (at as u64, all[0].anchor());
    let (mut log, _) = reseal(1, 1, here, before).unwrap();
    assert_eq!(take_recovered(&mut log, &disk), all, "as it was written");
    let error = reseal(2, 1, here, before).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    for (term, position) in [(2, here), (1, here + config.ring_len), (1, here + 8)] {
        let (mut log, report) = reseal(1, term, position, before).unwrap();
        assert_eq!((report.end, report.ending), (all[0].end(), Ending::Clean));
        assert_eq!(take_recovered(&mut log, &disk), all[..1]);
    }
    let others =
        [Anchor { crc: before.crc ^ 1, ..before }, Anchor { index: before.index.next(), ..before }];
    for after in others {
        let (mut log, report) = reseal(1, 1, here, after).unwrap();
        assert_eq!(report.end, all[0].end());
        assert!(matches!(report.ending, Ending::Torn(_)), "{report:?}");
        assert_eq!(take_recovered(&mut log, &disk), all[..1]);
    }
}

/// A ring that an older life of the group filled, at the same places in the same term: a disk was
/// put back from a copy, and its ring was not.
#[test]
fn records_of_another_life_of_the_log_are_never_taken_for_its_own() {
    for config in [config(64 << 10, 2), alone(config(64 << 10, 2))] {
        let ring = SharedRing::new(config.ring_len);
        let mut disk = Disk::new(config.segment_len);
        let mut log = new_log(config, &ring);
        for n in 0..100 {
            append(&mut log, &mut disk, n, 100, RecordFlags::NONE);
        }
        let mut log = new_log(config, &ring);
        let kept: Vec<Record> = (0..10)
            .flat_map(|n| records(append(&mut log, &mut disk, n + 500, 100, RecordFlags::NONE)))
            .collect();
        let (mut log, report) = open(config, &ring, &disk, input(&spans(), Anchor::START)).unwrap();
        assert_eq!(report.end, kept.last().unwrap().end());
        assert_eq!(take_recovered(&mut log, &disk), kept);
    }
}

/// A segment may end with the block in which the last record does, closer behind it than a long
/// header is long.
#[test]
fn a_short_record_at_the_end_of_what_is_there_is_found() {
    struct UpTo<'a>(&'a Disk, usize);
    impl SegmentSource for UpTo<'_> {
        async fn read(&self, segment: FileId, offset: u64, len: usize) -> Result<Option<Bytes>> {
            let rest = self.1.saturating_sub(offset as usize);
            self.0.read(segment, offset, len.min(rest)).await
        }
    }
    let config = alone(CONFIG());
    let ring = SharedRing::new(config.ring_len);
    let mut log = new_log(config, &ring);
    let mut disk = Disk::new(config.segment_len);
    let mut all: Vec<Record> = Vec::new();
    while log.end().get() < 4096 {
        // 88 + 56 bytes, then as often 24 + 8 as there is room, to the very end of the block.
        let len = if all.is_empty() { 40 } else { 8 };
        all.extend(records(append(&mut log, &mut disk, 1, len, RecordFlags::NONE)));
    }
    assert_eq!((log.end().get(), all.last().unwrap().bytes.len()), (4096, 32));
    drain_and_flush(&mut log, &mut disk);
    ring.fill(0);
    let source = UpTo(&disk, 4096);
    let recovered =
        gabion_log::recover(config, ring.boxed(), input(&spans(), Anchor::START), &source);
    let (mut log, report) = now(recovered).unwrap();
    assert_eq!(report.end, LogPosition(4096));
    assert_eq!(take_recovered(&mut log, &disk), all);
}

#[test]
fn an_unknown_extension_is_refused_only_when_it_is_critical() {
    let (ring, other) = (SharedRing::new(CONFIG().ring_len), SharedRing::new(CONFIG().ring_len));
    for (flags, known) in [(0, true), (1, false)] {
        let mut builder = RecordBuilder::new(RecordKind::Batch, 10);
        builder.payload().extend_from_slice(b"payload");
        builder.extension(77, flags, b"what").unwrap();
        assert!(builder.extension(78, 0, &[0; 1 << 16]).is_err());
        let appended = new_log(CONFIG(), &ring).append_built(builder, stamp(1, RecordFlags::NONE));
        let record = appended.unwrap().record;
        assert_eq!(record.payload(), &b"payload"[..]);
        assert_eq!(record.extensions().next_field().unwrap().unwrap().payload, b"what");
        assert_eq!(new_log(CONFIG(), &other).place(record.bytes).is_ok(), known);
    }
}

#[test]
fn sessions_of_a_batch_come_back_and_what_breaks_a_rule_leaves_the_record_as_it_was() {
    let (ring, other) = (SharedRing::new(CONFIG().ring_len), SharedRing::new(CONFIG().ring_len));
    let write = |first: u32, reply| SessionWrite { session: 9, number: 4, first, count: 1, reply };
    let batch = |first| {
        let mut builder = RecordBuilder::new(RecordKind::Batch, 10);
        builder.payload().extend_from_slice(b"payload");
        builder.sessions([]).unwrap();
        assert!(builder.sessions([write(1, b"+OK"), write(0, b"")]).is_err(), "not in order");
        let many = (0..3000).map(|first| write(first, &[7; 20]));
        assert_eq!(builder.sessions(many).unwrap_err().kind(), ErrorKind::LimitExceeded);
        builder.sessions([write(first, b"+OK")]).unwrap();
        assert!(builder.sessions([write(first + 1, b"")]).is_err(), "a second list");
        builder
    };
    let mut log = new_log(CONFIG(), &ring);
    // The stamp is of one entry.
    let error = log.append_built(batch(1), stamp(1, RecordFlags::NONE)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let record = log.append_built(batch(0), stamp(1, RecordFlags::NONE)).unwrap().record;
    let mut log = new_log(CONFIG(), &other);
    log.place(record.bytes.clone()).unwrap();
    let placed = log.next_record().unwrap();
    assert_eq!(placed.payload(), &b"payload"[..]);
    assert_eq!(placed.sessions().unwrap().collect::<Vec<_>>(), [write(0, b"+OK")]);
    let plain = log_record(b"payload");
    assert_eq!(plain.sessions().unwrap().count(), 0);
    assert_eq!(placed.header.extension_len, 8 + 4 + 25 + 3);
    let mut edit = RecordBuilder::new(RecordKind::Edit, 0);
    assert!(edit.sessions([write(0, b"")]).is_err(), "writes of clients are batches");
    // The same list where a record of another kind, or of fewer entries, says to have it.
    for (byte, value) in [(5, RecordKind::Seal as u8), (64, 0)] {
        let bytes = forge(&record, |b| b[byte] = value);
        let error = new_log(CONFIG(), &other).place(bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    }
}

/// A record of a batch without extensions.
fn log_record(payload: &[u8]) -> Record {
    let ring = SharedRing::new(CONFIG().ring_len);
    let stamp = stamp(1, RecordFlags::NONE);
    new_log(CONFIG(), &ring).append(RecordKind::Batch, payload, stamp).unwrap().record
}

#[test]
fn a_full_ring_refuses_and_changes_nothing_until_it_is_flushed() {
    let ring = SharedRing::new(CONFIG().ring_len);
    let mut disk = Disk::new(CONFIG().segment_len);
    let mut log = new_log(CONFIG(), &ring);
    let payload = vec![1; 3000];
    let refused = loop {
        if let Err(error) = log.append(RecordKind::Batch, &payload, stamp(1, RecordFlags::NONE)) {
            break error;
        }
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    let (last, bytes) = (log.last(), ring.bytes().clone());
    drain(&mut log, &mut disk, true);
    assert!(log.append(RecordKind::Batch, &payload, stamp(1, RecordFlags::NONE)).is_err());
    assert!(log.last() == last && *ring.bytes() == bytes);
    drain_and_flush(&mut log, &mut disk);
    log.append(RecordKind::Batch, &payload, stamp(1, RecordFlags::NONE)).unwrap();

    let long = vec![0; CONFIG().segment_len as usize];
    let error = log.append(RecordKind::Batch, &long, stamp(1, RecordFlags::NONE)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

/// E1: a record of which only the first block is flushed is whole in the ring until the rest is.
#[test]
fn a_kill_loses_no_record_that_is_half_in_a_segment_and_half_in_the_ring() {
    let config = config(16 << 10, 2);
    let ring = SharedRing::new(config.ring_len);
    let mut disk = Disk::new(config.segment_len);
    let mut log = new_log(config, &ring);
    let mut all: Vec<Record> =
        records(append(&mut log, &mut disk, 0, 6000, RecordFlags::NONE)).collect();
    drain_and_flush(&mut log, &mut disk);
    assert_eq!(log.durable_end(), LogPosition(4096));
    while let Ok(more) = log.append(RecordKind::Batch, &[7; 1500], stamp(1, RecordFlags::NONE)) {
        all.extend(records(more));
    }
    let (mut log, _) = open(config, &ring, &disk, input(&spans(), Anchor::START)).unwrap();
    assert_eq!(take_recovered(&mut log, &disk), all);
}

/// E1: the block in which such a record begins is drained whole once more, so nothing takes its
/// place in a full ring.
/// docs/faults.md: E1
#[test]
fn a_full_ring_keeps_the_block_in_which_a_record_begins_that_is_flushed_in_part() {
    let config = config(16 << 10, 2);
    let ring = SharedRing::new(config.ring_len);
    let mut disk = Disk::new(config.segment_len);
    let mut log = new_log(config, &ring);
    let mut all = Vec::<Record>::new();
    for (n, len) in [(0, 2000), (1, 4000), (2, 6000)] {
        all.extend(records(append(&mut log, &mut disk, n, len, RecordFlags::NONE)));
    }
    drain_and_flush(&mut log, &mut disk);
    let in_part = all[2].header.position;
    assert!(in_part < log.durable_end() && log.durable_end() < all[2].end());
    assert!(!in_part.get().is_multiple_of(4096), "others end in the block in which it begins");
    while let Ok(more) = log.append(RecordKind::Batch, &[7; 1500], stamp(1, RecordFlags::NONE)) {
        all.extend(records(more));
    }
    assert!(log.end().get() > config.ring_len, "the ring goes round");
    let (mut log, report) = open(config, &ring, &disk, input(&spans(), Anchor::START)).unwrap();
    assert_eq!(report.in_segments, in_part);
    assert_eq!(take_recovered(&mut log, &disk), all);
    // And what is drained then is what was there.
    drain_and_flush(&mut log, &mut disk);
    let drained = all.iter().take_while(|record| record.end() <= log.drained_end()).count();
    assert!(drained > 3, "{drained} records");
    ring.fill(0);
    let (mut log, _) = open(config, &ring, &disk, input(&spans(), Anchor::START)).unwrap();
    assert_eq!(take_recovered(&mut log, &disk), all[..drained]);
}

/// E4: a power cut left an older lap of the ring, and a segment lost a record that this lap has.
/// All that follows the record would have to be drained once more, and that is more than the ring
/// holds.
/// docs/faults.md: E4
#[test]
fn what_an_older_lap_of_the_ring_has_alone_counts_as_far_as_the_ring_holds_what_follows() {
    let config = config(16 << 10, 2);
    let ring = SharedRing::new(config.ring_len);
    let mut disk = Disk::new(config.segment_len);
    let mut log = new_log(config, &ring);
    let (mut all, mut older) = (Vec::<Record>::new(), None);
    for n in 0..40 {
        let flags = if n == 39 { RecordFlags::BLOCK_END } else { RecordFlags::NONE };
        all.extend(records(append(&mut log, &mut disk, n, 1500, flags)));
        drain_and_flush(&mut log, &mut disk);
        if n == 12 {
            older = Some(ring.fork());
        }
    }
    drop(log);
    let older = older.unwrap();
    *disk.byte(all[2].header.position.get() + 100) ^= 1;
    let error = open(config, &older.fork(), &disk, input(&spans(), Anchor::START)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    let repair = RecoveryInput { repair: true, ..input(&spans(), Anchor::START) };
    let (mut log, report) = open(config, &older, &disk, repair).unwrap();
    let kept = all.iter().take_while(|record| record.end().get() <= config.ring_len).count();
    assert_eq!((report.in_segments, report.end), (all[2].header.position, all[kept - 1].end()));
    assert_eq!(report.rotten.map(|rot| rot.position), Some(all[kept].header.position));
    assert_eq!(take_recovered(&mut log, &disk), all[..kept]);
    // Draining heals the segment, and spoils none.
    drain_and_flush(&mut log, &mut disk);
    older.fill(0);
    let (mut log, _) = open(config, &older, &disk, input(&spans(), Anchor::START)).unwrap();
    assert_eq!(take_recovered(&mut log, &disk), all);
}

/// docs/faults.md: E14
#[test]
fn a_log_whose_spans_begin_far_behind_it_is_refused() {
    let ring = SharedRing::new(CONFIG().ring_len);
    let Written { disk, .. } = written(&ring);
    for start in [4096, 8192, 1 << 40] {
        let spans = [gabion_log::Span { term: Term(1), start: LogPosition(start), end: None }];
        let error = open(CONFIG(), &ring, &disk, input(&spans, Anchor::START)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert!(error.message().contains("its spans at"), "{error}");
    }
}

/// Nothing but damage has that index.
/// docs/faults.md: E14
#[test]
fn no_record_follows_one_of_the_greatest_index() {
    let ring = SharedRing::new(CONFIG().ring_len);
    let Written { disk, .. } = written(&ring);
    let start = Anchor { index: LogIndex(u64::MAX), ..Anchor::START };
    let repair = RecoveryInput { repair: true, ..input(&spans(), start) };
    let (mut log, report) = open(CONFIG(), &ring, &disk, repair).unwrap();
    assert_eq!(report.end, LogPosition(0));
    assert!(take_recovered(&mut log, &disk).is_empty());
}

#[test]
fn a_new_term_does_not_write_the_last_flushed_block_of_the_old_one_again() {
    let ring = SharedRing::new(CONFIG().ring_len);
    let mut disk = Disk::new(CONFIG().segment_len);
    let mut log = new_log(CONFIG(), &ring);
    let kept = append(&mut log, &mut disk, 1, 100, RecordFlags::NONE).record;
    append(&mut log, &mut disk, 2, 5000, RecordFlags::NONE);
    drain_and_flush(&mut log, &mut disk);
    ring.fill(0);
    let (mut log, report) = open(CONFIG(), &ring, &disk, input(&spans(), Anchor::START)).unwrap();
    assert_eq!((report.end, report.in_segments), (kept.end(), kept.end()));
    log.begin_term(Term(2)).unwrap();
    assert!(log.next_drain(true).is_none());
    assert_eq!(log.drained_end(), LogPosition(4096));
}

#[test]
fn a_record_as_long_as_a_segment_fits_and_one_byte_more_does_not() {
    let ring = SharedRing::new(CONFIG().ring_len);
    let mut disk = Disk::new(CONFIG().segment_len);
    let mut log = new_log(CONFIG(), &ring);
    let longest = CONFIG().segment_len as usize - 88;
    for n in 0..4 {
        let appended = append(&mut log, &mut disk, n, longest, RecordFlags::NONE);
        assert_eq!(appended.record.bytes.len() as u64, CONFIG().segment_len);
        append(&mut log, &mut disk, n, 10, RecordFlags::NONE);
        drain_and_flush(&mut log, &mut disk);
    }
    let over = vec![0; longest + 1];
    let error = log.append(RecordKind::Batch, &over, stamp(1, RecordFlags::NONE)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

proptest! {
    #![proptest_config(proptest_config(256))]

    #[test]
    fn arbitrary_and_broken_bytes_are_refused_without_a_panic(
        noise in proptest::collection::vec(any::<u8>(), 0..400),
        place in 0usize..200,
        len in 0usize..300,
    ) {
        let _ = decode_header(&noise);
        let _ = verify(&noise, &CONFIG());
        let ring = SharedRing::new(CONFIG().ring_len);
        let mut log = new_log(CONFIG(), &ring);
        let appended = log.append(RecordKind::Batch, &noise, stamp(1, RecordFlags::NONE));
        let record = appended.unwrap().record;
        let mut bytes = record.bytes.to_vec();
        for (to, from) in bytes.iter_mut().skip(place).zip(&noise) {
            *to = *from;
        }
        let changed = bytes != record.bytes;
        bytes.truncate(bytes.len().saturating_sub(len % 3));
        let changed = changed || bytes.len() != record.bytes.len();
        let other = SharedRing::new(CONFIG().ring_len);
        let mut replica = new_log(CONFIG(), &other);
        prop_assert_eq!(replica.place(Bytes::from(bytes)).is_err(), changed);
        // A header that lies about lengths under a good checksum.
        let lie = forge(&record, |b| {
            for (to, from) in b.iter_mut().skip(place % 88).zip(&noise) {
                *to = *from;
            }
        });
        let _ = new_log(CONFIG(), &other).place(lie.clone());
        *ring.bytes() = lie.iter().copied().chain([0; 1 << 14]).take(1 << 14).collect();
        let disk = Disk::new(CONFIG().segment_len);
        let _ = open(CONFIG(), &ring, &disk, input(&spans(), Anchor::START));
    }
}
