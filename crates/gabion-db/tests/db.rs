//! The embedded store against a model, from several threads, and through kills of its process.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that meets an error has failed; this one has files and a process that is killed"
)]

use gabion_base::units::{KEY_LEN_MAX, VALUE_LEN_MAX};
use gabion_base::{ConfigNumber, ErrorKind, GroupId, ReplicaId};
use gabion_db::{Db, Durability, Options, WriteBatch, replica};
use gabion_engine::TreeConfig;
use gabion_node::{AckLevel, CompactionMode, GroupConfig};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[path = "db/checkpoint.rs"]
mod checkpoint;
#[path = "db/compact.rs"]
mod compact;

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
        block_cache_len: 256 << 10,
        ..Options::default()
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Everything that there is, by every way of reading.
fn check(db: &Db, model: &Model, random: &mut Random) {
    let all: Vec<_> = db.range(b"", None).map(|pair| pair.unwrap()).collect();
    assert_eq!(all.len(), model.len());
    for ((key, value), (wanted_key, wanted)) in all.iter().zip(model) {
        assert!(key[..] == wanted_key[..] && value[..] == wanted[..], "{wanted_key:?}");
    }
    let (from, to) = (key(random.below(3_000)), key(random.below(3_000)));
    let found: Vec<_> = db.range(&from, Some(&to)).map(|pair| pair.unwrap().0).collect();
    let wanted = model.keys().filter(|&key| *key >= from && *key < to);
    assert!(found.iter().map(|key| &key[..]).eq(wanted.map(|key| &key[..])));
    let keys: Vec<Vec<u8>> = (0..50).map(|_| key(random.below(3_000))).collect();
    let values = db.multi_get(keys.iter().map(|key| &key[..])).unwrap();
    for (key, value) in keys.iter().zip(values) {
        assert_eq!(value.as_deref(), model.get(key).map(|value| &value[..]));
        assert_eq!(db.get(key).unwrap().as_deref(), model.get(key).map(|value| &value[..]));
    }
}

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
                    let level = [Durability::Ring, Durability::Flushed][random.below(2) as usize];
                    db.write(&batch, level).unwrap();
                }
                _ => {
                    db.put(&key(at), &value).unwrap();
                    model.insert(key(at), value);
                }
            }
        }
        check(&db, &model, &mut random);
        let then: Vec<_> = snapshot.0.range(b"", None).map(|pair| pair.unwrap().0).collect();
        assert!(then.iter().map(|key| &key[..]).eq(snapshot.1.keys().map(|key| &key[..])));
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

/// Two keys that one batch always writes together never differ in a snapshot, whatever is flushed and
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
                    let pair = db.multi_get([&key(n)[..], &key(10_000 + n)[..]]).unwrap();
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
    assert_eq!(db.range(b"", None).count(), 0);
    db.put(&[9; KEY_LEN_MAX], b"").unwrap();
    assert!(db.failure().is_none());

    assert_eq!(Db::open(&dir.0, &options()).err().unwrap().kind(), ErrorKind::Busy);
    assert_eq!(Db::create(&dir.0, &options()).err().unwrap().kind(), ErrorKind::InvalidInput);
    let nowhere = Db::open(&dir.0.join("nowhere"), &options()).err().unwrap();
    assert_eq!(nowhere.kind(), ErrorKind::NotFound);
    let odd = Options { ring_len: (4 << 20) + 1, ..options() };
    let text = Db::create(&dir.0.join("odd"), &odd).err().unwrap().to_string();
    assert!(text.contains("ring_len is 4194305"), "{text}");
    let group = GroupConfig {
        group: GroupId(7),
        config: ConfigNumber(1),
        members: vec![ReplicaId(1), ReplicaId(2)],
        compaction: CompactionMode::Primary,
        ack: AckLevel::Replicated,
        ring_len: 4 << 20,
        segment_len: 1 << 20,
        tree: options().tree,
    };
    let member = dir.0.join("member");
    replica::create_replica(&member, 128 << 20, &group, ReplicaId(2)).unwrap();
    let text = Db::open(&member, &options()).err().unwrap().to_string();
    assert!(text.contains("belongs to a group of 2 replicas"), "{text}");
}

/// A snapshot outlives its store, and keeps others out of the directory meanwhile.
#[test]
fn a_snapshot_can_be_read_after_the_store_was_closed() {
    let dir = Dir::new("snapshot");
    let db = Db::create(&dir.0, &options()).unwrap();
    (0..2_000).for_each(|n| db.put(&key(n), &[7; 100]).unwrap());
    let snapshot = db.snapshot();
    drop(db);
    assert_eq!(snapshot.range(b"", None).filter(|pair| pair.is_ok()).count(), 2_000);
    assert_eq!(Db::open(&dir.0, &options()).err().unwrap().kind(), ErrorKind::Busy);
    drop(snapshot);
    assert_eq!(Db::open(&dir.0, &options()).unwrap().range(b"", None).count(), 2_000);
}

const CHILD: &str = "GABION_DB_TEST_DIRECTORY";

/// Not a test of its own: the process that is killed. It says after each batch how far it is.
#[test]
#[ignore = "run by what_was_acknowledged_survives_kills_of_the_process"]
fn child_that_is_killed() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let db = Db::open(&dir, &options()).unwrap();
    let from = newest(&db);
    let progress = std::fs::OpenOptions::new().append(true).open(dir.join("progress")).unwrap();
    for n in from + 1.. {
        let mut batch = WriteBatch::new();
        batch.put(b"newest", &n.to_be_bytes());
        batch.put(&key(n), &[n as u8; 300]);
        if n > 100 {
            batch.delete(&key(n - 100));
        }
        db.write(&batch, Durability::Ring).unwrap();
        std::io::Write::write_all(&mut &progress, &n.to_be_bytes()).unwrap();
    }
}

fn newest(db: &Db) -> u64 {
    let value = db.get(b"newest").unwrap();
    value.map_or(0, |value| u64::from_be_bytes(value[..].try_into().unwrap()))
}

/// The last number that the child wrote down whole.
fn progress(dir: &Path) -> u64 {
    let bytes = std::fs::read(dir.join("progress")).unwrap();
    bytes.chunks_exact(8).last().map_or(0, |n| u64::from_be_bytes(n.try_into().unwrap()))
}

#[test]
fn what_was_acknowledged_survives_kills_of_the_process() {
    let dir = Dir::new("killed");
    drop(Db::create(&dir.0, &options()).unwrap());
    std::fs::write(dir.0.join("progress"), b"").unwrap();
    let mut last = 0;
    for round in 0..5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_is_killed", "--ignored"])
            .env(CHILD, &dir.0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while progress(&dir.0) < last + 300 * (round + 1) {
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        last = progress(&dir.0);
        let db = Db::open(&dir.0, &options()).unwrap();
        let newest = newest(&db);
        assert!(newest == last || newest == last + 1, "acknowledged {last}, found {newest}");
        let first = newest.saturating_sub(99).max(1);
        let keys: Vec<_> = db.range(b"key", Some(b"kez")).map(|pair| pair.unwrap().0).collect();
        assert!(keys.iter().map(|key| key.to_vec()).eq((first..=newest).map(key)));
        last = last.max(newest);
    }
}
