//! The answers that clients saw, and the figures of one round.

use super::client::locked;
use super::door::Failure;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    Read,
}

impl Kind {
    pub(super) const ALL: [Self; 2] = [Self::Write, Self::Read];

    /// The plural, as a key of JSON and in tables.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Write => "writes",
            Self::Read => "reads",
        }
    }
}

/// An answered request, in microseconds since the beginning of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) at_us: u64,
    pub(super) latency_us: u64,
}

/// The answers that one thread saw since it was asked last.
#[derive(Debug, Default)]
pub(super) struct Samples(Mutex<Seen>);

#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) answers: Vec<Answer>,
    pub(super) failures: BTreeMap<Failure, u64>,
}

impl Samples {
    pub(super) fn answered(&self, begun: Duration, at: Duration) {
        let latency_us = at.saturating_sub(begun).as_micros() as u64;
        locked(&self.0).answers.push(Answer { at_us: at.as_micros() as u64, latency_us });
    }

    pub(super) fn failed(&self, failure: Failure) {
        *locked(&self.0).failures.entry(failure).or_default() += 1;
    }

    pub(super) fn take(&self) -> Seen {
        std::mem::take(&mut locked(&self.0))
    }
}

/// Adds up what several threads saw, in the order of time.
pub(super) fn merged(all: impl Iterator<Item = Seen>) -> Seen {
    let mut sum = Seen::default();
    for seen in all {
        sum.answers.extend(seen.answers);
        for (failure, count) in seen.failures {
            *sum.failures.entry(failure).or_default() += count;
        }
    }
    sum.answers.sort_unstable_by_key(|answer| answer.at_us);
    sum
}

/// The times of a round, in microseconds since the beginning of the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) begun_us: u64,
    pub(super) fault_us: u64,
    pub(super) whole_us: u64,
    pub(super) ended_us: u64,
}

/// The figures of one kind of request in one round.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figures {
    /// Answers a second before the fault.
    pub(super) rate: f64,
    /// The longest time without an answer to anybody, of those that reach beyond the fault.
    pub(super) gap_us: u64,
    /// When it ended, from the fault on; `None` where no answer came after it.
    pub(super) first_answer_us: Option<u64>,
    /// How long after the fault the rate was back; `None` where it was not.
    pub(super) recovered_us: Option<u64>,
    /// Median and 99th percentile before the fault.
    pub(super) before_us: Option<[u64; 2]>,
    /// The same for requests that began after the gap, in the first minute after the fault.
    pub(super) after_us: Option<[u64; 2]>,
    pub(super) failures: BTreeMap<Failure, u64>,
}

/// The rate is back when a window of this length has the share below of the answers before.
const WINDOW_US: u64 = 500_000;
const WINDOW_STEP_US: u64 = 10_000;
const BACK_SHARE: f64 = 0.9;
/// A shorter time without an answer is nothing that a fault made.
const GAP_MIN_US: u64 = 100_000;
/// Latencies count for so long after a fault.
const AFTER_US: u64 = 60_000_000;

impl Figures {
    /// `calm` is what was seen before the fault, `seen` after it.
    pub(super) fn of(calm: &[Answer], seen: &Seen, times: Times) -> Self {
        let Times { begun_us, fault_us, ended_us, .. } = times;
        let calm_us = fault_us.saturating_sub(begun_us).max(1);
        let rate = calm.len() as f64 * 1e6 / calm_us as f64;
        let last = calm.last().map_or(begun_us, |answer| answer.at_us);
        let (gap_us, end) = longest_gap(last, &seen.answers, ended_us);
        let after_us = match end {
            _ if gap_us < GAP_MIN_US => fault_us,
            Some(end) => end,
            None => ended_us,
        };
        let late = |answer: &&Answer| {
            answer.at_us.saturating_sub(answer.latency_us) >= after_us
                && answer.at_us <= fault_us + AFTER_US
        };
        Self {
            rate,
            gap_us,
            first_answer_us: end.map(|end| end.saturating_sub(fault_us)),
            recovered_us: recovered(&seen.answers, rate, fault_us, ended_us),
            before_us: percentiles(calm.iter()),
            after_us: percentiles(seen.answers.iter().filter(late)),
            failures: seen.failures.clone(),
        }
    }
}

/// The longest time between two answers from the last before the fault on, and its end.
fn longest_gap(last_us: u64, answers: &[Answer], ended_us: u64) -> (u64, Option<u64>) {
    let ends = answers.iter().map(|answer| (answer.at_us, Some(answer.at_us)));
    let (mut before, mut longest) = (last_us, (0, None));
    for (at_us, end) in ends.chain([(ended_us, None)]) {
        let gap = at_us.saturating_sub(before);
        if gap > longest.0 {
            longest = (gap, end);
        }
        before = before.max(at_us);
    }
    longest
}

/// How long after the fault a window begins with as many answers as before.
fn recovered(answers: &[Answer], rate: f64, fault_us: u64, ended_us: u64) -> Option<u64> {
    let needed = BACK_SHARE * rate * WINDOW_US as f64 / 1e6;
    let count_before = |us: u64| answers.partition_point(|answer| answer.at_us < us);
    let last = ended_us.checked_sub(WINDOW_US)?;
    let starts = (fault_us..=last).step_by(WINDOW_STEP_US as usize);
    let is_back =
        |start: &u64| (count_before(start + WINDOW_US) - count_before(*start)) as f64 >= needed;
    starts.into_iter().find(is_back).map(|start| start - fault_us)
}

/// Median and 99th percentile.
pub(super) fn percentiles<'a>(answers: impl Iterator<Item = &'a Answer>) -> Option<[u64; 2]> {
    let mut latencies: Vec<u64> = answers.map(|answer| answer.latency_us).collect();
    latencies.sort_unstable();
    let last = latencies.len().checked_sub(1)?;
    Some([0.5, 0.99].map(|share| latencies[(last as f64 * share).round() as usize]))
}

/// Answers in each of the bins of this length between two times.
pub(super) fn bins(answers: &[Answer], (from_us, to_us): (u64, u64), bin_us: u64) -> Vec<u64> {
    let count = to_us.saturating_sub(from_us).div_ceil(bin_us);
    let mut bins = vec![0; count as usize];
    for answer in answers.iter().filter(|answer| (from_us..to_us).contains(&answer.at_us)) {
        bins[((answer.at_us - from_us) / bin_us) as usize] += 1;
    }
    bins
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer each millisecond in a range of milliseconds, which took as many microseconds.
    fn each_ms(ms: std::ops::Range<u64>, latency_us: u64) -> Vec<Answer> {
        ms.map(|ms| Answer { at_us: ms * 1000, latency_us }).collect()
    }

    const TIMES: Times =
        Times { begun_us: 0, fault_us: 5_000_000, whole_us: 7_000_000, ended_us: 9_000_000 };

    fn seen(answers: Vec<Answer>) -> Seen {
        Seen { answers, failures: BTreeMap::from([(Failure::TryAgain, 3)]) }
    }

    #[test]
    fn a_gap_after_a_fault_is_found_with_its_end_and_the_return_of_the_rate() {
        let answers =
            [each_ms(5_000..5_010, 100), each_ms(5_640..5_641, 100), each_ms(6_000..9_000, 300)]
                .concat();
        let figures = Figures::of(&each_ms(0..5_000, 100), &seen(answers), TIMES);
        assert_eq!(figures.rate, 1000.0);
        assert_eq!((figures.gap_us, figures.first_answer_us), (631_000, Some(640_000)));
        // From here on a window of 500 ms has 450 answers.
        assert_eq!(figures.recovered_us, Some(950_000));
        assert_eq!(figures.before_us, Some([100, 100]));
        assert_eq!(figures.after_us, Some([300, 300]));
        assert_eq!(figures.failures[&Failure::TryAgain], 3);
    }

    #[test]
    fn no_answer_after_a_fault_is_a_gap_to_the_end() {
        let figures = Figures::of(&each_ms(0..5_000, 100), &seen(Vec::new()), TIMES);
        assert_eq!((figures.gap_us, figures.first_answer_us), (4_001_000, None));
        assert_eq!((figures.recovered_us, figures.after_us), (None, None));
    }

    #[test]
    fn a_fault_that_nobody_feels_has_a_short_gap_and_is_over_at_once() {
        let figures =
            Figures::of(&each_ms(0..5_000, 100), &seen(each_ms(5_000..9_000, 100)), TIMES);
        assert_eq!((figures.gap_us, figures.recovered_us), (1_000, Some(0)));
        assert_eq!(figures.after_us, Some([100, 100]));
    }

    #[test]
    fn bins_count_answers_by_time() {
        let answers = each_ms(0..1_000, 1);
        assert_eq!(bins(&answers, (100_000, 450_000), 100_000), [100, 100, 100, 50]);
    }
}
