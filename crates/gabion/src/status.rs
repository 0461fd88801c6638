//! The replicas' own reports, and `gabion status`.

use crate::client::Client;
use crate::cluster::{IS_UP_RUNNING, addresses_by_group};
use crate::control::{self, ask::group_of};
use crate::filling;
use crate::machines;
use crate::options::{StatusOptions, WhereOptions};
use crate::screen::{self, Screen, put};
use gabion_base::{Error, ErrorKind, Result};
use serde_json::{Value, json};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// How long a replica may take to answer STATUS.
pub(crate) const STATUS_TIMEOUT: Duration = Duration::from_millis(1500);

/// CPU roles in the order of the report (docs/architecture.md).
pub(crate) const ROLES: [&str; 6] =
    ["requests", "flush", "compaction", "shipping", "target", "other"];

/// CPU seconds by role.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cpu(pub(crate) [f64; 6]);

impl Cpu {
    pub(crate) fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, part) in self.0.iter_mut().zip(other.0) {
            *sum += part;
        }
    }

    /// Seconds of the roles named.
    pub(crate) fn of(&self, roles: &[&str]) -> f64 {
        let named = |(role, _): &(&&str, &f64)| roles.contains(*role);
        ROLES.iter().zip(&self.0).filter(named).map(|(_, seconds)| seconds).sum()
    }
}

/// One replica at one moment: the part of `GABION STATUS` that is drawn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Status {
    pub(crate) pid: u64,
    pub(crate) role: String,
    pub(crate) term: u64,
    pub(crate) is_ready: bool,
    /// Whether the view in which it acts has it.
    pub(crate) is_member: bool,
    /// Why it is not ready.
    pub(crate) reason: String,
    /// The possible loss with its ring, in a sentence.
    pub(crate) ring: String,
    /// The state of that loss: `open`, `taken-over` or `gone`.
    pub(crate) ring_fate: String,
    /// Its log is whole up to here.
    pub(crate) ring_from: u64,
    /// The error that found a file damaged, while the file is not repaired.
    pub(crate) damage: String,
    /// How many such files there are.
    pub(crate) damaged_files: u64,
    /// The progress of the first one's repair.
    pub(crate) repair: String,
    /// How far it is, as a member that is being filled; empty at any other.
    pub(crate) filling: String,
    /// By how many milliseconds the system's clock is ahead of the replica's.
    pub(crate) clock_ahead_ms: i64,
    pub(crate) compaction: String,
    pub(crate) ack: String,
    pub(crate) uptime_s: u64,
    pub(crate) memtable_bytes: u64,
    pub(crate) sealed: u64,
    pub(crate) level_files: Vec<u64>,
    pub(crate) slots_used: u64,
    pub(crate) slots_total: u64,
    pub(crate) flushes: u64,
    pub(crate) compactions: u64,
    pub(crate) shipped_bytes: u64,
    pub(crate) log_end: u64,
    pub(crate) cpu: Cpu,
}

impl Status {
    pub(crate) fn from_json(value: &Value) -> Self {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let (slots, counters) = (&value["slots"], &value["counters"]);
        let levels = value["levels"].as_array().map_or(&[][..], Vec::as_slice);
        let seconds = ROLES.map(|role| value["cpu_seconds_by_role"][role].as_f64().unwrap_or(0.0));
        Self {
            pid: number(&value["pid"]),
            role: text(&value["role"]),
            term: number(&value["term"]),
            is_ready: value["ready"].as_bool().unwrap_or(false),
            is_member: value["membership"].as_str().is_some_and(|it| it != "none"),
            reason: text(&value["reason"]),
            ring: text(&value["ring"]["message"]),
            ring_fate: text(&value["ring"]["fate"]),
            ring_from: number(&value["ring"]["from"]),
            damage: text(&value["damage"]),
            damaged_files: value["damaged_files"].as_array().map_or(0, |files| files.len() as u64),
            repair: text(&value["damaged_files"][0]["state"]),
            filling: filling::in_words(&value["filling"]).unwrap_or_default(),
            clock_ahead_ms: value["clock"]["system_ahead_ms"].as_i64().unwrap_or(0),
            compaction: text(&value["compaction"]),
            ack: text(&value["ack"]),
            uptime_s: number(&value["uptime_ms"]) / 1000,
            memtable_bytes: number(&value["memtable"]["active_bytes"]),
            sealed: number(&value["memtable"]["sealed"]),
            level_files: levels.iter().map(|level| number(&level["files"])).collect(),
            slots_used: number(&slots["total"]).saturating_sub(number(&slots["free"])),
            slots_total: number(&slots["total"]),
            flushes: number(&counters["flushes"]),
            compactions: number(&counters["compactions"]),
            shipped_bytes: number(&counters["shipped_bytes"]),
            log_end: number(&value["log"]["end"]),
            cpu: Cpu(seconds),
        }
    }
}

/// A replica's answer, or why there is none.
pub(crate) fn ask(address: SocketAddr) -> Result<Value> {
    Client::connect(address, STATUS_TIMEOUT)?.ask("STATUS")
}

/// `gabion status`.
pub(crate) fn run(options: &StatusOptions) -> Result<u8> {
    options.door.take(&options.place)?;
    let place = &options.place;
    let several = match place.remote.controller.filter(|_| place.port.is_none()) {
        Some(_) if !options.watch => machines::groups(place)?,
        _ => None,
    };
    if let Some(groups) = several {
        return look_at_all(&groups.each, options.json);
    }
    let doors = addresses_by_group(place)?;
    let mut screen = Screen::new();
    loop {
        let seen = look(place, &doors);
        if options.json {
            put(&format!("{:#}\n", seen.json));
            return Ok(seen.code);
        }
        if !options.watch {
            put(&(seen.lines.join("\n") + "\n"));
            return Ok(seen.code);
        }
        screen.draw(&seen.lines);
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// The groups of a controller over which keys are spread, one below the other.
fn look_at_all(places: &[WhereOptions], json: bool) -> Result<u8> {
    let (mut code, mut all) = (0, Vec::new());
    for place in places {
        let seen = look(place, &addresses_by_group(place)?);
        code = code.max(seen.code);
        if !json {
            let name = place.remote.group.as_deref().unwrap_or("?");
            put(&format!("group {name}\n{}\n", seen.lines.join("\n")));
        }
        all.push(seen.json);
    }
    if json {
        put(&format!("{:#}\n", json!({ "groups": all })));
    }
    Ok(code)
}

/// The words of a group's replicas and of its controller.
struct Seen {
    /// The exit code: whether all are ready.
    code: u8,
    json: Value,
    lines: Vec<String>,
}

fn look(place: &WhereOptions, doors: &[(Option<u32>, u32, SocketAddr)]) -> Seen {
    let answers: Vec<(u32, SocketAddr, Result<Value>)> =
        doors.iter().map(|&(_, number, at)| (number, at, ask(at))).collect();
    let group = group_of(place);
    let rows: Vec<screen::Row> = answers
        .iter()
        .zip(doors)
        .map(|((number, at, answer), (group, ..))| screen::Row {
            group: *group,
            number: *number,
            status: answer.as_ref().ok().map(Status::from_json),
            note: answer.as_ref().err().map(|error| note_of(error, *at)),
            earlier_cpu: Cpu::default(),
        })
        .collect();
    let mut lines = screen::lines(&rows, doors[0].2);
    lines.extend(group.iter().flat_map(control::ask::lines));
    if answers.iter().all(|(.., answer)| answer.as_ref().is_err_and(is_refused)) {
        lines.push(format!("nothing listens on any of these ports: {IS_UP_RUNNING}"));
    }
    let code = exit_code(rows.iter().map(|row| row.status.as_ref()), group.as_ref());
    Seen { code, json: to_json(&answers, group), lines }
}

/// Whether nothing listens at a replica's address.
fn is_refused(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    source
        .and_then(|source| source.downcast_ref::<io::Error>())
        .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Why a replica has no status.
fn note_of(error: &Error, address: SocketAddr) -> String {
    if is_refused(error) {
        return format!("does not run: nothing listens on port {}", address.port());
    }
    // Its answer in place of the status, such as that it has too many clients, or lets nobody in.
    if matches!(error.kind(), ErrorKind::Io | ErrorKind::InvalidInput) {
        return format!("does not say how it is: {}", error.message());
    }
    "does not answer".to_owned()
}

/// Zero where all are ready, and the group has as many members as it is to have: a spare is ready
/// as well, and so is a replica that was left out and runs.
fn exit_code<'a>(mut rows: impl Iterator<Item = Option<&'a Status>>, group: Option<&Value>) -> u8 {
    let is_ready = rows.all(|row| row.is_some_and(|status| status.is_ready));
    u8::from(!is_ready || group.is_some_and(lacks_members))
}

/// Whether a group has fewer members than it is to have, by its controller's word.
pub(crate) fn lacks_members(group: &Value) -> bool {
    let members = group["members"].as_array().map_or(0, Vec::len);
    (members as u64) < group["wanted"].as_u64().unwrap_or(0)
}

fn to_json(answers: &[(u32, SocketAddr, Result<Value>)], group: Option<Value>) -> Value {
    let replicas: Vec<Value> = answers
        .iter()
        .map(|(number, at, answer)| match answer {
            Ok(value) => value.clone(),
            Err(error) => json!({
                "replica": number,
                "address": at.to_string(),
                "ready": false,
                "error": error.to_string(),
            }),
        })
        .collect();
    json!({ "replicas": replicas, "group": group })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_strange_in_an_answer_reads_as_nothing() {
        for value in [json!({}), json!([1]), json!({"levels": 3, "slots": "x", "pid": -1})] {
            let status = Status::from_json(&value);
            assert!(!status.is_ready);
            assert_eq!(status.pid, 0);
            assert!(status.level_files.is_empty());
        }
    }

    #[test]
    fn spares_are_well_as_long_as_no_member_is_missing() {
        let ready = |role: &str| Status::from_json(&json!({"role": role, "ready": true}));
        let rows = [ready("primary"), ready("tail"), ready("spare")];
        let code = |rows: &[Status], group: Option<&Value>| exit_code(rows.iter().map(Some), group);
        let group = json!({"members": [1, 2], "wanted": 2});
        assert_eq!((code(&rows, Some(&group)), code(&rows, None)), (0, 0));
        let lacking = json!({"members": [1], "wanted": 2});
        assert_eq!(code(&rows, Some(&lacking)), 1);
        let cut_off = json!({"role": "spare", "ready": false, "reason": "no head"});
        let rows = [ready("primary"), ready("tail"), Status::from_json(&cut_off)];
        assert_eq!(code(&rows, Some(&group)), 1);
    }

    #[test]
    fn a_replica_that_does_not_run_is_told_from_one_that_hangs() {
        use crate::client::tests::{HANGING, Stand};
        let hanging = Stand::new(HANGING).address;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let free = listener.local_addr().unwrap();
        drop(listener);
        let note = |address| note_of(&ask(address).unwrap_err(), address);
        assert_eq!(note(hanging), "does not answer");
        let port = free.port();
        assert_eq!(note(free), format!("does not run: nothing listens on port {port}"));
        let full = Error::io("127.0.0.1:1: GABION STATUS: ERR max number of clients reached");
        let said =
            "does not say how it is: 127.0.0.1:1: GABION STATUS: ERR max number of clients reached";
        assert_eq!(note_of(&full, free), said);
    }

    #[test]
    fn cpu_is_summed_over_the_roles_that_are_named() {
        let mut cpu = Cpu([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]);
        assert_eq!(cpu.of(&["flush", "compaction"]), 6.0);
        cpu.add(&Cpu([1.0; 6]));
        assert_eq!(cpu.total(), 69.0);
    }
}
