//! The interface of an engine to a workload.

use crate::key::Key;
use clap::ValueEnum;
use gabion_base::{Error, Result};
use std::path::PathBuf;
use std::time::Duration;

/// The engine's write-ahead log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Log {
    /// None: a kill of the process loses what is in the MemTable.
    Off,
    /// Written before a write returns and not synced: the kill of the process loses nothing, a
    /// power cut may.
    On,
    /// Synced to the device before a write returns.
    Synced,
}

impl Log {
    /// The name on the command line and in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Synced => "synced",
        }
    }
}

/// How blocks of files are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Codec {
    /// Not at all.
    None,
    /// LZ4.
    Lz4,
    /// Zstandard, at its authors' level of choice, 3. Not every engine's program has it.
    Zstd,
}

impl Codec {
    /// The name on the command line and in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// The options that are the same for every measured engine. For all others the engine's own guide
/// decides.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    /// The directory of its files: the engine makes it if it does not exist.
    pub directory: PathBuf,
    /// Bytes of disk that the run may take: for an engine that reserves its disk.
    pub disk_len: u64,
    /// Bytes of a MemTable.
    pub memtable_len: u64,
    /// Bytes of the cache: of blocks, and of indexes and filters with them.
    pub cache_len: u64,
    /// Bytes of a block of a file; `None`: the engine's guide decides.
    pub block_len: Option<u64>,
    /// Most MemTables, including the active one; `None`: the engine's guide decides. An engine
    /// without such a number refuses one.
    pub write_buffers: Option<u64>,
    /// Logs that are kept for reuse, likewise.
    pub recycled_logs: Option<u64>,
    /// The compression of the bottom blocks, as each engine understands it; `None`: as everywhere.
    pub bottom_codec: Option<Codec>,
    /// Bytes at which a level aims ÷ those of the level above it; `None`: the engine's guide
    /// decides.
    pub growth_factor: Option<u32>,
    /// Values of so many bytes, or more, lie apart from the tree, and their garbage is collected;
    /// 0: none does; `None`: the engine's default decides. An engine without such a thing refuses
    /// it.
    pub large_values: Option<u64>,
    /// How blocks are compressed.
    pub codec: Codec,
    /// Threads that flush and compact.
    pub background_threads: u32,
    /// Whether files are read and written past the page cache.
    pub is_direct: bool,
    /// The write-ahead log.
    pub log: Log,
}

impl EngineOptions {
    /// The defaults: MemTables of 16 MiB, a cache of 64 MiB, two background threads, no
    /// compression, direct I/O, a log that is not synced, and as much disk as there is.
    #[must_use]
    pub const fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            disk_len: u64::MAX,
            memtable_len: 16 << 20,
            cache_len: 64 << 20,
            block_len: None,
            write_buffers: None,
            recycled_logs: None,
            bottom_codec: None,
            growth_factor: None,
            large_values: None,
            codec: Codec::None,
            background_threads: 2,
            is_direct: true,
            log: Log::On,
        }
    }

    /// Refuses RocksDB's own options; for any other engine, by its name.
    ///
    /// # Errors
    /// Unsupported: a number of MemTables or of logs is asked for.
    pub fn refuse_rocksdbs(&self, engine: &str) -> Result<()> {
        refuse(engine, "write-buffers", self.write_buffers)?;
        refuse(engine, "recycled-logs", self.recycled_logs)
    }

    /// Refuses values apart from the tree; for an engine that has all in it, by its name.
    ///
    /// # Errors
    /// Unsupported: they are asked for.
    pub fn refuse_large_values(&self, engine: &str) -> Result<()> {
        refuse(engine, "large-values", self.large_values)
    }
}

fn refuse(engine: &str, name: &str, value: Option<u64>) -> Result<()> {
    value.map_or(Ok(()), |value| {
        Err(Error::unsupported(format!("{engine} has no --{name}, asked for is {value}")))
    })
}

/// The cache hits and reads of an engine's readers. Jobs of its own do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Blocks that were in the cache.
    pub hits: u64,
    /// Blocks that were not.
    pub misses: u64,
    /// Bytes read of files, indexes and filters included.
    pub bytes: u64,
}

impl Reads {
    /// The difference from `before` until now.
    pub(crate) const fn since(self, before: Self) -> Self {
        Self {
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
            bytes: self.bytes - before.bytes,
        }
    }
}

/// An engine, called from several threads at once.
///
/// Order of calls: [`Self::open`]; then any of the others; [`Self::close`]. The data at `close` is
/// there after the next `open` of the directory, whatever the log, as [`Self::flush`] comes first.
pub trait Engine: Sized + Send + Sync {
    /// Its name in rows.
    const NAME: &'static str;

    /// The measured version.
    fn version() -> String;

    /// Options that the engine cannot honour, one sentence each; they stand in the row.
    fn limits(options: &EngineOptions) -> Vec<String>;

    /// Its own settings, by name, that a reader of figures would ask for; they stand in the row.
    fn settings(options: &EngineOptions) -> Vec<(&'static str, u64)> {
        let _ = options;
        Vec::new()
    }

    /// Opens or makes the directory.
    ///
    /// # Errors
    /// The engine's.
    fn open(options: &EngineOptions) -> Result<Self>;

    /// Writes a key. [`EngineOptions::log`] decides what survives what, when it returns.
    ///
    /// # Errors
    /// The engine's.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Deletes a key.
    ///
    /// # Errors
    /// The engine's.
    fn delete(&self, key: &[u8]) -> Result<()>;

    /// Hands the value of a key to `read`, without a copy where the engine can; false if there is
    /// none.
    ///
    /// # Errors
    /// The engine's.
    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Hands the values of the existing keys to `read`, with the key's place in `keys`.
    ///
    /// # Errors
    /// The engine's.
    fn multi_get(&self, keys: &[Key], read: &mut dyn FnMut(usize, &[u8])) -> Result<()>;

    /// Hands keys and values to `read`, in the order of keys, from the first at or after `from`,
    /// until there were `count` or there are no more.
    ///
    /// # Errors
    /// The engine's.
    fn scan(&self, from: &[u8], count: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<()>;

    /// Writes the MemTable to files, whatever its size.
    ///
    /// # Errors
    /// The engine's.
    fn flush(&self) -> Result<()>;

    /// Waits until no flush and no compaction runs or is due. Returns how long it only watched,
    /// after the last of them, to be sure: that time does not count.
    ///
    /// # Errors
    /// The engine's, among them one that ended its background work.
    fn wait_quiet(&self) -> Result<Duration>;

    /// Bytes of the engine's data, if they are not those of its directory.
    ///
    /// # Errors
    /// The engine's.
    fn space_len(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// The logs' part of the bytes of [`Self::space_len`], or else of the directory, if the engine
    /// tells it while it is open. Asked when it is quiet.
    ///
    /// # Errors
    /// The engine's.
    fn log_space_len(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// The same for a closed directory, if it can be told only then.
    ///
    /// # Errors
    /// The engine's.
    fn closed_log_space_len(options: &EngineOptions) -> Result<Option<u64>> {
        let _ = options;
        Ok(None)
    }

    /// Bytes of a log with a fixed length, if [`Self::space_len`] leaves them out.
    fn ring_len(&self) -> Option<u64> {
        None
    }

    /// Options that it could not honour, as the opening showed, one sentence each; they stand
    /// with [`Self::limits`] in the row.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }

    /// The hits and reads of its readers so far, if it tells them.
    fn reads(&self) -> Option<Reads> {
        None
    }

    /// The times since the opening for which writers were held back, if it tells them: `seconds` in
    /// all in which they were stopped or slowed down, and the causes.
    ///
    /// # Errors
    /// The engine's.
    fn stalls(&self) -> Result<Vec<(String, f64)>> {
        Ok(Vec::new())
    }

    /// Its account of its memory now: bytes by purpose, if it gives one.
    fn memory(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Closes it.
    ///
    /// # Errors
    /// The engine's.
    fn close(self) -> Result<()>;
}
