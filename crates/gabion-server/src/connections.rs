//! How many connections there may be, and what is done to them without their asking: CLIENT KILL,
//! the option `timeout`, keepalive.

use crate::client::Client;
use crate::service::Service;
use mio::net::TcpStream;
use rustix::net::sockopt;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Probes without an answer after which a connection is over.
const PROBES: u32 = 3;

/// Has the other end asked whether it lives when nothing came of it for so many seconds; with 0 it is not.
pub(crate) fn keep_alive(stream: &TcpStream, seconds: u64) {
    if seconds == 0 {
        return;
    }
    // As Redis, which takes it well when the system does not: the option is a help, no promise.
    let between = Duration::from_secs((seconds / u64::from(PROBES)).max(1));
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(seconds));
    let _ = sockopt::set_tcp_keepintvl(stream, between);
    let _ = sockopt::set_tcp_keepcnt(stream, PROBES);
}

/// Has a connection end once nothing that was sent on it arrives for so long, and the other end
/// asked now and then whether it is there.
pub(crate) fn end_when_cut(stream: &TcpStream, after_ms: u32) {
    keep_alive(stream, 1);
    // A system that has no such limit ends it later, by its own.
    let _ = sockopt::set_tcp_user_timeout(stream, after_ms);
}

/// The connections of clients at all doors of the process, and how many there may be: `maxclients`.
pub(crate) struct Seats {
    taken: Cell<usize>,
    most: Cell<usize>,
}

impl Seats {
    pub(crate) fn new(most: usize) -> Rc<Self> {
        Rc::new(Self { taken: Cell::new(0), most: Cell::new(most) })
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.get()
    }

    pub(crate) fn most(&self) -> usize {
        self.most.get()
    }

    /// Those that are there stay.
    pub(crate) fn set_most(&self, most: usize) {
        self.most.set(most);
    }

    pub(crate) fn take(self: &Rc<Self>) -> Seat {
        self.taken.set(self.taken.get() + 1);
        Seat(self.clone())
    }
}

/// A connection's, free again when it is dropped.
pub(crate) struct Seat(Rc<Seats>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.taken.set(self.0.taken.get() - 1);
    }
}

impl Service {
    /// Closes the connections that CLIENT KILL named: what they asked for is given up like that of any whose client is
    /// gone.
    pub(crate) fn close_killed(&mut self) {
        let killed = self.commands.take_killed();
        if killed.is_empty() {
            return;
        }
        // One pass for all: CLIENT KILL may name every connection.
        let killed: BTreeMap<u64, bool> =
            killed.into_iter().map(|killed| (killed.id, killed.after_replies)).collect();
        for token in 0..self.clients.len() {
            let serial = self.clients[token].as_ref().map(|client| client.serial);
            let Some(&after_replies) = serial.and_then(|serial| killed.get(&serial)) else {
                continue;
            };
            if !after_replies {
                self.close_client(token);
            } else if let Some(mut client) = self.clients[token].take() {
                client.is_closing = true;
                self.mark(token, &mut client);
                self.put_back(token, client, true);
            }
        }
    }

    /// Closes the connections that have sent and taken nothing for as long as the option `timeout` says; called once a second.
    pub(crate) fn close_idle(&mut self) {
        let timeout_us = self.host.door.get().timeout_s * 1_000_000;
        if timeout_us == 0 {
            return;
        }
        let now_us = self.host.now_us.get();
        for token in 0..self.clients.len() {
            let is_idle = |client: &Client| {
                client.within.is_none()
                    && now_us.saturating_sub(client.session.active_us()) > timeout_us
                    && client.is_done()
            };
            if self.clients[token].as_ref().is_some_and(|client| is_idle(client)) {
                self.close_client(token);
            }
        }
    }

    fn close_client(&mut self, token: usize) {
        if let Some(client) = self.clients.get_mut(token).and_then(Option::take) {
            self.put_back(token, client, false);
        }
    }
}
