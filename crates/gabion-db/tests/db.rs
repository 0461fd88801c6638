//! The embedded store against a model, from several threads, and through kills of its process.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that meets an error has failed; this one has files and a process that is killed"
)]

use gabion_base::units::{KEY_LEN_MAX, VALUE_LEN_MAX};
use gabion_base::{ErrorKind, GroupId, ReplicaId};
use gabion_db::{Db, Durability, Held, Options, RangeSize, RunOptions, Snapshot, WriteBatch};
use gabion_engine::{Codecs, Compression, TreeConfig, WriteLimits};
use gabion_host::replica;
use gabion_node::{AckLevel, CompactionMode, GroupConfig};
use gabion_pool::{Label, Purpose};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[path = "db/checkpoint.rs"]
mod checkpoint;
#[path = "db/compact.rs"]
mod compact;
#[path = "db/counters.rs"]
mod counters;
#[path = "db/damage.rs"]
mod damage;
#[path = "db/expiry.rs"]
mod expiry;
#[path = "db/foreign.rs"]
mod foreign;
#[path = "db/large.rs"]
mod large;
#[path = "db/load.rs"]
mod load;
#[path = "db/pools.rs"]
mod pools;
#[path = "db/ranges.rs"]
mod ranges;
#[path = "db/ring.rs"]
mod ring;
#[path = "db/warm.rs"]
mod warm;

/// A directory that is gone when the test ends.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("db-{name}"));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// A small tree that is several levels deep soon.
fn options() -> Options {
    let tree = TreeConfig {
        memtable_len: 64 << 10,
        sst_len: 64 << 10,
        level1_len: 128 << 10,
        level_multiplier: 3,
        ..TreeConfig::default()
    };
    Options {
        pool_len: 512 << 20,
        tree,
        segment_len: 1 << 20,
        ring_len: 4 << 20,
        run: RunOptions { block_cache_len: 256 << 10, ..RunOptions::default() },
        ..Options::default()
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Bounds by chance, most often of keys that are there or nearly.
fn any_bound(random: &mut Random) -> Bound<Vec<u8>> {
    let mut key = key(random.below(3_000));
    match random.below(8) {
        0 => key.push(0),
        1 => key.truncate(random.below(9) as usize),
        2 => key = vec![0xff; random.below(3) as usize],
        _ => {}
    }
    match random.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key),
        _ => Bound::Excluded(key),
    }
}

fn is_within(key: &[u8], bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> bool {
    let is_after = match &bounds.0 {
        Bound::Unbounded => true,
        Bound::Included(start) => key >= &start[..],
        Bound::Excluded(start) => key > &start[..],
    };
    is_after
        && match &bounds.1 {
            Bound::Unbounded => true,
            Bound::Included(end) => key <= &end[..],
            Bound::Excluded(end) => key < &end[..],
        }
}

/// A cursor with any bounds goes to and fro as an index into a sorted list does.
fn check_cursor(snapshot: &Snapshot, model: &Model, random: &mut Random) {
    let bounds = (any_bound(random), any_bound(random));
    let pairs: Vec<_> = model.iter().filter(|(key, _)| is_within(key, &bounds)).collect();
    let mut cursor = snapshot.cursor(bounds.clone());
    // 0 is before the first.
    let (mut place, past, mut backwards) = (0, pairs.len() + 1, random.below(2) == 0);
    for _ in 0..random.below(100) {
        let target = key(random.below(3_000));
        let there = match random.below(24) {
            0 => {
                place = 1;
                cursor.seek_to_first()
            }
            1 => {
                place = past - 1;
                cursor.seek_to_last()
            }
            2 => {
                place = 1 + pairs.partition_point(|pair| *pair.0 < target);
                cursor.seek(&target)
            }
            3 => {
                place = pairs.partition_point(|pair| *pair.0 <= target);
                cursor.seek_for_prev(&target)
            }
            step => {
                backwards ^= step < 7;
                place = if backwards { place.saturating_sub(1) } else { past.min(place + 1) };
                if backwards { cursor.prev() } else { cursor.next() }
            }
        };
        let expected = place.checked_sub(1).and_then(|at| pairs.get(at));
        let expected = expected.map(|(key, value)| (&key[..], &value[..]));
        assert_eq!(there.unwrap(), expected.is_some(), "{bounds:?}");
        assert_eq!(cursor.pair(), expected, "{bounds:?}");
        assert_eq!(cursor.is_valid(), expected.is_some());
        let kept = cursor.to_pair();
        assert_eq!(kept.as_ref().map(|(key, value)| (&key[..], &value[..])), expected);
    }
    // From both ends at once, until they meet.
    let mut ends: (Vec<_>, Vec<_>) = Default::default();
    let mut range = cursor.into_iter();
    while let Some(pair) = match random.below(2) {
        0 => range.next().inspect(|pair| ends.0.push(pair.clone().unwrap())),
        _ => range.next_back().inspect(|pair| ends.1.push(pair.clone().unwrap())),
    } {
        pair.unwrap();
    }
    let found = ends.0.iter().chain(ends.1.iter().rev());
    assert!(
        found
            .map(|(key, value)| (&key[..], &value[..]))
            .eq(pairs.iter().map(|(key, value)| (&key[..], &value[..])))
    );
    assert!(range.next().is_none() && range.next_back().is_none());
}

/// All pairs, by every way of reading.
fn check(db: &Db, model: &Model, random: &mut Random) {
    let all: Vec<_> = db.iter(..).map(|pair| pair.unwrap()).collect();
    assert_eq!(all.len(), model.len());
    for ((key, value), (wanted_key, wanted)) in all.iter().zip(model) {
        assert!(key[..] == wanted_key[..] && value[..] == wanted[..], "{wanted_key:?}");
    }
    let (from, to) = (key(random.below(3_000)), key(random.below(3_000)));
    let found: Vec<_> = db.range(&from..&to).map(|pair| pair.unwrap().0).collect();
    let wanted = model.keys().filter(|&key| *key >= from && *key < to);
    assert!(found.iter().map(|key| &key[..]).eq(wanted.map(|key| &key[..])));
    let snapshot = db.snapshot();
    (0..10).for_each(|_| check_cursor(&snapshot, model, random));
    let prefix = &from[..random.below(from.len() as u64 + 1) as usize];
    let found: Vec<_> = db.prefix(prefix).map(|pair| pair.unwrap().0).collect();
    let wanted = model.keys().filter(|key| key.starts_with(prefix));
    assert!(found.iter().map(|key| &key[..]).eq(wanted.map(|key| &key[..])));
    let keys: Vec<Vec<u8>> = (0..50).map(|_| key(random.below(3_000))).collect();
    let values = db.multi_get(keys.iter().map(|key| &key[..]));
    for (key, value) in keys.iter().zip(values) {
        assert_eq!(value.unwrap().as_deref(), model.get(key).map(|value| &value[..]));
        assert_eq!(db.get(key).unwrap().as_deref(), model.get(key).map(|value| &value[..]));
    }
    // The same with nothing in memory: blocks are read at once, past the cache.
    let run = db.run_options();
    db.set_run_options(RunOptions { block_cache_len: 0, ..run }).unwrap();
    let values = db.multi_get(keys.iter().chain(&keys).map(|key| &key[..]));
    for (key, value) in keys.iter().chain(&keys).zip(values) {
        assert_eq!(value.unwrap().as_deref(), model.get(key).map(|value| &value[..]));
    }
    db.set_run_options(run).unwrap();
}

const LEVELS: [Durability; 3] = [Durability::MemTable, Durability::Ring, Durability::Flushed];

/// docs/faults.md: P2, P4, P26
#[test]
fn a_store_holds_what_a_map_holds_through_flushes_compactions_and_restarts() {
    let (dir, mut random) = (Dir::new("model"), Random(7));
    let mut model = Model::new();
    let mut db = Db::create(&dir.0, &options()).unwrap();
    for round in 0..6 {
        let snapshot = (db.snapshot(), model.clone());
        for _ in 0..1_500 {
            let (at, len) = (random.below(3_000), random.below(400) as usize);
            let value = vec![random.below(256) as u8; len];
            match random.below(10) {
                0 => {
                    db.delete(&key(at)).unwrap();
                    model.remove(&key(at));
                }
                1 => {
                    let mut batch = WriteBatch::new();
                    for n in at..at + 4 {
                        batch.put(&key(n), &value);
                        model.insert(key(n), value.clone());
                    }
                    batch.delete(&key(at + 1));
                    model.remove(&key(at + 1));
                    db.write(&batch, LEVELS[random.below(3) as usize]).unwrap();
                }
                _ => {
                    db.put(&key(at), &value).unwrap();
                    model.insert(key(at), value);
                }
            }
        }
        check(&db, &model, &mut random);
        let then: Vec<_> = snapshot.0.iter(..).map(|pair| pair.unwrap().0).collect();
        assert!(then.iter().map(|key| &key[..]).eq(snapshot.1.keys().map(|key| &key[..])));
        (0..10).for_each(|_| check_cursor(&snapshot.0, &snapshot.1, &mut random));
        drop(snapshot);
        match round % 3 {
            0 => db.flush().unwrap(),
            1 => db.wait_until_quiet().unwrap(),
            _ => {}
        }
        check(&db, &model, &mut random);
        drop(db);
        db = Db::open(&dir.0, &options()).unwrap();
        check(&db, &model, &mut random);
    }
    db.wait_until_quiet().unwrap();
    let stats = db.stats();
    assert!(stats.counters.flushes > 0 || stats.levels.iter().skip(1).any(|level| level.files > 0));
}

/// Two keys that every batch writes together never differ in a snapshot, whatever is flushed and
/// compacted meanwhile.
#[test]
fn readers_on_other_threads_see_whole_batches_only() {
    let dir = Dir::new("threads");
    let db = Db::create(&dir.0, &options()).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        for reader in 0..3 {
            let (db, ended) = (db.clone(), &ended);
            readers.push(scope.spawn(move || {
                let (mut random, mut reads) = (Random(reader + 1), 0_u64);
                while !ended.load(Ordering::Relaxed) || reads < 200 {
                    let n = random.below(200);
                    let (left, right) = (key(n), key(10_000 + n));
                    let snapshot = db.snapshot();
                    let left = snapshot.get(&left).unwrap();
                    assert_eq!(left, snapshot.get(&right).unwrap());
                    let pair = db.multi_get([&key(n)[..], &key(10_000 + n)[..]]);
                    let pair: Vec<_> = pair.into_iter().map(Result::unwrap).collect();
                    assert_eq!(pair[0], pair[1]);
                    // Values only grow: a later look never shows an older one.
                    assert!(pair[0] >= left);
                    reads += 1;
                }
                reads
            }));
        }
        let writers: Vec<_> = (0..2_u64)
            .map(|writer| {
                let db = db.clone();
                scope.spawn(move || {
                    let mut random = Random(writer + 100);
                    for round in 0..4_000_u64 {
                        // Each writer has keys of its own.
                        let n = random.below(100) * 2 + writer;
                        let value = [&round.to_be_bytes()[..], &[7; 200]].concat();
                        let mut batch = WriteBatch::new();
                        batch.put(&key(n), &value);
                        batch.put(&key(10_000 + n), &value);
                        db.write(&batch, Durability::Ring).unwrap();
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        ended.store(true, Ordering::Relaxed);
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() >= 200));
    });
    assert!(db.stats().counters.flushes > 5);
}

#[test]
fn what_cannot_be_written_or_opened_is_refused_and_nothing_is_half_done() {
    let dir = Dir::new("refused");
    let db = Db::create(&dir.0, &options()).unwrap();
    let long_key = vec![1; KEY_LEN_MAX + 1];
    let mut batch = WriteBatch::new();
    batch.put(b"a", b"1");
    batch.put(&long_key, b"2");
    for result in [
        db.put(&long_key, b""),
        db.delete(&long_key),
        db.put(b"a", &vec![0; VALUE_LEN_MAX + 1]),
        db.write(&batch, Durability::Ring),
    ] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::LimitExceeded);
    }
    batch.clear();
    (0..3).for_each(|n| batch.put(&[n], &vec![n; 1 << 19]));
    let text = db.write(&batch, Durability::Ring).unwrap_err().to_string();
    assert!(text.contains("a batch of 3 operations"), "{text}");
    assert_eq!(db.iter(..).count(), 0);
    db.put(&[9; KEY_LEN_MAX], b"").unwrap();
    assert!(db.failure().is_none());

    assert_eq!(Db::open(&dir.0, &options()).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(Db::create(&dir.0, &options()).unwrap_err().kind(), ErrorKind::InvalidInput);
    let nowhere = Db::open(&dir.0.join("nowhere"), &options()).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::NotFound);
    let odd = Options { ring_len: (4 << 20) + 1, ..options() };
    let text = Db::create(&dir.0.join("odd"), &odd).unwrap_err().to_string();
    assert!(text.contains("ring_len is 4194305"), "{text}");
    let group = GroupConfig {
        group: GroupId(7),
        founders: vec![ReplicaId(1), ReplicaId(2)],
        compaction: CompactionMode::Primary,
        ack: AckLevel::Replicated,
        ring_len: 4 << 20,
        segment_len: 1 << 20,
        tree: options().tree,
    };
    let member = dir.0.join("member");
    replica::create_replica(&member, 128 << 20, &group, ReplicaId(2)).unwrap();
    let text = Db::open(&member, &options()).unwrap_err().to_string();
    assert!(text.contains("belongs to a group of 2 replicas"), "{text}");
}

/// docs/faults.md: P2
#[test]
fn a_prefix_of_any_bytes_holds_the_keys_that_begin_with_it_and_no_others() {
    let dir = Dir::new("prefix");
    let db = Db::create(&dir.0, &options()).unwrap();
    let keys: [&[u8]; 9] = [
        b"",
        b"\0",
        b"\0\xff",
        b"a",
        b"a\xfe\xff",
        b"a\xff",
        b"a\xff\xff\0",
        b"b",
        b"\xff\xff\xff",
    ];
    keys.iter().for_each(|key| db.put(key, b"v").unwrap());
    let prefixes: [&[u8]; 9] =
        [b"", b"\0", b"\0\xff", b"a", b"a\xff", b"a\xff\xff", b"b\0", b"\xff", b"\xff\xff\xff\xff"];
    for prefix in prefixes {
        let wanted = keys.iter().filter(|key| key.starts_with(prefix));
        let found: Vec<_> = db.prefix(prefix).map(|pair| pair.unwrap().0).collect();
        assert!(found.iter().map(|key| &key[..]).eq(wanted.copied()), "{prefix:?}: {found:?}");
        let mut cursor = db.prefix_cursor(prefix);
        assert_eq!(cursor.seek_to_last().unwrap(), !found.is_empty());
        assert_eq!(cursor.key(), found.last().map(|key| &key[..]));
    }
}

/// The documented state before the first move, past the ends and in an empty range.
/// docs/faults.md: P2
#[test]
fn a_cursor_begins_before_the_first_pair_and_stays_past_the_ends() {
    let dir = Dir::new("cursor");
    let db = Db::create(&dir.0, &options()).unwrap();
    let mut empty = db.cursor(..);
    assert!(!empty.is_valid() && empty.pair().is_none());
    assert!(!empty.next().unwrap() && !empty.prev().unwrap() && !empty.seek_to_last().unwrap());
    ["a", "b", "c"].iter().for_each(|key| db.put(key.as_bytes(), b"v").unwrap());
    assert!(!empty.seek_to_first().unwrap(), "it reads the moment at which it was made");
    let mut cursor = db.cursor("a"..="b");
    assert!(!cursor.prev().unwrap());
    assert!(cursor.next().unwrap() && cursor.next().unwrap());
    assert_eq!(cursor.key(), Some(&b"b"[..]));
    assert!(!cursor.next().unwrap() && !cursor.next().unwrap() && cursor.value().is_none());
    assert!(cursor.prev().unwrap());
    assert_eq!(cursor.key(), Some(&b"b"[..]));
    let (from, to) = (b"b".to_vec(), b"a".to_vec());
    let mut reverse = db.cursor(from..to);
    assert!(!reverse.next().unwrap() && !reverse.seek(b"a").unwrap());
    assert!(!reverse.seek_to_last().unwrap() && !reverse.seek_for_prev(b"c").unwrap());
    let cursors_go_to_other_threads = |_: &(dyn Send + Sync)| ();
    cursors_go_to_other_threads(&cursor);
    cursors_go_to_other_threads(&cursor.into_iter());
}

/// docs/faults.md: P6
#[test]
fn sizes_of_ranges_are_off_by_a_block_for_each_end_and_file_and_add_up() {
    let dir = Dir::new("size");
    let db = Db::create(&dir.0, &options()).unwrap();
    let (count, len) = (6_000, 100);
    let in_memory = |db: &Db| db.approximate_size(..).unwrap().memtable_bytes;
    assert_eq!(db.approximate_size(..).unwrap(), RangeSize::default());
    // Twice, so that levels overlap.
    for round in 0..2u8 {
        (0..count).for_each(|n| db.put(&key(n * 4 + u64::from(round)), &[round; 100]).unwrap());
    }
    db.flush().unwrap();
    db.wait_until_quiet().unwrap();
    assert_eq!(in_memory(&db), 0);
    let stats = db.stats();
    let runs: u64 = stats
        .levels
        .iter()
        .enumerate()
        .map(|(level, found)| match level {
            0 => found.files,
            _ => u64::from(found.files > 0),
        })
        .sum();
    let all = db.approximate_size(..).unwrap();
    let live: u64 = stats.levels.iter().map(|level| level.bytes).sum();
    assert_eq!((all.file_bytes, all.entries), (live, 2 * count));
    let per_entry = all.file_bytes as f64 / all.entries as f64;
    // A block, and the index and filter of a file that an end cuts off.
    let error = (runs * 2 * (4096 + (len + 40) + (64 << 10) / 25)) as f64;
    let mut random = Random(3);
    let max = count * 4;
    let mut keys: Vec<_> = (0..count).flat_map(|n| [key(n * 4), key(n * 4 + 1)]).collect();
    keys.sort_unstable();
    for _ in 0..300 {
        let [a, b, c] = {
            let mut ends = [random.below(max), random.below(max), random.below(max)];
            ends.sort_unstable();
            ends.map(key)
        };
        let [ab, bc, ac] =
            [(&a, &b), (&b, &c), (&a, &c)].map(|(from, to)| db.approximate_size(from..to).unwrap());
        assert_eq!(ab.file_bytes + bc.file_bytes, ac.file_bytes);
        let place = |key: &Vec<u8>| keys.partition_point(|other| other < key);
        let found = (place(&c) - place(&a)) as f64;
        let wanted = found * per_entry;
        assert!((ac.file_bytes as f64 - wanted).abs() <= error, "{ac:?}, {wanted} ± {error}");
        assert!(
            (ac.entries as f64 - found).abs() <= error / per_entry + runs as f64,
            "{ac:?}, {found}"
        );
        assert_eq!(
            db.approximate_size(&c..&a).unwrap(),
            if a == c { ab } else { RangeSize::default() }
        );
    }
    // In memory: few are counted.
    (0..50).for_each(|n| db.put(&key(n), &[0; 10]).unwrap());
    let few = db.approximate_size(key(10)..key(20)).unwrap();
    // With the keyspace byte.
    let each = 1 + 8 + 10 + gabion_engine::memtable::ENTRY_OVERHEAD as u64;
    assert_eq!(few.memtable_bytes, 10 * each, "{few:?}");
}

/// A forgotten snapshot keeps slots, and the statistics show it.
/// docs/faults.md: P22
#[test]
fn what_snapshots_and_cursors_hold_is_counted_until_they_go() {
    let dir = Dir::new("held");
    let db = Db::create(&dir.0, &options()).unwrap();
    let held = || {
        let Held { moments, oldest_ms } = db.stats().held;
        (moments, oldest_ms)
    };
    (0..2_000).for_each(|n| db.put(&key(n), &[7; 100]).unwrap());
    db.compact_range(..).unwrap();
    assert_eq!(held(), (0, 0));
    let snapshot = db.snapshot();
    let (clone, mut cursor) = (snapshot.clone(), snapshot.cursor(..));
    assert_eq!(held().0, 1, "one moment");
    drop(snapshot);
    assert!(cursor.next().unwrap());
    let mut pairs = db.iter(..);
    pairs.next().unwrap().unwrap();
    pairs.next_back().unwrap().unwrap();
    assert_eq!(held().0, 2);
    std::thread::sleep(Duration::from_millis(300));
    let newest = db.prefix(b"key");
    let (moments, oldest_ms) = held();
    assert!(moments == 3 && oldest_ms >= 300, "{moments} {oldest_ms}");
    drop((pairs, newest));

    // Files that compactions replace stay for the remaining one.
    (0..2_000).for_each(|n| db.put(&key(n), &[8; 100]).unwrap());
    db.compact_range(..).unwrap();
    let slots = db.stats().slots;
    assert!(slots.retired > 0, "{slots:?}");
    drop(cursor);
    assert_eq!(held().0, 1);
    std::thread::scope(|scope| scope.spawn(|| drop(clone)).join().unwrap());
    db.wait_until_quiet().unwrap();
    assert_eq!((held(), db.stats().slots.retired), ((0, 0), 0));
    let slots = db.stats().slots;
    assert_eq!(slots.free + slots.live, slots.total);
}

/// A snapshot outlives its store, and keeps others out of the directory meanwhile.
#[test]
fn a_snapshot_can_be_read_after_the_store_was_closed() {
    let dir = Dir::new("snapshot");
    let db = Db::create(&dir.0, &options()).unwrap();
    (0..2_000).for_each(|n| db.put(&key(n), &[7; 100]).unwrap());
    let snapshot = db.snapshot();
    drop(db);
    assert_eq!(snapshot.iter(..).filter(|pair| pair.is_ok()).count(), 2_000);
    assert_eq!(Db::open(&dir.0, &options()).unwrap_err().kind(), ErrorKind::Busy);
    drop(snapshot);
    assert_eq!(Db::open(&dir.0, &options()).unwrap().iter(..).count(), 2_000);
}

/// docs/faults.md: E8
#[test]
fn a_store_whose_process_met_a_failed_flush_says_so_once_and_holds_what_it_held() {
    let dir = Dir::new("unflushed");
    let db = Db::create(&dir.0, &options()).unwrap();
    (0..2_000).for_each(|n| db.put(&key(n), &[7; 100]).unwrap());
    drop(db);
    let mark = dir.0.join("pool.unflushed");
    for is_old in [false, true] {
        // The mark of a failed flush as the pool's file makes it, and as older versions did.
        let made = match is_old {
            false => std::os::unix::fs::symlink("a flush failed", &mark),
            true => std::fs::write(&mark, b""),
        };
        made.unwrap();
        for says in [true, false] {
            let db = Db::open(&dir.0, &options()).unwrap();
            let notices = db.take_notices().join("; ");
            assert_eq!(notices.contains("a flush had failed"), says, "{notices}");
            assert!(mark.symlink_metadata().is_err());
            assert_eq!(db.iter(..).count(), 2_000);
        }
    }
}

/// Returns the store's options after that: each flush is compacted at once.
fn limits_change(db: &Db, put: impl Fn(u64)) -> RunOptions {
    let (run, made) = (db.run_options(), db.write_limits());
    let memtable_len = 1 << 30;
    let wrong = WriteLimits { memtable_len, ..made };
    let error = db.set_run_options(RunOptions { limits: Some(wrong), ..run }).unwrap_err();
    assert!(error.to_string().contains("memtable_len is 1073741824, of a pool of"), "{error}");
    let wrong = WriteLimits { l0_trigger: 0, ..made };
    let error = db.set_run_options(RunOptions { limits: Some(wrong), ..run }).unwrap_err();
    assert!(error.to_string().contains("l0_trigger is 0, allowed are 1 to 1000"), "{error}");
    assert_eq!((db.run_options().limits, db.write_limits()), (None, made));
    // Each flush is compacted at once.
    let limits = WriteLimits { l0_trigger: 1, ..made };
    let run = RunOptions { compactions_max: 3, limits: Some(limits), ..db.run_options() };
    db.set_run_options(run).unwrap();
    assert_eq!((db.run_options(), db.write_limits()), (run, limits));
    db.wait_until_quiet().unwrap();
    let before = db.stats().counters;
    put(1_500);
    db.flush().unwrap();
    db.wait_until_quiet().unwrap();
    let counters = db.stats().counters;
    assert!(counters.compactions > before.compactions);
    // The puts, the flushed bytes, and these together with the compacted ones.
    let logged = counters.logged_bytes - before.logged_bytes;
    assert!((3_000 * 208..3_000 * 300).contains(&logged), "{logged}");
    let flushed = counters.flushed_bytes - before.flushed_bytes;
    assert!((3_000 * 200..logged + (1 << 20)).contains(&flushed), "{flushed}");
    let written = counters.job_written_bytes - before.job_written_bytes;
    assert!(written > flushed, "{written} {flushed}");
    let in_log = counters.log_written_bytes;
    db.put_with(&key(0), &[8; 200], Durability::Flushed).unwrap();
    assert!(db.stats().counters.log_written_bytes > in_log);
    assert_eq!(db.stats().levels[0].files, 0);
    run
}

/// docs/faults.md: P15
#[test]
fn options_change_while_a_store_is_open() {
    let dir = Dir::new("run-options");
    let db = Db::create(&dir.0, &options()).unwrap();
    assert_eq!(db.run_options(), options().run);
    let put = |from: u64| (from..from + 3_000).for_each(|n| db.put(&key(n), &[7; 200]).unwrap());
    put(0);
    db.flush().unwrap();
    db.wait_until_quiet().unwrap();
    let read = || assert!((0..3_000).all(|n| db.get(&key(n)).unwrap().is_some()));
    let cached = |len| {
        db.set_run_options(RunOptions { block_cache_len: len, ..db.run_options() }).unwrap();
        let left = db.stats().cache_bytes;
        read();
        (left, db.stats().cache_bytes)
    };
    let (_, all) = cached(16 << 20);
    assert!(all > 600_000, "{all}");
    assert_eq!(db.stats().cache_evictions, 0);
    let (left, then) = cached(100_000);
    assert!(db.stats().cache_evictions > 100);
    assert!(left <= 100_000 && then <= 100_000 && then > 0, "{left} {then}");
    assert_eq!(cached(0), (0, 0));

    for compactions_max in [0, 65] {
        let wrong = RunOptions { compactions_max, block_cache_len: 5, ..RunOptions::default() };
        let error = db.set_run_options(wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let wanted = format!("compactions_max is {compactions_max}, 1 to 64 are possible");
        assert!(error.to_string().contains(&wanted), "{error}");
        assert_eq!(db.run_options().block_cache_len, 0, "nothing has changed");
    }
    let codecs = Codecs { upper: Compression::Lz4, bottom: Some(Compression::Zstd { level: 20 }) };
    let wrong = RunOptions { codecs: Some(codecs), ..db.run_options() };
    let error = db.set_run_options(wrong).unwrap_err();
    let wanted = "bottom_compression: zstd level is 20, the limits are 1 to 19";
    assert_eq!(error.to_string(), wanted);
    let run = limits_change(&db, put);
    db.wait_until_quiet().unwrap();
    assert_eq!(db.iter(..).count(), 4_500);
    let db_limits = db.write_limits();
    drop(db);

    let limits = WriteLimits { memtable_len: options().pool_len, ..db_limits };
    let wrong = Options { run: RunOptions { limits: Some(limits), ..run }, ..options() };
    let other = dir.0.join("never-made-either");
    let error = Db::open_or_create(&other, &wrong).unwrap_err();
    assert!(error.to_string().contains("memtable_len is"), "{error}");
    assert!(!replica::pool_path(&other).exists(), "nothing is made");
    let wrong = Options { run: RunOptions { compactions_max: 0, ..run }, ..options() };
    let other = dir.0.join("never-made");
    let error = Db::open_or_create(&other, &wrong).unwrap_err();
    assert!(error.to_string().contains("compactions_max is 0"), "{error}");
    assert!(!replica::pool_path(&other).exists(), "nothing is made");
    assert_eq!(Db::open(&dir.0, &options()).unwrap().run_options(), options().run);
}

const CHILD: &str = "GABION_DB_TEST_DIRECTORY";

/// Not a test of its own: the process that is killed. It reports its progress after each batch.
///
/// Its writes past the log have rising numbers of their own, and it reports none of them before it
/// is in a file.
#[test]
#[ignore = "run by what_was_acknowledged_survives_kills_of_the_process"]
fn child_that_is_killed() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let db = Db::open(&dir, &options()).unwrap();
    let from = newest(&db);
    let told = |name| std::fs::OpenOptions::new().append(true).open(dir.join(name)).unwrap();
    let (progress, flushed) = (told("progress"), told("flushed"));
    for n in from + 1.. {
        let mut batch = WriteBatch::new();
        batch.put(b"newest", &n.to_be_bytes());
        batch.put(&key(n), &[n as u8; 300]);
        if n > 100 {
            batch.delete(&key(n - 100));
        }
        db.write(&batch, Durability::Ring).unwrap();
        let mut past = WriteBatch::new();
        past.put(b"past: newest", &n.to_be_bytes());
        past.put(&[b"past: ", &n.to_be_bytes()[..]].concat(), &[n as u8; 300]);
        db.write(&past, Durability::MemTable).unwrap();
        if n.is_multiple_of(97) {
            db.flush().unwrap();
            std::io::Write::write_all(&mut &flushed, &n.to_be_bytes()).unwrap();
        }
        std::io::Write::write_all(&mut &progress, &n.to_be_bytes()).unwrap();
    }
}

/// The pairs past the log have no gaps: all of `before`, then this life's up to some number that is
/// at least the last one reported as in a file. Returns the numbers.
fn past_the_log(db: &Db, dir: &Path, mut before: Vec<u64>) -> Vec<u64> {
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    let pairs: Vec<_> = db.prefix(b"past: ").map(Result::unwrap).collect();
    let keys = pairs.iter().map(|(key, _)| &key[b"past: ".len()..]);
    let found: Vec<u64> = keys.filter(|key| *key != b"newest").map(number).collect();
    let newest = db.get(b"past: newest").unwrap().map(|value| number(&value));
    assert_eq!(newest, found.last().copied());
    let flushed = last_told(dir, "flushed");
    assert!(newest.unwrap_or_default() >= flushed, "{newest:?} of {flushed}");
    assert!(found.starts_with(&before));
    let first = found.get(before.len()).copied().unwrap_or_default();
    before.extend(first..first + (found.len() - before.len()) as u64);
    assert_eq!(found, before, "a gap");
    found
}

fn newest(db: &Db) -> u64 {
    let value = db.get(b"newest").unwrap();
    value.map_or(0, |value| u64::from_be_bytes(value[..].try_into().unwrap()))
}

/// The last number that the child wrote down whole.
fn last_told(dir: &Path, name: &str) -> u64 {
    let bytes = std::fs::read(dir.join(name)).unwrap();
    bytes.chunks_exact(8).last().map_or(0, |n| u64::from_be_bytes(n.try_into().unwrap()))
}

/// docs/faults.md: P26
#[test]
fn what_was_acknowledged_survives_kills_of_the_process() {
    let dir = Dir::new("killed");
    drop(Db::create(&dir.0, &options()).unwrap());
    for name in ["progress", "flushed"] {
        std::fs::write(dir.0.join(name), b"").unwrap();
    }
    let (mut last, mut past) = (0, Vec::new());
    for round in 0..5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_is_killed", "--ignored"])
            .env(CHILD, &dir.0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while last_told(&dir.0, "progress") < last + 300 * (round + 1) {
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        last = last_told(&dir.0, "progress");
        let db = Db::open(&dir.0, &options()).unwrap();
        let newest = newest(&db);
        assert!(newest == last || newest == last + 1, "acknowledged {last}, found {newest}");
        let first = newest.saturating_sub(99).max(1);
        let keys: Vec<_> = db.iter("key".."kez").map(|pair| pair.unwrap().0).collect();
        assert!(keys.iter().map(|key| key.to_vec()).eq((first..=newest).map(key)));
        past = past_the_log(&db, &dir.0, past);
        last = last.max(newest);
    }
    assert!(past.len() as u64 > 97 && (past.len() as u64) < last, "{} of {last}", past.len());
}

/// The writer need not do anything for it.
/// docs/faults.md: P26
#[test]
fn what_was_written_past_the_log_is_in_a_file_once_the_store_is_closed() {
    let dir = Dir::new("past");
    let db = Db::create(&dir.0, &options()).unwrap();
    for n in 0..100 {
        let mut batch = WriteBatch::new();
        batch.put(&key(n), &[n as u8; 1_000]);
        batch.add(b"count", 1);
        db.write(&batch, Durability::MemTable).unwrap();
    }
    assert_eq!(db.get(b"count").unwrap().as_deref(), Some(&b"100"[..]));
    let snapshot = db.snapshot();
    db.put(&key(0), b"logged").unwrap();
    assert_eq!(snapshot.get(&key(0)).unwrap().as_deref(), Some(&[0; 1_000][..]));
    drop((snapshot, db));
    let db = Db::open(&dir.0, &options()).unwrap();
    assert_eq!(db.get(b"count").unwrap().as_deref(), Some(&b"100"[..]));
    assert_eq!(db.get(&key(0)).unwrap().as_deref(), Some(&b"logged"[..]));
    (1..100).for_each(|n| assert_eq!(db.get(&key(n)).unwrap().unwrap()[..], [n as u8; 1_000]));
}

const CHILDS_CODE: i32 = 77;

/// Not a test of its own: the process that ends amid everything, with an empty MemTable.
#[test]
#[ignore = "run by what_was_cleared_past_the_log_stays_gone_once_it_was_flushed"]
fn child_that_clears_and_exits() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let db = Db::open(&dir, &options()).unwrap();
    let mut all = WriteBatch::new();
    all.delete_prefix(b"");
    db.write(&all, Durability::MemTable).unwrap();
    db.flush().unwrap();
    std::process::exit(CHILDS_CODE);
}

/// Several times: the drop of the files, which also reports, may be done before the process is
/// gone.
/// docs/faults.md: P26
#[test]
fn what_was_cleared_past_the_log_stays_gone_once_it_was_flushed() {
    let dir = Dir::new("cleared-past");
    let mut db = Db::create(&dir.0, &options()).unwrap();
    for _ in 0..8 {
        (0..500).for_each(|n| db.put(&key(n), &[1; 300]).unwrap());
        db.flush().unwrap();
        db.wait_until_quiet().unwrap();
        drop(db);
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_clears_and_exits", "--ignored"])
            .env(CHILD, &dir.0)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(ended.code(), Some(CHILDS_CODE), "{ended}");
        db = Db::open(&dir.0, &options()).unwrap();
        assert_eq!(db.iter(..).count(), 0);
    }
}

/// Values a little over a slot's length take far more slots than a flush usually reserves, and
/// several flushes with too few are under way at once.
/// docs/faults.md: P17
#[test]
fn flushes_side_by_side_that_need_more_slots_than_usual_all_get_them() {
    let dir = Dir::new("slots");
    let tree = TreeConfig {
        memtable_len: 8 << 20,
        sst_len: 4 << 20,
        level1_len: 64 << 20,
        ..TreeConfig::default()
    };
    let with = Options { pool_len: 512 << 20, tree, ring_len: 128 << 20, ..Options::default() };
    let db = Db::create(&dir.0, &with).unwrap();
    let value = |n: u8| vec![n; 2_200_000];
    let batches: Vec<_> = (0..8)
        .map(|batch| {
            let mut writes = WriteBatch::new();
            (batch * 5..batch * 5 + 5).for_each(|n| writes.put(&[n], &value(n)));
            writes
        })
        .collect();
    batches.iter().for_each(|batch| db.write(batch, Durability::Ring).unwrap());
    db.flush().unwrap();
    drop(db);
    let db = Db::open(&dir.0, &with).unwrap();
    (0..40).for_each(|n| assert!(db.get(&[n]).unwrap().unwrap() == value(n), "{n}"));
}

/// With a file in L0 writers slow down, and before a thousand they never stop.
/// docs/faults.md: P27, P28
#[test]
fn writers_that_are_slowed_down_go_on_and_lose_nothing() {
    let dir = Dir::new("slowed");
    let tree = TreeConfig { l0_trigger: 1, l0_slowdown: 1, l0_stop: 1000, ..options().tree };
    let db = Db::create(&dir.0, &Options { tree, ..options() }).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let db = db.clone();
            scope.spawn(move || {
                (0..4_000).for_each(|n| db.put(&key(3 * n + thread), &[n as u8; 300]).unwrap());
            });
        }
    });
    assert!(db.stats().counters.writes_slowed_ms > 0);
    let values = db.iter(..).map(|pair| pair.unwrap().1[..].to_vec());
    assert!(values.eq((0..12_000).map(|n| vec![(n / 3) as u8; 300])));
}

/// Nobody removes the files of another process that makes a store there.
/// docs/faults.md: P32
#[test]
fn while_a_store_is_made_nobody_else_makes_one_there() {
    let dir = Dir::new("made-twice");
    let store = dir.0.join("store");
    std::fs::create_dir(&store).unwrap();
    let label =
        Label { purpose: Purpose::NewPool, pool_id: [7; 16], len: 1 << 20, number: 0 }.encode();
    let half_made = [&[1; 8192][..], &label].concat();
    std::fs::write(store.join("pool.new"), &half_made).unwrap();
    let maker = std::fs::File::open(&store).unwrap();
    gabion_fabric::lock::lock_exclusive(&maker, &store).unwrap();
    for made in [Db::create(&store, &options()), Db::open_or_create(&store, &options())] {
        let error = made.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.to_string().contains("a store is made there"), "{error}");
    }
    assert_eq!(std::fs::read(store.join("pool.new")).unwrap(), half_made);
    // The maker was killed. A child that another test forks just now holds its lock until it runs
    // a program of its own.
    drop(maker);
    let made = (0..100).find_map(|_| match Db::open_or_create(&store, &options()) {
        Err(error) if error.kind() == ErrorKind::Busy => {
            std::thread::sleep(Duration::from_millis(50));
            None
        }
        other => Some(other.unwrap()),
    });
    drop(made.unwrap());
    let error = Db::create(&store, &options()).unwrap_err();
    assert!(error.to_string().contains("holds a store already"), "{error}");
}

/// A thread that failed only with its first job would end the store.
#[test]
fn a_thread_that_gets_no_descriptor_is_told_at_once_and_the_store_goes_on() {
    let dir = Dir::new("no-descriptor");
    let (store, elsewhere) = (dir.0.join("store"), dir.0.join("elsewhere"));
    let db = Db::create(&store, &options()).unwrap();
    std::fs::rename(&store, &elsewhere).unwrap();
    let before = db.run_options();
    let error = db.set_run_options(RunOptions { compactions_max: 3, ..before }).unwrap_err();
    assert!(error.to_string().contains("gabion-compact cannot start"), "{error}");
    assert_eq!(db.run_options().compactions_max, before.compactions_max);
    db.put(b"k", b"v").unwrap();
    db.flush().unwrap();
    db.wait_until_quiet().unwrap();
    assert!(db.failure().is_none());
    std::fs::rename(&elsewhere, &store).unwrap();
    db.set_run_options(RunOptions { compactions_max: 3, ..before }).unwrap();
}
