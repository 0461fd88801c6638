//! What NVMe over Fabrics adds to the commands: Connect data, controller properties, and the
//! Identify structures with the fields that fabrics need. Offsets are those of the NVMe base
//! specification; fields that are not named are zero.

use super::command::NAMESPACE;
use crate::AlignedBuf;
use alloc::format;
use alloc::string::String;
use gabion_base::{Error, Result};

/// Bytes of the data of Connect.
pub const CONNECT_DATA_LEN: usize = 1024;
/// Bytes of an Identify structure.
pub const IDENTIFY_LEN: usize = 4096;
/// Longest qualified name.
pub const NQN_LEN_MAX: usize = 223;
/// Bytes of an admin capsule's data (NVMe/TCP fixes it).
pub const ADMIN_CAPSULE_DATA_LEN: usize = 8192;
/// The controller number that a Connect of the admin queue asks for: any.
pub const ANY_CONTROLLER: u16 = 0xffff;

/// Offsets of controller properties.
pub mod property {
    /// Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// Configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// Status, 4 bytes.
    pub const CSTS: u32 = 0x1c;
}

/// Configuration: enabled.
pub const CC_ENABLE: u32 = 1;
/// Configuration: the kind of shutdown asked for.
pub const CC_SHUTDOWN: u32 = 3 << 14;
/// Configuration that enables a controller: submission entries of 2^6, completion entries of 2^4
/// bytes, pages of 4 KiB, NVM command set.
pub const CC_ENABLED: u32 = 4 << 20 | 6 << 16 | CC_ENABLE;
/// Status: ready.
pub const CSTS_READY: u32 = 1;
/// Status: fatal.
pub const CSTS_FATAL: u32 = 1 << 1;
/// Status: shutdown is complete.
pub const CSTS_SHUT_DOWN: u32 = 2 << 2;
/// NVMe 1.4.
pub const VERSION: u32 = 0x0001_0400;

/// Capabilities of a controller with queues of up to `entries_max` entries: contiguous queues, 1 s
/// to become ready, NVM command set, pages of 4 KiB.
#[must_use]
pub fn capabilities(entries_max: u16) -> u64 {
    u64::from(entries_max.saturating_sub(1)) | 1 << 16 | 2 << 24 | 1 << 37
}

/// The data of a Connect command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// The host's identity.
    pub host_id: [u8; 16],
    /// The controller, or [`ANY_CONTROLLER`].
    pub controller: u16,
    /// The subsystem's name.
    pub subsystem_nqn: String,
    /// The host's name.
    pub host_nqn: String,
}

impl ConnectData {
    /// The 1,024 bytes as they travel.
    #[must_use]
    pub fn encode(&self) -> AlignedBuf {
        let mut out = AlignedBuf::zeroed(CONNECT_DATA_LEN);
        out[0..16].copy_from_slice(&self.host_id);
        out[16..18].copy_from_slice(&self.controller.to_le_bytes());
        put_name(&mut out[256..512], &self.subsystem_nqn);
        put_name(&mut out[512..768], &self.host_nqn);
        out
    }

    /// Reads them.
    ///
    /// # Errors
    /// Invalid input when the length is not theirs or a name is no valid text.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let Ok(bytes) = <&[u8; CONNECT_DATA_LEN]>::try_from(bytes) else {
            return Err(Error::invalid(format!(
                "Connect has {} bytes of data, expected {CONNECT_DATA_LEN}",
                bytes.len()
            )));
        };
        let mut host_id = [0; 16];
        host_id.copy_from_slice(&bytes[0..16]);
        Ok(Self {
            host_id,
            controller: u16::from_le_bytes([bytes[16], bytes[17]]),
            subsystem_nqn: name(&bytes[256..512])?,
            host_nqn: name(&bytes[512..768])?,
        })
    }
}

fn put_name(field: &mut [u8], name: &str) {
    // Names are checked where they are configured; a longer one could only be cut.
    let len = name.len().min(NQN_LEN_MAX);
    field[..len].copy_from_slice(&name.as_bytes()[..len]);
}

fn name(field: &[u8]) -> Result<String> {
    let len = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    if len == 0 || len > NQN_LEN_MAX {
        return Err(Error::invalid(format!("a name of {len} bytes; 1 to {NQN_LEN_MAX} are valid")));
    }
    match core::str::from_utf8(&field[..len]) {
        Ok(text) => Ok(text.into()),
        Err(_) => Err(Error::invalid("a name that is not UTF-8")),
    }
}

/// Checks a qualified name of a configuration.
///
/// # Errors
/// Invalid input when it is empty or longer than [`NQN_LEN_MAX`] bytes.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NQN_LEN_MAX || name.contains('\0') {
        return Err(Error::invalid(format!(
            "{what} has {} bytes; 1 to {NQN_LEN_MAX} without zeros are valid",
            name.len()
        )));
    }
    Ok(())
}

/// What the two ends use of Identify Controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// The controller's number.
    pub controller: u16,
    /// Longest transfer as a power of two of pages of 4 KiB; 0 for no limit.
    pub transfer_order: u8,
    /// Most commands in flight on one queue.
    pub commands_max: u16,
    /// Bytes of data that a capsule of an I/O queue can hold.
    pub capsule_data_len: u32,
    /// Offset of such data in the capsule, in units of 16 bytes.
    pub capsule_data_offset: u16,
    /// Whether completed writes need a flush to be durable.
    pub write_cache: bool,
    /// The subsystem's name.
    pub subsystem_nqn: String,
}

const CAPSULE_UNIT: u32 = 16;
const CAPSULE_COMMAND_LEN: u32 = 64;

impl ControllerInfo {
    /// Identify Controller as a Linux host wants it.
    #[must_use]
    pub fn encode(&self, serial: &str) -> AlignedBuf {
        let mut out = AlignedBuf::zeroed(IDENTIFY_LEN);
        put_padded(&mut out[4..24], serial);
        put_padded(&mut out[24..64], "Gabion");
        put_padded(&mut out[64..72], "1");
        out[77] = self.transfer_order;
        put(&mut out, 78, &self.controller.to_le_bytes());
        put(&mut out, 80, &VERSION.to_le_bytes());
        // Host identifiers of 128 bits; any command counts as a sign of life.
        put(&mut out, 96, &(1u32 | 1 << 6).to_le_bytes());
        out[111] = 1; // An I/O controller.
        out[258] = 3; // Aborts at once, minus one.
        out[259] = ASYNC_EVENTS_MAX as u8 - 1;
        out[260] = 3; // One firmware slot, read-only.
        put(&mut out, 320, &10u16.to_le_bytes()); // Keep-alive in units of 1 s.
        out[512] = 0x66; // Submission entries of 2^6 bytes,
        out[513] = 0x44; // completion entries of 2^4.
        put(&mut out, 514, &self.commands_max.to_le_bytes());
        put(&mut out, 516, &NAMESPACE.to_le_bytes());
        out[525] = u8::from(self.write_cache);
        // SGLs without alignment; offsets within a capsule.
        put(&mut out, 536, &(1u32 | 1 << 20).to_le_bytes());
        put(&mut out, 540, &NAMESPACE.to_le_bytes());
        put_name(&mut out[768..1024], &self.subsystem_nqn);
        let capsule = (CAPSULE_COMMAND_LEN + self.capsule_data_len) / CAPSULE_UNIT;
        put(&mut out, 1792, &capsule.to_le_bytes());
        put(&mut out, 1796, &1u32.to_le_bytes()); // Responses of 16 bytes.
        put(&mut out, 1800, &self.capsule_data_offset.to_le_bytes());
        out[1803] = 1; // One SGL descriptor per command.
        out
    }

    /// Reads Identify Controller.
    ///
    /// # Errors
    /// Corruption when it is too short; unsupported when capsules are smaller than a command.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        check_identify(bytes)?;
        let capsule = u32_at(bytes, 1792);
        let Some(capsule_data_len) =
            capsule.checked_mul(CAPSULE_UNIT).and_then(|len| len.checked_sub(CAPSULE_COMMAND_LEN))
        else {
            return Err(Error::unsupported(format!(
                "the target says that I/O capsules have {capsule} × {CAPSULE_UNIT} bytes; \
                 {CAPSULE_COMMAND_LEN} bytes is the least"
            )));
        };
        Ok(Self {
            controller: u16_at(bytes, 78),
            transfer_order: bytes[77],
            commands_max: u16_at(bytes, 514),
            capsule_data_len,
            capsule_data_offset: u16_at(bytes, 1800),
            write_cache: bytes[525] & 1 != 0,
            subsystem_nqn: name(&bytes[768..1024]).unwrap_or_default(),
        })
    }
}

/// Asynchronous event requests that a controller of ours holds.
pub const ASYNC_EVENTS_MAX: usize = 4;

/// What the two ends use of Identify Namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Logical blocks.
    pub blocks: u64,
    /// Bytes of a logical block as a power of two.
    pub block_order: u8,
}

impl NamespaceInfo {
    /// Identify Namespace with one LBA format.
    #[must_use]
    pub fn encode(&self, uuid: &[u8; 16]) -> AlignedBuf {
        let mut out = AlignedBuf::zeroed(IDENTIFY_LEN);
        for at in [0, 8, 16] {
            put(&mut out, at, &self.blocks.to_le_bytes());
        }
        put(&mut out, 104, uuid);
        out[130] = self.block_order;
        out
    }

    /// Reads Identify Namespace.
    ///
    /// # Errors
    /// Corruption when it is too short; not found when the namespace is inactive; unsupported when
    /// blocks are not 512 to 65,536 bytes long or carry metadata.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        check_identify(bytes)?;
        let blocks = u64::from(u32_at(bytes, 0)) | u64::from(u32_at(bytes, 4)) << 32;
        if blocks == 0 {
            return Err(Error::not_found(format!("namespace {NAMESPACE} is not active")));
        }
        let selected = bytes[26];
        let format = usize::from(selected & 0x0f | selected >> 1 & 0x30);
        let (metadata, order) = (u16_at(bytes, 128 + 4 * format), bytes[128 + 4 * format + 2]);
        if metadata != 0 || !(9..=16).contains(&order) || blocks > u64::MAX >> order {
            return Err(Error::unsupported(format!(
                "namespace {NAMESPACE} has {blocks} blocks of 2^{order} bytes with {metadata} \
                 bytes of metadata; 2^9 to 2^16 without metadata are supported"
            )));
        }
        Ok(Self { blocks, block_order: order })
    }

    /// Bytes of the namespace.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.blocks << self.block_order
    }

    /// Whether it has no blocks.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.blocks == 0
    }
}

/// Namespace Identification Descriptor list: UUID and command set.
#[must_use]
pub fn namespace_descriptors(uuid: &[u8; 16]) -> AlignedBuf {
    let mut out = AlignedBuf::zeroed(IDENTIFY_LEN);
    put(&mut out, 0, &[3, 16, 0, 0]);
    put(&mut out, 4, uuid);
    put(&mut out, 20, &[4, 1, 0, 0, 0]);
    out
}

/// List of active namespaces with numbers over `after`.
#[must_use]
pub fn active_namespaces(after: u32) -> AlignedBuf {
    let mut out = AlignedBuf::zeroed(IDENTIFY_LEN);
    if after < NAMESPACE {
        put(&mut out, 0, &NAMESPACE.to_le_bytes());
    }
    out
}

fn check_identify(bytes: &[u8]) -> Result<()> {
    if bytes.len() < IDENTIFY_LEN {
        return Err(Error::corruption(format!(
            "Identify returned {} bytes, expected {IDENTIFY_LEN}",
            bytes.len()
        )));
    }
    Ok(())
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

fn put_padded(field: &mut [u8], text: &str) {
    field.fill(b' ');
    let len = text.len().min(field.len());
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}
