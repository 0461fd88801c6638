//! One connection at the client.
//!
//! [`ClientConnection::submit`] encodes a request at once, or says that too many are outstanding.
//! [`ClientConnection::progress`] sends and receives; [`ClientConnection::poll_completed`] and
//! [`ClientConnection::poll_notice`] give what came. Requests complete in the order in which they
//! were submitted. When the connection breaks, each outstanding request may or may not have taken
//! effect; none completes.

use super::frame::BODY_LEN_MAX;
use super::message::{
    ClientId, ConnectionGeneration, Notice, Parts, Reply, Request, RequestNumber,
};
use super::stream::{Inbox, Outbox};
use crate::transport::Transport;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::{Error, Result};

/// Names and limits of a client's connections.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The client: one process of an application.
    pub client: ClientId,
    /// Greater than that of any earlier connection of the client to this peer.
    pub generation: ConnectionGeneration,
    /// The token that the peer asks for; empty for none.
    pub token: Vec<u8>,
    /// Most requests outstanding.
    pub outstanding_max: usize,
    /// Most bytes of requests outstanding; one request is always possible.
    pub outstanding_bytes_max: usize,
    /// A request without a reply for so long breaks the connection.
    pub reply_timeout_ms: u64,
}

impl ClientConfig {
    /// 1,024 requests or 4 MiB outstanding, 5 s for a reply.
    #[must_use]
    pub const fn new(client: ClientId, generation: ConnectionGeneration) -> Self {
        Self {
            client,
            generation,
            token: Vec::new(),
            outstanding_max: 1024,
            outstanding_bytes_max: 4 << 20,
            reply_timeout_ms: 5_000,
        }
    }
}

/// A request that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// As [`ClientConnection::submit`] returned it.
    pub number: RequestNumber,
    /// The reply.
    pub reply: Reply,
}

#[derive(Clone, Copy)]
struct Outstanding {
    is_write: bool,
    bytes: usize,
    submitted_ms: u64,
}

/// A connection to a peer.
pub struct ClientConnection<T> {
    transport: T,
    config: ClientConfig,
    inbox: Inbox,
    outbox: Outbox,
    /// The numbers of these follow `completed`.
    outstanding: VecDeque<Outstanding>,
    outstanding_bytes: usize,
    /// The last request that is over.
    completed: RequestNumber,
    done: VecDeque<Completed>,
    notices: VecDeque<Notice>,
    broken: Option<Error>,
}

impl<T: Transport> ClientConnection<T> {
    /// A connection whose greeting is submitted: its `Welcome` is the first to complete.
    ///
    /// # Errors
    /// Invalid input or limit exceeded for a configuration that cannot be.
    pub fn connect(transport: T, config: ClientConfig, now_ms: u64) -> Result<Self> {
        if config.outstanding_max == 0 || config.reply_timeout_ms == 0 {
            return Err(Error::invalid(format!(
                "outstanding requests ({}) and their timeout ({} ms); at least 1 is valid",
                config.outstanding_max, config.reply_timeout_ms
            )));
        }
        let mut connection = Self {
            transport,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            outstanding: VecDeque::with_capacity(config.outstanding_max.min(4096)),
            outstanding_bytes: 0,
            completed: RequestNumber(0),
            done: VecDeque::with_capacity(config.outstanding_max.min(4096)),
            notices: VecDeque::new(),
            broken: None,
            config,
        };
        let token = core::mem::take(&mut connection.config.token);
        let hello = Request::Hello { client: connection.config.client, token: &token };
        connection.submit(&hello, now_ms)?;
        connection.config.token = token;
        Ok(connection)
    }

    /// Sends a request with the next [`Self::progress`]. Nothing: too many are outstanding; the
    /// caller waits for completions.
    ///
    /// # Errors
    /// Limit exceeded or invalid input for a request that no peer takes; why the connection is
    /// broken, if it is.
    pub fn submit(&mut self, request: &Request<'_>, now_ms: u64) -> Result<Option<RequestNumber>> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        request.check()?;
        let full = self.outstanding.len() >= self.config.outstanding_max;
        let over = self.outstanding_bytes >= self.config.outstanding_bytes_max;
        if full || (over && !self.outstanding.is_empty()) {
            return Ok(None);
        }
        let number = RequestNumber(self.completed.0 + self.outstanding.len() as u64 + 1);
        let out = self.outbox.bytes_mut();
        let before = out.len();
        request.encode(out, self.config.generation, number);
        let bytes = out.len() - before;
        let is_write = matches!(request, Request::Write { .. });
        self.outstanding_bytes += bytes;
        self.outstanding.push_back(Outstanding { is_write, bytes, submitted_ms: now_ms });
        Ok(Some(number))
    }

    /// Sends once and receives once.
    ///
    /// # Errors
    /// Why the connection is broken: the peer's or the network's doing, or no reply in time.
    pub fn progress(&mut self, now_ms: u64) -> Result<()> {
        if self.broken.is_none()
            && let Err(error) = self.try_progress(now_ms)
        {
            self.broken = Some(error);
        }
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Sends what was submitted, once, without looking for replies.
    ///
    /// # Errors
    /// As [`Self::progress`].
    pub fn flush(&mut self) -> Result<()> {
        if self.broken.is_none()
            && let Err(error) = self.outbox.flush(&mut self.transport)
        {
            self.broken = Some(error);
        }
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// The next request that is over, in the order of submission.
    pub fn poll_completed(&mut self) -> Option<Completed> {
        self.done.pop_front()
    }

    /// The next notice that the peer sent unasked.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Requests without a reply.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Whether bytes wait for the transport.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.outbox.waiting() > 0
    }

    /// When the oldest request is late.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        let oldest = self.outstanding.front()?;
        Some(oldest.submitted_ms.saturating_add(self.config.reply_timeout_ms))
    }

    /// Why it is broken, if it is.
    #[must_use]
    pub const fn error(&self) -> Option<&Error> {
        self.broken.as_ref()
    }

    /// The transport.
    pub const fn transport(&self) -> &T {
        &self.transport
    }

    /// The transport.
    pub const fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    fn try_progress(&mut self, now_ms: u64) -> Result<()> {
        self.outbox.flush(&mut self.transport)?;
        match self.inbox.fill(&mut self.transport)? {
            Some(0) => return Err(Error::unavailable("the peer closed the connection")),
            Some(_) => self.take_frames()?,
            None => {}
        }
        // After what came was taken: a pause of this side is not the peer's silence.
        match self.deadline_ms() {
            Some(deadline_ms) if now_ms > deadline_ms => Err(Error::unavailable(format!(
                "the peer has not replied for {} ms, the limit is {}",
                now_ms - (deadline_ms - self.config.reply_timeout_ms),
                self.config.reply_timeout_ms
            ))),
            _ => Ok(()),
        }
    }

    fn take_frames(&mut self) -> Result<()> {
        while let Some((header, body)) = self.inbox.next_frame(BODY_LEN_MAX)? {
            if header.generation != self.config.generation {
                return Err(Error::corruption(format!(
                    "memory reply {}: of connection {}, this one is {}",
                    header.number, header.generation, self.config.generation
                )));
            }
            let reply = Reply::decode(header.kind, self.inbox.body(body))?;
            self.complete(header.number, reply)?;
        }
        Ok(())
    }

    fn complete(&mut self, number: RequestNumber, reply: Reply) -> Result<()> {
        if let Reply::Notice(notice) = reply {
            self.notices.push_back(notice);
            return Ok(());
        }
        let is_written = matches!(reply, Reply::Written);
        let unasked = || Error::corruption(format!("memory reply {number}: nothing asked for it"));
        if number <= self.completed {
            return Err(unasked());
        }
        while self.completed < number {
            let oldest = self.outstanding.pop_front().ok_or_else(unasked)?;
            self.completed.0 += 1;
            self.outstanding_bytes -= oldest.bytes;
            if self.completed < number || is_written {
                // Only writes are answered by a later one's reply.
                if !oldest.is_write || !is_written {
                    return Err(unasked());
                }
                self.done.push_back(Completed { number: self.completed, reply: Reply::Written });
            }
        }
        if !is_written {
            self.done.push_back(Completed { number, reply });
        }
        Ok(())
    }
}

/// A chain: a write whose parts take effect in order.
#[must_use]
pub const fn chain<'a>(
    term: gabion_base::Term,
    parts: &'a [super::message::Part<'a>],
) -> Request<'a> {
    Request::Write { term, parts: Parts::Given(parts) }
}
