//! The process of a replica.
//!
//! ```text
//!   connections ─► door ─► commands ─► NodeStore ─┐
//!   members     ─► mesh ─────────────────────────►├─► Node ─► work ─► loop's tasks, job threads,
//!   threads     ─► events ───────────────────────►┘                   ship thread, target thread
//! ```
//!
//! - [`run()`]: a replica from its directory until a signal; [`create_replica`]: such a directory.
//! - [`commands`]: what a Redis client may ask, from the words of a request to its reply.
//! - `server`: the loop of all services; `service`: the turns of one; `replica`: its files, node
//!   and threads, which `reopen` closes and opens.
//! - `door` and `client`: connections of clients (`listen` and `descriptors`: how many may come);
//!   `spread`: keys of other groups of the process;
//!   `mesh` and `peers`: connections of members, commands that they forward (`forward`) and what
//!   they are owed for them (`replies`).
//! - `control`: connections of controllers; `probe`: what shows them that the device works.
//! - `run`: commands at this node; `store`: the node as what commands run on; `shipping` and
//!   `warm`: threads (those of jobs: `gabion-host`); `admin`, `backup` and `status`: `GABION …`.
//! - [`metrics`]: the same numbers for Prometheus, over HTTP.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a shell: clocks, threads, files and sockets are its business"
)]
// `note!` in its place, which says why.
#![deny(clippy::print_stderr)]

/// Writes a line to standard error, which is the replica's log. That it cannot be written is no
/// reason to end, as it is for `eprintln!`, which panics when the disk of the log is full.
#[macro_export]
macro_rules! note {
    ($($part:tt)*) => {{
        // At once: a line that another process writes to the same file does not come between.
        let line = ::std::format!("{}\n", ::std::format_args!($($part)*));
        let _ = ::std::io::Write::write_all(&mut ::std::io::stderr(), line.as_bytes());
    }};
}

mod admin;
mod backup;
mod client;
pub mod commands;
mod config;
mod connections;
mod control;
mod descriptors;
mod door;
mod events;
mod failover;
mod forward;
mod host;
#[cfg(test)]
mod hostile;
mod listen;
mod marks;
mod mesh;
pub mod metrics;
mod peers;
mod probe;
mod process;
mod reopen;
mod replica;
mod replies;
mod retries;
#[cfg(test)]
mod rig;
mod routing;
mod run;
mod server;
mod service;
mod settings;
mod shipping;
mod spread;
mod start;
mod status;
mod stop;
mod store;
mod stream;
mod tls;
mod trust;
mod users;
mod vitals;
mod waits;
mod warm;

pub use admin::RecordDigest;
pub use config::{
    EXIT_CONFIGURATION, ExitReason, Home, INPUT_BYTES, PeerAddress, SecurityConfig, ServerConfig,
    TlsDoor, damaged_place, exit_code,
};
pub use gabion_fabric::BackendChoice;
pub use gabion_host::replica::{create_founder, create_joining, create_replica, random_id};
pub use gabion_replication::Addresses;
pub use gabion_tls::{ClientCertificates, ServerFiles};
pub use peers::preamble;
pub use spread::{NodeDoors, SpreadConfig};
pub use start::{run, run_all};
pub use status::memory_json;
pub use trust::{MembersTls, NodeNames};
pub use users::keep as keep_users;

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::{Command, Stdio};

    /// Set for the process that writes the note.
    const ROLE: &str = "GABION_TEST_NOTE";

    #[test]
    fn a_note_is_a_line_and_one_that_cannot_be_written_ends_nothing() {
        if std::env::var_os(ROLE).is_some() {
            note!("replica {}: {:?}", 7, "x");
            std::process::exit(3);
        }
        let writer = |stderr: Stdio| {
            Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "tests::a_note_is_a_line_and_one_that_cannot_be_written_ends_nothing",
                ])
                .env(ROLE, "1")
                .stderr(stderr)
                .output()
                .unwrap()
        };
        let heard = writer(Stdio::piped());
        assert_eq!((heard.status.code(), &heard.stderr[..]), (Some(3), &b"replica 7: \"x\"\n"[..]));
        let full = File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(writer(full.into()).status.code(), Some(3));
    }
}
