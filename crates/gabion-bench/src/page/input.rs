//! Files of runs, read: what `bench ycsb`, `bench replication`, `bench placement` and
//! `bench engine` wrote with `--json`, in any mixture.
//!
//! ```text
//!   file ─► JSON values, one after the other (an array: each of its items)
//!             ├─ has `engine` ──► EngineRun    one workload on one engine, one round
//!             └─ has `phases` ──► ClusterRun   one cluster, all its workloads
//! ```
//!
//! An invalid field that a figure needs is an error that names file, line, field and value. Fields
//! that no figure needs are ignored.

use super::clusters::SYSTEMS;
use super::field::Field;
use crate::figures::{Shape, UserBytes};
use crate::placement::{MixChoice, Side};
use crate::status::{KINDS, ROLES, ReplicaUse, Usage};
use gabion_base::units::MIB;
use gabion_base::{Error, ErrorKind, Result};
use gabion_workload::REVISION;
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Most bytes of a file: a run of a cluster has about 15 kB, a row of an engine one.
const FILE_LEN_MAX: u64 = 64 * MIB;

/// The read runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Inputs {
    pub(super) clusters: Vec<ClusterRun>,
    pub(super) engines: Vec<EngineRun>,
}

/// The origin of a figure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Origin {
    /// The machine in words; `None` in files of programs that did not record it.
    pub(super) machine: Option<String>,
    /// Version, commit and build of the program that measured.
    pub(super) program: Option<String>,
    /// Whether that was a build with the checks of `debug`.
    pub(super) is_debug: bool,
    pub(super) started_at: Option<String>,
    pub(super) command: Option<String>,
    pub(super) file: String,
}

impl Origin {
    /// Whether figures of both may be compared: the same program on the same machine.
    pub(super) fn is_comparable(&self, other: &Self) -> bool {
        self.machine == other.machine && self.program == other.program
    }

    pub(super) fn machine(&self) -> &str {
        self.machine.as_deref().unwrap_or("machine not recorded")
    }

    pub(super) fn program(&self) -> &str {
        self.program.as_deref().unwrap_or("version not recorded")
    }
}

/// The common options of compared runs of a cluster, but for the numbers of replicas and groups and
/// for who compacts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) workloads: Vec<String>,
    pub(super) records: u64,
    pub(super) operations: u64,
    pub(super) value_size: u64,
    pub(super) compressibility: f64,
    pub(super) distribution: String,
    pub(super) clients: u64,
    pub(super) pipeline: u64,
    pub(super) threads: u64,
    /// These three are unknown for a cluster that ran before.
    pub(super) ack: Option<String>,
    pub(super) memtable_len: Option<u64>,
    pub(super) compression: Option<String>,
    /// Set if the bottom has its own codec.
    pub(super) bottom_compression: Option<String>,
    /// Set for runs that are measured beside RubbleDB's baseline.
    pub(super) baseline_log: Option<String>,
    /// Steps of nice(2) by which its jobs stand back; `None` in files of builds in which they did
    /// not.
    pub(super) baseline_jobs_nice: Option<u64>,
    /// Loads offered in open loops, in percent of one system's answers.
    pub(super) offered: Vec<u64>,
    /// That system; `None` without such loads, and in files of builds that did not record it: the
    /// baseline then.
    pub(super) offered_of: Option<String>,
    /// The loads offered in requests a second.
    pub(super) offered_rates: Vec<u64>,
    /// The mix of sizes, by its name: of runs of `bench placement`.
    pub(super) mix: Option<String>,
    /// Bytes from which values lie apart from the tree, if any do.
    pub(super) large_values: Option<u64>,
    /// By how much levels grow, if not as usual.
    pub(super) growth_factor: Option<u64>,
}

/// One cluster's run.
#[derive(Clone, Debug)]
pub(super) struct ClusterRun {
    pub(super) origin: Origin,
    pub(super) settings: Settings,
    /// One of [`SYSTEMS`]; with a mix the name of a [`Side`].
    pub(super) compaction: String,
    pub(super) shape: Shape,
    /// Its place among the rounds of its command; `None` in files of builds that ran one.
    pub(super) round: Option<u64>,
    /// Bytes of the cache of each replica of RubbleDB's baseline beside which it was run; they
    /// follow from the records of a group. `None` without a baseline, and in files of builds that
    /// did not record it.
    pub(super) baseline_cache_len: Option<u64>,
    pub(super) phases: Vec<Phase>,
}

/// One workload of a run.
#[derive(Clone, Debug)]
pub(super) struct Phase {
    /// With an offered load behind an `@`, a percent or `RATE/s`.
    pub(super) workload: String,
    pub(super) offered_per_second: Option<f64>,
    pub(super) operations: Vec<Operation>,
    pub(super) replicas: Vec<ReplicaUse>,
    pub(super) is_settled: bool,
    pub(super) machine_cpu_seconds: f64,
    /// 0 in files of builds that did not ask for it.
    pub(super) stolen_cpu_seconds: f64,
    pub(super) client_cpu_seconds: f64,
    pub(super) refusals: u64,
    pub(super) wrong_reads: u64,
    /// `None` in files of builds that did not count them.
    pub(super) user: Option<UserBytes>,
}

/// Requests of one type.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) kind: String,
    pub(super) count: u64,
    pub(super) per_second: f64,
    /// p50, p99 and p99.9, µs.
    pub(super) latency_us: [f64; 3],
}

/// One workload on one engine, once.
#[derive(Clone, Debug)]
pub(super) struct EngineRun {
    pub(super) origin: Origin,
    /// Name and version, with its own options.
    pub(super) engine: (String, String),
    pub(super) workload: String,
    pub(super) settings: EngineSettings,
    pub(super) cache_len: u64,
    pub(super) records: u64,
    /// By the names of [`FIGURES`], in their order.
    pub(super) figures: [Option<f64>; FIGURES.len()],
    pub(super) limits: Vec<String>,
    /// The larger of the shares of the machine's processors that others and its host had; 0 in
    /// files of builds that did not ask for them.
    pub(super) others_share: f64,
}

/// The common options of all workloads in a comparison of engines.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EngineSettings {
    pub(super) value_size: u64,
    pub(super) log: String,
    pub(super) compressibility: f64,
    pub(super) compression: String,
    /// Set if the bottom has its own codec.
    pub(super) bottom_compression: Option<String>,
    pub(super) memtable_len: u64,
    /// `None` if the engine's own guide decides.
    pub(super) block_len: Option<u64>,
    pub(super) background_threads: u64,
    pub(super) is_direct: bool,
}

/// Figures of a row, by their names there.
pub(super) const FIGURES: [&str; 14] = [
    "per_second",
    "cpu_us_per_op",
    "p50_us",
    "p99_us",
    "p999_us",
    "write_amp",
    "read_amp",
    "space_amp",
    "peak_memory",
    "quiet_seconds",
    "cpu_us_per_op_quiet",
    "per_second_quiet",
    "operations",
    "space_amp_files",
];
/// How many of these every row has.
const FIGURES_OF_ALL: usize = 5;

impl ClusterRun {
    /// Whether both are runs of one program on one machine with the same settings.
    pub(super) fn is_of(&self, other: &Self) -> bool {
        let has_other_groups = self.shape.co_location != other.shape.co_location;
        self.settings == other.settings
            && self.origin.is_comparable(&other.origin)
            && (has_other_groups || self.baseline_cache_len == other.baseline_cache_len)
    }
}

impl Inputs {
    /// Reads files.
    ///
    /// # Errors
    /// A file cannot be read, is larger than 64 MiB, is no JSON or holds nothing; a field is
    /// missing or invalid.
    pub(super) fn read(paths: &[std::path::PathBuf]) -> Result<Self> {
        let mut inputs = Self::default();
        for path in paths {
            let name = path.display().to_string();
            inputs.add(&name, &read_file(path, &name)?)?;
        }
        Ok(inputs)
    }

    /// Adds the content of a file of this name.
    ///
    /// # Errors
    /// As [`Inputs::read`].
    pub(super) fn add(&mut self, file: &str, text: &str) -> Result<()> {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let mut runs = 0;
        loop {
            let at = values.byte_offset();
            let before = text.len() - text[at..].trim_start().len();
            let line = 1 + text[..before].matches('\n').count();
            let Some(value) = values.next() else { break };
            let value = value.map_err(|error| {
                Error::invalid(format!("{file}:{line}: what begins here is no JSON: {error}"))
            })?;
            runs += self.add_value(file, &format!("{file}:{line}"), &value)?;
        }
        if runs == 0 {
            return Err(Error::invalid(format!("{file}: it holds 0 runs, needed is 1 at least")));
        }
        Ok(())
    }

    fn add_value(&mut self, file: &str, place: &str, value: &Value) -> Result<usize> {
        match value {
            Value::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    self.add_run(file, &Field::new(place, format!("[{i}]"), item))?;
                }
                Ok(items.len())
            }
            value => self.add_run(file, &Field::new(place, String::new(), value)).map(|()| 1),
        }
    }

    fn add_run(&mut self, file: &str, run: &Field<'_>) -> Result<()> {
        if run.find("engine").is_some() {
            self.engines.push(engine_run(file, run)?);
        } else if run.find("phases").is_some() {
            self.clusters.push(cluster_run(file, run)?);
        } else {
            return Err(run.wrong("a run of `gabion bench ycsb` or a row of `gabion bench engine`"));
        }
        Ok(())
    }
}

fn read_file(path: &Path, name: &str) -> Result<String> {
    let failed = |error| Error::with_source(ErrorKind::Io, format!("read {name}"), error);
    let mut text = Vec::new();
    // One byte more than allowed shows that a file of any kind is too long.
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(Error::limit(format!("{name} has more than {FILE_LEN_MAX} bytes")));
    }
    String::from_utf8(text).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::invalid(format!("{name}: byte {at} is no UTF-8, needed is JSON"))
    })
}

fn optional<'a, T>(
    field: Option<Field<'a>>,
    read: impl Fn(&Field<'a>) -> Result<T>,
) -> Result<Option<T>> {
    field.as_ref().map(read).transpose()
}

fn origin(file: &str, config: Option<&Field<'_>>) -> Result<Origin> {
    let text = |name| optional(config.and_then(|config| config.find(name)), Field::text);
    let build = config.and_then(|config| config.find("build"));
    let is_debug = optional(build, |build| build.word(&["release", "debug"]))?;
    let is_debug = is_debug.is_some_and(|build| build == "debug");
    let commit = text("commit")?.map_or_else(String::new, |commit| format!(", commit {commit}"));
    let build = if is_debug { ", debug build" } else { "" };
    let program = text("version")?.map(|version| format!("gabion {version}{commit}{build}"));
    Ok(Origin {
        machine: optional(config.and_then(|config| config.find("machine")), machine)?,
        program,
        is_debug,
        started_at: text("started_at")?,
        command: text("command")?,
        file: file.to_owned(),
    })
}

/// A machine in words, without the parts that it did not report.
fn machine(machine: &Field<'_>) -> Result<String> {
    let text = |name| optional(machine.find(name), Field::text);
    let count = |name| optional(machine.find(name), Field::count);
    let gib = |len: u64| format!("{:.0} GiB", len as f64 / (1024.0 * MIB as f64));
    let parts = [
        text("name")?,
        text("processor")?,
        count("cores")?.map(|cores| format!("{cores} cores")),
        count("memory_bytes")?.map(gib),
        text("kernel")?.map(|kernel| format!("Linux {kernel}")),
    ];
    Ok(parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn cluster_run(file: &str, run: &Field<'_>) -> Result<ClusterRun> {
    let config = run.get("config")?;
    let replicas = config.get("replicas")?;
    let groups = config.find("co_location");
    let phases = run.get("phases")?.items()?;
    let operations = run.get("operations")?.items()?;
    let phases: Vec<Phase> =
        phases.iter().map(|field| phase(field, &operations)).collect::<Result<_>>()?;
    // Files of builds that ran one group do not have the field.
    let co_location = optional(groups.clone(), Field::count)?.unwrap_or(1) as usize;
    if let Some(groups) = groups.filter(|_| co_location == 0) {
        return Err(groups.wrong("1 at least"));
    }
    let shape = Shape { co_location, replicas: replicas.count()? as usize };
    let len = shape.replicas.checked_mul(co_location);
    if phases.iter().any(|phase| Some(phase.replicas.len()) != len) {
        let needed = match co_location {
            1 => "as many as each of `phases` has".to_owned(),
            groups => format!("as many as each of `phases` has for each of {groups} groups"),
        };
        return Err(replicas.wrong(&needed));
    }
    Ok(ClusterRun {
        origin: origin(file, Some(&config))?,
        settings: settings(&config)?,
        compaction: match config.find("system") {
            Some(system) => system.word(&Side::ALL.map(Side::as_str))?,
            None => config.get("compaction")?.word(&SYSTEMS)?,
        },
        shape,
        round: optional(config.find("round"), Field::count)?,
        baseline_cache_len: optional(config.find("baseline_cache_bytes"), Field::count)?,
        phases,
    })
}

fn settings(config: &Field<'_>) -> Result<Settings> {
    let count = |name| config.get(name)?.count();
    let counts = |name| match config.find(name) {
        Some(counts) => counts.items()?.iter().map(Field::count).collect::<Result<_>>(),
        None => Ok(Vec::new()),
    };
    Ok(Settings {
        workloads: config.get("workloads")?.texts()?,
        records: count("records")?,
        operations: count("operations")?,
        value_size: count("value_size")?,
        compressibility: config.get("compressibility")?.number()?,
        distribution: config.get("distribution")?.text()?,
        clients: count("clients")?,
        pipeline: count("pipeline")?,
        threads: count("threads")?,
        ack: optional(config.find("ack"), Field::text)?,
        memtable_len: optional(config.find("memtable_bytes"), Field::count)?,
        compression: optional(config.find("compression"), Field::text)?,
        bottom_compression: optional(config.find("bottom_compression"), Field::text)?,
        baseline_log: optional(config.find("baseline_log"), Field::text)?,
        baseline_jobs_nice: optional(config.find("baseline_jobs_nice"), Field::count)?,
        offered: counts("offered")?,
        offered_of: optional(config.find("offered_of"), |of| of.word(&SYSTEMS))?,
        offered_rates: counts("offered_per_second")?,
        mix: optional(config.find("mix"), |mix| mix.word(&MixChoice::ALL.map(MixChoice::as_str)))?,
        large_values: optional(config.find("large_values"), Field::count)?,
        growth_factor: optional(config.find("growth_factor"), Field::count)?,
    })
}

fn phase(phase: &Field<'_>, operations: &[Field<'_>]) -> Result<Phase> {
    let workload = phase.get("workload")?.text()?;
    let mut own = Vec::new();
    for field in operations {
        if field.get("workload")?.text()? == workload {
            own.push(operation(field)?);
        }
    }
    let totals = phase.get("totals")?;
    let replicas = phase.get("replicas")?.items()?;
    Ok(Phase {
        workload,
        offered_per_second: optional(phase.find("offered_per_second"), Field::number)?,
        operations: own,
        replicas: replicas.iter().map(replica).collect::<Result<_>>()?,
        is_settled: totals.get("settled")?.flag()?,
        machine_cpu_seconds: totals.get("machine_cpu_seconds")?.number()?,
        stolen_cpu_seconds: optional(totals.find("stolen_cpu_seconds"), Field::number)?
            .unwrap_or_default(),
        client_cpu_seconds: totals.get("client_cpu_seconds")?.number()?,
        refusals: phase.get("refusals")?.sum_of_counts()?,
        wrong_reads: phase.get("wrong_reads")?.count()?,
        user: optional(phase.find("user_bytes"), user_bytes)?,
    })
}

fn user_bytes(user: &Field<'_>) -> Result<UserBytes> {
    let count = |name| user.get(name)?.count();
    Ok(UserBytes { written: count("written")?, read: count("read")?, live: count("live")? })
}

fn operation(operation: &Field<'_>) -> Result<Operation> {
    let latency = operation.get("latency_us")?;
    let us = |name| latency.get(name)?.number();
    Ok(Operation {
        kind: operation.get("type")?.text()?,
        count: operation.get("count")?.count()?,
        per_second: operation.get("per_second")?.number()?,
        latency_us: [us("p50")?, us("p99")?, us("p999")?],
    })
}

/// Reads the output of `report::replica_json`.
fn replica(replica: &Field<'_>) -> Result<ReplicaUse> {
    let count = |name| replica.get(name)?.count();
    let mut usage = Usage {
        cpu_seconds: replica.get("cpu_seconds")?.number()?,
        flushes: count("flushes")?,
        compactions: count("compactions")?,
        trivial_moves: count("trivial_moves")?,
        compaction_read_bytes: count("compaction_read_bytes")?,
        job_written_bytes: count("job_written_bytes")?,
        shipped_bytes: count("shipped_bytes")?,
        read_bytes: count("read_bytes")?,
        write_bytes: count("write_bytes")?,
        ..Usage::default()
    };
    let by_role = replica.get("cpu_seconds_by_role")?;
    for (seconds, role) in usage.cpu_by_role.iter_mut().zip(ROLES) {
        *seconds = by_role.get(role)?.number()?;
    }
    let (sent, received) =
        (replica.get("net_sent_bytes_by_kind")?, replica.get("net_received_bytes_by_kind")?);
    for (i, kind) in KINDS.into_iter().enumerate() {
        usage.sent[i] = sent.get(kind)?.count()?;
        usage.received[i] = received.get(kind)?.count()?;
    }
    Ok(ReplicaUse {
        group: optional(replica.find("group"), Field::count)?.unwrap_or(1),
        replica: count("id")?,
        role: replica.get("role")?.text()?,
        live_files: count("live_files")?,
        live_bytes: count("live_bytes")?,
        memory_bytes: optional(replica.find("memory_bytes"), Field::count)?.unwrap_or_default(),
        space_bytes: optional(replica.find("space_bytes"), Field::count)?.unwrap_or_default(),
        usage,
    })
}

fn engine_run(file: &str, row: &Field<'_>) -> Result<EngineRun> {
    let revision = row.get("revision")?;
    if revision.count()? != REVISION {
        return Err(
            revision.wrong(&format!("{REVISION}: only rows of one revision are comparable"))
        );
    }
    let mut figures = [None; FIGURES.len()];
    for (i, (figure, name)) in figures.iter_mut().zip(FIGURES).enumerate() {
        *figure = match i < FIGURES_OF_ALL {
            true => Some(row.get(name)?.number()?),
            false => optional(row.find(name), Field::number)?,
        };
    }
    Ok(EngineRun {
        origin: origin(file, row.find("config").as_ref())?,
        engine: (row.get("engine")?.text()?, engine_version(row)?),
        workload: row.get("workload")?.text()?,
        settings: engine_settings(row)?,
        cache_len: row.get("cache")?.count()?,
        records: row.get("records")?.count()?,
        figures,
        limits: row.get("limits")?.texts()?,
        others_share: others_share(row)?,
    })
}

fn others_share(row: &Field<'_>) -> Result<f64> {
    let Some(others) = row.find("others") else { return Ok(0.0) };
    Ok(others.get("cpu_share")?.number()?.max(others.get("stolen_share")?.number()?))
}

/// An engine with own options counts as another engine than without them.
fn engine_version(row: &Field<'_>) -> Result<String> {
    let own = optional(row.find("own_options"), Field::texts)?.unwrap_or_default();
    let version = row.get("version")?.text()?;
    Ok(if own.is_empty() { version } else { format!("{version} with {}", own.join(" ")) })
}

fn engine_settings(row: &Field<'_>) -> Result<EngineSettings> {
    let count = |name| row.get(name)?.count();
    Ok(EngineSettings {
        value_size: count("value_size")?,
        log: row.get("log")?.text()?,
        compressibility: row.get("compressibility")?.number()?,
        compression: row.get("compression")?.text()?,
        bottom_compression: optional(row.find("bottom_compression"), Field::text)?,
        memtable_len: count("memtable_size")?,
        block_len: optional(row.find("block_size"), Field::count)?,
        background_threads: count("background_threads")?,
        is_direct: row.get("direct_io")?.flag()?,
    })
}

impl EngineRun {
    /// A figure by its name in [`FIGURES`]; `None` where the workload has none.
    pub(super) fn figure(&self, name: &str) -> Option<f64> {
        let index = FIGURES.iter().position(|&other| other == name);
        assert!(index.is_some(), "{name} is no figure of a row");
        self.figures[index?]
    }
}
