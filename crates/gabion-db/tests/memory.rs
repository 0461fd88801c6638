//! A store's own figures of its memory against the allocator's. A program of its own, as it counts
//! every byte of the process.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that meets an error has failed; this one has files"
)]

use gabion_db::Memory;
use gabion_db::{Db, Durability, Options, RunOptions, WriteBatch};
use gabion_engine::TreeConfig;
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counted.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is the system allocator's with the same arguments; counting allocates nothing.
#[allow(unsafe_code, reason = "an allocator cannot be had otherwise")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        NOW.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `at` came from `System` with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        NOW.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        NOW.fetch_add(len, Ordering::Relaxed);
        // SAFETY: `at` came from `System` with this layout, and `len` is the caller's.
        let moved = unsafe { System.realloc(at, layout, len) };
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        moved
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A directory that is gone when the test ends.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const MIB: usize = 1 << 20;
const RECORDS: u64 = 80_000;

/// Memory that nobody counts: threads, channels and media (50 kB), spare capacity of the caches'
/// hash tables and queues (400 kB here at worst), a job's scratch. A MemTable, a file in the making
/// or the cache would be several times that if it were left out.
const UNCOUNTED_LEN: usize = 512 << 10;

/// The limit of docs/operations.md for buffers, with the default options and values that are short
/// against a file.
const BUFFERS_MAX: u64 = 2 * 4 * (18 << 20) + (76 << 20) + (16 << 20);

/// A store, and the process's memory before it was opened.
struct Counted {
    db: Db,
    before: usize,
}

impl Counted {
    /// Compares the figures of the store at rest with the allocator's, and returns the figure of
    /// each kind.
    fn compare(&self, when: &str) -> impl Fn(&str) -> usize + use<> {
        self.db.wait_until_quiet().unwrap();
        let memory = self.within_bounds(when);
        let found = NOW.load(Ordering::Relaxed) - self.before;
        let said = memory.heap_bytes() as usize;
        let margin = UNCOUNTED_LEN + found / 50;
        assert!(
            found.abs_diff(said) < margin,
            "{when}: {found} bytes taken, {said} said: {memory:#?}"
        );
        move |name| memory.kinds.iter().find(|kind| kind.name == name).unwrap().bytes as usize
    }

    fn within_bounds(&self, when: &str) -> Memory {
        let memory = self.db.stats().memory;
        let buffers = memory.kinds.iter().find(|kind| kind.name == "buffers").unwrap().bytes;
        assert!(buffers < BUFFERS_MAX, "{when}: {buffers} bytes of buffers");
        for kind in &memory.kinds {
            assert!(kind.max.is_none_or(|max| kind.bytes <= max), "{when}: {kind:?}");
        }
        memory
    }

    fn put(&self, range: std::ops::Range<u64>) {
        for n in range {
            self.db.put(&key(n), &[n as u8; 100]).unwrap();
            if n.is_multiple_of(2_000) {
                self.within_bounds("while it is written to");
            }
        }
    }

    fn get_all(&self) {
        for n in 0..RECORDS {
            assert_eq!(self.db.get(&key(n)).unwrap().unwrap(), &[n as u8; 100][..]);
        }
    }
}

fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

#[test]
fn what_a_store_says_of_its_memory_is_what_it_took_of_the_allocator() {
    let dir = Dir(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("db-memory"));
    let _ = std::fs::remove_dir_all(&dir.0);
    let mib = MIB as u64;
    let run = RunOptions { block_cache_len: 6 * MIB, ..RunOptions::default() };
    let options = Options {
        pool_len: 256 * mib,
        segment_len: mib,
        ring_len: 4 * mib,
        tree: TreeConfig {
            memtable_len: 2 * mib,
            sst_len: 2 * mib,
            level1_len: 4 * mib,
            ..TreeConfig::default()
        },
        run,
        ..Options::default()
    };
    drop(Db::create(&dir.0, &options).unwrap());
    let before = NOW.load(Ordering::Relaxed);
    let store = Counted { db: Db::open(&dir.0, &options).unwrap(), before };
    assert_eq!(store.compare("opened")("memtables_sealed"), 0);
    store.put(0..10_000);
    assert!(store.compare("a MemTable")("memtable_active") > MIB);
    store.put(10_000..RECORDS);
    assert!(store.compare("loaded")("buffers") > 4 * MIB, "files were built");
    store.get_all();
    let of = store.compare("read");
    assert!(of("block_cache") > 5 * MIB);
    let (all_open, third) = (of("open_files"), of("open_files") / 3);
    assert!(all_open > 100_000);

    store.db.set_run_options(RunOptions { open_files_len: third, ..run }).unwrap();
    // In key order each file is opened once.
    assert_eq!(store.db.iter(..).count() as u64, RECORDS);
    assert!((1..=third).contains(&store.compare("few open files")("open_files")));
    // Some are found again beside their files, the others in turns.
    for n in (0..RECORDS).step_by(97).chain((0..RECORDS).step_by(89)) {
        assert!(store.db.get(&key(n)).unwrap().is_some());
    }
    let few = store.compare("some files that stay open")("open_files");
    assert!((third / 3..=third).contains(&few), "{few} of {third}");

    let snapshot = store.db.snapshot();
    store.put(0..40_000);
    store.db.flush().unwrap();
    let of = store.compare("a snapshot keeps a MemTable");
    assert!(of("memtables_of_readers") > 100_000);
    assert_eq!(of("memtables_sealed"), 0);
    drop(snapshot);
    assert_eq!(store.compare("it is gone")("memtables_of_readers"), 0);

    store.db.set_run_options(RunOptions { block_cache_len: 0, open_files_len: 0, ..run }).unwrap();
    let of = store.compare("no caches");
    assert_eq!((of("block_cache"), of("open_files")), (0, 0));
    assert!(of("buffers") > 4 * MIB, "kept for files to come");
    drop(store);
    let left = NOW.load(Ordering::Relaxed) - before;
    assert!(left < 64 << 10, "{left} bytes are not given back");
    long_writes_stay_within_what_is_said();
    places_of_large_values_count();
}

/// A MemTable is full when a record was applied: twice 15 MiB here, for as many as are sealed
/// before a write waits. Part of the same test, as nothing else may run while bytes are counted.
fn long_writes_stay_within_what_is_said() {
    let dir = Dir(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("db-memory-long"));
    let _ = std::fs::remove_dir_all(&dir.0);
    let options = Options {
        pool_len: 1 << 30,
        tree: TreeConfig { memtable_len: 16 * MIB as u64, ..TreeConfig::default() },
        ..Options::default()
    };
    drop(Db::create(&dir.0, &options).unwrap());
    let before = NOW.load(Ordering::Relaxed);
    let store = Counted { db: Db::open(&dir.0, &options).unwrap(), before };
    // Five to a mebibyte: the longest that share chunks, and waste most of them.
    let value = vec![7; MIB / 5 + MIB / 100];
    for _ in 0..7 {
        let mut batch = WriteBatch::new();
        for n in 0..(15 * MIB / value.len()) as u64 {
            batch.put(&key(n), &value);
        }
        store.db.write(&batch, Durability::Ring).unwrap();
        store.within_bounds("after a long write");
    }
    let _ = store.compare("after long writes");
}

/// The log's places of large values count with their MemTable: the shorter these are, the more.
fn places_of_large_values_count() {
    let dir = Dir(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("db-memory-large"));
    let _ = std::fs::remove_dir_all(&dir.0);
    let mib = MIB as u64;
    let memtable_len = 12 * mib;
    let tree = TreeConfig { memtable_len, large_values: 64, ..TreeConfig::default() };
    let (segment_len, ring_len) = (4 * mib, 64 * mib);
    let run = RunOptions { block_cache_len: 0, ..RunOptions::default() };
    let options =
        Options { pool_len: 1 << 30, segment_len, ring_len, tree, run, ..Options::default() };
    drop(Db::create(&dir.0, &options).unwrap());
    let before = NOW.load(Ordering::Relaxed);
    let store = Counted { db: Db::open(&dir.0, &options).unwrap(), before };
    // 32 bytes of places for each 168 bytes that are charged.
    store.put(0..60_000);
    let active = store.compare("a MemTable of large values")("memtable_active");
    assert!(active > 60_000 * 100, "{active}");
    store.put(60_000..400_000);
    let _ = store.compare("large values");
    // Without a cache: what iterators read ahead goes with them.
    let mut iter = store.db.iter(..);
    assert!(iter.by_ref().take(1_000).all(|entry| entry.unwrap().1.len() == 100));
    let _ = store.compare("values were read ahead");
    drop(iter);
    // In the log, or in files to which they were collected: half of each segment are headers.
    assert!(store.db.stats().values.live_bytes > 30_000_000, "{:?}", store.db.stats().values);
    let _ = store.compare("iterated over");
}
