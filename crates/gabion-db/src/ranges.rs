//! Deleting all keys of a range, or with a prefix, at once.

use crate::batch::WriteBatch;
use crate::db::Db;
use crate::iter::Bounds;
use crate::options::Durability;
use gabion_base::Result;

impl Db {
    /// Deletes all keys within bounds, whether there are any or not: `"a".."m"`, `"a"..`, `..=b"m"`
    /// or the like. When the start is past the end there are none, and nothing is written.
    /// Snapshots keep what they see.
    ///
    /// **Cost.** The write is one entry, however much it deletes. It costs 1 to 4 µs more than
    /// [`Self::delete`], as readers get another shape of the tree; `..`, which is everything, is
    /// not even an entry, but a number. Deleted pairs take space until compactions come by. They
    /// begin at once when nothing else is due, and drop files that are deleted as a whole unread.
    ///
    /// Only reads near range deletes pay. A get costs a binary search of about 25 ns in each file
    /// that it searches and that has some. In each MemTable it costs one such step more for each
    /// doubling of their number, so half a microsecond under 1,000. With 1,024 of them a MemTable
    /// is flushed, however small. A cursor looks for them once for each stretch between two of
    /// their ends. It goes through deleted pairs in the same MemTable, or the same file, entry by
    /// entry, and skips the deeper ones. For single keys [`Self::delete`] is cheaper, to read and
    /// to write.
    ///
    /// ```
    /// # use gabion_db::{Db, Durability, Options, WriteBatch};
    /// # let dir = std::env::temp_dir().join(format!("gabion-db-ranges-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() })?;
    /// for day in ["2026-01-30", "2026-01-31", "2026-02-01"] {
    ///     db.put(format!("log:{day}").as_bytes(), b"entries")?;
    /// }
    /// let before = db.snapshot();
    /// db.delete_range("log:2026-01".."log:2026-02")?;
    /// assert_eq!(db.iter(..).count(), 1);
    /// assert_eq!(before.iter(..).count(), 3);
    ///
    /// // All at once: what was there goes, what comes instead is there.
    /// let mut batch = WriteBatch::new();
    /// batch.delete_prefix(b"log:");
    /// batch.put(b"log:summary", b"quiet");
    /// db.write(&batch, Durability::Ring)?;
    /// assert_eq!(db.get(b"log:2026-02-01")?, None);
    /// assert_eq!(db.get(b"log:summary")?.as_deref(), Some(&b"quiet"[..]));
    /// # drop((before, db));
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), gabion_base::Error>(())
    /// ```
    ///
    /// # Durability
    /// [`Durability::Ring`].
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn delete_range(&self, bounds: impl Bounds) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete_range(bounds);
        self.write(&batch, Durability::Ring)
    }

    /// Deletes all keys that begin with `prefix`; see [`Self::delete_range`].
    ///
    /// # Durability
    /// [`Durability::Ring`].
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn delete_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete_prefix(prefix);
        self.write(&batch, Durability::Ring)
    }
}
