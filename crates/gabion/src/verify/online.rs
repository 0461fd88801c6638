//! Running replicas check themselves and report, while clients write.
//!
//! ```text
//!   scrub ─► how fast does the log grow? ─► a position soon to come ─► DIGEST there, of all at once
//!                       ▲                                                │
//!                       └── passed too early, not reached, cut, too old ─┴─► scrub of what is new ─► found
//! ```
//!
//! Each replica captures its state at the first record end at or after that position, which is the
//! same place everywhere, and reads it from there. At rest the position is the end of the logs.

use super::{Damage, Found, LiveFile, place};
use crate::client::Client;
use crate::cluster::addresses;
use crate::control::ask::full_of;
use crate::options::VerifyOptions;
use crate::screen::Progress;
use crate::status::STATUS_TIMEOUT;
use crate::units::size;
use gabion_base::{Error, ErrorKind, Frontier, LogPosition, Result};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How many positions are tried before verify gives up.
const TRIES: u32 = 20;
/// How often all records are read when some replica cannot read its own: a damaged file is repaired
/// within moments if another replica has it whole.
const TRIES_IN_PART: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(200);
/// The time over which the growth of the log is measured.
const MEASURED: Duration = Duration::from_millis(100);
/// The distance of the first position from the log's end, in time of growth: all replicas must be
/// asked before any of them is there.
const LEAD_FIRST: Duration = Duration::from_millis(250);
/// The largest distance. Replicas wait for 3 s.
const LEAD_MAX: Duration = Duration::from_secs(2);

pub(super) fn look(options: &VerifyOptions, progress: &mut Progress) -> Result<Vec<Found>> {
    let addresses = full_of(&options.place, addresses(&options.place)?);
    progress.say("asking every replica for its status");
    let status = ask_all(&addresses, "STATUS")?;
    for (value, (number, _)) in status.iter().zip(&addresses) {
        if value["ready"] != true {
            let reason = value["reason"].as_str().unwrap_or("it is starting");
            return Err(Error::unavailable(format!("replica {number} is not ready: {reason}")));
        }
    }
    // Files first: a reader that meets damage has it repaired, and only a scrub tells where it was.
    let bytes: u64 = status.iter().map(|value| number(&value["live_bytes"])).sum();
    progress.say(&format!("reading {} of files at {} replicas", size(bytes), addresses.len()));
    let scrubs = ask_all(&addresses, "SCRUB")?;
    let states = at_one_position(&addresses, progress)?;
    let mut found = Vec::new();
    for (i, (replica, _)) in addresses.iter().enumerate() {
        let mut it = what_was_found(*replica, &states[i]);
        it.has_own_files = status[i]["compaction"] == "every-replica";
        it.take_scrub(&scrubs[i]);
        found.push(it);
    }
    progress.say("reading the files that are new since");
    scrub_the_new(&addresses, &mut found)?;
    Ok(found)
}

fn what_was_found(replica: u32, state: &Value) -> Found {
    let records = state["crc"].as_str().map(|crc| (number(&state["records"]), crc.to_owned()));
    Found {
        replica,
        log_end: frontier(&state["log_end"]),
        log_crc: state["log_crc"].as_str().map(str::to_owned),
        edit: number(&state["edit"]),
        files: list(&state["files"]).map(live_file).collect(),
        // Unreadable records are damaged; the scrub named them, and they may soon be whole.
        records,
        ..Found::default()
    }
}

impl Found {
    /// Takes a scrub's findings.
    fn take_scrub(&mut self, scrub: &Value) {
        self.bytes_read += number(&scrub["bytes"]);
        self.files_read.extend(list(&scrub["read"]).map(number));
        self.damage.extend(list(&scrub["errors"]).map(damage));
    }
}

/// Scrubs the files that came into the trees after the scrub and before the position of the
/// comparison. Files that have left the trees again were compared with their edits when they came.
fn scrub_the_new(addresses: &[(u32, SocketAddr)], found: &mut [Found]) -> Result<()> {
    let questions = found.iter().map(|it| {
        let new = it.files.iter().filter(|file| !it.files_read.contains(&file.number));
        new.fold("SCRUB".to_owned(), |question, file| format!("{question} {}", file.number))
    });
    let questions: Vec<String> = questions.collect();
    let asked = |i: &usize| questions[*i] != "SCRUB";
    let asked: Vec<usize> = (0..questions.len()).filter(asked).collect();
    let (places, questions): (Vec<_>, Vec<_>) =
        asked.iter().map(|i| (addresses[*i], questions[*i].clone())).unzip();
    let scrubs = insist(answers(&places, &questions), &places)?;
    for (i, scrub) in asked.iter().zip(&scrubs) {
        found[*i].take_scrub(scrub);
    }
    Ok(())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn frontier(value: &Value) -> Frontier {
    Frontier::of(LogPosition(number(value)))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn live_file(value: &Value) -> LiveFile {
    LiveFile {
        level: number(&value["level"]),
        number: number(&value["file"]),
        len: number(&value["len"]),
        checksum: value["checksum"].as_str().unwrap_or("").to_owned(),
    }
}

fn damage(value: &Value) -> Damage {
    Damage {
        file: value["file"].as_u64(),
        offset: value["offset"].as_u64(),
        message: value["message"].as_str().unwrap_or("").to_owned(),
    }
}

/// The state of all replicas at one log position: the position, edit, files, number and checksum of
/// records.
fn at_one_position(addresses: &[(u32, SocketAddr)], progress: &mut Progress) -> Result<Vec<Value>> {
    let (mut obstacle, mut lead) = (None, LEAD_FIRST);
    let (mut in_part, mut tries_in_part) = (None, 0);
    for attempt in 0..TRIES {
        if attempt > 0 {
            std::thread::sleep(BETWEEN_TRIES);
        }
        progress.say("reading every record at every replica");
        let wanted = frontier_ahead(addresses, lead)?;
        let states = match ask_all(addresses, &format!("DIGEST {}", place(&wanted))) {
            Ok(states) => states,
            Err(error) if is_passing(&error) => {
                if log_ends(addresses)?.iter().any(|end| !wanted.covers(end)) {
                    // Some replica was past the position before it was asked.
                    lead = (lead * 2).min(LEAD_MAX);
                }
                obstacle = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        if let Err(error) = are_at_one_place(addresses, &states) {
            obstacle = Some(error);
            in_part = Some(states);
            continue;
        }
        tries_in_part += 1;
        if states.iter().all(|state| state["error"].is_null()) || tries_in_part == TRIES_IN_PART {
            return Ok(states);
        }
        in_part = Some(states);
    }
    let none = || Error::unavailable("no log position was common to all replicas");
    in_part.ok_or_else(|| obstacle.unwrap_or_else(none))
}

/// Whether another position may do: this one was passed or not reached, the log was cut, or
/// compactions kept replacing the files being read.
fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::SnapshotTooOld | ErrorKind::Unavailable)
}

/// A frontier that the log reaches in about `lead`, or its end if nobody writes.
fn frontier_ahead(addresses: &[(u32, SocketAddr)], lead: Duration) -> Result<Frontier> {
    let longest =
        || log_ends(addresses).map(|ends| ends.into_iter().fold(Frontier::ZERO, Frontier::join));
    let (begun, before) = (Instant::now(), longest()?);
    std::thread::sleep(MEASURED);
    let end = longest()?;
    let bytes_per_s = end.bytes_since(&before) as f64 / begun.elapsed().as_secs_f64();
    Ok(end.ahead((bytes_per_s * lead.as_secs_f64()) as u64))
}

fn log_ends(addresses: &[(u32, SocketAddr)]) -> Result<Vec<Frontier>> {
    let status = ask_all(addresses, "STATUS")?;
    Ok(status.iter().map(|value| frontier(&value["log"]["end"])).collect())
}

/// Succeeds when all replicas captured the same record of the same log.
fn are_at_one_place(addresses: &[(u32, SocketAddr)], states: &[Value]) -> Result<()> {
    let place = |state: &Value| (state["log_end"].clone(), state["log_crc"].clone());
    for (state, (replica, _)) in states.iter().zip(addresses) {
        if place(state) != place(&states[0]) {
            return Err(Error::unavailable(format!(
                "replica {replica} was asked for the record that ends at {} as replica {} is, with \
                 checksum {}, and is at {} and {}",
                states[0]["log_end"],
                addresses[0].0,
                states[0]["log_crc"],
                state["log_end"],
                state["log_crc"]
            )));
        }
    }
    Ok(())
}

/// The answers of replicas, each to its question.
fn answers(addresses: &[(u32, SocketAddr)], questions: &[String]) -> Vec<Result<Value>> {
    let ask =
        |at: SocketAddr, question: &str| Client::connect_living(at, STATUS_TIMEOUT)?.ask(question);
    std::thread::scope(|scope| {
        let pairs = addresses.iter().zip(questions);
        let threads: Vec<_> = pairs
            .map(|((_, address), question)| scope.spawn(move || ask(*address, question)))
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread.join().unwrap_or_else(|_| Err(Error::io("a thread of verify panicked")))
            })
            .collect()
    })
}

fn ask_all(addresses: &[(u32, SocketAddr)], question: &str) -> Result<Vec<Value>> {
    insist(answers(addresses, &vec![question.to_owned(); addresses.len()]), addresses)
}

/// All answers, or why some are missing.
fn insist(answers: Vec<Result<Value>>, addresses: &[(u32, SocketAddr)]) -> Result<Vec<Value>> {
    answers
        .into_iter()
        .zip(addresses)
        .map(|(answer, (number, _))| answer.map_err(|e| e.within(format!("replica {number}"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::tests::{ANSWERING, ENDING, HANGING, LATE, PAUSING, Stand};
    use serde_json::json;

    #[test]
    fn a_replica_that_accepts_and_never_answers_is_named() {
        let stands = [Stand::new(ANSWERING), Stand::new(HANGING)];
        let error = ask_all(&[(1, stands[0].address), (2, stands[1].address)], "STATUS");
        let error = error.unwrap_err().to_string();
        let expected = format!("replica 2: {} does not answer", stands[1].address);
        assert!(error.contains(&expected), "{error}");
    }

    fn common(stand: &Stand) -> Vec<Value> {
        at_one_position(&[(1, stand.address)], &mut Progress::silent()).unwrap()
    }

    /// docs/faults.md: P1
    #[test]
    fn records_whose_reading_was_ended_as_too_old_are_read_again() {
        let stand = Stand::new(ENDING);
        let states = common(&stand);
        assert_eq!(states, [json!({"log_end": 7, "records": 3, "crc": "ab"})]);
        assert_eq!(stand.digests(), 3);
    }

    /// docs/faults.md: P7
    #[test]
    fn a_position_that_was_passed_is_taken_further_ahead() {
        let stand = Stand::new(LATE);
        assert_eq!(common(&stand)[0]["records"], 3);
        assert!(stand.digests() > 2, "it grows by more than two leads before it is asked");
    }

    /// docs/faults.md: P7
    #[test]
    fn where_writes_pause_before_a_position_is_reached_the_logs_are_compared_at_rest() {
        let stand = Stand::new(PAUSING);
        assert_eq!(common(&stand)[0]["log_end"], 4_000);
        assert_eq!(stand.digests(), 2);
    }

    #[test]
    fn what_was_captured_at_different_places_is_not_compared() {
        let addresses = [(1, ([127, 0, 0, 1], 1).into()), (2, ([127, 0, 0, 1], 2).into())];
        let first = json!({"log_end": 7, "log_crc": "aa"});
        assert!(are_at_one_place(&addresses, &[first.clone(), first.clone()]).is_ok());
        for other in
            [json!({"log_end": 8, "log_crc": "aa"}), json!({"log_end": 7, "log_crc": "bb"})]
        {
            let error = are_at_one_place(&addresses, &[first.clone(), other]).unwrap_err();
            assert!(error.message().starts_with("replica 2 was asked for the record"), "{error}");
        }
    }
}
