//! What a replica's process is told when it starts, and how it ends.

use crate::commands::Users;
use crate::spread::SpreadConfig;
use crate::trust::MembersTls;
use gabion_base::{Error, ErrorKind, GroupId, ReplicaId, Result};
use gabion_fabric::BackendChoice;
use gabion_host::RunOptions;
use gabion_node::NodeOptions;
use gabion_replication::Addresses;
use gabion_tls::{ClientCertificates, ServerFiles};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

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
    /// Door for Redis clients. Other than loopback it takes a user with a password.
    pub resp: SocketAddr,
    /// Door for other members.
    pub peer_listen: SocketAddr,
    /// Where the embedded NVMe/TCP target listens.
    pub target_listen: SocketAddr,
    /// Address of `/metrics` over HTTP, if it is served. A port that cannot be had is noted in the
    /// log and tried again, and the replica serves meanwhile.
    pub metrics: Option<SocketAddr>,
    /// The machine of this replica.
    pub home: Home,
    /// The other members, as far as they are known. Others come by the views that run.
    pub peers: Vec<PeerAddress>,
    /// The group's place among several over which keys are spread.
    pub spread: Option<SpreadConfig>,
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
    /// Users, their rights, and TLS for clients.
    pub security: SecurityConfig,
    /// Heartbeats, windows, grants; and how many compactions may run at once, 1 to
    /// [`RunOptions::COMPACTIONS_MAX`].
    pub node: NodeOptions,
}

/// Clients that may connect to their door, and their rights (docs/security.md).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityConfig {
    /// A second door for clients, where all is encrypted. None unless it is asked for.
    pub tls: Option<TlsDoor>,
    /// File of users, in the format of Redis's. Looked at once a second: what another process has
    /// written there counts here. None: those of the controller, or of this process alone.
    pub aclfile: Option<PathBuf>,
    /// File in which this replica keeps the users that the controller tells; nothing of `aclfile`
    /// then. It is read at the start, so that a replica without a controller knows its users.
    /// None: no controller keeps users. With several groups that of the first one counts.
    pub users_kept: Option<PathBuf>,
    /// File with the password of the user `default`, a last line feed aside. None: that of
    /// `aclfile`, or none is wanted.
    pub requirepass_file: Option<PathBuf>,
    /// Password of the user `gabion:operator`, who may do everything: the process that started
    /// this one shows it. None: there is no such user.
    pub operator: Option<String>,
    /// Certificates for connections with controllers and other members. None: whoever reaches
    /// their doors may use them.
    pub members: Option<MembersTls>,
}

impl SecurityConfig {
    /// The users that there are at the start.
    pub(crate) fn users(&self) -> Result<Users> {
        let users = match (&self.aclfile, &self.users_kept) {
            (Some(path), _) => Users::of_file(path)?,
            (None, Some(path)) => Users::of_controller(crate::users::read(path)?),
            (None, None) => Users::open(),
        };
        let users = users.with_operator(self.operator.as_deref());
        let Some(path) = &self.requirepass_file else { return Ok(users) };
        let refused = |why| Error::invalid(format!("{}: {why}", path.display()));
        users.with_password(read_password(path)?).map_err(refused)
    }

    /// Checks that the files of users can be used.
    ///
    /// # Errors
    /// I/O; invalid input, with the line.
    pub fn check_users(&self) -> Result<()> {
        self.users().map(drop)
    }

    /// Checks that the files of users can be used, and that whoever reaches a door from elsewhere
    /// has to show something. `resp` is the plain one.
    ///
    /// # Errors
    /// I/O; invalid input, with the door or the line.
    pub fn check(&self, resp: SocketAddr) -> Result<()> {
        self.check_doors(resp, &self.users()?)
    }

    /// Checks that whoever reaches a door from elsewhere has to show something.
    pub(crate) fn check_doors(&self, resp: SocketAddr, users: &Users) -> Result<()> {
        if is_far(resp) && users.lets_strangers_in() {
            return Err(refused_door("door for clients", resp, "a user with a password"));
        }
        self.tls.as_ref().map_or(Ok(()), |tls| self.check_tls_door(tls.address, users))
    }

    /// The same of a door with TLS, which takes whom [`Self::tls`] takes.
    pub(crate) fn check_tls_door(&self, address: SocketAddr, users: &Users) -> Result<()> {
        let shows = |files: &ServerFiles| files.clients == ClientCertificates::Required;
        let is_shown = self.tls.as_ref().is_some_and(|tls| shows(&tls.files));
        if is_far(address) && users.lets_strangers_in() && !is_shown {
            let wanted = "certificates of clients or a user with a password";
            return Err(refused_door("door for clients with TLS", address, wanted));
        }
        Ok(())
    }
}

/// Whether others than processes of this machine may reach an address.
fn is_far(address: SocketAddr) -> bool {
    !address.ip().is_loopback()
}

fn refused_door(door: &str, address: SocketAddr, wanted: &str) -> Error {
    Error::invalid(format!(
        "the {door} is to listen on {address}, and anybody could do anything there: other than \
         loopback addresses take {wanted}"
    ))
}

/// Longest password in a file, in bytes.
const PASSWORD_LEN_MAX: usize = 1024;

/// A password is the file's text without a last line feed.
fn read_password(path: &Path) -> Result<Vec<u8>> {
    let refused = |why: String| Error::invalid(format!("{}: {why}", path.display()));
    let text = std::fs::read(path).map_err(|error| refused(format!("cannot be read: {error}")))?;
    let password = text.strip_suffix(b"\n").unwrap_or(&text);
    if !(1..=PASSWORD_LEN_MAX).contains(&password.len()) {
        let len = password.len();
        let text = format!("a password of {len} bytes: 1 to {PASSWORD_LEN_MAX} are possible");
        return Err(refused(text));
    }
    Ok(password.to_vec())
}

/// A door for clients where all is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsDoor {
    /// Its address.
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
    /// The pool or the log of a replica is damaged, as its start found: nothing runs.
    Damaged {
        /// The place of its group among those of the process.
        place: usize,
        /// The damage.
        error: Error,
    },
}

/// The exit code of a process that cannot work as it is told, or with what the system gives it;
/// another would end as well.
pub const EXIT_CONFIGURATION: u8 = 78;

/// The exit code of a process whose pool or log is damaged: another would end as well, and the
/// other members have what it had.
const EXIT_DAMAGED: u8 = 65;

/// The same where it is that of a further group of the process, with its place added.
const EXIT_DAMAGED_BEHIND: u8 = 160;

/// The process's exit code for what [`crate::run()`] returned: 0 after a signal, 70 after a failure
/// while it ran, 65 when the pool or the log is damaged (of the group at place N of several,
/// 160 + N), 75 when another process holds the pool, 78 for a configuration that cannot work, or
/// limits of the system that are too low, else 1.
#[must_use]
pub fn exit_code(result: &Result<ExitReason>) -> u8 {
    match result {
        Ok(ExitReason::Signal) => 0,
        Ok(ExitReason::Failed(_)) => 70,
        Ok(ExitReason::Damaged { place: 0, .. }) => EXIT_DAMAGED,
        Ok(ExitReason::Damaged { place, .. }) => {
            let place = u8::try_from(*place).unwrap_or(u8::MAX);
            EXIT_DAMAGED_BEHIND.saturating_add(place)
        }
        Err(error) if error.kind() == ErrorKind::Busy => 75,
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

/// The place of the group whose pool or log is damaged, by its process's exit code; none where that
/// says something else.
#[must_use]
pub fn damaged_place(code: i32) -> Option<usize> {
    match u8::try_from(code).ok()? {
        EXIT_DAMAGED => Some(0),
        code => code.checked_sub(EXIT_DAMAGED_BEHIND).map(usize::from),
    }
}

impl ServerConfig {
    /// Checks what can be known without the pool.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(address) = self.metrics.filter(|address| !address.ip().is_loopback()) {
            return Err(Error::invalid(format!(
                "the door for metrics is to listen on {address}: it asks nobody who he is, so only \
                 loopback addresses are possible"
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
        let tls = self.security.tls.as_ref().map(|tls| tls.address);
        self.spread.as_ref().map_or(Ok(()), |spread| spread.check(self.resp, tls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_says_whose_pool_is_damaged() {
        for place in [0, 1, 15] {
            let error = Error::corruption("a test says so");
            let code = exit_code(&Ok(ExitReason::Damaged { place, error }));
            assert_eq!(damaged_place(i32::from(code)), Some(place));
        }
        let failed = exit_code(&Ok(ExitReason::Failed(Error::io("it fails"))));
        let others = [0, 1, i32::from(failed), 75, i32::from(EXIT_CONFIGURATION), 128 + 9, -1, 999];
        assert!(others.iter().all(|code| damaged_place(*code).is_none()));
    }

    fn door(address: &str, clients: ClientCertificates) -> TlsDoor {
        let files = ServerFiles {
            certificate: "c.pem".into(),
            key: "c.key".into(),
            authorities: None,
            clients,
        };
        TlsDoor { address: address.parse().unwrap(), files }
    }

    #[test]
    fn a_door_beyond_loopback_takes_a_password_or_a_certificate() {
        use ClientCertificates::{Ignored, Optional, Required};
        let open = Users::open();
        let closed = Users::open();
        closed.set_password(b"secret").unwrap();
        let loopback = "127.0.0.1:1";
        for (resp, tls, is_fine_when_open) in [
            (loopback, None, true),
            ("[::1]:1", None, true),
            ("0.0.0.0:1", None, false),
            ("[::]:1", None, false),
            ("10.0.0.1:1", None, false),
            (loopback, Some(("0.0.0.0:2", Required)), true),
            (loopback, Some(("0.0.0.0:2", Optional)), false),
            (loopback, Some(("0.0.0.0:2", Ignored)), false),
            (loopback, Some(("127.0.0.1:2", Ignored)), true),
            ("0.0.0.0:1", Some(("0.0.0.0:2", Required)), false),
        ] {
            let tls = tls.map(|(address, clients)| door(address, clients));
            let config = SecurityConfig { tls, ..SecurityConfig::default() };
            let resp = resp.parse().unwrap();
            assert_eq!(config.check_doors(resp, &open).is_ok(), is_fine_when_open, "{config:?}");
            assert!(config.check_doors(resp, &closed).is_ok(), "{config:?}");
        }
        let error = SecurityConfig::default().check_doors("0.0.0.0:1".parse().unwrap(), &open);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("door for clients is to listen on 0.0.0.0:1"), "{error}");
    }
}
