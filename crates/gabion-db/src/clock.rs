//! The time that a replica is told.

use rustix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 that never go back while the process lives: the system's clock as it was when this one was
/// started, and what has passed since.
///
/// Time in which the machine was suspended has passed too (`CLOCK_BOOTTIME`): what is to be gone at a time is gone then
/// when the machine wakes, and who has not been heard of meanwhile counts as silent, as after a pause of the process.
pub struct Clock {
    base_us: u64,
    started_us: u64,
}

impl Clock {
    /// A clock that agrees with the system's now, and with nobody who sets that one later.
    #[must_use]
    pub fn start() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { base_us: since.as_micros() as u64, started_us: since_boot_us() }
    }

    /// Microseconds.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.at_us(since_boot_us())
    }

    /// Milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_us() / 1000
    }

    const fn at_us(&self, since_boot_us: u64) -> u64 {
        self.base_us + since_boot_us.saturating_sub(self.started_us)
    }
}

/// Microseconds since the machine was started, those included in which it was suspended. As cheap as `Instant`: no call
/// of the system where the kernel maps its clocks.
fn since_boot_us() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_systems_time_at_the_start_and_what_has_passed_since() {
        let clock = Clock { base_us: 1_700_000_000_000_000, started_us: 5_000 };
        let eight_hours_us = 8 * 3_600 * 1_000_000;
        assert_eq!(clock.at_us(5_000 + eight_hours_us), clock.base_us + eight_hours_us);
        assert_eq!(clock.at_us(4_000), clock.base_us, "it does not go back");
    }

    #[test]
    fn it_begins_with_the_systems_time_and_goes_on() {
        let clock = Clock::start();
        let system = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let first_us = clock.now_us();
        assert!(first_us.abs_diff(system.as_micros() as u64) < 10_000_000, "{first_us}");
        while clock.now_us() == first_us {}
        assert!(clock.now_us() > first_us);
    }
}
