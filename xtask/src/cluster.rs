//! A real cluster for a check: `gabion up` with its processes, ports and directory, and a client
//! with just enough RESP. However the check ends, no process and no directory stays.

use crate::steps::{Step, target_directory};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) const REPLICAS: u16 = 3;
/// Ports of each of several groups.
const GROUP_PORTS: u16 = 400;
/// How long the group may take to be ready.
const READY_MAX: Duration = Duration::from_secs(60);
/// How long processes may take to end after the order to.
const STOP_MAX: Duration = Duration::from_secs(20);
/// How long the replicas may take to have nothing left to flush, compact or ship.
const QUIET_MAX: Duration = Duration::from_secs(60);
/// How long nothing may change for the group to count as quiet.
const QUIET_FOR: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// The program under test: the one in `GABION_BIN`, or a release build.
pub(crate) fn program() -> Result<PathBuf, String> {
    if let Ok(path) = std::env::var("GABION_BIN") {
        return Ok(PathBuf::from(path));
    }
    run(Command::new("cargo").args(["build", "--release", "-p", "gabion"]))?;
    Ok(Path::new(&target_directory()?).join("release/gabion"))
}

/// A directory of a check under cargo's target directory, empty.
pub(crate) fn scratch(name: &str) -> Result<PathBuf, String> {
    let name = format!("checks/{name}-{}", std::process::id());
    let dir = Path::new(&target_directory()?).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir)
}

/// Checks that there is space where a check's directory is made; `what` names the check.
pub(crate) fn need_space(what: &str, needed: u64) -> Step {
    let dir = target_directory()?;
    is_room(what, &dir, needed, free_space(Path::new(&dir))?)
}

/// Bytes that are free in a directory's file system.
pub(crate) fn free_space(dir: &Path) -> Result<u64, String> {
    let said = output(Command::new("df").args(["-B1", "--output=avail"]).arg(dir))?;
    let free = said.lines().last().and_then(|line| line.trim().parse().ok());
    free.ok_or_else(|| format!("df {}: {said}", dir.display()))
}

fn is_room(what: &str, dir: &str, needed: u64, free: u64) -> Step {
    if free >= needed {
        return Ok(());
    }
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    Err(format!(
        "{what} needs {:.1} GiB under {dir}, {:.1} GiB are free (CARGO_TARGET_DIR names another place)",
        gib(needed),
        gib(free)
    ))
}

/// Runs a program to its end, its output shown; an exit code other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> Step {
    let line = line_of(command);
    println!("── {line}");
    let status = command.status().map_err(|error| format!("{line}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{line}: {status}")) }
}

/// Runs a program to its end and returns its output; an exit code other than 0 is an error.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let line = line_of(command);
    let output = command.output().map_err(|error| format!("{line}: {error}"))?;
    let text = said(&output);
    if output.status.success() {
        Ok(text)
    } else {
        Err(format!("{line}: {}: {text}", output.status))
    }
}

pub(crate) fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

fn line_of(command: &Command) -> String {
    let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
    format!("{} {}", command.get_program().to_string_lossy(), args.join(" "))
}

/// Checks that a program is there: installs its package if it is missing.
pub(crate) fn need(program: &str, package: &str) -> Step {
    let is_there = || Command::new("which").arg(program).output().is_ok_and(|o| o.status.success());
    need_what(program, package, &is_there)
}

/// The same for anything that a package brings.
pub(crate) fn need_what(what: &str, package: &str, is_there: &dyn Fn() -> bool) -> Step {
    if is_there() {
        return Ok(());
    }
    let apt = |args: &[&str]| {
        run(Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(args))
    };
    apt(&["update", "-qq"])
        .and_then(|()| apt(&["install", "-y", "-qq", "--no-install-recommends", package]))
        .map_err(|error| format!("{what} is needed and {package} was not installed: {error}"))?;
    if is_there() { Ok(()) } else { Err(format!("{package} is installed, {what} is missing")) }
}

/// A cluster on free ports, with its data in a directory of its own.
pub(crate) struct Cluster {
    program: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) port: u16,
    groups: u16,
    options: Vec<String>,
    up: Option<Child>,
}

impl Cluster {
    /// A cluster that is not started yet. `options` are those of `gabion up`.
    pub(crate) fn new(name: &str, program: &Path, options: &[&str]) -> Result<Self, String> {
        Self::of_groups(name, program, 1, options)
    }

    /// The same over several groups.
    pub(crate) fn of_groups(
        name: &str,
        program: &Path,
        groups: u16,
        options: &[&str],
    ) -> Result<Self, String> {
        let mut options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        if groups > 1 {
            options.extend(["--groups".to_owned(), groups.to_string()]);
        }
        let port = free_ports(groups)?;
        let program = program.to_owned();
        Ok(Self { program, dir: scratch(name)?, port, groups, options, up: None })
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// The ports that a client may use.
    pub(crate) fn ports(&self) -> impl Iterator<Item = u16> {
        self.port..self.port + REPLICAS
    }

    /// The doors of each of several groups.
    pub(crate) fn group_doors(&self) -> Vec<Vec<u16>> {
        let doors = |group| {
            let first = first_door(self.port, group);
            (first..first + REPLICAS).collect()
        };
        (0..self.groups).map(doors).collect()
    }

    /// Starts `gabion up`, without waiting.
    pub(crate) fn start(&mut self) -> Step {
        let log = self.dir.join("up.log");
        let log = File::options().create(true).append(true).open(&log);
        let log = log.map_err(|error| format!("up.log: {error}"))?;
        let errors = log.try_clone().map_err(|error| format!("up.log: {error}"))?;
        let child = Command::new(&self.program)
            .arg("up")
            .arg("--data")
            .arg(self.data())
            .args(["--port", &self.port.to_string()])
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("{}: {error}", self.program.display()))?;
        self.up = Some(child);
        Ok(())
    }

    /// Waits until every replica says that it is ready, as a member of the group.
    pub(crate) fn wait_ready(&mut self) -> Result<Vec<Value>, String> {
        let begun = Instant::now();
        loop {
            let status: Vec<_> = (1..=REPLICAS).map(|replica| self.status(replica)).collect();
            let is_back = |s: &Value| s["ready"] == true && s["membership"] != "none";
            if status.iter().all(|status| status.as_ref().is_ok_and(is_back)) {
                return status.into_iter().collect();
            }
            let ended = self.up.as_mut().and_then(|up| up.try_wait().ok().flatten());
            if ended.is_some() || begun.elapsed() > READY_MAX {
                let why = match ended {
                    Some(status) => format!("`gabion up` ended: {status}"),
                    None => format!("not ready after {} s", READY_MAX.as_secs()),
                };
                let said: Vec<String> = status
                    .into_iter()
                    .map(|s| match s {
                        Ok(status) => format!("ready {}, {}", status["ready"], status["reason"]),
                        Err(error) => error,
                    })
                    .collect();
                return Err(format!("{why}: {}\n{}", said.join("; "), self.logs()));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The end of the output of `up` and the replicas.
    pub(crate) fn logs(&self) -> String {
        let mut logs = vec![self.dir.join("up.log")];
        logs.extend((1..=REPLICAS).map(|n| self.data().join(format!("replica-{n}/log"))));
        let tail = |path: &PathBuf| {
            let text = std::fs::read(path).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            format!(
                "── {}\n{}\n",
                path.display(),
                lines[lines.len().saturating_sub(20)..].join("\n")
            )
        };
        logs.iter().map(tail).collect()
    }

    /// The status of a replica, counted from 1.
    pub(crate) fn status(&self, replica: u16) -> Result<Value, String> {
        self.ask(replica, "STATUS")
    }

    pub(crate) fn ask(&self, replica: u16, question: &str) -> Result<Value, String> {
        let mut client = Client::connect(self.port + replica - 1, Duration::from_secs(10))?;
        match client.call(&[b"GABION", question.as_bytes()])? {
            Reply::Bulk(Some(json)) => serde_json::from_slice(&json)
                .map_err(|error| format!("GABION {question} of replica {replica}: {error}")),
            other => Err(format!("GABION {question} of replica {replica}: {other:?}")),
        }
    }

    /// Waits until nothing is flushed, compacted, shipped or applied any more. Returns the last
    /// status.
    pub(crate) fn wait_quiet(&mut self) -> Result<Vec<Value>, String> {
        let begun = Instant::now();
        let (mut last, mut since) = (String::new(), Instant::now());
        loop {
            let status = self.wait_ready()?;
            let live = &status[0]["live_bytes"];
            let is_same = status
                .iter()
                .all(|s| s["live_bytes"] == *live && s["log"]["end"] == status[0]["log"]["end"]);
            let now: String = status
                .iter()
                .map(|s| format!("{} {} {}", s["levels"], s["counters"], s["memtable"]))
                .collect();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            if is_same && since.elapsed() > QUIET_FOR {
                return Ok(status);
            }
            if begun.elapsed() > QUIET_MAX {
                return Err(format!("not quiet after {} s: {last}", QUIET_MAX.as_secs()));
            }
            std::thread::sleep(PAUSE * 2);
        }
    }

    /// Process ids of the replicas that run.
    pub(crate) fn replica_pids(&self) -> Vec<u32> {
        self.up.as_ref().map_or(Vec::new(), |up| children(up.id()))
    }

    /// `kill -9` of some replicas (their process ids), or of all and `up` itself.
    pub(crate) fn kill(&mut self, pids: &[u32], with_up: bool) -> Step {
        if with_up && let Some(mut up) = self.up.take() {
            // While it is stopped, it starts no replica that nobody would wait for and that would
            // hold ports and data.
            signal("-STOP", &[up.id()]);
            let mut all = children(up.id());
            all.extend(pids);
            signal("-9", &all);
            up.kill().and_then(|()| up.wait()).map_err(|error| format!("gabion up: {error}"))?;
            return wait_gone(&all);
        }
        signal("-9", pids);
        Ok(())
    }

    /// Stops the cluster as Ctrl-C does.
    pub(crate) fn stop(&mut self) -> Step {
        let Some(up) = &mut self.up else { return Ok(()) };
        let pids = children(up.id());
        let _ = Command::new("kill").args(["-INT", &up.id().to_string()]).status();
        let begun = Instant::now();
        while up.try_wait().map_err(|error| format!("gabion up: {error}"))?.is_none() {
            if begun.elapsed() > STOP_MAX {
                return Err("`gabion up` does not end after SIGINT".into());
            }
            std::thread::sleep(PAUSE);
        }
        self.up = None;
        wait_gone(&pids)
    }

    /// `gabion verify`. Returns its exit code and output.
    pub(crate) fn verify(&self, options: &[&str]) -> Result<(i32, String), String> {
        let mut command = Command::new(&self.program);
        command.arg("verify").arg("--data").arg(self.data()).args(options);
        let output = command.output().map_err(|error| format!("gabion verify: {error}"))?;
        Ok((output.status.code().unwrap_or(-1), said(&output)))
    }

    /// Fails unless `gabion verify` finds every replica the same.
    pub(crate) fn verify_same(&self, options: &[&str]) -> Step {
        let (code, said) = self.verify(options)?;
        print!("{said}");
        if code == 0 { Ok(()) } else { Err(format!("`gabion verify` ended with {code}: {said}")) }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut up) = self.up.take() {
            let pids: Vec<String> = children(up.id()).iter().map(u32::to_string).collect();
            let _ = up.kill();
            let _ = up.wait();
            let _ = Command::new("kill").arg("-9").args(&pids).stderr(Stdio::null()).status();
        }
        if std::env::var_os("GABION_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.dir);
        } else {
            println!("kept: {}", self.dir.display());
        }
    }
}

/// Sends a signal to processes. A process that has ended by itself is no error.
fn signal(signal: &str, pids: &[u32]) {
    let pids = pids.iter().map(u32::to_string);
    let _ = Command::new("kill").arg(signal).args(pids).stderr(Stdio::null()).status();
}

/// The children of a process.
fn children(parent: u32) -> Vec<u32> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let ids = processes.flatten().filter_map(|p| p.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |id: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // After the name in parentheses: state, then the parent.
        let mut words = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
        words.next() != Some("Z") && words.next() == Some(&parent.to_string())
    };
    ids.filter(is_child).collect()
}

fn wait_gone(pids: &[u32]) -> Step {
    let begun = Instant::now();
    for pid in pids {
        while Path::new(&format!("/proc/{pid}")).exists() {
            if begun.elapsed() > STOP_MAX {
                return Err(format!("process {pid} is left"));
            }
            std::thread::sleep(PAUSE / 5);
        }
    }
    Ok(())
}

/// The first door of a group, counted from 0, where there are several: those of the first group lie
/// beside the common ones.
const fn first_door(port: u16, group: u16) -> u16 {
    if group == 0 { port + 50 } else { port + group * GROUP_PORTS }
}

/// The first of enough free ports for a cluster.
fn free_ports(groups: u16) -> Result<u16, String> {
    let first = 20_000 + (std::process::id() % 100) as u16 * 100;
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let of_group = [0, 1, 2, 50, 51, 52, 100, 101, 102, 200, 201, 202];
    let all_free = |port: &u16| {
        (0..groups)
            .all(|group| of_group.iter().all(|above| free(port + group * GROUP_PORTS + above)))
    };
    (first..first + 100)
        .step_by(4)
        .find(all_free)
        .ok_or_else(|| format!("no free ports from {first} on"))
}

/// A reply in RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

/// A connection to a replica's door.
pub(crate) struct Client {
    input: BufReader<TcpStream>,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(port: u16, patience: Duration) -> Result<Self, String> {
        Self::connect_to(([127, 0, 0, 1], port).into(), patience)
    }

    pub(crate) fn connect_to(door: SocketAddr, patience: Duration) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{door}: {error}");
        let stream = TcpStream::connect_timeout(&door, patience).map_err(failed)?;
        stream.set_read_timeout(Some(patience)).map_err(failed)?;
        stream.set_write_timeout(Some(patience)).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(Self { input: BufReader::with_capacity(1 << 16, stream), buffer: Vec::new() })
    }

    /// Adds a command to the next [`Self::flush`].
    pub(crate) fn push(&mut self, words: &[&[u8]]) {
        self.buffer.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            self.buffer.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            self.buffer.extend_from_slice(word);
            self.buffer.extend_from_slice(b"\r\n");
        }
    }

    pub(crate) fn flush(&mut self) -> Step {
        let sent = self.input.get_mut().write_all(&self.buffer);
        self.buffer.clear();
        sent.map_err(|error| format!("send: {error}"))
    }

    pub(crate) fn reply(&mut self) -> Result<Reply, String> {
        let mut line = String::new();
        let read = self.input.read_line(&mut line).map_err(|error| format!("reply: {error}"))?;
        let line = line.trim_end();
        if read == 0 || line.is_empty() {
            return Err("reply: the connection ended".into());
        }
        let number = || line[1..].parse::<i64>().map_err(|_| format!("reply: '{line}'"));
        match line.as_bytes()[0] {
            b'+' => Ok(Reply::Simple(line[1..].to_owned())),
            b'-' => Ok(Reply::Error(line[1..].to_owned())),
            b':' => Ok(Reply::Int(number()?)),
            b'$' => match number()? {
                -1 => Ok(Reply::Bulk(None)),
                len => {
                    let mut bytes = vec![0; len as usize + 2];
                    let read = self.input.read_exact(&mut bytes);
                    read.map_err(|error| format!("reply: {error}"))?;
                    bytes.truncate(len as usize);
                    Ok(Reply::Bulk(Some(bytes)))
                }
            },
            b'*' => {
                (0..number()?).map(|_| self.reply()).collect::<Result<_, _>>().map(Reply::Array)
            }
            _ => Err(format!("reply: '{line}'")),
        }
    }

    pub(crate) fn call(&mut self, words: &[&[u8]]) -> Result<Reply, String> {
        self.push(words);
        self.flush()?;
        self.reply()
    }
}

/// Writes `count` keys `prefix0`… with the values of [`value_of`], pipelined; every reply must be
/// OK.
pub(crate) fn load(port: u16, prefix: &str, count: u64, value_len: usize) -> Step {
    let mut client = Client::connect(port, Duration::from_secs(30))?;
    let mut next = 0;
    while next < count {
        let until = count.min(next + 128);
        for n in next..until {
            let key = format!("{prefix}{n}");
            client.push(&[b"SET", key.as_bytes(), &value_of(&key, value_len)]);
        }
        client.flush()?;
        for n in next..until {
            match client.reply()? {
                Reply::Simple(ok) if ok == "OK" => {}
                other => return Err(format!("SET {prefix}{n}: {other:?}")),
            }
        }
        next = until;
    }
    Ok(())
}

/// A value that follows from its key: letters that hardly repeat.
pub(crate) fn value_of(key: &str, len: usize) -> Vec<u8> {
    let mut random = Random(key.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    }));
    (0..len).map(|_| b'a' + (random.next() >> 32) as u8 % 26).collect()
}

/// SplitMix64: the seed decides everything.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A counter of a status.
pub(crate) fn counter(status: &Value, name: &str) -> u64 {
    status["counters"][name].as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_without_room_is_refused_in_one_line_with_place_needed_and_free() {
        assert_eq!(is_room("shipping", "/target", 5 << 30, 5 << 30), Ok(()));
        let refused = is_room("shipping", "/target", 23 << 30, (9 << 30) + (1 << 29));
        let line = "shipping needs 23.0 GiB under /target, 9.5 GiB are free \
                    (CARGO_TARGET_DIR names another place)";
        assert_eq!(refused, Err(line.to_owned()));
        need_space("nothing", 0).unwrap();
        assert!(
            need_space("all there is", u64::MAX).unwrap_err().starts_with("all there is needs")
        );
    }
}
