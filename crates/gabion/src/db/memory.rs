//! What memory a store takes, as `gabion db` shows it.

use crate::units::size;
use gabion_db::memory::{Memory, MemoryKind};
use gabion_engine::{FileMeta, TreeConfig};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Each kind's bytes now, and at most where there is a bound.
pub(super) fn fields(memory: &Memory) -> Value {
    let one =
        |kind: &MemoryKind| (kind.name.to_owned(), json!({ "bytes": kind.bytes, "max": kind.max }));
    Value::Object(memory.kinds.iter().map(one).collect())
}

/// A line for each kind, and one for all.
pub(super) fn text(fields: &Value) -> String {
    let mut out = "memory                      now     at most\n".to_owned();
    let (mut now, mut max) = (0, 0);
    for (name, kind) in fields.as_object().into_iter().flatten() {
        let bytes = kind["bytes"].as_u64().unwrap_or(0);
        (now, max) = (now + bytes, max + kind["max"].as_u64().unwrap_or(0));
        let most = kind["max"].as_u64().map_or_else(|| "as used".to_owned(), size);
        let _ = writeln!(out, "  {:<20} {:>9}   {most:>9}", name.replace('_', " "), size(bytes));
    }
    let _ = writeln!(out, "  {:<20} {:>9}   {:>9}", "all", size(now), size(max));
    out
}

/// About how many bytes the index and filter of a file take while it is open.
pub(super) fn index_len(meta: &FileMeta, tree: &TreeConfig) -> u64 {
    let filter = meta.entries * u64::from(tree.sst.filter_bits_per_key) / 8;
    let key = meta.raw_key_bytes / meta.entries.max(1);
    // A separator twice, as lengths, handle and trailer go with it, and sixteen bytes of what guides through them.
    filter + meta.len / u64::from(tree.sst.block_len) * (2 * key + 16)
}
