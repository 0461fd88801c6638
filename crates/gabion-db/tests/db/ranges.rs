//! Range deletes against a map, beside readers, and in batches.

use super::{Dir, Model, Random, any_bound, check, check_cursor, is_within, key, options};
use gabion_base::ErrorKind;
use gabion_base::units::KEY_LEN_MAX;
use gabion_db::{Db, Durability, WriteBatch};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

/// docs/faults.md: P16
#[test]
fn ranges_with_any_bounds_are_deleted_as_in_a_map_through_flushes_compactions_and_restarts() {
    let (dir, mut random) = (Dir::new("ranges-model"), Random(11));
    let mut model = Model::new();
    let mut db = Db::create(&dir.0, &options()).unwrap();
    for round in 0..5 {
        let snapshot = (db.snapshot(), model.clone());
        for n in 0..600 {
            let (at, len) = (random.below(3_000), random.below(300) as usize);
            let value = vec![random.below(256) as u8; len];
            match random.below(30) {
                // Mostly a few keys; now and then any bounds.
                0 if n % 10 > 0 => {
                    let (from, to) = (key(at), key(at + random.below(40)));
                    db.delete_range(&from..&to).unwrap();
                    model.retain(|key, _| *key < from || *key >= to);
                }
                0 => {
                    let bounds = (any_bound(&mut random), any_bound(&mut random));
                    db.delete_range(bounds.clone()).unwrap();
                    model.retain(|key, _| !is_within(key, &bounds));
                }
                1 => {
                    let prefix = &key(at)[..7];
                    let mut batch = WriteBatch::new();
                    batch.put(&key(at / 10 * 10 + 7), b"deleted with what was there before");
                    batch.delete_prefix(prefix);
                    batch.put(&key(at), &value);
                    model.retain(|key, _| !key.starts_with(prefix));
                    model.insert(key(at), value);
                    db.write(&batch, Durability::Ring).unwrap();
                }
                _ => {
                    let mut batch = WriteBatch::new();
                    for n in at..at + 5 {
                        batch.put(&key(n), &value);
                        model.insert(key(n), value.clone());
                    }
                    db.write(&batch, Durability::Ring).unwrap();
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
            1 => db.compact_range(..).unwrap(),
            _ => {}
        }
        check(&db, &model, &mut random);
        drop(db);
        db = Db::open(&dir.0, &options()).unwrap();
        check(&db, &model, &mut random);
    }
    let copy = Dir::new("ranges-copy");
    std::fs::remove_dir_all(&copy.0).unwrap();
    db.delete_range(key(1_000)..key(1_500)).unwrap();
    db.checkpoint(&copy.0).unwrap();
    db.delete_range(..).unwrap();
    assert!(db.iter(..).next().is_none());
    model.retain(|name, _| *name < key(1_000) || *name >= key(1_500));
    check(&Db::open(&copy.0, &options()).unwrap(), &model, &mut random);
}

/// docs/faults.md: P16
#[test]
fn readers_see_a_range_deleted_and_filled_anew_at_once_or_not_at_all() {
    let dir = Dir::new("ranges-threads");
    let db = Db::create(&dir.0, &options()).unwrap();
    let write = |round: u32| {
        let mut batch = WriteBatch::new();
        batch.delete_prefix(b"row");
        for n in 0..8 {
            batch.put(format!("row{:03}", (round + n * 5) % 40).as_bytes(), &round.to_le_bytes());
        }
        db.write(&batch, Durability::Ring).unwrap();
    };
    write(0);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers = [0, 1, 2].map(|reader| {
            let (db, ended) = (&db, &ended);
            scope.spawn(move || {
                let mut reads = 0u64;
                while !ended.load(Ordering::Relaxed) || reads == 0 {
                    let snapshot = db.snapshot();
                    let rows: Vec<_> = match reader {
                        0 => snapshot.iter("row"..).map(|pair| pair.unwrap().1).collect(),
                        1 => {
                            let rows = snapshot.prefix(b"row").rev();
                            rows.map(|pair| pair.unwrap().1).collect()
                        }
                        _ => {
                            let names: Vec<_> = (0..40).map(|n| format!("row{n:03}")).collect();
                            let names = names.iter().map(|name| name.as_bytes());
                            let found = snapshot.multi_get(names).into_iter();
                            found.filter_map(Result::unwrap).collect()
                        }
                    };
                    assert_eq!(rows.len(), 8);
                    assert!(rows.iter().all(|value| *value == rows[0]), "{rows:?}");
                    reads += 1;
                }
                reads
            })
        });
        (1..3_000).for_each(write);
        ended.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
    // Each was one of a few thousand range deletes; flushes of 1,024 each came by.
    db.wait_until_quiet().unwrap();
    assert!(db.stats().counters.flushes >= 2, "{:?}", db.stats().counters);
}

/// docs/faults.md: P16
#[test]
fn too_many_range_deletes_in_a_batch_and_keys_that_are_too_long_change_nothing() {
    let dir = Dir::new("ranges-limits");
    let db = Db::create(&dir.0, &options()).unwrap();
    db.put(b"k", b"v").unwrap();
    let mut batch = WriteBatch::new();
    (0..1_025).for_each(|_| batch.delete_range("a".."z"));
    let error = db.write(&batch, Durability::Ring).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.message().contains("1025 range deletes; the limit is 1024"), "{error}");
    let long = vec![b'a'; KEY_LEN_MAX + 1];
    for error in [db.delete_range(&long..), db.delete_range(..&long)] {
        assert_eq!(error.unwrap_err().kind(), ErrorKind::LimitExceeded);
    }
    // A range without keys is no write.
    db.delete_range("z".."a").unwrap();
    db.delete_range("k".."k").unwrap();
    assert_eq!(db.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    db.delete_range("k"..="k").unwrap();
    assert_eq!(db.get(b"k").unwrap(), None);
    db.put(&[0xff; 3], b"v").unwrap();
    db.delete_prefix(&[0xff]).unwrap();
    assert!(db.iter(..).next().is_none());
}

#[test]
fn the_longest_keys_are_bounds_as_any_other() {
    let dir = Dir::new("ranges-longest");
    let db = Db::create(&dir.0, &options()).unwrap();
    for byte in [b'b', 0xff] {
        let longest = vec![byte; KEY_LEN_MAX];
        let shorter = &longest[1..];
        let put = || [shorter, &longest, b"a"].iter().for_each(|key| db.put(key, b"v").unwrap());
        let all = || -> Vec<_> { db.iter(..).map(|pair| pair.unwrap().0).collect() };
        let (included, excluded) = (Bound::Included(&longest), Bound::Excluded(&longest));
        put();
        assert_eq!(db.iter((Bound::Included(&longest), included)).count(), 1);
        assert_eq!(db.iter((excluded, Bound::Unbounded)).count(), 0);
        db.delete_range((excluded, Bound::Unbounded)).unwrap();
        assert_eq!(all(), [b"a", shorter, &longest]);
        db.delete_range((included, included)).unwrap();
        assert_eq!(all(), [b"a", shorter]);
        put();
        db.delete_range((Bound::Excluded(shorter), Bound::Included(&longest[..]))).unwrap();
        assert_eq!(all(), [b"a", shorter]);
        db.delete_range(..=&longest).unwrap();
        assert!(all().is_empty());
    }
}
