//! The program itself, from `up` to `destroy`: what a user types, and the effect on processes,
//! ports and files.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test with real processes: it waits, and fails where it stands"
)]

use gabion_fabric::{BlockingMedium, DirectIo, MediumOptions, PoolFile};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use std::cell::RefCell;
use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

#[path = "up/backup.rs"]
mod backup;
#[path = "up/db.rs"]
mod db;
#[path = "up/failover.rs"]
mod failover;
#[path = "up/groups.rs"]
mod groups;
#[path = "support/logged.rs"]
mod logged;
#[path = "up/ncl.rs"]
mod ncl;
#[path = "support/page.rs"]
mod page;
#[path = "up/ring.rs"]
mod ring;
#[path = "support/scrape.rs"]
mod scrape;
#[path = "up/seeing.rs"]
mod seeing;
#[path = "up/start.rs"]
mod start;
#[path = "up/stores.rs"]
mod stores;
#[path = "up/tls.rs"]
mod tls;
#[path = "../../gabion-server/tests/support/unprivileged.rs"]
mod unprivileged;
#[path = "up/users.rs"]
mod users;
#[path = "up/verify.rs"]
mod verify;

const GABION: &str = env!("CARGO_BIN_EXE_gabion");
const METRICS_OFF: [&str; 2] = ["--metrics-port", "off"];
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory and ports of one test; everything is removed at its end.
struct Place {
    data: PathBuf,
    port: u16,
}

impl Place {
    fn new(name: &str) -> Self {
        let data = std::env::temp_dir().join(format!("gabion-up-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&data);
        Self { data, port: free_ports() }
    }

    fn run(&self, words: &[&str]) -> Output {
        Command::new(GABION)
            .args(&words[..1])
            .arg("--data")
            .arg(&self.data)
            .args(&words[1..])
            .stdin(Stdio::null())
            .output()
            .expect("the program starts")
    }

    fn up(&self, options: &[&str]) -> Up {
        self.up_by(Command::new(GABION), options)
    }

    /// The same by another command with the same options.
    fn up_by(&self, mut command: Command, options: &[&str]) -> Up {
        let mut child = command
            .arg("up")
            .arg("--data")
            .arg(&self.data)
            .args(["--port", &self.port.to_string(), "--pool-size", "256MiB"])
            .args(["--memtable-size", "64KiB"])
            // Ports that no test has found free; those that want them say which.
            .args(if options.contains(&"--metrics-port") { &[][..] } else { &METRICS_OFF })
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let out = child.stdout.take().expect("it is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut up = Up { child, lines, ready: String::new(), heard: RefCell::default() };
        up.ready = up.wait_for("ready: ");
        up
    }

    /// The bytes of the first packet of the reply to an inline command.
    fn resp(&self, replica: u16, command: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port + replica)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut reply = [0; 4096];
        let len = stream.read(&mut reply).unwrap();
        String::from_utf8_lossy(&reply[..len]).into_owned()
    }

    fn status(&self) -> Vec<Value> {
        let output = self.run(&["status", "--json"]);
        let value: Value = serde_json::from_slice(&output.stdout).expect("status is JSON");
        value["replicas"].as_array().expect("replicas").clone()
    }

    fn pids(&self) -> Vec<u64> {
        self.status().iter().map(|replica| replica["pid"].as_u64().expect("a pid")).collect()
    }

    /// Writes until files exist, and waits until every replica has the same.
    fn fill(&self) {
        for i in 0..40 {
            let value = format!("{i:04}").repeat(4096);
            let reply = self.run(&["cli", "set", &format!("key-{i}"), &value]);
            assert!(reply.status.success(), "{}", said(&reply));
        }
        let begun = Instant::now();
        loop {
            let status = self.status();
            let edits = |replica: &Value| replica["live_files"].as_u64().unwrap_or(0);
            if edits(&status[0]) > 0
                && status.iter().all(|it| it["live_files"] == status[0]["live_files"])
            {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "no files after a while: {status:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until no flush and no compaction is due: the tree keeps its content then.
    fn wait_for_compactions(&self) {
        let begun = Instant::now();
        let rests = |replica: &Value| {
            replica["memtable"]["sealed"] == 0 && replica["levels"][0]["files"].as_u64() < Some(4)
        };
        while !self.status().iter().all(rests) {
            assert!(begun.elapsed() < PATIENCE, "it does not come to rest: {:?}", self.status());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

/// A running `gabion up`.
struct Up {
    child: Child,
    lines: Receiver<String>,
    /// The line that it printed when it was ready.
    ready: String,
    /// All its output so far.
    heard: RefCell<Vec<String>>,
}

impl Up {
    fn wait_for(&self, part: &str) -> String {
        let begun = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(begun.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.heard.borrow_mut().push(line.clone());
                    if line.contains(part) {
                        return line;
                    }
                }
                Err(error) => {
                    panic!("`{part}` was not said: {error}\n{}", self.heard.borrow().join("\n"))
                }
            }
        }
    }

    fn signal(&self, signal: &str) {
        kill(u64::from(self.child.id()), signal);
    }

    fn wait(mut self) -> i32 {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(begun.elapsed() < PATIENCE, "`up` does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kill(pid: u64, signal: &str) {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
    assert!(status.success(), "kill {signal} {pid}");
}

/// Whether a process runs; one that ended and was not reaped does not.
fn runs(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}

fn assert_gone(pids: &[u64]) {
    let begun = Instant::now();
    while let Some(pid) = pids.iter().find(|pid| runs(**pid)) {
        assert!(begun.elapsed() < PATIENCE, "process {pid} is left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A first port with its neighbours free. Tests of one process take different ranges.
fn free_ports() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 20_000 + (std::process::id() % 500) as u16 * 20;
    loop {
        let port = base + NEXT.fetch_add(4, Ordering::Relaxed);
        let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if [0, 1, 2, 100, 101, 102, 200, 201, 202].iter().all(|above| free(port + above)) {
            return port;
        }
    }
}

/// Listens on a port that was just found free. Another test's new process may hold a copy of the
/// socket that found it free, for the moment between its fork and its exec.
fn hold(port: u16) -> TcpListener {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(listener) => return listener,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "port {port}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Every path below a directory, itself included, with the rights of others than its owner.
fn rights_of_others(dir: &Path) -> Vec<(PathBuf, u32)> {
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o077;
    let mut found = vec![(dir.to_owned(), mode(dir))];
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(rights_of_others(&path));
        } else {
            found.push((path.clone(), mode(&path)));
        }
    }
    found
}

/// Flips one byte of a live SST in a pool; returns the file's name and the byte's offset in it.
fn flip_a_byte(pool: &Path) -> (String, u64) {
    flip_a_byte_of(pool, |_| true)
}

/// As [`flip_a_byte`], for the first file whose number fits.
fn flip_a_byte_of(pool: &Path, fits: impl Fn(u64) -> bool) -> (String, u64) {
    let (name, offset, at) = {
        let file = PoolFile::open(pool, DirectIo::Never).unwrap();
        let options = MediumOptions { notify: false, ..MediumOptions::default() };
        let medium = BlockingMedium::new(file.medium(options).unwrap());
        let recovered = medium
            .block_on(gabion_pool::open(medium.handle(), gabion_pool::Trust::Readable))
            .unwrap();
        let placement = recovered
            .pool
            .files()
            .filter(|placement| placement.file.kind == gabion_base::FileKind::Sst)
            .find(|placement| fits(placement.file.number))
            .expect("a live SST");
        let offset = placement.len / 2;
        let (at, _) = gabion_pool::extents(recovered.pool.region(), placement, offset, 1)
            .next()
            .expect("a place on the device");
        (placement.file.to_string(), offset, at)
    };
    let file = File::options().read(true).write(true).open(pool).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
    file.sync_all().unwrap();
    (name, offset)
}

/// The kernel's view: with `--jobs-nice 6` job threads stand back behind the loop, the flush thread
/// by half.
fn jobs_stand_back(pid: u64) {
    let nice = |task: std::fs::DirEntry| -> Option<(String, i32)> {
        // The kernel's own threads for I/O come and go.
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        let (name, rest) = stat.split_once('(').unwrap().1.rsplit_once(')').unwrap();
        // The 19th word of the line (proc(5)), the 17th behind the name.
        Some((name.to_owned(), rest.split_whitespace().nth(16).unwrap().parse().unwrap()))
    };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of: std::collections::BTreeMap<_, _> =
        tasks.filter_map(|task| nice(task.unwrap())).collect();
    let own = of["gabion-loop"];
    for (thread, steps) in [
        ("gabion-flush", 3),
        ("gabion-compact", 6),
        ("gabion-ship", 6),
        ("gabion-target", 6),
        ("gabion-warm", 6),
    ] {
        assert_eq!(of[thread], (own + steps).min(19), "{thread} of {of:?}");
    }
}

/// What `verify` says once the group has begun: the view with a replica that is back may begin just
/// now.
fn verified(place: &Place) -> Output {
    let begun = Instant::now();
    loop {
        let verify = place.run(&["verify", "--json"]);
        if begun.elapsed() > PATIENCE || !said(&verify).contains("the group is starting") {
            return verify;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// docs/faults.md: P37
#[test]
fn a_group_lives_from_up_to_destroy() {
    let place = Place::new("life");
    let told = ["--block-cache-bytes", "32MiB", "--compactions-max", "2", "--jobs-nice", "6"];
    let up = place.up(&told);
    let is_run_as_told = |replica: u16| {
        for (option, value) in [
            ("gabion-block-cache-bytes", "33554432"),
            ("gabion-open-files-bytes", "1073741824"),
            ("gabion-compactions-max", "2"),
            ("gabion-jobs-nice", "6"),
        ] {
            let told = place.resp(replica, &format!("CONFIG GET {option}"));
            assert!(told.ends_with(&format!("\r\n{value}\r\n")), "{option}: {told}");
        }
    };
    (0..3).for_each(is_run_as_told);
    // Until its process ends.
    assert_eq!(place.resp(1, "CONFIG SET gabion-compactions-max 3"), "+OK\r\n");

    // The command that it prints to type works.
    let next = up.ready.split('`').nth(1).expect("a command");
    let typed = Command::new("sh").args(["-c", next]).output().unwrap();
    assert!(typed.status.success() && typed.stdout == b"OK\n", "{next}: {}", said(&typed));
    assert_eq!(place.resp(0, "GET k"), "$1\r\nv\r\n");
    assert_eq!(place.resp(0, "DEL k"), ":1\r\n");

    // Any replica routes.
    assert_eq!(place.resp(0, "SET colour green"), "+OK\r\n");
    for replica in 0..3 {
        assert_eq!(place.resp(replica, "GET colour"), "$5\r\ngreen\r\n");
    }
    place.fill();
    let pids = place.pids();
    assert_eq!(pids.len(), 3);
    pids.iter().for_each(|pid| jobs_stand_back(*pid));

    lines_are_edited_and_recalled(&place);

    // The data belongs to one `up`.
    let second = place.run(&["up"]);
    assert_eq!(second.status.code(), Some(2));
    assert!(said(&second).contains("is in use by process"), "{}", said(&second));
    let destroy = place.run(&["destroy", "--yes"]);
    assert_eq!(destroy.status.code(), Some(2), "{}", said(&destroy));
    let offline = place.run(&["verify", "--offline"]);
    assert_eq!(offline.status.code(), Some(2), "{}", said(&offline));

    // A killed replica is named, comes back and has everything.
    kill(pids[1], "-9");
    up.wait_for(&format!("replica 2 (process {}) died: killed (signal 9)", pids[1]));
    up.wait_for("replica 2 is back and has caught up");
    assert_ne!(place.pids()[1], pids[1]);
    is_run_as_told(1);
    assert_eq!(place.resp(1, "GET colour"), "$5\r\ngreen\r\n");
    let verify = verified(&place);
    assert!(verify.status.success(), "{}", said(&verify));
    let verdict: Value = serde_json::from_slice(&verify.stdout).unwrap();
    // The one that was killed may be left out until it is filled; the tail never is.
    let mut replicas = verdict["replicas"].as_array().unwrap().iter();
    let tail = replicas.find(|replica| replica["replica"] == 3).expect("the tail");
    assert_eq!(tail["records"], 41);

    // Ctrl-C leaves only the data.
    let pids = place.pids();
    up.signal("-INT");
    assert_eq!(up.wait(), 0);
    assert_gone(&pids);

    // The data names its settings, and is whole.
    let other = place.run(&["up", "--compaction", "every-replica"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(said(&other).contains("--compaction every-replica"), "{}", said(&other));
    let offline = place.run(&["verify", "--offline"]);
    assert!(offline.status.success(), "{}", said(&offline));

    // One byte of one pool is found.
    let (file, offset) = flip_a_byte(&place.data.join("replica-3/pool"));
    let offline = place.run(&["verify", "--offline"]);
    assert_eq!(offline.status.code(), Some(1), "{}", said(&offline));
    let named = format!("replica 3, file {file}, offset {offset}:");
    assert!(said(&offline).contains(&named), "{named}\n{}", said(&offline));

    let destroy = place.run(&["destroy", "--yes"]);
    assert!(destroy.status.success(), "{}", said(&destroy));
    assert!(!place.data.exists());
}

/// A terminal: the user's end and the program's.
fn terminal() -> (File, File) {
    let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&keys).unwrap();
    unlockpt(&keys).unwrap();
    let name = ptsname(&keys, Vec::new()).unwrap().into_string().unwrap();
    let terminal = File::options().read(true).write(true).open(name).unwrap();
    (File::from(keys), terminal)
}

/// A prompt on a terminal of its own.
struct Prompt {
    child: Child,
    keys: File,
    shown: Receiver<Vec<u8>>,
    unread: String,
}

impl Prompt {
    fn start(place: &Place) -> Self {
        let (keys, terminal) = terminal();
        let child = Command::new(GABION)
            .args(["cli", "-p", &place.port.to_string()])
            .env("TERM", "xterm")
            .stdin(terminal.try_clone().unwrap())
            .stdout(terminal.try_clone().unwrap())
            .stderr(terminal)
            .spawn()
            .unwrap();
        let mut screen = keys.try_clone().unwrap();
        let (sender, shown) = channel();
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(len @ 1..) = screen.read(&mut chunk) {
                if sender.send(chunk[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keys, shown, unread: String::new() }
    }

    /// Types, and waits until the text is shown, reading all before it.
    fn typed(&mut self, keys: &str, until: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        loop {
            if let Some(at) = self.unread.find(until) {
                self.unread.drain(..at + until.len());
                return;
            }
            let more = self.shown.recv_timeout(PATIENCE);
            let more = more.unwrap_or_else(|_| panic!("`{until}` is not in {:?}", self.unread));
            self.unread.push_str(&String::from_utf8_lossy(&more));
        }
    }
}

impl Drop for Prompt {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// With arrows and Ctrl-A, as in redis-cli; a terminal without editing shows them instead.
fn lines_are_edited_and_recalled(place: &Place) {
    let mut prompt = Prompt::start(place);
    let asked = format!("127.0.0.1:{}> ", place.port);
    prompt.typed("", &asked);
    prompt.typed("gt colour\x01\x1b[Ce\r", "\"green\"\r\n");
    prompt.typed("", &asked);
    prompt.typed("no-command\r", "(error) ERR");
    prompt.typed("", &asked);
    prompt.typed("\x1b[A\x1b[A\r", "\"green\"\r\n");
    prompt.typed("", &asked);
    prompt.typed("\x04", "\n");
    assert!(prompt.child.wait().unwrap().success(), "Ctrl-D ends it");
}

/// docs/faults.md: E5
#[test]
fn bytes_that_flipped_are_named_by_verify_and_repaired_from_another_replica() {
    let place = Place::new("rot");
    let up = place.up(&[]);
    place.fill();
    place.wait_for_compactions();
    up.signal("-INT");
    assert_eq!(up.wait(), 0);

    // The same file at the primary and at the tail: only the replica between them has it whole.
    let (file, offset) = flip_a_byte(&place.data.join("replica-1/pool"));
    let at_tail = flip_a_byte(&place.data.join("replica-3/pool"));
    assert_eq!(at_tail, (file.clone(), offset));
    let up = place.up(&[]);
    let verify = place.run(&["verify"]);
    assert_eq!(verify.status.code(), Some(1), "{}", said(&verify));
    assert!(said(&verify).contains(&file), "{file}: {}", said(&verify));

    let begun = Instant::now();
    loop {
        let status = place.status();
        let repaired = |replica: &Value| replica["counters"]["repaired_files"].as_u64();
        let rest = |replica: &Value| replica["damaged_files"].as_array().is_some_and(Vec::is_empty);
        if [0, 2].iter().all(|i| repaired(&status[*i]) == Some(1)) && status.iter().all(rest) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{file} is not repaired after a while: {status:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let verify = place.run(&["verify"]);
    assert!(verify.status.success(), "{}", said(&verify));
    assert!(place.resp(2, "INFO gabion").contains("damaged_files:0\r\nrepaired_files:1\r\n"));
    let log = std::fs::read_to_string(place.data.join("replica-3/log")).unwrap();
    assert_eq!(log.matches(&format!("{file} is damaged: ")).count(), 1, "{log}");
    assert_eq!(log.matches(&format!("{file} is repaired: ")).count(), 1, "{log}");
    // As `timeout -s INT` does it, to the process and to its group: one wish.
    up.signal("-INT");
    up.signal("-INT");
    assert_eq!(up.wait(), 0);
    let offline = place.run(&["verify", "--offline"]);
    assert!(offline.status.success(), "{}", said(&offline));
}

/// docs/faults.md: P36
#[test]
fn the_kill_of_up_leaves_no_process_and_loses_nothing() {
    let place = Place::new("killed");
    let up = place.up(&["--replicas", "2"]);
    assert_eq!(place.resp(0, "SET colour green"), "+OK\r\n");
    let pids = place.pids();
    assert_eq!(pids.len(), 2);
    // Clients' data is for nobody else: pools, rings, logs and the files beside them.
    let rights = rights_of_others(&place.data);
    assert!(rights.len() >= 11, "{rights:?}");
    assert!(rights.iter().all(|(_, rights)| *rights == 0), "{rights:?}");
    up.signal("-9");
    up.wait();
    assert_gone(&pids);

    // Data that was made readable for others is accepted as it is.
    for (path, _) in rights {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    let up = place.up(&[]);
    assert_eq!(place.resp(1, "GET colour"), "$5\r\ngreen\r\n");
    // Told twice, it stops at once, and does not report a clean stop. A process that is held
    // cannot end before it is told again.
    let pids = place.pids();
    kill(pids[0], "-STOP");
    up.signal("-INT");
    up.wait_for("stopping 2 replicas");
    // Late enough not to count as the same wish.
    std::thread::sleep(Duration::from_millis(600));
    up.signal("-INT");
    assert_eq!(up.wait(), 130);
    assert_gone(&pids);
}

#[test]
fn a_replica_comes_back_though_the_program_is_gone_and_its_terminal_too() {
    let place = Place::new("nohup");
    let program = std::env::temp_dir().join(format!("gabion-up-{}-program", std::process::id()));
    std::fs::copy(GABION, &program).unwrap();
    // As `nohup` does it.
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(&program);
    let up = place.up_by(nohup, &["--replicas", "1"]);
    std::fs::remove_file(&program).unwrap();
    let pid = place.pids()[0];
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(name.trim(), "gabion");
    kill(pid, "-9");
    up.wait_for("is back and has caught up");
    up.signal("-HUP");
    // A process that stops says so at once.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(place.resp(0, "SET colour green"), "+OK\r\n");
    up.signal("-TERM");
    assert_eq!(up.wait(), 0);

    let status = place.run(&["status"]);
    assert_eq!(status.status.code(), Some(1));
    let text = said(&status);
    let port = place.port;
    assert!(text.contains(&format!("1  does not run: nothing listens on port {port}")), "{text}");
    assert!(text.contains("is `gabion up` running?"), "{text}");
}

#[test]
fn what_an_interrupted_removal_left_is_removed_by_the_next() {
    let place = Place::new("left");
    let replica = place.data.join("replica-1");
    std::fs::create_dir_all(&replica).unwrap();
    std::fs::write(replica.join("pool"), "GABPOOL\0, and half of it").unwrap();
    let mark = "gabion: data is made or removed here\n";
    std::fs::write(place.data.join("unfinished"), mark).unwrap();
    let output = place.run(&["destroy"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let told = "removed what an interrupted creation or removal had left in ";
    assert!(said(&output).starts_with(told), "{}", said(&output));
    assert!(!place.data.exists());

    // A creation that was complete but for its mark made data, so `destroy` asks.
    let up = place.up(&["--replicas", "1"]);
    up.signal("-TERM");
    assert_eq!(up.wait(), 0);
    std::fs::write(place.data.join("unfinished"), mark).unwrap();
    let output = place.run(&["destroy"]);
    assert!(said(&output).contains("Type yes: nothing was removed"), "{}", said(&output));
    let output = place.run(&["destroy", "--yes"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(!place.data.exists());
}

#[test]
fn a_busy_port_and_a_small_disk_are_one_clear_line_and_leave_nothing() {
    let place = Place::new("refused");
    let port = (place.port + 101).to_string();
    let _holder = hold(place.port + 101);
    let first = place.port.to_string();
    let busy = place.run(&["up", "--port", &first, "--pool-size", "256MiB"]);
    assert_eq!(busy.status.code(), Some(2));
    let text = said(&busy);
    assert!(text.contains(&format!("port {port} (members of replica 2)")), "{text}");
    assert!(text.contains("--port") && text.trim_end().lines().count() == 1, "{text}");
    assert!(!place.data.exists());

    let full = place.run(&["up", "--pool-size", "4096TiB"]);
    assert_eq!(full.status.code(), Some(2));
    let text = said(&full);
    assert!(text.contains("free") && text.trim_end().lines().count() == 1, "{text}");
    assert!(!place.data.exists());

    for words in [&["cli", "ping"][..], &["status"], &["verify"], &["destroy", "--yes"]] {
        let output = place.run(words);
        assert_eq!(output.status.code(), Some(2));
        assert!(said(&output).contains("start with `gabion up`"), "{}", said(&output));
    }
}

/// docs/faults.md: E16
#[test]
fn data_that_this_version_does_not_know_is_removed_only_when_that_is_said() {
    let place = Place::new("strange");
    let pool = place.data.join("replica-1/pool");
    let version = "has format 99, made by gabion 9.9.9";
    for (text, named) in [
        (&br#"{"format": 99, "made_by": "9.9.9"}"#[..], version),
        (b"{", "is no JSON"),
        (b"\xff\0", "is no JSON"),
    ] {
        std::fs::create_dir_all(pool.parent().unwrap()).unwrap();
        std::fs::write(&pool, "GABPOOL\0kept").unwrap();
        std::fs::write(place.data.join("cluster.json"), text).unwrap();
        for (words, part) in [
            (&["destroy", "--yes"][..], "nothing was removed: without --yes it is asked"),
            // Nobody answers the question.
            (&["destroy"], "Type yes: nothing was removed"),
            (&["destroy", "--force"], "--yes"),
        ] {
            let output = place.run(words);
            assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
            let told = said(&output);
            assert!(told.contains(part) && told.trim_end().lines().count() == 1, "{told}");
            assert!(told.contains(named) || words.contains(&"--force"), "{words:?}: {told}");
            assert_eq!(std::fs::read(&pool).unwrap(), b"GABPOOL\0kept", "{words:?}");
        }
        let output = place.run(&["destroy", "--yes", "--force"]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(!pool.exists());
        // A file that is not even JSON is nobody's.
        if named == version {
            assert!(!place.data.exists());
            continue;
        }
        let file = place.data.join("cluster.json");
        let left = format!("left, as it is not Gabion's: {}", file.display());
        assert!(said(&output).contains(&left), "{}", said(&output));
        assert_eq!(std::fs::read(&file).unwrap(), text);
    }
}
