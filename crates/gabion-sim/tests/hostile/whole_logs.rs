//! Whole logs, as the kill of a process leaves them, a ring with segments: recovered, and inspected
//! record by record as tools do.
//!
//! ```text
//!   position   0          32 KiB       64 KiB       96 KiB       128 KiB
//!   segments   ├──────────┼────────────┼────────────┤
//!   ring                               ├────────────┼────────────┤
//! ```
//!
//! An input is the ring, turned so that it begins with the target of most changes, and then the
//! segments.

use crate::depth::{Deep, Depth};
use crate::files::now;
use crate::logs::{self, HEADER_LEN, SEGMENT_LEN, extend};
use crate::{Format, Parsed};
use gabion_base::units::BLOCK_LEN;
use gabion_base::{FileId, LogPosition, Result, SequenceNumber, Term};
use gabion_log::{
    Anchor, Drain, Log, LogConfig, Record, RecordBuilder, RecordFlags, RecordKind, RecordScan,
    RecoveryInput, RecoveryReport, Seal, Seen, SegmentSource, Span, Stamp, recover, verify,
};
use gabion_media::{Bytes, MemoryRegion};
use gabion_sim::SimulatedMemory;
use std::collections::BTreeSet;
use std::rc::Rc;

const RING_LEN: usize = 2 * SEGMENT_LEN;
/// Segments hold the log up to here.
const DRAINED: usize = 3 * SEGMENT_LEN;
/// The log ends here, where the ring does.
const END: usize = 4 * SEGMENT_LEN;
/// The length of the last record.
const LAST_LEN: usize = 2 * BLOCK_LEN;

/// Most changes hit the first record that the ring alone holds.
const RECOVERED_TURN: usize = DRAINED % RING_LEN;
/// Most changes hit the last record. Behind it a scan comes to the end of the ring.
const SCANNED_TURN: usize = RING_LEN - LAST_LEN;

const CHANGED: &str = "a record that was changed";
const CHANGED_IN_RING: &str = "a record that was changed, in the ring alone";
const ROTTEN: &str = "a log that is cut at a record that was durable";
const PAST_BAD: &str = "a record behind a bad place";

fn config(is_private: bool) -> LogConfig {
    LogConfig { ring_len: RING_LEN as u64, ..logs::config_of(is_private) }
}

/// A log with records of all kinds, or one with short headers.
struct Whole {
    records: Vec<Record>,
    ring: Vec<u8>,
    segments: Vec<u8>,
}

impl Whole {
    fn new(is_private: bool) -> Self {
        let memory = SimulatedMemory::new(RING_LEN);
        let ring = Box::new(memory.clone());
        let mut log = Log::create(config(is_private), ring, Term(1), Anchor::START).unwrap();
        let (mut records, mut segments) = (Vec::new(), Vec::new());
        loop {
            let left = END - log.end().get() as usize;
            if left == 0 {
                break;
            }
            let n = records.len() as u64;
            let (builder, flags) = next_record(n, left, is_private);
            let stamp = Stamp { first_sequence: SequenceNumber(n), count: 1, now_ms: n, flags };
            let appended = log.append_built(builder, stamp).unwrap();
            records.extend(appended.pad.into_iter().chain([appended.record]));
            drain(&mut log, &mut segments);
        }
        assert_eq!(segments.len(), DRAINED);
        assert_eq!(records.last().unwrap().bytes.len(), LAST_LEN);
        let short = records.iter().filter(|record| record.header.is_short).count();
        assert!(if is_private { short > 100 } else { short == 0 }, "{short} of {}", records.len());
        let mut ring = vec![0; RING_LEN];
        memory.read(0, &mut ring);
        Self { records, ring, segments }
    }

    fn sample(&self, turn: usize) -> Vec<u8> {
        let mut bytes = self.ring.clone();
        bytes.rotate_left(turn);
        bytes.extend_from_slice(&self.segments);
        bytes
    }
}

/// The record `n` when so many bytes are left. The last one begins with a block. It holds
/// beginnings of records up to the end of the ring, where none fits.
fn next_record(n: u64, left: usize, is_private: bool) -> (RecordBuilder, RecordFlags) {
    let kinds = [RecordKind::Batch, RecordKind::Edit, RecordKind::Seal];
    let (is_last, is_mixed) = (left == LAST_LEN, !is_private && left > 2 * LAST_LEN);
    let kind = if is_mixed { kinds[n as usize % 3] } else { RecordKind::Batch };
    let mut builder = RecordBuilder::new(kind, 10);
    if is_last {
        builder.payload().extend(b"GBLR\0\0\0\0".repeat((left - HEADER_LEN) / 8));
    } else {
        builder.payload().extend((0..n * 37 % 400).map(|i| (n + i) as u8));
    }
    if is_mixed {
        extend(&mut builder, n);
    }
    let ends_block = !is_last && left <= 2 * LAST_LEN;
    (builder, if ends_block { RecordFlags::BLOCK_END } else { RecordFlags::NONE })
}

/// Writes drained bytes into segments, and reports the flush.
fn drain(log: &mut Log, segments: &mut Vec<u8>) {
    while log.drained_end().get() < DRAINED as u64 {
        let Some(order) = log.next_drain(true) else { break };
        write(segments, &order);
        log.drained(order.end);
    }
    let end = log.drained_end();
    log.flushed(end);
}

fn write(segments: &mut Vec<u8>, order: &Drain) {
    let at = order.segment.number as usize * SEGMENT_LEN + order.offset_in_segment as usize;
    let end = at + order.data.len();
    if segments.len() < end {
        segments.resize(end.next_multiple_of(SEGMENT_LEN), 0);
    }
    segments[at..end].copy_from_slice(&order.data);
}

/// Ring and segments of an input.
fn parts(bytes: &[u8], turn: usize) -> (Vec<u8>, &[u8]) {
    let (ring, segments) = bytes.split_at(RING_LEN);
    let mut ring = ring.to_vec();
    ring.rotate_right(turn);
    (ring, segments)
}

/// Makes every record whole, and the next of the one before, as far as they adjoin; after that each
/// by itself.
fn seal(bytes: &mut [u8], turn: usize, starts: &BTreeSet<usize>) {
    let (ring, segments) = bytes.split_at_mut(RING_LEN);
    ring.rotate_right(turn);
    let (mut at, mut after) = (0, Some((0, 0)));
    loop {
        let in_segment = seal_at(segments, at, at, after);
        let is_of_ring = (END - RING_LEN..END).contains(&at);
        let in_ring = if is_of_ring { seal_at(ring, at % RING_LEN, at, after) } else { None };
        // Recovery prefers segments.
        if let Some((len, end)) = in_segment.or(in_ring) {
            (at, after) = (at + len, Some(end));
        } else if let Some(next) = starts.range(at + 1..).next() {
            (at, after) = (*next, None);
        } else {
            break;
        }
    }
    ring.rotate_left(turn);
}

/// Makes the record at a place of ring or segments whole, as the successor of this index and
/// checksum. Returns its length, its index and its checksum, if it belongs to this place.
fn seal_at(
    bytes: &mut [u8],
    place: usize,
    at: usize,
    after: Option<(u64, u32)>,
) -> Option<(usize, (u64, u32))> {
    let start = place / SEGMENT_LEN * SEGMENT_LEN;
    let segment = bytes.get_mut(start..start + SEGMENT_LEN)?;
    let (len, is_short) = logs::record_at(segment, place - start)?;
    let record = segment.get_mut(place - start..place - start + len)?;
    if is_short {
        let (index, previous) = after?;
        let sum = logs::seal_short(record, at, (index, previous));
        return (record[5] == 1).then_some((len, (index.wrapping_add(1), sum)));
    }
    if logs::number::<8>(record, 48) != (at as u64).to_le_bytes() {
        return None;
    }
    if let Some((index, previous)) = after {
        record[36..40].copy_from_slice(&u32::to_le_bytes(previous));
        record[40..48].copy_from_slice(&u64::to_le_bytes(index.wrapping_add(1)));
    }
    let sum = logs::seal_record(record);
    let header = [false, true].into_iter().find_map(|kind| verify(record, &config(kind)).ok());
    let header = header.filter(|header| header.term == Term(1))?;
    Some((len, (header.index.get(), sum)))
}

/// Segments, one behind the other.
struct Segments(Bytes);

impl SegmentSource for Segments {
    async fn read(&self, segment: FileId, offset: u64, len: usize) -> Result<Option<Bytes>> {
        let start = segment.number as usize * SEGMENT_LEN;
        if start >= self.0.len() {
            return Ok(None);
        }
        let segment = self.0.slice(start..start + SEGMENT_LEN);
        let offset = (offset as usize).min(SEGMENT_LEN);
        Ok(Some(segment.slice(offset..(offset + len).min(SEGMENT_LEN))))
    }
}

fn region(ring: &[u8]) -> Box<dyn MemoryRegion> {
    let mut memory = SimulatedMemory::new(ring.len());
    memory.write(0, ring);
    Box::new(memory)
}

fn spans() -> Vec<Span> {
    vec![Span { term: Term(1), start: LogPosition::ZERO, end: None }]
}

/// The content of samples.
struct Known {
    records: BTreeSet<Bytes>,
    starts: BTreeSet<usize>,
}

/// Samples, and their content.
fn samples(turn: usize) -> (Vec<Vec<u8>>, Known) {
    let wholes = [false, true].map(Whole::new);
    let records = || wholes.iter().flat_map(|whole| &whole.records);
    let known = Known {
        records: records().map(|record| record.bytes.clone()).collect(),
        starts: records().map(|record| record.header.position.get() as usize).collect(),
    };
    (wholes.iter().map(|whole| whole.sample(turn)).collect(), known)
}

fn format(name: &'static str, turn: usize, read: fn(&[u8], &Known, &Depth) -> Parsed) -> Deep {
    let (samples, known) = samples(turn);
    let starts = known.starts.clone();
    let depth = Rc::new(Depth::default());
    let counted = depth.clone();
    let read = move |bytes: &[u8]| {
        counted.begin();
        read(bytes, &known, &counted)
    };
    let format = Format {
        keeps_len: true,
        repair: Box::new(move |bytes| seal(bytes, turn, &starts)),
        rare: 6,
        ..Format::new(name, samples, read)
    };
    Deep { format, depth, places: &[] }
}

/// A log is recovered from ring and segments.
pub(crate) fn recovered() -> Deep {
    let places = &[CHANGED, CHANGED_IN_RING, ROTTEN];
    Deep { places, ..format("log, ring and segments", RECOVERED_TURN, read_recovered) }
}

/// Tools inspect the records in ring and segments, and those in segments alone.
pub(crate) fn scanned() -> Deep {
    Deep { places: &[CHANGED, PAST_BAD], ..format("log, scanned", SCANNED_TURN, read_scanned) }
}

/// Recovery's findings in ring and segments: all counted records can be taken.
fn recover_from(
    ring: &[u8],
    segments: &[u8],
    repair: bool,
) -> Result<(Log, RecoveryReport, Vec<Record>)> {
    let source = Segments(Bytes::copy_from_slice(segments));
    let (spans, start, durable) = (spans(), Anchor::START, LogPosition::ZERO);
    let input = RecoveryInput { spans, start, durable, repair };
    let config = config(logs::is_private(segments));
    let (mut log, report) = now(recover(config, region(ring), input, &source))?;
    let mut records = Vec::new();
    while let Some(record) = now(log.next_recovered(&source)).expect("what was found is there") {
        records.push(record);
    }
    Ok((log, report, records))
}

fn read_recovered(bytes: &[u8], known: &Known, depth: &Depth) -> Parsed {
    let (ring, segments) = parts(bytes, RECOVERED_TURN);
    for repair in [true, false] {
        let (log, report, records) = recover_from(&ring, segments, repair)?;
        let mut end = 0;
        for record in &records {
            let (at, len) = (record.header.position.get() as usize, record.bytes.len());
            assert_eq!(at, end, "records adjoin");
            let in_segment = segments.get(at..at + len) == Some(&record.bytes[..]);
            let in_ring = ring[at % RING_LEN..].get(..len) == Some(&record.bytes[..]);
            assert!(in_segment || in_ring, "what is read is what is there");
            if !known.records.contains(&record.bytes) {
                depth.reach(if in_segment { CHANGED } else { CHANGED_IN_RING });
            }
            end += len;
        }
        assert_eq!((report.end.get() as usize, report.records), (end, records.len() as u64));
        if report.rotten.is_some() {
            depth.reach(ROTTEN);
        }
        check_drained(log, segments, &records);
    }
    Ok(None)
}

/// The segments that a recovered log drains hold the found records by themselves.
fn check_drained(mut log: Log, segments: &[u8], records: &[Record]) {
    let mut segments = segments.to_vec();
    while let Some(order) = log.next_drain(true) {
        write(&mut segments, &order);
        log.drained(order.end);
    }
    let drained = log.drained_end();
    let again = recover_from(&[0; RING_LEN], &segments, true);
    let (_, _, again) = again.expect("what was drained can be recovered");
    let safe = records.iter().take_while(|record| record.end() <= drained).count();
    assert!(again.len() >= safe, "{} of {safe} records were drained", again.len());
    assert!(records.iter().zip(&again).all(|(a, b)| a == b), "they are drained as they were found");
}

fn read_scanned(bytes: &[u8], known: &Known, depth: &Depth) -> Parsed {
    let (ring, segments) = parts(bytes, SCANNED_TURN);
    let source = Segments(Bytes::copy_from_slice(segments));
    let (mut bad, config) = (None, config(logs::is_private(segments)));
    for with_ring in [true, false] {
        let region = with_ring.then(|| region(&ring));
        let mut scan = RecordScan::new(config, &spans(), Anchor::START, region)?;
        let (mut end, mut is_past) = (0, false);
        while let Some(seen) = now(scan.next(&source))? {
            let (record, in_segment, in_ring) = match seen {
                Seen::Record { record, in_segment, in_ring } => (record, in_segment, in_ring),
                Seen::Bad { from, to, error } => {
                    assert!(from.get() as usize >= end, "{from} is behind");
                    assert!(to.is_none_or(|to| to > from), "from {from} to {to:?}");
                    end = to.unwrap_or(from).get() as usize;
                    is_past = true;
                    bad.get_or_insert(error);
                    continue;
                }
            };
            let (at, len) = (record.header.position.get() as usize, record.bytes.len());
            assert!(at >= end, "{at} is behind");
            assert!(in_segment || (in_ring && with_ring), "it is somewhere");
            let is_there = |found: Option<&[u8]>| found == Some(&record.bytes[..]);
            assert!(!in_segment || is_there(segments.get(at..at + len)), "as in the segment");
            assert!(!in_ring || is_there(ring[at % RING_LEN..].get(..len)), "as in the ring");
            look_into(&record);
            if is_past {
                depth.reach(PAST_BAD);
            }
            if !known.records.contains(&record.bytes) {
                depth.reach(CHANGED);
            }
            end = at + len;
        }
    }
    bad.map_or(Ok(None), Err)
}

/// A tool's view of a record.
fn look_into(record: &Record) {
    let mut extensions = record.extensions();
    while let Ok(Some(_)) = extensions.next_field() {}
    let _ = record.sessions().map(Iterator::count);
    let _ = Seal::decode(&record.payload());
    assert!(record.header.len() + record.payload().len() <= record.bytes.len());
}
