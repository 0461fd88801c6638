//! A run of `gabion bench ycsb` from its options to its report.

use crate::args::{GROWTH_FACTOR, OpenLoad, OwnCluster, Plan, Target, WorkloadChoice, YcsbArgs};
use crate::client::{Client, Route, Shared, drive};
use crate::cluster::Cluster;
use crate::figures::UserBytes;
use crate::keys::KEY_LEN;
use crate::launch::{ClusterSpec, Launcher, RunningCluster, ScratchDir};
use crate::provenance::provenance;
use crate::report::{Offered, Phase, Run, compare, describe, json};
use crate::sink::{Sink, print};
use crate::status::Status;
use crate::system::MachineTime;
use crate::text::grouped;
use crate::workload::{Hand, Supply, Tally};
use gabion_base::{Error, ErrorKind, Result};
use gabion_workload::{Chooser, Distribution, Values};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How often the progress bar moves.
const BAR_PAUSE: Duration = Duration::from_millis(100);

/// Runs the benchmark and prints its report on the standard output. Returns an exit code: 0, or 1
/// when a read returned something that nobody had written.
///
/// # Errors
/// Bad options; a cluster that does not start, ends, or refuses requests for good; an interrupt.
pub fn ycsb(args: &YcsbArgs, launcher: &dyn Launcher) -> Result<u8> {
    ycsb_to(args, launcher, &mut std::io::stdout().lock())
}

/// The flag that ends the run early: an interrupted run still removes its clusters.
pub(crate) fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|e| Error::with_source(ErrorKind::Io, "signals cannot be watched", e))?;
    }
    Ok(stop)
}

/// The same, with the report written to `out`.
pub(crate) fn ycsb_to(args: &YcsbArgs, launcher: &dyn Launcher, out: &mut dyn Write) -> Result<u8> {
    let plan = args.plan()?;
    let stop = stop_on_signals()?;
    let style = args.load.client.style();
    let mut sink = Sink::open(args.load.client.json.as_deref())?;
    let mut runs: Vec<Run> = Vec::new();
    let mut finish = |run: Run, out: &mut dyn Write| {
        if !sink.is_stdout() {
            print(&describe(&run, style), out)?;
        }
        sink.write(&json(&run, &runs), out)?;
        runs.push(run);
        Ok::<(), Error>(())
    };
    match &plan.target {
        Target::Running(addresses) => {
            let groups = [addresses.clone()];
            finish(measure(&plan, &groups, Map::new(), &mut Offers::default(), &stop)?, out)?;
        }
        Target::Own(clusters) => {
            let parent = args.clusters.dir.clone().unwrap_or_else(|| launcher.data_dir());
            // One cluster is there at a time, and the last may be the largest.
            for own in clusters {
                launcher.check_room(&spec(own, &parent), own.co_location)?;
            }
            for own in clusters {
                let dir = ScratchDir::new(&parent)?;
                let groups = Groups::start(own, dir.path(), |dir| launcher.start(&spec(own, dir)))?;
                let offers = &mut Offers::default();
                finish(measure(&plan, &groups.addresses(), own_config(own), offers, &stop)?, out)?;
            }
        }
    }
    if !sink.is_stdout() {
        print(&compare(&runs, style), out)?;
    }
    Ok(u8::from(runs.iter().any(|run| run.wrong() > 0)))
}

/// The groups of a cluster of its own, which run until this is dropped.
pub(crate) struct Groups(Vec<Box<dyn RunningCluster>>);

impl Groups {
    /// Starts one after the other, each with `start` in a directory of its own below `dir`.
    ///
    /// # Errors
    /// One does not start; none runs then.
    pub(crate) fn start(
        own: &OwnCluster,
        dir: &Path,
        start: impl Fn(&Path) -> Result<Box<dyn RunningCluster>>,
    ) -> Result<Self> {
        let group = |number| {
            let dir = dir.join(format!("group-{number}"));
            std::fs::create_dir(&dir).map_err(|error| {
                let what = format!("{}: cannot be made", dir.display());
                Error::with_source(ErrorKind::Io, what, error)
            })?;
            start(&dir)
        };
        Ok(Self((1..=own.co_location).map(group).collect::<Result<_>>()?))
    }

    /// The RESP door of each replica of each group.
    pub(crate) fn addresses(&self) -> Vec<Vec<SocketAddr>> {
        self.0.iter().map(|group| group.addresses()).collect()
    }
}

pub(crate) fn spec(own: &OwnCluster, dir: &Path) -> ClusterSpec {
    ClusterSpec {
        replicas: own.replicas,
        compaction: own.compaction,
        ack: own.ack,
        pool_len: own.pool_len,
        memtable_len: own.memtable_len,
        codecs: own.codecs,
        large_values: own.large_values,
        growth_factor: own.growth_factor,
        dir: dir.to_path_buf(),
    }
}

pub(crate) fn own_config(own: &OwnCluster) -> Map<String, Value> {
    let mut config = Map::new();
    config.insert("ack".into(), own.ack.as_str().into());
    config.insert("memtable_bytes".into(), own.memtable_len.into());
    config.insert("pool_bytes".into(), own.pool_len.into());
    config.insert("compression".into(), own.codecs.upper.to_string().into());
    if own.large_values > 0 {
        config.insert("large_values".into(), own.large_values.into());
    }
    if own.growth_factor != GROWTH_FACTOR {
        config.insert("growth_factor".into(), own.growth_factor.into());
    }
    let bottom = own.codecs.bottom.map(|codec| codec.to_string().into());
    config.extend(bottom.map(|codec| ("bottom_compression".into(), codec)));
    config
}

/// Requests a second that the first cluster of a run answered, by workload: the base of the loads
/// offered to all.
pub(crate) type Offers = BTreeMap<&'static str, f64>;

/// Runs the workloads of a plan against a cluster, given by each replica's address in its groups:
/// each workload in a closed loop, then at the offered loads. The first cluster to run a workload
/// decides these.
pub(crate) fn measure(
    plan: &Plan,
    groups: &[Vec<SocketAddr>],
    own: Map<String, Value>,
    offers: &mut Offers,
    stop: &AtomicBool,
) -> Result<Run> {
    let mut cluster = Cluster::connect(groups)?;
    let first = cluster.wait_until_ready(stop)?;
    let routes: Vec<Route> = groups
        .iter()
        .zip(first.chunk_by(|a, b| a.group == b.group))
        .map(|(addresses, statuses)| route(addresses, statuses))
        .collect();
    let compaction = first[0].compaction.clone();
    let mut config = config(plan, groups.len(), &first);
    config.extend(own);
    config.extend(provenance());
    let mut phases = Vec::new();
    let mut before = first;
    let (mut records, mut requests_before) = (plan.records, 0);
    let closed = plan.workloads.iter().map(|&workload| (workload, None));
    let open = plan.workloads.iter().filter(|workload| **workload != WorkloadChoice::Load);
    let open = open.flat_map(|&w| plan.offered.iter().map(move |&load| (w, Some(load))));
    let steps: Vec<(WorkloadChoice, Option<OpenLoad>)> = closed.chain(open).collect();
    for (number, &(workload, load)) in steps.iter().enumerate() {
        let is_only_loaded = plan.workloads[0] == WorkloadChoice::Load
            && !steps[..=number].iter().any(|(workload, _)| workload.updates());
        let offered =
            load.map(|load| Offered { load, per_second: rate_of(load, workload, offers) });
        let clock = Instant::now();
        let machine = MachineTime::now();
        let started = (clock, number as u64, requests_before);
        requests_before += plan.requests(workload);
        let (tally, requests) = run_workload(
            plan,
            (workload, offered, &mut records),
            &routes,
            started,
            is_only_loaded,
            stop,
        )?;
        let settled = cluster.settle(plan.settle, stop)?;
        let after = settled.statuses;
        let replicas =
            after.iter().zip(&before).map(|(a, b)| a.since(b)).collect::<Result<Vec<_>>>()?;
        let machine = MachineTime::now().zip(machine);
        let machine = machine.map_or_else(MachineTime::default, |(now, then)| now.since(then));
        // All CPU is counted from `clock` to here, and so is the time that it is compared with.
        let wall = clock.elapsed();
        let requests_seconds = requests.as_secs_f64();
        let user = user_bytes(plan, &tally, records);
        offers.entry(workload.as_str()).or_insert(tally.total() as f64 / requests_seconds);
        phases.push(Phase {
            workload,
            offered,
            tally,
            wall_seconds: wall.as_secs_f64(),
            requests_seconds,
            settle_seconds: settled.since.saturating_duration_since(clock + requests).as_secs_f64(),
            is_settled: settled.is_quiet,
            machine,
            replicas,
            user,
        });
        before = after;
    }
    Ok(Run { config, compaction, phases })
}

/// Bytes that users wrote and read in a workload, and those that live after it.
fn user_bytes(plan: &Plan, tally: &Tally, records: u64) -> UserBytes {
    let live = plan.sizes.sum(records) + KEY_LEN as u64 * records;
    UserBytes { written: tally.written_bytes, read: tally.read_bytes, live }
}

/// Requests a second of an offered load; a percent refers to the answers in a closed loop before.
fn rate_of(load: OpenLoad, workload: WorkloadChoice, offers: &Offers) -> f64 {
    match load {
        OpenLoad::Percent(percent) => {
            let all = offers.get(workload.as_str()).copied().unwrap_or_default();
            (all * f64::from(percent) / 100.0).max(1.0)
        }
        OpenLoad::PerSecond(rate) => rate as f64,
    }
}

/// A group's route: writes go to the head, reads to the tail; if neither is known, to the first
/// address.
fn route(addresses: &[SocketAddr], statuses: &[Status]) -> Route {
    let find = |roles: &[&str]| {
        let mut pairs = addresses.iter().zip(statuses);
        pairs.find(|(_, status)| roles.contains(&status.role.as_str())).map(|(address, _)| *address)
    };
    let writes = find(&["primary"]).unwrap_or(addresses[0]);
    Route { writes, reads: find(&["tail"]).unwrap_or(writes) }
}

fn config(plan: &Plan, groups: usize, statuses: &[Status]) -> Map<String, Value> {
    let workloads: Vec<&str> = plan.workloads.iter().map(|workload| workload.as_str()).collect();
    let config = json!({
        "workloads": workloads,
        "records": plan.records,
        "operations": plan.operations,
        "value_size": plan.sizes.mean(),
        "compressibility": plan.compressibility,
        "distribution": plan.distribution.as_str(),
        "clients": plan.clients,
        "pipeline": plan.pipeline,
        "threads": plan.threads,
        "seed": plan.seed,
        "co_location": groups,
        "replicas": statuses.len() / groups,
        "compaction": statuses[0].compaction,
        "store_version": statuses[0].version,
    });
    match config {
        Value::Object(config) => config,
        _ => Map::new(),
    }
}

/// Runs one workload and returns its account and the time from its start to its last answer. It
/// begins with `records` records, and leaves as many as it may have made of them.
fn run_workload(
    plan: &Plan,
    (workload, offered, records): (WorkloadChoice, Option<Offered>, &mut u64),
    routes: &[Route],
    (clock, number, requests): (Instant, u64, u64),
    is_only_loaded: bool,
    stop: &AtomicBool,
) -> Result<(Tally, Duration)> {
    let total = plan.requests(workload);
    let chooser = match (workload, workload.stated()) {
        (_, Some(stated)) => Chooser::with_skew(stated.skew, *records),
        (WorkloadChoice::D, _) => Chooser::new(Distribution::Latest, *records),
        _ => Chooser::new(plan.distribution, *records),
    };
    let supply = Supply::new(workload, total, chooser, *records).after(requests);
    let shared = Shared {
        values: Values::new(plan.sizes.clone(), plan.compressibility, plan.seed),
        is_only_loaded,
        pipeline: offered.map_or(plan.pipeline as usize, |_| plan.open_pipeline()),
        per_second: offered.map(|offered| offered.per_second / f64::from(plan.threads)),
        done: AtomicU64::new(0),
        stop,
        has_failed: AtomicBool::new(false),
    };
    let mut shares: Vec<Vec<Client>> = (0..plan.threads).map(|_| Vec::new()).collect();
    for i in 0..plan.clients {
        shares[(i % plan.threads) as usize].push(Client::connect(routes)?);
    }
    let bar = progress_bar(workload, supply.total());
    let outcomes = thread::scope(|scope| {
        let handles: Vec<_> = (0..)
            .zip(shares)
            .map(|(i, clients)| {
                let hand = Hand::new(&supply, plan.seed, number, i);
                let shared = &shared;
                scope.spawn(move || {
                    let outcome = drive(clients, hand, shared);
                    shared.has_failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
                    outcome
                })
            })
            .collect();
        while !handles.iter().all(thread::ScopedJoinHandle::is_finished) {
            bar.set_position(shared.done.load(Ordering::Relaxed));
            thread::park_timeout(BAR_PAUSE);
        }
        handles.into_iter().map(|handle| handle.join()).collect::<Vec<_>>()
    });
    bar.finish_and_clear();
    let mut tally = Tally::new();
    let mut last = clock;
    for outcome in outcomes {
        let outcome =
            outcome.map_err(|_| Error::unavailable("a thread of the clients panicked"))?;
        let (counted, last_answer) = outcome?;
        tally.merge(&counted);
        last = last.max(last_answer);
    }
    *records = supply.records();
    Ok((tally, last - clock))
}

/// A bar on a terminal, nothing elsewhere.
fn progress_bar(workload: WorkloadChoice, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let template = "{prefix:>5} {wide_bar} {human_pos} of {human_len}  {rate}  {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.with_key("rate", |state: &ProgressState, out: &mut dyn fmt::Write| {
            // The bar has no way to report an error, and its own text cannot fail.
            let _ = out.write_str(&rate(state.per_sec()));
        }));
    }
    bar.set_prefix(workload.as_str());
    bar
}

/// Operations per second, as a whole number.
fn rate(per_second: f64) -> String {
    format!("{}/s", grouped(per_second as u64))
}

#[cfg(test)]
mod tests;
