//! Where the doors listen.

use gabion_base::{Error, ErrorKind, Result};
use mio::net::TcpListener;
use std::io;
use std::net::SocketAddr;

/// Connections that may wait to be accepted at the door for clients, as many as in Redis. With fewer, clients that connect
/// faster than the loop comes to it lose packets, and the system makes each wait for a second.
const BACKLOG: u32 = 511;
/// What the system allows at most.
const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";

/// A door of a group alone, besides a common one.
pub(crate) struct GroupDoor {
    pub(crate) listener: TcpListener,
    pub(crate) address: SocketAddr,
}

impl GroupDoor {
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let listener = listen_to_clients(address)?;
        let address = listener.local_addr().map_err(failed(address, "door of the group"))?;
        Ok(Self { listener, address })
    }
}

/// The door for clients. What it accepts sends at once what it is given.
pub(crate) fn listen_to_clients(address: SocketAddr) -> Result<TcpListener> {
    let what = "door for clients";
    let door = listen(address, what)?;
    let refused = |error| failed(address, what)(io::Error::from(error));
    // The library listens with a queue of its own choice; listening again changes it.
    rustix::net::listen(&door, BACKLOG as i32).map_err(refused)?;
    // Accepted connections have what the listener has.
    rustix::net::sockopt::set_tcp_nodelay(&door, true).map_err(refused)?;
    if let Some(remark) = remark(&std::fs::read_to_string(SOMAXCONN).unwrap_or_default()) {
        note!("{what}: {remark}");
    }
    Ok(door)
}

/// A door for members, who are few.
pub(crate) fn listen(address: SocketAddr, what: &str) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(failed(address, what))
}

fn failed(address: SocketAddr, what: &str) -> impl FnOnce(io::Error) -> Error {
    let text = format!("{what}: cannot listen on {address}");
    move |error| Error::with_source(ErrorKind::Io, text, error)
}

/// What is to be said where the system allows less, by the text of its limit.
fn remark(somaxconn: &str) -> Option<String> {
    let most: u32 = somaxconn.trim().parse().ok()?;
    (most < BACKLOG).then(|| {
        format!(
            "{most} connections may wait to be accepted and not {BACKLOG}: {SOMAXCONN} says so; \
             more that come at once are made to wait by the system"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::time::Duration;

    #[test]
    fn a_shorter_queue_than_wanted_is_told() {
        let said = "128 connections may wait to be accepted and not 511: /proc/sys/net/core/somaxconn \
                    says so; more that come at once are made to wait by the system";
        assert_eq!(remark("128\n").as_deref(), Some(said));
        assert_eq!([remark("511\n"), remark("4096\n"), remark("")], [None, None, None]);
    }

    /// The kernel takes one connection more than the queue is long, and makes no further one before one is accepted.
    #[test]
    fn as_many_connections_are_made_before_any_is_accepted() {
        let door = listen_to_clients("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = door.local_addr().unwrap();
        let most = std::fs::read_to_string(SOMAXCONN).unwrap().trim().parse().unwrap();
        // Those that wait longer would wait until somebody accepts.
        let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(9)).unwrap();
        let _made: Vec<_> = (0..=BACKLOG.min(most)).map(|_| connect()).collect();
        let (accepted, _) = door.accept().unwrap();
        assert!(accepted.nodelay().unwrap());
    }
}
