//! `DATA/control/socket`: other processes ask the controller. A line of JSON each way, then the
//! end.
//!
//! ```text
//!   {"do": "status"}                              {"ok": true, "group": …}
//!   {"do": "failover", "replica": 2 or null}      {"ok": true}
//!   {"do": "add", "remove" or "give up", "replica": 4}
//!                                                 {"ok": false, "kind": "busy", "error": "…"}
//!   {"do": "replace", "replica": 3, "by": 4 or null}
//! ```
//!
//! Only the owner of the data may open it: its mode is 0600.

use super::driver::{Handle, spawn};
use super::{socket_path, unix_ms};
use crate::cluster::failed;
use crate::filling;
use crate::judgement::{Around, Problem, judge, lag_of};
use crate::owned;
use gabion_base::{Error, ErrorKind, GroupId, ReplicaId, Result};
use gabion_control::{Command, Controller, GroupStatus, Moment, ReplicaStatus, Vitals};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest question in bytes.
const QUESTION_LEN_MAX: u64 = 4 << 10;
/// Longest answer in bytes: 256 events of the longest texts, in JSON, and the members.
const ANSWER_LEN_MAX: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(5);

/// The socket of a running `up`; its file is removed when this is dropped.
pub(super) struct Socket {
    path: PathBuf,
}

impl Socket {
    /// Listens, and answers on a thread of its own.
    ///
    /// # Errors
    /// Invalid input when something else has the name; I/O.
    pub(super) fn open(dir: &Path, controller: Handle, group: GroupId) -> Result<Self> {
        let path = socket_path(dir);
        let directory = File::open(dir).map_err(|e| failed(dir, "cannot be opened", e))?;
        let listener = owned::listen(&path, Path::new(&short_path(&directory)))?;
        spawn("gabion-asked", move || {
            for stream in listener.incoming().flatten() {
                // A client that asks nothing, or reads no answer, is not waited for.
                let _ = serve(&stream, &controller, group);
            }
        })?;
        Ok(Self { path })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The socket's path by way of its open directory: a path of a socket has at most 107 bytes.
fn short_path(directory: &File) -> String {
    format!("/proc/self/fd/{}/socket", directory.as_raw_fd())
}

fn serve(stream: &UnixStream, controller: &Handle, group: GroupId) -> Result<()> {
    let io = |e| Error::with_source(ErrorKind::Io, "the controller's socket", e);
    stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(io)?;
    let mut line = String::new();
    BufReader::new(stream.take(QUESTION_LEN_MAX)).read_line(&mut line).map_err(io)?;
    let question = serde_json::from_str(&line)
        .map_err(|e| Error::invalid(format!("a question that is no JSON: {e}")));
    let answer = match question
        .and_then(|question| answer(&question, controller, group, around(controller)))
    {
        Ok(answer) => answer,
        Err(error) => {
            json!({ "ok": false, "kind": error.kind().as_str(), "error": error.message() })
        }
    };
    let mut stream = stream;
    stream.write_all(format!("{answer}\n").as_bytes()).map_err(io)
}

/// The answer to a question about one group.
///
/// # Errors
/// Invalid input for a question that is none; the controller's.
pub(crate) fn answer(
    value: &Value,
    controller: &Handle,
    group: GroupId,
    around: Around,
) -> Result<Value> {
    let optional = |name: &str| match &value[name] {
        Value::Null => Ok(None),
        number => number
            .as_u64()
            .and_then(|number| u32::try_from(number).ok())
            .map(|number| Some(ReplicaId(number)))
            .ok_or_else(|| {
                Error::invalid(format!("`{name}` is {number}, a replica's number is expected"))
            }),
    };
    let replica = || {
        let found = optional("replica")?;
        found.ok_or_else(|| Error::invalid("`replica` is missing"))
    };
    let command = match value["do"].as_str() {
        Some("status") => {
            let ask =
                move |controller: &mut Controller, now| status(controller, group, &around, now);
            return Ok(json!({ "ok": true, "group": controller.ask(ask)? }));
        }
        Some("failover") => Command::FailOver(optional("replica")?),
        Some("add") => Command::Add(replica()?),
        Some("remove") => Command::Remove(replica()?),
        Some("give up") => Command::GiveUp(replica()?),
        Some("replace") => Command::Replace(replica()?, optional("by")?),
        _ => return Err(Error::invalid(format!("`do` is {}, which is unknown", value["do"]))),
    };
    controller.ask(move |controller, now| controller.handle_command(group, command, now))??;
    Ok(json!({ "ok": true }))
}

/// The circumstances of a group whose replicas are all on this machine.
pub(super) fn around(controller: &Handle) -> Around {
    let unix_s = (unix_ms() / 1_000).cast_signed();
    Around { store: controller.store_failure(), unix_s, ..Around::default() }
}

/// The group as JSON; null where there is no record of it.
fn status(controller: &Controller, group: GroupId, around: &Around, now: Moment) -> Value {
    let found = controller.status(group, now).zip(controller.record(group));
    let Some((status, record)) = found else { return Value::Null };
    let view = &status.view;
    let replicas: Vec<Value> = status.replicas.iter().map(|it| replica(&status, it)).collect();
    let problems: Vec<Value> = judge(&status, around).iter().map(Problem::json).collect();
    let events: Vec<Value> = record.events.iter().map(event).collect();
    json!({
        "config": view.config.get(),
        "term": status.term.get(),
        "complete": status.is_complete,
        "waits": view.waits(),
        "wanted": status.wanted,
        "min_replicas": view.members_min,
        "members": view.members.iter().map(|member| member.replica.get()).collect::<Vec<_>>(),
        "writer": view.full().next().map(|member| member.replica.get()),
        "reader": view.full().last().map(|member| member.replica.get()),
        "writes_wait": view.too_few(),
        "replicas": replicas,
        "problems": problems,
        "events": events,
    })
}

fn replica(group: &GroupStatus, status: &ReplicaStatus) -> Value {
    let verdict = status.verdict.map_or_else(|| "not heard yet".into(), |it| it.to_string());
    json!({
        "replica": status.replica.get(),
        "state": state(group, status),
        "verdict": verdict,
        "lost": status.verdict.is_none_or(|verdict| verdict.is_failure()),
        "config": status.config.map(|config| config.get()),
        "filling": filling::as_json(status.filling),
        "role": role(group, status.replica),
        "lag": lag_of(group, status.replica).map(|(bytes, ms)| json!({"bytes": bytes, "ms": ms})),
        "load": status.vitals.as_ref().map(load),
    })
}

/// A replica's place in the chain; null where it has none.
fn role(group: &GroupStatus, replica: ReplicaId) -> Option<&'static str> {
    let full: Vec<ReplicaId> = group.view.full().map(|member| member.replica).collect();
    match full.iter().position(|it| *it == replica)? {
        _ if full.len() == 1 => Some("alone"),
        0 => Some("head"),
        place if place + 1 == full.len() => Some("tail"),
        _ => Some("middle"),
    }
}

/// A replica's load and room.
fn load(vitals: &Vitals) -> Value {
    json!({
        "uptime_ms": vitals.uptime_ms,
        "commands": vitals.commands,
        "slots": vitals.slots,
        "slots_free": vitals.slots_free,
        "memtable_bytes": vitals.memtable_bytes,
        "levels": vitals.levels,
        "garbage_bytes": vitals.garbage_bytes,
        "probe_us": vitals.probe_us,
        "certificate_until_s": vitals.certificate_until_s,
    })
}

/// A replica's place in the group, in a word.
pub(super) fn state(group: &GroupStatus, status: &ReplicaStatus) -> &'static str {
    let in_view = group.view.members.iter().any(|member| member.replica == status.replica);
    match (in_view, status.is_full) {
        (true, true) => "full",
        (true, false) if group.view.keeps(status.replica) => "kept",
        (true, false) if status.is_filled => "filled",
        (true, false) => "filling",
        (false, _) if status.is_leaving => "removed",
        (false, _) => "spare",
    }
}

/// An event as JSON.
pub(super) fn event(event: &gabion_control::Event) -> Value {
    json!({
        "time": crate::units::utc(event.unix_ms),
        "unix_ms": event.unix_ms,
        "text": event.text,
    })
}

/// Asks the controller of a running `up`.
///
/// # Errors
/// Not found when none listens; unavailable when it does not answer; its own.
pub(super) fn ask(dir: &Path, question: &Value) -> Result<Value> {
    let none = |e| Error::with_source(ErrorKind::NotFound, "no controller runs", e);
    let io = |e| Error::with_source(ErrorKind::Unavailable, "the controller does not answer", e);
    let directory = File::open(dir).map_err(none)?;
    let mut stream = UnixStream::connect(short_path(&directory)).map_err(none)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(io)?;
    stream.write_all(format!("{question}\n").as_bytes()).map_err(io)?;
    let mut line = String::new();
    BufReader::new(stream.take(ANSWER_LEN_MAX)).read_line(&mut line).map_err(io)?;
    let answer: Value = serde_json::from_str(&line)
        .map_err(|e| Error::unavailable(format!("the controller's answer is no JSON: {e}")))?;
    crate::machines::accepted(answer)
}
