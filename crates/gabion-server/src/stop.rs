//! A clean stop: once nobody is served any more, the log is written out, and the pool told so.

use crate::server::{SIGNAL, Server};
use crate::service::Service;
use gabion_node::StopState;
use mio::Events;
use std::time::{Duration, Instant};

/// How often the device is looked at, where nothing says that it has a result.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A signal that comes so soon after the first is no second wish: some send it to a process and to
/// its group.
const SAME_WISH: Duration = Duration::from_millis(300);
/// How often it is said how much is left.
const SAY_EVERY_MS: u64 = 2_000;

/// Makes everything durable in the pools, so that the next start needs no ring. Takes as long as
/// the devices take for what the rings alone hold. A second signal ends it at once, as a kill
/// would.
pub(crate) fn stop(server: &mut Server) {
    let mut events = Events::with_capacity(64);
    let begun = Instant::now();
    let mut left: Vec<_> = server.services.iter_mut().filter_map(Service::begin_stop).collect();
    while !left.is_empty() {
        left.retain_mut(|(place, said_ms)| !server.services[*place].go_on_stopping(said_ms));
        if left.is_empty() {
            return;
        }
        // Where it cannot wait it looks again at once.
        let _ = server.poll.poll(&mut events, Some(LOOK_EVERY));
        let is_told = events.iter().any(|event| event.token() == SIGNAL) && server.is_signalled();
        if is_told && begun.elapsed() > SAME_WISH {
            return note!("told again: stopped without the log written out, as after a kill");
        }
    }
}

impl Service {
    /// Begins to write the log out. Returns its place, and when something was said last, where
    /// there is anything to wait for.
    fn begin_stop(&mut self) -> Option<(usize, u64)> {
        if !self.is_open() {
            note!("stopped while the replica was opened again, as after a kill");
            return None;
        }
        self.replica.node.borrow_mut().stop();
        Some((self.place, self.clock.now_ms()))
    }

    /// Takes what came in. Returns whether it has come to its end, which is said then.
    fn go_on_stopping(&mut self, said_ms: &mut u64) -> bool {
        while let Ok(event) = self.replica.inbox.try_recv() {
            self.take_event(event);
        }
        self.replica.medium.drive();
        self.replica.executor.run_ready();
        self.carry_on();
        self.now_ms = self.clock.now_ms();
        if let Some(how) = self.how_stopped() {
            note!("{how}");
            return true;
        }
        if self.now_ms >= *said_ms + SAY_EVERY_MS {
            *said_ms = self.now_ms;
            if let StopState::Draining(left) = self.replica.node.borrow().stop_state() {
                note!("stopping: {left} bytes of log are still to be written");
            }
        }
        false
    }

    /// What is to be said of it once it has come to its end.
    fn how_stopped(&mut self) -> Option<String> {
        let node = self.replica.node.borrow();
        match (node.stop_state(), &self.exit) {
            (StopState::Stopped, _) => {
                Some(format!("stopped cleanly: the log is flushed up to {}", node.log_end()))
            }
            (StopState::Stuck(why), _) => Some(format!(
                "stopped, but the log is not written out: {why}; the next start needs the ring"
            )),
            (_, Some(_)) => {
                Some("stopped without the log written out, as the replica failed".into())
            }
            _ => None,
        }
    }
}
