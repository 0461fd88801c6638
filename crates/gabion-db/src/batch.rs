//! Writes that take effect together.

use crate::iter::{Bounds, EngineRange};
use gabion_host::clock::Clock;
use std::time::Duration;

/// The end of a key's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// This long after the write, by the store's clock; cut to whole milliseconds. A time beyond
    /// the year 500 million means that year.
    In(Duration),
    /// When the system's clock shows this time, in milliseconds since 1970 (UTC). A time that has
    /// passed means that the key is gone at once. If that clock is set later on, the rest of the
    /// key's life stays as it was ([`gabion_host::clock`]).
    AtMs(u64),
}

impl Expiry {
    /// The time by `clock`. `now_ms` is the store's time and not before the clock's.
    pub(crate) fn at_ms(self, now_ms: u64, clock: &Clock) -> u64 {
        match self {
            Self::In(time) => {
                now_ms.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
            }
            Self::AtMs(at_ms) => clock.of_system_ms(at_ms),
        }
    }
}

/// Puts, additions and deletes that are all there after a crash, or none of them; later ones win
/// over earlier ones, and additions add up. One batch is one record of the log: at most 65,536
/// operations, 1,024 range deletes among them, and about 16 MiB (`Options::segment_len`).
///
/// Each call costs a copy of its key and value into the batch's memory, and nothing in the store
/// before [`crate::Db::write`], which also checks the limits. A batch may be made on one thread and
/// written by another, and written again.
///
/// ```
/// # use gabion_db::{Db, Durability, Options, WriteBatch};
/// # let dir = std::env::temp_dir().join(format!("gabion-db-batch-{}", std::process::id()));
/// # let _ = std::fs::remove_dir_all(&dir);
/// # let options = Options { pool_len: 128 << 20, ..Options::default() };
/// # let db = Db::create(&dir, &options)?;
/// let mut transfer = WriteBatch::new();
/// transfer.add(b"balance:ann", -20);
/// transfer.add(b"balance:bob", 20);
/// transfer.delete(b"pending:17");
/// db.write(&transfer, Durability::Flushed)?; // all of it survives a power cut, or none of it
/// transfer.clear(); // its memory is there for the next
/// # assert_eq!(db.get(b"balance:bob")?.as_deref(), Some(&b"20"[..]));
/// # drop(db);
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), gabion_base::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    bytes: Vec<u8>,
    operations: Vec<Operation>,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    key_end: usize,
    value_end: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Put,
    PutExpiring(Expiry),
    Add(i64),
    Delete,
    DeleteRange,
    /// To the end of all keys.
    DeleteFrom,
}

/// One operation of a batch.
pub(crate) enum Op<'a> {
    Put(&'a [u8], &'a [u8]),
    PutExpiring(&'a [u8], &'a [u8], Expiry),
    Add(&'a [u8], i64),
    Delete(&'a [u8]),
    /// From the first key to before the second, or to the end of all.
    DeleteRange(&'a [u8], Option<&'a [u8]>),
}

impl WriteBatch {
    /// A batch without operations.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key.
    #[inline]
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.push(key.as_ref(), value.as_ref(), Kind::Put);
    }

    /// Sets a key until a time; see [`crate::Db::put_expiring`].
    #[inline]
    pub fn put_expiring(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, expiry: Expiry) {
        self.push(key.as_ref(), value.as_ref(), Kind::PutExpiring(expiry));
    }

    /// Adds to a counter; see [`crate::Db::add`].
    #[inline]
    pub fn add(&mut self, key: impl AsRef<[u8]>, delta: i64) {
        self.push(key.as_ref(), &[], Kind::Add(delta));
    }

    /// Deletes a key, whether it is there or not.
    #[inline]
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.push(key.as_ref(), &[], Kind::Delete);
    }

    /// Deletes all keys within bounds; see [`crate::Db::delete_range`]. That includes keys that the
    /// batch writes there before it, and no key that it writes there after it.
    pub fn delete_range(&mut self, bounds: impl Bounds) {
        self.delete_engine_range(&EngineRange::new(&bounds));
    }

    /// Deletes all keys that begin with `prefix`; see [`crate::Db::delete_range`].
    pub fn delete_prefix(&mut self, prefix: impl AsRef<[u8]>) {
        self.delete_engine_range(&EngineRange::of_prefix(prefix.as_ref()));
    }

    fn delete_engine_range(&mut self, range: &EngineRange) {
        match range.user_keys() {
            Some((from, Some(to))) => self.push(from, to, Kind::DeleteRange),
            Some((from, None)) => self.push(from, &[], Kind::DeleteFrom),
            None => {}
        }
    }

    fn push(&mut self, key: &[u8], value: &[u8], kind: Kind) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.operations.push(Operation { key_end, value_end: self.bytes.len(), kind });
    }

    /// Operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Forgets all operations and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.operations.clear();
    }

    /// Bytes of keys and values.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn operations(&self) -> impl Iterator<Item = Op<'_>> {
        let mut start = 0;
        self.operations.iter().map(move |&Operation { key_end, value_end, kind }| {
            let (key, value) = (&self.bytes[start..key_end], &self.bytes[key_end..value_end]);
            start = value_end;
            match kind {
                Kind::Put => Op::Put(key, value),
                Kind::PutExpiring(expiry) => Op::PutExpiring(key, value, expiry),
                Kind::Add(delta) => Op::Add(key, delta),
                Kind::Delete => Op::Delete(key),
                Kind::DeleteRange => Op::DeleteRange(key, Some(value)),
                Kind::DeleteFrom => Op::DeleteRange(key, None),
            }
        })
    }
}
