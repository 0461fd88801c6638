//! Numbers of a peer's thread for its operator: the peer's, and those of its connections.

use super::link::Socket;
use gabion_media::remote::peer::Tally;
use gabion_media::remote::{PeerConnection, Usage};
use std::time::Duration;

/// Connections of one kind of socket since the start, and what went over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections now, those that have not greeted yet included.
    pub open: u64,
    /// Connections that were taken.
    pub accepted: u64,
    /// Connections that were closed at once, as there were too many or the system refused.
    pub rejected: u64,
    /// Bytes from clients.
    pub received: u64,
    /// Bytes to clients.
    pub sent: u64,
}

impl Traffic {
    /// A connection is over.
    fn end(&mut self, connection: &PeerConnection<Socket>) {
        let (received, sent) = connection.bytes_moved();
        self.received += received;
        self.sent += sent;
    }
}

/// Traffic by the kind of socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sockets {
    /// Over TCP.
    pub tcp: Traffic,
    /// Over the Unix socket.
    pub unix: Traffic,
}

impl Sockets {
    pub(super) const fn of(&mut self, is_tcp: bool) -> &mut Traffic {
        match is_tcp {
            true => &mut self.tcp,
            false => &mut self.unix,
        }
    }

    fn of_socket(&mut self, socket: &Socket) -> &mut Traffic {
        self.of(matches!(socket, Socket::Tcp(_)))
    }

    /// A connection is over: its bytes stay counted.
    pub(super) fn end(&mut self, connection: &PeerConnection<Socket>) {
        self.of_socket(connection.transport()).end(connection);
    }

    /// The same with connections that are open.
    pub(super) fn with<'a>(
        mut self,
        open: impl Iterator<Item = &'a PeerConnection<Socket>>,
    ) -> Self {
        for connection in open {
            let traffic = self.of_socket(connection.transport());
            traffic.open += 1;
            traffic.end(connection);
        }
        self
    }
}

/// All of them, of one moment.
#[derive(Clone, Debug)]
pub struct PeerFigures {
    /// The peer's holdings and work, as clients are told.
    pub usage: Usage,
    /// Further counts of the peer.
    pub tally: Tally,
    /// Regions that other processes have mapped.
    pub mapped: u64,
    /// Its connections.
    pub sockets: Sockets,
    /// Time that the thread spent on making memory ready ahead of need.
    pub readying: Duration,
}
