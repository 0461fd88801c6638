//! Large values apart from the tree, as a program meets them.

use super::{Dir, key, options};
use gabion_db::{Db, Expiry, Options, RunOptions};

fn value(n: u64, round: u64) -> Vec<u8> {
    let len = if n.is_multiple_of(3) { 40 } else { 700 + n as usize % 400 };
    format!("{n} in round {round} ").into_bytes().into_iter().cycle().take(len).collect()
}

fn with_large_values() -> Options {
    let mut options = options();
    options.tree.large_values = 512;
    options
}

/// Each round overwrites other keys; every fifth key keeps its first value.
fn write(db: &Db, round: u64) {
    for n in (0..2_000_u64).filter(|n| round == 0 || !n.is_multiple_of(5)) {
        db.put(&key(n), &value(n, round)).unwrap();
    }
}

fn check(db: &Db, round: u64) {
    let of = |n: u64| if n.is_multiple_of(5) { 0 } else { round };
    for n in 0..2_000 {
        assert_eq!(db.get(&key(n)).unwrap().unwrap(), value(n, of(n)), "key {n}");
    }
    assert_eq!(db.iter(..).map(Result::unwrap).count(), 2_000);
}

/// Deletes all; no file of values may be left.
fn empty(db: &Db) {
    db.delete_range(..).unwrap();
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    db.wait_until_quiet().unwrap();
    assert_eq!(db.stats().values.files, 0);
}

#[test]
fn large_values_survive_overwrites_reopening_and_copies_and_their_room_comes_back() {
    let dir = Dir::new("large");
    let db = Db::create(&dir.0.join("store"), &with_large_values()).unwrap();
    for round in 0..6 {
        write(&db, round);
        check(&db, round);
    }
    db.flush().unwrap();
    db.wait_until_quiet().unwrap();
    check(&db, 5);
    let stats = db.stats().values;
    let live: u64 = (0..2_000).map(|n| value(n, 5).len() as u64).filter(|len| *len >= 512).sum();
    assert!(stats.files > 1 && stats.live_bytes >= live * 9 / 10, "{stats:?}, {live}");
    assert!(stats.value_bytes < 2 * live, "{stats:?}, {live} of {} were written", 5 * live);
    db.checkpoint(dir.0.join("copy")).unwrap();
    drop(db);
    check(&Db::open(dir.0.join("copy"), &with_large_values()).unwrap(), 5);

    // From now on none goes apart; what is there is read where it lies.
    let run = RunOptions { large_values: Some(0), ..options().run };
    let db = Db::open(dir.0.join("store"), &Options { run, ..with_large_values() }).unwrap();
    check(&db, 5);
    for round in 6..9 {
        write(&db, round);
    }
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    db.wait_until_quiet().unwrap();
    check(&db, 8);
    let left = db.stats().values;
    assert!(left.live_bytes < stats.live_bytes / 2, "{left:?} of {stats:?}");
    empty(&db);
}

/// MemTables are as long as segments here, so segments keep the values.
#[test]
fn large_values_stay_in_the_log_and_copies_write_behind_it() {
    let dir = Dir::new("kept");
    let mut options = with_large_values();
    options.tree.memtable_len = 256 << 10;
    (options.segment_len, options.ring_len) = (256 << 10, 2 << 20);
    let db = Db::create(&dir.0.join("store"), &options).unwrap();
    for round in 0..4 {
        write(&db, round);
    }
    db.flush().unwrap();
    db.wait_until_quiet().unwrap();
    check(&db, 3);
    let stats = db.stats().values;
    assert!(stats.segments > 2, "{stats:?}");
    db.checkpoint(dir.0.join("copy")).unwrap();
    drop(db);
    // The log of a copy has numbers of its own, behind those of the segments that it has as files.
    for name in ["copy", "store"] {
        let db = Db::open(dir.0.join(name), &options).unwrap();
        check(&db, 3);
        for round in 4..9 {
            write(&db, round);
        }
        drop(db);
        let db = Db::open(dir.0.join(name), &options).unwrap();
        check(&db, 8);
        empty(&db);
    }
}

#[test]
fn keys_and_lengths_are_had_without_a_read_of_large_values() {
    let dir = Dir::new("large-keys");
    let db = Db::create(&dir.0, &with_large_values()).unwrap();
    let big = |n: u64| vec![n as u8; 20_000 + n as usize];
    (0..200).for_each(|n| db.put(&key(n), &big(n)).unwrap());
    let expiry = Expiry::AtMs(db.time().system_ms + 600_000);
    db.put_expiring(&key(200), &big(200), expiry).unwrap();
    db.flush().unwrap();
    db.wait_until_quiet().unwrap();
    // Opens the files.
    assert_eq!(db.keys(..).count(), 201);
    let before = db.stats().read_bytes;
    let keys = db.keys(..).collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(keys, (0..201).map(key).collect::<Vec<_>>());
    let last = db.snapshot().keys(key(7)..).next_back().unwrap().unwrap();
    assert_eq!(last, key(200));
    let mut cursor = db.cursor(key(3)..).keys_only();
    assert!(cursor.seek_to_last().unwrap() && cursor.expires_at().is_some());
    assert!(cursor.prev().unwrap() && cursor.expires_at().is_none());
    assert_eq!((cursor.key(), cursor.value(), cursor.pair()), (Some(&key(199)[..]), None, None));
    assert!(cursor.into_iter().all(|pair| pair.unwrap().1.is_empty()));
    for n in 0..201 {
        assert_eq!(db.value_len(&key(n)).unwrap(), Some(big(n).len()));
    }
    assert!(db.contains_key(&key(5)).unwrap() && !db.contains_key("none").unwrap());
    assert!(db.expires_at(&key(200)).unwrap().is_some());
    let read = db.stats().read_bytes - before;
    assert!(read < 500_000, "{read} bytes were read");
}

/// Cursors read several values ahead at once, both ways; what the cache holds stays in its budget.
#[test]
fn large_values_are_read_ahead_and_cached_within_the_budget() {
    let dir = Dir::new("large-ahead");
    let db = Db::create(&dir.0, &with_large_values()).unwrap();
    let big = |n: u64| vec![n as u8; if n.is_multiple_of(50) { 90_000 } else { 2_000 }];
    (0..1_000).for_each(|n| db.put(&key(n), &big(n)).unwrap());
    db.flush().unwrap();
    db.wait_until_quiet().unwrap();
    let budget = db.run_options().block_cache_len as u64;
    let bytes: u64 = (0..1_000).map(|n| big(n).len() as u64).sum();
    let before = db.stats().read_bytes;
    for (n, pair) in db.iter(..).enumerate() {
        assert_eq!(pair.unwrap().1, big(n as u64));
        assert!(db.stats().cache_bytes as u64 <= budget);
    }
    let read = db.stats().read_bytes - before;
    assert!(read < bytes * 3 / 2, "{read} bytes were read for {bytes}");
    for (n, pair) in db.iter(..).rev().enumerate() {
        assert_eq!(pair.unwrap().1, big(999 - n as u64));
    }
    let hits = db.stats().cache_hits;
    (0..3).for_each(|_| assert_eq!(db.get(&key(500)).unwrap().unwrap(), big(500)));
    assert!(db.stats().cache_hits > hits);
}

/// Segments that keep values are files of the tree, and count as such alone.
///
/// docs/faults.md: E10
#[test]
fn a_pool_holds_as_much_of_values_that_stay_in_the_log() {
    let put_all = |name: &str, large_values| {
        let dir = Dir::new(name);
        let (pool_len, segment_len, ring_len) = (256 << 20, 2 << 20, 16 << 20);
        let mut options = Options { pool_len, segment_len, ring_len, ..Options::default() };
        options.tree.large_values = large_values;
        let db = Db::create(&dir.0, &options).unwrap();
        let mut value: Vec<u8> = (0..32_768_u32).map(|n| (n * n / 7) as u8).collect();
        let mut put = 0_u64;
        loop {
            value[..8].copy_from_slice(&put.to_le_bytes());
            if db.put(&key(put), &value).is_err() {
                break;
            }
            put += 1;
        }
        assert_eq!(db.stats().values.segments > 20, large_values > 0);
        put
    };
    let (within, apart) = (put_all("within", 0), put_all("apart", 512));
    assert!(apart * 4 >= within * 3, "{apart} values apart, {within} in the tree");
}

/// Nothing is under way while the pace of collection is passed, and that is no want of slots.
#[test]
fn what_waits_for_the_pace_of_collection_is_waited_for() {
    let dir = Dir::new("large-pace");
    let mut options = with_large_values();
    options.run.collection_bytes_per_s = 1 << 20;
    let db = Db::create(&dir.0, &options).unwrap();
    for round in 0..6 {
        write(&db, round);
        db.flush().unwrap();
        db.wait_until_quiet().unwrap();
        let values = db.stats().values;
        assert!(values.dead_bytes() * 6 <= values.value_bytes, "{round}: {values:?}");
    }
    check(&db, 5);
}
