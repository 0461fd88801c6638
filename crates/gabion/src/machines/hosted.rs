//! Replicas that a node holds: their files, and their process.
//!
//! ```text
//!   DATA/node.json                    the node: its name, its number, its cluster's
//!   DATA/group-NUMBER/member.json     what the replica is told at each start, as its order said
//!   DATA/group-NUMBER/replica-N/      pool, ring, log: as under `gabion up`
//! ```
//!
//! `member.json` is written after the pool and before the first start. So a pool without it never
//! ran, and a node that restarts while no controller answers starts what it has.
//!
//! Groups over which keys are spread have numbers that follow each other. A node holds a replica of
//! each of them, and one process serves them all: it starts once all are there.

use super::config::DoorAddresses;
use super::registrar::{Make, Neighbour, Order, ReplicaWord};
use super::{load_file, save_file};
use crate::backup::restore::Stored;
use crate::child::{Death, Replica, anew};
use crate::cluster::{self, Settings, failed, is_missing, replica_dir};
use crate::control::unix_ms;
use crate::options::{MetricsPort, NodeProcess, ProcessOptions};
use crate::owned;
use gabion_base::{Error, ReplicaId, Result};
use gabion_server::commands::Spread;
use gabion_server::{Addresses, Home, MembersTls, NodeDoors, NodeNames, PeerAddress, SpreadConfig};
use gabion_tls::{MutualFiles, MutualTls};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::net::SocketAddr;
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

/// A process that outlives the one before by so much has nothing of what ended that one: a damaged
/// pool is found at the start, which takes equally long each time.
const STEADY: Duration = Duration::from_secs(3);

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

/// Configuration of a replica, for its process.
pub(crate) struct Told {
    /// Its number.
    pub(crate) replica: u32,
    pub(crate) settings: Settings,
    /// Whether a controller looks after the group, and keeps its users.
    pub(crate) is_controlled: bool,
    pub(crate) listen: DoorAddresses,
    /// Where its numbers for Prometheus are, if anywhere.
    pub(crate) metrics: Option<SocketAddr>,
    /// Its place among several groups.
    pub(crate) spread: Option<SpreadConfig>,
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
        settings_of(&self.name, &self.settings)
    }
}

fn settings_of(group: &str, settings: &Value) -> Result<Settings> {
    let refused = |error| Error::unsupported(format!("group {group}: {error}"));
    Settings::from_json(settings).map_err(refused)
}

fn member_path(base: &Path) -> PathBuf {
    base.join(FILE)
}

/// Configuration of the process of a node's replica, and of those of further groups, with their
/// directories; none where the directory is no node's.
///
/// # Errors
/// As [`Member::load`]; invalid input for another replica than the directory's, for one of a group
/// behind the first, and where one of those is not there.
pub(crate) fn told(
    base: &Path,
    replica: u32,
    metrics: MetricsPort,
) -> Result<Option<Vec<(Told, PathBuf)>>> {
    let Some(first) = Member::load(base)? else { return Ok(None) };
    if first.replica != replica {
        return Err(Error::invalid(format!(
            "{}: is of replica {}, not of {replica}",
            base.display(),
            first.replica
        )));
    }
    let settings = first.settings()?;
    if settings.place > 0 {
        return Err(Error::invalid(format!(
            "{}: is of group {} of {}, which the process of the first one serves",
            base.display(),
            settings.place + 1,
            settings.groups
        )));
    }
    let (port, groups, number) = (first.listen.clients.port(), settings.groups, first.group);
    let mut all =
        vec![(told_of(first, settings, metrics.address(port, replica))?, base.to_owned())];
    for place in 1..groups {
        let dir = base.with_file_name(format!("{DIRECTORY}{}", number + u64::from(place)));
        let member = Member::load(&dir)?.ok_or_else(|| {
            Error::not_found(format!(
                "{}: no replica of group {} is there",
                dir.display(),
                place + 1
            ))
        })?;
        let settings = member.settings()?;
        all.push((told_of(member, settings, None)?, dir));
    }
    if groups > 1 {
        // Numbers of replicas are others in each group, and may be the same in two.
        for (place, (told, _)) in (1..).zip(&mut all) {
            told.metrics = metrics.address(port, place);
        }
    }
    Ok(Some(all))
}

fn told_of(member: Member, settings: Settings, metrics: Option<SocketAddr>) -> Result<Told> {
    let at = member.reached_at;
    let doors = |at: &DoorAddresses| {
        at.cluster.map(|doors| NodeDoors { plain: doors.plain, tls: doors.tls })
    };
    let spread = Spread::new(settings.groups, settings.place);
    let of_cluster = doors(&at).filter(|_| spread.is_some());
    let addresses = Addresses {
        members: at.members.to_string(),
        clients: of_cluster.map_or_else(|| at.clients.to_string(), |doors| doors.to_string()),
        nvme: at.targets.to_string(),
        ..Addresses::default()
    };
    let spread = spread.map(|spread| {
        let (Some(listen), Some(own)) = (doors(&member.listen), doors(&at)) else {
            return Err(Error::invalid(format!(
                "group {}: is one of {}, and the node has no [groups]",
                member.name, settings.groups
            )));
        };
        let peers = member.peers.iter();
        let others = peers.filter_map(|it| Some((ReplicaId(it.replica), doors(&it.addresses)?)));
        Ok(SpreadConfig { spread, listen, doors: own, others: others.collect() })
    });
    let peer = |it: &Neighbour| PeerAddress {
        replica: ReplicaId(it.replica),
        peer: it.addresses.members,
        target: it.addresses.targets,
        resp: it.addresses.clients,
    };
    Ok(Told {
        replica: member.replica,
        is_controlled: true,
        settings,
        listen: member.listen,
        metrics,
        spread: spread.transpose()?,
        home: Home { node: member.node, addresses },
        peers: member.peers.iter().map(peer).collect(),
    })
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
struct Part {
    base: PathBuf,
    member: Member,
    is_released: bool,
    make: Make,
    /// The backup of which it is made as a founder, if it is.
    restored: Option<Stored>,
    /// Until then it may be made anew: the group has enough without it, by the controller's last
    /// word, which nobody relies on for longer.
    anew_until: Option<Instant>,
    /// Why its process does not run, if that is for its files.
    trouble: Option<String>,
    /// Files that it had before, and that were put aside.
    aside: Option<PathBuf>,
}

impl Part {
    const fn new(base: PathBuf, member: Member) -> Self {
        let (make, anew_until) = (Make::Empty, None);
        let (restored, trouble, aside) = (None, None, None);
        let is_released = false;
        Self { base, member, is_released, make, restored, anew_until, trouble, aside }
    }

    /// Makes the files of a replica that is ordered. Files of an interrupted attempt are put aside.
    fn create(data: &Path, order: &Order, node: u64, listen: &DoorAddresses) -> Result<Self> {
        let listen = listen.of_place(settings_of(&order.name, &order.settings)?.place);
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
        let mut part = Self::new(base, Member::of(order, node, listen));
        part.make = order.make;
        part.restored.clone_from(&order.restored);
        part.make_files().inspect_err(|_| {
            // An attempt that is made again soon leaves nothing to be put aside.
            let _ = std::fs::remove_dir(replica_dir(&part.base, number));
        })?;
        part.member.save(&part.base)?;
        part.take(order)?;
        Ok(part)
    }

    fn make_files(&self) -> Result<()> {
        let (settings, number) = (self.member.settings()?, self.member.replica);
        match (self.make, &self.restored) {
            (Make::Founder, Some(backup)) => backup.make_founder(&self.base, &settings, number),
            (Make::Founder, None) => cluster::make_founder(&self.base, &settings, number),
            (Make::Empty, _) => cluster::make_empty(&self.base, &settings, number),
        }
    }

    fn may_be_made_anew(&self) -> bool {
        self.anew_until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether its files are gone. None are expected of one that is not to be here.
    fn is_missing(&self) -> bool {
        is_missing(&self.base, self.member.replica)
    }

    fn is_of(&self, order: &Order) -> bool {
        (self.member.group, self.member.replica) == (order.group, order.replica)
    }

    fn take(&mut self, order: &Order) -> Result<()> {
        self.make = order.make;
        self.restored.clone_from(&order.restored);
        self.anew_until = order.may_be_made_anew.then(|| Instant::now() + ANEW_MAX);
        self.is_released |= order.is_released;
        self.aside = cluster::found_aside(&self.base, self.member.replica);
        let told = Member::of(order, self.member.node, self.member.listen);
        if told != self.member {
            told.save(&self.base)?;
            self.member = told;
        }
        Ok(())
    }

    fn remove(&self) -> Result<()> {
        owned::remove_replica_dir(&replica_dir(&self.base, self.member.replica))?;
        owned::remove_ours(&member_path(&self.base), owned::is_settings)?;
        // Something of others, or what was put aside, may be there.
        let _ = std::fs::remove_dir(&self.base);
        Ok(())
    }
}

/// A replica of this node, or one of each of several groups: those that share a process.
pub(crate) struct Hosted {
    /// In the order of the groups.
    parts: Vec<Part>,
    /// Groups over which keys are spread.
    groups: usize,
    /// The number of the first group.
    first: u64,
    process: ProcessOptions,
    pub(crate) replica: Replica,
    /// Whether it was started since this node was.
    is_begun: bool,
    /// Whether a replica is to go, and the process with it.
    is_ending: bool,
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
        listen: &DoorAddresses,
        process: &ProcessOptions,
    ) -> Result<Vec<Self>> {
        let list = std::fs::read_dir(data).map_err(|e| failed(data, "cannot be listed", e))?;
        let mut all: Vec<Self> = Vec::new();
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
            let settings = member.settings()?;
            let listen = listen.of_place(settings.place);
            if member.listen != listen {
                member.listen = listen;
                member.save(&base)?;
            }
            let first = member.group - u64::from(settings.place);
            let part = Part::new(base, member);
            match all.iter_mut().find(|hosted| hosted.first == first) {
                Some(hosted) => hosted.insert(part),
                None => all.push(Self::new(part, &settings, process)),
            }
        }
        Ok(all)
    }

    /// Whether a node's data has a replica.
    pub(crate) fn is_any(data: &Path) -> bool {
        let list = std::fs::read_dir(data).into_iter().flatten().flatten();
        list.into_iter().any(|entry| member_path(&entry.path()).is_file())
    }

    /// Makes the files of a replica that is ordered. Files of an interrupted attempt are put aside.
    /// It joins those of `all` that it shares a process with.
    ///
    /// # Errors
    /// Unavailable where the replica has files elsewhere, or had, and its group cannot do without
    /// them; no space; I/O; of the settings.
    pub(crate) fn create(
        all: &mut Vec<Self>,
        data: &Path,
        order: &Order,
        node: u64,
        listen: &DoorAddresses,
        process: &ProcessOptions,
    ) -> Result<()> {
        let settings = settings_of(&order.name, &order.settings)?;
        let first = order.group - u64::from(settings.place);
        let part = Part::create(data, order, node, listen)?;
        match all.iter_mut().find(|hosted| hosted.first == first) {
            Some(hosted) => hosted.insert(part),
            None => all.push(Self::new(part, &settings, process)),
        }
        Ok(())
    }

    fn new(part: Part, settings: &Settings, process: &ProcessOptions) -> Self {
        Self {
            groups: settings.groups as usize,
            first: part.member.group - u64::from(settings.place),
            replica: Replica::new(part.member.replica, &part.base, process),
            process: process.clone(),
            parts: vec![part],
            is_begun: false,
            is_ending: false,
            trouble: None,
        }
    }

    /// Takes a further replica in. The process starts once all are here, so there is none yet.
    fn insert(&mut self, part: Part) {
        self.parts.push(part);
        self.parts.sort_by_key(|part| part.member.group);
        let places = self.parts.iter().map(|part| (part.base.clone(), part.member.replica));
        let (number, base) = (self.parts[0].member.replica, &self.parts[0].base);
        self.replica = Replica::new(number, base, &self.process).of_groups(places.collect());
    }

    fn is_whole(&self) -> bool {
        self.parts.len() == self.groups
    }

    fn may_be_made_anew(&self) -> bool {
        self.parts.iter().all(Part::may_be_made_anew)
    }

    pub(crate) fn is_of(&self, order: &Order) -> bool {
        self.parts.iter().any(|part| part.is_of(order))
    }

    /// Group and number of a replica for which there is no order.
    pub(crate) fn unknown(&self, orders: &[Order]) -> Option<String> {
        let is_known = |part: &&Part| orders.iter().any(|order| part.is_of(order));
        let unknown = self.parts.iter().find(|part| !is_known(part))?;
        Some(format!("{} {}", unknown.member.name, unknown.member.replica))
    }

    /// Group and number, for messages.
    pub(crate) fn name(&self) -> String {
        let Some(first) = self.parts.first() else { return String::new() };
        let name = format!("{} {}", first.member.name, first.member.replica);
        match self.parts.len() {
            1 => name,
            several => format!("{name} and {} more", several - 1),
        }
    }

    /// Takes an order for one of its replicas.
    ///
    /// # Errors
    /// I/O.
    pub(crate) fn take(&mut self, order: &Order) -> Result<()> {
        let mut parts = self.parts.iter_mut();
        let Some(part) = parts.find(|part| part.is_of(order)) else { return Ok(()) };
        part.take(order)?;
        if part.is_released && !self.is_ending {
            self.is_ending = true;
            self.replica.signal(Signal::TERM);
        }
        Ok(())
    }

    /// Its words to the controller, one for each replica.
    pub(crate) fn words(&self) -> impl Iterator<Item = ReplicaWord> {
        self.parts.iter().map(|part| {
            let Member { group, replica, .. } = part.member;
            let trouble = part.trouble.as_ref().or(self.trouble.as_ref()).cloned();
            let aside = part.aside.as_ref().map(|aside| aside.display().to_string());
            ReplicaWord { group, replica, is_made: !part.is_missing(), trouble, aside }
        })
    }

    /// Starts, ends and mends its process as it should be. Returns whether it is gone for good.
    pub(crate) fn look_after(&mut self, say: &mut dyn FnMut(&str)) -> bool {
        if self.is_ending {
            return self.remove_when_ended(say);
        }
        self.replica.bound_log();
        let may_be_made_anew = self.may_be_made_anew();
        self.replica.is_served = may_be_made_anew;
        if let Some(line) = self.replica.end_without_files(may_be_made_anew) {
            say(&line);
        }
        if let Some(death) = self.replica.check() {
            self.mourn(&death, say);
        }
        let outcome = match self.is_begun {
            true => self.restart_if_due(say),
            false => self.begin(say),
        };
        match outcome {
            Ok(_) => {}
            Err(error) => self.complain(&error, say),
        }
        if self.replica.outlives_the_last_by(STEADY) {
            self.trouble = None;
            self.parts.iter_mut().for_each(|part| part.trouble = None);
        }
        false
    }

    /// Says why the process died. Damaged files are put aside where their group can do without
    /// them, and those of other groups stay.
    fn mourn(&mut self, death: &Death, say: &mut dyn FnMut(&str)) {
        let line = death.in_words(self.replica.number);
        self.trouble = Some(line.clone());
        let is_anew = death.damaged.is_some_and(|place| self.parts[place].may_be_made_anew());
        let next = match is_anew {
            true => String::new(),
            false => format!("; next start in {:.1} s", death.restart_in.as_secs_f64()),
        };
        say(&(line + &next));
        let Some(place) = death.damaged else { return };
        let aside = is_anew.then(|| self.replica.put_aside(place));
        let part = &mut self.parts[place];
        let Member { name, replica, .. } = &part.member;
        self.trouble = Some(format!(
            "its process does not start, as files of replica {replica} of group {name} are damaged"
        ));
        let words = death.last_words.as_deref().unwrap_or("its files are damaged");
        let trouble = match aside {
            Some(Ok(aside)) => {
                say(&format!("replica {replica}: its files are now {}", aside.display()));
                format!("{words}; they are put aside, and it is made anew")
            }
            Some(Err(error)) => {
                say(&format!("replica {replica}: {error}"));
                format!("{words}; they could not be put aside, so nothing is made anew: {error}")
            }
            None => format!(
                "{words}; the group waits for them: bring them back, or, if they are lost for \
                 good, say `gabion group give-up {replica} --group {name}`, and it is made anew"
            ),
        };
        part.trouble = Some(trouble);
    }

    /// Says what is wrong, once.
    fn complain(&mut self, error: &Error, say: &mut dyn FnMut(&str)) {
        let line = format!("replica {}: {error}", self.replica.number);
        if self.trouble.as_ref() != Some(&line) {
            say(&line);
            self.trouble = Some(line);
        }
    }

    /// Makes files that are gone, where that may be done.
    fn make_missing(&self, say: &mut dyn FnMut(&str)) -> Result<()> {
        for part in self.parts.iter().filter(|part| part.is_missing()) {
            // Until the group is made nobody has anything, and a founder is made as often as it
            // takes.
            if part.make == Make::Founder || part.may_be_made_anew() {
                say(&anew(part.member.replica, "its pool is gone"));
                part.make_files()?;
            }
        }
        Ok(())
    }

    /// The first start since this node's. Returns whether it happened.
    fn begin(&mut self, say: &mut dyn FnMut(&str)) -> Result<bool> {
        self.make_missing(say)?;
        if !self.is_whole() || !self.parts.iter().all(|part| part.member.runs) {
            return Ok(false);
        }
        self.replica.start()?;
        self.is_begun = true;
        let pid = self.replica.pid().unwrap_or(0);
        say(&format!("replica {} starts as process {pid}", self.replica.number));
        Ok(true)
    }

    fn restart_if_due(&mut self, say: &mut dyn FnMut(&str)) -> Result<bool> {
        if self.replica.is_due_without_files() {
            self.make_missing(say).inspect_err(|_| {
                self.replica.pause();
            })?;
        }
        let is_started = self.replica.restart_if_due()?;
        if is_started {
            let pid = self.replica.pid().unwrap_or(0);
            say(&format!("replica {} starts again as process {pid}", self.replica.number));
        }
        Ok(is_started)
    }

    /// The files of replicas that are no members go once their process has ended.
    fn remove_when_ended(&mut self, say: &mut dyn FnMut(&str)) -> bool {
        if !self.replica.is_gone() {
            return false;
        }
        let mut left = Vec::new();
        for part in std::mem::take(&mut self.parts) {
            if !part.is_released {
                left.push(part);
                continue;
            }
            match part.remove() {
                Ok(()) => {
                    let Member { name, replica, .. } = &part.member;
                    say(&format!("{name} {replica}: is removed, as it was told"));
                }
                Err(error) => {
                    self.complain(&error, say);
                    left.push(part);
                }
            }
        }
        self.parts = left;
        // Those that are left wait for what is to become of them.
        self.is_ending = self.parts.iter().any(|part| part.is_released);
        self.is_begun &= self.is_ending;
        self.parts.is_empty()
    }
}
