//! One connection as both ends see it: bytes in become PDUs, PDUs become bytes out.
//!
//! ```text
//!   transport ─► staging (8 KiB) ─► header ─► Event::Pdu ─► the owner gives a buffer ─┐
//!        └──────────── rest of large data, straight into the buffer ◄────────────────┘
//!                                           └─► Event::Data (buffer, CRC32C, whether it matched)
//!   Frame (header, shared data, digest) ─► queue ─► one vectored send of several frames
//! ```
//!
//! Data are received into the buffer where they stay and their checksum is taken as they arrive,
//! while they are in the cache: one pass for digest, chunk and file.

use super::pdu::{
    Assembly, COMMON_HEADER_LEN, DIGEST_LEN, Digests, Fatal, FatalStatus, Frame, Layout, Pdu,
    PduKind, Role,
};
use crate::AlignedBuf;
use crate::transport::Transport;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use gabion_base::{Error, Result, crc};

/// Bytes received at once where no data are expected.
const STAGING_LEN: usize = 8192;
/// From this many bytes on data are received straight into their buffer.
const DIRECT_LEN_MIN: usize = 2048;
/// Most frames in one send.
const SEND_FRAMES: usize = 16;

/// Bytes of a header that a termination request quotes: a whole one of all but ICReq and ICResp.
const QUOTED_LEN_MAX: usize = 72;

/// What arrived.
pub(super) enum Event {
    /// A PDU. When it carries data [`Wire::data_into`] must be called before the next event.
    Pdu { pdu: Pdu, data_len: usize },
    /// The data of the PDU before are complete.
    Data(Arrived),
}

/// Data that arrived, in the buffer that was given for them.
pub(super) struct Arrived {
    pub(super) buffer: AlignedBuf,
    /// CRC32C of these data alone.
    pub(super) crc: u32,
    /// Whether the digest, if one was agreed, matches.
    pub(super) intact: bool,
}

/// Why nothing more comes.
pub(super) enum Broken {
    /// The peer broke the protocol and is to be told.
    Protocol(Fatal),
    /// The connection is gone.
    Connection(Error),
}

impl From<Fatal> for Broken {
    fn from(fatal: Fatal) -> Self {
        Self::Protocol(fatal)
    }
}

enum Phase {
    Header,
    /// A PDU with data was handed out; the owner has not said where they go.
    Destination(Layout),
    Data {
        layout: Layout,
        buffer: AlignedBuf,
        at: usize,
        end: usize,
        crc: u32,
    },
    Digest {
        buffer: AlignedBuf,
        crc: u32,
    },
}

pub(super) struct Wire<T> {
    transport: T,
    role: Role,
    assembly: Assembly,
    frames: VecDeque<Frame>,
    /// Bytes of the first frame that are sent.
    frame_sent: usize,
    blocked: bool,
    staging: Box<[u8]>,
    start: usize,
    end: usize,
    phase: Phase,
    /// The header seen last, for a termination request to quote.
    quoted: [u8; QUOTED_LEN_MAX],
    quoted_len: usize,
    received: u64,
    sent: u64,
}

impl<T: Transport> Wire<T> {
    pub(super) fn new(transport: T, role: Role) -> Self {
        Self {
            transport,
            role,
            assembly: Assembly::default(),
            frames: VecDeque::new(),
            frame_sent: 0,
            blocked: false,
            staging: vec![0; STAGING_LEN].into_boxed_slice(),
            start: 0,
            end: 0,
            phase: Phase::Header,
            quoted: [0; QUOTED_LEN_MAX],
            quoted_len: 0,
            received: 0,
            sent: 0,
        }
    }

    /// What was agreed at the start of the connection holds for every PDU from here on.
    pub(super) fn agree(&mut self, digests: Digests, peer_alignment: u8) {
        self.assembly = Assembly { digests, alignment: peer_alignment };
    }

    pub(super) const fn assembly(&self) -> &Assembly {
        &self.assembly
    }

    pub(super) const fn transport(&self) -> &T {
        &self.transport
    }

    pub(super) const fn bytes_received(&self) -> u64 {
        self.received
    }

    pub(super) const fn bytes_sent(&self) -> u64 {
        self.sent
    }

    /// Frames that are not sent completely.
    pub(super) fn frames_waiting(&self) -> usize {
        self.frames.len()
    }

    /// Whether the transport refused bytes that still wait.
    pub(super) const fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub(super) fn push(&mut self, frame: Frame) {
        self.frames.push_back(frame);
    }

    /// Tells the peer why the connection ends.
    pub(super) fn push_term(&mut self, fatal: &Fatal) {
        let kind = match self.role {
            Role::Host => PduKind::H2cTerm,
            Role::Controller => PduKind::C2hTerm,
        };
        let frame = Assembly::term(kind, fatal, &self.quoted[..self.quoted_len]);
        self.push(frame);
    }

    /// Sends until everything is sent or the transport would block. `done` is told the data length
    /// of each frame that went out.
    pub(super) fn flush(&mut self, mut done: impl FnMut(usize)) -> Result<()> {
        while !self.frames.is_empty() {
            let mut parts: [&[u8]; SEND_FRAMES * 3] = [&[]; SEND_FRAMES * 3];
            let mut count = 0;
            for (i, frame) in self.frames.iter().take(SEND_FRAMES).enumerate() {
                let skip = if i == 0 { self.frame_sent } else { 0 };
                for part in frame.parts(skip) {
                    if !part.is_empty() {
                        parts[count] = part;
                        count += 1;
                    }
                }
            }
            let offered: usize = parts[..count].iter().map(|p| p.len()).sum();
            let mut taken = self.transport.send(&parts[..count])?;
            if taken > offered {
                return Err(Error::io("a transport sent more bytes than it was given"));
            }
            self.blocked = taken == 0;
            if taken == 0 {
                return Ok(());
            }
            self.sent += taken as u64;
            taken += self.frame_sent;
            while let Some(frame) = self.frames.front() {
                if taken < frame.len() {
                    break;
                }
                taken -= frame.len();
                done(frame.data_len());
                self.frames.pop_front();
            }
            let first_len = self.frames.front().map_or(1, Frame::len);
            assert!(taken < first_len, "what is sent of a frame is a part of it");
            self.frame_sent = taken;
        }
        self.blocked = false;
        Ok(())
    }

    /// Where the data of the PDU just handed out go: into `buffer` from `at` on. The owner has
    /// checked that they fit.
    pub(super) fn data_into(&mut self, buffer: AlignedBuf, at: usize) {
        let phase = core::mem::replace(&mut self.phase, Phase::Header);
        let Phase::Destination(layout) = phase else {
            unreachable!("a destination is given after a PDU with data");
        };
        let end = at + layout.data_len;
        assert!(at < end, "a PDU that waits for a buffer has data");
        assert!(end <= buffer.len(), "data from {at} to {end} for a buffer of {}", buffer.len());
        self.phase = Phase::Data { layout, buffer, at, end, crc: 0 };
    }

    /// The buffer of data that were under way when the connection ended.
    pub(super) fn abandon_data(&mut self) -> Option<AlignedBuf> {
        match core::mem::replace(&mut self.phase, Phase::Header) {
            Phase::Data { buffer, .. } | Phase::Digest { buffer, .. } => Some(buffer),
            Phase::Header | Phase::Destination(_) => None,
        }
    }

    /// Whether there is no further event in what was received: [`Self::next_event`] would ask the
    /// transport.
    pub(super) fn needs_bytes(&self) -> bool {
        let staged = self.end - self.start;
        match &self.phase {
            Phase::Header => match self.staged().first_chunk::<COMMON_HEADER_LEN>() {
                // A header that breaks the rules is an event, too.
                Some(common) => Layout::of(common, self.role, self.assembly.digests)
                    .is_ok_and(|layout| staged < layout.data_start),
                None => true,
            },
            Phase::Data { layout, at, end, .. } => {
                let digest = if layout.data_digest { DIGEST_LEN } else { 0 };
                staged < end - at + digest
            }
            Phase::Digest { .. } => staged < DIGEST_LEN,
            Phase::Destination(_) => false,
        }
    }

    /// The next event, or nothing when the transport would block.
    pub(super) fn next_event(&mut self) -> Result<Option<Event>, Broken> {
        loop {
            let event = match self.phase {
                Phase::Header => self.take_header()?,
                Phase::Data { .. } => self.take_data(),
                Phase::Digest { .. } => self.take_digest(),
                Phase::Destination(_) => unreachable!("a destination was given for the data"),
            };
            if event.is_some() {
                return Ok(event);
            }
            if !self.is_fed() && !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Whether the phase can go on with what is here.
    fn is_fed(&self) -> bool {
        match &self.phase {
            Phase::Data { at, end, .. } => at == end || self.start < self.end,
            Phase::Header | Phase::Digest { .. } | Phase::Destination(_) => false,
        }
    }

    fn staged(&self) -> &[u8] {
        &self.staging[self.start..self.end]
    }

    fn consume(&mut self, len: usize) {
        self.start += len;
        assert!(self.start <= self.end, "no more is used up than came");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    fn take_header(&mut self) -> Result<Option<Event>, Fatal> {
        let Some(&common) = self.staged().first_chunk::<COMMON_HEADER_LEN>() else {
            return Ok(None);
        };
        self.quoted[..COMMON_HEADER_LEN].copy_from_slice(&common);
        self.quoted_len = COMMON_HEADER_LEN;
        let layout = Layout::of(&common, self.role, self.assembly.digests)?;
        if self.staged().len() < layout.data_start {
            return Ok(None);
        }
        self.quoted_len = layout.header_len.min(QUOTED_LEN_MAX);
        self.quoted[..self.quoted_len]
            .copy_from_slice(&self.staging[self.start..self.start + self.quoted_len]);
        let head = &self.staging[self.start..self.start + layout.data_start];
        let pdu = Pdu::parse(&layout, head)?;
        self.consume(layout.data_start);
        if layout.data_len > 0 {
            self.phase = Phase::Destination(layout);
        }
        Ok(Some(Event::Pdu { pdu, data_len: layout.data_len }))
    }

    fn take_data(&mut self) -> Option<Event> {
        let Phase::Data { layout, buffer, at, end, crc } = &mut self.phase else { return None };
        let staged = &self.staging[self.start..self.end];
        let len = staged.len().min(*end - *at);
        buffer[*at..*at + len].copy_from_slice(&staged[..len]);
        *crc = crc::append(*crc, &staged[..len]);
        *at += len;
        let (whole, has_digest) = (*at == *end, layout.data_digest);
        self.consume(len);
        if !whole {
            return None;
        }
        let Phase::Data { buffer, crc, .. } = core::mem::replace(&mut self.phase, Phase::Header)
        else {
            return None;
        };
        if has_digest {
            self.phase = Phase::Digest { buffer, crc };
            return self.take_digest();
        }
        Some(Event::Data(Arrived { buffer, crc, intact: true }))
    }

    fn take_digest(&mut self) -> Option<Event> {
        let digest = *self.staged().first_chunk::<DIGEST_LEN>()?;
        self.consume(DIGEST_LEN);
        match core::mem::replace(&mut self.phase, Phase::Header) {
            Phase::Digest { buffer, crc } => {
                let intact = u32::from_le_bytes(digest) == crc;
                Some(Event::Data(Arrived { buffer, crc, intact }))
            }
            _ => None,
        }
    }

    /// Receives more; false when the transport would block.
    fn fill(&mut self) -> Result<bool, Broken> {
        if let Phase::Data { buffer, at, end, crc, .. } = &mut self.phase
            && *end - *at >= DIRECT_LEN_MIN
        {
            let Some(len) = receive(&mut self.transport, &mut buffer[*at..*end])? else {
                return Ok(false);
            };
            *crc = crc::append(*crc, &buffer[*at..*at + len]);
            *at += len;
            self.received += len as u64;
            return Ok(true);
        }
        if self.end == self.staging.len() {
            // A header is far shorter than the staging, so moving its start makes room.
            assert!(self.start > 0, "a header has room before others come");
            self.staging.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let Some(len) = receive(&mut self.transport, &mut self.staging[self.end..])? else {
            return Ok(false);
        };
        self.end += len;
        self.received += len as u64;
        Ok(true)
    }
}

fn receive<T: Transport>(transport: &mut T, into: &mut [u8]) -> Result<Option<usize>, Broken> {
    let room = into.len();
    match transport.receive(into) {
        Ok(None) => Ok(None),
        Ok(Some(0)) => {
            Err(Broken::Connection(Error::unavailable("the peer closed the connection")))
        }
        Ok(Some(len)) if len > room => {
            Err(Broken::Connection(Error::io("a transport received more bytes than fit")))
        }
        Ok(Some(len)) => Ok(Some(len)),
        Err(error) => Err(Broken::Connection(error)),
    }
}

/// A PDU that may not come now.
pub(super) fn out_of_sequence(what: &str) -> Fatal {
    Fatal::new(FatalStatus::Sequence, what)
}
