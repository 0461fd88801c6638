//! `gabion db compact`: all levels of a store into one.

use super::out::{Out, Told};
use super::records::checked;
use crate::options::{CodecOptions, DbPlace};
use crate::screen::Progress;
use crate::units::{count, size};
use gabion_base::Result;
use gabion_db::{Db, DbStats};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::ops::Bound;

pub(super) fn run(
    place: &DbPlace,
    codecs: &CodecOptions,
    from: &Option<OsString>,
    to: &Option<OsString>,
) -> Result<u8> {
    let from = from.as_deref().map(checked).transpose()?.unwrap_or_default();
    let to = to.as_deref().map(checked).transpose()?;
    let (db, _) = super::open_store(place, codecs, "to compact")?;
    let mut out = Out::new(std::io::stdout(), place.json);
    let told = compact(&db, from, to, &mut out);
    drop(db);
    out.end(told)
}

/// Compacts a range and prints the result.
pub(super) fn compact(db: &Db, from: &[u8], to: Option<&[u8]>, out: &mut Out) -> Told {
    let before = db.stats();
    let mut progress = Progress::new();
    let bounds = (Bound::Included(from), to.map_or(Bound::Unbounded, Bound::Excluded));
    let result = progress.during(|| db.compact_range(bounds), || so_far(db, &before));
    progress.clear();
    result?;
    let after = db.stats();
    if out.json {
        return out.document(&json!({
            "before": levels(&before), "after": levels(&after),
            "compactions": after.counters.compactions - before.counters.compactions,
            "written_bytes": after.counters.job_written_bytes - before.counters.job_written_bytes,
        }));
    }
    out.text(&format!("{}\n{}\n", state("before", &before), state("after ", &after)))
}

fn so_far(db: &Db, before: &DbStats) -> String {
    let (now, then) = (db.stats().counters, before.counters);
    let compactions = count(now.compactions - then.compactions, "compaction");
    format!("{compactions}, {} written", size(now.job_written_bytes - then.job_written_bytes))
}

/// One line: `after  3 files (4.0 MiB): L1 3`.
pub(super) fn state(name: &str, stats: &DbStats) -> String {
    let (files, bytes) =
        stats.levels.iter().fold((0, 0), |sum, level| (sum.0 + level.files, sum.1 + level.bytes));
    let levels = stats.levels.iter().enumerate().filter(|(_, level)| level.files > 0);
    let levels: Vec<_> = levels.map(|(i, level)| format!("L{i} {}", level.files)).collect();
    let levels = if levels.is_empty() { String::new() } else { format!(": {}", levels.join(", ")) };
    format!("{name} {} ({}){levels}", count(files, "file"), size(bytes))
}

/// Each level's files and bytes.
pub(super) fn levels(stats: &DbStats) -> Value {
    let one = |(level, stats): (usize, &gabion_engine::LevelStats)| json!({ "level": level, "files": stats.files, "bytes": stats.bytes });
    stats.levels.iter().enumerate().map(one).collect()
}
