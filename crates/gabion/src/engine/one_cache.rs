//! One cache for blocks, indexes and filters, as in the engines that Gabion is compared with.
//!
//! The store has two budgets: for decoded blocks, and for the indexes and filters of open files.
//! RocksDB's cache holds both (`cache_index_and_filter_blocks`, which its guide recommends). So
//! with two budgets of the same size Gabion would have more memory in the same run: by 2 % of the
//! data, which is a tenth of a cache for a quarter of it. Here the *current* bytes of indexes and
//! filters are taken from the blocks, and set anew while the store runs:
//!
//! ```text
//!   cache_len  ├────────── blocks ──────────┤── indexes, filters ──┤
//!                 at least 1/8              ◄─ what is open: asked ten times a second
//! ```

use gabion_base::{Error, ErrorKind, Result};
use gabion_db::{Db, RunOptions};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The blocks' guaranteed part of the cache, one in so many, however much indexes and filters want.
/// If these do not fit into the rest, they are read again and again, as in any cache that is
/// smaller than the indexes.
const BLOCKS_PART: usize = 8;

/// How long the blocks' budget lags behind the open files. A look costs some 50 µs for a thousand
/// files: half a thousandth of a processor, which counts in the measurement.
const TICK: Duration = Duration::from_millis(100);

/// Budgets that are `cache_len` bytes together while indexes and filters take `indexes_len`.
pub(super) fn budgets(cache_len: usize, indexes_len: usize) -> RunOptions {
    let open_files_len = cache_len - cache_len / BLOCKS_PART;
    let block_cache_len = cache_len - indexes_len.min(open_files_len);
    RunOptions { block_cache_len, open_files_len, ..RunOptions::default() }
}

/// Keeps blocks, indexes and filters of a store together within one budget, until it is dropped.
pub(super) struct OneCache {
    /// The thread ends when this is gone.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl OneCache {
    /// For a store that was opened with `run`.
    ///
    /// # Errors
    /// The system's, when no thread can be started.
    pub(super) fn of(db: &Db, run: RunOptions, cache_len: usize) -> Result<Self> {
        let (stop, stopped) = channel::<()>();
        let (db, mut run) = (db.clone(), run);
        let keep = move || {
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                share_out(&db, &mut run, cache_len)?;
            }
            Ok(())
        };
        let thread = Builder::new().name("one-cache".to_owned()).spawn(keep).map_err(|error| {
            Error::with_source(ErrorKind::Io, "the thread that shares out the cache", error)
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    /// Ends the thread, which lets go of the store.
    ///
    /// # Errors
    /// The store's, which failed meanwhile: the shares stayed as they were then.
    pub(super) fn end(mut self) -> Result<()> {
        self.join()
    }

    fn join(&mut self) -> Result<()> {
        self.stop = None;
        let outcome = self.thread.take().map(JoinHandle::join);
        outcome.unwrap_or(Ok(Ok(()))).unwrap_or_else(|_| {
            Err(Error::unavailable("the thread that shares out the cache panicked"))
        })
    }
}

impl Drop for OneCache {
    fn drop(&mut self) {
        // A caller that needs the result ends it.
        let _ = self.join();
    }
}

/// Gives blocks the bytes that indexes and filters leave. The budget of these stays as it is, so no
/// file is closed.
fn share_out(db: &Db, run: &mut RunOptions, cache_len: usize) -> Result<()> {
    let RunOptions { block_cache_len, open_files_len, .. } =
        budgets(cache_len, db.stats().index_bytes);
    let next = RunOptions { block_cache_len, open_files_len, ..*run };
    if next != *run {
        db.set_run_options(next)?;
        *run = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Embedded, db_options};
    use super::*;
    use gabion_base::units::MIB;
    use gabion_workload::{Engine, EngineOptions, Log};
    use std::time::Instant;

    const RECORDS: u64 = 60_000;

    fn key(number: u64) -> [u8; 16] {
        let mut key = [b'k'; 16];
        key[8..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        key
    }

    fn kind(engine: &Embedded, name: &str) -> (u64, u64) {
        let stats = engine.db.stats();
        let kind = stats.memory.kinds.iter().find(|kind| kind.name == name).unwrap();
        (kind.bytes, kind.max.unwrap())
    }

    #[test]
    fn budgets_are_the_cache_together_and_blocks_keep_a_part() {
        for (cache_len, indexes_len) in [(0, 0), (1, 9), (1 << 20, 0), (1 << 20, 1000)] {
            let RunOptions { block_cache_len, open_files_len, .. } =
                budgets(cache_len, indexes_len);
            assert_eq!(block_cache_len + indexes_len.min(open_files_len), cache_len);
        }
        let squeezed = budgets(800, 10_000);
        assert_eq!((squeezed.block_cache_len, squeezed.open_files_len), (100, 700));
    }

    #[test]
    fn what_is_open_of_a_store_is_taken_from_its_blocks() {
        let name = format!("gabion-one-cache-{}", std::process::id());
        let options = EngineOptions {
            disk_len: 64 * MIB,
            memtable_len: MIB,
            cache_len: 4 * MIB,
            log: Log::Off,
            ..EngineOptions::new(std::env::temp_dir().join(name))
        };
        let opened = db_options(&options).run;
        assert_eq!(opened.block_cache_len as u64, options.cache_len, "nothing is open yet");
        let engine = Embedded::open(&options).unwrap();
        for number in 0..RECORDS {
            engine.put(&key(number), &[number as u8; 100]).unwrap();
        }
        engine.flush().unwrap();
        engine.wait_quiet().unwrap();
        let mut found = 0;
        engine.scan(&[0], RECORDS as usize, &mut |_, _| found += 1).unwrap();
        assert_eq!(found, RECORDS);
        let (indexes, indexes_max) = kind(&engine, "open_files");
        assert!(indexes > options.cache_len / 40, "{indexes}: what would be beside the cache");
        let is_shared = || kind(&engine, "block_cache").1 + indexes == options.cache_len;
        let begun = Instant::now();
        while !is_shared() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(TICK / 4);
        }
        let (blocks, blocks_max) = kind(&engine, "block_cache");
        assert_eq!(blocks_max + indexes, options.cache_len);
        assert!(blocks <= blocks_max && indexes <= indexes_max);
        engine.close().unwrap();
        std::fs::remove_dir_all(&options.directory).unwrap();
    }
}
