//! The missing parts of a report, and the commands that make them. Commands are built from the
//! settings of the existing runs, so that their results are comparable.

use super::clusters::{Experiment, MODES, ROCKSDB, SYSTEMS};
use super::document::Block;
use super::engines::{Group, OWN};
use super::input::Settings;
use super::{placement, twitter};
use crate::args::WorkloadChoice;
use crate::engines::Peer;
use crate::figures::Shape;
use crate::placement::MixChoice;
use crate::provenance::quoted;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

/// The numbers of replicas in RubbleDB's tables and figures.
const REPLICAS: [usize; 3] = [2, 3, 4];
/// The places where they are missing, by co-location factor.
const PLACES: [(usize, &str); 2] = [(1, "of RubbleDB's tables"), (2, "of RubbleDB's Figure 8")];
/// Workloads of RubbleDB's figures.
const WORKLOADS: [&str; 8] = ["load", "a", "b", "c", "d", "e", "f", "g"];

/// In place of any one workload of Twitter; each has records of its own size.
const ANY_CLUSTER: &str = "twitter-CLUSTER";

/// A command line that grows.
struct Line(String);

impl Line {
    fn option(mut self, name: &str, value: impl Display) -> Self {
        self.0.push_str(&format!(" --{name} {}", quoted(&value.to_string())));
        self
    }

    fn optional(self, name: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.option(name, value),
            None => self,
        }
    }

    fn flag(mut self, name: &str, is_set: bool) -> Self {
        if is_set {
            self.0.push_str(&format!(" --{name}"));
        }
        self
    }
}

fn joined<T: Display>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Everything that is missing.
pub(super) fn missing(
    experiments: &[Experiment<'_>],
    mixes: &[placement::Figure<'_>],
    groups: &[Group<'_>],
) -> Vec<Block> {
    let mut blocks = Vec::new();
    if experiments.is_empty() {
        blocks.push(Block::Command {
            what: "No run of a replicated cluster, so no form of RubbleDB's Tables 3 to 5 and \
                   Figures 7, 8 and 10."
                .to_owned(),
            command: "gabion bench replication --replicas 2,3,4 --co-location 1,2 --json \
                      replication.json"
                .to_owned(),
        });
    }
    blocks.extend(experiments.iter().flat_map(of_experiment));
    blocks.extend(of_figure_9(experiments));
    blocks.extend(of_mixes(mixes));
    if experiments.iter().all(|experiment| experiment.settings().baseline_log.is_none()) {
        blocks.extend(experiments.iter().filter_map(beside_baseline));
    }
    if groups.is_empty() {
        blocks.push(Block::Command {
            what: "No row of an engine alone, so no comparison with others.".to_owned(),
            command: "gabion bench engine --vs rocksdb,fjall --json engines.json".to_owned(),
        });
    }
    blocks.extend(groups.iter().flat_map(of_group));
    blocks.push(Block::Text(
        "What no command makes: RubbleDB's Figure 9 as it is there. The traces of Twitter \
         themselves cannot be had (workloads twitter-2 to twitter-31 have their shares of requests, \
         skews and sizes), nor the device of its part (b)."
            .to_owned(),
    ));
    blocks
}

/// The mixes of Tebis that no run has.
fn of_mixes(figures: &[placement::Figure<'_>]) -> Vec<Block> {
    if figures.is_empty() {
        return vec![Block::Command {
            what: "No run of Tebis's mixes of sizes, so no form of its Figures 8 to 10 and 12."
                .to_owned(),
            command: "gabion bench placement --json placement.json".to_owned(),
        }];
    }
    let lacking = |figure: &placement::Figure<'_>| {
        let mixes: Vec<&str> = figure.lacking().into_iter().map(MixChoice::as_str).collect();
        let s = figure.settings();
        let replicas = distinct(&figure.shapes(), |shape| shape.replicas);
        let line = Line("gabion bench placement".to_owned())
            .option("mixes", mixes.join(","))
            .option("replicas", joined(&replicas))
            .optional("large-values", s.large_values)
            .optional("growth-factor", s.growth_factor)
            .optional("memtable-size", s.memtable_len)
            .option("compressibility", s.compressibility)
            .option("distribution", &s.distribution)
            .option("clients", s.clients)
            .option("pipeline", s.pipeline)
            .option("threads", s.threads)
            .option("json", "more.json");
        (!mixes.is_empty()).then(|| Block::Command {
            what: format!("Tebis's mixes {}.", mixes.join(", ").to_uppercase()),
            command: line.0,
        })
    };
    figures.iter().filter_map(lacking).collect()
}

/// The clusters of Figure 9 that no run has: beside the existing ones, or by the settings of the
/// first experiment.
fn of_figure_9(experiments: &[Experiment<'_>]) -> Vec<Block> {
    let figures = twitter::figures(experiments);
    let lacking = |figure: &twitter::Figure<'_>| {
        let clusters = figure.lacking();
        let experiment = figure.first();
        (!clusters.is_empty()).then(|| Block::Command {
            what: format!(
                "{}: clusters {} of RubbleDB's Figure 9.",
                experiment.label,
                twitter::numbers(&clusters).replace(' ', ", ")
            ),
            command: of_clusters(experiment.settings(), &clusters, &figure.shapes()),
        })
    };
    let mut blocks: Vec<Block> = figures.iter().filter_map(lacking).collect();
    if let ([first, ..], []) = (experiments, &figures[..]) {
        blocks.push(Block::Command {
            what: "No run of the mixes of Twitter's clusters, so no form of RubbleDB's Figure 9."
                .to_owned(),
            command: of_clusters(first.settings(), &twitter::all(), &[twitter::SHAPE]),
        });
    }
    blocks
}

/// Runs of clusters of Twitter, one after the other, as each has records of its own size.
fn of_clusters(settings: &Settings, clusters: &[WorkloadChoice], shapes: &[Shape]) -> String {
    let line = run(settings, &["load", ANY_CLUSTER], possible(settings), shapes);
    let line =
        line.replace(ANY_CLUSTER, "twitter-$cluster").replace("more.json", "more-$cluster.json");
    format!("for cluster in {}; do {line}; done", twitter::numbers(clusters))
}

/// The possible systems of an experiment with these settings.
const fn possible(settings: &Settings) -> &'static [&'static str] {
    if settings.baseline_log.is_some() { &SYSTEMS } else { &MODES }
}

/// Systems in a command's order: the baseline first, as it divides the others. If loads are
/// percents of one system's answers, that system is first, whether or not it is asked for: the
/// first one decides the loads.
fn in_order(settings: &Settings, systems: &[&'static str]) -> Vec<&'static str> {
    let of = settings.offered_of.as_deref().unwrap_or(ROCKSDB);
    let first = if settings.offered.is_empty() { ROCKSDB } else { of };
    let is_asked = |system: &&str| systems.contains(system);
    let is_needed = |system: &&str| *system == first && !settings.offered.is_empty();
    let mut ordered: Vec<&str> =
        SYSTEMS.into_iter().filter(|system| is_asked(system) || is_needed(system)).collect();
    ordered.sort_by_key(|system| *system != first);
    ordered
}

/// Runs of some systems, comparable with those of these settings, in each of these shapes at least.
fn run(
    settings: &Settings,
    workloads: &[&str],
    systems: &[&'static str],
    shapes: &[Shape],
) -> String {
    let s = settings;
    let replicas = distinct(shapes, |shape| shape.replicas);
    let co_location = distinct(shapes, |shape| shape.co_location);
    let operations = (s.operations != s.records).then_some(s.operations);
    // If the baseline is measured, one command measures all.
    let line = match &s.baseline_log {
        Some(log) => Line("gabion bench replication".to_owned())
            .option("systems", joined(&in_order(s, systems)))
            .option("log", log)
            .optional("baseline-jobs-nice", s.baseline_jobs_nice)
            .optional("offered", (!s.offered.is_empty()).then(|| joined(&s.offered)))
            .optional(
                "offered-per-second",
                (!s.offered_rates.is_empty()).then(|| joined(&s.offered_rates)),
            ),
        None => Line("gabion bench ycsb".to_owned())
            .option("compaction", if systems.len() == 1 { systems[0] } else { "both" }),
    };
    let line = line
        .option("workloads", workloads.join(","))
        .option("records", s.records)
        .optional("operations", operations)
        .optional("value-size", (!workloads.contains(&ANY_CLUSTER)).then_some(s.value_size))
        .option("compressibility", s.compressibility)
        .optional("compression", s.compression.as_ref())
        .optional("bottom-compression", s.bottom_compression.as_ref())
        .optional("large-values", s.large_values)
        .optional("growth-factor", s.growth_factor)
        .option("distribution", &s.distribution)
        .option("clients", s.clients)
        .option("pipeline", s.pipeline)
        .option("threads", s.threads)
        .optional("memtable-size", s.memtable_len)
        .optional("ack", s.ack.as_ref())
        .option("replicas", joined(&replicas))
        .optional("co-location", (co_location != [1]).then(|| joined(&co_location)))
        .option("json", "more.json");
    line.0
}

/// A number of shapes, each once, from the lowest.
fn distinct(shapes: &[Shape], of: fn(&Shape) -> usize) -> Vec<usize> {
    shapes.iter().map(of).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Numbers of replicas, and of groups where there are several.
fn named(shapes: &[Shape]) -> String {
    let named = |shapes: &[Shape]| {
        let co_location = shapes[0].co_location;
        let groups =
            if co_location == 1 { String::new() } else { format!(", {co_location} groups") };
        format!("R = {}{groups}", joined(&distinct(shapes, |shape| shape.replicas)))
    };
    let by_groups = shapes.chunk_by(|a, b| a.co_location == b.co_location);
    by_groups.map(named).collect::<Vec<_>>().join("; ")
}

fn of_experiment(experiment: &Experiment<'_>) -> Vec<Block> {
    let (settings, label) = (experiment.settings(), &experiment.label);
    let own: Vec<&str> = settings.workloads.iter().map(String::as_str).collect();
    let there = experiment.shapes();
    let systems = possible(settings);
    let mut blocks = Vec::new();
    for system in systems {
        let mut lacking = there.clone();
        lacking.retain(|&shape| experiment.rounds(shape, system) == 0);
        if !lacking.is_empty() {
            blocks.push(Block::Command {
                what: format!(
                    "{label}: no run of {system} at {}, so no ratio there.",
                    named(&lacking)
                ),
                command: run(settings, &own, &[system], &lacking),
            });
        }
    }
    if twitter::is_of_cluster(settings) {
        // Figure 9 has neither other shapes nor other workloads.
        return blocks;
    }
    for (co_location, place) in PLACES {
        let shapes = REPLICAS.map(|replicas| Shape { co_location, replicas });
        let lacking: Vec<Shape> = shapes.into_iter().filter(|s| !there.contains(s)).collect();
        if !lacking.is_empty() {
            let what = format!("{label}: {} {place}.", named(&lacking));
            blocks.push(Block::Command { what, command: run(settings, &own, systems, &lacking) });
        }
    }
    let lacking: Vec<&str> = WORKLOADS.into_iter().filter(|w| !own.contains(w)).collect();
    if !lacking.is_empty() {
        blocks.push(Block::Command {
            what: format!("{label}: workloads {} of Figures 7, 8 and 10.", lacking.join(", ")),
            command: run(settings, &WORKLOADS, systems, &there),
        });
    }
    let has_loads = !settings.offered.is_empty() || !settings.offered_rates.is_empty();
    if settings.baseline_log.is_some() && !has_loads {
        let open = Settings { offered: vec![20, 40, 60, 80], ..settings.clone() };
        blocks.push(Block::Command {
            what: format!("{label}: latencies by offered load, as in Figure 10."),
            command: run(&open, &["load", "a"], systems, &there),
        });
    }
    blocks
}

/// The same beside RubbleDB's baseline; one command measures all of them.
fn beside_baseline(experiment: &Experiment<'_>) -> Option<Block> {
    let settings = experiment.settings();
    let log = if settings.ack.as_deref()? == "durable" { "synced" } else { "on" };
    // A chain of the baseline has two replicas at least.
    let mut shapes = experiment.shapes();
    shapes.retain(|shape| shape.replicas > 1);
    let own: Vec<&str> = settings.workloads.iter().map(String::as_str).collect();
    let beside = Settings { baseline_log: Some(log.to_owned()), ..settings.clone() };
    (!shapes.is_empty()).then(|| Block::Command {
        what: format!(
            "{}: no run beside RubbleDB's baseline, a RocksDB for each replica.",
            experiment.label
        ),
        command: run(&beside, &own, &SYSTEMS, &shapes),
    })
}

/// Workloads of a group by their records there: a command has one number.
fn by_records<'a>(group: &Group<'_>, workloads: &[&'a str]) -> BTreeMap<u64, Vec<&'a str>> {
    let mut found: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for &name in workloads {
        let runs = group.runs.iter().filter(|run| run.workload == name);
        for records in runs.map(|run| run.records).collect::<BTreeSet<_>>() {
            found.entry(records).or_default().push(name);
        }
    }
    found
}

fn engine(group: &Group<'_>, peers: &[&str], records: u64, workloads: &[&str]) -> String {
    let s = &group.runs[0].settings;
    let named = group.runs.iter().filter(|run| workloads.contains(&run.workload.as_str()));
    let named = named.filter(|run| run.records == records);
    let caches: BTreeSet<u64> = named.map(|run| run.cache_len).collect();
    let line = Line("gabion bench engine".to_owned())
        .option("vs", peers.join(","))
        .option("workloads", workloads.join(","))
        .option("value-sizes", s.value_size)
        .option("log", &s.log)
        .option("records", records)
        .option("compressibility", s.compressibility)
        .option("compression", &s.compression)
        .optional("bottom-compression", s.bottom_compression.as_ref())
        .option("memtable-size", s.memtable_len)
        .optional("block-size", s.block_len)
        // If workloads have different caches, the command gives them these by itself.
        .optional("cache", caches.first().filter(|_| caches.len() == 1))
        .option("background-threads", s.background_threads)
        .flag("buffered", !s.is_direct)
        .option("json", "more.json");
    line.0
}

fn of_group(group: &Group<'_>) -> Vec<Block> {
    let engines = group.engines();
    // Those of the figures; BlobDB is beside large values only.
    let known = [Peer::Rocksdb, Peer::Fjall].map(Peer::as_str);
    let has = |name: &str| engines.iter().any(|engine| engine.0 == name);
    let peers: Vec<&str> = known.iter().copied().filter(|peer| has(peer)).collect();
    let mut blocks = Vec::new();
    let mut add = |what: String, peers: &[&str], workloads: &[&str]| {
        for (records, workloads) in by_records(group, workloads) {
            let command = engine(group, peers, records, &workloads);
            blocks.push(Block::Command { what: format!("{}: {what}", group.label), command });
        }
    };
    let lacking: Vec<&str> = known.iter().copied().filter(|peer| !has(peer)).collect();
    if !lacking.is_empty() {
        let what = format!("no row of {}.", lacking.join(" and of "));
        add(what, &lacking, &group.workload_names());
    }
    if !has(OWN) {
        let what = format!("no row of {OWN}, so no ratio.");
        add(what, if peers.is_empty() { &known } else { &peers }, &group.workload_names());
    }
    for found in &engines {
        let workloads = group.lacking(found);
        if workloads.is_empty() {
            continue;
        }
        // A command measures this engine in any case, beside at least one other.
        let vs: Vec<&str> = known.iter().copied().filter(|peer| *peer == found.0).collect();
        let vs = if vs.is_empty() { &peers } else { &vs };
        let what = format!("no row of {} for {}.", found.0, workloads.join(", "));
        add(what, if vs.is_empty() { &known } else { vs }, &workloads);
    }
    blocks
}
