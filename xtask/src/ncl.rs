//! Programs that know nothing of near-compute logs, unmodified, under the interposer.

use crate::cluster::{self, need};
use crate::steps::{Step, head_commit, run, test};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// How often each program is killed and recovered.
pub(crate) const KILLS: u64 = 3;

/// Scripts of calls with and without the interposer, beside those of `cargo test`.
const SCRIPTS: u64 = 300;

/// Calls at which each program is ended, in CI and in the soak.
const POINTS: u64 = 6;
pub(crate) const POINTS_SOAK: u64 = 500;

/// The source that only an interposer with a planted death has.
const PLANTED: &str = "crates/gabion-preload/src/planted.rs";

/// The server, which Debian keeps out of `PATH`; its package has the clients and checks too.
const POSTGRESQL: &str = "/usr/lib/postgresql/15/bin/postgres";

/// Room that data directories of PostgreSQL may take in memory.
const MEMORY: u64 = 1 << 30;

/// A directory for those of programs that are killed, which goes with this value: in memory, if
/// there is room. A kill loses none of the kernel's pages, and PostgreSQL's starts sync all of its
/// files.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self, String> {
        let memory = Path::new("/dev/shm");
        let has_room = cluster::free_space(memory).is_ok_and(|free| free >= MEMORY);
        let parent = if has_room { memory.to_owned() } else { std::env::temp_dir() };
        let path = parent.join(format!("gabion-ncl-check-{}", std::process::id()));
        let made = std::fs::create_dir_all(&path);
        made.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }

    fn name(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A failed test has said all in its output.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The check.
pub(crate) fn check(kills: u64) -> Step {
    println!("\n── Near-compute logs: call scripts, and programs interposed");
    programs()?;
    need("strace", "strace")?;
    scripts(10_000, SCRIPTS)?;
    let package = ["-p", "gabion-preload", "--test"];
    let programs = ["programs", "--", "--ignored", "--nocapture"];
    let kills = kills.to_string();
    let place = Directory::new()?;
    let temporary = place.name();
    let kills = [("GABION_NCL_KILLS", kills.as_str()), ("TMPDIR", temporary.as_str())];
    test(&[&package[..], &programs].concat(), &kills)?;
    // Controller, peers and programs as processes, which are killed. Each `ncl run` that is leaves
    // a directory with the interposer, which is not for memory.
    let env = [kills[0]];
    test(&["-p", "gabion", "--test", "ncl_peers", "--", "--ignored", "--nocapture"], &env)?;
    points(POINTS)
}

/// The programs, and those of the tests: which make the calls of scripts, write to RocksDB, and
/// note what was synced.
fn programs() -> Step {
    need("redis-server", "redis-server")?;
    need("sqlite3", "sqlite3")?;
    need(POSTGRESQL, "postgresql-15")?;
    // With it comes RocksDB's library.
    need("ldb", "rocksdb-tools")?;
    run("cargo", &["build", "-p", "gabion-preload", "--examples"], &[])
}

/// Scripts of calls with and without the interposer, from that one on.
pub(crate) fn scripts(first: u64, count: u64) -> Step {
    // The program that makes their calls.
    run("cargo", &["build", "-p", "gabion-preload", "--examples"], &[])?;
    let (first, count) = (first.to_string(), count.to_string());
    let env = [("GABION_SEEDS", count.as_str()), ("GABION_FIRST_SEED", first.as_str())];
    test(&["-p", "gabion-preload", "--test", "differential"], &env)
}

/// Each program ends at so many of its calls, one after the other, with a log peer lost each time;
/// which calls follows from the commit.
pub(crate) fn points(count: u64) -> Step {
    programs()?;
    let seed = u64::from_str_radix(&head_commit()?, 16).unwrap_or(1).to_string();
    let count = count.to_string();
    // A shared library has one name whatever its features are: this file is of this build alone, so
    // the library is made again if another build has taken its place.
    let changed = File::options().write(true).open(PLANTED);
    let changed = changed.and_then(|file| file.set_modified(SystemTime::now()));
    changed.map_err(|error| format!("{PLANTED}: {error}"))?;
    let place = Directory::new()?;
    let temporary = place.name();
    let env = [
        ("GABION_NCL_POINTS", count.as_str()),
        ("GABION_FIRST_SEED", seed.as_str()),
        ("TMPDIR", temporary.as_str()),
    ];
    let package = ["-p", "gabion-preload", "--features", "planted", "--test", "kill_points"];
    let all = ["--", "--include-ignored", "--nocapture"];
    test(&[&package[..], &all].concat(), &env)
}
