//! The sections about engines alone: this one beside others, workload by workload.

use super::chart::{Chart, Form, Series};
use super::clusters::{codecs, debug_build, length};
use super::document::{Block, Cell, Section, Sheet, Verdict};
use super::input::{EngineRun, EngineSettings};
use super::stats::{Better, Ratio, Sample, significant};
use crate::engines::rows::{OTHER_WORK, OTHERS_MAX, is_other_work};
use crate::text::grouped;
use clap::ValueEnum;
use std::collections::BTreeSet;

/// The engine that the others are compared with.
pub(super) const OWN: &str = "gabion";

/// Runs of one program on one machine with the same settings, over workloads and engines.
#[derive(Clone, Debug)]
pub(super) struct Group<'a> {
    pub(super) runs: Vec<&'a EngineRun>,
    /// A short name, different for each group of a report.
    pub(super) label: String,
}

/// An engine's name and version.
pub(super) type Engine = (String, String);
/// A workload on a data set: with `--quick` write-only workloads have another than those that read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Workload<'a> {
    name: &'a str,
    /// Bytes of its cache.
    cache_len: u64,
    records: u64,
}

impl<'a> Workload<'a> {
    fn of(run: &'a EngineRun) -> Self {
        Self { name: &run.workload, cache_len: run.cache_len, records: run.records }
    }
}

/// A figure of a row.
struct Measure {
    name: &'static str,
    /// The unit, with the space before it.
    unit: &'static str,
    better: Better,
    of: fn(&EngineRun) -> Option<f64>,
}

/// The figures of speed and its cost.
const SPEED: [Measure; 6] = [
    Measure { name: "ops/s", unit: "", better: Better::More, of: |run| run.figure("per_second") },
    Measure {
        name: "ops/s until quiet",
        unit: "",
        better: Better::More,
        of: |run| run.figure("per_second_quiet"),
    },
    Measure { name: "CPU per op", unit: " µs", better: Better::Less, of: cpu_us },
    Measure { name: "p50", unit: " µs", better: Better::Less, of: |run| run.figure("p50_us") },
    Measure { name: "p99", unit: " µs", better: Better::Less, of: |run| run.figure("p99_us") },
    Measure { name: "p99.9", unit: " µs", better: Better::Less, of: |run| run.figure("p999_us") },
];

/// The costs beside time. The last two are not among the ratios at the head of a report: they are
/// parts of others.
const SPACE: [Measure; 6] = [
    Measure {
        name: "write amp",
        unit: "",
        better: Better::Less,
        of: |run| run.figure("write_amp"),
    },
    Measure { name: "read amp", unit: "", better: Better::Less, of: |run| run.figure("read_amp") },
    Measure {
        name: "space amp",
        unit: "",
        better: Better::Less,
        of: |run| run.figure("space_amp"),
    },
    Measure { name: "peak memory", unit: " MB", better: Better::Less, of: memory_mb },
    Measure {
        name: "quiet after",
        unit: " s",
        better: Better::Less,
        of: |run| run.figure("quiet_seconds"),
    },
    Measure {
        name: "space amp without logs",
        unit: "",
        better: Better::Less,
        of: |run| run.figure("space_amp_files"),
    },
];

/// Until compaction is quiet if the workload leaves some work, so that nobody's debt is left out.
fn cpu_us(run: &EngineRun) -> Option<f64> {
    run.figure("cpu_us_per_op_quiet").or_else(|| run.figure("cpu_us_per_op"))
}

fn memory_mb(run: &EngineRun) -> Option<f64> {
    run.figure("peak_memory").map(|len| len / 1e6)
}

/// Groups rows that may be compared, in the order in which they come.
pub(super) fn groups(runs: &[EngineRun]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for run in runs {
        let is_same = |group: &&mut Group<'_>| {
            let first = group.runs[0];
            first.settings == run.settings && first.origin.is_comparable(&run.origin)
        };
        match groups.iter_mut().find(is_same) {
            Some(group) => group.runs.push(run),
            None => {
                let EngineSettings { value_size, log, .. } = &run.settings;
                let mut label = format!("values of {} bytes, log {log}", grouped(*value_size));
                let same = groups.iter().filter(|group| group.label.starts_with(&label)).count();
                if same > 0 {
                    label = format!("{label} (no. {})", same + 1);
                }
                groups.push(Group { runs: vec![run], label });
            }
        }
    }
    groups
}

/// Every setting.
pub(super) fn facts(group: &Group<'_>) -> Vec<(&'static str, String)> {
    let s = &group.runs[0].settings;
    let records: Vec<String> = group.records().into_iter().map(grouped).collect();
    let blocks = s.block_len.map_or_else(|| "as each engine's guide recommends".to_owned(), length);
    vec![
        ("records", records.join("; ")),
        ("bytes of a value", grouped(s.value_size)),
        ("log", s.log.clone()),
        ("compressibility", s.compressibility.to_string()),
        ("compression", codecs(&s.compression, s.bottom_compression.as_deref())),
        ("MemTable", length(s.memtable_len)),
        ("blocks", blocks),
        ("background threads", s.background_threads.to_string()),
        ("I/O", if s.is_direct { "direct" } else { "buffered" }.to_owned()),
    ]
}

impl Group<'_> {
    /// Engines, this one first.
    pub(super) fn engines(&self) -> Vec<&Engine> {
        let mut engines: Vec<&Engine> = Vec::new();
        for run in &self.runs {
            if !engines.contains(&&run.engine) {
                engines.push(&run.engine);
            }
        }
        engines.sort_by_key(|engine| engine.0 != OWN);
        engines
    }

    /// This engine and another, for each other.
    fn pairs(&self) -> Vec<(&Engine, &Engine)> {
        let engines = self.engines();
        let (own, peers): (Vec<&Engine>, Vec<&Engine>) =
            engines.into_iter().partition(|engine| engine.0 == OWN);
        own.first().map_or_else(Vec::new, |own| peers.iter().map(|peer| (*own, *peer)).collect())
    }

    /// Workloads, in the order of the runs.
    fn workloads(&self) -> Vec<Workload<'_>> {
        let mut workloads = Vec::new();
        for run in &self.runs {
            let workload = Workload::of(run);
            if !workloads.contains(&workload) {
                workloads.push(workload);
            }
        }
        workloads
    }

    /// Sizes of data sets, the smallest first.
    fn records(&self) -> BTreeSet<u64> {
        self.runs.iter().map(|run| run.records).collect()
    }

    /// A workload's name, with its records and its cache if it was run with several.
    fn name(&self, workload: Workload<'_>) -> String {
        let workloads = self.workloads();
        let same = || workloads.iter().filter(|other| other.name == workload.name);
        let mut name = workload.name.to_owned();
        if same().any(|other| other.records != workload.records) {
            name.push_str(&format!(", {} records", grouped(workload.records)));
        }
        let has_other_cache =
            |w: &Workload<'_>| w.records == workload.records && w.cache_len != workload.cache_len;
        if same().any(has_other_cache) {
            name.push_str(&format!(", cache {}", length(workload.cache_len)));
        }
        name
    }

    /// An engine's name in a line, with its version if several have the name.
    fn engine_name(&self, engine: &Engine) -> String {
        match self.engines().iter().filter(|other| other.0 == engine.0).count() {
            1 => engine.0.clone(),
            _ => named(engine),
        }
    }

    fn sample(
        &self,
        engine: &Engine,
        workload: Workload<'_>,
        of: fn(&EngineRun) -> Option<f64>,
    ) -> Option<Sample> {
        let is = |run: &&&EngineRun| run.engine == *engine && Workload::of(run) == workload;
        Sample::of(self.runs.iter().filter(is).filter_map(|run| of(run)))
    }

    fn ratio(
        &self,
        (own, peer): (&Engine, &Engine),
        workload: Workload<'_>,
        of: fn(&EngineRun) -> Option<f64>,
    ) -> Option<Ratio> {
        let sample = |engine| self.sample(engine, workload, of);
        Ratio::of(&sample(own)?, &sample(peer)?)
    }

    fn ratios(&self, pair: (&Engine, &Engine), of: fn(&EngineRun) -> Option<f64>) -> Vec<Ratio> {
        let workloads = self.workloads();
        workloads.into_iter().filter_map(|workload| self.ratio(pair, workload, of)).collect()
    }

    /// Workloads for which an engine has no row, each once.
    pub(super) fn lacking(&self, engine: &Engine) -> Vec<&str> {
        let mut names = self.workload_names();
        let has = |name: &str, w: &Workload<'_>| {
            w.name == name && self.sample(engine, *w, SPEED[0].of).is_none()
        };
        names.retain(|name| self.workloads().iter().any(|workload| has(name, workload)));
        names
    }

    /// Workloads' names, each once.
    pub(super) fn workload_names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for Workload { name, .. } in self.workloads() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Fewest and most rounds that an engine ran a workload.
    pub(super) fn rounds(&self) -> String {
        let rounds = |engine: &Engine, w: Workload<'_>| self.sample(engine, w, SPEED[0].of);
        let engines = self.engines();
        let cells = engines.iter().flat_map(|e| self.workloads().into_iter().map(|w| (*e, w)));
        let counts = cells.filter_map(|(engine, w)| Some(rounds(engine, w)?.count));
        let (min, max) = counts.fold((usize::MAX, 0), |(a, b), count| (a.min(count), b.max(count)));
        if min == max { max.to_string() } else { format!("{min} to {max}") }
    }

    /// The warnings that a reader needs before trusting these figures.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut cells = self.engines().into_iter().flat_map(|engine| {
            self.workloads().into_iter().filter_map(move |w| self.sample(engine, w, SPEED[0].of))
        });
        let has_single = cells.any(|sample| sample.count == 1);
        let text = "one round of some runs, so how far figures scatter is not known";
        let label = format!("Engines, {}", self.label);
        let debug = debug_build(&label, self.runs.iter().map(|run| &run.origin));
        let most = self.runs.iter().map(|run| run.others_share).fold(0.0, f64::max);
        let disturbed = (most > OTHERS_MAX).then(|| {
            let share = most * 100.0;
            format!(
                "{label}: others or its host had up to {share:.0} % of the machine's processors"
            )
        });
        let single = has_single.then(|| format!("{label}: {text}"));
        single.into_iter().chain(disturbed).chain(self.other_work()).chain(debug).collect()
    }

    /// Workloads in which an engine did not do as much as this one, in one sentence.
    fn other_work(&self) -> Option<String> {
        let mut texts = Vec::new();
        for (own, peer) in self.pairs() {
            for workload in self.workloads() {
                let done = |engine| {
                    let done = |run: &EngineRun| run.figure("operations");
                    Some(self.sample(engine, workload, done)?.median)
                };
                let known = gabion_workload::Workload::from_str(workload.name, false).ok();
                let Some((a, b)) = done(own).zip(done(peer)) else { continue };
                if known.is_some_and(|known| is_other_work(known, [a, b])) {
                    let [a, b] = [a, b].map(|count| grouped(count as u64));
                    let (name, peer) = (self.name(workload), named(peer));
                    texts.push(format!("{name} ({OWN} {a} operations, {peer} {b})"));
                }
            }
        }
        let text = texts.join(", ");
        (!texts.is_empty()).then(|| format!("Engines, {}: {text}: {OTHER_WORK}", self.label))
    }
}

fn named(engine: &Engine) -> String {
    format!("{} {}", engine.0, engine.1)
}

/// The verdicts against each other engine, by the means over workloads.
pub(super) fn verdicts(group: &Group<'_>) -> Vec<Verdict> {
    let verdict = |pair: (&Engine, &Engine)| {
        let count = group.ratios(pair, SPEED[0].of).len();
        let mean = |measure: &Measure| {
            let ratio = Ratio::mean(&group.ratios(pair, measure.of))?;
            Some((measure.name.to_owned(), ratio, measure.better))
        };
        let measures = SPEED.iter().chain(&SPACE[..4]);
        Verdict {
            sides: format!("{OWN} ÷ {}", named(pair.1)),
            place: format!("{}; means over {count} workloads", group.label),
            figures: measures.filter_map(mean).collect(),
        }
    };
    let verdicts = group.pairs().into_iter().map(verdict);
    verdicts.filter(|verdict| !verdict.figures.is_empty()).collect()
}

/// All ratios of a group: a line for each workload and peer, then their means. Nothing without
/// peers.
pub(super) fn overview(group: &Group<'_>) -> Option<Sheet> {
    let measures: Vec<&Measure> = SPEED.iter().chain(&SPACE[..4]).collect();
    let names = measures.iter().map(|measure| measure.name);
    let header: Vec<&str> = std::iter::once("workload, ÷ engine").chain(names).collect();
    let mut sheet = Sheet::new(format!("{OWN} ÷ others: {}", group.label), &header);
    for pair in group.pairs() {
        for workload in group.workloads() {
            let ratio = |m: &&Measure| Cell::ratio(group.ratio(pair, workload, m.of), m.better);
            let cells: Vec<Cell> = measures.iter().map(ratio).collect();
            if cells.iter().any(|cell| cell.ratio.is_some()) {
                let peer = group.engine_name(pair.1);
                sheet.row(format!("{}, ÷ {peer}", group.name(workload)), cells);
            }
        }
        let mean = |m: &&Measure| Cell::ratio(Ratio::mean(&group.ratios(pair, m.of)), m.better);
        let peer = group.engine_name(pair.1);
        sheet.row(format!("geometric mean, ÷ {peer}"), measures.iter().map(mean).collect());
    }
    (!sheet.rows.is_empty()).then_some(sheet)
}

/// The section of a group.
pub(super) fn section(group: &Group<'_>) -> Section {
    let text = "Medians over rounds; ± is the farthest round. CPU is counted until compaction is quiet; \
                ops/s end with the last answer, ops/s until quiet when what it left to flush and \
                compact is done.";
    let mut blocks = vec![Block::Text(text.to_owned())];
    let limits = limits(group);
    blocks.extend((!limits.is_empty()).then_some(Block::Warnings(limits)));
    blocks.push(Block::Charts(charts(group)));
    blocks.push(Block::Sheet(figures(group, "Speed and CPU", &SPEED)));
    blocks.push(Block::Sheet(figures(group, "Amplification, memory, debt", &SPACE)));
    Section { title: format!("Engines alone: {}", group.label), blocks }
}

/// Options that engines could not honour, each sentence once.
fn limits(group: &Group<'_>) -> Vec<String> {
    let mut limits: Vec<String> = Vec::new();
    for limit in group.runs.iter().flat_map(|run| &run.limits) {
        if !limits.contains(limit) {
            limits.push(limit.clone());
        }
    }
    limits
}

fn charts(group: &Group<'_>) -> Vec<Chart> {
    let throughput = chart_of_ratios(group, &SPEED[0], "Operations a second");
    let cpu = chart_of_ratios(group, &SPEED[2], "CPU per operation");
    let engines = group.engines();
    let workloads = group.workloads();
    let series = engines.iter().enumerate().map(|(i, engine)| Series {
        name: named(engine),
        class: format!("s{}", i % 6),
        values: workloads.iter().map(|w| group.sample(engine, *w, SPEED[0].of)).collect(),
    });
    let absolute = Chart {
        title: format!("Operations a second, {}", group.label),
        note: "More is better; thin lines: from the slowest round to the fastest".to_owned(),
        groups: workloads.iter().map(|workload| group.name(*workload)).collect(),
        series: series.collect(),
        form: Form::Bars,
    };
    let charts = [throughput, cpu, absolute];
    charts.into_iter().filter(|chart| !chart.is_empty()).collect()
}

fn chart_of_ratios(group: &Group<'_>, measure: &Measure, what: &str) -> Chart {
    let workloads = group.workloads();
    let series = group.pairs().into_iter().enumerate().map(|(i, pair)| Series {
        name: format!("÷ {}", named(pair.1)),
        class: format!("s{}", (i + 1) % 6),
        values: workloads
            .iter()
            .map(|w| Sample::of([group.ratio(pair, *w, measure.of)?.value]))
            .collect(),
    });
    let side = match measure.better {
        Better::More => "Right of 1",
        Better::Less => "Left of 1",
    };
    Chart {
        title: format!("{what}, {OWN} ÷ others, {}", group.label),
        note: format!("{side}: {OWN} is ahead. The axis is logarithmic"),
        groups: workloads.iter().map(|workload| group.name(*workload)).collect(),
        series: series.collect(),
        form: Form::Ratios,
    }
}

fn figures(group: &Group<'_>, what: &str, measures: &[Measure]) -> Sheet {
    let names = measures.iter().map(|measure| format!("{}{}", measure.name, measure.unit));
    let names: Vec<String> = names.collect();
    let first = std::iter::once("workload, engine");
    let header: Vec<&str> = first.chain(names.iter().map(String::as_str)).collect();
    let title = format!("{what}, {}; in brackets {OWN} ÷ the engine in the line", group.label);
    let mut sheet = Sheet::new(title, &header);
    let pairs = group.pairs();
    for workload in group.workloads() {
        for engine in group.engines() {
            if group.sample(engine, workload, SPEED[0].of).is_none() {
                continue;
            }
            let pair = pairs.iter().find(|pair| pair.1 == engine);
            let cells = measures.iter().map(|measure| {
                let sample = group.sample(engine, workload, measure.of);
                let text = sample.map_or_else(String::new, |sample| sample.text(significant));
                let ratio = pair.and_then(|pair| group.ratio(*pair, workload, measure.of));
                Cell::text(text).with(ratio, measure.better)
            });
            let name = format!("{}, {}", group.name(workload), group.engine_name(engine));
            sheet.row(name, cells.collect());
        }
    }
    sheet
}
