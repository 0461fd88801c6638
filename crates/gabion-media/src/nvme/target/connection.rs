//! One connection of the target: an admin or an I/O queue.
//!
//! ```text
//!   command ─► checked ─► waits for data room ─► R2T ─► receives ─► checked again ─► driver ─► response
//!                │            (reads and R2T writes)                    │               │
//!                └─ refused   in-capsule data skip the middle ──────────┘               └─ FUA: flush
//! ```

use super::admin::{self, Reply};
use super::slot::{Kind, Slot, Stage, check_capsule, judge};
use super::{IO_CAPSULE_DATA_LEN, QueueId, Refusal, Subsystem};
use crate::buffers::Buffers;
use crate::nvme::command::{
    Completion, FABRICS, Status, Submission, admin as opcode, fabrics_type, io,
};
use crate::nvme::fabrics::{ADMIN_CAPSULE_DATA_LEN, ASYNC_EVENTS_MAX, ConnectData};
use crate::nvme::pdu::{
    Assembly, DataHeader, Digests, Fatal, FatalStatus, Initialize, Pdu, PduKind, ReadyToTransfer,
    Role,
};
use crate::nvme::wire::{Arrived, Broken, Event, Wire, out_of_sequence};
use crate::transport::Transport;
use crate::{AlignedBuf, Bytes};
use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::{Error, Result, crc};

/// While as many frames wait for the transport nothing more is received.
const FRAMES_WAITING_MAX: usize = 64;
/// Most PDUs of one call. An honest host stays far below: what it has under way is bounded by its
/// queue, which empties between calls. One that floods must not keep the thread from the others.
const PDUS_PER_CALL: usize = 1024;
/// Time for a connection to become a queue.
const CONNECT_TIMEOUT_MS: u64 = 10_000;

/// What the driver has to do on the medium behind the namespace.
#[derive(Debug)]
pub struct BackendIo {
    /// Names it for [`TargetConnection::complete_io`].
    pub id: u64,
    /// What to do.
    pub kind: BackendKind,
}

/// What to do on the medium.
#[derive(Debug)]
pub enum BackendKind {
    /// Read and hand the bytes to the completion.
    Read {
        /// First byte, a multiple of 4,096.
        offset: u64,
        /// Bytes, a multiple of 4,096, at most 1 MiB.
        len: usize,
    },
    /// Write.
    Write {
        /// First byte, a multiple of 4,096.
        offset: u64,
        /// What to write, in memory aligned to 4,096.
        data: Bytes,
        /// CRC32C of `data`, taken as they arrived and equal to the host's where digests are on.
        crc: u32,
    },
    /// Make complete writes durable.
    Flush,
}

/// Where the data of a PDU under way belong.
enum Arriving {
    Capsule(Submission),
    Slot { index: usize, len: u32 },
}

enum Phase {
    Greeting,
    /// Before Connect.
    Open,
    Queue(QueueId),
    Over(Error),
}

/// One TCP connection to a [`Subsystem`].
pub struct TargetConnection<T: Transport> {
    wire: Wire<T>,
    phase: Phase,
    draining: bool,
    started_ms: Option<u64>,
    h2c_len_max: u32,
    /// Entries of the submission queue.
    entries: u16,
    head: u16,
    no_flow_control: bool,
    slots: Vec<Option<Slot>>,
    /// Slots that wait for data room, in order.
    waiting: VecDeque<usize>,
    /// For the driver to fetch.
    ready: VecDeque<BackendIo>,
    /// Operations with the driver or in `ready`.
    at_backend: usize,
    next_id: u64,
    /// Bytes of data buffers in use.
    reserved: usize,
    buffers: Buffers,
    /// Asynchronous event requests held.
    events: Vec<u16>,
    arriving: Option<Arriving>,
    /// The host is not who it says.
    refused: Option<Error>,
}

impl<T: Transport> TargetConnection<T> {
    /// A connection that was just accepted.
    #[must_use]
    pub fn new(transport: T) -> Self {
        Self {
            wire: Wire::new(transport, Role::Controller),
            phase: Phase::Greeting,
            draining: false,
            started_ms: None,
            h2c_len_max: 0,
            entries: 1,
            head: 0,
            no_flow_control: false,
            slots: Vec::new(),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            at_backend: 0,
            next_id: 0,
            reserved: 0,
            buffers: Buffers::default(),
            events: Vec::new(),
            arriving: None,
            refused: None,
        }
    }

    /// Whether bytes wait for the transport: register for writability.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        !matches!(self.phase, Phase::Over(_)) && self.wire.frames_waiting() > 0
    }

    /// Whether it is over and the driver owes it nothing: it can be dropped.
    #[must_use]
    pub const fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Over(_)) && self.at_backend == 0
    }

    /// Whether its host has not been admitted by Connect yet. Nothing of it is or ever was with the
    /// driver, so it can be dropped at any time.
    #[must_use]
    pub const fn is_unconnected(&self) -> bool {
        matches!(self.phase, Phase::Greeting | Phase::Open)
    }

    /// Why it is over.
    #[must_use]
    pub const fn error(&self) -> Option<&Error> {
        match &self.phase {
            Phase::Over(error) => Some(error),
            Phase::Greeting | Phase::Open | Phase::Queue(_) => None,
        }
    }

    /// The transport, to register it for readiness.
    #[must_use]
    pub const fn transport(&self) -> &T {
        self.wire.transport()
    }

    /// Bytes received.
    #[must_use]
    pub const fn bytes_received(&self) -> u64 {
        self.wire.bytes_received()
    }

    /// Bytes sent.
    #[must_use]
    pub const fn bytes_sent(&self) -> u64 {
        self.wire.bytes_sent()
    }

    /// Bytes of data buffers that it holds, waits for or lends to the driver.
    #[must_use]
    pub const fn data_reserved(&self) -> usize {
        self.reserved
    }

    /// Moves bytes both ways until the transport would block, answers what can be answered at once
    /// and queues the rest for [`Self::poll_io`].
    pub fn progress(&mut self, subsystem: &mut Subsystem, now_ms: u64) {
        if matches!(self.phase, Phase::Over(_)) {
            return;
        }
        let moved = (self.wire.bytes_received(), self.wire.bytes_sent());
        if let Err(broken) = self.advance(subsystem, now_ms) {
            let error = match broken {
                Broken::Connection(error) => error,
                Broken::Protocol(fatal) => {
                    self.wire.push_term(&fatal);
                    // The peer is told if it listens; the connection is over either way.
                    let _ = self.wire.flush(|_| {});
                    fatal.error
                }
            };
            self.end(subsystem, error);
        }
        if let Some(error) = self.refused.take() {
            self.end(subsystem, error);
        }
        if moved != (self.wire.bytes_received(), self.wire.bytes_sent()) {
            self.invariants();
        }
    }

    /// What holds after each call that moved bytes; looked at in builds with debug assertions.
    fn invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let slots = || self.slots.iter().flatten();
        assert_eq!(self.at_backend, slots().filter(|slot| slot.is_at_driver()).count());
        assert!(self.ready.len() <= self.at_backend);
        let used = slots().filter(|slot| slot.stage != Stage::Waiting);
        assert!(self.reserved >= used.map(|slot| slot.len as usize).sum());
        assert!(slots().all(|slot| slot.received <= slot.len && slot.asked <= slot.len));
        assert!(self.events.len() <= ASYNC_EVENTS_MAX);
    }

    /// The next operation for the driver.
    pub fn poll_io(&mut self) -> Option<BackendIo> {
        self.ready.pop_front()
    }

    /// Takes the driver's answer: the bytes of a read, nothing for a write or flush. `progress` has
    /// to follow. An unknown `id` is ignored.
    pub fn complete_io(
        &mut self,
        subsystem: &mut Subsystem,
        id: u64,
        result: Result<Option<Bytes>>,
    ) {
        let is_it = |slot: &Option<Slot>| {
            slot.as_ref().is_some_and(|slot| slot.id == id && slot.is_at_driver())
        };
        let Some(index) = self.slots.iter().position(is_it) else { return };
        assert!(self.at_backend > 0, "operation {id} was with the driver");
        assert!(subsystem.in_flight >= self.at_backend, "all that are, of each connection");
        self.at_backend -= 1;
        subsystem.in_flight -= 1;
        if matches!(self.phase, Phase::Over(_)) {
            self.slots[index] = None;
            return;
        }
        self.finish_io(subsystem, index, result);
    }

    fn finish_io(
        &mut self,
        subsystem: &mut Subsystem,
        index: usize,
        result: Result<Option<Bytes>>,
    ) {
        let Some(slot) = &mut self.slots[index] else { return };
        if let Some(lent) = slot.lent.take() {
            let data_max = subsystem.config().data_in_flight_max;
            self.buffers.put(lent, data_max.saturating_sub(self.reserved - slot.len as usize));
        }
        match (slot.kind, slot.stage, result) {
            (Kind::Write { durable: true }, Stage::Backend, Ok(_)) => {
                self.hand_over(subsystem, index, Stage::FinalFlush, BackendKind::Flush);
            }
            (Kind::Read, _, Ok(Some(data))) if data.len() == slot.len as usize => {
                self.retire_read(index, data);
            }
            (Kind::Read, ..) => self.retire(index, Status::READ_ERROR),
            (Kind::Write { .. } | Kind::Flush, _, Ok(_)) => self.retire(index, Status::SUCCESS),
            (Kind::Write { .. } | Kind::Flush, _, Err(_)) => {
                self.retire(index, Status::WRITE_FAULT);
            }
        }
    }

    fn advance(&mut self, subsystem: &mut Subsystem, now_ms: u64) -> Result<(), Broken> {
        let started_ms = *self.started_ms.get_or_insert(now_ms);
        if subsystem.is_closed() {
            return self.drain(subsystem);
        }
        match self.phase {
            Phase::Queue(queue) => {
                subsystem.check_alive(queue).map_err(Broken::Connection)?;
            }
            _ if now_ms.saturating_sub(started_ms) > CONNECT_TIMEOUT_MS => {
                let message = format!("no Connect within {CONNECT_TIMEOUT_MS} ms");
                return Err(Broken::Connection(Error::unavailable(message)));
            }
            _ => {}
        }
        for _ in 0..PDUS_PER_CALL {
            // What answers a burst of PDUs goes out together, before the next bytes are asked for:
            // one segment, which wakes the host once.
            if self.wire.needs_bytes() || self.wire.frames_waiting() >= FRAMES_WAITING_MAX {
                self.answer(subsystem)?;
            }
            let has_room = self.wire.frames_waiting() < FRAMES_WAITING_MAX;
            if !has_room || !self.receive_one(subsystem, now_ms)? {
                break;
            }
        }
        self.answer(subsystem)?;
        match self.phase {
            Phase::Queue(queue @ QueueId { number: 0, .. }) => {
                subsystem.check_keep_alive(queue, now_ms).map_err(Broken::Connection)
            }
            _ => Ok(()),
        }
    }

    /// Sends what is to be said: R2Ts for the room that ended writes left together with their
    /// responses. Of reads it is their sending that makes room, so there is a second round.
    fn answer(&mut self, subsystem: &mut Subsystem) -> Result<(), Broken> {
        for _ in 0..2 {
            self.start_waiting(subsystem);
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Broken> {
        let reserved = &mut self.reserved;
        let sent = |data_len: usize| {
            assert!(data_len <= *reserved, "{data_len} bytes that are sent have room until then");
            *reserved -= data_len;
        };
        self.wire.flush(sent).map_err(Broken::Connection)
    }

    /// The subsystem is closed: nothing more is received, what the driver has is answered.
    fn drain(&mut self, subsystem: &mut Subsystem) -> Result<(), Broken> {
        if !self.draining {
            self.draining = true;
            self.drop_ready(subsystem);
            self.waiting.clear();
            for index in 0..self.slots.len() {
                if self.slots[index].as_ref().is_some_and(|slot| !slot.is_at_driver()) {
                    self.retire(index, Status::ABORTED);
                }
            }
        }
        self.flush()?;
        if self.at_backend > 0 || self.wire.frames_waiting() > 0 {
            return Ok(());
        }
        Err(Broken::Connection(Error::fenced("the subsystem is closed")))
    }

    /// Takes back what the driver has not fetched; its slots are as if never handed over.
    fn drop_ready(&mut self, subsystem: &mut Subsystem) {
        assert!(self.ready.len() <= self.at_backend, "what is ready counts as with the driver");
        for io in self.ready.drain(..) {
            self.at_backend -= 1;
            subsystem.in_flight -= 1;
            for slot in self.slots.iter_mut().flatten() {
                if slot.id == io.id {
                    slot.stage = Stage::Waiting;
                }
            }
        }
    }

    fn end(&mut self, subsystem: &mut Subsystem, error: Error) {
        self.drop_ready(subsystem);
        self.waiting.clear();
        self.events.clear();
        self.arriving = None;
        let _ = self.wire.abandon_data();
        for slot in &mut self.slots {
            if !slot.as_ref().is_some_and(Slot::is_at_driver) {
                *slot = None;
            }
        }
        if let Phase::Queue(queue) = core::mem::replace(&mut self.phase, Phase::Over(error)) {
            subsystem.disconnect(queue);
        }
    }

    // ── arrivals ─────────────────────────────────────────────────────────────────────────────

    fn receive_one(&mut self, subsystem: &mut Subsystem, now_ms: u64) -> Result<bool, Broken> {
        match self.wire.next_event()? {
            None => return Ok(false),
            Some(Event::Pdu { pdu: Pdu::Term { status, information }, .. }) => {
                return Err(Broken::Connection(Error::unavailable(format!(
                    "the host ended the connection: fatal status {status}, information \
                     {information:#x}"
                ))));
            }
            Some(Event::Pdu { pdu: Pdu::Initialize(ask), .. }) => {
                self.handle_greeting(subsystem, &ask)?;
            }
            Some(Event::Pdu { .. }) if matches!(self.phase, Phase::Greeting) => {
                return Err(out_of_sequence("a PDU before ICReq").into());
            }
            Some(Event::Pdu { pdu: Pdu::Command(command), data_len: 0 }) => {
                self.handle_command(subsystem, &command, None, now_ms)?;
            }
            Some(Event::Pdu { pdu: Pdu::Command(command), data_len }) => {
                self.handle_capsule(command, data_len)?;
            }
            Some(Event::Pdu { pdu: Pdu::Data(header), .. }) => self.handle_data_header(&header)?,
            Some(Event::Pdu { .. }) => {
                return Err(out_of_sequence("a PDU that no host sends here").into());
            }
            Some(Event::Data(arrived)) => match self.arriving.take() {
                Some(Arriving::Capsule(command)) => {
                    self.handle_command(subsystem, &command, Some(arrived), now_ms)?;
                }
                Some(Arriving::Slot { index, len }) => {
                    self.handle_data(subsystem, index, len, arrived);
                }
                None => return Err(out_of_sequence("data without a PDU").into()),
            },
        }
        Ok(true)
    }

    fn handle_greeting(&mut self, subsystem: &Subsystem, ask: &Initialize) -> Result<(), Fatal> {
        if !matches!(self.phase, Phase::Greeting) {
            return Err(out_of_sequence("a second ICReq"));
        }
        let unsupported = |at: u32, what: &str, value: u16| Fatal {
            status: FatalStatus::UnsupportedParameter,
            information: at,
            error: Error::unsupported(format!("ICReq: {what} {value} is not supported")),
        };
        if ask.format != 0 {
            return Err(unsupported(8, "format", ask.format));
        }
        if ask.alignment > 31 {
            return Err(unsupported(10, "alignment", u16::from(ask.alignment)));
        }
        let offered = subsystem.config().digests;
        let digests = Digests {
            header: ask.digests.header && offered.header,
            data: ask.digests.data && offered.data,
        };
        self.h2c_len_max = subsystem.config().h2c_len_max;
        let answer = Initialize { format: 0, alignment: 0, digests, limit: self.h2c_len_max };
        self.wire.push(Assembly::initialize(PduKind::IcResp, &answer));
        self.wire.agree(digests, ask.alignment);
        self.phase = Phase::Open;
        Ok(())
    }

    fn handle_capsule(&mut self, command: Submission, data_len: usize) -> Result<(), Fatal> {
        let len_max = match self.phase {
            Phase::Queue(QueueId { number: 1.., .. }) => IO_CAPSULE_DATA_LEN as usize,
            _ => ADMIN_CAPSULE_DATA_LEN,
        };
        if data_len > len_max {
            let message = format!("{data_len} bytes of data in a capsule, limit {len_max}");
            return Err(Fatal::new(FatalStatus::LimitExceeded, message));
        }
        self.arriving = Some(Arriving::Capsule(command));
        self.wire.data_into(AlignedBuf::zeroed(data_len), 0);
        Ok(())
    }

    fn handle_data_header(&mut self, header: &DataHeader) -> Result<(), Fatal> {
        let index = usize::from(header.ttag);
        let slot = self.slots.get_mut(index).and_then(Option::as_mut);
        let Some(slot) = slot.filter(|s| s.stage == Stage::Receiving && s.cid == header.cid) else {
            let message = format!("H2CData for command {}, tag {index}: none waits", header.cid);
            return Err(Fatal::field(8, message));
        };
        if header.len > self.h2c_len_max {
            let message =
                format!("H2CData of {} bytes, MAXH2CDATA is {}", header.len, self.h2c_len_max);
            return Err(Fatal::new(FatalStatus::LimitExceeded, message));
        }
        let end = header.offset.checked_add(header.len).filter(|&end| end <= slot.asked);
        let fits = end.is_some() && header.offset == slot.received;
        if !fits || (header.last && end != Some(slot.asked)) {
            return Err(Fatal {
                status: FatalStatus::DataOutOfRange,
                information: header.offset,
                error: Error::corruption(format!(
                    "H2CData of {} bytes at {} (last: {}), expected are {} to {}",
                    header.len, header.offset, header.last, slot.received, slot.asked
                )),
            });
        }
        let Some(buffer) = slot.buffer.take() else {
            return Err(out_of_sequence("H2CData for a command that has no buffer"));
        };
        self.arriving = Some(Arriving::Slot { index, len: header.len });
        self.wire.data_into(buffer, header.offset as usize);
        Ok(())
    }

    fn handle_data(&mut self, subsystem: &mut Subsystem, index: usize, len: u32, arrived: Arrived) {
        let Some(slot) = self.slots.get_mut(index).and_then(Option::as_mut) else { return };
        slot.crc = match slot.received {
            0 => arrived.crc,
            _ => crc::combine(slot.crc, arrived.crc, u64::from(len)),
        };
        slot.received += len;
        slot.damaged |= !arrived.intact;
        slot.buffer = Some(arrived.buffer);
        assert!(slot.received <= slot.asked, "command {}: no more than was asked", slot.cid);
        if slot.received < slot.len {
            if slot.received == slot.asked {
                self.ask_for_data(subsystem, index);
            }
            return;
        }
        if slot.damaged {
            self.retire(index, Status::TRANSIENT_TRANSPORT);
            return;
        }
        self.hand_over_write(subsystem, index);
    }

    /// A write whose data are here goes to the driver, if it is still admitted.
    fn hand_over_write(&mut self, subsystem: &mut Subsystem, index: usize) {
        let Some(slot) = self.slots.get_mut(index).and_then(Option::as_mut) else { return };
        let Phase::Queue(queue) = self.phase else { return };
        if let Err(status) = subsystem.check_range(queue.controller, &slot.range(), true) {
            self.retire(index, status);
            return;
        }
        let Some(buffer) = slot.buffer.take() else { return };
        assert_eq!(slot.received, slot.len, "command {}: a write has come whole", slot.cid);
        assert_eq!(buffer.len(), slot.len as usize, "command {}: and is all there is", slot.cid);
        let (data, lent) = Buffers::lend(buffer);
        slot.lent = Some(lent);
        let kind = BackendKind::Write { offset: slot.offset, data, crc: slot.crc };
        self.hand_over(subsystem, index, Stage::Backend, kind);
    }

    fn hand_over(
        &mut self,
        subsystem: &mut Subsystem,
        index: usize,
        stage: Stage,
        kind: BackendKind,
    ) {
        let Some(slot) = self.slots.get_mut(index).and_then(Option::as_mut) else { return };
        assert!(slot.stage != stage, "command {}: the driver is given it once", slot.cid);
        self.next_id += 1;
        let id = self.next_id;
        (slot.stage, slot.id) = (stage, id);
        self.at_backend += 1;
        subsystem.in_flight += 1;
        self.ready.push_back(BackendIo { id, kind });
    }

    // ── commands ─────────────────────────────────────────────────────────────────────────────

    fn handle_command(
        &mut self,
        subsystem: &mut Subsystem,
        command: &Submission,
        data: Option<Arrived>,
        now_ms: u64,
    ) -> Result<(), Fatal> {
        let cid = command.cid();
        let in_use = self.slots.iter().flatten().any(|slot| slot.cid == cid);
        let refusal = if in_use || self.events.contains(&cid) {
            Some(Status::CID_CONFLICT)
        } else if !command.has_valid_flags() {
            Some(Status::INVALID_FIELD)
        } else if data.as_ref().is_some_and(|data| !data.intact) {
            Some(Status::TRANSIENT_TRANSPORT)
        } else {
            check_capsule(command, data.as_ref()).err()
        };
        if let Some(status) = refusal {
            self.reply(cid, Reply::status(status));
            return Ok(());
        }
        let is_fabrics = command.opcode() == FABRICS;
        if is_fabrics && command.fabrics_type() == fabrics_type::CONNECT {
            let reply = self.connect(subsystem, command, data, now_ms);
            self.reply(cid, reply);
            return Ok(());
        }
        let Phase::Queue(queue) = self.phase else {
            self.reply(cid, Reply::status(Status::SEQUENCE));
            return Ok(());
        };
        let mut ready = false;
        if let Some(controller) = subsystem.controllers.get_mut(&queue.controller) {
            controller.seen_ms = controller.seen_ms.max(now_ms);
            ready = controller.is_ready();
        }
        if is_fabrics {
            let reply = admin::property(subsystem, queue, command);
            self.reply(cid, reply);
        } else if !ready {
            self.reply(cid, Reply::status(Status::SEQUENCE));
        } else if queue.number != 0 {
            return self.handle_io(subsystem, queue, command, data);
        } else if command.opcode() == opcode::ASYNC_EVENT {
            self.hold_event(cid);
        } else {
            let reply = admin::execute(subsystem, queue, command);
            self.reply(cid, reply);
        }
        Ok(())
    }

    fn hold_event(&mut self, cid: u16) {
        if self.events.len() < ASYNC_EVENTS_MAX {
            self.events.push(cid);
        } else {
            self.reply(cid, Reply::status(Status::ASYNC_LIMIT));
        }
    }

    fn connect(
        &mut self,
        subsystem: &mut Subsystem,
        command: &Submission,
        data: Option<Arrived>,
        now_ms: u64,
    ) -> Reply {
        if !matches!(self.phase, Phase::Open) {
            return Reply::status(Status::SEQUENCE);
        }
        let Some(data) = data else { return Reply::status(Status::SGL_TYPE) };
        let Ok(data) = ConnectData::decode(&data.buffer) else {
            return Reply::status(Status::CONNECT_INVALID);
        };
        if let Err(error) = self.wire.transport().admits(&data.host_nqn) {
            self.refused = Some(error);
            return Reply::status(Status::CONNECT_HOST);
        }
        let with = command.connect_parameters();
        match subsystem.connect(&data, &with, now_ms) {
            Ok(queue) => {
                self.entries = with.entries_minus_one + 1;
                self.no_flow_control = with.no_flow_control;
                assert!(self.slots.is_empty(), "a connection becomes a queue once");
                if queue.number != 0 {
                    self.slots.resize_with(usize::from(self.entries), || None);
                }
                self.phase = Phase::Queue(queue);
                Reply::result(u64::from(queue.controller))
            }
            Err(Refusal { status, at }) => Reply { status, result: at, data: None },
        }
    }

    fn handle_io(
        &mut self,
        subsystem: &mut Subsystem,
        queue: QueueId,
        command: &Submission,
        data: Option<Arrived>,
    ) -> Result<(), Fatal> {
        let cid = command.cid();
        let Some(index) = self.slots.iter().position(Option::is_none) else {
            let message = format!("more than {} commands in flight on a queue", self.slots.len());
            return Err(out_of_sequence(&message));
        };
        let slot = match judge(subsystem, queue.controller, command) {
            Ok(slot) => slot,
            Err(status) => {
                self.reply(cid, Reply::status(status));
                return Ok(());
            }
        };
        self.slots[index] = Some(slot);
        match data {
            Some(arrived) => self.take_capsule(subsystem, index, arrived),
            None if command.opcode() == io::FLUSH => {
                self.hand_over(subsystem, index, Stage::Backend, BackendKind::Flush);
            }
            None => {
                self.waiting.push_back(index);
                self.start_waiting(subsystem);
            }
        }
        Ok(())
    }

    fn take_capsule(&mut self, subsystem: &mut Subsystem, index: usize, arrived: Arrived) {
        let Some(slot) = self.slots[index].as_mut() else { return };
        slot.crc = arrived.crc;
        slot.received = slot.len;
        slot.stage = Stage::Receiving;
        slot.buffer = Some(arrived.buffer);
        self.reserved += slot.len as usize;
        self.hand_over_write(subsystem, index);
    }

    /// Starts commands that wait for data room, in order, as far as there is room.
    fn start_waiting(&mut self, subsystem: &mut Subsystem) {
        let room = subsystem.config().data_in_flight_max;
        while let Some(&index) = self.waiting.front() {
            let Some(slot) = self.slots[index].as_mut() else {
                self.waiting.pop_front();
                continue;
            };
            assert!(slot.stage == Stage::Waiting, "command {}: it has no room yet", slot.cid);
            let len = slot.len as usize;
            if self.reserved + len > room {
                return;
            }
            self.waiting.pop_front();
            self.reserved += len;
            if slot.kind == Kind::Read {
                let kind = BackendKind::Read { offset: slot.offset, len };
                self.hand_over(subsystem, index, Stage::Backend, kind);
            } else {
                slot.stage = Stage::Receiving;
                slot.buffer = Some(self.buffers.take(len));
                self.buffers.limit(room - self.reserved);
                self.ask_for_data(subsystem, index);
            }
        }
    }

    fn ask_for_data(&mut self, subsystem: &Subsystem, index: usize) {
        let Some(slot) = self.slots[index].as_mut() else { return };
        let offset = slot.asked;
        assert_eq!(slot.received, offset, "command {}: what was asked has come", slot.cid);
        let len = (slot.len - offset).min(subsystem.config().r2t_len_max);
        assert!(len > 0, "command {}: something is left to be asked", slot.cid);
        slot.asked = offset + len;
        let r2t = ReadyToTransfer { cid: slot.cid, ttag: index as u16, offset, len };
        let frame = self.wire.assembly().r2t(&r2t);
        self.wire.push(frame);
    }

    // ── answers ──────────────────────────────────────────────────────────────────────────────

    fn completion(&mut self, cid: u16, status: Status, result: u64) -> Completion {
        if !self.no_flow_control {
            self.head = (self.head + 1) % self.entries;
        }
        let queue = match self.phase {
            Phase::Queue(queue) => queue.number,
            _ => 0,
        };
        Completion { result, queue_head: self.head, queue, cid, status }
    }

    fn reply(&mut self, cid: u16, reply: Reply) {
        if let Some(data) = reply.data {
            self.reserved += data.len();
            self.push_data(cid, data.freeze());
            if self.no_flow_control {
                return;
            }
        }
        let completion = self.completion(cid, reply.status, reply.result);
        let frame = self.wire.assembly().response(&completion);
        self.wire.push(frame);
    }

    /// Data of a read; without flow control they are the answer, too.
    fn push_data(&mut self, cid: u16, data: Bytes) {
        let (ttag, offset, len) = (0, 0, data.len() as u32);
        let success = self.no_flow_control;
        let header = DataHeader { cid, ttag, offset, len, last: true, success };
        let frame = self.wire.assembly().data(PduKind::C2hData, &header, data, None);
        self.wire.push(frame);
    }

    fn retire_read(&mut self, index: usize, data: Bytes) {
        let Some(slot) = self.slots[index].take() else { return };
        // The room stays reserved until the data are sent.
        self.push_data(slot.cid, data);
        if !self.no_flow_control {
            let completion = self.completion(slot.cid, Status::SUCCESS, 0);
            let frame = self.wire.assembly().response(&completion);
            self.wire.push(frame);
        }
    }

    fn retire(&mut self, index: usize, status: Status) {
        let Some(slot) = self.slots[index].take() else { return };
        // A command that still waits has nothing reserved, nor has one that `drop_ready` put back.
        if slot.stage != Stage::Waiting {
            let len = slot.len as usize;
            assert!(len <= self.reserved, "command {}: its room was reserved", slot.cid);
            self.reserved -= len;
        }
        self.reply(slot.cid, Reply::status(status));
    }
}
