//! `/metrics`: the replica's numbers for Prometheus, over HTTP on a port of their own.
//!
//! ```text
//!   scraper ─► gabion-metrics: http ── wanted ──► loop: page of the replica ─┐
//!        ◄──── page, kept for a moment ◄── page of the process ◄─────────────┘
//! ```
//!
//! The loop never waits for a scraper. It writes a page when the thread asks for one, at most once
//! in `http::KEPT`, whoever asks how often. Counters are those of INFO and `GABION STATUS`; only
//! the distribution of times and the age of the log at members are kept here.

mod http;
mod lag;
mod latencies;
mod of_process;
mod of_replica;
mod route;
mod text;

pub(crate) use lag::LagClock;
pub(crate) use latencies::{Buckets, Latencies};

use crate::service::Service;
use gabion_base::{Error, Result};
use mio::Waker;
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

pub use http::Door;
pub use latencies::{BUCKETS, bounds};
pub use of_process::write as write_process;
pub use route::Route;
pub use text::{Family, Kind, Number, Page};

/// How long a scraper waits for a loop that does not come to it.
const LOOP_MAX: Duration = Duration::from_secs(2);

/// Writes that were refused, by reason.
#[derive(Default)]
pub(crate) struct Refused {
    /// The group takes no writes now.
    pub(crate) not_ready: Cell<u64>,
    /// Too many writes wait already.
    pub(crate) queue: Cell<u64>,
}

/// Numbers that a service keeps for scrapers alone, and their door.
pub(crate) struct Metrics {
    /// Requests of the door's thread for a page.
    wanted: Receiver<Sender<String>>,
    /// None where the port is off.
    address: Option<SocketAddr>,
    _door: Option<Door>,
    pub(crate) lag: LagClock,
    /// From the end of a turn with writes to its acknowledgement.
    pub(crate) acknowledged: Latencies,
    pub(crate) refused: Refused,
}

impl Metrics {
    /// Listens on `address`, if there is one. A port that cannot be had is noted and tried again:
    /// a replica that cannot be watched goes on serving.
    ///
    /// # Errors
    /// The system's, when it gives no thread.
    pub(crate) fn start(address: Option<SocketAddr>, waker: &Arc<Waker>) -> Result<Self> {
        let (sender, wanted) = channel::<Sender<String>>();
        let waker = waker.clone();
        let source = move || {
            let (answer, page) = channel();
            let slow = |_| Error::unavailable("the replica's loop does not answer");
            sender.send(answer).map_err(|_| Error::unavailable("the replica has ended"))?;
            let _ = waker.wake();
            let mut page = page.recv_timeout(LOOP_MAX).map_err(slow)?;
            page.push_str(&of_process::page());
            Ok(page)
        };
        let serve =
            |address| Door::start(address, vec![Route::metrics(source)], |line| note!("{line}"));
        let door = address.map(serve);
        Ok(Self {
            wanted,
            address,
            _door: door.transpose()?,
            lag: LagClock::default(),
            acknowledged: Latencies::default(),
            refused: Refused::default(),
        })
    }

    /// The port, for status.
    pub(crate) fn port(&self) -> Option<u16> {
        self.address.map(|address| address.port())
    }
}

impl Service {
    /// Writes the page that a scraper waits for, if one does.
    pub(crate) fn answer_scrapes(&self) {
        while let Ok(answer) = self.metrics.wanted.try_recv() {
            // The thread may have given up.
            let _ = answer.send(of_replica::page(self));
        }
    }
}

#[cfg(test)]
mod tests;
