//! Programs that know nothing of logs at peers: Table 1, Figures 9 and 10.
//!
//! All sides of a program run beside each other, and are measured in turn, so that a machine that
//! is slower for a while is so for all of them. An idle one costs nothing.

mod pgbench;
mod postgresql;
mod redis;
mod rocksdb;
mod served;
mod sqlite;

use super::house::{COPIES, House, Process, directory, failed};
use super::rows::{Disk, Key, Row, Side};
use super::{Bench, Part};
use crate::args::WorkloadChoice;
use crate::engines::programs::locate;
use crate::workload::Supply;
use clap::ValueEnum;
use gabion_base::{Error, ErrorKind, Result};
use gabion_workload::{Chooser, Distribution, Latencies};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Clients that YCSB has of a program that serves many: the paper's threads.
pub(super) const YCSB_CLIENTS: u64 = 20;
/// Bytes of a value, as in the paper. Keys have 23, the paper's 24.
pub(super) const VALUE: usize = 100;
/// More requests than any time is enough for.
const UNBOUNDED: u64 = 1 << 40;
/// The time of a load is divided into so many turns.
const TURNS: u32 = 4;
const TICK: Duration = Duration::from_millis(1);

/// A program that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgramChoice {
    /// redis-server, with the append-only file.
    Redis,
    /// sqlite3, with a write-ahead log.
    Sqlite,
    /// RocksDB with its write-ahead log, as a server: `replica-rocksdb` of `peers/`.
    Rocksdb,
    /// PostgreSQL with its write-ahead log, and pgbench.
    Postgresql,
}

/// Requests of clients. pgbench has scripts of its own, by their names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) name: &'static str,
    pub(super) workload: WorkloadChoice,
}

impl Load {
    pub(super) const WRITES: Self = Self { name: "write-only", workload: WorkloadChoice::G };
    /// Both write in each transaction.
    const SCRIPTS: [Self; 2] = [
        Self { name: "tpcb-like", workload: WorkloadChoice::G },
        Self { name: "simple-update", workload: WorkloadChoice::G },
    ];
    const YCSB: [Self; 5] = [
        Self { name: "YCSB A", workload: WorkloadChoice::A },
        Self { name: "YCSB B", workload: WorkloadChoice::B },
        Self { name: "YCSB C", workload: WorkloadChoice::C },
        Self { name: "YCSB D", workload: WorkloadChoice::D },
        Self { name: "YCSB F", workload: WorkloadChoice::F },
    ];

    fn supply(self, total: u64, records: u64, requests: u64) -> Supply {
        let distribution = match self.workload {
            WorkloadChoice::D => Distribution::Latest,
            _ => Distribution::Zipfian,
        };
        let chooser = Chooser::new(distribution, records);
        Supply::new(self.workload, total, chooser, records).after(requests)
    }
}

/// Outcome of a load.
pub(super) struct Drove {
    pub(super) count: u64,
    pub(super) took: Duration,
    pub(super) latencies: Latencies,
}

impl Drove {
    fn none() -> Self {
        Self { count: 0, took: Duration::ZERO, latencies: Latencies::new() }
    }

    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.took += other.took;
        self.latencies.merge(&other.latencies);
    }
}

/// A program that runs, and its clients.
pub(super) trait Server {
    fn process(&mut self) -> &mut Process;

    /// Writes all records, each once.
    fn load(&mut self, stop: &AtomicBool) -> Result<()>;

    /// Has clients send requests for a time.
    fn drive(
        &mut self,
        load: Load,
        clients: u64,
        time: Duration,
        stop: &AtomicBool,
    ) -> Result<Drove>;
}

/// Sleeps for a time, or until it is interrupted.
fn sleep(time: Duration, stop: &AtomicBool) {
    let begun = Instant::now();
    while begun.elapsed() < time && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(TICK.min(time - begun.elapsed().min(time)));
    }
}

/// Directories of a program, one for each side, on one disk.
pub(super) struct Stage {
    dir: Removed,
    name: String,
    records: u64,
    /// The most that come at a time.
    clients: u64,
    peer_dir: Option<PathBuf>,
}

impl Stage {
    /// On the local disk.
    pub(super) fn new(bench: &Bench<'_>, name: &str) -> Result<Self> {
        Self::on(bench, bench.local(), name)
    }

    fn on(bench: &Bench<'_>, disk: &Path, name: &str) -> Result<Self> {
        let dir = Removed(directory(disk, name)?);
        let (records, peer_dir) = (bench.args.records, bench.args.peer_dir.clone());
        let clients = bench.args.clients.iter().copied().max().unwrap_or(1);
        Ok(Self { dir, name: name.to_owned(), records, clients, peer_dir })
    }

    /// The same with so many records.
    pub(super) fn of_records(self, records: u64) -> Self {
        Self { records, ..self }
    }

    /// The same for so many clients at most.
    pub(super) fn of_clients(self, clients: u64) -> Self {
        Self { clients, ..self }
    }

    pub(super) fn place(&self, side: Side) -> PathBuf {
        let name = match side {
            Side::Unsynced => "unsynced",
            Side::Shared => "shared",
            Side::Tcp => "tcp",
            Side::Synced => "synced",
            Side::Split => "split",
        };
        self.dir.0.join(name)
    }
}

/// A directory that goes with this value; what cannot be removed goes with the scratch directory.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl ProgramChoice {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Sqlite => "sqlite",
            Self::Rocksdb => "rocksdb",
            Self::Postgresql => "postgresql",
        }
    }

    const fn binary(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Sqlite => "sqlite3",
            Self::Rocksdb => rocksdb::PROGRAM,
            Self::Postgresql => "postgres",
        }
    }

    /// Options of `gabion ncl run`: which files are at peers.
    const fn files(self, side: Side) -> &'static [&'static str] {
        match (self, side) {
            (Self::Redis, Side::Split) => &["--split", "*.incr.aof", "--match", "*.manifest"],
            (Self::Sqlite, Side::Split) => &["--split", "*.db,*-wal", "--match", "*-journal"],
            (Self::Rocksdb, Side::Split) => &["--split", "*.log"],
            (Self::Redis, _) => &["--match", "*.incr.aof,*.manifest"],
            (Self::Sqlite, _) => &["--match", "*-wal,*-journal"],
            (Self::Rocksdb, _) => &["--match", "*.log"],
            (Self::Postgresql, _) => &["--match", postgresql::GLOBS],
        }
    }

    /// The ways in which it is measured. docs/ncl/split.md: segments of PostgreSQL's log are no
    /// files to split.
    pub(super) fn sides(self, is_split: bool) -> impl Iterator<Item = Side> {
        let split = (is_split && self != Self::Postgresql).then_some(Side::Split);
        Side::ALL.into_iter().chain(split)
    }

    /// Bytes of a value, where all have the same.
    pub(super) const fn value_len(self) -> u64 {
        match self {
            Self::Redis | Self::Sqlite | Self::Rocksdb => VALUE as u64,
            Self::Postgresql => 0,
        }
    }

    /// Whether its records are written by requests like all that follow.
    pub(super) const fn is_loaded_by_requests(self) -> bool {
        match self {
            Self::Redis | Self::Rocksdb => true,
            Self::Sqlite | Self::Postgresql => false,
        }
    }

    /// Loads that only write.
    pub(super) const fn writes(self) -> &'static [Load] {
        match self {
            Self::Redis | Self::Sqlite | Self::Rocksdb => &[Load::WRITES],
            Self::Postgresql => &Load::SCRIPTS,
        }
    }

    /// Whether a load of this name only writes.
    pub(super) fn is_write(self, load: &str) -> bool {
        self.writes().iter().any(|write| write.name == load)
    }

    /// Its program, if it is there: in `peer_dir` or where cargo puts it, if it is one of ours.
    fn path(self, peer_dir: Option<&Path>) -> Result<PathBuf> {
        if self == Self::Rocksdb {
            let found = locate(self.binary(), peer_dir)?;
            return found.canonicalize().map_err(failed(&found));
        }
        if self == Self::Postgresql {
            let directory = postgresql::programs().ok_or_else(|| not_installed(self))?;
            return Ok(directory.join(self.binary()));
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).map(|dir| dir.join(self.binary()));
        found.into_iter().find(|path| path.is_file()).ok_or_else(|| not_installed(self))
    }

    /// Whether it is there, and can have its files in a directory.
    fn check(self, peer_dir: Option<&Path>, place: &Path) -> Result<()> {
        self.path(peer_dir)?;
        match self {
            Self::Redis | Self::Sqlite | Self::Rocksdb => Ok(()),
            Self::Postgresql => postgresql::check(place),
        }
    }

    /// Starts it in its place; `house` has the peers of a side that has some. Anything from before
    /// is there again.
    pub(super) fn start(
        self,
        stage: &Stage,
        side: Side,
        house: Option<&mut House>,
    ) -> Result<Box<dyn Server>> {
        let place = stage.place(side);
        if !place.exists() {
            directory(&stage.dir.0, &place.file_name().unwrap_or_default().to_string_lossy())?;
        }
        let log = stage.dir.0.join(format!("{}.log", side as u8));
        let program = self.path(stage.peer_dir.as_deref())?;
        // Both kinds of one program run beside each other.
        let application = match side {
            Side::Split => format!("{}-split", stage.name),
            _ => stage.name.clone(),
        };
        let house = house.as_deref();
        let command = |program: &Path| {
            let mut command = match house {
                Some(house) => {
                    let mut command = house.run(&application, self.files(side));
                    command.arg(program);
                    command
                }
                None => Command::new(program),
            };
            command.current_dir(&place);
            command
        };
        let (is_synced, records) = (side != Side::Unsynced, stage.records);
        match self {
            Self::Redis => redis::start(command(&program), log, is_synced, records),
            Self::Sqlite => {
                let records = records.min(sqlite::RECORDS_MAX);
                sqlite::start(command(&program), log, is_synced, records)
            }
            Self::Rocksdb => rocksdb::start(command(&program), log, is_synced, records),
            Self::Postgresql => {
                let user = postgresql::user()?;
                house.zip(user).map_or(Ok(()), |(house, user)| house.admit(user))?;
                let clients = stage.clients.min(postgresql::CLIENTS_MAX);
                let site = postgresql::Site { program: &program, place: &place, user, log };
                postgresql::start(&site, command, is_synced, clients)
            }
        }
    }

    /// Loads with their clients.
    pub(super) fn cells(self, clients: &[u64]) -> Vec<(Load, u64)> {
        let clients = match self {
            Self::Redis | Self::Rocksdb => clients.to_vec(),
            Self::Sqlite => vec![1],
            Self::Postgresql => {
                let most = |clients: &u64| (*clients).min(postgresql::CLIENTS_MAX);
                let mut counts: Vec<u64> = clients.iter().map(most).collect();
                counts.sort_unstable();
                counts.dedup();
                counts
            }
        };
        let ycsb = match self {
            Self::Redis | Self::Rocksdb => Load::YCSB.map(|load| (load, YCSB_CLIENTS)).to_vec(),
            Self::Sqlite => Load::YCSB.map(|load| (load, 1)).to_vec(),
            Self::Postgresql => Vec::new(),
        };
        let each = |load: &Load| clients.iter().map(|clients| (*load, *clients)).collect();
        let writes = self.writes().iter().flat_map(|load| -> Vec<_> { each(load) });
        writes.chain(ycsb).collect()
    }
}

/// An address of this machine that is free for a program.
fn free_address(program: &str) -> Result<SocketAddr> {
    let failed = |e| Error::with_source(ErrorKind::Io, format!("a free port for {program}"), e);
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    free.local_addr().map_err(failed)
}

/// The programs to measure, whose files will be below `place`. A named one must be there.
pub(super) fn choose(
    named: &[ProgramChoice],
    peer_dir: Option<&Path>,
    place: &Path,
    is_needed: bool,
) -> Result<Vec<ProgramChoice>> {
    if !named.is_empty() {
        let all = named.iter().map(|one| one.check(peer_dir, place).map(|()| *one));
        return all.collect();
    }
    let mut found = Vec::new();
    for program in ProgramChoice::value_variants() {
        match program.check(peer_dir, place) {
            Ok(()) => found.push(*program),
            Err(error) if is_needed => {
                let why = error.message().lines().next().unwrap_or_default();
                eprintln!("without {}: {why}", program.as_str());
            }
            Err(_) => {}
        }
    }
    match found.is_empty() && is_needed {
        true => Err(not_installed(ProgramChoice::Redis)),
        false => Ok(found),
    }
}

fn not_installed(program: ProgramChoice) -> Error {
    let text = format!(
        "{} is not installed: install it, or leave it out with --only and --programs",
        program.binary()
    );
    Error::new(ErrorKind::NotFound, text)
}

pub(super) fn measure(programs: &[ProgramChoice], bench: &mut Bench<'_>) -> Result<()> {
    for round in 1..=bench.args.rounds {
        for program in programs {
            for (disk, path) in bench.disks {
                measure_one(*program, (*disk, path), round, bench)?;
            }
        }
    }
    Ok(())
}

fn measure_one(
    program: ProgramChoice,
    (disk, path): (Disk, &Path),
    round: u64,
    bench: &mut Bench<'_>,
) -> Result<()> {
    let name = program.as_str();
    bench.begin(&format!("{name}, {}, round {round}", disk.as_str()))?;
    let stage = Stage::on(bench, path, name)?;
    let mut shared = House::start(bench, Side::Shared, COPIES)?;
    let mut tcp = House::start(bench, Side::Tcp, COPIES)?;
    let mut servers = Vec::new();
    for side in program.sides(bench.args.split) {
        let house = match side {
            Side::Shared | Side::Split => Some(&mut shared),
            Side::Tcp => Some(&mut tcp),
            Side::Unsynced | Side::Synced => None,
        };
        let mut server = program.start(&stage, side, house)?;
        server.load(bench.stop)?;
        servers.push((side, server));
    }
    for (load, clients) in program.cells(&bench.args.clients) {
        let drove = drive_all(&mut servers, load, clients, bench)?;
        // A load that was interrupted is no measurement.
        bench.check()?;
        for ((side, _), drove) in servers.iter().zip(&drove) {
            let key = Key {
                part: Part::Programs,
                program: name,
                load: load.name,
                side: *side,
                disk: Some(disk),
                clients,
                bytes: program.value_len(),
            };
            bench.keep(Row::new(key, round, figures(drove, clients)))?;
        }
    }
    Ok(())
}

/// The same load on each, in turn, several times; another one is first each time.
fn drive_all(
    servers: &mut [(Side, Box<dyn Server>)],
    load: Load,
    clients: u64,
    bench: &Bench<'_>,
) -> Result<Vec<Drove>> {
    let mut all: Vec<Drove> = servers.iter().map(|_| Drove::none()).collect();
    for turn in 0..TURNS as usize {
        for number in 0..servers.len() {
            bench.check()?;
            let at = (turn + number) % servers.len();
            let time = bench.time() / TURNS;
            all[at].add(&servers[at].1.drive(load, clients, time, bench.stop)?);
        }
    }
    Ok(all)
}

fn figures(drove: &Drove, clients: u64) -> Vec<(&'static str, f64)> {
    let per_second = drove.count as f64 / drove.took.as_secs_f64();
    vec![
        ("per_second", per_second),
        // Each client has one request under way at all times.
        ("mean_us", clients as f64 * 1e6 / per_second),
        ("p50_us", drove.latencies.quantile_us(0.5)),
        ("p99_us", drove.latencies.quantile_us(0.99)),
    ]
}
