//! `gabion bench ncl`: near-compute logs in the form of SplitFT's evaluation, with its numbers
//! beside ours.
//!
//! ```text
//!   options ─► parts, in turn ─► House: a controller and log peers, processes of this program
//!                │                 ▲ mapped memory, or TCP
//!                ├─ library ───────┤                      file unsynced, file with fdatasync
//!                └─ programs ── gabion ncl run ── redis-server, sqlite3, RocksDB,  the same two
//!                     │                            PostgreSQL
//!                     └─► rows ─► --json, tables with the paper's numbers, drawings
//! ```
//!
//! - [`library`]: Figure 8, threads. [`programs`]: Table 1, Figures 9 and 10.
//! - [`replacement`]: Table 3. [`recovery`]: Figure 11. [`failures`]: Figure 12. [`memory`].
//!   [`unmatched`]: calls on files that are not at peers.
//! - [`house`]: processes. [`slow`]: a file system with slow syncs. [`paper`]: its numbers, and
//!   what is aimed at. [`tables`], [`draw`].

mod draw;
mod failures;
mod house;
mod library;
pub(crate) mod memory;
mod paper;
pub(crate) mod programs;
mod recovery;
mod replacement;
mod rows;
mod slow;
mod tables;
mod unmatched;

pub use unmatched::{CallsArgs, calls};

use crate::args::in_range;
use crate::provenance::provenance;
use crate::run::stop_on_signals;
use crate::sink::{Sink, print};
use crate::text::Style;
use clap::{Args, ValueEnum};
use gabion_base::units::{GIB, MIB};
use gabion_base::{Error, Result};
use gabion_workload::parse_bytes;
use programs::ProgramChoice;
use rows::{Disk, Row, Rows};
use slow::SlowDisk;
use std::io::stdout;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A part of the evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Part {
    /// Figure 8: a write of 128 B to 8 KiB by one thread.
    Latency,
    /// Synced records of 128 B by 1, 8 and 64 threads.
    Threads,
    /// Table 1, Figures 9 and 10: programs that write only, and YCSB.
    Programs,
    /// Figure 11: a log that is read by a new instance.
    Recovery,
    /// Table 3: a lost peer that had a log.
    Replacement,
    /// Figure 12: writes while peers are killed.
    Failures,
    /// Memory of a peer beyond what it lends, and of programs beyond their logs.
    Memory,
    /// Calls on files that are not at peers, under `gabion ncl run` and without it.
    Unmatched,
}

impl Part {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Threads => "threads",
            Self::Programs => "programs",
            Self::Recovery => "recovery",
            Self::Replacement => "replacement",
            Self::Failures => "failures",
            Self::Memory => "memory",
            Self::Unmatched => "unmatched",
        }
    }
}

/// Measures near-compute logs as SplitFT's evaluation does: latency, programs, recovery, and what
/// the loss of log peers costs. Controller and peers are processes of this program, on this
/// machine.
#[derive(Args, Clone, Debug)]
pub struct NclArgs {
    /// Parts to measure [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Programs to measure [default: those of them that are installed, or built]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub programs: Vec<ProgramChoice>,
    /// Seconds of each measurement of a speed, 0.05 to 600
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// How often programs, their memory, replacements, recoveries and calls on unmatched files are
    /// measured. The figures are medians
    #[arg(long, default_value_t = 3)]
    pub rounds: u64,
    /// Clients of a program that serves many, for writes alone. YCSB has 20 of them; PostgreSQL
    /// has 16 at most
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
    pub clients: Vec<u64>,
    /// Records that a program has loaded before it is measured; SQLite, with its one client, at
    /// most 20,000. PostgreSQL has 100,000 accounts for each of its clients
    #[arg(long, default_value_t = 100_000)]
    pub records: u64,
    /// Bytes of the log that is recovered, that a lost peer had, and that a program writes whose
    /// memory is measured
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "60MiB")]
    pub log_size: u64,
    /// Memory that a peer lends in full, to see what it uses in all
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "4GiB")]
    pub memory: u64,
    /// The local file system that is compared with: files go to a directory that is made here
    /// [default: the data directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Compare also with a file system whose syncs take so many milliseconds, 1 to 10000, as those
    /// of a network's do. It takes `slow-syncs` of `peers/`, and root
    #[arg(long, value_name = "MS")]
    pub slow_sync: Option<u64>,
    /// Place of `slow-syncs` and `replica-rocksdb` [default: where cargo puts them]
    #[arg(long, value_name = "DIR")]
    pub peer_dir: Option<PathBuf>,
    /// Measure programs also with split files, whose small writes alone are at peers. SQLite's
    /// database is split, too
    #[arg(long)]
    pub split: bool,
    /// Draw Figures 8 to 12 into pictures in this directory
    #[arg(long, value_name = "DIR")]
    pub draw: Option<PathBuf>,
    /// Write the rows to this file, which must not be there, one JSON object a line, as they come;
    /// without a file to standard output, in place of the tables
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Print the tables as Markdown
    #[arg(long)]
    pub markdown: bool,
}

const ROUNDS_MAX: u64 = 100;
const CLIENTS_MAX: u64 = 1024;

impl NclArgs {
    fn check(&self) -> Result<()> {
        in_range("rounds", self.rounds, 1, ROUNDS_MAX)?;
        in_range("records", self.records, 1_000, 10_000_000)?;
        in_range("log-size", self.log_size, MIB, GIB)?;
        in_range("memory", self.memory, MIB, 64 * GIB)?;
        if let Some(ms) = self.slow_sync {
            in_range("slow-sync", ms, 1, 10_000)?;
        }
        if !(0.05..=600.0).contains(&self.seconds) {
            let text = format!("--seconds is {}, allowed are 0.05 to 600", self.seconds);
            return Err(Error::invalid(text));
        }
        for (i, clients) in self.clients.iter().enumerate() {
            in_range("clients", *clients, 1, CLIENTS_MAX)?;
            if self.clients[..i].contains(clients) {
                return Err(Error::invalid(format!("--clients names {clients} twice")));
            }
        }
        Ok(())
    }

    fn parts(&self) -> Vec<Part> {
        let all = Part::value_variants();
        let chosen = |part: &&Part| self.only.is_empty() || self.only.contains(part);
        all.iter().filter(chosen).copied().collect()
    }
}

/// All that a part needs.
pub(crate) struct Bench<'a> {
    pub(crate) args: &'a NclArgs,
    /// The program whose `ncl` is run.
    pub(crate) program: &'a Path,
    /// For controllers, peers and all that is not measured.
    pub(crate) scratch: &'a Path,
    /// The directories that are compared with.
    pub(crate) disks: &'a [(Disk, PathBuf)],
    pub(crate) stop: &'a AtomicBool,
    keep: &'a mut dyn FnMut(Row) -> Result<()>,
}

impl Bench<'_> {
    pub(crate) fn keep(&mut self, row: Row) -> Result<()> {
        (self.keep)(row)
    }

    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs_f64(self.args.seconds)
    }

    /// Says what comes, and fails once the run is to end.
    pub(crate) fn begin(&self, what: &str) -> Result<()> {
        eprintln!("{what}");
        self.check()
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::unavailable("interrupted; what ran is removed")),
            false => Ok(()),
        }
    }

    /// The local directory.
    pub(crate) fn local(&self) -> &Path {
        &self.disks[0].1
    }
}

/// Measures, with processes of `program`, and prints the results. Without the option the files of
/// programs go below `data_dir`.
///
/// # Errors
/// Bad options, a program that is named and not installed, a process that ended, an interrupt. The
/// tables of what was measured before are printed then.
pub fn ncl(args: &NclArgs, program: &Path, data_dir: &Path) -> Result<()> {
    args.check()?;
    let parts = args.parts();
    let peer_dir = args.peer_dir.as_deref();
    let is_needed = parts.contains(&Part::Programs);
    let stop = stop_on_signals()?;
    house::reap()?;
    let parent = args.dir.clone().unwrap_or_else(|| data_dir.to_path_buf());
    let scratch = house::scratch(&parent)?;
    let programs = programs::choose(&args.programs, peer_dir, scratch.path(), is_needed)?;
    let slow = args.slow_sync.map(|ms| SlowDisk::mount(scratch.path(), ms, args)).transpose()?;
    let mut disks = vec![(Disk::Local, house::directory(scratch.path(), "local")?)];
    disks.extend(slow.as_ref().map(|slow| (Disk::Slow, slow.path.clone())));
    args.draw.as_deref().map_or(Ok(()), draw::make)?;
    let mut sink = Sink::open(args.json.as_deref())?;
    let mut rows = Rows::default();
    let mut keep = |row: Row| {
        sink.write(&row.json(provenance()), &mut stdout())?;
        rows.push(row);
        Ok(())
    };
    let mut bench = Bench {
        args,
        program,
        scratch: scratch.path(),
        disks: &disks,
        stop: &stop,
        keep: &mut keep,
    };
    let outcome = parts.iter().try_for_each(|part| measure(*part, &programs, &mut bench));
    // Rows from before a failure took their time too.
    let style = if args.markdown { Style::Markdown } else { Style::Plain };
    if !sink.is_stdout() {
        print(&tables::tables(&rows, style), &mut stdout())?;
    }
    let drawn = args.draw.as_deref().map(|to| draw::draw(&rows, to));
    outcome.and(drawn.unwrap_or(Ok(())))
}

fn measure(part: Part, programs: &[ProgramChoice], bench: &mut Bench<'_>) -> Result<()> {
    match part {
        Part::Latency => library::latency(bench),
        Part::Threads => library::threads(bench),
        Part::Programs => programs::measure(programs, bench),
        Part::Recovery => recovery::measure(programs, bench),
        Part::Replacement => replacement::measure(bench),
        Part::Failures => failures::measure(bench),
        Part::Memory => memory::measure(programs, bench),
        Part::Unmatched => unmatched::measure(bench),
    }
}

#[cfg(test)]
mod tests;
