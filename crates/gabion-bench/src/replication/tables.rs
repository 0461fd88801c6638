//! Systems side by side: a line for each in each workload, and what each spent its processors on.

use crate::figures::{JOBS, SHIPPING, median, ratio, sum};
use crate::report::{Phase, Run, STOLEN_MAX};
use crate::text::{Style, Table, grouped, line, megabytes, seconds};
use crate::workload::Kind;

/// A figure of a workload; `None` where it has none, as a workload without writes has no latency of them.
struct Column {
    name: &'static str,
    of: fn(&Phase) -> Option<f64>,
    show: fn(f64) -> String,
}

const COLUMNS: [Column; 7] = [
    Column { name: "requests/s", of: |p| Some(per_second(p)), show: |v| grouped(v as u64) },
    Column { name: "per machine CPU s", of: per_machine_second, show: |v| grouped(v as u64) },
    Column { name: "CPU µs", of: |p| Some(per_request(p, cpu(p))), show: tenths },
    Column { name: "jobs µs", of: |p| Some(per_request(p, jobs(p))), show: tenths },
    Column {
        name: "p99 write µs",
        of: |p| p99(p, &[Kind::Insert, Kind::Update, Kind::ReadModifyWrite]),
        show: whole,
    },
    Column { name: "p99 read µs", of: |p| p99(p, &[Kind::Read, Kind::Scan]), show: whole },
    Column {
        name: "written MB",
        of: |p| Some(sum(&p.replicas).write_bytes as f64),
        show: |v| megabytes(v as u64),
    },
];

fn whole(value: f64) -> String {
    grouped(value.round() as u64)
}

fn tenths(value: f64) -> String {
    format!("{value:.1}")
}

fn requests(phase: &Phase) -> u64 {
    Kind::ALL.iter().map(|kind| phase.tally.count(*kind)).sum()
}

fn per_second(phase: &Phase) -> f64 {
    ratio(requests(phase) as f64, phase.requests_seconds)
}

fn per_request(phase: &Phase, seconds: f64) -> f64 {
    ratio(1e6 * seconds, requests(phase) as f64)
}

fn cpu(phase: &Phase) -> f64 {
    sum(&phase.replicas).cpu_seconds
}

/// Requests for each second that the machine's processors worked, for whatever but clients.
fn per_machine_second(phase: &Phase) -> Option<f64> {
    let seconds = phase.machine.busy - phase.tally.cpu_seconds;
    (seconds > 0.0).then(|| requests(phase) as f64 / seconds)
}

/// Flush, compaction and the shipping of what they made.
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
fn over_rounds(rounds: &[&Run], i: usize, of: impl Fn(&Phase) -> Option<f64>) -> Option<f64> {
    let phases = rounds.iter().filter_map(|run| run.phases.get(i));
    median(&mut phases.filter_map(of).collect::<Vec<f64>>())
}

/// The comparison of systems, each with its rounds, of one number of replicas and groups with the first of them.
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
    spent(systems).write(style, &mut out);
    out
}

/// A load that was offered, as `a@80 at 31,300 a second`.
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
            let value = over_rounds(rounds, i, column.of);
            row.push(value.map_or_else(String::new, column.show));
            let base = over_rounds(&systems[0], i, column.of).filter(|base| *base > 0.0);
            let divided = value.zip(base).filter(|_| !std::ptr::eq(rounds, &systems[0][..]));
            row.push(divided.map_or_else(String::new, |(a, b)| format!("{:.2}", a / b)));
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

/// What a reader must know before trusting these figures.
fn warnings(run: &Run, round: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    for phase in &run.phases {
        let place = format!("{}{round}, workload {}", run.compaction, phase.name());
        if phase.tally.wrong > 0 {
            let example = phase.tally.examples.first().map_or("", String::as_str);
            let wrong = grouped(phase.tally.wrong);
            warnings.push(format!("WRONG READS: {wrong} ({place}), the first: {example}"));
        }
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
