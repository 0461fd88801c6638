//! PostgreSQL, with the settings of docs/ncl/postgresql.md. pgbench has its clients.

use super::super::house::{Process, failed, said};
use super::pgbench::{DATABASE, Pgbench};
use super::{Drove, Load, Server, free_address};
use gabion_base::{Error, ErrorKind, Result};
use rustix::process::{Pid, Signal};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

/// Segments, their histories, and what becomes a segment by a new name.
pub(super) const GLOBS: &str = "pg_wal/0???????*,pg_wal/xlogtemp.*,pg_wal/RECOVERY*";
/// Most clients: each takes a branch of 100,000 accounts, as fewer would wait for each other.
pub(super) const CLIENTS_MAX: u64 = 16;
/// Debian's packages, each version in a directory of its own, which is not in `PATH`.
const PACKAGES: &str = "/usr/lib/postgresql";
const PROGRAMS: [&str; 4] = ["postgres", "initdb", "pgbench", "psql"];
/// The user that its package makes; it refuses root.
const USER: &str = "postgres";
/// The server's number, and its state.
const PID_FILE: &str = "postmaster.pid";
const READY: &str = "ready";
const PATIENCE: Duration = Duration::from_secs(120);
const TICK: Duration = Duration::from_millis(5);
const SETTINGS: [&str; 6] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "shared_buffers=256MB",
    "max_wal_size=256MB",
    "checkpoint_timeout=30min",
    "autovacuum=off",
];

/// The directory that has all of its programs: of the newest package, or one of `PATH`.
pub(super) fn programs() -> Option<PathBuf> {
    let packages = std::fs::read_dir(PACKAGES).into_iter().flatten().filter_map(|entry| {
        let entry = entry.ok()?;
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((version, entry.path().join("bin")))
    });
    let mut packages: Vec<(u32, PathBuf)> = packages.collect();
    packages.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let packages = packages.into_iter().rev().map(|(_, directory)| directory);
    let mut all = packages.chain(std::env::split_paths(&path));
    all.find(|directory| PROGRAMS.iter().all(|name| directory.join(name).is_file()))
}

/// User and group to run as, where this process is root's.
pub(super) fn user() -> Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let number = |flag| {
        let output = Command::new("id").args([flag, USER]).output().ok()?;
        String::from_utf8_lossy(&output.stdout).trim().parse().ok()
    };
    let found = number("-u").zip(number("-g"));
    let text = format!("PostgreSQL refuses root, and there is no user {USER} to run it as");
    found.map(Some).ok_or_else(|| Error::new(ErrorKind::NotFound, text))
}

/// The place of a server, and its user.
pub(super) struct Site<'a> {
    /// Its program, the others beside it.
    pub(super) program: &'a Path,
    pub(super) place: &'a Path,
    pub(super) user: Option<(u32, u32)>,
    pub(super) log: PathBuf,
}

impl Site<'_> {
    /// One of its programs, as the user that may be.
    fn command(&self, command: &impl Fn(&Path) -> Command, name: &str) -> Command {
        let mut command = command(&self.program.with_file_name(name));
        command.arg("-D").arg(self.place);
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command
    }

    /// Makes a data directory, where there is none.
    fn make(&self, command: &impl Fn(&Path) -> Command) -> Result<()> {
        if self.place.join("PG_VERSION").exists() {
            return Ok(());
        }
        if let Some((user, group)) = self.user {
            chown(self.place, Some(user), Some(group)).map_err(failed(self.place))?;
        }
        let mut command = self.command(command, "initdb");
        command.args(["-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C", "-N"]);
        said(&mut command).map(drop)
    }
}

/// Whether its data can be in a directory.
pub(super) fn check(place: &Path) -> Result<()> {
    user()?.map_or(Ok(()), |(user, _)| check_way(place, user))
}

/// Whether its user may enter all directories down to one.
fn check_way(place: &Path, user: u32) -> Result<()> {
    let place = place.canonicalize().map_err(failed(place))?;
    let down: Vec<&Path> = place.ancestors().collect();
    for directory in down.into_iter().rev() {
        let metadata = std::fs::metadata(directory).map_err(failed(directory))?;
        if metadata.uid() != user && metadata.mode() & 1 == 0 {
            return Err(Error::invalid(format!(
                "--dir: PostgreSQL runs as {USER}, who may not enter {}",
                directory.display()
            )));
        }
    }
    Ok(())
}

struct Postgresql {
    process: Process,
    place: PathBuf,
    pgbench: Pgbench,
    psql: PathBuf,
}

pub(super) fn start(
    site: &Site<'_>,
    command: impl Fn(&Path) -> Command,
    is_synced: bool,
    clients: u64,
) -> Result<Box<dyn Server>> {
    site.make(&command)?;
    let address = free_address("postgres")?;
    let mut server = site.command(&command, "postgres");
    server.args(["-p", &address.port().to_string()]);
    let commit = format!("synchronous_commit={}", if is_synced { "on" } else { "off" });
    for setting in SETTINGS.into_iter().chain([&*commit]) {
        server.args(["-c", setting]);
    }
    let process = Process::start(server.stdout(Stdio::null()), site.log.clone())?;
    let pgbench = Pgbench {
        program: site.program.with_file_name("pgbench"),
        words: words(address),
        log: site.log.with_extension("pgbench"),
        scale: clients,
        connecting: Duration::ZERO,
    };
    let (place, psql) = (site.place.to_owned(), site.program.with_file_name("psql"));
    let mut server = Postgresql { process, place, pgbench, psql };
    let begun = Instant::now();
    while server.state().is_none_or(|(_, is_ready)| !is_ready) {
        if server.process.has_ended() || begun.elapsed() > PATIENCE {
            return Err(server.process.ended("it served"));
        }
        thread::sleep(TICK);
    }
    Ok(Box::new(server))
}

/// Options of clients: the server and its database.
fn words(address: SocketAddr) -> Vec<String> {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    ["-h", &host, "-p", &port, "-U", USER].map(str::to_owned).to_vec()
}

impl Postgresql {
    /// The number of the server's first process, and whether it serves.
    fn state(&self) -> Option<(Pid, bool)> {
        read_state(&std::fs::read_to_string(self.place.join(PID_FILE)).ok()?)
    }
}

/// Its first line is the number, the last one the state.
fn read_state(text: &str) -> Option<(Pid, bool)> {
    let process = Pid::from_raw(text.lines().next()?.parse().ok()?)?;
    Some((process, text.lines().last().is_some_and(|state| state.trim() == READY)))
}

impl Server for Postgresql {
    fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The accounts, and a checkpoint, so that none of what comes is the load's.
    fn load(&mut self, _stop: &AtomicBool) -> Result<()> {
        self.pgbench.load()?;
        let mut command = Command::new(&self.psql);
        command.args(["-X", "-q", "-c", "checkpoint"]).args(&self.pgbench.words).arg(DATABASE);
        said(&mut command).map(drop)
    }

    fn drive(
        &mut self,
        load: Load,
        clients: u64,
        time: Duration,
        stop: &AtomicBool,
    ) -> Result<Drove> {
        self.pgbench.drive(load.name, clients.min(CLIENTS_MAX), time, stop)
    }
}

impl Drop for Postgresql {
    /// Its processes have sessions of their own, so no signal to a group ends all of them.
    fn drop(&mut self) {
        if let Some((process, _)) = self.state() {
            self.process.stop_by(process, Signal::QUIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::ScratchDir;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_on_the_way_that_its_user_may_not_enter_is_named() {
        let dir = ScratchDir::new(&std::env::temp_dir()).unwrap();
        let below = dir.path().join("below");
        std::fs::create_dir(&below).unwrap();
        let owner = std::fs::metadata(&below).unwrap().uid();
        let set = |mode| std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode));
        set(0o711).unwrap();
        check_way(&below, owner + 1).unwrap();
        set(0o710).unwrap();
        check_way(&below, owner).unwrap();
        let error = check_way(&below, owner + 1).unwrap_err().to_string();
        let name = dir.path().display();
        assert!(error.ends_with(&format!("postgres, who may not enter {name}")), "{error}");
    }

    #[test]
    fn a_server_serves_once_its_file_says_so() {
        let text = "812\n/data\n1764325\n5432\n\n127.0.0.1\n  5 0\n";
        let state = |end: &str| read_state(&format!("{text}{end}"));
        let process = Pid::from_raw(812);
        assert_eq!(state("ready   \n"), process.map(|process| (process, true)));
        assert_eq!(state("starting\n"), process.map(|process| (process, false)));
        assert_eq!(read_state("812\n"), process.map(|process| (process, false)));
        assert_eq!(read_state(""), None);
        assert_eq!(read_state("-\nready\n"), None);
    }
}
