//! The parts of a log: records, seals, spans, and segments of records.

use crate::Format;
use crate::files::now;
use gabion_base::codec::{Put, Reader};
use gabion_base::{
    ErrorKind, FileId, Frontier, GroupId, LogPosition, MemTableId, Result, SequenceNumber, ShardId,
    Term, crc,
};
use gabion_log::{
    Anchor, Log, LogConfig, LogKind, Record, RecordBuilder, RecordFlags, RecordKind, RecoveryInput,
    Seal, SegmentSource, SessionWrite, SessionWrites, Span, Stamp, recover, session::REPLY_LEN_MAX,
    verify,
};
use gabion_media::Bytes;
use gabion_sim::SimulatedMemory;

pub(crate) const SEGMENT_LEN: usize = 32 << 10;
pub(crate) const HEADER_LEN: usize = 88;
const SHORT_LEN: usize = 24;

const fn config() -> LogConfig {
    config_of(false)
}

/// The same for a group of one, whose batches have short headers, or for a larger group.
pub(crate) const fn config_of(is_private: bool) -> LogConfig {
    LogConfig {
        group: GroupId(7),
        shard: ShardId(0),
        ring_len: 8 * SEGMENT_LEN as u64,
        segment_len: SEGMENT_LEN as u64,
        kind: if is_private { LogKind::Private } else { LogKind::Shared },
    }
}

fn ring() -> Box<SimulatedMemory> {
    Box::new(SimulatedMemory::new(8 * SEGMENT_LEN))
}

fn new_log() -> Log {
    Log::create(config(), ring(), Term(1), Anchor::START).unwrap()
}

/// Records of all kinds that a head appends, in their order.
fn records(count: u64) -> Vec<Record> {
    append_to(new_log(), count)
}

/// Batches of a private log, up to the end of a segment.
fn short_records() -> Vec<Record> {
    let mut log = Log::create(config_of(true), ring(), Term(1), Anchor::START).unwrap();
    let mut all = Vec::new();
    for n in 0.. {
        let payload: Vec<u8> = (0..n * 37 % 200).map(|i| (n + i) as u8).collect();
        let flags = RecordFlags::NONE;
        let stamp = Stamp { first_sequence: SequenceNumber(n), count: 1, now_ms: n, flags };
        let appended = log.append(RecordKind::Batch, &payload, stamp).unwrap();
        all.extend(appended.pad.into_iter().chain([appended.record]));
        if log.end().get() >= SEGMENT_LEN as u64 {
            break;
        }
    }
    let short = all.iter().filter(|record: &&Record| record.header.is_short);
    assert!(short.count() > all.len() * 9 / 10);
    all
}

fn append_to(mut log: Log, count: u64) -> Vec<Record> {
    let mut all = Vec::new();
    for n in 0..count {
        let flags = if n % 9 == 8 { RecordFlags::BLOCK_END } else { RecordFlags::NONE };
        let kind = [RecordKind::Batch, RecordKind::Edit, RecordKind::Seal][n as usize % 3];
        let mut builder = RecordBuilder::new(kind, 10);
        builder.payload().extend((0..n * 37 % 400).map(|i| (n + i) as u8));
        extend(&mut builder, n);
        let stamp = Stamp { first_sequence: SequenceNumber(n), count: 1, now_ms: n, flags };
        let appended = log.append_built(builder, stamp).unwrap();
        all.extend(appended.pad.into_iter().chain([appended.record]));
    }
    all
}

/// Adds extensions to some records.
pub(crate) fn extend(builder: &mut RecordBuilder, n: u64) {
    if n % 4 == 1 {
        builder.extension(77, 0, b"what another version knows").unwrap();
    }
    if builder.kind() == RecordKind::Batch && n.is_multiple_of(2) {
        builder.sessions([session_write(n, 0)]).unwrap();
    }
}

fn session_write(n: u64, first: u32) -> SessionWrite<'static> {
    let reply = &[b'+'; REPLY_LEN_MAX][..n as usize * 7 % (REPLY_LEN_MAX + 1)];
    SessionWrite { session: n, number: n * 3, first, count: 1, reply }
}

/// The extensions of records with four entries, and then the entries.
fn session_lists() -> Vec<Vec<u8>> {
    [1, 4]
        .map(|count| {
            let mut builder = RecordBuilder::new(RecordKind::Batch, 0);
            builder.sessions((0..count).map(|n| session_write(u64::from(n) + 5, n))).unwrap();
            let flags = RecordFlags::NONE;
            let stamp = Stamp { first_sequence: SequenceNumber(1), count: 4, now_ms: 1, flags };
            let record = new_log().append_built(builder, stamp).unwrap().record;
            let field = record.extensions().next_field().unwrap().unwrap();
            let entries: &[u8] = &4_u32.to_le_bytes();
            [field.payload, entries].concat()
        })
        .to_vec()
}

fn read_sessions(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some((list, entries)) = bytes.split_last_chunk() else {
        return Err(gabion_base::Error::corruption("no number of entries"));
    };
    let (writes, mut out) =
        (SessionWrites::decode(list, u32::from_le_bytes(*entries))?, Vec::new());
    out.put_u32(writes.clone().count() as u32);
    for SessionWrite { session, number, first, count, reply } in writes {
        out.put_u64(session);
        out.put_u64(number);
        out.put_u32(first);
        out.put_u32(count);
        out.put_u8(reply.len() as u8);
        out.put_bytes(reply);
    }
    out.put_bytes(entries);
    Ok(Some(out))
}

pub(crate) fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut number = [0; N];
    number.copy_from_slice(&bytes[at..at + N]);
    number
}

/// Whether a log that begins with these bytes is a private one.
pub(crate) fn is_private(bytes: &[u8]) -> bool {
    bytes.get(6).is_some_and(|flags| u16::from(*flags) & RecordFlags::SHORT_AFTER.bits() != 0)
}

/// The length stated by the record at the front of some bytes, if it is possible.
fn len_of(bytes: &[u8]) -> Option<usize> {
    if bytes.len() < HEADER_LEN {
        return None;
    }
    let (payload, extensions) = (u32::from_le_bytes(number(bytes, 8)), number(bytes, 34));
    let body = HEADER_LEN + usize::from(u16::from_le_bytes(extensions)) + payload as usize;
    let position = u64::from_le_bytes(number(bytes, 48)) as usize % SEGMENT_LEN;
    let is_block_end = u16::from_le_bytes(number(bytes, 6)) & RecordFlags::BLOCK_END.bits() != 0;
    padded(position, body, if is_block_end { 4096 } else { 8 })
}

/// The length of a record with its padding, if it ends within the segment.
fn padded(position: usize, body: usize, align: usize) -> Option<usize> {
    let end = (position + body).next_multiple_of(align);
    let is_rest = end < SEGMENT_LEN && SEGMENT_LEN - end < HEADER_LEN;
    let end = if is_rest { SEGMENT_LEN } else { end };
    (end <= SEGMENT_LEN).then(|| end - position)
}

/// Repairs the checksum of a record.
pub(crate) fn seal_record(bytes: &mut [u8]) -> u32 {
    bytes[12..16].fill(0);
    let sum = crc::crc32c(bytes);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    sum
}

/// Makes one record whole, with its stated length.
fn seal_one(bytes: &mut Vec<u8>) {
    if let Some(len) = len_of(bytes) {
        if bytes.len() < len {
            bytes.resize(len, 0);
        }
        seal_record(&mut bytes[..len]);
    }
}

/// Makes a record with a short header whole at its place, after so many records, the last of which
/// has this checksum.
pub(crate) fn seal_short(record: &mut [u8], at: usize, (index, previous): (u64, u32)) -> u32 {
    let mut said = [0; 32];
    for (to, number) in said.chunks_mut(8).zip([config().group.get(), 1, at as u64]) {
        to.copy_from_slice(&number.to_le_bytes());
    }
    let place = crc::crc32c(&said);
    record[6..8].copy_from_slice(&((place ^ (place >> 16)) as u16).to_le_bytes());
    let before = crc::append(place, &index.to_le_bytes());
    let before = crc::append(before, &previous.to_le_bytes());
    let sum = crc::append(before, &record[4..]);
    record[..4].copy_from_slice(&sum.to_le_bytes());
    sum
}

/// The length of the record at a place of a segment, and whether its header is short.
pub(crate) fn record_at(bytes: &[u8], at: usize) -> Option<(usize, bool)> {
    let record = bytes.get(at..)?;
    if record.starts_with(b"GBLR") {
        return len_of(record).map(|len| (len, false));
    }
    if record.get(4) != Some(&0x67) {
        return None;
    }
    let payload = u16::from_le_bytes([*record.get(8)?, *record.get(9)?]);
    padded(at, SHORT_LEN + usize::from(payload), 8).map(|len| (len, true))
}

/// Makes the records of a segment whole, and each the next of the one before.
fn seal_chain(bytes: &mut [u8]) {
    let (mut at, mut previous, mut index) = (0, 0, 0);
    while let Some((len, is_short)) =
        record_at(bytes, at).filter(|(len, _)| at + len <= SEGMENT_LEN)
    {
        let record = &mut bytes[at..at + len];
        if is_short {
            previous = seal_short(record, at, (index, previous));
            (at, index) = (at + len, index + 1);
            continue;
        }
        record[36..40].copy_from_slice(&u32::to_le_bytes(previous));
        previous = seal_record(record);
        at += len;
    }
}

fn read_record(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let header = verify(bytes, &config())?;
    let len = (header.end(config().segment_len).get() - header.position.get()) as usize;
    let record = Record { header, bytes: Bytes::copy_from_slice(&bytes[..len]) };
    let mut extensions = record.extensions();
    while extensions.next_field()?.is_some() {}
    let mut writes = record.sessions()?;
    assert!(writes.all(|write| write.first < header.count && write.reply.len() <= REPLY_LEN_MAX));
    assert!(record.payload().len() <= len);
    Ok(None)
}

fn place(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut log = new_log();
    let end = log.end();
    let placed = log.place(Bytes::copy_from_slice(bytes)).map(|_| None);
    assert!(placed.is_ok() || log.end() >= end);
    placed
}

/// One segment.
struct Segment(Bytes);

impl SegmentSource for Segment {
    async fn read(&self, segment: FileId, offset: u64, len: usize) -> Result<Option<Bytes>> {
        if segment.number > 0 {
            return Ok(None);
        }
        let end = (offset as usize + len).min(self.0.len());
        Ok(Some(self.0.slice((offset as usize).min(end)..end)))
    }
}

/// Recovers a log of a segment: the records found stand in the segment as they are.
fn recover_segment(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let source = Segment(Bytes::copy_from_slice(bytes));
    let spans = vec![Span { term: Term(1), start: LogPosition::ZERO, end: None }];
    for repair in [true, false] {
        let input = RecoveryInput {
            spans: spans.clone(),
            start: Anchor::START,
            durable: LogPosition::ZERO,
            repair,
        };
        let config = config_of(is_private(bytes));
        let (mut log, report) = now(recover(config, ring(), input, &source))?;
        let (mut at, mut count) = (0, 0);
        while let Some(record) = now(log.next_recovered(&source))? {
            let len = record.bytes.len();
            assert_eq!(record.header.position.get() as usize, at, "records adjoin");
            assert_eq!(record.bytes[..], bytes[at..at + len], "what is read is what is there");
            at += len;
            count += 1;
        }
        assert_eq!((report.end.get() as usize, report.records), (at, count));
    }
    Ok(None)
}

fn read_spans(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut reader = Reader::new(bytes, "spans");
    let (spans, anchor) = (Span::decode_list(&mut reader)?, Anchor::decode(&mut reader)?);
    reader.finish()?;
    let mut out = Vec::new();
    Span::encode_list(&spans, &mut out);
    anchor.encode(&mut out);
    Ok(Some(out))
}

fn spans() -> Vec<u8> {
    let span = |term, start, end: Option<u64>| Span {
        term: Term(term),
        start: LogPosition(start),
        end: end.map(LogPosition),
    };
    let mut out = Vec::new();
    Span::encode_list(
        &[span(1, 0, Some(100)), span(3, 4096, Some(9000)), span(4, 12_288, None)],
        &mut out,
    );
    Anchor::START.encode(&mut out);
    out
}

fn seals() -> Vec<Vec<u8>> {
    let seals = [1, 3].map(|n| {
        let (memtable, sequence) = (MemTableId(7), SequenceNumber(n * 10));
        let frontier = Frontier::of(LogPosition(n * 4096));
        let mut out = Vec::new();
        Seal { memtable, sequence, frontier }.encode(&mut out);
        out
    });
    seals.to_vec()
}

pub(crate) fn formats() -> Vec<Format> {
    let of_records = || records(12).into_iter().map(|record| record.bytes.to_vec()).collect();
    let mut segment: Vec<u8> =
        records(40).iter().flat_map(|record| record.bytes.iter().copied()).collect();
    segment.truncate(SEGMENT_LEN);
    segment.resize(SEGMENT_LEN, 0);
    let mut short: Vec<u8> =
        short_records().iter().flat_map(|record| record.bytes.iter().copied()).collect();
    short.truncate(SEGMENT_LEN);
    let first = records(1).into_iter().map(|record| record.bytes.to_vec()).collect();
    vec![
        Format {
            repair: Box::new(seal_one),
            ..Format::new("log record", of_records(), read_record)
        },
        Format {
            repair: Box::new(seal_one),
            // The ring of a log.
            memory_max: 1 << 20,
            // A record of a place or a term that the log has not reached.
            other_errors: &[ErrorKind::Unavailable, ErrorKind::NoSpace, ErrorKind::Fenced],
            rare: 4,
            ..Format::new("log record, placed", first, place)
        },
        Format {
            keeps_len: true,
            repair: Box::new(|bytes| seal_chain(bytes)),
            memory_max: 1 << 20,
            rare: 4,
            ..Format::new("log segment", vec![segment, short], recover_segment)
        },
        Format::new("seal", seals(), |bytes| {
            let mut out = Vec::new();
            Seal::decode(bytes)?.encode(&mut out);
            Ok(Some(out))
        }),
        Format::new("session extension", session_lists(), read_sessions),
        Format::new("spans and anchor", vec![spans()], read_spans),
    ]
}
