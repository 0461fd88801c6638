//! Keys that expire, over flushes, compactions, restarts and copies.

use super::{Dir, key, options};
use gabion_db::{Db, Durability, Expiry, Options, WriteBatch};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn clock_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn level_bytes(db: &Db) -> u64 {
    db.stats().levels.iter().map(|level| level.bytes).sum()
}

/// docs/faults.md: P11
#[test]
fn a_key_is_there_until_its_time_and_a_snapshot_keeps_it() {
    let dir = Dir::new("expiry");
    let db = Db::create(&dir.0, &options()).unwrap();
    let before_ms = clock_ms();
    db.put_expiring(b"short", b"1", Expiry::In(Duration::from_millis(30))).unwrap();
    let mut batch = WriteBatch::new();
    batch.put_expiring(b"hour", b"2", Expiry::In(Duration::from_secs(3600)));
    batch.put(b"plain", b"3");
    batch.put_expiring(b"past", b"4", Expiry::AtMs(before_ms - 1));
    db.write(&batch, Durability::Ring).unwrap();
    let hour = db.expires_at(b"hour").unwrap().unwrap();
    assert!(hour >= before_ms + 3_600_000, "{hour}");
    assert_eq!(db.look_up(b"plain").unwrap().map(|found| found.expires_ms), Some(None));
    assert_eq!((db.get(b"past").unwrap(), db.expires_at(b"past").unwrap()), (None, None));
    db.put_expiring(b"snapshot", b"5", Expiry::AtMs(hour)).unwrap();
    let snapshot = db.snapshot();
    let was_there = snapshot.get(b"short").unwrap();
    while db.get(b"short").unwrap().is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(clock_ms() >= before_ms + 30);
    assert_eq!(snapshot.get(b"short").unwrap(), was_there);
    let mut cursor = db.cursor(..);
    let mut seen = Vec::new();
    while cursor.next().unwrap() {
        let (key, value) = cursor.pair().unwrap();
        seen.push((key.to_vec(), value.to_vec(), cursor.expires_at()));
    }
    let row = |key: &[u8], value: &[u8], at| (key.to_vec(), value.to_vec(), at);
    let wanted = [
        row(b"hour", b"2", Some(hour)),
        row(b"plain", b"3", None),
        row(b"snapshot", b"5", Some(hour)),
    ];
    assert_eq!(seen, wanted);
    let back: Vec<_> = db.iter(..).rev().map(|pair| pair.unwrap().1.to_vec()).collect();
    assert_eq!(back, [b"5", b"3", b"2"]);
}

/// docs/faults.md: P11
#[test]
fn expiries_survive_flush_restart_and_copy_and_compaction_gives_the_room_back() {
    let dir = Dir::new("expiry-restart");
    let (store, copy) = (dir.0.join("store"), dir.0.join("copy"));
    let options = Options { pool_len: 256 << 20, ..options() };
    let db = Db::create(&store, &options).unwrap();
    let far_ms = clock_ms() + 3_600_000;
    for n in 0..2_000 {
        let soon = Expiry::In(Duration::from_millis(500));
        let expiry = if n % 2 == 0 { soon } else { Expiry::AtMs(far_ms) };
        db.put_expiring(&key(n), &[7; 500], expiry).unwrap();
    }
    db.flush().unwrap();
    drop(db);
    let db = Db::open(&store, &options).unwrap();
    // The keys are in files since before the start.
    while db.iter(..).count() > 1_000 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(db.get(&key(0)).unwrap(), None);
    assert_eq!(db.expires_at(&key(1)).unwrap(), Some(far_ms));
    let before = level_bytes(&db);
    db.compact_range(..).unwrap();
    let after = level_bytes(&db);
    assert!(after < before * 6 / 10, "{before} bytes, then {after}");
    assert_eq!(db.iter(..).count(), 1_000);
    db.put_expiring(b"gone", b"1", Expiry::In(Duration::from_millis(20))).unwrap();
    while db.get(b"gone").unwrap().is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    db.checkpoint(&copy).unwrap();
    let copy = Db::open(&copy, &options).unwrap();
    assert_eq!(copy.get(b"gone").unwrap(), None);
    assert_eq!(copy.expires_at(&key(1)).unwrap(), Some(far_ms));
    assert_eq!(copy.iter(..).count(), 1_000);
}
