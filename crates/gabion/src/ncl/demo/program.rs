//! The two programs of the demo, as clients see them.

use super::house::{House, Process};
use gabion_base::{Error, Result};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a program may take until it answers, and over an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Reads that are asked for at once.
const READS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Program {
    Redis,
    Sqlite,
}

/// How durable a write is when it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// In the kernel's memory.
    Unsynced,
    /// Synced to the disk.
    Synced,
    /// Synced by a program under `gabion ncl run`.
    AtPeers,
}

/// Somebody who writes and reads. Keys are numbers.
pub(super) trait Session: Send {
    /// Writes a value; it is acknowledged when this returns.
    fn write(&mut self, key: u64, value: &str) -> Result<()>;

    /// Makes the program write its log's content into a file that is not mirrored, and sync it.
    fn compact(&mut self) -> Result<()>;

    /// The values of keys, or none where there is no such key.
    fn read(&mut self, keys: &[u64]) -> Result<Vec<Option<String>>>;
}

/// Sessions that threads share; a program with one connection has one.
pub(super) type Shared = Arc<Mutex<Box<dyn Session>>>;

/// A program that runs.
pub(super) struct Running {
    pub(super) process: Process,
    pub(super) sessions: Vec<Shared>,
}

impl Program {
    pub(super) fn binary(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Sqlite => "sqlite3",
        }
    }

    /// The files that go to the peers.
    pub(super) fn globs(self) -> &'static str {
        match self {
            Self::Redis => "*.incr.aof,*.manifest",
            Self::Sqlite => "*-wal,*-journal",
        }
    }

    /// Whether this file has been synced whole when [`Session::compact`] returns, and is not
    /// written again before the next time.
    pub(super) fn is_on_disk(self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match self {
            Self::Redis => name.ends_with(".base.rdb"),
            Self::Sqlite => name == "t.db",
        }
    }

    pub(super) fn synced(self) -> &'static str {
        match self {
            Self::Redis => "appendfsync always",
            Self::Sqlite => "journal_mode=wal, synchronous=full",
        }
    }

    pub(super) fn compaction(self) -> &'static str {
        match self {
            Self::Redis => "BGREWRITEAOF",
            Self::Sqlite => "a checkpoint",
        }
    }

    /// Clients that it serves at a time.
    pub(super) fn clients(self) -> usize {
        match self {
            Self::Redis => 4,
            Self::Sqlite => 1,
        }
    }

    pub(super) fn start(
        self,
        house: &mut House,
        place: &Path,
        application: &str,
        durability: Durability,
    ) -> Result<Running> {
        let mut command = match durability {
            Durability::AtPeers => house.run(application, self.globs()),
            _ => Command::new(self.binary()),
        };
        if durability == Durability::AtPeers {
            command.arg(self.binary());
        }
        command.current_dir(place);
        match self {
            Self::Redis => redis(house, command, durability),
            Self::Sqlite => sqlite(house, command, durability),
        }
    }
}

fn redis(house: &mut House, mut command: Command, durability: Durability) -> Result<Running> {
    let socket = house.dir.join("redis");
    let _ = std::fs::remove_file(&socket);
    let fsync = if durability == Durability::Unsynced { "no" } else { "always" };
    command.args(["--port", "0", "--appendonly", "yes", "--appendfsync", fsync, "--save", ""]);
    command.args(["--auto-aof-rewrite-percentage", "0", "--unixsocket"]).arg(&socket);
    command.stdout(Stdio::null());
    let mut process = Process::start(&mut command, house.log())?;
    let begun = Instant::now();
    let first = loop {
        if process.has_ended() {
            return Err(process.ended("it served"));
        }
        match Redis::connect(&socket) {
            Some(redis) => break redis,
            None if begun.elapsed() > PATIENCE => return Err(process.ended("it served in time")),
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let others = (0..Program::Redis.clients()).filter_map(|_| Redis::connect(&socket));
    let sessions = std::iter::once(first).chain(others);
    let sessions = sessions.map(|one| Arc::new(Mutex::new(Box::new(one) as Box<dyn Session>)));
    Ok(Running { process, sessions: sessions.collect() })
}

struct Redis(BufReader<UnixStream>);

fn broken(error: std::io::Error) -> Error {
    Error::unavailable(format!("redis-server: {error}"))
}

impl Redis {
    /// A connection, once it has loaded.
    fn connect(socket: &PathBuf) -> Option<Self> {
        let stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let mut redis = Self(BufReader::new(stream));
        (redis.ask("PING").ok()? == "+PONG").then_some(redis)
    }

    fn say(&mut self, text: &str) -> Result<()> {
        self.0.get_mut().write_all(text.as_bytes()).map_err(broken)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => Err(Error::unavailable("redis-server: it closed the connection")),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(broken(error)),
        }
    }

    /// A reply: a line, or a string; none for no string.
    fn reply(&mut self) -> Result<Option<String>> {
        let line = self.line()?;
        let Some(len) = line.strip_prefix('$') else { return Ok(Some(line)) };
        let Ok(len) = len.parse::<usize>() else { return Ok(None) };
        let mut bytes = vec![0; len + 2];
        self.0.read_exact(&mut bytes).map_err(broken)?;
        bytes.truncate(len);
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn ask(&mut self, command: &str) -> Result<String> {
        self.say(&format!("{command}\r\n"))?;
        Ok(self.reply()?.unwrap_or_default())
    }
}

impl Session for Redis {
    fn write(&mut self, key: u64, value: &str) -> Result<()> {
        match self.ask(&format!("SET {key} {value}"))?.as_str() {
            "+OK" => Ok(()),
            said => Err(Error::unavailable(format!("redis-server: {said}"))),
        }
    }

    fn compact(&mut self) -> Result<()> {
        let begun = self.ask("BGREWRITEAOF")?;
        let is_over = |info: &str| {
            let lines = ["aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"];
            lines.iter().all(|line| info.contains(line))
        };
        loop {
            let info = self.ask("INFO persistence")?;
            if is_over(&info) && info.contains("aof_last_bgrewrite_status:ok") {
                return Ok(());
            }
            if is_over(&info) {
                return Err(Error::unavailable(format!("redis-server: BGREWRITEAOF: {begun}")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn read(&mut self, keys: &[u64]) -> Result<Vec<Option<String>>> {
        let mut values = Vec::new();
        for some in keys.chunks(READS) {
            let text: String = some.iter().map(|key| format!("GET {key}\r\n")).collect();
            self.say(&text)?;
            for _ in some {
                values.push(self.reply()?);
            }
        }
        Ok(values)
    }
}

fn sqlite(house: &mut House, mut command: Command, durability: Durability) -> Result<Running> {
    let mut process = Process::start(command.arg("t.db").stdout(Stdio::piped()), house.log())?;
    let (input, output) = process.pipes().ok_or_else(|| process.ended("it was there"))?;
    let mut sqlite = Sqlite { input, output };
    let synchronous = if durability == Durability::Unsynced { "off" } else { "full" };
    sqlite.expect("pragma journal_mode=wal;", "wal").map_err(|_| process.ended("it served"))?;
    sqlite.expect(
        &format!(
            "pragma synchronous={synchronous}; pragma wal_autocheckpoint=0; create table if not \
             exists t(k integer primary key, v text); pragma integrity_check;"
        ),
        "0\nok",
    )?;
    let session: Box<dyn Session> = Box::new(sqlite);
    Ok(Running { process, sessions: vec![Arc::new(Mutex::new(session))] })
}

struct Sqlite {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Sqlite {
    fn ask(&mut self, text: &str) -> Result<String> {
        let ended = || Error::unavailable("sqlite3: it has ended");
        writeln!(self.input, "{text}").map_err(|_| ended())?;
        self.line()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(1..) => Ok(line.trim_end().to_owned()),
            _ => Err(Error::unavailable("sqlite3: it has ended")),
        }
    }

    /// Asks, and takes these lines only.
    fn expect(&mut self, text: &str, expected: &str) -> Result<()> {
        let mut said = self.ask(text)?;
        for _ in expected.lines().skip(1) {
            said = format!("{said}\n{}", self.line()?);
        }
        if said == expected {
            return Ok(());
        }
        Err(Error::corruption(format!("sqlite3: '{said}' is its answer to {text}")))
    }
}

impl Session for Sqlite {
    fn write(&mut self, key: u64, value: &str) -> Result<()> {
        self.expect(&format!("insert into t values({key}, '{value}'); select 'ok';"), "ok")
    }

    fn compact(&mut self) -> Result<()> {
        self.expect("pragma wal_checkpoint(truncate);", "0|0|0")
    }

    fn read(&mut self, keys: &[u64]) -> Result<Vec<Option<String>>> {
        let mut values = Vec::new();
        for key in keys {
            let ask = format!("select ifnull((select v from t where k = {key}), '-');");
            values.push(Some(self.ask(&ask)?).filter(|value| value != "-"));
        }
        Ok(values)
    }
}
