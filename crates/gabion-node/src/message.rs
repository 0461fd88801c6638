//! Messages between nodes about slots and files. The replication layer carries them, opaque to it,
//! on the ordered connection between two members.
//!
//! ```text
//! secondary ── Grant(session, pool, port, slots) ──────────────► primary
//!           ◄─ NVMe/TCP: data, slot headers, flush ────────────
//!           ◄─ Placement(file, checksums, slots) ──────────────
//!              (verifies, commits to its placement log)
//!           ── Have(file) ────────────────────────────────────►   all have it: the edit is appended
//!
//! primary   ── KnownSession(session) ─────────────────────────► secondary its disk was set back
//!           ◄─ Grant, of a session above ──────────────────────
//!
//! secondary ── NeedFile(file) ────────────────────────────────► primary   it is lost or damaged here
//!           ◄─ shipped as above, or NoCopy(file) ──────────────
//! secondary ── Room(slots) ───────────────────────────────────► primary   how full its pool is
//! primary   ── NeedFile(file) ────────────────────────────────► secondary it is damaged at the primary
//!           ◄─ CopyAt(file, slots), or NoCopy(file) ───────────
//!              (reads there over NVMe/TCP, verifies)
//!
//! being     ── WantState(number, at) ─────────────────────────► primary   a part of the state
//! filled    ◄─ State(number, total, at, bytes) ──────────────
//! ```
//!
//! In bytes: `kind u8` and the fields of the variant in order, little endian.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::units::{RECORD_LEN_MAX, SLOT_LEN};
use gabion_base::{Error, FileId, FileKind, Generation, ReplicaId, Result, SlotIndex, Term};
use gabion_pool::{Geometry, Placed};

/// A message between the nodes of two members.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeMessage {
    /// A secondary lets the primary write into these slots during a session.
    Grant {
        /// The secondary's session. A newer one voids everything granted before.
        session: u64,
        /// The only member that may write into the slots.
        writer: ReplicaId,
        /// The pool that the slots belong to; stands in each slot header.
        pool_id: [u8; 16],
        /// The subsystem to connect to.
        subsystem: String,
        /// Port of the secondary's target on its host.
        port: u16,
        /// The region as a namespace. On the wire: the number of extents, and the slots of each.
        region: Geometry,
        /// The slots, in addition to those granted before in this session.
        slots: Vec<Placed>,
    },
    /// The primary is short of granted slots.
    WantGrant {
        /// How many it needs at once.
        slots: u32,
    },
    /// A file was shipped into these slots and flushed.
    Placement {
        /// Session in which the slots were granted.
        session: u64,
        /// The file and where it lies.
        file: ShippedFile,
    },
    /// The secondary holds the file: verified and durable, its place recorded.
    Have {
        /// The file.
        file: FileId,
    },
    /// The tree or an edit names this file, and the sender lacks it or has it damaged.
    NeedFile {
        /// The file.
        file: FileId,
    },
    /// No edit will name these files: their job was given up. A message names at most 4,096 of
    /// them; more take several messages.
    Discard {
        /// The files.
        files: Vec<FileId>,
    },
    /// A secondary has a whole copy of a file that the primary asked for.
    CopyAt {
        /// The secondary's session, in which its namespace can be read.
        session: u64,
        /// The file and where it lies.
        file: ShippedFile,
    },
    /// The sender has no whole copy of a file that it was asked for.
    NoCopy {
        /// The file.
        file: FileId,
    },
    /// The room of the sender's pool, told when a connection begins and at each change.
    Room(Spare),
    /// A member that is being filled asks for a part of a state of the group, or says that it still
    /// needs the state.
    WantState {
        /// The sender's number for the state. One that is asked for from its beginning and that
        /// the primary does not know is made anew.
        number: u64,
        /// The first byte that is wanted; the whole length if none is.
        at: u64,
    },
    /// A part of a state of the group, in answer.
    State {
        /// As it was asked for.
        number: u64,
        /// Bytes of the whole state; zero if the primary holds none under this number.
        total: u64,
        /// Offset of the part.
        at: u64,
        /// At most [`STATE_PART_MAX`] bytes.
        bytes: Vec<u8>,
    },
    /// The primary has had a session of the secondary's pool that is over, and was granted slots in
    /// one that is not above it. The secondary begins one that is.
    KnownSession {
        /// The session that is over, at most [`SESSION_MAX`].
        session: u64,
    },
}

/// The room of one pool, in slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spare {
    /// Slots in the region.
    pub total: u32,
    /// Free, or held for files that no applied edit names yet.
    pub available: u32,
    /// Kept for flushes and compactions to come; puts are refused for their sake.
    pub for_jobs: u32,
    /// Kept for the log to grow into, until it is trimmed.
    pub for_log: u32,
}

/// A file in slots of another replica.
#[derive(Clone, Debug, PartialEq)]
pub struct ShippedFile {
    /// The file.
    pub file: FileId,
    /// Term of the primary that made it.
    pub term: Term,
    /// Length in bytes, rounded up to blocks.
    pub len: u64,
    /// CRC32C of those bytes.
    pub checksum: u32,
    /// CRC32C of each 1 MiB chunk.
    pub chunk_crcs: Vec<u32>,
    /// Its slots in order.
    pub slots: Vec<Placed>,
}

/// Most entries of a list in a message: slots of the largest grant, chunks of the largest file.
const LIST_MAX: usize = 65_536;
/// Most files that one message discards: a few pages on the wire.
const DISCARDED_MAX: usize = 4_096;
/// Most bytes of a state in one message.
pub const STATE_PART_MAX: usize = 256 << 10;
/// Above the sessions of any pool that lives: one a nanosecond for a century.
pub const SESSION_MAX: u64 = 1 << 62;
/// Most bytes of a whole state. A file takes some 150, so it holds the files of 100 TB.
pub const STATE_LEN_MAX: u64 = 256 << 20;

impl NodeMessage {
    /// The messages that discard `files`, however many there are.
    pub(crate) fn discards(files: &[FileId]) -> impl Iterator<Item = Self> {
        files.chunks(DISCARDED_MAX).map(|files| Self::Discard { files: files.to_vec() })
    }

    /// The message in bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Grant { session, writer, pool_id, subsystem, port, region, slots } => {
                out.put_u8(1);
                out.put_u64(*session);
                out.put_u32(writer.get());
                out.put_bytes(pool_id);
                out.put_prefixed(subsystem.as_bytes());
                out.put_u16(*port);
                out.put_varint(region.extents().count() as u64);
                region.extents().for_each(|extent| out.put_u32(extent.slots));
                put_slots(&mut out, slots);
            }
            Self::WantGrant { slots } => {
                out.put_u8(2);
                out.put_u32(*slots);
            }
            Self::Placement { session, file } => {
                out.put_u8(3);
                out.put_u64(*session);
                file.encode(&mut out);
            }
            Self::Have { file } => {
                out.put_u8(4);
                put_file(&mut out, *file);
            }
            Self::NeedFile { file } => {
                out.put_u8(5);
                put_file(&mut out, *file);
            }
            Self::Discard { files } => {
                out.put_u8(6);
                out.put_varint(files.len() as u64);
                files.iter().for_each(|file| put_file(&mut out, *file));
            }
            Self::CopyAt { session, file } => {
                out.put_u8(7);
                out.put_u64(*session);
                file.encode(&mut out);
            }
            Self::NoCopy { file } => {
                out.put_u8(8);
                put_file(&mut out, *file);
            }
            Self::Room(spare) => {
                out.put_u8(9);
                let Spare { total, available, for_jobs, for_log } = *spare;
                [total, available, for_jobs, for_log].iter().for_each(|slots| out.put_u32(*slots));
            }
            Self::WantState { number, at } => {
                out.put_u8(10);
                out.put_u64(*number);
                out.put_u64(*at);
            }
            Self::State { number, total, at, bytes } => {
                out.put_u8(11);
                out.put_u64(*number);
                out.put_u64(*total);
                out.put_u64(*at);
                out.put_prefixed(bytes);
            }
            Self::KnownSession { session } => {
                out.put_u8(12);
                out.put_u64(*session);
            }
        }
        out
    }

    /// Reads [`Self::encode`].
    ///
    /// # Errors
    /// Corruption; unsupported for a kind of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes, "message between nodes");
        let message = match r.u8()? {
            1 => Self::Grant {
                session: r.u64()?,
                writer: ReplicaId(r.u32()?),
                pool_id: r.array()?,
                subsystem: text(r.prefixed(223)?)?,
                port: r.u16()?,
                region: region(&mut r)?,
                slots: slots(&mut r)?,
            },
            2 => Self::WantGrant { slots: r.u32()? },
            3 => Self::Placement { session: r.u64()?, file: ShippedFile::decode(&mut r)? },
            4 => Self::Have { file: file(&mut r)? },
            5 => Self::NeedFile { file: file(&mut r)? },
            6 => {
                let count = list_len(&mut r, 9)?;
                let files = (0..count).map(|_| file(&mut r)).collect::<Result<_>>()?;
                Self::Discard { files }
            }
            7 => Self::CopyAt { session: r.u64()?, file: ShippedFile::decode(&mut r)? },
            8 => Self::NoCopy { file: file(&mut r)? },
            9 => Self::Room(Spare {
                total: r.u32()?,
                available: r.u32()?,
                for_jobs: r.u32()?,
                for_log: r.u32()?,
            }),
            10 => Self::WantState { number: r.u64()?, at: r.u64()? },
            11 => state_part(&mut r)?,
            12 => Self::KnownSession { session: known_session(&mut r)? },
            kind => {
                return Err(Error::unsupported(format!("message between nodes: kind {kind}")));
            }
        };
        r.finish()?;
        Ok(message)
    }
}

impl ShippedFile {
    fn encode(&self, out: &mut Vec<u8>) {
        put_file(out, self.file);
        out.put_u64(self.term.get());
        out.put_u64(self.len);
        out.put_u32(self.checksum);
        out.put_varint(self.chunk_crcs.len() as u64);
        self.chunk_crcs.iter().for_each(|crc| out.put_u32(*crc));
        put_slots(out, &self.slots);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        let (file, term, len, checksum) = (file(r)?, Term(r.u64()?), r.u64()?, r.u32()?);
        let count = list_len(r, 4)?;
        let chunk_crcs = (0..count).map(|_| r.u32()).collect::<Result<_>>()?;
        let slots = slots(r)?;
        if len == 0 || len.div_ceil(SLOT_LEN) != slots.len() as u64 {
            return Err(Error::corruption(format!(
                "placement of {file}: {len} bytes in {} slots of {SLOT_LEN}",
                slots.len()
            )));
        }
        Ok(Self { file, term, len, checksum, chunk_crcs, slots })
    }
}

/// The slots of each of a region's extents.
fn region(r: &mut Reader<'_>) -> Result<Geometry> {
    let count = list_len(r, 4)?;
    let slots = (0..count).map(|_| r.u32()).collect::<Result<Vec<_>>>()?;
    Geometry::namespace_of(slots)
}

fn text(bytes: &[u8]) -> Result<String> {
    match core::str::from_utf8(bytes) {
        Ok(text) => Ok(text.into()),
        Err(_) => Err(Error::corruption("message between nodes: a name is not UTF-8")),
    }
}

fn put_file(out: &mut Vec<u8>, file: FileId) {
    out.put_u8(file.kind as u8);
    out.put_u64(file.number);
}

fn file(r: &mut Reader<'_>) -> Result<FileId> {
    let kind = r.u8()?;
    let number = r.u64()?;
    match FileKind::from_byte(kind) {
        Some(kind) => Ok(FileId { kind, number }),
        None => Err(Error::corruption(format!("message between nodes: file kind {kind}"))),
    }
}

/// A part of a state, which lies within it.
fn state_part(r: &mut Reader<'_>) -> Result<NodeMessage> {
    let (number, total, at) = (r.u64()?, r.u64()?, r.u64()?);
    let bytes = r.prefixed(STATE_PART_MAX)?;
    let end = at.checked_add(bytes.len() as u64);
    if total > STATE_LEN_MAX || end.is_none_or(|end| end > total) {
        return Err(Error::corruption(format!(
            "message between nodes: {} bytes at {at} of a state of {total} (limit {STATE_LEN_MAX})",
            bytes.len()
        )));
    }
    Ok(NodeMessage::State { number, total, at, bytes: bytes.to_vec() })
}

fn known_session(r: &mut Reader<'_>) -> Result<u64> {
    let session = r.u64()?;
    if session > SESSION_MAX {
        return Err(Error::corruption(format!(
            "message between nodes: session {session} (limit {SESSION_MAX})"
        )));
    }
    Ok(session)
}

fn put_slots(out: &mut Vec<u8>, slots: &[Placed]) {
    out.put_varint(slots.len() as u64);
    for placed in slots {
        out.put_u32(placed.slot.get());
        out.put_u64(placed.generation.get());
    }
}

fn slots(r: &mut Reader<'_>) -> Result<Vec<Placed>> {
    let count = list_len(r, 12)?;
    let one = |r: &mut Reader<'_>| {
        Ok(Placed { slot: SlotIndex(r.u32()?), generation: Generation(r.u64()?) })
    };
    (0..count).map(|_| one(r)).collect()
}

/// A list's length, checked against the limit and against the bytes that are there.
fn list_len(r: &mut Reader<'_>, entry_len: usize) -> Result<usize> {
    let count = r.varint()?;
    if count > LIST_MAX as u64 || count as usize * entry_len > r.remaining() {
        return Err(Error::corruption(format!(
            "message between nodes: list of {count} entries in {} bytes (limit {LIST_MAX})",
            r.remaining()
        )));
    }
    Ok(count as usize)
}

const _: () = assert!(RECORD_LEN_MAX / 4096 <= LIST_MAX);
const _: () = assert!(DISCARDED_MAX <= LIST_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use gabion_base::ShardId;
    use proptest::prelude::*;

    #[test]
    fn every_message_survives_its_bytes_and_no_prefix_does() {
        let placed = |n: u32| Placed { slot: SlotIndex(n), generation: Generation(7) };
        let file = ShippedFile {
            file: FileId::sst(9),
            term: Term(2),
            len: SLOT_LEN + 4096,
            checksum: 5,
            chunk_crcs: vec![1, 2, 3],
            slots: vec![placed(1), placed(4)],
        };
        let messages = [
            NodeMessage::Grant {
                session: 3,
                writer: ReplicaId(6),
                pool_id: [8; 16],
                subsystem: "nqn.x".into(),
                port: 4420,
                region: Geometry::namespace_of([100, 7]).unwrap(),
                slots: vec![placed(1), placed(2)],
            },
            NodeMessage::WantGrant { slots: 8 },
            NodeMessage::Placement { session: 3, file: file.clone() },
            NodeMessage::CopyAt { session: 3, file },
            NodeMessage::NoCopy { file: FileId::sst(1) },
            NodeMessage::Have { file: FileId::sst(1) },
            NodeMessage::NeedFile { file: FileId::log_segment(ShardId::ZERO, 1) },
            NodeMessage::Discard { files: vec![FileId::sst(1), FileId::sst(2)] },
            NodeMessage::Room(Spare { total: 100, available: 20, for_jobs: 9, for_log: 8 }),
            NodeMessage::WantState { number: 5, at: 7 },
            NodeMessage::State { number: 5, total: 10, at: 7, bytes: vec![1, 2, 3] },
            NodeMessage::KnownSession { session: SESSION_MAX },
        ];
        for message in messages {
            let bytes = message.encode();
            assert_eq!(NodeMessage::decode(&bytes).unwrap(), message);
            for cut in 0..bytes.len() {
                assert!(NodeMessage::decode(&bytes[..cut]).is_err(), "{message:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn more_files_than_one_message_may_name_are_discarded_by_several() {
        let files: Vec<FileId> = (0..2 * LIST_MAX as u64 + 1).map(FileId::sst).collect();
        let mut discarded = Vec::new();
        for message in NodeMessage::discards(&files) {
            match NodeMessage::decode(&message.encode()).unwrap() {
                NodeMessage::Discard { files } => discarded.extend(files),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(discarded, files);
        assert_eq!(NodeMessage::discards(&[]).count(), 0);
    }

    #[test]
    fn a_part_of_a_state_lies_within_it_and_within_the_limits() {
        let part =
            |total, at, len| NodeMessage::State { number: 1, total, at, bytes: vec![0; len] };
        for (message, is_taken) in [
            (part(10, 7, 3), true),
            (part(0, 0, 0), true),
            (part(10, 8, 3), false),
            (part(10, u64::MAX, 3), false),
            (part(STATE_LEN_MAX, 0, STATE_PART_MAX), true),
            (part(STATE_LEN_MAX, 0, STATE_PART_MAX + 1), false),
            (part(STATE_LEN_MAX + 1, 0, 1), false),
        ] {
            assert_eq!(NodeMessage::decode(&message.encode()).is_ok(), is_taken, "{message:?}");
        }
    }

    #[test]
    fn a_session_above_all_that_can_be_is_refused() {
        let above = NodeMessage::KnownSession { session: SESSION_MAX + 1 };
        let error = NodeMessage::decode(&above.encode()).unwrap_err();
        assert!(error.message().contains("4611686018427387905"), "{error}");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = NodeMessage::decode(&bytes);
        }
    }
}
