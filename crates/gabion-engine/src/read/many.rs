//! Look-ups of many keys at once.
//!
//! One key after the other would wait for the device once for each block. Here all keys go down the
//! tree together, sorted, and wait once:
//!
//! ```text
//!   MemTables, new to old: keys that are there have their answer
//!   each run of files, new to old (one of L0, a level below), for the keys without one, step by step for all of them:
//!     the file of each ─► its filter ─► its block, by the index ─► the block's bytes in the cache ─► answer
//!                            └ says no: on to the next run            └ not there: the key waits
//!   all blocks that are waited for: read at once ─► answers; where a block did not have its key after all,
//!     that goes on from the next run, in another round
//! ```
//!
//! Nearly always one round does, as a filter is wrong about one absent key in a hundred. Neighbours
//! share the look at a file's index and a block's bytes, and blocks that adjoin are one read. Keys
//! that were added to (see [`crate::counter`]) are then read one by one. Values that lie in other
//! files are read at once in the end, or not at all where only lengths are asked for.

use super::ahead::wave_of_values;
use super::tables::{OpenedFile, Tables, newer_of};
use super::walk::{Apart, Found, FoundLen, Newest, ReadPoint, Stored};
use crate::cache::ReadCache;
use crate::entry::Trailer;
use crate::file::{FileRange, FileSource, noted};
use crate::readers::Shape;
use crate::sst::{BlockHandle, SstReader, key_hash};
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;
use gabion_base::units::{MIB, TRANSFER_LEN_MAX};
use gabion_base::{Error, Result};
use gabion_media::Bytes;

/// Reads that are under way at once, and bytes of them: enough for any device, and what one call
/// takes of memory.
const READS_MAX: usize = 256;
const READ_LEN_MAX: usize = 4 * MIB as usize;

/// A key that is looked for, once however often it was asked for.
struct Sought<'k> {
    key: &'k [u8],
    hash: u64,
    /// Among the bounds of files.
    rank: u64,
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
    /// Its value lies in another file.
    Apart,
    Answered,
}

/// A block that is not in memory.
struct Missing<'a> {
    reader: OpenedFile<'a>,
    handle: BlockHandle,
}

/// A key and the file of a run that may have it, by its bounds.
struct Asked<'a> {
    sought: u32,
    reader: OpenedFile<'a>,
}

/// Where a key may be, by a file's filter and index.
struct Hit<'a> {
    sought: u32,
    reader: OpenedFile<'a>,
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
    missing: Vec<Missing<'a>>,
    /// Keys with the block that each waits for, in the order of blocks.
    waiting: Vec<(u32, u32)>,
    /// Keys with values in other files, which are to be read.
    apart: Vec<(u32, Apart)>,
    /// Whether values are wanted that lie in other files; else only where they lie.
    is_of_values: bool,
    give: G,
}

impl ReadPoint {
    /// The values of engine keys in `shape`, given to `give` with each key's place as they are
    /// found, in no order; a key's error is its own. After each wait `check` says whether to go on.
    pub(super) async fn get_many<S: FileSource, C: ReadCache>(
        &self,
        shape: &Shape,
        tables: &Tables<S, C>,
        keys: &[impl AsRef<[u8]>],
        check: impl Fn() -> Result<()>,
        mut give: impl FnMut(usize, Result<Option<Found>>) -> Result<()>,
    ) -> Result<()> {
        let give = |at, stored: Result<Option<Stored>>| {
            let found = stored.map(|stored| stored.map(Stored::into_found));
            give(at, found)
        };
        self.look_up_many(shape, tables, keys, true, check, give).await
    }

    /// The lengths of their values, in the same way. Values in other files are not read.
    pub(super) async fn get_len_many<S: FileSource, C: ReadCache>(
        &self,
        shape: &Shape,
        tables: &Tables<S, C>,
        keys: &[impl AsRef<[u8]>],
        check: impl Fn() -> Result<()>,
        mut give: impl FnMut(usize, Result<Option<FoundLen>>) -> Result<()>,
    ) -> Result<()> {
        let give = |at, stored: Result<Option<Stored>>| {
            let found = stored.map(|stored| stored.map(|stored| stored.len()));
            give(at, found)
        };
        self.look_up_many(shape, tables, keys, false, check, give).await
    }

    async fn look_up_many<S: FileSource, C: ReadCache>(
        &self,
        shape: &Shape,
        tables: &Tables<S, C>,
        keys: &[impl AsRef<[u8]>],
        is_of_values: bool,
        check: impl Fn() -> Result<()>,
        give: impl FnMut(usize, Result<Option<Stored>>) -> Result<()>,
    ) -> Result<()> {
        let (order, sought) = sorted(keys, |key| shape.version.rank(key));
        let (missing, waiting, apart) = (Vec::new(), Vec::new(), Vec::new());
        let mut many = Many {
            point: self,
            shape,
            tables,
            order,
            sought,
            missing,
            waiting,
            apart,
            is_of_values,
            give,
        };
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
fn sorted(keys: &[impl AsRef<[u8]>], rank: impl Fn(&[u8]) -> u64) -> (Vec<u32>, Vec<Sought<'_>>) {
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
                rank: rank(key),
                asked: at..at + 1,
                run: 0,
                state: State::Open,
            }),
        }
    }
    (order, sought)
}

impl<'a, S, C, G> Many<'a, '_, S, C, G>
where
    S: FileSource,
    C: ReadCache,
    G: FnMut(usize, Result<Option<Stored>>) -> Result<()>,
{
    /// Tells all who asked for a key what it has.
    fn answer(&mut self, at: u32, result: Result<Option<Stored>>) -> Result<()> {
        let sought = &mut self.sought[at as usize];
        sought.state = State::Answered;
        let asked = &self.order[sought.asked.start as usize..sought.asked.end as usize];
        let Some((last, others)) = asked.split_last() else { return Ok(()) };
        for &place in others {
            (self.give)(place as usize, result.clone())?;
        }
        (self.give)(*last as usize, result)
    }

    fn stored(&mut self, at: u32, stored: Option<Stored>) -> Result<()> {
        match stored {
            Some(Stored::Apart(apart)) if self.is_of_values => {
                self.sought[at as usize].state = State::Apart;
                self.apart.push((at, apart));
                Ok(())
            }
            Some(Stored::Packed(packed)) if self.is_of_values => {
                self.answer(at, packed.unpack().map(|found| Some(Stored::Here(found))))
            }
            stored => self.answer(at, Ok(stored)),
        }
    }

    fn judged(&mut self, at: u32, newest: Result<Newest>) -> Result<()> {
        match newest {
            Ok(Newest::Value(stored)) => self.stored(at, stored),
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
        let newest = version.runs();
        let runs = newest.len() as u32 + u32::from(version.level_count()) - 1;
        for run in 0..runs {
            let (level, places) = match newest.get(run as usize) {
                Some(places) => (0, places.clone()),
                None => {
                    let level = (run as usize - newest.len() + 1) as u8;
                    (level, 0..version.level(level).len())
                }
            };
            let asked = self.open_files(run, level, places, check).await?;
            let hits = self.ask_filters(asked)?;
            self.look_into_blocks(run, &hits)?;
        }
        Ok(())
    }

    /// The files that keys lie in by their bounds, of a level below L0 or of a run of L0 at these
    /// places, opened. Asks for what is looked at next in each, as what lies apart is waited for at
    /// once.
    async fn open_files(
        &mut self,
        run: u32,
        level: u8,
        places: Range<usize>,
        check: &impl Fn() -> Result<()>,
    ) -> Result<Vec<Asked<'a>>> {
        let (shape, tables) = (self.shape, self.tables);
        let version = &shape.version;
        let mut asked = Vec::new();
        // Keys are sorted, so those of a file follow each other.
        let mut last: Option<(usize, Result<OpenedFile<'a>>)> = None;
        for sought in 0..self.sought.len() as u32 {
            let Sought { key, rank, hash, run: from, state, .. } = self.sought[sought as usize];
            if state != State::Open || from > run {
                continue;
            }
            let at = match level {
                0 => version.place_in_run(&places, key, rank),
                level => version.place(level, key, rank),
            };
            if at == places.end {
                break;
            }
            let file = version.file_at(level, at);
            let is_seen = file.meta.smallest_sequence <= self.point.sequence;
            if !is_seen || !version.may_hold(level, at, key, rank) {
                continue;
            }
            let reader = match last.take_if(|(place, _)| *place == at) {
                Some((_, reader)) => reader,
                None => {
                    let reader = tables.reader_at(file).await;
                    check()?;
                    reader
                }
            };
            match &reader {
                Ok(reader) => {
                    reader.prefetch_filter(hash);
                    asked.push(Asked { sought, reader: reader.clone() });
                }
                Err(error) => self.answer(sought, Err(error.clone()))?,
            }
            last = Some((at, reader));
        }
        Ok(asked)
    }

    /// The blocks in which keys may be, by filters and indexes.
    fn ask_filters(&mut self, asked: Vec<Asked<'a>>) -> Result<Vec<Hit<'a>>> {
        let mut hits = Vec::with_capacity(asked.len());
        for Asked { sought: at, reader } in asked {
            let sought = &self.sought[at as usize];
            let found = match reader.may_contain_hash(sought.hash) {
                true => reader.find_block(sought.key, Trailer::seek(self.point.sequence)),
                false => Ok(None),
            };
            match noted(&self.tables.source, reader.id(), found) {
                Ok(Some(handle)) => hits.push(Hit { sought: at, reader, handle }),
                Ok(None) if reader.ranges().is_empty() => {}
                Ok(None) => self.found(&reader, at, None)?,
                Err(error) => self.answer(at, Err(error))?,
            }
        }
        Ok(hits)
    }

    /// Looks into the blocks that are in memory. Keys of others wait.
    fn look_into_blocks(&mut self, run: u32, hits: &[Hit<'a>]) -> Result<()> {
        let is_same =
            |a: &Hit<'_>, b: &Hit<'_>| a.reader.id() == b.reader.id() && a.handle == b.handle;
        let cached = |same: &[Hit<'_>]| {
            let Hit { reader, handle, .. } = &same[0];
            self.tables.cache.block(reader.id(), u64::from(handle.offset))
        };
        let blocks: Vec<_> = hits.chunk_by(is_same).map(cached).collect();
        for (same, block) in hits.chunk_by(is_same).zip(blocks) {
            let Hit { ref reader, handle, .. } = same[0];
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

    /// The newest of a key's entries in a file, if there is one; a range delete in the file may be
    /// newer.
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
                    match folded {
                        Ok(stored) => self.stored(at, stored)?,
                        Err(error) => self.answer(at, Err(error))?,
                    }
                }
                State::Answered | State::Apart => {}
                State::Waits => unreachable!("what was waited for was read"),
            }
        }
        self.fetch_apart(check).await
    }

    /// Reads the values that lie in other files, in the order in which they lie there.
    async fn fetch_apart(&mut self, check: &impl Fn() -> Result<()>) -> Result<()> {
        let (tables, mut missing) = (self.tables, Vec::new());
        for (at, apart) in core::mem::take(&mut self.apart) {
            match tables.cached_value(&apart.pointer) {
                Some(value) => self.answer(at, Ok(Some(Stored::Here(apart.found(value)))))?,
                None => missing.push((at, apart)),
            }
        }
        missing.sort_unstable_by_key(|(_, apart)| (apart.pointer.file, apart.pointer.offset));
        let pointers: Vec<_> = missing.iter().map(|(_, apart)| apart.pointer).collect();
        let mut missing = missing.into_iter();
        let mut left = &pointers[..];
        while !left.is_empty() {
            let (wave, rest) = left.split_at(wave_of_values(left, READS_MAX, READ_LEN_MAX));
            left = rest;
            let values = tables.read_values(wave).await;
            check()?;
            for (value, (at, apart)) in values.into_iter().zip(missing.by_ref()) {
                self.answer(at, value.map(|value| Some(Stored::Here(apart.found(value)))))?;
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
fn wave(missing: &[Missing<'_>]) -> Wave {
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
    async fn read_blocks(&self, blocks: &[Missing<'_>], wave: Wave) -> Vec<Result<Bytes>> {
        let ranges = wave.ranges;
        let read = self.source.read_many(&ranges).await;
        assert_eq!(read.len(), ranges.len(), "each range is read once");
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
