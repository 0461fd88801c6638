//! Redis's own programs and its Python library, unmodified, against a real cluster.

use crate::cluster::{Cluster, need, output, program, run};
use crate::python;
use crate::steps::Step;
use std::io::Write;
use std::process::{Command, Stdio};

const REDIS_PY: &str = "redis==6.4.0";
const SCRIPT: &str = include_str!("redis.py");
/// Requests of a run of redis-benchmark; a multiple of its pipeline, so that it sends as many.
const REQUESTS: u64 = 16 * 1250;
/// Commands given to redis-cli's pipe mode.
const PIPED: usize = 20_000;

/// The check.
pub(crate) fn check() -> Step {
    println!("\n── Redis: redis-benchmark, redis-cli and redis-py");
    need("redis-benchmark", "redis-tools")?;
    need("redis-cli", "redis-tools")?;
    let python = python::environment("redis-py", &[REDIS_PY])?;
    let mut cluster = Cluster::new("redis", &program()?, &["--pool-size", "512MiB"])?;
    cluster.start()?;
    cluster.wait_ready()?;
    let checked = benchmark(&cluster).and_then(|()| cli(&cluster)).and_then(|()| {
        let ports = cluster.ports().map(|port| port.to_string());
        let script = cluster.dir.join("check.py");
        std::fs::write(&script, SCRIPT).map_err(|error| format!("check.py: {error}"))?;
        run(Command::new("timeout").arg("120").arg(&python).arg(&script).args(ports))
    });
    checked.map_err(|error| format!("{error}\n{}", cluster.logs()))?;
    cluster.verify_same(&[])?;
    cluster.stop()
}

/// redis-benchmark; afterwards the counter must equal its count.
fn benchmark(cluster: &Cluster) -> Step {
    let mut increments = 0;
    for port in cluster.ports() {
        for depth in ["1", "16"] {
            let requests = REQUESTS.to_string();
            let said = output(
                Command::new("timeout")
                    .args(["120", "redis-benchmark", "-p", &port.to_string()])
                    .args(["-t", "set,get,incr,mset", "-n", &requests, "-P", depth, "--csv"]),
            )?;
            for test in ["\"SET\"", "\"GET\"", "\"INCR\"", "\"MSET (10 keys)\""] {
                if !said.contains(test) {
                    return Err(format!(
                        "redis-benchmark -P {depth} says nothing of {test}: {said}"
                    ));
                }
            }
            if said.to_lowercase().contains("error") {
                return Err(format!("redis-benchmark -P {depth}: {said}"));
            }
            increments += REQUESTS;
            let found = redis_cli(port, &["GET", "counter:__rand_int__"])?;
            if found != increments.to_string() {
                return Err(format!("the counter is {found} after {increments} times INCR"));
            }
        }
        println!("redis-benchmark on port {port}: set, get, incr, mset; depths 1 and 16");
    }
    let len = redis_cli(cluster.port, &["STRLEN", "key:__rand_int__"])?;
    if len == "3" { Ok(()) } else { Err(format!("redis-benchmark's value has {len} bytes, not 3")) }
}

fn redis_cli(port: u16, words: &[&str]) -> Result<String, String> {
    let mut command = Command::new("timeout");
    command.args(["30", "redis-cli", "-p", &port.to_string()]).args(words);
    output(&mut command).map(|said| said.trim_end().to_owned())
}

/// redis-cli: single commands in both protocols, `--scan`, INFO, errors, and the pipe mode.
fn cli(cluster: &Cluster) -> Step {
    for port in cluster.ports() {
        let key = format!("cli:{port}");
        let cases: &[(&[&str], &str)] = &[
            (&["PING"], "PONG"),
            (&["SET", &key, "a value"], "OK"),
            (&["GET", &key], "a value"),
            (&["-3", "GET", &key], "a value"),
            (&["-3", "SET", &key, "5"], "OK"),
            (&["-3", "INCRBY", &key, "37"], "42"),
            (&["MSET", "cli:x", "1", "cli:y", "2"], "OK"),
            (&["MGET", "cli:x", "cli:y", "cli:none"], "1\n2"),
            (&["EXISTS", &key, "cli:none"], "1"),
            (&["TYPE", &key], "string"),
            (&["DEL", "cli:x", "cli:y", "cli:none"], "2"),
            (&["LPUSH", &key, "1"], "ERR unknown command 'LPUSH'"),
        ];
        for (words, expected) in cases {
            let found = redis_cli(port, words)?;
            if found != *expected && !(expected.starts_with("ERR") && found.starts_with(expected)) {
                return Err(format!("redis-cli {words:?} on {port}: '{found}', not '{expected}'"));
            }
        }
        let hello = redis_cli(port, &["-3", "HELLO"])?;
        let info = redis_cli(port, &["INFO"])?;
        if !hello.contains("proto 3") && !hello.contains("proto\n3") {
            return Err(format!("redis-cli -3 HELLO: {hello}"));
        }
        for part in ["redis_version:", &format!("tcp_port:{port}"), "# Replication", "role:"] {
            if !info.contains(part) {
                return Err(format!("INFO of port {port} lacks '{part}': {info}"));
            }
        }
        pipe(port)?;
        println!("redis-cli on port {port}: commands, -3, INFO, --pipe, --scan");
    }
    Ok(())
}

/// Many commands at once through `redis-cli --pipe`, found again by `--scan`.
fn pipe(port: u16) -> Step {
    let mut input = Vec::new();
    for n in 0..PIPED {
        let key = format!("pipe:{port}:{n:06}");
        let (key_len, value) = (key.len(), format!("{n:06}"));
        input.extend_from_slice(
            format!("*3\r\n$3\r\nSET\r\n${key_len}\r\n{key}\r\n$6\r\n{value}\r\n").as_bytes(),
        );
    }
    let failed = |error: std::io::Error| format!("redis-cli --pipe: {error}");
    let mut child = Command::new("timeout")
        .args(["60", "redis-cli", "-p", &port.to_string(), "--pipe"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // Dropped at the end of the statement: the end of its input.
    child.stdin.take().ok_or("redis-cli --pipe: no input")?.write_all(&input).map_err(failed)?;
    let said = crate::cluster::said(&child.wait_with_output().map_err(failed)?);
    if !said.contains(&format!("errors: 0, replies: {PIPED}")) {
        return Err(format!("redis-cli --pipe on port {port}: {said}"));
    }
    let pattern = format!("pipe:{port}:*");
    let found = redis_cli(port, &["--scan", "--pattern", &pattern])?;
    let mut keys: Vec<&str> = found.lines().collect();
    keys.sort_unstable();
    keys.dedup();
    if keys.len() != PIPED || keys.first() != Some(&format!("pipe:{port}:000000").as_str()) {
        return Err(format!("redis-cli --scan finds {} of {PIPED} keys", keys.len()));
    }
    let last = redis_cli(port, &["GET", &format!("pipe:{port}:{:06}", PIPED - 1)])?;
    if last == format!("{:06}", PIPED - 1) { Ok(()) } else { Err(format!("GET: '{last}'")) }
}
