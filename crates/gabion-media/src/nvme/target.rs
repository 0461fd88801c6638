//! The target: a subsystem with one namespace of 4 KiB blocks, the connections to it, and the
//! grants that say where a host may write.
//!
//! ```text
//!   TCP accept ─► TargetConnection ──progress──► Subsystem: hosts, controllers, grants, closed?
//!                     │    ▲
//!              poll_io│    │complete_io          the driver runs each BackendIo on a Medium
//!                     ▼    │
//!                   driver ─► Medium
//! ```
//!
//! Order of calls per connection: [`TargetConnection::progress`] when its transport became ready,
//! after [`TargetConnection::complete_io`], after [`Subsystem::close`], and some times a second;
//! after it, [`TargetConnection::poll_io`] until there is nothing; once
//! [`TargetConnection::is_finished`], drop it. A connection is never dropped before that: the
//! driver may still be writing for it.
//!
//! A fence is [`Subsystem::close`], then waiting until
//! [`Subsystem::in_flight`] is 0. From then on nothing of an earlier host can change the namespace.

mod admin;
mod backing;
mod connection;
mod grants;
mod slot;

pub use backing::Backing;
pub use connection::{BackendIo, BackendKind, TargetConnection};

use super::command::{ConnectParameters, Status};
use super::fabrics::{
    ANY_CONTROLLER, CC_ENABLE, CC_SHUTDOWN, CSTS_FATAL, CSTS_READY, CSTS_SHUT_DOWN, ConnectData,
    ControllerInfo, NamespaceInfo, capabilities, check_name,
};
use super::pdu::Digests;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use gabion_base::units::{BLOCK_LEN, TRANSFER_LEN_MAX};
use gabion_base::{Error, Result};
use grants::Grants;

/// Bytes of a logical block as a power of two.
const BLOCK_ORDER: u8 = BLOCK_LEN.trailing_zeros() as u8;
/// Longest transfer of a command as a power of two of pages of 4 KiB.
const TRANSFER_ORDER: u8 = (TRANSFER_LEN_MAX / BLOCK_LEN).trailing_zeros() as u8;
/// Data that may travel with a command on an I/O queue.
const IO_CAPSULE_DATA_LEN: u32 = 16 * 1024;
/// The controller number after the largest that may be used.
const CONTROLLER_END: u16 = 0xfff0;
/// Deepest queue of a target.
pub const TARGET_QUEUE_DEPTH_MAX: u16 = 1024;

const _: () = assert!(BLOCK_LEN.is_power_of_two());
const _: () = assert!(BLOCK_LEN << TRANSFER_ORDER == TRANSFER_LEN_MAX);

/// What a target offers, and to whom.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// The subsystem's name; a host that asks for another is refused.
    pub subsystem_nqn: String,
    /// Names of the hosts that may connect before anything is granted to them; of others, only
    /// those that [`Subsystem::admit`] names may.
    pub allowed_hosts: Vec<String>,
    /// Bytes of the namespace, a multiple of 4,096.
    pub namespace_len: u64,
    /// Identity of the namespace, which a host may look at; not all zeros.
    pub namespace_uuid: [u8; 16],
    /// Entries of a queue, 2 to [`TARGET_QUEUE_DEPTH_MAX`].
    pub queue_depth: u16,
    /// I/O queues of a controller, at least 1.
    pub queues_max: u16,
    /// Controllers (connected hosts) at a time, at least 1.
    pub controllers_max: u16,
    /// Digests that a host may ask for.
    pub digests: Digests,
    /// Longest data of one H2CData PDU, in bytes: at least 4,096, a multiple of 4. With 1 MiB every
    /// write travels in one PDU, whose digest is the chunk's checksum.
    pub h2c_len_max: u32,
    /// Longest piece of a write asked for at once, in bytes, at least 4,096.
    pub r2t_len_max: u32,
    /// Bytes of data buffers that a connection may hold; commands wait for room in turn. At least
    /// 1 MiB, the longest transfer.
    pub data_in_flight_max: usize,
}

impl TargetConfig {
    /// Queues of 128 entries, 4 of them for each of 8 hosts, both digests, transfers of 1 MiB in
    /// one piece, 8 MiB of data per connection.
    #[must_use]
    pub fn new(
        subsystem_nqn: String,
        allowed_hosts: Vec<String>,
        namespace_len: u64,
        namespace_uuid: [u8; 16],
    ) -> Self {
        Self {
            subsystem_nqn,
            allowed_hosts,
            namespace_len,
            namespace_uuid,
            queue_depth: 128,
            queues_max: 4,
            controllers_max: 8,
            digests: Digests { header: true, data: true },
            h2c_len_max: TRANSFER_LEN_MAX as u32,
            r2t_len_max: TRANSFER_LEN_MAX as u32,
            data_in_flight_max: 8 * TRANSFER_LEN_MAX,
        }
    }

    fn check(&self) -> Result<()> {
        check_name("the subsystem's name", &self.subsystem_nqn)?;
        let wrong = |what: &str, value: u64, valid: &str| {
            Err(Error::invalid(format!("target: {what} is {value}; {valid}")))
        };
        let block = BLOCK_LEN as u64;
        if self.namespace_len == 0 || !self.namespace_len.is_multiple_of(block) {
            return wrong("namespace length", self.namespace_len, "a multiple of 4096 is valid");
        }
        if !(2..=TARGET_QUEUE_DEPTH_MAX).contains(&self.queue_depth) {
            return wrong("queue depth", u64::from(self.queue_depth), "2 to 1024 are valid");
        }
        if self.namespace_uuid == [0; 16] {
            return wrong("namespace UUID", 0, "anything else is valid");
        }
        if self.queues_max == 0 || self.controllers_max == 0 {
            return wrong("queues or controllers", 0, "at least 1 is valid");
        }
        let (h2c, r2t) = (self.h2c_len_max, self.r2t_len_max);
        if h2c < 4096 || !h2c.is_multiple_of(4) {
            return wrong("H2CData limit", u64::from(h2c), "a multiple of 4 from 4096 is valid");
        }
        if r2t < 4096 {
            return wrong("R2T limit", u64::from(r2t), "at least 4096 is valid");
        }
        if self.data_in_flight_max < TRANSFER_LEN_MAX {
            return wrong("data limit", self.data_in_flight_max as u64, "at least 1 MiB is valid");
        }
        Ok(())
    }
}

/// What a driver's target is to do, whoever drives it. Ranges are bytes of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetCommand {
    /// Close what is served, let what is in flight end, serve under this name, and report that.
    Open {
        /// Name of the subsystem.
        subsystem: String,
        /// Comes back with what is reported.
        session: u64,
        /// The hosts that are admitted from the beginning. Nothing is granted to them yet.
        hosts: Vec<String>,
    },
    /// Admit writes of a host to these ranges in the subsystem served now. Whatever of them another
    /// host had, it has no more.
    Admit {
        /// The writer.
        host: String,
        /// Where it may write.
        ranges: Vec<Range<u64>>,
    },
    /// Refuse writes to these ranges from now on, whoever could write there.
    Revoke(Vec<Range<u64>>),
    /// Close what is served, let what is in flight end, and report that.
    Close,
}

/// A host's association: its admin queue and I/O queues.
#[derive(Debug)]
struct Controller {
    /// Which of the admitted hosts.
    host: usize,
    host_nqn: String,
    host_id: [u8; 16],
    configuration: u32,
    status: u32,
    keep_alive_ms: u32,
    seen_ms: u64,
    async_events: u32,
    /// Numbers of the connected I/O queues.
    queues: BTreeSet<u16>,
}

impl Controller {
    const fn is_ready(&self) -> bool {
        self.status & CSTS_READY != 0
    }
}

/// Which queue of which controller a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QueueId {
    controller: u16,
    number: u16,
}

/// What the connections to one subsystem share.
#[derive(Debug)]
pub struct Subsystem {
    config: TargetConfig,
    controllers: BTreeMap<u16, Controller>,
    next_controller: u16,
    grants: Grants,
    closed: bool,
    in_flight: usize,
}

impl Subsystem {
    /// A subsystem that admits no write yet.
    ///
    /// # Errors
    /// Invalid input that names the option and what is valid.
    pub fn new(config: TargetConfig) -> Result<Self> {
        config.check()?;
        Ok(Self {
            controllers: BTreeMap::new(),
            next_controller: 1,
            grants: Grants::of(&config.allowed_hosts),
            closed: false,
            in_flight: 0,
            config,
        })
    }

    /// What it was made with.
    #[must_use]
    pub const fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// Lets a host write to a byte range of the namespace, and no other host any more. The host may
    /// connect from now on, if it could not before.
    pub fn admit(&mut self, host_nqn: &str, range: Range<u64>) {
        self.grants.insert(host_nqn, range);
    }

    /// Takes a range back, whoever may write there. A write that is not handed to the driver yet is
    /// refused; one that is may still land: see [`Self::in_flight`].
    pub fn revoke(&mut self, range: Range<u64>) {
        self.grants.remove(range);
    }

    /// Takes back every range.
    pub fn revoke_all(&mut self) {
        self.grants.clear();
    }

    /// Refuses new connections and commands for good. Connections answer what the driver is
    /// executing, drop the rest and end.
    pub fn close(&mut self) {
        self.closed = true;
        self.grants.clear();
    }

    /// Whether it was closed.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Operations handed, or about to be handed, to the driver and not completed, over all
    /// connections. Once it is 0 after [`Self::close`] it stays 0.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Controllers: hosts that are connected.
    #[must_use]
    pub fn controllers(&self) -> usize {
        self.controllers.len()
    }

    /// Judges a read or write of a controller's host.
    fn check_range(&self, id: u16, range: &Range<u64>, is_write: bool) -> Result<(), Status> {
        if range.end > self.config.namespace_len {
            return Err(Status::LBA_RANGE);
        }
        let host = self.controllers.get(&id).map(|controller| controller.host);
        if is_write && !host.is_some_and(|host| self.grants.covers(host, range)) {
            return Err(Status::ACCESS_DENIED);
        }
        Ok(())
    }

    fn connect(
        &mut self,
        data: &ConnectData,
        with: &ConnectParameters,
        now_ms: u64,
    ) -> Result<QueueId, Refusal> {
        if with.format != 0 {
            return Err(Refusal { status: Status::CONNECT_FORMAT, at: 0 });
        }
        if data.subsystem_nqn != self.config.subsystem_nqn {
            return Err(Refusal::data(256));
        }
        let Some(host) = self.grants.find(&data.host_nqn) else {
            return Err(Refusal { status: Status::CONNECT_HOST, at: 0 });
        };
        if with.entries_minus_one == 0 || with.entries_minus_one >= TARGET_QUEUE_DEPTH_MAX {
            return Err(Refusal::command(44));
        }
        if self.closed {
            return Err(Refusal { status: Status::CONNECT_BUSY, at: 0 });
        }
        match with.queue {
            0 => self.connect_admin(data, with, host, now_ms),
            _ => self.connect_io(data, with),
        }
    }

    fn connect_admin(
        &mut self,
        data: &ConnectData,
        with: &ConnectParameters,
        host: usize,
        now_ms: u64,
    ) -> Result<QueueId, Refusal> {
        if data.controller != ANY_CONTROLLER {
            return Err(Refusal::data(16));
        }
        if self.controllers.len() >= usize::from(self.config.controllers_max) {
            return Err(Refusal { status: Status::CONNECT_BUSY, at: 0 });
        }
        while self.controllers.contains_key(&self.next_controller) {
            self.advance_controller();
        }
        let id = self.next_controller;
        assert!((1..CONTROLLER_END).contains(&id), "{id} is no controller's number");
        self.advance_controller();
        self.controllers.insert(
            id,
            Controller {
                host,
                host_nqn: data.host_nqn.clone(),
                host_id: data.host_id,
                configuration: 0,
                status: 0,
                keep_alive_ms: with.keep_alive_ms,
                seen_ms: now_ms,
                async_events: 0,
                queues: BTreeSet::new(),
            },
        );
        Ok(QueueId { controller: id, number: 0 })
    }

    const fn advance_controller(&mut self) {
        self.next_controller = match self.next_controller + 1 {
            CONTROLLER_END => 1,
            next => next,
        };
    }

    fn connect_io(
        &mut self,
        data: &ConnectData,
        with: &ConnectParameters,
    ) -> Result<QueueId, Refusal> {
        let Some(controller) = self.controllers.get_mut(&data.controller) else {
            return Err(Refusal::data(16));
        };
        if controller.host_nqn != data.host_nqn || controller.host_id != data.host_id {
            return Err(Refusal { status: Status::CONNECT_HOST, at: 0 });
        }
        if !controller.is_ready() {
            return Err(Refusal { status: Status::SEQUENCE, at: 0 });
        }
        if with.queue > self.config.queues_max || controller.queues.contains(&with.queue) {
            return Err(Refusal::command(42));
        }
        if with.entries_minus_one >= self.config.queue_depth {
            return Err(Refusal::command(44));
        }
        controller.queues.insert(with.queue);
        Ok(QueueId { controller: data.controller, number: with.queue })
    }

    fn disconnect(&mut self, queue: QueueId) {
        if queue.number == 0 {
            self.controllers.remove(&queue.controller);
        } else if let Some(controller) = self.controllers.get_mut(&queue.controller) {
            controller.queues.remove(&queue.number);
        }
    }

    /// Whether a queue may go on: its controller is there, and ready where it has to be.
    fn check_alive(&self, queue: QueueId) -> Result<()> {
        let id = queue.controller;
        match self.controllers.get(&id) {
            None => Err(Error::unavailable(format!("controller {id} is gone"))),
            Some(controller) if queue.number != 0 && !controller.is_ready() => {
                Err(Error::unavailable(format!("controller {id} was disabled")))
            }
            Some(_) => Ok(()),
        }
    }

    /// Whether the host still shows signs of life. Asked after what it sent was read, so that a
    /// pause of this side is not taken for its silence.
    fn check_keep_alive(&self, queue: QueueId, now_ms: u64) -> Result<()> {
        let Some(controller) = self.controllers.get(&queue.controller) else { return Ok(()) };
        let limit_ms = u64::from(controller.keep_alive_ms);
        if limit_ms == 0 || now_ms.saturating_sub(controller.seen_ms) <= limit_ms {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "host {}: no sign of life for {limit_ms} ms",
            controller.host_nqn
        )))
    }

    fn set_configuration(&mut self, id: u16, value: u32) {
        let Some(controller) = self.controllers.get_mut(&id) else { return };
        let before = core::mem::replace(&mut controller.configuration, value);
        if value & CC_ENABLE != 0 && before & CC_ENABLE == 0 {
            // Entry sizes of 2^6 and 2^4 bytes, NVM command set, pages of 4 KiB, round robin.
            let known = (value >> 16 & 0xff) == 0x46 && value & 0x3ff0 == 0;
            controller.status = if known { CSTS_READY } else { CSTS_FATAL };
        }
        if value & CC_ENABLE == 0 && before & CC_ENABLE != 0 {
            controller.status = 0;
        }
        if value & CC_SHUTDOWN != 0 && before & CC_SHUTDOWN == 0 {
            controller.status |= CSTS_SHUT_DOWN;
        }
    }

    fn capabilities(&self) -> u64 {
        capabilities(self.config.queue_depth)
    }

    fn controller_info(&self, id: u16) -> ControllerInfo {
        ControllerInfo {
            controller: id,
            transfer_order: TRANSFER_ORDER,
            commands_max: self.config.queue_depth,
            capsule_data_len: IO_CAPSULE_DATA_LEN,
            capsule_data_offset: 0,
            write_cache: true,
            subsystem_nqn: self.config.subsystem_nqn.clone(),
        }
    }

    fn namespace_info(&self) -> NamespaceInfo {
        NamespaceInfo { blocks: self.config.namespace_len >> BLOCK_ORDER, block_order: BLOCK_ORDER }
    }
}

/// Why a Connect is refused: status, and the result that names the parameter.
struct Refusal {
    status: Status,
    at: u64,
}

impl Refusal {
    /// A wrong field at this offset of the command.
    const fn command(at: u64) -> Self {
        Self { status: Status::CONNECT_INVALID, at }
    }

    /// A wrong field at this offset of the data.
    const fn data(at: u64) -> Self {
        Self { status: Status::CONNECT_INVALID, at: at | 1 << 16 }
    }
}
