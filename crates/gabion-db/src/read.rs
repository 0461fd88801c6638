//! Reading, on any thread and without the machine's lock: snapshots, look-ups and sizes.

use crate::core::{Handle, Shared};
use crate::iter::{Bounds, Cursor, EngineRange, Keys, Range};
use crate::moments::Moment;
use bytes::Bytes;
use gabion_base::units::{BLOCK_LEN, TRANSFER_LEN_MAX};
use gabion_base::{Error, FileId, HashMap, Result, SequenceNumber};
use gabion_engine::{
    FileRange, FileSource, Found, FoundLen, Keyspace, RangeSize, ReadView, Tables,
};
use gabion_fabric::{FileMedium, MediumOptions, PoolFile};
use gabion_host::cache::SharedCache;
use gabion_host::jobs::StoreParts;
use gabion_media::{AlignedBuf, Completion, Medium, Operation, OperationKind};
use gabion_pool::{FilePlacement, Geometry, extents};
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};

/// The places of files that readers have asked for, and the device.
pub(crate) struct Placements {
    pub(crate) file: PoolFile,
    pub(crate) geometry: Geometry,
    pub(crate) options: MediumOptions,
    known: RwLock<HashMap<FileId, Arc<FilePlacement>>>,
    read_bytes: AtomicU64,
    /// Idle media of multi-key reads.
    idle: Mutex<Vec<FileMedium>>,
}

/// Media kept for later multi-key reads. Each has a kernel ring of 64 places.
const MEDIA_MAX: usize = 16;

impl Placements {
    pub(crate) fn new(parts: &StoreParts) -> Self {
        Self {
            file: parts.file.clone(),
            geometry: parts.geometry.clone(),
            options: MediumOptions { notify: false, ..parts.options },
            known: RwLock::default(),
            read_bytes: AtomicU64::new(0),
            idle: Mutex::default(),
        }
    }

    /// A medium for the duration of a call; none when the system gives no further one.
    fn take_medium(&self) -> Option<FileMedium> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.or_else(|| self.file.medium(self.options).ok())
    }

    fn put_medium(&self, medium: FileMedium) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MEDIA_MAX {
            idle.push(medium);
        }
    }

    /// Forgets a file that nobody reads any more.
    pub(crate) fn forget(&self, file: FileId) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).remove(&file);
    }

    /// Bytes that readers have read of files.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }
}

/// The files of a store, read in place by the calling thread. `H` leads to the store: a handle of
/// its own, or a reference for the duration of a call.
#[derive(Clone)]
pub(crate) struct Files<H = Handle>(H);

impl<H: Deref<Target = Shared>> Files<H> {
    fn placement(&self, file: FileId) -> Result<Arc<FilePlacement>> {
        let known = &self.0.placements.known;
        if let Some(found) = known.read().unwrap_or_else(PoisonError::into_inner).get(&file) {
            return Ok(found.clone());
        }
        let found = self.0.lock().node.file_map().get(file);
        let found =
            found.ok_or_else(|| Error::not_found(format!("{file} has no place in this pool")))?;
        known.write().unwrap_or_else(PoisonError::into_inner).insert(file, found.clone());
        Ok(found)
    }

    fn read_now(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        let placement = self.placement(file)?;
        let (start, whole) = blocks_of(&placement, offset, len)?;
        let places = &self.0.placements;
        let mut buffer = AlignedBuf::zeroed(whole as usize);
        let mut done = 0;
        for (at, len) in extents(&places.geometry, &placement, start, whole) {
            let part = &mut buffer[done..done + len as usize];
            places
                .file
                .read_exact_at(part, at)
                .map_err(|e| e.within(format!("{file} at {offset}")))?;
            done += len as usize;
        }
        places.read_bytes.fetch_add(whole, Ordering::Relaxed);
        let skip = (offset - start) as usize;
        Ok(buffer.freeze().slice(skip..skip + len))
    }

    /// Reads all ranges at once, and waits for them.
    fn read_at_once(&self, medium: &mut FileMedium, ranges: &[FileRange]) -> Vec<Result<Bytes>> {
        let places = &self.0.placements;
        let mut operations = Vec::with_capacity(ranges.len());
        let mut begin = |at: usize, range: &FileRange| {
            let placement = self.placement(range.file)?;
            let (start, whole) = blocks_of(&placement, range.offset, range.len)?;
            let mut extents = extents(&places.geometry, &placement, start, whole);
            // A range in two places, at the end of a slot, is read by itself; so is a long one.
            let Some((offset, len)) =
                extents.next().filter(|&(_, len)| len == whole && len <= TRANSFER_LEN_MAX as u64)
            else {
                return Ok(false);
            };
            let into = AlignedBuf::zeroed(len as usize);
            let kind = OperationKind::Read { offset, into };
            operations.push(Operation { tag: at as u64, kind, then: false });
            Ok(true)
        };
        let begun: Vec<Result<bool>> =
            ranges.iter().enumerate().map(|(at, range)| begin(at, range)).collect();
        medium.submit(operations);
        let by_itself = |(begun, range): (Result<bool>, &FileRange)| match begun? {
            true => Err(Error::io("a medium lost a read")),
            false => self.read_now(range.file, range.offset, range.len),
        };
        let mut results: Vec<_> = begun.into_iter().zip(ranges).map(by_itself).collect();
        let mut ended = Vec::new();
        while medium.in_flight() > 0 {
            medium.wait();
            medium.poll(&mut ended);
            for Completion { tag, outcome, buffer } in ended.drain(..) {
                let FileRange { file, offset, len } = ranges[tag as usize];
                let read =
                    outcome.into_result().map_err(|e| e.within(format!("{file} at {offset}")));
                results[tag as usize] = read.and_then(|()| {
                    let buffer = buffer.ok_or_else(|| Error::io("a medium lost a buffer"))?;
                    places.read_bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
                    let skip = offset as usize % BLOCK_LEN;
                    Ok(buffer.freeze().slice(skip..skip + len))
                });
            }
        }
        results
    }
}

/// The whole blocks of a file that hold a range: where they begin, and their bytes.
fn blocks_of(placement: &FilePlacement, offset: u64, len: usize) -> Result<(u64, u64)> {
    let block = BLOCK_LEN as u64;
    let end = offset.checked_add(len as u64).filter(|&end| end <= placement.len);
    let end = end.ok_or_else(|| {
        Error::invalid(format!(
            "{}: {len} bytes at {offset} reach past its {} bytes",
            placement.file, placement.len
        ))
    })?;
    let start = offset / block * block;
    Ok((start, end.div_ceil(block) * block - start))
}

impl<H: Deref<Target = Shared>> FileSource for Files<H> {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        self.read_now(file, offset, len)
    }

    async fn read_many(&self, ranges: &[FileRange]) -> Vec<Result<Bytes>> {
        let places = &self.0.placements;
        // A single range is read faster directly.
        let medium = if ranges.len() > 1 { places.take_medium() } else { None };
        let Some(mut medium) = medium else {
            let read = |range: &FileRange| self.read_now(range.file, range.offset, range.len);
            return ranges.iter().map(read).collect();
        };
        let results = self.read_at_once(&mut medium, ranges);
        places.put_medium(medium);
        results
    }

    fn note_damage(&self, file: FileId, error: &Error) {
        self.0.lock().node.handle_damage(file, error);
    }
}

pub(crate) type StoreTables = Tables<Files, Arc<SharedCache>>;

pub(crate) fn tables(handle: &Handle) -> StoreTables {
    let group = handle.group;
    Tables { source: Files(handle.clone()), cache: handle.cache.clone(), group }
}

/// The same for the duration of a call, without counting references.
fn tables_of(shared: &Shared) -> Tables<Files<&Shared>, &SharedCache> {
    Tables { source: Files(shared), cache: &shared.cache, group: shared.group }
}

/// The newest view's value of a user's key.
pub(crate) fn look_up_newest(shared: &Shared, key: &[u8]) -> Result<Option<Found>> {
    shared.check_process()?;
    look_up(&shared.newest(), shared, key)
}

fn look_up(view: &ReadView, shared: &Shared, key: &[u8]) -> Result<Option<Found>> {
    shared.check_process()?;
    let found = with_engine_key(key, |key| now(view.look_up(&tables_of(shared), key)))?;
    Ok(found.map(|found| by_system(found, shared)))
}

/// The length of the newest view's value of a user's key.
pub(crate) fn look_up_len_newest(shared: &Shared, key: &[u8]) -> Result<Option<FoundLen>> {
    shared.check_process()?;
    let view = shared.newest();
    let found = with_engine_key(key, |key| now(view.look_up_len(&tables_of(shared), key)))?;
    let to_system = |at_ms| shared.clock().to_system_ms(at_ms);
    Ok(found.map(|found| FoundLen { expires_ms: found.expires_ms.map(to_system), ..found }))
}

/// With its expiry by the system's clock.
fn by_system(found: Found, shared: &Shared) -> Found {
    let to_system = |at_ms| shared.clock().to_system_ms(at_ms);
    Found { expires_ms: found.expires_ms.map(to_system), ..found }
}

/// The values of many user keys.
pub(crate) fn look_up_many<K: AsRef<[u8]>>(
    view: &ReadView,
    shared: &Shared,
    keys: impl IntoIterator<Item = K>,
) -> Vec<Result<Option<Bytes>>> {
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    for key in keys {
        bytes.push(Keyspace::User as u8);
        bytes.extend_from_slice(key.as_ref());
        ends.push(bytes.len());
    }
    look_up_engine_keys(view, shared, &bytes, &ends)
}

/// The keys stand one behind the other; `ends` has the end of each.
fn look_up_engine_keys(
    view: &ReadView,
    shared: &Shared,
    bytes: &[u8],
    ends: &[usize],
) -> Vec<Result<Option<Bytes>>> {
    let mut start = 0;
    let keys = ends.iter().map(|&end| &bytes[std::mem::replace(&mut start, end)..end]);
    let keys: Vec<&[u8]> = keys.collect();
    let mut values = Vec::new();
    values.resize_with(keys.len(), || Ok(None));
    let give = |at: usize, found: Result<Option<Found>>| {
        values[at] = found.map(|found| found.map(|found| found.value));
        Ok(())
    };
    let all = now(view.look_up_many(&tables_of(shared), &keys, give));
    debug_assert!(all.is_ok(), "each error is given with its key");
    values
}

/// The result of a future that waits only for reads of this thread.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("files are read by the thread that wants them"),
    }
}

/// The engine's key of a user's key.
pub(crate) fn engine_key(key: &[u8]) -> Vec<u8> {
    let mut engine_key = Vec::with_capacity(key.len() + 1);
    engine_key.push(Keyspace::User as u8);
    engine_key.extend_from_slice(key);
    engine_key
}

/// The same for the duration of `give`; short keys need no memory of their own.
fn with_engine_key<T>(key: &[u8], give: impl FnOnce(&[u8]) -> T) -> T {
    let mut short = [0; 64];
    match short.get_mut(..=key.len()).and_then(<[u8]>::split_first_mut) {
        Some((keyspace, rest)) => {
            *keyspace = Keyspace::User as u8;
            rest.copy_from_slice(key);
            give(&short[..=key.len()])
        }
        None => give(&engine_key(key)),
    }
}

/// The store as of one moment: later writes do not show, and nothing expires that had not expired
/// by then. It keeps MemTables and files alive that compaction has replaced, so a long life costs
/// memory and slots. A clone is the same moment.
///
/// [`DbStats::held`](crate::DbStats::held) shows a forgotten one: it has the age of the oldest.
///
/// `Send` and `Sync`. Costs a few atomic operations to make, and a lock that threads seldom share.
pub struct Snapshot {
    pub(crate) view: ReadView,
    pub(crate) tables: StoreTables,
    moment: Moment,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("sequence", &self.sequence()).finish_non_exhaustive()
    }
}

impl Clone for Snapshot {
    fn clone(&self) -> Self {
        // A fork may not lock the counts, and nobody asks for them there.
        if self.tables.source.0.is_ours() {
            self.tables.source.0.moments.hold(self.moment);
        }
        Self { view: self.view.clone(), tables: self.tables.clone(), moment: self.moment }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if self.tables.source.0.is_ours() {
            self.tables.source.0.moments.let_go(self.moment);
        }
    }
}

impl Snapshot {
    pub(crate) fn of(handle: &Handle) -> Self {
        handle.assert_process();
        let moment = handle.moments.enter(handle.late_ms());
        Self { view: handle.newest(), tables: tables(handle), moment }
    }

    /// The number of the last write that it shows. Numbers rise by one for each operation, also
    /// over restarts. So of two snapshots of a store the one with the greater number shows all
    /// writes of the other, and more. Costs nothing.
    #[must_use]
    pub fn sequence(&self) -> SequenceNumber {
        self.view.sequence()
    }

    /// The value of a key, if it has one. It shares the memory of a cached block where it can, so a
    /// value that is kept for long keeps up to `block_len` bytes.
    ///
    /// Costs no read of the device when the block is cached or the filters say no; otherwise one
    /// for each level that may hold the key. Nearly always that is one level.
    ///
    /// # Errors
    /// Corruption with file and offset; I/O.
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        self.get_bytes(key.as_ref())
    }

    fn get_bytes(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(look_up(&self.view, &self.tables.source.0, key)?.map(|found| found.value))
    }

    /// The snapshot's store.
    pub(crate) fn shared(&self) -> &Shared {
        &self.tables.source.0
    }

    /// The value of a key, if it has one, with the time at which it expires. Costs the same as
    /// [`Self::get`].
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn look_up(&self, key: impl AsRef<[u8]>) -> Result<Option<Found>> {
        self.look_up_bytes(key.as_ref())
    }

    fn look_up_bytes(&self, key: &[u8]) -> Result<Option<Found>> {
        look_up(&self.view, &self.tables.source.0, key)
    }

    /// The values of many keys, in their order. The keys may come in any order, and any of them
    /// more than once. To have all or the first error, `collect` it into a `Result`.
    ///
    /// Goes down the tree once for all keys. Blocks that are not cached are read from the device at
    /// once (up to 256 reads and 4 MiB at a time) instead of one after the other, so a call takes
    /// about as long as the slowest of its reads. Adjoining blocks are one read, and keys of one
    /// block share it. If the system refuses io_uring, four threads read.
    ///
    /// ```
    /// # use gabion_db::{Db, Options};
    /// # let dir = std::env::temp_dir().join(format!("gabion-db-many-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() })?;
    /// db.put(b"elm", b"green")?;
    /// db.put(b"oak", b"brown")?;
    /// let values = db.multi_get(["oak", "ash", "elm"]).into_iter();
    /// let values = values.collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(values[0].as_deref(), Some(&b"brown"[..]));
    /// assert_eq!(values[1], None);
    /// assert_eq!(values[2].as_deref(), Some(&b"green"[..]));
    /// # drop(db);
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), gabion_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::get`], each with its key: a damaged block is the error of the keys that need it.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Vec<Result<Option<Bytes>>> {
        if let Err(forked) = self.tables.source.0.check_process() {
            return keys.into_iter().map(|_| Err(forked.clone())).collect();
        }
        look_up_many(&self.view, &self.tables.source.0, keys)
    }

    /// The pairs with these keys in order, each a `Result` of key and value: `iter(..)`,
    /// `iter("a".."b")`, `iter(key..=other)`; its `rev()` descends. Reads nothing yet. To keep no
    /// pairs, [`Self::cursor`] is cheaper.
    ///
    /// ```
    /// # use gabion_db::{Db, Options};
    /// # let dir = std::env::temp_dir().join(format!("gabion-db-iter-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # let db = Db::create(&dir, &Options { pool_len: 512 << 20, ..Options::default() })?;
    /// db.put("elm", "green")?;
    /// db.put("oak", "brown")?;
    /// for pair in db.iter("a".."f") {
    ///     let (key, value) = pair?;
    ///     assert_eq!((&key[..], &value[..]), (&b"elm"[..], &b"green"[..]));
    /// }
    /// assert_eq!(db.iter(..).rev().count(), 2);
    /// # drop(db);
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), gabion_db::Error>(())
    /// ```
    #[must_use]
    pub fn iter(&self, bounds: impl Bounds) -> Range {
        Range::new(self.clone(), EngineRange::new(&bounds))
    }

    /// [`Self::iter`], under the name that maps give it.
    #[must_use]
    pub fn range(&self, bounds: impl Bounds) -> Range {
        self.iter(bounds)
    }

    /// The pairs whose keys begin with `prefix`, in order. Reads nothing yet.
    #[must_use]
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(self.clone(), EngineRange::of_prefix(prefix.as_ref()))
    }

    /// The keys in these bounds, in order and without values. Reads nothing yet.
    #[must_use]
    pub fn keys(&self, bounds: impl Bounds) -> Keys {
        Keys::new(self.clone(), EngineRange::new(&bounds))
    }

    /// A cursor over the pairs with these keys, before the first. Reads nothing yet.
    #[must_use]
    pub fn cursor(&self, bounds: impl Bounds) -> Cursor {
        Cursor::new(self.clone(), EngineRange::new(&bounds))
    }

    /// A cursor over the pairs whose keys begin with `prefix`, before the first. Reads nothing yet.
    #[must_use]
    pub fn prefix_cursor(&self, prefix: impl AsRef<[u8]>) -> Cursor {
        Cursor::new(self.clone(), EngineRange::of_prefix(prefix.as_ref()))
    }

    /// The approximate size of the pairs with these keys in files and in memory, and the number of
    /// their entries; the fields of [`RangeSize`] state the error bounds.
    ///
    /// Costs a few searches in memory for each file whose bounds hold an end of the range, and a
    /// read of such a file's index where it is not open; the others only count.
    ///
    /// ```
    /// # use gabion_db::{Db, Options};
    /// # let dir = std::env::temp_dir().join(format!("gabion-db-size-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() })?;
    /// db.put(b"elm", &[7; 1000])?;
    /// let size = db.approximate_size("e".."f")?;
    /// assert_eq!((size.entries, size.file_bytes), (1, 0));
    /// assert!(size.memtable_bytes > 1000);
    /// db.flush()?;
    /// assert!(db.approximate_size(..)?.file_bytes > 1000);
    /// # drop(db);
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), gabion_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// Corruption with file and offset; I/O.
    pub fn approximate_size(&self, bounds: impl Bounds) -> Result<RangeSize> {
        self.tables.source.0.check_process()?;
        let EngineRange { from, to } = EngineRange::new(&bounds);
        now(self.view.approximate_size(&self.tables, &from, Some(&to)))
    }
}
