//! The tables of a terminal: each mix with its systems, and shipping beside the paper's figures.

use super::sides::{PAPER, Paper, Range, Side};
use super::{Measured, MixChoice};
use crate::figures::{Costs, Shape, median};
use crate::keys::KEY_LEN;
use crate::replication::tables::{over_rounds, per_second, requests, warnings};
use crate::report::{Phase, Run};
use crate::text::{Style, Table, grouped, line, megabytes};

/// A figure of a workload.
type Of = fn(&Phase) -> Option<f64>;

/// A column: its name, its figure, and how that is written.
type Column = (&'static str, fn(&Costs) -> Option<f64>, fn(f64) -> String);

/// The columns beside throughput.
pub(crate) const COLUMNS: [Column; 11] = [
    ("CPU µs", |costs| costs.cpu_us, two),
    ("jobs µs: primary", |costs| costs.jobs_us[0], two),
    ("secondary", |costs| costs.jobs_us[1], two),
    ("read", |costs| costs.read, two),
    ("written", |costs| costs.written, two),
    ("log", |costs| costs.log, two),
    ("files", |costs| costs.files, two),
    ("I/O amp.", |costs| costs.io, two),
    ("network amp.", |costs| costs.network, two),
    ("space", |costs| costs.space, two),
    ("memory MB", |costs| Some(costs.memory), |bytes| megabytes(bytes as u64)),
];

/// The meaning of the columns.
pub(crate) const LEGEND: &str = "CPU: of all replicas until compaction is quiet, per request; \
     jobs: flush, compaction and shipping, of the primary and of each secondary. Read, written: \
     bytes of the device for each byte that users wrote, per replica; log, files: bytes over \
     the wire for each, per secondary. I/O and network amplification: traffic of all devices, \
     and what all replicas sent and received, ÷ bytes that users wrote or read (Tebis §4). \
     Space: bytes of a replica's store ÷ those of the newest versions. Memory: resident, of \
     all replicas.\n";

fn two(value: f64) -> String {
    format!("{value:.2}")
}

fn costs(phase: &Phase) -> Costs {
    Costs::of(&phase.replicas, phase.user, requests(phase))
}

/// The rounds of a system.
fn rounds(measured: &Measured, side: Side) -> Vec<&Run> {
    measured.runs.iter().filter(|(other, _)| *other == side).map(|(_, run)| run).collect()
}

/// The systems that were run, each once.
fn sides(measured: &Measured) -> Vec<Side> {
    let is_there = |side: &Side| measured.runs.iter().any(|(other, _)| other == side);
    Side::ALL.into_iter().filter(is_there).collect()
}

fn words(mix: MixChoice) -> String {
    let shares = mix.shares().into_iter().zip(["small", "medium", "large"]);
    let shares = shares.filter(|(share, _)| *share > 0);
    shares.map(|(share, name)| format!("{share} % {name}")).collect::<Vec<_>>().join(", ")
}

/// One mix with one number of replicas.
pub(super) fn of_mix(measured: &Measured, style: Style) -> String {
    let mut out = String::new();
    let Some((_, first)) = measured.runs.first() else { return out };
    let mark = if style == Style::Markdown { "## " } else { "" };
    let mix = measured.mix;
    let (name, mean) = (mix.as_str().to_uppercase(), mix.sizes().mean() + KEY_LEN);
    let shape = first.shape().words();
    line(&mut out, &format!("{mark}{name} ({}; {mean} bytes on average), {shape}\n", words(mix)));
    let names = COLUMNS.iter().map(|column| column.0);
    let header: Vec<&str> = ["workload, system", "requests/s"].into_iter().chain(names).collect();
    let mut table = Table::new("Cost and amplification", &header);
    for (i, phase) in first.phases.iter().enumerate() {
        for side in sides(measured) {
            let runs = rounds(measured, side);
            let text =
                |value: Option<f64>, show: fn(f64) -> String| value.map_or_else(String::new, show);
            let rate = over_rounds(&runs, i, |phase| Some(per_second(phase)));
            let mut row = vec![
                format!("{} {}", phase.name(), side.as_str()),
                text(rate, |rate| grouped(rate as u64)),
            ];
            row.extend(COLUMNS.iter().map(|(_, of, show)| {
                text(over_rounds(&runs, i, |phase| of(&costs(phase))), *show)
            }));
            table.row(row);
        }
    }
    table.write(style, &mut out);
    for (side, run) in &measured.runs {
        let round = run.config.get("round").and_then(serde_json::Value::as_u64);
        let round = round.filter(|_| rounds(measured, *side).len() > 1);
        let round = round.map_or_else(String::new, |round| format!(", round {round}"));
        for warning in warnings(run, &round) {
            line(&mut out, &format!("{warning}\n"));
        }
    }
    out
}

/// The ratio of the medians of two systems, in one workload.
fn ratio(measured: &Measured, pair: [Side; 2], workload: &str, of: Of) -> Option<f64> {
    let [one, other] = pair.map(|side| {
        let runs = rounds(measured, side);
        let phases = runs.iter().flat_map(|run| &run.phases);
        let phases = phases.filter(|phase| phase.name() == workload);
        median(&mut phases.filter_map(of).collect::<Vec<f64>>())
    });
    one.zip(other).filter(|(_, other)| *other > 0.0).map(|(one, other)| one / other)
}

/// A range in words: what it is over all mixes.
pub(crate) fn range(values: impl Iterator<Item = f64>) -> Range {
    values.fold(None, |range: Range, value| {
        let [least, most] = range.unwrap_or([value; 2]);
        Some([least.min(value), most.max(value)])
    })
}

pub(crate) fn range_words(range: Range) -> String {
    match range {
        None => String::new(),
        Some([least, most]) if two(least) == two(most) => two(least),
        Some([least, most]) => format!("{least:.2} – {most:.2}"),
    }
}

/// The gains of shipping over compacting everywhere, over all mixes, beside the paper's ranges.
pub(super) fn beside_paper(all: &[Measured], style: Style) -> String {
    let header = [
        "replicas, workload",
        "throughput",
        "paper",
        "requests per CPU",
        "paper",
        "I/O amp. ÷",
        "paper",
        "CPU of a secondary ÷, S",
        "paper",
    ];
    let title = "Shipping against compacting everywhere, from mix to mix";
    let mut table = Table::new(title, &header);
    for paper in &PAPER {
        for pair in Side::PAIRS {
            table_row(&mut table, all, paper, pair);
        }
    }
    let mut out = format!("{LEGEND}\n");
    if table.is_empty() {
        return out;
    }
    table.write(style, &mut out);
    line(
        &mut out,
        "Paper: Send-Index and Build-Index of Tebis (§5.1, 5.2 and 5.4). ÷: of compacting \
         everywhere by shipping, so more is better in all. A secondary: its flush, compaction \
         and shipping here, all of a backup there.\n",
    );
    out
}

fn table_row(table: &mut Table, all: &[Measured], paper: &Paper, pair: [Side; 2]) {
    let replicas = |it: &&Measured| {
        it.runs.first().is_some_and(|(_, run)| run.shape() == shape_of(paper.replicas))
    };
    let own: Vec<&Measured> = all.iter().filter(replicas).collect();
    let over = |of: Of, is_inverse: bool, only: Option<MixChoice>| {
        let meant = own.iter().filter(|it| only.is_none_or(|mix| it.mix == mix));
        let ratios = meant.filter_map(|it| ratio(it, pair, paper.workload, of));
        range_words(range(ratios.map(|ratio| if is_inverse { 1.0 / ratio } else { ratio })))
    };
    let throughput = over(|p| Some(per_second(p)), false, None);
    if throughput.is_empty() {
        return;
    }
    table.row(vec![
        format!("{}, {}, {}", shape_of(paper.replicas), paper.workload, pair[0].as_str()),
        throughput,
        range_words(paper.throughput),
        over(|p| costs(p).cpu_us, true, None),
        range_words(paper.efficiency),
        over(|p| costs(p).io, true, None),
        range_words(paper.io),
        over(|p| costs(p).jobs_us[1], true, Some(MixChoice::S)),
        range_words(paper.backup),
    ]);
}

const fn shape_of(replicas: usize) -> Shape {
    Shape { co_location: 1, replicas }
}
