//! The time that a replica is told.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 that never go back while the process lives.
pub struct Clock {
    base_us: u64,
    started: Instant,
}

impl Clock {
    /// A clock that agrees with the system's now, and with nobody who sets that one later.
    #[must_use]
    pub fn start() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { base_us: since.as_micros() as u64, started: Instant::now() }
    }

    /// Microseconds.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.base_us + self.started.elapsed().as_micros() as u64
    }

    /// Milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_us() / 1000
    }
}
