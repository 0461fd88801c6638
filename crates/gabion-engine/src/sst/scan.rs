//! [`SstScan`]: a cursor for jobs over an open SST, in large sequential reads past the cache.

use super::block::BlockCursor;
use super::reader::{BlockHandle, SstReader, corrupt, read_exactly};
use super::{BLOCK_TRAILER_LEN, BlockCodec};
use crate::entry::{Entry, Trailer};
use crate::file::FileSource;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::ops::Range;
use core::pin::Pin;
use core::task::Poll;
use gabion_base::units::BLOCK_LEN;
use gabion_base::{FileId, Result};
use gabion_media::Bytes;

/// A cursor for jobs: every entry of a key range once, in order. Reads past the cache, one piece
/// ahead of what it parses, and parses blocks where they lie.
pub struct SstScan<'a, S: FileSource> {
    reader: Arc<SstReader>,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    /// The place of the next block among the file's.
    next: usize,
    cursor: BlockCursor,
    state: State,
    stream: Stream<'a, S>,
    /// The block that the cursor is in.
    block: Block,
    /// A block that lies in several pieces, put together.
    joined: Vec<u8>,
    /// A block that was decompressed.
    raw: Vec<u8>,
}

enum State {
    NotStarted,
    InBlock,
    Ended,
}

enum Block {
    Piece(Range<usize>),
    Joined,
    Raw,
}

impl<'a, S: FileSource + Clone + 'a> SstScan<'a, S> {
    /// A scan of the entries whose engine keys lie in `from..to`, or from `from` to the end, at no
    /// entry until the first [`SstScan::advance`]. Each read covers `read_len` bytes of the device
    /// (256 KiB to 1 MiB is good); two such pieces are in memory at a time.
    #[must_use]
    pub fn new(
        reader: Arc<SstReader>,
        source: S,
        from: &[u8],
        to: Option<&[u8]>,
        read_len: usize,
    ) -> Self {
        Self {
            stream: Stream {
                source,
                file: reader.id(),
                read_len: u32::try_from(read_len).unwrap_or(u32::MAX),
                end: reader.data_len(),
                piece: Bytes::new(),
                piece_at: 0,
                ahead: None,
            },
            reader,
            from: from.to_vec(),
            to: to.map(<[u8]>::to_vec),
            next: 0,
            cursor: BlockCursor::new(),
            state: State::NotStarted,
            block: Block::Piece(0..0),
            joined: Vec::new(),
            raw: Vec::new(),
        }
    }

    /// The file that is read.
    #[must_use]
    pub fn file(&self) -> FileId {
        self.reader.id()
    }

    /// Goes to the first or next entry; `false` past the last. After an error the scan has ended.
    ///
    /// # Errors
    /// Corruption, naming file and offset; what the source reports.
    #[inline]
    pub async fn advance(&mut self) -> Result<bool> {
        match self.try_advance() {
            Some(result) => result,
            None => self.advance_to_block().await,
        }
    }

    /// As [`SstScan::advance`] without waiting: `None` when the next block has to be entered first.
    #[inline]
    fn try_advance(&mut self) -> Option<Result<bool>> {
        match self.state {
            State::InBlock => {}
            State::NotStarted => return None,
            State::Ended => return Some(Ok(false)),
        }
        let body = match &self.block {
            Block::Piece(range) => &self.stream.piece[range.clone()],
            Block::Joined => &self.joined[..],
            Block::Raw => &self.raw[..],
        };
        match self.cursor.advance(body) {
            Ok(true) => Some(self.accept()),
            Ok(false) => None,
            Err(error) => {
                self.end();
                Some(Err(error.within(alloc::format!("{}", self.reader.id()))))
            }
        }
    }

    /// The entry here; `None` past the last and before the first.
    #[inline]
    #[must_use]
    pub fn entry(&self) -> Option<Entry<'_>> {
        let stored = match &self.block {
            Block::Piece(range) => self.cursor.entry(&self.stream.piece[range.clone()]),
            Block::Joined => self.cursor.entry(&self.joined),
            Block::Raw => self.cursor.entry(&self.raw),
        };
        stored.map(|entry| self.reader.as_read(entry))
    }

    /// Whether the entry here is within the range, and of a kind that exists.
    #[inline]
    fn accept(&mut self) -> Result<bool> {
        if let Err(error) = self.reader.entry_trailer(self.cursor.trailer()) {
            self.end();
            return Err(error);
        }
        if let Some(to) = &self.to
            && self.cursor.key() >= &to[..]
        {
            self.end();
            return Ok(false);
        }
        Ok(true)
    }

    fn end(&mut self) {
        self.state = State::Ended;
        self.cursor.leave();
        self.block = Block::Piece(0..0);
        self.stream.close();
    }

    async fn advance_to_block(&mut self) -> Result<bool> {
        let result = self.enter_blocks().await;
        if !matches!(result, Ok(true)) {
            self.end();
        }
        result
    }

    async fn enter_blocks(&mut self) -> Result<bool> {
        loop {
            let first = matches!(self.state, State::NotStarted);
            if first {
                self.start()?;
            }
            let handle = self.reader.block_at(self.next);
            self.next += 1;
            // Behind the block in which `to` belongs, everything is beyond it.
            let handle = handle.filter(|handle| handle.offset < self.stream.end);
            let Some(handle) = handle else { return Ok(false) };
            self.enter(handle).await?;
            self.state = State::InBlock;
            let body = match &self.block {
                Block::Piece(range) => &self.stream.piece[range.clone()],
                Block::Joined => &self.joined[..],
                Block::Raw => &self.raw[..],
            };
            let found = match first {
                true => self.cursor.seek(body, &self.from, Trailer::FIRST),
                false => self.cursor.enter(body).and_then(|()| self.cursor.advance(body)),
            };
            if found.map_err(|error| self.reader.at(handle, error))? {
                return self.accept();
            }
        }
    }

    /// Finds the first block and the end of the last.
    fn start(&mut self) -> Result<()> {
        if let Some(to) = &self.to
            && let Some(last) = self.reader.find_block(to, Trailer::FIRST)?
        {
            self.stream.end = last.end();
        }
        self.next = self.reader.place_of_block(&self.from, Trailer::FIRST)?;
        Ok(())
    }

    /// Makes `handle`'s checked body the current block.
    async fn enter(&mut self, handle: BlockHandle) -> Result<()> {
        self.cursor.leave();
        let found = self.stream.find(handle, &mut self.joined).await?;
        let stored = match &found {
            Some(range) => &self.stream.piece[range.clone()],
            None => &self.joined[..],
        };
        self.block = match (self.reader.check_block(stored, handle)?, found) {
            (BlockCodec::None, Some(range)) => {
                Block::Piece(range.start..range.end - BLOCK_TRAILER_LEN)
            }
            (BlockCodec::None, None) => {
                self.joined.truncate(self.joined.len() - BLOCK_TRAILER_LEN);
                Block::Joined
            }
            (codec, _) => {
                self.reader.decompress(stored, handle, codec, &mut self.raw)?;
                Block::Raw
            }
        };
        Ok(())
    }
}

/// A read that has begun.
type Read<'a> = Pin<Box<dyn Future<Output = Result<Bytes>> + 'a>>;

/// A file's bytes in pieces, one of which is on its way while the one before it is parsed: a device
/// that works while the merge does, for one box a piece.
struct Stream<'a, S: FileSource> {
    source: S,
    file: FileId,
    read_len: u32,
    /// Where the last block of the range ends; nothing is read beyond.
    end: u32,
    piece: Bytes,
    piece_at: u32,
    /// The read of the next piece, or what it gave.
    ahead: Option<Ahead<'a>>,
}

enum Ahead<'a> {
    Reading(Read<'a>),
    Read(Result<Bytes>),
}

impl<'a, S: FileSource + Clone + 'a> Stream<'a, S> {
    /// Where a block lies in the piece here, having gone to the one in which it ends. A block that
    /// lies in several is put together in `joined` instead.
    async fn find(
        &mut self,
        handle: BlockHandle,
        joined: &mut Vec<u8>,
    ) -> Result<Option<Range<usize>>> {
        let at = handle.offset.checked_sub(self.piece_at).map(|at| at as usize);
        let at = at.filter(|at| *at < self.piece.len());
        let Some(at) = at else {
            // The first block of the range, or one that begins where the last piece ends.
            if handle.offset != self.piece_end() {
                self.close();
                self.piece_at = handle.offset;
            }
            self.next().await?;
            return self.find_from(0, handle, joined).await;
        };
        self.find_from(at, handle, joined).await
    }

    /// As [`Self::find`], of a block that begins at `at` in the piece here.
    async fn find_from(
        &mut self,
        at: usize,
        handle: BlockHandle,
        joined: &mut Vec<u8>,
    ) -> Result<Option<Range<usize>>> {
        let len = handle.stored_len as usize;
        if self.piece.len() - at >= len {
            return Ok(Some(at..at + len));
        }
        joined.clear();
        joined.extend_from_slice(&self.piece[at..]);
        while joined.len() < len {
            self.next().await?;
            let part = self.piece.len().min(len - joined.len());
            joined.extend_from_slice(&self.piece[..part]);
        }
        assert_eq!(joined.len(), len, "{}: a block is put together whole", self.file);
        Ok(None)
    }

    fn piece_end(&self) -> u32 {
        self.piece_at + self.piece.len() as u32
    }

    /// Goes to the next piece and has the one behind it read.
    async fn next(&mut self) -> Result<()> {
        let at = self.piece_end();
        if at >= self.end {
            return Err(corrupt(self.file, "index names a block outside the range"));
        }
        // Its buffer is free for the piece after the next.
        self.piece = Bytes::new();
        self.piece_at = at;
        let read = match self.ahead.take() {
            Some(Ahead::Read(result)) => result,
            Some(Ahead::Reading(read)) => read.await,
            None => self.read(at).await,
        };
        self.piece = read?;
        let next = self.piece_end();
        assert!(next <= self.end, "{}: a piece ends within the range", self.file);
        if next < self.end {
            let mut read = self.read(next);
            // Polled once, so that it begins.
            let first = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
            self.ahead = Some(match first {
                Poll::Ready(result) => Ahead::Read(result),
                Poll::Pending => Ahead::Reading(read),
            });
        }
        Ok(())
    }

    /// The piece that begins at `at`. It ends at a block of the device, so that it is one transfer
    /// and no more.
    fn read(&self, at: u32) -> Read<'a> {
        let room = self.read_len.saturating_sub(at % BLOCK_LEN as u32).max(1);
        let len = self.end.saturating_sub(at).min(room);
        let (source, file) = (self.source.clone(), self.file);
        Box::pin(async move { read_exactly(&source, file, u64::from(at), len as usize).await })
    }

    /// Nothing is read any more. What is on its way goes nowhere.
    fn close(&mut self) {
        self.ahead = None;
        self.piece = Bytes::new();
    }
}
