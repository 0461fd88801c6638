//! `gabion db stats`: the content of a pool, as far as it can be read.

use super::edits::told_codec;
use super::log::log_fields;
use super::memory;
use super::out::{Out, Told, engine_key, quoted};
use super::pool::superblock_fields;
use crate::at_rest::AtRest;
use crate::units::{count, size};
use gabion_base::units::SLOT_LEN;
use gabion_base::{Error, FileKind, Result};
use gabion_bench::grouped;
use gabion_db::RunOptions;
use gabion_engine::{Edit, FileMeta, JobKind, Tree};
use gabion_host::memory::{Budgets, Memory};
use gabion_media::BufferMeter;
use gabion_node::open::OpenedPool;
use gabion_node::{Node, NodeOptions, opaque};
use gabion_pool::inspect;
use gabion_server::memory_json;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

pub(super) fn show(pool: &AtRest, out: &mut Out) -> Told {
    let mut stats = Map::new();
    let mut damage = Vec::new();
    if let Err(error) = collect(pool, &mut stats, &mut damage) {
        damage.push(error);
    }
    stats.insert("damage".into(), damage.iter().map(ToString::to_string).collect());
    let stats = Value::Object(stats);
    if out.json {
        damage.iter().for_each(|_| out.count_damage());
        return out.document(&stats);
    }
    out.text(&to_text(&stats))?;
    damage.iter().try_for_each(|error| out.damaged(0, error))
}

/// Collects one part after the other, each of which needs those before it. The parts before an
/// error count.
fn collect(pool: &AtRest, stats: &mut Map<String, Value>, damage: &mut Vec<Error>) -> Result<()> {
    let superblock = pool.wait(inspect::superblock(pool.medium()))?;
    stats.insert("pool".into(), superblock_fields(&superblock));
    let read = pool.wait(gabion_pool::read(pool.medium()))?;
    for (offset, len) in read.bad_copies {
        damage.push(Error::corruption(format!("bad copy of {len} bytes at byte {offset}")));
    }
    let counts = read.recovered.pool.counts();
    let slots = json!({
        "total": counts.total, "free": counts.free, "live": counts.live,
        "granted": counts.granted, "allocated": counts.allocated, "retired": counts.retired,
        "quarantined": counts.quarantined,
    });
    stats.insert("slots".into(), slots);
    let written = written(&read.recovered.opaque);
    let opened = pool.pool()?;
    stats.insert("replica".into(), replica_fields(&opened));
    stats.insert("levels".into(), levels(opened.tree()));
    if let Some(referenced) = referenced(opened.tree()) {
        stats.insert("referenced".into(), referenced);
    }
    stats.insert("compaction_debt_bytes".into(), json!(opened.tree().compaction_debt()));
    stats.insert("amplification".into(), amplification(&opened, &written));
    let (state, flushed) = (opened.state.clone(), opened.tree().flushed());
    stats.insert("log".into(), log_fields(&state, flushed, None));
    let ring = pool.ring(&opened)?;
    let (node, report) = pool.wait(opened.open_node(ring, NodeOptions::default(), 0))?;
    stats.insert("log".into(), log_fields(&state, flushed, Some(&report)));
    stats.insert("memtables".into(), memtables(&node));
    stats.insert("memory".into(), memory_json(&memory_of(&node)));
    Ok(())
}

fn replica_fields(opened: &OpenedPool) -> Value {
    let (group, state) = (&opened.group, &opened.state);
    json!({
        "replica": state.me.get(), "group": group.group.get(),
        "members": state.view.members.iter().map(|member| member.replica.get()).collect::<Vec<_>>(),
        "compaction": group.compaction.as_str(), "ack": group.ack.as_str(),
        "term": state.term().get(), "config": state.view.config.get(), "session": state.session,
        "last_edit": opened.tree().last_edit(),
        "flushed_memtable": opened.tree().flushed().memtable.get(),
    })
}

fn levels(tree: &Tree) -> Value {
    let version = tree.version();
    let one = |level: u8| {
        let files = version.level(level);
        let sum = |of: fn(&FileMeta) -> u64| files.iter().map(|file| of(file)).sum::<u64>();
        json!({
            "level": level, "files": files.len(), "bytes": sum(FileMeta::rounded_len),
            "entries": sum(|file| file.entries), "deletes": sum(|file| file.deletes),
            "range_deletes": sum(|file| file.ranges.as_ref().map_or(0, |ranges| ranges.fragments)),
            "raw_bytes": sum(|file| file.raw_key_bytes + file.raw_value_bytes),
            "smallest": files.iter().map(|file| &file.smallest).min().map(|key| engine_key(key)),
            "largest": files.iter().map(|file| &file.largest).max().map(|key| engine_key(key)),
            "codecs": codecs(files),
        })
    };
    (0..version.level_count()).map(one).collect()
}

/// Values files and log segments that SSTs reference, if there are any.
fn referenced(tree: &Tree) -> Option<Value> {
    let referenced = tree.version().referenced();
    let live: u64 = referenced.values().sum();
    let dead = tree.version().values_stats().dead_bytes();
    (!referenced.is_empty())
        .then(|| json!({ "files": referenced.len(), "live_bytes": live, "dead_bytes": dead }))
}

/// How many files have each codec; files that do not name one are left out.
fn codecs(files: &[Arc<FileMeta>]) -> Value {
    let mut codecs: BTreeMap<String, u64> = BTreeMap::new();
    for codec in files.iter().filter_map(|file| told_codec(file)) {
        *codecs.entry(codec.to_string()).or_default() += 1;
    }
    json!(codecs)
}

/// Bytes of files that the edits since the last checkpoint added.
#[derive(Default)]
struct Written {
    edits: u64,
    flushed: u64,
    compacted: u64,
    loaded: u64,
}

fn written(entries: &[(u16, Vec<u8>)]) -> Written {
    let mut written = Written::default();
    let edits = entries.iter().filter(|(kind, _)| *kind == opaque::EDIT);
    for edit in edits.filter_map(|(_, bytes)| Edit::decode(bytes).ok()) {
        let len: u64 = edit.made().map(FileMeta::rounded_len).sum();
        written.edits += 1;
        match edit.kind {
            JobKind::Flush => written.flushed += len,
            JobKind::Compaction => written.compacted += len,
            JobKind::Load => written.loaded += len,
            JobKind::TrivialMove | JobKind::Drop => {}
        }
    }
    written
}

/// Space over all files; writing over the edits that are still in the placement log.
fn amplification(opened: &OpenedPool, written: &Written) -> Value {
    let version = opened.tree().version();
    let raw: u64 = version.files().map(|(_, file)| file.raw_key_bytes + file.raw_value_bytes).sum();
    let raw = raw + version.values_stats().live_bytes;
    let files = opened.pool().files().filter(|file| file.file.kind != FileKind::LogSegment);
    let slots: u64 = files.map(|file| file.slots.len() as u64).sum();
    let deepest = (0..version.level_count()).rev().map(|level| version.level(level));
    let deepest = deepest.into_iter().find(|files| !files.is_empty()).unwrap_or_default();
    let last: u64 = deepest.iter().map(|file| file.raw_key_bytes + file.raw_value_bytes).sum();
    let ratio = |a: u64, b: u64| (b > 0).then(|| (a as f64 / b as f64 * 100.0).round() / 100.0);
    json!({
        "slot_bytes": slots * SLOT_LEN, "raw_bytes": raw, "deepest_level_raw_bytes": last,
        "space": ratio(slots * SLOT_LEN, raw), "versions": ratio(raw, last),
        "edits": written.edits, "flushed_bytes": written.flushed,
        "compacted_bytes": written.compacted, "loaded_bytes": written.loaded,
        "write": ratio(
            written.flushed + written.compacted + written.loaded,
            written.flushed + written.loaded,
        ),
    })
}

fn memtables(node: &Node) -> Value {
    let tree = node.tree();
    json!({
        "active": tree.active_id().get(), "active_bytes": tree.active_len(),
        "sealed": tree.sealed_count(), "last_sequence": tree.last_sequence().get(),
        "floor": tree.floor().get(), "edits_waiting": node.edits_waiting(),
    })
}

/// The memory of a start, and of all files once they are open.
fn memory_of(node: &Node) -> Memory {
    let run = RunOptions::default();
    let indexes = memory::indexes_len(node.tree().version(), &node.config().tree);
    let budgets = Budgets {
        block_cache: (0, run.block_cache_len),
        open_files: ((indexes as usize).min(run.open_files_len), run.open_files_len),
    };
    Memory::of(node, &BufferMeter::default(), budgets)
}

/// The text form of a part of the statistics.
type Text = fn(&Value) -> String;

fn to_text(stats: &Value) -> String {
    let mut out = String::new();
    let parts: [(&str, Text); 10] = [
        ("pool", pool_text),
        ("slots", slots_text),
        ("replica", replica_text),
        ("levels", levels_text),
        ("referenced", referenced_text),
        ("compaction_debt_bytes", debt_text),
        ("amplification", amplification_text),
        ("log", log_text),
        ("memtables", memtables_text),
        ("memory", memory::text),
    ];
    for (name, text) in parts {
        if !stats[name].is_null() {
            out.push_str(&text(&stats[name]));
        }
    }
    out
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn pool_text(pool: &Value) -> String {
    format!(
        "pool      {}, format {}, revision {}, {}\n          features: compatible {:#x}, \
         read-only {:#x}, incompatible {:#x}\n",
        text(&pool["pool"]),
        pool["version"],
        pool["revision"],
        size(number(&pool["len"])),
        number(&pool["compatible"]),
        number(&pool["ro_compatible"]),
        number(&pool["incompatible"])
    )
}

fn slots_text(slots: &Value) -> String {
    let mut line =
        format!("slots     {} of {}", count(number(&slots["total"]), "slot"), size(SLOT_LEN));
    for state in ["free", "live", "granted", "allocated", "retired", "quarantined"] {
        if number(&slots[state]) > 0 {
            let _ = write!(line, ", {} {state}", grouped(number(&slots[state])));
        }
    }
    line + "\n"
}

fn replica_text(replica: &Value) -> String {
    let members: Vec<String> =
        replica["members"].as_array().into_iter().flatten().map(ToString::to_string).collect();
    format!(
        "replica   {} of {} (group {}), compaction {}, ack {}\n          term {}, session {}, edit \
         {}\n",
        replica["replica"],
        members.join("-"),
        replica["group"],
        text(&replica["compaction"]),
        text(&replica["ack"]),
        replica["term"],
        replica["session"],
        replica["last_edit"]
    )
}

fn referenced_text(referenced: &Value) -> String {
    format!(
        "values    {} referenced, {} live, {} dead\n",
        count(number(&referenced["files"]), "file"),
        size(number(&referenced["live_bytes"])),
        size(number(&referenced["dead_bytes"]))
    )
}

fn levels_text(levels: &Value) -> String {
    let mut out = "level files      bytes      entries    deletes  keys\n".to_owned();
    let mut any = false;
    for level in levels.as_array().into_iter().flatten().filter(|it| number(&it["files"]) > 0) {
        any = true;
        let _ = writeln!(
            out,
            "{:>5} {:>5} {:>10} {:>12} {:>10}  {} to {}",
            format!("L{}", level["level"]),
            number(&level["files"]),
            size(number(&level["bytes"])),
            grouped(number(&level["entries"])),
            grouped(number(&level["deletes"])),
            key_text(&level["smallest"]),
            key_text(&level["largest"])
        );
        let ranges = number(&level["range_deletes"]);
        if ranges > 0 {
            let _ = writeln!(out, "          and {}", count(ranges, "range delete"));
        }
        let codecs = level["codecs"].as_object().into_iter().flatten();
        let codecs: Vec<_> = codecs
            .map(|(codec, files)| format!("{} {codec}", count(number(files), "file")))
            .collect();
        if !codecs.is_empty() {
            let _ = writeln!(out, "          {}", codecs.join(", "));
        }
    }
    if any { out } else { "levels    no files\n".to_owned() }
}

/// A key, cut where it would fill the line.
fn key_text(key: &Value) -> String {
    const LEN_MAX: usize = 24;
    let text = match key {
        Value::String(text) => quoted(text.as_bytes()),
        other => other.to_string(),
    };
    if text.len() <= LEN_MAX { text } else { text.chars().take(LEN_MAX).chain(['…']).collect() }
}

fn ratio(value: &Value) -> String {
    value.as_f64().map_or_else(|| "unknown".to_owned(), |ratio| format!("{ratio:.2}"))
}

fn debt_text(debt: &Value) -> String {
    format!(
        "debt      {} to be compacted until every level is within its aim\n",
        size(number(debt))
    )
}

fn amplification_text(it: &Value) -> String {
    format!(
        "space     {} ({} of slots for {} of keys and values in files); all levels ÷ the deepest {}\n\
         written   {} ({} flushed, {} loaded, {} compacted; the {} since the last checkpoint)\n",
        ratio(&it["space"]),
        size(number(&it["slot_bytes"])),
        size(number(&it["raw_bytes"])),
        ratio(&it["versions"]),
        ratio(&it["write"]),
        size(number(&it["flushed_bytes"])),
        size(number(&it["loaded_bytes"])),
        size(number(&it["compacted_bytes"])),
        count(number(&it["edits"]), "edit")
    )
}

fn log_text(log: &Value) -> String {
    if log["end"].is_null() {
        return format!("log       kept from {}, its end cannot be told\n", log["trimmed"]);
    }
    let (trimmed, end) = (number(&log["trimmed"]), number(&log["end"]));
    format!(
        "log       {trimmed} to {end} ({}, {}), {}\n          flushed to files {}, in segments {}, \
         durable everywhere {}\n",
        size(end.saturating_sub(trimmed)),
        count(number(&log["records"]), "record"),
        text(&log["ending"]),
        log["flushed"],
        log["in_segments"],
        log["durable_everywhere"]
    )
}

fn memtables_text(it: &Value) -> String {
    let waiting = count(number(&it["edits_waiting"]), "edit");
    format!(
        "MemTables {} is active ({}), {} sealed; {waiting} not applied yet; last sequence {}\n",
        it["active"],
        size(number(&it["active_bytes"])),
        it["sealed"],
        it["last_sequence"]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_read_is_left_out_and_the_rest_is_shown() {
        let stats = json!({
            "slots": { "total": 250, "free": 200, "live": 50 },
            "log": { "trimmed": 7, "end": null },
        });
        assert_eq!(
            to_text(&stats),
            "slots     250 slots of 2.0 MiB, 200 free, 50 live\n\
             log       kept from 7, its end cannot be told\n"
        );
    }

    #[test]
    fn levels_without_files_are_left_out() {
        let level = |level: u64, files: u64| {
            json!({
                "level": level, "files": files, "bytes": 4096, "entries": 1234, "deletes": 5,
                "smallest": "a", "largest": "x".repeat(40), "codecs": { "lz4": 1, "zstd:3": 1 },
            })
        };
        let shown = levels_text(&json!([level(0, 0), level(1, 2)]));
        assert_eq!(shown.lines().nth(2), Some("          1 file lz4, 1 file zstd:3"));
        let wanted =
            "   L1     2    4.0 KiB        1,234          5  \"a\" to \"xxxxxxxxxxxxxxxxxxxxxxx…";
        assert_eq!(shown.lines().nth(1), Some(wanted));
        assert_eq!(levels_text(&json!([level(0, 0)])), "levels    no files\n");
    }

    #[test]
    fn a_ratio_that_is_not_known_is_said_to_be_so() {
        assert_eq!((ratio(&json!(1.5)), ratio(&Value::Null)), ("1.50".into(), "unknown".into()));
    }
}
