//! The mixes of Twitter's clusters side by side: RubbleDB's Figure 9 in form.
//!
//! Each cluster has records of a size of its own and so experiments of its own; those that differ
//! in nothing else stand together here. The paper replays traces, which cannot be had: the measured
//! workloads have the shares of requests, skews and sizes that Twitter states of the clusters.
//!
//! ```text
//!   experiments ─► figures: the same but for cluster and size ─► a section each: for each shape
//!                                                                plots by cluster, a table
//! ```

use super::chart::{Chart, Form};
use super::clusters::{
    Experiment, MACHINE_SECOND, REPLICA_SECOND, SYSTEMS, cpu_us, per_machine_second,
    per_replica_second, per_second,
};
use super::document::{Block, Cell, Section, Sheet};
use super::input::Settings;
use super::replication::{Of, THROUGHPUT, by_mode};
use super::stats::{Better, significant};
use crate::args::WorkloadChoice;
use crate::figures::Shape;
use crate::text::grouped;
use std::collections::BTreeSet;

/// The prefix of their workloads' names.
const PREFIX: &str = "twitter-";

/// The clusters of Figure 9 in its order, with its text's figure for each: RubbleDB's throughput
/// per core ÷ its baseline's. It gives none for cluster 2, which only reads.
const CLUSTERS: [(WorkloadChoice, Option<f64>); 5] = [
    (WorkloadChoice::Twitter2, None),
    (WorkloadChoice::Twitter15, Some(1.7)),
    (WorkloadChoice::Twitter19, Some(1.3)),
    (WorkloadChoice::Twitter27, Some(1.3)),
    (WorkloadChoice::Twitter31, Some(1.4)),
];

/// The shape that Figure 9 (a) was measured with.
pub(super) const SHAPE: Shape = Shape { co_location: 1, replicas: 3 };

/// A description of the figure and of its difference.
const TEXT: &str = "RubbleDB's Figure 9 (a) replays traces of these clusters, at R = 3. They cannot be had here: these \
                    are mixes with the shares of requests, the skew and the bytes of a record that Twitter states of \
                    each, writes are to records that are there.";

/// One cluster of a figure.
pub(super) struct Entry<'a> {
    experiment: &'a Experiment<'a>,
    workload: &'static str,
    papers: Option<f64>,
    /// Its name on an axis.
    name: String,
}

/// Clusters that are drawn together: at least one.
pub(super) struct Figure<'a> {
    entries: Vec<Entry<'a>>,
}

/// Whether an experiment is of one of the clusters.
pub(super) fn is_of_cluster(settings: &Settings) -> bool {
    settings.workloads.iter().any(|workload| workload.starts_with(PREFIX))
}

/// The number of a cluster.
fn number(workload: &str) -> &str {
    workload.strip_prefix(PREFIX).unwrap_or(workload)
}

/// Whether experiments differ only in each cluster's own properties.
fn is_beside(a: &Experiment<'_>, b: &Experiment<'_>) -> bool {
    let common = |settings: &Settings| {
        let mut common = Settings { value_size: 0, ..settings.clone() };
        common.workloads.retain(|workload| !workload.starts_with(PREFIX));
        common
    };
    common(a.settings()) == common(b.settings())
        && a.first().origin.is_comparable(&b.first().origin)
}

/// The clusters of an experiment, in the order of Figure 9.
fn entries<'a>(experiment: &'a Experiment<'a>) -> impl Iterator<Item = Entry<'a>> {
    let Settings { workloads, value_size, .. } = experiment.settings();
    let is_there = |workload: &str| workloads.iter().any(|own| own == workload);
    CLUSTERS.into_iter().filter_map(move |(choice, papers)| {
        let workload = choice.as_str();
        let stated = choice.stated().map(|stated| stated.value_len());
        let size = match stated == Some(*value_size) {
            true => String::new(),
            false => format!(", {value_size} B"),
        };
        let name = format!("cluster {}{size}", number(workload));
        is_there(workload).then_some(Entry { experiment, workload, papers, name })
    })
}

/// The figures of experiments.
pub(super) fn figures<'a>(experiments: &'a [Experiment<'a>]) -> Vec<Figure<'a>> {
    let mut figures: Vec<Figure<'a>> = Vec::new();
    for experiment in experiments.iter().filter(|it| is_of_cluster(it.settings())) {
        let own = entries(experiment);
        let is_same = |figure: &&mut Figure<'_>| is_beside(figure.first(), experiment);
        match figures.iter_mut().find(is_same) {
            Some(figure) => figure.entries.extend(own),
            None => figures.push(Figure { entries: own.collect() }),
        }
    }
    // Other builds' workloads of such names are none of Figure 9.
    figures.retain(|figure| !figure.entries.is_empty());
    for figure in &mut figures {
        let place = |workload| CLUSTERS.iter().position(|(choice, _)| choice.as_str() == workload);
        figure.entries.sort_by_key(|entry| place(entry.workload));
    }
    figures
}

impl<'a> Figure<'a> {
    /// The experiment whose settings stand for all, but for each cluster's own.
    pub(super) fn first(&self) -> &'a Experiment<'a> {
        self.entries[0].experiment
    }

    /// Numbers of groups and replicas, each once, from the lowest.
    pub(super) fn shapes(&self) -> Vec<Shape> {
        let shapes = self.entries.iter().flat_map(|entry| entry.experiment.shapes());
        shapes.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The other clusters of Figure 9.
    pub(super) fn lacking(&self) -> Vec<WorkloadChoice> {
        let is_there = |workload| self.entries.iter().any(|entry| entry.workload == workload);
        let all = CLUSTERS.into_iter().map(|(choice, _)| choice);
        all.filter(|choice| !is_there(choice.as_str())).collect()
    }

    fn section(&self) -> Section {
        let mut blocks = vec![Block::Text(TEXT.to_owned())];
        for shape in self.shapes() {
            let charts = self.charts(shape);
            blocks.extend((!charts.is_empty()).then_some(Block::Charts(charts)));
        }
        blocks.push(Block::Sheet(self.sheet()));
        let records = grouped(self.first().settings().records);
        Section { title: format!("Twitter's clusters, {records} records"), blocks }
    }

    /// Throughput, with the paper's own unit second, and the cost of a request: by cluster.
    fn charts(&self, shape: Shape) -> Vec<Chart> {
        let throughput = THROUGHPUT.map(|(title, note, of)| {
            self.chart(shape, title, &format!("More is better{note}"), of)
        });
        let cost =
            self.chart(shape, "CPU of a request (µs)", "Less is better; of all replicas", cpu_us);
        throughput.into_iter().chain([cost]).filter(|chart| !chart.is_empty()).collect()
    }

    fn chart(&self, shape: Shape, title: &str, note: &str, of: Of) -> Chart {
        // Compacting once beside the baseline, as in the paper.
        let pair = |entry: &Entry<'_>| [SYSTEMS[0], entry.experiment.baseline()];
        let group = |entry: &Entry<'_>| {
            let ratio = entry.experiment.ratio(pair(entry), shape, entry.workload, of);
            let ratio = ratio.map_or_else(String::new, |ratio| format!(" ×{}", ratio.text()));
            format!("{}{ratio}", entry.name)
        };
        Chart {
            title: format!("{shape}: {title}, Twitter's clusters"),
            note: format!(
                "{note}; the form of RubbleDB's Figure 9, without its traces. ×: {}",
                pair(&self.entries[0]).join(" ÷ ")
            ),
            groups: self.entries.iter().map(group).collect(),
            series: by_mode(&self.entries, |entry, mode| {
                entry.experiment.sample((shape, mode), entry.workload, of)
            }),
            form: Form::Columns,
        }
    }

    /// The same in figures, with those of the paper's text.
    fn sheet(&self) -> Sheet {
        let title = format!("Twitter's clusters; in brackets ÷ {}", self.first().baseline());
        let header = [
            "replicas, cluster, compaction",
            "requests/s",
            MACHINE_SECOND,
            REPLICA_SECOND,
            "CPU µs per request",
            "RubbleDB ÷ its baseline",
        ];
        let mut sheet = Sheet::new(title, &header);
        for shape in self.shapes() {
            for entry in &self.entries {
                for system in entry.experiment.systems(shape) {
                    let cells = entry.cells(shape, system);
                    sheet.row(format!("{shape}, {}, {system}", entry.name), cells);
                }
            }
        }
        sheet
    }
}

impl Entry<'_> {
    /// Figures of one system, each with its ratio to the baseline's.
    fn cells(&self, shape: Shape, system: &'static str) -> Vec<Cell> {
        let columns: [(Of, Better); 4] = [
            (per_second, Better::More),
            (per_machine_second, Better::More),
            (per_replica_second, Better::More),
            (cpu_us, Better::Less),
        ];
        let pair = [system, self.experiment.baseline()];
        let cell = |(of, better): (Of, Better)| {
            let sample = self.experiment.sample((shape, system), self.workload, of);
            let text = sample.map_or_else(String::new, |sample| sample.text(significant));
            Cell::text(text).with(self.experiment.ratio(pair, shape, self.workload, of), better)
        };
        // The paper compares throughput per core of compacting once.
        let papers = self.papers.filter(|_| shape == SHAPE && system == SYSTEMS[0]);
        let papers = Cell::text(papers.map_or_else(String::new, significant));
        columns.into_iter().map(cell).chain([papers]).collect()
    }
}

/// A section for each figure.
pub(super) fn sections(experiments: &[Experiment<'_>]) -> Vec<Section> {
    figures(experiments).iter().map(Figure::section).collect()
}

/// Numbers of clusters as a shell's loop has them, for commands.
pub(super) fn numbers(clusters: &[WorkloadChoice]) -> String {
    clusters.iter().map(|choice| number(choice.as_str())).collect::<Vec<_>>().join(" ")
}

/// All clusters of Figure 9.
pub(super) fn all() -> Vec<WorkloadChoice> {
    CLUSTERS.iter().map(|(choice, _)| *choice).collect()
}
