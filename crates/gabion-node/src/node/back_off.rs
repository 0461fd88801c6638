//! Pauses between tries to write while the device has no room, in the node's own time.

use alloc::string::String;
use gabion_base::Error;

/// The first pause; each failure doubles it.
const PAUSE_MS_MIN: u64 = 100;
/// The longest pause, and so the longest delay until new room is seen.
const PAUSE_MS_MAX: u64 = 10_000;

/// The pause from a failure to the next success.
#[derive(Default)]
pub(super) struct BackOff(Option<Pause>);

struct Pause {
    reason: Error,
    len_ms: u64,
    until_ms: u64,
}

impl BackOff {
    /// A try ended without room. A failure during the pause, of a try begun before it, does not
    /// lengthen it.
    pub(super) fn failed(&mut self, reason: Error, now_ms: u64) {
        let (len_ms, until_ms) = match &self.0 {
            Some(pause) if now_ms < pause.until_ms => (pause.len_ms, pause.until_ms),
            Some(pause) => {
                let len_ms = (pause.len_ms * 2).min(PAUSE_MS_MAX);
                (len_ms, now_ms.saturating_add(len_ms))
            }
            None => (PAUSE_MS_MIN, now_ms.saturating_add(PAUSE_MS_MIN)),
        };
        self.0 = Some(Pause { reason, len_ms, until_ms });
    }

    /// A try ended well: there is room.
    pub(super) fn ended_well(&mut self) {
        self.0 = None;
    }

    /// Whether it is too early for another try.
    pub(super) fn is_pausing(&self, now_ms: u64) -> bool {
        self.0.as_ref().is_some_and(|pause| now_ms < pause.until_ms)
    }

    /// Why the last try failed and how long the pause is, until one ends well.
    pub(super) fn reason(&self) -> Option<String> {
        let Pause { reason, len_ms, .. } = self.0.as_ref()?;
        Some(alloc::format!("{reason}; tried again after {len_ms} ms"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Error {
        Error::no_space("full")
    }

    #[test]
    fn pauses_double_up_to_ten_seconds_and_begin_anew_after_a_success() {
        let (mut back_off, mut now_ms) = (BackOff::default(), 5);
        for wanted_ms in [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000] {
            assert!(!back_off.is_pausing(now_ms));
            back_off.failed(full(), now_ms);
            assert!(back_off.is_pausing(now_ms + wanted_ms - 1), "{wanted_ms}");
            now_ms += wanted_ms;
            assert!(!back_off.is_pausing(now_ms), "{wanted_ms}");
        }
        assert_eq!(back_off.reason().as_deref(), Some("full; tried again after 10000 ms"));
        back_off.ended_well();
        assert_eq!(back_off.reason(), None);
        back_off.failed(full(), now_ms);
        assert!(!back_off.is_pausing(now_ms + 100));
    }

    #[test]
    fn a_failure_in_the_pause_makes_it_no_longer() {
        let mut back_off = BackOff::default();
        back_off.failed(full(), 0);
        back_off.failed(full(), 99);
        assert!(!back_off.is_pausing(100));
    }
}
