//! The options of `gabion bench ycsb`, most of which `bench replication` has too, and the plan that
//! they make once they are checked.

use crate::keys::KEY_LEN;
use crate::replication::memory::baseline_cache_len;
use crate::text::Style;
use clap::{Args, ValueEnum};
use gabion_base::units::{GIB, MIB, VALUE_LEN_MAX};
use gabion_base::{Error, Result};
use gabion_engine::{Codecs, Compression};
use gabion_node::{AckLevel, CompactionMode, GroupConfig};
use gabion_workload::{Distribution, Mix, Sizes, Values, Workload, parse_bytes};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The side that flushes and compacts in the measured clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompactionChoice {
    /// The primary alone; finished files are shipped (RubbleDB).
    Primary,
    /// Every replica for itself, nothing is shipped: RubbleDB's baseline.
    EveryReplica,
    /// One cluster of each, one after the other, and the figures that compare them.
    Both,
}

/// Parses a codec in the notation of [`Compression`].
///
/// # Errors
/// The text names none.
pub fn parse_codec(text: &str) -> Result<Compression, String> {
    text.parse::<Compression>().map_err(|error| error.message().to_owned())
}

/// The meaning of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AckChoice {
    /// The write is in the log's ring of every replica.
    Replicated,
    /// Every replica has flushed it to its device.
    Durable,
}

/// One of YCSB's core workloads, or one that RubbleDB's evaluation adds to them: G, and those of five cache
/// clusters of Twitter (J. Yang, Y. Yue, K. V. Rashmi, OSDI 2020). Of the latter the traces are not replayed:
/// their shares of requests, their skew and the bytes of their records are those that Twitter states for
/// March 2020 (<https://github.com/twitter/cache-trace>, stat/2020Mar.md), and writes write records that are
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WorkloadChoice {
    /// Inserts every record once, in no order of keys.
    Load,
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % reads of the records that came last, 5 % inserts.
    D,
    /// 95 % scans of 1 to 100 records, 5 % inserts.
    E,
    /// Half reads, half reads with an update of what was read.
    F,
    /// Updates only.
    G,
    /// Twitter's cluster 2: reads only, skew 1.49, records of 89 bytes.
    #[value(name = "twitter-2")]
    Twitter2,
    /// Twitter's cluster 15: updates only, skew 0.02, records of 120 bytes.
    #[value(name = "twitter-15")]
    Twitter15,
    /// Twitter's cluster 19: 75 % reads, 25 % updates, skew 0.74, records of 143 bytes.
    #[value(name = "twitter-19")]
    Twitter19,
    /// Twitter's cluster 27: 85 % reads, 15 % updates, skew 1.07, records of 74 bytes.
    #[value(name = "twitter-27")]
    Twitter27,
    /// Twitter's cluster 31: 6 % reads, 94 % updates, no skew, records of 56 bytes.
    #[value(name = "twitter-31")]
    Twitter31,
}

/// The published facts about a cluster of Twitter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stated {
    /// Percent; the rest are reads.
    updates: u64,
    /// The exponent of the popularity of records by rank.
    pub(crate) skew: f64,
    /// Bytes of key and value, on average.
    record_len: u64,
}

impl Stated {
    /// Values with which records have as many bytes; the keys are those of all workloads.
    pub(crate) const fn value_len(self) -> u64 {
        self.record_len - KEY_LEN as u64
    }
}

impl WorkloadChoice {
    /// The name on the command line and in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::D => "d",
            Self::E => "e",
            Self::F => "f",
            Self::G => "g",
            Self::Twitter2 => "twitter-2",
            Self::Twitter15 => "twitter-15",
            Self::Twitter19 => "twitter-19",
            Self::Twitter27 => "twitter-27",
            Self::Twitter31 => "twitter-31",
        }
    }

    /// The published facts about it; `None` for those of YCSB.
    pub(crate) const fn stated(self) -> Option<Stated> {
        let (updates, skew, record_len) = match self {
            Self::Twitter2 => (0, 1.4908, 21 + 68),
            Self::Twitter15 => (100, 0.0242, 18 + 102),
            Self::Twitter19 => (25, 0.735, 42 + 101),
            Self::Twitter27 => (15, 1.065, 66 + 8),
            Self::Twitter31 => (94, 0.0, 41 + 15),
            _ => return None,
        };
        Some(Stated { updates, skew, record_len })
    }

    /// Its mix of requests; `None` for the load. The shares are those of the benchmark of engines.
    pub(crate) const fn mix(self) -> Option<Mix> {
        if let Some(Stated { updates, .. }) = self.stated() {
            return Some(Mix { updates, inserts: 0, scans: 0, read_modify_writes: 0 });
        }
        match self {
            Self::A => Workload::YcsbA.mix(),
            Self::B => Workload::YcsbB.mix(),
            Self::C => Workload::YcsbC.mix(),
            Self::D => Workload::YcsbD.mix(),
            Self::E => Workload::YcsbE.mix(),
            Self::F => Workload::YcsbF.mix(),
            Self::G => Workload::YcsbG.mix(),
            _ => None,
        }
    }

    /// Whether it writes existing records anew.
    pub(crate) fn updates(self) -> bool {
        self.mix().is_some_and(|mix| mix.updates + mix.read_modify_writes > 0)
    }
}

/// Settings that are fixed when a cluster is made, so a running one cannot take them.
const OWN_OPTIONS: [&str; 11] = [
    "compaction",
    "replicas",
    "co_location",
    "ack",
    "memtable_size",
    "compression",
    "bottom_compression",
    "large_values",
    "growth_factor",
    "pool_size",
    "dir",
];

/// The records and the requests.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// Number of records, of all groups together.
    #[arg(long, default_value_t = 500_000)]
    pub records: u64,
    /// Requests of each workload but the load [default: as many as records].
    #[arg(long)]
    pub operations: Option<u64>,
    /// Bytes of a value: 32 at least [default: 1000; with a workload of Twitter those of its
    /// records].
    #[arg(long, value_parser = parse_bytes)]
    pub value_size: Option<u64>,
    /// Sizes of values in place of one, for a benchmark that has several.
    #[arg(skip)]
    pub sizes: Option<Sizes>,
    /// The clients.
    #[command(flatten)]
    pub client: ClientArgs,
}

/// The options of the clients' work, and of the report of it.
#[derive(Args, Clone, Debug)]
pub struct ClientArgs {
    /// Share of each value that is one repeated byte, from 0 to 1. LZ4 halves values at 0.5.
    #[arg(long, default_value_t = 0.0)]
    pub compressibility: f64,
    /// Which keys are asked for; D always asks for the latest, and those of Twitter have their
    /// skew.
    #[arg(long, value_enum, default_value_t = Distribution::Zipfian)]
    pub distribution: Distribution,
    /// Clients, each with a connection to the head of each group for writes and one to its tail for
    /// reads.
    #[arg(long, default_value_t = 8)]
    pub clients: u32,
    /// Requests that each client has under way at once, in all groups together.
    #[arg(long, default_value_t = 16)]
    pub pipeline: u32,
    /// Threads that drive the clients.
    #[arg(long, default_value_t = 1)]
    pub threads: u32,
    /// Seed of the values and of the choice of keys.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Seconds to wait, after a workload, for flushes and compactions to end. Processor seconds,
    /// and `wall_seconds` beside them, include this time; operations per second do not.
    #[arg(long, default_value_t = 300)]
    pub settle: u64,
    /// Write each run to this file, which must not be there, as it comes, a JSON object a line;
    /// without a file to standard output, in place of the tables.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Print the report as Markdown.
    #[arg(long)]
    pub markdown: bool,
}

/// The clusters that a benchmark makes for itself.
#[derive(Args, Clone, Debug)]
pub struct ClusterArgs {
    /// Numbers of replicas of the clusters of its own, one run each.
    #[arg(long, value_delimiter = ',', default_value = "3")]
    pub replicas: Vec<u32>,
    /// Co-location factors, as RubbleDB names them: how many groups of so many replicas run side by
    /// side in a cluster of its own, one run each. The records are shared out to the groups by
    /// their keys' hash; clients, requests and the bytes of MemTable and cache of a replica stay
    /// the same.
    #[arg(long, value_delimiter = ',', value_name = "GROUPS", default_value = "1")]
    pub co_location: Vec<u32>,
    /// What an acknowledgement means in a cluster of its own.
    #[arg(long, value_enum, default_value_t = AckChoice::Replicated)]
    pub ack: AckChoice,
    /// Bytes of a MemTable in a cluster of its own.
    #[arg(long, default_value = "16MiB", value_parser = parse_bytes)]
    pub memtable_size: u64,
    /// How a cluster of its own compresses blocks of files [default: lz4 for values that can be
    /// compressed, else none]: none, lz4, zstd or zstd:LEVEL.
    #[arg(long, value_name = "CODEC", value_parser = parse_codec)]
    pub compression: Option<Compression>,
    /// The same at the bottom of its trees [default: as --compression].
    #[arg(long, value_name = "CODEC", value_parser = parse_codec)]
    pub bottom_compression: Option<Compression>,
    /// Values of so many bytes, or more, lie apart from the trees of a cluster of its own; 0: none.
    #[arg(long, default_value_t = 0)]
    pub large_values: u32,
    /// Bytes at which a level aims ÷ those of the level above it, 2 to 100, in a cluster of its
    /// own.
    #[arg(long, value_name = "N", default_value_t = GROWTH_FACTOR)]
    pub growth_factor: u32,
    /// Bytes of each replica's pool [default: by the records].
    #[arg(long, value_parser = parse_bytes)]
    pub pool_size: Option<u64>,
    /// Where clusters of its own live while they run [default: the data directory].
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

/// Loads records and asks for them through the RESP door, checks what it reads, and reports what
/// that cost the clients and each replica.
#[derive(Args, Clone, Debug)]
pub struct YcsbArgs {
    /// Workloads to run, in this order. CPU, disk and network are reported for each and in all.
    #[arg(long, value_delimiter = ',', default_value = "load")]
    pub workloads: Vec<WorkloadChoice>,
    /// What the clients do.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Measure a running cluster: the RESP addresses of all its replicas, separated by commas.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "ADDRESS",
        conflicts_with_all = OWN_OPTIONS
    )]
    pub connect: Vec<SocketAddr>,
    /// Who flushes and compacts in a cluster of its own.
    #[arg(long, value_enum, default_value_t = CompactionChoice::Primary)]
    pub compaction: CompactionChoice,
    /// Clusters of its own.
    #[command(flatten)]
    pub clusters: ClusterArgs,
}

/// Levels grow by so much: the tree's default.
pub(crate) const GROWTH_FACTOR: u32 = 10;
/// Fewest bytes of a value: its head with key and version, and a little more.
pub(crate) const VALUE_LEN_MIN: u64 = 32;
/// Bytes of a value unless an option or a workload names them.
const VALUE_LEN: u64 = 1000;
/// Most requests that a client may have under way.
const PIPELINE_MAX: u32 = 10_000;
/// Most clients, and most of them times groups: each has two connections to a group.
const CLIENTS_MAX: u32 = 10_000;
/// Most groups side by side: each has processes, ports, a cache and a log for every replica.
const CO_LOCATION_MAX: u64 = 8;
/// Most bytes of values that all clients may have under way.
const UNDER_WAY_MAX: u128 = GIB as u128;
/// Most requests of a client under way in an open loop: as many as replicas take of a connection.
const OPEN_PIPELINE_MAX: u128 = 1024;
/// Most records: within what a version's counter and a key's number can hold.
const RECORDS_MAX: u64 = 1 << 40;

/// A load that is offered in an open loop, whether or not requests are answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenLoad {
    /// Percent of the requests a second that one system answers for the workload in a closed loop.
    Percent(u32),
    /// Requests a second.
    PerSecond(u64),
}

/// A run, checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) workloads: Vec<WorkloadChoice>,
    pub(crate) records: u64,
    pub(crate) operations: u64,
    pub(crate) sizes: Sizes,
    pub(crate) compressibility: f64,
    pub(crate) distribution: Distribution,
    pub(crate) clients: u32,
    pub(crate) pipeline: u32,
    pub(crate) threads: u32,
    pub(crate) seed: u64,
    pub(crate) settle: Duration,
    /// The loads at which each workload but the load is run again.
    pub(crate) offered: Vec<OpenLoad>,
    pub(crate) target: Target,
}

/// The measured clusters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    /// A running cluster.
    Running(Vec<SocketAddr>),
    /// Clusters of its own, one after the other.
    Own(Vec<OwnCluster>),
}

/// A cluster of its own, but for its directory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OwnCluster {
    /// Groups side by side.
    pub(crate) co_location: u32,
    /// Replicas of each of them.
    pub(crate) replicas: u32,
    pub(crate) compaction: CompactionMode,
    pub(crate) ack: AckLevel,
    pub(crate) pool_len: u64,
    pub(crate) memtable_len: u64,
    pub(crate) codecs: Codecs,
    pub(crate) large_values: u32,
    pub(crate) growth_factor: u32,
    /// Bytes of the cache of a replica of RubbleDB's baseline that is compared with this cluster.
    pub(crate) baseline_cache_len: u64,
}

impl Plan {
    /// Requests of a workload.
    pub(crate) fn requests(&self, workload: WorkloadChoice) -> u64 {
        if workload == WorkloadChoice::Load { self.records } else { self.operations }
    }

    /// Requests that a client may have under way in an open loop. There are many, so that requests
    /// wait at the replicas: with few, updates would wait at the clients for the answers to reads.
    pub(crate) fn open_pipeline(&self) -> usize {
        let bytes = u128::from(self.clients) * self.sizes.max() as u128;
        let most = (UNDER_WAY_MAX / bytes.max(1)).min(OPEN_PIPELINE_MAX) as usize;
        most.max(self.pipeline as usize)
    }
}

pub(crate) fn in_range(name: &str, value: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("--{name} is {value}, allowed are {min} to {max}")))
}

/// Checks the numbers of an option, each of which has a run.
pub(crate) fn distinct(name: &str, values: &[u32], (min, max): (u64, u64)) -> Result<()> {
    for (i, value) in values.iter().enumerate() {
        in_range(name, u64::from(*value), min, max)?;
        if values[..i].contains(value) {
            return Err(Error::invalid(format!("--{name} names {value} twice")));
        }
    }
    if values.is_empty() {
        return Err(Error::invalid(format!("--{name} names none")));
    }
    Ok(())
}

impl LoadArgs {
    /// Bytes of a value: by the options, or by the facts about the workload.
    fn value_len(&self, workloads: &[WorkloadChoice]) -> Result<u64> {
        let mut stated = workloads.iter().filter_map(|w| Some((w, w.stated()?.value_len())));
        let first = stated.next();
        let other = stated.find(|(_, len)| first.is_some_and(|(_, first)| *len != first));
        match (self.value_size, first, other) {
            (Some(len), ..) => Ok(len),
            (None, None, _) => Ok(VALUE_LEN),
            (None, Some((_, len)), None) => Ok(len),
            (None, Some((one, len)), Some((two, other))) => Err(Error::invalid(format!(
                "--workloads: {} has values of {len} bytes and {} of {other}, and a cluster holds \
                 those of one size: one run each, or a --value-size for both",
                one.as_str(),
                two.as_str()
            ))),
        }
    }

    /// Most records of each of a number of groups once all workloads have run; some of them insert.
    fn records_at_most(&self, workloads: &[WorkloadChoice], groups: u32) -> u64 {
        let operations = u128::from(self.operations.unwrap_or(self.records));
        let inserts = workloads.iter().filter_map(|workload| workload.mix()).map(|mix| mix.inserts);
        let inserted = u128::from(inserts.sum::<u64>()) * operations / 100;
        let all = u128::from(self.records) + inserted;
        u64::try_from(all.div_ceil(u128::from(groups))).unwrap_or(u64::MAX)
    }

    /// Sizes of values, checked.
    fn sizes(&self, workloads: &[WorkloadChoice]) -> Result<Sizes> {
        if let Some(sizes) = &self.sizes {
            return Ok(sizes.clone());
        }
        let len = self.value_len(workloads)?;
        in_range("value-size", len, VALUE_LEN_MIN, VALUE_LEN_MAX as u64)?;
        Ok(Sizes::one(len as usize))
    }

    /// Checks the clients' options; `target` is the cluster they run against.
    pub(crate) fn plan(&self, workloads: &[WorkloadChoice], target: Target) -> Result<Plan> {
        in_range("records", self.records, 1, RECORDS_MAX)?;
        let operations = self.operations.unwrap_or(self.records);
        in_range("operations", operations, 1, RECORDS_MAX)?;
        let sizes = self.sizes(workloads)?;
        if sizes.min() < Values::LEN_MIN {
            // The heads of their values have four bytes for a record, and four for a version.
            let requests = operations.saturating_mul(workloads.len() as u64);
            let all = self.records.saturating_add(requests);
            in_range("records and all --operations", all, 1, Values::SHORT_COUNT_MAX)?;
        }
        self.client.check(sizes.max())?;
        if workloads.is_empty() {
            return Err(Error::invalid(
                "--workloads names none: load, a to g and those of Twitter are possible",
            ));
        }
        let loads = workloads.iter().skip(1).any(|w| *w == WorkloadChoice::Load);
        let is_empty = matches!(target, Target::Own(_)) && workloads[0] != WorkloadChoice::Load;
        if loads || is_empty {
            return Err(Error::invalid(
                "--workloads: `load` comes first and once; only with --connect it may be missing, \
                 for records that were loaded before",
            ));
        }
        let client = &self.client;
        Ok(Plan {
            workloads: workloads.to_vec(),
            records: self.records,
            operations,
            sizes,
            compressibility: client.compressibility,
            distribution: client.distribution,
            clients: client.clients,
            pipeline: client.pipeline,
            threads: client.threads,
            seed: client.seed,
            settle: Duration::from_secs(client.settle),
            offered: Vec::new(),
            target,
        })
    }
}

impl ClientArgs {
    /// Checks the options; the largest value has so many bytes.
    fn check(&self, value_len: usize) -> Result<()> {
        in_range("clients", u64::from(self.clients), 1, u64::from(CLIENTS_MAX))?;
        in_range("pipeline", u64::from(self.pipeline), 1, u64::from(PIPELINE_MAX))?;
        in_range("threads", u64::from(self.threads), 1, u64::from(self.clients))?;
        in_range("settle", self.settle, 3, 86_400)?;
        let requests = u128::from(self.clients) * u128::from(self.pipeline);
        let under_way = requests * value_len as u128;
        if under_way > UNDER_WAY_MAX {
            return Err(Error::invalid(format!(
                "--clients times --pipeline times --value-size are {under_way} bytes under way, at \
                 most {UNDER_WAY_MAX} are possible"
            )));
        }
        if !(0.0..=1.0).contains(&self.compressibility) {
            return Err(Error::invalid(format!(
                "--compressibility is {}, allowed are 0 to 1",
                self.compressibility
            )));
        }
        if self.markdown && self.json.as_deref() == Some(Path::new("-")) {
            return Err(Error::invalid(
                "--markdown and --json without a file: both are for the standard output, name a file",
            ));
        }
        Ok(())
    }

    /// How the report is written.
    pub(crate) const fn style(&self) -> Style {
        if self.markdown { Style::Markdown } else { Style::Plain }
    }
}

impl ClusterArgs {
    /// The clusters of these modes, for each number of replicas.
    pub(crate) fn clusters(
        &self,
        modes: &[CompactionMode],
        load: &LoadArgs,
        workloads: &[WorkloadChoice],
    ) -> Result<Vec<OwnCluster>> {
        in_range("memtable-size", self.memtable_size, MIB, GIB)?;
        gabion_engine::check_large_values(self.large_values)?;
        distinct("replicas", &self.replicas, (1, GroupConfig::MEMBERS_MAX as u64))?;
        distinct("co-location", &self.co_location, (1, CO_LOCATION_MAX))?;
        in_range("growth-factor", self.growth_factor.into(), 2, 100)?;
        let upper = match self.compression {
            Some(codec) => codec,
            None if load.client.compressibility > 0.0 => Compression::Lz4,
            None => Compression::None,
        };
        let codecs = Codecs { upper, bottom: self.bottom_compression };
        let mut clusters = Vec::new();
        for &co_location in &self.co_location {
            let connections = u64::from(load.client.clients) * u64::from(co_location);
            if connections > u64::from(CLIENTS_MAX) {
                return Err(Error::invalid(format!(
                    "--clients times --co-location is {connections}, at most {CLIENTS_MAX} are possible"
                )));
            }
            let by_records = self.pool_len_by_records(load, workloads, co_location)?;
            let pool_len = self.pool_size.unwrap_or(by_records);
            in_range("pool-size", pool_len, 256 * MIB, 1 << 50)?;
            let value_len = load.sizes(workloads)?.mean() as u64;
            let baseline_cache_len =
                baseline_cache_len(load.records_at_most(workloads, co_location), value_len);
            let sides =
                self.replicas.iter().flat_map(|r| modes.iter().map(move |mode| (*r, *mode)));
            clusters.extend(sides.map(|(replicas, compaction)| OwnCluster {
                co_location,
                replicas,
                compaction,
                ack: match self.ack {
                    AckChoice::Replicated => AckLevel::Replicated,
                    AckChoice::Durable => AckLevel::Durable,
                },
                pool_len,
                memtable_len: self.memtable_size,
                codecs,
                large_values: self.large_values,
                growth_factor: self.growth_factor,
                baseline_cache_len,
            }));
        }
        Ok(clusters)
    }

    /// Three times the records of a group and half a GiB. That covers the tree with its largest
    /// compaction under way, granted slots, the log, and a group with a few more records than
    /// another.
    fn pool_len_by_records(
        &self,
        load: &LoadArgs,
        workloads: &[WorkloadChoice],
        groups: u32,
    ) -> Result<u64> {
        let record_len = load.sizes(workloads)?.mean() as u64 + 64;
        let has_updates = workloads.iter().any(|workload| workload.updates());
        let updates = if has_updates { 2 } else { 1 };
        let records = load.records.div_ceil(u64::from(groups));
        let data = records.saturating_mul(record_len).saturating_mul(updates);
        let len = data.saturating_mul(3).saturating_add(512 * MIB + 32 * self.memtable_size);
        Ok(len.next_multiple_of(64 * MIB))
    }
}

impl YcsbArgs {
    /// Checks every option.
    pub(crate) fn plan(&self) -> Result<Plan> {
        let modes: &[CompactionMode] = match self.compaction {
            CompactionChoice::Primary => &[CompactionMode::Primary],
            CompactionChoice::EveryReplica => &[CompactionMode::EveryReplica],
            CompactionChoice::Both => &[CompactionMode::Primary, CompactionMode::EveryReplica],
        };
        let target = if self.connect.is_empty() {
            Target::Own(self.clusters.clusters(modes, &self.load, &self.workloads)?)
        } else {
            Target::Running(self.connect.clone())
        };
        self.load.plan(&self.workloads, target)
    }
}

#[cfg(test)]
mod tests;
