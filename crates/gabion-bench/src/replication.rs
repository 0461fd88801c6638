//! `gabion bench replication`: RubbleDB's baseline, a chain of replicas with a store each, beside
//! Gabion in both ways of compacting, in one run.
//!
//! ```text
//!   for each round, co-location factor and number of replicas:
//!     rocksdb ─► primary ─► every-replica     one at a time, each made anew, another first in each round
//!        └─ the same clients, requests and figures: those of `bench ycsb`
//! ```
//!
//! The baseline answers `GABION STATUS` under the names of Gabion's replicas, so its use is read
//! like theirs: by the kernel's counters, by thread. In rows and reports its mode of compaction is
//! the name of its store.

mod baseline;
pub(crate) mod memory;
pub(crate) mod stage;
pub(crate) mod tables;

use crate::args::{
    AckChoice, ClusterArgs, LoadArgs, OpenLoad, OwnCluster, Plan, Target, WorkloadChoice, in_range,
};
use crate::figures::Shape;
use crate::launch::Launcher;
use crate::report::{Run, json};
use crate::run::{Offers, own_config};
use crate::sink::{Sink, print};
use clap::{Args, ValueEnum};
use gabion_base::{Error, Result};
use gabion_node::{CompactionMode, GroupConfig};
use gabion_workload::{Log, STEPS_MAX};
use serde_json::{Map, Value};
use stage::{MakeChain, Stage, in_turn};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The measured systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// RubbleDB's baseline: each replica has a RocksDB, which flushes and compacts for itself.
    Rocksdb,
    /// Gabion, whose primary flushes and compacts.
    Primary,
    /// Gabion, each of whose replicas flushes and compacts for itself.
    EveryReplica,
}

impl System {
    /// The name on the command line, and as the mode of compaction in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rocksdb => "rocksdb",
            Self::Primary => "primary",
            Self::EveryReplica => "every-replica",
        }
    }
}

/// Runs YCSB on replicas with a RocksDB each and on Gabion, in turn, checks what it reads, and
/// reports who is ahead, by how much, and at what cost.
#[derive(Args, Clone, Debug)]
pub struct ReplicationArgs {
    /// What is measured, in this order, and with another first in each round.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "rocksdb,primary,every-replica"
    )]
    pub systems: Vec<System>,
    /// Workloads to run, in this order.
    #[arg(long, value_delimiter = ',', default_value = "load,a,b,c,d,e,f,g")]
    pub workloads: Vec<WorkloadChoice>,
    /// How often all of it is run. The figures are medians; JSON has each.
    #[arg(long, default_value_t = 1)]
    pub rounds: u64,
    /// Run each workload but the load again at these percents of the requests a second that the
    /// first system answered in the first round: in an open loop, where latencies count from when a
    /// request was due [default: none].
    #[arg(long, value_delimiter = ',', value_name = "PERCENT")]
    pub offered: Vec<u32>,
    /// The same at so many requests a second, of all groups together: a load that is the same in
    /// every run of this command [default: none].
    #[arg(long, value_delimiter = ',', value_name = "RATE")]
    pub offered_per_second: Vec<u64>,
    /// The log of the baseline's stores [default: on, which survives what Gabion's acknowledgements
    /// survive; synced with --ack durable].
    #[arg(long, value_enum)]
    pub log: Option<Log>,
    /// Steps of nice(2), 0 to 19, by which the baseline's compactions stand back behind its
    /// requests, and its flushes by half as many: as many as Gabion's replicas have here.
    #[arg(long, value_name = "N", default_value_t = JOBS_NICE)]
    pub baseline_jobs_nice: u8,
    /// Where the baseline's program is [default: where cargo puts it]
    #[arg(long, value_name = "DIR")]
    pub peer_dir: Option<PathBuf>,
    /// What the clients do.
    #[command(flatten)]
    pub load: LoadArgs,
    /// The clusters.
    #[command(flatten)]
    pub clusters: ClusterArgs,
}

/// Steps by which jobs of the baseline stand back: the default of `gabion up --jobs-nice`, and so
/// those of the replicas measured beside it.
pub(crate) const JOBS_NICE: u8 = 10;
/// Most rounds.
pub(crate) const ROUNDS_MAX: u64 = 100;
/// Largest offered load, in percent of the first system's answers.
const OFFERED_MAX: u64 = 1_000;
/// Largest offered load, in requests a second.
const OFFERED_PER_SECOND_MAX: u64 = 100_000_000;

/// One cluster to be measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) system: System,
    /// For the baseline only the settings that it shares with Gabion count.
    pub(crate) cluster: OwnCluster,
    /// The log of the baseline's stores.
    pub(crate) log: Log,
    /// Steps of nice(2) by which their jobs stand back.
    pub(crate) jobs_nice: u8,
    /// The least length of values that go into BlobDB's files, if any do.
    pub(crate) blobs_from: Option<u32>,
}

impl Cell {
    /// Its groups and replicas.
    pub(crate) const fn shape(&self) -> Shape {
        let OwnCluster { co_location, replicas, .. } = self.cluster;
        Shape { co_location: co_location as usize, replicas: replicas as usize }
    }

    /// The settings of a run, beside those that all runs of its cluster's kind have.
    pub(crate) fn config(&self, round: u64) -> Map<String, Value> {
        let mut config = own_config(&self.cluster);
        config.insert("round".into(), (round + 1).into());
        config.insert("baseline_log".into(), self.log.as_str().into());
        config.insert("baseline_cache_bytes".into(), self.cluster.baseline_cache_len.into());
        config.insert("baseline_jobs_nice".into(), self.jobs_nice.into());
        config
    }
}

impl ReplicationArgs {
    /// Checks every option. The cells of one number of replicas and groups follow each other.
    pub(crate) fn plan(&self) -> Result<(Plan, Vec<Vec<Cell>>)> {
        for (i, system) in self.systems.iter().enumerate() {
            if self.systems[..i].contains(system) {
                let name = system.as_str();
                return Err(Error::invalid(format!("--systems names {name} twice")));
            }
        }
        if self.systems.is_empty() {
            return Err(Error::invalid(
                "--systems names none: rocksdb, primary and every-replica are possible",
            ));
        }
        for &replicas in &self.clusters.replicas {
            // Writes and reads go to different places in a chain.
            in_range("replicas", u64::from(replicas), 2, GroupConfig::MEMBERS_MAX as u64)?;
        }
        in_range("rounds", self.rounds, 1, ROUNDS_MAX)?;
        let jobs_nice = self.baseline_jobs_nice;
        in_range("baseline-jobs-nice", jobs_nice.into(), 0, STEPS_MAX.into())?;
        let offered = self.open_loads()?;
        let log = self.log.unwrap_or(match self.clusters.ack {
            AckChoice::Replicated => Log::On,
            AckChoice::Durable => Log::Synced,
        });
        let modes = [CompactionMode::Primary];
        let clusters = self.clusters.clusters(&modes, &self.load, &self.workloads)?;
        if self.systems.contains(&System::Rocksdb) {
            clusters.iter().try_for_each(|it| baseline::codec_word(it.codecs).map(|_| ()))?;
        }
        let cell = |cluster: OwnCluster, system| {
            let compaction = match system {
                System::EveryReplica => CompactionMode::EveryReplica,
                System::Rocksdb | System::Primary => CompactionMode::Primary,
            };
            let cluster = OwnCluster { compaction, ..cluster };
            Cell { system, cluster, log, jobs_nice, blobs_from: None }
        };
        let comparisons: Vec<Vec<Cell>> = clusters
            .iter()
            .map(|&cluster| self.systems.iter().map(|&system| cell(cluster, system)).collect())
            .collect();
        let plan = self.load.plan(&self.workloads, Target::Own(clusters))?;
        Ok((Plan { offered, ..plan }, comparisons))
    }

    /// The settings of a run.
    fn config(&self, cell: &Cell, round: u64) -> Map<String, Value> {
        let mut config = cell.config(round);
        config.insert("offered".into(), self.offered.clone().into());
        config.insert("offered_per_second".into(), self.offered_per_second.clone().into());
        let first = self.systems.first().filter(|_| !self.offered.is_empty());
        config.extend(first.map(|first| ("offered_of".to_owned(), first.as_str().into())));
        config
    }

    /// The offered loads: percents, then rates.
    fn open_loads(&self) -> Result<Vec<OpenLoad>> {
        let percents: Vec<u64> = self.offered.iter().map(|&percent| u64::from(percent)).collect();
        let options = [
            ("offered", &percents, OFFERED_MAX),
            ("offered-per-second", &self.offered_per_second, OFFERED_PER_SECOND_MAX),
        ];
        for (name, loads, max) in options {
            for (i, load) in loads.iter().enumerate() {
                in_range(name, *load, 1, max)?;
                if loads[..i].contains(load) {
                    return Err(Error::invalid(format!("--{name} names {load} twice")));
                }
            }
        }
        let percents = self.offered.iter().map(|&percent| OpenLoad::Percent(percent));
        let rates = self.offered_per_second.iter().map(|&rate| OpenLoad::PerSecond(rate));
        Ok(percents.chain(rates).collect())
    }
}

/// Runs the benchmark and prints its report on the standard output. Returns an exit code: 0, or 1
/// when a read returned something that nobody had written.
///
/// # Errors
/// Bad options; the baseline's program is not built (the message has the command that builds it); a
/// cluster that does not start, ends, or refuses requests for good; an interrupt.
pub fn replication(args: &ReplicationArgs, launcher: &dyn Launcher) -> Result<u8> {
    let program = stage::baseline(args.systems.contains(&System::Rocksdb), &args.peer_dir)?;
    let chain = |cell: &Cell, dir: &Path| program.start(cell, dir);
    replication_to(args, launcher, &chain, &mut std::io::stdout().lock())
}

/// The same, with the baseline made by `chain` and the report written to `out`.
pub(crate) fn replication_to(
    args: &ReplicationArgs,
    launcher: &dyn Launcher,
    chain: MakeChain<'_>,
    out: &mut dyn Write,
) -> Result<u8> {
    let (plan, comparisons) = args.plan()?;
    let stage = Stage::new(launcher, chain, args.clusters.dir.as_deref())?;
    stage.check_room(comparisons.iter().flatten())?;
    let style = args.load.client.style();
    let mut sink = Sink::open(args.load.client.json.as_deref())?;
    // For each comparison: its runs, each with the place of its system, and the offered loads.
    let mut runs: Vec<Vec<(usize, Run)>> = comparisons.iter().map(|_| Vec::new()).collect();
    let mut offers: Vec<Offers> = comparisons.iter().map(|_| Offers::default()).collect();
    let mut number = 0;
    let total = args.rounds * comparisons.iter().map(Vec::len).sum::<usize>() as u64;
    for round in 0..args.rounds {
        for ((cells, runs), offers) in comparisons.iter().zip(&mut runs).zip(&mut offers) {
            for (place, cell) in in_turn(cells, round) {
                number += 1;
                let (shape, system) = (cell.shape().words(), cell.system.as_str());
                eprintln!("{number} of {total}: {shape} of {system}, round {}", round + 1);
                let run = stage.measure(&plan, cell, args.config(cell, round), offers)?;
                sink.write(&json(&run, runs.iter().map(|(_, run)| run)), out)?;
                runs.push((place, run));
            }
            if !sink.is_stdout() && round + 1 == args.rounds {
                let of = |place| runs.iter().filter(move |run| run.0 == place).map(|run| &run.1);
                let sides: Vec<Vec<&Run>> = (0..cells.len()).map(|p| of(p).collect()).collect();
                print(&tables::compare(&sides, style), out)?;
            }
        }
    }
    Ok(u8::from(runs.iter().flatten().any(|(_, run)| run.wrong() > 0)))
}

#[cfg(test)]
mod tests;
