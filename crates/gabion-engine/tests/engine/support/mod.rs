//! What the tests of the upper half share: files in memory, futures that yield at random, and a
//! replica that is driven from a log.

use gabion_base::{
    Error, FileId, FileKind, Frontier, GroupId, LogPosition, MemTableId, Result, SequenceNumber,
    Term,
};
use gabion_engine::*;
use gabion_media::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

pub(crate) const GROUP: GroupId = GroupId(7);
pub(crate) const TERM: Term = Term(3);

/// Polls to the end. A pending future is polled again at once.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

/// A small generator: xorshift, seeded.
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 33) % limit
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Files in memory, shared by clones. Every finished file is checked against what is said of it.
#[derive(Clone, Default)]
pub(crate) struct Files {
    files: Arc<Mutex<BTreeMap<FileId, Bytes>>>,
    /// When set, reads and writes yield at random.
    yields: Option<Arc<Mutex<Random>>>,
    /// Files that readers found damaged.
    damaged: Arc<Mutex<BTreeSet<FileId>>>,
}

impl Files {
    pub(crate) fn yielding(&self, seed: u64) -> Self {
        let yields = Some(Arc::new(Mutex::new(Random::new(seed))));
        Self { yields, ..self.clone() }
    }

    pub(crate) fn bytes(&self, id: FileId) -> Bytes {
        self.files.lock().unwrap()[&id].clone()
    }

    pub(crate) fn insert(&self, id: FileId, bytes: Bytes) {
        self.files.lock().unwrap().insert(id, bytes);
    }

    pub(crate) fn remove(&self, id: FileId) {
        self.files.lock().unwrap().remove(&id).expect("a file leaves once");
    }

    pub(crate) fn take_damaged(&self) -> Vec<FileId> {
        std::mem::take(&mut *self.damaged.lock().unwrap()).into_iter().collect()
    }

    pub(crate) fn ids(&self) -> Vec<FileId> {
        self.files.lock().unwrap().keys().copied().collect()
    }

    async fn maybe_yield(&self) {
        let Some(random) = &self.yields else { return };
        let mut times = random.lock().unwrap().below(4);
        std::future::poll_fn(|_| {
            if times == 0 {
                return Poll::Ready(());
            }
            times -= 1;
            Poll::Pending
        })
        .await;
    }
}

impl FileSource for Files {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        self.maybe_yield().await;
        let files = self.files.lock().unwrap();
        let bytes = files.get(&file).ok_or_else(|| Error::not_found(format!("{file}")))?;
        let start = offset as usize;
        if start + len > bytes.len() {
            return Err(Error::invalid(format!("{file}: {len} bytes at {offset} pass the end")));
        }
        Ok(bytes.slice(start..start + len))
    }

    fn note_damage(&self, file: FileId, _error: &Error) {
        self.damaged.lock().unwrap().insert(file);
    }
}

impl FileSink for Files {
    async fn finished(&mut self, file: FinishedFile) -> Result<()> {
        self.maybe_yield().await;
        file.meta.verify(&file.bytes)?;
        self.insert(file.meta.id, file.bytes);
        Ok(())
    }
}

pub(crate) fn tables(files: &Files) -> Tables<Files> {
    Tables { source: files.clone(), cache: Rc::new(LocalCache::new(1 << 20)), group: GROUP }
}

/// A tree so small that a few hundred writes reach its third level.
pub(crate) fn small_config() -> TreeConfig {
    TreeConfig {
        memtable_len: 8 << 10,
        sst_len: 8 << 10,
        l0_trigger: 2,
        l0_slowdown: 6,
        l0_stop: 12,
        level1_len: 16 << 10,
        level_multiplier: 3,
        sealed_max: 4,
        levels: 5,
        ..TreeConfig::default()
    }
}

pub(crate) fn key(name: &[u8]) -> Vec<u8> {
    [&[Keyspace::User as u8][..], name].concat()
}

pub(crate) const fn context() -> JobContext {
    JobContext { term: TERM, slots_free: u64::MAX, urgent: false, collects: true }
}

/// A record of a group's log; its position is its place.
#[derive(Clone)]
pub(crate) enum Record {
    Batch(SequenceNumber, Vec<u8>),
    /// Numbers of writes that no record has.
    Skip(SequenceNumber, u32),
    Seal(MemTableId),
    Edit(Vec<u8>),
    /// The time of a record, apart from what else it carries.
    Time(u64),
}

/// A tree with its files.
pub(crate) struct Replica {
    pub(crate) tree: Tree,
    pub(crate) files: Files,
    pub(crate) tables: Tables<Files>,
}

impl Replica {
    pub(crate) fn new(config: TreeConfig) -> Self {
        let files = Files::default();
        let tables = tables(&files);
        Self { tree: Tree::create(config, GROUP).unwrap(), files, tables }
    }

    /// Applies the record at `position`.
    pub(crate) fn apply(&mut self, position: usize, record: &Record) -> Result<()> {
        match record {
            Record::Batch(first, payload) => self.tree.apply_batch(*first, payload),
            Record::Skip(first, count) => self.tree.skip_sequences(*first, *count),
            Record::Seal(id) => {
                let at = Frontier::of(LogPosition(position as u64 + 1));
                self.tree.seal(*id, at).map(|_| ())
            }
            Record::Edit(bytes) => self.tree.apply_edit(&Edit::decode(bytes)?),
            Record::Time(now_ms) => {
                self.tree.pass_time(*now_ms);
                Ok(())
            }
        }
    }

    /// Deletes what nothing reads any more.
    pub(crate) fn collect(&mut self) {
        for id in self.tree.obsolete_files() {
            self.files.remove(id);
            self.tables.cache.evict_file(id);
        }
        self.collect_values();
    }

    /// Deletes values files that no SST references which may yet be read.
    fn collect_values(&mut self) {
        let version = self.tree.version().clone();
        let read = self.tree.leaving_files().iter().flat_map(|file| &file.references);
        let read: BTreeSet<FileId> = read.map(|reference| reference.file).collect();
        for id in self.files.ids().into_iter().filter(|id| id.kind == FileKind::Values) {
            if version.values_file(id).is_none() && !read.contains(&id) {
                self.files.remove(id);
                self.tables.cache.evict_file(id);
            }
        }
    }

    /// Opens again from `snapshot`, the edits after it and the log.
    pub(crate) fn reopen(&mut self, snapshot: &[u8], log: &[Record]) {
        let config = self.tree.config().clone();
        self.tree = Tree::open(config, GROUP, snapshot).unwrap();
        for record in log {
            let Record::Edit(bytes) = record else { continue };
            let edit = Edit::decode(bytes).unwrap();
            if edit.number > self.tree.last_edit() {
                self.tree.apply_edit(&edit).unwrap();
            }
        }
        // What the replayed edits removed may be gone from the disk already.
        for id in self.tree.obsolete_files() {
            if self.files.ids().contains(&id) {
                self.files.remove(id);
            }
        }
        self.collect_values();
        let start = self.tree.flushed().frontier.only().get() as usize;
        // A replica keeps the group time at which its log begins.
        for record in &log[..start] {
            if let Record::Time(now_ms) = record {
                self.tree.pass_time(*now_ms);
            }
        }
        for (position, record) in log.iter().enumerate().skip(start) {
            if !matches!(record, Record::Edit(_)) {
                self.apply(position, record).unwrap();
            }
        }
        self.tables = tables(&self.files);
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<Bytes> {
        block_on(self.tree.view().get(&self.tables, &key(name))).unwrap()
    }
}

/// The pair that a move leads to.
pub(crate) fn step(iterator: &mut ReadIterator<Files>, to: Move<'_>) -> Option<(Bytes, Bytes)> {
    if block_on(iterator.go(to)).unwrap() { iterator.to_pair() } else { None }
}

/// Every pair of `view` in a range of engine keys.
pub(crate) fn scan(
    view: &ReadView,
    tables: &Tables<Files>,
    from: &[u8],
    to: Option<&[u8]>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut iterator = view.scan(tables, from, to);
    let mut pairs = Vec::new();
    while let Some((key, value)) = block_on(iterator.next()).unwrap() {
        pairs.push((key.to_vec(), value.to_vec()));
    }
    pairs
}

/// Keys and values as they are looked at by index: where an iterator over them is.
pub(crate) struct Steps {
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The pair after the one that was left of it: 0 is before the first, `pairs.len() + 1` past
    /// the last.
    place: usize,
}

impl Steps {
    pub(crate) fn new(pairs: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
        Self { pairs, place: 0 }
    }

    /// Where an iterator is to be after `to`, by the definition.
    pub(crate) fn go(&mut self, to: Move<'_>) -> Option<(Vec<u8>, Vec<u8>)> {
        let past = self.pairs.len() + 1;
        self.place = match to {
            Move::First => 1,
            Move::Last => past - 1,
            Move::Next => past.min(self.place + 1),
            Move::Prev => self.place.saturating_sub(1),
            Move::Seek(key) => 1 + self.pairs.partition_point(|pair| &pair.0[..] < key),
            Move::SeekForPrev(key) => self.pairs.partition_point(|pair| &pair.0[..] <= key),
        };
        self.place.checked_sub(1).and_then(|at| self.pairs.get(at)).cloned()
    }
}

/// A move by chance: mostly a step, in the direction of the one before.
pub(crate) fn any_move<'a>(random: &mut Random, backwards: &mut bool, key: &'a [u8]) -> Move<'a> {
    match random.below(24) {
        0 => Move::First,
        1 => Move::Last,
        2 => Move::Seek(key),
        3 => Move::SeekForPrev(key),
        step => {
            *backwards ^= step < 7;
            if *backwards { Move::Prev } else { Move::Next }
        }
    }
}
