//! Changes that operators ask for.

use super::*;
use crate::cluster::REPLICAS_MAX;
use crate::control::driver::ReplicaDoor;
use crate::judgement::Around;
use gabion_control::Command;

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
        if inner.registry.spec(name).is_some_and(|spec| !spec.is_gone()) {
            return Err(Error::invalid(format!("there is a group {name:?} already")));
        }
        let mut nodes: Vec<&NodeRecord> = Vec::new();
        for node in founders.iter().chain(&spares) {
            let node = inner.free_node(node)?;
            check_apart(&nodes, node, shares)?;
            nodes.push(node);
        }
        let (found, spare) = nodes.split_at(founders.len());
        let settings = settings_of(question, found)?;
        nodes.iter().try_for_each(|node| inner.check_room(node, &settings))?;
        let spec = GroupSpec::new(name.to_owned(), &settings, found, spare);
        inner.registry.put_group(spec)?;
        Ok(json!({ "ok": true, "group": settings.group.get() }))
    }

    /// `gabion group abandon`: one that cannot be made is given up.
    pub(super) fn abandon(&self, question: &Value) -> Result<Value> {
        let mut inner = self.lock();
        let mut spec = inner.spec_of(question)?.clone();
        if spec.state == GroupState::Made {
            return Err(Error::invalid(format!(
                "group {} is made, and may hold data: only one that is being made can be given up",
                spec.name
            )));
        }
        spec.state = GroupState::Ending;
        spec.seats.iter_mut().for_each(|seat| seat.is_released = true);
        inner.registry.put_group(spec)?;
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

    /// Gives a node a replica of a group. The command asks again until that runs.
    fn seat(
        &self,
        inner: &mut Inner,
        mut spec: GroupSpec,
        node: &str,
        shares: bool,
    ) -> Result<Value> {
        let settings = spec.settings()?;
        let found = inner.free_node(node)?.clone();
        let others = spec.seats.iter().filter_map(|seat| inner.registry.node(&seat.node));
        check_apart(&others.collect::<Vec<_>>(), &found, shares)?;
        inner.check_room(&found, &settings)?;
        let replica = spec.seat(&found, false);
        let name = spec.name.clone();
        inner.registry.put_group(spec)?;
        let door = ReplicaDoor { address: found.addresses.members, node: Some(found.name) };
        self.driver.set_door(settings.group, ReplicaId(replica), Some(door));
        let text = format!("replica {replica} of group {name} is being made on node {node}");
        Err(Error::new(ErrorKind::Busy, text))
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
        let seats = inner.registry.seats_of(name).next();
        let Some((spec, seat)) = seats.map(|(spec, seat)| (spec.clone(), seat.clone())) else {
            let text = format!("node {name} holds no replica");
            return Ok(json!({ "ok": true, "done": true, "text": text }));
        };
        let is_here = inner.heard.get(name).is_some_and(Heard::is_here);
        if seat.is_released && !is_here {
            let text = format!(
                "replica {} of group {} is no member any more; node {name} is away, and removes \
                 its files when it is back",
                seat.replica, spec.name
            );
            return Ok(json!({ "ok": true, "done": true, "text": text }));
        }
        let text = self.drain_seat(&mut inner, spec, seat.replica, name)?;
        Ok(json!({ "ok": true, "done": false, "text": text }))
    }

    /// The next step for one replica. Returns what it waits for.
    fn drain_seat(
        &self,
        inner: &mut Inner,
        mut spec: GroupSpec,
        replica: u32,
        node: &str,
    ) -> Result<String> {
        let group = spec.group()?;
        let what = format!("replica {replica} of group {}", spec.name);
        let Some(status) = self.group_status(group)? else {
            return Err(Error::invalid(format!("{what}: the group is being made")));
        };
        let mut all = spec.seats.iter_mut().filter(|seat| seat.replica == replica);
        let Some(seat) = all.next() else { return Ok(format!("{what} is gone")) };
        if seat.is_released {
            return Ok(format!("{what}: node {node} removes its files"));
        }
        let is_leaving =
            status.replicas.iter().any(|it| it.replica == ReplicaId(replica) && it.is_leaving);
        let is_member = status.view.place_of(ReplicaId(replica)).is_some();
        if !is_member && status.is_complete {
            if !self.is_withdrawn(group, ReplicaId(replica))? {
                // Else it might be taken as a member while its files go.
                let command = Command::Withdraw(ReplicaId(replica));
                return self.carry_out(group, command, &what, "is not to be a member any more");
            }
            seat.is_released = true;
            inner.registry.put_group(spec)?;
            return Ok(format!("{what} is no member any more"));
        }
        if is_leaving || !status.is_complete {
            let filling = status.replicas.iter().find_map(|it| it.filling);
            let filling = crate::filling::in_words(&crate::filling::as_json(filling));
            let filling = filling.map_or_else(String::new, |words| format!(": {words}"));
            return Ok(format!("{what}: another is filled, and takes its place{filling}"));
        }
        let by = self.spare_for(inner, &spec, &status, node)?;
        let Some(by) = by else {
            let text = format!("{what}: a spare is being made");
            return Ok(text);
        };
        let command = Command::Replace(ReplicaId(replica), Some(ReplicaId(by)));
        let done = format!("replica {by} is to take its place");
        self.carry_out(group, command, &what, &done)
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
        // Its doors are those of one replica.
        if let Some((spec, seat)) = self.registry.seats_of(name).next() {
            return Err(Error::invalid(format!(
                "node {name} holds replica {} of group {}, and one is the limit for now",
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
        let free = self.heard.get(name).map_or(0, |heard| heard.free);
        if free < settings.replica_len() {
            return Err(Error::no_space(format!(
                "node {name} has {} bytes free where its pools are, and a replica needs {}",
                free,
                settings.replica_len()
            )));
        }
        Ok(())
    }
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

/// Settings of a group that is made on these nodes: they never change.
fn settings_of(question: &Value, nodes: &[&NodeRecord]) -> Result<Settings> {
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
    let count = nodes.len() as u32;
    if !(2..=REPLICAS_MAX).contains(&count) {
        return Err(Error::invalid(format!(
            "a group of {count} nodes: 2 to {REPLICAS_MAX} are possible, as nobody takes \
             over for one"
        )));
    }
    let min = number("min_replicas")?;
    if min == Some(0) {
        return Err(Error::invalid("--min-replicas 0: 1 is the least"));
    }
    let wanted = FixedOptions {
        replicas: Some(count),
        // A group on nodes has all keys.
        groups: None,
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
