//! What memory a store takes, as `gabion db` shows it.

use crate::units::size;
use gabion_engine::{FileMeta, TreeConfig};
use serde_json::Value;
use std::fmt::Write as _;

/// A line for each kind, and one for all, of what [`gabion_server::memory_json`] says.
pub(super) fn text(fields: &Value) -> String {
    let mut out = "memory                      now     at most\n".to_owned();
    let mut now = 0;
    for (name, kind) in fields.as_object().into_iter().flatten() {
        let bytes = kind["bytes"].as_u64().unwrap_or(0);
        now += bytes;
        let most = kind["max"].as_u64().map_or_else(|| "as used".to_owned(), size);
        let _ = writeln!(out, "  {:<20} {:>9}   {most:>9}", name.replace('_', " "), size(bytes));
    }
    let _ = writeln!(out, "  {:<20} {:>9}", "all", size(now));
    out
}

/// About how many bytes the index and filter of a file take while it is open.
pub(super) fn index_len(meta: &FileMeta, tree: &TreeConfig) -> u64 {
    let filter = meta.entries * u64::from(tree.sst.filter_bits_per_key) / 8;
    let key = meta.raw_key_bytes / meta.entries.max(1);
    // A separator twice, as lengths, handle and trailer go with it, and sixteen bytes of what guides through them.
    filter + meta.len / u64::from(tree.sst.block_len) * (2 * key + 16)
}
