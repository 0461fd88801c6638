//! Compaction on demand.

use super::{Dir, Model, Random, check, key, options};
use gabion_db::{Db, DbStats, Options};
use std::sync::atomic::{AtomicBool, Ordering};

/// Levels that hold files.
fn levels(stats: &DbStats) -> Vec<usize> {
    let levels = stats.levels.iter().enumerate();
    levels.filter(|(_, level)| level.files > 0).map(|(number, _)| number).collect()
}

fn file_bytes(stats: &DbStats) -> u64 {
    stats.levels.iter().map(|level| level.bytes).sum()
}

#[test]
fn what_is_compacted_lies_in_one_level_without_what_was_deleted_or_replaced() {
    let dir = Dir::new("compact");
    let db = Db::create(&dir.0, &options()).unwrap();
    let (mut model, mut random) = (Model::new(), Random(3));
    for round in 0..3_u8 {
        for n in 0..2_000 {
            db.put(&key(n), &[round; 200]).unwrap();
            model.insert(key(n), vec![round; 200]);
        }
    }
    for n in (0..2_000).filter(|n| n % 3 > 0) {
        db.delete(&key(n)).unwrap();
        model.remove(&key(n));
    }
    db.compact_range(b"", None).unwrap();
    check(&db, &model, &mut random);
    let stats = db.stats();
    assert_eq!(levels(&stats).len(), 1, "{:?}", stats.levels);
    let live: u64 = model.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum();
    assert!(file_bytes(&stats) < live * 13 / 10, "{} of {live}", file_bytes(&stats));
    // It rests: nothing has to be compacted again for its size.
    db.wait_until_quiet().unwrap();
    assert_eq!(db.stats().levels, stats.levels);
    db.compact_range(b"", None).unwrap();
    assert_eq!(db.stats().counters.compactions, stats.counters.compactions);

    model.keys().for_each(|key| db.delete(key).unwrap());
    db.compact_range(b"", None).unwrap();
    assert_eq!(file_bytes(&db.stats()), 0, "{:?}", db.stats().levels);
    drop(db);
    let db = Db::open(&dir.0, &options()).unwrap();
    assert_eq!(db.range(b"", None).count(), 0);
}

#[test]
fn a_range_is_compacted_and_what_lies_outside_of_it_is_left_alone() {
    let dir = Dir::new("compact-range");
    // So large an L0 that nothing is compacted by itself.
    let mut large = options();
    large.tree.l0_trigger = 30;
    large.tree.l0_slowdown = 100;
    large.tree.l0_stop = 200;
    large.tree.level1_len = 64 << 20;
    let db = Db::create(&dir.0, &large).unwrap();
    for from in [0, 1_000] {
        (from..from + 200).for_each(|n| db.put(&key(n), &[1; 100]).unwrap());
        db.flush().unwrap();
    }
    db.compact_range(b"", None).unwrap();
    let before = db.stats();
    // A deleted key in the first file too, which nobody asks to be compacted.
    db.delete(&key(0)).unwrap();
    db.flush().unwrap();
    (1_000..1_200).for_each(|n| db.delete(&key(n)).unwrap());
    db.flush().unwrap();
    db.compact_range(&key(1_000), None).unwrap();
    let stats = db.stats();
    assert_eq!(levels(&before), [1], "{:?}", before.levels);
    let half = file_bytes(&before) / 2;
    let left = file_bytes(&stats);
    assert!((half - 2_000..half + 2_000).contains(&left), "{left} of {:?}", stats.levels);
    assert_eq!(db.range(b"", None).count(), 199);
    db.compact_range(b"", None).unwrap();
    assert_eq!(db.range(b"", None).count(), 199);
    assert_eq!(levels(&db.stats()).len(), 1);
}

#[test]
fn a_compaction_ends_while_writers_go_on_and_several_take_turns() {
    let dir = Dir::new("compact-busy");
    let db = Db::create(&dir.0, &options()).unwrap();
    (0..3_000).for_each(|n| db.put(&key(n), &[0; 200]).unwrap());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(9);
            while !ended.load(Ordering::Relaxed) {
                db.put(&key(random.below(3_000)), &[1; 200]).unwrap();
            }
        });
        let compact = |from| {
            let db = db.clone();
            scope.spawn(move || (0..2).for_each(|_| db.compact_range(from, None).unwrap()))
        };
        let calls = [compact(b"" as &[u8]), compact(b"key01")];
        calls.into_iter().for_each(|call| call.join().unwrap());
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(db.range(b"", None).count(), 3_000);
}

/// Snapshots keep every file that is replaced, until no slot is left for the next one.
#[test]
fn a_compaction_without_room_says_so_and_the_store_goes_on() {
    let dir = Dir::new("compact-full");
    let db = Db::create(&dir.0, &Options { pool_len: 192 << 20, ..options() }).unwrap();
    (0..2_000).for_each(|n| db.put(&key(n), &[1; 800]).unwrap());
    let mut kept = vec![db.snapshot()];
    let (error, deleted) = (0..20)
        .find_map(|round| {
            (0..20).for_each(|n| db.delete(&key(n * 100 + round)).unwrap());
            let result = db.compact_range(b"", None);
            kept.push(db.snapshot());
            result.err().map(|error| (error, (round as usize + 1) * 20))
        })
        .expect("the pool holds no twenty copies");
    assert_eq!(error.kind(), gabion_base::ErrorKind::NoSpace, "{error}");
    assert_eq!(kept[0].range(b"", None).count(), 2_000);
    assert!(db.failure().is_none());
    kept.clear();
    db.compact_range(b"", None).unwrap();
    assert_eq!(db.range(b"", None).count(), 2_000 - deleted);
    assert_eq!(levels(&db.stats()).len(), 1);
}
