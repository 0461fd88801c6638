//! The controller's answers: nodes register and get orders, operators make groups and change them.
//!
//! ```text
//!   node ── what it has ──► Registrar ──► Registry ──► store
//!        ◄── orders ───────     │  ▲
//!   command ── question ──► ────┘  └── answers ── Driver: views, verdicts, events
//! ```
//!
//! An order says what a node is to have, and not what it is to do: it is the same until the node
//! says that it has it, and one that gets lost is given again. A group begins with its founders'
//! pools. Once each has said that its own is there, the group's record is stored, and only then the
//! founders run. From then on a pool that is lost is made empty, as the other members have what it
//! had.
//!
//! - [`orders`]: what nodes hear. [`changes`]: what operators ask for. [`overview`]: what the
//!   status page shows.

mod changes;
mod orders;
mod overview;
#[cfg(test)]
mod tests;

pub(crate) use orders::{Make, Neighbour, Order, ReplicaWord};
pub(crate) use overview::StatusPage;

use super::config::check_name;
use super::registry::{GroupSpec, GroupState, NodeRecord, Registry};
use super::trust::Caller;
use super::{say, trust, wire};
use crate::cluster::Settings;
use crate::control::driver::{Handle, Watched};
use crate::control::store::{SharedStore, record_of};
use crate::control::{founding_record, socket};
use crate::options::{Ack, FixedOptions};
use crate::units::exact_size;
use clap::ValueEnum;
use gabion_base::{Error, ErrorKind, GroupId, ReplicaId, Result};
use gabion_control::{GroupStatus, Verdict};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A node that is silent for longer is away. It asks twice a second.
const AWAY_AFTER: Duration = Duration::from_secs(5);
/// Shortest time between two notes on strangers.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// Answers questions.
pub(crate) struct Registrar {
    inner: Mutex<Inner>,
    driver: Handle,
    names: Names,
    /// When a stranger was noted last.
    noted: Mutex<Option<Instant>>,
}

/// The names of the groups, for lines about events.
#[derive(Clone, Default)]
pub(crate) struct Names(Arc<Mutex<BTreeMap<GroupId, String>>>);

impl Names {
    pub(crate) fn insert(&self, group: GroupId, name: &str) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(group, name.to_owned());
    }

    /// Its number where it has no name.
    pub(crate) fn get(&self, group: GroupId) -> String {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(&group).cloned().unwrap_or_else(|| group.to_string())
    }
}

struct Inner {
    registry: Registry<SharedStore>,
    heard: BTreeMap<String, Heard>,
}

/// A node's last word.
struct Heard {
    at: Instant,
    id: u64,
    /// Bytes that its disk has free.
    free: u64,
    replicas: Vec<ReplicaWord>,
}

impl Heard {
    fn is_here(&self) -> bool {
        self.at.elapsed() <= AWAY_AFTER
    }

    fn word(&self, group: GroupId, replica: u32) -> Option<&ReplicaWord> {
        self.replicas.iter().find(|it| it.group == group.get() && it.replica == replica)
    }
}

impl Registrar {
    /// Answers from a registry, by way of the controller that looks after its groups.
    pub(crate) fn new(registry: Registry<SharedStore>, driver: Handle, names: Names) -> Self {
        let inner = Mutex::new(Inner { registry, heard: BTreeMap::new() });
        Self { inner, driver, names, noted: Mutex::default() }
    }

    /// Says who was not let in, now and then: anybody can try as often as he likes.
    pub(crate) fn note_stranger(&self, from: &str, error: &std::io::Error) {
        self.say_rarely(|| format!("{from} is not let in, and hears nothing: {error}"));
    }

    fn say_rarely(&self, text: impl FnOnce() -> String) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.is_none_or(|then| then.elapsed() >= NOTE_EVERY) {
            *noted = Some(Instant::now());
            say(&text());
        }
    }

    /// A question that its certificate may ask, or not: then it is said too.
    fn permitted(&self, verdict: Result<()>) -> Result<()> {
        verdict.inspect_err(|error| self.say_rarely(|| error.to_string()))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to somebody's question, which is a line.
    pub(crate) fn answer(&self, line: &str, caller: &Caller) -> Value {
        let question = serde_json::from_str(line)
            .map_err(|error| Error::invalid(format!("a question that is no JSON: {error}")));
        let answer = question.and_then(|question: Value| self.answer_to(&question, caller));
        answer.unwrap_or_else(|error| wire::refusal(&error))
    }

    fn answer_to(&self, question: &Value, caller: &Caller) -> Result<Value> {
        let asked = question["do"].as_str();
        if asked != Some("node") {
            self.permitted(caller.check_operator(asked.unwrap_or("?")))?;
        }
        match asked {
            Some("node") => self.hear_node(question, caller),
            Some("nodes") => Ok(self.list_nodes()),
            Some("groups") => self.list_groups(),
            Some("create") => self.create(question),
            Some("abandon") => self.abandon(question),
            Some("drain") => self.drain(question),
            Some("status") => self.status_of(question),
            Some("failover" | "add" | "remove" | "give up" | "replace") => self.change(question),
            _ => Err(Error::invalid(format!("`do` is {}, which is unknown", question["do"]))),
        }
    }

    fn list_nodes(&self) -> Value {
        json!({ "ok": true, "nodes": self.lock().nodes() })
    }

    fn list_groups(&self) -> Result<Value> {
        let inner = self.lock();
        let mut groups = Vec::new();
        for spec in inner.registry.groups().filter(|spec| !spec.is_gone()) {
            let group = spec.group()?;
            let status = self.group_status(group)?;
            let view = status.as_ref().map(|status| &status.view);
            let (members, away) = (inner.seats(spec, group), inner.away(spec));
            groups.push(json!({
                "name": spec.name,
                "group": group.get(),
                "part": spec.part,
                "state": spec.state,
                "config": view.map(|view| view.config.get()),
                "full": view.map(|view| view.full().map(|it| it.replica.get()).collect::<Vec<_>>()),
                "complete": status.as_ref().is_some_and(|status| status.is_complete),
                "writes_wait": view.and_then(|view| view.too_few()),
                "away": away,
                "seats": members,
            }));
        }
        Ok(json!({ "ok": true, "groups": groups }))
    }

    /// The state of a group's views; none before it is made.
    fn group_status(&self, group: GroupId) -> Result<Option<GroupStatus>> {
        self.driver.ask(move |controller, now| controller.status(group, now))
    }

    fn status_of(&self, question: &Value) -> Result<Value> {
        self.told(&self.lock(), question)
    }

    fn told(&self, inner: &Inner, question: &Value) -> Result<Value> {
        let spec = inner.spec_of(question)?;
        let group = spec.group()?;
        let around = inner.around(spec, group, &self.driver);
        let mut answer = socket::answer(question, &self.driver, group, around)?;
        let told = &mut answer["group"];
        if told.is_null() {
            let text = format!("group {}: is being made, see `gabion group list`", spec.name);
            return Err(Error::new(ErrorKind::Busy, text));
        }
        told["name"] = json!(spec.name);
        told["seats"] = json!(inner.seats(spec, group));
        let members = told["members"].clone();
        let is_member = |replica: &Value| {
            members.as_array().is_some_and(|members| members.contains(&replica["replica"]))
        };
        if let Some(replicas) = told["replicas"].as_array_mut() {
            // One that was removed is silent for ever, and nobody's concern.
            let has_seat = |it: &Value| spec.seats.iter().any(|seat| it["replica"] == seat.replica);
            replicas.retain(|it| has_seat(it) || is_member(it));
        }
        for replica in told["replicas"].as_array_mut().into_iter().flatten() {
            let mut seats = spec.seats.iter();
            let seat = seats.find(|seat| replica["replica"] == seat.replica);
            replica["node"] = json!(seat.map(|seat| &seat.node));
        }
        Ok(answer)
    }
}

impl Inner {
    /// The group that a question names, or the only one there is.
    fn spec_of(&self, question: &Value) -> Result<&GroupSpec> {
        let all = || self.registry.groups().filter(|spec| !spec.is_gone());
        let names = || all().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = match &question["group"] {
            Value::Null if all().count() > 1 => {
                return Err(Error::invalid(format!(
                    "which group? say --group, one of {}",
                    names()
                )));
            }
            Value::Null => all().next(),
            Value::String(name) => all().find(|spec| spec.name == *name),
            other => return Err(Error::invalid(format!("`group` is {other}, a name is expected"))),
        };
        found.ok_or_else(|| match question["group"].as_str() {
            Some(name) if all().any(|spec| spec.is_part_of(name)) => {
                let parts = all().filter(|spec| spec.is_part_of(name));
                let parts: Vec<&str> = parts.map(|spec| spec.name.as_str()).collect();
                Error::invalid(format!("{name} is several groups: say one of {}", parts.join(", ")))
            }
            Some(name) if all().count() > 0 => {
                Error::invalid(format!("there is no group {name:?}, but {}", names()))
            }
            _ => Error::invalid("there is no group yet: `gabion group create` makes one"),
        })
    }

    /// The group that a question names, or all of those that share that name.
    fn specs_named(&self, question: &Value) -> Result<Vec<GroupSpec>> {
        let name = question["group"].as_str().unwrap_or_default();
        let all = self.registry.groups().filter(|spec| !spec.is_gone());
        let parts: Vec<GroupSpec> = all.filter(|spec| spec.is_part_of(name)).cloned().collect();
        if parts.is_empty() { Ok(vec![self.spec_of(question)?.clone()]) } else { Ok(parts) }
    }

    /// A node, by its name.
    fn node(&self, name: &str) -> Result<&NodeRecord> {
        self.registry.node(name).ok_or_else(|| {
            let names: Vec<&str> = self.registry.nodes().map(|node| &node.name[..]).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Error::invalid(format!("node {name:?} has not registered; known are {known}"))
        })
    }

    /// The nodes, as people ask for them.
    fn nodes(&self) -> Vec<Value> {
        let of = |node: &NodeRecord| {
            let heard = self.heard.get(&node.name).filter(|heard| heard.id == node.id);
            let seats = self.registry.seats_of(&node.name);
            let seats = seats.map(|(spec, seat)| {
                let group = spec.group().ok();
                let word = heard.zip(group).and_then(|(it, group)| it.word(group, seat.replica));
                json!({
                    "group": spec.name,
                    "replica": seat.replica,
                    "trouble": word.and_then(|word| word.trouble.clone()),
                    "aside": word.and_then(|word| word.aside.clone()),
                })
            });
            json!({
                "name": node.name,
                "here": heard.is_some_and(Heard::is_here),
                "heard_ms": heard.map(|heard| heard.at.elapsed().as_millis() as u64),
                "draining": node.is_draining,
                "failure_domain": node.failure_domain,
                "pool_size": node.pool_size,
                "groups_max": node.groups_max,
                "free": heard.map(|heard| heard.free),
                "clients": node.addresses.clients,
                "members": node.addresses.members,
                "targets": node.addresses.targets,
                "replicas": seats.collect::<Vec<_>>(),
            })
        };
        self.registry.nodes().map(of).collect()
    }

    /// The nodes of a group that are away.
    fn away(&self, spec: &GroupSpec) -> Vec<String> {
        let is_here = |node: &str| self.heard.get(node).is_some_and(Heard::is_here);
        let away = spec.seats.iter().filter(|seat| !is_here(&seat.node));
        away.map(|seat| seat.node.clone()).collect()
    }

    /// The replicas of a group, and where they are.
    fn seats(&self, spec: &GroupSpec, group: GroupId) -> Vec<Value> {
        let place = spec.part.as_ref().map_or(0, |part| part.place);
        let of = |seat: &super::registry::Seat| {
            // Groups behind the first have but their own doors.
            let tls = match seat.addresses.cluster.filter(|_| place > 0) {
                Some(doors) => doors.tls,
                None => self.registry.node(&seat.node).and_then(|node| node.clients_tls),
            };
            let word = self.heard.get(&seat.node).and_then(|it| it.word(group, seat.replica));
            json!({
                "replica": seat.replica,
                "node": seat.node,
                "clients": seat.addresses.clients,
                "clients_tls": tls,
                "made": word.is_some_and(|word| word.is_made),
                "trouble": word.and_then(|word| word.trouble.clone()),
                "aside": word.and_then(|word| word.aside.clone()),
                "released": seat.is_released,
            })
        };
        spec.seats.iter().map(of).collect()
    }
}

impl GroupSpec {
    /// Whether it is a name alone, which another group may have.
    fn is_gone(&self) -> bool {
        self.state == GroupState::Ending && self.seats.is_empty()
    }

    /// Whether it shares this name with other groups.
    fn is_part_of(&self, name: &str) -> bool {
        self.part.as_ref().is_some_and(|part| part.of == name)
    }
}

/// A text of a question.
fn text_of<'a>(question: &'a Value, name: &str) -> Result<&'a str> {
    let found = question[name].as_str();
    found.ok_or_else(|| {
        Error::invalid(format!("`{name}` is {}, a text is expected", question[name]))
    })
}
