//! One command for everything a contributor does; CI only calls it.
//!
//! ```text
//! cargo xtask ci            what .ci/run runs: format, lints, tests, licences, seeds, real components
//! cargo xtask check         the quick part of it: format, counts in the sources, lints, links of
//!                           documentation, licences, rooms, the tests that docs/faults.md names
//! cargo xtask ratchet       records counts that are better; `check` fails where one is worse
//! cargo xtask faults        writes the tests of each fault, as the sources name them, into docs/faults.md
//! cargo xtask seeds [N]     N seeds of the simulator (default 300), which rotate by commit
//! cargo xtask interleavings what threads share without a lock (MemTables, open files, decoders): every order of their steps
//! cargo xtask guest         our NVMe/TCP initiator against Linux's nvmet-tcp in a guest
//! cargo xtask redis         redis-benchmark, redis-cli and redis-py against a real cluster
//! cargo xtask redis-suites [tcl|redis-py]
//!                           the test suites of Redis and of redis-py against a real cluster: what fails is listed
//! cargo xtask clients [NAME...]
//!                           client libraries of Redis in five languages against a real cluster
//! cargo xtask kills [N]     N times (default 20) kill -9 of every process under load, and of some: nothing
//!                           acknowledged is lost; GABION_KILL_SEED picks options and victims
//! cargo xtask failovers [ROUNDS]
//!                           faults of replicas and links (default 10) under load, in a network
//!                           of its own; every answer is checked; needs root
//! cargo xtask ncl [KILLS]   redis-server, sqlite3 and PostgreSQL under the interposer, killed
//!                           KILLS times (default 6); call scripts with and without it
//! cargo xtask ncl-points [N]
//!                           the same programs ended at N of their calls (default 500), a peer lost
//!                           each time
//! cargo xtask etcd          the controller's store on a real etcd, killed and stopped
//! cargo xtask walk [one]    five nodes, two controllers, three members of etcd, TLS, clients of
//!                           three languages: through the loss of each; of one group; as root
//! cargo xtask page          the status page in a headless Chromium, through a fail-over
//! cargo xtask staged        five faults of nodes, one after the other: page, `status`, `top` and
//!                           `doctor` name the member and the fault; as root
//! cargo xtask shipping      what secondaries read, what is on the wire, what `verify` finds
//! cargo xtask soak [HOURS]  everything at length; shards resume
//! cargo xtask bench [PART [DIR]]
//!                           the figures of docs/benchmarks.md: engine, replication and a page
//!                           of them, ncl, or all
//! ```
#![allow(clippy::disallowed_methods, reason = "a program that runs programs, not a core")]
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

mod bench;
mod clients;
mod cluster;
mod etcd;
mod failovers;
mod faults;
mod golang;
mod kills;
mod ncl;
mod ncl_suites;
mod page;
mod porcupine;
mod python;
mod ratchet;
mod redis;
mod rooms;
mod shipping;
mod soak;
mod sources;
mod staged;
mod steps;
mod suites;
mod walk;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask ci|check|ratchet|faults|seeds [N]|interleavings|guest|\
     redis|redis-suites [tcl|redis-py]|clients [NAME...]|kills [N]|failovers [ROUNDS]|\
     ncl [KILLS]|ncl-points [N]|ncl-suites [redis|sqlite|sqlite-split]|etcd|walk [one]|page|staged|\
     shipping|soak [HOURS]|bench [PART [DIR]] (see xtask/src/main.rs)";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["ci"] => steps::ci(),
        ["check"] => steps::check(),
        ["ratchet"] => ratchet::tighten(),
        ["faults"] => faults::check(true),
        ["seeds"] => steps::seeds(300),
        ["seeds", count] => match count.parse() {
            Ok(count) => steps::seeds(count),
            Err(_) => Err(format!("'{count}' is not a number of seeds")),
        },
        ["interleavings"] => steps::interleavings(),
        ["guest"] => steps::guest(),
        ["redis"] => redis::check(),
        ["redis-suites"] => suites::check(None),
        ["redis-suites", suite @ ("tcl" | "redis-py")] => suites::check(Some(suite)),
        ["clients", ref names @ ..] => clients::check(names),
        ["kills"] => kills::check(None),
        ["kills", count] => match count.parse() {
            Ok(count) if count > 0 => kills::check(Some(count)),
            _ => Err(format!("'{count}' is not a number of kills")),
        },
        ["failovers"] => failovers::check(failovers::ROUNDS),
        ["failovers", rounds] => match rounds.parse() {
            Ok(rounds) if rounds > 0 => failovers::check(rounds),
            _ => Err(format!("'{rounds}' is not a number of rounds")),
        },
        ["failovers-inside", program, dir, rounds, first] => {
            failovers::inside(program, dir, rounds, first)
        }
        ["cut-link", ref words @ ..] => failovers::cut_link(words),
        ["ncl"] => ncl::check(ncl::KILLS),
        ["ncl", kills] => match kills.parse() {
            Ok(kills) if kills > 0 => ncl::check(kills),
            _ => Err(format!("'{kills}' is not a number of kills")),
        },
        ["ncl-points"] => ncl::points(ncl::POINTS_SOAK),
        ["ncl-points", count] => match count.parse() {
            Ok(count) if count > 0 => ncl::points(count),
            _ => Err(format!("'{count}' is not a number of calls")),
        },
        ["ncl-suites", ref names @ ..] => ncl_suites::check(names),
        ["etcd"] => etcd::check(),
        ["walk", ref words @ ..] => walk::check(words),
        ["walk-inside", dir] => walk::inside(dir),
        ["page"] => page::check(),
        ["staged", ref words @ ..] => staged::check(words),
        ["shipping"] => shipping::check(),
        ["soak"] => soak::soak(1.0),
        ["soak", hours] => match hours.parse() {
            Ok(hours) if hours > 0.0 => soak::soak(hours),
            _ => Err(format!("'{hours}' is not a number of hours")),
        },
        ["bench"] => bench::bench("all", None),
        ["bench", part] => bench::bench(part, None),
        ["bench", part, directory] => bench::bench(part, Some(directory)),
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
