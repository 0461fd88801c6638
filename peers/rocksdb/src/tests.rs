//! What is asked of RocksDB is what it says it runs with, and what it says of stalls is understood.
#![allow(clippy::disallowed_methods, reason = "its files are RocksDB's")]

use super::*;
use std::path::{Path, PathBuf};

/// A directory that is gone with this.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("engine-rocksdb-{name}-{}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options(directory: &Path, log: Log) -> EngineOptions {
    EngineOptions {
        memtable_len: 1 << 20,
        cache_len: 8 << 20,
        is_direct: false,
        log,
        ..EngineOptions::new(directory.to_path_buf())
    }
}

/// What RocksDB wrote of the options that it runs with.
struct InForce(String);

impl InForce {
    fn of(options: &EngineOptions) -> Self {
        drop(DB::open(&db_options(options), &options.directory).expect("a database"));
        let files = std::fs::read_dir(&options.directory).expect("its directory").flatten();
        let paths = files.map(|file| file.path());
        let newest = paths.filter(|path| path.to_string_lossy().contains("/OPTIONS-")).max();
        Self(std::fs::read_to_string(newest.expect("its options")).expect("a text"))
    }

    fn get(&self, name: &str) -> &str {
        let value = |line: &'_ str| line.trim().strip_prefix(name)?.strip_prefix('=').map(str::len);
        let line = self.0.lines().find(|line| value(line).is_some());
        line.and_then(|line| line.split_once('=')).unwrap_or_else(|| panic!("{name}")).1
    }

    fn assert(&self, expected: &[(&str, &str)]) {
        for (name, value) in expected {
            assert_eq!(self.get(name), *value, "{name}");
        }
    }
}

#[test]
fn blobs_and_growth_are_in_force_where_they_are_asked_for() {
    let scratch = Scratch::new("blobs");
    let usual = options(&scratch.0, Log::On);
    let usual_blobs =
        [("enable_blob_files", "false"), ("max_bytes_for_level_multiplier", "10.000000")];
    InForce::of(&usual).assert(&usual_blobs);
    let options = EngineOptions { growth_factor: Some(8), large_values: Some(512), ..usual };
    InForce::of(&options).assert(&[
        ("enable_blob_files", "true"),
        ("min_blob_size", "512"),
        ("enable_blob_garbage_collection", "true"),
        ("blob_garbage_collection_age_cutoff", "0.250000"),
        ("blob_file_size", "4194304"),
        ("max_bytes_for_level_multiplier", "8.000000"),
    ]);
}

#[test]
fn an_option_of_its_own_is_in_force_and_is_told() {
    let scratch = Scratch::new("own");
    let mut options = options(&scratch.0, Log::On);
    options.write_buffers = Some(7);
    options.recycled_logs = Some(5);
    options.block_len = Some(4096);
    let chosen = chosen(&options);
    assert_eq!(chosen, [("block_size", 4096), ("write_buffers", 7), ("recycled_logs", 5)]);
    InForce::of(&options).assert(&[
        ("max_write_buffer_number", "7"),
        ("recycle_log_file_num", "5"),
        ("block_size", "4096"),
    ]);
}

#[test]
fn what_its_guides_recommend_is_in_force() {
    let scratch = Scratch::new("guides");
    let options = EngineOptions { background_threads: 3, ..options(&scratch.0, Log::On) };
    InForce::of(&options).assert(&[
        ("compaction_style", "kCompactionStyleLevel"),
        ("compaction_pri", "kMinOverlappingRatio"),
        ("level_compaction_dynamic_level_bytes", "true"),
        ("bytes_per_sync", "1048576"),
        ("max_background_jobs", "3"),
        ("write_buffer_size", "1048576"),
        ("max_write_buffer_number", "8"),
        ("level0_file_num_compaction_trigger", "4"),
        // Four MemTables, of which a file has a tenth.
        ("max_bytes_for_level_base", "4194304"),
        ("target_file_size_base", "419430"),
        ("recycle_log_file_num", "2"),
        ("compression", "kNoCompression"),
        ("bottommost_compression", "kNoCompression"),
        // How many bits a key has is not written: the test of the cache has it.
        ("filter_policy", "bloomfilter"),
        ("whole_key_filtering", "true"),
        ("cache_index_and_filter_blocks", "true"),
        ("pin_l0_filter_and_index_blocks_in_cache", "true"),
        ("block_size", "16384"),
    ]);
}

#[test]
fn files_are_read_and_written_past_the_page_cache_where_it_is_asked_for() {
    for (is_direct, value) in [(true, "true"), (false, "false")] {
        let scratch = Scratch::new(&format!("direct-{is_direct}"));
        let options = EngineOptions { is_direct, ..options(&scratch.0, Log::On) };
        InForce::of(&options).assert(&[
            ("use_direct_reads", value),
            ("use_direct_io_for_flush_and_compaction", value),
        ]);
    }
}

#[test]
fn the_cache_is_as_large_as_is_asked_for_and_has_indexes_and_filters_in_it() {
    let scratch = Scratch::new("cache");
    let options = options(&scratch.0, Log::Off);
    let db = DB::open(&db_options(&options), &options.directory).expect("a database");
    let property = |name| db.property_int_value(name).expect("a property").expect("a number");
    assert_eq!(property(properties::BLOCK_CACHE_CAPACITY), options.cache_len);
    let writes = write_options(options.log);
    let keys = 20_000_u32;
    for number in 0..keys {
        db.put_opt(number.to_be_bytes(), [], &writes).expect("a write");
    }
    db.flush().expect("a file");
    // Nothing was read, and no block is warmed: what is in the cache now are the file's filter and index.
    let filter_len = u64::from(keys) * 10 / 8;
    let cached = property(properties::BLOCK_CACHE_USAGE);
    assert!((filter_len..filter_len + 8_000).contains(&cached), "{cached}: 10 bits for each key");
    let beside = property(properties::ESTIMATE_TABLE_READERS_MEM);
    assert!(beside < filter_len / 4, "{beside} beside the cache");
}

#[test]
fn a_log_comes_around_once_there_are_as_many_as_are_kept() {
    let scratch = Scratch::new("around");
    let options = options(&scratch.0, Log::On);
    let db = DB::open(&db_options(&options), &options.directory).expect("a database");
    let writes = write_options(options.log);
    for number in 0..60_000_u32 {
        db.put_opt(number.to_be_bytes(), [7; 100], &writes).expect("a write");
    }
    db.wait_for_compact(&rust_rocksdb::WaitForCompactOptions::default()).expect("quiet");
    let name = std::fs::read_dir(&options.directory).expect("its directory").flatten();
    let info = name.map(|file| file.path()).find(|path| path.ends_with("LOG")).expect("its words");
    let info = std::fs::read_to_string(info).expect("a text");
    assert!(info.contains("reusing log"), "{info}");
}

#[test]
fn logs_are_written_to_again_where_there_are_any() {
    for (log, logs) in [(Log::Synced, "2"), (Log::On, "2"), (Log::Off, "0")] {
        let scratch = Scratch::new(log.as_str());
        InForce::of(&options(&scratch.0, log)).assert(&[("recycle_log_file_num", logs)]);
    }
}

#[test]
fn writers_that_were_stopped_are_told_with_the_cause() {
    let scratch = Scratch::new("stalls");
    let mut options = options(&scratch.0, Log::Off);
    options.write_buffers = Some(2);
    let mut database = db_options(&options);
    // The next MemTable stops writers, as nothing flushes this one.
    database.set_write_buffer_size(64 << 10);
    let db = DB::open(&database, &options.directory).expect("a database");
    assert_eq!(stalls(&db).expect("stalls")[0], ("seconds".to_owned(), 0.0));
    let writes = write_options(options.log);
    for number in 0..40_000_u32 {
        db.put_opt(number.to_be_bytes(), [7; 400], &writes).expect("a write");
    }
    let stalls = stalls(&db).expect("stalls");
    let of = |name: &str| stalls.iter().find(|(other, _)| other == name).map(|(_, value)| *value);
    assert!(of("seconds").is_some_and(|seconds| seconds > 0.0 && seconds < 60.0), "{stalls:?}");
    assert!(of("memtable_limit_stops").is_some_and(|count| count >= 1.0), "{stalls:?}");
    assert_eq!(of("memtable_limit_delays"), None, "two MemTables are never waited for at a rate");
}

#[test]
fn lines_of_statistics_are_read_and_others_are_not() {
    let text = "Cumulative writes: 1\nCumulative stall: 01:02:03.500 H:M:S, 3.0 percent\n";
    assert_eq!(stall_seconds(text), Some(3723.5));
    assert_eq!(stall_seconds("Cumulative stall: 3 us, 3.0 percent\n"), None);
    assert_eq!(stall_seconds("Interval stall: 01:02:03.500 H:M:S, 3.0 percent\n"), None);
    let counts = "Write Stall (count): a-stops: 3, b: x, total-delays: 0, \ninterval: 3 total\n";
    assert_eq!(stall_counts(counts).collect::<Vec<_>>(), [("a_stops".to_owned(), 3.0)]);
}
