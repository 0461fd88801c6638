//! The initiator: namespace 1 of a remote subsystem as a [`Medium`].
//!
//! Order of calls: [`Initiator::connect`], then [`Initiator::progress`] whenever a transport became
//! ready and some times a second; once [`Initiator::state`] is ready, the methods of [`Medium`],
//! each followed by `progress`. There is no way back from a failure: drop it and connect anew,
//! after what a write of unknown outcome asks for.
//!
//! ```text
//!   both: ICReq ─► ICResp     admin: Connect ─► CAP ─► CC.EN ─► CSTS.RDY ─► Identify ─► queues
//!                             I/O:   Connect ─► Identify namespace (admin) ─► ready
//! ```

mod queue;

use super::command::{ConnectParameters, Status, Submission, admin, feature, io};
use super::fabrics::{
    ANY_CONTROLLER, CC_ENABLED, CSTS_FATAL, CSTS_READY, ConnectData, ControllerInfo, IDENTIFY_LEN,
    NamespaceInfo, check_name, property,
};
use super::pdu::Digests;
use crate::medium::{
    Completion, Medium, MediumProperties, Operation, OperationKind, Outcome, chains,
    check_operation,
};
use crate::transport::Transport;
use crate::{AlignedBuf, Bytes};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use gabion_base::units::TRANSFER_LEN_MAX;
use gabion_base::{Error, Result};
use queue::{End, Ended, Queue, Request, identify};

/// Entries of the admin queue, minus one: what Linux uses.
const ADMIN_ENTRIES_MINUS_ONE: u16 = 31;
/// The one I/O queue.
const IO_QUEUE: u16 = 1;
/// Pause between two looks at whether the controller is ready.
const READY_POLL_MS: u64 = 10;
/// How many times as long as other commands a flush may keep the I/O queue silent: the device may
/// write out all of its cache and do nothing else meanwhile. A target that is gone is noticed
/// earlier, by the keep-alives of the admin queue.
const FLUSH_PATIENCE: u64 = 6;
/// How many times as long a command may wait while others are answered: longer than any link takes
/// for what a queue holds.
const LOST_PATIENCE: u64 = 60;
/// Deepest I/O queue.
pub const QUEUE_DEPTH_MAX: u16 = 1024;

/// How to reach a remote namespace.
#[derive(Clone, Debug)]
pub struct InitiatorConfig {
    /// The host's name, which the subsystem must admit.
    pub host_nqn: String,
    /// The host's identity; the same on all its connections.
    pub host_id: [u8; 16],
    /// The subsystem's name.
    pub subsystem_nqn: String,
    /// Most commands in flight, 1 to [`QUEUE_DEPTH_MAX`]. A target may lower it. 32 keeps a link of
    /// 10 Gb/s busy with transfers of 1 MiB.
    pub queue_depth: u16,
    /// Whether headers carry a CRC32C. A target that refuses fails the connection.
    pub header_digest: bool,
    /// Whether data carry a CRC32C. A target that refuses fails the connection.
    pub data_digest: bool,
    /// The target gives up on this host after as many milliseconds without a command; half of it
    /// lies between keep-alives. 0 turns both off.
    pub keep_alive_ms: u32,
    /// When commands are in flight on a queue and no byte crossed it for as many milliseconds (with
    /// a flush among them, six times as many) the connection ends, and writes in flight with
    /// unknown outcome. So it does when one command waits for sixty times as many, whatever else is
    /// answered.
    pub command_timeout_ms: u32,
    /// The same for the time from the first progress until ready.
    pub connect_timeout_ms: u32,
}

impl InitiatorConfig {
    /// Digests on, 32 commands in flight, keep-alive 5 s, commands 10 s, connecting 10 s.
    #[must_use]
    pub fn new(host_nqn: String, host_id: [u8; 16], subsystem_nqn: String) -> Self {
        Self {
            host_nqn,
            host_id,
            subsystem_nqn,
            queue_depth: 32,
            header_digest: true,
            data_digest: true,
            keep_alive_ms: 5_000,
            command_timeout_ms: 10_000,
            connect_timeout_ms: 10_000,
        }
    }

    fn check(&self) -> Result<()> {
        check_name("the host's name", &self.host_nqn)?;
        check_name("the subsystem's name", &self.subsystem_nqn)?;
        if !(1..=QUEUE_DEPTH_MAX).contains(&self.queue_depth) {
            return Err(Error::invalid(format!(
                "queue depth {}; 1 to {QUEUE_DEPTH_MAX} are valid",
                self.queue_depth
            )));
        }
        if self.command_timeout_ms == 0 || self.connect_timeout_ms == 0 {
            return Err(Error::invalid(format!(
                "timeouts of commands ({} ms) and of connecting ({} ms); at least 1 is valid",
                self.command_timeout_ms, self.connect_timeout_ms
            )));
        }
        Ok(())
    }
}

/// How far an initiator is.
#[derive(Clone, Debug)]
pub enum InitiatorState {
    /// Shaking hands.
    Connecting,
    /// A medium.
    Ready,
    /// Over. Every operation has ended or ends at the next poll.
    Failed(Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Greeting,
    AdminConnect,
    Capabilities,
    Enable,
    AwaitReady { asked_ms: u64, waiting: bool },
    IdentifyController,
    SetQueues,
    IoConnect,
    IdentifyNamespace,
    Ready,
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AdminPurpose {
    Handshake,
    KeepAlive,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Read,
    Write,
    Flush,
}

/// A command of the I/O queue: the connect, or an operation and those that wait for it.
enum IoPurpose {
    Connect,
    Operation { tag: u64, what: What, rest: VecDeque<Operation> },
}

/// Two connections to a remote subsystem, and its namespace 1 as a medium.
pub struct Initiator<T: Transport> {
    config: InitiatorConfig,
    admin: Queue<T, AdminPurpose>,
    io: Queue<T, IoPurpose>,
    step: Step,
    failure: Option<Error>,
    now_ms: u64,
    started_ms: Option<u64>,
    checked_ms: u64,
    keep_alive_at_ms: u64,
    keep_alive_waits: bool,
    controller: u16,
    capabilities: u64,
    info: Option<ControllerInfo>,
    properties: MediumProperties,
    block_order: u32,
    /// Chains whose first operation was not issued.
    pending: VecDeque<VecDeque<Operation>>,
    known_crcs: BTreeMap<u64, u32>,
    done: Vec<Completion>,
    in_flight: usize,
}

impl<T: Transport> Initiator<T> {
    /// Begins to connect. Nothing is sent before the first [`Self::progress`].
    #[must_use]
    pub fn connect(config: InitiatorConfig, admin: T, io: T) -> Self {
        let digests = Digests { header: config.header_digest, data: config.data_digest };
        let mut initiator = Self {
            admin: Queue::new("admin queue", admin, digests),
            io: Queue::new("I/O queue", io, digests),
            step: Step::Greeting,
            failure: None,
            now_ms: 0,
            started_ms: None,
            checked_ms: 0,
            keep_alive_at_ms: 0,
            keep_alive_waits: false,
            controller: ANY_CONTROLLER,
            capabilities: 0,
            info: None,
            properties: MediumProperties {
                len: 0,
                alignment: 1,
                align_memory: false,
                transfer_len_max: 0,
                durable_at_completion: false,
            },
            block_order: 0,
            pending: VecDeque::new(),
            known_crcs: BTreeMap::new(),
            done: Vec::new(),
            in_flight: 0,
            config,
        };
        if let Err(error) = initiator.config.check() {
            initiator.fail(error);
        }
        initiator
    }

    /// How far it is.
    #[must_use]
    pub fn state(&self) -> InitiatorState {
        match (&self.failure, self.step) {
            (Some(error), _) => InitiatorState::Failed(error.clone()),
            (None, Step::Ready) => InitiatorState::Ready,
            (None, _) => InitiatorState::Connecting,
        }
    }

    /// Whether bytes wait for the (admin, I/O) transport: register for writability where true.
    #[must_use]
    pub fn wants_write(&self) -> (bool, bool) {
        let io_waits = !self.pending.is_empty() && self.io.has_room();
        (
            self.failure.is_none() && self.admin.wire().frames_waiting() > 0,
            self.failure.is_none() && (io_waits || self.io.wire().frames_waiting() > 0),
        )
    }

    /// Bytes received on both connections.
    #[must_use]
    pub fn bytes_received(&self) -> u64 {
        self.admin.wire().bytes_received() + self.io.wire().bytes_received()
    }

    /// Bytes sent on both connections.
    #[must_use]
    pub fn bytes_sent(&self) -> u64 {
        self.admin.wire().bytes_sent() + self.io.wire().bytes_sent()
    }

    /// The (admin, I/O) transports, to register them for readiness.
    #[must_use]
    pub fn transports(&self) -> (&T, &T) {
        (self.admin.wire().transport(), self.io.wire().transport())
    }

    /// Says that the write which will be submitted with this tag has data with this CRC32C. When
    /// one PDU carries the whole write its digest is this value and the bytes are not read for it.
    /// A wrong value makes the target refuse the write as damaged.
    pub fn note_crc(&mut self, tag: u64, crc: u32) {
        self.known_crcs.insert(tag, crc);
    }

    /// Submits one write whose data have this CRC32C: [`Self::note_crc`] and `submit` in one.
    pub fn submit_write_with_crc(&mut self, tag: u64, offset: u64, data: Bytes, crc: u32) {
        self.note_crc(tag, crc);
        let kind = OperationKind::Write { offset, data };
        self.submit(alloc::vec![Operation { tag, kind, then: false }]);
    }

    /// Moves bytes both ways, goes on with the handshake, keeps the controller alive, and gives up
    /// when a queue is silent for too long.
    pub fn progress(&mut self, now_ms: u64) {
        if self.failure.is_some() {
            return;
        }
        self.now_ms = self.now_ms.max(now_ms);
        let started_ms = *self.started_ms.get_or_insert(self.now_ms);
        if let Err(error) = self.advance(started_ms) {
            self.fail(error);
        }
    }

    fn advance(&mut self, started_ms: u64) -> Result<()> {
        loop {
            self.issue_pending();
            self.keep_alive();
            self.poll_ready();
            // Both, even if one is over: the other may hold answers.
            let admin = self.admin.pump(self.now_ms);
            self.io.pump(self.now_ms).and(admin)?;
            let mut moved = self.step == Step::Greeting && self.begin_connect();
            while let Some(ended) = self.admin.pop_ended() {
                self.handle_admin(ended)?;
                moved = true;
            }
            while let Some(ended) = self.io.pop_ended() {
                self.handle_io(ended)?;
                moved = true;
            }
            if !moved {
                break;
            }
        }
        self.check_deadlines(started_ms)
    }

    fn check_deadlines(&mut self, started_ms: u64) -> Result<()> {
        if self.checked_ms == self.now_ms {
            return Ok(());
        }
        self.checked_ms = self.now_ms;
        let limit_ms = self.config.connect_timeout_ms;
        if self.step != Step::Ready && self.now_ms - started_ms >= u64::from(limit_ms) {
            return Err(Error::unavailable(format!(
                "not connected after {limit_ms} ms (at step {:?})",
                self.step
            )));
        }
        let limit_ms = u64::from(self.config.command_timeout_ms);
        let is_flush =
            |purpose: &IoPurpose| matches!(purpose, IoPurpose::Operation { what: What::Flush, .. });
        let flushes = self.io.purposes().any(is_flush);
        let io_limit_ms = if flushes { FLUSH_PATIENCE * limit_ms } else { limit_ms };
        let silent_ms = if self.admin.is_silent(self.now_ms, limit_ms) {
            limit_ms
        } else if self.io.is_silent(self.now_ms, io_limit_ms) {
            io_limit_ms
        } else if self.io.has_lost(self.now_ms, LOST_PATIENCE * limit_ms) {
            return Err(Error::unavailable(format!(
                "the target answers others, and a command not for {} ms",
                LOST_PATIENCE * limit_ms
            )));
        } else {
            return Ok(());
        };
        Err(Error::unavailable(format!("the target did not move for {silent_ms} ms")))
    }

    fn fail(&mut self, error: Error) {
        self.step = Step::Failed;
        self.failure = Some(error.clone());
        self.admin.fail();
        self.io.fail();
        while self.admin.pop_ended().is_some() {}
        // What was answered before the end stays answered; only the rest is lost.
        while let Some(ended) = self.io.pop_ended() {
            self.end_operation(ended, &error);
        }
        for chain in core::mem::take(&mut self.pending) {
            self.refuse_all(chain, &error);
        }
        self.known_crcs.clear();
        assert_eq!(self.done.len(), self.in_flight, "every operation ends with its initiator");
    }

    // ── handshake ────────────────────────────────────────────────────────────────────────────

    fn ask(&mut self, step: Step, request: Request) {
        let is_over = matches!(self.step, Step::Ready | Step::Failed);
        assert!(!is_over, "{step:?} is asked while the handshake goes on");
        self.step = step;
        self.admin.issue(request, AdminPurpose::Handshake, self.now_ms);
    }

    fn connect_request(&self, queue: u16, entries_minus_one: u16) -> Request {
        let data = ConnectData {
            host_id: self.config.host_id,
            controller: self.controller,
            subsystem_nqn: self.config.subsystem_nqn.clone(),
            host_nqn: self.config.host_nqn.clone(),
        };
        let command = Submission::connect(&ConnectParameters {
            format: 0,
            queue,
            entries_minus_one,
            no_flow_control: true,
            keep_alive_ms: if queue == 0 { self.config.keep_alive_ms } else { 0 },
        });
        Request::new(command).sending(data.encode().freeze(), None, true)
    }

    fn begin_connect(&mut self) -> bool {
        if !self.admin.is_open() || !self.io.is_open() {
            return false;
        }
        self.admin.set_depth(ADMIN_ENTRIES_MINUS_ONE);
        let request = self.connect_request(0, ADMIN_ENTRIES_MINUS_ONE);
        self.ask(Step::AdminConnect, request);
        true
    }

    fn poll_ready(&mut self) {
        let now_ms = self.now_ms;
        if let Step::AwaitReady { asked_ms, waiting: false } = self.step
            && now_ms >= asked_ms.saturating_add(READY_POLL_MS)
        {
            let request = Request::new(Submission::property_get(property::CSTS, false));
            self.ask(Step::AwaitReady { asked_ms: now_ms, waiting: true }, request);
        }
    }

    fn handle_admin(&mut self, ended: Ended<AdminPurpose>) -> Result<()> {
        let result = answer(&ended.end, "admin command")?;
        if ended.purpose == AdminPurpose::KeepAlive {
            self.keep_alive_waits = false;
            return Ok(());
        }
        let buffer = ended.buffer.as_deref().unwrap_or_default();
        self.go_on(result, buffer)
    }

    /// The next step of the handshake after a successful one.
    fn go_on(&mut self, result: u64, buffer: &[u8]) -> Result<()> {
        match self.step {
            Step::AdminConnect => {
                self.controller = result as u16;
                if result & 3 << 17 != 0 {
                    return Err(Error::unsupported("the target asks for in-band authentication"));
                }
                let request = Request::new(Submission::property_get(property::CAP, true));
                self.ask(Step::Capabilities, request);
            }
            Step::Capabilities => {
                self.capabilities = result;
                // The page size, which only counts in the unit of MDTS: the target's least.
                let pages = (result >> 48 & 0xf) as u32;
                let command = Submission::property_set(property::CC, CC_ENABLED | pages << 7);
                let request = Request::new(command);
                self.ask(Step::Enable, request);
            }
            Step::Enable => {
                let request = Request::new(Submission::property_get(property::CSTS, false));
                self.ask(Step::AwaitReady { asked_ms: self.now_ms, waiting: true }, request);
            }
            Step::AwaitReady { asked_ms, .. } => self.handle_status(result as u32, asked_ms)?,
            Step::IdentifyController => {
                self.handle_controller(buffer)?;
                let command = Submission::new(admin::SET_FEATURES)
                    .with_dword(10, u32::from(feature::QUEUES))
                    .with_dword(11, 0);
                let request = Request::new(command);
                self.ask(Step::SetQueues, request);
            }
            Step::SetQueues => self.connect_io(),
            Step::IdentifyNamespace => self.handle_namespace(buffer)?,
            Step::Greeting | Step::IoConnect | Step::Ready | Step::Failed => {}
        }
        Ok(())
    }

    fn handle_status(&mut self, status: u32, asked_ms: u64) -> Result<()> {
        if status & CSTS_FATAL != 0 {
            return Err(Error::io(format!("the controller failed to start: CSTS {status:#x}")));
        }
        if status & CSTS_READY == 0 {
            self.step = Step::AwaitReady { asked_ms, waiting: false };
            return Ok(());
        }
        let into = AlignedBuf::zeroed(IDENTIFY_LEN);
        let request = Request::new(identify(1, false)).receiving(into);
        self.ask(Step::IdentifyController, request);
        Ok(())
    }

    fn handle_controller(&mut self, buffer: &[u8]) -> Result<()> {
        let info = ControllerInfo::decode(buffer)?;
        if info.controller != self.controller {
            return Err(Error::corruption(format!(
                "connected to controller {}, but it says it is {}",
                self.controller, info.controller
            )));
        }
        if info.capsule_data_offset != 0 {
            return Err(Error::unsupported(format!(
                "data in capsules begin at {} × 16 bytes; only 0 is supported",
                info.capsule_data_offset
            )));
        }
        self.info = Some(info);
        Ok(())
    }

    fn connect_io(&mut self) {
        let entries_minus_one_max = (self.capabilities as u16).max(1);
        let commands_max = self.info.as_ref().map_or(0, |info| info.commands_max);
        let mut depth = self.config.queue_depth.min(entries_minus_one_max);
        if commands_max > 0 {
            depth = depth.min(commands_max);
        }
        self.io.set_depth(depth);
        let request = self.connect_request(IO_QUEUE, depth);
        self.step = Step::IoConnect;
        self.io.issue(request, IoPurpose::Connect, self.now_ms);
    }

    fn handle_namespace(&mut self, buffer: &[u8]) -> Result<()> {
        let namespace = NamespaceInfo::decode(buffer)?;
        let order = u32::from(namespace.block_order);
        let transfer_order = self.info.as_ref().map_or(0, |info| u32::from(info.transfer_order));
        let page_order = 12 + (self.capabilities >> 48 & 0xf) as u32;
        let by_target = match transfer_order {
            0 => usize::MAX,
            _ => 1usize.checked_shl(transfer_order + page_order).unwrap_or(usize::MAX),
        };
        // The block count of one command has 16 bits.
        let transfer_len_max = TRANSFER_LEN_MAX.min(by_target).min(1 << (order + 16));
        if transfer_len_max >> order == 0 {
            return Err(Error::unsupported(format!(
                "transfers of {transfer_len_max} bytes are shorter than a block of 2^{order}"
            )));
        }
        self.block_order = order;
        self.properties = MediumProperties {
            len: namespace.len(),
            alignment: 1 << order,
            align_memory: false,
            transfer_len_max: transfer_len_max >> order << order,
            durable_at_completion: false,
        };
        assert!(self.pending.is_empty(), "nothing is taken before it is known what is possible");
        self.step = Step::Ready;
        self.keep_alive_at_ms = self.next_keep_alive_ms();
        Ok(())
    }

    fn next_keep_alive_ms(&self) -> u64 {
        self.now_ms.saturating_add(u64::from(self.config.keep_alive_ms / 2))
    }

    fn keep_alive(&mut self) {
        let due = self.step == Step::Ready
            && self.config.keep_alive_ms > 0
            && self.now_ms >= self.keep_alive_at_ms
            && !self.keep_alive_waits;
        if due && self.admin.has_room() {
            self.keep_alive_waits = true;
            self.keep_alive_at_ms = self.next_keep_alive_ms();
            let request = Request::new(Submission::new(admin::KEEP_ALIVE));
            self.admin.issue(request, AdminPurpose::KeepAlive, self.now_ms);
        }
    }

    // ── operations ───────────────────────────────────────────────────────────────────────────

    fn issue_pending(&mut self) {
        while self.step == Step::Ready && self.io.has_room() {
            let Some(mut chain) = self.pending.pop_front() else { return };
            let Some(operation) = chain.pop_front() else { continue };
            if let Err(error) = check_operation(&operation.kind, &self.properties) {
                self.known_crcs.remove(&operation.tag);
                self.done.push(failed(operation, &error));
                self.refuse_all(chain, &Error::io("an earlier operation of the chain failed"));
                continue;
            }
            self.issue(operation, chain);
        }
    }

    fn issue(&mut self, operation: Operation, rest: VecDeque<Operation>) {
        let tag = operation.tag;
        let crc = self.known_crcs.remove(&tag);
        let order = self.block_order;
        let blocks = |len: usize| (len >> order) as u32;
        let what = match &operation.kind {
            OperationKind::Read { .. } => What::Read,
            OperationKind::Write { .. } => What::Write,
            OperationKind::Flush => What::Flush,
        };
        let request = match operation.kind {
            OperationKind::Read { offset, into } => {
                let command = Submission::transfer(io::READ, offset >> order, blocks(into.len()));
                Request::new(command).receiving(into)
            }
            OperationKind::Write { offset, data } => {
                let command = Submission::transfer(io::WRITE, offset >> order, blocks(data.len()));
                let capsule_len = self.info.as_ref().map_or(0, |info| info.capsule_data_len);
                let in_capsule = data.len() <= capsule_len as usize;
                Request::new(command).sending(data, crc, in_capsule)
            }
            OperationKind::Flush => {
                let command = Submission::new(io::FLUSH);
                Request::new(command.with_namespace(super::command::NAMESPACE))
            }
        };
        self.io.issue(request, IoPurpose::Operation { tag, what, rest }, self.now_ms);
    }

    fn handle_io(&mut self, ended: Ended<IoPurpose>) -> Result<()> {
        if let IoPurpose::Operation { .. } = ended.purpose {
            self.end_operation(ended, &Error::io("the connection ended"));
            return Ok(());
        }
        answer(&ended.end, "Connect of the I/O queue")?;
        let into = AlignedBuf::zeroed(IDENTIFY_LEN);
        let request = Request::new(identify(0, true)).receiving(into);
        self.ask(Step::IdentifyNamespace, request);
        Ok(())
    }

    fn end_operation(&mut self, ended: Ended<IoPurpose>, failure: &Error) {
        let IoPurpose::Operation { tag, what, rest } = ended.purpose else { return };
        let outcome = match &ended.end {
            End::Lost if what == What::Write => Outcome::Unknown(failure.clone()),
            End::Lost => Outcome::Failed(failure.clone()),
            end => match answer(end, "I/O command") {
                Ok(_) => Outcome::Done,
                Err(error) => Outcome::Failed(error),
            },
        };
        if !matches!(outcome, Outcome::Done) {
            self.refuse_all(rest, &Error::io("an earlier operation of the chain failed"));
        } else if !rest.is_empty() {
            self.pending.push_front(rest);
        }
        self.done.push(Completion { tag, outcome, buffer: ended.buffer });
        assert!(self.done.len() <= self.in_flight, "operation {tag} ends once");
    }

    fn refuse_all(&mut self, operations: VecDeque<Operation>, error: &Error) {
        for operation in operations {
            self.known_crcs.remove(&operation.tag);
            self.done.push(failed(operation, error));
        }
    }
}

fn failed(operation: Operation, error: &Error) -> Completion {
    operation.kind.ended(operation.tag, Outcome::Failed(error.clone()))
}

fn answer(end: &End, what: &str) -> Result<u64> {
    match end {
        End::Answered(completion) if completion.status.is_success() => Ok(completion.result),
        End::Answered(completion) => Err(Status::error(completion.status, what)),
        End::Damaged(error) => Err(error.clone()),
        End::Lost => Err(Error::unavailable("the connection ended before the answer")),
    }
}

impl<T: Transport> Medium for Initiator<T> {
    /// Constant from the moment it is ready; before that the medium has no bytes.
    fn properties(&self) -> MediumProperties {
        self.properties
    }

    /// Queues the operations; [`Initiator::progress`] or `poll` sends them. Before the initiator is
    /// ready and after it failed each ends as failed.
    fn submit(&mut self, batch: Vec<Operation>) {
        self.in_flight += batch.len();
        self.pending.extend(chains(batch));
        if self.step != Step::Ready {
            let error = self.failure.clone();
            let error = error.unwrap_or_else(|| Error::unavailable("not connected yet"));
            for chain in core::mem::take(&mut self.pending) {
                self.refuse_all(chain, &error);
            }
        }
    }

    /// Also moves bytes, at the time of the last [`Initiator::progress`].
    fn poll(&mut self, completed: &mut Vec<Completion>) {
        if self.started_ms.is_some() {
            self.progress(self.now_ms);
        }
        assert!(self.done.len() <= self.in_flight, "what ended was submitted");
        self.in_flight -= self.done.len();
        completed.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}
