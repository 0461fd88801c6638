//! Look-ups of many keys at once.
//!
//! One key after the other would wait for the device once for each block. Here all keys go down the tree together,
//! sorted, and wait once:
//!
//! ```text
//!   MemTables, new to old: keys that are there have their answer
//!   each run of files, new to old (a file of L0, a level below), for the keys without one:
//!     the file of each ─► its filter ─► its block, by the index ─► the block's bytes in the cache ─► answer
//!                            └ says no: on to the next run            └ not there: the key waits
//!   all blocks that are waited for: read at once ─► answers; where a block did not have its key after all,
//!     that goes on from the next run, in another round
//! ```
//!
//! Nearly always one round does, as a filter is wrong about one absent key in a hundred. Neighbours share
//! the look at a file's index and a block's bytes, and blocks that adjoin are one read. Keys that were added to
//! (see [`crate::counter`]) are then read one by one.

use super::walk::{Found, Newest, ReadPoint};
use super::{Tables, newer_of};
use crate::cache::ReadCache;
use crate::entry::Trailer;
use crate::file::{FileMeta, FileRange, FileSource, noted};
use crate::readers::Shape;
use crate::sst::{BlockHandle, SstReader, key_hash};
use crate::version::Version;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use gabion_base::units::{MIB, TRANSFER_LEN_MAX};
use gabion_base::{Error, Result};
use gabion_media::Bytes;

/// Reads that are under way at once, and bytes of them: enough for any device, and what one call takes of memory.
const READS_MAX: usize = 256;
const READ_LEN_MAX: usize = 4 * MIB as usize;

/// A key that is looked for, once however often it was asked for.
struct Sought<'k> {
    key: &'k [u8],
    hash: u64,
    /// Who asked for it: places in the order of the keys.
    asked: Range<u32>,
    /// The first run of files that was not asked.
    run: u32,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// To be asked for in the next run.
    Open,
    /// For a block.
    Waits,
    /// Its newest entry is an operand.
    Operand,
    Answered,
}

/// A block that is not in memory.
struct Missing {
    reader: Arc<SstReader>,
    handle: BlockHandle,
}

/// Where a key may be, by a file's filter and index.
struct Hit {
    sought: u32,
    handle: BlockHandle,
}

/// A look-up of many keys under way.
struct Many<'a, 'k, S, C, G> {
    point: &'a ReadPoint,
    shape: &'a Shape,
    tables: &'a Tables<S, C>,
    /// The places of the caller's keys, sorted by key.
    order: Vec<u32>,
    /// Ascending by key.
    sought: Vec<Sought<'k>>,
    missing: Vec<Missing>,
    /// Keys with the block that each waits for, in the order of blocks.
    waiting: Vec<(u32, u32)>,
    give: G,
}

impl ReadPoint {
    /// The values of engine keys in `shape`, given to `give` with each key's place as they are found, in no order;
    /// a key's error is its own. After each wait `check` says whether to go on.
    pub(super) async fn get_many<S: FileSource, C: ReadCache>(
        &self,
        shape: &Shape,
        tables: &Tables<S, C>,
        keys: &[impl AsRef<[u8]>],
        check: impl Fn() -> Result<()>,
        give: impl FnMut(usize, Result<Option<Found>>) -> Result<()>,
    ) -> Result<()> {
        let (order, sought) = sorted(keys);
        let (missing, waiting) = (Vec::new(), Vec::new());
        let mut many = Many { point: self, shape, tables, order, sought, missing, waiting, give };
        many.ask_memtables()?;
        loop {
            many.ask_files(&check).await?;
            if many.missing.is_empty() {
                break;
            }
            many.read_missing(&check).await?;
        }
        many.finish(&check).await
    }
}

/// The places of `keys` in their order, and each of them once.
fn sorted(keys: &[impl AsRef<[u8]>]) -> (Vec<u32>, Vec<Sought<'_>>) {
    assert!(u32::try_from(keys.len()).is_ok(), "so many keys are not in memory");
    let key = |place: u32| keys[place as usize].as_ref();
    let mut order: Vec<u32> = (0..keys.len() as u32).collect();
    order.sort_unstable_by(|a, b| key(*a).cmp(key(*b)));
    let mut sought: Vec<Sought<'_>> = Vec::with_capacity(keys.len());
    for (at, &place) in order.iter().enumerate() {
        let (at, key) = (at as u32, key(place));
        match sought.last_mut().filter(|last| last.key == key) {
            Some(last) => last.asked.end = at + 1,
            None => sought.push(Sought {
                key,
                hash: key_hash(key),
                asked: at..at + 1,
                run: 0,
                state: State::Open,
            }),
        }
    }
    (order, sought)
}

/// The files of a run, ascending and disjoint: one of L0, or a level below.
fn files_of(version: &Version, run: u32) -> &[Arc<FileMeta>] {
    let (run, newest) = (run as usize, version.level(0));
    match newest.get(run) {
        Some(file) => core::slice::from_ref(file),
        None => version.level((run - newest.len() + 1) as u8),
    }
}

impl<S, C, G> Many<'_, '_, S, C, G>
where
    S: FileSource,
    C: ReadCache,
    G: FnMut(usize, Result<Option<Found>>) -> Result<()>,
{
    /// Tells all who asked for a key what it has.
    fn answer(&mut self, at: u32, result: Result<Option<Found>>) -> Result<()> {
        let sought = &mut self.sought[at as usize];
        sought.state = State::Answered;
        let asked = &self.order[sought.asked.start as usize..sought.asked.end as usize];
        let Some((last, others)) = asked.split_last() else { return Ok(()) };
        for &place in others {
            (self.give)(place as usize, result.clone())?;
        }
        (self.give)(*last as usize, result)
    }

    fn judged(&mut self, at: u32, newest: Result<Newest>) -> Result<()> {
        match newest {
            Ok(Newest::Value(found)) => self.answer(at, Ok(found)),
            Ok(Newest::Operand) => {
                self.sought[at as usize].state = State::Operand;
                Ok(())
            }
            Err(error) => self.answer(at, Err(error)),
        }
    }

    fn ask_memtables(&mut self) -> Result<()> {
        for table in &self.shape.memtables {
            for at in 0..self.sought.len() {
                let Sought { key, state: State::Open, .. } = self.sought[at] else { continue };
                if let Some((kind, sequence, value)) = table.get(key, self.point.sequence) {
                    let bytes = |at| Bytes::copy_from_slice(&value[at..]);
                    let trailer = Trailer::new(sequence, kind);
                    let newest = self.point.judge(key, trailer, value, bytes);
                    self.judged(at as u32, newest)?;
                }
            }
        }
        Ok(())
    }

    /// Goes through all runs of files, and leaves keys waiting for what is not in memory.
    async fn ask_files(&mut self, check: &impl Fn() -> Result<()>) -> Result<()> {
        let version = &self.shape.version;
        let runs = version.level(0).len() as u32 + u32::from(version.level_count()) - 1;
        for run in 0..runs {
            let files = files_of(version, run);
            let is_open = |sought: &Sought<'_>| sought.state == State::Open && sought.run <= run;
            let (mut at, mut file) = (0, 0);
            while let Some(key) = self.sought.get(at) {
                if !is_open(key) {
                    at += 1;
                    continue;
                }
                file += files[file..].partition_point(|meta| meta.largest[..] < *key.key);
                let Some(meta) = files.get(file) else { break };
                let rest = &self.sought[at..];
                let before = rest.partition_point(|sought| *sought.key < meta.smallest[..]);
                let within = rest.partition_point(|sought| *sought.key <= meta.largest[..]);
                let (from, to) = (at + before, at + within);
                if self.sought[from..to].iter().any(is_open) {
                    self.ask_file(meta, run, from..to, check).await?;
                }
                at = to.max(at + 1);
            }
        }
        Ok(())
    }

    /// Asks a file for keys that lie within its bounds.
    async fn ask_file(
        &mut self,
        meta: &FileMeta,
        run: u32,
        keys: Range<usize>,
        check: &impl Fn() -> Result<()>,
    ) -> Result<()> {
        if meta.smallest_sequence > self.point.sequence {
            return Ok(());
        }
        let reader = self.tables.reader(meta).await;
        check()?;
        let asked = |sought: &Sought<'_>| sought.state == State::Open && sought.run <= run;
        let reader = match reader {
            Ok(reader) => reader,
            Err(error) => {
                for at in keys {
                    if asked(&self.sought[at]) {
                        self.answer(at as u32, Err(error.clone()))?;
                    }
                }
                return Ok(());
            }
        };
        let sought = self.sought[keys.clone()].iter().filter(|sought| asked(sought));
        sought.for_each(|sought| reader.prefetch_filter(sought.hash));
        let mut hits = Vec::new();
        for at in keys {
            let sought = &self.sought[at];
            if !asked(sought) {
                continue;
            }
            let found = match reader.may_contain_hash(sought.hash) {
                true => reader.find_block(sought.key, Trailer::seek(self.point.sequence)),
                false => Ok(None),
            };
            match noted(&self.tables.source, meta.id, found) {
                Ok(Some(handle)) => hits.push(Hit { sought: at as u32, handle }),
                Ok(None) if meta.ranges.is_none() => {}
                Ok(None) => self.found(&reader, at as u32, None)?,
                Err(error) => self.answer(at as u32, Err(error))?,
            }
        }
        self.look_into_blocks(&reader, run, &hits)
    }

    /// Looks into the blocks of a file that are in memory. Keys of others wait.
    fn look_into_blocks(&mut self, reader: &Arc<SstReader>, run: u32, hits: &[Hit]) -> Result<()> {
        for same in hits.chunk_by(|a, b| a.handle == b.handle) {
            let handle = same[0].handle;
            let block = self.tables.cache.block(reader.id(), u64::from(handle.offset));
            if block.is_none() {
                self.missing.push(Missing { reader: reader.clone(), handle });
            }
            for &Hit { sought: at, .. } in same {
                match &block {
                    Some(block) => self.look_into(reader, handle, block, at)?,
                    None => {
                        let sought = &mut self.sought[at as usize];
                        (sought.state, sought.run) = (State::Waits, run + 1);
                        self.waiting.push((at, self.missing.len() as u32 - 1));
                    }
                }
            }
        }
        Ok(())
    }

    /// Looks for a key in its block. One that is not there stays without an answer.
    fn look_into(
        &mut self,
        reader: &SstReader,
        handle: BlockHandle,
        block: &Bytes,
        at: u32,
    ) -> Result<()> {
        let key = self.sought[at as usize].key;
        let target = Trailer::seek(self.point.sequence);
        let found = reader.search_block(block.clone(), handle, key, target);
        match noted(&self.tables.source, reader.id(), found) {
            Ok(found) => self.found(reader, at, found),
            Err(error) => self.answer(at, Err(error)),
        }
    }

    /// The newest of a key's entries in a file, if there is one; a range delete in the file may be newer.
    fn found(
        &mut self,
        reader: &SstReader,
        at: u32,
        entry: Option<(Trailer, Bytes)>,
    ) -> Result<()> {
        let key = self.sought[at as usize].key;
        let range = reader.ranges().newest(key, self.point.sequence);
        let Some((trailer, value)) = newer_of(entry, range) else { return Ok(()) };
        let newest = self.point.judge(key, trailer, &value, |at| value.slice(at..));
        self.judged(at, newest)
    }

    /// Reads the blocks that are waited for, and looks into them.
    async fn read_missing(&mut self, check: &impl Fn() -> Result<()>) -> Result<()> {
        let missing = core::mem::take(&mut self.missing);
        let waiting = core::mem::take(&mut self.waiting);
        let (mut from, mut next) = (0, waiting.into_iter().peekable());
        while from < missing.len() {
            let wave = wave(&missing[from..]);
            let blocks = self.tables.read_blocks(&missing[from..from + wave.blocks], wave).await;
            check()?;
            for block in blocks {
                let Missing { reader, handle } = &missing[from];
                while let Some((at, _)) = next.next_if(|(_, waits)| *waits as usize == from) {
                    match &block {
                        Ok(block) => {
                            self.sought[at as usize].state = State::Open;
                            self.look_into(reader, *handle, block, at)?;
                        }
                        Err(error) => self.answer(at, Err(error.clone()))?,
                    }
                }
                from += 1;
            }
        }
        Ok(())
    }

    /// What was found nowhere is not there; what was added to is added up.
    async fn finish(mut self, check: &impl Fn() -> Result<()>) -> Result<()> {
        for at in 0..self.sought.len() as u32 {
            let Sought { key, state, .. } = self.sought[at as usize];
            match state {
                State::Open => self.answer(at, Ok(None))?,
                State::Operand => {
                    // Apart, so that other reads carry no room for it.
                    let fold = self.point.fold(self.shape, self.tables, key, check);
                    let folded = Box::pin(fold).await;
                    check()?;
                    self.answer(at, folded)?;
                }
                State::Answered => {}
                State::Waits => unreachable!("what was waited for was read"),
            }
        }
        Ok(())
    }
}

/// Reads that are under way at once.
struct Wave {
    /// How many blocks they have.
    blocks: usize,
    ranges: Vec<FileRange>,
}

/// The first of `missing`, at least one: those that adjoin as one range.
fn wave(missing: &[Missing]) -> Wave {
    let (mut ranges, mut len, mut blocks) = (Vec::<FileRange>::new(), 0, 0);
    for Missing { reader, handle } in missing {
        let (offset, stored_len) = (u64::from(handle.offset), handle.stored_len as usize);
        len += stored_len;
        if blocks > 0 && len > READ_LEN_MAX {
            break;
        }
        let is_full = ranges.len() == READS_MAX;
        match ranges.last_mut() {
            Some(last)
                if last.file == reader.id()
                    && last.offset + last.len as u64 == offset
                    && last.len + stored_len <= TRANSFER_LEN_MAX =>
            {
                last.len += stored_len;
            }
            _ if is_full => break,
            _ => ranges.push(FileRange { file: reader.id(), offset, len: stored_len }),
        }
        blocks += 1;
    }
    Wave { blocks, ranges }
}

impl<S: FileSource, C: ReadCache> Tables<S, C> {
    /// The decoded bodies of blocks, which go to the cache too.
    async fn read_blocks(&self, blocks: &[Missing], wave: Wave) -> Vec<Result<Bytes>> {
        let ranges = wave.ranges;
        let read = self.source.read_many(&ranges).await;
        debug_assert_eq!(read.len(), ranges.len());
        let mut bodies = Vec::with_capacity(blocks.len());
        let mut parts = ranges.iter().zip(&read).peekable();
        for Missing { reader, handle } in blocks {
            let holds = |range: &FileRange| {
                let end = range.offset + range.len as u64;
                range.file == reader.id() && (range.offset..end).contains(&u64::from(handle.offset))
            };
            while parts.next_if(|(range, _)| !holds(range)).is_some() {}
            let body = match parts.peek() {
                Some((range, Ok(bytes))) => {
                    let from = (u64::from(handle.offset) - range.offset) as usize;
                    let stored = bytes.get(from..from + handle.stored_len as usize);
                    stored
                        .ok_or_else(|| cut_short(range, bytes))
                        .and_then(|stored| reader.keep_stored(&self.cache, *handle, stored))
                }
                // One of several blocks may be to blame.
                Some((range, Err(_))) if range.len > handle.stored_len as usize => {
                    reader.read_block(&self.source, &self.cache, *handle).await
                }
                Some((_, Err(error))) => Err(error.clone()),
                None => unreachable!("a range for each block was read"),
            };
            bodies.push(noted(&self.source, reader.id(), body));
        }
        bodies
    }
}

#[cold]
fn cut_short(range: &FileRange, bytes: &Bytes) -> Error {
    let FileRange { file, offset, len } = range;
    let found = bytes.len();
    Error::corruption(format!("{file}: read of {len} bytes at {offset} returned {found}"))
}
