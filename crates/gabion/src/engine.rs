//! Gabion's embedded store under the workloads that `gabion bench engine` runs. The counterpart of
//! the peers' programs is this one, with words of its own.

mod one_cache;

use crate::at_rest::AtRest;
use gabion_base::units::{GIB, MIB, SLOT_LEN};
use gabion_base::{ErrorKind, FileKind, Result};
use gabion_db::{Db, Durability, Options, RunOptions};
use gabion_engine::sst::{Compression, SstOptions};
use gabion_engine::{LEVEL1_MEMTABLES, TreeConfig};
use gabion_host::replica::pool_path;
use gabion_node::Counters;
use gabion_workload::{Codec, Engine, EngineOptions, Key, Log, Reads, RunArgs};
use one_cache::OneCache;
use std::time::Duration;

/// Bytes of the pool beyond the run's need: a reserve for flushes and compactions. Only the data's
/// share of the pool is counted.
const POOL_SPARE: u64 = GIB;

/// Bytes of disk that a run reserves beyond its plan: that reserve, the log's ring, and the
/// rounding of slots and the pool's metadata.
pub(crate) const SPARE_LEN: u64 = POOL_SPARE + RING_LEN + 64 * MIB;

/// Bytes of the log's ring: the default, and a file of its own.
const RING_LEN: u64 = 128 * MIB;

/// The words before the options of a run.
pub(crate) const WORDS: [&str; 2] = ["bench", "engine-run"];

/// Runs one workload and prints its row. Exit codes: 0 fine, 1 a wrong read, 2 it could not be run.
pub(crate) fn run(args: &RunArgs) -> Result<u8> {
    exit_code(gabion_workload::run_and_print::<Embedded>(args))
}

/// 0 when all went well; 1 for a wrong read, which is printed.
pub(crate) fn exit_code(outcome: Result<()>) -> Result<u8> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::Corruption => {
            eprintln!("gabion: {error}");
            Ok(1)
        }
        outcome => outcome.map(|()| 0),
    }
}

struct Embedded {
    db: Db,
    durability: Durability,
    cache: OneCache,
}

const fn compression(codec: Codec) -> Compression {
    match codec {
        Codec::None => Compression::None,
        Codec::Lz4 => Compression::Lz4,
        Codec::Zstd => Compression::ZSTD,
    }
}

fn block_len(options: &EngineOptions) -> u32 {
    options.block_len.map_or(SstOptions::default().block_len, |len| len as u32)
}

fn large_values(options: &EngineOptions) -> u32 {
    options.large_values.map_or(TreeConfig::default().large_values, |len| len as u32)
}

fn db_options(options: &EngineOptions) -> Options {
    let default = TreeConfig::default();
    let compression = compression(options.codec);
    let bottom_compression = options.bottom_codec.map(self::compression);
    let sst = SstOptions { compression, block_len: block_len(options), ..default.sst };
    let level1_len = LEVEL1_MEMTABLES * options.memtable_len;
    Options {
        pool_len: (options.disk_len + POOL_SPARE).next_multiple_of(SLOT_LEN),
        ring_len: RING_LEN,
        tree: TreeConfig {
            memtable_len: options.memtable_len,
            level1_len: level1_len.max(default.sst_len),
            sst,
            bottom_compression,
            ..default
        },
        run: RunOptions {
            // A flush has a thread of its own.
            compactions_max: (options.background_threads as usize).saturating_sub(1).max(1),
            codecs: None,
            large_values: Some(large_values(options)),
            ..one_cache::budgets(options.cache_len as usize, 0)
        },
        ..Options::default()
    }
}

impl Engine for Embedded {
    const NAME: &'static str = "gabion";

    fn version() -> String {
        env!("CARGO_PKG_VERSION").to_owned()
    }

    fn limits(options: &EngineOptions) -> Vec<String> {
        let mut limits = Vec::new();
        if !options.is_direct {
            limits.push("gabion reads and writes past the page cache in any case".to_owned());
        }
        limits
    }

    fn settings(options: &EngineOptions) -> Vec<(&'static str, u64)> {
        vec![
            ("block_size", block_len(options).into()),
            ("large_values", large_values(options).into()),
        ]
    }

    fn open(options: &EngineOptions) -> Result<Self> {
        options.refuse_rocksdbs(Self::NAME)?;
        let durability = match options.log {
            Log::Off => Durability::MemTable,
            Log::On => Durability::Ring,
            Log::Synced => Durability::Flushed,
        };
        let db_options = db_options(options);
        let db = Db::open_or_create(&options.directory, &db_options)?;
        let cache = OneCache::of(&db, db_options.run, options.cache_len as usize)?;
        Ok(Self { db, durability, cache })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.put_with(key, value, self.durability)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.db.delete_with(key, self.durability)
    }

    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.db.get(key)?;
        if let Some(value) = &value {
            read(value);
        }
        Ok(value.is_some())
    }

    fn multi_get(&self, keys: &[Key], read: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let values = self.db.multi_get(keys.iter().map(|key| &key[..]));
        for (i, value) in values.into_iter().enumerate() {
            if let Some(value) = value? {
                read(i, &value);
            }
        }
        Ok(())
    }

    fn scan(&self, from: &[u8], count: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        let mut cursor = self.db.cursor(from..);
        for _ in 0..count {
            if !cursor.next()? {
                break;
            }
            let Some((key, value)) = cursor.pair() else { break };
            read(key, value);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.db.flush()
    }

    fn wait_quiet(&self) -> Result<Duration> {
        self.db.wait_until_quiet()?;
        Ok(Duration::ZERO)
    }

    fn space_len(&self) -> Result<Option<u64>> {
        Ok(Some(self.db.stats().slot_bytes))
    }

    /// By the pool's own list of files, which has the owner of each slot.
    fn closed_log_space_len(options: &EngineOptions) -> Result<Option<u64>> {
        let pool = AtRest::open(&pool_path(&options.directory))?;
        let read = pool.wait(gabion_pool::read(pool.medium()))?;
        let files = read.recovered.pool.files();
        let logs = files.filter(|placement| placement.file.kind == FileKind::LogSegment);
        Ok(Some(logs.map(|placement| placement.slots.len() as u64 * SLOT_LEN).sum()))
    }

    fn ring_len(&self) -> Option<u64> {
        Some(RING_LEN)
    }

    fn notices(&self) -> Vec<String> {
        self.db.take_notices()
    }

    fn reads(&self) -> Option<Reads> {
        let stats = self.db.stats();
        Some(Reads { hits: stats.cache_hits, misses: stats.cache_misses, bytes: stats.read_bytes })
    }

    fn stalls(&self) -> Result<Vec<(String, f64)>> {
        Ok(stalls(&self.db.stats().counters))
    }

    fn memory(&self) -> Vec<(&'static str, u64)> {
        self.db.stats().memory.kinds.iter().map(|kind| (kind.name, kind.bytes)).collect()
    }

    fn close(self) -> Result<()> {
        // The last owner of the store closes the directory.
        self.cache.end()?;
        self.db.sync()
    }
}

/// The times for which writers were held back, in seconds: `seconds` in all, stopped or slowed
/// down, as RocksDB counts; of these `slowed`, and the stops by cause. Writers are slowed down or
/// stopped, never both at a time, so these add up.
fn stalls(counters: &Counters) -> Vec<(String, f64)> {
    let (slowed, stopped) = (counters.writes_slowed_ms, counters.writes_stopped_ms);
    let all = [("seconds", slowed + stopped.total()), ("slowed", slowed)];
    let by_what = stopped.each().filter(|(_, ms)| *ms > 0);
    let seconds = |ms: u64| ms as f64 / 1000.0;
    all.into_iter().chain(by_what).map(|(what, ms)| (what.to_owned(), seconds(ms))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_the_log_are_told_from_those_of_files() {
        let name = format!("gabion-log-space-{}", std::process::id());
        let options = EngineOptions {
            disk_len: 64 * MIB,
            memtable_len: MIB,
            cache_len: 4 * MIB,
            ..EngineOptions::new(std::env::temp_dir().join(name))
        };
        let engine = Embedded::open(&options).unwrap();
        for number in 0..20_000_u32 {
            engine.put(&number.to_be_bytes(), &[7; 100]).unwrap();
        }
        engine.flush().unwrap();
        engine.wait_quiet().unwrap();
        let (space, stats) = (engine.space_len().unwrap().unwrap(), engine.db.stats());
        let files: u64 = stats.levels.iter().map(|level| level.files).sum();
        engine.close().unwrap();
        let logs = Embedded::closed_log_space_len(&options).unwrap().unwrap();
        assert!(files > 0 && logs.is_multiple_of(SLOT_LEN), "{logs} with {files} files");
        // A file has at least one slot, and no slot belongs to both.
        assert!(logs + files * SLOT_LEN <= space, "{logs} and {files} files in {space}");
        std::fs::remove_dir_all(&options.directory).unwrap();
    }

    #[test]
    fn writers_that_are_slowed_down_are_held_back_too() {
        let counters = Counters { writes_slowed_ms: 1_500, ..Counters::default() };
        let all = [("seconds".to_owned(), 1.5), ("slowed".to_owned(), 1.5)];
        assert_eq!(stalls(&counters), all);
    }
}
