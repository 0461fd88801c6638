//! Large values that stay in segments of the log: which do, what the edit says of their segments,
//! what a flush does where a segment has other bytes, and what becomes of a segment with garbage.

use crate::support::*;
use core::cell::Cell;
use gabion_base::{Error, ErrorKind, FileId, FileKind, Frontier, LogPosition, Result, ShardId};
use gabion_engine::*;
use gabion_media::Bytes;

const LARGE: u32 = 100;
const SEGMENT_LEN: usize = 8 * 1024;
const HEADER_LEN: usize = 88;

fn config() -> TreeConfig {
    TreeConfig { large_values: LARGE, ..small_config() }
}

fn segment(ordinal: usize) -> FileId {
    FileId::log_segment(ShardId(0), ordinal as u64)
}

fn large(n: u64) -> Vec<u8> {
    format!("value {n} ").into_bytes().repeat(30)
}

/// A replica with its log, cut into segments.
struct Store {
    replica: Replica,
    log: Vec<u8>,
    edit: u64,
}

impl Store {
    fn new(config: TreeConfig) -> Self {
        let mut replica = Replica::new(config);
        let layout = LogLayout { shard: ShardId(0), segment_len: SEGMENT_LEN as u64 };
        replica.tree.keep_values_in(layout);
        Self { replica, log: Vec::new(), edit: 0 }
    }

    fn fill_segment(&mut self) {
        self.log.resize(self.log.len().next_multiple_of(SEGMENT_LEN), 0);
    }

    fn put(&mut self, name: &str, value: &[u8]) {
        let mut batch = BatchBuilder::new();
        batch.put(Keyspace::User, name.as_bytes(), value).unwrap();
        let payload = batch.finish();
        let rest = SEGMENT_LEN - self.log.len() % SEGMENT_LEN;
        if rest < HEADER_LEN + payload.len() {
            self.fill_segment();
        }
        self.log.resize(self.log.len() + HEADER_LEN, 7);
        let (first, at) = (self.replica.tree.last_sequence().next(), self.end());
        self.log.extend_from_slice(&payload);
        self.log.resize(self.log.len().next_multiple_of(8), 0);
        self.replica.tree.apply_batch(first, &payload).unwrap();
        self.replica.tree.note_places(first, &payload, at);
    }

    fn end(&self) -> LogPosition {
        LogPosition(self.log.len() as u64)
    }

    fn seal(&mut self) {
        self.log.resize(self.log.len() + HEADER_LEN, 9);
        let id = self.replica.tree.active_id();
        self.replica.tree.seal(id, Frontier::of(self.end())).unwrap();
    }

    /// The log is in files as far as its segments are full.
    fn drain(&mut self) {
        for (ordinal, bytes) in self.log.chunks_exact(SEGMENT_LEN).enumerate() {
            self.replica.files.insert(segment(ordinal), bytes.to_vec().into());
        }
    }

    fn try_run(&mut self, job: &JobInputs) -> Result<Edit> {
        let (source, mut sink) = (self.replica.files.clone(), self.replica.files.clone());
        let output = block_on(run_job(job, GROUP, &source, &mut sink))?;
        let edit = self.replica.tree.finish_job(output, self.edit + 1).unwrap();
        let edit = Edit::decode(&edit.encode().unwrap()).unwrap();
        self.replica.tree.apply_edit(&edit).unwrap();
        self.edit += 1;
        Ok(edit)
    }

    /// Fills two segments and a bit with values, from number `first` on, and flushes them.
    fn flush_of(&mut self, first: u64) -> Edit {
        let behind = (self.log.len() / SEGMENT_LEN + 2) * SEGMENT_LEN;
        let mut n = first;
        while self.log.len() < behind {
            self.put(&format!("k{n:03}"), &large(n));
            n += 1;
        }
        self.seal();
        self.drain();
        let job = self.replica.tree.next_flush(&context()).unwrap();
        self.try_run(&job).unwrap()
    }

    fn stats(&self) -> ValuesStats {
        self.replica.tree.version().values_stats()
    }

    fn get(&self, name: &str) -> Option<Bytes> {
        self.replica.get(name.as_bytes())
    }
}

#[test]
fn values_in_whole_segments_of_the_range_stay_there_and_the_edit_describes_these() {
    let mut store = Store::new(config());
    store.put("small", b"in place");
    let edit = store.flush_of(0);
    let recipe = edit.recipe.as_ref().unwrap();
    assert_eq!((&recipe.kept[..], recipe.kept_from), (&[segment(0), segment(1)][..], LARGE));
    assert_eq!(recipe.large_from, 0, "the one behind them is too little for a file");
    let described: Vec<_> = edit.segments().collect();
    assert_eq!(described.len(), 2);
    for (ordinal, meta) in described.into_iter().enumerate() {
        assert_eq!(meta.id, segment(ordinal));
        assert_eq!(meta.rounded_len(), SEGMENT_LEN as u64);
        meta.verify(&store.replica.files.bytes(meta.id)).unwrap();
    }
    let stats = store.stats();
    assert_eq!((stats.files, stats.segments), (2, 2));
    assert_eq!(stats.value_bytes, 2 * SEGMENT_LEN as u64, "each segment counts whole");
    assert!(stats.dead_bytes() < stats.value_bytes / 2 && stats.live_bytes > 0, "{stats:?}");
    let mut n = 0;
    while let Some(value) = store.get(&format!("k{n:03}")) {
        assert_eq!(value, large(n));
        n += 1;
    }
    assert!(n > 30, "{n} values");
    assert_eq!(store.get("small").as_deref(), Some(&b"in place"[..]));
    // The next MemTable begins within a segment, of which it has not all.
    let edit = store.flush_of(500);
    assert_eq!(edit.recipe.unwrap().kept, [segment(3)]);
    let snapshot = store.replica.tree.snapshot();
    let again = Tree::open(config(), GROUP, &snapshot).unwrap();
    assert_eq!(again.snapshot(), snapshot);
    assert_eq!(again.version().values_stats().segments, 3);
}

#[test]
fn a_flush_waits_for_the_log_that_keeps_its_values_and_can_do_without() {
    let mut store = Store::new(config());
    for n in 0..60 {
        store.put(&format!("k{n:03}"), &large(n));
    }
    store.seal();
    let awaited = store.replica.tree.next_flush_awaits();
    assert_eq!(awaited, Some(LogPosition(2 * SEGMENT_LEN as u64)));
    store.replica.tree.keep_none_at_next_flush();
    assert_eq!(store.replica.tree.next_flush_awaits(), None);
    let job = store.replica.tree.next_flush(&context()).unwrap();
    let edit = store.try_run(&job).unwrap();
    let recipe = edit.recipe.unwrap();
    assert_eq!((recipe.kept.len(), recipe.large_from), (0, LARGE));
    let stats = store.stats();
    assert!(stats.segments == 0 && stats.files > 0, "{stats:?}");
    assert_eq!(store.get("k007").unwrap(), large(7));
}

#[test]
fn a_term_that_begins_in_the_range_has_its_values_elsewhere() {
    let mut store = Store::new(config());
    store.put("a", &large(1));
    store.replica.tree.note_gap();
    let edit = store.flush_of(0);
    assert!(edit.segments().next().is_none());
    assert_eq!(edit.recipe.unwrap().large_from, LARGE);
    assert_eq!(store.flush_of(900).segments().count(), 1, "the next range has none");
}

/// docs/faults.md: E5
#[test]
fn a_flush_fails_where_the_log_has_other_bytes_than_memory() {
    let mut store = Store::new(config());
    for n in 0..60 {
        store.put(&format!("k{n:03}"), &large(n));
    }
    store.seal();
    store.drain();
    let job = store.replica.tree.next_flush(&context()).unwrap();
    let whole = store.replica.files.bytes(segment(1));
    let at = whole.windows(9).position(|part| part == b"value 40 ").unwrap();
    let mut bytes = whole.to_vec();
    bytes[at + 9] ^= 1;
    store.replica.files.insert(segment(1), bytes.into());
    let error = store.try_run(&job).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    let expected = format!("{} at offset {at}: the log has a value of", segment(1));
    assert!(error.message().contains(&expected), "{error}");
    store.replica.files.insert(segment(1), whole);
    store.try_run(&job).unwrap();
}

#[test]
fn a_segment_with_garbage_is_emptied_by_compactions_and_goes() {
    let mut store = Store::new(config());
    let first = store.flush_of(0);
    let count = first.values.iter().map(|meta| meta.entries).sum::<u64>();
    for round in 1..6_u64 {
        for n in (0..count).filter(|n| n % 4 > 0) {
            store.put(&format!("k{n:03}"), &large(1_000 * round + n));
        }
        store.seal();
        store.drain();
        let job = store.replica.tree.next_flush(&context()).unwrap();
        store.try_run(&job).unwrap();
        while let Some(job) = store.replica.tree.next_compaction(&context()) {
            store.try_run(&job).unwrap();
        }
    }
    assert!(store.replica.tree.version().values_file(segment(0)).is_none(), "it is emptied");
    for n in 0..count {
        let round = if n % 4 > 0 { 5 } else { 0 };
        assert_eq!(store.get(&format!("k{n:03}")).unwrap(), large(1_000 * round + n), "{n}");
    }
    let stats = store.stats();
    assert!(stats.dead_bytes() * 2 <= stats.value_bytes, "{stats:?}");
    let moved = store.replica.tree.version().values_files();
    assert!(moved.into_iter().any(|meta| meta.id.kind == FileKind::Values));
}

/// A few keys that are written again and again fill the log with what is replaced before the flush.
#[test]
fn a_segment_most_of_which_the_same_memtable_replaced_is_not_kept() {
    let mut store = Store::new(config());
    let mut n = 0;
    while store.log.len() < 2 * SEGMENT_LEN {
        let name = if n % 10 == 0 { format!("cold{n:03}") } else { format!("hot{}", n % 3) };
        store.put(&name, &large(n));
        n += 1;
    }
    // Those of the hot ones that stay alive come last.
    while store.log.len() < 3 * SEGMENT_LEN {
        store.put(&format!("last{n:03}"), &large(n));
        n += 1;
    }
    store.put("behind", b"small");
    store.seal();
    store.drain();
    let awaited = store.replica.tree.next_flush_awaits();
    assert_eq!(awaited, Some(LogPosition(3 * SEGMENT_LEN as u64)));
    let job = store.replica.tree.next_flush(&context()).unwrap();
    let recipe = store.try_run(&job).unwrap().recipe.unwrap();
    assert_eq!(recipe.kept, [segment(2)]);
    assert_eq!(store.get("cold000").unwrap(), large(0));
}

#[test]
fn what_is_deleted_in_ranges_or_cleared_before_the_seal_keeps_no_segment() {
    for is_cleared in [false, true] {
        let mut store = Store::new(config());
        for n in 0..60 {
            store.put(&format!("k{n:03}"), &large(n));
        }
        let mut batch = BatchBuilder::new();
        match is_cleared {
            false => _ = batch.delete_range(Keyspace::User, b"k", Some(b"l")).unwrap(),
            true => batch.clear(Keyspace::User).unwrap(),
        }
        let first = store.replica.tree.last_sequence().next();
        store.replica.tree.apply_batch(first, &batch.finish()).unwrap();
        store.seal();
        assert_eq!(store.replica.tree.next_flush_awaits(), None, "{is_cleared}");
    }
}

/// Hot and cold keys share segments: when the hot ones are gone the cold ones hold little of each.
#[test]
fn a_segment_of_which_little_lives_counts_as_dead_by_its_length() {
    let mut store = Store::new(config());
    let mut n = 0;
    // Almost half of each segment are headers and small entries, of which no description tells.
    while store.log.len() < 2 * SEGMENT_LEN {
        store.put(&format!("k{n:03}"), &large(n));
        store.put(&format!("s{n:03}"), &[7; 20]);
        n += 1;
    }
    store.seal();
    store.drain();
    let job = store.replica.tree.next_flush(&context()).unwrap();
    let recipe = store.try_run(&job).unwrap().recipe.unwrap();
    assert_eq!(recipe.kept, [segment(0), segment(1)]);
    let stats = store.stats();
    assert!(stats.dead_bytes() * 4 > stats.value_bytes, "{stats:?}");
    while let Some(job) = store.replica.tree.next_compaction(&context()) {
        store.try_run(&job).unwrap();
    }
    let left = store.stats();
    assert_eq!((left.segments, left.dead_bytes()), (0, 0), "its values moved: {left:?}");
    assert!((0..n).all(|n| store.get(&format!("k{n:03}")).unwrap() == large(n)));
}

/// A source that counts reads, and their bytes.
struct Counting<'a>(&'a Files, Cell<(usize, usize)>);

impl FileSource for Counting<'_> {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        let (reads, bytes) = self.1.get();
        self.1.set((reads + 1, bytes + len));
        self.0.read(file, offset, len).await
    }
}

/// Values lie in the order in which they were written, and are needed in that of keys.
#[test]
fn values_that_move_are_read_in_the_order_in_which_they_lie_many_at_once() {
    // In one batch and in many.
    for sst_len in [64 << 10, 4 << 10] {
        let mut store = Store::new(TreeConfig { sst_len, level1_len: 64 << 10, ..config() });
        let name = |n: u64| format!("k{:03}", n * 77 % 180);
        for n in 0..180 {
            store.put(&name(n), &large(n));
        }
        store.seal();
        store.drain();
        let flush = store.replica.tree.next_flush(&context()).unwrap();
        let kept = store.try_run(&flush).unwrap().recipe.unwrap().kept.len();
        assert!(kept > 6, "{kept} segments");
        let flush = |store: &mut Store| {
            store.seal();
            let job = store.replica.tree.next_flush(&context()).unwrap();
            store.try_run(&job).unwrap();
        };
        for n in (0..180).filter(|n| n % 4 > 0) {
            store.put(&name(n), b"small");
        }
        flush(&mut store);
        let mut moved = 0;
        while let Some(job) = store.replica.tree.next_compaction(&context()) {
            let source = Counting(&store.replica.files, Cell::default());
            let mut sink = store.replica.files.clone();
            block_on(run_job(&job, GROUP, &source, &mut sink)).unwrap();
            let values = job.moved_len() / large(0).len() as u64;
            if values > 20 && sst_len > SEGMENT_LEN as u64 {
                let (reads, bytes) = source.1.get();
                let of_tree = job.files.iter().map(|(_, file)| file.len as usize).sum::<usize>();
                let most = job.recipe.emptied.len() + 4 * job.files.len();
                assert!(reads <= most, "{reads} reads for {values} values");
                let within = job.recipe.emptied.len() * SEGMENT_LEN + of_tree;
                assert!(bytes <= within, "{bytes} bytes of {within}");
            }
            moved += values;
            store.try_run(&job).unwrap();
        }
        assert!(moved >= 40, "{moved} values moved");
        assert_eq!(store.stats().segments, 0);
        for n in 0..180 {
            let value = if n % 4 > 0 { b"small".to_vec() } else { large(n) };
            assert_eq!(store.get(&name(n)).unwrap(), value, "{sst_len}: {n}");
        }
    }
}

/// A source that fails wherever a read has this byte of a file.
struct BadSector<'a>(&'a Files, FileId, u64);

impl FileSource for BadSector<'_> {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        if file == self.1 && (offset..offset + len as u64).contains(&self.2) {
            return Err(Error::io("a bad sector"));
        }
        self.0.read(file, offset, len).await
    }
}

/// Dead bytes between values are read with them, and nobody needs them.
///
/// docs/faults.md: E5
#[test]
fn dead_bytes_that_cannot_be_read_hold_up_no_value_that_lives() {
    let mut store = Store::new(config());
    let end = (0..).find(|n| {
        store.put(&format!("k{n:03}"), &large(*n));
        store.log.len() > 2 * SEGMENT_LEN
    });
    let is_dead = |n: u64| !n.is_multiple_of(2);
    store.seal();
    store.drain();
    let flush = store.replica.tree.next_flush(&context()).unwrap();
    store.try_run(&flush).unwrap();
    for n in (0..end.unwrap()).filter(|n| is_dead(*n)) {
        store.put(&format!("k{n:03}"), b"small");
    }
    store.seal();
    let flush = store.replica.tree.next_flush(&context()).unwrap();
    store.try_run(&flush).unwrap();
    let place = |n: u64| {
        let value = large(n);
        let at = store.log.windows(value.len()).position(|bytes| bytes == value).unwrap();
        (segment(at / SEGMENT_LEN), (at % SEGMENT_LEN) as u64)
    };
    let ((dead, in_dead), (live, in_live)) = (place(5), place(4));
    let (mut ended_well, mut failed) = (0, 0);
    while let Some(job) = store.replica.tree.next_compaction(&context()) {
        if job.recipe.emptied.contains(&dead) && job.recipe.emptied.contains(&live) {
            let mut sink = store.replica.files.clone();
            let mut run = |file, at| {
                let source = BadSector(&store.replica.files, file, at);
                block_on(run_job(&job, GROUP, &source, &mut sink)).map(|_| ())
            };
            ended_well += u32::from(run(dead, in_dead).is_ok());
            failed += u32::from(run(live, in_live).is_err());
        }
        store.try_run(&job).unwrap();
    }
    assert!(ended_well > 0 && failed == ended_well, "{ended_well}, {failed}");
}
