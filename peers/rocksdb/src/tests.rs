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
fn in_force(options: &EngineOptions, name: &str) -> String {
    let db = DB::open(&db_options(options), &options.directory).expect("a database");
    drop(db);
    let files = std::fs::read_dir(&options.directory).expect("its directory").flatten();
    let newest =
        files.map(|file| file.path()).filter(|path| path.to_string_lossy().contains("/OPTIONS-"));
    let text = std::fs::read_to_string(newest.max().expect("its options")).expect("a text");
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(&format!("{name}=")).map(str::to_owned));
    line.expect("the option")
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
    assert_eq!(in_force(&options, "max_write_buffer_number"), "7");
    assert_eq!(in_force(&options, "recycle_log_file_num"), "5");
    assert_eq!(in_force(&options, "block_size"), "4096");
}

#[test]
fn logs_are_written_to_again_where_there_are_any() {
    for (log, logs) in [(Log::Synced, "2"), (Log::On, "2"), (Log::Off, "0")] {
        let scratch = Scratch::new(log.as_str());
        assert_eq!(in_force(&options(&scratch.0, log), "recycle_log_file_num"), logs);
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
