//! Look-ups of many keys at once: what is read, how often and how much at a time, and whose an
//! error is. That they find what look-ups of one key find is held against a model in `tree_model`.

use crate::support::*;
use crate::tree_rules::Driven;
use gabion_base::{Error, ErrorKind, FileId, Result};
use gabion_engine::*;
use gabion_media::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

/// A part of a file.
type Bad = (FileId, Range<u64>);

/// Files that keep account of what was read of them at once, and of which a part cannot be read.
#[derive(Clone)]
struct Device {
    files: Files,
    batches: Rc<RefCell<Vec<Vec<FileRange>>>>,
    bad: Rc<RefCell<Option<Bad>>>,
    damaged: Rc<RefCell<BTreeSet<FileId>>>,
    reads: Rc<Cell<usize>>,
}

impl Device {
    fn of(files: &Files) -> Self {
        let files = files.clone();
        let (batches, bad, damaged, reads) = Default::default();
        Self { files, batches, bad, damaged, reads }
    }

    /// Through an empty cache of so many bytes.
    fn tables(&self, cache_len: usize) -> Tables<Self> {
        let cache = Rc::new(LocalCache::new(cache_len));
        Tables { source: self.clone(), cache, group: GROUP }
    }

    async fn one(&self, range: FileRange) -> Result<Bytes> {
        let FileRange { file, offset, len } = range;
        let end = offset + len as u64;
        let bad = self.bad.borrow().clone();
        match bad {
            Some((bad, at)) if bad == file && at.start < end && offset < at.end => {
                Err(Error::io(format!("{file}: the device gives nothing back at {}", at.start)))
            }
            _ => self.files.read(file, offset, len).await,
        }
    }
}

impl FileSource for Device {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        self.reads.set(self.reads.get() + 1);
        self.one(FileRange { file, offset, len }).await
    }

    async fn read_many(&self, ranges: &[FileRange]) -> Vec<Result<Bytes>> {
        self.batches.borrow_mut().push(ranges.to_vec());
        let mut results = Vec::new();
        for range in ranges {
            results.push(self.one(*range).await);
        }
        results
    }

    fn note_damage(&self, file: FileId, _: &Error) {
        self.damaged.borrow_mut().insert(file);
    }
}

fn name(n: u64) -> String {
    format!("key{n:05}")
}

/// Keys over several levels: every third was written anew later, every seventh deleted.
fn grown(keys: u64, value_len: usize) -> Driven {
    let mut driven = Driven::new(small_config());
    for n in 0..keys {
        driven.put(&name(n), &vec![n as u8; value_len]);
        if n % 40 == 39 {
            driven.flush();
            driven.settle();
        }
    }
    for n in (0..keys).step_by(21) {
        driven.put(&name(n / 3 * 3), &[1; 9]);
        driven.write(|batch| batch.delete(Keyspace::User, name(n / 7 * 7).as_bytes()).unwrap());
        if n % 126 == 0 {
            driven.flush();
        }
    }
    driven
}

type Looked = std::result::Result<Option<Vec<u8>>, (ErrorKind, String)>;

fn shown(found: Result<Option<Found>>) -> Looked {
    let value = |found: Option<Found>| found.map(|found| found.value.to_vec());
    found.map(value).map_err(|error| (error.kind(), error.to_string()))
}

fn one_by_one(view: &ReadView, tables: &Tables<Device>, keys: &[Vec<u8>]) -> Vec<Looked> {
    keys.iter().map(|key| shown(block_on(view.look_up(tables, key)))).collect()
}

fn at_once(view: &ReadView, tables: &Tables<Device>, keys: &[Vec<u8>]) -> Vec<Looked> {
    let mut results = vec![None; keys.len()];
    let give = |at: usize, found| {
        assert!(results[at].replace(shown(found)).is_none(), "key {at} is told once");
        Ok(())
    };
    block_on(view.look_up_many(tables, keys, give)).unwrap();
    results.into_iter().map(|result| result.expect("every key is told")).collect()
}

fn keys(of: impl Iterator<Item = u64>) -> Vec<Vec<u8>> {
    of.map(|n| key(name(n).as_bytes())).collect()
}

/// docs/faults.md: P4
#[test]
fn blocks_that_are_not_in_memory_are_read_at_once_and_each_of_them_once() {
    let driven = grown(800, 100);
    let levels = driven.replica.tree.level_stats();
    assert!(levels.iter().filter(|level| level.files > 0).count() >= 3, "{levels:?}");
    let device = Device::of(&driven.replica.files);
    let tables = device.tables(1 << 20);
    let view = driven.replica.tree.view();
    let mut random = Random::new(5);
    // In no order, some twice, some not there.
    let wanted = keys((0..60).map(|_| random.below(820)));
    let found = at_once(&view, &tables, &wanted);
    // A filter that was wrong costs a second round, of few.
    let batches = device.batches.take();
    assert!((1..=3).contains(&batches.len()), "{}", batches.len());
    assert!(batches[0].len() > 20 && batches[1..].iter().all(|late| late.len() < 8), "{batches:?}");
    let mut ranges: Vec<_> = batches.concat();
    ranges.sort_by_key(|range| (range.file, range.offset));
    for pair in ranges.windows(2) {
        let end = pair[0].offset + pair[0].len as u64;
        assert!(pair[0].file < pair[1].file || end <= pair[1].offset, "{pair:?}");
    }
    // Apart from opening files, nothing was read by itself; and now all is in memory.
    assert_eq!(at_once(&view, &tables, &wanted), found);
    assert!(device.batches.take().is_empty());
    let opened = device.reads.replace(0);
    assert_eq!(opened % 2, 0, "a file is opened by two reads");
    assert_eq!(one_by_one(&view, &tables, &wanted), found);
    assert_eq!(device.reads.get(), 0, "what one look-up needs, the other left in the cache");
}

/// docs/faults.md: P4
#[test]
fn neighbours_share_a_block_and_blocks_that_adjoin_are_one_read() {
    let mut driven = Driven::new(TreeConfig { memtable_len: 8 << 20, ..small_config() });
    (0..5_000).for_each(|n| driven.put(&name(n), &[n as u8; 100]));
    driven.flush();
    let device = Device::of(&driven.replica.files);
    let view = driven.replica.tree.view();
    let wanted = keys((1_000..2_000).rev());
    let found = at_once(&view, &device.tables(0), &wanted);
    assert_eq!(found.iter().flatten().flatten().count(), 1_000);
    let batches = device.batches.take();
    // A thousand keys in files of 8 KiB, of two blocks or three.
    let (reads, len) = (batches[0].len(), batches[0].iter().map(|r| r.len).sum::<usize>());
    assert!(batches.len() == 1 && reads < 25 && len < 140_000, "{reads} reads of {len} bytes");
}

/// docs/faults.md: P4
#[test]
fn what_is_read_at_a_time_is_bounded() {
    let mut driven = Driven::new(TreeConfig {
        memtable_len: 64 << 20,
        sst_len: 16 << 20,
        level1_len: 64 << 20,
        ..small_config()
    });
    (0..300).for_each(|n| driven.put(&name(n), &vec![n as u8; 50_000]));
    driven.flush();
    (300..4_000).for_each(|n| driven.put(&name(n), &[n as u8; 2_000]));
    driven.flush();
    let device = Device::of(&driven.replica.files);
    let (view, tables) = (driven.replica.tree.view(), device.tables(0));
    // Every second, so that blocks do not adjoin; then all.
    for (from, step) in [(0, 1), (300, 6)] {
        let wanted = keys((from..4_000).step_by(step));
        assert_eq!(at_once(&view, &tables, &wanted), one_by_one(&view, &tables, &wanted));
        let batches = device.batches.take();
        assert!(batches.len() > 1);
        for batch in batches {
            let len: usize = batch.iter().map(|range| range.len).sum();
            assert!(batch.len() <= 256 && len <= 4 << 20, "{} reads of {len} bytes", batch.len());
            assert!(batch.iter().all(|range| range.len <= 1 << 20));
        }
    }
}

/// A block that cannot be read, and one that is damaged, are the error of the keys that need them
/// and of no other.
/// docs/faults.md: P4
#[test]
fn an_error_is_given_to_the_keys_of_its_block() {
    let driven = grown(600, 100);
    let files = driven.replica.tree.version().files().map(|(_, file)| file.clone());
    let files: Vec<_> = files.collect();
    let snapshot = driven.replica.tree.snapshot();
    // Each a tree of its own, to which no file is open.
    let tree = || Tree::open(small_config(), GROUP, &snapshot).unwrap();
    let wanted = keys((0..620).rev().chain(0..50));
    let whole = at_once(&tree().view(), &Device::of(&driven.replica.files).tables(0), &wanted);
    let (mut failed, mut damaged) = (0, 0);
    for file in files.iter().step_by(3) {
        for at in [10, 5_000, file.len - 10].into_iter().filter(|at| *at < file.len) {
            let device = Device::of(&driven.replica.files);
            device.bad.replace(Some((file.id, at..at + 1)));
            let found = at_once(&tree().view(), &device.tables(0), &wanted);
            assert_eq!(
                found,
                one_by_one(&tree().view(), &device.tables(0), &wanted),
                "{} at {at}",
                file.id
            );
            failed += found.iter().filter(|found| found.is_err()).count();
            assert!(found.iter().zip(&whole).all(|(now, then)| now == then || now.is_err()));
            assert!(found.iter().any(|found| found.is_ok()));

            let bytes = driven.replica.files.bytes(file.id);
            let mut changed = bytes.to_vec();
            changed[at as usize] ^= 4;
            driven.replica.files.insert(file.id, Bytes::from(changed));
            let device = Device::of(&driven.replica.files);
            let found = at_once(&tree().view(), &device.tables(0), &wanted);
            let is_told = device.damaged.take().contains(&file.id);
            assert_eq!(is_told, found.iter().any(|found| found.is_err()));
            assert_eq!(
                found,
                one_by_one(&tree().view(), &device.tables(0), &wanted),
                "{} at {at}",
                file.id
            );
            damaged += found.iter().filter(|found| found.is_err()).count();
            driven.replica.files.insert(file.id, bytes);
        }
    }
    assert!(failed > 50 && damaged > 50, "{failed} and {damaged} keys met an error");
}

#[test]
fn who_is_told_may_end_it() {
    let driven = grown(200, 100);
    let (view, device) = (driven.replica.tree.view(), Device::of(&driven.replica.files));
    let (wanted, mut told) = (keys(0..200), 0);
    let give = |_, _| {
        told += 1;
        if told == 7 { Err(Error::limit("enough")) } else { Ok(()) }
    };
    let ended = block_on(view.look_up_many(&device.tables(0), &wanted, give));
    assert_eq!((ended.unwrap_err().message(), told), ("enough", 7));
    let nobody: [Vec<u8>; 0] = [];
    block_on(view.look_up_many(&device.tables(0), &nobody, |_, _| unreachable!())).unwrap();
}
