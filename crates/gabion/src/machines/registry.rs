//! The registry: which nodes there are, which groups, and which node holds which replica. It lies
//! in the controller's store beside the records of the groups, under names of its own, each
//! replaced by compare-and-set.
//!
//! ```text
//!   registry/cluster       a random number: nodes keep to the registry that they joined
//!   registry/nodes/NAME    NodeRecord      registry/groups/NAME    GroupSpec      as JSON
//!   groups/NUMBER          the record of a group's views: gabion_control::record
//! ```

use super::config::DoorAddresses;
use crate::backup::restore::Stored;
use crate::cluster::Settings;
use crate::control::driver::ReplicaDoor;
use gabion_base::{Error, GroupId, ReplicaId, Result};
use gabion_control::store::{Store, Swapped, Version, Versioned};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The version of the records below.
const FORMAT: u32 = 1;
const CLUSTER: &str = "registry/cluster";
const NODES: &str = "registry/nodes/";
const GROUPS: &str = "registry/groups/";
/// Nodes of a registry at most, and groups.
const ENTRIES_MAX: usize = 1_000;

/// A node, as it says of itself.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeRecord {
    format: u32,
    pub(crate) name: String,
    /// Random, from the making of its data: tells a node from another of its name, and from itself
    /// with an empty disk.
    pub(crate) id: u64,
    pub(crate) addresses: DoorAddresses,
    pub(crate) pool_size: u64,
    pub(crate) failure_domain: String,
    /// An operator's word: it gets no replica more.
    #[serde(default)]
    pub(crate) is_draining: bool,
    /// Groups of which it may hold a replica each; `addresses` are those of the first.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(crate) groups_max: u32,
    /// The door for clients with TLS, if there is one: commands go there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) clients_tls: Option<SocketAddr>,
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_one(count: &u32) -> bool {
    *count == 1
}

impl NodeRecord {
    pub(crate) const fn new(
        name: String,
        id: u64,
        addresses: DoorAddresses,
        pool_size: u64,
        failure_domain: String,
    ) -> Self {
        let (is_draining, groups_max, clients_tls) = (false, 1, None);
        Self {
            format: FORMAT,
            name,
            id,
            addresses,
            pool_size,
            failure_domain,
            is_draining,
            groups_max,
            clients_tls,
        }
    }

    /// Checks what is read from a wire or a store.
    ///
    /// # Errors
    /// Unsupported for another version; invalid input.
    pub(crate) fn check(&self) -> Result<()> {
        check_format(&format!("node {:?}", self.name), self.format)?;
        super::config::check_name("a node's name", &self.name)?;
        super::config::check_name("a failure domain", &self.failure_domain)
    }
}

/// How far a group is.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum GroupState {
    /// Its founders make their pools. None runs, so one that is lost is made again.
    Making,
    /// Its record of views is stored: from now on a pool that is lost is made empty.
    Made,
    /// Given up before it was made; its replicas are removed.
    Ending,
}

/// A group: what is fixed, and its replicas.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupSpec {
    format: u32,
    pub(crate) name: String,
    pub(crate) state: GroupState,
    /// As `cluster.json` of `up` has them.
    settings: Value,
    /// The groups over which its keys are spread, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) part: Option<Part>,
    /// The backup of which it is made, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) restored: Option<Stored>,
    /// The number of the next replica: none is given twice.
    pub(crate) next_replica: u32,
    pub(crate) seats: Vec<Seat>,
}

/// A group's place among several.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    /// The name of all of them.
    pub(crate) of: String,
    /// Its place, from 0.
    pub(crate) place: u32,
    pub(crate) groups: u32,
}

/// A replica's place at a node.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Seat {
    pub(crate) replica: u32,
    pub(crate) node: String,
    /// The node's addresses that are this replica's.
    pub(crate) addresses: DoorAddresses,
    /// Whether the group is made with it.
    pub(crate) is_founder: bool,
    /// The node is to remove it: it is no member, and the others have all that it had.
    #[serde(default)]
    pub(crate) is_released: bool,
    /// Its files were there: a node that lacks them has lost them, or its disk is not there.
    #[serde(default)]
    pub(crate) is_made: bool,
}

impl GroupSpec {
    /// A group that is to be made, with a founder on each of these nodes, and a spare on each of
    /// those. Where the settings are of one of several groups, those share the name.
    pub(crate) fn new(
        name: &str,
        settings: &Settings,
        founders: &[&NodeRecord],
        spares: &[&NodeRecord],
    ) -> Self {
        let (place, groups) = (settings.place, settings.groups);
        let is_part = groups > 1;
        let mut spec = Self {
            format: FORMAT,
            name: if is_part { part_name(name, place) } else { name.to_owned() },
            state: GroupState::Making,
            settings: settings.to_json(),
            part: is_part.then(|| Part { of: name.to_owned(), place, groups }),
            restored: None,
            next_replica: 1,
            seats: Vec::new(),
        };
        let founders = founders.iter().map(|node| (node, true));
        for (node, is_founder) in founders.chain(spares.iter().map(|node| (node, false))) {
            spec.seat(node, is_founder);
        }
        spec
    }

    /// Gives a node a replica. Returns its number.
    pub(crate) fn seat(&mut self, node: &NodeRecord, is_founder: bool) -> u32 {
        let replica = self.next_replica;
        self.next_replica += 1;
        let place = self.part.as_ref().map_or(0, |part| part.place);
        let (node, addresses) = (node.name.clone(), node.addresses.of_place(place));
        self.seats.push(Seat {
            replica,
            node,
            addresses,
            is_founder,
            is_released: false,
            is_made: false,
        });
        replica
    }

    /// The group's settings, which never change.
    ///
    /// # Errors
    /// Unsupported for settings of another version.
    pub(crate) fn settings(&self) -> Result<Settings> {
        Settings::from_json(&self.settings)
            .map_err(|error| Error::unsupported(format!("group {}: {error}", self.name)))
    }

    /// The same as JSON.
    pub(crate) const fn settings_json(&self) -> &Value {
        &self.settings
    }

    pub(crate) fn group(&self) -> Result<GroupId> {
        Ok(self.settings()?.group)
    }

    /// The replica of a node.
    pub(crate) fn seat_of(&self, node: &str) -> Option<&Seat> {
        self.seats.iter().find(|seat| seat.node == node)
    }

    /// The doors for members of those that are to run.
    pub(crate) fn doors(&self) -> Vec<(ReplicaId, ReplicaDoor)> {
        let seats = self.seats.iter().filter(|seat| !seat.is_released);
        let door = |seat: &Seat| {
            let (address, node) = (seat.addresses.members, Some(seat.node.clone()));
            (ReplicaId(seat.replica), ReplicaDoor { address, node })
        };
        seats.map(door).collect()
    }

    /// Whether keys are spread over this group and that one, or both are the same.
    pub(crate) fn is_of_cluster_of(&self, other: &Self) -> bool {
        match (&self.part, &other.part) {
            (Some(own), Some(theirs)) => own.of == theirs.of,
            _ => self.name == other.name,
        }
    }

    fn check(&self) -> Result<()> {
        check_format(&format!("group {:?}", self.name), self.format)?;
        super::config::check_name("a group's name", &self.name)?;
        let settings = self.settings()?;
        let part = self.part.as_ref().map_or((0, 1), |part| (part.place, part.groups));
        if part == (settings.place, settings.groups) {
            return Ok(());
        }
        Err(Error::corruption(format!(
            "group {}: is group {} of {}, and its settings are of {} of {}",
            self.name, part.0, part.1, settings.place, settings.groups
        )))
    }
}

/// The name of one of several groups.
pub(crate) fn part_name(name: &str, place: u32) -> String {
    format!("{name}-{}", place + 1)
}

fn check_format(what: &str, format: u32) -> Result<()> {
    if format == FORMAT {
        return Ok(());
    }
    let text = format!("{what} has format {format}, this build knows {FORMAT}");
    Err(Error::unsupported(text))
}

/// The registry, as it is in the store.
pub(crate) struct Registry<S> {
    store: S,
    /// The cluster's number.
    pub(crate) cluster: u64,
    nodes: BTreeMap<String, (Version, NodeRecord)>,
    groups: BTreeMap<String, (Version, GroupSpec)>,
}

impl<S: Store> Registry<S> {
    /// Reads it; `random` is the number of a cluster that is made now.
    ///
    /// # Errors
    /// Of the store; unsupported for records of another version; corruption.
    pub(crate) fn open(mut store: S, random: u64) -> Result<Self> {
        let found = match store.get(CLUSTER)? {
            Some(found) => Some(found),
            None => match store.swap(CLUSTER, Version::NONE, &random.to_le_bytes())? {
                Swapped::Stored(_) => None,
                Swapped::Lost(theirs) => theirs,
            },
        };
        let number = |found: Versioned| match found.value[..].try_into() {
            Ok(bytes) => Ok(u64::from_le_bytes(bytes)),
            Err(_) => Err(Error::corruption(format!(
                "{CLUSTER}: a number has 8 bytes, not {}",
                found.value.len()
            ))),
        };
        let cluster = found.map_or(Ok(random), number)?;
        let nodes = read_all(&mut store, NODES, NodeRecord::check)?;
        let groups = read_all(&mut store, GROUPS, GroupSpec::check)?;
        Ok(Self { store, cluster, nodes, groups })
    }

    pub(crate) fn node(&self, name: &str) -> Option<&NodeRecord> {
        self.nodes.get(name).map(|(_, node)| node)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodeRecord> {
        self.nodes.values().map(|(_, node)| node)
    }

    pub(crate) fn spec(&self, name: &str) -> Option<&GroupSpec> {
        self.groups.get(name).map(|(_, spec)| spec)
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = &GroupSpec> {
        self.groups.values().map(|(_, spec)| spec)
    }

    /// The replicas of a node, with their groups.
    pub(crate) fn seats_of(&self, node: &str) -> impl Iterator<Item = (&GroupSpec, &Seat)> {
        let all = self.groups().flat_map(|spec| spec.seats.iter().map(move |seat| (spec, seat)));
        all.filter(move |(_, seat)| seat.node == node)
    }

    /// Stores a node.
    ///
    /// # Errors
    /// Of the store; busy where another controller was first; limit exceeded.
    pub(crate) fn put_node(&mut self, node: NodeRecord) -> Result<()> {
        let name = node.name.clone();
        put(&mut self.store, NODES, &mut self.nodes, &name, node)
    }

    /// Stores a group.
    ///
    /// # Errors
    /// As [`Self::put_node`].
    pub(crate) fn put_group(&mut self, spec: GroupSpec) -> Result<()> {
        let name = spec.name.clone();
        put(&mut self.store, GROUPS, &mut self.groups, &name, spec)
    }

    /// The store, for the records of groups.
    pub(crate) const fn store(&mut self) -> &mut S {
        &mut self.store
    }
}

fn read_all<T: DeserializeOwned>(
    store: &mut impl Store,
    prefix: &str,
    check: impl Fn(&T) -> Result<()>,
) -> Result<BTreeMap<String, (Version, T)>> {
    let mut all = BTreeMap::new();
    for (name, found) in store.list(prefix)? {
        let value = read(&name, &found.value)?;
        check(&value)?;
        let own = name.strip_prefix(prefix).unwrap_or(&name).to_owned();
        all.insert(own, (found.version, value));
    }
    Ok(all)
}

fn read<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        Error::corruption(format!("the controller's store: {name} cannot be read: {error}"))
    })
}

fn put<T: Serialize + DeserializeOwned>(
    store: &mut impl Store,
    prefix: &str,
    known: &mut BTreeMap<String, (Version, T)>,
    name: &str,
    value: T,
) -> Result<()> {
    let version = known.get(name).map_or(Version::NONE, |(version, _)| *version);
    if version == Version::NONE && known.len() >= ENTRIES_MAX {
        return Err(Error::limit(format!("{prefix}{name}: {ENTRIES_MAX} are known, the limit")));
    }
    let bytes = serde_json::to_vec(&value)
        .map_err(|error| Error::invalid(format!("{prefix}{name} cannot be written: {error}")))?;
    let full = format!("{prefix}{name}");
    match store.swap(&full, version, &bytes)? {
        Swapped::Stored(version) => {
            known.insert(name.to_owned(), (version, value));
            Ok(())
        }
        Swapped::Lost(theirs) => {
            match theirs {
                Some(theirs) => {
                    known.insert(name.to_owned(), (theirs.version, read(&full, &theirs.value)?));
                }
                None => drop(known.remove(name)),
            }
            let text = format!("another controller changed {full}: try again");
            Err(Error::new(gabion_base::ErrorKind::Busy, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::FixedOptions;
    use gabion_base::ErrorKind;
    use gabion_base::units::GIB;
    use gabion_control::store::MemoryStore;
    use std::path::Path;

    pub(crate) fn node(name: &str, last: u8) -> NodeRecord {
        let at = |port: u16| ([127, 0, 0, last], port).into();
        let addresses = DoorAddresses {
            clients: at(6379),
            members: at(6479),
            targets: at(6579),
            cluster: None,
        };
        NodeRecord::new(name.to_owned(), u64::from(last), addresses, GIB, name.to_owned())
    }

    fn spec() -> GroupSpec {
        let settings = Settings::new(&FixedOptions::default(), 6379, Path::new("/d"), 100 * GIB);
        let (a, b, c, d) = (node("a", 2), node("b", 3), node("c", 4), node("d", 5));
        GroupSpec::new("g", &settings.unwrap(), &[&a, &b, &c], &[&d])
    }

    #[test]
    fn a_registry_that_is_opened_again_has_what_was_stored() {
        let mut registry = Registry::open(MemoryStore::default(), 7).unwrap();
        registry.put_node(node("a", 2)).unwrap();
        registry.put_group(spec()).unwrap();
        let again = Registry::open(registry.store.clone(), 8).unwrap();
        assert_eq!(again.cluster, 7, "the number of the first controller");
        assert_eq!(again.node("a"), Some(&node("a", 2)));
        let found = again.spec("g").unwrap();
        assert_eq!(found, &spec_like(found));
        let seats: Vec<_> = found.seats.iter().map(|it| (it.replica, it.is_founder)).collect();
        assert_eq!(seats, [(1, true), (2, true), (3, true), (4, false)]);
        assert_eq!(again.seats_of("d").count(), 1);
        assert_eq!(again.seats_of("e").count(), 0);
    }

    /// The same group number, which is random.
    fn spec_like(found: &GroupSpec) -> GroupSpec {
        GroupSpec { settings: found.settings.clone(), ..spec() }
    }

    #[test]
    fn of_two_controllers_the_second_to_write_learns_what_the_first_wrote() {
        let mut first = Registry::open(MemoryStore::default(), 7).unwrap();
        first.put_node(node("a", 2)).unwrap();
        let mut second = Registry::open(first.store.clone(), 7).unwrap();
        let drained = NodeRecord { is_draining: true, ..node("a", 2) };
        first.put_node(drained.clone()).unwrap();
        second.store = first.store.clone();
        let error = second.put_node(node("a", 9)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert_eq!(second.node("a"), Some(&drained));
        second.put_node(node("a", 9)).unwrap();
    }

    #[test]
    fn a_record_of_a_later_version_or_with_other_fields_is_refused_by_name() {
        let mut store = MemoryStore::default();
        let later = serde_json::to_string(&NodeRecord { format: 2, ..node("a", 2) }).unwrap();
        store.swap("registry/nodes/a", Version::NONE, later.as_bytes()).unwrap();
        let error = Registry::open(store, 1).err().unwrap();
        assert_eq!(error.message(), "node \"a\" has format 2, this build knows 1");
        let mut store = MemoryStore::default();
        let other = later.replace("\"name\"", "\"called\"");
        store.swap("registry/nodes/a", Version::NONE, other.as_bytes()).unwrap();
        let error = Registry::open(store, 1).err().unwrap();
        assert!(error.message().contains("registry/nodes/a cannot be read"), "{error}");
    }

    #[test]
    fn no_number_of_a_replica_is_given_twice() {
        let mut spec = spec();
        spec.seats.retain(|seat| seat.replica != 4);
        assert_eq!(spec.seat(&node("e", 6), false), 5);
    }
}
