//! The findings of a run, as JSON, as text and as Markdown.

use crate::args::{OpenLoad, WorkloadChoice};
use crate::figures::{
    Comparison, DEVICE_COLUMNS, Figures, JOBS, SHIPPING, Shape, TRAFFIC_COLUMNS, UserBytes,
    by_rank, other_work, sum,
};
use crate::status::{KINDS, ROLES, ReplicaUse, Usage};
use crate::system::MachineTime;
use crate::text::{Style, Table, gigabytes, grouped, line, megabytes, seconds};
use crate::workload::{Kind, Tally};
use serde_json::{Map, Value, json};

/// An offered load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Offered {
    pub(crate) load: OpenLoad,
    pub(crate) per_second: f64,
}

/// The requests and the cost of one workload.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) workload: WorkloadChoice,
    /// Set in an open loop.
    pub(crate) offered: Option<Offered>,
    pub(crate) tally: Tally,
    /// From the first request until no job was seen to run any more: the time over which all
    /// processor seconds are counted.
    pub(crate) wall_seconds: f64,
    /// The part from the first request to the last answer.
    pub(crate) requests_seconds: f64,
    /// The part from the last answer until no job ran any more.
    pub(crate) settle_seconds: f64,
    /// Whether that was reached in the allowed time.
    pub(crate) is_settled: bool,
    /// The whole machine's, over the same time.
    pub(crate) machine: MachineTime,
    /// Each replica's, over the same time.
    pub(crate) replicas: Vec<ReplicaUse>,
    /// Bytes of users' data.
    pub(crate) user: UserBytes,
}

impl Phase {
    /// The name in reports: with an offered load behind an `@`, `a@80` for a percent, `a@25000/s`
    /// for a rate.
    pub(crate) fn name(&self) -> String {
        let name = self.workload.as_str();
        match self.offered.map(|offered| offered.load) {
            None => name.to_owned(),
            Some(OpenLoad::Percent(percent)) => format!("{name}@{percent}"),
            Some(OpenLoad::PerSecond(rate)) => format!("{name}@{rate}/s"),
        }
    }
}

/// More than this part of the machine's own work, stolen by its host, is reported.
pub(crate) const STOLEN_MAX: f64 = 0.03;

/// One cluster's measurement.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Options and properties of the cluster, by name.
    pub(crate) config: Map<String, Value>,
    /// The compacting side, by the replicas' own report.
    pub(crate) compaction: String,
    pub(crate) phases: Vec<Phase>,
}

impl Run {
    /// Its groups and replicas.
    pub(crate) fn shape(&self) -> Shape {
        Shape::of(self.phases.first().map_or(&[], |phase| &phase.replicas))
    }

    /// The common point of compared runs: groups and replicas, and the round.
    fn place(&self) -> (Shape, Option<&Value>) {
        (self.shape(), self.config.get("round"))
    }

    /// The use of each replica over all workloads.
    pub(crate) fn replicas(&self) -> Vec<ReplicaUse> {
        let mut total: Vec<ReplicaUse> = Vec::new();
        for phase in &self.phases {
            if total.is_empty() {
                total.clone_from(&phase.replicas);
                continue;
            }
            for (sum, replica) in total.iter_mut().zip(&phase.replicas) {
                let usage = sum.usage.plus(&replica.usage);
                *sum = ReplicaUse { usage, ..replica.clone() };
            }
        }
        total
    }

    /// The use behind the figures that compare clusters: that of the load if there is one, as in
    /// RubbleDB §5.2, else of everything.
    pub(crate) fn compared(&self) -> Vec<ReplicaUse> {
        let load = self.phases.iter().find(|phase| phase.workload == WorkloadChoice::Load);
        load.map_or_else(|| self.replicas(), |phase| phase.replicas.clone())
    }

    /// The number of wrong reads.
    pub(crate) fn wrong(&self) -> u64 {
        self.phases.iter().map(|phase| phase.tally.wrong).sum()
    }
}

/// Pairs of runs of one round with as many replicas and groups: the primary compacts, every replica
/// does.
pub(crate) fn pairs(runs: &[Run]) -> Vec<(&Run, &Run)> {
    let is = |run: &&Run, mode: &str| run.compaction == mode;
    let primaries = runs.iter().filter(|run| is(run, "primary"));
    let partner = |once: &Run| {
        runs.iter().find(move |run| is(run, "every-replica") && run.place() == once.place())
    };
    primaries.filter_map(|once| Some((once, partner(once)?))).collect()
}

/// A run as JSON. `before` are the runs reported already. If the other way of compacting is among
/// them, in the same round and with as many replicas and groups, this one has the comparison of
/// both.
pub(crate) fn json<'a>(run: &Run, before: impl IntoIterator<Item = &'a Run>) -> Value {
    let mut object = run_json(run);
    let modes = ["primary", "every-replica"];
    let is_other = |other: &&Run| {
        modes.contains(&run.compaction.as_str())
            && modes.contains(&other.compaction.as_str())
            && other.compaction != run.compaction
            && other.place() == run.place()
    };
    if let Some(other) = before.into_iter().find(is_other) {
        let (once, baseline) = if run.compaction == modes[0] { (run, other) } else { (other, run) };
        let comparison = Comparison::of(&once.compared(), &baseline.compared());
        object["comparison"] = comparison_json(&comparison);
    }
    object
}

fn run_json(run: &Run) -> Value {
    let replicas = run.replicas();
    let figures = Figures::of(&run.compared());
    json!({
        "config": run.config,
        "operations": run.phases.iter().flat_map(operations_json).collect::<Vec<_>>(),
        "replicas": replicas.iter().map(replica_json).collect::<Vec<_>>(),
        "totals": totals_json(&run.phases),
        "phases": run.phases.iter().map(phase_json).collect::<Vec<_>>(),
        "figures": {
            "jobs_share": figures.jobs_share,
            "job_us_per_kb": figures.job_us_per_kb,
            "shipping_us_per_kb": figures.shipping_us_per_kb,
        },
    })
}

fn operations_json(phase: &Phase) -> Vec<Value> {
    let tally = &phase.tally;
    let kinds = Kind::ALL.into_iter().filter(|kind| tally.count(*kind) > 0);
    let operation = |kind: Kind| {
        json!({
            "workload": phase.name(),
            "type": kind.as_str(),
            "count": tally.count(kind),
            "per_second": tally.count(kind) as f64 / phase.requests_seconds,
            "latency_us": {
                "p50": tally.latency_us(kind, 0.5),
                "p99": tally.latency_us(kind, 0.99),
                "p999": tally.latency_us(kind, 0.999),
            },
        })
    };
    kinds.map(operation).collect()
}

fn by_name<T: Into<Value> + Copy>(names: &[&str], values: &[T]) -> Value {
    let pairs = names.iter().zip(values);
    Value::Object(pairs.map(|(name, value)| ((*name).to_owned(), (*value).into())).collect())
}

fn replica_json(replica: &ReplicaUse) -> Value {
    let usage = &replica.usage;
    json!({
        "group": replica.group,
        "id": replica.replica,
        "role": replica.role,
        "cpu_seconds": usage.cpu_seconds,
        "cpu_seconds_by_role": by_name(&ROLES, &usage.cpu_by_role),
        "flushes": usage.flushes,
        "compactions": usage.compactions,
        "trivial_moves": usage.trivial_moves,
        "compaction_read_bytes": usage.compaction_read_bytes,
        "job_written_bytes": usage.job_written_bytes,
        "read_bytes": usage.read_bytes,
        "write_bytes": usage.write_bytes,
        "net_sent_bytes": usage.sent.iter().sum::<u64>(),
        "net_sent_bytes_by_kind": by_name(&KINDS, &usage.sent),
        "net_received_bytes": usage.received.iter().sum::<u64>(),
        "net_received_bytes_by_kind": by_name(&KINDS, &usage.received),
        "shipped_bytes": usage.shipped_bytes,
        "live_files": replica.live_files,
        "live_bytes": replica.live_bytes,
        "memory_bytes": replica.memory_bytes,
        "space_bytes": replica.space_bytes,
    })
}

fn totals_json(phases: &[Phase]) -> Value {
    let total = |of: fn(&Phase) -> f64| phases.iter().map(of).sum::<f64>();
    json!({
        "cpu_seconds": total(|phase| sum(&phase.replicas).cpu_seconds),
        "wall_seconds": total(|phase| phase.wall_seconds),
        "requests_seconds": total(|phase| phase.requests_seconds),
        "settle_seconds": total(|phase| phase.settle_seconds),
        "settled": phases.iter().all(|phase| phase.is_settled),
        "machine_cpu_seconds": total(|phase| phase.machine.busy),
        "stolen_cpu_seconds": total(|phase| phase.machine.stolen),
        "client_cpu_seconds": total(|phase| phase.tally.cpu_seconds),
    })
}

fn phase_json(phase: &Phase) -> Value {
    json!({
        "workload": phase.name(),
        "offered_per_second": phase.offered.map(|offered| offered.per_second),
        "refusals": phase.tally.refusals,
        "wrong_reads": phase.tally.wrong,
        "wrong_read_examples": phase.tally.examples,
        "user_bytes": {
            "written": phase.user.written,
            "read": phase.user.read,
            "live": phase.user.live,
        },
        "replicas": phase.replicas.iter().map(replica_json).collect::<Vec<_>>(),
        "totals": totals_json(std::slice::from_ref(phase)),
    })
}

fn comparison_json(comparison: &Comparison) -> Value {
    json!({
        "co_location": comparison.shape.co_location,
        "replicas": comparison.shape.replicas,
        "cpu_ratio": comparison.cpu_ratio,
        "s": comparison.s,
        "x": comparison.x,
        "formula": comparison.formula,
        "job_us_per_kb": comparison.job_us_per_kb,
        "shipping_us_per_kb": comparison.shipping_us_per_kb,
    })
}

/// One run for people.
pub(crate) fn describe(run: &Run, style: Style) -> String {
    let mut out = String::new();
    let mark = if style == Style::Markdown { "## " } else { "" };
    let words = run.shape().words();
    line(&mut out, &format!("{mark}{words}, compaction: {}\n", run.compaction));
    operations_table(run).write(style, &mut out);
    for phase in &run.phases {
        describe_phase(phase, style, &mut out);
    }
    out
}

fn operations_table(run: &Run) -> Table {
    let header = ["workload", "type", "count", "per second", "p50 µs", "p99 µs", "p99.9 µs"];
    let mut table = Table::new("Operations", &header);
    for phase in &run.phases {
        let tally = &phase.tally;
        for kind in Kind::ALL.into_iter().filter(|kind| tally.count(*kind) > 0) {
            let per_second = tally.count(kind) as f64 / phase.requests_seconds;
            let mut row = vec![
                phase.name(),
                kind.as_str().to_owned(),
                grouped(tally.count(kind)),
                grouped(per_second as u64),
            ];
            let latency = |share| format!("{:.0}", tally.latency_us(kind, share));
            row.extend([0.5, 0.99, 0.999].map(latency));
            table.row(row);
        }
    }
    table
}

fn describe_phase(phase: &Phase, style: Style, out: &mut String) {
    let name = phase.name();
    let settled = if phase.is_settled { "quiet after" } else { "NOT quiet after" };
    let all = sum(&phase.replicas);
    line(
        out,
        &format!(
            "Workload {name}: {:.2} s, {settled} {:.2} s more. CPU in the {:.2} s until that was \
             seen: replicas {:.2} s, clients {:.2} s, machine {:.2} s.\n",
            phase.requests_seconds,
            phase.settle_seconds,
            phase.wall_seconds,
            all.cpu_seconds,
            phase.tally.cpu_seconds,
            phase.machine.busy
        ),
    );
    if phase.machine.stolen > STOLEN_MAX * phase.machine.busy {
        line(
            out,
            &format!(
                "The host took {:.2} s of processor time for others meanwhile, much of which is in the \
                 figures above: seconds are too high, throughput is too low.\n",
                phase.machine.stolen
            ),
        );
    }
    for (code, times) in &phase.tally.refusals {
        line(out, &format!("Refused with {code} and tried again: {} times.\n", grouped(*times)));
    }
    if phase.tally.wrong > 0 {
        line(out, &format!("WRONG READS: {}\n", grouped(phase.tally.wrong)));
        for example in &phase.tally.examples {
            line(out, &format!("- {example}"));
        }
        line(out, "");
    }
    cpu_table(phase).write(style, out);
    disk_table(phase).write(style, out);
    network_table(phase).write(style, out);
}

/// Adds a row per replica and one for all of them.
fn rows(table: &mut Table, replicas: &[ReplicaUse], cells: impl Fn(&Usage) -> Vec<String>) {
    let has_groups = Shape::of(replicas).co_location > 1;
    for replica in replicas {
        let group = if has_groups { format!("group {}, ", replica.group) } else { String::new() };
        let name = format!("{group}{} {}", replica.replica, replica.role);
        table.row([vec![name], cells(&replica.usage)].concat());
    }
    table.row([vec!["all".to_owned()], cells(&sum(replicas))].concat());
}

fn cpu_table(phase: &Phase) -> Table {
    let header = [&["replica", "CPU"][..], &ROLES[..]].concat();
    let mut table = Table::new(format!("CPU by role of work (s), {}", phase.name()), &header);
    rows(&mut table, &phase.replicas, |usage| {
        let mut cells = vec![seconds(usage.cpu_seconds)];
        cells.extend(usage.cpu_by_role.map(seconds));
        cells
    });
    table
}

fn disk_table(phase: &Phase) -> Table {
    let header = [
        "replica",
        "flushes",
        "compactions",
        "moves",
        "job read",
        "job written",
        "read",
        "written",
        "shipped",
    ];
    let title = format!("Jobs and device (MB), {}", phase.name());
    let mut table = Table::new(title, &header);
    rows(&mut table, &phase.replicas, |usage| {
        let mut cells: Vec<String> =
            [usage.flushes, usage.compactions, usage.trivial_moves].map(grouped).to_vec();
        let bytes = [
            usage.compaction_read_bytes,
            usage.job_written_bytes,
            usage.read_bytes,
            usage.write_bytes,
            usage.shipped_bytes,
        ];
        cells.extend(bytes.map(megabytes));
        cells
    });
    table
}

fn network_table(phase: &Phase) -> Table {
    let sent = KINDS.map(|kind| format!("sent {kind}"));
    let received = KINDS.map(|kind| format!("received {kind}"));
    let mut header = vec!["replica"];
    header.extend(sent.iter().chain(&received).map(String::as_str));
    let mut table = Table::new(format!("Network (MB), {}", phase.name()), &header);
    rows(&mut table, &phase.replicas, |usage| {
        usage.sent.iter().chain(&usage.received).map(|&bytes| megabytes(bytes)).collect()
    });
    table
}

/// The figures that compare two clusters and the tables of RubbleDB §5.2, if there are pairs.
pub(crate) fn compare(runs: &[Run], style: Style) -> String {
    let mut out = String::new();
    let pairs = pairs(runs);
    if pairs.is_empty() {
        return out;
    }
    let mark = if style == Style::Markdown { "## " } else { "" };
    line(&mut out, &format!("{mark}Compacting once against compacting everywhere\n"));
    ratio_table(&pairs).write(style, &mut out);
    line(
        &mut out,
        "s: share of flush and compaction in the CPU of every-replica. x: shipping a kB to one \
         secondary (both ends) ÷ producing it. Formula: 1 − ((R−1)/R)·s·(1−x).\n",
    );
    for (once, everywhere) in &pairs {
        let (once, everywhere) = (once.compared(), everywhere.compared());
        let made = |replicas| sum(replicas).job_written_bytes as f64;
        let sides = [("primary", made(&once)), ("every-replica", made(&everywhere))];
        if let Some(text) = other_work(Shape::of(&once), sides) {
            line(&mut out, &format!("{text}.\n"));
        }
    }
    for (once, everywhere) in &pairs {
        breakdown_table(once, everywhere).write(style, &mut out);
    }
    device_table(&pairs).write(style, &mut out);
    traffic_table(&pairs).write(style, &mut out);
    out
}

fn ratio_table(pairs: &[(&Run, &Run)]) -> Table {
    let header =
        ["replicas", "CPU ratio", "formula", "s", "x", "shipping µs/kB", "producing µs/kB"];
    let mut table = Table::new("CPU of primary ÷ CPU of every-replica", &header);
    for (once, everywhere) in pairs {
        let comparison = Comparison::of(&once.compared(), &everywhere.compared());
        let mut row = vec![comparison.shape.to_string()];
        let values = [
            comparison.cpu_ratio,
            comparison.formula,
            comparison.s,
            comparison.x,
            comparison.shipping_us_per_kb,
            comparison.job_us_per_kb,
        ];
        row.extend(values.map(|value| format!("{value:.3}")));
        table.row(row);
    }
    table
}

/// The form of RubbleDB's Table 3, with the shipping that a network card does there.
fn breakdown_table(once: &Run, everywhere: &Run) -> Table {
    let (once, everywhere) = (once.compared(), everywhere.compared());
    let header =
        ["time spent", "every-replica: primary", "secondaries", "primary: primary", "secondaries"];
    let title = format!("CPU time (s), {}", Shape::of(&once));
    let mut table = Table::new(title, &header);
    let work: [(&str, &[&str]); 4] = [
        ("Compaction", &JOBS),
        ("Shipping", &SHIPPING),
        ("Requests", &["requests"]),
        ("Other", &["other"]),
    ];
    for (name, roles) in work {
        let (a, b) = by_rank(&everywhere, roles);
        let (c, d) = by_rank(&once, roles);
        table.row([vec![name.to_owned()], [a, b, c, d].map(seconds).to_vec()].concat());
    }
    let total = |replicas: &[ReplicaUse]| seconds(sum(replicas).cpu_seconds);
    let (a, b) = (total(&everywhere), total(&once));
    table.row(vec!["Total".to_owned(), a, String::new(), b, String::new()]);
    table
}

/// The form of RubbleDB's Table 4. One of its nodes holds one replica of each of R groups, so its
/// sum is that of all replicas of one group.
fn device_table(pairs: &[(&Run, &Run)]) -> Table {
    let mut table = Table::new("Device I/O of all replicas (GB)", &DEVICE_COLUMNS);
    for (once, everywhere) in pairs {
        let (once, everywhere) = (once.compared(), everywhere.compared());
        let (a, b) = (sum(&everywhere), sum(&once));
        let bytes = [a.read_bytes, a.write_bytes, b.read_bytes, b.write_bytes];
        let name = Shape::of(&once).to_string();
        table.row([vec![name], bytes.map(gigabytes).to_vec()].concat());
    }
    table
}

/// The form of RubbleDB's Table 5: requests and the members' messages, and shipped files. Each byte
/// counts once: those sent by clients and those sent by replicas.
fn traffic_table(pairs: &[(&Run, &Run)]) -> Table {
    let mut table = Table::new("Network traffic of all replicas (GB)", &TRAFFIC_COLUMNS);
    for (once, everywhere) in pairs {
        let (once, everywhere) = (once.compared(), everywhere.compared());
        let bytes =
            |all: Usage| [all.sent[0] + all.received[0], all.sent[1], all.sent[2]].map(gigabytes);
        let name = Shape::of(&once).to_string();
        let (a, b) = (bytes(sum(&everywhere)), bytes(sum(&once)));
        table.row([vec![name], a.to_vec(), b.to_vec()].concat());
    }
    table
}

#[cfg(test)]
pub(crate) mod tests;
