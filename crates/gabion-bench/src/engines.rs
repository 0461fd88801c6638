//! `gabion bench engine`: the same workloads on several engines, each run a process of its own, in
//! turn, several rounds; medians and ratios.
//!
//! ```text
//!   options ─► cells (log, value size, workload) × rounds × engines ─► engine-NAME run … ─► row
//!                                                    in turn                                 │
//!                    rows, as they come ─► --json     medians by cell and engine ─► tables ◄─┘
//! ```

pub(crate) mod programs;
mod rows;
mod tables;

use crate::args::in_range;
use crate::launch::ScratchDir;
use crate::provenance::provenance;
use crate::text::{Style, grouped};
use clap::{Args, ValueEnum};
use gabion_base::{Error, ErrorKind, Result};
use gabion_workload::{CommonArgs, Log, OwnArgs, RunArgs, Workload, free_len, parse_bytes};
pub use programs::Program;
use rows::EngineRow;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// An engine that another hand wrote, with a program of its own in `peers/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// RocksDB.
    Rocksdb,
    /// fjall.
    Fjall,
}

impl Peer {
    /// As it is named on the command line and in rows.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rocksdb => "rocksdb",
            Self::Fjall => "fjall",
        }
    }
}

/// Runs workloads on this engine and on others, in turn, and compares them: medians over the rounds,
/// with the ratios.
#[derive(Args, Clone, Debug)]
pub struct EngineArgs {
    /// Engines to compare with, from `peers/`.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "rocksdb,fjall")]
    pub vs: Vec<Peer>,
    /// Workloads to run, in this order [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub workloads: Vec<Workload>,
    /// Bytes of a value.
    #[arg(long, value_delimiter = ',', default_value = "100,400,1000", value_parser = parse_bytes)]
    pub value_sizes: Vec<u64>,
    /// The engines' write-ahead log.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "off")]
    pub log: Vec<Log>,
    /// How often each engine runs each workload. The figures are medians.
    #[arg(long, default_value_t = 3)]
    pub rounds: u64,
    /// Where the engines keep their files while they run [default: the data directory]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Where the peers' programs are [default: where cargo puts them]
    #[arg(long, value_name = "DIR")]
    pub peer_dir: Option<PathBuf>,
    /// Write the rows to this file, one JSON object a line, as they come; without a file to standard
    /// output, in place of the tables.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Print the tables as Markdown.
    #[arg(long)]
    pub markdown: bool,
    /// What RocksDB has for itself.
    #[command(flatten)]
    pub rocksdb: RocksdbArgs,
    /// What is the same for all runs.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What RocksDB has for itself, beside the others as they are.
#[derive(Args, Clone, Debug, Default)]
pub struct RocksdbArgs {
    /// Bytes of a block of RocksDB's files [default: as --block-size, and without it 16 KiB, as its guide recommends]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub rocksdb_block_size: Option<u64>,
    /// Most MemTables of RocksDB, the one that is written to included [default: what was fastest here]
    #[arg(long, value_name = "NUMBER")]
    pub rocksdb_write_buffers: Option<u64>,
    /// Logs that RocksDB keeps to be written to again [default: where writes are synced, some]
    #[arg(long, value_name = "NUMBER")]
    pub rocksdb_recycled_logs: Option<u64>,
}

impl RocksdbArgs {
    /// As the program of an engine has them: nothing for any other.
    fn own(&self, engine: &str) -> OwnArgs {
        if engine != Peer::Rocksdb.as_str() {
            return OwnArgs::default();
        }
        OwnArgs {
            own_block_size: self.rocksdb_block_size,
            write_buffers: self.rocksdb_write_buffers,
            recycled_logs: self.rocksdb_recycled_logs,
        }
    }
}

/// Most rounds.
const ROUNDS_MAX: u64 = 100;

/// What is run on every engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) log: Log,
    pub(crate) value_size: u64,
    pub(crate) workload: Workload,
}

impl EngineArgs {
    /// Every cell, checked: the same plan is made here as in the engine's program.
    fn cells(&self) -> Result<Vec<Cell>> {
        in_range("rounds", self.rounds, 1, ROUNDS_MAX)?;
        let workloads: &[Workload] =
            if self.workloads.is_empty() { Workload::all() } else { &self.workloads };
        let mut cells = Vec::new();
        for &log in &self.log {
            for &value_size in &self.value_sizes {
                for &workload in workloads {
                    let cell = Cell { log, value_size, workload };
                    if cells.contains(&cell) {
                        let name = workload.as_str();
                        return Err(Error::invalid(format!(
                            "{name} with values of {value_size} bytes and log {} is named twice",
                            log.as_str()
                        )));
                    }
                    self.run_args(cell, "", PathBuf::new()).plan()?;
                    for peer in &self.vs {
                        let run = self.run_args(cell, peer.as_str(), PathBuf::new());
                        run.plan().map_err(|error| error.within(peer.as_str()))?;
                    }
                    cells.push(cell);
                }
            }
        }
        Ok(cells)
    }

    /// Refuses what would run out of disk half-way: one run is there at a time.
    fn check_room(&self, cells: &[Cell], parent: &Path, free: u64) -> Result<()> {
        for &cell in cells {
            let needed = self.run_args(cell, "", PathBuf::new()).plan()?.disk_len();
            if free < needed {
                let (name, size) = (cell.workload.as_str(), cell.value_size);
                return Err(Error::no_space(format!(
                    "{free} bytes are free where {} is, {needed} are needed for {name} with values of \
                     {size} bytes: name another --dir or fewer --records",
                    parent.display()
                )));
            }
        }
        Ok(())
    }

    fn run_args(&self, cell: Cell, engine: &str, dir: PathBuf) -> RunArgs {
        let Cell { log, value_size, workload } = cell;
        let (own, common) = (self.rocksdb.own(engine), self.common.clone());
        RunArgs { workload, dir, value_size, log, memory_max: None, own, common }
    }
}

/// Measures `own` beside the peers and prints what came out; the others are compared with it. `data_dir` is
/// where the engines' files go unless the options say.
///
/// # Errors
/// Bad options, a peer that is not built (the message has the command that builds it), too little
/// free disk, an engine that failed or read something wrong, an interrupt.
pub fn engines(args: &EngineArgs, own: Program, data_dir: &Path) -> Result<()> {
    let cells = args.cells()?;
    let peers = programs::find(&args.vs, args.peer_dir.as_deref())?;
    let programs: Vec<Program> = std::iter::once(own).chain(peers).collect();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|e| Error::with_source(ErrorKind::Io, "signals cannot be watched", e))?;
    }
    let parent = args.dir.clone().unwrap_or_else(|| data_dir.to_path_buf());
    args.check_room(&cells, &parent, free_len(&parent)?)?;
    let mut sink = Sink::open(args.json.as_deref())?;
    let total = args.rounds * (cells.len() * programs.len()) as u64;
    let mut rows = Vec::new();
    let start = Instant::now();
    for round in 0..args.rounds {
        for &cell in &cells {
            // In turn, and another first in each round.
            for turn in 0..programs.len() {
                let program = &programs[(turn + round as usize) % programs.len()];
                let number = rows.len() as u64 + 1;
                let left = left(start.elapsed().as_secs_f64(), number - 1, total);
                eprint!(
                    "{number} of {total}{left}: {} on {}, {} bytes, log {}, round {} … ",
                    cell.workload.as_str(),
                    program.name,
                    cell.value_size,
                    cell.log.as_str(),
                    round + 1,
                );
                let dir = ScratchDir::new(&parent)?;
                let words = args.run_args(cell, &program.name, dir.path().to_path_buf()).words();
                let config = provenance();
                let row = run_one(program, &words, round + 1, config);
                if stop.load(Ordering::Relaxed) {
                    return Err(Error::unavailable("interrupted; what ran is removed"));
                }
                let row = row.inspect_err(|_| eprintln!("failed"))?;
                eprintln!("{}/s", grouped(row.figure("per_second").unwrap_or_default() as u64));
                sink.write(&row)?;
                rows.push((cell, row));
            }
        }
    }
    if args.json.as_deref() == Some(Path::new("-")) {
        return Ok(());
    }
    let names: Vec<&str> = programs.iter().map(|program| program.name.as_str()).collect();
    let style = if args.markdown { Style::Markdown } else { Style::Plain };
    print(&tables::tables(&names, &cells, &rows, style))
}

/// How long it may still take, in words; nothing before there is something to judge by.
fn left(elapsed: f64, done: u64, total: u64) -> String {
    if done == 0 {
        return String::new();
    }
    let minutes = elapsed / done as f64 * (total - done) as f64 / 60.0;
    format!(", about {} min left", minutes.ceil())
}

fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| Error::with_source(ErrorKind::Io, "the report cannot be written", e))
}

/// Runs one workload on one engine, in a process of its own.
fn run_one(
    program: &Program,
    words: &[OsString],
    round: u64,
    config: Map<String, Value>,
) -> Result<EngineRow> {
    let name = program.path.display();
    let output = Command::new(&program.path)
        .args(&program.words)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::with_source(ErrorKind::Io, format!("start {name}"), e))?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        let last = told.lines().last().unwrap_or("it said nothing");
        let kind =
            if output.status.code() == Some(1) { ErrorKind::Corruption } else { ErrorKind::Io };
        return Err(Error::new(kind, format!("{name} ended with {}: {last}", output.status)));
    }
    EngineRow::parse(&program.name, &output.stdout, round, config)
}

/// Where rows go as they come, so that an interrupted run leaves those it made.
enum Sink {
    Nowhere,
    Stdout,
    File(PathBuf, File),
}

impl Sink {
    fn open(path: Option<&Path>) -> Result<Self> {
        match path {
            None => Ok(Self::Nowhere),
            Some(path) if path == Path::new("-") => Ok(Self::Stdout),
            Some(path) => {
                let file = File::create(path).map_err(|error| {
                    Error::with_source(ErrorKind::Io, format!("make {}", path.display()), error)
                })?;
                Ok(Self::File(path.to_path_buf(), file))
            }
        }
    }

    fn write(&mut self, row: &EngineRow) -> Result<()> {
        let line = format!("{}\n", row.json());
        match self {
            Self::Nowhere => Ok(()),
            Self::Stdout => print(&line),
            Self::File(path, file) => file.write_all(line.as_bytes()).map_err(|error| {
                Error::with_source(ErrorKind::Io, format!("write {}", path.display()), error)
            }),
        }
    }
}

#[cfg(test)]
mod tests;
