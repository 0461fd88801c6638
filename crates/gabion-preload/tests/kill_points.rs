//! Programs that end at one of their calls, by the count, at any of them: what they acknowledged is
//! recovered from log peers, of which one is lost each time too. `cargo xtask ncl` runs these.
//!
//! ```text
//!  point  program under load ─► ends at its N-th call (SIGKILL, or exit inside of the call)
//!         one of four peers is lost, and comes back empty: amid the load, or after it
//!         another directory, another owner ─► the program's own check, all that was acknowledged
//! ```
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests of a shell")]

mod common;
#[path = "kill_points/direct.rs"]
mod direct;
#[path = "kill_points/losses.rs"]
mod losses;
#[path = "common/owner_calls.rs"]
mod owner_calls;
#[path = "../../gabion-ncl-driver/tests/support/peers.rs"]
mod peers;
#[path = "kill_points/postgresql.rs"]
mod postgresql;
#[path = "common/postgresql.rs"]
mod postgresql_site;
#[path = "kill_points/rocksdb.rs"]
mod rocksdb;
#[path = "kill_points/split.rs"]
mod split;

use common::{Rng, Run};
use gabion_fabric::remote::PeerServer;
use gabion_media::remote::{Incarnation, PeerConfig, PeerId};
use gabion_mirror::owner::{Settings, Splits};
use gabion_ncl::OnLoss;
use gabion_ncl::map::Member;
use gabion_ncl_driver::registry::Registrar;
use gabion_ncl_driver::{Logs, LogsOptions, PeerFiles};
use peers::{Shared, Way};
use postgresql_site::{Session, Workers};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const PEERS: usize = 4;

/// Points for each program.
fn points() -> u64 {
    std::env::var("GABION_NCL_POINTS").map_or(10, |text| text.parse().expect("a number"))
}

/// The first seed: others are other points.
fn seed() -> u64 {
    std::env::var("GABION_FIRST_SEED").map_or(1, |text| text.parse().expect("a number"))
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Peers, and an application's owner in one directory after the other.
struct House {
    store: Shared,
    peers: Vec<Option<(PeerServer, Registrar)>>,
    runs: u32,
    /// The newest run of each peer.
    newest: [Incarnation; PEERS],
    home: PathBuf,
    globs: &'static str,
    splits: Option<Splits>,
    root: PathBuf,
    owner: Option<(Run, Arc<Logs>)>,
    /// Records that programs wrote to peers themselves, under former owners.
    direct: u64,
    /// Frames of split files, under former owners.
    frames: u64,
    /// All peers are of this machine.
    is_near: bool,
    every_write: bool,
    rng: Rng,
}

impl House {
    fn new(name: &str, globs: &'static str) -> Self {
        Self::with(name, globs, None)
    }

    fn with(name: &str, globs: &'static str, splits: Option<Splits>) -> Self {
        let home =
            std::env::temp_dir().join(format!("gabion-points-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&home);
        let root = home.join("root-0");
        std::fs::create_dir_all(&root).unwrap();
        let (store, rng) = (Shared::default(), Rng::new(seed()));
        let mut house = Self {
            store,
            peers: Vec::new(),
            runs: 0,
            newest: [Incarnation(0); PEERS],
            home,
            globs,
            splits,
            root,
            owner: None,
            direct: 0,
            frames: 0,
            is_near: false,
            every_write: false,
            rng,
        };
        for index in 0..PEERS {
            house.peers.push(None);
            house.restart_peer(index);
        }
        house.open();
        house
    }

    /// A peer is lost with all that it had, and comes back with nothing.
    fn restart_peer(&mut self, index: usize) {
        self.peers[index] = None;
        self.runs += 1;
        let path = self.home.join(format!("peer-{}", self.runs));
        let (peer, run) = (PeerId(index as u64 + 1), Incarnation(self.runs));
        self.newest[index] = run;
        // A rewrite that Redis did not live to complete leaves a file, of which there are hundreds
        // in the soak; a start has each of them twice.
        let config = PeerConfig::new(peer, run, 2 << 30);
        // One is as on another machine half of the time: then the program writes no records itself.
        let is_far = index == 0 && !self.is_near && self.rng.below(2) == 0;
        let way = if is_far { Way::Tcp } else { Way::SharedMemory };
        self.peers[index] = Some(peers::start(&self.store, way, &path, config));
    }

    /// The same for one at random, once all copies are whole: losses come one at a time.
    fn lose_a_peer(&mut self) {
        self.wait_for_copies();
        let index = self.rng.below(PEERS as u64) as usize;
        self.restart_peer(index);
    }

    /// Waits until all copies are whole, at peers that live: a loss is not known as soon as it is
    /// one.
    fn wait_for_copies(&self) {
        let (_, logs) = self.owner.as_ref().unwrap();
        until("copies are missing", || {
            let status = logs.status().unwrap().0;
            let lives =
                |member: &Member| self.newest[member.peer.0 as usize - 1] == member.incarnation;
            status.copies == 3 && status.map.members.iter().all(lives)
        });
    }

    fn open(&mut self) {
        let mut options = LogsOptions::new("points");
        (options.core.takes_over, options.core.cooling_ms) = (true, 100);
        options.has_program = true;
        // A start that waits for copies which are not there says which.
        options.core.on_loss = OnLoss::FailAfter(PATIENCE.as_millis() as u64);
        let logs = Logs::start(options, Box::new(self.store.clone())).unwrap();
        logs.wait_until_ready().unwrap();
        let logs = Arc::new(logs);
        let files = Box::new(PeerFiles::new(Arc::clone(&logs)));
        let (every_write, splits) = (self.every_write, self.splits.clone());
        let settings = Run::settings(&self.home, &self.root, self.globs);
        let run = Run::start_with(files, Settings { every_write, splits, ..settings }).unwrap();
        self.owner = Some((run, logs));
        for (server, registrar) in self.peers.iter_mut().flatten() {
            registrar.free_leaks(server).unwrap();
        }
    }

    /// Another owner, in another directory, whose only files are those that are not mirrored.
    fn move_on<K: Kind>(&mut self, point: u64) {
        let (run, logs) = self.owner.take().unwrap();
        self.direct += run.owner.shared().direct_records().0;
        self.frames += run.owner.shared().split_counts().frames;
        // One that ends by itself leaves nothing in the journal of split files.
        let end = if self.splits.is_some() { Run::abandon } else { Run::stop };
        end(run);
        drop(logs);
        let next = self.home.join(format!("root-{}", point + 1));
        K::survive(self, point, &next);
        std::fs::remove_dir_all(&self.root).unwrap();
        self.root = next;
        self.open();
    }

    fn command(&self, name: &str) -> Command {
        let found = gabion_mirror::program::find(Path::new(name));
        let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut command = self.owner.as_ref().unwrap().0.command(&found);
        command.current_dir(&self.root).process_group(0);
        command
    }
}

impl Drop for House {
    fn drop(&mut self) {
        if let Some((run, _)) = self.owner.take()
            && !std::thread::panicking()
        {
            run.stop();
        }
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

/// A program with a client. It ends with this value, and all that it started.
struct Program {
    child: Child,
    client: Client,
}

enum Client {
    Redis(BufReader<UnixStream>),
    Sqlite(ChildStdin, BufReader<ChildStdout>),
    Postgres(Session, #[expect(dead_code, reason = "they end with it")] Workers),
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the group was made for this child, which is not waited for yet or has left no
        // other; the call touches no memory.
        unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
        self.child.wait().unwrap();
    }
}

impl Program {
    /// Its next line; none once it has ended.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = match &mut self.client {
            Client::Redis(stream) => stream.read_line(&mut line),
            Client::Sqlite(_, output) => output.read_line(&mut line),
            Client::Postgres(..) => return None,
        };
        read.ok().filter(|len| *len > 0).map(|_| line.trim_end().to_owned())
    }

    fn ask(&mut self, text: &str) -> Option<String> {
        if let Client::Postgres(session, _) = &mut self.client {
            return session.ask(text).ok();
        }
        let said = match &mut self.client {
            Client::Redis(stream) => stream.get_mut().write_all(format!("{text}\r\n").as_bytes()),
            Client::Sqlite(input, _) => input.write_all(format!("{text}\n").as_bytes()),
            Client::Postgres(..) => unreachable!("asked above"),
        };
        said.ok()?;
        let line = self.line()?;
        let Some(Ok(len)) = line.strip_prefix('$').map(str::parse::<usize>) else {
            return Some(line);
        };
        let Client::Redis(stream) = &mut self.client else { return Some(line) };
        let mut bytes = vec![0; len + 2];
        stream.read_exact(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
    }

    fn has_ended(&mut self) -> bool {
        // Its own process of the session may have, and the server is about to.
        matches!(&self.client, Client::Postgres(session, _) if session.is_lost)
            || self.child.try_wait().unwrap().is_some()
    }
}

/// The kind of program.
trait Kind {
    const NAME: &'static str;
    const GLOBS: &'static str;
    /// Writes of a load.
    const WRITES: u64;
    /// About as many calls as a load makes.
    const CALLS: u64 = 800;

    /// Which files are split.
    fn splits() -> Option<Splits> {
        None
    }

    /// Starts it; none if it ended by itself.
    fn start(house: &House, point: u64, end_at: Option<&str>) -> Option<Program>;

    /// Writes this number; none if it ended.
    fn write(program: &mut Program, number: u64) -> Option<()>;

    /// Checks all of it, and gives the last number.
    fn check(house: &House, point: u64) -> u64;

    /// Makes a directory of what another machine has of the files that are not mirrored.
    fn survive(house: &House, _point: u64, next: &Path) {
        common::copy_plain(&house.root, next);
    }
}

struct RedisServer;

impl Kind for RedisServer {
    const NAME: &'static str = "redis-server";
    const GLOBS: &'static str = "*.aof,*.manifest";
    const WRITES: u64 = 60;

    fn start(house: &House, _: u64, end_at: Option<&str>) -> Option<Program> {
        let socket = house.home.join("redis");
        let _ = std::fs::remove_file(&socket);
        let mut command = house.command("redis-server");
        command.args(["--port", "0", "--appendonly", "yes", "--appendfsync", "always"]);
        command.args(["--save", "", "--unixsocket"]).arg(&socket).stdout(Stdio::null());
        command.envs(end_at.map(|at| ("GABION_NCL_END_AT", at)));
        let mut child = command.spawn().unwrap();
        let mut stream = None;
        until("redis-server does not listen", || {
            stream = UnixStream::connect(&socket).ok();
            stream.is_some() || child.try_wait().unwrap().is_some()
        });
        let stream = BufReader::new(stream?);
        let mut program = Program { child, client: Client::Redis(stream) };
        let mut last = Some(String::new());
        until("redis-server loads for ever", || {
            last = program.ask("PING");
            last.as_deref().is_none_or(|last| last == "+PONG")
        });
        last.map(|_| program)
    }

    fn write(program: &mut Program, number: u64) -> Option<()> {
        if number.is_multiple_of(25) {
            program.ask("BGREWRITEAOF")?;
        }
        let said = program.ask(&format!("MSET key:{number} {number} last {number}"))?;
        assert_eq!(said, "+OK");
        Some(())
    }

    fn check(house: &House, point: u64) -> u64 {
        let manifest = "appendonlydir/appendonly.aof.manifest";
        if house.root.join(manifest).exists() {
            let output = house.command("redis-check-aof").arg(manifest).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            // The tail of a command that nobody was told of may be cut.
            let is_fine = said.contains("is valid") || said.contains("--fix");
            assert!(is_fine, "{said}{}", String::from_utf8_lossy(&output.stderr));
        }
        let mut redis = Self::start(house, point, None).expect("redis-server starts");
        let last = redis.ask("GET last").unwrap().parse::<u64>().unwrap_or(0);
        for number in 1..=last {
            assert_eq!(redis.ask(&format!("GET key:{number}")), Some(number.to_string()));
        }
        last
    }
}

struct Sqlite3;

/// The journal of a point: both kinds in turn.
fn journal(point: u64) -> &'static str {
    if point.is_multiple_of(2) { "wal" } else { "delete" }
}

impl Sqlite3 {
    fn start_as(mut command: Command, point: u64, end_at: Option<&str>) -> Option<Program> {
        command.arg("t.db").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.envs(end_at.map(|at| ("GABION_NCL_END_AT", at)));
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut program = Program { child, client: Client::Sqlite(input, output) };
        let journal = journal(point);
        let said = program.ask(&format!("pragma journal_mode={journal};"))?;
        assert_eq!(said, journal);
        let rest = "pragma synchronous=full; pragma wal_autocheckpoint=10; create table if not \
                    exists t(a integer primary key, b text);";
        assert_eq!(program.ask(rest)?, "10");
        Some(program)
    }

    /// Whether it is whole, and the last number.
    fn check_all(sqlite: &mut Program) -> u64 {
        assert_eq!(sqlite.ask("pragma integrity_check;").unwrap(), "ok");
        let found = sqlite.ask("select count(*) || ' ' || ifnull(max(a), 0) from t;").unwrap();
        let (count, last) = found.split_once(' ').unwrap();
        assert_eq!(count, last, "rows are missing");
        last.parse().unwrap()
    }
}

impl Kind for Sqlite3 {
    const NAME: &'static str = "sqlite3";
    const GLOBS: &'static str = "*-wal,*-journal";
    const WRITES: u64 = 25;

    fn start(house: &House, point: u64, end_at: Option<&str>) -> Option<Program> {
        Self::start_as(house.command("sqlite3"), point, end_at)
    }

    fn write(program: &mut Program, number: u64) -> Option<()> {
        let len = number % 7 * 300;
        let insert = format!("insert into t values({number}, hex(zeroblob({len})));");
        let said = program.ask(&format!("{insert} select {number};"))?;
        assert_eq!(said, number.to_string());
        Some(())
    }

    fn check(house: &House, point: u64) -> u64 {
        Self::check_all(&mut Self::start(house, point, None).expect("sqlite3 starts"))
    }
}

/// Writes until the program ends, or all are written. Returns the last number that was
/// acknowledged, and whether it ended by itself.
fn load<K: Kind>(house: &mut House, point: u64, end_at: &str, told: &mut u64) -> bool {
    let lost_at = 1 + house.rng.below(K::WRITES);
    let mut is_lost = false;
    let mut program = K::start(house, point, Some(end_at));
    for step in 1..=K::WRITES {
        let Some(running) = &mut program else { break };
        if step == lost_at {
            house.lose_a_peer();
            is_lost = true;
        }
        match K::write(running, *told + 1) {
            Some(()) => *told += 1,
            None => break,
        }
    }
    if !is_lost {
        house.lose_a_peer();
    }
    // Its end may be a moment behind its last word.
    program.is_none_or(|mut program| {
        std::thread::sleep(Duration::from_millis(1));
        program.has_ended()
    })
}

/// Builds with and without the feature make one file, and Cargo may take either for fresh.
fn check_that_it_is_planted(house: &House) {
    let mut command = house.command("sh");
    command.args(["-c", "echo"]).env("GABION_NCL_END_AT", "exit:1").stdout(Stdio::null());
    let code = command.status().unwrap().code();
    let text = "the interposer was built without the feature: touch crates/gabion-preload/src/*.rs";
    assert_eq!(code, Some(99), "{text}");
}

fn every_point<K: Kind>() {
    let mut house = House::with(K::NAME, K::GLOBS, K::splits());
    check_that_it_is_planted(&house);
    let (mut told, mut ended, mut limit) = (0_u64, 0, K::CALLS);
    for point in 0..points() {
        let number = 1 + house.rng.below(limit);
        let how = if house.rng.below(3) == 0 { "exit" } else { "kill" };
        let end_at = format!("{how}:{number}");
        let before = told;
        let is_ended = load::<K>(&mut house, point, &end_at, &mut told);
        // So that most points lie within the load, however many calls it makes.
        limit = if is_ended { limit + limit / 8 } else { limit - limit / 4 };
        ended += u64::from(is_ended);
        house.move_on::<K>(point);
        let last = K::check(&house, point + 1);
        let (name, seed) = (K::NAME, seed());
        assert!(
            (told..=told + 1).contains(&last),
            "{name}, GABION_FIRST_SEED={seed}, point {point} ({end_at}): {last} recovered, {told} \
             were told, {before} before it"
        );
        told = last;
    }
    let (name, count, direct, frames) = (K::NAME, points(), house.direct, house.frames);
    eprintln!(
        "{name}: {count} points, {ended} at a call; {told} writes, limit {limit}; {direct} \
         records by the program itself, {frames} frames"
    );
    assert_eq!(frames > 0, K::splits().is_some(), "{name}: frames of split files");
    assert!(ended * 4 >= points(), "{ended} of {} points were at a call", points());
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs redis-server: cargo xtask ncl"]
fn redis_that_ends_at_any_call_loses_nothing_while_peers_are_lost() {
    every_point::<RedisServer>();
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs postgresql: cargo xtask ncl"]
fn postgresql_that_ends_at_any_call_loses_no_commit_while_peers_and_disks_are_lost() {
    every_point::<postgresql::Postgres>();
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs sqlite3: cargo xtask ncl"]
fn sqlite_that_ends_at_any_call_loses_no_commit_while_peers_are_lost() {
    every_point::<Sqlite3>();
}
