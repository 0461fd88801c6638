//! The scan for tools: everything that is whole, past what is not.

use crate::common::*;
use gabion_base::{ErrorKind, LogPosition};
use gabion_log::{Anchor, LogConfig, Record, RecordFlags, RecordKind, RecordScan, Seen, Span};

fn seen(
    config: LogConfig,
    spans: &[Span],
    ring: Option<&SharedRing>,
    disk: &Disk,
) -> (Vec<Record>, Vec<(LogPosition, Option<LogPosition>)>) {
    let ring = ring.map(SharedRing::boxed);
    let mut scan = RecordScan::new(config, spans, Anchor::START, ring).unwrap();
    let (mut records, mut bad) = (Vec::new(), Vec::new());
    while let Some(seen) = now(scan.next(disk)).unwrap() {
        match seen {
            Seen::Record { record, .. } => records.push(record),
            Seen::Bad { from, to, .. } => bad.push((from, to)),
        }
    }
    (records, bad)
}

#[test]
fn a_scan_names_a_bad_record_and_goes_on_with_the_next_whole_one() {
    let config = config(64 << 10, 2);
    let ring = SharedRing::new(config.ring_len);
    let mut disk = Disk::new(config.segment_len);
    let mut log = new_log(config, &ring);
    let mut sent = Vec::new();
    for n in 0..200 {
        sent.extend(records(append(&mut log, &mut disk, n, 1000, RecordFlags::NONE)));
    }
    drain_and_flush(&mut log, &mut disk);
    let spans = log.spans().to_vec();
    let whole = seen(config, &spans, Some(&ring), &disk);
    assert!(whole.0 == sent, "all of a whole log");
    assert_eq!(whole.1, []);

    // The ring went on long ago: the record is lost, its neighbours are not.
    let lost = sent[3].header.position;
    let next = sent[4].header.position;
    *disk.byte(lost.get() + 90) ^= 1;
    let (found, bad) = seen(config, &spans, Some(&ring), &disk);
    assert_eq!(bad, [(lost, Some(next))]);
    assert!(found.len() == sent.len() - 1 && !found.contains(&sent[3]));
    *disk.byte(lost.get() + 90) ^= 1;

    // The ring still has it; segments alone do not.
    let lost = sent[sent.len() - 3].header.position;
    *disk.byte(lost.get() + 90) ^= 1;
    assert_eq!(seen(config, &spans, Some(&ring), &disk), (sent.clone(), vec![]));
    let (_, bad) = seen(config, &spans, None, &disk);
    assert_eq!(bad[0].0, lost);
}

#[test]
fn a_torn_record_at_the_end_has_nothing_after_it() {
    let config = config(64 << 10, 2);
    let ring = SharedRing::new(config.ring_len);
    let mut disk = Disk::new(config.segment_len);
    let mut log = new_log(config, &ring);
    for n in 0..3 {
        append(&mut log, &mut disk, n, 100, RecordFlags::NONE);
    }
    let torn = log.last().end;
    append(&mut log, &mut disk, 3, 100, RecordFlags::NONE);
    ring.bytes()[torn.get() as usize + 100] ^= 1;
    let (found, bad) = seen(config, log.spans(), Some(&ring), &disk);
    assert_eq!((found.len(), bad), (3, vec![(torn, None)]));
}

#[test]
fn past_a_bad_record_with_a_short_header_a_scan_goes_on_with_the_next_block() {
    let config = alone(config(64 << 10, 2));
    let ring = SharedRing::new(config.ring_len);
    let mut disk = Disk::new(config.segment_len);
    let mut log = new_log(config, &ring);
    let mut sent = Vec::new();
    for n in 0..900 {
        let flags = if n == 899 { RecordFlags::BLOCK_END } else { RecordFlags::NONE };
        sent.extend(records(append(&mut log, &mut disk, n, 100, flags)));
    }
    drain_and_flush(&mut log, &mut disk);
    let spans = log.spans().to_vec();
    assert!(seen(config, &spans, None, &disk).0 == sent[..], "all of a whole log");
    let lost = sent.iter().position(|record| record.header.index.get() == 40).unwrap();
    let next = sent[lost..].iter().position(|record| !record.header.is_short).unwrap() + lost;
    let (at, to) = (sent[lost].header.position, sent[next].header.position);
    assert!(sent[lost].header.is_short && to.get() / 4096 == at.get() / 4096 + 1);
    *disk.byte(at.get() + 30) ^= 1;
    let (found, bad) = seen(config, &spans, None, &disk);
    assert_eq!(bad, [(at, Some(to))]);
    assert!(found[..lost] == sent[..lost] && found[lost..] == sent[next..]);
}

/// Its header would reach past the end of the ring.
/// docs/faults.md: E14
#[test]
fn what_begins_like_a_record_at_the_end_of_the_ring_is_none() {
    let config = config(16 << 10, 2);
    let ring = SharedRing::new(config.ring_len);
    let mut disk = Disk::new(config.segment_len);
    let mut log = new_log(config, &ring);
    let len = config.segment_len as usize - 88;
    append(&mut log, &mut disk, 0, len, RecordFlags::NONE);
    let torn = log.last().end;
    let words = b"GBLR\0\0\0\0".repeat(len / 8);
    log.append(RecordKind::Batch, &words, stamp(1, RecordFlags::NONE)).unwrap();
    assert_eq!(log.end().get(), config.ring_len);
    ring.bytes()[torn.get() as usize + 100] ^= 1;
    let (found, bad) = seen(config, log.spans(), Some(&ring), &disk);
    assert_eq!((found.len(), bad), (1, vec![(torn, None)]));
}

/// docs/faults.md: E14
#[test]
fn a_scan_begins_where_a_record_may() {
    let config = config(16 << 10, 2);
    let spans = [Span { term: gabion_base::Term(1), start: LogPosition(0), end: None }];
    for at in [7, config.ring_len - 8, 1 << 63, u64::MAX - 7] {
        let start = Anchor { position: LogPosition(at), ..Anchor::START };
        let error = RecordScan::new(config, &spans, start, None).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}
