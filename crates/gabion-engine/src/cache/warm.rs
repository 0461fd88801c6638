//! Warming: what a job's file has of what readers had of the job's inputs.
//!
//! Once an edit is applied, readers look in its files, and what they had of the files before is of no use to them any
//! more: all they need misses. So the blocks that readers will want are put into the cache before they are asked for:
//!
//! ```text
//!   input      [ ■ ][ □ ][ ■ ][ ■ ][ □ ]      ■ in the cache
//!   input        [ □      ][ ■       ]
//!   output     [ ■ ][ □ ][ ■ ][ ■ ][ □ ]      ■ half of what lies there, or more, was in the cache
//! ```
//!
//! Who built the file has its bytes in memory ([`warm`], [`warm_new`]). Who was sent it, straight to the device, reads
//! those blocks and no others ([`Warming`]), after the edit was applied and the inputs have left the cache: what
//! readers had of them is taken down before ([`Had`]). Either way no more bytes of blocks are taken than readers had of
//! the inputs, but for a part of one block. Who has to read takes of a cache that is full only what was used again.
//!
//! Ahmad and Kemme (VLDB 2015, "incremental warm-up") choose by overlap of keys likewise, Leaper (VLDB 2020) by
//! prediction; RocksDB's `prepopulate_block_cache` takes whole files, those of compactions at the lowest priority.
//! Choosing costs a walk over the indexes of file and inputs, 1 % of what the compaction of the file does, and nothing
//! where no block of the inputs is in the cache.

use super::ReadCache;
use crate::file::{FileMeta, FileRange, FileSource, noted};
use crate::sst::{BlockHandle, Blocks, SstReader};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::ops::Range;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use gabion_base::units::TRANSFER_LEN_MAX;
use gabion_base::{Error, FileId, GroupId, Result};
use gabion_media::Bytes;

/// Bytes of a file that are read at once, about, for the blocks of it that are warmed.
const STEP_LEN: usize = TRANSFER_LEN_MAX;
/// Reads that are under way at once.
const STEP_READS: usize = 32;

/// A cache that can be warmed.
pub trait WarmCache: ReadCache {
    /// Where the blocks of a file begin that are here, ascending.
    fn blocks_here(&self, file: FileId) -> Vec<u64>;

    /// Those of them that are worth a read of the device to have again.
    fn blocks_in_use(&self, file: FileId) -> Vec<u64>;

    /// Keeps a block that nobody has read yet of a file that readers are about to look in, where there is room or one
    /// that nobody uses. Says whether it did.
    fn warm_block(&self, file: FileId, offset: u64, block: Bytes) -> bool;
}

/// What was warmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Blocks that the cache took.
    pub blocks: u64,
    /// Their bytes, decoded.
    pub bytes: u64,
}

impl Warmed {
    const fn add(&mut self, len: usize) {
        self.blocks += 1;
        self.bytes += len as u64;
    }
}

/// What readers had in memory of files when it was taken down: which are open, and where those of their blocks begin
/// that were in the cache. It keeps indexes and filters, and no blocks.
#[derive(Default)]
pub struct Had(Vec<(Arc<SstReader>, Vec<u64>)>);

impl Had {
    /// What `cache` has of `files` now that is worth a read of the device to have again.
    pub fn of(cache: &impl WarmCache, files: impl Iterator<Item = FileId>) -> Self {
        Self::those(cache, files, |file| cache.blocks_in_use(file))
    }

    fn those(
        cache: &impl WarmCache,
        files: impl Iterator<Item = FileId>,
        blocks: impl Fn(FileId) -> Vec<u64>,
    ) -> Self {
        let open = files.filter_map(|file| cache.reader(file).map(|reader| (reader, blocks(file))));
        Self(open.collect())
    }

    /// The file that is being warmed leaves the tree: what was still to come counts as what readers had.
    pub fn add_unfinished(&mut self, warming: &Warming) {
        let left = warming.blocks[warming.next..].iter().map(|handle| u64::from(handle.offset));
        match self.0.iter_mut().find(|(reader, _)| reader.id() == warming.file()) {
            Some((_, here)) => {
                here.extend(left);
                here.sort_unstable();
                here.dedup();
            }
            None => self.0.push((warming.reader.clone(), left.collect())),
        }
    }

    /// A file leaves the tree before any of it was warmed: what readers had of what it was made of counts in its place.
    pub fn add_of(&mut self, made_of: &Self, file: &FileMeta) {
        for (reader, here) in made_of.near(file) {
            if self.0.iter().all(|(other, _)| other.id() != reader.id()) {
                self.0.push((reader.clone(), here.clone()));
            }
        }
    }

    /// Files whose indexes and filters it keeps.
    #[must_use]
    pub const fn open_files(&self) -> usize {
        self.0.len()
    }

    /// Whether readers had one of the files open that have keys within this one's bounds.
    #[must_use]
    pub fn is_near(&self, file: &FileMeta) -> bool {
        self.near(file).next().is_some()
    }

    fn near<'a>(
        &'a self,
        file: &'a FileMeta,
    ) -> impl Iterator<Item = &'a (Arc<SstReader>, Vec<u64>)> {
        self.0.iter().filter(|(reader, _)| {
            let input = reader.properties();
            input.smallest <= file.largest && file.smallest <= input.largest
        })
    }

    /// The blocks of a file that was made of these, in order, of which readers had half of what they were made of, or
    /// more, and no more bytes than they had of these up to there.
    fn hot_blocks(&self, reader: &SstReader, file: &FileMeta) -> Result<Vec<BlockHandle>> {
        let (mut inputs, mut hot) = (Vec::new(), Vec::new());
        for (reader, here) in self.near(file) {
            inputs.push(Input::new(reader, here, &file.smallest)?);
        }
        if inputs.iter().all(|input| input.here.is_empty()) {
            return Ok(hot);
        }
        // Below zero by a part of one block.
        let mut left = 0_i64;
        let mut blocks = Blocks::first(reader)?;
        while let Some((separator, handle)) = blocks.here()? {
            let mut heat = Heat::default();
            for input in &mut inputs {
                left += input.go_to(separator, &mut heat)?;
            }
            if heat.is_hot() && left > 0 {
                left -= i64::from(handle.stored_len);
                hot.push(handle);
            }
            blocks.advance()?;
        }
        Ok(hot)
    }
}

/// Opens a file that a job has built of `inputs` from its `bytes`, where readers have one of these open, and puts those
/// of its blocks into the cache of which they had half of what they were made of, or more.
///
/// # Errors
/// Corruption when the bytes are not the file's, or an open file's index is none: readers would meet it too.
pub fn warm(
    cache: &impl WarmCache,
    group: GroupId,
    inputs: &[(u8, Arc<FileMeta>)],
    file: &FileMeta,
    bytes: &Bytes,
) -> Result<Warmed> {
    let overlaps = |meta: &FileMeta| meta.smallest <= file.largest && file.smallest <= meta.largest;
    let inputs = inputs.iter().filter(|(_, meta)| overlaps(meta));
    let inputs = inputs.map(|(_, meta)| meta.id);
    let had = Had::those(cache, inputs, |file| cache.blocks_here(file));
    let mut warmed = Warmed::default();
    if !had.is_near(file) {
        return Ok(warmed);
    }
    let reader = open_built(cache, group, file, bytes)?;
    for handle in had.hot_blocks(&reader, file)? {
        let block = reader.decode_stored(handle, stored(bytes, handle))?;
        let len = block.len();
        if cache.warm_block(file.id, u64::from(handle.offset), block) {
            warmed.add(len);
        }
    }
    Ok(warmed)
}

/// Opens a file that a flush has built, and keeps its blocks as if each was read once, where they take no more than
/// `len_max` bytes together. Readers had all of it in memory until now.
///
/// # Errors
/// As [`warm`].
pub fn warm_new(
    cache: &impl WarmCache,
    group: GroupId,
    file: &FileMeta,
    bytes: &Bytes,
    len_max: usize,
) -> Result<Warmed> {
    let reader = open_built(cache, group, file, bytes)?;
    let mut warmed = Warmed::default();
    if bytes.len() > len_max {
        return Ok(warmed);
    }
    for handle in all_blocks(&reader)? {
        let block = reader.decode_stored(handle, stored(bytes, handle))?;
        warmed.add(block.len());
        cache.keep_block(file.id, u64::from(handle.offset), block);
    }
    Ok(warmed)
}

fn all_blocks(reader: &SstReader) -> Result<Vec<BlockHandle>> {
    let (mut all, mut blocks) = (Vec::new(), Blocks::first(reader)?);
    while let Some((_, handle)) = blocks.here()? {
        all.push(handle);
        blocks.advance()?;
    }
    Ok(all)
}

/// The warming of a file that lies on the device, a mebibyte at a time: begin with [`Self::of_inputs`] or
/// [`Self::of_flush`], then [`Self::step`] until it says that nothing is left. To be dropped when the file leaves the
/// tree.
///
/// It reads each byte once, keeps nothing between steps but the places of blocks, 8 bytes each, and leaves out what
/// readers have fetched by themselves meanwhile.
pub struct Warming {
    reader: Arc<SstReader>,
    /// In order; those before `next` are done.
    blocks: Vec<BlockHandle>,
    next: usize,
    /// As if each was read once, in place of blocks that readers had.
    is_new: bool,
}

impl Warming {
    /// Opens a file that was made of files of which readers had `had`, where one of those that overlap it was open. None
    /// where there is nothing to do.
    ///
    /// # Errors
    /// What readers would meet: corruption, what the source reports. Damage is told to the source.
    pub async fn of_inputs(
        cache: &impl WarmCache,
        source: &impl FileSource,
        group: GroupId,
        had: &Had,
        file: &FileMeta,
    ) -> Result<Option<Self>> {
        if !had.is_near(file) {
            return Ok(None);
        }
        let reader = open(cache, source, group, file).await?;
        let blocks = had.hot_blocks(&reader, file)?;
        Ok((!blocks.is_empty()).then_some(Self { reader, blocks, next: 0, is_new: false }))
    }

    /// Opens a file that a flush made, all of whose blocks are to be kept as by [`warm_new`] where it is no longer than
    /// `len_max` bytes. None where it is.
    ///
    /// # Errors
    /// As [`Self::of_inputs`].
    pub async fn of_flush(
        cache: &impl WarmCache,
        source: &impl FileSource,
        group: GroupId,
        file: &FileMeta,
        len_max: usize,
    ) -> Result<Option<Self>> {
        let reader = open(cache, source, group, file).await?;
        if file.rounded_len() > len_max as u64 {
            return Ok(None);
        }
        let blocks = all_blocks(&reader)?;
        Ok((!blocks.is_empty()).then_some(Self { reader, blocks, next: 0, is_new: true }))
    }

    /// Which file it is.
    #[must_use]
    pub fn file(&self) -> FileId {
        self.reader.id()
    }

    /// Reads some of the blocks, those that adjoin at once, and hands them to the cache. What was warmed, and whether
    /// more is to do: not when the cache takes none.
    ///
    /// # Errors
    /// As [`Self::of_inputs`]; the rest is not worth a try then.
    pub async fn step(
        &mut self,
        cache: &impl WarmCache,
        source: &impl FileSource,
    ) -> Result<(Warmed, bool)> {
        let runs = self.next_runs(&cache.blocks_here(self.file()));
        let ranges: Vec<FileRange> = runs.iter().map(|run| self.range(run)).collect();
        let mut warmed = Warmed::default();
        for ((run, range), read) in runs.iter().zip(&ranges).zip(source.read_many(&ranges).await) {
            let read = noted(source, range.file, read)?;
            let kept = self.keep_run(cache, &self.blocks[run.clone()], &read);
            let kept = noted(source, range.file, kept)?;
            warmed.blocks += kept.blocks;
            warmed.bytes += kept.bytes;
        }
        let is_full = !runs.is_empty() && warmed.blocks == 0;
        Ok((warmed, self.next < self.blocks.len() && !is_full))
    }

    /// The blocks of the next step that are not `here`, in runs without a gap.
    fn next_runs(&mut self, here: &[u64]) -> Vec<Range<usize>> {
        let (mut runs, mut len): (Vec<Range<usize>>, usize) = (Vec::new(), 0);
        while let Some(handle) = self.blocks.get(self.next)
            && len < STEP_LEN
        {
            let (at, count) = (self.next, runs.len());
            if here.binary_search(&u64::from(handle.offset)).is_err() {
                let adjoins = || self.blocks[at - 1].end() == handle.offset;
                match runs.last_mut() {
                    Some(run) if run.end == at && adjoins() => run.end += 1,
                    _ if count == STEP_READS => break,
                    _ => runs.push(at..at + 1),
                }
                len += handle.stored_len as usize;
            }
            self.next += 1;
        }
        runs
    }

    fn range(&self, run: &Range<usize>) -> FileRange {
        let (first, last) = (self.blocks[run.start], self.blocks[run.end - 1]);
        assert!(first.offset < last.end(), "{}: blocks of a run ascend", self.file());
        let len = (last.end() - first.offset) as usize;
        FileRange { file: self.file(), offset: u64::from(first.offset), len }
    }

    fn keep_run(
        &self,
        cache: &impl WarmCache,
        run: &[BlockHandle],
        read: &Bytes,
    ) -> Result<Warmed> {
        let mut warmed = Warmed::default();
        let (file, start) = (self.file(), run[0].offset);
        for &handle in run {
            let range = (handle.offset - start) as usize..(handle.end() - start) as usize;
            let stored = read.get(range).ok_or_else(|| {
                Error::corruption(alloc::format!("{file}: a read at {start} returned too little"))
            })?;
            let block = self.reader.decode_stored(handle, stored)?;
            let (offset, len) = (u64::from(handle.offset), block.len());
            let is_taken = match self.is_new {
                true => {
                    cache.keep_block(file, offset, block);
                    true
                }
                false => cache.warm_block(file, offset, block),
            };
            if is_taken {
                warmed.add(len);
            }
        }
        Ok(warmed)
    }
}

/// Opens a file on the device for the readers to come, unless it is open.
async fn open(
    cache: &impl ReadCache,
    source: &impl FileSource,
    group: GroupId,
    file: &FileMeta,
) -> Result<Arc<SstReader>> {
    if let Some(reader) = cache.reader(file.id) {
        return Ok(reader);
    }
    let opened = noted(source, file.id, SstReader::open(source, group, file).await)?;
    Ok(cache.keep_reader(file.id, Arc::new(opened)))
}

/// A block as it lies in the file. Handles were checked against its length when it was opened.
fn stored(bytes: &Bytes, handle: BlockHandle) -> &[u8] {
    &bytes[handle.offset as usize..handle.end() as usize]
}

/// Opens a built file for the readers to come.
pub(super) fn open_built(
    cache: &impl ReadCache,
    group: GroupId,
    file: &FileMeta,
    bytes: &Bytes,
) -> Result<Arc<SstReader>> {
    let source = Built(bytes);
    let opening = pin!(SstReader::open(&source, group, file));
    match opening.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reader) => Ok(cache.keep_reader(file.id, Arc::new(reader?))),
        Poll::Pending => unreachable!("nothing is waited for"),
    }
}

/// A file in memory. What is read of it is a copy, or its reader would keep all of it.
struct Built<'a>(&'a Bytes);

impl FileSource for Built<'_> {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        let start = offset as usize;
        let part = start.checked_add(len).and_then(|end| self.0.get(start..end));
        part.map(Bytes::copy_from_slice)
            .ok_or_else(|| Error::corruption(alloc::format!("{file} ends before {offset} + {len}")))
    }
}

/// Halves of blocks of inputs that hold keys of a block.
#[derive(Default)]
struct Heat {
    all: usize,
    here: usize,
}

impl Heat {
    fn add(&mut self, halves: usize, is_here: bool) {
        self.all += halves;
        self.here += if is_here { halves } else { 0 };
    }

    const fn is_hot(&self) -> bool {
        self.here > 0 && 2 * self.here >= self.all
    }
}

/// An input as it is gone through beside the output.
struct Input<'a> {
    blocks: Blocks<'a>,
    here: &'a [u64],
    /// The first of `here` that is not behind.
    next: usize,
    /// So many of `here` are counted.
    counted: usize,
}

impl<'a> Input<'a> {
    fn new(reader: &'a SstReader, here: &'a [u64], from: &[u8]) -> Result<Self> {
        Ok(Self { blocks: Blocks::at(reader, from)?, here, next: 0, counted: 0 })
    }

    /// Goes to the block in which what lies behind `separator` begins. One that ends before it counts twice, one
    /// that goes on behind it once here and once for the next block. Returns the bytes of those that are here and were
    /// met for the first time.
    fn go_to(&mut self, separator: &[u8], heat: &mut Heat) -> Result<i64> {
        let mut len = 0;
        while let Some((own, handle)) = self.blocks.here()? {
            let offset = u64::from(handle.offset);
            let ends_before = own <= separator;
            self.next += self.here[self.next..].partition_point(|&here| here < offset);
            let is_here = self.here.get(self.next) == Some(&offset);
            heat.add(1 + usize::from(ends_before), is_here);
            if is_here && self.counted <= self.next {
                self.counted = self.next + 1;
                len += i64::from(handle.stored_len);
            }
            if !ends_before {
                break;
            }
            self.blocks.advance()?;
        }
        Ok(len)
    }
}

#[cfg(test)]
pub(super) mod tests;
