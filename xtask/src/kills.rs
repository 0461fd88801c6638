//! `kill -9` of real processes under load.
//!
//! ```text
//!   loaders ─► pipelined SET of unique keys and INCR ─► acknowledged ─► file of the loader
//!   killer  ─► kill -9 of one replica, of some, or of all and `up` ─► (start) ─► …
//!                    afterwards: every acknowledged key through every port, counters, verify
//! ```

use crate::cluster::{Client, Cluster, Random, Reply, counter, load, program, value_of};
use crate::steps::Step;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Kills of every process in a run, unless another number is given; about as many of one or two
/// replicas come in between.
const KILLS: u32 = 20;
/// Kills of the second run of the suite.
const KILLS_SHORT: u32 = 5;
/// Options of `gabion up` besides sizes: the defaults, and each option with another code path. The
/// seed of a run picks one.
const CONFIGURATIONS: [&[&str]; 6] = [
    &[],
    &["--ack", "durable"],
    &["--compaction", "every-replica"],
    &["--compression", "lz4"],
    &["--compression", "lz4", "--bottom-compression", "zstd"],
    &["--io", "threads"],
];
const LOADERS: u16 = 4;
/// Keys of one round trip of a loader.
const BATCH: u64 = 32;
/// A loader's pause after a batch: the load should last, not fill the pool.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a loader waits for a reply before it counts the connection as lost.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a ready group may acknowledge nothing.
const PROGRESS_MAX: Duration = Duration::from_secs(20);
/// How long all the kills and recoveries may take.
const KILLS_MAX: Duration = Duration::from_secs(360);
/// Kills while the group is still recovering, in a row, at most.
const HASTY_MAX: u32 = 2;

/// The check: one run with the configuration that the seed picks.
pub(crate) fn check(count: Option<u32>) -> Step {
    let program = program()?;
    kills(&program, seed()?, count.unwrap_or(KILLS))?;
    comes_back_cheaply(&program)
}

/// As [`check`] for the suite: a run with the defaults, and a short one with anything else.
pub(crate) fn check_all() -> Step {
    let (program, seed) = (program()?, seed()?);
    let (defaults, other) = seeds_of_suite(seed);
    kills(&program, defaults, KILLS)?;
    kills(&program, other, KILLS_SHORT)?;
    comes_back_cheaply(&program)
}

fn seed() -> Result<u64, String> {
    match std::env::var("GABION_KILL_SEED") {
        Ok(seed) => seed.parse().map_err(|_| format!("GABION_KILL_SEED: '{seed}'")),
        Err(_) => Ok(u64::from(std::process::id()) ^ since_epoch()),
    }
}

/// Seeds close to this one: of the defaults, and of another configuration.
fn seeds_of_suite(seed: u64) -> (u64, u64) {
    let all = CONFIGURATIONS.len() as u64;
    let first = seed / all * all;
    (first, first + 1 + seed / all % (all - 1))
}

fn configuration(seed: u64) -> &'static [&'static str] {
    CONFIGURATIONS[(seed % CONFIGURATIONS.len() as u64) as usize]
}

/// Kills at random moments of a load; nothing acknowledged is lost.
fn kills(program: &Path, seed: u64, count: u32) -> Step {
    let sizes = ["--pool-size", "2GiB", "--memtable-size", "1MiB"];
    let options = [&sizes[..], configuration(seed)].concat();
    println!("\n── {count} times kill -9 under load of `gabion up {}`", options.join(" "));
    let repeat = format!("GABION_KILL_SEED={seed} cargo xtask kills {count}");
    println!("── `{repeat}` has the same options and picks the same victims");
    let result = kills_with(program, &options, seed, count);
    result.map_err(|error| format!("{}: {error}\nrepeat: {repeat}", options.join(" ")))
}

fn kills_with(program: &Path, options: &[&str], seed: u64, count: u32) -> Step {
    let mut cluster = Cluster::new("kills", program, options)?;
    cluster.start()?;
    cluster.wait_ready()?;
    let load = Load::start(&cluster);
    let killed = kill_all(&mut cluster, &load, &mut Random(seed), count);
    let loaded = load.finish();
    killed?;
    let loaded = loaded?;
    let checked = cluster.wait_ready().and_then(|_| read_back(&cluster, &loaded));
    checked.map_err(|error| format!("{error}\n{}", cluster.logs()))?;
    cluster.verify_same(&[])?;
    cluster.stop()?;
    cluster.verify_same(&["--offline"])
}

fn since_epoch() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_micros() as u64)
}

fn kill_all(cluster: &mut Cluster, load: &Load, random: &mut Random, count: u32) -> Step {
    let (mut hasty, mut without_up, mut of_all, begun) = (0, 0, 0, Instant::now());
    for number in 1.. {
        if begun.elapsed() > KILLS_MAX {
            return Err(format!(
                "{count} kills of every process take longer than {} s",
                KILLS_MAX.as_secs()
            ));
        }
        std::thread::sleep(Duration::from_millis(random.below(1200)));
        let pids = cluster.replica_pids();
        // Restarts of one replica wait longer each time; `up` anew begins with the shortest.
        let with_up = without_up >= 2 || random.below(2) == 0;
        without_up = if with_up { 0 } else { without_up + 1 };
        let first = random.below(pids.len().max(1) as u64) as usize;
        let some = if with_up { pids.len() } else { 1 + random.below(2) as usize };
        let victims: Vec<u32> =
            pids.iter().cycle().skip(first).take(some.min(pids.len())).copied().collect();
        cluster.kill(&victims, with_up)?;
        if with_up {
            of_all += 1;
            cluster.start()?;
        }
        let acknowledged = load.acknowledged.load(Relaxed);
        let what = if with_up { "all and `up`" } else { "of the replicas" };
        println!("kill {number}: {} {what}; {acknowledged} keys acknowledged", victims.len());
        hasty += 1;
        if hasty <= HASTY_MAX && of_all < count && random.below(3) == 0 {
            continue; // The next kill meets the recovery.
        }
        hasty = 0;
        wait_recovered(cluster, load, &victims)?;
        if of_all == count {
            break;
        }
    }
    Ok(())
}

/// Until every victim has a successor, the group is ready, and writes are acknowledged again.
fn wait_recovered(cluster: &mut Cluster, load: &Load, victims: &[u32]) -> Step {
    let begun = Instant::now();
    loop {
        let status = cluster.wait_ready()?;
        let pids: Vec<u64> = status.iter().filter_map(|s| s["pid"].as_u64()).collect();
        if !victims.iter().any(|pid| pids.contains(&u64::from(*pid))) {
            break;
        }
        if begun.elapsed() > PROGRESS_MAX {
            return Err(format!("of {victims:?}, killed, some still answer: {pids:?}"));
        }
    }
    let (begun, before) = (Instant::now(), load.acknowledged.load(Relaxed));
    while load.acknowledged.load(Relaxed) < before + BATCH {
        if begun.elapsed() > PROGRESS_MAX {
            let seconds = PROGRESS_MAX.as_secs();
            let logs = cluster.logs();
            return Err(format!("all ready, but for {seconds} s nothing is acknowledged\n{logs}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Threads that write until they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<Loaded, String>>>,
}

/// The writes of one loader.
struct Loaded {
    loader: u16,
    /// Numbers of the acknowledged keys, a line each.
    file: PathBuf,
    /// INCRs that were acknowledged, and those that may have happened.
    counted: u64,
    may_have_counted: u64,
}

impl Load {
    fn start(cluster: &Cluster) -> Self {
        let (stop, acknowledged) = (Arc::default(), Arc::default());
        let ports: Vec<u16> = cluster.ports().collect();
        let spawn = |loader| {
            let file = cluster.dir.join(format!("acknowledged-{loader}"));
            let (stop, acknowledged) = (Arc::clone(&stop), Arc::clone(&acknowledged));
            let ports = ports.clone();
            let loaded = Loaded { loader, file, counted: 0, may_have_counted: 0 };
            std::thread::spawn(move || loaded.run(&ports, &stop, &acknowledged))
        };
        let threads = (0..LOADERS).map(spawn).collect();
        Self { stop, acknowledged, threads }
    }

    fn finish(self) -> Result<Vec<Loaded>, String> {
        self.stop.store(true, Relaxed);
        let join =
            |thread: JoinHandle<_>| thread.join().map_err(|_| "a loader panicked".to_owned())?;
        self.threads.into_iter().map(join).collect()
    }
}

fn key_of(loader: u16, number: u64) -> String {
    format!("load:{loader}:{number:08}")
}

/// Values differ in length, too.
fn expected(key: &str, number: u64) -> Vec<u8> {
    value_of(key, 300 + (number % 7) as usize * 100)
}

impl Loaded {
    fn run(
        mut self,
        ports: &[u16],
        stop: &AtomicBool,
        acknowledged: &AtomicU64,
    ) -> Result<Self, String> {
        let file = File::create(&self.file).map_err(|error| format!("acknowledged: {error}"))?;
        let mut file = BufWriter::new(file);
        let (mut client, mut next, mut turn) = (None, 0, usize::from(self.loader));
        while !stop.load(Relaxed) {
            std::thread::sleep(PAUSE);
            let Some(open) = &mut client else {
                turn += 1;
                client = Client::connect(ports[turn % ports.len()], PATIENCE).ok();
                continue;
            };
            let numbers = next..next + BATCH;
            next = numbers.end; // A key is tried once: what a lost one became is not asserted.
            let before = self.counted;
            match self.batch(open, numbers, &mut file, acknowledged) {
                Ok(()) => {}
                Err(Lost::Connection) => client = None,
                Err(Lost::Wrong(error)) => return Err(error),
            }
            if self.counted == before {
                client = None; // Refused: perhaps another replica takes it.
            }
            file.flush().map_err(|error| format!("acknowledged: {error}"))?;
        }
        Ok(self)
    }

    /// Sends keys and one INCR, and notes the acknowledged ones.
    fn batch(
        &mut self,
        client: &mut Client,
        numbers: std::ops::Range<u64>,
        file: &mut BufWriter<File>,
        acknowledged: &AtomicU64,
    ) -> Result<(), Lost> {
        for number in numbers.clone() {
            let key = key_of(self.loader, number);
            client.push(&[b"SET", key.as_bytes(), &expected(&key, number)]);
        }
        client.push(&[b"INCR", format!("counter:{}", self.loader).as_bytes()]);
        self.may_have_counted += 1;
        client.flush().map_err(|_| Lost::Connection)?;
        for number in numbers {
            match client.reply().map_err(|_| Lost::Connection)? {
                Reply::Simple(ok) if ok == "OK" => {
                    writeln!(file, "{number}").map_err(|e| Lost::Wrong(e.to_string()))?;
                    acknowledged.fetch_add(1, Relaxed);
                }
                Reply::Error(error) => expected_error(&error)?,
                other => return Err(Lost::Wrong(format!("SET: {other:?}"))),
            }
        }
        match client.reply().map_err(|_| Lost::Connection)? {
            Reply::Int(count) => {
                let (least, most) = (self.counted + 1, self.may_have_counted);
                self.counted += 1;
                if (least as i64..=most as i64).contains(&count) {
                    return Ok(());
                }
                let loader = self.loader;
                let what = format!("counter {loader} is {count}, not {least} to {most}");
                Err(Lost::Wrong(what))
            }
            Reply::Error(error) => {
                if error.starts_with("TRYAGAIN") {
                    self.may_have_counted -= 1; // Says that nothing was done.
                }
                expected_error(&error)
            }
            other => Err(Lost::Wrong(format!("INCR: {other:?}"))),
        }
    }
}

enum Lost {
    Connection,
    Wrong(String),
}

/// Errors that docs/redis.md lists for a group that lost a member.
fn expected_error(error: &str) -> Result<(), Lost> {
    let is_expected = ["TRYAGAIN", "UNKNOWN", "READONLY"].iter().any(|it| error.starts_with(it));
    if is_expected { Ok(()) } else { Err(Lost::Wrong(format!("an error of a write: {error}"))) }
}

/// Every acknowledged key with its value, and every counter, through every port.
fn read_back(cluster: &Cluster, loaded: &[Loaded]) -> Step {
    for port in cluster.ports() {
        let (mut client, mut keys) = (Client::connect(port, Duration::from_secs(30))?, 0);
        for load in loaded {
            let text = std::fs::read_to_string(&load.file)
                .map_err(|error| format!("{}: {error}", load.file.display()))?;
            let numbers: Result<Vec<u64>, _> = text.lines().map(str::parse).collect();
            let numbers = numbers.map_err(|error| format!("{}: {error}", load.file.display()))?;
            for numbers in numbers.chunks(128) {
                read_back_some(&mut client, load.loader, numbers, port)?;
                keys += numbers.len();
            }
            let counter = format!("counter:{}", load.loader);
            let (least, most) = (load.counted, load.may_have_counted);
            let found = match client.call(&[b"GET", counter.as_bytes()])? {
                Reply::Bulk(Some(bytes)) => String::from_utf8_lossy(&bytes).parse().unwrap_or(0),
                Reply::Bulk(None) => 0,
                other => return Err(format!("GET {counter}: {other:?}")),
            };
            if found < least || found > most {
                return Err(format!("{counter} is {found} on port {port}, not {least} to {most}"));
            }
        }
        println!("port {port}: {keys} acknowledged keys and {LOADERS} counters are there");
        if keys == 0 {
            return Err("nothing was acknowledged".into());
        }
    }
    Ok(())
}

fn read_back_some(client: &mut Client, loader: u16, numbers: &[u64], port: u16) -> Step {
    let keys: Vec<String> = numbers.iter().map(|number| key_of(loader, *number)).collect();
    let mut words: Vec<&[u8]> = vec![b"MGET"];
    words.extend(keys.iter().map(String::as_bytes));
    let values = match client.call(&words)? {
        Reply::Array(values) => values,
        other => return Err(format!("MGET on port {port}: {other:?}")),
    };
    for ((key, number), value) in keys.iter().zip(numbers).zip(&values) {
        match value {
            Reply::Bulk(Some(found)) if *found == expected(key, *number) => {}
            Reply::Bulk(None) => return Err(format!("{key}, acknowledged, is lost (port {port})")),
            _ => return Err(format!("{key} has another value (port {port})")),
        }
    }
    if values.len() == keys.len() { Ok(()) } else { Err(format!("MGET: {} values", values.len())) }
}

/// A secondary that was killed and comes back does not get files that it has.
fn comes_back_cheaply(program: &Path) -> Step {
    println!(
        "\n── kill -9 of one secondary: it comes back by shipping less than 1 % of the live bytes"
    );
    let options = ["--pool-size", "1GiB", "--memtable-size", "8MiB"];
    let mut cluster = Cluster::new("comes-back", program, &options)?;
    cluster.start()?;
    cluster.wait_ready()?;
    load(cluster.port, "back:", 150_000, 1000)?;
    for replica in [2, 3] {
        let before = cluster.wait_quiet()?;
        let pid = before[replica - 1]["pid"].as_u64().unwrap_or(0) as u32;
        let begun = Instant::now();
        cluster.kill(&[pid], false)?;
        let after = loop {
            let status = cluster.wait_quiet()?;
            if status[replica - 1]["pid"].as_u64() != Some(u64::from(pid)) {
                break status;
            }
            if begun.elapsed() > PROGRESS_MAX {
                return Err(format!("replica {replica} was killed and still answers"));
            }
        };
        let live = before[0]["live_bytes"].as_u64().unwrap_or(0);
        let shipped = counter(&after[0], "shipped_bytes") - counter(&before[0], "shipped_bytes");
        let pulled = counter(&after[replica - 1], "received_bytes");
        println!(
            "replica {replica}: {shipped} bytes shipped, {pulled} received; {live} bytes live"
        );
        if live < 100 << 20 {
            return Err(format!("{live} live bytes after 150 MB of load"));
        }
        if after[0]["pid"] != before[0]["pid"] {
            return Err("the primary ended meanwhile".into());
        }
        if (shipped + pulled) * 100 >= live {
            return Err(format!("replica {replica} came back with {shipped} bytes of {live}"));
        }
        load(cluster.port, &format!("after:{replica}:"), 20_000, 1000)?;
    }
    cluster.wait_quiet()?;
    cluster.verify_same(&[])?;
    cluster.stop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suite_runs_the_defaults_and_in_turn_everything_else() {
        let mut others = Vec::new();
        for seed in 0..100 {
            let (defaults, other) = seeds_of_suite(seed);
            assert!(configuration(defaults).is_empty(), "seed {seed}");
            assert!(!configuration(other).is_empty(), "seed {seed}");
            others.push(configuration(other));
        }
        others.sort_unstable();
        others.dedup();
        assert_eq!(others.len(), CONFIGURATIONS.len() - 1, "{others:?}");
    }
}
