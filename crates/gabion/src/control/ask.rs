//! `gabion events`, `gabion group`, `gabion failover`, and the group's part of `gabion status`.

use super::{events_at_rest, socket};
use crate::cluster::{self, IS_UP_RUNNING, Lock, control_dir};
use crate::door;
use crate::filling;
use crate::judgement::sentences;
use crate::machines;
use crate::options::{EventsOptions, FailoverOptions, GroupCommand, Replica, WhereOptions};
use crate::screen::put;
use crate::units::utc;
use gabion_base::{Error, ErrorKind, Result};
use gabion_control::Event;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a command waits for another change to end, and for its own to be carried out.
const CHANGE_MAX: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Events that `status` shows.
const EVENTS_SHOWN: usize = 5;

/// The controller that a command asks.
pub(crate) enum Source {
    /// The controller within the `up` of this data.
    Up(PathBuf),
    /// A controller of nodes, about the group that is named, or the only one.
    Controller { address: SocketAddr, group: Option<String> },
}

impl Source {
    /// The one that the options name.
    ///
    /// # Errors
    /// As [`cluster::data_of`].
    pub(crate) fn of(place: &WhereOptions) -> Result<Self> {
        let group = place.remote.group.clone();
        machines::show(place.remote.identity.as_ref());
        if let Some(host) = door::host() {
            return Err(Error::invalid(format!(
                "{host} is one door, and no controller of a group"
            )));
        }
        door::check_port(place)?;
        match place.remote.controller {
            Some(address) => Ok(Self::Controller { address, group }),
            None => cluster::data_of(place).map(Self::Up),
        }
    }

    /// The same, where a controller has to look after the group.
    fn with_controller(place: &WhereOptions) -> Result<Self> {
        let source = Self::of(place)?;
        if let Self::Up(data) = &source
            && !cluster::load_existing(data)?.has_controller()
        {
            return Err(Error::invalid(NO_CONTROLLER));
        }
        Ok(source)
    }

    /// Asks.
    ///
    /// # Errors
    /// Not found or unavailable where nothing answers; the controller's own.
    pub(crate) fn ask(&self, question: &Value) -> Result<Value> {
        match self {
            Self::Up(data) => socket::ask(&control_dir(data), question),
            Self::Controller { address, group } => {
                let mut question = question.clone();
                question["group"] = json!(group);
                machines::ask(*address, &question)
            }
        }
    }

    /// The group, as its controller has it.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(crate) fn status(&self) -> Result<Value> {
        let mut answer = self.ask(&json!({ "do": "status" }))?;
        Ok(answer["group"].take())
    }

    /// A replica in a question.
    fn word(&self, replica: &Replica) -> Result<Value> {
        match (self, replica) {
            (_, Replica::Number(number)) => Ok(json!(number)),
            (Self::Controller { .. }, Replica::Node(node)) => Ok(json!(node)),
            (Self::Up(_), Replica::Node(node)) => Err(Error::invalid(format!(
                "`{node}` is no number of a replica; nodes have names where --controller is said"
            ))),
        }
    }
}

/// `gabion events`.
pub(crate) fn events(options: &EventsOptions) -> Result<u8> {
    let source = Source::with_controller(&options.place)?;
    let found = match (source.status(), &source) {
        (Ok(group), _) => group["events"].as_array().cloned().unwrap_or_default(),
        (Err(error), Source::Up(data)) if error.kind() == ErrorKind::NotFound => {
            let settings = cluster::load_existing(data)?;
            let _lock = Lock::take(data)?;
            events_at_rest(data, &settings)?.iter().map(socket::event).collect()
        }
        (Err(error), _) => return Err(error),
    };
    if options.json {
        put(&format!("{:#}\n", json!({ "events": found })));
        return Ok(0);
    }
    for event in &found {
        put(&format!("{}\n", in_a_line(event)));
    }
    if found.is_empty() {
        put("nothing has happened yet\n");
    }
    Ok(0)
}

/// The answer where no controller is.
pub(crate) const NO_CONTROLLER: &str = "no controller looks after this group: it has one replica, \
    or each compacts for itself, and then its members are fixed";

fn in_a_line(event: &Value) -> String {
    let text = event["text"].as_str().unwrap_or("");
    format!("{}  {text}", event["time"].as_str().unwrap_or(""))
}

/// An event as `up` prints it.
pub(crate) fn told(event: &Event) -> String {
    format!("{}  {}", utc(event.unix_ms), event.text)
}

/// The same for `status`, which shows the replicas where no controller answers.
pub(crate) fn group_of(place: &WhereOptions) -> Option<Value> {
    let group = Source::of(place).and_then(|source| source.status());
    group.ok().filter(Value::is_object)
}

/// The full members of a group that runs, of these replicas; all where no controller answers.
pub(crate) fn full_of(
    place: &WhereOptions,
    addresses: Vec<(u32, SocketAddr)>,
) -> Vec<(u32, SocketAddr)> {
    let Some(group) = group_of(place) else { return addresses };
    let is_full = |number: u32| {
        let replicas = group["replicas"].as_array();
        replicas.is_some_and(|all| {
            all.iter().any(|it| it["replica"] == number && it["state"] == "full")
        })
    };
    addresses.into_iter().filter(|(number, _)| is_full(*number)).collect()
}

/// The lines of `status` about the group.
pub(crate) fn lines(group: &Value) -> Vec<String> {
    let number = |name: &str| group[name].as_u64().unwrap_or(0);
    let is_complete = group["complete"].as_bool().unwrap_or(false);
    let mut lines: Vec<String> = sentences(group).map(|sentence| format!("! {sentence}")).collect();
    lines.push(format!(
        "group: c{}{}, term {}; {} members wanted, {} needed for writes",
        number("config"),
        match is_complete {
            true => "",
            false if group["waits"] == true => " (waits for members that are kept)",
            false => " (being carried out)",
        },
        number("term"),
        number("wanted"),
        number("min_replicas")
    ));
    let empty = Vec::new();
    for replica in group["replicas"].as_array().unwrap_or(&empty) {
        let text = |name: &str| replica[name].as_str().unwrap_or("").to_owned();
        let lost = if replica["lost"] == true { ", lost" } else { "" };
        let id = replica["replica"].as_u64();
        let duty = match () {
            () if id.is_none() => "",
            () if id == group["writer"].as_u64() => ", takes writes",
            () if id == group["reader"].as_u64() => ", answers reads",
            () => "",
        };
        let id = id.unwrap_or(0);
        let filling = filling::in_words(&replica["filling"]);
        let filling = filling.map_or_else(String::new, |words| format!(": {words}"));
        let (state, verdict) = (text("state"), text("verdict"));
        let node = replica["node"].as_str().map_or_else(String::new, |node| format!(" on {node}"));
        lines.push(format!("   replica {id}{node}: {state}{duty}{lost} ({verdict}){filling}"));
    }
    if let Some(why) = group["writes_wait"].as_str() {
        lines.push(format!("   writes wait: {why}"));
    }
    let events = group["events"].as_array().unwrap_or(&empty);
    let shown = &events[events.len().saturating_sub(EVENTS_SHOWN)..];
    lines.extend(shown.iter().map(|event| format!("   {}", in_a_line(event))));
    lines
}

/// `gabion group`: without a change it shows the group.
pub(crate) fn group(place: &WhereOptions, command: Option<&GroupCommand>) -> Result<u8> {
    let source = Source::with_controller(place)?;
    let word = |replica: &Replica| source.word(replica);
    match command {
        None => {
            let group = source.status().map_err(running)?;
            put(&(lines(&group).join("\n") + "\n"));
        }
        Some(GroupCommand::Add { replica, share_domains }) => {
            let share = json!(share_domains);
            let question =
                json!({ "do": "add", "replica": word(replica)?, "share_domains": share });
            carry_out(&source, &question, |it| is_complete(it) && is_member(it, replica))?;
        }
        Some(GroupCommand::Remove { replica }) => {
            let question = json!({ "do": "remove", "replica": word(replica)? });
            carry_out(&source, &question, |it| is_complete(it) && !is_member(it, replica))?;
        }
        Some(GroupCommand::GiveUp { replica }) => {
            let question = json!({ "do": "give up", "replica": word(replica)? });
            // How far the others come without it, they say themselves.
            carry_out(&source, &question, |_| true)?;
        }
        Some(GroupCommand::Replace { replica, by }) => {
            let members = |group: &Value| group["members"].as_array().map_or(0, Vec::len);
            let before = members(&source.status().map_err(running)?);
            let by = by.as_ref().map(word).transpose()?;
            let question = json!({ "do": "replace", "replica": word(replica)?, "by": by });
            let is_begun = |group: &Value| {
                is_complete(group) && (members(group) > before || !is_member(group, replica))
            };
            carry_out(&source, &question, is_begun)?;
        }
        Some(GroupCommand::Failover { replica }) => fail_over(&source, replica.as_ref())?,
        Some(
            GroupCommand::Create(_) | GroupCommand::List { .. } | GroupCommand::Abandon { .. },
        ) => {
            return Err(Error::invalid(
                "groups are made and listed by a controller: say --controller",
            ));
        }
    }
    Ok(0)
}

/// Whether no view is being carried out.
fn is_complete(group: &Value) -> bool {
    group["complete"] == true
}

/// Whether a replica is a member, full or not.
fn is_member(group: &Value, replica: &Replica) -> bool {
    let seats = group["seats"].as_array();
    let number = match replica {
        Replica::Number(number) => Some(json!(number)),
        Replica::Node(node) => {
            let seat = seats.and_then(|seats| seats.iter().find(|seat| seat["node"] == **node));
            seat.map(|seat| seat["replica"].clone())
        }
    };
    let members = group["members"].as_array();
    members.is_some_and(|members| members.iter().any(|it| Some(it) == number.as_ref()))
}

/// `gabion failover`.
pub(crate) fn failover(options: &FailoverOptions) -> Result<u8> {
    let source = Source::with_controller(&options.place)?;
    fail_over(&source, options.replica.as_ref()).map(|()| 0)
}

fn fail_over(source: &Source, replica: Option<&Replica>) -> Result<()> {
    let writer = source.status().map_err(running)?["writer"].clone();
    let replica = replica.map(|replica| source.word(replica)).transpose()?;
    let question = json!({ "do": "failover", "replica": replica });
    carry_out(source, &question, |group| is_complete(group) && group["writer"] != writer)
}

/// The error where nothing answers, with what may be done about it.
fn running(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => error.within(IS_UP_RUNNING),
        _ => error,
    }
}

/// Asks for a change, waits until it is carried out, and prints the events meanwhile.
fn carry_out(source: &Source, question: &Value, is_done: impl Fn(&Value) -> bool) -> Result<()> {
    let begun = Instant::now();
    let mut told = events_of(&source.status().map_err(running)?);
    loop {
        match source.ask(question) {
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::Busy && begun.elapsed() < CHANGE_MAX => {
                std::thread::sleep(ASK_EVERY);
            }
            Err(error) => return Err(running(error)),
        }
    }
    loop {
        let group = source.status().map_err(running)?;
        let events = events_of(&group);
        let known = told.last().and_then(|last| events.iter().rposition(|event| event == last));
        for event in &events[known.map_or(0, |at| at + 1)..] {
            put(&format!("{}\n", in_a_line(event)));
        }
        told = events;
        if is_done(&group) {
            return Ok(());
        }
        if begun.elapsed() > CHANGE_MAX {
            return Err(Error::unavailable(format!(
                "not carried out after {} s; the controller goes on: see `gabion status`",
                CHANGE_MAX.as_secs()
            )));
        }
        std::thread::sleep(ASK_EVERY);
    }
}

fn events_of(group: &Value) -> Vec<Value> {
    group["events"].as_array().cloned().unwrap_or_default()
}
