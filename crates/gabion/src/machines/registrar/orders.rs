//! Nodes register, and hear what they are to have.

use super::*;
use crate::backup::restore::Stored;
use crate::machines::config::{DoorAddresses, reached_at};
use crate::machines::registry::Seat;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A replica that a node is to have.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Order {
    pub(crate) group: u64,
    /// The group's name.
    pub(crate) name: String,
    pub(crate) replica: u32,
    /// The group's settings, which never change.
    pub(crate) settings: Value,
    /// Its addresses, of those that the node is reached at.
    pub(crate) addresses: DoorAddresses,
    /// The others of the group.
    pub(crate) peers: Vec<Neighbour>,
    pub(crate) make: Make,
    /// The backup of which a founder is made, if it is. An older node knows of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) restored: Option<Stored>,
    /// Whether its process is to run.
    pub(crate) runs: bool,
    /// Its files are to be removed: the others have all that it had.
    pub(crate) is_released: bool,
    /// Whether the group has enough without it: what is lost or damaged may be made anew, empty.
    pub(crate) may_be_made_anew: bool,
}

impl Order {
    /// The word of a node that cannot make it.
    pub(crate) fn cannot_be_made(&self, error: &Error) -> ReplicaWord {
        let (group, replica, trouble) = (self.group, self.replica, Some(error.to_string()));
        ReplicaWord { group, replica, is_made: false, trouble, aside: None }
    }
}

/// How a pool is made that is not there.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Make {
    /// As that of a member of the first view.
    Founder,
    /// Empty, to be filled by the others.
    Empty,
}

/// Another replica of a group.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Neighbour {
    pub(crate) replica: u32,
    /// Its node. Empty in files of before nodes had certificates.
    #[serde(default)]
    pub(crate) node: String,
    pub(crate) addresses: DoorAddresses,
}

/// A node's word on a replica that it has.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplicaWord {
    pub(crate) group: u64,
    pub(crate) replica: u32,
    /// Its pool is there.
    pub(crate) is_made: bool,
    /// Why it is not as it should be, in a sentence.
    pub(crate) trouble: Option<String>,
    /// Place of files that it had before, if any were put aside. An older controller knows of
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) aside: Option<String>,
}

impl Registrar {
    pub(super) fn hear_node(&self, question: &Value, caller: &Caller) -> Result<Value> {
        let refused =
            |error| Error::invalid(format!("the words of a node cannot be read: {error}"));
        let told: NodeRecord = serde_json::from_value(question["node"].clone()).map_err(refused)?;
        self.permitted(caller.check_node(&told.name))?;
        let replicas = serde_json::from_value(question["replicas"].clone()).map_err(refused)?;
        let mut inner = self.lock();
        if let Some(cluster) = question["cluster"].as_u64()
            && cluster != inner.registry.cluster
        {
            return Err(Error::invalid(format!(
                "node {} belongs to cluster {cluster:016x}, and this controller's is {:016x}",
                told.name, inner.registry.cluster
            )));
        }
        let name = told.name.clone();
        let free = question["free"].as_u64().unwrap_or(0);
        let heard = Heard { at: Instant::now(), id: told.id, free, replicas };
        inner.register(told, *caller != Caller::Anyone)?;
        inner.heard.insert(name.clone(), heard);
        self.progress(&mut inner)?;
        let orders = self.orders(&inner, &name)?;
        Ok(json!({ "ok": true, "cluster": inner.registry.cluster, "orders": orders }))
    }

    /// Orders for all replicas that a node is to have.
    fn orders(&self, inner: &Inner, node: &str) -> Result<Vec<Order>> {
        let mut orders = Vec::new();
        for (spec, seat) in inner.registry.seats_of(node) {
            let settings = spec.settings()?;
            let others = spec.seats.iter().filter(|it| it.replica != seat.replica);
            let is_made = spec.state == GroupState::Made;
            let is_founder = seat.is_founder && spec.state == GroupState::Making;
            orders.push(Order {
                group: settings.group.get(),
                name: spec.name.clone(),
                replica: seat.replica,
                settings: spec.settings_json().clone(),
                addresses: seat.addresses,
                peers: others
                    .map(|it| Neighbour {
                        replica: it.replica,
                        node: it.node.clone(),
                        addresses: it.addresses,
                    })
                    .collect(),
                make: if is_founder { Make::Founder } else { Make::Empty },
                restored: spec.restored.clone().filter(|_| is_founder),
                runs: is_made && !seat.is_released,
                is_released: seat.is_released,
                // The files of a founder were there before the group was made.
                may_be_made_anew: !(seat.is_made || seat.is_founder)
                    || self.is_enough_without(settings.group, seat)?,
            });
        }
        Ok(orders)
    }

    fn is_enough_without(&self, group: GroupId, seat: &Seat) -> Result<bool> {
        let status = self.group_status(group)?;
        Ok(status.is_some_and(|it| crate::control::is_enough_without(&it, seat.replica)))
    }

    /// Does what the nodes' words make possible.
    fn progress(&self, inner: &mut Inner) -> Result<()> {
        let names: Vec<String> = inner.registry.groups().map(|spec| spec.name.clone()).collect();
        for name in names {
            let Some(spec) = inner.registry.spec(&name) else { continue };
            if spec.state == GroupState::Making && inner.has_all_founders(spec)? {
                self.found(inner, &name)?;
            }
            self.complete_seats(inner, &name)?;
            self.note_made(inner, &name)?;
            self.forget_released(inner, &name)?;
        }
        Ok(())
    }

    /// From then on files that are missing are lost ones, and not those of a new replica.
    fn note_made(&self, inner: &mut Inner, name: &str) -> Result<()> {
        let Some(spec) = inner.registry.spec(name) else { return Ok(()) };
        let mut spec = spec.clone();
        let group = spec.group()?;
        let mut is_changed = false;
        for seat in spec.seats.iter_mut().filter(|seat| !seat.is_made && !seat.is_founder) {
            let word = inner.heard.get(&seat.node).and_then(|it| it.word(group, seat.replica));
            seat.is_made = word.is_some_and(|word| word.is_made);
            is_changed |= seat.is_made;
        }
        if is_changed { inner.registry.put_group(spec) } else { Ok(()) }
    }

    /// The record is stored before the state says so: a controller that ends in between finds the
    /// record, and begins with that. The group is looked after before the state says so, too: of a
    /// state nobody may know whether it was stored.
    fn found(&self, inner: &mut Inner, name: &str) -> Result<()> {
        let Some(mut spec) = inner.registry.spec(name).cloned() else { return Ok(()) };
        let record = record_of(inner.registry.store(), founding_record(&spec.settings()?))?;
        spec.state = GroupState::Made;
        self.names.insert(record.1.complete.group, name);
        self.driver.watch(Watched { record, doors: spec.doors() });
        inner.registry.put_group(spec)
    }

    /// A replica whose files are removed has no seat any more.
    fn forget_released(&self, inner: &mut Inner, name: &str) -> Result<()> {
        let Some(spec) = inner.registry.spec(name) else { return Ok(()) };
        let group = spec.group()?;
        let is_gone = |seat: &Seat| {
            let heard = inner.heard.get(&seat.node).filter(|heard| heard.is_here());
            seat.is_released && heard.is_some_and(|it| it.word(group, seat.replica).is_none())
        };
        let gone: Vec<u32> =
            spec.seats.iter().filter(|seat| is_gone(seat)).map(|seat| seat.replica).collect();
        if gone.is_empty() {
            return Ok(());
        }
        let mut spec = spec.clone();
        spec.seats.retain(|seat| !gone.contains(&seat.replica));
        inner.registry.put_group(spec)?;
        gone.iter().for_each(|replica| self.driver.set_door(group, ReplicaId(*replica), None));
        Ok(())
    }
}

impl Inner {
    /// Of several groups those of all: none is founded while others may be given up.
    fn has_all_founders(&self, spec: &GroupSpec) -> Result<bool> {
        let all = || self.registry.groups().filter(|other| !other.is_gone());
        let cluster = || all().filter(|other| other.is_of_cluster_of(spec));
        let groups = spec.part.as_ref().map_or(1, |part| part.groups as usize);
        if cluster().count() < groups {
            return Ok(false);
        }
        for spec in cluster().filter(|spec| spec.state != GroupState::Made) {
            let group = spec.group()?;
            let is_made = |seat: &Seat| {
                let word = self.heard.get(&seat.node).and_then(|it| it.word(group, seat.replica));
                word.is_some_and(|word| word.is_made)
            };
            let is_ending = spec.state == GroupState::Ending;
            if is_ending || !spec.seats.iter().filter(|seat| seat.is_founder).all(is_made) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes a node in, or takes it as the one that is known.
    fn register(&mut self, mut told: NodeRecord, has_certificates: bool) -> Result<()> {
        told.check()?;
        for (door, address) in told.addresses.each() {
            let what = format!("{} of node {}", reached_at(door), told.name);
            let is_for_clients = door == "clients" || door.starts_with("groups");
            trust::check(&what, address, has_certificates || is_for_clients)?;
            if address.ip().is_unspecified() {
                let text = format!("{what} is {address}, to which nobody can connect");
                return Err(Error::invalid(text));
            }
        }
        self.check_addresses(&told)?;
        let Some(known) = self.registry.node(&told.name) else {
            return self.registry.put_node(told);
        };
        told.is_draining = known.is_draining;
        if *known == told {
            return Ok(());
        }
        let heard = self.heard.get(&told.name);
        if known.id != told.id && heard.is_some_and(|it| it.id == known.id && it.is_here()) {
            return Err(Error::invalid(format!(
                "node {} has data {:016x}, and another with data {:016x} has that name and is \
                 here: give one of them another name",
                told.name, told.id, known.id
            )));
        }
        for (spec, seat) in self.registry.seats_of(&told.name) {
            check_seat(&told, spec, seat)?;
        }
        self.registry.put_node(told)
    }

    /// No two nodes are reached at one address.
    fn check_addresses(&self, told: &NodeRecord) -> Result<()> {
        let others = self.registry.nodes().filter(|node| node.name != told.name);
        for other in others {
            for (door, address) in told.addresses.each() {
                let taken = other.addresses.each().find(|(_, it)| *it == address);
                if let Some((theirs, _)) = taken {
                    return Err(Error::invalid(format!(
                        "node {}: {} is {address}, which is {} of node {}",
                        told.name,
                        reached_at(door),
                        reached_at(theirs),
                        other.name
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Refuses a node that is not to be reached any more where others reach its replica.
fn check_seat(told: &NodeRecord, spec: &GroupSpec, seat: &Seat) -> Result<()> {
    let (place, groups) = spec.part.as_ref().map_or((0, 1), |part| (part.place, part.groups));
    if told.groups_max < groups {
        return Err(Error::invalid(format!(
            "node {}: groups.max is {}, and it holds replicas of {groups} groups: `gabion node \
             drain {}` first",
            told.name, told.groups_max, told.name
        )));
    }
    let (mut before, mut now) = (seat.addresses, told.addresses.of_place(place));
    if spec.part.is_none() {
        // Nobody is told doors for clients of clusters.
        (before.cluster, now.cluster) = (None, None);
    }
    if before == now {
        return Ok(());
    }
    let each = |at: &DoorAddresses| at.each().collect::<Vec<_>>();
    let (before, now) = (each(&before), each(&now));
    let changed = before.iter().find(|door| !now.contains(door));
    let door = changed.or_else(|| now.iter().find(|door| !before.contains(door)));
    let door = door.map_or("clients", |(door, _)| *door);
    let text = |all: &[(&str, SocketAddr)]| {
        let found = all.iter().find(|(other, _)| *other == door);
        found.map_or_else(|| "nowhere".to_owned(), |(_, at)| at.to_string())
    };
    let (before, now) = (text(&before), text(&now));
    Err(Error::invalid(format!(
        "node {}: {} is {now}, and the others reach its replica {} of group {} at {before}: keep \
         that address, or `gabion node drain {}` first",
        told.name,
        reached_at(door),
        seat.replica,
        spec.name,
        told.name
    )))
}
