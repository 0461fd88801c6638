//! The command line of Gabion.
//!
//! ```text
//!   gabion up ──► cluster.json, one child process per replica, the status that redraws
//!     └─ gabion server (hidden) ──► gabion_server::run
//!   gabion controller, gabion node ──► the same on machines of their own
//!   gabion events | group | failover ── DATA/control/socket ──► the controller within up
//!   gabion cli | status | top | verify ── RESP ──► the replicas    verify --offline ──► the pools
//!   gabion backup ── RESP ──► the replica that answers reads    restore ──► new data of a copy
//!   gabion db ──► one replica's pool while nothing runs on it: looked into, copied, or used as a store
//!   gabion ncl peer | status ──► a log peer's process, and what it holds
//!   gabion ncl run ──► a program under the interposer, whose log files a store keeps
//!   gabion bench ──► gabion_bench, on replicas of its own      gabion destroy ──► removes the data
//! ```
//!
//! - [`options`]: the command line; [`units`]: sizes and times as people write them.
//! - [`cluster`]: the data directory: fixed settings, the lock, creation and removal.
//! - [`control`]: the controller within `up`, and those who ask it.
//! - [`machines`]: `gabion controller` and `gabion node`, and those who ask them.
//! - [`up`]: the supervisor; [`child`]: one replica's process; [`signals`]: what ends a supervisor;
//!   [`screen`]: the drawing.
//! - [`judgement`]: what is wrong with a group; [`quantile`]: quantiles of times.
//! - [`top`]: `gabion top`; [`doctor`]: `gabion doctor`.
//! - [`client`], [`door`], [`status`]: talking to replicas, also with TLS; [`repl`]: `gabion cli`;
//!   [`verify`]: `gabion verify`.
//! - [`lines`]: the input of a prompt.
//! - [`db`]: `gabion db`; [`at_rest`]: a pool that no process uses, opened for reading.
//! - [`backup`]: `gabion backup` and `gabion restore`.
//! - [`ca`]: `gabion ca`, certificates; [`security`]: options of doors.
//! - [`ncl`]: `gabion ncl`, near-compute logs.
//! - [`mod@bench`]: the replicas that `gabion bench` measures.
//!
//! Exit codes: 0 fine; 1 a difference, an error reply, or a replica that is not ready; 2 the
//! command could not be carried out; 128 and the signal's number (Ctrl-C: 130) when `up` was told
//! twice to stop and killed its replicas.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a shell: clocks, processes, files, sockets and the terminal are its business"
)]

mod at_rest;
mod backup;
mod bench;
mod ca;
mod child;
mod client;
mod cluster;
mod control;
mod db;
mod destroy;
mod doctor;
mod door;
mod engine;
mod filling;
mod judgement;
mod lines;
mod machines;
mod ncl;
mod options;
mod owned;
mod quantile;
mod repl;
mod screen;
mod security;
mod server;
mod signals;
mod status;
mod top;
mod units;
mod up;
mod verify;

use clap::Parser;
use gabion_base::Result;
use options::{Command, Options};
use rustix::fs::Mode;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Files of this process and of the replicas that it starts are for their owner alone: they hold
    // clients' data.
    let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => return options::refused(&error),
    };
    match run(options.command, mask) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("gabion: {error}");
            ExitCode::from(2)
        }
    }
}

/// `mask` is the one that this process was started with.
fn run(command: Command, mask: Mode) -> Result<u8> {
    match command {
        Command::Up(options) => up::run(&options),
        Command::Cli(options) => repl::run(&options),
        Command::Status(options) => status::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Events(options) => control::ask::events(&options),
        Command::Group(options) => machines::commands::group(&options),
        Command::Controller(options) => machines::controller::run(&options),
        Command::Node(options) => machines::commands::node(&options),
        Command::Failover(options) => control::ask::failover(&options),
        Command::Verify(options) => verify::run(&options),
        Command::Backup(options) => backup::run(&options),
        Command::Restore(options) => backup::restore::run(&options),
        Command::Db(options) => db::run(&options),
        Command::Bench(command) => bench::run(&command),
        Command::Ca(command) => ca::run(&command),
        Command::Ncl(command) => ncl::run(&command, mask),
        Command::Destroy(options) => destroy::run(&options),
        Command::Server(options) => server::run(&options),
    }
}
