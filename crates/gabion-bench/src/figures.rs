//! The meaning of counters' differences: the cost of producing and of shipping a kilobyte, the
//! share of jobs in all work, and how the two ways of compacting compare with the formula's
//! prediction.
//!
//! With s = share of flush and compaction in the CPU of the every-replica baseline, and x = CPU to
//! ship a kilobyte to one secondary (both ends) ÷ CPU to produce it, R replicas that compact once
//! need `1 − ((R−1)/R)·s·(1−x)` of the baseline's CPU. A kilobyte is 1,000 bytes.

use crate::status::{ReplicaUse, Usage};
use crate::text::{gigabytes, grouped};
use std::fmt;

/// The differences allowed between runs with the same settings, besides who compacts. In the order
/// of RubbleDB's Figures 7 and 8: first by groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    /// Groups side by side, which share the records: RubbleDB's co-location factor.
    pub(crate) co_location: usize,
    /// Replicas of each of them.
    pub(crate) replicas: usize,
}

impl Shape {
    /// The shape of replicas that were measured together.
    pub(crate) fn of(replicas: &[ReplicaUse]) -> Self {
        let groups = replicas.iter().map(|replica| replica.group).max().unwrap_or(1).max(1);
        let co_location = groups as usize;
        Self { co_location, replicas: replicas.len() / co_location }
    }

    /// The words for a heading.
    pub(crate) fn words(&self) -> String {
        format!("{} replicas{}", self.replicas, self.groups())
    }

    fn groups(&self) -> String {
        match self.co_location {
            1 => String::new(),
            groups => format!(", {groups} groups"),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "R = {}{}", self.replicas, self.groups())
    }
}

/// Roles that make files.
pub(crate) const JOBS: [&str; 2] = ["flush", "compaction"];
/// Columns of the form of RubbleDB's Table 4.
pub(crate) const DEVICE_COLUMNS: [&str; 5] =
    ["replicas", "every-replica: read", "write", "primary: read", "write"];
/// Columns of the form of RubbleDB's Table 5.
pub(crate) const TRAFFIC_COLUMNS: [&str; 7] = [
    "replicas",
    "every-replica: clients",
    "members",
    "NVMe/TCP",
    "primary: clients",
    "members",
    "NVMe/TCP",
];
/// Roles that carry files to other replicas, at both ends.
pub(crate) const SHIPPING: [&str; 2] = ["shipping", "target"];

/// The work of all replicas of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figures {
    /// Processor seconds of all replicas.
    pub(crate) cpu_seconds: f64,
    /// Share of flush and compaction in them.
    pub(crate) jobs_share: f64,
    /// CPU microseconds of flush and compaction per kilobyte that they wrote.
    pub(crate) job_us_per_kb: f64,
    /// CPU microseconds of both ends per kilobyte shipped to one secondary; `None` if nothing was.
    pub(crate) shipping_us_per_kb: Option<f64>,
}

/// `a ÷ b`, and 0 where there is nothing to divide by.
pub(crate) fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// The value in the middle, or the mean of the two in the middle; `None` of nothing. Sorts the
/// values.
pub(crate) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[middle - 1], upper) })
}

/// A load counts as not reached below this part of its requests answered.
const REACHED_MIN: f64 = 0.98;
/// The mark behind a latency of such a load, and behind a ratio with one.
pub(crate) const QUEUE_MARK: &str = " !";

/// Reports that a load was not reached: requests waited longer and longer, until there were no more
/// of them.
pub(crate) fn queue(answered_per_second: f64, offered_per_second: Option<f64>) -> Option<String> {
    let offered = offered_per_second?;
    (answered_per_second < REACHED_MIN * offered).then(|| {
        let [answered, offered] = [answered_per_second, offered].map(|rate| grouped(rate.round() as u64));
        format!(
            "answered {answered} of the {offered} requests a second that were offered, so latencies are of a \
             queue, whose length --operations decides"
        )
    })
}

/// The sum over replicas.
pub(crate) fn sum(replicas: &[ReplicaUse]) -> Usage {
    replicas.iter().fold(Usage::default(), |sum, replica| sum.plus(&replica.usage))
}

impl Figures {
    pub(crate) fn of(replicas: &[ReplicaUse]) -> Self {
        let all = sum(replicas);
        let shipped_kb = all.shipped_bytes as f64 / 1e3;
        Self {
            cpu_seconds: all.cpu_seconds,
            jobs_share: ratio(all.cpu_of(&JOBS), all.cpu_seconds),
            job_us_per_kb: ratio(1e6 * all.cpu_of(&JOBS), all.job_written_bytes as f64 / 1e3),
            shipping_us_per_kb: (all.shipped_bytes > 0)
                .then(|| 1e6 * all.cpu_of(&SHIPPING) / shipped_kb),
        }
    }

    /// The x of the formula: shipping a kilobyte ÷ producing it.
    pub(crate) fn x(&self) -> f64 {
        ratio(self.shipping_us_per_kb.unwrap_or(0.0), self.job_us_per_kb)
    }
}

/// `1 − ((R−1)/R)·s·(1−x)`.
pub(crate) fn formula(replicas: usize, s: f64, x: f64) -> f64 {
    let replicas = replicas as f64;
    1.0 - (replicas - 1.0) / replicas * s * (1.0 - x)
}

/// Reports that the jobs of two systems did different work. `sides` has the bytes that each wrote
/// at all replicas. They count as different if they differ by more than a tenth, for each replica
/// that has jobs. Another engine writes more or less. And how much a short load leaves to compact
/// depends on how fast the clients beside it were, at each replica by itself.
pub(crate) fn other_work(shape: Shape, sides: [(&str, f64); 2]) -> Option<String> {
    let [a, b] = sides.map(|(system, written)| match system {
        "primary" => ("at the primary".to_owned(), written),
        _ => {
            (format!("at a replica of {system} on average"), ratio(written, shape.replicas as f64))
        }
    });
    let differs = (a.1 - b.1).abs() > 0.1 * a.1.min(b.1);
    differs.then(|| {
        let [(a, wrote_a), (b, wrote_b)] = [a, b].map(|(at, len)| (at, gigabytes(len as u64)));
        format!(
            "{shape}: jobs wrote {wrote_a} GB {a}, and {wrote_b} GB {b}: ratios of CPU compare different work"
        )
    })
}

/// The bytes of keys and values that users moved in a workload, and that they have afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UserBytes {
    pub(crate) written: u64,
    pub(crate) read: u64,
    /// Of the newest version of each record.
    pub(crate) live: u64,
}

/// The costs of a workload, each divided by what users asked for; none if that was nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Costs {
    /// Processor time of all replicas per request, µs.
    pub(crate) cpu_us: Option<f64>,
    /// The part of it for flush, compaction and shipping: at the primary, and at each secondary.
    pub(crate) jobs_us: [Option<f64>; 2],
    /// Bytes that a device read and wrote for each byte that was written, by replica.
    pub(crate) read: Option<f64>,
    pub(crate) written: Option<f64>,
    /// Bytes that went to a secondary for each byte that was written: as log, and as files.
    pub(crate) log: Option<f64>,
    pub(crate) files: Option<f64>,
    /// Tebis's amplifications: traffic of all devices, and of all network cards of servers, ÷ bytes
    /// that were written or read.
    pub(crate) io: Option<f64>,
    pub(crate) network: Option<f64>,
    /// Bytes that a replica's store takes ÷ live ones.
    pub(crate) space: Option<f64>,
    /// Resident bytes of all replicas.
    pub(crate) memory: f64,
}

impl Costs {
    pub(crate) fn of(replicas: &[ReplicaUse], user: UserBytes, requests: u64) -> Self {
        let by = |value: f64, by: f64| (by > 0.0).then(|| value / by);
        let all = sum(replicas);
        let Shape { co_location, replicas: members } = Shape::of(replicas);
        let (heads, followers) = (co_location as f64, (replicas.len() - co_location) as f64);
        let (requests, written) = (requests as f64, user.written as f64);
        let jobs = [&JOBS[..], &SHIPPING[..]].concat();
        let (primary, secondaries) = by_rank(replicas, &jobs);
        let asked = (user.written + user.read) as f64;
        let ends = |bytes: [u64; 3]| bytes.iter().sum::<u64>() as f64;
        let total = |of: fn(&ReplicaUse) -> u64| replicas.iter().map(of).sum::<u64>() as f64;
        Self {
            cpu_us: by(1e6 * all.cpu_seconds, requests),
            jobs_us: [
                by(1e6 * primary, requests * heads),
                by(1e6 * secondaries, requests * followers),
            ],
            read: by(all.read_bytes as f64, written * members as f64),
            written: by(all.write_bytes as f64, written * members as f64),
            log: by(all.sent[1] as f64, written * (members as f64 - 1.0)),
            files: by(all.sent[2] as f64, written * (members as f64 - 1.0)),
            io: by((all.read_bytes + all.write_bytes) as f64, asked),
            network: by(ends(all.sent) + ends(all.received), asked),
            space: by(total(|replica| replica.space_bytes), user.live as f64 * members as f64),
            memory: total(|replica| replica.memory_bytes),
        }
    }
}

/// Compacting once against compacting everywhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Comparison {
    pub(crate) shape: Shape,
    /// CPU of the cluster whose primary compacts ÷ CPU of the baseline.
    pub(crate) cpu_ratio: f64,
    /// Share of jobs in the baseline's CPU.
    pub(crate) s: f64,
    /// Shipping ÷ producing a kilobyte, where the primary compacts.
    pub(crate) x: f64,
    /// The formula's result for `s` and `x`.
    pub(crate) formula: f64,
    pub(crate) shipping_us_per_kb: f64,
    pub(crate) job_us_per_kb: f64,
}

impl Comparison {
    pub(crate) fn of(primary: &[ReplicaUse], baseline: &[ReplicaUse]) -> Self {
        let (once, everywhere) = (Figures::of(primary), Figures::of(baseline));
        let (s, x) = (everywhere.jobs_share, once.x());
        let shape = Shape::of(baseline);
        Self {
            shape,
            cpu_ratio: ratio(once.cpu_seconds, everywhere.cpu_seconds),
            s,
            x,
            formula: formula(shape.replicas, s, x),
            shipping_us_per_kb: once.shipping_us_per_kb.unwrap_or(0.0),
            job_us_per_kb: once.job_us_per_kb,
        }
    }
}

/// CPU seconds of one kind of work: of the primary of each group, and of all secondaries together.
pub(crate) fn by_rank(replicas: &[ReplicaUse], roles: &[&str]) -> (f64, f64) {
    let mut split = (0.0, 0.0);
    for replica in replicas {
        let seconds = replica.usage.cpu_of(roles);
        if replica.role == "primary" { split.0 += seconds } else { split.1 += seconds }
    }
    split
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A replica with these seconds for requests, jobs, shipping and target.
    pub(crate) fn replica(
        id: u64,
        role: &str,
        cpu: [f64; 4],
        made: u64,
        shipped: u64,
    ) -> ReplicaUse {
        let [requests, jobs, shipping, target] = cpu;
        let cpu_by_role = [requests, jobs / 4.0, jobs * 3.0 / 4.0, shipping, target, 0.0];
        ReplicaUse {
            group: 1,
            replica: id,
            role: role.to_owned(),
            live_files: 2,
            live_bytes: 32_000_000,
            memory_bytes: 100_000_000,
            space_bytes: 48_000_000,
            usage: Usage {
                cpu_seconds: cpu_by_role.iter().sum(),
                cpu_by_role,
                flushes: 3,
                compactions: 1,
                trivial_moves: 0,
                compaction_read_bytes: 50_000_000,
                job_written_bytes: made,
                shipped_bytes: shipped,
                read_bytes: 50_000_000,
                write_bytes: 200_000_000,
                sent: [1_000_000, 2_000_000, shipped],
                received: [3_000_000, 4_000_000, 0],
            },
        }
    }

    /// Three replicas that each make 100 MB, and the same with a primary that ships them.
    pub(crate) fn canned() -> (Vec<ReplicaUse>, Vec<ReplicaUse>) {
        let mb = 1_000_000;
        let once = vec![
            replica(1, "primary", [1.0, 3.0, 0.06, 0.0], 100 * mb, 200 * mb),
            replica(2, "middle", [1.0, 0.0, 0.0, 0.06], 0, 0),
            replica(3, "tail", [1.0, 0.0, 0.0, 0.06], 0, 0),
        ];
        let everywhere = ["primary", "middle", "tail"]
            .iter()
            .zip(1..)
            .map(|(role, id)| replica(id, role, [1.0, 3.0, 0.0, 0.0], 100 * mb, 0))
            .collect();
        (once, everywhere)
    }

    #[test]
    fn the_formula_gives_the_papers_figures() {
        // RubbleDB, Table 3b: 4,078 of 5,603 s are compaction; the measured ratio is 3,121 / 5,603
        // = 0.557.
        let s = (1319.0 + 2759.0) / 5603.0;
        assert!((formula(3, s, 0.0) - 0.515).abs() < 0.001);
        assert_eq!(formula(1, 0.7, 0.3), 1.0);
        assert_eq!(formula(4, 0.7, 1.0), 1.0, "shipping as dear as producing saves nothing");
    }

    #[test]
    fn what_is_measured_on_canned_replicas_is_what_the_formula_says() {
        let (once, everywhere) = canned();
        let comparison = Comparison::of(&once, &everywhere);
        assert_eq!(comparison.shape, Shape { co_location: 1, replicas: 3 });
        assert!((comparison.s - 0.75).abs() < 1e-9);
        // 0.18 s for 200,000 kB; 3 s for 100,000 kB.
        assert!((comparison.shipping_us_per_kb - 0.9).abs() < 1e-9);
        assert!((comparison.job_us_per_kb - 30.0).abs() < 1e-9);
        assert!((comparison.x - 0.03).abs() < 1e-9);
        assert!((comparison.cpu_ratio - 6.18 / 12.0).abs() < 1e-9);
        assert!((comparison.formula - comparison.cpu_ratio).abs() < 1e-9);
    }

    #[test]
    fn two_groups_of_a_kind_are_compared_as_one_of_them_is() {
        let doubled = |replicas: Vec<ReplicaUse>| {
            let others = replicas.iter().map(|replica| ReplicaUse { group: 2, ..replica.clone() });
            replicas.iter().cloned().chain(others).collect::<Vec<_>>()
        };
        let (once, everywhere) = canned();
        let one = Comparison::of(&once, &everywhere);
        let two = Comparison::of(&doubled(once.clone()), &doubled(everywhere));
        assert_eq!(two.shape, Shape { co_location: 2, replicas: 3 });
        assert_eq!(two.shape.to_string(), "R = 3, 2 groups");
        assert!((two.formula - one.formula).abs() < 1e-9);
        assert!((two.cpu_ratio - one.cpu_ratio).abs() < 1e-9);
        let (primaries, secondaries) = by_rank(&doubled(once), &SHIPPING);
        assert!((primaries - 0.12).abs() < 1e-9 && (secondaries - 0.24).abs() < 1e-9);
    }

    #[test]
    fn costs_are_by_request_by_byte_and_by_secondary() {
        let (once, _) = canned();
        let user = UserBytes { written: 100_000_000, read: 300_000_000, live: 16_000_000 };
        let costs = Costs::of(&once, user, 1_000_000);
        let is = |found: Option<f64>, expected: f64| {
            assert!((found.unwrap() - expected).abs() < 1e-9, "{found:?}, {expected}");
        };
        is(costs.cpu_us, 6.18);
        is(costs.jobs_us[0], 3.06);
        is(costs.jobs_us[1], 0.06);
        is(costs.read, 0.5);
        is(costs.written, 2.0);
        // 6 MB of members' messages and 200 MB of files, to two secondaries.
        is(costs.log, 0.03);
        is(costs.files, 1.0);
        is(costs.io, 750.0 / 400.0);
        is(costs.network, (3.0 * 10.0 + 200.0) / 400.0);
        is(costs.space, 3.0);
        assert_eq!(costs.memory, 3e8);
        let costs = Costs::of(&once, UserBytes { written: 0, ..user }, 0);
        assert_eq!((costs.cpu_us, costs.written, costs.files), (None, None, None));
        assert!(costs.io.is_some(), "reads are asked for too");
    }

    #[test]
    fn a_run_without_work_has_no_figures_and_no_fault() {
        let idle = [replica(1, "primary", [0.0; 4], 0, 0)];
        let figures = Figures::of(&idle);
        assert_eq!((figures.jobs_share, figures.job_us_per_kb, figures.x()), (0.0, 0.0, 0.0));
        assert_eq!(figures.shipping_us_per_kb, None);
        assert_eq!(Comparison::of(&idle, &idle).cpu_ratio, 0.0);
    }

    #[test]
    fn secondaries_are_all_but_the_primary() {
        let (once, _) = canned();
        let (primary, secondaries) = by_rank(&once, &SHIPPING);
        assert!((primary - 0.06).abs() < 1e-9);
        assert!((secondaries - 0.12).abs() < 1e-9);
    }
}
