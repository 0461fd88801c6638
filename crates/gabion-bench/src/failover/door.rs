//! A client's connections to the doors of a group, and what became of a request.

use bytes::BytesMut;
use gabion_resp::{Reply, ReplyParser};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The pause after a failure that came at once, so that clients do not take the processor from the
/// group.
const PAUSE: Duration = Duration::from_millis(1);

/// Why a request has no answer that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Failure {
    /// Nobody took the connection: nothing was sent.
    NoConnection,
    /// The connection ended before the reply.
    Ended,
    /// No reply came in time.
    TimedOut,
    /// `UNKNOWN`: it may have been done or not.
    Unknown,
    /// `TRYAGAIN`: not done.
    TryAgain,
    /// Another error: not done.
    Refused,
}

impl Failure {
    /// Its name in tables and JSON.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::NoConnection => "no connection",
            Self::Ended => "connection ended",
            Self::TimedOut => "timed out",
            Self::Unknown => "UNKNOWN",
            Self::TryAgain => "TRYAGAIN",
            Self::Refused => "other error",
        }
    }

    /// Whether a write may have been made.
    pub(super) const fn may_be_made(self) -> bool {
        matches!(self, Self::Ended | Self::TimedOut | Self::Unknown)
    }

    /// The meaning of an error reply.
    fn of(error: &[u8]) -> Self {
        if error.starts_with(b"UNKNOWN") {
            Self::Unknown
        } else if error.starts_with(b"TRYAGAIN") {
            Self::TryAgain
        } else {
            Self::Refused
        }
    }
}

/// One connection.
pub(super) struct Door {
    stream: TcpStream,
    parser: ReplyParser,
    buffer: BytesMut,
}

impl Door {
    pub(super) fn open(address: SocketAddr, patience: Duration) -> Result<Self, Failure> {
        let open = || {
            let stream = TcpStream::connect_timeout(&address, patience)?;
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(patience))?;
            io::Result::Ok(stream)
        };
        let stream = open().map_err(|_| Failure::NoConnection)?;
        Ok(Self { stream, parser: ReplyParser::new(), buffer: BytesMut::new() })
    }

    /// Sends requests, one or several.
    pub(super) fn send(&mut self, requests: &[u8]) -> Result<(), Failure> {
        self.stream.write_all(requests).map_err(|error| failure(&error))
    }

    /// The next reply.
    pub(super) fn receive(&mut self, patience: Duration) -> Result<Reply, Failure> {
        let due = Instant::now() + patience;
        let mut chunk = [0; 16 * 1024];
        loop {
            if let Some(reply) = self.parser.parse(&mut self.buffer).map_err(|_| Failure::Ended)? {
                return Ok(reply);
            }
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::TimedOut);
            }
            let read = self.stream.set_read_timeout(Some(left));
            match read.and_then(|()| self.stream.read(&mut chunk)) {
                Ok(0) => return Err(Failure::Ended),
                Ok(len) => self.buffer.extend_from_slice(&chunk[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failure(&error)),
            }
        }
    }

    pub(super) fn call(&mut self, request: &[u8], patience: Duration) -> Result<Reply, Failure> {
        self.send(request)?;
        self.receive(patience)
    }
}

fn failure(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Failure::TimedOut,
        _ => Failure::Ended,
    }
}

/// A client's way to all doors: it stays at one until that fails, and then takes the next.
pub(super) struct Doors {
    addresses: Vec<SocketAddr>,
    open: Vec<Option<Door>>,
    at: usize,
    patience: Duration,
}

impl Doors {
    pub(super) fn new(addresses: &[SocketAddr], at: usize, patience: Duration) -> Self {
        let open = addresses.iter().map(|_| None).collect();
        Self { addresses: addresses.to_vec(), open, at: at % addresses.len(), patience }
    }

    /// The index of the door that the next request goes to.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Begins anew at a door, with new connections.
    pub(super) fn restart(&mut self, at: usize) {
        self.open.iter_mut().for_each(|door| *door = None);
        self.at = at % self.addresses.len();
    }

    /// Sends a request to the current door. After a failure the next door is the current one.
    pub(super) fn call(&mut self, request: &[u8]) -> Result<Reply, Failure> {
        let result = self.try_call(request);
        let Err(failure) = result else { return result };
        if failure.may_be_made() && failure != Failure::Unknown {
            self.open[self.at] = None;
        }
        self.at = (self.at + 1) % self.addresses.len();
        if failure != Failure::TimedOut {
            std::thread::sleep(PAUSE);
        }
        result
    }

    fn try_call(&mut self, request: &[u8]) -> Result<Reply, Failure> {
        let door = match &mut self.open[self.at] {
            Some(door) => door,
            none => none.insert(Door::open(self.addresses[self.at], self.patience)?),
        };
        match door.call(request, self.patience)? {
            Reply::Error(error) => Err(Failure::of(&error)),
            reply => Ok(reply),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const PATIENCE: Duration = Duration::from_millis(200);

    /// Answers each request of each connection with the same bytes; with none it ends the
    /// connection.
    fn answering(reply: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut chunk = [0; 1024];
                while stream.read(&mut chunk).is_ok_and(|len| len > 0) && !reply.is_empty() {
                    stream.write_all(reply).unwrap();
                }
            }
        });
        address
    }

    #[test]
    fn a_client_whose_door_fails_goes_to_the_next_one_and_stays_there() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [
            closed,
            hanging.local_addr().unwrap(),
            answering(b""),
            answering(b"-TRYAGAIN the group is starting\r\n"),
            answering(b"-UNKNOWN a replica was lost\r\n"),
            answering(b"-READONLY another is the head\r\n"),
            answering(b"+OK\r\n"),
        ];
        let mut doors = Doors::new(&addresses, 0, PATIENCE);
        let request = b"*1\r\n$4\r\nPING\r\n";
        let failures: Vec<Failure> = (0..6).map(|_| doors.call(request).unwrap_err()).collect();
        let expected = [
            Failure::NoConnection,
            Failure::TimedOut,
            Failure::Ended,
            Failure::TryAgain,
            Failure::Unknown,
            Failure::Refused,
        ];
        assert_eq!(failures, expected);
        for _ in 0..3 {
            assert_eq!(doors.call(request), Ok(Reply::Simple("OK".into())));
            assert_eq!(doors.at(), 6);
        }
    }

    #[test]
    fn a_write_that_was_not_sent_or_was_refused_is_told_from_one_that_may_be_made() {
        let all = [
            Failure::NoConnection,
            Failure::Ended,
            Failure::TimedOut,
            Failure::Unknown,
            Failure::TryAgain,
            Failure::Refused,
        ];
        let made: Vec<&str> =
            all.into_iter().filter(|f| f.may_be_made()).map(Failure::as_str).collect();
        assert_eq!(made, ["connection ended", "timed out", "UNKNOWN"]);
    }
}
