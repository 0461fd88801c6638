//! What is warmed of a file that was built, or is read.

use super::*;
use crate::cache::LocalCache;
use crate::entry::{EntryKind, Trailer};
use crate::file::FinishedFile;
use crate::sst::{SstBuilder, SstOptions};
use alloc::format;
use core::cell::Cell;
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

/// docs/faults.md: P5
#[test]
fn blocks_are_warmed_where_those_of_the_inputs_were_in_the_cache() {
    let (even, odd) = (file(1, (0..2_000).map(|n| 2 * n)), file(2, (0..2_000).map(|n| 2 * n + 1)));
    let output = file(3, 0..4_000);
    let cache = LocalCache::new(1 << 20);
    let count = read(&cache, &even, |place| place < 10);
    assert_eq!(read(&cache, &odd, |place| place < 10), count);
    let found = warmed(&cache, &[&even, &odd], &output);
    // Ten blocks of each of the two, and the one in which what follows begins.
    assert!(count > 50 && (20..=21).contains(&found.blocks), "{found:?} of {count} each");
    let here = cache.blocks_here(output.meta.id);
    assert_eq!(here.len() as u64, found.blocks);
    assert_eq!(here[0], 0, "the first ones");
    let reader = cache.reader(output.meta.id).expect("it is open");
    let first = cache.block(output.meta.id, 0).unwrap();
    let mut blocks = Blocks::first(&reader).unwrap();
    let (_, handle) = blocks.here().unwrap().unwrap();
    assert_eq!(first, reader.decode_stored(handle, stored(&output.bytes, handle)).unwrap());
    blocks.advance().unwrap();
    assert!(here.contains(&u64::from(blocks.here().unwrap().unwrap().1.offset)));
}

/// docs/faults.md: P5
#[test]
fn a_little_that_was_there_of_a_file_above_does_not_make_a_block_hot() {
    let (above, below) = (file(1, (0..400).map(|n| 10 * n)), file(2, 0..4_000));
    let cache = LocalCache::new(1 << 20);
    read(&cache, &above, |place| place == 5);
    read(&cache, &below, |_| false);
    let found = warmed(&cache, &[&above, &below], &file(3, 0..4_000));
    assert_eq!(found, Warmed::default());
}

/// docs/faults.md: P5
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

/// docs/faults.md: P5
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

/// docs/faults.md: P5
#[test]
fn a_new_file_is_kept_where_it_has_room_and_bytes_that_are_not_its_own_are_corruption() {
    let new = file(1, 0..1_000);
    let cache = LocalCache::new(1 << 20);
    let keep = |bytes: &Bytes, len_max| warm_new(&cache, GROUP, &new.meta, bytes, len_max);
    assert_eq!(keep(&new.bytes, new.bytes.len() - 1).unwrap(), Warmed::default());
    assert!(cache.reader(new.meta.id).is_some());
    let all = keep(&new.bytes, new.bytes.len()).unwrap();
    assert_eq!(cache.blocks_here(new.meta.id).len() as u64, all.blocks);
    assert!(all.blocks > 20);
    cache.evict_file(new.meta.id);
    let mut changed = new.bytes.to_vec();
    changed[100] ^= 1;
    let error = keep(&Bytes::from(changed), 1 << 20).unwrap_err();
    assert_eq!(error.kind(), gabion_base::ErrorKind::Corruption);
    let cut = new.bytes.slice(..new.bytes.len() / 2);
    cache.evict_file(new.meta.id);
    assert_eq!(keep(&cut, 1 << 20).unwrap_err().kind(), gabion_base::ErrorKind::Corruption);
}

/// A file on a device that says what was read of it, and what was found damaged.
struct Device<'a> {
    file: &'a FinishedFile,
    bytes: Bytes,
    reads: Cell<(u64, u64)>,
    damaged: Cell<u64>,
}

impl<'a> Device<'a> {
    fn of(file: &'a FinishedFile) -> Self {
        Self { file, bytes: file.bytes.clone(), reads: Cell::default(), damaged: Cell::new(0) }
    }
}

impl FileSource for Device<'_> {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        let (reads, bytes) = self.reads.get();
        self.reads.set((reads + 1, bytes + len as u64));
        assert_eq!(file, self.file.meta.id);
        Ok(self.bytes.slice(offset as usize..offset as usize + len))
    }

    fn note_damage(&self, file: FileId, _: &Error) {
        assert_eq!(file, self.file.meta.id);
        self.damaged.set(self.damaged.get() + 1);
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("nothing is waited for"),
    }
}

/// What is warmed of an output that is read from a device after its input is gone.
fn warmed_from(cache: &LocalCache, input: &FinishedFile, output: &Device<'_>) -> Result<Warmed> {
    let had = Had::of(cache, core::iter::once(input.meta.id));
    cache.evict_file(input.meta.id);
    let begun = Warming::of_inputs(cache, output, GROUP, &had, &output.file.meta);
    let Some(mut warming) = now(begun)? else { return Ok(Warmed::default()) };
    let mut sum = Warmed::default();
    loop {
        let (warmed, more) = now(warming.step(cache, output))?;
        sum.blocks += warmed.blocks;
        sum.bytes += warmed.bytes;
        if !more {
            return Ok(sum);
        }
    }
}

/// docs/faults.md: P5
#[test]
fn what_was_sent_here_is_warmed_as_what_was_built_here_and_no_more_is_read_than_readers_had() {
    let (input, output) = (file(1, 0..4_000), file(3, 0..4_000));
    let is_hot = |place: usize| place < 10 || place % 3 == 1;
    let (here, sent) = (LocalCache::new(1 << 20), LocalCache::new(1 << 20));
    (0..2).for_each(|at| assert!(read([&here, &sent][at], &input, is_hot) > 100));
    let built = warmed(&here, &[&input], &output);
    let had: usize = sent.blocks.stats().bytes;
    let device = Device::of(&output);
    assert_eq!(warmed_from(&sent, &input, &device).unwrap(), built);
    assert_eq!(sent.blocks_here(output.meta.id), here.blocks_here(output.meta.id));
    let reader = sent.reader(output.meta.id).unwrap();
    for offset in sent.blocks_here(output.meta.id) {
        assert_eq!(sent.block(output.meta.id, offset), here.block(output.meta.id, offset));
    }
    let (reads, bytes) = device.reads.get();
    assert!(reads < 2 + built.blocks, "blocks that adjoin are one read: {reads}");
    let opened = reader.memory_used() as u64 + 4096;
    assert!(bytes <= had as u64 + opened, "{bytes} of {had} and {opened}");
    // Once more: all is there.
    let mut again =
        Warming { reader, blocks: built_blocks(&output, &sent), next: 0, is_new: false };
    assert_eq!(now(again.step(&sent, &device)).unwrap(), (Warmed::default(), false));
    assert_eq!(device.reads.get(), (reads, bytes));
}

fn built_blocks(file: &FinishedFile, cache: &LocalCache) -> Vec<BlockHandle> {
    let here = cache.blocks_here(file.meta.id);
    let reader = cache.reader(file.meta.id).unwrap();
    let all = all_blocks(&reader).unwrap();
    all.into_iter().filter(|handle| here.contains(&u64::from(handle.offset))).collect()
}

/// docs/faults.md: P5
#[test]
fn of_a_cache_that_is_full_only_what_was_used_again_is_read_anew() {
    let (input, output) = (file(1, 0..4_000), file(3, 0..4_000));
    let all = LocalCache::new(1 << 20);
    let count = read(&all, &input, |_| true);
    let bytes = all.blocks.stats().bytes;
    for (capacity, wanted) in [(bytes + 1, 12), (2 * bytes, count as u64)] {
        let cache = LocalCache::new(capacity);
        read(&cache, &input, |_| true);
        for &offset in &cache.blocks_here(input.meta.id)[30..42] {
            assert!(cache.block(input.meta.id, offset).is_some());
        }
        let found = warmed_from(&cache, &input, &Device::of(&output)).unwrap();
        // A block begins where another of the input does, or within it.
        assert!(found.blocks.abs_diff(wanted) <= 1, "{found:?} of {wanted}");
    }
}

/// docs/faults.md: P5
#[test]
fn what_was_still_to_be_warmed_of_a_file_that_leaves_counts_as_what_readers_had() {
    let (input, between, output) = (file(1, 0..4_000), file(3, 0..4_000), file(5, 0..4_000));
    let cache = LocalCache::new(1 << 20);
    let count = read(&cache, &input, |_| true);
    let had = Had::of(&cache, core::iter::once(input.meta.id));
    cache.evict_file(input.meta.id);
    let device = Device::of(&between);
    let begun = Warming::of_inputs(&cache, &device, GROUP, &had, &between.meta);
    let unfinished = now(begun).unwrap().unwrap();
    let mut had = Had::of(&cache, core::iter::once(between.meta.id));
    let device = Device::of(&output);
    let hot = |had: &Had| {
        let reader = now(open(&cache, &device, GROUP, &output.meta)).unwrap();
        had.hot_blocks(&reader, &output.meta).unwrap().len()
    };
    assert_eq!(hot(&had), 0);
    had.add_unfinished(&unfinished);
    assert_eq!(hot(&had), count);
}

#[test]
fn what_a_file_was_made_of_counts_in_its_place_where_it_leaves_before_it_is_warmed() {
    let (input, beside) = (file(1, 0..4_000), file(2, 5_000..6_000));
    let (between, output) = (file(3, 0..4_000), file(5, 0..4_000));
    let cache = LocalCache::new(1 << 20);
    let count = read(&cache, &input, |_| true);
    read(&cache, &beside, |_| true);
    let made_of = Had::of(&cache, [&input, &beside].into_iter().map(|file| file.meta.id));
    [&input, &beside].into_iter().for_each(|file| cache.evict_file(file.meta.id));
    // Nobody opened it.
    let mut had = Had::of(&cache, core::iter::once(between.meta.id));
    assert!(!had.is_near(&output.meta));
    had.add_of(&made_of, &between.meta);
    had.add_of(&made_of, &between.meta);
    assert_eq!(had.open_files(), 1, "what lies beside it was not what it was made of");
    let reader = now(open(&cache, &Device::of(&output), GROUP, &output.meta)).unwrap();
    assert_eq!(had.hot_blocks(&reader, &output.meta).unwrap().len(), count);
}

/// docs/faults.md: P5
#[test]
fn damage_that_is_met_is_told_and_ends_it() {
    let (input, output) = (file(1, 0..4_000), file(3, 0..4_000));
    let cache = LocalCache::new(1 << 20);
    read(&cache, &input, |_| true);
    let mut changed = output.bytes.to_vec();
    changed[5_000] ^= 1;
    let device = Device { bytes: Bytes::from(changed), ..Device::of(&output) };
    let error = warmed_from(&cache, &input, &device).unwrap_err();
    assert_eq!(error.kind(), gabion_base::ErrorKind::Corruption);
    assert_eq!(device.damaged.get(), 1);
}

/// docs/faults.md: P5
#[test]
fn a_flush_that_was_sent_here_is_kept_where_it_has_room_and_is_opened_in_any_case() {
    let new = file(1, 0..1_000);
    let device = Device::of(&new);
    let cache = LocalCache::new(1 << 20);
    let len = new.bytes.len();
    let begin = |len_max| now(Warming::of_flush(&cache, &device, GROUP, &new.meta, len_max));
    assert!(begin(len - 1).unwrap().is_none());
    assert!(cache.reader(new.meta.id).is_some());
    let mut warming = begin(len).unwrap().unwrap();
    let (warmed, more) = now(warming.step(&cache, &device)).unwrap();
    assert!(!more && warmed.blocks > 20);
    assert_eq!(cache.blocks_here(new.meta.id).len() as u64, warmed.blocks);
}
