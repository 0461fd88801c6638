//! What a replica's process is told when it starts, and how it ends.

use gabion_base::{Error, ErrorKind, GroupId, ReplicaId, Result};
use gabion_fabric::BackendChoice;
use gabion_host::RunOptions;
use gabion_node::NodeOptions;
use gabion_replication::Addresses;
use gabion_tls::ServerFiles;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where another member of the group is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// The member.
    pub replica: ReplicaId,
    /// Its door for members.
    pub peer: SocketAddr,
    /// Its NVMe/TCP target.
    pub target: SocketAddr,
    /// Its door for clients.
    pub resp: SocketAddr,
}

/// The machine that a replica runs on, and where it is reached there. Controllers are told, and put
/// it into the next view, from which members learn of those that were not there when they started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Home {
    /// The number of the machine; 0 where no registry of machines exists.
    pub node: u64,
    /// Empty where every member knows them from its settings.
    pub addresses: Addresses,
}

/// Default of [`ServerConfig::client_input_bytes`].
pub const INPUT_BYTES: usize = 2 << 30;

/// How a replica's process runs. The group's configuration is in the pool.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The group; must be the one that the pool was made for.
    pub group: GroupId,
    /// This member; must be the one that the pool was made for.
    pub replica: ReplicaId,
    /// The replica's directory: the files `pool` and `ring`.
    pub data: PathBuf,
    /// Door for Redis clients. Loopback only, as there is no authentication yet.
    pub resp: SocketAddr,
    /// Door for other members.
    pub peer_listen: SocketAddr,
    /// Where the embedded NVMe/TCP target listens.
    pub target_listen: SocketAddr,
    /// Where this replica runs.
    pub home: Home,
    /// The other members, as far as they are known. Others come by the views that run.
    pub peers: Vec<PeerAddress>,
    /// How the pool is read and written.
    pub io: BackendChoice,
    /// Memory for decoded blocks of files, in bytes. `CONFIG SET` changes it while the process
    /// lives, and so the two that follow.
    pub block_cache_bytes: usize,
    /// Memory for indexes and filters of open files, in bytes; about 2 % of the files that are
    /// read.
    pub open_files_bytes: usize,
    /// Bytes of requests that may wait of all connections of clients together, those in the middle
    /// among them. Past it the connection that holds most ends with an error. [`INPUT_BYTES`]
    /// unless there is a reason.
    pub client_input_bytes: usize,
    /// Steps, 0 to [`gabion_proc::STEPS_MAX`], by which the threads that compact, ship, receive
    /// files and warm the cache stand back behind those that answer clients and members; the one
    /// that flushes by half as many.
    pub jobs_nice: u8,
    /// Who may connect and do what.
    pub security: SecurityConfig,
    /// Heartbeats, windows, grants; and how many compactions may run at once, 1 to
    /// [`RunOptions::COMPACTIONS_MAX`].
    pub node: NodeOptions,
}

/// Who may connect to the door for clients, and what they may do (docs/security.md).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityConfig {
    /// A second door for clients, where all is encrypted. None unless it is asked for.
    pub tls: Option<TlsDoor>,
}

/// A door for clients where all is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsDoor {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its certificate, and whose it takes. The files are looked at once a second, and new
    /// connections begin with what is there.
    pub files: ServerFiles,
}

/// Why a process that ran ended.
#[derive(Debug)]
pub enum ExitReason {
    /// SIGTERM or SIGINT.
    Signal,
    /// The replica can no longer be trusted with its disk, or a part of the process failed. A
    /// new process starts from what is durable.
    Failed(Error),
}

/// The exit code of a process that cannot work as it is told, or with what the system gives it;
/// another would end as well.
pub const EXIT_CONFIGURATION: u8 = 78;

/// The exit code of a process whose pool or log is damaged: another would end as well, and the
/// other members have what it had.
pub const EXIT_DAMAGED: u8 = 65;

/// The process's exit code for what [`crate::run()`] returned: 0 after a signal, 70 after a failure
/// while it ran, 65 when the pool or the log is damaged, 75 when another process holds the pool, 78
/// for a configuration that cannot work, or limits of the system that are too low, else 1.
#[must_use]
pub fn exit_code(result: &Result<ExitReason>) -> u8 {
    match result {
        Ok(ExitReason::Signal) => 0,
        Ok(ExitReason::Failed(_)) => 70,
        Err(error) if error.kind() == ErrorKind::Busy => 75,
        Err(error) if error.kind() == ErrorKind::Corruption => EXIT_DAMAGED,
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::LimitExceeded
            ) =>
        {
            EXIT_CONFIGURATION
        }
        Err(_) => 1,
    }
}

impl ServerConfig {
    /// Checks what can be known without the pool.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.resp.ip().is_loopback() {
            return Err(Error::invalid(format!(
                "the door for clients is to listen on {}: there is no authentication yet, so only \
                 loopback addresses are possible",
                self.resp
            )));
        }
        let (count, most) = (self.node.compactions_max, RunOptions::COMPACTIONS_MAX);
        if !(1..=most).contains(&count) {
            return Err(Error::invalid(format!(
                "{count} compactions at once: 1 to {most} are possible"
            )));
        }
        let (steps, most) = (self.jobs_nice, gabion_proc::STEPS_MAX);
        if steps > most {
            return Err(Error::invalid(format!(
                "jobs that stand back by {steps} steps: 0 to {most} are possible"
            )));
        }
        Ok(())
    }
}
