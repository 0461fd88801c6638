//! Warming: what a job's file has of what readers had of the job's inputs.
//!
//! Once an edit is applied, readers look in its files, and what they had of the files before is of no use to them any
//! more: all they need misses. The bytes of the new files are in memory when they are built, so the blocks that
//! readers will want are taken from there, without a read:
//!
//! ```text
//!   input      [ ■ ][ □ ][ ■ ][ ■ ][ □ ]      ■ in the cache
//!   input        [ □      ][ ■       ]
//!   output     [ ■ ][ □ ][ ■ ][ ■ ][ □ ]      ■ half of what lies there, or more, was in the cache
//! ```
//!
//! Ahmad and Kemme (VLDB 2015, "incremental warm-up") choose by overlap of keys likewise, Leaper (VLDB 2020) by
//! prediction; RocksDB's `prepopulate_block_cache` takes whole files, those of compactions at the lowest priority.
//! Choosing costs a walk over the indexes of file and inputs, 1 % of what the compaction of the file does, and nothing
//! where no block of the inputs is in the cache.

use super::ReadCache;
use crate::file::{FileMeta, FileSource};
use crate::sst::{BlockHandle, Blocks, SstReader};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use gabion_base::{Error, FileId, GroupId, Result};
use gabion_media::Bytes;

/// A cache that can be warmed.
pub trait WarmCache: ReadCache {
    /// Where the blocks of a file begin that are here, ascending.
    fn blocks_here(&self, file: FileId) -> Vec<u64>;

    /// Keeps a block that nobody has read yet of a file that readers are about to look in, where there is room or one
    /// that nobody uses.
    fn warm_block(&self, file: FileId, offset: u64, block: Bytes);
}

/// What was warmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Blocks of the file.
    pub blocks: u64,
    /// Blocks of it that the cache was given.
    pub warmed: u64,
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
    let open: Vec<_> = inputs.filter_map(|(_, meta)| cache.reader(meta.id)).collect();
    if open.is_empty() {
        return Ok(Warmed::default());
    }
    let reader = open_built(cache, group, file, bytes)?;
    let mut inputs = Vec::with_capacity(open.len());
    for reader in &open {
        inputs.push(Input::new(reader, cache.blocks_here(reader.id()), &file.smallest)?);
    }
    let mut warmed = Warmed::default();
    if inputs.iter().all(|input| input.here.is_empty()) {
        return Ok(warmed);
    }
    let mut blocks = Blocks::first(&reader)?;
    while let Some((separator, handle)) = blocks.here()? {
        let mut heat = Heat::default();
        for input in &mut inputs {
            input.go_to(separator, &mut heat)?;
        }
        warmed.blocks += 1;
        if heat.is_hot() {
            let block = reader.decode_stored(handle, stored(bytes, handle))?;
            cache.warm_block(file.id, u64::from(handle.offset), block);
            warmed.warmed += 1;
        }
        blocks.advance()?;
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
    let mut blocks = Blocks::first(&reader)?;
    while let Some((_, handle)) = blocks.here()? {
        let block = reader.decode_stored(handle, stored(bytes, handle))?;
        cache.keep_block(file.id, u64::from(handle.offset), block);
        warmed.blocks += 1;
        warmed.warmed += 1;
        blocks.advance()?;
    }
    Ok(warmed)
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
    here: Vec<u64>,
    /// The first of `here` that is not behind.
    next: usize,
}

impl<'a> Input<'a> {
    fn new(reader: &'a SstReader, here: Vec<u64>, from: &[u8]) -> Result<Self> {
        Ok(Self { blocks: Blocks::at(reader, from)?, here, next: 0 })
    }

    /// Goes to the block in which what lies behind `separator` begins. One that ends before it counts twice, one
    /// that goes on behind it once here and once for the next block.
    fn go_to(&mut self, separator: &[u8], heat: &mut Heat) -> Result<()> {
        while let Some((own, handle)) = self.blocks.here()? {
            let offset = u64::from(handle.offset);
            let ends_before = own <= separator;
            self.next += self.here[self.next..].partition_point(|&here| here < offset);
            heat.add(1 + usize::from(ends_before), self.here.get(self.next) == Some(&offset));
            if !ends_before {
                break;
            }
            self.blocks.advance()?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cache::LocalCache;
    use crate::entry::{EntryKind, Trailer};
    use crate::file::FinishedFile;
    use crate::sst::{SstBuilder, SstOptions};
    use alloc::format;
    use gabion_base::{SequenceNumber, Term};

    pub(in super::super) const GROUP: GroupId = GroupId(5);

    /// A file of some of the keys below 4,000, thirty or so in a block.
    pub(in super::super) fn file(number: u64, keys: impl Iterator<Item = u64>) -> FinishedFile {
        let options = SstOptions { block_len: 4096, ..SstOptions::default() };
        let mut builder = SstBuilder::new(&options, GROUP, FileId::sst(number), Term(1));
        for key in keys {
            let sequence = SequenceNumber(key + 1);
            let trailer = Trailer::new(sequence, EntryKind::Put);
            builder.add(format!("\u{1}{key:08}").as_bytes(), trailer, &[key as u8; 110]);
        }
        builder.finish()
    }

    /// Opens a file and puts the blocks of it into the cache in which the places, counted from 0, say so.
    fn read(cache: &LocalCache, file: &FinishedFile, is_read: impl Fn(usize) -> bool) -> usize {
        let reader = open_built(cache, GROUP, &file.meta, &file.bytes).unwrap();
        let mut blocks = Blocks::first(&reader).unwrap();
        let mut count = 0;
        while let Some((_, handle)) = blocks.here().unwrap() {
            if is_read(count) {
                let block = reader.decode_stored(handle, stored(&file.bytes, handle)).unwrap();
                cache.keep_block(file.meta.id, u64::from(handle.offset), block);
            }
            count += 1;
            blocks.advance().unwrap();
        }
        count
    }

    fn inputs(files: &[&FinishedFile]) -> Vec<(u8, Arc<FileMeta>)> {
        files.iter().map(|file| (1, Arc::new(file.meta.clone()))).collect()
    }

    fn warmed(cache: &LocalCache, files: &[&FinishedFile], output: &FinishedFile) -> Warmed {
        warm(cache, GROUP, &inputs(files), &output.meta, &output.bytes).unwrap()
    }

    #[test]
    fn blocks_are_warmed_where_those_of_the_inputs_were_in_the_cache() {
        let (even, odd) =
            (file(1, (0..2_000).map(|n| 2 * n)), file(2, (0..2_000).map(|n| 2 * n + 1)));
        let output = file(3, 0..4_000);
        let cache = LocalCache::new(1 << 20);
        let count = read(&cache, &even, |place| place < 10);
        assert_eq!(read(&cache, &odd, |place| place < 10), count);
        let found = warmed(&cache, &[&even, &odd], &output);
        assert!(found.blocks >= 2 * count as u64 - 1, "{found:?} of {count} each");
        // Ten blocks of each of the two, and the one in which what follows begins.
        assert!((20..=21).contains(&found.warmed), "{found:?}");
        let here = cache.blocks_here(output.meta.id);
        assert_eq!(here.len() as u64, found.warmed);
        assert_eq!(here[0], 0, "the first ones");
        let reader = cache.reader(output.meta.id).expect("it is open");
        let first = cache.block(output.meta.id, 0).unwrap();
        let mut blocks = Blocks::first(&reader).unwrap();
        let (_, handle) = blocks.here().unwrap().unwrap();
        assert_eq!(first, reader.decode_stored(handle, stored(&output.bytes, handle)).unwrap());
        blocks.advance().unwrap();
        assert!(here.contains(&u64::from(blocks.here().unwrap().unwrap().1.offset)));
    }

    #[test]
    fn a_little_that_was_there_of_a_file_above_does_not_make_a_block_hot() {
        let (above, below) = (file(1, (0..400).map(|n| 10 * n)), file(2, 0..4_000));
        let cache = LocalCache::new(1 << 20);
        read(&cache, &above, |place| place == 5);
        read(&cache, &below, |_| false);
        let found = warmed(&cache, &[&above, &below], &file(3, 0..4_000));
        assert!(found.blocks > 100 && found.warmed == 0, "{found:?}");
    }

    #[test]
    fn a_file_of_inputs_that_nobody_has_open_costs_nothing() {
        let (input, output) = (file(1, 0..4_000), file(3, 0..4_000));
        let cache = LocalCache::new(1 << 20);
        assert_eq!(warmed(&cache, &[&input], &output), Warmed::default());
        assert!(cache.reader(output.meta.id).is_none());
        // Nor do blocks elsewhere.
        read(&cache, &file(4, 5_000..6_000), |_| true);
        let elsewhere = [&file(4, 5_000..6_000)];
        assert_eq!(warmed(&cache, &elsewhere, &output), Warmed::default());
    }

    #[test]
    fn warmed_blocks_leave_alone_what_is_used() {
        let cache = LocalCache::new(40 * (4096 + 200));
        let (used, input) = (file(1, 0..900), file(2, 0..4_000));
        let count = read(&cache, &used, |_| true);
        assert!((20..36).contains(&count));
        for offset in cache.blocks_here(used.meta.id) {
            (0..3).for_each(|_| assert!(cache.block(used.meta.id, offset).is_some()));
        }
        let opened = open_built(&cache, GROUP, &input.meta, &input.bytes).unwrap();
        let mut blocks = Blocks::first(&opened).unwrap();
        while let Some((_, handle)) = blocks.here().unwrap() {
            let block = opened.decode_stored(handle, stored(&input.bytes, handle)).unwrap();
            cache.warm_block(input.meta.id, u64::from(handle.offset), block);
            blocks.advance().unwrap();
        }
        assert_eq!(cache.blocks_here(used.meta.id).len(), count);
        assert!(!cache.blocks_here(input.meta.id).is_empty());
    }

    #[test]
    fn a_new_file_is_kept_where_it_has_room_and_bytes_that_are_not_its_own_are_corruption() {
        let new = file(1, 0..1_000);
        let cache = LocalCache::new(1 << 20);
        let keep = |bytes: &Bytes, len_max| warm_new(&cache, GROUP, &new.meta, bytes, len_max);
        assert_eq!(keep(&new.bytes, new.bytes.len() - 1).unwrap(), Warmed::default());
        assert!(cache.reader(new.meta.id).is_some());
        let all = keep(&new.bytes, new.bytes.len()).unwrap();
        assert_eq!(cache.blocks_here(new.meta.id).len() as u64, all.warmed);
        assert!(all.warmed > 20);
        cache.evict_file(new.meta.id);
        let mut changed = new.bytes.to_vec();
        changed[100] ^= 1;
        let error = keep(&Bytes::from(changed), 1 << 20).unwrap_err();
        assert_eq!(error.kind(), gabion_base::ErrorKind::Corruption);
        let cut = new.bytes.slice(..new.bytes.len() / 2);
        cache.evict_file(new.meta.id);
        assert_eq!(keep(&cut, 1 << 20).unwrap_err().kind(), gabion_base::ErrorKind::Corruption);
    }
}
