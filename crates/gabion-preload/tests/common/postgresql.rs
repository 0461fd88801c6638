//! PostgreSQL for tests: a data directory, its server, and sessions over a Unix socket.

use crate::common::{Run, copy_plain, interposer};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Segments, their histories, and what becomes a segment by a new name.
pub(crate) const GLOBS: &str = "pg_wal/0???????*,pg_wal/xlogtemp.*,pg_wal/RECOVERY*";

/// Bytes of a segment.
pub(crate) const SEGMENT: u64 = 1 << 20;

const PATIENCE: Duration = Duration::from_secs(60);
const SOCKET: &str = ".s.PGSQL.5432";

/// The place of Debian's package, which is not in `PATH`.
const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";

fn program(name: &str) -> PathBuf {
    let packaged = Path::new(PROGRAMS).join(name);
    let path = if packaged.exists() { packaged } else { PathBuf::from(name) };
    let found = gabion_mirror::program::find(&path);
    found.unwrap_or_else(|error| panic!("{name} of PostgreSQL: {error}"))
}

/// The place of a test's servers, and the user that they run as.
pub(crate) struct Site {
    home: PathBuf,
    /// PostgreSQL refuses to run as root.
    user: Option<(u32, u32)>,
}

impl Site {
    /// A site below a directory that every user may enter. It is made once.
    pub(crate) fn new(home: &Path) -> Self {
        let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
        let site = Self { home: home.to_path_buf(), user: is_root.then(postgres) };
        let sockets = site.sockets();
        if !sockets.exists() {
            // The build's own directory may be one that only root may enter.
            std::fs::copy(interposer(), site.interposer()).unwrap();
            for directory in [&sockets, &site.archive()] {
                std::fs::create_dir(directory).unwrap();
                site.own(directory);
            }
        }
        site
    }

    fn sockets(&self) -> PathBuf {
        self.home.join("postgresql")
    }

    /// A directory that a server may copy segments to.
    pub(crate) fn archive(&self) -> PathBuf {
        self.home.join("archive")
    }

    fn interposer(&self) -> PathBuf {
        self.home.join("interposer.so")
    }

    fn own(&self, directory: &Path) {
        if let Some((user, group)) = self.user {
            std::os::unix::fs::chown(directory, Some(user), Some(group)).unwrap();
        }
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700)).unwrap();
    }

    fn command(&self, run: &Run, name: &str, root: &Path) -> Command {
        let mut command = run.command(&program(name));
        command.env("LD_PRELOAD", self.interposer()).current_dir(root).process_group(0);
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command
    }

    /// Makes a data directory of one database and small segments; of a test's size.
    pub(crate) fn initdb(&self, run: &Run, root: &Path) {
        self.own(root);
        let mut command = self.command(run, "initdb", root);
        command.args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C"]);
        command.arg(format!("--wal-segsize={}", SEGMENT >> 20)).arg("-D").arg(root);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut command = self.command(run, "postgres", root);
        command.arg("--single").arg("-D").arg(root).arg("template1").stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // The other two are two thirds of the files, which each start syncs.
        let text = "update pg_database set datistemplate = false\ndrop database template0\n\
                    drop database postgres\ncreate extension amcheck\n";
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// A server's command, with these settings beside those that all tests have.
    pub(crate) fn server(&self, run: &Run, root: &Path, settings: &[&str]) -> Command {
        let mut command = self.command(run, "postgres", root);
        command.arg("-D").arg(root).arg("-k").arg(self.sockets());
        let usual = [
            "listen_addresses=",
            "autovacuum=off",
            // A start tries whether it can have as many, by two calls for each.
            "max_files_per_process=64",
            // In the directory, as nobody removes shared memory after a kill.
            "dynamic_shared_memory_type=mmap",
            "shared_buffers=16MB",
            "min_wal_size=2MB",
            "max_wal_size=8MB",
            "checkpoint_timeout=1h",
        ];
        for setting in usual.iter().chain(settings) {
            command.args(["-c", setting]);
        }
        let mut options = std::fs::File::options();
        let log = options.create(true).append(true).open(self.home.join("postgresql.log"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.unwrap());
        command
    }

    pub(crate) fn connect(&self) -> io::Result<Session> {
        Session::new(&self.sockets().join(SOCKET))
    }

    /// A session, once the server takes some; none if it ends before.
    pub(crate) fn wait(&self, child: &mut Child) -> Option<Session> {
        let begun = Instant::now();
        loop {
            let connected = self.connect();
            if connected.is_ok() || child.try_wait().unwrap().is_some() {
                return connected.ok();
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "no session: {:?}\n{}",
                connected.err(),
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What servers said last.
    pub(crate) fn log(&self) -> String {
        let log = std::fs::read_to_string(self.home.join("postgresql.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// PostgreSQL's own check of all tables and indexes.
    pub(crate) fn check(&self) {
        let mut command = Command::new(program("pg_amcheck"));
        command.args(["-U", "postgres", "--heapallindexed", "--parent-check", "-h"]);
        command.arg(self.sockets()).args(["--maintenance-db=template1", "-d", "template1"]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "pg_amcheck: {said}{errors}\n{}", self.log());
    }

    /// Copies what a lost machine's disk has for sure: all that a checkpoint has just synced, while
    /// nobody writes. The write-ahead log is no part of it.
    pub(crate) fn copy_synced(session: &mut Session, root: &Path, to: &Path) {
        session.ask("checkpoint").unwrap();
        let _ = std::fs::remove_dir_all(to);
        copy_plain(root, to);
    }
}

/// User and group of PostgreSQL's package.
fn postgres() -> (u32, u32) {
    let number = |flag| {
        let output = Command::new("id").args([flag, "postgres"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("the user postgres")
    };
    (number("-u"), number("-g"))
}

/// All processes that work in a data directory. They make sessions of their own, so no group of
/// processes has them. They end with this value.
pub(crate) struct Workers(pub(crate) PathBuf);

impl Workers {
    fn list(&self) -> Vec<i32> {
        let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_here = |process: &i32| {
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
            for process in processes {
                // SAFETY: the process works in this test's directory; no memory is touched.
                unsafe { libc::kill(process, libc::SIGKILL) };
            }
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
    fn new(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
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
        let sent = self.send(Some(b'Q'), format!("{text}\0").as_bytes());
        self.is_lost |= sent.is_err();
        sent.and_then(|()| self.answer())
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
