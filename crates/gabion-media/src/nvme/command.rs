//! Submission and completion queue entries: 64 and 16 bytes, drawn in the parent module.

use alloc::format;
use gabion_base::{Error, ErrorKind};

/// Bytes of a submission queue entry.
pub const SUBMISSION_LEN: usize = 64;
/// Bytes of a completion queue entry.
pub const COMPLETION_LEN: usize = 16;
/// The one namespace that Gabion's target has and that its initiator uses.
pub const NAMESPACE: u32 = 1;

/// SGL descriptor: data in the capsule, at an offset.
pub const SGL_IN_CAPSULE: u8 = 0x01;
/// SGL descriptor: data travel in PDUs of the transport.
pub const SGL_TRANSPORT: u8 = 0x5a;
/// Command flags: the data pointer is an SGL. Linux refuses a fabrics command without it.
const FLAGS_SGL: u8 = 0x40;
/// Force unit access, in the control field (bits 16–31 of dword 12) of a write.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;

/// Opcodes of admin commands.
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// Opcodes of I/O commands.
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
}

/// The opcode of all fabrics commands.
pub const FABRICS: u8 = 0x7f;

/// Types of fabrics commands.
pub mod fabrics_type {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
}

/// Feature identifiers.
pub mod feature {
    /// Volatile write cache.
    pub const WRITE_CACHE: u8 = 0x06;
    /// Number of queues.
    pub const QUEUES: u8 = 0x07;
    /// Asynchronous event configuration.
    pub const ASYNC_EVENTS: u8 = 0x0b;
    /// Keep alive timer, in milliseconds.
    pub const KEEP_ALIVE: u8 = 0x0f;
}

/// A command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Submission([u8; SUBMISSION_LEN]);

const _: () = assert!(size_of::<Submission>() == SUBMISSION_LEN);

impl Submission {
    /// A command of this opcode, without data. The command identifier is set when it is sent.
    #[must_use]
    pub fn new(opcode: u8) -> Self {
        let mut bytes = [0; SUBMISSION_LEN];
        bytes[0] = opcode;
        bytes[1] = FLAGS_SGL;
        bytes[39] = SGL_TRANSPORT;
        Self(bytes)
    }

    /// Copies a command off the wire.
    #[must_use]
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let mut command = [0; SUBMISSION_LEN];
        let len = bytes.len().min(SUBMISSION_LEN);
        command[..len].copy_from_slice(&bytes[..len]);
        Self(command)
    }

    /// The entry as it travels.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; SUBMISSION_LEN] {
        &self.0
    }

    fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from(self.u16_at(at)) | u32::from(self.u16_at(at + 2)) << 16
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from(self.u32_at(at)) | u64::from(self.u32_at(at + 4)) << 32
    }

    fn with(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// With this command identifier.
    #[must_use]
    pub fn with_cid(self, cid: u16) -> Self {
        self.with(2, &cid.to_le_bytes())
    }

    /// For this namespace.
    #[must_use]
    pub fn with_namespace(self, nsid: u32) -> Self {
        self.with(4, &nsid.to_le_bytes())
    }

    /// A fabrics command's type.
    #[must_use]
    pub fn with_fabrics_type(self, kind: u8) -> Self {
        self.with(4, &[kind])
    }

    /// With `len` bytes of data that travel in the capsule or in PDUs of their own.
    #[must_use]
    pub fn with_data(self, len: u32, in_capsule: bool) -> Self {
        let kind = if in_capsule { SGL_IN_CAPSULE } else { SGL_TRANSPORT };
        self.with(32, &len.to_le_bytes()).with(39, &[kind])
    }

    /// With command dword `number` (10 to 15).
    ///
    /// # Panics
    /// For another number: a defect of the caller.
    #[must_use]
    pub fn with_dword(self, number: usize, value: u32) -> Self {
        assert!((10..16).contains(&number));
        self.with(number * 4, &value.to_le_bytes())
    }

    /// A read or write of `blocks` logical blocks (1 to 65,536) from block `first`.
    #[must_use]
    pub fn transfer(opcode: u8, first: u64, blocks: u32) -> Self {
        Self::new(opcode)
            .with_namespace(NAMESPACE)
            .with_dword(10, first as u32)
            .with_dword(11, (first >> 32) as u32)
            .with_dword(12, blocks.saturating_sub(1) & 0xffff)
    }

    /// The opcode.
    #[must_use]
    pub const fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Whether the data pointer is an SGL and the command is not half of a fused pair: what NVMe
    /// over Fabrics asks of every command.
    #[must_use]
    pub const fn has_valid_flags(&self) -> bool {
        self.0[1] == FLAGS_SGL
    }

    /// The command identifier.
    #[must_use]
    pub fn cid(&self) -> u16 {
        self.u16_at(2)
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> u32 {
        self.u32_at(4)
    }

    /// The type of a fabrics command.
    #[must_use]
    pub const fn fabrics_type(&self) -> u8 {
        self.0[4]
    }

    /// The SGL descriptor's address: for data in the capsule an offset.
    #[must_use]
    pub fn sgl_address(&self) -> u64 {
        self.u64_at(24)
    }

    /// The SGL descriptor's length, in bytes.
    #[must_use]
    pub fn sgl_len(&self) -> u32 {
        self.u32_at(32)
    }

    /// The SGL descriptor's type.
    #[must_use]
    pub const fn sgl_kind(&self) -> u8 {
        self.0[39]
    }

    /// Command dword `number` (10 to 15).
    ///
    /// # Panics
    /// For another number: a defect of the caller.
    #[must_use]
    pub fn dword(&self, number: usize) -> u32 {
        assert!((10..16).contains(&number));
        self.u32_at(number * 4)
    }

    /// First logical block of a read or write.
    #[must_use]
    pub fn first_block(&self) -> u64 {
        self.u64_at(40)
    }

    /// Logical blocks of a read or write.
    #[must_use]
    pub fn block_count(&self) -> u32 {
        u32::from(self.u16_at(48)) + 1
    }

    /// Whether the data must be durable when a write completes.
    #[must_use]
    pub fn force_unit_access(&self) -> bool {
        self.dword(12) & FORCE_UNIT_ACCESS != 0
    }

    /// Offset and value of a Property Set; the offset of a Property Get.
    #[must_use]
    pub fn property(&self) -> (u32, u64) {
        (self.u32_at(44), self.u64_at(48))
    }

    /// Whether a property command is about 8 bytes rather than 4.
    #[must_use]
    pub const fn property_is_long(&self) -> bool {
        self.0[40] & 7 == 1
    }

    /// Property Get of 4 or 8 bytes.
    #[must_use]
    pub fn property_get(offset: u32, long: bool) -> Self {
        Self::new(FABRICS)
            .with_fabrics_type(fabrics_type::PROPERTY_GET)
            .with(40, &[u8::from(long)])
            .with(44, &offset.to_le_bytes())
    }

    /// Property Set of 4 bytes.
    #[must_use]
    pub fn property_set(offset: u32, value: u32) -> Self {
        Self::new(FABRICS)
            .with_fabrics_type(fabrics_type::PROPERTY_SET)
            .with(44, &offset.to_le_bytes())
            .with(48, &u64::from(value).to_le_bytes())
    }

    /// The parameters of a Connect command.
    #[must_use]
    pub fn connect_parameters(&self) -> ConnectParameters {
        ConnectParameters {
            format: self.u16_at(40),
            queue: self.u16_at(42),
            entries_minus_one: self.u16_at(44),
            no_flow_control: self.0[46] & 4 != 0,
            keep_alive_ms: self.u32_at(48),
        }
    }

    /// Connect, without its data.
    #[must_use]
    pub fn connect(with: &ConnectParameters) -> Self {
        Self::new(FABRICS)
            .with_fabrics_type(fabrics_type::CONNECT)
            .with(40, &with.format.to_le_bytes())
            .with(42, &with.queue.to_le_bytes())
            .with(44, &with.entries_minus_one.to_le_bytes())
            .with(46, &[if with.no_flow_control { 4 } else { 0 }])
            .with(48, &with.keep_alive_ms.to_le_bytes())
    }
}

impl core::fmt::Debug for Submission {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Submission(opcode {:#04x}, cid {})", self.opcode(), self.cid())
    }
}

/// What a Connect command says outside its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectParameters {
    /// Format of the record; 0 is the only one.
    pub format: u16,
    /// 0 for the admin queue, else the number of the I/O queue.
    pub queue: u16,
    /// Entries of the submission queue, minus one.
    pub entries_minus_one: u16,
    /// Whether the host does without the submission queue head in responses, which lets the
    /// controller end a read with the data instead of a response.
    pub no_flow_control: bool,
    /// Keep-alive timeout of the controller, in milliseconds; 0 turns it off.
    pub keep_alive_ms: u32,
}

/// Status of a completion: status code in bits 0–7, its type in 8–10, 'do not retry' in 14.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    /// Success.
    pub const SUCCESS: Self = Self(0);
    /// No such opcode here.
    pub const INVALID_OPCODE: Self = Self(0x4001);
    /// A field of the command is wrong or not supported.
    pub const INVALID_FIELD: Self = Self(0x4002);
    /// The command identifier is in use.
    pub const CID_CONFLICT: Self = Self(0x4003);
    /// The controller failed.
    pub const INTERNAL: Self = Self(0x0006);
    /// The command was dropped because its queue is going away.
    pub const ABORTED: Self = Self(0x0008);
    /// No such namespace.
    pub const INVALID_NAMESPACE: Self = Self(0x400b);
    /// Not in this state of the controller.
    pub const SEQUENCE: Self = Self(0x400c);
    /// The SGL's length does not fit the command.
    pub const SGL_LENGTH: Self = Self(0x400f);
    /// The SGL's type is not supported.
    pub const SGL_TYPE: Self = Self(0x4011);
    /// Data in the capsule are too long or not at its start.
    pub const SGL_OFFSET: Self = Self(0x4016);
    /// The data were damaged on the way; nothing was done, and a retry may help.
    pub const TRANSIENT_TRANSPORT: Self = Self(0x0022);
    /// The range reaches past the end of the namespace.
    pub const LBA_RANGE: Self = Self(0x4080);
    /// Too many asynchronous event requests.
    pub const ASYNC_LIMIT: Self = Self(0x4105);
    /// No such log page.
    pub const INVALID_LOG_PAGE: Self = Self(0x4109);
    /// The feature cannot be changed.
    pub const FEATURE_NOT_CHANGEABLE: Self = Self(0x410e);
    /// Connect: unknown record format.
    pub const CONNECT_FORMAT: Self = Self(0x4180);
    /// Connect: no room for another controller or queue.
    pub const CONNECT_BUSY: Self = Self(0x0181);
    /// Connect: a parameter is wrong; the result says which.
    pub const CONNECT_INVALID: Self = Self(0x4182);
    /// Connect: this host may not use this subsystem.
    pub const CONNECT_HOST: Self = Self(0x4184);
    /// The medium failed a write or flush.
    pub const WRITE_FAULT: Self = Self(0x0280);
    /// The medium failed a read.
    pub const READ_ERROR: Self = Self(0x0281);
    /// The host may not write there.
    pub const ACCESS_DENIED: Self = Self(0x4286);

    /// Whether the command succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & 0x07ff == 0
    }

    /// Code and type without the retry bits.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0 & 0x07ff
    }

    const fn name(self) -> &'static str {
        match self.code() {
            0x001 => "invalid opcode",
            0x002 => "invalid field",
            0x003 => "command identifier in use",
            0x004 => "data transfer error",
            0x006 => "internal error",
            0x007 => "aborted on request",
            0x008 => "aborted: queue deleted",
            0x00b => "invalid namespace",
            0x00c => "wrong order of commands",
            0x00f => "wrong SGL length",
            0x011 => "wrong SGL type",
            0x016 => "wrong SGL offset",
            0x020 => "namespace is write-protected",
            0x022 => "damaged in transport",
            0x080 => "range past the end",
            0x081 => "no capacity left",
            0x082 => "namespace not ready",
            0x105 => "too many event requests",
            0x109 => "no such log page",
            0x10e => "feature cannot be changed",
            0x180 => "unknown connect format",
            0x181 => "controller busy",
            0x182 => "invalid connect parameter",
            0x184 => "host not allowed",
            0x191 => "authentication required",
            0x280 => "write fault",
            0x281 => "read error",
            0x286 => "access denied",
            _ => "error",
        }
    }

    /// The status as an error of the operation `what`.
    #[must_use]
    pub fn error(self, what: &str) -> Error {
        let kind = match self.code() {
            0x001 => ErrorKind::Unsupported,
            0x082 | 0x181 => ErrorKind::Unavailable,
            0x022 => ErrorKind::Corruption,
            0x080..=0x081 => ErrorKind::LimitExceeded,
            0x184 | 0x191 | 0x286 => ErrorKind::Fenced,
            _ => ErrorKind::Io,
        };
        Error::new(kind, format!("{what}: NVMe status {:#05x}, {}", self.code(), self.name()))
    }
}

impl core::fmt::Debug for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Status({:#06x}, {})", self.0, self.name())
    }
}

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Dwords 0 and 1: depends on the command.
    pub result: u64,
    /// Head of the submission queue.
    pub queue_head: u16,
    /// The queue's number.
    pub queue: u16,
    /// The command.
    pub cid: u16,
    /// How it ended.
    pub status: Status,
}

impl Completion {
    /// Reads an entry off the wire; the phase bit means nothing there.
    #[must_use]
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let mut b = [0; COMPLETION_LEN];
        let len = bytes.len().min(COMPLETION_LEN);
        b[..len].copy_from_slice(&bytes[..len]);
        Self {
            result: u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            queue_head: u16::from_le_bytes([b[8], b[9]]),
            queue: u16::from_le_bytes([b[10], b[11]]),
            cid: u16::from_le_bytes([b[12], b[13]]),
            status: Status(u16::from_le_bytes([b[14], b[15]]) >> 1),
        }
    }

    /// The entry as it travels.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; COMPLETION_LEN] {
        let mut b = [0; COMPLETION_LEN];
        b[0..8].copy_from_slice(&self.result.to_le_bytes());
        b[8..10].copy_from_slice(&self.queue_head.to_le_bytes());
        b[10..12].copy_from_slice(&self.queue.to_le_bytes());
        b[12..14].copy_from_slice(&self.cid.to_le_bytes());
        b[14..16].copy_from_slice(&(self.status.0 << 1).to_le_bytes());
        b
    }
}
