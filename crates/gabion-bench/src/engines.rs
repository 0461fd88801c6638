//! `gabion bench engine`: the same workloads on several engines, each run a process of its own, in
//! turn, several rounds; medians and ratios.
//!
//! ```text
//!   options ─► cells (log, value size, workload) × rounds × engines ─► engine-NAME run … ─► row
//!                                                    in turn                                 │
//!                    rows, as they come ─► --json     medians by cell and engine ─► tables ◄─┘
//! ```

mod over_time;
pub(crate) mod programs;
pub(crate) mod rows;
mod tables;

use crate::args::in_range;
use crate::launch::ScratchDir;
use crate::provenance::provenance;
use crate::sink::{Sink, print};
use crate::text::{Style, grouped};
use clap::{Args, ValueEnum};
use gabion_base::{Error, ErrorKind, Result};
use gabion_workload::{Codec, CommonArgs, Log, OwnArgs, RunArgs, Workload, free_len, parse_bytes};
pub use programs::Program;
use rows::EngineRow;
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A foreign engine, with a program of its own in `peers/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// RocksDB.
    Rocksdb,
    /// RocksDB with BlobDB: values of --large-values bytes, or more, lie in files of their own,
    /// whose garbage is collected.
    Blobdb,
    /// fjall.
    Fjall,
}

impl Peer {
    /// The name on the command line and in rows.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rocksdb => "rocksdb",
            Self::Blobdb => "blobdb",
            Self::Fjall => "fjall",
        }
    }
}

/// Runs workloads on this engine and on others, in turn, and compares them: medians over the
/// rounds, with the ratios.
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
    /// Write the rows to this file, which must not be there, one JSON object a line, as they come;
    /// without a file to standard output, in place of the tables.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Print the tables as Markdown.
    #[arg(long)]
    pub markdown: bool,
    /// Draw each workload's rate over time, a line for each engine, into pictures in this
    /// directory, those of the last round.
    #[arg(long, value_name = "DIR")]
    pub over_time: Option<PathBuf>,
    /// Values of so many bytes, or more, lie apart from the tree: in this engine's log, in blobdb's
    /// files [default: none of this engine's, blobdb's from 512 on]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub large_values: Option<u64>,
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
    /// Bytes of a block of RocksDB's files [default: as --block-size, and without it 16 KiB, as its
    /// guide recommends]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub rocksdb_block_size: Option<u64>,
    /// Most MemTables of RocksDB, the one that is written to included [default: what was fastest
    /// here]
    #[arg(long, value_name = "NUMBER")]
    pub rocksdb_write_buffers: Option<u64>,
    /// Logs that RocksDB keeps to be written to again [default: 2, and none with --log off]
    #[arg(long, value_name = "NUMBER")]
    pub rocksdb_recycled_logs: Option<u64>,
}

impl RocksdbArgs {
    /// The options for its program.
    fn own(&self) -> OwnArgs {
        OwnArgs {
            own_block_size: self.rocksdb_block_size,
            write_buffers: self.rocksdb_write_buffers,
            recycled_logs: self.rocksdb_recycled_logs,
            large_values: None,
        }
    }
}

/// Bytes from which values are blobs of BlobDB if nothing is said.
const BLOBS_FROM: u64 = 512;

/// Most rounds.
const ROUNDS_MAX: u64 = 100;

/// One comparison on every engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) log: Log,
    pub(crate) value_size: u64,
    pub(crate) workload: Workload,
}

impl EngineArgs {
    /// Every cell, checked: the engine's program makes the same plan.
    fn cells(&self) -> Result<Vec<Cell>> {
        in_range("rounds", self.rounds, 1, ROUNDS_MAX)?;
        self.check_codecs()?;
        self.check_large_values()?;
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

    /// Refuses codecs that a peer does not have, before the first engine has run for long.
    fn check_codecs(&self) -> Result<()> {
        let (codec, bottom) = (self.common.compression, self.common.bottom_compression);
        for peer in &self.vs {
            if codec == Codec::Zstd || bottom == Some(Codec::Zstd) {
                return Err(Error::unsupported(format!(
                    "{} has no zstd here: --compression and --bottom-compression none or lz4, or another --vs",
                    peer.as_str()
                )));
            }
            if *peer == Peer::Fjall && bottom.is_some_and(|bottom| bottom != codec) {
                return Err(Error::unsupported(
                    "fjall has no --bottom-compression: leave it out, or name another --vs",
                ));
            }
        }
        Ok(())
    }

    /// Refuses runs that would use up the disk half-way: one run is there at a time. An engine
    /// takes `spare` bytes at most beyond the plan of a run.
    fn check_room(&self, cells: &[Cell], parent: &Path, free: u64, spare: u64) -> Result<()> {
        for &cell in cells {
            let needed = self.run_args(cell, "", PathBuf::new()).plan()?.disk_len() + spare;
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

    /// Refuses what this engine would refuse at its first run, and a BlobDB without blobs.
    fn check_large_values(&self) -> Result<()> {
        let Some(len) = self.large_values else { return Ok(()) };
        if len == 0 && self.vs.contains(&Peer::Blobdb) {
            return Err(Error::invalid(
                "--large-values is 0, with which blobdb is rocksdb: name another --vs",
            ));
        }
        gabion_engine::check_large_values(u32::try_from(len).unwrap_or(u32::MAX))
    }

    /// The options that only this engine has.
    fn own(&self, engine: &str) -> OwnArgs {
        let large_values = self.large_values;
        match Peer::from_str(engine, false) {
            Ok(Peer::Rocksdb) => self.rocksdb.own(),
            Ok(Peer::Blobdb) => {
                let from = large_values.unwrap_or(BLOBS_FROM);
                OwnArgs { large_values: Some(from), ..self.rocksdb.own() }
            }
            Ok(Peer::Fjall) => OwnArgs::default(),
            Err(_) => OwnArgs { large_values, ..OwnArgs::default() },
        }
    }

    fn run_args(&self, cell: Cell, engine: &str, dir: PathBuf) -> RunArgs {
        let Cell { log, value_size, workload } = cell;
        let (own, common) = (self.own(engine), self.common.clone());
        RunArgs { workload, dir, value_size, log, memory_max: None, own, common }
    }
}

/// Measures `own` beside the peers and prints the results; the others are compared with it. Without
/// the option the engines' files go to `data_dir`.
///
/// # Errors
/// Bad options, a peer that is not built or not from the same sources (the message has the command
/// that builds it), too little free disk, an engine that failed, an interrupt; corruption: an
/// engine read something wrong. The tables of the earlier runs are printed then.
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
    let spare = programs.iter().map(|program| program.spare_len).max().unwrap_or(0);
    args.check_room(&cells, &parent, free_len(&parent)?, spare)?;
    // A directory that cannot be made is told before hours of runs.
    args.over_time.as_deref().map_or(Ok(()), over_time::make)?;
    let mut sink = Sink::open(args.json.as_deref())?;
    let mut rows = Vec::new();
    let outcome = run_all(args, (&cells, &programs), &parent, &stop, &mut |cell, row| {
        sink.write(&row.json(), &mut io::stdout())?;
        rows.push((cell, row));
        Ok(())
    });
    let names: Vec<&str> = programs.iter().map(|program| program.name.as_str()).collect();
    // The runs before a failure took their time too.
    if !sink.is_stdout() && !rows.is_empty() {
        let style = if args.markdown { Style::Markdown } else { Style::Plain };
        print(&tables::tables(&names, &cells, &rows, style), &mut io::stdout())?;
    }
    let drawn = args.over_time.as_deref().map(|to| over_time::draw(&names, &cells, &rows, to));
    outcome.and(drawn.unwrap_or(Ok(())))
}

/// Runs every cell on every engine in every round, in turn, and hands each row to `keep` as it
/// comes.
fn run_all(
    args: &EngineArgs,
    (cells, programs): (&[Cell], &[Program]),
    parent: &Path,
    stop: &AtomicBool,
    keep: &mut dyn FnMut(Cell, EngineRow) -> Result<()>,
) -> Result<()> {
    let total = args.rounds * (cells.len() * programs.len()) as u64;
    let mut number = 0;
    let start = Instant::now();
    for round in 0..args.rounds {
        for &cell in cells {
            // In turn, with another first in each round.
            for turn in 0..programs.len() {
                let program = &programs[(turn + round as usize) % programs.len()];
                number += 1;
                let left = left(start.elapsed().as_secs_f64(), number - 1, total);
                let head = format!(
                    "{number} of {total}{left}: {} on {}, {} bytes, log {}, round {} … ",
                    cell.workload.as_str(),
                    program.name,
                    cell.value_size,
                    cell.log.as_str(),
                    round + 1,
                );
                let mut line = ProgressLine::new(head);
                let dir = ScratchDir::new(parent)?;
                let run = args.run_args(cell, &program.name, dir.path().to_path_buf());
                let row = run_one(program, &run.words(), round + 1, provenance(), &mut line);
                if stop.load(Ordering::Relaxed) {
                    line.end("interrupted");
                    return Err(Error::unavailable("interrupted; what ran is removed"));
                }
                let row = row.inspect_err(|_| line.end("failed"))?;
                let speed = row.figure("per_second").unwrap_or_default() as u64;
                let disturbed = row.disturbance().map_or_else(String::new, |by| format!("; {by}"));
                line.end(&format!("{}/s{disturbed}", grouped(speed)));
                keep(cell, row)?;
            }
        }
    }
    Ok(())
}

/// The remaining time, in words; nothing before there is a basis for it.
fn left(elapsed: f64, done: u64, total: u64) -> String {
    if done == 0 {
        return String::new();
    }
    let minutes = elapsed / done as f64 * (total - done) as f64 / 60.0;
    format!(", about {} min left", minutes.ceil())
}

/// Lines of a program's output that an error quotes: its last ones, enough for a panic with its
/// place.
const LAST_LINES: usize = 12;

/// Runs one workload on one engine, in a process of its own, and shows its progress on the `line`.
fn run_one(
    program: &Program,
    words: &[OsString],
    round: u64,
    config: Map<String, Value>,
    line: &mut ProgressLine,
) -> Result<EngineRow> {
    let name = program.path.display();
    let failed = |e| Error::with_source(ErrorKind::Io, format!("run {name}"), e);
    let mut command = Command::new(&program.path);
    command.args(&program.words).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let mut said = VecDeque::new();
    // The row is one line, which the pipe holds until everything before it was read.
    for text in child.stderr.take().into_iter().flat_map(|told| BufReader::new(told).split(b'\n')) {
        let text = String::from_utf8_lossy(&text.map_err(failed)?).into_owned();
        line.say(&text);
        said.push_back(text);
        if said.len() > LAST_LINES {
            said.pop_front();
        }
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        let row = EngineRow::parse(&program.engine, &output.stdout, round, config)?;
        return Ok(row.named(&program.name));
    }
    let kind = if output.status.code() == Some(1) { ErrorKind::Corruption } else { ErrorKind::Io };
    let told = match said.len() {
        0 => "it said nothing".to_owned(),
        _ => Vec::from(said).join("\n"),
    };
    Err(Error::new(kind, format!("{name} ended with {}: {told}", output.status)))
}

/// A line on standard error for one run. On a terminal it ends with the run's progress.
struct ProgressLine {
    head: String,
    is_watched: bool,
}

impl ProgressLine {
    fn new(head: String) -> Self {
        let is_watched = io::stderr().is_terminal();
        eprint!("{head}");
        Self { head, is_watched }
    }

    fn say(&mut self, what: &str) {
        if self.is_watched {
            // A longer line would wrap, and a wrapped line is not drawn over.
            let left = LINE_LEN.saturating_sub(self.head.chars().count());
            let what: String = what.chars().filter(|c| !c.is_control()).take(left).collect();
            eprint!("\r\x1b[K{}{what}", self.head);
        }
    }

    fn end(&self, result: &str) {
        let again = if self.is_watched { format!("\r\x1b[K{}", self.head) } else { String::new() };
        eprintln!("{again}{result}");
    }
}

/// Columns that a line of progress may take.
const LINE_LEN: usize = 100;

#[cfg(test)]
mod tests;
