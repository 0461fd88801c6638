//! The frame around a message between two members.
//!
//! ```text
//!   0 length     u32   bytes after this field
//!   4 magic      u32   "GBCH"
//!   8 version    u16   2
//!  10 kind       u8    which message (crate::message)
//!  11 flags      u8    bit 0: a receiver that does not know the kind must refuse it
//!  12 crc32c     u32   of all other bytes; of Records without the payload
//!  16 group      u64
//!  24 config     u64   the sender's configuration number
//!  32 term       u64   the sender's term
//!  40 from       u32   replica
//!  44 to         u32   replica
//!  48 connection u64   the sender's number for the connection, the same in every frame on it
//!  56 shard      u16   0
//!  58 reserved   u16   0
//!  60 body_len   u32
//!  64 body, then payload
//! ```
//!
//! The payload of Records is outside the frame's checksum, as each record has its own, which the
//! log checks when it places the record: one pass over the bytes, not two. The length is checked
//! against the limit of the kind before memory is reserved: [`Frame::len_of`].

use crate::Message;
use crate::message::{KIND_FORWARD, KIND_FORWARD_REPLY, KIND_RECORDS};
use alloc::format;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::codec::{Put, Reader};
use gabion_base::units::{CONTROL_FRAME_LEN_MAX, RECORD_LEN_MAX};
use gabion_base::{ConfigNumber, Error, GroupId, ReplicaId, Result, ShardId, Term, crc};

/// Bytes before the body.
pub const HEADER_LEN: usize = 64;
/// Bytes that [`Frame::len_of`] needs.
pub const PREFIX_LEN: usize = 16;
/// "GBCH" in little-endian order.
pub const MAGIC: u32 = u32::from_le_bytes(*b"GBCH");
/// The version that this build writes and reads.
pub const VERSION: u16 = 2;
/// The lowest version that this build reads.
pub const VERSION_MIN: u16 = 2;
const FLAG_CRITICAL: u8 = 1;
const CRC_OFFSET: usize = 12;
/// Longest frame of a kind that carries a record or a client's command: one of either, and room
/// for headers.
pub const PAYLOAD_FRAME_LEN_MAX: usize = RECORD_LEN_MAX + 4096;

/// A message with its addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// The group.
    pub group: GroupId,
    /// The log; one today.
    pub shard: ShardId,
    /// The sender's configuration.
    pub config: ConfigNumber,
    /// The sender's term.
    pub term: Term,
    /// The sender.
    pub from: ReplicaId,
    /// The receiver.
    pub to: ReplicaId,
    /// The sender's number for the connection.
    pub connection: u64,
    /// The message.
    pub message: Message,
}

/// A frame in bytes: `head`, then each of `payload`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Header and body.
    pub head: Vec<u8>,
    /// Record or command bytes, shared with the maker of the message.
    pub payload: Vec<Bytes>,
}

impl Encoded {
    /// Bytes in all.
    #[must_use]
    pub fn total_len(&self) -> usize {
        self.head.len() + self.payload.iter().map(Bytes::len).sum::<usize>()
    }

    /// One copy of everything, for tests and small frames.
    #[must_use]
    pub fn concat(&self) -> Bytes {
        let mut all = Vec::with_capacity(self.total_len());
        all.put_bytes(&self.head);
        for part in &self.payload {
            all.put_bytes(part);
        }
        Bytes::from(all)
    }
}

impl Frame {
    /// The frame in bytes; the payload is not copied.
    ///
    /// # Errors
    /// Limit exceeded when the frame is longer than its kind may be.
    pub fn encode(&self) -> Result<Encoded> {
        let kind = self.message.kind();
        let mut head = Vec::with_capacity(HEADER_LEN + 128);
        head.put_u32(0);
        head.put_u32(MAGIC);
        head.put_u16(VERSION);
        head.put_u8(kind);
        head.put_u8(FLAG_CRITICAL);
        head.put_u32(0);
        head.put_u64(self.group.get());
        head.put_u64(self.config.get());
        head.put_u64(self.term.get());
        head.put_u32(self.from.get());
        head.put_u32(self.to.get());
        head.put_u64(self.connection);
        head.put_u16(self.shard.get());
        head.put_u16(0);
        head.put_u32(0);
        let payload = self.message.put_body(&mut head);
        let body_len = (head.len() - HEADER_LEN) as u32;
        head[60..64].copy_from_slice(&body_len.to_le_bytes());
        let mut encoded = Encoded { head, payload };
        let len = encoded.total_len();
        check_len(kind, len)?;
        encoded.head[0..4].copy_from_slice(&((len - 4) as u32).to_le_bytes());
        let crc = checksum(kind, &encoded.head, encoded.payload.iter());
        encoded.head[CRC_OFFSET..PREFIX_LEN].copy_from_slice(&crc.to_le_bytes());
        Ok(encoded)
    }

    /// The length in bytes of the frame that begins with `prefix`; nothing while there are fewer
    /// than the [`PREFIX_LEN`] bytes that it looks at.
    ///
    /// # Errors
    /// Corruption when it is no frame, unsupported for another version, limit exceeded when it is
    /// longer than its kind may be. The connection is of no further use then.
    pub fn len_of(prefix: &[u8]) -> Result<Option<usize>> {
        if prefix.len() < PREFIX_LEN {
            return Ok(None);
        }
        let mut reader = Reader::new(prefix, "frame");
        let len = reader.u32()? as usize;
        let magic = reader.u32()?;
        if magic != MAGIC {
            return Err(Error::corruption(format!("frame begins with {magic:#010x}, not GBCH")));
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(Error::unsupported(format!(
                "frame of version {version}; this build speaks version {VERSION}"
            )));
        }
        let kind = reader.u8()?;
        let len = len.saturating_add(4);
        check_len(kind, len)?;
        if len < HEADER_LEN {
            return Err(Error::corruption(format!(
                "frame of {len} bytes, a header has {HEADER_LEN}"
            )));
        }
        Ok(Some(len))
    }

    /// The frame in `bytes`, which are one whole frame; its payload shares their memory.
    ///
    /// # Errors
    /// Corruption, unsupported (version, critical kind or field) or limit exceeded.
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        match Self::len_of(bytes)? {
            Some(len) if len == bytes.len() => {}
            _ => {
                return Err(Error::corruption(format!("frame of {} bytes is cut", bytes.len())));
            }
        }
        let mut r = Reader::new(&bytes[10..], "frame");
        let (kind, flags, crc) = (r.u8()?, r.u8()?, r.u32()?);
        let (group, config, term) = (GroupId(r.u64()?), ConfigNumber(r.u64()?), Term(r.u64()?));
        let (from, to, connection) = (ReplicaId(r.u32()?), ReplicaId(r.u32()?), r.u64()?);
        let (shard, reserved, body_len) = (ShardId(r.u16()?), r.u16()?, r.u32()? as usize);
        let body = r.bytes(body_len)?;
        let payload = bytes.slice(HEADER_LEN + body_len..);
        let found = checksum(kind, &bytes[..HEADER_LEN + body_len], core::iter::once(&payload));
        if found != crc {
            return Err(Error::corruption(format!(
                "frame of kind {kind} from {from} has checksum {found:#010x}, stated {crc:#010x}"
            )));
        }
        if flags & !FLAG_CRITICAL != 0 || reserved != 0 {
            return Err(Error::unsupported(format!(
                "frame of kind {kind} from {from} has unknown flags {flags:#04x}, {reserved:#06x}"
            )));
        }
        let message = match Message::read(kind, body, payload)? {
            Some(message) => message,
            None if flags & FLAG_CRITICAL == 0 => Message::Unknown { kind },
            None => {
                return Err(Error::unsupported(format!(
                    "message of kind {kind} from {from} is unknown to this version and marked as \
                     critical"
                )));
            }
        };
        Ok(Self { group, shard, config, term, from, to, connection, message })
    }
}

fn check_len(kind: u8, len: usize) -> Result<()> {
    let len_max = match kind {
        KIND_RECORDS | KIND_FORWARD | KIND_FORWARD_REPLY => PAYLOAD_FRAME_LEN_MAX,
        _ => CONTROL_FRAME_LEN_MAX,
    };
    if len <= len_max {
        return Ok(());
    }
    Err(Error::limit(format!("frame of kind {kind} with {len} bytes, the limit is {len_max}")))
}

/// CRC32C of a frame without the checksum's own field, and of Records without the payload.
fn checksum<'a>(kind: u8, head: &[u8], payload: impl Iterator<Item = &'a Bytes>) -> u32 {
    let crc = crc::append(crc::crc32c(&head[..CRC_OFFSET]), &head[PREFIX_LEN..]);
    if kind == KIND_RECORDS {
        return crc;
    }
    payload.fold(crc, |crc, part| crc::append(crc, part))
}
