//! Ordered reading: a cursor that goes both ways, ranges as iterators, and the bounds of both.

use crate::read::{Files, Snapshot, engine_key, now};
use bytes::Bytes;
use gabion_base::Result;
use gabion_base::units::KEY_LEN_MAX;
use gabion_engine::{Keyspace, Move, ReadIterator};
use gabion_host::cache::SharedCache;
use std::fmt;
use std::ops::{self, Bound};
use std::sync::Arc;

/// A range of keys: `..`, `"a".."b"`, `key..=other`, a pair of [`Bound`]s or the like, of anything
/// that is bytes. A start past the end makes an empty range.
pub trait Bounds {
    /// The bound where the keys begin.
    fn start(&self) -> Bound<&[u8]>;
    /// The bound where they end.
    fn end(&self) -> Bound<&[u8]>;
}

macro_rules! bounds {
    ($([$($parameter:ident)?] $range:ty),* $(,)?) => {$(
        impl$(<$parameter: AsRef<[u8]>>)? Bounds for $range {
            fn start(&self) -> Bound<&[u8]> {
                let start: Bound<&bounds!(@key $($parameter)?)> = ops::RangeBounds::start_bound(self);
                start.map(AsRef::as_ref)
            }

            fn end(&self) -> Bound<&[u8]> {
                let end: Bound<&bounds!(@key $($parameter)?)> = ops::RangeBounds::end_bound(self);
                end.map(AsRef::as_ref)
            }
        }
    )*};
    (@key $parameter:ident) => { $parameter };
    (@key) => { Vec<u8> };
}

bounds! {
    [] ops::RangeFull,
    [K] ops::Range<K>,
    [K] ops::RangeFrom<K>,
    [K] ops::RangeTo<K>,
    [K] ops::RangeInclusive<K>,
    [K] ops::RangeToInclusive<K>,
    [K] (Bound<K>, Bound<K>),
}

impl<B: Bounds + ?Sized> Bounds for &B {
    fn start(&self) -> Bound<&[u8]> {
        (**self).start()
    }

    fn end(&self) -> Bound<&[u8]> {
        (**self).end()
    }
}

/// The engine's keys from the first to before the second.
#[derive(Clone)]
pub(crate) struct EngineRange {
    pub(crate) from: Vec<u8>,
    pub(crate) to: Vec<u8>,
}

impl EngineRange {
    pub(crate) fn new(bounds: &impl Bounds) -> Self {
        let after = |key: &[u8]| {
            // One byte more would be longer than any key. So no key begins with this one, and the
            // successor is the end of its prefix.
            if key.len() >= KEY_LEN_MAX {
                return Self::of_prefix(key).to;
            }
            let mut next = engine_key(key);
            next.push(0);
            next
        };
        let from = match bounds.start() {
            Bound::Unbounded => engine_key(&[]),
            Bound::Included(key) => engine_key(key),
            Bound::Excluded(key) => after(key),
        };
        let to = match bounds.end() {
            Bound::Unbounded => vec![Keyspace::User as u8 + 1],
            Bound::Excluded(key) => engine_key(key),
            Bound::Included(key) => after(key),
        };
        Self { from, to }
    }

    /// The range in user keys, with nothing as the end of all; none when no key is in it.
    pub(crate) fn user_keys(&self) -> Option<(&[u8], Option<&[u8]>)> {
        let to =
            if self.to.len() == 1 && self.to != self.from { None } else { Some(&self.to[1..]) };
        (self.from < self.to).then_some((&self.from[1..], to))
    }

    /// All keys that begin with `prefix`. Their end increments the last byte below 0xff; the
    /// keyspace byte always is, so a prefix of 0xff alone ends with the keyspace.
    pub(crate) fn of_prefix(prefix: &[u8]) -> Self {
        let from = engine_key(prefix);
        let mut to = from.clone();
        while to.pop_if(|last| *last == 0xff).is_some() {}
        let last = to.last_mut().expect("the keyspace byte is not 0xff");
        *last += 1;
        Self { from, to }
    }
}

/// A place among the pairs of a snapshot, within bounds. It goes to a key, steps forwards and
/// backwards, and may turn round anywhere.
///
/// It is before the first pair, at a pair, or past the last. New cursors are before the first, so
/// `while cursor.next()? { … }` meets every pair. Each move returns whether it came to a pair;
/// `next` from past the last and `prev` from before the first stay there. In a `for` loop a cursor
/// gives the pairs of its bounds as a [`Range`], wherever it was.
///
/// ```
/// # use gabion_db::{Db, Options};
/// # let dir = std::env::temp_dir().join(format!("gabion-db-cursor-{}", std::process::id()));
/// # let _ = std::fs::remove_dir_all(&dir);
/// # let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() })?;
/// for key in ["ash", "beech", "cedar", "elm"] {
///     db.put(key.as_bytes(), b"tree")?;
/// }
/// let mut cursor = db.cursor("b"..);
/// assert!(cursor.seek(b"c")?);
/// assert_eq!(cursor.key(), Some(&b"cedar"[..]));
/// assert!(cursor.prev()?);
/// assert_eq!(cursor.pair(), Some((&b"beech"[..], &b"tree"[..])));
/// assert!(!cursor.prev()?, "ash is out of bounds");
/// assert!(cursor.seek_for_prev(b"dogwood")?);
/// assert_eq!(cursor.key(), Some(&b"cedar"[..]));
/// # drop((cursor, db));
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), gabion_base::Error>(())
/// ```
///
/// `Send` and `Sync`; moves take it exclusively. It holds its snapshot: see [`Snapshot`] for the
/// cost.
///
/// **Cost.** A seek searches each MemTable, one file of each run of L0 and of each level, and reads
/// their blocks from the device where they are not cached. A step in the direction of the last move
/// goes on from there: about as much either way in files, where each block is read once and its
/// entries parsed once; backwards about every tenth step in a MemTable is a search of it. Turning
/// round is a seek. Nothing is copied or allocated for a pair but its key, in memory that the next
/// step uses again; [`Self::key`] and [`Self::value`] lend the pair until then. A step forwards
/// takes about 0.1 µs while blocks are in the cache. Otherwise it reads more blocks at once the
/// further it goes, from one of each file after a seek to 128 KiB. Until the cursor moves
/// elsewhere, it shares up to that much with the cache for each run of L0 and each level.
///
/// ```
/// # use gabion_db::{Db, Options};
/// # let dir = std::env::temp_dir().join(format!("gabion-db-lend-{}", std::process::id()));
/// # let _ = std::fs::remove_dir_all(&dir);
/// # let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() })?;
/// for (key, count) in [("apples", 3u64), ("pears", 4), ("plums", 5)] {
///     db.put(key.as_bytes(), &count.to_le_bytes())?;
/// }
/// // Sums what it is lent: nothing of it is copied.
/// let (mut cursor, mut sum) = (db.cursor("p"..), 0);
/// while cursor.next()? {
///     let count = cursor.value().and_then(|value| value.try_into().ok());
///     sum += count.map_or(0, u64::from_le_bytes);
/// }
/// assert_eq!(sum, 9);
/// # drop((cursor, db));
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), gabion_base::Error>(())
/// ```
///
/// # Errors
/// Every move: corruption with file and offset; I/O. After an error the cursor is at no pair and
/// further moves are errors too: take another one.
pub struct Cursor {
    walk: ReadIterator<Files, Arc<SharedCache>>,
    snapshot: Snapshot,
    range: EngineRange,
    is_of_keys: bool,
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor").field("snapshot", &self.snapshot).finish_non_exhaustive()
    }
}

impl Cursor {
    pub(crate) fn new(snapshot: Snapshot, range: EngineRange) -> Self {
        let walk = snapshot.view.scan(&snapshot.tables, &range.from, Some(&range.to));
        Self { walk, snapshot, range, is_of_keys: false }
    }

    /// The same cursor without values: it has keys and expiries, and [`Self::value`] is none. In a
    /// `for` loop it gives each key with an empty value. Of values that lie
    /// [apart](crate::RunOptions::large_values) from their keys none is read then. Cursors that
    /// read them read up to 64 and 1 MiB ahead, in order and several at once.
    ///
    /// ```
    /// # use gabion_db::{Db, Options};
    /// # let dir = std::env::temp_dir().join(format!("gabion-db-keys-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() })?;
    /// db.put("elm", vec![7; 100_000])?;
    /// db.put("oak", vec![8; 100_000])?;
    /// let mut cursor = db.cursor("f"..).keys_only();
    /// assert!(cursor.next()?);
    /// assert_eq!((cursor.key(), cursor.value()), (Some(&b"oak"[..]), None));
    /// let keys = db.keys(..).collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(keys, ["elm", "oak"]);
    /// # drop((cursor, db));
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), gabion_db::Error>(())
    /// ```
    #[must_use]
    pub fn keys_only(mut self) -> Self {
        self.walk = self.walk.of_keys();
        self.is_of_keys = true;
        self
    }

    /// To the first pair. Costs a seek, see [`Cursor`].
    ///
    /// # Errors
    /// Those of all moves, see [`Cursor`].
    pub fn seek_to_first(&mut self) -> Result<bool> {
        self.go(Move::First)
    }

    /// To the last pair. Costs a seek, see [`Cursor`].
    ///
    /// # Errors
    /// Those of all moves, see [`Cursor`].
    pub fn seek_to_last(&mut self) -> Result<bool> {
        self.go(Move::Last)
    }

    /// To the first pair at or after `key`; to the first of the bounds when `key` is before them. A
    /// search of each MemTable, run of L0 and level, with a read of the device for each block that
    /// is not cached.
    ///
    /// # Errors
    /// Those of all moves, see [`Cursor`].
    pub fn seek(&mut self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.go(Move::Seek(&engine_key(key.as_ref())))
    }

    /// To the last pair at or before `key`; to the last of the bounds when `key` is past them.
    /// Costs the same as [`Self::seek`].
    ///
    /// # Errors
    /// Those of all moves, see [`Cursor`].
    pub fn seek_for_prev(&mut self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.go(Move::SeekForPrev(&engine_key(key.as_ref())))
    }

    /// To the next pair; to the first from before it. About 0.1 µs in cached blocks; after a
    /// [`Self::prev`] a seek.
    ///
    /// # Errors
    /// Those of all moves, see [`Cursor`].
    #[expect(
        clippy::should_implement_trait,
        reason = "an Iterator's would own what this one lends"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<bool> {
        self.snapshot.shared().check_process()?;
        // Nearly always there is nothing to wait for.
        match self.walk.try_next() {
            Some(stepped) => stepped,
            None => self.go(Move::Next),
        }
    }

    /// To the pair before; to the last from past it. Costs about the same as [`Self::next`] in
    /// files, and a search for every tenth in a MemTable; after a [`Self::next`] a seek.
    ///
    /// # Errors
    /// Those of all moves, see [`Cursor`].
    pub fn prev(&mut self) -> Result<bool> {
        self.go(Move::Prev)
    }

    fn go(&mut self, to: Move<'_>) -> Result<bool> {
        self.snapshot.shared().check_process()?;
        now(self.walk.go(to))
    }

    /// Whether the cursor is at a pair.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.walk.key().is_some()
    }

    /// The key here; none at no pair.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        // Behind the keyspace byte.
        self.walk.key().map(|key| &key[1..])
    }

    /// The value here; none at no pair.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        self.walk.value().filter(|_| !self.is_of_keys)
    }

    /// When the pair here expires, in milliseconds since 1970; none if it does not, and at no pair.
    #[must_use]
    pub fn expires_at(&self) -> Option<u64> {
        let clock = self.snapshot.shared().clock();
        self.walk.expires_ms().map(|at_ms| clock.to_system_ms(at_ms))
    }

    /// Key and value here; none at no pair.
    #[must_use]
    pub fn pair(&self) -> Option<(&[u8], &[u8])> {
        self.key().zip(self.value())
    }

    /// A copy of key and value here; none at no pair. The value shares the memory of a cached block
    /// if it comes from a file, so a value kept for long keeps up to `block_len` bytes.
    #[must_use]
    pub fn to_pair(&self) -> Option<(Bytes, Bytes)> {
        if self.is_of_keys {
            return None;
        }
        self.key().map(Bytes::copy_from_slice).zip(self.walk.value_bytes())
    }

    /// As [`Self::to_pair`], with an empty value where there are none.
    fn to_item(&self) -> Option<(Bytes, Bytes)> {
        match self.is_of_keys {
            true => Some((Bytes::copy_from_slice(self.key()?), Bytes::new())),
            false => self.to_pair(),
        }
    }
}

impl IntoIterator for Cursor {
    type Item = Result<(Bytes, Bytes)>;
    type IntoIter = Range;

    fn into_iter(self) -> Range {
        Range::of(self.snapshot, self.range, self.is_of_keys)
    }
}

/// Pairs in the order of their keys, taken from either end; ends after an error. Holds its
/// snapshot.
///
/// ```
/// # use gabion_db::{Db, Options};
/// # let dir = std::env::temp_dir().join(format!("gabion-db-range-{}", std::process::id()));
/// # let _ = std::fs::remove_dir_all(&dir);
/// # let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() })?;
/// for key in ["user:1", "user:2", "user:3", "zone:1"] {
///     db.put(key.as_bytes(), b"")?;
/// }
/// let mut newest = db.prefix("user:").rev();
/// assert_eq!(newest.next().transpose()?.unwrap().0, "user:3");
/// assert_eq!(db.iter("user:2"..).count(), 3);
/// # drop((newest, db));
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), gabion_base::Error>(())
/// ```
///
/// `Send` and `Sync`. Each end in use is a [`Cursor`], and costs the same; a pair also costs the
/// allocation of its key, and of its value if that comes from a MemTable. To keep no pairs use a
/// [`Cursor`], which lends them.
pub struct Range {
    /// None when it has ended.
    ends: Option<Ends>,
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").finish_non_exhaustive()
    }
}

struct Ends {
    snapshot: Snapshot,
    range: EngineRange,
    is_of_keys: bool,
    front: Option<Cursor>,
    back: Option<Cursor>,
}

impl Ends {
    /// The next pair from the front, or from the back with [`Move::Prev`].
    fn take(&mut self, to: Move<'_>) -> Result<Option<(Bytes, Bytes)>> {
        let is_back = to == Move::Prev;
        let (end, other) = match is_back {
            true => (&mut self.back, &self.front),
            false => (&mut self.front, &self.back),
        };
        // A new cursor is before the first; the back begins past the last.
        let to = if is_back && end.is_none() { Move::Last } else { to };
        let new = || {
            let cursor = Cursor::new(self.snapshot.clone(), self.range.clone());
            if self.is_of_keys { cursor.keys_only() } else { cursor }
        };
        let end = end.get_or_insert_with(new);
        let is_there = if to == Move::Next { end.next() } else { end.go(to) };
        if !is_there? {
            return Ok(None);
        }
        // Both have a key: an end that comes to no pair ends the range.
        let has_met = other.as_ref().is_some_and(|other| match is_back {
            true => end.key() <= other.key(),
            false => end.key() >= other.key(),
        });
        Ok(if has_met { None } else { end.to_item() })
    }
}

impl Range {
    pub(crate) fn new(snapshot: Snapshot, range: EngineRange) -> Self {
        Self::of(snapshot, range, false)
    }

    /// With empty values where `is_of_keys`.
    fn of(snapshot: Snapshot, range: EngineRange, is_of_keys: bool) -> Self {
        Self { ends: Some(Ends { snapshot, range, is_of_keys, front: None, back: None }) }
    }

    fn take(&mut self, to: Move<'_>) -> Option<Result<(Bytes, Bytes)>> {
        let taken = self.ends.as_mut()?.take(to).transpose();
        if !matches!(taken, Some(Ok(_))) {
            self.ends = None;
        }
        taken
    }
}

impl Iterator for Range {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.take(Move::Next)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.take(Move::Prev)
    }
}

impl std::iter::FusedIterator for Range {}

/// Keys in order, taken from either end; ends after an error. Otherwise as [`Range`], without the
/// values: those that lie [apart](crate::RunOptions::large_values) from their keys are not read.
#[derive(Debug)]
pub struct Keys(Range);

impl Keys {
    pub(crate) fn new(snapshot: Snapshot, range: EngineRange) -> Self {
        Self(Range::of(snapshot, range, true))
    }
}

impl Iterator for Keys {
    type Item = Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|pair| pair.map(|(key, _)| key))
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|pair| pair.map(|(key, _)| key))
    }
}

impl std::iter::FusedIterator for Keys {}
