//! Client libraries of Redis in their own languages, with their defaults, against a real cluster:
//! each connects, pipelines, transacts, scans, locks, and goes on after its node was killed and
//! came back. Their cluster clients do so over four groups; counters of the nodes show that each
//! command went straight to the one that runs it.
//!
//! Each has its scripts in `xtask/clients`. One gets a port and ends with 0 or prints the failure.
//! The script kills the node itself, by the `process_id` of INFO; `gabion up` starts it again.

use crate::cluster::{Client, Cluster, Reply, need, program, run, said};
use crate::python;
use crate::steps::{Step, target_directory};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Packages of the two libraries of Node.js, in exact versions; those of the others stand in their
/// own files.
const NODE_PACKAGES: [&str; 2] = ["ioredis@6.0.0", "redis@6.3.1"];
const REDIS_PY: &str = "redis==8.1.0";
/// Seconds that a script may take; a node is back within a few.
const PATIENCE: &str = "120";
/// Groups of the cluster for cluster clients.
const GROUPS: u16 = 4;

/// The command line of a prepared (installed, built) script.
pub(crate) type Prepared = Result<Vec<String>, String>;

/// A library: its name, its script for one group, and that of its cluster client.
type Library = (&'static str, fn() -> Prepared, Option<fn() -> Prepared>);

const LIBRARIES: [Library; 6] = [
    ("redis-py", || redis_py("redis_py.py"), Some(|| redis_py("redis_py_cluster.py"))),
    ("ioredis", || node("ioredis.mjs"), Some(|| node("ioredis-cluster.mjs"))),
    ("node-redis", || node("node-redis.mjs"), None),
    ("go-redis", || go_redis(&[]), Some(|| go_redis(&["cluster"]))),
    ("jedis", || java("JedisCheck.java"), Some(|| java("JedisClusterCheck.java"))),
    ("lettuce", || java("LettuceCheck.java"), Some(|| java("LettuceClusterCheck.java"))),
];

/// The check for the named libraries, or for all.
pub(crate) fn check(names: &[&str]) -> Step {
    if let Some(unknown) = names.iter().find(|name| LIBRARIES.iter().all(|(n, ..)| n != *name)) {
        let known = LIBRARIES.map(|(name, ..)| name).join(", ");
        return Err(format!("'{unknown}' is no client library that is checked: {known}"));
    }
    println!("\n── Client libraries of Redis");
    let begun = Instant::now();
    let (mut prepared, mut of_clusters) = (Vec::new(), Vec::new());
    for (name, prepare, prepare_cluster) in LIBRARIES {
        if names.is_empty() || names.contains(&name) {
            let failed = |error| format!("{name}: {error}");
            prepared.push((name, prepare().map_err(failed)?));
            if let Some(prepare) = prepare_cluster {
                of_clusters.push((name, prepare().map_err(failed)?));
            }
        }
    }
    let program = program()?;
    with_one_group(&program, prepared)?;
    if !of_clusters.is_empty() {
        with_several_groups(&program, of_clusters)?;
    }
    println!("── {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

fn with_one_group(program: &Path, prepared: Vec<(&str, Vec<String>)>) -> Step {
    let mut cluster = Cluster::new("clients", program, &["--pool-size", "512MiB"])?;
    cluster.start()?;
    let ports: Vec<u16> = cluster.ports().collect();
    // Each role in the chain is killed under some library.
    for ((name, line), port) in prepared.into_iter().zip(ports.into_iter().cycle()) {
        cluster.wait_ready()?;
        run_script(&cluster, name, &line, port)?;
    }
    cluster.wait_ready()?;
    cluster.verify_same(&[])?;
    cluster.stop()
}

/// Runs the cluster clients. Each is given one door of a group and learns of the others there.
fn with_several_groups(program: &Path, prepared: Vec<(&str, Vec<String>)>) -> Step {
    let options = ["--pool-size", "256MiB"];
    let mut cluster = Cluster::of_groups("cluster-clients", program, GROUPS, &options)?;
    cluster.start()?;
    cluster.wait_ready()?;
    let doors: Vec<u16> = cluster.group_doors().concat();
    for ((name, line), door) in prepared.into_iter().zip(doors.iter().cycle()) {
        for door in &doors {
            ask(*door, &["CONFIG", "RESETSTAT"])?;
        }
        run_script(&cluster, name, &line, *door)?;
        went_direct(*door).map_err(|error| format!("{name}'s cluster client: {error}"))?;
    }
    cluster.stop()
}

fn run_script(cluster: &Cluster, name: &str, line: &[String], port: u16) -> Step {
    let mut command = Command::new("timeout");
    let ended = command.arg(PATIENCE).args(line).arg(port.to_string()).output();
    let ended = ended.map_err(|error| format!("{name}: {error}"))?;
    if !ended.status.success() {
        let said = said(&ended);
        return Err(format!("{name}: {}: {said}\n{}", ended.status, cluster.logs()));
    }
    // Some libraries also report each lost connection, on the standard error.
    print!("{}", String::from_utf8_lossy(&ended.stdout));
    Ok(())
}

/// Fails unless each group's writer got its share of the commands from clients themselves, and no
/// other replica any.
fn went_direct(door: u16) -> Step {
    let nodes = ask(door, &["CLUSTER", "NODES"])?;
    let (mut calls_of_writers, mut moved) = (Vec::new(), 0);
    for line in nodes.lines() {
        // Its number, its address as `HOST:PORT@PORT`, its flags.
        let words: Vec<&str> = line.split(' ').collect();
        let port =
            words.get(1).and_then(|it| it.split('@').next()?.rsplit(':').next()?.parse().ok());
        let port = port.ok_or_else(|| format!("CLUSTER NODES: {line}"))?;
        let calls = counted(&ask(port, &["INFO", "commandstats"])?, "cmdstat_get:calls=");
        moved += counted(&ask(port, &["INFO", "errorstats"])?, "errorstat_MOVED:count=");
        if words.get(2).is_some_and(|flags| flags.contains("master")) {
            calls_of_writers.push(calls);
        } else if calls > 0 {
            return Err(format!("{calls} GETs came to port {port}, which does not write: {nodes}"));
        }
    }
    let least = calls_of_writers.iter().sum::<u64>() / u64::from(GROUPS) * 3 / 4;
    println!("   GETs at the groups' writers: {calls_of_writers:?}; sent on with MOVED: {moved}");
    let is_even = calls_of_writers.iter().all(|calls| *calls > 0 && *calls >= least);
    if !is_even || calls_of_writers.len() != usize::from(GROUPS) {
        return Err(format!("GETs at the groups' writers: {calls_of_writers:?}: {nodes}"));
    }
    if moved > 0 { Err(format!("{moved} commands were sent on with MOVED")) } else { Ok(()) }
}

/// The number behind some words; 0 where they are not there.
fn counted(info: &str, words: &str) -> u64 {
    let rest = info.split_once(words).map_or("", |(_, rest)| rest);
    rest.split(|char: char| !char.is_ascii_digit()).next().map_or(0, |it| it.parse().unwrap_or(0))
}

/// The text that a door answers.
fn ask(port: u16, words: &[&str]) -> Result<String, String> {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    match Client::connect(port, Duration::from_secs(10))?.call(&words)? {
        Reply::Bulk(Some(text)) => Ok(String::from_utf8_lossy(&text).into_owned()),
        Reply::Simple(text) => Ok(text),
        other => Err(format!("port {port}: {other:?}")),
    }
}

/// Copies files of `xtask/clients` to a directory below cargo's target directory, where their tools
/// build.
fn place(name: &str, files: &[&str]) -> Result<PathBuf, String> {
    let directory = Path::new(&target_directory()?).join("clients").join(name);
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    for file in files {
        fs::copy(from.join(file), directory.join(file))
            .map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(directory)
}

fn line(words: &[&Path], rest: &[&str]) -> Vec<String> {
    let words = words.iter().map(|word| word.display().to_string());
    words.chain(rest.iter().map(|&word| word.to_owned())).collect()
}

pub(crate) fn redis_py(script: &str) -> Prepared {
    let directory = place("python", &[script])?;
    let python = python::environment("clients/redis-py", &[REDIS_PY])?;
    Ok(line(&[&python, &directory.join(script)], &[]))
}

pub(crate) fn node(script: &str) -> Prepared {
    need("node", "nodejs")?;
    need("npm", "npm")?;
    let directory = place("node", &[script])?;
    let quiet = ["--silent", "--no-audit", "--no-fund", "--no-package-lock", "--no-save"];
    let install = ["install", "--prefer-offline", "--prefix", "."];
    run(Command::new("npm").args(install).args(quiet).args(NODE_PACKAGES).current_dir(&directory))?;
    Ok(line(&[Path::new("node"), &directory.join(script)], &[]))
}

fn go_redis(words: &[&str]) -> Prepared {
    need("go", "golang-go")?;
    let directory = place("go", &["main.go", "cluster.go", "go.mod", "go.sum"])?;
    let built = ["build", "-mod=readonly", "-o", "go-redis", "."];
    run(Command::new("go").args(built).env("GOTOOLCHAIN", "local").current_dir(&directory))?;
    Ok(line(&[&directory.join("go-redis")], words))
}

/// Java runs a program that is one source file; Maven knows where the libraries are.
pub(crate) fn java(script: &str) -> Prepared {
    need("java", "default-jdk-headless")?;
    need("mvn", "maven")?;
    let directory = place("java", &["pom.xml", script])?;
    let classpath = directory.join("classpath");
    let goal = ["--batch-mode", "--quiet", "-Dstyle.color=never", "dependency:build-classpath"];
    let file = format!("-Dmdep.outputFile={}", classpath.display());
    run(Command::new("mvn").args(goal).arg(file).current_dir(&directory))?;
    let classpath =
        fs::read_to_string(&classpath).map_err(|error| format!("classpath: {error}"))?;
    let words = ["java", "-cp", classpath.trim()].map(Path::new);
    Ok(line(&[&words[..], &[&directory.join(script)]].concat(), &[]))
}
