//! Counters that are added to, over flushes, compactions, restarts and copies, and from several
//! threads.

use super::{Dir, options};
use gabion_db::{Db, Durability, Expiry, WriteBatch};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn number(db: &Db, key: &[u8]) -> Option<i64> {
    let value = db.get(key).unwrap()?;
    Some(std::str::from_utf8(&value).unwrap().parse().unwrap())
}

/// docs/faults.md: P13
#[test]
fn what_is_added_from_several_threads_counts_once_each_through_flushes_compactions_and_a_restart() {
    let dir = Dir::new("counters");
    let db = Db::create(&dir.0, &options()).unwrap();
    db.put(b"given", b"1000").unwrap();
    db.put(b"text", b"none").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_i64 {
            let db = &db;
            scope.spawn(move || {
                for n in 0..1_500 {
                    db.add(format!("of{thread}").as_bytes(), 2).unwrap();
                    let mut batch = WriteBatch::new();
                    batch.add(b"all", thread - 1);
                    batch.add(b"given", -1);
                    batch.add(b"text", 1);
                    batch.put(format!("pad{thread}{n:05}").as_bytes(), &[7; 40]);
                    db.write(&batch, Durability::Ring).unwrap();
                }
            });
        }
    });
    let check = |db: &Db, what: &str| {
        for thread in 0..4 {
            assert_eq!(number(db, format!("of{thread}").as_bytes()), Some(3_000), "{what}");
        }
        assert_eq!(
            (number(db, b"all"), number(db, b"given")),
            (Some(3_000), Some(-5_000)),
            "{what}"
        );
        assert_eq!(db.get(b"text").unwrap().unwrap(), &b"none"[..], "{what}");
        let pairs: Vec<_> = db.prefix(b"of").map(|pair| pair.unwrap().1).collect();
        assert_eq!(pairs, [&b"3000"[..]; 4], "{what}");
        let back: Vec<_> = db.prefix(b"of").rev().map(|pair| pair.unwrap().1).collect();
        assert_eq!(back, pairs, "{what}");
    };
    check(&db, "as written");
    drop(db);
    let db = Db::open(&dir.0, &options()).unwrap();
    check(&db, "opened anew");
    db.flush().unwrap();
    check(&db, "flushed");
    db.compact_range(..).unwrap();
    check(&db, "compacted");
    let entries = db.approximate_size(..).unwrap().entries;
    assert_eq!(entries, 4 + 3 + 6_000, "operands became values");
    drop(db);
    check(&Db::open(&dir.0, &options()).unwrap(), "opened again");
}

/// docs/faults.md: P13
#[test]
fn a_snapshot_and_a_checkpoint_show_the_sum_of_their_moment() {
    let dir = Dir::new("counters-moment");
    let (store, copy) = (dir.0.join("store"), dir.0.join("copy"));
    let db = Db::create(&store, &options()).unwrap();
    db.add(b"n", 1).unwrap();
    db.flush().unwrap();
    db.add(b"n", 10).unwrap();
    let snapshot = db.snapshot();
    db.checkpoint(&copy).unwrap();
    db.add(b"n", 100).unwrap();
    db.compact_range(..).unwrap();
    assert_eq!(snapshot.get(b"n").unwrap().unwrap(), &b"11"[..]);
    assert_eq!(number(&db, b"n"), Some(111));
    db.delete(b"n").unwrap();
    db.add(b"n", 5).unwrap();
    assert_eq!(number(&db, b"n"), Some(5));
    let copy = Db::open(&copy, &options()).unwrap();
    assert_eq!(number(&copy, b"n"), Some(11));
    copy.add(b"n", 4).unwrap();
    assert_eq!(number(&copy, b"n"), Some(15));
}

/// docs/faults.md: P13
#[test]
fn a_counter_that_expires_is_gone_with_what_was_added_and_begins_anew() {
    let dir = Dir::new("counters-expiry");
    let db = Db::create(&dir.0, &options()).unwrap();
    // A slow machine may let any time pass before the addition.
    let mut soon_ms = 20;
    loop {
        db.put_expiring(b"soon", b"40", Expiry::In(Duration::from_millis(soon_ms))).unwrap();
        db.add(b"soon", 2).unwrap();
        match db.look_up(b"soon").unwrap() {
            Some(found) if found.expires_ms.is_none() => assert_eq!(found.value, "2"),
            Some(found) => break assert_eq!(found.value, "42"),
            None => break,
        }
        soon_ms *= 2;
    }
    let hour_ms =
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64 + 3_600_000;
    db.put_expiring(b"late", b"40", Expiry::AtMs(hour_ms)).unwrap();
    db.add(b"late", 2).unwrap();
    assert_eq!((number(&db, b"late"), db.expires_at(b"late").unwrap()), (Some(42), Some(hour_ms)));
    while db.get(b"soon").unwrap().is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    assert_eq!(db.get(b"soon").unwrap(), None, "what was added does not come to light");
    db.add(b"soon", 3).unwrap();
    db.add(b"late", 1).unwrap();
    for _ in 0..2 {
        assert_eq!((number(&db, b"soon"), db.expires_at(b"soon").unwrap()), (Some(3), None));
        assert_eq!(
            (number(&db, b"late"), db.expires_at(b"late").unwrap()),
            (Some(43), Some(hour_ms))
        );
        db.compact_range(..).unwrap();
    }
}
