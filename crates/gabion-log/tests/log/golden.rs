//! The bytes of one record of each kind, of a span list, an anchor and a seal. A change here is a
//! change of format: it needs a new version. `GABION_REWRITE=1` writes the file anew.
//!
//! docs/faults.md: R15

use crate::common::*;
use gabion_base::codec::Reader;
use gabion_base::{Frontier, LogIndex, LogPosition, MemTableId, SequenceNumber, Term};
use gabion_log::{
    Anchor, Record, RecordBuilder, RecordFlags, RecordKind, Seal, SessionWrite, Span, Stamp, verify,
};

const GOLDEN: &str = include_str!("golden.txt");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Name and hex of everything that is pinned; a long run of zeros at the end is counted.
fn lines() -> Vec<String> {
    let config = config(8192, 2);
    let ring = SharedRing::new(config.ring_len);
    let mut log = new_log(config, &ring);
    let mut all: Vec<Record> = Vec::new();
    let mut add = |builder: RecordBuilder, n: u64, flags| {
        let stamp = Stamp { count: 3, ..stamp(n, flags) };
        all.extend(records(log.append_built(builder, stamp).unwrap()));
    };
    let write = |first, reply| SessionWrite {
        session: 0x5e55_1011 + u64::from(first),
        number: 0x0a0b_0c0d_0e0f,
        first,
        count: 1,
        reply,
    };
    let build = |kind, payload: &[u8]| {
        let mut builder = RecordBuilder::new(kind, payload.len());
        builder.payload().extend_from_slice(payload);
        builder
    };
    let mut batch = build(RecordKind::Batch, b"a batch");
    batch.sessions([write(0, b"")]).unwrap();
    add(build(RecordKind::TermStart, b""), 1, RecordFlags::NONE);
    add(batch, 0x0102_0304, RecordFlags::DURABLE_ACK);
    let mut batch = build(RecordKind::Batch, b"of three");
    batch.sessions([write(0, b"+OK"), write(2, &[0x3a; 64])]).unwrap();
    batch.extension(0x0e0e, 0, b"ignored").unwrap();
    add(batch, 2, RecordFlags::NONE);
    let frontier = Frontier::of(LogPosition(4096));
    let seal = Seal { memtable: MemTableId(3), sequence: SequenceNumber(9), frontier };
    let mut payload = Vec::new();
    seal.encode(&mut payload);
    add(build(RecordKind::Seal, &payload), 3, RecordFlags::NONE);
    add(build(RecordKind::Batch, &[7; 3700]), 4, RecordFlags::NONE);
    add(build(RecordKind::Edit, &[0xed; 100]), 5, RecordFlags::NONE);
    add(build(RecordKind::Sessions, &[0x5e; 6]), 6, RecordFlags::NONE);

    let mut lines: Vec<String> = all.iter().map(line).collect();
    let spans = [
        Span { term: Term(1), start: LogPosition(0), end: Some(LogPosition(100)) },
        Span { term: Term(2), start: LogPosition(4096), end: None },
    ];
    let mut bytes = Vec::new();
    Span::encode_list(&spans, &mut bytes);
    assert_eq!(Span::decode_list(&mut Reader::new(&bytes, "test")).unwrap(), spans);
    lines.push(format!("Spans {}", hex(&bytes)));
    let anchor = Anchor { position: LogPosition(1 << 40), index: LogIndex(7), crc: 0xdead_beef };
    let mut bytes = Vec::new();
    anchor.encode(&mut bytes);
    assert_eq!(Anchor::decode(&mut Reader::new(&bytes, "test")).unwrap(), anchor);
    lines.push(format!("Anchor {}", hex(&bytes)));
    assert!(all.iter().all(|r| verify(&r.bytes, &config).unwrap() == r.header));
    lines.extend(short_lines());
    lines
}

/// The first batches of a log that is sent to nobody: the first says that those behind it have
/// short headers.
fn short_lines() -> Vec<String> {
    let config = alone(config(8192, 2));
    let ring = SharedRing::new(config.ring_len);
    let mut log = new_log(config, &ring);
    let sequences = [1, 0x0102_0304_0506, 1 << 48];
    let records: Vec<Record> = sequences
        .into_iter()
        .map(|n| log.append(RecordKind::Batch, b"a batch", stamp(n, RecordFlags::NONE)))
        .map(|appended| appended.unwrap().record)
        .collect();
    let is_short = |record: &Record| record.header.is_short;
    // A number that has no room in a short header has a long one.
    assert_eq!(records.iter().map(is_short).collect::<Vec<_>>(), [false, true, false]);
    assert!(records.iter().all(|record| record.payload() == b"a batch"[..]));
    records.iter().map(line).collect()
}

fn line(record: &Record) -> String {
    let content = record.bytes.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
    let zeros = record.bytes.len() - content;
    let bytes = hex(&record.bytes[..content]).replace(&"07".repeat(3700), "(07*3700)");
    format!("{:?} {bytes} +{zeros} zeros", record.header.kind)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "tests rewrite their data files")]
fn the_bytes_of_every_kind_of_record_are_as_they_always_were() {
    let lines = lines();
    if std::env::var_os("GABION_REWRITE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/log/golden.txt");
        std::fs::write(path, lines.join("\n") + "\n").unwrap();
        return;
    }
    for (found, golden) in lines.iter().zip(GOLDEN.lines()) {
        assert_eq!(found, golden);
    }
    assert_eq!(lines.len(), GOLDEN.lines().count());
    let kinds = ["TermStart", "Batch", "Seal", "Pad", "Edit", "Sessions"];
    assert!(kinds.iter().all(|kind| lines.iter().any(|line| line.starts_with(kind))));
}
