//! `gabion top`: what the replicas of a group do now, again and again.
//!
//! ```text
//!   gabion top  127.0.0.1:6379  3 replicas
//!   ops/s 48,210  ack p50 0.5 p99 2.1 ms  stalls 0 %
//!   #  role      ops/s      lag      old   log/s   slots free    cpu   mem
//!   1  primary  16,070        -        -   12.3M    1893/2048   0.91  312M
//!   2  middle   16,070     4.1K     0.0s   12.3M    1893/2048   0.32  298M
//! ```
//!
//! Rates and quantiles are of the time between two answers of a process; those of the first answer
//! are of the time since it began.

use crate::cluster::addresses;
use crate::control::ask::group_of;
use crate::judgement::sentences;
use crate::options::TopOptions;
use crate::quantile::quantile;
use crate::screen::{Screen, put};
use crate::status::{ask, lacks_members};
use crate::units::{count, short_count, short_size};
use gabion_base::Result;
use gabion_bench::grouped;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// `gabion top`.
pub(crate) fn run(options: &TopOptions) -> Result<u8> {
    options.door.take(&options.place)?;
    let addresses = addresses(&options.place)?;
    let mut screen = Screen::new();
    let interval = Duration::from_millis(options.interval);
    let mut before: Vec<Option<Seen>> = addresses.iter().map(|_| None).collect();
    loop {
        let begun = Instant::now();
        let now = ask_all(&addresses);
        let group = group_of(&options.place);
        let problems: Vec<&str> = group.iter().flat_map(sentences).collect();
        let rows: Vec<Row> = addresses
            .iter()
            .zip(before.iter().zip(&now))
            .map(|((number, _), (before, now))| Row::of(*number, before.as_ref(), now.as_ref()))
            .collect();
        let is_well =
            rows.iter().all(|row| row.is_ready) && !group.as_ref().is_some_and(lacks_members);
        if options.once {
            put(&(lines(&rows, addresses[0].1, &problems).join("\n") + "\n"));
            return Ok(u8::from(!is_well));
        }
        if screen.is_terminal() {
            screen.draw(&lines(&rows, addresses[0].1, &problems));
        } else {
            put(&(in_a_line(&rows, &problems) + "\n"));
        }
        // A replica that is silent for a moment is compared with what it was before that.
        for (before, now) in before.iter_mut().zip(now) {
            if now.is_some() {
                *before = now;
            }
        }
        std::thread::sleep(interval.saturating_sub(begun.elapsed()));
    }
}

/// The answers of all at once: one that hangs holds up no other.
fn ask_all(addresses: &[(u32, SocketAddr)]) -> Vec<Option<Seen>> {
    std::thread::scope(|scope| {
        let (sender, answers) = channel();
        for (place, (_, address)) in addresses.iter().enumerate() {
            let sender = sender.clone();
            scope.spawn(move || {
                // It is received below until all have ended.
                let _ = sender.send((place, ask(*address).ok().map(Seen::of)));
            });
        }
        drop(sender);
        let mut all: Vec<Option<Seen>> = addresses.iter().map(|_| None).collect();
        for (place, seen) in answers {
            all[place] = seen;
        }
        all
    })
}

/// An answer of a replica, and the numbers of it that are compared with those before.
#[derive(Clone, Debug, Default)]
struct Seen {
    status: Value,
    pid: u64,
    uptime_ms: u64,
    commands: u64,
    log_end: u64,
    cpu_s: f64,
    stopped_ms: u64,
    acknowledged: Vec<u64>,
}

impl Seen {
    fn of(status: Value) -> Self {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let counters = &status["counters"];
        let counts = status["acknowledged"]["counts"].as_array().map_or(&[][..], Vec::as_slice);
        Self {
            pid: number(&status["pid"]),
            uptime_ms: number(&status["uptime_ms"]),
            commands: number(&status["commands"]),
            log_end: number(&status["log"]["end"]),
            cpu_s: status["cpu_seconds"].as_f64().unwrap_or(0.0),
            stopped_ms: number(&counters["writes_stopped_ms"])
                + number(&counters["writes_slowed_ms"]),
            acknowledged: counts.iter().map(number).collect(),
            status,
        }
    }
}

/// A replica as it is drawn.
#[derive(Debug, Default, PartialEq)]
struct Row {
    number: u32,
    is_ready: bool,
    /// Empty where it does not answer.
    role: String,
    reason: String,
    commands_per_s: u64,
    log_per_s: u64,
    cpu: f64,
    memory: u64,
    slots: (u64, u64),
    /// Part of the time in which writes stood still.
    stalled: f64,
    /// Of the acknowledgements since the answer before, by how long they took.
    acknowledged: Vec<u64>,
    first_ns: u64,
    /// Of the others, if it is the primary: number, bytes, ms.
    lags: Vec<(u64, u64, u64)>,
}

impl Row {
    fn of(number: u32, before: Option<&Seen>, now: Option<&Seen>) -> Self {
        let Some(now) = now else { return Self { number, ..Self::default() } };
        let nothing = Seen::default();
        // Counters of another process are no measure; those of commands may have been set back.
        let before = before.filter(|it| it.pid == now.pid && it.commands <= now.commands);
        let before = before.unwrap_or(&nothing);
        let (status, whole) = (&now.status, |value: &Value| value.as_u64().unwrap_or(0));
        let passed_ms = now.uptime_ms.saturating_sub(before.uptime_ms).max(1);
        let rate = |now: u64, before: u64| {
            let more = u128::from(now.saturating_sub(before)) * 1_000 / u128::from(passed_ms);
            u64::try_from(more).unwrap_or(u64::MAX)
        };
        let at = |place: usize| before.acknowledged.get(place).copied().unwrap_or(0);
        let acknowledged = now.acknowledged.iter().enumerate();
        let lags = status["lag"].as_array().map_or(&[][..], Vec::as_slice).iter();
        let slots = &status["slots"];
        Self {
            number,
            is_ready: status["ready"].as_bool().unwrap_or(false),
            role: status["role"].as_str().unwrap_or("?").to_owned(),
            reason: status["reason"].as_str().unwrap_or("").to_owned(),
            commands_per_s: rate(now.commands, before.commands),
            log_per_s: rate(now.log_end, before.log_end),
            cpu: (now.cpu_s - before.cpu_s).max(0.0) * 1_000.0 / passed_ms as f64,
            memory: whole(&status["memory_bytes"]),
            slots: (whole(&slots["free"]), whole(&slots["total"])),
            stalled: now.stopped_ms.saturating_sub(before.stopped_ms) as f64 / passed_ms as f64,
            acknowledged: acknowledged.map(|(i, n)| n.saturating_sub(at(i))).collect(),
            first_ns: whole(&status["acknowledged"]["first_ns"]),
            lags: lags
                .map(|lag| (whole(&lag["replica"]), whole(&lag["bytes"]), whole(&lag["ms"])))
                .collect(),
        }
    }

    fn note(&self) -> String {
        match (self.role.is_empty(), self.reason.is_empty()) {
            (true, _) => "does not answer".to_owned(),
            (false, true) => String::new(),
            (false, false) => self.reason.clone(),
        }
    }
}

fn primary(rows: &[Row]) -> Option<&Row> {
    rows.iter().find(|row| row.role == "primary")
}

/// Line of the group: commands, the time to acknowledgement, stalls.
fn group(rows: &[Row]) -> String {
    let commands: u64 = rows.iter().map(|row| row.commands_per_s).sum();
    let mut line = format!("ops/s {}", grouped(commands));
    if let Some(row) = primary(rows) {
        let first_ms = row.first_ns as f64 / 1e6;
        let at = |part| quantile(&row.acknowledged, first_ms, part);
        if let (Some(half), Some(most)) = (at(0.5), at(0.99)) {
            line += &format!("  ack p50 {half:.1} p99 {most:.1} ms");
        }
        line += &format!("  stalls {:.0} %", row.stalled * 100.0);
    }
    line
}

/// The block that is drawn.
fn lines(rows: &[Row], address: SocketAddr, problems: &[&str]) -> Vec<String> {
    let replicas = count(rows.len() as u64, "replica");
    let mut lines = vec![format!("gabion top  {address}  {replicas}"), group(rows)];
    lines.extend(problems.iter().map(|problem| format!("! {problem}")));
    lines.push(format!(
        "{:<3}{:<9}{:>8}{:>9}{:>8}{:>9}{:>13}{:>7}{:>8}",
        "#", "role", "ops/s", "lag", "old", "log/s", "slots free", "cpu", "mem"
    ));
    let lags = primary(rows).map_or(&[][..], |row| &row.lags);
    for row in rows {
        if row.role.is_empty() {
            lines.push(format!("{:<3}{}", row.number, row.note()));
            continue;
        }
        let lag = lags.iter().find(|(member, ..)| *member == u64::from(row.number));
        let (bytes, old) = lag.map_or(("-".to_owned(), "-".to_owned()), |(_, bytes, ms)| {
            (short_size(*bytes), format!("{:.1}s", *ms as f64 / 1e3))
        });
        lines.push(format!(
            "{:<3}{:<9}{:>8}{bytes:>9}{old:>8}{:>9}{:>13}{:>7.2}{:>8}",
            row.number,
            row.role,
            short_count(row.commands_per_s),
            short_size(row.log_per_s),
            format!("{}/{}", row.slots.0, row.slots.1),
            row.cpu,
            short_size(row.memory),
        ));
        if !row.note().is_empty() {
            lines.push(format!("   replica {}: {}", row.number, row.note()));
        }
    }
    lines
}

/// The same where nothing can be redrawn.
fn in_a_line(rows: &[Row], problems: &[&str]) -> String {
    let mut line = group(rows);
    for (member, bytes, ms) in primary(rows).map_or(&[][..], |row| &row.lags) {
        let old = *ms as f64 / 1e3;
        line += &format!("; replica {member} lag {} {old:.1} s", short_size(*bytes));
    }
    for row in rows.iter().filter(|row| !row.is_ready) {
        let note = row.note();
        let note = if note.is_empty() { "not ready" } else { &note };
        line += &format!("; replica {}: {note}", row.number);
    }
    problems.iter().for_each(|problem| line += &format!("; {problem}"));
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn seen(pid: u64, uptime_ms: u64, commands: u64) -> Seen {
        Seen::of(json!({
            "pid": pid, "uptime_ms": uptime_ms, "commands": commands, "ready": true,
            "role": "primary", "log": {"end": commands * 100}, "cpu_seconds": commands as f64 / 1e5,
            "counters": {"writes_stopped_ms": uptime_ms / 10, "writes_slowed_ms": uptime_ms / 10},
            "slots": {"free": 5, "total": 9}, "memory_bytes": 1 << 20,
            "lag": [{"replica": 2, "bytes": 2048, "ms": 1500}],
            "acknowledged": {"first_ns": 1024, "counts": [commands, 0, 10, 0]},
        }))
    }

    #[test]
    fn rates_are_of_the_time_between_two_answers_of_one_process() {
        let (first, second) = (seen(7, 10_000, 1_000), seen(7, 12_000, 5_000));
        let row = Row::of(1, Some(&first), Some(&second));
        assert_eq!((row.commands_per_s, row.log_per_s), (2_000, 200_000));
        assert!((row.cpu - 0.02).abs() < 1e-9 && (row.stalled - 0.2).abs() < 1e-9, "{row:?}");
        assert_eq!(row.acknowledged, [4_000, 0, 0, 0]);
        let other = Row::of(1, Some(&seen(6, 90_000, 9)), Some(&second));
        assert_eq!(other.commands_per_s, 416, "since the process began");
        let reset = Row::of(1, Some(&seen(7, 11_000, 9_000)), Some(&second));
        assert_eq!(reset.commands_per_s, 416);
        assert_eq!(Row::of(3, Some(&first), None), Row { number: 3, ..Row::default() });
    }

    #[test]
    fn a_group_is_drawn_with_its_lags_and_what_is_wrong() {
        let tail = Seen::of(json!({"role": "tail", "ready": false, "reason": "it is starting"}));
        let rows = [Row::of(1, None, Some(&seen(1, 1_000, 3_000))), Row::of(2, None, Some(&tail))];
        let drawn =
            lines(&rows, "127.0.0.1:6379".parse().unwrap(), &["It is not well."]).join("\n");
        for part in [
            "ops/s 3,000",
            "stalls 20 %",
            "primary",
            "2.0K",
            "1.5s",
            "5/9",
            "it is starting",
            "! It is not well.",
        ] {
            assert!(drawn.contains(part), "{part}: {drawn}");
        }
        assert!(drawn.lines().all(|line| line.len() <= 79), "{drawn}");
        let silent = [Row::of(1, None, Some(&seen(1, 1_000, 3_000))), Row::of(2, None, None)];
        let line = in_a_line(&silent, &[]);
        assert!(line.contains("replica 2 lag 2.0K 1.5 s"), "{line}");
        assert!(line.ends_with("replica 2: does not answer"), "{line}");
    }
}
