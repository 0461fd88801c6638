//! `gabion verify`: every record at every replica, and every live file by its bytes.
//!
//! ```text
//!   each replica ─► log end, files as the edits name them, scrub of their bytes, digest of records
//!                                             │
//!                  compare ◄──────────────────┘  at one log position and one edit
//! ```
//!
//! A file's bytes are compared through its checksums: each replica's bytes with the checksum in the
//! edit (scrub), and that checksum between replicas (files). Online the replicas check themselves;
//! offline this process opens the pools.

mod offline;
mod online;

use crate::machines;
use crate::options::VerifyOptions;
use crate::screen::{Progress, put};
use crate::units::{count, size};
use gabion_base::{Frontier, Result};
use gabion_bench::grouped;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;

pub(crate) fn run(options: &VerifyOptions) -> Result<u8> {
    options.door.take(&options.place)?;
    let Some(groups) = machines::groups(&options.place)? else {
        let (code, json, text) = verify(options)?;
        put(&if options.json { format!("{json:#}\n") } else { text });
        return Ok(code);
    };
    let (mut codes, mut each) = (Vec::new(), Vec::new());
    for (number, place) in (1..).zip(groups.each) {
        // A group that cannot be looked at hides no difference of another.
        let verified = verify(&VerifyOptions { place, ..options.clone() });
        let (code, json, text) = verified.unwrap_or_else(|error| {
            let text = format!("not verified: {error}\n");
            (2, json!({ "error": error.to_string() }), text)
        });
        codes.push(code);
        each.push(json);
        if !options.json {
            put(&format!("group {number}: {text}"));
        }
    }
    if options.json {
        put(&format!("{:#}\n", json!({ "groups": each })));
    }
    // A difference counts more than what could not be compared.
    Ok(if codes.contains(&1) { 1 } else { codes.into_iter().max().unwrap_or(0) })
}

/// Verifies one group. Returns the exit code, and what there is to say for programs and people.
fn verify(options: &VerifyOptions) -> Result<(u8, Value, String)> {
    let mut progress = Progress::new();
    let found = if options.offline {
        offline::look(options, &mut progress)?
    } else {
        online::look(options, &mut progress)?
    };
    progress.clear();
    let verdict = compare(&found);
    let (json, text) = (to_json(&found, &verdict), to_text(&found, &verdict));
    let code = match verdict {
        Verdict { differences, .. } if !differences.is_empty() => 1,
        Verdict { not_compared: Some(_), .. } => 2,
        Verdict { .. } => 0,
    };
    Ok((code, json, text))
}

/// A file as a replica's edits name it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LiveFile {
    level: u64,
    number: u64,
    len: u64,
    checksum: String,
}

/// Bytes of a replica that differ from the expected ones.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Damage {
    file: Option<u64>,
    offset: Option<u64>,
    message: String,
}

/// The content of one replica.
#[derive(Clone, Debug, Default)]
struct Found {
    replica: u32,
    log_end: Frontier,
    /// The checksum of the record that ends there, which stands for all before it. Unset offline,
    /// where logs may end at different places.
    log_crc: Option<String>,
    edit: u64,
    files: Vec<LiveFile>,
    /// Numbers of the files whose bytes were read and compared with their edits.
    files_read: BTreeSet<u64>,
    bytes_read: u64,
    damage: Vec<Damage>,
    /// Number and checksum of all records; nothing if they could not be read.
    records: Option<(u64, String)>,
    /// Whether each replica has its own files (compaction at every replica).
    has_own_files: bool,
}

impl Found {
    /// How many of the files were not read, because compactions replaced them during writes.
    fn files_not_read(&self) -> u64 {
        let is_read = |file: &&LiveFile| !self.files_read.contains(&file.number);
        self.files.iter().filter(is_read).count() as u64
    }
}

/// The result of the comparison.
#[derive(Debug, Default)]
struct Verdict {
    /// The replica and its damage.
    differences: Vec<(u32, Damage)>,
    /// The parts that were not compared, and why.
    not_compared: Option<String>,
}

fn compare(found: &[Found]) -> Verdict {
    let mut verdict = Verdict::default();
    for replica in found {
        let damage = replica.damage.iter().map(|damage| (replica.replica, damage.clone()));
        verdict.differences.extend(damage);
        if replica.records.is_none() && replica.damage.is_empty() {
            // Unread records were not compared: never a success.
            let message = "its records could not be read, though no file is damaged".to_owned();
            let damage = Damage { file: None, offset: None, message };
            verdict.differences.push((replica.replica, damage));
        }
    }
    let Some((first, others)) = found.split_first() else { return verdict };
    for other in others {
        if first.log_end == other.log_end && first.log_crc != other.log_crc {
            verdict.differences.push((other.replica, other_log(first, other)));
        }
        if !first.has_own_files && first.edit == other.edit {
            compare_files(first, other, &mut verdict.differences);
        }
        compare_records(first, other, &mut verdict);
    }
    verdict
}

fn other_log(first: &Found, other: &Found) -> Damage {
    let crc = |found: &Found| found.log_crc.clone().unwrap_or_default();
    let message = format!(
        "the record that ends at log position {} has checksum {}; replica {} has {}",
        place(&other.log_end),
        crc(other),
        first.replica,
        crc(first)
    );
    Damage { file: None, offset: None, message }
}

/// The primary decides the files; a deviation counts against the other.
fn compare_files(first: &Found, other: &Found, differences: &mut Vec<(u32, Damage)>) {
    let find =
        |files: &[LiveFile], number: u64| files.iter().find(|file| file.number == number).cloned();
    for file in &first.files {
        let message = match find(&other.files, file.number) {
            None => format!("is missing; replica {} has it", first.replica),
            Some(theirs) if theirs != *file => format!(
                "level {}, {} bytes, checksum {}; at replica {}: level {}, {} bytes, checksum {}",
                theirs.level,
                theirs.len,
                theirs.checksum,
                first.replica,
                file.level,
                file.len,
                file.checksum
            ),
            Some(_) => continue,
        };
        let damage = Damage { file: Some(file.number), offset: None, message };
        differences.push((other.replica, damage));
    }
    for file in other.files.iter().filter(|file| find(&first.files, file.number).is_none()) {
        let message = format!("is there; replica {} does not have it", first.replica);
        let damage = Damage { file: Some(file.number), offset: None, message };
        differences.push((other.replica, damage));
    }
}

fn compare_records(first: &Found, other: &Found, verdict: &mut Verdict) {
    // The records of a damaged file cannot be read; the damage is named already.
    let (Some((count, crc)), Some((their_count, their_crc))) = (&first.records, &other.records)
    else {
        return;
    };
    if first.log_end != other.log_end || (!first.has_own_files && first.edit != other.edit) {
        // If each replica has its own files, only their checksums in its own edits count.
        let has_compared_files = first.has_own_files || first.edit == other.edit;
        let what =
            if has_compared_files { "records were not" } else { "records and files were not" };
        verdict.not_compared.get_or_insert(format!(
            "{what} compared: replica {} is at log position {} and edit {}, replica {} at {} and {}",
            first.replica,
            place(&first.log_end),
            first.edit,
            other.replica,
            place(&other.log_end),
            other.edit
        ));
        return;
    }
    if (count, crc) == (their_count, their_crc) {
        return;
    }
    let message = format!(
        "{} with digest {their_crc}; replica {} has {} with digest {crc}",
        crate::units::count(*their_count, "record"),
        first.replica,
        grouped(*count)
    );
    verdict.differences.push((other.replica, Damage { file: None, offset: None, message }));
}

/// A frontier as replicas report it: a number, as groups have one shard.
const fn place(frontier: &Frontier) -> u64 {
    frontier.only().get()
}

/// `000012.sst`, the common notation.
fn file_name(number: u64) -> String {
    gabion_base::FileId::sst(number).to_string()
}

fn to_text(found: &[Found], verdict: &Verdict) -> String {
    let mut out = String::new();
    for replica in found {
        let records = match &replica.records {
            Some((n, crc)) => format!("{}, digest {crc}", count(*n, "record")),
            None => "records not read".to_owned(),
        };
        let _ = writeln!(
            out,
            "replica {}: log position {}, edit {}; {records}; {}, {} read{}",
            replica.replica,
            place(&replica.log_end),
            replica.edit,
            count(replica.files.len() as u64, "file"),
            size(replica.bytes_read),
            what_was_not_read(replica)
        );
    }
    for (replica, damage) in &verdict.differences {
        let _ = writeln!(out, "DIFFERENCE {}", describe(*replica, damage));
    }
    if let Some(reason) = &verdict.not_compared {
        let _ = writeln!(out, "{reason}");
    }
    if !verdict.differences.is_empty() {
        let _ = writeln!(out, "{}", count(verdict.differences.len() as u64, "difference"));
    } else if verdict.not_compared.is_none() {
        let _ = writeln!(out, "verified: {}", what_is_same(found));
    }
    out
}

/// The files that compactions replaced before their turn to be read.
fn what_was_not_read(replica: &Found) -> String {
    match replica.files_not_read() {
        0 => String::new(),
        n => format!(" ({} were replaced before their turn)", grouped(n)),
    }
}

fn what_is_same(found: &[Found]) -> String {
    let records = found.first().and_then(|first| first.records.as_ref()).map_or(0, |(n, _)| *n);
    let files = match found.first() {
        Some(first) if !first.has_own_files => {
            let unread = found.iter().map(Found::files_not_read).max().unwrap_or(0);
            let how = match unread {
                0 => "byte for byte".to_owned(),
                n => format!("byte for byte but for {} that were replaced meanwhile", grouped(n)),
            };
            format!("the same {}, {how}", count(first.files.len() as u64, "file"))
        }
        _ => "files that are each as they were written".to_owned(),
    };
    let replicas = count(found.len() as u64, "replica");
    format!("{replicas}: the same {} and {files}", count(records, "record"))
}

fn describe(replica: u32, damage: &Damage) -> String {
    let mut text = format!("replica {replica}");
    if let Some(file) = damage.file {
        text.push_str(&format!(", file {}", file_name(file)));
    }
    if let Some(offset) = damage.offset {
        text.push_str(&format!(", offset {offset}"));
    }
    format!("{text}: {}", damage.message)
}

fn to_json(found: &[Found], verdict: &Verdict) -> Value {
    let replicas: Vec<Value> = found
        .iter()
        .map(|replica| {
            json!({
                "replica": replica.replica,
                "log_end": place(&replica.log_end),
                "edit": replica.edit,
                "files": replica.files.len(),
                "files_not_read": replica.files_not_read(),
                "bytes_read": replica.bytes_read,
                "records": replica.records.as_ref().map(|(count, _)| count),
                "digest": replica.records.as_ref().map(|(_, crc)| crc),
            })
        })
        .collect();
    let differences: Vec<Value> = verdict
        .differences
        .iter()
        .map(|(replica, damage)| {
            json!({
                "replica": replica,
                "file": damage.file.map(file_name),
                "offset": damage.offset,
                "message": damage.message,
            })
        })
        .collect();
    json!({
        "verified": verdict.differences.is_empty() && verdict.not_compared.is_none(),
        "replicas": replicas,
        "differences": differences,
        "not_compared": verdict.not_compared,
    })
}

#[cfg(test)]
mod tests;
