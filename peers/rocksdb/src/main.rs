//! RocksDB under Gabion's workloads: `engine-rocksdb run --workload … --dir …`. Its settings are those of
//! the library beside this.

use engine_rocksdb as settings;
use gabion_base::Result;
use gabion_workload::{Engine, EngineOptions, Key, Log, files_len, program};
use rust_rocksdb::{DB, FlushOptions, ReadOptions, WaitForCompactOptions, WriteOptions};
use settings::{check_codecs, db_options, failed, write_options};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    program::<RocksDb>()
}

struct RocksDb {
    db: DB,
    writes: WriteOptions,
}

impl Engine for RocksDb {
    const NAME: &'static str = settings::NAME;

    fn version() -> String {
        settings::version()
    }

    fn limits(options: &EngineOptions) -> Vec<String> {
        let buffered_log = options.is_direct && options.log != Log::Off;
        let sentence = "RocksDB writes its log through the page cache";
        if buffered_log { vec![sentence.to_owned()] } else { Vec::new() }
    }

    fn settings(options: &EngineOptions) -> Vec<(&'static str, u64)> {
        settings::chosen(options)
    }

    fn open(options: &EngineOptions) -> Result<Self> {
        check_codecs(options)?;
        let db = DB::open(&db_options(options), &options.directory).map_err(failed)?;
        let writes = write_options(options.log);
        Ok(Self { db, writes })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.put_opt(key, value, &self.writes).map_err(failed)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.db.delete_opt(key, &self.writes).map_err(failed)
    }

    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.db.get_pinned(key).map_err(failed)?;
        if let Some(value) = &value {
            read(value);
        }
        Ok(value.is_some())
    }

    fn multi_get(&self, keys: &[Key], read: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let values = self.db.batched_multi_get_pinned(keys, false);
        for (i, value) in values.into_iter().enumerate() {
            if let Some(value) = value.map_err(failed)? {
                read(i, &value);
            }
        }
        Ok(())
    }

    fn scan(&self, from: &[u8], count: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        let mut iterator = self.db.raw_iterator_opt(ReadOptions::default());
        iterator.seek(from);
        for i in 0..count {
            if i > 0 {
                iterator.next();
            }
            let Some((key, value)) = iterator.item() else {
                return iterator.status().map_err(failed);
            };
            read(key, value);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.db.flush_opt(&FlushOptions::default()).map_err(failed)
    }

    fn wait_quiet(&self) -> Result<Duration> {
        let mut wait = WaitForCompactOptions::default();
        wait.set_wait_for_purge(true);
        self.db.wait_for_compact(&wait).map_err(failed)?;
        Ok(Duration::ZERO)
    }

    fn log_space_len(&self) -> Result<Option<u64>> {
        // Those in use, those that are kept to be written to again, and archived ones, in a directory below.
        let is_log = |path: &Path| path.extension().is_some_and(|extension| extension == "log");
        files_len(self.db.path(), &is_log).map(Some)
    }

    fn stalls(&self) -> Result<Vec<(String, f64)>> {
        settings::stalls(&self.db)
    }

    fn close(self) -> Result<()> {
        drop(self.db);
        Ok(())
    }
}
