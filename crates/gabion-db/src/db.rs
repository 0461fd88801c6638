//! The store's handle: opening, writing, and its own statistics.

use crate::batch::{Expiry, Op, WriteBatch};
use crate::core::{Core, Handle, IDLE_TICK, Shared, Sink, Threads};
use crate::drain::Drains;
use crate::iter::{Bounds, Cursor, EngineRange, Keys, Range};
use crate::options::{Durability, Options};
use crate::read::{Placements, Snapshot, look_up_len_newest, look_up_many, look_up_newest};
use bytes::Bytes;
use gabion_base::units::{KEY_LEN_MAX, RECORD_OPS_MAX, SLOT_LEN, VALUE_LEN_MAX};
use gabion_base::{Error, ErrorKind, GroupId, ReplicaId, Result};
use gabion_engine::counter::OPERAND_LEN;
use gabion_engine::range_delete::MEMTABLE_RANGES_MAX;
use gabion_engine::{Codecs, Found, Keyspace, LevelStats, RangeSize, ValuesStats, WriteLimits};
use gabion_fabric::fork::Process;
use gabion_host::RunOptions;
use gabion_host::cache::WarmStats;
use gabion_host::clock::Clock;
use gabion_host::jobs::{IoThread, JobThreads};
use gabion_host::memory::{Budgets, Memory};
use gabion_host::replica::{self, LostRing, NewPool, OpenedReplica};
use gabion_node::{AckLevel, Counters, GroupConfig, StopState, WriteGate};
use gabion_pool::Counts as SlotCounts;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, MutexGuard};

/// Bytes that one operation takes in a record beside its key and value, at most.
const OPERATION_OVERHEAD: usize = gabion_engine::batch::OPERATION_OVERHEAD_MAX;
/// Niceness of jobs: none. Callers have threads of their own, and one that writes without a pause
/// would only wait for compactions later (overwriting took a seventh longer with 10).
const NICE: u8 = 0;

/// An open store. A clone is the same store, and every method may be called on any thread. It
/// closes with the last clone as by [`Self::close`], but an error is dropped. Jobs under way are
/// waited for, and the lock of the directory is given back.
///
/// A process may end without any call: everything acknowledged is there when the store is opened
/// again, after a kill too, except writes at [`Durability::MemTable`]. Only a closed store can do
/// without its file `ring`. A snapshot that outlives the last clone can still be read, and keeps
/// the lock.
///
/// The store belongs to the process that opened it. In a fork every call is an error; calls that
/// return none panic ([`Self::snapshot`], [`Self::iter`], [`Self::stats`] and the like), and
/// dropping the store there does nothing. A fork that lives on keeps the lock of the directory, as
/// it has the open file.
#[derive(Clone)]
pub struct Db(Arc<Open>);

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Db").finish_non_exhaustive()
    }
}

struct Open {
    shared: Handle,
}

impl Drop for Open {
    /// As [`Db::close`]. Threads end before the lock of the pool is given back: their writes must
    /// not land later.
    fn drop(&mut self) {
        if !self.shared.is_ours() {
            // The threads to wait for are not there, and the open files are the parent's: all of it
            // stays until the process ends.
            std::mem::forget(self.shared.clone());
            return;
        }
        // A caller that needs the result closes before.
        let _ = close(&self.shared);
        let threads = self.shared.lock().threads.take();
        drop(threads);
    }
}

/// As [`Db::close`].
fn close(shared: &Shared) -> Result<()> {
    shared.check_process()?;
    let has_unlogged = {
        let core = shared.lock();
        match core.node.stop_state() {
            StopState::Stopped => return Ok(()),
            _ => core.check()?,
        }
        // A store whose opening failed has no threads to carry anything out.
        if core.threads.is_none() {
            return Ok(());
        }
        core.node.has_unlogged()
    };
    // Writes that are in no log go to a file.
    let flushed = if has_unlogged { flush(shared) } else { Ok(()) };
    let mut core = shared.lock();
    core.node.stop();
    loop {
        shared.carry_on(&mut core);
        core.check()?;
        match core.node.stop_state() {
            StopState::Stopped => break,
            StopState::Stuck(why) => {
                let error = Error::no_space(format!("the log cannot be written out: {why}"));
                core.is_closed = true;
                return Err(error);
            }
            StopState::Runs | StopState::Draining(_) | StopState::Marking => {
                core = shared.wait(core);
            }
        }
    }
    core.is_closed = true;
    flushed
}

/// A store's statistics.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DbStats {
    /// Levels of the tree, from L0 on.
    pub levels: Vec<LevelStats>,
    /// Large values that lie apart from the tree ([`TreeConfig::large_values`]): files, and bytes
    /// that live and that are dead.
    ///
    /// [`TreeConfig::large_values`]: gabion_engine::TreeConfig::large_values
    pub values: ValuesStats,
    /// Bytes that compactions have yet to rewrite until every level is within its target: the debt
    /// of a burst of writes (RocksDB: pending compaction bytes). 0 when compaction is quiet.
    pub compaction_debt: u64,
    /// Counters of flushes and compactions.
    pub counters: Counters,
    /// Bytes of device that files and log take, whole slots.
    pub slot_bytes: u64,
    /// Slots by state. Slots of files that compactions replaced stay *retired* until nothing reads
    /// them; `held` shows their readers.
    pub slots: SlotCounts,
    /// Snapshots and cursors that are open.
    pub held: Held,
    /// Bytes that readers read of files.
    pub read_bytes: u64,
    /// Look-ups of blocks that found theirs in memory, and those that did not.
    pub cache_hits: u64,
    /// See `cache_hits`.
    pub cache_misses: u64,
    /// Blocks evicted for others. Blocks of deleted files do not count.
    pub cache_evictions: u64,
    /// Blocks of built files that were put into the cache before anybody asked, as readers had
    /// cached the job's inputs; their bytes; and files that could not be read for that.
    pub warmed: WarmStats,
    /// Bytes of memory for blocks, and for the indexes and filters of open files.
    pub cache_bytes: usize,
    /// See `cache_bytes`.
    pub index_bytes: usize,
    /// Live files with corrupt bytes. Reads that need these bytes fail; the others go on.
    pub damaged_files: usize,
    /// Bytes of memory charged for MemTables.
    pub memtable_bytes: u64,
    /// All memory of the store, by purpose.
    pub memory: Memory,
}

/// Readers that keep MemTables and files from being given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Moments in use. A [`Snapshot`] is one, together with its clones and all its cursors and
    /// ranges. A cursor or range of the store itself is one, and so is a checkpoint while it is
    /// made.
    pub moments: usize,
    /// The age of the oldest moment, in milliseconds, to within 200; 0 without any.
    pub oldest_ms: u64,
}

/// A caller's wish to the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// To write, not only to delete.
    Put,
    /// To delete keys.
    Delete,
    /// To delete ranges, or everything.
    Clear,
    /// To keep the writes so far in a file.
    Keep,
}

/// The machine, once it takes the wish. While jobs pause because their device has no space, nobody
/// frees any until an operator does, so a writer would wait in vain; likewise a writer that waits
/// for the compaction of a damaged file. The MemTable can be kept all the same: that is only one
/// more file in L0, as no write follows.
fn gate(shared: &Shared, wish: Wish) -> Result<MutexGuard<'_, Core>> {
    shared.check_process()?;
    let mut core = shared.lock();
    loop {
        core.check()?;
        let has_put = wish == Wish::Put;
        let gives_up = has_put || core.node.jobs_pause();
        match core.node.write_gate() {
            WriteGate::Open => return Ok(core),
            WriteGate::Full { takes_deletes: true, .. } if !has_put => return Ok(core),
            WriteGate::Full { takes_clears: true, .. }
                if matches!(wish, Wish::Clear | Wish::Keep) =>
            {
                return Ok(core);
            }
            WriteGate::Full { reason, .. } if gives_up => return Err(Error::no_space(reason)),
            WriteGate::Refuse(reason) => return Err(Error::unavailable(reason)),
            WriteGate::Wait(_) | WriteGate::Full { .. } => match core.node.writes_wait_in_vain() {
                None => {
                    core.node.hold_write(shared.clock_ms());
                    core = shared.wait(core);
                }
                Some(_) if wish == Wish::Keep => return Ok(core),
                Some(damage) => {
                    let why = "L0 is full, and its compaction needs what is damaged";
                    return Err(damage.clone().within(why));
                }
            },
        }
    }
}

/// As [`Db::flush`].
fn flush(shared: &Shared) -> Result<()> {
    let mut core = gate(shared, Wish::Keep)?;
    core.node.seal_memtable()?;
    // Writes that come meanwhile are not waited for: they might never pause.
    let wanted = core.node.tree().active_id();
    shared.carry_on(&mut core);
    while core.node.tree().flushed().memtable.next() < wanted {
        core.check()?;
        if let (true, WriteGate::Full { reason, .. }) =
            (core.node.jobs_pause(), core.node.write_gate())
        {
            return Err(Error::no_space(reason));
        }
        // This also finds a flush that does not begin because too few slots are left.
        core.node.is_quiet()?;
        core = shared.wait(core);
    }
    let edit = core.node.tree().last_edit();
    while !core.node.is_edit_kept(edit) {
        core.check()?;
        core = shared.wait(core);
    }
    Ok(())
}

fn check_lengths(key: &[u8], value: &[u8]) -> Result<()> {
    for (what, len, max) in [("key", key.len(), KEY_LEN_MAX), ("value", value.len(), VALUE_LEN_MAX)]
    {
        if len > max {
            return Err(Error::limit(format!("{what} of {len} bytes is over the limit of {max}")));
        }
    }
    Ok(())
}

/// Checks lengths and counts. Returns the batch's wish and the bytes of its operands.
fn check_batch(batch: &WriteBatch) -> Result<(Wish, usize)> {
    let (mut wish, mut operands_len, mut ranges) = (Wish::Clear, 0, 0);
    for op in batch.operations() {
        let (key, value) = match op {
            Op::Put(key, value) | Op::PutExpiring(key, value, _) => (key, value),
            Op::Add(key, _) | Op::Delete(key) | Op::DeleteRange(key, _) => (key, &[][..]),
        };
        check_lengths(key, value)?;
        match op {
            Op::Put(..) | Op::PutExpiring(..) => wish = Wish::Put,
            Op::Add(..) => (wish, operands_len) = (Wish::Put, operands_len + OPERAND_LEN),
            Op::Delete(_) if wish == Wish::Clear => wish = Wish::Delete,
            Op::Delete(_) => {}
            Op::DeleteRange(_, to) => {
                check_lengths(to.unwrap_or_default(), &[])?;
                ranges += 1;
            }
        }
    }
    if ranges > MEMTABLE_RANGES_MAX {
        return Err(Error::limit(format!(
            "a batch with {ranges} range deletes; the limit is {MEMTABLE_RANGES_MAX}"
        )));
    }
    Ok((wish, operands_len))
}

/// The current time; see [`Db::time`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreTime {
    /// The store's time, in milliseconds: it measures how long a key lives.
    pub now_ms: u64,
    /// The system clock's time, in milliseconds since 1970 (UTC).
    pub system_ms: u64,
}

fn put_expiring(
    core: &mut Core,
    key: &[u8],
    value: &[u8],
    expiry: Expiry,
    clock: &Clock,
) -> Result<()> {
    // The clock may be behind the log's time: a life of one second lasts a second of log time.
    let now_ms = clock.now_ms().max(core.node.tree().now_ms());
    let at_ms = expiry.at_ms(now_ms, clock);
    match at_ms > now_ms {
        true => core.node.put_expiring(Keyspace::User, key, value, at_ms),
        false => core.node.delete(Keyspace::User, key),
    }
}

fn add(core: &mut Core, key: &[u8], delta: i64, clock_ms: u64) -> Result<()> {
    // A value that has expired by now must not be added to.
    core.node.pass_time(clock_ms.max(core.node.now_ms()));
    core.node.add(Keyspace::User, key, delta)
}

impl Db {
    /// Makes a store in `dir`, which is made if it is not there, and opens it.
    ///
    /// Costs reserving the bytes of the pool and of the ring, some flushes of the device, and
    /// [`Self::open`]. The reservation is quick on a file system that only notes it (ext4, XFS),
    /// and elsewhere a write of all the bytes.
    ///
    /// # Durability
    /// The empty store survives a power cut.
    ///
    /// # Errors
    /// Invalid input when the directory holds a store already or an option is out of its limits; no
    /// space; I/O.
    pub fn create(dir: impl AsRef<Path>, options: &Options) -> Result<Self> {
        Self::create_in(dir.as_ref(), options)
    }

    fn create_in(dir: &Path, options: &Options) -> Result<Self> {
        options.check()?;
        let [a, b, c, d, ..] = replica::random_id()?;
        let group = GroupId(u64::from(u32::from_le_bytes([a, b, c, d]).max(1)));
        let config = options.group(group, options.pool_len)?;
        let pool = NewPool { len: options.pool_len, io: options.io };
        replica::create_replica(dir, pool, &config, ReplicaId(1))?;
        Self::open(dir, options)
    }

    /// Opens the store in `dir`. The fixed options (the lengths of pool, ring and segments, and the
    /// tree's shape) must be the ones that it was made with, or be left at their defaults.
    ///
    /// Costs reading the files' places and applying the log that is not in files yet: as a rule no
    /// more than the MemTables hold, and little after a [`Self::flush`]; a commit or two; and two
    /// threads besides those of [`RunOptions::compactions_max`]. No SST is read, so a damaged one
    /// is found by the first read of it.
    ///
    /// # Errors
    /// Not found, also when `pool` is no pool of Gabion's; busy when another process, or another
    /// `Db` of this one, has it. Invalid input when a fixed option differs from the store's, naming
    /// both, when it is a member of a group of several replicas, or when [`RunOptions::limits`] are
    /// too much for its pool. Corruption with its place; also for a lost ring of a store that was
    /// not closed, with the writes that may be missing, unless [`Options::accept_lost_ring`] is
    /// set. Unsupported for another format.
    pub fn open(dir: impl AsRef<Path>, options: &Options) -> Result<Self> {
        Self::open_in(dir.as_ref(), options)
    }

    fn open_in(dir: &Path, options: &Options) -> Result<Self> {
        Self::open_at(dir, options, Clock::start())
    }

    /// As [`Self::open`], by this clock.
    pub(crate) fn open_at(dir: &Path, options: &Options, clock: Clock) -> Result<Self> {
        options.run.check()?;
        let alone = |group: &GroupConfig, _| match group.founders.len() {
            1 => options.check_fixed(dir, group),
            count => Err(Error::invalid(format!(
                "{}: belongs to a group of {count} replicas, a server runs those",
                dir.display()
            ))),
        };
        let lost = if options.accept_lost_ring { LostRing::GoOn } else { LostRing::Refuse };
        let (io, node) = (options.io, options.node());
        let opened = replica::open_replica(dir, io, node, lost, &clock, alone)?;
        let OpenedReplica { mut node, parts, remarks, .. } = opened;
        node.set_codecs(options.run.codecs)?;
        node.set_write_limits(options.run.limits)?;
        node.set_large_values(options.run.large_values)?;
        node.set_value_compression(options.run.value_compression)?;
        node.set_collection_rate(options.run.collection_bytes_per_s)?;
        let (placements, drains) = (Placements::new(&parts), Drains::new(&parts)?);
        let shared = Arc::new(Shared::new(
            node,
            clock,
            options.run,
            placements,
            drains,
            parts.group,
            parts.buffers.clone(),
            Process::this()?,
        ));
        shared.notices().extend(remarks);
        let sink = Sink(Arc::downgrade(&shared));
        let ticker = sink.clone();
        let threads = Threads {
            jobs: JobThreads::start(&parts, options.run.compactions_max, NICE, &sink)?,
            io: IoThread::start(&parts, &sink, IDLE_TICK, move || ticker.tick())?,
        };
        let db = Self(Arc::new(Open { shared }));
        let mut core = db.lock();
        core.threads = Some(threads);
        db.0.shared.carry_on(&mut core);
        while !core.node.is_readable() || matches!(core.node.write_gate(), WriteGate::Refuse(_)) {
            core.check()?;
            core = db.0.shared.wait(core);
        }
        drop(core);
        Ok(db)
    }

    /// Closes the store, even while others have a handle. All writes are flushed, and the store
    /// remembers that it was closed, so that it can be opened again without its file `ring`.
    /// Afterwards nothing is written any more, but handles, snapshots and cursors can still read.
    ///
    /// Costs writing the bytes that only the ring holds, at most [`Options::ring_len`], a flush of
    /// the device, and a commit with another flush. Also a [`Self::flush`] if something was written
    /// at [`Durability::MemTable`].
    ///
    /// ```
    /// # use gabion_db::{Db, Options};
    /// # let dir = std::env::temp_dir().join(format!("gabion-db-close-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # let options = Options { pool_len: 128 << 20, ..Options::default() };
    /// let db = Db::create(&dir, &options)?;
    /// db.put(b"elm", b"green")?;
    /// db.close()?;
    /// std::fs::remove_file(dir.join("ring")).unwrap();
    /// assert_eq!(Db::open(&dir, &options)?.get(b"elm")?.as_deref(), Some(&b"green"[..]));
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), gabion_base::Error>(())
    /// ```
    ///
    /// # Durability
    /// All writes survive a power cut, the loss of the ring, and both.
    ///
    /// # Errors
    /// The error that made the store fail; no space when the pool has no slot for the log. The
    /// store is as after a kill then.
    pub fn close(self) -> Result<()> {
        close(&self.0.shared)
    }

    /// Opens the store in `dir`, or makes it when there is none. Costs what [`Self::open`] or
    /// [`Self::create`] costs.
    ///
    /// # Durability
    /// As [`Self::create`] for a new store.
    ///
    /// # Errors
    /// As [`Self::open`] and [`Self::create`].
    pub fn open_or_create(dir: impl AsRef<Path>, options: &Options) -> Result<Self> {
        Self::open_or_create_in(dir.as_ref(), options)
    }

    fn open_or_create_in(dir: &Path, options: &Options) -> Result<Self> {
        match replica::holds_replica(dir)? {
            true => Self::open(dir, options),
            false => Self::create(dir, options),
        }
    }

    pub(crate) fn shared(&self) -> &Handle {
        &self.0.shared
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.0.shared.lock()
    }

    /// Sets a key. A key has up to 64 KiB, a value up to 8 MiB.
    ///
    /// Costs a copy into the ring and one into the MemTable, under the lock that all writers of the
    /// store share. As a rule the only system call is a wake-up for each 64 KiB of log, and no file
    /// is read. Waits only while flushes or compactions are behind.
    ///
    /// # Durability
    /// [`Durability::Ring`].
    ///
    /// # Errors
    /// As [`Self::write`].
    #[inline]
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_bytes(key.as_ref(), value.as_ref(), Durability::Ring)
    }

    /// As [`Self::put`], with another durability.
    ///
    /// ```
    /// # use gabion_db::{Db, Durability, Options};
    /// # let dir = std::env::temp_dir().join(format!("gabion-db-put-with-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # let options = Options { pool_len: 128 << 20, ..Options::default() };
    /// # let db = Db::create(&dir, &options)?;
    /// db.put_with(b"order:17", b"paid", Durability::Flushed)?; // survives a power cut from here on
    ///
    /// // An index of orders can be made again: neither log nor device until it is flushed.
    /// for day in 1..=31_u8 {
    ///     db.put_with(&[b"by-day:", &[day][..]].concat(), b"17", Durability::MemTable)?;
    /// }
    /// db.flush()?;
    /// # drop(db);
    /// # assert_eq!(Db::open(&dir, &options)?.get(b"by-day:\x1f")?.as_deref(), Some(&b"17"[..]));
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), gabion_base::Error>(())
    /// ```
    ///
    /// # Durability
    /// As `durability` says, when it returns.
    ///
    /// # Errors
    /// As [`Self::write`].
    #[inline]
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        self.put_bytes(key.as_ref(), value.as_ref(), durability)
    }

    fn put_bytes(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        check_lengths(key, value)?;
        self.apply(durability, 1, key.len() + value.len(), Wish::Put, |core| {
            core.node.put(Keyspace::User, key, value)
        })
    }

    /// Sets a key until a time: from then on the key counts as deleted. [`Self::put`] of the same
    /// key makes it stay; to change the time alone, write the value again.
    ///
    /// The time of the log decides what has expired. It goes on with each write and, once something
    /// is due, with the first read or within 0.2 s. It never goes back, neither with the system's
    /// clock nor over a restart: that clock is read when the store is opened, not when it is set.
    /// While the log takes nothing because the store has failed, time stands still. A [`Snapshot`]
    /// keeps the time of its creation.
    ///
    /// Costs the same as `put` and 8 bytes in log, memory and file. Compaction gives the space
    /// back, as for a deleted key. Each millisecond in which something expires may cost a log
    /// record of about 100 bytes. So do ten a second in a process that began with such keys in
    /// files, until the last of them has expired.
    ///
    /// ```
    /// # use gabion_db::{Db, Expiry, Options};
    /// # use std::time::Duration;
    /// # let dir = std::env::temp_dir().join(format!("gabion-db-expiry-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() })?;
    /// db.put_expiring(b"session", b"open", Expiry::In(Duration::from_secs(3600)))?;
    /// let found = db.look_up(b"session")?.unwrap();
    /// assert_eq!(&found.value[..], b"open");
    /// assert_eq!(found.expires_ms, db.expires_at(b"session")?);
    ///
    /// db.put_expiring(b"offer", b"half price", Expiry::AtMs(1_000_000_000_000))?; // 2001
    /// assert_eq!(db.get(b"offer")?, None);
    ///
    /// db.put(b"session", b"for good")?;
    /// assert_eq!(db.expires_at(b"session")?, None);
    /// # drop(db);
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), gabion_base::Error>(())
    /// ```
    ///
    /// # Durability
    /// [`Durability::Ring`].
    ///
    /// # Errors
    /// As [`Self::write`].
    #[inline]
    pub fn put_expiring(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: Expiry,
    ) -> Result<()> {
        self.put_bytes_expiring(key.as_ref(), value.as_ref(), expiry)
    }

    fn put_bytes_expiring(&self, key: &[u8], value: &[u8], expiry: Expiry) -> Result<()> {
        check_lengths(key, value)?;
        self.apply(Durability::Ring, 1, key.len() + value.len(), Wish::Put, |core| {
            put_expiring(core, key, value, expiry, self.0.shared.clock())
        })
    }

    /// Adds to a counter without reading it: a blind write, with no lock on the key and no look at
    /// a file. The value is a decimal number, as [`Self::put`] with `b"42"` or Redis's `INCRBY`
    /// would write it.
    ///
    /// - A key that is not there, was deleted or has expired counts as 0, and the result does not
    ///   expire.
    /// - A key that expires keeps its expiry.
    /// - A value that is no decimal number within 64 bits stays as it is, and additions to it are
    ///   lost.
    /// - The sum stops at `i64::MIN` and `i64::MAX`, and the next addition goes on from there.
    ///
    /// Additions take effect in the order in which the log takes them, among each other and with
    /// other writes; from several threads each counts once.
    ///
    /// Costs the same as `put` with a value of 18 bytes. A read of the key adds up all additions
    /// since its last compaction, newest first, some 50 ns for each; flushes and compactions merge
    /// them into one, or into the value. So this is for counters that are written more often than
    /// read; for a read with each write, `get` and `put` are cheaper. In a key range where keys
    /// expire, additions before and after an expiry stay apart until a compaction merges them with
    /// the value; and the expired values under them stay until then, too.
    ///
    /// ```
    /// # use gabion_db::{Db, Durability, Options, WriteBatch};
    /// # let dir = std::env::temp_dir().join(format!("gabion-db-add-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() })?;
    /// db.add(b"views:/index", 1)?;
    /// let mut batch = WriteBatch::new();
    /// batch.put(b"page:/index", b"Welcome");
    /// batch.add(b"edits:/index", 1);
    /// batch.add(b"views:/index", 40);
    /// db.write(&batch, Durability::Ring)?;
    /// assert_eq!(db.get(b"views:/index")?.as_deref(), Some(&b"41"[..]));
    ///
    /// db.put(b"stock", b"12")?;
    /// db.add(b"stock", -5)?;
    /// assert_eq!(db.get(b"stock")?.as_deref(), Some(&b"7"[..]));
    /// # drop(db);
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), gabion_base::Error>(())
    /// ```
    ///
    /// # Durability
    /// [`Durability::Ring`].
    ///
    /// # Errors
    /// As [`Self::write`].
    #[inline]
    pub fn add(&self, key: impl AsRef<[u8]>, delta: i64) -> Result<()> {
        self.add_to_bytes(key.as_ref(), delta)
    }

    fn add_to_bytes(&self, key: &[u8], delta: i64) -> Result<()> {
        check_lengths(key, &[])?;
        self.apply(Durability::Ring, 1, key.len() + OPERAND_LEN, Wish::Put, |core| {
            add(core, key, delta, self.0.shared.clock_ms())
        })
    }

    /// Deletes a key, whether it is there or not.
    ///
    /// Costs the same as [`Self::put`] without a value, and no look whether the key is there. The
    /// deleted value takes its space until compactions come by.
    ///
    /// # Durability
    /// [`Durability::Ring`].
    ///
    /// # Errors
    /// As [`Self::write`].
    #[inline]
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_bytes(key.as_ref(), Durability::Ring)
    }

    /// As [`Self::delete`], with another durability.
    ///
    /// # Durability
    /// As `durability` says, when it returns.
    ///
    /// # Errors
    /// As [`Self::write`].
    #[inline]
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.delete_bytes(key.as_ref(), durability)
    }

    fn delete_bytes(&self, key: &[u8], durability: Durability) -> Result<()> {
        check_lengths(key, &[])?;
        self.apply(durability, 1, key.len(), Wish::Delete, |core| {
            core.node.delete(Keyspace::User, key)
        })
    }

    /// Carries out a batch, all or nothing: readers see none of it or all. Waits while flushes or
    /// compactions are behind.
    ///
    /// Costs one record of the log, and the lock of writers once, for as long as the batch is
    /// applied; each operation then costs the same as alone. With [`Durability::Flushed`] it also
    /// costs a flush of the device, without the lock.
    ///
    /// # Durability
    /// As `durability` says, when it returns.
    ///
    /// # Errors
    /// Limit exceeded for a key, value or batch that is too long, and nothing is written then. No
    /// space when the pool is full; deletes are still taken then. Corruption with the file's name
    /// when L0 is full and its compaction needs a damaged file. The error that made the store fail.
    pub fn write(&self, batch: &WriteBatch, durability: Durability) -> Result<()> {
        if batch.is_empty() {
            return match durability {
                Durability::MemTable | Durability::Ring => Ok(()),
                Durability::Flushed => self.sync(),
            };
        }
        let (wish, operands_len) = check_batch(batch)?;
        let bytes = batch.byte_len() + operands_len;
        self.apply(durability, batch.len(), bytes, wish, |core| {
            // The time of the write, not of the start of its wait.
            let now_ms = self.0.shared.clock_ms();
            batch.operations().try_for_each(|op| match op {
                Op::Put(key, value) => core.node.put(Keyspace::User, key, value),
                Op::PutExpiring(key, value, expiry) => {
                    put_expiring(core, key, value, expiry, self.0.shared.clock())
                }
                Op::Add(key, delta) => add(core, key, delta, now_ms),
                Op::Delete(key) => core.node.delete(Keyspace::User, key),
                Op::DeleteRange(b"", None) => core.node.clear(),
                Op::DeleteRange(from, to) => core.node.delete_range(Keyspace::User, from, to),
            })
        })
    }

    fn apply(
        &self,
        durability: Durability,
        count: usize,
        bytes: usize,
        wish: Wish,
        write: impl FnOnce(&mut Core) -> Result<()>,
    ) -> Result<()> {
        let shared = &self.0.shared;
        let mut core = gate(shared, wish)?;
        let (len, room) = (bytes + count * OPERATION_OVERHEAD, core.node.turn_room());
        if len > room || count > RECORD_OPS_MAX {
            return Err(Error::limit(format!(
                "a batch of {count} operations that takes up to {len} bytes; the limits are \
                 {RECORD_OPS_MAX} and {room}"
            )));
        }
        // Lengths and space were checked: after an error here memory holds more than the log.
        let end_turn = |core: &mut Core| match durability {
            Durability::MemTable => core.node.end_turn_unlogged().map(|()| core.node.log_end()),
            Durability::Ring => core.node.end_turn_at(AckLevel::Replicated),
            Durability::Flushed => core.node.end_turn_at(AckLevel::Durable),
        };
        let written = write(&mut core).and_then(|()| end_turn(&mut core));
        let end = written.inspect_err(|error| core.fail(error.clone()))?;
        match durability {
            Durability::MemTable | Durability::Ring => {
                shared.written(&mut core, end);
                core.check()
            }
            Durability::Flushed => shared.wait_durable(core, end),
        }
    }

    /// Waits until all earlier writes are flushed.
    ///
    /// Costs writing the bytes that the device does not have yet and one flush of it, which all
    /// waiting callers share; nothing when all is flushed. Other writers go on.
    ///
    /// ```
    /// # use gabion_db::{Db, Durability, Options};
    /// # let dir = std::env::temp_dir().join(format!("gabion-db-sync-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() })?;
    /// for n in 0..100_u8 {
    ///     db.put(&[b"order:", &[n][..]].concat(), b"paid")?; // survives a kill
    /// }
    /// db.sync()?; // and all of them a power cut, for one flush of the device
    ///
    /// db.put_with(b"orders", b"100", Durability::MemTable)?;
    /// db.sync()?; // does nothing for that: no log has it
    /// db.flush()?; // now a file has it, and all that came before
    /// # drop(db);
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), gabion_base::Error>(())
    /// ```
    ///
    /// # Durability
    /// [`Durability::Flushed`] for all earlier writes except those at [`Durability::MemTable`];
    /// [`Self::flush`] is for these.
    ///
    /// # Errors
    /// No space where the log has no slot to grow into, and none is about to become free; the error
    /// that made the store fail.
    pub fn sync(&self) -> Result<()> {
        self.0.shared.check_process()?;
        let mut core = self.lock();
        // Flushes and compactions that are behind make writers wait, but records that are in the
        // log already need not.
        loop {
            core.check()?;
            match core.node.durable_gate() {
                WriteGate::Refuse(reason) => return Err(Error::unavailable(reason)),
                WriteGate::Wait(_) => match core.node.log_waits_in_vain() {
                    None => core = self.0.shared.wait(core),
                    Some(error) => return Err(error),
                },
                WriteGate::Open | WriteGate::Full { .. } => break,
            }
        }
        let end = core.node.make_durable()?;
        self.0.shared.wait_durable(core, end)
    }

    /// The value of a key, if it has one, as of the last write that returned, or a later one. For
    /// the cost see [`Snapshot::get`].
    ///
    /// # Errors
    /// Corruption with file and offset; I/O.
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        self.get_bytes(key.as_ref())
    }

    fn get_bytes(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(look_up_newest(&self.0.shared, key)?.map(|found| found.value))
    }

    /// The value of a key, if it has one, with the time at which it expires; see
    /// [`Self::put_expiring`]. Costs the same as [`Self::get`].
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn look_up(&self, key: impl AsRef<[u8]>) -> Result<Option<Found>> {
        look_up_newest(&self.0.shared, key.as_ref())
    }

    /// When a key expires, in milliseconds since 1970; none if it does not, or is not there. Costs
    /// the same as [`Self::value_len`].
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn expires_at(&self, key: impl AsRef<[u8]>) -> Result<Option<u64>> {
        let found = look_up_len_newest(&self.0.shared, key.as_ref())?;
        Ok(found.and_then(|found| found.expires_ms))
    }

    /// Whether a key is there. Costs the same as [`Self::value_len`].
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(look_up_len_newest(&self.0.shared, key.as_ref())?.is_some())
    }

    /// The length of the value of a key in bytes, if it has one. Costs the same as [`Self::get`],
    /// but for a value that lies [apart](RunOptions::large_values) from its key, which is not read.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn value_len(&self, key: impl AsRef<[u8]>) -> Result<Option<usize>> {
        Ok(look_up_len_newest(&self.0.shared, key.as_ref())?.map(|found| found.len))
    }

    /// The store's time beside the system's: they differ if the system's clock was set
    /// ([`gabion_host::clock`]).
    #[must_use]
    pub fn time(&self) -> StoreTime {
        let shared = &self.0.shared;
        let now_ms = shared.expiry_base_ms();
        StoreTime { now_ms, system_ms: shared.clock().system_us() / 1_000 }
    }

    /// Declares that the system's clock is right. If it is ahead of the store's time, that time
    /// jumps to it at once, and everything due has expired. (It is ahead if the store's time was
    /// further behind than a rest usually lasts, or if the clock was set while the store was open.)
    /// Returns the jump in milliseconds; 0 if the system's clock is behind, as time does not go
    /// back.
    ///
    /// # Durability
    /// With the next write, as time itself.
    pub fn adopt_system_time(&self) -> u64 {
        let passed_ms = self.0.shared.clock().adopt();
        self.0.shared.carry_on(&mut self.lock());
        passed_ms
    }

    /// The values of many keys at one moment; see [`Snapshot::multi_get`].
    ///
    /// # Errors
    /// As [`Self::get`], each with its key.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Vec<Result<Option<Bytes>>> {
        let shared = &self.0.shared;
        if let Err(forked) = shared.check_process() {
            return keys.into_iter().map(|_| Err(forked.clone())).collect();
        }
        look_up_many(&shared.newest(), shared, keys)
    }

    /// The pairs with these keys at this moment, in order; see [`Snapshot::iter`].
    #[must_use]
    pub fn iter(&self, bounds: impl Bounds) -> Range {
        Range::new(self.snapshot(), EngineRange::new(&bounds))
    }

    /// [`Self::iter`], under the name that maps give it.
    #[must_use]
    pub fn range(&self, bounds: impl Bounds) -> Range {
        self.iter(bounds)
    }

    /// The pairs whose keys begin with `prefix` at this moment, in order; see [`Snapshot::prefix`].
    #[must_use]
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(self.snapshot(), EngineRange::of_prefix(prefix.as_ref()))
    }

    /// The keys in these bounds at this moment, in order and without values; see [`Keys`].
    #[must_use]
    pub fn keys(&self, bounds: impl Bounds) -> Keys {
        Keys::new(self.snapshot(), EngineRange::new(&bounds))
    }

    /// A cursor over the pairs with these keys at this moment; see [`Snapshot::cursor`].
    #[must_use]
    pub fn cursor(&self, bounds: impl Bounds) -> Cursor {
        Cursor::new(self.snapshot(), EngineRange::new(&bounds))
    }

    /// A cursor over the pairs whose keys begin with `prefix` at this moment; see
    /// [`Snapshot::cursor`].
    #[must_use]
    pub fn prefix_cursor(&self, prefix: impl AsRef<[u8]>) -> Cursor {
        Cursor::new(self.snapshot(), EngineRange::of_prefix(prefix.as_ref()))
    }

    /// The approximate size of the pairs with these keys; see [`Snapshot::approximate_size`].
    ///
    /// # Errors
    /// Corruption with file and offset; I/O.
    pub fn approximate_size(&self, bounds: impl Bounds) -> Result<RangeSize> {
        self.0.shared.check_process()?;
        self.snapshot().approximate_size(bounds)
    }

    /// The store as of now. Costs a few atomic operations and no lock of writers, unless something
    /// that expires has just become due: then a record of the log. For the cost of keeping one see
    /// [`Snapshot`].
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.0.shared)
    }

    /// Writes the MemTables to a file and waits until the next start will find it. Needed only for
    /// the durability of [`Durability::MemTable`]. A restart is faster afterwards, as less log is
    /// applied. For an example see [`Self::sync`].
    ///
    /// Costs a file of L0, however little is in it, and some flushes of the device; so frequent
    /// calls make more work for compactions. Costs nothing when nothing was written since the last
    /// call. Other writers go on, and their writes are not waited for.
    ///
    /// # Durability
    /// All earlier writes, at whatever durability, survive a power cut: puts, deletes and clears of
    /// everything.
    ///
    /// # Errors
    /// No space when the device had none for this file or one of a compaction, and both wait until
    /// they are tried again. Or when the pool has too few slots for it, as when snapshots keep
    /// files that were replaced. The error that made the store fail.
    pub fn flush(&self) -> Result<()> {
        flush(&self.0.shared)
    }

    /// Waits until no flush or compaction is under way or due. Costs nothing but that: seconds to
    /// hours, depending on the work, and without end while others write enough.
    ///
    /// # Errors
    /// The reason why a due one does not begin, once nothing is under way. No space when the device
    /// had none for its files, and it waits until it is tried again, or when the pool has too few
    /// slots for it, as when a snapshot keeps files that were replaced. Corruption with the name of
    /// its damaged file. The error that made the store fail.
    pub fn wait_until_quiet(&self) -> Result<()> {
        self.0.shared.check_process()?;
        let mut core = self.lock();
        loop {
            core.check()?;
            self.0.shared.carry_on(&mut core);
            if core.node.is_quiet()? {
                return Ok(());
            }
            core = self.0.shared.wait(core);
        }
    }

    /// The current values of the options that may change. Costs the lock of writers.
    #[must_use]
    pub fn run_options(&self) -> RunOptions {
        self.lock().run
    }

    /// The codecs of new files: those of [`RunOptions::codecs`], else those that the store was made
    /// with. Costs the lock of writers.
    #[must_use]
    pub fn codecs(&self) -> Codecs {
        self.lock().node.tree().config().codecs()
    }

    /// The limits for sealing MemTables and for the runs of L0: [`RunOptions::limits`], else those
    /// that the store was made with. Costs the lock of writers.
    #[must_use]
    pub fn write_limits(&self) -> WriteLimits {
        self.lock().node.tree().config().write_limits()
    }

    /// Changes the options that may change, until the store is closed; at the next opening
    /// [`Options::run`] gives them. Excess blocks of a smaller cache go at once; compactions under
    /// way keep the codecs with which they began.
    ///
    /// Costs the lock of writers, while threads for more compactions start and excess blocks are
    /// dropped one by one. After a change of `open_files_len` reads look for open files anew.
    ///
    /// ```
    /// # use gabion_db::{Db, Options, RunOptions};
    /// # use gabion_engine::{Codecs, Compression, WriteLimits};
    /// # let dir = std::env::temp_dir().join(format!("gabion-db-run-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() })?;
    /// // Before a bulk load: more threads for compaction, less memory for reads.
    /// let before = db.run_options();
    /// db.set_run_options(RunOptions { compactions_max: 4, block_cache_len: 8 << 20, ..before })?;
    /// // Shorter MemTables, and more of them in L0 before writers are slowed down.
    /// let limits = WriteLimits { memtable_len: 8 << 20, l0_slowdown: 30, ..db.write_limits() };
    /// db.set_run_options(RunOptions { limits: Some(limits), ..db.run_options() })?;
    /// // And afterwards; and from now on less room on the device, for more work at the bottom of the tree.
    /// let codecs = Codecs { upper: Compression::Lz4, bottom: Some(Compression::ZSTD) };
    /// db.set_run_options(RunOptions { codecs: Some(codecs), ..before })?;
    /// # drop(db);
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), gabion_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// Invalid input when a value is out of its limits; the system's error, when a compaction
    /// thread cannot start; the error that made the store fail. Nothing has changed then.
    pub fn set_run_options(&self, options: RunOptions) -> Result<()> {
        options.check()?;
        self.0.shared.check_process()?;
        let mut core = self.lock();
        core.check()?;
        core.node.check_write_limits(options.limits)?;
        if let Some(threads) = &mut core.threads {
            threads.jobs.grow(options.compactions_max)?;
        }
        core.node.set_write_limits(options.limits)?;
        core.node.set_codecs(options.codecs)?;
        core.node.set_large_values(options.large_values)?;
        core.node.set_value_compression(options.value_compression)?;
        core.node.set_collection_rate(options.collection_bytes_per_s)?;
        core.run = options;
        core.node.set_compactions_max(options.compactions_max);
        if self.0.shared.cache.set_capacity(options.block_cache_len, options.open_files_len) {
            core.node.close_files();
        }
        self.0.shared.carry_on(&mut core);
        Ok(())
    }

    /// The store's statistics. Costs a look at each file, some 50 µs for a thousand, with the lock
    /// of writers: for once a second, not for each write.
    ///
    /// ```
    /// # use gabion_db::{Db, Options};
    /// # let dir = std::env::temp_dir().join(format!("gabion-db-stats-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() })?;
    /// db.put(b"elm", b"green")?;
    /// db.flush()?;
    /// let kept = db.snapshot();
    /// let stats = db.stats();
    /// assert_eq!((stats.counters.flushes, stats.levels[0].files), (1, 1));
    /// assert!(stats.slots.free > 0 && stats.slots.live > 0);
    ///
    /// // Who keeps space: one snapshot, made just now. It holds no slots that compactions gave up.
    /// assert_eq!((stats.held.moments, stats.slots.retired), (1, 0));
    /// assert!(stats.held.oldest_ms < 60_000);
    /// # drop((kept, db));
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), gabion_base::Error>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> DbStats {
        let shared = &self.0.shared;
        let core = self.lock();
        let node = &core.node;
        let slots: usize = node.pool().files().map(|placement| placement.slots.len()).sum();
        let cache = shared.cache.stats();
        let (moments, since_ms) = shared.moments.held();
        DbStats {
            levels: node.tree().level_stats(),
            values: node.tree().version().values_stats(),
            compaction_debt: node.tree().compaction_debt(),
            counters: node.counters(),
            slot_bytes: slots as u64 * SLOT_LEN,
            slots: node.pool().counts(),
            held: Held {
                moments,
                oldest_ms: since_ms
                    .map_or(0, |since_ms| shared.clock_ms().saturating_sub(since_ms)),
            },
            read_bytes: shared.placements.read_bytes(),
            cache_hits: cache.hits,
            cache_misses: cache.misses,
            cache_evictions: cache.evictions,
            warmed: shared.cache.warmed(),
            cache_bytes: cache.bytes,
            index_bytes: shared.cache.open_bytes(),
            damaged_files: node.damaged_files().count(),
            memtable_bytes: node.tree().memtables_len(),
            memory: Memory::of(
                node,
                &shared.buffers,
                Budgets {
                    block_cache: (cache.bytes, core.run.block_cache_len),
                    open_files: (shared.cache.open_bytes(), core.run.open_files_len),
                },
            ),
        }
    }

    /// Notices for the operator since the last call, a sentence each: a system without direct I/O,
    /// a ring that was gone, files that are damaged. Costs only the lock of the notices.
    #[must_use]
    pub fn take_notices(&self) -> Vec<String> {
        if let Err(forked) = self.0.shared.check_process() {
            return vec![forked.to_string()];
        }
        std::mem::take(&mut *self.0.shared.notices())
    }

    /// The error of a store that cannot write any more. Reads go on. Costs the lock of writers.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        if let Err(forked) = self.0.shared.check_process() {
            return Some(forked);
        }
        self.lock().check().err().filter(|error| error.kind() != ErrorKind::Busy)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "this test has files, and a thread that panics")]
mod tests {
    use super::*;

    /// docs/faults.md: P23
    #[test]
    fn after_a_panic_within_the_machine_nothing_is_written_and_reads_go_on() {
        let dir = std::env::temp_dir().join(format!("gabion-db-panic-{}", std::process::id()));
        let options = Options::small();
        let db = Db::create(&dir, &options).unwrap();
        db.put(b"colour", b"green").unwrap();
        let shared = db.shared().clone();
        let panicked = std::thread::spawn(move || {
            let _core = shared.lock();
            std::panic::resume_unwind(Box::new("amid a change"));
        });
        assert!(panicked.join().is_err());
        let errors = [db.put(b"colour", b"red"), db.delete(b"colour"), db.flush(), db.sync()];
        for error in errors.map(|result| result.unwrap_err().to_string()) {
            assert!(error.contains("a thread panicked while it changed the store"), "{error}");
        }
        assert!(db.failure().unwrap().to_string().contains("must be opened anew"));
        assert_eq!(db.get(b"colour").unwrap().unwrap(), &b"green"[..]);
        drop(db);
        let db = Db::open(&dir, &options).unwrap();
        assert_eq!(db.get(b"colour").unwrap().unwrap(), &b"green"[..]);
        drop(db);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
