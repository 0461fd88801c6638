//! Programs that know nothing of this, killed under load: their own checks pass, and all that they
//! acknowledged is there. `cargo xtask ncl` installs them and runs these.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests of a shell")]

mod common;
#[path = "programs/postgresql.rs"]
mod postgresql;
#[path = "common/postgresql.rs"]
mod postgresql_site;
#[path = "programs/rocksdb.rs"]
mod rocksdb;

use common::{Rng, Run};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often a program is killed and recovered.
fn rounds() -> u64 {
    std::env::var("GABION_NCL_KILLS").map_or(6, |text| text.parse().expect("a number"))
}

fn program(name: &str) -> PathBuf {
    let found = gabion_mirror::program::find(Path::new(name));
    found.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The program and all that it started.
fn kill(mut child: Child) {
    let group = child.id() as i32;
    // SAFETY: the group was made for this child and is not waited for yet, so it is no other's.
    assert_eq!(unsafe { libc::kill(-group, libc::SIGKILL) }, 0);
    child.wait().unwrap();
}

/// A run that ends with its owner and goes on with another, in another directory, whose only files
/// are those that are not mirrored.
fn moved(run: Run, home: &Path, root: &mut PathBuf, globs: &str, round: u64) -> Run {
    run.stop();
    let next = home.join(format!("moved-{round}"));
    common::copy_plain(root, &next);
    std::fs::remove_dir_all(&*root).unwrap();
    *root = next;
    Run::start(home, root, globs, round % 2 == 1)
}

struct Sqlite {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Sqlite {
    fn start(run: &Run, root: &Path, journal: &str) -> Self {
        let mut command = run.command(&program("sqlite3"));
        command.arg("t.db").current_dir(root).process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut sqlite = Self { child, output };
        let said = sqlite.ask(&format!("pragma journal_mode={journal};"));
        assert_eq!(said, journal);
        assert_eq!(sqlite.ask("pragma synchronous=full; pragma wal_autocheckpoint=20;"), "20");
        sqlite
    }

    fn say(&mut self, text: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{text}").unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, text: &str) -> String {
        self.say(text);
        self.line()
    }
}

fn sqlite(journal: &str) {
    let globs = "*-wal,*-journal";
    let home = common::directory(&format!("sqlite-{journal}"));
    let mut root = home.join("root");
    std::fs::create_dir_all(&root).unwrap();
    let mut run = Run::start(&home, &root, globs, false);
    let mut rng = Rng::new(7);
    let mut acknowledged = 0_u64;
    for round in 0..rounds() {
        let mut sqlite = Sqlite::start(&run, &root, journal);
        sqlite.say("create table if not exists t(a integer primary key, b text);");
        assert_eq!(sqlite.ask("pragma integrity_check;"), "ok", "round {round}");
        let found = sqlite.ask("select ifnull(max(a), 0) || ' ' || count(*) from t;");
        let (last, count) = found.split_once(' ').expect("two numbers");
        assert_eq!(last, count, "round {round}: rows are missing");
        let last: u64 = last.parse().unwrap();
        assert!(last >= acknowledged, "round {round}: {last} rows of {acknowledged} acknowledged");
        // One more may be there: committed, and its answer not read.
        acknowledged = last;
        for _ in 0..20 + rng.below(200) {
            let next = acknowledged + 1;
            let len = rng.below(6000);
            let insert = format!("insert into t values({next}, hex(zeroblob({len})));");
            assert_eq!(sqlite.ask(&format!("{insert} select {next};")), next.to_string());
            acknowledged = next;
        }
        // Amid a transaction that nobody has been told of.
        let next = acknowledged + 1;
        sqlite.say(&format!("insert into t values({next}, hex(zeroblob(100000)));"));
        std::thread::sleep(Duration::from_micros(rng.below(3000)));
        kill(sqlite.child);
        run = moved(run, &home, &mut root, globs, round);
    }
    run.stop();
    eprintln!("sqlite, {journal}: {acknowledged} commits, killed {} times", rounds());
    std::fs::remove_dir_all(home).unwrap();
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs sqlite3: cargo xtask ncl"]
fn sqlite_with_a_write_ahead_log_loses_no_commit_when_killed() {
    sqlite("wal");
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs sqlite3: cargo xtask ncl"]
fn sqlite_with_a_rollback_journal_loses_no_commit_when_killed() {
    sqlite("delete");
    sqlite("truncate");
    sqlite("persist");
}

struct Redis {
    child: Child,
    stream: BufReader<TcpStream>,
}

impl Redis {
    fn start(run: &Run, root: &Path) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port().to_string();
        drop(free);
        let mut command = run.command(&program("redis-server"));
        command.args(["--port", &port, "--appendonly", "yes", "--appendfsync", "always"]);
        command.args(["--save", "", "--dir"]).arg(root);
        let log = std::fs::File::create(root.join("log.txt")).unwrap();
        command.process_group(0).stdout(log).current_dir(root);
        let child = command.spawn().unwrap();
        let begin = Instant::now();
        let stream = loop {
            match TcpStream::connect(format!("127.0.0.1:{port}")) {
                Ok(stream) => break stream.set_nodelay(true).map(|()| stream).unwrap(),
                Err(error) => {
                    let log = std::fs::read_to_string(root.join("log.txt")).unwrap();
                    assert!(begin.elapsed() < Duration::from_secs(30), "{error}\n{log}");
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        };
        let mut redis = Self { child, stream: BufReader::new(stream) };
        while redis.ask("PING") != "+PONG" {
            assert!(begin.elapsed() < Duration::from_secs(30), "it loads for ever");
        }
        redis
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, command: &str) -> String {
        self.stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let first = self.line();
        match first.strip_prefix('$').map(|len| len.parse::<usize>()) {
            Some(Ok(len)) => {
                let mut bytes = vec![0; len + 2];
                self.stream.read_exact(&mut bytes).unwrap();
                String::from_utf8_lossy(&bytes[..len]).into_owned()
            }
            _ => first,
        }
    }
}

fn check_aof(run: &Run, root: &Path) {
    let mut command: Command = run.command(&program("redis-check-aof"));
    command.arg("appendonlydir/appendonly.aof.manifest").current_dir(root);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    // The tail of a command that nobody was told of may be cut.
    let fine = said.contains("is valid") || said.contains("--fix");
    assert!(fine, "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs redis-server: cargo xtask ncl"]
fn redis_that_syncs_always_loses_nothing_when_killed_amid_rewrites() {
    // The child's file has a name that matches until it is renamed to one that does not.
    let globs = "*.aof,*.manifest";
    let home = common::directory("redis");
    let mut root = home.join("root");
    std::fs::create_dir_all(&root).unwrap();
    let mut run = Run::start(&home, &root, globs, false);
    let (mut rng, mut acknowledged) = (Rng::new(11), 0);
    for round in 0..rounds() {
        let mut redis = Redis::start(&run, &root);
        let found = redis.ask("GET last");
        let last = found.parse::<u64>().unwrap_or(0);
        assert!(last >= acknowledged, "round {round}: {last} of {acknowledged} acknowledged");
        for number in 1..=last {
            assert_eq!(redis.ask(&format!("GET key:{number}")), number.to_string());
        }
        acknowledged = last;
        let count = 300 + rng.below(1000);
        let rewritten = rng.below(count);
        for step in 0..count {
            if step == rewritten || step == rewritten / 2 {
                redis.ask("BGREWRITEAOF");
            }
            let next = acknowledged + 1;
            assert_eq!(redis.ask(&format!("MSET key:{next} {next} last {next}")), "+OK");
            acknowledged = next;
        }
        let next = acknowledged + 1;
        write!(redis.stream.get_mut(), "MSET key:{next} {next} last {next}\r\n").unwrap();
        std::thread::sleep(Duration::from_micros(rng.below(500)));
        kill(redis.child);
        run = moved(run, &home, &mut root, globs, round);
        check_aof(&run, &root);
    }
    run.stop();
    eprintln!("redis: {acknowledged} writes, killed {} times", rounds());
    std::fs::remove_dir_all(home).unwrap();
}

/// System calls that a program makes by itself or that the interposer makes for it.
const CALLS: [&str; 16] = [
    "write",
    "pwrite64",
    "ftruncate",
    "fdatasync",
    "unlinkat",
    "openat",
    "close",
    "lseek",
    "fcntl",
    "newfstatat",
    "rt_sigprocmask",
    "futex",
    "connect",
    "sendto",
    "recvfrom",
    "recvmsg",
];

/// sqlite3 that is killed as it enters a call for that many times: the commits that it told of, and
/// whether it came to its end, as it made fewer such calls.
fn killed_at(run: &Run, root: &Path, journal: &str, (call, number): (&str, u64)) -> (u64, bool) {
    let traced = run.command(&program("sqlite3"));
    let mut command = Command::new(program("strace"));
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}")]);
    command.args(["-e", &format!("inject={call}:signal=SIGKILL:when={number}")]);
    for (name, value) in traced.get_envs() {
        let value = value.expect("nothing is taken away").to_str().expect("text");
        command.arg("-E").arg(format!("{}={value}", name.to_str().expect("text")));
    }
    command.arg(traced.get_program()).arg("t.db").current_dir(root);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut text = format!("pragma journal_mode={journal}; pragma synchronous=full;\n");
    text.push_str("create table if not exists t(a integer primary key, b text);\n");
    for row in 1..=ROWS {
        let insert = format!("insert into t values({row}, hex(zeroblob({})));", row * 700);
        text.push_str(&format!("{insert}\nselect 'row', {row};\n"));
    }
    // It may be gone before it has read all of them.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = said.lines().filter_map(|line| line.strip_prefix("row|")?.parse().ok()).max();
    (told.unwrap_or(0), output.status.success())
}

/// Kills once and recovers elsewhere; whether the program came to its end.
fn kill_and_recover(journal: &str, at: (&str, u64)) -> bool {
    let globs = "*-wal,*-journal";
    let home = common::directory(&format!("calls-{journal}"));
    let mut root = home.join("root");
    std::fs::create_dir_all(&root).unwrap();
    let run = Run::start(&home, &root, globs, false);
    let (told, ended) = killed_at(&run, &root, journal, at);
    let run = moved(run, &home, &mut root, globs, at.1);
    let mut command = run.command(&program("sqlite3"));
    command.arg("t.db").current_dir(&root);
    command.arg("pragma integrity_check; select count(*), ifnull(max(a), 0) from t;");
    let said = String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned();
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("ok"), "{journal}, killed at {at:?}: {said}");
    // Without a table there was no commit.
    let rows = lines.next().and_then(|line| line.split_once('|')).unwrap_or(("0", "0"));
    let (count, last) = (rows.0.parse::<u64>().unwrap(), rows.1.parse::<u64>().unwrap());
    assert!(count == last && last >= told, "{journal}, {at:?}: {told} told, {said}");
    assert!(!ended || last == ROWS, "{journal}: it came to its end");
    run.stop();
    std::fs::remove_dir_all(home).unwrap();
    ended
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs sqlite3 and strace: cargo xtask ncl"]
fn sqlite_that_is_killed_at_any_of_its_calls_loses_no_commit() {
    for journal in ["wal", "delete"] {
        let (mut points, mut rng) = (0, Rng::new(3));
        for call in CALLS {
            let mut number = 1 + rng.below(5);
            while !kill_and_recover(journal, (call, number)) {
                points += 1;
                number += 1 + rng.below(2 * CALLS_STEP / rounds());
            }
        }
        assert!(points > 30, "{journal}: {points} places are few");
        eprintln!("sqlite, {journal}: killed at {points} calls");
    }
}

/// Commits of a program that is killed at one of its calls.
const ROWS: u64 = 12;

/// Calls of a kind between two places, when programs are killed once.
const CALLS_STEP: u64 = 120;
