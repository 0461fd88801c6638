//! `gabion bench`: the measured replicas, each a process as under `gabion up`.

use crate::child::Replica;
use crate::cluster::{self, Settings};
use crate::control;
use crate::engine;
use crate::options::{BenchCommand, DataOption, FixedOptions, MetricsPort, ProcessOptions};
use crate::status::{self, Status};
use crate::units::size;
use gabion_base::{Error, ErrorKind, Result};
use gabion_bench::{ClusterSpec, Launcher, Program, RunningCluster, UpProgram};
use gabion_control::users::UserRecord;
use rustix::process::Signal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The search for first ports begins here, far from those of `up`.
const PORT_FROM: u16 = 17_000;
const PORT_STEP: u16 = 16;
const START_MAX: Duration = Duration::from_secs(60);
const STOP_MAX: Duration = Duration::from_secs(15);
const TICK: Duration = Duration::from_millis(50);

pub(crate) fn run(command: &BenchCommand) -> Result<u8> {
    match command {
        BenchCommand::Ycsb(args) => gabion_bench::ycsb(args, &Processes),
        BenchCommand::Replication(args) => gabion_bench::replication(args, &Processes),
        BenchCommand::Placement(args) => gabion_bench::placement(args, &Processes),
        BenchCommand::Engine(args) => {
            engine::exit_code(gabion_bench::engines(args, own_program()?, &Processes.data_dir()))
        }
        BenchCommand::Failover(args) => gabion_bench::failover(
            args,
            &own_up(args.dir.as_deref(), args.replicas, args.pool_size)?,
        ),
        BenchCommand::Rebuild(args) => {
            let up = own_up(args.dir.as_deref(), args.replicas, args.pool_size())?;
            gabion_bench::rebuild(args, &up).map(|()| 0)
        }
        BenchCommand::Fabric(args) => {
            gabion_bench::fabric(args, &mut std::io::stdout().lock()).map(|()| 0)
        }
        BenchCommand::Ncl(args) => {
            gabion_bench::ncl(args, &own_program()?.path, &Processes.data_dir()).map(|()| 0)
        }
        BenchCommand::Report(args) => {
            gabion_bench::report(args, &mut std::io::stdout().lock()).map(|()| 0)
        }
        BenchCommand::EngineRun(args) => engine::run(args),
        BenchCommand::Calls(args) => {
            gabion_bench::calls(args, &mut std::io::stdout().lock()).map(|()| 0)
        }
    }
}

/// This program, in the role of the one that runs workloads on this engine.
fn own_program() -> Result<Program> {
    let path = std::env::current_exe()
        .map_err(|error| Error::with_source(ErrorKind::Io, "this program's path", error))?;
    let words = engine::WORDS.map(Into::into).to_vec();
    let (name, engine) = ("gabion".to_owned(), "gabion".to_owned());
    Ok(Program { name, engine, path, words, spare_len: engine::SPARE_LEN })
}

/// This program, and places for its `up`.
fn own_up(dir: Option<&Path>, replicas: u32, pool_size: u64) -> Result<UpProgram> {
    let program = own_program()?.path;
    let data_dir = Processes.data_dir();
    let dir = dir.unwrap_or(&data_dir);
    let free = cluster::free_at(dir)?;
    let fixed = FixedOptions {
        replicas: Some(replicas),
        pool_size: Some(pool_size),
        ..FixedOptions::default()
    };
    let settings = Settings::new(&fixed, PORT_FROM, dir, free)?;
    Ok(UpProgram { program, data_dir, port: on_free_ports(settings)?.port })
}

/// Starts replicas as processes of this program.
struct Processes;

impl Launcher for Processes {
    fn start(&self, spec: &ClusterSpec) -> Result<Box<dyn RunningCluster>> {
        let settings = on_free_ports(settings(spec)?)?;
        cluster::create(&spec.dir, &settings, |_| true)?;
        for number in settings.members() {
            // No controller runs that would tell them, and without users nobody is let in.
            let kept = control::users_path(&cluster::replica_dir(&spec.dir, number));
            gabion_server::keep_users(&kept, &UserRecord::default())?;
        }
        let options = ProcessOptions {
            large_values: Some(spec.large_values),
            // Many groups lie close together, and nobody scrapes them.
            metrics_port: MetricsPort::Off,
            ..ProcessOptions::default()
        };
        let replicas =
            settings.members().map(|number| Replica::new(number, &spec.dir, &options)).collect();
        let mut group = Group { settings, replicas };
        for replica in &mut group.replicas {
            replica.start()?;
        }
        group.wait_until_ready()?;
        Ok(Box::new(group))
    }

    fn check_room(&self, spec: &ClusterSpec, clusters: u32) -> Result<()> {
        let (settings, free) = (settings(spec)?, cluster::free_at(&spec.dir)?);
        let needed = settings.reserved().saturating_mul(u64::from(clusters));
        if needed <= free {
            return Ok(());
        }
        let (all, fewer) = match clusters {
            1 => (String::new(), ""),
            n => (format!(", {n} groups of them {}", size(needed)), "--co-location, "),
        };
        Err(Error::no_space(format!(
            "{}{all}: fewer {fewer}--replicas or --records, a smaller --pool-size or another --dir may do",
            settings.no_room(&spec.dir, free, "").message()
        )))
    }

    fn data_dir(&self) -> PathBuf {
        let data = cluster::data_dir(&DataOption { data: None });
        let parent = data.ok().and_then(|data| data.parent().map(PathBuf::from));
        parent.unwrap_or_else(std::env::temp_dir)
    }
}

/// The settings of a cluster to make.
fn settings(spec: &ClusterSpec) -> Result<Settings> {
    Ok(Settings {
        group: cluster::new_group()?,
        replicas: spec.replicas,
        groups: 1,
        place: 0,
        // The benchmark measures a group whose members stay.
        members_min: spec.replicas,
        spares: 0,
        port: PORT_FROM,
        pool_len: spec.pool_len,
        compaction: spec.compaction,
        ack: spec.ack,
        memtable_len: spec.memtable_len,
        codecs: spec.codecs,
        growth_factor: spec.growth_factor,
        large_values: spec.large_values,
    })
}

/// The same on ports that nobody uses.
fn on_free_ports(mut settings: Settings) -> Result<Settings> {
    let last = u16::MAX - cluster::PORTS_ABOVE - PORT_STEP;
    while let Err(busy) = settings.check_ports() {
        if settings.port >= last {
            return Err(busy.within("no free ports for the replicas"));
        }
        settings.port += PORT_STEP;
    }
    Ok(settings)
}

struct Group {
    settings: Settings,
    replicas: Vec<Replica>,
}

impl Group {
    fn wait_until_ready(&mut self) -> Result<()> {
        let begun = Instant::now();
        while !self.is_ready() {
            for replica in &mut self.replicas {
                let Some(death) = replica.check() else { continue };
                return Err(Error::unavailable(format!(
                    "replica {} died at its start: {}: {}",
                    replica.number,
                    death.how,
                    death.last_words.unwrap_or_default()
                )));
            }
            if begun.elapsed() > START_MAX {
                return Err(Error::unavailable(format!(
                    "the replicas are not ready after {} s",
                    START_MAX.as_secs()
                )));
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        self.addresses()
            .into_iter()
            .all(|at| status::ask(at).is_ok_and(|value| Status::from_json(&value).is_ready))
    }
}

impl RunningCluster for Group {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.settings.members().map(|number| self.settings.doors(number).resp).collect()
    }
}

/// A process that does not stop is killed when its [`Replica`] is dropped.
impl Drop for Group {
    fn drop(&mut self) {
        for replica in &self.replicas {
            replica.signal(Signal::TERM);
        }
        let begun = Instant::now();
        while begun.elapsed() < STOP_MAX && !self.replicas.iter_mut().all(Replica::is_gone) {
            std::thread::sleep(TICK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::units::MIB;
    use gabion_db::{Db, Options};
    use gabion_engine::{Codecs, TreeConfig};
    use gabion_node::{AckLevel, CompactionMode};

    /// Bytes that the indexes and filters of a number of benchmark records take once all are read.
    fn indexes_of_a_store(records: u64, value_len: usize) -> u64 {
        let name = format!("gabion-bench-indexes-{}-{value_len}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        // Near the usual lengths: a default would be shorter, as it fits the pool.
        let usual = 16 * MIB - 4096;
        let tree = TreeConfig {
            memtable_len: usual,
            sst_len: usual,
            level1_len: 4 * usual,
            ..TreeConfig::default()
        };
        let (segment_len, ring_len) = (15 * MIB, 120 * MIB);
        let pool_len = 256 * MIB;
        let options = Options { pool_len, tree, segment_len, ring_len, ..Options::default() };
        let db = Db::create(&dir, &options).unwrap();
        for number in 0..records {
            // Like the benchmark's keys: the digits of a hash.
            let key = format!("user{:019}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1);
            db.put(key.as_bytes(), &vec![number as u8; value_len]).unwrap();
        }
        db.flush().unwrap();
        db.wait_until_quiet().unwrap();
        assert_eq!(db.iter(..).count() as u64, records);
        let len = db.stats().index_bytes as u64;
        drop(db);
        std::fs::remove_dir_all(&dir).unwrap();
        len
    }

    #[test]
    fn what_the_baseline_gets_for_indexes_is_what_a_store_takes_for_them() {
        assert_eq!(
            gabion_bench::BLOCK_CACHE_LEN,
            ProcessOptions::default().block_cache_bytes as u64
        );
        for (records, value_len) in [(20_000, 1000), (150_000, 100), (150_000, 33)] {
            let taken = indexes_of_a_store(records, value_len);
            let given = gabion_bench::indexes_len(records, value_len as u64);
            let ratio = given as f64 / taken as f64;
            assert!((1.0..1.3).contains(&ratio), "{value_len}: {given} given, {taken} taken");
        }
    }

    /// docs/faults.md: P36
    #[test]
    fn a_cluster_that_does_not_fit_is_refused_with_what_it_needs_and_what_there_is() {
        let dir = std::env::temp_dir().join("gabion-bench-not-made/below");
        let free = cluster::free_at(&dir).unwrap();
        let mut spec = ClusterSpec {
            replicas: 9,
            compaction: CompactionMode::Primary,
            ack: AckLevel::Replicated,
            // Nine of these do not fit, whatever others free meanwhile.
            pool_len: free,
            memtable_len: 16 * MIB,
            codecs: Codecs::default(),
            large_values: 0,
            growth_factor: cluster::growth_usual(),
            dir,
        };
        let error = Processes.check_room(&spec, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        let text = error.to_string();
        for part in [" free; 9 replicas with --pool-size ", "--replicas", "--records", "--dir"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let needed = size(settings(&spec).unwrap().reserved());
        assert!(text.contains(&format!(" need {needed}: ")), "{needed}: {text}");
        assert!(!spec.dir.exists());
        assert!(!text.contains("group"), "{text}");
        spec.pool_len = MIB;
        spec.replicas = 1;
        Processes.check_room(&spec, 1).unwrap();
        // Nine groups of one replica, each of which takes a quarter of the free space.
        spec.pool_len = free / 4;
        let text = Processes.check_room(&spec, 9).unwrap_err().to_string();
        let needed = size(9 * settings(&spec).unwrap().reserved());
        assert!(
            text.contains(&format!(", 9 groups of them {needed}: fewer --co-location, ")),
            "{text}"
        );
    }
}
