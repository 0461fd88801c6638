//! Every bit of the segments of a log is flipped and the log recovered (docs/faults.md E4, E5): in
//! a record that was durable it is corruption with its place, behind that the log ends at the
//! record, and in bytes that no record has, nothing changes. Every bit of a ring beside its
//! segments, as the kill of a process leaves both: what segments have is taken from there, and the
//! log ends at a record that only the ring had.
//!
//! `cargo test` takes one bit in [`SAMPLE`], and all of twelve short records in `faults`; the tests
//! that are ignored take all.

use crate::common::*;
use gabion_base::{ErrorKind, LogPosition, Term};
use gabion_log::{Anchor, LogConfig, LogKind, Record, RecordFlags, Span};

fn configs() -> [LogConfig; 2] {
    let config = config(32 << 10, 4);
    [config, alone(config)]
}

/// Bytes of all segments.
const LEN: usize = 128 << 10;
/// A prime, so that all bits of a byte and all fields of a record have their turn.
const SAMPLE: usize = 8_009;

/// A log that fills most of its segments: records of many lengths, pads between segments; the last
/// quarter is not flushed.
fn filled(config: LogConfig, ring: &SharedRing) -> (Disk, Vec<Record>, LogPosition) {
    let mut log = new_log(config, ring);
    let mut disk = Disk::new(config.segment_len);
    let (mut all, mut is_flushed) = (Vec::<Record>::new(), false);
    for n in 0.. {
        let len = (n * 37 % 11 * 130 + n * n % 97) as usize;
        let flags = if n % 23 == 22 { RecordFlags::BLOCK_END } else { RecordFlags::NONE };
        all.extend(records(append(&mut log, &mut disk, n, len, flags)));
        let end = all.last().unwrap().end();
        if !is_flushed && end.get() as usize > LEN * 3 / 4 {
            drain_and_flush(&mut log, &mut disk);
            is_flushed = true;
        }
        if end.get() as usize > LEN - 12_000 {
            break;
        }
    }
    // Whole blocks alone are drained: the last one is.
    all.extend(records(append(&mut log, &mut disk, 1_000, 100, RecordFlags::BLOCK_END)));
    drain(&mut log, &mut disk, true);
    assert!(all.len() > 100, "{} records", all.len());
    assert_eq!(disk.now.len(), LEN / (32 << 10), "every segment has records");
    // What the records behind the flush say of it: it ends with a record, in a block that was
    // whole.
    let durable = all.last().unwrap().header.durable;
    assert!(durable.get() as usize > LEN / 2, "{durable}");
    (disk, all, durable)
}

fn flip(config: LogConfig, step: usize) {
    let ring = SharedRing::new(config.ring_len);
    let (mut disk, records, durable) = filled(config, &ring);
    let short = records.iter().filter(|record| record.header.is_short);
    assert_eq!(short.count() > 20, config.kind == LogKind::Private);
    ring.fill(0);
    let spans = vec![Span { term: Term(1), start: LogPosition::ZERO, end: None }];
    let mut counts = [0; 3];
    for bit in (step / 2..LEN * 8).step_by(step) {
        let at = bit as u64 / 8;
        *disk.byte(at) ^= 1 << (bit % 8);
        let found = open(config, &ring, &disk, input(&spans, Anchor::START));
        let of_record = records.iter().position(|record| at < record.end().get());
        let place = of_record.map(|i| records[i].header.position);
        let what = format!("bit {bit} of {place:?}");
        match of_record {
            Some(i) if records[i].end() <= durable => {
                let error = found.err().expect("below the watermark");
                assert_eq!(error.kind(), ErrorKind::Corruption, "{what}: {error}");
                let text = format!("record at {} (", records[i].header.position);
                assert!(error.message().contains(&text), "{what}: {error}");
                counts[0] += 1;
            }
            of_record => {
                let (mut log, _) = found.unwrap_or_else(|error| panic!("{what}: {error}"));
                let whole = of_record.unwrap_or(records.len());
                let found = take_recovered(&mut log, &disk);
                assert!(found == records[..whole], "{what}: {} of {whole} records", found.len());
                counts[usize::from(of_record.is_none()) + 1] += 1;
            }
        }
        *disk.byte(at) ^= 1 << (bit % 8);
    }
    let [corruption, end, inert] = counts;
    eprintln!(
        "coverage: flipped bits, segments of a log: {} of {}, {corruption} are corruption, {end} the end, \
         {inert} of no record",
        corruption + end + inert,
        LEN * 8
    );
    assert!(corruption > end && end > inert && inert > 0, "{counts:?}");
}

/// A log that fills most of its ring: the first half is drained, of which the first half again is
/// flushed.
fn half_drained(config: LogConfig, ring: &SharedRing) -> (Disk, Vec<Record>, LogPosition) {
    let mut log = new_log(config, ring);
    let mut disk = Disk::new(config.segment_len);
    let (mut all, mut parts) = (Vec::<Record>::new(), 0);
    for n in 0.. {
        let len = (n * 41 % 13 * 110 + n * n % 89) as usize;
        all.extend(records(append(&mut log, &mut disk, n, len, RecordFlags::NONE)));
        let end = log.end().get() as usize;
        match parts {
            0 if end > LEN / 4 => drain_and_flush(&mut log, &mut disk),
            1 if end > LEN / 2 => drain(&mut log, &mut disk, true),
            _ if end > LEN - 12_000 => break,
            _ => continue,
        }
        parts += 1;
    }
    let drained = log.drained_end();
    assert!(drained < log.end(), "the rest is in the ring alone");
    assert!(all.iter().any(|record| record.header.durable.get() as usize > LEN / 5));
    (disk, all, drained)
}

fn flip_ring(config: LogConfig, step: usize) {
    let ring = SharedRing::new(config.ring_len);
    let (disk, records, drained) = half_drained(config, &ring);
    let spans = vec![Span { term: Term(1), start: LogPosition::ZERO, end: None }];
    let mut counts = [0; 2];
    for bit in (step / 2..LEN * 8).step_by(step) {
        // Recovery writes to it what it lacks.
        let ring = ring.fork();
        ring.bytes()[bit / 8] ^= 1 << (bit % 8);
        let at = bit as u64 / 8;
        let of_record = records.iter().position(|record| at < record.end().get());
        let what = format!("bit {bit} of {:?}", of_record.map(|i| records[i].header.position));
        let whole = of_record.filter(|i| records[*i].end() > drained);
        counts[usize::from(whole.is_none())] += 1;
        let (mut log, _) = open(config, &ring, &disk, input(&spans, Anchor::START))
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = take_recovered(&mut log, &disk);
        let whole = whole.unwrap_or(records.len());
        assert!(found == records[..whole], "{what}: {} of {whole} records", found.len());
    }
    let [end, inert] = counts;
    eprintln!(
        "coverage: flipped bits, ring of a log: {} of {}, {end} are the end, {inert} of what segments have or of no \
         record",
        end + inert,
        LEN * 8
    );
    assert!(end > 0 && inert > 0, "{counts:?}");
}

/// docs/faults.md: E5
#[test]
fn a_flipped_bit_of_a_ring_is_the_end_of_the_log_or_made_good_by_a_segment() {
    configs().into_iter().for_each(|config| flip_ring(config, SAMPLE));
}

#[test]
#[ignore = "a million recoveries: minutes, for the soak"]
fn every_bit_of_the_ring_of_a_log() {
    configs().into_iter().for_each(|config| flip_ring(config, 1));
}

/// docs/faults.md: E5
#[test]
fn a_flipped_bit_of_a_segment_is_corruption_or_the_end_or_of_no_record() {
    configs().into_iter().for_each(|config| flip(config, SAMPLE));
}

#[test]
#[ignore = "a million recoveries: minutes, for the soak"]
fn every_bit_of_the_segments_of_a_log() {
    configs().into_iter().for_each(|config| flip(config, 1));
}
