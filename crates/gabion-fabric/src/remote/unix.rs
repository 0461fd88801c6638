//! A non-blocking Unix socket as a [`Transport`] that carries descriptors.
//!
//! Descriptors go with the first byte of the next send, so they are here no later than the bytes
//! that were offered with it. Both ends count on their order.

use gabion_base::{Error, ErrorKind, Result};
use gabion_media::transport::Transport;
use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Most descriptors that go with one send.
pub(super) const DESCRIPTORS_MAX: usize = 64;
/// Most descriptors that arrived and were not taken.
const ARRIVED_MAX: usize = 4 * DESCRIPTORS_MAX;
/// Most buffers that one system call sends.
const PARTS_MAX: usize = 16;

/// One connection.
pub(super) struct UnixTransport {
    stream: UnixStream,
    /// Whether this end takes descriptors. The kernel drops those that come unasked.
    takes: bool,
    sending: Vec<OwnedFd>,
    arrived: VecDeque<OwnedFd>,
    is_watched: bool,
    readable: bool,
    writable: bool,
}

impl UnixTransport {
    /// Takes a connected socket.
    pub(super) fn new(stream: UnixStream, takes: bool) -> Result<Self> {
        stream.set_nonblocking(true).map_err(|e| broken("refuses an option", e))?;
        Ok(Self {
            stream,
            takes,
            sending: Vec::new(),
            arrived: VecDeque::new(),
            is_watched: false,
            readable: true,
            writable: true,
        })
    }

    pub(super) fn watch(&mut self, registry: &Registry, token: Token) -> Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry
            .register(&mut SourceFd(&self.stream.as_raw_fd()), token, interest)
            .map_err(|e| broken("cannot be watched", e))?;
        self.is_watched = true;
        Ok(())
    }

    pub(super) fn note_ready(&mut self, event: &Event) {
        let ends = event.is_read_closed() || event.is_write_closed() || event.is_error();
        self.readable |= ends || event.is_readable();
        self.writable |= ends || event.is_writable();
    }

    /// Sends these with the next bytes.
    pub(super) fn queue(&mut self, descriptors: impl IntoIterator<Item = OwnedFd>) {
        self.sending.extend(descriptors);
        assert!(self.sending.len() <= DESCRIPTORS_MAX, "descriptors of one turn are bounded");
    }

    /// Whether descriptors wait for the next send.
    pub(super) fn has_queued(&self) -> bool {
        !self.sending.is_empty()
    }

    /// The oldest descriptor that arrived.
    pub(super) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.arrived.pop_front()
    }
}

impl AsFd for UnixTransport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Transport for UnixTransport {
    fn send(&mut self, parts: &[&[u8]]) -> Result<usize> {
        if self.is_watched && !self.writable {
            return Ok(0);
        }
        let mut slices = [IoSlice::new(&[]); PARTS_MAX];
        let (mut count, mut offered) = (0, 0);
        for part in parts.iter().filter(|part| !part.is_empty()).take(PARTS_MAX) {
            slices[count] = IoSlice::new(part);
            (count, offered) = (count + 1, offered + part.len());
        }
        if count == 0 {
            return Ok(0);
        }
        let borrowed: Vec<_> = self.sending.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fits = borrowed.is_empty()
            || control.push(SendAncillaryMessage::ScmRights(borrowed.as_slice()));
        assert!(fits, "descriptors that were queued fit");
        loop {
            // A peer that is gone is an error, not a signal.
            match sendmsg(&self.stream, &slices[..count], &mut control, SendFlags::NOSIGNAL) {
                Ok(len) => {
                    self.writable = len == offered;
                    if len > 0 {
                        self.sending.clear();
                    }
                    return Ok(len);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.writable = false;
                    return Ok(0);
                }
                Err(error) => return Err(broken("sending failed", error.into())),
            }
        }
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        if self.is_watched && !self.readable {
            return Ok(None);
        }
        let room = into.len();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let control_len = if self.takes { space.len() } else { 0 };
        let mut control = RecvAncillaryBuffer::new(&mut space[..control_len]);
        let message = loop {
            let mut slices = [IoSliceMut::new(into)];
            match recvmsg(&self.stream, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) => break message,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.readable = false;
                    return Ok(None);
                }
                Err(error) => return Err(broken("receiving failed", error.into())),
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.arrived.extend(descriptors);
            }
        }
        let lost = self.takes && message.flags.contains(ReturnFlags::CTRUNC);
        if lost || self.arrived.len() > ARRIVED_MAX {
            return Err(Error::limit(format!(
                "Unix socket: more than {ARRIVED_MAX} descriptors, or {DESCRIPTORS_MAX} at once"
            )));
        }
        // Bytes with descriptors come by a call of their own: where some may come, only the
        // kernel's word tells that the socket is empty.
        self.readable = self.takes || message.bytes == room || message.bytes == 0;
        Ok(Some(message.bytes))
    }
}

fn broken(what: &str, error: std::io::Error) -> Error {
    Error::with_source(ErrorKind::Io, format!("Unix socket: {what}"), error)
}
