//! [`SstIter`]: a cursor for readers over an open SST, through the block cache. The one for jobs is
//! in `scan`.
//!
//! A reader of one entry is after one block. Who goes on from block to block is likely to go
//! further, so the cursor then takes several in hand: what it waits for of the cache, of memory or
//! of the device, it waits for once.

use super::block::BlockCursor;
use super::reader::{BlockHandle, SstReader, read_exactly};
use crate::cache::{LINE_LEN, LocalCache, ReadCache};
use crate::entry::{Entry, Trailer};
use crate::file::FileSource;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use gabion_base::{Error, FileId, Result, SequenceNumber};
use gabion_media::Bytes;

/// Blocks that a cursor for readers looks for in the cache at once, at most, to have them in hand;
/// one read of the device may bring more. What is waited for of memory and locks is waited for once
/// for all of them. The first step from a block to the next looks one ahead, each further one twice
/// as many, so that a short scan fetches little that it does not come to.
const AHEAD_MAX: usize = 8;
/// Bytes of a block in hand of which the memory is asked for before the cursor comes to it.
const PREFETCH_LEN: usize = 8 << 10;
/// What a cursor that goes on to a block that is not in the cache reads at once, in bytes of blocks
/// that follow each other: the block with one or two more at first, then twice as much each time,
/// as long as nothing but the last read tells how far it will go (as RocksDB's automatic readahead
/// does).
const READ_AHEAD_LEN: Range<u32> = 8 << 10..128 << 10;

/// A cursor for readers. Owns what it reads from, so `S` is `&Source`, `Rc<Source>` or the like.
///
/// After an error it is at no entry; seek again.
pub struct SstIter<S: FileSource, C = Rc<LocalCache>> {
    reader: Arc<SstReader>,
    source: S,
    cache: C,
    /// The place of the block here among the file's, or their number.
    at: usize,
    cursor: BlockCursor,
    /// Empty at no block.
    block: Bytes,
    /// The blocks behind it, as far as they are in hand; the next one is the last.
    ahead: Vec<Bytes>,
    /// Blocks that are worth to be looked for ahead.
    ahead_len: usize,
    /// Bytes of the last read that was one of several in a row; 0 after a seek.
    read_len: u32,
}

impl<S: FileSource, C: ReadCache> SstIter<S, C> {
    /// A cursor at no entry.
    #[must_use]
    pub const fn new(reader: Arc<SstReader>, source: S, cache: C) -> Self {
        Self {
            reader,
            source,
            cache,
            at: 0,
            cursor: BlockCursor::new(),
            block: Bytes::new(),
            ahead: Vec::new(),
            ahead_len: 1,
            read_len: 0,
        }
    }

    /// The file that is read.
    #[must_use]
    pub fn file(&self) -> FileId {
        self.reader.id()
    }

    /// Goes to the first entry.
    ///
    /// # Errors
    /// Corruption, naming file and offset; what the source reports.
    pub async fn seek_to_first(&mut self) -> Result<()> {
        self.enter(0).await?;
        self.advance().await
    }

    /// Goes to what a reader at `sequence` finds first at or after `key`: the first entry of `key`
    /// no newer than `sequence`, or the newest of the next key. At no entry if there is none.
    ///
    /// # Errors
    /// As [`SstIter::seek_to_first`].
    pub async fn seek(&mut self, key: &[u8], sequence: SequenceNumber) -> Result<()> {
        if self.reader.is_loaded_by(sequence) {
            return self.seek_stored(key, sequence).await;
        }
        // What was loaded later is stored as if it were older.
        self.seek_stored(key, SequenceNumber::MAX).await?;
        while self.entry().is_some_and(|entry| entry.key == key) {
            self.advance().await?;
        }
        Ok(())
    }

    /// As [`Self::seek`], by sequence numbers as they are stored.
    async fn seek_stored(&mut self, key: &[u8], sequence: SequenceNumber) -> Result<()> {
        let target = Trailer::seek(sequence);
        let at = self.reader.place_of_block(key, target);
        let Some(handle) = self.load(at).await? else { return Ok(()) };
        match self.cursor.seek(&self.block, key, target) {
            Ok(true) => self.check_here(),
            // The separator is after the target, but the block's last entry is not.
            Ok(false) => self.advance().await,
            Err(error) => {
                self.leave();
                Err(self.reader.at(handle, error))
            }
        }
    }

    /// Goes to the next entry; at no entry past the last, and stays there.
    ///
    /// # Errors
    /// As [`SstIter::seek_to_first`].
    pub async fn advance(&mut self) -> Result<()> {
        loop {
            if let Some(advanced) = self.try_advance() {
                return advanced;
            }
            self.enter_next().await?;
        }
    }

    /// As [`SstIter::advance`] without waiting: `None` when the next block is not in memory or
    /// there is none. It is at no entry then, at its block's end, and only [`SstIter::advance`] may
    /// follow, or a seek.
    #[inline]
    pub(crate) fn try_advance(&mut self) -> Option<Result<()>> {
        loop {
            match self.cursor.advance(&self.block) {
                Ok(true) => return Some(self.check_here()),
                Ok(false) if self.block.is_empty() => return Some(Ok(())),
                Ok(false) => {}
                Err(error) => {
                    self.leave();
                    return Some(Err(error.within(alloc::format!("{}", self.reader.id()))));
                }
            }
            match self.enter_ahead() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Before the first entry of the next block, if it is in memory.
    fn enter_ahead(&mut self) -> Result<bool> {
        if self.ahead.is_empty() {
            self.look_ahead();
        }
        let Some(block) = self.ahead.pop() else { return Ok(false) };
        self.at += 1;
        self.block = block;
        // Whoever looks at values waits for memory more than for anything else, and here there is
        // time for it.
        if let Some(next) = self.ahead.last() {
            for line in next[..next.len().min(PREFETCH_LEN)].chunks(LINE_LEN) {
                crate::skip_list::prefetch(line.as_ptr());
            }
        }
        if let Err(error) = self.cursor.enter(&self.block) {
            let at = self.at;
            self.leave();
            return Err(self.in_block(at, error));
        }
        Ok(true)
    }

    /// Takes the next blocks in hand, up to the first that is not in memory.
    fn look_ahead(&mut self) {
        let mut offsets = [0; AHEAD_MAX];
        let mut count = 0;
        for offset in &mut offsets[..self.ahead_len] {
            let Some(handle) = self.reader.block_at(self.at + 1 + count) else { break };
            *offset = u64::from(handle.offset);
            count += 1;
        }
        self.cache.blocks(self.reader.id(), &offsets[..count], &mut self.ahead);
        self.ahead_len = if self.ahead.len() < count { 1 } else { (2 * count).clamp(1, AHEAD_MAX) };
        self.ahead.reverse();
    }

    /// Goes to the last entry.
    ///
    /// # Errors
    /// As [`SstIter::seek_to_first`].
    pub async fn seek_to_last(&mut self) -> Result<()> {
        self.enter_at_end(self.reader.block_count().checked_sub(1)).await?;
        self.retreat().await
    }

    /// Goes to the last entry before every entry of `key`. At no entry if there is none.
    ///
    /// # Errors
    /// As [`SstIter::seek_to_first`].
    pub async fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        let at = self.reader.place_of_block(key, Trailer::FIRST);
        // In this block or the one before: a separator may be after the target without an entry
        // that is.
        let Some(handle) = self.load(at).await? else { return self.seek_to_last().await };
        if let Err(error) = self.cursor.seek(&self.block, key, Trailer::FIRST) {
            self.leave();
            return Err(self.reader.at(handle, error));
        }
        self.retreat().await
    }

    /// Goes to the entry before; at no entry before the first, and stays there.
    ///
    /// Costs no more than [`SstIter::advance`] where it goes on backwards: each block's entries are
    /// parsed once. After a step forwards it parses from the last restart point before the entry.
    ///
    /// # Errors
    /// As [`SstIter::seek_to_first`].
    pub async fn retreat(&mut self) -> Result<()> {
        loop {
            if self.block.is_empty() {
                return Ok(());
            }
            match self.cursor.retreat(&self.block) {
                Ok(true) => return self.check_here(),
                Ok(false) => {}
                Err(error) => {
                    self.leave();
                    return Err(error.within(alloc::format!("{}", self.reader.id())));
                }
            }
            self.enter_at_end(self.at.checked_sub(1)).await?;
        }
    }

    /// The entry here; `None` past the ends and before the first seek.
    #[inline]
    #[must_use]
    pub fn entry(&self) -> Option<Entry<'_>> {
        self.cursor.entry(&self.block).map(|entry| self.reader.as_read(entry))
    }

    /// The value of the entry here, sharing the memory of its block.
    #[must_use]
    pub fn value_bytes(&self) -> Option<Bytes> {
        self.entry().map(|_| self.block.slice(self.cursor.value_range()))
    }

    /// At no entry of no block, where every error leaves the cursor.
    fn leave(&mut self) {
        self.cursor.leave();
        self.block = Bytes::new();
        self.ahead.clear();
        self.ahead_len = 1;
        self.read_len = 0;
    }

    /// Before the first entry of the block at this place, or at no entry of none.
    async fn enter(&mut self, at: usize) -> Result<()> {
        let Some(handle) = self.load(Ok(at)).await? else { return Ok(()) };
        let entered = self.cursor.enter(&self.block);
        self.entered(handle, entered)
    }

    /// Past the last entry of the block at this place, or at no entry of none.
    async fn enter_at_end(&mut self, at: Option<usize>) -> Result<()> {
        let at = at.unwrap_or(self.reader.block_count());
        let Some(handle) = self.load(Ok(at)).await? else { return Ok(()) };
        let entered = self.cursor.enter_at_end(&self.block);
        self.entered(handle, entered)
    }

    /// Makes the block at this place the current one, if there is one; the cursor is in none yet.
    async fn load(&mut self, at: Result<usize>) -> Result<Option<BlockHandle>> {
        self.leave();
        self.at = at?.min(self.reader.block_count());
        let Some(handle) = self.reader.block_at(self.at) else { return Ok(None) };
        self.block = match self.cache.block(self.reader.id(), u64::from(handle.offset)) {
            Some(block) => block,
            None => self.reader.read_block(&self.source, &self.cache, handle).await?,
        };
        Ok(Some(handle))
    }

    /// Before the first entry of the block behind the one here, which is not in hand, or at no
    /// entry if there is none.
    async fn enter_next(&mut self) -> Result<()> {
        let at = (self.at + 1).min(self.reader.block_count());
        let read_len = (2 * self.read_len).clamp(READ_AHEAD_LEN.start, READ_AHEAD_LEN.end);
        self.leave();
        self.at = at;
        let Some(handle) = self.reader.block_at(at) else { return Ok(()) };
        self.block = match self.cache.block(self.reader.id(), u64::from(handle.offset)) {
            Some(block) => block,
            None => self.read_ahead(handle, read_len).await?,
        };
        self.read_len = read_len;
        let entered = self.cursor.enter(&self.block);
        self.entered(handle, entered)
    }

    /// Reads a block, at whose place the cursor is, and in the same read those behind it that end
    /// within `len` bytes, which then are in hand. What is wrong with those is no error here: they
    /// are read again when their turn comes.
    async fn read_ahead(&mut self, handle: BlockHandle, len: u32) -> Result<Bytes> {
        let mut handles = Vec::new();
        while let Some(next) = self.reader.block_at(self.at + 1 + handles.len())
            && next.end().checked_sub(handle.offset).is_some_and(|all| all <= len)
        {
            handles.push(next);
        }
        if let Some(last) = handles.last() {
            let all_len = (last.end() - handle.offset) as usize;
            let offset = u64::from(handle.offset);
            let read = read_exactly(&self.source, self.reader.id(), offset, all_len).await;
            if let Ok(stored) = read {
                let keep = |it: &BlockHandle| {
                    // Nothing but blocks in a row lies within what was read.
                    let at = it.offset.checked_sub(handle.offset)? as usize;
                    let stored = stored.get(at..at + it.stored_len as usize)?;
                    Some(self.reader.keep_stored(&self.cache, *it, stored))
                };
                if let Some(block) = keep(&handle) {
                    let block = block?;
                    self.ahead.extend(handles.iter().map_while(|it| keep(it)?.ok()));
                    self.ahead.reverse();
                    return Ok(block);
                }
            }
        }
        self.reader.read_block(&self.source, &self.cache, handle).await
    }

    fn entered(&mut self, handle: BlockHandle, entered: Result<()>) -> Result<()> {
        if entered.is_err() {
            self.leave();
        }
        entered.map_err(|error| self.reader.at(handle, error))
    }

    #[cold]
    fn in_block(&self, at: usize, error: Error) -> Error {
        match self.reader.block_at(at) {
            Some(handle) => self.reader.at(handle, error),
            None => error,
        }
    }

    fn check_here(&mut self) -> Result<()> {
        let checked = self.reader.entry_trailer(self.cursor.trailer());
        if checked.is_err() {
            self.leave();
        }
        checked.map(|_| ())
    }
}
