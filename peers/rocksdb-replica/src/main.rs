//! A replica of RubbleDB's baseline: RocksDB in a chain (`gabion-baseline`). Its settings are those of
//! `engine-rocksdb`, so a RocksDB is measured here that is the one that is measured alone.
//!
//! - Messages of the chain are RocksDB's own batches, which the head encodes once (`WriteBatch::Data`).
//! - `no_slowdown` and the read tier of the block cache tell the loop that it would have to wait, instead
//!   of letting it: "Basic Operations", non-blocking, and `include/rocksdb/options.h`.
//! - GETs of a turn are one `MultiGet`, whose values are pinned and copied once, into the reply.

use bytes::Bytes;
use engine_rocksdb::{NAME, check_codecs, db_options, failed, stalls, write_options};
use gabion_base::{Error, Result};
use gabion_baseline::{Batch, Counters, Found, State, Store, Written, program};
use gabion_workload::{EngineOptions, directory_len};
use rust_rocksdb::event_listener::{CompactionJobInfo, EventListener, FlushJobInfo};
use rust_rocksdb::properties::{self, PropName};
use rust_rocksdb::{DB, ErrorKind, ReadOptions, ReadTier, WriteBatch, WriteOptions};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a batch before its first record: a sequence number and the count of records
/// (db/write_batch.cc).
const BATCH_HEAD_LEN: usize = 12;
/// The property with the bytes of blob files, which the binding does not name.
const LIVE_BLOBS: &str = "rocksdb.live-blob-file-size";
/// Levels of a database: the default.
const LEVELS: usize = 7;

fn main() -> ExitCode {
    program::<RocksDb>()
}

/// What jobs have done.
#[derive(Default)]
struct Jobs {
    flushes: AtomicU64,
    compactions: AtomicU64,
    trivial_moves: AtomicU64,
    compaction_read_bytes: AtomicU64,
    job_written_bytes: AtomicU64,
}

/// Counts jobs as RocksDB tells of them; its statistics would cost a few percent of every request.
struct Counting(Arc<Jobs>);

impl EventListener for Counting {
    fn on_flush_completed(&self, info: &FlushJobInfo) {
        let file = info.table_properties();
        let len = file.data_size() + file.index_size() + file.filter_size();
        self.0.flushes.fetch_add(1, Relaxed);
        self.0.job_written_bytes.fetch_add(len, Relaxed);
    }

    fn on_compaction_completed(&self, info: &CompactionJobInfo) {
        let (read, written) = (info.total_input_bytes(), info.total_output_bytes());
        // A file that only changes its level is a compaction that reads and writes nothing.
        let jobs = &self.0;
        let counter = if read + written == 0 { &jobs.trivial_moves } else { &jobs.compactions };
        counter.fetch_add(1, Relaxed);
        jobs.compaction_read_bytes.fetch_add(read, Relaxed);
        jobs.job_written_bytes.fetch_add(written, Relaxed);
    }
}

/// RocksDB's batch.
#[derive(Default)]
struct Writes(WriteBatch);

impl Batch for Writes {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.0.put(key, value);
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn bytes(&self) -> &[u8] {
        self.0.data()
    }
}

struct RocksDb {
    db: DB,
    jobs: Arc<Jobs>,
    /// Options of writes and reads that may wait, and of those that may not.
    writes: [WriteOptions; 2],
    reads: [ReadOptions; 2],
}

impl RocksDb {
    fn property(&self, name: &PropName) -> Result<u64> {
        Ok(self.db.property_int_value(name).map_err(failed)?.unwrap_or(0))
    }
}

/// Whether it failed only because it would have had to wait.
fn would_wait(error: &rust_rocksdb::Error) -> bool {
    error.kind() == ErrorKind::Incomplete
}

/// Puts batches together: their records one behind the other, under a head with the sum of their counts.
fn join(parts: &[&[u8]]) -> Result<Vec<u8>> {
    let mut joined = vec![0; BATCH_HEAD_LEN];
    let mut records = 0_u32;
    for part in parts {
        let Some((head, body)) = part.split_at_checked(BATCH_HEAD_LEN) else {
            return Err(Error::corruption(format!("a batch of RocksDB has {} bytes", part.len())));
        };
        let count = head[8..].iter().rev().fold(0, |sum, &byte| sum << 8 | u32::from(byte));
        records = records
            .checked_add(count)
            .ok_or_else(|| Error::corruption(format!("a batch of RocksDB with {count} records")))?;
        joined.extend_from_slice(body);
    }
    joined[8..BATCH_HEAD_LEN].copy_from_slice(&records.to_le_bytes());
    Ok(joined)
}

impl Store for RocksDb {
    type Batch = Writes;
    const NAME: &'static str = NAME;
    /// By RocksDB's pools: it flushes in the one of high priority.
    const THREADS: [&'static [&'static str]; 2] =
        [&["rocksdb:high"], &["rocksdb:low", "rocksdb:bottom"]];

    fn version() -> String {
        engine_rocksdb::version()
    }

    fn open(options: &EngineOptions) -> Result<Self> {
        let jobs = Arc::new(Jobs::default());
        check_codecs(options)?;
        let mut db = db_options(options);
        db.add_event_listener(Counting(Arc::clone(&jobs)));
        let writes = [false, true].map(|no_slowdown| {
            let mut writes = write_options(options.log);
            writes.set_no_slowdown(no_slowdown);
            writes
        });
        let reads = [ReadTier::All, ReadTier::BlockCache].map(|tier| {
            let mut reads = ReadOptions::default();
            reads.set_read_tier(tier);
            reads
        });
        let db = DB::open(&db, &options.directory).map_err(failed)?;
        Ok(Self { db, jobs, writes, reads })
    }

    fn batch(&self, parts: &[&[u8]]) -> Result<Writes> {
        match parts {
            [whole] => Ok(Writes(WriteBatch::from_data(whole))),
            parts => Ok(Writes(WriteBatch::from_data(&join(parts)?))),
        }
    }

    fn write(&self, batch: &Writes, may_wait: bool) -> Result<Written> {
        match self.db.write_opt(&batch.0, &self.writes[usize::from(!may_wait)]) {
            Ok(()) => Ok(Written::Done),
            Err(error) if !may_wait && would_wait(&error) => Ok(Written::WouldWait),
            Err(error) => Err(failed(error)),
        }
    }

    fn get(
        &self,
        keys: &[Bytes],
        may_wait: bool,
        found: &mut dyn FnMut(usize, Found<'_>),
    ) -> Result<()> {
        let options = &self.reads[usize::from(!may_wait)];
        let values =
            self.db.batched_multi_get_pinned_batch_opt(keys, false, options).map_err(failed)?;
        for (i, value) in values.iter().enumerate() {
            match value {
                Ok(value) => found(i, value.map_or(Found::Nothing, Found::Value)),
                Err(error) if !may_wait && would_wait(&error) => found(i, Found::WouldWait),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    fn scan(
        &self,
        from: &[u8],
        limit: usize,
        may_wait: bool,
        found: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<bool> {
        let mut options = ReadOptions::default();
        options.set_read_tier(if may_wait { ReadTier::All } else { ReadTier::BlockCache });
        let mut iterator = self.db.raw_iterator_opt(options);
        iterator.seek(from);
        for i in 0..limit {
            if i > 0 {
                iterator.next();
            }
            let Some((key, value)) = iterator.item() else { break };
            found(key, value);
        }
        match iterator.status() {
            Ok(()) => Ok(true),
            Err(error) if !may_wait && would_wait(&error) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    fn state(&self) -> Result<State> {
        let pending = [
            properties::NUM_IMMUTABLE_MEM_TABLE,
            properties::NUM_RUNNING_FLUSHES,
            properties::NUM_RUNNING_COMPACTIONS,
            properties::COMPACTION_PENDING,
        ];
        let pending = pending.iter().map(|name| self.property(name)).sum::<Result<u64>>()?;
        let levels = (0..LEVELS)
            .map(|level| self.property(&properties::num_files_at_level(level)))
            .collect::<Result<_>>()?;
        let jobs = &self.jobs;
        Ok(State {
            counters: Counters {
                flushes: jobs.flushes.load(Relaxed),
                compactions: jobs.compactions.load(Relaxed),
                trivial_moves: jobs.trivial_moves.load(Relaxed),
                compaction_read_bytes: jobs.compaction_read_bytes.load(Relaxed),
                job_written_bytes: jobs.job_written_bytes.load(Relaxed),
            },
            active_bytes: self.property(properties::CUR_SIZE_ACTIVE_MEM_TABLE)?,
            pending,
            levels,
            live_bytes: self.property(properties::LIVE_SST_FILES_SIZE)?
                + self.db.property_int_value(LIVE_BLOBS).map_err(failed)?.unwrap_or(0),
            space_bytes: directory_len(self.db.path())?,
            stalls: stalls(&self.db)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(directory: &std::path::Path) -> EngineOptions {
        EngineOptions {
            memtable_len: 1 << 20,
            cache_len: 8 << 20,
            is_direct: false,
            ..EngineOptions::new(directory.to_path_buf())
        }
    }

    fn value_of(store: &RocksDb, key: &'static [u8]) -> Option<Vec<u8>> {
        let mut value = None;
        let keys = [Bytes::from_static(key)];
        store
            .get(&keys, true, &mut |_, found| match found {
                Found::Value(found) => value = Some(found.to_vec()),
                Found::Nothing | Found::WouldWait => {}
            })
            .expect("a read");
        value
    }

    #[test]
    fn batches_of_several_turns_are_one_write_in_their_order() {
        let name = format!("replica-rocksdb-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let store = RocksDb::open(&options(&directory)).expect("a database");
        let mut batches: [Writes; 3] = Default::default();
        batches[0].put(b"a", b"1");
        batches[0].put(b"b", b"1");
        batches[1].put(b"b", b"2");
        batches[2].put(b"c", b"3");
        let parts: Vec<&[u8]> = batches.iter().map(Batch::bytes).collect();
        let joined = store.batch(&parts).expect("a batch");
        assert_eq!(store.write(&joined, true).expect("a write"), Written::Done);
        let values = [value_of(&store, b"a"), value_of(&store, b"b"), value_of(&store, b"c")];
        let expected = [b"1", b"2", b"3"].map(|value| Some(value.to_vec()));
        assert_eq!(values, expected);
        assert!(store.batch(&[b"short", b"x"]).is_err());
        let torn = store.batch(&[&parts[0][..BATCH_HEAD_LEN + 2]]).expect("not looked into yet");
        assert!(store.write(&torn, true).is_err(), "half a record");
        drop(store);
        std::fs::remove_dir_all(&directory).expect("the directory goes");
    }
}
