//! What a walk merges: a cursor for each MemTable, each run of L0 and each level below; and what
//! hides of it.

use super::gone::Gone;
use super::tables::Tables;
use crate::cache::ReadCache;
use crate::entry::Entry;
use crate::file::{FileSource, noted};
use crate::memtable::MemTableIter;
use crate::merge::{Cursor, Merge, ReverseCursor};
use crate::readers::Shape;
use crate::sst::SstIter;
use crate::version::Version;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use gabion_base::{Result, SequenceNumber};
use gabion_media::Bytes;

/// All that a shape has, somewhere in a key range.
pub(super) struct Cursors<S: FileSource, C> {
    /// From new to old: of two that hold something of a key, the first holds all that is newer.
    pub(super) merge: Merge<Source<S, C>>,
    /// The range deletes among it, if there are any. Apart, as cursors are moved about with each
    /// step.
    pub(super) gone: Option<Box<Gone>>,
}

impl<S: FileSource, C> Cursors<S, C> {
    /// Whether it is known that no range delete hides an entry of `key` with this number, or one
    /// that is newer.
    #[inline]
    pub(super) fn shows(&self, key: &[u8], sequence: SequenceNumber) -> bool {
        self.gone.as_ref().is_none_or(|gone| gone.shows(key, sequence))
    }

    /// Entries with a smaller number are hidden, of the key that was last looked up or known.
    pub(super) fn hidden_below(&self) -> SequenceNumber {
        self.gone.as_ref().map_or(SequenceNumber::ZERO, |gone| gone.hidden_below())
    }
}

/// Cursors, at no entry, over all of a shape that may hold keys of `from..to`.
pub(super) fn cursors<S: FileSource + Clone, C: ReadCache + Clone>(
    shape: &Shape,
    tables: &Tables<S, C>,
    from: &[u8],
    to: Option<&[u8]>,
) -> Cursors<S, C> {
    let mut gone = Gone::default();
    let mut sources: Vec<_> =
        shape.memtables.iter().map(|table| Source::Table(table.iter())).collect();
    shape.memtables.iter().enumerate().for_each(|(at, table)| gone.add_table(at, table));
    let version = &shape.version;
    let mut add = |level, files: Range<usize>| {
        if !files.is_empty() {
            gone.add_files(sources.len(), &version.level(level)[files.clone()]);
            sources.push(Source::Level(LevelIter::new(version, tables, level, files)));
        }
    };
    let is_before_end = |smallest: &[u8]| to.is_none_or(|to| smallest < to);
    let mut add_within = |level, places: Range<usize>| {
        let files = &version.level(level)[places.clone()];
        let start = files.partition_point(|file| &file.largest[..] < from);
        let end = files.partition_point(|file| is_before_end(&file.smallest));
        add(level, places.start + start..places.start + end);
    };
    version.runs().iter().for_each(|run| add_within(0, run.clone()));
    for level in 1..version.level_count() {
        add_within(level, 0..version.level(level).len());
    }
    let gone = (!gone.is_empty()).then(|| Box::new(gone));
    Cursors { merge: Merge::new(sources), gone }
}

pub(super) enum Source<S: FileSource, C> {
    Table(MemTableIter),
    Level(LevelIter<S, C>),
}

/// A value apart from the cursor that met it, without a copy.
pub(super) enum Held {
    Nothing,
    /// Stays at the entry.
    Table(MemTableIter),
    /// A part of a block.
    Block(Bytes),
}

impl Held {
    pub(super) fn value(&self) -> Option<&[u8]> {
        match self {
            Self::Nothing => None,
            Self::Table(iter) => iter.entry().map(|entry| entry.value),
            Self::Block(value) => Some(value),
        }
    }

    pub(super) fn to_bytes(&self) -> Option<Bytes> {
        match self {
            Self::Block(value) => Some(value.clone()),
            held => held.value().map(Bytes::copy_from_slice),
        }
    }
}

impl<S: FileSource, C: ReadCache> Source<S, C> {
    /// The value under the cursor; shared with the block cache where it can be.
    pub(super) fn value(&self) -> Option<Bytes> {
        match self {
            Self::Table(iter) => Some(Bytes::copy_from_slice(iter.entry()?.value)),
            Self::Level(level) => level.current.as_ref()?.value_bytes(),
        }
    }

    /// The value under the cursor, to be held while the cursor goes on.
    pub(super) fn hold(&self) -> Held {
        match self {
            Self::Table(iter) => Held::Table(iter.clone()),
            Self::Level(level) => {
                let value = level.current.as_ref().and_then(SstIter::value_bytes);
                value.map_or(Held::Nothing, Held::Block)
            }
        }
    }
}

impl<S: FileSource + Clone, C: ReadCache + Clone> Source<S, C> {
    /// To the first entry at or after `key`.
    pub(super) async fn seek(&mut self, key: &[u8]) -> Result<()> {
        match self {
            Self::Table(iter) => {
                iter.seek(key, SequenceNumber::MAX);
                Ok(())
            }
            Self::Level(level) => level.seek(key).await,
        }
    }

    /// To the last entry before `key`, or to the last.
    pub(super) async fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()> {
        match self {
            Self::Table(iter) => {
                match key {
                    Some(key) => iter.seek_before(key),
                    None => iter.seek_to_last(),
                }
                Ok(())
            }
            Self::Level(level) => level.seek_before(key).await,
        }
    }
}

impl<S: FileSource + Clone, C: ReadCache + Clone> Cursor for Source<S, C> {
    #[inline]
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

impl<S: FileSource + Clone, C: ReadCache + Clone> ReverseCursor for Source<S, C> {
    #[inline]
    fn try_advance(&mut self) -> Option<Result<()>> {
        match self {
            Self::Table(iter) => {
                iter.advance();
                Some(Ok(()))
            }
            Self::Level(level) => level.try_advance(),
        }
    }

    async fn retreat(&mut self) -> Result<()> {
        match self {
            Self::Table(iter) => {
                iter.retreat();
                Ok(())
            }
            Self::Level(level) => level.retreat().await,
        }
    }
}

/// Disjoint files of a level, or of a run of L0, as one, each opened when the cursor comes to it.
pub(super) struct LevelIter<S: FileSource, C> {
    version: Arc<Version>,
    tables: Tables<S, C>,
    level: u8,
    /// The files that count, by their place in the level.
    files: Range<usize>,
    /// The place of the current file.
    at: usize,
    current: Option<SstIter<S, C>>,
}

impl<S: FileSource + Clone, C: ReadCache + Clone> LevelIter<S, C> {
    fn new(version: &Arc<Version>, tables: &Tables<S, C>, level: u8, files: Range<usize>) -> Self {
        let at = files.start;
        Self { version: version.clone(), tables: tables.clone(), level, files, at, current: None }
    }

    /// To the first entry at or after `key`.
    async fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.open(self.place(key)).await?;
        if let Some(iter) = &mut self.current {
            let sought = iter.seek(key, SequenceNumber::MAX).await;
            noted(&self.tables.source, iter.file(), sought)?;
        }
        self.settle().await
    }

    /// The place of the first file that counts and does not end before `key`; behind them if there
    /// is none.
    fn place(&self, key: &[u8]) -> usize {
        let (version, level) = (&self.version, self.level);
        if level > 0 {
            let at = version.place(level, key, version.rank(key));
            return at.clamp(self.files.start, self.files.end);
        }
        // A run of L0.
        let files = &version.level(level)[self.files.clone()];
        self.files.start + files.partition_point(|file| &file.largest[..] < key)
    }

    /// To the last entry before `key`, or to the last.
    async fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()> {
        let files = &self.version.level(self.level)[self.files.clone()];
        let count =
            key.map_or(files.len(), |key| files.partition_point(|file| &file.smallest[..] < key));
        if count == 0 {
            self.current = None;
            return Ok(());
        }
        self.open(self.files.start + count - 1).await?;
        if let Some(iter) = &mut self.current {
            let sought = match key {
                Some(key) => iter.seek_before(key).await,
                None => iter.seek_to_last().await,
            };
            noted(&self.tables.source, iter.file(), sought)?;
        }
        self.settle_backwards().await
    }

    async fn advance(&mut self) -> Result<()> {
        if let Some(iter) = &mut self.current {
            let advanced = iter.advance().await;
            noted(&self.tables.source, iter.file(), advanced)?;
        }
        self.settle().await
    }

    /// As [`Self::advance`] without waiting: `None` when the next entry is not in memory or in
    /// another file. It is at no entry then, and only [`Self::advance`] may follow, or a seek.
    #[inline]
    fn try_advance(&mut self) -> Option<Result<()>> {
        let Some(iter) = &mut self.current else { return Some(Ok(())) };
        let advanced = iter.try_advance()?;
        Some(noted(&self.tables.source, iter.file(), advanced))
    }

    async fn retreat(&mut self) -> Result<()> {
        if let Some(iter) = &mut self.current {
            let retreated = iter.retreat().await;
            noted(&self.tables.source, iter.file(), retreated)?;
        }
        self.settle_backwards().await
    }

    /// Goes on to the next file while the current one is at its end.
    async fn settle(&mut self) -> Result<()> {
        while self.current.as_ref().is_some_and(|iter| iter.entry().is_none()) {
            self.open(self.at + 1).await?;
            if let Some(iter) = &mut self.current {
                let sought = iter.seek_to_first().await;
                noted(&self.tables.source, iter.file(), sought)?;
            }
        }
        Ok(())
    }

    /// Goes on to the file before while the current one is at its beginning.
    async fn settle_backwards(&mut self) -> Result<()> {
        while self.current.as_ref().is_some_and(|iter| iter.entry().is_none()) {
            if self.at == self.files.start {
                self.current = None;
                break;
            }
            self.open(self.at - 1).await?;
            if let Some(iter) = &mut self.current {
                let sought = iter.seek_to_last().await;
                noted(&self.tables.source, iter.file(), sought)?;
            }
        }
        Ok(())
    }

    /// Makes the file at this place the current one, if it is one of those that count.
    async fn open(&mut self, at: usize) -> Result<()> {
        if self.current.is_some() && self.at == at {
            return Ok(());
        }
        assert!(self.files.start <= at, "an iterator stays among its files");
        assert!(at <= self.files.end, "or right behind the last");
        self.current = None;
        self.at = at;
        if !self.files.contains(&at) {
            return Ok(());
        }
        let file = self.version.file_at(self.level, at);
        let reader = self.tables.shared_reader_at(file).await?;
        let (source, cache) = (self.tables.source.clone(), self.tables.cache.clone());
        self.current = Some(SstIter::new(reader, source, cache));
        Ok(())
    }
}
