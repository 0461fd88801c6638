//! The PDUs of NVMe/TCP: their layout (drawn in the parent module), how they are checked on arrival
//! and how they are put together. What this module lets through has consistent lengths; what the
//! PDU asks for is judged by the initiator and the target.

use super::command::{Completion, Submission};
use alloc::format;
use bytes::Bytes;
use gabion_base::{Error, Result, crc};

/// Bytes of the header that every PDU begins with.
pub const COMMON_HEADER_LEN: usize = 8;
/// Longest PDU header: that of ICReq and ICResp.
pub const HEADER_LEN_MAX: usize = 128;
/// Bytes of a header or data digest.
pub const DIGEST_LEN: usize = 4;
/// Longest termination request: its header and the header that it complains about.
pub const TERM_LEN_MAX: u32 = 152;

const FLAG_HEADER_DIGEST: u8 = 1;
const FLAG_DATA_DIGEST: u8 = 1 << 1;
/// H2CData, C2HData: the last PDU of its transfer.
pub const FLAG_LAST: u8 = 1 << 2;
/// C2HData: the command is complete and no response follows.
pub const FLAG_SUCCESS: u8 = 1 << 3;

/// What a PDU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PduKind {
    /// Initialize connection request.
    IcReq = 0,
    /// Initialize connection response.
    IcResp = 1,
    /// The host ends the connection.
    H2cTerm = 2,
    /// The controller ends the connection.
    C2hTerm = 3,
    /// A submission queue entry, maybe with data.
    Command = 4,
    /// A completion queue entry.
    Response = 5,
    /// Data of a write.
    H2cData = 6,
    /// Data of a read.
    C2hData = 7,
    /// Ready to transfer: the controller asks for data of a write.
    R2t = 9,
}

impl PduKind {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::IcReq,
            1 => Self::IcResp,
            2 => Self::H2cTerm,
            3 => Self::C2hTerm,
            4 => Self::Command,
            5 => Self::Response,
            6 => Self::H2cData,
            7 => Self::C2hData,
            9 => Self::R2t,
            _ => return None,
        })
    }

    const fn header_len(self) -> usize {
        match self {
            Self::IcReq | Self::IcResp => 128,
            Self::Command => 72,
            Self::H2cTerm
            | Self::C2hTerm
            | Self::Response
            | Self::H2cData
            | Self::C2hData
            | Self::R2t => 24,
        }
    }

    const fn carries_data(self) -> bool {
        matches!(self, Self::Command | Self::H2cData | Self::C2hData)
    }

    const fn has_digests(self) -> bool {
        !matches!(self, Self::IcReq | Self::IcResp | Self::H2cTerm | Self::C2hTerm)
    }

    const fn is_for(self, role: Role) -> bool {
        let to_controller =
            matches!(self, Self::IcReq | Self::H2cTerm | Self::Command | Self::H2cData);
        to_controller == matches!(role, Role::Controller)
    }
}

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The initiator.
    Host,
    /// The target.
    Controller,
}

/// Fatal error status of a termination request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum FatalStatus {
    /// A header field is wrong; the information is its byte offset.
    InvalidHeader = 1,
    /// A PDU that may not come now.
    Sequence = 2,
    /// The header digest does not match; the information is the digest received.
    HeaderDigest = 3,
    /// Data that lies outside what was asked for.
    DataOutOfRange = 4,
    /// More R2Ts, or longer data, than was agreed.
    LimitExceeded = 5,
    /// A parameter of the connection that this end cannot do; the information is its offset.
    UnsupportedParameter = 6,
}

/// Why a connection has to end, and what the peer is told about it.
#[derive(Clone, Debug)]
pub struct Fatal {
    /// What the termination request says.
    pub status: FatalStatus,
    /// Its information field.
    pub information: u32,
    /// What this end reports.
    pub error: Error,
}

impl Fatal {
    /// A fatal error with no information field.
    #[must_use]
    pub fn new(status: FatalStatus, message: impl Into<alloc::string::String>) -> Self {
        Self { status, information: 0, error: Error::corruption(message) }
    }

    /// A wrong field at this byte offset of a header.
    #[must_use]
    pub fn field(offset: u32, message: impl Into<alloc::string::String>) -> Self {
        Self {
            status: FatalStatus::InvalidHeader,
            information: offset,
            error: Error::corruption(message),
        }
    }
}

/// Which digests the two ends agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// CRC32C of each header.
    pub header: bool,
    /// CRC32C of each PDU's data.
    pub data: bool,
}

impl Digests {
    const fn from_byte(byte: u8) -> Self {
        Self { header: byte & 1 != 0, data: byte & 2 != 0 }
    }

    const fn byte(self) -> u8 {
        self.header as u8 | (self.data as u8) << 1
    }

    const fn header_len(self) -> usize {
        if self.header { DIGEST_LEN } else { 0 }
    }
}

/// Where the parts of an arrived PDU lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// What it is.
    pub kind: PduKind,
    /// Its flags.
    pub flags: u8,
    /// Bytes of its header.
    pub header_len: usize,
    /// Bytes before its data: header, digest and padding.
    pub data_start: usize,
    /// Bytes of data.
    pub data_len: usize,
    /// Whether a header digest follows the header.
    pub header_digest: bool,
    /// Whether a data digest follows the data.
    pub data_digest: bool,
}

impl Layout {
    /// Judges a common header.
    ///
    /// # Errors
    /// Fatal when the PDU is not one that `role` receives, or its lengths or flags contradict each
    /// other or what was agreed.
    pub fn of(bytes: &[u8; COMMON_HEADER_LEN], role: Role, agreed: Digests) -> Result<Self, Fatal> {
        let [kind, flags, hlen, pdo, p0, p1, p2, p3] = *bytes;
        let plen = u32::from_le_bytes([p0, p1, p2, p3]);
        let kind = PduKind::from_byte(kind)
            .filter(|k| k.is_for(role))
            .ok_or_else(|| Fatal::field(0, format!("PDU of type {kind} is not for a {role:?}")))?;
        let header_len = kind.header_len();
        if usize::from(hlen) != header_len {
            let message = format!("{kind:?}: header of {hlen} bytes, {header_len} expected");
            return Err(Fatal::field(2, message));
        }
        if !kind.has_digests() {
            return Self::without_digests(kind, flags, plen);
        }
        if (flags & FLAG_HEADER_DIGEST != 0) != agreed.header {
            let message = format!("{kind:?}: flags {flags:#04x} contradict the header digest");
            return Err(Fatal::field(1, message));
        }
        let head = header_len + agreed.header_len();
        let mut layout = Self {
            kind,
            flags,
            header_len,
            data_start: head,
            data_len: 0,
            header_digest: agreed.header,
            data_digest: false,
        };
        if plen as usize != head {
            layout.place_data(pdo, plen, agreed)?;
        }
        Ok(layout)
    }

    fn without_digests(kind: PduKind, flags: u8, plen: u32) -> Result<Self, Fatal> {
        let header_len = kind.header_len();
        let is_term = matches!(kind, PduKind::H2cTerm | PduKind::C2hTerm);
        let len_max = if is_term { TERM_LEN_MAX } else { header_len as u32 };
        if plen < header_len as u32 || plen > len_max {
            let message = format!("{kind:?}: length {plen}, expected {header_len} to {len_max}");
            return Err(Fatal::field(4, message));
        }
        // What a termination request quotes is not looked at: it counts as padding.
        Ok(Self {
            kind,
            flags,
            header_len,
            data_start: plen as usize,
            data_len: 0,
            header_digest: false,
            data_digest: false,
        })
    }

    fn place_data(&mut self, pdo: u8, plen: u32, agreed: Digests) -> Result<(), Fatal> {
        let kind = self.kind;
        let digest = if agreed.data { DIGEST_LEN } else { 0 };
        let start = usize::from(pdo);
        let data_len = (plen as usize).saturating_sub(start + digest);
        if !kind.carries_data() || data_len == 0 {
            return Err(Fatal::field(4, format!("{kind:?}: length {plen} does not fit its kind")));
        }
        if start < self.data_start || !start.is_multiple_of(4) {
            let message =
                format!("{kind:?}: data at byte {pdo}, header ends at {}", self.data_start);
            return Err(Fatal::field(3, message));
        }
        if (self.flags & FLAG_DATA_DIGEST != 0) != agreed.data {
            let message = format!("{kind:?}: flags {:#04x} contradict the data digest", self.flags);
            return Err(Fatal::field(1, message));
        }
        self.data_start = start;
        self.data_len = data_len;
        self.data_digest = agreed.data;
        Ok(())
    }
}

/// Parameters of a connection: the same layout both ways, with different meaning of two fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initialize {
    /// Format of the PDUs; 0 is the only one.
    pub format: u16,
    /// Alignment of data within PDUs sent to the sender of this one: (value + 1) × 4 bytes.
    pub alignment: u8,
    /// The digests asked for (request) or agreed (response).
    pub digests: Digests,
    /// Request: most R2Ts of one command under way, minus one. Response: longest data of one
    /// H2CData PDU, in bytes.
    pub limit: u32,
}

/// What H2CData and C2HData say about their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// The command.
    pub cid: u16,
    /// The tag of the R2T that is answered (H2CData only).
    pub ttag: u16,
    /// First byte within the command's data.
    pub offset: u32,
    /// Bytes of data.
    pub len: u32,
    /// Whether it is the last PDU of the transfer.
    pub last: bool,
    /// Whether no response follows (C2HData only).
    pub success: bool,
}

/// A controller's request for data of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToTransfer {
    /// The command.
    pub cid: u16,
    /// Chosen by the controller, repeated by the data.
    pub ttag: u16,
    /// First byte within the command's data.
    pub offset: u32,
    /// Bytes wanted.
    pub len: u32,
}

/// A PDU without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// Initialize connection, request or response.
    Initialize(Initialize),
    /// The peer ends the connection.
    Term {
        /// Fatal error status.
        status: u16,
        /// Fatal error information.
        information: u32,
    },
    /// A command.
    Command(Submission),
    /// A completion.
    Response(Completion),
    /// Data of a write or of a read.
    Data(DataHeader),
    /// A request for data.
    R2t(ReadyToTransfer),
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

impl Pdu {
    /// Reads the header of a PDU with this layout; `bytes` hold everything before its data.
    ///
    /// # Errors
    /// Fatal when the header digest does not match or the header contradicts the PDU's length.
    pub fn parse(layout: &Layout, bytes: &[u8]) -> Result<Self, Fatal> {
        let Some((header, rest)) = bytes.split_at_checked(layout.header_len) else {
            return Err(Fatal::new(FatalStatus::InvalidHeader, "a header was cut off"));
        };
        if layout.header_digest {
            let (got, expected) = (u32_at(rest, 0), crc::crc32c(header));
            if got != expected {
                return Err(Fatal {
                    status: FatalStatus::HeaderDigest,
                    information: got,
                    error: Error::corruption(format!(
                        "{:?}: header digest {got:#010x}, its bytes have {expected:#010x}",
                        layout.kind
                    )),
                });
            }
        }
        Ok(match layout.kind {
            PduKind::IcReq | PduKind::IcResp => Self::Initialize(Initialize {
                format: u16_at(header, 8),
                alignment: header[10],
                digests: Digests::from_byte(header[11]),
                limit: u32_at(header, 12),
            }),
            PduKind::H2cTerm | PduKind::C2hTerm => {
                Self::Term { status: u16_at(header, 8), information: u32_at(header, 10) }
            }
            PduKind::Command => Self::Command(Submission::parse(&header[COMMON_HEADER_LEN..])),
            PduKind::Response => Self::Response(Completion::parse(&header[COMMON_HEADER_LEN..])),
            PduKind::R2t => Self::R2t(ReadyToTransfer {
                cid: u16_at(header, 8),
                ttag: u16_at(header, 10),
                offset: u32_at(header, 12),
                len: u32_at(header, 16),
            }),
            PduKind::H2cData | PduKind::C2hData => Self::Data(Self::data(layout, header)?),
        })
    }

    fn data(layout: &Layout, header: &[u8]) -> Result<DataHeader, Fatal> {
        let data = DataHeader {
            cid: u16_at(header, 8),
            ttag: u16_at(header, 10),
            offset: u32_at(header, 12),
            len: u32_at(header, 16),
            last: layout.flags & FLAG_LAST != 0,
            success: layout.flags & FLAG_SUCCESS != 0,
        };
        if data.len as usize != layout.data_len || data.len == 0 {
            let message = format!(
                "{:?}: data of {} bytes in room for {}",
                layout.kind, data.len, layout.data_len
            );
            return Err(Fatal::field(16, message));
        }
        if data.success && !data.last {
            return Err(Fatal::field(1, "C2HData: complete, but not the last of its transfer"));
        }
        Ok(data)
    }
}

/// Room for any header, its digest and padding: a command (72 + 4 bytes) padded to a multiple of
/// up to 128 bytes ends before byte 152.
const HEAD_ROOM: usize = 152;

/// A PDU on its way out: header, data, digest. The data are shared, never copied.
#[derive(Clone)]
pub struct Frame {
    head: [u8; HEAD_ROOM],
    head_len: u8,
    data: Bytes,
    tail: [u8; DIGEST_LEN],
    tail_len: u8,
}

/// How PDUs of a connection are put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assembly {
    /// The digests agreed on.
    pub digests: Digests,
    /// The peer's alignment of data: (value + 1) × 4 bytes; at most 31.
    pub alignment: u8,
}

impl Assembly {
    /// A PDU whose header is the common one and `specific`.
    ///
    /// `data_crc` is the CRC32C of `data` where it is known already; it saves a pass over them.
    ///
    /// # Panics
    /// When `specific` has not the length of the kind: a defect of the caller.
    #[must_use]
    pub fn frame(
        &self,
        kind: PduKind,
        flags: u8,
        specific: &[u8],
        data: Bytes,
        data_crc: Option<u32>,
    ) -> Frame {
        let header_len = COMMON_HEADER_LEN + specific.len();
        assert_eq!(header_len, kind.header_len());
        let digests = if kind.has_digests() { self.digests } else { Digests::default() };
        let mut flags = flags;
        let mut head_len = header_len + digests.header_len();
        let mut data_start = 0;
        let mut tail_len = 0;
        if !data.is_empty() {
            let step = (usize::from(self.alignment.min(31)) + 1) * 4;
            head_len = head_len.next_multiple_of(step);
            data_start = head_len;
            tail_len = if digests.data { DIGEST_LEN } else { 0 };
        }
        if digests.header {
            flags |= FLAG_HEADER_DIGEST;
        }
        if tail_len > 0 {
            flags |= FLAG_DATA_DIGEST;
        }
        assert!(head_len <= HEAD_ROOM, "{kind:?}: a header of {head_len} bytes has room");
        let plen = (head_len + data.len() + tail_len) as u32;
        let mut head = [0; HEAD_ROOM];
        head[..4].copy_from_slice(&[kind as u8, flags, header_len as u8, data_start as u8]);
        head[4..8].copy_from_slice(&plen.to_le_bytes());
        head[8..header_len].copy_from_slice(specific);
        if digests.header {
            let digest = crc::crc32c(&head[..header_len]).to_le_bytes();
            head[header_len..header_len + DIGEST_LEN].copy_from_slice(&digest);
        }
        let mut tail = [0; DIGEST_LEN];
        if tail_len > 0 {
            tail = data_crc.unwrap_or_else(|| crc::crc32c(&data)).to_le_bytes();
        }
        Frame { head, head_len: head_len as u8, data, tail, tail_len: tail_len as u8 }
    }

    /// ICReq or ICResp.
    #[must_use]
    pub fn initialize(kind: PduKind, with: &Initialize) -> Frame {
        let mut specific = [0; 120];
        specific[0..2].copy_from_slice(&with.format.to_le_bytes());
        specific[2] = with.alignment;
        specific[3] = with.digests.byte();
        specific[4..8].copy_from_slice(&with.limit.to_le_bytes());
        Self::default().frame(kind, 0, &specific, Bytes::new(), None)
    }

    /// A termination request that quotes the start of the PDU at fault.
    #[must_use]
    pub fn term(kind: PduKind, fatal: &Fatal, quoted: &[u8]) -> Frame {
        let mut specific = [0; 16];
        specific[0..2].copy_from_slice(&(fatal.status as u16).to_le_bytes());
        specific[2..6].copy_from_slice(&fatal.information.to_le_bytes());
        let mut frame = Self::default().frame(kind, 0, &specific, Bytes::new(), None);
        let quoted = &quoted[..quoted.len().min(TERM_LEN_MAX as usize - kind.header_len())];
        let plen = (usize::from(frame.head_len) + quoted.len()) as u32;
        frame.head[4..8].copy_from_slice(&plen.to_le_bytes());
        frame.data = Bytes::copy_from_slice(quoted);
        frame
    }

    /// A command, with data when they travel in the capsule.
    #[must_use]
    pub fn command(&self, command: &Submission, data: Bytes, data_crc: Option<u32>) -> Frame {
        self.frame(PduKind::Command, 0, command.as_bytes(), data, data_crc)
    }

    /// A completion.
    #[must_use]
    pub fn response(&self, completion: &Completion) -> Frame {
        self.frame(PduKind::Response, 0, &completion.to_bytes(), Bytes::new(), None)
    }

    /// H2CData or C2HData; `header.len` is the length of `data`.
    #[must_use]
    pub fn data(
        &self,
        kind: PduKind,
        header: &DataHeader,
        data: Bytes,
        data_crc: Option<u32>,
    ) -> Frame {
        assert_eq!(header.len as usize, data.len(), "a header says how long its data are");
        let flags =
            if header.last { FLAG_LAST } else { 0 } | if header.success { FLAG_SUCCESS } else { 0 };
        let specific = Self::transfer(header.cid, header.ttag, header.offset, header.len);
        self.frame(kind, flags, &specific, data, data_crc)
    }

    /// A request for data.
    #[must_use]
    pub fn r2t(&self, r2t: &ReadyToTransfer) -> Frame {
        let specific = Self::transfer(r2t.cid, r2t.ttag, r2t.offset, r2t.len);
        self.frame(PduKind::R2t, 0, &specific, Bytes::new(), None)
    }

    fn transfer(cid: u16, ttag: u16, offset: u32, len: u32) -> [u8; 16] {
        let mut specific = [0; 16];
        specific[0..2].copy_from_slice(&cid.to_le_bytes());
        specific[2..4].copy_from_slice(&ttag.to_le_bytes());
        specific[4..8].copy_from_slice(&offset.to_le_bytes());
        specific[8..12].copy_from_slice(&len.to_le_bytes());
        specific
    }
}

impl Frame {
    /// Bytes on the wire.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.head_len) + self.data.len() + usize::from(self.tail_len)
    }

    /// Whether it holds no bytes; it never does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of data.
    #[must_use]
    pub fn data_len(&self) -> usize {
        self.data.len()
    }

    /// What is left of it after `skip` bytes: parts of the header, the data and the digest.
    #[must_use]
    pub fn parts(&self, mut skip: usize) -> [&[u8]; 3] {
        [
            &self.head[..usize::from(self.head_len)],
            &self.data[..],
            &self.tail[..usize::from(self.tail_len)],
        ]
        .map(|part| {
            let taken = skip.min(part.len());
            skip -= taken;
            &part[taken..]
        })
    }
}
