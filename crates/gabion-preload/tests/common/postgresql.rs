//! PostgreSQL for tests: a data directory, its server, and sessions over a Unix socket.

#[path = "postgresql_client.rs"]
mod client;

use crate::common::{Run, copy_plain, interposer};
pub(crate) use client::PATIENCE;
use client::program;
pub(crate) use client::{GLOBS, Session, Workers};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes of a segment.
pub(crate) const SEGMENT: u64 = 1 << 20;

/// The place of a test's servers, and the user that they run as.
pub(crate) struct Site {
    home: PathBuf,
    /// PostgreSQL refuses to run as root.
    user: Option<(u32, u32)>,
}

impl Site {
    /// A site below a directory that every user may enter. It is made once.
    pub(crate) fn new(home: &Path) -> Self {
        let site = Self { home: home.to_path_buf(), user: client::user() };
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
        let found = gabion_mirror::program::find(&program(name));
        let found = found.unwrap_or_else(|error| panic!("PostgreSQL: {error}"));
        let mut command = run.command(&found);
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
        Session::new(&self.sockets())
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

    /// The last words of servers.
    pub(crate) fn log(&self) -> String {
        let log = std::fs::read_to_string(self.home.join("postgresql.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// PostgreSQL's own check of all tables and indexes.
    pub(crate) fn check(&self) {
        client::check(&self.sockets()).unwrap_or_else(|said| panic!("{said}\n{}", self.log()));
    }

    /// Copies what a lost machine's disk has for sure: all that a checkpoint has just synced, while
    /// nobody writes. The write-ahead log is no part of it.
    pub(crate) fn copy_synced(session: &mut Session, root: &Path, to: &Path) {
        session.ask("checkpoint").unwrap();
        let _ = std::fs::remove_dir_all(to);
        copy_plain(root, to);
    }
}
