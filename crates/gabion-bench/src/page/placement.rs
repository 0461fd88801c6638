//! Mixes of small, medium and large pairs: Tebis's Figures 8, 9, 10 and 12 in form, its figures
//! beside ours where its text names them.
//!
//! ```text
//!   experiments, one for a mix ─► figures: the same but for mix, records, workloads
//!                                   └─► a section each: plots by mix, by workload, by role; tables
//! ```

use super::chart::{Chart, Form, Series};
use super::clusters::{Experiment, per_second, tree};
use super::document::{Block, Cell, Section, Sheet};
use super::input::{Phase, Settings};
use super::stats::{Better, Ratio, Sample, significant};
use crate::figures::{Costs, JOBS, SHIPPING, Shape, by_rank};
use crate::placement::tables::{COLUMNS, LEGEND, range, range_words};
use crate::placement::{MixChoice, PAPER, Paper, Side};
use crate::text::grouped;
use std::collections::BTreeSet;

/// A description of the figures and of their differences.
const TEXT: &str = "Tebis (§4 and 5) with Gabion's two ways of compacting for its own: \
     primary, which ships files, for Send-Index; every-replica, which ships nothing, for \
     Build-Index. -apart: large values do not lie in the tree, as in all of Tebis. RocksDB \
     and BlobDB (garbage collection on) are no part of the paper.";

/// The paper's sides: shipping against compacting everywhere.
const PAIR: [Side; 2] = Side::PAIRS[0];
/// Workloads that every mix has.
const WORKLOADS: [&str; 2] = ["load", "a"];
/// The shape and the mix of Figure 8, and the mix of Figure 10.
const FIGURE_8: (Shape, MixChoice) = (Shape { co_location: 1, replicas: 2 }, MixChoice::Sd);
const FIGURE_10: MixChoice = MixChoice::S;

/// A figure of a phase.
type Of = fn(&Phase) -> Option<f64>;

/// The plots of Figures 9 and 12: title, what is better, figure.
const PLOTS: [(&str, &str, Of); 4] = [
    ("requests a second", "More is better", per_second),
    ("CPU of a request (µs)", "Less is better; of all replicas", |p| costs(p)?.cpu_us),
    (
        "I/O amplification",
        "Less is better; traffic of all devices ÷ bytes that users wrote or read",
        |p| costs(p)?.io,
    ),
    (
        "network amplification",
        "Less is better; sent and received by all replicas ÷ the same",
        |p| costs(p)?.network,
    ),
];

/// Kinds of work of a role.
const WORK: [(&str, &[&str]); 4] = [
    ("requests", &["requests"]),
    ("flush and compaction", &JOBS),
    ("shipping and target", &SHIPPING),
    ("other", &["other"]),
];

/// The class of the style sheet: systems of other sections have their colours here too.
const fn class(side: Side) -> &'static str {
    match side {
        Side::Primary => "s0",
        Side::EveryReplica => "s1",
        Side::Rocksdb => "s2",
        Side::PrimaryApart => "s3",
        Side::EveryReplicaApart => "s4",
        Side::Blobdb => "s5",
    }
}

fn requests(phase: &Phase) -> u64 {
    phase.operations.iter().map(|operation| operation.count).sum()
}

fn costs(phase: &Phase) -> Option<Costs> {
    Some(Costs::of(&phase.replicas, phase.user?, requests(phase)))
}

/// Mixes that are drawn together.
pub(super) struct Figure<'a> {
    experiments: Vec<&'a Experiment<'a>>,
}

/// Whether experiments differ only in what each mix has of its own.
fn is_beside(a: &Experiment<'_>, b: &Experiment<'_>) -> bool {
    let common = |settings: &Settings| Settings {
        mix: None,
        workloads: Vec::new(),
        records: 0,
        operations: 0,
        value_size: 0,
        ..settings.clone()
    };
    common(a.settings()) == common(b.settings())
        && a.first().origin.is_comparable(&b.first().origin)
}

/// The figures of experiments, each of one mix.
pub(super) fn figures<'a>(experiments: &'a [Experiment<'a>]) -> Vec<Figure<'a>> {
    let mut figures: Vec<Figure<'a>> = Vec::new();
    for experiment in experiments {
        match figures.iter_mut().find(|figure| is_beside(figure.experiments[0], experiment)) {
            Some(figure) => figure.experiments.push(experiment),
            None => figures.push(Figure { experiments: vec![experiment] }),
        }
    }
    figures
}

impl<'a> Figure<'a> {
    fn of(&self, mix: MixChoice) -> impl Iterator<Item = &'a Experiment<'a>> {
        let is = move |experiment: &&&Experiment<'_>| {
            experiment.settings().mix.as_deref() == Some(mix.as_str())
        };
        self.experiments.iter().filter(is).copied()
    }

    /// The mixes that were run, in the paper's order.
    fn mixes(&self) -> Vec<MixChoice> {
        MixChoice::ALL.into_iter().filter(|mix| self.of(*mix).next().is_some()).collect()
    }

    /// The other mixes.
    pub(super) fn lacking(&self) -> Vec<MixChoice> {
        MixChoice::ALL.into_iter().filter(|mix| self.of(*mix).next().is_none()).collect()
    }

    /// Numbers of replicas, each once, from the lowest.
    pub(super) fn shapes(&self) -> Vec<Shape> {
        let shapes = self.experiments.iter().flat_map(|experiment| experiment.shapes());
        shapes.collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub(super) fn settings(&self) -> &'a Settings {
        self.experiments[0].settings()
    }

    /// The workloads of a mix.
    fn workloads(&self, mix: MixChoice, shape: Shape) -> Vec<&'a str> {
        let mut workloads: Vec<&str> = Vec::new();
        for experiment in self.of(mix).filter(|it| it.shapes().contains(&shape)) {
            let own = experiment.settings().workloads.iter().map(String::as_str);
            workloads.extend(own.filter(|own| !workloads.contains(own)).collect::<Vec<_>>());
        }
        workloads
    }

    fn sample(
        &self,
        (mix, shape, side): (MixChoice, Shape, Side),
        workload: &str,
        of: impl Fn(&Phase) -> Option<f64>,
    ) -> Option<Sample> {
        self.of(mix).find_map(|it| it.sample((shape, side.as_str()), workload, &of))
    }

    fn ratio(
        &self,
        (mix, shape): (MixChoice, Shape),
        pair: [Side; 2],
        workload: &str,
        of: Of,
    ) -> Option<Ratio> {
        let pair = pair.map(Side::as_str);
        self.of(mix).find_map(|experiment| experiment.ratio(pair, shape, workload, of))
    }

    /// The settings of the runs.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let s = self.settings();
        let records = self.experiments.iter().map(|it| {
            let Settings { mix, records, operations, .. } = it.settings();
            let mix = mix.as_deref().unwrap_or_default().to_uppercase();
            format!("{mix}: {}, {}", grouped(*records), grouped(*operations))
        });
        let mut facts = vec![
            ("records, and requests of each workload but load", once(records)),
            ("which records", s.distribution.clone()),
            ("clients", format!("{}, {} requests under way each", s.clients, s.pipeline)),
            ("threads of clients", s.threads.to_string()),
        ];
        facts.extend(tree(s, "large values"));
        facts.extend(s.baseline_log.iter().map(|log| ("log of RocksDB's stores", log.clone())));
        let rounds = self.experiments.iter().map(|experiment| {
            let of = |shape: Shape, side: Side| experiment.rounds(shape, side.as_str());
            let shapes = experiment.shapes();
            let all = shapes.iter().flat_map(|shape| Side::ALL.map(|side| of(*shape, side)));
            let counts: BTreeSet<usize> = all.filter(|count| *count > 0).collect();
            let words: Vec<String> = counts.iter().map(ToString::to_string).collect();
            words.join(" to ")
        });
        facts.push(("rounds", once(rounds)));
        facts
    }

    /// Runs behind it.
    pub(super) fn runs(&self) -> impl Iterator<Item = &'a super::input::ClusterRun> {
        self.experiments.iter().flat_map(|experiment| experiment.runs.iter().copied())
    }

    pub(super) fn section(&self) -> Section {
        let mut blocks = vec![Block::Text(TEXT.to_owned())];
        let beside = self.beside_paper();
        if !beside.rows.is_empty() {
            blocks.push(Block::Sheet(beside));
            blocks.push(Block::Text(
                "Ranges from mix to mix; throughput: shipping ÷ compacting everywhere, of all else \
                 the other way round, so more is better in all. Paper: Send-Index and Build-Index, \
                 of its text (of two replicas both workloads together, of three the load). A \
                 secondary: its flush, compaction and shipping here, all of a backup there."
                    .to_owned(),
            ));
        }
        for shape in self.shapes() {
            for workload in WORKLOADS {
                let charts = PLOTS.iter().map(|plot| self.by_mix(shape, workload, *plot));
                push_charts(&mut blocks, charts.collect());
            }
        }
        push_charts(&mut blocks, self.by_workload());
        push_charts(&mut blocks, self.by_role());
        for shape in self.shapes() {
            blocks.push(Block::Sheet(self.sheet(shape)));
        }
        blocks.push(Block::Text(LEGEND.trim_end().to_owned()));
        Section { title: "Placement: Tebis's mixes".to_owned(), blocks }
    }

    /// Figures 9 and 12: a plot of the mixes.
    fn by_mix(&self, shape: Shape, workload: &str, (title, note, of): (&str, &str, Of)) -> Chart {
        let mixes = self.mixes();
        let number = if shape.replicas == 2 { 9 } else { 12 };
        let part = if workload == WORKLOADS[0] { "a" } else { "b" };
        let group = |mix: &MixChoice| {
            let ratio = self.ratio((*mix, shape), PAIR, workload, of);
            let ratio = ratio.map_or_else(String::new, |ratio| format!(" ×{}", ratio.text()));
            format!("{}{ratio}", mix.as_str().to_uppercase())
        };
        Chart {
            title: format!("{shape}, {workload}: {title}"),
            note: format!("{note}; the form of Tebis's Figure {number} ({part}). ×: {}", sides()),
            groups: mixes.iter().map(group).collect(),
            series: by_side(&mixes, |mix, side| self.sample((*mix, shape, side), workload, of)),
            form: Form::Columns,
        }
    }

    /// Figure 8: the workloads of SD.
    fn by_workload(&self) -> Vec<Chart> {
        let (shape, mix) = FIGURE_8;
        let workloads = self.workloads(mix, shape);
        if workloads.len() <= WORKLOADS.len() {
            return Vec::new();
        }
        let plot = |(title, note, of): (&str, &str, Of)| Chart {
            title: format!("{shape}, SD: {title} by workload"),
            note: format!("{note}; the form of Tebis's Figure 8. ×: {}", sides()),
            groups: workloads
                .iter()
                .map(|workload| {
                    let ratio = self.ratio((mix, shape), PAIR, workload, of);
                    let ratio = ratio.map_or_else(String::new, |it| format!(" ×{}", it.text()));
                    format!("{workload}{ratio}")
                })
                .collect(),
            series: by_side(&workloads, |workload, side| {
                self.sample((mix, shape, side), workload, of)
            }),
            form: Form::Columns,
        };
        PLOTS[..2].iter().map(|it| plot(*it)).collect()
    }

    /// Figure 10: what the primary and a secondary spend, of the mix S.
    fn by_role(&self) -> Vec<Chart> {
        let mut charts = Vec::new();
        for shape in self.shapes() {
            for workload in WORKLOADS {
                let lanes: Vec<(Side, bool)> =
                    PAIR.iter().rev().flat_map(|side| [(*side, true), (*side, false)]).collect();
                let name = |(side, is_primary): &(Side, bool)| {
                    let role = if *is_primary { "primary" } else { "a secondary" };
                    format!("{}: {role}", side.as_str())
                };
                let stack = |title: &str, parts: Vec<(&str, RoleFigure)>| Chart {
                    title: format!("{shape}, S, {workload}: {title}"),
                    note: "Less is better; the form of Tebis's Figure 10".to_owned(),
                    groups: lanes.iter().map(name).collect(),
                    series: (0..)
                        .zip(parts)
                        .map(|(i, (part, of))| Series {
                            name: part.to_owned(),
                            class: format!("p{i}"),
                            values: lanes
                                .iter()
                                .map(|&(side, is_primary)| {
                                    let cell = (FIGURE_10, shape, side);
                                    self.sample(cell, workload, |p| of(p, is_primary))
                                })
                                .collect(),
                        })
                        .collect(),
                    form: Form::Stacks,
                };
                charts.push(stack("CPU of a request by role (µs)", work_parts()));
                charts.push(stack("device bytes by role, ÷ those users wrote", device_parts()));
            }
        }
        charts
    }

    /// Every figure with this number of replicas.
    fn sheet(&self, shape: Shape) -> Sheet {
        let names = COLUMNS.iter().map(|column| column.0);
        let header: Vec<&str> =
            ["mix, workload, system", "requests/s"].into_iter().chain(names).collect();
        let base = PAIR[1].as_str();
        let title = format!("{shape}: cost and amplification; in brackets ÷ {base}");
        let mut sheet = Sheet::new(title, &header);
        for mix in self.mixes() {
            for workload in self.workloads(mix, shape) {
                for side in Side::ALL {
                    let cell = (mix, shape, side);
                    let Some(rate) = self.sample(cell, workload, per_second) else { continue };
                    let pair = [side, PAIR[1]];
                    let ratio = self.ratio((mix, shape), pair, workload, per_second);
                    let first = Cell::text(rate.text(significant)).with(ratio, Better::More);
                    let figures = COLUMNS.iter().map(|(_, of, show)| {
                        let of = |phase: &Phase| of(&costs(phase)?);
                        let sample = self.sample(cell, workload, of);
                        Cell::text(sample.map_or_else(String::new, |it| it.text(show)))
                    });
                    let name = format!("{}, {workload}, {}", mix.as_str(), side.as_str());
                    sheet.row(name, std::iter::once(first).chain(figures).collect());
                }
            }
        }
        sheet
    }

    /// Shipping against compacting everywhere, with the ranges of the paper's text.
    fn beside_paper(&self) -> Sheet {
        let header = [
            "replicas, workload",
            "throughput",
            "paper",
            "requests per CPU",
            "paper",
            "I/O amplification",
            "paper",
            "CPU of a secondary, S",
            "paper",
            "place",
        ];
        let mut sheet = Sheet::new("Shipping against compacting everywhere", &header);
        for paper in &PAPER {
            for pair in Side::PAIRS {
                self.add_ranges(&mut sheet, paper, pair);
            }
        }
        sheet
    }

    fn add_ranges(&self, sheet: &mut Sheet, paper: &Paper, pair: [Side; 2]) {
        let shape = Shape { co_location: 1, replicas: paper.replicas };
        let over = |of: Of, is_inverse: bool, only: Option<MixChoice>| {
            let mixes = self.mixes().into_iter().filter(|mix| only.is_none_or(|it| it == *mix));
            let ratios = mixes.filter_map(|mix| self.ratio((mix, shape), pair, paper.workload, of));
            let values = ratios.map(|it| if is_inverse { 1.0 / it.value } else { it.value });
            range_words(range(values))
        };
        let throughput = over(per_second, false, None);
        if throughput.is_empty() {
            return;
        }
        let cells = [
            throughput,
            range_words(paper.throughput),
            over(|p| costs(p)?.cpu_us, true, None),
            range_words(paper.efficiency),
            over(|p| costs(p)?.io, true, None),
            range_words(paper.io),
            over(|p| costs(p)?.jobs_us[1], true, Some(FIGURE_10)),
            range_words(paper.backup),
            paper.place.to_owned(),
        ];
        let name =
            format!("{shape}, {}, {} ÷ {}", paper.workload, pair[0].as_str(), pair[1].as_str());
        sheet.row(name, cells.map(Cell::text).to_vec());
    }
}

/// A figure of the primary, or of a secondary on average.
type RoleFigure = Box<dyn Fn(&Phase, bool) -> Option<f64>>;

/// Of the primary's part and all secondaries', that of one replica.
fn each(phase: &Phase, is_primary: bool, (primary, secondaries): (f64, f64)) -> f64 {
    if is_primary { primary } else { secondaries / (phase.replicas.len() as f64 - 1.0).max(1.0) }
}

fn work_parts() -> Vec<(&'static str, RoleFigure)> {
    let part = |roles: &'static [&'static str]| -> RoleFigure {
        Box::new(move |phase, is_primary| {
            let seconds = each(phase, is_primary, by_rank(&phase.replicas, roles));
            let requests = requests(phase);
            (requests > 0).then(|| 1e6 * seconds / requests as f64)
        })
    };
    WORK.iter().map(|(name, roles)| (*name, part(roles))).collect()
}

fn device_parts() -> Vec<(&'static str, RoleFigure)> {
    let part = |of: fn(&crate::status::Usage) -> u64| -> RoleFigure {
        Box::new(move |phase, is_primary| {
            let sum = |of_primary: bool| -> f64 {
                let own = phase.replicas.iter();
                let own = own.filter(|replica| (replica.role == "primary") == of_primary);
                own.map(|replica| of(&replica.usage) as f64).sum()
            };
            let written = phase.user?.written as f64;
            let bytes = each(phase, is_primary, (sum(true), sum(false)));
            (written > 0.0).then(|| bytes / written)
        })
    };
    vec![("read", part(|usage| usage.read_bytes)), ("written", part(|usage| usage.write_bytes))]
}

fn push_charts(blocks: &mut Vec<Block>, mut charts: Vec<Chart>) {
    charts.retain(|chart| !chart.is_empty());
    blocks.extend((!charts.is_empty()).then_some(Block::Charts(charts)));
}

fn sides() -> String {
    PAIR.map(Side::as_str).join(" ÷ ")
}

/// A figure of each system; `value` is asked for each group.
fn by_side<G>(groups: &[G], value: impl Fn(&G, Side) -> Option<Sample>) -> Vec<Series> {
    let series = Side::ALL.into_iter().map(|side| Series {
        name: side.as_str().to_owned(),
        class: class(side).to_owned(),
        values: groups.iter().map(|group| value(group, side)).collect(),
    });
    series.filter(|series| series.values.iter().any(Option::is_some)).collect()
}

/// Texts, each once.
fn once(texts: impl Iterator<Item = String>) -> String {
    let mut found: Vec<String> = Vec::new();
    for text in texts {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found.join("; ")
}
