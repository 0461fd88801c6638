//! `gabion db open`: a store to read and write by hand, one command or a prompt.

use super::out::{Out, Told, quoted};
use super::records::{tell_pair, tell_size, tell_value};
use super::{compact, copy, memory};
use crate::lines::Lines;
use crate::options::{CodecOptions, DbPlace};
use crate::repl::split;
use crate::screen::put;
use crate::units::size;
use gabion_base::number::{parse_i64, parse_u64};
use gabion_base::{Error, Result};
use gabion_bench::grouped;
use gabion_db::{Cursor, Db, DbStats, Expiry};
use gabion_server::memory_json;
use serde_json::{Map, Value, json};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Each command as it is typed, and its effect.
const COMMANDS: [(&str, &str); 18] = [
    ("get KEY", "the value"),
    (
        "put KEY VALUE [SECONDS]",
        "sets it, for so many seconds or for good; the log's ring has it when OK is said",
    ),
    ("add KEY NUMBER", "adds to a counter, without reading it; what is not there counts as 0"),
    ("del KEY", "deletes it, whether it is there or not"),
    ("delrange FROM TO", "deletes all keys from FROM on, TO left out, by one entry"),
    ("scan [FROM [TO [LIMIT]]]", "pairs in the order of the keys, TO left out"),
    (
        "rscan [FROM [TO [LIMIT]]]",
        "the same pairs from the last to the first; LIMIT: the last ones",
    ),
    ("prefix PREFIX [LIMIT]", "pairs whose keys begin so"),
    ("rprefix PREFIX [LIMIT]", "the same pairs from the last to the first"),
    ("size [FROM [TO]]", "about how much the pairs of a range take, without reading them"),
    ("stats", "levels, space, memory, what was done since it was opened"),
    ("flush", "writes what is in memory to a file"),
    ("sync", "flushes the log to the device"),
    ("compact [FROM [TO]]", "all levels into one, without what was deleted or replaced"),
    ("checkpoint DIR", "a copy of the store in a new directory"),
    ("help", "this"),
    ("quit", "ends the prompt; the end of the input does too"),
    ("exit", "the same"),
];

/// The syntax of a word.
const WORDS: &str = "Words are separated by blanks; \"a b\\x00\" is one word. An empty word (\"\") as TO is the end.";

pub(super) fn run(place: &DbPlace, codecs: &CodecOptions, words: &[OsString]) -> Result<u8> {
    let (db, dir) = super::open_store(place, codecs, "to write to")?;
    if !words.is_empty() {
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        return carry_out(&db, &words, place.json);
    }
    prompt(&db, &dir, place.json)
}

fn prompt(db: &Db, dir: &Path, json: bool) -> Result<u8> {
    let mut lines = Lines::new()?;
    let is_typed = lines.are_typed();
    if is_typed {
        put(&format!("{}; `help` lists the commands\n", compact::state(&name(dir), &db.stats())));
    }
    let mut worst = 0;
    // Somebody who types has seen the errors.
    let code = |worst| if is_typed { 0 } else { worst };
    while let Some(line) = lines.next("gabion> ")? {
        let words = split(&line).map_err(Error::invalid);
        let ended = match &words {
            Ok(words) if words.is_empty() => continue,
            Ok(words) if is(&words[0], "quit") || is(&words[0], "exit") => {
                return Ok(code(worst));
            }
            Ok(words) => carry_out(db, words, json),
            Err(error) => Err(error.clone()),
        };
        match ended {
            Ok(code) => worst = worst.max(code),
            Err(error) => {
                eprintln!("gabion: {error}");
                worst = 2;
            }
        }
    }
    Ok(code(worst))
}

fn name(dir: &Path) -> String {
    format!("{}:", dir.display())
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

fn carry_out(db: &Db, words: &[Vec<u8>], json: bool) -> Result<u8> {
    let mut out = Out::new(io::stdout(), json);
    let told = one(db, words, &mut out);
    out.end(told)
}

fn one(db: &Db, words: &[Vec<u8>], out: &mut Out) -> Told {
    let words: Vec<&[u8]> = words.iter().map(|word| &word[..]).collect();
    let command = words[0].to_ascii_lowercase();
    match (&command[..], &words[1..]) {
        (b"get", [key]) => tell_value(key, db.look_up(key)?.as_ref(), out),
        (b"put" | b"set", [key, value]) => done(db.put(key, value), out),
        (b"put" | b"set", [key, value, seconds]) => {
            done(db.put_expiring(key, value, lifetime(seconds)?), out)
        }
        (b"add", [key, number]) => done(db.add(key, delta(number)?), out),
        (b"del" | b"delete", [key]) => done(db.delete(key), out),
        (b"delrange", [from, to]) => {
            let to = if to.is_empty() { Bound::Unbounded } else { Bound::Excluded(*to) };
            done(db.delete_range((Bound::Included(*from), to)), out)
        }
        (b"scan" | b"rscan", bounds @ ([] | [_] | [_, _] | [_, _, _])) => {
            scan(db.cursor(range(bounds)), way(&command), limit(bounds.get(2))?, out)
        }
        (b"prefix" | b"rprefix", [prefix, max @ ..]) if max.len() < 2 => {
            scan(db.prefix_cursor(prefix), way(&command), limit(max.first())?, out)
        }
        (b"size", bounds @ ([] | [_] | [_, _])) => {
            tell_size(&db.approximate_size(range(bounds))?, out)
        }
        (b"stats", []) => stats(db, out),
        (b"flush", []) => done(db.flush(), out),
        (b"sync", []) => done(db.sync(), out),
        (b"compact", bounds @ ([] | [_] | [_, _])) => {
            let from = bounds.first().copied().unwrap_or_default();
            compact::compact(db, from, end(bounds), out)
        }
        (b"checkpoint", [dir]) => copy::of_open(db, Path::new(OsStr::from_bytes(dir)), out),
        (b"help", []) => help(out),
        // Here without a prompt, so there is nothing to end.
        (b"quit" | b"exit", []) => Ok(()),
        (_, given) => Err(Error::invalid(format!(
            "{} with {} words: there is no such command; `help` lists them",
            quoted(words[0]),
            given.len()
        ))
        .into()),
    }
}

fn help(out: &mut Out) -> Told {
    if out.json {
        let command = |&(command, does)| json!({ "command": command, "does": does });
        let commands: Vec<Value> = COMMANDS.iter().map(command).collect();
        return out.document(&json!({ "commands": commands, "words": WORDS }));
    }
    for (command, does) in COMMANDS {
        out.text(&format!("{command:<26} {does}\n"))?;
    }
    out.text(&format!("{WORDS}\n"))
}

fn done(result: Result<()>, out: &mut Out) -> Told {
    result?;
    if out.json { out.document(&json!({ "ok": true })) } else { out.text("OK\n") }
}

/// The second of two bounds; an empty one is the end.
fn end<'a>(bounds: &[&'a [u8]]) -> Option<&'a [u8]> {
    bounds.get(1).copied().filter(|to| !to.is_empty())
}

/// The keys from the first of two bounds to before the second.
fn range<'a>(bounds: &[&'a [u8]]) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    let from = bounds.first().copied().unwrap_or_default();
    (Bound::Included(from), end(bounds).map_or(Bound::Unbounded, Bound::Excluded))
}

/// The number for `add`.
fn delta(word: &[u8]) -> Result<i64> {
    parse_i64(word).ok_or_else(|| {
        Error::invalid(format!(
            "NUMBER is {}, which is no decimal number from {} to {}",
            quoted(word),
            i64::MIN,
            i64::MAX
        ))
    })
}

/// The life of a key for `put`.
fn lifetime(word: &[u8]) -> Result<Expiry> {
    let seconds = parse_u64(word).filter(|seconds| *seconds > 0).ok_or_else(|| {
        Error::invalid(format!("SECONDS is {}, which is no whole number from 1 on", quoted(word)))
    })?;
    Ok(Expiry::In(Duration::from_secs(seconds)))
}

/// The limit of printed pairs.
fn limit(word: Option<&&[u8]>) -> Result<u64> {
    word.map_or(Ok(u64::MAX), |word| {
        parse_u64(word)
            .ok_or_else(|| Error::invalid(format!("LIMIT is {}, which is no number", quoted(word))))
    })
}

/// The direction of a scan.
#[derive(Clone, Copy)]
enum Way {
    Forwards,
    Backwards,
}

/// The direction of a scan of this name.
fn way(command: &[u8]) -> Way {
    if command.starts_with(b"r") { Way::Backwards } else { Way::Forwards }
}

fn scan(mut pairs: Cursor, way: Way, limit: u64, out: &mut Out) -> Told {
    for number in 0..limit {
        match (way, number) {
            (Way::Forwards, _) => pairs.next()?,
            (Way::Backwards, 0) => pairs.seek_to_last()?,
            (Way::Backwards, _) => pairs.prev()?,
        };
        let Some((key, value)) = pairs.pair() else { break };
        tell_pair(key, value, pairs.expires_at(), out)?;
    }
    Ok(())
}

fn stats(db: &Db, out: &mut Out) -> Told {
    let stats = db.stats();
    let slots = slots(&stats);
    let held = json!({ "moments": stats.held.moments, "oldest_ms": stats.held.oldest_ms });
    if out.json {
        return out.document(&json!({
            "levels": compact::levels(&stats), "compaction_debt_bytes": stats.compaction_debt, "slot_bytes": stats.slot_bytes,
            "slots": slots, "held": held, "counters": counters(&stats),
            "memtable_bytes": stats.memtable_bytes, "memory": memory_json(&stats.memory), "damaged_files": stats.damaged_files,
            "failure": db.failure().map(|error| error.to_string()),
        }));
    }
    out.text(&format!(
        "{}\nin memory {}, on the device {}, to be compacted {}\n",
        compact::state("in files", &stats),
        size(stats.memtable_bytes),
        size(stats.slot_bytes),
        size(stats.compaction_debt)
    ))?;
    out.text(&line("slots", &slots))?;
    out.text(&line("held", &held))?;
    out.text(&memory::text(&memory_json(&stats.memory)))?;
    out.text("since the store was opened\n")?;
    for (name, value) in counters(&stats).as_object().into_iter().flatten() {
        let told = match value.as_object() {
            Some(parts) => parts_text(parts),
            None => counted(name, value.as_u64().unwrap_or_default()),
        };
        out.text(&format!("  {:<24} {told:>12}\n", name.replace('_', " ")))?;
    }
    if stats.damaged_files > 0 {
        out.text(&format!("damaged files {}\n", stats.damaged_files))?;
    }
    Ok(())
}

fn counted(name: &str, value: u64) -> String {
    if name.ends_with("_bytes") { size(value) } else { grouped(value) }
}

/// The parts of a counter: `flush 20, ring 3`. Parts that are 0 are left out.
fn parts_text(parts: &Map<String, Value>) -> String {
    let parts = parts.iter().filter(|(_, part)| part.as_u64() != Some(0));
    let parts: Vec<_> = parts.map(|(name, part)| format!("{name} {part}")).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

/// One line: `slots free 60, live 2`.
fn line(what: &str, fields: &Value) -> String {
    let fields = fields.as_object().into_iter().flatten();
    let fields: Vec<_> =
        fields.map(|(name, value)| format!("{} {value}", name.replace('_', " "))).collect();
    format!("{what} {}\n", fields.join(", "))
}

/// Slots by state. None are granted here.
fn slots(stats: &DbStats) -> Value {
    let slots = stats.slots;
    json!({
        "total": slots.total, "free": slots.free, "live": slots.live, "allocated": slots.allocated,
        "retired": slots.retired, "quarantined": slots.quarantined,
    })
}

/// The store's counters, under the names of `GABION STATUS`.
fn counters(stats: &DbStats) -> Value {
    let (counters, warmed) = (&stats.counters, &stats.warmed);
    let stopped = counters.writes_stopped_ms;
    let stopped_by: Map<_, _> =
        stopped.each().map(|(what, ms)| (what.to_owned(), ms.into())).collect();
    json!({
        "flushes": counters.flushes, "compactions": counters.compactions,
        "trivial_moves": counters.trivial_moves, "loads": counters.loads, "edits": counters.edits,
        "loaded_bytes": counters.loaded_bytes,
        "compaction_read_bytes": counters.job_read_bytes,
        "job_written_bytes": counters.job_written_bytes,
        "flushed_bytes": counters.flushed_bytes,
        "logged_bytes": counters.logged_bytes,
        "log_written_bytes": counters.log_written_bytes,
        "writes_slowed_ms": counters.writes_slowed_ms,
        "writes_stopped_ms": stopped.total(),
        "writes_stopped_ms_by": stopped_by,
        "jobs_without_space": counters.jobs_without_space,
        "refused_slots": counters.refused_slots,
        "jobs_set_aside": counters.jobs_set_aside,
        "client_read_bytes": stats.read_bytes,
        "block_cache_hits": stats.cache_hits, "block_cache_misses": stats.cache_misses,
        "block_cache_evictions": stats.cache_evictions,
        "warmed_blocks": warmed.blocks, "warmed_bytes": warmed.bytes,
        "warmings_given_up": warmed.given_up,
    })
}
