//! The time that a replica is told.
//!
//! ```text
//!   system's clock ──(read once)──► base ─┐
//!   time since boot ──────────────────────┴─► now_ms ─► the node's timers, group time, TTLs
//!   time of the store's last write ─(once, at opening)─► base, where the two disagree
//!   system's clock ──(read when asked)──► translates times that users give and are shown
//! ```
//!
//! Group time never goes back, as what was seen expired stays expired. The system's clock may go
//! anywhere. So the two are told apart: how long something lasts is measured by what has passed,
//! and only times of day are translated.
//!
//! - **Set back while nothing ran**: the clock goes on from the store's last write. A life of three
//!   seconds lasts three seconds, and a time of day is met when the system's clock shows it.
//! - **Set while it runs**, either way: the same, from that moment on. A key that was given a time
//!   of day before keeps what was left of its life.
//! - **Ahead while nothing ran**: time has passed, and what was due has expired. Nobody can tell a
//!   long rest from a wrong clock, so a clock that is further ahead than [`JUMP_MS_MAX`] is not
//!   believed: time goes on from the last write until somebody says that the clock is right
//!   ([`Clock::adopt`]).

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// How far the system's clock may be ahead of a store's last write when it is opened, in ms: 366
/// days. What expires within them cannot be had back if that clock was wrong.
pub const JUMP_MS_MAX: u64 = 366 * 24 * 3_600 * 1_000;
/// Differences up to this, in ms, are no more than how exactly clocks are set: times of day are not
/// translated.
const DIFFERENCE_MS_MIN: u64 = 1_000;

/// Milliseconds that never go back while the process lives: the system's clock as it was when this
/// one was started, or the time of the store's last write where that was later, and what has passed
/// since.
///
/// Time in which the machine was suspended has passed too (`CLOCK_BOOTTIME`): what is to be gone at
/// a time is gone then when the machine wakes, and who has not been heard of meanwhile counts as
/// silent, as after a pause of the process.
#[derive(Debug)]
pub struct Clock {
    base_us: AtomicU64,
    started_us: u64,
    /// Reads the system's clock, in microseconds since 1970.
    system_us: fn() -> u64,
}

impl Clock {
    /// A clock that agrees with the system's now.
    #[must_use]
    pub fn start() -> Self {
        Self::of(system_us)
    }

    /// A clock to which `system_us` is the system's, in microseconds since 1970: tests set it.
    #[must_use]
    pub fn of(system_us: fn() -> u64) -> Self {
        Self { base_us: AtomicU64::new(system_us()), started_us: since_boot_us(), system_us }
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

    fn at_us(&self, since_boot_us: u64) -> u64 {
        let base_us = self.base_us.load(Ordering::Relaxed);
        base_us.saturating_add(since_boot_us.saturating_sub(self.started_us))
    }

    /// Microseconds since this clock was started, whatever was said of the time since.
    #[must_use]
    pub fn running_us(&self) -> u64 {
        since_boot_us().saturating_sub(self.started_us)
    }

    /// Milliseconds since the machine was started, those included in which it was suspended.
    /// Nobody sets this clock, and it follows no store: promises are counted by it.
    #[must_use]
    pub fn boot_ms() -> u64 {
        since_boot_us() / 1_000
    }

    /// The system's clock, in microseconds since 1970.
    #[must_use]
    pub fn system_us(&self) -> u64 {
        (self.system_us)()
    }

    /// A store has been opened whose last write was at `group_ms`: time goes on from there where
    /// the system's clock is behind it, or too far ahead to be believed. To be called before
    /// anything else was told the time. Returns what whoever runs the store should know. A store
    /// without writes (0) is of no time.
    pub fn open_at(&self, group_ms: u64) -> Option<String> {
        let now_ms = self.now_ms();
        let is_believed = now_ms.saturating_sub(group_ms) <= JUMP_MS_MAX;
        if group_ms == 0 || group_ms <= now_ms && is_believed {
            return None;
        }
        self.go_to(group_ms, now_ms);
        let difference_ms = group_ms.abs_diff(now_ms);
        if difference_ms <= DIFFERENCE_MS_MIN {
            return None;
        }
        let length = length(difference_ms);
        Some(match group_ms > now_ms {
            true => format!(
                "the system's clock is {length} behind the store's last write: time goes on from that write, and times of \
                 day are kept by the system's clock"
            ),
            false => format!(
                "the system's clock is {length} ahead of the store's last write, over the limit of {}: nothing has \
                 expired meanwhile, and time goes on from that write. If the clock is right, say so (docs/operations.md, \
                 \"Clocks\")",
                crate::clock::length(JUMP_MS_MAX)
            ),
        })
    }

    /// The group is at `group_ms` by what another member has logged: this clock is not to be behind
    /// it by more than clocks differ.
    pub fn follow(&self, group_ms: u64) {
        let now_ms = self.now_ms();
        if group_ms > now_ms.saturating_add(DIFFERENCE_MS_MIN) {
            self.go_to(group_ms, now_ms);
        }
    }

    /// The system's clock is right: where it is ahead, what is due by it expires now. Returns by
    /// how many milliseconds time went on; 0 where the clock is behind, as time does not go back.
    pub fn adopt(&self) -> u64 {
        let ahead_ms = self.system_ahead_ms().max(0).unsigned_abs();
        self.base_us.fetch_add(ahead_ms.saturating_mul(1_000), Ordering::Relaxed);
        ahead_ms
    }

    fn go_to(&self, to_ms: u64, now_ms: u64) {
        let base_us = self.base_us.load(Ordering::Relaxed);
        let apart_us = to_ms.abs_diff(now_ms).saturating_mul(1_000);
        let moved = match to_ms > now_ms {
            true => base_us.saturating_add(apart_us),
            false => base_us.saturating_sub(apart_us),
        };
        self.base_us.store(moved, Ordering::Relaxed);
    }

    /// By how many milliseconds the system's clock is ahead of this one, negative where it is
    /// behind; 0 where they differ by a second or less.
    #[must_use]
    pub fn system_ahead_ms(&self) -> i64 {
        let signed = |us: u64| i64::try_from(us).unwrap_or(i64::MAX);
        let ahead_ms = (signed(self.system_us()) - signed(self.now_us())) / 1_000;
        if ahead_ms.unsigned_abs() > DIFFERENCE_MS_MIN { ahead_ms } else { 0 }
    }

    /// When it is `system_ms` by the system's clock, if nobody sets that until then.
    #[must_use]
    pub fn of_system_ms(&self, system_ms: u64) -> u64 {
        system_ms.saturating_add_signed(-self.system_ahead_ms())
    }

    /// What the system's clock shows at `at_ms`, if nobody sets it until then.
    #[must_use]
    pub fn to_system_ms(&self, at_ms: u64) -> u64 {
        at_ms.saturating_add_signed(self.system_ahead_ms())
    }
}

/// A length of time for a person: its two largest units.
fn length(ms: u64) -> String {
    let s = ms / 1_000;
    let (days, hours, minutes) = (s / 86_400, s / 3_600 % 24, s / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{s} s"),
        (0, 0, _) => format!("{minutes} min {} s", s % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} days {hours} h"),
    }
}

/// The system's clock, in microseconds since 1970; 0 before that.
fn system_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Microseconds since the machine was started, those included in which it was suspended. As cheap
/// as `Instant`: no call of the system where the kernel maps its clocks.
fn since_boot_us() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;
    const NOW_MS: u64 = 1_700_000_000_000;

    fn fixed_us() -> u64 {
        NOW_MS * 1_000
    }

    /// A clock that has just been started, and stands still.
    fn clock() -> Clock {
        Clock { started_us: u64::MAX, ..Clock::of(fixed_us) }
    }

    #[test]
    fn it_is_the_systems_time_at_the_start_and_what_has_passed_since() {
        let clock = Clock { started_us: 5_000, ..Clock::of(fixed_us) };
        let eight_hours_us = 8 * HOUR_MS * 1_000;
        assert_eq!(clock.at_us(5_000 + eight_hours_us), fixed_us() + eight_hours_us);
        assert_eq!(clock.at_us(4_000), fixed_us(), "it does not go back");
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

    #[test]
    fn a_clock_that_was_set_back_goes_on_from_the_last_write_and_translates_times_of_day() {
        let clock = clock();
        let said = clock.open_at(NOW_MS + HOUR_MS).unwrap();
        assert!(said.contains("1 h 0 min behind"), "{said}");
        assert_eq!(clock.now_ms(), NOW_MS + HOUR_MS);
        assert_eq!(clock.of_system_ms(NOW_MS + 3_000), NOW_MS + HOUR_MS + 3_000);
        assert_eq!(clock.to_system_ms(NOW_MS + HOUR_MS + 3_000), NOW_MS + 3_000);
        assert_eq!(clock.adopt(), 0, "time does not go back");
    }

    #[test]
    fn a_clock_that_is_too_far_ahead_is_believed_when_somebody_says_so() {
        let clock = clock();
        let last_ms = NOW_MS - JUMP_MS_MAX - 1;
        let said = clock.open_at(last_ms).unwrap();
        assert!(said.contains("366 days 0 h ahead"), "{said}");
        assert_eq!(clock.now_ms(), last_ms);
        assert_eq!(clock.of_system_ms(NOW_MS + 5), last_ms + 5);
        assert_eq!(clock.adopt(), JUMP_MS_MAX + 1);
        assert_eq!((clock.now_ms(), clock.system_ahead_ms()), (NOW_MS, 0));
    }

    #[test]
    fn a_rest_within_the_limit_has_passed_and_a_store_without_writes_is_of_no_time() {
        for last_ms in [0, NOW_MS - JUMP_MS_MAX, NOW_MS - 1, NOW_MS] {
            let clock = clock();
            assert_eq!(clock.open_at(last_ms), None);
            assert_eq!(clock.now_ms(), NOW_MS);
        }
    }

    #[test]
    fn clocks_that_differ_by_a_second_are_the_same_to_times_of_day() {
        let clock = clock();
        assert_eq!(clock.open_at(NOW_MS + 1_000), None, "nothing to speak of");
        assert_eq!(clock.now_ms(), NOW_MS + 1_000, "but time does not go back");
        assert_eq!(clock.of_system_ms(NOW_MS + 9_000), NOW_MS + 9_000);
        clock.follow(NOW_MS + 2_000);
        assert_eq!(clock.now_ms(), NOW_MS + 1_000, "members differ by so much");
        clock.follow(NOW_MS + 2_001);
        assert_eq!(clock.now_ms(), NOW_MS + 2_001);
        assert_eq!(clock.of_system_ms(NOW_MS), NOW_MS + 2_001);
    }

    #[test]
    fn no_time_is_too_far() {
        let clock = clock();
        clock.open_at(u64::MAX);
        assert_eq!(clock.now_ms(), u64::MAX / 1_000);
        assert_eq!(clock.of_system_ms(u64::MAX), u64::MAX);
        assert_eq!(clock.to_system_ms(0), 0);
        assert!(clock.adopt() == 0);
    }
}
