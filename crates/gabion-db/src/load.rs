//! Bulk load: sorted pairs become files at once, past log, MemTable and compaction.

use crate::Db;
use crate::batch::Expiry;
use gabion_base::{Error, Result};
use gabion_engine::{FinishedFile, JobKind, LoadBuilder};
use gabion_node::{LoadGate, LoadId, LoadState, WriteGate};
use std::fmt;

/// The result of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Pairs.
    pub entries: u64,
    /// Files.
    pub files: u64,
    /// Bytes of these, as they lie on the device.
    pub bytes: u64,
}

/// Pairs on their way into a store, in ascending order of keys: [`Db::bulk_load`]. Dropped before
/// [`Self::finish`] it leaves nothing. Goes to any thread; several may be under way.
pub struct BulkLoad {
    db: Db,
    id: LoadId,
    builder: Option<LoadBuilder>,
    loaded: Loaded,
}

impl Db {
    /// Begins a bulk load: pairs that come in ascending order of their keys are written as finished
    /// files, without log, MemTable and compaction. [`BulkLoad::finish`] makes them visible, all at
    /// once.
    ///
    /// A load takes effect when it finishes, as one write would: it replaces the keys' earlier
    /// values, and later writes replace it; snapshots from before do not see it. Keys in between
    /// that it does not name stay.
    ///
    /// Each file goes to the deepest level with nothing of its range in it or above, nor much right
    /// below. In an empty range that is the last level, and every byte is written once. Over
    /// existing keys files go up to L0; compaction then brings them down, at the same cost as for
    /// writes. In L0 the files of a load count as one, so that a load of any size stops no writers
    /// by itself; but later writes lie above it and come down after it.
    ///
    /// A pair costs as much as building a file: about a third of a `put` in order and a seventh of
    /// one in no order, or less (docs/benchmarks-history.md). Reads and writes go on meanwhile.
    /// When the load finishes, MemTables are flushed and compactions under way come to their end
    /// while none begins; then writes wait, for a small flush and two commits (2 ms here). Memory:
    /// four files (`TreeConfig::sst_len`, 16 MiB) at most. One load has as many files as one
    /// version edit can name, about 4,000 with short keys (60 GB).
    ///
    /// ```
    /// # use gabion_db::{Db, Options};
    /// # let dir = std::env::temp_dir().join(format!("gabion-db-load-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() })?;
    /// let mut load = db.bulk_load()?;
    /// for n in 0..10_000 {
    ///     load.put(format!("user{n:06}").as_bytes(), b"a value")?;
    /// }
    /// assert_eq!(db.get(b"user000007")?, None);
    /// assert!(load.put(b"user", b"out of order").is_err());
    /// let loaded = load.finish()?;
    /// assert_eq!(loaded.entries, 10_000);
    /// assert_eq!(db.get(b"user000007")?.as_deref(), Some(&b"a value"[..]));
    /// # drop(db);
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), gabion_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error that made the store fail.
    pub fn bulk_load(&self) -> Result<BulkLoad> {
        self.shared().check_process()?;
        let mut core = self.lock();
        core.check()?;
        let id = core.node.begin_load()?;
        let node = &core.node;
        let (group, term, tree) = (node.config().group, node.state().term(), node.tree().config());
        let builder = Some(LoadBuilder::new(
            group,
            term,
            tree.sst_of_job(JobKind::Load, false),
            tree.sst_len,
        ));
        drop(core);
        Ok(BulkLoad { db: self.clone(), id, builder, loaded: Loaded::default() })
    }

    /// Loads pairs that come in ascending order of their keys: [`Self::bulk_load`], each pair, and
    /// `finish`.
    ///
    /// # Durability
    /// As [`BulkLoad::finish`].
    ///
    /// # Errors
    /// As [`BulkLoad::put`] and [`BulkLoad::finish`]: nothing was loaded then.
    pub fn load_sorted<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Loaded> {
        let mut load = self.bulk_load()?;
        for (key, value) in pairs {
            load.put(key, value)?;
        }
        load.finish()
    }
}

impl BulkLoad {
    /// Adds a pair; its key must be after the one before. Costs a copy into the file under
    /// construction. A full file is written in the background. No log, no MemTable, and the lock of
    /// writers once a file. Waits while files of the load are being written.
    ///
    /// # Errors
    /// Invalid input for a key that is not after the last one, naming both, and limit exceeded for
    /// a key or value that is too long: the load goes on without the pair. No space when the pool
    /// has none left beyond the needs of flushes, compactions and the log; limit exceeded past the
    /// files that one edit can name; the error that made the store fail: the load can only be
    /// dropped then.
    #[inline]
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.add(key.as_ref(), value.as_ref(), None)
    }

    /// Adds a pair until a time; see [`Db::put_expiring`]. A relative life begins with this call,
    /// not at the end of the load. Costs the same as [`Self::put`], and a read of the clock.
    ///
    /// # Errors
    /// As [`Self::put`].
    #[inline]
    pub fn put_expiring(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: Expiry,
    ) -> Result<()> {
        self.add_expiring(key.as_ref(), value.as_ref(), expiry)
    }

    fn add_expiring(&mut self, key: &[u8], value: &[u8], expiry: Expiry) -> Result<()> {
        let now_ms = self.db.shared().expiry_base_ms();
        self.add(key, value, Some(expiry.at_ms(now_ms, self.db.shared().clock())))
    }

    fn add(&mut self, key: &[u8], value: &[u8], expires_ms: Option<u64>) -> Result<()> {
        let (db, id) = (&self.db, self.id);
        db.shared().check_process()?;
        let builder = self.builder.as_mut().ok_or_else(ended)?;
        let number = || {
            let mut core = db.lock();
            core.check()?;
            core.node.load_number(id)
        };
        let file = builder.put(key, value, expires_ms, number)?;
        self.loaded.entries += 1;
        match file {
            None => Ok(()),
            Some(file) => self.hand_in(&file).inspect_err(|_| self.builder = None),
        }
    }

    /// Pairs and files so far; the unfinished file counts only in the pairs.
    #[must_use]
    pub const fn loaded(&self) -> Loaded {
        self.loaded
    }

    /// Gives a file to the machine, once it takes one.
    fn hand_in(&mut self, file: &FinishedFile) -> Result<()> {
        let shared = self.db.shared();
        let mut core = self.db.lock();
        loop {
            core.check()?;
            let len = file.bytes.len() as u64;
            let is_taken = match core.node.load_gate(self.id, len)? {
                LoadGate::Open => core.node.add_to_load(self.id, file)?,
                LoadGate::Wait(_) => false,
            };
            shared.carry_on(&mut core);
            if is_taken {
                break;
            }
            core = shared.wait(core);
        }
        drop(core);
        self.loaded.files += 1;
        self.loaded.bytes += file.bytes.len() as u64;
        Ok(())
    }

    /// Ends the load: when this returns, all of it is there. Waits for the flush of earlier writes
    /// and for compactions under way. Costs the last file, one flush of the device for all, and one
    /// edit that names the files.
    ///
    /// # Durability
    /// Survives a power cut. A kill before the return leaves all of it, or nothing.
    ///
    /// # Errors
    /// No space, also for the flush of the MemTables; the error that made the store fail. Nothing
    /// was loaded then, unless the store failed at the very end: the next opening finds all of it
    /// or nothing.
    pub fn finish(mut self) -> Result<Loaded> {
        self.db.shared().check_process()?;
        let builder = self.builder.take().ok_or_else(ended)?;
        if let Some(file) = builder.finish() {
            self.hand_in(&file)?;
        }
        let shared = self.db.shared();
        let mut core = self.db.lock();
        core.check()?;
        core.node.end_load(self.id)?;
        loop {
            shared.carry_on(&mut core);
            core.check()?;
            match core.node.load_state(self.id) {
                LoadState::Done => break,
                LoadState::Failed(error) => return Err(error),
                LoadState::Working => {}
            }
            // A load whose edit is in the log comes to its end, even without free space.
            let may_end = core.node.jobs_pause() && core.node.may_give_up_load(self.id);
            if let (true, WriteGate::Full { reason, .. }) = (may_end, core.node.write_gate()) {
                return Err(Error::no_space(reason));
            }
            core = shared.wait(core);
        }
        drop(core);
        Ok(self.loaded)
    }
}

fn ended() -> Error {
    Error::invalid("the load has failed and takes nothing more")
}

impl fmt::Debug for BulkLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkLoad").field("loaded", &self.loaded).finish_non_exhaustive()
    }
}

impl Drop for BulkLoad {
    /// A load that was not finished is given up.
    fn drop(&mut self) {
        if !self.db.shared().is_ours() {
            return;
        }
        let mut core = self.db.lock();
        core.node.forget_load(self.id);
        self.db.shared().carry_on(&mut core);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use gabion_engine::Keyspace;
    use gabion_node::AckLevel;
    use std::time::Duration;

    /// As after a start whose clock was set back.
    /// docs/faults.md: P10
    #[test]
    fn what_is_to_last_a_while_does_so_by_the_logs_time_when_the_clock_is_behind_that() {
        let dir = std::env::temp_dir().join(format!("gabion-db-behind-{}", std::process::id()));
        let options = Options::small();
        let db = Db::create(&dir, &options).unwrap();
        let ahead_ms = db.shared().clock_ms() + 3_600_000;
        let mut core = db.lock();
        core.node.pass_time(ahead_ms);
        core.node.put(Keyspace::User, b"key", b"value").unwrap();
        core.node.end_turn_at(AckLevel::Replicated).unwrap();
        db.shared().carry_on(&mut core);
        drop(core);
        let a_minute = Expiry::In(Duration::from_secs(60));
        db.put_expiring(b"written", b"value", a_minute).unwrap();
        let mut load = db.bulk_load().unwrap();
        load.put_expiring(b"loaded", b"value", a_minute).unwrap();
        load.finish().unwrap();
        for key in [&b"written"[..], b"loaded"] {
            let expires_ms = db.expires_at(key).unwrap();
            assert!(expires_ms >= Some(ahead_ms + 60_000), "{expires_ms:?} {ahead_ms}");
        }
        drop(db);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
