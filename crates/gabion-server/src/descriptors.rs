//! How many descriptors the process may have, and how many of them are for clients.
//!
//! ```text
//!   limit = open at the start + files, threads, listeners + members + short-lived ones + clients
//!                               └─────────────── of each replica ────────────────────┘
//! ```
//!
//! Each connection takes a descriptor. With fewer than they need, a file that cannot be opened
//! would end the process, and a client that cannot be accepted would wait unanswered. So it is
//! known at the start how many clients there is room for; whoever is over that is told so, even
//! where no descriptor is left ([`Spare`]).

use crate::ServerConfig;
use gabion_base::{Error, Result};
use gabion_host::RunOptions;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io;

/// Most connections of clients.
pub(crate) const CLIENTS_MAX: usize = 20_000;
/// Fewest with which a start makes sense: `gabion up` asks each replica how it is, and so may an
/// operator.
const CLIENTS_MIN: usize = 4;
/// Files, rings, queues and listeners of a replica alone with one thread that compacts, and the
/// connection of its controller.
const OWN: usize = 30;
/// Of each further such thread: the pool and its ring.
const PER_COMPACTION: usize = 2;
/// Connections with each other member: the link and one in its place, NVMe/TCP both ways and one in
/// its place.
const PER_MEMBER: usize = 5;
/// What is open for a moment: statistics of the system, those who have not said who they are.
const SHORT_LIVED: usize = 12;
/// Of the door for metrics: its listener, queue and connections.
const METRICS: usize = 12;
/// With as many or more for each replica, there are some for whatever may come as well.
const PLENTY: usize = 1_024;
/// That is: those who have not said who they are, at the doors for members and for NVMe/TCP, at
/// most.
const STRANGERS: usize = 128;

/// A replica's settings that tell how many descriptors it needs.
#[derive(Clone, Copy)]
struct Needs {
    /// Compactions at once.
    compactions: usize,
    /// Other members.
    members: usize,
}

/// What the descriptors of a process are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// How many it may have.
    limit: usize,
    /// How many it needs for itself.
    own: usize,
}

impl Descriptors {
    /// Raises the limit to what is wanted, as far as the process may, and shares out what there is.
    ///
    /// # Errors
    /// Limit exceeded, where there are too few for the process itself.
    pub(crate) fn take(configs: &[ServerConfig]) -> Result<Self> {
        let open = std::fs::read_dir("/proc/self/fd").map_or(8, Iterator::count);
        let scraped = configs.iter().filter(|config| config.metrics.is_some()).count();
        let open = open + scraped * METRICS;
        let needs = |config: &ServerConfig| Needs {
            compactions: config.node.compactions_max,
            members: config.peers.len(),
        };
        let replicas: Vec<Needs> = configs.iter().map(needs).collect();
        let wanted = CLIENTS_MAX + own(PLENTY * replicas.len(), open, &replicas);
        Self::share_out(raise(wanted as u64), open, &replicas).check()
    }

    fn share_out(limit: usize, open: usize, replicas: &[Needs]) -> Self {
        Self { limit, own: own(limit, open, replicas) }
    }

    fn check(self) -> Result<Self> {
        let Self { limit, own } = self;
        if limit < own + CLIENTS_MIN {
            return Err(Error::limit(format!(
                "the process may have {limit} descriptors (ulimit -n), and needs {}: {own} for its \
                 own files and connections, {CLIENTS_MIN} for clients",
                own + CLIENTS_MIN
            )));
        }
        Ok(self)
    }

    /// Most connections of clients.
    pub(crate) fn clients_max(self) -> usize {
        (self.limit - self.own).min(CLIENTS_MAX)
    }

    /// What is to be said of it, where it is less than it could be.
    pub(crate) fn remark(self) -> Option<String> {
        let Self { limit, own } = self;
        let clients = self.clients_max();
        (clients < CLIENTS_MAX).then(|| {
            format!(
                "maxclients is {clients} and not {CLIENTS_MAX}: the process may have {limit} \
                 descriptors (ulimit -n), and {own} are for its own files and connections"
            )
        })
    }
}

/// What the process needs for itself where it may have `limit` and has `open`.
fn own(limit: usize, open: usize, replicas: &[Needs]) -> usize {
    let has_plenty = limit >= PLENTY * replicas.len();
    let of_replica = |&Needs { compactions, members }: &Needs| {
        // CONFIG SET may ask for more threads.
        let (compactions, strangers) =
            if has_plenty { (RunOptions::COMPACTIONS_MAX, STRANGERS) } else { (compactions, 0) };
        let threads = compactions.saturating_sub(1) * PER_COMPACTION;
        OWN + threads + members * PER_MEMBER + SHORT_LIVED + strangers
    };
    open + replicas.iter().map(of_replica).sum::<usize>()
}

/// Raises the limit to `wanted` at least, where it is lower and the process may. Returns what it is
/// then.
fn raise(wanted: u64) -> usize {
    let before = getrlimit(Resource::Nofile);
    // Nothing is no limit.
    let has = |limit: Option<u64>| limit.is_none_or(|limit| limit >= wanted);
    let beyond = Rlimit { current: Some(wanted), maximum: Some(wanted) };
    let up_to = Rlimit { current: before.maximum, maximum: before.maximum };
    // Only a privileged process may have more than the maximum.
    if !has(before.maximum) && setrlimit(Resource::Nofile, beyond).is_err()
        || has(before.maximum) && !has(before.current)
    {
        let _ = setrlimit(Resource::Nofile, up_to);
    }
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// A descriptor that is kept back, for a client that comes when there is no other.
pub(crate) struct Spare(Option<File>);

impl Spare {
    pub(crate) fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Gives the descriptor up for as long as `work` takes. Returns `None` where there is none to
    /// give up.
    pub(crate) fn lend<T>(&mut self, work: impl FnOnce() -> T) -> Option<T> {
        if self.0.is_none() {
            *self = Self::new();
        }
        drop(self.0.take()?);
        let result = work();
        *self = Self::new();
        Some(result)
    }
}

/// Whether a call failed as the process, or the system, has no descriptor left.
pub(crate) fn are_used_up(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE]
        .iter()
        .any(|errno| code == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_process_does_not_need_is_for_clients_and_too_little_is_told() {
        let one = Needs { compactions: 1, members: 2 };
        let with = |limit| Descriptors::share_out(limit, 4, &[one]).check();
        let clients = |limit| with(limit).map(Descriptors::clients_max).unwrap();
        assert_eq!([60, 64, 1_023, 1_024].map(clients), [4, 8, 967, 714]);
        assert_eq!([20_000, 20_310, usize::MAX].map(clients), [19_690, 20_000, 20_000]);
        let remark = |limit| with(limit).unwrap().remark();
        assert_eq!(remark(20_310), None);
        let said = "maxclients is 8 and not 20000: the process may have 64 descriptors (ulimit \
                    -n), and 56 are for its own files and connections";
        assert_eq!(remark(64).as_deref(), Some(said));
        let error = with(59).unwrap_err().to_string();
        let said = "the process may have 59 descriptors (ulimit -n), and needs 60: 56 for its own \
                    files and connections, 4 for clients";
        assert_eq!(error, said);
        let threads = |compactions| own(64, 4, &[Needs { compactions, members: 2 }]);
        assert_eq!((threads(1), threads(64)), (56, 56 + 126));
    }

    #[test]
    fn each_replica_of_the_process_has_what_it_needs_before_clients_have_any() {
        let replicas = [Needs { compactions: 1, members: 2 }; 4];
        let clients = |limit| {
            Descriptors::share_out(limit, 4, &replicas).check().map(Descriptors::clients_max)
        };
        assert!(clients(4 + 4 * 52 + 3).is_err());
        assert_eq!(clients(4 + 4 * 52 + 4).unwrap(), 4);
        assert_eq!(clients(4_095).unwrap(), 4_095 - 4 - 4 * 52);
        assert_eq!(clients(4_096).unwrap(), 4_096 - 4 - 4 * 306);
    }

    #[test]
    fn a_spare_descriptor_is_one_more_for_as_long_as_it_is_lent() {
        let mut spare = Spare::new();
        let kept = spare.0.as_ref().map(std::os::fd::AsRawFd::as_raw_fd);
        assert!(kept.is_some());
        assert_eq!(spare.lend(|| 7), Some(7));
        assert!(spare.0.is_some(), "it is taken back");
        spare.0 = None;
        assert_eq!(spare.lend(|| 8), Some(8), "it is made again where that is possible");
    }

    #[test]
    fn no_descriptor_left_is_told_from_other_errors() {
        assert!([23, 24].map(io::Error::from_raw_os_error).iter().all(are_used_up));
        assert!(!are_used_up(&io::ErrorKind::ConnectionAborted.into()));
    }
}
