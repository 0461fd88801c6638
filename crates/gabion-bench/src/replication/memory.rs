//! The cache of RubbleDB's baseline: as much memory as a replica of Gabion has for the same
//! content.
//!
//! RocksDB's cache holds blocks, indexes and filters. A replica of Gabion has [`BLOCK_CACHE_LEN`]
//! for blocks, and beside them the memory for indexes and filters of the files that it reads. So
//! the baseline's cache is both together, in every replica, though in Gabion only replicas that
//! answer reads use it.

use crate::keys::KEY_LEN;
use gabion_base::units::MIB;
use gabion_engine::TreeConfig;

/// Bytes of the block cache of a replica as `gabion up` makes it.
pub const BLOCK_CACHE_LEN: u64 = 64 * MIB;

/// Bytes of an index for a block, with its search structure: a separator of these keys, lengths,
/// handle, trailer; eight bytes of it once more, and the handle.
const INDEX_ENTRY_LEN: u64 = 44;
/// Bytes of a record in a block beside key and value: trailer and lengths, less the common prefix
/// of keys.
const ENTRY_OVERHEAD: u64 = 8;
/// The part of records above the bottom, where filters have more bits: one in so many.
const ABOVE_BOTTOM_PART: u64 = 8;

/// The approximate bytes of the indexes and filters of so many records in a replica of Gabion that
/// has read all of its files: rather too many than too few, for the baseline. A test of the command
/// line compares it with stores.
#[must_use]
pub fn indexes_len(records: u64, value_len: u64) -> u64 {
    let TreeConfig { sst, upper_filter_bits_extra, memtable_len, l0_trigger, .. } =
        TreeConfig::default();
    let record_len = KEY_LEN as u64 + value_len + ENTRY_OVERHEAD;
    // A young tree has nothing below its L0.
    let young = u64::from(l0_trigger) * memtable_len / record_len;
    let above = (records / ABOVE_BOTTOM_PART).max(young).min(records);
    let bits = |keys: u64, bits: u32| keys.saturating_mul(u64::from(bits)) / 8;
    let filters = bits(records, sst.filter_bits_per_key) + bits(above, upper_filter_bits_extra);
    let blocks = records.saturating_mul(record_len) / u64::from(sst.block_len);
    filters + blocks.saturating_mul(INDEX_ENTRY_LEN)
}

/// Bytes of the cache of each replica of the baseline.
pub(crate) fn baseline_cache_len(records: u64, value_len: u64) -> u64 {
    BLOCK_CACHE_LEN.saturating_add(indexes_len(records, value_len))
}
