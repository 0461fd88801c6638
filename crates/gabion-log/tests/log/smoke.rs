//! One log from the first append to a restart.

use crate::common::*;
use gabion_base::Term;
use gabion_log::{Anchor, Ending, RecordFlags, RecordKind};

#[test]
fn a_log_is_written_drained_placed_and_recovered() {
    let config = config(64 << 10, 2);
    let ring = SharedRing::new(config.ring_len);
    let mut disk = Disk::new(config.segment_len);
    let mut log = new_log(config, &ring);
    let replica_ring = SharedRing::new(config.ring_len);
    let mut replica_disk = Disk::new(config.segment_len);
    let mut replica = new_log(config, &replica_ring);

    let mut sent = Vec::new();
    for n in 0..500 {
        let flags = match n {
            _ if n % 90 == 89 => RecordFlags::BLOCK_END.with(RecordFlags::SEGMENT_END),
            _ if n % 7 == 0 => RecordFlags::BLOCK_END,
            _ => RecordFlags::NONE,
        };
        for record in records(append(&mut log, &mut disk, n, 1000, flags)) {
            if replica.place(record.bytes.clone()).is_err() {
                drain_and_flush(&mut replica, &mut replica_disk);
                replica.place(record.bytes.clone()).unwrap();
            }
            assert_eq!(replica.next_record(), Some(record.clone()));
            if record.header.flags.has(RecordFlags::SEGMENT_END) {
                assert_eq!(record.end().get() % config.segment_len, 0, "it fills its segment");
                assert_eq!(log.segment_rest(), config.segment_len);
            }
            sent.push(record);
        }
    }
    assert!(sent.iter().any(|r| r.header.kind == RecordKind::Pad));
    assert_eq!(replica.last(), log.last());

    let (spans, last) = (log.spans().to_vec(), log.last());
    drop(log);
    let (mut log, report) = open(config, &ring, &disk, input(&spans, Anchor::START)).unwrap();
    assert_eq!((report.ending, report.end), (Ending::Clean, last.end));
    assert_eq!(log.last(), last);
    assert!(take_recovered(&mut log, &disk) == sent);
    log.begin_term(Term(2)).unwrap();
    append(&mut log, &mut disk, 1000, 10, RecordFlags::NONE);
}
