//! The controller in the process of `gabion up`: its store, its thread, and those who ask it.
//!
//! ```text
//!   replicas ◄─ link ─► Driver ◄─► store's thread ─► DATA/control: gabion-db, synced
//!                        │  ▲
//!          up: events ◄──┘  └── DATA/control/socket ◄── gabion events, status, group, failover
//! ```
//!
//! - [`store`]: the controller's store. [`driver`]: the thread that owns the machine. [`link`]: the
//!   connection with one replica. [`metrics`]: its numbers for Prometheus. [`history`]: the load of
//!   the last hour. [`page`]: the status page.
//! - [`socket`]: questions of other processes, answered. [`ask`]: the commands that ask.

pub(crate) mod ask;
pub(crate) mod driver;
mod history;
mod link;
pub(crate) mod metrics;
pub(crate) mod page;
pub(crate) mod socket;
pub(crate) mod store;
#[cfg(test)]
mod tests;

use crate::cluster::{BROKEN, Settings, control_dir, failed};
use driver::{Driver, Setup, Watched};
use gabion_base::{Error, ErrorKind, GroupId, ReplicaId, Result};
use gabion_control::record::Event;
use gabion_control::store::{Store, Version};
use gabion_control::users::{USERS, UserRecord};
use gabion_control::{Epoch, GroupRecord, GroupStatus, Patience, ReplicaStatus, Verdict};
use gabion_replication::{GroupView, LogKind};
use gabion_server::metrics::Door;
use metrics::EventCounts;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use store::{DbStore, next_epoch, record_of};

pub(crate) use store::STORE_LEN;

/// The controller's store, opened: from then on no other process is controller.
pub(crate) struct Opened {
    group: GroupId,
    store: DbStore,
    epoch: Epoch,
    record: (Version, GroupRecord),
}

/// A running controller. It ends when this is dropped.
pub(crate) struct Control {
    driver: Driver,
    group: GroupId,
    /// Events since it began.
    events: Arc<EventCounts>,
    _socket: socket::Socket,
}

impl Opened {
    /// Opens the store of a group, or makes it. `said` gets what an operator should know about it.
    ///
    /// # Errors
    /// Of the store, when it cannot be opened or is of a later version; I/O.
    pub(crate) fn open(data: &Path, settings: &Settings, said: impl FnMut(&str)) -> Result<Self> {
        let mut store = open_store(&control_dir(data), said)?;
        let epoch = next_epoch(&mut store, random_number()?)?;
        let record = record_of(&mut store, founding_record(settings))?;
        Ok(Self { group: settings.group, store, epoch, record })
    }

    /// Whether enough full members are left without these replicas.
    pub(crate) fn is_enough_without(&self, missing: &[u32]) -> bool {
        let view = self.record.1.newest();
        let left = view.full().filter(|member| !missing.contains(&member.replica.get())).count();
        left >= usize::from(view.members_min)
    }

    /// Lets a replica that knows no users yet have those of the store, before it starts: else
    /// strangers would be turned away until it is connected.
    ///
    /// # Errors
    /// Of the store; I/O.
    pub(crate) fn keep_users(&mut self, dir: &Path) -> Result<()> {
        let path = users_path(dir);
        if path.exists() {
            return Ok(());
        }
        // A damaged record is replaced by what other replicas have.
        let found = self.store.get(USERS)?.map(|found| UserRecord::decode(&found.value));
        match found.unwrap_or_else(|| Ok(UserRecord::default())) {
            Ok(record) => gabion_server::keep_users(&path, &record),
            Err(_) => Ok(()),
        }
    }

    /// Starts the controller. `heard` gets each event as it comes.
    ///
    /// # Errors
    /// I/O.
    pub(crate) fn start(
        self,
        data: &Path,
        settings: &Settings,
        patience: Patience,
        heard: impl Fn(Event) + Send + 'static,
    ) -> Result<Control> {
        let Self { group, store, epoch, record } = self;
        let doors =
            settings.nodes().map(|number| (ReplicaId(number), settings.doors(number).peer.into()));
        let watched = Watched { record, doors: doors.collect() };
        let events = Arc::new(EventCounts::default());
        let counted = events.clone();
        let heard = move |_, event: Event| {
            counted.count(&event.text);
            heard(event);
        };
        let driver = Driver::start(
            &Setup { patience, epoch, tls: None },
            vec![watched],
            Box::new(store),
            heard,
        )?;
        let socket = socket::Socket::open(&control_dir(data), driver.handle(), group)?;
        Ok(Control { driver, group, events, _socket: socket })
    }
}

impl Control {
    /// The full members, if the group serves with them.
    pub(crate) fn serving(&self) -> Option<Vec<u32>> {
        let status = self.status()?;
        let view = &status.view;
        let is_serving = status.is_complete && view.too_few().is_none();
        is_serving.then(|| view.full().map(|member| member.replica.get()).collect())
    }

    /// Whether the group has enough full members that are well, this replica aside.
    pub(crate) fn is_enough_without(&self, number: u32) -> bool {
        self.status().is_some_and(|status| is_enough_without(&status, number))
    }

    /// Serves its numbers and the status page. `said` hears when the port cannot be had.
    ///
    /// # Errors
    /// I/O when a thread cannot start.
    pub(crate) fn serve_metrics(
        &self,
        address: SocketAddr,
        said: impl Fn(&str) + Send + 'static,
    ) -> Result<Door> {
        let handle = self.driver.handle();
        let numbers = metrics::route(handle.clone(), self.group, self.events.clone());
        let group = self.group;
        let mut routes = page::routes(move || page::of_up(&handle, group));
        routes.push(numbers);
        Door::start(address, routes, said)
    }

    fn status(&self) -> Option<GroupStatus> {
        let group = self.group;
        let ask = self.driver.handle().ask(move |controller, now| controller.status(group, now));
        ask.ok().flatten()
    }
}

/// Whether a group has enough full members that are well, this replica aside.
pub(crate) fn is_enough_without(status: &GroupStatus, number: u32) -> bool {
    let is_well = |replica: &&ReplicaStatus| {
        let is_other = replica.replica != ReplicaId(number);
        is_other && replica.is_full && replica.verdict == Some(Verdict::Well)
    };
    let left = status.replicas.iter().filter(is_well).count();
    left >= usize::from(status.view.members_min)
}

/// The file in which a replica keeps the users that the controller tells.
pub(crate) fn users_path(dir: &Path) -> PathBuf {
    dir.join(USERS)
}

/// The record of a group whose members have only their founding view.
pub(crate) fn founding_record(settings: &Settings) -> GroupRecord {
    let founders: Vec<ReplicaId> = settings.members().map(ReplicaId).collect();
    let mut view = GroupView::founding(settings.group, &founders, LogKind::Shared);
    view.members_min = settings.members_min as u8;
    GroupRecord::founding(view)
}

/// Opens the store, or makes it. One that is damaged is put aside: members know what it had.
fn open_store(dir: &Path, mut said: impl FnMut(&str)) -> Result<DbStore> {
    let opened = DbStore::open(dir);
    let Err(error) = &opened else { return opened };
    if error.kind() != ErrorKind::Corruption {
        return opened;
    }
    let aside = dir.with_file_name(format!("control{BROKEN}{}", unix_ms() / 1_000));
    std::fs::rename(dir, &aside).map_err(|e| failed(dir, "cannot be put aside", e))?;
    said(&format!(
        "the controller's store is damaged and was put aside as {}: {error}",
        aside.display()
    ));
    DbStore::open(dir)
}

/// The socket on which a running `up` answers.
pub(crate) fn socket_path(dir: &Path) -> PathBuf {
    dir.join("socket")
}

/// The events in the store of a group that does not run.
///
/// # Errors
/// Not found where no controller has run; of the pool.
pub(crate) fn events_at_rest(data: &Path, settings: &Settings) -> Result<Vec<Event>> {
    let found = store::read_at_rest(&control_dir(data), &store::record_name(settings.group))?;
    let bytes = found.ok_or_else(|| Error::not_found("no controller has run on this data"))?;
    Ok(GroupRecord::decode(&bytes)?.events.into())
}

/// The full members of a group that does not run, in the newest view of its controller; the
/// founders where none has run.
///
/// # Errors
/// Of the store's pool.
pub(crate) fn members_at_rest(data: &Path, settings: &Settings) -> Result<Vec<u32>> {
    let dir = control_dir(data);
    if !dir.join("pool").exists() {
        return Ok(settings.members().collect());
    }
    let found = store::read_at_rest(&dir, &store::record_name(settings.group))?;
    let record =
        found.map_or_else(|| Ok(founding_record(settings)), |it| GroupRecord::decode(&it))?;
    Ok(record.newest().full().map(|member| member.replica.get()).collect())
}

/// A number that nobody else has.
///
/// # Errors
/// The system's.
pub(crate) fn random_number() -> Result<u64> {
    let random = gabion_server::random_id()?;
    Ok(u64::from_le_bytes(std::array::from_fn(|i| random[i])))
}

/// Ms since 1970.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

/// A store that may be sent to its thread.
pub(crate) type AnyStore = Box<dyn Store + Send>;
