//! A command of an I/O queue: what it is, how far it is, and whether it may be executed at all.

use super::Subsystem;
use crate::AlignedBuf;
use crate::nvme::command::{NAMESPACE, SGL_IN_CAPSULE, SGL_TRANSPORT, Status, Submission, io};
use crate::nvme::wire::Arrived;
use alloc::sync::Arc;
use core::ops::Range;
use gabion_base::units::{BLOCK_LEN, TRANSFER_LEN_MAX};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// For room for its data.
    Waiting,
    /// For data that an R2T asked for.
    Receiving,
    /// For the driver.
    Backend,
    /// For the flush that a write asked for.
    FinalFlush,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write { durable: bool },
    Flush,
}

pub(super) struct Slot {
    pub(super) cid: u16,
    pub(super) kind: Kind,
    pub(super) stage: Stage,
    pub(super) offset: u64,
    pub(super) len: u32,
    /// Of a write's data, while it receives and no PDU of it is under way.
    pub(super) buffer: Option<AlignedBuf>,
    /// The same while the driver writes it.
    pub(super) lent: Option<Arc<AlignedBuf>>,
    pub(super) received: u32,
    /// Where the data asked for so far end.
    pub(super) asked: u32,
    pub(super) crc: u32,
    pub(super) damaged: bool,
    /// Of the driver's operation.
    pub(super) id: u64,
}

impl Slot {
    /// Whether the driver has it, or is about to.
    pub(super) const fn is_at_driver(&self) -> bool {
        matches!(self.stage, Stage::Backend | Stage::FinalFlush)
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.offset + u64::from(self.len)
    }
}

/// Whether data in the capsule are what the SGL says.
pub(super) fn check_capsule(command: &Submission, data: Option<&Arrived>) -> Result<(), Status> {
    let len = data.map_or(0, |data| data.buffer.len());
    match command.sgl_kind() {
        SGL_IN_CAPSULE if command.sgl_address() != 0 => Err(Status::SGL_OFFSET),
        SGL_IN_CAPSULE if command.sgl_len() as usize != len => Err(Status::SGL_LENGTH),
        SGL_IN_CAPSULE => Ok(()),
        SGL_TRANSPORT if len > 0 => Err(Status::SGL_TYPE),
        SGL_TRANSPORT => Ok(()),
        _ => Err(Status::SGL_TYPE),
    }
}

/// Judges an I/O command of a controller's host; what comes out may be executed.
pub(super) fn judge(
    subsystem: &Subsystem,
    controller: u16,
    command: &Submission,
) -> Result<Slot, Status> {
    let kind = match command.opcode() {
        io::READ => Kind::Read,
        io::WRITE => Kind::Write { durable: command.force_unit_access() },
        io::FLUSH => Kind::Flush,
        _ => return Err(Status::INVALID_OPCODE),
    };
    let namespace = command.namespace();
    let all = kind == Kind::Flush && namespace == u32::MAX;
    if namespace != NAMESPACE && !all {
        return Err(Status::INVALID_NAMESPACE);
    }
    let (mut offset, mut len) = (0, 0);
    if kind != Kind::Flush {
        let bytes = u64::from(command.block_count()) * BLOCK_LEN as u64;
        offset = command.first_block().checked_mul(BLOCK_LEN as u64).ok_or(Status::LBA_RANGE)?;
        let end = offset.checked_add(bytes).ok_or(Status::LBA_RANGE)?;
        if bytes > TRANSFER_LEN_MAX as u64 {
            return Err(Status::INVALID_FIELD);
        }
        subsystem.check_range(controller, &(offset..end), kind != Kind::Read)?;
        len = bytes as u32;
    }
    if command.sgl_len() != len {
        return Err(Status::SGL_LENGTH);
    }
    if kind == Kind::Read && command.sgl_kind() != SGL_TRANSPORT {
        return Err(Status::SGL_TYPE);
    }
    Ok(Slot {
        cid: command.cid(),
        kind,
        stage: Stage::Waiting,
        offset,
        len,
        buffer: None,
        lent: None,
        received: 0,
        asked: 0,
        crc: 0,
        damaged: false,
        id: 0,
    })
}
