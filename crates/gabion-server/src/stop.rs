//! A clean stop: once nobody is served any more, the log is written out, and the pool told so.

use crate::server::{SIGNAL, Server};
use gabion_node::StopState;
use mio::Events;
use std::time::Duration;

/// How often the device is looked at, where nothing says that it has a result.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A signal that comes so soon after the first is no second wish: some send it to a process and to its group.
const SAME_WISH_MS: u64 = 300;
/// How often it is said how much is left.
const SAY_EVERY_MS: u64 = 2_000;

impl Server {
    /// Makes everything durable in the pool, so that the next start needs no ring. Takes as long as the device takes for what
    /// the ring alone holds; a second signal ends it at once, as a kill would.
    pub(crate) fn stop(&mut self) {
        self.node.borrow_mut().stop();
        let mut events = Events::with_capacity(64);
        let begun_ms = self.clock.now_ms();
        let mut said_ms = begun_ms;
        loop {
            while let Ok(event) = self.inbox.try_recv() {
                self.take_event(event);
            }
            self.medium.drive();
            self.executor.run_ready();
            self.carry_on();
            self.now_ms = self.clock.now_ms();
            if let Some(how) = self.how_stopped() {
                return note!("{how}");
            }
            if self.now_ms >= said_ms + SAY_EVERY_MS {
                said_ms = self.now_ms;
                if let StopState::Draining(left) = self.node.borrow().stop_state() {
                    note!("stopping: {left} bytes of log are still to be written");
                }
            }
            // Where it cannot wait it looks again at once.
            let _ = self.poll.poll(&mut events, Some(LOOK_EVERY));
            let is_told = events.iter().any(|event| event.token() == SIGNAL) && self.is_signalled();
            if is_told && self.now_ms - begun_ms > SAME_WISH_MS {
                return note!("told again: stopped without the log written out, as after a kill");
            }
        }
    }

    /// What is to be said of it once it has come to its end.
    fn how_stopped(&mut self) -> Option<String> {
        let node = self.node.borrow();
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
