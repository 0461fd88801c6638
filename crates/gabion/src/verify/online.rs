//! Replicas that run look at themselves and tell.

use super::{Damage, Found, LiveFile};
use crate::client::Client;
use crate::cluster::addresses;
use crate::options::VerifyOptions;
use crate::screen::Progress;
use crate::status::STATUS_TIMEOUT;
use crate::units::size;
use gabion_base::{Error, ErrorKind, Result};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;

/// How often a common position is looked for before writes are said to go on.
const TRIES: u32 = 20;
/// How often all records are read when some replica cannot read its own: a damaged file is repaired within
/// moments where another replica has it whole.
const TRIES_IN_PART: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(200);

pub(super) fn look(options: &VerifyOptions, progress: &mut Progress) -> Result<Vec<Found>> {
    let addresses = addresses(&options.place)?;
    progress.say("asking every replica for its status");
    let status = ask_all(&addresses, "STATUS")?;
    for (value, (number, _)) in status.iter().zip(&addresses) {
        if value["ready"] != true {
            let reason = value["reason"].as_str().unwrap_or("it is starting");
            return Err(Error::unavailable(format!("replica {number} is not ready: {reason}")));
        }
    }
    // Files first: whoever meets damage has it repaired, and only a scrub tells where it was.
    let bytes: u64 = status.iter().map(|value| value["live_bytes"].as_u64().unwrap_or(0)).sum();
    progress.say(&format!("reading {} of files at {} replicas", size(bytes), addresses.len()));
    let scrubs = ask_all(&addresses, "SCRUB")?;
    let (files, digests) = at_one_position(&addresses, progress)?;
    let mut found = Vec::new();
    for (i, (number, _)) in addresses.iter().enumerate() {
        let number_of = |value: &Value| value.as_u64().unwrap_or(0);
        found.push(Found {
            replica: *number,
            log_end: number_of(&files[i]["log_end"]),
            edit: number_of(&files[i]["edit"]),
            files: list(&files[i]["files"]).map(live_file).collect(),
            bytes_read: number_of(&scrubs[i]["bytes"]),
            damage: list(&scrubs[i]["errors"]).map(damage).collect(),
            records: digests[i].clone(),
            has_own_files: status[i]["compaction"] == "every-replica",
        });
    }
    Ok(found)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn live_file(value: &Value) -> LiveFile {
    LiveFile {
        level: value["level"].as_u64().unwrap_or(0),
        number: value["file"].as_u64().unwrap_or(0),
        len: value["len"].as_u64().unwrap_or(0),
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

type Records = Option<(u64, String)>;

/// Files and digests of all replicas at one log position and, where the primary decides on the
/// files, one edit.
fn at_one_position(
    addresses: &[(u32, SocketAddr)],
    progress: &mut Progress,
) -> Result<(Vec<Value>, Vec<Records>)> {
    let same =
        |values: &[Value], field: &str| values.windows(2).all(|w| w[0][field] == w[1][field]);
    let mut obstacle = Error::unavailable(
        "writes go on, so that no two replicas are at the same log position: stop them and try again",
    );
    let (mut in_part, mut tries_in_part) = (None, 0);
    for attempt in 0..TRIES {
        if attempt > 0 {
            std::thread::sleep(BETWEEN_TRIES);
        }
        progress.say("reading every record at every replica");
        let before = ask_all(addresses, "FILES")?;
        if !same(&before, "log_end") {
            continue;
        }
        let answers = answers(addresses, "DIGEST");
        let after = ask_all(addresses, "FILES")?;
        if !same(&after, "log_end") || before[0]["log_end"] != after[0]["log_end"] {
            continue;
        }
        let mut digests: Vec<Records> = Vec::new();
        let (too_old, answers): (Vec<_>, Vec<_>) = answers.into_iter().partition(is_too_old);
        if let Some(Err(error)) = too_old.into_iter().next() {
            // Compactions go on after the last write; in the end there is nothing left for them.
            obstacle = error;
            continue;
        }
        for answer in answers {
            digests.push(match answer {
                Ok(value) => Some((
                    value["records"].as_u64().unwrap_or(0),
                    value["crc"].as_str().unwrap_or("").to_owned(),
                )),
                // A damaged file is read here too; the scrub named it, and it may soon be whole.
                Err(_) => None,
            });
        }
        tries_in_part += 1;
        if digests.iter().all(Option::is_some) || tries_in_part == TRIES_IN_PART {
            return Ok((after, digests));
        }
        in_part = Some((after, digests));
    }
    in_part.ok_or(obstacle)
}

/// Whether a replica ended the reading of its records, as compactions replaced what was read for too long.
fn is_too_old(answer: &Result<Value>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::SnapshotTooOld)
}

fn answers(addresses: &[(u32, SocketAddr)], question: &'static str) -> Vec<Result<Value>> {
    let ask = |at: SocketAddr| Client::connect_living(at, STATUS_TIMEOUT)?.ask(question);
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            addresses.iter().map(|(_, address)| scope.spawn(move || ask(*address))).collect();
        threads
            .into_iter()
            .map(|thread| {
                thread.join().unwrap_or_else(|_| Err(Error::io("a thread of verify panicked")))
            })
            .collect()
    })
}

fn ask_all(addresses: &[(u32, SocketAddr)], question: &'static str) -> Result<Vec<Value>> {
    let answers = answers(addresses, question);
    answers
        .into_iter()
        .zip(addresses)
        .map(|(answer, (number, _))| answer.map_err(|e| e.within(format!("replica {number}"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::tests::{ANSWERING, ENDING, HANGING, Stand};

    #[test]
    fn a_replica_that_accepts_and_never_answers_is_named() {
        let stands = [Stand::new(ANSWERING), Stand::new(HANGING)];
        let error = ask_all(&[(1, stands[0].address), (2, stands[1].address)], "STATUS");
        let error = error.unwrap_err().to_string();
        let expected = format!("replica 2: {} does not answer", stands[1].address);
        assert!(error.contains(&expected), "{error}");
    }

    #[test]
    fn records_whose_reading_was_ended_as_too_old_are_read_again() {
        let stand = Stand::new(ENDING);
        let addresses = [(1, stand.address)];
        let (files, records) = at_one_position(&addresses, &mut Progress::new(false)).unwrap();
        assert_eq!(files[0]["log_end"], 7);
        assert_eq!(records, [Some((3, "ab".to_owned()))]);
    }
}
