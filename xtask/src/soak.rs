//! Everything at length, in shards. A shard that ended well is recorded under the target directory
//! for its commit, and not run again, so that an interrupted soak resumes.

use crate::cluster::need_space;
use crate::steps::{
    CHECKED, Step, head_commit, log_seeds, run, some_seeds, target_directory, test,
};
use crate::{failovers, ncl, ncl_suites, porcupine, shipping};
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::process::Command;
use std::time::{Duration, Instant};

/// Seeds of the simulator in one shard.
const SEEDS: u64 = 1_000;
/// Shards of as many seeds of groups with controllers.
const CONTROLLED: u64 = 5;
/// Shards of as many seeds of near-compute logs.
const LOGS: u64 = 5;
/// Shards of scripts of calls with and without the interposer, and the scripts of each.
const SCRIPTED: u64 = 20;
const SCRIPTS: u64 = 5_000;
/// Records of the shard that loads some.
const LOAD: u64 = 2_000_000;
/// The shard that loads many records into a store within 2 GiB of memory, their number, and the
/// bytes of disk that it needs.
const MEMORY: &str = "memory";
const MANY: u64 = 100_000_000;
const MANY_DISK: u64 = 40 << 30;
/// The shard of faults of real replicas and links.
const FAILOVERS: &str = "failovers";
/// The shard of programs that end at their calls.
const POINTS: &str = "ncl-points";
/// The multiple of `cargo test`'s hostile inputs.
const HOSTILE: &str = "300";
/// The multiple of its runs under other options.
const OPTIONS: &str = "100";

/// The tests of whole clusters.
const SIM: [&str; 4] = ["-p", "gabion-sim", "--test", "sim"];

/// A shard for each test that can take every crash point or failing call of a workload.
fn exhaustive() -> Result<Vec<String>, String> {
    let list =
        ["--release", "--", "--list", "crash_points::", "io_failures::", "member_failing_calls::"];
    let output = Command::new("cargo").arg("test").args(SIM).args(list).envs([CHECKED]).output();
    let output = output.map_err(|error| format!("cargo test {}: {error}", SIM.join(" ")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
    let shards: Vec<String> = tests.map(|test| format!("all {test}")).collect();
    if !shards.is_empty() {
        return Ok(shards);
    }
    Err(format!("no crash points are listed: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Runs shards until `hours` have passed: first each kind once, then more and more seeds.
pub(crate) fn soak(hours: f64) -> Step {
    let commit = head_commit()?;
    let directory = format!("{}/soak", target_directory()?);
    fs::create_dir_all(&directory).map_err(|error| format!("{directory}: {error}"))?;
    let list = format!("{directory}/{commit}");
    let done = fs::read_to_string(&list).unwrap_or_default();
    let done: Vec<&str> = done.lines().collect();
    let (begun, limit) = (Instant::now(), Duration::from_secs_f64(hours * 3600.0));
    let load = format!("load of {LOAD} records");
    let once = [
        load.as_str(),
        MEMORY,
        "flipped bits",
        "range deletes",
        "hostile bytes",
        "options",
        "redis",
        "redis-suites",
        "clients",
        "etcd",
        "walk",
        "staged",
        "guest",
        FAILOVERS,
        POINTS,
        "ncl-suites redis",
        "ncl-suites sqlite",
        "ncl-suites sqlite-split",
        "chain, 25000 seeds",
        "model of logs",
        "planted",
    ];
    let controlled = (0..CONTROLLED).map(|n| format!("failover {}", n * SEEDS));
    let logs = (0..LOGS).map(|n| format!("ncl {}", n * SEEDS));
    // Behind those of CI, which begin at 10,000.
    let scripts = (0..SCRIPTED).map(|n| format!("scripts {}", 100_000 + n * SCRIPTS));
    let once = once.into_iter().map(str::to_owned).chain(controlled).chain(logs).chain(scripts);
    let once = once.chain(exhaustive()?);
    if !done.contains(&load.as_str()) {
        shipping::is_there_room(LOAD)?;
    }
    if !done.contains(&MEMORY) {
        is_there_room_for_many()?;
    }
    let more = (0..).flat_map(|n: u64| {
        // The configuration follows from the seed: they take turns.
        let kills = n.is_multiple_of(5).then(|| format!("kills {}", n / 5));
        [Some(format!("seeds {}", n * SEEDS)), kills].into_iter().flatten()
    });
    let mut count = done.len();
    for shard in once.chain(more) {
        if begun.elapsed() > limit {
            break;
        }
        if done.contains(&shard.as_str()) {
            continue;
        }
        run_shard(&shard)?;
        let file = fs::OpenOptions::new().create(true).append(true).open(&list);
        file.and_then(|mut file| writeln!(file, "{shard}"))
            .map_err(|error| format!("{list}: {error}"))?;
        count += 1;
    }
    println!("\nsoak of {commit}: {count} shards passed, listed in {list}");
    println!("to be recorded in docs/testing.md");
    Ok(())
}

fn run_shard(shard: &str) -> Step {
    println!("\n── shard: {shard}");
    match shard.split_once(' ') {
        Some((test @ ("seeds" | "failover" | "ncl" | "scripts"), first)) => {
            let first = first.parse().map_err(|_| format!("shard {shard}: no number"))?;
            match test {
                "seeds" => some_seeds(test, first, SEEDS),
                "ncl" => log_seeds(first, SEEDS),
                "scripts" => ncl::scripts(first, SCRIPTS),
                _ => porcupine::failovers(first, SEEDS),
            }
        }
        Some(("kills", seed)) => run("cargo", &["xtask", "kills"], &[("GABION_KILL_SEED", seed)]),
        Some(("load", _)) => {
            let keys = LOAD.to_string();
            run("cargo", &["xtask", "shipping"], &[("GABION_SHIPPING_KEYS", &keys)])
        }
        Some(("ncl-suites", suite)) => ncl_suites::check(&[suite]),
        // Every bit of images of pools, files and logs. Each room has some.
        Some(("flipped", _)) => {
            ["gabion-pool", "gabion-engine", "gabion-log"].into_iter().try_for_each(|room| {
                test(&["--release", "-p", room, "flips", "--", "--ignored", "--nocapture"], &[])
            })
        }
        // Thousands of trees of several shapes against a map.
        Some(("range", _)) => {
            let trees = ["range_deletes_agree", "--", "--ignored", "--nocapture"];
            test(&[&["--release", "-p", "gabion-engine"][..], &trees].concat(), &[])
        }
        Some(("hostile", _)) => {
            let sim = ["--release", "-p", "gabion-sim", "--test", "hostile", "--", "--nocapture"];
            test(&sim, &[("GABION_TIMES", HOSTILE)])
        }
        Some(("model", _)) => {
            let all = ["--test", "model", "--", "--ignored", "--nocapture"];
            test(&[&["-p", "gabion-ncl"][..], &all].concat(), &[])
        }
        // In the dev profile it does not end within hours.
        Some(("all", name)) => {
            let shown = ["--release", "--", "--nocapture", "--exact", name];
            test(&[&SIM[..], &shown].concat(), &[("GABION_CRASH_FULL", "1")])
        }
        Some(("chain,", _)) => {
            test(&["-p", "gabion-replication", "random_faults"], &[("GABION_SEEDS", "25000")])
        }
        _ if shard == "options" => {
            let shown = ["--release", "--", "--nocapture", "metamorphic::"];
            test(&[&SIM[..], &shown].concat(), &[("GABION_TIMES", OPTIONS)])
        }
        _ if shard == FAILOVERS => failovers::check(failovers::ROUNDS_SOAK),
        _ if shard == POINTS => ncl::points(ncl::POINTS_SOAK),
        _ if shard == MEMORY => many_records(),
        _ if shard == "planted" => crate::steps::planted(),
        _ => run("cargo", &["xtask", shard], &[]),
    }
}

/// Many records, each of which is read and compared after the load, in a process that may have 2
/// GiB resident. The cache is filled by then, and every file is open.
fn many_records() -> Step {
    is_there_room_for_many()?;
    let directory = many_directory()?;
    let records = MANY.to_string();
    let gabion = ["run", "--release", "-p", "gabion", "--", "bench", "engine-run"];
    let load = ["--workload", "fillrandom", "--records", &records, "--value-size", "100"];
    let store = ["--log", "on", "--cache", "512MiB", "--memory-max", "2GiB", "--dir", &directory];
    run("cargo", &[&gabion[..], &load, &store].concat(), &[])
}

/// The directory of their store.
fn many_directory() -> Result<String, String> {
    Ok(format!("{}/soak/{MEMORY}", target_directory()?))
}

/// Whether they fit on the disk; first removes the remains of an interrupted run.
fn is_there_room_for_many() -> Step {
    let directory = many_directory()?;
    match fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(format!("{directory}: {error}")),
        _ => need_space(&format!("a store of {MANY} records"), MANY_DISK),
    }
}
