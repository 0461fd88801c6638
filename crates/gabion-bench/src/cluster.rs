//! The measured replicas, seen from outside: whether they are ready, whether they are quiet, and
//! their use.

use crate::admin::Admin;
use crate::status::Status;
use gabion_base::{Error, Result};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How often the replicas are asked. Those that tests make up answer at once and have no jobs.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 250 });
/// No job may have run for this long before a cluster counts as quiet.
const QUIET: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 2000 });
/// How long a cluster may take to be ready.
const READY_MAX: Duration = Duration::from_secs(60);

/// A connection to each replica of one group, or of several that run side by side and share the
/// records.
pub(crate) struct Cluster {
    /// Replicas of a group follow each other.
    replicas: Vec<Admin>,
}

/// How a cluster came to rest.
pub(crate) struct Settled {
    /// The replicas' last statuses.
    pub(crate) statuses: Vec<Status>,
    /// When job work was seen last.
    pub(crate) since: Instant,
    /// False when jobs still ran after the allowed time.
    pub(crate) is_quiet: bool,
}

impl Cluster {
    /// Connects to each replica of each group.
    pub(crate) fn connect(groups: &[Vec<SocketAddr>]) -> Result<Self> {
        let members = (1..).zip(groups);
        let replicas = members.flat_map(|(group, addresses)| {
            addresses.iter().map(move |&address| Admin::connect(group, address))
        });
        Ok(Self { replicas: replicas.collect::<Result<_>>()? })
    }

    /// Each replica's status; those of a group follow each other.
    pub(crate) fn statuses(&mut self) -> Result<Vec<Status>> {
        self.replicas.iter_mut().map(Admin::status).collect()
    }

    /// Waits until every replica is ready.
    ///
    /// # Errors
    /// The replicas named for a group are not those of one; or one is not ready in time.
    pub(crate) fn wait_until_ready(&mut self, stop: &AtomicBool) -> Result<Vec<Status>> {
        let clock = Instant::now();
        loop {
            let statuses = self.statuses()?;
            statuses.chunk_by(|a, b| a.group == b.group).try_for_each(check_members)?;
            let Some(late) = statuses.iter().find(|status| !status.is_ready) else {
                return Ok(statuses);
            };
            if clock.elapsed() > READY_MAX {
                return Err(Error::unavailable(format!(
                    "replica {} of group {} was not ready in {} s",
                    late.replica,
                    late.group,
                    READY_MAX.as_secs()
                )));
            }
            pause(stop)?;
        }
    }

    /// Waits until all sealed MemTables are flushed and no job has run for a while, so that
    /// compaction has no debt in any mode; at most for `patience`.
    pub(crate) fn settle(&mut self, patience: Duration, stop: &AtomicBool) -> Result<Settled> {
        let clock = Instant::now();
        let mut busy = (clock, self.statuses()?);
        loop {
            pause(stop)?;
            let (now, statuses) = (Instant::now(), self.statuses()?);
            let elapsed = (now - busy.0).as_secs_f64();
            let mut pairs = statuses.iter().zip(&busy.1);
            let is_quiet = pairs.all(|(status, before)| {
                status.sealed == 0 && status.usage.is_quiet_since(&before.usage, elapsed)
            });
            if !is_quiet {
                busy = (now, statuses);
            } else if now - busy.0 >= QUIET {
                return Ok(Settled { statuses, since: busy.0, is_quiet: true });
            }
            if clock.elapsed() > patience {
                return Ok(Settled { statuses: busy.1, since: busy.0, is_quiet: false });
            }
        }
    }
}

/// Checks that these are the replicas of one group, each once.
fn check_members(statuses: &[Status]) -> Result<()> {
    let members = statuses[0].members;
    if statuses.len() != members {
        return Err(Error::invalid(format!(
            "{} addresses for a group of {members} replicas: each is to be named, so that what it \
             uses is counted",
            statuses.len()
        )));
    }
    for (i, status) in statuses.iter().enumerate() {
        if statuses[..i].iter().any(|other| other.replica == status.replica) {
            return Err(Error::invalid(format!(
                "two addresses lead to replica {}",
                status.replica
            )));
        }
    }
    Ok(())
}

fn pause(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) {
        return Err(Error::unavailable("interrupted"));
    }
    thread::sleep(PAUSE);
    Ok(())
}
