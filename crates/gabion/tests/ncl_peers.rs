//! Programs whose log files lie at log peers: all of them are processes, which are killed.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test with real processes")]

#[path = "ncl_peers/bench.rs"]
mod bench;
#[path = "ncl_peers/certificates.rs"]
mod certificates;
#[path = "ncl_peers/demo.rs"]
mod demo;
#[path = "ncl_peers/files.rs"]
mod files;
#[path = "ncl_peers/memory.rs"]
mod memory;
#[path = "ncl_peers/metrics.rs"]
mod metrics;
#[path = "ncl_peers/postgresql.rs"]
mod postgresql;
#[path = "ncl_peers/rocksdb.rs"]
mod rocksdb;
#[path = "support/scrape.rs"]
mod scrape;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const GABION: &str = env!("CARGO_BIN_EXE_gabion");
const PATIENCE: Duration = Duration::from_secs(30);
const GLOBS: &str = "*.log,*-journal,*-wal,*.aof,*.manifest";

/// A process that is killed with this.
struct Process {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Process {
    fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Its lines up to one that has this word.
    fn until(&mut self, word: &str) {
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "it ended before '{word}'");
            if line.contains(word) {
                return;
            }
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// It and all that it started, as if the machine had died.
    fn kill(&mut self) {
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A controller, peers and a directory.
struct House {
    dir: PathBuf,
    controller: Process,
    peers: Vec<(String, Process)>,
    token: Option<PathBuf>,
}

impl Drop for House {
    fn drop(&mut self) {
        self.peers.clear();
        self.controller.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl House {
    fn new(peers: usize) -> Self {
        Self::with_token(peers, None)
    }

    fn with_token(peers: usize, token: Option<&str>) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Short, as it holds sockets.
        let dir = std::env::temp_dir().join(format!("gabion-house-{}-{count}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let token = token.map(|token| {
            let path = dir.join("token");
            std::fs::write(&path, token).unwrap();
            path
        });
        let controller = Self::controller(&dir, token.as_deref(), &[]);
        let mut house = Self { dir, controller, peers: Vec::new(), token };
        for index in 0..peers {
            house.add_peer(index);
        }
        house
    }

    fn controller(dir: &Path, token: Option<&Path>, options: &[&str]) -> Process {
        let mut command = Command::new(GABION);
        command.args(["ncl", "controller", "--directory"]).arg(dir.join("control"));
        command.args(token.map(|path| format!("--token-file={}", path.display()))).args(options);
        let mut controller = Process::start(&mut command);
        controller.until("Unix socket");
        controller
    }

    fn place(&self) -> PathBuf {
        self.dir.join("control")
    }

    fn gabion(&self, words: &[&str]) -> Command {
        let mut command = Command::new(GABION);
        command.arg("ncl").args(words).arg("--controller").arg(self.place());
        command.args(self.token.as_ref().map(|path| format!("--token-file={}", path.display())));
        command
    }

    /// A run of a peer.
    fn add_peer(&mut self, index: usize) {
        self.add_peer_with(index, &[]);
    }

    /// The same with further options.
    fn add_peer_with(&mut self, index: usize, options: &[&str]) {
        self.add_peer_of(index, "64MiB", options);
    }

    /// The same with so much memory.
    fn add_peer_of(&mut self, index: usize, memory: &str, options: &[&str]) {
        let directory = self.dir.join(format!("peer-{index}"));
        let words = ["peer", "--memory", memory, "--ready", "4MiB", "--directory"];
        let words = [&words[..], &[directory.to_str().unwrap()], options].concat();
        let mut peer = Process::start(&mut self.gabion(&words));
        let line = peer.line();
        let id = line.strip_prefix("peer ").and_then(|rest| rest.split(',').next()).unwrap();
        let id = id.to_owned();
        peer.until("registered");
        self.peers.push((id, peer));
    }

    /// A directory below the house's.
    fn directory(&self, name: &str) -> PathBuf {
        let path = self.dir.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn run(&self, place: &Path, options: &[&str], program: &[&str]) -> Command {
        let words = [&["run", "--app", "test", "--match", GLOBS][..], options].concat();
        let mut command = self.gabion(&words);
        command.arg("--").args(program).current_dir(place);
        command
    }

    fn shell(&self, place: &Path, options: &[&str], script: &str) -> Output {
        self.run(place, options, &["sh", "-c", script]).output().unwrap()
    }

    fn status(&self) -> Value {
        let output = self.gabion(&["status", "--json"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Status of the only application.
    fn application(&self) -> Value {
        self.status()["applications"][0].clone()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Counts into a file, and tells each number once it is stored.
const COUNTS: &str = "i=0; while i=$((i+1)); do echo $i >> d/a.log && echo $i || exit 9; done";

/// All numbers up to one at least, and no other line.
fn check_counted(found: &str, told: u64) {
    let numbers: Vec<u64> = found.lines().map(|line| line.parse().unwrap()).collect();
    let expected: Vec<u64> = (1..=numbers.len() as u64).collect();
    assert_eq!(numbers, expected);
    assert!(numbers.len() as u64 >= told, "{told} were told, {} are there", numbers.len());
}

/// docs/faults.md: N13
#[test]
fn a_program_whose_machine_dies_goes_on_elsewhere_with_all_that_was_acknowledged() {
    let house = House::new(3);
    for round in 0..4 {
        let place = house.directory(&format!("place-{round}"));
        std::fs::create_dir_all(place.join("d")).unwrap();
        let script = format!("rm -f d/a.log; {COUNTS}");
        let every = ["--every-write"];
        let mut run = Process::start(&mut house.run(&place, &every, &["sh", "-c", &script]));
        let mut told = 0;
        for _ in 0..20 + 100 * round {
            told = run.line().parse().unwrap();
        }
        run.kill();
        let elsewhere = house.directory(&format!("elsewhere-{round}"));
        let output = house.shell(&elsewhere, &["--take-over"], "cat d/a.log");
        assert!(output.status.success(), "{}", text(&output.stderr));
        check_counted(&text(&output.stdout), told);
    }
}

/// docs/faults.md: N2
#[test]
fn a_peer_that_is_killed_under_load_is_replaced_and_the_status_tells() {
    let mut house = House::with_token(0, Some("a secret\n"));
    let seen = metrics::Seen::new(&mut house);
    (0..4).for_each(|index| seen.add_peer(&mut house, index));
    let place = house.directory("place");
    std::fs::create_dir(place.join("d")).unwrap();
    let options = ["--every-write", "--metrics", &seen.application];
    let mut run = Process::start(&mut house.run(&place, &options, &["sh", "-c", COUNTS]));
    let mut told = 0;
    for round in 1..=2 {
        (0..100).for_each(|_| drop(run.line()));
        let members = house.application()["peers"].clone();
        let named = |id: &str| members.as_array().unwrap().iter().any(|it| it == id);
        let victim = house.peers.iter().position(|(id, _)| named(id)).unwrap();
        seen.serves(&house.peers[victim].0);
        seen.goes_on(&mut run, round);
        drop(house.peers.remove(victim));
        let until = Instant::now() + PATIENCE;
        loop {
            told = run.line().parse().unwrap();
            let found = house.application();
            if found["replaced"].as_u64() >= Some(round) && found["copies"] == 3 {
                assert_eq!(found["running"], true, "{found:#}");
                assert!(found["losses"].as_u64() >= Some(round), "{found:#}");
                assert_eq!(found["files"][0]["name"], "d/a.log", "{found:#}");
                println!("copies were missing for {} ms", found["last_loss_ms"]);
                break;
            }
            assert!(Instant::now() < until, "not replaced: {found:#}");
        }
        seen.replaced(round);
        seen.add_peer(&mut house, 4 + round as usize);
    }
    run.kill();
    let output = house.shell(&house.directory("other"), &["--take-over"], "cat d/a.log");
    check_counted(&text(&output.stdout), told);
    let output = house.gabion(&["status"]).output().unwrap();
    let said = text(&output.stdout);
    assert!(said.contains("test: term 2, does not run"), "{said}");
    let without = Command::new(GABION)
        .args(["ncl", "status", "--controller"])
        .arg(house.place())
        .output()
        .unwrap();
    assert!(text(&without.stderr).contains("the token is not the controller's"));
    seen.refused_one();
}

/// docs/faults.md: N7
#[test]
fn a_paused_run_that_wakes_after_another_took_over_cannot_write_any_more() {
    let house = House::new(3);
    let place = house.directory("place");
    let script = "echo first > a.log && echo told; read line; echo late >> a.log || echo refused; \
                  exit 0";
    let mut former =
        Process::start(&mut house.run(&place, &["--every-write"], &["sh", "-c", script]));
    assert_eq!(former.line(), "told");
    kill_process(former.pid(), Signal::STOP).unwrap();
    let other = house.directory("other");
    let output = house.shell(&other, &["--take-over"], "echo second >> a.log; cat a.log");
    assert_eq!(text(&output.stdout), "first\nsecond\n", "{}", text(&output.stderr));
    former.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    kill_process(former.pid(), Signal::CONT).unwrap();
    assert_eq!(former.line(), "refused");
    let mut rest = String::new();
    former.out.read_to_string(&mut rest).unwrap();
    assert_ne!(former.child.wait().unwrap().code(), Some(0), "the store failed");
    let output = house.shell(&house.directory("last"), &[], "cat a.log");
    assert_eq!(text(&output.stdout), "first\nsecond\n", "{}", text(&output.stderr));
}

#[test]
fn with_too_few_peers_nothing_is_run_and_with_too_many_lost_calls_fail_after_a_while() {
    let mut house = House::new(2);
    let place = house.directory("place");
    let options = ["--peer-timeout", "1", "--take-over"];
    let output = house.shell(&place, &options, "touch ran");
    let said = text(&output.stderr);
    assert!(!output.status.success() && !place.join("ran").exists(), "{said}");
    assert!(said.contains("2 peers are registered, a new application takes 3"), "{said}");
    house.add_peer(2);
    // Until a peer's death is seen its memory counts (docs/near-compute-logs.md, Shared memory).
    let script = "echo kept > a.log && echo told; read line
                  while echo lost >> a.log; do sleep 0.05; done; echo refused";
    let options = [&options[..], &["--every-write"]].concat();
    let mut run = Process::start(&mut house.run(&place, &options, &["sh", "-c", script]));
    assert_eq!(run.line(), "told");
    house.peers.truncate(1);
    run.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(run.line(), "refused");
    run.kill();
    // Nothing empty or shorter is shown.
    let output = house.shell(&house.directory("other"), &options, "cat a.log; touch ran");
    let said = text(&output.stderr);
    assert!(!output.status.success() && !house.directory("other").join("ran").exists(), "{said}");
    assert!(said.contains("1 of 3 copies are within reach"), "{said}");
}

#[test]
fn writes_go_on_without_the_controller_which_comes_back_with_all_that_it_had() {
    let mut house = House::new(3);
    let place = house.directory("place");
    let script = "echo one > a.log && echo told; read line; echo two >> a.log && echo told";
    let mut run = Process::start(&mut house.run(&place, &["--every-write"], &["sh", "-c", script]));
    assert_eq!(run.line(), "told");
    house.controller.kill();
    run.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(run.line(), "told");
    run.child.wait().unwrap();
    house.controller = House::controller(&house.dir, None, &[]);
    let output = house.shell(&house.directory("other"), &["--take-over"], "cat a.log");
    assert_eq!(text(&output.stdout), "one\ntwo\n", "{}", text(&output.stderr));
}

#[test]
fn peers_and_a_program_that_start_before_their_controller_wait_for_it() {
    let mut house = House::new(0);
    house.controller.kill();
    std::fs::remove_dir_all(house.place()).unwrap();
    let root = house.directory("place");
    let output = house.shell(&root, &["--peer-timeout", "1"], "touch ran");
    let said = text(&output.stderr);
    assert!(!output.status.success() && !root.join("ran").exists(), "{said}");
    let place = house.place().display().to_string();
    assert!(said.contains(&format!("controller {place}: cannot be connected to")), "{said}");
    for index in 0..3 {
        let directory = house.dir.join(format!("peer-{index}"));
        let words = ["peer", "--memory", "64MiB", "--ready", "4MiB", "--directory"];
        let words = [&words[..], &[directory.to_str().unwrap()]].concat();
        let mut peer = Process::start(&mut house.gabion(&words));
        peer.until(&format!("not registered: controller {place}: cannot be connected to"));
        house.peers.push((String::new(), peer));
    }
    let script = "echo one > a.log && echo told";
    let mut run = Process::start(&mut house.run(&root, &["--every-write"], &["sh", "-c", script]));
    house.controller = House::controller(&house.dir, None, &[]);
    house.peers.iter_mut().for_each(|(_, peer)| peer.until("  registered at the controller"));
    assert_eq!(run.line(), "told");
    assert!(run.child.wait().unwrap().success());
}

/// How often each program is killed.
fn kills() -> u64 {
    std::env::var("GABION_NCL_KILLS").map_or(2, |text| text.parse().unwrap())
}

/// Kills the peer with this index, in the order of their starts, and starts it again.
fn restart_peer(house: &mut House, index: usize) {
    drop(house.peers.remove(0));
    house.add_peer(index);
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs sqlite3: cargo xtask ncl"]
fn sqlite_whose_machine_dies_loses_no_commit_while_peers_die_too() {
    let mut house = House::new(4);
    let mut place = house.directory("place-0");
    let mut told = 0_u64;
    for round in 0..kills() {
        let options = ["--take-over"];
        let mut sqlite = Process::start(&mut house.run(&place, &options, &["sqlite3", "t.db"]));
        let ask = |sqlite: &mut Process, text: &str| {
            writeln!(sqlite.child.stdin.as_mut().unwrap(), "{text}").unwrap();
            sqlite.line()
        };
        assert_eq!(ask(&mut sqlite, "pragma journal_mode=wal;"), "wal");
        let create = "create table if not exists t(a integer primary key, b text);";
        let found =
            ask(&mut sqlite, &format!("{create} pragma synchronous=full; pragma integrity_check;"));
        assert_eq!(found, "ok", "round {round}");
        let found = ask(&mut sqlite, "select ifnull(max(a), 0) || ' ' || count(*) from t;");
        let (last, count) = found.split_once(' ').unwrap();
        assert_eq!(last, count, "round {round}: rows are missing");
        let last: u64 = last.parse().unwrap();
        assert!(last >= told, "round {round}: {last} rows, {told} were told");
        told = last;
        for step in 0..150 {
            let next = told + 1;
            let insert = format!("insert into t values({next}, hex(zeroblob(700)));");
            assert_eq!(ask(&mut sqlite, &format!("{insert} select {next};")), next.to_string());
            told = next;
            if step == 50 {
                restart_peer(&mut house, round as usize % 4);
            }
        }
        sqlite.kill();
        // The database itself is the file system's, which both machines have.
        let next = house.directory(&format!("place-{}", round + 1));
        std::fs::copy(place.join("t.db"), next.join("t.db")).unwrap();
        place = next;
    }
    eprintln!("sqlite: {told} commits, killed {} times with a peer each", kills());
}

struct Redis {
    run: Process,
    stream: BufReader<std::net::TcpStream>,
}

impl Redis {
    fn start(house: &House, place: &Path) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port().to_string();
        drop(free);
        let words = ["redis-server", "--port", &port, "--appendonly", "yes"];
        let words = [&words[..], &["--appendfsync", "always", "--save", ""]].concat();
        let mut run = Process::start(&mut house.run(place, &["--take-over"], &words));
        run.until("Ready to accept connections");
        let stream = std::net::TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { run, stream: BufReader::new(stream) }
    }

    fn ask(&mut self, command: &str) -> String {
        self.stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        if line.starts_with('$') && !line.starts_with("$-1") {
            line.clear();
            self.stream.read_line(&mut line).unwrap();
        }
        line.trim_end().to_owned()
    }
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs redis-server: cargo xtask ncl"]
fn redis_whose_machine_dies_amid_rewrites_loses_nothing_while_peers_die_too() {
    let mut house = House::new(4);
    let mut told = 0_u64;
    for round in 0..kills() {
        let place = house.directory(&format!("place-{round}"));
        let mut redis = Redis::start(&house, &place);
        let last = redis.ask("GET last").parse::<u64>().unwrap_or(0);
        assert!(last >= told, "round {round}: {last} of {told} that were told");
        for number in 1..=last {
            assert_eq!(redis.ask(&format!("GET key:{number}")), number.to_string());
        }
        told = last;
        for step in 0..600 {
            if step == 200 || step == 400 {
                redis.ask("BGREWRITEAOF");
            }
            if step == 300 {
                restart_peer(&mut house, round as usize % 4);
            }
            let next = told + 1;
            assert_eq!(redis.ask(&format!("MSET key:{next} {next} last {next}")), "+OK");
            told = next;
        }
        redis.run.kill();
    }
    eprintln!("redis: {told} writes, killed {} times with a peer each", kills());
}
