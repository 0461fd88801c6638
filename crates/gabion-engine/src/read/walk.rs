//! How a shape is read, whoever keeps it: a look-up from new to old, and a merge of all that it has.

use super::Tables;
use crate::cache::ReadCache;
use crate::entry::{Entry, EntryKind, Keyspace};
use crate::file::{FileSource, noted};
use crate::memtable::MemTableIter;
use crate::merge::{Cursor, Merge};
use crate::readers::Shape;
use crate::sst::SstIter;
use crate::version::Version;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{Error, Result, SequenceNumber};
use gabion_media::Bytes;

/// Which of a shape's entries a reader sees.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadPoint {
    /// The last write.
    pub(crate) sequence: SequenceNumber,
    /// Older entries of users were cleared.
    pub(crate) floor: SequenceNumber,
}

impl ReadPoint {
    /// What the newest visible entry of a key means.
    fn judge(
        &self,
        key: &[u8],
        kind: EntryKind,
        sequence: SequenceNumber,
        value: impl FnOnce() -> Bytes,
    ) -> Result<Option<Bytes>> {
        match kind {
            EntryKind::Put if self.is_cleared(key, sequence) => Ok(None),
            EntryKind::Put => Ok(Some(value())),
            kind if kind.is_delete() => Ok(None),
            kind => Err(reserved(kind, sequence)),
        }
    }

    fn is_cleared(&self, key: &[u8], sequence: SequenceNumber) -> bool {
        sequence < self.floor && key.first() == Some(&(Keyspace::User as u8))
    }

    /// The value of an engine key in `shape`. After each wait `check` says whether to go on.
    pub(super) async fn get<S: FileSource, C: ReadCache>(
        &self,
        shape: &Shape,
        tables: &Tables<S, C>,
        key: &[u8],
        check: impl Fn() -> Result<()>,
    ) -> Result<Option<Bytes>> {
        for table in &shape.memtables {
            if let Some((kind, sequence, value)) = table.get(key, self.sequence) {
                return self.judge(key, kind, sequence, || Bytes::copy_from_slice(value));
            }
        }
        let version = &shape.version;
        // Newer flushes come first, so the first find is the newest.
        for meta in version.level(0).iter().filter(|meta| meta.may_hold(key)) {
            if let Some((kind, sequence, value)) = tables.get(meta, key, self.sequence).await? {
                return self.judge(key, kind, sequence, || value);
            }
            check()?;
        }
        for level in 1..version.level_count() {
            for meta in version.overlapping(level, key, key) {
                if let Some((kind, sequence, value)) = tables.get(meta, key, self.sequence).await? {
                    return self.judge(key, kind, sequence, || value);
                }
                check()?;
            }
        }
        Ok(None)
    }
}

#[cold]
fn reserved(kind: EntryKind, sequence: SequenceNumber) -> Error {
    Error::unsupported(format!("entry {sequence} is of kind {kind:?}, which is reserved"))
}

/// All that a shape has, somewhere in a key range.
pub(super) type Cursors<S, C> = Merge<Source<S, C>>;

/// A walk over the pairs of a key range; where it is lies in its [`Cursors`].
pub(super) struct Walk<S, C> {
    point: ReadPoint,
    tables: Tables<S, C>,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    /// The last key that was judged; older versions of it are passed over.
    last: Option<Vec<u8>>,
}

impl<S: FileSource + Clone, C: ReadCache + Clone> Walk<S, C> {
    pub(super) fn new(
        point: ReadPoint,
        tables: &Tables<S, C>,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Self {
        let (from, to) = (from.to_vec(), to.map(<[u8]>::to_vec));
        Self { point, tables: tables.clone(), from, to, last: None }
    }

    /// All that `shape` has, at the beginning of the range.
    pub(super) async fn open(
        &self,
        shape: &Shape,
        check: impl Fn() -> Result<()>,
    ) -> Result<Cursors<S, C>> {
        let (tables, from, mut sources) = (&self.tables, &self.from, Vec::new());
        for table in &shape.memtables {
            let mut iter = table.iter();
            iter.seek(from, SequenceNumber::MAX);
            sources.push(Source::Table(iter));
        }
        let version = &shape.version;
        for (at, _) in version.level(0).iter().enumerate().filter(|(_, m)| m.largest >= *from) {
            let mut level = LevelIter::new(version.clone(), tables.clone(), 0, at..at + 1);
            level.seek(from).await?;
            check()?;
            sources.push(Source::Level(level));
        }
        for level in 1..version.level_count() {
            let files = version.level(level);
            let first = files.partition_point(|file| file.largest < *from);
            let range = first..files.len();
            let mut level = LevelIter::new(version.clone(), tables.clone(), level, range);
            level.seek(from).await?;
            check()?;
            sources.push(Source::Level(level));
        }
        Ok(Merge::new(sources))
    }

    /// The next pair: engine key and value.
    pub(super) async fn step(
        &mut self,
        merge: &mut Cursors<S, C>,
        check: impl Fn() -> Result<()>,
    ) -> Result<Option<(Bytes, Bytes)>> {
        loop {
            check()?;
            let Some(entry) = merge.entry() else { return Ok(None) };
            if self.to.as_ref().is_some_and(|to| entry.key >= &to[..]) {
                return Ok(None);
            }
            let sequence = entry.trailer.sequence();
            let older = self.last.as_ref().is_some_and(|last| entry.key == &last[..]);
            if older || sequence > self.point.sequence {
                merge.advance().await?;
                continue;
            }
            let last = self.last.get_or_insert_with(Vec::new);
            last.clear();
            last.extend_from_slice(entry.key);
            let value = || merge.cursor().and_then(Source::value).unwrap_or_default();
            let judged = self.point.judge(entry.key, entry.trailer.kind(), sequence, value)?;
            let pair = judged.map(|value| (Bytes::copy_from_slice(entry.key), value));
            merge.advance().await?;
            if pair.is_some() {
                return Ok(pair);
            }
        }
    }
}

pub(super) enum Source<S: FileSource, C> {
    Table(MemTableIter),
    Level(LevelIter<S, C>),
}

impl<S: FileSource, C: ReadCache> Source<S, C> {
    /// The value under the cursor; shared with the block cache where it can be.
    fn value(&self) -> Option<Bytes> {
        match self {
            Self::Table(iter) => Some(Bytes::copy_from_slice(iter.entry()?.value)),
            Self::Level(level) => level.current.as_ref()?.value_bytes(),
        }
    }
}

impl<S: FileSource + Clone, C: ReadCache + Clone> Cursor for Source<S, C> {
    fn entry(&self) -> Option<Entry<'_>> {
        match self {
            Self::Table(iter) => iter.entry(),
            Self::Level(level) => level.current.as_ref()?.entry(),
        }
    }

    async fn advance(&mut self) -> Result<()> {
        match self {
            Self::Table(iter) => {
                iter.advance();
                Ok(())
            }
            Self::Level(level) => level.advance().await,
        }
    }
}

/// Disjoint files of a level one after the other, each opened when its turn comes.
pub(super) struct LevelIter<S: FileSource, C> {
    version: Arc<Version>,
    tables: Tables<S, C>,
    level: u8,
    /// Files not opened yet, by their place in the level.
    files: core::ops::Range<usize>,
    current: Option<SstIter<S, C>>,
}

impl<S: FileSource + Clone, C: ReadCache + Clone> LevelIter<S, C> {
    const fn new(
        version: Arc<Version>,
        tables: Tables<S, C>,
        level: u8,
        files: core::ops::Range<usize>,
    ) -> Self {
        Self { version, tables, level, files, current: None }
    }

    /// To the first entry at or after `from`.
    async fn seek(&mut self, from: &[u8]) -> Result<()> {
        if let Some(mut iter) = self.open_next().await? {
            let sought = iter.seek(from, SequenceNumber::MAX).await;
            noted(&self.tables.source, iter.file(), sought)?;
            self.current = Some(iter);
            self.settle().await?;
        }
        Ok(())
    }

    async fn advance(&mut self) -> Result<()> {
        if let Some(iter) = &mut self.current {
            let advanced = iter.advance().await;
            noted(&self.tables.source, iter.file(), advanced)?;
        }
        self.settle().await
    }

    /// Goes on to the next file while the current one is at its end.
    async fn settle(&mut self) -> Result<()> {
        while self.current.as_ref().is_some_and(|iter| iter.entry().is_none()) {
            self.current = self.open_next().await?;
            if let Some(iter) = &mut self.current {
                let sought = iter.seek_to_first().await;
                noted(&self.tables.source, iter.file(), sought)?;
            }
        }
        Ok(())
    }

    async fn open_next(&mut self) -> Result<Option<SstIter<S, C>>> {
        let next = self.files.next().and_then(|at| self.version.level(self.level).get(at));
        let Some(meta) = next else { return Ok(None) };
        let reader = self.tables.reader(meta).await?;
        let (source, cache) = (self.tables.source.clone(), self.tables.cache.clone());
        Ok(Some(SstIter::new(reader, source, cache)))
    }
}
