//! `gabion bench placement`: Tebis's evaluation of hybrid placement, on Gabion and on RocksDB.
//!
//! ```text
//!   for each round, number of replicas and mix of sizes:
//!     every-replica ─► every-replica-apart ─► primary ─► primary-apart ─► rocksdb ─► blobdb
//!       Build-Index                             Send-Index                only L and SD
//! ```
//!
//! Its Build-Index compacts at every replica, its Send-Index ships what the primary made: the two
//! ways of compacting of Gabion. Runs, clients and figures are those of `bench replication`.

mod sides;
pub(crate) mod tables;

use crate::args::{
    AckChoice, ClientArgs, ClusterArgs, LoadArgs, OwnCluster, Plan, Target, WorkloadChoice,
    distinct, in_range,
};
use crate::launch::Launcher;
use crate::replication::stage::{self, MakeChain, Stage, in_turn};
use crate::replication::{Cell, JOBS_NICE, ROUNDS_MAX, System};
use crate::report::{Run, json};
use crate::run::Offers;
use crate::sink::{Sink, print};
use clap::Args;
use gabion_base::{Error, Result};
use gabion_node::{CompactionMode, GroupConfig};
use gabion_workload::{Log, parse_bytes};
use serde_json::{Map, Value};
pub use sides::{MixChoice, Side};
pub(crate) use sides::{PAPER, Paper};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Workloads of every mix.
const WORKLOADS: [WorkloadChoice; 2] = [WorkloadChoice::Load, WorkloadChoice::A];
/// Those of the paper's Figure 8: SD with two replicas.
const ALL_WORKLOADS: [WorkloadChoice; 6] = [
    WorkloadChoice::Load,
    WorkloadChoice::A,
    WorkloadChoice::B,
    WorkloadChoice::C,
    WorkloadChoice::D,
    WorkloadChoice::E,
];

/// Runs Tebis's mixes of small, medium and large pairs (33, 148 and 1,228 bytes of key and value)
/// on Gabion, which ships or compacts at every replica, with large values in the tree and apart,
/// and on replicated RocksDB with and without BlobDB; checks what it reads, and reports cost and
/// amplification.
#[derive(Args, Clone, Debug)]
pub struct PlacementArgs {
    /// Mixes of sizes.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "s,m,l,sd,md,ld")]
    pub mixes: Vec<MixChoice>,
    /// Systems to measure, in this order, and with another first in each round; those with values
    /// apart only in mixes that have large ones [default: all of Gabion's; rocksdb and blobdb in
    /// l and sd too].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub systems: Vec<Side>,
    /// Numbers of replicas.
    #[arg(long, value_delimiter = ',', default_value = "2,3")]
    pub replicas: Vec<u32>,
    /// Workloads, in this order: load and a to g [default: load,a; of sd with two replicas
    /// load,a,b,c,d,e].
    #[arg(long, value_delimiter = ',')]
    pub workloads: Vec<WorkloadChoice>,
    /// Number of records [default: by mix, 3,000,000 of s to 400,000 of l].
    #[arg(long)]
    pub records: Option<u64>,
    /// Requests of each workload but the load [default: half of the records].
    #[arg(long)]
    pub operations: Option<u64>,
    /// How often all of it is run. The figures are medians; JSON has each.
    #[arg(long, default_value_t = 1)]
    pub rounds: u64,
    /// Bytes from which values are large: they lie apart in the systems that have them so.
    #[arg(long, default_value = "512", value_parser = parse_bytes)]
    pub large_values: u64,
    /// Bytes at which a level aims ÷ those of the level above it, 2 to 100.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub growth_factor: u32,
    /// Bytes of a MemTable: few, so that there are as many flushes as of more records with more.
    #[arg(long, default_value = "4MiB", value_parser = parse_bytes)]
    pub memtable_size: u64,
    /// Bytes of each replica's pool [default: by the records].
    #[arg(long, value_parser = parse_bytes)]
    pub pool_size: Option<u64>,
    /// Directory of the clusters while they run [default: the data directory].
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Directory of RocksDB's program [default: where cargo puts it]
    #[arg(long, value_name = "DIR")]
    pub peer_dir: Option<PathBuf>,
    /// The clients.
    #[command(flatten)]
    pub client: ClientArgs,
}

/// One mix with one number of replicas.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    mix: MixChoice,
    plan: Plan,
    cells: Vec<(Side, Cell)>,
}

impl PlacementArgs {
    /// Checks every option.
    pub(crate) fn plan(&self) -> Result<Vec<Comparison>> {
        check_once("mixes", &self.mixes, MixChoice::as_str)?;
        check_once("systems", &self.systems, Side::as_str)?;
        distinct("replicas", &self.replicas, (2, GroupConfig::MEMBERS_MAX as u64))?;
        in_range("rounds", self.rounds, 1, ROUNDS_MAX)?;
        // 0 would put no value apart.
        let large_values = u32::try_from(self.large_values).unwrap_or(u32::MAX).max(1);
        gabion_engine::check_large_values(large_values)?;
        if let Some(other) = self.workloads.iter().find(|workload| workload.stated().is_some()) {
            let name = other.as_str();
            return Err(Error::invalid(format!(
                "--workloads: {name} has records of its own size, a mix has others: load and a to \
                 g are possible"
            )));
        }
        let mut comparisons = Vec::new();
        for &mix in &self.mixes {
            let sides = self.sides(mix);
            for &replicas in &self.replicas {
                comparisons.push(self.comparison(mix, replicas, &sides, large_values)?);
            }
        }
        comparisons.retain(|comparison| !comparison.cells.is_empty());
        if comparisons.is_empty() {
            return Err(Error::invalid(
                "--systems names only some with values apart, and --mixes none with values of so \
                 many bytes as --large-values says",
            ));
        }
        Ok(comparisons)
    }

    /// The systems of a mix.
    fn sides(&self, mix: MixChoice) -> Vec<Side> {
        let has_large = mix.sizes().percent_from(self.large_values as usize) > 0;
        let is_asked = |side: &Side| match self.systems.is_empty() {
            true => !side.is_rocksdb() || mix.is_beside_rocksdb(),
            false => true,
        };
        let sides = if self.systems.is_empty() { &Side::ALL[..] } else { &self.systems };
        sides
            .iter()
            .copied()
            .filter(is_asked)
            .filter(|side| !side.is_apart() || has_large)
            .collect()
    }

    fn workloads(&self, mix: MixChoice, replicas: u32) -> Vec<WorkloadChoice> {
        match (&self.workloads[..], mix, replicas) {
            ([], MixChoice::Sd, 2) => ALL_WORKLOADS.to_vec(),
            ([], ..) => WORKLOADS.to_vec(),
            (asked, ..) => asked.to_vec(),
        }
    }

    fn comparison(
        &self,
        mix: MixChoice,
        replicas: u32,
        sides: &[Side],
        large_values: u32,
    ) -> Result<Comparison> {
        let workloads = self.workloads(mix, replicas);
        let records = self.records.unwrap_or(mix.records());
        let load = LoadArgs {
            records,
            operations: Some(self.operations.unwrap_or(records.div_ceil(2))),
            value_size: None,
            sizes: Some(mix.sizes()),
            client: self.client.clone(),
        };
        let clusters = ClusterArgs {
            replicas: vec![replicas],
            co_location: vec![1],
            ack: AckChoice::Replicated,
            memtable_size: self.memtable_size,
            compression: None,
            bottom_compression: None,
            large_values: 0,
            growth_factor: self.growth_factor,
            pool_size: self.pool_size,
            dir: self.dir.clone(),
        };
        let clusters = clusters.clusters(&[CompactionMode::Primary], &load, &workloads)?;
        let cell = |side: Side| {
            let compaction = match side.system() {
                System::EveryReplica => CompactionMode::EveryReplica,
                System::Rocksdb | System::Primary => CompactionMode::Primary,
            };
            let is_blobdb = side == Side::Blobdb;
            let apart = if side.is_apart() && !is_blobdb { large_values } else { 0 };
            Cell {
                system: side.system(),
                cluster: OwnCluster { compaction, large_values: apart, ..clusters[0] },
                log: Log::On,
                jobs_nice: JOBS_NICE,
                blobs_from: is_blobdb.then_some(large_values),
            }
        };
        let cells = sides.iter().map(|&side| (side, cell(side))).collect();
        Ok(Comparison { mix, plan: load.plan(&workloads, Target::Own(clusters))?, cells })
    }

    /// The settings of a run. Large values and growth are those of all runs that are compared,
    /// whichever of them the system makes use of.
    fn config(&self, mix: MixChoice, side: Side, cell: &Cell, round: u64) -> Map<String, Value> {
        let mut config = cell.config(round);
        config.insert("mix".into(), mix.as_str().into());
        config.insert("system".into(), side.as_str().into());
        config.insert("large_values".into(), self.large_values.into());
        config.insert("growth_factor".into(), self.growth_factor.into());
        config
    }
}

/// Refuses an empty list if there must be something, and names that stand there twice.
fn check_once<T: PartialEq + Copy>(
    option: &str,
    values: &[T],
    name: fn(T) -> &'static str,
) -> Result<()> {
    match (1..values.len()).find(|&i| values[..i].contains(&values[i])) {
        None => Ok(()),
        Some(i) => Err(Error::invalid(format!("--{option} names {} twice", name(values[i])))),
    }
}

/// The runs of one comparison, each with its system.
pub(crate) struct Measured {
    pub(crate) mix: MixChoice,
    pub(crate) runs: Vec<(Side, Run)>,
}

/// Runs the benchmark and prints its report on the standard output. Returns an exit code: 0, or 1
/// when a read returned something that nobody had written.
///
/// # Errors
/// Bad options; RocksDB's program is not built (the message has the command that builds it); a
/// cluster that does not start, ends, or refuses requests for good; an interrupt.
pub fn placement(args: &PlacementArgs, launcher: &dyn Launcher) -> Result<u8> {
    let needs_rocksdb = args.mixes.iter().any(|mix| args.sides(*mix).iter().any(Side::is_rocksdb));
    let program = stage::baseline(needs_rocksdb, &args.peer_dir)?;
    let chain = |cell: &Cell, dir: &Path| program.start(cell, dir);
    placement_to(args, launcher, &chain, &mut std::io::stdout().lock())
}

/// The same, with RocksDB's replicas made by `chain` and the report written to `out`.
pub(crate) fn placement_to(
    args: &PlacementArgs,
    launcher: &dyn Launcher,
    chain: MakeChain<'_>,
    out: &mut dyn Write,
) -> Result<u8> {
    let comparisons = args.plan()?;
    let stage = Stage::new(launcher, chain, args.dir.as_deref())?;
    stage.check_room(comparisons.iter().flat_map(|it| &it.cells).map(|(_, cell)| cell))?;
    let style = args.client.style();
    let mut sink = Sink::open(args.client.json.as_deref())?;
    let empty = |it: &Comparison| Measured { mix: it.mix, runs: Vec::new() };
    let mut measured: Vec<Measured> = comparisons.iter().map(empty).collect();
    let total = args.rounds * comparisons.iter().map(|it| it.cells.len()).sum::<usize>() as u64;
    let mut number = 0;
    for round in 0..args.rounds {
        for (Comparison { mix, plan, cells }, measured) in comparisons.iter().zip(&mut measured) {
            for (_, (side, cell)) in in_turn(cells, round) {
                number += 1;
                let (mix_name, shape) = (mix.as_str(), cell.shape().words());
                let (side_name, round_number) = (side.as_str(), round + 1);
                eprintln!(
                    "{number} of {total}: {mix_name}, {shape} of {side_name}, round {round_number}"
                );
                let config = args.config(*mix, *side, cell, round);
                let mut run = stage.measure(plan, cell, config, &mut Offers::default())?;
                run.compaction = side_name.to_owned();
                sink.write(&json(&run, []), out)?;
                measured.runs.push((*side, run));
            }
            if !sink.is_stdout() && round + 1 == args.rounds {
                print(&tables::of_mix(measured, style), out)?;
            }
        }
    }
    if !sink.is_stdout() {
        print(&tables::beside_paper(&measured, style), out)?;
    }
    let wrong = measured.iter().flat_map(|it| &it.runs).map(|(_, run)| run.wrong()).sum::<u64>();
    Ok(u8::from(wrong > 0))
}

#[cfg(test)]
mod tests;
