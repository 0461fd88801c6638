//! One queue of the initiator: a connection and the commands in flight on it.

use crate::nvme::command::{Completion, NAMESPACE, Status, Submission};
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
use gabion_base::{Error, Result};

/// Data frames wait for the transport at most this many at a time; the rest stay with their
/// commands, so a target cannot make the queue grow by many small requests.
const DATA_FRAMES_MAX: usize = 8;
/// Least MAXH2CDATA that the specification lets a controller state.
const H2C_LEN_MIN: u32 = 4096;

/// A command to issue.
pub(super) struct Request {
    pub(super) command: Submission,
    /// What a write sends.
    pub(super) data: Bytes,
    /// CRC32C of `data` where it is known.
    pub(super) crc: Option<u32>,
    /// Where a read receives.
    pub(super) into: Option<AlignedBuf>,
    /// Whether `data` travel with the command.
    pub(super) in_capsule: bool,
}

impl Request {
    pub(super) fn new(command: Submission) -> Self {
        Self { command, data: Bytes::new(), crc: None, into: None, in_capsule: false }
    }

    /// With data to send, whose length goes into the SGL.
    pub(super) fn sending(mut self, data: Bytes, crc: Option<u32>, in_capsule: bool) -> Self {
        self.command = self.command.with_data(data.len() as u32, in_capsule);
        (self.data, self.crc, self.in_capsule) = (data, crc, in_capsule);
        self
    }

    /// With room for data to receive, whose length goes into the SGL.
    pub(super) fn receiving(mut self, into: AlignedBuf) -> Self {
        self.command = self.command.with_data(into.len() as u32, false);
        self.into = Some(into);
        self
    }
}

struct Flight<P> {
    purpose: P,
    issued_ms: u64,
    data: Bytes,
    crc: Option<u32>,
    in_capsule: bool,
    /// Bytes of `data` that the target asked for so far.
    asked: u32,
    /// What it asked for last and was not queued yet.
    wanted: Option<ReadyToTransfer>,
    into: Option<AlignedBuf>,
    into_len: u32,
    got: u32,
    /// A data digest did not match.
    damaged: bool,
}

/// A command that ended.
pub(super) struct Ended<P> {
    pub(super) purpose: P,
    /// What the target said, or why it said nothing.
    pub(super) end: End,
    pub(super) buffer: Option<AlignedBuf>,
}

pub(super) enum End {
    /// The target answered.
    Answered(Completion),
    /// The target succeeded, but what arrived is not what it sent.
    Damaged(Error),
    /// The connection ended first.
    Lost,
}

enum Phase {
    Greeting,
    Open,
    Broken,
}

pub(super) struct Queue<T, P> {
    name: &'static str,
    wire: Wire<T>,
    phase: Phase,
    asked_digests: Digests,
    flights: Vec<Option<Flight<P>>>,
    free: Vec<u16>,
    /// Commands whose data are wanted, in the order of asking.
    granted: VecDeque<u16>,
    h2c_len_max: u32,
    arriving: Option<DataHeader>,
    ended: VecDeque<Ended<P>>,
    /// When a byte crossed last, or the first command was issued after a time without any.
    alive_ms: u64,
}

impl<T: Transport, P> Queue<T, P> {
    /// Begins the connection with the request to initialize it.
    pub(super) fn new(name: &'static str, transport: T, asked_digests: Digests) -> Self {
        let mut wire = Wire::new(transport, Role::Host);
        // One R2T of a command at a time, data right behind the header: what Linux asks for.
        let ask = Initialize { format: 0, alignment: 0, digests: asked_digests, limit: 0 };
        wire.push(Assembly::initialize(PduKind::IcReq, &ask));
        Self {
            name,
            wire,
            phase: Phase::Greeting,
            asked_digests,
            flights: Vec::new(),
            free: Vec::new(),
            granted: VecDeque::new(),
            h2c_len_max: 0,
            arriving: None,
            ended: VecDeque::new(),
            alive_ms: 0,
        }
    }

    pub(super) const fn wire(&self) -> &Wire<T> {
        &self.wire
    }

    pub(super) const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// How many commands may be in flight; only ever raised.
    pub(super) fn set_depth(&mut self, depth: u16) {
        assert_eq!(self.in_flight(), 0, "{}: its depth is set before it is used", self.name);
        for cid in self.flights.len() as u16..depth {
            self.flights.push(None);
            self.free.push(cid);
        }
    }

    pub(super) const fn has_room(&self) -> bool {
        self.is_open() && !self.free.is_empty()
    }

    pub(super) fn pop_ended(&mut self) -> Option<Ended<P>> {
        self.ended.pop_front()
    }

    /// Whether a command waits and nothing crossed for `limit_ms`. A target takes what it was given
    /// in turn: at a slow one the last of many commands waits long, and that is no reason to give
    /// up.
    pub(super) fn is_silent(&self, now_ms: u64, limit_ms: u64) -> bool {
        self.in_flight() > 0 && now_ms.saturating_sub(self.alive_ms) >= limit_ms
    }

    /// Whether a command waits since `limit_ms` ago or longer, whatever else was answered
    /// meanwhile: it was lost.
    pub(super) fn has_lost(&self, now_ms: u64, limit_ms: u64) -> bool {
        let mut flights = self.flights.iter().flatten();
        flights.any(|flight| now_ms.saturating_sub(flight.issued_ms) >= limit_ms)
    }

    /// What the commands in flight are for.
    pub(super) fn purposes(&self) -> impl Iterator<Item = &P> {
        self.flights.iter().flatten().map(|flight| &flight.purpose)
    }

    const fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// Issues a command; `has_room` was true.
    pub(super) fn issue(&mut self, request: Request, purpose: P, now_ms: u64) {
        if self.in_flight() == 0 {
            self.alive_ms = now_ms;
        }
        let cid = self.free.pop().expect("the caller asked for room first");
        let command = request.command.with_cid(cid);
        let (data, crc) = match request.in_capsule {
            true => (request.data.clone(), request.crc),
            false => (Bytes::new(), None),
        };
        let frame = self.wire.assembly().command(&command, data, crc);
        self.wire.push(frame);
        let flight = &mut self.flights[usize::from(cid)];
        assert!(flight.is_none(), "a free identifier names no command: {cid}");
        *flight = Some(Flight {
            purpose,
            issued_ms: now_ms,
            data: request.data,
            crc: request.crc,
            in_capsule: request.in_capsule,
            asked: 0,
            wanted: None,
            into_len: request.into.as_ref().map_or(0, |into| into.len() as u32),
            into: request.into,
            got: 0,
            damaged: false,
        });
    }

    /// Moves bytes both ways until the transport would block.
    ///
    /// # Errors
    /// The connection is over; the caller then calls [`Self::fail`].
    pub(super) fn pump(&mut self, now_ms: u64) -> Result<()> {
        let moved = |wire: &Wire<T>| (wire.bytes_sent(), wire.bytes_received());
        let before = moved(&self.wire);
        let result = self.pump_until_blocked();
        if moved(&self.wire) != before {
            self.alive_ms = now_ms;
        }
        result
    }

    fn pump_until_blocked(&mut self) -> Result<()> {
        if matches!(self.phase, Phase::Broken) {
            return Ok(());
        }
        loop {
            // A peer that is gone may have answered before it went: its last words are read first.
            let sent = self.send();
            match self.receive_one() {
                Ok(true) => self.invariants(),
                Ok(false) => return sent.map_err(|error| error.within(self.name)),
                Err(Broken::Connection(error)) => return Err(error.within(self.name)),
                Err(Broken::Protocol(fatal)) => {
                    self.wire.push_term(&fatal);
                    // The peer is told if it listens; the connection is over either way.
                    let _ = self.wire.flush(|_| {});
                    return Err(fatal.error.within(self.name));
                }
            }
        }
    }

    /// Ends every command as lost.
    pub(super) fn fail(&mut self) {
        self.phase = Phase::Broken;
        let mut stray = self.wire.abandon_data();
        let arriving = self.arriving.take().map(|header| usize::from(header.cid));
        self.granted.clear();
        for (cid, slot) in self.flights.iter_mut().enumerate() {
            let Some(flight) = slot.take() else { continue };
            let buffer = if arriving == Some(cid) { stray.take() } else { flight.into };
            self.ended.push_back(Ended { purpose: flight.purpose, end: End::Lost, buffer });
        }
        assert!(stray.is_none(), "{}: what was arriving is of a command", self.name);
    }

    /// What holds after each PDU; looked at in builds with debug assertions.
    fn invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let (mut under_way, mut wanted) = (0, 0);
        for flight in self.flights.iter().flatten() {
            under_way += 1;
            wanted += usize::from(flight.wanted.is_some());
            assert!(flight.got <= flight.into_len && flight.asked as usize <= flight.data.len());
        }
        assert_eq!(self.free.len() + under_way, self.flights.len());
        assert_eq!(self.granted.len(), wanted);
    }

    fn send(&mut self) -> Result<()> {
        loop {
            self.queue_data();
            self.wire.flush(|_| {})?;
            if self.wire.is_blocked() || self.granted.is_empty() {
                return Ok(());
            }
        }
    }

    /// Queues H2CData PDUs for what was asked, in turn.
    fn queue_data(&mut self) {
        while self.wire.frames_waiting() < DATA_FRAMES_MAX {
            let Some(cid) = self.granted.pop_front() else { return };
            let Some(flight) = self.flights.get_mut(usize::from(cid)).and_then(Option::as_mut)
            else {
                continue;
            };
            let Some(wanted) = &mut flight.wanted else { continue };
            let len = wanted.len.min(self.h2c_len_max);
            let range = wanted.offset as usize..(wanted.offset + len) as usize;
            assert!(!range.is_empty(), "command {cid}: each PDU brings data");
            assert!(range.end <= flight.asked as usize, "command {cid}: data go as they are asked");
            let crc = if range.len() == flight.data.len() { flight.crc } else { None };
            let last = len == wanted.len;
            let (ttag, offset) = (wanted.ttag, wanted.offset);
            let header = DataHeader { cid, ttag, offset, len, last, success: false };
            let data = flight.data.slice(range);
            if last {
                flight.wanted = None;
            } else {
                wanted.offset += len;
                wanted.len -= len;
                self.granted.push_back(cid);
            }
            let frame = self.wire.assembly().data(PduKind::H2cData, &header, data, crc);
            self.wire.push(frame);
        }
    }

    fn receive_one(&mut self) -> Result<bool, Broken> {
        match self.wire.next_event()? {
            None => return Ok(false),
            Some(Event::Pdu { pdu: Pdu::Initialize(answer), .. }) => {
                self.handle_greeting(&answer)?
            }
            Some(Event::Pdu { pdu: Pdu::Term { status, information }, .. }) => {
                return Err(Broken::Connection(Error::unavailable(format!(
                    "the target ended the connection: fatal status {status}, information \
                     {information:#x}"
                ))));
            }
            Some(Event::Pdu { .. }) if !self.is_open() => {
                return Err(out_of_sequence("a PDU before ICResp").into());
            }
            Some(Event::Pdu { pdu, .. }) => self.handle_pdu(pdu)?,
            Some(Event::Data(arrived)) => self.handle_data(arrived)?,
        }
        Ok(true)
    }

    fn handle_greeting(&mut self, answer: &Initialize) -> Result<(), Fatal> {
        if !matches!(self.phase, Phase::Greeting) {
            return Err(out_of_sequence("a second ICResp"));
        }
        let unsupported = |at: u32, what: &str, value: u32| Fatal {
            status: FatalStatus::UnsupportedParameter,
            information: at,
            error: Error::unsupported(format!("ICResp: {what} {value} is not supported")),
        };
        if answer.format != 0 {
            return Err(unsupported(8, "format", u32::from(answer.format)));
        }
        if answer.alignment > 31 {
            return Err(unsupported(10, "alignment", u32::from(answer.alignment)));
        }
        if answer.digests != self.asked_digests {
            return Err(Fatal {
                status: FatalStatus::UnsupportedParameter,
                information: 11,
                error: Error::unsupported(format!(
                    "the target offers {:?}, configured are {:?}",
                    answer.digests, self.asked_digests
                )),
            });
        }
        if answer.limit < H2C_LEN_MIN || !answer.limit.is_multiple_of(4) {
            return Err(unsupported(12, "MAXH2CDATA", answer.limit));
        }
        self.h2c_len_max = answer.limit;
        self.wire.agree(answer.digests, answer.alignment);
        self.phase = Phase::Open;
        Ok(())
    }

    fn flight(&mut self, cid: u16) -> Result<&mut Flight<P>, Fatal> {
        self.flights
            .get_mut(usize::from(cid))
            .and_then(Option::as_mut)
            .ok_or_else(|| Fatal::field(8, format!("command identifier {cid} is not in flight")))
    }

    fn handle_pdu(&mut self, pdu: Pdu) -> Result<(), Fatal> {
        match pdu {
            Pdu::Response(completion) => self.handle_response(completion),
            Pdu::R2t(r2t) => self.handle_r2t(r2t),
            Pdu::Data(header) => self.handle_data_header(header),
            Pdu::Initialize(_) | Pdu::Term { .. } | Pdu::Command(_) => {
                Err(out_of_sequence("a PDU that no target sends here"))
            }
        }
    }

    fn handle_response(&mut self, completion: Completion) -> Result<(), Fatal> {
        let flight = self.flight(completion.cid)?;
        let sent_all = flight.in_capsule || flight.asked as usize == flight.data.len();
        if completion.status.is_success() && (!sent_all || flight.wanted.is_some()) {
            return Err(out_of_sequence("success of a write whose data were not all sent"));
        }
        self.end(completion);
        Ok(())
    }

    fn end(&mut self, completion: Completion) {
        let slot = &mut self.flights[usize::from(completion.cid)];
        let Some(flight) = slot.take() else { return };
        assert!(self.free.len() < self.flights.len(), "{}: it was in use", completion.cid);
        self.free.push(completion.cid);
        if flight.wanted.is_some() {
            self.granted.retain(|&cid| cid != completion.cid);
        }
        let end = if !completion.status.is_success() {
            End::Answered(completion)
        } else if flight.damaged {
            End::Damaged(Error::corruption("the data digest of a read does not match its bytes"))
        } else if flight.got != flight.into_len {
            End::Damaged(Error::corruption(format!(
                "a read of {} bytes got {} of them",
                flight.into_len, flight.got
            )))
        } else {
            End::Answered(completion)
        };
        self.ended.push_back(Ended { purpose: flight.purpose, end, buffer: flight.into });
    }

    fn handle_r2t(&mut self, r2t: ReadyToTransfer) -> Result<(), Fatal> {
        let cid = r2t.cid;
        let flight = self.flight(cid)?;
        if flight.wanted.is_some() {
            let message = format!("a second R2T of command {cid} before the first was answered");
            return Err(Fatal::new(FatalStatus::LimitExceeded, message));
        }
        let total = if flight.in_capsule { 0 } else { flight.data.len() as u32 };
        let end = r2t.offset.checked_add(r2t.len).filter(|&end| end <= total);
        match end {
            Some(end) if r2t.len > 0 && r2t.offset == flight.asked => flight.asked = end,
            _ => {
                return Err(Fatal {
                    status: FatalStatus::DataOutOfRange,
                    information: r2t.offset,
                    error: Error::corruption(format!(
                        "R2T of {} bytes at {}, but {} of {total} were asked for before",
                        r2t.len, r2t.offset, flight.asked
                    )),
                });
            }
        }
        flight.wanted = Some(r2t);
        assert!(self.granted.len() < self.flights.len(), "each command waits to send once");
        self.granted.push_back(cid);
        Ok(())
    }

    fn handle_data_header(&mut self, header: DataHeader) -> Result<(), Fatal> {
        let flight = self.flight(header.cid)?;
        let end = header.offset.checked_add(header.len).filter(|&end| end <= flight.into_len);
        let buffer = match end {
            Some(_) if header.offset == flight.got => flight.into.take(),
            _ => None,
        };
        let Some(buffer) = buffer else {
            return Err(Fatal {
                status: FatalStatus::DataOutOfRange,
                information: header.offset,
                error: Error::corruption(format!(
                    "C2HData of {} bytes at {}, but {} of {} came before",
                    header.len, header.offset, flight.got, flight.into_len
                )),
            });
        };
        assert_eq!(buffer.len(), flight.into_len as usize, "a read keeps its buffer");
        assert!(self.arriving.is_none(), "the data of one PDU arrive at a time");
        self.wire.data_into(buffer, header.offset as usize);
        self.arriving = Some(header);
        Ok(())
    }

    fn handle_data(&mut self, arrived: Arrived) -> Result<(), Fatal> {
        let header = self.arriving.take().ok_or_else(|| out_of_sequence("data without a PDU"))?;
        let flight = self.flight(header.cid)?;
        assert!(flight.into.is_none(), "command {}: its buffer was away", header.cid);
        flight.got += header.len;
        assert!(flight.got <= flight.into_len, "command {}: it got what it asked", header.cid);
        flight.damaged |= !arrived.intact;
        flight.into = Some(arrived.buffer);
        if header.success {
            let (status, cid) = (Status::SUCCESS, header.cid);
            self.end(Completion { result: 0, queue_head: 0, queue: 0, cid, status });
        }
        Ok(())
    }
}

/// Identify of this structure, for the namespace where it is about one.
pub(super) fn identify(structure: u32, of_namespace: bool) -> Submission {
    let command = Submission::new(crate::nvme::command::admin::IDENTIFY).with_dword(10, structure);
    if of_namespace { command.with_namespace(NAMESPACE) } else { command }
}
