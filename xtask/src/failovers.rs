//! Faults of a real group under load, of links and disks among them, in a network of its own.
//!
//! ```text
//!   xtask failovers ─► unshare: network, mounts ─► xtask failovers-inside: loopback, cgroups
//!                                                    └─► gabion bench failover ─► gabion up
//!                                                          └─► xtask cut-link … ─► nft, cgroups
//! ```

pub(crate) mod disks;
pub(crate) mod links;

use crate::cluster::{need, need_space, program, run, scratch};
use crate::steps::{Step, head_commit};
pub(crate) use links::cut_link;
use std::path::Path;
use std::process::Command;

/// Rounds of the suite, and of the soak.
pub(crate) const ROUNDS: u32 = 10;
pub(crate) const ROUNDS_SOAK: u32 = 100;
/// A round's calm in the suite: just enough for figures.
const CALM_SECONDS: &str = "2";
/// Three pools and rings, and what `up` leaves free.
const DISK: u64 = 5 << 30;
const FAULTS: &str = "kill,stop,cut,cut-out,cut-in,hang";

/// The check: every fault at every role in turn, from one that follows from the commit, so that
/// they rotate.
pub(crate) fn check(rounds: u32) -> Step {
    println!(
        "\n── {rounds} faults of replicas, links and disks under load: every answer is checked"
    );
    need("nft", "nftables")?;
    need("ip", "iproute2")?;
    need_space("failovers", DISK)?;
    let program = program()?;
    let first = u64::from_str_radix(&head_commit()?, 16).unwrap_or(0);
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let dir = scratch("failovers")?;
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--"]).arg(own).arg("failovers-inside").arg(program);
    let ran = may_unshare()
        .and_then(|()| run(command.arg(&dir).args([rounds.to_string(), first.to_string()])));
    match ran {
        // Data of a violation is kept.
        Err(error) => Err(format!("{error}; see {}", dir.display())),
        Ok(()) => std::fs::remove_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display())),
    }
}

/// Whether links can be cut here.
fn may_unshare() -> Step {
    let tried = Command::new("unshare").args(["--net", "--mount", "--", "true"]).output();
    let tried = tried.map_err(|error| format!("unshare: {error}"))?;
    match tried.status.success() {
        true => Ok(()),
        false => Err(format!(
            "a network of its own, in which links are cut, needs root: {}",
            String::from_utf8_lossy(&tried.stderr).trim()
        )),
    }
}

/// The part in the network of its own.
pub(crate) fn inside(program: &str, dir: &str, rounds: &str, first: &str) -> Step {
    run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    links::mount_cgroups()?;
    disks::mount()?;
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let cut = format!("'{}' cut-link", own.display());
    let svg = Path::new(dir).join("failover.svg");
    let ran = run(Command::new(program)
        .args(["bench", "failover", "--dir", dir, "--rounds", rounds, "--first", first])
        .args(["--faults", FAULTS, "--calm", CALM_SECONDS, "--cut-command", &cut])
        .arg("--svg")
        .arg(svg));
    links::clear_cgroups();
    disks::clear();
    ran
}
