//! The memory of a store, as `gabion db` shows it.

use crate::units::size;
use gabion_engine::{FileMeta, TreeConfig, Version};
use serde_json::Value;
use std::fmt::Write as _;
use std::sync::Arc;

/// A line for each kind, and one for all, from the fields of [`gabion_server::memory_json`].
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

/// The approximate bytes of the indexes and filters of all files while they are open.
pub(super) fn indexes_len(version: &Version, tree: &TreeConfig) -> u64 {
    let len = |(level, file): (u8, &Arc<FileMeta>)| {
        // As if each file were made at its level: a file that was moved there may have more bits,
        // an old one fewer.
        let is_of_bottom =
            level > 0 && !version.overlaps_from(level + 1, &file.smallest, &file.largest);
        index_len(file, tree.filter_bits(is_of_bottom), tree.sst.block_len)
    };
    version.files().map(len).sum()
}

fn index_len(meta: &FileMeta, filter_bits: u32, block_len: u32) -> u64 {
    let filter = meta.entries.saturating_mul(u64::from(filter_bits)) / 8;
    let key = meta.raw_key_bytes / meta.entries.max(1);
    // A separator twice, for lengths, handle and trailer, and sixteen bytes for the search
    // structure.
    filter + meta.len / u64::from(block_len) * (2 * key + 16)
}
