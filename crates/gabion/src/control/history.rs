//! Load of a group over the last hour: a ring of samples in memory, for the status page.
//!
//! ```text
//!   reports ─► status of the group ── every 5 s ──► differences ─► ring of 720 samples
//! ```
//!
//! A sample is of the time between two reports of each replica. It is empty where no replica has
//! reported anything new, and while the controller stood still.

use crate::quantile::quantile;
use gabion_base::ReplicaId;
use gabion_control::{GroupStatus, Times, Vitals};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

/// Time between two samples, in ms.
pub(super) const EVERY_MS: u64 = 5_000;
/// Samples that are kept: an hour of them.
const SAMPLES_MAX: usize = 720;
/// End of the first bucket of times, in µs.
const FIRST_US: f64 = 1.024;

/// The samples of one group.
#[derive(Default)]
pub(super) struct History {
    samples: VecDeque<Sample>,
    /// When the last one was taken, by the clock that stands still, and by that of the world.
    taken_ms: Option<u64>,
    unix_ms: u64,
    last: BTreeMap<ReplicaId, Vitals>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sample {
    /// None: nobody reported.
    commands_per_s: Option<u64>,
    /// Quantiles in µs, of commands and of acknowledgements; none where there were none.
    served_us: Option<u64>,
    acknowledged_us: Option<u64>,
    /// Part of the time in which writes stood still, in percent.
    stalled: Option<u64>,
}

impl History {
    /// Takes a sample if one is due. Returns whether it was.
    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        self.taken_ms.is_none_or(|taken_ms| now_ms >= taken_ms + EVERY_MS)
    }

    pub(super) fn take(&mut self, status: &GroupStatus, now_ms: u64, unix_ms: u64) {
        let missed = self.taken_ms.map_or(0, |taken_ms| (now_ms - taken_ms) / EVERY_MS - 1);
        for _ in 0..missed.min(SAMPLES_MAX as u64) {
            self.push(Sample::default());
        }
        // In step, whenever within its time a sample is taken.
        self.taken_ms = Some(self.taken_ms.map_or(now_ms, |it| it + (missed + 1) * EVERY_MS));
        self.unix_ms = unix_ms;
        let sample = self.sample(status);
        self.push(sample);
    }

    fn push(&mut self, sample: Sample) {
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// The difference of all replicas to the sample before.
    fn sample(&mut self, status: &GroupStatus) -> Sample {
        let mut sample = Sample::default();
        let (mut served, mut acknowledged) = (Times::default(), Times::default());
        let mut now = BTreeMap::new();
        for replica in &status.replicas {
            let Some(vitals) = &replica.vitals else { continue };
            now.insert(replica.replica, vitals.clone());
            let Some(before) = self.last.get(&replica.replica) else { continue };
            let Some(passed_ms) = passed_ms(before, vitals) else { continue };
            let per_s = (vitals.commands - before.commands).saturating_mul(1_000) / passed_ms;
            *sample.commands_per_s.get_or_insert(0) += per_s;
            add_difference(&mut served, &before.served, &vitals.served);
            add_difference(&mut acknowledged, &before.acknowledged, &vitals.acknowledged);
            let part = vitals.stalled_ms.saturating_sub(before.stalled_ms) * 100 / passed_ms;
            sample.stalled = sample.stalled.max(Some(part.min(100)));
        }
        self.last = now;
        let most = |times: &Times| quantile(times, FIRST_US, 0.99).map(|us| us.round() as u64);
        (sample.served_us, sample.acknowledged_us) = (most(&served), most(&acknowledged));
        sample
    }

    /// The samples, oldest first.
    pub(super) fn json(&self) -> Value {
        let of = |part: fn(&Sample) -> Option<u64>| -> Value {
            self.samples.iter().map(part).map(|it| json!(it)).collect()
        };
        json!({
            "every_s": EVERY_MS / 1_000,
            "samples_max": SAMPLES_MAX,
            "until_unix_ms": self.unix_ms,
            "commands_per_s": of(|it| it.commands_per_s),
            "served_p99_us": of(|it| it.served_us),
            "acknowledged_p99_us": of(|it| it.acknowledged_us),
            "stalled_percent": of(|it| it.stalled),
        })
    }
}

/// The time between two words of one process; none where nothing is new, or where the process or
/// its counters began anew.
fn passed_ms(before: &Vitals, now: &Vitals) -> Option<u64> {
    let passed_ms = now.uptime_ms.checked_sub(before.uptime_ms).filter(|ms| *ms > 0)?;
    let grew = |before: &Times, now: &Times| before.iter().zip(now).all(|(b, n)| b <= n);
    let is_going_on = before.commands <= now.commands
        && grew(&before.served, &now.served)
        && grew(&before.acknowledged, &now.acknowledged);
    is_going_on.then_some(passed_ms)
}

fn add_difference(sum: &mut Times, before: &Times, now: &Times) {
    for (sum, (before, now)) in sum.iter_mut().zip(before.iter().zip(now)) {
        *sum += now - before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::tests::status;

    /// A group whose first replica says this.
    fn group(uptime_ms: u64, commands: u64, slow: u64) -> GroupStatus {
        let mut group = status();
        let mut vitals = Vitals { uptime_ms, commands, ..Vitals::default() };
        vitals.served[10] = slow;
        vitals.stalled_ms = uptime_ms / 4;
        group.replicas.iter_mut().for_each(|it| it.vitals = None);
        group.replicas[0].vitals = Some(vitals);
        group
    }

    #[test]
    fn a_sample_is_of_the_time_between_two_reports_of_one_process() {
        let mut history = History::default();
        history.take(&group(1_000, 100, 0), 0, 10_000);
        assert!(!history.is_due(EVERY_MS - 1));
        assert!(history.is_due(EVERY_MS));
        history.take(&group(5_000, 4_100, 2), EVERY_MS, 15_000);
        // Nothing new, another process, and that one again.
        history.take(&group(5_000, 4_100, 2), 2 * EVERY_MS, 20_000);
        history.take(&group(900, 7, 0), 3 * EVERY_MS, 25_000);
        history.take(&group(1_900, 57, 0), 4 * EVERY_MS, 30_000);
        let json = history.json();
        assert_eq!(json["commands_per_s"], json!([null, 1_000, null, null, 50]));
        assert_eq!(json["served_p99_us"], json!([null, 1_049, null, null, null]));
        assert_eq!(json["acknowledged_p99_us"], json!([null, null, null, null, null]));
        assert_eq!(json["stalled_percent"], json!([null, 25, null, null, 25]));
        assert_eq!(json["until_unix_ms"], 30_000);
    }

    #[test]
    fn an_hour_is_kept_and_a_pause_is_a_gap() {
        let mut history = History::default();
        for step in 0..2_000 {
            history.take(&group(step * EVERY_MS, step * 10, 0), step * EVERY_MS + step % 7, 0);
        }
        assert_eq!(history.samples.len(), SAMPLES_MAX);
        assert!(history.samples.iter().all(|it| it.commands_per_s == Some(2)));
        history.take(&group(2_010 * EVERY_MS, 90_000, 0), 2_009 * EVERY_MS, 0);
        let rates: Vec<_> = history.samples.iter().map(|it| it.commands_per_s).collect();
        let gap = &rates[SAMPLES_MAX - 11..];
        assert_eq!((gap[0], &gap[1..10], gap[10].is_some()), (Some(2), &[None; 9][..], true));
        history.take(&group(0, 0, 0), 1 << 50, 0);
        assert_eq!(history.samples.len(), SAMPLES_MAX, "a long pause takes no longer");
    }
}
