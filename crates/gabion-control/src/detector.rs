//! Tells from the reports of one replica whether it has failed.
//!
//! ```text
//!   report ──► intervals: mean, deviation ──► patience = mean + 8 × deviation, within limits
//!   tick   ──► silence > patience? ──► Silent
//!   report ──► age of its oldest unfinished probe write > deadline? ──► Stuck
//! ```
//!
//! The patience adapts to a replica that reports late because its machine is busy (Jacobson's
//! estimator of round trips, SIGCOMM 1988, with twice its factor). The probe write finds what
//! reports hide: a process that answers while its disk takes no writes (Tebis §3.5 and RubbleDB
//! §4.1 have heartbeats only).

use alloc::string::String;
use core::fmt;

/// The limits of a detector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Time between two reports of a replica, in ms. Default 100.
    pub report_ms: u64,
    /// Least silence, in ms, that counts as a failure. Default 400.
    pub silence_ms_min: u64,
    /// Silence, in ms, that always counts as a failure. Default 3,000.
    pub silence_ms_max: u64,
    /// Time, in ms, that a probe write may take, or a pool be full where others are not. Default
    /// 1,000.
    pub probe_ms: u64,
    /// Time, in ms, that a replica may take to report for the first time in a controller's life: it
    /// may be reading its log. Default 10,000.
    pub start_ms: u64,
    /// Time, in ms, that a member which failed is waited for before a spare takes its place.
    /// Default 600,000, which is ten minutes.
    pub replace_ms: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            report_ms: 100,
            silence_ms_min: 400,
            silence_ms_max: 3_000,
            probe_ms: 1_000,
            start_ms: 10_000,
            replace_ms: 600_000,
        }
    }
}

/// A replica's word on its probe write: a block that it writes and flushes again and again to
/// the device of its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Probe {
    /// The last one ended well, and the next has not begun or is so many ms old.
    #[default]
    Well,
    /// The running one began so many ms ago.
    Running(u64),
    /// The device refused the last one.
    Refused,
    /// The pool has no slot left for what its log needs. It is nobody's fault where it is so at
    /// every member.
    Full,
}

/// A verdict on one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing speaks against it.
    Well,
    /// It has reported nothing for so many ms.
    Silent(u64),
    /// Its probe write has taken so many ms.
    Stuck(u64),
    /// Its device refuses writes.
    Refuses,
    /// Its disk is not the one that the view means. No detector says so: the controller does.
    OtherDisk,
    /// It reports, but it and another full member do not hear each other, or one of them does not.
    /// No detector says so: the controller does.
    CutOff,
    /// Its pool has been full for so many ms.
    Full(u64),
}

impl Verdict {
    /// Whether the replica can be no member, whatever the others are.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        matches!(
            self,
            Self::Silent(_) | Self::Stuck(_) | Self::Refuses | Self::OtherDisk | Self::CutOff
        )
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Well => f.write_str("well"),
            Self::Silent(ms) => write!(f, "silent for {ms} ms"),
            Self::Stuck(ms) => write!(f, "a write to its disk has taken {ms} ms"),
            Self::Refuses => f.write_str("its disk refuses writes"),
            Self::CutOff => f.write_str("it and another member do not hear each other"),
            Self::OtherDisk => f.write_str("its disk is empty, foreign or older than it was"),
            Self::Full(_) => f.write_str("its pool is full"),
        }
    }
}

/// The memory of one replica's reports. Times are in ms of the controller's own clock.
#[derive(Clone, Debug)]
pub struct Detector {
    heard_ms: u64,
    /// Whether it has ever reported.
    is_heard: bool,
    /// Mean and mean deviation of the time between reports, in sixteenths of a ms.
    mean: u64,
    deviation: u64,
    probe: Probe,
    /// Since when its pool has been full, or has had room, in ms.
    full_since_ms: u64,
}

const FRACTION: u64 = 16;

impl Detector {
    /// A replica that has [`Patience::start_ms`] from `now_ms` on for its first report.
    #[must_use]
    pub const fn new(patience: &Patience, now_ms: u64) -> Self {
        Self {
            heard_ms: now_ms,
            is_heard: false,
            mean: patience.report_ms * FRACTION,
            deviation: patience.report_ms * FRACTION / 4,
            probe: Probe::Well,
            full_since_ms: now_ms,
        }
    }

    /// A report came.
    pub fn hear(&mut self, probe: Probe, now_ms: u64) {
        // The time until the first report is that of a start, and says nothing of the next ones.
        if self.is_heard {
            let interval = now_ms.saturating_sub(self.heard_ms).saturating_mul(FRACTION);
            let error = interval.abs_diff(self.mean);
            self.mean = self.mean - self.mean / 8 + interval / 8;
            self.deviation = self.deviation - self.deviation / 4 + error / 4;
        }
        self.is_heard = true;
        self.heard_ms = self.heard_ms.max(now_ms);
        if (probe == Probe::Full) != (self.probe == Probe::Full) {
            self.full_since_ms = now_ms;
        }
        self.probe = probe;
    }

    /// How long the pool has had room, in ms; none while it is full.
    #[must_use]
    pub fn room_ms(&self, now_ms: u64) -> Option<u64> {
        let since_ms = now_ms.saturating_sub(self.full_since_ms);
        (self.probe != Probe::Full).then_some(since_ms)
    }

    /// When the last report came.
    #[must_use]
    pub const fn heard_ms(&self) -> u64 {
        self.heard_ms
    }

    /// The controller itself did not run for `ms`: that was no silence of the replica's.
    pub const fn skip(&mut self, ms: u64) {
        self.heard_ms = self.heard_ms.saturating_add(ms);
    }

    /// The silence, in ms, after which the replica has failed.
    #[must_use]
    pub fn silence_ms(&self, patience: &Patience) -> u64 {
        if !self.is_heard {
            return patience.start_ms;
        }
        let adapted = (self.mean + 8 * self.deviation) / FRACTION;
        adapted.clamp(patience.silence_ms_min, patience.silence_ms_max)
    }

    /// The verdict at `now_ms`.
    #[must_use]
    pub fn verdict(&self, patience: &Patience, now_ms: u64) -> Verdict {
        let silent_ms = now_ms.saturating_sub(self.heard_ms);
        if silent_ms > self.silence_ms(patience) {
            return Verdict::Silent(silent_ms);
        }
        match self.probe {
            Probe::Well => Verdict::Well,
            // It goes on while the next report is on its way.
            Probe::Running(ms) if ms.saturating_add(silent_ms) > patience.probe_ms => {
                Verdict::Stuck(ms.saturating_add(silent_ms))
            }
            Probe::Running(_) => Verdict::Well,
            Probe::Refused => Verdict::Refuses,
            Probe::Full => Verdict::Full(now_ms.saturating_sub(self.full_since_ms)),
        }
    }
}

/// A duration for people: `420 ms`, `12.3 s`.
pub(crate) fn in_words(ms: u64) -> String {
    match ms {
        0..=9_999 => alloc::format!("{ms} ms"),
        _ => alloc::format!("{}.{} s", ms / 1000, ms % 1000 / 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATIENCE: Patience = Patience {
        report_ms: 100,
        silence_ms_min: 400,
        silence_ms_max: 3_000,
        probe_ms: 1_000,
        start_ms: 2_000,
        replace_ms: 60_000,
    };

    #[test]
    fn a_replica_that_starts_is_waited_for_longer_than_one_that_reported() {
        let mut detector = Detector::new(&PATIENCE, 0);
        assert_eq!(detector.verdict(&PATIENCE, 2_000), Verdict::Well);
        assert_eq!(detector.verdict(&PATIENCE, 2_001), Verdict::Silent(2_001));
        detector.hear(Probe::Well, 2_002);
        assert_eq!(detector.silence_ms(&PATIENCE), 400, "its start says nothing of its reports");
    }

    #[test]
    fn silence_beyond_patience_is_a_failure_and_a_report_ends_it() {
        let mut detector = Detector::new(&PATIENCE, 1_000);
        for at in [1_100, 1_200, 1_300] {
            detector.hear(Probe::Well, at);
        }
        assert_eq!(detector.verdict(&PATIENCE, 1_700), Verdict::Well);
        assert_eq!(detector.verdict(&PATIENCE, 1_701), Verdict::Silent(401));
        assert!(Verdict::Silent(401).is_failure());
        detector.hear(Probe::Well, 1_702);
        assert_eq!(detector.verdict(&PATIENCE, 1_703), Verdict::Well);
    }

    #[test]
    fn a_replica_that_reports_late_is_waited_for_longer() {
        let mut detector = Detector::new(&PATIENCE, 0);
        let mut now_ms = 0;
        for late in [100, 350, 120, 390, 90, 380, 110, 370] {
            now_ms += late;
            detector.hear(Probe::Well, now_ms);
        }
        assert!(detector.silence_ms(&PATIENCE) > 800, "{}", detector.silence_ms(&PATIENCE));
        assert!(detector.silence_ms(&PATIENCE) < 2_000, "{}", detector.silence_ms(&PATIENCE));
        for _ in 0..64 {
            now_ms += 100;
            detector.hear(Probe::Well, now_ms);
        }
        assert_eq!(detector.silence_ms(&PATIENCE), 400, "steady again");
    }

    #[test]
    fn a_probe_that_does_not_end_is_a_failure_while_reports_go_on() {
        let mut detector = Detector::new(&PATIENCE, 0);
        let mut failed_at = None;
        for at in (100..3_000).step_by(100) {
            detector.hear(Probe::Running(at - 100), at);
            if detector.verdict(&PATIENCE, at).is_failure() {
                failed_at.get_or_insert(at);
            }
        }
        assert_eq!(failed_at, Some(1_200), "the first report of more than a second");
        detector.hear(Probe::Full, 3_000);
        detector.hear(Probe::Full, 3_050);
        assert_eq!(detector.verdict(&PATIENCE, 3_070), Verdict::Full(70));
        assert!(!Verdict::Full(70).is_failure(), "whose fault that is, the others tell");
        detector.hear(Probe::Refused, 3_100);
        assert!(detector.verdict(&PATIENCE, 3_100).is_failure());
    }

    proptest! {
        /// The patience stays within its limits, whatever the reports were, and a pause of the
        /// controller's makes nobody silent.
        #[test]
        fn patience_stays_within_limits(
            intervals in prop::collection::vec(0u64..10_000, 0..40),
            pause_ms in 0u64..1_000_000,
        ) {
            let (mut detector, mut now_ms) = (Detector::new(&PATIENCE, 0), 0);
            for interval in intervals {
                now_ms += interval;
                detector.hear(Probe::Well, now_ms);
                let silence_ms = detector.silence_ms(&PATIENCE);
                prop_assert!((400..=3_000).contains(&silence_ms));
            }
            now_ms += pause_ms;
            detector.skip(pause_ms);
            prop_assert_eq!(detector.verdict(&PATIENCE, now_ms), Verdict::Well);
        }
    }

    #[test]
    fn durations_in_words() {
        assert_eq!(in_words(420), "420 ms");
        assert_eq!(in_words(12_345), "12.3 s");
    }
}
