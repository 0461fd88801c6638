//! The sections about clusters: the measured figures in the form of RubbleDB's Tables 3 to 5 and
//! Figures 7 and 10.

use super::chart::{Chart, Form, Series};
use super::clusters::{
    Experiment, MACHINE_SECOND, MEASURES, MODES, PAIRS, Pair, REPLICA_SECOND, ROCKSDB, SYSTEMS,
    per_machine_second, per_replica_second, per_second, traffic,
};
use super::document::{Block, Cell, Section, Sheet, Verdict};
use super::input::Phase;
use super::stats::{Better, Ratio, Sample, significant};
use crate::figures::{JOBS, SHIPPING, Shape, by_rank, formula, sum};

/// Total CPU of RubbleDB ÷ its baseline's: its Table 3, with a co-location factor of 1.
fn rubbledb(shape: Shape) -> Option<f64> {
    match (shape.co_location, shape.replicas) {
        (1, 2) => Some(1786.0 / 2723.0),
        (1, 3) => Some(3121.0 / 5603.0),
        (1, 4) => Some(4845.0 / 9790.0),
        _ => None,
    }
}

/// Kinds of work as in Table 3, with the shipping that a network card does there.
const WORK: [(&str, &[&str]); 4] = [
    ("Flush and compaction", &JOBS),
    ("Shipping and target", &SHIPPING),
    ("Requests", &["requests"]),
    ("Other", &["other"]),
];

/// An explanation of groups, if there are several.
const CO_LOCATION: &str = "Groups: so many run side by side on the machine (RubbleDB's co-location factor), each with \
                           its own replicas and its share of the records; clients and requests are those of one \
                           group, and figures are of all groups together.";

/// The meaning of a mark, if loads were offered.
const QUEUE: &str = "@: in an open loop at that percent, or at that rate. !: the load was not reached (less than 98 % \
                     answered), so the latency is that of a queue, whose length --operations decides, or the ratio \
                     is with one.";

/// A figure of a phase.
pub(super) type Of = fn(&Phase) -> Option<f64>;
/// A part of a whole.
type Part = (&'static str, fn(&Phase) -> f64);

const CPU: [Part; 4] = [
    (WORK[0].0, |phase| cpu(phase, 0)),
    (WORK[1].0, |phase| cpu(phase, 1)),
    (WORK[2].0, |phase| cpu(phase, 2)),
    (WORK[3].0, |phase| cpu(phase, 3)),
];
const DEVICE: [Part; 2] = [
    ("read", |phase| sum(&phase.replicas).read_bytes as f64 / 1e9),
    ("written", |phase| sum(&phase.replicas).write_bytes as f64 / 1e9),
];
const NETWORK: [Part; 3] = [
    ("clients", |phase| traffic(phase)[0] as f64 / 1e9),
    ("members", |phase| traffic(phase)[1] as f64 / 1e9),
    ("NVMe/TCP", |phase| traffic(phase)[2] as f64 / 1e9),
];

/// The plots of Figures 7 and 8, with the paper's own unit second.
pub(super) const THROUGHPUT: [(&str, &str, Of); 3] = [
    ("requests a second", "", per_second),
    (MACHINE_SECOND, ", which worked for whatever but clients", per_machine_second),
    (REPLICA_SECOND, ": what RubbleDB calls throughput per core", per_replica_second),
];

/// CPU seconds of all replicas for one kind of [`WORK`].
fn cpu(phase: &Phase, work: usize) -> f64 {
    sum(&phase.replicas).cpu_of(WORK[work].1)
}

/// The verdicts at each number of replicas: in the workload whose costs are reported in full.
pub(super) fn verdicts(experiment: &Experiment<'_>) -> Vec<Verdict> {
    let workload = experiment.costed();
    let verdict = |pair: Pair, shape: Shape| Verdict {
        sides: pair.join(" ÷ "),
        place: format!("{shape}, {workload}; {}", experiment.label),
        figures: MEASURES
            .iter()
            .filter_map(|m| {
                let ratio = experiment.ratio(pair, shape, workload, m.of)?;
                Some((m.name.to_owned(), ratio, m.better))
            })
            .collect(),
    };
    let of_pair = |pair| experiment.paired(pair).into_iter().map(move |shape| verdict(pair, shape));
    PAIRS.into_iter().flat_map(of_pair).collect()
}

/// All ratios of an experiment, a table for each compared pair.
pub(super) fn overviews(experiment: &Experiment<'_>) -> Vec<Sheet> {
    let names = || MEASURES.iter().map(|measure| measure.name);
    let header: Vec<&str> = std::iter::once("replicas, workload").chain(names()).collect();
    let mut sheets = Vec::new();
    for pair in PAIRS {
        let title = format!("{}: {}", pair.join(" ÷ "), experiment.label);
        let mut sheet = Sheet::new(title, &header);
        for shape in experiment.paired(pair) {
            for workload in &experiment.settings().workloads {
                let cells = MEASURES
                    .iter()
                    .map(|m| Cell::ratio(experiment.ratio(pair, shape, workload, m.of), m.better));
                sheet.row(format!("{shape}, {workload}"), cells.collect());
            }
        }
        sheets.push(sheet);
    }
    sheets.retain(|sheet| !sheet.rows.is_empty());
    sheets
}

/// The section of an experiment.
pub(super) fn section(experiment: &Experiment<'_>) -> Section {
    let text = "Medians over rounds; ± is the farthest round.";
    let mut blocks = vec![Block::Text(text.to_owned())];
    if experiment.shapes().iter().any(|shape| shape.co_location > 1) {
        blocks.push(Block::Text(CO_LOCATION.to_owned()));
    }
    let plots = THROUGHPUT.iter().map(|plot| throughput(experiment, *plot));
    blocks.extend(plots.filter(|charts| !charts.is_empty()).map(Block::Charts));
    blocks.push(Block::Sheet(operations(experiment)));
    if !experiment.open_workloads().is_empty() {
        blocks.push(Block::Text(QUEUE.to_owned()));
    }
    let latencies = latencies(experiment);
    blocks.extend((!latencies.is_empty()).then_some(Block::Charts(latencies)));
    let by_load = by_load(experiment);
    blocks.extend((!by_load.is_empty()).then_some(Block::Charts(by_load)));
    blocks.extend(beside_rocksdb(experiment));
    blocks.extend(cpu_ratios(experiment));
    blocks.push(Block::Charts(costs(experiment)));
    let workload = experiment.costed();
    for shape in experiment.shapes() {
        blocks.push(Block::Sheet(breakdown(experiment, shape, workload)));
    }
    blocks.push(Block::Sheet(devices(experiment, workload)));
    blocks.push(Block::Sheet(network(experiment, workload)));
    Section { title: format!("Replication: {}", experiment.label), blocks }
}

/// A figure of each system, one by the other; `values` is asked for each group.
pub(super) fn by_mode<'a, G>(
    groups: &[G],
    value: impl Fn(&G, &'static str) -> Option<Sample> + 'a,
) -> Vec<Series> {
    let series = SYSTEMS.iter().enumerate().map(|(i, &mode)| Series {
        name: mode.to_owned(),
        class: format!("s{i}"),
        values: groups.iter().map(|group| value(group, mode)).collect(),
    });
    series.filter(|series| series.values.iter().any(Option::is_some)).collect()
}

/// Figure 7, and beside it Figure 8 if groups run side by side: for each number of replicas a plot
/// of the workloads.
fn throughput(experiment: &Experiment<'_>, (title, note, of): (&str, &str, Of)) -> Vec<Chart> {
    let workloads = &experiment.settings().workloads;
    let chart = |shape: Shape| {
        // Compacting once beside the baseline, if that was run.
        let pair = [SYSTEMS[0], experiment.baseline()];
        let group = |workload: &String| {
            let ratio = experiment.ratio(pair, shape, workload, of);
            let ratio = ratio.map_or_else(String::new, |ratio| format!(" ×{}", ratio.text()));
            format!("{workload}{ratio}")
        };
        Chart {
            title: format!("{shape}: {title}"),
            note: format!(
                "More is better{note}; the form of RubbleDB's {}. ×: {}",
                if shape.co_location == 1 { "Figure 7" } else { "Figure 8" },
                pair.join(" ÷ ")
            ),
            groups: workloads.iter().map(group).collect(),
            series: by_mode(workloads, |workload, mode| {
                experiment.sample((shape, mode), workload, of)
            }),
            form: Form::Columns,
        }
    };
    let charts = experiment.shapes().into_iter().map(chart);
    charts.filter(|chart| !chart.is_empty()).collect()
}

/// A percentile of one type of requests in a phase.
fn latency(phase: &Phase, kind: &str, index: usize) -> Option<f64> {
    let operation = phase.operations.iter().find(|operation| operation.kind == kind)?;
    Some(operation.latency_us[index])
}

/// Figure 10: p99 of each type of request by number of replicas.
fn latencies(experiment: &Experiment<'_>) -> Vec<Chart> {
    let shapes = experiment.shapes();
    let mut charts = Vec::new();
    for workload in &experiment.settings().workloads {
        for kind in experiment.kinds(workload) {
            let p99 = |phase: &Phase| latency(phase, kind, 1);
            charts.push(Chart {
                title: format!("p99 of {kind}, workload {workload} (µs)"),
                note:
                    "Less is better; the form of RubbleDB's Figure 10, by replicas in place of load"
                        .to_owned(),
                groups: shapes.iter().map(Shape::to_string).collect(),
                series: by_mode(&shapes, |&s, mode| experiment.sample((s, mode), workload, p99)),
                form: Form::Columns,
            });
        }
    }
    charts.retain(|chart| !chart.is_empty());
    charts
}

/// Figure 10 as in the paper: p99 of each type of request by the offered load.
fn by_load(experiment: &Experiment<'_>) -> Vec<Chart> {
    let mut charts = Vec::new();
    for shape in experiment.shapes() {
        for workload in experiment.open_workloads() {
            let loads = experiment.load_labels(shape, experiment.at_loads(workload));
            let Some((first, _)) = loads.first() else { continue };
            for kind in experiment.kinds(first) {
                let p99 = |phase: &Phase| latency(phase, kind, 1);
                charts.push(Chart {
                    title: format!("{shape}: p99 of {kind} by load, workload {workload} (µs)"),
                    note: format!(
                        "Less is better; the form of RubbleDB's Figure 10. %: of what {} answers, in an \
                         open loop; from when a request was due",
                        experiment.settings().offered_of.as_deref().unwrap_or(ROCKSDB)
                    ),
                    groups: loads.iter().map(|(_, label)| label.clone()).collect(),
                    series: by_mode(&loads, |(name, _), system| {
                        experiment.sample((shape, system), name, p99)
                    }),
                    form: Form::Columns,
                });
            }
        }
    }
    charts.retain(|chart| !chart.is_empty());
    charts
}

/// Throughput and latencies of each type of request.
fn operations(experiment: &Experiment<'_>) -> Sheet {
    let header = ["replicas, compaction, request", "per second", "p50 µs", "p99 µs", "p99.9 µs"];
    let title = format!("Requests; in brackets ÷ {}", experiment.baseline());
    let mut sheet = Sheet::new(title, &header);
    for shape in experiment.shapes() {
        for workload in &experiment.phase_names() {
            for kind in experiment.kinds(workload) {
                for mode in experiment.systems(shape) {
                    if let Some(cells) = operation(experiment, (shape, mode), workload, kind) {
                        sheet.row(format!("{shape}, {mode}, {workload} {kind}"), cells);
                    }
                }
            }
        }
    }
    sheet
}

/// A line of it; ratios stand in the line of their dividend.
fn operation(
    experiment: &Experiment<'_>,
    (shape, mode): (Shape, &'static str),
    workload: &str,
    kind: &str,
) -> Option<Vec<Cell>> {
    let cell = |column: usize| {
        let of = |phase: &Phase| match column {
            0 => phase.operations.iter().find(|o| o.kind == kind).map(|o| o.per_second),
            column => latency(phase, kind, column - 1),
        };
        let better = if column == 0 { Better::More } else { Better::Less };
        let sample = experiment.sample((shape, mode), workload, of)?;
        let pair = [mode, experiment.baseline()];
        let ratio = experiment.ratio(pair, shape, workload, of);
        let cell = Cell::text(sample.text(significant)).with(ratio, better);
        Some(if column == 0 { cell } else { experiment.marked(cell, shape, pair, workload) })
    };
    (0..4).map(cell).collect()
}

/// The question of RubbleDB's evaluation: the part of its baseline's CPU that this engine needs, by
/// compacting once and by compacting everywhere. Nothing without the baseline.
fn beside_rocksdb(experiment: &Experiment<'_>) -> Vec<Block> {
    let workload = experiment.costed();
    let measures: [(&str, Of, Better); 4] = [
        ("total CPU", |p| Some(sum(&p.replicas).cpu_seconds), Better::Less),
        ("flush, compaction and shipping", |p| Some(cpu(p, 0) + cpu(p, 1)), Better::Less),
        (MACHINE_SECOND, per_machine_second, Better::More),
        (REPLICA_SECOND, per_replica_second, Better::More),
    ];
    let names = measures.iter().map(|(name, ..)| *name);
    let header: Vec<&str> = std::iter::once("replicas, sides").chain(names).collect();
    let mut sheet = Sheet::new(format!("CPU beside {ROCKSDB}, {workload}"), &header);
    let sides = [MODES[0], MODES[1]];
    for side in sides {
        for shape in experiment.paired([side, ROCKSDB]) {
            let cells = measures.iter().map(|(_, of, better)| {
                Cell::ratio(experiment.ratio([side, ROCKSDB], shape, workload, of), *better)
            });
            sheet.row(format!("{shape}, {side} ÷ {ROCKSDB}"), cells.collect());
        }
    }
    if sheet.rows.is_empty() {
        return Vec::new();
    }
    let shapes = experiment.paired([sides[0], ROCKSDB]);
    let value = |side, of: Of, shape| {
        experiment.ratio([side, ROCKSDB], shape, workload, of).map(|ratio| ratio.value)
    };
    let names = ["total CPU", "flush, compaction and shipping", "total CPU, RubbleDB's Table 3"];
    let drawn =
        |s| [value(sides[0], measures[0].1, s), value(sides[0], measures[1].1, s), rubbledb(s)];
    let series = names.iter().enumerate().map(|(i, name)| Series {
        name: (*name).to_owned(),
        class: format!("r{i}"),
        values: shapes.iter().map(|&shape| drawn(shape)[i].and_then(|v| Sample::of([v]))).collect(),
    });
    let chart = Chart {
        title: format!("{} ÷ {ROCKSDB}, {workload}", sides[0]),
        note: "Less is better; 1 is RubbleDB's baseline, a RocksDB for each replica".to_owned(),
        groups: shapes.iter().map(Shape::to_string).collect(),
        series: series.collect(),
        form: Form::Columns,
    };
    let mut blocks = vec![Block::Sheet(sheet)];
    if !chart.is_empty() {
        blocks.insert(0, Block::Charts(vec![chart]));
    }
    blocks
}

/// The measured ratio, the formula's, and RubbleDB's: as a plot and as a table. Nothing without
/// pairs.
fn cpu_ratios(experiment: &Experiment<'_>) -> Vec<Block> {
    let header = [
        "replicas",
        "measured",
        "formula",
        "RubbleDB",
        "s",
        "x",
        "shipping µs/kB",
        "producing µs/kB",
    ];
    let workload = experiment.costed();
    let title = format!("CPU of primary ÷ CPU of every-replica, {workload}");
    let mut sheet = Sheet::new(title.clone(), &header);
    let names = ["measured", "formula", "RubbleDB, Table 3"];
    let mut series: Vec<Series> = (0..3)
        .map(|i| Series { name: names[i].to_owned(), class: format!("r{i}"), values: Vec::new() })
        .collect();
    let shapes = experiment.paired(MODES);
    for &shape in &shapes {
        let (once, everywhere) = ((shape, MODES[0]), (shape, MODES[1]));
        let measured =
            experiment.ratio(MODES, shape, workload, |p| Some(sum(&p.replicas).cpu_seconds));
        let s = experiment.figures(everywhere, |figures| Some(figures.jobs_share));
        let x = experiment.figures(once, |figures| Some(figures.x()));
        let foretold = s.zip(x).map(|(s, x)| formula(shape.replicas, s.median, x.median));
        let papers = rubbledb(shape);
        let drawn = [measured.map(|ratio| ratio.value), foretold, papers];
        for (series, value) in series.iter_mut().zip(drawn) {
            series.values.push(value.and_then(|value| Sample::of([value])));
        }
        let number = |value: Option<f64>| Cell::text(value.map_or_else(String::new, significant));
        let sample = |sample: Option<Sample>| {
            Cell::text(sample.map_or_else(String::new, |sample| sample.text(significant)))
        };
        let shipping = experiment.figures(once, |figures| figures.shipping_us_per_kb);
        let producing = experiment.figures(once, |figures| Some(figures.job_us_per_kb));
        let mut cells = vec![Cell::ratio(measured, Better::Less), number(foretold), number(papers)];
        cells.extend([s, x, shipping, producing].map(sample));
        sheet.row(shape.to_string(), cells);
    }
    if shapes.is_empty() {
        return Vec::new();
    }
    let chart = Chart {
        title,
        note: "Less is better. Formula: 1 − ((R−1)/R)·s·(1−x)".to_owned(),
        groups: shapes.iter().map(Shape::to_string).collect(),
        series,
        form: Form::Columns,
    };
    let legend = "s: share of flush and compaction in the CPU of every-replica. x: shipping a kB \
                  to one secondary, both ends, ÷ producing it. RubbleDB: total CPU of its Table 3, \
                  whose network cards do the shipping.";
    vec![Block::Charts(vec![chart]), Block::Sheet(sheet), Block::Text(legend.to_owned())]
}

/// The plots of Tables 3 to 5: the uses of CPU, devices and network.
fn costs(experiment: &Experiment<'_>) -> Vec<Chart> {
    let workload = experiment.costed();
    let plots: [(&str, &str, &[Part]); 3] = [
        ("CPU seconds of all replicas", "Table 3", &CPU),
        ("Device I/O of all replicas (GB)", "Table 4", &DEVICE),
        ("Network traffic of all replicas (GB)", "Table 5", &NETWORK),
    ];
    let charts = plots.iter().map(|plot| stack(experiment, workload, *plot));
    charts.filter(|chart| !chart.is_empty()).collect()
}

fn stack(
    experiment: &Experiment<'_>,
    workload: &str,
    (title, form, parts): (&str, &str, &[Part]),
) -> Chart {
    let systems = |shape| experiment.systems(shape).into_iter().map(move |system| (shape, system));
    let cells: Vec<_> = experiment.shapes().into_iter().flat_map(systems).collect();
    let series = parts.iter().enumerate().map(|(i, (name, of))| Series {
        name: (*name).to_owned(),
        class: format!("p{i}"),
        values: cells
            .iter()
            .map(|&cell| experiment.sample(cell, workload, |phase| Some(of(phase))))
            .collect(),
    });
    Chart {
        title: format!("{title}, {workload}"),
        note: format!("Less is better; the figures of RubbleDB's {form}"),
        groups: cells.iter().map(|(shape, mode)| format!("{shape}, {mode}")).collect(),
        series: series.collect(),
        form: Form::Stacks,
    }
}

fn text_of(sample: Option<Sample>) -> Cell {
    Cell::text(sample.map_or_else(String::new, |sample| sample.text(significant)))
}

/// The systems of a number of replicas, or of all, in the order of the paper's tables: first the
/// baseline.
fn baseline_first(mut systems: Vec<&'static str>) -> Vec<&'static str> {
    systems.reverse();
    systems
}

/// The form of Table 3, with columns in its order: first the baseline.
fn breakdown(experiment: &Experiment<'_>, shape: Shape, workload: &str) -> Sheet {
    let systems = baseline_first(experiment.systems(shape));
    let columns = |system: &&str| [format!("{system}: primary"), "secondaries".to_owned()];
    let columns: Vec<String> = systems.iter().flat_map(columns).collect();
    let columns = columns.iter().map(String::as_str);
    let header: Vec<&str> = std::iter::once("time spent").chain(columns).collect();
    let title = format!("CPU time (s), {shape}, {workload} (the form of RubbleDB's Table 3)");
    let mut sheet = Sheet::new(title, &header);
    for (name, roles) in WORK {
        let cell = |mode: &str, pick: fn((f64, f64)) -> f64| {
            let of = |phase: &Phase| Some(pick(by_rank(&phase.replicas, roles)));
            text_of(experiment.sample((shape, mode), workload, of))
        };
        let cells = systems.iter().flat_map(|mode| [cell(mode, |of| of.0), cell(mode, |of| of.1)]);
        sheet.row(name, cells.collect());
    }
    let total = |phase: &Phase| Some(sum(&phase.replicas).cpu_seconds);
    let cells = systems.iter().flat_map(|&system| {
        let pair = [system, experiment.baseline()];
        let ratio: Option<Ratio> = experiment.ratio(pair, shape, workload, total);
        let cell = text_of(experiment.sample((shape, system), workload, total));
        [cell.with(ratio, Better::Less), Cell::default()]
    });
    sheet.row("Total", cells.collect());
    sheet
}

/// Parts of a whole in GB for every number of replicas: first the baseline's, then the others' with
/// their ratios.
fn gigabytes(
    experiment: &Experiment<'_>,
    workload: &str,
    title: &str,
    (names, parts): (&[&str], &[Part]),
) -> Sheet {
    let systems = baseline_first(experiment.all_systems());
    let columns = |system: &&str| {
        let first = format!("{system}: {}", names[0]);
        std::iter::once(first).chain(names[1..].iter().map(|name| (*name).to_owned()))
    };
    let columns: Vec<String> = systems.iter().flat_map(columns).collect();
    let columns = columns.iter().map(String::as_str);
    let header: Vec<&str> = std::iter::once("replicas").chain(columns).collect();
    let mut sheet = Sheet::new(title, &header);
    for shape in experiment.shapes() {
        let cell = |system: &'static str, of: fn(&Phase) -> f64| {
            let measure = |phase: &Phase| Some(of(phase));
            let cell = text_of(experiment.sample((shape, system), workload, measure));
            let pair = [system, experiment.baseline()];
            cell.with(experiment.ratio(pair, shape, workload, measure), Better::Less)
        };
        let cells =
            systems.iter().flat_map(|&system| parts.iter().map(move |part| (system, part.1)));
        let cells = cells.map(|(system, of)| cell(system, of));
        sheet.row(shape.to_string(), cells.collect());
    }
    sheet
}

/// The form of Table 4. One of its nodes holds one replica of each of R groups, so its sum is that
/// of all replicas of one group.
fn devices(experiment: &Experiment<'_>, workload: &str) -> Sheet {
    let title =
        format!("Device I/O of all replicas (GB), {workload} (the form of RubbleDB's Table 4)");
    gigabytes(experiment, workload, &title, (&["read", "write"], &DEVICE))
}

/// The form of Table 5: each byte counts once.
fn network(experiment: &Experiment<'_>, workload: &str) -> Sheet {
    let title = format!(
        "Network traffic of all replicas (GB), {workload} (the form of RubbleDB's Table 5)"
    );
    gigabytes(experiment, workload, &title, (&["clients", "members", "NVMe/TCP"], &NETWORK))
}
