//! A replica that a node holds: its files, and its process.
//!
//! ```text
//!   DATA/node.json                    the node: its name, its number, its cluster's
//!   DATA/group-NUMBER/member.json     what the replica is told at each start, as its order said
//!   DATA/group-NUMBER/replica-N/      pool, ring, log: as under `gabion up`
//! ```
//!
//! `member.json` is written after the pool and before the first start. So a pool without it never
//! ran, and a node that restarts while no controller answers starts what it has.

use super::config::DoorAddresses;
use super::registrar::{Make, Neighbour, Order, ReplicaWord};
use super::{load_file, save_file};
use crate::child::{Replica, anew};
use crate::cluster::{self, Settings, failed, is_missing, replica_dir};
use crate::control::unix_ms;
use crate::options::{NodeProcess, ProcessOptions};
use crate::owned;
use gabion_base::{Error, ReplicaId, Result};
use gabion_server::{Addresses, Home, MembersTls, NodeNames, PeerAddress};
use gabion_tls::{MutualFiles, MutualTls};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const FILE: &str = "member.json";
/// Its version.
const FORMAT: u32 = 1;
const DIRECTORY: &str = "group-";
/// How long the controller's word counts that a group has enough without a replica: four times as
/// long as between two of its words.
const ANEW_MAX: Duration = Duration::from_secs(2);

/// `member.json`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Member {
    format: u32,
    made_by: String,
    /// The group's name.
    name: String,
    group: u64,
    replica: u32,
    /// The number of the node that made it.
    node: u64,
    settings: Value,
    listen: DoorAddresses,
    reached_at: DoorAddresses,
    peers: Vec<Neighbour>,
    /// Whether it is to run: its group is made.
    runs: bool,
}

/// Configuration of a replica's process.
pub(crate) struct Told {
    pub(crate) settings: Settings,
    /// Whether a controller looks after the group, and keeps its users.
    pub(crate) is_controlled: bool,
    pub(crate) listen: DoorAddresses,
    /// The port from which others are counted, as that of metrics.
    pub(crate) first_port: u16,
    pub(crate) home: Home,
    pub(crate) peers: Vec<PeerAddress>,
}

impl Member {
    fn of(order: &Order, node: u64, listen: DoorAddresses) -> Self {
        Self {
            format: FORMAT,
            made_by: env!("CARGO_PKG_VERSION").to_owned(),
            name: order.name.clone(),
            group: order.group,
            replica: order.replica,
            node,
            settings: order.settings.clone(),
            listen,
            reached_at: order.addresses,
            peers: order.peers.clone(),
            runs: order.runs,
        }
    }

    /// Reads the file of a directory; none where there is none.
    ///
    /// # Errors
    /// Corruption for another file; unsupported for another version; I/O.
    fn load(base: &Path) -> Result<Option<Self>> {
        load_file(&member_path(base), FORMAT, |member: &Self| member.format)
    }

    fn save(&self, base: &Path) -> Result<()> {
        save_file(base, FILE, self)
    }

    fn settings(&self) -> Result<Settings> {
        let refused = |error| Error::unsupported(format!("group {}: {error}", self.name));
        Settings::from_json(&self.settings).map_err(refused)
    }
}

fn member_path(base: &Path) -> PathBuf {
    base.join(FILE)
}

/// Configuration of the process of a node's replica; none where the directory is no node's.
///
/// # Errors
/// As [`Member::load`]; invalid input for another replica than the directory's.
pub(crate) fn told(base: &Path, replica: u32) -> Result<Option<Told>> {
    let Some(member) = Member::load(base)? else { return Ok(None) };
    if member.replica != replica {
        return Err(Error::invalid(format!(
            "{}: is of replica {}, not of {replica}",
            base.display(),
            member.replica
        )));
    }
    let at = member.reached_at;
    let addresses = Addresses {
        members: at.members.to_string(),
        clients: at.clients.to_string(),
        nvme: at.targets.to_string(),
        ..Addresses::default()
    };
    let peer = |it: &Neighbour| PeerAddress {
        replica: ReplicaId(it.replica),
        peer: it.addresses.members,
        target: it.addresses.targets,
        resp: it.addresses.clients,
    };
    Ok(Some(Told {
        is_controlled: true,
        settings: member.settings()?,
        listen: member.listen,
        first_port: member.listen.clients.port(),
        home: Home { node: member.node, addresses },
        peers: member.peers.iter().map(peer).collect(),
    }))
}

/// Certificates of the process of a node's replica, if it has any.
///
/// # Errors
/// I/O; invalid input for files that are none.
pub(crate) fn members_tls(base: &Path, options: &NodeProcess) -> Result<Option<MembersTls>> {
    let NodeProcess {
        members_cert: Some(certificate),
        members_key: Some(key),
        members_ca: Some(ca),
        ..
    } = options.clone()
    else {
        return Ok(None);
    };
    let files = MutualFiles { certificate, key, authority: ca };
    let tls = MutualTls::open(files, |line| gabion_server::note!("{line}"))?;
    let nodes = Arc::new(Neighbours(base.to_owned()));
    Ok(Some(MembersTls { tls: Arc::new(tls), nodes }))
}

/// The nodes of the other replicas, as the controller's last order said: the node keeps the file.
struct Neighbours(PathBuf);

impl NodeNames for Neighbours {
    fn node_of(&self, replica: ReplicaId) -> Option<String> {
        let member = Member::load(&self.0).ok().flatten()?;
        let mut peers = member.peers.into_iter();
        let found = peers.find(|peer| peer.replica == replica.get())?;
        Some(found.node).filter(|node| !node.is_empty())
    }

    fn holds_any(&self, node: &str) -> bool {
        let member = Member::load(&self.0).ok().flatten();
        member.is_some_and(|member| member.peers.iter().any(|peer| peer.node == node))
    }
}

/// A replica of this node.
pub(crate) struct Hosted {
    base: PathBuf,
    member: Member,
    pub(crate) replica: Replica,
    /// Whether it was started since this node was.
    is_begun: bool,
    is_released: bool,
    make: Make,
    /// Until then it may be made anew: the group has enough without it, by the controller's last
    /// word, which nobody relies on for longer.
    anew_until: Option<Instant>,
    trouble: Option<String>,
}

impl Hosted {
    /// Those that a node's data has.
    ///
    /// # Errors
    /// As [`Member::load`]; invalid input for one that another node made.
    pub(crate) fn load_all(
        data: &Path,
        node: u64,
        listen: DoorAddresses,
        process: &ProcessOptions,
    ) -> Result<Vec<Self>> {
        let list = std::fs::read_dir(data).map_err(|e| failed(data, "cannot be listed", e))?;
        let mut all = Vec::new();
        for entry in list {
            let base = entry.map_err(|e| failed(data, "cannot be listed", e))?.path();
            let name = base.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if !name.starts_with(DIRECTORY) {
                continue;
            }
            let Some(mut member) = Member::load(&base)? else { continue };
            if member.node != node {
                return Err(Error::invalid(format!(
                    "{}: was made by node {:016x}, and this one is {node:016x}: it is another \
                     node's disk, or a copy of it",
                    base.display(),
                    member.node
                )));
            }
            if member.listen != listen {
                member.listen = listen;
                member.save(&base)?;
            }
            all.push(Self::new(base, member, process));
        }
        Ok(all)
    }

    /// Whether a node's data has a replica.
    pub(crate) fn is_any(data: &Path) -> bool {
        let list = std::fs::read_dir(data).into_iter().flatten().flatten();
        list.into_iter().any(|entry| member_path(&entry.path()).is_file())
    }

    /// Makes the files of a replica that is ordered. Files of an interrupted attempt are put aside.
    ///
    /// # Errors
    /// Unavailable where the replica has files elsewhere, or had, and its group cannot do without
    /// them; no space; I/O; of the settings.
    pub(crate) fn create(
        data: &Path,
        order: &Order,
        node: u64,
        listen: DoorAddresses,
        process: &ProcessOptions,
    ) -> Result<Self> {
        let base = data.join(format!("{DIRECTORY}{}", order.group));
        if order.make != Make::Founder && !order.may_be_made_anew {
            return Err(Error::unavailable(format!(
                "{} {}: its files are not in {}, and the group cannot do without them yet: is that \
                 the right disk?",
                order.name,
                order.replica,
                base.display()
            )));
        }
        std::fs::create_dir_all(&base).map_err(|e| failed(&base, "cannot be made", e))?;
        let number = order.replica;
        if replica_dir(&base, number).symlink_metadata().is_ok() {
            // No replica should have run on it, but somebody may have lost its member.json.
            cluster::put_aside(&base, number, unix_ms() / 1_000)?;
        }
        let mut hosted = Self::new(base, Member::of(order, node, listen), process);
        hosted.make = order.make;
        hosted.make_files()?;
        hosted.member.save(&hosted.base)?;
        hosted.take(order)?;
        Ok(hosted)
    }

    fn new(base: PathBuf, member: Member, process: &ProcessOptions) -> Self {
        let replica = Replica::new(member.replica, &base, process);
        Self {
            base,
            member,
            replica,
            is_begun: false,
            is_released: false,
            make: Make::Empty,
            anew_until: None,
            trouble: None,
        }
    }

    fn make_files(&self) -> Result<()> {
        let (settings, number) = (self.member.settings()?, self.member.replica);
        match self.make {
            Make::Founder => cluster::make_founder(&self.base, &settings, number),
            Make::Empty => cluster::make_empty(&self.base, &settings, number),
        }
    }

    fn may_be_made_anew(&self) -> bool {
        self.anew_until.is_some_and(|until| Instant::now() < until)
    }

    pub(crate) fn is_of(&self, order: &Order) -> bool {
        (self.member.group, self.member.replica) == (order.group, order.replica)
    }

    /// Group and number, for messages.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.member.name, self.member.replica)
    }

    /// Takes an order for it.
    ///
    /// # Errors
    /// I/O.
    pub(crate) fn take(&mut self, order: &Order) -> Result<()> {
        self.make = order.make;
        self.anew_until = order.may_be_made_anew.then(|| Instant::now() + ANEW_MAX);
        if order.is_released && !self.is_released {
            self.is_released = true;
            self.replica.signal(Signal::TERM);
        }
        let told = Member::of(order, self.member.node, self.member.listen);
        if told != self.member {
            told.save(&self.base)?;
            self.member = told;
        }
        Ok(())
    }

    /// Its word to the controller.
    pub(crate) fn word(&self) -> ReplicaWord {
        let Member { group, replica, .. } = self.member;
        let is_made = !is_missing(&self.base, replica);
        ReplicaWord { group, replica, is_made, trouble: self.trouble.clone() }
    }

    /// Starts, ends and mends its process as it should be. Returns whether it is gone for good.
    pub(crate) fn look_after(&mut self, say: &mut dyn FnMut(&str)) -> bool {
        if self.is_released {
            return self.remove_when_ended(say);
        }
        self.replica.bound_log();
        let may_be_made_anew = self.may_be_made_anew();
        self.replica.is_served = may_be_made_anew;
        if let Some(line) = self.replica.end_without_files(may_be_made_anew) {
            say(&line);
        }
        if let Some(death) = self.replica.check() {
            let line = death.in_words(self.member.replica);
            self.trouble = Some(line.clone());
            if death.is_damaged && may_be_made_anew {
                say(&line);
                say(&self.replica.put_aside());
            } else {
                say(&format!("{line}; next start in {:.1} s", death.restart_in.as_secs_f64()));
            }
        }
        let outcome = match self.is_begun {
            true => self.restart_if_due(say),
            false => self.begin(say),
        };
        match outcome {
            Ok(true) => self.trouble = None,
            Ok(false) => {}
            Err(error) => {
                let line = format!("replica {}: {error}", self.member.replica);
                if self.trouble.as_ref() != Some(&line) {
                    say(&line);
                    self.trouble = Some(line);
                }
            }
        }
        false
    }

    /// The first start since this node's. Returns whether it happened.
    fn begin(&mut self, say: &mut dyn FnMut(&str)) -> Result<bool> {
        let is_missing = is_missing(&self.base, self.member.replica);
        // Until the group is made nobody has anything, and a founder is made as often as it takes.
        if is_missing && (self.make == Make::Founder || self.may_be_made_anew()) {
            say(&anew(self.member.replica, "its pool is gone"));
            self.make_files()?;
        }
        if !self.member.runs {
            return Ok(false);
        }
        self.replica.start()?;
        self.is_begun = true;
        let pid = self.replica.pid().unwrap_or(0);
        say(&format!("replica {} starts as process {pid}", self.member.replica));
        Ok(true)
    }

    fn restart_if_due(&mut self, say: &mut dyn FnMut(&str)) -> Result<bool> {
        if self.replica.is_due_without_files() && self.may_be_made_anew() {
            say(&anew(self.member.replica, "its pool is gone"));
            self.make_files().inspect_err(|_| {
                self.replica.pause();
            })?;
        }
        let is_started = self.replica.restart_if_due()?;
        if is_started {
            let pid = self.replica.pid().unwrap_or(0);
            say(&format!("replica {} starts again as process {pid}", self.member.replica));
        }
        Ok(is_started)
    }

    /// The files of a replica that is no member go once its process has ended.
    fn remove_when_ended(&mut self, say: &mut dyn FnMut(&str)) -> bool {
        if !self.replica.is_gone() {
            return false;
        }
        match self.remove() {
            Ok(()) => {
                say(&format!("replica {}: is removed, as it was told", self.member.replica));
                true
            }
            Err(error) => {
                let line = format!("replica {}: {error}", self.member.replica);
                if self.trouble.as_ref() != Some(&line) {
                    say(&line);
                    self.trouble = Some(line);
                }
                false
            }
        }
    }

    fn remove(&self) -> Result<()> {
        owned::remove_replica_dir(&replica_dir(&self.base, self.member.replica))?;
        owned::remove_ours(&member_path(&self.base), owned::is_settings)?;
        // Something of others, or what was put aside, may be there.
        let _ = std::fs::remove_dir(&self.base);
        Ok(())
    }
}
