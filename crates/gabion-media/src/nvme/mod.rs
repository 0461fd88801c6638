//! NVMe over Fabrics on TCP, both ends, as state machines over a [`Transport`]: no sockets, no
//! clock. They speak with Linux's `nvmet-tcp` and Linux's initiator as they do with each other
//! (NVMe base 1.4, NVMe over Fabrics 1.1, NVMe/TCP transport 1.0).
//!
//! ```text
//!   node ── Medium ──► Initiator ══ admin connection ══► TargetConnection ─┐
//!                               ══ I/O connection ════► TargetConnection ─┴► Subsystem (grants)
//!                                                             └─ poll_io ──► driver ──► Medium
//! ```
//!
//! - [`pdu`]: PDUs; [`command`]: queue entries; [`fabrics`]: Connect, properties, Identify.
//! - [`initiator`]: a remote namespace as a [`crate::Medium`].
//! - [`target`]: a subsystem with one namespace, its connections and its grants.
//!
//! # A PDU
//!
//! ```text
//!   byte 0     1       2      3     4          8           HLEN        PDO
//!   ┌──────┬───────┬──────┬─────┬──────────┬──────────┬─────────┬─────┬──────┬─────────┐
//!   │ type │ flags │ HLEN │ PDO │ PLEN u32 │ specific │ [HDGST] │ pad │ data │ [DDGST] │
//!   └──────┴───────┴──────┴─────┴──────────┴──────────┴─────────┴─────┴──────┴─────────┘
//!   flags: 1 HDGST follows the header, 2 DDGST follows the data, 4 last of transfer, 8 success
//!   PLEN counts everything. Digests are CRC32C, little-endian; of the header, of the data alone.
//!
//!   type          HLEN  specific (offsets in the PDU)
//!   0 ICReq        128  8 PFV u16 = 0 │ 10 HPDA u8 │ 11 digests u8 │ 12 MAXR2T−1 u32 │ zeros
//!   1 ICResp       128  8 PFV u16 = 0 │ 10 CPDA u8 │ 11 digests u8 │ 12 MAXH2CDATA u32 │ zeros
//!   2 H2CTermReq    24  8 FES u16 │ 10 FEI u32 │ zeros │ then the header at fault, ≤ 128 bytes
//!   3 C2HTermReq    24  as 2
//!   4 CapsuleCmd    72  8 submission queue entry, 64 bytes; data: in-capsule data
//!   5 CapsuleResp   24  8 completion queue entry, 16 bytes
//!   6 H2CData       24  8 CID u16 │ 10 TTAG u16 │ 12 offset u32 │ 16 length u32 │ zeros; data
//!   7 C2HData       24  8 CID u16 │ 10 zero     │ 12 offset u32 │ 16 length u32 │ zeros; data
//!   9 R2T           24  8 CID u16 │ 10 TTAG u16 │ 12 offset u32 │ 16 length u32 │ zeros
//! ```
//!
//! # Queue entries
//!
//! ```text
//!   submission   0 opcode │ 1 flags = 0x40 (SGL) │ 2 CID u16 │ 4 NSID u32 │ 24 SGL │ 40 dwords 10–15
//!     SGL        24 address u64 │ 32 length u32 │ 39 type: 0x01 in the capsule, 0x5a in PDUs
//!     read/write 40 first LBA u64 │ 48 blocks−1 u16 │ 51 bit 6: force unit access
//!     fabrics    opcode 0x7f, 4 type: 0 Property Set, 1 Connect, 4 Property Get
//!     Connect    40 format u16 │ 42 queue u16 │ 44 entries−1 u16 │ 46 attributes u8 │ 48 KATO ms u32
//!       data     0 host id │ 16 controller u16 │ 256 subsystem NQN │ 512 host NQN; 1,024 bytes
//!   completion   0 result u64 │ 8 SQ head u16 │ 10 SQ id u16 │ 12 CID u16 │ 14 status u16 « 1
//! ```
//!
//! # A write of 1 MiB
//!
//! ```text
//!   host    ── CapsuleCmd(write, SGL 0x5a) ──────────────►
//!           ◄─────────────────── R2T(offset 0, 1 MiB) ──    the target has a buffer for it
//!           ── H2CData(last, 1 MiB, DDGST = chunk CRC) ──►   one vectored send, one CRC pass each
//!           ◄─────────────────────── CapsuleResp(status) ──
//! ```

pub mod command;
pub mod fabrics;
pub mod initiator;
pub mod pdu;
pub mod target;
mod wire;

#[cfg(test)]
mod tests;

pub use initiator::{Initiator, InitiatorConfig, InitiatorState};
pub use pdu::Digests;
pub use target::{
    BackendIo, BackendKind, Backing, Subsystem, TargetCommand, TargetConfig, TargetConnection,
};

#[cfg(doc)]
use crate::transport::Transport;
