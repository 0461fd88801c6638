//! Reading: a view of the tree at one moment, point look-ups and ordered iteration.
//!
//! A [`ReadView`] pins what it reads: MemTables, version, read point and floor. All of it is immutable
//! but the active MemTable, which only grows by entries newer than the read point. So a read may wait for
//! a disk as long as it takes; it never sees half a batch, nor a file whose slots went to another.
//!
//! Views and iterators that keep for too long what the tree gave up are ended (see
//! [`crate::readers`]): the next step is an error then. One read of the disk is never overtaken: what it
//! reads is pinned until it is done.

use crate::cache::{BlockCache, TableCache};
use crate::entry::{Entry, EntryKind, Keyspace};
use crate::file::{FileMeta, FileSource, noted};
use crate::memtable::MemTableIter;
use crate::merge::{Cursor, Merge};
use crate::readers::{Pin, Release, State};
use crate::sst::{SstIter, SstReader};
use crate::version::Version;
use alloc::format;
use alloc::rc::{Rc, Weak};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use gabion_base::{Error, GroupId, Result, SequenceNumber};
use gabion_media::Bytes;

/// Through what files are read: where their bytes lie, the open files and the cached blocks. Cheap to
/// clone; stays on its thread.
#[derive(Clone)]
pub struct Tables<S> {
    /// Where bytes come from.
    pub source: S,
    /// Open files.
    pub open: Rc<TableCache>,
    /// Decoded blocks.
    pub blocks: Rc<BlockCache>,
    /// Whose files these are: part of every block's checksum.
    pub group: GroupId,
}

impl<S: FileSource> Tables<S> {
    async fn reader(&self, meta: &FileMeta) -> Result<Arc<SstReader>> {
        let opened = self.open.get_or_open(&self.source, self.group, meta).await;
        noted(&self.source, meta.id, opened)
    }

    async fn get(
        &self,
        meta: &FileMeta,
        key: &[u8],
        at: SequenceNumber,
    ) -> Result<Option<(EntryKind, SequenceNumber, Bytes)>> {
        let reader = self.reader(meta).await?;
        let found = reader.get(&self.source, &self.blocks, key, at).await;
        let found = noted(&self.source, meta.id, found)?;
        Ok(found.map(|(trailer, value)| (trailer.kind(), trailer.sequence(), value)))
    }
}

/// The tree at one moment. Cheap to clone; stays on its thread. Keeps MemTables and files alive, as long as
/// the pin budget lets it: see [`crate::Tree::limit_readers`].
#[derive(Clone)]
pub struct ReadView {
    pub(crate) state: Rc<State>,
    pub(crate) read_sequence: SequenceNumber,
    pub(crate) floor: SequenceNumber,
}

impl ReadView {
    /// The last write that the view sees.
    #[must_use]
    pub const fn sequence(&self) -> SequenceNumber {
        self.read_sequence
    }

    /// Keeps what the view sees for one read, which the caller makes past the view.
    ///
    /// # Errors
    /// Snapshot too old when the view was past its pin budget.
    pub fn pin(&self) -> Result<Pin> {
        self.state.pin()
    }

    /// The value of an engine key (keyspace byte first), if it has one.
    ///
    /// # Errors
    /// Corruption, what the source reports; snapshot too old when the view was past its pin budget.
    pub async fn get<S: FileSource>(
        &self,
        tables: &Tables<S>,
        key: &[u8],
    ) -> Result<Option<Bytes>> {
        let pin = self.pin()?;
        for table in &pin.0.memtables {
            if let Some((kind, sequence, value)) = table.get(key, self.read_sequence) {
                return self.judge(key, kind, sequence, || Bytes::copy_from_slice(value));
            }
        }
        let version = pin.version();
        let at = self.read_sequence;
        // Newer flushes come first, so the first find is the newest.
        for meta in version.level(0).iter().filter(|meta| meta.may_hold(key)) {
            if let Some((kind, sequence, value)) = tables.get(meta, key, at).await? {
                return self.judge(key, kind, sequence, || value);
            }
            self.state.check()?;
        }
        for level in 1..version.level_count() {
            for meta in version.overlapping(level, key, key) {
                if let Some((kind, sequence, value)) = tables.get(meta, key, at).await? {
                    return self.judge(key, kind, sequence, || value);
                }
                self.state.check()?;
            }
        }
        Ok(None)
    }

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

    /// The pairs with engine keys in `from..to` (to the end without `to`), ascending.
    ///
    /// Begin with [`ReadIterator::next`]. The iterator holds a copy of the view.
    pub fn scan<S: FileSource + Clone + 'static>(
        &self,
        tables: &Tables<S>,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> ReadIterator<S> {
        ReadIterator {
            view: self.clone(),
            tables: tables.clone(),
            from: from.to_vec(),
            to: to.map(<[u8]>::to_vec),
            merge: Rc::default(),
            is_open: false,
            last: None,
        }
    }
}

#[cold]
fn reserved(kind: EntryKind, sequence: SequenceNumber) -> Error {
    Error::unsupported(format!("entry {sequence} is of kind {kind:?}, which is reserved"))
}

/// Ordered pairs of a view. After an error, or a call that was dropped half-way, only dropping it is of
/// use.
pub struct ReadIterator<S: FileSource> {
    view: ReadView,
    tables: Tables<S>,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    /// Made by the first call of `next`. Between calls it lies where the end of the view can empty it.
    merge: Rc<RefCell<Option<Merge<Source<S>>>>>,
    is_open: bool,
    /// The last key that was judged; older versions of it are passed over.
    last: Option<Vec<u8>>,
}

impl<S: FileSource + Clone + 'static> ReadIterator<S> {
    /// The next pair: engine key and value.
    ///
    /// # Errors
    /// Corruption, what the source reports; snapshot too old when the view was past its pin budget.
    pub async fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        // Taken out for the length of the call: what is being read stays, even if the view ends.
        let taken = self.merge.take();
        let mut merge = match taken {
            Some(merge) => merge,
            None => self.open().await?,
        };
        let pair = self.step(&mut merge).await?;
        if self.view.state.check().is_ok() {
            *self.merge.borrow_mut() = Some(merge);
        }
        Ok(pair)
    }

    async fn open(&mut self) -> Result<Merge<Source<S>>> {
        let pin = self.view.pin()?;
        if core::mem::replace(&mut self.is_open, true) {
            return Err(Error::invalid("the iterator's last call failed or was dropped half-way"));
        }
        let cursor: Weak<dyn Release> = Rc::<RefCell<_>>::downgrade(&self.merge);
        self.view.state.add_cursor(cursor);
        open(&self.view, &pin, &self.tables, &self.from).await
    }

    async fn step(&mut self, merge: &mut Merge<Source<S>>) -> Result<Option<(Bytes, Bytes)>> {
        loop {
            self.view.state.check()?;
            let Some(entry) = merge.entry() else { return Ok(None) };
            if self.to.as_ref().is_some_and(|to| entry.key >= &to[..]) {
                return Ok(None);
            }
            let sequence = entry.trailer.sequence();
            let older = self.last.as_ref().is_some_and(|last| entry.key == &last[..]);
            if older || sequence > self.view.read_sequence {
                merge.advance().await?;
                continue;
            }
            let last = self.last.get_or_insert_with(Vec::new);
            last.clear();
            last.extend_from_slice(entry.key);
            let value = || merge.cursor().and_then(Source::value).unwrap_or_default();
            let judged = self.view.judge(entry.key, entry.trailer.kind(), sequence, value)?;
            let pair = judged.map(|value| (Bytes::copy_from_slice(entry.key), value));
            merge.advance().await?;
            if pair.is_some() {
                return Ok(pair);
            }
        }
    }
}

async fn open<S: FileSource + Clone>(
    view: &ReadView,
    pin: &Pin,
    tables: &Tables<S>,
    from: &[u8],
) -> Result<Merge<Source<S>>> {
    let mut sources = Vec::new();
    for table in &pin.0.memtables {
        let mut iter = table.iter();
        iter.seek(from, SequenceNumber::MAX);
        sources.push(Source::Table(iter));
    }
    let version = pin.version();
    for (at, _) in version.level(0).iter().enumerate().filter(|(_, m)| m.largest[..] >= *from) {
        let mut level = LevelIter::new(version.clone(), tables.clone(), 0, at..at + 1);
        level.seek(from).await?;
        view.state.check()?;
        sources.push(Source::Level(level));
    }
    for level in 1..version.level_count() {
        let files = version.level(level);
        let first = files.partition_point(|file| file.largest[..] < *from);
        let range = first..files.len();
        let mut level = LevelIter::new(version.clone(), tables.clone(), level, range);
        level.seek(from).await?;
        view.state.check()?;
        sources.push(Source::Level(level));
    }
    Ok(Merge::new(sources))
}

#[expect(clippy::large_enum_variant, reason = "a handful per merge; a box would cost each entry")]
enum Source<S: FileSource> {
    Table(MemTableIter),
    Level(LevelIter<S>),
}

impl<S: FileSource> Source<S> {
    /// The value under the cursor; shared with the block cache where it can be.
    fn value(&self) -> Option<Bytes> {
        match self {
            Self::Table(iter) => Some(Bytes::copy_from_slice(iter.entry()?.value)),
            Self::Level(level) => level.current.as_ref()?.value_bytes(),
        }
    }
}

impl<S: FileSource + Clone> Cursor for Source<S> {
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
struct LevelIter<S: FileSource> {
    version: Arc<Version>,
    tables: Tables<S>,
    level: u8,
    /// Files not opened yet, by their place in the level.
    files: core::ops::Range<usize>,
    current: Option<SstIter<S>>,
}

impl<S: FileSource + Clone> LevelIter<S> {
    const fn new(
        version: Arc<Version>,
        tables: Tables<S>,
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

    async fn open_next(&mut self) -> Result<Option<SstIter<S>>> {
        let next = self.files.next().and_then(|at| self.version.level(self.level).get(at));
        let Some(meta) = next else { return Ok(None) };
        let reader = self.tables.reader(meta).await?;
        let (source, blocks) = (self.tables.source.clone(), self.tables.blocks.clone());
        Ok(Some(SstIter::new(reader, source, blocks)))
    }
}
