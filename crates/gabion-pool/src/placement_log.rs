//! The placement log as bytes: records, and the operations inside them.
//!
//! An area holds a *snapshot* (the whole state at a checkpoint) and the commits since. Snapshots
//! are written once; every commit stands there **twice**, one copy right after the other:
//!
//! ```text
//!   area  ┌───────────────┬─────────┬─────────┬───────────┬───────────┬──────────
//!         │ snapshot, n   │ opening │ opening │ commit    │ commit    │ …
//!         │ (whole state) │ n       │ n       │ n+1       │ n+1       │
//!         └───────────────┴─────────┴─────────┴───────────┴───────────┴──────────
//!           each record is padded with zeros to whole 4 KiB blocks
//!
//!   record
//!   offset  bytes
//!        0      8  magic "GABPLACE"
//!        8      2  version
//!       10      1  kind: 1 snapshot, 2 commit
//!       11      1  zero
//!       12      4  body length
//!       16     16  pool id
//!       32      8  epoch of the area, +1 each time a checkpoint opens the other one
//!       40      8  commit number; a snapshot and its opening commit share one
//!       48      4  CRC32C of the record before, 0 before the first
//!       52      4  CRC32C of the 52 bytes before and of the body
//!       56         body: typed fields (tag u16 | flags u16 | length u32 | payload)
//! ```
//!
//! Why twice: only one commit is ever on its way, so a bad record is either the last one, torn and
//! never acknowledged, or rot. With one copy, rot in the last record would look torn, and an
//! acknowledged commit would be lost without a word. With two, any single fault is repaired, a
//! crash in the middle leaves at most one whole copy, which then counts, and only when both are bad
//! is the tail taken for torn. A snapshot is too long for that; it counts only once its *opening*
//! commit, written after it was flushed, stands behind it. So a bad snapshot with an opening is
//! rot, and a bad snapshot without one is a checkpoint that never finished, and the other area
//! still holds.
//!
//! A bad record that is followed by a whole one of the same epoch and a higher number is
//! corruption, refused with its place (docs/faults.md E3, E4). Blind spot: a device that lost the
//! last commit's only write without a trace.

use crate::{Geometry, PoolId};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::codec::{FIELD_CRITICAL, Field, Fields, Put, Reader, put_field};
use gabion_base::units::{BLOCK_LEN, SLOT_LEN, round_up_to_block};
use gabion_base::{Error, FileId, FileKind, Generation, ReplicaId, Result, SlotIndex, Term, crc};
use gabion_media::{AlignedBuf, Bytes};

/// What a record starts with.
pub const RECORD_MAGIC: [u8; 8] = *b"GABPLACE";
/// The version that this build writes and the only one that it reads.
pub const RECORD_VERSION: u16 = 1;
/// Bytes before a record's body.
pub const RECORD_HEADER_LEN: usize = 56;
const CRC_AT: usize = 52;
const _: () = assert!(CRC_AT + 4 == RECORD_HEADER_LEN);

/// A slot and which use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placed {
    /// The slot.
    pub slot: SlotIndex,
    /// Which use of the slot; never given out twice in the life of a pool.
    pub generation: Generation,
}

/// Where a file lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlacement {
    /// The file.
    pub file: FileId,
    /// The term in which it was made.
    pub term: Term,
    /// Bytes, rounded up to whole blocks.
    pub len: u64,
    /// CRC32C of those bytes.
    pub checksum: u32,
    /// Its slots, in the order of the file's bytes; all but the last are full.
    pub slots: Vec<Placed>,
}

impl FilePlacement {
    /// Bytes of memory that it takes, shared as an `Arc`.
    #[must_use]
    pub fn memory_used(&self) -> usize {
        // The counts of an `Arc` stand before what it holds.
        2 * size_of::<usize>() + size_of::<Self>() + self.slots.capacity() * size_of::<Placed>()
    }

    /// Whether length and slots agree, the region has the slots, and none is named twice.
    ///
    /// # Errors
    /// Invalid input that names what does not hold.
    pub fn check(&self, geometry: &Geometry) -> Result<()> {
        self.check_shape(geometry)?;
        let mut seen = BTreeSet::new();
        for placed in &self.slots {
            if !seen.insert(placed.slot) {
                return Err(Error::invalid(format!(
                    "{}: {} is named twice",
                    self.file, placed.slot
                )));
            }
        }
        Ok(())
    }

    /// [`Self::check`] without the search for duplicates: what every read can afford.
    pub(crate) fn check_shape(&self, geometry: &Geometry) -> Result<()> {
        let (file, len) = (self.file, self.len);
        if len == 0 || !len.is_multiple_of(BLOCK_LEN as u64) {
            return Err(Error::invalid(format!("{file}: {len} bytes are not whole blocks")));
        }
        if len.div_ceil(SLOT_LEN) != self.slots.len() as u64 {
            return Err(Error::invalid(format!(
                "{file}: {len} bytes in {} slots of {SLOT_LEN}",
                self.slots.len()
            )));
        }
        self.slots.iter().try_for_each(|placed| geometry.check(placed.slot))
    }
}

/// Why a slot is in quarantine: what has to be drained before it is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuarantineOrigin {
    /// A write of this process had an unknown outcome, or what was written came back as something
    /// else.
    Local,
    /// It was granted in this session of the peer connection.
    Session(u64),
}

/// What a record does to the state of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The file's slots hold it from now on.
    FileLive(Arc<FilePlacement>),
    /// The file is gone; its slots are free at the next start at the latest.
    FileRetired(FileId),
    /// A peer may write into these slots.
    SlotsGranted {
        /// The term of the grant.
        term: Term,
        /// The session of the peer connection.
        session: u64,
        /// The peer.
        to: ReplicaId,
        /// The slots.
        slots: Vec<Placed>,
    },
    /// Grants of sessions below this one no longer hold; their slots are in quarantine.
    GrantsVoided {
        /// The first session that may still hold grants.
        below_session: u64,
    },
    /// A late write may still land in these slots.
    SlotsQuarantined {
        /// What has to be drained.
        origin: QuarantineOrigin,
        /// The slots.
        slots: Vec<SlotIndex>,
    },
    /// These slots were in quarantine and are free.
    SlotsReleased(Vec<SlotIndex>),
    /// Generations below this one may have been given out.
    GenerationReserved {
        /// The first generation that certainly was not.
        up_to: u64,
    },
    /// An entry of an upper layer.
    Opaque {
        /// Its kind, the upper layer's business.
        kind: u16,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// The upper layer's whole state at a checkpoint.
    OpaqueSnapshot(Vec<u8>),
}

const FILE_LIVE: u16 = 1;
const FILE_RETIRED: u16 = 2;
const SLOTS_GRANTED: u16 = 3;
const GRANTS_VOIDED: u16 = 4;
const SLOTS_QUARANTINED: u16 = 5;
const SLOTS_RELEASED: u16 = 6;
const GENERATION_RESERVED: u16 = 7;
const OPAQUE: u16 = 8;
const OPAQUE_SNAPSHOT: u16 = 9;

impl Operation {
    /// Appends the operation to a record's body.
    pub fn encode(&self, body: &mut Vec<u8>) {
        let mut out = Vec::new();
        let tag = match self {
            Self::FileLive(placement) => {
                encode_placement(placement, &mut out);
                FILE_LIVE
            }
            Self::FileRetired(file) => {
                encode_file(*file, &mut out);
                FILE_RETIRED
            }
            Self::SlotsGranted { term, session, to, slots } => {
                out.put_varint(term.get());
                out.put_varint(*session);
                out.put_u32(to.get());
                encode_placed(slots, &mut out);
                SLOTS_GRANTED
            }
            Self::GrantsVoided { below_session } => {
                out.put_varint(*below_session);
                GRANTS_VOIDED
            }
            Self::SlotsQuarantined { origin, slots } => {
                match origin {
                    QuarantineOrigin::Local => out.put_u8(0),
                    QuarantineOrigin::Session(session) => {
                        out.put_u8(1);
                        out.put_varint(*session);
                    }
                }
                encode_slots(slots, &mut out);
                SLOTS_QUARANTINED
            }
            Self::SlotsReleased(slots) => {
                encode_slots(slots, &mut out);
                SLOTS_RELEASED
            }
            Self::GenerationReserved { up_to } => {
                out.put_varint(*up_to);
                GENERATION_RESERVED
            }
            Self::Opaque { kind, bytes } => {
                out.put_u16(*kind);
                out.put_bytes(bytes);
                OPAQUE
            }
            Self::OpaqueSnapshot(bytes) => {
                encode_opaque_snapshot(bytes, body);
                return;
            }
        };
        put_field(body, tag, FIELD_CRITICAL, &out);
    }

    /// The operation in a field, or nothing when this build does not know it and need not.
    ///
    /// # Errors
    /// Corruption when it is cut off or breaks a rule; unsupported when it must be known.
    pub fn decode(field: &Field<'_>) -> Result<Option<Self>> {
        let mut reader = Reader::new(field.payload, "placement operation");
        let operation = match field.tag {
            FILE_LIVE => Self::FileLive(Arc::new(decode_placement(&mut reader)?)),
            FILE_RETIRED => Self::FileRetired(decode_file(&mut reader)?),
            SLOTS_GRANTED => Self::SlotsGranted {
                term: Term(reader.varint()?),
                session: reader.varint()?,
                to: ReplicaId(reader.u32()?),
                slots: decode_placed(&mut reader)?,
            },
            GRANTS_VOIDED => Self::GrantsVoided { below_session: reader.varint()? },
            SLOTS_QUARANTINED => Self::SlotsQuarantined {
                origin: match reader.u8()? {
                    0 => QuarantineOrigin::Local,
                    1 => QuarantineOrigin::Session(reader.varint()?),
                    byte => {
                        return Err(Error::corruption(format!("quarantine of origin {byte}")));
                    }
                },
                slots: decode_slots(&mut reader)?,
            },
            SLOTS_RELEASED => Self::SlotsReleased(decode_slots(&mut reader)?),
            GENERATION_RESERVED => Self::GenerationReserved { up_to: reader.varint()? },
            OPAQUE => {
                let kind = reader.u16()?;
                Self::Opaque { kind, bytes: reader.bytes(reader.remaining())?.to_vec() }
            }
            OPAQUE_SNAPSHOT => Self::OpaqueSnapshot(reader.bytes(reader.remaining())?.to_vec()),
            _ => return field.skip_unknown("placement operation").map(|()| None),
        };
        reader.finish()?;
        Ok(Some(operation))
    }

    /// Every operation of a record's body that this build knows, in order.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn decode_all(body: &[u8]) -> Result<Vec<Self>> {
        let mut fields = Fields::new(body, "placement record");
        let mut operations = Vec::new();
        while let Some(field) = fields.next_field()? {
            operations.extend(Self::decode(&field)?);
        }
        Ok(operations)
    }
}

/// Appends [`Operation::OpaqueSnapshot`] without a copy of its bytes.
pub(crate) fn encode_opaque_snapshot(bytes: &[u8], body: &mut Vec<u8>) {
    put_field(body, OPAQUE_SNAPSHOT, FIELD_CRITICAL, bytes);
}

fn encode_file(file: FileId, out: &mut Vec<u8>) {
    out.put_u8(file.kind as u8);
    out.put_varint(file.number);
}

fn decode_file(reader: &mut Reader<'_>) -> Result<FileId> {
    let kind = reader.u8()?;
    let kind = FileKind::from_byte(kind)
        .ok_or_else(|| Error::corruption(format!("placement operation: file kind {kind}")))?;
    Ok(FileId { kind, number: reader.varint()? })
}

fn encode_placement(placement: &FilePlacement, out: &mut Vec<u8>) {
    encode_file(placement.file, out);
    out.put_varint(placement.term.get());
    out.put_varint(placement.len);
    out.put_u32(placement.checksum);
    encode_placed(&placement.slots, out);
}

fn decode_placement(reader: &mut Reader<'_>) -> Result<FilePlacement> {
    Ok(FilePlacement {
        file: decode_file(reader)?,
        term: Term(reader.varint()?),
        len: reader.varint()?,
        checksum: reader.u32()?,
        slots: decode_placed(reader)?,
    })
}

fn encode_placed(slots: &[Placed], out: &mut Vec<u8>) {
    out.put_varint(slots.len() as u64);
    for placed in slots {
        out.put_varint(u64::from(placed.slot.get()));
        out.put_varint(placed.generation.get());
    }
}

fn decode_placed(reader: &mut Reader<'_>) -> Result<Vec<Placed>> {
    decode_list(reader, 2, |reader| {
        Ok(Placed { slot: decode_slot(reader)?, generation: Generation(reader.varint()?) })
    })
}

fn encode_slots(slots: &[SlotIndex], out: &mut Vec<u8>) {
    out.put_varint(slots.len() as u64);
    for slot in slots {
        out.put_varint(u64::from(slot.get()));
    }
}

fn decode_slots(reader: &mut Reader<'_>) -> Result<Vec<SlotIndex>> {
    decode_list(reader, 1, decode_slot)
}

fn decode_slot(reader: &mut Reader<'_>) -> Result<SlotIndex> {
    let slot = reader.varint()?;
    u32::try_from(slot)
        .map(SlotIndex)
        .map_err(|_| Error::corruption(format!("placement operation: slot {slot}")))
}

fn decode_list<T>(
    reader: &mut Reader<'_>,
    item_len_min: usize,
    item: impl Fn(&mut Reader<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let count = reader.varint()?;
    let count_max = reader.remaining() / item_len_min;
    if count > count_max as u64 {
        return Err(Error::corruption(format!(
            "placement operation: {count} items where at most {count_max} fit"
        )));
    }
    (0..count).map(|_| item(reader)).collect()
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// The whole state.
    Snapshot = 1,
    /// What changed.
    Commit = 2,
}

/// A record's place in the order of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// What it is.
    pub kind: RecordKind,
    /// Bytes of the body.
    pub body_len: u32,
    /// The pool.
    pub pool_id: PoolId,
    /// The epoch of the area.
    pub epoch: u64,
    /// The commit number.
    pub number: u64,
    /// CRC of the record before.
    pub previous_crc: u32,
    /// CRC of this record.
    pub crc: u32,
}

impl RecordHeader {
    /// Bytes of the record with its padding.
    #[must_use]
    pub const fn padded_len(&self) -> u64 {
        record_padded_len(self.body_len as usize)
    }

    /// The header in the first bytes of `bytes`, if they look like one of this build's version or
    /// another. Nothing in it is to be trusted before [`Self::is_whole`] has been asked.
    #[must_use]
    pub fn peek(bytes: &[u8]) -> Option<(u16, Self)> {
        if bytes.get(..8)? != RECORD_MAGIC {
            return None;
        }
        let mut reader = Reader::new(&bytes[8..], "placement record");
        let version = reader.u16().ok()?;
        let kind = match reader.u16().ok()? {
            1 => RecordKind::Snapshot,
            2 => RecordKind::Commit,
            _ => return None,
        };
        let header = Self {
            kind,
            body_len: reader.u32().ok()?,
            pool_id: reader.array().ok()?,
            epoch: reader.u64().ok()?,
            number: reader.u64().ok()?,
            previous_crc: reader.u32().ok()?,
            crc: reader.u32().ok()?,
        };
        Some((version, header))
    }

    /// Whether `record`, from its first byte to the end of its padding, is as it was written.
    #[must_use]
    pub fn is_whole(&self, record: &[u8]) -> bool {
        let end = RECORD_HEADER_LEN + self.body_len as usize;
        record.len() as u64 == self.padded_len()
            && crc::append(crc::crc32c(&record[..CRC_AT]), &record[RECORD_HEADER_LEN..end])
                == self.crc
            && record[end..].iter().all(|&byte| byte == 0)
    }

    /// The body of a whole record.
    #[must_use]
    pub fn body(&self, record: &Bytes) -> Bytes {
        record.slice(RECORD_HEADER_LEN..RECORD_HEADER_LEN + self.body_len as usize)
    }
}

/// Bytes of a record whose body has `body_len`, with its padding.
#[must_use]
pub const fn record_padded_len(body_len: usize) -> u64 {
    round_up_to_block((RECORD_HEADER_LEN + body_len) as u64)
}

/// Encodes a record, `copies` times in a row; `header.body_len` and `header.crc` are filled in.
///
/// # Panics
/// When the body is 4 GiB or more: an area is far shorter.
#[must_use]
pub fn encode_record(header: &RecordHeader, body: &[u8], copies: usize) -> (u32, AlignedBuf) {
    let mut head = Vec::with_capacity(RECORD_HEADER_LEN);
    head.put_bytes(&RECORD_MAGIC);
    head.put_u16(RECORD_VERSION);
    head.put_u8(header.kind as u8);
    head.put_u8(0);
    head.put_u32(u32::try_from(body.len()).expect("a body is shorter than its area"));
    head.put_bytes(&header.pool_id);
    head.put_u64(header.epoch);
    head.put_u64(header.number);
    head.put_u32(header.previous_crc);
    let crc = crc::append(crc::crc32c(&head), body);
    head.put_u32(crc);
    let mut out = AlignedBuf::with_capacity(record_padded_len(body.len()) as usize * copies);
    for _ in 0..copies {
        out.extend(&head);
        out.extend(body);
        out.pad_to_block();
    }
    (crc, out)
}
