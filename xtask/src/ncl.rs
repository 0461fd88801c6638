//! Programs that know nothing of near-compute logs, unmodified, under the interposer.

use crate::cluster::need;
use crate::steps::{Step, run, test};

/// How often each program is killed and recovered.
pub(crate) const KILLS: u64 = 6;

/// Scripts of calls with and without the interposer, beside those of `cargo test`.
const SCRIPTS: &str = "300";

/// The check.
pub(crate) fn check(kills: u64) -> Step {
    println!("\n── Near-compute logs: call scripts, redis-server and sqlite3 under the interposer");
    need("redis-server", "redis-server")?;
    need("sqlite3", "sqlite3")?;
    need("strace", "strace")?;
    // The program that makes the calls of scripts.
    run("cargo", &["build", "-p", "gabion-preload", "--examples"], &[])?;
    let package = ["-p", "gabion-preload", "--test"];
    let env = [("GABION_SEEDS", SCRIPTS), ("GABION_FIRST_SEED", "10000")];
    test(&[&package[..], &["differential"]].concat(), &env)?;
    let programs = ["programs", "--", "--ignored", "--nocapture"];
    let kills = kills.to_string();
    let env = [("GABION_NCL_KILLS", kills.as_str())];
    test(&[&package[..], &programs].concat(), &env)?;
    // Controller, peers and programs as processes, which are killed.
    test(&["-p", "gabion", "--test", "ncl_peers", "--", "--include-ignored", "--nocapture"], &env)
}
