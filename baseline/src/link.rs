//! A connection with a neighbour in the chain.

use gabion_base::{Error, ErrorKind, Result};
use mio::net::TcpStream;
use std::io::{self, IoSlice, Read, Write};

/// Room for input that is made at a time, in bytes.
const READ_LEN: usize = 256 << 10;
/// Bytes that a connection may bring in one turn.
const TURN_BYTES_MAX: usize = 4 << 20;

/// Bytes that were read and not used, in one piece.
#[derive(Default)]
pub(crate) struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// What is there.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The first `len` bytes were used.
    pub(crate) fn take(&mut self, len: usize) {
        self.start += len;
        assert!(self.start <= self.end, "{len} bytes were taken that are not there");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room behind what is there.
    fn room(&mut self) -> &mut [u8] {
        if self.buffer.len() - self.end < READ_LEN {
            // What is in the middle of a batch moves to the front, before more memory is taken.
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.buffer.len() - self.end < READ_LEN {
                self.buffer.resize((2 * self.buffer.len()).max(2 * READ_LEN), 0);
            }
        }
        &mut self.buffer[self.end..]
    }
}

/// A connection with a neighbour.
pub(crate) struct Link {
    pub(crate) stream: TcpStream,
    pub(crate) input: Input,
    /// Whether the other end has said who it is.
    pub(crate) is_greeted: bool,
    /// What the socket did not take.
    out: Vec<u8>,
    sent: usize,
    can_write: bool,
}

impl Link {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            input: Input::default(),
            is_greeted: false,
            out: Vec::new(),
            sent: 0,
            can_write: true,
        }
    }

    /// Sends two pieces, one behind the other; what the socket does not take is kept. Returns the bytes
    /// that it took.
    pub(crate) fn send(&mut self, first: &[u8], second: &[u8]) -> Result<usize> {
        let mut taken = 0;
        while self.can_write && self.out.is_empty() && taken < first.len() + second.len() {
            let rest = [
                IoSlice::new(&first[taken.min(first.len())..]),
                IoSlice::new(&second[taken.saturating_sub(first.len())..]),
            ];
            match self.stream.write_vectored(&rest) {
                Ok(0) => return Err(lost(io::ErrorKind::WriteZero.into())),
                Ok(count) => taken += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.can_write = false,
                Err(error) => return Err(lost(error)),
            }
        }
        self.out.extend_from_slice(&first[taken.min(first.len())..]);
        self.out.extend_from_slice(&second[taken.saturating_sub(first.len())..]);
        Ok(taken)
    }

    /// The socket may take more again. Returns the bytes that it took.
    pub(crate) fn resume(&mut self) -> Result<usize> {
        self.can_write = true;
        let mut taken = 0;
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err(lost(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    self.sent += count;
                    taken += count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.can_write = false;
                    return Ok(taken);
                }
                Err(error) => return Err(lost(error)),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(taken)
    }

    /// Reads what is there, a few MiB at most. Returns the bytes read and whether more may be there.
    pub(crate) fn read(&mut self) -> Result<(usize, bool)> {
        let mut taken = 0;
        while taken < TURN_BYTES_MAX {
            let room = self.input.room();
            let len = room.len();
            match self.stream.read(room) {
                Ok(0) => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    self.input.end += count;
                    taken += count;
                    // A short read has emptied the socket (epoll(7)). The end of the stream has an event
                    // of its own.
                    if count < len {
                        return Ok((taken, false));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok((taken, false));
                }
                Err(error) => return Err(lost(error)),
            }
        }
        Ok((taken, true))
    }
}

fn lost(error: io::Error) -> Error {
    Error::with_source(ErrorKind::Io, "a neighbour in the chain is lost", error)
}
