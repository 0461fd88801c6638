//! One connection at the peer.
//!
//! The driver calls, in a loop: [`PeerConnection::receive`] when bytes may have come, then
//! [`PeerConnection::poll_mapped`] until it gives nothing, then [`PeerConnection::flush`].
//! [`PeerConnection::progress`] does all three where nothing is mapped. One call receives once and
//! sends once, however many requests that brings: their replies leave together, and one `Written`
//! stands for all writes in a row.

use super::codec;
use super::frame::{BODY_LEN_MAX, GREETING_LEN_MAX};
use super::message::{
    ClientId, ConnectionGeneration, Notice, Refusal, RefusalReason, RegionId, Reply, Request,
    RequestNumber,
};
use super::peer::{Peer, Supply};
use super::stream::{Inbox, Outbox};
use crate::transport::Transport;
use alloc::collections::VecDeque;
use alloc::format;
use gabion_base::{Error, Result};

/// While so many bytes of replies wait, no further request is taken.
const REPLIES_WAITING_MAX: usize = 1024 * 1024;

/// Most regions mapped in one turn: their descriptors go with one send.
pub const MAPPED_MAX: usize = 32;

/// How a peer treats its connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionConfig {
    /// A connection that has not greeted after so long ends.
    pub greeting_timeout_ms: u64,
    /// Whether it can carry descriptors of memory.
    pub shares_memory: bool,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self { greeting_timeout_ms: 5_000, shares_memory: false }
    }
}

/// A connection of a client.
pub struct PeerConnection<T> {
    transport: T,
    config: ConnectionConfig,
    inbox: Inbox,
    outbox: Outbox,
    client: Option<ClientId>,
    generation: ConnectionGeneration,
    opened_ms: u64,
    /// The request that came last.
    last: RequestNumber,
    /// The last write that took effect and has no reply yet.
    written: Option<RequestNumber>,
    /// Requests wait in the inbox for room among the replies.
    held: bool,
    mapped: VecDeque<RegionId>,
    /// Nothing more is taken; what waits is sent, once.
    over: Option<Error>,
}

impl<T: Transport> PeerConnection<T> {
    /// A connection that was accepted at `now_ms`.
    #[must_use]
    pub fn new(transport: T, config: ConnectionConfig, now_ms: u64) -> Self {
        Self {
            transport,
            config,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            client: None,
            generation: ConnectionGeneration(0),
            opened_ms: now_ms,
            last: RequestNumber(0),
            written: None,
            held: false,
            mapped: VecDeque::new(),
            over: None,
        }
    }

    /// Receives, carries out and sends. Call it when the transport may move, after each call of the
    /// peer that may bring notices, and from time to time.
    pub fn progress<S: Supply>(&mut self, peer: &mut Peer<S>, now_ms: u64) {
        self.receive(peer, now_ms);
        self.flush();
    }

    /// Receives once and carries out what came. Returns whether anything did.
    pub fn receive<S: Supply>(&mut self, peer: &mut Peer<S>, now_ms: u64) -> bool {
        if self.over.is_some() {
            return false;
        }
        let moved = self.try_receive(peer, now_ms);
        self.tell_written();
        self.tell_notices(peer);
        moved.unwrap_or_else(|error| {
            self.end(peer, error);
            true
        })
    }

    /// The next region whose descriptors go with what is sent next: hand them to the transport
    /// before [`Self::flush`].
    pub fn poll_mapped(&mut self) -> Option<RegionId> {
        self.mapped.pop_front()
    }

    /// Sends once.
    pub fn flush(&mut self) {
        if let Err(error) = self.outbox.flush(&mut self.transport) {
            self.over.get_or_insert(error);
        }
    }

    /// The driver ends the connection.
    pub fn end<S: Supply>(&mut self, peer: &mut Peer<S>, error: Error) {
        if let Some(client) = self.client.take() {
            peer.leave(client, self.generation);
        }
        self.over.get_or_insert(error);
    }

    /// Whether it is over and can be dropped, after [`Self::end`].
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// Why it is over.
    #[must_use]
    pub const fn error(&self) -> Option<&Error> {
        self.over.as_ref()
    }

    /// Whether it greeted.
    #[must_use]
    pub const fn is_greeted(&self) -> bool {
        self.client.is_some()
    }

    /// Whether bytes wait for the transport, or requests for these bytes to leave.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.outbox.waiting() > 0 || self.held
    }

    /// Whether requests that arrived wait for another call of [`Self::receive`] alone.
    #[must_use]
    pub fn can_go_on(&self) -> bool {
        self.held && self.outbox.waiting() < REPLIES_WAITING_MAX && self.mapped.is_empty()
    }

    /// The transport.
    pub const fn transport(&self) -> &T {
        &self.transport
    }

    /// The transport.
    pub const fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Bytes received and sent so far.
    #[must_use]
    pub const fn bytes_moved(&self) -> (u64, u64) {
        (self.inbox.received(), self.outbox.sent())
    }

    fn try_receive<S: Supply>(&mut self, peer: &mut Peer<S>, now_ms: u64) -> Result<bool> {
        if let Some(client) = self.client
            && !peer.is_current(client, self.generation)
        {
            return Err(Error::unavailable(format!("client {client} has a newer connection")));
        }
        // The request that was held back goes first: its room is the room for more.
        if self.held {
            self.carry_out(peer)?;
            if self.held {
                return Ok(false);
            }
        }
        match self.inbox.fill(&mut self.transport)? {
            Some(0) => return Err(Error::unavailable("the client closed the connection")),
            Some(_) => {
                self.carry_out(peer)?;
                return Ok(true);
            }
            None => {}
        }
        let waited_ms = now_ms.saturating_sub(self.opened_ms);
        if self.client.is_none() && waited_ms > self.config.greeting_timeout_ms {
            return Err(Error::unavailable(format!(
                "no greeting for {waited_ms} ms, the limit is {}",
                self.config.greeting_timeout_ms
            )));
        }
        Ok(false)
    }

    fn carry_out<S: Supply>(&mut self, peer: &mut Peer<S>) -> Result<()> {
        loop {
            self.held =
                self.outbox.waiting() >= REPLIES_WAITING_MAX || self.mapped.len() >= MAPPED_MAX;
            if self.held {
                return Ok(());
            }
            let most = if self.client.is_some() { BODY_LEN_MAX } else { GREETING_LEN_MAX };
            let Some((header, body)) = self.inbox.next_frame(most)? else { return Ok(()) };
            if header.number.0 != self.last.0 + 1 {
                return Err(Error::corruption(format!(
                    "memory request {}: the one before was {}",
                    header.number, self.last
                )));
            }
            let request = Request::decode(header.kind, self.inbox.body(body))?;
            self.last = header.number;
            let Some(client) = self.client else {
                let Request::Hello { client, token } = request else {
                    return Err(Error::invalid("memory request: a connection begins with Hello"));
                };
                let reply = peer.greet(client, header.generation, token);
                self.generation = header.generation;
                let taken = matches!(reply, Reply::Welcome { .. });
                self.client = taken.then_some(client);
                reply.encode(self.outbox.bytes_mut(), self.generation, self.last);
                if taken {
                    continue;
                }
                return Err(Error::invalid(format!("client {client}: its greeting was refused")));
            };
            // Bytes of another connection are none of this one's.
            if header.generation != self.generation {
                return Err(Error::corruption(format!(
                    "memory request {}: of connection {}, this one is {}",
                    header.number, header.generation, self.generation
                )));
            }
            let is_admitted =
                |owner: Option<&str>| owner.is_none_or(|it| self.transport.admits(it).is_ok());
            let mut refuse =
                |reason| Reply::Refused(peer.refuse(&request, Refusal::new(reason, 0, 0)));
            let reply = match request {
                _ if !is_admitted(request.owner()) => refuse(RefusalReason::OtherCertificate),
                Request::Map { .. } if !self.config.shares_memory => {
                    refuse(RefusalReason::NotShared)
                }
                _ => peer.handle(client, &request),
            };
            if matches!(reply, Reply::Written) {
                self.written = Some(header.number);
                continue;
            }
            if let (Reply::Mapped { .. }, Request::Map { region, .. }) = (&reply, &request) {
                self.mapped.push_back(*region);
            }
            let number = header.number;
            self.tell_written();
            reply.encode(self.outbox.bytes_mut(), self.generation, number);
        }
    }

    /// One reply for all writes since the last reply.
    fn tell_written(&mut self) {
        if let Some(number) = self.written.take() {
            Reply::Written.encode(self.outbox.bytes_mut(), self.generation, number);
        }
    }

    fn tell_notices<S: Supply>(&mut self, peer: &mut Peer<S>) {
        let Some(client) = self.client else { return };
        while let Some(notice) = peer.poll_notice(client) {
            let mut tell = |notice: Notice| {
                let out = self.outbox.bytes_mut();
                Reply::Notice(notice).encode(out, self.generation, RequestNumber(0));
            };
            match notice {
                Notice::Revoked(regions) => regions
                    .chunks(codec::NOTICE_REGIONS_MAX)
                    .for_each(|some| tell(Notice::Revoked(some.to_vec()))),
                notice @ Notice::Draining => tell(notice),
            }
        }
    }
}
