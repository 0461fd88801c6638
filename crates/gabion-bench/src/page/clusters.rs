//! Runs of clusters, put together: rounds of one experiment, and its figures.

use super::input::{ClusterRun, Origin, Phase, Settings};
use super::loads::{self, waits};
use super::stats::{Better, Ratio, Sample};
use crate::figures::{Figures, Shape, other_work, sum};
use crate::report::STOLEN_MAX;
use crate::text::{grouped, megabytes};
use crate::workload::Kind;
use gabion_base::units::MIB;
use std::collections::BTreeSet;

/// The compacting sides: Gabion's primary, each of Gabion's replicas, and each replica of
/// RubbleDB's baseline, by the name of its store.
pub(super) const SYSTEMS: [&str; 3] = ["primary", "every-replica", "rocksdb"];
/// RubbleDB's baseline.
pub(super) const ROCKSDB: &str = SYSTEMS[2];
/// Gabion in both ways: compacting once against compacting everywhere.
pub(super) const MODES: Pair = [SYSTEMS[0], SYSTEMS[1]];
/// All compared pairs.
pub(super) const PAIRS: [Pair; 3] = [[SYSTEMS[0], ROCKSDB], [SYSTEMS[1], ROCKSDB], MODES];

/// Two systems: the dividend and the divisor.
pub(super) type Pair = [&'static str; 2];

/// Runs of one program on one machine with the same settings, but for the numbers of replicas and
/// groups and for who compacts.
#[derive(Clone, Debug)]
pub(super) struct Experiment<'a> {
    pub(super) runs: Vec<&'a ClusterRun>,
    /// A short name, different for each experiment of a report.
    pub(super) label: String,
}

/// A figure of one workload in one run.
pub(super) struct Measure {
    pub(super) name: &'static str,
    pub(super) better: Better,
    pub(super) of: fn(&Phase) -> Option<f64>,
}

/// The name of [`per_machine_second`].
pub(super) const MACHINE_SECOND: &str = "requests per CPU second of the machine";
/// The name of [`per_replica_second`].
pub(super) const REPLICA_SECOND: &str = "requests per CPU second of replicas";

/// The figures that compare two ways of compacting.
pub(super) const MEASURES: [Measure; 8] = [
    Measure { name: "requests/s", better: Better::More, of: per_second },
    Measure { name: MACHINE_SECOND, better: Better::More, of: per_machine_second },
    Measure { name: "CPU per request", better: Better::Less, of: cpu_us },
    Measure { name: "p99 of writes", better: Better::Less, of: |p| p99_us(p, &WRITES) },
    Measure { name: "p99 of reads", better: Better::Less, of: |p| p99_us(p, &READS) },
    Measure {
        name: "device reads",
        better: Better::Less,
        of: |p| Some(bytes(p, |u| u.read_bytes)),
    },
    Measure {
        name: "device writes",
        better: Better::Less,
        of: |p| Some(bytes(p, |u| u.write_bytes)),
    },
    Measure { name: "network", better: Better::Less, of: |p| Some(network(p)) },
];

/// Requests of all types a second.
pub(super) fn per_second(phase: &Phase) -> Option<f64> {
    let sum: f64 = phase.operations.iter().map(|operation| operation.per_second).sum();
    (!phase.operations.is_empty()).then_some(sum)
}

fn requests(phase: &Phase) -> u64 {
    phase.operations.iter().map(|operation| operation.count).sum()
}

/// Processor time of all replicas until compaction is quiet, per request, µs.
pub(super) fn cpu_us(phase: &Phase) -> Option<f64> {
    let requests = requests(phase);
    (requests > 0).then(|| 1e6 * sum(&phase.replicas).cpu_seconds / requests as f64)
}

/// Requests for each second in which a processor of the machine worked, for anything but clients:
/// for replicas, and for the kernel's own threads, which write the page cache and serve the network
/// for them.
pub(super) fn per_machine_second(phase: &Phase) -> Option<f64> {
    let seconds = phase.machine_cpu_seconds - phase.client_cpu_seconds;
    let requests = requests(phase);
    (requests > 0 && seconds > 0.0).then(|| requests as f64 / seconds)
}

/// Requests for each second of processor time of all replicas: RubbleDB's throughput per core.
pub(super) fn per_replica_second(phase: &Phase) -> Option<f64> {
    cpu_us(phase).filter(|us| *us > 0.0).map(|us| 1e6 / us)
}

/// Types of requests, as a reader groups them. No workload has two of one group, so ratios are of
/// one type.
const WRITES: [&str; 3] =
    [Kind::Insert.as_str(), Kind::Update.as_str(), Kind::ReadModifyWrite.as_str()];
const READS: [&str; 2] = [Kind::Read.as_str(), Kind::Scan.as_str()];

/// The highest p99 of these types; `None` where a workload has none of them.
fn p99_us(phase: &Phase, kinds: &[&str]) -> Option<f64> {
    let own = phase.operations.iter().filter(|operation| kinds.contains(&operation.kind.as_str()));
    own.map(|operation| operation.latency_us[1]).reduce(f64::max)
}

fn bytes(phase: &Phase, of: fn(&crate::status::Usage) -> u64) -> f64 {
    of(&sum(&phase.replicas)) as f64
}

/// Each byte once: the traffic of clients and replicas, and between replicas.
fn network(phase: &Phase) -> f64 {
    traffic(phase).iter().sum::<u64>() as f64
}

/// The same by kind: clients, members, NVMe/TCP.
pub(super) fn traffic(phase: &Phase) -> [u64; 3] {
    let all = sum(&phase.replicas);
    [all.sent[0] + all.received[0], all.sent[1], all.sent[2]]
}

/// Groups runs into experiments, in the order in which they come.
pub(super) fn experiments(runs: &[ClusterRun]) -> Vec<Experiment<'_>> {
    let mut experiments: Vec<Experiment<'_>> = Vec::new();
    for run in runs {
        let is_same =
            |experiment: &&mut Experiment<'_>| experiment.runs.iter().all(|other| other.is_of(run));
        match experiments.iter_mut().find(is_same) {
            Some(experiment) => experiment.runs.push(run),
            None => {
                let mut label = short_label(&run.settings);
                let same = experiments.iter().filter(|e| e.label.starts_with(&label)).count();
                if same > 0 {
                    label = format!("{label} (no. {})", same + 1);
                }
                experiments.push(Experiment { runs: vec![run], label });
            }
        }
    }
    experiments
}

fn short_label(settings: &Settings) -> String {
    let Settings { records, value_size, compressibility, mix, .. } = settings;
    let share = if *compressibility > 0.0 {
        format!(", {:.0} % compressible", 100.0 * compressibility)
    } else {
        String::new()
    };
    if let Some(mix) = mix {
        return format!("{} records of {}{share}", grouped(*records), mix.to_uppercase());
    }
    format!("{} records of {} bytes{share}", grouped(*records), grouped(*value_size))
}

/// A warning about figures that nobody may quote.
pub(super) fn debug_build<'a>(
    label: &str,
    mut origins: impl Iterator<Item = &'a Origin>,
) -> Option<String> {
    let text = "measured by a debug build, whose figures say nothing about a release build";
    origins.any(|origin| origin.is_debug).then(|| format!("{label}: {text}"))
}

/// A length in words.
pub(super) fn length(len: u64) -> String {
    match len {
        len if len >= MIB && len.is_multiple_of(MIB) => format!("{} MiB", grouped(len / MIB)),
        len => format!("{} bytes", grouped(len)),
    }
}

/// One codec, or that of the bottom with it.
pub(super) fn codecs(upper: &str, bottom: Option<&str>) -> String {
    match bottom {
        None => upper.to_owned(),
        Some(bottom) => format!("{upper}, at the bottom {bottom}"),
    }
}

/// The settings of trees, with the name of values apart.
pub(super) fn tree<'a>(s: &Settings, apart: &'a str) -> impl Iterator<Item = (&'a str, String)> {
    let codec = s.compression.as_deref();
    let codec = codec.map(|codec| codecs(codec, s.bottom_compression.as_deref()));
    let tree = [
        ("compression", codec),
        ("MemTable", s.memtable_len.map(length)),
        (apart, s.large_values.map(|len| format!("from {len} bytes on"))),
        ("growth factor", s.growth_factor.map(|growth| growth.to_string())),
    ];
    tree.into_iter().filter_map(|(name, value)| Some((name, value?)))
}

/// Every setting.
pub(super) fn facts(settings: &Settings) -> Vec<(&'static str, String)> {
    let s = settings;
    let mut facts = vec![
        ("records", grouped(s.records)),
        ("bytes of a value", grouped(s.value_size)),
        ("compressibility", s.compressibility.to_string()),
        ("workloads", s.workloads.join(", ")),
        ("requests of each but load", format!("{}, {}", grouped(s.operations), s.distribution)),
        ("clients", format!("{}, {} requests under way each", s.clients, s.pipeline)),
        ("threads of clients", s.threads.to_string()),
    ];
    facts.extend(tree(s, "values apart"));
    facts.extend(s.ack.iter().map(|ack| ("acknowledged when", ack.clone())));
    let offered = loads::words(&s.offered, &s.offered_rates);
    facts.extend((!offered.is_empty()).then_some(("loads in open loops", offered)));
    facts.extend(s.baseline_log.iter().map(|log| ("log of the baseline's stores", log.clone())));
    let nice = s.baseline_jobs_nice.map(|steps| ("nice of the baseline's jobs", steps.to_string()));
    facts.extend(nice);
    facts
}

impl Experiment<'_> {
    /// The cache of each replica of the baseline: one for each number of groups, as groups share
    /// the records.
    pub(super) fn baseline_caches(&self) -> Option<String> {
        let cache = |run: &&ClusterRun| Some((run.shape.co_location, run.baseline_cache_len?));
        let caches: BTreeSet<(usize, u64)> = self.runs.iter().filter_map(cache).collect();
        let words = caches.into_iter().map(|(groups, len)| match groups {
            1 => format!("{} MB", megabytes(len)),
            groups => format!("{} MB with {groups} groups", megabytes(len)),
        });
        Some(words.collect::<Vec<_>>().join(", ")).filter(|words| !words.is_empty())
    }

    pub(super) fn first(&self) -> &ClusterRun {
        self.runs[0]
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.first().settings
    }

    /// Numbers of groups and replicas, each once, from the lowest.
    pub(super) fn shapes(&self) -> Vec<Shape> {
        let shapes: BTreeSet<Shape> = self.runs.iter().map(|run| run.shape).collect();
        shapes.into_iter().collect()
    }

    /// The shapes with runs of both sides.
    pub(super) fn paired(&self, pair: Pair) -> Vec<Shape> {
        let mut shapes = self.shapes();
        shapes.retain(|&shape| pair.iter().all(|system| self.rounds(shape, system) > 0));
        shapes
    }

    /// The systems that were run with these groups and replicas.
    pub(super) fn systems(&self, shape: Shape) -> Vec<&'static str> {
        SYSTEMS.into_iter().filter(|system| self.rounds(shape, system) > 0).collect()
    }

    /// The systems that were run at all.
    pub(super) fn all_systems(&self) -> Vec<&'static str> {
        let is_there = |system: &&str| self.runs.iter().any(|run| run.compaction == *system);
        SYSTEMS.into_iter().filter(is_there).collect()
    }

    /// The system whose figures divide those of the others.
    pub(super) fn baseline(&self) -> &'static str {
        if self.all_systems().contains(&ROCKSDB) { ROCKSDB } else { MODES[1] }
    }

    pub(super) fn rounds(&self, shape: Shape, mode: &str) -> usize {
        self.of(shape, mode).count()
    }

    fn of(&self, shape: Shape, mode: &str) -> impl Iterator<Item = &ClusterRun> {
        let is = move |run: &&ClusterRun| run.shape == shape && run.compaction == mode;
        self.runs.iter().copied().filter(is)
    }

    /// The phases of a workload, one for each round.
    pub(super) fn phases(
        &self,
        shape: Shape,
        mode: &str,
        workload: &str,
    ) -> impl Iterator<Item = &Phase> {
        let phases = self.of(shape, mode).flat_map(|run| &run.phases);
        phases.filter(move |phase| phase.workload == workload)
    }

    /// A figure over the rounds.
    pub(super) fn sample(
        &self,
        (shape, mode): (Shape, &str),
        workload: &str,
        measure: impl Fn(&Phase) -> Option<f64>,
    ) -> Option<Sample> {
        Sample::of(self.phases(shape, mode, workload).filter_map(measure))
    }

    /// The first side's figure ÷ the other's; none if a side is missing.
    pub(super) fn ratio(
        &self,
        pair: Pair,
        shape: Shape,
        workload: &str,
        measure: impl Fn(&Phase) -> Option<f64>,
    ) -> Option<Ratio> {
        if pair[0] == pair[1] {
            return None;
        }
        let [side, other] = pair.map(|system| self.sample((shape, system), workload, &measure));
        Ratio::of(&side?, &other?)
    }

    /// The workload whose costs are reported in full: the load if there is one, as in RubbleDB
    /// §5.2.
    pub(super) fn costed(&self) -> &str {
        let workloads = &self.settings().workloads;
        let load = workloads.iter().find(|workload| *workload == "load");
        load.or(workloads.first()).map_or("load", String::as_str)
    }

    /// Every name that phases have: workloads, then those at offered loads.
    pub(super) fn phase_names(&self) -> Vec<String> {
        let open = self.open_workloads().into_iter().flat_map(|workload| self.at_loads(workload));
        self.settings().workloads.iter().cloned().chain(open).collect()
    }

    /// Types of requests of a workload, in the order of the runs.
    pub(super) fn kinds(&self, workload: &str) -> Vec<&str> {
        let mut kinds: Vec<&str> = Vec::new();
        let phases = self.runs.iter().flat_map(|run| &run.phases);
        for phase in phases.filter(|phase| phase.workload == workload) {
            for operation in &phase.operations {
                if !kinds.contains(&operation.kind.as_str()) {
                    kinds.push(&operation.kind);
                }
            }
        }
        kinds
    }

    /// The formula's inputs, over the rounds.
    pub(super) fn figures(
        &self,
        cell: (Shape, &str),
        of: impl Fn(&Figures) -> Option<f64>,
    ) -> Option<Sample> {
        self.sample(cell, self.costed(), |phase| of(&Figures::of(&phase.replicas)))
    }

    /// The warnings that a reader needs before trusting these figures.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for run in &self.runs {
            let round = run.round.map_or_else(String::new, |round| format!(", round {round}"));
            for phase in &run.phases {
                let place = format!(
                    "{}, {}, {}{round}, workload {}",
                    run.origin.file, run.shape, run.compaction, phase.workload
                );
                if phase.wrong_reads > 0 {
                    warnings.push(format!("WRONG READS: {} ({place})", grouped(phase.wrong_reads)));
                }
                if let Some(queue) = waits(phase) {
                    warnings.push(format!("{queue} ({place})"));
                }
                if !phase.is_settled {
                    warnings.push(format!(
                        "Compaction was not quiet when counting ended, so CPU and I/O lack a part \
                         ({place})"
                    ));
                }
                if phase.refusals > 0 {
                    let times = grouped(phase.refusals);
                    warnings.push(format!(
                        "Requests were refused {times} times and tried again ({place})"
                    ));
                }
            }
        }
        warnings.extend(self.loads_apart());
        warnings.extend(self.busy());
        warnings.extend(self.stolen());
        for pair in PAIRS {
            let shapes = self.paired(pair).into_iter();
            warnings.extend(shapes.filter_map(|shape| self.other_work(pair, shape)));
        }
        warnings.extend(debug_build(&self.label, self.runs.iter().map(|run| &run.origin)));
        let rounds = |pair: Pair, shape| pair.map(|system| self.rounds(shape, system));
        let is_once =
            |pair| self.paired(pair).iter().any(|shape| rounds(pair, *shape).contains(&1));
        if PAIRS.into_iter().any(is_once) {
            warnings.push(format!(
                "{}: one round of some runs, so how far figures scatter is not known",
                self.label
            ));
        }
        warnings
    }

    /// Reports that jobs of the two sides did different work.
    fn other_work(&self, pair: Pair, shape: Shape) -> Option<String> {
        let made = |phase: &Phase| Some(sum(&phase.replicas).job_written_bytes as f64);
        let [one, other] = pair.map(|system| {
            let sample = self.sample((shape, system), self.costed(), made);
            sample.map(|sample| (system, sample.median))
        });
        Some(format!("{}, {}", self.label, other_work(shape, [one?, other?])?))
    }

    /// The processor time that the host took for others, if it was much.
    fn stolen(&self) -> Option<String> {
        let phases = self.runs.iter().flat_map(|run| &run.phases);
        let shares = phases.filter(|phase| phase.machine_cpu_seconds > 0.0);
        let shares = shares.map(|phase| phase.stolen_cpu_seconds / phase.machine_cpu_seconds);
        let most = shares.fold(0.0, f64::max);
        (most > STOLEN_MAX).then(|| {
            format!(
                "{}: the host took processor time for others, up to {:.0} % of what the machine \
                 worked: CPU seconds are too high",
                self.label,
                most * 100.0
            )
        })
    }

    /// The machine's work beyond replicas and clients, if it is more than half as much as theirs:
    /// others were at work.
    fn busy(&self) -> Option<String> {
        let phases = self.runs.iter().flat_map(|run| &run.phases);
        let shares = phases.filter_map(|phase| {
            let own = sum(&phase.replicas).cpu_seconds + phase.client_cpu_seconds;
            (own > 0.0).then(|| (phase.machine_cpu_seconds - own) / own)
        });
        let most = shares.fold(0.0, f64::max);
        (most > 0.5).then(|| {
            format!(
                "{}: the machine was busy with other things, up to {most:.1} times the CPU of \
                 replicas and clients",
                self.label
            )
        })
    }
}
