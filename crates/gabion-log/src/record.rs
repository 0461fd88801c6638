//! The record: what is sent, kept in the ring, drained and sent again, byte for byte.
//!
//! ```text
//!   0        4     5      6       8             12       16      24     32      34       36
//!   ┌────────┬─────┬──────┬───────┬─────────────┬────────┬───────┬──────┬───────┬────────┐
//!   │ "GBLR" │ ver │ kind │ flags │ payload len │ CRC32C │ group │ term │ shard │ ext len│
//!   ├────────┴─┬───┴───┬──┴───────┼─────────────┼───────┬┴───────┴─┬────┴────┬──┴─────┬──┘
//!   │ prev CRC │ index │ position │ first seq.  │ count │ zero u32 │ durable │ now_ms │
//!   ├──────────┴─┬─────┴───┬──────┴┬────────────┴───────┴──────────┴─────────┴────────┘
//!   │  payload   │ extens. │ zeros │
//!   └────────────┴─────────┴───────┘
//!   36 prev CRC  40 index  48 position  56 first sequence  64 count  68 zero  72 durable
//!   80 now_ms  88 payload, extensions
//! ```
//!
//! All numbers are little endian. The CRC covers the whole record, padding included, with its own
//! field taken as zero.
//!
//! **Length.** A record is padded with zeros to a multiple of 8; with `BLOCK_END` to the next 4 KiB
//! boundary of its *position*; and to the end of its segment with `SEGMENT_END`, or when less than
//! a header would be left there. So records follow each other without gaps that belong to nobody,
//! and none crosses a segment: a *pad* record fills a larger rest. The length is a function of
//! position and header.
//!
//! **Extensions** are typed fields behind the payload: what a batch says of its clients is known
//! when the batch is complete, and the payload is not moved for it. [`crate::session`] is the one
//! that this build has.
//!
//! **Short headers.** In a log that is sent to nobody, a record may have a header of 24 bytes where
//! its place says the rest: [`crate::short`].
//!
//! **Valid** = magic, lengths, CRC, group, shard and position fit, the term is the one of the span
//! that the position lies in, index and previous CRC continue the record before (of a short header:
//! its CRC is of just that place after just that record). A record that is whole but has a version,
//! kind, flag or critical extension that this build does not know is refused as unsupported, never
//! taken for the end of the log (docs/faults.md R15).

use crate::session::{SessionWrite, SessionWrites, encode_list};
use crate::short::{Place, SHORT_LEN};
use crate::span::Anchor;
use crate::{LogConfig, LogKind};
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{FIELD_CRITICAL, FIELD_HEADER_LEN, Fields, put_field};
use gabion_base::units::BLOCK_LEN;
use gabion_base::{
    Error, GroupId, LogIndex, LogPosition, Result, SequenceNumber, ShardId, Term, crc,
};
use gabion_media::Bytes;

/// Bytes before a record's payload.
pub const HEADER_LEN: usize = 88;
/// The first four bytes of a record.
pub const MAGIC: u32 = u32::from_le_bytes(*b"GBLR");
/// Version of the format.
pub const VERSION: u8 = 2;
/// Extension: the writes of client sessions, for exactly-once: [`crate::session`].
pub const EXTENSION_SESSION: u16 = 1;
/// Extension: gang of a batch over several shards. Reserved.
pub const EXTENSION_GANG: u16 = 2;
/// Positions end here: no group writes 4 EiB, and sums of positions and lengths stay in 64 bits.
pub const POSITION_MAX: u64 = 1 << 62;

const CRC_AT: usize = 12;
const CRC_END: usize = 16;
const _: () = assert!(HEADER_LEN.is_multiple_of(8));

/// What a record carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// Writes of clients.
    Batch = 1,
    /// A MemTable is complete: [`crate::Seal`].
    Seal = 2,
    /// The tree changes.
    Edit = 3,
    /// Nothing: fills a segment whose rest is too short for the record that comes next.
    Pad = 4,
    /// The first record of a term.
    TermStart = 5,
    /// The writes of sessions up to here: what a log that begins before it does not have any more.
    Sessions = 6,
}

impl RecordKind {
    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Batch),
            2 => Some(Self::Seal),
            3 => Some(Self::Edit),
            4 => Some(Self::Pad),
            5 => Some(Self::TermStart),
            6 => Some(Self::Sessions),
            _ => None,
        }
    }
}

/// A set of record flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RecordFlags(u16);

impl RecordFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// The rest of the record's last block belongs to it, so that it can be drained by itself.
    pub const BLOCK_END: Self = Self(1);
    /// A client waits until every member has flushed the record.
    pub const DURABLE_ACK: Self = Self(2);
    /// Records with [short headers](crate::short) may follow in the block in which it begins.
    pub const SHORT_AFTER: Self = Self(4);
    /// The rest of the record's segment belongs to it: the next MemTable begins with a segment.
    pub const SEGMENT_END: Self = Self(8);
    const KNOWN: u16 = 15;

    /// The flags of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other`'s flags are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The flags as stored.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }
}

/// The fixed part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the payload is.
    pub kind: RecordKind,
    /// It has a [short header](crate::short), which says less.
    pub is_short: bool,
    /// Flags.
    pub flags: RecordFlags,
    /// Bytes of payload.
    pub payload_len: u32,
    /// Checksum of the whole record.
    pub crc: u32,
    /// The group whose log it belongs to.
    pub group: GroupId,
    /// The tenure that wrote it.
    pub term: Term,
    /// Which of the group's logs.
    pub shard: ShardId,
    /// Bytes of extensions.
    pub extension_len: u16,
    /// Checksum of the record before.
    pub previous_crc: u32,
    /// Ordinal of the record in its log; the first is 1.
    pub index: LogIndex,
    /// Where its first byte lies.
    pub position: LogPosition,
    /// Sequence number of its first entry.
    pub first_sequence: SequenceNumber,
    /// Sequence numbers that it takes.
    pub count: u32,
    /// End of a record: everything below was flushed by every member when this one was written.
    /// Zero in a short header, which does not say it.
    pub durable: LogPosition,
    /// The head's monotone clock, in milliseconds; the group's time once this is applied.
    pub now_ms: u64,
}

impl Header {
    /// Bytes of the header itself.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        if self.is_short { SHORT_LEN } else { HEADER_LEN }
    }

    /// The position after the record and its padding.
    #[must_use]
    pub fn end(&self, segment_len: u64) -> LogPosition {
        let body = (self.len() + usize::from(self.extension_len)) as u64;
        let body = body + u64::from(self.payload_len);
        LogPosition(record_end(self.position.get(), body, self.flags, segment_len))
    }

    fn encode(&self, out: &mut [u8; HEADER_LEN]) {
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4] = VERSION;
        out[5] = self.kind as u8;
        out[6..8].copy_from_slice(&self.flags.bits().to_le_bytes());
        out[8..12].copy_from_slice(&self.payload_len.to_le_bytes());
        out[CRC_AT..CRC_END].copy_from_slice(&self.crc.to_le_bytes());
        out[16..24].copy_from_slice(&self.group.get().to_le_bytes());
        out[24..32].copy_from_slice(&self.term.get().to_le_bytes());
        out[32..34].copy_from_slice(&self.shard.get().to_le_bytes());
        out[34..36].copy_from_slice(&self.extension_len.to_le_bytes());
        out[36..40].copy_from_slice(&self.previous_crc.to_le_bytes());
        out[40..48].copy_from_slice(&self.index.get().to_le_bytes());
        out[48..56].copy_from_slice(&self.position.get().to_le_bytes());
        out[56..64].copy_from_slice(&self.first_sequence.get().to_le_bytes());
        out[64..68].copy_from_slice(&self.count.to_le_bytes());
        out[68..72].fill(0);
        out[72..80].copy_from_slice(&self.durable.get().to_le_bytes());
        out[80..88].copy_from_slice(&self.now_ms.to_le_bytes());
    }
}

/// Where a record of `body` bytes (header, extensions, payload) at `position` ends.
pub(crate) fn record_end(position: u64, body: u64, flags: RecordFlags, segment_len: u64) -> u64 {
    let align = if flags.has(RecordFlags::BLOCK_END) { BLOCK_LEN as u64 } else { 8 };
    let end = (position + body).next_multiple_of(align);
    let segment_end = (position / segment_len + 1) * segment_len;
    let fills = flags.has(RecordFlags::SEGMENT_END)
        || segment_end - end.min(segment_end) < HEADER_LEN as u64;
    if end < segment_end && fills { segment_end } else { end }
}

/// The header at the front of `bytes`, with known version, kind and flags. Only the checksum tells
/// whether it is true: see [`verify`].
///
/// # Errors
/// Corruption when fewer than 88 bytes are given or the magic or a length is impossible;
/// unsupported for a version, kind or flag of another build.
pub fn decode_header(bytes: &[u8]) -> Result<Header> {
    let head = head_of(bytes)?;
    let layout = Layout::of(head)?;
    let version = head[4];
    let (kind, flags) = (RecordKind::from_byte(head[5]), layout.flags.bits());
    let Some(kind) = kind.filter(|_| version == VERSION) else {
        return Err(Error::unsupported(format!(
            "log record at {} has version {version}, kind {}; this build reads version {VERSION}",
            layout.position, head[5]
        )));
    };
    if flags & !RecordFlags::KNOWN != 0 {
        return Err(Error::unsupported(format!(
            "log record at {} has flags {flags:#06x}; this build knows {:#06x}",
            layout.position,
            RecordFlags::KNOWN
        )));
    }
    let reserved = u32_at(head, 68);
    if reserved != 0 {
        return Err(Error::unsupported(format!(
            "log record at {} has {reserved:#x} in a reserved field",
            layout.position
        )));
    }
    let header = Header {
        kind,
        is_short: false,
        flags: layout.flags,
        payload_len: u32_at(head, 8),
        crc: u32_at(head, CRC_AT),
        group: layout.group,
        term: layout.term,
        shard: layout.shard,
        extension_len: u16_at(head, 34),
        previous_crc: u32_at(head, 36),
        index: LogIndex(u64_at(head, 40)),
        position: layout.position,
        first_sequence: SequenceNumber(u64_at(head, 56)),
        count: u32_at(head, 64),
        durable: LogPosition(u64_at(head, 72)),
        now_ms: u64_at(head, 80),
    };
    if header.durable > header.position {
        return Err(Error::corruption(format!(
            "log record at {} claims to be durable up to {}",
            header.position, header.durable
        )));
    }
    Ok(header)
}

fn head_of(bytes: &[u8]) -> Result<&[u8; HEADER_LEN]> {
    bytes.first_chunk().ok_or_else(|| {
        Error::corruption(format!("log record header: {} bytes, {HEADER_LEN} wanted", bytes.len()))
    })
}

fn part<const N: usize>(head: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&head[at..at + N]);
    part
}

fn u16_at(head: &[u8; HEADER_LEN], at: usize) -> u16 {
    u16::from_le_bytes(part(head, at))
}

fn u32_at(head: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from_le_bytes(part(head, at))
}

fn u64_at(head: &[u8; HEADER_LEN], at: usize) -> u64 {
    u64::from_le_bytes(part(head, at))
}

/// The fields that say how long a record is; they keep their places in every version.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) position: LogPosition,
    pub(crate) group: GroupId,
    pub(crate) term: Term,
    pub(crate) shard: ShardId,
    flags: RecordFlags,
    body: u64,
}

impl Layout {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        Self::of(head_of(bytes)?)
    }

    fn of(head: &[u8; HEADER_LEN]) -> Result<Self> {
        let (magic, position) = (u32_at(head, 0), LogPosition(u64_at(head, 48)));
        if magic != MAGIC || !position.get().is_multiple_of(8) || position.get() > POSITION_MAX {
            return Err(Error::corruption(format!(
                "log record header: magic {magic:#010x}, position {position}"
            )));
        }
        Ok(Self {
            position,
            group: GroupId(u64_at(head, 16)),
            term: Term(u64_at(head, 24)),
            shard: ShardId(u16_at(head, 32)),
            flags: RecordFlags(u16_at(head, 6)),
            body: HEADER_LEN as u64 + u64::from(u16_at(head, 34)) + u64::from(u32_at(head, 8)),
        })
    }

    /// That of a record of so many bytes, its [short header](crate::short) included, at a place.
    pub(crate) fn of_short(place: &Place<'_>, body: u64) -> Self {
        Self {
            position: LogPosition(place.at),
            group: place.config.group,
            term: place.term,
            shard: place.config.shard,
            flags: RecordFlags::NONE,
            body,
        }
    }

    /// Bytes of the record.
    pub(crate) fn len(&self, segment_len: u64) -> Result<usize> {
        let at = self.position.get();
        let end = record_end(at, self.body, self.flags, segment_len);
        if end > (at / segment_len + 1) * segment_len {
            return Err(Error::corruption(format!(
                "log record at {} of {} bytes crosses a segment of {segment_len}",
                self.position, self.body
            )));
        }
        Ok((end - at) as usize)
    }
}

/// Checks the record at the front of `bytes`, which may be followed by others: lengths, checksum,
/// group, shard, then version, kind, flags and critical extensions. Term, position and what came
/// before are for the caller, who knows what to expect.
///
/// # Errors
/// Corruption or, for a whole record of another build, unsupported.
pub fn verify(bytes: &[u8], config: &LogConfig) -> Result<Header> {
    let layout = Layout::read(bytes)?;
    let position = layout.position;
    let len = layout.len(config.segment_len)?;
    let Some(bytes) = bytes.get(..len) else {
        return Err(Error::corruption(format!(
            "log record at {position}: {} bytes given of {len}",
            bytes.len()
        )));
    };
    let stored = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
    let found = checksum(bytes);
    if found != stored {
        return Err(Error::corruption(format!(
            "log record at {position} has checksum {found:#010x}, {stored:#010x} is stored"
        )));
    }
    if (layout.group, layout.shard) != (config.group, config.shard) {
        return Err(Error::corruption(format!(
            "log record at {position} belongs to {} {}, this log is {} {}",
            layout.group, layout.shard, config.group, config.shard
        )));
    }
    let header = decode_header(bytes)?;
    check_kind(&header, config)?;
    check_extensions(bytes, &header)?;
    Ok(header)
}

/// Refuses a record of a log of the other kind: each long header of a private log says that short
/// ones may follow it, and none of a shared log does.
fn check_kind(header: &Header, config: &LogConfig) -> Result<()> {
    let is_private = header.flags.has(RecordFlags::SHORT_AFTER);
    if is_private == (config.kind == LogKind::Private) {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "log record at {} is not of a {} log, as that of {} is: {}",
        header.position,
        config.kind.as_str(),
        config.group,
        LogKind::BOTH
    )))
}

fn extensions<'a>(bytes: &'a [u8], header: &Header) -> Fields<'a> {
    let start = header.len() + header.payload_len as usize;
    let end = start + usize::from(header.extension_len);
    Fields::new(bytes.get(start..end).unwrap_or_default(), "log record extensions")
}

fn check_extensions(bytes: &[u8], header: &Header) -> Result<()> {
    let (mut fields, mut has_sessions) = (extensions(bytes, header), false);
    while let Some(field) = fields.next_field()? {
        if field.tag != EXTENSION_SESSION {
            field.skip_unknown("log record")?;
            continue;
        }
        if has_sessions {
            return Err(Error::corruption(format!(
                "log record at {} has two session extensions",
                header.position
            )));
        }
        SessionWrites::of_record(field.payload, header)?;
        has_sessions = true;
    }
    Ok(())
}

/// CRC32C of a whole record, its own field taken as zero.
fn checksum(record: &[u8]) -> u32 {
    let head = crc::append(crc::crc32c(&record[..CRC_AT]), &[0; CRC_END - CRC_AT]);
    crc::append(head, &record[CRC_END..])
}

/// A whole record, checked. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The fixed part, decoded.
    pub header: Header,
    /// All of it, header and padding included: the wire message, where it is sent.
    pub bytes: Bytes,
}

impl Record {
    /// What the record carries.
    #[must_use]
    pub fn payload(&self) -> Bytes {
        let start = self.header.len();
        self.bytes.slice(start..start + self.header.payload_len as usize)
    }

    /// The typed fields behind the payload.
    #[must_use]
    pub fn extensions(&self) -> Fields<'_> {
        extensions(&self.bytes, &self.header)
    }

    /// The writes of client sessions that the record carries; none without the extension.
    ///
    /// # Errors
    /// Corruption, for a record that [`verify`] has not accepted.
    pub fn sessions(&self) -> Result<SessionWrites<'_>> {
        let mut fields = self.extensions();
        while let Some(field) = fields.next_field()? {
            if field.tag == EXTENSION_SESSION {
                return SessionWrites::of_record(field.payload, &self.header);
            }
        }
        Ok(SessionWrites::NONE)
    }

    /// The position after the record and its padding.
    #[must_use]
    pub fn end(&self) -> LogPosition {
        LogPosition(self.header.position.get() + self.bytes.len() as u64)
    }

    /// The place after the record: what a log that is trimmed up to here starts from.
    #[must_use]
    pub fn anchor(&self) -> Anchor {
        Anchor { position: self.end(), index: self.header.index, crc: self.header.crc }
    }

    /// A record from bytes that [`verify`] has accepted and that hold exactly one record.
    pub(crate) fn checked(header: Header, bytes: Bytes) -> Self {
        Self { header, bytes }
    }
}

/// A record while its payload is being encoded, in the buffer that becomes the record, with room
/// for the header in front: a batch is encoded once and never copied but into the ring.
#[derive(Debug)]
pub struct RecordBuilder {
    kind: RecordKind,
    extension_len: usize,
    /// The entry behind the last that is a session's; 0 without sessions.
    sessions_end: u32,
    bytes: Vec<u8>,
}

impl RecordBuilder {
    /// Bytes in front of the payload.
    pub const ROOM: usize = HEADER_LEN;

    /// A record of this kind; `capacity` bytes of payload fit before the buffer grows.
    #[must_use]
    pub fn new(kind: RecordKind, capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_LEN + capacity + 8);
        bytes.resize(HEADER_LEN, 0);
        Self { kind, extension_len: 0, sessions_end: 0, bytes }
    }

    /// A record whose payload is encoded already, in a buffer that begins with [`Self::ROOM`] bytes
    /// for the header; whatever they are, they are overwritten.
    ///
    /// # Errors
    /// Invalid input for a buffer without that room.
    pub fn of_payload(kind: RecordKind, bytes: Vec<u8>) -> Result<Self> {
        if bytes.len() < Self::ROOM {
            return Err(Error::invalid(format!(
                "a buffer of {} bytes for a log record; its header takes {}",
                bytes.len(),
                Self::ROOM
            )));
        }
        Ok(Self { kind, extension_len: 0, sessions_end: 0, bytes })
    }

    /// Adds a typed field behind the payload, which is complete.
    ///
    /// # Errors
    /// Limit exceeded when extensions pass 64 KiB: nothing is added then.
    pub fn extension(&mut self, tag: u16, flags: u16, payload: &[u8]) -> Result<()> {
        self.check_extension_len(FIELD_HEADER_LEN + payload.len())?;
        put_field(&mut self.bytes, tag, flags, payload);
        self.extension_len += FIELD_HEADER_LEN + payload.len();
        Ok(())
    }

    /// Says which entries of the batch are which session's write, in the order of the entries. The
    /// payload is complete. Without any write nothing is added.
    ///
    /// # Errors
    /// Invalid input for a second list, in another record than a batch, and for a write that breaks
    /// a rule of [`crate::session`]; limit exceeded when extensions pass 64 KiB. Nothing is added
    /// then.
    pub fn sessions<'a>(
        &mut self,
        writes: impl IntoIterator<Item = SessionWrite<'a>>,
    ) -> Result<()> {
        if self.sessions_end > 0 || self.kind != RecordKind::Batch {
            return Err(Error::invalid(format!(
                "a list of session writes for a record of kind {} that has one up to entry {}",
                self.kind as u8, self.sessions_end
            )));
        }
        let start = self.bytes.len();
        put_field(&mut self.bytes, EXTENSION_SESSION, FIELD_CRITICAL, &[]);
        let encoded = encode_list(writes, &mut self.bytes).and_then(|end| {
            let len = self.bytes.len() - start;
            self.check_extension_len(len).map(|()| (end, len))
        });
        match encoded {
            Ok((end, len)) if end > 0 => {
                let list_len = ((len - FIELD_HEADER_LEN) as u32).to_le_bytes();
                self.bytes[start + FIELD_HEADER_LEN - 4..][..4].copy_from_slice(&list_len);
                (self.sessions_end, self.extension_len) = (end, self.extension_len + len);
            }
            _ => self.bytes.truncate(start),
        }
        encoded.map(|_| ())
    }

    fn check_extension_len(&self, more: usize) -> Result<()> {
        let len = self.extension_len + more;
        if len <= usize::from(u16::MAX) {
            return Ok(());
        }
        Err(Error::limit(format!("extensions of {len} bytes; the limit is {}", u16::MAX)))
    }

    /// Where the payload is appended. Only append: what is there already belongs to the record.
    ///
    /// # Panics
    /// When extensions were added: they stand behind the whole payload.
    pub fn payload(&mut self) -> &mut Vec<u8> {
        assert_eq!(self.extension_len, 0, "extensions stand behind the whole payload");
        &mut self.bytes
    }

    /// Bytes of payload so far.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.bytes.len().saturating_sub(HEADER_LEN + self.extension_len)
    }

    /// What the record will carry.
    #[must_use]
    pub fn kind(&self) -> RecordKind {
        self.kind
    }

    /// Bytes without padding, with a long header.
    pub(crate) fn body_len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of extensions.
    pub(crate) fn extension_len(&self) -> usize {
        self.extension_len
    }

    /// The entry behind the last that is a session's; 0 without sessions.
    pub(crate) fn sessions_end(&self) -> u32 {
        self.sessions_end
    }

    /// Whether the buffer was cut below what it has to hold, or outgrew its length field.
    pub(crate) fn is_sound(&self) -> bool {
        self.bytes.len() >= HEADER_LEN + self.extension_len
            && u32::try_from(self.payload_len()).is_ok()
    }

    /// The same as [`Self::finish`] with a short header, where [`crate::short::may_be_short`] says
    /// that it may have one.
    pub(crate) fn finish_short(
        mut self,
        mut header: Header,
        end: u64,
        place: &Place<'_>,
    ) -> Record {
        header.payload_len = self.payload_len() as u32;
        header.flags = RecordFlags::NONE;
        header.durable = LogPosition::ZERO;
        let unused = HEADER_LEN - SHORT_LEN;
        self.bytes.resize(unused + (end - header.position.get()) as usize, 0);
        header.crc = place.encode_short(&header, &mut self.bytes[unused..]);
        Record { header, bytes: Bytes::from(self.bytes).slice(unused..) }
    }

    /// Fills in the header and the padding up to `end`; lengths and checksum are computed here.
    pub(crate) fn finish(mut self, mut header: Header, end: u64) -> Record {
        header.payload_len = self.payload_len() as u32;
        header.extension_len = self.extension_len as u16;
        header.crc = 0;
        self.bytes.resize((end - header.position.get()) as usize, 0);
        if let Some(room) = self.bytes.first_chunk_mut::<HEADER_LEN>() {
            header.encode(room);
            header.crc = crc::crc32c(&self.bytes);
            self.bytes[CRC_AT..CRC_END].copy_from_slice(&header.crc.to_le_bytes());
        }
        Record { header, bytes: Bytes::from(self.bytes) }
    }
}
