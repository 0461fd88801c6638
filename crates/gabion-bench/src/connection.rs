//! One connection of a client: requests out in batches, replies in, in the same order.

use crate::keys::key;
use crate::workload::{Kind, Op};
use bytes::BytesMut;
use gabion_base::number::put_decimal;
use gabion_base::{Error, ErrorKind, Result};
use gabion_resp::{Reply, ReplyParser};
use gabion_workload::Values;
use mio::net::TcpStream;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// A connection and its requests under way.
pub(crate) struct Connection {
    pub(crate) address: SocketAddr,
    pub(crate) stream: TcpStream,
    out: Vec<u8>,
    /// Bytes of `out` that the socket has taken.
    out_taken: usize,
    input: BytesMut,
    parser: ReplyParser,
    /// Requests without a reply, oldest first.
    pending: VecDeque<Op>,
    /// How many of the youngest of them have not been handed to the socket.
    unsent: usize,
}

impl Connection {
    /// Connects, and waits until that is done.
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let failed =
            |error| Error::with_source(ErrorKind::Io, format!("{address}: no connection"), error);
        let stream = std::net::TcpStream::connect_timeout(&address, CONNECT_MAX).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            address,
            stream: TcpStream::from_std(stream),
            out: Vec::new(),
            out_taken: 0,
            input: BytesMut::new(),
            parser: ReplyParser::new(),
            pending: VecDeque::new(),
            unsent: 0,
        })
    }

    /// Adds a request to the next batch.
    pub(crate) fn push(&mut self, op: Op, values: &Values) {
        let key = key(op.record);
        match op.kind {
            Kind::Scan => {
                self.out.extend_from_slice(b"*5\r\n$5\r\nRANGE\r\n$23\r\n");
                self.out.extend_from_slice(&key);
                let digits = 1 + i64::from(op.count >= 10) + i64::from(op.count >= 100);
                self.out.extend_from_slice(b"\r\n$1\r\n+\r\n$5\r\nLIMIT\r\n$");
                put_decimal(&mut self.out, digits);
                self.out.extend_from_slice(b"\r\n");
                put_decimal(&mut self.out, i64::from(op.count));
            }
            _ if op.is_read() => {
                self.out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$23\r\n");
                self.out.extend_from_slice(&key);
            }
            _ => {
                self.out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$23\r\n");
                self.out.extend_from_slice(&key);
                self.out.extend_from_slice(b"\r\n$");
                put_decimal(&mut self.out, values.len_of(op.record) as i64);
                self.out.extend_from_slice(b"\r\n");
                values.put(op.record, op.version, &mut self.out);
            }
        }
        self.out.extend_from_slice(b"\r\n");
        self.pending.push_back(op);
        self.unsent += 1;
    }

    /// Hands to the socket as much as it takes.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.unsent > 0 {
            let now = Instant::now();
            for op in self.pending.iter_mut().rev().take(self.unsent) {
                op.sent.get_or_insert(now);
            }
            self.unsent = 0;
        }
        while self.out_taken < self.out.len() {
            match self.stream.write(&self.out[self.out_taken..]) {
                Ok(0) => return Err(self.closed()),
                Ok(len) => self.out_taken += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed("a write", error)),
            }
        }
        self.out.clear();
        self.out_taken = 0;
        Ok(())
    }

    /// Takes all that the socket has, by way of `scratch`.
    pub(crate) fn receive(&mut self, scratch: &mut [u8]) -> Result<()> {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return Err(self.closed()),
                Ok(len) => {
                    self.input.extend_from_slice(&scratch[..len]);
                    // A short read has emptied the socket (epoll(7)); later bytes are announced.
                    if len < scratch.len() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed("a read", error)),
            }
        }
    }

    /// The next request that was answered, with its reply.
    pub(crate) fn next_reply(&mut self) -> Result<Option<(Op, Reply)>> {
        let reply = self.parser.parse(&mut self.input);
        let reply = reply.map_err(|e| Error::from(e).within(format!("{}", self.address)))?;
        let Some(reply) = reply else { return Ok(None) };
        match self.pending.pop_front() {
            Some(op) => Ok(Some((op, reply))),
            None => Err(Error::invalid(format!(
                "{}: a reply that no request asked for: {reply:?}",
                self.address
            ))),
        }
    }

    fn closed(&self) -> Error {
        Error::io(format!(
            "{}: closed the connection with {} requests under way",
            self.address,
            self.pending.len()
        ))
    }

    fn failed(&self, what: &str, error: io::Error) -> Error {
        Error::with_source(ErrorKind::Io, format!("{}: {what} failed", self.address), error)
    }
}
