//! Admin and property commands: answered at once, from what the subsystem knows.

use super::{QueueId, Subsystem};
use crate::AlignedBuf;
use crate::nvme::command::{NAMESPACE, Status, Submission, admin, fabrics_type, feature, io};
use crate::nvme::fabrics::{
    IDENTIFY_LEN, VERSION, active_namespaces, namespace_descriptors, property,
};

/// Longest log page that is answered, in bytes.
const LOG_LEN_MAX: u64 = 64 * 1024;

/// The answer to a command.
pub(super) struct Reply {
    pub(super) status: Status,
    pub(super) result: u64,
    pub(super) data: Option<AlignedBuf>,
}

impl Reply {
    pub(super) const fn status(status: Status) -> Self {
        Self { status, result: 0, data: None }
    }

    pub(super) const fn result(result: u64) -> Self {
        Self { status: Status::SUCCESS, result, data: None }
    }

    /// Data, which must be as long as the command's SGL says.
    fn data(data: AlignedBuf, command: &Submission) -> Self {
        if command.sgl_kind() != crate::nvme::command::SGL_TRANSPORT {
            return Self::status(Status::SGL_TYPE);
        }
        if command.sgl_len() as usize != data.len() {
            return Self::status(Status::SGL_LENGTH);
        }
        Self { status: Status::SUCCESS, result: 0, data: Some(data) }
    }
}

/// Property Get and Set; Connect is handled by the connection.
pub(super) fn property(subsystem: &mut Subsystem, queue: QueueId, command: &Submission) -> Reply {
    if queue.number != 0 {
        return Reply::status(Status::INVALID_FIELD);
    }
    let (offset, value) = command.property();
    let controller = subsystem.controllers.get(&queue.controller);
    match (command.fabrics_type(), offset, command.property_is_long()) {
        (fabrics_type::PROPERTY_GET, property::CAP, true) => {
            Reply::result(subsystem.capabilities())
        }
        (fabrics_type::PROPERTY_GET, property::VS, false) => Reply::result(u64::from(VERSION)),
        (fabrics_type::PROPERTY_GET, property::CC, false) => {
            Reply::result(controller.map_or(0, |c| u64::from(c.configuration)))
        }
        (fabrics_type::PROPERTY_GET, property::CSTS, false) => {
            Reply::result(controller.map_or(0, |c| u64::from(c.status)))
        }
        (fabrics_type::PROPERTY_SET, property::CC, false) => {
            subsystem.set_configuration(queue.controller, value as u32);
            Reply::status(Status::SUCCESS)
        }
        (fabrics_type::PROPERTY_GET | fabrics_type::PROPERTY_SET, ..) => {
            Reply::status(Status::INVALID_FIELD)
        }
        _ => Reply::status(Status::INVALID_OPCODE),
    }
}

/// An admin command other than Asynchronous Event Request.
pub(super) fn execute(subsystem: &mut Subsystem, queue: QueueId, command: &Submission) -> Reply {
    match command.opcode() {
        admin::IDENTIFY => identify(subsystem, queue, command),
        admin::GET_LOG_PAGE => log_page(command),
        admin::SET_FEATURES => set_feature(subsystem, queue, command),
        admin::GET_FEATURES => get_feature(subsystem, queue, command),
        // Every command here ends by itself: none was aborted.
        admin::ABORT => Reply::result(1),
        admin::KEEP_ALIVE => Reply::status(Status::SUCCESS),
        _ => Reply::status(Status::INVALID_OPCODE),
    }
}

fn identify(subsystem: &Subsystem, queue: QueueId, command: &Submission) -> Reply {
    let uuid = &subsystem.config.namespace_uuid;
    let namespace = command.namespace();
    let structure = command.dword(10) & 0xff;
    // The NVM command set, the only one, has number 0.
    let set = command.dword(11) >> 24;
    let data = match (structure, namespace) {
        (0 | 3, NAMESPACE) | (1 | 2 | 6, _) if set == 0 => match structure {
            0 => subsystem.namespace_info().encode(uuid),
            1 => subsystem.controller_info(queue.controller).encode("1"),
            2 => active_namespaces(namespace),
            3 => namespace_descriptors(uuid),
            // No limits beyond those of Identify Controller.
            _ => AlignedBuf::zeroed(IDENTIFY_LEN),
        },
        // An inactive namespace is all zeros; one that cannot be is refused.
        (0 | 3, _) => return Reply::status(Status::INVALID_NAMESPACE),
        _ => return Reply::status(Status::INVALID_FIELD),
    };
    Reply::data(data, command)
}

fn log_page(command: &Submission) -> Reply {
    let page = command.dword(10) & 0xff;
    let dwords = u64::from(command.dword(10) >> 16) | u64::from(command.dword(11) & 0xffff) << 16;
    let len = (dwords + 1) * 4;
    let offset = u64::from(command.dword(12)) | u64::from(command.dword(13)) << 32;
    if len > LOG_LEN_MAX || !offset.is_multiple_of(4) {
        return Reply::status(Status::INVALID_FIELD);
    }
    let whole = match page {
        // Errors, changed namespaces: none.
        1 | 4 => AlignedBuf::zeroed(IDENTIFY_LEN),
        2 => health(),
        3 => firmware(),
        5 => effects(),
        _ => return Reply::status(Status::INVALID_LOG_PAGE),
    };
    let mut data = AlignedBuf::zeroed(len as usize);
    let from = offset.min(whole.len() as u64) as usize;
    let count = (whole.len() - from).min(data.len());
    data[..count].copy_from_slice(&whole[from..from + count]);
    Reply::data(data, command)
}

/// SMART / health: no warning, all spare left.
fn health() -> AlignedBuf {
    let mut out = AlignedBuf::zeroed(512);
    out[3] = 100;
    out[4] = 10;
    out
}

/// Firmware slots: one.
fn firmware() -> AlignedBuf {
    let mut out = AlignedBuf::zeroed(512);
    out[0] = 1;
    out[8..16].copy_from_slice(b"1       ");
    out
}

/// Commands supported and effects.
fn effects() -> AlignedBuf {
    let mut out = AlignedBuf::zeroed(IDENTIFY_LEN);
    let admin = [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT,
        admin::KEEP_ALIVE,
    ];
    for opcode in admin {
        out[usize::from(opcode) * 4] = 1;
    }
    for opcode in [io::FLUSH, io::WRITE, io::READ] {
        out[1024 + usize::from(opcode) * 4] = 1;
    }
    // A write changes the content of logical blocks.
    out[1024 + usize::from(io::WRITE) * 4] |= 2;
    out
}

fn queue_counts(subsystem: &Subsystem) -> u64 {
    let minus_one = u64::from(subsystem.config.queues_max - 1);
    minus_one << 16 | minus_one
}

fn set_feature(subsystem: &mut Subsystem, queue: QueueId, command: &Submission) -> Reply {
    let value = command.dword(11);
    let counts = queue_counts(subsystem);
    let Some(controller) = subsystem.controllers.get_mut(&queue.controller) else {
        return Reply::status(Status::SEQUENCE);
    };
    match command.dword(10) as u8 {
        feature::QUEUES if value & 0xffff == 0xffff || value >> 16 == 0xffff => {
            Reply::status(Status::INVALID_FIELD)
        }
        feature::QUEUES => Reply::result(counts),
        feature::KEEP_ALIVE => {
            controller.keep_alive_ms = value;
            Reply::status(Status::SUCCESS)
        }
        feature::ASYNC_EVENTS => {
            controller.async_events = value;
            Reply::status(Status::SUCCESS)
        }
        feature::WRITE_CACHE if value & 1 == 0 => Reply::status(Status::FEATURE_NOT_CHANGEABLE),
        feature::WRITE_CACHE => Reply::status(Status::SUCCESS),
        _ => Reply::status(Status::INVALID_FIELD),
    }
}

fn get_feature(subsystem: &Subsystem, queue: QueueId, command: &Submission) -> Reply {
    let Some(controller) = subsystem.controllers.get(&queue.controller) else {
        return Reply::status(Status::SEQUENCE);
    };
    match command.dword(10) as u8 {
        feature::QUEUES => Reply::result(queue_counts(subsystem)),
        feature::KEEP_ALIVE => Reply::result(u64::from(controller.keep_alive_ms)),
        feature::ASYNC_EVENTS => Reply::result(u64::from(controller.async_events)),
        feature::WRITE_CACHE => Reply::result(1),
        _ => Reply::status(Status::INVALID_FIELD),
    }
}
