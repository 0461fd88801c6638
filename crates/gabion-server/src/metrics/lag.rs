//! How old the oldest record is that a member lacks.
//!
//! The log has no time for each record. The head notes now and then how long its log was, and looks
//! up when it passed the place up to which a member has it.
//!
//! ```text
//!   tier 0    a note each 100 ms, of the last 12.8 s
//!   tier 1    a note each 200 ms, of the last 25.6 s
//!     …       so that a lag is told within a sixtieth of it
//!   tier 15   a note each 55 min, of the last 5 days
//! ```

use std::collections::VecDeque;

/// Between two notes of the first tier, in ms.
const EVERY_MS: u64 = 100;
/// Notes of a tier.
const NOTES_MAX: usize = 128;
const TIERS: usize = 16;

/// When the log passed which position.
#[derive(Default)]
pub(crate) struct LagClock([Tier; TIERS]);

#[derive(Default)]
struct Tier {
    /// When a position was seen first, in ms, and the position. Both rise.
    notes: VecDeque<(u64, u64)>,
    next_ms: u64,
}

impl LagClock {
    /// Notes where the log ends. Called as often as one likes.
    pub(crate) fn note(&mut self, now_ms: u64, end: u64) {
        for (number, tier) in self.0.iter_mut().enumerate() {
            if now_ms < tier.next_ms {
                return;
            }
            tier.next_ms = now_ms + (EVERY_MS << number);
            // A log that was cut has not passed what it lost.
            while tier.notes.back().is_some_and(|(_, position)| *position > end) {
                tier.notes.pop_back();
            }
            if tier.notes.back().is_some_and(|(_, position)| *position == end) {
                continue;
            }
            if tier.notes.len() == NOTES_MAX {
                tier.notes.pop_front();
            }
            tier.notes.push_back((now_ms, end));
        }
    }

    /// For how long a member has lacked what follows `position`, in ms; 0 where it lacks nothing
    /// that was there at the last note.
    pub(crate) fn lag_ms(&self, now_ms: u64, position: u64) -> u64 {
        let reaches =
            |tier: &&Tier| tier.notes.front().is_some_and(|(_, first)| *first <= position);
        // None reaches back so far: the one that reaches farthest tells the least it can be.
        let tier = self.0.iter().find(reaches).or(self.0.iter().rev().find(|it| it.has_notes()));
        let Some(Tier { notes, .. }) = tier else { return 0 };
        let after = notes.partition_point(|(_, noted)| *noted <= position);
        notes.get(after).map_or(0, |(since_ms, _)| now_ms.saturating_sub(*since_ms))
    }
}

impl Tier {
    fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_lags_by_the_age_of_what_it_lacks() {
        let mut clock = LagClock::default();
        assert_eq!(clock.lag_ms(5_000, 0), 0, "nothing was noted");
        for second in 1..=10 {
            clock.note(second * 1_000, second * 100);
        }
        assert_eq!(clock.lag_ms(10_000, 1_000), 0);
        assert_eq!(clock.lag_ms(10_500, 900), 500);
        assert_eq!(clock.lag_ms(10_000, 450), 5_000);
        // Nobody writes: who has all lags by nothing, who has not by more and more.
        clock.note(60_000, 1_000);
        assert_eq!((clock.lag_ms(60_000, 1_000), clock.lag_ms(60_000, 999)), (0, 50_000));
        // The log was cut, and goes on.
        clock.note(61_000, 550);
        clock.note(62_000, 600);
        assert_eq!(clock.lag_ms(63_000, 550), 1_000);
    }

    #[test]
    fn notes_are_bounded_and_an_old_lag_is_still_told_nearly() {
        let mut clock = LagClock::default();
        for step in 1..=1_000_000_u64 {
            clock.note(step * EVERY_MS, step);
        }
        assert!(clock.0.iter().all(|tier| tier.notes.len() <= NOTES_MAX));
        let now_ms = 1_000_000 * EVERY_MS;
        for lacking in [2_u64, 10, 300, 5_000, 50_000, 900_000] {
            let at = 1_000_000 - lacking;
            let (told, real) = (clock.lag_ms(now_ms, at), (lacking - 1) * EVERY_MS);
            assert!(told <= real && told * 60 >= real * 59, "{lacking}: {told} for {real}");
        }
    }
}
