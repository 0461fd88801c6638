//! Needs of clients and tests of PostgreSQL: its programs, its user, its processes, and sessions.

use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Segments, their histories, and what becomes a segment by a new name.
pub(crate) const GLOBS: &str = "pg_wal/0???????*,pg_wal/xlogtemp.*,pg_wal/RECOVERY*";

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const SOCKET: &str = ".s.PGSQL.5432";

/// The place of Debian's package, which is not in `PATH`.
const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";

pub(crate) fn program(name: &str) -> PathBuf {
    let packaged = Path::new(PROGRAMS).join(name);
    if packaged.exists() { packaged } else { PathBuf::from(name) }
}

/// PostgreSQL's own check of all tables and indexes; its words if they are not as they must be.
pub(crate) fn check(sockets: &Path) -> Result<(), String> {
    let mut command = Command::new(program("pg_amcheck"));
    command.args(["-U", "postgres", "--heapallindexed", "--parent-check", "-h"]).arg(sockets);
    command.args(["--maintenance-db=template1", "-d", "template1"]);
    let output = command.output().unwrap();
    let [said, errors] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if output.status.success() { Ok(()) } else { Err(format!("pg_amcheck: {said}{errors}")) }
}

/// User and group to run as: PostgreSQL refuses root, and its package has a user of its own.
pub(crate) fn user() -> Option<(u32, u32)> {
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let number = |flag| {
        let output = Command::new("id").args([flag, "postgres"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("the user postgres")
    };
    is_root.then(|| (number("-u"), number("-g")))
}

/// All processes that work in a data directory. They make sessions of their own, so no group of
/// processes has them. They end with this value.
pub(crate) struct Workers(PathBuf);

impl Workers {
    pub(crate) fn new(directory: &Path) -> Self {
        Self(directory.canonicalize().unwrap())
    }

    fn list(&self) -> Vec<String> {
        let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let numbers = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let is_here = |process: &String| {
            let directory = std::fs::read_link(format!("/proc/{process}/cwd"));
            directory.is_ok_and(|directory| directory == self.0)
        };
        numbers.filter(is_here).collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let begun = Instant::now();
        loop {
            let processes = self.list();
            if processes.is_empty() || begun.elapsed() > PATIENCE {
                return;
            }
            // One that has just ended is none of its errors.
            Command::new("sh").args(["-c", "kill -9 $*", "sh"]).args(processes).output().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A connection, by version 3 of PostgreSQL's protocol.
pub(crate) struct Session {
    stream: UnixStream,
    /// The server or the session's process has ended.
    pub(crate) is_lost: bool,
}

impl Session {
    /// Of a server whose socket is in this directory.
    pub(crate) fn new(sockets: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(sockets.join(SOCKET))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut session = Self { stream, is_lost: false };
        let mut start = 196_608_u32.to_be_bytes().to_vec();
        start.extend_from_slice(b"user\0postgres\0database\0template1\0\0");
        session.send(None, &start)?;
        session.answer().map(|_| session)
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
        let mut message: Vec<u8> = kind.into_iter().collect();
        message.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
        message.extend_from_slice(body);
        self.stream.write_all(&message)
    }

    fn message(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head)?;
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; len as usize - 4];
        self.stream.read_exact(&mut body)?;
        Ok((head[0], body))
    }

    /// Rows until the server is ready for more.
    fn answer(&mut self) -> io::Result<String> {
        let (mut rows, mut refused) = (Vec::new(), None);
        loop {
            match self.message() {
                Ok((b'D', body)) => rows.push(row(&body)),
                Ok((b'E', body)) => refused = Some(io::Error::other(reason(&body))),
                Ok((b'Z', _)) => return refused.map_or(Ok(rows.join("\n")), Err),
                Ok(_) => {}
                Err(error) => {
                    self.is_lost = true;
                    return Err(refused.unwrap_or(error));
                }
            }
        }
    }

    /// Asks one thing, in a transaction of its own, which has committed when this returns. Rows are
    /// lines, columns divided by blanks.
    pub(crate) fn ask(&mut self, text: &str) -> io::Result<String> {
        self.tell(text).and_then(|()| self.answer())
    }

    /// The same, without a wait for the answer.
    pub(crate) fn tell(&mut self, text: &str) -> io::Result<()> {
        let sent = self.send(Some(b'Q'), format!("{text}\0").as_bytes());
        self.is_lost |= sent.is_err();
        sent
    }

    /// Asks for numbers of one row.
    pub(crate) fn numbers(&mut self, text: &str) -> io::Result<Vec<u64>> {
        let said = self.ask(text)?;
        Ok(said.split(' ').map(|word| word.parse().expect("a number")).collect())
    }
}

/// Number of columns, then length and bytes of each; −1 for none.
fn row(mut body: &[u8]) -> String {
    let mut columns = Vec::new();
    body = &body[2..];
    while let Some((len, rest)) = body.split_first_chunk() {
        let len = i32::from_be_bytes(*len).max(0) as usize;
        columns.push(String::from_utf8_lossy(&rest[..len]).into_owned());
        body = &rest[len..];
    }
    columns.join(" ")
}

/// Fields of a letter and a text each, which ends with a zero; `M` is for people.
fn reason(body: &[u8]) -> String {
    let texts = body.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let found = texts.into_iter().find_map(|text| text.strip_prefix('M').map(str::to_owned));
    found.unwrap_or_default()
}
