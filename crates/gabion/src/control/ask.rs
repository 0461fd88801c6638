//! `gabion events`, `gabion group`, `gabion failover`, and the group's part of `gabion status`.

use super::{events_at_rest, socket};
use crate::cluster::{self, IS_UP_RUNNING, Lock, control_dir};
use crate::filling;
use crate::options::{EventsOptions, FailoverOptions, GroupCommand, GroupOptions, WhereOptions};
use crate::screen::put;
use crate::units::utc;
use gabion_base::{Error, ErrorKind, Result};
use gabion_control::Event;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a command waits for another change to end, and for its own to be carried out.
const CHANGE_MAX: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Events that `status` shows.
const EVENTS_SHOWN: usize = 5;

/// `gabion events`.
pub(crate) fn events(options: &EventsOptions) -> Result<u8> {
    let data = cluster::data_of(&options.place)?;
    let settings = cluster::load_existing(&data)?;
    if !settings.has_controller() {
        return Err(Error::invalid(NO_CONTROLLER));
    }
    let found = match ask_status(&data) {
        Ok(group) => group["events"].as_array().cloned().unwrap_or_default(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let _lock = Lock::take(&data)?;
            events_at_rest(&data, &settings)?.iter().map(socket::event).collect()
        }
        Err(error) => return Err(error),
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

/// The group, as the controller of a running `up` has it.
///
/// # Errors
/// Not found when none runs.
pub(crate) fn ask_status(data: &Path) -> Result<Value> {
    let mut answer = socket::ask(&control_dir(data), &json!({ "do": "status" }))?;
    Ok(answer["group"].take())
}

/// The same for `status`, which shows the replicas where no controller answers.
pub(crate) fn group_of(place: &WhereOptions) -> Option<Value> {
    let data = cluster::data_of(place).ok()?;
    ask_status(&data).ok().filter(Value::is_object)
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
    let mut lines = vec![format!(
        "group: c{}{}, term {}; {} members wanted, {} needed for writes",
        number("config"),
        if is_complete { "" } else { " (being carried out)" },
        number("term"),
        number("wanted"),
        number("min_replicas")
    )];
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
        lines.push(format!("   replica {id}: {state}{duty}{lost} ({verdict}){filling}"));
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
pub(crate) fn group(options: &GroupOptions) -> Result<u8> {
    let data = data_with_controller(&options.place)?;
    let Some(command) = options.command else {
        let group = ask_status(&data).map_err(running)?;
        put(&(lines(&group).join("\n") + "\n"));
        return Ok(0);
    };
    let is_member = |group: &Value, replica: u32| {
        let members = group["members"].as_array();
        members.is_some_and(|members| members.iter().any(|it| *it == replica))
    };
    match command {
        GroupCommand::Add { replica } => {
            let question = json!({ "do": "add", "replica": replica });
            carry_out(&data, &question, |group| is_member(group, replica))?;
        }
        GroupCommand::Remove { replica } => {
            let question = json!({ "do": "remove", "replica": replica });
            carry_out(&data, &question, |group| !is_member(group, replica))?;
        }
        GroupCommand::Replace { replica, by } => {
            let before = ask_status(&data)?["members"].as_array().map_or(0, Vec::len);
            let question = json!({ "do": "replace", "replica": replica, "by": by });
            let is_begun = |group: &Value| {
                let members = group["members"].as_array().map_or(0, Vec::len);
                members > before || !is_member(group, replica)
            };
            carry_out(&data, &question, is_begun)?;
        }
    }
    Ok(0)
}

/// `gabion failover`.
pub(crate) fn failover(options: &FailoverOptions) -> Result<u8> {
    let data = data_with_controller(&options.place)?;
    let writer = ask_status(&data)?["writer"].clone();
    let question = json!({ "do": "failover", "replica": options.replica });
    carry_out(&data, &question, |group| group["writer"] != writer)?;
    Ok(0)
}

fn data_with_controller(place: &WhereOptions) -> Result<PathBuf> {
    let data = cluster::data_of(place)?;
    if !cluster::load_existing(&data)?.has_controller() {
        return Err(Error::invalid(NO_CONTROLLER));
    }
    Ok(data)
}

/// The error where nothing answers, with what may be done about it.
fn running(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => error.within(IS_UP_RUNNING),
        _ => error,
    }
}

/// Asks for a change, waits until it is carried out, and prints the events meanwhile.
fn carry_out(data: &Path, question: &Value, is_done: impl Fn(&Value) -> bool) -> Result<()> {
    let begun = Instant::now();
    let mut told = events_of(&ask_status(data).map_err(running)?);
    loop {
        match socket::ask(&control_dir(data), question) {
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::Busy && begun.elapsed() < CHANGE_MAX => {
                std::thread::sleep(ASK_EVERY);
            }
            Err(error) => return Err(running(error)),
        }
    }
    loop {
        let group = ask_status(data).map_err(running)?;
        let events = events_of(&group);
        let known = told.last().and_then(|last| events.iter().rposition(|event| event == last));
        for event in &events[known.map_or(0, |at| at + 1)..] {
            put(&format!("{}\n", in_a_line(event)));
        }
        told = events;
        if group["complete"] == true && is_done(&group) {
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
