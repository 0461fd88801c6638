//! The loop: one thread, one turn after the other, for all services of the process.
//!
//! ```text
//!   Server: poll, waker, signals
//!     ├─ Service: doors, clients, members, queues ─ Replica: files, node, threads, turns
//!     └─ Service … (a process of the command line has one)
//!
//!   wait ─► sockets, devices, threads, signals ─► by token, whose they are ─► a turn of each
//! ```
//!
//! Services share the thread and nothing else: a group has its own doors, clients, members, locks
//! of keys and clock. A token names its service in its highest bits; what threads tell comes in the
//! inbox of their replica.

use crate::service::Service;
use crate::{ExitReason, stop};
use gabion_base::{Error, ErrorKind, Result};
use mio::net::UnixStream;
use mio::{Events, Poll, Token};
use std::io::{self, Read};
use std::time::Duration;

/// Bits of a token that say which service it is of.
const SERVICE_BITS: u32 = 8;
const LOCAL_BITS: u32 = usize::BITS - SERVICE_BITS;
/// Services of a process at most; the number after them is the loop's own.
pub(crate) const SERVICES_MAX: usize = (1 << SERVICE_BITS) - 1;

pub(crate) const WAKER: Token = token(SERVICES_MAX, 0);
pub(crate) const SIGNAL: Token = token(SERVICES_MAX, 1);

// What follows is local to a service.
pub(crate) const RESP: usize = 0;
pub(crate) const PEER_DOOR: usize = 1;
pub(crate) const MEDIUM: usize = 2;
pub(crate) const RESP_TLS: usize = 3;
pub(crate) const RESP_GROUP: usize = 4;
pub(crate) const RESP_GROUP_TLS: usize = 5;
/// Tokens of controllers.
pub(crate) const CONTROLS: usize = 6;
/// Tokens of members, by their place in the list.
pub(crate) const PEERS: usize = 16;
/// Tokens of those who have not said who they are.
pub(crate) const STRANGERS: usize = 64;
/// Most of them at a time.
pub(crate) const STRANGERS_MAX: usize = 64;
/// Tokens of clients.
pub(crate) const CLIENTS: usize = STRANGERS + STRANGERS_MAX;

/// Longest sleep: time passes for the nodes at least as often.
pub(crate) const TICK_MS: u64 = 20;

/// The token of something that is a service's.
pub(crate) const fn token(service: usize, local: usize) -> Token {
    Token(service << LOCAL_BITS | local)
}

/// Whose a token is, and what it is there.
const fn split(token: Token) -> (usize, usize) {
    (token.0 >> LOCAL_BITS, token.0 & ((1 << LOCAL_BITS) - 1))
}

/// Everything that the thread `gabion-loop` owns.
pub(crate) struct Server {
    pub(crate) poll: Poll,
    pub(crate) signals: UnixStream,
    /// Each at the place that its tokens name.
    pub(crate) services: Vec<Service>,
}

impl Server {
    /// Runs until a signal or a failure.
    pub(crate) fn run(mut self) -> Result<ExitReason> {
        let mut events = Events::with_capacity(1024);
        loop {
            if let Some(reason) = self.turn(&mut events)? {
                self.services.iter_mut().for_each(Service::say_goodbye);
                if matches!(reason, ExitReason::Signal) {
                    stop::stop(&mut self);
                }
                return Ok(reason);
            }
        }
    }

    /// Waits, and lets each service take a turn. Returns why the process is to end.
    ///
    /// # Errors
    /// I/O when it cannot wait.
    pub(crate) fn turn(&mut self, events: &mut Events) -> Result<Option<ExitReason>> {
        let waits = self.services.iter().map(Service::wait);
        let timeout = waits.min().unwrap_or(Duration::from_millis(TICK_MS));
        match self.poll.poll(events, Some(timeout)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => events.clear(),
            Err(error) => {
                return Err(Error::with_source(ErrorKind::Io, "the loop cannot wait", error));
            }
        }
        self.services.iter_mut().for_each(Service::begin_turn);
        let mut is_signalled = false;
        for event in events.iter() {
            match (event.token(), split(event.token())) {
                (WAKER, _) => {}
                (SIGNAL, _) => is_signalled |= self.is_signalled(),
                (_, (service, local)) => {
                    if let Some(service) = self.services.get_mut(service) {
                        service.handle_event(local, event);
                    }
                }
            }
        }
        for service in &mut self.services {
            service.take_turn();
            service.answer_scrapes();
        }
        self.services.iter_mut().for_each(Service::pass_on);
        let failed = self.services.iter_mut().find_map(|service| service.exit.take());
        Ok(failed.or(is_signalled.then_some(ExitReason::Signal)))
    }

    /// Whether a signal came.
    pub(crate) fn is_signalled(&mut self) -> bool {
        matches!(self.signals.read(&mut [0]), Ok(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_service_and_the_loop_has_its_own() {
        for service in [0, 1, SERVICES_MAX - 1] {
            for local in [RESP, PEERS, CLIENTS, CLIENTS + 1_000_000] {
                assert_eq!(split(token(service, local)), (service, local));
            }
        }
        assert_ne!(WAKER, SIGNAL);
        assert!([WAKER, SIGNAL].iter().all(|own| split(*own).0 == SERVICES_MAX));
    }
}
