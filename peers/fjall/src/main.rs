//! fjall under Gabion's workloads: `engine-fjall run --workload … --dir …`.
//!
//! Settings are fjall's own defaults, which its documentation recommends (leveled compaction, filters
//! of 10 bits and finer in level 0, pinned index and filter blocks of the upper levels, blocks of 4 KiB:
//! <https://docs.rs/fjall>, `KeyspaceCreateOptions`), at the MemTable size, cache, compression and
//! threads that are the same for every engine that is measured.
#![allow(clippy::disallowed_methods, reason = "a shell: clocks and threads are its business")]

use fjall::config::{BlockSizePolicy, CompressionPolicy};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode, compaction};
use gabion_base::{Error, ErrorKind, Result};
use gabion_workload::{Codec, Engine, EngineOptions, Key, Log, files_len, locked_version, program};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked whether fjall works, and for how long it must not, to be quiet: its workers
/// take one order after the other and rest a millisecond between compactions.
const TICK: Duration = Duration::from_millis(5);
const QUIET: Duration = Duration::from_millis(250);

fn main() -> ExitCode {
    program::<Fjall>()
}

struct Fjall {
    directory: PathBuf,
    database: Database,
    records: Keyspace,
    log: Log,
}

fn failed(error: fjall::Error) -> Error {
    Error::with_source(ErrorKind::Io, "fjall", error)
}

/// The codec of all levels: fjall has no zstd, and no codec of its own for wherever the bottom is.
fn codec(options: &EngineOptions) -> Result<CompressionType> {
    let refused = |what| Err(Error::unsupported(format!("fjall has {what}")));
    if options.bottom_codec.is_some_and(|codec| codec != options.codec) {
        return refused("no --bottom-compression");
    }
    match options.codec {
        Codec::None => Ok(CompressionType::None),
        Codec::Lz4 => Ok(CompressionType::Lz4),
        Codec::Zstd => refused("no zstd: none or lz4"),
    }
}

fn keyspace_options(options: &EngineOptions, codec: CompressionType) -> KeyspaceCreateOptions {
    // By default a file is as long as a MemTable: 64 MiB.
    let strategy = compaction::Leveled::default().with_table_target_size(options.memtable_len);
    let keyspace = KeyspaceCreateOptions::default()
        .max_memtable_size(options.memtable_len)
        .compaction_strategy(Arc::new(strategy))
        .data_block_compression_policy(CompressionPolicy::all(codec))
        // The nearest to a log that is off: it stays in the memory of the process as long as it may.
        .manual_journal_persist(options.log == Log::Off);
    match options.block_len {
        Some(len) => keyspace.data_block_size_policy(BlockSizePolicy::all(len as u32)),
        None => keyspace,
    }
}

impl Fjall {
    /// What a write must do besides, so that it is in the log as it must be.
    fn persist(&self) -> Result<()> {
        match self.log {
            Log::Off | Log::On => Ok(()),
            Log::Synced => self.database.persist(PersistMode::SyncData).map_err(failed),
        }
    }
}

impl Engine for Fjall {
    const NAME: &'static str = "fjall";

    fn version() -> String {
        let lock = include_str!("../../Cargo.lock");
        locked_version(lock, "fjall").unwrap_or("unknown").to_owned()
    }

    fn limits(options: &EngineOptions) -> Vec<String> {
        let mut limits = Vec::new();
        if options.is_direct {
            let cached = "fjall has no direct I/O: it reads and writes through the page cache, which \
                          is not counted as its memory, and the kernel's writing not as its CPU";
            limits.push(cached.to_owned());
        }
        if options.log == Log::Off {
            limits.push("fjall cannot do without its log: it is written unsynced, late".to_owned());
        }
        limits
    }

    fn open(options: &EngineOptions) -> Result<Self> {
        options.refuse_rocksdbs(Self::NAME)?;
        options.refuse_large_values(Self::NAME)?;
        let codec = codec(options)?;
        let database = Database::builder(&options.directory)
            .cache_size(options.cache_len)
            .worker_threads(options.background_threads as usize)
            .open()
            .map_err(failed)?;
        let records =
            database.keyspace("records", || keyspace_options(options, codec)).map_err(failed)?;
        let directory = options.directory.clone();
        Ok(Self { directory, database, records, log: options.log })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.records.insert(key, value).map_err(failed)?;
        self.persist()
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.records.remove(key).map_err(failed)?;
        self.persist()
    }

    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.records.get(key).map_err(failed)?;
        if let Some(value) = &value {
            read(value);
        }
        Ok(value.is_some())
    }

    fn multi_get(&self, keys: &[Key], read: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        for (i, key) in keys.iter().enumerate() {
            self.get(key, &mut |value| read(i, value))?;
        }
        Ok(())
    }

    fn scan(&self, from: &[u8], count: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        for entry in self.records.range(from..).take(count) {
            let (key, value) = entry.into_inner().map_err(failed)?;
            read(&key, &value);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.records.rotate_memtable_and_wait().map_err(failed)
    }

    fn wait_quiet(&self) -> Result<Duration> {
        let mut last_work = Instant::now();
        let mut completed = self.database.compactions_completed();
        while last_work.elapsed() < QUIET {
            thread::sleep(TICK);
            let now = self.database.compactions_completed();
            let is_at_work = self.database.active_compactions() > 0
                || self.database.outstanding_flushes() > 0
                || self.records.sealed_memtable_count() > 0;
            if is_at_work || now != completed {
                completed = now;
                last_work = Instant::now();
            }
        }
        Ok(last_work.elapsed())
    }

    fn log_space_len(&self) -> Result<Option<u64>> {
        let is_journal = |path: &Path| path.extension().is_some_and(|extension| extension == "jnl");
        files_len(&self.directory, &is_journal).map(Some)
    }

    fn close(self) -> Result<()> {
        self.database.persist(PersistMode::SyncAll).map_err(failed)?;
        drop(self.records);
        drop(self.database);
        Ok(())
    }
}
