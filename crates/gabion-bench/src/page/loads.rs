//! Loads offered in open loops: the rounds that form one figure, and their names.
//!
//! A load in percent refers to a system's answers in the same run of the command. So rounds from
//! several runs have rates of their own, and latencies of different rates have no median. Rates
//! within [`SAME`] of each other are one load; others have the rate in their names:
//! `a@80 (31,300/s)`.

use super::clusters::{Experiment, per_second};
use super::document::Cell;
use super::input::{ClusterRun, Phase};
use super::stats::{short, significant};
use crate::figures::{QUEUE_MARK, Shape, queue};
use crate::text::grouped;

/// Rates up to this factor above the lowest of some rounds are one load.
const SAME: f64 = 1.02;

/// The runs, with separate names for loads that are not the same.
pub(super) fn told_apart(runs: &[ClusterRun]) -> Vec<ClusterRun> {
    let mut told = runs.to_vec();
    for (run, told) in runs.iter().zip(&mut told) {
        for phase in &mut told.phases {
            let Some(rate) = phase.offered_per_second else { continue };
            let rounds = runs.iter().filter(|other| other.is_of(run) && other.shape == run.shape);
            let phases = rounds.flat_map(|round| &round.phases);
            let same = phases.filter(|other| other.workload == phase.workload);
            let lowest =
                lowest_of_each(same.filter_map(|other| other.offered_per_second).collect());
            if lowest.len() > 1 {
                let own = lowest.into_iter().take_while(|lowest| *lowest <= rate).last();
                let own = significant(own.unwrap_or(rate));
                phase.workload = format!("{} ({own}/s)", phase.workload);
            }
        }
    }
    told
}

/// The lowest rate of each load that was offered to some rounds, from the lowest.
fn lowest_of_each(mut rates: Vec<f64>) -> Vec<f64> {
    rates.sort_by(f64::total_cmp);
    let mut lowest: Vec<f64> = Vec::new();
    for rate in rates {
        if lowest.last().is_none_or(|lowest| rate > lowest * SAME) {
            lowest.push(rate);
        }
    }
    lowest
}

/// Reports that a phase's load was not reached.
pub(super) fn waits(phase: &Phase) -> Option<String> {
    queue(per_second(phase)?, phase.offered_per_second)
}

/// The part behind the `@` of a phase's name, without a distinguishing rate: `80` or `25000/s`.
fn load_of(name: &str) -> &str {
    let load = name.split_once('@').map_or("", |(_, load)| load);
    load.split(' ').next().unwrap_or_default()
}

/// The place of a load among others: percents first, each by their numbers.
fn rank(name: &str) -> (bool, u64) {
    let load = load_of(name);
    let number = load.strip_suffix("/s").unwrap_or(load);
    (number != load, number.parse().unwrap_or(u64::MAX))
}

impl Experiment<'_> {
    /// A workload at each offered load, by the names of its phases: from the lowest.
    pub(super) fn at_loads(&self, workload: &str) -> Vec<String> {
        let prefix = format!("{workload}@");
        let phases = self.runs.iter().flat_map(|run| &run.phases);
        let phases = phases.filter(|phase| phase.workload.starts_with(&prefix));
        let mut loads: Vec<(f64, &str)> = Vec::new();
        for phase in phases {
            let name = phase.workload.as_str();
            if !loads.iter().any(|(_, other)| *other == name) {
                loads.push((phase.offered_per_second.unwrap_or_default(), name));
            }
        }
        loads.sort_by(|a, b| rank(a.1).cmp(&rank(b.1)).then(a.0.total_cmp(&b.0)));
        loads.into_iter().map(|(_, name)| name.to_owned()).collect()
    }

    /// The workloads that were run at offered loads.
    pub(super) fn open_workloads(&self) -> Vec<&str> {
        let workloads = self.settings().workloads.iter().map(String::as_str);
        workloads.filter(|workload| !self.at_loads(workload).is_empty()).collect()
    }

    /// The lowest and the highest rate of a load's rounds; `None` if there are none.
    fn rates(&self, shape: Shape, name: &str) -> Option<(f64, f64)> {
        let phases =
            self.systems(shape).into_iter().flat_map(|system| self.phases(shape, system, name));
        let mut rates = phases.filter_map(|phase| phase.offered_per_second);
        let first = rates.next()?;
        Some(rates.fold((first, first), |(min, max), rate| (min.min(rate), max.max(rate))))
    }

    /// Whether a system did not reach a load, in any round.
    fn waits(&self, shape: Shape, system: &str, name: &str) -> bool {
        self.phases(shape, system, name).any(|phase| waits(phase).is_some())
    }

    /// A latency, marked if it, or its divisor, is of a load that was not reached.
    pub(super) fn marked(&self, cell: Cell, shape: Shape, systems: [&str; 2], name: &str) -> Cell {
        let waits = systems.map(|system| self.waits(shape, system, name));
        let mark = |is_set: bool| if is_set { QUEUE_MARK } else { "" };
        let either = mark(waits.contains(&true));
        Cell {
            text: cell.text + mark(waits[0]),
            ratio: cell.ratio.map(|(ratio, tone)| (ratio + either, tone)),
        }
    }

    /// The loads that were run, in few characters: `80 %, 31.3 k/s`, with the range of rounds where
    /// it shows, and the systems that did not reach it.
    pub(super) fn load_labels(&self, shape: Shape, loads: Vec<String>) -> Vec<(String, String)> {
        let label = |name: String| {
            let (min, max) = self.rates(shape, &name)?;
            let (min, max) = (short(min.round()), short(max.round()));
            let rate = if min == max { format!("{min}/s") } else { format!("{min} to {max}/s") };
            let load = load_of(&name);
            let label = if load.ends_with("/s") { rate } else { format!("{load} %, {rate}") };
            let waiting = self.systems(shape).into_iter().filter(|s| self.waits(shape, s, &name));
            let waiting: Vec<&str> = waiting.collect();
            let label = match waiting.is_empty() {
                true => label,
                false => format!("{label}, not reached by {}", waiting.join(", ")),
            };
            Some((name, label))
        };
        loads.into_iter().filter_map(label).collect()
    }

    /// Reports that rounds of one percent had different rates.
    pub(super) fn loads_apart(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for shape in self.shapes() {
            for workload in self.open_workloads() {
                let loads = self.at_loads(workload);
                for same in loads.chunk_by(|a, b| load_of(a) == load_of(b)) {
                    let rates = same.iter().filter_map(|name| self.rates(shape, name));
                    let rates: Vec<String> =
                        rates.map(|(min, _)| grouped(min.round() as u64)).collect();
                    if rates.len() > 1 {
                        warnings.push(format!(
                            "{}, {shape}: rounds of {workload}@{} were offered {} requests a second, which are \
                             told apart: the same rate for all is --offered-per-second",
                            self.label,
                            load_of(&same[0]),
                            rates.join(" and ")
                        ));
                    }
                }
            }
        }
        warnings
    }
}

/// Loads in words: percents, then rates.
pub(super) fn words(percents: &[u64], rates: &[u64]) -> String {
    let percents = percents.iter().map(|percent| format!("{percent} %"));
    let rates = rates.iter().map(|rate| format!("{} a second", grouped(*rate)));
    percents.chain(rates).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_within_a_fiftieth_of_the_lowest_are_one_load() {
        assert_eq!(lowest_of_each(vec![102.0, 100.0, 101.0]), [100.0]);
        assert_eq!(lowest_of_each(vec![103.0, 100.0, 101.5, 106.0]), [100.0, 103.0, 106.0]);
        assert_eq!(lowest_of_each(Vec::new()), [0.0; 0]);
    }
}
