//! RocksDB as it is measured: the settings that its own pages recommend, at the MemTable size, cache,
//! compression, threads and I/O that are the same for every engine. `engine-rocksdb` runs workloads on it,
//! `replica-rocksdb` puts it into a chain.
//!
//! - [setup]: "Setup Options and Basic Tuning", the options "that every user might like to experiment
//!   with for general workloads": <https://github.com/facebook/rocksdb/wiki/Setup-Options-and-Basic-Tuning>
//! - [tuning]: "RocksDB Tuning Guide": <https://github.com/facebook/rocksdb/wiki/RocksDB-Tuning-Guide>
//! - [bloom]: "RocksDB Bloom Filter": <https://github.com/facebook/rocksdb/wiki/RocksDB-Bloom-Filter>
//! - [cache]: "Block Cache": <https://github.com/facebook/rocksdb/wiki/Block-Cache>
//! - [direct]: "Direct IO": <https://github.com/facebook/rocksdb/wiki/Direct-IO>
//! - [wal]: "WAL Performance": <https://github.com/facebook/rocksdb/wiki/WAL-Performance>
//! - [stalls]: "Write Stalls": <https://github.com/facebook/rocksdb/wiki/Write-Stalls>
//! - [blobs]: "BlobDB": <https://github.com/facebook/rocksdb/wiki/BlobDB>

use gabion_base::{Error, ErrorKind, Result};
use gabion_workload::{Codec, EngineOptions, Log, locked_version};
use rust_rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompactionStyle, DBCompressionType, Options, WriteOptions,
    properties,
};

#[cfg(all(target_arch = "x86_64", not(target_feature = "sse4.2")))]
compile_error!(
    "RocksDB would make its checksums in software: start cargo in peers/, whose .cargo/config.toml \
     builds for the processor at hand, and without RUSTFLAGS of your own"
);

/// Bits of the filter for a key: 1 % false positives [bloom].
const FILTER_BITS: f64 = 10.0;
/// Bytes of a block [setup].
const BLOCK_LEN: u64 = 16 << 10;
/// How often files that are being written are handed to the device [setup].
const BYTES_PER_SYNC: u64 = 1 << 20;
/// Most MemTables, the one that is written to included. The default, 2, stops writers as soon as two wait for their
/// flush; [tuning] raises it for bursts. From 4 on writers are delayed too, to 16 MiB/s at first, when all but one of so
/// many wait [stalls; db/column_family.cc], so a number just above 3 holds them back at every burst: with 4 writers stood
/// still for 8 % of the time in the middle of ten runs and for up to half of it, with 8 for none, and 12 % at most.
/// Fillrandom of 1,000 bytes without log, ten rounds in turn ÷ the same with 4, geometric means: 3 was 1.19 times as
/// fast, 5 as fast, 8 1.27 times; with 100 bytes, which fill a MemTable more slowly, rounds differ by more than numbers do.
const MEMTABLES: u64 = 8;
/// Logs that are kept to be written to again, where there is a log: one that grows has its new length written at each
/// sync too, so that "every fsync will generate at least two I/Os" [wal]. One is written to while another is
/// flushed, so two are enough. The first logs of a database are new, as many as are not recycled yet. Here half of the
/// synced writes took 121 µs without and 76 with them (medians of five runs in turn of 1,000 bytes, MemTables of 1 MiB so that
/// logs come around soon, on a machine that others used). Where they are not synced, overwrites of 1,000 bytes were 1.21
/// times as fast at 0.93 of the CPU (medians of the ratios of four rounds in turn), as no file is made and none
/// removed; what is in the page cache of these logs at the end counts as written, where a log that is removed does not.
const RECYCLED_LOGS: u64 = 2;
/// Files in level 0 that start a compaction: the default.
const LEVEL_0_FILES: u64 = 4;
/// Files in level 1 [tuning: "we recommend max_bytes_for_level_base / 10"].
const LEVEL_1_FILES: u64 = 10;

/// Its name in rows.
pub const NAME: &str = "rocksdb";

/// The version that is built in: that of RocksDB, not of its binding.
#[must_use]
pub fn version() -> String {
    let lock = include_str!("../../Cargo.lock");
    let version = locked_version(lock, "rust-librocksdb-sys").unwrap_or("unknown");
    // The binding's own version, then that of RocksDB.
    version.rsplit('+').next().unwrap_or(version).to_owned()
}

/// A RocksDB error, by what a caller can make of it.
#[must_use]
pub fn failed(error: rust_rocksdb::Error) -> Error {
    let kind = match error.kind() {
        rust_rocksdb::ErrorKind::Corruption => ErrorKind::Corruption,
        rust_rocksdb::ErrorKind::InvalidArgument => ErrorKind::InvalidInput,
        rust_rocksdb::ErrorKind::NotSupported => ErrorKind::Unsupported,
        _ => ErrorKind::Io,
    };
    Error::with_source(kind, "RocksDB", error)
}

/// Values that a reader of figures would ask for.
#[must_use]
pub fn chosen(options: &EngineOptions) -> Vec<(&'static str, u64)> {
    vec![
        ("block_size", options.block_len.unwrap_or(BLOCK_LEN)),
        ("write_buffers", write_buffers(options)),
        ("recycled_logs", recycled_logs(options)),
    ]
}

fn write_buffers(options: &EngineOptions) -> u64 {
    options.write_buffers.unwrap_or(MEMTABLES)
}

fn recycled_logs(options: &EngineOptions) -> u64 {
    // RocksDB refuses writes past the log where it recycles logs.
    let by_log = if options.log == Log::Off { 0 } else { RECYCLED_LOGS };
    options.recycled_logs.unwrap_or(by_log)
}

fn table_options(options: &EngineOptions, cache: &Cache) -> BlockBasedOptions {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_block_size(options.block_len.unwrap_or(BLOCK_LEN) as usize);
    // [setup]: index and filters inside the cache, so that its size bounds all of them.
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    // [bloom]: one full filter for each file, of whole keys.
    table.set_bloom_filter(FILTER_BITS, false);
    table.set_whole_key_filtering(true);
    table
}

const fn codec(codec: Codec) -> DBCompressionType {
    match codec {
        Codec::None => DBCompressionType::None,
        Codec::Lz4 => DBCompressionType::Lz4,
        Codec::Zstd => DBCompressionType::Zstd,
    }
}

/// Refuses what this RocksDB was built without.
///
/// # Errors
/// Unsupported: zstd is asked for.
pub fn check_codecs(options: &EngineOptions) -> Result<()> {
    if options.codec != Codec::Zstd && options.bottom_codec != Some(Codec::Zstd) {
        return Ok(());
    }
    Err(Error::unsupported(
        "this RocksDB was built without zstd; the feature `zstd` of rust-rocksdb, in peers/rocksdb/Cargo.toml, builds \
         it anew with it, in half an hour",
    ))
}

/// Options of a database, whose codecs were checked.
#[must_use]
pub fn db_options(options: &EngineOptions) -> Options {
    let mut db = Options::default();
    db.create_if_missing(true);
    // [cache] prefers HyperClockCache; 0: it finds the size of its entries by itself.
    let cache = Cache::new_hyper_clock_cache(options.cache_len as usize, 0);
    db.set_block_based_table_factory(&table_options(options, &cache));
    db.set_compaction_style(DBCompactionStyle::Level);
    // [setup]; the priority of what to compact that it names, kMinOverlappingRatio, is the default.
    db.set_level_compaction_dynamic_level_bytes(true);
    db.set_bytes_per_sync(BYTES_PER_SYNC);
    db.set_max_background_jobs(options.background_threads as i32);
    db.set_write_buffer_size(options.memtable_len as usize);
    db.set_max_write_buffer_number(write_buffers(options) as i32);
    db.set_recycle_log_file_num(recycled_logs(options) as usize);
    // [tuning]: level 1 as large as level 0 is when it is compacted.
    let level_1 = options.memtable_len * LEVEL_0_FILES;
    db.set_level_zero_file_num_compaction_trigger(LEVEL_0_FILES as i32);
    db.set_max_bytes_for_level_base(level_1);
    db.set_target_file_size_base(level_1 / LEVEL_1_FILES);
    if let Some(growth_factor) = options.growth_factor {
        db.set_max_bytes_for_level_multiplier(f64::from(growth_factor));
    }
    if let Some(len) = options.large_values.filter(|len| *len > 0) {
        set_blobs(&mut db, len, options, &cache);
    }
    db.set_compression_type(codec(options.codec));
    db.set_bottommost_compression_type(codec(options.bottom_codec.unwrap_or(options.codec)));
    // [direct].
    db.set_use_direct_reads(options.is_direct);
    db.set_use_direct_io_for_flush_and_compaction(options.is_direct);
    db
}

/// BlobDB, as it is integrated into RocksDB, from values of so many bytes on.
///
/// Its garbage is collected, which is off by default: without, space does not come back [blobs].
/// How much is collected when is the default: what lives in the oldest quarter of blob files, as
/// compactions come by. Blobs have the codec of blocks, and share their cache, as direct I/O has no
/// page cache to read them from again. A blob file has as many bytes as level 1: by default it has
/// 256 MiB, so that a store of a benchmark has few, and none in their oldest quarter.
fn set_blobs(db: &mut Options, len: u64, options: &EngineOptions, cache: &Cache) {
    db.set_enable_blob_files(true);
    db.set_min_blob_size(len);
    db.set_enable_blob_gc(true);
    db.set_blob_file_size(options.memtable_len * LEVEL_0_FILES);
    db.set_blob_compression_type(codec(options.codec));
    db.set_blob_cache(cache);
}

/// Options of writes, by the log that is asked for.
#[must_use]
pub fn write_options(log: Log) -> WriteOptions {
    let mut writes = WriteOptions::default();
    writes.disable_wal(log == Log::Off);
    writes.set_sync(log == Log::Synced);
    writes
}

/// The property with the counts of stalls by their causes, which the binding does not name [stalls].
const STALL_COUNTS: &str = "rocksdb.cf-write-stall-stats";

/// What has held writers back since the database was opened: `seconds` that they were stopped or delayed, the rate to
/// which they are delayed now (bytes a second, 0 where they are not), and how often each cause stopped or delayed them.
///
/// # Errors
/// RocksDB's; unsupported where it says something else than the version that is built in.
pub fn stalls(db: &DB) -> Result<Vec<(String, f64)>> {
    let text = |name: &str| Ok(db.property_value(name).map_err(failed)?.unwrap_or_default());
    let statistics = db.property_value(properties::DBSTATS).map_err(failed)?.unwrap_or_default();
    let seconds = stall_seconds(&statistics).ok_or_else(|| {
        Error::unsupported("RocksDB's statistics have no line `Cumulative stall: … H:M:S`")
    })?;
    let rate = db.property_int_value(properties::ACTUAL_DELAYED_WRITE_RATE).map_err(failed)?;
    let mut stalls = vec![
        ("seconds".to_owned(), seconds),
        ("delayed_write_rate".to_owned(), rate.unwrap_or(0) as f64),
    ];
    stalls.extend(stall_counts(&text(STALL_COUNTS)?));
    Ok(stalls)
}

/// Of `Cumulative stall: 00:01:02.500 H:M:S, 3.0 percent`, which RocksDB counts without its statistics being on.
fn stall_seconds(statistics: &str) -> Option<f64> {
    let line = statistics.lines().find_map(|line| line.strip_prefix("Cumulative stall: "))?;
    let mut parts = line.strip_suffix(" percent")?.split(" H:M:S").next()?.splitn(3, ':');
    let mut part = || parts.next()?.parse::<f64>().ok();
    Some(part()? * 3600.0 + part()? * 60.0 + part()?)
}

/// Of `Write Stall (count): memtable-limit-delays: 3, total-stops: 0, …` what is not 0.
fn stall_counts(text: &str) -> impl Iterator<Item = (String, f64)> {
    let line = text.lines().next().unwrap_or_default();
    let counts = line.strip_prefix("Write Stall (count): ").unwrap_or_default().split(", ");
    counts.filter_map(|count| {
        let (name, count) = count.split_once(": ")?;
        let count: f64 = count.parse().ok()?;
        (count > 0.0).then(|| (name.replace('-', "_"), count))
    })
}

#[cfg(test)]
mod tests;
