//! The blocks that readers find in memory after flushes and compactions.

use super::{Dir, options};
use gabion_db::WarmStats;
use gabion_db::{Db, RunOptions};

const RECORDS: u64 = 20_000;

fn key(n: u64) -> [u8; 8] {
    (n * 7_919 % RECORDS).to_be_bytes()
}

fn put_all(db: &Db, round: u8) {
    (0..RECORDS).for_each(|n| db.put(&key(n), &[round; 100]).unwrap());
}

/// Look-ups of blocks that missed, and bytes read, when every record is read.
fn read_all(db: &Db, round: u8) -> (u64, u64) {
    let before = db.stats();
    (0..RECORDS).for_each(|n| assert_eq!(db.get(&key(n)).unwrap().unwrap(), &[round; 100][..]));
    let after = db.stats();
    (after.cache_misses - before.cache_misses, after.read_bytes - before.read_bytes)
}

/// docs/faults.md: P5
#[test]
fn what_readers_had_in_memory_they_have_after_it_was_rewritten() {
    let dir = Dir::new("warm");
    let mut options = options();
    options.run = RunOptions { block_cache_len: 128 << 20, ..RunOptions::default() };
    let db = Db::create(&dir.0, &options).unwrap();
    put_all(&db, 1);
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    let stats = db.stats();
    assert_eq!((stats.cache_bytes, stats.index_bytes), (0, 0), "nobody has read anything");
    assert_eq!(stats.warmed, WarmStats::default());
    let (misses, bytes) = read_all(&db, 1);
    assert!(misses > 400 && bytes > 2 << 20, "{misses} misses, {bytes} bytes");
    for round in 2..4 {
        put_all(&db, round);
        db.flush().unwrap();
        db.compact_range(..).unwrap();
        let (again, bytes_again) = read_all(&db, round);
        assert!(again * 20 < misses, "round {round}: {again} misses instead of {misses}");
        assert!(bytes_again * 20 < bytes, "round {round}: {bytes_again} bytes instead of {bytes}");
    }
    let warmed = db.stats().warmed;
    assert!(warmed.blocks > misses && warmed.bytes > bytes, "{warmed:?}");
    assert_eq!(warmed.given_up, 0);
}
