//! Both ends against each other over pipes in memory, cut at arbitrary places.

mod faults;
mod golden;
mod hostile;
mod interaction;

use super::command::{ConnectParameters, Status, Submission};
use super::fabrics::{CC_ENABLED, ConnectData};
use super::pdu::{Assembly, Digests, Frame, Initialize, Pdu, PduKind, Role};
use super::target::{BackendIo, BackendKind, Subsystem, TargetConfig, TargetConnection};
use super::wire::{Event, Wire};
use super::{Initiator, InitiatorConfig, InitiatorState};
use crate::medium::{Completion, Medium, Operation, OperationKind, Outcome};
use crate::transport::Transport;
use crate::{AlignedBuf, Bytes};
use alloc::collections::VecDeque;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use gabion_base::{Error, Result, crc};

pub(super) const HOST: &str = "nqn.2026-01.io.gabion:host";
pub(super) const SUBSYSTEM: &str = "nqn.2026-01.io.gabion:t1";
pub(super) const NAMESPACE_LEN: u64 = 8 << 20;
const ROOM: usize = 256 * 1024;

/// One direction of a connection.
#[derive(Default)]
pub(super) struct Lane {
    bytes: VecDeque<u8>,
    /// Everything that was ever sent.
    pub(super) log: Vec<u8>,
    /// Calls that sent something.
    pub(super) sends: usize,
    closed: bool,
    /// Bytes that still get through before the connection breaks.
    pub(super) cut_after: Option<u64>,
    /// Inverts this bit of the stream, counted from its first.
    pub(super) flip_bit: Option<u64>,
}

/// How many bytes a call moves.
#[derive(Clone)]
pub(super) enum Cuts {
    Whole,
    OneByte,
    Seeded(Rc<RefCell<u64>>),
}

impl Cuts {
    pub(super) fn seeded(seed: u64) -> Self {
        Self::Seeded(Rc::new(RefCell::new(seed | 1)))
    }

    fn limit(&self) -> usize {
        match self {
            Self::Whole => usize::MAX,
            Self::OneByte => 1,
            Self::Seeded(state) => {
                let mut x = state.borrow_mut();
                *x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                match *x >> 60 {
                    0 => 0,
                    1..=6 => (*x >> 33) as usize % 40 + 1,
                    7..=11 => (*x >> 33) as usize % 5000 + 1,
                    _ => (*x >> 33) as usize % 200_000 + 1,
                }
            }
        }
    }
}

/// One end of a connection in memory.
pub(super) struct Pipe {
    out: Rc<RefCell<Lane>>,
    into: Rc<RefCell<Lane>>,
    cuts: Cuts,
    /// The host that the other end has shown to be, if it has.
    shown: Option<&'static str>,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.out.borrow_mut().closed = true;
        self.into.borrow_mut().closed = true;
    }
}

impl Transport for Pipe {
    fn send(&mut self, parts: &[&[u8]]) -> Result<usize> {
        let mut lane = self.out.borrow_mut();
        if lane.closed {
            return Err(Error::io("broken pipe"));
        }
        let mut room = self.cuts.limit().min(ROOM.saturating_sub(lane.bytes.len()));
        let mut sent = 0;
        for part in parts {
            let mut len = part.len().min(room);
            if let Some(left) = &mut lane.cut_after {
                len = len.min(*left as usize);
                *left -= len as u64;
            }
            let start = lane.log.len();
            lane.log.extend_from_slice(&part[..len]);
            let flip = lane.flip_bit.unwrap_or(u64::MAX);
            if (flip / 8) as usize >= start && flip / 8 < lane.log.len() as u64 {
                lane.log[(flip / 8) as usize] ^= 1 << (flip % 8);
            }
            let lane = &mut *lane;
            lane.bytes.extend(&lane.log[start..]);
            room -= len;
            sent += len;
            if lane.cut_after == Some(0) {
                lane.closed = true;
                break;
            }
        }
        lane.sends += usize::from(sent > 0);
        Ok(sent)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        assert!(!into.is_empty());
        let mut lane = self.into.borrow_mut();
        let len = into.len().min(lane.bytes.len()).min(self.cuts.limit());
        if len == 0 {
            return Ok((lane.closed && lane.bytes.is_empty()).then_some(0));
        }
        let (a, b) = lane.bytes.as_slices();
        let from_a = len.min(a.len());
        into[..from_a].copy_from_slice(&a[..from_a]);
        into[from_a..len].copy_from_slice(&b[..len - from_a]);
        lane.bytes.drain(..len);
        Ok(Some(len))
    }

    fn admits(&self, host: &str) -> Result<()> {
        match self.shown {
            Some(shown) if shown != host => Err(Error::invalid(format!("{shown} is not {host}"))),
            _ => Ok(()),
        }
    }
}

/// The two ends of a connection and what lies between: host to controller, controller to host.
pub(super) fn pipe(cuts: &Cuts) -> (Pipe, Pipe, [Rc<RefCell<Lane>>; 2]) {
    let lanes = [Rc::default(), Rc::default()];
    let [up, down]: [Rc<RefCell<Lane>>; 2] = lanes.clone();
    let host = Pipe { out: up.clone(), into: down.clone(), cuts: cuts.clone(), shown: None };
    let controller = Pipe { out: down, into: up, cuts: cuts.clone(), shown: None };
    (host, controller, lanes)
}

pub(super) fn initiator_config() -> InitiatorConfig {
    InitiatorConfig::new(HOST.to_string(), [7; 16], SUBSYSTEM.to_string())
}

pub(super) fn target_config() -> TargetConfig {
    TargetConfig::new(SUBSYSTEM.to_string(), vec![HOST.to_string()], NAMESPACE_LEN, [9; 16])
}

/// An initiator, a target and a disk.
pub(super) struct World {
    pub(super) initiator: Initiator<Pipe>,
    pub(super) subsystem: Subsystem,
    pub(super) connections: Vec<TargetConnection<Pipe>>,
    /// Lanes of the admin and the I/O connection: up, down.
    pub(super) lanes: [[Rc<RefCell<Lane>>; 2]; 2],
    pub(super) disk: Vec<u8>,
    pub(super) now_ms: u64,
    /// Operations that the driver holds back while `hold` is set.
    pub(super) held: Vec<(usize, u64, BackendKind)>,
    pub(super) hold: bool,
    /// What the driver did.
    pub(super) trace: Vec<String>,
    pub(super) completed: Vec<Completion>,
}

impl World {
    pub(super) fn new(cuts: &Cuts) -> Self {
        Self::with(cuts, initiator_config(), target_config())
    }

    /// Submits a batch, tagged from 0 on, of which each operation is to follow the one before or
    /// not, and runs.
    pub(super) fn submit(&mut self, kinds: impl IntoIterator<Item = OperationKind>, then: bool) {
        let batch = kinds.into_iter().zip(0..).map(|(kind, tag)| Operation { tag, kind, then });
        self.initiator.submit(batch.collect());
        self.run();
    }

    pub(super) fn with(cuts: &Cuts, initiator: InitiatorConfig, target: TargetConfig) -> Self {
        let (host_admin, admin, admin_lanes) = pipe(cuts);
        let (host_io, io, io_lanes) = pipe(cuts);
        let mut subsystem = Subsystem::new(target).unwrap();
        subsystem.admit(HOST, 0..NAMESPACE_LEN / 2);
        Self {
            initiator: Initiator::connect(initiator, host_admin, host_io),
            subsystem,
            connections: vec![TargetConnection::new(admin), TargetConnection::new(io)],
            lanes: [admin_lanes, io_lanes],
            disk: vec![0; NAMESPACE_LEN as usize],
            now_ms: 1_000,
            held: Vec::new(),
            hold: false,
            trace: Vec::new(),
            completed: Vec::new(),
        }
    }

    fn moved(&self) -> u64 {
        let target: u64 =
            self.connections.iter().map(|c| c.bytes_received() + c.bytes_sent()).sum();
        target + self.initiator.bytes_received() + self.initiator.bytes_sent()
    }

    /// Lets everybody move until nothing moves any more.
    pub(super) fn run(&mut self) {
        let mut idle = 0;
        while idle < 30 {
            let before = (self.moved(), self.trace.len());
            self.step();
            idle = if before == (self.moved(), self.trace.len()) { idle + 1 } else { 0 };
        }
    }

    pub(super) fn step(&mut self) {
        self.initiator.progress(self.now_ms);
        for i in 0..self.connections.len() {
            self.connections[i].progress(&mut self.subsystem, self.now_ms);
            while let Some(io) = self.connections[i].poll_io() {
                self.held.push((i, io.id, io.kind));
            }
        }
        if !self.hold {
            self.release();
        }
        self.initiator.poll(&mut self.completed);
    }

    /// Runs what the driver held back.
    pub(super) fn release(&mut self) {
        for (i, id, kind) in core::mem::take(&mut self.held) {
            let result = self.execute(kind);
            self.connections[i].complete_io(&mut self.subsystem, id, Ok(result));
        }
    }

    fn execute(&mut self, kind: BackendKind) -> Option<Bytes> {
        match kind {
            BackendKind::Read { offset, len } => {
                self.trace.push(alloc::format!("read {offset} {len}"));
                let bytes = &self.disk[offset as usize..offset as usize + len];
                Some(AlignedBuf::copy_of(bytes).freeze())
            }
            BackendKind::Write { offset, data, crc } => {
                assert_eq!(crc, crc::crc32c(&data));
                assert_eq!(data.as_ptr() as usize % 4096, 0);
                self.trace.push(alloc::format!("write {offset} {}", data.len()));
                self.disk[offset as usize..offset as usize + data.len()].copy_from_slice(&data);
                None
            }
            BackendKind::Flush => {
                self.trace.push("flush".to_string());
                None
            }
        }
    }

    /// Connects; panics with the reason when that fails.
    pub(super) fn ready(mut self) -> Self {
        self.run();
        let InitiatorState::Ready = self.initiator.state() else {
            panic!("{:?}; target: {:?}", self.initiator.state(), self.connections[0].error());
        };
        self
    }

    /// Submits one operation and runs until it ends.
    pub(super) fn one(&mut self, kind: OperationKind) -> Completion {
        let tag = 10_000 + self.trace.len() as u64;
        self.initiator.submit(vec![Operation { tag, kind, then: false }]);
        self.run();
        assert_eq!(self.completed.len(), 1);
        self.completed.pop().unwrap()
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Outcome {
        let data = Bytes::copy_from_slice(data);
        self.one(OperationKind::Write { offset, data }).outcome
    }

    pub(super) fn read(&mut self, offset: u64, len: usize) -> Completion {
        self.one(OperationKind::Read { offset, into: AlignedBuf::zeroed(len) })
    }
}

/// Bytes that look random.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (x >> 56) as u8
    };
    core::iter::repeat_with(next).take(len).collect()
}

pub(super) fn is_done(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Done)
}

/// A host that speaks by hand.
pub(super) struct RawHost {
    pub(super) wire: Wire<Pipe>,
    pub(super) target: TargetConnection<Pipe>,
    pub(super) subsystem: Subsystem,
    pub(super) ios: Vec<BackendIo>,
    pub(super) got: Vec<(Pdu, Vec<u8>)>,
}

impl RawHost {
    /// A connection that has sent nothing.
    pub(super) fn new() -> Self {
        Self::shown(None)
    }

    /// The same of a host that has shown which one it is.
    pub(super) fn shown(host: Option<&'static str>) -> Self {
        let shown = host;
        let (host, mut controller, _) = pipe(&Cuts::Whole);
        controller.shown = shown;
        let mut subsystem = Subsystem::new(target_config()).unwrap();
        subsystem.admit(HOST, 0..NAMESPACE_LEN);
        Self {
            wire: Wire::new(host, Role::Host),
            target: TargetConnection::new(controller),
            subsystem,
            ios: Vec::new(),
            got: Vec::new(),
        }
    }

    /// After ICReq and ICResp, without digests unless asked.
    pub(super) fn greeted(digests: Digests, alignment: u8) -> Self {
        Self::new().greet(digests, alignment)
    }

    /// The same of a connection that is there.
    pub(super) fn greet(mut self, digests: Digests, alignment: u8) -> Self {
        let ask = Initialize { format: 0, alignment, digests, limit: 0 };
        self.send(Assembly::initialize(PduKind::IcReq, &ask));
        let [(Pdu::Initialize(_), _)] = &self.got[..] else { panic!("{:?}", self.got) };
        self.got.clear();
        self.wire.agree(digests, 0);
        self
    }

    /// A connected queue. I/O queues get a controller that was enabled by hand.
    pub(super) fn connected(queue: u16) -> Self {
        let mut host = Self::greeted(Digests::default(), 0);
        if queue != 0 {
            let mut admin = Self::connected(0);
            assert_eq!(admin.status(Submission::property_set(0x14, CC_ENABLED)), Status::SUCCESS);
            // The controller lives in the subsystem, whose admin connection just stays silent.
            host.subsystem = admin.subsystem;
        }
        let controller = if queue == 0 { 0xffff } else { 1 };
        let reply = host.connect(queue, controller, HOST, SUBSYSTEM);
        assert_eq!((reply.status, reply.result as u16), (Status::SUCCESS, 1));
        host
    }

    pub(super) fn connect(
        &mut self,
        queue: u16,
        controller: u16,
        host: &str,
        subsystem: &str,
    ) -> crate::nvme::command::Completion {
        let data = ConnectData {
            host_id: [7; 16],
            controller,
            subsystem_nqn: subsystem.to_string(),
            host_nqn: host.to_string(),
        };
        let command = Submission::connect(&ConnectParameters {
            format: 0,
            queue,
            entries_minus_one: 7,
            no_flow_control: false,
            keep_alive_ms: 0,
        });
        let command = command.with_data(1024, true).with_cid(0xbeef);
        self.ask(command, data.encode().freeze()).0
    }

    pub(super) fn send(&mut self, frame: Frame) {
        self.wire.push(frame);
        self.run();
    }

    pub(super) fn run(&mut self) {
        for _ in 0..4 {
            let _ = self.wire.flush(|_| {});
            self.target.progress(&mut self.subsystem, 0);
            self.ios.extend(core::iter::from_fn(|| self.target.poll_io()));
            while let Ok(Some(event)) = self.wire.next_event() {
                match event {
                    Event::Pdu { pdu, data_len } => {
                        self.got.push((pdu, Vec::new()));
                        if data_len > 0 {
                            self.wire.data_into(AlignedBuf::zeroed(data_len), 0);
                        }
                    }
                    Event::Data(arrived) => {
                        assert!(arrived.intact);
                        self.got.last_mut().unwrap().1 = arrived.buffer.to_vec();
                    }
                }
            }
        }
    }

    /// A command and its answer: completion and data.
    pub(super) fn ask(
        &mut self,
        command: Submission,
        data: Bytes,
    ) -> (crate::nvme::command::Completion, Vec<u8>) {
        let frame = self.wire.assembly().command(&command, data, None);
        self.send(frame);
        let got = core::mem::take(&mut self.got);
        let data = got.iter().find(|(pdu, _)| matches!(pdu, Pdu::Data(_)));
        let data = data.map(|(_, data)| data.clone()).unwrap_or_default();
        match got.last() {
            Some((Pdu::Response(completion), _)) => {
                assert_eq!(completion.cid, command.cid());
                (*completion, data)
            }
            other => panic!("{command:?} got {other:?}; target: {:?}", self.target.error()),
        }
    }

    /// The status of a command without data.
    pub(super) fn status(&mut self, command: Submission) -> Status {
        self.ask(command, Bytes::new()).0.status
    }
}
