//! A file system whose syncs are slow: `slow-syncs BACKING MOUNT MS`. Files lie in BACKING; a sync
//! hands all bytes to it, and returns after MS milliseconds more.
//!
//! ```text
//!   program ─ write ─► kernel's page cache ─ written back ─► this process ─► BACKING
//!           └ fsync ─► the same, and then ─────────────────► a thread that waits for MS
//! ```
//!
//! It stands for network storage in `gabion bench ncl`, whose servers have bytes in their memory
//! when a sync returns. So BACKING is not synced either: **nothing is durable here**. Writes go to
//! the page cache and are written back by the kernel, as with a disk. It needs root, or
//! `fusermount3`. Extended attributes and special files are not there.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program beside the cores: files, threads and clocks are its business"
)]

mod files;
mod system;

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use system::SlowSyncs;

const USAGE: &str = "slow-syncs BACKING MOUNT MS: two directories, and 1 to 10000 milliseconds";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slow-syncs: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [backing, mount, ms] = &words[..] else { return Err(USAGE.to_owned()) };
    let valid = ms.parse().ok().filter(|ms| (1..=10_000).contains(ms));
    let ms = valid.ok_or_else(|| format!("{ms} ms: 1 to 10000 are valid"))?;
    let backing = directory(backing)?;
    let mount = directory(mount)?;
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|e| format!("signals: {e}"))?;
    let session = start(backing, &mount, Duration::from_millis(ms))?;
    println!("mounted");
    // The first one ends it, unless nobody sends any more.
    let _ = signals.forever().next();
    session.umount_and_join().map_err(|e| format!("{}: {e}", mount.display()))
}

fn start(backing: PathBuf, mount: &Path, takes: Duration) -> Result<BackgroundSession, String> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("slow-syncs".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
    ];
    // Files have owners as elsewhere, and some programs refuse to be root's.
    let is_root = rustix::process::geteuid().is_root();
    config.acl = if is_root { SessionACL::All } else { SessionACL::Owner };
    let system = SlowSyncs::new(backing, takes);
    fuser::spawn_mount(system, mount, &config).map_err(|e| format!("{}: {e}", mount.display()))
}

fn directory(path: &str) -> Result<PathBuf, String> {
    let found = Path::new(path).canonicalize().map_err(|e| format!("{path}: {e}"))?;
    if found.is_dir() { Ok(found) } else { Err(format!("{path}: it is no directory")) }
}
