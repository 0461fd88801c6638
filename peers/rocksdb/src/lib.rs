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

use gabion_base::{Error, ErrorKind, Result};
use gabion_workload::{Codec, EngineOptions, Log, locked_version};
use rust_rocksdb::{
    BlockBasedOptions, Cache, DBCompactionStyle, DBCompressionType, Options, WriteOptions,
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
/// MemTables: one that is written to and others that wait for their flush. The default, 2, stops
/// writers at every flush; [tuning] raises it for bursts.
const MEMTABLES: i32 = 4;
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

fn table_options(options: &EngineOptions) -> BlockBasedOptions {
    let mut table = BlockBasedOptions::default();
    // [cache] prefers HyperClockCache; 0: it finds the size of its entries by itself.
    table.set_block_cache(&Cache::new_hyper_clock_cache(options.cache_len as usize, 0));
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
    db.set_block_based_table_factory(&table_options(options));
    db.set_compaction_style(DBCompactionStyle::Level);
    // [setup]; the priority of what to compact that it names, kMinOverlappingRatio, is the default.
    db.set_level_compaction_dynamic_level_bytes(true);
    db.set_bytes_per_sync(BYTES_PER_SYNC);
    db.set_max_background_jobs(options.background_threads as i32);
    db.set_write_buffer_size(options.memtable_len as usize);
    db.set_max_write_buffer_number(MEMTABLES);
    // [tuning]: level 1 as large as level 0 is when it is compacted.
    let level_1 = options.memtable_len * LEVEL_0_FILES;
    db.set_level_zero_file_num_compaction_trigger(LEVEL_0_FILES as i32);
    db.set_max_bytes_for_level_base(level_1);
    db.set_target_file_size_base(level_1 / LEVEL_1_FILES);
    db.set_compression_type(codec(options.codec));
    db.set_bottommost_compression_type(codec(options.bottom_codec.unwrap_or(options.codec)));
    // [direct].
    db.set_use_direct_reads(options.is_direct);
    db.set_use_direct_io_for_flush_and_compaction(options.is_direct);
    db
}

/// Options of writes, by the log that is asked for.
#[must_use]
pub fn write_options(log: Log) -> WriteOptions {
    let mut writes = WriteOptions::default();
    writes.disable_wal(log == Log::Off);
    writes.set_sync(log == Log::Synced);
    writes
}
