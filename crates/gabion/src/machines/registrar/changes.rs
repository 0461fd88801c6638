//! Changes that operators ask for.

use super::*;
use crate::backup::restore::{Stored, check_pool};
use crate::cluster::REPLICAS_MAX;
use crate::judgement::Around;
use crate::machines::registry::Seat;
use crate::units::count;
use gabion_control::Command;
use gabion_node::CompactionMode;
use gabion_server::commands::slots::GROUPS_MAX;
use serde::Deserialize;

/// Members of each of several groups, without `--replicas`.
const REPLICAS_USUAL: u32 = 3;

impl Registrar {
    /// `gabion group create`: the group is there when its nodes have made their pools.
    pub(super) fn create(&self, question: &Value) -> Result<Value> {
        let name = text_of(question, "name")?;
        check_name("a group's name", name)?;
        let mut inner = self.lock();
        let shares = question["share_domains"] == true;
        let names = |field: &str| -> Result<Vec<String>> {
            match &question[field] {
                Value::Null => Ok(Vec::new()),
                given => serde_json::from_value(given.clone()).map_err(|error| {
                    Error::invalid(format!("`{field}` is {given}, names are expected: {error}"))
                }),
            }
        };
        let (founders, spares) = (names("nodes")?, names("spares")?);
        inner.check_free_name(name)?;
        let mut nodes: Vec<&NodeRecord> = Vec::new();
        for node in founders.iter().chain(&spares) {
            let node = inner.free_node(node)?;
            check_apart(&nodes, node, shares)?;
            nodes.push(node);
        }
        let restored = restored_of(question)?;
        let first = settings_of(question, restored.as_ref(), &nodes[..founders.len()])?;
        if let Some(restored) = &restored {
            inner.check_unused(&first, &restored.backup)?;
        }
        nodes.iter().try_for_each(|node| inner.check_room(node, &first))?;
        let mut specs = specs_of(name, &first, &nodes);
        let backup = restored.map(|restored| restored.backup);
        specs.iter_mut().for_each(|spec| spec.restored.clone_from(&backup));
        for spec in &specs {
            check_name("a group's name", &spec.name)?;
            inner.check_free_name(&spec.name)?;
        }
        let names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
        // Where only some of them are stored the same command is refused, and they are abandoned.
        specs.into_iter().try_for_each(|spec| inner.registry.put_group(spec))?;
        Ok(json!({ "ok": true, "group": first.group.get(), "names": names }))
    }

    /// `gabion group abandon`: one that cannot be made is given up.
    pub(super) fn abandon(&self, question: &Value) -> Result<Value> {
        let mut inner = self.lock();
        let specs = inner.specs_named(question)?;
        // None of several runs before all are made.
        let made = specs.iter().filter(|spec| spec.state == GroupState::Made);
        let groups = specs.first().and_then(|spec| spec.part.as_ref()).map_or(1, |it| it.groups);
        let runs = made.clone().count() == groups as usize;
        if let Some(made) = made.clone().next().filter(|_| runs) {
            return Err(Error::invalid(format!(
                "group {} is made, and may hold data: only one that is being made can be given up",
                made.name
            )));
        }
        for mut spec in specs {
            spec.state = GroupState::Ending;
            spec.seats.iter_mut().for_each(|seat| seat.is_released = true);
            inner.registry.put_group(spec)?;
        }
        Ok(json!({ "ok": true }))
    }

    /// A change of the members, of those that `up` knows too. Nodes stand for their replicas.
    pub(super) fn change(&self, question: &Value) -> Result<Value> {
        let mut inner = self.lock();
        let spec = inner.spec_of(question)?.clone();
        let group = spec.group()?;
        if spec.state != GroupState::Made {
            let text = format!("group {}: is being made, see `gabion group list`", spec.name);
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let shares = question["share_domains"] == true;
        let mut asked = question.clone();
        let newcomer = match question["do"].as_str() {
            Some("add") => Some("replica"),
            Some("replace") => Some("by").filter(|by| !question[*by].is_null()),
            _ => None,
        };
        for field in ["replica", "by"] {
            if let Some(node) = question[field].as_str() {
                let found = spec.seat_of(node).map(|seat| seat.replica);
                let replica = match found {
                    Some(replica) => replica,
                    None if newcomer == Some(field) => {
                        return self.seat(&mut inner, spec, node, shares);
                    }
                    None => {
                        inner.node(node)?;
                        let text = format!("node {node} holds no replica of group {}", spec.name);
                        return Err(Error::invalid(text));
                    }
                };
                asked[field] = json!(replica);
            }
        }
        if let Some(replica) = newcomer.and_then(|field| asked[field].as_u64()) {
            self.check_newcomer(&spec, replica as u32)?;
        }
        socket::answer(&asked, &self.driver, group, Around::default())
    }

    /// Gives a node a replica of a group, and of those over which keys are spread with it. The
    /// command asks again until that runs.
    fn seat(&self, inner: &mut Inner, spec: GroupSpec, node: &str, shares: bool) -> Result<Value> {
        let settings = spec.settings()?;
        let found = inner.free_node(node)?.clone();
        let others = spec.seats.iter().filter_map(|seat| inner.registry.node(&seat.node));
        check_apart(&others.collect::<Vec<_>>(), &found, shares)?;
        inner.check_room(&found, &settings)?;
        let name = spec.name.clone();
        let replica = self.put_seat(inner, spec, &found)?;
        self.complete_seats(inner, &name)?;
        let text = format!("replica {replica} of group {name} is being made on node {node}");
        Err(Error::new(ErrorKind::Busy, text))
    }

    fn put_seat(&self, inner: &mut Inner, mut spec: GroupSpec, node: &NodeRecord) -> Result<u32> {
        let (group, replica) = (spec.group()?, spec.seat(node, false));
        let door = spec.doors().into_iter().find(|(seat, _)| seat.get() == replica);
        inner.registry.put_group(spec)?;
        self.driver.set_door(group, ReplicaId(replica), door.map(|(_, door)| door));
        Ok(replica)
    }

    /// Has each node that holds a replica of one of several groups hold one of each of them: its
    /// process answers for all. A controller that ended amid that goes on with it.
    pub(super) fn complete_seats(&self, inner: &mut Inner, name: &str) -> Result<()> {
        let is_made = |spec: &&GroupSpec| spec.state == GroupState::Made;
        let spec = inner.registry.spec(name).filter(is_made);
        let Some(spec) = spec.filter(|spec| spec.part.is_some()) else { return Ok(()) };
        // One that is drained is on its way out of all of them.
        let stays = |node: &str| inner.registry.node(node).is_some_and(|node| !node.is_draining);
        let is_there = |seat: &&Seat| !seat.is_released && stays(&seat.node);
        let nodes: Vec<String> =
            spec.seats.iter().filter(is_there).map(|seat| seat.node.clone()).collect();
        let groups = inner.registry.groups().filter(is_made);
        let groups = groups.filter(|other| other.is_of_cluster_of(spec));
        let lacking: Vec<(String, String)> = groups
            .flat_map(|group| {
                let lacks = nodes.iter().filter(|node| group.seat_of(node).is_none());
                lacks.map(|node| (group.name.clone(), node.clone()))
            })
            .collect();
        for (group, node) in lacking {
            let (Some(spec), Ok(node)) = (inner.registry.spec(&group).cloned(), inner.node(&node))
            else {
                continue;
            };
            let node = node.clone();
            self.put_seat(inner, spec, &node)?;
        }
        Ok(())
    }

    /// A replica that was made just now may not run yet.
    fn check_newcomer(&self, spec: &GroupSpec, replica: u32) -> Result<()> {
        let seat = spec.seats.iter().find(|seat| seat.replica == replica);
        let Some(seat) = seat.filter(|seat| !seat.is_released) else {
            let all: Vec<String> = spec.seats.iter().map(|it| it.replica.to_string()).collect();
            return Err(Error::invalid(format!(
                "replica {replica}: group {} has {}",
                spec.name,
                all.join(", ")
            )));
        };
        let status = self.group_status(spec.group()?)?;
        let replicas = status.iter().flat_map(|status| &status.replicas);
        let mut own = replicas.filter(|it| it.replica == ReplicaId(replica));
        if own.any(|it| it.verdict == Some(Verdict::Well) || it.is_member) {
            return Ok(());
        }
        let text = format!("replica {replica} on node {} does not run, or is not well", seat.node);
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// `gabion node drain`: one step at a time, so whoever asks asks until nothing is left.
    pub(super) fn drain(&self, question: &Value) -> Result<Value> {
        let name = text_of(question, "node")?;
        let mut inner = self.lock();
        let is_draining = question["cancel"] != true;
        let mut node = inner.node(name)?.clone();
        if node.is_draining != is_draining {
            node.is_draining = is_draining;
            inner.registry.put_node(node)?;
        }
        if !is_draining {
            return Ok(
                json!({ "ok": true, "done": true, "text": format!("node {name} may be used") }),
            );
        }
        let seats = inner.registry.seats_of(name);
        let seats: Vec<_> = seats.map(|(spec, seat)| (spec.clone(), seat.clone())).collect();
        let Some((spec, seat)) = seats.first() else {
            let text = format!("node {name} holds no replica");
            return Ok(json!({ "ok": true, "done": true, "text": text }));
        };
        let is_here = inner.heard.get(name).is_some_and(Heard::is_here);
        if seats.iter().all(|(_, seat)| seat.is_released) && !is_here {
            let text = format!(
                "replica {} of group {} is no member any more; node {name} is away, and removes \
                 its files when it is back",
                seat.replica, spec.name
            );
            return Ok(json!({ "ok": true, "done": true, "text": text }));
        }
        let mut out = Vec::new();
        for (spec, seat) in seats {
            let name_of = spec.name.clone();
            match self.drain_seat(&mut inner, &spec, seat.replica, name)? {
                Drained::Out => out.push((name_of, seat.replica)),
                Drained::Waits(text) => {
                    return Ok(json!({ "ok": true, "done": false, "text": text }));
                }
            }
        }
        // Its replicas share a process, so that all of them end at once.
        let mut text = String::new();
        for (group, replica) in out {
            let Some(mut spec) = inner.registry.spec(&group).cloned() else { continue };
            let mut seats = spec.seats.iter_mut();
            let seat = seats.find(|seat| seat.replica == replica && !seat.is_released);
            text = match seat {
                Some(seat) => {
                    seat.is_released = true;
                    inner.registry.put_group(spec)?;
                    format!("replica {replica} of group {group} is no member any more")
                }
                None => {
                    format!("replica {replica} of group {group}: node {name} removes its files")
                }
            };
        }
        Ok(json!({ "ok": true, "done": false, "text": text }))
    }

    /// The next step for one replica.
    fn drain_seat(
        &self,
        inner: &mut Inner,
        spec: &GroupSpec,
        replica: u32,
        node: &str,
    ) -> Result<Drained> {
        let group = spec.group()?;
        let what = format!("replica {replica} of group {}", spec.name);
        if spec.seats.iter().any(|seat| seat.replica == replica && seat.is_released) {
            return Ok(Drained::Out);
        }
        let Some(status) = self.group_status(group)? else {
            return Err(Error::invalid(format!("{what}: the group is being made")));
        };
        let is_leaving =
            status.replicas.iter().any(|it| it.replica == ReplicaId(replica) && it.is_leaving);
        let is_member = status.view.place_of(ReplicaId(replica)).is_some();
        if !is_member && status.is_complete {
            if !self.is_withdrawn(group, ReplicaId(replica))? {
                // Else it might be taken as a member while its files go.
                let command = Command::Withdraw(ReplicaId(replica));
                let done = "is not to be a member any more";
                return self.carry_out(group, command, &what, done).map(Drained::Waits);
            }
            return Ok(Drained::Out);
        }
        if is_leaving || !status.is_complete {
            let filling = status.replicas.iter().find_map(|it| it.filling);
            let filling = crate::filling::in_words(&crate::filling::as_json(filling));
            let filling = filling.map_or_else(String::new, |words| format!(": {words}"));
            let text = format!("{what}: another is filled, and takes its place{filling}");
            return Ok(Drained::Waits(text));
        }
        let by = self.spare_for(inner, spec, &status, node)?;
        let Some(by) = by else {
            return Ok(Drained::Waits(format!("{what}: a spare is being made")));
        };
        let command = Command::Replace(ReplicaId(replica), Some(ReplicaId(by)));
        let done = format!("replica {by} is to take its place");
        self.carry_out(group, command, &what, &done).map(Drained::Waits)
    }

    /// Whether the group takes the replica as a member no more, by the record that is stored.
    fn is_withdrawn(&self, group: GroupId, replica: ReplicaId) -> Result<bool> {
        self.driver.ask(move |controller, _| {
            controller.record(group).is_some_and(|record| record.leaving.contains(&replica))
        })
    }

    /// Has the controller carry a command out. Returns what there is to say, also where it is busy.
    fn carry_out(
        &self,
        group: GroupId,
        command: Command,
        what: &str,
        done: &str,
    ) -> Result<String> {
        let carried = self
            .driver
            .ask(move |controller, now| controller.handle_command(group, command, now))?;
        match carried {
            Err(error) if error.kind() == ErrorKind::Busy => Ok(format!("{what}: {error}")),
            carried => carried.map(|()| format!("{what}: {done}")),
        }
    }

    /// A replica that may take the place of one on this node: a spare of the group that is well, or
    /// one that a free node is given now. None: it does not run yet.
    fn spare_for(
        &self,
        inner: &mut Inner,
        spec: &GroupSpec,
        status: &GroupStatus,
        node: &str,
    ) -> Result<Option<u32>> {
        let is_spare = |replica: u32| status.view.place_of(ReplicaId(replica)).is_none();
        let is_well = |replica: u32| {
            let mut all = status.replicas.iter();
            all.any(|it| it.replica == ReplicaId(replica) && it.verdict == Some(Verdict::Well))
        };
        let is_usable =
            |name: &str| inner.registry.node(name).is_some_and(|node| !node.is_draining);
        let mut spares = spec.seats.iter().filter(|seat| {
            seat.node != node
                && !seat.is_released
                && is_spare(seat.replica)
                && is_usable(&seat.node)
        });
        let first = spares.clone().find(|seat| is_well(seat.replica));
        if let Some(seat) = first {
            return Ok(Some(seat.replica));
        }
        // One that was made just now is waited for, as long as its node is here.
        let is_here = |name: &str| inner.heard.get(name).is_some_and(Heard::is_here);
        if spares.any(|seat| is_here(&seat.node)) {
            return Ok(None);
        }
        let others = spec.seats.iter().filter(|seat| seat.node != node);
        let others: Vec<&NodeRecord> =
            others.filter_map(|seat| inner.registry.node(&seat.node)).collect();
        let settings = spec.settings()?;
        let fits = |it: &&NodeRecord| {
            inner.free_node(&it.name).is_ok()
                && inner.check_room(it, &settings).is_ok()
                && check_apart(&others, it, false).is_ok()
        };
        let found = inner.registry.nodes().find(fits).map(|node| node.name.clone());
        let Some(found) = found else {
            return Err(Error::invalid(format!(
                "group {} has no spare that is well, and there is no other node that is here, \
                 holds nothing, has a pool of {} and shares no failure domain with its nodes: \
                 start one",
                spec.name,
                exact_size(settings.pool_len)
            )));
        };
        match self.seat(inner, spec.clone(), &found, false) {
            Err(error) if error.kind() == ErrorKind::Busy => Ok(None),
            seated => seated.map(|_| None),
        }
    }
}

impl Inner {
    /// Refuses the name of a group, or of several.
    fn check_free_name(&self, name: &str) -> Result<()> {
        let mut groups = self.registry.groups().filter(|spec| !spec.is_gone());
        if groups.any(|spec| spec.name == name || spec.is_part_of(name)) {
            return Err(Error::invalid(format!("there is a group {name:?} already")));
        }
        Ok(())
    }

    /// A node that may get a replica.
    fn free_node(&self, name: &str) -> Result<&NodeRecord> {
        let node = self.node(name)?;
        if !self.heard.get(name).is_some_and(|it| it.id == node.id && it.is_here()) {
            let s = AWAY_AFTER.as_secs();
            return Err(Error::invalid(format!("node {name} has not been heard for {s} s")));
        }
        if node.is_draining {
            return Err(Error::invalid(format!(
                "node {name} is drained: `gabion node drain {name} --cancel` ends that"
            )));
        }
        // Its doors are those of one process.
        if let Some((spec, seat)) = self.registry.seats_of(name).next() {
            return Err(Error::invalid(format!(
                "node {name} holds replica {} of group {}, and holds replicas of no other groups \
                 than those over which keys are spread with it",
                seat.replica, spec.name
            )));
        }
        Ok(node)
    }

    fn check_room(&self, node: &NodeRecord, settings: &Settings) -> Result<()> {
        let name = &node.name;
        if node.pool_size < settings.pool_len {
            return Err(Error::limit(format!(
                "node {name} has pool_size {}, and the pools of the group have {}",
                exact_size(node.pool_size),
                exact_size(settings.pool_len)
            )));
        }
        if node.groups_max < settings.groups {
            return Err(Error::limit(format!(
                "node {name} may hold replicas of {} groups, not of {}: see [groups] in node.toml",
                node.groups_max, settings.groups
            )));
        }
        let free = self.heard.get(name).map_or(0, |heard| heard.free);
        let needed = settings.replica_len() * u64::from(settings.groups);
        if free < needed {
            return Err(Error::no_space(format!(
                "node {name} has {free} bytes free where its pools are, and {needed} are needed, \
                 for a replica of each of {}",
                count(u64::from(settings.groups), "group")
            )));
        }
        Ok(())
    }
}

impl Inner {
    /// Refuses a group whose number another one has: that stands in every block of its files.
    fn check_unused(&self, first: &Settings, backup: &Stored) -> Result<()> {
        let numbers = first.group.get()..first.group.get() + u64::from(first.groups);
        for spec in self.registry.groups().filter(|spec| !spec.is_gone()) {
            if numbers.contains(&spec.group()?.get()) {
                return Err(Error::invalid(format!(
                    "{backup} is of the group that is here as {}: it is restored into another \
                     cluster, or after that one is gone",
                    spec.name
                )));
            }
        }
        Ok(())
    }
}

/// How far a replica is on its way out of its group.
enum Drained {
    /// It is no member, and does not become one.
    Out,
    /// On the way.
    Waits(String),
}

/// The groups that are made on these nodes. Each node gets a replica of each group: its process
/// answers for all of them. The nodes of the members are others from group to group, and so are
/// those of the first writers.
fn specs_of(name: &str, first: &Settings, nodes: &[&NodeRecord]) -> Vec<GroupSpec> {
    let mut nodes = nodes.to_vec();
    let specs = (0..first.groups).map(|place| {
        let (founders, spares) = nodes.split_at(first.replicas as usize);
        let spec = GroupSpec::new(name, &first.of_group(place), founders, spares);
        nodes.rotate_left(1);
        spec
    });
    specs.collect()
}

/// Refuses two replicas of a group in one failure domain: both would fail at once.
fn check_apart(others: &[&NodeRecord], node: &NodeRecord, may_share: bool) -> Result<()> {
    if let Some(other) = others.iter().find(|other| other.name == node.name) {
        return Err(Error::invalid(format!("node {} is named twice", other.name)));
    }
    let shared = others.iter().find(|other| other.failure_domain == node.failure_domain);
    match shared {
        Some(other) if !may_share => Err(Error::invalid(format!(
            "nodes {} and {} share the failure domain {}: one failure would take both; \
             --share-domains allows it",
            other.name, node.name, node.failure_domain
        ))),
        _ => Ok(()),
    }
}

/// The backup of which a group is to be made, and the settings that follow from it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Restored {
    backup: Stored,
    settings: Value,
}

impl Restored {
    fn settings(&self) -> Result<Settings> {
        Settings::from_json(&self.settings).map_err(Error::invalid)
    }
}

fn restored_of(question: &Value) -> Result<Option<Restored>> {
    let refused = |error| Error::invalid(format!("`restored` cannot be read: {error}"));
    serde_json::from_value(question["restored"].clone()).map_err(refused)
}

/// Settings of a group that is made on these nodes: they never change.
fn settings_of(
    question: &Value,
    restored: Option<&Restored>,
    nodes: &[&NodeRecord],
) -> Result<Settings> {
    let number = |name: &str| match &question[name] {
        Value::Null => Ok(None),
        given => given
            .as_u64()
            .map(Some)
            .ok_or_else(|| Error::invalid(format!("`{name}` is {given}, a number is expected"))),
    };
    let codec = |name: &str| match &question[name] {
        Value::Null => Ok(None),
        given => given
            .as_str()
            .and_then(|text| text.parse().ok())
            .map(Some)
            .ok_or_else(|| Error::invalid(format!("`{name}` is {given}, which is no codec"))),
    };
    let ack = match &question["ack"] {
        Value::Null => None,
        given => {
            let found = given.as_str().and_then(|text| Ack::from_str(text, false).ok());
            Some(found.ok_or_else(|| Error::invalid(format!("`ack` is {given}")))?)
        }
    };
    let known = restored.map(Restored::settings).transpose()?;
    let usual = known.as_ref().map_or(1, |known| known.groups);
    let groups =
        number("groups")?.map_or(usual, |groups| u32::try_from(groups).unwrap_or(u32::MAX));
    if !(1..=GROUPS_MAX).contains(&groups) {
        return Err(Error::limit(format!("--groups {groups}: the limits are 1 and {GROUPS_MAX}")));
    }
    let given = nodes.len() as u32;
    let usual = if groups > 1 { given.min(REPLICAS_USUAL) } else { given };
    let replicas = number("replicas")?.map_or(usual, |it| u32::try_from(it).unwrap_or(u32::MAX));
    if !(2..=REPLICAS_MAX).contains(&replicas) {
        return Err(Error::invalid(format!(
            "a group of {replicas} members: 2 to {REPLICAS_MAX} are possible, as nobody takes \
             over for one"
        )));
    }
    if replicas > given {
        return Err(Error::invalid(format!(
            "--replicas {replicas}: --nodes names {given}, and each member has its own"
        )));
    }
    let min = number("min_replicas")?;
    if min == Some(0) {
        return Err(Error::invalid("--min-replicas 0: 1 is the least"));
    }
    if let Some(known) = known {
        return settings_from(known, replicas, min, nodes);
    }
    let wanted = FixedOptions {
        replicas: Some(replicas),
        groups: Some(groups),
        min_replicas: min.map(|min| u32::try_from(min).unwrap_or(u32::MAX)),
        pool_size: nodes.iter().map(|node| node.pool_size).min(),
        compaction: None,
        ack,
        memtable_size: number("memtable_size")?,
        compression: codec("compression")?,
        bottom_compression: codec("bottom_compression")?,
    };
    // The nodes' own room is checked for each.
    Settings::new(&wanted, crate::options::PORT_DEFAULT, Path::new("the nodes"), u64::MAX)
}

/// The same of a group that is made of a backup: as that says, but for the members.
fn settings_from(
    known: Settings,
    replicas: u32,
    min: Option<u64>,
    nodes: &[&NodeRecord],
) -> Result<Settings> {
    if known.compaction != CompactionMode::Primary {
        return Err(Error::invalid(
            "the backup is of a group in which each replica compacts for itself: such groups are \
             made by `gabion restore` and `gabion up` alone",
        ));
    }
    let members_min =
        min.map_or(known.members_min.min(replicas), |min| u32::try_from(min).unwrap_or(u32::MAX));
    if members_min > replicas {
        return Err(Error::invalid(format!(
            "--min-replicas {members_min}: of {replicas} members so many are possible at most"
        )));
    }
    let pool_len = nodes.iter().map(|node| node.pool_size).min().unwrap_or(known.pool_len);
    let settings = Settings { replicas, members_min, pool_len, spares: 0, ..known };
    check_pool(&settings)?;
    Ok(settings)
}
