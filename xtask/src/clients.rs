//! Client libraries of Redis in their own languages, with their defaults, against a real cluster:
//! each connects, pipelines, transacts, scans, locks, and goes on after its node was killed and
//! came back.
//!
//! Each has one script in `xtask/clients`. It gets a port and ends with 0 or prints the failure.
//! The script kills the node itself, by the `process_id` of INFO; `gabion up` starts it again.

use crate::cluster::{Cluster, need, program, run, said};
use crate::python;
use crate::steps::{Step, target_directory};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Packages of the two libraries of Node.js, in exact versions; those of the others stand in their
/// own files.
const NODE_PACKAGES: [&str; 2] = ["ioredis@6.0.0", "redis@6.3.1"];
const REDIS_PY: &str = "redis==8.1.0";
/// Seconds that a script may take; a node is back within a few.
const PATIENCE: &str = "120";

/// A library: its name, and the command that runs its prepared (installed, built) script.
type Library = (&'static str, fn() -> Result<Command, String>);

const LIBRARIES: [Library; 6] = [
    ("redis-py", redis_py),
    ("ioredis", || node("ioredis.mjs")),
    ("node-redis", || node("node-redis.mjs")),
    ("go-redis", go_redis),
    ("jedis", || java("JedisCheck.java")),
    ("lettuce", || java("LettuceCheck.java")),
];

/// The check for the named libraries, or for all.
pub(crate) fn check(names: &[&str]) -> Step {
    if let Some(unknown) = names.iter().find(|name| LIBRARIES.iter().all(|(n, _)| n != *name)) {
        let known = LIBRARIES.map(|(name, _)| name).join(", ");
        return Err(format!("'{unknown}' is no client library that is checked: {known}"));
    }
    println!("\n── Client libraries of Redis");
    let begun = Instant::now();
    let mut prepared = Vec::new();
    for (name, prepare) in LIBRARIES {
        if names.is_empty() || names.contains(&name) {
            prepared.push((name, prepare().map_err(|error| format!("{name}: {error}"))?));
        }
    }
    let mut cluster = Cluster::new("clients", &program()?, &["--pool-size", "512MiB"])?;
    cluster.start()?;
    let ports: Vec<u16> = cluster.ports().collect();
    // Each role in the chain is killed under some library.
    for ((name, mut command), port) in prepared.into_iter().zip(ports.into_iter().cycle()) {
        cluster.wait_ready()?;
        let ended = command.arg(port.to_string()).output();
        let ended = ended.map_err(|error| format!("{name}: {error}"))?;
        if !ended.status.success() {
            let said = said(&ended);
            return Err(format!("{name}: {}: {said}\n{}", ended.status, cluster.logs()));
        }
        // Some libraries also report each lost connection, on the standard error.
        print!("{}", String::from_utf8_lossy(&ended.stdout));
    }
    cluster.wait_ready()?;
    cluster.verify_same(&[])?;
    println!("── {:.0} s", begun.elapsed().as_secs_f64());
    cluster.stop()
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

/// A command with a time limit.
fn patient(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new("timeout");
    command.arg(PATIENCE).arg(program.as_ref());
    command
}

fn redis_py() -> Result<Command, String> {
    let directory = place("python", &["redis_py.py"])?;
    let mut command = patient(python::environment("clients/redis-py", &[REDIS_PY])?);
    command.arg(directory.join("redis_py.py"));
    Ok(command)
}

fn node(script: &str) -> Result<Command, String> {
    need("node", "nodejs")?;
    need("npm", "npm")?;
    let directory = place("node", &[script])?;
    let quiet = ["--silent", "--no-audit", "--no-fund", "--no-package-lock", "--no-save"];
    let install = ["install", "--prefer-offline", "--prefix", "."];
    run(Command::new("npm").args(install).args(quiet).args(NODE_PACKAGES).current_dir(&directory))?;
    let mut command = patient("node");
    command.arg(directory.join(script));
    Ok(command)
}

fn go_redis() -> Result<Command, String> {
    need("go", "golang-go")?;
    let directory = place("go", &["main.go", "go.mod", "go.sum"])?;
    let built = ["build", "-mod=readonly", "-o", "go-redis", "."];
    run(Command::new("go").args(built).env("GOTOOLCHAIN", "local").current_dir(&directory))?;
    Ok(patient(directory.join("go-redis")))
}

/// Java runs a program that is one source file; Maven knows where the libraries are.
fn java(script: &str) -> Result<Command, String> {
    need("java", "default-jdk-headless")?;
    need("mvn", "maven")?;
    let directory = place("java", &["pom.xml", script])?;
    let classpath = directory.join("classpath");
    let goal = ["--batch-mode", "--quiet", "-Dstyle.color=never", "dependency:build-classpath"];
    let file = format!("-Dmdep.outputFile={}", classpath.display());
    run(Command::new("mvn").args(goal).arg(file).current_dir(&directory))?;
    let classpath =
        fs::read_to_string(&classpath).map_err(|error| format!("classpath: {error}"))?;
    let mut command = patient("java");
    command.args(["-cp", classpath.trim()]).arg(directory.join(script));
    Ok(command)
}
