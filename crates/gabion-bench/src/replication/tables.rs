//! Systems side by side: a line for each in each workload, and the uses of its processor time.

use crate::figures::{JOBS, QUEUE_MARK, SHIPPING, median, other_work, queue, ratio, sum};
use crate::report::{Phase, Run, STOLEN_MAX};
use crate::text::{Style, Table, grouped, line, megabytes, seconds};
use crate::workload::Kind;

/// A figure of a workload; `None` if it has none, as a workload without writes has no latency of
/// them.
struct Column {
    name: &'static str,
    of: fn(&Phase) -> Option<f64>,
    show: fn(f64) -> String,
    /// Whether it is meaningless for a system that does not keep up with an offered load.
    is_latency: bool,
}

const COLUMNS: [Column; 7] = [
    figure("requests/s", |p| Some(per_second(p)), |v| grouped(v as u64)),
    figure("per machine CPU s", per_machine_second, |v| grouped(v as u64)),
    figure("CPU µs", |p| Some(per_request(p, cpu(p))), tenths),
    figure("jobs µs", |p| Some(per_request(p, jobs(p))), tenths),
    Column { is_latency: true, ..figure("p99 write µs", |p| p99(p, &WRITES), whole) },
    Column { is_latency: true, ..figure("p99 read µs", |p| p99(p, &READS), whole) },
    figure("written MB", |p| Some(sum(&p.replicas).write_bytes as f64), |v| megabytes(v as u64)),
];

const WRITES: [Kind; 3] = [Kind::Insert, Kind::Update, Kind::ReadModifyWrite];
const READS: [Kind; 2] = [Kind::Read, Kind::Scan];

/// A figure that is no latency.
const fn figure(
    name: &'static str,
    of: fn(&Phase) -> Option<f64>,
    show: fn(f64) -> String,
) -> Column {
    Column { name, of, show, is_latency: false }
}

fn whole(value: f64) -> String {
    grouped(value.round() as u64)
}

fn tenths(value: f64) -> String {
    format!("{value:.1}")
}

pub(crate) fn requests(phase: &Phase) -> u64 {
    Kind::ALL.iter().map(|kind| phase.tally.count(*kind)).sum()
}

pub(crate) fn per_second(phase: &Phase) -> f64 {
    ratio(requests(phase) as f64, phase.requests_seconds)
}

fn per_request(phase: &Phase, seconds: f64) -> f64 {
    ratio(1e6 * seconds, requests(phase) as f64)
}

fn cpu(phase: &Phase) -> f64 {
    sum(&phase.replicas).cpu_seconds
}

/// Requests for each second that the machine's processors worked, for anything but clients.
fn per_machine_second(phase: &Phase) -> Option<f64> {
    let seconds = phase.machine.busy - phase.tally.cpu_seconds;
    (seconds > 0.0).then(|| requests(phase) as f64 / seconds)
}

/// Flush, compaction and the shipping of their files.
fn jobs(phase: &Phase) -> f64 {
    let all = sum(&phase.replicas);
    all.cpu_of(&JOBS) + all.cpu_of(&SHIPPING)
}

/// The highest p99 of these types.
fn p99(phase: &Phase, kinds: &[Kind]) -> Option<f64> {
    let there = kinds.iter().filter(|kind| phase.tally.count(**kind) > 0);
    there.map(|kind| phase.tally.latency_us(*kind, 0.99)).reduce(f64::max)
}

/// The median of a figure over the rounds of one system, in its `i`-th workload.
pub(crate) fn over_rounds(
    rounds: &[&Run],
    i: usize,
    of: impl Fn(&Phase) -> Option<f64>,
) -> Option<f64> {
    let phases = rounds.iter().filter_map(|run| run.phases.get(i));
    median(&mut phases.filter_map(of).collect::<Vec<f64>>())
}

/// Whether the load of a workload was not reached, in any round.
fn waits(rounds: &[&Run], i: usize) -> bool {
    rounds.iter().filter_map(|run| run.phases.get(i)).any(|phase| told_queue(phase).is_some())
}

/// Reports that a phase's load was not reached.
fn told_queue(phase: &Phase) -> Option<String> {
    queue(per_second(phase), phase.offered.map(|offered| offered.per_second))
}

/// The comparison of systems, each with its rounds, at one number of replicas and groups with the
/// first of them.
pub(super) fn compare(systems: &[Vec<&Run>], style: Style) -> String {
    let mut out = String::new();
    let Some(first) = systems.first().and_then(|rounds| rounds.first()) else { return out };
    let mark = if style == Style::Markdown { "## " } else { "" };
    let shape = first.shape();
    line(&mut out, &format!("{mark}{}\n", shape.words()));
    side_by_side(systems).write(style, &mut out);
    line(
        &mut out,
        &format!(
            "÷: by {}. Per machine CPU s: requests for each second in which a processor of this machine worked, for \
             whatever but clients. CPU: of all replicas until compaction is quiet, per request; jobs: of it \
             flush, compaction and shipping. A read-modify-write counts as a write, a scan as a read.\n",
            first.compaction
        ),
    );
    if systems[0].len() > 1 {
        line(&mut out, &format!("Medians of {} rounds.\n", systems[0].len()));
    }
    if shape.co_location > 1 {
        line(
            &mut out,
            &format!(
                "{} groups side by side (co-location factor {0}), each with the records whose keys' hashes \
                 are its own; all figures are of all of them.\n",
                shape.co_location
            ),
        );
    }
    let loads: Vec<String> = first.phases.iter().filter_map(load).collect();
    if !loads.is_empty() {
        line(
            &mut out,
            &format!(
                "In an open loop, where latencies count from when a request was due, and requests become due \
                 once a millisecond: {}. A percent is of what {} answered.\n",
                loads.join(", "),
                first.compaction
            ),
        );
    }
    for rounds in systems {
        for (round, run) in (1..).zip(rounds) {
            let round = if rounds.len() > 1 { format!(", round {round}") } else { String::new() };
            for warning in warnings(run, &round) {
                line(&mut out, &format!("{warning}\n"));
            }
        }
    }
    for text in other_works(systems) {
        line(&mut out, &format!("{text}.\n"));
    }
    spent(systems).write(style, &mut out);
    out
}

/// Reports that flushes and compactions of a system did other work over the load than those of the
/// first.
fn other_works(systems: &[Vec<&Run>]) -> Vec<String> {
    let written = |phase: &Phase| Some(sum(&phase.replicas).job_written_bytes as f64);
    let side = |rounds: &'_ [&Run]| {
        let system = rounds.first()?.compaction.clone();
        Some((system, over_rounds(rounds, 0, written)?))
    };
    let sides: Vec<(String, f64)> = systems.iter().filter_map(|rounds| side(rounds)).collect();
    let Some(((first, base), others)) = sides.split_first() else { return Vec::new() };
    let shape = systems[0][0].shape();
    let told = |(system, made): &(String, f64)| {
        other_work(shape, [(system.as_str(), *made), (first.as_str(), *base)])
    };
    others.iter().filter_map(told).collect()
}

/// An offered load, as `a@80 at 31,300 a second`.
fn load(phase: &Phase) -> Option<String> {
    let rate = whole(phase.offered?.per_second);
    Some(format!("{} at {rate} a second", phase.name()))
}

fn side_by_side(systems: &[Vec<&Run>]) -> Table {
    let mut header = vec!["workload, system"];
    for column in &COLUMNS {
        header.push(column.name);
        header.push("÷");
    }
    let mut table = Table::new("Who is ahead", &header);
    each_phase(systems, |name, i, rounds| {
        let mut row = vec![name];
        for column in &COLUMNS {
            let mark = |rounds| if column.is_latency && waits(rounds, i) { QUEUE_MARK } else { "" };
            let (own, either) = (mark(rounds), [mark(rounds), mark(&systems[0])]);
            let either = if either.contains(&QUEUE_MARK) { QUEUE_MARK } else { "" };
            let value = over_rounds(rounds, i, column.of);
            row.push(value.map_or_else(String::new, |v| (column.show)(v) + own));
            let base = over_rounds(&systems[0], i, column.of).filter(|base| *base > 0.0);
            let divided = value.zip(base).filter(|_| !std::ptr::eq(rounds, &systems[0][..]));
            row.push(divided.map_or_else(String::new, |(a, b)| format!("{:.2}{either}", a / b)));
        }
        table.row(row);
    });
    table
}

/// Each workload of each system: a name, the place of the workload, the system's rounds.
fn each_phase(systems: &[Vec<&Run>], mut tell: impl FnMut(String, usize, &[&Run])) {
    for i in 0..systems[0][0].phases.len() {
        for rounds in systems {
            let Some((run, phase)) = rounds.first().and_then(|run| Some((run, run.phases.get(i)?)))
            else {
                continue;
            };
            tell(format!("{} {}", phase.name(), run.compaction), i, rounds);
        }
    }
}

/// The warnings that a reader needs before trusting these figures.
pub(crate) fn warnings(run: &Run, round: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    for phase in &run.phases {
        let place = format!("{}{round}, workload {}", run.compaction, phase.name());
        if phase.tally.wrong > 0 {
            let example = phase.tally.examples.first().map_or("", String::as_str);
            let wrong = grouped(phase.tally.wrong);
            warnings.push(format!("WRONG READS: {wrong} ({place}), the first: {example}"));
        }
        warnings.extend(
            told_queue(phase).map(|queue| format!("{place}: {queue} ({}).", QUEUE_MARK.trim())),
        );
        if !phase.is_settled {
            warnings.push(format!("{place}: NOT quiet when counting ended, so CPU lacks a part."));
        }
        for (code, times) in &phase.tally.refusals {
            let times = grouped(*times);
            warnings.push(format!("{place}: refused with {code} and tried again {times} times."));
        }
        if phase.machine.stolen > STOLEN_MAX * phase.machine.busy {
            warnings.push(format!(
                "{place}: the host took {:.2} s of processor time for others, much of which is in \
                 the figures.",
                phase.machine.stolen
            ));
        }
    }
    warnings
}

/// Seconds of all replicas by kind of work, for every workload.
fn spent(systems: &[Vec<&Run>]) -> Table {
    let work: [(&str, &[&str]); 5] = [
        ("requests", &["requests"]),
        ("flush", &["flush"]),
        ("compaction", &["compaction"]),
        ("shipping", &SHIPPING),
        ("other", &["other"]),
    ];
    let header: Vec<&str> = ["workload, system", "CPU"]
        .into_iter()
        .chain(work.iter().map(|(name, _)| *name))
        .chain(["clients", "job written MB"])
        .collect();
    let mut table = Table::new("CPU of all replicas (s)", &header);
    each_phase(systems, |name, i, rounds| {
        let figure = |of: &dyn Fn(&Phase) -> f64| {
            over_rounds(rounds, i, |phase| Some(of(phase))).unwrap_or_default()
        };
        let mut row = vec![name, seconds(figure(&cpu))];
        row.extend(
            work.iter().map(|(_, roles)| seconds(figure(&|p| sum(&p.replicas).cpu_of(roles)))),
        );
        row.push(seconds(figure(&|phase| phase.tally.cpu_seconds)));
        let written = figure(&|phase| sum(&phase.replicas).job_written_bytes as f64);
        row.push(megabytes(written as u64));
        table.row(row);
    });
    table
}
